/* store/server_bytes.h - parses requests, sends answers

   Knows: how received bytes become items, and when to read. Promises: an incomplete request uses
   memory in proportion to the bytes that arrived, not to its announced length. */
#ifndef CDP_SRC_STORE_SERVER_BYTES_H
#define CDP_SRC_STORE_SERVER_BYTES_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/loop.h"
#include "desc_api.h"
#include "wire.h"
#include "auth.h"
#include "buffer.h"
#include "server.h"
#include "server_waits.h"
#include "server_commands.h"

#ifndef CDP_NO_STORE_SERVER

/* Runs the commands in n bytes; returns how many bytes were consumed. */
CDP__PRIVATE uint64_t cdp__conn_consume(cdp__conn *c, const uint8_t *p, uint64_t n) {
    uint64_t used = 0, bytes;
    cdp__wire_item item;
    c->need = 1;
#ifndef CDP_NO_STORE_CALLS
    if (!c->greeted && cdp__wire_is_old(p, n)) {
        c->old = true;
        cdp__conn_greeted(c, cdp__wire_old);
    }
#endif
    while (!c->closing && used < n) {
        cdp__wire_result r;
        /* only between commands: a client that sends a long list may not read answers before its
           end */
        if (CDP__LISTING(c) || (!c->wire.row && cdp__conn_is_behind(c))) break;
        if (!cdp__server_spend(c->server, 1)) {
            cdp__conn_defer(c);
            break;
        }
        r = cdp__wire_next(&c->wire, &c->server->limits, p + used, n - used, &item, &bytes);
        if (r == CDP__WIRE_BAD)
            cdp__conn_close(c, "it is no store client, or sent a request above the limits");
        if (r == CDP__WIRE_MORE) c->need = bytes;
        if (r != CDP__WIRE_ITEM) break;
        used += bytes;
        (void)cdp__server_spend(c->server, bytes / 4096);
        /* its wait has timed out; clients of 1.13 do not tell the server */
        if (CDP__OLD(c) && item.first && c->awaited) cdp__conn_forget_waits(c, false);
        c->wait_answered = false;
        cdp__server_command(c, &item);
    }
    return used;
}

CDP__PRIVATE bool cdp__conn_keep(cdp__conn *c, const uint8_t *p, uint64_t n) {
    if (!n) return true;
    if (!cdp__conn_reserve(c, &c->in, n)) {
        cdp__conn_close(c, "no memory for a request (max_total_bytes)");
        return false;
    }
    memcpy(c->in.data + c->in.used, p, (size_t)n);
    c->in.used += n;
    return true;
}

/* Parses the bytes in c->in. */
CDP__PRIVATE void cdp__conn_parse(cdp__conn *c) {
    if (cdp__fifo_left(&c->in) < c->need) return;
    c->in.at += cdp__conn_consume(c, c->in.data + c->in.at, cdp__fifo_left(&c->in));
    if (!cdp__fifo_left(&c->in)) cdp__conn_release(c, &c->in);
}

/* If the first bytes are those of a link, passes the connection and these bytes to link_func. A
   rank that is leaving has no link_func: then the connection is closed, as by a port without a
   listener. */
CDP__PRIVATE bool cdp__conn_hand_over(cdp__conn *c, const uint8_t *p, uint64_t n) {
    cdp_store_server *s = c->server;
    int32_t fd;
    if (c->greeted || c->purpose == CDP__AUTH_STORE) return false;
    if (memcmp(p, "cdp-link", (size_t)cdp__min(n, 8)) != 0) {
        if (p[0] == 'c') c->need = 1; /* its first bytes may have looked like those of a link */
        return false;
    }
    if (n < 8) {
        c->need = 8;
        return cdp__conn_keep(c, p, n);
    }
    if (!s->link_func) {
        cdp__conn_close(c, NULL);
        return true;
    }
    fd = cdp__loop_detach(s->loop, &c->io);
    cdp__conn_close(c, NULL);
    s->link_func(s->link_user, fd, &c->from, p, n, c->nonce);
    return true;
}

/* Reads into scratch memory that all connections share, after the bytes of an incomplete item,
   which is small. Returns as cdp_os.net.recv_iov. */
