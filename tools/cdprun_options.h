/*  cdprun_options.h - the options of cdprun: one row for each, which is its names, its variable,
    its help and what sets it

    Included by cdprun.c, and by cdprun_windows.h, where the rows that say WINDOWS are taken. Which
    options go together is in cdprun.c.

    SECTIONS   >>options >>option-table >>help */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef CDPRUN_OPTIONS_H
#define CDPRUN_OPTIONS_H

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION "0.3.0"
#define RUN_DIR_BYTES 4096
#define SECOND INT64_C(1000000000)
/* per machine; a typing error should not become a fork bomb */
#ifdef _WIN32
#define MAX_RANKS 1024
#else
#define MAX_RANKS 4096
#endif

enum {
    EXIT_INTERNAL = 1,
    EXIT_USAGE = 2,
    EXIT_TIMEOUT = 124,
    EXIT_CANNOT_RUN = 126,
    EXIT_NOT_FOUND = 127
};

/* ---- >>options */

enum {
    COLOR_AUTO,
    COLOR_NEVER,
    COLOR_ALWAYS
};
/* bits of --redirects and --tee, as in torchrun */
enum {
    TO_CONSOLE = 0,
    STDOUT = 1,
    STDERR = 2
};

enum {
    MOST_SERVERS = 5
};

typedef struct server_place { /* of a store that lives on several servers */
    char name[80];            /* HOST:PORT */
    char host[80];
    int port;
} server_place;

/* --bind */
enum {
    BIND_NONE,
    BIND_CORE,
    BIND_NUMA
};

typedef struct options {
    int n, nnodes, node_rank, port; /* node_rank -1: not given; port 0: choose one */
    int max_restarts;
    const char *addr; /* MASTER_ADDR; NULL: not given                */
    const char *endpoint, *run_id, *role;
    char host[256]; /* where the launchers meet, if nnodes > 1     */
    int host_port;
    server_place servers[MOST_SERVERS]; /* of a list; the first one is that of `host`, too */
    int server_count;                   /* 0: there is no list */
    char server_list[MOST_SERVERS * 80];
    bool standalone, open;
    const char *key_file;
    char key[260]; /* CDP_JOB_KEY; "": none                       */
    const char *log_dir, *redirects, *tee;
    const char *outer_error_file;     /* of a launcher around this one; NULL: none   */
    unsigned char *redirected, *teed; /* per local rank: STDOUT | STDERR             */
    char run_dir[RUN_DIR_BYTES];      /* log and error files; "": there can be none  */
    int64_t grace, kill_grace;        /* ns */
    int64_t timeout, join_timeout;    /* ns; timeout 0: none                         */
    bool prefix, stdin_rank0;
    bool module, no_python;  /* -m; --no-python                             */
    bool virtual_rank;       /* --virtual-local-rank                        */
    int bind;                /* --bind: BIND_...                            */
    int cores;               /* --cores-per-rank, or what that is without it */
    char threads[12];        /* OMP_NUM_THREADS where it is not set; "": as it is */
    char per_gpu[40];        /* the option that said "gpu", or "": its ranks are counted later */
    const char *devices;     /* CUDA_VISIBLE_DEVICES of the ranks; NULL: it is not set */
    const char *shown_ranks; /* --local-ranks-filter; NULL: all             */
    unsigned char *shown;    /* per local rank: its output goes to the console */
    int color;
    bool dynamic;             /* machines may come and go: no --node-rank    */
    bool stay;                /* --stay: ranks live on when others die       */
    bool serve;               /* --serve: no ranks, only the store           */
    int min_nodes, max_nodes; /* of --nnodes MIN:MAX; both M of --nnodes M   */
    int is_host;              /* of --rdzv-conf: -1 not given                */
    const char *external;     /* --external-store; NULL: a launcher serves   */
    const char *event_log, *local_addr;
    const char *health_file;        /* NULL: none */
    int64_t last_call, settle;      /* ns; see --rdzv-conf                 */
    int64_t keep_alive, keep_tries; /* of --rdzv-conf; 0: not given        */
    int64_t cooldown;               /* ns; of --cooldown                   */
    char **command;                 /* NULL-terminated                             */
    const char **env;               /* NAME=VALUE                                  */
    int env_count;
} options;

_Noreturn static void usage_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("cdprun: ", stderr);
    vfprintf(stderr, format, args);
    fputs(" (see cdprun --help)\n", stderr);
    va_end(args);
    exit(EXIT_USAGE);
}

static int number_option(const char *name, const char *text, int min, int max) {
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0') usage_error("%s needs a whole number, not '%s'", name, text);
    if (errno != 0 || value < min || value > max)
        usage_error("%s must be between %d and %d, not %s", name, min, max, text);
    return (int)value;
}

