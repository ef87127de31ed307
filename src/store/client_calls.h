/* store/client_calls.h - the store interface of a client

   Knows: the threads that use a client. Promises: one of them runs the loop while the others sleep,
   and each keeps its deadline. */
#ifndef CDP_SRC_STORE_CLIENT_CALLS_H
#define CDP_SRC_STORE_CLIENT_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "interface_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/whole.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "../os/loop.h"
#include "desc_api.h"
#include "store_api.h"
#include "addr.h"
#include "wire.h"
#include "auth.h"
#include "request.h"
#include "buffer.h"
#include "client.h"
#include "client_requests.h"
#include "client_answers.h"
#include "client_connect.h"

CDP__PRIVATE void cdp__client_wake_sleepers(cdp__client *c) {
    if (c->sleepers) c->os->threads.cond_broadcast(c->os->user, c->cond);
}

/* The request has failed: sets this thread's last error. This is needed if the error occurred in
   another thread, or in code that made no text for it. */
CDP__PRIVATE void cdp__client_set_error(const cdp__client *c, const cdp_store_request *rq) {
    if (rq->status < 0 && c->state == CDP__CLIENT_BROKEN)
        *cdp__error_slot() = c->error;
    else if (rq->status == CDP_ERR_NOMEM)
        cdp__client_no_memory(c);
}

CDP__PRIVATE cdp_status cdp__client_start(void *self, cdp_store_request *rq) {
    cdp__client *c = (cdp__client *)self;
    cdp_status status;
    /* refuse here what the server would answer by closing the connection */
    rq->status = cdp__store_request_validate(rq, c->max_value_bytes);
    rq->results = NULL;
    rq->next = NULL;
    if (rq->status == CDP_OK && cdp__is_child(c->forks))
        rq->status = cdp__child_refuses(CDP_ERR_STATE, "a call of a store", "store");
    if (rq->status != CDP_OK) return rq->status;
    cdp_lock_acquire(&c->lock);
    if (c->state == CDP__CLIENT_BROKEN) {
        rq->status = c->error.status;
    } else {
        rq->status = CDP_PENDING;
        if (c->last)
            c->last->next = rq;
        else
            c->first = rq;
        c->last = rq;
        cdp__client_pump(c);
        /* the thread that runs the loop must poll for this request */
        if (c->driven) cdp__loop_wake(c->loop);
    }
    cdp__client_wake_sleepers(c);
    status = rq->status;
    cdp__client_set_error(c, rq);
    cdp_lock_release(&c->lock);
    return status;
}

/* Opens a new connection to the same address. No sent request is lost, because a wait in the old
   dialect begins only after all earlier requests were answered. */
CDP__PRIVATE void cdp__client_reconnect(cdp__client *c) {
    cdp__loop_remove(c->loop, &c->io);
    cdp__client_done(c, CDP_OK);
    c->out.at = c->out.used = 0;
    c->in_at = c->in_used = 0;
    c->reconnecting = true;
    c->target.index = 0;
    c->target.refused_ns = 0;
    c->target.started_ns = c->os->now_ns(c->os->user);
    c->state = CDP__CLIENT_PAUSE;
    cdp__client_attempt(c);
}

/* The WAIT that was sent last has to end. */
CDP__PRIVATE void cdp__client_cancel_wait(cdp__client *c) {
    c->out.data[c->out.used++] = CDP__OP_CANCEL_WAIT; /* room: CDP__CLIENT_SPARE */
    cdp__client_pump(c);
}

/* Cancels a request. The caller holds the lock. */
CDP__PRIVATE CDP__ONE_COPY void cdp__client_forget(cdp__client *c, cdp_store_request *rq) {
    cdp_store_request **at = &c->first, *before = NULL;
    uint32_t i;
    if (rq->status != CDP_PENDING) return;
    rq->status = CDP_ERR_TIMEOUT;
    if (c->rq == rq) { /* in progress: its answer must still be read */
        c->rq = NULL;
        c->value = NULL;
        cdp__client_drop_results(c, rq);
        /* for cdp__store_timed_out(): before the wait, the store has answered that the key is
           absent */
        rq->number = c->expect == CDP__EXPECT_STOP ? 0 : CDP__STORE_NO_ANSWER;
        if (c->expect == CDP__EXPECT_CHECK && c->paired) {
            cdp__client_cancel_wait(c);
            return;
        }
        if (c->expect != CDP__EXPECT_STOP) return;
        if (CDP__OLD(c)) { /* the old dialect cannot cancel: a late answer would be misread */
            cdp__client_reconnect(c);
            return;
        }
        c->expect = CDP__EXPECT_CANCEL;
        cdp__client_cancel_wait(c);
        return;
    }
    for (i = 0; i < c->sent_count; ++i) { /* likewise */
        cdp__client_sent *sent = &c->sent[(c->sent_at + i) % CDP__CLIENT_AHEAD];
        if (sent->rq != rq) continue;
        sent->rq = NULL;
        cdp__store_request_drop_results(c->os, rq, 0);
        rq->number = CDP__STORE_NO_ANSWER;
        if (sent->paired) cdp__client_cancel_wait(c);
        return;
    }
    for (; *at && *at != rq; at = &(*at)->next)
        before = *at;
    if (!*at) return;
    rq->number = c->state == CDP__CLIENT_READY ? CDP__STORE_NOT_SENT : CDP__STORE_NO_ANSWER;
    *at = rq->next;
    if (c->last == rq) c->last = before;
}

