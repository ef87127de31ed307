/* hosts.h - every collective once more, for groups of several hosts: the algorithms that know of
   hosts, and what the table chooses. Include after cdp_tcp.h, with CDP_IMPLEMENTATION. Numbers
   are small and whole, so every order of additions gives one result; that all ranks have the
   same bits is checked with numbers that are not. */
#ifndef HOSTS_INCLUDED
#define HOSTS_INCLUDED

#include <stdio.h>
#include <stdlib.h>

typedef struct hosts_case {
    cdp_group *g;
    cdp_request q;
    bool uneven;
    uint64_t counts[64], offs[65];
    char what[160];
} hosts_case;

static double hosts_number(uint32_t rank, uint64_t i) {
    return (double)((rank * 7 + i) % 5 + 1);
}

static void hosts_put(void *at, cdp_dtype t, uint64_t i, double x) {
    if (t == CDP_DTYPE_F64)
        ((double *)at)[i] = x;
    else if (t == CDP_DTYPE_F32)
        ((float *)at)[i] = (float)x;
    else if (t == CDP_DTYPE_BF16) {
        uint32_t bits;
        float f = (float)x;
        memcpy(&bits, &f, 4);
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
    } else
        ((int8_t *)at)[i] = (int8_t)x;
}

static bool hosts_fail(hosts_case *c, const char *what, uint64_t i) {
    snprintf(c->what, sizeof c->what, "rank %u: %s %s of %llu %s%s%s: %s at element %llu",
        cdp_rank(c->g), cdp_reduce_name(c->q.op), cdp_coll_name(c->q.kind),
        (unsigned long long)c->q.count, cdp_dtype_name(c->q.dtype), c->q.in ? "" : ", in place",
        c->uneven ? ", uneven" : "", what, (unsigned long long)i);
    return false;
}

/* Which element of `in` of rank r part p begins with. */
static uint64_t hosts_off(const hosts_case *c, uint32_t p) {
    return c->uneven ? c->offs[p] : p * c->q.count;
}

/* What element i of this rank's OUT is to be; false: anything. */
static bool hosts_expected(const hosts_case *c, uint64_t i, double *x) {
    const uint32_t n = cdp_size(c->g), me = cdp_rank(c->g);
    const bool scatter = c->q.kind == CDP_COLL_REDUCE_SCATTER, in_place = !c->q.in;
    uint32_t r, p = 0;
    *x = 0;
    if (c->q.kind == CDP_COLL_BROADCAST) {
        *x = hosts_number(c->q.root, i);
        return true;
    }
    if (c->q.kind == CDP_COLL_ALLGATHER) {
        while (i >= hosts_off(c, p + 1))
            ++p;
        *x = hosts_number(p, i - hosts_off(c, p));
        return true;
    }
    if (c->q.kind == CDP_COLL_REDUCE && me != c->q.root) {
        *x = in_place ? hosts_number(me, i) : 77;
        return true;
    }
    if (scatter && in_place && (i < hosts_off(c, me) || i >= hosts_off(c, me + 1))) return false;
    for (r = 0; r < n; ++r)
        *x += hosts_number(r, i + (scatter && !in_place ? hosts_off(c, me) : 0))
            * (c->q.op == CDP_REDUCE_PREMUL_SUM ? 1 << r % 3 : 1);
    if (c->q.op == CDP_REDUCE_AVG) *x = c->q.dtype == CDP_DTYPE_F32 ? (float)*x / (float)n : *x / n;
    return true;
}

static bool hosts_run(hosts_case *c, bool in_place) {
    const uint32_t n = cdp_size(c->g), me = cdp_rank(c->g);
    const bool scatter = c->q.kind == CDP_COLL_REDUCE_SCATTER,
               gather = c->q.kind == CDP_COLL_ALLGATHER;
    const uint64_t all = hosts_off(c, n), own = hosts_off(c, me + 1) - hosts_off(c, me),
                   size = cdp_dtype_size(c->q.dtype);
    uint64_t in_len = c->q.count, out_len = c->q.count;
    if (scatter) {
        in_len = all;
        out_len = in_place ? all : own;
    }
    if (gather) {
        in_len = own;
        out_len = all;
    }
    uint8_t *in = (uint8_t *)malloc((size_t)(in_len * size + 1)),
            *out = (uint8_t *)malloc((size_t)(out_len * size + 1)), one[8];
    const uint64_t at = in_place && gather ? hosts_off(c, me) : 0;
    uint64_t i;
    bool fine = true;
    cdp_work w;
    for (i = 0; i < out_len; ++i)
        hosts_put(out, c->q.dtype, i, 77);
    for (i = 0; i < in_len; ++i)
        hosts_put(in_place ? out : in, c->q.dtype, at + i, hosts_number(me, i));
    if (c->q.kind == CDP_COLL_BROADCAST && me != c->q.root)
        for (i = 0; i < out_len; ++i)
            hosts_put(out, c->q.dtype, i, 77);
    c->q.in = in_place ? NULL : in;
    c->q.out = out;
    c->q.in_counts = c->uneven && scatter ? c->counts : NULL;
    c->q.out_counts = c->uneven && gather ? c->counts : NULL;
    c->q.factor = 1 << me % 3;
    if (cdp_start(c->g, &c->q, &w) != CDP_OK || cdp_work_wait(w) != CDP_OK)
        fine = hosts_fail(c, cdp_last_error()->text, 0);
    for (i = 0; fine && i < out_len; ++i) {
        double x;
        if (!hosts_expected(c, i, &x)) continue;
        hosts_put(one, c->q.dtype, 0, x);
        if (memcmp(one, out + i * size, (size_t)size) != 0)
            fine = hosts_fail(c, "the result is wrong", i);
    }
    for (i = 0; fine && !in_place && c->q.kind != CDP_COLL_BROADCAST && i < in_len; ++i) {
        hosts_put(one, c->q.dtype, 0, hosts_number(me, i));
        if (memcmp(one, in + i * size, (size_t)size) != 0)
            fine = hosts_fail(c, "the input was changed", i);
    }
    free(in);
    free(out);
    return fine;
}

