/* Groups over the hub. Everything above the line "ranks are threads" runs with CDP_NO_THREADS,
   too: there all ranks live in one thread and are polled in turn. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include <sys/wait.h>

#include <errno.h>
#include <math.h>
#include <sys/resource.h>

static const uint32_t world_sizes[] = {1, 2, 3, 4, 5, 7, 8};
#define WORLD_SIZES 7

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
        if (!world_open(&w, world_sizes[s], &like, 0)) return;
        for (uint32_t k = 0; call_number(k, w.n, 5000, &c); ++k)
            run_polled(&w, &c, 1, NULL);
        world_close(&w);
    }
}

TEST(polled_in_random_turns_with_all_settings) {
    uint64_t state = 11;
    const int runs = TEST_SLOW || !test_more() ? 50 : 150;
    for (int run = 0; run < (TEST_OWN_THREADS ? 3 : runs); ++run) {
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

typedef struct every_call {
    uint64_t largest;
} every_call;

static void rank_every_call(cdp_group *g, void *arg) {
    const every_call *e = (const every_call *)arg;
    const uint32_t n = cdp_size(g), rank = cdp_rank(g);
    call c;
    for (uint32_t k = 0; call_number(k, n, e->largest, &c); ++k) {
        call_memory m;
        cdp_status st = CDP_ERR_INTERNAL;
        call_fill(&c, n, rank, &m);
        const void *in = c.in_place ? NULL : m.in;
        if (c.kind == CDP_COLL_ALLREDUCE) st = cdp_allreduce(g, in, m.out, c.count, c.dtype, c.op);
        if (c.kind == CDP_COLL_ALLGATHER) st = cdp_allgather(g, in, m.out, c.count, c.dtype);
        if (c.kind == CDP_COLL_BROADCAST) st = cdp_broadcast(g, m.out, c.count, c.dtype, c.root);
        if (c.kind == CDP_COLL_BARRIER) st = cdp_barrier(g);
        if (!test_check(st == CDP_OK, __FILE__, __LINE__, "%s: %s", cdp_status_name(st),
                cdp_last_error()->text))
            return;
        call_check(&c, n, rank, &m);
    }
}

TEST(threads_every_call_blocking) {
    every_call e = {TEST_SLOW ? 7000 : 70000};
    for (int s = 0; s < WORLD_SIZES; ++s)
        run_ranks(world_sizes[s], NULL, 0, rank_every_call, &e);
}

TEST(threads_every_call_small_rings_no_spin) {
    every_call e = {1500};
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.no_spin = true;
    like.piece_bytes = 333;
    like.small_bytes = 1;
    run_ranks(3, &like, 1024, rank_every_call, &e);
    like.no_thread = true;
    like.no_spin = false;
    like.small_bytes = 1u << 30;
    run_ranks(5, &like, 512, rank_every_call, &e);
}

/* Many in flight; waited for in an order of its own on every rank, some twice, some only tested. */
static void rank_async(cdp_group *g, void *arg) {
    enum {
        COUNT = 130
    };
    const uint32_t n = cdp_size(g), rank = cdp_rank(g);
    uint64_t same = *(uint64_t *)arg, own = rank + 1;
    call calls[COUNT];
    call_memory m[COUNT];
    cdp_work work[COUNT];
    uint32_t order[COUNT];
    for (uint32_t k = 0; k < COUNT; ++k) {
        calls[k] = call_random(&same, n, k % 10 ? 500 : 30000);
        call_fill(&calls[k], n, rank, &m[k]);
        const cdp_request rq = call_request(&calls[k], &m[k]);
        const call *c = &calls[k];
        cdp_status st;
        if (k % 2)
            st = cdp_start(g, &rq, &work[k]);
        else if (c->kind == CDP_COLL_ALLREDUCE)
            st = cdp_allreduce_async(g, rq.in, rq.out, c->count, c->dtype, c->op, &work[k]);
        else if (c->kind == CDP_COLL_ALLGATHER)
            st = cdp_allgather_async(g, rq.in, rq.out, c->count, c->dtype, &work[k]);
        else if (c->kind == CDP_COLL_BROADCAST)
            st = cdp_broadcast_async(g, rq.out, c->count, c->dtype, c->root, &work[k]);
        else
            st = cdp_barrier_async(g, &work[k]);
        if (!T_EQ(CDP_OK, st)) return;
        order[k] = k;
        if (test_random(&own) % 20 == 0) test_sleep_ms(1);
    }
    for (uint32_t k = COUNT; k-- > 1;) {
        const uint32_t i = (uint32_t)(test_random(&own) % (k + 1)), t = order[k];
        order[k] = order[i];
        order[i] = t;
    }
    for (uint32_t k = 0; k < COUNT; ++k) {
        const cdp_work w = work[order[k]];
        if (test_random(&own) % 4 == 0)
            while (cdp_work_test(w) == CDP_PENDING)
                test_sleep_ms(1);
        else
            T_EQ(CDP_OK, cdp_work_wait(w));
        if (test_random(&own) % 4 == 0) T_EQ(CDP_OK, cdp_work_wait(w));
        T_EQ(CDP_OK, cdp_work_test(w));
        call_check(&calls[order[k]], n, rank, &m[order[k]]);
    }
}

