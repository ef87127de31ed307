/*  test_dtensor_edges.c - edges: every backward is the adjoint of its forward; casts on the wire;
   gathers in pieces */
#define CDP_IMPLEMENTATION
#include "cdp_dtensor.h"

#include "paper.h"

#include "../unit/ranks.h"

/* ---- adjoints, on paper ---- */

static cdp_edge *edges[PAPER_RANKS];
static uint64_t x_of[PAPER_RANKS][2048], y_of[PAPER_RANKS][2048], dx_of[PAPER_RANKS][2048],
    dy_of[PAPER_RANKS][2048];

/* Random numbers that lie as `l` says: the same on replicas, independent contributions to sums.
   */
static void fill(const paper *p, const cdp_layout *like, uint64_t salt, uint64_t (*to)[2048]) {
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_layout l = *like;
        cdp_box box;
        uint64_t key = salt;
        l.mesh = p->mesh[r];
        for (uint32_t by = 0; by < l.mesh->desc.ndim; ++by)
            if (l.place[by].kind == CDP_PLACE_PARTIAL)
                key = key * 31 + 1 + r / l.mesh->stride[by] % l.mesh->desc.shape[by];
        const uint64_t n = cdp_layout_box(&l, NULL, &box);
        for (uint64_t i = 0; i < n; ++i) {
            uint64_t state = paper_index(&l, &box, i) * 7919 + key * 104729;
            to[r][i] = test_random(&state);
        }
    }
}

/* Run the plans of one direction of all edges. */
static bool run_way(const paper *p, bool backward, uint64_t (*in)[2048], uint64_t (*out)[2048]) {
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_plan *plan = backward ? edges[r]->backward.plan : edges[r]->forward.plan;
        paper_now.plan[r] = plan;
        plan->scratch = paper_now.scratch[r];
        if (plan->scratch_used > sizeof paper_now.scratch[r]) return T(!"scratch memory is enough");
        plan->in = in[r];
        plan->out = out[r];
    }
    const bool ok = paper_run_plans(p);
    for (uint32_t r = 0; r < p->n; ++r)
        paper_now.plan[r]->scratch = NULL;
    return ok;
}

/* The sum over ranks of a[i] * b[i]; replicas are counted once. `a` lies as `la`, `b` as `lb`:
   the same boxes, but one may be PARTIAL where the other is replicated. */
static uint64_t dot(const paper *p, const cdp_layout *la, uint64_t (*a)[2048], const cdp_layout *lb,
    uint64_t (*b)[2048]) {
    uint64_t sum = 0;
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_layout l = *la;
        bool counts = true;
        l.mesh = p->mesh[r];
        for (uint32_t by = 0; by < l.mesh->desc.ndim; ++by)
            if (la->place[by].kind == CDP_PLACE_REPLICATE
                && lb->place[by].kind == CDP_PLACE_REPLICATE
                && r / l.mesh->stride[by] % l.mesh->desc.shape[by])
                counts = false;
        const uint64_t n = cdp_layout_box(&l, NULL, NULL);
        for (uint64_t i = 0; counts && i < n; ++i)
            sum += a[r][i] * b[r][i];
    }
    return sum;
}

/* dot(dy, forward(x)) == dot(backward(dy), x), modulo 2^64. */
static void adjoint(const paper *p, const cdp_edge_desc *like) {
    bool ok = true;
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_edge_desc d = *like;
        d.from.mesh = d.to.mesh = p->mesh[r];
        if (d.grad_in.mesh) d.grad_in.mesh = p->mesh[r];
        if (!OK(cdp_edge_create(&d, &edges[r]))) return;
    }
    const cdp_edge_desc *d = cdp_edge_desc_of(edges[0]);
    fill(p, &d->from, 1, x_of);
    fill(p, &d->grad_in, 2, dy_of);
    ok = run_way(p, false, x_of, y_of) && run_way(p, true, dy_of, dx_of);
    const uint64_t a = dot(p, &d->to, y_of, &d->grad_in, dy_of);
    const uint64_t b = dot(p, &d->from, x_of, &d->grad_out, dx_of);
    test_check(ok && a == b, __FILE__, __LINE__, "%s -> %s, gradient %s: %llx and %llx",
        paper_text(&d->from), paper_text(&d->to), paper_text(&d->grad_in), (unsigned long long)a,
        (unsigned long long)b);
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_edge_destroy(edges[r]);
        paper_now.plan[r] = NULL;
    }
}