/* How many devices a list as that of CUDA_VISIBLE_DEVICES names, by numbers, GPU-... or MIG-...:
   CUDA uses those before the first that is none, as "-1", or the NoDevFiles of Slurm. */
static int devices_in(const char *list) {
    int count = 0;
    while (*list != '\0' && strchr(" 0123456789GM", *list) != NULL) {
        ++count;
        list += strcspn(list, ",");
        list += *list == ',';
    }
    return count;
}

/* The devices that the ranks find in CUDA_VISIBLE_DEVICES; NULL: all. */
static const char *options_visible(const options *o) {
    static const char name[] = "CUDA_VISIBLE_DEVICES=";
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; i < o->env_count; ++i)
        if (strncmp(o->env[i], name, sizeof name - 1) == 0) list = o->env[i] + sizeof name - 1;
    return list;
}

/* -n gpu, when all of --env is known. */
static void options_gpus(options *o) {
    const char *const visible = options_visible(o);
    if (o->per_gpu[0] == '\0') return;
    const int gpus = visible != NULL ? devices_in(visible) : gpu_files();
    if (gpus < 1)
        usage_error("%s gpu: %s; give a number", o->per_gpu,
            visible != NULL ? "CUDA_VISIBLE_DEVICES names none"
                            : "there is no GPU of NVIDIA (/dev/nvidia0, ...)");
    o->n = gpus > MAX_RANKS ? MAX_RANKS : gpus;
}

static int processes_option(const char *name, const char *text) {
    if (strcmp(text, "auto") != 0 && strcmp(text, "cpu") != 0)
        return number_option(name, text, 1, MAX_RANKS);
    const long processors = processor_count();
    if (processors < 1) return 1;
    return processors > MAX_RANKS ? MAX_RANKS : (int)processors;
}

/* "M", or torchrun's "MIN:MAX". */
static void nodes_option(options *o, const char *text) {
    const char *colon = strchr(text, ':');
    char first[16];
    if (colon == NULL) {
        o->nnodes = o->min_nodes = o->max_nodes = number_option("--nnodes", text, 1, 1000000);
        return;
    }
    snprintf(first, sizeof first, "%.*s", (int)(colon - text), text);
    o->min_nodes = number_option("MIN of --nnodes MIN:MAX", first, 1, 1000000);
    o->max_nodes = number_option("MAX of --nnodes MIN:MAX", colon + 1, 1, 1000000);
    if (o->max_nodes < o->min_nodes)
        usage_error("--nnodes %s: MIN must not be more than MAX", text);
    o->nnodes = o->max_nodes;
}

static int64_t seconds_option(const char *name, const char *text) {
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < 0 || value > 1e9)
        usage_error("%s needs a number of seconds, not '%s'", name, text);
    return (int64_t)(value * 1e9);
}

/* The most that a pause may become is 60 times as long. */
static int64_t cooldown_option(const char *name, const char *text) {
    const int64_t ns = seconds_option(name, text);
    if (ns > 3600 * SECOND) usage_error("%s must be at most 3600 seconds, not %s", name, text);
    return ns;
}

static int64_t limit_option(const char *name, const char *text) {
    const int64_t ns = seconds_option(name, text);
    if (ns == 0) usage_error("%s must be more than 0 seconds", name);
    return ns;
}

static const char *text_option(const char *name, const char *text) {
    if (text[0] == '\0') usage_error("%s must not be empty", name);
    return text;
}

static int color_option(const char *text) {
    if (strcmp(text, "auto") == 0) return COLOR_AUTO;
    if (strcmp(text, "never") == 0) return COLOR_NEVER;
    if (strcmp(text, "always") == 0) return COLOR_ALWAYS;
    usage_error("--color must be auto, always or never, not '%s'", text);
}

static void backend_option(const char *text) {
    if (strcmp(text, "static") != 0 && strcmp(text, "c10d") != 0)
        usage_error("--rdzv-backend must be static or c10d, not '%s'", text);
}

/* The words of torchrun. */
static bool yes_option(const char *name, const char *text) {
    static const char *const words[] = {"0", "1", "f", "t", "false", "true", "n", "y", "no", "yes"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i)
        if (strcasecmp(text, words[i]) == 0) return i % 2 == 1;
    usage_error("%s must be 1 or 0, not '%s'", name, text);
}

/* One setting of torchrun's rendezvous. */
static void rdzv_conf_one(options *o, const char *name, const char *value) {
    static const char *const unused[] = {
        "close_timeout", "read_timeout", "heartbeat_timeout", "use_agent_store", "store_type"};
    char what[64];
    snprintf(what, sizeof what, "--rdzv-conf %s", name);
    if (strcmp(name, "timeout") == 0 || strcmp(name, "join_timeout") == 0)
        o->join_timeout = limit_option(what, value);
    else if (strcmp(name, "last_call_timeout") == 0)
        o->last_call = seconds_option(what, value);
    else if (strcmp(name, "keep_alive_interval") == 0)
        o->keep_alive = limit_option(what, value);
    else if (strcmp(name, "keep_alive_max_attempt") == 0)
        o->keep_tries = number_option(what, value, 1, 1000000);
    else if (strcmp(name, "is_host") == 0)
        o->is_host = yes_option(what, value);
    else {
        for (size_t i = 0; i < sizeof unused / sizeof unused[0]; ++i)
            if (strcmp(name, unused[i]) == 0) return;
        usage_error("--rdzv-conf has no setting '%s'", name);
    }
}

