/* ddp/hooks.h - memory of a hook, hooks without compression, 16-bit hooks

   Knows: buckets as a hook sees them (cdp_bucket), not the ddp behind them. Promises: memory of a
   finished bucket is reused for the next one. */
#ifndef CDP_SRC_DDP_HOOKS_H
#define CDP_SRC_DDP_HOOKS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../group/state.h"
#include "../group/collective_calls.h"
#include "../dtype/convert.h"
#include "../dtype/numbers.h"

#ifndef CDP_NO_HOOKS

/* State and memory that a hook keeps per bucket. */
typedef struct cdp__slot {
    uint8_t *scratch; /* used within one step */
    uint8_t *wide;    /* a copy in f32, used within one step */
    uint8_t *error;   /* values that compression has left out so far */
    uint8_t *q;       /* PowerSGD: the last right factors */
    uint64_t scratch_bytes, wide_bytes, error_bytes, q_bytes;
    uint64_t step;    /* of the hook, from 0 */
    cdp_dtype dtype;  /* of the bucket, also where a stage gets a copy in f32 */
    uint32_t phase;   /* PowerSGD: the next operation */
    bool plain;       /* this step runs without compression */
    bool busy;        /* scratch and wide are in use; if not, another bucket may take them */
    cdp_bucket inner; /* the bucket as a wrapped hook, or code for f32, sees it */
} cdp__slot;

typedef struct cdp__hook {
    cdp_hook_desc desc;
    const cdp_os *os;
    cdp_hook inner;
    cdp__slot *slots;
    uint32_t slot_count;
    uint64_t step, random;
    uint64_t recovered; /* the last step in which error memory was not finite, counted from 1 */
} cdp__hook;

CDP__PRIVATE void cdp__hook_drop(void *self) {
    cdp__hook *h = (cdp__hook *)self;
    uint32_t i;
    if (h->inner.destroy) h->inner.destroy(h->inner.self);
    for (i = 0; i < h->slot_count; ++i) {
        cdp__free(h->os, h->slots[i].scratch);
        cdp__free(h->os, h->slots[i].wide);
        cdp__free(h->os, h->slots[i].error);
        cdp__free(h->os, h->slots[i].q);
    }
    cdp__free(h->os, h->slots);
    cdp__free(h->os, h);
}

CDP__PRIVATE cdp__slot *cdp__hook_slot(cdp__hook *h, uint32_t count, uint32_t index) {
    cdp__slot *more;
    if (count > h->slot_count) {
        more = (cdp__slot *)cdp__alloc_zero(h->os, count * sizeof *more);
        if (!more) return NULL;
        if (h->slot_count) memcpy(more, h->slots, h->slot_count * sizeof *more);
        cdp__free(h->os, h->slots);
        h->slots = more;
        h->slot_count = count;
    }
    return &h->slots[index];
}

/* Makes memory of a slot at least `bytes` long; new memory is zero. False: out of memory. */
CDP__PRIVATE bool cdp__hook_memory(cdp__hook *h, uint8_t **p, uint64_t *have, uint64_t bytes) {
    if (*p && *have >= bytes) return true;
    cdp__free(h->os, *p);
    *p = (uint8_t *)cdp__alloc_zero(h->os, bytes);
    *have = *p ? bytes : 0;
    return *p != NULL;
}

/* Begins a bucket: takes over scratch memory from a finished one, so that only buckets in flight
   have any. */
CDP__PRIVATE void cdp__hook_begin(cdp__hook *h, cdp__slot *s) {
    uint32_t i;
    s->busy = true;
    for (i = 0; i < h->slot_count && !s->scratch; ++i) {
        cdp__slot *from = &h->slots[i];
        if (from->busy || !from->scratch) continue;
        s->scratch = from->scratch;
        s->scratch_bytes = from->scratch_bytes;
        s->wide = from->wide;
        s->wide_bytes = from->wide_bytes;
        from->scratch = from->wide = NULL;
        from->scratch_bytes = from->wide_bytes = 0;
    }
}

/* An f32 as bits without its sign: they order like magnitudes, infinity and then NaN last. */
#define CDP__SIZE_BITS 0x7fffffffu
#define CDP__SIZE_INFINITE 0x7f800000u

