/* Groups over the hub: all ranks live in one thread and are polled in turn, also with
   CDP_NO_THREADS. test_group_threads.c: ranks that are threads. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include <sys/wait.h>

#include <errno.h>
#include <math.h>
#include <sys/resource.h>

/* ---- ranks polled in turn ---- */

static void run_polled(world *w, const call *calls, uint32_t count, uint64_t *state) {
    call_memory *m = (call_memory *)calloc((size_t)count * w->n, sizeof *m);
    cdp_work *work = (cdp_work *)calloc((size_t)count * w->n, sizeof *work);
    uint32_t left = w->n;
    for (uint32_t r = 0; r < w->n; ++r)
        for (uint32_t k = 0; k < count; ++k) {
            const uint32_t at = r * count + k;
            call_fill(&calls[k], w->n, r, &m[at]);
            const cdp_request rq = call_request(&calls[k], &m[at]);
            T_EQ(CDP_OK, cdp_start(w->group[r], &rq, &work[at]));
        }
    for (uint32_t turn = 0; left && turn < 10000000; ++turn) {
        const uint32_t r = state ? (uint32_t)(test_random(state) % w->n) : turn % w->n;
        if (!T_EQ(CDP_OK, cdp_poll(w->group[r], 0))) break;
        left = 0;
        for (uint32_t i = 0; i < w->n; ++i)
            left += work[i * count + count - 1].group->queue.completed
                < work[i * count + count - 1].seq;
    }
    T_EQ(0, left);
    for (uint32_t r = 0; r < w->n; ++r)
        for (uint32_t k = 0; k < count; ++k) {
            T_EQ(CDP_OK, cdp_work_test(work[r * count + k]));
            T_EQ(CDP_OK, cdp_work_wait(work[r * count + k]));
            call_check(&calls[k], w->n, r, &m[r * count + k]);
        }
    free(m);
    free(work);
}

static cdp_group_desc no_thread_desc(void) {
    cdp_group_desc d;
    memset(&d, 0, sizeof d);
    d.no_thread = true;
    return d;
}

TEST(polled_in_turn_every_call) {
    const cdp_group_desc like = no_thread_desc();
    for (int s = 0; s < WORLD_SIZES; s += TEST_SLOW ? 3 : 1) {
        world w;
        call c;
        if (TEST_THREADS_WATCHED && s) return; /* one thread: it has nothing to see here */
        if (!world_open(&w, world_sizes[s], &like, 0)) return;
        for (uint32_t k = 0; call_number(k, w.n, 5000, &c); ++k)
            run_polled(&w, &c, 1, NULL);
        world_close(&w);
    }
}

TEST(polled_in_random_turns_with_all_settings) {
    uint64_t state = 11;
    const int runs = TEST_SLOW || !test_more() ? 50 : 150;
    /* one thread: ThreadSanitizer has nothing to see here */
    for (int run = 0; run < (TEST_THREADS_WATCHED ? 1 : runs); ++run) {
        static const uint64_t rings[] = {1, 7, 64, 500, 4096, 0}, pieces[] = {1, 13, 48, 1000, 0},
                              small[] = {1, 100, 1000000}, windows[] = {4096, 5000, 0};
        cdp_group_desc like = no_thread_desc();
        call calls[20];
        world w;
        const uint32_t n = 1 + (uint32_t)(test_random(&state) % 8),
                       count = 1 + (uint32_t)(test_random(&state) % 20);
        const uint64_t ring = rings[test_random(&state) % 6];
        like.piece_bytes = pieces[test_random(&state) % 5];
        like.small_bytes = small[test_random(&state) % 3];
        like.window_bytes = windows[run % 3];
        like.expose_bytes = run % 2 ? UINT64_MAX : 0;
        like.timeout_ms = 600000; /* many turns, on a busy machine */
        for (uint32_t k = 0; k < count; ++k)
            calls[k] = call_random(&state, n, ring && ring < 100 ? 40 : 1500);
        if (!world_open(&w, n, &like, ring)) return;
        run_polled(&w, calls, count, &state);
        world_close(&w);
    }
}

/* What a rank has not asked for takes as much of its memory as the window allows, and arrives. */
TEST(unexpected_data_fits_the_window) {
    static const uint64_t windows[] = {4096, 10000, 1 << 20, 0};
    static uint8_t from[3000000], to[3000000];
    for (uint32_t k = 0; k < sizeof from; ++k)
        from[k] = (uint8_t)(k * 7 >> 3);
    for (uint32_t i = 0; i < 4; ++i) {
        cdp_group_desc like = no_thread_desc();
        const uint64_t limit = windows[i] ? windows[i] : CDP__WINDOW;
        world w;
        cdp_work sent, got, wanted, told;
        uint8_t late = 0;
        like.window_bytes = windows[i];
        like.expose_bytes = UINT64_MAX;
        if (!world_open(&w, 2, &like, 0)) return;
        T_EQ(limit, cdp_group_desc_of(w.group[0])->window_bytes);
        memset(to, 0, sizeof to);
        /* a rank that waits for another message reads what comes before it */
        T_EQ(CDP_OK, cdp_recv_async(w.group[1], &late, 1, CDP_DTYPE_U8, 0, 5, &wanted));
        T_EQ(CDP_OK, cdp_broadcast_async(w.group[0], from, sizeof from, CDP_DTYPE_U8, 0, &sent));
        for (uint32_t turn = 0; turn < 200; ++turn)
            for (uint32_t r = 0; r < 2; ++r)
                T_EQ(CDP_OK, cdp_poll(w.group[r], 0));
        const uint64_t used = w.group[1]->streams[0].early_used;
        T(used <= limit && used > (limit < sizeof from ? limit / 2 : sizeof from));
        T_EQ(CDP_OK, cdp_broadcast_async(w.group[1], to, sizeof to, CDP_DTYPE_U8, 0, &got));
        for (uint64_t until = test_until_ns(20000);
             cdp_work_test(got) == CDP_PENDING && test_now_ns() < until;)
            for (uint32_t r = 0; r < 2; ++r)
                (void)cdp_poll(w.group[r], 0);
        T_EQ(CDP_OK, cdp_work_wait(got));
        T_EQ(CDP_OK, cdp_work_wait(sent));
        T(memcmp(from, to, sizeof to) == 0);
        T_EQ(CDP_OK, cdp_send_async(w.group[0], from + 100, 1, CDP_DTYPE_U8, 1, 5, &told));
        T_EQ(CDP_OK, cdp_work_wait(told));
        T_EQ(CDP_OK, cdp_work_wait(wanted));
        T_EQ(from[100], late);
        world_close(&w);
    }
}

/* A sender with a smaller window asks for credit before its receiver, which stores far more, has
   read anything: it is answered all the same, and once only. Headers alone are read, too. */
