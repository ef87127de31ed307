/* ddp/compare.h - compares the model on all ranks

   Knows: names, shapes and settings of a model, and the bits of its parameters. Promises: if ranks
   differ, every rank returns the same sentence about the first difference. */
#ifndef CDP_SRC_DDP_COMPARE_H
#define CDP_SRC_DDP_COMPARE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/hash.h"
#include "state.h"
#include "broadcast.h"

#ifndef CDP_NO_DDP

/* A hash of one parameter or buffer. Buffers pass a number of rows that no parameter has. */
CDP__PRIVATE uint64_t cdp__shape_hash(
    const char *name, cdp_dtype dtype, uint64_t count, uint64_t rows) {
    char shape[80];
    cdp__format(shape, sizeof shape, "|%d|%llu|%llu", (int)dtype, (unsigned long long)count,
        (unsigned long long)rows);
    return cdp__hash(cdp__hash(CDP__HASH_START, name, strlen(name)), shape, strlen(shape));
}

CDP__PRIVATE uint64_t cdp__param_hash(const cdp_ddp *d, uint32_t i) {
    if (i >= d->param_count) {
        const cdp_buffer *b = &d->buffers[i - d->param_count];
        return cdp__shape_hash(b->name, b->dtype, b->count, UINT64_MAX);
    } else {
        const cdp_param *p = &d->params[i].user;
        const uint64_t rows =
            p->rows | (p->sparse ? 1ull << 63 : 0) | (p->delayed ? 1ull << 62 : 0);
        return cdp__shape_hash(d->params[i].name, p->dtype, p->count, rows);
    }
}

/* Shortens a long name to its end, where the names of one model differ. */
CDP__PRIVATE const char *cdp__param_short(const char *name, char out[48]) {
    const size_t n = strlen(name);
    cdp__format(out, 48, n < 48 ? "%s" : "...%s", n < 48 ? name : name + n - 44);
    return out;
}

/* Describes one of this rank's parameters or buffers, to be compared. The first 8 bytes are a
   hash, because shortened names may be equal. */
#define CDP__PARAM_TEXT 104u
CDP__PRIVATE void cdp__param_text(const cdp_ddp *d, uint32_t i, char out[CDP__PARAM_TEXT]) {
    const uint32_t n = d->param_count, all = n + d->desc.buffer_count;
    const uint64_t hash = i < all ? cdp__param_hash(d, i) : 0;
    const cdp_param *p = &d->params[i < n ? i : 0].user;
    char name[48];
    cdp__text t = cdp__text_of(out + 8, CDP__PARAM_TEXT - 8);
    memset(out, 0, CDP__PARAM_TEXT);
    memcpy(out, &hash, 8);
    if (i >= all) {
        cdp__text_add(&t, "nothing (%s is %u)",
            d->desc.buffer_count ? "param_count + buffer_count" : "param_count", all);
    } else if (i >= n) {
        cdp__text_add(&t, "buffer '%s' %s[%llu]", d->buffers[i - n].name,
            cdp_dtype_name(d->buffers[i - n].dtype), (unsigned long long)d->buffers[i - n].count);
    } else {
        cdp__text_add(&t, "'%s' %s[%llu]", cdp__param_short(p->name, name),
            cdp_dtype_name(p->dtype), (unsigned long long)p->count);
        if (p->rows)
            cdp__text_add(&t, p->sparse ? " in %llu sparse rows" : " in %llu rows",
                (unsigned long long)p->rows);
        if (p->delayed) cdp__text_add(&t, " delayed");
    }
}

/* What ranks with different models exchange: hashes of rank 0's parameters (the largest number of
   parameters of any rank), the index of the first one that differs on this rank and then on any
   rank, and a text of each rank. */
CDP__PRIVATE char *cdp__ddp_texts(const cdp_ddp *d) {
    return (char *)(d->scratch + d->item + 1);
}

