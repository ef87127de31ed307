/*  cdprun_windows.h - cdprun for Windows; cdprun.c includes it there

    COMPILE   gcc -O2 tools/cdprun.c -o cdprun.exe -lws2_32 -lbcrypt

    EXAMPLES  cdprun -n 4 train.exe --epochs 3
              cdprun -n 2 --timeout 60 --env LOG=debug train.exe

    On one machine, with the options of cdprun_options.h that --help shows here. Ranks get the
    variables that cdprun.c gives them, and their output comes out line by line behind "[RANK] ".

    NO ORPHANS   All ranks, and whatever they start, are in one job object that ends with its last
    handle, which is this program's: whichever way this program ends, the system ends them. Ctrl-C
    reaches the ranks as well; those that have not ended after --grace are ended then. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */

#define CDP_IMPLEMENTATION
#include "../cdp_launch.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE_BYTES = 65536,    /* longest line kept whole */
    COMMAND_BYTES = 32768, /* what CreateProcess takes */
    EXIT_CTRL_C = 130
};

static long processor_count(void) {
    return (long)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
}

static int gpu_files(void) { /* there are none: -n gpu counts CUDA_VISIBLE_DEVICES */
    return 0;
}
#include "cdprun_options.h"

/* One output pipe of a rank, read by a thread of its own. */
typedef struct stream {
    int rank;
    bool prefix;
    HANDLE pipe, thread;
    FILE *to;
} stream;

typedef struct rank_state {
    HANDLE process; /* NULL: has ended */
    DWORD pid, code;
    stream out[2]; /* stdout, stderr */
} rank_state;

static rank_state ranks[MAX_RANKS];
static SRWLOCK console_lock = SRWLOCK_INIT;
static volatile LONG interrupted;

static _Noreturn void stop_here(int code, const char *format, ...) {
    va_list ap;
    fputs("cdprun: ", stderr);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputs("\n", stderr);
    exit(code);
}

static options options_read(int argc, char **argv) {
    options o = {.grace = 5 * SECOND, .prefix = true, .addr = "127.0.0.1"};
    o.env = calloc((size_t)argc + 1, sizeof *o.env);
    if (!o.env) usage_error("out of memory");
    options_from_env(&o);
    o.command = options_words(&o, argv + 1);
    options_gpus(&o);
    options_check_command(&o);
    return o;
}

/* ---- >>environment  What ranks find in their variables. */

static void env_put(void *user, const char *name, const char *value) {
    (void)user;
    if (!SetEnvironmentVariableA(name, value) && value)
        stop_here(EXIT_CANNOT_RUN, "cannot set the variable %s", name);
}

/* A port that nobody had a moment ago. */
static int free_port(void) {
    const cdp_os *os = cdp_os_default();
    cdp_addr at = {.family = 4, .ip = {127, 0, 0, 1}}, bound;
    const int32_t fd = os->net.listen_at(os->user, &at, &bound);
    if (fd < 0) stop_here(EXIT_CANNOT_RUN, "cannot find a free port (errno %d)", (int)-fd);
    os->net.close_fd(os->user, fd);
    return bound.port;
}

/* The secret of the job, unless the caller has set one. */
static void env_key(options *o) {
    const DWORD given = GetEnvironmentVariableA("CDP_JOB_KEY", o->key, sizeof o->key);
    if (o->open || (given && given < sizeof o->key)) return;
    if (given) stop_here(EXIT_USAGE, "CDP_JOB_KEY is longer than %u characters", 256u);
    if (!cdp__launch_key(cdp_os_default(), o->key))
        stop_here(EXIT_CANNOT_RUN, "the system gives no random bytes for the secret of the job");
}

/* The variables of --env, before those that cdprun sets. */
static void env_given(const options *o) {
    for (int i = 0; i < o->env_count; ++i) { /* env_option() has seen the "=" */
        char name[1024];
        const size_t n = strcspn(o->env[i], "=");
        if (n >= sizeof name) usage_error("the name of --env %.60s... is too long", o->env[i]);
        memcpy(name, o->env[i], n);
        name[n] = 0;
        env_put(NULL, name, o->env[i] + n + 1);
    }
}

static void env_rank(const options *o, int rank, int port) {
    cdp__launch_place p;
    memset(&p, 0, sizeof p);
    p.rank = p.local_rank = p.role_rank = (uint32_t)rank;
    p.world = p.local_world = p.role_world = (uint32_t)o->n;
    p.nodes = 1;
    p.master_port = (uint32_t)port;
    p.master_addr = o->addr;
    p.role = "default";
    p.run_id = "none";
    const bool one = o->n > 1 && GetEnvironmentVariableA("OMP_NUM_THREADS", NULL, 0) == 0;
    cdp__launch_place_common(&p, o->open ? NULL : o->key, one ? "1" : NULL);
    cdp__launch_variables(&p, env_put, NULL);
}

