/* Sharded training: mistakes and failures in sentences; overflow, clipping, saved state; memory. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "cdp_fsdp.h"
#include "cdp_mem.h"
#include "ranks.h"
#include <math.h>

/* Three units of one size, one of another: two trainable parameters each, one frozen. */
enum {
    UNITS = 4,
    PARAMS = 3 * UNITS,
    MOST = 40
};

typedef struct rig {
    cdp_fsdp_param params[PARAMS];
    cdp_fsdp_unit units[UNITS];
    cdp_optim optim;
    cdp_fsdp_desc desc;
    cdp_fsdp *f;
} rig;

static void rig_fill(void *user, uint32_t param, uint64_t first, uint64_t count, float *out) {
    (void)user;
    for (uint64_t k = 0; k < count; ++k)
        out[k] = (float)((param * 3 + first + k) % 7);
}

static void rig_desc(rig *r, cdp_group *g) {
    memset(r, 0, sizeof *r);
    for (uint32_t i = 0; i < PARAMS; ++i) {
        r->params[i].unit = i / 3;
        r->params[i].ndim = i % 3 == 1 ? 1 : 2;
        r->params[i].shape[0] = 5;
        r->params[i].shape[1] = i / 3 == UNITS - 1 ? 7 : 3;
        r->params[i].frozen = i % 3 == 2;
    }
    r->optim.kind = CDP_OPTIM_ADAMW;
    r->optim.lr = .01;
    r->desc.group = g;
    r->desc.params = r->params;
    r->desc.param_count = PARAMS;
    r->desc.optim = &r->optim;
    r->desc.fill = rig_fill;
}

static void rig_open(rig *r, cdp_group *g) {
    rig_desc(r, g);
    T_EQ(CDP_OK, cdp_fsdp_create(&r->desc, &r->f));
}

static uint32_t count_of(const rig *r, uint32_t i) {
    return (uint32_t)(r->params[i].shape[0] * (r->params[i].ndim > 1 ? r->params[i].shape[1] : 1));
}

/* Forward and backward through all units; gradients are `value` everywhere, on rank `only` alone if
   that is a rank. */
static cdp_status rig_pass(rig *r, float value, uint32_t only) {
    cdp_status st = CDP_OK;
    const bool mine = only == UINT32_MAX || cdp_rank(r->desc.group) == only;
    for (uint32_t u = 0; u < UNITS && st == CDP_OK; ++u) {
        st = cdp_fsdp_need(r->f, u);
        if (st == CDP_OK) st = cdp_fsdp_done(r->f, u);
    }
    for (uint32_t u = UNITS; u-- > 0 && st == CDP_OK;) {
        st = cdp_fsdp_need(r->f, u);
        for (uint32_t i = 3 * u; i < 3 * u + 2 && st == CDP_OK && mine; ++i) {
            float *grad = cdp_fsdp_grad(r->f, i);
            if (!grad) return cdp_last_error()->status;
            for (uint32_t k = 0; k < count_of(r, i); ++k)
                grad[k] += value;
        }
        if (st == CDP_OK) st = cdp_fsdp_ready(r->f, u);
    }
    return st;
}

static void rig_get(rig *r, uint32_t state, float out[PARAMS][MOST]) {
    for (uint32_t i = 0; i < PARAMS; ++i)
        if (state == CDP_FSDP_VALUES || !r->params[i].frozen)
            for (uint32_t root = 0; root < cdp_size(r->desc.group); ++root)
                T_EQ(CDP_OK, cdp_fsdp_save(r->f, i, state, out[i], root));
}

static bool says(const char *words) {
    const bool found = strstr(cdp_last_error()->text, words) != NULL;
    if (!found) printf("    says: %s\n", cdp_last_error()->text);
    return found;
}

/* ---- calls in a wrong order ---- */

static void rank_makes_mistakes(cdp_group *g, void *arg) {
    rig r;
    (void)arg;
    rig_open(&r, g);
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_need(r.f, UNITS));
    T(says("less than the number of units, 4"));
    T_EQ(CDP_ERR_STATE, cdp_fsdp_done(r.f, 1));
    T(says("'unit1' is not needed"));
    T(cdp_fsdp_data(r.f, 0) == NULL && cdp_fsdp_data(r.f, PARAMS) == NULL);
    T(cdp_fsdp_grad(r.f, PARAMS) == NULL && cdp_fsdp_grad(r.f, 2) == NULL);
    T_EQ(CDP_ERR_STATE, cdp_fsdp_step(r.f));
    T(says("cdp_fsdp_backward_end() first"));
    T_EQ(CDP_ERR_STATE, cdp_fsdp_backward_end(r.f, 0, NULL));
    T(says("'unit0' was not ready"));
    T_EQ(CDP_OK, rig_pass(&r, 1, UINT32_MAX));
    T_EQ(CDP_OK, cdp_fsdp_need(r.f, 2));
    T_EQ(CDP_ERR_STATE, cdp_fsdp_backward_end(r.f, 0, NULL));
    T(says("'unit2' is still needed"));
    T(cdp_fsdp_data(r.f, 6) != NULL);
    T_EQ(CDP_OK, cdp_fsdp_done(r.f, 2));
    T(cdp_fsdp_data(r.f, 6) == NULL);
    T(cdp_fsdp_grad(r.f, 3) != NULL);
    T_EQ(CDP_ERR_STATE, cdp_fsdp_backward_end(r.f, 0, NULL));
    T(says("'unit1' has new gradients"));
    T_EQ(CDP_OK, cdp_fsdp_ready(r.f, 1));
    T_EQ(CDP_OK, cdp_fsdp_no_sync(r.f, true));
    T_EQ(CDP_OK, cdp_fsdp_ready(r.f, 3));
    T_EQ(CDP_ERR_STATE, cdp_fsdp_backward_end(r.f, 0, NULL));
    T(says("'unit3' has gradients that no_sync has kept"));
    T_EQ(CDP_OK, cdp_fsdp_no_sync(r.f, false));
    T_EQ(CDP_OK, cdp_fsdp_ready(r.f, 3));
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_backward_end(r.f, -1, NULL));
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
    T_EQ(CDP_ERR_STATE, cdp_fsdp_ready(r.f, 0));
    T(says("cdp_fsdp_step() or cdp_fsdp_drop() first"));
    T_EQ(CDP_ERR_STATE, cdp_fsdp_backward_end(r.f, 0, NULL));
    T(cdp_fsdp_grad(r.f, 0) == NULL);
    T_EQ(CDP_ERR_STATE, cdp_fsdp_save(r.f, 0, CDP_FSDP_VALUES, NULL, 0));
    T(says("cdp_fsdp_step() first"));
    T_EQ(CDP_OK, cdp_fsdp_need(r.f, 0));
    T_EQ(CDP_ERR_STATE, cdp_fsdp_step(r.f));
    T(says("'unit0' is still needed"));
    T_EQ(CDP_OK, cdp_fsdp_done(r.f, 0));
    T_EQ(CDP_OK, cdp_fsdp_step(r.f));
    T_EQ(1, r.optim.step);
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_save(r.f, 2, 0, NULL, 0));
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_save(r.f, 0, 0, NULL, 9));
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_restore(r.f, 0, 7, NULL, 0));
    cdp_fsdp_destroy(r.f);
}
/* Rank 0 does not go on: its calls fail, also those that need no other rank. */
static void rank_aborts(cdp_group *g, void *arg) {
    rig r;
    (void)arg;
    rig_open(&r, g);
    T_EQ(CDP_OK, rig_pass(&r, 1, UINT32_MAX));
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
    OK(cdp_barrier(g));
    if (!cdp_rank(g)) {
        cdp_fsdp_abort(r.f, "the disk is full");
        T_EQ(CDP_ERR_ABORTED, cdp_fsdp_step(r.f));
        T(says("the disk is full"));
        T_EQ(0, r.optim.step);
        T_EQ(CDP_ERR_ABORTED, cdp_fsdp_drop(r.f));
        cdp_fsdp_abort(r.f, "again");
        T_EQ(CDP_ERR_ABORTED, cdp_fsdp_need(r.f, 0));
        T(says("the disk is full"));
    }
    OK(cdp_barrier(g));
    cdp_fsdp_destroy(r.f);
}
TEST(who_aborts_does_not_go_on) {
    for (uint32_t n = 1; n <= 3; ++n)
        run_counted(n, rank_aborts, NULL);
}

