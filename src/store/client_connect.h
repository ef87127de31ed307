/* store/client_connect.h - connects to a server, and greets it

   Knows: addresses, dialects, the job key. Promises: tries until the deadline, then reports what
   prevented the connection. */
#ifndef CDP_SRC_STORE_CLIENT_CONNECT_H
#define CDP_SRC_STORE_CLIENT_CONNECT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/kept_error.h"
#include "../base/basics.h"
#include "../os/words.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "addr.h"
#include "wire.h"
#include "auth.h"
#include "buffer.h"
#include "auth_exchange.h"
#include "client.h"
#include "client_requests.h"
#include "client_answers.h"

/* Tries the next address. After the last one, first pauses: the pause grows by half each time
   and is randomised, so that a thousand clients that started together do not connect in step. */
CDP__PRIVATE CDP__COLD void cdp__client_retry(cdp__client *c, int32_t sys_errno) {
    cdp__client_target *w = &c->target;
    const uint64_t now = c->os->now_ns(c->os->user);
    uint64_t pause = 0, noise = now;
    if (c->reconnecting && w->index + 1 >= w->count) {
        cdp__client_lost(c, -sys_errno);
        return;
    }
    cdp__loop_remove(c->loop, &c->io);
    c->state = CDP__CLIENT_PAUSE;
    w->sys_errno = sys_errno;
    if (++w->index >= w->count) {
        w->index = 0;
        if (c->os->random(c->os->user, &noise, sizeof noise) != CDP_OK) noise = now;
        pause = w->backoff_ns / 2 + noise % w->backoff_ns;
        w->backoff_ns = cdp__min(w->backoff_ns + w->backoff_ns / 2, CDP__CLIENT_BACKOFF_MAX_NS);
    }
    if (!w->warned && now - w->started_ns > CDP__CLIENT_WARN_NS) {
        w->warned = true;
        cdp__log(&c->logger, CDP_LOG_WARN, -1,
            "still no store at %s after %u s: %s (errno %d); the client keeps trying", c->name,
            (uint32_t)((now - w->started_ns) / 1000000000u),
            w->count || sys_errno != ENOENT ? cdp__os_error_text(sys_errno)
                                            : "the name has no address",
            sys_errno);
    }
    cdp__loop_timer_set(c->loop, &c->timer, now + pause, c->timer.func, c);
}

/* The first bytes that arrived, as hexadecimal numbers. Returns `hex`. */
CDP__PRIVATE const char *cdp__client_first_bytes(const cdp__client *c, char hex[32]) {
    cdp__text t = cdp__text_of(hex, 32);
    uint32_t i;
    hex[0] = 0;
    for (i = 0; i < c->in_used && i < 8; ++i)
        cdp__text_add(&t, i ? " %x%x" : "%x%x", c->in[i] >> 4, c->in[i] & 15);
    return hex;
}

/* The peer is not a store; trying again would not help. */
CDP__PRIVATE void cdp__client_no_store(cdp__client *c) {
    char hex[32];
    if (c->in_used)
        cdp__fail(CDP_ERR_STORE,
            "what answers at %s is no cdp or PyTorch store: its first bytes are %s (hex); check "
            "host and port",
            c->name, cdp__client_first_bytes(c, hex));
    else
        cdp__fail(CDP_ERR_STORE,
            c->keyed
                ? "what listens at %s closes every connection without an answer: it is no cdp or "
                  "PyTorch store, or refuses clients; check host and port, and whether it is a "
                  "store of PyTorch: these know no job keys"
                : "what listens at %s closes every connection without an answer: it is no cdp or "
                  "PyTorch store, or refuses clients; check host and port",
            c->name);
    cdp__client_break(c);
}

/* The connection ended before it was ready. A server that is starting or closing does that for a
   moment; after CDP__CLIENT_REFUSED_NS the peer is not a store. */