/* True if one of CDP__BLOCK values is infinite or NaN. */
CDP__PRIVATE bool cdp__block_is_wild(const float *x) {
    uint32_t bits[CDP__BLOCK], most = 0, i;
    memcpy(bits, x, sizeof bits);
    for (i = 0; i < CDP__BLOCK; ++i) {
        const uint32_t size = bits[i] & CDP__SIZE_BITS;
        most = size > most ? size : most;
    }
    return most >= CDP__SIZE_INFINITE;
}

CDP__PRIVATE bool cdp__is_wild(const float *x, uint64_t n) {
    float rest[CDP__BLOCK] = {0};
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK, x += CDP__BLOCK)
        if (cdp__block_is_wild(x)) return true;
    if (n) memcpy(rest, x, (size_t)n * sizeof *rest);
    return cdp__block_is_wild(rest);
}

/* Removes infinities and NaN from error memory: they have been sent, and would otherwise be sent
   again in every step. Logs one sentence per step. */
CDP__PRIVATE void cdp__hook_recover(
    cdp__hook *h, const cdp__slot *s, const cdp_bucket *b, float *error) {
    uint64_t i;
    uint32_t size;
    if (!cdp__is_wild(error, b->count)) return;
    for (i = 0; i < b->count; ++i) {
        memcpy(&size, &error[i], 4);
        if ((size & CDP__SIZE_BITS) >= CDP__SIZE_INFINITE) error[i] = 0;
    }
    if (h->desc.no_error_feedback || h->recovered == s->step + 1) return;
    h->recovered = s->step + 1;
    cdp__log(&b->group->desc.logger, CDP_LOG_WARN, b->group->desc.rank,
        "gradients of the hook's step %llu hold infinities or NaN, first in bucket %u: they reach "
        "all ranks "
        "in this step, and are left out of the hook's error memory",
        (unsigned long long)s->step, b->index);
}

/* Divides, then sums in `group`. */
CDP__PRIVATE cdp_status cdp__hook_allreduce(
    cdp_bucket *b, uint32_t stage, cdp_request *op, cdp_group *group) {
    if (stage) return CDP_OK;
    cdp__divide_by(
        b->dtype, b->data, b->count, group == b->group ? b->divisor : (double)cdp_size(group));
    b->group = group;
    *op = cdp__request_of(CDP_COLL_ALLREDUCE, NULL, b->data, b->count, b->dtype, CDP_REDUCE_SUM, 0);
    return CDP_PENDING;
}

CDP__PRIVATE cdp_status cdp__hook_mean(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    (void)h;
    (void)s;
    return cdp__hook_allreduce(b, stage, op, b->group);
}

CDP__PRIVATE cdp_status cdp__hook_noop(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    (void)h;
    (void)s;
    (void)b;
    (void)stage;
    (void)op;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__hook_local(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    (void)s;
    return h->desc.subgroup ? cdp__hook_allreduce(b, stage, op, h->desc.subgroup) : CDP_OK;
}

/* Sends the bucket as f16 or bf16; an inner hook may run on that copy. */
CDP__PRIVATE cdp_status cdp__hook_half(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const cdp_dtype t = h->desc.kind == CDP_HOOK_FP16 ? CDP_DTYPE_F16 : CDP_DTYPE_BF16;
    cdp_status st;
    if (!stage) {
        if (!cdp__hook_memory(h, &s->scratch, &s->scratch_bytes, b->count * 2))
            return cdp__fail_nomem("a compressed bucket", b->count * 2);
        cdp__convert(b->dtype, b->data, t, s->scratch, b->count);
        s->inner = *b;
        s->inner.data = s->scratch;
        s->inner.dtype = t;
    }
    s->inner.group = b->group;
    st = h->inner.stage ? h->inner.stage(h->inner.self, &s->inner, stage, op)
                        : cdp__hook_allreduce(&s->inner, stage, op, s->inner.group);
    b->group = s->inner.group;
    if (st == CDP_OK) cdp__convert(t, s->scratch, b->dtype, b->data, b->count);
    return st;
}

#endif /* CDP_NO_HOOKS */

#endif /* CDP_SRC_DDP_HOOKS_H */
