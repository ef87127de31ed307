/*  cdprun.c - starts the ranks of a job on this machine and leaves nothing behind

    COMPILE   gcc -O2 tools/cdprun.c -o cdprun -pthread -lm
              (C11, POSIX, the headers of this library and cdprun_elastic.h, nothing else)
    Windows   gcc -O2 tools/cdprun.c -o cdprun.exe -lws2_32 -lbcrypt (see cdprun_windows.h)

    EXAMPLES  cdprun -n 4 ./train --epochs 3
              cdprun -n 2 --timeout 60 --env LOG=debug ./train
              cdprun -n 8 --nnodes 2 --node-rank 0 --rdzv-endpoint 10.0.0.1 --open ./train
              cdprun -n 8 --nnodes 2:4 --max-restarts 9 --rdzv-endpoint 10.0.0.1 --open ./train
              cdprun --help

    HOW IT IS BUILT   Three kinds of processes:

        front     what the caller started. Only waits: passes signals on, returns the exit code.
          keeper  its child. Starts the ranks, carries their output, judges their ends.
            rank  one process group per rank, with whatever the rank itself starts.

    NO ORPHANS   Front and keeper watch each other, so that either may be killed with SIGKILL at any
    moment:
      * front dies:  the keeper sees the end of a pipe that only the front holds open, and kills
        everything.
      * keeper dies: the kernel kills the ranks (parent-death signal), and the front kills what is
        left.
      * grandchildren, even those that left their process group or session: on Linux both processes
        are "child subreapers", so a process whose parent has died becomes a direct child of the
        keeper (or of the front). Killing direct children until there are none therefore reaches
        everything, and no process id can be mistaken for another one, because only the parent
        itself frees the id of a dead child. Children that the front's process had before it became
        cdprun are left alone.
      * both die in the same instant: the parent-death signal still ends the ranks themselves; the
        children of a shell wrapper may survive in this one case. The keeper has its own process
        group, name and title, so that killing "cdprun" by group, name or command line meets the
        front only.
    Elsewhere than on Linux, the process groups of the ranks are killed, and processes that left
    them are not.

    SECTIONS   >>option-rules >>messages >>files >>children
               >>output >>ranks >>events >>stop >>report >>nodes >>attempt >>keeper >>front
               (cdprun_options.h: what options there are; cdprun_elastic.h:
               machines that come and go)  */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */

#ifdef _WIN32
#include "cdprun_windows.h"
#else
#define _DEFAULT_SOURCE 1
#define CDP_IMPLEMENTATION
#include "../cdp_elastic.h"
#include "../cdp_launch.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <netdb.h>
#include <sys/file.h>
#include <sys/types.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

static long processor_count(void) {
    return sysconf(_SC_NPROCESSORS_ONLN);
}

/* Device files of NVIDIA, whose numbers may have gaps in a container. */
static int gpu_files(void) {
    int count = 0;
    for (int i = 0; i < 256; ++i) {
        char path[32];
        snprintf(path, sizeof path, "/dev/nvidia%d", i);
        count += access(path, F_OK) == 0;
    }
    return count;
}
#include "cdprun_options.h"

/* of --rdzv-endpoint, as torchrun's */
#define DEFAULT_PORT 29400
/* a job key with fewer characters is worth a warning */
#define SHORT_KEY 16
/* one failure in words */
#define FAILURE_BYTES 1024
#define NEVER INT64_MAX
/* of the times that are counted in ms elsewhere: 49 days */
#define MOST_NS (UINT32_MAX * INT64_C(1000000))
#define KILL_TICK (SECOND / 50)
/* a process in uninterruptible sleep must not hold us for ever */
#define KILL_LIMIT (10 * SECOND)
/* how often the launchers of several machines look at each other */
#define LOOK_TICK (SECOND / 10)
/* how long one look may take, during which signals wait */
#define LOOK_MS 1000
/* and one word to the others */
#define CLAIM_MS 10000
/* a machine out of reach for so long counts as lost */
#define SILENCE_LIMIT (30 * SECOND)
/* an exit code is told so much later than a crash, which may be its cause */
#define TELL_DELAY (3 * SECOND / 10)
/* for the other machines to read why the job has ended */
#define LEAVE_LIMIT (3 * SECOND)
/* for processes that outlive all ranks */
#define LEFTOVER_GRACE SECOND
/* after a signal or timeout, for a reader that does not read */
#define READER_LIMIT (10 * SECOND)
/* two signals closer than this count as one */
#define REPEAT_NS (SECOND / 5)

/* ---- >>option-rules  Which options go together, the place to meet, the secret of the job. */

/* As torchrun: a module or a script of Python is run by Python. */
static void options_python(options *o, char **words) {
    const char *python = getenv("PYTHON_EXEC");
    const size_t len = strlen(o->command[0]);
    const bool script = len > 3 && strcmp(o->command[0] + len - 3, ".py") == 0;
    int n = 0, i = 0;
    if (o->module && o->no_python) usage_error("--module and --no-python exclude each other");
    if (!o->module && (!script || o->no_python)) return;
    words[n++] = strdup(python != NULL && python[0] != '\0' ? python : "python3");
    words[n++] = strdup("-u");
    if (o->module) words[n++] = strdup("-m");
    while (o->command[i] != NULL)
        words[n++] = o->command[i++];
    words[n] = NULL;
    o->command = words;
}

/* Machines that come and go. */
static void options_check_dynamic(const options *o) {
    if (o->endpoint == NULL && o->external == NULL && (!o->stay || o->max_nodes > 1))
        usage_error(
            "--nnodes needs --rdzv-endpoint or --external-store, the same on all machines%s",
            o->stay ? "" : " (or --node-rank, for a fixed number of machines)");
    if (o->n > INT_MAX / o->max_nodes)
        usage_error("%d ranks on each of %d machines are too many", o->n, o->max_nodes);
}

/* The list of devices that the ranks of --virtual-local-rank share, one each. */
static void options_devices(options *o) {
    const char *const list = options_visible(o);
    if (!o->virtual_rank || list == NULL) return;
    if (devices_in(list) < o->n)
        usage_error("--virtual-local-rank: CUDA_VISIBLE_DEVICES names %d devices, but there are %d "
                    "ranks here",
            devices_in(list), o->n);
    o->devices = strdup(list); /* the variable becomes that of each rank in turn */
    if (o->devices == NULL) usage_error("out of memory");
}

/* The processors of this machine, and how many threads a rank has there. */
static cdp__cores_map machine;

static void options_cores(options *o) {
    const bool known = cdp__cores_map_here(&machine), given = o->cores > 0;
    if (o->bind != BIND_NONE && !known) usage_error("--bind: this system binds no process");
    if (!given) o->cores = (int)cdp__cores_each(&machine, (uint32_t)o->n);
    if (o->bind == BIND_CORE && (int64_t)o->cores * o->n > machine.cores)
        usage_error(
            "--bind core: %d ranks with %d cores each need more than the %u that cdprun may "
            "use",
            o->n, o->cores, (unsigned)machine.cores);
    if (given || o->n > 1) snprintf(o->threads, sizeof o->threads, "%d", o->cores);
}

static void options_check(const options *o) {
    if (o->open && o->key_file != NULL) usage_error("--open and --job-key-file exclude each other");
    if (o->serve && o->endpoint == NULL)
        usage_error("--serve needs --rdzv-endpoint: where should the store be served?");
    if (o->serve && o->command[0] != NULL)
        usage_error("--serve starts no ranks and takes no command ('%s')", o->command[0]);
    if (o->serve) return;
    if (o->standalone && o->external != NULL)
        usage_error("--standalone and --external-store exclude each other");
    if (o->stay && !o->dynamic) usage_error("--stay and --node-rank exclude each other");
    if (o->external != NULL && !o->dynamic)
        usage_error("--external-store needs --nnodes MIN:MAX, and no --node-rank");
    if (o->external != NULL && o->run_id == NULL)
        usage_error("--external-store needs --rdzv-id: each job at one store needs a new name, or "
                    "it finds the end of an earlier one there");
    options_check_command(o);
    if (o->log_dir == NULL && (o->redirects != NULL || o->tee != NULL))
        usage_error("%s needs --log-dir: where should the files be?",
            o->redirects != NULL ? "--redirects" : "--tee");
    if (o->min_nodes < o->max_nodes && o->node_rank >= 0)
        usage_error("--node-rank is for a fixed number of machines, not for --nnodes MIN:MAX");
    if (o->standalone && o->nnodes > 1)
        usage_error("--standalone is for one machine, but --nnodes is %d", o->nnodes);
    if (o->dynamic) {
        options_check_dynamic(o);
        return;
    }
    if (o->nnodes == 1 && o->node_rank > 0)
        usage_error("--node-rank %d needs --nnodes", o->node_rank);
    if (o->nnodes == 1) return;
    if (o->node_rank < 0) usage_error("--nnodes needs --node-rank, the number of this machine");
    if (o->node_rank >= o->nnodes)
        usage_error("--node-rank must be below --nnodes (%d), not %d", o->nnodes, o->node_rank);
    if (o->endpoint == NULL && (o->addr == NULL || o->port == 0))
        usage_error("--nnodes needs --rdzv-endpoint (or --master-addr and --master-port), the same "
                    "on all machines");
    if (o->n > INT_MAX / o->nnodes)
        usage_error("%d ranks on each of %d machines are too many", o->n, o->nnodes);
}

/* "3", or "0:3,1:1" by local rank. NULL: nothing. */
static unsigned char *streams_option(const char *name, const char *text, int n) {
    unsigned char *which = calloc((size_t)n, 1);
    if (which == NULL) usage_error("out of memory");
    if (text == NULL) return which;
    if (text[0] >= '0' && text[0] <= '3' && text[1] == '\0')
        return memset(which, text[0] - '0', (size_t)n);
    for (const char *p = text;; ++p) {
        char *end;
        const long rank = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1;
        if (rank < 0 || end[0] != ':' || end[1] < '0' || end[1] > '3'
            || (end[2] != '\0' && end[2] != ','))
            usage_error("%s must be 0, 1, 2 or 3, or a list as 0:3,1:1, not '%s'", name, text);
        if (rank >= n)
            usage_error("%s names local rank %ld, but there are only %d here", name, rank, n);
        which[rank] = (unsigned char)(end[1] - '0');
        p = end + 2;
        if (*p == '\0') return which;
    }
}

/* "0,3": a flag for each local rank. */
static unsigned char *filter_option(const char *text, int n) {
    unsigned char *shown = calloc((size_t)n, 1);
    if (shown == NULL) usage_error("out of memory");
    if (text == NULL) return memset(shown, 1, (size_t)n);
    for (const char *p = text; *p != '\0';) {
        char *end;
        const long rank = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1;
        if (rank < 0 || rank >= n || (*end != '\0' && *end != ','))
            usage_error(
                "--local-ranks-filter must list local ranks below %d, as 0,1, not '%s'", n, text);
        shown[rank] = 1;
        p = end + (*end == ',');
    }
    return shown;
}

/* "host", "host:port", "1.2.3.4:port", "[::1]:port", "::1". */
static void endpoint_parse(options *o, const char *option, const char *text) {
    char port[64];
    const char *const whole = text, *colon = strrchr(text, ':'), *close = strchr(text, ']');
    /* IPv6 without a port */
    const bool bare = text[0] != '[' && colon != NULL && strchr(text, ':') != colon;
    if (bare || (close != NULL && colon != NULL && colon < close)) colon = NULL;
    size_t len = colon != NULL ? (size_t)(colon - text) : strlen(text);
    snprintf(port, sizeof port, "the port of %s", option);
    o->host_port = colon != NULL ? number_option(port, colon + 1, 1, 65535) : DEFAULT_PORT;
    if (text[0] == '[' && close != NULL) len = (size_t)(close - ++text);
    if (len == 0 || len >= sizeof o->host)
        usage_error("%s must be HOST or HOST:PORT, not '%s'", option, whole);
    memcpy(o->host, text, len);
    o->host[len] = '\0';
}

