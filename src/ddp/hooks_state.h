/* ddp/hooks_state.h - creating a hook, saving and loading its state

   Knows: all kinds of hooks. Promises: saved state can be loaded on every machine (32-bit words,
   least significant byte first). */
#ifndef CDP_SRC_DDP_HOOKS_STATE_H
#define CDP_SRC_DDP_HOOKS_STATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../group/collectives_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../dtype/convert.h"
#include "../dtype/numbers.h"
#include "hooks.h"
#include "hooks_quantize.h"
#include "hooks_topk.h"
#include "hooks_sign.h"
#include "hooks_powersgd.h"

#ifndef CDP_NO_HOOKS

/* Computes in f32: buckets of other dtypes go through a copy. */
#define CDP__HOOK_F32 1u
/* Its copy is padded with zeros to a square, because errors are fed back in the padding, too. */
#define CDP__HOOK_SQUARE 2u
/* Has state per bucket, which would be lost if buckets were rebuilt. */
#define CDP__HOOK_KEEPS_LAYOUT 4u
/* May run around another hook. */
#define CDP__HOOK_WRAPS 8u
/* Without compression, or over all ranks, until step cdp_hook_desc.start. */
#define CDP__HOOK_STARTS_PLAIN 16u

/* What a kind of hook is. Kinds that also run on devices have a row in cdp_nccl.h. */
typedef struct cdp__hook_kind {
    const char *name;
    cdp_status (*stage)(cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op);
    uint64_t start; /* the default of cdp_hook_desc.start */
    uint8_t operations, flags;
} cdp__hook_kind;

/* The row of a kind; NULL for a number that is no kind. */
CDP__PRIVATE const cdp__hook_kind *cdp__hook_kind_of(cdp_hook_kind kind) {
    enum {
        POWERSGD = CDP__HOOK_F32 | CDP__HOOK_KEEPS_LAYOUT | CDP__HOOK_STARTS_PLAIN
    };
    static const cdp__hook_kind rows[] = {
        {"ALLREDUCE", cdp__hook_mean, 0, 1, 0},
        {"FP16", cdp__hook_half, 0, 1, CDP__HOOK_WRAPS},
        {"BF16", cdp__hook_half, 0, 1, CDP__HOOK_WRAPS},
        {"POWERSGD", cdp__hook_powersgd, 1000, 3, POWERSGD},
        {"POWERSGD_BATCHED", cdp__hook_powersgd, 1000, 2, POWERSGD | CDP__HOOK_SQUARE},
        {"QUANTIZE", cdp__hook_quantize, 0, 2, CDP__HOOK_F32},
        {"QUANTIZE_CHANNEL", cdp__hook_quantize, 0, 2, CDP__HOOK_F32},
        {"TOPK", cdp__hook_topk, 0, 1, CDP__HOOK_F32 | CDP__HOOK_KEEPS_LAYOUT},
        {"NOOP", cdp__hook_noop, 0, 1, 0},
        {"POST_LOCAL_SGD", cdp__hook_local, 0, 1, CDP__HOOK_STARTS_PLAIN},
        {"SIGN", cdp__hook_sign, 0, 1, CDP__HOOK_F32 | CDP__HOOK_KEEPS_LAYOUT},
        {"QUANTIZE_4", cdp__hook_quantize, 0, 2, CDP__HOOK_F32},
    };
    typedef char one_row_per_kind[sizeof rows / sizeof *rows == CDP_HOOK_COUNT ? 1 : -1];
    (void)sizeof(one_row_per_kind);
    return (uint32_t)kind < CDP_HOOK_COUNT ? &rows[kind] : NULL;
}

/* Runs a stage that computes in f32, on a copy if the bucket has another dtype. */
CDP__PRIVATE cdp_status cdp__hook_compress(cdp__hook *h, const cdp__hook_kind *kind, cdp__slot *s,
    cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const bool square = (kind->flags & CDP__HOOK_SQUARE) != 0,
               copy = square || b->dtype != CDP_DTYPE_F32;
    const uint64_t side = square ? cdp__square_side(b->count) : 0,
                   count = square ? side * side : b->count;
    cdp_bucket *in = copy ? &s->inner : b;
    cdp_status st;
    if (copy && !stage) {
        if (!cdp__hook_memory(h, &s->wide, &s->wide_bytes, count * 4))
            return cdp__fail_nomem("a bucket in f32", count * 4);
        cdp__convert(b->dtype, b->data, CDP_DTYPE_F32, s->wide, b->count);
        memset(s->wide + b->count * 4, 0, (size_t)((count - b->count) * 4));
        s->inner = *b;
        s->inner.data = s->wide;
        s->inner.count = count;
        s->inner.dtype = CDP_DTYPE_F32;
    }
    in->group = b->group;
    st = kind->stage(h, s, in, stage, op);
    if (copy && st == CDP_OK) cdp__convert(CDP_DTYPE_F32, s->wide, b->dtype, b->data, b->count);
    return st;
}

