/* walk.c - which functions lie between a call of the program and its bytes, and which functions a
   failure passes through. Compiled by tests/walk.sh at -O0 with -finstrument-functions, so that
   every call of a function is seen here, as a debugger would show it.

   Functions are printed as distances from main(), in decimal; walk.sh looks them up in the symbols
   of this program.

     send N F1 F2 ...     N calls of transport.send came from F2, which F1 had called
     call F1 F2           while a peer died, F1 called F2 */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define UNSEEN __attribute__((no_instrument_function))
#define DEPTH 256
#define CHAINS 1024
#define CALLS 65536

void __cyg_profile_func_enter(void *function, void *site);
void __cyg_profile_func_exit(void *function, void *site);
int main(void);

static __thread void *stack[DEPTH];
static __thread uint32_t depth;

/* ---- chains from cdp_allreduce to transport.send ---- */

typedef struct chain {
    void *at[DEPTH];
    uint32_t length, count;
} chain;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static chain chains[CHAINS];
static uint32_t chain_count;

/* ---- which function called which, while `watching` ---- */

static struct { void *from, *to; } calls[CALLS];
static uint32_t call_count;
static uint32_t watching; /* (atomic) */

UNSEEN static void remember_call(void *from, void *to) {
    uint32_t i = (uint32_t)(((uintptr_t)from * 31 + (uintptr_t)to) * 2654435761u >> 8) % CALLS;
    pthread_mutex_lock(&guard);
    while (calls[i].to && (calls[i].from != from || calls[i].to != to))
        i = (i + 1) % CALLS;
    if (!calls[i].to && ++call_count == CALLS) abort();
    calls[i].from = from;
    calls[i].to = to;
    pthread_mutex_unlock(&guard);
}

UNSEEN void __cyg_profile_func_enter(void *function, void *site) {
    (void)site;
    if (depth == DEPTH) abort();
    if (depth && __atomic_load_n(&watching, __ATOMIC_ACQUIRE))
        remember_call(stack[depth - 1], function);
    stack[depth++] = function;
}

UNSEEN void __cyg_profile_func_exit(void *function, void *site) {
    (void)site;
    if (!depth || stack[--depth] != function) abort();
}

/* Functions by their distance from main(), which does not change from run to run. */
UNSEEN static long long distance_of(void *function) {
    return (long long)((intptr_t)function - (intptr_t)main);
}

/* This thread's functions from cdp_allreduce() on; none: another call sends. */
UNSEEN static void remember_chain(void) {
    uint32_t from = 0, i;
    while (from < depth && stack[from] != (void *)(uintptr_t)cdp_allreduce)
        ++from;
    if (from == depth) return;
    pthread_mutex_lock(&guard);
    for (i = 0; i < chain_count; ++i)
        if (chains[i].length == depth - from
            && !memcmp(chains[i].at, stack + from, (depth - from) * sizeof *stack))
            break;
    if (i == CHAINS) abort();
    if (i == chain_count) {
        ++chain_count;
        chains[i].length = depth - from;
        memcpy(chains[i].at, stack + from, (depth - from) * sizeof *stack);
    }
    ++chains[i].count;
    pthread_mutex_unlock(&guard);
}

/* ---- ranks ---- */

#define RANKS 3u

static cdp_hub *hub;
static cdp_group *groups[RANKS];
static cdp_transport below; /* the functions of the hub */
static uint32_t dead;       /* (atomic) rank 2 has died */

UNSEEN static int64_t send_seen(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    remember_chain();
    return below.send(self, peer, v, n);
}

/* Rank 2 is a process that has ended: its last bytes arrive, then rank 0 finds out. Rank 1 does
   not find out, and is told. */
UNSEEN static int64_t recv_seen(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    const bool ended = peer == 2 && __atomic_load_n(&dead, __ATOMIC_ACQUIRE);
    const int64_t r = below.recv(self, peer, v, n);
    if (r || !ended || ((cdp__hub_end *)self)->rank) return r;
    return cdp_error_set(CDP_ERR_PEER_LOST, 2, 0, "rank 2 has ended");
}

static void quiet(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)level;
    (void)text;
    (void)rank;
    (void)user;
}

/* Says what this thread's last error is. False, always. */
static bool report(const char *what) {
    fprintf(stderr, "%s: %s\n", what, cdp_last_error()->text);
    return false;
}

