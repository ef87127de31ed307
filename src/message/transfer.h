/* message/transfer.h - one message, from memory to memory

   Knows: streams, the remote reads of a transport. Promises: received bytes are written straight to
   their destination, or combined there in cache-sized pieces; when a transfer is done or
   revoked, peers no longer read its memory. */
#ifndef CDP_SRC_MESSAGE_TRANSFER_H
#define CDP_SRC_MESSAGE_TRANSFER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "../dtype/reduce.h"
#include "header.h"
#include "stream.h"
#include "port.h"
#include "receive.h"
#include "send.h"

typedef struct cdp__transfer {
    cdp__stream *s;
    const cdp__head *call; /* header fields of its messages; not copied */
    cdp_dtype dtype;       /* of a reduction, while it is computed */
    uint32_t round;
    bool receive;
    bool reduce;  /* combine received elements with `other`, or with those at `data` */
    bool swap;    /* received elements are the left operand */
    bool chained; /* never ahead of the transfer listed before it */
    bool fresh;   /* a send: this operation has just written these bytes */
    bool done;
    bool remote;    /* the receiver reads the payload in the sender's memory */
    bool exposing;  /* the token is valid and not revoked */
    bool announced; /* the receiver has the token */
    /* receive: the sender was told that its memory is free again; send: the payload is sent,
       although it was exposed */
    bool returned;
    uint8_t *data;      /* source of a send, destination of a receive */
    uint64_t row, step; /* receive into rows: `row` bytes every `step` bytes; 0: contiguous */
    const uint8_t *other;
    uint64_t bytes, moved; /* of the payload, over all pieces */
    uint64_t limit;        /* receive: bytes that may be combined for now */
    uint64_t skip;         /* bytes still to arrive that were already read remotely */
    uint64_t elem;         /* bytes of one element */
    uint64_t piece_bytes;  /* largest body */
    uint64_t expose_bytes; /* payloads from this size on are exposed to the receiver */
    uint8_t token[CDP__REMOTE_BYTES];
    uint8_t torn[16]; /* the first bytes of an element that arrived incomplete */
    uint64_t torn_bytes;
    cdp__head theirs; /* CDP__TRANSFER_MISMATCH: header of the unexpected message */
} cdp__transfer;

/* Result: a message arrived that does not belong to this transfer, see `theirs`. */
#define CDP__TRANSFER_MISMATCH INT64_MIN
#define CDP__REMOTE_SLICE (128u * 1024u)
/* Slice of a remote read by the system without a reduction: slices of 128 KiB take a tenth
   longer. */
#define CDP__GET_SLICE (1024u * 1024u)
#define CDP__REMOTE_BLOCK (16u * 1024u)
/* A receive into rows of at least this size bypasses the caches, which takes half the time. The
   first rows leave the caches before the last one arrives anyway. Smaller ones would take longer
   (docs/NOTES.md). */
#define CDP__ROWS_PAST_BYTES (12u * 1024u * 1024u)

/* True if the receiver reads the payload in the sender's memory. */
CDP__PRIVATE bool cdp__transfer_in_place(const cdp__transfer *x) {
    return CDP__IN_PLACE && x->remote;
}

/* Revokes the exposed memory: the receiver reads it no more. */
CDP__PRIVATE void cdp__transfer_revoke(cdp__world *w, cdp__transfer *x) {
    const cdp_transport *t = &w->transport;
    if (CDP__IN_PLACE && x->exposing) t->remote.revoke(t->self, x->s->peer, cdp__get_u64(x->token));
    x->exposing = false;
}

/* Exposes the payload to the receiver. False: it must be sent. */
CDP__PRIVATE bool cdp__transfer_expose(cdp__world *w, cdp__transfer *x) {
    const cdp_transport *t = &w->transport;
    uint64_t token;
    if (!CDP__IN_PLACE || !t->remote.expose || x->moved || x->returned || x->bytes < x->expose_bytes
        || x->s->left
        || !t->remote.expose(t->self, x->s->peer, x->data, x->bytes, x->fresh, &token))
        return false;
    cdp__put_u64(x->token, token);
    cdp__put_u64(x->token + 8, x->bytes);
    x->remote = x->exposing = true;
    x->announced = false;
    return true;
}

/* Sends the token to the receiver, once no other message is half sent. 1: done; 0: later; < 0:
   lost. */
