/* elastic/doubt.h - whether a member lives that the others wait for

   Knows: the questions in the store. After a change all members wait for each other, newcomers wait
   for any member, and a store without last wills does not know of a death. Promises: who waits for
   a member that has ended or stands still learns so settle_ms after the question, and who waits for
   members of which none lives so much later as members look for that question; a member whose
   program is late is not blamed. */
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

/* For the sake of the store, members of large jobs look less often. */
CDP__PRIVATE uint32_t cdp__elastic_large_ms(const cdp__elastic_decision *d) {
    return d->size > CDP__ELASTIC_LARGE ? d->size * 2u : 0;
}

/* Between two looks for ranks that have ended. After each, every member names all ranks to the
   store again. */
CDP__PRIVATE uint64_t cdp__elastic_wait_ms(const cdp__elastic_decision *d) {
    return CDP__ELASTIC_SLICE_MS + cdp__elastic_large_ms(d)
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
    return e->place.phase == CDP__ELASTIC_JOINED && e->present_epoch != e->place.epoch
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

/* ---- newcomers ask whether any member lives

   The question is a key that any of them removes, in each phase. Nobody concludes from silence that
   another history may begin: members that do not reach the store may go on without it. */
#define CDP__ELASTIC_QUESTION_MS 1000u /* how often members look, where the store is near */
#define CDP__ELASTIC_QUESTION_TRIPS 8u
#define CDP__ELASTIC_LIVE_MS 5000u /* newcomers ask again so long after an answer */

/* What a newcomer knows of the members. */
typedef struct cdp__elastic_silence {
    char asked[40];             /* whose question stands in the store; "": there is none */
    uint64_t due_ns;            /* when to ask again */
    cdp__elastic_settle settle; /* for how long nobody has answered */
} cdp__elastic_silence;

CDP__PRIVATE void cdp__elastic_ask_key(const cdp_elastic *e, char out[CDP__ELASTIC_KEY]) {
    cdp__elastic_key(e, out, "ask");
}

/* How often members look: less often than for trials, see cdp__elastic_check_newcomers(). */
CDP__PRIVATE uint32_t cdp__elastic_question_ms(const cdp__elastic_decision *d) {
    return CDP__ELASTIC_QUESTION_MS + cdp__elastic_large_ms(d)
        + CDP__ELASTIC_QUESTION_TRIPS * cdp__elastic_round_trip_ms(d);
}

/* They look twice within it, and may wait before for what they have asked; the answer, and the look
   that finds it, take a round trip each. Without threads members look between operations. */
CDP__PRIVATE uint64_t cdp__elastic_silence_ms(
    const cdp_elastic *e, const cdp__elastic_decision *d) {
    const uint64_t own_ms = cdp__min(e->round_trip_ns / CDP__MS, CDP__ELASTIC_MOST_TRIP_MS);
    const uint32_t settle_ms = cdp__elastic_settle_ms(d, e->desc.settle_ms);
    return settle_ms + 2ull * cdp__elastic_question_ms(d) + CDP__ELASTIC_SETTLE_TRIPS * own_ms
        + (e->no_thread ? e->tcp.group.timeout_ms : 0);
}

/* One look of a newcomer beside epoch d->epoch. `text`: whose question it has read; "": none. An
   error if nobody has answered it for so long. If it was answered between two looks, and another
   newcomer has asked again, it has another id. */
CDP__PRIVATE cdp_status cdp__elastic_silent(
    cdp_elastic *e, const cdp__elastic_decision *d, cdp__elastic_silence *q, const char *text) {
    const uint32_t most_ms = (uint32_t)cdp__min(cdp__elastic_silence_ms(e, d), e->desc.join_ms);
    const uint64_t now = cdp__elastic_now_ns(e);
    char key[CDP__ELASTIC_KEY];
    bool asks;
    if (q->asked[0] && !text[0]) q->due_ns = now + CDP__ELASTIC_LIVE_MS * CDP__MS;
    asks = !text[0] && now >= q->due_ns;
    if (asks || strcmp(text, q->asked) != 0) {
        cdp__format(q->asked, sizeof q->asked, "%s", asks ? e->id : text);
        memset(&q->settle, 0, sizeof q->settle);
        q->settle.since_ns = now;
    } else if (text[0] && cdp__elastic_waited_ms(&q->settle, now, most_ms) >= most_ms) {
        return cdp__fail(CDP_ERR_STATE,
            "cdp_elastic_create: none of the %u ranks of epoch %llu of the job \"%s\" has answered "
            "within %u ms: they have ended, stand still or do not reach the store, and nobody else "
            "has the state of the job. If they have ended (a launcher may have started all of them "
            "again), start from a checkpoint, under another name or with another store",
            d->size, (unsigned long long)d->epoch, e->job, most_ms);
    }
    q->settle.due_ns = now + (CDP__ELASTIC_SLICE_MS + e->round_trip_ns / CDP__MS) * CDP__MS;
    if (!asks) return CDP_OK;
    cdp__elastic_ask_key(e, key);
    return cdp__elastic_mark(e, e->store, key, e->id);
}

/* Whether this member looks now for that question. Lock held. */
CDP__PRIVATE bool cdp__elastic_reads_question(const cdp_elastic *e) {
    const uint64_t since = cdp__max(e->watch.question_ns, e->epoch_ns);
    return cdp__elastic_now_ns(e) - since >= cdp__elastic_question_ms(&e->d) * CDP__MS;
}

/* Removes it, if it is there. */
CDP__PRIVATE cdp_status cdp__elastic_answer_newcomers(cdp_elastic *e) {
    char key[CDP__ELASTIC_KEY];
    bool there;
    cdp_status st;
    cdp__elastic_ask_key(e, key);
    st = cdp__elastic_there(e, e->watched, key, &there);
    if (st == CDP_OK && there) st = cdp__elastic_put(e, e->watched, CDP_STORE_DELETE, key, NULL, 0);
    e->watch.question_ns = cdp__elastic_now_ns(e);
    return st;
}

#endif /* CDP_SRC_ELASTIC_DOUBT_H */
