/*  test_dtensor.c - meshes, layouts, tensors and edges, with ranks as threads of this program */
#define CDP_IMPLEMENTATION
#define CDP__DT_WINDOW_BYTES 65536u /* see contributions_arrive_in_windows */
#include "cdp_dtensor.h"

#include "../unit/said.h"
#include "../unit/ranks.h"

/* A mesh on paper, as rank 0 sees it. */
static cdp_mesh *paper_mesh(uint32_t ndim, uint32_t a, uint32_t b, uint32_t c) {
    cdp_mesh *m = NULL;
    cdp_mesh_desc d = {
        .ndim = ndim, .shape = {a, b, c}, .paper_ranks = a * (b ? b : 1) * (c ? c : 1)};
    OK(cdp_mesh_create(&d, &m));
    return m;
}

static cdp_layout layout_of(
    const cdp_mesh *m, const char *places, uint32_t ndim, uint64_t a, uint64_t b, uint64_t c) {
    cdp_layout l = {.mesh = m, .ndim = ndim, .shape = {a, b, c}};
    OK(cdp_layout_parse(&l, places));
    return l;
}

/* ---- chunks and boxes ---- */

TEST(chunk_rule) {
    static const uint64_t rows[][6] = {{5, 4, 2, 2, 1, 0}, {6, 4, 2, 2, 2, 0}, {9, 4, 3, 3, 3, 0},
        {10, 4, 3, 3, 3, 1}, {1, 4, 1, 0, 0, 0}, {0, 4, 0, 0, 0, 0}};
    uint64_t start, sum;
    for (uint32_t k = 0; k < 6; ++k)
        for (uint32_t i = 0; i < 4; ++i)
            T_EQ(rows[k][2 + i], cdp__dt_chunk(rows[k][0], 1, 4, i, &start));
    for (uint64_t size = 0; size < 40; ++size)
        for (uint64_t block = 1; block < 6; ++block)
            for (uint32_t n = 1; n < 9; ++n) {
                sum = 0;
                for (uint32_t i = 0; i < n; ++i) {
                    const uint64_t got = cdp__dt_chunk(size, block, n, i, &start);
                    T_EQ(sum, start);
                    T(start == size || start % block == 0);
                    sum += got;
                }
                T_EQ(size, sum);
            }
    T_EQ(1ull << 60, cdp__dt_chunk((1ull << 62) - 1, 1ull << 60, 65535, 1, &start));
}

/* Which piece holds an element, found by walking through the dimensions with the rule of the
   text. */
static bool holds(const cdp_layout *l, const uint32_t *coord, const uint64_t *element) {
    uint32_t sequence[CDP_MESH_DIMS];
    uint64_t low[8] = {0}, size[8];
    for (uint32_t d = 0; d < l->ndim; ++d)
        size[d] = l->shape[d];
    uint32_t n = 0;
    for (uint32_t order = 0; order < 4; ++order)
        for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by)
            if (l->place[by].kind == CDP_PLACE_SHARD && l->place[by].order == order)
                sequence[n++] = by;
    for (uint32_t k = 0; k < n; ++k) {
        const uint32_t by = sequence[k], d = (uint32_t)l->place[by].dim;
        const uint64_t block = l->place[by].block ? l->place[by].block : 1;
        uint64_t blocks = 0, first = 0;
        while (blocks * block < size[d])
            ++blocks;
        uint64_t each = 0;
        while (each * l->mesh->desc.shape[by] < blocks)
            ++each;
        for (uint64_t x = 0; x < size[d]; ++x) { /* which piece each element is in */
            const uint64_t piece = x / block / each;
            if (piece < coord[by]) first = x + 1;
            if (piece == coord[by] && low[d] + x == element[d]) first |= 1ull << 63;
        }
        if (!(first >> 63)) return false;
        first &= ~(1ull << 63);
        uint64_t last = first;
        while (last < size[d] && last / block / each == coord[by])
            ++last;
        low[d] += first;
        size[d] = last - first;
    }
    for (uint32_t d = 0; d < l->ndim; ++d)
        if (element[d] < low[d] || element[d] >= low[d] + size[d]) return false;
    return true;
}

static void boxes_of(const cdp_layout *l) {
    const cdp_mesh *m = l->mesh;
    uint64_t total = 0, elements = 1, copies = 1;
    for (uint32_t d = 0; d < l->ndim; ++d)
        elements *= l->shape[d];
    for (uint32_t by = 0; by < m->desc.ndim; ++by)
        if (l->place[by].kind != CDP_PLACE_SHARD) copies *= m->desc.shape[by];
    for (uint32_t k = 0; k < m->count; ++k) {
        uint32_t coord[CDP_MESH_DIMS];
        cdp_box box;
        for (uint32_t by = 0; by < m->desc.ndim; ++by)
            coord[by] = k / m->stride[by] % m->desc.shape[by];
        const uint64_t n = cdp_layout_box(l, coord, &box);
        total += n;
        for (uint32_t d = 0; d < l->ndim; ++d)
            if (!box.size[d]) T_EQ(l->shape[d], box.start[d]);
        for (uint64_t e = 0; e < elements; ++e) {
            uint64_t at[8], rest = e;
            bool in = true;
            for (uint32_t d = l->ndim; d-- > 0; rest /= l->shape[d])
                at[d] = rest % l->shape[d];
            for (uint32_t d = 0; d < l->ndim; ++d)
                in = in && at[d] >= box.start[d] && at[d] < box.start[d] + box.size[d];
            if (!T(in == holds(l, coord, at))) return;
        }
    }
    T_EQ(elements * copies, total); /* disjoint, and nothing is missing */
}

TEST(boxes_against_brute_force) {
    static const char *const texts[] = {"S0,S0,R", "S0,S1,S0", "S0!2,S0!1,S0", "S1,S0!1,S0",
        "R,R,R", "S0/4,S0/2,S1", "P,S1,S1", "S0!1,R,S0/2"};
    const uint32_t shapes[4][3] = {{2, 2, 2}, {3, 2, 1}, {2, 4, 1}, {1, 3, 2}};
    for (uint32_t m = 0; m < 4; ++m) {
        cdp_mesh *mesh = paper_mesh(3, shapes[m][0], shapes[m][1], shapes[m][2]);
        for (uint64_t a = 0; a < 14; ++a)
            for (uint64_t b = 0; b < 6; ++b)
                for (uint32_t k = 0; k < sizeof texts / sizeof *texts && !test__now.failed_checks;
                     ++k) {
                    cdp_layout l = {.mesh = mesh, .ndim = 2, .shape = {a, b}};
                    const cdp_status st = cdp_layout_parse(&l, texts[k]);
                    if (k == 7 ? st == CDP_ERR_INVALID : OK(st)) {
                        if (st == CDP_OK) boxes_of(&l);
                    }
                }
        cdp_mesh_destroy(mesh);
    }
}

static void sizes_are(const cdp_mesh *m, const char *places, uint64_t n, const uint64_t *want) {
    const cdp_layout l = layout_of(m, places, 1, n, 0, 0);
    for (uint32_t k = 0; k < m->count; ++k) {
        const uint32_t coord[2] = {k / m->desc.shape[1], k % m->desc.shape[1]};
        T_EQ(want[k], cdp_layout_box(&l, coord, NULL));
    }
}

TEST(nested_chunks_and_orders) {
    cdp_mesh *a = paper_mesh(2, 2, 2, 0), *b = paper_mesh(2, 2, 4, 0), *c = paper_mesh(2, 3, 2, 0);
    sizes_are(a, "S0,S0", 5, (const uint64_t[]){2, 1, 1, 1});
    sizes_are(b, "S0,S0", 9, (const uint64_t[]){2, 2, 1, 0, 1, 1, 1, 1});
    sizes_are(c, "S0!1,S0", 7, (const uint64_t[]){2, 1, 2, 1, 0, 1}); /* tp first, then dp */
    cdp_layout l = layout_of(a, "S0!1,S0", 1, 8, 0, 0);
    const uint64_t starts[4] = {0, 4, 2, 6};
    for (uint32_t k = 0; k < 4; ++k) {
        cdp_box box;
        T_EQ(2, cdp_layout_box(&l, (const uint32_t[]){k / 2, k % 2}, &box));
        T_EQ(starts[k], box.start[0]);
    }
    l = layout_of(b, "S0,S0", 1, 2, 0,
        0); /* the empty piece of rank (0,1) does not look like that of (1,0) */
    cdp_box box;
    T_EQ(0, cdp_layout_box(&l, (const uint32_t[]){0, 1}, &box));
    T_EQ(2, box.start[0]);
    cdp_mesh_destroy(a);
    cdp_mesh_destroy(b);
    cdp_mesh_destroy(c);
}

TEST(texts_parse_back) {
    static const char *const good[] = {"R,R", "S0,R", "S1/64,P(max)", "S0!1,S0", "P,P", "P(avg),P",
        "S1!3/4,S1/8", "P(product),S1", "P(min),R"};
    cdp_mesh *m = paper_mesh(2, 2, 2, 0);
    char text[100];
    for (uint32_t k = 0; k < sizeof good / sizeof *good; ++k) {
        cdp_layout l = layout_of(m, good[k], 2, 256, 256, 0), back = l;
        T_EQ(strlen(text),
            cdp_layout_text(&l, text, sizeof text) - (cdp_layout_text(&l, NULL, 0) - strlen(text)));
        memset(back.place, 0xff, sizeof back.place);
        T(OK(cdp_layout_parse(&back, text)) && cdp_layout_same(&l, &back));
        char again[100];
        (void)cdp_layout_text(&back, again, sizeof again);
        T(strcmp(text, again) == 0);
    }
    cdp_layout l = layout_of(m, "S-1,S-2", 2, 4, 4, 0);
    T_EQ(5, cdp_layout_text(&l, text, sizeof text));
    T(strcmp(text, "S1,S0") == 0);
    T_EQ(5, cdp_layout_text(&l, text, 3));
    T(strcmp(text, "S1") == 0);
    cdp_mesh_destroy(m);
}

TEST(a_layout_needs_a_mesh_and_a_text) {
    cdp_mesh *m = paper_mesh(2, 2, 2, 0);
    cdp_layout l = {.mesh = m, .ndim = 2, .shape = {8, 8}}, without = {.ndim = 2};
    const cdp_layout *const layouts[] = {NULL, &without, &l};
    for (uint32_t k = 0; k < 3; ++k) {
        REFUSED(CDP_ERR_INVALID, "is NULL",
            cdp_layout_parse((cdp_layout *)layouts[k], k < 2 ? "R,R" : NULL));
        T_EQ(-1, cdp_last_error()->peer); /* nobody else is to blame */
    }
    cdp_mesh_destroy(m);
}

TEST(a_partial_is_a_sum_where_nothing_is_said) {
    cdp_mesh *m = paper_mesh(2, 2, 2, 0);
    cdp_layout l = layout_of(m, "P,R", 2, 8, 8, 0);
    T_EQ(CDP_REDUCE_SUM, l.place[0].op);
    OK(cdp_layout_parse(&l, "P(avg),P(avg)"));
    T_EQ(CDP_REDUCE_AVG, l.place[0].op);
    OK(cdp_layout_parse(&l, "R,P"));
    T_EQ(CDP_REDUCE_SUM, l.place[1].op);
    cdp_mesh_destroy(m);
}

TEST(bad_layouts_are_refused) {
    static const char *const bad[] = {"", "S0", "S0,R,R", "S2,R", "S-3,R", "X,R", "S,R",
        "P(band),R", "P(,R", "S0/0,R", "S0//2,R", "R R", "S0/99999999999999999999,R", "S0/3,S0/2",
        "S0,S0/2", "R,R,"};
    cdp_mesh *m = paper_mesh(2, 2, 2, 0);
    cdp_layout l = {.mesh = m, .ndim = 2, .shape = {8, 8}}, before;
    for (uint32_t k = 0; k < sizeof bad / sizeof *bad; ++k) {
        const cdp_status st = cdp_layout_parse(&l, bad[k]);
        test_check(
            st == CDP_ERR_INVALID, __FILE__, __LINE__, "\"%s\" is %s", bad[k], cdp_status_name(st));
    }
    before = (cdp_layout){.mesh = m, .ndim = 2, .shape = {8, 8}};
    REFUSED(CDP_ERR_INVALID, "at character 3", cdp_layout_parse(&before, "S0,X"));
    REFUSED(CDP_ERR_UNSUPPORTED, "only sum and avg", cdp_layout_parse(&before, "P(max),P"));
    REFUSED(CDP_ERR_UNSUPPORTED, "only sum and avg", cdp_layout_parse(&before, "P(avg),P(min)"));
    before.dtype = CDP_DTYPE_BOOL;
    REFUSED(CDP_ERR_UNSUPPORTED, "no avg of bool", cdp_layout_parse(&before, "P(avg),R"));
    before = (cdp_layout){.mesh = m, .ndim = 3, .shape = {1ull << 31, 1ull << 31, 2}};
    REFUSED(CDP_ERR_INVALID, "2^63 bytes", cdp_layout_check(&before));
    before = (cdp_layout){.mesh = m, .ndim = 9};
    REFUSED(CDP_ERR_INVALID, "ndim 9", cdp_layout_check(&before));
    before = (cdp_layout){.ndim = 1};
    REFUSED(CDP_ERR_INVALID, "mesh is NULL", cdp_layout_check(&before));
    cdp_mesh_destroy(m);
}

TEST(own_cuts) {
    cdp_mesh *m = paper_mesh(2, 2, 3, 0);
    const uint64_t sizes[3] = {5, 0, 2}, wrong[3] = {1, 1, 1};
    uint32_t cut, other;
    cdp_box box;
    OK(cdp_mesh_cut(m, 1, sizes, &cut));
    OK(cdp_mesh_cut(m, 1, wrong, &other));
    cdp_layout l = {.mesh = m, .ndim = 1, .shape = {7}};
    l.place[1].kind = CDP_PLACE_SHARD;
    l.place[1].cut = cut;
    OK(cdp_layout_check(&l));
    T_EQ(5, cdp_layout_box(&l, (const uint32_t[]){1, 0}, &box));
    T_EQ(0, cdp_layout_box(&l, (const uint32_t[]){1, 1}, &box));
    T_EQ(7, box.start[0]);
    T_EQ(2, cdp_layout_box(&l, (const uint32_t[]){1, 2}, &box));
    T_EQ(5, box.start[0]);
    char text[20];
    (void)cdp_layout_text(&l, text, sizeof text);
    T(strcmp(text, "R,S0#1") == 0);
    OK(cdp_layout_parse(&l, text));
    l.place[1].cut = other;
    REFUSED(CDP_ERR_INVALID, "add up", cdp_layout_check(&l));
    l.place[1].cut = 7;
    REFUSED(CDP_ERR_INVALID, "no such number", cdp_layout_check(&l));
    REFUSED(CDP_ERR_INVALID, "another mesh dimension", cdp_layout_parse(&l, "S0,S0#1"));
    REFUSED(CDP_ERR_INVALID, "no dimension 2", cdp_mesh_cut(m, 2, sizes, &cut));
    REFUSED(CDP_ERR_INVALID, "cdp_mesh_cut: cut is NULL", cdp_mesh_cut(m, 0, sizes, NULL));
    REFUSED(
        CDP_ERR_INVALID, "2^62", cdp_mesh_cut(m, 1, (const uint64_t[]){1ull << 62, 0, 0}, &cut));
    cdp_mesh_destroy(m);
}

/* ---- PyTorch's steps ---- */

static void torch_counts(const cdp_mesh *m, const char *from, const char *to, uint32_t want) {
    const cdp_layout a = layout_of(m, from, 3, 16, 16, 16), b = layout_of(m, to, 3, 16, 16, 16);
    cdp_layout steps[CDP__DT_STEPS];
    const uint32_t n = cdp__dt_torch_steps(&a, &b, steps);
    uint32_t talks = 0;
    for (uint32_t k = 0; k + 1 < n; ++k)
        talks += cdp__dt_torch_talks(&steps[k], &steps[k + 1]);
    test_check(talks == want, __FILE__, __LINE__, "%s -> %s: %u collectives, not %u", from, to,
        talks, want);
}

TEST(torch_step_counts) {
    cdp_mesh *a = paper_mesh(2, 2, 2, 0), *b = paper_mesh(3, 2, 2, 2);
    torch_counts(a, "S0,S1", "S0,S0", 1);
    torch_counts(a, "S0,S1", "S1,S0", 2);
    torch_counts(a, "S0,S0", "S1,S1", 2);
    torch_counts(a, "S0,S2", "S1,S0", 2);
    torch_counts(a, "S1,S1", "S1,S2", 1);
    torch_counts(a, "R,R", "S0,S1", 0);
    torch_counts(a, "P,R", "R,R", 1);
    torch_counts(b, "S0,S0,S0", "S1,S1,S1", 3);
    torch_counts(b, "S0,S1,S0", "S1,S0,S0", 3);
    torch_counts(b, "S0,S1,S2", "S2,S1,S0", 2);
    torch_counts(b, "S1,S0,S0", "R,S0,S0", 1);
    torch_counts(b, "S1,R,S0", "R,S0,S0", 2);
    torch_counts(b, "S0,S0,S1", "S0,S1,S2", 2);
    cdp_mesh_destroy(a);
    cdp_mesh_destroy(b);
}

static cdp_plan_info info_of(const cdp_mesh *m, const char *from, const char *to, uint64_t a,
    uint64_t b, cdp_plan_kind kind) {
    cdp_plan_desc d = {
        .kind = kind, .from = layout_of(m, from, 2, a, b, 0), .to = layout_of(m, to, 2, a, b, 0)};
    cdp_plan *plan = NULL;
    cdp_plan_info info = {0};
    if (OK(cdp_plan_create(&d, &plan))) info = cdp_plan_info_of(plan);
    cdp_plan_destroy(plan);
    return info;
}

/* The table of what PyTorch's steps and the bound make the busiest rank receive, as parts of the
   tensor (x 64). */
TEST(torch_bytes_beside_the_bound) {
    static const struct {
        const char *from, *to;
        double greedy, bound;
    } rows[] = {{"S0,S1", "S1,S0", 0.625, 0.125}, {"S0,S0", "S1,S1", 0.625, 0.109375},
        {"S1,S0", "S0,S0", 0.625, 0.125}, {"S0,S0", "R,S0", 0.875, 0.25},
        {"S0,R", "R,S0", 0.5, 0.25}, {"R,S0", "S0,R", 0.75, 0.5}, {"S0,S0", "S1,R", 0.625, 0.4375},
        {"S0,S1", "S0,S0", 0.09375, 0.09375}, {"S0,S1", "R,R", 0.875, 0.875},
        {"R,S0", "S1,S1", 0.75, 0.09375}};
    cdp_mesh *m = paper_mesh(2, 2, 4, 0);
    const double bytes = 64.0 * 64 * 4;
    for (uint32_t k = 0; k < sizeof rows / sizeof *rows; ++k) {
        const cdp_plan_info i = info_of(m, rows[k].from, rows[k].to, 64, 64, CDP_PLAN_DIRECT);
        test_check(i.most_recv_bytes == rows[k].bound * bytes
                && i.torch_bytes == 8 * rows[k].greedy * bytes,
            __FILE__, __LINE__, "%s -> %s: busiest %g, torch's mean %g", rows[k].from, rows[k].to,
            (double)i.most_recv_bytes / bytes, (double)i.torch_bytes / 8 / bytes);
    }
    cdp_mesh_destroy(m);
}

