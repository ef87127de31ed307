/* test_lend.c - what ranks read from each other's memory: that they do, and that nothing is read
   once it may be gone

   Buffers are mapped and unmapped for each operation, the moment that it is reported to have
   ended: a rank that still reads them then does not survive. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include "test.h"
#include "group_memory.h"

#include <pthread.h>
#include <sys/mman.h>

#define RANKS_MAX 5u
/* bytes of a message that is lent; up to 4 MiB they are sent ahead of the receiver */
#define LONG (5u << 20)

static cdp_hub *hub;
static uint32_t ranks;

static void open_hub(uint32_t n, uint64_t ring_bytes) {
    const cdp_hub_desc d = {.world_size = n, .ring_bytes = ring_bytes};
    ranks = n;
    if (!T_EQ(CDP_OK, cdp_hub_create(&d, &hub))) abort();
}

/* How often something was exposed; at the end nothing is. */
static uint64_t exposures(void) {
    uint64_t made = 0;
    for (uint32_t w = 0; w < ranks * ranks; ++w)
        for (uint32_t i = 0; i < CDP_EXPOSURES && hub->ways[w]; ++i)
            made += (__atomic_load_n(&hub->ways[w]->exposed[i].state, __ATOMIC_ACQUIRE) + 6) >> 3;
    return made;
}

static uint64_t close_hub(void) {
    const uint64_t made = exposures();
    for (uint32_t w = 0; w < ranks * ranks; ++w)
        for (uint32_t i = 0; i < CDP_EXPOSURES && hub->ways[w]; ++i)
            T_EQ(0, hub->ways[w]->exposed[i].state & CDP__STATE_BITS);
    cdp_hub_destroy(hub);
    return made;
}

/* The hub as a transport that can copy what is lent, but not show it. */
static uint32_t gets, refuse_at;
/* how long each exposure is: by owner, reader and index (atomic: a reader to whom nothing is
   exposed any more may still look) */
static uint64_t wholes[8][8][CDP_EXPOSURES];

static bool expose_noted(
    void *self, uint32_t peer, const void *data, uint64_t bytes, bool fresh, uint64_t *token) {
    const uint32_t me = ((cdp__hub_end *)self)->rank;
    const bool exposed = cdp__hub_expose(self, peer, data, bytes, fresh, token);
    if (exposed) __atomic_store_n(&wholes[me][peer][*token >> 32], bytes, __ATOMIC_RELAXED);
    return exposed;
}

static int64_t get(
    void *self, uint32_t peer, uint64_t token, uint64_t offset, void *dst, uint64_t bytes) {
    const uint32_t me = ((cdp__hub_end *)self)->rank;
    const uint64_t whole = __atomic_load_n(&wholes[peer][me][token >> 32], __ATOMIC_RELAXED);
    const uint8_t *at = (const uint8_t *)cdp__hub_map(self, peer, token, whole);
    if (!at) return 0;
    T(offset + bytes <= whole);
    memcpy(dst, at + offset, bytes);
    if (!cdp__hub_unmap(self, peer, token)) return 0;
    if (__atomic_add_fetch(&gets, 1, __ATOMIC_RELAXED) == refuse_at) return CDP_ERR_IO;
    return (int64_t)bytes;
}

static bool getting, lying, slow;

static uint32_t looking; /* ranks that are about to read */
static const void *look_long(void *self, uint32_t peer, uint64_t token, uint64_t bytes) {
    const void *p = cdp__hub_map(self, peer, token, bytes);
    __atomic_store_n(&looking, 1, __ATOMIC_RELEASE);
    test_sleep_ms(300);
    return p;
}

static int64_t lie(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    uint8_t bytes[CDP__HEAD_BYTES + CDP__REMOTE_BYTES];
    cdp_iov w;
    /* the message that says where the payload is */
    if (v[0].bytes < sizeof bytes || ((const uint8_t *)v[0].data)[5] != CDP__MESSAGE_REMOTE)
        return cdp__hub_send(self, peer, v, n);
    memcpy(bytes, v[0].data, sizeof bytes);
    ++bytes[CDP__HEAD_BYTES + 8];
    w.data = bytes;
    w.bytes = sizeof bytes;
    return cdp__hub_send(self, peer, &w, 1);
}

