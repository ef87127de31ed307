/* The same bits on any number of ranks: which node of the tree is whose, in memory for all sizes,
   then ranks that train with f32 numbers that are not whole. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "test.h"
#include "ranks.h"

/* Random f32 in (-1, 1) whose sums round. */
static float fraction(uint64_t seed, uint64_t i) {
    const uint64_t x = (seed * 0x9e3779b97f4a7c15u) ^ (i * 0xc2b2ae3d27d4eb4fu);
    const uint64_t y = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return (float)((int64_t)(y >> 20) - (1ll << 43)) / 8.8e12f;
}

/* ---- in memory ---- */

/* The sum that the aligned tree has by its definition: the left half is a power of two. */
static float tree_sum(const float *leaf, uint32_t count) {
    uint32_t half = 1;
    if (count == 1) return leaf[0];
    while (half * 2 < count)
        half *= 2;
    return tree_sum(leaf, half) + tree_sum(leaf + half, count - half);
}

/* What a rank, or the one that joins all, keeps. */
typedef struct sums {
    cdp__leaf_stack s;
    float value[CDP__LEAF_DEPTH + 1];
} sums;

static void sums_push(sums *k, cdp__leaf_node node, float value, uint32_t leaves) {
    uint32_t top = k->s.depth, added = cdp__leaf_push(&k->s, node, leaves);
    for (k->value[top] = value; added; --added, --top)
        k->value[top - 1] += k->value[top];
}

TEST(every_number_of_ranks_has_the_sum_of_the_tree) {
    for (uint32_t leaves = 1; leaves <= 64; ++leaves) {
        float leaf[64], sum;
        for (uint32_t i = 0; i < leaves; ++i)
            leaf[i] = fraction(leaves, i);
        sum = tree_sum(leaf, leaves);
        for (uint32_t n = 1; n <= leaves; ++n) {
            sums all = {0};
            uint32_t sent = 0;
            for (uint32_t r = 0; r < n; ++r) {
                const uint64_t from = cdp__leaf_first(leaves, n, r),
                               to = cdp__leaf_first(leaves, n, r + 1);
                sums mine = {0};
                cdp__leaf_stack nodes;
                T(to - from >= leaves / n && to - from <= leaves / n + 1);
                for (uint64_t i = from; i < to; ++i)
                    sums_push(&mine, (cdp__leaf_node){i, 0}, leaf[i], leaves);
                cdp__leaf_nodes(leaves, from, to, &nodes);
                T_EQ(nodes.depth, mine.s.depth);
                sent += nodes.depth;
                for (uint32_t i = 0; i < nodes.depth; ++i)
                    sums_push(&all, nodes.nodes[i], mine.value[i], leaves);
            }
            T_EQ(1, all.s.depth);
            T(memcmp(&sum, &all.value[0], sizeof sum) == 0);
            /* one node a rank where blocks are aligned, and never more than the leaves */
            T(sent <= leaves && sent >= n);
            if (leaves % n == 0 && (leaves / n & (leaves / n - 1)) == 0) T_EQ(n, sent);
        }
    }
}

TEST(a_rank_owns_few_nodes_of_a_large_batch) {
    cdp__leaf_stack s;
    /* the worst place: one leaf inside each end */
    T(cdp__leaf_nodes(1u << 20, 1, (1u << 20) - 1, &s) <= 40);
    T_EQ(38, s.depth);
    /* leaves that are missing at the end cost nothing */
    cdp__leaf_nodes(13, 8, 13, &s);
    T_EQ(1, s.depth);
    T(s.nodes[0].level == 3 && s.nodes[0].index == 1);
}

/* ---- ranks that train ---- */

enum {
    PARAMS = 3,
    STEPS = 3
};
static const uint64_t lengths[PARAMS] = {37, 400, 3};

typedef enum mode {
    PLAIN_DDP, /* buckets of one parameter each */
    ONE_BUCKET,
    OWN_GRADS,
    ARENA,
    UNUSED,
    NO_DDP,
    ACCUMULATED, /* no leaves: plain accumulation, for comparison */
    MODES
} mode;

