/* Watching a job: who is late, how clocks differ, lines of JSON, one picture of all ranks. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "test.h"
#include "ranks.h"

enum {
    RANKS = 3,
    STEPS = 25
};

TEST(a_rank_that_is_late_is_named_with_its_first_step) {
    static cdp__late l;
    for (uint64_t s = 0; s < 120; ++s) {
        uint64_t busy[4] = {100, 102, 99, 101};
        if (s >= 40 && s % 4) busy[2] = 150; /* three of four steps */
        cdp__late_add(&l, busy, 4, 1);
        if (s < 79) T(!cdp__late_find(&l, 4).found);
    }
    const cdp_straggler g = cdp__late_find(&l, 4);
    T(g.found && g.rank == 2 && g.of == 100 && g.often == 60);
    T_EQ(42, g.since_step); /* step 41 was in time */
    T(g.late_ms > 48e-6 && g.late_ms < 51e-6);
    /* a rank alone is never late, nor is one by less than 5 % */
    memset(&l, 0, sizeof l);
    for (uint64_t s = 0; s < 10; ++s) {
        const uint64_t busy[3] = {100, 100, 105};
        cdp__late_add(&l, busy, 1, 1);
        T(!cdp__late_find(&l, 1).found);
        cdp__late_add(&l, busy, 3, 1);
        T(!cdp__late_find(&l, 3).found);
    }
}

TEST(clocks_are_compared_within_the_time_of_a_message) {
    /* the clock of rank 1 is 1000 behind; messages take 10 to 30 */
    cdp__shift_bounds b = {-INT64_MAX / 4, INT64_MAX / 4};
    for (uint64_t t = 5000; t < 6000; t += 100) {
        const uint64_t left_0 = t, left_1 = t + 3, came_0 = left_1 + 10 + t % 7,
                       came_1 = left_0 + 12 + t % 20;
        cdp__shift_narrow(&b, left_1 - 1000, came_1 - 1000, left_0, came_0);
        T(b.low <= 1000 && b.high >= 1000);
    }
    const int64_t off = cdp__shift_middle(&b) - 1000;
    T(off >= -15 && off <= 15);
}

/* ---- ranks ---- */

typedef struct lines {
    uint32_t job, own;
    char last_job[800], last_own[800];
} lines;

static void note(void *user, bool job, const char *json, uint64_t bytes) {
    lines *l = user;
    T_EQ(strlen(json), bytes);
    T(json[0] == '{' && json[bytes - 1] == '}' && !strchr(json, '\n'));
    snprintf(job ? l->last_job : l->last_own, sizeof l->last_own, "%s", json);
    ++*(job ? &l->job : &l->own);
}

static void work_us(uint32_t us) {
    const uint64_t end = test_now_ns() + us * 1000ull;
    while (test_now_ns() < end) {
    }
}

