/*  test_pipeline_pictures.c - steps of pipelines as pictures, with reasons */
#define CDP_IMPLEMENTATION
#include "cdp_pipeline.h"

#include "test.h"
#include "ranks.h"

#include <math.h>

enum {
    ROWS = 64
};

static double paper_start[ROWS], paper_end[ROWS];
static const cdp_pipe_times on_paper = {paper_start, paper_end};
static char text[100000];

/* 2 ranks, 2 micro-batches: a step of 88 us, as many as a line has columns. */
static cdp_schedule *small(void) {
    const cdp_schedule_desc d = {.ranks = 2, .micros = 2};
    const cdp_pipe_cost cost[2] = {{8, 12, 8, 0, 2}, {8, 12, 8, 0, 2}};
    cdp_schedule *s;
    OK(cdp_schedule_create(&d, &s));
    OK(cdp_schedule_times(s, cost, false, &on_paper));
    return s;
}

TEST(times_on_paper) {
    static const double start[] = {0, 8, 40, 68, 10, 18, 38, 46},
                        end[] = {8, 16, 60, 88, 18, 38, 46, 66};
    const cdp_pipe_cost cost[2] = {{8, 12, 8, 0, 2}, {8, NAN, 8, 0, 2}};
    const cdp_pipe_times none = {NULL, paper_end};
    cdp_schedule *s = small();
    T(memcmp(paper_start, start, sizeof start) == 0);
    T(memcmp(paper_end, end, sizeof end) == 0);
    T_EQ(CDP_ERR_INVALID, cdp_schedule_times(s, cost, false, &on_paper));
    T(strstr(cdp_last_error()->text, "cdp_schedule_times: each_stage[1]") != NULL);
    T_EQ(CDP_ERR_INVALID, cdp_schedule_times(NULL, cost, false, &on_paper));
    T_EQ(CDP_ERR_INVALID, cdp_schedule_times(s, NULL, false, &on_paper));
    T_EQ(CDP_ERR_INVALID, cdp_schedule_times(s, cost, false, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_schedule_times(s, cost, false, &none));
    cdp_schedule_destroy(s);
}

static const char drawn[] =
    "rank 0    paper 0F0=====0F1=====........................0B0=================........"
    "0B1=================\n"
    "rank 1    paper ..........1F0=====1B0=================1F1=====1B1=================......"
    "................\n"
    "on paper: a step takes 88.0 us; the longest waits:\n"
    "    rank 0 waits 24.0 us before 0B0, for 1B0 of rank 1 (2.0 us of it for the message)\n"
    "    rank 1 waits 22.0 us at the end: it has no more rows\n"
    "    rank 1 waits 10.0 us before 1F0, for 0F0 of rank 0 (2.0 us of it for the message)\n"
    "    rank 0 waits 8.0 us before 0B1, for 1B1 of rank 1 (2.0 us of it for the message)\n";

TEST(a_picture_of_paper) {
    cdp_schedule *s = small();
    T_EQ(sizeof drawn - 1,
        cdp_schedule_draw(s, &on_paper, NULL, CDP_PIPE_PICTURE_TEXT, text, sizeof text));
    if (!T(strcmp(drawn, text) == 0)) fprintf(stderr, "%s", text);
    memset(text, 'x', sizeof text);
    T_EQ(sizeof drawn - 1, cdp_schedule_draw(s, &on_paper, NULL, CDP_PIPE_PICTURE_TEXT, text, 9));
    T(strcmp(text, "rank 0  ") == 0 && text[9] == 'x');
    T_EQ(sizeof drawn - 1, cdp_schedule_draw(s, &on_paper, NULL, CDP_PIPE_PICTURE_TEXT, NULL, 0));
    cdp_schedule_destroy(s);
}

/* Its thread comes late; a message takes long; a message comes after the rank is ready. */
static double ran_start[] = {2, 8, 40, 68, 20, 28, 40, 48},
              ran_end[] = {8, 16, 60, 80, 28, 36, 48, 66};
static const cdp_pipe_times it_ran = {ran_start, ran_end};

TEST(paper_and_run_side_by_side) {
    static const char *const says[] = {"rank 0    paper 0F0=====0F1=====...",
        "          ran   ..0F0===0F1=====...", "rank 1    paper ..........1F0=====1B0",
        "          ran   ....................1F0=====", "as it ran: a step takes 80.0 us",
        "rank 0 waits 2.0 us before 0F0, not for another rank: its own thread came late",
        "rank 1 waits 20.0 us before 1F0, for 0F0 of rank 0 (12.0 us of it for the message)",
        "rank 1 waits 4.0 us before 1F1, for the message of 0F1 of rank 0\n",
        "rank 1 waits 14.0 us at the end"};
    cdp_schedule *s = small();
    T(cdp_schedule_draw(s, &on_paper, &it_ran, CDP_PIPE_PICTURE_TEXT, text, sizeof text) > 0);
    for (uint32_t i = 0; i < sizeof says / sizeof *says; ++i)
        if (!T(strstr(text, says[i]) != NULL)) fprintf(stderr, "no \"%s\" in\n%s", says[i], text);
    cdp_schedule_destroy(s);
}

static uint32_t count_of(const char *what) {
    uint32_t n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; ++at)
        ++n;
    return n;
}

