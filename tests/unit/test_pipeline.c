/*  test_pipeline.c - schedules of pipelines: their rows, their formulas, what is wrong with them

    Sums of text and times in ticks were made by an independent model in Python, which also agrees
    with the lists that PyTorch makes. */
#define CDP_IMPLEMENTATION
#include "cdp_pipeline.h"

#include "test.h"

#define OK(call) T((call) == CDP_OK)

enum {
    STAGES = 64,
    TEXT = 200000
};

typedef struct built_in {
    const char *name;
    cdp_pipe_kind kind;
    uint32_t v_from, v_to; /* stages of a rank */
    uint32_t sizes;        /* of the small grid */
    uint64_t sum;          /* of the texts of all of them */
    uint32_t hang[2];      /* sizes where blocking sends hang: receives posted 0, 1 rows ahead */
} built_in;

static const built_in built_ins[] = {
    {"GPipe", CDP_PIPE_GPIPE, 1, 1, 67, 0xd15cee0fbc54ed5f, {0, 0}},
    {"1F1B", CDP_PIPE_1F1B, 1, 1, 67, 0xede144ae25ab663f, {56, 0}},
    {"interleaved", CDP_PIPE_INTERLEAVED, 1, 4, 244, 0x517bb603d56408f9, {200, 72}},
    {"breadth-first", CDP_PIPE_BFS, 1, 4, 268, 0x97c160bc547fed5, {141, 90}},
    {"zero bubble", CDP_PIPE_ZERO_BUBBLE, 1, 4, 244, 0x57ee5c624e4c6ed, {200, 123}},
    {"ZBV", CDP_PIPE_ZBV, 2, 2, 67, 0xb914b6980dcefe9, {56, 56}},
    {"DualPipeV", CDP_PIPE_DUALPIPEV, 2, 2, 34, 0x690d2179ee6643e3, {30, 30}}};

static uint32_t turn_of(uint32_t p, uint32_t m) {
    const uint32_t rounds = m / p ? m / p : 1;
    return m % rounds ? 0 : m / rounds;
}

static bool has_size(cdp_pipe_kind kind, uint32_t p, uint32_t m) {
    if (kind == CDP_PIPE_INTERLEAVED || kind == CDP_PIPE_ZERO_BUBBLE) return turn_of(p, m) > 0;
    return kind != CDP_PIPE_DUALPIPEV || m >= 2 * p;
}

static cdp_schedule *made(cdp_pipe_kind kind, uint32_t p, uint32_t v, uint32_t m) {
    const cdp_schedule_desc d = {.kind = kind, .ranks = p, .stages_per_rank = v, .micros = m};
    cdp_schedule *s = NULL;
    if (!T(cdp_schedule_create(&d, &s) == CDP_OK))
        fprintf(stderr, "kind %d, %u x %u x %u: %s\n", kind, p, v, m, cdp_last_error()->text);
    return s;
}

/* Calls `visit` for each size of the grid of the model. */
static uint32_t small_grid(
    const built_in *b, void (*visit)(const built_in *b, cdp_schedule *s, void *user), void *user) {
    static const uint32_t ranks[] = {1, 2, 3, 4, 5, 6, 8};
    uint32_t n = 0;
    for (uint32_t k = 0; k < 7; ++k) {
        const uint32_t p = ranks[k];
        for (uint32_t v = b->v_from; v <= b->v_to; ++v) {
            for (uint32_t m = 1; m <= 5 * p; ++m) {
                if (m > 3 && m != p && m != p + 1 && m != 2 * p - 1 && m != 2 * p && m != 2 * p + 1
                    && m != 3 * p && m != 4 * p && m != 5 * p)
                    continue;
                if (!has_size(b->kind, p, m)) continue;
                cdp_schedule *s = made(b->kind, p, v, m);
                if (s) visit(b, s, user);
                cdp_schedule_destroy(s);
                ++n;
            }
        }
    }
    return n;
}

static void add_text(const built_in *b, cdp_schedule *s, void *user) {
    static char text[TEXT];
    uint64_t *sum = (uint64_t *)user;
    const uint64_t n = cdp_schedule_text(s, CDP_PIPE_CSV, text, sizeof text);
    (void)b;
    T(n < sizeof text);
    for (uint64_t i = 0; i < n; ++i)
        *sum = (*sum ^ (uint8_t)text[i]) * 0x100000001b3u;
}

TEST(rows_are_those_of_the_model) {
    for (uint32_t i = 0; i < sizeof built_ins / sizeof *built_ins; ++i) {
        uint64_t sum = 0xcbf29ce484222325u;
        T_EQ(built_ins[i].sizes, small_grid(&built_ins[i], add_text, &sum));
        if (!T(sum == built_ins[i].sum)) fprintf(stderr, "%s differs\n", built_ins[i].name);
    }
}

