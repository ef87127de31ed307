/* elastic/store.h - keys of the job, and short requests

   Knows: the keys. Promises: no request takes longer than e->store_ms; what a request returns is
   the caller's memory. */
#ifndef CDP_SRC_ELASTIC_STORE_H
#define CDP_SRC_ELASTIC_STORE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../os/child.h"
#include "../store/interface_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/backend_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/ended.h"
#include "../group/state.h"
#include "../store/store_api.h"
#include "../store/calls.h"
#include "../tcp/desc_api.h"
#include "elastic_api.h"
#include "epoch.h"
#include "turn.h"
#include "records.h"

typedef struct cdp__elastic_past { /* one epoch, for cdp_elastic_history() */
    uint64_t epoch, step;
    uint32_t size, rank, lost, joined;
    uint64_t turn_ns, connect_ns, transfer_ns;
    char cause[160];
} cdp__elastic_past;

#define CDP__ELASTIC_PASTS 32u
#define CDP__ELASTIC_KEY 192u
#define CDP__ELASTIC_SLICE_MS 100u   /* how soon a waiting thread checks if it still should */
#define CDP__ELASTIC_REST_NS CDP__MS /* between two polls of calls that do not wait */
#define CDP__ELASTIC_STORE_MS 30000u
#define CDP__ELASTIC_MOST_TRIP_MS 60000u /* that a ticket can hold, and a store would need */
#define CDP__ELASTIC_ASK_MS 1000u /* between an answer of a rank that lives and the next question */
#define CDP__ELASTIC_DEATH_TRIPS 4u /* of a wait that nothing interrupts but a look for the dead */

/* Epochs that failed one after the other, and in which no step was committed. */
typedef struct cdp__elastic_tries {
    uint32_t count;
    uint64_t deadline_ns; /* counts from the first of them on */
} cdp__elastic_tries;

/* The request to the store that stays open from one poll to the next. */
typedef enum cdp__elastic_asks {
    CDP__ELASTIC_ASKS_NOTHING,
    CDP__ELASTIC_ASKS_ALARM,   /* waits for the alarm of the epoch */
    CDP__ELASTIC_ASKS_DECISION /* waits for the decision that makes the next epoch */
} cdp__elastic_asks;

typedef struct cdp__elastic_watch {
    uint8_t asks; /* cdp__elastic_asks */
    cdp__store_call call;
    char key[CDP__ELASTIC_KEY];
    uint64_t epoch;  /* whose alarm, or whose end, this is about */
    uint64_t turn;   /* the epoch that `settle` and `due_ns` are about */
    uint64_t due_ns; /* the next look at the turn */
    cdp__elastic_settle settle;
    bool reads; /* no_thread: `tickets` reads them; it may take several polls */
    cdp__store_call tickets;
    char tickets_key[CDP__ELASTIC_KEY];
    uint64_t tickets_ns; /* when this process began to look for newcomers last */
    uint64_t asked_ns;   /* when it looked last whether others ask if it lives */
    uint64_t heard_ns;   /* the same of newcomers */
    bool hears;          /* `tickets` looks for their question */
} cdp__elastic_watch;

/* An attempt to connect with newcomers beside the epoch; see trial.h. */
typedef struct cdp__elastic_trial {
    uint64_t epoch;                /* in which the rest is valid */
    uint64_t number;               /* of the last one in it; 0: there was none */
    struct cdp_starting *starting; /* NULL: none is under way */
    cdp_group *group;              /* of this trial */
    cdp_work work;                 /* in it: exchanges `data`, then waits for all others to have */
    uint8_t *data;                 /* NULL: not any more, or not yet */
    bool leaving;                  /* this process leaves the group */
    uint32_t newcomers;            /* the last ranks of the group */
    cdp_store *store;              /* for it alone; NULL: e->store */
    uint32_t failures;             /* rank 0: attempts that failed in a row */
    uint32_t seen;                 /* rank 0: tickets, when it read them last */
    uint64_t due_ns;               /* rank 0: when the next one may begin */
    bool announced;                /* rank 0: its keys are in the store */
    bool asked;                    /* rank 0: somebody did, when it read them */
    char job[CDP__ELASTIC_KEY];    /* `starting` reads it */
} cdp__elastic_trial;