static cdp_group *open_rank(uint32_t r, const cdp_group_desc *like) {
    cdp_group_desc d = {.timeout_ms = 20000 * TEST_SLACK};
    cdp_group *g = NULL;
    cdp_transport t;
    if (like) d = *like;
    d.rank = r;
    d.world_size = ranks;
    d.hub = hub;
    d.expose_bytes = cdp__def(d.expose_bytes, 64 * 1024);
    if (getting || lying || slow) {
        memset(&t, 0, sizeof t);
        T_EQ(CDP_OK, cdp__hub_attach(hub, r, ranks, &t));
        if (getting) {
            t.remote.map = NULL;
            t.remote.unmap = NULL;
            t.remote.get = get;
            t.remote.expose = expose_noted;
        }
        if (lying) t.send = lie;
        if (slow) t.remote.map = look_long;
        d.transport = &t;
    }
    d.logger.level = CDP_LOG_SILENT;
    if (!T_EQ(CDP_OK, cdp_group_create(&d, &g))) abort();
    return g;
}

/* Memory is written and compared in blocks of this period: ThreadSanitizer looks at each block
   once, and at all of it. */
#define PERIOD 1000u
typedef struct period {
    float at[PERIOD];
} period;

static period period_of(float factor, float plus) {
    period x;
    for (uint32_t i = 0; i < PERIOD; ++i)
        x.at[i] = (float)i * factor + plus;
    return x;
}

