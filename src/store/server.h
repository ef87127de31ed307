/* store/server.h - connections, their memory and their answers

   Knows: the data structures of a server and its connections. Promises: memory stays within
   desc.max_total_bytes, and one run of the loop does a bounded amount of work. The other
   sections of the server use this one. */
#ifndef CDP_SRC_STORE_SERVER_H
#define CDP_SRC_STORE_SERVER_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "desc_api.h"
#include "wire.h"
#include "auth.h"
#include "kv.h"
#include "buffer.h"

/* Receives connections whose first bytes are those of a link; see cdp__store_server_share. */
typedef void (*cdp__server_link_func)(void *user, int32_t fd, const cdp_addr *from,
    const uint8_t *received, uint64_t bytes, uint8_t nonce[2][16]);

#ifndef CDP_NO_STORE_SERVER

struct cdp__conn;

/* A connection that waits for a key. */
typedef struct cdp__waiter {
    /* in the key's waits or watches, or in server->satisfied; must be first */
    cdp__chain of_key;
    cdp__chain of_conn;
    struct cdp__conn *conn;
    bool watch; /* for every change, not only for a value */
} cdp__waiter;

typedef struct cdp__last_will {
    cdp_bytes key, value; /* stored after this struct */
} cdp__last_will;

/* A LIST_KEYS in progress, which is answered in several runs of the loop. */
typedef struct cdp__listing {
    uint64_t left;   /* keys still to be sent of the announced number; 0: no listing */
    uint64_t cursor; /* of cdp__kv_next_bucket() */
    uint64_t since;  /* keys set after this are left out */
    bool all_listed; /* all buckets are done; empty strings replace keys removed meanwhile */
} cdp__listing;

typedef struct cdp__conn {
    cdp_store_server *server;
    /* in server->fresh until its greeting, then in server->conns */
    struct cdp__conn *next, *prev;
    struct cdp__conn *next_dirty;
    /* in server->dirty: to be flushed or closed before the current callback ends */
    bool dirty;
    bool closing; /* no more bytes are read or answered */
    bool greeted;
    bool parked; /* not in the loop, but polled at intervals; see cdp__conn_park() */
    bool old;    /* speaks the dialect of PyTorch 1.13 */
    /* a client of this library: the server tells it when it is closed */
    bool is_cdp;
    bool all_there;     /* CHECK: all keys so far exist */
    bool wait_answered; /* its wait was answered, and it has sent no request since */
    /* keys that a WAIT still needs, plus 1 until all keys of the request have arrived */
    uint32_t awaited;
    uint32_t wait_count, watch_count; /* numbers of `waiters` */
    /* without memory while empty, so an idle connection needs only this struct */
    cdp__fifo in, out;
    cdp__io io;
    uint64_t need; /* `in` must have this many bytes before it is parsed again */
    cdp__last_will *last_will;
    /* until the client is authenticated, or has received the refusal */
    cdp__auth *auth;
    cdp__chain deferred; /* in server->deferred if it has work for a later run; else next is NULL */
    cdp__chain waiters;
    uint64_t born_ns, active_ns;
    cdp_addr from;
    uint32_t purpose;     /* the purpose of its authentication; 0: none was needed */
    uint8_t nonce[2][16]; /* the nonces of that */
    cdp__wire wire;
    cdp__listing listing;
} cdp__conn;

/* True while a listing is being sent. A constant in builds without LIST_KEYS. */
#ifdef CDP_NO_STORE_CALLS
#define CDP__LISTING(c) false
#else
#define CDP__LISTING(c) ((c)->listing.left != 0)
#endif

#define CDP__SERVER_SCRATCH 65536u
/* An incomplete item up to this size is copied to the shared scratch memory and back. */
#define CDP__SERVER_SMALL 4096u
#define CDP__SERVER_BACKLOG 65536u /* unread answers above which a client's commands wait */
/* Bytes read from one connection before the others are served. */
#define CDP__SERVER_READ_BUDGET 1048576u
#define CDP__SERVER_ACCEPT_RETRY_NS (100 * CDP__MS)
/* Units of work in one run of the loop, which may be that of a training rank. One unit is a
   command, a key of a listing, a woken connection, or 4 KiB of a value: about a quarter of a
   microsecond. */
