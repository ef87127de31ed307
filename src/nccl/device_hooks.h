/* nccl/device_hooks.h - compression on the device

   Knows: layouts of compressed gradients, as in the hooks of cdp.h. Promises: the same values as
   those hooks, without a copy to the host. */
#ifndef CDP_SRC_NCCL_DEVICE_HOOKS_H
#define CDP_SRC_NCCL_DEVICE_HOOKS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../ddp/hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../group/state.h"
#include "../dtype/numbers.h"
#include "../ddp/hooks.h"
#include "../ddp/hooks_state.h"
#include "create_api.h"
#include "load.h"
#include "bootstrap.h"
#include "stream.h"
#include "kernels.h"
#include "backend.h"
#include "memory.h"
#include "calls.h"

#ifndef CDP_NO_HOOKS
/* Device memory that grows on demand. */
typedef struct cdp__nccl_room {
    void *data;
    uint64_t bytes;
} cdp__nccl_room;

/* A hook's state for one bucket. */
typedef struct cdp__nccl_slot {
    cdp__nccl_room error; /* values that compression left out */
    bool plain;           /* this step runs without compression */
} cdp__nccl_slot;

typedef struct cdp__nccl_hook {
    cdp__nccl *b;
    const cdp_os *os;
    cdp_group *group;
    cdp_hook_desc desc;
    /* used by one bucket after the other, in stream order. wide: an f32 copy */
    cdp__nccl_room scratch, wide;
    cdp__nccl_slot *slots;
    uint32_t slot_count;
    uint64_t step;
} cdp__nccl_hook;

CDP__PRIVATE cdp_status cdp__nccl_room_for(
    cdp__nccl_hook *h, cdp__nccl_room *room, uint64_t bytes, bool zero) {
    cdp__cu_error e;
    if (room->data && room->bytes >= bytes) return CDP_OK;
    cdp__nccl_memory_free(h->b, room->data);
    room->bytes = bytes;
    *cdp__purpose() = "hook scratch";
    room->data = cdp__nccl_memory_alloc(h->b, bytes + 4);
    *cdp__purpose() = NULL;
    if (!room->data) return cdp_last_error()->status;
    e = zero ? cdp__nc.cudaMemsetAsync(room->data, 0, (size_t)bytes + 4, h->b->stream)
             : (cdp__cu_error)0;
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "zeroing device memory");
}

CDP__PRIVATE cdp__nccl_slot *cdp__nccl_slot_of(cdp__nccl_hook *h, uint32_t count, uint32_t index) {
    cdp__nccl_slot *more;
    if (count > h->slot_count) {
        more = (cdp__nccl_slot *)cdp__alloc_zero(h->os, count * sizeof *more);
        if (!more) {
            (void)cdp__fail_nomem("a hook", count * sizeof *more);
            return NULL;
        }
        if (h->slot_count) memcpy(more, h->slots, h->slot_count * sizeof *more);
        cdp__free(h->os, h->slots);
        h->slots = more;
        h->slot_count = count;
    }
    return &h->slots[index];
}

CDP__PRIVATE cdp_status cdp__nccl_hook_kernels(cdp__nccl *b) {
    const char *first = cdp__nccl_hook_source, *second = cdp__nccl_quantize_source();
    const uint64_t room = strlen(first) + strlen(second) + 1;
    char *source;
    cdp_status st = cdp__nccl_kernels(b);
    if (st != CDP_OK || b->module[1]) return st;
    source = (char *)cdp__alloc(b->os, room);
    if (!source) return cdp__fail_nomem("kernels", room);
    cdp__format(source, room, "%s%s", first, second);
    st = cdp__nccl_load_kernels(b, &b->module[1], source,
        "cdp_feed cdp_begin cdp_counts cdp_sum cdp_pick cdp_parts cdp_groups cdp_write cdp_add "
        "cdp_divide cdp_range_parts cdp_range cdp_quantize cdp_dequantize ",
        b->hooks);
    cdp__free(b->os, source);
    return st;
}

/* Launches a kernel of hooks. */
CDP__PRIVATE CDP__ONE_COPY void cdp__nccl_step(cdp__nccl *b, cdp_status *st,
    cdp__nccl_hook_kernel kernel, uint64_t threads, void **arguments) {
    cdp__nccl_run(st, b->hooks[kernel], threads, b->stream, arguments);
}

