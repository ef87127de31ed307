/* What a caller can get wrong, beyond the arguments of one call (those are in test_works,
   test_group and test_lanes): numbers that cannot be meant, transports and hubs that cannot
   work, groups that are gone, functions inside functions. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include "ranks.h"

#include <math.h>

static const cdp_group_desc polled = {
    .no_thread = true, .timeout_ms = 20000, .logger = {.level = CDP_LOG_SILENT}};

/* Both works are done, or have failed: the worse answer. */
static cdp_status both(cdp_work a, cdp_work b) {
    const uint64_t until = test_until_ns(20000);
    cdp_status x, y;
    do {
        x = cdp_work_test(a);
        y = cdp_work_test(b);
    } while ((x == CDP_PENDING || y == CDP_PENDING) && test_now_ns() < until);
    return x < y ? x : y;
}

static void still_works(const world *w) {
    float x[2] = {1, 2};
    cdp_work work[2];
    if (OK(cdp_allreduce_async(
            w->group[0], NULL, &x[0], 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work[0]))
        && OK(cdp_allreduce_async(
            w->group[1], NULL, &x[1], 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work[1])))
        OK(both(work[0], work[1]));
    T(x[0] == 3 && x[1] == 3);
}

/* ---- numbers ---- */

/* A length that was -1 before it became unsigned. */
TEST(lengths_that_cannot_be) {
    static const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 63, 1ull << 63, (1ull << 63) + 5};
    _Alignas(64) static uint8_t in[64];
    _Alignas(64) static uint8_t out[64];
    world w;
    cdp_work work;
    cdp_message got;
    if (!world_open(&w, 2, &polled, 0)) return;
    cdp_group *g = w.group[0];
    for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
        const uint64_t n = lengths[i], counts[2] = {n / 2 + 1, n / 2 + 1};
        const cdp_request uneven = {.kind = CDP_COLL_ALLGATHER,
            .in = in,
            .out = out,
            .dtype = CDP_DTYPE_U8,
            .out_counts = counts};
        const cdp_transfer t = {
            .receive = true, .data = out, .count = n, .dtype = CDP_DTYPE_I8, .peer = 1};
        REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes",
            cdp_allreduce_async(g, NULL, out, n, CDP_DTYPE_U8, CDP_REDUCE_SUM, &work));
        REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes",
            cdp_allreduce_async(g, in, out, n, CDP_DTYPE_BOOL, CDP_REDUCE_MAX, &work));
        REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes",
            cdp_broadcast_async(g, out, n, CDP_DTYPE_I8, 0, &work));
        REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes",
            cdp_allgather_async(g, in, out, n / 2 + 1, CDP_DTYPE_U8, &work));
        REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes", cdp_start(g, &uneven, &work));
        REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes",
            cdp_send_async(g, in, n, CDP_DTYPE_U8, 1, 0, &work));
        REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes",
            cdp_recv_any_async(g, out, n, CDP_DTYPE_U8, CDP_ANY_RANK, 0, &got, &work));
        REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes", cdp_batch(g, &t, 1, &work));
    }
    still_works(&w);
    world_close(&w);
}

/* What a rank sends to itself it also receives. */
TEST(the_own_part_of_an_alltoall) {
    static uint8_t in[64], out[2][64];
    const uint64_t four[2] = {4, 4}, ten[2] = {10, 4};
    cdp_request rq = {.kind = CDP_COLL_ALLTOALL,
        .in = in,
        .out = out[0],
        .dtype = CDP_DTYPE_U8,
        .in_counts = ten,
        .out_counts = four};
    cdp_work work[2];
    world w;
    if (!world_open(&w, 2, &polled, 0)) return;
    REFUSED(CDP_ERR_INVALID, "own part", cdp_start(w.group[0], &rq, &work[0]));
    rq.in_counts = four;
    rq.out_counts = ten;
    REFUSED(CDP_ERR_INVALID, "own part", cdp_start(w.group[0], &rq, &work[0]));
    rq.out_counts = four;
    OK(cdp_start(w.group[0], &rq, &work[0]));
    rq.out = out[1];
    OK(cdp_start(w.group[1], &rq, &work[1]));
    OK(both(work[0], work[1]));
    world_close(&w);
}