TEST(calls_in_a_wrong_order_are_answered_by_sentences) {
    for (uint32_t n = 1; n <= 3; ++n)
        run_counted(n, rank_makes_mistakes, NULL);
}

static void rank_refuses(cdp_group *g, void *arg) {
    cdp_fsdp_stats s;
    rig r;
    (void)arg;
#define UNFIT(status, words, change)                                      \
    do {                                                                  \
        rig_desc(&r, g);                                                  \
        change;                                                           \
        r.f = (cdp_fsdp *)&r;                                             \
        T_EQ(status, cdp_fsdp_create(&r.desc, &r.f));                     \
        T(r.f == NULL);                                                   \
        T(says(words));                                                   \
        if (r.desc.group) T_EQ(status, cdp_fsdp_preview(&r.desc, 0, &s)); \
    } while (0)
    UNFIT(CDP_ERR_INVALID, "desc.group is NULL", r.desc.group = NULL);
    UNFIT(CDP_ERR_INVALID, "desc.params is NULL", r.desc.params = NULL);
    UNFIT(CDP_ERR_INVALID, "param_count is 0", r.desc.param_count = 0);
    UNFIT(CDP_ERR_INVALID, "params[4].ndim is 9", r.params[4].ndim = 9);
    UNFIT(CDP_ERR_INVALID, "params[3].unit is 65534", r.params[3].unit = 65534);
    UNFIT(CDP_ERR_INVALID, "params[0] and those", r.params[0].shape[0] = 1ull << 62);
    UNFIT(CDP_ERR_INVALID, "stage 7", r.desc.stage = (cdp_fsdp_stage)7);
    UNFIT(CDP_ERR_UNSUPPORTED, "desc.compute is f64", r.desc.compute = CDP_DTYPE_F64);
    UNFIT(CDP_ERR_UNSUPPORTED, "desc.reduce is i32", r.desc.reduce = CDP_DTYPE_I32);
    UNFIT(CDP_ERR_INVALID, "desc.states is 1", r.desc.states = 1);
    UNFIT(CDP_ERR_INVALID, "max_norm or desc.divisor", r.desc.max_norm = NAN);
    UNFIT(CDP_ERR_INVALID, "desc.optim: cdp_optim_update: kind 0 is not",
        r.optim.kind = CDP_OPTIM_NONE);
    UNFIT(CDP_ERR_INVALID, "desc.optim: cdp_optim_update: nesterov", r.optim.nesterov = true);
#undef UNFIT
}
TEST(descs_that_make_no_sense_are_refused) {
    run_counted(2, rank_refuses, NULL);
}

/* ---- ranks that differ ---- */

static void rank_differs(cdp_group *g, void *arg) {
    const uint32_t kind = *(const uint32_t *)arg;
    static const char *const words[] = {"parameter or unit 4 is 'param4' [5] in unit 1, grain 1",
        "'param4' [6] in unit 1", "desc.stage is another one on rank 2", "desc.param_count",
        "unit 'unit0' with uses 1", "with uses 2", "desc.own_init is another one on rank 2",
        "desc.norm_group", "desc.replicate", "desc.optim", "parameter or unit 3 is 'param3' [5x3]",
        "in unit 1, grain 3, a copy on rank 2", "nnn...' [5x3] in unit 0, grain 3 on rank 0",
        "desc.fill is another one on rank 2"};
    char name[300];
    rig r;
    float x = 1;
    rig_desc(&r, g);
    if (cdp_rank(g) == 2) {
        if (kind < 2) r.params[4].shape[0] = 6;
        if (kind == 2) r.desc.stage = CDP_FSDP_OPTIMIZER;
        if (kind == 3) r.desc.param_count = 11;
        if (kind == 6) r.desc.own_init = true;
        if (kind == 7) r.desc.norm_group = g;
        if (kind == 8) r.desc.replicate = g;
        if (kind == 9) r.optim.kind = CDP_OPTIM_ADAM;
        if (kind == 10 || kind == 11) r.params[3].copy = true;
        if (kind == 12) r.params[0].shape[0] = 4;
        if (kind == 13) r.desc.fill = NULL;
    }
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    if (kind == 12) r.params[0].name = name; /* longer than a line about a parameter */
    r.units[0].uses = (kind == 4 || kind == 5) && cdp_rank(g) == 2 ? 2 : 1;
    if (kind == 4 || kind == 5) {
        r.desc.units = r.units;
        r.desc.unit_count = UNITS;
    }
    if (!T_EQ(CDP_ERR_MISMATCH, cdp_fsdp_create(&r.desc, &r.f))) printf("    kind %u\n", kind);
    T(says(words[kind]));
    cdp_fsdp_destroy(r.f);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM)); /* usable */
    T(x == 3);
}
TEST(ranks_with_other_models_are_named) {
    for (uint32_t kind = 0; kind < 14; ++kind)
        run_counted(3, rank_differs, &kind);
}