CDP__PRIVATE void cdp__nccl_step_zero(cdp__nccl *b, cdp_status *st, void *data, uint64_t bytes) {
    const cdp__cu_error e = *st == CDP_OK
        ? cdp__nc.cudaMemsetAsync(data, 0, (size_t)bytes, b->stream)
        : (cdp__cu_error)0;
    if (e != 0) *st = cdp__nccl_cuda_failed(e, "zeroing device memory");
}

CDP__PRIVATE void cdp__nccl_step_divide(
    cdp__nccl *b, cdp_status *st, float *x, uint64_t count, double by) {
    unsigned long long n = count;
    float divisor = (float)by;
    void *a[3];
    a[0] = &x;
    a[1] = &n;
    a[2] = &divisor;
    cdp__nccl_step(b, st, CDP__NK_DIVIDE, n, a);
}

CDP__PRIVATE cdp_status cdp__nccl_hook_gather(
    cdp_request *op, void *data, uint64_t count, cdp_dtype dtype) {
    op->kind = CDP_COLL_ALLGATHER;
    op->out = data;
    op->count = count;
    op->dtype = dtype;
    return CDP_PENDING;
}

/* Top-k: finds the k-th largest magnitude, 8 bits at a time. Each block of threads has its own
   counts. */
CDP__PRIVATE void cdp__nccl_hook_limit(cdp__nccl *b, cdp_status *st, float *x, unsigned long long n,
    uint32_t k, uint32_t *state, uint32_t *counts) {
    static const int tops[4] = {31, 23, 15, 7}, shifts[4] = {23, 15, 7, 0};
    uint32_t i, copies = (uint32_t)cdp__min(cdp__nccl_blocks(n), 128);
    void *a[6];
    a[0] = &state;
    a[1] = &k;
    cdp__nccl_step(b, st, CDP__NK_BEGIN, 1, a);
    for (i = 0; i < 4; ++i) {
        int top = tops[i], shift = shifts[i];
        cdp__nccl_step_zero(b, st, counts, copies * 1024);
        a[0] = &x;
        a[1] = &n;
        a[2] = &state;
        a[3] = &counts;
        a[4] = &top;
        a[5] = &shift;
        cdp__nccl_step(b, st, CDP__NK_COUNTS, (uint64_t)copies * CDP__NCCL_THREADS, a);
        a[0] = &counts;
        a[1] = &copies;
        cdp__nccl_step(b, st, CDP__NK_SUM, 256, a);
        a[0] = &counts;
        a[1] = &state;
        a[2] = &shift;
        cdp__nccl_step(b, st, CDP__NK_PICK, 1, a);
    }
}

/* Memory and parameters of top-k for one bucket. Scratch memory: (index, value) pairs of all
   ranks, then temporary data of this rank's selection. Kernels get the addresses of these
   members. */
typedef struct cdp__nccl_topk {
    unsigned long long n, k;
    int add;
    float *x, *error;
    uint32_t *pairs, *own, *state, *counts, *parts, *groups;
} cdp__nccl_topk;

CDP__PRIVATE cdp_status cdp__nccl_topk_open(
    cdp__nccl_hook *h, cdp__nccl_slot *s, uint64_t n, float *x, cdp__nccl_topk *t) {
    const uint64_t world = h->b->size;
    cdp_status st = CDP_OK;
    t->x = x;
    t->n = n;
    t->k = cdp__min(n, (uint64_t)((double)n / h->desc.ratio) + 1);
    t->add = !h->desc.no_error_feedback;
    if (n >> 32)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "top-k: a bucket has more than 2^32 values; make bucket_bytes smaller");
    st = cdp__nccl_room_for(h, &s->error, n * 4, true);
    if (st == CDP_OK)
        st = cdp__nccl_room_for(
            h, &h->scratch, world * t->k * 8 + (4 + 128 * 256 + 2 * 16384 + 2 * 128) * 4, false);
    if (st != CDP_OK) return st;
    t->error = (float *)s->error.data;
    t->pairs = (uint32_t *)h->scratch.data;
    t->own = t->pairs + h->b->rank * t->k * 2;
    t->state = t->pairs + world * t->k * 2;
    t->counts = t->state + 4;
    t->parts = t->counts + 128 * 256;
    t->groups = t->parts + 2 * 16384;
    return CDP_OK;
}