/* Factors that are no numbers give results that are none, the same ones everywhere, and nothing
   else. */
TEST(factors_that_are_no_numbers) {
    static const double factors[] = {NAN, INFINITY, -INFINITY, 1e300};
    world w;
    if (!world_open(&w, 2, &polled, 0)) return;
    for (uint32_t i = 0; i < 4; ++i) {
        float x[2][2] = {{1, -1}, {1, 1}};
        cdp_work work[2];
        for (uint32_t r = 0; r < 2; ++r) {
            const cdp_request rq = {.kind = CDP_COLL_ALLREDUCE,
                .out = x[r],
                .count = 2,
                .op = CDP_REDUCE_PREMUL_SUM,
                .factor = r ? 2 : factors[i]};
            OK(cdp_start(w.group[r], &rq, &work[r]));
        }
        OK(both(work[0], work[1]));
        T(memcmp(x[0], x[1], sizeof x[0]) == 0 && !isfinite(x[0][0]) && !isfinite(x[0][1]));
    }
    still_works(&w);
    world_close(&w);
}

/* Settings at their limits change speed alone. */
TEST(settings_at_their_limits) {
    static const uint64_t pieces[] = {1, 3, UINT64_MAX}, ends[] = {1, UINT64_MAX};
    static float x[2][200];
    for (uint32_t k = 0; k < 12; ++k) {
        cdp_group_desc like = polled;
        cdp_work work[2];
        world w;
        like.piece_bytes = pieces[k % 3];
        like.small_bytes = ends[k / 3 % 2];
        like.expose_bytes = ends[k / 6];
        like.max_pending = like.records = 1;
        if (!world_open(&w, 2, &like, k % 2)) return;
        for (uint32_t r = 0; r < 2; ++r) {
            for (uint32_t i = 0; i < 200; ++i)
                x[r][i] = (float)(i + r);
            OK(cdp_allreduce_async(
                w.group[r], NULL, x[r], 200, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work[r]));
        }
        OK(both(work[0], work[1]));
        for (uint32_t i = 0; i < 200; ++i)
            if (!T(x[0][i] == (float)(2 * i + 1) && x[1][i] == x[0][i])) break;
        world_close(&w);
    }
}

TEST(too_many_ranks) {
    cdp_hub *hub;
    cdp_group *g;
    cdp_transport none = {.self = NULL};
    cdp_group_desc d = {.world_size = 65536, .transport = &none};
    const cdp_hub_desc h = {.world_size = 65536};
    REFUSED(CDP_ERR_INVALID, "world_size 65536 is not in 1 .. 65535", cdp_group_create(&d, &g));
    d.world_size = UINT32_MAX;
    REFUSED(CDP_ERR_INVALID, "is not in 1 .. 65535", cdp_group_create(&d, &g));
    REFUSED(CDP_ERR_INVALID, "world_size 65536 is not in 1 .. 65535", cdp_hub_create(&h, &hub));
}

/* ---- what cannot work ---- */

static int64_t no_bytes(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    (void)self;
    (void)peer;
    (void)iov;
    (void)n;
    return 0;
}
static cdp_status no_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    (void)self;
    (void)lock;
    (void)deadline_ns;
    return CDP_OK;
}
static void count_up(void *self) {
    ++*(uint32_t *)self;
}

TEST(transports_without_functions) {
    for (uint32_t lacks = 0; lacks < 5; ++lacks) {
        uint32_t destroyed = 0;
        cdp_transport t = {.self = &destroyed,
            .send = no_bytes,
            .recv = no_bytes,
            .wait = no_wait,
            .wake = count_up,
            .destroy = count_up};
        cdp_group_desc d = polled;
        cdp_group *g = NULL;
        d.world_size = 2;
        d.transport = &t;
        if (lacks == 0) t.send = NULL;
        if (lacks == 1) t.recv = NULL;
        if (lacks == 2) t.wait = NULL;
        if (lacks == 3) t.wake = NULL;
        if (lacks < 4) {
            REFUSED(CDP_ERR_INVALID, "transport", cdp_group_create(&d, &g));
            T(g == NULL);
        } else if (OK(cdp_group_create(&d, &g))) {
            cdp_group_destroy(g);
        }
        T_EQ(1, destroyed);
    }
}

