/* elastic/entry.h - from a ticket to the first epoch of a process

   Knows: settings as text, tickets. Promises: a process whose settings differ never gets a ticket;
   one that gives up says so. */
#ifndef CDP_SRC_ELASTIC_ENTRY_H
#define CDP_SRC_ELASTIC_ENTRY_H

#include "../base/version.h"
#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../text/format.h"
#include "../text/utf8.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../message/header.h"
#include "../group/group_api.h"
#include "../group/world.h"
#include "../store/store_api.h"
#include "../tcp/desc_api.h"
#include "elastic_api.h"
#include "epoch.h"
#include "turn.h"
#include "store.h"
#include "trial.h"
#include "doubt.h"
#include "turns.h"
#include "attend.h"

/* What groups compare when they connect, or in their first operation: a newcomer that differs would
   end that epoch. */
CDP__PRIVATE void cdp__elastic_group_settings(const cdp_tcp_desc *tcp, cdp__text *t) {
    cdp_group_desc g = tcp->group;
    uint32_t i;
    cdp__group_desc_defaults(&g);
#ifdef CDP_NO_FRAMES
    cdp__text_add(t, "newcomers: not tried\n");
#else
    cdp__text_add(t, "newcomers: tried\n");
#endif
    cdp__text_add(t, "version %u of messages, %s-endian\njob_key: %s\nmac: %s\nconnections %u\n",
        (unsigned)CDP_WIRE_VERSION, cdp__byte_order() == CDP__HEAD_LITTLE_ENDIAN ? "little" : "big",
        tcp->job_key && tcp->job_key[0] ? "set" : "not set", tcp->mac ? "on" : "off",
        cdp__def(tcp->connections, 1));
    cdp__text_add(t, "small_bytes %llu\npiece_bytes %llu\nreproducible: %s\n%u choices\n",
        (unsigned long long)g.small_bytes, (unsigned long long)g.piece_bytes,
        g.reproducible ? "on" : "off", tcp->group.choice_count);
    for (i = 0; i < tcp->group.choice_count; ++i) {
        const cdp_choice *c = &tcp->group.choices[i];
        cdp__text_add(t, "choice %u: %u %s, %llu bytes, %u ranks\n", i, (unsigned)c->kind,
            c->algorithm ? c->algorithm : "", (unsigned long long)c->max_bytes, c->max_ranks);
    }
}

/* What must be equal on all ranks, a line each. Returns the length with its zero; writes as much as
   there is room for; `out` may be NULL. */
CDP__PRIVATE uint64_t cdp__elastic_settings(const cdp_elastic *e, char *out, uint64_t room) {
    const cdp_elastic_desc *d = &e->desc;
    cdp__text t = cdp__text_of(out, room);
    uint32_t i;
    cdp__text_add(&t, "min_ranks %u\nmax_ranks %u\nbatch %u\nsave and load: %s\n", d->min_ranks,
        d->max_ranks, d->batch, d->save ? "set" : "not set");
    cdp__elastic_group_settings(&e->tcp, &t);
    for (i = 0; i < d->entry_count; ++i) {
        const cdp_entry *n = &d->entries[i];
        cdp__text_add(&t, "entry %u: %s, %llu x %s\n", i, n->name, (unsigned long long)n->count,
            cdp_dtype_name(n->dtype));
    }
    cdp__text_add(&t, "%u entries\n", d->entry_count);
    return cdp__text_end(&t) + 1;
}

CDP__PRIVATE uint32_t cdp__elastic_line(const char *text) {
    uint32_t n = 0;
    while (text[n] && text[n] != '\n' && n < 150)
        ++n;
    return n;
}

