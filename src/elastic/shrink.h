/* elastic/shrink.h - who is left of a group

   Knows: the ranks of a group; each stands for a member whose id is its rank. Promises: one
   decision for each group; nobody waits longer than timeout_ms of the group. */
#ifndef CDP_SRC_ELASTIC_SHRINK_H
#define CDP_SRC_ELASTIC_SHRINK_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../failure/chains.h"
#include "../group/state.h"
#include "elastic_api.h"
#include "cxx_api.h"
#include "epoch.h"
#include "turn.h"
#include "store.h"
#include "turns.h"

/* Longer than all ranks of a group need to notice that it has failed. */
#define CDP__SHRINK_SETTLE_MS 500u
typedef char cdp__assert_shrink_settle
    [CDP__SHRINK_SETTLE_MS >= CDP__FAILURE_SETTLE_MS + CDP__FAILURE_REPORT_MS + 100 ? 1 : -1];

CDP__PRIVATE cdp_status cdp__shrink_check(
    cdp_group *group, const cdp_shrink_desc *d, cdp_group **out) {
    if (!out) return cdp__missing("cdp_group_shrink", "out");
    *out = NULL;
    if (!group) return cdp__missing("cdp_group_shrink", "group");
    if (!d) return cdp__missing("cdp_group_shrink", "desc");
    if (!d->store)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_group_shrink: the desc has no store, and without one the ranks cannot decide who "
            "is "
            "left; let a process that outlives the ranks serve one");
    if (!d->store->start || !d->store->os)
        return cdp__fail(CDP_ERR_STATE, "cdp_shrink_desc.store was destroyed");
    if (d->job && (!d->job[0] || strlen(d->job) > 40))
        return cdp__fail(CDP_ERR_INVALID, "cdp_shrink_desc.job has 1 to 40 characters");
    if (d->min_ranks > cdp_size(group))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_shrink_desc.min_ranks is %u, and the group has only %u ranks", d->min_ranks,
            cdp_size(group));
    return CDP_OK;
}

/* The group as a decision, and this rank as a member that arrives. Its record says which rank it
   has lost: as number of samples, from 1. */
CDP__PRIVATE cdp_status cdp__shrink_arrive(
    cdp_elastic *e, cdp_group *group, const cdp_shrink_desc *desc, uint32_t lost) {
    char key[CDP__ELASTIC_KEY];
    uint8_t id[CDP__ELASTIC_ID_BYTES] = {0};
    cdp__elastic_arrival a;
    uint32_t r;
    e->d.epoch = 1;
    for (r = 0; r < cdp_size(group); ++r) {
        cdp__put_u32(id, r);
        cdp__elastic_add(&e->d, id, r, false);
    }
    e->place.rank = cdp_rank(group);
    memset(&a, 0, sizeof a);
    memcpy(a.id, e->d.members[e->place.rank].id, sizeof a.id);
    a.rank = e->place.rank;
    a.step = desc->step;
    a.samples = lost < cdp_size(group) ? lost + 1 : 0;
    a.has_state = true;
    cdp__elastic_key(e, key, "e/1/in");
    return cdp__elastic_append(e, e->store, key, &a);
}

/* One look: proposes if it is time. *wait_ms: when to look again. */
CDP__PRIVATE cdp_status cdp__shrink_look(cdp_elastic *e, bool *dead, cdp__elastic_settle *settle,
    uint64_t *wait_ms, uint32_t *there, cdp__elastic_decision *won) {
    char key[CDP__ELASTIC_KEY];
    const uint64_t now = cdp__elastic_now_ns(e);
    cdp__elastic_arrival *arrivals;
    cdp__elastic_verdict verdict = CDP__ELASTIC_DECIDED;
    cdp__elastic_turn t;
    uint32_t i;
    cdp_status st;
    memset(&t, 0, sizeof t);
    t.d = &e->d;
    t.dead = dead;
    t.rank = e->place.rank;
    t.since_ms = cdp__elastic_waited_ms(settle, now, e->desc.settle_ms);
    t.settle_ms = e->desc.settle_ms;
    cdp__elastic_key(e, key, "e/1/in");
    st = cdp__elastic_read_records(e, e->store, key, &arrivals, &t.count);
    t.arrivals = arrivals;
    *there = 0;
    for (i = 0; i < e->d.size; ++i) /* one that has called twice is one */
        *there += cdp__elastic_arrival_of(&e->d, i, arrivals, t.count) != NULL;
    for (i = 0; i < t.count; ++i)
        if (arrivals[i].samples && arrivals[i].samples <= e->d.size)
            dead[arrivals[i].samples - 1] = true;
    for (i = 0; i < t.count; ++i) /* a member that calls is alive, even if it was reported dead */
        if (arrivals[i].rank < e->d.size) dead[arrivals[i].rank] = false;
    *wait_ms = 0;
    memset(won, 0, sizeof *won);
    if (st == CDP_OK && cdp__elastic_proposes(&t, wait_ms)) {
        st = cdp__elastic_try_turn(e, e->store, t.d, arrivals, t.count, &verdict, won);
        if (st == CDP_OK && verdict != CDP__ELASTIC_DECIDED) *wait_ms = CDP__ELASTIC_AGAIN_MS;
    }
    settle->due_ns = now + *wait_ms * CDP__MS;
    cdp__free(e->os, arrivals);
    return st;
}

/* Until there is a decision; its members are allocated. Without a progress thread this one tells
   the others that the group has failed: some of them may be inside its operations. */
