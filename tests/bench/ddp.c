/* One rank of the DDP measurement that ddp.sh starts: a synthetic backward pass of known length
   whose layers hand over their gradients one after the other, as on an accelerator (it sleeps) or
   on this processor (--busy).

   ddp [--backward-ms B] [--bytes N] [--params P] [--bucket BYTES] [--steps S] [--busy]
       [--adam WHERE]   after: all of it after the pass; whole: bucket by bucket; parts: each rank
                        its own part of each bucket
       RANK, WORLD_SIZE, MASTER_* in the environment, as usual

   Rank 0 prints one line: step time, what of it was not backward, how much communication was
   hidden, bytes that left through send() beside those of the formula, and how long after the last
   ready() of a bucket its first bytes were handed to the kernel. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    MOST = 100000
};

static struct {
    double backward_ms;
    uint64_t bytes, bucket;
    uint32_t params, steps;
    bool busy;
    const char *adam;
} options = {100, 25000000, 5000000, 25, 20, false, NULL};

static cdp_optimizer *optimizer;
static bool after;
static uint64_t sent;           /* bytes through send() */
static uint64_t waits_since_ns; /* since when a first send is waited for; 0: not */
static uint64_t first_ns[MOST];
static uint32_t first_count;

static uint64_t now(void) {
    return cdp_os_default()->now_ns(NULL);
}

static int64_t counting_send(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    const uint64_t since = __atomic_exchange_n(&waits_since_ns, 0, __ATOMIC_SEQ_CST),
                   entered = now();
    const int64_t r = cdp_os_default()->net.send_iov(user, fd, iov, n);
    if (since && r > 0 && first_count < MOST) first_ns[first_count++] = entered - since;
    if (r > 0) __atomic_add_fetch(&sent, (uint64_t)r, __ATOMIC_SEQ_CST);
    return r;
}

static int by_size(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void work(uint64_t ns) {
    const uint64_t end = now() + ns;
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    if (options.busy)
        while (now() < end) {
        }
    else
        nanosleep(&t, NULL);
}

/* The last parameter of each bucket: the lowest index in it. */
static bool is_last(const cdp_ddp *ddp, uint32_t buckets, uint32_t i) {
    for (uint32_t b = 0; b < buckets; ++b) {
        const cdp_bucket_stats s = cdp_ddp_bucket(ddp, b);
        for (uint32_t k = 0; k < s.param_count; ++k)
            if (s.params[k] == i) return s.params[s.param_count - 1] == i;
    }
    return false;
}

static cdp_status step(cdp_ddp *ddp, uint32_t buckets) {
    cdp_status st = cdp_ddp_backward_begin(ddp);
    for (uint32_t i = options.params; i-- > 0 && st == CDP_OK;) {
        const bool last = is_last(ddp, buckets, i);
        work((uint64_t)(options.backward_ms * 1e6 / options.params));
        if (last) __atomic_store_n(&waits_since_ns, now(), __ATOMIC_SEQ_CST);
        st = cdp_ddp_ready(ddp, i);
    }
    if (st == CDP_OK) st = cdp_ddp_backward_end(ddp);
    return st == CDP_OK && after ? cdp_optimizer_step(optimizer, 1) : st;
}

static void open_optimizer(cdp_ddp *ddp) {
    static cdp_optim adam = {.kind = CDP_OPTIM_ADAMW};
    cdp_optimizer_desc d;
    if (!options.adam) return;
    memset(&d, 0, sizeof d);
    d.ddp = ddp;
    d.optim = &adam;
    after = d.deferred = strcmp(options.adam, "after") == 0;
    d.whole = strcmp(options.adam, "parts") != 0;
    if (cdp_optimizer_create(&d, &optimizer) != CDP_OK) exit(cdp_print_error(stderr));
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; ++i) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        if (strcmp(argv[i], "--busy") == 0) {
            options.busy = true;
            continue;
        }
        if (strcmp(argv[i], "--backward-ms") == 0) options.backward_ms = atof(value);
        if (strcmp(argv[i], "--adam") == 0) options.adam = value;
        if (strcmp(argv[i], "--bytes") == 0) options.bytes = strtoull(value, NULL, 10);
        if (strcmp(argv[i], "--bucket") == 0) options.bucket = strtoull(value, NULL, 10);
        if (strcmp(argv[i], "--params") == 0) options.params = (uint32_t)atoi(value);
        if (strcmp(argv[i], "--steps") == 0) options.steps = (uint32_t)atoi(value);
        ++i;
    }
}

