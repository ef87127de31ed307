/*  test_dtensor_rules.c - rules of operators against brute force: the operator on pieces, reduced
    and put together, equals the operator on the whole; the cheapest choice of rules */
#define CDP_IMPLEMENTATION
#include "cdp_dtensor.h"

#include "op_pieces.h"

static uint32_t cases_done;

static cdp_mesh *paper_mesh(uint32_t ndim, const uint32_t *shape) {
    cdp_mesh_desc d = {.ndim = ndim, .paper_ranks = 1};
    cdp_mesh *m = NULL;
    for (uint32_t k = 0; k < ndim; ++k)
        d.paper_ranks *= d.shape[k] = shape[k];
    OK(cdp_mesh_create(&d, &m));
    return m;
}

static op_case case_of(const char *name, cdp_op op, uint32_t inputs) {
    op_case c = {.name = name, .op = op, .inputs = inputs};
    for (uint32_t k = 0; k < CDP_OP_INPUTS; ++k)
        c.in[k].dtype = CDP_DTYPE_I64;
    return c;
}

/* "3x4" as the shape of one input; "" is a single element. */
static void shape_is(cdp_layout *l, const char *text) {
    l->ndim = 0;
    while (*text) {
        char *end;
        l->shape[l->ndim++] = strtoull(text, &end, 10);
        text = *end ? end + 1 : end;
    }
}

static op_case shaped(op_case c, const char *a, const char *b, const char *x, const char *y) {
    const char *const texts[4] = {a, b, x, y};
    for (uint32_t k = 0; k < c.inputs; ++k)
        shape_is(&c.in[k], texts[k]);
    return c;
}

static void say_wrong(const op_case *c, const cdp_op_choice *how) {
    char text[5][100] = {"", "", "", "", ""};
    for (uint32_t k = 0; k < c->inputs; ++k)
        cdp_layout_text(&how->in[k], text[k], 100);
    cdp_layout_text(&how->out, text[4], 100);
    test_check(false, __FILE__, __LINE__, "%s: %s; %s; %s; %s -> %s on %u ranks", c->name, text[0],
        text[1], text[2], text[3], text[4], how->out.mesh->count);
}

/* Every combination of rules over the dimensions of the mesh. */
static void all_rules(const op_case *like, const cdp_mesh *m) {
    static cdp_rule rules[CDP__DT_CANDIDATES];
    op_case c = *like;
    cdp__dt_rules r = {.out = rules, .max = CDP__DT_CANDIDATES};
    cdp_layout out;
    uint32_t n, total = 1;
    for (uint32_t k = 0; k < c.inputs; ++k)
        c.in[k].mesh = m;
    if (!OK(cdp__dt_rules_of(&c.op, c.in, c.inputs, &r, &out))) return;
    OK(cdp_op_rules(&c.op, c.in, c.inputs, NULL, 0, &n));
    T_EQ(n, r.n);
    for (uint32_t by = 0; by < m->desc.ndim; ++by)
        total *= n;
    for (uint32_t i = 0; i < total && !test__now.failed_checks; ++i) {
        cdp_op_choice how = {.out = out};
        uint32_t rest = i;
        bool shared = false, fits;
        memcpy(how.in, c.in, sizeof how.in);
        for (uint32_t by = 0; by < m->desc.ndim; ++by, rest /= n) {
            const cdp_rule *rule = &rules[rest % n];
            for (uint32_t k = 0; k < c.inputs; ++k)
                how.in[k].place[by] = rule->in[k];
            how.out.place[by] = rule->out;
            how.flags[by] = rule->flags;
            shared = shared || (rule->flags & CDP_RULE_SHARED);
        }
        const cdp_layout *t[CDP_OP_INPUTS + 1] = {&how.out};
        fits = !shared && cdp__dt_places_fit(&how.out);
        for (uint32_t k = 0; k < c.inputs; ++k) {
            fits = fits && cdp__dt_places_fit(&how.in[k]);
            t[k] = &how.in[k];
        }
        t[c.inputs] = &how.out;
        fits = fits && (m->desc.ndim == 1 || cdp__dt_rules_agree(t, c.inputs, 0, 1));
        if (!fits) continue;
        for (uint32_t k = 0; k < c.inputs; ++k)
            OK(cdp_layout_check(&how.in[k])); /* places_fit says the same */
        OK(cdp_layout_check(&how.out));
        ++cases_done;
        piece_salt = i;
        if (!pieces_right(&c, &how)) say_wrong(&c, &how);
    }
}

