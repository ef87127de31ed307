/*  test_dtensor_plans.c - every pair of layouts, on paper: values, bytes, messages. PAIRS=all
   takes every case instead of a part that is drawn by seed; SEED chooses another part. */
#define CDP_IMPLEMENTATION
#define CDP__DT_WINDOW_BYTES 1024u /* contributions to sums arrive in several */
#include "cdp_dtensor.h"

#include "paper.h"

/* Placements of one mesh dimension: R, S0.. of the tensor's dimensions, P. */
static void place_of(uint32_t number, uint32_t ndim, cdp_place *p) {
    memset(p, 0, sizeof *p);
    if (number == 0) return;
    p->kind = number <= ndim ? CDP_PLACE_SHARD : CDP_PLACE_PARTIAL;
    p->dim = number <= ndim ? (int32_t)(number - 1) : 0;
}

/* Layout number `k` of those with and without PARTIAL; false when there are no more. Orders:
   every order of the dimensions of the mesh. */
static bool layout_number(cdp_layout *l, uint32_t k, bool partial) {
    static const uint32_t orders[6][3] = {
        {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const uint32_t dims = l->mesh->desc.ndim, base = l->ndim + (partial ? 2 : 1);
    const uint32_t factorials[4] = {1, 1, 2, 6}, permutations = factorials[dims];
    uint32_t count = 1;
    for (uint32_t by = 0; by < dims; ++by)
        count *= base;
    if (k >= count * permutations) return false;
    const uint32_t order = k / count;
    k %= count;
    for (uint32_t by = 0; by < dims; ++by, k /= base) {
        place_of(k % base, l->ndim, &l->place[by]);
        if (order && dims == 3) l->place[by].order = orders[order][by];
        if (order && dims == 2) l->place[by].order = 1 - by;
    }
    return true;
}

/* An order changes something only if two mesh dimensions shard one dimension of the tensor. */
static bool layout_is_new(const cdp_layout *l) {
    bool ordered = false, shared = false;
    for (uint32_t a = 0; a < l->mesh->desc.ndim; ++a)
        for (uint32_t b = a + 1; b < l->mesh->desc.ndim; ++b) {
            const bool both =
                l->place[a].kind == CDP_PLACE_SHARD && l->place[b].kind == CDP_PLACE_SHARD;
            shared = shared || (both && l->place[a].dim == l->place[b].dim);
        }
    for (uint32_t a = 0; a < l->mesh->desc.ndim; ++a)
        ordered = ordered || l->place[a].order;
    return shared || !ordered;
}

static uint64_t pairs, plans_made;

/* One pair: values, bytes equal to the bound, nobody sends much more than its part. */
static bool pair_is_right(const paper *p, const cdp_plan_desc *d) {
    uint64_t received = 0, sent = 0, busiest = 0;
    bool ok = paper_plans(p, d);
    const uint64_t bound = paper_bound(p, &d->from, &d->to) * 8;
    for (uint32_t r = 0; ok && r < p->n; ++r) {
        const cdp_plan_info info = cdp_plan_info_of(paper_now.plan[r]);
        received += info.recv_bytes;
        sent += info.send_bytes;
        busiest = cdp__max(busiest, info.recv_bytes);
        ok = info.total_bytes == paper_now.plan[0]->info.total_bytes;
    }
    const cdp_plan_info info = cdp_plan_info_of(paper_now.plan[0]);
    const bool direct = d->kind == CDP_PLAN_DIRECT;
    ok = ok && received == sent && info.bound_bytes == bound;
    ok = ok && received == info.total_bytes && (!direct || received == bound);
    ok = ok && received >= bound;
    if (direct && paper_now.plan[0]->stages[0].pair.from.terms == 1)
        ok = ok && busiest == info.most_recv_bytes;
    ok = ok && paper_run(p, d) && paper_right(p, &d->to);
    test_check(ok, __FILE__, __LINE__,
        "%s -> %s, kind %u: received %llu, said %llu, bound %llu (said %llu), sent %llu",
        paper_text(&d->from), paper_text(&d->to), d->kind, (unsigned long long)received,
        (unsigned long long)info.total_bytes, (unsigned long long)bound,
        (unsigned long long)info.bound_bytes, (unsigned long long)sent);
    paper_drop(p);
    ++pairs;
    plans_made += p->n;
    return ok;
}

/* All pairs of layouts of one shape on one mesh; of them one in `every`, by chance. */
static void pairs_of(
    const paper *p, uint32_t ndim, const uint64_t *shape, uint32_t every, uint64_t *state) {
    cdp_plan_desc d = {.kind = CDP_PLAN_DIRECT};
    d.from.dtype = d.to.dtype = CDP_DTYPE_U64;
    d.from.ndim = d.to.ndim = ndim;
    d.from.mesh = d.to.mesh = p->mesh[0];
    memcpy(d.from.shape, shape, ndim * sizeof *shape);
    memcpy(d.to.shape, shape, ndim * sizeof *shape);
    for (uint32_t a = 0; layout_number(&d.from, a, true); ++a)
        for (uint32_t b = 0; layout_is_new(&d.from) && layout_number(&d.to, b, false); ++b) {
            if (!layout_is_new(&d.to) || test_random(state) % every) continue;
            d.kind =
                test_random(state) % 4 ? CDP_PLAN_DIRECT : (cdp_plan_kind)(test_random(state) % 5);
            if (!pair_is_right(p, &d)) return;
        }
}

static bool everything(void) {
    const char *how = getenv("PAIRS");
    return how && strcmp(how, "all") == 0;
}

static uint64_t first_seed(void) {
    const char *seed = getenv("SEED");
    return seed ? strtoull(seed, NULL, 10) : 1;
}

/* Shapes of up to three dimensions out of eight sizes; number 0 has none. */
static bool shape_number(uint32_t k, uint32_t *ndim, uint64_t *shape) {
    static const uint64_t sizes[8] = {0, 1, 2, 3, 5, 7, 8, 12};
    const uint32_t from[5] = {0, 1, 9, 73, 585};
    *ndim = 0;
    while (*ndim < 4 && k >= from[*ndim + 1])
        ++*ndim;
    if (*ndim > 3) return false;
    k -= from[*ndim];
    for (uint32_t d = 0; d < *ndim; ++d, k /= 8)
        shape[d] = sizes[k % 8];
    return true;
}

/* Up to 8 ranks in up to 2 dimensions: every shape. */
TEST(all_pairs_to_8_ranks) {
    uint64_t state = first_seed(), shape[3];
    const uint32_t every = everything() ? 1 : 100;
    pairs = plans_made = 0;
    for (uint32_t a = 1; a <= 8; ++a)
        for (uint32_t b = 0; a * (b ? b : 1) <= 8; ++b) {
            const uint32_t sizes[2] = {a, b};
            paper p;
            uint32_t ndim;
            if (!paper_open(&p, b ? 2 : 1, sizes)) return;
            for (uint32_t k = 0; shape_number(k, &ndim, shape) && !test__now.failed_checks; ++k)
                pairs_of(&p, ndim, shape, ndim < 2 ? cdp__max(every / 100, 1) : every, &state);
            paper_close(&p);
        }
    printf("  %llu pairs, %llu plans\n", (unsigned long long)pairs, (unsigned long long)plans_made);
    T(pairs > 1000);
}

static const uint64_t named[6][3] = {
    {12, 8, 5}, {16, 24, 0}, {7, 0, 0}, {9, 10, 0}, {3, 5, 2}, {1, 13, 0}};

/* Up to 16 ranks in up to 3 dimensions: six shapes. */
TEST(all_pairs_to_16_ranks) {
    uint64_t state = first_seed() + 1;
    const uint32_t every = everything() ? 1 : 20;
    pairs = plans_made = 0;
    for (uint32_t a = 1; a <= 16; ++a)
        for (uint32_t b = 1; a * b <= 16; ++b)
            for (uint32_t c = 1; a * b * c <= 16; ++c) {
                const uint32_t sizes[3] = {a, b, c}, two = b > 1 ? 2 : 1, dims = c > 1 ? 3 : two;
                paper p;
                if ((c > 1 && (b == 1 || a == 1)) || a * b * c < 2) continue;
                if (!paper_open(&p, dims, sizes)) return;
                for (uint32_t k = 0; k < 6 && !test__now.failed_checks; ++k) {
                    const uint32_t flat = named[k][1] ? 2 : 1, ndim = named[k][2] ? 3 : flat;
                    pairs_of(&p, ndim, named[k], dims == 3 ? every * 40 : every, &state);
                }
                paper_close(&p);
            }
    printf("  %llu pairs, %llu plans\n", (unsigned long long)pairs, (unsigned long long)plans_made);
    T(pairs > 1000);
}

/* Sums as collectives along dimensions of up to 16 ranks: of every mesh, all layouts that have a
   sum, some of them. Means are in test_dtensor.c. */
TEST(sums_along_dimensions) {
    uint64_t state = first_seed() + 2;
    const uint32_t every = everything() ? 1 : 60;
    uint32_t called = 0, moved = 0;
    for (uint32_t a = 1; a <= 16; ++a)
        for (uint32_t b = 1; a * b <= 16; ++b)
            for (uint32_t c = 1; a * b * c <= 16 && !test__now.failed_checks; ++c) {
                const uint32_t sizes[3] = {a, b, c};
                paper p;
                if (!paper_open(&p, c > 1 ? 3 : 2, sizes)) return;
                for (uint32_t k = 0; k < 6; ++k) {
                    cdp_plan_desc d = {.kind = CDP_PLAN_COLLECTIVES};
                    d.from.dtype = CDP_DTYPE_U64;
                    const uint32_t flat = named[k][1] ? 2 : 1;
                    d.from.ndim = named[k][2] ? 3 : flat;
                    d.from.mesh = p.mesh[0];
                    memcpy(d.from.shape, named[k], d.from.ndim * sizeof *named[k]);
                    d.to = d.from;
                    for (uint32_t i = 0; layout_number(&d.from, i, true); ++i)
                        for (uint32_t j = 0; layout_number(&d.to, j, true); ++j) {
                            uint32_t kept, expand;
                            if (test_random(&state) % (c > 1 ? every * 60 : every)) continue;
                            if (!layout_is_new(&d.from) || !layout_is_new(&d.to)) continue;
                            if (cdp__dt_target_partial(&d.from, &d.to, true, &kept, &expand))
                                continue;
                            bool ok = paper_plans(&p, &d);
                            const cdp_plan *plan = paper_now.plan[0];
                            called += plan->calls;
                            moved += plan->calls && plan->phase_count;
                            ok = ok && paper_run(&p, &d) && paper_right(&p, &d.to);
                            test_check(ok, __FILE__, __LINE__, "%s -> %s", paper_text(&d.from),
                                paper_text(&d.to));
                            paper_drop(&p);
                            if (!ok) return;
                        }
                }
                paper_close(&p);
            }
    printf("  %u of calls, %u of them with messages, too\n", called, moved);
    T(called > 1000 && moved > 100);
}

/* Targets with PARTIAL: kept, and made of SHARD. */
TEST(pairs_with_partial_targets) {
    static const char *const texts[][2] = {{"P,S0", "P,S1"}, {"P,S0", "P,R"}, {"P,R", "P,S1"},
        {"S0,R", "P,R"}, {"S0,S0", "P,S0"}, {"S0,S1", "P,S1"}, {"S0,S1", "P,P"}, {"P,S0", "P,P"},
        {"S1,P", "P,P"}, {"S0,P", "P,R"}, {"P,P", "P,P"}, {"P,P", "R,P"}, {"P,P", "S0,P"},
        {"S0!1,S0", "P,S0"}, {"S0,P", "P,S1"}};
    const uint32_t meshes[4][2] = {{2, 2}, {2, 4}, {3, 2}, {1, 3}};
    for (uint32_t m = 0; m < 4; ++m) {
        paper p;
        if (!paper_open(&p, 2, meshes[m])) return;
        for (uint32_t k = 0; k < sizeof texts / sizeof *texts; ++k)
            for (uint32_t s = 0; s < 4; ++s) {
                const uint64_t shapes[4][2] = {{8, 8}, {5, 7}, {1, 3}, {0, 4}};
                cdp_plan_desc d = {.kind = CDP_PLAN_DIRECT};
                d.from = (cdp_layout){.mesh = p.mesh[0],
                    .dtype = CDP_DTYPE_U64,
                    .ndim = 2,
                    .shape = {shapes[s][0], shapes[s][1]}};
                d.to = d.from;
                if (!OK(cdp_layout_parse(&d.from, texts[k][0]))
                    || !OK(cdp_layout_parse(&d.to, texts[k][1])))
                    return;
                bool ok = paper_plans(&p, &d) && paper_run(&p, &d) && paper_right(&p, &d.to);
                test_check(
                    ok, __FILE__, __LINE__, "%s -> %s", paper_text(&d.from), paper_text(&d.to));
                paper_drop(&p);
            }
        paper_close(&p);
    }
}

/* Bytes that cross from one host to another, of the plans that exist now. */
static uint64_t bytes_between_hosts(const paper *p) {
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < p->n; ++r)
        for (uint32_t k = 0; k < paper_now.plan[r]->phase_count; ++k) {
            const cdp__dt_phase *ph = &paper_now.plan[r]->phases[k];
            for (uint32_t i = 0; i < ph->sends; ++i)
                if (ph->send[i].peer / paper_host_ranks != r / paper_host_ranks)
                    bytes += ph->send[i].elements * 8;
        }
    return bytes;
}

/* Hosts of several ranks: the same values and bytes, and what a host has does not come from
   another one. */
TEST(holders_on_the_same_host_send) {
    static const struct {
        const char *from, *to;
        uint64_t between; /* bytes, with a tensor of 8 x 8 */
    } rows[] = {{"R,S0", "R,R", 0}, {"S0,R", "R,S0", 512}, {"R,S0", "R,S1", 0},
        {"S0,S1", "R,R", 2048}, {"R,S1", "S0,R", 0}, {"S0,S0", "R,S0", 512}};
    const uint32_t shape[2] = {2, 4};
    paper p;
    paper_host_ranks = 4;
    if (!paper_open(&p, 2, shape)) return;
    for (uint32_t k = 0; k < sizeof rows / sizeof *rows; ++k) {
        cdp_plan_desc d = {.kind = CDP_PLAN_DIRECT};
        d.from =
            (cdp_layout){.mesh = p.mesh[0], .dtype = CDP_DTYPE_U64, .ndim = 2, .shape = {8, 8}};
        d.to = d.from;
        OK(cdp_layout_parse(&d.from, rows[k].from));
        OK(cdp_layout_parse(&d.to, rows[k].to));
        if (paper_plans(&p, &d))
            test_check(bytes_between_hosts(&p) == rows[k].between, __FILE__, __LINE__,
                "%s -> %s: %llu bytes between hosts", rows[k].from, rows[k].to,
                (unsigned long long)bytes_between_hosts(&p));
        paper_drop(&p);
    }
    const uint64_t sizes[2] = {5, 6};
    uint64_t state = first_seed() + 2;
    pairs_of(&p, 2, sizes, 1, &state);
    paper_close(&p);
    paper_host_ranks = 3; /* the last host has two */
    if (paper_open(&p, 2, shape)) pairs_of(&p, 2, sizes, 1, &state);
    paper_close(&p);
    paper_host_ranks = 0;
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"all_pairs_to_8_ranks", all_pairs_to_8_ranks, 3600},
        {"all_pairs_to_16_ranks", all_pairs_to_16_ranks, 3600},
        {"sums_along_dimensions", sums_along_dimensions, 600},
        {"pairs_with_partial_targets", pairs_with_partial_targets, 20},
        {"holders_on_the_same_host_send", holders_on_the_same_host_send, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