TEST(threads_many_in_flight) {
    for (int s = 0; s < WORLD_SIZES; ++s) {
        uint64_t seed = 31 + (uint64_t)s;
        cdp_group_desc like;
        memset(&like, 0, sizeof like);
        run_ranks(world_sizes[s], &like, 0, rank_async, &seed);
        like.no_thread = true;
        run_ranks(world_sizes[s], &like, 2000, rank_async, &seed);
    }
}

/* Several threads of one rank wait for different operations of one group at once. */
typedef struct waiter {
    pthread_t id;
    cdp_work work;
    cdp_status got;
} waiter;

static void *waiter_main(void *p) {
    waiter *w = (waiter *)p;
    w->got = cdp_work_wait(w->work);
    return NULL;
}

static void rank_with_waiters(cdp_group *g, void *arg) {
    float x[6][2000];
    waiter w[6];
    (void)arg;
    for (int round = 0; round < 40; ++round) {
        for (int i = 0; i < 6; ++i) {
            for (int k = 0; k < 2000; ++k)
                x[i][k] = (float)(i + (int)cdp_rank(g));
            T_EQ(CDP_OK,
                cdp_allreduce_async(
                    g, NULL, x[i], 2000, CDP_DTYPE_F32, CDP_REDUCE_MAX, &w[i].work));
        }
        for (int i = 6; i-- > 0;)
            pthread_create(&w[i].id, NULL, waiter_main, &w[i]);
        for (int i = 0; i < 6; ++i)
            pthread_join(w[i].id, NULL);
        for (int i = 0; i < 6; ++i)
            T(w[i].got == CDP_OK && x[i][0] == (float)(i + (int)cdp_size(g) - 1)
                && x[i][1999] == x[i][0]);
    }
}

TEST(threads_several_waiters_per_rank) {
    run_ranks(3, NULL, 0, rank_with_waiters, NULL);
}

/* ---- the same bits everywhere ---- */

typedef struct bits_case {
    cdp_dtype dtype;
    cdp_reduce_op op;
    uint64_t count;
    uint64_t first_hash;
    int runs;
} bits_case;

/* Any floats: NaNs of both signs and several payloads, infinities, zeros of both signs,
   denormals. */
static void wild_floats(cdp_dtype dtype, void *at, uint64_t count, uint32_t rank) {
    uint64_t state = 77 + rank;
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t r = test_random(&state), kind = r >> 60;
        if (dtype == CDP_DTYPE_F32) {
            const uint32_t odd[4] = {0x7fc00000u | (uint32_t)(r & 0xfff),
                0xffc00000u | (uint32_t)(r & 0xfff), 0x7f800000u, 0x80000000u};
            uint32_t bits = 0x3f000000u + (uint32_t)(r & 0x81ffffffu);
            if (kind < 6) bits = (uint32_t)(r & 0x807fffffu);
            if (kind < 4) bits = odd[kind];
            memcpy((uint8_t *)at + 4 * i, &bits, 4);
        } else {
            const uint64_t odd[4] = {0x7ff8000000000000u | (r & 0xfff),
                0xfff8000000000000u | (r & 0xfff), 0xfff0000000000000u, 0x8000000000000000u};
            const uint64_t bits =
                kind < 4 ? odd[kind] : 0x3fe0000000000000u + (r & 0x800fffffffffffffu);
            memcpy((uint8_t *)at + 8 * i, &bits, 8);
        }
    }
}