/* The place that was just read is server i of a list. */
static void endpoint_keep(options *o, const char *option, int i) {
    const bool six = strchr(o->host, ':') != NULL;
    server_place *s = &o->servers[i];
    char name[300];
    snprintf(name, sizeof name, "%s%s%s:%d", six ? "[" : "", o->host, six ? "]" : "", o->host_port);
    if (strlen(name) >= sizeof s->name) usage_error("%s: '%s' is too long", option, name);
    for (int k = 0; k < i; ++k)
        if (strcmp(o->servers[k].name, name) == 0) usage_error("%s names %s twice", option, name);
    snprintf(s->name, sizeof s->name, "%.79s", name);
    snprintf(s->host, sizeof s->host, "%.79s", o->host);
    s->port = o->host_port;
    strcat(o->server_list, i > 0 ? "," : "");
    strcat(o->server_list, s->name);
}

/* One endpoint, or a list of those that one store lives on. */
static void endpoints_parse(options *o, const char *option, const char *text) {
    int count = 0;
    if (strchr(text, ',') == NULL) {
        endpoint_parse(o, option, text);
        return;
    }
    if (!o->dynamic)
        usage_error("a list in %s is for machines that come and go (--nnodes MIN:MAX)", option);
    for (const char *p = text; p != NULL; p = *p == ',' ? p + 1 : NULL) {
        char one[256];
        const size_t len = strcspn(p, ",");
        if (count == MOST_SERVERS) usage_error("%s names more than %d places", option, count);
        snprintf(one, sizeof one, "%.*s", (int)len, p);
        endpoint_parse(o, option, one);
        endpoint_keep(o, option, count++);
        p += len;
    }
    if (count % 2 == 0)
        usage_error("%s names %d places: with 3, one may be lost, with 5, two", option, count);
    o->server_count = count;
    snprintf(o->host, sizeof o->host, "%s", o->servers[0].host);
    o->host_port = o->servers[0].port;
}

/* Where the launchers meet. As with torchrun, --master-addr and --master-port stand in for a
   missing --rdzv-endpoint. */
static void options_place(options *o) {
    if (o->external != NULL) {
        endpoints_parse(o, "--external-store", o->external);
    } else if (o->dynamic && o->endpoint == NULL) {
        strcpy(o->host, "127.0.0.1"); /* --stay on one machine; the port is chosen later */
    } else if ((o->nnodes > 1 || o->dynamic || o->serve) && o->endpoint != NULL) {
        endpoints_parse(o, "--rdzv-endpoint", o->endpoint);
    } else if (o->nnodes > 1) {
        if (strlen(o->addr) >= sizeof o->host) usage_error("--master-addr is too long");
        strcpy(o->host, o->addr);
        o->host_port = o->port;
        o->port = 0;
    }
    if (o->node_rank < 0) o->node_rank = 0;
    if (o->run_id == NULL) o->run_id = "none";
}

/* In the options' last place: the address may lie inside them. */
static void options_addr(options *o) {
    if (o->addr == NULL) o->addr = o->nnodes > 1 || o->stay ? o->host : "127.0.0.1";
}

static void key_warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("cdprun: warning: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

/* A secret that others may read, or put there, is none. (It may be a pipe, or a symbolic link, as
   in containers: what counts is the file behind it.) */
static void key_file_check(const char *path, int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0) usage_error("cannot look at %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return;
    if ((st.st_mode & 077) != 0)
        key_warn("other users may read or write the job key in %s (mode %03o); chmod 600 it", path,
            (unsigned)(st.st_mode & 0777));
    if (st.st_uid != geteuid() && st.st_uid != 0)
        key_warn(
            "the file of the job key, %s, belongs to another user (%u)", path, (unsigned)st.st_uid);
}

static void key_read(options *o) {
    const int fd = open(o->key_file, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    ssize_t n = -1;
    if (fd < 0)
        usage_error("cannot read the file of --job-key-file, %s: %s", o->key_file, strerror(errno));
    key_file_check(o->key_file, fd);
    while (len < sizeof o->key - 1 && (n = read(fd, o->key + len, sizeof o->key - 1 - len)) > 0)
        len += (size_t)n;
    if (n < 0)
        usage_error("cannot read the file of --job-key-file, %s: %s", o->key_file, strerror(errno));
    close(fd);
    o->key[len] = '\0';
    const size_t word = strcspn(o->key, " \t\r\n");
    if (word == 0 || o->key[word + strspn(o->key + word, " \t\r\n")] != '\0' || word > 256)
        usage_error("the file of --job-key-file, %s, must hold one word of at most 256 characters",
            o->key_file);
    o->key[word] = '\0';
}

/* The secret by which the ranks of a job know each other. Never an option, which every user of
   the machine could read. */
static void options_key(options *o) {
    const char *given = getenv("CDP_JOB_KEY");
    if (o->open) return;
    if (o->key_file != NULL) {
        key_read(o);
    } else if (given != NULL && given[0] != '\0') {
        if (strlen(given) >= sizeof o->key)
            usage_error(
                "the variable CDP_JOB_KEY is longer than %zu characters", sizeof o->key - 1);
        strcpy(o->key, given);
    } else if (o->nnodes > 1 || o->serve
        || (o->dynamic && (o->endpoint != NULL || o->external != NULL))) {
        usage_error("several machines need one secret: --job-key-file or the variable CDP_JOB_KEY, "
                    "the same on all (or --open)");
    } else if (!cdp__launch_key(cdp_os_default(), o->key)) {
        usage_error("the system has no random bytes");
    }
    if (strlen(o->key) < SHORT_KEY)
        key_warn("the job key has %zu characters and may be guessed; use %d random ones or more",
            strlen(o->key), SHORT_KEY);
}

/* As torchrun's keep_alive_interval times keep_alive_max_attempt. */
static void options_settle(options *o) {
    const int64_t keep = o->keep_alive > 0 ? o->keep_alive : 5 * SECOND;
    const int64_t tries = o->keep_tries > 0 ? o->keep_tries : 3;
    if (o->last_call > MOST_NS) o->last_call = MOST_NS;
    if (o->keep_alive == 0 && o->keep_tries == 0) return;
    o->settle = keep > MOST_NS / tries ? MOST_NS : keep * tries;
}

static options options_parse(int argc, char **argv) {
    options o = {.nnodes = 1,
        .node_rank = -1,
        .role = "default",
        .grace = 5 * SECOND,
        .kill_grace = -1,
        .join_timeout = 600 * SECOND,
        .is_host = -1,
        .min_nodes = 1,
        .max_nodes = 1,
        .last_call = 5 * SECOND,
        .settle = 5 * SECOND,
        .cooldown = SECOND,
        .prefix = true,
        .stdin_rank0 = true};
    o.env = calloc((size_t)argc + 1, sizeof *o.env);
    char **words = calloc((size_t)argc + 4, sizeof *words);
    if (o.env == NULL || words == NULL) usage_error("out of memory");
    options_from_env(&o);
    o.command = options_words(&o, argv + 1);
    options_gpus(&o);
    if (getenv("TORCHELASTIC_ERROR_FILE") != NULL)
        o.outer_error_file = strdup(getenv("TORCHELASTIC_ERROR_FILE"));
    if (o.standalone && !o.serve) o.endpoint = NULL;
    o.dynamic = o.node_rank < 0 && !o.serve
        && (o.min_nodes < o.max_nodes || o.external != NULL || o.stay
            || (o.nnodes > 1 && o.endpoint != NULL));
    options_settle(&o);
    options_check(&o);
    options_devices(&o);
    if (!o.serve) options_cores(&o); /* it has no ranks */
    if (!o.serve) options_python(&o, words);
    options_place(&o);
    options_key(&o);
    if (o.kill_grace < 0) o.kill_grace = o.grace;
    o.redirected = streams_option("--redirects", o.redirects, o.n);
    o.teed = streams_option("--tee", o.tee, o.n);
    o.shown = filter_option(o.shown_ranks, o.n);
    return o;
}

/* Connections to the store that this launcher serves, or may have to: of each launcher and, with
   --stay, of each rank two, and as many of ranks that take the places of others. */
static rlim_t files_served(const options *o) {
    const rlim_t nodes = o->dynamic ? (rlim_t)o->max_nodes : (rlim_t)o->nnodes;
    const bool serves = o->dynamic ? o->external == NULL && o->is_host != 0 : o->node_rank == 0;
    if (!serves) return 0;
    return 2 * nodes + (o->stay ? 4 * nodes * (rlim_t)o->n : 0);
}

/* Two pipes and two files per rank, and connections, as far as the system lets them be. The ranks
   themselves get the old limit back (see rank_exec). */
static struct rlimit files_raise(const options *o) {
    struct rlimit old, raised;
    const rlim_t need = (rlim_t)o->n * (o->log_dir != NULL ? 4 : 2) + 32;
    if (getrlimit(RLIMIT_NOFILE, &old) != 0)
        usage_error("cannot read the limit of open files: %s", strerror(errno));
    if (old.rlim_cur == RLIM_INFINITY || old.rlim_cur >= need + files_served(o)) return old;
    raised = old;
    raised.rlim_cur = need + files_served(o);
    if (old.rlim_max != RLIM_INFINITY && old.rlim_max < raised.rlim_cur)
        raised.rlim_cur = old.rlim_max;
    if (raised.rlim_cur > need && setrlimit(RLIMIT_NOFILE, &raised) == 0) return old;
    raised.rlim_cur = need; /* some systems refuse what their own limit allows */
    if (old.rlim_cur >= need) return old;
    if (old.rlim_max < need || setrlimit(RLIMIT_NOFILE, &raised) != 0)
        usage_error("-n %d needs %ju open files, but the limit is %ju", o->n, (uintmax_t)need,
            (uintmax_t)old.rlim_max);
    return old;
}

/* ---- >>messages  Names and times. */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

static double seconds(int64_t ns) {
    return (double)ns / 1e9;
}

static const char *signal_name(int sig) {
    static char text[24];
    cdp__text t = cdp__text_of(text, sizeof text);
    cdp__launch_signal_text(&t, sig);
    return text;
}

/* In the keeper. Whatever has been started is then ended by the front. */
_Noreturn static void fatal(const char *what) {
    fprintf(stderr, "cdprun: %s: %s\n", what, strerror(errno));
    _exit(EXIT_INTERNAL);
}

static void *zalloc(size_t count, size_t size) {
    void *p = calloc(count, size);
    if (p == NULL) fatal("out of memory");
    return p;
}

/* pipe2() is not everywhere; nothing else forks in between */
static void pipe_make(int fds[2]) {
    if (pipe(fds) != 0) fatal("cannot make a pipe");
    for (int i = 0; i < 2; ++i)
        if (fcntl(fds[i], F_SETFD, FD_CLOEXEC) != 0) fatal("cannot set up a pipe");
}

static void nonblocking(int fd) {
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) fatal("cannot set up a pipe");
}

static int port_choose(void) {
    static int32_t held = -1;
    const int32_t port = cdp__free_port(cdp_os_default(), &held);
    errno = -port;
    if (port < 0) fatal("cannot find a free port");
    return port;
}

/* ---- >>files */

/* Log and error files of the ranks. With --log-dir as torchrun has them:
   RUN_DIR/attempt_A/LOCAL_RANK/NAME. Without it only error files are needed, which lie side by
   side in a folder of their own that goes with the job. */

static bool absolute(char path[RUN_DIR_BYTES]) /* a rank may change its folder */
{
    char *whole = realpath(path, NULL);
    const bool good = whole != NULL && strlen(whole) < RUN_DIR_BYTES;
    if (good) strcpy(path, whole);
    free(whole);
    return good;
}

#define SWEEP_AGE 60 /* seconds; a younger folder may not be locked yet */

static void dir_empty(DIR *dir) {
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        unlinkat(dirfd(dir), e->d_name, 0);
}

/* Removes the folder `name` of a launcher of this machine that was killed together with its keeper:
   while one of the two lives, it is locked. */
static void run_dir_sweep(int in, const char *name) {
    struct stat at;
    const int fd = openat(in, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    const bool stale = fstat(fd, &at) == 0 && at.st_uid == geteuid()
        && time(NULL) - at.st_mtime > SWEEP_AGE && flock(fd, LOCK_EX | LOCK_NB) == 0;
    DIR *dir = stale ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        close(fd);
        return;
    }
    dir_empty(dir);
    unlinkat(in, name, AT_REMOVEDIR);
    closedir(dir);
}

/* The folder of error files: TEMPORARY/cdprun_MACHINE_XXXXXX. The lock ends with the last of front
   and keeper. The number of the machine is for folders that several machines share. */
static void run_dir_make_temporary(options *o, const char *temporary) {
    char host[256] = "", prefix[32];
    uint32_t machine = 0x811c9dc5u;
    (void)gethostname(host, sizeof host - 1);
    for (const char *c = host; *c != '\0'; ++c)
        machine = (machine ^ (unsigned char)*c) * 0x01000193u;
    snprintf(prefix, sizeof prefix, "cdprun_%08x_", (unsigned)machine);
    DIR *dir = opendir(temporary);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0) run_dir_sweep(dirfd(dir), e->d_name);
    if (dir != NULL) closedir(dir);
    snprintf(o->run_dir, sizeof o->run_dir, "%s/%sXXXXXX", temporary, prefix);
    const bool made = mkdtemp(o->run_dir) != NULL;
    const int fd = made ? open(o->run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) (void)flock(fd, LOCK_SH | LOCK_NB); /* held until the process ends */
    if (fd >= 0 && absolute(o->run_dir)) return;
    if (made) rmdir(o->run_dir);
    o->run_dir[0] = '\0'; /* then there are no error files */
}