/* The first line that differs. */
CDP__PRIVATE cdp_status cdp__elastic_differs(const char *mine, const char *theirs) {
    char a[160], b[160];
    for (;;) {
        const uint32_t n = cdp__elastic_line(mine), m = cdp__elastic_line(theirs);
        cdp__format(a, n + 1u, "%s", mine);
        cdp__format(b, m + 1u, "%s", theirs);
        if (strcmp(a, b) != 0 || !mine[n] || !theirs[m]) break;
        mine += n + (mine[n] == '\n');
        theirs += m + (theirs[m] == '\n');
    }
    return cdp__fail(CDP_ERR_MISMATCH,
        "cdp_elastic_create: the settings of this process are not those of the job: here \"%s\", "
        "there \"%s\"",
        a, b);
}

/* What a process reads of a job before it writes its ticket; the first one claims the settings. */
enum {
    CDP__ELASTIC_SETTINGS,
    CDP__ELASTIC_NOW,   /* the newest epoch that has begun, as its rank 0 said */
    CDP__ELASTIC_FIRST, /* the decision that made the first epoch */
    CDP__ELASTIC_USED,  /* this process has ended: its id was used before */
    CDP__ELASTIC_BEFORE
};

/* `mine`: the settings of this process. */
CDP__PRIVATE cdp_status cdp__elastic_read_before(
    cdp_elastic *e, const char *mine, cdp__elastic_get g[CDP__ELASTIC_BEFORE]) {
    cdp_status st;
    memset(g, 0, CDP__ELASTIC_BEFORE * sizeof *g);
    cdp__elastic_key(e, g[CDP__ELASTIC_SETTINGS].key, "settings");
    g[CDP__ELASTIC_SETTINGS].claim = mine;
    g[CDP__ELASTIC_SETTINGS].claim_bytes = strlen(mine);
    cdp__elastic_key(e, g[CDP__ELASTIC_NOW].key, "e/now");
    cdp__elastic_key(e, g[CDP__ELASTIC_FIRST].key, "e/1");
    cdp__elastic_key(e, g[CDP__ELASTIC_USED].key, "gone/%s", e->id);
    st = cdp__elastic_get_all(e, e->store, g, CDP__ELASTIC_BEFORE);
    if (st == CDP_OK
        && (g->bytes != strlen(mine) || memcmp(mine, g->data, (size_t)g->bytes) != 0)) {
        st = cdp__elastic_differs(mine, g->data ? (const char *)g->data : "");
        cdp__elastic_get_free(e->store, g, CDP__ELASTIC_BEFORE);
    }
    return st;
}

#define CDP__ELASTIC_LEAST_TRIPS 10u /* to the store: the least timeout_ms */

/* Connecting takes the round trips that it needs, but an operation or a request to the store has
   timeout_ms. */
CDP__PRIVATE CDP__COLD void cdp__elastic_warn_of_time(const cdp_elastic *e) {
    const uint32_t ms = (uint32_t)cdp__min(e->round_trip_ns / CDP__MS, CDP__ELASTIC_MOST_TRIP_MS);
    const uint32_t least_ms = CDP__ELASTIC_LEAST_TRIPS * ms;
    if (e->tcp.group.timeout_ms >= least_ms) return;
    cdp__log(&e->tcp.group.logger, CDP_LOG_WARN, -1,
        "cdp_elastic_create: timeout_ms of tcp->group is %u ms, and a round trip to the store "
        "takes "
        "%u ms: operations may time out although nobody has died; make it at least %u",
        e->tcp.group.timeout_ms, ms, least_ms);
}

/* Adds a ticket of this process. */
CDP__PRIVATE cdp_status cdp__elastic_hand_in_as(cdp_elastic *e, cdp__elastic_stage stage) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_arrival a;
    memset(&a, 0, sizeof a);
    a.asks = stage == CDP__ELASTIC_ASKS;
    a.tried = stage == CDP__ELASTIC_TRIED;
    e->stage = (uint8_t)stage;
    memcpy(a.id, e->place.id, sizeof a.id);
    a.step = e->desc.step;
    a.samples = e->desc.samples;
    a.rank = CDP__ELASTIC_NEW;
    a.has_state = true;
    a.round_trip_ms = (uint32_t)cdp__min(e->round_trip_ns / CDP__MS, CDP__ELASTIC_MOST_TRIP_MS);
    cdp__elastic_key(e, key, "join/in");
    return cdp__elastic_append(e, e->store, key, &a);
}