static bool open_ranks(bool slots) {
    cdp_hub_desc h;
    cdp_group_desc d;
    uint32_t r;
    memset(&h, 0, sizeof h);
    memset(&d, 0, sizeof d);
    h.world_size = d.world_size = RANKS;
    h.ring_bytes = 4096; /* so that messages do not leave in one piece */
    if (cdp_hub_create(&h, &hub) != CDP_OK) return report("a group");
    d.hub = hub;
    d.timeout_ms = 60000;
    d.piece_bytes = 65536;
    d.logger.func = quiet;
    for (r = 0; r < RANKS; ++r) {
        cdp_transport *t;
        d.rank = r;
        if (cdp_group_create(&d, &groups[r]) != CDP_OK) return report("a group");
        t = &groups[r]->w->transport;
        below = *t;
        t->send = send_seen;
        t->recv = recv_seen;
        /* ranks tell each other of failures in messages alone, as over a network */
        memset(&t->failure, 0, sizeof t->failure);
        memset(&t->remote, 0, sizeof t->remote);
        if (!slots) memset(&t->slots, 0, sizeof t->slots);
    }
    return true;
}

static void close_ranks(void) {
    uint32_t r;
    for (r = 0; r < RANKS; ++r)
        cdp_group_destroy(groups[r]);
    cdp_hub_destroy(hub);
}

static bool in_threads(void *(*func)(void *)) {
    pthread_t id[RANKS];
    void *bad = NULL, *all_bad = NULL;
    uint32_t r;
    for (r = 0; r < RANKS; ++r)
        if (pthread_create(&id[r], NULL, func, groups[r])) abort();
    for (r = 0; r < RANKS; ++r) {
        pthread_join(id[r], &bad);
        if (bad) all_bad = bad;
    }
    return !all_bad;
}

/* Allreduces of sizes with one round and many, one piece and many. NULL: all succeeded. */
static void *reduces(void *arg) {
    static const uint64_t counts[] = {0, 1, 100, 4096, 300000};
    cdp_group *g = (cdp_group *)arg;
    uint32_t i, again;
    for (i = 0; i < sizeof counts / sizeof *counts; ++i)
        for (again = 0; again < 5; ++again) {
            float *x = (float *)calloc(counts[i] + 1, sizeof *x);
            const cdp_status st =
                cdp_allreduce(g, NULL, x, counts[i], CDP_DTYPE_F32, CDP_REDUCE_SUM);
            free(x);
            if (st != CDP_OK && !report("an allreduce")) return g;
        }
    return NULL;
}

/* Rank 2 ends after the first allreduce; the others report that. NULL: they do. */
static void *dies(void *arg) {
    cdp_group *g = (cdp_group *)arg;
    float x[64] = {0};
    cdp_status st = cdp_allreduce(g, NULL, x, 64, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (st != CDP_OK && !report("before a death")) return g;
    if (cdp_rank(g) == 2) {
        __atomic_store_n(&dead, 1, __ATOMIC_RELEASE);
        return NULL;
    }
    while (!__atomic_load_n(&dead, __ATOMIC_ACQUIRE))
        (void)sched_yield();
    __atomic_store_n(&watching, 1, __ATOMIC_RELEASE);
    st = cdp_allreduce(g, NULL, x, 64, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (st == CDP_ERR_PEER_LOST && cdp_last_error()->peer == 2) return NULL;
    (void)report("after a death");
    return g;
}

int main(void) {
    uint32_t i, k;
    if (!open_ranks(false) || !in_threads(reduces)) return 1;
    close_ranks();
    if (!open_ranks(true) || !in_threads(reduces)) return 1;
    close_ranks();
    if (!open_ranks(false) || !in_threads(dies)) return 1;
    __atomic_store_n(&watching, 0, __ATOMIC_RELEASE);
    close_ranks();
    for (i = 0; i < chain_count; ++i) {
        printf("send %u", chains[i].count);
        for (k = 0; k < chains[i].length; ++k)
            printf(" %lld", distance_of(chains[i].at[k]));
        printf("\n");
    }
    for (i = 0; i < CALLS; ++i)
        if (calls[i].to)
            printf("call %lld %lld\n", distance_of(calls[i].from), distance_of(calls[i].to));
    return 0;
}
