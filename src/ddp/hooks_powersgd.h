/* ddp/hooks_powersgd.h - sends matrices as products of two thin ones

   Knows: the mathematics of PowerSGD (Vogels, Karimireddy and Jaggi 2019). Promises: the same bits
   on every rank. */
#ifndef CDP_SRC_DDP_HOOKS_POWERSGD_H
#define CDP_SRC_DDP_HOOKS_POWERSGD_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/collectives_api.h"
#include "ddp_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../dtype/dtype.h"
#include "../dtype/reduce.h"
#include "../group/collective_calls.h"
#include "../dtype/convert.h"
#include "../dtype/numbers.h"
#include "hooks.h"
#include "hooks_topk.h"

#ifndef CDP_NO_HOOKS

/* Makes the columns of an n x r matrix, stored by rows, orthonormal, one after the other. Fast
   compared with the rest, because a bucket has many more elements. */
CDP__PRIVATE void cdp__orthogonalize(float *a, uint64_t n, uint64_t r, float epsilon) {
    uint64_t i, j, k;
    for (j = 0; j < r; ++j) {
        float norm = 0;
        for (i = 0; i < n; ++i)
            norm += a[i * r + j] * a[i * r + j];
        norm = (float)cdp__sqrt((double)norm) + epsilon;
        for (i = 0; i < n && norm > 0; ++i)
            a[i * r + j] /= norm;
        for (k = j + 1; k < r; ++k) {
            float dot = 0;
            for (i = 0; i < n; ++i)
                dot += a[i * r + j] * a[i * r + k];
            for (i = 0; i < n; ++i)
                a[i * r + k] -= dot * a[i * r + j];
        }
    }
}

/* One parameter of a bucket (or, if batched, the whole bucket) as a matrix of PowerSGD. */
typedef struct cdp__matrix {
    float *at;               /* n x m by rows */
    uint64_t n, m, r, count; /* r 0: not compressed */
    uint64_t p, q, plain;    /* where its data begins in the buffers that all parameters share */
} cdp__matrix;

/* The side of the smallest square with room for n numbers. */
CDP__PRIVATE uint64_t cdp__square_side(uint64_t n) {
    uint64_t side = (uint64_t)cdp__sqrt((double)n);
    while (side && side * side > n)
        --side;
    while (side * side < n)
        ++side;
    return side;
}

/* Shapes a parameter as a matrix. x->r 0: compression would not pay, so it is sent uncompressed. */
CDP__PRIVATE void cdp__matrix_of_param(const cdp__hook *h, const cdp_param *p, cdp__matrix *x) {
    x->count = p->sparse ? 0 : p->count;
    x->n = p->rows ? p->rows : x->count;
    x->m = x->n ? x->count / x->n : 0;
    x->r = cdp__min(cdp__min(x->n, x->m), h->desc.rank);
    if (!((double)(x->n + x->m) * (double)x->r * h->desc.min_rate < (double)(x->n * x->m)))
        x->r = 0;
}

/* Advances to the next matrix of a bucket; *i begins at 0. False at the end: then *x holds the
   total sizes. */
CDP__PRIVATE bool cdp__matrix_next(
    const cdp__hook *h, const cdp_bucket *b, uint32_t *i, cdp__matrix *x) {
    const bool batched = h->desc.kind == CDP_HOOK_POWERSGD_BATCHED;
    if (*i == 0) {
        memset(x, 0, sizeof *x);
        x->at = (float *)b->data;
    } else {
        x->p += x->n * x->r;
        x->q += x->m * x->r;
        x->plain += x->r ? 0 : x->count;
        x->at += x->count;
    }
    if (*i == (batched ? 1u : b->param_count)) return false;
    if (batched) {
        x->n = x->m = cdp__square_side(b->count);
        x->count = b->count;
        x->r = cdp__min(x->n, h->desc.rank);
    } else {
        cdp__matrix_of_param(h, cdp_ddp_param(b->ddp, b->params[*i]), x);
    }
    ++*i;
    return true;
}