CDP__PRIVATE void cdp__client_cancel(void *self, cdp_store_request *rq) {
    cdp__client *c = (cdp__client *)self;
    cdp_lock_acquire(&c->lock);
    cdp__client_forget(c, rq);
    if (c->driven) cdp__loop_wake(c->loop);
    cdp__client_wake_sleepers(c);
    cdp_lock_release(&c->lock);
}

/* Runs the loop once, or sleeps while another thread runs it. The caller holds the lock. */
CDP__PRIVATE cdp_status cdp__client_turn(cdp__client *c, uint64_t deadline_ns) {
    cdp_status status;
    if (c->driven) {
        if (!c->cond) return CDP_OK; /* called inside a callback: the loop is running */
        ++c->sleepers;
        c->os->threads.cond_wait(c->os->user, c->cond, c->lock.mutex, deadline_ns);
        --c->sleepers;
        return CDP_OK;
    }
    c->driven = true;
    status = cdp__loop_run(c->loop, &c->lock, deadline_ns);
    c->driven = false;
    cdp__client_wake_sleepers(c);
    return status;
}

CDP__PRIVATE cdp_status cdp__client_wait(void *self, cdp_store_request *rq, uint64_t deadline_ns) {
    cdp__client *c = (cdp__client *)self;
    cdp_status status = CDP_OK;
    cdp_lock_acquire(&c->lock);
    while (rq->status == CDP_PENDING) {
        status = cdp__client_turn(c, deadline_ns);
        if (status != CDP_OK
            || (rq->status == CDP_PENDING && c->os->now_ns(c->os->user) >= deadline_ns))
            break;
    }
    /* the loop has failed: it had no memory for its descriptors */
    if (status != CDP_OK && rq->status == CDP_PENDING) {
        cdp__client_forget(c, rq);
        rq->status = status;
    }
    if (status == CDP_OK || c->state == CDP__CLIENT_BROKEN) cdp__client_set_error(c, rq);
    status = rq->status;
    cdp_lock_release(&c->lock);
    return status;
}

/* For cdp_tcp.h: this end of the connection, an address at which the server's host can reach
   this one. */
CDP__PRIVATE bool cdp__tcp_store_local_addr(cdp_store *s, cdp_addr *out) {
    cdp__client *c = (cdp__client *)s->self;
    return c->state == CDP__CLIENT_READY && c->os->net.local_addr(c->os->user, c->io.fd, out) >= 0;
}

/* For cdp_tcp.h: the address of the server. */
CDP__PRIVATE cdp_addr cdp__tcp_store_peer_addr(const cdp_store *s) {
    const cdp__client *c = (const cdp__client *)s->self;
    return c->target.at[c->target.index];
}

/* Copies key and value to one block. */
CDP__PRIVATE bool cdp__client_copy_last_will(cdp__client *c, const char *key, cdp_bytes value) {
    const uint64_t key_bytes = strlen(key);
    uint8_t *p = (uint8_t *)cdp__alloc(c->os, key_bytes + value.bytes);
    if (!p) return false;
    memcpy(p, key, (size_t)key_bytes);
    if (value.bytes) memcpy(p + key_bytes, value.data, (size_t)value.bytes);
    c->will_key.data = p;
    c->will_key.bytes = key_bytes;
    c->will_value.data = p + key_bytes;
    c->will_value.bytes = value.bytes;
    return true;
}

