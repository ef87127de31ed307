/*  custom_transport.c - cdp over a network of your own: a bad radio that loses, repeats and
    reorders packets

    You learn: how to implement a cdp_transport: five functions that carry ordered bytes.

        gcc -O2 examples/custom_transport.c -o custom_transport -pthread -lm
        ./custom_transport [SEED]

    Four ranks are threads of this process. cdp expects ordered, reliable bytes from a transport, so
    the radio keeps each packet until the receiver confirms it, and sends it again when that takes
    too long. All collective operations and a step of DDP run over it as they do over TCP. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp.h"
#include "help.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 4
#define PACKET 1000           /* payload bytes */
#define BUFFER (64u * PACKET) /* sent and not yet confirmed; received and not yet read */
#define MS 1000000ull
#define RESEND_NS (2 * MS)

/* ---- the air: packets from everybody to everybody, or not ------------------------------------ */
typedef struct packet {
    uint32_t from, bytes;
    /* position of its first byte in the stream; how far the other direction was received */
    uint64_t at, confirmed;
    uint8_t data[PACKET];
    struct packet *next;
} packet;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t bell[RANKS];
    packet *waiting[RANKS];
    bool rung[RANKS], left[RANKS];
    uint64_t dice, sent, lost, repeated, reordered;
} air;

/* xorshift: the air's troubles follow from the seed and the order of packets */
static uint32_t chance(uint32_t of) {
    air.dice ^= air.dice << 13;
    air.dice ^= air.dice >> 7;
    air.dice ^= air.dice << 17;
    return (uint32_t)(air.dice >> 33) % of;
}

static void ring(uint32_t rank) {
    air.rung[rank] = true;
    pthread_cond_signal(&air.bell[rank]);
}

static void deliver(const packet *p, uint32_t to, bool early) {
    packet *copy = air.left[to] ? NULL : (packet *)malloc(sizeof *copy), **at = &air.waiting[to];
    if (!copy) return;
    *copy = *p;
    while (*at && !early)
        at = &(*at)->next;
    copy->next = *at;
    *at = copy;
    ring(to);
}

static void transmit(const packet *p, uint32_t to) {
    pthread_mutex_lock(&air.lock);
    const bool lost = chance(20) == 0, early = chance(10) == 0 && air.waiting[to],
               twice = chance(20) == 0;
    ++air.sent;
    air.lost += lost;
    air.reordered += early;
    air.repeated += twice;
    if (!lost) deliver(p, to, early);
    if (twice) deliver(p, to, false);
    pthread_mutex_unlock(&air.lock);
}

/* ---- a rank's radio: streams over packets ---------------------------------------------------- */
/* to and from one peer; positions count bytes since the start, and index the rings modulo BUFFER */
typedef struct stream {
    uint8_t out[BUFFER], in[BUFFER];
    uint64_t written, confirmed; /* out: by us, by the peer's receiver */
    uint64_t received, read;     /* in */
    /* when to send everything after `confirmed` again, 0: nothing is out */
    uint64_t resend_ns;
} stream;

typedef struct radio {
    uint32_t rank;
    uint64_t resent;
    stream peers[RANKS];
} radio;

static uint64_t now_ns(void) {
    return cdp_os_default()->now_ns(NULL);
}

/* Send [from, to) of the stream; also without a byte, which then only confirms. */
static void send_range(radio *r, uint32_t peer, uint64_t from, uint64_t to) {
    stream *s = &r->peers[peer];
    do {
        packet p;
        p.from = r->rank;
        p.bytes = (uint32_t)(to - from < PACKET ? to - from : PACKET);
        p.at = from;
        p.confirmed = s->received;
        for (uint32_t i = 0; i < p.bytes; ++i)
            p.data[i] = s->out[(from + i) % BUFFER];
        transmit(&p, peer);
        from += p.bytes;
    } while (from < to);
    if (to > s->confirmed) s->resend_ns = now_ns() + RESEND_NS;
}

static void take(radio *r, const packet *p) {
    stream *s = &r->peers[p->from];
    if (p->confirmed > s->confirmed) {
        s->confirmed = p->confirmed;
        s->resend_ns = s->confirmed < s->written ? now_ns() + RESEND_NS : 0;
    }
    if (!p->bytes) return;
    /* the next one; it may overlap what is here */
    if (p->at <= s->received && p->at + p->bytes > s->received
        && p->at + p->bytes - s->read <= BUFFER) {
        for (uint64_t i = s->received; i < p->at + p->bytes; ++i)
            s->in[i % BUFFER] = p->data[i - p->at];
        s->received = p->at + p->bytes;
    }
    /* confirms; an old packet says that a confirmation was lost */
    send_range(r, p->from, s->written, s->written);
}