static void rank_bits(cdp_group *g, void *arg) {
    bits_case *b = (bits_case *)arg;
    const uint32_t n = cdp_size(g);
    const uint64_t bytes = b->count * cdp_dtype_size(b->dtype);
    void *x = aligned_alloc(64, (bytes + 63) / 64 * 64);
    uint64_t hash[RANKS_MAX];
    for (int run = 0; run < 2; ++run) { /* and again on the next run */
        wild_floats(b->dtype, x, b->count, cdp_rank(g));
        T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, b->count, b->dtype, b->op));
        hash[cdp_rank(g)] = cdp__hash(CDP__HASH_START, x, bytes);
        T_EQ(CDP_OK, cdp_allgather(g, NULL, hash, 1, CDP_DTYPE_I64));
        for (uint32_t r = 1; r < n; ++r)
            test_check(hash[r] == hash[0], __FILE__, __LINE__,
                "rank %u: %u ranks, %s %s, %llu elements: rank %u has other bits than rank 0",
                cdp_rank(g), n, cdp_dtype_name(b->dtype), cdp_reduce_name(b->op),
                (unsigned long long)b->count, r);
        if (cdp_rank(g) == 0 && b->runs++) T(hash[0] == b->first_hash);
        if (cdp_rank(g) == 0) b->first_hash = hash[0];
        T_EQ(CDP_OK, cdp_barrier(g));
    }
    free(x);
}

TEST(same_bits_on_every_rank_and_every_run) {
    static const uint64_t counts[] = {1, 3, 63, 64, 65, 1000, 40001};
    for (uint32_t n = 2; n <= 8; n += TEST_SLOW ? 3 : 1)
        for (int d = CDP_DTYPE_F32; d <= CDP_DTYPE_F64; ++d)
            for (int op = CDP_REDUCE_SUM; op <= CDP_REDUCE_MAX; ++op)
                for (int s = 0; s < 7; ++s) {
                    bits_case b = {(cdp_dtype)d, (cdp_reduce_op)op, counts[s], 0, 0};
                    run_ranks(n, NULL, 0, rank_bits, &b);
                    if (s == 6 && n < 5) run_ranks(n, NULL, 3001, rank_bits, &b);
                }
}

static void rank_sums_are_close(cdp_group *g, void *arg) {
    enum {
        COUNT = 20000
    };
    const uint32_t n = cdp_size(g);
    float *x = (float *)malloc(COUNT * sizeof *x);
    double *want = (double *)calloc(COUNT, sizeof *want);
    (void)arg;
    for (uint32_t r = 0; r < n; ++r) {
        uint64_t state = r + 1;
        for (int i = 0; i < COUNT; ++i) {
            const float v = (float)(int64_t)test_random(&state) / 1e18f;
            want[i] += (double)v;
            if (r == cdp_rank(g)) x[i] = v;
        }
    }
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, COUNT, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    for (int i = 0; i < COUNT; ++i)
        T(fabs((double)x[i] - want[i]) < 1e-5 * n);
    free(x);
    free(want);
}

TEST(sums_of_any_floats_are_close) {
    run_ranks(2, NULL, 0, rank_sums_are_close, NULL);
    run_ranks(7, NULL, 0, rank_sums_are_close, NULL);
}

/* ---- failures, with threads ---- */

typedef struct abort_plan {
    cdp_group *group;
    uint32_t after_us;
    uint64_t at_ns;
} abort_plan;

static void *abort_main(void *p) {
    abort_plan *a = (abort_plan *)p;
    const struct timespec t = {0, (long)a->after_us * 1000};
    nanosleep(&t, NULL);
    __atomic_store_n(&a->at_ns, test_now_ns(), __ATOMIC_SEQ_CST);
    cdp_group_abort(a->group, "somebody pressed the button");
    return NULL;
}