/* Selects this rank's pairs: the k values of largest magnitude. */
CDP__PRIVATE void cdp__nccl_topk_find(cdp__nccl *b, cdp_status *st, cdp__nccl_topk *t) {
    void *feed[] = {&t->x, &t->error, &t->n, &t->add};
    void *parts[] = {&t->x, &t->n, &t->state, &t->parts};
    void *groups[] = {&t->parts, &t->groups};
    void *write[] = {&t->x, &t->error, &t->n, &t->state, &t->parts, &t->groups, &t->own};
    cdp__nccl_step(b, st, CDP__NK_FEED, t->n, feed);
    cdp__nccl_hook_limit(b, st, t->x, t->n, (uint32_t)(t->k - 1), t->state, t->counts);
    cdp__nccl_step(b, st, CDP__NK_PARTS, 16384, parts);
    cdp__nccl_step(b, st, CDP__NK_GROUPS, 128, groups);
    cdp__nccl_step(b, st, CDP__NK_WRITE, 16384, write);
}

CDP__PRIVATE cdp_status cdp__nccl_hook_topk(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    cdp__nccl *b = h->b;
    cdp__nccl_topk t;
    uint32_t r;
    void *add[] = {&t.x, &t.n, &t.own, &t.k};
    cdp_status st = cdp__nccl_topk_open(h, s, bucket->count, x, &t);
    if (st != CDP_OK) return st;
    if (!stage) {
        cdp__nccl_topk_find(b, &st, &t);
        return st == CDP_OK ? cdp__nccl_hook_gather(op, t.pairs, 2 * t.k, CDP_DTYPE_U32) : st;
    }
    cdp__nccl_step_zero(b, &st, x, t.n * 4);
    /* rank by rank, so that no two threads add to the same value */
    for (r = 0; r < b->size; ++r) {
        t.own = t.pairs + r * t.k * 2;
        cdp__nccl_step(b, &st, CDP__NK_ADD, t.k, add);
    }
    cdp__nccl_step_divide(b, &st, x, t.n, bucket->divisor);
    return st;
}

/* Scratch memory: ranges of all ranks, bytes of all ranks, temporary data for finding the range. */
CDP__PRIVATE cdp_status cdp__nccl_hook_quantize(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    const bool channel = h->desc.kind == CDP_HOOK_QUANTIZE_CHANNEL;
    cdp__nccl *b = h->b;
    unsigned long long n = bucket->count, row = channel ? 512 : n, rows = channel ? n / 512 + 1 : 1,
                       padded = rows * row, parts = channel ? 32 : 4096;
    uint32_t world = b->size;
    float *found, *ranges, *mine, by = (float)bucket->divisor;
    uint8_t *q, *own;
    void *a[9];
    cdp_status st =
        cdp__nccl_room_for(h, &h->scratch, rows * parts * 8 + world * (rows * 8 + padded), false);
    (void)s;
    if (st != CDP_OK) return st;
    found = (float *)h->scratch.data;
    ranges = found + 2 * rows * parts;
    mine = ranges + b->rank * rows * 2;
    q = (uint8_t *)(ranges + world * rows * 2);
    own = q + b->rank * padded;
    if (stage == 0) {
        a[0] = &x;
        a[1] = &n;
        a[2] = &row;
        a[3] = &rows;
        a[4] = &parts;
        a[5] = &found;
        cdp__nccl_step(b, &st, CDP__NK_RANGE_PARTS, rows * parts, a);
        a[0] = &found;
        a[1] = &rows;
        a[2] = &parts;
        a[3] = &mine;
        cdp__nccl_step(b, &st, CDP__NK_RANGE, rows, a);
        return st == CDP_OK ? cdp__nccl_hook_gather(op, ranges, rows * 2, CDP_DTYPE_F32) : st;
    }
    if (stage == 1) {
        a[0] = &x;
        a[1] = &n;
        a[2] = &row;
        a[3] = &mine;
        a[4] = &own;
        a[5] = &padded;
        cdp__nccl_step(b, &st, CDP__NK_QUANTIZE, padded, a);
        return st == CDP_OK ? cdp__nccl_hook_gather(op, q, padded, CDP_DTYPE_U8) : st;
    }
    a[0] = &x;
    a[1] = &n;
    a[2] = &row;
    a[3] = &rows;
    a[4] = &ranges;
    a[5] = &q;
    a[6] = &padded;
    a[7] = &world;
    a[8] = &by;
    cdp__nccl_step(b, &st, CDP__NK_DEQUANTIZE, n, a);
    return st;
}

/* Makes the stream of `b` wait for the work that `other` has started. */
CDP__PRIVATE cdp_status cdp__nccl_behind(cdp__nccl *b, cdp__nccl *other) {
    cdp__cu_error e = other ? cdp__nc.cudaEventRecord(other->all, other->stream) : (cdp__cu_error)0;
    if (other && e == 0) e = cdp__nc.cudaStreamWaitEvent(b->stream, other->all, 0);
    return e == 0 ? CDP_OK : cdp__nccl_cuda_failed(e, "ordering a stream behind a subgroup's");
}