/* The figure for the busiest rank beside the plans of all ranks. */
TEST(the_busiest_rank_is_exact) {
    static const char *const pairs[][2] = {{"P,P", "R,R"}, {"P,R", "R,R"}, {"P,S0", "S0,R"},
        {"P,S0", "R,S0"}, {"P,S0", "P,R"}, {"S0,P", "S1,S0"}, {"P,P", "S0,S1"}, {"R,P", "S0,R"},
        {"S1,P(max)", "R,S0"}, {"S0,S1", "S1,S0"}};
    for (uint32_t k = 0; k < sizeof pairs / sizeof *pairs; ++k) {
        uint64_t most = 0, said = 0;
        for (uint32_t rank = 0; rank < 6; ++rank) {
            cdp_mesh *m;
            cdp_plan *p;
            const cdp_mesh_desc md = {
                .ndim = 2, .shape = {2, 3}, .paper_ranks = 6, .paper_rank = rank};
            OK(cdp_mesh_create(&md, &m));
            const cdp_plan_desc d = {.from = layout_of(m, pairs[k][0], 2, 5, 7, 0),
                .to = layout_of(m, pairs[k][1], 2, 5, 7, 0),
                .kind = CDP_PLAN_DIRECT};
            OK(cdp_plan_create(&d, &p));
            const cdp_plan_info info = cdp_plan_info_of(p);
            if (rank) T_EQ(said, info.most_recv_bytes);
            said = info.most_recv_bytes;
            if (info.recv_bytes > most) most = info.recv_bytes;
            cdp_plan_destroy(p);
            cdp_mesh_destroy(m);
        }
        test_check(said == most, __FILE__, __LINE__, "%s -> %s: %llu bytes, said %llu", pairs[k][0],
            pairs[k][1], (unsigned long long)most, (unsigned long long)said);
    }
}

/* As many ranks as there may be: figures do not wrap, nothing takes a square of them. */
TEST(figures_and_pictures_of_many_ranks) {
    static char text[1 << 20];
    const uint64_t start = cdp_os_default()->now_ns(cdp_os_default()->user);
    cdp_mesh *m = paper_mesh(1, 65535, 0, 0), *square = paper_mesh(2, 128, 128, 0);
    cdp_mesh *a, *b, *both;
    cdp_plan *p;
    cdp_plan_desc d = {
        .from = layout_of(m, "P", 2, 1024, 1024, 0), .to = layout_of(m, "R", 2, 1024, 1024, 0)};
    OK(cdp_plan_create(&d, &p));
    T_EQ(2ull * 65534 * 1024 * 1024 * 4, cdp_plan_info_of(p).torch_bytes);
    T_EQ(cdp_plan_info_of(p).torch_bytes, cdp_plan_info_of(p).bound_bytes);
    cdp_plan_destroy(p);
    d.from.shape[0] = d.to.shape[0] = 1ull << 40;
    OK(cdp_plan_create(&d, &p));
    T(cdp_plan_info_of(p).torch_bytes == UINT64_MAX); /* more than 64 bits */
    T(cdp_plan_info_of(p).bound_bytes == UINT64_MAX);
    T(cdp_plan_info_of(p).total_bytes == UINT64_MAX);
    cdp_plan_destroy(p);
    const cdp_layout tall = layout_of(m, "S0", 1, 1 << 20, 0, 0);
    const cdp_layout tiles = layout_of(square, "S0,S1", 2, 1000, 1000, 0);
    T(cdp_layout_draw(&tall, CDP_DRAW_TEXT, text, sizeof text) > 100000);
    T(cdp_layout_draw(&tiles, CDP_DRAW_SVG, text, sizeof text) > 100000);
    OK(cdp_mesh_sub(square, "0", &a));
    OK(cdp_mesh_sub(square, "1", &b));
    OK(cdp_mesh_join(a, b, &both));
    T_EQ(16384, cdp_mesh_size(both, CDP_NO_DIM));
    T(cdp_mesh_rank_at(both, (uint32_t[]){127, 5}) == 127 * 128 + 5);
    cdp_mesh_destroy(both);
    cdp_mesh_destroy(a);
    cdp_mesh_destroy(b);
    cdp_mesh_destroy(m);
    cdp_mesh_destroy(square);
    T_WITHIN(4000, cdp_os_default()->now_ns(cdp_os_default()->user) - start);
}

/* A plan that is one collective of contiguous memory, and the nearest ones that are none. */
TEST(plans_that_are_one_collective) {
    static const struct {
        uint32_t ndim, shape[2], hosts;
        const char *from, *to;
        uint64_t size[2];
        cdp_coll_kind kind;
        uint64_t count;
    } rows[] = {{1, {4}, 0, "P", "R", {5, 7}, CDP_COLL_ALLREDUCE, 35},
        {1, {4}, 2, "P(avg)", "R", {1, 1}, CDP_COLL_ALLREDUCE, 1},
        {1, {4}, 0, "S0", "R", {8, 7}, CDP_COLL_ALLGATHER, 14},
        {1, {4}, 0, "P(max)", "S0", {8, 7}, CDP_COLL_REDUCE_SCATTER, 14},
        {1, {4}, 0, "S1", "R", {1, 8}, CDP_COLL_ALLGATHER, 2},
        {2, {2, 3}, 0, "P,P", "R,R", {5, 7}, CDP_COLL_ALLREDUCE, 35},
        {2, {2, 3}, 0, "S0,S0", "R,R", {6, 2}, CDP_COLL_ALLGATHER, 2},
        {2, {2, 3}, 0, "P,P", "S0,S0", {12, 2}, CDP_COLL_REDUCE_SCATTER, 4},
        {2, {1, 3}, 0, "S1,P", "R,R", {12, 2}, CDP_COLL_ALLREDUCE, 24},
        {1, {4}, 0, "S0", "R", {7, 8}, CDP_COLL_NONE, 0}, /* uneven */
        {1, {4}, 0, "S0", "R", {3, 8}, CDP_COLL_NONE, 0}, /* the last piece is empty */
        {1, {4}, 0, "S1", "R", {8, 8}, CDP_COLL_NONE, 0}, /* columns */
        {1, {4}, 0, "P", "S1", {8, 8}, CDP_COLL_NONE, 0},
        {1, {4}, 0, "P", "P", {8, 8}, CDP_COLL_NONE, 0},
        {1, {4}, 0, "S0", "P", {8, 8}, CDP_COLL_NONE, 0},
        {1, {4}, 0, "P", "R", {0, 8}, CDP_COLL_NONE, 0},
        {1, {1}, 0, "P", "R", {8, 8}, CDP_COLL_NONE, 0},
        /* along one dimension */
        {2, {2, 3}, 0, "P,R", "R,R", {6, 6}, CDP_COLL_ALLREDUCE, 36},
        {2, {2, 3}, 3, "S0,P", "S0,R", {6, 6}, CDP_COLL_ALLREDUCE, 18},
        {2, {2, 3}, 3, "P,S0", "R,S0", {6, 6}, CDP_COLL_ALLREDUCE, 12},
        {2, {2, 3}, 2, "S0,P", "S0,R", {6, 6}, CDP_COLL_NONE, 0}, /* rows leave hosts unevenly */
        {2, {2, 3}, 0, "P(avg),S0", "R,S0", {6, 6}, CDP_COLL_ALLREDUCE, 12},
        {2, {2, 3}, 0, "P,P", "P,R", {6, 6}, CDP_COLL_ALLREDUCE, 36},
        {2, {2, 3}, 0, "S0,P", "S0,R", {5, 7}, CDP_COLL_ALLREDUCE, 21}, /* 14 in the other row */
        {2, {2, 3}, 0, "S0,P", "S0,R", {1, 7}, CDP_COLL_ALLREDUCE, 7},  /* 0 */
        {2, {2, 3}, 0, "S1,P", "S1,S0", {6, 4}, CDP_COLL_REDUCE_SCATTER, 4},
        {2, {2, 3}, 0, "S0,S0", "S0,R", {12, 2}, CDP_COLL_ALLGATHER, 4},
        {2, {2, 3}, 0, "S0!1,S0", "R,S0", {12, 2}, CDP_COLL_ALLGATHER, 4},
        {2, {2, 3}, 0, "P,S0", "P,R", {12, 2}, CDP_COLL_ALLGATHER, 8},
        {2, {2, 3}, 0, "R,P", "R,R", {6, 6}, CDP_COLL_NONE, 0}, /* messages take fewer bytes */
        {2, {2, 3}, 0, "S0,S0", "R,S0", {12, 2}, CDP_COLL_NONE, 0},
        {2, {2, 3}, 0, "S0,S1", "S0,R", {6, 6}, CDP_COLL_NONE, 0},
        {2, {2, 3}, 0, "S0,S0", "S0,R", {9, 2}, CDP_COLL_NONE, 0},
        {2, {2, 3}, 0, "P,P", "R,S0", {6, 6}, CDP_COLL_NONE, 0},
        {2, {2, 3}, 0, "P,P(avg)", "R,R", {6, 6}, CDP_COLL_NONE, 0},
        {2, {2, 3}, 0, "S0!1,S0", "R,R", {6, 2}, CDP_COLL_NONE, 0}}; /* another order */
    for (uint32_t k = 0; k < sizeof rows / sizeof *rows; ++k) {
        const cdp_mesh_desc md = {
            .paper_ranks = rows[k].shape[0] * (rows[k].ndim > 1 ? rows[k].shape[1] : 1),
            .ndim = rows[k].ndim,
            .shape = {rows[k].shape[0], rows[k].shape[1]},
            .host_ranks = rows[k].hosts};
        cdp_mesh *m;
        cdp_plan *p;
        if (!OK(cdp_mesh_create(&md, &m))) return;
        const cdp_plan_desc d = {
            .from = layout_of(m, rows[k].from, 2, rows[k].size[0], rows[k].size[1], 0),
            .to = layout_of(m, rows[k].to, 2, rows[k].size[0], rows[k].size[1], 0)};
        if (!OK(cdp_plan_create(&d, &p))) return;
        test_check(
            cdp_plan_info_of(p).collective == rows[k].kind && p->single.count == rows[k].count,
            __FILE__, __LINE__, "%s -> %s: %s of %llu", rows[k].from, rows[k].to,
            cdp_coll_name(p->single.kind), (unsigned long long)p->single.count);
        cdp_plan_destroy(p);
        cdp_mesh_destroy(m);
    }
}

/* An allreduce is cut by elements, whatever the rows are, and its prediction knows of rounds. */
TEST(figures_of_a_sum_of_many_ranks) {
    cdp_mesh *m = paper_mesh(1, 65535, 0, 0);
    const uint64_t elements = 1024 * 1024, part = elements / 65535 + 1;
    const cdp_plan_info i = info_of(m, "P", "R", 1024, 1024, CDP_PLAN_BEST);
    T_EQ(CDP_COLL_ALLREDUCE, i.collective);
    T_EQ((65534 * part + elements - part) * 4, i.most_recv_bytes);
    T_EQ(i.most_recv_bytes, i.recv_bytes);
    T_EQ(i.recv_bytes, i.send_bytes);
    T_EQ(2 * 65534, i.messages);
    T_EQ(0, i.scratch_bytes);
    T(i.predicted_us > 2 * 16 * 3 && i.predicted_us < 2 * 16 * 3 + 10000);
    cdp_mesh_destroy(m);
}

/* Sums that are no single collective, of thousands of ranks: their messages grow as the dimensions
   of the mesh do, or the logarithm; so does the time. */
TEST(sums_of_many_ranks_are_collectives_along_dimensions) {
    static const struct {
        uint32_t shape[3];
        const char *from, *to;
        uint32_t messages; /* of rank 0, at most */
        double us, factor; /* of the least bytes */
    } rows[] = {{{256, 255, 0}, "P,R", "R,R", 2 * 255 + 254, 1200, 1.001},
        {{256, 255, 0}, "P,S0", "R,R", 2 * 255 + 254, 2100, 1.001},
        {{256, 255, 0}, "P,S0", "S0,R", 2 * 255 + 10, 150, 1.6},
        {{256, 255, 0}, "S0,P", "S1,R", 2 * 254 + 256, 600, 1.6},
        {{51, 5, 257}, "P,P,R", "R,R,R", 50 + 8 + 50 + 256, 1200, 1.001},
        {{255, 257, 0}, "P,P(avg)", "R,R", 2 * 65534, 4000, 1.001}};
    for (uint32_t k = 0; k < sizeof rows / sizeof *rows; ++k) {
        const uint32_t *n = rows[k].shape, ndim = n[2] ? 3 : 2;
        const cdp_mesh_desc md = {.paper_ranks = n[0] * n[1] * (n[2] ? n[2] : 1),
            .ndim = ndim,
            .shape = {n[0], n[1], n[2]}};
        cdp_mesh *m;
        if (!OK(cdp_mesh_create(&md, &m))) return;
        const cdp_plan_info i = info_of(m, rows[k].from, rows[k].to, 1024, 1024, CDP_PLAN_BEST);
        test_check(i.calls && i.messages <= rows[k].messages && i.predicted_us < rows[k].us
                && (double)i.total_bytes <= rows[k].factor * (double)i.bound_bytes,
            __FILE__, __LINE__, "%s -> %s: %u calls, %u messages, %.0f us, %g bytes", rows[k].from,
            rows[k].to, i.calls, i.messages, i.predicted_us,
            (double)i.total_bytes / (double)i.bound_bytes);
        if (k == 0) T(info_of(m, "P,R", "R,R", 1024, 1024, CDP_PLAN_DIRECT).predicted_us > 50000);
        cdp_mesh_destroy(m);
    }
}

/* Few ranks and little memory: what was chosen before is kept unless it is predicted to be slower.
   The decision is said. */
TEST(small_sums_stay_messages) {
    cdp_mesh *m = paper_mesh(2, 2, 2, 0);
    T_EQ(0, info_of(m, "P,R", "R,R", 4, 4, CDP_PLAN_BEST).calls);
    for (uint32_t rows = 1; rows < 5000; rows *= 5) {
        const cdp_plan_info best = info_of(m, "P,S0", "S0,R", rows, 7, CDP_PLAN_BEST);
        T(best.predicted_us <= info_of(m, "P,S0", "S0,R", rows, 7, CDP_PLAN_DIRECT).predicted_us);
        T(best.predicted_us <= info_of(m, "P,S0", "S0,R", rows, 7, CDP_PLAN_BY_DIM).predicted_us);
    }
    cdp_mesh_destroy(m);
}

/* Gathers, reductions and scatters over both dimensions are one step each. */
TEST(merged_steps) {
    cdp_mesh *m = paper_mesh(2, 2, 2, 0);
    T_EQ(2,
        info_of(m, "P,P", "R,R", 9, 5, CDP_PLAN_BY_DIM).steps); /* its two phases: reduce, spread */
    T_EQ(1, info_of(m, "S0,S0", "R,R", 9, 5, CDP_PLAN_BY_DIM).steps);
    T_EQ(1, info_of(m, "P,P", "S0,S0", 9, 5, CDP_PLAN_BY_DIM).steps);
    T_EQ(4, info_of(m, "P,P", "R,R", 9, 5, CDP_PLAN_TORCH).steps);
    T_EQ(2, info_of(m, "S0,S0", "R,R", 9, 5, CDP_PLAN_TORCH).steps);
    T_EQ(2, info_of(m, "P,P(avg)", "R,R", 9, 5, CDP_PLAN_DIRECT).steps);
    T_EQ(0, info_of(m, "R,R", "S0,S1", 9, 5, CDP_PLAN_DIRECT).steps);
    T_EQ(0, info_of(m, "R,R", "R,R", 9, 5, CDP_PLAN_DIRECT).steps);
    T_EQ(1, info_of(m, "S0,S0", "R,S0", 9, 5, CDP_PLAN_DIRECT).steps);
    cdp_mesh_destroy(m);
    m = paper_mesh(2, 1, 1, 0); /* dimensions of one rank: nothing to do */
    T_EQ(0, info_of(m, "S0,P", "R,S1", 9, 5, CDP_PLAN_DIRECT).steps);
    T_EQ(0, info_of(m, "S0,P", "R,S1", 9, 5, CDP_PLAN_TORCH).torch_bytes);
    cdp_mesh_destroy(m);
}

TEST(bad_plans_are_refused) {
    cdp_mesh *m = paper_mesh(2, 2, 2, 0);
    cdp_plan *plan;
    cdp_plan_desc d = {
        .from = layout_of(m, "R,R", 2, 4, 4, 0), .to = layout_of(m, "P,R", 2, 4, 4, 0)};
    REFUSED(CDP_ERR_UNSUPPORTED, "the target is PARTIAL (sum) in mesh dimension 0",
        cdp_plan_create(&d, &plan));
    d.from = layout_of(m, "P(max),R", 2, 4, 4, 0);
    REFUSED(CDP_ERR_UNSUPPORTED, "the target is PARTIAL", cdp_plan_create(&d, &plan));
    d.to = layout_of(m, "S0,R", 2, 4, 5, 0);
    REFUSED(CDP_ERR_INVALID, "the same shape", cdp_plan_create(&d, &plan));
    d.to = layout_of(m, "S0,R", 2, 4, 4, 0);
    d.to.dtype = CDP_DTYPE_F64;
    REFUSED(CDP_ERR_INVALID, "the same shape and dtype", cdp_plan_create(&d, &plan));
    d.to = layout_of(m, "S0,R", 2, 4, 4, 0);
    d.to_one = true;
    REFUSED(CDP_ERR_INVALID, "must be replicated", cdp_plan_create(&d, &plan));
    d.to = layout_of(m, "R,R", 2, 4, 4, 0);
    d.root = 4;
    REFUSED(CDP_ERR_INVALID, "root 4", cdp_plan_create(&d, &plan));
    d.root = 3;
    if (OK(cdp_plan_create(&d, &plan))) {
        REFUSED(CDP_ERR_STATE, "on paper", cdp_plan_run(plan, NULL, NULL));
        cdp_plan_destroy(plan);
    }
    cdp_mesh_destroy(m);
}

/* ---- meshes ---- */

#define RUN(n, name) run_counted(n, name, NULL)

