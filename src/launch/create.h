/* launch/create.h - from a desc to workers that run

   Knows: defaults and limits of a desc. Promises: an error names the member, its value and the
   limit; nothing is started then. */
#ifndef CDP_SRC_LAUNCH_CREATE_H
#define CDP_SRC_LAUNCH_CREATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "launch_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../store/auth.h"
#include "../os/words.h"
#include "../os/cores.h"
#include "../os/cores_here.h"
#include "../os/processes.h"
#include "facts.h"
#include "console.h"
#include "stream.h"
#include "state.h"
#include "environment.h"
#include "health.h"
#include "attempt.h"
#include "agent.h"

#include <stdlib.h>
#include <string.h>

CDP__PRIVATE cdp_status cdp__agent_check_env(const char *member, const char *const *list) {
    for (; list && *list; ++list)
        if (**list == '=' || !strchr(*list, '='))
            return cdp__fail(CDP_ERR_INVALID, "cdp_agent_start: %s has '%s'; it must be NAME=VALUE",
                member, *list);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__agent_check_text(const char *member, const char *text, size_t limit) {
    if (text && strlen(text) > limit)
        return cdp__fail(CDP_ERR_INVALID, "cdp_agent_start: %s has %zu characters, more than %zu",
            member, strlen(text), limit);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__agent_check_commands(const cdp_launch_desc *d) {
    const bool program = d->command || d->commands;
    uint32_t i;
    if (program == (d->func != NULL))
        return cdp__fail(CDP_ERR_INVALID, "cdp_agent_start: %s",
            program ? "desc.command and desc.func exclude each other"
                    : "desc.command or desc.func is needed: what should the workers do?");
    for (i = 0; program && i < d->workers; ++i) {
        const char *const *const words = d->commands ? d->commands[i] : d->command;
        if (!words || !words[0])
            return cdp__fail(
                CDP_ERR_INVALID, "cdp_agent_start: the command of worker %u is empty", i);
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__agent_check(const cdp_launch_desc *d) {
    const uint32_t both = CDP_AGENT_STDOUT | CDP_AGENT_STDERR;
    cdp_status st = CDP_OK;
    uint32_t i;
    if (d->workers == 0 || d->workers > CDP__LAUNCH_WORKERS)
        return cdp__fail(CDP_ERR_INVALID, "cdp_agent_start: desc.workers is %u; 1 to %u can run",
            d->workers, CDP__LAUNCH_WORKERS);
    if (d->nodes > 1 && d->node_rank >= d->nodes)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_agent_start: desc.node_rank is %u; it must be below desc.nodes, %u", d->node_rank,
            d->nodes);
    if (d->nodes <= 1 && d->node_rank)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_agent_start: desc.node_rank %u needs desc.nodes", d->node_rank);
    if (d->nodes > 65535)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_agent_start: desc.nodes is %u, more than 65535", d->nodes);
    if (d->nodes > 1 && (!d->master_addr || !d->master_port))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_agent_start: %u machines need desc.master_addr and desc.master_port, the same on "
            "all",
            d->nodes);
    if (((d->redirects | d->tee) & ~both) != 0)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_agent_start: desc.redirects is %u and desc.tee is %u; they are sums of "
            "CDP_AGENT_STDOUT and CDP_AGENT_STDERR",
            d->redirects, d->tee);
    if ((d->redirects | d->tee) && !d->log_dir)
        return cdp__fail(CDP_ERR_INVALID, "cdp_agent_start: desc.%s needs desc.log_dir",
            d->redirects ? "redirects" : "tee");
    if ((uint32_t)d->bind > CDP_LAUNCH_BIND_NUMA)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_agent_start: desc.bind is %u, which no CDP_LAUNCH_BIND_ has", (uint32_t)d->bind);
    st = cdp__agent_check_commands(d);
    if (st == CDP_OK) st = cdp__agent_check_env("desc.env", d->env);
    for (i = 0; st == CDP_OK && d->env_of && i < d->workers; ++i)
        st = cdp__agent_check_env("desc.env_of", d->env_of[i]);
    if (st == CDP_OK) st = cdp__agent_check_text("desc.role", d->role, 255);
    for (i = 0; st == CDP_OK && d->roles && i < d->workers; ++i)
        st = cdp__agent_check_text("desc.roles", d->roles[i], 255);
    if (st == CDP_OK) st = cdp__agent_check_text("desc.run_id", d->run_id, 255);
    if (st == CDP_OK) st = cdp__agent_check_text("desc.master_addr", d->master_addr, 255);
    if (st == CDP_OK) st = cdp__agent_check_text("desc.job_key", d->job_key, 256);
    if (st == CDP_OK) st = cdp__agent_check_text("desc.log_dir", d->log_dir, 900);
    if (st == CDP_OK) st = cdp__agent_check_text("desc.health_file", d->health_file, 900);
    return st;
}

/* The secret by which ranks know each other: the caller's, this process's, or a new one. */
CDP__PRIVATE cdp_status cdp__agent_key(cdp_agent *a) {
    const char *given = a->desc.job_key ? a->desc.job_key : getenv("CDP_JOB_KEY");
    cdp__text t = cdp__text_of(a->key, sizeof a->key);
    if (a->desc.trust_network) return CDP_OK;
    if (given && *given) {
        cdp__text_bytes(&t, given, strlen(given));
        (void)cdp__text_end(&t);
        return cdp__agent_check_text("the variable CDP_JOB_KEY", given, 256);
    }
    if (a->desc.nodes > 1)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_agent_start: several machines need one secret: desc.job_key or the variable "
            "CDP_JOB_KEY, or desc.trust_network");
    if (!cdp__launch_key(a->os, a->key))
        return cdp__fail(CDP_ERR_IO, "cdp_agent_start: the system has no random bytes");
    return CDP_OK;
}