static void run_dir_make(options *o) {
    const char *temporary = getenv("TMPDIR");
    char *path = o->run_dir;
    if (o->log_dir == NULL) {
        run_dir_make_temporary(o, temporary != NULL && temporary[0] != '\0' ? temporary : "/tmp");
        return;
    }
    const int base = snprintf(path, sizeof o->run_dir, "%s/", o->log_dir);
    if (base < 0 || (size_t)base + strlen(o->run_id) + 32 > sizeof o->run_dir)
        usage_error("--log-dir is too long");
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            usage_error("cannot make the folder %s of --log-dir: %s", path, strerror(errno));
        *slash = '/';
    }
    strcpy(path + base, o->run_id);
    for (char *p = path + base; *p != '\0'; ++p)
        if (*p == '/') *p = '_';
    strcat(path, "_XXXXXX");
    if (mkdtemp(path) == NULL || !absolute(path))
        usage_error("cannot make a folder in %s of --log-dir: %s", o->log_dir, strerror(errno));
}

/* Front and keeper both do this at their end, in case the other one has been killed. */
static void run_dir_remove(const options *o) {
    DIR *dir = o->log_dir == NULL && o->run_dir[0] != '\0' ? opendir(o->run_dir) : NULL;
    if (dir == NULL) return;
    dir_empty(dir);
    closedir(dir);
    rmdir(o->run_dir);
}

/* The file NAME of one rank in one attempt; "": none. */
static const char *file_path(const options *o, int attempt, int local, const char *name) {
    static char path[sizeof o->run_dir + 64];
    path[0] = '\0';
    if (o->log_dir != NULL || o->run_dir[0] != '\0')
        (void)cdp__launch_path(path, sizeof path, o->run_dir, o->log_dir != NULL ? NULL : "/",
            (uint32_t)attempt, (uint32_t)local, name);
    return path;
}

static void attempt_dirs_make(const options *o, int attempt) {
    char path[sizeof o->run_dir + 64];
    if (o->log_dir == NULL) return;
    errno = -cdp__launch_folders(
        cdp_os_default(), o->run_dir, (uint32_t)attempt, (uint32_t)o->n, path, sizeof path);
    if (errno != 0) fatal(path);
}

static int log_open(const options *o, int attempt, int local, const char *name) {
    const char *path = file_path(o, attempt, local, name);
    const int fd = cdp__process_log(path);
    errno = -fd;
    if (fd < 0) fatal(path);
    return fd;
}

/* ---- >>children  What front and keeper both need in order to leave nobody behind. */

static void adopt_orphans(void) {
#ifdef __linux__
    prctl(PR_SET_CHILD_SUBREAPER, 1L, 0L, 0L, 0L);
#endif
}

static pid_t parent_of(pid_t pid) {
    char path[40], text[512];
    long parent = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    const char *end = strrchr(text, ')'); /* the name before it may contain anything */
    return end != NULL && sscanf(end + 1, " %*c %ld", &parent) == 1 ? (pid_t)parent : 0;
}

/* Signals every direct child for which skip() is not true (signal 0: only counts them), and
   returns how many there were; -1 where /proc is missing. A child keeps its id until we wait for
   it. */
static int children_signal(int sig, bool (*skip)(void *user, pid_t pid), void *user) {
    DIR *proc = opendir("/proc");
    int count = 0;
    if (proc == NULL) return -1;
    for (struct dirent *e; (e = readdir(proc)) != NULL;) {
        const pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        if (pid <= 0 || parent_of(pid) != getpid() || (skip != NULL && skip(user, pid))) continue;
        ++count;
        kill(pid, sig);
    }
    closedir(proc);
    return count;
}

/* Children that this process had before it became cdprun, as after `sleep 300 & exec cdprun`: they
   are the caller's, and so is what they leave behind, which has their process group or ours. Ranks
   and their keeper never have one of these. */
typedef struct inherited {
    pid_t pid[64], group[64];
    int count;
} inherited;

static bool inherited_add(void *user, pid_t pid) {
    inherited *in = user;
    if (in->count < 64) {
        in->pid[in->count] = pid;
        in->group[in->count++] = getpgid(pid);
    }
    return true;
}

static bool is_inherited(void *user, pid_t pid) {
    const inherited *in = user;
    const pid_t group = getpgid(pid);
    if (group == getpgrp()) return true;
    for (int i = 0; i < in->count; ++i)
        if (in->pid[i] == pid || in->group[i] == group) return true;
    return false;
}

/* Its id may be given to another process now; its group lives on if it is not empty. */
static void inherited_ended(inherited *in, pid_t pid) {
    for (int i = 0; i < in->count; ++i)
        if (in->pid[i] == pid) in->pid[i] = 0;
}

/* ---- >>output */

static bool color_wanted(int option, int fd) {
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    if (option != COLOR_AUTO) return option == COLOR_ALWAYS;
    return isatty(fd) && !(no != NULL && no[0] != '\0') && term != NULL
        && strcmp(term, "dumb") != 0;
}

/* One read. False: nothing more to be had now. */
static bool stream_pump(cdp__launch_stream *s) {
    const bool more = cdp__launch_pump(s);
    if (s->log_err != 0)
        fprintf(
            stderr, "cdprun: cannot write a log file, giving it up: %s\n", strerror(-s->log_err));
    s->log_err = 0;
    return more;
}

/* ---- >>ranks */

typedef struct rank {
    cdp__launch_process p;
    char expired[CDP__TIMER_LABEL + 1]; /* the timer for which it was killed; "": none */
    bool group_left;                    /* its process group outlived it                         */
    cdp__launch_stream *out[2];         /* stdout, stderr                                        */
    /* --stay: how often it was replaced; when it will be, 0: not; how long that takes */
    int tries;
    int64_t again_at, pause;
    bool charged; /* its replacement is counted                            */
    char id[33];  /* CDP_ELASTIC_ID                                        */
} rank;

typedef enum phase {
    JOIN,  /* several machines: waiting for the others, until deadline                   */
    RUN,   /* all is well                                                                */
    GRACE, /* something has ended the job; ranks may end by themselves until deadline    */
    TERM,  /* they have been sent SIGTERM; until deadline                                */
    SWEEP, /* all ranks have ended, processes they left behind have been sent SIGTERM    */
    KILL,  /* SIGKILL for every child, again and again, until there are none or deadline */
    DRAIN, /* nobody is left who could write: read the pipes to their ends               */
    AGREE, /* several machines: waiting to learn how the attempt has ended on the others */
    LEAVE, /* node 0: the others still have to read that, until deadline                 */
    FLUSH, /* report made; write what is buffered                                        */
    DONE
} phase;

typedef enum cause {
    NOTHING,
    FAILURE,
    ELSEWHERE,
    SIGNALLED,
    TIMED_OUT,
    NOT_STARTED,
    READER_GONE
} cause;

typedef struct nodes {
    /* node 0's */
    cdp_store_server *server;
    /* NULL: not connected */
    cdp_store *store;
    /* when to look into the store next */
    int64_t look_at;
    /* when the store has answered a look last */
    int64_t answered;
    /* when to tell of the failure here */
    int64_t tell_at;
    /* node.K is set; how this attempt has ended here is told */
    bool introduced, told;
    /* node 0: so many of the first machines have come */
    int present;
    /* node 0: so many machines will say that they leave */
    int expected;
    /* the verdict rules out another attempt */
    bool final;
    /* the exit code that goes with the verdict */
    int code;
    /* the first failure of this attempt, wherever it was; "" none */
    char verdict[FAILURE_BYTES];
} nodes;

typedef struct job {
    const options *opts;
    struct rlimit files; /* what the ranks get back                               */
    sigset_t mask;
    rank *ranks;
    int running;   /* ranks that have not ended                             */
    bool children; /* something has not been waited for                     */
    cdp__launch_console console;
    struct pollfd *polls;
    /* from the front: one byte per signal; its end: front died; -1 closed */
    int control;
    /* exec errors come here; its end: every rank has started */
    int started;
    phase phase;
    cause cause;
    int first; /* rank of the first failure                             */
    int code;
    int user_signal;   /* first signal that asked for the end                   */
    int64_t timers_at; /* when to read the files of timers */
    int64_t user_signal_at, begin, deadline, timeout_at;
    uint64_t sent; /* signals that we have sent, as bits                    */
    int attempt;   /* number of the log files; restarts, if machines stay   */
    int restarts;  /* that the job has used                                 */
    int port;      /* MASTER_PORT of this attempt                           */
    nodes nodes;
    struct agent *agent; /* NULL: all machines are there from the beginning    */
    int64_t health_at;   /* when to write --health-file next                   */
    const char *health;  /* the state that it says                             */
    int events;          /* of --event-log; -1: none                           */
    bool events_lost;    /* one could not be written, which was said              */
    bool events_torn;    /* the last line has no end                              */
    bool no_restart;     /* somebody wants the job to end                         */
    bool abandoned;      /* the front is dead: nobody to report to                */
} job;

typedef struct start_error {
    int32_t local, error;
} start_error;

static int global_rank(const job *j, int local) {
    return j->opts->node_rank * j->opts->n + local;
}

static void say(job *j, const char *format, ...) {
    char text[1024] = "cdprun: ";
    va_list args;
    va_start(args, format);
    vsnprintf(text + 8, sizeof text - 9, format, args);
    va_end(args);
    cdp__launch_source(j->console.to[1], NULL);
    cdp__launch_put(j->console.to[1], text, strlen(text));
    cdp__launch_put(j->console.to[1], "\n", 1);
}

/* ---- >>events  What happens, for programs: lines of JSON. */

/* A text for the inside of a string of JSON. */
static const char *event_text(const char *text) {
    static char out[2 * FAILURE_BYTES];
    cdp__text t = cdp__text_of(out, sizeof out);
    cdp__json_inside(&t, text);
    return out;
}