static const char *const places[16] = {"R,R", "R,S0", "R,S1", "R,P", "S0,R", "S0,S0", "S0,S1",
    "S0,P", "S1,R", "S1,S0", "S1,S1", "S1,P", "P,R", "P,S0", "P,S1", "P,P"};

/* All layouts to all layouts; the gradient arrives replicated or as a sum wherever that makes
   sense. */
TEST(every_backward_is_the_adjoint) {
    static const uint32_t shapes[3][2] = {{2, 2}, {2, 3}, {1, 4}};
    static const uint64_t sizes[3][2] = {{4, 6}, {5, 3}, {1, 2}};
    uint32_t done = 0;
    for (uint32_t k = 0; k < 9; ++k) {
        const uint64_t *size = sizes[k / 3 % 3];
        paper p;
        if (!paper_open(&p, 2, shapes[k % 3])) return;
        for (uint32_t a = 0; a < 16; ++a)
            for (uint32_t b = 0; b < 16 && !test__now.failed_checks; ++b)
                for (uint32_t g = 0; g < 4; ++g) { /* bits: in which dimensions it is a sum */
                    cdp_edge_desc d = {.wire = CDP_DTYPE_DEFAULT};
                    d.from = (cdp_layout){.mesh = p.mesh[0], .dtype = CDP_DTYPE_U64, .ndim = 2};
                    memcpy(d.from.shape, size, 2 * sizeof *size);
                    d.to = d.from;
                    OK(cdp_layout_parse(&d.from, places[a]));
                    OK(cdp_layout_parse(&d.to, places[b]));
                    bool possible = true;
                    for (uint32_t by = 0; by < 2; ++by) {
                        const cdp_place_kind f = d.from.place[by].kind, t = d.to.place[by].kind;
                        if (t == CDP_PLACE_PARTIAL && f == CDP_PLACE_REPLICATE
                            && shapes[k % 3][by] > 1)
                            possible = false;
                        if ((g >> by & 1) && t != CDP_PLACE_REPLICATE) possible = false;
                    }
                    if (!possible) continue;
                    d.grad_in = d.to;
                    for (uint32_t by = 0; by < 2; ++by) {
                        cdp_place_kind *kind = &d.grad_in.place[by].kind;
                        if (*kind == CDP_PLACE_PARTIAL) *kind = CDP_PLACE_REPLICATE;
                        if (g >> by & 1) *kind = CDP_PLACE_PARTIAL;
                    }
                    adjoint(&p, &d);
                    ++done;
                }
        paper_close(&p);
    }
    printf("  %u edges\n", done);
    T(done > 2000);
}