CDP__PRIVATE void cdp__agent_defaults(cdp_agent *a) {
    cdp_launch_desc *const d = &a->desc;
    d->nodes = cdp__def(d->nodes, 1);
    d->role = cdp__def(d->role, "default");
    d->run_id = cdp__def(d->run_id, "none");
    d->poll_ms = cdp__def(d->poll_ms, 100);
    d->grace_ms = cdp__def(d->grace_ms, 5000);
    d->kill_ms = cdp__def(d->kill_ms, 5000);
    d->master_addr = cdp__def(d->master_addr, "127.0.0.1");
    a->state = CDP_AGENT_INIT;
    a->phase = CDP__AGENT_OVER;
    a->first = -1;
    a->begun_ns = cdp__agent_now(a);
    a->timeout_ns = CDP__NEVER;
    if (d->timeout_ms && d->timeout_ms != CDP_NO_TIMEOUT)
        a->timeout_ns = a->begun_ns + d->timeout_ms * CDP__MS;
    cdp__process_host(a->host, sizeof a->host);
}

/* Which cores there are, what a worker has of them, and so how many threads. */
CDP__PRIVATE cdp_status cdp__agent_cores(cdp_agent *a) {
    cdp_launch_desc *const d = &a->desc;
    const bool told = d->cores_per_worker != 0;
    a->map = (cdp__cores_map *)cdp__alloc(a->os, sizeof *a->map);
    if (!a->map) return cdp__fail_nomem("cdp_agent_start", sizeof *a->map);
    if (!cdp__cores_map_here(a->map) && d->bind)
        return cdp__fail(
            CDP_ERR_UNSUPPORTED, "cdp_agent_start: desc.bind: this system binds no process");
    if (!told) d->cores_per_worker = cdp__cores_each(a->map, d->workers);
    if (d->bind == CDP_LAUNCH_BIND_CORE
        && (uint64_t)d->cores_per_worker * d->workers > a->map->cores)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_agent_start: desc.bind: %u workers with %u cores each need more than the %u that "
            "this process may use",
            d->workers, d->cores_per_worker, a->map->cores);
    if (told || d->workers > 1)
        cdp__format(a->threads, sizeof a->threads, "%u", d->cores_per_worker);
    return CDP_OK;
}

/* Where files of workers lie. The name of those among temporary files is new. */
CDP__PRIVATE cdp_status cdp__agent_place(cdp_agent *a) {
    unsigned char r[8] = {0};
    if (a->desc.log_dir) {
        cdp__format(a->folder, sizeof a->folder, "%s", a->desc.log_dir);
        return CDP_OK;
    }
    if (a->os->random(a->os->user, r, sizeof r) != CDP_OK)
        return cdp__fail(CDP_ERR_IO, "cdp_agent_start: the system has no random bytes");
    if (cdp__format(a->folder, sizeof a->folder, "%s/cdp_agent_%x%x%x%x%x%x%x%x",
            cdp__os_temporary(), r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7])
        > 900)
        return cdp__fail(CDP_ERR_INVALID, "cdp_agent_start: the path of TMPDIR is too long");
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__agent_open(cdp_agent *a) {
    const uint64_t n = a->desc.workers;
    uint32_t i;
    int32_t err;
    cdp_status st = cdp__agent_key(a);
    if (st == CDP_OK) st = cdp__agent_cores(a);
    if (st == CDP_OK) st = cdp__agent_place(a);
    if (st != CDP_OK) return st;
    a->workers = (cdp__agent_worker *)cdp__alloc_zero(a->os, n * sizeof *a->workers);
    a->ends = (cdp_worker_end *)cdp__alloc_zero(a->os, n * sizeof *a->ends);
    a->watched = (int32_t *)cdp__alloc_zero(a->os, 2 * n * sizeof *a->watched);
    if (!a->workers || !a->ends || !a->watched)
        return cdp__fail_nomem("cdp_agent_start", n * sizeof *a->workers);
    for (i = 0; i < 2 * n; ++i) {
        cdp__launch_stream **const s = &a->workers[i / 2].out[i % 2];
        *s = cdp__launch_stream_new(a->os, a->console.to[i % 2]);
        if (!*s) return cdp__fail_nomem("cdp_agent_start", sizeof **s);
    }
    err = cdp__agent_health(a);
    if (err) return cdp__agent_io("cannot write desc.health_file ", a->desc.health_file, err);
    return cdp__agent_attempt(a);
}

CDP_API cdp_status cdp_agent_start(const cdp_launch_desc *d, cdp_agent **out) {
    const cdp_os *const os = cdp_os_default();
    cdp_agent *a;
    cdp_status st;
    if (!out) return cdp__missing("cdp_agent_start", "out");
    *out = NULL;
    if (!d) return cdp__missing("cdp_agent_start", "desc");
    st = cdp__agent_check(d);
    if (st != CDP_OK) return st;
    if (!cdp__process_variables())
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_agent_start: this system has no fork(); start the ranks with cdprun, or as "
            "threads with cdp_spawn()");
    a = (cdp_agent *)cdp__alloc_zero(os, sizeof *a);
    if (!a) return cdp__fail_nomem("cdp_agent_start", sizeof *a);
    cdp__ended_remove(a);
    a->forks = cdp__forks_watch();
    a->os = os;
    a->port_held = -1;
    cdp__launch_console_open(&a->console, os);
    a->desc = *d;
    cdp__agent_defaults(a);
    st = cdp__agent_open(a);
    if (st == CDP_OK)
        *out = a;
    else
        cdp_agent_destroy(a);
    return st;
}

#endif /* CDP_SRC_LAUNCH_CREATE_H */