static void on_meshes(const op_case *c) {
    static const uint32_t shapes[][2] = {{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {2, 2}, {2, 3}};
    for (uint32_t k = 0; k < 7; ++k) {
        cdp_mesh *m = paper_mesh(shapes[k][1] ? 2 : 1, shapes[k]);
        all_rules(c, m);
        cdp_mesh_destroy(m);
    }
}

static uint32_t rules_of(const op_case *like, const cdp_mesh *m) {
    op_case c = *like;
    uint32_t n = 0;
    for (uint32_t k = 0; k < c.inputs; ++k)
        c.in[k].mesh = m;
    OK(cdp_op_rules(&c.op, c.in, c.inputs, NULL, 0, &n));
    return n;
}

#define EINSUM(text_, inputs_) \
    case_of(text_, (cdp_op){.kind = CDP_OP_EINSUM, .text = text_}, inputs_)

TEST(matmul_and_einsum) {
    op_case c = shaped(EINSUM("mk,kn->mn", 2), "5x3", "3x4", "", "");
    on_meshes(&c); /* S on m, n, k (both cut: a sum), P on either side */
    c = shaped(EINSUM("mk,kn->mn", 2), "1x7", "7x2", "", "");
    on_meshes(&c);
    c = shaped(EINSUM("bmk,bkn->bmn", 2), "3x2x4", "3x4x2", "", "");
    on_meshes(&c); /* batches */
    c = shaped(EINSUM("btc,oc->bto", 2), "2x3x5", "4x5", "", "");
    on_meshes(&c);
    c = shaped(EINSUM("ab,bc,ca->", 3), "2x3", "3x2", "2x2", "");
    on_meshes(&c); /* three factors, everything contracted */
    c = shaped(EINSUM("abc->cab", 1), "2x3x5", "", "", "");
    on_meshes(&c);
    c = shaped(EINSUM("ab->b", 1), "4x3", "", "", "");
    on_meshes(&c);
    printf("  %u combinations\n", cases_done);
}

TEST(addmm_bias_once) {
    op_case c = shaped(EINSUM("mk,kn+n->mn", 3), "5x3", "3x4", "4", "");
    on_meshes(&c);
    c = shaped(EINSUM("mk,kn+mn->mn", 3), "2x5", "5x3", "2x3", "");
    on_meshes(&c);
    cdp_mesh *m = paper_mesh(1, (const uint32_t[]){2});
    c = shaped(EINSUM("mk,kn+n->mn", 3), "5x3", "3x4", "4", "");
    cdp_rule rules[64];
    uint32_t n = 0, once = 0, cut = 0;
    for (uint32_t k = 0; k < 3; ++k)
        c.in[k].mesh = m;
    OK(cdp_op_rules(&c.op, c.in, 3, rules, 64, &n));
    for (uint32_t i = 0; i < n; ++i) {
        once += rules[i].flags == CDP_RULE_ONCE;
        cut += rules[i].in[2].kind == CDP_PLACE_SHARD;
        T(!rules[i].flags || rules[i].out.kind == CDP_PLACE_PARTIAL);
    }
    T_EQ(3, once); /* k cut; either factor a sum */
    T_EQ(1, cut);  /* n cut */
    cdp_mesh_destroy(m);
}

TEST(elementwise_legality) {
    static const uint32_t inputs[9][2] = {
        {1, 3}, {1, 3}, {1, 1}, {1, 3}, {1, 2}, {1, 1}, {1, 1}, {1, 3}, {1, 3}};
    static const uint32_t partial[9][3] = {/* rules with a PARTIAL result, by inputs */
        {0, 0, 0}, {4, 6, 10}, {2, 0, 0}, {3, 5, 7}, {2, 2, 0}, {2, 0, 0}, {2, 0, 0}, {1, 3, 7},
        {1, 3, 7}};
    cdp_mesh *m = paper_mesh(1, (const uint32_t[]){2});
    for (uint32_t linear = 0; linear <= CDP_LINEAR_MIN; ++linear)
        for (uint32_t n = inputs[linear][0]; n <= inputs[linear][1]; ++n) {
            op_case c = case_of(
                "pointwise", (cdp_op){.kind = CDP_OP_POINTWISE, .linear = (cdp_linear)linear}, n);
            c = shaped(c, "5x4", "5x4", "5x4", "");
            T_EQ(1 + 2 + partial[linear][n - 1], rules_of(&c, m));
            on_meshes(&c);
            c = shaped(c, "3x4", "4", "3x1", ""); /* broadcast */
            on_meshes(&c);
        }
    op_case c = case_of("three", (cdp_op){.linear = CDP_LINEAR_RISING}, 2);
    c.op.kind = CDP_OP_POINTWISE;
    c.in[0].mesh = c.in[1].mesh = m;
    uint32_t n;
    REFUSED(CDP_ERR_INVALID, "about one input", cdp_op_rules(&c.op, c.in, 2, NULL, 0, &n));
    cdp_mesh_destroy(m);
}

TEST(reductions_over_each_dim) {
    static const cdp_reduce_op ops[5] = {
        CDP_REDUCE_DEFAULT, CDP_REDUCE_AVG, CDP_REDUCE_MIN, CDP_REDUCE_MAX, CDP_REDUCE_PRODUCT};
    for (uint32_t k = 0; k < 5; ++k)
        for (uint32_t keep = 0; keep < 2; ++keep)
            for (int32_t dim = -1; dim < 3; ++dim) {
                op_case c = case_of("reduce",
                    (cdp_op){.kind = CDP_OP_REDUCE,
                        .reduce = ops[k],
                        .keep_dim = keep != 0,
                        .dim = dim < 2 ? dim : 0,
                        .all = dim == 2},
                    1);
                c = shaped(c, "3x4", "", "", "");
                on_meshes(&c);
                c = shaped(c, "1x4", "", "", "");
                on_meshes(&c);
            }
}

TEST(softmax_and_norm) {
    for (int32_t dim = -3; dim < 3; ++dim) {
        op_case c = case_of("softmax", (cdp_op){.kind = CDP_OP_SOFTMAX, .dim = dim}, 1);
        c = shaped(c, "2x3x5", "", "", "");
        on_meshes(&c);
    }
    for (uint32_t n = 1; n < 4; ++n) {
        op_case c = case_of("norm", (cdp_op){.kind = CDP_OP_NORM, .dim = -1}, n);
        c = shaped(c, "2x3x4", "4", "4", "");
        on_meshes(&c);
        c = case_of("norm of two", (cdp_op){.kind = CDP_OP_NORM, .dim = 1}, n);
        c = shaped(c, "5x2x3", "2x3", "2x3", "");
        on_meshes(&c);
    }
}

TEST(embedding_rows_and_columns) {
    op_case c = case_of("embedding", (cdp_op){.kind = CDP_OP_EMBEDDING}, 2);
    c = shaped(c, "7x3", "2x5", "", "");
    on_meshes(&c); /* rows cut unevenly */
    c = shaped(c, "1x4", "6", "", "");
    on_meshes(&c); /* all ids are on one rank */
    c = shaped(c, "3x2", "", "", "");
    on_meshes(&c); /* a single id */
}

TEST(attention_heads) {
    op_case c = case_of("attention", (cdp_op){.kind = CDP_OP_ATTENTION}, 3);
    c = shaped(c, "2x3x2x2", "2x3x4x2", "2x3x4x3", "");
    on_meshes(&c); /* uneven heads */
    c = shaped(c, "1x6x3x2", "1x3x3x2", "1x3x3x2", "");
    on_meshes(&c); /* two heads of q for each of k */
    c = shaped(c, "1x4x2x1", "1x1x2x1", "1x1x2x1", "");
    on_meshes(&c); /* one head of k: fewer than ranks */
}

static op_case view(const char *from, const char *to) {
    op_case c = case_of("view", (cdp_op){.kind = CDP_OP_VIEW}, 1);
    cdp_layout l = {.ndim = 0};
    shape_is(&l, to);
    c.op.ndim = l.ndim;
    memcpy(c.op.shape, l.shape, sizeof l.shape);
    return shaped(c, from, "", "", "");
}

TEST(views_are_exact) {
    static const char *const pairs[][2] = {{"3x4", "12"}, {"12", "3x4"}, {"2x6", "4x3"},
        {"5x1x3", "15"}, {"1x5", "5"}, {"2x3x4", "6x4"}, {"6x4", "2x3x2x2"}, {"2x3x4", "2x12"},
        {"7", "7x1x1"}, {"", "1x1"}, {"2x2x5", "2x5x2"}, {"0x3", "3x0"}, {"9x2", "3x6"}};
    for (uint32_t k = 0; k < sizeof pairs / sizeof *pairs; ++k) {
        const op_case c = view(pairs[k][0], pairs[k][1]);
        on_meshes(&c);
    }
    cdp_mesh *m = paper_mesh(1, (const uint32_t[]){2});
    op_case c = view("3x4", "12");
    cdp_rule rules[16];
    uint32_t n;
    c.in[0].mesh = m;
    OK(cdp_op_rules(&c.op, c.in, 1, rules, 16, &n));
    T(n >= 2 && rules[1].out.kind == CDP_PLACE_SHARD);
    T_EQ(4, rules[1].out.block); /* whole rows only */
    c = view("3x4", "13");
    c.in[0].mesh = m;
    REFUSED(CDP_ERR_INVALID, "12 elements, the shape of the result 13",
        cdp_op_rules(&c.op, c.in, 1, rules, 16, &n));
    cdp_mesh_destroy(m);
}

TEST(custom_rules) {
    const uint32_t two = 2;
    cdp_mesh *m = paper_mesh(1, &two);
    const cdp_rule own = {
        .in = {{.kind = CDP_PLACE_SHARD, .dim = -1}}, .out = {.kind = CDP_PLACE_SHARD, .dim = -1}};
    cdp_rule rules[8];
    uint32_t n;
    op_case c = case_of("softmax", (cdp_op){.kind = CDP_OP_SOFTMAX, .dim = 1}, 1);
    c = shaped(c, "4x6", "", "", "");
    c.in[0].mesh = m;
    OK(cdp_op_rules(&c.op, c.in, 1, rules, 8, &n)); /* built in: rows alone */
    T(n == 2 && rules[1].in[0].dim == 0);
    c.op.rules = &own;
    c.op.rule_count = 1;
    OK(cdp_op_rules(&c.op, c.in, 1, rules, 8, &n)); /* replaced */
    T(n == 2 && rules[1].in[0].dim == -1 && rules[0].in[0].kind == CDP_PLACE_REPLICATE);
    cdp_op_choice choice;
    OK(cdp_layout_parse(&c.in[0], "S1"));
    OK(cdp_op_choose(&c.op, c.in, 1, NULL, NULL, &choice));
    T_EQ(0, choice.bytes);
    T_EQ(CDP_PLACE_SHARD, choice.out.place[0].kind);
    c.op.kind = CDP_OP_CUSTOM; /* an operator that nobody knows */
    c.op.ndim = 2;
    c.op.shape[0] = 4;
    c.op.shape[1] = 9;
    OK(cdp_op_choose(&c.op, c.in, 1, NULL, NULL, &choice));
    T_EQ(9, choice.out.shape[1]);
    c.op.rules = NULL;
    REFUSED(
        CDP_ERR_INVALID, "cdp_op: op.rules is NULL", cdp_op_rules(&c.op, c.in, 1, rules, 8, &n));
    c.op.rule_count = 0;
    REFUSED(
        CDP_ERR_INVALID, "cdp_op_rules: out is NULL", cdp_op_rules(&c.op, c.in, 1, NULL, 8, &n));
    REFUSED(CDP_ERR_INVALID, "it needs rules", cdp_op_rules(&c.op, c.in, 1, rules, 8, &n));
    const cdp_rule bad = {.out = {.kind = CDP_PLACE_SHARD, .dim = 2}};
    c.op.rules = &bad;
    c.op.rule_count = 1;
    REFUSED(
        CDP_ERR_INVALID, "rules[0] shards a dimension", cdp_op_rules(&c.op, c.in, 1, rules, 8, &n));
    cdp_mesh_destroy(m);
}

/* A rule's shards are those of its inputs' and its result's own dimensions. */
TEST(own_rules_fit_each_input) {
    const uint32_t two = 2;
    cdp_mesh *m = paper_mesh(1, &two);
    op_case c = case_of("custom", (cdp_op){.kind = CDP_OP_CUSTOM, .ndim = 2, .shape = {4, 6}}, 2);
    cdp_rule rules[8];
    uint32_t n;
    c = shaped(c, "4x6", "6", "", "");
    c.in[0].mesh = c.in[1].mesh = m;
    for (uint32_t k = 0; k < 3; ++k)
        for (int32_t dim = -4; dim < 4; ++dim) {
            cdp_rule own = {.out = {.kind = CDP_PLACE_REPLICATE}};
            cdp_place *const place = k < 2 ? &own.in[k] : &own.out;
            const int32_t dims = k == 1 ? 1 : 2;
            *place = (cdp_place){.kind = CDP_PLACE_SHARD, .dim = dim};
            c.op.rules = &own;
            c.op.rule_count = 1;
            if (dim >= -dims && dim < dims)
                OK(cdp_op_rules(&c.op, c.in, 2, rules, 8, &n));
            else
                REFUSED(CDP_ERR_INVALID, "rules[0] shards a dimension",
                    cdp_op_rules(&c.op, c.in, 2, rules, 8, &n));
        }
    cdp_mesh_destroy(m);
}

/* Of two cuts of one dimension, that of the lower order, or of the earlier dimension of the mesh,
   is made of whole blocks of the other. */
TEST(blocks_that_nest_go_together) {
    static const struct {
        uint64_t block[2];
        uint32_t order[2];
        bool fit;
    } t[] = {{{4, 2}, {0, 0}, true}, {{2, 4}, {0, 0}, false}, {{3, 2}, {0, 0}, false},
        {{4, 2}, {0, 1}, true}, {{2, 4}, {0, 1}, false}, {{4, 2}, {1, 0}, false},
        {{2, 4}, {1, 0}, true}, {{3, 2}, {1, 1}, false}, {{6, 2}, {1, 1}, true}};
    const uint32_t shape[2] = {2, 2};
    cdp_mesh *m = paper_mesh(2, shape);
    for (uint32_t k = 0; k < sizeof t / sizeof *t; ++k) {
        cdp_layout l = {.mesh = m, .dtype = CDP_DTYPE_I64, .ndim = 1, .shape = {48}};
        for (uint32_t by = 0; by < 2; ++by) {
            l.place[by].kind = CDP_PLACE_SHARD;
            l.place[by].block = t[k].block[by];
            l.place[by].order = t[k].order[by];
        }
        test_check(cdp__dt_places_fit(&l) == t[k].fit, __FILE__, __LINE__, "row %u", k);
    }
    cdp_mesh_destroy(m);
}

TEST(bad_operators_are_refused) {
    static const char *const bad[][2] = {{"mk,kn", "mk,kn"}, {"mm,mn->m", "\"mm,mn->m\""},
        {"mk,kn->mx", "mx"}, {"mk,kn->mnn", "mnn"}, {"mk,kn+k->mn", "+k"}, {"a,b,c,d,e->a", ",e"}};
    const uint32_t two = 2;
    cdp_mesh *m = paper_mesh(1, &two);
    op_case c = shaped(EINSUM("mk,kn->mn", 2), "5x3", "3x4", "", "");
    uint32_t n;
    c.in[0].mesh = c.in[1].mesh = m;
    for (uint32_t k = 0; k < 6; ++k) {
        c.op.text = bad[k][0];
        REFUSED(CDP_ERR_INVALID, bad[k][1], cdp_op_rules(&c.op, c.in, 2, NULL, 0, &n));
    }
    c.op.text = "mk,kn->mn";
    c.in[1].shape[0] = 4;
    REFUSED(CDP_ERR_INVALID, "'k' has size 3 and, in input 1, size 4",
        cdp_op_rules(&c.op, c.in, 2, NULL, 0, &n));
    REFUSED(CDP_ERR_INVALID, "2 operands, the call 1", cdp_op_rules(&c.op, c.in, 1, NULL, 0, &n));
    c.op.text = "mkx,kn->mn";
    REFUSED(CDP_ERR_INVALID, "more or fewer dimensions", cdp_op_rules(&c.op, c.in, 2, NULL, 0, &n));
    c.op = (cdp_op){.kind = CDP_OP_SOFTMAX, .dim = 2};
    REFUSED(CDP_ERR_INVALID, "dim 2 of a tensor of 2", cdp_op_rules(&c.op, c.in, 1, NULL, 0, &n));
    c.op.kind = CDP_OP_EMBEDDING;
    REFUSED(CDP_ERR_INVALID, "it has 2 to 2", cdp_op_rules(&c.op, c.in, 1, NULL, 0, &n));
    c.op.kind = CDP_OP_CROSS_ENTROPY;
    REFUSED(CDP_ERR_INVALID, "other dims", cdp_op_rules(&c.op, c.in, 2, NULL, 0, &n));
    c.op.kind = CDP_OP_ATTENTION;
    c.in[2] = c.in[0];
    REFUSED(CDP_ERR_INVALID, "need 4 dims", cdp_op_rules(&c.op, c.in, 3, NULL, 0, &n));
    c.op = (cdp_op){.kind = CDP_OP_NORM, .dim = -1};
    REFUSED(CDP_ERR_INVALID, "shape of the last dims", cdp_op_rules(&c.op, c.in, 2, NULL, 0, &n));
    c.op.kind = CDP_OP_POINTWISE;
    REFUSED(CDP_ERR_INVALID, "neither 1 nor", cdp_op_rules(&c.op, c.in, 2, NULL, 0, &n));
    c.op.kind = (cdp_op_kind)77;
    REFUSED(CDP_ERR_INVALID, "cdp_op_kind", cdp_op_rules(&c.op, c.in, 2, NULL, 0, &n));
    c.op.kind = CDP_OP_REDUCE;
    c.op.reduce = CDP_REDUCE_BAND;
    REFUSED(CDP_ERR_INVALID, "max or product", cdp_op_rules(&c.op, c.in, 1, NULL, 0, &n));
    cdp_mesh *other = paper_mesh(1, (const uint32_t[]){3});
    c.in[1].mesh = other;
    c.op = EINSUM("mk,kn->mn", 2).op;
    REFUSED(CDP_ERR_INVALID, "another mesh", cdp_op_rules(&c.op, c.in, 2, NULL, 0, &n));
    cdp_mesh_destroy(other);
    cdp_mesh_destroy(m);
}

/* ---- the choice ---- */

static uint64_t plan_bytes(const cdp_layout *from, const cdp_layout *to, bool *possible) {
    const cdp_plan_desc d = {.from = *from, .to = *to, .kind = CDP_PLAN_DIRECT};
    cdp_plan *plan = NULL;
    for (uint32_t by = 0; by < to->mesh->desc.ndim; ++by)
        if (to->place[by].kind == CDP_PLACE_PARTIAL && from->place[by].kind != CDP_PLACE_PARTIAL)
            *possible = false;
    if (cdp_plan_create(&d, &plan) != CDP_OK) *possible = false;
    const uint64_t bytes = cdp_plan_info_of(plan).total_bytes;
    cdp_plan_destroy(plan);
    return bytes;
}

/* The least bytes over all rules without blocks of their own, by plans. */
static uint64_t least_bytes(const op_case *c, const cdp_layout *want) {
    static cdp_rule rules[CDP__DT_CANDIDATES];
    cdp__dt_rules r = {.out = rules, .max = CDP__DT_CANDIDATES};
    const uint32_t dims = c->in->mesh->desc.ndim;
    cdp_layout out;
    uint64_t least = UINT64_MAX;
    uint32_t total = 1;
    OK(cdp__dt_rules_of(&c->op, c->in, c->inputs, &r, &out));
    for (uint32_t by = 0; by < dims; ++by)
        total *= r.n;
    for (uint32_t i = 0; i < total; ++i) {
        uint64_t bytes = 0;
        uint32_t rest = i, picked[CDP_MESH_DIMS];
        bool possible = true;
        for (uint32_t by = 0; by < dims; ++by, rest /= r.n)
            picked[by] = rest % r.n;
        for (uint32_t by = 0; by < dims; ++by)
            out.place[by] = rules[picked[by]].out;
        for (uint32_t k = 0; possible && k < c->inputs; ++k) {
            cdp_layout need = c->in[k];
            for (uint32_t by = 0; by < dims; ++by)
                need.place[by] = rules[picked[by]].in[k];
            bytes += plan_bytes(&c->in[k], &need, &possible);
        }
        possible = possible && cdp_layout_check(&out) == CDP_OK;
        if (possible && want) bytes += plan_bytes(&out, want, &possible);
        if (possible && bytes < least) least = bytes;
    }
    return least;
}

static void random_layout(cdp_layout *l, uint64_t *state, bool partial) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        const uint64_t kind = test_random(state) % (partial ? 4 : 3);
        memset(&l->place[by], 0, sizeof l->place[by]);
        if (kind == 3) l->place[by].kind = CDP_PLACE_PARTIAL;
        if (kind == 1 || kind == 2) l->place[by].kind = CDP_PLACE_SHARD;
        if (l->ndim == 0 && kind < 3) l->place[by].kind = CDP_PLACE_REPLICATE;
        if (l->ndim) l->place[by].dim = (int32_t)(test_random(state) % l->ndim);
    }
}

