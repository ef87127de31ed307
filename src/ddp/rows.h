/* ddp/rows.h - gradients of sparse parameters

   Knows: rows of a matrix and their positions. Promises: the same mean, in the same order, on every
   rank; after the first steps no memory is allocated. */
#ifndef CDP_SRC_DDP_ROWS_H
#define CDP_SRC_DDP_ROWS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../dtype/reduce.h"
#include "../group/collective_calls.h"
#include "../dtype/numbers.h"
#include "state.h"
#include "broadcast.h"
#include "bucket_launch.h"
#include "deliver.h"

#ifndef CDP_NO_DDP

#ifndef CDP_NO_SPARSE
/* Makes room for `more` rows after the existing ones. False: out of memory. */
CDP__PRIVATE bool cdp__sparse_room(const cdp_ddp *d, uint32_t **rows, uint8_t **values,
    uint64_t used, uint64_t *room, uint64_t more, uint64_t row_bytes) {
    const uint64_t want = cdp__max(used + more, *room * 2);
    uint32_t *r;
    uint8_t *v;
    if (used + more <= *room) return true;
    r = (uint32_t *)cdp__alloc(d->os, want * sizeof *r);
    v = (uint8_t *)cdp__alloc(d->os, want * row_bytes);
    if (!r || !v) {
        cdp__free(d->os, r);
        cdp__free(d->os, v);
        return false;
    }
    if (used) {
        memcpy(r, *rows, (size_t)(used * sizeof *r));
        memcpy(v, *values, (size_t)(used * row_bytes));
    }
    cdp__free(d->os, *rows);
    cdp__free(d->os, *values);
    *rows = r;
    *values = v;
    *room = want;
    return true;
}

/* Appends copies of rows. False: out of memory. The caller holds the ddp's lock. */
CDP__PRIVATE bool cdp__sparse_append(
    cdp_ddp *d, cdp__param *p, const uint32_t *rows, uint32_t n, const void *values) {
    const uint64_t bytes = cdp__sparse_width(&p->user) * p->elem;
    cdp__sparse *s = p->sparse;
    if (!cdp__sparse_room(d, &s->rows, &s->values, s->used, &s->room, n, bytes)) return false;
    if (n) {
        memcpy(s->rows + s->used, rows, n * sizeof *rows);
        memcpy(s->values + s->used * bytes, values, (size_t)(n * bytes));
    }
    s->used += n;
    return true;
}

CDP_API cdp_rows cdp_ddp_rows(const cdp_ddp *d, uint32_t i) {
    cdp_rows r;
    memset(&r, 0, sizeof r);
    if (i >= cdp_ddp_param_count(d) || !d->params[i].sparse) return r;
    r.count = d->params[i].sparse->mean_used;
    r.width = cdp__sparse_width(&d->params[i].user);
    r.rows = d->params[i].sparse->mean_rows;
    r.values = d->params[i].sparse->mean;
    return r;
}

/* Computes the mean of all ranks' rows, added in rank order, with one entry per distinct row. */
CDP__PRIVATE cdp_status cdp__sparse_add(cdp_ddp *d, cdp__param *p) {
    cdp__sparse *s = p->sparse;
    const uint64_t n = s->all_used, width = cdp__sparse_width(&p->user), bytes = width * p->elem;
    const uint32_t *rows = s->all_rows;
    const uint8_t *values = s->all_values;
    uint64_t k;
    s->mean_used = 0;
    if (!cdp__sparse_room(
            d, &s->mean_rows, &s->mean, 0, &s->mean_room, cdp__min(n, p->user.rows), bytes))
        return cdp__fail_nomem("rows of a gradient", n * bytes);
    for (k = 0; k < n; ++k) {
        uint32_t *place;
        if (rows[k] >= p->user.rows)
            return cdp__fail(CDP_ERR_INTERNAL,
                "a rank sent row %u of parameter '%s', which has fewer rows", rows[k], p->name);
        place = &s->place[rows[k]];
        if (*place) {
            cdp__reduce(p->user.dtype, CDP_REDUCE_SUM, false, s->mean + (*place - 1) * bytes,
                values + k * bytes, width);
        } else {
            memcpy(s->mean + s->mean_used * bytes, values + k * bytes, (size_t)bytes);
            s->mean_rows[s->mean_used++] = rows[k];
            *place = (uint32_t)s->mean_used;
        }
    }
    for (k = 0; k < s->mean_used; ++k)
        s->place[s->mean_rows[k]] = 0;
    s->used = 0;
    cdp__divide_by(p->user.dtype, s->mean, s->mean_used * width, cdp__ddp_divisor(d));
    return CDP_OK;
}

