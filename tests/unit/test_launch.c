/* test_launch.c - cdp_launch.h: workers that are programs and functions, and one function on n
   ranks */
#include "cdp_launch.h"
#include "test.h"

#ifndef _WIN32
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
extern char **environ;
#endif

static void is_text(const char *want, const char *got) {
    if (strcmp(want, got) != 0) printf("wanted: %s\n   got: %s\n", want, got);
    T(strcmp(want, got) == 0);
}

#ifndef _WIN32
static char place[64];

/* A folder of this case, empty. */
static const char *folder(void) {
    snprintf(place, sizeof place, "/tmp/cdp_launch_XXXXXX");
    T(mkdtemp(place) != NULL);
    return place;
}

static void folder_remove(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", place);
    T_EQ(0, system(command));
}

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", place, name);
    return path;
}

static const char *text_of(const char *name) {
    static char text[16384];
    FILE *f = fopen(path_of(name), "r");
    const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f) fclose(f);
    return text;
}

/* n workers run a line of shell, and their output goes to files alone. */
static cdp_launch_desc shell(const char *const *words, uint32_t n) {
    cdp_launch_desc d = {.command = words,
        .workers = n,
        .log_dir = folder(),
        .poll_ms = 10,
        .redirects = CDP_AGENT_STDOUT | CDP_AGENT_STDERR};
    return d;
}
#define SHELL(line) ((const char *const[]){"sh", "-c", (line), NULL})

TEST(workers_find_the_variables_of_torchrun) {
    const char *const env[] = {"COLOUR=red", "RANK=9", NULL},
                      *const second[] = {"COLOUR=blue", NULL};
    const char *const *const env_of[] = {NULL, second};
    cdp_launch_desc d =
        shell(SHELL("echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $ROLE_NAME "
                    "$MASTER_ADDR ${#CDP_JOB_KEY} $COLOUR $TORCHELASTIC_RUN_ID"),
            2);
    cdp_agent *a;
    d.env = env;
    d.env_of = env_of;
    d.role = "trainer";
    d.nodes = 3;
    d.node_rank = 2;
    d.master_addr = "10.1.2.3";
    d.master_port = 4711;
    d.job_key = "0123456789abcdef";
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    T_EQ(CDP_AGENT_SUCCEEDED, cdp_agent_state_of(a));
    is_text("4 6 0 2 2 trainer 10.1.2.3 16 red none\n", text_of("attempt_0/0/stdout.log"));
    is_text("5 6 1 2 2 trainer 10.1.2.3 16 blue none\n", text_of("attempt_0/1/stdout.log"));
    cdp_agent_destroy(a);
    folder_remove();
}

/* A process may have a variable several times, of which a worker would find the first one. */
TEST(a_variable_that_is_there_twice_is_there_once) {
    static char one[] = "RANK=7", two[] = "RANK=8", three[] = "COLOUR=red", four[] = "COLOUR=blue";
    char *twice[] = {one, two, three, four, NULL}, **const before = environ;
    const char *const env[] = {"COLOUR=green", NULL};
    const char *const words[] = {"/usr/bin/env", NULL};
    cdp_launch_desc d = shell(words, 1);
    const char *text;
    cdp_agent *a;
    d.env = env;
    environ = twice;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    environ = before;
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    text = text_of("attempt_0/0/stdout.log");
    T(strstr(text, "\nRANK=0\n") && !strstr(text, "RANK=8") && !strstr(text, "RANK=7"));
    T(strstr(text, "COLOUR=green\n") && !strstr(text, "COLOUR=red") && !strstr(text, "blue"));
    cdp_agent_destroy(a);
    folder_remove();
}

/* Three trainers and an evaluator on each of two machines. */
TEST(each_role_counts_its_workers) {
    const char *const roles[] = {NULL, "evaluator", NULL, "trainer"};
    cdp_launch_desc d =
        shell(SHELL("echo $RANK of $WORLD_SIZE: $ROLE_NAME $ROLE_RANK of $ROLE_WORLD_SIZE"), 4);
    static char longer[300];
    const char *const bad[] = {NULL, NULL, NULL, longer};
    cdp_agent *a;
    d.role = "trainer";
    d.roles = roles;
    d.nodes = 2;
    d.node_rank = 1;
    d.master_addr = "10.1.2.3";
    d.master_port = 4711;
    d.trust_network = true;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    is_text("4 of 8: trainer 3 of 6\n", text_of("attempt_0/0/stdout.log"));
    is_text("5 of 8: evaluator 1 of 2\n", text_of("attempt_0/1/stdout.log"));
    is_text("6 of 8: trainer 4 of 6\n", text_of("attempt_0/2/stdout.log"));
    is_text("7 of 8: trainer 5 of 6\n", text_of("attempt_0/3/stdout.log"));
    is_text("evaluator", cdp_agent_result(a)->ends[1].role);
    cdp_agent_destroy(a);
    memset(longer, 'x', sizeof longer - 1);
    d.roles = bad;
    T_EQ(CDP_ERR_INVALID, cdp_agent_start(&d, &a));
    T(strstr(cdp_last_error()->text, "desc.roles has 299 characters, more than 255") != NULL);
    folder_remove();
}