/* How far a newcomer is on its way into the job. */
typedef enum cdp__elastic_stage {
    CDP__ELASTIC_STRANGER,
    CDP__ELASTIC_ASKS,     /* it waits to be tried */
    CDP__ELASTIC_TRIED,    /* it was; it may be taken in when it calls cdp_elastic_next() */
    CDP__ELASTIC_HANDED_IN /* it has a ticket */
} cdp__elastic_stage;

struct cdp_elastic {
    cdp_elastic_desc desc; /* with defaults */
    cdp_tcp_desc tcp;
    const cdp_os *os;
    uint32_t forks;     /* see cdp__is_child() */
    cdp_store *store;   /* for the threads of the program */
    cdp_store *watched; /* for `watch`; the same one, or a clone */
    bool own_store;
    bool no_thread; /* calls of the program poll; there is no lock either */
    char job[64], id[2 * CDP__ELASTIC_ID_BYTES + 1];
    uint32_t store_ms;
    uint64_t round_trip_ns; /* the shortest of a request before the ticket; 0: not measured */
    void *mutex, *cond, *thread;
    cdp__elastic_watch watch; /* of the thread that looks */
    cdp__elastic_trial trial; /* the same; of a newcomer, before there is one */
    uint8_t stage;            /* cdp__elastic_stage */
    char untried[160];        /* of a newcomer: why the last attempt failed; "": there was none */
    /* of the thread in cdp_elastic_next() */
    void *burying;      /* a thread that destroys a group; NULL: none was started */
    cdp_group *dying;   /* no_thread: a group that is being left */
    uint64_t looked_ns; /* no_thread: the end of the last poll */
    uint64_t away_ns;   /* no_thread: the longest recent time without a poll */
    uint64_t back_ns;   /* no_thread: when that one ended */
    uint32_t failures;  /* attempts to connect that failed in a row */
    cdp__elastic_tries tries;
    bool absent;       /* a member did not call cdp_elastic_next(): the last error says so */
    bool refused;      /* connected() or load() returned an error: it starts no turn */
    bool shown;        /* connected() was called with `group` */
    cdp_group *middle; /* connected() alone has seen it, and for no later group it was called */
    uint64_t told;     /* the epoch that the last cdp_elastic_next() reported; 0: none yet */
    uint64_t agreed;   /* calls of cdp_elastic_agree() in that epoch */
    /* guarded by mutex from here on */
    cdp__elastic_place place;
    cdp__elastic_decision d; /* of place.epoch */
    cdp_group *group;        /* of place.epoch; NULL: not connected */
    cdp_group *retired;      /* of the epoch before: the program may still hold it */
    cdp_error failure;       /* status CDP_OK: none; else this process cannot go on */
    bool stop, changed, received, ended;
    bool few;          /* this turn waits for newcomers: too few ranks are left */
    bool handed_in;    /* others may have seen this id */
    bool left;         /* the others know, or have decided, that this process is out */
    char leaving[100]; /* why; "": it stays */
    char cause[160];   /* of now.cause */
    uint64_t met;      /* the last epoch whose members were all in cdp_elastic_next() */
    uint64_t epoch_ns; /* when this epoch began here, or this process arrived */
    cdp__elastic_past past[CDP__ELASTIC_PASTS];
    uint64_t pasts;
};

/* The first check of every public function. */
CDP__PRIVATE cdp_status cdp__elastic_here(const cdp_elastic *e, const char *call) {
    if (!e) return cdp__missing(call, "elastic");
    if (cdp__ended(e)) return cdp__fail(CDP_ERR_STATE, "%s: this cdp_elastic was destroyed", call);
    if (cdp__is_child(e->forks)) return cdp__child_refuses(CDP_ERR_STATE, call, "cdp_elastic");
    return CDP_OK;
}