typedef struct job {
    uint32_t leaves, steps, from;
    mode mode;
    float w[RANKS_MAX][PARAMS][400]; /* of each rank */
} job;

/* The gradient of a micro-batch depends on its number and on the parameters. */
static void add_gradient(float *g, const float *w, uint32_t i, uint64_t step, uint64_t leaf) {
    for (uint64_t k = 0; k < lengths[i]; ++k)
        g[k] += fraction(step * 1000 + leaf, i * 1000 + k) + w[k] * 0.37f;
}

typedef struct training {
    job *j;
    float (*w)[400];
    float own[PARAMS][400], arena[440];
    cdp_ddp *ddp;
    cdp_leaves *leaves;
    cdp_param params[PARAMS];
} training;

static float *gradient(training *t, uint32_t i) {
    static const uint64_t at[PARAMS] = {0, 37, 437};
    if (t->j->mode == NO_DDP) return t->arena + at[i];
    return t->j->mode == OWN_GRADS ? t->own[i] : (float *)cdp_ddp_grad(t->ddp, i);
}

static void training_open(training *t, cdp_group *g) {
    cdp_leaves_desc ld = {.leaves = t->j->leaves};
    cdp_ddp_desc d = {.group = g, .params = t->params, .param_count = PARAMS};
    for (uint32_t i = 0; i < PARAMS; ++i) {
        t->params[i].data = t->w[i];
        t->params[i].count = lengths[i];
        if (t->j->mode == OWN_GRADS) t->params[i].grad = t->own[i];
    }
    if (t->j->mode == ARENA) d.grad_arena = t->arena;
    d.find_unused = t->j->mode == UNUSED;
    d.bucket_bytes = t->j->mode == ONE_BUCKET ? 1 << 20 : 4;
    if (t->j->mode != NO_DDP) T_EQ(CDP_OK, cdp_ddp_create(&d, &t->ddp));
    ld.ddp = t->ddp;
    if (t->j->mode == NO_DDP) {
        ld.group = g;
        ld.grads = t->arena;
        ld.count = 440;
    }
    if (t->j->mode != ACCUMULATED)
        test_check(cdp_leaves_create(&ld, &t->leaves) == CDP_OK, __FILE__, __LINE__, "%s",
            cdp_last_error()->text);
}

static void pass(training *t, uint64_t step, uint64_t leaf) {
    for (uint32_t i = PARAMS; i-- > 0;) {
        /* parameter 2 has no gradient in odd micro-batches */
        if (t->j->mode == UNUSED && i == 2 && leaf % 2) continue;
        add_gradient(gradient(t, i), t->w[i], i, step, leaf);
        if (t->ddp) T_EQ(CDP_OK, cdp_ddp_ready(t->ddp, i));
    }
}

static void step_of_leaves(training *t, uint64_t step) {
    cdp_status st = CDP_PENDING;
    uint64_t first, count, seen = 0;
    cdp_leaves_range(t->leaves, &first, &count);
    while (st == CDP_PENDING) {
        uint64_t leaf = 0;
        if (!T_EQ(CDP_OK, cdp_leaves_begin(t->leaves, &leaf))) return;
        T_EQ(first + seen++, leaf);
        pass(t, step, leaf);
        st = cdp_leaves_end(t->leaves);
    }
    T_EQ(CDP_OK, st);
    T_EQ(count, seen);
}

static void step_accumulated(training *t, cdp_group *g, uint64_t step) {
    const uint64_t n = cdp_size(g), r = cdp_rank(g), all = t->j->leaves;
    cdp_ddp_zero_grad(t->ddp);
    for (uint64_t leaf = all * r / n; leaf < all * (r + 1) / n; ++leaf) {
        T_EQ(CDP_OK, cdp_ddp_no_sync(t->ddp, leaf + 1 < all * (r + 1) / n));
        T_EQ(CDP_OK, cdp_ddp_backward_begin(t->ddp));
        pass(t, step, leaf);
        T_EQ(CDP_OK, cdp_ddp_backward_end(t->ddp));
    }
    for (uint32_t i = 0; i < PARAMS; ++i)
        for (uint64_t k = 0; k < lengths[i]; ++k)
            gradient(t, i)[k] *= (float)n / (float)all;
}

