/* What each algorithm of cdp costs with many ranks: rounds, messages and bytes, from its round
   functions alone, against what no algorithm can go below, and predicted times. Nothing is sent.

   scale [--size LIST] [--ranks LIST] [--latency US] [--per-host N]
       sizes in bytes, or as 64K, 1M, of the whole vector or all parts

   The model: a message of b bytes takes the latency, then b bytes at the rate of the link. Ranks
   send and receive at once, one message after the other each way; a round ends on a rank when its
   messages have come and gone. Computing is free and the network has no other limits, so that what
   is seen is the algorithm's own doing. With N ranks on each host (numbered host by host), these
   share one link, messages among them take 1 us, and MB and bound are those of the host.

   messages, MB: of the rank that sends (or receives) most. bound: log2 of the ranks, rounded up,
   rounds, and the bytes that some rank must send or receive; algorithms of more than 2,000 rounds
   only where they are selected; least: one latency, and those bytes. '*' marks what the built-in
   table selects for that size and number of ranks. */
#define CDP_STATIC /* what is not called here is not compiled */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINKS 4
static const double gbits[LINKS] = {1, 10, 100, 400};
static double latency_us = 10;
static uint32_t per_host = 1;
static uint16_t list[65536];
static cdp__hosts hosts;

typedef struct figures {
    uint32_t rounds; /* with messages */
    uint64_t messages, bytes;
    double us[LINKS];
} figures;

typedef struct rank_state {
    double at[LINKS], next[LINKS], out[LINKS], in[LINKS];
    uint64_t sent, sent_bytes, got_bytes;
} rank_state;

/* One round of all ranks. True: somebody sent something. */
static bool one_round(const cdp__algo *a, cdp__shape *s, uint32_t k, rank_state *ranks) {
    cdp__step steps[CDP__ROUND_MAX];
    bool any = false;
    uint32_t r, i, b;
    for (r = 0; r < s->size; ++r)
        for (b = 0; b < LINKS; ++b) {
            ranks[r].next[b] = ranks[r].at[b];
            ranks[r].out[b] = ranks[r].in[b] = 0;
        }
    for (r = 0; r < s->size; ++r) {
        uint32_t count;
        s->rank = r;
        count = a->round(s, k, steps);
        for (i = 0; i < count; ++i) {
            rank_state *to, *link, *far;
            if (steps[i].kind != CDP__SEND) continue;
            any = true;
            to = &ranks[steps[i].peer];
            link = &ranks[r / per_host * per_host];
            far = &ranks[(uint32_t)steps[i].peer / per_host * per_host];
            ++ranks[r].sent;
            if (link != far || per_host == 1) {
                link->sent_bytes += steps[i].len;
                far->got_bytes += steps[i].len;
            }
            for (b = 0; b < LINKS; ++b) {
                const double takes = link == far && per_host > 1
                    ? 0
                    : (double)steps[i].len * 8 / (gbits[b] * 1e3),
                             from = ranks[r].at[b] > to->at[b] ? ranks[r].at[b] : to->at[b];
                double end = from + 1;
                link->out[b] += takes;
                far->in[b] += takes;
                if (link != far || per_host == 1)
                    end =
                        from + latency_us + (link->out[b] > far->in[b] ? link->out[b] : far->in[b]);
                if (to->next[b] < end) to->next[b] = end;
                if (ranks[r].next[b] < ranks[r].at[b] + (takes > 0 ? link->out[b] : 0))
                    ranks[r].next[b] = ranks[r].at[b] + link->out[b];
            }
        }
    }
    for (r = 0; r < s->size && any; ++r)
        for (b = 0; b < LINKS; ++b)
            ranks[r].at[b] = ranks[r].next[b];
    return any;
}

/* elements of one byte */
static cdp__shape shape_of(const cdp__algo *a, uint32_t n, uint64_t bytes) {
    cdp__shape s;
    memset(&s, 0, sizeof s);
    s.kind = a->kind;
    s.op = CDP_REDUCE_SUM;
    s.size = n;
    s.hosts = &hosts;
    s.in_place = a->kind != CDP_COLL_ALLTOALL;
    s.count = cdp__kind_has_parts(a->kind) ? (bytes + n - 1) / n : bytes;
    if (a->kind == CDP_COLL_BARRIER) s.count = 0;
    return s;
}

static uint32_t round_count(const cdp__algo *a, uint32_t n, uint64_t bytes) {
    const cdp__shape s = shape_of(a, n, bytes);
    return a->rounds(&s);
}

static figures cost_of(const cdp__algo *a, uint32_t n, uint64_t bytes) {
    rank_state *ranks = (rank_state *)calloc(n, sizeof *ranks);
    const uint32_t rounds = round_count(a, n, bytes);
    cdp__shape s = shape_of(a, n, bytes);
    figures f;
    uint32_t k, r, b;
    memset(&f, 0, sizeof f);
    if (!ranks) abort();
    for (k = 0; k < rounds; ++k)
        f.rounds += one_round(a, &s, k, ranks);
    for (r = 0; r < n; ++r) {
        f.messages = cdp__max(f.messages, ranks[r].sent);
        f.bytes = cdp__max(f.bytes, cdp__max(ranks[r].sent_bytes, ranks[r].got_bytes));
        for (b = 0; b < LINKS; ++b)
            f.us[b] = f.us[b] > ranks[r].at[b] ? f.us[b] : ranks[r].at[b];
    }
    free(ranks);
    return f;
}