static void mesh_shapes(cdp_group *g, void *arg) {
    (void)arg;
    cdp_mesh_desc d = {.group = g, .ndim = 2, .shape = {2, 0}, .names = {"dp", "tp"}};
    cdp_mesh *m, *s;
    const uint32_t me = cdp_rank(g);
    if (!OK(cdp_mesh_create(&d, &m))) return;
    T_EQ(4, cdp_mesh_size(m, 1));
    T_EQ(8, cdp_mesh_size(m, CDP_NO_DIM));
    T_EQ(0, cdp_mesh_size(m, 2));
    T_EQ(me / 4, cdp_mesh_coord(m, 0));
    T_EQ(me % 4, cdp_mesh_coord(m, cdp_mesh_dim(m, "tp")));
    T_EQ(CDP_NO_DIM, cdp_mesh_dim(m, "cp"));
    T_EQ(6, cdp_mesh_rank_at(m, (const uint32_t[]){1, 2}));
    T_EQ(CDP_NO_DIM, cdp_mesh_rank_at(m, (const uint32_t[]){2, 0}));
    T_EQ(2, cdp_size(cdp_mesh_group(m, 0)));
    T_EQ(me % 4, cdp_rank(cdp_mesh_group(m, 1)));
    T_EQ(8, cdp_mesh_desc_of(m)->ndim * 4);
    float x = (float)me;
    OK(cdp_allreduce(cdp_mesh_group(m, 0), NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(x == (float)(2 * (me % 4) + 4));
    if (OK(cdp_mesh_sub(m, "tp", &s))) { /* a row of its own groups */
        T_EQ(4, cdp_mesh_size(s, CDP_NO_DIM));
        T_EQ(me % 4, cdp_mesh_coord(s, 0));
        T_EQ(me / 4 * 4 + 1, cdp_mesh_rank_at(s, (const uint32_t[]){1}));
        T(cdp_mesh_group(s, 0) == cdp_mesh_group(m, 1)); /* no new group */
        cdp_mesh_destroy(s);
    }
    if (OK(cdp_mesh_sub(m, "tp,dp", &s))) { /* in any order */
        T_EQ(4, cdp_mesh_size(s, 0));
        T_EQ(me % 4, cdp_mesh_coord(s, 0));
        cdp_mesh_destroy(s);
    }
    REFUSED(CDP_ERR_INVALID, "no dimension \"xx\"", cdp_mesh_sub(m, "xx", &s));
    REFUSED(CDP_ERR_INVALID, "named twice", cdp_mesh_sub(m, "tp,tp", &s));
    cdp_mesh_destroy(m);
}

TEST(mesh_shape_and_coordinates) {
    RUN(8, mesh_shapes);
}

static void mesh_parts(cdp_group *g, void *arg) {
    (void)arg;
    cdp_mesh_desc d = {.group = g, .ndim = 3, .shape = {2, 2, 2}, .names = {"dp", "cp", "tp"}};
    cdp_mesh *m, *a, *b, *c;
    const uint32_t me = cdp_rank(g);
    if (!OK(cdp_mesh_create(&d, &m))) return;
    if (OK(cdp_mesh_sub(m, "dp,tp", &a))) { /* not adjacent */
        T_EQ(me >> 2, cdp_mesh_coord(a, 0));
        T_EQ(me & 1, cdp_mesh_coord(a, 1));
        if (OK(cdp_mesh_sub(a, "tp", &b))) { /* of a slice */
            T_EQ(2, cdp_mesh_size(b, CDP_NO_DIM));
            cdp_mesh_destroy(b);
        }
        cdp_mesh_destroy(a);
    }
    OK(cdp_mesh_flatten(m, "dp,cp", "dpcp", &a));
    OK(cdp_mesh_flatten(m, "dp,cp", "again", &c));
    T(cdp_mesh_group(a, 0) == cdp_mesh_group(c, 0)); /* groups are kept */
    cdp_mesh_destroy(c);
    T_EQ(me >> 1, cdp_mesh_coord(a, 0));
    OK(cdp_mesh_flatten(m, "dp,tp", "dptp", &b)); /* not adjacent */
    T_EQ((me >> 2) * 2 + (me & 1), cdp_mesh_coord(b, 0));
    cdp_mesh_destroy(b);
    OK(cdp_mesh_sub(m, "tp", &b));
    if (OK(cdp_mesh_join(a, b, &c))) {
        T_EQ(4, cdp_mesh_size(c, 0));
        T_EQ(me, cdp_mesh_coord(c, CDP_NO_DIM));
        for (uint32_t r = 0; r < 8; ++r)
            T_EQ(r, cdp_mesh_rank_at(c, (const uint32_t[]){r / 2, r % 2}));
        const char *const names[2] = {"dp", "cp"};
        cdp_mesh *back;
        if (OK(cdp_mesh_unflatten(c, "dpcp", 2, (const uint32_t[]){2, 2}, names, &back))) {
            T_EQ(me >> 1 & 1, cdp_mesh_coord(back, cdp_mesh_dim(back, "cp")));
            T(cdp_mesh_group(back, 1) == cdp_mesh_group(m, 1));
            cdp_mesh_destroy(back);
        }
        REFUSED(CDP_ERR_INVALID, "but \"dpcp\" has 4",
            cdp_mesh_unflatten(c, "dpcp", 2, (const uint32_t[]){2, 3}, names, &back));
        cdp_mesh_destroy(c);
    }
    REFUSED(CDP_ERR_INVALID, "share a dimension", cdp_mesh_join(m, a, &c));
    cdp_mesh_destroy(m); /* parts stay */
    float x = 1;
    OK(cdp_allreduce(cdp_mesh_group(a, 0), NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(x == 4);
    cdp_mesh_destroy(a);
    cdp_mesh_destroy(b);
}

TEST(mesh_slices_flatten_join_unflatten) {
    RUN(8, mesh_parts);
}

/* Fewer ranks than the group has: the others do nothing. */
static void mesh_small(cdp_group *g, void *arg) {
    (void)arg;
    const uint32_t ranks[4] = {4, 2, 1, 0};
    cdp_mesh_desc d = {.group = g, .ndim = 2, .shape = {2, 2}, .ranks = ranks};
    cdp_mesh *m;
    const uint32_t me = cdp_rank(g);
    uint32_t at = CDP_NO_DIM;
    for (uint32_t i = 0; i < 4; ++i)
        if (ranks[i] == me) at = i;
    if (!OK(cdp_mesh_create(&d, &m))) return;
    T_EQ(at, cdp_mesh_coord(m, CDP_NO_DIM));
    T_EQ(at == CDP_NO_DIM ? CDP_NO_DIM : at % 2, cdp_mesh_coord(m, 1));
    T((cdp_mesh_group(m, 0) == NULL) == (at == CDP_NO_DIM));
    T_EQ(2, cdp_mesh_rank_at(m, (const uint32_t[]){0, 1}));
    cdp_dtensor a, b;
    cdp_layout l = {.mesh = m, .ndim = 1, .shape = {8}};
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    OK(cdp_layout_parse(&l, "S0,R"));
    OK(cdp_dtensor_create(&l, NULL, &a));
    OK(cdp_layout_parse(&l, "R,S0"));
    OK(cdp_dtensor_create(&l, NULL, &b));
    OK(cdp_dtensor_fill(&a, &ramp));
    OK(cdp_redistribute(&a, &b));
    OK(cdp_dtensor_check(&b, false));
    if (at != CDP_NO_DIM) T(((float *)b.data)[1] == (float)(at % 2 * 4 + 1));
    cdp_box box;
    T_EQ(at == CDP_NO_DIM ? 0 : 4, cdp_layout_box(&l, NULL, &box));
    cdp_dtensor_free(&a);
    cdp_dtensor_free(&b);
    cdp_mesh_destroy(m);
}

TEST(mesh_of_fewer_ranks) {
    RUN(5, mesh_small);
}

static void mesh_groups(cdp_group *g, void *arg) {
    (void)arg;
    const uint32_t me = cdp_rank(g), rows[2][2] = {{0, 1}, {2, 3}},
                   columns[2][2] = {{0, 2}, {1, 3}};
    cdp_group *dims[2], *wrong[2];
    cdp_mesh *m;
    OK(cdp_group_new(g, columns[me % 2], 2, &dims[0]));
    OK(cdp_group_new(g, rows[me / 2], 2, &dims[1]));
    wrong[0] = wrong[1] = dims[0];
    cdp_mesh_desc d = {.group = g, .ndim = 2, .shape = {2, 2}};
    if (OK(cdp_mesh_from_groups(&d, dims, &m))) {
        T(cdp_mesh_group(m, 0) == dims[0] && cdp_mesh_group(m, 1) == dims[1]);
        cdp_mesh_destroy(m);
    }
    REFUSED(CDP_ERR_INVALID, "groups[1] must have 2 ranks", cdp_mesh_from_groups(&d, wrong, &m));
    float x = 1;
    OK(cdp_allreduce(
        dims[0], NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM)); /* they are still the caller's */
    cdp_group_destroy(dims[0]);
    cdp_group_destroy(dims[1]);
}

TEST(mesh_from_groups) {
    RUN(4, mesh_groups);
}

/* What one rank says differs from the others: all get the error at once, and the group goes on.
   */
static void mesh_mismatch(cdp_group *g, void *arg) {
    (void)arg;
    const uint32_t me = cdp_rank(g), turned[4] = {0, 1, 3, 2};
    cdp_mesh *m = NULL;
    cdp_mesh_desc d = {.group = g, .ndim = 2, .shape = {2, 2}, .names = {"a", "b"}};
    cdp_mesh_desc other = d;
    if (me == 2) {
        other.ndim = 1;
        other.shape[0] = 4;
    }
    REFUSED(CDP_ERR_MISMATCH, "ndim is 2 on rank 0 and 1 on rank 2", cdp_mesh_create(&other, &m));
    other = d;
    if (me == 3) {
        other.shape[0] = 4;
        other.shape[1] = 1;
    }
    REFUSED(
        CDP_ERR_MISMATCH, "shape[0] is 2 on rank 0 and 4 on rank 3", cdp_mesh_create(&other, &m));
    other = d;
    if (me == 1) other.names[1] = "c";
    REFUSED(CDP_ERR_MISMATCH, "ranks 0 and 1 gave different names[1]", cdp_mesh_create(&other, &m));
    other = d;
    if (me == 1) other.ranks = turned;
    REFUSED(
        CDP_ERR_MISMATCH, "ranks[2] is 2 on rank 0 and 3 on rank 1", cdp_mesh_create(&other, &m));
    other = d;
    if (me == 2) other.names[1] = "a";
    if (me == 2)
        REFUSED(CDP_ERR_INVALID, "both called \"a\"", cdp_mesh_create(&other, &m));
    else
        REFUSED(CDP_ERR_MISMATCH, "the desc of rank 2 is not valid", cdp_mesh_create(&other, &m));
    T(m == NULL);
    if (OK(cdp_mesh_create(&d, &m))) cdp_mesh_destroy(m);
}

TEST(inconsistent_meshes) {
    const uint64_t start = test_now_ns();
    RUN(4, mesh_mismatch);
    T_WITHIN(2000, test_now_ns() - start);
}

TEST(bad_meshes_are_refused) {
    cdp_mesh *m;
    cdp_mesh_desc d = {0};
    REFUSED(CDP_ERR_INVALID, "paper_ranks 0", cdp_mesh_create(&d, &m));
    d = (cdp_mesh_desc){.paper_ranks = 4, .ndim = 7};
    REFUSED(CDP_ERR_INVALID, "ndim 7", cdp_mesh_create(&d, &m));
    d = (cdp_mesh_desc){.paper_ranks = 4, .ndim = 2, .shape = {3, 2}};
    REFUSED(CDP_ERR_INVALID, "needs at least 6 ranks, there are 4", cdp_mesh_create(&d, &m));
    d = (cdp_mesh_desc){.paper_ranks = 4, .ndim = 2};
    REFUSED(CDP_ERR_INVALID, "both 0", cdp_mesh_create(&d, &m));
    d = (cdp_mesh_desc){.paper_ranks = 4, .ndim = 2, .shape = {2, 2}, .names = {"a b"}};
    REFUSED(CDP_ERR_INVALID, "names[0]", cdp_mesh_create(&d, &m));
    d = (cdp_mesh_desc){.paper_ranks = 4, .ranks = (const uint32_t[]){0, 1, 1, 2}};
    REFUSED(CDP_ERR_INVALID, "ranks[2] is 1; each rank", cdp_mesh_create(&d, &m));
    d = (cdp_mesh_desc){.paper_ranks = 4, .ranks = (const uint32_t[]){0, 1, 4, 2}};
    REFUSED(CDP_ERR_INVALID, "ranks[2] is 4; the group has fewer", cdp_mesh_create(&d, &m));
}

/* ---- tensors ---- */

typedef struct pairs {
    uint32_t ndim, shape[2];
    uint64_t a, b;
} pairs;

static cdp_mesh *mesh_of(cdp_group *g, uint32_t ndim, uint32_t a, uint32_t b) {
    cdp_mesh_desc d = {.group = g, .ndim = ndim, .shape = {a, b}};
    cdp_mesh *m = NULL;
    OK(cdp_mesh_create(&d, &m));
    return m;
}

/* Elements of a local box are base + index in the whole tensor. */
static bool ramp_is_right(const cdp_dtensor *t, int64_t base) {
    cdp_box box;
    const uint64_t n = cdp_layout_box(&t->layout, NULL, &box);
    for (uint64_t i = 0; i < n; ++i) {
        uint64_t rest = i, index = 0, step = 1;
        for (uint32_t d = t->layout.ndim; d-- > 0; step *= t->layout.shape[d]) {
            index += (box.start[d] + rest % box.size[d]) * step;
            rest /= box.size[d];
        }
        if (((int64_t *)t->data)[i] != base + (int64_t)index) return false;
    }
    return true;
}

/* All placements to all placements; ranks without a contribution hold the identity. */
static void every_pair(cdp_group *g, void *arg) {
    static const char *const from[16] = {"R,R", "R,S0", "R,S1", "R,P", "S0,R", "S0,S0", "S0,S1",
        "S0,P", "S1,R", "S1,S0", "S1,S1", "S1,P", "P,R", "P,S0", "P,S1", "P,P"};
    const pairs *p = (const pairs *)arg;
    cdp_mesh *m = mesh_of(g, 2, p->shape[0], p->shape[1]);
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .a = 7, .b = 1};
    for (uint32_t a = 0; m && a < 16 && !test__now.failed_checks; ++a)
        for (uint32_t b = 0; b < 16; ++b) {
            cdp_layout l = {.mesh = m, .dtype = CDP_DTYPE_I64, .ndim = 2, .shape = {p->a, p->b}};
            cdp_dtensor x, y;
            if (strchr(from[b], 'P')) continue;
            OK(cdp_layout_parse(&l, from[a]));
            OK(cdp_dtensor_create(&l, NULL, &x));
            OK(cdp_layout_parse(&l, from[b]));
            OK(cdp_dtensor_create(&l, NULL, &y));
            OK(cdp_dtensor_fill(&x, &ramp));
            if (y.data) memset(y.data, 0x77, cdp__dt_local_bytes(&l));
            OK(cdp_redistribute(&x, &y));
            test_check(ramp_is_right(&y, 7), __FILE__, __LINE__, "%s -> %s on rank %u", from[a],
                from[b], cdp_rank(g));
            if (y.data) memset(y.data, 0x77, cdp__dt_local_bytes(&l));
            cdp_work work;
            OK(cdp_redistribute_async(&x, &y, &work));
            OK(cdp_work_wait(work));
            test_check(ramp_is_right(&y, 7), __FILE__, __LINE__, "%s -> %s on rank %u, async",
                from[a], from[b], cdp_rank(g));
            cdp_dtensor_free(&x);
            cdp_dtensor_free(&y);
        }
    cdp_mesh_destroy(m);
}

TEST(redistribute_every_pair) {
    pairs p = {2, {4, 2}, 16, 24};
    run_ranks(8, NULL, 0, every_pair, &p);
    p = (pairs){2, {2, 2}, 10, 5};
    run_ranks(4, NULL, 0, every_pair, &p);
    p = (pairs){2, {2, 2}, 1, 3};
    run_ranks(4, NULL, 0, every_pair, &p);
    p = (pairs){2, {2, 2}, 0, 3};
    run_ranks(4, NULL, 0, every_pair, &p);
    p = (pairs){2, {3, 1}, 2, 8};
    run_ranks(3, NULL, 0, every_pair, &p);
}

/* The sizes that once went wrong elsewhere: one more or two more rows or columns than fit, fewer
   rows than ranks, dimensions counted from the end. */
static void named_sizes(cdp_group *g, void *arg) {
    static const struct {
        uint32_t dims;
        const char *from, *to;
        uint64_t shape[3];
    } rows[] = {{1, "S0", "R", {12, 3, 1}}, {1, "S0", "R", {13, 3, 1}}, {1, "S0", "R", {14, 3, 1}},
        {1, "S1", "R", {3, 13, 1}}, {1, "S-1", "R", {3, 4, 13}}, {1, "S0", "S1", {8, 8, 1}},
        {1, "S0", "S1", {8, 8, 8}}, {1, "S0", "S1", {8, 5, 1}}, {1, "S1", "S0", {5, 8, 1}},
        {1, "S1", "S0", {5, 5, 1}}, {1, "S-1", "S-3", {5, 5, 5}}, {1, "S0", "R", {2, 3, 1}},
        {1, "S0", "S1", {2, 3, 1}}, {1, "P", "S0", {6, 3, 1}}, {1, "P", "R", {1, 1, 1}},
        {2, "S0,S0", "R,R", {10, 5, 1}}, {2, "S0,S0", "R,R", {9, 5, 1}},
        {2, "S0,S0", "R,R", {3, 5, 1}}, {2, "S0,S0", "R,R", {1, 3, 1}},
        {2, "S0,S1", "R,R", {10, 5, 1}}, {2, "S0,S1", "R,R", {9, 5, 1}},
        {2, "S0,S1", "R,R", {3, 5, 1}}, {2, "S0,S1", "R,R", {1, 3, 1}},
        {2, "P,P", "S0,S0", {7, 3, 1}}, {2, "S0!1,S0", "S0,S0", {7, 3, 1}}};
    (void)arg;
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    cdp_mesh *m[2] = {mesh_of(g, 1, 4, 0), mesh_of(g, 2, 2, 2)};
    for (uint32_t k = 0; k < sizeof rows / sizeof *rows; ++k) {
        cdp_layout l = {.mesh = m[rows[k].dims - 1], .dtype = CDP_DTYPE_I64, .ndim = 3};
        cdp_dtensor x, y;
        memcpy(l.shape, rows[k].shape, sizeof rows[k].shape);
        OK(cdp_layout_parse(&l, rows[k].from));
        OK(cdp_dtensor_create(&l, NULL, &x));
        OK(cdp_layout_parse(&l, rows[k].to));
        OK(cdp_dtensor_create(&l, NULL, &y));
        OK(cdp_dtensor_fill(&x, &ramp));
        OK(cdp_redistribute(&x, &y));
        test_check(ramp_is_right(&y, 0), __FILE__, __LINE__, "%s -> %s, case %u, rank %u",
            rows[k].from, rows[k].to, k, cdp_rank(g));
        cdp_dtensor_free(&x);
        cdp_dtensor_free(&y);
    }
    cdp_mesh_destroy(m[0]);
    cdp_mesh_destroy(m[1]);
}

TEST(redistribute_named_sizes) {
    RUN(4, named_sizes);
}

/* Pieces so large that they wait for their receivers, in rows that are received where they belong:
   no scratch memory, also where pieces are uneven, and in both halves of a plan with two phases. */
static void large_rows(cdp_group *g, void *arg) {
    static const struct {
        const char *from, *to;
        uint64_t shape[2];
        bool scratch; /* a sender packs */
    } rows[] = {{"S1", "R", {256, 1024}, false}, {"S1", "R", {201, 1003}, false},
        {"S1", "S0", {512, 515}, false}, {"S0", "S1", {512, 515}, true},
        {"P", "S1", {64, 999}, true},
        {"S1", "R", {999, 28}, true}}; /* rows shorter than 64 bytes are copied */
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    cdp_mesh *m = mesh_of(g, 1, 4, 0);
    (void)arg;
    for (uint32_t k = 0; m && k < 2 * (sizeof rows / sizeof *rows); ++k) {
        const bool async = k % 2;
        cdp_layout l = {.mesh = m, .dtype = CDP_DTYPE_I64, .ndim = 2};
        cdp_plan_desc d = {.kind = CDP_PLAN_DIRECT};
        cdp_dtensor x, y;
        cdp_work work;
        memcpy(l.shape, rows[k / 2].shape, sizeof rows[0].shape);
        OK(cdp_layout_parse(&l, rows[k / 2].from));
        OK(cdp_dtensor_create(&l, NULL, &x));
        d.from = l;
        OK(cdp_layout_parse(&l, rows[k / 2].to));
        OK(cdp_dtensor_create(&l, NULL, &y));
        d.to = l;
        OK(cdp_dtensor_fill(&x, &ramp));
        memset(y.data, 0x77, cdp__dt_local_bytes(&l));
        cdp_plan *plan;
        if (!OK(cdp_plan_create(&d, &plan))) break;
        T_EQ(rows[k / 2].scratch, cdp_plan_info_of(plan).scratch_bytes != 0);
        if (async && OK(cdp_plan_run_async(plan, x.data, y.data, &work)))
            OK(cdp_work_wait(work));
        else if (!async)
            OK(cdp_plan_run(plan, x.data, y.data));
        test_check(ramp_is_right(&y, 0), __FILE__, __LINE__, "%s -> %s, case %u, rank %u",
            rows[k / 2].from, rows[k / 2].to, k, cdp_rank(g));
        cdp_plan_destroy(plan);
        cdp_dtensor_free(&x);
        cdp_dtensor_free(&y);
    }
    cdp_mesh_destroy(m);
}

TEST(redistribute_large_rows) {
    RUN(4, large_rows);
}

/* Fills a tensor with contributions that differ, and whose sums are the index in the whole one. */
static void fill_contributions(cdp_dtensor *t) {
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    const cdp_mesh *m = t->layout.mesh;
    cdp_dtensor whole = *t;
    int64_t me = 0, terms = 1;
    for (uint32_t by = 0; by < m->desc.ndim; ++by) {
        if (t->layout.place[by].kind != CDP_PLACE_PARTIAL) continue;
        cdp__dt_replicate(&whole.layout, by);
        me = me * m->desc.shape[by] + cdp_mesh_coord(m, by);
        terms *= m->desc.shape[by];
    }
    OK(cdp_dtensor_fill(&whole, &ramp));
    const int64_t factor = me ? me + 1 : 2 - terms * (terms + 1) / 2;
    for (uint64_t i = 0; i < cdp__dt_local_bytes(&whole.layout) / 8; ++i)
        ((int64_t *)t->data)[i] *= factor;
}

/* Contributions to large tensors arrive in windows, which share scratch memory; an asynchronous
   run has none. Leading dimensions of one element, and fewer rows than windows. */
static void windows_of_sums(cdp_group *g, void *arg) {
    static const struct {
        const char *from, *to;
        uint64_t shape[3];
    } rows[] = {{"P,P", "R,S1", {83, 101, 3}}, {"P,P", "S0,S2", {1, 100, 299}},
        {"P,S1", "S1,R", {100, 301, 1}}, {"P,P", "S2,R", {2, 2, 8001}}};
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    (void)arg;
    for (uint32_t k = 0; m && k < sizeof rows / sizeof *rows; ++k) {
        cdp_layout l = {.mesh = m, .dtype = CDP_DTYPE_I64, .ndim = 3};
        memcpy(l.shape, rows[k].shape, sizeof rows[k].shape);
        cdp_plan_desc d = {.from = l, .to = l, .kind = CDP_PLAN_DIRECT};
        cdp_dtensor x, y;
        cdp_work work;
        cdp_plan *plan;
        OK(cdp_layout_parse(&d.from, rows[k].from));
        OK(cdp_layout_parse(&d.to, rows[k].to));
        OK(cdp_dtensor_create(&d.from, NULL, &x));
        OK(cdp_dtensor_create(&d.to, NULL, &y));
        fill_contributions(&x);
        if (!OK(cdp_plan_create(&d, &plan))) break;
        const uint64_t with = cdp_plan_info_of(plan).scratch_bytes;
        for (uint32_t run = 0; run < 3; ++run) {
            if (y.data) memset(y.data, 0x77, (size_t)cdp__dt_local_bytes(&d.to));
            if (run != 1)
                OK(cdp_plan_run(plan, x.data, y.data));
            else if (OK(cdp_plan_run_async(plan, x.data, y.data, &work)))
                OK(cdp_work_wait(work));
            test_check(ramp_is_right(&y, 0), __FILE__, __LINE__, "%s to %s, run %u on rank %u",
                rows[k].from, rows[k].to, run, cdp_rank(g));
        }
        const uint64_t without = cdp_plan_info_of(plan).scratch_bytes;
        T(!without || with < without); /* some ranks need none */
        cdp_plan_destroy(plan);
        cdp_dtensor_free(&x);
        cdp_dtensor_free(&y);
    }
    cdp_mesh_destroy(m);
}

TEST(contributions_arrive_in_windows) {
    RUN(4, windows_of_sums);
}

/* Every order of every tensor dimension to every other. */
static void every_order(cdp_group *g, void *arg) {
    (void)arg;
    cdp_mesh_desc d = {.group = g, .ndim = 3, .shape = {2, 2, 2}};
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    cdp_mesh *m;
    if (!OK(cdp_mesh_create(&d, &m))) return;
    const uint32_t orders[6][3] = {
        {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    cdp_dtensor t[12];
    for (uint32_t k = 0; k < 12; ++k) {
        cdp_layout l = {.mesh = m, .dtype = CDP_DTYPE_I64, .ndim = 2, .shape = {9, 11}};
        for (uint32_t by = 0; by < 3; ++by) {
            l.place[by].kind = CDP_PLACE_SHARD;
            l.place[by].dim = (int32_t)(k / 6);
            l.place[by].order = orders[k % 6][by];
        }
        OK(cdp_dtensor_create(&l, NULL, &t[k]));
    }
    for (uint32_t a = 0; a < 12; ++a)
        for (uint32_t b = 0; b < 12; ++b) {
            if (a == b) continue;
            OK(cdp_dtensor_fill(&t[a], &ramp));
            if (t[b].data) memset(t[b].data, 1, cdp__dt_local_bytes(&t[b].layout));
            OK(cdp_redistribute(&t[a], &t[b]));
            T(ramp_is_right(&t[b], 0));
        }
    for (uint32_t k = 0; k < 12; ++k)
        cdp_dtensor_free(&t[k]);
    cdp_mesh_destroy(m);
}

TEST(redistribute_every_order) {
    RUN(8, every_order);
}

/* Cuts in another order that the target has as sums, by plans of every kind. */
static void orders_to_sums(cdp_group *g, void *arg) {
    static const char *const orders[][2] = {{"S0!2,P,S0", "P,S0,S1"}, {"P,S0!2,S0", "P,P,S0"},
        {"S0!2,S0!1,S1", "P,S0,P"}, {"S1,S0!2,S0!1", "R,P,S0/2"}};
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    cdp_mesh_desc d = {.group = g, .ndim = 3, .shape = {2, 2, 2}};
    cdp_mesh *m;
    (void)arg;
    if (!OK(cdp_mesh_create(&d, &m))) return;
    for (uint32_t k = 0; k < 16; ++k) {
        const cdp_layout l = {.mesh = m, .dtype = CDP_DTYPE_I64, .ndim = 2, .shape = {9, 5}};
        cdp_plan_desc p = {.from = l, .to = l, .kind = (cdp_plan_kind)(k % 4)};
        cdp_dtensor x, y;
        int64_t full[45];
        cdp_plan *plan;
        OK(cdp_layout_parse(&p.from, orders[k / 4][0]));
        OK(cdp_layout_parse(&p.to, orders[k / 4][1]));
        if (!OK(cdp_plan_create(&p, &plan))) break;
        OK(cdp_dtensor_create(&p.from, NULL, &x));
        OK(cdp_dtensor_create(&p.to, NULL, &y));
        OK(cdp_dtensor_fill(&x, &ramp));
        OK(cdp_plan_run(plan, x.data, y.data));
        OK(cdp_dtensor_full(&y, full, CDP_EACH));
        for (int64_t i = 0; i < 45; ++i)
            T_EQ(i, full[i]);
        cdp_plan_destroy(plan);
        cdp_dtensor_free(&x);
        cdp_dtensor_free(&y);
    }
    cdp_mesh_destroy(m);
}

TEST(cuts_of_another_order_become_sums) {
    RUN(8, orders_to_sums);
}

/* Reductions of all kinds, against one process. */
static void every_reduction(cdp_group *g, void *arg) {
    static const char *const texts[] = {"P,P", "P,P(avg)", "P(avg),P(avg)", "P(min),P(min)",
        "P(max),P(max)", "P(product),P(product)"};
    static const cdp_dtype dtypes[] = {CDP_DTYPE_F32, CDP_DTYPE_F64, CDP_DTYPE_I32, CDP_DTYPE_I64,
        CDP_DTYPE_U8, CDP_DTYPE_F16, CDP_DTYPE_BF16, CDP_DTYPE_I8, CDP_DTYPE_I16, CDP_DTYPE_U16,
        CDP_DTYPE_U32, CDP_DTYPE_U64};
    (void)arg;
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    for (uint32_t k = 0; m && k < 6; ++k)
        for (uint32_t t = 0; t < sizeof dtypes / sizeof *dtypes; ++t) {
            cdp_layout l = {.mesh = m, .dtype = dtypes[t], .ndim = 1, .shape = {5}};
            cdp_dtensor x, y;
            OK(cdp_layout_parse(&l, texts[k]));
            OK(cdp_dtensor_create(&l, NULL, &x));
            OK(cdp_layout_parse(&l, "R,S0"));
            OK(cdp_dtensor_create(&l, NULL, &y));
            for (uint64_t i = 0; i < 5; ++i)
                cdp__number_put(dtypes[t], x.data, i, (double)(cdp_rank(g) * 2 + i % 3));
            OK(cdp_redistribute(&x, &y));
            cdp_box box;
            const uint64_t n = cdp_layout_box(&l, NULL, &box);
            for (uint64_t i = 0; i < n; ++i) {
                const double e = (double)((box.start[0] + i) % 3);
                double want = 12 + 4 * e;
                if (k == 1) want /= 2;
                if (k == 2) want /= 4;
                if (k == 3) want = e;
                if (k == 4) want = 6 + e;
                if (k == 5) want = e * (2 + e) * (4 + e) * (6 + e);
                if (k == 5 && (dtypes[t] == CDP_DTYPE_U8 || dtypes[t] == CDP_DTYPE_I8))
                    continue; /* wraps around */
                test_check(cdp__number_get(dtypes[t], y.data, i) == want, __FILE__, __LINE__,
                    "%s of %s: %g, not %g", texts[k], cdp_dtype_name(dtypes[t]),
                    cdp__number_get(dtypes[t], y.data, i), want);
            }
            cdp_dtensor_free(&x);
            cdp_dtensor_free(&y);
        }
    cdp_mesh_destroy(m);
}

/* Each reduction of each dtype that a layout may have, as the collective that the plan is, gives
   what messages give: of a target that is cut in one dimension only. At once and asynchronously. */
static void collectives_of(cdp_mesh *m, cdp_dtype dtype, cdp_reduce_op op) {
    static const char *const targets[] = {"R,S0", "R,R", "S0,S0"};
    static const cdp_coll_kind kinds[] = {
        CDP_COLL_NONE, CDP_COLL_ALLREDUCE, CDP_COLL_REDUCE_SCATTER};
    cdp_layout l = {.mesh = m, .dtype = dtype, .ndim = 1, .shape = {8}};
    _Alignas(16) uint8_t in[8 * 16] = {0}, out[3][8 * 16] = {{0}};
    const uint64_t elem = cdp_dtype_size(dtype);
    const uint32_t me = m->me;
    for (uint32_t by = 0; by < 2; ++by)
        l.place[by] = (cdp_place){.kind = CDP_PLACE_PARTIAL, .op = op};
    if (cdp_layout_check(&l) != CDP_OK) return;
    for (uint64_t i = 0; i < 8; ++i)
        cdp__number_put(dtype, in, i, (double)(1 + (me + i) % 3));
    for (uint32_t k = 0; k < 5; ++k) {
        cdp_plan_desc d = {.from = l, .to = l};
        cdp_plan *p;
        cdp_work work;
        const uint32_t t = (k + 1) / 2;
        OK(cdp_layout_parse(&d.to, targets[t]));
        if (!OK(cdp_plan_create(&d, &p))) return;
        T_EQ(kinds[t], cdp_plan_info_of(p).collective);
        memset(out[t], 0x55, sizeof out[t]);
        if (k % 2)
            OK(cdp_plan_run(p, in, out[t]));
        else if (OK(cdp_plan_run_async(p, in, out[t], &work)))
            OK(cdp_work_wait(work));
        if (t == 1) T(memcmp(out[0], out[1] + me % 2 * 4 * elem, 4 * elem) == 0);
        if (t == 2) T(memcmp(out[1] + me * 2 * elem, out[2], 2 * elem) == 0);
        cdp_plan_destroy(p);
    }
}

static void every_collective(cdp_group *g, void *arg) {
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    (void)arg;
    for (uint32_t t = 1; m && t < 32; ++t)
        for (uint32_t op = 0; op < 16 && cdp_dtype_size((cdp_dtype)t); ++op)
            collectives_of(m, (cdp_dtype)t, (cdp_reduce_op)op);
    cdp_mesh_destroy(m);
}

TEST(collectives_give_what_messages_give) {
    RUN(4, every_collective);
}

/* Sums as calls along dimensions give what messages give, with whole numbers: of every reduction
   and of means, of sizes that no dimension divides and of none, at once and asynchronously. */
static void sums_of(cdp_mesh *m, const char *const *texts, uint64_t rows, cdp_dtype dtype) {
    uint8_t in[4096], out[3][4096];
    cdp_layout from = {.mesh = m, .dtype = dtype, .ndim = 2, .shape = {rows, 3}}, to = from;
    cdp_box box;
    uint64_t key = 0;
    const uint64_t elem = cdp_dtype_size(dtype);
    OK(cdp_layout_parse(&from, texts[0]));
    OK(cdp_layout_parse(&to, texts[1]));
    const uint64_t n = cdp_layout_box(&from, NULL, &box), got = cdp_layout_box(&to, NULL, &box);
    for (uint32_t by = 0; by < m->desc.ndim; ++by) /* replicas are equal */
        if (from.place[by].kind != CDP_PLACE_REPLICATE) key = key * 5 + cdp_mesh_coord(m, by);
    for (uint64_t i = 0; i < n; ++i)
        cdp__number_put(dtype, in, i, (double)(24 * ((key * 7 + i * 5) % 4)));
    memset(out, 0x55, sizeof out);
    for (uint32_t k = 0; k < 3; ++k) {
        const cdp_plan_desc d = {
            .from = from, .to = to, .kind = k ? CDP_PLAN_COLLECTIVES : CDP_PLAN_DIRECT};
        cdp_plan *p;
        cdp_work work;
        if (!OK(cdp_plan_create(&d, &p))) return;
        uint8_t *y = out[k];
        if (k != 2)
            OK(cdp_plan_run(p, in, y));
        else if (OK(cdp_plan_run_async(p, in, y, &work)))
            OK(cdp_work_wait(work));
        test_check(memcmp(y, out[0], got * elem + 8) == 0, __FILE__, __LINE__,
            "%s -> %s of %llu x 3, %s, way %u", texts[0], texts[1], (unsigned long long)rows,
            cdp_dtype_name(dtype), k);
        cdp_plan_destroy(p);
    }
}

static void sums_along(cdp_group *g, void *arg) {
    static const char *const texts[][2] = {{"P,R", "R,R"}, {"R,P", "R,R"}, {"P,S0", "R,R"},
        {"P,S0", "S0,R"}, {"P,P(avg)", "R,R"}, {"P(avg),R", "R,R"}, {"P(avg),P", "R,S1"},
        {"P(max),R", "R,R"}, {"P(avg),P(avg)", "S1,R"}, {"P,P", "S0,P"}, {"P,S1", "S0,P"}};
    static const char *const deep[][2] = {{"P,P,R", "R,R,R"}, {"P(avg),R,P", "R,S0,R"},
        {"R,P(min),R", "R,R,R"}, {"P,S0,P(avg)", "S0,R,R"}, {"S1,P,P", "R,P,S0"}};
    static const uint64_t sizes[] = {0, 1, 5, 16, 77};
    const uint32_t size = cdp_size(g);
    (void)arg;
    cdp_mesh *wide = mesh_of(g, 2, size / 2, 2), *tall = mesh_of(g, 2, 2, size / 2), *cube = NULL;
    const cdp_mesh_desc d = {.group = g, .ndim = 3, .shape = {2, 2, 2}};
    if (size == 8) OK(cdp_mesh_create(&d, &cube));
    for (uint32_t s = 0; s < 5; ++s)
        for (uint32_t t = 0; t < 2; ++t) {
            const cdp_dtype dtype = t ? CDP_DTYPE_F32 : CDP_DTYPE_I64;
            for (uint32_t k = 0; k < sizeof texts / sizeof *texts; ++k) {
                sums_of(wide, texts[k], sizes[s], dtype);
                sums_of(tall, texts[k], sizes[s], dtype);
            }
            for (uint32_t k = 0; cube && k < sizeof deep / sizeof *deep; ++k)
                sums_of(cube, deep[k], sizes[s], dtype);
        }
    cdp_mesh_destroy(cube);
    cdp_mesh_destroy(tall);
    cdp_mesh_destroy(wide);
}

TEST(sums_along_dimensions_give_what_messages_give) {
    RUN(4, sums_along);
    RUN(6, sums_along);
    RUN(8, sums_along);
}

/* A rank whose group fails in one row breaks those that wait for it in other rows. */
static void sum_that_fails(cdp_group *g, void *arg) {
    static float in[8][64], out[8][64];
    cdp_mesh *m = mesh_of(g, 2, 4, 2);
    cdp_plan *p;
    cdp_plan_desc d = {.from = layout_of(m, "P,R", 1, 64, 0, 0),
        .to = layout_of(m, "R,R", 1, 64, 0, 0),
        .kind = CDP_PLAN_COLLECTIVES};
    const uint32_t me = cdp_rank(g);
    (void)arg;
    if (!OK(cdp_plan_create(&d, &p))) return;
    T(cdp_plan_info_of(p).calls == 2);
    OK(cdp_plan_run(p, in[me], out[me]));
    if (me == 5)
        cdp_group_abort(cdp_mesh_group(m, 0), "rank 5 has had enough");
    else
        REFUSED(CDP_ERR_ABORTED, "rank 5 has had enough", cdp_plan_run(p, in[me], out[me]));
    if (me == 5) T(cdp_plan_run(p, in[me], out[me]) != CDP_OK);
    cdp_plan_destroy(p);
    cdp_mesh_destroy(m);
}

TEST(a_sum_that_fails_in_one_row_fails_in_all) {
    RUN(8, sum_that_fails);
}

TEST(redistribute_every_reduction) {
    RUN(4, every_reduction);
}

/* Norms 1, 2 and inf of a cut tensor: what each rank sums over its box becomes a number that is
   PARTIAL where the tensor is cut, and counts once where it is replicated. */
static int64_t norm_with(int64_t so_far, int64_t v, uint32_t p) {
    if (p == 2) return v > so_far ? v : so_far;
    return so_far + (p ? v * v : v);
}

static void norms(cdp_group *g, void *arg) {
    static const char *const texts[] = {"R,R", "S0,R", "R,S1", "S0,S1", "S1,S1", "S0!1,S0"};
    static const uint64_t shapes[3][2] = {{9, 5}, {1, 3}, {4, 4}}; /* also empty pieces */
    (void)arg;
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .a = -7, .b = 2};
    for (uint32_t k = 0; k < 18 * 3; ++k) {
        const uint32_t p = k % 3; /* 1, 2, inf */
        const uint64_t *shape = shapes[k / 18];
        cdp_layout l = {
            .mesh = m, .dtype = CDP_DTYPE_I64, .ndim = 2, .shape = {shape[0], shape[1]}};
        cdp_dtensor x;
        int64_t own = 0, all = -1, want = 0;
        OK(cdp_layout_parse(&l, texts[k / 3 % 6]));
        OK(cdp_dtensor_create(&l, NULL, &x));
        OK(cdp_dtensor_fill(&x, &ramp));
        const uint64_t n = cdp_layout_box(&l, NULL, NULL);
        for (uint64_t i = 0; i < n; ++i)
            own = norm_with(own, llabs(((int64_t *)x.data)[i]), p);
        for (int64_t i = 0; i < (int64_t)(shape[0] * shape[1]); ++i)
            want = norm_with(want, llabs(2 * i - 7), p);
        cdp_layout number = {.mesh = m, .dtype = CDP_DTYPE_I64};
        cdp_dtensor from = {.layout = number, .data = &own}, to = {.layout = number, .data = &all};
        for (uint32_t by = 0; by < 2; ++by)
            if (l.place[by].kind == CDP_PLACE_SHARD) {
                from.layout.place[by].kind = CDP_PLACE_PARTIAL;
                from.layout.place[by].op = p == 2 ? CDP_REDUCE_MAX : CDP_REDUCE_SUM;
            }
        OK(cdp_redistribute(&from, &to));
        test_check(all == want, __FILE__, __LINE__, "norm %u of %s: %lld, not %lld", p + 1,
            texts[k / 3 % 6], (long long)all, (long long)want);
        cdp_dtensor_free(&x);
    }
    cdp_mesh_destroy(m);
}

static bool norm_near(double want, double got) {
    return fabs(want - got) <= 1e-15 * want;
}

/* However a gradient lies, cdp_grads_norm() counts each element once, and after cdp_grads_scale()
   replicas are equal. */
static void grads_norms(cdp_group *g, void *arg) {
    static const char *const texts[] = {"R,R", "S0,R", "R,S1", "S0,S1", "S1,S1", "S0!1,S0"};
    static const uint64_t shapes[4][2] = {{9, 5}, {1, 3}, {4, 4}, {130, 7}}; /* also no elements */
    (void)arg;
    cdp_mesh *m = mesh_of(g, 2, 2, 3);
    for (uint32_t k = 0; k < 6 * 4; ++k) {
        const uint64_t *shape = shapes[k / 6];
        const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .a = -7, .b = 2};
        cdp_layout l = {.mesh = m, .ndim = 2, .shape = {shape[0], shape[1]}};
        cdp_dtensor x[2];
        cdp_norm_item items[2];
        cdp_norm norm;
        double want = 0, each[2];
        OK(cdp_layout_parse(&l, texts[k % 6]));
        l.dtype = CDP_DTYPE_F32;
        OK(cdp_dtensor_create(&l, NULL, &x[0]));
        l.dtype = CDP_DTYPE_F64;
        OK(cdp_layout_parse(&l, "R,R"));
        OK(cdp_dtensor_create(&l, NULL, &x[1]));
        for (uint32_t i = 0; i < 2; ++i) {
            OK(cdp_dtensor_fill(&x[i], &ramp));
            OK(cdp_norm_item_of(&x[i], &items[i]));
        }
        for (uint64_t i = 0; i < shape[0] * shape[1]; ++i)
            want += (2.0 * (double)i - 7) * (2.0 * (double)i - 7);
        const cdp_norm_desc d = {g, items, 2, 0};
        OK(cdp_grads_norm(&d, each, &norm));
        test_check(norm_near(sqrt(want), each[0]) && norm_near(sqrt(want), each[1])
                && norm_near(sqrt(2 * want), norm.norm),
            __FILE__, __LINE__, "norms of %s: %.17g %.17g, not %.17g", texts[k % 6], each[0],
            each[1], sqrt(want));
        OK(cdp_grads_scale(&d, 0.5));
        OK(cdp_grads_norm(&d, each, &norm));
        T(norm_near(sqrt(want) / 2, each[0]) && norm_near(sqrt(2 * want) / 2, norm.norm));
        T(!norm.found_inf);
        OK(cdp_dtensor_check(&x[0], false));
        cdp_dtensor_free(&x[0]);
        cdp_dtensor_free(&x[1]);
    }
    cdp_layout l = {.mesh = m, .ndim = 1, .shape = {4}};
    OK(cdp_layout_parse(&l, "R,P"));
    float four[4] = {0};
    cdp_dtensor partial = {.layout = l, .data = four};
    cdp_norm_item item;
    REFUSED(CDP_ERR_INVALID, "is partial over", cdp_norm_item_of(&partial, &item));
    REFUSED(CDP_ERR_INVALID, "out is NULL", cdp_norm_item_of(&partial, NULL));
    REFUSED(CDP_ERR_INVALID, "tensor is NULL", cdp_norm_item_of(NULL, &item));
    cdp_mesh_destroy(m);
}
TEST(norms_count_each_element_of_a_layout_once) {
    run_ranks(6, NULL, 0, grads_norms, NULL);
}

/* A ddp over one dimension of a mesh: each rank has a piece of one parameter and a copy of another.
   cdp_ddp_clip() sees this rank's piece alone, and copies drift apart. */
static void clip_of_a_mesh(cdp_group *g, void *arg) {
    cdp_mesh_desc md = {.group = g, .ndim = 2, .shape = {0, 2}, .names = {"dp", "tp"}};
    cdp_mesh *m;
    cdp_ddp *ddp;
    float piece[4] = {0}, copy[2] = {0}, all[8];
    cdp_norm norm;
    (void)arg;
    OK(cdp_mesh_create(&md, &m));
    const bool odd = cdp_mesh_coord(m, 1) != 0;
    cdp_param params[] = {
        {.name = "piece", .data = piece, .count = 4}, {.name = "copy", .data = copy, .count = 2}};
    const cdp_ddp_desc dd = {.group = cdp_mesh_group(m, 0), .params = params, .param_count = 2};
    OK(cdp_ddp_create(&dd, &ddp));
    OK(cdp_ddp_backward_begin(ddp));
    float *a = (float *)cdp_ddp_grad(ddp, 0), *b = (float *)cdp_ddp_grad(ddp, 1);
    for (uint32_t i = 0; i < 4; ++i)
        a[i] = (float)(i + 1) * (odd ? 3.0f : 1.0f);
    b[0] = 1;
    b[1] = 2;
    OK(cdp_ddp_ready(ddp, 1));
    OK(cdp_ddp_ready(ddp, 0));
    OK(cdp_ddp_backward_end(ddp));
    cdp_dtensor grads[2] = {{.layout = layout_of(m, "R,S0", 1, 8, 0, 0), .data = a},
        {.layout = layout_of(m, "R,R", 1, 2, 0, 0), .data = b}};
    cdp_norm_item items[2];
    for (uint32_t i = 0; i < 2; ++i)
        OK(cdp_norm_item_of(&grads[i], &items[i]));
    const cdp_norm_desc d = {g, items, 2, 0};
    OK(cdp_grads_norm(&d, NULL, &norm));
    T(norm_near(sqrt(30.0 + 270.0 + 5.0), norm.norm));
    OK(cdp_grads_scale(&d, 1 / (norm.norm + 1e-6)));
    OK(cdp_allgather(g, b, all, 2, CDP_DTYPE_F32));
    for (uint32_t i = 2; i < 8; ++i)
        T(all[i] == all[i % 2] && all[i] > 0);
    OK(cdp_grads_norm(&d, NULL, &norm));
    T(fabs(norm.norm - 1) < 1e-6);
    cdp_ddp_destroy(ddp);
    cdp_mesh_destroy(m);
}
TEST(clipping_over_a_mesh_keeps_copies_equal) {
    run_ranks(4, NULL, 0, clip_of_a_mesh, NULL);
}

TEST(norms_of_cut_tensors) {
    RUN(4, norms);
}

/* The same plan again and again: the first round makes it, and nothing is allocated later. */
static void nothing_allocated(cdp_group *g, void *arg) {
    (void)arg;
    static const char *const texts[][2] = {
        {"S0,S1", "S1,S0"}, {"S0,S0", "R,R"}, {"P,S0", "S0,R"}, {"S1,R", "R,S0"}, {"S1,R", "R,R"}};
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    static float memory[4][5][2][256 * 512]; /* pieces of 256 KiB: their senders wait */
    int64_t before = 0, after = 0;
    for (uint32_t i = 0; m && i < 101; ++i) { /* the first round makes the plans */
        OK(cdp_barrier(g));
        if (i == 1) before = __atomic_load_n(&counted.calls, __ATOMIC_SEQ_CST);
        if (i == 1) OK(cdp_barrier(g));
        for (uint32_t k = 0; k < 5; ++k) {
            const uint64_t rows = k < 4 ? 64 : 256, columns = k < 4 ? 64 : 512;
            cdp_dtensor x = {.data = memory[cdp_rank(g)][k][0]},
                        y = {.data = memory[cdp_rank(g)][k][1]};
            x.layout = layout_of(m, texts[k][0], 2, rows, columns, 0);
            y.layout = layout_of(m, texts[k][1], 2, rows, columns, 0);
            OK(cdp_redistribute(&x, &y));
        }
    }
    OK(cdp_barrier(g));
    after = __atomic_load_n(&counted.calls, __ATOMIC_SEQ_CST);
    OK(cdp_barrier(g));
    test_check(after - before <= allocations_at_most(), __FILE__, __LINE__, "%lld allocations",
        (long long)(after - before));
    cdp_mesh_destroy(m);
}

TEST(a_kept_plan_allocates_nothing) {
    const cdp_group_desc like = {.os = counted_os(), .timeout_ms = 20000};
    run_ranks(4, &like, 0, nothing_allocated, NULL);
    T_EQ(0, counted.held);
}

/* No memory at any request: an error, nothing is lost. */
TEST(plans_without_memory) {
    cdp_os os = *counted_os();
    const cdp_mesh_desc d = {.paper_ranks = 4, .ndim = 2, .shape = {2, 2}};
    cdp_mesh *m;
    bool done = false;
    if (!OK(cdp_mesh_create(&d, &m))) return;
    m->root->os = &os;
    cdp_mesh *part;
    for (int64_t at = 1; !done && at < 100; ++at) {
        cdp_plan_desc p = {
            .from = layout_of(m, "P,S0", 2, 8, 8, 0), .to = layout_of(m, "S1,R", 2, 8, 8, 0)};
        cdp_plan *plan = NULL;
        counted.calls = counted.held = 0;
        counted.fail_at = at;
        cdp_status st = cdp_plan_create(&p, &plan);
        cdp_plan_destroy(plan);
        done = st == CDP_OK;
        T(st == CDP_OK || st == CDP_ERR_NOMEM);
        T_EQ(0, counted.held);
        st = cdp_mesh_sub(m, "1", &part);
        if (st == CDP_OK) cdp_mesh_destroy(part);
        T_EQ(0, counted.held);
    }
    T(done);
    m->root->os = cdp_os_default();
    cdp_mesh_destroy(m);
}

static void distribute(cdp_group *g, void *arg) {
    static const char *const texts[] = {"R,R", "S0,R", "S1,S0", "S0,S0", "S0!1,S0", "R,S1"};
    (void)arg;
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    int64_t full[9 * 5], back[9 * 5];
    for (uint32_t k = 0; m && k < 6; ++k)
        for (uint32_t source = 0; source < 5; ++source) {
            cdp_layout l = {.mesh = m, .dtype = CDP_DTYPE_I64, .ndim = 2, .shape = {9, 5}};
            const bool has = source == 4 || cdp_rank(g) == source;
            cdp_dtensor t;
            OK(cdp_layout_parse(&l, texts[k]));
            OK(cdp_dtensor_create(&l, NULL, &t));
            for (int64_t i = 0; i < 45; ++i)
                full[i] = has ? 100 + i : -1;
            OK(cdp_distribute(&t, has ? full : NULL, source == 4 ? CDP_EACH : source));
            T(ramp_is_right(&t, 100));
            memset(back, 0, sizeof back);
            OK(cdp_dtensor_full(&t, has ? back : NULL, source == 4 ? CDP_EACH : source));
            for (int64_t i = 0; has && i < 45; ++i)
                T_EQ(100 + i, back[i]);
            cdp_dtensor_free(&t);
        }
    cdp_dtensor t = {.layout = layout_of(m, "P,R", 2, 9, 5, 0), .data = full};
    REFUSED(CDP_ERR_UNSUPPORTED, "PARTIAL", cdp_distribute(&t, full, 0));
    t.layout = layout_of(
        m, "P,S0", 2, 9, 5, 0); /* full of a sum, at one rank: every rank adds 1, 2, 3 or 4 */
    for (uint32_t i = 0; i < 25; ++i)
        ((float *)full)[i] = (float)(cdp_rank(g) / 2 + 1);
    OK(cdp_dtensor_full(&t, cdp_rank(g) == 3 ? back : NULL, 3));
    for (uint32_t i = 0; cdp_rank(g) == 3 && i < 45; ++i)
        T(((float *)back)[i] == 3);
    cdp_mesh_destroy(m);
}

TEST(distribute_and_full) {
    RUN(4, distribute);
}

/* Pieces of any size. */
static void from_local(cdp_group *g, void *arg) {
    (void)arg;
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    const uint32_t me = cdp_rank(g);
    uint64_t shape[2] = {me < 2 ? 4 : 1, 3};
    cdp_layout l = {.ndim = 2, .dtype = CDP_DTYPE_I64, .mesh = m};
    cdp_box box;
    OK(cdp_layout_parse(&l, "S0,R"));
    if (OK(cdp_layout_from_local(m, &l, shape))) { /* uneven: 4 + 1 */
        T_EQ(5, l.shape[0]);
        T_EQ(3, l.shape[1]);
        T(l.place[0].cut != 0);
        T_EQ(shape[0] * 3, cdp_layout_box(&l, NULL, &box));
        T_EQ(me < 2 ? 0 : 4, box.start[0]);
        int64_t own[12], whole[15];
        cdp_dtensor t;
        for (uint64_t i = 0; i < shape[0] * 3; ++i)
            own[i] = (int64_t)(box.start[0] * 3 + i);
        OK(cdp_dtensor_create(&l, own, &t));
        T(t.data == own && !t.owned); /* no copy */
        OK(cdp_dtensor_full(&t, whole, CDP_EACH));
        for (int64_t i = 0; i < 15; ++i)
            T_EQ(i, whole[i]);
    }
    shape[0] = me < 2 ? 3 : 2; /* the chunk rule: no cut */
    OK(cdp_layout_from_local(m, &l, shape));
    T_EQ(0, l.place[0].cut);
    T_EQ(5, l.shape[0]);
    OK(cdp_layout_parse(&l, "S0,S0"));
    shape[0] = me == 0 ? 2 : 1; /* nested chunks of 5 */
    OK(cdp_layout_from_local(m, &l, shape));
    T_EQ(5, l.shape[0]);
    shape[0] = me == 3 ? 2 : 1;
    REFUSED(CDP_ERR_UNSUPPORTED, "the chunk rule gives", cdp_layout_from_local(m, &l, shape));
    OK(cdp_layout_parse(&l, "S0,R"));
    shape[0] = me < 2 ? 3 : 2;
    shape[1] = me == 3 ? 4 : 3;
    REFUSED(CDP_ERR_MISMATCH, "dimension 1 has 3 elements on rank 0 and 4 on rank 3",
        cdp_layout_from_local(m, &l, shape));
    cdp_mesh_destroy(m);
}

TEST(layout_from_local_pieces) {
    RUN(4, from_local);
}

static void checked(cdp_group *g, void *arg) {
    (void)arg;
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    const uint32_t me = cdp_rank(g);
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    cdp_dtensor t;
    cdp_layout l = layout_of(m, "R,S0", 2, 4, 3, 0);
    OK(cdp_dtensor_create(&l, NULL, &t));
    OK(cdp_dtensor_fill(&t, &ramp));
    OK(cdp_dtensor_check(&t, false));
    if (me == 3) ((float *)t.data)[4] = -1; /* row 3, column 1 */
    REFUSED(CDP_ERR_MISMATCH, "element [3,1] is not the same on ranks 1 and 3",
        cdp_dtensor_check(&t, false));
    OK(cdp_dtensor_check(&t, true));
    OK(cdp_dtensor_check(&t, false));
    if (me == 3) T(((float *)t.data)[4] == 10);
    cdp_dtensor wrong = t;
    if (me == 2) wrong.layout.dtype = CDP_DTYPE_I32;
    REFUSED(
        CDP_ERR_MISMATCH, "dtype is 1 on rank 0 and 3 on rank 2", cdp_dtensor_check(&wrong, false));
    wrong = t;
    if (me == 1) wrong.layout.shape[1] = 2;
    REFUSED(CDP_ERR_MISMATCH, "shape[1] is 3 on rank 0 and 2 on rank 1",
        cdp_dtensor_check(&wrong, false));
    cdp_dtensor other = t; /* a plan that differs, and the group goes on */
    float memory[24];
    other.data = memory;
    OK(cdp_layout_parse(&other.layout, me == 1 ? "S0,R" : "S1,R"));
    REFUSED(CDP_ERR_MISMATCH, "to.place[0].dim is 1 on rank 0 and 0 on rank 1",
        cdp_redistribute(&t, &other));
    OK(cdp_layout_parse(&other.layout, "S1,R"));
    OK(cdp_redistribute(&t, &other));
    REFUSED(CDP_ERR_INVALID, "overlap",
        cdp_redistribute(&other, &(cdp_dtensor){.layout = l, .data = memory + 1}));
    REFUSED(CDP_ERR_INVALID, "tensor.data is NULL",
        cdp_redistribute(&other, &(cdp_dtensor){.layout = l}));
    OK(cdp_redistribute(&other, &other)); /* nothing moves */
    cdp_dtensor_free(&t);
    cdp_mesh_destroy(m);
}

TEST(replicas_checked_and_repaired) {
    RUN(4, checked);
}

/* Two meshes of the same ranks, and of others. */
static void between_meshes(cdp_group *g, void *arg) {
    (void)arg;
    const uint32_t turned[6] = {5, 3, 1, 0, 2, 4}, few[4] = {4, 1, 2, 5};
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .a = 3, .b = 1};
    cdp_mesh_desc d = {.group = g, .ndim = 2, .shape = {2, 3}};
    cdp_mesh *m[3];
    OK(cdp_mesh_create(&d, &m[0]));
    d = (cdp_mesh_desc){.group = g, .ranks = turned};
    OK(cdp_mesh_create(&d, &m[1]));
    d = (cdp_mesh_desc){.group = g, .ndim = 2, .shape = {2, 2}, .ranks = few};
    OK(cdp_mesh_create(&d, &m[2]));
    static const char *const texts[3][3] = {
        {"S0,S1", "P,S0", "R,S0"}, {"S0", "S1", "P"}, {"S0,S0", "S1,P", "S1,S0"}};
    for (uint32_t a = 0; a < 3; ++a)
        for (uint32_t b = 0; b < 3; ++b)
            for (uint32_t k = 0; k < 9; ++k) {
                cdp_layout l = {.dtype = CDP_DTYPE_I64, .ndim = 2, .shape = {7, 5}, .mesh = m[a]},
                           to = l;
                cdp_dtensor x, y;
                if (a == b || strchr(texts[b][k % 3], 'P')) continue;
                to.mesh = m[b];
                OK(cdp_layout_parse(&l, texts[a][k / 3]));
                OK(cdp_layout_parse(&to, texts[b][k % 3]));
                OK(cdp_dtensor_create(&l, NULL, &x));
                OK(cdp_dtensor_create(&to, NULL, &y));
                OK(cdp_dtensor_fill(&x, &ramp));
                OK(cdp_redistribute(&x, &y));
                test_check(ramp_is_right(&y, 3), __FILE__, __LINE__,
                    "mesh %u %s -> mesh %u %s on rank %u", a, texts[a][k / 3], b, texts[b][k % 3],
                    cdp_rank(g));
                cdp_dtensor_free(&x);
                cdp_dtensor_free(&y);
            }
    for (uint32_t k = 0; k < 3; ++k)
        cdp_mesh_destroy(m[k]);
}

TEST(redistribute_between_meshes) {
    RUN(6, between_meshes);
}

/* ---- random numbers ---- */

TEST(philox_and_its_functions) {
    uint32_t w[4];
    cdp__dt_philox(0, 0, 0, w); /* known answers of the Random123 paper's code */
    T(w[0] == 0x6627e8d5 && w[1] == 0xe169c58d && w[2] == 0xbc57ac4c && w[3] == 0x9b00dbd8);
    cdp__dt_philox(0xffffffffffffffffu, 0xffffffffffffffffu, 0xffffffffffffffffu, w);
    T(w[0] == 0x408f276d && w[1] == 0x41c83b0e && w[2] == 0xa20bc7c6 && w[3] == 0x6d5451fd);
    for (uint32_t i = 1; i < 2000; ++i) {
        const double u = i / 2000.0, turn = u * 6.283185307179586476925;
        T(fabs(cdp__dt_log(u) - log(u)) < 4e-16 * (1 + fabs(log(u))));
        T(fabs(cdp__dt_wave(u, false) - cos(turn)) < 1e-15);
        T(fabs(cdp__dt_wave(u, true) - sin(turn)) < 1e-15);
        T(fabs(cdp__dt_sqrt(u * 80) - sqrt(u * 80)) < 3e-15);
    }
    T(fabs(cdp__dt_log(5.42e-20) - log(5.42e-20)) < 1e-14);
}

/* The same bits on 1 and 6 ranks, in every layout. */
typedef struct drawn { /* the largest first: no padding */
    double two[7 * 6];
    float one[7 * 6];
    uint16_t half[7 * 6 + 2];
} drawn;
static drawn alone;

static void draw_whole(cdp_mesh *m, const char *places, cdp_fill_kind kind, drawn *out) {
    static const cdp_dtype dtypes[3] = {CDP_DTYPE_F16, CDP_DTYPE_F32, CDP_DTYPE_F64};
    const cdp_fill fill = {.kind = kind, .seed = 99, .stream = 5};
    void *const to[3] = {out->half, out->one, out->two};
    for (uint32_t k = 0; k < 3; ++k) {
        cdp_dtensor t;
        cdp_layout l = {.mesh = m, .dtype = dtypes[k], .ndim = 2, .shape = {7, 6}};
        OK(cdp_layout_parse(&l, places));
        OK(cdp_dtensor_create(&l, NULL, &t));
        OK(cdp_dtensor_fill(&t, &fill));
        OK(cdp_dtensor_check(&t, false));
        OK(cdp_dtensor_full(&t, to[k], CDP_EACH));
        cdp_dtensor_free(&t);
    }
}

static void draw_alone(cdp_group *g, void *arg) {
    cdp_mesh *m = mesh_of(g, 1, 1, 0);
    draw_whole(m, "R", *(const cdp_fill_kind *)arg, &alone);
    cdp_mesh_destroy(m);
}

static void draw_cut(cdp_group *g, void *arg) {
    static const char *const texts[] = {
        "R,R", "S0,R", "S1,S0", "S0!1,S0", "P,S1", "S0/2,S1/4", "P(avg),R"};
    cdp_mesh *m = mesh_of(g, 2, 2, 3);
    for (uint32_t k = 0; k < sizeof texts / sizeof *texts; ++k) {
        drawn got = {0};
        draw_whole(m, texts[k], *(const cdp_fill_kind *)arg, &got);
        test_check(memcmp(&got, &alone, sizeof got) == 0, __FILE__, __LINE__,
            "%s is not what one process draws", texts[k]);
    }
    cdp_mesh_destroy(m);
}

TEST(random_numbers_do_not_depend_on_the_cut) {
    for (uint32_t k = CDP_FILL_UNIFORM; k <= CDP_FILL_NORMAL; ++k) {
        cdp_fill_kind kind = (cdp_fill_kind)k;
        run_ranks(1, NULL, 0, draw_alone, &kind);
        run_ranks(6, NULL, 0, draw_cut, &kind);
    }
}

/* Mean, deviation and a chi-square of 100 bins over a million numbers. */
TEST(random_distributions) {
    const uint32_t n = 1000000;
    uint32_t bins[100] = {0};
    double sum = 0, squares = 0, chi = 0, ones = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const double u = cdp__dt_uniform(1, 2, i, false), z = cdp__dt_normal(1, 3, i, false);
        ++bins[(uint32_t)(u * 100)];
        sum += z;
        squares += z * z;
        ones += cdp__dt_uniform(1, 4, i, false) < 0.25;
    }
    for (uint32_t b = 0; b < 100; ++b)
        chi += ((double)bins[b] - n / 100.0) * ((double)bins[b] - n / 100.0) / (n / 100.0);
    T(chi > 50 && chi < 160); /* 99 degrees of freedom: mean 99, deviation 14 */
    T(fabs(sum / n) < 0.004);
    T(fabs(squares / n - 1) < 0.006);
    T(fabs(ones / n - 0.25) < 0.002);
}

static void factories(cdp_group *g, void *arg) {
    static const char *const texts[] = {"R,R", "S0,S0", "S1,S0"};
    (void)arg;
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    const cdp_fill fills[4] = {{.kind = CDP_FILL_ZERO}, {.kind = CDP_FILL_VALUE, .a = 1},
        {.kind = CDP_FILL_VALUE, .a = 2.5}, {.kind = CDP_FILL_RAMP, .a = -1, .b = 0.5}};
    for (uint32_t k = 0; k < 3; ++k)
        for (uint32_t f = 0; f < 4; ++f) {
            const cdp_layout l = layout_of(m, texts[k], 2, 5, 3, 0);
            cdp_dtensor t;
            float whole[15];
            OK(cdp_dtensor_create(&l, NULL, &t));
            OK(cdp_dtensor_fill(&t, &fills[f]));
            OK(cdp_dtensor_full(&t, whole, CDP_EACH));
            for (uint32_t i = 0; i < 15; ++i)
                T(whole[i] == (float)(fills[f].a + fills[f].b * i));
            cdp_dtensor_free(&t);
        }
    uint8_t mask[64], whole[64];
    const cdp_fill drop = {.kind = CDP_FILL_MASK, .a = 0.5, .seed = 3};
    cdp_layout l = {.mesh = m, .dtype = CDP_DTYPE_BOOL, .ndim = 1, .shape = {64}};
    cdp_dtensor t = {.layout = l, .data = mask};
    OK(cdp_dtensor_fill(&t, &drop));
    OK(cdp_layout_parse(&t.layout, "S0,S0"));
    uint8_t again[16];
    t.data = again;
    OK(cdp_dtensor_fill(&t, &drop));
    OK(cdp_dtensor_full(&t, whole, CDP_EACH));
    T(memcmp(mask, whole, 64)
        == 0); /* a dropout mask is the same forward and backward, whatever the cut */
    l.dtype = CDP_DTYPE_I32;
    t = (cdp_dtensor){.layout = l, .data = mask};
    REFUSED(CDP_ERR_UNSUPPORTED, "i32 cannot hold",
        cdp_dtensor_fill(&t, &(cdp_fill){.kind = CDP_FILL_NORMAL}));
    cdp_mesh_destroy(m);
}

TEST(factories_fill_by_index) {
    RUN(4, factories);
}

/* Every dtype, intervals with ends that some of them do not have. */
TEST(uniform_numbers_stay_in_their_interval) {
    static const double ends[][2] = {{0, 0}, {1, 2}, {-1, 1}, {100, 101}, {-2, -1}, {0.3, 0.9},
        {-0.7, -0.1}, {-1e-7, 1e-7}, {-1e30, 1e30}, {-1.7e308, 1.7e308}, {100, 100.00003},
        {1, 1 + 4 * DBL_EPSILON}}; /* few numbers of f32, of f64 */
    static const cdp_dtype dtypes[] = {CDP_DTYPE_F8E4M3, CDP_DTYPE_F8E5M2, CDP_DTYPE_BF16,
        CDP_DTYPE_F16, CDP_DTYPE_F32, CDP_DTYPE_F64};
    const uint64_t n = 1000;
    double memory[1000];
    cdp_mesh *m = paper_mesh(1, 1, 0, 0);
    for (uint32_t d = 0; d < sizeof dtypes / sizeof *dtypes; ++d)
        for (uint32_t k = 0; k < sizeof ends / sizeof *ends; ++k) {
            const double a = ends[k][0], b = a == 0 ? 1 : ends[k][1];
            cdp_dtensor t = {.layout = layout_of(m, "R", 1, n, 0, 0), .data = memory};
            const cdp_fill f = {
                .kind = CDP_FILL_UNIFORM, .a = a, .b = ends[k][1], .seed = 5, .stream = k};
            double least = INFINITY, most = -INFINITY;
            t.layout.dtype = dtypes[d];
            if (d < 2 && (k == 3 || k == 10)) { /* f8: 96 and 104, or 112 */
                REFUSED(CDP_ERR_INVALID, "no number of", cdp_dtensor_fill(&t, &f));
                continue;
            }
            OK(cdp_dtensor_fill(&t, &f));
            for (uint64_t i = 0; i < n; ++i) {
                const double x = cdp__number_get(dtypes[d], memory, i);
                least = fmin(least, x);
                most = fmax(most, x);
            }
            test_check(least >= a && most < b, __FILE__, __LINE__,
                "%s: [%.17g, %.17g] is not within [%g, %g)", cdp_dtype_name(dtypes[d]), least, most,
                a, b);
            if (d > 3 && k < 9 + d - 4) /* most of the interval is used */
                T(least - a < (b - a) * 0.02 && b - most < (b - a) * 0.02);
        }
    cdp_dtensor t = {.layout = layout_of(m, "R", 1, 4, 0, 0), .data = memory};
    t.layout.dtype = CDP_DTYPE_BF16;
    REFUSED(CDP_ERR_INVALID, "no number of bf16 is in [a, b)",
        cdp_dtensor_fill(&t, &(cdp_fill){.kind = CDP_FILL_UNIFORM, .a = 1.001, .b = 1.002}));
    REFUSED(CDP_ERR_INVALID, "both finite",
        cdp_dtensor_fill(&t, &(cdp_fill){.kind = CDP_FILL_UNIFORM, .a = 0, .b = INFINITY}));
    REFUSED(CDP_ERR_INVALID, "probability of a mask",
        cdp_dtensor_fill(&t, &(cdp_fill){.kind = CDP_FILL_MASK, .a = (double)NAN}));
    cdp_mesh_destroy(m);
}

/* ---- pictures, measurements, asynchronous plans ---- */

static char picture[1 << 16];

static void drawn_as(
    const char *places, uint32_t ndim, uint64_t a, uint64_t b, uint64_t c, const char *want) {
    cdp_mesh *m = paper_mesh(2, 2, 2, 0);
    const cdp_layout l = layout_of(m, places, ndim, a, b, c);
    const uint64_t n = cdp_layout_draw(&l, CDP_DRAW_TEXT, picture, sizeof picture);
    T_EQ(strlen(picture), n);
    const char *table = strchr(picture, '\n');
    test_check(
        table && strcmp(table + 1, want) == 0, __FILE__, __LINE__, "%s:\n%s", places, picture);
    T_EQ(n, cdp_layout_draw(&l, CDP_DRAW_TEXT, picture, 10));
    T_EQ(9, strlen(picture));
    T(cdp_layout_draw(&l, CDP_DRAW_COLOR, picture, sizeof picture) >= n);
    T(cdp_layout_draw(&l, CDP_DRAW_SVG, picture, sizeof picture) > 200);
    T_TEXT("prefers-color-scheme:dark", picture);
    T_TEXT("</svg>", picture);
    char title[120];
    cdp_layout_text(&l, title, sizeof title); /* the title */
    T_TEXT(title, picture);
    T(!strstr(picture, "NaN"));
    T(cdp_layout_draw(&l, CDP_DRAW_JSON, picture, sizeof picture) > 20);
    T_TEXT("\"rank\": 3, \"start\": [", picture);
    cdp_mesh_destroy(m);
}

TEST(layouts_drawn) {
    drawn_as("S0,S0", 1, 5, 0, 0,
        "          0-1         2           3           4\n          0           1           2      "
        "     3\n");
    drawn_as("S0,S1", 2, 5, 8, 0,
        "          0-3         4-7\n  0-2     0           1\n  3-4     2           3\n");
    drawn_as("R,S0", 2, 3, 2, 0, "          0-1\n  0-1     0 2\n  2       1 3\n");
    drawn_as("S0,S0", 1, 2, 0, 0,
        "          0           1\n          0           2\nempty on ranks 1 3\n");
    drawn_as("R,R", 0, 0, 0, 0, "          0 1 2 3\n");
    drawn_as("S0,R", 1, 0, 0, 0, "empty on ranks 0 1 2 3\n");
    drawn_as("S0,S2", 3, 2, 1, 3,
        "plane [0]\n          0-1         2\n  0       0           1\nplane [1]\n          0-1     "
        "    2\n  0       2           3\n");
    T_EQ(0, cdp_layout_draw(NULL, CDP_DRAW_TEXT, picture, sizeof picture));
}

TEST(plans_drawn) {
    cdp_mesh *m = paper_mesh(2, 2, 2, 0);
    cdp_plan_desc d = {.kind = CDP_PLAN_DIRECT,
        .from = layout_of(m, "S0,S1", 2, 5, 8, 0),
        .to = layout_of(m, "S1,S0", 2, 5, 8, 0)};
    cdp_plan *plan;
    if (!OK(cdp_plan_create(&d, &plan))) return;
    const uint64_t n = cdp_plan_draw(plan, CDP_DRAW_TEXT, picture, sizeof picture);
    T_EQ(strlen(picture), n);
    T_TEXT("f32[5,8] from S0,S1 to S1,S0 on mesh 2x2 (0,1)", picture);
    T_TEXT("bytes: 80, the least possible 80, PyTorch's steps 352", picture);
    T_TEXT("    1 -> 2  [0:3, 4:8]  48 bytes\n    2 -> 1  [3:5, 0:4]  32 bytes\n", picture);
    T_TEXT("  1         .       .       48      .\n", picture);
    T(cdp_plan_draw(plan, CDP_DRAW_SVG, picture, sizeof picture) > 300);
    T_TEXT("1 to 2: 48 bytes", picture);
    T(cdp_plan_draw(plan, CDP_DRAW_JSON, picture, sizeof picture) > 100);
    T_TEXT("{\"from\": 1, \"to\": 2, \"start\": [0,4], \"size\": [3,4]}", picture);
    T_EQ(0, cdp_plan_draw(NULL, CDP_DRAW_TEXT, picture, sizeof picture));
    cdp_plan_destroy(plan);
    d.kind = CDP_PLAN_TORCH;
    if (OK(cdp_plan_create(&d, &plan)))
        T(cdp_plan_draw(plan, CDP_DRAW_TEXT, picture, sizeof picture) > n);
    T_TEXT("PyTorch's steps: phases: ", picture);
    cdp_plan_destroy(plan);
    cdp_mesh_destroy(m);
}

/* A plan that runs as a collective is drawn as that: no message between two ranks is claimed. */
TEST(collectives_drawn) {
    static const char *const rows[][3] = {{"P,P", "R,R", "allreduce"},
        {"P,P", "S0,S0", "reduce_scatter"}, {"S0,S0", "R,R", "allgather"}};
    cdp_mesh *m = paper_mesh(2, 2, 2, 0);
    for (uint32_t k = 0; k < 3; ++k) {
        char text[200];
        cdp_plan *plan;
        const cdp_plan_desc d = {.from = layout_of(m, rows[k][0], 1, 8, 0, 0),
            .to = layout_of(m, rows[k][1], 1, 8, 0, 0)};
        if (!OK(cdp_plan_create(&d, &plan))) return;
        const unsigned bytes = k == 0 ? 48 : 24; /* of each of 4 ranks: 3 parts of 8, twice */
        (void)cdp_plan_draw(plan, CDP_DRAW_TEXT, picture, sizeof picture);
        snprintf(text, sizeof text, "\n  %s: phases: ", rows[k][2]);
        T_TEXT(text, picture);
        snprintf(text, sizeof text,
            "  1. %s to %s, one %s of the group: %u bytes\n    0 receives %u bytes\n    1 "
            "receives ",
            rows[k][0], rows[k][1], rows[k][2], 4 * bytes, bytes);
        T_TEXT(text, picture);
        T(!strstr(picture, "->"));
        (void)cdp_plan_draw(plan, CDP_DRAW_SVG, picture, sizeof picture);
        snprintf(text, sizeof text, "<title>rank 3 receives %u bytes</title>", bytes);
        T_TEXT(text, picture);
        T_TEXT(rows[k][2], picture);
        T(strstr(picture, " to 1: ") == NULL);
        (void)cdp_plan_draw(plan, CDP_DRAW_JSON, picture, sizeof picture);
        snprintf(text, sizeof text, "\"collective\": \"%s\", \"recv_bytes\": [%u, %u, ", rows[k][2],
            bytes, bytes);
        T_TEXT(text, picture);
        T_TEXT("\"messages\": []}]}\n", picture);
        T(!strstr(picture, "\"from\""));
        cdp_plan_destroy(plan);
    }
    cdp_mesh_destroy(m);
    m = paper_mesh(2, 2, 2, 0);
    const cdp_plan_desc d = {
        .from = layout_of(m, "P,S0", 1, 8, 0, 0), .to = layout_of(m, "R,S0", 1, 8, 0, 0)};
    cdp_plan *plan;
    if (!OK(cdp_plan_create(&d, &plan))) return;
    (void)cdp_plan_draw(plan, CDP_DRAW_TEXT, picture, sizeof picture);
    T_TEXT("one allreduce of each row: 64 bytes\n    0 receives 16 bytes\n", picture);
    cdp_plan_destroy(plan);
    cdp_mesh_destroy(m);
}

/* Two stages: one of calls, one of messages. */
TEST(sums_along_dimensions_drawn) {
    cdp_mesh *m = paper_mesh(2, 4, 2, 0);
    const cdp_plan_desc d = {.from = layout_of(m, "P,R", 1, 16, 0, 0),
        .to = layout_of(m, "R,R", 1, 16, 0, 0),
        .kind = CDP_PLAN_COLLECTIVES};
    cdp_plan *plan;
    if (!OK(cdp_plan_create(&d, &plan))) return;
    (void)cdp_plan_draw(plan, CDP_DRAW_TEXT, picture, sizeof picture);
    T_TEXT("\n  collectives: phases: 3; bytes: ", picture);
    T_TEXT("  1. P,R to R,R, allreduce, allgather: 640 bytes\n    0 receives 80 bytes\n", picture);
    (void)cdp_plan_draw(plan, CDP_DRAW_SVG, picture, sizeof picture);
    T_TEXT("<title>rank 7 receives 80 bytes</title>", picture);
    (void)cdp_plan_draw(plan, CDP_DRAW_JSON, picture, sizeof picture);
    T_TEXT(
        "[\n  {\"reduces\": true, \"collective\": \"allreduce, allgather\", \"recv_bytes\": [80, ",
        picture);
    cdp_plan_destroy(plan);
    cdp_mesh_destroy(m);
}

static void measured(cdp_group *g, void *arg) {
    (void)arg;
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    cdp_net net;
    double all[4];
    OK(cdp_mesh_measure(m, &net));
    T(net.latency_us > 0 && net.bytes_per_us > 0 && net.far_latency_us > 0
        && net.copy_bytes_per_us > 0 && net.reduce_bytes_per_us > 0);
    OK(cdp_allgather(g, &net.latency_us, all, 1, CDP_DTYPE_F64));
    T(all[0] == all[1] && all[0] == all[2]
        && all[0] == all[3]); /* or ranks would choose different plans */
    cdp_plan_desc d = {.from = layout_of(m, "P,S0", 2, 9, 4, 0),
        .to = layout_of(m, "S1,R", 2, 9, 4, 0),
        .net = net};
    cdp_plan *plan;
    cdp_work work;
    float in[36], out[36];
    for (uint32_t i = 0; i < 36; ++i)
        in[i] = 1;
    if (!OK(cdp_plan_create(&d, &plan))) return;
    T(cdp_plan_info_of(plan).predicted_us > 0);
    for (uint32_t k = 0; k < 3; ++k) {
        OK(cdp_plan_run_async(plan, in, out, &work));
        OK(cdp_work_wait(work));
        for (uint32_t i = 0; i < 18; ++i)
            T(out[i] == 2);
        OK(cdp_barrier(g));
    }
    cdp_plan_destroy(plan);
    cdp_mesh_destroy(m);
}

static void running(cdp_group *g, void *arg) {
    (void)arg;
    cdp_mesh *m = mesh_of(g, 1, 2, 0);
    cdp_plan_desc d = {.from = layout_of(m, "P", 1, 8, 0, 0), .to = layout_of(m, "R", 1, 8, 0, 0)};
    cdp_plan *plan;
    cdp_work work;
    float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8];
    if (!OK(cdp_plan_create(&d, &plan))) return;
    OK(cdp_plan_run(plan, in, out));
    if (cdp_rank(g) == 0) { /* the other rank has not come: this run cannot be done */
        OK(cdp_plan_run_async(plan, in, out, &work));
        REFUSED(CDP_ERR_STATE, "is not done", cdp_plan_run(plan, in, out));
        REFUSED(CDP_ERR_STATE, "is not done", cdp_plan_run_async(plan, in, out, &(cdp_work){0}));
        OK(cdp_barrier(g));
    } else {
        OK(cdp_barrier(g));
        OK(cdp_plan_run_async(plan, in, out, &work));
    }
    OK(cdp_work_wait(work));
    for (uint32_t i = 0; i < 8; ++i)
        T(out[i] == (float)(2 * (i + 1)));
    cdp_plan_destroy(plan);
    cdp_mesh_destroy(m);
}