/* Averages over bucket->group. */
CDP__PRIVATE cdp_status cdp__nccl_hook_mean(
    cdp_bucket *bucket, uint32_t stage, cdp_request *op, cdp_group *group) {
    if (stage) return CDP_OK;
    op->kind = CDP_COLL_ALLREDUCE;
    op->count = bucket->count;
    op->out = bucket->data;
    op->dtype = bucket->dtype;
    op->op = CDP_REDUCE_PREMUL_SUM;
    op->factor = 1 / (group ? (double)cdp_size(group) : bucket->divisor);
    if (group) bucket->group = group;
    return CDP_PENDING;
}

CDP__PRIVATE cdp_status cdp__nccl_hook_half(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    const cdp_dtype to = h->desc.kind == CDP_HOOK_FP16 ? CDP_DTYPE_F16 : CDP_DTYPE_BF16;
    cdp_status st;
    (void)s;
    (void)x;
    if (bucket->dtype == to) return cdp__nccl_hook_mean(bucket, stage, op, NULL);
    if (stage)
        return cdp__nccl_cast(
            h->b, to, h->scratch.data, bucket->dtype, bucket->data, bucket->count, 1, h->b->stream);
    st = cdp__nccl_room_for(h, &h->scratch, bucket->count * 2, false);
    if (st == CDP_OK)
        st = cdp__nccl_cast(h->b, bucket->dtype, bucket->data, to, h->scratch.data, bucket->count,
            1 / bucket->divisor, h->b->stream);
    op->kind = CDP_COLL_ALLREDUCE;
    op->count = bucket->count;
    op->out = h->scratch.data;
    op->dtype = to;
    op->op = CDP_REDUCE_SUM;
    return st == CDP_OK ? CDP_PENDING : st;
}

CDP__PRIVATE cdp_status cdp__nccl_stage_mean(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    (void)h;
    (void)s;
    (void)x;
    return cdp__nccl_hook_mean(bucket, stage, op, NULL);
}

