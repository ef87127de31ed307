/* The pure parts of examples/03_train_text.c and text_model.h, with doubles instead of floats, so
   that gradients can be compared with finite differences and a run of many ranks with a run of
   one. */
#include "test.h"

#define TRAIN_TEXT_DOUBLE
#define main train_text_main
#include "../../examples/03_train_text.c"
#undef main

#include <pthread.h>

/* ---- helpers ---- */

static double random_unit(uint64_t *state) {
    return (double)(test_random(state) >> 11) / 9007199254740992.0 * 2 - 1;
}

static void small_model(model *m, uint64_t sequences) {
    uint64_t state = 7;
    model_create(m, 2, 8, 2, 5, sequences);
    for (uint64_t i = 0; i < m->value_count; ++i)
        m->values[i] = random_unit(&state) * 0.7;
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        m->grads[i] = need_reals(m->tensors[i].count);
}

static void small_model_free(model *m) {
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        free(m->grads[i]);
    model_free(m);
}

static void fill_bytes(uint8_t *bytes, size_t count, uint64_t seed, unsigned kinds) {
    for (size_t i = 0; i < count; ++i)
        bytes[i] = (uint8_t)(test_random(&seed) % kinds);
}

static corpus small_corpus(void) {
    corpus c = {0};
    reason why;
    uint64_t state = 3;
    for (int i = 0; i < 3000; ++i)
        page_add(&c.all, "%c", 'a' + (int)(test_random(&state) % 5) * (i % 3));
    T(corpus_split(&c, 8, &why));
    return c;
}

static settings small_settings(void) {
    settings s = settings_default();
    s.plan = (plan){.layers = 1,
        .width = 16,
        .heads = 2,
        .context = 8,
        .batch = 8,
        .accumulate = 1,
        .seed = 5,
        .warmup = 3,
        .decay = 12,
        .rate = 0.01,
        .weight_decay = 0.1};
    s.bucket_kib = 1;
    s.steps = 12;
    return s;
}

static char scratch[200];

/* A path in this test's own folder. The result is good until the call after the next one. */
static const char *in_scratch(const char *name) {
    static char paths[2][400];
    static int turn;
    turn ^= 1;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", scratch, name);
    return paths[turn];
}

static void put_file(const char *name, const void *data, size_t bytes) {
    FILE *f = fopen(in_scratch(name), "wb");
    if (!T(f != NULL)) return;
    T(fwrite(data, 1, bytes, f) == bytes);
    fclose(f);
}

/* ---- arithmetic ---- */

TEST(matmul_equals_three_loops) {
    static const size_t sizes[][3] = {
        {1, 1, 1}, {4, 4, 8}, {3, 5, 7}, {5, 130, 9}, {17, 257, 33}, {2, 3, 300}, {64, 64, 64}};
    uint64_t state = 1;
    for (size_t t = 0; t < sizeof sizes / sizeof *sizes; ++t)
        for (unsigned variant = 0; variant < 8; ++variant) {
            const size_t n = sizes[t][0], k = sizes[t][1], w = sizes[t][2];
            real *x = need_reals(n * k), *y = need_reals(k * w), *z = need_reals(n * w),
                 *expect = need_reals(n * w);
            for (size_t i = 0; i < n * k; ++i)
                x[i] = random_unit(&state);
            for (size_t i = 0; i < k * w; ++i)
                y[i] = random_unit(&state);
            for (size_t i = 0; i < n * w; ++i)
                z[i] = expect[i] = random_unit(&state);
            const matrix a = variant & 1 ? turned(matrix_of(x, k, n)) : matrix_of(x, n, k);
            const matrix b = variant & 2 ? turned(matrix_of(y, w, k)) : matrix_of(y, k, w);
            const bool add = variant & 4;
            for (size_t i = 0; i < n; ++i)
                for (size_t j = 0; j < w; ++j) {
                    real sum = add ? expect[i * w + j] : 0;
                    for (size_t l = 0; l < k; ++l)
                        sum += a.at[i * a.down + l * a.right] * b.at[l * b.down + j * b.right];
                    expect[i * w + j] = sum;
                }
            matmul(matrix_of(z, n, w), a, b, add);
            double worst = 0;
            for (size_t i = 0; i < n * w; ++i)
                worst = fmax(worst, fabs(z[i] - expect[i]));
            T(worst < 1e-12);
            free(x);
            free(y);
            free(z);
            free(expect);
        }
}