/* ---- >>streams  Lines of the ranks, to the console. */

static void stream_line(const stream *s, const char *line, DWORD bytes) {
    AcquireSRWLockExclusive(&console_lock);
    if (s->prefix) fprintf(s->to, "[%d] ", s->rank);
    fwrite(line, 1, bytes, s->to);
    if (s->prefix && line[bytes - 1] != '\n') fputc('\n', s->to);
    fflush(s->to);
    ReleaseSRWLockExclusive(&console_lock);
}

static DWORD WINAPI stream_main(LPVOID p) {
    stream *s = (stream *)p;
    char *line = (char *)malloc(LINE_BYTES);
    DWORD have = 0, got = 0;
    while (line && ReadFile(s->pipe, line + have, LINE_BYTES - have, &got, NULL) && got) {
        DWORD from = 0;
        have += got;
        for (DWORD i = have - got; i < have; ++i) {
            if (line[i] != '\n') continue;
            stream_line(s, line + from, i + 1 - from);
            from = i + 1;
        }
        if (from == 0 && have == LINE_BYTES) {
            stream_line(s, line, have);
            from = have;
        }
        have -= from;
        memmove(line, line + from, have);
    }
    if (have) stream_line(s, line, have);
    free(line);
    CloseHandle(s->pipe);
    return 0;
}

/* Returns the end that the rank writes to. */
static HANDLE stream_open(stream *s, int rank, bool prefix, FILE *to) {
    SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
    HANDLE theirs;
    s->rank = rank;
    s->prefix = prefix;
    s->to = to;
    if (!CreatePipe(&s->pipe, &theirs, &inherited, 0))
        stop_here(EXIT_CANNOT_RUN, "rank %d: cannot create a pipe", rank);
    SetHandleInformation(s->pipe, HANDLE_FLAG_INHERIT, 0);
    s->thread = CreateThread(NULL, 0, stream_main, s, 0, NULL);
    if (!s->thread) stop_here(EXIT_CANNOT_RUN, "rank %d: cannot start a thread", rank);
    return theirs;
}

/* ---- >>ranks  Processes. */

/* One argument as programs take it apart: where there are blanks or quotes, in quotes, with a
   backslash before each quote and before each backslash that stands in front of a quote. */
static size_t quoted(char *out, size_t at, const char *word) {
    const bool quotes = !*word || strpbrk(word, " \t\"");
    size_t slashes = 0;
    if (at + 2 * strlen(word) + 4 > COMMAND_BYTES)
        stop_here(EXIT_USAGE, "the command is longer than %d characters", COMMAND_BYTES);
    if (at) out[at++] = ' ';
    if (quotes) out[at++] = '"';
    for (; *word; ++word) {
        size_t more = *word == '"' ? slashes + 1 : 0;
        for (; more; --more)
            out[at++] = '\\';
        slashes = *word == '\\' ? slashes + 1 : 0;
        out[at++] = *word;
    }
    for (; quotes && slashes; --slashes)
        out[at++] = '\\';
    if (quotes) out[at++] = '"';
    out[at] = 0;
    return at;
}

static void rank_start(const options *o, HANDLE job, HANDLE nothing, int rank, int port) {
    static char command[COMMAND_BYTES];
    rank_state *r = &ranks[rank];
    STARTUPINFOA start = {.cb = sizeof start, .dwFlags = STARTF_USESTDHANDLES};
    PROCESS_INFORMATION made;
    size_t at = 0;
    for (char **word = o->command; *word; ++word)
        at = quoted(command, at, *word);
    env_rank(o, rank, port);
    start.hStdInput = rank == 0 ? GetStdHandle(STD_INPUT_HANDLE) : nothing;
    start.hStdOutput = stream_open(&r->out[0], rank, o->prefix, stdout);
    start.hStdError = stream_open(&r->out[1], rank, o->prefix, stderr);
    if (!CreateProcessA(
            NULL, command, NULL, NULL, TRUE, CREATE_SUSPENDED, NULL, NULL, &start, &made)) {
        const DWORD why = GetLastError();
        const bool missing = why == ERROR_FILE_NOT_FOUND || why == ERROR_PATH_NOT_FOUND;
        stop_here(missing ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN, "cannot run %s (error %lu)",
            o->command[0], (unsigned long)why);
    }
    /* only the rank itself holds these ends: reading ends with it */
    CloseHandle(start.hStdOutput);
    CloseHandle(start.hStdError);
    if (!AssignProcessToJobObject(job, made.hProcess)) {
        TerminateProcess(made.hProcess, 1);
        stop_here(EXIT_CANNOT_RUN, "cannot put rank %d into the job object (error %lu)", rank,
            (unsigned long)GetLastError());
    }
    r->process = made.hProcess;
    r->pid = made.dwProcessId;
    ResumeThread(made.hThread);
    CloseHandle(made.hThread);
}