TEST(forwards_ahead_are_those_of_the_model) {
    static const uint32_t ranks[] = {2, 3, 4, 5, 8}, ahead[] = {1, 2, 7};
    uint64_t sum = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < 5; ++i) {
        for (uint32_t e = 0; e < 3; ++e) {
            for (uint32_t k = 0; k < 3; ++k) {
                const uint32_t m[] = {1, ranks[i], 3 * ranks[i]};
                const cdp_schedule_desc d = {.ranks = ranks[i], .micros = m[k], .ahead = ahead[e]};
                cdp_schedule *s;
                OK(cdp_schedule_create(&d, &s));
                add_text(NULL, s, &sum);
                cdp_schedule_destroy(s);
            }
        }
    }
    T(sum == 0xe5d8a9a9aea8c2c5);
}

static void is_text(cdp_pipe_kind kind, uint32_t p, uint32_t v, uint32_t m, const char *want) {
    char text[1000];
    cdp_schedule *s = made(kind, p, v, m);
    T_EQ(strlen(want), cdp_schedule_text(s, CDP_PIPE_CSV, text, sizeof text));
    if (!T(strcmp(text, want) == 0)) fprintf(stderr, "%s", text);
    cdp_schedule_destroy(s);
}

TEST(rows_of_small_schedules) {
    is_text(CDP_PIPE_GPIPE, 2, 1, 2, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
    is_text(CDP_PIPE_1F1B, 2, 1, 3, "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
    is_text(CDP_PIPE_EVAL, 2, 2, 2, "0F0,0F1,2F0,2F1\n1F0,1F1,3F0,3F1\n");
    is_text(CDP_PIPE_INTERLEAVED, 2, 2, 3,
        "0F0,0F1,0F2,2F0,2F1,2F2,2B0,2B1,2B2,0B0,0B1,0B2\n"
        "1F0,1F1,1F2,3F0,3B0,3F1,3B1,3F2,3B2,1B0,1B1,1B2\n");
    is_text(CDP_PIPE_DUALPIPEV, 2, 2, 4,
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,"
        "(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3\n"
        "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,"
        "(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3\n");
}

/* ---- formulas ---- */

typedef struct ticks {
    double f, i, w;
} ticks;

/* The bubble of a step; -1: no formula. */
static double bubble_of(cdp_pipe_kind kind, double p, double v, double m, ticks t) {
    const double over = p > m ? p - m : 0, b = t.i + t.w;
    switch (kind) {
    case CDP_PIPE_ZERO_BUBBLE:
        return m >= p && t.w <= t.f && t.w <= t.i ? (p - 1) * (t.f + t.i - t.w) : -1;
    case CDP_PIPE_ZBV:
        if (m < 2 * p - 1 || t.w > t.f || t.f > t.i) return -1;
        return (p - 1) * (t.i > 2 * (t.i - t.w) ? t.i : 2 * (t.i - t.w));
    case CDP_PIPE_DUALPIPEV: return t.w <= t.f && t.f == t.i ? (p - 1) * (3 * t.f - t.w) : -1;
    case CDP_PIPE_INTERLEAVED:
    case CDP_PIPE_BFS: return (p - 1 + (v - 1) * over) * (t.f + b);
    default: return (p - 1) * (t.f + b);
    }
}

/* The same where B hands on the gradient of its input before it computes those of weights. */
static double early_of(cdp_pipe_kind kind, uint32_t p, uint32_t m, ticks t) {
    if (kind >= CDP_PIPE_ZERO_BUBBLE || m % p || t.i > t.f + t.w || t.f < t.w) return -1;
    return (p - 1) * (t.f + t.i);
}

static uint32_t peak_of(cdp_pipe_kind kind, uint32_t p, uint32_t v, uint32_t m, uint32_t r) {
    const uint32_t q = turn_of(p, m), all = m * v;
    uint32_t n = all;
    switch (kind) {
    case CDP_PIPE_1F1B: n = p - r; break;
    case CDP_PIPE_INTERLEAVED: n = (v - 1) * q + 2 * (p - 1 - r) + 1; break;
    case CDP_PIPE_ZERO_BUBBLE: n = (uint32_t)cdp__min((v - 1) * q + p - 1 - r, all) + 1 + r; break;
    case CDP_PIPE_ZBV: return m >= 2 * p - 1 ? 2 * p : 0;
    case CDP_PIPE_DUALPIPEV: return 2 * p + 1;
    default: break;
    }
    return n < all ? n : all;
}

static void has_formulas(const built_in *b, uint32_t p, uint32_t v, uint32_t m) {
    static const ticks times[] = {{1, 1, 1}, {2, 2, 2}, {3, 4, 2}, {4, 5, 3}, {5, 6, 5}, {2, 3, 1},
        {3, 3, 2}, {6, 4, 4}, {6, 5, 3}};
    const ticks t = times[(p + 3 * v + m) % 9];
    cdp_pipe_cost cost[STAGES];
    cdp_pipe_preview out;
    cdp_schedule *s = made(b->kind, p, v, m);
    for (uint32_t i = 0; i < p * v; ++i)
        cost[i] = (cdp_pipe_cost){.f_us = t.f, .i_us = t.i, .w_us = t.w};
    OK(cdp_schedule_preview(s, cost, false, &out));
    const double want = bubble_of(b->kind, p, v, m, t), early = early_of(b->kind, p, m, t);
    bool right = want < 0 || out.bubble_us == want;
    right = right && out.work_us == m * v * (t.f + t.i + t.w);
    right = right && out.step_us == out.work_us + out.bubble_us;
    for (uint32_t r = 0; r < p; ++r) {
        const uint32_t peak = peak_of(b->kind, p, v, m, r);
        if (peak && cdp_schedule_peak(s, r) != peak) right = false;
    }
    OK(cdp_schedule_preview(s, cost, true, &out));
    if (!T(right && (early < 0 || out.bubble_us == early)))
        fprintf(stderr, "%s %u x %u x %u: bubble %g, early %g\n", b->name, p, v, m, want, early);
    cdp_schedule_destroy(s);
}

TEST(each_size_has_its_bubble_and_its_memory) {
    uint32_t n = 0;
    const uint32_t step = TEST_SLOW ? 5 : 1; /* a sanitizer sees no more in each size */
    for (uint32_t i = 0; i < sizeof built_ins / sizeof *built_ins; ++i)
        for (uint32_t p = 1; p <= 16; p += step)
            for (uint32_t v = built_ins[i].v_from; v <= built_ins[i].v_to; ++v)
                for (uint32_t m = 1; m <= 32; ++m, ++n)
                    if (has_size(built_ins[i].kind, p, m)) has_formulas(&built_ins[i], p, v, m);
    T_EQ((TEST_SLOW ? 4u : 16u) * 32u * 16u, n);
}

/* What the model says of F = I = W = 10 on 8 ranks with 32 micro-batches, where a message takes 0,
   1, 3 and 5; and 3 where B hands on early. */
TEST(messages_that_take_time) {
    static const struct {
        cdp_pipe_kind kind;
        uint32_t v;
        double steps[4], early;
    } rows[] = {{CDP_PIPE_1F1B, 1, {1170, 1238, 1374, 1510}, 1142},
        {CDP_PIPE_INTERLEAVED, 2, {2130, 2160, 2220, 2280}, 2126},
        {CDP_PIPE_ZERO_BUBBLE, 1, {1030, 1058, 1114, 1170}, 1114},
        {CDP_PIPE_ZERO_BUBBLE, 2, {1990, 2026, 2098, 2170}, 2098},
        {CDP_PIPE_ZBV, 2, {1990, 2023, 2089, 2155}, 2089},
        {CDP_PIPE_DUALPIPEV, 2, {2060, 2132, 2296, 2460}, 2286}};
    static const double wires[4] = {0, 1, 3, 5};
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        cdp_schedule *s = made(rows[i].kind, 8, rows[i].v, 32);
        cdp_pipe_preview out;
        for (uint32_t k = 0; k < 5; ++k) {
            cdp_pipe_cost cost[16];
            for (uint32_t n = 0; n < 16; ++n)
                cost[n] = (cdp_pipe_cost){10, 10, 10, 0, k < 4 ? wires[k] : 3};
            OK(cdp_schedule_preview(s, cost, k == 4, &out));
            T(out.step_us == (k < 4 ? rows[i].steps[k] : rows[i].early));
        }
        cdp_schedule_destroy(s);
    }
}

TEST(messages_under_way) {
    static const struct {
        cdp_pipe_kind kind;
        uint32_t v, slots[2]; /* 4 ranks and 8 micro-batches, 8 and 32 */
    } rows[] = {{CDP_PIPE_GPIPE, 1, {8, 32}}, {CDP_PIPE_1F1B, 1, {4, 8}},
        {CDP_PIPE_INTERLEAVED, 2, {7, 15}}, {CDP_PIPE_ZERO_BUBBLE, 1, {4, 8}},
        {CDP_PIPE_ZERO_BUBBLE, 2, {6, 10}}, {CDP_PIPE_ZBV, 2, {7, 15}},
        {CDP_PIPE_DUALPIPEV, 2, {7, 15}}};
    cdp_pipe_cost cost[16] = {{1, 1, 1, 0, 0}};
    cdp_pipe_preview out;
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        for (uint32_t k = 0; k < 2; ++k) {
            const uint32_t p = k ? 8 : 4, m = k ? 32 : 8, v = rows[i].v;
            const bool is_v = rows[i].kind >= CDP_PIPE_ZBV;
            cdp_schedule *s = made(rows[i].kind, p, v, m);
            OK(cdp_schedule_preview(s, cost, false, &out));
            T_EQ(rows[i].slots[k], out.slots);
            T_EQ(2 * m * (is_v ? p * v - v : p * v - 1), out.messages);
            cdp_schedule_destroy(s);
        }
    }
}