/* A nearly normal random number: the sum of twelve uniform ones (splitmix64) has variance 1. */
CDP__PRIVATE float cdp__hook_normal(cdp__hook *h) {
    double sum = -6;
    uint32_t i;
    for (i = 0; i < 12; ++i) {
        uint64_t z = h->random += 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        sum += (double)((z ^ z >> 31) >> 11) / 9007199254740992.0;
    }
    return (float)sum;
}

/* Matrix products handle CDP__BLOCK columns of the large matrix and CDP__COLUMNS columns of the
   thin one at a time, so that all loops over values have constant length. */
#define CDP__COLUMNS 4u
typedef struct cdp__strip {
    /* columns of the large matrix, which are rows of the thin one */
    uint64_t from, used;
    uint64_t first, count;                /* columns of the thin matrix */
    float thin[CDP__COLUMNS][CDP__BLOCK]; /* zeros after `used` */
} cdp__strip;

/* Loads a part of an m x r matrix: rows `from` on, columns `first` on; zeros beyond its end. */
CDP__PRIVATE void cdp__strip_load(cdp__strip *t, const float *a, uint64_t m, uint64_t r) {
    uint64_t c, j;
    t->used = cdp__min(m - t->from, CDP__BLOCK);
    t->count = cdp__min(r - t->first, CDP__COLUMNS);
    memset(t->thin, 0, sizeof t->thin);
    for (c = 0; c < t->count; ++c)
        for (j = 0; j < t->used; ++j)
            t->thin[c][j] = a[(t->from + j) * r + t->first + c];
}

CDP__PRIVATE void cdp__strip_store(const cdp__strip *t, float *a, uint64_t r) {
    uint64_t c, j;
    for (c = 0; c < t->count; ++c)
        for (j = 0; j < t->used; ++j)
            a[(t->from + j) * r + t->first + c] = t->thin[c][j];
}

/* The number of values of row i in the strip; the last row of a batched matrix may be short. */
CDP__PRIVATE uint64_t cdp__strip_row(const cdp__strip *t, const cdp__matrix *x, uint64_t i) {
    const uint64_t begin = i * x->m + t->from;
    return begin < x->count ? cdp__min(t->used, x->count - begin) : 0;
}

/* CDP__BLOCK values of a row: in place or, if there are fewer, copied to `rest` with zeros. */
CDP__PRIVATE const float *cdp__strip_values(
    const cdp__strip *t, const cdp__matrix *x, uint64_t i, float rest[CDP__BLOCK]) {
    const uint64_t n = cdp__strip_row(t, x, i);
    if (n == CDP__BLOCK) return x->at + i * x->m + t->from;
    memset(rest, 0, CDP__BLOCK * sizeof *rest);
    if (n) memcpy(rest, x->at + i * x->m + t->from, (size_t)n * sizeof *rest);
    return rest;
}

CDP__PRIVATE float cdp__block_dot(const float *CDP__RESTRICT a, const float *CDP__RESTRICT b) {
    float lanes[16] = {0}, sum = 0;
    uint32_t i, k;
    for (i = 0; i < CDP__BLOCK; i += 16)
        for (k = 0; k < 16; ++k)
            lanes[k] += a[i + k] * b[i + k];
    for (k = 0; k < 16; ++k)
        sum += lanes[k];
    return sum;
}

/* out += a * by */
CDP__PRIVATE void cdp__block_add(float *CDP__RESTRICT out, const float *CDP__RESTRICT a, float by) {
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i)
        out[i] += a[i] * by;
}

/* out = M a; a and out are stored by rows of r values. */
CDP__PRIVATE void cdp__matrix_times(const cdp__matrix *x, const float *a, float *out) {
    float rest[CDP__BLOCK];
    cdp__strip t;
    uint64_t i, c;
    memset(out, 0, (size_t)(x->n * x->r) * sizeof *out);
    for (t.first = 0; t.first < x->r; t.first += CDP__COLUMNS)
        for (t.from = 0; t.from < x->m; t.from += CDP__BLOCK) {
            cdp__strip_load(&t, a, x->m, x->r);
            for (i = 0; i < x->n; ++i) {
                const float *row = cdp__strip_values(&t, x, i, rest);
                for (c = 0; c < t.count; ++c)
                    out[i * x->r + t.first + c] += cdp__block_dot(row, t.thin[c]);
            }
        }
}