/* By crash before exit code, with message, last lines and the file of JSON. */
TEST(the_first_failure_is_named) {
    cdp_launch_desc d =
        shell(SHELL("echo line $RANK; if [ $RANK = 2 ]; then echo '{\"message\": \"no bread\"}' > "
                    "$TORCHELASTIC_ERROR_FILE; echo oh >&2; exit 7; fi; sleep 60"),
            3);
    const cdp_launch_result *r;
    cdp_agent *a;
    char file[128];
    snprintf(file, sizeof file, "%s", path_of("result.json"));
    d.result_file = file;
    d.grace_ms = 50;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_AGENT_HEALTHY, cdp_agent_state_of(a));
    T_EQ(CDP_ERR_REMOTE, cdp_agent_wait(a, 0));
    T(strstr(cdp_last_error()->text, "rank 2 failed first on ") != NULL);
    T(strstr(cdp_last_error()->text, "exit code 7: no bread") != NULL);
    r = cdp_agent_result(a);
    T_EQ(CDP_AGENT_FAILED, r->state);
    T(r->has_cause && r->count == 3);
    T_EQ(2, r->ends[0].rank);
    T_EQ(7, r->ends[0].exit_code);
    is_text("no bread", r->ends[0].message);
    is_text("oh\n", r->ends[0].last_lines);
    T_EQ(0, r->ends[1].rank);
    T_EQ(15, r->ends[1].signal);
    T(r->ends[1].by_agent && r->ends[1].ended && r->ends[1].time_us > 0);
    is_text("line 0\n", r->ends[1].last_lines);
    T(strncmp(text_of("result.json"), "{\"state\": \"FAILED\", \"host\": \"", 29) == 0);
    T(strstr(
          text_of("result.json"), "\"restarts\": 0, \"cause\": 2, \"workers\": [\n  {\"rank\": 2, ")
        != NULL);
    T(strstr(text_of("result.json"), "\"message\": \"no bread\", \"last_lines\": \"oh\\u000a\"}")
        != NULL);
    cdp_agent_destroy(a);
    folder_remove();
}

TEST(a_crash_counts_before_an_exit_code) {
    cdp_launch_desc d = shell(SHELL("if [ $RANK = 1 ]; then kill -KILL $$; fi; exit 3"), 2);
    cdp_agent *a;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    usleep(100000); /* both have ended before the first look */
    T_EQ(CDP_ERR_REMOTE, cdp_agent_wait(a, 0));
    T_EQ(1, cdp_agent_result(a)->ends[0].rank);
    T_EQ(9, cdp_agent_result(a)->ends[0].signal);
    cdp_agent_destroy(a);
    folder_remove();
}

/* Error files with a traceback are long. */
TEST(a_long_error_file_is_read) {
    cdp_launch_desc d =
        shell(SHELL("{ printf '{\"message\": \"no bread '; head -c 60000 /dev/zero | tr '\\0' x; "
                    "printf '\"}'; } > $TORCHELASTIC_ERROR_FILE; exit 7"),
            1);
    cdp_agent *a;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_ERR_REMOTE, cdp_agent_wait(a, 0));
    T(strstr(cdp_last_error()->text, "exit code 7: no bread xxx") != NULL);
    T_EQ(511, strlen(cdp_agent_result(a)->ends[0].message));
    cdp_agent_destroy(a);
    folder_remove();
}

/* Rank 1 of the first start is stuck in its own code. */
static int gets_stuck(void *user) {
    char label[120];
    bool first;
    uint32_t i;
    (void)user;
    if (cdp_timer_begin(60, "all") != CDP_OK || cdp_timer_begin(60, "a step") != CDP_OK) return 1;
    cdp_timer_end("a step");
    cdp_timer_end("none of this name");
    for (i = 0; i < 15; ++i) {
        snprintf(label, sizeof label, "more %u", i);
        if (cdp_timer_begin(60, label) != CDP_OK) return 2;
    }
    if (cdp_timer_begin(60, "one too many") != CDP_ERR_BUSY) return 3;
    if (cdp_timer_begin(60, "all") != CDP_OK) return 4; /* again */
    if (cdp_timer_begin(0, "x") != CDP_ERR_INVALID || cdp_timer_begin(1, "") != CDP_ERR_INVALID
        || cdp_timer_begin(1, NULL) != CDP_ERR_INVALID
        || cdp_timer_begin(1, "\n") != CDP_ERR_INVALID)
        return 5;
    cdp_timer_end("more 3");
    if (getenv("RANK")[0] == '0') return 0;
    first = getenv("TORCHELASTIC_RESTART_COUNT")[0] == '0';
    if (first && cdp_error_record_from_env("it is warm here") != CDP_OK) return 7;
    if (cdp_timer_begin(first ? 0.01 : 60, "a forward pass") != CDP_OK) return 6;
    if (first) sleep(60);
    cdp_timer_end("a forward pass");
    return 0;
}

TEST(a_worker_that_is_stuck_is_ended) {
    cdp_launch_desc d = {.func = gets_stuck, .workers = 2, .poll_ms = 10, .grace_ms = 50};
    const cdp_worker_end *e;
    cdp_agent *a;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_ERR_REMOTE, cdp_agent_wait(a, 0));
    T(strstr(cdp_last_error()->text, "killed by SIGKILL") != NULL);
    T(strstr(cdp_last_error()->text, "the time of the timer 'a forward pass' is over") != NULL);
    e = &cdp_agent_result(a)->ends[0];
    T(e->rank == 1 && e->signal == 9 && !e->by_agent);
    is_text("the time of the timer 'a forward pass' is over; its error file says: it is warm here",
        e->message);
    cdp_agent_destroy(a);
    d.max_restarts = 1;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    T_EQ(1, cdp_agent_result(a)->restarts);
    cdp_agent_destroy(a);
    T_EQ(CDP_OK, cdp_timer_begin(0.001, "nobody watches"));
    cdp_timer_end("nobody watches");
}

/* Rank 0 has failed, and rank 1 has for ever to end by itself. */
static int fails_or_gets_stuck(void *user) {
    (void)user;
    if (getenv("RANK")[0] == '0') return 3;
    if (cdp_timer_begin(1, "the last words") != CDP_OK) return 6;
    pause();
    return 0;
}