TEST(a_pair_may_take_less) {
    cdp_schedule *s = made(CDP_PIPE_DUALPIPEV, 2, 2, 8);
    cdp_pipe_cost cost[4];
    cdp_pipe_preview sum, less;
    for (uint32_t i = 0; i < 4; ++i)
        cost[i] = (cdp_pipe_cost){4, 4, 4, 0, 0};
    OK(cdp_schedule_preview(s, cost, false, &sum));
    for (uint32_t i = 0; i < 4; ++i)
        cost[i].pair_us = 12;
    OK(cdp_schedule_preview(s, cost, false, &less));
    T(less.step_us == sum.step_us);
    for (uint32_t i = 0; i < 4; ++i)
        cost[i].pair_us = 9;
    OK(cdp_schedule_preview(s, cost, false, &less));
    T(less.step_us < sum.step_us && less.work_us < sum.work_us);
    cdp_schedule_destroy(s);
}

/* ---- deadlocks ---- */

static void count_hangs(const built_in *b, cdp_schedule *s, void *user) {
    uint32_t *hangs = (uint32_t *)user;
    (void)b;
    for (uint32_t ahead = 0; ahead < 2; ++ahead) {
        cdp_pipe_wire wire = {.blocking = true, .ahead = ahead};
        const cdp_status st = cdp_schedule_deadlock(s, &wire);
        T(st == CDP_OK || st == CDP_ERR_STATE);
        if (st != CDP_OK) ++hangs[ahead];
        wire.buffers = 64 * STAGES; /* nothing waits for a receive */
        OK(cdp_schedule_deadlock(s, &wire));
        wire.buffers = 0;
        wire.blocking = false;
        OK(cdp_schedule_deadlock(s, &wire));
    }
}