/* Meshes of other shapes come and go, mostly at the address of the one before. */
static void meshes_that_end(cdp_group *g, void *arg) {
    static const uint32_t shapes[3][2] = {{2, 2}, {4, 1}, {1, 4}};
    const char *const names[2] = {"x", "y"};
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .a = 3, .b = 1};
    cdp_mesh *m = mesh_of(g, 1, 4, 0);
    cdp_layout from = {.mesh = m, .dtype = CDP_DTYPE_I64, .ndim = 2, .shape = {4, 4}};
    (void)arg;
    OK(cdp_layout_parse(&from, "S0"));
    for (uint32_t turn = 0; m && turn < 30 && !test__now.failed_checks; ++turn) {
        cdp_dtensor x, y;
        cdp_mesh *b;
        if (!OK(cdp_mesh_unflatten(
                m, m->desc.names[0], 2, shapes[(turn * 7 + turn / 3) % 3], names, &b)))
            return;
        cdp_layout to = {.mesh = b, .dtype = CDP_DTYPE_I64, .ndim = 2, .shape = {4, 4}};
        OK(cdp_layout_parse(&to, "S0,S1"));
        OK(cdp_dtensor_create(&from, NULL, &x));
        OK(cdp_dtensor_create(&to, NULL, &y));
        OK(cdp_dtensor_fill(&x, &ramp));
        OK(cdp_redistribute(&x, &y));
        test_check(ramp_is_right(&y, 3), __FILE__, __LINE__, "turn %u", turn);
        OK(cdp_redistribute(&y, &x)); /* kept by the mesh that ends */
        test_check(ramp_is_right(&x, 3), __FILE__, __LINE__, "back in turn %u", turn);
        cdp_dtensor_free(&x);
        cdp_dtensor_free(&y);
        cdp_mesh_destroy(b);
        T(!m->kept && !m->kept_to);
    }
    cdp_mesh_destroy(m);
}