/* A word without the blanks around it. False: it is empty, or does not fit. */
static bool rdzv_conf_word(char *out, size_t size, const char *text, size_t len) {
    for (; len > 0 && *text == ' '; --len)
        ++text;
    while (len > 0 && text[len - 1] == ' ')
        --len;
    if (len == 0 || len >= size) return false;
    snprintf(out, size, "%.*s", (int)len, text);
    return true;
}

/* KEY=VALUE,KEY=VALUE; as torchrun, with blanks around the words or without. */
static void rdzv_conf_option(options *o, const char *text) {
    for (const char *p = text; *p != '\0';) {
        char value[32], key[32];
        const size_t len = strcspn(p, ","), name = strcspn(p, "=");
        if (name >= len || !rdzv_conf_word(key, sizeof key, p, name)
            || !rdzv_conf_word(value, sizeof value, p + name + 1, len - name - 1))
            usage_error("--rdzv-conf must be KEY=VALUE,KEY=VALUE, not '%s'", text);
        rdzv_conf_one(o, key, value);
        p += len + (p[len] == ',');
    }
}

/* torchrun can be told which signals end the job; here it is always these four. */
static void signals_option(const char *text) {
    static const char known[] = ",SIGTERM,SIGINT,SIGHUP,SIGQUIT,";
    for (const char *p = text; *p != '\0';) {
        char name[32];
        const size_t len = strcspn(p, ",");
        snprintf(name, sizeof name, ",%.*s,", (int)len, p);
        if (len == 0 || strstr(known, name) == NULL)
            usage_error("--signals-to-handle: SIGTERM, SIGINT, SIGHUP and SIGQUIT end the job, "
                        "and no other signal ('%s')",
                text);
        p += len + (p[len] == ',');
    }
}

static const char *env_option(const char *text) {
    const char *eq = strchr(text, '=');
    if (eq == NULL || eq == text) usage_error("--env needs NAME=VALUE, not '%s'", text);
    if (cdp__launch_owns(text, (uint64_t)(eq - text)))
        usage_error("--env cannot set %.*s, because cdprun sets it", (int)(eq - text), text);
    return text;
}

/* ---- >>option-table  One row for each option: its names, its value, what sets it, its help.

   Each long name is a variable, too, as torchrun's: PET_NPROC_PER_NODE. */

typedef enum option_section {
    START,
    OUTPUT,
    MACHINES,
    COMING,
    TORCHRUN,
    NO_EFFECT,
    NOT_TAKEN,
    WINDOWS = 16 /* with one of the others: it is taken on Windows, too */
} option_section;

typedef struct option_row option_row;

/* An option that was given. */
typedef struct setting {
    options *o;
    const option_row *row;
    const char *name, *value; /* value NULL: the option has none */
    void *at;                 /* the member that the row names */
} setting;

struct option_row {
    const char *names; /* with a blank between two */
    const char *value; /* what its value is called; NULL: it has none */
    unsigned where;    /* an option_section, perhaps with WINDOWS */
    void (*set)(const setting *s);
    size_t member; /* of options; for setters that write one */
    int range[2];  /* of set_number */
    const char *help;
};

#define AT(member) offsetof(options, member)
#define TEXT_OF(x) TEXT_OF_(x)
#define TEXT_OF_(x) #x