/* Bytes of forward and backward, for the pairs whose meaning everybody knows. */
TEST(edges_cost_what_they_should) {
    static const struct {
        const char *from, *to, *grad;
        uint64_t forward, backward;
        const char *grad_out; /* NULL: the default */
    } rows[] = {{"S0", "R", "R", 3 * 64, 0, NULL}, {"S0", "R", "P", 3 * 64, 3 * 64, NULL},
        {"R", "R", "P", 0, 6 * 64, NULL}, {"R", "S0", "S0", 0, 3 * 64, NULL},
        {"P", "R", "R", 6 * 64, 0, NULL}, {"P", "S0", "S0", 3 * 64, 3 * 64, NULL},
        {"S0", "S1", "S1", 48, 48, NULL}, {"R", "R", "R", 0, 0, NULL}, {"P", "P", "R", 0, 0, NULL},
        {"P", "P", "P", 0, 0, "P"}}; /* a gradient that is a sum stays one */
    paper p;
    const uint32_t four[1] = {4};
    if (!paper_open(&p, 1, four)) return;
    for (uint32_t k = 0; k < sizeof rows / sizeof *rows; ++k) {
        cdp_edge_desc d = {.from = {.mesh = p.mesh[0], .ndim = 2, .shape = {4, 4}}};
        cdp_edge *e;
        d.to = d.grad_in = d.from;
        OK(cdp_layout_parse(&d.from, rows[k].from));
        OK(cdp_layout_parse(&d.to, rows[k].to));
        OK(cdp_layout_parse(&d.grad_in, rows[k].grad));
        if (rows[k].grad_out) {
            d.grad_out = d.from;
            OK(cdp_layout_parse(&d.grad_out, rows[k].grad_out));
        }
        if (!OK(cdp_edge_create(&d, &e))) return;
        T_EQ(rows[k].forward, cdp_edge_info(e, false).total_bytes);
        T_EQ(rows[k].backward, cdp_edge_info(e, true).total_bytes);
        cdp_edge_destroy(e);
    }
    cdp_edge_desc d = {.from = {.mesh = p.mesh[0], .ndim = 1, .shape = {4}}};
    cdp_edge *e;
    d.to = d.from;
    OK(cdp_layout_parse(&d.from, "P(max)"));
    REFUSED(CDP_ERR_UNSUPPORTED, "PARTIAL (max) has no linear gradient", cdp_edge_create(&d, &e));
    d.from = d.to;
    d.from.dtype = d.to.dtype = CDP_DTYPE_I32;
    d.wire = CDP_DTYPE_BF16;
    REFUSED(CDP_ERR_UNSUPPORTED, "i32 cannot travel as bf16", cdp_edge_create(&d, &e));
    d.wire = CDP_DTYPE_DEFAULT;
    d.grad_in = d.from;
    d.grad_in.shape[0] = 5;
    REFUSED(CDP_ERR_INVALID, "grad_in must have", cdp_edge_create(&d, &e));
    paper_close(&p);
}

/* ---- with ranks ---- */

static cdp_mesh *line(cdp_group *g) {
    cdp_mesh *m = NULL;
    const cdp_mesh_desc d = {.group = g};
    OK(cdp_mesh_create(&d, &m));
    return m;
}

static cdp_edge *edge_of(cdp_mesh *m, const char *from, const char *to, const char *grad,
    uint64_t rows, uint64_t columns, cdp_dtype wire, cdp_dtype grad_wire) {
    cdp_edge_desc d = {.from = {.mesh = m, .ndim = 2, .shape = {rows, columns}}};
    cdp_edge *e = NULL;
    d.to = d.from;
    d.wire = wire;
    d.grad_wire = grad_wire;
    OK(cdp_layout_parse(&d.from, from));
    OK(cdp_layout_parse(&d.to, to));
    if (grad) {
        d.grad_in = d.to;
        OK(cdp_layout_parse(&d.grad_in, grad));
    }
    OK(cdp_edge_create(&d, &e));
    return e;
}

/* Megatron's pair: identity forward and all-reduce backward, and the other way round. */
static void megatron(cdp_group *g, void *arg) {
    (void)arg;
    cdp_mesh *m = line(g);
    cdp_edge *f = edge_of(m, "R", "R", "P", 2, 2, CDP_DTYPE_DEFAULT, CDP_DTYPE_DEFAULT);
    cdp_edge *h = edge_of(m, "P", "R", NULL, 2, 2, CDP_DTYPE_DEFAULT, CDP_DTYPE_DEFAULT);
    cdp_edge *mean = edge_of(m, "P(avg)", "R", NULL, 2, 2, CDP_DTYPE_DEFAULT, CDP_DTYPE_DEFAULT);
    float x[4], y[4];
    for (uint32_t i = 0; i < 4; ++i)
        x[i] = (float)(cdp_rank(g) + i);
    OK(cdp_edge_forward(f, x, x)); /* in place: nothing moves */
    OK(cdp_edge_backward(f, x, y));
    for (uint32_t i = 0; i < 4; ++i)
        T(y[i] == (float)(6 + 4 * i));
    OK(cdp_edge_forward(h, x, y));
    for (uint32_t i = 0; i < 4; ++i)
        T(y[i] == (float)(6 + 4 * i));
    OK(cdp_edge_backward(h, x, y));
    for (uint32_t i = 0; i < 4; ++i)
        T(y[i] == x[i]);
    OK(cdp_edge_forward(mean, x, y));
    for (uint32_t i = 0; i < 4; ++i)
        T(y[i] == 1.5f + (float)i);
    OK(cdp_edge_backward(mean, y, x)); /* each of four contributions to a mean gets a fourth */
    for (uint32_t i = 0; i < 4; ++i)
        T(x[i] == y[i] / 4);
    cdp_edge_destroy(f);
    cdp_edge_destroy(h);
    cdp_edge_destroy(mean);
    cdp_mesh_destroy(m);
}