/* Two by two ranks, but the copies of a shard are said to be those of the other shard. */
static void rank_has_other_copies(cdp_group *g, void *arg) {
    const uint32_t rank = cdp_rank(g);
    cdp_group *shard = NULL, *copies = NULL;
    rig r;
    (void)arg;
    T_EQ(CDP_OK, cdp_group_split(g, rank / 2, rank, &shard));
    T_EQ(CDP_OK, cdp_group_split(g, rank == 1 || rank == 2, rank, &copies));
    rig_desc(&r, shard);
    r.desc.replicate = copies;
    T_EQ(CDP_ERR_MISMATCH, cdp_fsdp_create(&r.desc, &r.f));
    T(says("desc.replicate") && says("is rank 1 of 2") && says("is rank 0 of 2"));
    T_EQ(CDP_OK, cdp_barrier(g));
    cdp_group_destroy(copies);
    cdp_group_destroy(shard);
}
TEST(copies_of_another_shard_are_refused) {
    run_counted(4, rank_has_other_copies, NULL);
}

/* Three by two ranks: the copies of one shard are right, those of the two others are exchanged, or
   one rank of the first shard group lacks them. */
static void rank_has_some_other_copies(cdp_group *g, void *arg) {
    const uint32_t rank = cdp_rank(g), kind = *(const uint32_t *)arg;
    cdp_group *shard = NULL, *copies = NULL;
    cdp_status st;
    rig r;
    T_EQ(CDP_OK, cdp_group_split(g, rank / 3, rank, &shard));
    T_EQ(CDP_OK,
        cdp_group_split(
            g, rank > 3 && kind == 0 ? 9 - rank : rank % 3 + (kind == 0) * 3, rank, &copies));
    T_EQ(CDP_OK, cdp_barrier(copies)); /* one that was never used tells nobody of its end */
    rig_desc(&r, shard);
    r.desc.replicate = kind == 1 && rank == 1 ? NULL : copies;
    st = cdp_fsdp_create(&r.desc, &r.f);
    if (kind == 1 && rank == 4)
        T(st == CDP_ERR_MISMATCH || st == CDP_ERR_PEER_LOST); /* rank 1 does not come */
    else if (T_EQ(CDP_ERR_MISMATCH, st))
        T(says("desc.replicate"));
    cdp_group_destroy(copies);
    cdp_group_destroy(shard);
    T_EQ(CDP_OK, kind == 0 ? cdp_barrier(g) : CDP_OK);
}
TEST(copies_of_some_other_shards_are_refused_by_all) {
    for (uint32_t kind = 0; kind < 2; ++kind)
        run_counted(6, rank_has_some_other_copies, &kind);
}

static void rank_uses_another_unit(cdp_group *g, void *arg) {
    rig r;
    cdp_status st;
    (void)arg;
    rig_open(&r, g);
    st = cdp_fsdp_need(r.f, cdp_rank(g) == 1 ? 1 : 0);
    if (st == CDP_OK) st = cdp_fsdp_need(r.f, 3);
    T_EQ(CDP_ERR_MISMATCH, st);
    T(says("cdp_fsdp_need: unit '") && says(" for unit 1") && says(" for unit 0"));
    T_EQ(CDP_ERR_MISMATCH, cdp_fsdp_need(r.f, 0));
    T(says("an earlier call has failed") && says(" for unit 1"));
    T_EQ(CDP_ERR_MISMATCH, cdp_fsdp_step(r.f));
    cdp_fsdp_destroy(r.f);
}
TEST(units_in_another_order_are_a_mismatch) {
    run_counted(3, rank_uses_another_unit, NULL);
}

/* One rank alone makes a mistake, and gives up: the others learn at once which and why, long before
   their deadline. */
static void rank_is_wrong_alone(cdp_group *g, void *arg) {
    const uint32_t kind = *(const uint32_t *)arg, rank = cdp_rank(g);
    cdp_group *shard = NULL, *replicate = NULL;
    rig r;
    cdp_status st;
    float x = 1;
    T_EQ(CDP_OK, cdp_group_split(g, rank / 2, rank, &shard));
    T_EQ(CDP_OK, cdp_group_split(g, rank % 2, rank, &replicate));
    rig_desc(&r, shard);
    r.desc.replicate = replicate;
    if (kind == 2) r.desc.norm_group = g;
    if (kind == 0 && rank == 1) r.desc.stage = (cdp_fsdp_stage)7;
    st = cdp_fsdp_create(&r.desc, &r.f);
    if (kind == 0) {
        T_EQ(CDP_ERR_INVALID, st);
        T(says("desc.stage 7 does not exist"));
        if (rank == 0 || rank == 3) T(says("has failed on rank 1: ")); /* in the world */
        T_EQ(rank == 1 ? -1 : rank != 2, cdp_last_error()->peer);
    }
    if (kind > 0) {
        T_EQ(CDP_OK, st);
        T_EQ(CDP_OK, rig_pass(&r, 1, UINT32_MAX));
        st = cdp_fsdp_backward_end(r.f, rank == 1 ? -1 : 0, NULL);
        T_EQ(rank == 1 ? CDP_ERR_INVALID : CDP_ERR_PEER_LOST, st);
        if (rank != 1) T(says("has left"));
    }
    cdp_fsdp_destroy(r.f);
    cdp_group_destroy(replicate);
    cdp_group_destroy(shard);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM)); /* usable */
    T(x == 4);
}
TEST(a_rank_that_is_wrong_alone_is_named_at_once) {
    for (uint32_t kind = 0; kind < 3; ++kind)
        run_counted(4, rank_is_wrong_alone, &kind);
}

static void rank_has_no_copies(cdp_group *g, void *arg) {
    cdp_group *alone = NULL;
    const uint32_t rank = cdp_rank(g), kind = *(const uint32_t *)arg;
    rig r;
    T_EQ(CDP_OK, cdp_group_split(g, rank, 0, &alone));
    rig_desc(&r, g);
    if (rank == 1 && kind == 0) r.desc.replicate = alone;
    if (rank == 1 && kind == 1) r.desc.norm_group = g;
    T_EQ(CDP_ERR_MISMATCH, cdp_fsdp_create(&r.desc, &r.f));
    T(says(kind ? "desc.norm_group is another one on rank 1"
                : "desc.replicate is another one on rank 1"));
    cdp_group_destroy(alone);
}
TEST(groups_that_one_rank_alone_sets_are_a_mismatch) {
    for (uint32_t kind = 0; kind < 2; ++kind)
        run_counted(2, rank_has_no_copies, &kind);
}