CDP__PRIVATE int64_t cdp__transfer_announce(cdp__world *w, cdp__transfer *x) {
    cdp__stream *s = x->s;
    cdp__head h = *x->call;
    int64_t r;
    if (s->left) return cdp__stream_has_left(s);
    if (w->ports[s->peer].tx_stream || !cdp__port_flush(w, s->peer)) {
        r = cdp__port_pump(w, s->peer, s);
        return r < 0 ? r : 0;
    }
    h.type = CDP__MESSAGE_REMOTE;
    h.channel = s->channel;
    h.round = x->round;
    h.bytes = CDP__REMOTE_BYTES;
    h.ack = (uint32_t)s->taken;
    if (!cdp__control_add(w, s->peer, &h, x->token)) return 0; /* out of memory: try again later */
    x->announced = s->exposed = true;
    s->sent += CDP__HEAD_BYTES + CDP__REMOTE_BYTES;
    ++s->put;
    (void)cdp__port_flush(w, s->peer);
    return 1;
}

/* The receiver did not read the payload, or not all of it: sends it from the beginning, and the
   receiver skips the bytes that it has. */
CDP__PRIVATE void cdp__transfer_unexpose(cdp__transfer *x) {
    x->exposing = x->s->exposed = x->s->refused = x->remote = false;
    x->returned = true;
}

/* Revokes the payload if the receiver has not begun to read it, so that it is sent instead.
   False: it is being read. */
CDP__PRIVATE bool cdp__transfer_try_revoke(cdp__world *w, cdp__transfer *x) {
    const cdp_transport *t = &w->transport;
    if (!t->remote.try_revoke(t->self, x->s->peer, cdp__get_u64(x->token))) return false;
    cdp__transfer_unexpose(x);
    return true;
}

/* Checks whether the receiver has read the exposed payload. 1: progress; 0: not yet; < 0: lost. */
CDP__PRIVATE int64_t cdp__transfer_await(cdp__world *w, cdp__transfer *x) {
    cdp__stream *s = x->s;
    const int64_t r = s->exposed ? cdp__port_pump(w, s->peer, s) : 0;
    if (s->exposed && r == 0 && s->left) return cdp__stream_has_left(s);
    if (s->exposed) return r < 0 ? r : 0;
    cdp__transfer_revoke(w, x);
    if (s->refused) {
        cdp__transfer_unexpose(x);
        return 1;
    }
    x->moved = x->bytes;
    x->done = true;
    return 1;
}

/* Advances a send. 1: moved; 0: later; < 0: lost. */
CDP__PRIVATE int64_t cdp__transfer_send(cdp__world *w, cdp__transfer *x) {
    const cdp_transport *t = &w->transport;
    cdp__stream *s = x->s;
    cdp_iov v[2];
    int64_t r;
    if (w->ports[s->peer].tx_stream != s) { /* between two pieces */
        cdp__head h;
        if (cdp__transfer_in_place(x) && x->announced) return cdp__transfer_await(w, x);
        if (cdp__transfer_in_place(x) || cdp__transfer_expose(w, x))
            return cdp__transfer_announce(w, x);
        h = *x->call;
        h.type = CDP__MESSAGE_DATA;
        h.channel = s->channel;
        h.round = x->round;
        h.bytes = (uint32_t)cdp__min(x->bytes - x->moved, x->piece_bytes);
        if (cdp__stream_put(w, s, &h, x->data ? x->data + x->moved : NULL)) {
            x->moved += h.bytes;
            x->done = x->moved == x->bytes;
            return 1;
        }
        r = cdp__stream_ready(w, s, &h);
        if (r <= 0) return r;
        cdp__stream_begin(w, s, &h);
    }
    r = t->send(
        t->self, s->peer, v, cdp__stream_unsent(w, s, x->data ? x->data + x->moved : NULL, v));
    if (r <= 0) return r;
    x->moved += cdp__stream_sent(w, s, (uint64_t)r);
    x->done = x->moved == x->bytes && w->ports[s->peer].tx_stream != s;
    return 1;
}

/* Combines `bytes` received bytes with the destination at `offset`. */
CDP__PRIVATE void cdp__transfer_combine(
    const cdp__transfer *x, uint64_t offset, const uint8_t *came, uint64_t bytes) {
    cdp__reduce(
        x->dtype, (cdp_reduce_op)x->call->op, x->swap, x->data + offset, came, bytes / x->elem);
}

/* Copies bytes of the payload, from byte `at` on, to their rows. */
CDP__PRIVATE void cdp__transfer_scatter(
    const cdp__transfer *x, uint64_t at, const uint8_t *from, uint64_t bytes) {
    const bool past = x->bytes / x->row * x->step >= CDP__ROWS_PAST_BYTES;
    uint64_t in = at % x->row, n;
    uint8_t *row = x->data + at / x->row * x->step;
    CDP_ASSERT(x->row && !x->reduce);
    for (; bytes; bytes -= n) {
        n = cdp__min(bytes, x->row - in);
        if (past)
            cdp__copy_past(row + in, from, n);
        else
            memcpy(row + in, from, (size_t)n);
        from += n;
        row += x->step;
        in = 0;
    }
    if (past) cdp__copied_past();
}

