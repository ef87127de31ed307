/* test_elastic_shrink.c - who is left of a group goes on in a smaller one */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_elastic.h"

#include "said.h"
#include "ranks.h"

#include <pthread.h>

static cdp_store *shared;

typedef struct shrinking {
    cdp_shrink_desc desc;
    uint32_t dead, late; /* bits: they go without a word; they come when the others have decided */
    bool healthy;        /* nobody has failed: they shrink to all of them */
    uint32_t rounds;
} shrinking;

/* Ranks that are left decide, train, and decide again when the next one has gone. */
static void rank_shrinks(cdp_group *g, void *arg) {
    const shrinking *s = (const shrinking *)arg;
    cdp_shrink_desc d = s->desc;
    const uint32_t me = cdp_rank(g), all = cdp_size(g);
    uint32_t dead = s->dead;
    cdp_group *now = g, *next = NULL;
    d.store = shared;
    d.step = 100 + me;
    for (uint32_t round = 0; round < s->rounds; ++round) {
        uint64_t steps[RANKS_MAX], sum = me, want = 0, count = 0;
        if (dead >> me & 1) break;
        if (!s->healthy) T(cdp_barrier(now) != CDP_OK);
        if (s->late >> me & 1) {
            char key[60];
            const char *keys[1] = {key};
            snprintf(key, sizeof key, "shrink/%llx/e/2", (unsigned long long)now->channel);
            OK(cdp_store_wait(shared, keys, 1, 20000 * TEST_SLACK));
            T_EQ(CDP_ERR_STATE, cdp_group_shrink(now, &d, steps, &next));
            T_TEXT("the other ranks have decided without this one", cdp_last_error()->text);
            T(next == NULL);
            break;
        }
        if (!OK(cdp_group_shrink(now, &d, steps, &next))) break;
        for (uint32_t r = 0; r < all; ++r) {
            if ((dead | s->late) >> r & 1) continue;
            if (r == me) T_EQ(count, cdp_rank(next));
            T_EQ(100 + r, steps[count]);
            want += r;
            ++count;
        }
        T_EQ(count, cdp_size(next));
        OK(cdp_allreduce(next, NULL, &sum, 1, CDP_DTYPE_U64, CDP_REDUCE_SUM));
        T_EQ(want, sum);
        T(cdp_group_status(now) != CDP_OK);
        if (now != g) cdp_group_destroy(now);
        now = next;
        dead |= dead << 1 & ((1u << all) - 1);
    }
    if (now != g) cdp_group_destroy(now);
}

/* Each rank in a thread that ends its group when it is done: so others see that it has gone. */
typedef struct shrinker {
    pthread_t id;
    cdp_group *group;
    shrinking *s;
} shrinker;

static void *shrinker_main(void *p) {
    shrinker *t = (shrinker *)p;
    rank_shrinks(t->group, t->s);
    cdp_group_destroy(t->group);
    return NULL;
}