static void *map(uint64_t bytes, uint32_t fill) {
    const period x = period_of(1, (float)fill);
    float *p =
        (float *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    for (uint64_t i = 0, n; i < bytes / 4; i += n) {
        n = bytes / 4 - i < PERIOD ? bytes / 4 - i : PERIOD;
        memcpy(p + i, x.at, n * sizeof *p);
    }
    return p;
}

/* `count` numbers of the period, from its element `at`. */
static bool same(const float *p, uint64_t count, const period *x, uint64_t at) {
    for (uint64_t i = 0, n; i < count; i += n) {
        const uint64_t from = (at + i) % PERIOD;
        n = count - i < PERIOD - from ? count - i : PERIOD - from;
        if (memcmp(p + i, x->at + from, n * sizeof *p) != 0) return false;
    }
    return true;
}

static bool holds(const void *p, uint64_t bytes, float factor, float plus) {
    const period x = period_of(factor, plus);
    return same((const float *)p, bytes / 4, &x, 0);
}

typedef void rank_body(uint32_t r, cdp_group *g);
static rank_body *body;
static const cdp_group_desc *likeness;

static void *rank_main(void *arg) {
    const uint32_t r = (uint32_t)(uintptr_t)arg;
    body(r, open_rank(r, likeness));
    return NULL;
}

/* Every rank on a thread; `b` destroys its group. */
static void run(uint32_t n, const cdp_group_desc *like, rank_body *b) {
    pthread_t t[RANKS_MAX];
    body = b;
    likeness = like;
    for (uint32_t r = 0; r < n; ++r)
        if (pthread_create(&t[r], NULL, rank_main, (void *)(uintptr_t)r)) abort();
    for (uint32_t r = 0; r < n; ++r)
        pthread_join(t[r], NULL);
}

/* ---- messages ---- */

static void long_messages(uint32_t r, cdp_group *g) {
    float *x = (float *)map(LONG, r), *y = (float *)map(LONG, 7);
    cdp_message got;
    cdp_work w;
    if (r == 0) {
        /* without anybody who receives */
        T_EQ(CDP_OK, cdp_send(g, x, 1000000, CDP_DTYPE_F32, 1, 1));
        T_EQ(0, exposures());
        T_EQ(CDP_OK, cdp_send_async(g, x, LONG / 4, CDP_DTYPE_F32, 1, 2, &w));
        test_sleep_ms(20);
        T_EQ(CDP_PENDING, cdp_work_test(w));
        T_EQ(CDP_ERR_STATE, cdp_work_cancel(w)); /* it is on its way */
    }
    T_EQ(CDP_OK, cdp_barrier(g));
    if (r == 0) {
        T_EQ(CDP_OK, cdp_work_wait(w));
        T_EQ(CDP_OK, cdp_send(g, x, LONG / 4, CDP_DTYPE_F32, 1, 3));
        munmap(x, LONG);
    } else {
        T_EQ(CDP_OK, cdp_recv(g, y, LONG / 4, CDP_DTYPE_F32, 0, 2));
        T(holds(y, LONG, 1, 0));
        T_EQ(CDP_OK, cdp_recv(g, y, 1000000, CDP_DTYPE_F32, 0, 1));
        T_EQ(CDP_OK, cdp_recv_any(g, x, LONG / 4, CDP_DTYPE_F32, CDP_ANY_RANK, 3, &got));
        T(got.source == 0 && got.count == LONG / 4 && holds(x, LONG, 1, 0));
        munmap(x, LONG);
    }
    T_EQ(CDP_OK,
        r ? cdp_send(g, y, LONG / 4, CDP_DTYPE_F32, 0, 3)
          : cdp_recv(g, y, LONG / 4, CDP_DTYPE_F32, 1, 3));
    T(holds(y, LONG, 1, 0));
    cdp_group_destroy(g);
    munmap(y, LONG);
}

TEST(long_messages_are_lent) {
    open_hub(2, 0);
    run(2, NULL, long_messages);
    T_EQ(3, close_hub());
}

static void sums(uint32_t r, cdp_group *g) {
    float *x = (float *)map(1u << 20, r);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, 1u << 18, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(holds(x, 1u << 20, (float)ranks, (float)(ranks * (ranks - 1) / 2)));
    cdp_group_destroy(g);
    munmap(x, 1u << 20);
}

TEST(lending_can_be_turned_off) {
    cdp_group_desc like = {.timeout_ms = 20000 * TEST_SLACK, .expose_bytes = UINT64_MAX};
    open_hub(4, 0);
    run(4, &like, sums);
    T_EQ(0, close_hub());
    like.expose_bytes = 0;
    open_hub(4, 0);
    run(4, &like, sums);
    T_EQ(2 * 3 * 4, close_hub()); /* a part of everybody's to everybody, and back */
}

/* Receives that take their turns must not keep those waiting who are to answer. */
static void long_sums(uint32_t r, cdp_group *g) {
    const uint64_t bytes = ranks * 5ull << 20;
    float *x = (float *)map(bytes, r);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, bytes / 4, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(holds(x, bytes, (float)ranks, (float)(ranks * (ranks - 1) / 2)));
    cdp_group_destroy(g);
    munmap(x, bytes);
}

TEST(copies_longer_than_the_window) {
    const cdp_group_desc like = {.timeout_ms = 20000 * TEST_SLACK, .expose_bytes = UINT64_MAX};
    open_hub(4, 0);
    run(4, &like, long_sums);
    T_EQ(0, close_hub());
}

static void many_messages(uint32_t r, cdp_group *g) {
    enum {
        N = CDP_EXPOSURES + 8
    };
    float *x = (float *)map(LONG, 3 * !r);
    cdp_work w[N];
    for (uint32_t i = 0; i < N && r == 0; ++i)
        T_EQ(CDP_OK, cdp_send_async(g, x, LONG / 4, CDP_DTYPE_F32, 1, i, &w[i]));
    for (uint32_t i = 0; i < N && r == 1; ++i) {
        memset(x, 0, LONG);
        T_EQ(CDP_OK, cdp_recv(g, x, LONG / 4, CDP_DTYPE_F32, 0, i));
        T(holds(x, LONG, 1, 3));
    }
    for (uint32_t i = 0; i < N && r == 0; ++i)
        T_EQ(CDP_OK, cdp_work_wait(w[i]));
    munmap(x, LONG);
    cdp_group_destroy(g);
}

TEST(what_cannot_be_lent_is_copied) {
    uint64_t made;
    open_hub(2, 0);
    run(2, NULL, many_messages);
    made = close_hub();
    T(made >= CDP_EXPOSURES && made < CDP_EXPOSURES + 8);
}

TEST(cancelled_before_anything_moved) {
    const cdp_group_desc like = {.timeout_ms = 20000 * TEST_SLACK, .no_thread = true};
    uint8_t *x = (uint8_t *)map(LONG, 0), *y = (uint8_t *)map(1 << 20, 0);
    cdp_group *g[2];
    cdp_work first, second, in;
    open_hub(2, 4096);
    for (uint32_t r = 0; r < 2; ++r)
        g[r] = open_rank(r, &like);
    T_EQ(CDP_OK, cdp_send_async(g[0], y, 1 << 20, CDP_DTYPE_U8, 1, 1, &first)); /* fills the ring */
    T_EQ(CDP_OK, cdp_send_async(g[0], x, LONG, CDP_DTYPE_U8, 1, 2, &second));
    T_EQ(1, exposures());
    T_EQ(CDP_OK, cdp_work_cancel(second));
    munmap(x, LONG);
    x = (uint8_t *)map(LONG, 5);
    T_EQ(CDP_OK, cdp_send_async(g[0], x, LONG, CDP_DTYPE_U8, 1, 2, &second));
    T_EQ(CDP_OK, cdp_recv_async(g[1], y, 1 << 20, CDP_DTYPE_U8, 0, 1, &in));
    /* both are looked at */
    while ((int)(cdp_work_test(in) == CDP_PENDING) | (int)(cdp_work_test(first) == CDP_PENDING)) {
    }
    uint8_t *z = (uint8_t *)map(LONG, 9);
    T_EQ(CDP_OK, cdp_recv_async(g[1], z, LONG, CDP_DTYPE_U8, 0, 2, &in));
    while ((int)(cdp_work_test(in) == CDP_PENDING) | (int)(cdp_work_test(second) == CDP_PENDING)) {
    }
    T_EQ(CDP_OK, cdp_work_test(in));
    T_EQ(CDP_OK, cdp_work_test(second));
    T(memcmp(x, z, LONG) == 0);
    for (uint32_t r = 0; r < 2; ++r)
        cdp_group_destroy(g[r]);
    T_EQ(2, close_hub());
    munmap(x, LONG);
    munmap(y, 1 << 20);
    munmap(z, LONG);
}

/* ---- rows, and sends that may wait for their receivers ---- */

/* Rows as long as `row`, and gaps of 5 elements, which stay as they were. */
static void receive_rows(cdp_group *g, uint64_t count, uint64_t row, bool rendezvous) {
    const uint64_t step = row + 5, room = (count / row + 1) * step * 4;
    float *y = (float *)map(room, 7);
    const cdp_transfer t = {.receive = true, .data = y, .count = count, .row = row, .step = step};
    const period sent = period_of(1, 3), before = period_of(1, 7);
    bool rows = true, gaps = true;
    cdp_work w;
    if (T_EQ(CDP_OK, cdp_batch(g, &t, 1, &w))) T_EQ(CDP_OK, cdp_work_wait(w));
    for (uint64_t i = 0, at = 0; i < room / 4; i += step, at += row) {
        const uint64_t left = at < count ? count - at : 0, n = left < row ? left : row;
        rows = rows && same(y + i, n, &sent, at);
        gaps = gaps && same(y + i + n, step - n, &before, i + n);
    }
    if (!T(rows && gaps))
        printf("  %llu elements in rows of %llu, rendezvous %d\n", (unsigned long long)count,
            (unsigned long long)row, (int)rendezvous);
    munmap(y, room);
}

static void rows(uint32_t r, cdp_group *g) {
    static const uint64_t counts[] = {1, 900, 50001, LONG / 4 + 3};
    /* ThreadSanitizer looks at each row */
    static const uint64_t lengths[] = {TEST_THREADS_WATCHED ? 9 : 1, 7, 1000, 32768, LONG};
    float *x = (float *)map(LONG + 16, 3);
    for (uint32_t c = 0; c < 4; ++c)
        for (uint32_t k = 0; k < 10; ++k) {
            const cdp_transfer t = {
                .data = x, .count = counts[c], .peer = 1, .rendezvous = k % 2 == 1};
            cdp_work w;
            if (r == 1)
                receive_rows(g, counts[c], lengths[k / 2], t.rendezvous);
            else if (T_EQ(CDP_OK, cdp_batch(g, &t, 1, &w)))
                T_EQ(CDP_OK, cdp_work_wait(w));
        }
    munmap(x, LONG + 16);
    cdp_group_destroy(g);
}

/* Rows of mapped memory, of memory that the transport copies (once it gives up in the middle),
   and of what arrives through the ring. */
TEST(receives_into_rows) {
    const cdp_group_desc never = {.timeout_ms = 20000 * TEST_SLACK, .expose_bytes = UINT64_MAX};
    open_hub(2, 0);
    run(2, NULL, rows);
    T_EQ(5 + 10, close_hub()); /* 200 KB that may wait, and all that is long */
    for (getting = true, refuse_at = 0; refuse_at < 20; refuse_at += 7) {
        gets = 0;
        open_hub(2, 0);
        run(2, NULL, rows);
        T_EQ(15, close_hub());
        T(gets > 40);
    }
    getting = false;
    refuse_at = 0;
    open_hub(2, 4096);
    run(2, &never, rows);
    T_EQ(0, close_hub());
}

/* An array so large that rows are written past the caches: also rows that are not aligned. */
static void large_rows(uint32_t r, cdp_group *g) {
    const uint64_t count = 1u << 20;
    float *x = (float *)map(count * 4, 3);
    for (uint32_t k = 0; k < 3; ++k) {
        const uint64_t row = 256 - k, step = 4 * row;
        const cdp_transfer t = {.data = r ? map(count * 16 + 4096, 7) : x,
            .receive = r == 1,
            .count = count,
            .peer = !r,
            .row = r ? row : 0,
            .step = r ? step : 0,
            .rendezvous = r == 0};
        cdp_work w;
        bool right = true;
        if (T_EQ(CDP_OK, cdp_batch(g, &t, 1, &w))) T_EQ(CDP_OK, cdp_work_wait(w));
        if (!r) continue;
        for (uint64_t i = 0; i < count; ++i)
            right = right && ((float *)t.data)[i / row * step + i % row] == (float)(i % 1000 + 3);
        for (uint64_t i = 0; i < count / row; ++i)
            right =
                right && ((float *)t.data)[i * step + row] == (float)((i * step + row) % 1000 + 7);
        T(right);
        munmap(t.data, count * 16 + 4096);
    }
    munmap(x, count * 4);
    cdp_group_destroy(g);
}

TEST(receives_into_rows_of_a_large_array) {
    open_hub(2, 0);
    run(2, NULL, large_rows);
    T_EQ(3, close_hub());
}

/* 200 KB leave before the receiver asks for them, unless they may wait. */
TEST(a_send_that_may_wait_waits) {
    const cdp_group_desc like = {.timeout_ms = 20000 * TEST_SLACK, .no_thread = true};
    const uint64_t bytes = 200u << 10;
    uint8_t *x = (uint8_t *)map(bytes, 0), *y = (uint8_t *)map(2 * bytes, 9);
    cdp_group *g[2];
    cdp_work out[2], in[2];
    open_hub(2, 1 << 20);
    for (uint32_t r = 0; r < 2; ++r)
        g[r] = open_rank(r, &like);
    for (uint32_t i = 0; i < 2; ++i) {
        const cdp_transfer t = {.data = x,
            .count = bytes,
            .dtype = CDP_DTYPE_U8,
            .peer = 1,
            .tag = i,
            .rendezvous = i == 1};
        T_EQ(CDP_OK, cdp_batch(g[0], &t, 1, &out[i]));
    }
    for (uint32_t i = 0; i < 1000; ++i)
        T_EQ(CDP_PENDING, cdp_work_test(out[1]));
    T_EQ(CDP_OK, cdp_work_test(out[0]));
    T_EQ(1, exposures());
    for (uint32_t i = 0; i < 2; ++i)
        T_EQ(CDP_OK, cdp_recv_async(g[1], y + i * bytes, bytes, CDP_DTYPE_U8, 0, i, &in[i]));
    while ((int)(cdp_work_test(in[0]) == CDP_PENDING) | (int)(cdp_work_test(in[1]) == CDP_PENDING)
        | (int)(cdp_work_test(out[1]) == CDP_PENDING)) {
    }
    T(memcmp(x, y, bytes) == 0 && memcmp(x, y + bytes, bytes) == 0);
    for (uint32_t r = 0; r < 2; ++r)
        cdp_group_destroy(g[r]);
    T_EQ(1, close_hub());
    munmap(x, bytes);
    munmap(y, 2 * bytes);
}

/* ---- failures: memory goes away as soon as the operation has ended ---- */

static uint64_t dice = 1;
static uint32_t moment_us, victim;
static cdp_group *aborted;
static uint64_t abort_ns; /* when */

static void *abort_main(void *arg) {
    const uint64_t until = test_now_ns() + moment_us * 1000ull;
    (void)arg;
    while (test_now_ns() < until) {
    }
    __atomic_store_n(&abort_ns, test_now_ns(), __ATOMIC_RELEASE);
    cdp_group_abort(aborted, "enough");
    return NULL;
}

#define BIG (1u << 20)
static void until_aborted(uint32_t r, cdp_group *g) {
    pthread_t t;
    cdp_status st = cdp_barrier(g);
    if (r == victim) {
        aborted = g;
        if (pthread_create(&t, NULL, abort_main, NULL)) abort();
    }
    for (uint32_t i = 0; st == CDP_OK; ++i) {
        float *x = (float *)map(BIG, r), *y = (float *)map(BIG, 0);
        switch (i % 3) {
        case 0: st = cdp_allreduce(g, x, y, BIG / 4, CDP_DTYPE_F32, CDP_REDUCE_SUM); break;
        case 1: st = cdp_allreduce(g, NULL, y, BIG / 4, CDP_DTYPE_F32, CDP_REDUCE_MAX); break;
        default: st = cdp_broadcast(g, x, BIG / 4, CDP_DTYPE_F32, i % ranks); break;
        }
        munmap(x, BIG);
        munmap(y, BIG);
    }
    T_EQ(CDP_ERR_ABORTED, st);
    /* and the machine may be busy */
    T_WITHIN(100 + 400, test_now_ns() - __atomic_load_n(&abort_ns, __ATOMIC_ACQUIRE));
    if (r == victim) pthread_join(t, NULL);
    cdp_group_destroy(g);
}

TEST(abort_at_random_moments) {
    for (uint32_t i = 0; i < (TEST_SLOW ? 15u : 60u) && !test__now.failed_checks; ++i) {
        const cdp_group_desc like = {.timeout_ms = 20000 * TEST_SLACK, .no_thread = i % 3 == 0};
        open_hub(2 + i % 3, 0);
        victim = i % ranks;
        moment_us = (uint32_t)(test_random(&dice) % 4000);
        run(ranks, &like, until_aborted);
        close_hub();
    }
}

/* Rank 1 has taken hold of what rank 0 lends, and is not given the processor for longer than a
   failure is passed on. */
static void stalled(uint32_t r, cdp_group *g) {
    float *x = (float *)map(LONG, r);
    cdp_work w;
    if (r == 0) {
        T_EQ(CDP_OK, cdp_send_async(g, x, LONG / 4, CDP_DTYPE_F32, 1, 1, &w));
        for (uint32_t i = 0; i < 10000 && !__atomic_load_n(&looking, __ATOMIC_ACQUIRE); ++i)
            test_sleep_ms(1);
        cdp_group_abort(g, "enough");
        T_EQ(CDP_ERR_ABORTED, cdp_work_wait(w));
    } else {
        T_EQ(CDP_ERR_ABORTED, cdp_recv(g, x, LONG / 4, CDP_DTYPE_F32, 0, 1));
    }
    munmap(x, LONG);
    cdp_group_destroy(g);
}

TEST(who_reads_is_waited_for) {
    open_hub(2, 0);
    slow = true;
    run(2, NULL, stalled);
    slow = false;
    T_EQ(1, close_hub());
}

static void leave_while_lent(uint32_t r, cdp_group *g) {
    float *x = (float *)map(8u << 20, 0);
    cdp_work w = {NULL, 0};
    cdp_status st = CDP_OK;
    T_EQ(CDP_OK, cdp_barrier(g));
    if (r == 0)
        st = cdp_send_async(g, x, (8u << 20) / 4, CDP_DTYPE_F32, 1, 1, &w);
    else if (r == 1)
        st = cdp_recv_async(g, x, (8u << 20) / 4, CDP_DTYPE_F32, 0, 1, &w);
    if (r == victim) {
        const uint64_t until = test_now_ns() + moment_us * 1000ull;
        while (test_now_ns() < until) {
        }
    } else {
        st = cdp_work_wait(w);
        test_check(st == CDP_OK || st == CDP_ERR_PEER_LOST, __FILE__, __LINE__, "%s",
            cdp_last_error()->text);
        if (st == CDP_OK)
            T(holds(x, 8u << 20, 1, 0));
        else
            T_EQ((int)victim, cdp_last_error()->peer);
    }
    cdp_group_destroy(g);
    munmap(x, 8u << 20);
}

TEST(a_rank_leaves_while_it_lends_or_reads) {
    for (uint32_t i = 0; i < (TEST_SLOW ? 10u : 60u) && !test__now.failed_checks; ++i) {
        open_hub(2, 0);
        victim = i % 2;
        moment_us = (uint32_t)(test_random(&dice) % 3000);
        run(ranks, NULL, leave_while_lent);
        close_hub();
    }
}

static void different(uint32_t r, cdp_group *g) {
    float *x = (float *)map(BIG, r), *y = (float *)map(BIG, 0);
    const cdp_status st =
        cdp_allreduce(g, x, y, BIG / 4, CDP_DTYPE_F32, r ? CDP_REDUCE_SUM : CDP_REDUCE_MAX);
    munmap(x, BIG);
    munmap(y, BIG);
    T_EQ(CDP_ERR_MISMATCH, st);
    T_TEXT("f32 sum", cdp_last_error()->text);
    T_TEXT("f32 max", cdp_last_error()->text);
    cdp_group_destroy(g);
}

static void different_message(uint32_t r, cdp_group *g) {
    float *x = (float *)map(LONG, r);
    cdp_status st = r ? cdp_recv(g, x, LONG / 4 - 1, CDP_DTYPE_F32, 0, 1)
                      : cdp_send(g, x, LONG / 4, CDP_DTYPE_F32, 1, 1);
    munmap(x, LONG);
    T_EQ(CDP_ERR_MISMATCH, st);
    T_TEXT("of 1310719 x f32", cdp_last_error()->text);
    cdp_group_destroy(g);
}

TEST(mismatch_of_what_is_lent) {
    for (uint32_t n = 2; n <= RANKS_MAX; ++n) {
        open_hub(n, 0);
        run(n, NULL, different);
        T(close_hub() > 0);
    }
    open_hub(2, 0);
    run(2, NULL, different_message);
    T_EQ(1, close_hub());
}

static void never_read(uint32_t r, cdp_group *g) {
    float *x = (float *)map(LONG, r);
    const uint64_t start = test_now_ns();
    cdp_status st;
    if (r == 0) {
        st = cdp_send(g, x, LONG / 4, CDP_DTYPE_F32, 1, 1);
        munmap(x, LONG);
        T_EQ(CDP_ERR_TIMEOUT, st);
        T_EQ(1, cdp_last_error()->peer);
        T_WITHIN(200 + 100, test_now_ns() - start);
    } else {
        test_sleep_ms(500 * TEST_SLACK);
        st = cdp_recv(g, x, LONG / 4, CDP_DTYPE_F32, 0, 1); /* it is too late */
        T(st == CDP_ERR_TIMEOUT || st == CDP_ERR_PEER_LOST);
        munmap(x, LONG);
    }
    cdp_group_destroy(g);
}

TEST(nobody_reads_it_in_time) {
    const cdp_group_desc like = {.timeout_ms = 200 * TEST_SLACK};
    open_hub(2, 0);
    run(2, &like, never_read);
    T_EQ(1, close_hub());
}

/* ---- other transports ---- */

static void got_by_copy(uint32_t r, cdp_group *g) {
    float *x = (float *)memory_of_group(g, BIG), *y = (float *)map(BIG, 0);
    for (uint32_t i = 0; i < BIG / 4; ++i)
        x[i] = (float)(i % 1000 + r);
    cdp_status st = cdp_allreduce(g, x, y, BIG / 4, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (st == CDP_OK) T(holds(y, BIG, (float)ranks, (float)(ranks * (ranks - 1) / 2)));
    if (st == CDP_OK) st = cdp_allreduce(g, NULL, x, BIG / 4, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (st == CDP_OK) T(memcmp(x, y, BIG) == 0);
    munmap(y, BIG);
    T_EQ(CDP_OK, st);
    cdp_group_free(g, x);
    cdp_group_free(g, NULL);
    cdp_group_destroy(g);
}

static void with_get(uint32_t n, uint32_t refuse) {
    gets = 0;
    refuse_at = refuse;
    open_hub(n, 0);
    getting = true;
    run(n, NULL, got_by_copy);
    getting = false;
    T(gets > 0);
    close_hub();
}

TEST(a_transport_that_copies) {
    with_get(2, 0);
    with_get(3, 0);
    with_get(5, 0);
    /* what cannot be read, from some slice on, is sent after all */
    for (uint32_t i = 1; i < 40; ++i)
        with_get(2 + i % 4, i);
}

static void lied_to(uint32_t r, cdp_group *g) {
    float *x = (float *)map(BIG, r);
    T_EQ(CDP_ERR_MISMATCH, cdp_allreduce(g, NULL, x, BIG / 4, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T_TEXT("sent 524289 bytes for round 2, which is not what this rank expects",
        cdp_last_error()->text);
    munmap(x, BIG);
    cdp_group_destroy(g);
}

TEST(another_length_than_expected) {
    open_hub(2, 0);
    lying = true;
    run(2, NULL, lied_to);
    lying = false;
    T_EQ(2, close_hub());
}

TEST(what_was_never_lent) {
    cdp_transport a, b;
    uint64_t token, same = 0, other = 0; /* tokens are counted for each peer */
    uint8_t x[100];
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    open_hub(3, 0);
    T_EQ(CDP_OK, cdp__hub_attach(hub, 0, 3, &a));
    T_EQ(CDP_OK, cdp__hub_attach(hub, 1, 3, &b));
    T(a.remote.expose(a.self, 1, x, 100, false, &token)
        && a.remote.expose(a.self, 2, x, 100, true, &same)
        && a.remote.expose(a.self, 2, x, 100, true, &other) && token == same && token != other);
    T(b.remote.map(b.self, 0, token, 100) == x);
    T(!b.remote.map(b.self, 0, token, 100)); /* once at a time */
    T(b.remote.unmap(b.self, 0, token));
    T(!b.remote.map(b.self, 0, token, 99) && !b.remote.map(b.self, 0, token, 101)
        && !b.remote.map(b.self, 0, other, 100) && !b.remote.map(b.self, 2, token, 100));
    T(!b.remote.map(b.self, 0, token + 1, 100) && !b.remote.map(b.self, 0, token + 4, 100)
        && !b.remote.map(b.self, 0, token + 8, 100)
        && !b.remote.map(b.self, 0, token & 0xffffffffu, 100) == ((token >> 32) != 0));
    T(!b.remote.map(b.self, 0, UINT64_MAX, 100)
        && !b.remote.map(b.self, 0, (uint64_t)CDP_EXPOSURES << 32 | (uint32_t)token, 100)
        && !b.remote.map(b.self, 0, 0, 100));
    if (!(token >> 32)) b.remote.unmap(b.self, 0, token);
    a.remote.revoke(a.self, 1, token);
    T(!b.remote.map(b.self, 0, token, 100));
    a.remote.revoke(a.self, 2, other);
    a.remote.revoke(a.self, 2, same);
    a.destroy(a.self);
    b.destroy(b.self);
    T_EQ(3, close_hub());
}

static void sleep_in_hub(void *arg) {
    cdp_group *g = (cdp_group *)arg;
    cdp_lock_acquire(&g->w->lock);
    (void)g->w->transport.wait(
        g->w->transport.self, &g->w->lock, cdp_os_default()->now_ns(NULL) + 20000000000ull);
    cdp_lock_release(&g->w->lock);
}

/* A rank that rang for an earlier sleep disarms the doorbell only in the next one, and wakes it
   for nothing: whoever rings then must still be heard. */
TEST(a_late_ring_does_not_disarm_the_doorbell) {
    const cdp_os *os = cdp_os_default();
    const uint64_t from = test_now_ns();
    cdp_group_desc d = {.rank = 0, .world_size = 2, .no_thread = true};
    cdp_group *g;
    open_hub(2, 0);
    d.hub = hub;
    if (!T_EQ(CDP_OK, cdp_group_create(&d, &g))) return;
    cdp__hub_rank *r = &hub->ranks[0];
    void *thread = os->threads.start(os, sleep_in_hub, g);
    while (!__atomic_load_n(&r->bell.wants, __ATOMIC_SEQ_CST))
        test_sleep_ms(1);
    __atomic_store_n(&r->bell.wants, 0, __ATOMIC_SEQ_CST); /* what a late cdp__hub_ring() does */
    cdp__hub_wake_rank(hub, r);
    test_sleep_ms(50);
    cdp__hub_ring(hub, 0);
    os->threads.join(os, thread);
    T(test_now_ns() - from < 10000000000ull);
    cdp_group_destroy(g);
    (void)close_hub();
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_late_ring_does_not_disarm_the_doorbell", a_late_ring_does_not_disarm_the_doorbell, 30},
        {"long_messages_are_lent", long_messages_are_lent, 60},
        {"lending_can_be_turned_off", lending_can_be_turned_off, 60},
        {"copies_longer_than_the_window", copies_longer_than_the_window, 60},
        {"what_cannot_be_lent_is_copied", what_cannot_be_lent_is_copied, 60},
        {"cancelled_before_anything_moved", cancelled_before_anything_moved, 60},
        {"receives_into_rows", receives_into_rows, 120},
        {"receives_into_rows_of_a_large_array", receives_into_rows_of_a_large_array, 60},
        {"a_send_that_may_wait_waits", a_send_that_may_wait_waits, 60},
        {"abort_at_random_moments", abort_at_random_moments, 120},
        {"who_reads_is_waited_for", who_reads_is_waited_for, 60},
        {"a_rank_leaves_while_it_lends_or_reads", a_rank_leaves_while_it_lends_or_reads, 120},
        {"mismatch_of_what_is_lent", mismatch_of_what_is_lent, 60},
        {"nobody_reads_it_in_time", nobody_reads_it_in_time, 60},
        {"a_transport_that_copies", a_transport_that_copies, 60},
        {"another_length_than_expected", another_length_than_expected, 60},
        {"what_was_never_lent", what_was_never_lent, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