/* A rank leaves in the midst of a step: the others name it, wherever they are. */
static void rank_dies(cdp_group *g, void *arg) {
    const uint32_t when = *(const uint32_t *)arg;
    cdp_group *own = NULL;
    uint32_t ranks[RANKS_MAX] = {0, 1, 2};
    rig r;
    cdp_status st = CDP_OK;
    T_EQ(CDP_OK, cdp_group_new(g, ranks, 3, &own));
    rig_open(&r, own);
    T_EQ(CDP_OK, rig_pass(&r, 1, UINT32_MAX));
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
    T_EQ(CDP_OK, cdp_fsdp_step(r.f));
    if (cdp_rank(g) == 1) {
        if (when > 0) T_EQ(CDP_OK, cdp_fsdp_need(r.f, 0));
        if (when > 1) st = rig_pass(&r, 1, UINT32_MAX);
        T_EQ(CDP_OK, st);
    } else {
        for (uint32_t step = 0; step < 3 && st == CDP_OK; ++step) {
            if (st == CDP_OK && !step) st = cdp_fsdp_need(r.f, 0);
            if (st == CDP_OK) st = rig_pass(&r, 1, UINT32_MAX);
            if (st == CDP_OK && !step) st = cdp_fsdp_done(r.f, 0);
            if (st == CDP_OK) st = cdp_fsdp_backward_end(r.f, 0, NULL);
            if (st == CDP_OK) st = cdp_fsdp_step(r.f);
        }
        T_EQ(CDP_ERR_PEER_LOST, st);
        T(says("rank 1"));
        T_EQ(CDP_ERR_PEER_LOST, cdp_fsdp_need(r.f, 2));
    }
    cdp_fsdp_destroy(r.f);
    cdp_group_destroy(own);
}
TEST(a_rank_that_leaves_in_a_step_is_named_by_all) {
    for (uint32_t when = 0; when < 3; ++when)
        run_counted(3, rank_dies, &when);
}

/* ---- overflow and clipping ---- */

static void rank_overflows(cdp_group *g, void *arg) {
    float before[PARAMS][MOST], after[PARAMS][MOST];
    cdp_fsdp_info info;
    rig r;
    (void)arg;
    rig_desc(&r, g);
    r.desc.skip_nonfinite = true;
    T_EQ(CDP_OK, cdp_fsdp_create(&r.desc, &r.f));
    rig_get(&r, CDP_FSDP_VALUES, before);
    T_EQ(CDP_OK, rig_pass(&r, INFINITY, cdp_size(g) - 1)); /* one rank alone */
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 1024, &info));
    T(info.found_inf && info.skipped);
    T_EQ(CDP_OK, cdp_fsdp_step(r.f));
    T_EQ(0, r.optim.step);
    rig_get(&r, CDP_FSDP_VALUES, after);
    for (uint32_t i = 0; i < PARAMS; ++i)
        T(!memcmp(before[i], after[i], count_of(&r, i) * sizeof(float)));
    T_EQ(CDP_OK, rig_pass(&r, 1024, UINT32_MAX)); /* nothing of it is left */
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 1024, &info));
    T(!info.found_inf && info.scale == 1. / 1024);
    T(fabs(info.norm - sqrt(3 * (15 + 5) + 35 + 5)) < 1e-9);
    T_EQ(1, cdp_fsdp_piece_at(r.f, 0).step);
    T_EQ(CDP_OK, cdp_fsdp_drop(r.f));
    rig_get(&r, CDP_FSDP_VALUES, after);
    for (uint32_t i = 0; i < PARAMS; ++i)
        T(!memcmp(before[i], after[i], count_of(&r, i) * sizeof(float)));
    cdp_fsdp_destroy(r.f);
}
TEST(an_overflow_of_one_rank_is_skipped_by_all) {
    for (uint32_t n = 1; n <= 3; ++n)
        run_counted(n, rank_overflows, NULL);
}

static void rank_clips(cdp_group *g, void *arg) {
    const double norm = 2 * sqrt(100.);
    cdp_fsdp_info info;
    rig r;
    (void)arg;
    rig_desc(&r, g);
    r.desc.max_norm = 1;
    T_EQ(CDP_OK, cdp_fsdp_create(&r.desc, &r.f));
    T_EQ(CDP_OK, rig_pass(&r, 2, UINT32_MAX));
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, &info));
    T(fabs(info.norm - norm) < 1e-9 && fabs(info.scale - 1 / (norm + 1e-6)) < 1e-12);
    T_EQ(CDP_OK, cdp_fsdp_step(r.f));
    T_EQ(CDP_OK, rig_pass(&r, NAN, 0));
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, &info));
    T(info.found_inf && !info.skipped);
    T_EQ(CDP_ERR_INVALID, cdp_fsdp_step(r.f));
    T(says("set desc.skip_nonfinite, or call cdp_fsdp_drop()"));
    T_EQ(CDP_OK, cdp_fsdp_drop(r.f));
    cdp_fsdp_destroy(r.f);
}
TEST(gradients_are_clipped_by_the_norm_of_the_model) {
    for (uint32_t n = 1; n <= 4; ++n)
        run_counted(n, rank_clips, NULL);
}

/* Two by two ranks: each model is cut over two of them, and the two models are the halves of one
   (tensor parallel) that both have a copy of every second parameter. */
static void rank_counts_copies(cdp_group *g, void *arg) {
    const uint32_t rank = cdp_rank(g), half = rank / 2;
    cdp_group *shard = NULL;
    cdp_fsdp_info info;
    rig r;
    double squares = 0;
    (void)arg;
    T_EQ(CDP_OK, cdp_group_split(g, half, rank, &shard));
    rig_desc(&r, shard);
    r.desc.norm_group = g;
    for (uint32_t i = 0; i < PARAMS; ++i) {
        const bool copied = i % 3 == 1;
        r.params[i].copy = copied && half == 1;
        if (!r.params[i].frozen) squares += 9. * (copied ? 1 : 2) * count_of(&r, i);
    }
    T_EQ(CDP_OK, cdp_fsdp_create(&r.desc, &r.f));
    T_EQ(CDP_OK, rig_pass(&r, 3, UINT32_MAX));
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, &info));
    T(fabs(info.norm - sqrt(squares)) < 1e-9);
    T_EQ(CDP_OK, cdp_fsdp_step(r.f));
    T_EQ(CDP_OK, rig_pass(&r, half ? INFINITY : 1, UINT32_MAX)); /* one half overflows */
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, &info));
    T(info.found_inf);
    T_EQ(CDP_OK, cdp_fsdp_drop(r.f));
    cdp_fsdp_destroy(r.f);
    cdp_group_destroy(shard);
}
TEST(copies_count_once_in_the_norm_of_the_model) {
    run_counted(4, rank_counts_copies, NULL);
}