static void set_true(const setting *s) {
    *(bool *)s->at = true;
}
static void set_false(const setting *s) {
    *(bool *)s->at = false;
}
static void set_number(const setting *s) {
    *(int *)s->at = number_option(s->name, s->value, s->row->range[0], s->row->range[1]);
}
static void set_seconds(const setting *s) {
    *(int64_t *)s->at = seconds_option(s->name, s->value);
}
static void set_limit(const setting *s) {
    *(int64_t *)s->at = limit_option(s->name, s->value);
}
static void set_cooldown(const setting *s) {
    *(int64_t *)s->at = cooldown_option(s->name, s->value);
}
static void set_text(const setting *s) {
    *(const char **)s->at = text_option(s->name, s->value);
}
static void set_streams(const setting *s) { /* checked when the number of ranks is known */
    *(const char **)s->at = s->value;
}
static void set_color(const setting *s) {
    *(int *)s->at = color_option(s->value);
}
static void set_processes(const setting *s) {
    const bool gpu = strcmp(s->value, "gpu") == 0;
    snprintf(s->o->per_gpu, sizeof s->o->per_gpu, "%s", gpu ? s->name : "");
    s->o->n = gpu ? 0 : processes_option(s->name, s->value);
}
static void set_env(const setting *s) {
    s->o->env[s->o->env_count++] = env_option(s->value);
}
static void set_nodes(const setting *s) {
    nodes_option(s->o, s->value);
}
static void set_conf(const setting *s) {
    rdzv_conf_option(s->o, s->value);
}
static void set_backend(const setting *s) {
    backend_option(s->value);
}
static void set_signals(const setting *s) {
    signals_option(s->value);
}
static void set_nothing(const setting *s) {
    (void)s;
}
static void set_bind(const setting *s) {
    static const char *const modes[] = {"none", "core", "numa"};
    for (int i = 0; i < 3; ++i)
        if (strcmp(s->value, modes[i]) == 0) {
            *(int *)s->at = i;
            return;
        }
    usage_error("%s must be none, core or numa, not '%s'", s->name, s->value);
}
/* torchrun's: the modes that have one here */
static void set_numa(const setting *s) {
    if (strcmp(s->value, "node") != 0)
        usage_error("%s %s is not taken: node is, as --bind numa; for cores of its own each rank "
                    "has --bind core",
            s->name, s->value);
    *(int *)s->at = BIND_NUMA;
}
static void set_refused(const setting *s) {
    usage_error("torchrun's %s is not taken by cdprun %s", s->name, s->row->help);
}
static void set_help(const setting *s);
static void set_version(const setting *s) {
    (void)s;
    puts("cdprun " VERSION);
    exit(0);
}