TEST(the_cheapest_is_chosen) {
    op_case cases[6] = {shaped(EINSUM("mk,kn->mn", 2), "6x4", "4x8", "", ""),
        shaped(EINSUM("bmk,bkn->bmn", 2), "3x2x4", "3x4x5", "", ""),
        shaped(EINSUM("mk,kn+n->mn", 3), "5x3", "3x4", "4", ""),
        shaped(case_of("add", (cdp_op){.kind = CDP_OP_POINTWISE, .linear = CDP_LINEAR_ADD}, 2),
            "5x4", "4", "", ""),
        shaped(case_of("embedding", (cdp_op){.kind = CDP_OP_EMBEDDING}, 2), "7x3", "9", "", ""),
        view("6x4", "24")};
    uint64_t state = 12;
    uint32_t done = 0, moved = 0;
    for (uint32_t k = 0; k < 6; ++k)
        for (uint32_t i = 0; i < 60 && !test__now.failed_checks; ++i) {
            const uint32_t shape[2] = {2, 2 + i % 2};
            cdp_mesh *m = paper_mesh(2, shape);
            op_case c = cases[k];
            cdp_op_choice how;
            cdp_layout want;
            for (uint32_t j = 0; j < c.inputs; ++j) {
                c.in[j].mesh = m;
                random_layout(&c.in[j], &state, i % 3 == 0);
            }
            if (OK(cdp_op_choose(&c.op, c.in, c.inputs, NULL, NULL, &how))) {
                T(how.bytes <= least_bytes(&c, NULL));
                T(pieces_right(&c, &how));
                want = how.out;
                random_layout(&want, &state, false);
                if (OK(cdp_op_choose(&c.op, c.in, c.inputs, &want, NULL, &how))) {
                    T(how.bytes <= least_bytes(&c, &want));
                    T(pieces_right(&c, &how));
                    moved += how.bytes != 0;
                    bool possible = true; /* the bytes are those of the plans */
                    uint64_t bytes = plan_bytes(&how.out, &want, &possible);
                    for (uint32_t j = 0; j < c.inputs; ++j)
                        bytes += plan_bytes(&c.in[j], &how.in[j], &possible);
                    T(possible);
                    T_EQ(bytes, how.bytes);
                }
                ++done;
            }
            cdp_mesh_destroy(m);
        }
    printf("  %u choices, %u of them with messages\n", done, moved);
    T(done == 360 && moved > 100);
}

