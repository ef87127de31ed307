/* Batch normalisation over all ranks: statistics and gradients of the joined batch, with the same
   bits on every rank, for uneven and empty parts. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "test.h"
#include "ranks.h"
#include <math.h>

#define CHANNELS 3u
#define INNER 4u
#define SAMPLES 11u
#define VALUES (SAMPLES * CHANNELS * INNER)

/* How many samples each rank has; the first rows are of 1 rank, the last ones of 4. */
static const uint32_t parts[][4] = {
    {11}, {5, 6}, {0, 11}, {10, 1}, {4, 0, 7}, {1, 9, 1}, {5, 0, 3, 3}, {0, 0, 0, 11}};
static const uint32_t part_ranks[] = {1, 2, 2, 2, 3, 3, 4, 4};

typedef struct job {
    const uint32_t *part;
    bool narrow;
    double x[VALUES], dy[VALUES];              /* of the joined batch */
    double mean[4][CHANNELS], m2[4][CHANNELS]; /* as each rank has them */
    double inv[4][CHANNELS], dx[VALUES];
    uint64_t count[4];
    double running_mean[4][CHANNELS], running_var[4][CHANNELS];
} job;

static double whole_number(uint32_t i, uint32_t seed) {
    return (double)((i * 2654435761u + seed * 40503u) >> 7 & 63) - 20;
}

static void job_fill(job *j, const uint32_t *part) {
    memset(j, 0, sizeof *j);
    j->part = part;
    for (uint32_t i = 0; i < VALUES; ++i) {
        j->x[i] = whole_number(i, 1);
        j->dy[i] = whole_number(i, 2);
    }
}

/* Where this rank's samples begin. */
static uint32_t first_value(const job *j, uint32_t rank) {
    uint32_t at = 0;
    for (uint32_t r = 0; r < rank; ++r)
        at += j->part[r] * CHANNELS * INNER;
    return at;
}

static void layer(cdp_group *g, void *arg) {
    job *j = arg;
    const uint32_t me = cdp_rank(g), at = first_value(j, me), n = j->part[me] * CHANNELS * INNER;
    double scratch[4 * (2 * CHANNELS + 1)], sums[2][CHANNELS] = {{0}};
    float narrow[VALUES];
    cdp_batch_norm bn = {.group = g, .channels = CHANNELS, .scratch = scratch};
    double *mean = j->mean[me], *inv = j->inv[me];
    bn.running_mean = j->running_mean[me];
    bn.running_var = j->running_var[me];
    for (uint32_t i = 0; i < n; ++i)
        narrow[i] = (float)j->x[at + i];
    T_EQ(sizeof scratch / 8 / 4 * cdp_size(g), cdp_batch_norm_scratch(&bn));
    T_EQ(CDP_OK,
        j->narrow ? cdp_batch_norm_local(
            narrow, CDP_DTYPE_F32, j->part[me], CHANNELS, INNER, mean, j->m2[me])
                  : cdp_batch_norm_local(
                      j->x + at, CDP_DTYPE_F64, j->part[me], CHANNELS, INNER, mean, j->m2[me]));
    j->count[me] = j->part[me] * INNER;
    T_EQ(CDP_OK, cdp_batch_norm_forward(&bn, &j->count[me], mean, j->m2[me], inv));
    T_EQ(1, bn.tracked);
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t c = i / INNER % CHANNELS;
        sums[0][c] += j->dy[at + i];
        sums[1][c] += j->dy[at + i] * (j->x[at + i] - mean[c]);
    }
    T_EQ(CDP_OK, cdp_batch_norm_backward(&bn, sums[0], sums[1]));
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t c = i / INNER % CHANNELS;
        const double all = (double)j->count[me];
        j->dx[at + i] = (j->dy[at + i] - sums[0][c] / all
                            - (j->x[at + i] - mean[c]) * inv[c] * inv[c] * sums[1][c] / all)
            * inv[c];
    }
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-12 * (1 + fabs(b));
}

