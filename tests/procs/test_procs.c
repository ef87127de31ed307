/*  test_procs.c - real processes and real sockets on this machine: what they agree on, also when
    they call different things, and while strangers connect

        gcc -O2 -g -std=gnu11 -I. -Itests tests/procs/test_procs.c -o t -pthread -lm
        ./t [--list] [--repeat N] [--long] [WORD...]        see procs.h */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "procs.h"

/* ---- >>hello --------------------------------------------------------------------------------- */

static int hello_rank(uint32_t rank) {
    uint32_t x = rank + 1;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    T_EQ(rank, cdp_rank(world));
    T_EQ(size, cdp_size(world));
    must(cdp_barrier(world), "barrier");
    must(cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM), "allreduce");
    T_EQ(size * (size + 1) / 2, x);
    leave();
    return 0;
}

TEST(hello) {
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 16};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        job(sizes[i]);
        spawn_all(hello_rank);
        if (!finish(5000)) return;
    }
}

static int late_rank(uint32_t rank) {
    if (rank == 2) test_sleep_ms(1000);
    return hello_rank(rank);
}

TEST(hello_late_rank) {
    job(4);
    spawn_all(late_rank);
    finish(5000);
}

/* The others first, the rank that serves the store 300 ms later. */
static int late_zero(uint32_t rank) {
    if (rank == 0) test_sleep_ms(300);
    return hello_rank(rank);
}

TEST(hello_rank_0_comes_last) {
    job(4);
    spawn_all(late_zero);
    finish(5000);
}

TEST(hello_ten_jobs_at_once) {
    job(3);
    for (uint32_t j = 0; j < 10; ++j) {
        port = free_port(NULL);
        spawn_all(hello_rank);
    }
    finish(10000);
}

/* Ten jobs one after the other on one port, at once after each other. */
TEST(hello_same_port_again) {
    job(3);
    const uint16_t same = port;
    for (uint32_t j = 0; j < 10; ++j) {
        job(3);
        port = same;
        spawn_all(hello_rank);
        if (!finish(5000)) return;
    }
}

/* ---- >>collectives against a serial reference ------------------------------------------------ */

/* Rank r's element i: small whole numbers, exact in every dtype; none negative in u8, and no sum
   of 16 ranks wraps. */
static int64_t element(cdp_dtype t, uint32_t rank, uint64_t i, uint32_t salt) {
    const int64_t v = (int64_t)((i * 5 + rank * 11 + salt * 3 + (i >> 5)) & 15);
    return t == CDP_DTYPE_U8 ? v : v - 7;
}

static void put(cdp_dtype t, void *at, uint64_t i, double v) {
    if (t == CDP_DTYPE_F32) ((float *)at)[i] = (float)v;
    if (t == CDP_DTYPE_F64) ((double *)at)[i] = v;
    if (t == CDP_DTYPE_I32) ((int32_t *)at)[i] = (int32_t)v;
    if (t == CDP_DTYPE_I64) ((int64_t *)at)[i] = (int64_t)v;
    if (t == CDP_DTYPE_U8) ((uint8_t *)at)[i] = (uint8_t)v;
}

static double get(cdp_dtype t, const void *at, uint64_t i) {
    if (t == CDP_DTYPE_F32) return (double)((const float *)at)[i];
    if (t == CDP_DTYPE_F64) return ((const double *)at)[i];
    if (t == CDP_DTYPE_I32) return ((const int32_t *)at)[i];
    if (t == CDP_DTYPE_I64) return (double)((const int64_t *)at)[i];
    return ((const uint8_t *)at)[i];
}

static void fill(cdp_dtype t, void *at, uint64_t count, uint32_t rank, uint32_t salt) {
    for (uint64_t i = 0; i < count; ++i)
        put(t, at, i, (double)element(t, rank, i, salt));
}

static double reduced(cdp_dtype t, cdp_reduce_op op, uint64_t i, uint32_t salt) {
    int64_t v = element(t, 0, i, salt);
    for (uint32_t r = 1; r < size; ++r) {
        const int64_t x = element(t, r, i, salt);
        if (op == CDP_REDUCE_MIN)
            v = x < v ? x : v;
        else if (op == CDP_REDUCE_MAX)
            v = x > v ? x : v;
        else
            v += x;
    }
    if (op != CDP_REDUCE_AVG) return (double)v;
    if (t == CDP_DTYPE_F32) return (double)((float)v / (float)size);
    if (t == CDP_DTYPE_F64) return (double)v / (double)size;
    return (double)((2 * v + (v < 0 ? -1 : 1) * (int64_t)size) / (2 * (int64_t)size));
}

static bool sweep_async; /* start, look or poll until done, instead of waiting in the call */

static cdp_status run(cdp_request rq) {
    cdp_work w;
    cdp_status st = cdp_start(world, &rq, &w);
    if (st != CDP_OK) return st;
    if (!sweep_async) return cdp_work_wait(w);
    if (settings.group.no_thread)
        while (cdp_work_test(w) == CDP_PENDING && cdp_poll(world, 50) == CDP_OK)
            sched_yield(); /* ranks may be more than processors: to the one that has to answer */
    else
        for (uint32_t i = 0; (st = cdp_work_test(w)) == CDP_PENDING && i < 50; ++i)
            usleep(i);
    return cdp_work_wait(w); /* says the same, or waits for the rest */
}

/* Guards behind every buffer: nobody writes past the end. */
#define GUARD 64u
static void guard(void *buffer, uint64_t bytes) {
    memset((char *)buffer + bytes, 0x5c, GUARD);
}
static bool guarded(const void *buffer, uint64_t bytes) {
    for (uint32_t i = 0; i < GUARD; ++i)
        if (((const unsigned char *)buffer)[bytes + i] != 0x5c) return false;
    return true;
}

static bool same_bits_everywhere(const void *data, uint64_t bytes) {
    uint64_t h[16] = {0}, mine = hash_of(data, bytes);
    if (!must(cdp_allgather(world, &mine, h, 1, CDP_DTYPE_I64), "hashes")) return false;
    for (uint32_t r = 0; r < size; ++r)
        if (!test_check(h[r] == mine, test__now.name, 0, "rank %u has other bits than this one", r))
            return false;
    return true;
}

