/* What a program's logger hears: settings at INFO, collectives at DEBUG; levels that change while a
   group lives; limits. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "ranks.h"
#include "ports.h"
#include "ddp_rig.h"

/* The lines of each rank: "LEVEL TEXT\n". */
static struct {
    pthread_mutex_t lock;
    char text[RANKS_MAX][60000];
    uint32_t used[RANKS_MAX], lines[RANKS_MAX];
} heard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void hear(cdp_log_level level, const char *text, int32_t rank, void *user) {
    static const char *const names[] = {"?", "ERROR", "WARN", "INFO", "DEBUG"};
    const uint32_t r = rank < 0 ? 0 : (uint32_t)rank;
    T(user == &heard && level >= CDP_LOG_ERROR && level <= CDP_LOG_DEBUG && r < RANKS_MAX);
    pthread_mutex_lock(&heard.lock);
    heard.used[r] += (uint32_t)snprintf(heard.text[r] + heard.used[r],
        sizeof heard.text[r] - heard.used[r], "%s %s\n", names[level], text);
    if (heard.used[r] >= sizeof heard.text[r]) heard.used[r] = sizeof heard.text[r] - 1;
    ++heard.lines[r];
    pthread_mutex_unlock(&heard.lock);
}

static void deaf(void) {
    memset(heard.text, 0, sizeof heard.text);
    memset(heard.used, 0, sizeof heard.used);
    memset(heard.lines, 0, sizeof heard.lines);
}

static cdp_logger listener(cdp_log_level level) {
    const cdp_logger l = {.func = hear, .user = &heard, .level = level};
    return l;
}

static uint32_t times(const char *part, const char *text) {
    uint32_t n = 0;
    for (; (text = strstr(text, part)) != NULL; ++text)
        ++n;
    return n;
}

static void add_up(cdp_group *g, void *arg) {
    float x[64];
    uint32_t i, k;
    for (k = 0; k < *(const uint32_t *)arg; ++k) {
        for (i = 0; i < 64; ++i)
            x[i] = 1;
        T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, 64, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    }
}

TEST(a_group_says_its_settings) {
    static const cdp_choice choices[] = {{.kind = CDP_COLL_ALLREDUCE, .algorithm = "ring"}};
    const cdp_group_desc like = {.timeout_ms = 12345,
        .no_thread = true,
        .choices = choices,
        .choice_count = 1,
        .logger = listener(CDP_LOG_INFO)};
    const uint32_t ranks[] = {2, 0};
    cdp_group *part[3] = {NULL, NULL, NULL};
    world w;
    deaf();
    if (!world_open(&w, 3, &like, 0)) return;
    T_EQ(1, heard.lines[1]);
    T_TEXT("INFO this is rank 1 of 3 ranks; ", heard.text[1]);
    T_TEXT("timeout 12345 ms; small_bytes 65536", heard.text[1]);
    T_TEXT("no progress thread; algorithms: 1 rows of choices, then the built-in table",
        heard.text[1]);
    T_EQ(CDP_OK, cdp_group_new(w.group[2], ranks, 2, &part[2]));
    T_EQ(2, heard.lines[2]);
    T_EQ(2, times("INFO ", heard.text[2])); /* it has the rank in the world */
    T_TEXT(": this is rank 0 of 2 ranks: 2, 0", heard.text[2]);
    cdp_group_destroy(part[2]);
    world_close(&w);
}

TEST(a_collective_says_when_it_begins_and_ends) {
    const cdp_group_desc like = {.logger = listener(CDP_LOG_DEBUG)};
    uint32_t n = 3;
    deaf();
    run_ranks(2, &like, 0, add_up, &n);
    T_EQ(1, times("INFO ", heard.text[0]));
    T_EQ(6, times("DEBUG ", heard.text[0]));
    T_TEXT("DEBUG allreduce #1 of 64 x f32 sum", heard.text[0]);
    T_TEXT(" begins, in ", heard.text[0]);
    T_TEXT("DEBUG allreduce #3 of 64 x f32 sum", heard.text[1]);
    T_EQ(3, times(" has ended after ", heard.text[1]));
}

