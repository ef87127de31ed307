/* launch/launch_api.h - workers of this machine, and the agent that watches them */
#ifndef CDP_SRC_LAUNCH_LAUNCH_API_H
#define CDP_SRC_LAUNCH_LAUNCH_API_H

#include "../base/config.h"
#include "../base/status_api.h"

/* Where the workers of an agent stand, together. */
typedef enum cdp_agent_state {
    CDP_AGENT_INIT,      /* nothing runs yet */
    CDP_AGENT_HEALTHY,   /* no worker has failed, and some run */
    CDP_AGENT_UNHEALTHY, /* one has failed: the others are being ended, all may start again */
    CDP_AGENT_STOPPED,   /* they have ended because cdp_agent_stop() or a time limit asked for it */
    CDP_AGENT_SUCCEEDED, /* all have ended with exit code 0 */
    CDP_AGENT_FAILED,    /* they have ended after a failure, and no restart is left */
    CDP_AGENT_UNKNOWN    /* something else in this process has waited for a worker */
} cdp_agent_state;

/* Bits of redirects and tee. */
#define CDP_AGENT_STDOUT 1u
#define CDP_AGENT_STDERR 2u

/* Which processors a worker may use. */
typedef enum cdp_launch_bind {
    CDP_LAUNCH_BIND_NONE, /* those of the agent */
    CDP_LAUNCH_BIND_CORE, /* cores that are its own: cores_per_worker of them */
    CDP_LAUNCH_BIND_NUMA  /* those of one NUMA node; neighbours share a node where there are fewer
                             nodes than workers */
} cdp_launch_bind;

/* How a worker ended. */
typedef struct cdp_worker_end {
    uint32_t rank, local_rank;
    const char *role;     /* its ROLE_NAME */
    int32_t pid;          /* 0: it never ran */
    int32_t exit_code;    /* -1: by a signal, or not known, or it still runs */
    int32_t signal;       /* 0: by an exit code */
    bool ended, by_agent; /* by_agent: by a signal that the agent had sent */
    uint64_t time_us;     /* when, since 1970; 0: it has not ended */
    double seconds;       /* how long it ran */
    /* never NULL. error_file: what cdp_error_record_from_env() writes; message: what it wrote
       there; last_lines: the last 4 KiB of stderr, or of stdout if there are none */
    const char *error_file, *message, *last_lines;
} cdp_worker_end;

/* What happens to the workers of an agent. */
typedef enum cdp_agent_event_kind {
    CDP_AGENT_STARTED,      /* all have started: for the first time, or again */
    CDP_AGENT_WORKER_ENDED, /* one has ended, in whatever way */
    CDP_AGENT_ENDED         /* all have ended for good: SUCCEEDED, FAILED, STOPPED or UNKNOWN */
} cdp_agent_event_kind;

typedef struct cdp_agent_event {
    cdp_agent_event_kind kind;
    cdp_agent_state state;     /* of the agent, when it happened */
    uint32_t attempt;          /* 0: the first start; 1: after one restart */
    uint64_t time_us;          /* since 1970 */
    const cdp_worker_end *end; /* WORKER_ENDED: how; else NULL. Valid during the call */
} cdp_agent_event;

/* What to start. All that it points to must stay until cdp_agent_destroy(). 0 and NULL mean the
   default. */
typedef struct cdp_launch_desc {
    /* the program and its arguments, then NULL: found in PATH as a shell does. Or NULL, and
       `func`: each worker is a copy of this process, by fork(), that calls it; what it returns,
       0 to 255, is the exit code. Start functions before this process has other threads. */
    const char *const *command;
    int (*func)(void *user);
    void *user;
    /* for worker i of this machine: commands[i] in place of `command`; NULL: all have `command` */
    const char *const *const *commands;
    /* lists of NAME=VALUE, each ended by NULL: for all workers; env_of[i] for worker i, or NULL.
       The variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...) are set after
       these and win. */
    const char *const *env;
    const char *const *const *env_of;
    /* workers of this machine: required, 1 to 4096 */
    uint32_t workers;
    /* machines with as many workers each (default: 1), and which of them this is. Each has an
       agent of its own; they do not talk to each other, as the launchers of cdprun do. */
    uint32_t nodes, node_rank;
    const char *role;   /* ROLE_NAME (default: "default") */
    const char *run_id; /* name of the job (default: "none") */
    /* several roles in one job, as trainers and evaluators: roles[i] in place of `role` for worker
       i of this machine, or NULL. ROLE_RANK and ROLE_WORLD_SIZE count the workers of one role,
       RANK and WORLD_SIZE all. All machines need equal lists. */
    const char *const *roles;
    /* on Linux: which of the processors that the agent may use a worker gets (default: all), and
       how many cores of its own it has, which with hardware threads are more processors (default:
       what there are, divided by the workers; at least 1). Where neither this process nor `env`
       sets OMP_NUM_THREADS, that is its value for several workers, or where cores_per_worker is
       given. */
    cdp_launch_bind bind;
    uint32_t cores_per_worker;
    /* how often all workers start again after a failure */
    uint32_t max_restarts;
    /* how often workers are looked at, in ms (default: 100) */
    uint32_t poll_ms;
    /* after a failure the others have this long to end by themselves, in ms (default: 5000);
       CDP_NO_TIMEOUT: for ever */
    uint32_t grace_ms;
    /* after SIGTERM, before SIGKILL, in ms (default: 5000) */
    uint32_t kill_ms;
    /* how long the job may take, restarts included, in ms (default: no limit) */
    uint32_t timeout_ms;
    /* where rank 0 will listen (default: 127.0.0.1, and a free port for each start). Several
       machines need both. */
    const char *master_addr;
    uint16_t master_port;
    /* CDP_JOB_KEY of the workers (default: that of this process; one machine: random bytes).
       trust_network: none. */
    const char *job_key;
    bool trust_network;
    /* a folder for error files and logs: log_dir/attempt_A/I/stdout.log, stderr.log, error.json for
       worker I; those of an earlier job are removed. NULL: there are no logs, and error files lie
       in the folder for temporary files. */
    const char *log_dir;
    /* CDP_AGENT_STDOUT | CDP_AGENT_STDERR: what goes to the logs only; what goes there and to the
       console. The rest goes to stdout and stderr of this process. */
    uint32_t redirects, tee;
    /* without "[RANK] " before each line */
    bool no_prefix;
    /* the result is written to this file when the workers have ended for good */
    const char *result_file;
    /* a file of one line of JSON, at most 900 characters of path, which is replaced whenever the
       state changes, and each second while the program steps this agent: {"state", "time", "host",
       "attempt", "workers", "running"}. A file whose time is old: the agent hangs, or is gone.
       NULL: there is none */
    const char *health_file;
    /* called for each event, inside cdp_agent_start(), cdp_agent_step() and cdp_agent_wait(); must
       not call functions of this agent. Workers that an agent kills because not all could start,
       or in cdp_agent_destroy(), have none. NULL: events go nowhere */
    void (*event)(void *event_user, const cdp_agent_event *event);
    void *event_user;
} cdp_launch_desc;

