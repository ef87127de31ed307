/* elastic/doubt.h - whether a member lives that the others wait for

   Knows: the question in the store. After a change all members wait for each other, and a store
   without last wills does not know of a death. Promises: who waits for a member that has ended or
   stands still learns so settle_ms after the question; a member whose program is late is not
   blamed. */
#ifndef CDP_SRC_ELASTIC_DOUBT_H
#define CDP_SRC_ELASTIC_DOUBT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../store/interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../store/store_api.h"
#include "elastic_api.h"
#include "epoch.h"
#include "turn.h"
#include "store.h"

#define CDP__ELASTIC_LARGE 64u

/* Between two looks for ranks that have ended. After each, every member names all ranks to the
   store again: for its sake, large jobs look less often. */
CDP__PRIVATE uint64_t cdp__elastic_wait_ms(const cdp__elastic_decision *d) {
    const uint32_t large_ms = d->size > CDP__ELASTIC_LARGE ? d->size * 2u : 0;
    return CDP__ELASTIC_SLICE_MS + large_ms
        + CDP__ELASTIC_DEATH_TRIPS * cdp__elastic_round_trip_ms(d);
}

/* What a process that waits in cdp_elastic_next() knows of a rank that has not called it. */
typedef struct cdp__elastic_doubt {
    uint32_t rank;              /* which one: after its own, the first that is not here */
    uint32_t asks;              /* how often this process has asked */
    uint64_t due_ns;            /* when it may ask */
    char asked[40];             /* the question that stands in the store; "": there is none */
    cdp__elastic_settle settle; /* for how long it has */
} cdp__elastic_doubt;

/* What is read of those that are not here. */
enum {
    CDP__ELASTIC_NEXT_ENDED, /* the next rank has ended */
    CDP__ELASTIC_ASK,        /* the question; see cdp__elastic_doubts() */
    CDP__ELASTIC_HERE,       /* doubt->rank has come */
    CDP__ELASTIC_DOUBTS
};

CDP__PRIVATE uint64_t cdp__elastic_next_ask(uint64_t now) {
    return now + CDP__ELASTIC_ASK_MS * CDP__MS;
}

/* The question that was read: it is repeated until it is removed, but nobody waits for an answer
   longer than settle_ms. */
CDP__PRIVATE cdp_status cdp__elastic_doubt_of(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, cdp__elastic_doubt *q, const cdp__elastic_get g[CDP__ELASTIC_DOUBTS]) {
    const cdp__elastic_get *const ask = &g[CDP__ELASTIC_ASK];
    const uint32_t settle_ms = cdp__elastic_settle_ms(d, e->desc.settle_ms);
    const uint64_t now = cdp__elastic_now_ns(e);
    const bool here = g[CDP__ELASTIC_HERE].data != NULL;
    char text[sizeof q->asked] = "";
    if (ask->data) cdp__text_foreign(text, sizeof text, ask->data, ask->bytes);
    if (q->asked[0] && !text[0]) q->due_ns = cdp__elastic_next_ask(now);
    if (here) {
        q->rank = (q->rank + 1) % d->size;
        q->due_ns = 0;
    }
    if (strcmp(text, q->asked) != 0) {
        memset(&q->settle, 0, sizeof q->settle);
        q->settle.since_ns = q->settle.due_ns = now;
        memcpy(q->asked, text, sizeof text);
    }
    if (text[0] && cdp__elastic_waited_ms(&q->settle, now, settle_ms) >= settle_ms)
        return cdp__fail(CDP_ERR_PEER_LOST,
            "epoch %llu: rank %llu did not call cdp_elastic_next(), and nothing of its process "
            "answered within settle_ms, %u ms: it has ended, or stands still",
            (unsigned long long)d->epoch, (unsigned long long)cdp__elastic_number(text),
            e->desc.settle_ms);
    q->settle.due_ns = now + cdp__elastic_wait_ms(d) * CDP__MS;
    if (text[0] || here || now < q->due_ns || q->rank == rank) return CDP_OK;
    q->due_ns = cdp__elastic_next_ask(now); /* the answer may come before the next look */
    cdp__format(text, sizeof text, "%u, asks %u: %u", q->rank, rank, ++q->asks);
    return cdp__elastic_mark(e, e->store, ask->key, text);
}

/* Checks whether the next rank has ended; and, where the store may not know that, whether a rank
   that is not here lives: it is asked, in a key that its thread removes, or a call of its program.
   One is asked at a time, and all who wait see the question: so one whose asker has died
   is answered, too. */
CDP__PRIVATE cdp_status cdp__elastic_doubts(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t rank, cdp__elastic_doubt *q) {
    const unsigned long long k = (unsigned long long)d->epoch;
    const uint32_t next = (rank + 1) % d->size;
    char hex[2 * CDP__ELASTIC_ID_BYTES + 1];
    cdp__elastic_get g[CDP__ELASTIC_DOUBTS];
    cdp_status st;
    memset(g, 0, sizeof g);
    if (q->rank == rank) q->rank = next;
    cdp__elastic_hex(d->members[next].id, hex);
    cdp__elastic_key(e, g[CDP__ELASTIC_NEXT_ENDED].key, "gone/%s", hex);
    cdp__elastic_key(e, g[CDP__ELASTIC_ASK].key, "e/%llu/ask", k);
    cdp__elastic_key(e, g[CDP__ELASTIC_HERE].key, "e/%llu/here/%u", k, q->rank);
    st = cdp__elastic_get_all(e, e->store, g, CDP__ELASTIC_DOUBTS);
    if (st != CDP_OK) return st;
    if (g[CDP__ELASTIC_NEXT_ENDED].data)
        st = cdp__fail(
            CDP_ERR_PEER_LOST, "epoch %llu: rank %u ended before it was connected", k, next);
    else
        st = cdp__elastic_doubt_of(e, d, rank, q, g);
    cdp__elastic_get_free(e->store, g, CDP__ELASTIC_DOUBTS);
    return st;
}

/* Whether this process looks now for the question of those who wait for its program: see
   cdp__elastic_doubts(). Lock held. */
CDP__PRIVATE bool cdp__elastic_is_awaited(const cdp_elastic *e) {
    const uint64_t since = cdp__max(e->watch.asked_ns, e->epoch_ns);
    return e->place.phase == CDP__ELASTIC_JOINED && e->met != e->place.epoch
        && cdp__elastic_now_ns(e) - since >= CDP__ELASTIC_SLICE_MS * CDP__MS;
}

/* Removes the question whether this process lives, if it is asked. */
CDP__PRIVATE cdp_status cdp__elastic_answer_doubts(cdp_elastic *e, uint64_t k) {
    char key[CDP__ELASTIC_KEY];
    void *data;
    uint64_t bytes;
    bool mine;
    cdp_status st;
    cdp__elastic_key(e, key, "e/%llu/ask", (unsigned long long)k);
    st = cdp__elastic_read(e, e->watched, key, &data, &bytes);
    mine = data && cdp__elastic_number((const char *)data) == e->place.rank;
    cdp_store_free(e->watched, data);
    if (st == CDP_OK && mine) st = cdp__elastic_put(e, e->watched, CDP_STORE_DELETE, key, NULL, 0);
    e->watch.asked_ns = cdp__elastic_now_ns(e);
    return st;
}

#endif /* CDP_SRC_ELASTIC_DOUBT_H */