/* One line with one write, so that several launchers may share a file. A full disk must not end the
   job; what could be written of a line then is ended before the next one. */
static void event_write(job *j, const char *line, size_t bytes) {
    size_t done = j->events_torn ? 0 : 1; /* `line` begins with the end of the one before */
    const size_t from = done;
    ssize_t n = 0;
    while (done < bytes && (n = write(j->events, line + done, bytes - done)) > 0)
        done += (size_t)n;
    if (done == bytes) {
        j->events_torn = false;
        return;
    }
    const char *why = n < 0 ? strerror(errno) : "nothing is written";
    j->events_torn = j->events_torn || done > from;
    if (!j->events_lost)
        say(j, "cannot write to %s of --event-log, so events are lost: %s", j->opts->event_log,
            why);
    j->events_lost = true;
}

static void event(job *j, const char *format, ...) {
    char text[4 * FAILURE_BYTES];
    struct timespec t;
    va_list args;
    if (j->events < 0) return;
    clock_gettime(CLOCK_REALTIME, &t);
    size_t used = (size_t)snprintf(text, sizeof text, "\n{\"time\": %lld.%03ld, \"pid\": %ld, ",
        (long long)t.tv_sec, t.tv_nsec / 1000000, (long)getppid());
    va_start(args, format);
    const int more = vsnprintf(text + used, sizeof text - used - 2, format, args);
    va_end(args);
    if (more < 0 || (size_t)more >= sizeof text - used - 2) return;
    used += (size_t)more;
    text[used++] = '}';
    text[used++] = '\n';
    event_write(j, text, used);
}

/* ---- >>health  A file that shows that this process works. */

static const char *health_state(const job *j) {
    if (j->phase == JOIN) return "INIT";
    if (j->phase == RUN) return "HEALTHY";
    switch (j->cause) {
    case NOTHING: return "SUCCEEDED";
    case FAILURE:
    case ELSEWHERE:
    case NOT_STARTED: return j->running > 0 ? "UNHEALTHY" : "FAILED";
    default: return "STOPPED";
    }
}

/* Replaces the file, if it is time or the state has changed. False: it cannot be written. */
static bool health_write(job *j) {
    const char *path = j->opts->health_file, *state;
    char next[RUN_DIR_BYTES];
    struct timespec t;
    if (path == NULL) return true;
    state = health_state(j);
    if (now_ns() < j->health_at && state == j->health) return true;
    j->health_at = now_ns() + SECOND;
    j->health = state;
    if (snprintf(next, sizeof next, "%s.new", path) >= (int)sizeof next) {
        errno = ENAMETOOLONG;
        return false;
    }
    FILE *f = fopen(next, "we");
    if (f == NULL) return false;
    clock_gettime(CLOCK_REALTIME, &t);
    const bool written = fprintf(f,
                             "{\"state\": \"%s\", \"time\": %lld.%03ld, \"pid\": %ld, "
                             "\"restarts\": %d, \"ranks\": %d, \"running\": %d}\n",
                             state, (long long)t.tv_sec, t.tv_nsec / 1000000, (long)getppid(),
                             j->restarts, j->opts->n, j->running)
        > 0;
    const bool closed = fclose(f) == 0;
    return written && closed && rename(next, path) == 0;
}

static int rank_of_pid(const job *j, pid_t pid) {
    for (int i = 0; i < j->opts->n; ++i)
        if (j->ranks[i].p.pid == pid && !j->ranks[i].p.ended) return i;
    return -1;
}

static void env_put(void *user, const char *name, const char *value) {
    (void)user;
    if ((value != NULL ? setenv(name, value, 1) : unsetenv(name)) != 0)
        fatal("cannot set the environment");
}

/* The variables of --env, before those that cdprun sets. */
static void env_given(const options *o) {
    for (int i = 0; i < o->env_count; ++i) {
        char *name = strdup(o->env[i]);
        if (name == NULL) fatal("out of memory");
        char *value = strchr(name, '=');
        *value++ = '\0';
        env_put(NULL, name, value);
        free(name);
    }
}

/* What names the files of a rank. */
static int tries_of(const job *j, int local) {
    return j->attempt + j->ranks[local].tries;
}

static const char *timer_path(const job *j, int local) {
    return file_path(j->opts, tries_of(j, local), local, "timers");
}

static const char *error_path(const job *j, int local) {
    return file_path(j->opts, tries_of(j, local), local, "error.json");
}

static void stay_place(const job *j, rank *r, cdp__launch_place *p);

/* --virtual-local-rank: the one device that a rank sees. */
static void env_device(const options *o, int local) {
    const char *at = o->devices;
    char text[256];
    snprintf(text, sizeof text, "%d", local);
    for (int i = 0; at != NULL && i < local; ++i)
        at += strcspn(at, ",") + 1; /* options_devices() has counted */
    if (at != NULL) snprintf(text, sizeof text, "%.*s", (int)strcspn(at, ","), at);
    env_put(NULL, "CUDA_VISIBLE_DEVICES", text);
}

/* Before the fork: where there is a thread (see nodes), a child must not allocate. */
static void env_rank(const job *j, int local) {
    const options *o = j->opts;
    char timers[sizeof o->run_dir + 64];
    snprintf(timers, sizeof timers, "%s", timer_path(j, local));
    const char *path = error_path(j, local);
    const bool threads = o->threads[0] != '\0' && getenv("OMP_NUM_THREADS") == NULL;
    cdp__launch_place p;
    memset(&p, 0, sizeof p);
    p.rank = p.role_rank = (uint32_t)global_rank(j, local);
    p.world = p.role_world = (uint32_t)(o->n * o->nnodes);
    p.local_rank = o->virtual_rank ? 0 : (uint32_t)local;
    p.local_world = (uint32_t)o->n;
    p.node = (uint32_t)o->node_rank;
    p.nodes = (uint32_t)o->nnodes;
    p.restarts = (uint32_t)(j->agent != NULL ? j->restarts : j->attempt);
    p.max_restarts = (uint32_t)o->max_restarts;
    p.master_port = (uint32_t)j->port;
    p.role = o->role;
    p.run_id = o->run_id;
    p.master_addr = o->addr;
    p.error_file = path[0] != '\0' ? path : NULL;
    p.timer_file = p.error_file != NULL ? timers : NULL;
    if (o->stay) stay_place(j, &j->ranks[local], &p);
    cdp__launch_place_common(&p, o->open ? NULL : o->key, threads ? o->threads : NULL);
    cdp__launch_variables(&p, env_put, NULL);
    if (o->virtual_rank) env_device(o, local);
}

/* In the child. The keeper blocks all signals but SIGCHLD and changes no other action, so this
   puts things right. */
static void rank_ready(void *user) {
    const job *j = user;
    (void)setrlimit(RLIMIT_NOFILE, &j->files);
    sigprocmask(SIG_SETMASK, &j->mask, NULL);
}

/* The stream number `which` (0: stdout, 1: stderr) of one rank. Returns what the rank writes to. */
static int rank_stream(job *j, int local, int which) {
    const options *o = j->opts;
    cdp__launch_stream *s = j->ranks[local].out[which];
    const int bit = which == 0 ? STDOUT : STDERR;
    const bool tee = (o->teed[local] & bit) != 0;
    const bool to_file = (o->redirected[local] & bit) != 0 && !tee;
    const char *name = which == 0 ? "stdout.log" : "stderr.log";
    int32_t ends[2];
    int log = -1;
    if (to_file || tee) log = log_open(o, tries_of(j, local), local, name);
    errno = -cdp__process_pipe(ends);
    if (errno != 0) fatal("cannot make a pipe");
    cdp__launch_stream_begin(s, ends[0], log, to_file || !o->shown[local]);
    if (o->prefix)
        cdp__launch_stream_prefix(s, (uint32_t)global_rank(j, local), (uint32_t)(o->n * o->nnodes));
    return ends[1];
}

/* The command with ${local_rank} filled in; a copy only where there is one. */
static char **rank_command(const options *o, int local) {
    static const char macro[] = "${local_rank}";
    char number[16];
    int n = 0, found = 0;
    for (; o->command[n] != NULL; ++n)
        found += strstr(o->command[n], macro) != NULL;
    if (found == 0) return o->command;
    snprintf(number, sizeof number, "%d", local);
    char **words = zalloc((size_t)n + 1, sizeof *words);
    for (int i = 0; i < n; ++i) {
        /* a number has at most 4 digits, the macro more characters */
        char *to = words[i] = zalloc(strlen(o->command[i]) + 1, 1);
        for (const char *p = o->command[i]; *p != '\0';) {
            const bool here = strncmp(p, macro, sizeof macro - 1) == 0;
            if (here)
                to = strcpy(to, number) + strlen(number);
            else
                *to++ = *p;
            p += here ? sizeof macro - 1 : 1;
        }
    }
    return words;
}

static void rank_command_free(const options *o, char **words) {
    if (words == o->command) return;
    for (int i = 0; words[i] != NULL; ++i)
        free(words[i]);
    free(words);
}

static void rank_start(job *j, int local, int report) {
    rank *r = &j->ranks[local];
    char **command = rank_command(j->opts, local);
    cdp__process_plan p = {.func = NULL, .told = report, .number = local, .ready = rank_ready};
    p.words = (const char *const *)command;
    p.ready_user = j;
    cdp__cores cores;
    if (j->opts->bind != BIND_NONE) {
        cdp__cores_of_rank(&machine, j->opts->bind == BIND_NUMA, (uint32_t)j->opts->cores,
            (uint32_t)local, (uint32_t)j->opts->n, &cores);
        p.cores = &cores;
    }
    p.keeps_in = global_rank(j, local) == 0 && j->opts->stdin_rank0 && !isatty(0);
    for (int k = 0; k < 2; ++k)
        p.out[k] = rank_stream(j, local, k);
    env_rank(j, local);
    p.env = cdp__process_variables();
    r->p.begun_ns = (uint64_t)now_ns();
    r->p.pid = cdp__process_start(&p);
    errno = -r->p.pid;
    if (r->p.pid < 0) fatal("cannot start all processes");
    rank_command_free(j->opts, command);
    for (int k = 0; k < 2; ++k)
        close(p.out[k]);
    ++j->running;
}

/* Before another process in its place; the streams stay. */
static void rank_reset(rank *r) {
    const rank old = *r;
    memset(r, 0, sizeof *r);
    memcpy(r->out, old.out, sizeof r->out);
}

static bool is_rank(void *user, pid_t pid) {
    return rank_of_pid(user, pid) >= 0;
}

/* To the groups of all ranks, and to what ended ranks have left behind. */
static void ranks_signal(job *j, int sig) {
    j->sent |= UINT64_C(1) << (sig & 63);
    for (int i = 0; i < j->opts->n; ++i) {
        const rank *r = &j->ranks[i];
        if (r->p.pid > 0 && !r->p.ended && kill(-r->p.pid, sig) != 0) kill(r->p.pid, sig);
#ifndef __linux__
        /* a group that lives keeps its number */
        if (r->p.ended && r->group_left) kill(-r->p.pid, sig);
#endif
    }
    children_signal(sig, sig == SIGKILL ? NULL : is_rank, j);
}

static void end_text(char *text, size_t size, const rank *r) {
    cdp__text t = cdp__text_of(text, size);
    cdp__launch_end_text(&t, &r->p, "cdprun");
}

/* From the begin of the attempt to the end of the rank. */
static double lasted(const job *j, const rank *r) {
    return seconds((int64_t)r->p.end_ns - j->begin);
}

/* ---- >>stop  What ends a job, and the steps from there to its end. */

static void enter(job *j, phase p, int64_t wait) {
    j->phase = p;
    j->deadline = wait == NEVER ? NEVER : now_ns() + wait;
}