/* A place in a hub is for one group, once; a call that was INVALID leaves it as it was. */
TEST(a_rank_of_a_hub_is_taken_once) {
    const cdp_choice wrong = {.kind = CDP_COLL_ALLREDUCE, .algorithm = "guessing"};
    const cdp_hub_desc h = {.world_size = 2};
    cdp_group_desc d = polled;
    cdp_group *again;
    world w = {.n = 2};
    if (!OK(cdp_hub_create(&h, &w.hub))) return;
    d.world_size = 2;
    d.hub = w.hub;
    d.choices = &wrong;
    d.choice_count = 1;
    REFUSED(CDP_ERR_INVALID, "guessing", cdp_group_create(&d, &w.group[0]));
    d.choice_count = 0;
    if (!OK(cdp_group_create(&d, &w.group[0]))) return;
    REFUSED(CDP_ERR_INVALID, "rank 0 of this hub", cdp_group_create(&d, &again));
    d.rank = 1;
    if (!OK(cdp_group_create(&d, &w.group[1]))) return;
    still_works(&w);
    cdp_group_destroy(w.group[1]);
    REFUSED(CDP_ERR_INVALID, "rank 1 of this hub", cdp_group_create(&d, &again));
    cdp_group_destroy(w.group[0]);
    cdp_hub_destroy(w.hub);
}

/* The others do not wait for a rank that had no memory for its group: it will not come. */
TEST(a_rank_without_memory_has_left) {
    const cdp_os *os = counted_os();
    int64_t fail_at;
    cdp_status st = CDP_ERR_NOMEM;
    for (fail_at = 1; fail_at < 100 && st == CDP_ERR_NOMEM; ++fail_at) {
        const cdp_hub_desc h = {.world_size = 2};
        cdp_group_desc d = polled;
        cdp_group *without, *other;
        cdp_hub *hub;
        if (!OK(cdp_hub_create(&h, &hub))) return;
        d.world_size = 2;
        d.rank = 1;
        d.hub = hub;
        if (!OK(cdp_group_create(&d, &other))) return;
        d.rank = 0;
        d.os = os;
        counted.calls = 0;
        counted.fail_at = fail_at;
        st = cdp_group_create(&d, &without);
        counted.fail_at = 0;
        if (st == CDP_ERR_NOMEM) {
            REFUSED(CDP_ERR_INVALID, "rank 0 of this hub", cdp_group_create(&d, &without));
            REFUSED(CDP_ERR_PEER_LOST, "rank 0", cdp_barrier(other));
        } else if (T_EQ(CDP_OK, st)) {
            cdp_group_destroy(without);
        }
        cdp_group_destroy(other);
        cdp_hub_destroy(hub);
    }
    T(fail_at > 3 && fail_at < 100);
}

/* Rows are of a receive, do not overlap, and lie within 2^63 bytes. */
TEST(rows_that_are_none) {
    float x[8] = {0};
    cdp_work work;
    cdp_transfer t = {.data = x, .count = 4, .peer = 1, .row = 2, .step = 4};
    world w;
    if (!world_open(&w, 2, &polled, 0)) return;
    cdp_group *g = w.group[0];
    REFUSED(CDP_ERR_INVALID, "pack them", cdp_batch(g, &t, 1, &work));
    t.receive = true;
    t.step = 1;
    REFUSED(CDP_ERR_INVALID, "rows of 2 elements that begin 1 apart", cdp_batch(g, &t, 1, &work));
    t.row = 0;
    t.step = 4;
    REFUSED(CDP_ERR_INVALID, "rows of 0 elements", cdp_batch(g, &t, 1, &work));
    t.row = 1;
    t.step = 1ull << 61;
    REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes", cdp_batch(g, &t, 1, &work));
    t.step = UINT64_MAX / 4 + 2; /* a wrong product would be small */
    REFUSED(CDP_ERR_INVALID, "more than 2^63 bytes", cdp_batch(g, &t, 1, &work));
    still_works(&w);
    world_close(&w);
}