TEST(a_worker_that_is_stuck_after_a_failure_is_ended) {
    cdp_launch_desc d = {
        .func = fails_or_gets_stuck, .workers = 2, .poll_ms = 10, .grace_ms = CDP_NO_TIMEOUT};
    cdp_agent *a;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_ERR_REMOTE, cdp_agent_wait(a, 15000));
    T(strstr(cdp_last_error()->text, "rank 0 failed first") != NULL);
    is_text("the time of the timer 'the last words' is over", cdp_agent_result(a)->ends[1].message);
    cdp_agent_destroy(a);
}

static void write_file(const char *name, const char *text, size_t bytes) {
    FILE *f = fopen(path_of(name), "w");
    T(f && fwrite(text, 1, bytes, f) == bytes && fclose(f) == 0);
}

/* Its agent was killed, so that the files of workers stayed in log_dir. */
TEST(what_an_earlier_job_left_is_not_of_this_one) {
    static const char timers[128] = "12345 long ago";
    cdp_launch_desc d = shell(SHELL("sleep 0.2; exit 4"), 1);
    cdp_agent *a;
    T_EQ(0, mkdir(path_of("attempt_0"), 0700));
    T_EQ(0, mkdir(path_of("attempt_0/0"), 0700));
    write_file("attempt_0/0/error.json", "{\"message\": \"long ago\"}", 23);
    write_file("attempt_0/0/timers", timers, sizeof timers);
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_ERR_REMOTE, cdp_agent_wait(a, 0));
    T_EQ(4, cdp_agent_result(a)->ends[0].exit_code);
    is_text("", cdp_agent_result(a)->ends[0].message);
    cdp_agent_destroy(a);
    folder_remove();
}

/* The disk of its log is full: here no file may have more than four bytes. */
TEST(a_log_that_cannot_be_written_ends_nobody) {
    cdp_launch_desc d = shell(SHELL("echo one; sleep 0.2; echo two; sleep 0.2; echo three"), 1);
    cdp_agent *a;
    char said[4096] = {0};
    struct rlimit before, now;
    int ends[2];
    const int saved = dup(2);
    d.tee = CDP_AGENT_STDOUT;
    T_EQ(0, pipe(ends));
    T_EQ(0, getrlimit(RLIMIT_FSIZE, &before));
    now = before;
    now.rlim_cur = 4;
    signal(SIGXFSZ, SIG_IGN);
    T(saved >= 0 && dup2(ends[1], 2) == 2);
    T_EQ(0, setrlimit(RLIMIT_FSIZE, &now));
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    cdp_agent_destroy(a);
    T_EQ(0, setrlimit(RLIMIT_FSIZE, &before));
    T(dup2(saved, 2) == 2);
    T(read(ends[0], said, sizeof said - 1) > 0);
    const char *const line = strstr(said, "the log stdout.log of rank 0 cannot be written (errno ");
    const char *const after = line ? strstr(line, "(errno ") : NULL;
    T(after && !strstr(after, "cannot be written"));
    close(saved);
    close(ends[0]);
    close(ends[1]);
    folder_remove();
}

/* The launcher runs inside a rank that stays, and its ranks are others. */
TEST(workers_do_not_have_the_identity_of_a_rank_around_their_launcher) {
    cdp_launch_desc d = shell(SHELL("[ -z \"$CDP_ELASTIC_ID\" ]"), 1);
    cdp_agent *a;
    setenv("CDP_ELASTIC_ID", "00112233445566778899aabbccddeeff", 1);
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    cdp_agent_destroy(a);
    unsetenv("CDP_ELASTIC_ID");
    folder_remove();
}

/* A program cuts its log at the moment when its last lines are read. */
static int64_t read_less(void *user, int32_t fd, uint64_t at, void *to, uint64_t bytes) {
    return cdp_os_default()->files.read_at(user, fd, at, to, bytes < 10 ? bytes : 10);
}

TEST(a_log_that_is_cut_meanwhile_has_fewer_last_lines) {
    cdp_launch_desc d = shell(SHELL("head -c 9000 /dev/zero | tr '\\0' x; exit 4"), 1);
    cdp_os os = *cdp_os_default();
    cdp_agent *a;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    os.files.read_at = read_less;
    a->os = &os;
    T_EQ(CDP_ERR_REMOTE, cdp_agent_wait(a, 0));
    is_text("xxxxxxxxxx", cdp_agent_result(a)->ends[0].last_lines);
    cdp_agent_destroy(a);
    folder_remove();
}