/* A stopped process sees no signal but SIGKILL until it continues. */
static void ranks_ask_to_end(job *j, int sig) {
    ranks_signal(j, sig);
    ranks_signal(j, SIGCONT);
}

static void enter_term(job *j) {
    ranks_ask_to_end(j, SIGTERM);
    enter(j, TERM, j->opts->kill_grace);
}

static void enter_kill(job *j) {
    ranks_signal(j, SIGKILL);
    enter(j, KILL, KILL_LIMIT);
}

/* "rank 3 on node 1, exit code 7 after 0.31 s: what it wrote to its error file" */
static void failure_text(const job *j, int local, char *text, size_t size) {
    char end[96], node[24] = "", message[512];
    const rank *r = &j->ranks[local];
    end_text(end, sizeof end, r);
    if (j->opts->nnodes > 1) snprintf(node, sizeof node, " on node %d", j->opts->node_rank);
    cdp__launch_member(cdp_os_default(), error_path(j, local), "message", message, sizeof message);
    cdp__timer_before(message, sizeof message, r->expired);
    snprintf(text, size, "rank %d%s, %s after %.2f s%s%s", global_rank(j, local), node, end,
        lasted(j, r), message[0] != '\0' ? ": " : "", message);
}

static void on_failure(job *j, int local) {
    char text[96];
    const rank *r = &j->ranks[local];
    j->cause = FAILURE;
    j->first = local;
    j->code = cdp__launch_exit_code(&r->p.end);
    j->nodes.tell_at = j->nodes.look_at =
        now_ns() + (cdp__launch_blame(&r->p) == 2 ? 0 : TELL_DELAY);
    enter(j, GRACE, j->opts->grace);
    if (j->running == 0) return;
    end_text(text, sizeof text, r);
    say(j, "rank %d failed: %s after %.2f s; the others have %.10g s to end by themselves",
        global_rank(j, local), text, lasted(j, r), seconds(j->opts->grace));
}

/* No rank runs here; the other machines are waited for. */
static bool is_idle(const job *j) {
    return j->phase == JOIN || j->phase == AGREE;
}

/* An idle reader (a pager) may take its time, unless somebody wanted the job to end. */
static int64_t reader_limit(const job *j) {
    return j->user_signal != 0 || j->cause == TIMED_OUT ? READER_LIMIT : NEVER;
}

static void enter_drain(job *j) {
    enter(j, DRAIN, reader_limit(j));
}

/* There are other launchers, or there may be. */
static bool meets(const job *j) {
    return j->opts->nnodes > 1 || j->agent != NULL;
}

/* Where machines come and go, the next epoch would start ranks here again, although somebody wants
   the job to end. */
static bool turns(const job *j) {
    if (j->agent == NULL || j->opts->stay || j->nodes.final) return false;
    return j->cause == ELSEWHERE || (j->cause == FAILURE && j->nodes.told);
}

static void nodes_tell_signal(job *j);

static void on_timeout(job *j) {
    j->no_restart = true;
    j->timeout_at = NEVER;
    if (j->phase == DRAIN || j->phase == FLUSH) { /* only the reader of our output is late */
        j->phase = DONE;
    } else if (j->phase == RUN || is_idle(j)) {
        j->cause = TIMED_OUT;
        j->code = EXIT_TIMEOUT;
        say(j, "the job has not ended within %.10g s; ending it", seconds(j->opts->timeout));
        if (is_idle(j))
            enter_drain(j);
        else
            enter_term(j);
    } else if (turns(j)) { /* its ranks are ending already */
        j->cause = TIMED_OUT;
        j->code = EXIT_TIMEOUT;
        j->nodes.told = false;
    }
}

static void on_reader_gone(job *j) {
    j->no_restart = true;
    if (j->phase != RUN) return;
    j->cause = READER_GONE; /* what any program in a pipeline does */
    j->code = 128 + SIGPIPE;
    enter_term(j);
}

/* The first signal asks, a second one kills. Some senders signal twice in a row and mean it
   once. */
static void on_stop_signal(job *j, int sig) {
    const int64_t now = now_ns();
    if (j->user_signal != 0 && now - j->user_signal_at < REPEAT_NS) return;
    const bool again = j->user_signal != 0;
    if (!again) j->user_signal = sig;
    j->no_restart = true;
    j->user_signal_at = now;
    if (j->cause == NOTHING || turns(j)) {
        j->cause = SIGNALLED;
        j->code = 128 + sig;
        j->nodes.told = false;
    }
    if (is_idle(j)) {
        enter_drain(j);
        return;
    }
    if (j->phase == DRAIN && meets(j) && !again) { /* the others are still to be told */
        enter_drain(j);
        return;
    }
    /* only the reader of our output is late */
    if (j->phase == DRAIN || j->phase == FLUSH) {
        j->phase = DONE;
        return;
    }
    if (j->phase == KILL || j->phase == LEAVE) return;
    if (again) {
        enter_kill(j);
        return;
    }
    nodes_tell_signal(j); /* before anybody elsewhere can lose a peer by it */
    ranks_ask_to_end(j, sig);
    if (j->phase == RUN && sig != SIGTERM)
        enter(j, GRACE, j->opts->grace);
    else if (j->phase == RUN || j->phase == GRACE)
        enter(j, TERM, j->opts->kill_grace);
}

static void read_control(job *j) {
    unsigned char sig;
    ssize_t n = -1;
    while (j->control >= 0 && (n = read(j->control, &sig, 1)) == 1) {
        if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP || sig == SIGQUIT)
            on_stop_signal(j, sig);
        else
            ranks_signal(j, sig);
    }
    if (n == 0) { /* the front is dead */
        close(j->control);
        j->control = -1;
        j->abandoned = true;
        enter_kill(j);
    }
}

/* However many ranks meet the same error, it is told once. */
static void read_started(job *j) {
    start_error e;
    ssize_t n = -1;
    while (j->started >= 0 && (n = read(j->started, &e, sizeof e)) == (ssize_t)sizeof e) {
        const char *command = j->opts->command[0];
        if (j->cause == NOT_STARTED || j->abandoned) continue;
        const char *hint = "";
        if (e.error == ENOENT && access(command, F_OK) == 0)
            hint = strchr(command, '/') != NULL
                ? " (the interpreter or loader that it names)"
                : "; for the file of this folder write ./ before its name";
        j->cause = NOT_STARTED;
        j->code = e.error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
        say(j, "cannot run '%s': %s%s", command, strerror(e.error), hint);
        enter_kill(j);
    }
    if (n == 0) {
        close(j->started);
        j->started = -1;
    }
}

static void rank_ended(job *j, rank *r, int status) {
    r->p.ended = true;
    cdp__process_end_of(status, &r->p.end);
    r->p.end_ns = (uint64_t)now_ns();
    r->p.by_us = r->p.end.sig != 0 && (j->sent >> (r->p.end.sig & 63) & 1) != 0;
    r->group_left = kill(-r->p.pid, 0) == 0;
    --j->running;
    event(j,
        "\"event\": \"rank_end\", \"rank\": %d, \"local_rank\": %d, \"exit_code\": %d, "
        "\"signal\": %d, \"seconds\": %.3f",
        global_rank(j, (int)(r - j->ranks)), (int)(r - j->ranks), (int)r->p.end.exit_code,
        (int)r->p.end.sig, seconds((int64_t)(r->p.end_ns - r->p.begun_ns)));
    /* its last words before the news of its end; a process that */
    for (int k = 0; k < 2; ++k)
        /* it left behind may write for ever */
        for (int reads = 0; reads < 16 && stream_pump(r->out[k]); ++reads) {
        }
}

static bool was_overtaken(const job *j, int local) {
    if (j->phase != GRACE || j->cause != FAILURE || j->ranks[local].expired[0] != '\0')
        return false;
    return cdp__launch_overtaken(&j->ranks[j->first].p, &j->ranks[local].p);
}

static void on_overtaken(job *j, int local) {
    char text[96];
    j->first = local;
    j->code = cdp__launch_exit_code(&j->ranks[local].p.end);
    j->nodes.tell_at = j->nodes.look_at = 0;
    end_text(text, sizeof text, &j->ranks[local]);
    say(j, "rank %d failed at the same time: %s, which counts as the first failure",
        global_rank(j, local), text);
}

static void stay_ended(job *j, int local);

static void reap(job *j) {
    int status, worst = -1;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        const int i = rank_of_pid(j, pid);
        if (i < 0) continue; /* adopted */
        rank_ended(j, &j->ranks[i], status);
        if (j->opts->stay) {
            read_started(j);
            if (j->phase == RUN) stay_ended(j, i);
            continue;
        }
        if (worst < 0 || cdp__launch_blame(&j->ranks[i].p) > cdp__launch_blame(&j->ranks[worst].p))
            worst = i;
    }
    j->children = pid == 0;
    if (worst < 0) return;
    /* an exit by exec failure is not the program's own */
    read_started(j);
    if (j->phase == RUN && cdp__launch_blame(&j->ranks[worst].p) > 0)
        on_failure(j, worst);
    else if (was_overtaken(j, worst))
        on_overtaken(j, worst);
}

/* ---- >>report */

static void report_tail(job *j, const cdp__launch_stream *s) {
    cdp__launch_sink *k = j->console.to[1];
    char text[CDP__LAUNCH_TAIL + 1];
    cdp__launch_tail_copy(s, text);
    for (const char *line = text; *line != '\0';) {
        const size_t n = strcspn(line, "\n");
        cdp__launch_put(k, "    ", 4);
        cdp__launch_put(k, line, n);
        cdp__launch_put(k, "\n", 1);
        line += n + (line[n] == '\n');
    }
}

/* One line per run of ranks that ended alike. */
static void report_ends(job *j) {
    say(j, "how each rank ended:");
    for (int i = 0, next; i < j->opts->n; i = next) {
        char text[96], other[96], who[48], line[192];
        uint64_t last = j->ranks[i].p.end_ns;
        end_text(text, sizeof text, &j->ranks[i]);
        for (next = i + 1; next < j->opts->n; ++next) {
            end_text(other, sizeof other, &j->ranks[next]);
            if (strcmp(text, other) != 0) break;
            if (j->ranks[next].p.end_ns > last) last = j->ranks[next].p.end_ns;
        }
        if (next == i + 1)
            snprintf(who, sizeof who, "rank %d", global_rank(j, i));
        else
            snprintf(who, sizeof who, "ranks %d-%d", global_rank(j, i), global_rank(j, next - 1));
        int n = snprintf(line, sizeof line, "    %-14s %s", who, text);
        if (j->ranks[i].p.ended)
            n += snprintf(line + n, sizeof line - (size_t)n, " after %.2f s",
                seconds((int64_t)last - j->begin));
        line[n++] = '\n';
        cdp__launch_put(j->console.to[1], line, (size_t)n);
    }
}

static void report(job *j) {
    const char *elsewhere = j->nodes.verdict; /* or here, in the same words */
    const bool started = j->ranks[0].p.pid > 0;
    if (j->cause == SIGNALLED) say(j, "ended by %s", signal_name(j->user_signal));
    if (j->code == 0 || j->cause == NOT_STARTED || j->cause == READER_GONE) return;
    char text[FAILURE_BYTES];
    if (j->cause == ELSEWHERE) say(j, started ? "first failure: %s" : "%s", elsewhere);
    if (j->cause == FAILURE) {
        const rank *r = &j->ranks[j->first];
        const int which = r->out[1]->total > 0;
        failure_text(j, j->first, text, sizeof text);
        const bool not_first = elsewhere[0] != '\0' && strcmp(text, elsewhere) != 0;
        if (not_first) say(j, "first failure: %s", elsewhere);
        const char *tail = which ? "; its last lines on stderr:" : "; its last lines on stdout:";
        if (r->out[which]->total == 0) tail = "; it wrote nothing";
        say(j, "first failure%s: %s%s", not_first ? " here" : "", text, tail);
        report_tail(j, r->out[which]);
    }
    if (started) report_ends(j);
    if (j->opts->outer_error_file != NULL && (j->cause == FAILURE || j->cause == ELSEWHERE))
        cdp_error_record(j->opts->outer_error_file, elsewhere[0] != '\0' ? elsewhere : text);
}