CDP__PRIVATE void cdp__client_refused(cdp__client *c, int64_t result) {
    const uint64_t now = c->os->now_ns(c->os->user);
    if (!c->target.refused_ns) c->target.refused_ns = now;
#ifndef CDP_NO_STORE_CALLS
    if (!c->keyed && !c->in_used) c->old = !c->old; /* it may have been the wrong dialect */
#endif
    if (c->in_used && !CDP__OLD(c))
        cdp__client_retry(c, ECONNRESET); /* with a part of the answer that is expected: a store */
    else if (c->in_used || now - c->target.refused_ns > CDP__CLIENT_REFUSED_NS)
        cdp__client_no_store(c);
    else
        cdp__client_retry(c, result == CDP_IO_EOF || !result ? ECONNRESET : (int32_t)-result);
}

/* Sends the greeting. Some servers must receive VALIDATE in one piece, hence one write. The
   answer to PING shows whether the peer is a store at all, that to CHECK whether it is one of
   this library. */
CDP__PRIVATE CDP__COLD void cdp__client_greet(cdp__client *c) {
    static const char ours[] = CDP__WIRE_CDP_SERVER;
    cdp_bytes key;
    uint8_t *p;
    c->out.at = c->out.used = 0;
    p = cdp__client_begin(c, 64);
    if (!p) {
        cdp__client_break(c);
        return;
    }
    if (c->os->random(c->os->user, &c->target.nonce, sizeof c->target.nonce) != CDP_OK)
        c->target.nonce = 0x5eed;
    key.data = ours;
    key.bytes = sizeof ours - 1;
    p[0] = CDP__OP_VALIDATE;
    cdp__put_u32(p + 1, CDP__WIRE_MAGIC);
    p[5] = CDP__OP_PING;
    cdp__put_u32(p + 6, c->target.nonce);
    p += 10;
    /* the old dialect has no greeting: sends an empty CHECK, the CHECK below, and a count of the
       keys */
    if (CDP__OLD(c)) {
        p -= 10;
        *p++ = CDP__OP_OLD_CHECK;
        p = cdp__wire_put_number(p, 0);
    }
    *p++ = cdp__client_op(c, CDP__OP_CHECK);
    p = cdp__wire_put_string(cdp__wire_put_number(p, 1), "", key);
    if (CDP__OLD(c)) *p++ = CDP__OP_OLD_NUM_KEYS;
    cdp__client_end(c, p);
    c->state = CDP__CLIENT_GREETING;
    c->in_at = c->in_used = 0;
    if (c->target.count > 1)
        cdp__loop_timer_set(c->loop, &c->timer, c->os->now_ns(c->os->user) + CDP__CLIENT_GREET_NS,
            c->timer.func, c);
}

CDP__PRIVATE CDP__COLD void cdp__client_put_last_will(cdp__client *c, bool withdraw) {
    cdp_bytes nothing;
    uint8_t *p =
        cdp__client_begin(c, withdraw ? 0 : 17 + 1 + c->will_key.bytes + c->will_value.bytes);
    nothing.data = NULL;
    nothing.bytes = 0;
    if (!p) return;
    *p++ = CDP__OP_LAST_WILL;
    p = cdp__wire_put_string(p, withdraw ? "" : "/", withdraw ? nothing : c->will_key);
    cdp__client_end(c, cdp__wire_put_string(p, "", withdraw ? nothing : c->will_value));
    c->last_will_sent = !withdraw;
}

CDP__PRIVATE CDP__COLD void cdp__client_send_last_will(cdp__client *c) {
    if (c->is_cdp) cdp__client_put_last_will(c, false);
    if (c->is_cdp && !c->last_will_sent) cdp__client_break(c);
    if (!c->is_cdp)
        cdp__log(
            &c->logger, CDP_LOG_INFO, -1, "the store at %s does not support last wills", c->name);
}