/* Mean and sum of squares of one channel of the joined batch: whole numbers have an exact sum. */
static void plain(const job *j, uint32_t c, double *mean, double *m2) {
    const double n = SAMPLES * INNER;
    *mean = *m2 = 0;
    for (uint32_t i = 0; i < VALUES; ++i)
        if (i / INNER % CHANNELS == c) *mean += j->x[i] / n;
    for (uint32_t i = 0; i < VALUES; ++i)
        if (i / INNER % CHANNELS == c) *m2 += (j->x[i] - *mean) * (j->x[i] - *mean);
}

static void check_layer(const job *j, uint32_t ranks) {
    for (uint32_t r = 0; r < ranks; ++r) {
        T_EQ(SAMPLES * INNER, j->count[r]);
        T(memcmp(j->mean[0], j->mean[r], sizeof j->mean[0]) == 0);
        T(memcmp(j->m2[0], j->m2[r], sizeof j->m2[0]) == 0);
        T(memcmp(j->inv[0], j->inv[r], sizeof j->inv[0]) == 0);
        T(memcmp(j->running_mean[0], j->running_mean[r], sizeof j->mean[0]) == 0);
        T(memcmp(j->running_var[0], j->running_var[r], sizeof j->mean[0]) == 0);
    }
    for (uint32_t c = 0; c < CHANNELS; ++c) {
        double mean, m2;
        plain(j, c, &mean, &m2);
        T(near(j->mean[0][c], mean) && near(j->m2[0][c], m2));
        T(near(j->inv[0][c], 1 / sqrt(m2 / (SAMPLES * INNER) + 1e-5)));
        T(near(j->running_mean[0][c], 0.1 * mean));
        T(near(j->running_var[0][c], 0.1 * m2 / (SAMPLES * INNER - 1)));
    }
}

TEST(statistics_and_gradients_are_those_of_the_joined_batch) {
    static job one, j;
    job_fill(&one, parts[0]);
    run_ranks(1, &(cdp_group_desc){0}, 0, layer, &one);
    for (uint32_t k = 0; k < sizeof parts / sizeof *parts; ++k)
        for (uint32_t narrow = 0; narrow < 2; ++narrow) {
            job_fill(&j, parts[k]);
            j.narrow = narrow;
            run_ranks(part_ranks[k], &(cdp_group_desc){0}, 0, layer, &j);
            check_layer(&j, part_ranks[k]);
            for (uint32_t i = 0; i < VALUES; ++i)
                T(near(j.dx[i], one.dx[i]));
        }
}

/* The derivative of a sum of outputs times dy, by differences. */
TEST(gradients_are_the_slopes_of_the_output) {
    static job j, up, down;
    const double h = 1e-4;
    job_fill(&j, parts[0]);
    run_ranks(1, &(cdp_group_desc){0}, 0, layer, &j);
    for (uint32_t i = 0; i < VALUES; i += 7) {
        double slope = 0;
        job_fill(&up, parts[0]);
        job_fill(&down, parts[0]);
        up.x[i] += h;
        down.x[i] -= h;
        run_ranks(1, &(cdp_group_desc){0}, 0, layer, &up);
        run_ranks(1, &(cdp_group_desc){0}, 0, layer, &down);
        for (uint32_t k = 0; k < VALUES; ++k) {
            const uint32_t c = k / INNER % CHANNELS;
            slope += j.dy[k]
                * ((up.x[k] - up.mean[0][c]) * up.inv[0][c]
                    - (down.x[k] - down.mean[0][c]) * down.inv[0][c])
                / (2 * h);
        }
        T(fabs(slope - j.dx[i]) < 1e-6);
    }
}

TEST(a_nan_reaches_its_channel_on_all_ranks_and_no_other) {
    static job j;
    job_fill(&j, parts[5]);
    j.x[VALUES - 1] = NAN; /* of the last channel, on the last rank */
    run_ranks(3, &(cdp_group_desc){0}, 0, layer, &j);
    for (uint32_t r = 0; r < 3; ++r) {
        T(isnan(j.mean[r][2]) && isnan(j.m2[r][2]) && isnan(j.inv[r][2]));
        T(!isnan(j.mean[r][1]) && !isnan(j.inv[r][0]));
    }
}