/* Receives body bytes. Those of a plain receive, or to be combined with a separate operand, go
   straight to the destination. Those to be combined with the destination, or to be copied to
   rows, pass through the stage. */
CDP__PRIVATE int64_t cdp__transfer_body(cdp__world *w, cdp__transfer *x) {
    const bool staged = x->reduce && !x->other, stage = staged || x->row || x->skip;
    uint8_t *to = stage ? w->stage + x->torn_bytes : x->data + x->moved;
    uint64_t bytes = x->s->body_left, done = x->moved / x->elem, whole;
    int64_t r;
    if (stage || x->reduce) bytes = cdp__min(bytes, w->stage_bytes - x->torn_bytes);
    if (x->skip) bytes = cdp__min(bytes, x->skip);
    bytes = cdp__step_bytes(w, bytes);
    r = cdp__stream_read(w, x->s, to, bytes);
    if (r <= 0) return r;
    if (x->skip) {
        x->skip -= (uint64_t)r;
        return r;
    }
    if (x->row) cdp__transfer_scatter(x, x->moved, w->stage, (uint64_t)r);
    x->moved += (uint64_t)r;
    whole = (x->moved / x->elem - done) * x->elem;
    done *= x->elem;
    if (staged) {
        memcpy(w->stage, x->torn, (size_t)x->torn_bytes);
        cdp__transfer_combine(x, done, w->stage, whole);
        x->torn_bytes = x->moved % x->elem; /* the rest of a torn element is still to come */
        memcpy(x->torn, w->stage + whole, (size_t)x->torn_bytes);
    } else if (x->reduce) {
        cdp__reduce(x->dtype, (cdp_reduce_op)x->call->op, !x->swap, x->data + done, x->other + done,
            whole / x->elem);
    }
    return r;
}

/* Copies `bytes` at `src`, the sender's memory, to the destination, or combines them with it. */
CDP__PRIVATE void cdp__transfer_from(
    const cdp__transfer *x, const uint8_t *src, uint64_t bytes, bool mapped) {
    const bool staged = x->reduce && !x->other;
    uint8_t *to = x->data + x->moved;
    uint64_t at, n;
    if (x->row) {
        cdp__transfer_scatter(x, x->moved, src, bytes);
        return;
    }
    for (at = 0; at < bytes; at += n) {
        n = x->other ? cdp__min(bytes - at, CDP__REMOTE_BLOCK) : bytes;
        if (!staged && mapped) memcpy(to + at, src + at, (size_t)n);
        if (!x->reduce) continue;
        if (staged)
            cdp__transfer_combine(x, x->moved + at, src + at, n);
        else
            cdp__reduce(x->dtype, (cdp_reduce_op)x->call->op, !x->swap, to + at,
                x->other + x->moved + at, n / x->elem);
    }
}

/* Copies exposed memory that this rank has not mapped, through the transport's remote.get. Returns
   the bytes copied, 0 if the owner revoked or refused it, or CDP_ERR_PEER_LOST. */
CDP__PRIVATE int64_t cdp__transfer_get(
    cdp__world *w, cdp__transfer *x, uint64_t token, uint64_t bytes) {
    const cdp_transport *t = &w->transport;
    const bool staged = x->row || (x->reduce && !x->other);
    uint8_t *to = staged ? w->stage : x->data + x->moved;
    int64_t r = 0;
    if (t->remote.get) r = t->remote.get(t->self, x->s->peer, token, x->moved, to, bytes);
    if (r == CDP_ERR_PEER_LOST) return r;
    if (r < 0 && !cdp__stream_send_control(w, x->s, CDP__MESSAGE_REFUSED)) return 0;
    x->remote = r > 0;
    if (r < 0) x->skip = x->moved;
    return r > 0 ? r : 0;
}

/* Reads the next slice of exposed memory. If the memory was revoked, that is no error: the
   sender sends the payload instead, or it has failed or left and will report that. If the memory
   cannot be read, asks the sender to send it. */