/* out = M^T a; a and out are stored by rows of r values. */
CDP__PRIVATE void cdp__matrix_transposed_times(const cdp__matrix *x, const float *a, float *out) {
    float rest[CDP__BLOCK];
    cdp__strip t;
    uint64_t i, c;
    memset(out, 0, (size_t)(x->m * x->r) * sizeof *out);
    for (t.first = 0; t.first < x->r; t.first += CDP__COLUMNS)
        for (t.from = 0; t.from < x->m; t.from += CDP__BLOCK) {
            cdp__strip_load(&t, out, x->m, x->r); /* zeros */
            for (i = 0; i < x->n; ++i) {
                const float *row = cdp__strip_values(&t, x, i, rest);
                for (c = 0; c < t.count; ++c)
                    cdp__block_add(t.thin[c], row, a[i * x->r + t.first + c]);
            }
            cdp__strip_store(&t, out, x->r);
        }
}

/* M = p q^T */
CDP__PRIVATE void cdp__matrix_compose(const cdp__matrix *x, const float *p, const float *q) {
    float row[CDP__BLOCK];
    cdp__strip t;
    uint64_t i, c;
    memset(x->at, 0, (size_t)x->count * sizeof *x->at);
    for (t.from = 0; t.from < x->m; t.from += CDP__BLOCK)
        for (t.first = 0; t.first < x->r; t.first += CDP__COLUMNS) {
            cdp__strip_load(&t, q, x->m, x->r);
            for (i = 0; i < x->n; ++i) {
                const uint64_t n = cdp__strip_row(&t, x, i);
                float *at = x->at + i * x->m + t.from, *out = n == CDP__BLOCK ? at : row;
                if (!n) break;
                if (out == row) memcpy(row, at, (size_t)n * sizeof *row);
                for (c = 0; c < t.count; ++c)
                    cdp__block_add(out, t.thin[c], p[i * x->r + t.first + c]);
                if (out == row) memcpy(at, row, (size_t)n * sizeof *row);
            }
        }
}

/* The buffers of a PowerSGD step: left factors, right factors, uncompressed values. */
typedef struct cdp__factors {
    float *p, *q, *plain;
    uint64_t p_count, q_count, plain_count;
} cdp__factors;

/* Handles one matrix before the operation of a phase (0: uncompressed values, 1: left factors,
   2: right factors), and after the last operation (3). */
CDP__PRIVATE void cdp__powersgd_matrix(cdp__hook *h, uint32_t phase, const cdp_bucket *b,
    const cdp__factors *f, const cdp__matrix *x) {
    const float epsilon = (float)h->desc.epsilon;
    if (!x->r) {
        if (phase == 0) memcpy(f->plain + x->plain, x->at, (size_t)x->count * 4);
        if (phase != 1) return;
        memcpy(x->at, f->plain + x->plain, (size_t)x->count * 4);
        cdp__divide_by(CDP_DTYPE_F32, x->at, x->count, b->divisor);
        return;
    }
    if (phase == 0) {
        cdp__orthogonalize(f->q + x->q, x->m, x->r, epsilon);
        cdp__matrix_times(x, f->q + x->q, f->p + x->p);
    } else if (phase == 2) {
        cdp__orthogonalize(f->p + x->p, x->n, x->r, epsilon);
        cdp__matrix_transposed_times(x, f->p + x->p, f->q + x->q);
    } else if (phase == 3) {
        cdp__matrix_compose(x, f->p + x->p, f->q + x->q);
    }
}

CDP__PRIVATE void cdp__powersgd_phase(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, const cdp__factors *f) {
    float *data = (float *)b->data, *error = (float *)(void *)s->error;
    const bool feedback = !h->desc.no_error_feedback;
    cdp__matrix x;
    uint32_t i = 0;
    if (s->phase == 0 && feedback) cdp__pair_run(cdp__feed_back, data, error, b->count);
    if (s->phase == 3) cdp__divide_by(CDP_DTYPE_F32, f->q, f->q_count, b->divisor);
    while (cdp__matrix_next(h, b, &i, &x))
        cdp__powersgd_matrix(h, s->phase, b, f, &x);
    if (s->phase != 3 || !feedback) return;
    cdp__pair_run(cdp__feed_left, data, error, b->count);
    cdp__hook_recover(h, s, b, error);
}

