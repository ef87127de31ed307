/* store/client.h - the data of a client, and how its requests end

   Knows: the state of a client, and of its request in progress. Promises: a request ends exactly
   once, and a broken client ends all its requests with one error. */
#ifndef CDP_SRC_STORE_CLIENT_H
#define CDP_SRC_STORE_CLIENT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "interface_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../os/loop.h"
#include "wire.h"
#include "auth.h"
#include "request.h"
#include "number.h"
#include "buffer.h"

/* States of a client. PAUSE ends by the timer; CONNECTING, AUTHENTICATING and GREETING by the
   socket, or by the timer if they take too long; READY when the connection ends; BROKEN never. */
typedef enum cdp__client_state {
    CDP__CLIENT_PAUSE,
    CDP__CLIENT_CONNECTING,
    CDP__CLIENT_AUTHENTICATING,
    CDP__CLIENT_GREETING,
    CDP__CLIENT_READY,
    CDP__CLIENT_BROKEN
} cdp__client_state;

/* The expected next bytes from the server. */
typedef enum cdp__expect {
    CDP__EXPECT_NOTHING, /* the request has no answer: it is done when sent */
    CDP__EXPECT_STOP,    /* the end of a WAIT or BARRIER */
    CDP__EXPECT_CANCEL,  /* answer to CANCEL_WAIT; that to the WAIT may come first */
    CDP__EXPECT_FLAG,    /* answer to CHECK */
    /* answer to the CHECK that precedes a WAIT: shows that the store answers */
    CDP__EXPECT_CHECK,
    CDP__EXPECT_TRY, /* answer to TRY_GET; after READY, a value follows */
    CDP__EXPECT_NUMBER,
    CDP__EXPECT_POP,   /* a number; if not 0, a value follows */
    CDP__EXPECT_COUNT, /* a number, then as many keys */
    CDP__EXPECT_VALUES
} cdp__expect;

/* The addresses that a client connects to. Host and port are kept; the rest is only used until
   it is connected. */
typedef struct cdp__client_target {
    cdp_addr at[16];
    uint32_t count, index; /* index: the address being tried */
    bool fixed;            /* the caller supplied at[]: there is no host name to resolve */
    uint32_t attempts;
    /* attempt_ns: start of the current attempt */
    uint64_t started_ns, deadline_ns, backoff_ns, attempt_ns;
    /* first time that a peer accepted the connection and closed it without a byte; 0: never */
    uint64_t refused_ns;
    int32_t sys_errno; /* of the last attempt */
    bool warned;       /* the warning that connecting takes long was logged */
    uint32_t nonce;
} cdp__client_target;

/* Bytes kept free in `out` after a request, so that cancelling it and withdrawing a will need no
   memory. */
#define CDP__CLIENT_SPARE 64u
#define CDP__CLIENT_AHEAD 16u /* requests sent before the request in progress is answered */
#define CDP__CLIENT_GREETING_BYTES 5u
#define CDP__CLIENT_OLD_GREETING_BYTES 10u
#define CDP__CLIENT_BACKOFF_NS (10 * CDP__MS)
#define CDP__CLIENT_BACKOFF_MAX_NS (2000 * CDP__MS)
#define CDP__CLIENT_WARN_NS (10000 * CDP__MS)
#define CDP__CLIENT_REFUSED_NS (5000 * CDP__MS)
/* Limit of one connection attempt if the server has other addresses; grows with each round. */
#define CDP__CLIENT_ATTEMPT_NS (300 * CDP__MS)
/* Limit of the wait for the greeting; a busy server may take long. */
#define CDP__CLIENT_GREET_NS (15000 * CDP__MS)
#define CDP__CLIENT_GOODBYE_NS (100 * CDP__MS)

/* A request whose bytes follow those of the request in progress: answers come in this order. */
typedef struct cdp__client_sent {
    cdp_store_request *rq; /* NULL: it was cancelled, and its answer is dropped */
    uint8_t expect;        /* cdp__expect */
    bool paired;
} cdp__client_sent;

typedef struct cdp__client {
    cdp_store store;
    const cdp_os *os;
    uint32_t forks; /* see cdp__is_child() */
    cdp__loop *loop;
    cdp_store_request *rq; /* the request in progress; NULL: it was cancelled, and its answer is
                              dropped */
    cdp__client_state state;
    bool is_cdp; /* the server knows the extensions of this library */
    /* speaks the dialect of PyTorch 1.13 */
    bool old;
    bool reconnecting; /* this client was connected before */
    bool bare;         /* the next key is sent without a slash */
    bool keyed;
    bool driven;
    bool busy;     /* a request is in progress */
    bool paired;   /* its WAIT was sent together with the CHECK before it */
    bool in_value; /* its answer has come as far as a value */
    uint32_t in_at, in_used;
    cdp__fifo out;
    cdp__io io;
    cdp_store_request *first, *last; /* queued requests */
    cdp__client_sent sent[CDP__CLIENT_AHEAD];
    uint32_t sent_at, sent_count; /* a ring */

    /* the request in progress */
    cdp__expect expect;
    uint32_t head_used;
    uint8_t head[8];
    uint64_t values, value_at; /* VALUES: number of values, index of the next one */
    uint32_t empty_pops;       /* QUEUE_POP: how often another client was faster */
    uint8_t *value;            /* where the rest of the value goes; NULL: dropped */
    uint64_t value_left, max_value_bytes;

    cdp_logger logger;
    cdp_lock lock; /* none on a shared loop: its owner serialises calls */
    void *cond;    /* for threads that wait while another one runs the loop */
    uint32_t sleepers;
    cdp__timer timer;
    cdp__client_target target;
    char *host;
    uint16_t port;
    bool last_will_sent;
    bool withdrawn;                 /* the last will is, by a message that may still be in `out` */
    cdp_bytes will_key, will_value; /* copies */
    /* the goodbye: the answer is awaited until bye_ns (0: not begun); the last bytes received */
    bool bye_over;
    uint64_t bye_ns;
    uint8_t bye_tail[4];
    uint8_t key[CDP__AUTH_BYTES];
    cdp__auth auth;
    char name[300];  /* "host:port (address)", for errors */
    uint8_t in[256]; /* read ahead */
    cdp_error error; /* why it is BROKEN */
    cdp__loop own_loop;
} cdp__client;