CDP__PRIVATE void cdp__client_greeted(cdp__client *c) {
    c->is_cdp = c->in[CDP__OLD(c) ? 1 : 4] == CDP__WIRE_READY;
    c->in_at = c->in_used = 0;
    /* a server of this library that was just starting: connect again in the new dialect */
    if (CDP__OLD(c) && c->is_cdp) {
        cdp__client_refused(c, 0);
        return;
    }
    c->state = CDP__CLIENT_READY;
    cdp__loop_timer_clear(&c->timer);
    if (c->will_key.data) cdp__client_send_last_will(c);
    cdp__client_pump(c);
}

CDP__PRIVATE void cdp__client_refused_by_auth(cdp__client *c, uint8_t refusal) {
    cdp__fail(CDP_ERR_MISMATCH, "the store at %s and this client cannot authenticate: %s", c->name,
        cdp__auth_text(refusal));
    cdp__client_break(c);
}

#ifndef CDP_NO_JOB_KEY
/* Advances the authentication exchange with the server. The greeting follows the proof of this
   client, and its answer that of the server: it takes a round trip less. */
CDP__PRIVATE void cdp__client_authenticate(cdp__client *c) {
    int64_t result;
    const cdp_status st = cdp__auth_pump(&c->auth, c->loop, &c->io, &result);
    if (st == CDP_ERR_MISMATCH)
        cdp__client_refused_by_auth(c, c->auth.refusal);
    else if (st < 0)
        cdp__client_refused(c, result);
    else if (c->state == CDP__CLIENT_AUTHENTICATING && cdp__auth_said(&c->auth))
        cdp__client_greet(c);
}
#endif

/* The server has not proved yet that it has the key. */
CDP__PRIVATE bool cdp__client_doubts(const cdp__client *c) {
#ifdef CDP_NO_JOB_KEY
    (void)c;
    return false;
#else
    return c->keyed && !c->auth.done;
#endif
}

/* Sends the greeting, and reads its answer. */
CDP__PRIVATE void cdp__client_greeting(cdp__client *c) {
    const uint32_t want = CDP__OLD(c) ? CDP__CLIENT_OLD_GREETING_BYTES : CDP__CLIENT_GREETING_BYTES;
    uint8_t nonce[4] = {0};
    bool wrong;
    int64_t r = 1, sent = 1;
    while (sent > 0 && cdp__fifo_left(&c->out)) {
        cdp_iov iov;
        iov.data = c->out.data + c->out.at;
        iov.bytes = cdp__fifo_left(&c->out);
        sent = cdp__io_send(c->loop, &c->io, &iov, 1);
        if (sent > 0) c->out.at += (uint64_t)sent;
    }
    if (cdp__client_doubts(c)) return;
    /* even if sending failed: an answer may contain the reason */
    while (r > 0 && c->in_used < sizeof c->in) {
        cdp_iov iov;
        iov.data = c->in + c->in_used;
        iov.bytes = sizeof c->in - c->in_used;
        r = cdp__io_drain(c->loop, &c->io, &iov);
        if (r > 0) c->in_used += (uint32_t)r;
    }
    if (!CDP__OLD(c)) cdp__put_u32(nonce, c->target.nonce);
    /* the store is being closed: retry, as if it were not running yet */
    if (!CDP__OLD(c) && c->in_used == want + 1 && memcmp(c->in, nonce, 4) == 0
        && c->in[4] == CDP__WIRE_READY && c->in[5] == CDP__WIRE_CLOSING) {
        cdp__client_retry(c, ECONNREFUSED);
        return;
    }
    wrong = memcmp(c->in, nonce, (size_t)cdp__min(c->in_used, CDP__OLD(c) ? 1 : 4)) != 0
        || c->in_used > want
        || (c->in_used == want && c->in[CDP__OLD(c) ? 1 : 4] > CDP__WIRE_NOT_READY);
    if (c->in_used > 8 && memcmp(c->in, "cdp-no: ", 8) == 0)
        cdp__client_refused_by_auth(c, c->in[8]);
    else if (wrong
        && (c->in_used > 8 || memcmp(c->in, "cdp-no: ", c->in_used) != 0 || r < 0 || c->io.broken))
        cdp__client_no_store(c);
    else if (wrong)
        return; /* the rest of a refusal is still to come */
    else if (c->in_used == want && !cdp__fifo_left(&c->out))
        cdp__client_greeted(c);
    else if (r < 0 || c->io.broken)
        cdp__client_refused(c, r < 0 ? r : 0);
    else if (sent < 0)
        cdp__client_refused(c, sent);
}