int main(int argc, char **argv) {
    cdp_os os = *cdp_os_default();
    cdp_param *params;
    cdp_tcp_desc t;
    cdp_ddp_desc d;
    cdp_group *world;
    cdp_ddp *ddp;
    cdp_ddp_stats s;
    uint64_t took[1000], sent_before, hidden_comm, hidden_exposed;
    read_options(argc, argv);
    if (options.steps > 1000 || !options.params) return 2;
    os.net.send_iov = counting_send;
    if (cdp_tcp_desc_from_env(&t) != CDP_OK) return cdp_print_error(stderr);
    t.group.os = &os;
    t.group.timeout_ms = 60000;
    /* what goes over sockets is counted, and compared with others that use them */
    t.no_shared_memory = true;
    if (cdp_init(&t, &world) != CDP_OK) return cdp_print_error(stderr);
    params = (cdp_param *)calloc(options.params, sizeof *params);
    for (uint32_t i = 0; i < options.params; ++i) {
        params[i].count = options.bytes / 4 / options.params;
        params[i].data = calloc(params[i].count, 4);
    }
    memset(&d, 0, sizeof d);
    d.group = world;
    d.params = params;
    d.param_count = options.params;
    d.first_bucket_bytes = 1 << 20; /* the first one is small, as in PyTorch 1.13 */
    d.bucket_bytes = options.bucket;
    if (cdp_ddp_create(&d, &ddp) != CDP_OK) return cdp_print_error(stderr);
    open_optimizer(ddp);
    s = cdp_ddp_stats_of(ddp);
    for (uint32_t i = 0; i < 2; ++i)
        if (step(ddp, s.bucket_count) != CDP_OK) return cdp_print_error(stderr);
    first_count = 0;
    s = cdp_ddp_stats_of(ddp);
    hidden_comm = s.total_comm_ns;
    hidden_exposed = s.total_exposed_ns;
    sent_before = sent;
    if (cdp_barrier(world) != CDP_OK) return cdp_print_error(stderr);
    for (uint32_t i = 0; i < options.steps; ++i) {
        const uint64_t start = now();
        if (step(ddp, s.bucket_count) != CDP_OK || cdp_barrier(world) != CDP_OK)
            return cdp_print_error(stderr);
        /* with the barrier: what this rank has sent may still be on its way to the other */
        took[i] = now() - start;
    }
    s = cdp_ddp_stats_of(ddp);
    if (cdp_rank(world) == 0) {
        const double n = cdp_size(world),
                     formula = 2 * (n - 1) / n * (double)s.bytes_per_step * options.steps;
        qsort(took, options.steps, sizeof *took, by_size);
        qsort(first_ns, first_count, sizeof *first_ns, by_size);
        printf("cdp    step %7.1f ms (least %.1f), beyond backward %6.1f ms, hidden %5.1f %%, sent "
               "%.4f of the formula, ready to first byte %.1f us (median; 90 %%: %.1f) of %u "
               "buckets\n",
            (double)took[options.steps / 2] / 1e6, (double)took[0] / 1e6,
            (double)took[options.steps / 2] / 1e6 - options.backward_ms,
            100
                * (1
                    - (double)(s.total_exposed_ns - hidden_exposed)
                        / (double)(s.total_comm_ns - hidden_comm)),
            (double)(sent - sent_before) / formula,
            first_count ? (double)first_ns[first_count / 2] / 1e3 : 0,
            first_count ? (double)first_ns[first_count * 9 / 10] / 1e3 : 0,
            s.bucket_count * options.steps);
    }
    cdp_optimizer_destroy(optimizer);
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(world);
    for (uint32_t i = 0; i < options.params; ++i)
        free(params[i].data);
    free(params);
    return 0;
}
