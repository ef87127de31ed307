/* Gradients where the program has them: in one arena, elsewhere in every pass, added by several
   layers. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"

enum {
    N = 6,
    MOST = 100,
    ALL = 100 + 3 + 0 + 40 + 64 + 1,
    STEPS = 4
};
static const uint64_t counts[N] = {100, 3, 0, 40, 64, 1};

typedef struct model {
    cdp_ddp *ddp;
    cdp_param params[N];
    float data[N][MOST], arena[ALL + 1];
} model;

typedef struct how {
    bool find_unused, join, join_effective, static_graph, half, parts, one;
} how;

/* Nothing is written behind the arena; another number on each rank, so that a mean shows. */
static float guard(const cdp_group *g) {
    return 77 + (float)cdp_rank(g);
}

static void model_open(model *m, cdp_group *g, how h, bool in_arena) {
    cdp_ddp_desc d;
    memset(m, 0, sizeof *m);
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < N; ++i) {
        m->params[i].data = m->data[i];
        m->params[i].count = counts[i];
    }
    d.group = g;
    d.params = m->params;
    d.param_count = N;
    d.bucket_bytes = h.one ? 4 * ALL : 200;
    d.find_unused = h.find_unused;
    d.static_graph = h.static_graph;
    d.join = h.join;
    d.join_effective = h.join_effective;
    d.grad_arena = in_arena ? m->arena : NULL;
    m->arena[ALL] = guard(g);
    T_EQ(CDP_OK, cdp_ddp_create(&d, &m->ddp));
    if (h.half) {
        cdp_hook_desc hd = {.kind = CDP_HOOK_FP16};
        cdp_hook hook;
        T_EQ(CDP_OK, cdp_hook_create(&hd, &hook));
        T_EQ(CDP_OK, cdp_ddp_set_hook(m->ddp, &hook));
    }
}

static cdp_status model_pass(model *m, uint32_t step, how h) {
    const uint32_t rank = cdp_rank(cdp_ddp_group(m->ddp));
    const bool skips = (h.find_unused || h.static_graph) && rank == 0;
    cdp_ddp_zero_grad(m->ddp);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
    for (uint32_t i = N; i-- > 0;) {
        float *const g = (float *)cdp_ddp_grad(m->ddp, i);
        if ((i == 3 && skips) || (i == 4 && h.find_unused)) continue;
        for (uint32_t k = 0; k < counts[i]; ++k)
            g[k] = (float)((rank * 7 + step * 5 + i * 3 + k) % 11) - 5;
        T_EQ(CDP_OK, cdp_ddp_ready(m->ddp, i));
    }
    return cdp_ddp_backward_end(m->ddp);
}

/* The same means as in buckets of the library's own, and pointers into the arena. */
static void rank_compares(cdp_group *g, void *arg) {
    const how h = *(const how *)arg;
    model *plain = (model *)calloc(2, sizeof *plain), *other = plain + 1;
    cdp_optim optim[2] = {{.kind = CDP_OPTIM_ADAM}, {.kind = CDP_OPTIM_ADAM}};
    cdp_optimizer *o[2] = {NULL, NULL};
    uint64_t at = 0;
    model_open(plain, g, h, false);
    model_open(other, g, h, true);
    for (uint32_t k = 0; k < 2 && h.parts; ++k) {
        cdp_optimizer_desc d;
        memset(&d, 0, sizeof d);
        d.ddp = plain[k].ddp;
        d.optim = &optim[k];
        T_EQ(CDP_OK, cdp_optimizer_create(&d, &o[k]));
    }
    for (uint32_t i = 0; i < N; ++i) {
        T(cdp_ddp_grad(other->ddp, i) == other->arena + at);
        at += counts[i];
    }
    for (uint32_t step = 0; step < STEPS; ++step) {
        T_EQ(CDP_OK, model_pass(plain, step, h));
        T_EQ(CDP_OK, model_pass(other, step, h));
        at = 0;
        for (uint32_t i = 0; i < N; ++i) {
            T(!memcmp(other->arena + at, cdp_ddp_grad(plain->ddp, i), counts[i] * sizeof(float)));
            T_EQ(cdp_ddp_used(plain->ddp, i), cdp_ddp_used(other->ddp, i));
            at += counts[i];
        }
        T(!memcmp(plain->data, other->data, sizeof plain->data));
        T_EQ(cdp_ddp_stats_of(plain->ddp).active_ranks, cdp_ddp_stats_of(other->ddp).active_ranks);
        T(other->arena[ALL] == guard(g));
    }
    if (h.parts) T(other->data[0][0] != 0);
    for (uint32_t k = 0; k < 2; ++k) {
        cdp_optimizer_destroy(o[k]);
        cdp_ddp_destroy(plain[k].ddp);
    }
    free(plain);
}