/* Completion */

/* Frees the results of a request, including a listed key that has arrived in part. */
CDP__PRIVATE void cdp__client_drop_results(cdp__client *c, cdp_store_request *rq) {
    if (cdp__store_lists(rq) && rq->results && c->in_value) {
        uint8_t *p;
        memcpy(&p, &rq->results[rq->number].data, sizeof p);
        cdp__free(c->os, p);
    }
    cdp__store_request_drop_results(c->os, rq, cdp__store_request_result_count(rq));
}

CDP__PRIVATE void cdp__client_done(cdp__client *c, cdp_status status) {
    cdp_store_request *rq = c->rq;
    if (rq && status != CDP_OK) cdp__client_drop_results(c, rq);
    c->busy = c->paired = false;
    c->rq = NULL;
    c->expect = CDP__EXPECT_NOTHING;
    c->in_value = false;
    c->head_used = 0;
    /* do not keep the memory of a large value */
    if (c->out.room > 4096 && !cdp__fifo_left(&c->out) && !c->sent_count)
        cdp__fifo_free(c->os, &c->out);
    if (rq) rq->status = status;
}

/* Ends this client and all of its requests with the last error. */
CDP__PRIVATE void cdp__client_break(cdp__client *c) {
    const cdp_status status = cdp_last_error()->status;
    if (c->state == CDP__CLIENT_BROKEN) return;
    c->error = *cdp_last_error();
    c->state = CDP__CLIENT_BROKEN;
    cdp__loop_timer_clear(&c->timer);
    cdp__loop_remove(c->loop, &c->io);
    cdp__client_done(c, status);
    for (; c->sent_count; --c->sent_count) {
        c->rq = c->sent[c->sent_at].rq;
        cdp__client_done(c, status);
        c->sent_at = (c->sent_at + 1) % CDP__CLIENT_AHEAD;
    }
    while (c->first) {
        cdp_store_request *rq = c->first;
        c->first = rq->next;
        rq->status = status;
    }
    c->last = NULL;
}

/* The server was closed by cdp_store_server_destroy(). */
CDP__PRIVATE void cdp__client_closed(cdp__client *c) {
    cdp__fail(CDP_ERR_STATE, "the store at %s was closed by its host, which has left", c->name);
    cdp__client_break(c);
}

/* The connection has ended without an announcement. The errno tells a process that ended from a
   host that does not answer. */
CDP__PRIVATE void cdp__client_lost(cdp__client *c, int64_t result) {
    int32_t err = result ? (int32_t)-result : ECONNRESET;
    if (result == CDP_IO_EOF) err = 0;
    /* the announcement of a closing server arrived instead of the answer */
    if (!err && c->is_cdp && c->head_used == 1 && c->head[0] == CDP__WIRE_CLOSING) {
        cdp__client_closed(c);
        return;
    }
    if ((!err || err == ECONNRESET) && c->rq && c->rq->op == CDP_STORE_ADD) {
        cdp__key_text t;
        cdp__fail_peer(CDP_ERR_STORE, -1, err,
            "the store at %s ended the connection when it was to add to the key \"%s\": stores do "
            "so "
            "if that holds no number to add to; else its process has ended",
            c->name, cdp__key_print(&t, c->rq->keys[0]));
    } else if (!err || err == ECONNRESET || err == EPIPE)
        cdp__fail_peer(CDP_ERR_STORE, -1, err,
            "the store at %s is gone: its process crashed, was killed, or ended without closing it "
            "(or it refused a request)",
            c->name);
    else if (err == ETIMEDOUT || err == EHOSTUNREACH || err == ENETUNREACH || err == ENETDOWN)
        cdp__fail_peer(CDP_ERR_STORE, -1, err,
            "the store at %s is unreachable: its machine, or the network between, does not answer "
            "any more",
            c->name);
    else
        cdp__fail_peer(CDP_ERR_STORE, -1, err, "the store at %s is gone", c->name);
    cdp__client_break(c);
}

CDP__PRIVATE void cdp__client_violated(cdp__client *c, const char *what) {
    cdp__fail(CDP_ERR_STORE, "the store at %s violates the protocol: %s", c->name, what);
    cdp__client_break(c);
}

#endif /* CDP_SRC_STORE_CLIENT_H */
