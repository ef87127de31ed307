/* ddp/broadcast.h - broadcasts parameters and buffers of one rank

   Knows: where parameters and buffers are. Promises: small ones share messages, large ones are in
   flight together. */
#ifndef CDP_SRC_DDP_BROADCAST_H
#define CDP_SRC_DDP_BROADCAST_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/works_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../message/header.h"
#include "../group/deferred.h"
#include "../group/collective_calls.h"
#include "group_access.h"
#include "state.h"

#ifndef CDP_NO_DDP

/* Parameters and buffers smaller than this are packed into one message. */
#define CDP__PACK_BELOW 65536u
#define CDP__PACK_BYTES 1048576u

/* Starts an operation without a root that belongs to no bucket. Errors name this ddp. */
CDP__PRIVATE cdp_status cdp__ddp_beside(
    cdp_ddp *d, cdp_coll_kind kind, void *data, uint64_t count, cdp_dtype dtype, cdp_reduce_op op) {
    const cdp_request rq = cdp__request_of(kind, NULL, data, count, dtype, op, 0);
    return cdp__group_start_bucket(d->group, &rq, d->number, 0xffffu, NULL, NULL, &d->last);
}

/* Starts a broadcast from rank `root`. Errors say what of this ddp it copies. */
CDP__PRIVATE cdp_status cdp__ddp_copy_from(
    cdp_ddp *d, uint32_t root, uint32_t tag, void *data, uint64_t count, cdp_dtype dtype) {
    const cdp_request rq =
        cdp__request_of(CDP_COLL_BROADCAST, NULL, data, count, dtype, CDP_REDUCE_DEFAULT, root);
    return cdp__group_start_copy(d->group, &rq, tag, d->number, &d->last);
}

/* The memory of parameter i; indices from param_count on are buffers. */
CDP__PRIVATE uint8_t *cdp__ddp_item(const cdp_ddp *d, uint32_t i, uint64_t *bytes) {
    const cdp_buffer *b = &d->buffers[i < d->param_count ? 0 : i - d->param_count];
    const cdp_param *p = &d->params[i < d->param_count ? i : 0].user;
    *bytes = i < d->param_count ? p->count * cdp_dtype_size(p->dtype)
                                : b->count * cdp_dtype_size(b->dtype);
    return (uint8_t *)(i < d->param_count ? p->data : b->data);
}

/* Allocates the buffer for one message of the small items from index `first` on. */
CDP__PRIVATE cdp_status cdp__ddp_open_pack(cdp_ddp *d, uint32_t first) {
    uint64_t bytes, small_bytes = 0;
    uint32_t i;
    for (i = first; i < d->param_count + d->desc.buffer_count; ++i) {
        (void)cdp__ddp_item(d, i, &bytes);
        small_bytes += bytes < CDP__PACK_BELOW ? bytes : 0;
    }
    small_bytes = cdp__min(small_bytes, CDP__PACK_BYTES);
    if (small_bytes <= d->pack_bytes) return CDP_OK;
    cdp__ddp_free(d, d->pack);
    d->pack = (uint8_t *)cdp__ddp_alloc(d, small_bytes, "ddp pack");
    d->pack_bytes = d->pack ? small_bytes : 0;
    return d->pack ? CDP_OK : cdp__fail_nomem("a copy of small parameters", small_bytes);
}

/* Copies one packed item to its place. False: there are no more. */
CDP__PRIVATE bool cdp__ddp_unpack(cdp_ddp *d) {
    uint64_t bytes;
    uint8_t *to;
    if (cdp_rank(d->group) == d->pack_root) d->pack_first = d->item;
    if (d->pack_first == d->item) return false;
    to = cdp__ddp_item(d, d->pack_first++, &bytes);
    if (!bytes || bytes >= CDP__PACK_BELOW) return true;
    cdp__ddp_copy(d, to, d->pack + d->at_byte, bytes);
    d->at_byte += bytes;
    return true;
}

/* One step of a broadcast: a large item is sent, a small one is packed, or unpacked when its
   message has arrived. */