TEST(sends_that_block_hang_where_the_model_says) {
    for (uint32_t i = 0; i < sizeof built_ins / sizeof *built_ins; ++i) {
        uint32_t hangs[2] = {0, 0};
        (void)small_grid(&built_ins[i], count_hangs, hangs);
        T_EQ(built_ins[i].hang[0], hangs[0]);
        T_EQ(built_ins[i].hang[1], hangs[1]);
    }
}

TEST(buffers_end_a_deadlock) {
    cdp_schedule *s = made(CDP_PIPE_1F1B, 2, 1, 4);
    cdp_pipe_wire wire = {.blocking = true};
    T_EQ(CDP_ERR_STATE, cdp_schedule_deadlock(s, &wire));
    T(strstr(cdp_last_error()->text, "rank 0, row 1 (0F1); rank 1, row 1 (1B0)") != NULL);
    wire.buffers = 1;
    OK(cdp_schedule_deadlock(s, &wire));
    T_EQ(CDP_ERR_INVALID, cdp_schedule_deadlock(s, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_schedule_deadlock(NULL, &wire));
    cdp_schedule_destroy(s);
}

/* ---- wrong ones ---- */

static void is_wrong(const char *csv, const char *says) {
    const cdp_schedule_desc d = {.csv = csv};
    cdp_schedule *s = (cdp_schedule *)&s;
    T_EQ(CDP_ERR_INVALID, cdp_schedule_create(&d, &s));
    T(s == NULL);
    if (!T(strstr(cdp_last_error()->text, says) != NULL))
        fprintf(stderr, "%s\n%s\n", csv, cdp_last_error()->text);
}

TEST(the_first_wrong_row_is_named) {
    is_wrong("0F0,0B0,0F0", "rank 0, row 2 (0F0): it is there twice");
    is_wrong("0F0,0B0,0F1,0B1,0B1", "rank 0, row 4 (0B1): it is there twice");
    is_wrong("0F0,0B0\n1F0,0B0,1B0", "rank 1, row 1 (0B0): the stage lies on another rank");
    is_wrong("0B0,0F0", "rank 0, row 0 (0B0): it comes before the forward");
    is_wrong("0F0,0W0,0I0", "rank 0, row 1 (0W0): it comes before the I");
    is_wrong("0F0,0I0,0B0", "rank 0, row 2 (0B0): a backward is B, or I and W");
    is_wrong("0F0,0B0,0I0", "rank 0, row 2 (0I0): a backward is B, or I and W");
    is_wrong("0F0,0F1,0B0", "stage 0 has a forward and no backward of micro-batch 1");
    is_wrong("0F0,0F1,0B0,0I1", "stage 0 has an I and no W of micro-batch 1");
    is_wrong("0F0,0F2,0B0,0B2", "stage 0 has no forward of micro-batch 1");
    is_wrong("0F0,0F3,0B0", "actions are missing");
    is_wrong("0F0,2F0,0B0,2B0", "no rank has an action of stage 1 of 3");
    is_wrong("0F0,0B0,65000F4000000000", "actions are missing");
    is_wrong("(0F0;0F1)OVERLAP_F_B,0B0,0B1", "rank 0, row 0 (0F0): a pair is one F and one B");
    is_wrong("", "there is no action");
    is_wrong("\n,,\n", "there is no action");
    is_wrong("0F0,1B1,1F1,0B0\n1F0,1B0,0F1,0B1", "rank 0, row 1 (1B1)");
    is_wrong("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0",
        "ranks wait for each other: rank 0, row 1 (0B0); rank 1, row 0 (1F1)");
}

TEST(words_that_are_no_actions) {
    is_wrong("0F0,0X0", "line 1, cell 2: \"0X0\" is no action");
    is_wrong("0F0,0B0\n\n1F0,F", "line 3, cell 2: \"F\" is no action");
    is_wrong("0F", "line 1, cell 1");
    is_wrong("0F0 1", "line 1, cell 1");
    is_wrong("70000F0", "line 1, cell 1");
    is_wrong("0F4294967295", "line 1, cell 1");
    is_wrong("0F99999999999999999999999", "line 1, cell 1");
    is_wrong("(0F0;0B1)OVERLAP", "line 1, cell 1");
    is_wrong("(0F0;0B1", "line 1, cell 1");
    is_wrong("(0F0", "line 1, cell 1");
    is_wrong("(0SEND_F0;0B1)OVERLAP_F_B", "line 1, cell 1");
    is_wrong("0SEND_G0", "line 1, cell 1");
    is_wrong("0UNSHARDx", "line 1, cell 1");
}

static void is_refused(cdp_schedule_desc d, cdp_status st, const char *says) {
    cdp_schedule *s = (cdp_schedule *)&s;
    T_EQ(st, cdp_schedule_create(&d, &s));
    T(s == NULL);
    if (!T(strstr(cdp_last_error()->text, says) != NULL))
        fprintf(stderr, "%s\n", cdp_last_error()->text);
}

TEST(sizes_that_a_kind_does_not_have) {
    const cdp_status no = CDP_ERR_UNSUPPORTED, bad = CDP_ERR_INVALID;
    is_refused((cdp_schedule_desc){.ranks = 2}, bad, "desc.micros");
    is_refused((cdp_schedule_desc){.micros = 2}, bad, "desc.ranks");
    is_refused(
        (cdp_schedule_desc){.kind = (cdp_pipe_kind)99, .ranks = 1, .micros = 1}, bad, "desc.kind");
    is_refused((cdp_schedule_desc){.ranks = 2, .micros = 2, .stages_per_rank = 2}, no,
        "1F1B and GPipe have one stage on each rank");
    is_refused(
        (cdp_schedule_desc){.kind = CDP_PIPE_ZBV, .ranks = 2, .micros = 2, .stages_per_rank = 1},
        no, "2 stages on each rank");
    is_refused((cdp_schedule_desc){.kind = CDP_PIPE_DUALPIPEV, .ranks = 2, .micros = 3}, no,
        "at least 2 micro-batches for each rank");
    is_refused((cdp_schedule_desc){.kind = CDP_PIPE_INTERLEAVED, .ranks = 4, .micros = 9}, no,
        "multiple of micro-batches / ranks");
    is_refused(
        (cdp_schedule_desc){
            .kind = CDP_PIPE_BFS, .ranks = 4000, .micros = 9, .stages_per_rank = 4000},
        no, "at most 65535 stages");
    T_EQ(bad, cdp_schedule_create(NULL, &(cdp_schedule *){NULL}));
    T_EQ(bad, cdp_schedule_create(&(cdp_schedule_desc){.ranks = 1, .micros = 1}, NULL));
}

/* ---- one's own ---- */

TEST(text_is_read_as_it_was_written) {
    static char text[TEXT], again[TEXT];
    for (uint32_t i = 0; i < sizeof built_ins / sizeof *built_ins; ++i) {
        for (uint32_t all = 0; all < 2; ++all) {
            cdp_schedule *a = made(built_ins[i].kind, 4, built_ins[i].v_to, 8), *b;
            T(cdp_schedule_text(a, (cdp_pipe_text)all, text, sizeof text) < sizeof text);
            const cdp_schedule_desc d = {.csv = text, .ranks = 4, .micros = 8};
            OK(cdp_schedule_create(&d, &b));
            cdp_schedule_text(a, CDP_PIPE_CSV, text, sizeof text);
            cdp_schedule_text(b, CDP_PIPE_CSV, again, sizeof again);
            T(strcmp(text, again) == 0);
            for (uint32_t s = 0; s < 4 * built_ins[i].v_to; ++s)
                T_EQ(cdp_schedule_rank_of(a, s), cdp_schedule_rank_of(b, s));
            cdp_schedule_destroy(a);
            cdp_schedule_destroy(b);
        }
    }
}

TEST(communication_follows_from_the_rows) {
    char text[400];
    cdp_schedule *s = made(CDP_PIPE_GPIPE, 2, 1, 1);
    const char *want = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD\n"
                       "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD,1REDUCE_GRAD\n";
    T_EQ(strlen(want), cdp_schedule_text(s, CDP_PIPE_CSV_ALL, text, sizeof text));
    T(strcmp(text, want) == 0);
    T_EQ(strlen(want), cdp_schedule_text(s, CDP_PIPE_CSV_ALL, text, 5));
    T(strcmp(text, "0UNS") == 0);
    T_EQ(strlen(want), cdp_schedule_text(s, CDP_PIPE_CSV_ALL, NULL, 0));
    T_EQ(0, cdp_schedule_text(NULL, CDP_PIPE_CSV, text, sizeof text));
    cdp_schedule_destroy(s);
}

/* As PyTorch writes them, and with blanks, empty cells and lines of Windows. */
TEST(text_of_others) {
    static const char *const texts[] = {"0F0,,0B0\r\n1F0,1B0,\r\n", " 0F0 , 0B0\n1F0,1B0",
        "0UNSHARD,0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n\n"};
    for (uint32_t i = 0; i < 3; ++i) {
        const cdp_schedule_desc d = {.csv = texts[i]};
        char text[100];
        cdp_schedule *s;
        OK(cdp_schedule_create(&d, &s));
        cdp_schedule_text(s, CDP_PIPE_CSV, text, sizeof text);
        T(strcmp(text, "0F0,0B0\n1F0,1B0\n") == 0);
        cdp_schedule_destroy(s);
    }
}

TEST(rows_and_places_of_ones_own) {
    static const cdp_act first[] = {{CDP_ACT_F, false, 0, 0}, {CDP_ACT_F, false, 2, 0},
        {CDP_ACT_B, false, 2, 0}, {CDP_ACT_B, false, 0, 0}};
    static const cdp_act second[] = {{CDP_ACT_F, false, 1, 0}, {CDP_ACT_B, false, 1, 0}};
    const cdp_act *const rows[] = {first, second, NULL};
    const uint32_t counts[] = {4, 2, 0}, place[] = {0, 1, 0}, other[] = {0, 0, 0};
    cdp_schedule_desc d = {.rows = rows, .row_counts = counts, .ranks = 3};
    cdp_schedule *s;
    const cdp_act *acts;
    OK(cdp_schedule_create(&d, &s));
    const cdp_schedule_info i = cdp_schedule_info_of(s);
    T_EQ(3, i.ranks);
    T_EQ(3, i.stages);
    T_EQ(1, i.micros);
    T_EQ(6, i.rows);
    T(!i.forward_only && !i.split);
    T_EQ(0, cdp_schedule_rank_of(s, 2));
    T_EQ(UINT32_MAX, cdp_schedule_rank_of(s, 3));
    T_EQ(2, cdp_schedule_rows(s, 1, &acts));
    T(acts[1].kind == CDP_ACT_B && acts[1].stage == 1);
    T_EQ(0, cdp_schedule_rows(s, 2, NULL));
    T_EQ(0, cdp_schedule_rows(s, 3, &acts));
    T(acts == NULL);
    T_EQ(2, cdp_schedule_peak(s, 0));
    T_EQ(0, cdp_schedule_peak(s, 3));
    cdp_schedule_destroy(s);
    d.place = place;
    d.stages = 3;
    OK(cdp_schedule_create(&d, &s));
    cdp_schedule_destroy(s);
    d.place = other;
    is_refused(d, CDP_ERR_INVALID, "rank 1, row 0 (1F0): the stage lies on another rank");
    d.stages = 2;
    is_refused(d, CDP_ERR_INVALID, "no rank for stage 2");
    d.place = NULL;
    d.row_counts = NULL;
    is_refused(d, CDP_ERR_INVALID, "desc.row_counts");
    d.row_counts = counts;
    d.micros = 2;
    is_refused(d, CDP_ERR_INVALID, "stage 0 has no forward of micro-batch 1");
    T_EQ(0, cdp_schedule_info_of(NULL).ranks);
}

/* ---- planted mistakes, judged by a slow and simple machine ---- */

typedef struct machine {
    cdp_act acts[16][400];
    uint32_t counts[16], at[16], p, v, m, stages;
    bool done[5][STAGES][40];
    bool is_v;
} machine;

static uint32_t rank_of(const machine *k, uint32_t s) {
    return k->is_v && s / k->p % 2 ? k->p - 1 - s % k->p : s % k->p;
}

static bool can_run(const machine *k, uint32_t r, const cdp_act *a, const cdp_act *with) {
    const uint32_t s = a->stage, i = a->micro;
    if (a->kind < 1 || a->kind > 4 || s >= k->stages || i >= k->m || rank_of(k, s) != r)
        return false;
    if (k->done[a->kind][s][i]) return false;
    if (a->kind == CDP_ACT_F)
        return s == 0 || k->done[CDP_ACT_F][s - 1][i]
            || (with && with->kind == CDP_ACT_F && with->stage + 1u == s && with->micro == i);
    if (a->kind == CDP_ACT_W) return k->done[CDP_ACT_I][s][i];
    if (k->done[CDP_ACT_B][s][i] || k->done[CDP_ACT_I][s][i]) return false;
    if (!k->done[CDP_ACT_F][s][i]) return false;
    return s + 1 == k->stages || k->done[CDP_ACT_B][s + 1][i] || k->done[CDP_ACT_I][s + 1][i];
}

/* Runs whatever can run; is all done once in the end? Rows of a pair are taken one by one. */
static bool machine_ends(machine *k) {
    bool moved = true;
    memset(k->done, 0, sizeof k->done);
    memset(k->at, 0, sizeof k->at);
    while (moved) {
        moved = false;
        for (uint32_t r = 0; r < k->p; ++r) {
            if (k->at[r] == k->counts[r]) continue;
            const cdp_act *a = &k->acts[r][k->at[r]];
            if (!can_run(k, r, a, NULL)) continue;
            k->done[a->kind][a->stage][a->micro] = true;
            ++k->at[r];
            moved = true;
        }
    }
    for (uint32_t r = 0; r < k->p; ++r)
        if (k->at[r] != k->counts[r]) return false;
    for (uint32_t s = 0; s < k->stages; ++s)
        for (uint32_t i = 0; i < k->m; ++i)
            if (!k->done[CDP_ACT_F][s][i]
                || !(k->done[CDP_ACT_B][s][i] || k->done[CDP_ACT_W][s][i]))
                return false;
    return true;
}

static uint64_t seed_of;
static uint32_t draw(uint32_t below) {
    seed_of = seed_of * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed_of >> 33) % below;
}