static void rank_until_aborted(cdp_group *g, void *arg) {
    abort_plan *a = (abort_plan *)arg;
    float *x = (float *)calloc(50000, sizeof *x);
    uint64_t state = 3;
    cdp_status st = CDP_OK;
    while (st == CDP_OK) {
        cdp_work work[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
        const uint64_t r = test_random(&state), count = r % 50000;
        if (r % 3 == 0)
            st = cdp_allreduce(g, NULL, x, count, CDP_DTYPE_F32, CDP_REDUCE_MAX);
        else if (r % 3 == 1)
            st = cdp_barrier(g);
        else
            for (int i = 0; i < 3 && st == CDP_OK; ++i)
                st = cdp_broadcast_async(
                    g, x, count, CDP_DTYPE_F32, (uint32_t)i % cdp_size(g), &work[i]);
        /* also when a later start failed: until then x is the library's */
        for (int i = 0; i < 3; ++i) {
            const cdp_status ended = cdp_work_wait(work[i]);
            if (st == CDP_OK) st = ended;
        }
    }
    const uint64_t now = test_now_ns(), at = __atomic_load_n(&a->at_ns, __ATOMIC_SEQ_CST);
    test_check(st == CDP_ERR_ABORTED, __FILE__, __LINE__, "rank %u: %s: %s", cdp_rank(g),
        cdp_status_name(st), cdp_last_error()->text);
    T_TEXT("somebody pressed the button", cdp_last_error()->text);
    T_EQ(cdp_rank(a->group), cdp_last_error()->origin);
    T_WITHIN(100, now - at);
    T_EQ(CDP_ERR_ABORTED, cdp_barrier(g));
    free(x);
}

TEST(abort_at_random_moments) {
    uint64_t state = 41;
    const int runs = TEST_SLOW ? 60 : 400;
    for (int run = 0; run < runs; ++run) {
        cdp_group_desc like;
        abort_plan a;
        pthread_t t;
        world w;
        const uint32_t n = 2 + (uint32_t)(test_random(&state) % 4);
        memset(&like, 0, sizeof like);
        memset(&a, 0, sizeof a);
        like.os = counted_os();
        like.no_thread = test_random(&state) % 2;
        if (!world_open(&w, n, &like, test_random(&state) % 2 ? 3000 : 0)) return;
        a.group = w.group[test_random(&state) % n];
        a.after_us = (uint32_t)(test_random(&state) % 3000);
        pthread_create(&t, NULL, abort_main, &a);
        world_threads(&w, rank_until_aborted, &a);
        pthread_join(t, NULL);
        world_close(&w);
        if (!T_EQ(0, counted.held)) return;
    }
}

static void rank_waits_for_nobody(cdp_group *g, void *arg) {
    const abort_plan *a = (const abort_plan *)arg;
    if (cdp_rank(g) != 0) return; /* the other one never comes */
    T_EQ(CDP_ERR_ABORTED, cdp_barrier(g));
    T_WITHIN(100, test_now_ns() - __atomic_load_n(&a->at_ns, __ATOMIC_SEQ_CST));
}

TEST(abort_while_waiting) {
    for (int no_thread = 0; no_thread < 2; ++no_thread)
        for (uint32_t who = 0; who < 2; ++who) {
            cdp_group_desc like;
            abort_plan a;
            pthread_t t;
            world w;
            memset(&like, 0, sizeof like);
            like.no_thread = no_thread;
            if (!world_open(&w, 2, &like, 0)) return;
            memset(&a, 0, sizeof a);
            a.group = w.group[who];
            a.after_us = 50000;
            pthread_create(&t, NULL, abort_main, &a);
            world_threads(&w, rank_waits_for_nobody, &a);
            pthread_join(t, NULL);
            world_close(&w);
        }
}

/* Longer than a machine stands still: or a rank that has begun too late is blamed. */
enum {
    LATE_MS = 600
};

/* Rank `arg` never comes; the others must all blame it. */
static void rank_one_is_late(cdp_group *g, void *arg) {
    const uint32_t late = *(const uint32_t *)arg, rank = cdp_rank(g);
    float x[5] = {0};
    if (rank == late) {
        test_sleep_ms(2 * LATE_MS + 100);
        return;
    }
    const uint64_t start = test_now_ns();
    T_EQ(CDP_ERR_TIMEOUT, cdp_allreduce(g, NULL, x, 5, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    const uint64_t took = test_now_ns() - start;
    T_WITHIN(LATE_MS + LATE_MS / 10, took);
    test_check(cdp_last_error()->peer == (int32_t)late, __FILE__, __LINE__,
        "rank %u of %u blames rank %d, late is rank %u: %s", rank, cdp_size(g),
        cdp_last_error()->peer, late, cdp_last_error()->text);
}

TEST(late_rank_is_named_by_its_neighbour) {
    cdp_group_desc like;
    uint32_t late = 1;
    memset(&like, 0, sizeof like);
    like.timeout_ms = LATE_MS;
    run_ranks(2, &like, 0, rank_one_is_late, &late);
    late = 0;
    run_ranks(2, &like, 0, rank_one_is_late, &late);
}

TEST(late_rank_is_named_by_everybody) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.timeout_ms = LATE_MS;
    for (uint32_t late = 0; late < 4; ++late) {
        like.small_bytes = late % 2 ? 1 : 0; /* ring, then recursive doubling */
        run_ranks(4, &like, 0, rank_one_is_late, &late);
    }
}

static void rank_leaves_when_done(cdp_group *g, void *arg) {
    float x[100] = {0};
    uint64_t state = cdp_rank(g) + 1;
    (void)arg;
    for (int i = 0; i < 20; ++i) {
        if (test_random(&state) % 8 == 0) test_sleep_ms(1);
        T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, 100, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        T_EQ(CDP_OK, cdp_barrier(g));
    }
}

typedef struct leaver {
    world *w;
    uint32_t rank;
    pthread_t id;
} leaver;

static void *leaver_main(void *p) {
    leaver *l = (leaver *)p;
    rank_leaves_when_done(l->w->group[l->rank], NULL);
    cdp_group_destroy(l->w->group[l->rank]); /* at once, whatever the others are doing */
    l->w->group[l->rank] = NULL;
    return NULL;
}

TEST(leaving_at_once_after_the_last_operation) {
    for (int run = 0; run < 60; ++run) {
        leaver l[5];
        world w;
        cdp_group_desc like;
        memset(&like, 0, sizeof like);
        like.no_thread = run % 2;
        if (!world_open(&w, 5, &like, 0)) return;
        for (uint32_t r = 0; r < 5; ++r) {
            l[r].w = &w;
            l[r].rank = r;
            pthread_create(&l[r].id, NULL, leaver_main, &l[r]);
        }
        for (uint32_t r = 0; r < 5; ++r)
            pthread_join(l[r].id, NULL);
        world_close(&w);
    }
}

static void rank_one_leaves_early(cdp_group *g, void *arg) {
    const uint32_t rank = cdp_rank(g);
    world *w = (world *)arg;
    T_EQ(CDP_OK, cdp_barrier(g));
    if (rank == 1) {
        test_sleep_ms(30);
        cdp_group_destroy(g);
        w->group[1] = NULL;
        return;
    }
    const uint64_t start = test_now_ns();
    const cdp_status st = cdp_barrier(g);
    T_EQ(CDP_ERR_PEER_LOST, st);
    T_WITHIN(130, test_now_ns() - start);
    test_check(cdp_last_error()->peer == 1, __FILE__, __LINE__, "rank %u blames rank %d: %s", rank,
        cdp_last_error()->peer, cdp_last_error()->text);
}

TEST(leaving_early_is_noticed) {
    for (uint32_t n = 2; n < 6; ++n) {
        world w;
        if (!world_open(&w, n, NULL, 0)) return;
        world_threads(&w, rank_one_leaves_early, &w);
        world_close(&w);
    }
}

/* ---- what waiting costs ---- */

static double cpu_ms(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3
        + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

static void rank_comes_late(cdp_group *g, void *arg) {
    const double *before = (const double *)arg;
    cdp_work work;
    if (cdp_rank(g) == 2) test_sleep_ms(1000);
    if (cdp_rank(g) == 1) { /* one rank leaves the waiting to its progress thread */
        T_EQ(CDP_OK, cdp_barrier_async(g, &work));
        test_sleep_ms(1000);
        T_EQ(CDP_OK, cdp_work_wait(work));
    } else {
        T_EQ(CDP_OK, cdp_barrier(g));
    }
    if (cdp_rank(g) == 0) {
        const double used = cpu_ms() - *before;
        test_check(used < 30 * TEST_SLACK, __FILE__, __LINE__,
            "a second of waiting took %.1f ms of processor time", used);
    }
}

TEST(waiting_costs_no_processor_time) {
    for (int no_thread = 0; no_thread < 2; ++no_thread) {
        cdp_group_desc like;
        memset(&like, 0, sizeof like);
        like.no_thread = no_thread;
        double before = cpu_ms();
        run_ranks(3, &like, 0, rank_comes_late, &before);
    }
}

TEST(idle_groups_cost_no_processor_time) {
    world w;
    if (!world_open(&w, 8, NULL, 0)) return;
    const double before = cpu_ms();
    test_sleep_ms(500);
    T(cpu_ms() - before < 15 * TEST_SLACK);
    world_close(&w);
}

/* Work advances in the progress thread while the caller does something else. */
static void rank_computes_meanwhile(cdp_group *g, void *arg) {
    float *x = (float *)calloc(1000000, sizeof *x);
    cdp_work work;
    (void)arg;
    T_EQ(CDP_OK, cdp_barrier(g));
    T_EQ(CDP_OK, cdp_allreduce_async(g, NULL, x, 1000000, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work));
    test_sleep_ms(200 * TEST_SLACK);
    cdp_lock_acquire(&g->w->lock);
    T(g->queue.completed >= work.seq); /* nobody waited */
    cdp_lock_release(&g->w->lock);
    T_EQ(CDP_OK, cdp_work_wait(work));
    free(x);
}

TEST(progress_without_waiting) {
    run_ranks(3, NULL, 0, rank_computes_meanwhile, NULL);
}

static void rank_allocates_nothing(cdp_group *g, void *arg) {
    enum {
        COUNT = 40
    };
    static call_memory m[4][COUNT];
    uint64_t state = 51;
    call calls[COUNT];
    int64_t before = 0;
    (void)arg;
    for (int k = 0; k < COUNT; ++k)
        calls[k] = call_random(&state, 4, 5000);
    for (int run = 0; run < 4; ++run) {
        cdp_work work[COUNT];
        T_EQ(CDP_OK, cdp_barrier(g));
        if (run == 1) before = counted.calls;
        T_EQ(CDP_OK, cdp_barrier(g));
        for (int k = 0; k < COUNT; ++k) {
            call_memory *mem = &m[cdp_rank(g)][k];
            call_fill(&calls[k], 4, cdp_rank(g), mem);
            const cdp_request rq = call_request(&calls[k], mem);
            T_EQ(CDP_OK, cdp_start(g, &rq, &work[k]));
        }
        for (int k = 0; k < COUNT; ++k) {
            T_EQ(CDP_OK, cdp_work_wait(work[k]));
            call_check(&calls[k], 4, cdp_rank(g), &m[cdp_rank(g)][k]);
        }
    }
    T_EQ(CDP_OK, cdp_barrier(g));
    test_check(counted.calls - before <= allocations_at_most(), __FILE__, __LINE__,
        "%lld allocations", (long long)(counted.calls - before));
}

TEST(threads_allocate_nothing_after_warm_up) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.os = counted_os();
    run_ranks(4, &like, 0, rank_allocates_nothing, NULL);
    T_EQ(0, counted.held);
}

static void rank_calls_what_used_to_allocate(cdp_group *g, void *arg) {
    uint64_t counts[4] = {3, 0, 5, 2};
    int64_t before = 0;
    float all[10];
    (void)arg;
    for (int run = 0; run < 200; ++run) {
        cdp_request rq;
        cdp_work work;
        T_EQ(CDP_OK, cdp_barrier(g));
        if (run == 100) before = counted.calls;
        T_EQ(CDP_OK, cdp_barrier(g));
        memset(&rq, 0, sizeof rq);
        rq.kind = CDP_COLL_ALLGATHER;
        rq.out = all;
        rq.out_counts = counts;
        T_EQ(CDP_OK, cdp_start(g, &rq, &work));
        T_EQ(CDP_OK, cdp_work_wait(work));
        T_EQ(CDP_OK, cdp_monitored_barrier(g, 20000));
    }
    T_EQ(CDP_OK, cdp_barrier(g));
    test_check(counted.calls - before <= allocations_at_most(), __FILE__, __LINE__,
        "%lld allocations", (long long)(counted.calls - before));
    T_EQ(CDP_OK, cdp_barrier(g));
}

TEST(uneven_parts_and_monitored_barriers_allocate_nothing) {
    cdp_group_desc like;
    memset(&like, 0, sizeof like);
    like.os = counted_os();
    run_ranks(4, &like, 0, rank_calls_what_used_to_allocate, NULL);
    T_EQ(0, counted.held);
}
/* ---- means ----------------------------------------------------------------------------------- */

static void means_of_rank(cdp_group *g, void *arg) {
    const int32_t sign = cdp_rank(g) ? 1 : -1;
    uint16_t f16[3] = {
        0x7bff, 0x0001, (uint16_t)(cdp_rank(g) ? 0x7e00 : 0x3c00)}; /* 65504 ... NaN */
    int8_t i8[4] = {127, -128, (int8_t)(cdp_rank(g) ? 2 : 1), (int8_t)(cdp_rank(g) ? -2 : -1)};
    uint8_t u8[2] = {255, (uint8_t)cdp_rank(g)}, e4m3 = 0x7e, truth = cdp_rank(g) ? 2 : 1;
    int32_t i32[2] = {INT32_MAX, sign}, part = 0;
    uint32_t u32 = UINT32_MAX;
    (void)arg;
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, f16, 3, CDP_DTYPE_F16, CDP_REDUCE_AVG));
    T(f16[0] == 0x7bff && f16[1] == 1 && (f16[2] & 0x7fff) > 0x7c00);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &e4m3, 1, CDP_DTYPE_F8E4M3, CDP_REDUCE_AVG));
    T_EQ(0x7e, e4m3); /* 448 */
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, i8, 4, CDP_DTYPE_I8, CDP_REDUCE_AVG));
    T(i8[0] == 127 && i8[1] == -128 && i8[2] == 2 && i8[3] == -2);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, u8, 2, CDP_DTYPE_U8, CDP_REDUCE_AVG));
    T(u8[0] == 255 && u8[1] == 1);
    T_EQ(CDP_OK, cdp_reduce(g, NULL, &u32, 1, CDP_DTYPE_U32, CDP_REDUCE_AVG, 1));
    T_EQ(UINT32_MAX, u32);
    T_EQ(CDP_OK, cdp_reduce_scatter(g, i32, &part, 1, CDP_DTYPE_I32, CDP_REDUCE_AVG));
    T_EQ(cdp_rank(g) ? 0 : INT32_MAX, part);
    T(i32[0] == INT32_MAX && i32[1] == sign);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &truth, 1, CDP_DTYPE_BOOL, CDP_REDUCE_BAND));
    T_EQ(1, truth);
}
TEST(means_do_not_overflow_and_are_rounded_once) {
    run_ranks(2, NULL, 0, means_of_rank, NULL);
}