TEST(megatron_edges) {
    run_ranks(4, NULL, 0, megatron, NULL);
}

/* f32 that travels as f32, bf16 or f16, forward and backward in all combinations, waiting and not.
   */
static void wires(cdp_group *g, void *arg) {
    static const cdp_dtype wire[3] = {CDP_DTYPE_F32, CDP_DTYPE_BF16, CDP_DTYPE_F16};
    (void)arg;
    cdp_mesh *m = line(g);
    for (uint32_t k = 0; k < 18; ++k) {
        cdp_edge *e = edge_of(m, "S0", "R", "P", 7, 3, wire[k % 3], wire[k / 3 % 3]);
        cdp_box box;
        cdp_work work;
        float x[9], y[21], dy[21], dx[9];
        const uint64_t n = cdp_layout_box(&cdp_edge_desc_of(e)->from, NULL, &box);
        for (uint64_t i = 0; i < n; ++i)
            x[i] = (float)(box.start[0] * 3 + i);
        if (k < 9) {
            OK(cdp_edge_forward(e, x, y));
        } else if (OK(cdp_edge_forward_async(e, x, y, &work))) {
            OK(cdp_work_wait(work));
        }
        for (uint32_t i = 0; i < 21; ++i) {
            T(y[i] == (float)i);
            dy[i] = (float)(i + cdp_rank(g));
        }
        if (k < 9) {
            OK(cdp_edge_backward(e, dy, dx));
        } else if (OK(cdp_edge_backward_async(e, dy, dx, &work))) {
            OK(cdp_work_wait(work));
        }
        for (uint64_t i = 0; i < n; ++i)
            T(dx[i] == (float)(3 * (box.start[0] * 3 + i) + 3));
        T_EQ(2 * 21 * cdp_dtype_size(wire[k % 3]), cdp_edge_info(e, false).total_bytes);
        T_EQ(2 * 21 * cdp_dtype_size(wire[k / 3 % 3]), cdp_edge_info(e, true).total_bytes);
        cdp_edge_destroy(e);
    }
    cdp_mesh_destroy(m);
}

TEST(wire_dtypes) {
    run_ranks(3, NULL, 0, wires, NULL);
}

typedef struct used {
    const float *y;
    uint64_t columns, elements, calls;
    cdp_box first;
    cdp_status answer;
} used;

/* Every element of the box is there already. */
static cdp_status use(void *user, const cdp_box *box) {
    used *u = (used *)user;
    if (!u->calls++) u->first = *box;
    for (uint64_t r = 0; r < box->size[0]; ++r)
        for (uint64_t c = 0; c < box->size[1]; ++c, ++u->elements) {
            const uint64_t at = (box->start[0] + r) * u->columns + box->start[1] + c;
            T(u->y[at] == (float)at);
        }
    return u->answer;
}

static void pieces(cdp_group *g, void *arg) {
    (void)arg;
    cdp_mesh *m = line(g);
    static const char *const from[4] = {"S0", "S1", "P", "S0"};
    for (uint32_t k = 0; k < 4; ++k) {
        cdp_edge *e = edge_of(m, from[k], "R", NULL, 7, 5,
            k == 3 ? CDP_DTYPE_BF16 : CDP_DTYPE_DEFAULT, CDP_DTYPE_DEFAULT);
        cdp_box box;
        float x[35], y[35];
        const uint64_t n = cdp_layout_box(&cdp_edge_desc_of(e)->from, NULL, &box);
        cdp_dtensor t = {.layout = cdp_edge_desc_of(e)->from, .data = x};
        const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
        used u = {.y = y, .columns = 5};
        OK(cdp_dtensor_fill(&t, &ramp));
        for (uint32_t i = 0; i < 35; ++i)
            y[i] = -1;
        OK(cdp_edge_forward_pieces(e, x, y, use, &u));
        T_EQ(35, u.elements);
        const uint32_t pieces[3] = {4, 3, 1}; /* of 5 columns the last rank has none */
        T_EQ(pieces[k < 2 ? k : 2], u.calls);
        if (k < 2 && n) T(u.first.start[k] == box.start[k] && u.first.size[k] == box.size[k]);
        u.answer = CDP_ERR_STATE;
        u.calls = 0;
        T_EQ(CDP_ERR_STATE, cdp_edge_forward_pieces(e, x, y, use, &u));
        T_EQ(1, u.calls);              /* no more calls after an error */
        OK(cdp_edge_forward(e, x, y)); /* and the transfer was completed */
        cdp_edge_destroy(e);
    }
    cdp_mesh_destroy(m);
}

