/*  test_procs_training.c - sharded training and pipelines whose ranks are processes

        gcc -O2 -g -std=gnu11 -I. -Itests tests/procs/test_procs_training.c -o t -pthread -lm
        ./t [--list] [--repeat N] [WORD...]        see procs.h */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_fsdp.h"
#include "cdp_pipeline.h"
#include "procs.h"

/* ---- a rank dies inside a step of a pipeline ------------------------------------------------- */

enum {
    RANKS = 4,
    MICROS = 4,
    ROWS = 2 * MICROS, /* of a rank */
    ELEMENTS = 5000
};

static cdp_pipe_kind kind;
static uint32_t fatal_row; /* of the victim, in its second step */
static uint32_t row_now;   /* of this rank, counted over all steps */

/* Both directions take a little, so that a kill hits ranks that wait and ranks that compute. */
static cdp_status callback(void *user, const cdp_pipe_micro *m) {
    const bool last = m->stage + 1u == RANKS, forward = m->kind == CDP_ACT_F;
    float *to = NULL;
    (void)user;
    if (forward && !last) to = (float *)m->out[0];
    if (!forward && m->stage) to = (float *)m->grad_in[0];
    if (to)
        for (uint32_t k = 0; k < ELEMENTS; ++k)
            to[k] = (float)(m->micro + k);
    usleep(200);
    if (me == &shared->of[victim] && row_now++ == ROWS + fatal_row) {
        tell(&me->phase, 2);
        for (;;)
            pause();
    }
    return CDP_OK;
}

static int stage_of_a_pipeline(uint32_t rank) {
    const cdp_schedule_desc s = {.kind = kind, .ranks = RANKS, .micros = MICROS};
    const cdp_pipe_edge edge = {ELEMENTS, CDP_DTYPE_F32};
    const cdp_pipe_stage stage = {.in = &edge,
        .out = &edge,
        .in_count = rank > 0,
        .out_count = rank + 1 < RANKS,
        .forward = callback,
        .backward = callback};
    cdp_pipeline_desc d = {.stages = &stage, .stage_count = 1};
    cdp_schedule *schedule;
    cdp_pipeline *pipeline = NULL;
    cdp_status st = join(rank);
    if (st != CDP_OK) return EXIT_INIT;
    d.group = world;
    if (!must(cdp_schedule_create(&s, &schedule), "schedule")) return EXIT_CALL;
    d.schedule = schedule;
    if (!must(cdp_pipeline_create(&d, &pipeline), "pipeline")) return EXIT_CALL;
    while (st == CDP_OK)
        st = CALL(cdp_pipeline_step(pipeline));
    printf("%s\n", me->error.text);
    cdp_pipeline_destroy(pipeline);
    cdp_schedule_destroy(schedule);
    leave();
    return 0;
}

/* The row of a rank that a text names, between these words; ROWS: none. */
static uint32_t named_row(
    const cdp_schedule *s, uint32_t rank, const char *before, const char *text) {
    const cdp_act *acts;
    const uint32_t rows = (uint32_t)cdp_schedule_rows(s, rank, &acts);
    for (uint32_t row = 0; row < rows; ++row) {
        char words[120];
        snprintf(words, sizeof words, "%s%u%c%u, micro-batch %u", before, (unsigned)acts[row].stage,
            "?FBIW"[acts[row].kind], acts[row].micro, acts[row].micro);
        if (strstr(text, words)) return row;
    }
    return ROWS;
}

/* The first row of the victim that a rank in its own row `at` cannot be sure of; ROWS: none. */
static uint32_t first_unknown(const cdp_schedule *s, uint32_t rank, uint32_t at) {
    uint64_t known[RANKS] = {0};
    known[rank] = at;
    cdp__pipe_spread_known(&s->table, known);
    return (uint32_t)known[victim];
}

/* All name the dead rank at once, where they are themselves, and the first of its rows that they
   are not sure of. */