static void wide_means_of_rank(cdp_group *g, void *arg) {
    const bool last = cdp_rank(g) == 2;
    int64_t i64[4] = {INT64_MAX, INT64_MIN, last ? 1 : 0, last ? -2 : 0};
    uint64_t u64[2] = {UINT64_MAX, last ? 2 : 0};
    (void)arg;
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, i64, 4, CDP_DTYPE_I64, CDP_REDUCE_AVG));
    T(i64[0] == INT64_MAX && i64[1] == INT64_MIN && i64[2] == 0 && i64[3] == -1);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, u64, 2, CDP_DTYPE_U64, CDP_REDUCE_AVG));
    T(u64[0] == UINT64_MAX && u64[1] == 1);
}
TEST(means_of_64_bits_do_not_wrap) {
    run_ranks(3, NULL, 0, wide_means_of_rank, NULL);
}

/* ---- a child of fork() ----------------------------------------------------------------------- */

static void rank_has_a_child(cdp_group *g, void *arg) {
    float x = 1;
    int status = -1;
    const pid_t child = fork();
    (void)arg;
    if (child == 0) {
        bool refused;
        alarm(10); /* the threads of the other rank are not here */
        refused = cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM) == CDP_ERR_STATE
            && strstr(cdp_last_error()->text, "this process is a child, by fork()") != NULL
            && cdp_barrier(g) == CDP_ERR_STATE && cdp_group_status(g) == CDP_ERR_STATE;
        cdp_group_destroy(g);
        cdp_group_destroy(g);
        _exit(refused ? 0 : 1);
    }
    T(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(x == 2);
}
TEST(a_child_leaves_its_parents_group_alone) {
    run_ranks(2, NULL, 0, rank_has_a_child, NULL);
}

