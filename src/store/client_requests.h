/* store/client_requests.h - sends requests

   Knows: the bytes of each operation, in both dialects. Promises: a request that runs out of memory
   is not sent in part. */
#ifndef CDP_SRC_STORE_CLIENT_REQUESTS_H
#define CDP_SRC_STORE_CLIENT_REQUESTS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/loop.h"
#include "wire.h"
#include "buffer.h"
#include "client.h"

/* Keys are sent with a leading slash, so that a program's keys cannot collide with the
   protocol's own. */

CDP__PRIVATE uint64_t cdp__client_strings(const cdp_bytes *s, uint64_t n, uint64_t extra) {
    uint64_t i, total = 0;
    for (i = 0; i < n; ++i)
        total += 8 + extra + s[i].bytes;
    return total;
}

CDP__PRIVATE uint8_t *cdp__client_begin(cdp__client *c, uint64_t bytes) {
    if (!cdp__fifo_reserve(c->os, &c->out, bytes + CDP__CLIENT_SPARE)) {
        cdp__fail_nomem("a request to the store", bytes);
        return NULL;
    }
    return c->out.data + c->out.used;
}

CDP__PRIVATE void cdp__client_end(cdp__client *c, const uint8_t *p) {
    c->out.used = (uint64_t)(p - c->out.data);
    CDP_ASSERT(c->out.used <= c->out.room);
}

CDP__PRIVATE uint8_t cdp__client_op(const cdp__client *c, uint8_t op) {
    (void)c; /* unused without the old dialect */
    return (uint8_t)(op - (CDP__OLD(c) && op < CDP__OP_DELETE));
}

/* Queues an operation on all keys of a request: WAIT, CHECK, MULTI_GET, or MULTI_SET with its
   values. The old dialect has no MULTI_ operations: sends as many GET or SET. */
CDP__PRIVATE bool cdp__client_put_list(
    cdp__client *c, uint8_t op, const cdp_store_request *rq, bool with_values) {
    const bool apart = CDP__OLD(c) && op >= CDP__OP_MULTI_GET;
    const uint64_t bytes = 9 + rq->key_count + cdp__client_strings(rq->keys, rq->key_count, 1)
        + (with_values ? cdp__client_strings(rq->values, rq->key_count, 0) : 0);
    uint8_t *p = cdp__client_begin(c, bytes);
    uint32_t i;
    if (!p) return false;
    if (!apart) *p++ = cdp__client_op(c, op);
    if (!apart) p = cdp__wire_put_number(p, rq->key_count);
    for (i = 0; i < rq->key_count; ++i) {
        if (apart) *p++ = cdp__client_op(c, with_values ? CDP__OP_SET : CDP__OP_GET);
        p = cdp__wire_put_string(p, "/", rq->keys[i]);
        if (with_values) p = cdp__wire_put_string(p, "", rq->values[i]);
    }
    cdp__client_end(c, p);
    return true;
}

/* Queues an operation on one key, with `values` values. */
CDP__PRIVATE bool cdp__client_put_key(
    cdp__client *c, uint8_t op, const cdp_store_request *rq, uint32_t values) {
    uint8_t *p = cdp__client_begin(c,
        1 + 8 + cdp__client_strings(rq->keys, rq->key_count, 1)
            + cdp__client_strings(rq->values, values, 0));
    uint32_t i;
    if (!p) return false;
    *p++ = cdp__client_op(c, op);
    if (rq->key_count) p = cdp__wire_put_string(p, c->bare ? "" : "/", rq->keys[0]);
    for (i = 0; i < values; ++i)
        p = cdp__wire_put_string(p, "", rq->values[i]);
    if (op == CDP__OP_ADD || op == CDP__OP_BARRIER)
        p = cdp__wire_put_number(p, (uint64_t)rq->delta);
    cdp__client_end(c, p);
    return true;
}

/* A server of this library gets the WAIT together with the CHECK before it, which saves a round
   trip. */
CDP__PRIVATE bool cdp__client_pairs(const cdp__client *c, const cdp_store_request *rq) {
    return c->is_cdp && !CDP__OLD(c) && (rq->op == CDP_STORE_WAIT || rq->op == CDP_STORE_MULTI_GET);
}

CDP__PRIVATE bool cdp__client_put_pair(cdp__client *c, const cdp_store_request *rq) {
    const uint64_t left = cdp__fifo_left(&c->out);
    if (!cdp__client_put_list(c, CDP__OP_CHECK, rq, false)) return false;
    if (cdp__client_put_list(c, CDP__OP_WAIT, rq, false)) return true;
    c->out.used = c->out.at + left;
    return false;
}

/* Queues the next part of a request that waits. The first part is a CHECK: its answer shows that
   the store answers, and that everything sent before has arrived. (For GET, servers of this
   library support TRY_GET, which returns the value of an existing key at once.) */
CDP__PRIVATE bool cdp__client_put_wait(cdp__client *c, const cdp_store_request *rq) {
    if (c->expect == CDP__EXPECT_TRY) return cdp__client_put_key(c, CDP__OP_TRY_GET, rq, 0);
    if (c->expect == CDP__EXPECT_STOP && rq->op == CDP_STORE_BARRIER)
        return cdp__client_put_key(c, CDP__OP_BARRIER, rq, 0);
    if (c->expect == CDP__EXPECT_CHECK && cdp__client_pairs(c, rq))
        return cdp__client_put_pair(c, rq);
    return cdp__client_put_list(
        c, c->expect == CDP__EXPECT_CHECK ? CDP__OP_CHECK : CDP__OP_WAIT, rq, false);
}