static double mean_loss(model *m, const uint8_t *in, const uint8_t *want, uint64_t sequences) {
    model_forward(m, in, sequences);
    return model_loss(m, want, sequences, 0) / (double)(sequences * m->context);
}

/* Every parameter of a whole model. The loss is counted in bits, its gradient in nats. */
TEST(gradients_equal_finite_differences) {
    model m;
    uint8_t in[15], want[15];
    small_model(&m, 3);
    fill_bytes(in, sizeof in, 11, 6);
    fill_bytes(want, sizeof want, 12, 256);
    model_forward(&m, in, 3);
    model_loss(&m, want, 3, 1.0 / 15);
    model_backward(&m, in, 3);
    double largest = 0;
    for (uint32_t i = 0; i < m.tensor_count; ++i) {
        double worst = 0;
        for (uint64_t k = 0; k < m.tensors[i].count; ++k) {
            real *v = value_of(&m, i) + k;
            const real kept = *v, h = 1e-5;
            *v = kept + h;
            const double above = mean_loss(&m, in, want, 3);
            *v = kept - h;
            const double below = mean_loss(&m, in, want, 3);
            *v = kept;
            worst = fmax(worst, fabs((above - below) / (2 * h) * log(2.0) - m.grads[i][k]));
            largest = fmax(largest, fabs(m.grads[i][k]));
        }
        test_check(worst < 1e-8, __FILE__, __LINE__, "the gradient of %s is wrong by %g",
            m.tensors[i].name, worst);
    }
    T(largest > 0.01);
    small_model_free(&m);
}

TEST(gradients_add_up) {
    model m;
    uint8_t in[15], want[15];
    small_model(&m, 3);
    fill_bytes(in, sizeof in, 1, 256);
    fill_bytes(want, sizeof want, 2, 256);
    for (int twice = 0; twice < 2; ++twice) {
        model_forward(&m, in, 3);
        model_loss(&m, want, 3, 1);
        model_backward(&m, in, 3);
    }
    real *sum = need_reals(m.value_count);
    for (uint32_t i = 0; i < m.tensor_count; ++i) {
        memcpy(sum + m.tensors[i].offset, m.grads[i], m.tensors[i].count * sizeof(real));
        memset(m.grads[i], 0, m.tensors[i].count * sizeof(real));
    }
    for (uint64_t s = 0; s < 3; ++s) { /* and sequences one by one give the same as together */
        model_forward(&m, in + 5 * s, 1);
        model_loss(&m, want + 5 * s, 1, 2);
        model_backward(&m, in + 5 * s, 1);
    }
    double worst = 0;
    for (uint32_t i = 0; i < m.tensor_count; ++i)
        for (uint64_t k = 0; k < m.tensors[i].count; ++k)
            worst = fmax(worst, fabs(sum[m.tensors[i].offset + k] - m.grads[i][k]));
    T(worst < 1e-11);
    free(sum);
    small_model_free(&m);
}

TEST(future_bytes_change_nothing) {
    model m;
    uint8_t in[10];
    small_model(&m, 2);
    fill_bytes(in, sizeof in, 21, 256);
    model_forward(&m, in, 2);
    real *before = need_reals(10 * VOCABULARY);
    memcpy(before, m.logits, 10 * VOCABULARY * sizeof(real));
    for (size_t k = 0; k < 10; ++k) {
        in[k] = (uint8_t)(in[k] + 77);
        model_forward(&m, in, 2);
        in[k] = (uint8_t)(in[k] - 77);
        const size_t begin = k / 5 * 5, row = VOCABULARY * sizeof(real);
        T(memcmp(before + begin * VOCABULARY, m.logits + begin * VOCABULARY, (k - begin) * row)
            == 0);
        /* the other sequence */
        T(memcmp(before + (5 - begin) * VOCABULARY, m.logits + (5 - begin) * VOCABULARY, 5 * row)
            == 0);
        for (size_t r = k; r < begin + 5; ++r)
            T(memcmp(before + r * VOCABULARY, m.logits + r * VOCABULARY, row) != 0);
    }
    free(before);
    small_model_free(&m);
}