TEST(ranks_with_different_windows) {
    static uint8_t from[32768], to[32768];
    for (uint32_t bytes = 0; bytes <= sizeof from; bytes += sizeof from) {
        const uint32_t times = bytes ? 1 : 300;
        const cdp_hub_desc h = {.world_size = 2};
        cdp_hub *hub;
        cdp_group *g[2];
        cdp_work sent[300], got[300], wanted;
        uint8_t late;
        if (cdp_hub_create(&h, &hub) != CDP_OK) abort();
        for (uint32_t r = 0; r < 2; ++r) {
            cdp_group_desc d = no_thread_desc();
            d.hub = hub;
            d.rank = r;
            d.world_size = 2;
            d.window_bytes = r && bytes ? 0 : 4096;
            d.expose_bytes = UINT64_MAX;
            d.max_pending = 1000;
            if (cdp_group_create(&d, &g[r]) != CDP_OK) abort();
        }
        memset(from, 7, sizeof from);
        memset(to, 0, sizeof to);
        T_EQ(CDP_OK, cdp_recv_async(g[1], &late, 1, CDP_DTYPE_U8, 0, 5, &wanted));
        for (uint32_t i = 0; i < times; ++i)
            T_EQ(CDP_OK, cdp_send_async(g[0], from, bytes, CDP_DTYPE_U8, 1, 0, &sent[i]));
        for (uint32_t turn = 0; turn < 400; ++turn)
            T_EQ(CDP_OK, cdp_poll(g[turn % 2], 0));
        for (uint32_t i = 0; i < times; ++i)
            T_EQ(CDP_OK, cdp_recv_async(g[1], to, bytes, CDP_DTYPE_U8, 0, 0, &got[i]));
        for (uint64_t until = test_until_ns(5000);
             cdp_work_test(got[times - 1]) == CDP_PENDING && test_now_ns() < until;)
            for (uint32_t r = 0; r < 2; ++r)
                (void)cdp_poll(g[r], 0);
        T_EQ(CDP_OK, cdp_work_test(got[times - 1]));
        T_EQ(CDP_OK, cdp_work_test(sent[times - 1]));
        T(memcmp(from, to, bytes) == 0);
        for (uint32_t r = 0; r < 2; ++r)
            cdp_group_destroy(g[r]);
        cdp_hub_destroy(hub);
    }
}

TEST(a_window_out_of_range) {
    static const uint64_t wrong[] = {1, 4095, CDP__WINDOW + 1, UINT64_MAX};
    cdp_group_desc d = no_thread_desc();
    cdp_group *g;
    d.world_size = 1;
    for (uint32_t i = 0; i < 4; ++i) {
        d.window_bytes = wrong[i];
        T_EQ(CDP_ERR_INVALID, cdp_group_create(&d, &g));
        T_TEXT("is not in 4096 .. 4194304; 0 is the default", cdp_last_error()->text);
    }
}

TEST(polled_many_in_flight) {
    const cdp_group_desc like = no_thread_desc();
    uint64_t state = 12;
    call calls[300]; /* more than the queue has room for at first */
    world w;
    if (!world_open(&w, 3, &like, 0)) return;
    for (uint32_t k = 0; k < 300; ++k)
        calls[k] = call_random(&state, 3, 200);
    for (int again = 0; again < 3; ++again)
        run_polled(&w, calls, 300, &state);
    world_close(&w);
}

TEST(reductions_larger_than_the_stage) {
    const cdp_group_desc like = no_thread_desc();
    call c;
    memset(&c, 0, sizeof c);
    c.kind = CDP_COLL_ALLREDUCE;
    c.seed = 99;
    for (int d = CDP_DTYPE_F32; d <= CDP_DTYPE_U8; ++d)
        for (uint32_t n = 2; n < 4; ++n) {
            world w;
            c.dtype = (cdp_dtype)d;
            c.op = d % 2 ? CDP_REDUCE_SUM : CDP_REDUCE_AVG;
            c.count = n * (CDP__STAGE_BYTES / cdp_dtype_size(c.dtype) * 3 / 2 + 1);
            /* a ring that wraps in the middle of elements */
            if (!world_open(&w, n, &like, 1000003)) return;
            run_polled(&w, &c, 1, NULL);
            world_close(&w);
        }
}

TEST(one_rank_needs_nobody) {
    cdp_group_desc d;
    cdp_group *g;
    float in[3] = {1, 2, 3}, out[3] = {0};
    memset(&d, 0, sizeof d);
    d.world_size = 1;
    T_EQ(CDP_OK, cdp_group_create(&d, &g));
    T_EQ(0, cdp_rank(g));
    T_EQ(1, cdp_size(g));
    T_EQ(CDP_OK, cdp_allreduce(g, in, out, 3, CDP_DTYPE_F32, CDP_REDUCE_AVG));
    T(out[0] == 1 && out[1] == 2 && out[2] == 3);
    T_EQ(CDP_OK, cdp_barrier(g));
    T_EQ(CDP_OK, cdp_broadcast(g, out, 3, CDP_DTYPE_F32, 0));
    out[0] = 0;
    T_EQ(CDP_OK, cdp_allgather(g, in, out, 3, CDP_DTYPE_F32));
    T(out[0] == 1);
    T_EQ(CDP_OK, cdp_poll(g, 0));
    T_EQ(CDP_OK, cdp_group_status(g));
    cdp_group_abort(g, "enough");
    T_EQ(CDP_ERR_ABORTED, cdp_barrier(g));
    T_TEXT("enough", cdp_last_error()->text);
    cdp_group_destroy(g);
}

TEST(defaults_are_filled_in) {
    cdp_group_desc d;
    cdp_group *g;
    memset(&d, 0, sizeof d);
    d.world_size = 1;
    T_EQ(CDP_OK, cdp_group_create(&d, &g));
    const cdp_group_desc *of = cdp_group_desc_of(g);
    T(of->timeout_ms == 600000 && of->small_bytes == 65536 && of->piece_bytes == 1048576
        && of->spin_us == 20 && of->os == cdp_os_default());
    cdp_group_destroy(g);
    cdp_group_destroy(NULL);
    cdp_hub_destroy(NULL);
    T_EQ(0, cdp_rank(NULL));
    T_EQ(0, cdp_size(NULL));
    T(cdp_group_desc_of(NULL) == NULL);
}

/* ---- the caller's mistakes ---- */