/* The last tag is the monitored barrier's; MPI knows -1 as "any tag", which there is none of
   here. */
TEST(the_last_tag_is_taken) {
    float x = 1;
    cdp_work work;
    cdp_message got;
    const cdp_transfer t = {.data = &x, .count = 1, .peer = 1, .tag = UINT32_MAX};
    world w;
    if (!world_open(&w, 2, &polled, 0)) return;
    cdp_group *g = w.group[0];
    REFUSED(CDP_ERR_INVALID, "tag", cdp_send_async(g, &x, 1, CDP_DTYPE_F32, 1, UINT32_MAX, &work));
    REFUSED(CDP_ERR_INVALID, "tag", cdp_recv_async(g, &x, 1, CDP_DTYPE_F32, 1, UINT32_MAX, &work));
    REFUSED(CDP_ERR_INVALID, "tag",
        cdp_recv_any_async(g, &x, 1, CDP_DTYPE_F32, CDP_ANY_RANK, UINT32_MAX, &got, &work));
    REFUSED(CDP_ERR_INVALID, "tag", cdp_probe(g, 1, UINT32_MAX, &got));
    REFUSED(CDP_ERR_INVALID, "tag", cdp_batch(g, &t, 1, &work));
    still_works(&w);
    world_close(&w);
}

/* Also where a ring has one rank: the text names the call that the program made. */
TEST(nothing_is_exchanged_with_oneself) {
    float out[2] = {1, 2}, in[2] = {0, 0};
    world w;
    if (!world_open(&w, 2, &polled, 0)) return;
    cdp_group *g = w.group[0];
    REFUSED(CDP_ERR_INVALID, "cdp_sendrecv: rank 0 is this rank",
        cdp_sendrecv(g, out, 2, 0, in, 2, 0, CDP_DTYPE_F32, 0));
    REFUSED(CDP_ERR_INVALID, "cdp_sendrecv: rank 0 is this rank",
        cdp_sendrecv(g, out, 2, 0, out, 2, 1, CDP_DTYPE_F32, 0));
    REFUSED(CDP_ERR_INVALID, "cdp_sendrecv: rank 0 is this rank",
        cdp_sendrecv(g, out, 2, 1, in, 2, 0, CDP_DTYPE_F32, 0));
    REFUSED(CDP_ERR_INVALID, "cdp_sendrecv: group is NULL",
        cdp_sendrecv(NULL, out, 2, 1, in, 2, 1, CDP_DTYPE_F32, 0));
    still_works(&w);
    world_close(&w);
}

/* ---- groups that are not there ---- */

TEST(groups_that_are_gone) {
    const cdp_request rq = {.kind = CDP_COLL_BARRIER};
    char text[64];
    cdp_record r;
    cdp_work work;
    cdp_group *g;
    const cdp_group_desc d = {.world_size = 1, .no_thread = true};
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_group_compare(NULL, &rq, 1, true));
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_group_reserve(NULL, 1));
    /* the name of what the program has called */
    REFUSED(CDP_ERR_INVALID, "barrier: group is NULL", cdp_barrier(NULL));
    REFUSED(CDP_ERR_INVALID, "barrier: group is NULL", cdp_barrier_async(NULL, &work));
    REFUSED(CDP_ERR_INVALID, "barrier: group is NULL", cdp_start(NULL, &rq, &work));
    REFUSED(CDP_ERR_INVALID, "cdp_start: group is NULL", cdp_start(NULL, NULL, &work));
    if (!OK(cdp_group_create(&d, &g))) return;
    REFUSED(CDP_ERR_INVALID, "requests", cdp_group_compare(g, NULL, 1, true));
    g->magic = 0; /* what a destroyed one looks like, in memory that is still there */
    T_EQ(0, cdp_describe(g, text, sizeof text));
    T_TEXT("destroyed", cdp_last_error()->text);
    T_EQ(0, cdp_group_records(g, &r, 1));
    REFUSED(CDP_ERR_STATE, "destroyed", cdp_group_dump(g, "/nowhere/dump"));
    REFUSED(CDP_ERR_STATE, "destroyed", cdp_group_compare(g, &rq, 1, true));
    REFUSED(CDP_ERR_STATE, "destroyed", cdp_group_reserve(g, 1));
    REFUSED(CDP_ERR_STATE, "barrier: this group was destroyed", cdp_barrier(g));
    g->magic = CDP__GROUP_MAGIC;
    cdp_group_destroy(g);
}