TEST(loss_is_bits_per_byte) {
    model m;
    uint8_t in[15], want[15];
    small_model(&m, 3);
    fill_bytes(in, sizeof in, 1, 256);
    fill_bytes(want, sizeof want, 2, 256);
    memset(value_of(&m, last_param(&m, LAST_HEAD)), 0, m.width * VOCABULARY * sizeof(real));
    T(fabs(mean_loss(&m, in, want, 3) - 8) < 1e-12); /* all bytes alike: eight bits */
    model_forward(&m, in, 1);
    for (size_t r = 0; r < 5; ++r)
        m.logits[r * VOCABULARY + want[r]] = 2000;
    T(model_loss(&m, want, 1, 1) == 0);
    small_model_free(&m);
}

TEST(adam_equals_the_paper) {
    const plan p = {.rate = 0.01, .warmup = 5, .decay = 40, .weight_decay = 0.1};
    enum {
        N = 9
    };
    real value[N], grad[N], m[N] = {0}, v[N] = {0};
    double w[N], a[N] = {0}, b[N] = {0};
    uint64_t state = 9;
    for (int i = 0; i < N; ++i)
        w[i] = value[i] = random_unit(&state);
    for (uint64_t step = 0; step < 50; ++step) {
        const double t = (double)step + 1,
                     rate = 0.01 * fmin(1, t / 5) * (1 - 0.9 * fmin(1, (double)step / 40));
        for (int i = 0; i < N; ++i) {
            grad[i] = i ? random_unit(&state) * pow(10, -i) : 0;
            a[i] = 0.9 * a[i] + 0.1 * grad[i];
            b[i] = 0.99 * b[i] + 0.01 * grad[i] * grad[i];
            w[i] -= rate * 0.1 * w[i]
                + rate * (a[i] / (1 - pow(0.9, t))) / (sqrt(b[i] / (1 - pow(0.99, t))) + 1e-8);
        }
        adam(&p, step, value, grad, m, v, N, true);
    }
    for (int i = 0; i < N; ++i)
        T(fabs(value[i] - w[i]) < 1e-12);
    for (uint64_t n = 0; n < 2000; n = n * 2 + 1)
        T(fabs(power(0.99, n) - pow(0.99, (double)n)) < 1e-14);
    T(rate_at(&p, 0) > 0 && rate_at(&p, 1000) > 0 && isfinite(rate_at(&(plan){.rate = 1}, 0)));
}

TEST(differences_are_seen) {
    model m;
    small_model(&m, 1);
    real *other = need_reals(m.value_count);
    memcpy(other, m.values, m.value_count * sizeof(real));
    T(compare_models(&m, other, m.values).largest == 0);
    const uint32_t last = m.tensor_count - 1;
    other[m.tensors[last].offset + 3] += 0.07;
    const difference d = compare_models(&m, other, m.values);
    T(d.largest > 0.09 && d.largest < 0.2);
    T_TEXT("head", d.tensor);
    other[m.tensors[0].offset] = NAN;
    T(!(compare_models(&m, other, m.values).largest <= 1e30));
    free(other);
    small_model_free(&m);
}

/* ---- batches and training ---- */

static bool open_alone(trainer *t, const settings *s, const corpus *c, cdp_group **solo,
    const header *from, const real *state) {
    return T(cdp_group_create(&(cdp_group_desc){.world_size = 1}, solo) == CDP_OK)
        && T(trainer_open(t, s, c, *solo, from ? from->step : 0, state));
}