/* Queues a request or, if it waits, the next part of its wait. */
CDP__PRIVATE bool cdp__client_put(cdp__client *c, const cdp_store_request *rq) {
    switch (rq->op) {
    case CDP_STORE_SET: return cdp__client_put_key(c, CDP__OP_SET, rq, 1);
    case CDP_STORE_ADD: return cdp__client_put_key(c, CDP__OP_ADD, rq, 0);
    case CDP_STORE_COMPARE_SET: return cdp__client_put_key(c, CDP__OP_COMPARE_SET, rq, 2);
    case CDP_STORE_DELETE: return cdp__client_put_key(c, CDP__OP_DELETE, rq, 0);
    case CDP_STORE_CHECK: return cdp__client_put_list(c, CDP__OP_CHECK, rq, false);
#ifndef CDP_NO_STORE_CALLS
    case CDP_STORE_NUM_KEYS: return cdp__client_put_key(c, CDP__OP_NUM_KEYS, rq, 0);
    case CDP_STORE_APPEND: return cdp__client_put_key(c, CDP__OP_APPEND, rq, 1);
    case CDP_STORE_MULTI_SET: return cdp__client_put_list(c, CDP__OP_MULTI_SET, rq, true);
    case CDP_STORE_QUEUE_PUSH: return cdp__client_put_key(c, CDP__OP_QUEUE_PUSH, rq, 1);
    case CDP_STORE_QUEUE_LEN: return cdp__client_put_key(c, CDP__OP_QUEUE_LEN, rq, 0);
    case CDP_STORE_LIST_KEYS: return cdp__client_put_key(c, CDP__OP_LIST_KEYS, rq, 0);
    case CDP_STORE_QUEUE_POP:
        return c->expect == CDP__EXPECT_POP ? cdp__client_put_key(c, CDP__OP_QUEUE_POP, rq, 0)
                                            : cdp__client_put_wait(c, rq);
#endif
    default: return cdp__client_put_wait(c, rq);
    }
}

/* The expected answer to the first part of a request. */
CDP__PRIVATE cdp__expect cdp__client_expects(const cdp__client *c, const cdp_store_request *rq) {
    switch (rq->op) {
    case CDP_STORE_SET: return CDP__EXPECT_NOTHING;
    case CDP_STORE_COMPARE_SET: return CDP__EXPECT_VALUES;
    case CDP_STORE_CHECK: return CDP__EXPECT_FLAG;
    case CDP_STORE_ADD:
    case CDP_STORE_DELETE: return CDP__EXPECT_NUMBER;
#ifndef CDP_NO_STORE_CALLS
    case CDP_STORE_APPEND:
    case CDP_STORE_QUEUE_PUSH:
    case CDP_STORE_MULTI_SET: return CDP__EXPECT_NOTHING;
    case CDP_STORE_QUEUE_LEN:
    case CDP_STORE_NUM_KEYS: return CDP__EXPECT_NUMBER;
    case CDP_STORE_LIST_KEYS: return CDP__EXPECT_COUNT;
    case CDP_STORE_QUEUE_POP: return rq->delta ? CDP__EXPECT_POP : CDP__EXPECT_CHECK;
#endif
    case CDP_STORE_GET: return c->is_cdp && !CDP__OLD(c) ? CDP__EXPECT_TRY : CDP__EXPECT_CHECK;
    default: return CDP__EXPECT_CHECK;
    }
}

/* Bytes out */

/* Sends queued bytes. True if all are sent. */
CDP__PRIVATE bool cdp__client_flush(cdp__client *c) {
    while (cdp__fifo_left(&c->out)) {
        cdp_iov iov;
        int64_t r;
        iov.data = c->out.data + c->out.at;
        iov.bytes = cdp__fifo_left(&c->out);
        r = cdp__io_send(c->loop, &c->io, &iov, 1);
        if (r == 0 && !c->io.broken) return false;
        if (r <= 0) {
            cdp__client_lost(c, r);
            return false;
        }
        c->out.at += (uint64_t)r;
    }
    c->out.at = c->out.used = 0;
    return true;
}

/* Bytes in */

CDP__PRIVATE int64_t cdp__client_recv(cdp__client *c, void *dst, uint64_t bytes) {
    cdp_iov iov;
    int64_t r;
    iov.data = dst;
    iov.bytes = bytes;
    r = cdp__io_drain(c->loop, &c->io, &iov);
    if (r < 0 || (r == 0 && c->io.broken)) {
        cdp__client_lost(c, r);
        return -1;
    }
    return r;
}

/* Reads up to `bytes` bytes of the answer to dst (NULL: drops them). 0: later; < 0: the client
   is broken. */
CDP__PRIVATE int64_t cdp__client_take(cdp__client *c, uint8_t *dst, uint64_t bytes) {
    uint64_t n;
    if (c->in_at == c->in_used) {
        int64_t r;
        if (dst && bytes >= sizeof c->in) return cdp__client_recv(c, dst, bytes);
        r = cdp__client_recv(c, c->in, sizeof c->in);
        if (r <= 0) return r;
        c->in_at = 0;
        c->in_used = (uint32_t)r;
    }
    n = cdp__min(bytes, c->in_used - c->in_at);
    if (dst) memcpy(dst, c->in + c->in_at, (size_t)n);
    c->in_at += (uint32_t)n;
    return (int64_t)n;
}

#endif /* CDP_SRC_STORE_CLIENT_REQUESTS_H */