static void plant(machine *k) {
    const uint32_t r = draw(k->p);
    uint32_t *n = &k->counts[r];
    const uint32_t a = draw(*n), b = draw(*n);
    cdp_act *acts = k->acts[r];
    const cdp_act was = acts[a];
    switch (draw(6)) {
    case 0: memmove(&acts[a], &acts[a + 1], (--*n - a) * sizeof *acts); break; /* missing */
    case 1: acts[(*n)++] = was; break;                                         /* doubled */
    case 2:                                                                    /* others first */
    case 3:
        acts[a] = acts[b];
        acts[b] = was;
        break;
    case 4: acts[a].micro = draw(k->m); break;
    default: acts[a].stage = (uint16_t)draw(k->stages);
    }
}

static bool load(machine *k, const built_in *b, uint32_t p, uint32_t v, uint32_t m) {
    cdp_schedule *s = made(b->kind, p, v, m);
    k->p = p;
    k->v = v;
    k->m = m;
    k->stages = p * v;
    k->is_v = b->kind >= CDP_PIPE_ZBV;
    for (uint32_t r = 0; r < p; ++r) {
        const cdp_act *acts;
        k->counts[r] = cdp_schedule_rows(s, r, &acts);
        for (uint32_t i = 0; i < k->counts[r]; ++i) {
            k->acts[r][i] = acts[i];
            k->acts[r][i].pair = false;
        }
    }
    cdp_schedule_destroy(s);
    return true;
}

