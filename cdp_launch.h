/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
/*  cdp_launch.h - workers of a machine, started and watched from C - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        A launcher that is a library: an agent starts n workers (a program, or a function in copies
        of this process), gives them the variables of torchrun, carries their output, starts all of
        them again after a failure, and leaves a result that names the first failure. And
        cdp_spawn(): one function on n ranks, as processes or as threads, in one call.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_launch.h"         which includes cdp_tcp.h, cdp_store.h and cdp.h

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_launch.h"
        #include <stdio.h>
        static cdp_status work(void *user, cdp_group *world) {
            float x = (float)cdp_rank(world);
            (void)user;
            cdp_status st = cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM);
            if (st != CDP_OK) return st;
            printf("rank %u of %u: the sum is %g\n", cdp_rank(world), cdp_size(world), x);
            return CDP_OK;
        }
        int main(void) {
            if (cdp_spawn(work, NULL, 4, NULL) != CDP_OK) return cdp_print_error(stderr);
            return 0;
        }
        gcc -O2 fit.c -o fit -pthread        ./fit

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_launch.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                       call
        run one function on n ranks, and wait              cdp_spawn
        start programs or functions as workers             cdp_agent_start
        watch them, carry their output                     cdp_agent_step, cdp_agent_wait
        know how they stand                                cdp_agent_state_of, _state_name
        end them                                           cdp_agent_stop, cdp_agent_destroy
        know how each one ended, first failure first       cdp_agent_result; as a file: _save
        hear of starts and ends as they happen             desc.event; cdp_agent_event_text: JSON
        let others see that the agent works                desc.health_file
        in a worker: be ended where it is stuck            cdp_timer_begin, cdp_timer_end
        put numbers under names, for a file or a function  cdp_metric_put

    COMING FROM PyTorch
        torch.multiprocessing.spawn, start_processes       cdp_spawn
        elastic.multiprocessing.start_processes, PContext  cdp_agent_start, _wait
        WorkerSpec, SimpleElasticAgent                     cdp_launch_desc, cdp_agent
        several WorkerSpecs, each with a role              desc.roles, desc.commands
        WorkerState                                        cdp_agent_state
        monitor_interval; max_restarts                     desc.poll_ms; desc.max_restarts
        Std, redirects, tee                                desc.redirects, desc.tee
        RunResult, ChildFailedError                        cdp_launch_result, ends[0]
        elastic.events: record, handlers                   desc.event
        elastic.metrics: put_metric, MetricHandler         cdp_metric_put, cdp_metrics
        HealthCheckServer                                  desc.health_file
        elastic.timer: expires, FileTimerServer            cdp_timer_begin, cdp_timer_end
        rendezvous of agents, machines that come and go    tools/cdprun

    CONFIGURATION
        CDP_LAUNCH_IMPLEMENTATION    this header and those below it, whose private parts it uses
        The macros of cdp.h hold here, too: CDP_API, CDP_STATIC, CDP_ASSERT, CDP_NO_STDIO.

    PROCESSES
        Each worker leads a process group. When it has ended, what is left of its group is killed;
        a process that has left the group (setsid, setpgid) lives on: tools/cdprun ends those, too.
        On Linux workers die with the thread that started them. fork() copies only the thread that
        calls it: start functions before this process has other threads, and before it has groups.
        Programs may be started at any time. SIGCHLD must not be ignored, and nothing else may wait
        for the workers: then their end is UNKNOWN.

    LIMITS
        4096 workers a machine | agents of several machines do not talk to each other: a failure
        elsewhere is seen by the ranks here | no processes on Windows: cdp_spawn with threads

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h.                            */

/* Joined from src/cdp_launch.h and what it includes: change that, then `make headers`. */
#if defined(CDP_LAUNCH_IMPLEMENTATION) && !defined(CDP_TCP_IMPLEMENTATION)
#define CDP_TCP_IMPLEMENTATION
#endif
#if !defined(CDP_TCP_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_STORE_IMPLEMENTATION) \
    || defined(CDP_TCP_IMPLEMENTATION) \
    || defined(CDP_LAUNCH_IMPLEMENTATION)
#include "cdp_tcp.h"
#endif

#ifndef CDP_LAUNCH_INCLUDED
#define CDP_LAUNCH_INCLUDED

#define CDP_LAUNCH_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_LAUNCH_VERSION != CDP_VERSION
#error "cdp_launch.h and cdp.h are of different versions: copy both from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>launch/launch_api: workers of this machine, and the agent that watches them ----------- */

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

/* ---- >>launch/spawn_api: one function on n ranks --------------------------------------------- */

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

/* ---- >>launch/timer_api: times after which a worker that is stuck is ended by its launcher --- */

/* In a worker: what is done now takes at most `seconds`. Without cdp_timer_end() until then, the
   agent or cdprun kills this worker, names the label as the reason, and goes on as after every
   failure. A timer that runs under this label begins again. `label`: 1 to 100 characters, without
   control characters. Where no launcher watches (the variable CDP_TIMER_FILE is not set) nothing
   happens. Any thread. Errors: INVALID (label; seconds is not above 0 or more than 1e9); BUSY (16
   timers of this process run); IO. */
CDP_MUST_CHECK CDP_API cdp_status cdp_timer_begin(double seconds, const char *label);
/* The timer under this label ends. Does nothing where there is none. Any thread. */
CDP_API void cdp_timer_end(const char *label);

/* ---- >>launch/metric_api: numbers of a program under names ----------------------------------- */

typedef struct cdp_metric {
    const char *name;
    double value;
    uint64_t time_us; /* since 1970 */
    int32_t rank;     /* of the variable RANK; -1: it is not set */
} cdp_metric;

/* Where numbers go. All 0: to the file that the variable CDP_METRICS_FILE names, or nowhere. */
typedef struct cdp_metrics {
    /* in place of a file: hears of each number, in the thread that puts it; the metric is valid
       during the call */
    void (*func)(const cdp_metric *metric, void *user);
    void *user;
    /* a file to which lines of JSON are appended: {"time", "rank", "name", "value"}, where what is
       not finite is null. Processes of one machine may share it. "": nowhere */
    const char *path;
} cdp_metrics;

/* Puts a number under a name, of 1 to 200 characters without control characters. `to`: NULL means
   all 0. Each call opens the file and writes one line: for some numbers a second, not for each
   operation. Any thread. Errors: INVALID (name); IO (the file). */
CDP_MUST_CHECK CDP_API cdp_status cdp_metric_put(
    const cdp_metrics *to, const char *name, double value);

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>launch/cxx_api: descs by reference in C++ --------------------------------------------- */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_agent_start(const cdp_launch_desc &desc, cdp_agent **out) {
    return cdp_agent_start(&desc, out);
}
inline cdp_status cdp_spawn(
    cdp_spawn_func func, void *user, uint32_t n, const cdp_spawn_desc &desc) {
    return cdp_spawn(func, user, n, &desc);
}
} /* extern "C++" */
#endif

#endif /* CDP_LAUNCH_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_LAUNCH_IMPLEMENTATION)) \
    && !defined(CDP_LAUNCH_IMPL_INCLUDED)
#define CDP_LAUNCH_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_LAUNCH

/* ---- >>text/json_read: JSON, piece by piece (pure) ------------------------------------------- */

/* Knows: the grammar of JSON, and the NaN and Infinity that Python writes. Promises: any bytes
   yield pieces or a reason; no recursion, no memory; at most 32 levels. */
#ifndef CDP_SRC_TEXT_JSON_READ_H
#define CDP_SRC_TEXT_JSON_READ_H

#include <stdlib.h>
#include <string.h>

#define CDP__JSON_DEEP 32u   /* as many as cdp__json_reader.dicts has bits */
#define CDP__JSON_DIGITS 40u /* what further digits of a number say is lost */

typedef enum cdp__json_kind {
    CDP__JSON_BAD, /* this is no JSON: `why` says why, `at` says where */
    CDP__JSON_END, /* nothing follows the value */
    CDP__JSON_DICT,
    CDP__JSON_LIST,
    CDP__JSON_CLOSE, /* the end of the last dict or list that is open */
    CDP__JSON_KEY,   /* a text; a value follows */
    CDP__JSON_TEXT,
    CDP__JSON_WHOLE,
    CDP__JSON_REAL, /* also a whole number that has more than 63 bits */
    CDP__JSON_TRUE,
    CDP__JSON_FALSE,
    CDP__JSON_NULL
} cdp__json_kind;

typedef struct cdp__json_reader {
    const uint8_t *data;
    uint64_t bytes, at;
    const char *why;
    uint32_t depth, dicts; /* bit i of dicts: the i-th open container is a dict */
    bool value, first;     /* a value must follow, after a key or at the beginning; just opened */
    /* of the last piece */
    const uint8_t *text; /* KEY, TEXT: what stands between the quotes, not decoded */
    uint64_t length;     /* of that; the decoded text is not longer */
    bool escapes;        /* it has some, else it is as it stands */
    int64_t whole;
    double real;
} cdp__json_reader;

CDP__PRIVATE cdp__json_reader cdp__json_open(const void *data, uint64_t bytes) {
    cdp__json_reader r;
    memset(&r, 0, sizeof r);
    r.data = (const uint8_t *)data;
    r.bytes = bytes;
    r.value = true;
    return r;
}

CDP__PRIVATE cdp__json_kind cdp__json_bad(cdp__json_reader *r, const char *why) {
    r->why = why;
    return CDP__JSON_BAD;
}

/* The next byte that is no blank, which is not taken; 0: there is none. */
CDP__PRIVATE uint8_t cdp__json_look(cdp__json_reader *r) {
    for (; r->at < r->bytes; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
    }
    return 0;
}

CDP__PRIVATE bool cdp__json_word(cdp__json_reader *r, const char *word) {
    const uint64_t n = strlen(word);
    if (r->bytes - r->at < n || memcmp(r->data + r->at, word, (size_t)n) != 0) return false;
    r->at += n;
    return true;
}