/* Take in what has come, and send again what nobody confirms. */
static void pump(radio *r) {
    for (;;) {
        pthread_mutex_lock(&air.lock);
        packet *p = air.waiting[r->rank];
        if (p) air.waiting[r->rank] = p->next;
        pthread_mutex_unlock(&air.lock);
        if (!p) break;
        take(r, p);
        free(p);
    }
    for (uint32_t peer = 0; peer < RANKS; ++peer) {
        stream *s = &r->peers[peer];
        if (!s->resend_ns || now_ns() < s->resend_ns) continue;
        ++r->resent;
        send_range(r, peer, s->confirmed, s->written);
    }
}

static uint64_t next_resend(const radio *r) {
    uint64_t at = UINT64_MAX;
    for (uint32_t peer = 0; peer < RANKS; ++peer)
        if (r->peers[peer].resend_ns && r->peers[peer].resend_ns < at)
            at = r->peers[peer].resend_ns;
    return at;
}

static bool has_left(uint32_t peer) {
    return __atomic_load_n(&air.left[peer], __ATOMIC_ACQUIRE);
}

/* Until a packet comes, somebody rings, or it is time. */
static void sleep_until(uint32_t rank, uint64_t deadline_ns) {
    pthread_mutex_lock(&air.lock);
    while (!air.rung[rank] && now_ns() < deadline_ns) {
        const uint64_t left =
            deadline_ns - now_ns() < 1000 * MS ? deadline_ns - now_ns() : 1000 * MS;
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += (long)left;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&air.bell[rank], &air.lock, &t);
    }
    air.rung[rank] = false;
    pthread_mutex_unlock(&air.lock);
}

/* ---- what cdp calls: cdp_transport ----------------------------------------------------------- */
static int64_t radio_send(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    radio *r = (radio *)self;
    stream *s = &r->peers[peer];
    const uint64_t from = s->written;
    pump(r);
    if (has_left(peer))
        return cdp_error_set(
            CDP_ERR_PEER_LOST, (int32_t)peer, 0, "rank %u has switched off its radio", peer);
    for (uint32_t i = 0; i < n; ++i)
        for (uint64_t k = 0; k < iov[i].bytes && s->written - s->confirmed < BUFFER; ++k)
            s->out[s->written++ % BUFFER] = ((const uint8_t *)iov[i].data)[k];
    if (s->written > from) send_range(r, peer, from, s->written);
    return (int64_t)(s->written - from);
}

static int64_t radio_recv(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    radio *r = (radio *)self;
    stream *s = &r->peers[peer];
    /* before the last look: who leaves has been heard to the end */
    const bool left = has_left(peer);
    const uint64_t from = s->read;
    pump(r);
    for (uint32_t i = 0; i < n; ++i)
        for (uint64_t k = 0; k < iov[i].bytes && s->read < s->received; ++k)
            ((uint8_t *)iov[i].data)[k] = s->in[s->read++ % BUFFER];
    if (s->read == from && left)
        return cdp_error_set(
            CDP_ERR_PEER_LOST, (int32_t)peer, 0, "rank %u has switched off its radio", peer);
    return (int64_t)(s->read - from);
}

static cdp_status radio_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    radio *r = (radio *)self;
    const uint64_t resend_ns = next_resend(r);
    if (deadline_ns) {
        cdp_lock_release(lock);
        sleep_until(r->rank, resend_ns < deadline_ns ? resend_ns : deadline_ns);
        cdp_lock_acquire(lock);
    }
    pump(r);
    return CDP_OK;
}

static void radio_wake(void *self) {
    pthread_mutex_lock(&air.lock);
    ring(((radio *)self)->rank);
    pthread_mutex_unlock(&air.lock);
}

/* Stay until everybody who is still there has confirmed everything. */
static void radio_destroy(void *self) {
    radio *r = (radio *)self;
    const uint64_t until = now_ns() + 5000 * MS;
    for (uint32_t peer = 0; peer < RANKS; ++peer)
        while (r->peers[peer].confirmed < r->peers[peer].written && !has_left(peer)
            && now_ns() < until) {
            sleep_until(r->rank, next_resend(r));
            pump(r);
        }
    pthread_mutex_lock(&air.lock);
    __atomic_store_n(&air.left[r->rank], true, __ATOMIC_RELEASE);
    for (packet *p = air.waiting[r->rank], *next; p; p = next) {
        next = p->next;
        free(p);
    }
    for (uint32_t peer = 0; peer < RANKS; ++peer)
        ring(peer);
    pthread_mutex_unlock(&air.lock);
    free(r);
}

/* ---- a program that knows nothing of radios -------------------------------------------------- */
#define COUNT 20000