/* A process that was forked while a timer began has the file open, too. */
TEST(a_forked_process_does_not_hold_the_timers) {
    const cdp_os *const os = cdp_os_default();
    cdp__timers t;
    pid_t pid;
    folder();
    T_EQ(0,
        cdp__timers_open(
            &t, os, path_of("timers"), CDP_FILE_WRITE | CDP_FILE_CREATE, CDP_FILE_LOCK_ALONE, 0));
    pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    cdp__timers_close(&t);
    if (T_EQ(0, cdp__timers_open(&t, os, path_of("timers"), 0, CDP_FILE_LOCK_SHARED, 0)))
        cdp__timers_close(&t);
    T(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
    folder_remove();
}

TEST(all_workers_start_again) {
    cdp_launch_desc d = shell(SHELL("echo $TORCHELASTIC_RESTART_COUNT $MASTER_PORT; [ "
                                    "$TORCHELASTIC_RESTART_COUNT = 2 ] || exit 5"),
        2);
    uint32_t unhealthy = 0, steps = 0;
    cdp_agent *a;
    d.max_restarts = 2;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    while (cdp_agent_state_of(a) < CDP_AGENT_STOPPED && ++steps < 3000) {
        T_EQ(CDP_OK, cdp_agent_step(a, 10));
        unhealthy += cdp_agent_state_of(a) == CDP_AGENT_UNHEALTHY;
    }
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    T_EQ(CDP_AGENT_SUCCEEDED, cdp_agent_state_of(a));
    T_EQ(2, cdp_agent_result(a)->restarts);
    T(!cdp_agent_result(a)->has_cause);
    T(strncmp("2 ", text_of("attempt_2/1/stdout.log"), 2) == 0);
    (void)unhealthy; /* a failure that ends all at once is over in one look */
    cdp_agent_destroy(a);
    folder_remove();
}

typedef struct heard {
    uint32_t started, ended, over, attempts, code_5;
    char lines[4096];
    uint64_t used;
} heard;

static void hear(void *user, const cdp_agent_event *e) {
    heard *const h = user;
    char line[1024], few[8];
    const uint64_t n = cdp_agent_event_text(e, line, sizeof line);
    T(n < sizeof line && n == strlen(line) && n == cdp_agent_event_text(e, NULL, 0));
    T_EQ(n, cdp_agent_event_text(e, few, sizeof few));
    T(strlen(few) == 7 && memcmp(few, line, 7) == 0);
    h->used += (uint64_t)snprintf(h->lines + h->used, sizeof h->lines - h->used, "%s\n", line);
    T(e->time_us > 1500000000000000ull);
    T((e->kind == CDP_AGENT_WORKER_ENDED) == (e->end != NULL));
    h->started += e->kind == CDP_AGENT_STARTED;
    h->ended += e->kind == CDP_AGENT_WORKER_ENDED;
    h->over += e->kind == CDP_AGENT_ENDED;
    if (e->kind == CDP_AGENT_STARTED) T_EQ(h->attempts++, e->attempt);
    if (e->kind == CDP_AGENT_STARTED) T_EQ(CDP_AGENT_HEALTHY, e->state);
    if (e->end) h->code_5 += e->end->exit_code == 5 && e->end->rank == 1;
    if (e->kind == CDP_AGENT_ENDED) T_EQ(CDP_AGENT_SUCCEEDED, e->state);
    T_EQ(CDP_ERR_INVALID, cdp_agent_step(NULL, 0)); /* the last error is nobody's in here */
}

TEST(the_program_hears_of_starts_and_ends) {
    cdp_launch_desc d =
        shell(SHELL("[ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 5"), 2);
    static heard h;
    cdp_agent_event odd = {.kind = (cdp_agent_event_kind)7};
    cdp_agent *a;
    memset(&h, 0, sizeof h);
    d.max_restarts = 1;
    d.event = hear;
    d.event_user = &h;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T(h.started == 1 && h.over == 0);
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    T_EQ(2, h.started);
    T_EQ(4, h.ended);
    T_EQ(1, h.over);
    T_EQ(1, h.code_5);
    T_TEXT("{\"event\": \"start\", \"time\": ", h.lines);
    T_TEXT(", \"attempt\": 1, \"state\": \"HEALTHY\"}\n", h.lines);
    T_TEXT("\"rank\": 1, \"local_rank\": 1, \"role\": \"default\", \"pid\": ", h.lines);
    T_TEXT("\"exit_code\": 5, \"signal\": 0, \"ended_at\": ", h.lines);
    T_TEXT("{\"event\": \"end\", \"time\": ", h.lines);
    cdp_agent_destroy(a);
    folder_remove();
    d = shell(SHELL("exit 3"), 1); /* a first start that fails is no event */
    d.command = (const char *const[]){"/nowhere/at/all", NULL};
    memset(&h, 0, sizeof h);
    d.event = hear;
    d.event_user = &h;
    T_EQ(CDP_ERR_INVALID, cdp_agent_start(&d, &a));
    T_TEXT("cannot run '/nowhere/at/all'", cdp_last_error()->text);
    T_EQ(0, h.started + h.ended + h.over);
    T_EQ(0, cdp_agent_event_text(NULL, NULL, 0));
    T_EQ(0, cdp_agent_event_text(&odd, NULL, 0));
    folder_remove();
}

/* Output goes to files alone: its last lines are there when a worker has ended, not only when all
   have. */
static void hear_lines(void *user, const cdp_agent_event *e) {
    uint32_t *const events = user;
    if (!e->end) return;
    ++*events;
    if (e->end->rank == 1) T_TEXT("too hot\n", e->end->last_lines);
    if (e->end->rank == 0) T_TEXT("all is well\n", e->end->last_lines);
}

/* ---- metrics, health ---- */

static void hear_metric(const cdp_metric *m, void *user) {
    cdp_metric *const last = user;
    *last = *m;
}

TEST(numbers_go_to_a_function_a_file_or_nowhere) {
    cdp_metric last;
    cdp_metrics to = {.func = hear_metric, .user = &last};
    char name[220];
    memset(&last, 0, sizeof last);
    unsetenv("RANK");
    T_EQ(CDP_OK, cdp_metric_put(&to, "loss", 0.25));
    T(strcmp(last.name, "loss") == 0 && last.value == 0.25 && last.time_us && last.rank == -1);
    folder();
    to.func = NULL;
    to.path = path_of("numbers");
    setenv("RANK", "3", 1);
    T_EQ(CDP_OK, cdp_metric_put(&to, "a \"quoted\" name", 1.5));
    T_EQ(CDP_OK, cdp_metric_put(&to, "nan", (double)NAN));
    unsetenv("RANK");
    setenv("CDP_METRICS_FILE", path_of("numbers"), 1);
    T_EQ(CDP_OK, cdp_metric_put(NULL, "third", -2));
    T_TEXT(", \"rank\": 3, \"name\": \"a \\\"quoted\\\" name\", \"value\": 1.5}\n{\"time\": ",
        text_of("numbers"));
    T_TEXT("\"name\": \"nan\", \"value\": null}\n", text_of("numbers"));
    T_TEXT("\"rank\": -1, \"name\": \"third\", \"value\": -2.0}\n", text_of("numbers"));
    unsetenv("CDP_METRICS_FILE");
    T_EQ(CDP_OK, cdp_metric_put(NULL, "nowhere", 1));
    to.path = "";
    T_EQ(CDP_OK, cdp_metric_put(&to, "nowhere", 1));
    to.path = "/no/such/folder/numbers";
    T_EQ(CDP_ERR_IO, cdp_metric_put(&to, "x", 1));
    T_TEXT("cdp_metric_put: cannot write /no/such/folder/numbers", cdp_last_error()->text);
    memset(name, 'x', sizeof name);
    name[201] = 0;
    T_EQ(CDP_ERR_INVALID, cdp_metric_put(NULL, name, 1));
    T_TEXT("the name has 201 characters; it must have 1 to 200", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_metric_put(NULL, "two\nlines", 1));
    T_EQ(CDP_ERR_INVALID, cdp_metric_put(NULL, "", 1));
    T_EQ(CDP_ERR_INVALID, cdp_metric_put(NULL, NULL, 1));
    folder_remove();
}

static int puts_numbers(void *user) {
    (void)user;
    for (int i = 0; i < 25; ++i)
        if (cdp_metric_put(NULL, "step", i) != CDP_OK) return 6;
    return 0;
}

TEST(workers_share_a_file_of_numbers) {
    char variable[160];
    const char *env[] = {variable, NULL};
    const cdp_launch_desc d = {.func = puts_numbers, .workers = 4, .poll_ms = 10, .env = env};
    uint32_t lines = 0;
    const char *at;
    cdp_agent *a;
    folder();
    snprintf(variable, sizeof variable, "CDP_METRICS_FILE=%s", path_of("numbers"));
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    cdp_agent_destroy(a);
    for (at = text_of("numbers"); *at; at = strchr(at, '\n') + 1, ++lines)
        if (!T(strncmp(at, "{\"time\": ", 9) == 0 && strchr(at, '\n'))) break;
    T_EQ(100, lines);
    folder_remove();
}

TEST(a_health_file_shows_the_state) {
    cdp_launch_desc d = shell(SHELL("sleep 0.3; exit 3"), 2);
    char path[128];
    cdp_agent *a;
    snprintf(path, sizeof path, "%s", path_of("health"));
    d.health_file = path;
    d.grace_ms = 5000;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_TEXT("{\"state\": \"INIT\", \"time\": ", text_of("health"));
    T_EQ(CDP_OK, cdp_agent_step(a, 20));
    T_TEXT("{\"state\": \"HEALTHY\", \"time\": ", text_of("health"));
    T_TEXT("\"attempt\": 0, \"workers\": 2, \"running\": 2}\n", text_of("health"));
    T_EQ(CDP_ERR_REMOTE, cdp_agent_wait(a, 0));
    T_TEXT("{\"state\": \"FAILED\", \"time\": ", text_of("health"));
    T_TEXT("\"running\": 0}\n", text_of("health"));
    T_EQ(-1, access(path_of("health.new"), F_OK));
    cdp_agent_destroy(a);
    d.health_file = "/no/such/folder/health";
    T_EQ(CDP_ERR_IO, cdp_agent_start(&d, &a));
    T_TEXT("cannot write desc.health_file /no/such/folder/health", cdp_last_error()->text);
    T(a == NULL);
    folder_remove();
}

TEST(an_event_has_the_last_lines_of_files) {
    cdp_launch_desc d =
        shell(SHELL("echo all is well; [ $RANK = 0 ] || { echo too hot >&2; exit 5; }"), 2);
    uint32_t events = 0;
    cdp_agent *a;
    d.event = hear_lines;
    d.event_user = &events;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_ERR_REMOTE, cdp_agent_wait(a, 0));
    T_EQ(2, events);
    T_TEXT("too hot\n", cdp_agent_result(a)->ends[0].last_lines);
    T_EQ(8, strlen(cdp_agent_result(a)->ends[0].last_lines));
    cdp_agent_destroy(a);
    folder_remove();
}

