/* launch/attempt.h - all workers once

   Knows: how workers start. Promises: all of them run, or none is left and a sentence says why. */
#ifndef CDP_SRC_LAUNCH_ATTEMPT_H
#define CDP_SRC_LAUNCH_ATTEMPT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "launch_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/words.h"
#include "../os/cores.h"
#include "../os/processes.h"
#include "../os/free_port.h"
#include "facts.h"
#include "stream.h"
#include "state.h"
#include "environment.h"
#include "output.h"
#include "ends.h"

/* A port of this machine that nobody has now. */
CDP__PRIVATE cdp_status cdp__agent_port(cdp_agent *a, uint16_t *port) {
    const int32_t any =
        a->desc.master_port ? a->desc.master_port : cdp__free_port(a->os, &a->port_held);
    *port = (uint16_t)any;
    return any < 0 ? cdp__agent_io("cannot find a free port", "", any) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__agent_folder_make(const cdp_agent *a, const char *path) {
    const int32_t err =
        a->os->files.make_folder ? a->os->files.make_folder(a->os->user, path) : -ENOSYS;
    if (err == 0 || err == -EEXIST) return CDP_OK;
    return cdp__agent_io("cannot make the folder ", path, err);
}

/* The folders of an attempt, where there are logs. */
CDP__PRIVATE cdp_status cdp__agent_folders(const cdp_agent *a) {
    char path[CDP__AGENT_PATH];
    cdp_status st = CDP_OK;
    int32_t err = 0;
    if (!a->desc.log_dir) return CDP_OK;
    st = cdp__agent_folder_make(a, a->folder);
    if (st == CDP_OK)
        err = cdp__launch_folders(a->os, a->folder, a->attempt, a->desc.workers, path, sizeof path);
    return err ? cdp__agent_io("cannot make the folder ", path, err) : st;
}

CDP__PRIVATE void cdp__agent_remove(const cdp_agent *a, const char *path) {
    if (path[0] && a->os->files.remove_file) (void)a->os->files.remove_file(a->os->user, path);
}

/* The paths of the files of a worker. An earlier job may have left such files in log_dir: what they
   say is not of this one. */
CDP__PRIVATE cdp_status cdp__agent_files(cdp_agent *a, uint32_t i) {
    cdp__agent_worker *const w = &a->workers[i];
    if (!cdp__agent_path(a, i, "error.json", w->error_file)
        || !cdp__agent_path(a, i, "timers", w->timer_file))
        return cdp__agent_io("the path of an error file is too long", "", ENAMETOOLONG);
    cdp__agent_remove(a, w->error_file);
    cdp__agent_remove(a, w->timer_file);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__agent_worker_start(
    cdp_agent *a, uint32_t i, uint16_t port, int32_t told) {
    cdp__agent_worker *const w = &a->workers[i];
    cdp__process_plan p;
    cdp__cores cores;
    cdp__agent_env env;
    cdp_status st = CDP_OK;
    int which;
    memset(&p, 0, sizeof p);
    p.words = a->desc.commands ? a->desc.commands[i] : a->desc.command;
    p.func = a->desc.func;
    p.user = a->desc.user;
    p.told = told;
    p.number = (int32_t)i;
    if (a->desc.bind) {
        cdp__cores_of_rank(a->map, a->desc.bind == CDP_LAUNCH_BIND_NUMA, a->desc.cores_per_worker,
            i, a->desc.workers, &cores);
        p.cores = &cores;
    }
    p.out[0] = p.out[1] = -1;
    env.at = NULL;
    st = cdp__agent_files(a, i);
    for (which = 0; st == CDP_OK && which < 2; ++which)
        st = cdp__agent_open_stream(a, i, which, &p.out[which]);
    if (st == CDP_OK) st = cdp__agent_env_make(a, &env, i, port);
    if (st == CDP_OK) {
        p.env = env.at;
        w->p.begun_ns = cdp__agent_now(a);
        w->p.pid = cdp__process_start(&p);
        if (w->p.pid < 0) {
            st = cdp__agent_io("cannot start a process", "", w->p.pid);
            w->p.pid = 0;
        }
    }
    cdp__free(a->os, env.at);
    for (which = 0; which < 2; ++which)
        cdp__process_close(p.out[which]);
    return st;
}

/* The program of each worker is loaded, or could not be. */
CDP__PRIVATE cdp_status cdp__agent_loaded(const cdp_agent *a, int32_t fd) {
    const uint64_t until = cdp__agent_now(a) + CDP__AGENT_EXEC_MS * CDP__MS;
    const char *const *words = a->desc.command;
    int32_t what[2] = {0, 0}; /* number, errno */
    int64_t n;
    while ((n = cdp__process_read(fd, what, sizeof what)) == -EAGAIN) {
        if (cdp__agent_now(a) >= until) return CDP_OK; /* it may be on a slow disk */
        cdp__process_wait(&fd, 1, 100);
    }
    if (n != (int64_t)sizeof what) return CDP_OK;
    if (a->desc.commands) words = a->desc.commands[what[0]];
    return cdp__fail_peer(CDP_ERR_INVALID, -1, what[1], "cdp_agent_start: cannot run '%s'",
        words ? words[0] : "a function");
}

/* Closes what belongs to a worker that has ended, and removes its error file from among the
   temporary ones. */
CDP__PRIVATE void cdp__agent_worker_clear(cdp_agent *a, uint32_t i) {
    cdp__agent_worker *const w = &a->workers[i];
    int which;
    if (!a->desc.log_dir) cdp__agent_remove(a, w->error_file);
    cdp__agent_remove(a, w->timer_file);
    for (which = 0; which < 2; ++which) {
        if (w->out[which]) cdp__launch_stream_begin(w->out[which], -1, -1, false);
        w->filed[which] = w->stuck[which] = false;
    }
    w->p.pid = 0;
    w->p.ended = w->lost = w->p.by_us = false;
    w->timer_file[0] = w->expired[0] = 0;
    w->error_file[0] = w->message[0] = w->last[0] = 0;
}

/* Kills every group, waits for every worker. */
CDP__PRIVATE void cdp__agent_kill_all(cdp_agent *a) {
    const uint64_t until = cdp__agent_now(a) + CDP__AGENT_KILL_MS * CDP__MS;
    uint32_t i;
    for (i = 0; i < a->desc.workers; ++i)
        if (a->workers[i].p.pid
            && !a->workers[i].p.ended) /* the number may be another one's by now */
            cdp__process_signal(a->workers[i].p.pid, CDP__PROCESS_KILL);
    for (i = 0; i < a->desc.workers; ++i) {
        cdp__agent_worker *const w = &a->workers[i];
        while (w->p.pid && !w->p.ended && cdp__process_ended(w->p.pid, &w->p.end) == 0
            && cdp__agent_now(a) < until)
            cdp__process_wait(NULL, 0, 1);
        w->p.ended = true;
    }
}

CDP__PRIVATE cdp_status cdp__agent_attempt(cdp_agent *a) {
    int32_t told[2] = {-1, -1}, err = 0;
    uint16_t port = 0;
    uint32_t i;
    cdp_status st = cdp__agent_port(a, &port);
    if (st == CDP_OK) st = cdp__agent_folders(a);
    if (st == CDP_OK) err = cdp__process_pipe(told);
    if (err) st = cdp__agent_io("cannot make a pipe", "", err);
    a->first = -1;
    a->sent = 0;
    a->phase = CDP__AGENT_RUN;
    a->deadline_ns = CDP__NEVER;
    for (i = 0; i < a->desc.workers; ++i)
        cdp__agent_worker_clear(a, i);
    for (i = 0; st == CDP_OK && i < a->desc.workers; ++i)
        st = cdp__agent_worker_start(a, i, port, told[1]);
    cdp__process_close(told[1]);
    if (st == CDP_OK) st = cdp__agent_loaded(a, told[0]);
    cdp__process_close(told[0]);
    if (st != CDP_OK) cdp__agent_kill_all(a);
    a->state = st == CDP_OK ? CDP_AGENT_HEALTHY : CDP_AGENT_FAILED;
    if (st == CDP_OK) {
        cdp__agent_tell(a, CDP_AGENT_STARTED, -1);
        return CDP_OK;
    }
    a->phase = CDP__AGENT_OVER;
    a->why = *cdp_last_error();
    if (a->attempt) cdp__agent_tell(a, CDP_AGENT_ENDED, -1);
    *cdp__error_slot() = a->why; /* whatever the program has called */
    return st;
}

#endif /* CDP_SRC_LAUNCH_ATTEMPT_H */