/* ---- >>nodes */

/* What the launchers of several machines tell each other, through a store that node 0's launcher
   serves. Keys below ID/: A/node.K (who machine K is), A/go (all have come: the port of the
   ranks), A/failure (the first one), A/done (how many machines have ended well) for each attempt
   A; final (why there will be no other attempt, which is also the last will of every launcher),
   left (how many have read the end). The server has a thread; everything else happens in the
   keeper's loop, which looks into the store several times a second, because all these calls are
   short. */

static const char *node_key(const job *j, const char *name, int attempt) {
    static char key[600];
    if (attempt < 0)
        snprintf(key, sizeof key, "%.500s/%s", j->opts->run_id, name);
    else
        snprintf(key, sizeof key, "%.500s/%d/%s", j->opts->run_id, attempt, name);
    return key;
}

/* `text` is an exit code and a sentence. The first verdict stays. */
static void verdict_set(job *j, const char *text, bool final) {
    nodes *s = &j->nodes;
    char *words;
    if (s->verdict[0] != '\0') return;
    s->code = (int)strtol(text, &words, 10);
    if (s->code < 1 || s->code > 255) s->code = EXIT_INTERNAL;
    s->final = final;
    snprintf(s->verdict, sizeof s->verdict, "%s", words + strspn(words, " "));
}

/* A call has failed: the store will not come back, or not for us. */
static void nodes_lost(job *j) {
    char text[FAILURE_BYTES];
    snprintf(text, sizeof text, "%d %s is out of reach: %s", EXIT_INTERNAL,
        j->agent != NULL ? "the store of the job" : "the launcher of node 0",
        cdp_last_error()->text);
    cdp_store_destroy(j->nodes.store);
    j->nodes.store = NULL;
    j->nodes.final = true;
    verdict_set(j, text, true);
}

/* What others have written may go to a terminal: control characters become blanks. */
static void take_value(job *j, void *value, char *out) {
    snprintf(out, FAILURE_BYTES, "%s", (const char *)value);
    for (unsigned char *p = (unsigned char *)out; *p != '\0'; ++p)
        if (*p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0)) *p = ' ';
    cdp_store_free(j->nodes.store, value);
}

/* False if the key is not there (yet). `out` has FAILURE_BYTES. A network may be silent for a
   while: no answer in a short time counts as an answer, up to a limit. */
static bool nodes_look(job *j, const char *key, char *out) {
    nodes *s = &j->nodes;
    bool there = false;
    void *value = NULL;
    if (s->store == NULL) return false;
    s->store->timeout_ms = LOOK_MS;
    cdp_status status = cdp_store_check(s->store, &key, 1, &there);
    if (there) status = cdp_store_get(s->store, key, &value, NULL, LOOK_MS);
    s->store->timeout_ms = CLAIM_MS;
    if (status == CDP_OK) s->answered = now_ns();
    if (status == CDP_OK && there)
        take_value(j, value, out);
    else if (status != CDP_OK
        && (status != CDP_ERR_TIMEOUT || now_ns() - s->answered > SILENCE_LIMIT))
        nodes_lost(j);
    return status == CDP_OK && there;
}

/* Whoever is the first to set the key wins; all get what is there then. */
static bool nodes_claim(job *j, const char *key, const char *text, char *out) {
    void *value = NULL;
    if (j->nodes.store == NULL) return false;
    if (cdp_store_compare_set(j->nodes.store, key, "", 0, text, strlen(text), &value, NULL)
        == CDP_OK)
        take_value(j, value, out);
    else
        nodes_lost(j);
    return j->nodes.store != NULL;
}

static int nodes_count(job *j, const char *key, int more) {
    int64_t sum = 0;
    if (j->nodes.store != NULL && cdp_store_add(j->nodes.store, key, more, &sum) != CDP_OK)
        nodes_lost(j);
    return (int)sum;
}

static void nodes_look_for_verdict(job *j) {
    char text[FAILURE_BYTES];
    if (j->nodes.verdict[0] != '\0') return;
    if (nodes_look(j, node_key(j, "final", -1), text))
        verdict_set(j, text, true);
    else if (nodes_look(j, node_key(j, "failure", j->attempt), text))
        verdict_set(j, text, false);
}

/* Tells the others what has ended the attempt here, and learns whether something else had
   before. */
static void nodes_tell(job *j, const char *sentence, int code, bool final) {
    char text[FAILURE_BYTES], there[FAILURE_BYTES];
    snprintf(text, sizeof text, "%d %s", code, sentence);
    if (nodes_claim(
            j, final ? node_key(j, "final", -1) : node_key(j, "failure", j->attempt), text, there))
        verdict_set(j, there, final);
    else
        verdict_set(j, text, final);
}

static void nodes_tell_end(job *j) {
    const options *o = j->opts;
    char text[FAILURE_BYTES - 8] = "";
    j->nodes.told = true;
    switch (j->cause) {
    case FAILURE: failure_text(j, j->first, text, sizeof text); break;
    case SIGNALLED:
        snprintf(text, sizeof text, "node %d was ended by %s", o->node_rank,
            signal_name(j->user_signal));
        break;
    case TIMED_OUT:
        snprintf(text, sizeof text, "node %d has reached its --timeout", o->node_rank);
        break;
    case NOT_STARTED:
        snprintf(text, sizeof text, "node %d cannot run '%.500s'", o->node_rank, o->command[0]);
        break;
    case READER_GONE:
        snprintf(text, sizeof text, "on node %d the reader of stdout went away", o->node_rank);
        break;
    case ELSEWHERE: return;
    case NOTHING: nodes_count(j, node_key(j, "done", j->attempt), 1); return;
    }
    nodes_tell(j, text, j->code, j->cause != FAILURE || j->no_restart);
}

/* False: not yet. Short tries, so that signals are not kept waiting. */
static bool nodes_connect(job *j) {
    const options *o = j->opts;
    nodes *s = &j->nodes;
    char will[120];
    const char *key = o->key[0] != '\0' ? o->key : NULL;
    const cdp_store_server_desc sd = {
        .host = o->host, .port = (uint16_t)o->host_port, .job_key = key, .trust_network = o->open};
    cdp_tcp_store_desc cd = {.host = o->host,
        .port = (uint16_t)o->host_port,
        .job_key = key,
        .timeout_ms = CLAIM_MS,
        .connect_timeout_ms = LOOK_MS};
    if (o->node_rank == 0 && s->server == NULL
        && cdp_store_server_create(&sd, &s->server) != CDP_OK) {
        nodes_lost(j);
        snprintf(s->verdict, sizeof s->verdict, "node 0 must serve %.255s:%d, but %s", o->host,
            o->host_port, cdp_last_error()->text);
        return false;
    }
    cd.will_key = node_key(j, "final", -1);
    cd.will_value.bytes = (uint64_t)snprintf(will, sizeof will,
        "%d the launcher of node %d has died, or its machine is out of reach", EXIT_INTERNAL,
        o->node_rank);
    cd.will_value.data = will;
    const cdp_status status = cdp_tcp_store_create(&cd, &s->store);
    if (status == CDP_ERR_MISMATCH) nodes_lost(j); /* another key: more tries would not help */
    s->answered = now_ns();
    return status == CDP_OK;
}

/* Everything that must be equal on all machines; what stands before the blank is who we are. */
static bool nodes_introduce(job *j) {
    const options *o = j->opts;
    char mine[FAILURE_BYTES], there[FAILURE_BYTES], name[32], host[128] = "?";
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "node.%d", o->node_rank);
    snprintf(mine, sizeof mine, "%s:%ld -n %d --nnodes %d --max-restarts %d --role %.100s", host,
        (long)getpid(), o->n, o->nnodes, o->max_restarts, o->role);
    if (!nodes_claim(j, node_key(j, name, j->attempt), mine, there)) return false;
    j->nodes.introduced = strcmp(mine, there) == 0;
    if (!j->nodes.introduced) {
        snprintf(mine, sizeof mine,
            "%d two launchers have --node-rank %d: process %.*s and this one (without --node-rank "
            "another launcher may take the place of a dead one)",
            EXIT_USAGE, o->node_rank, (int)strcspn(there, " "), there);
        verdict_set(j, mine, true);
    }
    return j->nodes.introduced;
}

static int attempt_port(const job *j) {
    return j->opts->port > 0 ? j->opts->port : port_choose();
}

/* On node 0: when all are there and agree, the ranks may start. */
static void nodes_gather(job *j) {
    nodes *s = &j->nodes;
    char mine[FAILURE_BYTES], theirs[FAILURE_BYTES], name[32], port[16];
    if (!nodes_look(j, node_key(j, "node.0", j->attempt), mine)) return;
    for (; s->present < j->opts->nnodes; ++s->present) {
        snprintf(name, sizeof name, "node.%d", s->present);
        if (!nodes_look(j, node_key(j, name, j->attempt), theirs)) return;
        if (strcmp(theirs + strcspn(theirs, " "), mine + strcspn(mine, " ")) == 0) continue;
        s->expected = s->present + 1;
        char text[FAILURE_BYTES - 8];
        snprintf(text, sizeof text,
            "node %d was started with other options than node 0:%.300s, not%.300s", s->present,
            theirs + strcspn(theirs, " "), mine + strcspn(mine, " "));
        nodes_tell(j, text, EXIT_USAGE, true);
        return;
    }
    s->expected = s->present;
    snprintf(port, sizeof port, "%d", attempt_port(j));
    nodes_claim(j, node_key(j, "go", j->attempt), port, theirs);
}

/* Who is missing, after the time in which all should have come. */
static void nodes_give_up(job *j) {
    const options *o = j->opts;
    char who[200] = "", text[FAILURE_BYTES - 8], there[FAILURE_BYTES], name[32];
    int missing = 0;
    size_t used = 0;
    if (o->node_rank == 0) {
        for (int k = 0; k < o->nnodes && j->nodes.store != NULL; ++k) {
            snprintf(name, sizeof name, "node.%d", k);
            if (nodes_look(j, node_key(j, name, j->attempt), there)) continue;
            if (++missing <= 16)
                used += (size_t)snprintf(
                    who + used, sizeof who - used, "%s%d", missing > 1 ? ", " : "", k);
        }
        j->nodes.expected = o->nnodes - missing;
        snprintf(text, sizeof text,
            "node rank%s %s%s of %d did not come within %.10g s; each must run cdprun with "
            "--rdzv-endpoint %s:%d",
            missing == 1 ? "" : "s", who, missing > 16 ? " and others" : "", o->nnodes,
            seconds(o->join_timeout), o->host, o->host_port);
    } else if (j->nodes.store == NULL) {
        snprintf(text, sizeof text, "node rank 0 did not come within %.10g s: %s",
            seconds(o->join_timeout), cdp_last_error()->text);
    } else {
        snprintf(text, sizeof text, "node rank 0 has not let the ranks start within %.10g s",
            seconds(o->join_timeout));
    }
    nodes_tell(j, text, EXIT_TIMEOUT, true);
}

/* ---- >>attempt */

/* All ranks once, from their start to their common end; after a failure perhaps once more. */