CDP__PRIVATE CDP__ONE_COPY void cdp__client_ready(cdp__io *io) {
    cdp__client *c = (cdp__client *)io->user;
    if (c->state == CDP__CLIENT_CONNECTING && (io->ready & CDP_IO_WRITE)) {
        const int32_t r = c->os->net.connect_result(c->os->user, io->fd);
        if (r < 0) {
            cdp__client_retry(c, -r);
        } else if (!c->keyed) {
            cdp__client_greet(c);
#ifndef CDP_NO_JOB_KEY
        } else if (cdp__auth_open(
                       &c->auth, c->os, c->key, false, CDP__AUTH_STORE, CDP__AUTH_NO_ANSWER)
            == CDP_OK) {
            c->state = CDP__CLIENT_AUTHENTICATING;
        } else {
            cdp__client_break(c);
#endif
        }
    }
#ifndef CDP_NO_JOB_KEY
    if (c->state == CDP__CLIENT_AUTHENTICATING
        || (c->state == CDP__CLIENT_GREETING && cdp__client_doubts(c)))
        cdp__client_authenticate(c);
#endif
    if (c->state == CDP__CLIENT_GREETING)
        cdp__client_greeting(c);
    else if (c->state == CDP__CLIENT_READY)
        cdp__client_pump(c);
}

CDP__PRIVATE void cdp__client_set_name(cdp__client *c, const cdp_addr *at) {
    char text[64];
    cdp_addr literal;
    const bool colon = strchr(c->host, ':') && c->host[0] != '[';
    if (!CDP__TEXTS) return;
    cdp__addr_text(at, text, sizeof text);
    if (!at->family)
        cdp__format(c->name, sizeof c->name, colon ? "[%s]:%u" : "%s:%u", c->host, c->port);
    else if (cdp__addr_parse(c->host, &literal))
        cdp__format(c->name, sizeof c->name, "%s", text);
    else
        cdp__format(c->name, sizeof c->name, "%s:%u (%s)", c->host, c->port, text);
}

/* Resolves the host name. Repeated in every round, because a name may not exist yet when a job
   starts. */
CDP__PRIVATE bool cdp__client_resolve(cdp__client *c) {
    cdp__client_target *w = &c->target;
    int32_t n = 1;
    /* reconnects to the same address: there may be no time to resolve a name */
    if (w->fixed || c->reconnecting) return true;
    if (!cdp__addr_parse(c->host, &w->at[0]))
        n = c->os->net.resolve(c->os->user, c->host, c->port, w->at, 16, w->deadline_ns);
    else
        w->at[0].port = c->port;
    /* no time was left: keep the earlier addresses and error */
    if (n == -ETIMEDOUT && w->sys_errno)
        n = -w->sys_errno;
    else
        w->count = n > 0 ? (uint32_t)n : 0;
    if (n <= 0) cdp__client_retry(c, n < 0 ? -n : ENOENT);
    return n > 0;
}