/* Two layers are moved ahead at a time; ranks start the second one while the first is in flight, or
   after it. */
static void two_runs_at_a_time(cdp_group *g, void *arg) {
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .a = 5, .b = 1};
    cdp_mesh *m = mesh_of(g, 1, 4, 0);
    cdp_layout from = layout_of(m, "S0", 2, 64, 64, 0), to = layout_of(m, "S1", 2, 64, 64, 0);
    cdp_dtensor x[2], y[2];
    cdp_work work[2];
    (void)arg;
    from.dtype = to.dtype = CDP_DTYPE_I64;
    for (uint32_t i = 0; i < 2; ++i) {
        OK(cdp_dtensor_create(&from, NULL, &x[i]));
        OK(cdp_dtensor_create(&to, NULL, &y[i]));
        OK(cdp_dtensor_fill(&x[i], &ramp));
    }
    for (uint32_t late = 0; late < 6; ++late) {
        if (late == 1 + cdp_rank(g)) test_sleep_ms(30);
        OK(cdp_redistribute_async(&x[0], &y[0], &work[0]));
        if (late % 2 && cdp_rank(g) > 1) test_sleep_ms(60);
        OK(cdp_redistribute_async(&x[1], &y[1], &work[1]));
        OK(cdp_work_wait(work[0]));
        OK(cdp_work_wait(work[1]));
        T(ramp_is_right(&y[0], 5) && ramp_is_right(&y[1], 5));
        memset(y[0].data, 0, cdp__dt_local_bytes(&to));
        memset(y[1].data, 0, cdp__dt_local_bytes(&to));
    }
    for (uint32_t i = 0; i < 2; ++i) {
        cdp_dtensor_free(&x[i]);
        cdp_dtensor_free(&y[i]);
    }
    cdp_mesh_destroy(m);
}