TEST(planted_mistakes_are_all_found) {
    static machine k;
    uint32_t wrong = 0, right = 0;
    seed_of = 7;
    for (uint32_t n = 0; n < 4000; ++n) {
        const built_in *b = &built_ins[n % 7];
        const uint32_t p = 1 + draw(4), v = b->v_to > 1 ? 2 : 1, m = 2 * p * (1 + draw(2));
        uint32_t place[STAGES];
        const cdp_act *rows[16];
        cdp_schedule *s;
        load(&k, b, p, v, m);
        plant(&k);
        for (uint32_t r = 0; r < p; ++r)
            rows[r] = k.acts[r];
        for (uint32_t i = 0; i < k.stages; ++i)
            place[i] = rank_of(&k, i);
        const cdp_schedule_desc d = {.rows = rows,
            .row_counts = k.counts,
            .ranks = p,
            .micros = m,
            .place = place,
            .stages = k.stages};
        const bool ends = machine_ends(&k);
        T_EQ(ends ? CDP_OK : CDP_ERR_INVALID, cdp_schedule_create(&d, &s));
        ++*(ends ? &right : &wrong);
        cdp_schedule_destroy(s);
    }
    T(wrong > 2000 && right > 100); /* both happen */
}

/* ---- memory, times ---- */