static void attempt_start(job *j, int port) {
    int report_pipe[2];
    j->phase = RUN;
    j->cause = NOTHING;
    j->code = 0;
    j->first = -1;
    j->sent = 0;
    j->children = true;
    j->begin = now_ns();
    j->deadline = NEVER;
    j->port = port;
    attempt_dirs_make(j->opts, j->attempt);
    pipe_make(report_pipe);
    nonblocking(report_pipe[0]);
    if (j->started >= 0) close(j->started);
    j->started = report_pipe[0];
    for (int i = 0; i < j->opts->n; ++i)
        rank_reset(&j->ranks[i]);
    for (int i = 0; i < j->opts->n; ++i)
        rank_start(j, i, report_pipe[1]);
    close(report_pipe[1]);
}

/* --stay: a new process in place of one that has ended. */
static void rank_again(job *j, int local) {
    int report_pipe[2];
    rank *r = &j->ranks[local];
    const rank old = *r;
    rank_reset(r);
    r->tries = old.tries + 1;
    r->pause = old.pause;
    attempt_dirs_make(j->opts, tries_of(j, local));
    pipe_make(report_pipe);
    nonblocking(report_pipe[0]);
    j->started = report_pipe[0];
    rank_start(j, local, report_pipe[1]);
    close(report_pipe[1]);
    j->children = true;
}

/* What has ended this attempt would not end another one. */
static bool may_restart(const job *j) {
    if (j->no_restart || j->abandoned || j->nodes.final) return false;
    return (j->cause == FAILURE || j->cause == ELSEWHERE) && j->attempt < j->opts->max_restarts;
}

static void attempt_next(job *j) {
    char text[FAILURE_BYTES];
    nodes *s = &j->nodes;
    if (s->verdict[0] != '\0')
        memcpy(text, s->verdict, sizeof text);
    else
        failure_text(j, j->first, text, sizeof text);
    ++j->attempt;
    say(j, "%s; starting all ranks again (restart %d of %d)", text, j->attempt,
        j->opts->max_restarts);
    j->cause = NOTHING;
    j->code = s->present = 0;
    s->introduced = s->told = false;
    s->verdict[0] = '\0';
    if (j->opts->nnodes > 1)
        enter(j, JOIN, j->opts->join_timeout);
    else
        attempt_start(j, attempt_port(j));
}

/* All is known about this attempt, also from the other machines. */
static void attempt_judge(job *j) {
    nodes *s = &j->nodes;
    if (s->verdict[0] != '\0' && (j->cause == FAILURE || j->cause == ELSEWHERE)) j->code = s->code;
    if (may_restart(j)) {
        attempt_next(j);
        return;
    }
    /* the others might wait for us */
    if (s->verdict[0] != '\0' && !s->final && j->attempt < j->opts->max_restarts) {
        char there[FAILURE_BYTES], text[FAILURE_BYTES];
        snprintf(text, sizeof text, "%d node %d was asked to end", j->code, j->opts->node_rank);
        nodes_claim(j, node_key(j, "final", -1), text, there);
    }
    report(j);
    nodes_count(j, node_key(j, "left", -1), 1);
    if (s->server != NULL && s->store != NULL)
        enter(j, LEAVE, LEAVE_LIMIT);
    else
        enter(j, FLUSH, reader_limit(j));
}

/* Of the ranks that ended by an exit code, the one whose error file has the earliest time failed
   first, even if another one ended before it. */
static void attempt_first_by_time(job *j) {
    int first = -1;
    uint64_t earliest = 0;
    if (j->cause != FAILURE || j->nodes.told || cdp__launch_blame(&j->ranks[j->first].p) != 1)
        return;
    if (cdp__launch_error_time(cdp_os_default(), error_path(j, j->first)) == 0) return;
    for (int i = 0; i < j->opts->n; ++i) {
        const rank *r = &j->ranks[i];
        const uint64_t at = cdp__launch_error_time(cdp_os_default(), error_path(j, i));
        if (r->p.by_us || cdp__launch_blame(&r->p) == 0 || at == 0) continue;
        if (first >= 0 && at >= earliest) continue;
        first = i;
        earliest = at;
    }
    if (first < 0 || first == j->first) return;
    j->first = first;
    j->code = cdp__launch_exit_code(&j->ranks[first].p.end);
    say(j, "rank %d failed first, by the times in the error files", global_rank(j, first));
}

static void attempt_over(job *j) {
    attempt_first_by_time(j);
    /* then the program has handled the signal; to other machines it is still why ranks are gone */
    bool fine = !meets(j);
    for (int i = 0; i < j->opts->n; ++i)
        fine = fine && j->ranks[i].p.ended && cdp__launch_blame(&j->ranks[i].p) == 0;
    if (j->cause == SIGNALLED && fine) {
        j->cause = NOTHING;
        j->code = 0;
    }
    j->nodes.told = false;
    j->nodes.look_at = j->cause == FAILURE ? j->nodes.tell_at : 0;
    if (meets(j))
        enter(j, AGREE, NEVER);
    else
        attempt_judge(j);
}

static void on_elsewhere(job *j) {
    j->cause = ELSEWHERE;
    j->code = j->nodes.code;
    if (j->phase != RUN) return;
    say(j, "%s; the ranks here have %.10g s to end by themselves", j->nodes.verdict,
        seconds(j->opts->grace));
    enter(j, GRACE, j->opts->grace);
}

static void join_step(job *j) {
    nodes *s = &j->nodes;
    char port[FAILURE_BYTES];
    /* node 0 knows best who is missing */
    const int64_t late = j->opts->node_rank == 0 ? 0 : 3 * SECOND;
    bool there = s->store != NULL || nodes_connect(j);
    there = there && (s->introduced || nodes_introduce(j));
    if (there && j->opts->node_rank == 0) nodes_gather(j);
    if (s->verdict[0] == '\0' && nodes_look(j, node_key(j, "go", j->attempt), port))
        attempt_start(j, atoi(port));
    else if (s->verdict[0] == '\0' && now_ns() >= j->deadline + (s->store != NULL ? late : 0))
        nodes_give_up(j);
    if (s->verdict[0] == '\0') return;
    on_elsewhere(j);
    attempt_judge(j);
}

static void agree_step(job *j) {
    nodes *s = &j->nodes;
    if (!s->told) nodes_tell_end(j);
    if (s->verdict[0] == '\0'
        && nodes_count(j, node_key(j, "done", j->attempt), 0) < j->opts->nnodes)
        return;
    if (s->verdict[0] != '\0' && j->cause == NOTHING) on_elsewhere(j);
    attempt_judge(j);
}

static void nodes_step(job *j) {
    nodes *s = &j->nodes;
    const int64_t now = now_ns();
    if (j->opts->nnodes == 1 || j->phase >= FLUSH || now < s->look_at) return;
    s->look_at = now + LOOK_TICK;
    nodes_look_for_verdict(j);
    if (s->verdict[0] != '\0' && j->cause == NOTHING && j->phase < AGREE && j->phase != JOIN)
        on_elsewhere(j);
    if (j->cause == FAILURE && !s->told && j->phase < AGREE && now >= s->tell_at) nodes_tell_end(j);
    if (j->phase == JOIN)
        join_step(j);
    else if (j->phase == AGREE)
        agree_step(j);
    else if (j->phase == LEAVE
        && (nodes_count(j, node_key(j, "left", -1), 0) >= s->expected || now >= j->deadline))
        enter(j, FLUSH, reader_limit(j));
}

#include "cdprun_elastic.h"

/* A signal to this launcher is told before the ranks receive it: those elsewhere fail as soon as
   they lose a peer, and what has been told first is what ended the attempt. */
static void nodes_tell_signal(job *j) {
    nodes *s = &j->nodes;
    if (s->store == NULL || s->told || j->cause != SIGNALLED) return;
    s->store->timeout_ms = LOOK_MS; /* the ranks here wait for it */
    if (j->agent != NULL)
        agent_tell_soon(j);
    else if (meets(j))
        nodes_tell_end(j);
    if (s->store != NULL) s->store->timeout_ms = CLAIM_MS;
}

/* ---- >>keeper  The loop: one wait, then every part takes its share. */

enum {
    POLL_WAKE,
    POLL_CONTROL,
    POLL_STARTED,
    POLL_SINKS,
    POLL_STREAMS = POLL_SINKS + 2
};

/* the signal handler's only way to the loop */
static int wake_pipe[2];

static void on_child(int sig) {
    const int saved = errno;
    const ssize_t n = write(wake_pipe[1], "", 1); /* full is as good */
    (void)n;
    (void)sig;
    errno = saved;
}

static cdp__launch_stream *stream_at(const job *j, int i) {
    return j->ranks[i / 2].out[i % 2];
}

/* Ranks run, and nobody has told them to end: also after a failure, when the others have a long
   time to end by themselves. */
static bool timers_count(const job *j) {
    return j->phase == RUN || j->phase == GRACE;
}