/* For cdp_tcp.h: a client that connects, or has connected, without a last will gets one. */
CDP__PRIVATE cdp_status cdp__tcp_store_set_last_will(
    cdp_store *s, const char *key, cdp_bytes value) {
    cdp__client *c = (cdp__client *)s->self;
    if (!cdp__client_copy_last_will(c, key, value))
        return cdp__fail_nomem("a last will", strlen(key) + value.bytes);
    if (c->state != CDP__CLIENT_READY) return CDP_OK; /* cdp__client_greeted() sends it */
    cdp__client_send_last_will(c);
    if (c->state == CDP__CLIENT_READY) (void)cdp__client_flush(c);
    return CDP_OK;
}

/* For cdp_tcp.h: withdraws the last will. The links report the death of this process from now
   on. */
CDP__PRIVATE void cdp__tcp_store_withdraw_last_will(cdp_store *s) {
    cdp__client *c = (cdp__client *)s->self;
    if (c->state != CDP__CLIENT_READY || !c->last_will_sent) return;
    cdp__client_put_last_will(c, true);
    c->withdrawn = true;
    (void)cdp__client_flush(c);
}

/* For cdp_tcp.h: destroying this client will trigger its last will. */
CDP__PRIVATE void cdp__tcp_store_abandon(cdp_store *s) {
    cdp__client *c = (cdp__client *)s->self;
    c->last_will_sent = c->withdrawn = false;
}

CDP__PRIVATE void cdp__client_ignore(cdp__io *io) {
    (void)io;
}

/* Reads pending input: closing a socket with unread input would make the system drop the bytes
   sent last. */
CDP__PRIVATE void cdp__client_drain(cdp__client *c) {
    uint8_t sink[256];
    cdp_iov iov;
    uint32_t i;
    iov.data = sink;
    iov.bytes = sizeof sink;
    for (i = 0; i < 16 && c->os->net.recv_iov(c->os->user, c->io.fd, &iov, 1) > 0; ++i) {
    }
}

/* Begins the goodbye: withdraws the last will, and sends a PING. False: there is nothing to wait
   for. */
CDP__PRIVATE bool cdp__client_close_begin(cdp__client *c) {
    static const uint8_t bye[4] = {'b', 'y', 'e', '!'};
    uint8_t *p;
    c->io.func = cdp__client_ignore;
    cdp__client_put_last_will(c, true);
    p = c->last_will_sent ? NULL : cdp__client_begin(c, 5);
    if (!p) return false;
    *p++ = CDP__OP_PING;
    memcpy(p, bye, sizeof bye);
    cdp__client_end(c, p + sizeof bye);
    c->bye_ns = c->os->now_ns(c->os->user) + CDP__CLIENT_GOODBYE_NS;
    return true;
}

/* Reads up to the answer to the PING. True: that has not come yet. */
CDP__PRIVATE bool cdp__client_close_read(cdp__client *c) {
    uint8_t next = 0;
    cdp_iov iov;
    int64_t r;
    iov.data = &next;
    iov.bytes = 1;
    while ((r = cdp__io_recv(c->loop, &c->io, &iov, 1)) > 0) {
        memmove(c->bye_tail, c->bye_tail + 1, 3);
        c->bye_tail[3] = next;
        if (memcmp(c->bye_tail, "bye!", 4) == 0) return false;
    }
    return r == 0;
}

/* Closing a socket before all input has arrived would make the system drop the bytes sent last,
   among them the withdrawal of the last will. So a PING follows the withdrawal, and everything up
   to its answer is read, for at most CDP__CLIENT_GOODBYE_NS because the server may have died. One
   step, which does not wait. True: the answer is still awaited, until bye_ns. */
CDP__PRIVATE bool cdp__client_closing(cdp__client *c) {
    uint64_t left;
    if (c->state != CDP__CLIENT_READY || c->bye_over) return false;
    if (!c->bye_ns && !c->last_will_sent && !(c->withdrawn && cdp__fifo_left(&c->out))) {
        cdp__client_drain(c);
        return false;
    }
    c->bye_over = !c->bye_ns && !cdp__client_close_begin(c);
    if (c->bye_over) return false;
    left = cdp__fifo_left(&c->out);
    if (left) (void)cdp__client_flush(c);
    if (c->state != CDP__CLIENT_READY) return false;
    /* the time counts from the last bytes sent, and received bytes are handled first: so a
       process that was stopped meanwhile still says goodbye */
    if (cdp__fifo_left(&c->out) < left)
        c->bye_ns = c->os->now_ns(c->os->user) + CDP__CLIENT_GOODBYE_NS;
    c->bye_over = !cdp__client_close_read(c) || c->os->now_ns(c->os->user) >= c->bye_ns;
    return !c->bye_over;
}