TEST(mistakes_in_creation) {
    cdp_group_desc d;
    cdp_hub_desc h;
    cdp_group *g = (cdp_group *)&d;
    cdp_hub *hub = (cdp_hub *)&h;
    memset(&d, 0, sizeof d);
    memset(&h, 0, sizeof h);
    REFUSED(CDP_ERR_INVALID, "desc", cdp_group_create(NULL, &g));
    REFUSED(CDP_ERR_INVALID, "out is NULL", cdp_group_create(&d, NULL));
    REFUSED(CDP_ERR_INVALID, "world_size 0", cdp_group_create(&d, &g));
    T(g == NULL);
    d.world_size = 2;
    REFUSED(CDP_ERR_INVALID, "need a hub or a transport", cdp_group_create(&d, &g));
    d.rank = 2;
    REFUSED(CDP_ERR_INVALID, "rank 2 is not below world_size 2", cdp_group_create(&d, &g));
    REFUSED(CDP_ERR_INVALID, "desc", cdp_hub_create(NULL, &hub));
    REFUSED(CDP_ERR_INVALID, "out is NULL", cdp_hub_create(&h, NULL));
    REFUSED(CDP_ERR_INVALID, "world_size 0", cdp_hub_create(&h, &hub));
    T(hub == NULL);
    h.world_size = 65536;
    REFUSED(CDP_ERR_INVALID, "65536", cdp_hub_create(&h, &hub));
    h.world_size = 3;
    T_EQ(CDP_OK, cdp_hub_create(&h, &hub));
    d.rank = 1;
    d.hub = hub;
    REFUSED(CDP_ERR_INVALID, "the hub connects 3 ranks", cdp_group_create(&d, &g));
    cdp_hub_destroy(hub);
}