TEST(ranks_share_one_global_batch) {
    enum {
        RANKS = 4,
        PARTS = 2,
        BATCH = 16,
        CONTEXT = 8
    };
    corpus c = small_corpus();
    cdp_hub *hub;
    cdp_group *solo;
    settings s = small_settings();
    s.plan.batch = BATCH;
    trainer one;
    if (!open_alone(&one, &s, &c, &solo, NULL, NULL)) return;
    for (one.step = 0; one.step < 20; one.step += 7) {
        if (!T(cdp_hub_create(&(cdp_hub_desc){.world_size = RANKS}, &hub) == CDP_OK)) return;
        draw_sequences(&one, 0);
        for (uint32_t rank = 0; rank < RANKS; ++rank) {
            uint8_t in[BATCH * CONTEXT], want[BATCH * CONTEXT];
            trainer t = {.plan = one.plan,
                .text = &c,
                .step = one.step,
                .share = BATCH / RANKS / PARTS,
                .inputs = in,
                .targets = want};
            t.plan.accumulate = PARTS;
            if (!T(cdp_group_create(
                       &(cdp_group_desc){.world_size = RANKS, .rank = rank, .hub = hub}, &t.world)
                    == CDP_OK))
                return;
            for (uint64_t part = 0; part < PARTS; ++part) {
                const uint64_t at = (rank * PARTS + part) * t.share * CONTEXT;
                draw_sequences(&t, part);
                T(memcmp(in, one.inputs + at, t.share * CONTEXT) == 0
                    && memcmp(want, one.targets + at, t.share * CONTEXT) == 0);
            }
            cdp_group_destroy(t.world);
        }
        cdp_hub_destroy(hub);
        T(memcmp(one.inputs + 1, one.targets, CONTEXT - 1) == 0);
    }
    T(sequence_start(&one.plan, &c, 1, 2) != sequence_start(&one.plan, &c, 2, 1));
    for (uint64_t i = 0; i < 10000; ++i)
        T(sequence_start(&one.plan, &c, i, i) + CONTEXT < c.train_bytes);
    trainer_close(&one);
    cdp_group_destroy(solo);
    corpus_free(&c);
}

typedef struct seat {
    uint32_t rank;
    cdp_hub *hub;
    const corpus *text;
    settings s;
    real *values;
    double score;
    bool ok, equal;
} seat;

static void *train_in_seat(void *arg) {
    seat *me = (seat *)arg;
    cdp_group *world;
    trainer t = {0};
    report r = {.terminal = false};
    uint64_t scored;
    me->ok = cdp_group_create(
                 &(cdp_group_desc){
                     .world_size = 4, .rank = me->rank, .hub = me->hub, .timeout_ms = 20000},
                 &world)
            == CDP_OK
        && trainer_open(&t, &me->s, me->text, world, 0, NULL) && train(&t, &me->s, &r)
        && trainer_score(&t, 1000, &me->score, &scored) && compare_replicas(&t, &r, &me->equal);
    if (me->ok) {
        me->values = need_reals(t.model.value_count);
        memcpy(me->values, t.model.values, t.model.value_count * sizeof(real));
    }
    trainer_close(&t);
    cdp_group_destroy(world);
    free(r.train.step);
    free(r.train.bits);
    free(r.held.step);
    free(r.held.bits);
    return NULL;
}

static void four_ranks_against_one(uint64_t accumulate) {
    corpus c = small_corpus();
    settings s = small_settings();
    cdp_hub *hub;
    cdp_group *solo;
    pthread_t threads[4];
    seat seats[4];
    trainer one;
    double bits, score;
    uint64_t scored;
    s.eval_every = 5;
    if (!T(cdp_hub_create(&(cdp_hub_desc){.world_size = 4}, &hub) == CDP_OK)
        || !open_alone(&one, &s, &c, &solo, NULL, NULL))
        return;
    s.plan.accumulate = accumulate;
    for (uint32_t i = 0; i < 4; ++i) {
        seats[i] = (seat){.rank = i, .hub = hub, .text = &c, .s = s};
        T(pthread_create(&threads[i], NULL, train_in_seat, &seats[i]) == 0);
    }
    for (uint32_t i = 0; i < 4; ++i)
        T(pthread_join(threads[i], NULL) == 0);
    while (one.step < s.steps)
        T(trainer_step(&one, &bits));
    T(trainer_score(&one, 1000, &score, &scored));
    for (uint32_t i = 0; i < 4; ++i) {
        if (!T(seats[i].ok) || !T(seats[i].equal)) continue;
        T(memcmp(seats[i].values, seats[0].values, one.model.value_count * sizeof(real)) == 0);
        T(compare_models(&one.model, seats[i].values, one.model.values).largest < 1e-9);
        T(fabs(seats[i].score - score) < 1e-9);
    }
    for (uint32_t i = 0; i < 4; ++i)
        free(seats[i].values);
    trainer_close(&one);
    cdp_group_destroy(solo);
    cdp_hub_destroy(hub);
    corpus_free(&c);
}