TEST(pieces_are_used_as_they_arrive) {
    run_ranks(4, NULL, 0, pieces, NULL);
}

/* Each rank receives 4 pieces: in one block each, or into rows of the target. */
static void pieces_beside_works(cdp_group *g, void *arg) {
    cdp_mesh *m = line(g);
    (void)arg;
    for (uint32_t k = 0; k < 2; ++k) {
        cdp_edge *e =
            edge_of(m, k ? "S1" : "S0", "R", NULL, 5, 80, CDP_DTYPE_DEFAULT, CDP_DTYPE_DEFAULT);
        float x[400], y[400];
        cdp_dtensor t = {.layout = cdp_edge_desc_of(e)->from, .data = x};
        const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
        used u = {.y = y, .columns = 80};
        OK(cdp_dtensor_fill(&t, &ramp));
        for (uint32_t i = 0; i < 400; ++i)
            y[i] = -1;
        OK(cdp_edge_forward_pieces(e, x, y, use, &u));
        T_EQ(400, u.elements);
        T_EQ(5, u.calls);
        cdp_edge_destroy(e);
    }
    cdp_mesh_destroy(m);
}

TEST(more_pieces_than_max_pending) {
    for (uint32_t pending = 2; pending < 14; pending += 5) {
        const cdp_group_desc like = {.max_pending = pending};
        run_ranks(5, &like, 0, pieces_beside_works, NULL);
    }
}

static cdp_status count_calls(void *user, const cdp_box *box) {
    (void)box;
    ++*(uint32_t *)user;
    return CDP_OK;
}

/* What did not arrive is not used, and the error is told; in one phase, and in more. */
static void pieces_broken(cdp_group *g, void *arg) {
    static const char *const from[4] = {"S0", "S1", "P", "S0"};
    cdp_mesh *m = line(g);
    float x[35] = {0}, y[35];
    cdp_edge *e[4];
    (void)arg;
    for (uint32_t k = 0; k < 4; ++k)
        e[k] = edge_of(m, from[k], "R", NULL, 7, 5, k == 3 ? CDP_DTYPE_BF16 : CDP_DTYPE_DEFAULT,
            CDP_DTYPE_DEFAULT);
    OK(cdp_barrier(g));
    cdp_group_abort(m->all->group, "on purpose");
    for (uint32_t k = 0; k < 4; ++k) {
        uint32_t calls = 0;
        T(cdp_edge_forward_pieces(e[k], x, y, count_calls, &calls) != CDP_OK);
        T(calls <= (k < 2 ? 1 : 0)); /* the own piece was there */
        cdp_edge_destroy(e[k]);
    }
    cdp_mesh_destroy(m);
}

TEST(pieces_of_a_broken_group_are_not_used) {
    run_ranks(2, NULL, 0, pieces_broken, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"every_backward_is_the_adjoint", every_backward_is_the_adjoint, 60},
        {"edges_cost_what_they_should", edges_cost_what_they_should, 10},
        {"megatron_edges", megatron_edges, 20},
        {"wire_dtypes", wire_dtypes, 20},
        {"pieces_of_a_broken_group_are_not_used", pieces_of_a_broken_group_are_not_used, 20},
        {"more_pieces_than_max_pending", more_pieces_than_max_pending, 20},
        {"pieces_are_used_as_they_arrive", pieces_are_used_as_they_arrive, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