CDP__PRIVATE cdp_status cdp__elastic_hand_in(cdp_elastic *e) {
    return cdp__elastic_hand_in_as(e, CDP__ELASTIC_HANDED_IN);
}

/* *next becomes *d. True if this process is in it. */
CDP__PRIVATE bool cdp__elastic_follow(
    cdp_elastic *e, cdp__elastic_decision *d, const cdp__elastic_decision *next) {
    bool in;
    cdp__free(e->os, d->members);
    *d = *next;
    cdp__elastic_lock(e);
    in = cdp__elastic_learn(&e->place, d);
    cdp__elastic_unlock(e);
    return in;
}

/* The newest decision from that of epoch k on, or the one that this process is in; its members are
   allocated. *d stays as it is if there is none. */
CDP__PRIVATE cdp_status cdp__elastic_newest(cdp_elastic *e, cdp__elastic_decision *d, uint64_t k) {
    cdp__elastic_decision next;
    cdp_status st = CDP_OK;
    for (; st == CDP_OK; ++k) {
        st = cdp__elastic_read_decision(e, e->store, k, &next);
        if (st != CDP_OK || !next.members) break;
        if (cdp__elastic_follow(e, d, &next)) break;
    }
    return st;
}

/* What a process that waits for its first epoch reads again and again. */
enum {
    CDP__ELASTIC_FINAL,                        /* the job is over */
    CDP__ELASTIC_NEXT,                         /* the decision after the newest one */
    CDP__ELASTIC_TICKETS,                      /* before the first epoch */
    CDP__ELASTIC_QUERY = CDP__ELASTIC_TICKETS, /* after it: the question whether a member lives */
    CDP__ELASTIC_KNOWN, /* before it, of each ticket that is known: whether its process is gone */
    CDP__ELASTIC_MOST_KNOWN = 12, /* so all fit into one batch of requests */
    CDP__ELASTIC_ENTERS = CDP__ELASTIC_KNOWN + CDP__ELASTIC_MOST_KNOWN
};

/* What such a process has seen. */
typedef struct cdp__elastic_entry {
    uint32_t ticket_count; /* before the first epoch */
    uint64_t since_ns;     /* since when there are so many */
    uint8_t known[CDP__ELASTIC_MOST_KNOWN][CDP__ELASTIC_ID_BYTES]; /* theirs, if they fit in */
    uint32_t dead; /* members that are known to be gone */
    cdp__elastic_silence silence;
} cdp__elastic_entry;

/* How many of the processes are known that have tickets. */
CDP__PRIVATE uint32_t cdp__elastic_known(const cdp__elastic_entry *n) {
    return n->ticket_count <= CDP__ELASTIC_MOST_KNOWN ? n->ticket_count : 0;
}

/* Fills in which keys are read before the first epoch, from CDP__ELASTIC_TICKETS on. Returns where
   they end. */
CDP__PRIVATE uint32_t cdp__elastic_ask_tickets(
    const cdp_elastic *e, const cdp__elastic_entry *n, cdp__elastic_get *g) {
    const uint32_t end = CDP__ELASTIC_KNOWN + cdp__elastic_known(n);
    char hex[2 * CDP__ELASTIC_ID_BYTES + 1];
    uint32_t i;
    cdp__elastic_key(e, g[CDP__ELASTIC_TICKETS].key, "join/in");
    for (i = CDP__ELASTIC_KNOWN; i < end; ++i) {
        cdp__elastic_hex(n->known[i - CDP__ELASTIC_KNOWN], hex);
        cdp__elastic_key(e, g[i].key, "gone/%s", hex);
    }
    return end;
}

/* The tickets are those of the last poll, so it is known which processes are gone; or else is asked
   now, if it would matter. */