static const option_row option_table[] = {
    {"-n -np --nproc-per-node", "N", START | WINDOWS, set_processes, 0, {0},
        "processes to start here: 1 to " TEXT_OF(
            MAX_RANKS) ", or 'auto' or 'cpu' for one per processor, 'gpu' for one per "
                       "device of CUDA_VISIBLE_DEVICES, or without that of /dev/nvidia*"},
    {"--max-restarts", "R", START, set_number, AT(max_restarts), {0, 1000000},
        "start all ranks again, up to R times, when one of them fails (default: 0)"},
    {"--env", "NAME=VALUE", START | WINDOWS, set_env, 0, {0},
        "set one more variable for every rank; may be repeated"},
    {"--role", "NAME", START, set_text, AT(role), {0}, "ROLE_NAME of the ranks (default: default)"},
    {"--bind", "MODE", START, set_bind, AT(bind), {0},
        "which of the processors that cdprun may use a rank gets: all (none, the default), cores "
        "of its own (core), or those of one NUMA node, which neighbours share (numa); on Linux"},
    {"--cores-per-rank", "K", START, set_number, AT(cores), {1, 4096},
        "how many cores a rank has, and OMP_NUM_THREADS where it is not set (default: the cores "
        "divided by N, at least 1)"},
    {"--timeout", "SECONDS", START | WINDOWS, set_limit, AT(timeout), {0},
        "end the job after this time, with exit code 124 (default: never)"},
    {"--grace", "SECONDS", START | WINDOWS, set_seconds, AT(grace), {0},
        "how long the others may go on after a failure (default: 5)"},
    {"--kill-grace --shutdown-timeout", "SECONDS", START, set_seconds, AT(kill_grace), {0},
        "how long after SIGTERM a process is killed (default: as --grace)"},

    {"--no-prefix", NULL, OUTPUT | WINDOWS, set_false, AT(prefix), {0},
        "pass output on as it is, without '[RANK] ' before each line"},
    {"--color", "WHEN", OUTPUT, set_color, AT(color), {0},
        "colour the prefix by rank: auto, always or never (default: auto)"},
    {"--log-dir", "DIR", OUTPUT, set_text, AT(log_dir), {0},
        "keep files: DIR/ID_RANDOM/attempt_A/LOCAL_RANK/stdout.log, stderr.log, error.json"},
    {"-r --redirects", "WHAT", OUTPUT, set_streams, AT(redirects), {0},
        "what goes to these files only: 0 nothing, 1 stdout, 2 stderr, 3 both; or per local rank: "
        "0:3,1:1 (the others: nothing)"},
    {"-t --tee", "WHAT", OUTPUT, set_streams, AT(tee), {0}, "what goes there and to the console"},
    {"--no-stdin", NULL, OUTPUT, set_false, AT(stdin_rank0), {0}, "give /dev/null to rank 0, too"},
    {"--event-log", "FILE", OUTPUT, set_text, AT(event_log), {0},
        "append what happens to this file, as lines of JSON with time, pid (of cdprun) and event: "
        "rank_end; with machines that come and go, and with --stay, also start, epoch, restart, "
        "alarm, left_out, final and end"},
    {"--health-file", "FILE", OUTPUT, set_text, AT(health_file), {0},
        "replace this file each second, and when the state changes, by a line of JSON with state, "
        "time, pid (of cdprun), restarts, ranks and running: an old time shows that cdprun hangs"},
    {"--local-ranks-filter", "LIST", OUTPUT, set_text, AT(shown_ranks), {0},
        "show the output of these local ranks only: 0,3"},

    {"--nnodes", "M or MIN:MAX", MACHINES, set_nodes, 0, {0},
        "number of machines (default: 1); each runs N ranks. MIN:MAX: they come and go, see below"},
    {"--node-rank", "K", MACHINES, set_number, AT(node_rank), {0, INT_MAX},
        "which of them this is (0 to M-1); RANK becomes K * N + LOCAL_RANK; without it machines "
        "may come and go, see below"},
    {"--rdzv-endpoint", "HOST[:PORT]", MACHINES, set_text, AT(endpoint), {0},
        "where the launchers meet: an address of machine 0, which serves it (default port: 29400; "
        "default: --master-addr and --master-port). Or 3 or 5 of them, with commas between: see "
        "below"},
    {"--master-addr", "ADDR", MACHINES | WINDOWS, set_text, AT(addr), {0},
        "address of machine 0 for the ranks (default: HOST above; one machine: 127.0.0.1)"},
    {"--master-port", "PORT", MACHINES | WINDOWS, set_number, AT(port), {1, 65535},
        "port there (default: one that is free, another one after each restart)"},
    {"--rdzv-id", "ID", MACHINES, set_text, AT(run_id), {0},
        "name of the job, which keeps jobs at one endpoint apart (default: none); must be new for "
        "each job at a store that outlives jobs (--external-store)"},
    {"--join-timeout", "SECONDS", MACHINES, set_limit, AT(join_timeout), {0},
        "how long to wait for all machines (default: 600); with --stay for the store alone, and "
        "the ranks wait for each other as join_ms of cdp_elastic_desc says"},
    {"--job-key-file", "FILE", MACHINES, set_text, AT(key_file), {0},
        "file with the secret of the job, for all machines the same:\n"
        "head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > FILE\n"
        "(default: the variable CDP_JOB_KEY; on one machine: 32 random bytes) A warning tells of a "
        "file that others may read, or a short secret."},
    {"--open", NULL, MACHINES | WINDOWS, set_true, AT(open), {0},
        "no secret: whoever reaches the ports may take part, as PyTorch's processes (which know "
        "none) must be able to where they use the store of a rank that is written in C"},
    {"--standalone", NULL, MACHINES, set_true, AT(standalone), {0},
        "one machine, whatever --rdzv-endpoint and --rdzv-id say"},

    {"--stay", NULL, COMING, set_true, AT(stay), {0},
        "instead the ranks live on (a program with cdp_elastic.h); a rank that failed is replaced "
        "by a new one, which costs one of --max-restarts. Also on one machine, without "
        "--rdzv-endpoint"},
    {"--cooldown", "SECONDS", COMING, set_cooldown, AT(cooldown), {0},
        "wait so long before ranks are started again, twice as long each time, up to 60 times "
        "(default: 1)"},
    {"--external-store", "HOST:PORT", COMING, set_text, AT(external), {0},
        "this store is used instead of one that the launcher on HOST serves, and no launcher is "
        "special; takes a --rdzv-id that no job at this store has had. Or 3 or 5 of them that one "
        "store lives on, with commas between"},
    {"--serve", NULL, COMING, set_true, AT(serve), {0},
        "start no ranks and take no command: serve such a store at --rdzv-endpoint until a signal "
        "comes; it keeps what jobs have written, so each needs a new --rdzv-id"},
    {"--local-addr", "ADDR", COMING, set_text, AT(local_addr), {0},
        "address of this machine for the ranks of others (default: the one that reaches HOST)"},
    {"--rdzv-conf", "KEY=VALUE,...", COMING, set_conf, 0, {0},
        "join_timeout: as --join-timeout, also when fewer than MIN are left; last_call_timeout: so "
        "long nobody else may have come before fewer than MAX start (default: 5); "
        "keep_alive_interval times keep_alive_max_attempt: how long those are waited for of whom "
        "nobody knows whether they live (default: 5 s); is_host=1 or 0: this launcher must, or "
        "must not, serve the store; timeout: as join_timeout; without effect: close_timeout, "
        "read_timeout, heartbeat_timeout, use_agent_store, store_type"},

    {"-m --module", NULL, TORCHRUN, set_true, AT(module), {0},
        "COMMAND is a Python module; a COMMAND that ends in .py is run by Python, too (the "
        "variable PYTHON_EXEC, or python3), unless there is --no-python"},
    {"--no-python", NULL, TORCHRUN, set_true, AT(no_python), {0},
        "COMMAND is a program, whatever its name ends in"},
    {"--numa-binding", "MODE", TORCHRUN, set_numa, AT(bind), {0}, "node: as --bind numa"},
    {"--virtual-local-rank", NULL, TORCHRUN, set_true, AT(virtual_rank), {0},
        "LOCAL_RANK is 0 in every rank, and CUDA_VISIBLE_DEVICES names the one device that is its "
        "own: that number of the list, where there was one"},
    {"-h --help", NULL, TORCHRUN | WINDOWS, set_help, 0, {0}, "print this text"},
    {"-V --version", NULL, TORCHRUN | WINDOWS, set_version, 0, {0}, "print the version"},

    {"--monitor-interval", "SECONDS", NO_EFFECT, set_nothing, 0, {0}, ""},
    {"--rdzv-backend", "BACKEND", NO_EFFECT, set_backend, 0, {0}, "static or c10d"},
    {"--start-method", "METHOD", NO_EFFECT, set_nothing, 0, {0}, ""},
    {"--use-env", NULL, NO_EFFECT, set_nothing, 0, {0}, ""},
    {"--event-log-handler", "NAME", NO_EFFECT, set_nothing, 0, {0}, ""},
    {"--signals-to-handle", "LIST", NO_EFFECT, set_signals, 0, {0},
        "(some of SIGTERM, SIGINT, SIGHUP, SIGQUIT)"},

    {"--run-path", NULL, NOT_TAKEN, set_refused, 0, {0},
        "(it runs a script inside Python's own process: name the script as COMMAND)"},
    {"--logs-specs", "NAME", NOT_TAKEN, set_refused, 0, {0},
        "(it names a class of Python: use --log-dir, --redirects, --tee)"},
    {"--duplicate-stdout-filters", "LIST", NOT_TAKEN, set_refused, 0, {0},
        "(search the files of --log-dir, for which --tee 1 keeps stdout)"},
    {"--duplicate-stderr-filters", "LIST", NOT_TAKEN, set_refused, 0, {0},
        "(search the files of --log-dir, for which --tee 2 keeps stderr)"},
};

