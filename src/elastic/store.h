/* elastic/store.h - keys of the job, and short requests

   Knows: the keys. Promises: a request ends by cdp__elastic_store_limit(); what it returns is the
   caller's memory. */
#ifndef CDP_SRC_ELASTIC_STORE_H
#define CDP_SRC_ELASTIC_STORE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../store/interface_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/backend_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../group/state.h"
#include "../store/store_api.h"
#include "../store/calls.h"
#include "../tcp/desc_api.h"
#include "elastic_api.h"
#include "epoch.h"
#include "turn.h"
#include "records.h"
#include "member.h"

/* A request took so long. The shortest one is the round trip: others had to wait for something. */
CDP__PRIVATE void cdp__elastic_measured(cdp_elastic *e, uint64_t took_ns) {
    if (!e->round_trip_ns || took_ns < e->round_trip_ns) e->round_trip_ns = took_ns;
}

/* The status of a request, or of a wait for it. A store that its host has closed answers STATE, and
   one that is silent TIMEOUT, which of the calls of this header say something else. */
CDP__PRIVATE cdp_status cdp__elastic_store_status(const cdp_elastic *e, cdp_status st) {
    if (st != CDP_ERR_STATE && (st != CDP_ERR_TIMEOUT || e->asks_again)) return st;
    cdp__error_slot()->status = CDP_ERR_STORE;
    return CDP_ERR_STORE;
}

/* This client is the one that polls for the alarm and in turns. */
CDP__PRIVATE bool cdp__elastic_watches(const cdp_elastic *e, const cdp_store *s) {
    return s == e->polls;
}

/* From now on a call of the program waits for the store as long as for anything else, or (no) for
   store_ms, as calls that do not wait for others do. */
CDP__PRIVATE void cdp__elastic_be_patient(cdp_elastic *e, bool patient) {
    const uint64_t until_ns = patient ? cdp__deadline(e->os, e->desc.join_ms) : 0;
    cdp__elastic_lock(e);
    if (!patient || !e->patient_ns) e->patient_ns = until_ns;
    cdp__elastic_unlock(e);
}

/* Until when a request is waited for that was sent at begun_ns. An epoch goes on without the store,
   and nothing does in a turn: so who polls waits for as long as a call of the program may. */
CDP__PRIVATE uint64_t cdp__elastic_store_limit(
    cdp_elastic *e, const cdp_store *s, uint64_t begun_ns) {
    const uint64_t least = begun_ns + e->store_ms * CDP__MS;
    uint64_t patient_ns;
    if (cdp__elastic_watches(e, s)) return cdp__max(least, begun_ns + e->desc.join_ms * CDP__MS);
    cdp__elastic_lock(e);
    patient_ns = e->patient_ns;
    cdp__elastic_unlock(e);
    return cdp__max(least, patient_ns);
}

CDP__PRIVATE bool cdp__elastic_stops(cdp_elastic *e) {
    bool stop;
    cdp__elastic_lock(e);
    stop = e->stop;
    cdp__elastic_unlock(e);
    return stop;
}

/* Waits for the answer: CDP_PENDING, and not before that time, if there is none. A store without
   locks does not wait. (Another thread may be writing rq->status; wait() locks.) */
CDP__PRIVATE cdp_status cdp__elastic_answer(
    cdp_elastic *e, cdp_store *s, cdp_store_request *rq, uint64_t until_ns) {
    const cdp_status st = cdp__elastic_store_status(e, s->wait(s->self, rq, until_ns));
    if (st == CDP_PENDING && cdp__elastic_now_ns(e) < until_ns) cdp__sleep_until(e->os, until_ns);
    return st;
}

/* The end of a request that was sent at begun_ns. cdp_elastic_destroy() does not wait for it. */
CDP__PRIVATE cdp_status cdp__elastic_store_end(
    cdp_elastic *e, cdp_store *s, cdp_store_request *rq, uint64_t begun_ns) {
    const uint64_t until_ns = cdp__elastic_store_limit(e, s, begun_ns);
    const bool beside = cdp__elastic_watches(e, s) && !e->no_thread;
    uint64_t now = cdp__elastic_now_ns(e);
    cdp_status st;
    do {
        const uint64_t slice_ns = now + CDP__ELASTIC_SLICE_MS * CDP__MS;
        st = cdp__elastic_answer(e, s, rq, beside ? cdp__min(until_ns, slice_ns) : until_ns);
        now = cdp__elastic_now_ns(e);
    } while (st == CDP_PENDING && now < until_ns && !(beside && cdp__elastic_stops(e)));
    return cdp__elastic_store_status(
        e, cdp__store_end(s, rq, st, (uint32_t)((now - begun_ns) / CDP__MS)));
}