static void check_allreduce(
    uint32_t rank, cdp_dtype t, cdp_reduce_op op, uint64_t count, bool in_place, uint32_t salt) {
    const uint64_t bytes = count * cdp_dtype_size(t);
    void *in = malloc(bytes + GUARD), *out = malloc(bytes + GUARD);
    guard(out, bytes);
    fill(t, in_place ? out : in, count, rank, salt);
    if (must(run((cdp_request){.kind = CDP_COLL_ALLREDUCE,
                 .in = in_place ? NULL : in,
                 .out = out,
                 .count = count,
                 .dtype = t,
                 .op = op}),
            "allreduce")) {
        for (uint64_t i = 0; i < count; ++i)
            if (get(t, out, i) != reduced(t, op, i, salt)) {
                test_check(false, test__now.name, 0,
                    "allreduce of %llu x %s %s over %u ranks: element %llu is %g, not %g",
                    (unsigned long long)count, cdp_dtype_name(t), cdp_reduce_name(op), size,
                    (unsigned long long)i, get(t, out, i), reduced(t, op, i, salt));
                break;
            }
        T(guarded(out, bytes));
    }
    free(in);
    free(out);
}

static void check_broadcast(
    uint32_t rank, cdp_dtype t, uint64_t count, uint32_t root, uint32_t salt) {
    const uint64_t bytes = count * cdp_dtype_size(t);
    void *data = malloc(bytes + GUARD);
    memset(data, 0xee, bytes);
    guard(data, bytes);
    if (rank == root) fill(t, data, count, root, salt);
    if (must(
            run((cdp_request){
                .kind = CDP_COLL_BROADCAST, .out = data, .count = count, .dtype = t, .root = root}),
            "broadcast")) {
        for (uint64_t i = 0; i < count; ++i)
            if (!test_check(get(t, data, i) == (double)element(t, root, i, salt), test__now.name, 0,
                    "broadcast of %llu x %s from %u: element %llu is wrong",
                    (unsigned long long)count, cdp_dtype_name(t), root, (unsigned long long)i))
                break;
        T(guarded(data, bytes));
    }
    free(data);
}

static void check_allgather(
    uint32_t rank, cdp_dtype t, uint64_t count, bool in_place, uint32_t salt) {
    const uint64_t bytes = count * cdp_dtype_size(t);
    void *in = malloc(bytes + 1), *out = malloc(bytes * size + GUARD);
    memset(out, 0xee, bytes * size);
    guard(out, bytes * size);
    fill(t, in_place ? (char *)out + rank * bytes : in, count, rank, salt);
    if (must(run((cdp_request){.kind = CDP_COLL_ALLGATHER,
                 .in = in_place ? NULL : in,
                 .out = out,
                 .count = count,
                 .dtype = t}),
            "allgather")) {
        bool ok = true;
        for (uint32_t r = 0; r < size && ok; ++r)
            for (uint64_t i = 0; i < count && ok; ++i)
                ok = test_check(get(t, out, r * count + i) == (double)element(t, r, i, salt),
                    test__now.name, 0, "allgather of %llu x %s: element %llu of rank %u is wrong",
                    (unsigned long long)count, cdp_dtype_name(t), (unsigned long long)i, r);
        T(guarded(out, bytes * size));
    }
    free(in);
    free(out);
}

/* Nobody leaves a barrier before everybody has come to it. */
static void check_barrier(uint32_t times) {
    for (uint32_t k = 1; k <= times; ++k) {
        __atomic_add_fetch(&shared->arrived, 1, __ATOMIC_ACQ_REL);
        must(run((cdp_request){.kind = CDP_COLL_BARRIER}), "barrier");
        T(seen(&shared->arrived) >= k * size);
    }
}

static int sweep_rank(uint32_t rank) {
    const uint64_t counts[] = {0, 1, size - 1, size, size + 1, 1000, 20011};
    uint32_t salt = 0;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    check_barrier(10);
    for (cdp_dtype t = CDP_DTYPE_F32; t <= CDP_DTYPE_U8; ++t)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; ++c) {
            for (cdp_reduce_op op = CDP_REDUCE_SUM; op <= CDP_REDUCE_MAX; ++op, ++salt)
                /* a sanitizer sees each operation with some of the counts and dtypes */
                if (!TEST_SLOW || (uint32_t)op % 4 == (c + (uint32_t)t) % 4)
                    check_allreduce(rank, t, op, counts[c], (salt & 1) != 0, salt);
            ++salt;
            check_broadcast(rank, t, counts[c], salt % size, salt);
            check_allgather(rank, t, counts[c], (salt & 1) != 0, salt);
            if (test__now.failed_checks) return EXIT_CHECK;
        }
    leave();
    return 0;
}

static const uint32_t all_sizes[] = {1, 2, 3, 4, 5, 7, 8};

static void sweep(const uint32_t *sizes, size_t n, bool async, cdp_tcp_desc d) {
    for (size_t i = 0; i < n; ++i) {
        job(sizes[i]);
        settings.group.no_thread = d.group.no_thread;
        settings.group.no_spin = d.group.no_spin;
        settings.group.small_bytes = d.group.small_bytes;
        settings.group.piece_bytes = d.group.piece_bytes;
        settings.connections = d.connections;
        sweep_async = async;
        spawn_all(sweep_rank);
        if (!finish(20000)) return;
    }
}
#define SWEEP(sizes, async, ...) \
    sweep((sizes), sizeof(sizes) / sizeof *(sizes), (async), (cdp_tcp_desc){__VA_ARGS__})

static const uint32_t some_sizes[] = {2, 3, 4}, more_sizes[] = {1, 5, 8}, odd_sizes[] = {2, 3, 7};

TEST(collectives) {
    SWEEP(all_sizes, false, .group.rank = 0);
}
TEST(collectives_async) {
    SWEEP(more_sizes, true, .group.rank = 0);
}
TEST(collectives_no_thread) {
    SWEEP(some_sizes, false, .group.no_thread = true);
}
TEST(collectives_no_thread_polled) {
    SWEEP(more_sizes, true, .group.no_thread = true);
}
TEST(collectives_no_spin) {
    SWEEP(some_sizes, true, .group.no_spin = true);
}
TEST(collectives_all_large) {
    SWEEP(all_sizes, false, .group.small_bytes = 1, .group.piece_bytes = 1000);
}
TEST(collectives_all_small) {
    SWEEP(odd_sizes, false, .group.small_bytes = 1u << 30, .group.piece_bytes = 777);
}

TEST(collectives_several_connections) {
    SWEEP(odd_sizes, true, .connections = 3);
}