TEST(a_picture_for_a_page) {
    cdp_schedule *s = small();
    const uint64_t n =
        cdp_schedule_draw(s, &on_paper, &it_ran, CDP_PIPE_PICTURE_SVG, text, sizeof text);
    T(n > 2000 && n < sizeof text && text[n] == 0);
    T(strncmp(text, "<svg xmlns=", 11) == 0 && strcmp(text + n - 7, "</svg>\n") == 0);
    T(strstr(text, "prefers-color-scheme:dark") != NULL);
    /* 8 rows twice, 4 waits and 6; and 4 colours that are explained */
    T_EQ(16 + 10, count_of("<title>"));
    T_EQ(16 + 10, count_of("</title></rect>"));
    T_EQ(16 + 10 + 4, count_of("<rect class=\"box\""));
    T_EQ(count_of("<text"), count_of("</text>"));
    T_EQ(10, count_of("stroke-dasharray"));
    T(strstr(text, "<title>1B1 on rank 1: 46.0 us to 66.0 us</title>") != NULL);
    T(strstr(text, "<title>rank 0 waits 24.0 us before 0B0, for 1B0 of rank 1") != NULL);
    T(strstr(text, "rank 1, as it ran</text>") != NULL);
    cdp_schedule_destroy(s);
}

TEST(what_is_not_drawn) {
    cdp_schedule *s = small();
    const cdp_pipe_times none = {paper_start, NULL};
    T_EQ(0, cdp_schedule_draw(NULL, &on_paper, NULL, CDP_PIPE_PICTURE_SVG, text, sizeof text));
    T_EQ(0, cdp_schedule_draw(s, NULL, NULL, CDP_PIPE_PICTURE_SVG, text, sizeof text));
    T_EQ(0, text[0]);
    T_EQ(0, cdp_schedule_draw(s, &none, NULL, CDP_PIPE_PICTURE_SVG, text, sizeof text));
    paper_end[3] = NAN;
    T_EQ(0, cdp_schedule_draw(s, &on_paper, NULL, CDP_PIPE_PICTURE_TEXT, text, sizeof text));
    paper_end[3] = -1;
    T_EQ(0, cdp_schedule_draw(s, &on_paper, NULL, CDP_PIPE_PICTURE_TEXT, text, sizeof text));
    paper_end[3] = paper_start[3] - 1;
    T_EQ(0, cdp_schedule_draw(s, &on_paper, NULL, CDP_PIPE_PICTURE_TEXT, text, sizeof text));
    cdp_schedule_destroy(s);
}

/* Each wait of each built-in schedule on paper ends when what it waits for is there. */
TEST(each_wait_on_paper_has_its_reason) {
    static double start[4096], end[4096];
    const cdp_pipe_times times = {start, end};
    cdp_pipe_cost cost[16];
    for (uint32_t i = 0; i < 16; ++i)
        cost[i] = (cdp_pipe_cost){10 + i % 3, 11, 9 + i % 2, 0, 3};
    for (uint32_t kind = 0; kind <= CDP_PIPE_EVAL; ++kind) {
        const cdp_schedule_desc d = {.kind = (cdp_pipe_kind)kind,
            .ranks = 4,
            .micros = 12,
            .stages_per_rank = kind > CDP_PIPE_GPIPE ? 2 : 1};
        cdp_schedule *s;
        cdp_pipe_preview paper;
        double last = 0;
        OK(cdp_schedule_create(&d, &s));
        OK(cdp_schedule_preview(s, cost, false, &paper));
        OK(cdp_schedule_times(s, cost, false, &times));
        for (uint64_t i = 0; i < cdp_schedule_info_of(s).rows; ++i)
            last = end[i] > last ? end[i] : last;
        T(last >= paper.step_us && last <= paper.step_us);
        T(cdp_schedule_draw(s, &times, NULL, CDP_PIPE_PICTURE_SVG, text, sizeof text)
            < sizeof text);
        T(count_of("waits") > 4);
        T_EQ(0, count_of("its own thread"));
        T_EQ(count_of(" waits ") - count_of("no more rows"), count_of(", for "));
        cdp_schedule_destroy(s);
    }
}

/* ---- as it ran ---- */

enum {
    SLEEP_US = 2000
};

static cdp_schedule *schedules[2]; /* of each rank: their clocks differ */
static double times_of[2][2][ROWS];
static uint64_t ahead_ns[2];