static void nothing_anywhere(cdp_group *g, void *arg) {
    double scratch[2 * 3], mean = 0, m2 = 0, inv = 0, kept[2] = {3, 4};
    cdp_batch_norm bn = {.group = g, .channels = 1, .eps = 0.25, .scratch = scratch};
    uint64_t count = 0;
    (void)arg;
    bn.running_mean = &kept[0];
    bn.running_var = &kept[1];
    T_EQ(CDP_OK, cdp_batch_norm_forward(&bn, &count, &mean, &m2, &inv));
    T(count == 0 && mean == 0 && m2 == 0 && fabs(inv - 2) < 1e-15);
    T(kept[0] == 3 && kept[1] == 4 && bn.tracked == 0);
}

TEST(a_batch_without_samples_leaves_running_statistics) {
    run_ranks(2, &(cdp_group_desc){0}, 0, nothing_anywhere, NULL);
}

static void running(cdp_group *g, void *arg) {
    double scratch[2 * 3], kept[2] = {0, 1}, m, inv;
    cdp_batch_norm bn = {.group = g, .channels = 1, .cumulative = true, .scratch = scratch};
    (void)arg;
    bn.running_mean = &kept[0];
    bn.running_var = &kept[1];
    for (uint32_t b = 0; b < 3; ++b) { /* means 1, 2, 3 and variances 2, 2, 2 */
        uint64_t count = 1;
        double mean = b + (cdp_rank(g) ? 2.0 : 0.0), m2 = 0;
        T_EQ(CDP_OK, cdp_batch_norm_forward(&bn, &count, &mean, &m2, &inv));
        T(mean == b + 1.0 && m2 == 2 && count == 2);
    }
    T(near(kept[0], 2) && near(kept[1], 2) && bn.tracked == 3);
    T_EQ(CDP_OK, cdp_batch_norm_eval(&bn, &m, &inv));
    T(m == kept[0] && near(inv, 1 / sqrt(kept[1] + 1e-5)));
}

TEST(cumulative_statistics_are_means_over_batches) {
    run_ranks(2, &(cdp_group_desc){0}, 0, running, NULL);
}

/* ---- a network: linear, batch normalisation, linear; trained by the sum of all losses ---- */

#define IN 5u
#define HIDDEN 6u
#define ROWS 13u
#define WEIGHTS (IN * HIDDEN + HIDDEN)

typedef struct net {
    const uint32_t *part;
    double w[4][WEIGHTS];
} net;

static void net_forward(const double *w, const double *row, double h[HIDDEN]) {
    for (uint32_t k = 0; k < HIDDEN; ++k) {
        h[k] = 0;
        for (uint32_t i = 0; i < IN; ++i)
            h[k] += w[k * IN + i] * row[i];
    }
}

static void net_step(cdp_group *g, cdp_batch_norm *bn, double *w, const double x[][IN],
    const double *want, uint32_t rows) {
    double h[ROWS][HIDDEN], dh[ROWS][HIDDEN], mean[HIDDEN], m2[HIDDEN], inv[HIDDEN];
    double dw[WEIGHTS] = {0}, sums[2][HIDDEN] = {{0}};
    uint64_t count = rows;
    for (uint32_t r = 0; r < rows; ++r)
        net_forward(w, x[r], h[r]);
    T_EQ(CDP_OK, cdp_batch_norm_local(h, CDP_DTYPE_F64, rows, HIDDEN, 1, mean, m2));
    T_EQ(CDP_OK, cdp_batch_norm_forward(bn, &count, mean, m2, inv));
    for (uint32_t r = 0; r < rows; ++r) {
        double out = 0, error;
        for (uint32_t k = 0; k < HIDDEN; ++k)
            out += w[IN * HIDDEN + k] * (h[r][k] - mean[k]) * inv[k];
        error = out - want[r];
        for (uint32_t k = 0; k < HIDDEN; ++k) {
            dh[r][k] = error * w[IN * HIDDEN + k];
            dw[IN * HIDDEN + k] += error * (h[r][k] - mean[k]) * inv[k];
            sums[0][k] += dh[r][k];
            sums[1][k] += dh[r][k] * (h[r][k] - mean[k]);
        }
    }
    T_EQ(CDP_OK, cdp_batch_norm_backward(bn, sums[0], sums[1]));
    for (uint32_t r = 0; r < rows; ++r)
        for (uint32_t k = 0; k < HIDDEN; ++k) {
            const double all = (double)count;
            const double d = (dh[r][k] - sums[0][k] / all
                                 - (h[r][k] - mean[k]) * inv[k] * inv[k] * sums[1][k] / all)
                * inv[k];
            for (uint32_t i = 0; i < IN; ++i)
                dw[k * IN + i] += d * x[r][i];
        }
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, dw, WEIGHTS, CDP_DTYPE_F64, CDP_REDUCE_SUM));
    for (uint32_t i = 0; i < WEIGHTS; ++i)
        w[i] -= 0.02 * dw[i];
}