static void check_names(const cdp_schedule *s, uint64_t since_ns) {
    char words[100], own[30];
    snprintf(words, sizeof words, "rank %u (stage %u) is not known to have done more than before ",
        victim, victim);
    for (uint32_t i = 0; i < RANKS; ++i) {
        const report *r = &shared->of[i];
        const double ms = (double)(r->error_ns - since_ns) / 1e6;
        uint32_t at;
        snprintf(own, sizeof own, "stage %u at ", i);
        at = named_row(s, i, own, r->error.text);
        if (i == victim) continue;
        test_check(r->error_ns && r->error.status == CDP_ERR_PEER_LOST
                && r->error.peer == (int32_t)victim
                && (at < ROWS || strstr(r->error.text, "after its last row"))
                && named_row(s, victim, words, r->error.text) == first_unknown(s, i, at)
                && ms < DETECT_MS * TEST_LATE,
            test__now.name, 0,
            "rank %u died in its row %u: rank %u reports %s, blames %d, after %.0f ms, and should "
            "name row %u: %s",
            victim, fatal_row, i, cdp_status_name(r->error.status), (int)r->error.peer, ms,
            first_unknown(s, i, at), r->error.text);
    }
}

static void kill_in_each_row(cdp_pipe_kind k) {
    const cdp_schedule_desc d = {.kind = k, .ranks = RANKS, .micros = MICROS};
    cdp_schedule *s;
    kind = k;
    if (!T_EQ(CDP_OK, cdp_schedule_create(&d, &s))) return;
    for (fatal_row = 0; fatal_row < ROWS; fatal_row += TEST_SLOW ? 3 : 1)
        for (victim = 0; victim < RANKS && test__now.failed_checks < 8; ++victim) {
            uint64_t since;
            job(RANKS);
            spawn_all(stage_of_a_pipeline);
            while (seen(&shared->of[victim].phase) < 2 && !procs[victim].over)
                test_sleep_ms(1);
            test_sleep_ms(5); /* the others come to where they wait for it */
            since = test_now_ns();
            kill_process(victim, SIGKILL);
            finish(5000);
            check_names(s, since);
        }
    cdp_schedule_destroy(s);
}

TEST(a_kill_in_each_row_of_1f1b_is_named_by_all) {
    kill_in_each_row(CDP_PIPE_1F1B);
}
TEST(a_kill_in_each_row_of_gpipe_is_named_by_all) {
    kill_in_each_row(CDP_PIPE_GPIPE);
}

/* ---- paper beside what the system says ------------------------------------------------------- */

enum {
    BLOCKS = 8,
    WIDTH = TEST_SLOW ? 128 : 384,
    STEPS = 4
};

static cdp_dtype compute;
static uint64_t received; /* through recv, by this rank */

static int64_t counting_recv(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    const int64_t r = cdp_os_default()->net.recv_iov(user, fd, iov, n);
    if (r > 0) __atomic_add_fetch(&received, (uint64_t)r, __ATOMIC_SEQ_CST);
    return r;
}

/* Bytes that are in memory, without those of files. */
static uint64_t memory_in_use(void) {
    FILE *const file = fopen("/proc/self/status", "r");
    char line[200];
    unsigned long long kb = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %llu", &kb) == 1) break;
    if (file) fclose(file);
    return (uint64_t)kb * 1024;
}

static void make_params(cdp_fsdp_param *params) {
    memset(params, 0, 2 * BLOCKS * sizeof *params);
    for (uint32_t i = 0; i < 2 * BLOCKS; ++i) {
        params[i].unit = i / 2;
        params[i].ndim = 2;
        params[i].shape[0] = (i % 2 ? 1u : 4u) * WIDTH;
        params[i].shape[1] = (i % 2 ? 4u : 1u) * WIDTH;
    }
}