CDP__PRIVATE cdp_status cdp__hook_stage(
    void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    cdp__hook *h = (cdp__hook *)self;
    cdp__slot *s = cdp__hook_slot(h, b->bucket_count, b->index);
    const cdp__hook_kind *kind = cdp__hook_kind_of(h->desc.kind);
    cdp_status st;
    if (!s) return cdp__fail_nomem("a hook", b->bucket_count * sizeof *s);
    if (!stage) {
        cdp__hook_begin(h, s);
        s->step = h->step;
        s->dtype = b->dtype;
        s->plain = h->step < h->desc.start;
    }
    if (s->plain)
        st = cdp__hook_mean(h, s, b, stage, op);
    else if (kind->flags & CDP__HOOK_F32)
        st = cdp__hook_compress(h, kind, s, b, stage, op);
    else
        st = kind->stage(h, s, b, stage, op);
    if (!stage && b->index + 1 == b->bucket_count) ++h->step;
    s->busy = st == CDP_PENDING;
    return st;
}

CDP__PRIVATE double cdp__hook_error_norm(void *self) {
    const cdp__hook *h = (const cdp__hook *)self;
    double sum = 0;
    uint64_t k;
    uint32_t i;
    for (i = 0; i < h->slot_count; ++i)
        for (k = 0; h->slots[i].error && k < h->slots[i].error_bytes / 4; ++k) {
            const double e = (double)((const float *)(const void *)h->slots[i].error)[k];
            sum += e * e;
        }
    return h->inner.error_norm ? h->inner.error_norm(h->inner.self) : cdp__sqrt(sum);
}

/* Layout of a saved state: kind, step, random state, number of slots; per slot the sizes and
   contents of error and q; then the state of the wrapped hook. */
CDP__PRIVATE void cdp__hook_put(
    uint8_t *out, uint64_t room, uint64_t *at, const uint8_t *words, uint64_t bytes) {
    uint64_t k;
    for (k = 0; k < bytes; k += 4, *at += 4) {
        uint32_t w;
        memcpy(&w, words + k, 4);
        if (*at + 4 <= room) cdp__put_u32(out + *at, w);
    }
}

CDP__PRIVATE void cdp__hook_put_u64(uint8_t *out, uint64_t room, uint64_t *at, uint64_t v) {
    const uint32_t words[2] = {(uint32_t)v, (uint32_t)(v >> 32)};
    cdp__hook_put(out, room, at, (const uint8_t *)(const void *)words, 8);
}

CDP__PRIVATE CDP__COLD uint64_t cdp__hook_save(void *self, void *bytes, uint64_t room) {
    const cdp__hook *h = (const cdp__hook *)self;
    uint8_t *out = (uint8_t *)bytes;
    uint64_t at = 0;
    uint32_t i;
    bool fits;
    if (!out) room = 0;
    cdp__hook_put_u64(out, room, &at, (uint64_t)h->desc.kind);
    cdp__hook_put_u64(out, room, &at, h->step);
    cdp__hook_put_u64(out, room, &at, h->random);
    cdp__hook_put_u64(out, room, &at, h->slot_count);
    for (i = 0; i < h->slot_count; ++i) {
        const cdp__slot *s = &h->slots[i];
        cdp__hook_put_u64(out, room, &at, s->error_bytes);
        cdp__hook_put_u64(out, room, &at, s->q_bytes);
        cdp__hook_put(out, room, &at, s->error, s->error_bytes);
        cdp__hook_put(out, room, &at, s->q, s->q_bytes);
    }
    if (!h->inner.save) return at;
    fits = out && at <= room;
    return at + h->inner.save(h->inner.self, fits ? out + at : NULL, fits ? room - at : 0);
}

CDP__PRIVATE bool cdp__hook_get(
    const uint8_t *in, uint64_t count, uint64_t *at, uint8_t *words, uint64_t bytes) {
    uint64_t k;
    if (bytes > count - *at) return false;
    for (k = 0; k < bytes; k += 4, *at += 4) {
        const uint32_t w = cdp__get_u32(in + *at);
        memcpy(words + k, &w, 4);
    }
    return true;
}

CDP__PRIVATE bool cdp__hook_get_u64(const uint8_t *in, uint64_t count, uint64_t *at, uint64_t *v) {
    uint32_t words[2];
    if (!cdp__hook_get(in, count, at, (uint8_t *)(void *)words, 8)) return false;
    *v = words[0] | (uint64_t)words[1] << 32;
    return true;
}

/* Loads one slot's state. INVALID: the bytes are no valid state. */
CDP__PRIVATE cdp_status cdp__hook_load_slot(
    cdp__hook *h, cdp__slot *s, const uint8_t *in, uint64_t count, uint64_t *at) {
    uint64_t error = 0, q = 0;
    if (!cdp__hook_get_u64(in, count, at, &error) || !cdp__hook_get_u64(in, count, at, &q)
        || error % 4 || q % 4 || error > count - *at || q > count - *at - error)
        return CDP_ERR_INVALID;
    if ((error && !cdp__hook_memory(h, &s->error, &s->error_bytes, error))
        || (q && !cdp__hook_memory(h, &s->q, &s->q_bytes, q)))
        return cdp__fail_nomem("a hook's state", error + q);
    return cdp__hook_get(in, count, at, s->error, error) && cdp__hook_get(in, count, at, s->q, q)
        ? CDP_OK
        : CDP_ERR_INVALID;
}

