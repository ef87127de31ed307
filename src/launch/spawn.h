/* launch/spawn.h - one function on n ranks

   Knows: agents, hubs, threads. Promises: the first failure is the result, with its text; no rank
   waits for one that has failed. */
#ifndef CDP_SRC_LAUNCH_SPAWN_H
#define CDP_SRC_LAUNCH_SPAWN_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "../tcp/create_api.h"
#include "launch_api.h"
#include "spawn_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "facts.h"
#include "state.h"
#include "agent.h"
#include "create.h"

#include <string.h>

/* What all ranks of one call share. */
typedef struct cdp__spawn {
    cdp_spawn_func func;
    void *user;
    const cdp_os *os;
    void *mutex, *cond;
    uint32_t running;
    cdp_error error; /* the first one; status CDP_OK: none */
    uint32_t rank;   /* whose it is */
} cdp__spawn;

typedef struct cdp__spawn_rank {
    cdp__spawn *all;
    cdp_group *world;
    void *thread;
    uint32_t rank;
} cdp__spawn_rank;

/* In a process of its own. */
CDP__PRIVATE int cdp__spawn_process(void *user) {
#ifdef CDP_NO_ENV
    (void)user;
    return 1;
#else
    const cdp__spawn *const s = (const cdp__spawn *)user;
    cdp_group *world = NULL;
    cdp_status st = cdp_init_from_env(NULL, &world);
    if (st == CDP_OK) st = s->func(s->user, world);
    if (st != CDP_OK) { /* before the group ends: others fail by that */
        const bool told = cdp_last_error()->status == st;
        (void)cdp_error_record_from_env(told ? NULL : cdp_status_name(st));
    }
    cdp_group_destroy(world);
    return st == CDP_OK ? 0 : 1;
#endif
}

CDP__PRIVATE cdp_status cdp__spawn_processes(cdp__spawn *s, uint32_t n, const cdp_spawn_desc *d) {
    cdp_launch_desc desc;
    cdp_agent *a = NULL;
    cdp_status st;
    memset(&desc, 0, sizeof desc);
    desc.func = cdp__spawn_process;
    desc.user = s;
    desc.workers = n;
    desc.no_prefix = true;
    desc.grace_ms = 1000;
    if (d) desc.env = d->env;
    if (d) desc.timeout_ms = d->timeout_ms;
    st = cdp_agent_start(&desc, &a);
    if (st == CDP_OK) st = cdp_agent_wait(a, 0);
    if (a && a->late && st == CDP_ERR_ABORTED)
        st = cdp__fail(CDP_ERR_TIMEOUT,
            "cdp_spawn: %u ranks have not ended within %u ms, and were ended", n, desc.timeout_ms);
    cdp_agent_destroy(a);
    return st;
}

#ifndef CDP_NO_HUB
/* In a thread of its own. */
CDP__PRIVATE void cdp__spawn_thread(void *arg) {
    cdp__spawn_rank *const r = (cdp__spawn_rank *)arg;
    cdp__spawn *const s = r->all;
    const cdp_os *const os = s->os;
    const cdp_status st = s->func(s->user, r->world);
    cdp_error e = *cdp_last_error();
    if (st != CDP_OK && e.status != st) {
        memset(&e, 0, sizeof e);
        e.peer = e.origin = -1;
        e.file = "";
        e.status = st;
        cdp__format(e.text, sizeof e.text, "%s", cdp_status_text(st));
    }
    os->threads.mutex_lock(os->user, s->mutex);
    if (st != CDP_OK && s->error.status == CDP_OK) {
        s->error = e;
        s->rank = r->rank;
    }
    os->threads.mutex_unlock(os->user, s->mutex);
    if (st != CDP_OK) cdp_group_abort(r->world, e.text);
    os->threads.mutex_lock(os->user, s->mutex);
    --s->running;
    os->threads.cond_broadcast(os->user, s->cond);
    os->threads.mutex_unlock(os->user, s->mutex);
}

/* Waits for all threads; after the time the groups are aborted. True: in time. */
CDP__PRIVATE bool cdp__spawn_await(
    cdp__spawn *s, cdp__spawn_rank *ranks, uint32_t n, uint64_t until) {
    const cdp_os *const os = s->os;
    bool in_time = true;
    uint32_t i;
    os->threads.mutex_lock(os->user, s->mutex);
    while (s->running && os->now_ns(os->user) < until)
        os->threads.cond_wait(os->user, s->cond, s->mutex, until);
    in_time = s->running == 0;
    os->threads.mutex_unlock(os->user, s->mutex);
    for (i = 0; !in_time && i < n; ++i)
        cdp_group_abort(ranks[i].world, "cdp_spawn: timeout_ms is over");
    for (i = 0; i < n; ++i)
        if (ranks[i].thread) os->threads.join(os, ranks[i].thread);
    return in_time;
}