typedef struct counted {
    cdp_os os;
    int64_t live;
    uint32_t left; /* allocations that succeed */
} counted;

static void *counted_alloc(void *user, uint64_t bytes) {
    counted *c = (counted *)user;
    if (!c->left) return NULL;
    --c->left;
    ++c->live;
    return malloc((size_t)bytes);
}
static void counted_release(void *user, void *p) {
    --((counted *)user)->live;
    free(p);
}

TEST(each_allocation_may_fail) {
    cdp_pipe_cost cost[4] = {{1, 1, 1, 0, 0}};
    const cdp_pipe_wire wire = {.blocking = true, .buffers = 9};
    cdp_pipe_preview out;
    uint32_t n = 0;
    for (cdp_status st = CDP_ERR_NOMEM; st != CDP_OK; ++n) {
        counted c = {.left = n};
        cdp_schedule *s = NULL;
        c.os = *cdp_os_default();
        c.os.user = &c;
        c.os.alloc = counted_alloc;
        c.os.release = counted_release;
        const cdp_schedule_desc d = {.ranks = 4, .micros = 4, .os = &c.os};
        st = cdp_schedule_create(&d, &s);
        if (st == CDP_OK) st = cdp_schedule_preview(s, cost, false, &out);
        if (st == CDP_OK) st = cdp_schedule_deadlock(s, &wire);
        T(st == CDP_OK || st == CDP_ERR_NOMEM);
        cdp_schedule_destroy(s);
        T_EQ(0, c.live);
    }
    T(n > 6);
}

