/* group/monitored_barrier.h - a barrier that names who is missing

   Knows: sends, receives. Promises: if ranks are missing, one error names all of them. */
#ifndef CDP_SRC_GROUP_MONITORED_BARRIER_H
#define CDP_SRC_GROUP_MONITORED_BARRIER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "messages_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "state.h"
#include "running.h"
#include "deferred.h"
#include "progress.h"
#include "group_calls.h"
#include "work_calls.h"
#include "message_calls.h"

#ifndef CDP_NO_MESSAGES

/* The other ranks wait this much longer than rank 0, or half the timeout if that is less. */
#define CDP__BARRIER_LATER_MS 1000u

/* The deadline of a call. */
typedef struct cdp__barrier_time {
    uint32_t timeout_ms;
    /* when rank 0 names who is missing; when the messages of all ranks end: a little later, so that
       the error of rank 0 comes first */
    uint64_t until, last;
} cdp__barrier_time;

CDP__PRIVATE cdp_status cdp__barrier_message(cdp_group *g, uint8_t *byte, bool receive,
    uint32_t peer, const cdp__barrier_time *limit, cdp_work *out) {
    cdp_transfer t = cdp__transfer_of(receive, byte, 1, CDP_DTYPE_U8, peer, CDP__TAG_BARRIER);
    cdp_status st;
    t.timeout_ms = limit->timeout_ms;
    cdp__enter(g);
    st = cdp__group_report(cdp__group_top(g));
    if (st == CDP_OK) st = cdp__message_post(g, &t, NULL, NULL, out);
    if (st == CDP_OK) {
        g->messages.posts[out->seq & ((1u << CDP__POST_INDEX) - 1)]->deadline_ns = limit->last;
        cdp__first_moves(g);
    }
    cdp__leave(g);
    return st;
}

/* Rank 0's deadline has passed: breaks the group with an error that names the missing ranks. */
CDP__PRIVATE cdp_status cdp__barrier_missing(
    cdp_group *g, const cdp_work *works, uint32_t timeout_ms) {
    char names[256];
    cdp__text t = cdp__text_of(names, sizeof names);
    const uint32_t none = UINT32_MAX - 1;
    /* consecutive ranks are printed as "3 to 9" */
    uint32_t p, count = 0, first = 0, last = none, run = 0;
    cdp__enter(g);
    for (p = 1; p <= g->desc.world_size; ++p) {
        const uint32_t rank =
            p < g->desc.world_size && cdp__work_status(works[p].group, works[p].seq) == CDP_PENDING
            ? cdp__world_rank(g, p)
            : none;
        if (rank != last + 1) {
            if (run > 1) cdp__text_add(&t, run > 2 ? " to %u" : ", %u", last);
            if (rank != none) cdp__text_add(&t, count ? ", %u" : "%u", rank);
            run = 0;
        }
        if (rank != none && !count++) first = rank;
        last = rank;
        ++run;
    }
    if (count) {
        cdp__fail_peer(CDP_ERR_TIMEOUT, first, 0,
            "monitored barrier: %u of %u ranks have not come within %u ms: %s", count,
            g->desc.world_size, timeout_ms, names);
        cdp__group_break(g, cdp_last_error());
    }
    cdp__leave(g);
    return count ? cdp_group_status(g) : CDP_OK;
}

/* Memory for a monitored barrier: a work and a byte for each rank. It is allocated once per group.
   NULL: out of memory. */
CDP__PRIVATE cdp_work *cdp__barrier_take(cdp_group *g) {
    const uint64_t bytes = g->desc.world_size * (sizeof(cdp_work) + 1);
    void *memory;
    cdp__enter(g);
    memory = g->barrier;
    g->barrier = NULL; /* a concurrent call must not use the same memory */
    cdp__leave(g);
    if (!memory) memory = cdp__alloc(g->os, bytes);
    if (memory) memset(memory, 0, (size_t)bytes);
    if (!memory) (void)cdp__fail_nomem("a monitored barrier", bytes);
    return (cdp_work *)memory;
}

CDP__PRIVATE void cdp__barrier_give(cdp_group *g, void *memory) {
    cdp__enter(g);
    if (!g->barrier) {
        g->barrier = memory;
        memory = NULL;
    }
    cdp__leave(g);
    cdp__free(g->os, memory);
}

/* Rank 0's part: receives from every rank, then answers all of them. */
CDP__PRIVATE cdp_status cdp__barrier_root(
    cdp_group *g, cdp_work *works, uint8_t *bytes, const cdp__barrier_time *limit) {
    const uint32_t n = g->desc.world_size;
    cdp_status st = CDP_OK;
    uint32_t p;
    for (p = 1; p < n && st == CDP_OK; ++p)
        st = cdp__barrier_message(g, &bytes[p], true, p, limit, &works[p]);
    for (p = 1; p < n && st == CDP_OK; ++p)
        st = cdp__work_wait_until(works[p], limit->until);
    if (st == CDP_PENDING) st = cdp__barrier_missing(g, works, limit->timeout_ms);
    for (p = 1; p < n && st == CDP_OK; ++p)
        st = cdp__barrier_message(g, &bytes[p], false, p, limit, &works[p]);
    for (p = 1; p < n && st == CDP_OK; ++p)
        st = cdp_work_wait(works[p]);
    return st;
}

CDP_API cdp_status cdp_monitored_barrier(cdp_group *g, uint32_t timeout_ms) {
    cdp__barrier_time limit;
    uint8_t *bytes;
    cdp_work *works;
    cdp_status st = cdp__alive(g, "cdp_monitored_barrier");
    if (st == CDP_OK) st = cdp__must_not_wait();
    if (st != CDP_OK) return st;
    limit.timeout_ms = cdp__def(timeout_ms, g->desc.timeout_ms);
    limit.until = cdp__deadline(g->os, limit.timeout_ms);
    limit.last = limit.until == CDP__NEVER
        ? CDP__NEVER
        : limit.until + cdp__min(limit.timeout_ms / 2, CDP__BARRIER_LATER_MS) * CDP__MS;
    works = cdp__barrier_take(g);
    if (!works) return CDP_ERR_NOMEM;
    bytes = (uint8_t *)(works + g->desc.world_size);
    if (g->desc.rank == 0) {
        st = cdp__barrier_root(g, works, bytes, &limit);
    } else {
        st = cdp__barrier_message(g, bytes, false, 0, &limit, &works[1]);
        if (st == CDP_OK) st = cdp__barrier_message(g, bytes, true, 0, &limit, &works[0]);
        if (st == CDP_OK) st = cdp_work_wait(works[0]);
    }
    cdp__barrier_give(g, works);
    return st;
}

#endif /* CDP_NO_MESSAGES */

#endif /* CDP_SRC_GROUP_MONITORED_BARRIER_H */