/* A plan that is kept is found by the numbers of its layouts, without looking at what they mean:
   each of them counts. */
TEST(a_kept_plan_is_found_by_every_number) {
    cdp_mesh *m = paper_mesh(2, 2, 2, 0), *other = paper_mesh(2, 2, 2, 0);
    const cdp_plan_desc d = {
        .from = layout_of(m, "S0,P", 2, 8, 6, 0), .to = layout_of(m, "S0,R", 2, 8, 6, 0)};
    cdp_plan *plan = NULL, *found = NULL;
    OK(cdp__dt_kept_found(&d.from, &d.to, &found));
    T(!found);
    OK(cdp__dt_kept_plan(&d, &plan));
    for (int k = 0; k < 24; ++k) {
        cdp_plan_desc v = d;
        cdp_layout *const l = k % 2 ? &v.from : &v.to;
        switch (k / 2) {
        case 0: break;
        case 1: l->mesh = other; break;
        case 2: l->dtype = CDP_DTYPE_F64; break;
        case 3: l->ndim = 1; break;
        case 4: l->shape[0] = 10; break;
        case 5: l->shape[1] = 7; break;
        case 6: l->place[0].kind = CDP_PLACE_REPLICATE; break;
        case 7: l->place[0].dim = 1; break;
        case 8: l->place[1].op = CDP_REDUCE_MAX; break;
        case 9: l->place[0].order = 1; break;
        case 10: l->place[0].cut = 1; break;
        default: l->place[0].block = 2; break;
        }
        OK(cdp__dt_kept_found(&v.from, &v.to, &found));
        test_check((found == plan) == (k / 2 == 0), __FILE__, __LINE__, "variant %d", k);
    }
    const cdp_layout gone = layout_of(other, "S0,R", 2, 8, 6, 0);
    cdp_mesh_destroy(other);
    REFUSED(CDP_ERR_STATE, "its mesh was destroyed", cdp_layout_check(&gone));
    OK(cdp__dt_kept_found(&gone, &d.to, &found));
    T(!found);
    cdp_mesh_destroy(m);
}