static void watched(cdp_group *g, void *arg) {
    const uint32_t me = cdp_rank(g);
    lines *l = (lines *)arg + me;
    float w[8] = {0};
    const cdp_param p = {.data = w, .count = 8};
    const cdp_ddp_desc dd = {.group = g, .params = &p, .param_count = 1};
    cdp_report_desc d = {.every = 5, .line = note, .user = l, .each_step = me == 1};
    cdp_report *r;
    char *svg;
    uint64_t bytes = 0, bytes2 = 0;
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &d.ddp));
    T_EQ(CDP_OK, cdp_report_create(&d, &r));
    T_EQ(CDP_ERR_STATE, cdp_report_svg(r, NULL, 0, &bytes));
    for (uint32_t s = 0; s < STEPS; ++s) {
        cdp_report_figures f = {.loss = me + 1, .norm = 0.5, .samples = 10, .memory = 100 + me};
        f.overflow = s == 1;
        T_EQ(CDP_OK, cdp_ddp_backward_begin(d.ddp));
        work_us(me == 2 ? 40000 : 100);
        T_EQ(CDP_OK, cdp_ddp_ready(d.ddp, 0));
        T_EQ(CDP_OK, cdp_ddp_backward_end(d.ddp));
        T_EQ(CDP_OK, cdp_report_step(r, &f));
    }
    T_EQ(CDP_OK, cdp_report_svg(r, NULL, 0, &bytes));
    svg = malloc(bytes + 100);
    T_EQ(CDP_OK, cdp_report_svg(r, svg, bytes + 100, &bytes2));
    T(strncmp(svg, "<svg", 4) == 0 && strstr(svg, ">rank 0<") && strstr(svg, ">rank 2<"));
    T(strstr(svg, "step 25 of 3 ranks") && strcmp(svg + bytes2 - 7, "</svg>\n") == 0);
    free(svg);
    /* times of a pass without messages do not belong to those of the step before */
    T_EQ(CDP_OK, cdp_ddp_no_sync(d.ddp, true));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(d.ddp));
    T_EQ(CDP_OK, cdp_ddp_ready(d.ddp, 0));
    T_EQ(CDP_OK, cdp_ddp_backward_end(d.ddp));
    T_EQ(CDP_ERR_STATE, cdp_report_svg(r, NULL, 0, NULL));
    const cdp_straggler s = cdp_report_straggler(r);
    test_check(s.found && s.rank == 2 && s.often * 2 >= s.of && s.of >= 15 && s.late_ms > 5,
        __FILE__, __LINE__, "rank %u, %u of %u, %g ms", s.rank, s.often, s.of, s.late_ms);
    cdp_report_destroy(r);
    cdp_report_destroy(r);
    T_EQ(CDP_ERR_STATE, cdp_report_step(r, NULL));
    cdp_ddp_destroy(d.ddp);
}

TEST(a_job_is_watched) {
    static lines l[RANKS];
    memset(l, 0, sizeof l);
    run_counted(RANKS, watched, l);
    T(l[0].own == 0 && l[1].own == STEPS && l[1].job == 0 && l[2].own == 0);
    T(l[0].job >= STEPS / 5 - 1);
    T_TEXT("\"ranks\":3,\"loss\":2.0,\"norm\":0.5,\"samples_per_s\":", l[0].last_job);
    T_TEXT("\"memory\":102,\"slowest\":{\"rank\":2,\"late_ms\":", l[0].last_job);
    T_TEXT("{\"step\":25,\"rank\":1,\"loss\":2.0", l[1].last_own);
    T_TEXT("\"backward_ms\":", l[1].last_own);
}

/* A program that goes on after errors of its report: each call says what has failed. */
static void goes_on(cdp_group *g, void *arg) {
    float w[8] = {0};
    const cdp_param p = {.data = w, .count = 8};
    const cdp_ddp_desc dd = {.group = g, .params = &p, .param_count = 1};
    cdp_report_desc d = {.every = 2};
    const cdp_report_figures f = {.loss = 1};
    cdp_report *r;
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &d.ddp));
    T_EQ(CDP_OK, cdp_report_create(&d, &r));
    pthread_barrier_wait((pthread_barrier_t *)arg);
    for (uint32_t s = 0; cdp_rank(g) == 0 && s < 2; ++s)
        T_EQ(CDP_OK, cdp_report_step(r, &f)); /* a line that rank 1 does not join */
    pthread_barrier_wait((pthread_barrier_t *)arg);
    if (cdp_rank(g) == 1) cdp_group_abort(g, "rank 1 leaves");
    pthread_barrier_wait((pthread_barrier_t *)arg);
    while (cdp_rank(g) == 0 && cdp_report_step(r, &f) == CDP_OK) {
    }
    for (uint32_t s = 0; cdp_rank(g) == 0 && s < 20; ++s)
        T_EQ(CDP_ERR_ABORTED, cdp_report_step(r, &f));
    cdp_report_destroy(r);
    cdp_ddp_destroy(d.ddp);
}