/* ---- >>job  Until all have ended. */

static BOOL WINAPI on_ctrl(DWORD what) {
    (void)what;
    InterlockedExchange(&interrupted, 1);
    return TRUE;
}

static void report_end(int rank, DWORD code) {
    AcquireSRWLockExclusive(&console_lock);
    fprintf(stderr, "cdprun: rank %d (process %lu) ended with exit code %lu (0x%lx)\n", rank,
        (unsigned long)ranks[rank].pid, (unsigned long)code, (unsigned long)code);
    ReleaseSRWLockExclusive(&console_lock);
}

/* How many still run. *failed: the first rank that ended with another code than 0, -1: none. */
static int ranks_look(int n, int *failed) {
    int live = 0;
    for (int i = 0; i < n; ++i) {
        rank_state *r = &ranks[i];
        if (!r->process) continue;
        if (WaitForSingleObject(r->process, 0) != WAIT_OBJECT_0) {
            ++live;
            continue;
        }
        GetExitCodeProcess(r->process, &r->code);
        CloseHandle(r->process);
        r->process = NULL;
        if (!r->code) continue;
        if (*failed < 0) report_end(i, r->code);
        if (*failed < 0) *failed = i;
    }
    return live;
}

/* Waits for all ranks; returns the exit code of this program. */
static int job_watch(const options *o, HANDLE job) {
    const uint64_t started = GetTickCount64();
    uint64_t end_at =
        o->timeout > 0 ? started + (uint64_t)(o->timeout / (SECOND / 1000)) : UINT64_MAX;
    int failed = -1, code = 0;
    bool ending = false;
    while (ranks_look(o->n, &failed)) {
        const uint64_t now = GetTickCount64();
        if (!ending && (failed >= 0 || interrupted)) {
            ending = true;
            code = interrupted ? EXIT_CTRL_C : 0;
            end_at = now + (uint64_t)(o->grace / (SECOND / 1000));
        }
        if (now >= end_at) {
            if (!ending) code = EXIT_TIMEOUT;
            if (!ending)
                fprintf(stderr, "cdprun: %g s are over: all ranks are ended\n",
                    (double)o->timeout / (double)SECOND);
            TerminateJobObject(job, EXIT_TIMEOUT);
            if (failed < 0) failed = o->n; /* these ends are no news */
            ending = true;
            end_at = UINT64_MAX;
        }
        Sleep(10);
    }
    if (interrupted) code = EXIT_CTRL_C;
    if (code || failed < 0 || failed == o->n) return code;
    return ranks[failed].code > 255 ? 1 : (int)ranks[failed].code;
}

static HANDLE job_open(void) {
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits;
    const HANDLE job = CreateJobObjectA(NULL, NULL);
    memset(&limits, 0, sizeof limits);
    limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
    if (!job
        || !SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits))
        stop_here(EXIT_CANNOT_RUN, "cannot create a job object (error %lu)",
            (unsigned long)GetLastError());
    return job;
}

int main(int argc, char **argv) {
    SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
    options o = options_read(argc, argv);
    const HANDLE job = job_open();
    const HANDLE nothing =
        CreateFileA("NUL", GENERIC_READ, FILE_SHARE_READ, &inherited, OPEN_EXISTING, 0, NULL);
    const int port = o.port ? o.port : free_port();
    int code;
    env_key(&o);
    env_given(&o);
    for (int i = 0; i < o.n; ++i)
        rank_start(&o, job, nothing, i, port);
    SetConsoleCtrlHandler(on_ctrl, TRUE); /* after the ranks: they would inherit it if it ignored */
    code = job_watch(&o, job);
    TerminateJobObject(job, 1); /* what the ranks have left behind */
    for (int i = 0; i < o.n; ++i) {
        WaitForSingleObject(ranks[i].out[0].thread, 2000);
        WaitForSingleObject(ranks[i].out[1].thread, 2000);
    }
    return code;
}