static void train(cdp_group *g, void *arg) {
    training *t = calloc(1, sizeof *t);
    t->j = arg;
    t->w = t->j->w[cdp_rank(g)];
    training_open(t, g);
    for (uint32_t s = t->j->from; s < t->j->from + t->j->steps; ++s) {
        if (t->j->mode == ACCUMULATED)
            step_accumulated(t, g, s);
        else
            step_of_leaves(t, s);
        for (uint32_t i = 0; i < PARAMS; ++i)
            for (uint64_t k = 0; k < lengths[i]; ++k)
                t->w[i][k] -= 0.1f * gradient(t, i)[k];
    }
    cdp_leaves_destroy(t->leaves);
    cdp_ddp_destroy(t->ddp);
    free(t);
}

static void job_begin(job *j, uint32_t leaves, mode m) {
    memset(j, 0, sizeof *j);
    j->leaves = leaves;
    j->mode = m;
    j->steps = STEPS;
    for (uint32_t r = 0; r < RANKS_MAX; ++r)
        for (uint32_t i = 0; i < PARAMS; ++i)
            for (uint64_t k = 0; k < lengths[i]; ++k)
                j->w[r][i][k] = fraction(77, i * 1000 + k);
}

static bool equal_bits(const job *a, const job *b, uint32_t ranks) {
    bool equal = true;
    for (uint32_t r = 0; r < ranks; ++r)
        equal = equal && memcmp(a->w[0], b->w[r], sizeof a->w[0]) == 0;
    return equal;
}

static void check_mode(mode m, uint32_t leaves, uint32_t most) {
    static job one, j;
    job_begin(&one, leaves, m == UNUSED ? UNUSED : PLAIN_DDP);
    run_ranks(1, NULL, 0, train, &one);
    T(one.w[0][0][0] != fraction(77, 0));
    for (uint32_t n = 1; n <= most; ++n) {
        job_begin(&j, leaves, m);
        run_ranks(n, NULL, 0, train, &j);
        test_check(equal_bits(&one, &j, n), __FILE__, __LINE__,
            "mode %d, %u leaves, %u ranks: other bits than 1 rank", (int)m, leaves, n);
    }
}

TEST(ranks_1_to_5_have_the_same_bits) {
    static const uint32_t sizes[] = {5, 7, 8, 12};
    for (uint32_t k = 0; k < sizeof sizes / sizeof *sizes; ++k)
        check_mode(PLAIN_DDP, sizes[k], 5);
    check_mode(ONE_BUCKET, 11, 5);
}

TEST(arrays_of_the_program_an_arena_and_unused_parameters_have_them) {
    check_mode(OWN_GRADS, 7, 4);
    check_mode(ARENA, 7, 4);
    check_mode(UNUSED, 7, 4);
}

TEST(gradients_without_a_ddp_have_them) {
    check_mode(NO_DDP, 7, 5);
    check_mode(NO_DDP, 1, 1);
}

/* Without the tree, sums of the same numbers differ: so the tests above can fail. */
TEST(plain_accumulation_has_other_bits) {
    static job one, j;
    job_begin(&one, 12, ACCUMULATED);
    run_ranks(1, NULL, 0, train, &one);
    job_begin(&j, 12, ACCUMULATED);
    run_ranks(3, NULL, 0, train, &j);
    T(!equal_bits(&one, &j, 3));
}