CDP__PRIVATE uint64_t cdp__elastic_now_ns(const cdp_elastic *e) {
    return e->os->now_ns(e->os->user);
}
CDP__PRIVATE void cdp__elastic_lock(cdp_elastic *e) {
    if (e->mutex) e->os->threads.mutex_lock(e->os->user, e->mutex);
}
CDP__PRIVATE void cdp__elastic_unlock(cdp_elastic *e) {
    if (e->mutex) e->os->threads.mutex_unlock(e->os->user, e->mutex);
}
CDP__PRIVATE void cdp__elastic_signal(cdp_elastic *e) {
    if (e->cond) e->os->threads.cond_broadcast(e->os->user, e->cond);
}

/* Breaks the group of an epoch, and tells peers before it returns: cdp_group_abort(), which may be
   called in a signal handler, leaves that to the thread of the group. */
CDP__PRIVATE void cdp__elastic_break(cdp_group *g, const char *reason) {
    (void)cdp_error_set(CDP_ERR_ABORTED, (int32_t)cdp_rank(g), 0, "aborted: %s", reason);
    cdp_group_fail(g);
}

CDP__PRIVATE CDP__PRINTF(3, 4) void cdp__elastic_key(
    const cdp_elastic *e, char out[CDP__ELASTIC_KEY], const char *f, ...) {
    cdp__text t = cdp__text_of(out, CDP__ELASTIC_KEY);
    va_list ap;
    cdp__text_add(&t, "%s/", e->job);
    va_start(ap, f);
    cdp__text_add_v(&t, f, ap);
    va_end(ap);
}