TEST(the_level_of_a_living_group_changes) {
    const cdp_group_desc like = {.logger = listener(CDP_LOG_DEFAULT)};
    const uint32_t ranks[] = {0, 1};
    cdp_group *part[2];
    uint32_t once = 1, r;
    world w;
    deaf();
    if (!world_open(&w, 2, &like, 0)) return;
    for (r = 0; r < 2; ++r)
        T_EQ(CDP_OK, cdp_group_new(w.group[r], ranks, 2, &part[r]));
    world_threads(&w, add_up, &once);
    T(!heard.lines[0] && !heard.lines[1]);
    T_EQ(CDP_OK, cdp_group_set_log_level(part[0], CDP_LOG_DEBUG)); /* and of the whole */
    world_threads(&w, add_up, &once);
    T(heard.lines[0] == 2 && !heard.lines[1]);
    T_EQ(CDP_OK, cdp_group_set_log_level(w.group[0], CDP_LOG_INFO));
    world_threads(&w, add_up, &once);
    T_EQ(2, heard.lines[0]);
    REFUSED(CDP_ERR_INVALID, "level 6 does not exist",
        cdp_group_set_log_level(w.group[0], (cdp_log_level)6));
    REFUSED(CDP_ERR_INVALID, "group is NULL", cdp_group_set_log_level(NULL, CDP_LOG_INFO));
    for (r = 0; r < 2; ++r)
        cdp_group_destroy(part[r]);
    world_close(&w);
}

TEST(the_program_has_the_level_in_a_variable) {
    static volatile uint32_t level = CDP_LOG_WARN;
    cdp_group_desc like = {.logger = listener(CDP_LOG_SILENT)};
    uint32_t once = 1;
    world w;
    like.logger.level_at = &level;
    deaf();
    if (!world_open(&w, 2, &like, 0)) return;
    world_threads(&w, add_up, &once);
    T_EQ(0, heard.lines[0]);
    level = CDP_LOG_DEBUG; /* as a signal handler does */
    world_threads(&w, add_up, &once);
    T(heard.lines[0] == 2 && heard.lines[1] == 2);
    level = CDP_LOG_DEFAULT; /* means WARN */
    world_threads(&w, add_up, &once);
    T_EQ(2, heard.lines[0]);
    REFUSED(CDP_ERR_STATE, "level_at", cdp_group_set_log_level(w.group[0], CDP_LOG_INFO));
    world_close(&w);
}

TEST(lines_beyond_the_limit_are_counted) {
    cdp_group_desc like = {.logger = listener(CDP_LOG_DEBUG)};
    uint32_t many = 100, once = 1;
    uint64_t seconds;
    const uint64_t begun = test_now_ns();
    world w;
    like.logger.lines_per_second = 5;
    deaf();
    if (!world_open(&w, 2, &like, 0)) return;
    world_threads(&w, add_up, &many);
    seconds = (test_now_ns() - begun) / 1000000000u + 2; /* begun ones count */
    T(heard.lines[0] >= 5 && heard.lines[0] <= 6 * seconds);
    test_sleep_ms(1100);
    world_threads(&w, add_up, &once);
    T_TEXT("lines were left out before the next one: lines_per_second of the logger is 5",
        heard.text[0]);
    T_TEXT("DEBUG allreduce #101 of 64", heard.text[0]);
    world_close(&w);
}

static void some_steps(cdp_group *g, void *arg) {
    rig r;
    rig_desc(&r, g);
    r.desc.name = "two towers";
    r.desc.log_steps = 2;
    r.desc.find_unused = true;
    rig_open(&r);
    for (uint32_t k = 0; k < *(const uint32_t *)arg; ++k)
        T_EQ(CDP_OK, rig_pass(&r, whole));
    if (cdp_rank(g) == 0) {
        char text[4000];
        T(cdp_ddp_trace(r.ddp, CDP_TRACE_TEXT, text, sizeof text) < sizeof text);
        T_TEXT("module_name: two towers\nbackend_name: hub\noutput_device: cpu\n", text);
    }
    cdp_ddp_destroy(r.ddp);
}

TEST(a_ddp_says_its_settings_and_statistics_at_chosen_steps) {
    const cdp_group_desc like = {.logger = listener(CDP_LOG_INFO)};
    uint32_t n = 5;
    deaf();
    run_ranks(2, &like, 0, some_steps, &n);
    T_EQ(4, heard.lines[0]);
    T_TEXT("INFO ddp 0 two towers: 4 parameters of 768 bytes in host memory, 4 buckets (limits 4, "
           "then 4 bytes), 0 buffers; find_unused 1, static_graph 0, rebuild 0, join 0",
        heard.text[0]);
    T_TEXT("INFO ddp 0 two towers: step 2: forward 0 us, backward ", heard.text[0]);
    T_TEXT("2 ranks with data, 0 parameters unused; mean backward ", heard.text[1]);
    T_TEXT("step 4: ", heard.text[1]);
    T_EQ(2, times(": step ", heard.text[0]));
}