TEST(a_kept_plan_ends_with_either_of_its_meshes) {
    RUN(4, meshes_that_end);
}

/* Sums of ten sizes, which are no collective; then two of them in flight at one
   time. */
static void sums_in_shared_memory(cdp_group *g, void *arg) {
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    cdp_dtensor x[10], y[10];
    cdp_work work[2];
    (void)arg;
    for (uint32_t k = 0; k < 10; ++k) {
        const cdp_layout l = layout_of(m, "P,S0", 1, 1000 + 100 * k, 0, 0);
        const cdp_layout all = layout_of(m, "R,R", 1, 1000 + 100 * k, 0, 0);
        OK(cdp_dtensor_create(&l, NULL, &x[k]));
        OK(cdp_dtensor_create(&all, NULL, &y[k]));
        OK(cdp_dtensor_fill(&x[k], &(cdp_fill){.kind = CDP_FILL_RAMP, .a = k, .b = 1}));
        OK(cdp_redistribute(&x[k], &y[k]));
        T(m->root->scratch && !m->root->scratch->next && !m->root->scratch->held);
    }
    T(m->root->scratch->bytes < 3 * 1900 * sizeof(float));
    for (uint32_t k = 0; k < 2; ++k)
        OK(cdp_redistribute_async(&x[k], &y[k], &work[k]));
    for (uint32_t k = 0; k < 2; ++k)
        OK(cdp_work_wait(work[k]));
    for (uint32_t k = 0; k < 10; ++k)
        for (uint32_t i = 0; i < 1000; ++i)
            T(((float *)y[k].data)[i] == (float)(k + i));
    cdp_mesh_drop_plans(m);
    T(!m->kept && !m->root->scratch);
    OK(cdp_redistribute(&x[0], &y[0])); /* and made again */
    for (uint32_t k = 0; k < 10; ++k) {
        cdp_dtensor_free(&x[k]);
        cdp_dtensor_free(&y[k]);
    }
    cdp_mesh_destroy(m);
    cdp_mesh_drop_plans(NULL);
}

TEST(plans_share_their_scratch_memory) {
    RUN(4, sums_in_shared_memory);
}

/* Pieces of the same uneven sizes in every step: one cut. And what is refused says which rank. */
static void cuts_of_every_step(cdp_group *g, void *arg) {
    cdp_mesh *m = mesh_of(g, 1, 3, 0);
    const uint64_t rows = 2 + cdp_rank(g);
    cdp_dtensor x, y;
    char who[16];
    (void)arg;
    for (uint32_t k = 0; k < 20; ++k) {
        cdp_layout l = {.mesh = m, .ndim = 1};
        l.place[0].kind = CDP_PLACE_SHARD;
        OK(cdp_layout_from_local(m, &l, &rows));
        T_EQ(9, l.shape[0]);
        T_EQ(1, l.place[0].cut);
    }
    T_EQ(1, m->cuts.count);
    const cdp_layout a = layout_of(m, "S0", 1, 9, 0, 0), b = layout_of(m, "P(max)", 1, 9, 0, 0);
    OK(cdp_dtensor_create(&a, NULL, &x));
    OK(cdp_dtensor_create(&b, NULL, &y));
    snprintf(who, sizeof who, "rank %u/3: plan:", cdp_rank(g));
    REFUSED(CDP_ERR_UNSUPPORTED, who, cdp_redistribute(&x, &y));
    cdp_dtensor_free(&x);
    cdp_dtensor_free(&y);
    cdp_mesh_destroy(m);
}

TEST(equal_cuts_are_one_and_refusals_name_their_rank) {
    RUN(3, cuts_of_every_step);
}

/* An os that counts the blocks of a mesh that are not freed. */
static uint64_t blocks_now;
static void *block_alloc(void *user, uint64_t bytes) {
    (void)user;
    ++blocks_now;
    return cdp_os_default()->alloc(cdp_os_default()->user, bytes);
}
static void block_release(void *user, void *memory) {
    (void)user;
    --blocks_now;
    cdp_os_default()->release(cdp_os_default()->user, memory);
}

/* A layout on a mesh of one dimension, with a cut like those of cdp_layout_from_local(). */
static cdp_layout passing_cut(cdp_mesh *m, uint64_t a, uint64_t b) {
    const uint64_t sizes[3] = {a, b, 7};
    cdp_layout l = {.mesh = m, .ndim = 1, .shape = {a + b + 7}};
    l.place[0].kind = CDP_PLACE_SHARD;
    OK(cdp__dt_cut_of(m, 0, sizes, true, &l.place[0].cut));
    return l;
}

/* 100,000 different cuts in bounded memory. What was used last is valid, and so is what the program
   keeps; a plan goes on with a cut that was replaced. */
TEST(cuts_do_not_grow_with_calls) {
    cdp_os os = *cdp_os_default();
    cdp_mesh *m = paper_mesh(1, 3, 0, 0);
    const cdp_os *const own = m->root->os;
    const uint64_t keep[3] = {2, 900, 7};
    char a[4096], b[4096];
    uint32_t kept;
    cdp_plan *p;
    os.alloc = block_alloc;
    os.release = block_release;
    m->root->os = &os;
    blocks_now = 0;
    const cdp_layout first = passing_cut(m, 1, 900), second = passing_cut(m, 2, 900);
    T_EQ(second.place[0].cut, passing_cut(m, 2, 900).place[0].cut);
    OK(cdp_mesh_cut(m, 0, keep, &kept));
    T_EQ(second.place[0].cut, kept);
    cdp_plan_desc d = {.from = first, .to = layout_of(m, "R", 1, 908, 0, 0)};
    OK(cdp_plan_create(&d, &p));
    (void)cdp_plan_draw(p, CDP_DRAW_TEXT, a, sizeof a);
    const uint64_t before = blocks_now;
    for (uint64_t k = 0; k < 100000; ++k) {
        const cdp_layout l = passing_cut(m, 5 + k, 1000);
        T_EQ(7, cdp_layout_box(&l, (const uint32_t[]){2}, NULL));
        if (k == CDP_MESH_CUTS - 2) OK(cdp_layout_check(&first)); /* there was room for all */
        if (k % 1000 == 0) T(blocks_now <= before + CDP_MESH_CUTS);
    }
    T_EQ(CDP_MESH_CUTS + 2, m->cuts.count); /* the kept one, and that of the plan */
    REFUSED(CDP_ERR_STATE, "cut 1 of mesh dimension 0 was replaced", cdp_layout_check(&first));
    T_EQ(0, cdp_layout_box(&first, NULL, NULL));
    T(!cdp_layout_same(&first, &first));
    OK(cdp_layout_check(&second));
    T_EQ(2, cdp_layout_box(&second, NULL, NULL));
    (void)cdp_plan_draw(p, CDP_DRAW_TEXT, b, sizeof b);
    T(strcmp(a, b) == 0);
    const cdp_layout again = passing_cut(m, 1, 900); /* another number, though a plan has the old */
    T(again.place[0].cut > 100000);
    cdp_plan_destroy(p);
    T_EQ(CDP_MESH_CUTS + 1, m->cuts.count);
    for (uint64_t k = 0; k < 2 * CDP_MESH_CUTS; ++k) { /* in use all the time: valid */
        (void)passing_cut(m, 5 + k, 2000);
        (void)passing_cut(m, 1, 900);
    }
    OK(cdp_layout_check(&again));
    T_EQ(64, cdp__dt_cuts_most(65535));
    T_EQ(CDP_MESH_CUTS, cdp__dt_cuts_most(127));
    T(cdp__dt_cuts_most(128) < CDP_MESH_CUTS);
    cdp__dt_cuts_free(m);
    T_EQ(0, blocks_now);
    memset(&m->cuts, 0, sizeof m->cuts);
    m->root->os = own;
    cdp_mesh_destroy(m);
}

/* Different pieces in every step: cuts that are redistributed from stay, the others go, at the same
   time on all ranks. */
static void other_cuts_in_every_step(cdp_group *g, void *arg) {
    cdp_mesh *m = mesh_of(g, 1, 2, 0);
    const uint32_t me = cdp_rank(g);
    const cdp_layout all = layout_of(m, "R", 1, 10, 0, 0);
    cdp_layout used = {.mesh = m, .ndim = 1}, unused = used;
    cdp_dtensor x, y;
    uint64_t rows = me ? 8 : 2;
    used.place[0].kind = unused.place[0].kind = CDP_PLACE_SHARD;
    (void)arg;
    OK(cdp_layout_from_local(m, &used, &rows));
    rows = me ? 9 : 1;
    OK(cdp_layout_from_local(m, &unused, &rows));
    OK(cdp_dtensor_create(&used, NULL, &x));
    OK(cdp_dtensor_create(&all, NULL, &y));
    OK(cdp_dtensor_fill(&x, &(cdp_fill){.kind = CDP_FILL_RAMP, .b = 1}));
    for (uint64_t k = 0; k < 10000; ++k) {
        cdp_layout l = {.mesh = m, .ndim = 1};
        l.place[0].kind = CDP_PLACE_SHARD;
        rows = me ? 20 + k : 1;
        OK(cdp_layout_from_local(m, &l, &rows));
        if (k % 1000) continue;
        OK(cdp_redistribute(&x, &y));
        for (uint32_t i = 0; i < 10; ++i)
            T(((float *)y.data)[i] == (float)i);
    }
    OK(cdp_layout_check(&used));
    REFUSED(CDP_ERR_STATE, "cut 2 of mesh dimension 0 was replaced", cdp_layout_check(&unused));
    T_EQ(CDP_MESH_CUTS, m->cuts.count);
    cdp_dtensor_free(&x);
    cdp_dtensor_free(&y);
    cdp_mesh_destroy(m);
}

TEST(other_cuts_of_pieces_in_every_step) {
    RUN(2, other_cuts_in_every_step);
}