TEST(buckets_are_ranges_of_an_arena) {
    static const how hows[] = {{0}, {.find_unused = true}, {.static_graph = true}, {.half = true},
        {.find_unused = true, .half = true}, {.parts = true}, {.find_unused = true, .one = true}};
    for (uint32_t k = 0; k < sizeof hows / sizeof *hows; ++k)
        for (uint32_t n = 1; n <= 4; ++n) {
            how h = hows[k];
            run_counted(n, rank_compares, &h);
        }
}

static void rank_joins(cdp_group *g, void *arg) {
    const how h = *(const how *)arg;
    const uint32_t steps = 1 + cdp_rank(g);
    model *m = (model *)calloc(1, sizeof *m);
    for (int in_arena = 0; in_arena < 2; ++in_arena) {
        model_open(m, g, h, in_arena != 0);
        for (uint32_t step = 0; step < steps; ++step) {
            const uint32_t active = cdp_size(g) - step; /* ranks below `step` are out of data */
            double sum = 0;
            T_EQ(CDP_OK, model_pass(m, step, h));
            T_EQ(active, cdp_ddp_stats_of(m->ddp).active_ranks);
            for (uint32_t r = step; r < cdp_size(g); ++r)
                sum += (double)((r * 7 + step * 5) % 11) - 5;
            sum /= h.join_effective ? active : cdp_size(g);
            T((float)sum == *(float *)cdp_ddp_grad(m->ddp, 0));
        }
        T_EQ(CDP_OK, cdp_ddp_join(m->ddp));
        T(m->arena[ALL] == guard(g));
        cdp_ddp_destroy(m->ddp);
    }
    free(m);
}

TEST(uneven_inputs_with_an_arena) {
    how h = {.join = true};
    run_counted(3, rank_joins, &h);
    h.join_effective = true;
    run_counted(3, rank_joins, &h);
}

/* Parameters without elements, and delayed ones, change nothing of where the others lie. */
TEST(gradients_in_an_arena_do_not_overlap) {
    cdp_group *g = group_of_one(NULL);
    double arena[16], data[5][4];
    cdp_param params[5];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    memset(params, 0, sizeof params);
    memset(&d, 0, sizeof d);
    for (int i = 0; i < 5; ++i) {
        params[i].data = data[i];
        params[i].count = i ? 4 : 0;
    }
    params[1].dtype = CDP_DTYPE_F64; /* f32, f64, f32: the first one is empty */
    params[3].delayed = params[4].delayed = true;
    d.group = g;
    d.params = params;
    d.param_count = 5;
    d.grad_arena = arena;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    T(cdp_ddp_grad(ddp, 1) == arena);
    for (uint32_t i = 2; i < 5; ++i)
        T(cdp_ddp_grad(ddp, i) == arena + 4 + 2 * (i - 2));
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(g);
}

/* A rank was lost in a pass: nothing of it is left in the next group. */
TEST(an_arena_goes_on_in_another_group) {
    cdp_group *g = group_of_one(NULL), *other = group_of_one(NULL);
    const how h = {.find_unused = true};
    model *m = (model *)calloc(1, sizeof *m);
    model_open(m, g, h, true);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
    for (uint32_t k = 0; k < ALL; ++k)
        m->arena[k] = 5;
    T_EQ(CDP_OK, cdp_ddp_ready(m->ddp, 5));
    (void)cdp_group_abort(g, "a rank is lost");
    T_EQ(CDP_OK, cdp_ddp_rebind(m->ddp, other));
    for (uint32_t k = 0; k < ALL; ++k)
        T(m->arena[k] == 0);
    T(m->arena[ALL] == guard(other));
    T_EQ(CDP_OK, model_pass(m, 0, h));
    cdp_ddp_destroy(m->ddp);
    cdp_group_destroy(g);
    cdp_group_destroy(other);
    free(m);
}