CDP__PRIVATE void cdp__elastic_hex(const uint8_t *id, char out[2 * CDP__ELASTIC_ID_BYTES + 1]) {
    uint32_t i;
    for (i = 0; i < CDP__ELASTIC_ID_BYTES; ++i) {
        out[2 * i] = "0123456789abcdef"[id[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[id[i] & 15];
    }
    out[2 * CDP__ELASTIC_ID_BYTES] = 0;
}

/* A request took so long. The shortest one is the round trip: others had to wait for something. */
CDP__PRIVATE void cdp__elastic_measured(cdp_elastic *e, uint64_t took_ns) {
    if (!e->round_trip_ns || took_ns < e->round_trip_ns) e->round_trip_ns = took_ns;
}

/* The status of a request, or of a wait for it. A store that its host has closed answers STATE,
   which of the calls of this header says something else. */
CDP__PRIVATE cdp_status cdp__elastic_store_status(cdp_status st) {
    if (st != CDP_ERR_STATE) return st;
    cdp__error_slot()->status = CDP_ERR_STORE;
    return CDP_ERR_STORE;
}

/* One request. *data (NULL: not wanted) is freed with cdp_store_free(). */
CDP__PRIVATE cdp_status cdp__elastic_ask(
    cdp_elastic *e, cdp_store *s, cdp__store_call *c, void **data, uint64_t *bytes) {
    const uint64_t begun = cdp__elastic_now_ns(e);
    const cdp_status st = cdp__elastic_store_status(cdp_store_run(s, &c->rq, e->store_ms));
    if (data) *data = NULL;
    if (st != CDP_OK) return st;
    if (!e->handed_in) cdp__elastic_measured(e, cdp__elastic_now_ns(e) - begun);
    if (data && c->rq.results) {
        *bytes = c->rq.results[0].bytes;
        memcpy(data, &c->rq.results[0].data, sizeof *data);
        c->rq.results[0].data = NULL;
    }
    cdp_store_request_free(s, &c->rq);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__elastic_put(cdp_elastic *e, cdp_store *s, cdp_store_op op,
    const char *key, const void *value, uint64_t bytes) {
    cdp__store_call c;
    const cdp_status st = cdp__store_call_make(&c, op, key, value, bytes);
    return st == CDP_OK ? cdp__elastic_ask(e, s, &c, NULL, NULL) : st;
}

/* Writes the key if it is absent; *data is what it holds then. */
CDP__PRIVATE cdp_status cdp__elastic_claim(cdp_elastic *e, cdp_store *s, const char *key,
    const void *value, uint64_t count, void **data, uint64_t *bytes) {
    cdp__store_call c;
    cdp_status st = cdp__store_call_make(&c, CDP_STORE_COMPARE_SET, key, "", 0);
    *data = NULL;
    if (st != CDP_OK) return st;
    c.value[1].data = value;
    c.value[1].bytes = count;
    st = cdp__elastic_ask(e, s, &c, data, bytes);
    if (st == CDP_OK && !*data) st = cdp__fail(CDP_ERR_STORE, "the store has no value of %s", key);
    return st;
}

/* The same where the caller does not need the value. */
CDP__PRIVATE cdp_status cdp__elastic_mark(
    cdp_elastic *e, cdp_store *s, const char *key, const char *text) {
    void *data;
    uint64_t bytes;
    const cdp_status st = cdp__elastic_claim(e, s, key, text, strlen(text), &data, &bytes);
    cdp_store_free(s, data);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_there(
    cdp_elastic *e, cdp_store *s, const char *key, bool *there) {
    cdp__store_call c;
    cdp_status st = cdp__store_call_make(&c, CDP_STORE_CHECK, key, NULL, 0);
    *there = false;
    if (st == CDP_OK) st = cdp__elastic_ask(e, s, &c, NULL, NULL);
    if (st == CDP_OK) *there = c.rq.number == 1;
    return st;
}

/* What no key of a job holds. An absent key does not match it, and it is the answer then: so a
   comparison with it reads a key, or learns that it is absent, in one round trip. */
static const uint8_t cdp__elastic_absent[8] = {0, 'a', 'b', 's', 'e', 'n', 't', 0};

/* A key that is read together with others. */
typedef struct cdp__elastic_get {
    cdp__store_call call;
    char key[CDP__ELASTIC_KEY];
    const void *claim; /* written first if the key is absent; NULL: it is only read */
    uint64_t claim_bytes;
    bool removes; /* it is deleted, and not read */
    void *data;   /* NULL: it is absent; freed with cdp_store_free() */
    uint64_t bytes;
} cdp__elastic_get;

CDP__PRIVATE cdp_status cdp__elastic_get_begin(cdp_store *s, cdp__elastic_get *g) {
    const bool reads = !g->removes && !g->claim;
    cdp_status st =
        cdp__store_call_make(&g->call, g->removes ? CDP_STORE_DELETE : CDP_STORE_COMPARE_SET,
            g->key, cdp__elastic_absent, reads ? sizeof cdp__elastic_absent : 0);
    g->call.value[1] = g->call.value[0];
    if (g->claim) {
        g->call.value[1].data = g->claim;
        g->call.value[1].bytes = g->claim_bytes;
    }
    if (st == CDP_OK) st = cdp__elastic_store_status(cdp__store_begin(s, &g->call.rq));
    return st < 0 ? st : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__elastic_get_end(
    cdp_elastic *e, cdp_store *s, cdp__elastic_get *g, uint64_t begun_ns) {
    cdp_store_request *rq = &g->call.rq;
    cdp_status st = s->wait(s->self, rq, begun_ns + (uint64_t)e->store_ms * CDP__MS);
    st = cdp__elastic_store_status(cdp__store_end(s, rq, st, e->store_ms));
    if (st != CDP_OK || g->removes) return st;
    if (!rq->results || !rq->results[0].data)
        st = cdp__fail(CDP_ERR_STORE, "the store has no answer for %s", g->key);
    else if (rq->results[0].bytes != sizeof cdp__elastic_absent
        || memcmp(rq->results[0].data, cdp__elastic_absent, sizeof cdp__elastic_absent) != 0) {
        g->bytes = rq->results[0].bytes;
        memcpy(&g->data, &rq->results[0].data, sizeof g->data);
        rq->results[0].data = NULL;
    }
    cdp_store_request_free(s, rq);
    return st;
}

CDP__PRIVATE void cdp__elastic_get_free(cdp_store *s, cdp__elastic_get *g, uint32_t count) {
    uint32_t i;
    for (i = 0; i < count; ++i)
        cdp_store_free(s, g[i].data);
}

/* Reads keys that do not depend on each other: all requests are sent before the first answer is
   awaited. After an error nothing is left to free. */
CDP__PRIVATE cdp_status cdp__elastic_get_all(
    cdp_elastic *e, cdp_store *s, cdp__elastic_get *g, uint32_t count) {
    const uint64_t begun = cdp__elastic_now_ns(e);
    uint32_t i, n;
    cdp_status st = CDP_OK, one;
    cdp_error why;
    memset(&why, 0, sizeof why);
    for (n = 0; n < count; ++n) {
        g[n].data = NULL;
        g[n].bytes = 0;
    }
    for (n = 0; st == CDP_OK && n < count; ++n)
        st = cdp__elastic_get_begin(s, &g[n]);
    if (st != CDP_OK) {
        why = *cdp_last_error();
        --n; /* it was not begun */
    }
    for (i = 0; i < n; ++i) {
        one = cdp__elastic_get_end(e, s, &g[i], begun);
        if (one == CDP_OK || st != CDP_OK) continue;
        st = one;
        why = *cdp_last_error();
    }
    if (st == CDP_OK) {
        if (!e->handed_in) cdp__elastic_measured(e, cdp__elastic_now_ns(e) - begun);
        return CDP_OK;
    }
    cdp__elastic_get_free(s, g, count);
    for (i = 0; i < count; ++i)
        g[i].data = NULL;
    *cdp__error_slot() = why;
    return st;
}

/* Reads the key; *data NULL: it is absent. */
CDP__PRIVATE cdp_status cdp__elastic_read(
    cdp_elastic *e, cdp_store *s, const char *key, void **data, uint64_t *bytes) {
    cdp__elastic_get g;
    cdp_status st;
    memset(&g, 0, sizeof g);
    cdp__format(g.key, sizeof g.key, "%s", key);
    st = cdp__elastic_get_all(e, s, &g, 1);
    *data = g.data;
    *bytes = g.bytes;
    return st;
}

/* Waits for the answer: CDP_PENDING, and not before that time, if there is none. A store without
   locks does not wait. (Another thread may be writing rq->status; wait() locks.) */
CDP__PRIVATE cdp_status cdp__elastic_answer(
    cdp_elastic *e, cdp_store *s, cdp_store_request *rq, uint64_t until_ns) {
    const cdp_status st = cdp__elastic_store_status(s->wait(s->self, rq, until_ns));
    if (st == CDP_PENDING && cdp__elastic_now_ns(e) < until_ns) cdp__sleep_until(e->os, until_ns);
    return st;
}

/* Waits for the key, at most `ms`: CDP_OK, or CDP_PENDING if it is still absent. */
CDP__PRIVATE cdp_status cdp__elastic_await(
    cdp_elastic *e, cdp_store *s, const char *key, uint64_t ms) {
    cdp__store_call c;
    cdp_status st = cdp__store_call_make(&c, CDP_STORE_WAIT, key, NULL, 0);
    if (st == CDP_OK) st = cdp__elastic_store_status(cdp__store_begin(s, &c.rq));
    if (st < 0) return st;
    st = cdp__elastic_answer(e, s, &c.rq, cdp__elastic_now_ns(e) + ms * CDP__MS);
    if (st == CDP_PENDING) s->cancel(s->self, &c.rq);
    if (st == CDP_PENDING && c.rq.status == CDP_OK) st = CDP_OK;
    return st;
}

/* The decision that made epoch k (0: any), of what its key holds; d->members is allocated, NULL:
   there is none yet. */
CDP__PRIVATE cdp_status cdp__elastic_decision_of(
    cdp_elastic *e, uint64_t k, void *data, uint64_t bytes, cdp__elastic_decision *d) {
    uint32_t size;
    memset(d, 0, sizeof *d);
    if (!data) return CDP_OK;
    size = cdp__elastic_decision_size((const uint8_t *)data, bytes);
    d->members = (cdp__elastic_member *)cdp__alloc(e->os, (size + 1) * sizeof *d->members);
    if (!d->members) return cdp__fail_nomem("a list of members", size * sizeof *d->members);
    if (cdp__elastic_get_decision((uint8_t *)data, bytes, d) && (!k || d->epoch == k))
        return CDP_OK;
    cdp__free(e->os, d->members);
    d->members = NULL;
    return cdp__fail(CDP_ERR_STORE,
        "the key %s/e/%llu holds no decision of cdp_elastic.h: another program writes to it; "
        "choose another `job`",
        e->job, (unsigned long long)k);
}

/* Reads what has the form of a decision on epoch k from a key; k 0: its number is not compared. */
CDP__PRIVATE cdp_status cdp__elastic_read_form(
    cdp_elastic *e, cdp_store *s, const char *key, uint64_t k, cdp__elastic_decision *d) {
    void *data;
    uint64_t bytes;
    cdp_status st;
    memset(d, 0, sizeof *d);
    st = cdp__elastic_read(e, s, key, &data, &bytes);
    if (st == CDP_OK) st = cdp__elastic_decision_of(e, k, data, bytes, d);
    cdp_store_free(s, data);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_read_decision(
    cdp_elastic *e, cdp_store *s, uint64_t k, cdp__elastic_decision *d) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_key(e, key, "e/%llu", (unsigned long long)k);
    return cdp__elastic_read_form(e, s, key, k, d);
}

/* A list of records that a key holds; `tickets` or `arrivals`. *list is freed with cdp__free(). */
CDP__PRIVATE cdp_status cdp__elastic_records_of(cdp_elastic *e, const char *key, const void *data,
    uint64_t bytes, cdp__elastic_arrival **list, uint32_t *count) {
    const uint64_t n = bytes / CDP__ELASTIC_RECORD_BYTES;
    uint64_t i;
    *count = 0;
    *list = (cdp__elastic_arrival *)cdp__alloc(e->os, (n + 1) * sizeof **list);
    if (!*list) return cdp__fail_nomem("a list of records", bytes);
    for (i = 0; i < n; ++i)
        if (!cdp__elastic_get_record(
                (const uint8_t *)data + i * CDP__ELASTIC_RECORD_BYTES, &(*list)[i])) {
            cdp__free(e->os, *list);
            *list = NULL;
            return cdp__fail(CDP_ERR_STORE,
                "the key %s holds no records of cdp_elastic.h: another program writes to it; "
                "choose another `job`",
                key);
        }
    *count = (uint32_t)n;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__elastic_read_records(
    cdp_elastic *e, cdp_store *s, const char *key, cdp__elastic_arrival **list, uint32_t *count) {
    void *data;
    uint64_t bytes;
    cdp_status st = cdp__elastic_read(e, s, key, &data, &bytes);
    *count = 0;
    *list = NULL;
    if (st == CDP_OK) st = cdp__elastic_records_of(e, key, data, bytes, list, count);
    cdp_store_free(s, data);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_has_ended(
    cdp_elastic *e, cdp_store *s, const uint8_t *id, bool *gone) {
    char key[CDP__ELASTIC_KEY], hex[2 * CDP__ELASTIC_ID_BYTES + 1];
    cdp__elastic_hex(id, hex);
    cdp__elastic_key(e, key, "gone/%s", hex);
    return cdp__elastic_there(e, s, key, gone);
}

/* Of a list of tickets: process number i asks, and has no later one. */
CDP__PRIVATE bool cdp__elastic_untried(
    const cdp__elastic_arrival *list, uint32_t count, uint32_t i) {
    uint32_t k;
    for (k = i + 1; list[i].asks && k < count; ++k)
        if (cdp__elastic_same(list[k].id, list[i].id)) return false;
    return list[i].asks;
}

#define CDP__ELASTIC_TOGETHER 16u /* keys that are read, or deleted, at the same time */

/* Of `count` processes, which are known to be gone; *gone true: that is known already. The strides
   are those of the arrays that contain the ids, and the answers. */
CDP__PRIVATE cdp_status cdp__elastic_have_ended(cdp_elastic *e, cdp_store *s, const uint8_t *id,
    uint64_t id_stride, bool *gone, uint64_t gone_stride, uint32_t count) {
    const uint64_t room = cdp__min(count, CDP__ELASTIC_TOGETHER) * sizeof(cdp__elastic_get);
    cdp__elastic_get *g;
    bool *of[CDP__ELASTIC_TOGETHER];
    uint32_t i = 0, k, n;
    cdp_status st = CDP_OK;
    if (!count) return CDP_OK;
    g = (cdp__elastic_get *)cdp__alloc_zero(e->os, room);
    if (!g) return cdp__fail_nomem("requests to the store", room);
    while (st == CDP_OK && i < count) {
        for (n = 0; i < count && n < CDP__ELASTIC_TOGETHER; ++i) {
            char hex[2 * CDP__ELASTIC_ID_BYTES + 1];
            bool *const at = (bool *)((uint8_t *)gone + i * gone_stride);
            if (*at) continue;
            of[n] = at;
            cdp__elastic_hex(id + i * id_stride, hex);
            cdp__elastic_key(e, g[n++].key, "gone/%s", hex);
        }
        st = cdp__elastic_get_all(e, s, g, n);
        for (k = 0; st == CDP_OK && k < n; ++k)
            *of[k] = g[k].data != NULL;
        cdp__elastic_get_free(s, g, st == CDP_OK ? n : 0);
    }
    cdp__free(e->os, g);
    return st;
}

/* The tickets in what "join/in" holds; of those from number `from` on, whether they are gone. */
CDP__PRIVATE cdp_status cdp__elastic_tickets_of(cdp_elastic *e, cdp_store *s, uint32_t from,
    const void *data, uint64_t bytes, cdp__elastic_ticket **list, uint32_t *count) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_arrival *records;
    uint32_t i;
    cdp_status st;
    *list = NULL;
    cdp__elastic_key(e, key, "join/in");
    st = cdp__elastic_records_of(e, key, data, bytes, &records, count);
    if (st != CDP_OK) return st;
    *list = (cdp__elastic_ticket *)cdp__alloc_zero(e->os, (*count + 1) * sizeof **list);
    if (!*list) st = cdp__fail_nomem("a list of tickets", *count * sizeof **list);
    for (i = 0; st == CDP_OK && i < *count; ++i) {
        cdp__elastic_ticket *t = &(*list)[i];
        memcpy(t->id, records[i].id, sizeof t->id);
        t->step = records[i].step;
        t->samples = records[i].samples;
        t->round_trip_ms = records[i].round_trip_ms;
        t->asks = records[i].asks || records[i].tried;
        t->untried = cdp__elastic_untried(records, *count, i);
        t->gone = !t->untried && (t->asks || i < from); /* it does not matter of these */
    }
    if (st == CDP_OK)
        st = cdp__elastic_have_ended(
            e, s, (*list)->id, sizeof **list, &(*list)->gone, sizeof **list, *count);
    cdp__free(e->os, records);
    if (st != CDP_OK) {
        cdp__free(e->os, *list);
        *list = NULL;
        *count = 0;
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_read_tickets(
    cdp_elastic *e, cdp_store *s, uint32_t from, cdp__elastic_ticket **list, uint32_t *count) {
    char key[CDP__ELASTIC_KEY];
    void *data;
    uint64_t bytes;
    cdp_status st;
    *list = NULL;
    *count = 0;
    cdp__elastic_key(e, key, "join/in");
    st = cdp__elastic_read(e, s, key, &data, &bytes);
    if (st == CDP_OK) st = cdp__elastic_tickets_of(e, s, from, data, bytes, list, count);
    cdp_store_free(s, data);
    return st;
}

/* The number of an epoch in a text. */
CDP__PRIVATE uint64_t cdp__elastic_number(const char *p) {
    uint64_t n = 0;
    for (; p && *p >= '0' && *p <= '9' && n < UINT32_MAX; ++p)
        n = n * 10 + (uint64_t)(*p - '0');
    return n;
}

/* The newest epoch that has begun, as its rank 0 said; 0: none has. */
CDP__PRIVATE cdp_status cdp__elastic_hint(cdp_elastic *e, uint64_t *epoch) {
    char key[CDP__ELASTIC_KEY];
    void *text;
    uint64_t bytes;
    cdp_status st;
    cdp__elastic_key(e, key, "e/now");
    st = cdp__elastic_read(e, e->store, key, &text, &bytes);
    *epoch = cdp__elastic_number((const char *)text);
    cdp_store_free(e->store, text);
    return st;
}

/* What an operation of a group returned. Its ranks met through a store of their own, which ends
   with rank 0 of the epoch: as long as the store of the job answers, that is the loss of a rank. */
CDP__PRIVATE cdp_status cdp__elastic_of_group(cdp_elastic *e, cdp_status st) {
    const cdp_error why = *cdp_last_error();
    char key[CDP__ELASTIC_KEY];
    bool there;
    if (st != CDP_ERR_STORE) return st;
    cdp__elastic_key(e, key, "final");
    if (cdp__elastic_there(e, e->store, key, &there) != CDP_OK) return cdp_last_error()->status;
    return cdp__fail(CDP_ERR_PEER_LOST, "rank 0 of the epoch ended: %s", why.text);
}

/* Adds a record to a list. */
CDP__PRIVATE cdp_status cdp__elastic_append(
    cdp_elastic *e, cdp_store *s, const char *key, const cdp__elastic_arrival *a) {
    uint8_t record[CDP__ELASTIC_RECORD_BYTES];
    cdp__elastic_put_record(record, a);
    return cdp__elastic_put(e, s, CDP_STORE_APPEND, key, record, sizeof record);
}

/* Records in the store that the process of this id has ended. */
CDP__PRIVATE cdp_status cdp__elastic_record_end(cdp_elastic *e, cdp_store *s, const char *why) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_key(e, key, "gone/%s", e->id);
    return cdp__elastic_mark(e, s, key, why);
}

/* Ends epoch k on all ranks; the first reason counts. */
CDP__PRIVATE cdp_status cdp__elastic_alarm_at(
    cdp_elastic *e, cdp_store *s, uint64_t k, const char *why) {
    char key[CDP__ELASTIC_KEY], text[160];
    cdp__format(text, sizeof text, "%s", why);
    cdp__elastic_key(e, key, "e/%llu/alarm", (unsigned long long)k);
    return cdp__elastic_mark(e, s, key, text);
}

/* Proposes a decision. *won: the one that counts; its members are allocated (NULL after an
   error). */
CDP__PRIVATE cdp_status cdp__elastic_propose(
    cdp_elastic *e, cdp_store *s, const cdp__elastic_decision *d, cdp__elastic_decision *won) {
    char key[CDP__ELASTIC_KEY];
    const uint64_t bytes = cdp__elastic_decision_bytes(d->size);
    uint8_t *out = (uint8_t *)cdp__alloc(e->os, bytes);
    void *data;
    uint64_t held;
    cdp_status st;
    if (!out) return cdp__fail_nomem("a decision", bytes);
    cdp__elastic_put_decision(out, d);
    cdp__elastic_key(e, key, "e/%llu", (unsigned long long)d->epoch);
    st = cdp__elastic_claim(e, s, key, out, bytes, &data, &held);
    if (st == CDP_OK) st = cdp__elastic_decision_of(e, d->epoch, data, held, won);
    cdp_store_free(s, data);
    cdp__free(e->os, out);
    return st;
}

#endif /* CDP_SRC_ELASTIC_STORE_H */