/* ---- first values, divisors ---- */

static void rank_brings_values(cdp_group *g, void *arg) {
    const bool own = *(const bool *)arg;
    static float whole[RANKS_MAX][MOST];
    const uint32_t rank = cdp_rank(g);
    float *const mine = whole[rank];
    rig r;
    uint64_t elements = 0;
    rig_desc(&r, g);
    for (uint32_t k = 0; k < MOST; ++k)
        mine[k] = (float)(own ? k : k + 100 * rank); /* without own_init rank 0's count */
    for (uint32_t i = 0; i < PARAMS; i += 2)
        r.params[i].init = own || rank == 0 ? mine : NULL;
    r.desc.own_init = own;
    r.desc.divisor = 2;
    T_EQ(CDP_OK, cdp_fsdp_create(&r.desc, &r.f));
    T_EQ(CDP_OK, rig_pass(&r, 1, UINT32_MAX));
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
    for (uint32_t i = 0; i < cdp_fsdp_piece_count(r.f); ++i) {
        const cdp_fsdp_piece p = cdp_fsdp_piece_at(r.f, i);
        elements += p.count;
        for (uint64_t k = 0; k < p.count; ++k) {
            T(p.data[k] == (float)(p.param % 2 ? (p.param * 3 + p.first + k) % 7 : p.first + k));
            if (p.grad) T(p.grad[k] == (float)cdp_size(g) / 2);
        }
    }
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &elements, 1, CDP_DTYPE_U64, CDP_REDUCE_SUM));
    T_EQ(3 * (15 + 5 + 15) + 35 + 5 + 35, elements);
    T_EQ(CDP_OK, cdp_fsdp_drop(r.f));
    T(cdp_fsdp_piece_at(r.f, cdp_fsdp_piece_count(r.f)).data == NULL);
    T_EQ(0, cdp_fsdp_piece_count(NULL));
    cdp_fsdp_destroy(r.f);
}
TEST(first_values_are_those_of_rank_0_or_each_ranks_own) {
    bool own = false;
    for (uint32_t n = 1; n <= 4; ++n)
        run_counted(n, rank_brings_values, &own);
    own = true;
    for (uint32_t n = 1; n <= 4; ++n)
        run_counted(n, rank_brings_values, &own);
}

/* ---- evaluation ---- */

static void rank_evaluates(cdp_group *g, void *arg) {
    rig r;
    uint32_t room = 0;
    (void)arg;
    rig_open(&r, g);
    for (uint32_t step = 0; step < 3; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, 1, UINT32_MAX));
        T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
        T_EQ(CDP_OK, cdp_fsdp_step(r.f));
    }
    for (uint32_t batch = 0; batch < 500; ++batch) {
        const uint32_t misses = r.f->now.misses;
        for (uint32_t u = 0; u < UNITS; ++u) {
            T_EQ(CDP_OK, cdp_fsdp_need(r.f, u));
            T_EQ(CDP_OK, cdp_fsdp_done(r.f, u));
        }
        T(r.f->now.misses - misses <= 2); /* where the last step went backward, a batch begins */
        if (batch == 100) room = r.f->record_room;
    }
    T_EQ(room, r.f->record_room);
    for (uint32_t step = 0; step < 3; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, 1, UINT32_MAX));
        T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
        T_EQ(CDP_OK, cdp_fsdp_step(r.f));
    }
    T_EQ(0, cdp_fsdp_stats_of(r.f).misses);
    cdp_fsdp_destroy(r.f);
}
TEST(long_evaluations_gather_ahead_and_take_no_more_memory) {
    for (uint32_t n = 1; n <= 2; ++n)
        run_counted(n, rank_evaluates, NULL);
}

/* ---- beside a ddp ---- */

static float whole_number(uint32_t rank, uint32_t i, uint64_t k) {
    return (float)((rank * 7 + i * 3 + k) % 11) - 5;
}
static void rank_compares_with_ddp(cdp_group *g, void *arg) {
    static cdp_param params[RANKS_MAX][PARAMS];
    static float data[RANKS_MAX][PARAMS][MOST];
    const uint32_t rank = cdp_rank(g);
    cdp_ddp_desc d;
    cdp_ddp *ddp = NULL;
    rig r;
    (void)arg;
    rig_open(&r, g);
    memset(&d, 0, sizeof d);
    memset(params[rank], 0, sizeof params[rank]);
    for (uint32_t i = 0; i < PARAMS; ++i) {
        params[rank][i].data = data[rank][i];
        params[rank][i].count = count_of(&r, i);
    }
    d.group = g;
    d.params = params[rank];
    d.param_count = PARAMS;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    for (uint32_t i = PARAMS; i-- > 0;) {
        float *const sharded = cdp_fsdp_grad(r.f, i), *const whole = (float *)cdp_ddp_grad(ddp, i);
        for (uint32_t k = 0; k < count_of(&r, i); ++k) {
            whole[k] = whole_number(rank, i, k);
            if (sharded) sharded[k] += whole[k];
        }
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
        if (i % 3 == 0) T_EQ(CDP_OK, cdp_fsdp_ready(r.f, i / 3));
    }
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
    for (uint32_t i = 0; i < cdp_fsdp_piece_count(r.f); ++i) {
        const cdp_fsdp_piece p = cdp_fsdp_piece_at(r.f, i);
        const float *const mean = (const float *)cdp_ddp_grad(ddp, p.param);
        if (p.grad) T(!memcmp(p.grad, mean + p.first, p.count * sizeof *mean));
    }
    cdp_fsdp_destroy(r.f);
    cdp_ddp_destroy(ddp);
}
TEST(means_are_those_of_a_ddp_bit_for_bit) {
    for (uint32_t n = 1; n <= 7; ++n)
        run_counted(n, rank_compares_with_ddp, NULL);
}

/* ---- units by size ---- */