TEST(mistakes_with_an_arena) {
    cdp_group *g = group_of_one(NULL);
    float arena[64], data[3][16];
    cdp_param params[3];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    memset(params, 0, sizeof params);
    memset(&d, 0, sizeof d);
    for (int i = 0; i < 3; ++i) {
        params[i].data = data[i];
        params[i].count = 4;
    }
    d.group = g;
    d.params = params;
    d.param_count = 3;
    d.grad_arena = arena;
    d.rebuild = true;
    REFUSED(CDP_ERR_INVALID, "rebuild would change", cdp_ddp_create(&d, &ddp));
    d.rebuild = false;
    params[1].grad = data[1] + 8;
    REFUSED(CDP_ERR_INVALID, "'param1' (index 1) has a gradient array", cdp_ddp_create(&d, &ddp));
    params[1].grad = NULL;
    params[1].dtype = CDP_DTYPE_F16;
    REFUSED(CDP_ERR_UNSUPPORTED, "'param2' (index 2) is f32", cdp_ddp_create(&d, &ddp));
    params[1].dtype = CDP_DTYPE_DEFAULT;
    params[1].delayed = true;
    REFUSED(CDP_ERR_UNSUPPORTED, "'param2' (index 2) is f32", cdp_ddp_create(&d, &ddp));
    params[0].delayed = params[2].delayed = true;
    params[1].delayed = false;
    REFUSED(CDP_ERR_UNSUPPORTED, "'param2' (index 2) is f32 and delayed", cdp_ddp_create(&d, &ddp));
    params[0].delayed = params[2].delayed = false;
    params[0].dtype = CDP_DTYPE_F16;
    params[0].count = 3;
    REFUSED(CDP_ERR_INVALID, "6 bytes behind grad_arena, is not aligned", cdp_ddp_create(&d, &ddp));
    params[0].dtype = CDP_DTYPE_DEFAULT;
    params[0].count = 4;
    params[2].data = arena + 8;
    REFUSED(CDP_ERR_INVALID, "grad_arena and parameter 'param2' (index 2) share 16 bytes",
        cdp_ddp_create(&d, &ddp));
    cdp_group_destroy(g);
}

/* ---- gradients that move ---- */

static void rank_moves(cdp_group *g, void *arg) {
    const uint32_t rank = cdp_rank(g), n = cdp_size(g);
    static float graph[4][3][2][40];
    const how h = {0};
    model *m = (model *)calloc(1, sizeof *m);
    (void)arg;
    model_open(m, g, h, false);
    for (uint32_t step = 0; step < 3; ++step) {
        T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
        for (uint32_t i = N; i-- > 0;) {
            float *const at = graph[rank][step][i == 3];
            for (uint32_t k = 0; k < 40; ++k)
                at[k] = (float)(rank + k + step);
            T_EQ(CDP_OK,
                i == 3 || i == 1 ? cdp_ddp_ready_from(m->ddp, i, at) : cdp_ddp_ready(m->ddp, i));
        }
        T_EQ(CDP_OK, cdp_ddp_backward_end(m->ddp));
        for (uint32_t k = 0; k < 40; ++k) {
            const float mean = (float)(k + step) + (float)(n - 1) / 2;
            T(graph[rank][step][1][k] == mean && ((float *)cdp_ddp_grad(m->ddp, 3))[k] == mean);
        }
        /* what was there before is left alone */
        if (step) T(graph[rank][step - 1][1][0] == (float)(step - 1) + (float)(n - 1) / 2);
    }
    T_EQ(CDP_OK, cdp_ddp_no_sync(m->ddp, true));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
    REFUSED(CDP_ERR_STATE, "under no_sync", cdp_ddp_ready_from(m->ddp, 3, graph[rank][0][1]));
    T_EQ(CDP_ERR_STATE, cdp_ddp_backward_end(m->ddp)); /* it reports that again */
    cdp_ddp_destroy(m->ddp);
    free(m);
}

TEST(a_gradient_may_move_from_pass_to_pass) {
    run_ranks(3, NULL, 0, rank_moves, NULL);
}

TEST(a_gradient_that_moved_is_the_programs_after_a_dropped_pass) {
    cdp_group *g = group_of_one(NULL), *other = group_of_one(NULL);
    const how h = {.find_unused = false};
    model *m = (model *)calloc(1, sizeof *m);
    float graph[64] = {7};
    model_open(m, g, h, false);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
    T_EQ(CDP_OK, cdp_ddp_ready_from(m->ddp, 4, graph));
    (void)cdp_group_abort(g, "a rank is lost");
    T_EQ(CDP_OK, cdp_ddp_rebind(m->ddp, other));
    cdp_ddp_zero_grad(m->ddp); /* the program may have freed the graph */
    T(graph[0] == 7);
    T(!cdp_ddp_param(m->ddp, 4)->grad);
    cdp_ddp_destroy(m->ddp);
    cdp_group_destroy(g);
    cdp_group_destroy(other);
    free(m);
}

TEST(mistakes_with_gradients_that_move) {
    cdp_group *g = group_of_one(NULL);
    float data[4] = {0}, own[4], moving[5];
    cdp_param p = {.name = "w", .data = data, .count = 4};
    cdp_ddp_desc d = {.group = g, .params = &p, .param_count = 1};
    cdp_ddp *ddp;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    REFUSED(CDP_ERR_INVALID, "ddp is NULL", cdp_ddp_ready_from(NULL, 0, moving));
    REFUSED(CDP_ERR_STATE, "no backward pass is open", cdp_ddp_ready_from(ddp, 0, moving));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    REFUSED(CDP_ERR_INVALID, "'w' (index 0) is NULL, not aligned",
        cdp_ddp_ready_from(ddp, 0, (char *)moving + 1));
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(g);
    g = d.group = group_of_one(NULL);
    p.grad = own;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    REFUSED(CDP_ERR_INVALID, "a gradient array of its own", cdp_ddp_ready_from(ddp, 0, moving));
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(g);
}