TEST(four_ranks_equal_one) {
    four_ranks_against_one(1);
}
TEST(four_ranks_that_accumulate_equal_one) {
    four_ranks_against_one(2);
}

TEST(training_learns) {
    corpus c = small_corpus();
    settings s = small_settings();
    cdp_group *solo;
    trainer t;
    double bits, first, last;
    uint64_t scored;
    if (!open_alone(&t, &s, &c, &solo, NULL, NULL)) return;
    T(trainer_score(&t, 10000, &first, &scored));
    T(first > 7.5 && first < 8.5 && scored % 8 == 0 && scored > 200);
    while (t.step < 60)
        T(trainer_step(&t, &bits));
    T(trainer_score(&t, 10000, &last, &scored));
    T(last < 4);
    trainer_close(&t);
    cdp_group_destroy(solo);
    corpus_free(&c);
}

/* ---- checkpoints ---- */

TEST(a_resumed_run_has_the_same_bits) {
    corpus c = small_corpus();
    const settings s = small_settings();
    cdp_group *solo, *again;
    trainer whole, part;
    double bits;
    header h;
    real *state = NULL;
    reason why;
    if (!open_alone(&whole, &s, &c, &solo, NULL, NULL)) return;
    while (whole.step < 7)
        T(trainer_step(&whole, &bits));
    h = header_of(&whole.plan, &whole.model, whole.step, c.hash);
    T(checkpoint_save(in_scratch("resume"), &h, whole.model.values, whole.moments, &why));
    while (whole.step < 12)
        T(trainer_step(&whole, &bits));
    memset(&h, 0, sizeof h);
    settings resumed = settings_default();
    /* neither is in the checkpoint, neither changes the result */
    resumed.steps = 12;
    resumed.bucket_kib = 3;
    if (T(checkpoint_load(in_scratch("resume"), &h, &state, &why))
        && T(settings_adopt(&resumed, &h, &why))
        && open_alone(&part, &resumed, &c, &again, &h, state)) {
        T_EQ(7, part.step);
        while (part.step < 12)
            T(trainer_step(&part, &bits));
        T(memcmp(part.model.values, whole.model.values, whole.model.value_count * sizeof(real))
            == 0);
        T(memcmp(part.moments, whole.moments, 2 * whole.model.value_count * sizeof(real)) == 0);
        trainer_close(&part);
        cdp_group_destroy(again);
    }
    trainer_close(&whole);
    cdp_group_destroy(solo);
    free(state);
    corpus_free(&c);
}