TEST(parameters_are_grouped_into_units_by_size) {
    cdp_fsdp_param params[6];
    static const uint64_t counts[6] = {3, 4, 10, 0, 2, 2};
    static const uint32_t expected_units[6] = {0, 0, 1, 2, 2, 2};
    memset(params, 0, sizeof params);
    for (uint32_t i = 0; i < 6; ++i) {
        params[i].ndim = 1;
        params[i].shape[0] = counts[i];
    }
    T_EQ(3, cdp_fsdp_wrap(params, 6, 6));
    for (uint32_t i = 0; i < 6; ++i)
        T_EQ(expected_units[i], params[i].unit);
    T_EQ(4, cdp_fsdp_wrap(params, 6, 3)); /* the last three: a unit begins with nothing */
    T_EQ(1, cdp_fsdp_wrap(params, 6, UINT64_MAX));
    T_EQ(0, params[5].unit);
    T_EQ(6, cdp_fsdp_wrap(params, 6, 0));
    T_EQ(0, cdp_fsdp_wrap(NULL, 6, 1));
}

/* ---- 16 bits on the way ---- */

static void rank_reduces_narrow(cdp_group *g, void *arg) {
    const cdp_dtype dtype = *(const cdp_dtype *)arg;
    const uint32_t n = cdp_size(g);
    rig r;
    rig_desc(&r, g);
    r.desc.reduce = dtype;
    T_EQ(CDP_OK, cdp_fsdp_create(&r.desc, &r.f));
    for (uint32_t pass = 0; pass < 2; ++pass) /* the second is added in f32 */
        T_EQ(CDP_OK, rig_pass(&r, pass ? 1.f / 64 : 256, UINT32_MAX));
    T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
    for (uint32_t i = 0; i < cdp_fsdp_piece_count(r.f); ++i) {
        const cdp_fsdp_piece p = cdp_fsdp_piece_at(r.f, i);
        T((p.grad == NULL) == r.params[p.param].frozen);
        for (uint64_t k = 0; p.grad && k < p.count; ++k) /* 16 bits alone would lose 1/64 */
            T(fabs((double)p.grad[k] - 256 - 1. / 64) < (n == 3 ? 1 : 0) + 1e-9);
    }
    T_EQ(CDP_OK, cdp_fsdp_step(r.f));
    cdp_fsdp_destroy(r.f);
}
TEST(gradients_travel_in_16_bits_and_are_added_in_f32) {
    cdp_dtype dtype = CDP_DTYPE_BF16;
    for (uint32_t n = 1; n <= 4; ++n)
        run_counted(n, rank_reduces_narrow, &dtype);
    dtype = CDP_DTYPE_F16;
    for (uint32_t n = 1; n <= 4; ++n)
        run_counted(n, rank_reduces_narrow, &dtype);
}

/* ---- saved by some ranks, restored by others ---- */

static float saved[3][PARAMS][MOST]; /* values and both states */
static float expected[PARAMS][MOST];

static void rank_saves(cdp_group *g, void *arg) {
    static float scratch[RANKS_MAX][PARAMS][MOST];
    float(*mine)[MOST] = scratch[cdp_rank(g)];
    rig r;
    (void)arg;
    rig_open(&r, g);
    for (uint32_t step = 0; step < 4; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, (float)(1u << step), UINT32_MAX));
        T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
        T_EQ(CDP_OK, cdp_fsdp_step(r.f));
        for (uint32_t k = 0; k < 3 && step == 1; ++k) {
            rig_get(&r, k ? k - 1 : CDP_FSDP_VALUES, mine);
            if (cdp_rank(g) == 0) memcpy(saved[k], mine, sizeof saved[k]);
        }
    }
    rig_get(&r, CDP_FSDP_VALUES, mine);
    if (cdp_rank(g) == 0) memcpy(expected, mine, sizeof expected);
    cdp_fsdp_destroy(r.f);
}
static void rank_restores(cdp_group *g, void *arg) {
    static float scratch[RANKS_MAX][PARAMS][MOST];
    float(*mine)[MOST] = scratch[cdp_rank(g)];
    const uint32_t root = cdp_size(g) - 1;
    rig r;
    (void)arg;
    rig_open(&r, g);
    r.optim.step = 2;
    for (uint32_t i = 0; i < PARAMS; ++i)
        for (uint32_t k = 0; k < (r.params[i].frozen ? 1u : 3u); ++k)
            T_EQ(CDP_OK, cdp_fsdp_restore(r.f, i, k ? k - 1 : CDP_FSDP_VALUES, saved[k][i], root));
    for (uint32_t step = 2; step < 4; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, (float)(1u << step), UINT32_MAX));
        T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
        T_EQ(CDP_OK, cdp_fsdp_step(r.f));
    }
    rig_get(&r, CDP_FSDP_VALUES, mine);
    for (uint32_t i = 0; i < PARAMS; ++i)
        T(!memcmp(expected[i], mine[i], count_of(&r, i) * sizeof(float)));
    cdp_fsdp_destroy(r.f);
}
TEST(what_some_ranks_saved_others_restore) {
    run_counted(3, rank_saves, NULL);
    for (uint32_t n = 1; n <= 5; ++n)
        run_counted(n, rank_restores, NULL);
}

/* A unit that was gathered before stays in its slot until another one needs that. */
static void rank_uses_restored_values(cdp_group *g, void *arg) {
    float values[MOST];
    rig r;
    (void)arg;
    rig_open(&r, g);
    for (uint32_t i = 0; i < MOST; ++i)
        values[i] = 100 + (float)i;
    T_EQ(CDP_OK, cdp_fsdp_need(r.f, 0));
    T_EQ(CDP_OK, cdp_fsdp_done(r.f, 0));
    T_EQ(CDP_OK, cdp_fsdp_restore(r.f, 0, CDP_FSDP_VALUES, values, 0));
    T_EQ(CDP_OK, cdp_fsdp_need(r.f, 0));
    const void *data = cdp_fsdp_data(r.f, 0);
    T(data && !memcmp(data, values, count_of(&r, 0) * sizeof *values));
    T_EQ(CDP_OK, cdp_fsdp_done(r.f, 0));
    cdp_fsdp_destroy(r.f);
}
TEST(what_was_gathered_before_a_restore_is_gathered_again) {
    for (uint32_t n = 1; n <= 3; ++n)
        run_counted(n, rank_uses_restored_values, NULL);
}

/* ---- pictures ---- */

static uint32_t occurrences(const char *text, const char *words) {
    uint32_t n = 0;
    while ((text = strstr(text, words)) != NULL) {
        text += strlen(words);
        ++n;
    }
    return n;
}

/* All bytes of events whose names begin so. */
static uint64_t bytes_of(const char *json, const char *words) {
    uint64_t sum = 0;
    while ((json = strstr(json, words)) != NULL) {
        json = strstr(json, "\"bytes\":");
        if (!T(json != NULL)) return 0;
        sum += strtoull(json + 8, NULL, 10);
    }
    return sum;
}