#define CDP__SERVER_TURN_WORK 4096u
#define CDP__SERVER_ACCEPT_WORK 64u
/* Watches per connection, at most: one request may change all these keys, and each change sends
   both values. */
#define CDP__SERVER_MAX_WATCHES 1024u
/* Connections that are not authenticated or have not sent a greeting, at most. When there are so
   many, a new one replaces the oldest once that has had CDP__SERVER_GRACE_NS. */
#define CDP__SERVER_MAX_FRESH 1024u
#define CDP__SERVER_GRACE_NS (1000 * CDP__MS)
/* Such a connection is parked after this time without bytes; parked ones are polled at this
   interval. */
#define CDP__SERVER_PARK_NS (20 * CDP__MS)

struct cdp_store_server {
    const cdp_os *os;
    cdp__loop *loop;
    cdp__conn *dirty;
    uint8_t *scratch;
    void *parked; /* watch of parked connections; NULL until there is one */
    void *thread;
    uint32_t forks; /* see cdp__is_child() */
    uint32_t work_left;
    uint32_t client_count, fresh_count;
    uint32_t stop; /* atomic */
    bool full_logged, accept_logged, refusal_logged;
    bool keyed;
    bool fresh_full; /* accepts none until a fresh connection ends, or accept_timer */
    bool out_of_fds; /* accepts none until accept_timer, even if descriptors are free */
    uint64_t turn;   /* value of loop->turns that work_left belongs to */
    uint64_t buffer_bytes;
    uint64_t watch_count; /* of all connections */
    cdp__chain deferred;  /* connections with work left for a later turn */
    cdp__chain satisfied; /* waiters whose key was set, not answered yet */
    cdp__kv kv;
    cdp_store_server_desc desc; /* with defaults */
    cdp__io listener;
    cdp_addr at;
    cdp__timer accept_timer, greet_timer, park_timer, turn_timer;
    cdp__wire_limits limits;
    uint8_t key[CDP__AUTH_BYTES];
    uint8_t nonce_seed[CDP__AUTH_BYTES];
    uint64_t nonce_count;
    uint64_t last_ns; /* the server ends: until then clients may take their last answers */
    cdp__server_link_func link_func; /* see cdp__store_server_share */
    void *link_user;
    cdp__conn fresh, conns; /* list heads; fresh is ordered by age */
    cdp__loop own_loop;
};

CDP__PRIVATE void cdp__conn_link(cdp__conn *head, cdp__conn *c) {
    c->next = head;
    c->prev = head->prev;
    c->prev->next = c->next->prev = c;
}

CDP__PRIVATE void cdp__conn_unlink(cdp__conn *c) {
    c->next->prev = c->prev;
    c->prev->next = c->next;
    c->next = c->prev = NULL;
    if (!c->greeted) --c->server->fresh_count;
}

CDP__PRIVATE void cdp__conn_mark(cdp__conn *c) {
    if (c->dirty) return;
    c->dirty = true;
    c->next_dirty = c->server->dirty;
    c->server->dirty = c;
}

/* Requests that a connection be closed. cdp__server_settle() frees it later, when no caller uses
   it any more. */
CDP__PRIVATE CDP__ONE_COPY void cdp__conn_close(cdp__conn *c, const char *why) {
    if (c->closing) return;
    c->closing = true;
    cdp__conn_mark(c);
    if (why)
        cdp__log(&c->server->desc.logger, CDP_LOG_INFO, -1,
            "store server: closing a connection: %s", why);
}

/* Work per turn */

/* Requests another run of the loop without sleeping. (One nanosecond later, because a timer that
   is due fires in the current run.) */