/* One request. *data (NULL: not wanted) is freed with cdp_store_free(). */
CDP__PRIVATE cdp_status cdp__elastic_ask(
    cdp_elastic *e, cdp_store *s, cdp__store_call *c, void **data, uint64_t *bytes) {
    const uint64_t begun = cdp__elastic_now_ns(e);
    cdp_status st = cdp__elastic_store_status(e, cdp__store_begin(s, &c->rq));
    if (data) *data = NULL;
    if (st >= 0) st = cdp__elastic_store_end(e, s, &c->rq, begun);
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

CDP__PRIVATE cdp_status cdp__elastic_get_begin(
    const cdp_elastic *e, cdp_store *s, cdp__elastic_get *g) {
    const bool reads = !g->removes && !g->claim;
    cdp_status st =
        cdp__store_call_make(&g->call, g->removes ? CDP_STORE_DELETE : CDP_STORE_COMPARE_SET,
            g->key, cdp__elastic_absent, reads ? sizeof cdp__elastic_absent : 0);
    g->call.value[1] = g->call.value[0];
    if (g->claim) {
        g->call.value[1].data = g->claim;
        g->call.value[1].bytes = g->claim_bytes;
    }
    if (st == CDP_OK) st = cdp__elastic_store_status(e, cdp__store_begin(s, &g->call.rq));
    return st < 0 ? st : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__elastic_get_end(
    cdp_elastic *e, cdp_store *s, cdp__elastic_get *g, uint64_t begun_ns) {
    cdp_store_request *rq = &g->call.rq;
    cdp_status st = cdp__elastic_store_end(e, s, rq, begun_ns);
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
        st = cdp__elastic_get_begin(e, s, &g[n]);
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

/* Waits for the key, at most `ms`: CDP_OK, or CDP_PENDING if it is still absent. */
CDP__PRIVATE cdp_status cdp__elastic_await(
    cdp_elastic *e, cdp_store *s, const char *key, uint64_t ms) {
    cdp__store_call c;
    cdp_status st = cdp__store_call_make(&c, CDP_STORE_WAIT, key, NULL, 0);
    if (st == CDP_OK) st = cdp__elastic_store_status(e, cdp__store_begin(s, &c.rq));
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
    cdp_elastic *e, cdp_store *s, const uint8_t *id, bool *ended) {
    char key[CDP__ELASTIC_KEY], hex[2 * CDP__ELASTIC_ID_BYTES + 1];
    cdp__elastic_hex(id, hex);
    cdp__elastic_key(e, key, "gone/%s", hex);
    return cdp__elastic_there(e, s, key, ended);
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

/* Of `count` processes, which are known to be gone; *ended true: that is known already. The strides
   are those of the arrays that contain the ids, and the answers. */
CDP__PRIVATE cdp_status cdp__elastic_have_ended(cdp_elastic *e, cdp_store *s, const uint8_t *id,
    uint64_t id_stride, bool *ended, uint64_t ended_stride, uint32_t count) {
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
            bool *const at = (bool *)((uint8_t *)ended + i * ended_stride);
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

/* The tickets in what "join/in" holds. Of those before number `from` it is all one whether they
   are gone; of the others that is not known yet. */
CDP__PRIVATE cdp_status cdp__elastic_tickets_in(cdp_elastic *e, uint32_t from, const void *data,
    uint64_t bytes, cdp__elastic_ticket **list, uint32_t *count) {
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
        t->ended = !t->untried && (t->asks || i < from); /* it does not matter of these */
    }
    cdp__free(e->os, records);
    if (st != CDP_OK) *count = 0;
    return st;
}

/* The same, and whether they are gone. */
CDP__PRIVATE cdp_status cdp__elastic_tickets_of(cdp_elastic *e, cdp_store *s, uint32_t from,
    const void *data, uint64_t bytes, cdp__elastic_ticket **list, uint32_t *count) {
    cdp_status st = cdp__elastic_tickets_in(e, from, data, bytes, list, count);
    if (st == CDP_OK)
        st = cdp__elastic_have_ended(
            e, s, (*list)->id, sizeof **list, &(*list)->ended, sizeof **list, *count);
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