CDP__PRIVATE cdp_status cdp__nccl_stage_noop(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    (void)h;
    (void)s;
    (void)bucket;
    (void)x;
    (void)stage;
    (void)op;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__nccl_stage_local(cdp__nccl_hook *h, cdp__nccl_slot *s,
    cdp_bucket *bucket, float *x, uint32_t stage, cdp_request *op) {
    (void)s;
    (void)x;
    if (!h->desc.subgroup) return CDP_OK;
    return stage ? cdp__nccl_behind(h->b, cdp__nccl_of(h->desc.subgroup))
                 : cdp__nccl_hook_mean(bucket, stage, op, h->desc.subgroup);
}

/* A stage on the device, and the module of kernels that it needs (0: none). `x`: the bucket, or
   its copy in f32 if the kind computes in f32. */
typedef struct cdp__nccl_hook_kind {
    cdp_hook_kind kind;
    cdp_status (*stage)(cdp__nccl_hook *h, cdp__nccl_slot *s, cdp_bucket *bucket, float *x,
        uint32_t stage, cdp_request *op);
    cdp_status (*kernels)(cdp__nccl *b);
} cdp__nccl_hook_kind;

/* NULL: hooks of this kind run in host memory only. */
CDP__PRIVATE const cdp__nccl_hook_kind *cdp__nccl_hook_kind_of(cdp_hook_kind kind) {
    static const cdp__nccl_hook_kind rows[] = {
        {CDP_HOOK_ALLREDUCE, cdp__nccl_stage_mean, NULL},
        {CDP_HOOK_FP16, cdp__nccl_hook_half, cdp__nccl_kernels},
        {CDP_HOOK_BF16, cdp__nccl_hook_half, cdp__nccl_kernels},
        {CDP_HOOK_QUANTIZE, cdp__nccl_hook_quantize, cdp__nccl_hook_kernels},
        {CDP_HOOK_QUANTIZE_CHANNEL, cdp__nccl_hook_quantize, cdp__nccl_hook_kernels},
        {CDP_HOOK_TOPK, cdp__nccl_hook_topk, cdp__nccl_hook_kernels},
        {CDP_HOOK_NOOP, cdp__nccl_stage_noop, NULL},
        {CDP_HOOK_POST_LOCAL_SGD, cdp__nccl_stage_local, NULL},
    };
    uint32_t i;
    for (i = 0; i < sizeof rows / sizeof *rows; ++i)
        if (rows[i].kind == kind) return &rows[i];
    return NULL;
}

/* Runs a stage that computes in f32, on a copy if the bucket has another dtype. */
CDP__PRIVATE cdp_status cdp__nccl_hook_compress(cdp__nccl_hook *h, const cdp__nccl_hook_kind *kind,
    cdp__nccl_slot *s, cdp_bucket *bucket, uint32_t stage, cdp_request *op) {
    const bool copy = bucket->dtype != CDP_DTYPE_F32;
    cdp_status st = copy ? cdp__nccl_room_for(h, &h->wide, bucket->count * 4, false) : CDP_OK;
    float *x = (float *)(copy ? h->wide.data : bucket->data);
    if (st == CDP_OK && copy && !stage)
        st = cdp__nccl_cast(
            h->b, bucket->dtype, bucket->data, CDP_DTYPE_F32, x, bucket->count, 1, h->b->stream);
    if (st != CDP_OK || !bucket->count) return st;
    st = kind->stage(h, s, bucket, x, stage, op);
    return st == CDP_OK && copy ? cdp__nccl_cast(
               h->b, CDP_DTYPE_F32, x, bucket->dtype, bucket->data, bucket->count, 1, h->b->stream)
                                : st;
}

CDP__PRIVATE cdp_status cdp__nccl_hook_stage(
    void *self, cdp_bucket *bucket, uint32_t stage, cdp_request *op) {
    cdp__nccl_hook *h = (cdp__nccl_hook *)self;
    cdp__nccl_slot *s = cdp__nccl_slot_of(h, bucket->bucket_count, bucket->index);
    const cdp__nccl_hook_kind *kind = cdp__nccl_hook_kind_of(h->desc.kind);
    cdp_status st;
    int where;
    if (!s) return cdp_last_error()->status;
    if (!stage) s->plain = h->step < h->desc.start;
    if (!stage && bucket->index + 1 == bucket->bucket_count) ++h->step;
    if (kind->kind == CDP_HOOK_NOOP) return CDP_OK;
    where = cdp__nccl_owns(h->b, bucket->data);
    if (where < 0) return (cdp_status)where;
    if (where != 1)
        return cdp__fail(CDP_ERR_INVALID,
            "a hook of cdp_nccl_hook_create is for parameters in device memory; use "
            "cdp_hook_create");
    if (s->plain) return cdp__nccl_hook_mean(bucket, stage, op, NULL);
    st = stage || !kind->kernels ? CDP_OK : cdp__nccl_after_caller(h->b);
    if (st != CDP_OK) return st;
    return cdp__hook_kind_of(kind->kind)->flags & CDP__HOOK_F32
        ? cdp__nccl_hook_compress(h, kind, s, bucket, stage, op)
        : kind->stage(h, s, bucket, NULL, stage, op);
}

CDP__PRIVATE CDP__COLD void cdp__nccl_hook_destroy(void *self) {
    cdp__nccl_hook *h = (cdp__nccl_hook *)self;
    const bool there = cdp__nccl_of(h->group) == h->b;
    uint32_t i;
    for (i = 0; i < h->slot_count && there; ++i) {
        cdp__nccl_memory_free(h->b, h->slots[i].error.data);
    }
    if (there) cdp__nccl_memory_free(h->b, h->scratch.data);
    if (there) cdp__nccl_memory_free(h->b, h->wide.data);
    cdp__free(h->os, h->slots);
    cdp__free(h->os, h);
}

CDP__PRIVATE double cdp__nccl_hook_error_norm(void *self) {
    const cdp__nccl_hook *h = (const cdp__nccl_hook *)self;
    double sum = 0, one = 0;
    uint32_t i;
    for (i = 0; i < h->slot_count; ++i)
        if (h->slots[i].error.data
            && cdp__nccl_sum_squares(
                   h->b, CDP_DTYPE_F32, h->slots[i].error.data, h->slots[i].error.bytes / 4, &one)
                == CDP_OK)
            sum += one;
    return cdp__sqrt(sum);
}

/* An equal hook in host memory, used to save and to load the state. with_slots: it gets a copy
   of this hook's state. */
CDP__PRIVATE cdp__hook *cdp__nccl_hook_twin(cdp__nccl_hook *h, bool with_slots) {
    cdp_hook made;
    cdp__hook *twin;
    cdp__nccl_slot *s;
    uint32_t i;
    if (cdp_hook_create(&h->desc, &made) != CDP_OK) return NULL;
    twin = (cdp__hook *)made.self;
    twin->step = h->step;
    if (!with_slots || !h->slot_count) return twin;
    if (!cdp__hook_slot(twin, h->slot_count, 0)) goto failed;
    for (i = 0; i < h->slot_count; ++i) {
        s = &h->slots[i];
        if (s->error.data
            && (!cdp__hook_memory(
                    twin, &twin->slots[i].error, &twin->slots[i].error_bytes, s->error.bytes)
                || cdp__nccl_copy(h->b, twin->slots[i].error, s->error.data, s->error.bytes)
                    != CDP_OK))
            goto failed;
    }
    return twin;
failed:
    cdp__hook_drop(twin);
    return NULL;
}

CDP__PRIVATE uint64_t cdp__nccl_hook_save(void *self, void *bytes, uint64_t room) {
    cdp__hook *twin = cdp__nccl_hook_twin((cdp__nccl_hook *)self, true);
    const uint64_t n = twin ? cdp__hook_save(twin, bytes, room) : 0;
    if (twin) cdp__hook_drop(twin);
    return n;
}

CDP__PRIVATE cdp_status cdp__nccl_hook_load(void *self, const void *bytes, uint64_t count) {
    cdp__nccl_hook *h = (cdp__nccl_hook *)self;
    cdp__hook *twin = cdp__nccl_hook_twin(h, false);
    cdp_status st = twin ? cdp__hook_load(twin, bytes, count) : cdp_last_error()->status;
    uint32_t i;
    if (st == CDP_OK && twin->slot_count && !cdp__nccl_slot_of(h, twin->slot_count, 0))
        st = cdp_last_error()->status;
    for (i = 0; st == CDP_OK && i < twin->slot_count; ++i) {
        const cdp__slot *from = &twin->slots[i];
        cdp__nccl_slot *s = &h->slots[i];
        if (from->error_bytes) st = cdp__nccl_room_for(h, &s->error, from->error_bytes, false);
        if (st == CDP_OK && from->error_bytes)
            st = cdp__nccl_copy(h->b, s->error.data, from->error, from->error_bytes);
    }
    if (st == CDP_OK) h->step = twin->step;
    if (twin) cdp__hook_drop(twin);
    return st;
}

CDP_API cdp_status cdp_nccl_hook_create(
    cdp_group *group, const cdp_hook_desc *desc, cdp_hook *out) {
    cdp__nccl *b = cdp__nccl_of(group);
    cdp__nccl_hook *h;
    const cdp__nccl_hook_kind *kind;
    cdp_hook_desc settled;
    cdp_status st;
    if (!out || !desc) return cdp__missing("cdp_nccl_hook_create", out ? "desc" : "out");
    memset(out, 0, sizeof *out);
    if (!b)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_hook_create: this group has no communicator; call cdp_nccl_attach first");
    st = cdp__hook_settle(desc, &settled);
    kind = cdp__nccl_hook_kind_of(desc->kind);
    if (st != CDP_OK) return st;
    if (desc->inner || !kind)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_nccl_hook_create: a hook %s%s runs in host memory only; parameters in device "
            "memory need another one",
            cdp__hook_kind_of(desc->kind)->name, desc->inner ? " around another hook" : "");
    if (desc->subgroup
        && (!cdp__nccl_of(desc->subgroup) || cdp__nccl_of(desc->subgroup)->device != b->device))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_nccl_hook_create: the subgroup has no communicator on device %d; make it with "
            "cdp_group_split, or attach it",
            b->device);
    h = (cdp__nccl_hook *)cdp__alloc_zero(b->os, sizeof *h);
    if (!h) return cdp__fail_nomem("a hook", sizeof *h);
    h->b = b;
    h->os = b->os;
    h->group = group;
    h->desc = settled;
    h->desc.os = b->os;
    if (kind->kernels) st = kind->kernels(b);
    if (st != CDP_OK) {
        cdp__free(b->os, h);
        return st;
    }
    cdp__hook_publish(desc, out);
    out->self = h;
    out->stage = cdp__nccl_hook_stage;
    out->save = cdp__nccl_hook_save;
    out->load = cdp__nccl_hook_load;
    out->error_norm = cdp__nccl_hook_error_norm;
    out->destroy = cdp__nccl_hook_destroy;
    out->device = true;
    return CDP_OK;
}
#endif

#endif /* CDP_SRC_NCCL_DEVICE_HOOKS_H */