/* 300000 elements, over the limit where the ring takes over. */
static int large_rank(uint32_t rank) {
    uint32_t salt = 5;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    for (cdp_dtype t = CDP_DTYPE_F32; t <= CDP_DTYPE_U8; ++t) {
        if (TEST_SLOW && t != CDP_DTYPE_F32 && t != CDP_DTYPE_U8) continue;
        check_allreduce(
            rank, t, (cdp_reduce_op)(CDP_REDUCE_SUM + salt % 4), 300000, (salt & 1) != 0, salt);
        ++salt;
        check_broadcast(rank, t, 300000, salt % size, salt);
        if (t == CDP_DTYPE_F32 || t == CDP_DTYPE_U8)
            check_allgather(rank, t, 300000, (salt & 1) != 0, salt);
    }
    leave();
    return 0;
}

TEST(collectives_of_300000) {
    static const uint32_t sizes[] = {2, 3, 4, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        job(sizes[i]);
        spawn_all(large_rank);
        if (!finish(20000)) return;
    }
}

static int huge_rank(uint32_t rank) {
    if (join(rank) != CDP_OK) return EXIT_INIT;
    /* a sanitizer sees the same in 12 MiB: more than one slice of everything */
    check_allreduce(rank, CDP_DTYPE_F32, CDP_REDUCE_SUM, (TEST_SLOW ? 3u : 16u) << 20, true, 1);
    leave();
    return 0;
}

TEST(collectives_of_64_mib) {
    for (uint32_t k = 1; k <= 3; k += 2) {
        job(5 - k);
        settings.connections = k;
        spawn_all(huge_rank);
        if (!finish(20000)) return;
    }
}

/* Floats whose sum depends on the order: every rank must still have the same bits, and the same
   as in the last run. */
static int bits_rank(uint32_t rank) {
    const uint64_t count = size == 4 ? 300000 : 20011;
    float *x = (float *)malloc(count * sizeof *x);
    uint64_t state = 77 + rank;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    for (uint32_t k = 0; k < 2; ++k) {
        for (uint64_t i = 0; i < count; ++i)
            x[i] = (float)((double)(int64_t)test_random(&state) / 3e15) * (i % 7 ? 1.0f : 1e-6f);
        for (cdp_reduce_op op = CDP_REDUCE_SUM; op <= CDP_REDUCE_MAX; ++op) {
            float *y = (float *)malloc(count * sizeof *y);
            must(cdp_allreduce(world, x, y, k ? count : 1000, CDP_DTYPE_F32, op), "allreduce");
            same_bits_everywhere(y, (k ? count : 1000) * sizeof *y);
            me->number[0] = me->number[0] * 31 + hash_of(y, 1000 * sizeof *y);
            free(y);
        }
    }
    free(x);
    leave();
    return 0;
}

TEST(collectives_same_bits) {
    for (size_t i = 1; i < sizeof all_sizes / sizeof *all_sizes; ++i) {
        uint64_t before = 0;
        way first = over;
        for (uint32_t again = 0; again < 2; ++again) {
            job(all_sizes[i]);
            if (again) over = first; /* other links, other orders */
            first = over;
            spawn_all(bits_rank);
            if (!finish(10000)) return;
            T(!again || before == shared->of[0].number[0]);
            before = shared->of[0].number[0];
        }
    }
}

/* Many in flight, waited for in another order, from two threads. */
#define FLIGHT 40u

typedef struct flight {
    cdp_work work[FLIGHT];
    cdp_status status[FLIGHT];
} flight;

static void *flight_waiter(void *arg) {
    flight *f = (flight *)arg;
    for (uint32_t k = 0; k < FLIGHT; k += 2)
        f->status[k] = cdp_work_wait(f->work[k]);
    return NULL;
}

static int flight_rank(uint32_t rank) {
    static int64_t data[FLIGHT][3000];
    if (join(rank) != CDP_OK) return EXIT_INIT;
    for (uint32_t again = 0; again < 3; ++again) {
        flight f;
        pthread_t waiter;
        for (uint32_t k = 0; k < FLIGHT; ++k) {
            const uint64_t count = 1 + k * 75;
            fill(CDP_DTYPE_I64, data[k], count, rank, k);
            must(cdp_allreduce_async(
                     world, NULL, data[k], count, CDP_DTYPE_I64, CDP_REDUCE_SUM, &f.work[k]),
                "start");
        }
        pthread_create(&waiter, NULL, flight_waiter, &f);
        for (uint32_t k = FLIGHT; k-- > 0;)
            if (k & 1) f.status[k] = cdp_work_wait(f.work[k]);
        pthread_join(waiter, NULL);
        for (uint32_t k = 0; k < FLIGHT; ++k) {
            T_EQ(CDP_OK, f.status[k]);
            for (uint64_t i = 0; i < 1 + k * 75; i += 37)
                T_EQ(reduced(CDP_DTYPE_I64, CDP_REDUCE_SUM, i, k), data[k][i]);
        }
    }
    leave();
    return 0;
}

TEST(collectives_many_in_flight) {
    for (size_t i = 0; i < sizeof some_sizes / sizeof *some_sizes; ++i) {
        job(some_sizes[i]);
        spawn_all(flight_rank);
        if (!finish(10000)) return;
    }
}

/* ---- >>ddp ----------------------------------------------------------------------------------- */

#define PARAMS 9u
static const uint64_t param_counts[PARAMS] = {7, 1000, 0, 1, 4096, 333, 20000, 5, 2500};

/* Whole numbers, so that the mean over 2, 4 or 8 ranks is exact; over 3 it is the same quotient
   as in the reference. */
static double grad_value(uint32_t rank, uint32_t step, uint32_t p, uint64_t i) {
    return (double)((i * 3 + rank * 7 + step * 5 + p) % 64) - 20;
}

static void ddp_check(
    const char *what, cdp_dtype t, const void *grad, uint32_t p, uint32_t first, uint32_t last) {
    for (uint64_t i = 0; i < param_counts[p]; ++i) {
        double sum = 0, want;
        for (uint32_t r = 0; r < size; ++r)
            for (uint32_t s = first; s <= last; ++s)
                sum += grad_value(r, s, p, i);
        want = t == CDP_DTYPE_F32 ? (double)((float)sum / (float)size) : sum / size;
        if (!test_check(get(t, grad, i) == want, test__now.name, 0,
                "%s: gradient %u[%llu] is %g, not %g", what, p, (unsigned long long)i,
                get(t, grad, i), want))
            return;
    }
}