static void net_train(cdp_group *g, void *arg) {
    net *n = arg;
    double x[ROWS][IN], want[ROWS], scratch[4 * (2 * HIDDEN + 1)];
    cdp_batch_norm bn = {.group = g, .channels = HIDDEN, .scratch = scratch};
    uint32_t first = 0, me = cdp_rank(g);
    for (uint32_t r = 0; r < me; ++r)
        first += n->part[r];
    for (uint32_t r = 0; r < ROWS; ++r) {
        for (uint32_t i = 0; i < IN; ++i)
            x[r][i] = whole_number(r * IN + i, 3) / 16;
        want[r] = whole_number(r, 4) / 16;
    }
    for (uint32_t i = 0; i < WEIGHTS; ++i)
        n->w[me][i] = whole_number(i, 5) / 32;
    for (uint32_t step = 0; step < 30; ++step)
        net_step(g, &bn, n->w[me], (const double(*)[IN])x + first, want + first, n->part[me]);
}

TEST(a_network_learns_what_one_rank_learns) {
    static const uint32_t alone[] = {13}, three[] = {6, 0, 7}, four[] = {1, 5, 4, 3};
    static net one = {.part = alone}, many;
    run_ranks(1, &(cdp_group_desc){0}, 0, net_train, &one);
    for (uint32_t n = 3; n <= 4; ++n) {
        many.part = n == 3 ? three : four;
        run_ranks(n, &(cdp_group_desc){0}, 0, net_train, &many);
        for (uint32_t i = 0; i < WEIGHTS; ++i) {
            T(fabs(many.w[0][i] - one.w[0][i]) < 1e-6);
            T(many.w[0][i] == many.w[n - 1][i]);
        }
    }
}

TEST(mistakes_are_named) {
    double one[3] = {0};
    cdp_batch_norm bn = {.channels = 1};
    uint64_t count = 0;
    T_EQ(CDP_ERR_INVALID, cdp_batch_norm_local(NULL, CDP_DTYPE_F32, 1, 1, 1, one, one));
    T_TEXT("data", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_batch_norm_local(one, CDP_DTYPE_F16, 1, 1, 1, one, one));
    T_TEXT("f16", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_batch_norm_forward(&bn, &count, one, one, one));
    T_TEXT("bn.group", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_batch_norm_backward(NULL, one, one));
    T_EQ(CDP_ERR_INVALID, cdp_batch_norm_eval(&bn, one, one));
    T_TEXT("bn.running_mean", cdp_last_error()->text);
    T_EQ(0, cdp_batch_norm_scratch(&bn));
    bn.group = group_of_one(NULL);
    bn.scratch = one;
    bn.channels = 0;
    REFUSED(
        CDP_ERR_INVALID, "bn.channels is 0", cdp_batch_norm_forward(&bn, &count, one, one, one));
    REFUSED(CDP_ERR_INVALID, "bn.channels is 0", cdp_batch_norm_backward(&bn, one, one));
    cdp_group_destroy(bn.group);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"statistics_and_gradients_are_those_of_the_joined_batch",
            statistics_and_gradients_are_those_of_the_joined_batch, 60},
        {"gradients_are_the_slopes_of_the_output", gradients_are_the_slopes_of_the_output, 60},
        {"a_nan_reaches_its_channel_on_all_ranks_and_no_other",
            a_nan_reaches_its_channel_on_all_ranks_and_no_other, 30},
        {"a_batch_without_samples_leaves_running_statistics",
            a_batch_without_samples_leaves_running_statistics, 30},
        {"cumulative_statistics_are_means_over_batches",
            cumulative_statistics_are_means_over_batches, 30},
        {"a_network_learns_what_one_rank_learns", a_network_learns_what_one_rank_learns, 60},
        {"mistakes_are_named", mistakes_are_named, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