/* What some rank must send or receive, whatever the algorithm. */
static uint64_t bound_bytes(cdp_coll_kind kind, uint32_t n, uint64_t bytes) {
    const uint32_t h = n / per_host;
    const uint64_t but_own = (bytes + h - 1) / h * (h - 1);
    switch (kind) {
    case CDP_COLL_BARRIER: return 0;
    case CDP_COLL_ALLREDUCE: return 2 * but_own;
    case CDP_COLL_BROADCAST:
    case CDP_COLL_SEND:
    case CDP_COLL_REDUCE: return bytes;
    default: return but_own;
    }
}

static const char *time_text(double us, char out[16]) {
    if (us < 1e3)
        snprintf(out, 16, "%.0f us", us);
    else if (us < 1e6)
        snprintf(out, 16, "%.2f ms", us / 1e3);
    else
        snprintf(out, 16, "%.2f s", us / 1e6);
    return out;
}

static void line(uint32_t algo, uint32_t n, uint64_t bytes) {
    const cdp__algo *a = cdp__algo_at(algo);
    const cdp__choosing usual = {NULL, 0, 64 * 1024, false};
    const uint64_t least = bound_bytes(a->kind, n, bytes);
    const bool selected = cdp__select(&usual, a->kind, a->kind == CDP_COLL_BARRIER ? 0 : bytes, n,
                              per_host > 1 ? CDP__HOSTS | CDP__UNIFORM : 0)
        == algo;
    figures f;
    char t[LINKS][16], low[16];
    uint32_t b;
    for (b = 0; b < n; ++b)
        list[b] = (uint16_t)(b | (b % per_host ? 0 : CDP__HOST_BEGINS));
    hosts.count = n / per_host;
    hosts.fewest = hosts.most = per_host;
    hosts.ranks = list;
    if (n % per_host || n / per_host < 2 || (algo >= CDP__LANES && per_host == 1)) return;
    if (!selected && round_count(a, n, bytes) > 2000) return;
    f = cost_of(a, n, bytes);
    for (b = 0; b < LINKS; ++b)
        time_text(f.us[b], t[b]);
    printf("%c %-15s %-19s %6u %7u %5u %8llu %10.3f %10.3f %10s %10s %10s %10s %10s\n",
        selected ? '*' : ' ', cdp_coll_name(a->kind), a->name, n, f.rounds, cdp__log2_up(n),
        (unsigned long long)f.messages, (double)f.bytes / 1e6, (double)least / 1e6, t[0], t[1],
        t[2], t[3], time_text(latency_us + (double)least * 8 / (gbits[2] * 1e3), low));
}

static uint32_t numbers(const char *text, uint64_t *out, uint32_t room) {
    uint32_t n = 0;
    while (*text && n < room) {
        char *end;
        out[n] = strtoull(text, &end, 10);
        if (*end == 'K') {
            out[n] *= 1024;
            ++end;
        } else if (*end == 'M') {
            out[n] *= 1 << 20;
            ++end;
        }
        ++n;
        if (*end != ',') break;
        text = end + 1;
    }
    return n;
}

int main(int argc, char **argv) {
    uint64_t sizes[16] = {1024, 1 << 20, 100 << 20}, ranks[16] = {16, 64, 256, 1024, 4096};
    uint32_t size_count = 3, rank_count = 5, i, k, a, kind;
    for (i = 1; i < (uint32_t)argc; i += 2) {
        if (i + 1 < (uint32_t)argc && strcmp(argv[i], "--size") == 0)
            size_count = numbers(argv[i + 1], sizes, 16);
        else if (i + 1 < (uint32_t)argc && strcmp(argv[i], "--ranks") == 0)
            rank_count = numbers(argv[i + 1], ranks, 16);
        else if (i + 1 < (uint32_t)argc && strcmp(argv[i], "--latency") == 0)
            latency_us = atof(argv[i + 1]);
        else if (i + 1 < (uint32_t)argc && strcmp(argv[i], "--per-host") == 0
            && atoi(argv[i + 1]) > 0)
            per_host = (uint32_t)atoi(argv[i + 1]);
        else {
            printf("scale [--size LIST] [--ranks LIST] [--latency US] [--per-host N]\n");
            return strcmp(argv[i], "--help") != 0;
        }
    }
    printf("predicted: %.0f us latency, then bytes at 1, 10, 100, 400 Gbit/s each way. '*': what "
           "the table selects. least: the bounds at 100 Gbit/s.\n",
        latency_us);
    for (i = 0; i < size_count; ++i) {
        printf("\n%.3f MB\n  %-15s %-19s %6s %7s %5s %8s %10s %10s %10s %10s %10s %10s %10s\n",
            (double)sizes[i] / 1e6, "op", "algorithm", "ranks", "rounds", "bound", "messages", "MB",
            "bound", "1 Gbit/s", "10 Gbit/s", "100 Gbit/s", "400 Gbit/s", "least");
        for (kind = CDP_COLL_NONE + 1; kind < CDP_COLL_COUNT; ++kind)
            for (k = 0; k < rank_count; ++k)
                for (a = 0; a < CDP__ALGO_COUNT; ++a)
                    if (cdp__algo_at(a)->kind == (cdp_coll_kind)kind && kind != CDP_COLL_SEND
                        && ranks[k] > 1)
                        line(a, (uint32_t)ranks[k], sizes[i]);
    }
    return 0;
}