/* For cdp_tcp.h: says goodbye without waiting, before the client is destroyed. True: call again
   when the loop has something to report, or at *until_ns. No request may be in progress. */
CDP__PRIVATE bool cdp__tcp_store_parts(cdp_store *s, uint64_t *until_ns) {
    cdp__client *c = (cdp__client *)s->self;
    const bool more = cdp__client_closing(c);
    *until_ns = c->bye_ns;
    return more;
}

CDP__PRIVATE void cdp__client_destroy(void *self) {
    cdp__client *c = (cdp__client *)self;
    const cdp_os *os = c->os;
    const cdp_error before = *cdp_last_error();
    void *will;
    if (cdp__is_child(c->forks)) return; /* the connection is the parent's */
    while (cdp__client_closing(c) && cdp__loop_run(c->loop, NULL, c->bye_ns) == CDP_OK) {
    }
    if (c->loop->os) {
        cdp__fail(CDP_ERR_STATE, "the store client of %s was destroyed", c->name);
        cdp__client_break(c); /* ends requests that other code still refers to */
    }
    /* destroying reports no error */
    *cdp__error_slot() = before;
    cdp__loop_close(&c->own_loop);
    cdp__fifo_free(os, &c->out);
    if (c->cond) os->threads.cond_destroy(os, c->cond);
    cdp__lock_close(&c->lock);
    memcpy(&will, &c->will_key.data, sizeof will);
    cdp__free(os, will);
    cdp__free(os, c->host);
    cdp__wipe(c->key, sizeof c->key);
    cdp__free(os, c);
}

/* Allocates memory and opens descriptors. */
CDP__PRIVATE cdp_status cdp__client_open(cdp__client *c, const cdp_tcp_store_desc *d) {
    const cdp_os *os = c->os;
    char first[64];
    const char *host = d->addr_count ? first : d->host;
    size_t host_bytes;
    cdp_addr none;
    if (d->addr_count) cdp__addr_text(&d->addrs[0], first, sizeof first);
    host_bytes = strlen(host) + 1;
    c->host = (char *)cdp__alloc(os, host_bytes);
    if (!c->host || (d->will_key && !cdp__client_copy_last_will(c, d->will_key, d->will_value)))
        return cdp__fail_nomem("a store client", host_bytes);
    memcpy(c->host, host, host_bytes);
    memset(&none, 0, sizeof none);
    cdp__client_set_name(c, d->addr_count ? &d->addrs[0] : &none);
    if (c->loop != &c->own_loop) return CDP_OK;
    if (!cdp__lock_open(&c->lock, os, true)) return cdp__fail_nomem("a lock", sizeof(cdp_lock));
    if (c->lock.mutex && !(c->cond = os->threads.cond_create(os)))
        return cdp__fail_nomem("a condition variable", sizeof(cdp_lock));
    return cdp__loop_open(&c->own_loop, os);
}

/* The desc for a second client of the same server. The key is passed as its hash. */
CDP__PRIVATE void cdp__client_describe(const cdp__client *c, cdp_tcp_store_desc *d) {
    memset(d, 0, sizeof *d);
    d->host = c->host;
    d->port = c->port;
    d->os = c->os;
    d->logger = c->logger;
    d->timeout_ms = c->store.timeout_ms;
    d->max_value_bytes = c->max_value_bytes;
    if (!c->target.fixed) return;
    d->addrs = c->target.at;
    d->addr_count = c->target.count;
}

CDP__PRIVATE void cdp__client_fill(cdp__client *c, const cdp_tcp_store_desc *d) {
    c->os = d->os ? d->os : cdp_os_default();
    c->logger = d->logger;
    c->loop = d->loop ? d->loop : &c->own_loop;
    c->port = d->port;
    c->target.fixed = d->addr_count > 0;
    c->target.count = d->addr_count;
    if (d->addr_count) memcpy(c->target.at, d->addrs, d->addr_count * sizeof *d->addrs);
    c->max_value_bytes = cdp__def(d->max_value_bytes, CDP_STORE_MAX_VALUE_BYTES);
    c->timer.at_ns = CDP__NEVER;
    c->timer.func = cdp__client_timer; /* for earlier sections */
    c->io.fd = -1;
    c->store.self = c;
    c->store.os = c->os;
    c->store.timeout_ms = cdp__def(d->timeout_ms, 300000);
    c->store.start = cdp__client_start;
    c->store.wait = cdp__client_wait;
    c->store.cancel = cdp__client_cancel;
    cdp__store_made(&c->store, cdp__client_destroy);
}

/* Creates a client that is not connected yet. `key`: used instead of the desc's key, as its
   hash. */