CDP__PRIVATE cdp_status cdp__ddp_send_item(cdp_ddp *d) {
    const bool more = d->item < d->param_count + d->desc.buffer_count;
    uint64_t bytes = 0;
    uint8_t *const item = more ? cdp__ddp_item(d, d->item, &bytes) : NULL;
    cdp_status st = CDP_OK;
    if (d->pack_sent) {
        d->pack_sent = cdp__ddp_unpack(d);
        if (!d->pack_sent) d->pack_used = d->at_byte = 0;
    } else if (bytes >= CDP__PACK_BELOW) {
        st = cdp__ddp_copy_from(d, d->pack_root, d->pack_tag, item, bytes, CDP_DTYPE_U8);
        ++d->item;
    } else if (more && d->pack_used + bytes <= d->pack_bytes) {
        if (bytes && cdp_rank(d->group) == d->pack_root)
            cdp__ddp_copy(d, d->pack + d->pack_used, item, bytes);
        d->pack_used += bytes;
        ++d->item;
    } else if (d->pack_used) {
        d->pack_sent = true;
        return cdp__ddp_after(d,
            cdp__ddp_copy_from(d, d->pack_root, d->pack_tag, d->pack, d->pack_used, CDP_DTYPE_U8),
            cdp__ddp_send_item);
    } else { /* operations of a group end in order */
        return cdp__ddp_then(d, d->last, cdp__ddp_nothing);
    }
    return st == CDP_OK ? cdp__ddp_at_once(d, cdp__ddp_send_item) : st;
}

/* Broadcasts all buffers and, if `params` is set, all parameters from rank `root`. */
CDP__PRIVATE cdp_status cdp__ddp_broadcast(cdp_ddp *d, uint32_t root, bool params) {
    const uint32_t first = params ? 0 : d->param_count;
    const cdp_status st = cdp__ddp_open_pack(d, first);
    d->pack_root = root;
    d->pack_tag = params ? CDP__TAG_MODEL : CDP__TAG_BUFFERS;
    d->pack_first = d->item = first;
    d->pack_used = d->at_byte = 0;
    d->pack_sent = false;
    return st == CDP_OK ? cdp__ddp_send_item(d) : st;
}

/* Adds to the error of a failed copy what its rank alone knows: the names of the buffers. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_name_buffers(const cdp_ddp *d, cdp_status st) {
    const uint32_t n = d->desc.buffer_count;
    cdp_error *e = cdp__error_slot();
    const uint64_t used = strlen(e->text);
    if (st == CDP_OK || !n) return st;
    cdp__format(e->text + used, sizeof e->text - used,
        n > 1 ? "; ddp %u has the buffers '%s' to '%s'" : "; ddp %u has the buffer '%s'", d->number,
        d->buffers[0].name, d->buffers[n - 1].name);
    return st;
}

/* Broadcasts the buffers once per synchronized pass. With join, the root is the highest rank
   that has data in this step, as in PyTorch; a small allreduce determines it. If no rank has
   data, cdp_ddp_join() broadcasts the buffers. */
CDP__PRIVATE cdp_status cdp__ddp_send_buffers(cdp_ddp *d) {
    int32_t root = d->shadow ? -1 : (int32_t)cdp_rank(d->group);
    cdp_status st;
    if (!d->buffers_due) return CDP_OK;
    d->buffers_due = false;
    if (d->desc.buffer_hook) {
        const cdp_status before = cdp__ddp_call_begin();
        return cdp__ddp_call_end(
            d, before, d->desc.buffer_hook(d, d->desc.user), "the buffer_hook");
    }
    st = cdp__must_not_wait();
    if (st == CDP_OK && d->desc.join)
        st = cdp__ddp_beside(d, CDP_COLL_ALLREDUCE, &root, 1, CDP_DTYPE_I32, CDP_REDUCE_MAX);
    if (!d->desc.join) root = 0;
    if (st == CDP_OK && d->desc.join) st = cdp_work_wait(d->last);
    if (st == CDP_OK && root >= 0)
        st = cdp__ddp_wait(d, cdp__ddp_broadcast(d, (uint32_t)root, false));
    return cdp__ddp_name_buffers(d, st);
}

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_BROADCAST_H */
