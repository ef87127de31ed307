/* What DDP refuses, and how it says so: settings that make no sense, settings that differ between
   ranks, a graph that is not static, and ranks whose data ends early. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include "ddp_rig.h"

TEST(mistakes_are_sentences) {
    cdp_group *g = group_of_one(NULL);
    cdp_buffer odd = {"count", NULL, 3, CDP_DTYPE_I64};
    cdp_hook hook;
    rig r;
    rig_desc(&r, g);
    r.desc.join_throw = true;
    REFUSED(CDP_ERR_INVALID, "need join", cdp_ddp_create(&r.desc, &r.ddp));
    r.desc.join_throw = false;
    r.desc.join = r.desc.join_effective = true;
    r.desc.divisor = 2;
    REFUSED(CDP_ERR_INVALID, "leave divisor 0", cdp_ddp_create(&r.desc, &r.ddp));
    rig_desc(&r, g);
    r.desc.predivide = -1;
    REFUSED(CDP_ERR_INVALID, "must be positive", cdp_ddp_create(&r.desc, &r.ddp));
    rig_desc(&r, g);
    r.desc.buffer_count = 1;
    REFUSED(CDP_ERR_INVALID, "there are no buffers", cdp_ddp_create(&r.desc, &r.ddp));
    r.desc.buffers = &odd;
    REFUSED(CDP_ERR_INVALID, "buffer 'count' (index 0)", cdp_ddp_create(&r.desc, &r.ddp));
    rig_desc(&r, g);
    r.params[2].rows = 7;
    REFUSED(CDP_ERR_INVALID, "'norm' (index 2) has 48 values, which 7 rows do not divide",
        cdp_ddp_create(&r.desc, &r.ddp));
    rig_desc(&r, g);
    rig_open(&r);
    const cdp_joinable model = {.ddp = r.ddp};
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_forward_begin(NULL));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_unused(NULL, 0));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_join(NULL));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_clip(NULL, 1, NULL));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_set_hook(NULL, NULL));
    REFUSED(CDP_ERR_INVALID, "cdp_ddp_join: set join in the desc", cdp_ddp_join(r.ddp));
    REFUSED(CDP_ERR_INVALID, "cdp_ddp_join_all: set join in the desc", cdp_ddp_join_all(&model, 1));
    REFUSED(CDP_ERR_STATE, "no backward pass is open", cdp_ddp_unused(r.ddp, 0));
    memset(&hook, 0, sizeof hook);
    REFUSED(CDP_ERR_INVALID, "no stage function", cdp_ddp_set_hook(r.ddp, &hook));
    T(cdp_ddp_hook(r.ddp) == NULL && cdp_ddp_hook(NULL) == NULL);
    T(cdp_ddp_param(r.ddp, N) == NULL && cdp_ddp_param(r.ddp, 1)->dtype == CDP_DTYPE_F32);
    T(!cdp_ddp_is_no_sync(r.ddp) && !cdp_ddp_is_no_sync(NULL));
    hook.stage = cdp__hook_stage;
    hook.operations = 9;
    REFUSED(CDP_ERR_INVALID, "at most 8 operations", cdp_ddp_set_hook(r.ddp, &hook));
    T_EQ(CDP_OK, cdp_ddp_no_sync(r.ddp, true));
    T(cdp_ddp_is_no_sync(r.ddp));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
    REFUSED(CDP_ERR_STATE, "call cdp_ddp_backward_end first", cdp_ddp_forward_begin(r.ddp));
    REFUSED(CDP_ERR_STATE, "call cdp_ddp_backward_end first", cdp_ddp_set_hook(r.ddp, NULL));
    REFUSED(CDP_ERR_STATE, "a backward pass is open", cdp_ddp_clip(r.ddp, 1, NULL));
    REFUSED(CDP_ERR_INVALID, "'norm' (index 2): set find_unused", cdp_ddp_unused(r.ddp, 2));
    REFUSED(CDP_ERR_INVALID, "set find_unused", cdp_ddp_backward_end(r.ddp));
    cdp_ddp_destroy(r.ddp);
    r.desc.join = true;
    rig_open(&r);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(r.ddp));
    REFUSED(CDP_ERR_STATE, "call cdp_ddp_backward_end first", cdp_ddp_join(r.ddp));
    cdp_ddp_destroy(r.ddp);
    cdp_group_destroy(g);
}

static void rank_with_odd_settings(cdp_group *g, void *arg) {
    const int what = *(const int *)arg;
    const bool odd = cdp_rank(g) == 2;
    cdp_buffer buffers[2] = {{"mean", NULL, 0, CDP_DTYPE_F32}, {"steps", NULL, 0, CDP_DTYPE_I64}};
    static const char *const words[5] = {"find_unused of rank 2 is not that of rank 0",
        "join of rank 2 is not",
        "bucket sizes, divisor, predivide, accumulate or grad_arena of rank 2",
        "is buffer 'steps' i64[0] on rank 0 but buffer 'steps' i32[0] on rank 2",
        "'attention' f32[48] in 6 rows on rank 0 but 'attention' f32[48] in 8 rows on rank 2"};
    rig r;
    rig_desc(&r, g);
    r.desc.buffers = buffers;
    r.desc.buffer_count = 2;
    if (what == 0) r.desc.find_unused = odd;
    if (what == 1) r.desc.join = odd;
    if (what == 2) r.desc.bucket_bytes += odd;
    if (what == 3 && odd) buffers[1].dtype = CDP_DTYPE_I32;
    if (what == 4 && odd) r.params[1].rows = 8;
    REFUSED(CDP_ERR_MISMATCH, words[what], cdp_ddp_create(&r.desc, &r.ddp));
    T_EQ(2, cdp_last_error()->peer);
}

TEST(different_settings_are_named) {
    for (int what = 0; what < 5; ++what)
        run_ranks(3, NULL, 0, rank_with_odd_settings, &what);
}

static void rank_breaks_static_graph(cdp_group *g, void *arg) {
    const int what = *(const int *)arg;
    const bool me = cdp_rank(g) == 1;
    cdp_status st = CDP_OK;
    rig r;
    rig_desc(&r, g);
    r.desc.static_graph = true;
    rig_open(&r);
    for (int pass = 0; pass < 2 && st == CDP_OK; ++pass) {
        const bool bad = me && pass == 1;
        st = cdp_ddp_backward_begin(r.ddp);
        for (uint32_t i = 0; i < N - 1 && st == CDP_OK; ++i) { /* "head" has no gradient */
            const int calls = 2 - (bad && what == 0 && i == 1) + (bad && what == 1 && i == 2);
            for (int c = 0; c < calls && st == CDP_OK; ++c)
                st = cdp_ddp_ready(r.ddp, i);
        }
        if (bad && what == 2) (void)cdp_ddp_ready(r.ddp, 3);
        if (bad && what == 3) (void)cdp_ddp_unused(r.ddp, 0);
        st = cdp_ddp_backward_end(r.ddp);
    }
    if (st == CDP_OK) st = cdp_barrier(g); /* a rank that had all it needed learns of it later */
    T_EQ(CDP_ERR_STATE, st);
    static const char *const words[4] = {"never marked ready as often as in the first synchronized "
                                         "pass (static graph): 'attention' (index 1)",
        "'norm' (index 2) was marked ready 2 times in the first synchronized pass of rank 1",
        "'head' (index 3) was marked ready 0 times in the first synchronized pass of rank 1",
        "'embed' (index 0) was marked ready 2 times"};
    T_TEXT(words[what], cdp_last_error()->text);
    cdp_ddp_destroy(r.ddp);
}