TEST(workers_are_asked_to_end_and_killed) {
    cdp_launch_desc d = shell(SHELL("trap '' TERM; echo up; while :; do sleep 0.05; done"), 2);
    const cdp_launch_result *r;
    cdp_agent *a;
    uint32_t n = 0;
    d.kill_ms = 100;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    while (
        n < 2000 && (!*text_of("attempt_0/0/stdout.log") || !*text_of("attempt_0/1/stdout.log"))) {
        T_EQ(CDP_OK, cdp_agent_step(a, 10));
        ++n;
    }
    T_EQ(CDP_ERR_TIMEOUT, cdp_agent_wait(a, 1));
    cdp_agent_stop(a);
    T_EQ(CDP_ERR_ABORTED, cdp_agent_wait(a, 0));
    r = cdp_agent_result(a);
    T_EQ(CDP_AGENT_STOPPED, r->state);
    T(!r->has_cause && r->ends[0].signal == 9 && r->ends[0].by_agent);
    T_EQ(-1, kill(r->ends[1].pid, 0));
    cdp_agent_destroy(a);
    folder_remove();
}

TEST(a_time_limit_ends_the_job) {
    cdp_launch_desc d = shell(SHELL("sleep 60"), 1);
    cdp_agent *a;
    d.timeout_ms = 50;
    d.max_restarts = 3;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_ERR_ABORTED, cdp_agent_wait(a, 0));
    T(strstr(cdp_last_error()->text, "timeout_ms") != NULL);
    T_EQ(0, cdp_agent_result(a)->restarts);
    cdp_agent_destroy(a);
    folder_remove();
}