/* All ranks have sent how the first parameter that differs looks there. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_explained(cdp_ddp *d) {
    const uint32_t world = cdp_size(d->group);
    const char *texts = cdp__ddp_texts(d);
    uint32_t other = 0, r;
    for (r = 1; r < world && !other; ++r)
        if (memcmp(texts, texts + r * CDP__PARAM_TEXT, CDP__PARAM_TEXT) != 0) other = r;
    return cdp__fail_peer(CDP_ERR_MISMATCH, other, 0,
        "rank %u/%u: cdp_ddp_create: ranks have different models: parameter %lld is %s on rank "
        "0 but %s on rank %u; give every rank the same parameters in the same order",
        cdp_rank(d->group), world, (long long)d->scratch[d->item], texts + 8,
        texts + other * CDP__PARAM_TEXT + 8, other);
}

CDP__PRIVATE cdp_status cdp__ddp_explain_text(cdp_ddp *d) {
    char *const texts = cdp__ddp_texts(d);
    cdp__param_text(d, (uint32_t)d->scratch[d->item], texts + cdp_rank(d->group) * CDP__PARAM_TEXT);
    return cdp__ddp_after(d,
        cdp__ddp_beside(
            d, CDP_COLL_ALLGATHER, texts, CDP__PARAM_TEXT, CDP_DTYPE_U8, CDP_REDUCE_DEFAULT),
        cdp__ddp_explained);
}

/* The hashes of rank 0 are here. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_explain_which(cdp_ddp *d) {
    const uint32_t count = d->param_count + d->desc.buffer_count, most = d->item;
    uint32_t i = 0;
    while (i < most && (i < count ? cdp__param_hash(d, i) : 0) == d->scratch[i])
        ++i;
    d->scratch[most] = i;
    return cdp__ddp_after(d,
        cdp__ddp_beside(d, CDP_COLL_ALLREDUCE, d->scratch + most, 1, CDP_DTYPE_I64, CDP_REDUCE_MIN),
        cdp__ddp_explain_text);
}

/* The ranks have different models. Finds the first parameter that differs on any rank; every
   rank reports how it looks on rank 0 and on the first rank that differs. `scratch` holds (hash,
   count, settings) of each rank. */
CDP__PRIVATE cdp_status cdp__ddp_explain(cdp_ddp *d) {
    const uint32_t world = cdp_size(d->group), count = d->param_count + d->desc.buffer_count;
    uint32_t most = 0, i;
    uint64_t room;
    for (i = 0; i < world; ++i)
        most = (uint32_t)cdp__max(most, d->scratch[3 * i + 1]);
    cdp__free(d->os, d->scratch);
    room = (most + 1ull) * sizeof *d->scratch + CDP__PARAM_TEXT * world;
    d->scratch = (uint64_t *)cdp__alloc_zero(d->os, room);
    if (!d->scratch) return cdp__fail_nomem("a comparison of parameters", room);
    d->item = most;
    for (i = 0; i < count && !cdp_rank(d->group); ++i)
        d->scratch[i] = cdp__param_hash(d, i);
    return cdp__ddp_after(d,
        cdp__ddp_copy_from(d, 0, CDP__TAG_NAMES, d->scratch, most, CDP_DTYPE_I64),
        cdp__ddp_explain_which);
}

/* The bits of the f64 that has this value, equal on ranks of every build. */
CDP__PRIVATE uint64_t cdp__real_bits(cdp_real x) {
#ifdef CDP_ONLY_F32
    uint32_t bits, size;
    memcpy(&bits, &x, 4);
    size = bits & 0x7fffffffu;
    return (uint64_t)(bits ^ size) << 32 | (size ? ((uint64_t)size << 29) + (896ull << 52) : 0);
#else
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
#endif
}

CDP__PRIVATE uint64_t cdp__ddp_uses_arena(const cdp_ddp_desc *s) {
#ifdef CDP_NO_TRAINING
    (void)s;
    return 0;
#else
    return s->grad_arena != NULL;
#endif
}

/* The settings that must agree: one bit per switch, so that an error can name it, and above
   these bits a hash of the numbers. */