TEST(ranks_may_come_and_go_between_steps) {
    static const uint32_t sizes[STEPS] = {5, 2, 3};
    static job one, j;
    job_begin(&one, 9, PLAIN_DDP);
    run_ranks(1, NULL, 0, train, &one);
    job_begin(&j, 9, PLAIN_DDP);
    j.steps = 1;
    for (; j.from < STEPS; ++j.from) {
        run_ranks(sizes[j.from], NULL, 0, train, &j);
        for (uint32_t r = sizes[j.from]; r < RANKS_MAX; ++r)
            memcpy(j.w[r], j.w[0], sizeof j.w[0]);
    }
    T(equal_bits(&one, &j, 5));
}

TEST(all_memory_comes_back) {
    static job j;
    job_begin(&j, 7, PLAIN_DDP);
    run_counted(3, train, &j);
    job_begin(&j, 7, NO_DDP);
    run_counted(2, train, &j);
}

/* ---- mistakes ---- */

static void differ(cdp_group *g, void *arg) {
    float grads[8] = {0};
    cdp_leaves_desc d = {.group = g, .grads = grads, .count = 8, .leaves = 4 + cdp_rank(g)};
    cdp_leaves *l = (cdp_leaves *)arg;
    T_EQ(CDP_ERR_MISMATCH, cdp_leaves_create(&d, &l));
    T(l == NULL);
    T_TEXT("rank 1 has 5 leaves, rank 0 has 4", cdp_last_error()->text);
    d.leaves = cdp_rank(g) ? 1 : 4; /* too few on one rank alone */
    T_EQ(CDP_ERR_MISMATCH, cdp_leaves_create(&d, &l));
    T_TEXT("rank 1 has 1 leaves, rank 0 has 4", cdp_last_error()->text);
    d.leaves = 1;
    T_EQ(CDP_ERR_INVALID, cdp_leaves_create(&d, &l));
    T_TEXT("desc.leaves is 1, and there are 2 ranks; possible are 1 ranks", cdp_last_error()->text);
    /* the group is usable */
    T_EQ(CDP_OK, cdp_barrier(g));
}

TEST(ranks_that_differ_and_too_many_ranks_are_named) {
    const cdp_group_desc like = {.timeout_ms = 3000};
    run_ranks(2, &like, 0, differ, NULL);
}

static cdp_status creates(cdp_group *g, void *arg) {
    float grads[8];
    const cdp_leaves_desc d = {.group = g, .grads = grads, .count = 8, .leaves = 7};
    cdp_leaves *l;
    const cdp_status st = cdp_leaves_create(&d, &l);
    (void)arg;
    cdp_leaves_destroy(l);
    return st;
}

static void fails_alone(cdp_group *g, void *arg) {
    float x[4] = {0};
    const cdp_param p = {.data = x, .count = 4};
    const cdp_ddp_desc dd = {.group = g, .params = &p, .param_count = 1};
    cdp_leaves_desc d = {.group = g, .count = 4, .leaves = 4};
    cdp_leaves *l;
    (void)arg;
    T(own_memory_is_told(g, creates, NULL) > 6);
    d.grads = cdp_rank(g) == 1 ? NULL : x;
    REFUSED(CDP_ERR_INVALID, "desc.grads", cdp_leaves_create(&d, &l));
    if (cdp_rank(g) != 1) T_TEXT("has failed on rank 1", cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &d.ddp));
    T_EQ(CDP_OK, cdp_leaves_create(&d, &l)); /* the group is usable */
    cdp_leaves_destroy(l);
    cdp_ddp_destroy(d.ddp);
}

TEST(what_one_rank_lacks_at_creation_is_told_to_all) {
    const cdp_group_desc like = {.timeout_ms = 3000, .os = counted_os()};
    run_ranks(3, &like, 0, fails_alone, NULL);
    T_EQ(0, counted.held);
}