CDP__PRIVATE void cdp__server_want_turn(cdp_store_server *s) {
    if (!s->turn_timer.next)
        cdp__loop_timer_set(
            s->loop, &s->turn_timer, s->os->now_ns(s->os->user) + 1, s->turn_timer.func, s);
}

/* Uses up units of work. False: this run of the loop has done its share; continue in the next
   one. */
CDP__PRIVATE bool cdp__server_spend(cdp_store_server *s, uint64_t units) {
    if (s->turn != s->loop->turns) {
        s->turn = s->loop->turns;
        s->work_left = CDP__SERVER_TURN_WORK;
    }
    if (!s->work_left) {
        cdp__server_want_turn(s);
        return false;
    }
    s->work_left -= (uint32_t)cdp__min(units, s->work_left);
    return true;
}

CDP__PRIVATE void cdp__conn_defer(cdp__conn *c) {
    if (!c->deferred.next) cdp__chain_add(&c->server->deferred, &c->deferred);
    cdp__server_want_turn(c->server);
}

/* Memory and answers */

CDP__PRIVATE void cdp__server_account(cdp_store_server *s, uint64_t before, uint64_t after) {
    s->buffer_bytes += cdp__kv_cost(after) - cdp__kv_cost(before);
    s->kv.max_bytes = s->desc.max_total_bytes - cdp__min(s->buffer_bytes, s->desc.max_total_bytes);
}

/* Like cdp__fifo_reserve, within the server's memory limit. */
CDP__PRIVATE bool cdp__conn_reserve(cdp__conn *c, cdp__fifo *b, uint64_t more) {
    cdp_store_server *s = c->server;
    const uint64_t before = b->room, total = s->kv.bytes + s->buffer_bytes;
    if (b->room - b->used < more && total + cdp__fifo_left(b) + more > s->desc.max_total_bytes)
        return false;
    if (!cdp__fifo_reserve(s->os, b, more)) return false;
    cdp__server_account(s, before, b->room);
    return true;
}

CDP__PRIVATE void cdp__conn_release(cdp__conn *c, cdp__fifo *b) {
    cdp__server_account(c->server, b->room, 0);
    cdp__fifo_free(c->server->os, b);
}

CDP__PRIVATE void cdp__conn_reply(cdp__conn *c, const void *data, uint64_t bytes) {
    if (c->closing) return;
    if (cdp__fifo_left(&c->out) + bytes > c->server->desc.max_reply_bytes) {
        cdp__conn_close(c, "it does not read its answers (max_reply_bytes)");
    } else if (!cdp__conn_reserve(c, &c->out, bytes)) {
        cdp__conn_close(c, "no memory for an answer (max_total_bytes)");
    } else {
        if (bytes) memcpy(c->out.data + c->out.used, data, (size_t)bytes);
        c->out.used += bytes;
        cdp__conn_mark(c);
    }
}

CDP__PRIVATE void cdp__conn_reply_byte(cdp__conn *c, uint8_t v) {
    cdp__conn_reply(c, &v, 1);
}

CDP__PRIVATE CDP__ONE_COPY void cdp__conn_reply_number(cdp__conn *c, uint64_t v) {
    uint8_t b[8];
    cdp__put_u64(b, v);
    cdp__conn_reply(c, b, 8);
}

CDP__PRIVATE CDP__ONE_COPY void cdp__conn_reply_string(
    cdp__conn *c, const void *data, uint64_t bytes) {
    cdp__conn_reply_number(c, bytes);
    cdp__conn_reply(c, data, bytes);
}

/* True if the client has too many unread answers: its next command waits until it reads some. */
CDP__PRIVATE bool cdp__conn_is_behind(const cdp__conn *c) {
    return cdp__fifo_left(&c->out) > CDP__SERVER_BACKLOG;
}

#endif /* CDP_NO_STORE_SERVER */

#endif /* CDP_SRC_STORE_SERVER_H */