/* ---- accumulate ------------------------------------------------------------------------------ */

/* 256 on rank 0, 1 on the others: a sum in bf16 loses what one in f32 keeps; `n` of them. */
static void sum_in_f32(cdp_group *g, cdp_coll_kind kind, uint64_t n) {
    const uint32_t rank = cdp_rank(g), size = cdp_size(g);
    /* bits of 256 and those after it: 258, 260, ... */
    const uint16_t one = 0x3f80, large = 0x4380, left = 0x1234;
    uint16_t *in = (uint16_t *)malloc(n * size * 2), *out = (uint16_t *)malloc(n * size * 2);
    uint16_t want = (uint16_t)(large + (size - 1) / 2);
    cdp_request rq;
    cdp_work w;
    for (uint64_t i = 0; i < n * size; ++i) {
        in[i] = rank ? one : large;
        out[i] = left;
    }
    memset(&rq, 0, sizeof rq);
    rq.kind = kind;
    rq.in = in;
    rq.out = out;
    rq.count = n;
    rq.dtype = CDP_DTYPE_BF16;
    rq.accumulate = CDP_DTYPE_F32;
    T_EQ(CDP_OK, cdp_start(g, &rq, &w));
    T_EQ(CDP_OK, cdp_work_wait(w));
    if (kind == CDP_COLL_REDUCE && rank) want = left;
    /* ranks 0 to `rank`, or to the one before; a tie goes to the even one */
    if (kind == CDP_COLL_SCAN) want = (uint16_t)(large + (rank == 3 ? 2 : rank / 2));
    if (kind == CDP_COLL_EXSCAN) want = rank ? (uint16_t)(large + (rank - 1) / 2) : left;
    if (kind == CDP_COLL_EXSCAN && rank == 4) want = (uint16_t)(large + 2);
    for (uint64_t i = 0; i < n; ++i)
        if (!T_EQ(want, out[i])) break;
    free(in);
    free(out);
}