static int poll_timeout(const job *j) {
    int64_t when = j->deadline < j->timeout_at && j->phase != JOIN && j->phase != LEAVE
        ? j->deadline
        : j->timeout_at;
    if (meets(j) && j->phase < FLUSH && j->nodes.look_at < when) when = j->nodes.look_at;
    if (timers_count(j) && j->timers_at < when) when = j->timers_at;
    if (j->opts->health_file != NULL && j->health_at < when) when = j->health_at;
    const int64_t now = now_ns();
    if (j->phase == KILL && now + KILL_TICK < when) when = now + KILL_TICK;
    for (int i = 0; i < 2 * j->opts->n; ++i)
        if (stream_at(j, i)->due_ns < (uint64_t)when) when = (int64_t)stream_at(j, i)->due_ns;
    if (when == NEVER) return -1;
    if (when <= now) return 0;
    const int64_t ms = (when - now + 999999) / 1000000;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

static void wait_for_events(job *j) {
    struct pollfd *p = j->polls; /* poll() skips negative descriptors */
    p[POLL_CONTROL].fd = j->control;
    p[POLL_STARTED].fd = j->started;
    for (int i = 0; i < 2; ++i) {
        cdp__launch_sink *k = &j->console.sinks[i];
        p[POLL_SINKS + i].fd = cdp__launch_pending(k) > 0 ? k->fd : -1;
        p[POLL_SINKS + i].events = POLLOUT;
    }
    for (int i = 0; i < 2 * j->opts->n; ++i) {
        const cdp__launch_stream *s = stream_at(j, i);
        p[POLL_STREAMS + i].fd = cdp__launch_sink_full(s->to) || j->phase >= DRAIN ? -1 : s->fd;
    }
    if (poll(p, (nfds_t)(POLL_STREAMS + 2 * j->opts->n), poll_timeout(j)) < 0)
        for (int i = 0; i < POLL_STREAMS + 2 * j->opts->n; ++i)
            p[i].revents = 0;
    char drop[64];
    while (read(wake_pipe[0], drop, sizeof drop) > 0) {
    }
}

static void carry_output(job *j) {
    const int64_t now = now_ns();
    for (int i = 0; i < 2 * j->opts->n; ++i) {
        cdp__launch_stream *s = stream_at(j, i);
        if (j->polls[POLL_STREAMS + i].revents != 0 && !cdp__launch_sink_full(s->to))
            stream_pump(s);
        cdp__launch_show_progress(s, (uint64_t)now);
    }
    for (int i = 0; i < 2; ++i) {
        cdp__launch_sink *k = &j->console.sinks[i];
        cdp__launch_flush(k);
        if (!k->closed || k->told) continue;
        k->told = true;
        if (i == 0 && k->err == EPIPE)
            on_reader_gone(j);
        else if (k->err != EPIPE)
            say(j, "cannot write output, dropping it: %s", strerror(k->err));
    }
}

/* All writers are dead, so an empty pipe is at its end, even if someone outside the job holds it
   open. */
static void drain(job *j) {
    for (int i = 0; i < 2 * j->opts->n; ++i) {
        cdp__launch_stream *s = stream_at(j, i);
        while (!cdp__launch_sink_full(s->to) && stream_pump(s)) {
        }
        if (cdp__launch_sink_full(s->to)) return;
        cdp__launch_stream_end(s);
    }
    attempt_over(j);
}

static void all_ranks_ended(job *j) {
    if (!j->children) {
#ifndef __linux__
        ranks_signal(j, SIGKILL); /* groups only; nobody there is our child */
#endif
        enter_drain(j);
    } else if (j->phase < SWEEP) {
        ranks_ask_to_end(j, SIGTERM);
        enter(
            j, SWEEP, j->opts->kill_grace < LEFTOVER_GRACE ? j->opts->kill_grace : LEFTOVER_GRACE);
    }
}

/* Kills the ranks whose timers have expired; their ends are failures like every other crash. */
static void look_at_timers(job *j) {
    if (!timers_count(j) || now_ns() < j->timers_at) return;
    j->timers_at = now_ns() + CDP__TIMER_LOOK_MS * (SECOND / 1000);
    for (int i = 0; i < j->opts->n; ++i) {
        rank *r = &j->ranks[i];
        if (r->p.ended || r->p.pid <= 0 || r->expired[0] != '\0') continue;
        if (!cdp__timer_expired(cdp_os_default(), timer_path(j, i), r->expired)) continue;
        say(j, "rank %d is killed: " CDP__TIMER_SAYS, global_rank(j, i), r->expired);
        kill(-r->p.pid, SIGKILL);
    }
}

static void advance(job *j) {
    look_at_timers(j);
    if (now_ns() >= j->timeout_at) on_timeout(j);
    if (j->agent != NULL)
        agent_step(j);
    else
        nodes_step(j);
    const bool over = j->running == 0 && !(j->phase == RUN && stay_waits(j));
    if (j->phase != JOIN && j->phase < DRAIN && over) all_ranks_ended(j);
    const int64_t now = now_ns();
    const bool due = now >= j->deadline;
    switch (j->phase) {
    case GRACE:
        if (due) enter_term(j);
        break;
    case TERM:
    case SWEEP:
        if (due) enter_kill(j);
        break;
    case KILL:
        if (due) {
            say(j, "some processes do not die; leaving them to the system");
            enter_drain(j);
        } else {
            /* reaches those that have become our children since */
            ranks_signal(j, SIGKILL);
        }
        break;
    default: break;
    }
    /* at once: no event will come to wake us for these two */
    if (j->phase == DRAIN) drain(j);
    if (j->phase == FLUSH && cdp__launch_pending(&j->console.sinks[0]) == 0
        && cdp__launch_pending(&j->console.sinks[1]) == 0)
        j->phase = DONE;
    if (now >= j->deadline && (j->phase == DRAIN || j->phase == FLUSH)) j->phase = DONE;
    if (j->abandoned && j->phase >= DRAIN) j->phase = DONE;
}

static void job_open_console(job *j) {
    cdp__launch_console *const c = &j->console;
    cdp__launch_console_open(c, cdp_os_default());
    for (int i = 0; i < 2; ++i)
        c->sinks[i].color = color_wanted(j->opts->color, c->sinks[i].fd);
    j->ranks = zalloc((size_t)j->opts->n, sizeof *j->ranks);
    for (int i = 0; i < 2 * j->opts->n; ++i) {
        cdp__launch_stream *s = cdp__launch_stream_new(cdp_os_default(), c->to[i % 2]);
        if (s == NULL) fatal("out of memory");
        j->ranks[i / 2].out[i % 2] = s;
    }
}

static void job_open(job *j) {
    const options *o = j->opts;
    struct sigaction action;
    sigset_t most;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_child;
    pipe_make(wake_pipe);
    nonblocking(wake_pipe[0]);
    nonblocking(wake_pipe[1]);
    sigaction(SIGCHLD, &action, NULL);
    /* SIGPIPE and SIGTTOU among them; the front listens for us */
    sigfillset(&most);
    sigdelset(&most, SIGCHLD);
    sigprocmask(SIG_SETMASK, &most, NULL);
    env_given(o);
    if (o->threads[0] != '\0' && o->cores > 1 && getenv("OMP_NUM_THREADS") == NULL)
        fprintf(stderr, "cdprun: OMP_NUM_THREADS is not set: %d for each rank\n", o->cores);
    job_open_console(j);
    j->polls = zalloc((size_t)(POLL_STREAMS + 2 * o->n), sizeof *j->polls);
    for (int i = 0; i < POLL_STREAMS + 2 * o->n; ++i)
        j->polls[i].events = POLLIN;
    j->polls[POLL_WAKE].fd = wake_pipe[0];
    j->timeout_at = o->timeout > 0 ? now_ns() + o->timeout : NEVER;
    if (!health_write(j)) fatal(o->health_file);
    if (o->event_log == NULL) return;
    j->events = open(o->event_log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (j->events < 0) fatal(o->event_log);
}

static int keeper_run(options *o, const struct rlimit *files, const sigset_t *mask, int control) {
    job j = {.opts = o,
        .files = *files,
        .mask = *mask,
        .control = control,
        .started = -1,
        .events = -1,
        .deadline = NEVER};
    adopt_orphans();
    nonblocking(control);
    job_open(&j);
    if (o->dynamic) {
        agent_open(&j, o);
        enter(&j, JOIN, NEVER);
    } else if (o->nnodes > 1) {
        enter(&j, JOIN, o->join_timeout);
    } else {
        attempt_start(&j, attempt_port(&j));
    }
    while (j.phase != DONE) {
        wait_for_events(&j);
        read_control(&j);
        read_started(&j);
        reap(&j);
        carry_output(&j);
        advance(&j);
        health_write(&j);
    }
    run_dir_remove(o);
    if (!j.abandoned) { /* else our last will is to be executed */
        cdp_store_destroy(j.nodes.store);
        cdp_store_server_destroy(j.nodes.server);
    }
    if (!j.console.sinks[0].closed || j.code != 0) return j.code;
    return j.console.sinks[0].err == EPIPE ? 128 + SIGPIPE : EXIT_INTERNAL;
}

/* ---- >>front */

/* or a pipe of ours would take the number of a closed one */
static void keep_standard_files_open(void) {
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
}

static char **arguments_copy(int argc, char **argv) {
    char **copy = zalloc((size_t)argc + 1, sizeof *copy);
    for (int i = 0; i < argc; ++i)
        if ((copy[i] = strdup(argv[i])) == NULL) fatal("out of memory");
    return copy;
}

/* See "both die" at the top. The title overwrites the argument strings, therefore the copy. */
static void keeper_title(int argc, char **argv, pid_t front) {
#ifdef __linux__
    const size_t size = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) + 1 - argv[0]);
    memset(argv[0], 0, size);
    snprintf(argv[0], size, "rank keeper of %ld", (long)front);
    prctl(PR_SET_NAME, "rank-keeper", 0L, 0L, 0L);
#else
    (void)argc;
    (void)argv;
    (void)front;
#endif
}

static void ignore_event(int sig) {
    (void)sig;
}

/* The signals that the front waits for. One that the caller had ignored (nohup, background jobs)
   stays ignored. */
static sigset_t signals_to_pass(void) {
    static const int passed[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP};
    sigset_t set;
    struct sigaction action;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < sizeof passed / sizeof passed[0]; ++i)
        if (sigaction(passed[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&set, passed[i]);
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    /* an ignored SIGCHLD would lose the exit codes */
    action.sa_handler = ignore_event;
    sigaction(SIGCHLD, &action, NULL);
    return set;
}

/* Returns the keeper's status; *first is the first signal passed on that asks for the end, or 0. */
static int front_wait(
    pid_t keeper, int control, const sigset_t *set, inherited *callers, int *first) {
    for (;;) {
        int sig, status;
        pid_t pid;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            if (pid == keeper) return status;
            inherited_ended(callers, pid);
        }
        if (sigwait(set, &sig) != 0 || sig == SIGCHLD) continue;
        const unsigned char tell = (unsigned char)sig, go_on = SIGCONT;
        /* the keeper is dead: SIGCHLD is on its way */
        if (write(control, &tell, 1) != 1) continue;
        if (*first == 0 && (sig == SIGINT || sig == SIGTERM || sig == SIGHUP)) *first = sig;
        /* ctrl-Z: first the ranks, then ourselves, then all go on */
        if (sig == SIGTSTP) {
            raise(SIGSTOP);
            if (write(control, &go_on, 1) != 1) continue;
        }
    }
}

/* Nothing to do unless the keeper was killed or gave up. */
static void front_sweep(inherited *callers) {
    const struct timespec tick = {.tv_nsec = KILL_TICK / 2};
    for (const int64_t limit = now_ns() + KILL_LIMIT; now_ns() < limit; nanosleep(&tick, NULL)) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            inherited_ended(callers, pid);
        if (pid < 0 || children_signal(SIGKILL, is_inherited, callers) == 0) return;
    }
}

/* A shell that runs a loop stops at ctrl-C only if it sees that its child has died of it. */
static int front_exit(int code, int first, const sigset_t *mask) {
    if (first != 0 && code == 128 + first) {
        sigset_t one;
        sigprocmask(SIG_SETMASK, mask, NULL);
        sigemptyset(&one);
        sigaddset(&one, first);
        raise(first);
        sigprocmask(SIG_UNBLOCK, &one, NULL);
    }
    return code;
}

/* --serve: a store for launchers elsewhere, until a signal comes. */
static int serve_run(const options *o) {
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    const cdp_store_server_desc d = {.host = o->host,
        .port = (uint16_t)o->host_port,
        .job_key = o->key[0] != '\0' ? o->key : NULL,
        .trust_network = o->open};
    cdp_store_server *server;
    struct rlimit files;
    sigset_t set;
    int sig = 0;
    /* each launcher, and each rank of a job with --stay, keeps connections open */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i)
        sigaddset(&set, ends[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (cdp_store_server_create(&d, &server) != CDP_OK) {
        fprintf(stderr, "cdprun: cannot serve a store at %s:%d: %s\n", o->host, o->host_port,
            cdp_last_error()->text);
        return EXIT_INTERNAL;
    }
    printf("cdprun: serving the store at %s:%d\n", o->host, o->host_port);
    fflush(stdout);
    while (sigwait(&set, &sig) != 0) {
    }
    cdp_store_server_destroy(server);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 1) return EXIT_USAGE;
    keep_standard_files_open();
    options o = options_parse(argc, arguments_copy(argc, argv));
    if (o.serve) return serve_run(&o);
    options_addr(&o);
    const struct rlimit files = files_raise(&o);
    const sigset_t set = signals_to_pass();
    sigset_t blocked = set, mask;
    int control[2], first = 0;
    /* the keeper may be gone when we write to it */
    sigaddset(&blocked, SIGPIPE);
    sigprocmask(SIG_BLOCK, &blocked, &mask);
    pipe_make(control);
    run_dir_make(&o);
    inherited callers = {.count = 0};
    children_signal(0, inherited_add, &callers);
    adopt_orphans();
    const pid_t front = getpid(), keeper = fork();
    if (keeper < 0) {
        run_dir_remove(&o);
        fatal("cannot start");
    }
    if (keeper == 0) {
        /* before all else: its end must mean the front's death */
        close(control[1]);
        setpgid(0, 0);
        keeper_title(argc, argv, front);
        _exit(keeper_run(&o, &files, &mask, control[0]));
    }
    cdp__wipe(o.key, sizeof o.key);
    close(control[0]);
    nonblocking(control[1]);
    const int status = front_wait(keeper, control[1], &set, &callers, &first);
    cdp__process_end end;
    cdp__process_end_of(status, &end);
    front_sweep(&callers);
    run_dir_remove(&o);
    if (end.sig != 0)
        fprintf(stderr, "cdprun: its keeper process was killed by %s; all ranks are ended\n",
            signal_name(end.sig));
    return front_exit(cdp__launch_exit_code(&end), first, &mask);
}
#endif /* not Windows */