CDP__PRIVATE CDP__COLD cdp_status cdp__hook_load(void *self, const void *bytes, uint64_t count) {
    cdp__hook *h = (cdp__hook *)self;
    const uint8_t *in = (const uint8_t *)bytes;
    uint64_t at = 0, kind = 0, step = 0, random = 0, slots = 0;
    const bool ok = in && !(count % 4) && cdp__hook_get_u64(in, count, &at, &kind)
        && cdp__hook_get_u64(in, count, &at, &step) && cdp__hook_get_u64(in, count, &at, &random)
        && cdp__hook_get_u64(in, count, &at, &slots) && kind == (uint64_t)h->desc.kind
        && slots <= count / 16;
    cdp_status st = ok ? CDP_OK : CDP_ERR_INVALID;
    uint32_t i;
    if (ok && slots && !cdp__hook_slot(h, (uint32_t)slots, 0))
        return cdp__fail_nomem("a hook", slots * sizeof(cdp__slot));
    for (i = 0; st == CDP_OK && i < slots; ++i)
        st = cdp__hook_load_slot(h, &h->slots[i], in, count, &at);
    if (st == CDP_ERR_INVALID)
        return cdp__fail(CDP_ERR_INVALID,
            "a hook cannot load %llu bytes: they are not the state of a hook of this kind",
            (unsigned long long)count);
    if (st != CDP_OK) return st;
    h->step = step;
    h->random = random;
    return h->inner.load ? h->inner.load(h->inner.self, in + at, count - at) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__hook_check(const cdp_hook_desc *desc) {
    const cdp__hook_kind *kind = cdp__hook_kind_of(desc->kind);
    if (!kind)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_hook_create: kind %d does not exist", (int)desc->kind);
    if (desc->inner && !(kind->flags & CDP__HOOK_WRAPS))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_hook_create: only FP16 and BF16 run around another hook, not %s", kind->name);
    if (!(desc->min_rate >= 0) || !(desc->epsilon >= 0)
        || (desc->ratio != 0 && !(desc->ratio >= 1)))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_hook_create: min_rate and epsilon must be positive, ratio at least 1");
    return CDP_OK;
}

/* Checks a desc and fills in its defaults, for host memory and for devices. */
CDP__PRIVATE cdp_status cdp__hook_settle(const cdp_hook_desc *desc, cdp_hook_desc *settled) {
    const cdp_status st = cdp__hook_check(desc);
    const cdp__hook_kind *kind = cdp__hook_kind_of(desc->kind);
    if (st != CDP_OK) return st;
    *settled = *desc;
    settled->rank = cdp__def(desc->rank, 1);
    settled->start = kind->flags & CDP__HOOK_STARTS_PLAIN ? cdp__def(desc->start, kind->start) : 0;
    if (desc->min_rate == 0) settled->min_rate = 2;
    if (desc->ratio == 0) settled->ratio = 100;
    return CDP_OK;
}

/* What the ddp asks of a hook of this kind. */
CDP__PRIVATE void cdp__hook_publish(const cdp_hook_desc *desc, cdp_hook *out) {
    const cdp__hook_kind *kind = cdp__hook_kind_of(desc->kind);
    out->operations = desc->inner ? desc->inner->operations : kind->operations;
    out->keeps_layout =
        (kind->flags & CDP__HOOK_KEEPS_LAYOUT) != 0 || (desc->inner && desc->inner->keeps_layout);
}

CDP_API cdp_status cdp_hook_create(const cdp_hook_desc *desc, cdp_hook *out) {
    cdp_hook_desc settled;
    cdp__hook *h;
    const cdp_os *os;
    cdp_status st;
    if (!out) return cdp__missing("cdp_hook_create", "out");
    memset(out, 0, sizeof *out);
    if (!desc) return cdp__missing("cdp_hook_create", "desc");
    st = cdp__hook_settle(desc, &settled);
    if (st != CDP_OK) return st;
    if (cdp__os_whole(desc->os, "cdp_hook_create") != CDP_OK) return CDP_ERR_INVALID;
    os = desc->os ? desc->os : cdp_os_default();
    h = (cdp__hook *)cdp__alloc_zero(os, sizeof *h);
    if (!h) return cdp__fail_nomem("a hook", sizeof *h);
    h->os = os;
    h->desc = settled;
    h->random = desc->seed;
    if (desc->inner) h->inner = *desc->inner;
    out->self = h;
    out->stage = cdp__hook_stage;
    out->save = cdp__hook_save;
    out->load = cdp__hook_load;
    out->error_norm = cdp__hook_error_norm;
    out->destroy = cdp__hook_drop;
    cdp__hook_publish(desc, out);
    return CDP_OK;
}
#endif /* CDP_NO_HOOKS */

#endif /* CDP_SRC_DDP_HOOKS_STATE_H */