static int ddp_rank(uint32_t rank) {
    cdp_param params[PARAMS];
    cdp_ddp *ddp;
    void *own[PARAMS];
    if (join(rank) != CDP_OK) return EXIT_INIT;
    memset(params, 0, sizeof params);
    for (uint32_t p = 0; p < PARAMS; ++p) {
        const cdp_dtype t = p % 4 == 3 ? CDP_DTYPE_F64 : CDP_DTYPE_F32;
        params[p].data = calloc(param_counts[p] + 1, 8);
        own[p] = p % 3 == 1 ? calloc(param_counts[p] + 1, 8) : NULL;
        params[p].grad = own[p];
        params[p].count = param_counts[p];
        params[p].dtype = t;
        for (uint64_t i = 0; i < param_counts[p]; ++i)
            put(t, params[p].data, i, (double)(rank * 100 + p + i % 10));
    }
    if (!must(cdp_ddp_create(&(cdp_ddp_desc){.group = world,
                                 .params = params,
                                 .param_count = PARAMS,
                                 .first_bucket_bytes = 1024,
                                 .bucket_bytes = 20000},
                  &ddp),
            "ddp_create"))
        return EXIT_CALL;
    T(cdp_ddp_stats_of(ddp).bucket_count >= 4);
    for (uint32_t p = 0; p < PARAMS; ++p)
        for (uint64_t i = 0; i < param_counts[p]; ++i)
            if (!T_EQ(p + i % 10, get(params[p].dtype, params[p].data, i))) break; /* rank 0's */
    for (uint32_t step = 0; step < 12; ++step) {
        /* 0: alone; 1, 2 stay local, 3 sends the sum of 1 .. 3 */
        const bool local = step % 4 == 1 || step % 4 == 2;
        const uint32_t first = step % 4 == 3 ? step - 2 : step;
        must(cdp_ddp_no_sync(ddp, local), "no_sync");
        must(cdp_ddp_backward_begin(ddp), "backward_begin");
        for (uint32_t k = 0; k < PARAMS; ++k) {
            /* ranks may be ready in different orders */
            const uint32_t p = rank % 2 && step % 3 == 0 ? k : PARAMS - 1 - k;
            void *grad = own[p] ? own[p] : cdp_ddp_grad(ddp, p);
            for (uint64_t i = 0; i < param_counts[p]; ++i)
                put(params[p].dtype, grad, i,
                    grad_value(rank, step, p, i)
                        + (step % 4 >= 2 ? get(params[p].dtype, grad, i) : 0));
            must(cdp_ddp_ready(ddp, p), "ready");
        }
        must(cdp_ddp_backward_end(ddp), "backward_end");
        for (uint32_t p = 0; p < PARAMS && !local; ++p)
            ddp_check(own[p] ? "own" : "bucket", params[p].dtype,
                own[p] ? own[p] : cdp_ddp_grad(ddp, p), p, first, step);
        if (test__now.failed_checks) return EXIT_CHECK;
    }
    cdp_ddp_destroy(ddp);
    for (uint32_t p = 0; p < PARAMS; ++p) {
        free(params[p].data);
        free(own[p]);
    }
    leave();
    return 0;
}

TEST(ddp_is_the_serial_mean) {
    for (size_t i = 0; i < sizeof all_sizes / sizeof *all_sizes; ++i)
        for (uint32_t no_thread = 0; no_thread < 2; ++no_thread) {
            job(all_sizes[i]);
            settings.group.no_thread = no_thread;
            spawn_all(ddp_rank);
            if (!finish(10000)) return;
        }
}

/* ---- >>mismatch: ranks that call different things -------------------------------------------- */

typedef struct difference {
    const char *what;
    cdp_request usual, other;
    const char *text_usual, *text_other; /* both must be in everybody's text */
} difference;

static const difference *differs;
static uint32_t odd_one; /* who calls `other` */
static uint32_t patience_ms = 1200;
static double buffer_a[200000], buffer_b[200000];

static int differing_rank(uint32_t rank) {
    cdp_request rq = rank == odd_one ? differs->other : differs->usual;
    cdp_work w;
    cdp_status st = join(rank);
    if (st != CDP_OK) return EXIT_INIT;
    st = CALL(cdp_barrier(world)); /* a faster rank may already have seen the difference */
    rq.in = rq.kind == CDP_COLL_BARRIER || rq.kind == CDP_COLL_BROADCAST ? NULL : buffer_a;
    rq.out = rq.kind == CDP_COLL_BARRIER ? NULL : buffer_b;
    /* who is done with the first may hear of it in the next */
    for (uint32_t i = 0; st == CDP_OK && i < 3; ++i) {
        me->began_ns = test_now_ns();
        st = note(cdp_start(world, &rq, &w));
        if (st == CDP_OK) st = note(cdp_work_wait(w));
        rq = differs->usual;
        rq.in = rq.kind == CDP_COLL_BARRIER || rq.kind == CDP_COLL_BROADCAST ? NULL : buffer_a;
        rq.out = rq.kind == CDP_COLL_BARRIER ? NULL : buffer_b;
    }
    if (st == CDP_OK) CALL(cdp_barrier(world)); /* a root that only sent hears of it here */
    printf("%s\n", cdp_last_error()->text);
    leave();
    return 0;
}

static void mismatch(const difference *d, uint32_t n, uint32_t odd) {
    differs = d;
    odd_one = odd;
    job(n);
    settings.group.timeout_ms = patience_ms * LONGER;
    spawn_all(differing_rank);
    finish(8000);
    for (uint32_t r = 0; r < size; ++r) {
        const report *p = &shared->of[r];
        test_check(p->error.status == CDP_ERR_MISMATCH && strstr(p->error.text, differs->text_usual)
                && strstr(p->error.text, differs->text_other),
            test__now.name, 0, "%s, %u ranks, rank %u differs: rank %u reports %s: %s",
            differs->what, size, odd_one, r, cdp_status_name(p->error.status), p->error.text);
    }
}

static const uint32_t mismatch_worlds[] = {2, 3, 4, 5};