static uint64_t other_now(void *user) {
    return cdp_os_default()->now_ns(cdp_os_default()->user) + *(const uint64_t *)user;
}
static void *other_alloc(void *user, uint64_t bytes) {
    (void)user;
    return malloc((size_t)bytes);
}
static void other_release(void *user, void *p) {
    (void)user;
    free(p);
}

static cdp_status compute(void *user, const cdp_pipe_micro *m) {
    const struct timespec t = {0, SLEEP_US * 1000L};
    (void)user;
    (void)m;
    nanosleep(&t, NULL);
    return CDP_OK;
}

static void timed_step(cdp_group *g, void *arg) {
    const uint32_t r = cdp_rank(g);
    const cdp_pipe_edge edge = {10, CDP_DTYPE_F32};
    const cdp_pipe_stage stage = {.in = &edge,
        .out = &edge,
        .in_count = r,
        .out_count = 1 - r,
        .forward = compute,
        .backward = compute};
    const cdp_pipeline_desc d = {
        .group = g, .schedule = schedules[r], .stages = &stage, .stage_count = 1};
    const cdp_pipe_times out = {times_of[r][0], times_of[r][1]}, none = {NULL, NULL};
    cdp_pipeline *p;
    (void)arg;
    OK(cdp_pipeline_create(&d, &p));
    T_EQ(CDP_ERR_STATE, cdp_pipeline_times(p, &out));
    OK(cdp_pipeline_step(p));
    OK(cdp_pipeline_step(p));
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_times(NULL, &out));
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_times(p, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_pipeline_times(p, &none));
    OK(cdp_pipeline_times(p, &out));
    OK(cdp_barrier(g));
    cdp_pipeline_destroy(p);
}

/* Both ranks have the same times, in an order that messages allow; clocks may be wrong by
   `wrong_us`. */
static void check_times(double wrong_us) {
    static const uint32_t needs[][2] = {{4, 0}, {6, 1}, {2, 5}, {3, 7}}; /* 1F0 needs 0F0, ... */
    const cdp_pipe_times out = {times_of[0][0], times_of[0][1]};
    const double *start = times_of[0][0], *end = times_of[0][1];
    T(memcmp(times_of[0][0], times_of[1][0], 8 * sizeof(double)) == 0);
    T(memcmp(times_of[0][1], times_of[1][1], 8 * sizeof(double)) == 0);
    for (uint32_t i = 0; i < 8; ++i) {
        T(start[i] >= -wrong_us && end[i] - start[i] >= SLEEP_US);
        if (i % 4) T(start[i] >= end[i - 1]);
    }
    for (uint32_t i = 0; i < 4; ++i)
        T(start[needs[i][0]] >= end[needs[i][1]] - wrong_us);
    T(end[3] < 20e6 * TEST_SLACK);
    T(cdp_schedule_draw(schedules[0], &on_paper, &out, CDP_PIPE_PICTURE_TEXT, text, sizeof text));
    T(strstr(text, "          ran   ") != NULL);
    T(strstr(text, "before 1F0, for 0F0 of rank 0") != NULL);
}

TEST(a_step_is_recorded_on_one_clock) {
    schedules[0] = schedules[1] = small();
    run_ranks(2, NULL, 0, timed_step, NULL);
    check_times(0);
    cdp_schedule_destroy(schedules[0]);
}

TEST(clocks_that_differ) {
    static const uint64_t ahead[] = {5000000000000u, 0};
    for (uint32_t way = 0; way < 2; ++way) {
        cdp_os os[2];
        for (uint32_t r = 0; r < 2; ++r) {
            ahead_ns[r] = ahead[way ^ r];
            os[r] = *cdp_os_default();
            os[r].user = &ahead_ns[r];
            os[r].now_ns = other_now;
            os[r].alloc = other_alloc;
            os[r].release = other_release;
            const cdp_schedule_desc d = {.ranks = 2, .micros = 2, .os = &os[r]};
            OK(cdp_schedule_create(&d, &schedules[r]));
        }
        run_ranks(2, NULL, 0, timed_step, NULL);
        check_times(1e6); /* 5000 s were to be found out */
        cdp_schedule_destroy(schedules[0]);
        cdp_schedule_destroy(schedules[1]);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"times_on_paper", times_on_paper, 10},
        {"a_picture_of_paper", a_picture_of_paper, 10},
        {"paper_and_run_side_by_side", paper_and_run_side_by_side, 10},
        {"a_picture_for_a_page", a_picture_for_a_page, 10},
        {"what_is_not_drawn", what_is_not_drawn, 10},
        {"each_wait_on_paper_has_its_reason", each_wait_on_paper_has_its_reason, 10},
        {"a_step_is_recorded_on_one_clock", a_step_is_recorded_on_one_clock, 30},
        {"clocks_that_differ", clocks_that_differ, 30}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