typedef struct cdp_agent cdp_agent;

typedef struct cdp_launch_result {
    cdp_agent_state state;
    uint32_t restarts; /* that were used */
    const char *host;
    /* whether ends[0] is the first failure; the other workers follow by rank */
    bool has_cause;
    uint32_t count;
    const cdp_worker_end *ends; /* of the last start */
} cdp_launch_result;

/* Starts the workers. An agent belongs to one thread at a time, and on Linux its workers die with
   the thread that started them. Errors: INVALID (a member is missing or out of range, or a command
   cannot be run: the sentence names it); IO (no pipe, log or process); UNSUPPORTED (this system
   has no fork(): see cdp_spawn_desc.threads); NOMEM. A health_file that cannot be written is IO
   here, and no error later. */
CDP_MUST_CHECK CDP_API cdp_status cdp_agent_start(const cdp_launch_desc *desc, cdp_agent **out);
/* Carries output, looks at the workers, starts them again: returns when the state has changed, and
   after wait_ms at the latest (0: at once). Call it, or cdp_agent_wait(), again and again: a
   worker whose output nobody carries stands still. Where the reader of this process's stdout or
   stderr stops, workers wait for it when their pipes are full, and so does the end of the job; 2 s
   after cdp_agent_stop() or timeout_ms the rest of the output is given up. Errors: INVALID (no
   agent); IO, NOMEM, INVALID as cdp_agent_start() (a restart failed; the state is then FAILED). */
CDP_MUST_CHECK CDP_API cdp_status cdp_agent_step(cdp_agent *agent, uint32_t wait_ms);
/* Steps until the workers have ended for good. CDP_OK: SUCCEEDED. Errors: REMOTE (FAILED: the
   sentence names rank, end and message of the first failure); ABORTED (STOPPED); TIMEOUT (they
   still run after timeout_ms, 0 or CDP_NO_TIMEOUT: no limit; call it again, or stop them); STATE
   (UNKNOWN); else as cdp_agent_step(), also if that has said so before. */
CDP_MUST_CHECK CDP_API cdp_status cdp_agent_wait(cdp_agent *agent, uint32_t timeout_ms);
/* Asks the workers to end: SIGTERM, and SIGKILL after kill_ms, both in later steps. There is no
   restart then. NULL and agents whose workers have ended are allowed. */
CDP_API void cdp_agent_stop(cdp_agent *agent);
CDP_API cdp_agent_state cdp_agent_state_of(const cdp_agent *agent);
CDP_API const char *cdp_agent_state_name(cdp_agent_state state);
/* What is known now. Valid until the next call with this agent. NULL without an agent. */
CDP_API const cdp_launch_result *cdp_agent_result(cdp_agent *agent);
/* Writes the result to a file, as JSON: {"state", "host", "restarts", "cause" (a rank or null),
   "workers": [{"rank", "local_rank", "role", "host", "pid", "exit_code", "signal", "time",
   "seconds", "error_file", "message", "last_lines"}]}, the first failure first. Errors: INVALID (no
   path), IO. */
CDP_MUST_CHECK CDP_API cdp_status cdp_agent_save(cdp_agent *agent, const char *path);
/* An event as one line of JSON without its end: {"event": "start", "worker_end" or "end", "time",
   "attempt", "state"}, and of a worker that has ended {"rank", "local_rank", "role", "pid",
   "exit_code", "signal", "ended_at", "seconds", "error_file", "message", "last_lines"}. Writes at
   most `room` bytes, a zero at the end among them; `text` may be NULL. Returns the length of the
   whole line without the zero; 0 without an event. Any thread. */
CDP_API uint64_t cdp_agent_event_text(const cdp_agent_event *event, char *text, uint64_t room);
/* Kills what still runs, and frees. NULL is allowed. A second destroy does nothing, nor does that
   of a child of fork(), whose parent's workers go on; other calls with a status are STATE then. */
CDP_API void cdp_agent_destroy(cdp_agent *agent);

#endif /* CDP_SRC_LAUNCH_LAUNCH_API_H */