CDP__PRIVATE int64_t cdp__conn_read_scratch(cdp__conn *c) {
    cdp_store_server *s = c->server;
    const uint64_t old = cdp__fifo_left(&c->in);
    uint64_t used, n;
    cdp_iov iov;
    int64_t r;
    iov.data = s->scratch + old;
    iov.bytes = CDP__SERVER_SCRATCH - old;
    r = cdp__io_drain(c->server->loop, &c->io, &iov);
    if (r <= 0) return r;
    if (old) memcpy(s->scratch, c->in.data + c->in.at, (size_t)old);
    if (old) cdp__conn_release(c, &c->in);
    n = old + (uint64_t)r;
    if (cdp__conn_hand_over(c, s->scratch, n)) return c->closing ? 0 : r;
    if (c->purpose == CDP__AUTH_LINK)
        cdp__conn_close(c, "it proved its key for a link, but sent a store request");
    if (c->closing) return 0;
    used = n < c->need ? 0 : cdp__conn_consume(c, s->scratch, n);
    if (!c->closing) cdp__conn_keep(c, s->scratch + used, n - used);
    return r;
}

/* Reads a large item straight into c->in. That buffer grows with the bytes that arrive, not with
   the announced length. */
CDP__PRIVATE int64_t cdp__conn_read_large(cdp__conn *c) {
    const uint64_t left = cdp__fifo_left(&c->in);
    const uint64_t missing = c->need > left ? c->need - left : 0;
    cdp_iov iov;
    int64_t r;
    if (c->in.used == c->in.room
        && !cdp__conn_reserve(
            c, &c->in, cdp__max(1, cdp__min(missing, cdp__max(left, CDP__SERVER_SCRATCH))))) {
        cdp__conn_close(c, "no memory for a request (max_total_bytes)");
        return 0;
    }
    iov.data = c->in.data + c->in.used;
    iov.bytes = c->in.room - c->in.used;
    r = cdp__io_drain(c->server->loop, &c->io, &iov);
    if (r <= 0) return r;
    c->in.used += (uint64_t)r;
    cdp__conn_parse(c);
    return r;
}

CDP__PRIVATE void cdp__conn_read(cdp__conn *c) {
    uint64_t budget = CDP__SERVER_READ_BUDGET;
    /* bytes left from an earlier run, or from a client with unread answers */
    if (c->in.data) cdp__conn_parse(c);
    while (!c->closing && (c->io.ready & CDP_IO_READ)) {
        const uint64_t old = cdp__fifo_left(&c->in);
        int64_t r;
        /* the socket stays ready, so the system is not polled for it */
        if (CDP__LISTING(c) || c->deferred.next || (!c->wire.row && cdp__conn_is_behind(c))) break;
        r = old <= CDP__SERVER_SMALL && c->need <= CDP__SERVER_SCRATCH ? cdp__conn_read_scratch(c)
                                                                       : cdp__conn_read_large(c);
        if (r < 0 || (r == 0 && c->io.broken)) cdp__conn_close(c, NULL);
        if (r <= 0) break;
        budget -= cdp__min(budget, (uint64_t)r);
        if (!budget && !c->io.broken) {
            cdp__loop_again(c->server->loop, &c->io);
            break;
        }
    }
}

/* The connection is being closed: sends as much of its answers as the socket accepts at once. */
CDP__PRIVATE void cdp__conn_send_rest(cdp__conn *c) {
    cdp_iov iov;
    iov.bytes = cdp__fifo_left(&c->out);
    if (!iov.bytes || c->io.fd < 0) return;
    iov.data = c->out.data + c->out.at;
    c->server->os->net.send_iov(c->server->os->user, c->io.fd, &iov, 1);
}

CDP__PRIVATE void cdp__conn_flush(cdp__conn *c) {
    while (cdp__fifo_left(&c->out) && !c->closing) {
        cdp_iov iov;
        int64_t r;
        iov.data = c->out.data + c->out.at;
        iov.bytes = cdp__fifo_left(&c->out);
        r = cdp__io_send(c->server->loop, &c->io, &iov, 1);
        if (r < 0 || (r == 0 && c->io.broken)) cdp__conn_close(c, NULL);
        if (r <= 0) return;
        c->out.at += (uint64_t)r;
    }
    if (c->out.data && !cdp__fifo_left(&c->out)) cdp__conn_release(c, &c->out);
}

/* Continues a listing, then reads more commands. */
CDP__PRIVATE void cdp__conn_resume(cdp__conn *c) {
    if (CDP__LISTING(c)) cdp__conn_list(c);
    if (!c->closing && !CDP__LISTING(c) && !cdp__conn_is_behind(c)) cdp__conn_read(c);
}

#endif /* CDP_NO_STORE_SERVER */

#endif /* CDP_SRC_STORE_SERVER_BYTES_H */