static void shrink(uint32_t n, shrinking *s) {
    const cdp_group_desc like = {.timeout_ms = 30000, .logger = {.level = CDP_LOG_SILENT}};
    shrinker t[RANKS_MAX];
    world w;
    OK(cdp_hash_store_create(NULL, &shared));
    if (!world_open(&w, n, &like, 0)) return;
    for (uint32_t r = 0; r < n; ++r) {
        t[r].group = w.group[r];
        t[r].s = s;
        if (pthread_create(&t[r].id, NULL, shrinker_main, &t[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < n; ++r)
        pthread_join(t[r].id, NULL);
    cdp_hub_destroy(w.hub);
    cdp_store_destroy(shared);
}

TEST(a_group_shrinks_to_those_who_are_left) {
    static const uint32_t dead[] = {1, 4, 8, 6, 14};
    for (uint32_t i = 0; i < sizeof dead / sizeof *dead; ++i) {
        shrinking s = {.dead = dead[i], .rounds = 1};
        s.desc.settle_ms = 300 * TEST_SLACK;
        shrink(4, &s);
    }
}

TEST(a_group_shrinks_again_and_again) {
    shrinking s = {.dead = 1, .rounds = 4};
    s.desc.settle_ms = 300 * TEST_SLACK;
    shrink(5, &s);
}

/* All come, so nobody waits for settle_ms. */
TEST(a_group_without_a_loss_shrinks_to_itself) {
    shrinking s = {.healthy = true, .rounds = 3};
    const uint64_t start = test_now_ns();
    s.desc.settle_ms = 20000 * TEST_SLACK;
    shrink(4, &s);
    T(test_now_ns() - start < 20000ull * TEST_SLACK * 1000000);
}

/* Nor for a rank of which the group says that it is lost. */
TEST(a_lost_rank_is_not_waited_for) {
    shrinking s = {.dead = 4, .rounds = 1};
    const uint64_t start = test_now_ns();
    s.desc.settle_ms = 20000 * TEST_SLACK;
    s.desc.trust_links = true;
    shrink(4, &s);
    T(test_now_ns() - start < 20000ull * TEST_SLACK * 1000000);
}

TEST(a_rank_that_comes_late_is_left_out) {
    shrinking s = {.dead = 1, .late = 4, .rounds = 1};
    s.desc.settle_ms = 150 * TEST_SLACK;
    shrink(4, &s);
}

static void rank_is_alone(cdp_group *g, void *arg) {
    cdp_shrink_desc d = {.store = shared, .min_ranks = 2};
    cdp_group *out = g;
    (void)arg;
    if (cdp_rank(g)) return;
    REFUSED(CDP_ERR_TIMEOUT, "1 of 2 ranks came", cdp_group_shrink(g, &d, NULL, &out));
    T(out == NULL);
    /* may be called again, which makes nobody two */
    REFUSED(CDP_ERR_TIMEOUT, "1 of 2 ranks came", cdp_group_shrink(g, &d, NULL, &out));
    d.min_ranks = 1;
    d.settle_ms = 1; /* the deadline is for what takes processor time */
    OK(cdp_group_shrink(g, &d, NULL, &out));
    T_EQ(1, cdp_size(out));
    cdp_group_destroy(out);
}

/* The last of three does not come, and the time for that is longer than timeout_ms. */
static void rank_settles_too_long(cdp_group *g, void *arg) {
    const cdp_shrink_desc d = {.store = shared, .job = "settles", .settle_ms = 5000 * TEST_LATE};
    const uint64_t start = test_now_ns();
    cdp_group *out;
    (void)arg;
    if (cdp_rank(g) == 2) return;
    REFUSED(CDP_ERR_TIMEOUT, "of 3 ranks came", cdp_group_shrink(g, &d, NULL, &out));
    T(test_now_ns() - start < 5000ull * TEST_LATE * 1000000);
}

TEST(mistakes_in_shrinking) {
    const cdp_group_desc like = {
        .timeout_ms = 100 * TEST_LATE, .logger = {.level = CDP_LOG_SILENT}};
    cdp_shrink_desc d = {.job = "j"};
    cdp_group *out, *g;
    world w;
    OK(cdp_hash_store_create(NULL, &shared));
    run_ranks(2, &like, 0, rank_is_alone, NULL);
    run_ranks(3, &like, 0, rank_settles_too_long, NULL);
    if (!world_open(&w, 1, NULL, 0)) return;
    g = w.group[0];
    REFUSED(CDP_ERR_INVALID, "cdp_group_shrink: ", cdp_group_shrink(NULL, &d, NULL, &out));
    REFUSED(CDP_ERR_INVALID, "cdp_group_shrink: ", cdp_group_shrink(g, NULL, NULL, &out));
    REFUSED(CDP_ERR_INVALID, "cdp_group_shrink: ", cdp_group_shrink(g, &d, NULL, NULL));
    REFUSED(CDP_ERR_UNSUPPORTED, "has no store", cdp_group_shrink(g, &d, NULL, &out));
    d.store = shared;
    d.job = "";
    REFUSED(CDP_ERR_INVALID, "1 to 40 characters", cdp_group_shrink(g, &d, NULL, &out));
    d.job = NULL;
    d.min_ranks = 2;
    REFUSED(CDP_ERR_INVALID, "only 1 ranks", cdp_group_shrink(g, &d, NULL, &out));
    OK(cdp_group_status(g)); /* nothing has happened to it */
    world_close(&w);
    cdp_store_destroy(shared);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_group_shrinks_to_those_who_are_left", a_group_shrinks_to_those_who_are_left, 60},
        {"a_group_shrinks_again_and_again", a_group_shrinks_again_and_again, 60},
        {"a_group_without_a_loss_shrinks_to_itself", a_group_without_a_loss_shrinks_to_itself, 60},
        {"a_lost_rank_is_not_waited_for", a_lost_rank_is_not_waited_for, 60},
        {"a_rank_that_comes_late_is_left_out", a_rank_that_comes_late_is_left_out, 60},
        {"mistakes_in_shrinking", mistakes_in_shrinking, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