TEST(steps_after_a_failure_say_so) {
    pthread_barrier_t meet;
    pthread_barrier_init(&meet, NULL, 2);
    run_counted(2, goes_on, &meet);
    pthread_barrier_destroy(&meet);
}

TEST(the_median_is_that_of_sorted_times) {
    uint64_t state = 7, busy[60];
    for (uint32_t k = 0; k < 200; ++k) {
        const uint32_t n = 1 + k % 20;
        uint64_t most = 0;
        for (uint32_t i = 0; i < 3 * n; ++i) /* one of three counts */
            busy[i] = k % 3 ? test_random(&state) % 8 : test_random(&state);
        for (uint32_t i = 0; i < n; ++i) {
            uint32_t below = 0, same = 0;
            for (uint32_t j = 0; j < n; ++j) {
                below += busy[3 * j] < busy[3 * i];
                same += busy[3 * j] == busy[3 * i];
            }
            if (below < (n + 1) / 2 && below + same >= (n + 1) / 2) most = busy[3 * i];
        }
        T(most == cdp__late_median(busy, n, 3, UINT64_MAX));
    }
}

TEST(numbers_without_json_are_null) {
    char text[200];
    cdp__text t = cdp__text_of(text, sizeof text);
    const double zero = 0;
    cdp__report_real(&t, "a", -1.5);
    cdp__report_real(&t, "b", 0 / zero);
    cdp__report_real(&t, "c", 1 / zero);
    cdp__report_real(&t, "d", 1e300);
    cdp__report_real(&t, "e", 0.0000014);
    (void)cdp__text_end(&t);
    T_TEXT(",\"a\":-1.5,\"b\":null,\"c\":null,\"d\":1.0e300,\"e\":0.0000014", text);
}

static cdp_status creates(cdp_group *g, void *arg) {
    const cdp_report_desc d = {.ddp = (cdp_ddp *)arg};
    cdp_report *r;
    const cdp_status st = cdp_report_create(&d, &r);
    (void)g;
    cdp_report_destroy(r);
    return st;
}

static void fails_alone(cdp_group *g, void *arg) {
    float w[8] = {0};
    const cdp_param p = {.data = w, .count = 8};
    const cdp_ddp_desc dd = {.group = g, .params = &p, .param_count = 1};
    cdp_ddp *ddp;
    (void)arg;
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &ddp));
    T(own_memory_is_told(g, creates, ddp) > 3);
    cdp_ddp_destroy(ddp);
}

TEST(what_one_rank_lacks_at_creation_is_told_to_all) {
    const cdp_group_desc like = {.timeout_ms = 3000, .os = counted_os()};
    run_ranks(3, &like, 0, fails_alone, NULL);
    T_EQ(0, counted.held);
}

TEST(mistakes_are_named) {
    cdp_report_desc d = {0};
    cdp_report *r;
    T_EQ(CDP_ERR_INVALID, cdp_report_create(&d, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_report_create(NULL, &r));
    REFUSED(CDP_ERR_INVALID, "ddp", cdp_report_create(&d, &r));
    T_EQ(CDP_ERR_INVALID, cdp_report_step(NULL, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_report_svg(NULL, NULL, 0, NULL));
    T(!cdp_report_straggler(NULL).found);
    cdp_report_destroy(NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_rank_that_is_late_is_named_with_its_first_step",
            a_rank_that_is_late_is_named_with_its_first_step, 10},
        {"clocks_are_compared_within_the_time_of_a_message",
            clocks_are_compared_within_the_time_of_a_message, 10},
        {"a_job_is_watched", a_job_is_watched, 60},
        {"steps_after_a_failure_say_so", steps_after_a_failure_say_so, 30},
        {"the_median_is_that_of_sorted_times", the_median_is_that_of_sorted_times, 10},
        {"numbers_without_json_are_null", numbers_without_json_are_null, 10},
        {"what_one_rank_lacks_at_creation_is_told_to_all",
            what_one_rank_lacks_at_creation_is_told_to_all, 30},
        {"mistakes_are_named", mistakes_are_named, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