TEST(damaged_checkpoints_are_refused) {
    model m;
    header h, got;
    reason why;
    real *state = NULL;
    uint8_t *file;
    size_t bytes;
    const plan p = small_settings().plan;
    small_model(&m, 1);
    real *moments = need_reals(2 * m.value_count);
    for (uint64_t i = 0; i < 2 * m.value_count; ++i)
        moments[i] = (real)i;
    h = header_of(&p, &m, 42, 4711);
    T(checkpoint_save(in_scratch("good"), &h, m.values, moments, &why));
    T(access(in_scratch("good.tmp"), F_OK) != 0);
    T(checkpoint_load(in_scratch("good"), &got, &state, &why));
    T(memcmp(&h, &got, sizeof h) == 0);
    T(memcmp(state, m.values, m.value_count * sizeof(real)) == 0
        && memcmp(state + m.value_count, moments, 2 * m.value_count * sizeof(real)) == 0);
    T(file_read(in_scratch("good"), &file, &bytes, &why));
    for (size_t i = 0; i < 60; ++i) {
        real *none = NULL;
        put_file("cut", file, i < 20 ? i * 11 : bytes * (i - 20) / 40);
        T(!checkpoint_load(in_scratch("cut"), &got, &none, &why) && none == NULL);
        T_TEXT("cut", why.text);
        put_file("cut", file, bytes - 1 - i);
        T(!checkpoint_load(in_scratch("cut"), &got, &none, &why) && none == NULL);
    }
    /* all of the header, then here and there, and the checksum itself */
    for (size_t i = 0; i < 300; ++i) {
        size_t at = i;
        if (i >= sizeof h) at = i < 290 ? bytes * (i - 100) / 300 : bytes - 1 - (i - 290) % 8;
        file[at] ^= (uint8_t)(1u << i % 8);
        test_check(!checkpoint_parse(file, bytes, "x", &got, &why), __FILE__, __LINE__,
            "byte %zu was changed unnoticed", at);
        file[at] ^= (uint8_t)(1u << i % 8);
    }
    T(checkpoint_parse(file, bytes, "x", &got, &why));
    T(!checkpoint_load(in_scratch("absent"), &got, &state, &why));
    T_TEXT("No such file", why.text);
    T(!checkpoint_save(in_scratch("no/such/folder"), &h, m.values, moments, &why));
    T_TEXT("No such file", why.text);
    T(!can_write(in_scratch("no/such/folder"), &why));
    free(file);
    free(state);
    free(moments);
    small_model_free(&m);
}

TEST(a_checkpoint_brings_its_plan) {
    reason why;
    settings s = settings_default(), asked = settings_default();
    plan p = s.plan;
    p.layers = 3;
    p.batch = 99;
    p.rate = 0.5;
    p.decay = 77;
    const header h = {.step = 10, .value_count = value_count_of(&p), .plan = p};
    T(settings_adopt(&s, &h, &why));
    T(s.plan.layers == 3 && s.plan.batch == 99 && s.plan.rate == 0.5 && s.plan.decay == 77
        && s.steps == settings_default().steps);
    char *const lr[] = {"t", "--lr", "0.25", "--layers=3"},
                *const layers[] = {"t", "--layers", "4"}, *const few[] = {"t", "-n", "10"};
    T(settings_parse(&asked, 4, (char **)lr, &why) && settings_adopt(&asked, &h, &why)
        && asked.plan.rate == 0.25 && asked.plan.batch == 99);
    free(asked.paths);
    T(settings_parse(&asked, 3, (char **)layers, &why) && !settings_adopt(&asked, &h, &why));
    T_TEXT("--layers 3", why.text);
    free(asked.paths);
    T(settings_parse(&asked, 3, (char **)few, &why) && !settings_adopt(&asked, &h, &why));
    T_TEXT("already has 10 steps", why.text);
    free(asked.paths);
    model m;
    model_create(&m, 3, 24, 3, 17, 1);
    T_EQ(m.value_count,
        value_count_of(&(plan){.layers = 3, .width = 24, .heads = 3, .context = 17}));
    model_free(&m);
}

/* ---- text ---- */

TEST(folders_are_read_in_sorted_order) {
    corpus c = {0};
    reason why;
    char sub[400], hidden[400];
    snprintf(sub, sizeof sub, "%s", in_scratch("tree"));
    mkdir(sub, 0777);
    snprintf(sub, sizeof sub, "%s", in_scratch("tree/m"));
    mkdir(sub, 0777);
    snprintf(hidden, sizeof hidden, "%s", in_scratch("tree/.git"));
    mkdir(hidden, 0777);
    put_file("tree/z.txt", "last\n", 5);
    put_file("tree/a.txt", "first", 5);
    put_file("tree/B", "capital\n", 8);
    put_file("tree/m/2", "inner two\n", 10);
    put_file("tree/m/1", "inner one\n", 10);
    put_file("tree/.git/x", "never\n", 6);
    put_file("tree/.hidden", "never\n", 6);
    put_file("tree/binary", "a\0b", 3);
    put_file("tree/empty", "", 0);
    T(symlink(scratch, in_scratch("tree/loop")) == 0 || errno == EEXIST);
    T(corpus_add(&c, in_scratch("tree"), true, &why));
    page_add(&c.all, "%c", 0);
    T(strcmp(c.all.at, "capital\nfirst\ninner one\ninner two\nlast\n") == 0);
    T(c.files == 6 && c.skipped == 1);
    T(!corpus_add(&c, in_scratch("tree/none"), true, &why));
    T_TEXT("tree/none: No such file", why.text);
    corpus_free(&c);
}

