/* The same training steps as in test_ddp_parity.py, on ranks that are threads: prints every gradient after every step as
   "case step rank parameter bits...". The 8 arguments are PyTorch's first right factor of PowerSGD, as bits. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "../unit/ranks.h"

enum { N = 3, LARGEST = 48 };
static const uint64_t counts[N] = {48, 3, 6}, rows[N] = {6, 0, 2};
static uint32_t first_q[8];
static pthread_mutex_t print = PTHREAD_MUTEX_INITIALIZER;

typedef enum setup { PLAIN, WHOLE, UNUSED, STATIC, FP16, POWERSGD, JOIN, JOIN_EFFECTIVE } setup;
static const char *const names[] = {"plain", "whole", "unused", "static", "fp16", "powersgd", "join", "join_effective"};

/* Any float for two ranks, where a sum has one value; whole numbers for more. */
static float value(setup s, int step, uint32_t rank, uint32_t i, uint32_t k) {
    const uint32_t v = (uint32_t)((uint32_t)step * 7u + rank * 13u + i * 5u + k * 3u + 1u) * 2654435761u >> 8;
    return s == WHOLE ? (float)(int32_t)(v % 65) - 32 : (float)((int32_t)v - 8388608) / 16777216.0f;
}

static bool used(setup s, int step, uint32_t rank, uint32_t i) {
    if (s == STATIC) return i != 2;
    if (s != UNUSED) return true;
    return !(step % 4 == 1 && (i == 2 || (i == 1 && rank == 1))) && !(step % 4 == 3 && i == 0 && rank == 0);
}

static bool load_q(cdp_ddp *ddp) {
    uint32_t words[8 + 4 + 8];
    const cdp_hook *h = cdp_ddp_hook(ddp);
    memset(words, 0, sizeof words);
    words[0] = CDP_HOOK_POWERSGD; /* kind, step, random, slots; of the slot: bytes of error, of q */
    words[6] = 1;
    words[10] = 32;
    memcpy(words + 12, first_q, sizeof first_q);
    return h->load(h->self, words, sizeof words) == CDP_OK;
}

static void rank_runs(cdp_group *g, void *arg) {
    const setup s = *(const setup *)arg;
    const uint32_t rank = cdp_rank(g);
    static float data[8][N][LARGEST];
    const int steps = s == JOIN || s == JOIN_EFFECTIVE ? (rank ? 4 : 2) : 6;
    cdp_param p[N];
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    cdp_hook_desc h;
    cdp_hook hook;
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    memset(&h, 0, sizeof h);
    for (uint32_t i = 0; i < N; ++i) {
        p[i].data = data[rank][i];
        p[i].count = counts[i];
        p[i].rows = rows[i];
    }
    d.group = g;
    d.params = p;
    d.param_count = N;
    d.predivide = cdp_size(g); /* PyTorch divides before it sums */
    if (s == JOIN_EFFECTIVE) d.predivide = 0;
    d.find_unused = s == UNUSED;
    d.static_graph = s == STATIC;
    d.join = s == JOIN || s == JOIN_EFFECTIVE;
    d.join_effective = s == JOIN_EFFECTIVE;
    if (!T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp))) return;
    h.kind = s == FP16 ? CDP_HOOK_FP16 : CDP_HOOK_POWERSGD;
    h.start = 2;
    if (s == FP16 || s == POWERSGD) T(cdp_hook_create(&h, &hook) == CDP_OK && cdp_ddp_set_hook(ddp, &hook) == CDP_OK);
    if (s == POWERSGD) T(load_q(ddp));
    for (int step = 0; step < steps; ++step) {
        if (s != PLAIN && s != WHOLE) cdp_ddp_zero_grad(ddp); /* those two go on adding */
        T_EQ(CDP_OK, cdp_ddp_no_sync(ddp, (s == PLAIN || s == WHOLE) && step % 3 == 1));
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        for (uint32_t i = N; i-- > 0;) {
            float *grad = (float *)cdp_ddp_grad(ddp, i);
            if (!used(s, step, rank, i)) continue;
            for (uint32_t k = 0; k < counts[i]; ++k) grad[k] += value(s, step, rank, i, k);
            T_EQ(CDP_OK, cdp_ddp_ready(ddp, i));
        }
        test_check(cdp_ddp_backward_end(ddp) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
        pthread_mutex_lock(&print);
        for (uint32_t i = 0; i < N; ++i) {
            printf("%s%u %d %u %u", names[s], cdp_size(g), step, rank, i);
            for (uint32_t k = 0; k < counts[i]; ++k) {
                uint32_t bits;
                memcpy(&bits, (const float *)cdp_ddp_grad(ddp, i) + k, 4);
                printf(" %08x", bits);
            }
            printf("\n");
        }
        pthread_mutex_unlock(&print);
    }
    if (d.join) T_EQ(CDP_OK, cdp_ddp_join(ddp));
    cdp_ddp_destroy(ddp);
}

static void print_samples(void) {
    static const uint64_t sizes[] = {1, 7, 10, 33};
    for (uint64_t c = 0; c < 4 * 4 * 4; ++c) {
        cdp_sampler s = {sizes[c % 4], (uint32_t)(1 + c / 4 % 4), 0, (c / 16) % 2, (c / 32) % 2, c, c % 3, NULL};
        for (s.rank = 0; s.rank < s.ranks; ++s.rank) {
            uint64_t got[64];
            T_EQ(CDP_OK, cdp_sampler_fill(&s, got));
            printf("sampler %u %u 0", (uint32_t)c, s.rank);
            for (uint64_t i = 0; i < cdp_sampler_count(&s); ++i) printf(" %llu", (unsigned long long)got[i]);
            printf("\n");
        }
    }
}

int main(int argc, char **argv) {
    for (int i = 0; i < 8 && argc > i + 1; ++i) first_q[i] = (uint32_t)strtoul(argv[i + 1], NULL, 16);
    for (int s = PLAIN; s <= JOIN_EFFECTIVE; ++s) {
        setup one = (setup)s;
        run_ranks(s == WHOLE ? 4 : 2, NULL, 0, rank_runs, &one);
    }
    print_samples();
    return test__now.failed_checks ? 1 : 0;
}