CDP__PRIVATE int64_t cdp__transfer_slice(cdp__world *w, cdp__transfer *x, uint64_t bytes) {
    const cdp_transport *t = &w->transport;
    const uint64_t token = cdp__get_u64(x->token);
    const uint8_t *at = NULL;
    int64_t r;
    if (t->remote.map) at = (const uint8_t *)t->remote.map(t->self, x->s->peer, token, x->bytes);
    /* our senders align their memory, but kernels may crash on misaligned elements */
    if (at && (uintptr_t)at % x->elem) {
        (void)t->remote.unmap(t->self, x->s->peer, token);
        at = NULL;
    }
    if (at) {
        cdp__transfer_from(x, at + x->moved, bytes, true);
        x->remote = t->remote.unmap(t->self, x->s->peer, token);
        if (x->remote) x->moved += bytes;
        return 1;
    }
    if (!x->reduce && !x->row)
        bytes = cdp__step_bytes(w, cdp__min(x->bytes - x->moved, CDP__GET_SLICE));
    else if (!x->other)
        bytes = cdp__min(bytes, w->stage_bytes);
    r = cdp__transfer_get(w, x, token, bytes);
    if (r < 0) return r;
    if (r == 0) return x->remote ? 0 : 1;
    if (x->reduce || x->row) cdp__transfer_from(x, w->stage, bytes, false);
    x->moved += bytes;
    return 1;
}

/* Receives a payload that stays in the sender's memory: first its token, then slice by slice.
   Finally tells the sender that its memory is free again. */
CDP__PRIVATE int64_t cdp__transfer_remote(cdp__world *w, cdp__transfer *x) {
    cdp__stream *s = x->s;
    const cdp__port *port = &w->ports[s->peer];
    int64_t r;
    if (s->body_left) {
        uint8_t *to = x->token + (CDP__REMOTE_BYTES - s->body_left);
        r = cdp__stream_read(w, s, to, s->body_left);
        if (r <= 0 || s->body_left || cdp__get_u64(x->token + 8) == x->bytes) return r;
        x->theirs = *x->call;
        x->theirs.round = x->round;
        x->theirs.bytes = (uint32_t)cdp__get_u64(x->token + 8);
        return CDP__TRANSFER_MISMATCH;
    }
    if (x->moved < x->bytes) {
        const uint64_t most = cdp__step_bytes(w, CDP__REMOTE_SLICE);
        const uint64_t bytes = cdp__min(x->limit - x->moved, most);
        return bytes ? cdp__transfer_slice(w, x, bytes) : 0;
    }
    if (!x->returned) x->returned = cdp__stream_send_control(w, s, CDP__MESSAGE_READ);
    /* done only when READ has been sent: this rank may leave right after this */
    x->done = x->returned
        && (cdp__port_flush(w, s->peer) || s->left
            || (port->control_at == port->control_used && port->tx_stream));
    r = x->done ? 1 : cdp__port_pump(w, s->peer, s);
    return x->done || r < 0 ? r : 0;
}

CDP__PRIVATE bool cdp__transfer_fits(
    const cdp__world *w, const cdp__transfer *x, const cdp__head *h) {
    const uint64_t left = x->bytes - x->moved + x->skip;
    if (!cdp__same_call(x->call, h) || h->round != x->round) return false;
    if (h->type == CDP__MESSAGE_REMOTE)
        return CDP__IN_PLACE && left && !x->moved
            && (w->transport.remote.map || w->transport.remote.get);
    return h->bytes <= left && (h->bytes == 0) == (x->bytes == 0);
}

/* Advances a receive. > 0: bytes moved; 0: nothing moved, try later; CDP__TRANSFER_MISMATCH; any
   other value
   < 0: the peer is lost. */
CDP__PRIVATE int64_t cdp__transfer_receive(cdp__world *w, cdp__transfer *x) {
    cdp__stream *s = x->s;
    int64_t r = 0, n;
    if (!s->body_left && !x->remote) {
        r = cdp__stream_next(w, s, &x->theirs);
        if (r <= 0) return r;
        if (!cdp__transfer_fits(w, x, &x->theirs)) return CDP__TRANSFER_MISMATCH;
        x->remote = x->theirs.type == CDP__MESSAGE_REMOTE;
    }
    if (cdp__transfer_in_place(x)) return cdp__transfer_remote(w, x);
    if (s->body_left && x->limit == x->bytes) {
        n = cdp__transfer_body(w, x);
        if (n < 0) return n;
        r += n;
    } else if (s->body_left && x->bytes > w->window_bytes / 2) {
        /* not its turn yet: store it, because the peer's CREDIT may be behind it */
        n = cdp__port_pump(w, s->peer, NULL);
        if (n < 0) return n;
    }
    x->done = x->moved == x->bytes && !s->body_left;
    return r;
}

#endif /* CDP_SRC_MESSAGE_TRANSFER_H */