/* The same for a ddp that is made in frames. */
TEST(a_ddp_that_is_made_in_frames_says_its_settings) {
    const cdp_group_desc d = {.world_size = 1, .logger = listener(CDP_LOG_INFO)};
    cdp_group *g;
    cdp_status st;
    rig r;
    deaf();
    T_EQ(CDP_OK, cdp_group_create(&d, &g));
    T(strcmp(cdp_group_backend_name(g), "alone") == 0);
    T(strcmp(cdp_group_backend_name(NULL), "") == 0);
    rig_desc(&r, g);
    T_EQ(CDP_OK, cdp_ddp_create_start(&r.desc, &r.ddp));
    while ((st = cdp_ddp_poll(r.ddp, 0)) == CDP_PENDING) {
    }
    T_EQ(CDP_OK, st);
    T_EQ(1, times("INFO ddp 0: 4 parameters", heard.text[0]));
    cdp_ddp_destroy(r.ddp);
    cdp_group_destroy(g);
}

static uint16_t start_port;

static void *starts(void *arg) {
    const cdp_tcp_desc d = {.group.rank = arg ? 1 : 0,
        .group.world_size = 2,
        .group.logger = listener(CDP_LOG_INFO),
        .master_port = start_port};
    cdp_group *g = NULL;
    OK(cdp_init(&d, &g));
    T(strcmp(cdp_group_backend_name(g), "tcp") == 0);
    cdp_group_destroy(g);
    return NULL;
}

TEST(a_start_says_how_ranks_have_met) {
    pthread_t t[2];
    deaf();
    start_port = free_port();
    T(pthread_create(&t[0], NULL, starts, NULL) == 0);
    T(pthread_create(&t[1], NULL, starts, &t) == 0);
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    T_TEXT("INFO started in ", heard.text[0]);
    T_TEXT(": rank 0 of 2, job '", heard.text[0]);
    T_TEXT("1 hosts, met by a store that this rank serves; listens on ", heard.text[0]);
    T_TEXT("met by a store elsewhere; listens on ", heard.text[1]);
    T_TEXT("INFO this is rank 1 of 2 ranks; 1 host", heard.text[1]);
}

static uint32_t stops_changing;
static void *changes_level(void *arg) {
    while (!__atomic_load_n(&stops_changing, __ATOMIC_ACQUIRE)) {
        T_EQ(CDP_OK, cdp_group_set_log_level((cdp_group *)arg, CDP_LOG_DEBUG));
        T_EQ(CDP_OK, cdp_group_set_log_level((cdp_group *)arg, CDP_LOG_ERROR));
    }
    return NULL;
}

/* Lines are made without the group's lock, too, as hooks of a ddp do; for ThreadSanitizer. */
TEST(the_level_changes_while_others_log) {
    const cdp_group_desc d = {.world_size = 1, .logger = listener(CDP_LOG_ERROR)};
    cdp_group *g;
    pthread_t t;
    deaf();
    if (!T_EQ(CDP_OK, cdp_group_create(&d, &g))) return;
    stops_changing = 0;
    T(pthread_create(&t, NULL, changes_level, g) == 0);
    for (uint32_t i = 0; i < 100000 && heard.lines[0] < 20; ++i)
        cdp__log(&cdp_group_desc_of(g)->logger, CDP_LOG_WARN, 0, "a line of a hook");
    __atomic_store_n(&stops_changing, 1, __ATOMIC_RELEASE);
    pthread_join(t, NULL);
    cdp_group_destroy(g);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_group_says_its_settings", a_group_says_its_settings, 20},
        {"a_collective_says_when_it_begins_and_ends", a_collective_says_when_it_begins_and_ends,
            20},
        {"the_level_of_a_living_group_changes", the_level_of_a_living_group_changes, 20},
        {"the_program_has_the_level_in_a_variable", the_program_has_the_level_in_a_variable, 20},
        {"lines_beyond_the_limit_are_counted", lines_beyond_the_limit_are_counted, 20},
        {"a_ddp_says_its_settings_and_statistics_at_chosen_steps",
            a_ddp_says_its_settings_and_statistics_at_chosen_steps, 20},
        {"a_ddp_that_is_made_in_frames_says_its_settings",
            a_ddp_that_is_made_in_frames_says_its_settings, 20},
        {"the_level_changes_while_others_log", the_level_changes_while_others_log, 30},
        {"a_start_says_how_ranks_have_met", a_start_says_how_ranks_have_met, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