/* What a worker started, in its process group, goes with it; and with the agent. */
TEST(nothing_of_a_group_is_left) {
    cdp_launch_desc d = shell(SHELL("sleep 77 & echo $!; [ $RANK = 0 ] || wait"), 2);
    int child[2] = {0, 0};
    cdp_agent *a;
    uint32_t n = 0, i;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    for (; n < 2000 && (!child[0] || !child[1]); ++n) {
        T_EQ(CDP_OK, cdp_agent_step(a, 10));
        child[0] = atoi(text_of("attempt_0/0/stdout.log"));
        child[1] = atoi(text_of("attempt_0/1/stdout.log"));
    }
    cdp_agent_destroy(a);
    for (i = 0; i < 2; ++i) { /* dead, or dead and not yet waited for by its new parent */
        char state = 'R', path[64];
        for (n = 0; n < 500 && state != 'Z' && kill(child[i], 0) == 0; ++n) {
            FILE *f;
            snprintf(path, sizeof path, "/proc/%d/stat", child[i]);
            f = fopen(path, "r");
            if (!f || fscanf(f, "%*d %*s %c", &state) != 1) state = 'Z';
            if (f) fclose(f);
            usleep(10000);
        }
        T(n < 500);
    }
    folder_remove();
}

/* Pipes: whole lines behind ranks, and what is kept of them. */
TEST(output_is_carried_and_teed) {
    cdp_launch_desc d =
        shell(SHELL("printf 'one\\ntwo'; head -c 9000 /dev/zero | tr '\\0' x; echo; echo end"), 1);
    const char *last;
    cdp_agent *a;
    int saved = dup(1), file;
    fflush(stdout);
    file = open(path_of("console"), O_CREAT | O_WRONLY, 0600);
    T(file >= 0 && dup2(file, 1) == 1);
    d.redirects = 0;
    d.tee = CDP_AGENT_STDOUT;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    close(file);
    T(strncmp("[0] one\n[0] twoxxx", text_of("console"), 18) == 0);
    T(strstr(text_of("console"), "x\n[0] end\n") != NULL);
    T(strncmp("one\ntwoxxx", text_of("attempt_0/0/stdout.log"), 10) == 0);
    last = cdp_agent_result(a)->ends[0].last_lines;
    is_text("end\n", last);
    cdp_agent_destroy(a);
    folder_remove();
}

/* A program with a loop of its own lets no step wait. */
TEST(steps_that_do_not_wait_carry_output) {
    cdp_launch_desc d = shell(SHELL("head -c 600000 /dev/zero | tr '\\0' x; echo end"), 1);
    int saved = dup(1), file, i;
    struct stat st;
    cdp_agent *a;
    fflush(stdout);
    file = open(path_of("console"), O_CREAT | O_WRONLY, 0600);
    T(file >= 0 && dup2(file, 1) == 1);
    d.redirects = 0;
    d.no_prefix = true;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    for (i = 0; i < 1500 && cdp_agent_state_of(a) == CDP_AGENT_HEALTHY; ++i) {
        usleep(10000);
        if (cdp_agent_step(a, 0) != CDP_OK) break;
    }
    dup2(saved, 1);
    close(saved);
    T_EQ(CDP_AGENT_SUCCEEDED, cdp_agent_state_of(a));
    T_EQ(0, fstat(file, &st));
    T_EQ(600004, st.st_size);
    close(file);
    cdp_agent_destroy(a);
    folder_remove();
}

/* Text of a progress bar is shown as lines, at most one a second; and numbers of ranks stand below
   each other. */
TEST(progress_text_becomes_lines) {
    cdp_launch_desc d = shell(SHELL("printf '1%%\r2%%\r3%%\rdone\n'"), 1);
    cdp_agent *a;
    int saved = dup(1), file;
    fflush(stdout);
    file = open(path_of("console"), O_CREAT | O_WRONLY, 0600);
    T(file >= 0 && dup2(file, 1) == 1);
    d.redirects = 0;
    d.nodes = 11;
    d.master_addr = "10.1.2.3";
    d.master_port = 4711;
    d.trust_network = true;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    dup2(saved, 1);
    close(saved);
    close(file);
    is_text("[ 0] 1%\n[ 0] done\n", text_of("console"));
    cdp_agent_destroy(a);
    folder_remove();
}

/* Console and workers go on as soon as somebody reads again; until then steps return. */
TEST(a_reader_that_stops_holds_up_no_step) {
    cdp_launch_desc d = shell(SHELL("head -c 300000 /dev/zero | tr '\\0' x; echo; echo end"), 2);
    char text[4096];
    cdp_agent *a;
    int saved = dup(1), ends[2], i;
    long long n, all = 0;
    pid_t pid;
    fflush(stdout);
    T_EQ(0, pipe(ends));
    T_EQ(1, dup2(ends[1], 1));
    close(ends[1]);
    d.redirects = 0;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    for (i = 0; i < 40; ++i)
        T_EQ(CDP_OK, cdp_agent_step(a, 5));
    T_EQ(CDP_AGENT_HEALTHY, cdp_agent_state_of(a));
    pid = fork();
    if (pid == 0) {
        close(1);
        for (; (n = read(ends[0], text, sizeof text)) > 0;)
            all += n;
        /* lines of at most 65536 bytes, each behind "[0] " or "[0]+", and a new line where cut */
        _exit(all >= 2 * 300000 ? 0 : 1);
    }
    T_EQ(CDP_OK, cdp_agent_wait(a, 0));
    cdp_agent_destroy(a);
    dup2(saved, 1);
    close(saved);
    close(ends[0]);
    T_EQ(pid, waitpid(pid, &i, 0));
    T_EQ(0, i);
    folder_remove();
}