TEST(a_graph_that_is_not_static_is_named) {
    for (int what = 0; what < 4; ++what)
        run_ranks(3, NULL, 0, rank_breaks_static_graph, &what);
}

static void rank_runs_out(cdp_group *g, void *arg) {
    const uint32_t mine = cdp_rank(g) == 1 || cdp_rank(g) == 3 ? 2 : 4;
    cdp_status st = CDP_OK;
    uint32_t step = 0;
    rig r;
    (void)arg;
    rig_desc(&r, g);
    r.desc.join = r.desc.join_throw = true;
    rig_open(&r);
    for (; step < mine && st == CDP_OK; ++step)
        st = rig_pass(&r, whole);
    if (mine == 2) T_EQ(CDP_OK, st);
    if (st == CDP_OK) st = cdp_ddp_join(r.ddp);
    T_EQ(mine == 2 ? 2 : 3, step); /* everybody at the same step */
    T_EQ(CDP_ERR_STATE, st);
    T_TEXT("2 of 4 ranks ran out of data before the others (join_throw): rank 1, 3",
        cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_barrier(g)); /* the group is whole */
    for (step = 0; step < 2; ++step)
        T_EQ(CDP_OK, rig_pass(&r, whole)); /* and training may go on */
    T_EQ(CDP_OK, cdp_ddp_join(r.ddp));     /* even inputs are no error */
    cdp_ddp_destroy(r.ddp);
}

TEST(early_end_is_an_error_everywhere_with_join_throw) {
    run_ranks(4, NULL, 0, rank_runs_out, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"mistakes_are_sentences", mistakes_are_sentences, 10},
        {"different_settings_are_named", different_settings_are_named, 20},
        {"a_graph_that_is_not_static_is_named", a_graph_that_is_not_static_is_named, 20},
        {"early_end_is_an_error_everywhere_with_join_throw",
            early_end_is_an_error_everywhere_with_join_throw, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