TEST(mismatched_calls) {
    static const difference differences[] = {
        {"kind", {.kind = CDP_COLL_ALLREDUCE, .count = 100},
            {.kind = CDP_COLL_ALLGATHER, .count = 100}, "allreduce #2 of 100 x f32",
            "allgather #2 of 100 x f32"},
        {"barrier", {.kind = CDP_COLL_ALLREDUCE, .count = 100}, {.kind = CDP_COLL_BARRIER},
            "allreduce #2", "barrier #2"},
        {"count", {.kind = CDP_COLL_ALLREDUCE, .count = 100},
            {.kind = CDP_COLL_ALLREDUCE, .count = 101}, "of 100 x f32", "of 101 x f32"},
        {"large count", {.kind = CDP_COLL_ALLREDUCE, .count = 100000},
            {.kind = CDP_COLL_ALLREDUCE, .count = 50}, "of 100000 x f32", "of 50 x f32"},
        {"dtype", {.kind = CDP_COLL_ALLREDUCE, .count = 100},
            {.kind = CDP_COLL_ALLREDUCE, .count = 100, .dtype = CDP_DTYPE_I32}, "x f32", "x i32"},
        {"op", {.kind = CDP_COLL_ALLREDUCE, .count = 100},
            {.kind = CDP_COLL_ALLREDUCE, .count = 100, .op = CDP_REDUCE_MAX}, "sum", "max"},
        {"broadcast count", {.kind = CDP_COLL_BROADCAST, .count = 100},
            {.kind = CDP_COLL_BROADCAST, .count = 90}, "of 100 x", "of 90 x"},
    };
    for (size_t d = 0; d < sizeof differences / sizeof *differences; ++d)
        for (size_t w = 0; w < 4 && test__now.failed_checks < 8; ++w)
            mismatch(&differences[d], mismatch_worlds[w],
                (uint32_t)(test_random(&dice) % mismatch_worlds[w]));
}

/* Ranks that disagree about who sends: nobody may send, or two may. Then it is noticed when
   somebody waits long, and the others may be further by then. */
TEST(mismatched_roots) {
    static const difference root = {"root", {.kind = CDP_COLL_BROADCAST, .count = 100},
        {.kind = CDP_COLL_BROADCAST, .count = 100, .root = 1}, "broadcast", "from rank "};
    static const uint32_t worlds[] = {2, 2, 3, 4, 5}, odds[] = {0, 1, 2, 3, 0};
    for (size_t i = 0; i < sizeof odds / sizeof *odds; i += TEST_SLOW ? 2 : 1)
        mismatch(&root, worlds[i], odds[i]);
    /* nobody sends: noticed long before the deadline */
    patience_ms = 60000;
    mismatch(&root, 2, 0);
    for (uint32_t r = 0; r < size; ++r)
        T_WITHIN(2500, shared->of[r].error_ns - shared->of[r].began_ns);
    patience_ms = 1200;
}

static int joiner_small_bytes(uint32_t rank) {
    settings.group.small_bytes = 1000;
    return joiner(rank);
}

static int joiner_piece_bytes(uint32_t rank) {
    settings.group.piece_bytes = 1000;
    return joiner(rank);
}

static int joiner_world_4(uint32_t rank) {
    size = 4;
    return joiner(rank);
}

TEST(mismatched_settings) {
    job(3);
    spawn(0, joiner);
    spawn(1, joiner);
    spawn(2, joiner_small_bytes);
    finish(5000);
    check_all("small_bytes", CDP_ERR_MISMATCH, "small_bytes", "rank 2", 1000);
    job(3);
    spawn(0, joiner);
    spawn(1, joiner_piece_bytes);
    spawn(2, joiner);
    finish(5000);
    check_all("piece_bytes", CDP_ERR_MISMATCH, "piece_bytes", "rank 1", 1000);
    job(3);
    spawn(0, joiner);
    spawn(1, joiner);
    spawn(2, joiner_world_4);
    finish(5000);
    check_all("world size", CDP_ERR_MISMATCH, "WORLD_SIZE is 4", "3 on rank 0", 1000);
}

typedef struct model {
    const char *what;
    cdp_param usual[3], other[3];
    uint32_t count_other;
    const char *words[3];
} model;

static const model *models;

static int model_rank(uint32_t rank) {
    static double memory[3][64];
    cdp_param params[3];
    cdp_ddp *ddp = NULL;
    memcpy(params, rank == odd_one ? models->other : models->usual, sizeof params);
    for (uint32_t i = 0; i < 3; ++i)
        params[i].data = memory[i];
    if (join(rank) != CDP_OK) return EXIT_INIT;
    CALL(cdp_ddp_create(&(cdp_ddp_desc){.group = world,
                            .params = params,
                            .param_count = rank == odd_one ? models->count_other : 3},
        &ddp));
    printf("%s\n", cdp_last_error()->text);
    cdp_ddp_destroy(ddp);
    leave();
    return 0;
}

TEST(mismatched_models) {
    static const model different[] = {
        {"count",
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16},
                {.name = "out", .count = 8}},
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 17},
                {.name = "out", .count = 9}},
            3, {"hidden", "16", "17"}},
        {"name",
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16},
                {.name = "out", .count = 8}},
            {{.name = "embed", .count = 8}, {.name = "hiddem", .count = 16},
                {.name = "out", .count = 8}},
            3, {"hidden", "hiddem", "1"}},
        {"dtype",
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16},
                {.name = "out", .count = 8}},
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16},
                {.name = "out", .count = 8, .dtype = CDP_DTYPE_F64}},
            3, {"out", "f32", "f64"}},
        {"number",
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16},
                {.name = "out", .count = 8}},
            {{.name = "embed", .count = 8}, {.name = "hidden", .count = 16}}, 2, {"out", "3", "2"}},
    };
    static const uint32_t worlds[] = {2, 4};
    for (size_t d = 0; d < sizeof different / sizeof *different; ++d)
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; ++w) {
            models = &different[d];
            job(worlds[w]);
            odd_one = (uint32_t)(test_random(&dice) % size);
            spawn_all(model_rank);
            finish(5000);
            for (uint32_t r = 0; r < size; ++r) {
                const report *p = &shared->of[r];
                test_check(p->error.status == CDP_ERR_MISMATCH
                        && strstr(p->error.text, models->words[0])
                        && strstr(p->error.text, models->words[1])
                        && strstr(p->error.text, models->words[2]),
                    test__now.name, 0, "%s, %u ranks, rank %u differs: rank %u reports %s: %s",
                    models->what, size, odd_one, r,
                    p->error_ns ? cdp_status_name(p->error.status) : "nothing", p->error.text);
            }
        }
}

/* ---- >>desync: one rank falls out of step; tests/sim/desync.c does more of this -------------- */

typedef enum astray {
    LATE,
    CRASHED,
    STOPPED,
    SKIPPED,
    EXTRA,
    REORDERED,
    TORN_DOWN,
    WRONG_COUNT,
    WRONG_DTYPE,
    WRONG_ROOT,
    ASTRAY
} astray;
static const char *const astray_names[ASTRAY] = {"late", "crashed", "stopped", "skipped one",
    "one too many", "wrong order", "torn down", "wrong count", "wrong dtype", "wrong root"};