/* More messages than a group can ever have is an error that breaks nothing. */
TEST(room_for_too_many_messages) {
    const cdp_group_desc d = {.world_size = 1, .no_thread = true};
    cdp_group *g;
    if (!OK(cdp_group_create(&d, &g))) return;
    OK(cdp_group_reserve(g, 0));
    OK(cdp_group_reserve(g, 40));
    REFUSED(CDP_ERR_NOMEM, "messages in flight", cdp_group_reserve(g, UINT32_MAX));
    OK(cdp_barrier(g));
    cdp_group_destroy(g);
}

/* Nobody waits for what was never started. */
TEST(works_that_never_were) {
    const cdp_request rq = {.kind = CDP_COLL_BARRIER};
    cdp_work work;
    cdp_group *g;
    const cdp_group_desc d = {.world_size = 1, .no_thread = true};
    if (!OK(cdp_group_create(&d, &g)) || !OK(cdp_start(g, &rq, &work))) return;
    OK(cdp_work_wait(work));
    ++work.seq;
    REFUSED(CDP_ERR_INVALID, "work #2 was not started in this group", cdp_work_wait(work));
    REFUSED(CDP_ERR_INVALID, "pass what cdp_start() has filled in", cdp_work_wait_for(work, 1));
    OK(cdp_group_status(g));
    cdp_group_destroy(g);
}

static cdp_status counts_calls(void *user, cdp_status st) {
    ++*(int *)user;
    return st;
}

/* Every call that takes a work refuses one that was never started, at once, and the group goes on:
   the next number, one far away, and one among those of messages and functions. (A work without a
   number is documented to count as done.) */
TEST(works_that_never_were_are_refused_by_every_call) {
    const cdp_request rq = {.kind = CDP_COLL_BARRIER};
    const cdp_group_desc d = {.world_size = 1, .no_thread = true, .timeout_ms = 3000};
    cdp_work real, next;
    cdp_group *g;
    int calls = 0;
    if (!OK(cdp_group_create(&d, &g)) || !OK(cdp_start(g, &rq, &real))) return;
    OK(cdp_work_wait(real));
    for (uint32_t k = 0; k < 4; ++k) {
        cdp_work never = real;
        uint64_t began;
        if (k == 0) never.seq += 1;
        if (k == 1) never.seq += 1ull << 40;
        if (k == 2) never.seq = (1ull << 63) + 7;
        if (k == 3) never.seq = (1ull << 61) + 7;
        began = test_now_ns();
        T_EQ(CDP_ERR_INVALID, cdp_work_wait(never));
        T_EQ(CDP_ERR_INVALID, cdp_work_wait_for(never, 1000));
        T_EQ(CDP_ERR_INVALID, cdp_work_test(never));
        T_EQ(CDP_ERR_INVALID, cdp_work_cancel(never));
        T_EQ(CDP_ERR_INVALID, cdp_work_then(never, counts_calls, &calls, &next));
        T_EQ(CDP_ERR_INVALID, cdp_start_after(g, &rq, never, &next));
        T(test_now_ns() - began < 1000000000u * (uint64_t)TEST_LATE);
        OK(cdp_group_status(g));
        OK(cdp_barrier(g));
        real.seq += 1;
    }
    T_EQ(0, calls);
    cdp_group_destroy(g);
}

/* ---- works ---- */

static cdp_group *outer, *inner;
static cdp_status waited;

static cdp_status nothing(void *user, cdp_status st) {
    (void)user;
    return st;
}

static cdp_status lets_another_world_advance(void *user, cdp_status st) {
    const cdp_request rq = {.kind = CDP_COLL_BARRIER};
    cdp_work work, next;
    (void)user;
    OK(cdp_start(inner, &rq, &work));
    OK(cdp_work_then(work, nothing, NULL, &next));
    /* calls `nothing` in here */
    for (uint32_t i = 0; i < 1000 && cdp_work_test(next) == CDP_PENDING; ++i) {
    }
    OK(cdp_work_test(next));
    waited = cdp_barrier(outer);
    return st;
}

