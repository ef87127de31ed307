/* rpc/sums.h - contributions to a value

   Knows: gradients, complete ones and rows. Promises: contributions are added in an order that does
   not depend on when they arrive. */
#ifndef CDP_SRC_RPC_SUMS_H
#define CDP_SRC_RPC_SUMS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../dtype/dtype.h"
#include "../dtype/reduce.h"
#include "worker_api.h"
#include "table.h"
#include "packets.h"
#include "state.h"
#include "contexts.h"

/* Inserts a contribution to a value at its position in the order. */
CDP__PRIVATE void cdp__ctx_add(cdp_ctx *ctx, uint32_t value, cdp__ctx_sum *sum) {
    cdp__ctx_sum **at = &ctx->values[value].sums;
    while (*at) {
        const cdp__ctx_sum *s = *at;
        const bool same = s->rank == sum->rank && s->node == sum->node;
        if (s->rank > sum->rank || (s->rank == sum->rank && s->node > sum->node)) break;
        if (same && s->edge > sum->edge) break;
        at = &(*at)->next;
    }
    sum->next = *at;
    *at = sum;
}

/* a += b. False: their shapes differ, and the context has failed. */
CDP__PRIVATE bool cdp__ctx_plus(
    cdp_rpc *rpc, cdp_ctx *ctx, const cdp_tensor *a, const cdp_tensor *b) {
    const uint64_t bytes = cdp__rpc_tensor_bytes(a);
    if (a->dtype != b->dtype || a->dims != b->dims
        || memcmp(a->shape, b->shape, a->dims * sizeof *a->shape) != 0
        || !cdp__reduce_exists(a->dtype, CDP_REDUCE_SUM)) {
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_MISMATCH,
            "two gradients of one value differ on rank %u (%s): %llu bytes of dtype %d, and %llu "
            "of dtype %d",
            rpc->rank, rpc->peers[rpc->rank].name, (unsigned long long)bytes, (int)a->dtype,
            (unsigned long long)cdp__rpc_tensor_bytes(b), (int)b->dtype);
        return false;
    }
    cdp__reduce(
        a->dtype, CDP_REDUCE_SUM, false, a->data, b->data, bytes / cdp_dtype_size(a->dtype));
    return true;
}

typedef struct cdp__ctx_row {
    uint32_t row;
    uint32_t order; /* position among all contributions */
    const uint8_t *data;
} cdp__ctx_row;

CDP__PRIVATE int cdp__ctx_row_order(const void *a, const void *b) {
    const cdp__ctx_row *x = (const cdp__ctx_row *)a, *y = (const cdp__ctx_row *)b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* Counts the rows in a list of contributions. False: their shapes differ. */
CDP__PRIVATE bool cdp__ctx_rows_fit(const cdp__ctx_sum *list, uint64_t *count) {
    const cdp_tensor *a = &list->t;
    const cdp__ctx_sum *s;
    *count = 0;
    for (s = list; s; s = s->next) {
        if (!s->rows || s->t.dtype != a->dtype || s->t.dims != a->dims
            || memcmp(s->t.shape + 1, a->shape + 1, (a->dims - 1) * sizeof *a->shape) != 0)
            return false;
        *count += s->t.shape[0];
    }
    return *count < UINT32_MAX;
}

/* Merges contributions of some rows: each row once, ascending. Contributions to a row are added
   in their order. NULL: the context has failed. */
CDP__PRIVATE cdp__ctx_sum *cdp__ctx_rows_total(
    cdp_rpc *rpc, cdp_ctx *ctx, const cdp__ctx_sum *list) {
    const cdp__ctx_sum *s;
    cdp__ctx_sum *total = NULL;
    cdp__ctx_row *all;
    cdp_tensor t = list->t;
    uint64_t count, bytes, i;
    uint32_t n = 0;
    if (!cdp__ctx_rows_fit(list, &count)) {
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_MISMATCH,
            "gradients of one value differ on rank %u (%s): some are rows, others are not, or "
            "their rows have other shapes",
            rpc->rank, rpc->peers[rpc->rank].name);
        return NULL;
    }
    t.shape[0] = 1;
    bytes = cdp__rpc_tensor_bytes(&t);
    t.shape[0] = count;
    all = (cdp__ctx_row *)cdp__alloc(rpc->os, (count + 1) * sizeof *all);
    if (all) total = cdp__ctx_room_for(rpc, &t, true);
    if (!total) {
        cdp__free(rpc->os, all);
        cdp__ctx_fail_here(rpc, ctx, CDP_ERR_NOMEM, "out of memory for rows of a gradient");
        return NULL;
    }
    for (s = list; s; s = s->next)
        for (i = 0; i < s->t.shape[0]; ++i, ++n) {
            all[n].row = s->rows[i];
            all[n].order = n;
            all[n].data = (const uint8_t *)s->t.data + i * bytes;
        }
    qsort(all, (size_t)count, sizeof *all, cdp__ctx_row_order);
    total->t.shape[0] = 0;
    for (i = 0; i < count; ++i) {
        uint8_t *end = (uint8_t *)total->t.data + total->t.shape[0] * bytes;
        if (i && all[i].row == all[i - 1].row) {
            cdp__reduce(t.dtype, CDP_REDUCE_SUM, false, end - bytes, all[i].data,
                bytes / cdp_dtype_size(t.dtype));
            continue;
        }
        memcpy(end, all[i].data, (size_t)bytes);
        total->rows[total->t.shape[0]++] = all[i].row;
    }
    cdp__free(rpc->os, all);
    return total;
}

/* The sum of all contributions to a value, which the caller owns. NULL: there was none, or their
   shapes differ. */
CDP__PRIVATE cdp__ctx_sum *cdp__ctx_total(cdp_rpc *rpc, cdp_ctx *ctx, uint32_t value) {
    cdp__ctx_sum *total = ctx->values[value].sums, *rest, *s;
    bool rows = false;
    ctx->values[value].sums = NULL;
    for (s = total; s; s = s->next)
        rows = rows || s->rows;
    if (rows) {
        rest = total;
        total = cdp__ctx_rows_total(rpc, ctx, rest);
        cdp__ctx_sums_free(rpc, &rest);
        return total;
    }
    if (!total) return NULL;
    if (CDP__RPC_PLANT(ADDED_TWICE)) (void)cdp__ctx_plus(rpc, ctx, &total->t, &total->t);
    rest = total->next;
    total->next = NULL;
    for (s = rest; s; s = s->next) {
        if (cdp__ctx_plus(rpc, ctx, &total->t, &s->t)) continue;
        cdp__ctx_sums_free(rpc, &total);
        break;
    }
    cdp__ctx_sums_free(rpc, &rest);
    return total;
}

#endif /* CDP_SRC_RPC_SUMS_H */