/* ---- tied weights ---- */

static void tied_open(model *m, cdp_group *g, bool find_unused) {
    cdp_ddp_desc d;
    memset(m, 0, sizeof *m);
    memset(&d, 0, sizeof d);
    for (uint32_t i = 0; i < 2; ++i) {
        m->params[i].data = m->data[i];
        m->params[i].count = 4;
    }
    m->params[0].name = "embedding";
    m->params[0].uses = 2;
    d.group = g;
    d.params = m->params;
    d.param_count = 2;
    d.bucket_bytes = 4;
    d.find_unused = find_unused;
    T_EQ(CDP_OK, cdp_ddp_create(&d, &m->ddp));
}

static void rank_ties(cdp_group *g, void *arg) {
    const bool find_unused = *(bool *)arg;
    model *m = (model *)calloc(1, sizeof *m);
    tied_open(m, g, find_unused);
    for (uint32_t step = 0; step < 3; ++step) {
        /* where parameters may be unused, rank 1 leaves out the second use */
        const bool both = !find_unused || cdp_rank(g) != 1;
        float *const w = (float *)cdp_ddp_grad(m->ddp, 0);
        cdp_ddp_zero_grad(m->ddp);
        T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
        w[0] += 1; /* the output layer */
        T_EQ(CDP_OK, cdp_ddp_ready(m->ddp, 0));
        T_EQ(CDP_OK, cdp_ddp_ready(m->ddp, 1));
        w[0] += both ? 2 : 0; /* the input layer, whose bucket has not left */
        if (both) T_EQ(CDP_OK, cdp_ddp_ready(m->ddp, 0));
        T_EQ(CDP_OK, cdp_ddp_backward_end(m->ddp));
        T(w[0] == (find_unused ? (3 + 1 + 3 + 3) / 4.0f : 3));
        /* both parts in one: 4 values of each parameter, once */
        if (!find_unused) T_EQ(2 * 4 * sizeof(float), cdp_ddp_stats_of(m->ddp).sent_bytes);
    }
    cdp_ddp_destroy(m->ddp);
    free(m);
}

TEST(tied_weights_leave_after_their_last_use) {
    bool find_unused = false;
    run_ranks(4, NULL, 0, rank_ties, &find_unused);
    find_unused = true;
    run_ranks(4, NULL, 0, rank_ties, &find_unused);
}

TEST(mistakes_with_tied_weights) {
    for (int more = 0; more < 2; ++more) {
        cdp_group *g = group_of_one(NULL);
        model *m = (model *)calloc(1, sizeof *m);
        tied_open(m, g, false);
        T_EQ(CDP_OK, cdp_ddp_backward_begin(m->ddp));
        T_EQ(CDP_OK, cdp_ddp_ready(m->ddp, 1));
        T_EQ(CDP_OK, cdp_ddp_ready(m->ddp, 0));
        if (more) {
            T_EQ(CDP_OK, cdp_ddp_ready(m->ddp, 0));
            REFUSED(CDP_ERR_STATE, "'embedding' (index 0) was marked ready more often",
                cdp_ddp_ready(m->ddp, 0));
        } else {
            REFUSED(CDP_ERR_STATE, "1 of 2 parameters were never marked ready",
                cdp_ddp_backward_end(m->ddp));
            T_TEXT("'embedding' (index 0)", cdp_last_error()->text);
        }
        cdp_ddp_destroy(m->ddp);
        cdp_group_destroy(g);
        free(m);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"buckets_are_ranges_of_an_arena", buckets_are_ranges_of_an_arena, 60},
        {"uneven_inputs_with_an_arena", uneven_inputs_with_an_arena, 20},
        {"gradients_in_an_arena_do_not_overlap", gradients_in_an_arena_do_not_overlap, 20},
        {"an_arena_goes_on_in_another_group", an_arena_goes_on_in_another_group, 20},
        {"a_gradient_that_moved_is_the_programs_after_a_dropped_pass",
            a_gradient_that_moved_is_the_programs_after_a_dropped_pass, 20},
        {"mistakes_with_an_arena", mistakes_with_an_arena, 20},
        {"a_gradient_may_move_from_pass_to_pass", a_gradient_may_move_from_pass_to_pass, 20},
        {"mistakes_with_gradients_that_move", mistakes_with_gradients_that_move, 20},
        {"tied_weights_leave_after_their_last_use", tied_weights_leave_after_their_last_use, 20},
        {"mistakes_with_tied_weights", mistakes_with_tied_weights, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