/* What nobody reads is given up a while after the workers were asked to end. */
TEST(a_reader_that_never_reads_again_does_not_hold_up_the_end) {
    cdp_launch_desc d = shell(SHELL("head -c 90000 /dev/zero | tr '\\0' x"), 1);
    cdp_agent *a;
    int saved = dup(1), ends[2];
    fflush(stdout);
    T_EQ(0, pipe(ends));
    T_EQ(1, dup2(ends[1], 1));
    close(ends[1]);
    d.redirects = 0;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_ERR_TIMEOUT, cdp_agent_wait(a, 500));
    cdp_agent_stop(a);
    (void)!cdp_agent_wait(a, 0);
    T(cdp_agent_state_of(a) == CDP_AGENT_STOPPED || cdp_agent_state_of(a) == CDP_AGENT_SUCCEEDED);
    cdp_agent_destroy(a);
    dup2(saved, 1);
    close(saved);
    close(ends[0]);
    folder_remove();
}

static int exits_with_its_rank(void *user) {
    *(int *)user += 1; /* in a copy: this process does not see it */
    return getenv("RANK")[0] - '0';
}

TEST(workers_may_be_functions) {
    int calls = 0;
    cdp_launch_desc d = {.func = exits_with_its_rank, .user = &calls, .workers = 2, .poll_ms = 10};
    cdp_agent *a;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_ERR_REMOTE, cdp_agent_wait(a, 0));
    T_EQ(1, cdp_agent_result(a)->ends[0].exit_code);
    T_EQ(0, cdp_agent_result(a)->ends[1].exit_code);
    T_EQ(0, calls);
    cdp_agent_destroy(a);
}

