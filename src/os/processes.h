/* os/processes.h - processes that this one starts

   Knows: fork(), exec, pipes, process groups. Promises: each process leads a group of its own and,
   on Linux, is killed when the thread that started it ends; descriptors of pipes are closed by
   exec. Without processes (Windows, no system) nothing starts: -ENOSYS. For cdp_launch.h. */
#ifndef CDP_SRC_OS_PROCESSES_H
#define CDP_SRC_OS_PROCESSES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "cores.h"
#include "cores_here.h"

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

#endif /* CDP_SRC_OS_PROCESSES_H */