CDP__PRIVATE cdp_status cdp__shrink_decide(
    cdp_elastic *e, cdp_group *group, bool *dead, cdp__elastic_decision *d) {
    const uint32_t timeout_ms = cdp_group_desc_of(group)->timeout_ms;
    const uint64_t deadline = cdp__deadline(e->os, timeout_ms);
    cdp__elastic_settle settle = {0, 0, 0};
    char key[CDP__ELASTIC_KEY];
    uint64_t wait_ms, now;
    uint32_t there = 0;
    bool late = false;
    cdp_status st;
    settle.since_ns = settle.due_ns = cdp__elastic_now_ns(e);
    cdp__elastic_key(e, key, "e/2");
    for (;;) {
        st = cdp__elastic_read_decision(e, e->store, 2, d);
        if (st != CDP_OK || d->members) return st;
        if (late) /* and the last poll has brought no decision, either */
            return cdp__fail(CDP_ERR_TIMEOUT,
                "cdp_group_shrink: %u of %u ranks came within timeout_ms of the group, %u ms, and "
                "min_ranks is %u",
                there, e->d.size, timeout_ms, e->desc.min_ranks);
        st = cdp__shrink_look(e, dead, &settle, &wait_ms, &there, d);
        if (st != CDP_OK || d->members) return st;
        if (st == CDP_OK && !group->w->thread) {
            (void)cdp_poll(group, 0);
            wait_ms = cdp__min(wait_ms, CDP__ELASTIC_LOOK_MS);
        }
        now = cdp__elastic_now_ns(e);
        late = now >= deadline;
        if (st == CDP_OK && wait_ms && !late)
            st = cdp__elastic_await(
                e, e->store, key, cdp__min(wait_ms, (deadline - now) / CDP__MS + 1));
        if (st < 0) return st;
    }
}

/* The group that was decided. */
CDP__PRIVATE cdp_status cdp__shrink_make(cdp_elastic *e, cdp_group *group,
    const cdp__elastic_decision *d, uint64_t *steps, cdp_group **out) {
    char key[CDP__ELASTIC_KEY];
    uint32_t *ranks = (uint32_t *)cdp__alloc(e->os, d->size * sizeof *ranks), r, n;
    cdp__elastic_arrival *arrivals = NULL;
    const cdp__elastic_arrival *a;
    bool in = false;
    cdp_status st = CDP_OK;
    if (!ranks) return cdp__fail_nomem("a list of ranks", d->size * sizeof *ranks);
    for (r = 0; r < d->size; ++r) {
        ranks[r] = d->members[r].old_rank;
        in = in || ranks[r] == e->place.rank;
    }
    if (!in)
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_group_shrink: the other ranks have decided without this one, which did not come "
            "within settle_ms, %u ms",
            e->desc.settle_ms);
    cdp__elastic_key(e, key, "e/1/in");
    if (st == CDP_OK && steps) st = cdp__elastic_read_records(e, e->store, key, &arrivals, &n);
    for (r = 0; st == CDP_OK && steps && r < d->size; ++r) {
        a = cdp__elastic_arrival_of(&e->d, ranks[r], arrivals, n);
        steps[r] = a ? a->step : 0;
    }
    if (st == CDP_OK) st = cdp_group_new(group, ranks, d->size, out);
    cdp__free(e->os, arrivals);
    cdp__free(e->os, ranks);
    return st;
}

CDP_API cdp_status cdp_group_shrink(
    cdp_group *group, const cdp_shrink_desc *desc, uint64_t *steps, cdp_group **out) {
    const uint32_t size = cdp_size(group);
    cdp__elastic_decision d;
    cdp_elastic *e;
    bool *dead;
    uint32_t lost = UINT32_MAX;
    cdp_status st = cdp__shrink_check(group, desc, out);
    if (st == CDP_OK) st = cdp__alive(group, "cdp_group_shrink");
    if (st != CDP_OK) return st;
    if (cdp_group_status(group) == CDP_ERR_PEER_LOST && desc->trust_links)
        lost = cdp_rank_of_world(group, (uint32_t)cdp_last_error()->peer);
    cdp_group_abort(group, "cdp_group_shrink() was called");
    e = (cdp_elastic *)cdp__alloc_zero(group->os, sizeof *e);
    if (!e) return cdp__fail_nomem("the ranks that are left", sizeof *e);
    memset(&d, 0, sizeof d);
    e->os = group->os;
    e->store = desc->store;
    e->desc.settle_ms = cdp__def(desc->settle_ms, CDP__SHRINK_SETTLE_MS);
    e->desc.min_ranks = cdp__def(desc->min_ranks, 1);
    e->desc.max_ranks = size;
    e->store_ms = (uint32_t)cdp__min(cdp_group_desc_of(group)->timeout_ms, CDP__ELASTIC_STORE_MS);
    cdp__format(e->job, sizeof e->job, "%s/%llx", desc->job ? desc->job : "shrink",
        (unsigned long long)group->channel);
    e->d.members = (cdp__elastic_member *)cdp__alloc(e->os, size * sizeof *e->d.members);
    dead = (bool *)cdp__alloc_zero(e->os, size * sizeof *dead);
    if (!e->d.members || !dead) st = cdp__fail_nomem("a list of members", size);
    if (st == CDP_OK) st = cdp__shrink_arrive(e, group, desc, lost);
    if (st == CDP_OK) st = cdp__shrink_decide(e, group, dead, &d);
    if (st == CDP_OK) st = cdp__shrink_make(e, group, &d, steps, out);
    cdp__free(e->os, d.members);
    cdp__free(e->os, dead);
    cdp__free(e->os, e->d.members);
    cdp__free(e->os, e);
    return st;
}

#endif /* CDP_SRC_ELASTIC_SHRINK_H */
