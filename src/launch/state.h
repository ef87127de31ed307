/* launch/state.h - what an agent knows of its workers

   Knows: desc, workers, phases. Promises: one struct for each worker, whose memory is the agent's;
   the path of every file of a worker is made here. */
#ifndef CDP_SRC_LAUNCH_STATE_H
#define CDP_SRC_LAUNCH_STATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "launch_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../os/cores.h"
#include "../os/processes.h"
#include "../os/child.h"
#include "facts.h"
#include "console.h"
#include "stream.h"
#include "timer.h"

#define CDP__AGENT_PATH 1024u      /* bytes of a path of a log */
#define CDP__AGENT_MESSAGE 512u    /* what is kept of an error file */
#define CDP__AGENT_KILL_MS 10000u  /* for a process that does not die of SIGKILL */
#define CDP__AGENT_EXEC_MS 10000u  /* for the program of a worker to be loaded */
#define CDP__AGENT_READER_MS 2000u /* for the reader of the console, once workers should end */

typedef struct cdp__agent_worker {
    cdp__launch_process p;
    bool lost; /* something else has waited for it */
    uint64_t end_us;
    char expired[CDP__TIMER_LABEL + 1]; /* the timer for which it was killed; "": none */
    cdp__launch_stream *out[2];         /* stdout, stderr */
    bool filed[2];                      /* its last lines are in the log */
    bool stuck[2];                      /* something is left that the console does not take now */
    char error_file[CDP__AGENT_PATH], timer_file[CDP__AGENT_PATH], message[CDP__AGENT_MESSAGE],
        last[CDP__LAUNCH_TAIL + 1];
} cdp__agent_worker;

typedef enum cdp__agent_phase {
    CDP__AGENT_RUN,
    CDP__AGENT_GRACE, /* something has ended the attempt; workers may end by themselves */
    CDP__AGENT_TERM,  /* they have got SIGTERM */
    CDP__AGENT_KILL,  /* and SIGKILL */
    CDP__AGENT_OVER
} cdp__agent_phase;

struct cdp_agent {
    const cdp_os *os;
    uint32_t forks;       /* see cdp__is_child() */
    cdp_launch_desc desc; /* with defaults */
    cdp_agent_state state;
    cdp__agent_phase phase;
    uint64_t deadline_ns; /* of the phase */
    uint64_t timeout_ns, begun_ns;
    uint64_t timers_ns;           /* when to read the files of timers */
    uint64_t health_ns;           /* when to write the health file next */
    cdp_agent_state health_state; /* what it says */
    uint64_t reader_ns; /* when a console that nobody reads is given up; 0: not yet decided */
    cdp__launch_console console;
    cdp__cores_map *map; /* what there is for all workers */
    char threads[12];    /* OMP_NUM_THREADS of each; "": as it is */
    int32_t port_held;   /* by which no other launcher of this machine takes the port; -1: none */
    uint32_t attempt;
    int64_t first;       /* the worker whose failure ended the attempt; -1: none */
    uint64_t sent;       /* signals that the agent has sent, as bits */
    bool stopping, late; /* late: timeout_ms is over */
    cdp_error why;       /* of a start that failed */
    char key[260], host[256], folder[CDP__AGENT_PATH];
    cdp__agent_worker *workers;
    cdp_worker_end *ends;
    cdp_launch_result result;
    int32_t *watched; /* descriptors to wait for */
};

/* True in the process that started this agent, until it destroys it. */
CDP__PRIVATE bool cdp__agent_lives(const cdp_agent *a) {
    return a && !cdp__ended(a) && !cdp__is_child(a->forks);
}

/* Refuses no agent, one that was destroyed, and that of the parent in a child: its workers are. */
CDP__PRIVATE cdp_status cdp__agent_alive(const cdp_agent *a, const char *call) {
    if (!a) return cdp__missing(call, "agent");
    if (cdp__ended(a)) return cdp__fail(CDP_ERR_STATE, "%s: this agent was destroyed", call);
    if (cdp__is_child(a->forks)) return cdp__child_refuses(CDP_ERR_STATE, call, "agent");
    return CDP_OK;
}

CDP__PRIVATE uint64_t cdp__agent_now(const cdp_agent *a) {
    return a->os->now_ns(a->os->user);
}

CDP__PRIVATE uint32_t cdp__agent_rank(const cdp_agent *a, uint32_t i) {
    return a->desc.node_rank * a->desc.workers + i;
}

CDP__PRIVATE const char *cdp__agent_role(const cdp_agent *a, uint32_t i) {
    return a->desc.roles && a->desc.roles[i] ? a->desc.roles[i] : a->desc.role;
}

/* The file `name` of a worker in this attempt. Returns false if it does not fit. */
CDP__PRIVATE bool cdp__agent_path(
    const cdp_agent *a, uint32_t i, const char *name, char out[CDP__AGENT_PATH]) {
    return cdp__launch_path(
        out, CDP__AGENT_PATH, a->folder, a->desc.log_dir ? NULL : ".", a->attempt, i, name);
}

CDP__PRIVATE cdp_status cdp__agent_io(const char *what, const char *which, int32_t err) {
    return cdp__fail_peer(
        CDP_ERR_IO, -1, err < 0 ? -err : err, "cdp_agent_start: %s%s", what, which);
}

#endif /* CDP_SRC_LAUNCH_STATE_H */