/* The groups, all made here, so that no thread waits for one that cannot start. */
CDP__PRIVATE cdp_status cdp__spawn_worlds(
    cdp__spawn *s, cdp_hub *hub, cdp__spawn_rank *ranks, uint32_t n) {
    cdp_group_desc gd;
    cdp_status st = CDP_OK;
    uint32_t i;
    memset(&gd, 0, sizeof gd);
    gd.hub = hub;
    gd.world_size = n;
    for (i = 0; st == CDP_OK && i < n; ++i) {
        ranks[i].all = s;
        ranks[i].rank = gd.rank = i;
        st = cdp_group_create(&gd, &ranks[i].world);
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__spawn_run(
    cdp__spawn *s, cdp__spawn_rank *ranks, uint32_t n, uint32_t timeout_ms) {
    const cdp_os *const os = s->os;
    const uint64_t until = cdp__def(timeout_ms, CDP_NO_TIMEOUT) == CDP_NO_TIMEOUT
        ? CDP__NEVER
        : os->now_ns(os->user) + timeout_ms * CDP__MS;
    uint32_t i, started = 0;
    bool in_time;
    s->running = n;
    for (i = 0; i < n; ++i) {
        ranks[i].thread = os->threads.start(os, cdp__spawn_thread, &ranks[i]);
        if (!ranks[i].thread) break;
        ++started;
    }
    if (started < n) {
        os->threads.mutex_lock(os->user, s->mutex);
        s->running -= n - started;
        os->threads.mutex_unlock(os->user, s->mutex);
        for (i = 0; i < n; ++i)
            cdp_group_abort(ranks[i].world, "cdp_spawn: a thread could not start");
    }
    in_time = cdp__spawn_await(s, ranks, n, until);
    if (s->error.status == CDP_OK && started == n) return CDP_OK; /* maybe late */
    if (!in_time)
        return cdp__fail(CDP_ERR_TIMEOUT,
            "cdp_spawn: the ranks have not ended within %u ms; rank %u failed first: %s",
            timeout_ms, s->rank, s->error.text);
    if (started < n)
        return cdp__fail(CDP_ERR_NOMEM, "cdp_spawn: only %u of %u threads could start", started, n);
    return cdp__fail(
        s->error.status, "cdp_spawn: rank %u failed first: %s", s->rank, s->error.text);
}

CDP__PRIVATE cdp_status cdp__spawn_threads(cdp__spawn *s, uint32_t n, const cdp_spawn_desc *d) {
    const cdp_os *const os = s->os;
    const uint64_t bytes = n * sizeof(cdp__spawn_rank);
    cdp_hub_desc hd;
    cdp_hub *hub = NULL;
    cdp__spawn_rank *ranks;
    cdp_status st;
    uint32_t i;
    if (!os->threads.start)
        return cdp__fail(CDP_ERR_UNSUPPORTED, "cdp_spawn: this build has no threads");
    memset(&hd, 0, sizeof hd);
    hd.world_size = n;
    s->mutex = os->threads.mutex_create(os);
    s->cond = os->threads.cond_create(os);
    ranks = (cdp__spawn_rank *)cdp__alloc_zero(os, bytes);
    st = s->mutex && s->cond && ranks ? cdp_hub_create(&hd, &hub)
                                      : cdp__fail_nomem("cdp_spawn", bytes);
    if (st == CDP_OK) st = cdp__spawn_worlds(s, hub, ranks, n);
    if (st == CDP_OK) st = cdp__spawn_run(s, ranks, n, d->timeout_ms);
    for (i = 0; ranks && i < n; ++i)
        cdp_group_destroy(ranks[i].world);
    cdp_hub_destroy(hub);
    cdp__free(os, ranks);
    if (s->cond) os->threads.cond_destroy(os, s->cond);
    if (s->mutex) os->threads.mutex_destroy(os, s->mutex);
    return st;
}
#endif

CDP_API cdp_status cdp_spawn(cdp_spawn_func func, void *user, uint32_t n, const cdp_spawn_desc *d) {
    cdp__spawn s;
    if (!func) return cdp__missing("cdp_spawn", "func");
    if (n == 0 || n > CDP__LAUNCH_WORKERS)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_spawn: n is %u; 1 to %u ranks can run", n, CDP__LAUNCH_WORKERS);
    memset(&s, 0, sizeof s);
    s.func = func;
    s.user = user;
    s.os = cdp_os_default();
    if (d && d->threads)
#ifdef CDP_NO_HUB
        return cdp__fail(CDP_ERR_UNSUPPORTED, "cdp_spawn: threads need what CDP_NO_HUB leaves out");
#else
        return cdp__spawn_threads(&s, n, d);
#endif
    return cdp__spawn_processes(&s, n, d);
}

#endif /* CDP_SRC_LAUNCH_SPAWN_H */