TEST(choices_that_everybody_expects) {
    const uint32_t four = 4;
    cdp_mesh *m = paper_mesh(1, &four);
    op_case c = shaped(EINSUM("tc,oc->to", 2), "64x32", "128x32", "", "");
    cdp_op_choice how;
    char text[40];
    c.in[0].mesh = c.in[1].mesh = m;
    OK(cdp_layout_parse(&c.in[1], "S0/32")); /* column parallel, heads of 32 */
    OK(cdp_op_choose(&c.op, c.in, 2, NULL, NULL, &how));
    (void)cdp_layout_text(&how.out, text, sizeof text);
    T_TEXT("S1/32", text);
    T_EQ(0, how.bytes);
    OK(cdp_layout_parse(&c.in[1], "S1"));
    OK(cdp_layout_parse(&c.in[0], "S1")); /* row parallel */
    OK(cdp_op_choose(&c.op, c.in, 2, NULL, NULL, &how));
    (void)cdp_layout_text(&how.out, text, sizeof text);
    T_TEXT("P", text);
    T_EQ(0, how.bytes);
    cdp_layout want = how.out; /* a sum of what is no sum: not possible */
    OK(cdp_layout_parse(&want, "P(max)"));
    REFUSED(CDP_ERR_UNSUPPORTED, "no rule of the operator",
        cdp_op_choose(&c.op, c.in, 2, &want, NULL, &how));
    want.shape[0] = 3;
    REFUSED(CDP_ERR_INVALID, "shape or dtype", cdp_op_choose(&c.op, c.in, 2, &want, NULL, &how));
    op_case v = view("6x4", "24");
    v.in[0].mesh = m;
    OK(cdp_layout_parse(&v.in[0], "S1"));
    OK(cdp_op_choose(&v.op, v.in, 1, NULL, NULL, &how));
    T(how.bytes > 0); /* a cut in the middle of rows cannot be viewed */
    cdp_mesh_destroy(m);
}