static bool collectives(cdp_group *g, float *a, float *b) {
    const uint32_t me = cdp_rank(g), n = cdp_size(g);
    const float sum = (float)(n * (n + 1) / 2);
    bool right = true;
#define ALL(buffer, count, what)           \
    for (uint32_t i = 0; i < (count); ++i) \
    right = right && (buffer)[i] == (float)(what)
#define FILL(count, what)                  \
    for (uint32_t i = 0; i < (count); ++i) \
    a[i] = (float)(what)
#define RUN(call) right = (call) == CDP_OK && right
    FILL(COUNT, me + 1);
    RUN(cdp_allreduce(g, a, b, COUNT, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    ALL(b, COUNT, sum);
    RUN(cdp_reduce(g, a, b, COUNT, CDP_DTYPE_F32, CDP_REDUCE_MAX, 1));
    if (me == 1) ALL(b, COUNT, n);
    RUN(cdp_broadcast(g, a, COUNT, CDP_DTYPE_F32, 2));
    ALL(a, COUNT, 3);
    FILL(COUNT / n, me + 1);
    RUN(cdp_allgather(g, a, b, COUNT / n, CDP_DTYPE_F32));
    ALL(b, COUNT, i / (COUNT / n) + 1);
    RUN(cdp_gather(g, a, b, COUNT / n, CDP_DTYPE_F32, 3));
    RUN(cdp_scatter(g, b, a, COUNT / n, CDP_DTYPE_F32, 3));
    ALL(a, COUNT / n, me + 1);
    FILL(COUNT, i / (COUNT / n) + me);
    RUN(cdp_reduce_scatter(g, a, b, COUNT / n, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    ALL(b, COUNT / n, me * n + n * (n - 1) / 2);
    RUN(cdp_alltoall(g, a, b, COUNT / n, CDP_DTYPE_F32));
    ALL(b, COUNT, me + i / (COUNT / n));
    if (me == 0) RUN(cdp_send(g, a, COUNT, CDP_DTYPE_F32, 1, 7));
    if (me == 1) RUN(cdp_recv(g, b, COUNT, CDP_DTYPE_F32, 0, 7));
    if (me == 1) ALL(b, COUNT, i / (COUNT / n));
    RUN(cdp_barrier(g));
    return right;
}

static bool ddp_step(cdp_group *g, float *w) {
    cdp_param param = {.name = "w", .data = w, .count = COUNT};
    cdp_ddp *ddp;
    bool right = true;
    if (cdp_ddp_create(&(cdp_ddp_desc){.group = g, .params = &param, .param_count = 1}, &ddp)
        != CDP_OK)
        return false;
    RUN(cdp_ddp_backward_begin(ddp));
    for (uint32_t i = 0; i < COUNT; ++i)
        ((float *)cdp_ddp_grad(ddp, 0))[i] = (float)(i % 10 + 4 * cdp_rank(g));
    RUN(cdp_ddp_ready(ddp, 0));
    RUN(cdp_ddp_backward_end(ddp));
    ALL((float *)cdp_ddp_grad(ddp, 0), COUNT, i % 10 + 6);
    cdp_ddp_destroy(ddp);
    return right;
}

static void *rank_main(void *arg) {
    radio *r = (radio *)arg; /* the group's from here on */
    const uint32_t rank = r->rank;
    cdp_transport transport = {.self = r,
        .send = radio_send,
        .recv = radio_recv,
        .wait = radio_wait,
        .wake = radio_wake,
        .destroy = radio_destroy};
    static float memory[RANKS][2][COUNT];
    cdp_group *g;
    if (cdp_group_create(
            &(cdp_group_desc){
                .rank = rank, .world_size = RANKS, .transport = &transport, .timeout_ms = 60000},
            &g)
        != CDP_OK) {
        cdp_print_error(stderr);
        return arg;
    }
    const bool right =
        collectives(g, memory[rank][0], memory[rank][1]) && ddp_step(g, memory[rank][0]);
    printf("rank %u: every operation and a DDP step: %s (%llu times sent again)\n", rank,
        right ? "right" : "WRONG", (unsigned long long)r->resent);
    if (cdp_group_status(g) != CDP_OK) cdp_print_error(stderr);
    cdp_group_destroy(g);
    return right ? NULL : arg;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "custom_transport: ranks of one process over a bad radio; DICE chooses what it loses.\n"
            "usage: ./custom_transport [DICE]"))
        return 0;
    pthread_t threads[RANKS];
    void *wrong = NULL, *result;
    air.dice = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 0x9e3779b97f4a7c15ull | 1;
    pthread_mutex_init(&air.lock, NULL);
    for (uint32_t i = 0; i < RANKS; ++i) {
        radio *r = (radio *)calloc(1, sizeof *r);
        if (!r) return 1;
        r->rank = i;
        pthread_cond_init(&air.bell[i], NULL);
        if (pthread_create(&threads[i], NULL, rank_main, r) != 0) return 1;
    }
    for (uint32_t i = 0; i < RANKS; ++i) {
        pthread_join(threads[i], &result);
        wrong = result ? result : wrong;
    }
    printf("of %llu packets %llu were lost, %llu came twice, %llu too early\n",
        (unsigned long long)air.sent, (unsigned long long)air.lost,
        (unsigned long long)air.repeated, (unsigned long long)air.reordered);
    return wrong != NULL;
}
