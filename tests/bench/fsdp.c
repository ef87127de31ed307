/* fsdp.c - a step of sharded training beside one of DDP, on the transformer of examples/24_fsdp.c

       cdprun -n N fsdp [--tcp] [--steps N] [--layers N] [--width N] [FILE or FOLDER...]

   Steps of both kinds take turns in one job, and so does an allgather of as many bytes as the model
   has, which says what the connection can do now. A step's time is that of the slowest rank. The
   first quarter of the steps warms up. --tcp: not through shared memory. */
#define main example_main
#include "../../examples/24_fsdp.c"
#undef main

enum {
    KINDS = 3 /* DDP, FSDP, the allgather */
};

typedef struct times {
    double us[KINDS][MOST_STEPS];
} times;

static int by_time(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double mean(const double *x, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; ++i)
        sum += x[i];
    return sum / (double)n;
}

static bool open_kind(run *r, int kind) {
    model *m = &r->model;
    r->optim = adamw();
    model_create(m, r->plan.layers, r->plan.width, r->plan.heads, r->plan.context, SEQUENCES);
    if (!kind) return open_whole(r);
    free(m->values); /* nobody needs the whole */
    m->values = NULL;
    return open_shards(r, false);
}

static void close_kind(run *r) {
    cdp_fsdp_destroy(r->shards);
    cdp_optimizer_destroy(r->whole);
    cdp_ddp_destroy(r->model.ddp);
}

/* Microseconds of the slowest rank. */
static bool one(run *r, int kind, uint64_t step, float *whole, double *us) {
    const cdp_os *os = cdp_os_default();
    const uint64_t n = r->plan.context, share = r->model.value_count / cdp_size(r->world);
    static uint8_t *in, *out;
    double loss, took;
    bool ok = worked(cdp_barrier(r->world));
    if (!in) in = (uint8_t *)need(SEQUENCES, n);
    if (!out) out = (uint8_t *)need(SEQUENCES, n);
    for (uint64_t i = 0; i < SEQUENCES; ++i) {
        const uint64_t at =
            sequence_start(&r->plan, r->text, step, cdp_rank(r->world) * (uint64_t)SEQUENCES + i);
        memcpy(in + i * n, r->text->train + at, n);
        memcpy(out + i * n, r->text->train + at + 1, n);
    }
    const uint64_t from = os->now_ns(os->user);
    if (kind == 0) ok = ok && step_of_whole(r, in, out, &loss);
    if (kind == 1) ok = ok && step_of_shards(r, in, out, &loss);
    if (kind == 2)
        ok = ok
            && worked(cdp_allgather(
                r->world, whole + share * cdp_size(r->world), whole, share, CDP_DTYPE_F32));
    took = (double)(os->now_ns(os->user) - from) / 1e3;
    ok = ok && worked(cdp_allreduce(r->world, NULL, &took, 1, CDP_DTYPE_F64, CDP_REDUCE_MAX));
    *us = took;
    return ok;
}

static void report(const run runs[2], times *t, uint64_t steps, bool tcp) {
    static const char *const names[KINDS] = {"DDP", "FSDP", "allgather"};
    const uint64_t warm = steps / 4, n = steps - warm;
    const uint32_t ranks = cdp_size(runs[0].world);
    const cdp_fsdp_stats s = cdp_fsdp_stats_of(runs[1].shards);
    const double model = 4 * (double)runs[0].model.value_count;
    const double other = model * (ranks - 1.) / ranks,
                 fsdp = (double)(s.gather_bytes + s.reduce_bytes);
    double median[KINDS], average[KINDS];
    for (int k = 0; k < KINDS; ++k) {
        average[k] = mean(t->us[k] + warm, n);
        qsort(t->us[k] + warm, n, sizeof t->us[k][0], by_time);
        median[k] = t->us[k][warm + n / 2];
        printf("  %-10s median %9.0f us, mean %9.0f us\n", names[k], median[k], average[k]);
    }
    printf("  %u ranks %s: FSDP over DDP %.2f (medians), %.2f (means) of %llu steps\n", ranks,
        tcp ? "over TCP" : "in memory", median[1] / median[0], average[1] / average[0], llu(n));
    printf(
        "  bytes received by rank 0 in a step: DDP 2 (n-1)/n x %.0f = %.0f; FSDP %llu gathered + "
        "%llu reduced = %.0f, %.2f of DDP's\n",
        model, 2 * other, llu(s.gather_bytes), llu(s.reduce_bytes), fsdp, fsdp / (2 * other));
    printf(
        "  limit: the bytes of FSDP at the speed of the allgather, %.0f MB/s, take %.0f us; calls "
        "waited %.0f us in the last step, %u gathers began too late\n",
        other / median[2], fsdp * median[2] / other, (double)s.exposed_ns / 1e3, s.misses);
}

static bool measure(run runs[2], times *t, uint64_t steps) {
    bool ok = open_kind(&runs[0], 0) && open_kind(&runs[1], 1);
    float *whole = (float *)need(2 * runs[0].model.value_count, sizeof *whole);
    for (uint64_t step = 0; ok && step < steps; ++step)
        for (int k = 0; ok && k < KINDS; ++k) {
            const int kind = (int)((step + (uint64_t)k) % KINDS); /* nobody is always the first */
            ok = one(&runs[kind == 1], kind, step, whole, &t->us[kind][step]);
        }
    free(whole);
    return ok;
}

int main(int argc, char **argv) {
    static run runs[2];
    static times t;
    run first = {
        .steps = 60, .plan = {.layers = 4, .width = 64, .heads = 2, .context = 32, .seed = 1}};
    corpus text = {0};
    reason why;
    cdp_tcp_desc tcp;
    bool ok, over_tcp = false;
    int at = 1;
    for (; at < argc && !strncmp(argv[at], "--", 2); ++at)
        if (!strcmp(argv[at], "--tcp"))
            over_tcp = true;
        else if (at + 1 < argc) {
            const uint64_t n = strtoull(argv[at + 1], NULL, 10);
            if (!strcmp(argv[at], "--steps") && n && n <= MOST_STEPS) first.steps = n;
            if (!strcmp(argv[at], "--layers") && n) first.plan.layers = n;
            if (!strcmp(argv[at], "--width") && n && n % 4 == 0) first.plan.width = n;
            ++at;
        }
    if (!corpus_gather(&text, argv + at, argc - at, argv[0], first.plan.context, &why)) {
        complain(&why);
        return 1;
    }
    if (!worked(cdp_tcp_desc_from_env(&tcp))) return 1;
    tcp.no_shared_memory = over_tcp;
    if (!worked(cdp_init(&tcp, &first.world))) return 1;
    first.text = &text;
    runs[0] = runs[1] = first;
    ok = measure(runs, &t, first.steps);
    if (ok && cdp_rank(first.world) == 0) report(runs, &t, first.steps, over_tcp);
    for (int k = 0; k < 2; ++k)
        close_kind(&runs[k]);
    cdp_group_destroy(first.world);
    return ok ? 0 : 1;
}