/* A function that calls those of another world is still one that must not wait. */
TEST(functions_inside_functions) {
    const cdp_request rq = {.kind = CDP_COLL_BARRIER};
    const cdp_group_desc d = {.world_size = 1, .no_thread = true};
    cdp_work work, next;
    if (!OK(cdp_group_create(&d, &outer)) || !OK(cdp_group_create(&d, &inner))) return;
    OK(cdp_start(outer, &rq, &work));
    OK(cdp_work_then(work, lets_another_world_advance, NULL, &next));
    OK(cdp_work_wait(next));
    T_EQ(CDP_ERR_STATE, waited);
    OK(cdp_barrier(outer));
    cdp_group_destroy(inner);
    cdp_group_destroy(outer);
}

static cdp_ddp *trained;

static cdp_status destroys_a_ddp(void *user, cdp_status st) {
    (void)user;
    /* its bucket is still on its way, and cannot be waited for in here: nothing happens */
    cdp_ddp_destroy(trained);
    return st;
}

TEST(a_ddp_is_not_destroyed_inside_a_function) {
    static float w[2][4] = {{0}, {0}};
    cdp_work work, next;
    const cdp_request rq = {.kind = CDP_COLL_BARRIER};
    const cdp_param p[2] = {{.data = w[0], .count = 4}, {.data = w[1], .count = 4}};
    cdp_group *alone;
    world w1;
    if (!world_open(&w1, 1, &polled, 0)) return;
    alone = w1.group[0];
    const cdp_ddp_desc d = {.group = alone,
        .params = p,
        .param_count = 2,
        .bucket_bytes = 16,
        .first_bucket_bytes = 16};
    if (OK(cdp_ddp_create(&d, &trained)) && OK(cdp_ddp_backward_begin(trained))) {
        OK(cdp_ddp_ready(trained, 1));
        OK(cdp_start(alone, &rq, &work));
        OK(cdp_work_then(work, destroys_a_ddp, NULL, &next));
        OK(cdp_work_wait(next));
        OK(cdp_ddp_ready(trained, 0)); /* it is still there */
        OK(cdp_ddp_backward_end(trained));
        cdp_ddp_destroy(trained);
    }
    world_close(&w1);
}

/* All of them or none: where some are on their way already when memory ends, the group breaks
   and says so. */
TEST(a_list_that_runs_out_of_memory) {
    enum {
        N = 200
    };
    static cdp_request list[N];
    cdp_group_desc like = polled;
    cdp_work work;
    world w;
    for (uint32_t i = 0; i < N; ++i)
        list[i].kind = CDP_COLL_BARRIER;
    like.os = counted_os();
    if (!world_open(&w, 2, &like, 0)) return;
    OK(cdp_start(w.group[0], list, &work)); /* what the first one needs */
    counted.calls = 0;
    counted.fail_at = 1;
    T_EQ(CDP_ERR_NOMEM, cdp_start_all(w.group[0], list, N, &work));
    counted.fail_at = 0;
    T_EQ(CDP_ERR_NOMEM, cdp_group_status(w.group[0]));
    for (uint32_t i = 0; i < 100000 && cdp_group_status(w.group[1]) == CDP_OK; ++i)
        (void)cdp_poll(w.group[1], 10);
    T_EQ(CDP_ERR_NOMEM, cdp_group_status(w.group[1]));
    world_close(&w);
}