TEST(mistakes_are_named) {
    const char *const words[] = {"/no/such/program", NULL}, *const bad[] = {"COLOUR", NULL};
    static const struct {
        const char *says;
        cdp_launch_desc d;
    } rows[] = {
        {"desc.workers is 0; 1 to 4096", {.func = exits_with_its_rank}},
        {"desc.workers is 4097", {.func = exits_with_its_rank, .workers = 4097}},
        {"desc.command or desc.func is needed", {.workers = 1}},
        {"desc.node_rank is 2; it must be below desc.nodes, 2",
            {.func = exits_with_its_rank, .workers = 1, .nodes = 2, .node_rank = 2}},
        {"desc.node_rank 1 needs desc.nodes",
            {.func = exits_with_its_rank, .workers = 1, .node_rank = 1}},
        {"2 machines need desc.master_addr",
            {.func = exits_with_its_rank, .workers = 1, .nodes = 2}},
        {"desc.redirects is 4", {.func = exits_with_its_rank, .workers = 1, .redirects = 4}},
        {"desc.tee needs desc.log_dir", {.func = exits_with_its_rank, .workers = 1, .tee = 1}},
    };
    cdp_launch_desc d = {.command = words, .workers = 2};
    cdp_agent *a = (cdp_agent *)place;
    size_t i;
    for (i = 0; i < sizeof rows / sizeof *rows; ++i) {
        T_EQ(CDP_ERR_INVALID, cdp_agent_start(&rows[i].d, &a));
        T(strstr(cdp_last_error()->text, rows[i].says) != NULL);
        T(a == NULL);
    }
    T_EQ(CDP_ERR_INVALID, cdp_agent_start(&d, &a));
    T(strstr(cdp_last_error()->text, "cannot run '/no/such/program': No such file") != NULL);
    d.env = bad;
    T_EQ(CDP_ERR_INVALID, cdp_agent_start(&d, &a));
    T(strstr(cdp_last_error()->text, "desc.env has 'COLOUR'; it must be NAME=VALUE") != NULL);
    T_EQ(CDP_ERR_INVALID, cdp_agent_start(NULL, &a));
    T_EQ(CDP_ERR_INVALID, cdp_agent_start(&d, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_agent_step(NULL, 0));
    T_EQ(CDP_ERR_INVALID, cdp_agent_wait(NULL, 0));
    T_EQ(CDP_ERR_INVALID, cdp_agent_save(NULL, "x"));
    T(cdp_agent_result(NULL) == NULL);
    T_EQ(CDP_AGENT_INIT, cdp_agent_state_of(NULL));
    is_text("UNKNOWN", cdp_agent_state_name(CDP_AGENT_UNKNOWN));
    cdp_agent_stop(NULL);
    cdp_agent_destroy(NULL);
}

/* Where the workers of a restart cannot start, the job has failed, and its error stays. */
TEST(a_restart_that_fails_is_the_end) {
    cdp_launch_desc d = shell(SHELL("exit 3"), 2);
    cdp_agent *a;
    FILE *f = fopen(path_of("attempt_1"), "w"); /* where a folder should be */
    if (f) fclose(f);
    d.max_restarts = 5;
    d.grace_ms = 50;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(CDP_ERR_IO, cdp_agent_wait(a, 0));
    T(strstr(cdp_last_error()->text, "cannot make the folder") != NULL);
    T_EQ(CDP_AGENT_FAILED, cdp_agent_state_of(a));
    T_EQ(1, cdp_agent_result(a)->restarts);
    T_EQ(CDP_ERR_IO, cdp_agent_wait(a, 0));
    T(strstr(cdp_last_error()->text, "cannot make the folder") != NULL);
    cdp_agent_destroy(a);
    folder_remove();
}

TEST(the_command_that_cannot_run_is_named) {
    const char *const well[] = {"true", NULL}, *const bad[] = {"/no/such/program", NULL},
                      *const *const commands[] = {well, bad};
    const cdp_launch_desc d = {.commands = commands, .workers = 2};
    cdp_agent *a;
    T_EQ(CDP_ERR_INVALID, cdp_agent_start(&d, &a));
    T(strstr(cdp_last_error()->text, "cannot run '/no/such/program'") != NULL);
    T(strstr(cdp_last_error()->file, "cdp_launch.h") != NULL);
}

TEST(another_waitpid_is_noticed) {
    cdp_launch_desc d = {.func = exits_with_its_rank, .user = place, .workers = 1, .poll_ms = 10};
    cdp_agent *a;
    T_EQ(CDP_OK, cdp_agent_start(&d, &a));
    T_EQ(cdp_agent_result(a)->ends[0].pid, waitpid(-1, NULL, 0));
    T_EQ(CDP_ERR_STATE, cdp_agent_wait(a, 0));
    T_EQ(CDP_AGENT_UNKNOWN, cdp_agent_state_of(a));
    cdp_agent_destroy(a);
}
#endif

static cdp_status adds(void *user, cdp_group *world) {
    float x = (float)cdp_rank(world) + 1;
    const cdp_status st = cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (st != CDP_OK) return st;
    return x == 10 && cdp_size(world) == 4 && user == NULL ? CDP_OK : CDP_ERR_INTERNAL;
}

/* Rank 2 fails, and the others wait for it in a barrier. */
static cdp_status one_fails(void *user, cdp_group *world) {
    (void)user;
    if (cdp_rank(world) == 2) return cdp_error_set(CDP_ERR_BUSY, -1, 0, "out of bread");
    return cdp_barrier(world);
}

static cdp_status rank_0_waits(void *user, cdp_group *world) {
    (void)user;
    return cdp_rank(world) == 0 ? cdp_barrier(world) : CDP_OK;
}

static void spawned(const cdp_spawn_desc *d, cdp_status fails) {
    T_EQ(CDP_OK, cdp_spawn(adds, NULL, 4, d));
    T_EQ(fails, cdp_spawn(one_fails, NULL, 4, d));
    T(strstr(cdp_last_error()->text, "rank 2 failed first") != NULL);
    T(strstr(cdp_last_error()->text, "out of bread") != NULL);
    T_EQ(CDP_ERR_INVALID, cdp_spawn(NULL, NULL, 4, d));
    T_EQ(CDP_ERR_INVALID, cdp_spawn(adds, NULL, 0, d));
    T(strstr(cdp_last_error()->text, "n is 0; 1 to 4096") != NULL);
}

#ifndef _WIN32
TEST(spawn_of_processes) {
    spawned(NULL, CDP_ERR_REMOTE);
}
#endif

TEST(spawn_of_threads) {
    const cdp_spawn_desc d = {.threads = true}, soon = {.threads = true, .timeout_ms = 50};
    spawned(&d, CDP_ERR_BUSY);
    T_EQ(CDP_ERR_TIMEOUT, cdp_spawn(rank_0_waits, NULL, 2, &soon));
    T(strstr(cdp_last_error()->text, "rank 0 failed first") != NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
#ifndef _WIN32
        {"workers_find_the_variables_of_torchrun", workers_find_the_variables_of_torchrun, 20},
        {"a_variable_that_is_there_twice_is_there_once",
            a_variable_that_is_there_twice_is_there_once, 20},
        {"each_role_counts_its_workers", each_role_counts_its_workers, 20},
        {"the_first_failure_is_named", the_first_failure_is_named, 20},
        {"a_crash_counts_before_an_exit_code", a_crash_counts_before_an_exit_code, 20},
        {"a_long_error_file_is_read", a_long_error_file_is_read, 20},
        {"a_worker_that_is_stuck_is_ended", a_worker_that_is_stuck_is_ended, 20},
        {"a_worker_that_is_stuck_after_a_failure_is_ended",
            a_worker_that_is_stuck_after_a_failure_is_ended, 20},
        {"what_an_earlier_job_left_is_not_of_this_one", what_an_earlier_job_left_is_not_of_this_one,
            20},
        {"a_log_that_is_cut_meanwhile_has_fewer_last_lines",
            a_log_that_is_cut_meanwhile_has_fewer_last_lines, 20},
        {"a_log_that_cannot_be_written_ends_nobody", a_log_that_cannot_be_written_ends_nobody, 30},
        {"workers_do_not_have_the_identity_of_a_rank_around_their_launcher",
            workers_do_not_have_the_identity_of_a_rank_around_their_launcher, 30},
        {"a_forked_process_does_not_hold_the_timers", a_forked_process_does_not_hold_the_timers,
            20},
        {"all_workers_start_again", all_workers_start_again, 20},
        {"the_program_hears_of_starts_and_ends", the_program_hears_of_starts_and_ends, 20},
        {"numbers_go_to_a_function_a_file_or_nowhere", numbers_go_to_a_function_a_file_or_nowhere,
            20},
        {"workers_share_a_file_of_numbers", workers_share_a_file_of_numbers, 20},
        {"a_health_file_shows_the_state", a_health_file_shows_the_state, 20},
        {"an_event_has_the_last_lines_of_files", an_event_has_the_last_lines_of_files, 20},
        {"workers_are_asked_to_end_and_killed", workers_are_asked_to_end_and_killed, 20},
        {"a_time_limit_ends_the_job", a_time_limit_ends_the_job, 20},
        {"nothing_of_a_group_is_left", nothing_of_a_group_is_left, 20},
        {"output_is_carried_and_teed", output_is_carried_and_teed, 20},
        {"steps_that_do_not_wait_carry_output", steps_that_do_not_wait_carry_output, 20},
        {"progress_text_becomes_lines", progress_text_becomes_lines, 20},
        {"a_reader_that_stops_holds_up_no_step", a_reader_that_stops_holds_up_no_step, 20},
        {"a_reader_that_never_reads_again_does_not_hold_up_the_end",
            a_reader_that_never_reads_again_does_not_hold_up_the_end, 20},
        {"workers_may_be_functions", workers_may_be_functions, 20},
        {"mistakes_are_named", mistakes_are_named, 20},
        {"a_restart_that_fails_is_the_end", a_restart_that_fails_is_the_end, 20},
        {"the_command_that_cannot_run_is_named", the_command_that_cannot_run_is_named, 20},
        {"another_waitpid_is_noticed", another_waitpid_is_noticed, 20},
        {"spawn_of_processes", spawn_of_processes, 30},
#endif
        {"spawn_of_threads", spawn_of_threads, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