TEST(mistakes_in_calls) {
    const cdp_group_desc like = no_thread_desc();
    double x[8] = {0}, y[16] = {0};
    uint8_t *odd = (uint8_t *)x + 1;
    cdp_request rq;
    cdp_work work;
    world w;
    if (!world_open(&w, 2, &like, 0)) return;
    cdp_group *g = w.group[0];
    REFUSED(CDP_ERR_INVALID, "allreduce: out is NULL, but count is",
        cdp_allreduce(g, x, NULL, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    REFUSED(CDP_ERR_INVALID, "count is 7",
        cdp_allreduce(g, NULL, NULL, 7, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    REFUSED(CDP_ERR_INVALID, "not aligned to its dtype f64",
        cdp_allreduce(g, NULL, odd, 1, CDP_DTYPE_F64, CDP_REDUCE_SUM));
    REFUSED(
        CDP_ERR_INVALID, "not aligned", cdp_allreduce(g, odd, y, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    REFUSED(
        CDP_ERR_INVALID, "overlap", cdp_allreduce(g, x, x + 1, 2, CDP_DTYPE_F64, CDP_REDUCE_SUM));
    REFUSED(
        CDP_ERR_INVALID, "overlap", cdp_allreduce(g, x + 1, x, 2, CDP_DTYPE_F64, CDP_REDUCE_SUM));
    /* inside the result */
    REFUSED(CDP_ERR_INVALID, "overlap", cdp_allgather(g, y + 3, y, 2, CDP_DTYPE_F64));
    REFUSED(CDP_ERR_INVALID, "root 2 is not below world_size 2",
        cdp_broadcast(g, x, 1, CDP_DTYPE_F32, 2));
    REFUSED(CDP_ERR_INVALID, "dtype 99 does not exist", cdp_broadcast(g, x, 1, (cdp_dtype)99, 0));
    REFUSED(CDP_ERR_INVALID, "dtype -1 does not exist", cdp_allgather(g, x, y, 1, (cdp_dtype)-1));
    REFUSED(CDP_ERR_INVALID, "reduction 55 does not exist",
        cdp_allreduce(g, x, y, 1, CDP_DTYPE_F32, (cdp_reduce_op)55));
    REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes",
        cdp_allreduce(g, x, y, UINT64_MAX / 4, CDP_DTYPE_F64, CDP_REDUCE_SUM));
    REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes",
        cdp_allgather(g, x, y, UINT64_MAX / 8, CDP_DTYPE_F64));
    REFUSED(CDP_ERR_INVALID, "group", cdp_barrier(NULL));
    REFUSED(CDP_ERR_INVALID, "group", cdp_poll(NULL, 0));
    REFUSED(CDP_ERR_INVALID, "group", cdp_group_status(NULL));
    REFUSED(CDP_ERR_INVALID, "is NULL", cdp_barrier_async(g, NULL));
    REFUSED(CDP_ERR_INVALID, "request", cdp_start(g, NULL, &work));
    cdp_group_abort(NULL, "nobody");
    memset(&rq, 0, sizeof rq);
    REFUSED(CDP_ERR_INVALID, "kind 0", cdp_start(g, &rq, &work));
    rq.kind = CDP_COLL_COUNT;
    REFUSED(CDP_ERR_INVALID, "is no operation", cdp_start(g, &rq, &work));
    T(work.group == NULL && work.seq == 0);
    T_EQ(CDP_OK, cdp_work_wait(work)); /* no work counts as done */
    T_EQ(CDP_OK, cdp_work_test(work));
    /* none of it harmed the group, or used up a sequence number */
    T_EQ(CDP_OK, cdp_group_status(g));
    const call c = {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 100, false, 1};
    run_polled(&w, &c, 1, NULL);
    world_close(&w);
}

TEST(neighbours_do_not_overlap) {
    const cdp_group_desc like = no_thread_desc();
    float x[8] = {0};
    cdp_work work;
    world w;
    if (!world_open(&w, 2, &like, 0)) return;
    T_EQ(
        CDP_OK, cdp_allreduce_async(w.group[0], x, x + 4, 4, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work));
    T_EQ(
        CDP_OK, cdp_allreduce_async(w.group[1], x + 4, x, 0, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work));
    world_close(&w);
}

/* ---- failures, polled ---- */

static cdp_status poll_to_end(world *w, uint32_t r, cdp_work work) {
    cdp_status st = CDP_PENDING;
    for (int i = 0; i < 2000 && st == CDP_PENDING; ++i) {
        for (uint32_t k = 0; k < w->n; ++k)
            if (w->group[k]) (void)cdp_poll(w->group[k], 0);
        st = cdp_work_test(work);
        if (st == CDP_PENDING) test_sleep_ms(1);
    }
    T(r == w->group[r]->desc.rank);
    return st;
}

typedef struct different {
    const char *what;
    call a, b; /* rank 0 calls a, all others b */
    const char *a_text, *b_text;
} different;

static const different differences[] = {
    {"kind", {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 8, true, 1},
        {CDP_COLL_BROADCAST, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 8, true, 1},
        "allreduce #1 of 8 x f32 sum", "broadcast #1 of 8 x f32"},
    {"kind, gather", {CDP_COLL_ALLGATHER, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 8, true, 1},
        {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 8, true, 1},
        "allgather #1 of 8 x f32", "allreduce #1 of 8 x f32"},
    {"kind, barrier", {CDP_COLL_BARRIER, CDP_DTYPE_U8, CDP_REDUCE_SUM, 0, 0, true, 1},
        {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 8, true, 1}, "barrier #1",
        "allreduce #1 of 8 x f32"},
    {"count", {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 8, true, 1},
        {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 9, true, 1}, "of 8 x f32 sum",
        "of 9 x f32 sum"},
    {"count zero", {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 0, true, 1},
        {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 9, true, 1}, "of 0 x f32 sum",
        "of 9 x f32 sum"},
    {"count, other algorithm",
        {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 100000, true, 1},
        {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 9, true, 1}, "of 100000 x f32",
        "of 9 x f32 sum"},
    {"dtype", {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 8, true, 1},
        {CDP_COLL_ALLREDUCE, CDP_DTYPE_I32, CDP_REDUCE_SUM, 0, 8, true, 1}, "8 x f32", "8 x i32"},
    {"op", {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 8, true, 1},
        {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_MAX, 0, 8, true, 1}, "f32 sum", "f32 max"},
    {"root", {CDP_COLL_BROADCAST, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 8, true, 1},
        {CDP_COLL_BROADCAST, CDP_DTYPE_F32, CDP_REDUCE_SUM, 1, 8, true, 1}, "from rank 0",
        "from rank 1"},
    {"root, large", {CDP_COLL_BROADCAST, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 800000, true, 1},
        {CDP_COLL_BROADCAST, CDP_DTYPE_F32, CDP_REDUCE_SUM, 1, 800000, true, 1}, "from rank 0",
        "from rank 1"},
};

static void one_difference(const different *d, uint32_t n) {
    const cdp_group_desc like = no_thread_desc();
    call_memory m[RANKS_MAX];
    cdp_work work[RANKS_MAX], after[RANKS_MAX];
    world w;
    if (!world_open(&w, n, &like, 0)) return;
    const uint64_t start = test_now_ns();
    for (uint32_t r = 0; r < n; ++r) {
        const call *c = r ? &d->b : &d->a;
        call_fill(c, n, r, &m[r]);
        const cdp_request rq = call_request(c, &m[r]);
        T(cdp_start(w.group[r], &rq, &work[r]) == CDP_OK || work[r].seq == 0);
        /* it knows already */
        if (cdp_barrier_async(w.group[r], &after[r]) != CDP_OK) after[r] = work[r];
    }
    for (uint32_t r = 0; r < n; ++r) {
        /* a rank that only sends may succeed, and learns of it next */
        if (after[r].seq) (void)poll_to_end(&w, r, after[r]);
        const cdp_status st = cdp_group_status(w.group[r]);
        const cdp_error *e = cdp_last_error();
        const bool ok = st == CDP_ERR_MISMATCH && strstr(e->text, d->a_text)
            && strstr(e->text, d->b_text) && e->rank == (int32_t)r;
        test_check(ok, __FILE__, __LINE__, "%s, %u ranks, rank %u: %s: %s", d->what, n, r,
            cdp_status_name(st), st ? e->text : "");
        free(m[r].block);
    }
    /* who only sends listens after a while */
    T_WITHIN((CDP__FAILURE_WAIT_MS + 500), test_now_ns() - start);
    world_close(&w);
}

TEST(different_calls_name_both_on_both_sides) {
    for (size_t i = 0; i < sizeof differences / sizeof *differences; ++i) {
        one_difference(&differences[i], 2);
        one_difference(&differences[i], 3);
        one_difference(&differences[i], 5);
    }
}

TEST(different_settings_are_told) {
    world w;
    cdp_hub_desc h;
    cdp_work work[2];
    float x[2][100] = {{0}};
    memset(&w, 0, sizeof w);
    memset(&h, 0, sizeof h);
    h.world_size = w.n = 2;
    if (!T_EQ(CDP_OK, cdp_hub_create(&h, &w.hub))) return;
    for (uint32_t r = 0; r < 2; ++r) {
        cdp_group_desc like = no_thread_desc(), d;
        like.small_bytes = r ? 1 : 4000;
        d = rank_desc(&w, r, &like);
        T_EQ(CDP_OK, cdp_group_create(&d, &w.group[r]));
    }
    for (uint32_t r = 0; r < 2; ++r)
        T(cdp_allreduce_async(w.group[r], NULL, x[r], 100, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work[r])
            == CDP_OK);
    for (uint32_t r = 0; r < 2; ++r) {
        T_EQ(CDP_ERR_MISMATCH, poll_to_end(&w, r, work[r]));
        T_TEXT("direct", cdp_last_error()->text);
        T_TEXT("recursive doubling", cdp_last_error()->text);
    }
    world_close(&w);
}

/* More small frames than there are places beside the stream, of two groups that the ranks use in
   different orders: some take the stream, and all come in their order. */
TEST(small_frames_take_either_way) {
    enum {
        MANY = 3 * CDP_SLOTS
    };
    cdp_group_desc like = no_thread_desc();
    const uint32_t both[2] = {0, 1};
    static uint32_t x[2][2][MANY][600]; /* rank, group */
    cdp_work work[2][2][MANY];
    cdp_group *g[2][2];
    world w;
    if (!world_open(&w, 2, &like, 0)) return;
    for (uint32_t r = 0; r < 2; ++r) {
        g[r][0] = w.group[r];
        T_EQ(CDP_OK, cdp_group_new(w.group[r], both, 2, &g[r][1]));
    }
    for (uint32_t turn = 0; turn < 3; ++turn) {
        /* rank 0 is ahead: all that it has left before rank 1 asks */
        for (uint32_t k = 0; k < 2 * MANY; ++k) {
            const uint32_t which = k / MANY, i = k % MANY, count = i % 5 == 4 ? 600 : 1 + i;
            for (uint32_t j = 0; j < count; ++j)
                x[0][which][i][j] = turn * 1000000 + k * 1000 + j;
            T_EQ(CDP_OK,
                cdp_broadcast_async(
                    g[0][which], x[0][which][i], count, CDP_DTYPE_U32, 0, &work[0][which][i]));
            (void)cdp_poll(w.group[0], 0);
        }
        for (uint32_t which = 2; which-- > 0;)
            for (uint32_t i = 0; i < MANY; ++i) {
                const uint32_t count = i % 5 == 4 ? 600 : 1 + i;
                T_EQ(CDP_OK,
                    cdp_broadcast_async(
                        g[1][which], x[1][which][i], count, CDP_DTYPE_U32, 0, &work[1][which][i]));
                T_EQ(CDP_OK, poll_to_end(&w, 1, work[1][which][i]));
                T(memcmp(x[0][which][i], x[1][which][i], count * sizeof(uint32_t)) == 0);
            }
        for (uint32_t k = 0; k < 2 * MANY; ++k)
            T_EQ(CDP_OK, poll_to_end(&w, 0, work[0][k / MANY][k % MANY]));
    }
    for (uint32_t r = 0; r < 2; ++r)
        cdp_group_destroy(g[r][1]);
    world_close(&w);
}

TEST(late_rank_times_out_by_name) {
    cdp_group_desc like = no_thread_desc();
    float x[1] = {0};
    cdp_work work;
    world w;
    like.timeout_ms = 200;
    if (!world_open(&w, 2, &like, 0)) return;
    const uint64_t start = test_now_ns();
    T_EQ(CDP_OK, cdp_allreduce_async(w.group[0], NULL, x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work));
    T_EQ(CDP_ERR_TIMEOUT, cdp_work_wait(work)); /* the wait alone drives it */
    const uint64_t took = test_now_ns() - start;
    T(took >= 200 * CDP__MS);
    T_WITHIN(220, took);
    T_EQ(1, cdp_last_error()->peer);
    T_EQ(0, cdp_last_error()->rank);
    T_EQ(1, cdp_last_error()->op_seq);
    T_EQ(CDP_COLL_ALLREDUCE, cdp_last_error()->kind);
    T_TEXT("rank 0/2: allreduce #1 of 1 x f32 sum", cdp_last_error()->text);
    T_TEXT("200 ms", cdp_last_error()->text);
    T_TEXT("waiting for rank 1", cdp_last_error()->text);
    T_EQ(CDP_ERR_TIMEOUT, cdp_barrier(w.group[0])); /* it stays broken */
    T_EQ(CDP_ERR_TIMEOUT, cdp_work_wait(work));
    T_EQ(CDP_ERR_TIMEOUT, cdp_work_test(work));
    T_EQ(CDP_ERR_TIMEOUT, cdp_barrier(w.group[1])); /* the late one learns why */
    T_TEXT("told by rank 0", cdp_last_error()->text);
    world_close(&w);
}

TEST(request_timeout_beats_the_groups) {
    cdp_group_desc like = no_thread_desc();
    cdp_request rq;
    cdp_work work, second;
    world w;
    if (!world_open(&w, 2, &like, 0)) return;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_BARRIER;
    T_EQ(CDP_OK, cdp_start(w.group[0], &rq, &work)); /* 60 s */
    rq.timeout_ms = 50;                              /* behind it, but due earlier */
    T_EQ(CDP_OK, cdp_start(w.group[0], &rq, &second));
    const uint64_t start = test_now_ns();
    T_EQ(CDP_ERR_TIMEOUT, cdp_work_wait(work));
    T_WITHIN(100, test_now_ns() - start);
    T_TEXT("50 ms", cdp_last_error()->text);
    world_close(&w);
}

TEST(poll_keeps_its_budget) {
    cdp_group_desc like = no_thread_desc();
    cdp_work work;
    world w;
    if (!world_open(&w, 2, &like, 0)) return;
    T_EQ(CDP_OK, cdp_barrier_async(w.group[0], &work));
    uint64_t start = test_now_ns();
    T_EQ(CDP_OK, cdp_poll(w.group[0], 30000));
    uint64_t took = test_now_ns() - start;
    T(took >= 29 * CDP__MS);
    T_WITHIN(60, took);
    start = test_now_ns();
    T_EQ(CDP_OK, cdp_poll(w.group[1], 1000000)); /* nothing in flight: at once */
    T_WITHIN(100, test_now_ns() - start);
    T_EQ(CDP_PENDING, cdp_work_test(work));
    world_close(&w);
}

/* What is there already is read before anybody sleeps. (A machine that stands still for a while
   looks like sleep.) */
TEST(poll_reads_what_is_there) {
    cdp_group_desc like;
    static uint8_t out[100000], in[100000];
    uint64_t took = UINT64_MAX;
    cdp_work sent, got;
    world w;
    memset(&like, 0, sizeof like);
    like.no_thread = true;
    like.piece_bytes = 1024;
    like.expose_bytes = UINT64_MAX;
    if (!world_open(&w, 2, &like, 0)) return;
    for (uint32_t i = 0; i < 5 && took > 500000000u; ++i) {
        uint64_t from;
        memset(out, (int)i + 3, sizeof out);
        T_EQ(CDP_OK, cdp_send_async(w.group[0], out, sizeof out, CDP_DTYPE_U8, 1, 0, &sent));
        T_EQ(CDP_OK, cdp_poll(w.group[0], 60000000)); /* until it is sent */
        T_EQ(CDP_OK, cdp_work_test(sent));
        /* this rank has heard that there is something; it was not asked for yet */
        T_EQ(CDP_OK, cdp_poll(w.group[1], 0));
        T_EQ(CDP_OK, cdp_recv_async(w.group[1], in, sizeof in, CDP_DTYPE_U8, 0, 0, &got));
        from = test_now_ns();
        T_EQ(CDP_OK, cdp_poll(w.group[1], 5000000));
        took = test_now_ns() - from;
        T_EQ(CDP_OK, cdp_work_test(got));
        T(memcmp(in, out, sizeof in) == 0);
    }
    T(took <= 500000000u);
    world_close(&w);
}

TEST(leaving_is_no_failure_for_those_who_are_done) {
    const cdp_group_desc like = no_thread_desc();
    const call c = {CDP_COLL_ALLREDUCE, CDP_DTYPE_F32, CDP_REDUCE_SUM, 0, 1000, false, 5};
    cdp_work work;
    world w;
    if (!world_open(&w, 3, &like, 0)) return;
    run_polled(&w, &c, 1, NULL);
    cdp_group_destroy(w.group[1]);
    w.group[1] = NULL;
    for (int i = 0; i < 10; ++i)
        T(cdp_poll(w.group[0], 0) == CDP_OK && cdp_poll(w.group[2], 100) == CDP_OK);
    T_EQ(CDP_OK, cdp_group_status(w.group[0]));
    const uint64_t start = test_now_ns();
    /* whoever needs the one that left is told so */
    T_EQ(CDP_OK, cdp_barrier_async(w.group[2], &work));
    T_EQ(CDP_ERR_PEER_LOST, poll_to_end(&w, 2, work));
    T_WITHIN(50, test_now_ns() - start);
    T_EQ(1, cdp_last_error()->peer);
    T_TEXT("rank 1 has left", cdp_last_error()->text);
    world_close(&w);
}

TEST(abort_reaches_ranks_that_never_talked) {
    const cdp_group_desc like = no_thread_desc();
    cdp_work work[5];
    world w;
    if (!world_open(&w, 5, &like, 0)) return;
    for (uint32_t r = 0; r < 5; ++r)
        if (r != 3) T_EQ(CDP_OK, cdp_barrier_async(w.group[r], &work[r]));
    cdp_group_abort(w.group[3], "the disk is full");
    cdp_group_abort(w.group[3], "a second reason");
    const uint64_t start = test_now_ns();
    for (uint32_t r = 0; r < 5; ++r) {
        if (r != 3) T_EQ(CDP_ERR_ABORTED, poll_to_end(&w, r, work[r]));
        T_EQ(CDP_ERR_ABORTED, cdp_group_status(w.group[r]));
        T_TEXT("the disk is full", cdp_last_error()->text);
        T_EQ(3, cdp_last_error()->origin);
        T_EQ(3, cdp_last_error()->peer);
        T_EQ(r, cdp_last_error()->rank);
    }
    T_WITHIN(100, test_now_ns() - start);
    world_close(&w);
}

TEST(destroy_in_flight) {
    const cdp_group_desc like = no_thread_desc();
    float x[3][1000] = {{0}};
    cdp_work work[3];
    world w;
    if (!world_open(&w, 3, &like, 100)) return;
    for (uint32_t r = 0; r < 3; ++r)
        T_EQ(CDP_OK,
            cdp_allreduce_async(
                w.group[r], NULL, x[r], 1000, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work[r]));
    const uint64_t start = test_now_ns();
    cdp_group_destroy(w.group[0]);
    T_WITHIN(50, test_now_ns() - start);
    w.group[0] = NULL;
    T_EQ(CDP_ERR_PEER_LOST, poll_to_end(&w, 1, work[1]));
    T_EQ(0, cdp_last_error()->peer);
    T_EQ(CDP_ERR_PEER_LOST, poll_to_end(&w, 2, work[2]));
    T_EQ(0, cdp_last_error()->peer);
    world_close(&w);
}

/* A clock that goes on when it is read, and by frames. */
static uint64_t frame_clock_ns, frame_tick_ns;
static uint64_t frame_clock(void *user) {
    (void)user;
    return frame_clock_ns += frame_tick_ns;
}

/* Each rank waits for the next one, the last one for nobody; all but that are polled once in 16 ms,
   in this order or the other way. Whom does rank 0 blame when its deadline has passed? */
static int32_t blamed_in_frames(uint32_t n, bool backwards) {
    cdp_group_desc like = no_thread_desc();
    cdp_os os = *cdp_os_default();
    cdp_work work[RANKS_MAX];
    float x[RANKS_MAX];
    int32_t blamed = -1;
    world w;
    frame_clock_ns = 1000 * CDP__MS;
    frame_tick_ns = 200;
    os.now_ns = frame_clock;
    like.os = &os;
    if (!world_open(&w, n, &like, 0)) return -1;
    for (uint32_t r = 0; r + 1 < n; ++r) {
        const cdp_transfer t = {.receive = true,
            .peer = r + 1,
            .data = &x[r],
            .count = 1,
            .timeout_ms = r ? 60000 : 6000};
        if (!T_EQ(CDP_OK, cdp_batch(w.group[r], &t, 1, &work[r]))) return -1;
    }
    for (uint32_t frame = 0; frame < 1000 && blamed < 0; ++frame) {
        frame_clock_ns += 16 * CDP__MS;
        for (uint32_t i = 0; i + 1 < n; ++i) {
            const uint32_t r = backwards ? n - 2 - i : i;
            const cdp_status st = cdp_work_poll(work[r], 0);
            if (r == 0 && st == CDP_ERR_TIMEOUT) blamed = cdp_last_error()->peer;
        }
    }
    frame_tick_ns = CDP__MS; /* leaving takes a while of this clock */
    world_close(&w);
    return blamed;
}

/* ERRORS of cdp.h: with frames of 16 ms ranks follow chains of up to 9 ranks. */
TEST(chains_are_followed_in_frames) {
    T_EQ(2, blamed_in_frames(3, false));
    T_EQ(8, blamed_in_frames(9, false));
    T_EQ(8, blamed_in_frames(9, true));
}

/* A frame moves some bytes of a long message, or of messages beside a collective that one rank does
   not call, and so does the next one: the deadline counts all the same. After how many ms does
   rank 0 have its error? */
static uint64_t ms_of_moving(bool beside) {
    static float much[2][300000];
    cdp_group_desc like = no_thread_desc();
    cdp_os os = *cdp_os_default();
    cdp_work work[2], late;
    cdp_status st = CDP_PENDING;
    uint64_t began;
    world w;
    frame_clock_ns = 1000 * CDP__MS;
    frame_tick_ns = 200;
    os.now_ns = frame_clock;
    like.os = &os;
    like.timeout_ms = beside ? 600000 : 1000;
    if (!world_open(&w, 2, &like, 1024)) return UINT64_MAX;
    began = frame_clock_ns;
    T_EQ(CDP_OK, cdp_send_async(w.group[0], much[0], 300000, CDP_DTYPE_F32, 1, 0, &work[0]));
    T_EQ(CDP_OK, cdp_recv_async(w.group[1], much[1], 300000, CDP_DTYPE_F32, 0, 0, &work[1]));
    if (beside) {
        cdp_request rq;
        memset(&rq, 0, sizeof rq);
        rq.kind = CDP_COLL_BARRIER;
        rq.timeout_ms = 1000;
        T_EQ(CDP_OK, cdp_start(w.group[0], &rq, &late));
    }
    for (uint32_t frame = 0; frame < 500 && st == CDP_PENDING; ++frame) {
        frame_clock_ns += 16 * CDP__MS;
        st = cdp_work_poll(beside ? late : work[0], 0);
        (void)cdp_work_poll(work[1], 0);
    }
    T_EQ(CDP_ERR_TIMEOUT, st);
    T_EQ(1, cdp_last_error()->peer);
    began = (frame_clock_ns - began) / CDP__MS;
    frame_tick_ns = CDP__MS;
    world_close(&w);
    return began;
}

TEST(deadlines_count_while_every_frame_moves_something) {
    const uint64_t alone = ms_of_moving(false), beside = ms_of_moving(true);
    T(alone >= 1000 && alone < 1200);
    T(beside >= 1000 && beside < 1200);
}

/* ---- memory ---- */

TEST(creation_survives_every_refusal) {
    const cdp_os *os = counted_os();
    int created = 0;
    for (int64_t fail = 1; fail < 100 && created < 2; ++fail) {
        cdp_group_desc like;
        world w;
        cdp_hub_desc h;
        cdp_status st;
        memset(&like, 0, sizeof like);
        memset(&w, 0, sizeof w);
        memset(&h, 0, sizeof h);
        like.os = h.os = os;
        h.world_size = w.n = 2;
        counted.calls = 0;
        counted.fail_at = fail;
        st = cdp_hub_create(&h, &w.hub);
        for (uint32_t r = 0; r < 2 && st == CDP_OK; ++r) {
            const cdp_group_desc d = rank_desc(&w, r, &like);
            st = cdp_group_create(&d, &w.group[r]);
            T((st == CDP_OK) == (w.group[r] != NULL));
        }
        if (st != CDP_OK) {
            T(st == CDP_ERR_NOMEM || st == CDP_ERR_IO);
            T_EQ(st, cdp_last_error()->status);
            T(strlen(cdp_last_error()->text) > 10);
        } else {
            ++created;
        }
        counted.fail_at = 0;
        world_close(&w);
        if (!T_EQ(0, counted.held)) return;
    }
    T_EQ(2, created);
}

/* Bytes that are held now. Each block is preceded by its size. */
static int64_t bytes_held;

static void *sized_alloc(void *user, uint64_t bytes) {
    uint8_t *p = (uint8_t *)cdp_os_default()->alloc(user, bytes + 64);
    if (!p) return NULL;
    memcpy(p, &bytes, sizeof bytes);
    __atomic_add_fetch(&bytes_held, (int64_t)bytes, __ATOMIC_SEQ_CST);
    return p + 64;
}

static void sized_free(void *user, void *p) {
    uint64_t bytes;
    if (!p) return;
    memcpy(&bytes, (uint8_t *)p - 64, sizeof bytes);
    __atomic_sub_fetch(&bytes_held, (int64_t)bytes, __ATOMIC_SEQ_CST);
    cdp_os_default()->release(user, (uint8_t *)p - 64);
}

static bool takes_at_most(uint64_t limit, int64_t since, const char *what, uint32_t n) {
    return test_check(bytes_held - since <= (int64_t)limit, __FILE__, __LINE__,
        "%s, %u ranks: %lld bytes, at most %llu are documented", what, n,
        (long long)(bytes_held - since), (unsigned long long)limit);
}

#ifndef CDP_NO_THREADS
/* Seconds of the processor that it takes to destroy n groups, the oldest first. */
static double time_to_destroy(cdp_group *first, uint32_t n) {
    static cdp_group *g[16000];
    const uint32_t rank = 0;
    clock_t begin;
    for (uint32_t i = 0; i < n; ++i)
        if (!T_EQ(CDP_OK, cdp_group_new(first, &rank, 1, &g[i]))) return 0;
    begin = clock();
    for (uint32_t i = 0; i < n; ++i)
        cdp_group_destroy(g[i]);
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}

/* Sixteen times as many: with a search for each, it took some hundred times as long. */
TEST(destroying_a_group_does_not_search_the_others) {
    cdp_group_desc d = no_thread_desc();
    cdp_group *first;
    double few, many;
    d.world_size = 1;
    if (!T_EQ(CDP_OK, cdp_group_create(&d, &first))) return;
    few = time_to_destroy(first, 500);
    many = time_to_destroy(first, 8000);
    test_check(
        many < 0.2 + 100 * few, __FILE__, __LINE__, "500 groups: %f s, 8000: %f s", few, many);
    cdp_group_destroy(first);
}
#endif

/* MEMORY of cdp.h: 0.17 MB and 0.7 KB per rank for the first group, 10 KB and 0.2 KB per rank for
   a group made from it, 9 bytes per pair of ranks for a hub. Creation is local, so that one rank of
   many can be looked at. */
TEST(groups_take_the_memory_that_is_documented) {
    static uint32_t ranks[1000];
    static const uint32_t sizes[] = {2, 50, 1000};
    cdp_os os = *cdp_os_default();
    os.alloc = sized_alloc;
    os.release = sized_free;
    for (uint32_t i = 0; i < 3; ++i) {
        const uint32_t n = sizes[i];
        cdp_group_desc d = no_thread_desc();
        cdp_hub_desc h = {.world_size = n, .os = &os};
        cdp_hub *hub = NULL;
        cdp_group *first, *part;
        int64_t before = bytes_held;
        if (!T_EQ(CDP_OK, cdp_hub_create(&h, &hub))) return;
        (void)takes_at_most(10000 + n * n * 9, before, "a hub", n);
        d.world_size = n;
        d.hub = hub;
        d.os = &os;
        before = bytes_held;
        if (!T_EQ(CDP_OK, cdp_group_create(&d, &first))) return;
        (void)takes_at_most(170000 + n * 700, before, "the first group", n);
        for (uint32_t r = 0; r < n; ++r)
            ranks[r] = n - 1 - r;
        before = bytes_held;
        if (!T_EQ(CDP_OK, cdp_group_new(first, ranks, n, &part))) return;
        (void)takes_at_most(10300 + n * 200, before, "a group made from it", n);
        cdp_group_destroy(part);
        cdp_group_destroy(first);
        cdp_hub_destroy(hub);
        T_EQ(0, bytes_held);
    }
}

/* And 0.6 MB in a hub for a pair of ranks that talks. */
TEST(a_hub_takes_memory_for_pairs_that_talk) {
    cdp_group_desc like = no_thread_desc();
    cdp_os os = *cdp_os_default();
    float x = 1, y = 0;
    cdp_work sent, got;
    int64_t before;
    world w;
    os.alloc = sized_alloc;
    os.release = sized_free;
    like.os = &os;
    if (!world_open(&w, 8, &like, 0)) return;
    before = bytes_held;
    for (uint32_t i = 0; i < 4; ++i) { /* there and back, and then again, which needs no more */
        const uint32_t from = i & 1 ? 3 : 5, to = 8 - from;
        if (i == 2) before = bytes_held;
        T_EQ(CDP_OK, cdp_recv_async(w.group[to], &y, 1, CDP_DTYPE_F32, from, 0, &got));
        T_EQ(CDP_OK, cdp_send_async(w.group[from], &x, 1, CDP_DTYPE_F32, to, 0, &sent));
        T_EQ(CDP_OK, poll_to_end(&w, to, got));
        T_EQ(CDP_OK, poll_to_end(&w, from, sent));
        T_EQ(1, y);
        if (i == 1) T(bytes_held - before >= 2 * 262144);
        (void)takes_at_most(i < 2 ? 620000 : 0, before, "a pair that talks", 8);
    }
    world_close(&w);
    T_EQ(0, bytes_held);
}

TEST(running_out_of_memory_in_an_operation) {
    uint32_t failed = 0;
    for (int64_t fail = 1; fail < 12; ++fail) {
        cdp_group_desc like = no_thread_desc();
        float x[2][1000] = {{0}};
        cdp_work work[2];
        world w;
        like.os = counted_os();
        if (!world_open(&w, 2, &like, 0)) return;
        counted.calls = 0;
        counted.fail_at = fail;
        for (uint32_t r = 0; r < 2; ++r) {
            const cdp_status st = cdp_allreduce_async(
                w.group[r], NULL, x[r], 1000, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work[r]);
            T(st == CDP_OK || st == CDP_ERR_NOMEM);
        }
        for (uint32_t r = 0; r < 2; ++r) {
            const cdp_status st = poll_to_end(&w, r, work[r]);
            /* A rank that has all that it needs ends well, whatever becomes of the other. Some
               memory (a line to look for small messages) is asked for again later. */
            T(st == CDP_ERR_NOMEM || st == CDP_OK);
            if (st == CDP_ERR_NOMEM) T_TEXT("out of memory", cdp_last_error()->text);
            failed += st == CDP_ERR_NOMEM;
            if (fail > counted.calls) T_EQ(CDP_OK, st);
        }
        world_close(&w);
        T_EQ(0, counted.held);
    }
    T(failed >= 6); /* of both ranks, at several places */
}

/* Makes an error of its own. */
static cdp_status another_error(void *user, cdp_status status) {
    *(uint32_t *)user += status == CDP_OK;
    T_EQ(CDP_ERR_INVALID, cdp_poll(NULL, 0));
    return CDP_OK;
}

/* cdp_batch() returns the status of cdp_last_error(), even if a part of the batch was started, so
   that the group breaks, and a function that is called meanwhile makes another error: here one
   that waits for a message of another group, which has arrived. */
TEST(running_out_of_memory_in_a_batch) {
    static const uint32_t both[] = {0, 1};
    uint32_t failed = 0, called = 0;
    for (int64_t fail = 1; fail < 60; ++fail) {
        cdp_group_desc like = no_thread_desc();
        float x[40] = {0}, y = 0, z = 1;
        cdp_transfer t[40];
        cdp_group *g[2];
        cdp_work work, sent;
        cdp_status st;
        world w;
        like.os = counted_os();
        if (!world_open(&w, 2, &like, 0)) return;
        for (uint32_t r = 0; r < 2; ++r)
            T_EQ(CDP_OK, cdp_group_new(w.group[r], both, 2, &g[r]));
        T_EQ(CDP_OK, cdp_recv_async(w.group[0], &y, 1, CDP_DTYPE_F32, 1, 99, &work));
        T_EQ(CDP_OK, cdp_work_then(work, another_error, &called, NULL));
        T_EQ(CDP_OK, cdp_send_async(w.group[1], &z, 1, CDP_DTYPE_F32, 0, 99, &sent));
        for (uint32_t i = 0; i < 40; ++i)
            t[i] = (cdp_transfer){.peer = 1, .data = &x[i], .count = 1, .tag = i};
        counted.calls = 0;
        counted.fail_at = fail;
        called = 0;
        st = cdp_batch(g[0], t, 40, &work);
        T_EQ(st, st == CDP_OK ? CDP_OK : cdp_last_error()->status);
        T(st == CDP_OK || st == CDP_ERR_NOMEM);
        failed += st == CDP_ERR_NOMEM && called;
        for (uint32_t r = 0; r < 2; ++r)
            cdp_group_destroy(g[r]);
        world_close(&w);
        T_EQ(0, counted.held);
    }
    T(failed >= 3);
}

/* Slow enough that no operation waits for long, on any machine: ranks that wait for a second say
   what they call, for which a peer needs memory once. */
static uint64_t slow_clock(void *user) {
    (void)user;
    return cdp_os_default()->now_ns(NULL) / 1000;
}

TEST(no_allocation_after_warm_up) {
    cdp_group_desc like = no_thread_desc();
    cdp_os os = *counted_os();
    uint64_t state = 21;
    call calls[40];
    world w;
    os.now_ns = slow_clock;
    like.os = &os;
    if (!world_open(&w, 4, &like, 0)) return;
    for (uint32_t k = 0; k < 40; ++k)
        calls[k] = call_random(&state, 4, 3000);
    run_polled(&w, calls, 40, NULL);
    const int64_t before = counted.calls;
    for (int i = 0; i < 5; ++i)
        run_polled(&w, calls, 40, &state);
    T_EQ(before, counted.calls);
    world_close(&w);
    T_EQ(0, counted.held);
}

#ifndef CDP_NO_THREADS
/* ================================================ ranks are threads
   ================================================ */

#endif

/* What texts about calls that differ say. */
TEST(calls_with_objects_have_names) {
    static const char *const want[] = {"?", "cdp_allgather_bytes", "cdp_gather_bytes",
        "cdp_broadcast_bytes", "cdp_scatter_bytes", "?"};
    for (uint32_t kind = 0; kind < 6; ++kind)
        T(strcmp(cdp__object_name(kind), want[kind]) == 0);
    T(strcmp(cdp__object_name(UINT64_MAX), "?") == 0);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"calls_with_objects_have_names", calls_with_objects_have_names, 10},
        {"polled_in_turn_every_call", polled_in_turn_every_call, 60},
        {"polled_in_random_turns_with_all_settings", polled_in_random_turns_with_all_settings, 60},
        {"polled_many_in_flight", polled_many_in_flight, 30},
        {"reductions_larger_than_the_stage", reductions_larger_than_the_stage, 30},
        {"one_rank_needs_nobody", one_rank_needs_nobody, 10},
        {"defaults_are_filled_in", defaults_are_filled_in, 10},
        {"mistakes_in_creation", mistakes_in_creation, 10},
        {"mistakes_in_calls", mistakes_in_calls, 10},
        {"neighbours_do_not_overlap", neighbours_do_not_overlap, 10},
        {"different_calls_name_both_on_both_sides", different_calls_name_both_on_both_sides, 60},
        {"different_settings_are_told", different_settings_are_told, 10},
        {"small_frames_take_either_way", small_frames_take_either_way, 10},
        {"late_rank_times_out_by_name", late_rank_times_out_by_name, 10},
        {"request_timeout_beats_the_groups", request_timeout_beats_the_groups, 10},
        {"poll_keeps_its_budget", poll_keeps_its_budget, 10},
        {"poll_reads_what_is_there", poll_reads_what_is_there, 10},
        {"leaving_is_no_failure_for_those_who_are_done",
            leaving_is_no_failure_for_those_who_are_done, 10},
        {"abort_reaches_ranks_that_never_talked", abort_reaches_ranks_that_never_talked, 30},
        {"destroy_in_flight", destroy_in_flight, 10},
        {"creation_survives_every_refusal", creation_survives_every_refusal, 10},
        {"chains_are_followed_in_frames", chains_are_followed_in_frames, 20},
        {"deadlines_count_while_every_frame_moves_something",
            deadlines_count_while_every_frame_moves_something, 20},
        {"groups_take_the_memory_that_is_documented", groups_take_the_memory_that_is_documented,
            10},
        {"a_hub_takes_memory_for_pairs_that_talk", a_hub_takes_memory_for_pairs_that_talk, 10},
        {"unexpected_data_fits_the_window", unexpected_data_fits_the_window, 120},
        {"ranks_with_different_windows", ranks_with_different_windows, 60},
        {"a_window_out_of_range", a_window_out_of_range, 10},
        {"running_out_of_memory_in_an_operation", running_out_of_memory_in_an_operation, 60},
        {"running_out_of_memory_in_a_batch", running_out_of_memory_in_a_batch, 30},
        {"no_allocation_after_warm_up", no_allocation_after_warm_up, 30},
#ifndef CDP_NO_THREADS
        {"destroying_a_group_does_not_search_the_others",
            destroying_a_group_does_not_search_the_others, 120},
#endif
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