static cdp_status one_step(cdp_fsdp *f) {
    cdp_status st = CDP_OK;
    for (uint32_t u = 0; u < BLOCKS && st == CDP_OK; ++u) {
        st = CALL(cdp_fsdp_need(f, u));
        if (st == CDP_OK) st = CALL(cdp_fsdp_done(f, u));
    }
    for (uint32_t u = BLOCKS; u-- > 0 && st == CDP_OK;) {
        st = CALL(cdp_fsdp_need(f, u));
        for (uint32_t i = 2 * u; i < 2 * u + 2 && st == CDP_OK; ++i)
            memset(cdp_fsdp_grad(f, i), 0, 16);
        if (st == CDP_OK) st = CALL(cdp_fsdp_ready(f, u));
    }
    if (st == CDP_OK) st = CALL(cdp_fsdp_backward_end(f, 0, NULL));
    return st == CDP_OK ? CALL(cdp_fsdp_step(f)) : st;
}

/* number[]: memory on paper, measured; bytes received in a step on paper, measured. */
static int measured_rank(uint32_t rank) {
    static cdp_fsdp_param params[2 * BLOCKS];
    static cdp_os os;
    cdp_optim adam = {.kind = CDP_OPTIM_ADAM, .lr = 1e-3};
    cdp_fsdp_desc d = {.params = params,
        .param_count = 2 * BLOCKS,
        .optim = &adam,
        .compute = compute,
        .reduce = compute};
    cdp_fsdp_stats paper;
    cdp_fsdp *f = NULL;
    uint64_t before;
    os = *cdp_os_default();
    os.net.recv_iov = counting_recv;
    settings.group.os = &os;
    settings.group.window_bytes = 256 << 10; /* what a peer sends early is held by the group */
    over = OVER_TCP;
    make_params(params);
    if (join(rank) != CDP_OK) return EXIT_INIT;
    d.group = world;
    must(cdp_barrier(world), "barrier");
    before = memory_in_use();
    must(cdp_fsdp_preview(&d, rank, &paper), "preview");
    if (!must(cdp_fsdp_create(&d, &f), "create")) return EXIT_CALL;
    must(one_step(f), "step");
    must(one_step(f), "step");
    me->number[0] = paper.total_bytes;
    me->number[1] = memory_in_use() - before;
    must(cdp_barrier(world), "barrier");
    __atomic_store_n(&received, 0, __ATOMIC_SEQ_CST);
    for (uint32_t step = 0; step < STEPS; ++step)
        must(one_step(f), "step");
    must(cdp_barrier(world), "barrier");
    me->number[2] = STEPS * (paper.gather_bytes + paper.reduce_bytes);
    me->number[3] = __atomic_load_n(&received, __ATOMIC_SEQ_CST);
    cdp_fsdp_destroy(f);
    leave();
    return 0;
}

/* All ranks together: how an operation is made decides which of them receives more. */
TEST(paper_is_within_5_percent_of_memory_and_bytes_that_were_measured) {
    static const cdp_dtype types[] = {CDP_DTYPE_F32, CDP_DTYPE_BF16};
    for (uint32_t n = 2; n <= 4; n += 2)
        for (uint32_t t = 0; t < 2; ++t) {
            uint64_t number[4] = {0};
            job(n);
            compute = types[t];
            spawn_all(measured_rank);
            if (!finish(20000)) return;
            for (uint32_t r = 0; r < n; ++r)
                for (uint32_t k = 0; k < 4; ++k)
                    number[k] += shared->of[r].number[k];
            for (uint32_t k = 0; k < 4; k += 2) {
                const double paper = (double)number[k], run = (double)number[k + 1];
                printf("  %u ranks, %s: %s %.0f on paper, %.0f measured: %.3f\n", n,
                    cdp_dtype_name(types[t]), k ? "bytes" : "memory", paper, run, run / paper);
                if (k || !TEST_SLOW) T(run > .95 * paper && run < 1.05 * paper);
            }
        }
}

static const test_case cases[] = {
    {"a_kill_in_each_row_of_1f1b_is_named_by_all", a_kill_in_each_row_of_1f1b_is_named_by_all, 120},
    {"a_kill_in_each_row_of_gpipe_is_named_by_all", a_kill_in_each_row_of_gpipe_is_named_by_all,
        120},
    {"paper_is_within_5_percent_of_memory_and_bytes_that_were_measured",
        paper_is_within_5_percent_of_memory_and_bytes_that_were_measured, 120},
};

int main(int argc, char **argv) {
    return procs_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