TEST(many_dimensions_are_improved_in_turn) {
    const uint32_t shape[4] = {2, 2, 2, 2};
    cdp_mesh *m = paper_mesh(4, shape);
    op_case c = shaped(EINSUM("bmk,bkn->bmn", 2), "8x8x8", "8x8x8", "", "");
    cdp_op_choice how;
    c.in[0].mesh = c.in[1].mesh = m;
    OK(cdp_layout_parse(&c.in[0], "S0,S1,R,S2"));
    OK(cdp_layout_parse(&c.in[1], "S0,R,S2,S1"));
    OK(cdp_op_choose(&c.op, c.in, 2, NULL, NULL, &how));
    T_EQ(0, how.bytes);
    char text[40];
    (void)cdp_layout_text(&how.out, text, sizeof text);
    T_TEXT("S0,S1,S2,P", text);
    cdp_mesh_destroy(m);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"matmul_and_einsum", matmul_and_einsum, 60},
        {"addmm_bias_once", addmm_bias_once, 60},
        {"elementwise_legality", elementwise_legality, 60},
        {"reductions_over_each_dim", reductions_over_each_dim, 60},
        {"softmax_and_norm", softmax_and_norm, 60},
        {"embedding_rows_and_columns", embedding_rows_and_columns, 60},
        {"attention_heads", attention_heads, 60},
        {"views_are_exact", views_are_exact, 60},
        {"own_rules_fit_each_input", own_rules_fit_each_input, 20},
        {"blocks_that_nest_go_together", blocks_that_nest_go_together, 20},
        {"custom_rules", custom_rules, 10},
        {"bad_operators_are_refused", bad_operators_are_refused, 10},
        {"the_cheapest_is_chosen", the_cheapest_is_chosen, 60},
        {"choices_that_everybody_expects", choices_that_everybody_expects, 10},
        {"many_dimensions_are_improved_in_turn", many_dimensions_are_improved_in_turn, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