static astray astray_how;
static uint32_t astray_rank, astray_at;

/* Operation i of everybody; no two have the same length. */
static cdp_status step_of(uint32_t i, uint64_t more, cdp_dtype t, uint32_t other_root) {
    static const cdp_coll_kind kinds[] = {CDP_COLL_ALLREDUCE, CDP_COLL_BROADCAST, CDP_COLL_REDUCE,
        CDP_COLL_ALLGATHER, CDP_COLL_SCATTER, CDP_COLL_GATHER, CDP_COLL_ALLTOALL,
        CDP_COLL_REDUCE_SCATTER};
    static float in[8 * 4000], out[8 * 4000];
    cdp_request rq = {.kind = kinds[i % 8],
        .in = in,
        .out = out,
        .count = 1000 + 7 * i + more,
        .dtype = t,
        .root = (i + other_root) % size};
    cdp_work w;
    cdp_status st = CALL(cdp_start(world, &rq, &w));
    return st == CDP_OK ? note(cdp_work_wait(w)) : st;
}

static int astray_main(uint32_t rank) {
    const bool odd = rank == astray_rank;
    cdp_status st = join(rank);
    for (uint32_t i = 0; i < 16 && st == CDP_OK; ++i) {
        if (!odd || i != astray_at) {
            st = step_of(i, 0, CDP_DTYPE_F32, 0);
            continue;
        }
        switch (astray_how) {
        case LATE:
            test_sleep_ms(settings.group.timeout_ms * 5 / 2);
            st = step_of(i, 0, CDP_DTYPE_F32, 0);
            break;
        case CRASHED: raise(SIGKILL); break;
        case STOPPED: raise(SIGSTOP); break;
        case SKIPPED: break;
        case EXTRA:
            st = step_of(i + 17, 0, CDP_DTYPE_F32, 0);
            if (st == CDP_OK) st = step_of(i, 0, CDP_DTYPE_F32, 0);
            break;
        case REORDERED:
            st = step_of(i + 1, 0, CDP_DTYPE_F32, 0);
            if (st == CDP_OK) st = step_of(i++, 0, CDP_DTYPE_F32, 0);
            break;
        case TORN_DOWN: leave(); return 0;
        case WRONG_COUNT: st = step_of(i, 1, CDP_DTYPE_F32, 0); break;
        case WRONG_DTYPE: st = step_of(i, 0, CDP_DTYPE_I32, 0); break;
        default: st = step_of(i, 0, CDP_DTYPE_F32, 1); break;
        }
    }
    if (st == CDP_OK) st = CALL(cdp_barrier(world));
    leave();
    return 0;
}

TEST(out_of_step) {
    const uint32_t tries = TEST_SLOW ? ASTRAY : 2 * ASTRAY;
    uint32_t right = 0;
    for (uint32_t k = 0; k < tries; ++k) {
        const uint32_t n = 2 + (uint32_t)(test_random(&dice) % 5);
        bool named = true;
        job(n);
        settings.group.timeout_ms = 600 * LONGER;
        astray_how = (astray)(k % ASTRAY);
        astray_rank = (uint32_t)(test_random(&dice) % n);
        astray_at = 2 + (uint32_t)(test_random(&dice) % 10);
        if (astray_how == WRONG_ROOT)
            while (astray_at % 8 != 1 && astray_at % 8 != 2 && astray_at % 8 != 4
                && astray_at % 8 != 5)
                ++astray_at;
        spawn_all(astray_main);
        if (astray_how == CRASHED || astray_how == STOPPED) procs[astray_rank].expect = -SIGKILL;
        /* until the others have reported */
        for (uint32_t r = 0; r < n && astray_how == STOPPED; ++r)
            for (uint32_t t = 0; r != astray_rank && t < 200 * TEST_LATE
                 && !__atomic_load_n(&shared->of[r].error_ns, __ATOMIC_ACQUIRE);
                 ++t)
                test_sleep_ms(10);
        if (astray_how == STOPPED) kill_process(astray_rank, SIGKILL);
        finish(8000);
        for (uint32_t r = 0; r < n; ++r) {
            const report *p = &shared->of[r];
            const double ms = (double)(p->error_ns - p->began_ns) / 1e6;
            char calls[32];
            bool ok;
            snprintf(calls, sizeof calls, "rank %u calls ", astray_rank);
            if (r == astray_rank) continue;
            ok = p->error.peer == (int32_t)astray_rank
                || (p->error.status == CDP_ERR_MISMATCH && strstr(p->error.text, calls));
            test_check(p->error_ns && ms < settings.group.timeout_ms * 1.1 + 400 * TEST_LATE,
                test__now.name, 0,
                "%s: rank %u of %u, operation %u: rank %u reports %s after %.0f ms: %s",
                astray_names[astray_how], astray_rank, n, astray_at, r,
                cdp_status_name(p->error.status), ms, p->error.text);
            if (!ok)
                printf("  %s: rank %u of %u, operation %u: rank %u blames %d: %s\n",
                    astray_names[astray_how], astray_rank, n, astray_at, r, (int)p->error.peer,
                    p->error.text);
            named = named && ok;
        }
        right += named;
    }
    printf("  the right rank is named in %u of %u jobs\n", right, tries);
    test_check(right + 1 >= tries, test__now.name, 0,
        "the right rank is named in only %u of %u jobs", right, tries);
}

/* ---- >>strangers ----------------------------------------------------------------------------- */

/* The job: it begins when the strangers have come, so that its connections are made among
   theirs. */
static int worker(uint32_t rank) {
    uint64_t end;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    tell(&me->phase, 2);
    while (seen(&shared->go) == 0)
        usleep(500);
    end = test_now_ns() + 500000000u;
    for (uint32_t more = 1; more;) { /* rank 0 says when it is enough */
        int64_t x[64];
        for (uint32_t i = 0; i < 64; ++i)
            x[i] = rank;
        if (!must(cdp_allreduce(world, NULL, x, 64, CDP_DTYPE_I64, CDP_REDUCE_SUM), "allreduce"))
            return EXIT_CALL;
        for (uint32_t i = 0; i < 64; ++i)
            T_EQ(size * (size - 1) / 2, x[i]);
        check_allreduce(rank, CDP_DTYPE_F32, CDP_REDUCE_SUM, 30000, true, (uint32_t)me->number[0]);
        if (test__now.failed_checks) return EXIT_CHECK;
        ++me->number[0];
        more = test_now_ns() < end;
        if (!must(cdp_broadcast(world, &more, 1, CDP_DTYPE_I32, 0), "broadcast")) return EXIT_CALL;
    }
    leave();
    return 0;
}