/* The numbers that the operation of this phase sums. */
CDP__PRIVATE float *cdp__powersgd_part(const cdp__factors *f, uint32_t phase, uint64_t *count) {
    const uint64_t counts[3] = {f->plain_count, f->p_count, f->q_count};
    float *const parts[3] = {f->plain, f->p, f->q};
    *count = counts[phase];
    return parts[phase];
}

/* Allocates the buffers in a slot; `half`: with a copy as 16-bit floats. *fresh: the right
   factors are new. */
CDP__PRIVATE cdp_status cdp__powersgd_memory(
    cdp__hook *h, cdp__slot *s, const cdp_bucket *b, bool half, cdp__factors *f, bool *fresh) {
    const uint64_t q_before = s->q_bytes;
    cdp__matrix x;
    uint64_t floats, halves;
    uint32_t i = 0;
    while (cdp__matrix_next(h, b, &i, &x)) {
    }
    floats = x.p + x.plain;
    halves = half ? x.p + x.q + x.plain : 0;
    if (!cdp__hook_memory(h, &s->scratch, &s->scratch_bytes, floats * 4 + halves * 2)
        || !cdp__hook_memory(h, &s->q, &s->q_bytes, x.q * 4)
        || (!h->desc.no_error_feedback
            && !cdp__hook_memory(h, &s->error, &s->error_bytes, b->count * 4)))
        return cdp__fail_nomem("a compressed bucket", (floats + x.q + b->count) * 4);
    f->p = (float *)(void *)s->scratch;
    f->q = (float *)(void *)s->q;
    f->plain = f->p + x.p;
    f->p_count = x.p;
    f->q_count = x.q;
    f->plain_count = x.plain;
    *fresh = s->q_bytes != q_before;
    return CDP_OK;
}

/* 16-bit floats, of which `b` is an f32 copy, are sent as such. */
CDP__PRIVATE cdp_status cdp__hook_powersgd(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const cdp_dtype dtype = s->dtype;
    const bool half = cdp__dtype_is_narrow(dtype);
    cdp__factors f;
    uint64_t k, n;
    float *part;
    void *wire;
    bool fresh = false;
    cdp_status st;
    memset(&f, 0, sizeof f);
    st = cdp__powersgd_memory(h, s, b, half, &f, &fresh);
    if (st != CDP_OK) return st;
    wire = f.plain + f.plain_count;
    if (!stage) {
        s->phase = 0;
        /* after a step that was not finite; these are the same numbers on all ranks */
        fresh = fresh || cdp__is_wild(f.q, f.q_count);
        for (k = 0; k < f.q_count && (h->desc.no_warm_start || fresh); ++k)
            f.q[k] = cdp__hook_normal(h);
    } else if (half) { /* the previous operation is done */
        CDP_ASSERT(s->phase > 0 && s->phase <= 3);
        part = cdp__powersgd_part(&f, s->phase - 1, &n);
        cdp__convert(dtype, wire, CDP_DTYPE_F32, part, n);
    }
    for (;; ++s->phase) { /* operations without values are left out */
        cdp__powersgd_phase(h, s, b, &f);
        if (s->phase == 3) return CDP_OK;
        part = cdp__powersgd_part(&f, s->phase, &n);
        if (n) break;
    }
    if (half) cdp__convert(CDP_DTYPE_F32, part, dtype, wire, n);
    *op = cdp__request_of(CDP_COLL_ALLREDUCE, NULL, half ? wire : part, n,
        half ? dtype : CDP_DTYPE_F32, CDP_REDUCE_SUM, 0);
    ++s->phase;
    return CDP_PENDING;
}

#endif /* CDP_NO_HOOKS */

#endif /* CDP_SRC_DDP_HOOKS_POWERSGD_H */