TEST(every_tenth_piece_is_held_out) {
    corpus c = {0}, again = {0};
    reason why;
    for (int i = 0; i < 10; ++i)
        for (int k = 0; k < 100; ++k)
            page_add(&c.all, "%c", 'a' + i);
    T(corpus_split(&c, 20, &why));
    T(c.held_bytes == 100 && c.train_bytes == 900 && c.held[0] == 'j' && c.held[99] == 'j'
        && !memchr(c.train, 'j', 900));
    T(!corpus_split(&again, 20, &why));
    T_TEXT("no text", why.text);
    page_add(&again.all, "%s", "short");
    T(!corpus_split(&again, 20, &why));
    T_TEXT("too short", why.text);
    corpus_free(&c);
    corpus_free(&again);
}

/* ---- options and picture ---- */

TEST(wrong_command_lines_are_explained) {
    static const char *const wrong[][3] = {{"--nonsense", NULL, "no option --nonsense"},
        {"--steps", "x", "whole number"}, {"--steps", "-3", "whole number"},
        {"--steps", "0", "from 1"}, {"--steps", "1e3", "whole number"}, {"-n", NULL, "needs"},
        {"--lr", "fast", "number"}, {"--lr=nan", NULL, "number"}, {"--save", "", "name of a file"},
        {"--check=1", NULL, "no value"}, {"--step", "3", "no option"}, {"-n3", NULL, "no option"},
        {"--batch", "99999999999999999999999", "from 1"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        char *argv[] = {
            (char *)"t", (char *)(uintptr_t)wrong[i][0], (char *)(uintptr_t)wrong[i][1]};
        settings s;
        reason why = {{0}};
        T(!settings_parse(&s, wrong[i][1] ? 3 : 2, argv, &why));
        T_TEXT(wrong[i][2], why.text);
        free(s.paths);
    }
    char *argv[] = {(char *)"t", (char *)"-n", (char *)"12", (char *)"one", (char *)"--batch=24",
        (char *)"-q", (char *)"--", (char *)"--two"};
    settings s;
    reason why;
    T(settings_parse(&s, 8, argv, &why) && s.steps == 12 && s.plan.batch == 24 && s.quiet
        && s.path_count == 2 && s.plan.decay == 12);
    T(strcmp(s.paths[0], "one") == 0 && strcmp(s.paths[1], "--two") == 0);
    T(settings_fit(&s, 4, 0, &why) && !settings_fit(&s, 5, 0, &why));
    T_TEXT("24 sequences does not divide into 5 ranks", why.text);
    s.plan.heads = 3;
    T(!settings_fit(&s, 1, 0, &why));
    T_TEXT("3 heads", why.text);
    free(s.paths);
}

/* Every element that is opened is closed, in order, and quotes are paired: enough for the few
   tags used. */
static bool well_formed(const char *p) {
    char open[20][20];
    int depth = 0, elements = 0;
    while ((p = strchr(p, '<')) != NULL) {
        const char *end = strchr(++p, '>');
        size_t name = strcspn(p, " />\n"), quotes = 0;
        if (!end || name == 0 ? *p != '/' : name >= 20) return false;
        for (const char *q = p; q < end; ++q)
            quotes += *q == '"';
        if (quotes % 2) return false;
        if (*p == '/') {
            if (depth == 0 || strlen(open[--depth]) != (size_t)(end - p - 1)
                || strncmp(open[depth], p + 1, (size_t)(end - p - 1)))
                return false;
        } else if (end[-1] != '/') {
            if (depth == 20) return false;
            snprintf(open[depth++], 20, "%.*s", (int)name, p);
        }
        ++elements;
        p = end;
    }
    return depth == 0 && elements > 0;
}

TEST(pictures_are_well_formed) {
    curve train_curve = {0}, held = {0};
    for (int points = 0; points < 4; ++points) {
        page p = draw_picture(&train_curve, &held, "a title", 3);
        page_add(&p, "%c", 0);
        T(well_formed(p.at));
        T_TEXT("bits per byte</text>", p.at);
        T_TEXT(">step</text>", p.at);
        T_TEXT("prefers-color-scheme: dark", p.at);
        T(!strstr(p.at, "nan") || points == 3);
        T(!strstr(p.at, "inf"));
        free(p.at);
        curve_add(
            &train_curve, (uint64_t)points * 1000000, points == 2 ? (double)NAN : 8.0 - points);
        curve_add(&held, (uint64_t)points * 1000000, 8.1 - points);
    }
    T(!well_formed("<a><b></a></b>") && !well_formed("<a x=\"1></a>") && !well_formed("<a>")
        && well_formed("<a><b/></a>"));
    T(tick_of(1, 5) == 0.2 || fabs(tick_of(1, 5) - 0.2) < 1e-12);
    T(fabs(tick_of(400, 6) - 100) < 1e-9 && fabs(tick_of(7, 6) - 2) < 1e-9);
    free(train_curve.step);
    free(train_curve.bits);
    free(held.step);
    free(held.bits);
}

static void *nothing(void *arg) {
    return arg;
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"matmul_equals_three_loops", matmul_equals_three_loops, 20},
        {"gradients_equal_finite_differences", gradients_equal_finite_differences, 40},
        {"gradients_add_up", gradients_add_up, 20},
        {"future_bytes_change_nothing", future_bytes_change_nothing, 20},
        {"loss_is_bits_per_byte", loss_is_bits_per_byte, 20},
        {"adam_equals_the_paper", adam_equals_the_paper, 20},
        {"differences_are_seen", differences_are_seen, 20},
        {"ranks_share_one_global_batch", ranks_share_one_global_batch, 20},
        {"four_ranks_equal_one", four_ranks_equal_one, 60},
        {"four_ranks_that_accumulate_equal_one", four_ranks_that_accumulate_equal_one, 60},
        {"training_learns", training_learns, 20},
        {"a_resumed_run_has_the_same_bits", a_resumed_run_has_the_same_bits, 20},
        {"damaged_checkpoints_are_refused", damaged_checkpoints_are_refused, 20},
        {"a_checkpoint_brings_its_plan", a_checkpoint_brings_its_plan, 20},
        {"folders_are_read_in_sorted_order", folders_are_read_in_sorted_order, 20},
        {"every_tenth_piece_is_held_out", every_tenth_piece_is_held_out, 20},
        {"wrong_command_lines_are_explained", wrong_command_lines_are_explained, 20},
        {"pictures_are_well_formed", pictures_are_well_formed, 20},
    };
    snprintf(scratch, sizeof scratch, "/tmp/train_text_XXXXXX");
    if (!mkdtemp(scratch)) return 1;
    /* with it a sanitizer starts a thread of its own, which would look like one left behind by a
       test */
    pthread_t first;
    if (pthread_create(&first, NULL, nothing, NULL) == 0) pthread_join(first, NULL);
    const int failed = test_main(argc, argv, cases, sizeof cases / sizeof *cases);
    static const char *const left[] = {"tree/.git/x", "tree/.git", "tree/m/1", "tree/m/2", "tree/m",
        "tree/z.txt", "tree/a.txt", "tree/B", "tree/.hidden", "tree/binary", "tree/empty",
        "tree/loop", "tree", "resume", "good", "cut"};
    for (size_t i = 0; i < sizeof left / sizeof *left; ++i)
        remove(in_scratch(left[i]));
    return remove(scratch) == 0 || argc > 1 ? failed : 1;
}
