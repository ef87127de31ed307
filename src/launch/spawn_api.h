/* launch/spawn_api.h - one function on n ranks */
#ifndef CDP_SRC_LAUNCH_SPAWN_API_H
#define CDP_SRC_LAUNCH_SPAWN_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"

/* A rank. The group is destroyed after it has returned. */
typedef cdp_status (*cdp_spawn_func)(void *user, cdp_group *world);

typedef struct cdp_spawn_desc {
    /* threads of this process on a hub, in place of processes by fork() */
    bool threads;
    /* of the whole call, in ms (default: no limit). Threads cannot be ended from outside: their
       group is aborted then, and the call returns when they have. */
    uint32_t timeout_ms;
    /* processes: NAME=VALUE for all, then NULL */
    const char *const *env;
} cdp_spawn_desc;

/* Runs func(user, world) on n ranks, connects them, waits for all. `desc` may be NULL. Processes
   are copies of this one: what they write to their memory is lost when they end; call it before
   this process has other threads. When a rank fails, the others are aborted or ended. Errors: the
   first one, with rank and text (processes: REMOTE; threads: the status that func returned);
   INVALID (func, n); TIMEOUT; UNSUPPORTED (no fork(), or no threads, on this system); IO, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_spawn(
    cdp_spawn_func func, void *user, uint32_t n, const cdp_spawn_desc *desc);

#endif /* CDP_SRC_LAUNCH_SPAWN_API_H */