static void rank_sums_in_f32(cdp_group *g, void *arg) {
    static const uint64_t counts[] = {1, 300, 70001};
    (void)arg;
    for (uint32_t i = 0; i < 3; ++i) {
        sum_in_f32(g, CDP_COLL_ALLREDUCE, counts[i]);
        sum_in_f32(g, CDP_COLL_REDUCE, counts[i]);
        sum_in_f32(g, CDP_COLL_REDUCE_SCATTER, counts[i]);
        sum_in_f32(g, CDP_COLL_SCAN, counts[i]);
        sum_in_f32(g, CDP_COLL_EXSCAN, counts[i]);
    }
}
TEST(sums_of_16_bits_accumulate_in_f32) {
    run_ranks(5, NULL, 0, rank_sums_in_f32, NULL);
}

static void rank_accumulates_alone(cdp_group *g, void *arg) {
    uint16_t x[2] = {0, 0};
    cdp_request rq;
    cdp_work w;
    (void)arg;
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLREDUCE;
    rq.out = x;
    rq.count = 2;
    rq.dtype = CDP_DTYPE_F16;
    rq.accumulate = CDP_DTYPE_F64;
    T_EQ(CDP_ERR_INVALID, cdp_start(g, &rq, &w));
    T_TEXT("allreduce: accumulate is 2; set it to CDP_DTYPE_F32, or leave it 0",
        cdp_last_error()->text);
    rq.accumulate = cdp_rank(g) ? CDP_DTYPE_F32 : CDP_DTYPE_DEFAULT;
    T_EQ(CDP_OK, cdp_start(g, &rq, &w));
    T_EQ(CDP_ERR_MISMATCH, cdp_work_wait(w));
    T_TEXT("f16 sum accumulated in f32", cdp_last_error()->text);
}
TEST(ranks_that_accumulate_differently_are_named) {
    run_ranks(2, NULL, 0, rank_accumulates_alone, NULL);
}
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
        {"a_child_leaves_its_parents_group_alone", a_child_leaves_its_parents_group_alone, 30},
        {"means_of_64_bits_do_not_wrap", means_of_64_bits_do_not_wrap, 20},
        {"sums_of_16_bits_accumulate_in_f32", sums_of_16_bits_accumulate_in_f32, 20},
        {"ranks_that_accumulate_differently_are_named", ranks_that_accumulate_differently_are_named,
            20},
        {"means_do_not_overflow_and_are_rounded_once", means_do_not_overflow_and_are_rounded_once,
            10},
        {"threads_every_call_blocking", threads_every_call_blocking, 120},
        {"threads_every_call_small_rings_no_spin", threads_every_call_small_rings_no_spin, 60},
        {"threads_many_in_flight", threads_many_in_flight, 60},
        {"threads_several_waiters_per_rank", threads_several_waiters_per_rank, 30},
        {"same_bits_on_every_rank_and_every_run", same_bits_on_every_rank_and_every_run, 120},
        {"sums_of_any_floats_are_close", sums_of_any_floats_are_close, 30},
        {"abort_at_random_moments", abort_at_random_moments, 120},
        {"abort_while_waiting", abort_while_waiting, 30},
        {"late_rank_is_named_by_its_neighbour", late_rank_is_named_by_its_neighbour, 20},
        {"late_rank_is_named_by_everybody", late_rank_is_named_by_everybody, 30},
        {"leaving_at_once_after_the_last_operation", leaving_at_once_after_the_last_operation, 60},
        {"leaving_early_is_noticed", leaving_early_is_noticed, 30},
        {"waiting_costs_no_processor_time", waiting_costs_no_processor_time, 30},
        {"destroying_a_group_does_not_search_the_others",
            destroying_a_group_does_not_search_the_others, 120},
        {"idle_groups_cost_no_processor_time", idle_groups_cost_no_processor_time, 10},
        {"progress_without_waiting", progress_without_waiting, 10},
        {"threads_allocate_nothing_after_warm_up", threads_allocate_nothing_after_warm_up, 30},
        {"uneven_parts_and_monitored_barriers_allocate_nothing",
            uneven_parts_and_monitored_barriers_allocate_nothing, 30},
#endif
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