static void refused_calls(cdp_group *g, void *arg) {
    float w[4] = {0};
    cdp_param p = {.data = w, .count = 4};
    cdp_ddp_desc dd = {.group = g, .params = &p, .param_count = 1};
    cdp_leaves_desc d = {.leaves = 2};
    cdp_leaves *l;
    (void)arg;
    T_EQ(CDP_ERR_INVALID, cdp_leaves_create(&d, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_leaves_create(NULL, &l));
    T_EQ(CDP_ERR_INVALID, cdp_leaves_create(&d, &l));
    T_TEXT("desc.group", cdp_last_error()->text);
    d.group = g;
    d.count = 4;
    T_EQ(CDP_ERR_INVALID, cdp_leaves_create(&d, &l));
    T_TEXT("desc.grads", cdp_last_error()->text);
    d.grads = w;
    d.dtype = CDP_DTYPE_F16;
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_leaves_create(&d, &l));
    p.dtype = CDP_DTYPE_BF16;
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &d.ddp));
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_leaves_create(&d, &l));
    T_TEXT("bf16", cdp_last_error()->text);
    cdp_ddp_destroy(d.ddp);
    p.dtype = CDP_DTYPE_F32;
    dd.join = true;
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &d.ddp));
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_leaves_create(&d, &l));
    T_TEXT("join", cdp_last_error()->text);
    cdp_ddp_destroy(d.ddp);
}

static void states(cdp_group *g, void *arg) {
    float w[4] = {0};
    const cdp_param p = {.data = w, .count = 4};
    const cdp_ddp_desc dd = {.group = g, .params = &p, .param_count = 1};
    cdp_leaves_desc d = {.leaves = 2};
    cdp_leaves *l;
    uint64_t first = 9, count = 9;
    (void)arg;
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &d.ddp));
    T_EQ(CDP_OK, cdp_leaves_create(&d, &l));
    T_EQ(CDP_ERR_STATE, cdp_leaves_end(l));
    T_EQ(CDP_OK, cdp_leaves_begin(l, NULL));
    T_EQ(CDP_ERR_STATE, cdp_leaves_begin(l, NULL));
    T_TEXT("micro-batch 0 has not ended", cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_ddp_ready(d.ddp, 0));
    T_EQ(CDP_PENDING, cdp_leaves_end(l));
    T_EQ(CDP_OK, cdp_ddp_set_hook(d.ddp, NULL));
    T_EQ(CDP_ERR_STATE, cdp_leaves_begin(l, NULL));
    T_TEXT("another hook", cdp_last_error()->text);
    cdp_leaves_destroy(l);
    cdp_leaves_destroy(l);
    T_EQ(CDP_ERR_STATE, cdp_leaves_begin(l, NULL));
    T_TEXT("destroyed", cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_leaves_create(&d, &l));
    cdp_ddp_destroy(d.ddp); /* first */
    T_EQ(CDP_ERR_STATE, cdp_leaves_end(l));
    cdp_leaves_destroy(l);
    T_EQ(CDP_ERR_INVALID, cdp_leaves_begin(NULL, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_leaves_end(NULL));
    cdp_leaves_range(NULL, &first, &count);
    T(first == 0 && count == 0);
    cdp_leaves_destroy(NULL);
}

/* Calls after the group was destroyed, at each place of a micro-batch. */
TEST(leaves_of_a_destroyed_group_are_refused) {
    float grads[8] = {0};
    cdp_leaves_desc d = {.grads = grads, .count = 8, .leaves = 1};
    cdp_leaves *l;
    world w;
    if (!world_open(&w, 1, NULL, 0)) return;
    d.group = w.group[0];
    T_EQ(CDP_OK, cdp_leaves_create(&d, &l));
    T_EQ(CDP_OK, cdp_leaves_begin(l, NULL));
    cdp_group_destroy(w.group[0]);
    T_EQ(CDP_ERR_STATE, cdp_leaves_end(l));
    T_TEXT("cdp_leaves_end: the group of these leaves was destroyed", cdp_last_error()->text);
    T_EQ(CDP_ERR_STATE, cdp_leaves_begin(l, NULL));
    cdp_leaves_destroy(l);
    T_EQ(CDP_ERR_STATE, cdp_leaves_create(&d, &l));
    w.group[0] = NULL;
    world_close(&w);
}