/* Every rank has the same bits. */
static bool hosts_same_bits(hosts_case *c) {
    enum {
        COUNT = 3001
    };
    static _Thread_local float x[COUNT];
    const uint32_t n = cdp_size(c->g), me = cdp_rank(c->g);
    uint64_t all[64], i;
    for (i = 0; i < COUNT; ++i)
        x[i] = 1.0f / (float)(1 + (i * 31 + me * 17) % 1009);
    if (cdp_allreduce(c->g, NULL, x, COUNT, CDP_DTYPE_F32, CDP_REDUCE_AVG) != CDP_OK)
        return hosts_fail(c, cdp_last_error()->text, 0);
    all[me] = cdp__hash(CDP__HASH_START, (const uint8_t *)x, sizeof x);
    if (cdp_allgather(c->g, NULL, all, 1, CDP_DTYPE_U64) != CDP_OK)
        return hosts_fail(c, cdp_last_error()->text, 0);
    for (i = 0; i < n; ++i)
        if (all[i] != all[0]) return hosts_fail(c, "different bits", i);
    return true;
}

/* All that a group can be asked for, with `counts` elements; false: c->what says what went
   wrong. */
static bool hosts_all(hosts_case *c, const uint64_t *counts, uint32_t count_count) {
    static const cdp_dtype dtypes[] = {CDP_DTYPE_F32, CDP_DTYPE_BF16, CDP_DTYPE_I8, CDP_DTYPE_F64};
    static const cdp_coll_kind kinds[] = {CDP_COLL_ALLREDUCE, CDP_COLL_BROADCAST, CDP_COLL_REDUCE,
        CDP_COLL_ALLGATHER, CDP_COLL_REDUCE_SCATTER};
    const uint32_t n = cdp_size(c->g);
    uint32_t i, k, root, form;
    for (i = 0; i < count_count; ++i)
        for (k = 0; k < 5; ++k)
            for (root = 0;
                 root < (kinds[k] == CDP_COLL_BROADCAST || kinds[k] == CDP_COLL_REDUCE ? n : 1);
                 ++root)
                for (form = 0; form < 12; ++form) {
                    static const cdp_reduce_op ops[] = {
                        CDP_REDUCE_SUM, CDP_REDUCE_AVG, CDP_REDUCE_PREMUL_SUM};
                    const bool reduces =
                                   kinds[k] != CDP_COLL_BROADCAST && kinds[k] != CDP_COLL_ALLGATHER,
                               parts = kinds[k] == CDP_COLL_ALLGATHER
                        || kinds[k] == CDP_COLL_REDUCE_SCATTER;
                    const bool in_place = form % 2 || kinds[k] == CDP_COLL_BROADCAST;
                    uint32_t r;
                    if ((form / 4 && !reduces) || (form / 2 % 2 && !parts)) continue;
                    memset(&c->q, 0, sizeof c->q);
                    c->q.kind = kinds[k];
                    c->q.op = ops[form / 4];
                    c->q.root = root;
                    c->q.count = counts[i];
                    c->q.dtype = form / 4 ? CDP_DTYPE_F32 : dtypes[(i + k + root) % 4];
                    c->uneven = form / 2 % 2;
                    for (r = 0; r < n; ++r) {
                        c->counts[r] = (r * 5 + 2) % 7 * counts[i] / 4;
                        c->offs[r + 1] = c->offs[r] + c->counts[r];
                    }
                    if (!hosts_run(c, in_place)) return false;
                }
    return hosts_same_bits(c)
        && (cdp_barrier(c->g) == CDP_OK || hosts_fail(c, cdp_last_error()->text, 0));
}

/* The group's calls take this algorithm, where there is a row for it; NULL: those of the table.
   For all ranks at once. */
static void hosts_choose(cdp_group *g, const char *name) {
    cdp__choosing *ch = &g->w->choosing;
    if (cdp_barrier(g) != CDP_OK) return;
    cdp__enter(g);
    cdp__free(g->os, (void *)(uintptr_t)ch->rows);
    ch->rows = NULL;
    ch->row_count = 0;
    if (name) {
        cdp__row *own = (cdp__row *)cdp__alloc(g->os, CDP__ALGO_COUNT * sizeof *own);
        uint32_t a;
        for (a = 0; own && a < CDP__ALGO_COUNT; ++a) {
            if (strcmp(cdp__algo_at(a)->name, name) != 0) continue;
            memset(&own[ch->row_count], 0, sizeof *own);
            own[ch->row_count].algo = (uint8_t)a;
            if (a >= CDP__LANES)
                own[ch->row_count].only =
                    (uint8_t)(a < CDP__HOSTS_GATHER ? CDP__HOSTS : CDP__UNIFORM);
            ++ch->row_count;
        }
        ch->rows = own;
    }
    cdp__leave(g);
}

#endif