/* Two meshes of the same ranks, whose cuts have the same number and are not equal. */
static void cuts_of_two_meshes(cdp_group *g, void *arg) {
    static const char *const to[2] = {"S0#1,S1,R", "P,R,S1"};
    const uint64_t one[2] = {6, 2}, other[2] = {1, 7};
    cdp_mesh *a = mesh_of(g, 3, 2, 2), *b = mesh_of(g, 3, 2, 2);
    uint32_t cut;
    (void)arg;
    OK(cdp_mesh_cut(a, 0, one, &cut));
    OK(cdp_mesh_cut(b, 0, other, &cut));
    for (uint32_t k = 0; k < 2; ++k) {
        const cdp_layout from = layout_of(a, "S0#1,R,S1", 2, 8, 4, 0);
        const cdp_layout l = layout_of(b, to[k], 2, 8, 4, 0);
        cdp_plan_desc d = {.from = from, .to = l};
        float whole[32];
        cdp_dtensor x, y;
        cdp_plan *p;
        OK(cdp_dtensor_create(&from, NULL, &x));
        OK(cdp_dtensor_create(&l, NULL, &y));
        OK(cdp_dtensor_fill(&x, &(cdp_fill){.kind = CDP_FILL_RAMP, .a = 1, .b = 1}));
        OK(cdp_redistribute(&x, &y));
        OK(cdp_dtensor_full(&y, whole, CDP_EACH));
        for (uint32_t i = 0; i < 32; ++i)
            T_EQ((uint64_t)i + 1, (uint64_t)whole[i]);
        for (uint32_t kind = CDP_PLAN_BY_DIM; kind <= CDP_PLAN_TORCH; ++kind) {
            d.kind = (cdp_plan_kind)kind;
            REFUSED(CDP_ERR_UNSUPPORTED, "of which all cuts must be", cdp_plan_create(&d, &p));
        }
        d.kind = CDP_PLAN_DIRECT;
        OK(cdp_plan_create(&d, &p));
        T(cdp_plan_info_of(p).torch_bytes == cdp_plan_info_of(p).bound_bytes);
        cdp_plan_destroy(p);
        cdp_dtensor_free(&x);
        cdp_dtensor_free(&y);
    }
    cdp_mesh_destroy(a);
    cdp_mesh_destroy(b);
}

TEST(a_number_of_a_cut_is_of_its_mesh) {
    RUN(8, cuts_of_two_meshes);
}

TEST(runs_of_equal_layouts_at_one_time) {
    RUN(4, two_runs_at_a_time);
}

TEST(no_plan_between_meshes_of_two_groups) {
    cdp_mesh *a = paper_mesh(1, 4, 0, 0), *b = paper_mesh(1, 64, 0, 0);
    cdp_plan_desc d = {
        .from = layout_of(a, "S0", 1, 64, 0, 0), .to = layout_of(b, "S0", 1, 64, 0, 0)};
    cdp_plan *p;
    REFUSED(CDP_ERR_INVALID, "of 4 and of 64 ranks", cdp_plan_create(&d, &p));
    T(!p);
    cdp_mesh_destroy(a);
    cdp_mesh_destroy(b);
}

TEST(mesh_measured_and_plans_async) {
    RUN(4, measured);
}

/* Rank 2 makes a plan that differs from those of the others in one thing. */
typedef struct odd_plan {
    uint32_t shape[2];
    const char *names[2], *from;
    cdp_plan_kind kind;
    double latency_us;
    const char *says; /* NULL: it means the same */
} odd_plan;

static void plan_of_another_rank(cdp_group *g, void *arg) {
    static const odd_plan usual = {{2, 2}, {"a", "b"}, "S0,S0", CDP_PLAN_BEST, 0, NULL};
    const odd_plan *odd = cdp_rank(g) == 2 ? (const odd_plan *)arg : &usual;
    const cdp_mesh_desc md = {.group = g,
        .ndim = 2,
        .shape = {odd->shape[0], odd->shape[1]},
        .names = {odd->names[0], odd->names[1]},
        .no_check = true};
    float in[64] = {0}, out[64];
    cdp_mesh *m;
    cdp_plan *p;
    OK(cdp_mesh_create(&md, &m));
    const cdp_plan_desc d = {.from = layout_of(m, odd->from, 2, 8, 8, 0),
        .to = layout_of(m, "R,R", 2, 8, 8, 0),
        .kind = odd->kind,
        .net = {.latency_us = odd->latency_us}};
    OK(cdp_plan_create(&d, &p));
    const char *says = ((const odd_plan *)arg)->says;
    if (says)
        REFUSED(CDP_ERR_MISMATCH, says, cdp_plan_run(p, in, out));
    else
        OK(cdp_plan_run(p, in, out));
    T_EQ(CDP_OK, cdp_group_status(g));
    cdp_plan_destroy(p);
    cdp_mesh_destroy(m);
}

TEST(plans_that_differ_are_told_at_once) {
    static const odd_plan plans[] = {
        {{4, 1}, {"a", "b"}, "S0,R", 0, 0, "from.mesh.shape[0] is 2 on rank 0 and 4 on rank 2"},
        {{2, 2}, {"a", "c"}, "S0,S0", 0, 0, "from.mesh.names[1] is not the same on ranks 0 and 2"},
        {{2, 2}, {"a", "b"}, "S0!1,S0", 0, 0, "from.place[0].order is 0 on rank 0 and 1 on rank"},
        {{2, 2}, {"a", "b"}, "S0/8,S0", 0, 0, "from.place[0].block is 0 on rank 0 and 8 on rank"},
        {{2, 2}, {"a", "b"}, "S0,S1", 0, 0, "from.place[1].dim is 0 on rank 0 and 1 on rank 2"},
        {{2, 2}, {"a", "b"}, "S0,S0", CDP_PLAN_DIRECT, 0, "kind, from_one, to_one or root is"},
        {{2, 2}, {"a", "b"}, "S-2/1,S0/1", 0, 0, NULL}, {{2, 2}, {"a", "b"}, "S0/2,S0", 0, 0, NULL},
        {{2, 2}, {"a", "b"}, "S0!1,S0!7", 0, 0, NULL}};
    for (uint32_t k = 0; k < sizeof plans / sizeof *plans; ++k)
        run_counted(4, plan_of_another_rank, (void *)(uintptr_t)&plans[k]);
}

/* A plan that was compared long ago meets one that is new. Either may be a collective. */
typedef struct kept_and_new {
    const char *from, *kept, *other;
} kept_and_new;

static void kept_meets_new(cdp_group *g, void *arg) {
    const kept_and_new *row = (const kept_and_new *)arg;
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    const cdp_layout l = layout_of(m, row->from, 2, 8, 8, 0);
    const cdp_layout all = layout_of(m, row->kept, 2, 8, 8, 0);
    const cdp_layout other = layout_of(m, row->other, 2, 8, 8, 0);
    cdp_dtensor x, y, z;
    OK(cdp_dtensor_create(&l, NULL, &x));
    OK(cdp_dtensor_create(&all, NULL, &y));
    OK(cdp_dtensor_create(&other, NULL, &z));
    OK(cdp_dtensor_fill(&x, &(cdp_fill){0}));
    OK(cdp_redistribute(&x, &y));
    OK(cdp_barrier(g)); /* a rank that is ahead would fail what others are still in */
    REFUSED(CDP_ERR_MISMATCH, "different things", cdp_redistribute(&x, cdp_rank(g) == 2 ? &z : &y));
    cdp_dtensor_free(&x);
    cdp_dtensor_free(&y);
    cdp_dtensor_free(&z);
    cdp_mesh_destroy(m);
}

TEST(a_kept_plan_meets_a_new_one) {
    static const kept_and_new rows[] = {{"S0,S0", "R,R", "S1,S1"}, {"S0,S0", "S1,S1", "R,R"},
        {"S0,S0", "S1,S1", "R,S0"}, {"P,P", "R,R", "S0,S0"}, {"P,P", "S0,S0", "R,S0"}};
    for (uint32_t k = 0; k < sizeof rows / sizeof *rows; ++k)
        run_counted(4, kept_meets_new, (void *)(uintptr_t)&rows[k]);
}

/* Plans that were compared, of which one runs in the groups of dimension 0 of a 2 x 2 mesh (or 1,
   where the mesh is turned), meet one that is new. */
typedef struct row_and_new {
    const char *from, *kept, *other_from, *other;
    uint32_t odd; /* bits: ranks that run the kept plan again */
    bool async;
} row_and_new;

static void row_meets_new(cdp_group *g, void *arg) {
    const row_and_new *row = (const row_and_new *)arg;
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    const bool kept = row->odd >> cdp_rank(g) & 1;
    const cdp_layout l[4] = {layout_of(m, row->from, 2, 8, 8, 0),
        layout_of(m, row->kept, 2, 8, 8, 0), layout_of(m, row->other_from, 2, 8, 8, 0),
        layout_of(m, row->other, 2, 8, 8, 0)};
    cdp_dtensor t[4];
    cdp_work work = {NULL, 0};
    for (uint32_t k = 0; k < 4; ++k) {
        OK(cdp_dtensor_create(&l[k], NULL, &t[k]));
        OK(cdp_dtensor_fill(&t[k], &(cdp_fill){0}));
    }
    OK(cdp_redistribute(&t[0], &t[1]));
    OK(cdp_barrier(g)); /* a rank that is ahead would fail what others are still in */
    const uint32_t a = kept ? 0 : 2;
    cdp_status st;
    if (row->async) {
        st = cdp_redistribute_async(&t[a], &t[a + 1], &work);
        if (st == CDP_OK) st = cdp_work_wait(work);
    } else {
        st = cdp_redistribute(&t[a], &t[a + 1]);
    }
    REFUSED(CDP_ERR_MISMATCH, "different things", st);
    for (uint32_t k = 0; k < 4; ++k)
        cdp_dtensor_free(&t[k]);
    cdp_mesh_destroy(m);
}

TEST(a_kept_plan_of_a_row_meets_a_new_one) {
    static const row_and_new rows[] = {
        {"P,S0", "R,S0", "S0,S0", "R,R", 4, false}, /* of all ranks */
        {"P,S0", "R,S0", "S0,S0", "R,R", 4, true},
        {"S0,P", "S0,R", "S1,S1", "S0,S0", 8, false}, /* messages */
        {"S0,P", "S0,R", "S1,S1", "S0,S0", 1, true},
        {"P,S0", "R,S0", "S1,P", "S1,R", 2, false},  /* of the other dimension */
        {"P,S0", "R,S0", "S1,P", "S1,R", 6, false},  /* a pair that shares no row */
        {"S0,S1", "R,S1", "P,S0", "R,S0", 1, false}, /* of the same dimension */
        {"P,S1", "S0,S1", "P,S0", "R,S0", 3, true}};
    for (uint32_t k = 0; k < sizeof rows / sizeof *rows; ++k)
        run_counted(4, row_meets_new, (void *)(uintptr_t)&rows[k]);
}

/* One whole row runs a kept plan once more, alone; the other one a new plan, which is compared with
   the next new one of that row. */
static void one_row_is_ahead(cdp_group *g, void *arg) {
    cdp_mesh *m = mesh_of(g, 2, 2, 2);
    const cdp_layout p = layout_of(m, "S0,P", 2, 8, 8, 0), r = layout_of(m, "S0,R", 2, 8, 8, 0);
    const cdp_layout q = layout_of(m, "S1,P", 2, 8, 8, 0), s = layout_of(m, "S1,R", 2, 8, 8, 0);
    const cdp_layout u = layout_of(m, "S1,S0", 2, 8, 8, 0);
    cdp_dtensor t[5];
    (void)arg;
    const cdp_layout *const l[5] = {&p, &r, &q, &s, &u};
    for (uint32_t k = 0; k < 5; ++k) {
        OK(cdp_dtensor_create(l[k], NULL, &t[k]));
        OK(cdp_dtensor_fill(&t[k], &(cdp_fill){0}));
    }
    OK(cdp_redistribute(&t[0], &t[1]));
    if (cdp_rank(g) < 2) OK(cdp_redistribute(&t[0], &t[1]));
    REFUSED(CDP_ERR_MISMATCH, "to.place[1].kind is ",
        cdp_redistribute(&t[2], cdp_rank(g) < 2 ? &t[4] : &t[3]));
    OK(cdp_redistribute(&t[0], &t[1])); /* the groups are as they were */
    OK(cdp_redistribute(&t[2], &t[3]));
    for (uint32_t k = 0; k < 5; ++k)
        cdp_dtensor_free(&t[k]);
    cdp_mesh_destroy(m);
}

TEST(a_row_that_is_ahead_is_told_what_differs) {
    run_counted(4, one_row_is_ahead, NULL);
}

TEST(a_running_plan_is_refused) {
    RUN(2, running);
}

/* Plans for 4,096 ranks: under 10 ms for one rank, the choice among the kinds included. */
TEST(plans_for_4096_ranks) {
    static const char *const rows[][2] = {{"S0,S1", "S1,S0"}, {"S0,R", "R,S0"}, {"P,R", "S0,S1"},
        {"P,S0", "R,S0"}, {"S0,S0", "R,R"}, {"R,S0", "S1,R"}, {"P,P", "S0,S0"}, {"S0,S0", "S1,S1"}};
    cdp_mesh *m;
    const cdp_mesh_desc d = {.paper_ranks = 4096, .paper_rank = 1234, .ndim = 2, .shape = {64, 64}};
    if (!OK(cdp_mesh_create(&d, &m))) return;
    for (uint32_t k = 0; k < 2 * sizeof rows / sizeof *rows; ++k) {
        cdp_plan_desc p = {.kind = k % 2 ? CDP_PLAN_BEST : CDP_PLAN_DIRECT,
            .from = layout_of(m, rows[k / 2][0], 2, 8192, 8192, 0),
            .to = layout_of(m, rows[k / 2][1], 2, 8192, 8192, 0)};
        uint64_t best = UINT64_MAX;
        cdp_plan_info info = {0};
        for (uint32_t i = 0; i < (TEST_SLOW ? 1 : 5); ++i) {
            cdp_plan *plan;
            const uint64_t start = test_cpu_ns();
            if (!OK(cdp_plan_create(&p, &plan))) return;
            best = cdp__min(best, test_cpu_ns() - start);
            info = cdp_plan_info_of(plan);
            cdp_plan_destroy(plan);
        }
        printf("  %s -> %s, %s: %.1f ms, %u messages\n", rows[k / 2][0], rows[k / 2][1],
            k % 2 ? "best" : "direct", (double)best / 1e6, info.messages);
        T(info.total_bytes >= info.bound_bytes && info.bound_bytes > 0);
        T(k % 2 || info.total_bytes == info.bound_bytes);
        T_WITHIN(10, best);
    }
    cdp_mesh_destroy(m);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"chunk_rule", chunk_rule, 10},
        {"boxes_against_brute_force", boxes_against_brute_force, 20},
        {"nested_chunks_and_orders", nested_chunks_and_orders, 10},
        {"texts_parse_back", texts_parse_back, 10},
        {"a_layout_needs_a_mesh_and_a_text", a_layout_needs_a_mesh_and_a_text, 20},
        {"a_partial_is_a_sum_where_nothing_is_said", a_partial_is_a_sum_where_nothing_is_said, 20},
        {"bad_layouts_are_refused", bad_layouts_are_refused, 10},
        {"own_cuts", own_cuts, 10},
        {"torch_step_counts", torch_step_counts, 10},
        {"torch_bytes_beside_the_bound", torch_bytes_beside_the_bound, 10},
        {"the_busiest_rank_is_exact", the_busiest_rank_is_exact, 10},
        {"figures_and_pictures_of_many_ranks", figures_and_pictures_of_many_ranks, 60},
        {"plans_that_are_one_collective", plans_that_are_one_collective, 10},
        {"figures_of_a_sum_of_many_ranks", figures_of_a_sum_of_many_ranks, 10},
        {"sums_of_many_ranks_are_collectives_along_dimensions",
            sums_of_many_ranks_are_collectives_along_dimensions, 200},
        {"merged_steps", merged_steps, 10},
        {"small_sums_stay_messages", small_sums_stay_messages, 10},
        {"bad_plans_are_refused", bad_plans_are_refused, 10},
        {"mesh_shape_and_coordinates", mesh_shape_and_coordinates, 20},
        {"mesh_slices_flatten_join_unflatten", mesh_slices_flatten_join_unflatten, 20},
        {"mesh_of_fewer_ranks", mesh_of_fewer_ranks, 20},
        {"mesh_from_groups", mesh_from_groups, 20},
        {"inconsistent_meshes", inconsistent_meshes, 20},
        {"bad_meshes_are_refused", bad_meshes_are_refused, 10},
        {"redistribute_every_pair", redistribute_every_pair, 60},
        {"redistribute_large_rows", redistribute_large_rows, 30},
        {"redistribute_named_sizes", redistribute_named_sizes, 30},
        {"contributions_arrive_in_windows", contributions_arrive_in_windows, 60},
        {"redistribute_every_order", redistribute_every_order, 60},
        {"cuts_of_another_order_become_sums", cuts_of_another_order_become_sums, 60},
        {"collectives_give_what_messages_give", collectives_give_what_messages_give, 30},
        {"sums_along_dimensions_give_what_messages_give",
            sums_along_dimensions_give_what_messages_give, 120},
        {"redistribute_every_reduction", redistribute_every_reduction, 30},
        {"a_sum_that_fails_in_one_row_fails_in_all", a_sum_that_fails_in_one_row_fails_in_all, 60},
        {"norms_of_cut_tensors", norms_of_cut_tensors, 20},
        {"norms_count_each_element_of_a_layout_once", norms_count_each_element_of_a_layout_once,
            20},
        {"clipping_over_a_mesh_keeps_copies_equal", clipping_over_a_mesh_keeps_copies_equal, 20},
        {"a_kept_plan_allocates_nothing", a_kept_plan_allocates_nothing, 30},
        {"plans_without_memory", plans_without_memory, 10},
        {"distribute_and_full", distribute_and_full, 30},
        {"layout_from_local_pieces", layout_from_local_pieces, 20},
        {"replicas_checked_and_repaired", replicas_checked_and_repaired, 20},
        {"redistribute_between_meshes", redistribute_between_meshes, 30},
        {"philox_and_its_functions", philox_and_its_functions, 10},
        {"random_numbers_do_not_depend_on_the_cut", random_numbers_do_not_depend_on_the_cut, 30},
        {"random_distributions", random_distributions, 30},
        {"uniform_numbers_stay_in_their_interval", uniform_numbers_stay_in_their_interval, 20},
        {"factories_fill_by_index", factories_fill_by_index, 20},
        {"layouts_drawn", layouts_drawn, 10},
        {"collectives_drawn", collectives_drawn, 10},
        {"sums_along_dimensions_drawn", sums_along_dimensions_drawn, 10},
        {"plans_drawn", plans_drawn, 10},
        {"a_kept_plan_is_found_by_every_number", a_kept_plan_is_found_by_every_number, 10},
        {"a_kept_plan_ends_with_either_of_its_meshes", a_kept_plan_ends_with_either_of_its_meshes,
            30},
        {"plans_share_their_scratch_memory", plans_share_their_scratch_memory, 30},
        {"equal_cuts_are_one_and_refusals_name_their_rank",
            equal_cuts_are_one_and_refusals_name_their_rank, 30},
        {"a_number_of_a_cut_is_of_its_mesh", a_number_of_a_cut_is_of_its_mesh, 30},
        {"cuts_do_not_grow_with_calls", cuts_do_not_grow_with_calls, 60},
        {"other_cuts_of_pieces_in_every_step", other_cuts_of_pieces_in_every_step, 60},
        {"runs_of_equal_layouts_at_one_time", runs_of_equal_layouts_at_one_time, 30},
        {"no_plan_between_meshes_of_two_groups", no_plan_between_meshes_of_two_groups, 30},
        {"mesh_measured_and_plans_async", mesh_measured_and_plans_async, 30},
        {"plans_that_differ_are_told_at_once", plans_that_differ_are_told_at_once, 20},
        {"a_kept_plan_meets_a_new_one", a_kept_plan_meets_a_new_one, 20},
        {"a_kept_plan_of_a_row_meets_a_new_one", a_kept_plan_of_a_row_meets_a_new_one, 60},
        {"a_row_that_is_ahead_is_told_what_differs", a_row_that_is_ahead_is_told_what_differs, 30},
        {"a_running_plan_is_refused", a_running_plan_is_refused, 20},
        {"plans_for_4096_ranks", plans_for_4096_ranks, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