static void rank_draws(cdp_group *g, void *arg) {
    const uint32_t events = *(const uint32_t *)arg;
    cdp_fsdp_stats s;
    uint64_t n, most = 0;
    char *json, *svg, few[8];
    rig r;
    rig_desc(&r, g);
    r.units[1].name = "a \"<&> unit";
    r.desc.units = r.units;
    r.desc.unit_count = UNITS;
    r.desc.events = events;
    T_EQ(CDP_OK, cdp_fsdp_create(&r.desc, &r.f));
    T_EQ(0, cdp_fsdp_trace(r.f, CDP_TRACE_JSON, NULL, 0));
    for (uint32_t step = 0; step < 3; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, 1, UINT32_MAX));
        T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
        T_EQ(CDP_OK, cdp_fsdp_step(r.f));
    }
    s = cdp_fsdp_stats_of(r.f);
    n = cdp_fsdp_trace(r.f, CDP_TRACE_JSON, few, sizeof few);
    json = (char *)calloc(1, n + 1);
    T_EQ(n, cdp_fsdp_trace(r.f, CDP_TRACE_JSON, json, n + 1));
    T_EQ(n, strlen(json));
    n = cdp_fsdp_trace(r.f, CDP_TRACE_SVG, NULL, 0);
    svg = (char *)calloc(1, n + 1);
    T_EQ(n, cdp_fsdp_trace(r.f, CDP_TRACE_SVG, svg, n + 1));
    if (events > 100) {
        T_EQ(s.gathers, occurrences(json, "\"name\":\"gather "));
        T_EQ(s.reductions, occurrences(json, "\"name\":\"reduction "));
        T_EQ(s.gather_bytes, bytes_of(json, "\"name\":\"gather "));
        T_EQ(s.reduce_bytes, bytes_of(json, "\"name\":\"reduction "));
        T_EQ(s.gathers, occurrences(svg, "<title>gather "));
        T(strstr(json, "\"name\":\"gather a ____ unit\"") != NULL);
        T(strstr(json, "\"lost_events\":0,") != NULL);
        for (uint32_t i = 0; i < r.f->spans[0].count; ++i)
            if (r.f->spans[0].events[i].held > most) most = r.f->spans[0].events[i].held;
        T(most > s.slot_bytes && most <= s.slot_bytes + s.gradient_bytes);
    } else if (events) {
        T_EQ(events, occurrences(json, "\"name\":\"memory\""));
        T(strstr(json, "\"lost_events\":0,") == NULL);
    }
    T_EQ(events > 0, strstr(json, "]}\n") != NULL);
    T_EQ(events > 0, strstr(svg, "</svg>\n") != NULL);
    free(svg);
    free(json);
    cdp_fsdp_destroy(r.f);
}
/* What a rank has been told is in use. */
typedef struct told {
    cdp_mem *mem; /* that shows it; NULL: none */
    char label[4 * UNITS][40];
    uint64_t bytes[4 * UNITS], all, most;
    uint32_t count;
} told;
static void tell(void *user, const char *label, uint64_t bytes) {
    told *t = (told *)user;
    uint32_t i = 0;
    while (i < t->count && strcmp(t->label[i], label))
        ++i;
    if (i == t->count) {
        T(t->count < 4 * UNITS);
        snprintf(t->label[t->count++], sizeof t->label[0], "%s", label);
    }
    t->all += bytes - t->bytes[i];
    t->bytes[i] = bytes;
    if (t->all > t->most) t->most = t->all;
    if (t->mem) T_EQ(CDP_OK, cdp_mem_external(t->mem, label, bytes));
}

static bool segment_of(cdp_mem *mem, const char *label, uint64_t bytes) {
    const cdp_mem_segment *g;
    cdp_mem_shot *shot = NULL;
    uint32_t i, n;
    T_EQ(CDP_OK, cdp_mem_snapshot(&mem, 1, true, &shot));
    n = cdp_mem_segments(shot, &g);
    for (i = 0; i < n && (!g[i].label || strcmp(g[i].label, label) || g[i].size != bytes); ++i) {
    }
    cdp_mem_shot_free(shot);
    return i < n;
}

static void rank_tells(cdp_group *g, void *arg) {
    const cdp_mem_desc of = {.recorder_only = true, .record = {.history = CDP_MEM_HISTORY_STATE}};
    told t;
    rig r;
    cdp_fsdp_stats s;
    uint64_t comm = 0, step_ns = 0;
    (void)arg;
    memset(&t, 0, sizeof t);
    if (cdp_rank(g) == 0) T_EQ(CDP_OK, cdp_mem_create(&of, &t.mem));
    rig_desc(&r, g);
    r.desc.label = tell;
    r.desc.user = &t;
    T_EQ(CDP_OK, cdp_fsdp_create(&r.desc, &r.f));
    for (uint32_t step = 1; step <= 4; ++step) {
        T_EQ(CDP_OK, cdp_fsdp_need(r.f, 1));
        if (t.mem) T(segment_of(t.mem, "unit1", (5 * 3 + 5 + 5 * 3) * 4));
        T_EQ(CDP_OK, cdp_fsdp_done(r.f, 1));
        T_EQ(CDP_OK, rig_pass(&r, 1, UINT32_MAX));
        T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
        for (uint32_t i = 0; i < t.count; ++i)
            T(!strstr(t.label[i], " gradients") || !t.bytes[i]);
        T_EQ(r.f->held, t.all);
        T_EQ(CDP_OK, cdp_fsdp_step(r.f));
        s = cdp_fsdp_stats_of(r.f);
        comm += s.comm_ns;
        step_ns += s.step_ns;
        T_EQ(step, s.steps);
        T(s.exposed_ns <= s.comm_ns && s.comm_ns <= s.step_ns && s.hidden >= 0 && s.hidden <= 1);
        T(s.total_comm_ns == comm && s.total_step_ns == step_ns);
    }
    T_EQ(2 * UNITS, t.count);
    T(t.most > s.slot_bytes && t.most <= s.slot_bytes + s.gradient_bytes);
    cdp_fsdp_destroy(r.f);
    T_EQ(0, t.all);
    cdp_mem_destroy(t.mem);
}
TEST(units_in_use_are_told_by_name_and_figures_add_up) {
    for (uint32_t n = 1; n <= 3; ++n)
        run_ranks(n, NULL, 0, rank_tells, NULL);
}

TEST(a_step_is_drawn_as_json_and_svg) {
    for (uint32_t n = 1; n <= 3; ++n)
        for (uint32_t events = 0; events < 2000; events = events ? events * 100 : 3)
            run_counted(n, rank_draws, &events);
    T_EQ(0, cdp_fsdp_trace(NULL, CDP_TRACE_SVG, NULL, 0));
}