CDP__PRIVATE int cdp__hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The four digits of an escape; -1: they are not there. */
CDP__PRIVATE int32_t cdp__json_unit_at(const uint8_t *s, uint64_t bytes) {
    int32_t unit = 0;
    uint32_t i;
    for (i = 0; i < 4; ++i) {
        const int digit = i < bytes ? cdp__hex_digit(s[i]) : -1;
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

/* Takes a text, from its first quote on. */
CDP__PRIVATE cdp__json_kind cdp__json_take_text(cdp__json_reader *r, cdp__json_kind kind) {
    const uint64_t from = ++r->at;
    r->escapes = false;
    for (; r->at < r->bytes && r->data[r->at] != '"'; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c < 32) return cdp__json_bad(r, "a text has a control character");
        if (c != '\\') continue;
        r->escapes = true;
        if (++r->at == r->bytes) break;
        if (r->data[r->at] == 'u') {
            if (cdp__json_unit_at(r->data + r->at + 1, r->bytes - r->at - 1) < 0)
                return cdp__json_bad(r, "four hexadecimal digits are expected after \\u");
            r->at += 4;
        } else if (!r->data[r->at] || !strchr("\"\\/bfnrt", r->data[r->at]))
            return cdp__json_bad(r, "there is no such escape");
    }
    if (r->at >= r->bytes) return cdp__json_bad(r, "a text does not end");
    r->text = r->data + from;
    r->length = r->at++ - from;
    return kind;
}

/* Decodes one escape of a text that was taken, from the byte after the backslash on. */
CDP__PRIVATE uint32_t cdp__json_escape(const uint8_t **at, const uint8_t *end) {
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    const uint8_t c = *(*at)++;
    const char *const known = strchr(from, c);
    uint32_t unit;
    int32_t low;
    if (c != 'u') return known ? (uint8_t)to[known - from] : c;
    unit = (uint32_t)cdp__json_unit_at(*at, 4);
    *at += 4;
    if (unit < 0xd800 || unit >= 0xdc00) return unit;
    if (end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u') return unit;
    low = cdp__json_unit_at(*at + 2, 4);
    if (low < 0xdc00 || low >= 0xe000) return unit;
    *at += 6;
    return 0x10000 + ((unit - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
}

/* Writes the last key or text, decoded, to `out`, which has room for r->length bytes. Returns its
   length. What is no character, and a zero byte, become '?'. */
CDP__PRIVATE uint64_t cdp__json_decode(const cdp__json_reader *r, char *out) {
    const uint8_t *at = r->text, *const end = at + r->length;
    const char *const from = out;
    while (at < end) {
        uint32_t c = *at++;
        if (c != '\\') {
            *out++ = (char)c;
            continue;
        }
        c = cdp__json_escape(&at, end);
        out += cdp__utf8_put(c ? c : '?', out);
    }
    return (uint64_t)(out - from);
}

CDP__PRIVATE bool cdp__json_is_digit(const cdp__json_reader *r) {
    return r->at < r->bytes && r->data[r->at] >= '0' && r->data[r->at] <= '9';
}

/* Digits of a number without its point, as text for strtod(), which then needs no locale. */
typedef struct cdp__json_digits {
    char text[CDP__JSON_DIGITS + 32];
    uint32_t count;
    int64_t exponent;
} cdp__json_digits;

CDP__PRIVATE void cdp__json_take_digits(cdp__json_reader *r, cdp__json_digits *d, bool fraction) {
    for (; cdp__json_is_digit(r); ++r->at) {
        const bool kept = d->count < CDP__JSON_DIGITS;
        const char c = (char)r->data[r->at];
        if (kept && (d->count || c != '0')) d->text[d->count++] = c;
        d->exponent += (int64_t)!kept - fraction;
    }
}

CDP__PRIVATE double cdp__json_real_of(cdp__json_digits *d) {
    const bool below = d->exponent < 0;
    uint64_t e = below ? 0 - (uint64_t)d->exponent : (uint64_t)d->exponent;
    char *at = d->text + sizeof d->text;
    uint32_t n = d->count;
    if (!n) return 0;
    *--at = 0;
    do
        *--at = (char)('0' + e % 10);
    while (e /= 10);
    d->text[n++] = 'e';
    d->text[n++] = below ? '-' : '+';
    memmove(d->text + n, at, strlen(at) + 1);
    return strtod(d->text, NULL);
}

/* Takes what follows the digits of a real number: digits behind a point, an exponent. */
CDP__PRIVATE bool cdp__json_take_rest(cdp__json_reader *r, cdp__json_digits *d) {
    int64_t exponent = 0;
    bool below = false;
    if (r->at < r->bytes && r->data[r->at] == '.') {
        ++r->at;
        if (!cdp__json_is_digit(r)) return false;
        cdp__json_take_digits(r, d, true);
    }
    if (r->at < r->bytes && (r->data[r->at] | 32) == 'e') {
        ++r->at;
        if (r->at < r->bytes && (r->data[r->at] == '+' || r->data[r->at] == '-'))
            below = r->data[r->at++] == '-';
        if (!cdp__json_is_digit(r)) return false;
        for (; cdp__json_is_digit(r); ++r->at)
            if (exponent < 1000000) exponent = exponent * 10 + (r->data[r->at] - '0');
    }
    d->exponent += below ? -exponent : exponent;
    return true;
}

CDP__PRIVATE cdp__json_kind cdp__json_take_number(cdp__json_reader *r) {
    const uint64_t from = r->at;
    const bool minus = cdp__json_word(r, "-");
    cdp__json_digits d;
    uint64_t whole = 0, i;
    uint8_t next;
    d.count = 0;
    d.exponent = 0;
    if (!cdp__json_is_digit(r)) {
        const bool nan = !minus && cdp__json_word(r, "NaN");
        if (!nan && !cdp__json_word(r, "Infinity"))
            return cdp__json_bad(r, "a value is expected here");
        r->real = strtod(nan ? "nan" : "inf", NULL);
        if (minus) r->real = -r->real;
        return CDP__JSON_REAL;
    }
    cdp__json_take_digits(r, &d, false);
    if (r->data[from + minus] == '0' && r->at > from + minus + 1)
        return cdp__json_bad(r, "a number begins with a zero");
    for (i = 0; i < d.count && d.count < 20; ++i)
        whole = whole * 10 + (uint64_t)(d.text[i] - '0');
    next = r->at < r->bytes ? r->data[r->at] : 0;
    if (next != '.' && (next | 32) != 'e' && d.count < 20 && whole <= (uint64_t)INT64_MAX) {
        r->whole = minus ? -(int64_t)whole : (int64_t)whole;
        return CDP__JSON_WHOLE;
    }
    if (!cdp__json_take_rest(r, &d)) return cdp__json_bad(r, "a digit is expected here");
    r->real = cdp__json_real_of(&d);
    if (minus) r->real = -r->real;
    return CDP__JSON_REAL;
}

CDP__PRIVATE cdp__json_kind cdp__json_take_value(cdp__json_reader *r) {
    const uint8_t c = cdp__json_look(r);
    r->value = r->first = false;
    if (c == '"') return cdp__json_take_text(r, CDP__JSON_TEXT);
    if (c == '{' || c == '[') {
        if (r->depth == CDP__JSON_DEEP) return cdp__json_bad(r, "it is nested too deep");
        ++r->at;
        r->dicts &= ~(1u << r->depth);
        r->dicts |= (uint32_t)(c == '{') << r->depth++;
        r->first = true;
        return c == '{' ? CDP__JSON_DICT : CDP__JSON_LIST;
    }
    if (cdp__json_word(r, "true")) return CDP__JSON_TRUE;
    if (cdp__json_word(r, "false")) return CDP__JSON_FALSE;
    if (cdp__json_word(r, "null")) return CDP__JSON_NULL;
    return cdp__json_take_number(r);
}

/* Takes the next piece. After BAD or END it must not be called again. */
CDP__PRIVATE cdp__json_kind cdp__json_next(cdp__json_reader *r) {
    const bool dict = r->depth && r->dicts >> (r->depth - 1) & 1;
    uint8_t c;
    if (r->value) return cdp__json_take_value(r);
    c = cdp__json_look(r);
    if (!r->depth)
        return r->at < r->bytes ? cdp__json_bad(r, "its end is expected here") : CDP__JSON_END;
    if (c == (dict ? '}' : ']')) {
        ++r->at;
        --r->depth;
        r->first = false;
        return CDP__JSON_CLOSE;
    }
    if (!r->first && !cdp__json_word(r, ","))
        return cdp__json_bad(r, "a comma or the end of a list is expected here");
    if (!dict) return cdp__json_take_value(r);
    if (cdp__json_look(r) != '"') return cdp__json_bad(r, "a key is expected here");
    if (cdp__json_take_text(r, CDP__JSON_KEY) == CDP__JSON_BAD) return CDP__JSON_BAD;
    if (cdp__json_look(r) != ':') return cdp__json_bad(r, "a colon is expected here");
    ++r->at;
    r->value = true;
    return CDP__JSON_KEY;
}

#endif /* CDP_SRC_TEXT_JSON_READ_H */

/* ---- >>os/cores: which processors a rank gets (pure) ----------------------------------------- */

/* Knows: lists of processors as Linux writes them, cores and their hardware threads, NUMA nodes.
   Promises: no two ranks share a core, except by node; cores of one rank lie side by side, of two
   nodes where the rank before left too few; only processors that the launcher may use are given. */

#include <string.h>

#define CDP__CORES_MAX 4096u   /* processors of a machine; others are not used */
#define CDP__CORES_NONE 65535u /* not allowed, or not there */

/* Processors, a bit for each. */
typedef struct cdp__cores {
    uint64_t bits[CDP__CORES_MAX / 64];
} cdp__cores;

/* What the launcher may use. Cores are numbered node by node. */
typedef struct cdp__cores_map {
    uint16_t core_of[CDP__CORES_MAX]; /* by processor */
    uint16_t node_of[CDP__CORES_MAX]; /* by core */
    uint32_t cores, nodes;            /* nodes: those that have a core */
} cdp__cores_map;

CDP__PRIVATE void cdp__cores_add(cdp__cores *c, uint32_t processor) {
    if (processor < CDP__CORES_MAX) c->bits[processor / 64] |= 1ull << processor % 64;
}

CDP__PRIVATE bool cdp__cores_has(const cdp__cores *c, uint32_t processor) {
    return processor < CDP__CORES_MAX && (c->bits[processor / 64] >> processor % 64 & 1) != 0;
}

CDP__PRIVATE const char *cdp__cores_number(const char *at, uint32_t *n) {
    for (*n = 0; *at >= '0' && *at <= '9'; ++at)
        if (*n < CDP__CORES_MAX) *n = *n * 10 + (uint32_t)(*at - '0');
    return at;
}

/* Adds a list as "0-3,8,10-11". What follows something else is left out. */
CDP__PRIVATE void cdp__cores_list(cdp__cores *c, const char *at) {
    while (*at >= '0' && *at <= '9') {
        uint32_t from, to;
        at = cdp__cores_number(at, &from);
        to = from;
        if (*at == '-') at = cdp__cores_number(at + 1, &to);
        for (; from <= to && from < CDP__CORES_MAX; ++from)
            cdp__cores_add(c, from);
        at += *at == ',';
    }
}

/* Before the first node. */
CDP__PRIVATE void cdp__cores_map_begin(cdp__cores_map *m) {
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < CDP__CORES_MAX; ++i)
        m->core_of[i] = CDP__CORES_NONE;
}

/* The next core of the node `m->nodes`: those of its hardware threads that are allowed and in no
   core yet. */
CDP__PRIVATE void cdp__cores_map_add(
    cdp__cores_map *m, const cdp__cores *threads, const cdp__cores *allowed) {
    bool any = false;
    for (uint32_t i = 0; i < CDP__CORES_MAX; ++i) {
        if (!cdp__cores_has(threads, i) || !cdp__cores_has(allowed, i)) continue;
        if (m->core_of[i] != CDP__CORES_NONE) continue;
        m->core_of[i] = (uint16_t)m->cores;
        any = true;
    }
    if (any) m->node_of[m->cores++] = (uint16_t)m->nodes;
}

/* After the last core of a node, which may have none. */
CDP__PRIVATE void cdp__cores_map_node(cdp__cores_map *m) {
    if (m->cores && m->node_of[m->cores - 1] == m->nodes) ++m->nodes;
}

/* How many cores each of `ranks` has where nobody says it: all of them together no more than there
   are, if that is possible. */
CDP__PRIVATE uint32_t cdp__cores_each(const cdp__cores_map *m, uint32_t ranks) {
    return m->cores > ranks ? m->cores / ranks : 1;
}

/* The processors of rank `i` of n: `each` cores that are its own, or all of a node, which
   neighbours share. */
CDP__PRIVATE void cdp__cores_of_rank(
    const cdp__cores_map *m, bool by_node, uint32_t each, uint32_t i, uint32_t n, cdp__cores *out) {
    const uint32_t node = (uint32_t)((uint64_t)i * m->nodes / n);
    memset(out, 0, sizeof *out);
    for (uint32_t p = 0; p < CDP__CORES_MAX; ++p) {
        const uint32_t core = m->core_of[p];
        if (core == CDP__CORES_NONE) continue;
        if (by_node ? m->node_of[core] == node : core / each == i) cdp__cores_add(out, p);
    }
}

/* ---- >>os/cores_here: the processors of this machine ----------------------------------------- */

/* Knows: Linux's lists in /sys, and the mask of a process. Promises: elsewhere, and where such a
   list is missing, all processors that may be used are cores of one node, or nothing is known. */

#if defined(__linux__) && !defined(CDP_NO_OS)

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Adds what a file lists to *out. False: there is no such file. */
CDP__PRIVATE bool cdp__cores_file(cdp__cores *out, const char *form, uint32_t number) {
    char path[96], text[4096];
    cdp__format(path, sizeof path, form, number);
    if (!cdp__os_read_text(path, text, sizeof text)) return false;
    cdp__cores_list(out, text);
    return true;
}

/* The cores of those processors of a node that may be used. */
CDP__PRIVATE void cdp__cores_node_here(
    cdp__cores_map *m, const cdp__cores *node, const cdp__cores *allowed) {
    for (uint32_t p = 0; p < CDP__CORES_MAX; ++p) {
        cdp__cores threads;
        if (!cdp__cores_has(node, p) || !cdp__cores_has(allowed, p)) continue;
        memset(&threads, 0, sizeof threads);
        (void)cdp__cores_file(
            &threads, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", p);
        cdp__cores_add(&threads, p);
        cdp__cores_map_add(m, &threads, allowed);
    }
    cdp__cores_map_node(m);
}

/* What this process may use. False: that is not known. */
CDP__PRIVATE bool cdp__cores_map_here(cdp__cores_map *m) {
    cdp__cores allowed, some;
    memset(&allowed, 0, sizeof allowed);
    memset(&some, 0, sizeof some);
    cdp__cores_map_begin(m);
    if (syscall(SYS_sched_getaffinity, 0l, sizeof allowed.bits, allowed.bits) <= 0) return false;
    if (cdp__cores_file(&some, "/sys/devices/system/node/online", 0)) {
        for (uint32_t i = 0; i < CDP__CORES_MAX; ++i) {
            cdp__cores node;
            memset(&node, 0, sizeof node);
            if (cdp__cores_has(&some, i)
                && cdp__cores_file(&node, "/sys/devices/system/node/node%u/cpulist", i))
                cdp__cores_node_here(m, &node, &allowed);
        }
    }
    if (!m->cores) cdp__cores_node_here(m, &allowed, &allowed);
    return m->cores > 0;
}

/* Binds this process, and what it will start. Returns 0, or -errno. Takes no lock, for a child
   before exec. */
CDP__PRIVATE int32_t cdp__cores_bind_here(const cdp__cores *c) {
    return syscall(SYS_sched_setaffinity, 0l, sizeof c->bits, c->bits) == 0 ? 0 : -errno;
}
#else
CDP__PRIVATE bool cdp__cores_map_here(cdp__cores_map *m) {
    cdp__cores_map_begin(m);
    return false;
}
CDP__PRIVATE int32_t cdp__cores_bind_here(const cdp__cores *c) {
    (void)c;
    return -ENOSYS;
}
#endif

/* ---- >>os/processes: processes that this one starts ------------------------------------------ */

/* Knows: fork(), exec, pipes, process groups. Promises: each process leads a group of its own and,
   on Linux, is killed when the thread that started it ends; descriptors of pipes are closed by
   exec. Without processes (Windows, no system) nothing starts: -ENOSYS. For cdp_launch.h. */

/* What to start, and with what. */
typedef struct cdp__process_plan {
    const char *const *words; /* the program and its arguments, then NULL. NULL: `func` */
    int (*func)(void *user);  /* what it returns is the exit code */
    void *user;
    char **env;     /* all variables, then NULL */
    int32_t out[2]; /* stdout, stderr; negative: those of this process */
    bool keeps_in;  /* stdin is that of this process, else /dev/null */
    /* in the child, in place of an empty signal mask and the default action of SIGPIPE; or NULL */
    void (*ready)(void *user);
    void *ready_user;
    const cdp__cores *cores; /* the only processors it may use, or NULL */
    int32_t told; /* a pipe for `number` and the errno of an exec that failed, closed by one that
                       did not */
    int32_t number;
} cdp__process_plan;

/* How a process ended. */
typedef struct cdp__process_end {
    int32_t exit_code; /* -1: by a signal */
    int32_t sig;       /* 0: by an exit code */
} cdp__process_end;

#define CDP__PROCESS_ASK 15  /* SIGTERM */
#define CDP__PROCESS_KILL 9  /* SIGKILL */
#define CDP__PROCESS_ABORT 6 /* SIGABRT */

#if defined(CDP_NO_OS) || defined(_WIN32)
CDP__PRIVATE int32_t cdp__process_start(const cdp__process_plan *p) {
    (void)p;
    return -ENOSYS;
}
CDP__PRIVATE int32_t cdp__process_ended(int32_t pid, cdp__process_end *out) {
    (void)pid;
    (void)out;
    return -ENOSYS;
}
CDP__PRIVATE void cdp__process_signal(int32_t pid, int32_t sig) {
    (void)pid;
    (void)sig;
}
CDP__PRIVATE int32_t cdp__process_pipe(int32_t ends[2]) {
    ends[0] = ends[1] = -1;
    return -ENOSYS;
}
CDP__PRIVATE int32_t cdp__process_log(const char *path) {
    (void)path;
    return -ENOSYS;
}
CDP__PRIVATE int64_t cdp__process_read(int32_t fd, void *to, uint64_t bytes) {
    (void)fd;
    (void)to;
    (void)bytes;
    return -ENOSYS;
}
CDP__PRIVATE int32_t cdp__process_write(int32_t fd, const void *from, uint64_t bytes) {
    (void)fd;
    (void)from;
    (void)bytes;
    return -ENOSYS;
}
CDP__PRIVATE int64_t cdp__process_put(int32_t fd, const void *from, uint64_t bytes) {
    (void)fd;
    (void)from;
    (void)bytes;
    return -ENOSYS;
}
CDP__PRIVATE void cdp__process_close(int32_t fd) {
    (void)fd;
}
CDP__PRIVATE void cdp__process_wait(const int32_t *fds, uint32_t count, uint32_t ms) {
    (void)fds;
    (void)count;
    (void)ms;
}
CDP__PRIVATE char **cdp__process_variables(void) {
    return NULL;
}
CDP__PRIVATE void cdp__process_host(char *name, uint64_t room) {
    (void)room;
    name[0] = 0;
}
CDP__PRIVATE bool cdp__process_crashed(int32_t sig) {
    (void)sig;
    return false;
}
CDP__PRIVATE const char *cdp__process_signal_name(int32_t sig) {
    (void)sig;
    return "a signal";
}
CDP__PRIVATE const char *cdp__process_signal_words(int32_t sig) {
    (void)sig;
    return "";
}
CDP__PRIVATE bool cdp__process_same_file(int32_t a, int32_t b) {
    return a == b;
}
#else
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#ifndef CDP_NO_STDIO
#include <stdio.h>
#endif
#ifdef __linux__
#include <sys/prctl.h>
#endif

#ifdef PIPE_BUF
#define CDP__PROCESS_PUT ((uint64_t)PIPE_BUF) /* bytes for which a pipe has room, if for any */
#else
#define CDP__PROCESS_PUT 512ull /* the least that POSIX allows */
#endif

extern char **environ;

CDP__PRIVATE int32_t cdp__process_pipe(int32_t ends[2]) {
    int fds[2];
    ends[0] = ends[1] = -1;
    if (pipe(fds) != 0) return -errno;
    fcntl(fds[0], F_SETFD, FD_CLOEXEC);
    fcntl(fds[1], F_SETFD, FD_CLOEXEC);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    ends[0] = fds[0];
    ends[1] = fds[1];
    return 0;
}

/* A file for what a process writes. */
CDP__PRIVATE int32_t cdp__process_log(const char *path) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    return fd >= 0 ? fd : -errno;
}

/* Returns the bytes read, 0 at the end, -EAGAIN where nothing is there now. */
CDP__PRIVATE int64_t cdp__process_read(int32_t fd, void *to, uint64_t bytes) {
    ssize_t n;
    do
        n = read(fd, to, (size_t)bytes);
    while (n < 0 && errno == EINTR);
    return n >= 0 ? n : -errno;
}

/* Whether two descriptors are of one file. */
CDP__PRIVATE bool cdp__process_same_file(int32_t a, int32_t b) {
    struct stat one, other;
    return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev
        && one.st_ino == other.st_ino;
}

/* Writes all of it, waiting for the reader. Returns 0 or -errno. */
CDP__PRIVATE int32_t cdp__process_write(int32_t fd, const void *from, uint64_t bytes) {
    const char *at = (const char *)from;
    while (bytes) {
        const ssize_t n = write(fd, at, (size_t)bytes);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {fd, POLLOUT, 0};
            (void)poll(&p, 1, 100);
            continue;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -errno;
        at += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* Writes the first of these bytes without waiting for a reader; `fd` is shared with other
   processes, so it stays a blocking one. Returns how many, 0 where there is no room, or -errno. */
CDP__PRIVATE int64_t cdp__process_put(int32_t fd, const void *from, uint64_t bytes) {
    struct pollfd p = {fd, POLLOUT, 0};
    ssize_t n;
    if (poll(&p, 1, 0) <= 0) return 0;
    n = write(fd, from, (size_t)cdp__min(bytes, CDP__PROCESS_PUT));
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    return n >= 0 ? n : -errno;
}

CDP__PRIVATE void cdp__process_close(int32_t fd) {
    if (fd >= 0) close(fd);
}

/* Returns when one of these has something to read, or its end, and after `ms` at the latest.
   Negative descriptors are left out; of more than 64, the first 64 count. */
CDP__PRIVATE void cdp__process_wait(const int32_t *fds, uint32_t count, uint32_t ms) {
    struct pollfd p[64];
    uint32_t n = 0, i;
    for (i = 0; i < count && n < 64; ++i) {
        if (fds[i] < 0) continue;
        p[n].fd = fds[i];
        p[n].events = POLLIN;
        p[n++].revents = 0;
    }
    (void)poll(p, (nfds_t)n, (int)ms);
}

CDP__PRIVATE char **cdp__process_variables(void) {
    return environ;
}

CDP__PRIVATE void cdp__process_host(char *name, uint64_t room) {
    if (gethostname(name, (size_t)room - 1) != 0) name[0] = 0;
    name[room - 1] = 0;
}

CDP__PRIVATE void cdp__process_flush(void) {
#ifndef CDP_NO_STDIO
    (void)fflush(NULL);
#endif
}

/* In the child: calls nothing that takes a lock of the parent before exec. */
CDP__PRIVATE void cdp__process_become(const cdp__process_plan *p, pid_t parent) {
    const int null = p->keeps_in ? 0 : open("/dev/null", O_RDONLY);
    sigset_t none;
    int32_t what[2];
    int err = 0, i;
    setpgid(0, 0);
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL, 0L, 0L, 0L);
#endif
    if (getppid() != parent) _exit(1); /* it died before the line above */
    if (null < 0 || dup2(null, 0) < 0) err = errno;
    for (i = 0; i < 2; ++i)
        if (p->out[i] >= 0 && dup2(p->out[i], i + 1) < 0) err = errno;
    if (null > 2) close(null);
    if (p->ready) {
        p->ready(p->ready_user);
    } else {
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
    }
    if (!err && p->cores) err = -cdp__cores_bind_here(p->cores);
    environ = p->env;
    if (!err && !p->words) {
        close(p->told);
        const int code = p->func(p->user);
        cdp__process_flush();
        _exit(code);
    }
    if (!err) {
        union { /* exec takes what it does not change as `char *const *` */
            const char *const *in;
            char *const *out;
        } words;
        words.in = p->words;
        execvp(p->words[0], words.out);
        err = errno;
    }
    what[0] = p->number;
    what[1] = err;
    (void)cdp__process_write(p->told, what, sizeof what);
    _exit(127);
}

/* Returns the process, or -errno. */
CDP__PRIVATE int32_t cdp__process_start(const cdp__process_plan *p) {
    const pid_t parent = getpid();
    pid_t pid;
    cdp__process_flush(); /* or a function would write it again at its end */
    pid = fork();
    if (pid < 0) return -errno;
    if (pid == 0) cdp__process_become(p, parent);
    setpgid(pid, pid); /* as in the child: whoever is first */
    return (int32_t)pid;
}

CDP__PRIVATE void cdp__process_end_of(int status, cdp__process_end *out) {
    out->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    out->sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* Whether it has ended: 1, and *out; 0: not yet; -errno: its end cannot be known. */
CDP__PRIVATE int32_t cdp__process_ended(int32_t pid, cdp__process_end *out) {
    int status = 0;
    const pid_t got = waitpid((pid_t)pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) return 0;
    if (got < 0) return -errno;
    cdp__process_end_of(status, out);
    return 1;
}

/* To the process and all of its group. A stopped process goes on, so that it can end. */
CDP__PRIVATE void cdp__process_signal(int32_t pid, int32_t sig) {
    if (kill(-(pid_t)pid, sig) == 0 && sig != SIGKILL) kill(-(pid_t)pid, SIGCONT);
}

/* By a mistake in the program, or killed: more likely a first cause than an exit code. */
CDP__PRIVATE bool cdp__process_crashed(int32_t sig) {
    static const int crashes[] = {
        SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGKILL, SIGSYS, SIGTRAP};
    uint32_t i;
    for (i = 0; i < sizeof crashes / sizeof *crashes; ++i)
        if (crashes[i] == sig) return true;
    return false;
}

CDP__PRIVATE const char *cdp__process_signal_words(int32_t sig) {
    return strsignal(sig);
}

/* NULL: it has none here. */
CDP__PRIVATE const char *cdp__process_signal_name(int32_t sig) {
    static const struct {
        int sig;
        const char *name;
    } table[] = {{SIGHUP, "SIGHUP"}, {SIGINT, "SIGINT"}, {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
        {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"},
        {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
        {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"}, {SIGXCPU, "SIGXCPU"},
        {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"}};
    uint32_t i;
    for (i = 0; i < sizeof table / sizeof *table; ++i)
        if (table[i].sig == sig) return table[i].name;
    return NULL;
}
#endif

/* ---- >>os/free_port: a port of this machine that nobody has ---------------------------------- */

/* Knows: sockets, and Linux's abstract names. Promises: the port was free a moment ago; on Linux no
   other caller of this gets it while the claim is held. For cdp_launch.h. */

#include <stddef.h>
#include <string.h>

/* The socket is closed before rank 0 starts: one that stays bound would stop every server that does
   not set SO_REUSEADDR. What then keeps others off the port until rank 0 listens:
   * other launchers: a name in Linux's abstract socket namespace, one per port, which is held for
     the whole job. It belongs to the same network namespace as the port, is seen by all users,
     needs no file, and goes when its holder dies.
   * outgoing connections: Linux gives even ports to connect() and odd ones to bind() until one half
     is used up.
   * other servers that ask for any free port: nothing but luck; the choice of the kernel is random
     in some 14,000 ports. */

#if defined(CDP_NO_OS) || defined(_WIN32)
CDP__PRIVATE int32_t cdp__port_any(const cdp_os *os) {
    cdp_addr at, bound;
    int32_t fd = -ENOSYS;
    memset(&at, 0, sizeof at);
    memset(&bound, 0, sizeof bound);
    at.family = 4;
    at.ip[0] = 127;
    at.ip[3] = 1;
    if (os->net.listen_at) fd = os->net.listen_at(os->user, &at, &bound);
    if (fd < 0) return fd;
    os->net.close_fd(os->user, fd);
    return bound.port;
}
#else
/* The kernel chooses, on the wildcard address, because rank 0 may listen on any address of this
   machine; with IPv6 on both families at once. */
CDP__PRIVATE int32_t cdp__port_any(const cdp_os *os) {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } at;
    const int off = 0;
    int32_t port = 0;
    int family = AF_INET6;
    (void)os;
    for (; port <= 0; family = AF_INET) {
        socklen_t length = family == AF_INET6 ? sizeof at.six : sizeof at.four;
        const int fd = socket(family, SOCK_STREAM, 0);
        memset(&at, 0, sizeof at);
        at.any.sa_family = (sa_family_t)family;
        if (fd >= 0
            && (family == AF_INET
                || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0)
            && bind(fd, &at.any, length) == 0 && getsockname(fd, &at.any, &length) == 0)
            port = ntohs(family == AF_INET6 ? at.six.sin6_port : at.four.sin_port);
        else
            port = -errno;
        if (fd >= 0) close(fd);
        if (family == AF_INET) break; /* a machine without IPv6 has been tried, too */
    }
    return port;
}
#endif

#if defined(__linux__) && !defined(CDP_NO_OS)
#include <sys/un.h>

/* False only if another launcher has this port. *held is the socket that holds it, in place of the
   one before. */
CDP__PRIVATE bool cdp__port_claim(int32_t port, int32_t *held) {
    static const char name[] = "cdprun/port/";
    struct sockaddr_un at;
    size_t n = sizeof name - 1;
    int32_t rest = 10000;
    const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    int reason;
    if (fd < 0) return true;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    memset(&at, 0, sizeof at);
    at.sun_family = AF_UNIX;
    memcpy(at.sun_path + 1, name, n); /* a zero before it: an abstract name */
    for (; rest > 0; rest /= 10)
        if (port >= rest) at.sun_path[1 + n++] = (char)('0' + port / rest % 10);
    n += offsetof(struct sockaddr_un, sun_path) + 1;
    reason = bind(fd, (const struct sockaddr *)&at, (socklen_t)n) == 0 ? 0 : errno;
    if (reason) {
        close(fd);
        return reason != EADDRINUSE;
    }
    if (*held >= 0) close(*held);
    *held = fd;
    return true;
}
#else
CDP__PRIVATE bool cdp__port_claim(int32_t port, int32_t *held) {
    (void)port;
    (void)held;
    return true;
}
#endif

/* Returns a port, or -errno. *held: a descriptor to close in the end, or -1, as before the first
   call. */
CDP__PRIVATE int32_t cdp__free_port(const cdp_os *os, int32_t *held) {
    int tries = 0;
    for (; tries < 100; ++tries) {
        const int32_t port = cdp__port_any(os);
        if (port < 0 || cdp__port_claim(port, held)) return port;
    }
    return -EADDRINUSE;
}

/* ---- >>launch/facts: what every launcher knows: how a process ended, which of two failures was the  */

/* first, what a rank wrote to its error file, where its files lie

   Knows: ends of processes, error files, names of files. Promises: the agent of this header and
   tools/cdprun say the same of the same end. */

#include <string.h>

#define CDP__LAUNCH_WORKERS 4096u       /* of one machine: a typing error is no fork bomb */
#define CDP__LAUNCH_ERROR_FILE 1048576u /* bytes of an error file that are read */
#define CDP__LAUNCH_OVERTAKE_MS 100u    /* how much later than its victims a crash may be seen */
#define CDP__LAUNCH_KEY 65u             /* bytes of a new secret, with the zero at its end */

/* Whether a name fits into one line of a file: 1 to `most` characters, none of them a control
   character. */
CDP__PRIVATE bool cdp__launch_label_fits(const char *label, size_t most) {
    const size_t length = strlen(label);
    size_t i;
    for (i = 0; i < length; ++i)
        if ((unsigned char)label[i] < ' ') return false;
    return length > 0 && length <= most;
}

/* A process of a job. */
typedef struct cdp__launch_process {
    int32_t pid;       /* 0: not started */
    bool ended, by_us; /* by_us: by a signal that the launcher had sent */
    cdp__process_end end;
    uint64_t begun_ns, end_ns;
} cdp__launch_process;

/* "SIGTERM", "signal 34". */
CDP__PRIVATE void cdp__launch_signal_text(cdp__text *t, int32_t sig) {
    const char *const name = cdp__process_signal_name(sig);
    if (name)
        cdp__text_add(t, "%s", name);
    else
        cdp__text_add(t, "signal %d", (int)sig);
}

/* "exit code 7", "killed by SIGSEGV (Segmentation fault)", "SIGTERM from the agent", "did not end";
   `us`: what this launcher calls itself. */
CDP__PRIVATE void cdp__launch_end_text(cdp__text *t, const cdp__launch_process *p, const char *us) {
    if (!p->ended) {
        cdp__text_add(t, p->pid ? "did not end" : "did not start");
    } else if (!p->end.sig) {
        cdp__text_add(t, "exit code %d", (int)p->end.exit_code);
    } else if (p->by_us) {
        cdp__launch_signal_text(t, p->end.sig);
        cdp__text_add(t, " from %s", us);
    } else {
        cdp__text_add(t, "killed by ");
        cdp__launch_signal_text(t, p->end.sig);
        cdp__text_add(t, " (%s)", cdp__process_signal_words(p->end.sig));
    }
}

/* As a shell has it: 128 and the number of a signal. */
CDP__PRIVATE int32_t cdp__launch_exit_code(const cdp__process_end *end) {
    return end->sig ? 128 + end->sig : end->exit_code;
}

/* 0: well; 1: by an exit code or a signal that asks; 2: a crash, which is more likely the first
   cause than an exit code, by which the survivors of a job report that they have lost a peer. */
CDP__PRIVATE int cdp__launch_blame(const cdp__launch_process *p) {
    if (!p->ended || (p->end.exit_code == 0 && !p->end.sig)) return 0;
    return p->end.sig && cdp__process_crashed(p->end.sig) ? 2 : 1;
}

/* Whether `late`, whose failure was seen after that of `first`, failed before it: a killed process
   loses its connections a moment before its parent can see its end. SIGABRT is how some programs
   end when they have lost a peer. */
CDP__PRIVATE bool cdp__launch_overtaken(
    const cdp__launch_process *first, const cdp__launch_process *late) {
    if (late->by_us || cdp__launch_blame(first) != 1 || cdp__launch_blame(late) != 2) return false;
    return late->end.sig != CDP__PROCESS_ABORT
        && late->end_ns - first->end_ns < CDP__LAUNCH_OVERTAKE_MS * CDP__MS;
}

/* The first text under `key` in `bytes` of JSON, on one line: control characters become blanks or
   '?'. `text` has as many bytes as the JSON. */
CDP__PRIVATE void cdp__launch_member_in(
    const char *data, uint64_t bytes, char *text, const char *key, char *out, uint64_t room) {
    cdp__json_reader r = cdp__json_open(data, bytes);
    bool here = false, found = false;
    cdp__json_kind k;
    uint64_t i;
    while (!found && (k = cdp__json_next(&r)) > CDP__JSON_END) {
        const bool is = k == CDP__JSON_KEY || k == CDP__JSON_TEXT;
        const uint64_t length = is ? cdp__json_decode(&r, text) : 0;
        found = here && k == CDP__JSON_TEXT;
        here =
            k == CDP__JSON_KEY && length == strlen(key) && memcmp(text, key, (size_t)length) == 0;
        for (i = 0; found && i < length; ++i)
            if ((unsigned char)text[i] < ' ') text[i] = ' ';
        if (found) cdp__text_foreign(out, room, text, length);
    }
}

/* The same of the error file of a rank: {"message": {"message": "..."}} or {"message": "..."}.
   Empty: there is none, or no memory; what follows a mistake in the file is not read. */
CDP__PRIVATE void cdp__launch_member(
    const cdp_os *os, const char *path, const char *key, char *out, uint64_t room) {
    const cdp_os_files *const f = &os->files;
    const int32_t fd = f->open_file && *path ? f->open_file(os->user, path, 0) : -1;
    cdp_file_info info;
    char *data = NULL;
    uint64_t bytes = 0;
    int64_t n;
    out[0] = 0;
    if (fd < 0) return;
    if (f->file_info(os->user, fd, &info) == 0) bytes = info.bytes;
    bytes = cdp__min(bytes, CDP__LAUNCH_ERROR_FILE);
    if (bytes) data = (char *)cdp__alloc(os, 2 * bytes);
    n = data ? f->read_at(os->user, fd, 0, data, bytes) : 0;
    if (n > 0) cdp__launch_member_in(data, (uint64_t)n, data + bytes, key, out, room);
    (void)f->close_file(os->user, fd);
    cdp__free(os, data);
}

/* When a rank wrote its error file, in microseconds since 1970, as cdp_error_record() puts it
   there; 0: not known. */
CDP__PRIVATE uint64_t cdp__launch_error_time(const cdp_os *os, const char *path) {
    char text[32];
    const char *p = text;
    uint64_t us = 0;
    cdp__launch_member(os, path, "timestamp_us", text, sizeof text);
    for (; *p >= '0' && *p <= '9'; ++p)
        us = us * 10 + (uint64_t)(*p - '0');
    return us;
}

/* The file `name` of a rank in an attempt: in a folder of its own, as torchrun has them; or, where
   `between` is not NULL, side by side, with that after `folder`. False: it does not fit. */
CDP__PRIVATE bool cdp__launch_path(char *out, uint64_t room, const char *folder,
    const char *between, uint32_t attempt, uint32_t local_rank, const char *name) {
    cdp__text t = cdp__text_of(out, room);
    cdp__text_add(&t, "%s", folder);
    if (between)
        cdp__text_add(&t, "%s%u.%u.%s", between, attempt, local_rank, name);
    else
        cdp__text_add(&t, "/attempt_%u/%u/%s", attempt, local_rank, name);
    return t.used < room;
}

/* Makes the folders of an attempt. Returns 0 or -errno, with the folder in `path`. */
CDP__PRIVATE int32_t cdp__launch_folders(const cdp_os *os, const char *folder, uint32_t attempt,
    uint32_t workers, char *path, uint64_t room) {
    uint32_t i;
    for (i = 0; i <= workers; ++i) { /* the first one holds the others */
        int32_t err = -ENOSYS;
        cdp__format(path, room, "%s/attempt_%u", folder, attempt);
        if (i) cdp__format(path, room, "%s/attempt_%u/%u", folder, attempt, i - 1);
        if (os->files.make_folder) err = os->files.make_folder(os->user, path);
        if (err && err != -EEXIST) return err;
    }
    return 0;
}

/* A new secret for the ranks of a job. Returns false where the system has no random bytes. */
CDP__PRIVATE bool cdp__launch_key(const cdp_os *os, char out[CDP__LAUNCH_KEY]) {
    unsigned char random[(CDP__LAUNCH_KEY - 1) / 2];
    uint32_t i;
    if (os->random(os->user, random, sizeof random) != CDP_OK) return false;
    for (i = 0; i < sizeof random; ++i) {
        out[2 * i] = "0123456789abcdef"[random[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[random[i] & 15];
    }
    out[2 * i] = 0;
    cdp__wipe(random, sizeof random);
    return true;
}

/* ---- >>launch/variables: the variables of a rank, as torchrun's workers find them ------------ */

/* Knows: their names, and where their values come from. Promises: each is set or taken away, so
   that none reaches a rank from a launcher around this one; but those of ranks that stay are the
   caller's where this launcher starts none. */

#include <stddef.h>
#include <string.h>

/* What the variables say. */
typedef struct cdp__launch_place {
    uint32_t rank, world, local_rank, local_world, node, nodes, role_rank, role_world;
    uint32_t restarts, max_restarts, master_port;
    /* NULL: the variable is taken away */
    const char *role, *run_id, *master_addr, *error_file, *timer_file, *job_key, *trust_network,
        *agent_store;
    const char *threads;    /* NULL: OMP_NUM_THREADS stays as it is */
    const char *elastic_id; /* of a rank that stays (cdp_elastic.h); NULL: taken away */
    /* of the others of them; NULL: stays as it is, but where `elastic` is set it is taken away */
    const char *elastic, *elastic_job, *elastic_servers;
} cdp__launch_place;

typedef enum cdp__launch_value {
    CDP__LAUNCH_NUMBER,
    CDP__LAUNCH_TEXT,
    CDP__LAUNCH_MAYBE, /* a text of ranks that stay; NULL: see cdp__launch_place */
    CDP__LAUNCH_HINT   /* the same, and it may be set by the user */
} cdp__launch_value;

typedef struct cdp__launch_variable {
    const char *name;
    cdp__launch_value kind;
    size_t at; /* in cdp__launch_place */
} cdp__launch_variable;

/* NULL after the last one. */
CDP__PRIVATE const cdp__launch_variable *cdp__launch_variable_at(uint32_t i) {
#define CDP__ROW(name, kind, member) \
    { name, CDP__LAUNCH_##kind, offsetof(cdp__launch_place, member) }
    static const cdp__launch_variable table[] = {
        CDP__ROW("RANK", NUMBER, rank),
        CDP__ROW("WORLD_SIZE", NUMBER, world),
        CDP__ROW("LOCAL_RANK", NUMBER, local_rank),
        CDP__ROW("LOCAL_WORLD_SIZE", NUMBER, local_world),
        CDP__ROW("GROUP_RANK", NUMBER, node),
        CDP__ROW("GROUP_WORLD_SIZE", NUMBER, nodes),
        CDP__ROW("ROLE_RANK", NUMBER, role_rank),
        CDP__ROW("ROLE_WORLD_SIZE", NUMBER, role_world),
        CDP__ROW("ROLE_NAME", TEXT, role),
        CDP__ROW("MASTER_ADDR", TEXT, master_addr),
        CDP__ROW("MASTER_PORT", NUMBER, master_port),
        CDP__ROW("TORCHELASTIC_RESTART_COUNT", NUMBER, restarts),
        CDP__ROW("TORCHELASTIC_MAX_RESTARTS", NUMBER, max_restarts),
        CDP__ROW("TORCHELASTIC_RUN_ID", TEXT, run_id),
        CDP__ROW("TORCHELASTIC_USE_AGENT_STORE", TEXT, agent_store),
        CDP__ROW("TORCHELASTIC_ERROR_FILE", TEXT, error_file),
        CDP__ROW("CDP_TIMER_FILE", TEXT, timer_file),
        CDP__ROW("CDP_JOB_KEY", TEXT, job_key),
        CDP__ROW("CDP_TRUST_NETWORK", TEXT, trust_network),
        CDP__ROW("CDP_ELASTIC", MAYBE, elastic),
        CDP__ROW("CDP_ELASTIC_ID", TEXT, elastic_id),
        CDP__ROW("CDP_ELASTIC_JOB", MAYBE, elastic_job),
        CDP__ROW("CDP_ELASTIC_SERVERS", MAYBE, elastic_servers),
        CDP__ROW("OMP_NUM_THREADS", HINT, threads),
    };
#undef CDP__ROW
    return i < sizeof table / sizeof *table ? &table[i] : NULL;
}

/* Whether a launcher sets this variable, so that a user cannot. */
CDP__PRIVATE bool cdp__launch_owns(const char *name, uint64_t length) {
    const cdp__launch_variable *v;
    uint32_t i;
    for (i = 0; (v = cdp__launch_variable_at(i)) != NULL; ++i)
        if (v->kind != CDP__LAUNCH_HINT && strlen(v->name) == length
            && memcmp(v->name, name, (size_t)length) == 0)
            return true;
    return false;
}

/* Settings that are the same for every launcher: rank 0 serves the store. `key` is NULL where
   whoever reaches the ports may take part. `threads`: of a rank whose user gives no
   OMP_NUM_THREADS, or n ranks would use n times the cores; NULL: as it is. */
CDP__PRIVATE void cdp__launch_place_common(
    cdp__launch_place *p, const char *key, const char *threads) {
    p->agent_store = "False";
    p->job_key = key;
    p->trust_network = key ? NULL : "1";
    p->threads = threads;
}

/* Calls put() for each variable; `value` NULL: take it away. */
CDP__PRIVATE void cdp__launch_variables(const cdp__launch_place *p,
    void (*put)(void *user, const char *name, const char *value), void *user) {
    const cdp__launch_variable *v;
    uint32_t i;
    for (i = 0; (v = cdp__launch_variable_at(i)) != NULL; ++i) {
        const void *const at = (const char *)p + v->at;
        char text[16];
        const char *value = text;
        if (v->kind == CDP__LAUNCH_NUMBER)
            cdp__format(text, sizeof text, "%u", *(const uint32_t *)at);
        else
            value = *(const char *const *)at;
        if (value || v->kind == CDP__LAUNCH_TEXT || (v->kind == CDP__LAUNCH_MAYBE && p->elastic))
            put(user, v->name, value);
    }
}

/* ---- >>launch/console: stdout and stderr of a launcher: text that waits for its reader ------- */

/* Knows: descriptors, memory for what is not written yet. Promises: never waits for a reader;
   texts of several sources do not mix within a line; one file has one queue. */

#include <string.h>

#define CDP__LAUNCH_UNREAD 262144u /* unwritten bytes above which ranks are no longer read */

typedef struct cdp__launch_sink {
    const cdp_os *os;
    int32_t fd;
    char *data; /* [start, end) is not written yet */
    uint64_t start, end, room;
    bool color;
    bool closed, told; /* closed: a write has failed, all is discarded; told: the caller knows */
    bool mid_line;     /* the last byte did not end a line ... */
    const void *last;  /* ... and came from this source; NULL: the launcher itself */
    int32_t err;       /* why it is closed: EPIPE if its reader has gone */
} cdp__launch_sink;

typedef struct cdp__launch_console {
    cdp__launch_sink sinks[2], *to[2]; /* stdout, stderr */
} cdp__launch_console;

CDP__PRIVATE void cdp__launch_console_open(cdp__launch_console *c, const cdp_os *os) {
    memset(c, 0, sizeof *c);
    c->sinks[0].os = c->sinks[1].os = os;
    c->sinks[0].fd = 1;
    c->sinks[1].fd = 2;
    c->to[0] = c->to[1] = &c->sinks[0]; /* one queue for one file, or lines could mix */
    if (!cdp__process_same_file(1, 2)) c->to[1] = &c->sinks[1];
}

CDP__PRIVATE void cdp__launch_console_close(cdp__launch_console *c) {
    int i;
    for (i = 0; i < 2; ++i)
        if (c->sinks[i].os) cdp__free(c->sinks[i].os, c->sinks[i].data);
    memset(c, 0, sizeof *c);
}

CDP__PRIVATE uint64_t cdp__launch_pending(const cdp__launch_sink *k) {
    return k->end - k->start;
}

CDP__PRIVATE bool cdp__launch_sink_full(const cdp__launch_sink *k) {
    return cdp__launch_pending(k) > CDP__LAUNCH_UNREAD;
}

CDP__PRIVATE void cdp__launch_sink_fail(cdp__launch_sink *k, int32_t err) {
    k->err = err;
    k->closed = true;
    k->start = k->end = 0;
}

/* Room for n bytes more. False: no memory, the sink is closed. */
CDP__PRIVATE bool cdp__launch_sink_room(cdp__launch_sink *k, uint64_t n) {
    const uint64_t kept = cdp__launch_pending(k);
    uint64_t room = k->room ? k->room : 4096;
    char *data = k->data;
    if (k->end + n <= k->room) return true;
    while (kept + n > room)
        room *= 2;
    if (room != k->room) data = (char *)cdp__alloc(k->os, room);
    if (!data) {
        cdp__launch_sink_fail(k, ENOMEM);
        return false;
    }
    if (kept) memmove(data, k->data + k->start, (size_t)kept);
    if (data != k->data) cdp__free(k->os, k->data);
    k->data = data;
    k->room = room;
    k->start = 0;
    k->end = kept;
    return true;
}

CDP__PRIVATE void cdp__launch_put(cdp__launch_sink *k, const char *text, uint64_t n) {
    if (k->closed || n == 0 || !cdp__launch_sink_room(k, n)) return;
    memcpy(k->data + k->end, text, (size_t)n);
    k->end += n;
    k->mid_line = text[n - 1] != '\n' && text[n - 1] != '\r';
}

/* Before text from another source, an open line is ended. */
CDP__PRIVATE void cdp__launch_source(cdp__launch_sink *k, const void *source) {
    if (k->mid_line && k->last != source) cdp__launch_put(k, "\n", 1);
    k->last = source;
}

/* Writes what the reader takes now. */
CDP__PRIVATE void cdp__launch_flush(cdp__launch_sink *k) {
    while (cdp__launch_pending(k)) {
        const int64_t n = cdp__process_put(k->fd, k->data + k->start, cdp__launch_pending(k));
        if (n == 0) return;
        if (n < 0) {
            cdp__launch_sink_fail(k, (int32_t)-n);
            return;
        }
        k->start += (uint64_t)n;
    }
    k->start = k->end = 0;
}

/* ---- >>launch/stream: what one rank writes to stdout or stderr: bytes in, lines out ---------- */

/* Knows: a pipe, a log, a console. Promises: whole lines behind the rank, up to a length; progress
   text appears as lines, at most one a second; the last bytes are kept; a full disk ends nobody. */

#include <stddef.h>
#include <string.h>

#define CDP__LAUNCH_LINE 65536u   /* longest line that is kept whole */
#define CDP__LAUNCH_TAIL 4096u    /* last output that a report repeats */
#define CDP__LAUNCH_SHOW_MS 1000u /* between two lines of progress text */
#define CDP__LAUNCH_HOLD_MS 20u   /* for the '\n' after a '\r' to arrive */

typedef struct cdp__launch_stream {
    const cdp_os *os;
    cdp__launch_sink *to;
    int32_t fd;                  /* -1: ended, or it goes to its file alone */
    int32_t log;                 /* a file that gets every byte; -1: none */
    int32_t log_err;             /* why the log was given up; 0: it was not */
    bool quiet;                  /* nothing goes to the console */
    bool cut;                    /* what comes next continues a line that was too long */
    bool eat_newline;            /* the held text was shown, only its '\n' may follow */
    char prefix[48];             /* before each line; empty: bytes go on as they are */
    uint64_t shown_ns, due_ns;   /* progress text: last shown; when to show the held one */
    uint64_t total;              /* bytes put into tail so far */
    uint64_t length;             /* bytes in line */
    char tail[CDP__LAUNCH_TAIL]; /* ring of the last lines */
    char line[CDP__LAUNCH_LINE]; /* text whose end has not come yet; pages that stay unused cost
                                    nothing */
} cdp__launch_stream;

CDP__PRIVATE uint64_t cdp__launch_now(const cdp_os *os) {
    return os->now_ns(os->user);
}

/* A stream that has ended. NULL: no memory. */
CDP__PRIVATE cdp__launch_stream *cdp__launch_stream_new(const cdp_os *os, cdp__launch_sink *to) {
    cdp__launch_stream *const s = (cdp__launch_stream *)cdp__alloc(os, sizeof *s);
    if (!s) return NULL;
    memset(s, 0, offsetof(cdp__launch_stream, tail));
    s->os = os;
    s->to = to;
    s->fd = s->log = -1;
    s->due_ns = CDP__NEVER;
    return s;
}

/* "[ 3]", as wide as the number of the last rank, in a colour of its own where the console has
   colours. */
CDP__PRIVATE void cdp__launch_stream_prefix(cdp__launch_stream *s, uint32_t rank, uint32_t world) {
    static const uint32_t colors[] = {36, 33, 32, 35, 34, 31};
    const uint64_t width = cdp__format(NULL, 0, "%u", world - 1);
    uint64_t n = cdp__format(NULL, 0, "%u", rank);
    cdp__text t = cdp__text_of(s->prefix, sizeof s->prefix);
    if (s->to->color)
        cdp__text_add(&t, "\033[%um", colors[rank % (sizeof colors / sizeof *colors)]);
    cdp__text_char(&t, '[');
    for (; n < width; ++n)
        cdp__text_char(&t, ' ');
    cdp__text_add(&t, "%u]%s", rank, s->to->color ? "\033[0m" : "");
}

CDP__PRIVATE void cdp__launch_tail_add(cdp__launch_stream *s, const char *from, uint64_t bytes) {
    uint64_t i;
    for (i = 0; i < bytes; ++i)
        s->tail[s->total++ % CDP__LAUNCH_TAIL] = from[i];
}

/* Copies the last bytes, without the piece of a line that they begin with. */
CDP__PRIVATE void cdp__launch_tail_copy(
    const cdp__launch_stream *s, char out[CDP__LAUNCH_TAIL + 1]) {
    const uint64_t kept = cdp__min(s->total, (uint64_t)CDP__LAUNCH_TAIL);
    uint64_t i;
    const char *begin;
    for (i = 0; i < kept; ++i)
        out[i] = s->tail[(s->total - kept + i) % CDP__LAUNCH_TAIL];
    out[kept] = 0;
    begin = kept < s->total ? strchr(out, '\n') : NULL;
    if (begin && begin[1]) memmove(out, begin + 1, strlen(begin + 1) + 1);
}

/* One line or a piece of one, without its end; without a prefix: bytes as they are. */
CDP__PRIVATE void cdp__launch_emit(cdp__launch_stream *s, const char *text, uint64_t n) {
    const bool lines = s->prefix[0] != 0;
    if (lines && n > 0 && text[n - 1] == '\r') --n;
    cdp__launch_tail_add(s, text, n);
    if (lines) cdp__launch_tail_add(s, "\n", 1);
    if (s->quiet || (!lines && n == 0)) return;
    cdp__launch_source(s->to, s);
    if (lines) cdp__launch_put(s->to, s->prefix, strlen(s->prefix));
    if (lines) cdp__launch_put(s->to, s->cut ? "+" : " ", 1);
    cdp__launch_put(s->to, text, n);
    if (lines) cdp__launch_put(s->to, "\n", 1);
}

/* Length of the first complete line, its end included; 0: not complete. A '\r' alone ends
   progress text; whether one at the very end is alone will only be known with the next byte. */
CDP__PRIVATE uint64_t cdp__launch_line_length(const char *text, uint64_t n, bool *progress) {
    uint64_t i = 0;
    *progress = false;
    while (i < n && text[i] != '\n' && text[i] != '\r')
        ++i;
    if (i == n) return 0;
    if (text[i] == '\n') return i + 1;
    if (i + 1 == n) return 0;
    if (text[i + 1] == '\n') return i + 2;
    *progress = true;
    return i + 1;
}

/* Shows the complete lines; returns how many bytes they have. */
CDP__PRIVATE uint64_t cdp__launch_lines(cdp__launch_stream *s) {
    uint64_t at = 0, used;
    bool progress;
    if (!s->prefix[0]) {
        at = s->length;
        while (at > 0 && s->line[at - 1] != '\n' && s->line[at - 1] != '\r')
            --at;
        cdp__launch_emit(s, s->line, at);
        return at;
    }
    if (s->eat_newline && s->length > 0) {
        at = s->line[0] == '\n';
        s->eat_newline = false;
    }
    for (; (used = cdp__launch_line_length(s->line + at, s->length - at, &progress)) > 0;
         at += used) {
        const uint64_t now = progress ? cdp__launch_now(s->os) : 0;
        const bool show =
            !progress || (used > 1 && now - s->shown_ns >= CDP__LAUNCH_SHOW_MS * CDP__MS);
        if (show) cdp__launch_emit(s, s->line + at, used - 1);
        if (show && progress) s->shown_ns = now;
        s->cut = false;
    }
    return at;
}

/* Passes on what the buffer holds: whole lines, or everything at the end and when a line is too
   long. */
CDP__PRIVATE void cdp__launch_split(cdp__launch_stream *s, bool all) {
    const uint64_t done = cdp__launch_lines(s), rest = s->length - done;
    memmove(s->line, s->line + done, (size_t)rest);
    s->length = rest;
    s->due_ns = CDP__NEVER;
    if (rest > 0 && (all || rest == CDP__LAUNCH_LINE)) {
        cdp__launch_emit(s, s->line, rest);
        s->cut = !all;
        s->length = 0;
    } else if (s->prefix[0] && rest > 1 && s->line[rest - 1] == '\r') {
        const uint64_t soon = cdp__launch_now(s->os) + CDP__LAUNCH_HOLD_MS * CDP__MS;
        s->due_ns = s->shown_ns + CDP__LAUNCH_SHOW_MS * CDP__MS;
        if (s->due_ns < soon) s->due_ns = soon;
    }
}

/* Progress text that has waited long enough for its '\n'. */
CDP__PRIVATE void cdp__launch_show_progress(cdp__launch_stream *s, uint64_t now) {
    if (now < s->due_ns) return;
    cdp__launch_emit(s, s->line, s->length);
    s->due_ns = CDP__NEVER;
    s->shown_ns = now;
    s->length = 0;
    s->eat_newline = true;
}

/* Passes on the rest and closes what the stream has. */
CDP__PRIVATE void cdp__launch_stream_end(cdp__launch_stream *s) {
    if (s->fd >= 0) cdp__launch_split(s, true);
    cdp__process_close(s->fd);
    cdp__process_close(s->log);
    s->fd = s->log = -1;
}

/* Begins anew, with another pipe and another log, which it closes. */
CDP__PRIVATE void cdp__launch_stream_begin(
    cdp__launch_stream *s, int32_t fd, int32_t log, bool quiet) {
    cdp__launch_stream_end(s);
    s->fd = fd;
    s->log = log;
    s->log_err = 0;
    s->quiet = quiet;
    s->cut = s->eat_newline = false;
    s->shown_ns = cdp__launch_now(s->os) - CDP__LAUNCH_SHOW_MS * CDP__MS;
    s->due_ns = CDP__NEVER;
    s->total = s->length = 0;
}

/* One read. False: nothing more to be had now. */
CDP__PRIVATE bool cdp__launch_pump(cdp__launch_stream *s) {
    char *const at = s->line + s->length;
    int64_t n;
    if (s->fd < 0) return false;
    n = cdp__process_read(s->fd, at, CDP__LAUNCH_LINE - s->length);
    if (n == -EAGAIN) return false;
    if (n <= 0) {
        cdp__launch_stream_end(s);
        return false;
    }
    if (s->log >= 0) s->log_err = cdp__process_write(s->log, at, (uint64_t)n);
    if (s->log >= 0 && s->log_err) { /* a full disk: it is given up */
        cdp__process_close(s->log);
        s->log = -1;
    }
    s->length += (uint64_t)n;
    cdp__launch_split(s, false);
    return true;
}

/* ---- >>launch/timer: timers of a worker, in a file that its launcher reads ------------------- */

/* Knows: the file: a text of 128 bytes for each timer, "NANOSECONDS LABEL" by the clock of the
   machine. Promises: whoever has the lock of the file sees whole texts. */

#include <stdlib.h>
#include <string.h>

#define CDP__TIMERS 16u
#define CDP__TIMER_LABEL 100u
#define CDP__TIMER_BYTES 128u
#define CDP__TIMER_LOCK_MS 1000u /* how long another thread may have the file */
#define CDP__TIMER_LOOK_MS 500u  /* how often a launcher reads the file */

/* Why a worker was killed, for its label. */
#define CDP__TIMER_SAYS "the time of the timer '%s' is over"

/* Puts the timer for which a worker was killed before what that has left in its error file. */
CDP__PRIVATE void cdp__timer_before(char *message, uint64_t room, const char *expired) {
    char left[512];
    if (!expired[0]) return;
    cdp__format(left, sizeof left, "%s", message);
    cdp__format(message, room, CDP__TIMER_SAYS "%s%s", expired,
        left[0] ? "; its error file says: " : "", left);
}

typedef struct cdp__timers {
    const cdp_os *os;
    int32_t fd;
    char slots[CDP__TIMERS][CDP__TIMER_BYTES];
} cdp__timers;

/* Opens, locks and reads the file. Returns 0 or -errno. */
CDP__PRIVATE int32_t cdp__timers_open(cdp__timers *t, const cdp_os *os, const char *path,
    uint32_t how, cdp_file_lock lock, uint32_t wait_ms) {
    const cdp_os_files *const f = &os->files;
    const uint64_t until = os->now_ns(os->user) + wait_ms * CDP__MS;
    int32_t err;
    uint32_t i;
    memset(t, 0, sizeof *t);
    t->os = os;
    t->fd = f->open_file ? f->open_file(os->user, path, how) : -ENOSYS;
    if (t->fd < 0) return t->fd;
    while ((err = f->lock_file(os->user, t->fd, lock)) == -EAGAIN) {
        const uint64_t now = os->now_ns(os->user);
        if (now >= until) break;
        cdp__sleep_until(os, now + CDP__MS);
    }
    if (err) {
        (void)f->close_file(os->user, t->fd);
        return err;
    }
    (void)f->read_at(os->user, t->fd, 0, t->slots, sizeof t->slots);
    for (i = 0; i < CDP__TIMERS; ++i)
        t->slots[i][CDP__TIMER_BYTES - 1] = 0;
    return 0;
}

/* Ends the lock, which a process that was forked meanwhile would keep. */
CDP__PRIVATE void cdp__timers_close(cdp__timers *t) {
    const cdp_os_files *const f = &t->os->files;
    (void)f->lock_file(t->os->user, t->fd, CDP_FILE_UNLOCK);
    (void)f->close_file(t->os->user, t->fd);
}

/* When the timer in a slot expires, and its label; 0: there is none. */
CDP__PRIVATE uint64_t cdp__timer_in(const char *slot, const char **label) {
    uint64_t at = 0;
    for (; *slot >= '0' && *slot <= '9'; ++slot)
        at = at * 10 + (uint64_t)(*slot - '0');
    *label = *slot == ' ' ? slot + 1 : "";
    return **label ? at : 0;
}

/* The slot of this label, or else one that is free; CDP__TIMERS: none. */
CDP__PRIVATE uint32_t cdp__timer_slot(const cdp__timers *t, const char *label, bool or_free) {
    uint32_t i, none = CDP__TIMERS;
    for (i = 0; i < CDP__TIMERS; ++i) {
        const char *is;
        const bool used = cdp__timer_in(t->slots[i], &is) != 0;
        if (used && strcmp(is, label) == 0) return i;
        if (!used && or_free && none == CDP__TIMERS) none = i;
    }
    return none;
}

CDP__PRIVATE int32_t cdp__timer_write(cdp__timers *t, uint32_t slot) {
    const int64_t n = t->os->files.write_at(
        t->os->user, t->fd, (uint64_t)slot * CDP__TIMER_BYTES, t->slots[slot], CDP__TIMER_BYTES);
    if (n < 0) return (int32_t)-n;
    return n == CDP__TIMER_BYTES ? 0 : EIO;
}

CDP_API cdp_status cdp_timer_begin(double seconds, const char *label) {
    const cdp_os *const os = cdp_os_default();
    const char *const path = getenv("CDP_TIMER_FILE");
    cdp__timers t;
    uint32_t slot;
    int32_t err;
    if (!label) return cdp__missing("cdp_timer_begin", "label");
    if (!cdp__launch_label_fits(label, CDP__TIMER_LABEL))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_timer_begin: the label has %zu characters; it must have 1 to %u, without control "
            "characters",
            strlen(label), CDP__TIMER_LABEL);
    if (!(seconds > 0 && seconds <= 1e9))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_timer_begin: the seconds of '%s' must be above 0 and at most 1e9", label);
    if (!path || !*path) return CDP_OK;
    err = cdp__timers_open(&t, os, path, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_PRIVATE,
        CDP_FILE_LOCK_ALONE, CDP__TIMER_LOCK_MS);
    if (err) return cdp__fail_peer(CDP_ERR_IO, -1, -err, "cdp_timer_begin: cannot open %s", path);
    slot = cdp__timer_slot(&t, label, true);
    if (slot < CDP__TIMERS) {
        memset(t.slots[slot], 0, CDP__TIMER_BYTES);
        cdp__format(t.slots[slot], CDP__TIMER_BYTES, "%llu %s",
            (unsigned long long)(os->now_ns(os->user) + (uint64_t)(seconds * 1e9)), label);
        err = cdp__timer_write(&t, slot);
    }
    cdp__timers_close(&t);
    if (slot == CDP__TIMERS)
        return cdp__fail(CDP_ERR_BUSY,
            "cdp_timer_begin: %u timers run already; end one before '%s' begins", CDP__TIMERS,
            label);
    if (!err) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, err, "cdp_timer_begin: cannot write %s", path);
}

CDP_API void cdp_timer_end(const char *label) {
    const char *const path = getenv("CDP_TIMER_FILE");
    cdp__timers t;
    uint32_t slot;
    if (!label || !path || !*path) return;
    if (cdp__timers_open(
            &t, cdp_os_default(), path, CDP_FILE_WRITE, CDP_FILE_LOCK_ALONE, CDP__TIMER_LOCK_MS)
        != 0)
        return;
    slot = cdp__timer_slot(&t, label, false);
    if (slot < CDP__TIMERS) {
        memset(t.slots[slot], 0, CDP__TIMER_BYTES);
        (void)cdp__timer_write(&t, slot);
    }
    cdp__timers_close(&t);
}

/* In a launcher: whether a timer in this file has expired, and which. Never waits: while the worker
   writes, the next look counts. */
CDP__PRIVATE bool cdp__timer_expired(
    const cdp_os *os, const char *path, char label[CDP__TIMER_LABEL + 1]) {
    const uint64_t now = os->now_ns(os->user);
    cdp__timers t;
    uint32_t i;
    bool expired = false;
    if (cdp__timers_open(&t, os, path, 0, CDP_FILE_LOCK_SHARED, 0) != 0) return false;
    for (i = 0; i < CDP__TIMERS && !expired; ++i) {
        const char *is;
        uint64_t at;
        at = cdp__timer_in(t.slots[i], &is);
        expired = at && now > at;
        if (expired) cdp__format(label, CDP__TIMER_LABEL + 1, "%s", is);
    }
    cdp__timers_close(&t);
    return expired;
}

/* ---- >>launch/metric: numbers under names, as lines of JSON ---------------------------------- */

/* Knows: files, two variables. Promises: a line is whole, also where processes share the file. */

#include <stdlib.h>
#include <string.h>

#define CDP__METRIC_NAME 200u
#define CDP__METRIC_LOCK_MS 1000u /* how long another process may have the file */

/* Writes `text` behind what the file holds. Returns 0 or -errno. */
CDP__PRIVATE int32_t cdp__metric_append(
    const cdp_os *os, const char *path, const char *text, uint64_t bytes) {
    const cdp_os_files *const f = &os->files;
    const uint64_t until = os->now_ns(os->user) + CDP__METRIC_LOCK_MS * CDP__MS;
    cdp_file_info info;
    int64_t n;
    int32_t err, closed;
    const int32_t fd =
        f->open_file ? f->open_file(os->user, path, CDP_FILE_WRITE | CDP_FILE_CREATE) : -ENOSYS;
    if (fd < 0) return fd;
    while ((err = f->lock_file(os->user, fd, CDP_FILE_LOCK_ALONE)) == -EAGAIN) {
        const uint64_t now = os->now_ns(os->user);
        if (now >= until) break;
        cdp__sleep_until(os, now + CDP__MS);
    }
    if (!err) {
        memset(&info, 0, sizeof info);
        err = f->file_info(os->user, fd, &info);
        n = err ? 0 : f->write_at(os->user, fd, info.bytes, text, bytes);
        if (!err && n < 0) err = (int32_t)n;
        if (!err && (uint64_t)n < bytes) {
            (void)f->cut_file(os->user, fd, info.bytes);
            err = -EIO;
        }
        (void)f->lock_file(os->user, fd, CDP_FILE_UNLOCK);
    }
    closed = f->close_file(os->user, fd);
    return err ? err : closed;
}

/* -1: RANK is no number of a rank. Not by strtol(), which the C library of a board may lack. */
CDP__PRIVATE int32_t cdp__metric_rank(void) {
    const char *at = getenv("RANK");
    uint32_t rank = 0;
    if (!at || !*at) return -1;
    for (; *at >= '0' && *at <= '9' && rank < 65535; ++at)
        rank = rank * 10 + (uint32_t)(*at - '0');
    return !*at && rank < 65535 ? (int32_t)rank : -1;
}

CDP__PRIVATE uint64_t cdp__metric_text(const cdp_metric *m, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    const uint32_t part = (uint32_t)(m->time_us / 1000 % 1000);
    cdp__text_add(&t, "{\"time\": %llu.%u%u%u, \"rank\": %d, \"name\": \"",
        (unsigned long long)(m->time_us / 1000000), part / 100, part / 10 % 10, part % 10,
        (int)m->rank);
    cdp__json_inside(&t, m->name);
    cdp__text_add(&t, "\", \"value\": ");
    cdp__json_real(&t, m->value, false);
    cdp__text_add(&t, "}\n");
    return cdp__text_end(&t);
}

CDP_API cdp_status cdp_metric_put(const cdp_metrics *to, const char *name, double value) {
    const char *path = to && to->path ? to->path : getenv("CDP_METRICS_FILE");
    char text[6 * CDP__METRIC_NAME + 160];
    cdp_metric m;
    int32_t err;
    if (!name) return cdp__missing("cdp_metric_put", "name");
    if (!cdp__launch_label_fits(name, CDP__METRIC_NAME))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_metric_put: the name has %zu characters; it must have 1 to %u, without control "
            "characters",
            strlen(name), CDP__METRIC_NAME);
    m.name = name;
    m.value = value;
    m.time_us = cdp__os_date_us();
    m.rank = cdp__metric_rank();
    if (to && to->func) {
        to->func(&m, to->user);
        return CDP_OK;
    }
    if (!path || !*path) return CDP_OK;
    err = cdp__metric_append(cdp_os_default(), path, text, cdp__metric_text(&m, text, sizeof text));
    if (!err) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, -err, "cdp_metric_put: cannot write %s", path);
}

/* ---- >>launch/state: what an agent knows of its workers -------------------------------------- */

/* Knows: desc, workers, phases. Promises: one struct for each worker, whose memory is the agent's;
   the path of every file of a worker is made here. */

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

/* ---- >>launch/environment: the variables of a worker ----------------------------------------- */

/* Knows: the names that torchrun's workers find. Promises: variables of this process, then those of
   the desc, then the agent's own, each name once; this process keeps its own as they are. */

#include <string.h>

typedef struct cdp__agent_env {
    char **at;
    uint32_t count;
    uint64_t used;
    char room[5 * CDP__AGENT_PATH]; /* the agent's own variables */
} cdp__agent_env;

CDP__PRIVATE uint32_t cdp__agent_list(const char *const *list) {
    uint32_t n = 0;
    while (list && list[n])
        ++n;
    return n;
}

/* Takes a variable out, of which this process may have several: `name` ends with '=' or a zero. */
CDP__PRIVATE void cdp__agent_env_drop(cdp__agent_env *e, const char *name) {
    const size_t length = strcspn(name, "=");
    uint32_t i, kept = 0;
    for (i = 0; i < e->count; ++i)
        if (strncmp(e->at[i], name, length) != 0 || e->at[i][length] != '=')
            e->at[kept++] = e->at[i];
    e->count = kept;
}

CDP__PRIVATE void cdp__agent_env_put(cdp__agent_env *e, char *variable) {
    cdp__agent_env_drop(e, variable);
    e->at[e->count++] = variable;
}

/* exec takes variables as `char *`, and changes none. */
CDP__PRIVATE void cdp__agent_env_list(cdp__agent_env *e, const char *const *list) {
    union {
        const char *in;
        char *out;
    } one;
    for (; list && *list; ++list) {
        one.in = *list;
        cdp__agent_env_put(e, one.out);
    }
}

CDP__PRIVATE void cdp__agent_env_text(cdp__agent_env *e, const char *name, const char *value) {
    char *const at = e->room + e->used;
    const uint64_t left = sizeof e->room - e->used;
    const uint64_t length = cdp__format(at, left, "%s=%s", name, value);
    if (length >= left) return; /* texts are limited at creation, so that all fit */
    e->used += length + 1;
    cdp__agent_env_put(e, at);
}

CDP__PRIVATE bool cdp__agent_env_has(const cdp__agent_env *e, const char *name) {
    const size_t length = strlen(name);
    uint32_t i;
    for (i = 0; i < e->count; ++i)
        if (strncmp(e->at[i], name, length) == 0 && e->at[i][length] == '=') return true;
    return false;
}

CDP__PRIVATE void cdp__agent_env_set(void *user, const char *name, const char *value) {
    cdp__agent_env *const e = (cdp__agent_env *)user;
    if (value)
        cdp__agent_env_text(e, name, value);
    else
        cdp__agent_env_drop(e, name);
}

/* Workers count by themselves in each role. */
CDP__PRIVATE void cdp__agent_place_role(const cdp_agent *a, uint32_t i, cdp__launch_place *p) {
    const char *const role = cdp__agent_role(a, i);
    uint32_t k, before = 0, here = 0;
    for (k = 0; k < a->desc.workers; ++k) {
        const bool same = strcmp(cdp__agent_role(a, k), role) == 0;
        here += same;
        before += same && k < i;
    }
    p->role = role;
    p->role_rank = a->desc.node_rank * here + before;
    p->role_world = a->desc.nodes * here;
}

CDP__PRIVATE void cdp__agent_env_own(
    const cdp_agent *a, cdp__agent_env *e, uint32_t i, uint16_t port) {
    const cdp_launch_desc *const d = &a->desc;
    cdp__launch_place p;
    memset(&p, 0, sizeof p);
    p.rank = cdp__agent_rank(a, i);
    p.world = d->workers * d->nodes;
    p.local_rank = i;
    p.local_world = d->workers;
    p.node = d->node_rank;
    p.nodes = d->nodes;
    p.restarts = a->attempt;
    p.max_restarts = d->max_restarts;
    p.master_port = port;
    cdp__agent_place_role(a, i, &p);
    p.run_id = d->run_id;
    p.master_addr = d->master_addr;
    p.error_file = a->workers[i].error_file;
    p.timer_file = a->workers[i].timer_file;
    cdp__launch_place_common(&p, d->trust_network ? NULL : a->key,
        !a->threads[0] || cdp__agent_env_has(e, "OMP_NUM_THREADS") ? NULL : a->threads);
    cdp__launch_variables(&p, cdp__agent_env_set, e);
}

/* All variables of worker i. The caller frees e->at. */
CDP__PRIVATE cdp_status cdp__agent_env_make(
    const cdp_agent *a, cdp__agent_env *e, uint32_t i, uint16_t port) {
    char **const mine = cdp__process_variables();
    const char *const *const extra = a->desc.env_of ? a->desc.env_of[i] : NULL;
    uint32_t n = 0, own = 0;
    while (mine && mine[n])
        ++n;
    while (cdp__launch_variable_at(own))
        ++own;
    e->count = 0;
    e->used = 0;
    n += cdp__agent_list(a->desc.env) + cdp__agent_list(extra) + own + 1;
    e->at = (char **)cdp__alloc(a->os, n * sizeof *e->at);
    if (!e->at) return cdp__fail(CDP_ERR_NOMEM, "cdp_agent_start: no memory for variables");
    for (n = 0; mine && mine[n]; ++n)
        e->at[e->count++] = mine[n];
    cdp__agent_env_list(e, a->desc.env);
    cdp__agent_env_list(e, extra);
    cdp__agent_env_own(a, e, i, port);
    e->at[e->count] = NULL;
    return CDP_OK;
}

/* ---- >>launch/output: the streams of an agent's workers -------------------------------------- */

/* Knows: redirects and tee of a desc, logs. Promises: workers wait for the reader of the console,
   the agent does not. */

/* Writes what the console takes. */
CDP__PRIVATE void cdp__agent_flush(cdp_agent *a) {
    cdp__launch_flush(&a->console.sinks[0]);
    cdp__launch_flush(&a->console.sinks[1]);
}

/* The same, and whether output waits for its reader: without a limit, as that of
   any program does, until somebody wants the workers to end. */
CDP__PRIVATE bool cdp__agent_unread(cdp_agent *a) {
    const uint64_t now = cdp__agent_now(a);
    bool waits = false;
    uint32_t i;
    cdp__agent_flush(a);
    for (i = 0; i < 2; ++i)
        waits = waits || cdp__launch_pending(&a->console.sinks[i]) > 0;
    for (i = 0; i < a->desc.workers; ++i)
        waits = waits || a->workers[i].stuck[0] || a->workers[i].stuck[1];
    if (!waits || (!a->stopping && now < a->timeout_ns)) return waits;
    if (!a->reader_ns) a->reader_ns = now + CDP__AGENT_READER_MS * CDP__MS;
    return now < a->reader_ns;
}

/* A log that cannot be written is given up, with one sentence; its worker goes on. */
CDP__PRIVATE void cdp__agent_tell_log(cdp_agent *a, uint32_t i, int which) {
    cdp__launch_stream *const s = a->workers[i].out[which];
    cdp__launch_sink *const to = a->console.to[1];
    char text[160];
    if (!s->log_err) return;
    cdp__launch_source(to, NULL);
    cdp__launch_put(to, text,
        cdp__format(text, sizeof text,
            "cdp_agent: the log %s of rank %u cannot be written (errno %d), and ends here; the job "
            "goes on\n",
            which ? "stderr.log" : "stdout.log", cdp__agent_rank(a, i), (int)-s->log_err));
    s->log_err = 0;
}

/* All that is there now; a worker's children may write for ever, so at most `reads` pieces. Where
   the console is behind, the worker waits for it, too, when its pipe is full. */
CDP__PRIVATE void cdp__agent_carry(cdp_agent *a, uint32_t i, uint32_t reads) {
    cdp__agent_worker *const w = &a->workers[i];
    int which;
    for (which = 0; which < 2; ++which) {
        cdp__launch_stream *const s = w->out[which];
        uint32_t n = 0;
        while (n < reads && !cdp__launch_sink_full(s->to) && cdp__launch_pump(s))
            ++n;
        cdp__agent_tell_log(a, i, which);
        w->stuck[which] = s->fd >= 0 && cdp__launch_sink_full(s->to);
        cdp__launch_show_progress(s, cdp__agent_now(a));
    }
}

/* Opens one stream of a worker. *give: the descriptor that the worker gets. */
CDP__PRIVATE cdp_status cdp__agent_open_stream(
    const cdp_agent *a, uint32_t i, int which, int32_t *give) {
    cdp__agent_worker *const w = &a->workers[i];
    const uint32_t bit = which == 0 ? CDP_AGENT_STDOUT : CDP_AGENT_STDERR;
    const bool tee = (a->desc.tee & bit) != 0, file = tee || (a->desc.redirects & bit) != 0;
    char path[CDP__AGENT_PATH];
    int32_t ends[2], err, log = -1;
    w->filed[which] = file && !tee;
    w->stuck[which] = false;
    if (file) {
        if (!cdp__agent_path(a, i, which == 0 ? "stdout.log" : "stderr.log", path))
            return cdp__agent_io("the path of a log is too long: ", path, ENAMETOOLONG);
        log = cdp__process_log(path);
        if (log < 0) return cdp__agent_io("cannot write the log ", path, log);
    }
    *give = log;
    if (w->filed[which]) return CDP_OK;
    err = cdp__process_pipe(ends);
    if (err) {
        cdp__process_close(log);
        *give = -1;
        return cdp__agent_io("cannot make a pipe", "", err);
    }
    cdp__launch_stream_begin(w->out[which], ends[0], log, false);
    if (!a->desc.no_prefix)
        cdp__launch_stream_prefix(
            w->out[which], cdp__agent_rank(a, i), a->desc.workers * a->desc.nodes);
    *give = ends[1];
    return CDP_OK;
}

/* A stream that went to its file alone: the last bytes of that. */
CDP__PRIVATE void cdp__agent_tail_read(const cdp_agent *a, uint32_t i, int which) {
    cdp__launch_stream *const s = a->workers[i].out[which];
    const cdp_os_files *const f = &a->os->files;
    char path[CDP__AGENT_PATH];
    cdp_file_info info;
    int32_t fd = -1;
    if (!a->workers[i].filed[which] || !f->open_file) return;
    if (cdp__agent_path(a, i, which == 0 ? "stdout.log" : "stderr.log", path))
        fd = f->open_file(a->os->user, path, 0);
    if (fd < 0) return;
    if (f->file_info(a->os->user, fd, &info) == 0) {
        const uint64_t from = info.bytes > CDP__LAUNCH_TAIL ? info.bytes - CDP__LAUNCH_TAIL : 0;
        const int64_t n = f->read_at(a->os->user, fd, from, s->line, CDP__LAUNCH_TAIL);
        /* less than the file had: it was cut meanwhile, and what is read is all that there is */
        s->total = n >= 0 && (uint64_t)n == info.bytes - from ? from : 0;
        if (n > 0) cdp__launch_tail_add(s, s->line, (uint64_t)n);
    }
    (void)f->close_file(a->os->user, fd);
}

/* ---- >>launch/ends: how workers ended, and which failure was the first ----------------------- */

/* Knows: ends, error files, result. Promises: a crash counts before the exit codes by which others
   report that they have lost a peer; of those, the earliest time in an error file counts. */

#include <string.h>

CDP_API const char *cdp_agent_state_name(cdp_agent_state state) {
    static const char *const names[] = {
        "INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED", "UNKNOWN"};
    const uint32_t i = (uint32_t)state;
    return i < sizeof names / sizeof *names ? names[i] : "none";
}

/* Of workers that ended by an exit code, the one with the earliest error file. */
CDP__PRIVATE void cdp__agent_first_by_time(cdp_agent *a) {
    uint64_t earliest = 0;
    uint32_t i;
    if (a->first < 0 || cdp__launch_blame(&a->workers[a->first].p) != 1) return;
    earliest = cdp__launch_error_time(a->os, a->workers[a->first].error_file);
    for (i = 0; earliest && i < a->desc.workers; ++i) {
        const cdp__agent_worker *const w = &a->workers[i];
        const uint64_t at = cdp__launch_blame(&w->p) && !w->p.by_us
            ? cdp__launch_error_time(a->os, w->error_file)
            : 0;
        if (!at || at >= earliest) continue;
        earliest = at;
        a->first = i;
    }
}

/* Why a worker was killed, and what it wrote to its error file. */
CDP__PRIVATE const char *cdp__agent_message(const cdp_agent *a, cdp__agent_worker *w) {
    cdp__launch_member(a->os, w->error_file, "message", w->message, sizeof w->message);
    cdp__timer_before(w->message, sizeof w->message, w->expired);
    return w->message;
}

CDP__PRIVATE void cdp__agent_end_of(cdp_agent *a, uint32_t i, cdp_worker_end *out) {
    cdp__agent_worker *const w = &a->workers[i];
    const uint64_t until = w->p.ended ? w->p.end_ns : cdp__agent_now(a);
    const int which = w->out[1]->total ? 1 : 0;
    (void)cdp__agent_message(a, w);
    cdp__launch_tail_copy(w->out[which], w->last);
    memset(out, 0, sizeof *out);
    out->rank = cdp__agent_rank(a, i);
    out->local_rank = i;
    out->role = cdp__agent_role(a, i);
    out->pid = w->p.pid;
    out->ended = w->p.ended;
    out->by_agent = w->p.by_us;
    out->exit_code = w->p.ended ? w->p.end.exit_code : -1;
    out->signal = w->p.ended ? w->p.end.sig : 0;
    out->time_us = w->p.ended ? w->end_us : 0;
    out->seconds = w->p.pid ? (double)(until - w->p.begun_ns) / 1e9 : 0;
    out->error_file = w->error_file;
    out->message = w->message;
    out->last_lines = w->last;
}

CDP_API const cdp_launch_result *cdp_agent_result(cdp_agent *a) {
    uint32_t i, n = 0;
    if (!cdp__agent_lives(a)) return NULL;
    a->result.state = a->state;
    a->result.restarts = a->attempt;
    a->result.host = a->host;
    a->result.has_cause = a->first >= 0;
    a->result.count = a->desc.workers;
    a->result.ends = a->ends;
    if (a->first >= 0) cdp__agent_end_of(a, (uint32_t)a->first, &a->ends[n++]);
    for (i = 0; i < a->desc.workers; ++i)
        if ((int64_t)i != a->first) cdp__agent_end_of(a, i, &a->ends[n++]);
    return &a->result;
}

CDP__PRIVATE void cdp__agent_json_text(cdp__text *t, const char *name, const char *value) {
    cdp__text_add(t, ", \"%s\": \"", name);
    cdp__json_inside(t, value);
    cdp__text_char(t, '"');
}

/* Seconds with three decimals. */
CDP__PRIVATE void cdp__agent_json_ms(cdp__text *t, const char *name, uint64_t ms) {
    const uint32_t part = (uint32_t)(ms % 1000);
    cdp__text_add(t, ", \"%s\": %llu.%u%u%u", name, (unsigned long long)(ms / 1000), part / 100,
        part / 10 % 10, part % 10);
}

/* The members of a worker that has ended, after its rank; `at`: what its time is called. */
CDP__PRIVATE void cdp__agent_json_end(
    cdp__text *t, const cdp_worker_end *e, const char *host, const char *at) {
    cdp__text_add(t, "\"rank\": %u, \"local_rank\": %u", e->rank, e->local_rank);
    cdp__agent_json_text(t, "role", e->role);
    if (host) cdp__agent_json_text(t, "host", host);
    cdp__text_add(t, ", \"pid\": %d, \"exit_code\": %d, \"signal\": %d", (int)e->pid,
        (int)e->exit_code, (int)e->signal);
    cdp__agent_json_ms(t, at, e->time_us / 1000);
    cdp__agent_json_ms(t, "seconds", (uint64_t)(e->seconds * 1000));
    cdp__agent_json_text(t, "error_file", e->error_file);
    cdp__agent_json_text(t, "message", e->message);
    cdp__agent_json_text(t, "last_lines", e->last_lines);
}

CDP_API uint64_t cdp_agent_event_text(const cdp_agent_event *event, char *text, uint64_t room) {
    static const char *const names[] = {"start", "worker_end", "end"};
    const uint32_t kind = event ? (uint32_t)event->kind : 0;
    cdp__text t = cdp__text_of(text, room);
    if (!event || kind >= sizeof names / sizeof *names) return 0;
    cdp__text_add(&t, "{\"event\": \"%s\"", names[kind]);
    cdp__agent_json_ms(&t, "time", event->time_us / 1000);
    cdp__text_add(&t, ", \"attempt\": %u, \"state\": \"%s\"", event->attempt,
        cdp_agent_state_name(event->state));
    if (event->end) {
        cdp__text_add(&t, ", ");
        cdp__agent_json_end(&t, event->end, NULL, "ended_at");
    }
    cdp__text_char(&t, '}');
    return cdp__text_end(&t);
}

/* Hands an event to the program; `i`: the worker that has ended, or -1. */
CDP__PRIVATE void cdp__agent_tell(cdp_agent *a, cdp_agent_event_kind kind, int64_t i) {
    cdp_worker_end end;
    cdp_agent_event e;
    if (!a->desc.event) return;
    memset(&e, 0, sizeof e);
    e.kind = kind;
    e.state = a->state;
    e.attempt = a->attempt;
    e.time_us = cdp__os_date_us();
    if (i >= 0) {
        cdp__agent_tail_read(a, (uint32_t)i, 0);
        cdp__agent_tail_read(a, (uint32_t)i, 1);
        cdp__agent_end_of(a, (uint32_t)i, &end);
        e.end = &end;
        e.time_us = end.time_us;
    }
    a->desc.event(a->desc.event_user, &e);
}

CDP__PRIVATE void cdp__agent_json(cdp__text *t, const cdp_launch_result *r) {
    uint32_t i;
    cdp__text_add(t, "{\"state\": \"%s\"", cdp_agent_state_name(r->state));
    cdp__agent_json_text(t, "host", r->host);
    cdp__text_add(t, ", \"restarts\": %u, \"cause\": ", r->restarts);
    if (r->has_cause)
        cdp__text_add(t, "%u", r->ends[0].rank);
    else
        cdp__text_add(t, "null");
    cdp__text_add(t, ", \"workers\": [");
    for (i = 0; i < r->count; ++i) {
        const cdp_worker_end *const e = &r->ends[i];
        cdp__text_add(t, "%s\n  {", i ? "," : "");
        cdp__agent_json_end(t, e, r->host, "time");
        cdp__text_char(t, '}');
    }
    cdp__text_add(t, "]}\n");
}

CDP_API cdp_status cdp_agent_save(cdp_agent *a, const char *path) {
    cdp__file_text f;
    const cdp_status st = cdp__agent_alive(a, "cdp_agent_save");
    int32_t err;
    if (st != CDP_OK) return st;
    if (!path || !*path) return cdp__missing("cdp_agent_save", "path");
    err = cdp__file_text_open(&f, a->os, path);
    if (!err) {
        cdp__agent_json(&f.text, cdp_agent_result(a));
        err = cdp__file_text_close(&f);
    }
    if (!err) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, err, "cdp_agent_save: cannot write %s", path);
}

/* ---- >>launch/health: a file that shows that an agent works ---------------------------------- */

/* Knows: the state of an agent. Promises: whoever reads the file sees all of it; it is at most a
   second older than the last look of the agent. */

#define CDP__AGENT_HEALTH_MS 1000u /* how often the file is written while nothing changes */

/* Writes the file, if it is time or the state has changed. Returns 0 or an errno. */
CDP__PRIVATE int32_t cdp__agent_health(cdp_agent *a) {
    const uint64_t now = cdp__agent_now(a);
    char path[CDP__AGENT_PATH + 8];
    uint32_t i, running = 0;
    cdp__file_text f;
    int32_t err;
    if (!a->desc.health_file) return 0;
    if (now < a->health_ns && a->health_state == a->state) return 0;
    a->health_ns = now + CDP__AGENT_HEALTH_MS * CDP__MS;
    a->health_state = a->state;
    for (i = 0; i < a->desc.workers; ++i)
        running += a->workers[i].p.pid && !a->workers[i].p.ended;
    cdp__format(path, sizeof path, "%s.new", a->desc.health_file);
    err = cdp__file_text_open(&f, a->os, path);
    if (err) return err;
    cdp__text_add(&f.text, "{\"state\": \"%s\"", cdp_agent_state_name(a->state));
    cdp__agent_json_ms(&f.text, "time", cdp__os_date_us() / 1000);
    cdp__agent_json_text(&f.text, "host", a->host);
    cdp__text_add(&f.text, ", \"attempt\": %u, \"workers\": %u, \"running\": %u}\n", a->attempt,
        a->desc.workers, running);
    err = cdp__file_text_close(&f);
    if (!err) err = -a->os->files.rename_file(a->os->user, path, a->desc.health_file);
    return err;
}

/* ---- >>launch/attempt: all workers once ------------------------------------------------------ */

/* Knows: how workers start. Promises: all of them run, or none is left and a sentence says why. */

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

/* ---- >>launch/agent: an agent: starts workers, watches them, starts them again, ends them ---- */

/* Knows: phases and limits of time. Promises: no step waits longer than it was told; a worker is
   asked before it is killed; nothing of a process group is left. */

CDP__PRIVATE void cdp__agent_enter(cdp_agent *a, cdp__agent_phase phase, uint32_t ms) {
    a->phase = phase;
    a->deadline_ns = ms == CDP_NO_TIMEOUT ? CDP__NEVER : cdp__agent_now(a) + ms * CDP__MS;
}

CDP__PRIVATE void cdp__agent_signal_all(cdp_agent *a, int32_t sig) {
    uint32_t i;
    a->sent |= 1ull << (sig & 63);
    for (i = 0; i < a->desc.workers; ++i)
        if (a->workers[i].p.pid && !a->workers[i].p.ended)
            cdp__process_signal(a->workers[i].p.pid, sig);
}

CDP__PRIVATE void cdp__agent_ask_all(cdp_agent *a) {
    cdp__agent_signal_all(a, CDP__PROCESS_ASK);
    cdp__agent_enter(a, CDP__AGENT_TERM, a->desc.kill_ms);
}

CDP__PRIVATE void cdp__agent_reap_one(cdp_agent *a, uint32_t i) {
    cdp__agent_worker *const w = &a->workers[i];
    const int32_t r = cdp__process_ended(w->p.pid, &w->p.end);
    if (r == 0) return;
    w->p.ended = true;
    w->p.end_ns = cdp__agent_now(a);
    w->end_us = cdp__os_date_us();
    if (r < 0) {
        w->lost = true;
        w->p.end.exit_code = -1;
        w->p.end.sig = 0;
    }
    w->p.by_us = r > 0 && w->p.end.sig && (a->sent >> (w->p.end.sig & 63) & 1) != 0;
    cdp__agent_carry(a, i, 16);
    /* what it left behind; a group that has members keeps its number */
    if (r > 0) cdp__process_signal(w->p.pid, CDP__PROCESS_KILL);
    cdp__agent_tell(a, CDP_AGENT_WORKER_ENDED, i);
}

/* Looks at all workers; returns how many run. */
CDP__PRIVATE uint32_t cdp__agent_reap(cdp_agent *a) {
    uint32_t i, running = 0;
    for (i = 0; i < a->desc.workers; ++i) {
        cdp__agent_worker *const w = &a->workers[i];
        if (w->p.ended) continue;
        cdp__agent_reap_one(a, i);
        running += !w->p.ended;
        if (!cdp__launch_blame(&w->p) || w->lost) continue;
        if (a->first < 0 && a->phase == CDP__AGENT_RUN)
            a->first = i;
        else if (a->first >= 0
            && ((!w->expired[0] && cdp__launch_overtaken(&a->workers[a->first].p, &w->p))
                || (a->phase == CDP__AGENT_RUN
                    && cdp__launch_blame(&w->p) > cdp__launch_blame(&a->workers[a->first].p))))
            a->first = i;
    }
    return running;
}

/* No worker runs any more. */
CDP__PRIVATE cdp_status cdp__agent_over(cdp_agent *a) {
    bool lost = false, well = true;
    uint32_t i;
    for (i = 0; i < a->desc.workers; ++i) {
        cdp__agent_worker *const w = &a->workers[i];
        int which;
        cdp__agent_carry(a, i, 4096);
        for (which = 0; which < 2; ++which)
            if (!w->stuck[which]) cdp__launch_stream_end(w->out[which]);
    }
    if (cdp__agent_unread(a)) return CDP_OK; /* this is called again */
    for (i = 0; i < a->desc.workers; ++i) {
        const cdp__agent_worker *const w = &a->workers[i];
        cdp__agent_tail_read(a, i, 0);
        cdp__agent_tail_read(a, i, 1);
        lost = lost || w->lost;
        well = well && w->p.ended && w->p.end.exit_code == 0 && !w->p.end.sig;
    }
    cdp__agent_first_by_time(a);
    if (a->first >= 0 && !a->stopping && !lost && a->attempt < a->desc.max_restarts) {
        ++a->attempt;
        return cdp__agent_attempt(a);
    }
    a->phase = CDP__AGENT_OVER;
    if (a->first >= 0)
        a->state = CDP_AGENT_FAILED;
    else if (lost)
        a->state = CDP_AGENT_UNKNOWN;
    else
        a->state = a->stopping && !well ? CDP_AGENT_STOPPED : CDP_AGENT_SUCCEEDED;
    if (a->late && a->first < 0) a->state = CDP_AGENT_STOPPED;
    cdp__agent_tell(a, CDP_AGENT_ENDED, -1);
    return a->desc.result_file ? cdp_agent_save(a, a->desc.result_file) : CDP_OK;
}

/* Kills the workers whose timers have expired; their ends are failures like every other crash.
   After a failure, too: the others may have for ever to end by themselves. */
CDP__PRIVATE void cdp__agent_look_at_timers(cdp_agent *a, uint64_t now) {
    uint32_t i;
    if (a->phase > CDP__AGENT_GRACE || now < a->timers_ns) return;
    a->timers_ns = now + CDP__TIMER_LOOK_MS * CDP__MS;
    for (i = 0; i < a->desc.workers; ++i) {
        cdp__agent_worker *const w = &a->workers[i];
        if (!w->p.ended && !w->expired[0] && cdp__timer_expired(a->os, w->timer_file, w->expired))
            cdp__process_signal(w->p.pid, CDP__PROCESS_KILL);
    }
}

/* One look at everything. */
CDP__PRIVATE cdp_status cdp__agent_look(cdp_agent *a) {
    const uint64_t now = cdp__agent_now(a);
    uint32_t i, running;
    if (a->phase == CDP__AGENT_OVER) return CDP_OK;
    for (i = 0; i < a->desc.workers; ++i)
        cdp__agent_carry(a, i, 16);
    running = cdp__agent_reap(a);
    cdp__agent_flush(a); /* a program may never let a step wait */
    cdp__agent_look_at_timers(a, now);
    if (a->first >= 0 && a->phase == CDP__AGENT_RUN) {
        a->state = CDP_AGENT_UNHEALTHY;
        cdp__agent_enter(a, CDP__AGENT_GRACE, a->desc.grace_ms);
    }
    if (running == 0) return cdp__agent_over(a);
    if (now >= a->timeout_ns && !a->late) {
        a->late = a->stopping = true;
        if (a->phase < CDP__AGENT_TERM) cdp__agent_ask_all(a);
    }
    if (now < a->deadline_ns) return CDP_OK;
    if (a->phase == CDP__AGENT_GRACE) {
        cdp__agent_ask_all(a);
    } else if (a->phase == CDP__AGENT_TERM) {
        cdp__agent_signal_all(a, CDP__PROCESS_KILL);
        cdp__agent_enter(a, CDP__AGENT_KILL, CDP__AGENT_KILL_MS);
    } else if (a->phase == CDP__AGENT_KILL) {
        return cdp__agent_over(a); /* one in the kernel that does not die: left to the system */
    }
    return CDP_OK;
}

/* Until something can be read, a limit comes, or the next look is due. */
CDP__PRIVATE void cdp__agent_sleep(cdp_agent *a, uint64_t until_ns) {
    uint64_t at = cdp__agent_now(a), ms = a->desc.poll_ms;
    uint32_t i, n = 0;
    if (cdp__agent_unread(a)) { /* pipes may be full, so they do not wake this */
        cdp__process_wait(NULL, 0, 10);
        return;
    }
    if (a->deadline_ns < until_ns) until_ns = a->deadline_ns;
    if (a->timeout_ns < until_ns && !a->late) until_ns = a->timeout_ns;
    if (until_ns <= at) return;
    ms = cdp__min(ms, (until_ns - at) / CDP__MS + 1);
    for (i = 0; i < a->desc.workers; ++i) {
        const cdp__agent_worker *const w = &a->workers[i];
        a->watched[n++] = w->out[0]->fd;
        a->watched[n++] = w->out[1]->fd;
        /* all of its pipes are at their end: it is about to be gone */
        if (!w->p.ended && w->out[0]->fd < 0 && w->out[1]->fd < 0) ms = cdp__min(ms, 5);
        /* progress text waits to be shown */
        if (cdp__min(w->out[0]->due_ns, w->out[1]->due_ns) != CDP__NEVER)
            ms = cdp__min(ms, CDP__LAUNCH_HOLD_MS);
    }
    cdp__process_wait(a->watched, n, (uint32_t)ms);
}

CDP_API cdp_status cdp_agent_step(cdp_agent *a, uint32_t wait_ms) {
    cdp_agent_state was;
    uint64_t until;
    uint32_t attempt;
    cdp_status st = cdp__agent_alive(a, "cdp_agent_step");
    if (st != CDP_OK) return st;
    was = a->state;
    attempt = a->attempt;
    until = cdp__agent_now(a) + wait_ms * CDP__MS;
    st = cdp__agent_look(a);
    (void)cdp__agent_health(a);
    while (st == CDP_OK && a->state == was && a->attempt == attempt && a->phase != CDP__AGENT_OVER
        && cdp__agent_now(a) < until) {
        cdp__agent_sleep(a, until);
        st = cdp__agent_look(a);
        (void)cdp__agent_health(a);
    }
    return st;
}

/* The sentence of a job that has ended. */
CDP__PRIVATE cdp_status cdp__agent_verdict(cdp_agent *a) {
    const char *message;
    char end[96];
    cdp__text t = cdp__text_of(end, sizeof end);
    cdp__agent_worker *w;
    if (a->state == CDP_AGENT_SUCCEEDED) return CDP_OK;
    if (a->state == CDP_AGENT_STOPPED)
        return cdp__fail(CDP_ERR_ABORTED, "cdp_agent_wait: %s",
            a->late ? "the workers have not ended within timeout_ms, and were ended"
                    : "the workers were asked to end by cdp_agent_stop()");
    if (a->state == CDP_AGENT_UNKNOWN)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_agent_wait: how a worker ended is not known, because something else in this "
            "process has waited for it (waitpid(-1), or SIGCHLD is ignored)");
    if (a->first < 0) { /* the workers could not start again */
        *cdp__error_slot() = a->why;
        return a->why.status;
    }
    w = &a->workers[a->first];
    cdp__launch_end_text(&t, &w->p, "the agent");
    message = cdp__agent_message(a, w);
    return cdp__fail(CDP_ERR_REMOTE, "cdp_agent_wait: rank %u failed first on %s, %s%s%s",
        cdp__agent_rank(a, (uint32_t)a->first), a->host, end, *message ? ": " : "", message);
}

CDP_API cdp_status cdp_agent_wait(cdp_agent *a, uint32_t timeout_ms) {
    uint64_t until = CDP__NEVER;
    const cdp_status alive = cdp__agent_alive(a, "cdp_agent_wait");
    if (alive != CDP_OK) return alive;
    if (timeout_ms && timeout_ms != CDP_NO_TIMEOUT)
        until = cdp__agent_now(a) + timeout_ms * CDP__MS;
    while (a->phase != CDP__AGENT_OVER) {
        const uint64_t now = cdp__agent_now(a);
        const uint64_t left = until == CDP__NEVER ? 1000 : (until - now) / CDP__MS + 1;
        cdp_status st;
        if (now >= until)
            return cdp__fail(
                CDP_ERR_TIMEOUT, "cdp_agent_wait: the workers still run after %u ms", timeout_ms);
        st = cdp_agent_step(a, (uint32_t)cdp__min(left, 1000));
        if (st != CDP_OK) return st;
    }
    return cdp__agent_verdict(a);
}

CDP_API void cdp_agent_stop(cdp_agent *a) {
    if (!cdp__agent_lives(a) || a->phase == CDP__AGENT_OVER) return;
    a->stopping = true;
    if (a->phase < CDP__AGENT_TERM) cdp__agent_ask_all(a);
}

CDP_API cdp_agent_state cdp_agent_state_of(const cdp_agent *a) {
    return a && !cdp__ended(a) ? a->state : CDP_AGENT_INIT;
}

CDP_API void cdp_agent_destroy(cdp_agent *a) {
    uint32_t i;
    const cdp_os *os;
    if (!cdp__agent_lives(a)) return;
    cdp__ended_add(a);
    os = a->os;
    if (a->workers && a->phase != CDP__AGENT_OVER) cdp__agent_kill_all(a);
    for (i = 0; a->workers && i < a->desc.workers; ++i) {
        cdp__agent_worker_clear(a, i);
        cdp__free(os, a->workers[i].out[0]);
        cdp__free(os, a->workers[i].out[1]);
    }
    cdp__launch_console_close(&a->console);
    cdp__process_close(a->port_held);
    cdp__wipe(a->key, sizeof a->key);
    cdp__free(os, a->workers);
    cdp__free(os, a->ends);
    cdp__free(os, a->map);
    cdp__free(os, a->watched);
    cdp__free(os, a);
}

/* ---- >>launch/create: from a desc to workers that run ---------------------------------------- */

/* Knows: defaults and limits of a desc. Promises: an error names the member, its value and the
   limit; nothing is started then. */

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

/* ---- >>launch/spawn: one function on n ranks ------------------------------------------------- */

/* Knows: agents, hubs, threads. Promises: the first failure is the result, with its text; no rank
   waits for one that has failed. */

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

#endif /* CDP_LAUNCH_IMPL_INCLUDED */