/* What an operation costs does not depend on how many are in flight. */
TEST(thousands_in_flight) {
    enum {
        FEW = 500,
        MANY = 16000
    };
    static float x[2][MANY];
    static cdp_work work[2][MANY];
    uint64_t took[2];
    for (uint32_t k = 0; k < 2 && !test__now.failed_checks; ++k) {
        const uint32_t n = k ? MANY : FEW;
        cdp_group_desc like = polled;
        world w;
        like.timeout_ms *= TEST_LATE; /* the last ones begin long after the first */
        if (!world_open(&w, 2, &like, 0)) return;
        for (uint32_t r = 0; r < 2; ++r)
            for (uint32_t i = 0; i < n; ++i) {
                x[r][i] = (float)(i + r);
                if (r == 1 && i == 0) took[k] = test_cpu_ns();
                if (!OK(cdp_allreduce_async(
                        w.group[r], NULL, &x[r][i], 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work[r][i])))
                    return;
            }
        OK(both(work[0][n - 1], work[1][n - 1]));
        took[k] = (test_cpu_ns() - took[k]) / n;
        for (uint32_t i = 0; i < n; ++i)
            if (!T(x[0][i] == (float)(2 * i + 1) && x[1][i] == x[0][i])) break;
        world_close(&w);
    }
    printf("  %u in flight: %llu ns each; %u: %llu ns each\n", FEW, (unsigned long long)took[0],
        MANY, (unsigned long long)took[1]);
    test_check(took[1] < 10 * took[0] + 3000 * TEST_LATE, __FILE__, __LINE__,
        "%llu ns each where %u are in flight, %llu where %u are", (unsigned long long)took[0], FEW,
        (unsigned long long)took[1], MANY);
}

TEST(descriptions_are_complete) {
    static char text[20000];
    cdp_group_desc d = {.world_size = 1, .max_pending = 17, .no_thread = true};
    cdp_group *g;
    if (!OK(cdp_group_create(&d, &g))) return;
    T(cdp_describe(g, text, sizeof text) > 100);
    T_TEXT("max_pending = 17 (set)", text);
    T_TEXT("records = 32 (default)", text);
    T_TEXT("timeout_ms = 600000 ms (default)", text);
    T_TEXT("no_thread = 1 (set)", text);
    cdp_group_destroy(g);
}

/* All who are missing from a monitored barrier are named, also where they are many. */
TEST(many_are_missing) {
    static const uint32_t some[] = {0, 90, 91, 92, 5, 3, 4};
    const cdp_hub_desc h = {.world_size = 100};
    for (uint32_t k = 0; k < 2; ++k) {
        cdp_group_desc d = polled;
        const uint32_t ms = 40 * TEST_LATE;
        char text[80];
        cdp_hub *hub;
        cdp_group *g, *part = NULL;
        if (!OK(cdp_hub_create(&h, &hub))) return;
        d.world_size = 100;
        d.hub = hub;
        if (!OK(cdp_group_create(&d, &g))) return;
        if (k == 1) OK(cdp_group_new(g, some, 7, &part));
        T_EQ(CDP_ERR_TIMEOUT, cdp_monitored_barrier(k ? part : g, ms));
        snprintf(text, sizeof text, "%s ranks have not come within %u ms: %s",
            k ? "6 of 7" : "99 of 100", ms, k ? "90 to 92, 5, 3, 4" : "1 to 99");
        T_TEXT(text, cdp_last_error()->text);
        T_EQ(k ? 90 : 1, cdp_last_error()->peer);
        cdp_group_destroy(part);
        cdp_group_destroy(g);
        cdp_hub_destroy(hub);
    }
}

/* What a ddp does besides its buckets. */
typedef struct beside {
    bool rebuilds, joins;
    const char *want;
} beside;

static void what_a_ddp_does(cdp_group *g, void *arg) {
    const beside *b = (const beside *)arg;
    float w[2] = {0}, mean[4] = {0};
    const cdp_param param = {.name = "w", .data = w, .count = 2};
    const cdp_buffer buffer = {.name = "running_mean", .data = mean, .count = 4};
    const cdp_ddp_desc d = {.group = g,
        .params = &param,
        .param_count = 1,
        .buffers = b->rebuilds ? NULL : &buffer,
        .buffer_count = b->rebuilds ? 0 : 1,
        .rebuild = b->rebuilds,
        .join = b->joins};
    cdp_ddp *ddp;
    cdp_status st;
    if (!OK(cdp_ddp_create(&d, &ddp))) return;
    if (b->rebuilds)
        T(OK(cdp_ddp_backward_begin(ddp)) && OK(cdp_ddp_ready(ddp, 0))
            && OK(cdp_ddp_backward_end(ddp)));
    st = cdp_rank(g) ? cdp_barrier(g) : cdp_ddp_forward_begin(ddp);
    if (st == CDP_OK && !cdp_rank(g))
        st = cdp_barrier(g); /* it sends, and need not wait */
    else if (!cdp_rank(g) && !b->rebuilds)
        T_TEXT("ddp 0 has the buffer 'running_mean'", cdp_last_error()->text);
    T_EQ(CDP_ERR_MISMATCH, st);
    T_TEXT(b->want, cdp_last_error()->text);
    cdp_ddp_destroy(ddp);
}

