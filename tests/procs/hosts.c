/* What tests/procs/test_netns.sh runs on several hosts: all collectives with known results, or how
   long each takes and how many bytes leave this host for it, with algorithms that know of hosts and
   with others.

   hosts check | hosts measure BYTES... [--calls N]
       environment: as for cdp_init_from_env; IFACE: whose bytes are counted (default: eth0) */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "hosts.h"

static uint64_t left_host(void) {
    const char *iface = getenv("IFACE");
    char path[200], text[32] = "";
    FILE *f;
    snprintf(path, sizeof path, "/sys/class/net/%s/statistics/tx_bytes", iface ? iface : "eth0");
    f = fopen(path, "r");
    if (f && !fgets(text, sizeof text, f)) text[0] = 0;
    if (f) fclose(f);
    return strtoull(text, NULL, 10);
}

static int check(cdp_group *w) {
    static const uint64_t counts[] = {1, 1000, 70001};
    static const char *const names[] = {NULL, "hierarchical", "leaders"};
    hosts_case c;
    uint32_t i;
    for (i = 0; i < 3; ++i) {
        memset(&c, 0, sizeof c);
        c.g = w;
        hosts_choose(w, names[i]);
        if (!hosts_all(&c, counts, i ? 2 : 3)) {
            printf("%s: %s\n", names[i] ? names[i] : "the table", c.what);
            return 1;
        }
    }
    return 0;
}

static char data[2][64u << 20];

static bool call(cdp_group *w, cdp_coll_kind kind, uint64_t bytes) {
    const uint32_t n = cdp_size(w);
    cdp_request q;
    cdp_work work;
    memset(&q, 0, sizeof q);
    q.kind = kind;
    q.in = kind == CDP_COLL_BROADCAST || kind == CDP_COLL_BARRIER ? NULL : data[0];
    q.out = data[1];
    q.count = bytes / 4 / (kind == CDP_COLL_ALLGATHER || kind == CDP_COLL_REDUCE_SCATTER ? n : 1);
    if (kind == CDP_COLL_BARRIER) return cdp_barrier(w) == CDP_OK;
    return cdp_start(w, &q, &work) == CDP_OK && cdp_work_wait(work) == CDP_OK;
}

/* One call, from a barrier to the last rank's end; alternating, the least times. */
static int measure(cdp_group *w, cdp_coll_kind kind, uint64_t bytes, uint32_t calls) {
    static const char *const names[] = {"table", "flat", "leaders", "hierarchical"};
    const uint8_t is = w->topology.flags;
    uint64_t best[4], sent[4] = {0};
    const char *algo[4];
    uint32_t i, k, how;
    memset(best, 0xff, sizeof best);
    for (k = 0; k < calls; ++k)
        for (how = 0; how < 4; ++how) {
            uint64_t t, b, took[2], most[2];
            uint32_t some = bytes > 300000 ? 1 : 20;
            hosts_choose(w, how < 2 ? NULL : names[how]);
            if (cdp_barrier(w) != CDP_OK) return 1;
            w->topology.flags = how == 1 ? 0 : is;
            algo[how] = cdp__algo_at(
                cdp__select(&w->w->choosing, kind, kind == CDP_COLL_BARRIER ? 0 : bytes,
                    cdp_size(w), w->topology.flags))
                            ->name;
            for (i = 0; i < 2; ++i) { /* first to warm up */
                b = left_host();
                t = w->os->now_ns(NULL);
                for (uint32_t c = 0; c < some; ++c)
                    if (!call(w, kind, bytes)) return 1;
                took[0] = (w->os->now_ns(NULL) - t) / some;
                took[1] = 0;
                w->topology.flags = is;
                if (cdp_allreduce(w, took, most, 2, CDP_DTYPE_U64, CDP_REDUCE_MAX) != CDP_OK)
                    return 1;
                b = left_host() - b;
                if (cdp_barrier(w) != CDP_OK) return 1;
                w->topology.flags = how == 1 ? 0 : is;
                if (most[0] < best[how]) {
                    best[how] = most[0];
                    sent[how] = b / some;
                }
            }
            w->topology.flags = is;
        }
    for (how = 0; how < 4 && cdp_rank(w) == 0; ++how)
        if (how < 2 || strcmp(algo[how], names[how]) == 0)
            printf("%-14s %9llu  %-8s %-22s %9.1f us  %10llu bytes left this host\n",
                cdp_coll_name(kind), (unsigned long long)bytes, how < 2 ? names[how] : "named",
                algo[how], (double)best[how] / 1e3, (unsigned long long)sent[how]);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    static const cdp_coll_kind kinds[] = {CDP_COLL_ALLREDUCE, CDP_COLL_BROADCAST, CDP_COLL_REDUCE,
        CDP_COLL_ALLGATHER, CDP_COLL_REDUCE_SCATTER};
    cdp_group *w;
    int i, rc = 0;
    uint32_t k, calls = 5;
    if (cdp_init_from_env(NULL, &w) != CDP_OK) return cdp_print_error(stderr);
    if (argc > 1 && strcmp(argv[1], "check") == 0) rc = check(w);
    if (argc > 3 && strcmp(argv[argc - 2], "--calls") == 0) {
        calls = (uint32_t)atoi(argv[argc - 1]);
        argc -= 2;
    }
    if (argc > 1 && strcmp(argv[1], "measure") == 0) rc = measure(w, CDP_COLL_BARRIER, 0, calls);
    for (i = 2; i < argc && !rc; ++i)
        for (k = 0; k < 5 && !rc; ++k)
            rc = measure(w, kinds[k], strtoull(argv[i], NULL, 10), calls);
    if (rc) (void)cdp_print_error(stderr);
    cdp_group_destroy(w);
    return rc;
}