static int call_at(const cdp_addr *a) {
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_port = htons(a->port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(&s.sin_addr, a->ip, 4);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&s, sizeof s) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void say(int fd, const void *data, size_t bytes) {
    /* they may have hung up already */
    if (fd >= 0 && send(fd, data, bytes, MSG_NOSIGNAL) < 0) return;
}

typedef enum stranger_kind {
    SAYS_GARBAGE,
    HALF_A_HELLO,
    SAYS_NOTHING,
    COMES_AND_GOES,
    WRONG_HELLOS,
    FLOODS,
    STRANGERS
} stranger_kind;
static stranger_kind stranger_is;

static void wrong_hellos(const cdp_addr *at, uint32_t to) {
    cdp__hello h = {.type = CDP__HELLO,
        .version = CDP_WIRE_VERSION + 1,
        .world_size = size,
        .from = size - 1,
        .to = to};
    uint8_t raw[CDP__HELLO_BYTES], answer[CDP__HELLO_BYTES];
    struct timeval limit = {.tv_sec = 2 * LONGER};
    int fd = call_at(at);
    cdp__hello_encode(&h, raw);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    say(fd, raw, sizeof raw);
    T_EQ(sizeof answer, recv(fd, answer, sizeof answer, MSG_WAITALL));
    T(cdp__hello_decode(answer, &h) && h.type == CDP__REFUSED && h.refusal == CDP__REFUSE_VERSION
        && h.version == CDP_WIRE_VERSION);
    /* nobody learns the name of the job here */
    for (uint32_t i = 0; i < CDP__JOB_BYTES; ++i)
        T_EQ(0, h.job[i]);
    close(fd);
    h = (cdp__hello){.type = CDP__HELLO,
        .version = CDP_WIRE_VERSION,
        .order = (uint8_t)cdp__byte_order(),
        .world_size = size,
        .from = size - 1,
        .to = to};
    cdp__hello_encode(&h, raw);
    fd = call_at(at);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    say(fd, raw, sizeof raw);
    T_EQ(sizeof answer, recv(fd, answer, sizeof answer, MSG_WAITALL));
    T(cdp__hello_decode(answer, &h) && h.type == CDP__REFUSED && h.refusal == CDP__REFUSE_JOB);
    close(fd);
}

static int stranger(uint32_t rank) {
    cdp_store *store;
    cdp_addr at[9];
    uint64_t state = test_now_ns();
    uint32_t held = 20;
    if (stranger_is == FLOODS) held = 0;
    if (stranger_is == SAYS_NOTHING) held = 150;
    (void)rank;
    if (!must(
            cdp_tcp_store_create(&(cdp_tcp_store_desc){.host = "127.0.0.1", .port = port}, &store),
            "store"))
        return EXIT_CALL;
    for (uint32_t r = 0; r < size; ++r) {
        char key[64];
        void *value;
        uint64_t bytes;
        if (!name_of_key(store, key, "addr", r)
            || !must(cdp_store_get(store, key, &value, &bytes, 2000), "get")
            || !T(cdp__addr_parse((const char *)value + CDP__PLACE_BYTES, &at[r])))
            return EXIT_CALL;
        cdp_store_free(store, value);
    }
    cdp_store_destroy(store);
    at[size] = at[0];
    at[size].port = port; /* and the store */
    for (uint32_t r = 0; r < size && stranger_is == WRONG_HELLOS; ++r)
        wrong_hellos(&at[r], r);
    for (uint32_t i = 0; i < held * (size + 1); ++i) {
        unsigned char junk[3000];
        const int fd = call_at(&at[i % (size + 1)]);
        for (size_t k = 0; k < sizeof junk; ++k)
            junk[k] = (unsigned char)test_random(&state);
        if (stranger_is == SAYS_GARBAGE) say(fd, junk, sizeof junk);
        if (stranger_is == HALF_A_HELLO) say(fd, "cdp-link\1\0\0\0\1", 11 + i % 3);
        if (stranger_is == COMES_AND_GOES || stranger_is == WRONG_HELLOS) close(fd);
    } /* what was not closed stays open until this process ends */
    tell(&shared->go, 1);
    for (uint32_t i = 0; i < 3000 && stranger_is == FLOODS; ++i) {
        const int fd = call_at(&at[i % (size + 1)]);
        if (i % 3 == 0) say(fd, "GET / HTTP/1.1\r\n\r\n", 18);
        if (fd >= 0) close(fd);
    }
    while (seen(&shared->of[0].phase) < 9)
        test_sleep_ms(5);
    return 0;
}

static int worker_then_say(uint32_t rank) {
    const int code = worker(rank);
    tell(&me->phase, 9);
    return code;
}

TEST(strangers) {
    for (stranger_is = SAYS_GARBAGE; stranger_is < STRANGERS; ++stranger_is) {
        job(4);
        spawn_all(worker_then_say);
        if (await_phase(2, NOBODY, 5000)) spawn(0, stranger);
        if (!finish(10000)) printf("  (strangers of kind %u)\n", stranger_is);
        /* the job went on meanwhile; how far, says nothing under a sanitizer */
        else
            T(shared->of[0].number[0] > (TEST_SLOW ? 0 : 20 / TEST_SLACK));
    }
}

/* A second start on the port of a job that runs: it waits for the next one, and the job goes on. */
static int intruder(uint32_t rank) {
    settings.init_timeout_ms = 1000 * LONGER;
    if (join(rank) == CDP_OK) leave();
    tell(&me->phase, 9);
    if (victim == rank)
        for (;;)
            pause(); /* killed, with whatever it has left behind */
    return 0;
}

static int intruder_world_4(uint32_t rank) {
    size = 4;
    return intruder(rank);
}

TEST(start_into_a_running_job) {
    for (uint32_t i = 0; i < 4; ++i) {
        uint32_t late;
        job(3);
        victim = NOBODY;
        spawn_all(worker_then_say);
        await_phase(2, NOBODY, 5000);
        tell(&shared->go, 1);
        test_sleep_ms(100);
        if (i == 2) victim = i % 3;
        late = spawn(i % 3, i == 3 ? intruder_world_4 : intruder);
        if (i == 2) { /* and it is killed at any moment of its start */
            usleep((useconds_t)(test_random(&dice) % 3000));
            kill_process(late, SIGKILL);
        }
        if (!finish(5000))
            printf("  (intruder %u: %s)\n", i, shared->of[late].error.text);
        else if (i != 2)
            test_check(shared->of[late].error.status == (i % 3 ? CDP_ERR_TIMEOUT : CDP_ERR_IO),
                test__now.name, 0, "intruder %u: %s: %s", i,
                cdp_status_name(shared->of[late].error.status), shared->of[late].error.text);
    }
}

/* The machine gives rank 0 few descriptors, and strangers at the store want them all. */
static int poor_worker(uint32_t rank) {
    const struct rlimit few = {64, 64};
    if (rank == 0) setrlimit(RLIMIT_NOFILE, &few);
    return worker_then_say(rank);
}

static int crowd(uint32_t rank) {
    const cdp_addr at = {.family = 4, .ip = {127, 0, 0, 1}, .port = port};
    (void)rank;
    for (uint32_t i = 0; i < 200; ++i)
        call_at(&at);
    tell(&shared->go, 1);
    while (seen(&shared->of[0].phase) < 9)
        test_sleep_ms(5);
    return 0;
}

TEST(strangers_take_all_descriptors) {
    job(3);
    settings.group.timeout_ms = 3000 * LONGER;
    spawn_all(poor_worker);
    if (await_phase(2, NOBODY, 5000)) spawn(0, crowd);
    finish(10000);
}

/* ---- >>cost: waiting takes no processor time ------------------------------------------------- */

static int waiter(uint32_t rank) {
    struct timespec a, b;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    must(cdp_barrier(world), "barrier");
    if (rank == size - 1) test_sleep_ms(long_runs ? 10000 : 2000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    must(cdp_barrier(world), "barrier");
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    me->number[0] = (uint64_t)((b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000);
    leave();
    return 0;
}

TEST(waiting_costs_nothing) {
    const uint32_t n = long_runs ? 9 : 5;
    uint64_t most = 0;
    job(n);
    over = OVER_MEMORY; /* sockets wait in the same poll */
    spawn_all(waiter);
    finish(long_runs ? 40000 : 8000);
    for (uint32_t r = 0; r + 1 < n; ++r)
        most = shared->of[r].number[0] > most ? shared->of[r].number[0] : most;
    printf("  %u ranks: %u seconds of waiting took at most %.1f ms of processor time each\n", n - 1,
        long_runs ? 10 : 2, (double)most / 1e3);
    T(most < 60000u * TEST_SLACK);
}

/* Somebody connects to a rank's port and closes, as fast as the machine allows, from two
   processes. */
static int flooding_stranger(uint32_t rank) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct linger hard = {1, 0};
    (void)rank;
    while (!seen(&shared->go))
        test_sleep_ms(1);
    a.sin_port = htons((uint16_t)shared->of[0].number[1]);
    while (seen(&shared->go) == 1) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (fd < 0) continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        (void)!connect(fd, (struct sockaddr *)&a, sizeof a);
        ++me->number[0];
        close(fd);
    }
    return 0;
}

static int flooded_rank(uint32_t rank) {
    const uint64_t until = test_now_ns() + 3000000000u;
    float x = 1;
    if (rank >= 2) return flooding_stranger(rank);
    size = 2;
    over = OVER_TCP;
    if (join(rank) != CDP_OK) return EXIT_INIT;
    if (rank == 0) {
        me->number[1] = port;
        tell(&shared->go, 1);
    }
    do {
        const uint64_t began = test_now_ns();
        x = test_now_ns() < until; /* all go on, or none */
        if (!must(cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_MIN), "allreduce"))
            break;
        if (test_now_ns() - began > me->number[2]) me->number[2] = test_now_ns() - began;
        ++me->number[3];
    } while (x != 0);
    tell(&shared->go, 2);
    leave();
    return 0;
}