/* A rank evaluates with the ddp while the others are at a barrier: their errors say that it copies
   buffers, and of which ddp, not that it broadcasts bytes that the program knows nothing of. */
TEST(what_a_ddp_does_beside_its_buckets_is_named) {
    static const beside all[] = {
        {false, false, "of 16 x u8 from rank 0 for the buffers of ddp 0"},
        {true, false, "of 1 x u32 from rank 0 for the order of the buckets of ddp 0"},
        {false, true, "of 1 x i32 max beside the buckets of ddp 0"},
    };
    const cdp_group_desc like = {.timeout_ms = 20000, .logger = {.level = CDP_LOG_SILENT}};
    for (uint32_t i = 0; i < sizeof all / sizeof *all; ++i) {
        beside b = all[i];
        run_ranks(2, &like, 0, what_a_ddp_does, &b);
    }
}

/* A tag of a message is what the caller chose, and nothing else. */
TEST(a_tag_is_no_bucket) {
    int32_t x = 0;
    char text[80];
    cdp_work work;
    world w;
    cdp_group_desc like = polled;
    like.timeout_ms = 100 * TEST_SLACK;
    if (!world_open(&w, 2, &like, 0)) return;
    OK(cdp_recv_async(w.group[0], &x, 1, CDP_DTYPE_I32, 1, 0xdd000001u, &work));
    T_EQ(CDP_ERR_TIMEOUT, cdp_work_wait(work));
    snprintf(text, sizeof text, "message #1 of 1 x i32 with tag %u (round", 0xdd000001u);
    T_TEXT(text, cdp_last_error()->text);
    world_close(&w);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"lengths_that_cannot_be", lengths_that_cannot_be, 60},
        {"the_own_part_of_an_alltoall", the_own_part_of_an_alltoall, 60},
        {"factors_that_are_no_numbers", factors_that_are_no_numbers, 60},
        {"settings_at_their_limits", settings_at_their_limits, 60},
        {"too_many_ranks", too_many_ranks, 60},
        {"transports_without_functions", transports_without_functions, 60},
        {"a_rank_without_memory_has_left", a_rank_without_memory_has_left, 30},
        {"a_rank_of_a_hub_is_taken_once", a_rank_of_a_hub_is_taken_once, 60},
        {"rows_that_are_none", rows_that_are_none, 60},
        {"the_last_tag_is_taken", the_last_tag_is_taken, 60},
        {"nothing_is_exchanged_with_oneself", nothing_is_exchanged_with_oneself, 60},
        {"groups_that_are_gone", groups_that_are_gone, 60},
        {"works_that_never_were_are_refused_by_every_call",
            works_that_never_were_are_refused_by_every_call, 10},
        {"works_that_never_were", works_that_never_were, 30},
        {"room_for_too_many_messages", room_for_too_many_messages, 10},
        {"functions_inside_functions", functions_inside_functions, 60},
        {"a_ddp_is_not_destroyed_inside_a_function", a_ddp_is_not_destroyed_inside_a_function, 60},
        {"a_list_that_runs_out_of_memory", a_list_that_runs_out_of_memory, 60},
        {"thousands_in_flight", thousands_in_flight, 120},
        {"many_are_missing", many_are_missing, 60},
        {"descriptions_are_complete", descriptions_are_complete, 60},
        {"what_a_ddp_does_beside_its_buckets_is_named", what_a_ddp_does_beside_its_buckets_is_named,
            60},
        {"a_tag_is_no_bucket", a_tag_is_no_bucket, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