/* ---- memory ---- */

/* A stream takes memory when a message first comes early on it, which may happen in any step, but
   not often: one allocation of a rank in each step would be 120. */
static void rank_counts(cdp_group *g, void *arg) {
    rig r;
    int64_t before = 0;
    (void)arg;
    rig_open(&r, g);
    for (uint32_t step = 0; step < 43; ++step) {
        T_EQ(CDP_OK, rig_pass(&r, 1, UINT32_MAX));
        T_EQ(CDP_OK, cdp_fsdp_backward_end(r.f, 0, NULL));
        T_EQ(CDP_OK, cdp_fsdp_step(r.f));
        T_EQ(CDP_OK, cdp_barrier(g));
        if (step == 2) before = __atomic_load_n(&counted.calls, __ATOMIC_SEQ_CST);
        T_EQ(CDP_OK, cdp_barrier(g));
    }
    T(__atomic_load_n(&counted.calls, __ATOMIC_SEQ_CST) - before <= 40);
    T_EQ(CDP_OK, cdp_barrier(g));
    cdp_fsdp_destroy(r.f);
}
TEST(nothing_is_allocated_after_the_first_steps) {
    run_counted(3, rank_counts, NULL);
}

/* Creation and one step; the status of what failed first. */
static cdp_status rig_once(cdp_group *g) {
    rig r;
    cdp_status st;
    rig_desc(&r, g);
    st = cdp_fsdp_create(&r.desc, &r.f);
    T((st == CDP_OK) == (r.f != NULL));
    if (st == CDP_OK) st = rig_pass(&r, 1, UINT32_MAX);
    if (st == CDP_OK) st = cdp_fsdp_backward_end(r.f, 0, NULL);
    if (st == CDP_OK) st = cdp_fsdp_step(r.f);
    cdp_fsdp_destroy(r.f);
    return st;
}

/* Runs `n` ranks again and again: in the k-th run, the k-th allocation fails. Returns how many runs
   came so far. */
static uint32_t runs_that_failed(uint32_t n, int64_t runs, void (*rank)(cdp_group *g, void *arg)) {
    const cdp_group_desc like = {.os = counted_os()};
    uint32_t failed = 0;
    for (int64_t at = 1; at <= runs; ++at) {
        world w;
        if (world_open(&w, n, &like, 0)) {
            const int64_t last = counted_fails_after(at);
            world_threads(&w, rank, NULL);
            failed += __atomic_load_n(&counted.calls, __ATOMIC_SEQ_CST) >= last;
        }
        (void)counted_fails_after(0);
        world_close(&w);
        T_EQ(0, counted.held);
    }
    return failed;
}

static void rank_runs_out(cdp_group *g, void *arg) {
    const cdp_status st = rig_once(g);
    (void)arg;
    T(st == CDP_OK || st == CDP_ERR_NOMEM);
}
TEST(memory_that_runs_out_is_an_error_and_none_is_lost) {
    T(runs_that_failed(1, 59, rank_runs_out) > 30);
}

/* One of two ranks runs out, at any place: neither waits for its deadline. */
static void rank_runs_out_alone(cdp_group *g, void *arg) {
    (void)arg;
    T(rig_once(g) != CDP_ERR_TIMEOUT);
}
TEST(memory_that_runs_out_on_one_rank_lets_no_other_wait) {
    T(runs_that_failed(2, 89, rank_runs_out_alone) > 60);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"who_aborts_does_not_go_on", who_aborts_does_not_go_on, 30},
        {"calls_in_a_wrong_order_are_answered_by_sentences",
            calls_in_a_wrong_order_are_answered_by_sentences, 30},
        {"descs_that_make_no_sense_are_refused", descs_that_make_no_sense_are_refused, 30},
        {"ranks_with_other_models_are_named", ranks_with_other_models_are_named, 30},
        {"copies_of_another_shard_are_refused", copies_of_another_shard_are_refused, 30},
        {"copies_of_some_other_shards_are_refused_by_all",
            copies_of_some_other_shards_are_refused_by_all, 30},
        {"units_in_another_order_are_a_mismatch", units_in_another_order_are_a_mismatch, 30},
        {"a_rank_that_is_wrong_alone_is_named_at_once", a_rank_that_is_wrong_alone_is_named_at_once,
            30},
        {"groups_that_one_rank_alone_sets_are_a_mismatch",
            groups_that_one_rank_alone_sets_are_a_mismatch, 30},
        {"a_rank_that_leaves_in_a_step_is_named_by_all",
            a_rank_that_leaves_in_a_step_is_named_by_all, 60},
        {"an_overflow_of_one_rank_is_skipped_by_all", an_overflow_of_one_rank_is_skipped_by_all,
            30},
        {"gradients_are_clipped_by_the_norm_of_the_model",
            gradients_are_clipped_by_the_norm_of_the_model, 30},
        {"copies_count_once_in_the_norm_of_the_model", copies_count_once_in_the_norm_of_the_model,
            30},
        {"first_values_are_those_of_rank_0_or_each_ranks_own",
            first_values_are_those_of_rank_0_or_each_ranks_own, 30},
        {"long_evaluations_gather_ahead_and_take_no_more_memory",
            long_evaluations_gather_ahead_and_take_no_more_memory, 30},
        {"means_are_those_of_a_ddp_bit_for_bit", means_are_those_of_a_ddp_bit_for_bit, 30},
        {"parameters_are_grouped_into_units_by_size", parameters_are_grouped_into_units_by_size,
            30},
        {"gradients_travel_in_16_bits_and_are_added_in_f32",
            gradients_travel_in_16_bits_and_are_added_in_f32, 30},
        {"what_some_ranks_saved_others_restore", what_some_ranks_saved_others_restore, 30},
        {"what_was_gathered_before_a_restore_is_gathered_again",
            what_was_gathered_before_a_restore_is_gathered_again, 30},
        {"units_in_use_are_told_by_name_and_figures_add_up",
            units_in_use_are_told_by_name_and_figures_add_up, 30},
        {"a_step_is_drawn_as_json_and_svg", a_step_is_drawn_as_json_and_svg, 30},
        {"nothing_is_allocated_after_the_first_steps", nothing_is_allocated_after_the_first_steps,
            30},
        {"memory_that_runs_out_is_an_error_and_none_is_lost",
            memory_that_runs_out_is_an_error_and_none_is_lost, 60},
        {"memory_that_runs_out_on_one_rank_lets_no_other_wait",
            memory_that_runs_out_on_one_rank_lets_no_other_wait, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