TEST(a_flood_of_strangers_stops_nobody) {
    job(4);
    settings.group.timeout_ms = 5000 * LONGER;
    spawn_all(flooded_rank);
    finish(20000);
    printf("  %llu connections and %llu operations in 3 s, the longest %.1f ms\n",
        (unsigned long long)(shared->of[2].number[0] + shared->of[3].number[0]),
        (unsigned long long)shared->of[0].number[3], (double)shared->of[0].number[2] / 1e6);
    T(shared->of[2].number[0] + shared->of[3].number[0] > 1000);
    T(shared->of[0].number[3] > 10);
    T_WITHIN(500, shared->of[0].number[2]);
}

static const test_case cases[] = {
    {"hello", hello, 30},
    {"hello_late_rank", hello_late_rank, 10},
    {"hello_rank_0_comes_last", hello_rank_0_comes_last, 10},
    {"hello_ten_jobs_at_once", hello_ten_jobs_at_once, 20},
    {"hello_same_port_again", hello_same_port_again, 30},
    {"collectives", collectives, 60},
    {"collectives_async", collectives_async, 60},
    {"collectives_no_thread", collectives_no_thread, 60},
    {"collectives_no_thread_polled", collectives_no_thread_polled, 60},
    {"collectives_no_spin", collectives_no_spin, 60},
    {"collectives_all_large", collectives_all_large, 60},
    {"collectives_all_small", collectives_all_small, 60},
    {"collectives_several_connections", collectives_several_connections, 120},
    {"collectives_of_300000", collectives_of_300000, 60},
    {"collectives_of_64_mib", collectives_of_64_mib, 60},
    {"collectives_same_bits", collectives_same_bits, 60},
    {"collectives_many_in_flight", collectives_many_in_flight, 60},
    {"ddp_is_the_serial_mean", ddp_is_the_serial_mean, 60},
    {"mismatched_calls", mismatched_calls, 90},
    {"mismatched_roots", mismatched_roots, 90},
    {"mismatched_settings", mismatched_settings, 30},
    {"mismatched_models", mismatched_models, 30},
    {"a_flood_of_strangers_stops_nobody", a_flood_of_strangers_stops_nobody, 40},
    {"start_into_a_running_job", start_into_a_running_job, 30},
    {"strangers", strangers, 60},
    {"strangers_take_all_descriptors", strangers_take_all_descriptors, 20},
    {"out_of_step", out_of_step, 90},
    {"waiting_costs_nothing", waiting_costs_nothing, 20},
};

int main(int argc, char **argv) {
    return procs_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