/* Tries to connect to the current address. */
CDP__PRIVATE CDP__COLD void cdp__client_attempt(cdp__client *c) {
    cdp__client_target *w = &c->target;
    int32_t fd;
    if (w->index == 0 && !cdp__client_resolve(c)) return;
    if (c->state == CDP__CLIENT_BROKEN) return;
    cdp__client_set_name(c, &w->at[w->index]);
    ++w->attempts;
    w->attempt_ns = c->os->now_ns(c->os->user);
    fd = c->os->net.connect_to(c->os->user, &w->at[w->index]);
    if (fd < 0) {
        cdp__client_retry(c, -fd);
        return;
    }
    c->state = CDP__CLIENT_CONNECTING;
    cdp__loop_add(c->loop, &c->io, fd, cdp__client_ready, c);
    cdp__loop_want_write(c->loop, &c->io);
    if (w->count > 1)
        cdp__loop_timer_set(c->loop, &c->timer,
            w->attempt_ns + (CDP__CLIENT_ATTEMPT_NS << cdp__min(4, (w->attempts - 1) / w->count)),
            c->timer.func, c);
}

CDP__PRIVATE void cdp__client_timer(cdp__timer *t) {
    cdp__client *c = (cdp__client *)t->user;
    if (c->state == CDP__CLIENT_PAUSE)
        cdp__client_attempt(c);
    else
        cdp__client_retry(c, ETIMEDOUT);
}

CDP__PRIVATE cdp_status cdp__client_unreachable(cdp__client *c) {
    const cdp__client_target *w = &c->target;
    const uint64_t now = c->os->now_ns(c->os->user), tried_ns = now - w->started_ns,
                   hundredths = tried_ns / (10 * CDP__MS);
    char seconds[24];
    /* a young attempt says less than the error of the previous one */
    const bool hangs = 4 * (now - w->attempt_ns) > tried_ns;
    const char *hint = "does rank 0 run, and is this its address and port?";
    int32_t err = w->sys_errno;
    if (c->state == CDP__CLIENT_CONNECTING && hangs) {
        hint = "nothing comes back from there: is the address right, and does a firewall let the "
               "port through?";
        err = ETIMEDOUT;
    } else if ((c->state == CDP__CLIENT_GREETING || c->state == CDP__CLIENT_AUTHENTICATING)
        && hangs) {
        hint =
            "the connection stands, but nothing answers: is it a store, and does its process run?";
        err = ETIMEDOUT;
    } else if (!w->count) {
        hint = w->sys_errno == ENOENT ? "the name has no address"
                                      : "the name was not resolved in that time: use an address";
    }
    /* the system's text for a name without an address is about files */
    return cdp__fail_peer(CDP_ERR_TIMEOUT, -1, err == ENOENT ? 0 : err,
        "no store answered at %s within %s s and %u attempts (%s)", c->name,
        cdp__seconds(seconds, hundredths * 10), w->attempts, hint);
}

/* Begins to connect; the loop continues. */
CDP__PRIVATE void cdp__client_connect_start(cdp__client *c, uint32_t timeout_ms) {
    cdp__client_target *w = &c->target;
    w->started_ns = c->os->now_ns(c->os->user);
    w->deadline_ns = cdp__deadline(c->os, timeout_ms);
    w->backoff_ns = CDP__CLIENT_BACKOFF_NS;
    cdp__client_attempt(c);
}

/* Returns PENDING while connecting, then the outcome. */
CDP__PRIVATE cdp_status cdp__client_connected(cdp__client *c) {
    /* not before the last will is sent: otherwise the server might not have it */
    if (c->state == CDP__CLIENT_READY && (!c->last_will_sent || !cdp__fifo_left(&c->out)))
        return CDP_OK;
    if (c->state == CDP__CLIENT_BROKEN) return cdp__error_again(c->error.status, &c->error);
    return c->os->now_ns(c->os->user) < c->target.deadline_ns ? CDP_PENDING
                                                              : cdp__client_unreachable(c);
}

CDP__PRIVATE cdp_status cdp__client_connect(cdp__client *c, uint32_t timeout_ms) {
    cdp_status status;
    cdp__client_connect_start(c, timeout_ms);
    while ((status = cdp__client_connected(c)) == CDP_PENDING) {
        status = cdp__loop_run(c->loop, NULL, c->target.deadline_ns);
        if (status != CDP_OK) break;
    }
    return status;
}

#endif /* CDP_SRC_STORE_CLIENT_CONNECT_H */