#define OPTION_COUNT (sizeof option_table / sizeof option_table[0])

static bool option_taken(const option_row *row) {
#ifdef _WIN32
    return (row->where & WINDOWS) != 0;
#else
    (void)row;
    return true;
#endif
}

static bool option_in(const option_row *row, unsigned section) {
    return (row->where & ~(unsigned)WINDOWS) == section && option_taken(row);
}

/* The next name of a row; false after the last one. */
static bool option_name(const char **names, char out[40]) {
    const size_t len = strcspn(*names, " ");
    snprintf(out, 40, "%.*s", (int)len, *names);
    *names += len + ((*names)[len] == ' ');
    return len > 0;
}

static void option_apply(options *o, const option_row *row, const char *name, const char *value) {
    const setting s = {o, row, name, value, (char *)o + row->member};
    row->set(&s);
}

/* Whether `word` is the option `name` of a row: "--two-words", "--two_words", "--name=value", "-n"
   or "-n4". *value is NULL unless it is part of the same word. */
static bool option_is(
    const option_row *row, const char *name, const char *word, const char **value) {
    const bool is_long = word[1] == '-';
    const size_t len = is_long ? strcspn(word, "=") : strlen(word), part = strlen(name);
    *value = NULL;
    size_t same = 0;
    while (same < part
        && (name[same] == word[same] || (is_long && name[same] == '-' && word[same] == '_')))
        ++same;
    if (same < part) return false;
    if (len == part) {
        if (word[len] == '=') *value = word + len + 1;
        if (*value != NULL && row->value == NULL) usage_error("%s takes no value", name);
        return true;
    }
    if (is_long || row->value == NULL || word[part] < '0' || word[part] > '9') return false;
    *value = word + part;
    return true;
}

/* The row of an option, its name without underscores in `name`. */
static const option_row *option_find(const char *word, char name[40], const char **value) {
    for (size_t i = 0; i < OPTION_COUNT; ++i)
        for (const char *names = option_table[i].names; option_name(&names, name);)
            if (option_is(&option_table[i], name, word, value)) {
                if (!option_taken(&option_table[i])) usage_error("%s is not taken here", name);
                return &option_table[i];
            }
    usage_error("unknown option '%s'", word);
}

/* Variables of torchrun. */
static void options_from_env(options *o) {
    for (size_t i = 0; i < OPTION_COUNT; ++i) {
        const option_row *row = &option_table[i];
        char name[40], variable[48];
        if (!option_taken(row)) continue;
        if (row->set == set_env || row->set == set_help || row->set == set_version) continue;
        for (const char *names = row->names; option_name(&names, name);) {
            if (name[1] != '-') continue;
            snprintf(variable, sizeof variable, "PET_%s", name + 2);
            for (char *p = variable; *p != '\0'; ++p) {
                if (*p == '-') *p = '_';
                if (*p >= 'a' && *p <= 'z') *p = (char)(*p - 'a' + 'A');
            }
            const char *value = getenv(variable);
            if (value == NULL || value[0] == '\0') continue;
            if (row->value != NULL || strcmp(value, "0") != 0) option_apply(o, row, name, value);
        }
    }
}