TEST(times_must_be_times) {
    cdp_schedule *s = made(CDP_PIPE_1F1B, 2, 1, 2);
    cdp_pipe_cost cost[2] = {{1, 1, 1, 0, 0}, {1, 1, 1, 0, 0}};
    cdp_pipe_preview out;
    OK(cdp_schedule_preview(s, cost, false, &out));
    cost[1].message_us = -1;
    T_EQ(CDP_ERR_INVALID, cdp_schedule_preview(s, cost, false, &out));
    T(strstr(cdp_last_error()->text, "each_stage[1]") != NULL);
    cost[1].message_us = NAN;
    T_EQ(CDP_ERR_INVALID, cdp_schedule_preview(s, cost, false, &out));
    T_EQ(CDP_ERR_INVALID, cdp_schedule_preview(NULL, cost, false, &out));
    T_EQ(CDP_ERR_INVALID, cdp_schedule_preview(s, NULL, false, &out));
    T_EQ(CDP_ERR_INVALID, cdp_schedule_preview(s, cost, false, NULL));
    cdp_schedule_destroy(s);
    cdp_schedule_destroy(NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"rows_are_those_of_the_model", rows_are_those_of_the_model, 20},
        {"forwards_ahead_are_those_of_the_model", forwards_ahead_are_those_of_the_model, 10},
        {"rows_of_small_schedules", rows_of_small_schedules, 10},
        {"each_size_has_its_bubble_and_its_memory", each_size_has_its_bubble_and_its_memory, 60},
        {"messages_that_take_time", messages_that_take_time, 10},
        {"messages_under_way", messages_under_way, 10},
        {"a_pair_may_take_less", a_pair_may_take_less, 10},
        {"sends_that_block_hang_where_the_model_says", sends_that_block_hang_where_the_model_says,
            20},
        {"buffers_end_a_deadlock", buffers_end_a_deadlock, 10},
        {"the_first_wrong_row_is_named", the_first_wrong_row_is_named, 10},
        {"words_that_are_no_actions", words_that_are_no_actions, 10},
        {"sizes_that_a_kind_does_not_have", sizes_that_a_kind_does_not_have, 10},
        {"text_is_read_as_it_was_written", text_is_read_as_it_was_written, 10},
        {"communication_follows_from_the_rows", communication_follows_from_the_rows, 10},
        {"text_of_others", text_of_others, 10},
        {"rows_and_places_of_ones_own", rows_and_places_of_ones_own, 10},
        {"planted_mistakes_are_all_found", planted_mistakes_are_all_found, 30},
        {"each_allocation_may_fail", each_allocation_may_fail, 10},
        {"times_must_be_times", times_must_be_times, 10}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