CDP__PRIVATE CDP__COLD cdp_status cdp__client_make(
    const cdp_tcp_store_desc *desc, const uint8_t *key, cdp__client **out) {
    const cdp_os *os = desc->os ? desc->os : cdp_os_default();
    cdp__client *c;
    cdp_status status;
    if (cdp__os_whole(os, "cdp_tcp_store_create") != CDP_OK) return CDP_ERR_INVALID;
    c = (cdp__client *)cdp__alloc_zero(os, sizeof *c);
    if (!c) return cdp__fail_nomem("a store client", sizeof *c);
    cdp__client_fill(c, desc);
    c->forks = cdp__forks_watch();
    status = cdp__auth_key_read(desc->job_key, c->key, &c->keyed);
    if (key) {
        c->keyed = true;
        memcpy(c->key, key, sizeof c->key);
    }
    if (status == CDP_OK) status = cdp__client_open(c, desc);
    if (status == CDP_OK)
        *out = c;
    else
        cdp__client_destroy(c);
    return status;
}

/* For cdp_tcp.h: PENDING while connecting, then the outcome. */
CDP__PRIVATE cdp_status cdp__tcp_store_connected(cdp_store *s) {
    return cdp__client_connected((cdp__client *)s->self);
}

CDP__PRIVATE cdp_status cdp__client_create(
    const cdp_tcp_store_desc *desc, const uint8_t *key, cdp_store **out) {
    cdp__client *c = NULL;
    cdp_status status = cdp__client_make(desc, key, &c);
    if (status != CDP_OK) return status;
    status = cdp__client_connect(c, cdp__def(desc->connect_timeout_ms, c->store.timeout_ms));
    if (status == CDP_OK && desc->count_me) {
        c->bare = true;
        status = cdp_store_add(&c->store, "init/", 1, NULL);
        c->bare = false;
    }
    if (status == CDP_OK)
        *out = &c->store;
    else
        cdp__client_destroy(c);
    return status;
}

/* connect_ms 0: the timeout of the store. */
CDP__PRIVATE cdp_status cdp__client_clone(
    const cdp__client *c, uint32_t connect_ms, cdp_store **out) {
    cdp_tcp_store_desc d;
    cdp__client_describe(c, &d);
    d.connect_timeout_ms = connect_ms;
    return cdp__client_create(&d, c->keyed ? c->key : NULL, out);
}

CDP__PRIVATE cdp_status cdp__tcp_store_check(const cdp_tcp_store_desc *desc) {
    uint64_t max;
    if (!desc || ((!desc->host || !desc->host[0]) && !desc->addr_count) || desc->addr_count > 16)
        return cdp__missing("cdp_tcp_store_create", "desc.host");
    if (!desc->addr_count && !cdp__host_plausible(desc->host))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_tcp_store_create: desc.host '%s' is neither an address nor the name of a host: "
            "give "
            "that alone, such as 10.0.0.1 or node7",
            desc->host);
    if (!desc->port && !desc->addr_count)
        return cdp__fail(CDP_ERR_INVALID, "cdp_tcp_store_create: desc.port is 0");
    max = cdp__def(desc->max_value_bytes, CDP_STORE_MAX_VALUE_BYTES);
    if (desc->will_key
        && (!desc->will_key[0] || strlen(desc->will_key) >= CDP_STORE_MAX_KEY_BYTES
            || desc->will_value.bytes > max))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_tcp_store_desc.will_key is empty, or will_key or will_value is too long");
    return CDP_OK;
}

CDP_API cdp_status cdp_tcp_store_create(const cdp_tcp_store_desc *desc, cdp_store **out) {
    cdp_status status;
    if (!out) return cdp__missing("cdp_tcp_store_create", "out");
    *out = NULL;
    status = cdp__tcp_store_check(desc);
    return status == CDP_OK ? cdp__client_create(desc, NULL, out) : status;
}

/* For cdp_tcp.h: creates a client that begins to connect. */
CDP__PRIVATE cdp_status cdp__tcp_store_start(const cdp_tcp_store_desc *desc, cdp_store **out) {
    cdp__client *c = NULL;
    cdp_status status = cdp__tcp_store_check(desc);
    if (status == CDP_OK) status = cdp__client_make(desc, NULL, &c);
    if (status != CDP_OK) return status;
    cdp__client_connect_start(c, cdp__def(desc->connect_timeout_ms, c->store.timeout_ms));
    *out = &c->store;
    return CDP_OK;
}

#endif /* CDP_SRC_STORE_CLIENT_CALLS_H */