CDP__PRIVATE uint64_t cdp__ddp_settings(const cdp_ddp_desc *s) {
    const uint64_t numbers[3] = {cdp__real_bits(s->divisor), cdp__real_bits(s->predivide),
        (uint64_t)s->accumulate | cdp__ddp_uses_arena(s) << 32};
    uint64_t hash = cdp__hash(CDP__HASH_START, numbers, sizeof numbers);
    hash = cdp__hash(hash, s->bucket_list, s->bucket_list_count * sizeof *s->bucket_list);
    return (hash & ~255ull) | (s->no_broadcast ? 1u : 0u) | (s->no_buffer_broadcast ? 2u : 0u)
        | (s->find_unused ? 4u : 0u) | (s->static_graph ? 8u : 0u) | (s->rebuild ? 16u : 0u)
        | (s->join ? 32u : 0u) | (s->join_throw ? 64u : 0u) | (s->join_effective ? 128u : 0u);
}

CDP__PRIVATE cdp_status cdp__ddp_explain_settings(
    const cdp_ddp *d, uint64_t zero, uint64_t there, uint32_t other) {
    static const char *const names[9] = {"no_broadcast", "no_buffer_broadcast", "find_unused",
        "static_graph", "rebuild", "join", "join_throw", "join_effective",
        "bucket sizes, divisor, predivide, accumulate or grad_arena"};
    uint32_t i = 0;
    while (i < 8 && !((zero ^ there) >> i & 1))
        ++i;
    return cdp__fail_peer(CDP_ERR_MISMATCH, other, 0,
        "rank %u/%u: cdp_ddp_create: ranks have different settings: %s of rank %u is not that of "
        "rank 0; give every rank the same desc",
        cdp_rank(d->group), cdp_size(d->group), names[i], other);
}

/* The hashes of all ranks are here. Ranks that agree get the values of rank 0. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_compared(cdp_ddp *d) {
    const uint32_t world = cdp_size(d->group), rank = cdp_rank(d->group);
    const uint64_t *heads = d->scratch;
    bool equal = true;
    uint32_t i, odd = 0;
    for (i = 0; i < world; ++i) {
        if (heads[3 * i + 1] != UINT64_MAX) continue;
        if (i != rank)
            return cdp__fail_peer(CDP_ERR_NOMEM, i, 0,
                "rank %u/%u: cdp_ddp_create: rank %u has no device memory left for its gradients",
                rank, world, i);
        *cdp__error_slot() = d->failed_error;
        return d->failed;
    }
    for (i = 1; i < world; ++i) {
        equal = equal && heads[3 * i] == heads[0] && heads[3 * i + 1] == heads[1];
        if (!odd && heads[3 * i + 2] != heads[2]) odd = i;
    }
    if (odd) return cdp__ddp_explain_settings(d, heads[2], heads[3 * odd + 2], odd);
    if (!equal) return cdp__ddp_explain(d);
    return d->desc.no_broadcast ? CDP_OK : cdp__ddp_broadcast(d, 0, true);
}

/* Compares one hash of the whole model per rank; only if they differ, more data is exchanged.
   A rank that has run out of device memory has failed with
   that. */
CDP__PRIVATE cdp_status cdp__ddp_compare(cdp_ddp *d) {
    const uint32_t world = cdp_size(d->group), rank = cdp_rank(d->group),
                   count = d->param_count + d->desc.buffer_count;
    uint64_t *heads = (uint64_t *)cdp__alloc(d->os, 3 * world * sizeof *heads),
             hash = CDP__HASH_START;
    uint32_t i;
    if (!heads) return cdp__fail_nomem("a comparison of models", 3 * world * sizeof *heads);
    d->scratch = heads;
    for (i = 0; i < count; ++i) {
        const uint64_t h = cdp__param_hash(d, i);
        hash = cdp__hash(hash, &h, sizeof h);
    }
    heads[3 * rank] = hash;
    heads[3 * rank + 1] = d->failed == CDP_ERR_NOMEM ? UINT64_MAX : count;
    heads[3 * rank + 2] = cdp__ddp_settings(&d->desc);
    return cdp__ddp_after(d,
        cdp__ddp_beside(d, CDP_COLL_ALLGATHER, heads, 3, CDP_DTYPE_I64, CDP_REDUCE_DEFAULT),
        cdp__ddp_compared);
}

#ifndef CDP_NO_VERIFY
/* Parameters in device memory are read in pieces of this size. */
#define CDP__PIECE_BYTES 1048576u