static void *no_alloc(void *user, uint64_t bytes) {
    (void)user;
    (void)bytes;
    return NULL;
}

/* Without a ddp nothing is allocated after creation: a rank without memory would not send, and the
   others would wait for it until their deadline. */
static void ends_without_memory(cdp_group *g, void *arg) {
    float grads[8] = {1};
    const cdp_leaves_desc d = {.group = g, .grads = grads, .count = 8, .leaves = 5};
    const cdp_os *os;
    cdp_os poor;
    cdp_leaves *l;
    cdp_status st;
    (void)arg;
    T_EQ(CDP_OK, cdp_leaves_create(&d, &l));
    os = l->os;
    poor = *os;
    poor.alloc = no_alloc;
    l->os = &poor;
    do
        T_EQ(CDP_OK, cdp_leaves_begin(l, NULL));
    while ((st = cdp_leaves_end(l)) == CDP_PENDING);
    T_EQ(CDP_OK, st);
    l->os = os;
    cdp_leaves_destroy(l);
}

TEST(a_global_batch_without_a_ddp_needs_no_more_memory) {
    const cdp_group_desc like = {.timeout_ms = 3000};
    run_ranks(3, &like, 0, ends_without_memory, NULL);
}

/* A pass that the program begins by itself has no number. */
static void unnumbered(cdp_group *g, void *arg) {
    float w[4] = {0};
    const cdp_param p = {.data = w, .count = 4};
    const cdp_ddp_desc dd = {.group = g, .params = &p, .param_count = 1};
    cdp_leaves_desc d = {.leaves = 2};
    cdp_leaves *l;
    (void)arg;
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &d.ddp));
    T_EQ(CDP_OK, cdp_leaves_create(&d, &l));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(d.ddp));
    T_EQ(CDP_ERR_STATE, cdp_ddp_ready(d.ddp, 0));
    T_TEXT("without cdp_leaves_begin()", cdp_last_error()->text);
    T_EQ(CDP_ERR_STATE, cdp_ddp_backward_end(d.ddp));
    cdp_leaves_destroy(l);
    cdp_ddp_destroy(d.ddp);
}

TEST(mistakes_are_named) {
    run_counted(1, refused_calls, NULL);
    run_counted(1, states, NULL);
    run_counted(1, unnumbered, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"every_number_of_ranks_has_the_sum_of_the_tree",
            every_number_of_ranks_has_the_sum_of_the_tree, 30},
        {"a_rank_owns_few_nodes_of_a_large_batch", a_rank_owns_few_nodes_of_a_large_batch, 30},
        {"ranks_1_to_5_have_the_same_bits", ranks_1_to_5_have_the_same_bits, 60},
        {"arrays_of_the_program_an_arena_and_unused_parameters_have_them",
            arrays_of_the_program_an_arena_and_unused_parameters_have_them, 60},
        {"gradients_without_a_ddp_have_them", gradients_without_a_ddp_have_them, 60},
        {"plain_accumulation_has_other_bits", plain_accumulation_has_other_bits, 30},
        {"ranks_may_come_and_go_between_steps", ranks_may_come_and_go_between_steps, 30},
        {"all_memory_comes_back", all_memory_comes_back, 30},
        {"what_one_rank_lacks_at_creation_is_told_to_all",
            what_one_rank_lacks_at_creation_is_told_to_all, 30},
        {"ranks_that_differ_and_too_many_ranks_are_named",
            ranks_that_differ_and_too_many_ranks_are_named, 30},
        {"mistakes_are_named", mistakes_are_named, 30},
        {"a_global_batch_without_a_ddp_needs_no_more_memory",
            a_global_batch_without_a_ddp_needs_no_more_memory, 30},
        {"leaves_of_a_destroyed_group_are_refused", leaves_of_a_destroyed_group_are_refused, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