/* ---- >>help */

#ifdef _WIN32
static const char help_first[] =
    "cdprun - starts N processes of one program as the ranks of a job on this machine\n"
    "\n"
    "usage: cdprun -n N [options] [--] COMMAND [ARGUMENT...]\n"
    "\n";
static const char *const help_sections[NO_EFFECT] = {"", "", "", "", ""};
static const char help_more[] =
    "\nThe exit code is that of the first rank that failed; 0 if none did.\n";
#else
static const char help_first[] =
    "cdprun - starts N processes of one program as the ranks of a job, on this machine or on "
    "several\n"
    "\n"
    "usage: cdprun -n N [options] [--] COMMAND [ARGUMENT...]\n"
    "\n"
    "Options are spelled as torchrun's: --opt VALUE or --opt=VALUE, with - or _ between words.\n"
    "\n";

/* What stands above the options of a section. */
static const char *const help_sections[NO_EFFECT] = {"", "\noutput:\n",
    "\nseveral machines (run cdprun once on each, with the same options but --node-rank):\n",
    "\nmachines that come and go (run cdprun on each, with the same options, at any time):\n"
    "  --nnodes MIN:MAX starts with MIN to MAX machines. When one fails, leaves (SIGTERM) or "
    "joins, "
    "all ranks\n"
    "  are ended and started again with new RANK and WORLD_SIZE. A failure costs one of "
    "--max-restarts,\n"
    "  counted once for the job. More than MAX wait as spares. --nnodes M without --node-rank is "
    "M:M.\n"
    "  The launcher on HOST of --rdzv-endpoint serves the store; if it dies, the job ends. With "
    "--rdzv-endpoint\n"
    "  HOST,HOST,HOST three launchers keep the store together: one of them may die (of five: two), "
    "and the job\n"
    "  goes on. It begins when all three are there; one that comes back serves nothing.\n",
    "\nas torchrun (each option is a variable, too: PET_NPROC_PER_NODE, PET_NNODES, PET_...):\n"
    "  ${local_rank}            in ARGUMENTs becomes the LOCAL_RANK of each process\n"};

static const char help_more[] =
    "\n"
    "Environment of a rank: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, "
    "GROUP_WORLD_SIZE, ROLE_NAME,\n"
    "         ROLE_RANK, ROLE_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT, "
    "_MAX_RESTARTS, _RUN_ID,\n"
    "         _USE_AGENT_STORE (False: rank 0 serves the store), _ERROR_FILE, as torchrun sets "
    "them; CDP_JOB_KEY (with\n"
    "         --open CDP_TRUST_NETWORK=1 instead), which cdp_init_from_env() reads; "
    "CDP_TIMER_FILE, "
    "to which\n"
    "         cdp_timer_begin() writes when this rank is to be killed; and\n"
    "         OMP_NUM_THREADS (see --cores-per-rank) if there are several ranks and it is not set. "
    "With --stay also\n"
    "         "
    "CDP_ELASTIC (MIN:MAX in\n"
    "         ranks), CDP_ELASTIC_ID, CDP_ELASTIC_JOB and perhaps CDP_ELASTIC_SERVERS, which "
    "cdp_elastic_create_from_env()\n"
    "         reads, MASTER_ADDR and MASTER_PORT are those of the store, and RANK and WORLD_SIZE "
    "only tell processes\n"
    "         apart: what is true changes, and cdp_elastic_next() returns it.\n"
    "Input:   rank 0 inherits standard input unless that is a terminal; all others read /dev/null. "
    "(On a terminal\n"
    "         the ranks are background processes, so that ctrl-C reaches each of them exactly "
    "once, through cdprun.)\n"
    "Output:  whole lines; stdout goes to stdout, stderr to stderr. A line over 64 KiB is cut; its "
    "further pieces start\n"
    "         with '[RANK]+'. Progress bars (text ended by a carriage return alone) appear as "
    "lines, at most one per\n"
    "         second and rank. With --no-prefix no byte is added but a line end between the texts "
    "of two ranks.\n"
    "Failure: the first rank that exits with a code other than 0, or dies by a signal, ends the "
    "job: the others have\n"
    "         --grace seconds to finish by themselves, then they get SIGTERM and, --kill-grace "
    "later, SIGKILL. Then all\n"
    "         start again, or a report names the first failure, with what the rank wrote to its "
    "TORCHELASTIC_ERROR_FILE\n"
    "         (cdp_error_record) and its last 4 KiB of stderr (stdout if there is none), and lists "
    "how each rank ended.\n"
    "         Several machines do all this together.\n"
    "Signals: SIGINT, SIGTERM, SIGHUP and SIGQUIT go to all ranks and end the job in the same way; "
    "a second one kills\n"
    "         at once. SIGUSR1 and SIGUSR2 are passed on. Processes that ranks leave behind are "
    "ended with the job,\n"
    "         also when cdprun itself is killed.\n"
    "Exit:    0 if every rank exits with 0; otherwise the first failing rank's exit code, 128 + "
    "signal number if it\n"
    "         died by a signal (or cdprun was sent one), 124 timeout, 126 command cannot be run, "
    "127 not found, 141 if\n"
    "         the reader of stdout went away, 2 wrong usage, 1 cdprun itself could not go on.\n"
    "\n"
    "examples:\n"
    "  cdprun -n 4 ./train --epochs 3\n"
    "  cdprun -n 4 --max-restarts 3 --log-dir logs --tee 3 ./train --resume\n"
    "  cdprun -n 2 sh -c 'CUDA_VISIBLE_DEVICES=$LOCAL_RANK exec ./train'\n"
    "  cdprun -n 8 --nnodes 2 --node-rank 1 --rdzv-endpoint 10.0.0.1:29400 --job-key-file job.key "
    "./train\n"
    "  cdprun -n 8 --nnodes 2:4 --max-restarts 9 --rdzv-endpoint 10.0.0.1 --job-key-file job.key "
    "./train --resume\n";