CDP__PRIVATE uint64_t cdp__bits_hash(uint64_t h, const uint8_t *at, uint64_t n) {
    uint64_t w;
    for (; n >= 8; n -= 8, at += 8) {
        memcpy(&w, at, 8);
        h = (h ^ w) * 0x9fb21c651e98df25ull;
        h ^= h >> 29;
    }
    w = n;
    if (n) memcpy(&w, at, (size_t)n);
    return (h ^ w) * 0x9fb21c651e98df25ull;
}

/* A hash of a parameter's bits, eight bytes at a time; not cryptographic. `stage` has room for
   one piece if parameters are in device memory; else it is NULL. */
CDP__PRIVATE uint64_t cdp__ddp_bits(cdp_ddp *d, const cdp__param *p, uint8_t *stage) {
    const uint8_t *from = (const uint8_t *)p->user.data;
    uint64_t left = p->user.count * p->elem, n, h = 0x9e3779b97f4a7c15ull;
    for (; left; left -= n, from += n) {
        n = stage ? cdp__min(left, CDP__PIECE_BYTES) : left;
        if (stage) cdp__ddp_copy(d, stage, from, n);
        h = cdp__bits_hash(h, stage ? stage : from, n);
    }
    return h ^ h >> 32;
}

/* The first rank whose number differs from rank 0's; 0: all are equal. */
CDP__PRIVATE uint32_t cdp__first_odd_rank(const uint64_t *numbers, uint32_t world) {
    uint32_t r;
    for (r = 1; r < world; ++r)
        if (numbers[r] != numbers[0]) return r;
    return 0;
}

/* The models differ: compares parameter by parameter, and names the first that differs. `all`
   has room for one number per rank; `hashes` are those of this rank's parameters. */
CDP__PRIVATE cdp_status cdp__ddp_verify_each(cdp_ddp *d, uint64_t *all, const uint64_t *hashes) {
    const uint32_t world = cdp_size(d->group), rank = cdp_rank(d->group);
    uint32_t i, odd;
    for (i = 0; i < d->param_count; ++i) {
        cdp_status st;
        all[rank] = hashes[i];
        st = cdp_allgather(d->group, NULL, all, 1, CDP_DTYPE_U64);
        if (st != CDP_OK) return st;
        odd = cdp__first_odd_rank(all, world);
        if (odd)
            return cdp__fail_peer(CDP_ERR_MISMATCH, odd, 0,
                "rank %u/%u: cdp_ddp_verify: parameter '%s' (index %u) is no longer the same on "
                "all ranks: rank %u has other bits than rank 0",
                rank, world, d->params[i].name, i, odd);
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_ddp_verify(cdp_ddp *d) {
    uint64_t *all, hash = CDP__HASH_START, room;
    uint8_t *stage = NULL;
    uint32_t world, i;
    cdp_status st;
    st = cdp__ddp_between(d, "cdp_ddp_verify");
    if (st != CDP_OK) return st;
    world = cdp_size(d->group);
    room = ((uint64_t)world + d->param_count) * sizeof *all;
    all = (uint64_t *)cdp__alloc(d->os, room + (cdp__ddp_on_device(d) ? CDP__PIECE_BYTES : 0));
    if (!all) return cdp__fail_nomem("a comparison of parameters", room);
    if (cdp__ddp_on_device(d)) stage = (uint8_t *)all + room;
    d->failed = CDP_OK;
    for (i = 0; i < d->param_count; ++i) {
        all[world + i] = cdp__ddp_bits(d, &d->params[i], stage);
        hash = cdp__hash(hash, &all[world + i], sizeof *all);
    }
    all[cdp_rank(d->group)] = hash;
    if (d->failed != CDP_OK) cdp__ddp_break(d);
    st = cdp_allgather(d->group, NULL, all, 1, CDP_DTYPE_U64);
    if (st == CDP_OK && cdp__first_odd_rank(all, world))
        st = cdp__ddp_verify_each(d, all, all + world);
    cdp__free(d->os, all);
    return st;
}
#endif /* CDP_NO_VERIFY */

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_COMPARE_H */