CDP__PRIVATE cdp_status cdp__elastic_who_is_gone(cdp_elastic *e, const cdp__elastic_get *g,
    cdp__elastic_entry *n, cdp__elastic_ticket *tickets, const cdp__elastic_view *v,
    uint64_t quiet_ms) {
    const uint32_t count = v->ticket_count;
    uint32_t i;
    if (count == n->ticket_count && cdp__elastic_known(n)) {
        for (i = 0; i < count; ++i)
            tickets[i].ended = tickets[i].ended || g[CDP__ELASTIC_KNOWN + i].data;
        return CDP_OK;
    }
    n->ticket_count = count;
    for (i = 0; i < cdp__elastic_known(n); ++i)
        memcpy(n->known[i], tickets[i].id, sizeof n->known[i]);
    if (cdp__elastic_known(n) && !cdp__elastic_founds(v, e->place.id, quiet_ms, e->desc.settle_ms))
        return CDP_OK;
    return cdp__elastic_have_ended(
        e, e->store, tickets->id, sizeof *tickets, &tickets->ended, sizeof *tickets, count);
}

/* No epoch yet, and `g` holds the tickets: the oldest one leads. *won: the decision that makes the
   first epoch, if this process has proposed one; its members are allocated. */
CDP__PRIVATE cdp_status cdp__elastic_found_first(
    cdp_elastic *e, const cdp__elastic_get *g, cdp__elastic_entry *n, cdp__elastic_decision *won) {
    const cdp__elastic_get *const in = &g[CDP__ELASTIC_TICKETS];
    cdp__elastic_decision none;
    cdp__elastic_ticket *tickets;
    cdp__elastic_verdict verdict;
    cdp__elastic_view v;
    uint64_t quiet_ms;
    cdp_status st;
    memset(&none, 0, sizeof none);
    memset(won, 0, sizeof *won);
    memset(&v, 0, sizeof v);
    v.old = &none;
    st = cdp__elastic_tickets_in(e, 0, in->data, in->bytes, &tickets, &v.ticket_count);
    if (v.ticket_count != n->ticket_count) n->since_ns = cdp__elastic_now_ns(e);
    v.tickets = tickets;
    v.min_ranks = e->desc.min_ranks;
    v.max_ranks = e->desc.max_ranks;
    quiet_ms = (cdp__elastic_now_ns(e) - n->since_ns) / CDP__MS;
    if (st == CDP_OK) st = cdp__elastic_who_is_gone(e, g, n, tickets, &v, quiet_ms);
    if (st == CDP_OK && cdp__elastic_founds(&v, e->place.id, quiet_ms, e->desc.settle_ms))
        st = cdp__elastic_try(e, e->store, &v, NULL, &verdict, won);
    cdp__free(e->os, tickets);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_nobody(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t tickets) {
    if (!d->epoch)
        return cdp__fail(CDP_ERR_TIMEOUT,
            "cdp_elastic_create: %u processes came within join_ms, %u ms, and min_ranks is %u",
            tickets, e->desc.join_ms, e->desc.min_ranks);
    return cdp__fail(CDP_ERR_TIMEOUT,
        "cdp_elastic_create: epoch %llu of %u ranks (max_ranks %u) did not take this process in "
        "within join_ms, %u ms%s%s",
        (unsigned long long)d->epoch, d->size, e->desc.max_ranks, e->desc.join_ms,
        e->stage == CDP__ELASTIC_ASKS && e->untried[0] ? ": it and the ranks cannot connect: " : "",
        e->stage == CDP__ELASTIC_ASKS ? e->untried : "");
}

/* Called before this process writes its ticket: checks that its settings, the text `mine`, are of
   the job, and that its id was not used before. A launcher of machines has other settings. */
CDP__PRIVATE cdp_status cdp__elastic_fresh_as(
    cdp_elastic *e, const char *mine, cdp__elastic_decision *d) {
    cdp__elastic_get g[CDP__ELASTIC_BEFORE];
    cdp__elastic_decision first;
    bool ended;
    uint64_t said;
    cdp_status st = cdp__elastic_read_before(e, mine, g);
    if (st != CDP_OK) return st;
    ended = g[CDP__ELASTIC_USED].data != NULL;
    said = cdp__elastic_number((const char *)g[CDP__ELASTIC_NOW].data);
    st = cdp__elastic_decision_of(
        e, 1, g[CDP__ELASTIC_FIRST].data, g[CDP__ELASTIC_FIRST].bytes, &first);
    cdp__elastic_get_free(e->store, g, CDP__ELASTIC_BEFORE);
    if (st == CDP_OK && first.members && !cdp__elastic_follow(e, d, &first))
        st = cdp__elastic_newest(e, d, cdp__max(said, 2));
    if (st == CDP_OK && (ended || e->place.epoch))
        st = cdp__fail(CDP_ERR_INVALID,
            "cdp_elastic_create: the id %s was used before in the job \"%s\"; each process needs "
            "one of its own",
            e->id, e->job);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_fresh(cdp_elastic *e, cdp__elastic_decision *d) {
    const uint64_t room = cdp__elastic_settings(e, NULL, 0);
    char *mine = (char *)cdp__alloc(e->os, room);
    cdp_status st;
    if (!mine) return cdp__fail_nomem("the settings as text", room);
    (void)cdp__elastic_settings(e, mine, room);
    st = cdp__elastic_fresh_as(e, mine, d);
    cdp__free(e->os, mine);
    return st;
}

/* An error if all members of the epoch have ended, because a newcomer would wait for them in vain.
   The first *dead members are known to be gone; each call continues after them, until it finds a
   live one. */
CDP__PRIVATE cdp_status cdp__elastic_anybody(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t *dead) {
    bool ended = true, over = false;
    char key[CDP__ELASTIC_KEY];
    cdp_status st = CDP_OK;
    while (st == CDP_OK && ended && *dead < d->size) {
        st = cdp__elastic_has_ended(e, e->store, d->members[*dead].id, &ended);
        *dead += st == CDP_OK && ended;
    }
    if (st != CDP_OK || !d->size || *dead < d->size) return st;
    cdp__elastic_key(e, key, "final"); /* written before members end in good order */
    st = cdp__elastic_there(e, e->store, key, &over);
    if (st != CDP_OK || over) return st;
    cdp__elastic_key(e, key, "e/%llu", (unsigned long long)(d->epoch + 1));
    st = cdp__elastic_there(e, e->store, key, &over);
    if (st != CDP_OK || over) return st;
    return cdp__fail(CDP_ERR_STATE,
        "cdp_elastic_create: all %u ranks of epoch %llu have ended, so nobody has the state of the "
        "job \"%s\": start again from a checkpoint, under another name or with another store",
        d->size, (unsigned long long)d->epoch, e->job);
}

/* One poll: *d is the newest decision then. */
CDP__PRIVATE cdp_status cdp__elastic_enter_look(
    cdp_elastic *e, cdp__elastic_decision *d, cdp__elastic_entry *n) {
    const uint64_t before = d->epoch;
    char asked[sizeof n->silence.asked] = "";
    cdp__elastic_get g[CDP__ELASTIC_ENTERS];
    uint32_t end = CDP__ELASTIC_QUERY + 1;
    cdp__elastic_decision next;
    cdp_status st;
    memset(g, 0, sizeof g);
    cdp__elastic_key(e, g[CDP__ELASTIC_FINAL].key, "final");
    cdp__elastic_key(e, g[CDP__ELASTIC_NEXT].key, "e/%llu", (unsigned long long)(before + 1));
    if (before)
        cdp__elastic_ask_key(e, g[CDP__ELASTIC_QUERY].key);
    else
        end = cdp__elastic_ask_tickets(e, n, g);
    st = cdp__elastic_get_all(e, e->store, g, end);
    if (st != CDP_OK) return st;
    if (before && g[CDP__ELASTIC_QUERY].data)
        cdp__text_foreign(
            asked, sizeof asked, g[CDP__ELASTIC_QUERY].data, g[CDP__ELASTIC_QUERY].bytes);
    if (g[CDP__ELASTIC_FINAL].data)
        st = cdp__fail(CDP_ERR_STATE, "cdp_elastic_create: the job \"%s\" is over", e->job);
    else
        st = cdp__elastic_decision_of(
            e, before + 1, g[CDP__ELASTIC_NEXT].data, g[CDP__ELASTIC_NEXT].bytes, &next);
    if (st == CDP_OK && !before && !next.members) st = cdp__elastic_found_first(e, g, n, &next);
    cdp__elastic_get_free(e->store, g, end);
    if (st == CDP_OK && next.members && !cdp__elastic_follow(e, d, &next))
        st = cdp__elastic_newest(e, d, d->epoch + 1);
    if (d->epoch != before) {
        n->dead = 0;
        memset(&n->silence, 0, sizeof n->silence);
    }
    if (st != CDP_OK || !before || e->place.phase == CDP__ELASTIC_JOINED) return st;
    st = cdp__elastic_anybody(e, d, &n->dead);
    if (st == CDP_OK && d->epoch == before) st = cdp__elastic_silent(e, d, &n->silence, asked);
    return st;
}

/* How long to wait for a decision before the next poll: the answer takes a round trip. Who waits
   until nobody has come for settle_ms polls then. */
CDP__PRIVATE uint64_t cdp__elastic_pause_ms(
    const cdp_elastic *e, uint64_t epoch, uint64_t since_ns) {
    const uint64_t quiet_ms = (cdp__elastic_now_ns(e) - since_ns) / CDP__MS;
    const uint64_t ms = CDP__ELASTIC_LOOK_MS * 5 + e->round_trip_ns / CDP__MS;
    if (epoch || quiet_ms >= e->desc.settle_ms) return ms;
    return cdp__min(ms, e->desc.settle_ms - quiet_ms + 1);
}

/* Hands in what this process is due: where a job runs, it asks to be tried first. */
CDP__PRIVATE cdp_status cdp__elastic_apply(cdp_elastic *e, cdp__elastic_decision *d) {
    cdp__elastic_stage next = CDP__ELASTIC_HANDED_IN;
    cdp_status st = CDP_OK;
    if (e->stage == CDP__ELASTIC_HANDED_IN) return CDP_OK;
    if (e->stage == CDP__ELASTIC_STRANGER) {
        st = cdp__elastic_fresh(e, d);
        e->handed_in = st == CDP_OK;
        if (st == CDP_OK) cdp__elastic_warn_of_time(e);
#ifndef CDP_NO_FRAMES
        if (d->epoch) next = CDP__ELASTIC_ASKS;
#endif
    }
    return st == CDP_OK ? cdp__elastic_hand_in_as(e, next) : st;
}

#define CDP__ELASTIC_FEW_MS 500u

/* Whether fewer than min_ranks members of the epoch live: when it has ended, they wait for
   newcomers. */
CDP__PRIVATE cdp_status cdp__elastic_too_few(
    cdp_elastic *e, const cdp__elastic_decision *d, bool *few) {
    bool *ended;
    uint32_t r, live = 0;
    cdp_status st;
    *few = d->size < e->desc.min_ranks;
    if (*few || !d->size) return CDP_OK;
    ended = (bool *)cdp__alloc_zero(e->os, d->size * sizeof *ended);
    if (!ended) return cdp__fail_nomem("a list of members", d->size);
    st = cdp__elastic_have_ended(
        e, e->store, d->members[0].id, sizeof *d->members, ended, sizeof *ended, d->size);
    for (r = 0; r < d->size; ++r)
        live += !ended[r];
    cdp__free(e->os, ended);
    *few = live < e->desc.min_ranks;
    return st;
}

/* One look of a process that asks to be tried beside epoch d->epoch. If that has ended, its members
   may wait for newcomers, and nobody is tried: it is to be taken in at once if too few of them
   live, or if there is no next epoch for so long. */
CDP__PRIVATE cdp_status cdp__elastic_ask_again(
    cdp_elastic *e, const cdp__elastic_decision *d, uint64_t *ended_ns) {
    const uint64_t now = cdp__elastic_now_ns(e);
    char key[CDP__ELASTIC_KEY];
    bool ended = false, few = false;
    cdp_status st = CDP_OK;
    if (e->stage != CDP__ELASTIC_ASKS) return CDP_OK;
#ifndef CDP_NO_FRAMES
    st = cdp__elastic_join_trial(e, d->epoch);
    if (st == CDP_OK && e->stage == CDP__ELASTIC_TRIED)
        return cdp__elastic_hand_in_as(e, CDP__ELASTIC_TRIED);
#endif
    cdp__elastic_key(e, key, "e/%llu/alarm", (unsigned long long)d->epoch);
    if (st == CDP_OK) st = cdp__elastic_there(e, e->store, key, &ended);
    if (!ended) *ended_ns = 0;
    if (ended && !*ended_ns) *ended_ns = now;
    if (st != CDP_OK || !ended) return st;
    st = cdp__elastic_too_few(e, d, &few);
    if (st != CDP_OK || (!few && now - *ended_ns < CDP__ELASTIC_FEW_MS * CDP__MS)) return st;
    return cdp__elastic_hand_in(e);
}

/* Waits until a decision lists this process as a member, or until it was tried: then it goes on at
   the next call. */
CDP__PRIVATE cdp_status cdp__elastic_enter(cdp_elastic *e) {
    const uint64_t deadline = cdp__deadline(e->os, e->desc.join_ms);
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_decision d;
    cdp__elastic_entry n;
    uint64_t ended_ns = 0;
    cdp_status st = CDP_OK;
    memset(&d, 0, sizeof d);
    memset(&n, 0, sizeof n);
    n.since_ns = cdp__elastic_now_ns(e);
    st = cdp__elastic_apply(e, &d);
    while (st == CDP_OK) {
        const uint64_t before = d.epoch;
        st = cdp__elastic_enter_look(e, &d, &n);
        if (st != CDP_OK) break;
        if (e->place.phase == CDP__ELASTIC_JOINED) {
            cdp__elastic_lock(e);
            cdp__elastic_adopt(e, &d);
            cdp__elastic_unlock(e);
            return CDP_OK;
        }
        if (d.epoch != before) ended_ns = 0;
        if (d.epoch) st = cdp__elastic_ask_again(e, &d, &ended_ns);
        if (e->stage == CDP__ELASTIC_TRIED) break;
        if (st == CDP_OK && cdp__elastic_now_ns(e) >= deadline)
            st = cdp__elastic_nobody(e, &d, n.ticket_count);
        cdp__elastic_key(e, key, "e/%llu", (unsigned long long)(d.epoch + 1));
        if (st == CDP_OK)
            st =
                cdp__elastic_await(e, e->store, key, cdp__elastic_pause_ms(e, d.epoch, n.since_ns));
        if (st == CDP_PENDING) st = CDP_OK;
    }
    cdp__free(e->os, d.members);
    return st;
}

/* This process is in an epoch: from now on it looks for the end of that. */
CDP__PRIVATE cdp_status cdp__elastic_attends(cdp_elastic *e) {
    e->looked_ns = cdp__elastic_now_ns(e);
    if (e->no_thread) return CDP_OK;
    e->thread = e->os->threads.start(e->os, cdp__elastic_main, e);
    if (e->thread) return CDP_OK;
    return cdp__fail(
        CDP_ERR_IO, "cannot start the thread of this cdp_elastic; set no_thread of tcp->group");
}

#endif /* CDP_SRC_ELASTIC_ENTRY_H */