#endif

enum {
    HELP_WIDTH = 100, /* columns */
    HELP_INDENT = 27
};

/* Prints a text from column `at` <= HELP_INDENT on, in lines that begin at HELP_INDENT. */
static void help_words(size_t at, const char *text) {
    bool first = true; /* of its line */
    while (*text != '\0') {
        const size_t len = strcspn(text, " \n");
        if (!first && at + 1 + len > HELP_WIDTH) {
            putchar('\n');
            at = 0;
        }
        if (at < HELP_INDENT)
            printf("%*s%.*s", (int)(HELP_INDENT - at), "", (int)len, text);
        else
            printf("%s%.*s", first ? "" : " ", (int)len, text);
        at = (at < HELP_INDENT ? HELP_INDENT : at + !first) + len;
        first = text[len] == '\n';
        if (first) {
            putchar('\n');
            at = 0;
        }
        text += len + (text[len] != '\0');
    }
    putchar('\n');
}

/* "  -n, -np, --nproc-per-node N  what it means" */
static void help_row(const option_row *row) {
    char name[40];
    size_t at = (size_t)printf(" ");
    for (const char *names = row->names; option_name(&names, name);)
        at += (size_t)printf(" %s%s", name, *names != '\0' ? "," : "");
    if (row->value != NULL) at += (size_t)printf(" %s", row->value);
    if (at + 2 > HELP_INDENT) {
        putchar('\n');
        at = 0;
    }
    help_words(at, row->help);
}

#ifndef _WIN32
/* The options that do nothing here, in one paragraph. */
static void help_list(const char *title, unsigned section) {
    char text[2048];
    size_t used = 0;
    for (size_t i = 0; i < OPTION_COUNT; ++i) {
        const option_row *row = &option_table[i];
        if (option_in(row, section))
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s%s%s",
                used > 0 ? ", " : "", row->names, row->help[0] != '\0' ? " " : "", row->help);
    }
    help_words((size_t)printf("  %s", title), text);
}
#endif

static void set_help(const setting *s) {
    (void)s;
    fputs(help_first, stdout);
    for (unsigned section = START; section < NO_EFFECT; ++section) {
        fputs(help_sections[section], stdout);
        for (size_t i = 0; i < OPTION_COUNT; ++i)
            if (option_in(&option_table[i], section)) help_row(&option_table[i]);
    }
#ifndef _WIN32
    help_list("without effect:", NO_EFFECT);
    help_list("not taken:", NOT_TAKEN);
#endif
    fputs(help_more, stdout);
    exit(0);
}

/* Reads options up to the command, which it returns. */
static char **options_words(options *o, char **word) {
    for (; *word != NULL && **word == '-'; ++word) {
        const char *value;
        char name[40];
        if (strcmp(*word, "--") == 0) return word + 1;
        const option_row *row = option_find(*word, name, &value);
        if (row->value != NULL && value == NULL) {
            if (*++word == NULL) usage_error("%s needs a value", name);
            value = *word;
        }
        option_apply(o, row, name, value);
    }
    return word;
}

static void options_check_command(const options *o) {
    if (o->n == 0) usage_error("-n is missing: how many processes should be started?");
    if (o->command[0] == NULL) usage_error("the command is missing: what should be started?");
    if (o->command[0][0] == '\0') usage_error("the command is empty");
}

#endif