/* Starts to exchange one sparse parameter: indices of all ranks, then values. Rank r has counts[r]
   rows. */
CDP__PRIVATE cdp_status cdp__sparse_exchange(cdp_ddp *d, cdp__param *p, uint64_t *counts) {
    const uint32_t n = cdp_size(d->group), rank = cdp_rank(d->group);
    const uint64_t width = cdp__sparse_width(&p->user), bytes = width * p->elem;
    cdp__sparse *s = p->sparse;
    uint64_t all = 0, before = 0;
    cdp_request rq;
    cdp_status st;
    uint32_t r;
    for (r = 0; r < n; ++r) {
        all += counts[r];
        before += r < rank ? counts[r] : 0;
    }
    s->all_used = all;
    if (!cdp__sparse_room(d, &s->all_rows, &s->all_values, 0, &s->all_room, all + 1, bytes))
        return cdp__fail_nomem("rows of a gradient", all * (bytes + 4));
    if (s->used) {
        memcpy(s->all_rows + before, s->rows, (size_t)(s->used * sizeof *s->rows));
        memcpy(s->all_values + before * bytes, s->values, (size_t)(s->used * bytes));
    }
    rq = cdp__request_of(
        CDP_COLL_ALLGATHER, NULL, s->all_rows, all, CDP_DTYPE_U32, CDP_REDUCE_DEFAULT, 0);
    rq.out_counts = counts;
    st = cdp__ddp_start(d, d->group, &rq, NULL, NULL, &d->last);
    for (r = 0; r < n; ++r)
        counts[r] *= width;
    rq.out = s->all_values;
    rq.count = all * width;
    rq.dtype = p->user.dtype;
    return st == CDP_OK ? cdp__ddp_start(d, d->group, &rq, NULL, NULL, &d->last) : st;
}

/* Exchanges the rows of the next sparse parameter: `item`, and number `at_byte` of the sparse ones.
   After the last one everything has arrived. */
CDP__PRIVATE cdp_status cdp__ddp_next_rows(cdp_ddp *d) {
    const uint32_t n = cdp_size(d->group);
    uint64_t *one = d->sparse_counts + (uint64_t)d->sparse_count * n;
    cdp__param *p = &d->params[d->item];
    cdp_status st = CDP_OK;
    uint32_t r;
    if (d->rows_under_way) {
        st = cdp__sparse_add(d, p);
        d->rows_under_way = false;
        ++d->item;
        ++d->at_byte;
        return st == CDP_OK ? cdp__ddp_at_once(d, cdp__ddp_next_rows) : st;
    }
    while (d->item < d->param_count && !d->params[d->item].sparse)
        ++d->item;
    if (d->item == d->param_count) {
        return cdp__ddp_arrived(d);
    }
    p = &d->params[d->item];
    if (d->shadow) p->sparse->used = 0;
    for (r = 0; r < n; ++r)
        one[r] = d->sparse_counts[r * d->sparse_count + d->at_byte];
    d->rows_under_way = true;
    return cdp__ddp_after(d, cdp__sparse_exchange(d, p, one), cdp__ddp_next_rows);
}

/* Runs after the buckets: exchanges how many rows each rank has of each sparse parameter, then
   the rows. */
CDP__PRIVATE cdp_status cdp__ddp_sparse(cdp_ddp *d) {
    uint64_t *counts = d->sparse_counts;
    uint32_t i, k;
    for (i = k = 0; i < d->param_count; ++i)
        if (d->params[i].sparse)
            counts[cdp_rank(d->group) * d->sparse_count + k++] =
                d->shadow ? 0 : d->params[i].sparse->used;
    d->rows_under_way = false;
    d->item = 0;
    d->at_byte = 0;
    return cdp__ddp_after(d,
        cdp__ddp_beside(
            d, CDP_COLL_ALLGATHER, counts, d->sparse_count, CDP_DTYPE_U64, CDP_REDUCE_DEFAULT),
        cdp__ddp_next_rows);
}
#else
CDP__PRIVATE cdp_status cdp__ddp_sparse(cdp_ddp *d) {
    return cdp__ddp_arrived(d);
}
#endif /* CDP_NO_SPARSE */

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_ROWS_H */
