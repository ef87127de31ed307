/* Groups with cdp_nccl.h, on the stand-in of this folder: what is claimed here is claimed of the
   library's logic, not of a GPU. tests/gpu has the programs for a real one. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_nccl.h"

#include "cards.h"

#include "models.h"
#include "operations.h"
#include "ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>

static const char *program;
static const cdp_hook_desc fp16 = {.kind = CDP_HOOK_FP16};

/* ---- operations ---- */

static void table(uint32_t n) {
    standin_set("delay_us", 0);
    standin_set("lazy", 40);
    table_brief = TEST_SLOW && n > 1; /* sanitizers look at the paths, not at the numbers */
    on_cards(n, table_of_rank, NULL);
    standin_set("delay_us", 200);
    standin_set("lazy", 4);
    clean();
}
TEST(table_1) {
    table(1);
}
TEST(table_2) {
    table(2);
}
TEST(table_3) {
    table(3);
}
TEST(table_4) {
    table(4);
}

static void old_card_of_rank(card *c) {
    void *const d = gpu_new(NULL, 8);
    FAILS(CDP_ERR_UNSUPPORTED, "8.9",
        cdp_allreduce(c->g, NULL, d, 8, CDP_DTYPE_F8E4M3, CDP_REDUCE_SUM));
    OK(cdp_broadcast(c->g, d, 8, CDP_DTYPE_F8E5M2, 0));
    OK(cdp_allreduce(c->g, NULL, d, 4, CDP_DTYPE_BF16, CDP_REDUCE_SUM));
    GPU(cudaStreamSynchronize(c->stream));
    GPU(cudaFree(d));
}
TEST(eight_bits) {
    static const struct {
        double x;
        int e4m3, e5m2;
    } f8[] = {{0, 0, 0}, {1, 0x38, 0x3c}, {-0.5, 0xb0, 0xb8}, {448, 0x7e, 0x5f}, {1e9, 0x7f, 0x7c},
        {-1e9, 0xff, 0xfc}, {1.0625, 0x38, 0x3c}, {1.1875, 0x3a, 0x3d}, {0.001953125, 1, 0x18},
        {0.0009, 0, 0x13}, {57344, 0x7f, 0x7b}, {1.52587890625e-05, 0, 1}};
    for (size_t i = 0; i < sizeof f8 / sizeof *f8; ++i) {
        uint8_t e4m3[8], e5m2[8];
        cdp__nccl_scalar(CDP_DTYPE_F8E4M3, f8[i].x, e4m3);
        cdp__nccl_scalar(CDP_DTYPE_F8E5M2, f8[i].x, e5m2);
        T_EQ(f8[i].e4m3, e4m3[0]);
        T_EQ(f8[i].e5m2, e5m2[0]);
    }
    standin_set("capability", 89);
    on_cards(2, old_card_of_rank, NULL);
    standin_set("capability", 90);
    for (uint32_t n = 1; n < 5; ++n)
        on_cards(n, eight_bits_of_rank, NULL);
    clean();
}

TEST(uneven) {
    on_cards(3, uneven_of_rank, NULL);
    clean();
}

TEST(messages) {
    on_cards(3, messages_of_rank, NULL);
    clean();
}

TEST(several_as_one) {
    on_cards(3, several_of_rank, NULL);
    clean();
}

/* ---- order ---- */

TEST(order) {
    for (int all = 0; all < 2; ++all) {
        bool waits = all == 1;
        on_cards(2, chain_of_rank, &waits);
    }
    bool waits = true;
    cards zero = {.n = 2, .zero_stream = true, .func = chain_of_rank, .arg = &waits};
    cards_run(&zero);
    clean();
}

/* The proof that `order` can fail: without any one of the waits between streams results are
   wrong. */
typedef struct planted {
    int wrong;
    long drop;
    pthread_barrier_t all;
} planted;
static void planted_of_rank(card *c) {
    planted *const p = (planted *)c->arg;
    /* on a busy machine the streams often meet in the right order by chance */
    const int most = p->drop ? 400 : 15;
    for (int i = 0; i < most && !(p->drop && __atomic_load_n(&p->wrong, __ATOMIC_SEQ_CST)); ++i) {
        pthread_barrier_wait(&p->all);
        if (c->rank == 0) standin_set("drop_wait", p->drop);
        pthread_barrier_wait(&p->all);
        const int wrong = chain(c, 1, true);
        __atomic_add_fetch(&p->wrong, wrong, __ATOMIC_SEQ_CST);
        pthread_barrier_wait(&p->all);
        standin_set("drop_wait", 0);
    }
}
TEST(order_can_fail) {
    if (TEST_OWN_THREADS) {
        test_skip("ThreadSanitizer reports the planted races themselves");
        return;
    }
    /* one operation of one rank has two waits: on the way in, and on the way out */
    for (long drop = -1; drop <= 2; ++drop) {
        planted p = {.drop = drop};
        pthread_barrier_init(&p.all, NULL, 1);
        on_cards(1, planted_of_rank, &p);
        pthread_barrier_destroy(&p.all);
        if (drop == 0)
            T_EQ(0, p.wrong);
        else
            test_check(p.wrong > 0, __FILE__, __LINE__, "without wait %ld nothing was wrong", drop);
    }
    clean();
}

/* The host never waits where it is not asked to. */
static void host_is_free_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    cdp_work w[20];
    const uint64_t start = test_now_ns();
    GPU(cudaLaunchHostFunc(c->stream, host_nap, (void *)400));
    for (int i = 0; i < 20; ++i)
        OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w[i]));
    T_EQ(CDP_PENDING, cdp_work_test(w[0]));
    for (int i = 0; i < 20; ++i)
        OK(cdp_work_wait(w[i]));
    OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    const uint64_t took = test_now_ns() - start;
    test_check(took < 390000000u || TEST_SLOW, __FILE__, __LINE__,
        "the host waited for the device: %.0f ms", (double)took / 1e6);
    T_EQ(CDP_PENDING, cdp_work_wait_for(w[19], 1));
    OK(cdp_work_wait_for(w[19], 60000));
    OK(cdp_work_test(w[0]));
    OK(cdp_work_test(w[19]));
    OK(cdp_work_wait_for(w[3], 0));
    GPU(cudaDeviceSynchronize());
    GPU(cudaFree(d));
}
static void host_waits_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    const uint64_t start = test_now_ns();
    GPU(cudaLaunchHostFunc(c->stream, host_nap, (void *)100));
    OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(test_now_ns() - start > 90000000u);
    GPU(cudaFree(d));
}
TEST(waits) {
    on_cards(2, host_is_free_of_rank, NULL);
    cards all = {.n = 2, .func = host_waits_of_rank, .desc.blocking_wait = true};
    cards_run(&all);
    clean();
}

/* Another stream of the caller from some operation on. */
static void streams_of_rank(card *c) {
    void *other;
    GPU(cudaStreamCreateWithFlags(&other, GPU_NON_BLOCKING));
    void *const first = c->stream;
    for (int i = 0; i < 6; ++i) {
        c->stream = i % 2 ? other : first;
        cdp_nccl_set_stream(c->g, c->stream);
        T_EQ(0, chain(c, 2, true));
    }
    c->stream = first;
    cdp_nccl_set_stream(c->g, first);
    GPU(cudaStreamDestroy(other));
    T_EQ(0, chain(c, 1, true));
}
TEST(other_streams) {
    on_cards(2, streams_of_rank, NULL);
    clean();
}

TEST(lifetimes) {
    on_cards(3, lifetimes_of_rank, NULL);
    clean();
}

/* ---- what a group with a backend says and refuses ---- */

static cdp_status never(void *user, cdp_status st) {
    (void)user;
    return st;
}

static void refusals_of_rank(card *c) {
    static __thread char text[65536];
    float host[8] = {0}, *d = (float *)gpu_new(NULL, 64), *far, *managed, *pinned;
    cdp_nccl_desc desc;
    cdp_work w, w2;
    memset(&desc, 0, sizeof desc);
    T(cdp_nccl_version(c->g) == 22907 && cdp_nccl_comm(c->g) && cdp_nccl_stream(c->g)
        && cdp_nccl_stream(c->g) != c->stream);
    T(cdp_group_backend(c->g) != NULL);
    cdp_describe(c->g, text, sizeof text);
    T_TEXT("NCCL", text);
    FAILS(CDP_ERR_STATE, "", cdp_nccl_attach(c->g, &desc));
    FAILS(CDP_ERR_STATE, "", cdp_group_set_backend(c->g, cdp_group_backend(c->g)));
    /* memory of the processor on one side */
    FAILS(CDP_ERR_INVALID, "", cdp_allreduce(c->g, host, d, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_INVALID, "", cdp_allreduce(c->g, d, host, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_INVALID, "", cdp_allreduce(c->g, NULL, NULL, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_allreduce(c->g, NULL, d, 8, CDP_DTYPE_I16, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_allreduce(c->g, NULL, d, 8, CDP_DTYPE_I32, CDP_REDUCE_BAND));
    FAILS(CDP_ERR_INVALID, "", cdp_broadcast(c->g, d, 8, CDP_DTYPE_F32, 99));
    FAILS(CDP_ERR_INVALID, "", cdp_allreduce(c->g, NULL, d, 8, (cdp_dtype)99, CDP_REDUCE_SUM));
    /* another device's memory; another device is current */
    OK(cdp_barrier(c->g)); /* gpu_new waits for that device */
    GPU(cudaSetDevice(1 - (int)c->device));
    far = (float *)gpu_new(NULL, 64);
    FAILS(
        CDP_ERR_INVALID, "device", cdp_allreduce(c->g, NULL, d, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaSetDevice((int)c->device));
    FAILS(CDP_ERR_INVALID, "device",
        cdp_allreduce(c->g, NULL, far, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    OK(cdp_barrier(c->g));
    /* what works of the device cannot do */
    OK(cdp_allreduce_async(c->g, NULL, d, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_work_then(w, never, NULL, &w2));
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_work_cancel(w));
    cdp_request rq = {.kind = CDP_COLL_ALLREDUCE, .out = d, .count = 1};
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_start_after(c->g, &rq, w, &w2));
    OK(cdp_work_wait_for(w, 60000));
    w.seq += 1000;
    FAILS(CDP_ERR_INVALID, "", cdp_work_wait(w));
    /* managed memory is the device's, pinned memory the processor's */
    GPU(cudaMallocManaged((void **)&managed, 64, 1));
    GPU(cudaMallocHost((void **)&pinned, 64));
    managed[0] = pinned[0] = 1;
    const long ops = standin_calls("ncclAllReduce");
    OK(cdp_allreduce(c->g, NULL, pinned, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(pinned[0] == (float)c->n);
    OK(cdp_barrier(c->g));
    T_EQ(ops, standin_calls("ncclAllReduce"));
    OK(cdp_barrier(c->g));
    OK(cdp_allreduce(c->g, NULL, managed, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaStreamSynchronize(c->stream));
    T(managed[0] == (float)c->n);
    T(standin_calls("ncclAllReduce") > ops);
    T(cdp_group_status(c->g) == CDP_OK);
    GPU(cudaDeviceSynchronize());
    OK(cdp_barrier(c->g));
    GPU(cudaFree(d));
    GPU(cudaFree(far));
    GPU(cudaFreeHost(managed));
    GPU(cudaFreeHost(pinned));
}
TEST(refusals) {
    cdp_group *alone;
    void *p = &p;
    cdp_hook hook;
    on_cards(2, refusals_of_rank, NULL);
    cdp_group_desc d = {.world_size = 1};
    OK(cdp_group_create(&d, &alone)); /* functions of a group without */
    T(cdp_nccl_version(alone) == 0 && !cdp_nccl_comm(alone) && !cdp_nccl_stream(alone)
        && !cdp_group_backend(alone));
    FAILS(CDP_ERR_INVALID, "cdp_nccl_attach", cdp_nccl_alloc(alone, 64, &p));
    FAILS(CDP_ERR_INVALID, "cdp_nccl_attach", cdp_nccl_hook_create(alone, &fp16, &hook));
    cdp_nccl_free(alone, NULL);
    cdp_nccl_set_stream(alone, NULL);
    T(cdp_nccl_attach(NULL, NULL) == CDP_ERR_INVALID);
    T(cdp_group_set_backend(alone, NULL) == CDP_ERR_INVALID);
    void *const dev = gpu_new(NULL, 8); /* device memory, but nothing attached: not a crash */
    GPU(cudaFree(dev));
    cdp_group_destroy(alone);
    cdp_nccl_free(alone, &p); /* which was destroyed */
    T(!cdp_nccl_comm(alone) && !cdp_nccl_window(alone, &p));
    FAILS(CDP_ERR_INVALID, "cdp_nccl_attach", cdp_nccl_alloc(alone, 64, &p));
    clean();
}

static void memory_of_rank(card *c) {
    float *a = NULL, *b = NULL;
    OK(cdp_nccl_alloc(c->g, 1000, (void **)&a));
    OK(cdp_nccl_alloc(c->g, 0, (void **)&b));
    GPU(cudaMemsetAsync(a, 0, 1000, c->stream));
    OK(cdp_allreduce(c->g, NULL, a, 250, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaStreamSynchronize(c->stream));
    /* freed while both streams are to use it still */
    float *far = NULL;
    cdp_work w;
    OK(cdp_nccl_alloc(c->g, 1000, (void **)&far));
    GPU(cudaMemsetAsync(far, 0, 1000, c->stream));
    OK(cdp_allreduce_async(c->g, NULL, far, 250, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
    cdp_nccl_free(c->g, far);
    GPU(cudaLaunchHostFunc(c->stream, host_nap, (void *)30));
    GPU(cudaMemsetAsync(a, 0, 1000, c->stream));
    cdp_nccl_free(c->g, a);
    cdp_nccl_free(c->g, b);
    cdp_nccl_free(c->g, NULL);
    FAILS(CDP_ERR_NOMEM, "", cdp_nccl_alloc(c->g, (uint64_t)1 << 40, (void **)&a));
    T(cdp_group_status(c->g) == CDP_OK);
}
TEST(memory) {
    on_cards(2, memory_of_rank, NULL);
    cards all = {.n = 2, .func = memory_of_rank, .desc.no_register = true};
    cards_run(&all);
    clean();
}

/* ---- graphs ---- */

TEST(graphs) {
    cards all;
    for (int watched = 0; watched < 2; ++watched) { /* a watchdog must leave a capture alone */
        all = (cards){.n = 2, .func = capture_of_rank, .desc.watchdog_ms = watched ? 1 : 0};
        cards_run(&all);
    }
    clean();
}

/* In global mode no other thread may ask for anything: neither the watchdog, nor the progress
   thread, nor a caller's test. */
static bool tests_go_on;
static cdp_work tested;
static void *tester(void *unused) {
    (void)unused;
    while (__atomic_load_n(&tests_go_on, __ATOMIC_SEQ_CST)) {
        const cdp_status st = cdp_work_test(tested);
        T(st == CDP_OK || st == CDP_PENDING);
    }
    return NULL;
}
static void global_capture_of_rank(card *c) {
    void *graph = NULL, *exec = NULL;
    pthread_t t;
    float h = 0, *d = (float *)gpu_new(&h, 4);
    OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &tested));
    GPU(cudaLaunchHostFunc(c->stream, host_nap, (void *)50));
    __atomic_store_n(&tests_go_on, true, __ATOMIC_SEQ_CST);
    T_EQ(0, pthread_create(&t, NULL, tester, NULL));
    for (int i = 0; i < 3; ++i) {
        cdp_work w;
        GPU(cudaStreamBeginCapture(c->stream, 0));
        OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
        test_sleep_ms(20);
        OK(cdp_work_wait(w));
        T_EQ(0, gpu_cudaStreamEndCapture(c->stream, &graph));
        if (!graph || gpu_cudaGraphInstantiate(&exec, graph, 0) != 0) break;
        GPU(cudaGraphLaunch(exec, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        GPU(cudaGraphExecDestroy(exec));
        GPU(cudaGraphDestroy(graph));
    }
    __atomic_store_n(&tests_go_on, false, __ATOMIC_SEQ_CST);
    pthread_join(t, NULL);
    GPU(cudaDeviceSynchronize());
    GPU(cudaFree(d));
}
TEST(graphs_and_other_threads) {
    const cards all = {.n = 1, .func = global_capture_of_rank, .desc.watchdog_ms = 1};
    cards_run(&all);
    clean();
}

/* ---- failures ---- */

typedef struct failing {
    uint32_t silent; /* this rank does not call */
    cdp_status want;
    const char *part;
    bool abort, test_only;
    cdp_nccl_desc desc;
    uint32_t timeout_ms;
    uint64_t within_ms;
} failing;

static cdp_group *group_of_zero;
static void *abort_soon(void *unused) {
    (void)unused;
    test_sleep_ms(100);
    cdp_group_abort(group_of_zero, "enough of it");
    return NULL;
}

static void failing_of_rank(card *c) {
    const failing *const f = (const failing *)c->arg;
    float *d = (float *)gpu_new(NULL, 4 * 1000);
    cdp_status st = CDP_OK;
    cdp_work w;
    pthread_t t;
    const uint64_t start = test_now_ns();
    meet(c);
    if (c->rank == 0 && f->abort) {
        group_of_zero = c->g;
        T_EQ(0, pthread_create(&t, NULL, abort_soon, NULL));
    }
    if (c->rank != f->silent) {
        st = cdp_allreduce_async(c->g, NULL, d, 1000, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
        if (st == CDP_OK && !f->test_only) st = cdp_work_wait_for(w, 30000);
        while (f->test_only && (st == CDP_OK || st == CDP_PENDING)
            && test_now_ns() - start < 30000000000u) {
            test_sleep_ms(5);
            st = cdp_work_test(w);
        }
    } else {
        while ((st = cdp_group_status(c->g)) == CDP_OK && test_now_ns() - start < 30000000000u)
            test_sleep_ms(5);
    }
    const uint64_t took = test_now_ns() - start;
    test_check(st == f->want, __FILE__, __LINE__, "rank %u got %s: %s", c->rank,
        cdp_status_name(st), cdp_last_error()->text);
    if (f->part && st < 0) T_TEXT(f->part, cdp_last_error()->text);
    T_WITHIN(f->within_ms, took);
    if (c->rank == 0 && f->abort) pthread_join(t, NULL);
    /* the stream is alive: what hung was ended */
    const uint64_t then = test_now_ns();
    GPU(cudaStreamSynchronize(c->stream));
    T_WITHIN(1000, test_now_ns() - then);
    T(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM) == f->want);
    const uint64_t until = test_until_ns(5000);
    while (cdp_nccl_comm(c->g) && !f->desc.keep && test_now_ns() < until)
        test_sleep_ms(10);
    T(cdp_nccl_comm(c->g) == NULL || f->desc.keep);
    while (standin_left("comms") && !f->desc.keep && test_now_ns() < until)
        test_sleep_ms(10);
    GPU(cudaFree(d));
}

/* The host reads or writes the device behind an operation that hangs: that ends at the
   operation's deadline. */
static void copy_behind_of_rank(card *c) {
    float host[2] = {0}, *d = (float *)gpu_new(host, 8);
    const cdp_backend *const k = cdp_group_backend(c->g);
    const bool reads = *(const bool *)c->arg;
    const uint64_t start = test_now_ns();
    meet(c);
    if (c->rank == 0) {
        /* the caller's stream waits for it */
        OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        FAILS(CDP_ERR_TIMEOUT, "device operation",
            reads ? k->copy(k->self, host, d, 4) : k->copy(k->self, d, host, 4));
        T_WITHIN(5000, test_now_ns() - start);
    } else {
        while (cdp_group_status(c->g) == CDP_OK && test_now_ns() - start < 30000000000u)
            test_sleep_ms(5);
    }
    GPU(cudaStreamSynchronize(c->stream));
    GPU(cudaFree(d));
}
TEST(copy_behind) {
    for (int i = 0; i < 2; ++i) {
        bool reads = i == 0;
        cards all = {.n = 2,
            .func = copy_behind_of_rank,
            .arg = &reads,
            .desc.no_check = true,
            .hurry_ms = 500,
            .group.logger.level = CDP_LOG_SILENT};
        cards_run(&all);
    }
    clean();
}

/* Something else hangs in the caller's stream, which is nobody's operation: that has a deadline
   as well. */
static void stuck_stream_of_rank(card *c) {
    float host = 0, *d = (float *)gpu_new(&host, 4);
    const cdp_backend *const k = cdp_group_backend(c->g);
    const uint64_t start = test_now_ns();
    GPU(cudaLaunchHostFunc(c->stream, host_nap, (void *)1000));
    FAILS(CDP_ERR_TIMEOUT, "stream", k->copy(k->self, &host, d, 4));
    T(test_now_ns() - start < 990000000u || TEST_SLOW);
    GPU(cudaStreamSynchronize(c->stream));
    GPU(cudaFree(d));
}
TEST(stuck_stream) {
    const cards all = {.n = 1,
        .func = stuck_stream_of_rank,
        .hurry_ms = 300,
        .group.logger.level = CDP_LOG_SILENT};
    cards_run(&all);
    clean();
}

static void fail_as(failing f, uint32_t n) {
    cards all = {.n = n,
        .func = failing_of_rank,
        .arg = &f,
        .desc = f.desc,
        .hurry_ms = f.timeout_ms,
        .group.logger.level = CDP_LOG_SILENT};
    cards_run(&all);
    clean();
}

TEST(aborted) {
    for (uint32_t silent = 0; silent < 3; ++silent) {
        failing f = {.silent = silent,
            .want = CDP_ERR_ABORTED,
            .part = "enough of it",
            .abort = true,
            .within_ms = 1000};
        fail_as(f, silent ? 3 : 2);
    }
}

TEST(deadline) { /* rank 1 does not call */
    for (int k = 0; k < 5; ++k) {
        failing f = {.silent = 1,
            .want = CDP_ERR_TIMEOUT,
            .timeout_ms = 400,
            .within_ms = 1500,
            .part = "rank 1",
            .test_only = k == 1,
            .desc.watchdog_ms = k == 2 ? 20 : 0};
        f.desc.no_check = k >= 3; /* then nobody knows who is late */
        f.desc.no_peer_watch = k == 4;
        if (f.desc.no_check) f.part = NULL;
        fail_as(f, 2);
    }
}

/* Two calls do not match. When the start failed, memory may go back at once; when the wait did,
   as soon as the group's stream is empty. */
static void mismatch_of_rank(card *c) {
    void *d;
    cdp_request rq;
    cdp_work w;
    memset(&rq, 0, sizeof rq);
    GPU(cudaMallocAsync(&d, 4000, c->stream));
    GPU(cudaMemsetAsync(d, 0, 4000, c->stream));
    rq.kind = CDP_COLL_ALLREDUCE;
    rq.out = d;
    rq.count = c->rank == 1 ? 77 : 78;
    rq.op = *(const bool *)c->arg ? CDP_REDUCE_PREMUL_SUM : CDP_REDUCE_SUM;
    rq.factor = 0.5;
    cdp_status st = cdp_start(c->g, &rq, &w);
    const bool started = st == CDP_OK;
    if (started) st = cdp_work_wait_for(w, 30000);
    test_check(st == CDP_ERR_MISMATCH, __FILE__, __LINE__, "rank %u: %s %s", c->rank,
        cdp_status_name(st), cdp_last_error()->text);
    T_TEXT("77", cdp_last_error()->text);
    T_TEXT("78", cdp_last_error()->text);
    const uint64_t start = test_now_ns();
    if (started) GPU(cudaStreamSynchronize(cdp_nccl_stream(c->g)));
    GPU(cudaFreeAsync(d, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
    T_WITHIN(1000, test_now_ns() - start);
}
TEST(mismatch) {
    cards all;
    const long lazy = standin_get("lazy"), delay_us = standin_get("delay_us");
    for (int k = 0; k < 14; ++k) {
        bool factor = k % 3 == 1;
        all = (cards){.n = 3,
            .func = mismatch_of_rank,
            .arg = &factor,
            .desc.check_first = k == 1,
            .desc.keep = k % 2 == 1,
            .group.logger.level = CDP_LOG_SILENT,
            .group.timeout_ms = 10000};
        /* NCCL puts all into the stream by a thread of its own, late */
        if (k >= 2) {
            standin_set("lazy", 1);
            standin_set("delay_us", 5000);
        }
        cards_run(&all);
    }
    standin_set("lazy", lazy);
    standin_set("delay_us", delay_us);
    clean();
}

/* What was given to the stream when a start failed is over when it returns: a copy of the rank's
   own part, too. */
static void own_copy_of_rank(card *c) {
    void *d;
    cdp_work w;
    standin_set("delay_us", 20000);
    GPU(cudaMallocAsync(&d, 8000, c->stream));
    GPU(cudaMemsetAsync(d, 0, 8000, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
    standin_fail("cudaEventRecord", 2, 400); /* the one behind the operation */
    T(cdp_alltoall_async(c->g, d, (char *)d + 4000, 1000, CDP_DTYPE_F32, &w) < 0);
    standin_fail("cudaEventRecord", 0, 0);
    GPU(cudaFreeAsync(d, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
}
TEST(own_copy) {
    const long delay_us = standin_get("delay_us");
    for (int k = 0; k < 8; ++k) {
        cards all = {.n = 1,
            .func = own_copy_of_rank,
            .group.logger.level = CDP_LOG_SILENT,
            .group.timeout_ms = 10000};
        cards_run(&all);
    }
    standin_set("delay_us", delay_us);
    clean();
}

/* One thread starts, another one asks for an older one. */
static void *asks(void *work) {
    for (int i = 0; i < 300; ++i) {
        const cdp_status st = cdp_work_test(*(const cdp_work *)work);
        T(st == CDP_OK || st == CDP_PENDING);
        if (i % 100 == 99) OK(cdp_work_wait_for(*(const cdp_work *)work, 20000));
    }
    return NULL;
}
static void asked_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    cdp_work first, w;
    pthread_t t;
    OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_MAX, &first));
    T_EQ(0, pthread_create(&t, NULL, asks, &first));
    for (int i = 0; i < 200; ++i)
        OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_MAX, &w));
    pthread_join(t, NULL);
    OK(cdp_work_wait(w));
    GPU(cudaStreamSynchronize(c->stream));
    GPU(cudaFree(d));
}
TEST(asked_by_others) {
    const long delay_us = standin_get("delay_us");
    standin_set("delay_us", 20);
    on_cards(2, asked_of_rank, NULL);
    standin_set("delay_us", delay_us);
    clean();
}

/* One rank hands in memory of the processor where the others' is a device's: an error
   everywhere, whoever finds it. */
static void odd_pointer_of_rank(card *c) {
    float host[64] = {0}, *d = (float *)gpu_new(NULL, sizeof host);
    const uint64_t start = test_now_ns();
    cdp_work w;
    cdp_status st = cdp_allreduce_async(
        c->g, NULL, c->rank == 1 ? host : d, 64, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
    if (st == CDP_OK) st = cdp_work_wait_for(w, 30000);
    test_check(st == CDP_ERR_MISMATCH || (*(const bool *)c->arg && st == CDP_ERR_TIMEOUT), __FILE__,
        __LINE__, "rank %u: %s %s", c->rank, cdp_status_name(st), cdp_last_error()->text);
    if (st == CDP_ERR_MISMATCH) T_TEXT("device memory", cdp_last_error()->text);
    T_WITHIN(4000, test_now_ns() - start);
    GPU(cudaStreamSynchronize(cdp_nccl_stream(c->g)));
    GPU(cudaFree(d));
}
TEST(odd_pointer) {
    for (int k = 0; k < 2; ++k) {
        bool unchecked = k == 1;
        cards all = {.n = 3,
            .func = odd_pointer_of_rank,
            .arg = &unchecked,
            .desc.no_check = unchecked,
            .group.logger.level = CDP_LOG_SILENT,
            .hurry_ms = 700};
        cards_run(&all);
    }
    clean();
}

static void async_error_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    cdp_work w;
    cdp_status st;
    OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
    OK(cdp_work_wait_for(w, 60000));
    meet(c);
    if (c->rank == 0) {
        /* rank 1 never calls this one */
        OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
        standin_async_error(0, 6);
        st = cdp_work_wait_for(w, 30000);
        test_check(st == CDP_ERR_IO || st == CDP_ERR_PEER_LOST, __FILE__, __LINE__, "%s: %s",
            cdp_status_name(st), cdp_last_error()->text);
        T_TEXT("NCCL", cdp_last_error()->text); /* rank, operation, sequence */
        T_TEXT("rank 0", cdp_last_error()->text);
        T_TEXT("device operation #2 (allreduce of 1 x f32 sum)", cdp_last_error()->text);
        T_EQ(0, cdp_last_error()->rank);
    } else {
        const uint64_t start = test_now_ns();
        while ((st = cdp_group_status(c->g)) == CDP_OK && test_now_ns() - start < 30000000000u)
            test_sleep_ms(5);
        T(st < 0);
        T_TEXT("rank 0", cdp_last_error()->text);
        T_TEXT("device operation #2", cdp_last_error()->text);
    }
    GPU(cudaStreamSynchronize(c->stream));
    GPU(cudaFree(d));
}
/* The watchdog hears of it, although there is no operation, or none any more. */
static void idle_error_of_rank(card *c) {
    const bool before = *(const bool *)c->arg;
    float *d = (float *)gpu_new(NULL, 4);
    const uint64_t start = test_now_ns();
    cdp_work w;
    if (!before) {
        OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
        OK(cdp_work_wait_for(w, 60000));
    }
    meet(c);
    if (c->rank == 0) standin_async_error(0, 6);
    while (cdp_group_status(c->g) == CDP_OK && test_now_ns() - start < 30000000000u)
        test_sleep_ms(5);
    T(cdp_group_status(c->g) == CDP_ERR_PEER_LOST);
    T_TEXT(before ? "before its first operation: NCCL"
                  : "device operation #1 (allreduce of 1 x f32 sum): NCCL",
        cdp_last_error()->text);
    GPU(cudaStreamSynchronize(c->stream));
    GPU(cudaFree(d));
}
TEST(asynchronous_error) {
    bool before = false;
    cards all = {.n = 2, .func = async_error_of_rank, .group.logger.level = CDP_LOG_SILENT};
    cards_run(&all);
    all.func = idle_error_of_rank;
    all.arg = &before;
    all.desc.watchdog_ms = 10;
    for (int i = 0; i < 2; ++i, before = true)
        cards_run(&all);
    clean();
}

/* A device that broke (somebody's kernel): an error, not a hang. */
static void sick_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    cdp_work w;
    cdp_status st = CDP_OK;
    meet(c);
    if (c->rank == 0) {
        GPU(cudaMemsetAsync((char *)d + (1 << 20), 0, 4, c->stream)); /* not allocated */
        gpu_cudaStreamSynchronize(c->stream);
    }
    for (int i = 0; i < 100 && st >= 0; ++i) {
        st = cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
        if (st == CDP_OK) st = cdp_work_wait_for(w, 1000);
    }
    T(st < 0);
    if (c->rank == 0) T(st == CDP_ERR_IO || st == CDP_ERR_INVALID);
    gpu_cudaFree(d);
}
TEST(sick_device) {
    cards all = {.n = 2,
        .func = sick_of_rank,
        .group.logger.level = CDP_LOG_SILENT,
        .group.timeout_ms = 3000};
    cards_run(&all);
    standin_forget_faults(); /* the planted one */
    clean();
}

/* Each function of the libraries fails once: no hang, no crash, nothing left, and no rank that
   believes in success alone. */
static void any_failure_of_rank(card *c) {
    cdp_group *part = NULL;
    cdp_hook hook;
    void *mem = NULL, *d = gpu_new(NULL, 256);
    char host[8] = "";
    cdp_work w;
    cdp_status st;
    cdp_nccl_desc desc = {.stream = c->stream, .watchdog_ms = 20};
    st = cdp_nccl_attach(c->g, &desc);
    if (st == CDP_OK) st = cdp_nccl_alloc(c->g, 1024, &mem);
    if (st == CDP_OK)
        st = cdp_allreduce_async(c->g, NULL, d, 64, CDP_DTYPE_F32, CDP_REDUCE_AVG, &w);
    if (st == CDP_OK) st = cdp_work_wait(w);
    if (st == CDP_OK) st = cdp_work_wait_for(w, 2000);
    if (st == CDP_OK) st = cdp_broadcast(c->g, d, 64, CDP_DTYPE_F32, 1);
    if (st == CDP_OK) st = cdp_alltoall(c->g, d, (char *)d + 128, 16, CDP_DTYPE_F32);
    if (st == CDP_OK) st = cdp_allgather(c->g, NULL, d, 8, CDP_DTYPE_F32);
    if (st == CDP_OK) st = cdp_reduce_scatter(c->g, NULL, d, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (st == CDP_OK) st = cdp_reduce(c->g, NULL, d, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM, 1);
    if (st == CDP_OK) st = cdp_group_backend(c->g)->zero(cdp_group_backend(c->g)->self, d, 8);
    if (st == CDP_OK) st = cdp_group_backend(c->g)->copy(cdp_group_backend(c->g)->self, d, host, 8);
    if (st == CDP_OK) st = cdp_group_split(c->g, 0, c->rank, &part);
    if (st == CDP_OK)
        st = cdp_allreduce_async(part, NULL, d, 64, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
    if (st == CDP_OK) st = cdp_work_wait_for(w, 4000);
    if (st == CDP_OK && cdp_nccl_hook_create(c->g, &fp16, &hook) == CDP_OK) hook.destroy(hook.self);
    if (st < 0) T(cdp_last_error()->text[0] != 0);
    if (st < 0) {
        cdp_group_abort(c->g, "this rank cannot go on");
        if (part) cdp_group_abort(part, "this rank cannot go on");
    }
    gpu_cudaStreamSynchronize(c->stream);
    cdp_nccl_free(c->g, mem);
    cdp_group_destroy(part);
    gpu_cudaDeviceSynchronize();
    gpu_cudaFree(d);
    __atomic_add_fetch((int *)c->arg, st < 0, __ATOMIC_SEQ_CST);
}
TEST(any_function_fails) {
    static const struct {
        const char *name;
        int code;
    } calls[] = {{"cudaGetDeviceCount", 100}, {"cudaGetDevice", 1}, {"cudaDeviceGetAttribute", 1},
        {"cudaStreamCreateWithPriority", 2}, {"cudaStreamWaitEvent", 400},
        {"cudaStreamIsCapturing", 400}, {"cudaEventCreateWithFlags", 2}, {"cudaEventRecord", 400},
        {"cudaEventQuery", 700}, {"cudaPointerGetAttributes", 1},
        {"cudaThreadExchangeStreamCaptureMode", 1}, {"ncclGetVersion", 1}, {"ncclGetUniqueId", 2},
        {"ncclCommInitRankConfig", 2}, {"ncclCommGetAsyncError", 3}, {"ncclGroupStart", 3},
        {"ncclGroupEnd", 1}, {"ncclAllReduce", 1}, {"ncclBroadcast", 1}, {"ncclCommSplit", 2},
        {"ncclCommFinalize", 1}, {"ncclMemAlloc", 1}, {"ncclCommRegister", 3},
        {"ncclCommDeregister", 3}, {"ncclRedOpCreatePreMulSum", 3}, {"ncclRedOpDestroy", 3},
        {"ncclSend", 1}, {"ncclRecv", 3}, {"ncclAllGather", 2}, {"ncclReduceScatter", 3},
        {"ncclReduce", 3}, {"cudaMemcpyAsync", 1}, {"cudaMemsetAsync", 1},
        {"cudaLaunchHostFunc", 1}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i)
        for (int nth = 1; nth <= (TEST_SLOW || i > 23 ? 1 : 2); ++nth) {
            int failed = 0;
            const uint64_t start = test_now_ns();
            cards all = {.n = 2,
                .func = any_failure_of_rank,
                .no_attach = true,
                .arg = &failed,
                .group.timeout_ms = 400,
                .group.logger.level = CDP_LOG_SILENT};
            standin_fail(calls[i].name, nth, calls[i].code);
            cards_run(&all);
            standin_fail(calls[i].name, 0, 0);
            const uint64_t took = test_now_ns() - start;
            if (took > 3500000000ull * TEST_SLACK)
                NOTE("call %d of %s fails: it took %.1f s", nth, calls[i].name, (double)took / 1e9);
            const uint32_t before = test__now.failed_checks;
            clean();
            if (test__now.failed_checks != before) {
                NOTE("that was when call %d of %s failed (%d ranks failed)", nth, calls[i].name,
                    failed);
                if (test__now.failed_checks > 8) return;
            }
        }
}

/* Each request for memory, a lock or a thread is refused once: an error that says so, no crash,
   no hang, and nothing is left. */
static int refused_ranks;
static void any_allocation_of_rank(card *c) {
    cdp_group *part = NULL;
    cdp_nccl_desc desc;
    cdp_hook hook;
    cdp_hook_desc h;
    cdp_request rq[3];
    void *mem = NULL, *window = NULL, *d = gpu_new(NULL, 256);
    cdp_work w;
    double sum;
    memset(&desc, 0, sizeof desc);
    memset(&h, 0, sizeof h);
    memset(rq, 0, sizeof rq);
    desc.stream = c->stream;
    for (int i = 0; i < 3; ++i) {
        rq[i].kind = CDP_COLL_ALLREDUCE;
        rq[i].out = (float *)d + 4 * i;
        rq[i].count = 4;
    }
    h.kind = CDP_HOOK_TOPK;
    h.os = c->g->desc.os;
    if (c->rank == 0)
        __atomic_store_n(&counted.fail_at,
            __atomic_load_n(&counted.calls, __ATOMIC_SEQ_CST) + *(const int *)c->arg,
            __ATOMIC_SEQ_CST);
    cdp_status st = cdp_nccl_attach(c->g, &desc);
    if (st == CDP_OK) st = cdp_nccl_alloc(c->g, 1024, &mem);
    if (st == CDP_OK) st = cdp_nccl_alloc_symmetric(c->g, 1024, &window);
    if (st == CDP_OK) st = cdp_start_all(c->g, rq, 3, &w);
    if (st == CDP_OK) st = cdp_work_wait_for(w, 3000);
    if (st == CDP_OK && c->n == 1) { /* of one rank alone: the others go on */
        st = cdp_nccl_hook_create(c->g, &h, &hook);
        if (st == CDP_OK) hook.destroy(hook.self);
        if (st == CDP_OK)
            st = cdp_group_backend(c->g)->sum_squares(
                cdp_group_backend(c->g)->self, CDP_DTYPE_F32, d, 16, &sum);
    }
    if (st == CDP_OK) st = cdp_group_split(c->g, 0, c->rank, &part);
    if (st == CDP_OK)
        st = cdp_allreduce_async(part, NULL, d, 16, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
    if (st == CDP_OK) st = cdp_work_wait_for(w, 3000);
    if (st < 0) T(cdp_last_error()->text[0] != 0);
    if (st < 0) __atomic_add_fetch(&refused_ranks, 1, __ATOMIC_SEQ_CST);
    if (st < 0 && c->n > 1) cdp_group_abort(c->g, "this rank cannot go on");
    if (st < 0 && part) cdp_group_abort(part, "this rank cannot go on");
    gpu_cudaStreamSynchronize(c->stream);
    cdp_nccl_free(c->g, window);
    cdp_nccl_free(c->g, mem);
    cdp_group_destroy(part);
    gpu_cudaDeviceSynchronize();
    gpu_cudaFree(d);
}
TEST(any_allocation_fails) {
    standin_set("delay_us", 20);
    for (uint32_t n = 1; n < 3; ++n) {
        bool more = true, slow = false;
        /* with two ranks the other one has to hear of it */
        for (int k = 1; more && !test__now.failed_checks; k += n > 1 ? 7 : 1) {
            cards all = {.n = n,
                .func = any_allocation_of_rank,
                .no_attach = true,
                .arg = &k,
                .group.timeout_ms = slow ? 10000 : 400,
                .group.logger.level = CDP_LOG_SILENT,
                .group.os = counted_os()};
            refused_ranks = 0;
            cards_run(&all);
            more = counted.calls >= counted.fail_at;
            /* that was the machine: once more */
            if (!more && refused_ranks && !slow) {
                k -= n > 1 ? 7 : 1;
                more = slow = true;
            }
            T_EQ(0, counted.held);
            clean();
            if (test__now.failed_checks) NOTE("that was request %d, %u ranks", k, n);
        }
    }
    standin_set("delay_us", 200);
}

/* The same of a communicator that is made from another one, and of what a hook remembers. */
static void fail_next(int k) {
    __atomic_store_n(&counted.fail_at,
        k ? __atomic_load_n(&counted.calls, __ATOMIC_SEQ_CST) + k : 0, __ATOMIC_SEQ_CST);
}
static void more_allocations_of_rank(card *c) {
    static uint8_t bytes[65536];
    const uint32_t own[] = {0};
    cdp_hook hook;
    cdp_group *part = NULL;
    cdp_status st = CDP_ERR_NOMEM;
    uint64_t n = 0;
    int k;
    cdp_nccl_desc desc = {.stream = c->stream, .from = c->g};
    cdp_hook_desc h = {0};
    cdp_bucket bucket = {0};
    cdp_request rq = {0};
    if (c->rank == 0) {
        for (k = 1; k < 300 && st != CDP_OK && cdp_group_status(c->g) == CDP_OK; ++k) {
            cdp_group_destroy(part);
            part = NULL;
            fail_next(k);
            st = cdp_group_new(c->g, own, 1, &part);
            if (st == CDP_OK) st = cdp_nccl_attach(part, &desc);
            fail_next(0);
            test_check(st == CDP_OK || st == CDP_ERR_NOMEM || st == CDP_ERR_IO, __FILE__, __LINE__,
                "request %d: %s %s", k, cdp_status_name(st), cdp_last_error()->text);
        }
        if (T(st == CDP_OK && k > 5)) {
            h.kind = CDP_HOOK_TOPK;
            h.os = part->desc.os;
            h.ratio = 4;
            OK(cdp_nccl_hook_create(part, &h, &hook));
            bucket.data = gpu_new(NULL, 4000);
            bucket.count = 1000;
            bucket.dtype = CDP_DTYPE_F32;
            bucket.bucket_count = 1;
            bucket.divisor = 1;
            fail_next(1);
            FAILS(CDP_ERR_NOMEM, "a hook", hook.stage(hook.self, &bucket, 0, &rq));
            fail_next(0);
            T(hook.stage(hook.self, &bucket, 0, &rq) == CDP_PENDING);
            for (k = 1; k < 50 && !n; ++k) {
                fail_next(k);
                n = hook.save(hook.self, bytes, sizeof bytes);
                fail_next(0);
            }
            T(k > 3 && n <= sizeof bytes);
            for (k = 1, st = CDP_ERR_NOMEM; k < 50 && st == CDP_ERR_NOMEM; ++k) {
                fail_next(k);
                st = hook.load(hook.self, bytes, n);
                fail_next(0);
            }
            test_check(st == CDP_OK && k > 3, __FILE__, __LINE__, "request %d: %s", k,
                cdp_last_error()->text);
            hook.destroy(hook.self);
            GPU(cudaStreamSynchronize(c->stream));
            GPU(cudaFree(bucket.data));
        }
    }
    meet(c);
    cdp_group_destroy(part);
}
TEST(more_allocations_fail) {
    cards all = {.n = 2,
        .func = more_allocations_of_rank,
        .group.logger.level = CDP_LOG_SILENT,
        .group.os = counted_os()};
    cards_run(&all);
    T_EQ(0, counted.held);
    clean();
}

/* Ranks that say different things at attach, or whose NCCL does. */
static void descs_differ_of_rank(card *c) {
    cdp_nccl_desc desc = {.stream = c->stream, .no_check = c->rank == 1};
    FAILS(CDP_ERR_MISMATCH, "descs", cdp_nccl_attach(c->g, &desc));
    desc.no_check = false;
    OK(cdp_nccl_attach(c->g, &desc));
}
TEST(descs_differ) {
    const cards all = {.n = 2, .func = descs_differ_of_rank, .no_attach = true};
    cards_run(&all);
    clean();
}

/* NCCL fails in the middle of a split, or of a growth: everybody hears of it. */
static void split_fails_of_rank(card *c) {
    cdp_group *part = NULL;
    const uint64_t start = test_now_ns();
    const char *name = (const char *)c->arg;
    if (c->rank == 0) standin_set("lazy", 0);
    meet(c);
    if (c->rank == 0) standin_fail(name, 1, 3);
    const cdp_status st = cdp_group_split(c->g, 0, c->rank, &part);
    T(st < 0 && !part);
    while (cdp_group_status(c->g) == CDP_OK && test_now_ns() - start < 20000000000u)
        test_sleep_ms(5);
    T(cdp_group_status(c->g) < 0);
    T_WITHIN(4000, test_now_ns() - start);
}
TEST(split_fails) {
    static const char *const names[] = {
        "ncclCommSplit", "ncclCommGetAsyncError", "cudaStreamCreateWithPriority"};
    for (int i = 0; i < 3; ++i) {
        cards all = {.n = 2,
            .func = split_fails_of_rank,
            .arg = (void *)(uintptr_t)names[i],
            .group.logger.level = CDP_LOG_SILENT,
            .hurry_ms = 500};
        cards_run(&all);
        standin_fail(names[i], 0, 0);
        standin_set("lazy", 4);
        clean();
    }
}
static void grow_fails_of_rank(card *c) {
    cdp_group *one = NULL;
    const uint32_t first[] = {0};
    cdp_nccl_desc desc = {.stream = c->stream};
    if (c->rank == 0) {
        OK(cdp_group_new(c->g, first, 1, &one));
        OK(cdp_nccl_attach(one, &desc));
    }
    hurry(c, 800);
    if (c->rank == 0) {
        standin_fail(*(const bool *)c->arg ? "ncclCommGetUniqueId" : "ncclCommGrow", 1, 3);
    }
    meet(c);
    desc.grow = true;
    desc.from = one;
    T(cdp_nccl_attach(c->g, &desc) < 0);
    T(cdp_last_error()->text[0] != 0);
    cdp_group_destroy(one);
}
TEST(grow_fails) {
    for (int i = 0; i < 2; ++i) {
        bool id = i == 0;
        cards all = {.n = 2,
            .func = grow_fails_of_rank,
            .arg = &id,
            .no_attach = true,
            .group.logger.level = CDP_LOG_SILENT};
        cards_run(&all);
        standin_fail("ncclCommGetUniqueId", 0, 0);
        standin_fail("ncclCommGrow", 0, 0);
        clean();
    }
}

/* NCCL refuses to make a smaller one: the old group goes on. It fails on its way: nobody knows
   the state of the old communicator. */
static void shrink_fails_of_rank(card *c) {
    const uint32_t own[] = {0};
    cdp_group *part = NULL;
    float *d = (float *)gpu_new(NULL, 4);
    cdp_nccl_desc desc = {.stream = c->stream, .from = c->g};
    if (c->rank == 0) {
        OK(cdp_group_new(c->g, own, 1, &part));
        standin_fail("ncclCommShrink", 1, 3);
        FAILS(CDP_ERR_IO, "ncclCommShrink", cdp_nccl_attach(part, &desc));
        OK(cdp_group_status(c->g));
        OK(cdp_group_status(part));
    }
    meet(c);
    OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_MAX));
    GPU(cudaStreamSynchronize(c->stream));
    meet(c);
    if (c->rank == 0) {
        standin_fail("ncclCommGetAsyncError", 1, 3);
        FAILS(CDP_ERR_IO, "ncclCommShrink", cdp_nccl_attach(part, &desc));
        OK(cdp_group_status(part));
        T(cdp_group_status(c->g) == CDP_ERR_IO);
        desc.from = NULL;
        OK(cdp_nccl_attach(part, &desc)); /* and this one can have a new one */
        OK(cdp_allreduce(part, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_MAX));
        GPU(cudaStreamSynchronize(c->stream));
    }
    meet(c);
    cdp_group_destroy(part);
    GPU(cudaFree(d));
}
TEST(shrink_fails) {
    const cards all = {.n = 2,
        .func = shrink_fails_of_rank,
        .group.logger.level = CDP_LOG_SILENT,
        .desc.no_peer_watch = true};
    cards_run(&all);
    clean();
}

/* Nobody waits for it, and nobody compares: the watchdog alone sees that it is late. */
static void unwatched_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    const uint64_t start = test_now_ns();
    meet(c);
    if (c->rank == 0) OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    while (cdp_group_status(c->g) == CDP_OK && test_now_ns() - start < 20000000000u)
        test_sleep_ms(5);
    T(cdp_group_status(c->g) == CDP_ERR_TIMEOUT);
    T_TEXT("device operation #1", cdp_last_error()->text);
    T_WITHIN(4000, test_now_ns() - start);
    GPU(cudaStreamSynchronize(c->stream));
    GPU(cudaFree(d));
}
TEST(watchdog) {
    const cards all = {.n = 2,
        .func = unwatched_of_rank,
        .desc.no_check = true,
        .desc.watchdog_ms = 20,
        .hurry_ms = 700,
        .group.logger.level = CDP_LOG_SILENT};
    cards_run(&all);
    clean();
}

/* What needs the host cannot be captured. */
static void host_in_capture_of_rank(card *c) {
    const cdp_backend *const k = cdp_group_backend(c->g);
    void *graph = NULL, *d = gpu_new(NULL, 8);
    cdp_hook hook;
    char host[8] = "";
    double sum;
    GPU(cudaStreamBeginCapture(c->stream, 1));
    FAILS(CDP_ERR_STATE, "capture", k->copy(k->self, host, d, 8));
    FAILS(CDP_ERR_STATE, "capture", k->copy(k->self, d, host, 8));
    FAILS(CDP_ERR_STATE, "capture", cdp_nccl_hook_create(c->g, &fp16, &hook));
    FAILS(CDP_ERR_STATE, "capture", k->sum_squares(k->self, CDP_DTYPE_F32, d, 2, &sum));
    T_EQ(0, gpu_cudaStreamEndCapture(c->stream, &graph));
    GPU(cudaGraphDestroy(graph));
    GPU(cudaFree(d));
}
/* Nor can memory be had or given back there: what is given back stays until the group goes. */
static void memory_in_capture_of_rank(card *c) {
    void *graph = NULL, *a = NULL, *b = NULL;
    cdp_hook hook;
    OK(cdp_nccl_alloc(c->g, 4096, &a));
    OK(cdp_nccl_hook_create(c->g, &fp16, &hook));
    cdp_bucket bucket = {
        .data = a, .count = 1000, .dtype = CDP_DTYPE_F32, .bucket_count = 1, .divisor = 1};
    cdp_request rq = {0};
    GPU(cudaMemsetAsync(a, 0, 4096, c->stream));
    GPU(cudaSetDevice(1));
    FAILS(CDP_ERR_INVALID, "cudaSetDevice", hook.stage(hook.self, &bucket, 0, &rq));
    FAILS(CDP_ERR_INVALID, "cudaSetDevice", cdp_nccl_alloc(c->g, 64, &b));
    GPU(cudaSetDevice(0));
    GPU(cudaStreamBeginCapture(c->stream, 1));
    FAILS(CDP_ERR_STATE, "capture", cdp_nccl_alloc(c->g, 64, &b));
    T(!b);
    FAILS(CDP_ERR_STATE, "capture", hook.stage(hook.self, &bucket, 0, &rq));
    cdp_nccl_free(c->g, a);
    /* the hook has joined the group's stream to it: not whole */
    gpu_cudaStreamEndCapture(c->stream, &graph);
    if (graph) GPU(cudaGraphDestroy(graph));
    gpu_cudaGetLastError();
    hook.destroy(hook.self);
}
TEST(host_in_capture) {
    on_cards(1, host_in_capture_of_rank, NULL);
    on_cards(1, memory_in_capture_of_rank, NULL);
    clean();
}

/* ---- groups made from it ---- */

static void split_of_rank(card *c) {
    cdp_group *half = NULL, *list = NULL;
    const uint32_t color = c->rank == 3 ? CDP_NO_COLOR : c->rank % 2, all[] = {0, 1, 2, 3};
    float host = (float)(1 << c->rank), *d = (float *)gpu_new(&host, 4);
    /* nothing may be outstanding when NCCL splits */
    GPU(cudaLaunchHostFunc(c->stream, host_nap, (void *)30));
    OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_MIN));
    GPU(cudaMemcpyAsync(d, &host, 4, GPU_TO_DEVICE, c->stream));
    OK(cdp_group_split(c->g, color, 10 - c->rank, &half));
    T((half == NULL) == (c->rank == 3));
    if (half) {
        T(cdp_nccl_comm(half) && cdp_nccl_comm(half) != cdp_nccl_comm(c->g)
            && cdp_nccl_version(half));
        if (c->rank != 1) T_EQ(c->rank == 2 ? 0 : 1, cdp_rank(half));
        OK(cdp_allreduce(half, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    }
    GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
    static const float sums[] = {5, 2, 5, 8};
    T(host == sums[c->rank]);
    OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_MAX));
    GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
    T(host == 8);
    OK(cdp_group_new(c->g, all, 4, &list)); /* made from a list: has none, but may get one */
    T(!cdp_group_backend(list));
    cdp_nccl_desc desc = {.stream = c->stream};
    OK(cdp_nccl_attach(list, &desc));
    OK(cdp_allreduce(list, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
    T(host == 32);
    OK(cdp_barrier(c->g));
    cdp_group_destroy(list);
    cdp_group_destroy(half);
    GPU(cudaFree(d));
}
TEST(split) {
    on_cards(4, split_of_rank, NULL);
    clean();
}

/* The communicator of the survivors, made from the one that broke. */
static void shrink_of_rank(card *c) {
    cdp_group *rest = NULL;
    cdp_nccl_desc desc;
    const uint32_t survivors[] = {0, 2};
    float host = (float)c->rank + 1, *d = (float *)gpu_new(&host, 4);
    cdp_work w;
    meet(c);
    if (c->rank != 1) {
        cdp_status st = cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
        if (st == CDP_OK) st = cdp_work_wait_for(w, 30000);
        T(st < 0);
        GPU(cudaStreamSynchronize(c->stream));
        desc = (cdp_nccl_desc){.stream = c->stream, .from = c->g};
        OK(cdp_group_new(c->g, survivors, 2, &rest));
        const long before = standin_calls("ncclCommShrink");
        const uint32_t turned[] = {2, 0};
        cdp_group *other = NULL;
        OK(cdp_group_new(c->g, turned, 2, &other));
        FAILS(CDP_ERR_INVALID, "same order", cdp_nccl_attach(other, &desc));
        cdp_group_destroy(other);
        if (OK(cdp_nccl_attach(rest, &desc))) {
            T(standin_calls("ncclCommShrink") > before);
            host = (float)c->rank + 1;
            GPU(cudaMemcpyAsync(d, &host, 4, GPU_TO_DEVICE, c->stream));
            OK(cdp_allreduce(rest, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
            GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream));
            GPU(cudaStreamSynchronize(c->stream));
            T(host == 4);
        }
        cdp_group_destroy(rest);
    } else {
        test_sleep_ms(50);
        cdp_group_abort(c->g, "rank 1 is broken");
        test_sleep_ms(50);
    }
    GPU(cudaFree(d));
}
TEST(shrink) {
    const cards all = {
        .n = 3, .func = shrink_of_rank, .desc.keep = true, .group.logger.level = CDP_LOG_SILENT};
    cards_run(&all);
    clean();
}

/* The group failed, but everybody is still there. */
static void nobody_gone_of_rank(card *c) {
    cdp_group *again = NULL;
    const uint32_t all[] = {0, 1};
    float host = 1, *d = (float *)gpu_new(&host, 4);
    cdp_nccl_desc desc = {.stream = c->stream, .from = c->g};
    meet(c);
    if (c->rank == 1) cdp_group_abort(c->g, "once more");
    for (int i = 0; i < 3000 && cdp_group_status(c->g) == CDP_OK; ++i)
        test_sleep_ms(10);
    OK(cdp_group_new(c->g, all, 2, &again));
    if (OK(cdp_nccl_attach(again, &desc)))
        OK(cdp_allreduce(again, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
    T(host == 2);
    cdp_group_destroy(again);
    GPU(cudaFree(d));
}
TEST(nobody_gone) {
    const cards all = {.n = 2,
        .func = nobody_gone_of_rank,
        .desc.keep = true,
        .group.logger.level = CDP_LOG_SILENT};
    cards_run(&all);
    clean();
}

/* Two ranks, then three: the new one joins the communicator of the old ones. */
static void grow_of_rank(card *c) {
    cdp_group *two = NULL;
    const uint32_t first[] = {0, 1};
    float host = (float)c->rank + 1, *d = (float *)gpu_new(&host, 4);
    cdp_nccl_desc desc = {.stream = c->stream};
    if (c->rank < 2) {
        OK(cdp_group_new(c->g, first, 2, &two));
        OK(cdp_nccl_attach(two, &desc));
        OK(cdp_allreduce(two, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        GPU(cudaStreamSynchronize(c->stream));
    }
    desc.grow = true;
    const uint32_t turned[] = {2, 0, 1};
    cdp_group *other = NULL;
    /* the new rank is the first: refused, by all, and the group is as before */
    OK(cdp_group_new(c->g, turned, 3, &other));
    desc.from = two;
    FAILS(CDP_ERR_INVALID, "grow", cdp_nccl_attach(other, &desc));
    desc.from = NULL;
    FAILS(CDP_ERR_INVALID, "grow", cdp_nccl_attach(c->g, &desc)); /* nobody is old */
    OK(cdp_barrier(other));
    cdp_group_destroy(other);
    desc.from = two;
    const long before = standin_calls("ncclCommGrow");
    if (OK(cdp_nccl_attach(c->g, &desc))) {
        T(standin_calls("ncclCommGrow") > before);
        OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        T(host == 9);
    }
    OK(cdp_barrier(c->g));
    cdp_group_destroy(two);
    GPU(cudaFree(d));
}
TEST(grow) {
    const cards all = {.n = 3, .func = grow_of_rank, .no_attach = true};
    cards_run(&all);
    clean();
}

/* NCCL refuses two ranks on one GPU, at once or when ranks have met; either way the group stays
   as it was. */
static void one_gpu_of_rank(card *c) {
    cdp_nccl_desc desc = {.stream = c->stream};
    if (c->n == 1)
        standin_fail("ncclCommInitRankConfig", 1, 5);
    else if (c->rank == 0)
        standin_set("refuse", 5);
    OK(cdp_barrier(c->g));
    FAILS(CDP_ERR_INVALID, "NCCL", cdp_nccl_attach(c->g, &desc));
    OK(cdp_barrier(c->g));
    if (c->rank == 0) standin_set("refuse", 0);
    OK(cdp_barrier(c->g));
    OK(cdp_nccl_attach(c->g, &desc));
}
TEST(two_on_one_gpu) {
    cards all = {.func = one_gpu_of_rank, .no_attach = true};
    for (all.n = 1; all.n < 3; ++all.n)
        cards_run(&all);
    clean();
}

/* Everything stands, but for the thread that would watch over it: nothing stays behind. */
static bool no_more_threads;
static void *maybe_thread_start(const cdp_os *os, void (*func)(void *arg), void *arg) {
    return no_more_threads ? NULL : cdp_os_default()->threads.start(os, func, arg);
}
static void no_thread_of_rank(card *c) {
    cdp_nccl_desc desc = {.stream = c->stream};
    no_more_threads = true;
    FAILS(CDP_ERR_IO, "thread", cdp_nccl_attach(c->g, &desc));
    no_more_threads = false;
    T(cdp_group_status(c->g) < 0 && !cdp_group_backend(c->g));
}
TEST(no_thread) {
    cdp_os os = *cdp_os_default();
    if (!os.threads.start) return;
    os.threads.start = maybe_thread_start;
    cards all = {.n = 1,
        .func = no_thread_of_rank,
        .no_attach = true,
        .group.os = &os,
        .group.logger.level = CDP_LOG_SILENT};
    cards_run(&all);
    clean();
}

/* Groups that nobody moves but their callers, and then an os that has no threads at all. */
static void polled_of_rank(card *c) {
    cdp_request rq;
    cdp_work w;
    cdp_group *part = NULL;
    void *d = NULL;
    memset(&rq, 0, sizeof rq);
    T_EQ(0, chain(c, 3, false));
    OK(cdp_group_split(c->g, 0, c->rank, &part));
    OK(cdp_allreduce(part, NULL, d = gpu_new(NULL, 400), 100, CDP_DTYPE_F32, CDP_REDUCE_MAX));
    GPU(cudaStreamSynchronize(c->stream));
    cdp_group_destroy(part);
    meet(c);
    if (c->n == 1) {
        cdp_group_abort(c->g, "enough of it");
        T(cdp_allreduce(c->g, NULL, d, 100, CDP_DTYPE_F32, CDP_REDUCE_MAX) == CDP_ERR_ABORTED);
    } else {
        rq.kind = CDP_COLL_ALLREDUCE;
        rq.out = d;
        rq.count = c->rank ? 77 : 78;
        cdp_status st = cdp_start(c->g, &rq, &w);
        if (st == CDP_OK) st = cdp_work_wait_for(w, 30000);
        test_check(st == CDP_ERR_MISMATCH, __FILE__, __LINE__, "rank %u: %s %s", c->rank,
            cdp_status_name(st), cdp_last_error()->text);
    }
    GPU(cudaStreamSynchronize(cdp_nccl_stream(c->g)));
    GPU(cudaFree(d));
}
TEST(polled) {
    cards all;
    cdp_os os = *cdp_os_default();
    for (int k = 0; k < 6; ++k) {
        all = (cards){.n = k < 4 ? 2 : 1,
            .func = polled_of_rank,
            .group.no_thread = true,
            .group.logger.level = CDP_LOG_SILENT};
        if (k >= 4) {
            os.threads.start = NULL;
            os.threads.mutex_create = NULL;
            os.threads.cond_create = NULL;
            all.group.os = &os;
            all.desc.keep = k == 5;
        }
        cards_run(&all);
    }
    clean();
}

/* ---- leaving ---- */

static void nothing_of_rank(card *c) {
    float *d = (float *)gpu_new(NULL, 4);
    OK(cdp_allreduce(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaStreamSynchronize(c->stream));
    GPU(cudaFree(d));
}
TEST(leave_one_by_one) { /* nobody's leaving waits for another's */
    cards all = {.n = 3, .func = nothing_of_rank, .one_by_one = true};
    const uint64_t start = test_now_ns();
    cards_run(&all);
    T_WITHIN(2000, test_now_ns() - start);
    clean();
}

static void leave_of_rank(card *c) { /* with operations in flight that cannot end any more */
    float *d = (float *)gpu_new(NULL, 4);
    cdp_work w;
    meet(c);
    if (c->rank == 0) OK(cdp_allreduce_async(c->g, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w));
    test_sleep_ms(20);
    *(void **)((char *)c->arg + c->rank * sizeof(void *)) = d;
}
TEST(destroy_in_flight) {
    for (int i = 0; i < 3; ++i) {
        void *memory[2] = {NULL, NULL};
        cards all = {
            .n = 2, .func = leave_of_rank, .arg = memory, .group.logger.level = CDP_LOG_SILENT};
        const uint64_t start = test_now_ns();
        cards_run(&all);
        T_WITHIN(2000, test_now_ns() - start);
        for (int k = 0; k < 2; ++k)
            gpu_cudaFree(memory[k]);
    }
    clean();
}

/* Abort at random moments of a busy group, attach included: 100 ms, and nothing left. */
typedef struct storm {
    cdp_group *g[RANKS_MAX];
    pthread_t t;
    uint32_t after_us;
    int what; /* 0: operations; 1: splits; 2: growing, 3: shrinking */
} storm;
/* Groups made from a group, again and again: nothing of NCCL's stays behind, wherever it is
   stopped. */
static void storm_of_groups(card *c, const storm *s) {
    const uint32_t own[] = {c->rank}, both[] = {0, 1};
    cdp_group *from = NULL, *part = NULL;
    cdp_status st = CDP_OK;
    cdp_nccl_desc desc = {.stream = c->stream};
    while (st == CDP_OK) {
        desc.from = NULL;
        desc.grow = false;
        if (s->what == 1) {
            st = cdp_group_split(c->g, c->rank % 2, 0, &part);
        } else if (s->what == 2) { /* rank 0 is old */
            if (c->rank == 0 && (st = cdp_group_new(c->g, own, 1, &from)) == CDP_OK)
                st = cdp_nccl_attach(from, &desc);
            if (st == CDP_OK) st = cdp_group_new(c->g, both, 2, &part);
            desc.from = from;
            desc.grow = true;
            if (st == CDP_OK) st = cdp_nccl_attach(part, &desc);
        } else { /* rank 0 stays */
            st = cdp_group_new(c->g, both, 2, &from);
            if (st == CDP_OK) st = cdp_nccl_attach(from, &desc);
            desc.from = from;
            if (st == CDP_OK && c->rank == 0) st = cdp_group_new(c->g, own, 1, &part);
            if (st == CDP_OK && c->rank == 0) st = cdp_nccl_attach(part, &desc);
        }
        if (st == CDP_OK) st = cdp_barrier(c->g);
        if (st < 0) cdp_group_abort(c->g, "storm");
        if (st < 0 && part) cdp_group_abort(part, "storm");
        cdp_group_destroy(part);
        cdp_group_destroy(from);
        part = from = NULL;
    }
}
static void storm_of_rank(card *c) {
    storm *const s = (storm *)c->arg;
    float *d = (float *)gpu_new(NULL, 64);
    cdp_work w;
    cdp_nccl_desc desc = {.stream = c->stream};
    if (s->what == 1) OK(cdp_nccl_attach(c->g, &desc));
    __atomic_store_n(&s->g[c->rank], c->g, __ATOMIC_SEQ_CST);
    if (s->what) {
        storm_of_groups(c, s);
        GPU(cudaFree(d));
        return;
    }
    if (c->rank == 0) {
        cdp_status st = cdp_nccl_attach(c->g, &desc);
        while (st == CDP_OK) {
            st = cdp_allreduce_async(c->g, NULL, d, 16, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
            if (st == CDP_OK) st = cdp_work_wait_for(w, 5000);
        }
        T(st < 0);
    } else {
        cdp_status st = cdp_nccl_attach(c->g, &desc);
        while (st == CDP_OK)
            st = cdp_allreduce(c->g, NULL, d, 16, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        T(st < 0);
    }
    T(cdp_last_error()->status == CDP_ERR_ABORTED);
    const uint64_t start = test_now_ns();
    GPU(cudaStreamSynchronize(c->stream));
    T_WITHIN(1000, test_now_ns() - start);
    /* what was still on its way into the stream may touch `d` until then */
    for (int i = 0; i < 400 && standin_left("comms"); ++i)
        test_sleep_ms(5);
    GPU(cudaFree(d));
}
static void *storm_abort(void *p) {
    storm *const s = (storm *)p;
    while (!__atomic_load_n(&s->g[0], __ATOMIC_SEQ_CST)
        || !__atomic_load_n(&s->g[1], __ATOMIC_SEQ_CST)) /* attached, where they do that first */
        usleep(100);
    usleep(s->after_us);
    const uint64_t start = test_now_ns();
    cdp_group_abort(s->g[0], "storm");
    T_WITHIN(100, test_now_ns() - start);
    return NULL;
}
static void storm_over(void *p) {
    pthread_join(((storm *)p)->t, NULL);
}
static void storms(int what, int count) {
    uint64_t seed = 7;
    for (int i = 0; i < count; ++i) {
        cards all = {0};
        storm s = {.what = what, .after_us = (uint32_t)(test_random(&seed) % 12000)};
        standin_set("slow_init", (long)(test_random(&seed) % 3));
        all.n = 2;
        all.func = storm_of_rank;
        all.no_attach = true;
        all.arg = &s;
        all.group.logger.level = CDP_LOG_SILENT;
        if (what) all.group.timeout_ms = 2000;
        T_EQ(0, pthread_create(&s.t, NULL, storm_abort, &s));
        all.between = storm_over;
        cards_run(&all);
        clean();
        if (test__now.failed_checks) {
            NOTE("that was %d after %u us", what, s.after_us);
            break;
        }
    }
    standin_set("slow_init", 0);
}
TEST(abort_anywhere) {
    storms(0, TEST_SLOW ? 15 : 60);
}
TEST(abort_while_made) {
    for (int what = 1; what < 4; ++what)
        storms(what, TEST_SLOW ? 10 : 25);
}

/* ---- DDP ---- */

static void models(uint64_t from, uint64_t count) {
    for (uint64_t seed = from; seed < from + count && !test__now.failed_checks; ++seed) {
        model m = model_of(seed);
        standin_set("seed", (long)seed);
        on_cards(1 + (uint32_t)(seed % 4), model_of_rank, &m);
        clean();
        if (test__now.failed_checks)
            NOTE("that was seed %llu: %u parameters, buckets of %llu, own_grad %d, buffers %d, "
                 "rebuild %d, find_unused %d, static_graph %d, hook %d, divisor %g, predivide %g",
                (unsigned long long)seed, m.params, (unsigned long long)m.bucket_bytes, m.own_grad,
                m.buffers, m.rebuild, m.find_unused, m.static_graph, m.hook, m.divisor,
                m.predivide);
    }
}
static uint64_t model_count = TEST_SLOW ? 10 : 50;
TEST(like_the_host) {
    standin_set("delay_us", 60);
    models(1, model_count);
    standin_set("delay_us", 200);
}

/* Bit for bit what the hooks for the processor's memory do, although buckets are ready in
   another order on each rank. */
TEST(every_hook) {
    static const int kinds[] = {
        CDP_HOOK_ALLREDUCE, CDP_HOOK_FP16, CDP_HOOK_BF16, CDP_HOOK_NOOP, CDP_HOOK_POST_LOCAL_SGD};
    for (int k = 0; k < 5; ++k) {
        model m = model_of(1000);
        m.hook = kinds[k];
        m.start = k == 4 ? 2 : 0;
        m.find_unused = m.static_graph = false;
        for (uint32_t i = 0; i < m.params; ++i)
            m.dtypes[i] = CDP_DTYPE_F32;
        on_cards(2, model_of_rank, &m);
        clean();
    }
}
TEST(compressing_hooks) {
    static const int kinds[] = {CDP_HOOK_QUANTIZE, CDP_HOOK_QUANTIZE_CHANNEL, CDP_HOOK_TOPK};
    standin_set("delay_us", 50);
    for (int k = 0; k < (TEST_SLOW ? 6 : 24) && !test__now.failed_checks; ++k) {
        model m = model_of(2000 + (uint64_t)k);
        m.hook = kinds[k % 3];
        m.ratio = 1 + k % 7;
        m.forget = k % 5 == 4;
        m.wild = k % 4 == 1;
        m.find_unused = m.static_graph = m.rebuild = false;
        if (k % 2)
            for (uint32_t i = 0; i < m.params; ++i)
                m.dtypes[i] = CDP_DTYPE_F32;
        on_cards(1 + (uint32_t)k / 3 % 4, model_of_rank, &m);
        clean();
        if (test__now.failed_checks)
            NOTE("that was hook %d, ratio %g, seed %d", m.hook, m.ratio, 2000 + k);
    }
    standin_set("delay_us", 200);
}

/* Saved on one side and loaded on the other, in the middle: nothing changes. */
static void saved_hooks_of_rank(card *c) {
    const model *const m = (const model *)c->arg;
    static __thread uint8_t bytes[2][65536];
    side host, dev;
    if (!side_open(&host, c, m, false) || !side_open(&dev, c, m, true)) return;
    for (int step = 0; step < 6; ++step) {
        if (!T(pass(&host, step, 0, true)) || !T(pass(&dev, step, 0, true))
            || !same(&host, &dev, "step", step))
            break;
        const cdp_hook *const h = cdp_ddp_hook(host.ddp), *const d = cdp_ddp_hook(dev.ddp);
        const double hn = h->error_norm(h->self), dn = d->error_norm(d->self);
        test_check(hn - dn < 1e-6 * (hn + 1) && dn - hn < 1e-6 * (hn + 1) && (hn > 0 || c->n > 99),
            __FILE__, __LINE__, "norms of errors %g and %g", hn, dn);
        const uint64_t n = h->save(h->self, bytes[0], sizeof bytes[0]);
        T_EQ(n, d->save(d->self, NULL, 0));
        T_EQ(n, d->save(d->self, bytes[1], sizeof bytes[1]));
        T(n <= sizeof bytes[0] && memcmp(bytes[0], bytes[1], n) == 0);
        if (step == 2) { /* new hooks, which know nothing but this */
            cdp_hook hook;
            cdp_hook_desc desc = {.kind = (cdp_hook_kind)m->hook, .ratio = m->ratio};
            OK(cdp_hook_create(&desc, &hook));
            OK(hook.load(hook.self, bytes[1], n));
            OK(cdp_ddp_set_hook(host.ddp, &hook));
            OK(cdp_nccl_hook_create(c->g, &desc, &hook));
            OK(hook.load(hook.self, bytes[0], n));
            FAILS(CDP_ERR_INVALID, "state", hook.load(hook.self, bytes[0], n - 4));
            OK(cdp_ddp_set_hook(dev.ddp, &hook));
        }
    }
    side_close(&host);
    side_close(&dev);
}
TEST(saved_hooks) {
    model m = model_of(3000);
    m.hook = CDP_HOOK_TOPK;
    m.ratio = 5;
    m.find_unused = m.static_graph = m.rebuild = m.own_grad = m.buffers = false;
    on_cards(2, saved_hooks_of_rank, &m);
    clean();
}

/* Averages in pairs only, through the communicator of the part. */
static void local_sgd_of_rank(card *c) {
    cdp_group *pair = NULL;
    cdp_param p;
    cdp_ddp_desc d;
    cdp_hook_desc h;
    cdp_hook hook;
    cdp_ddp *ddp = NULL;
    float host[4];
    memset(&p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    memset(&h, 0, sizeof h);
    const uint32_t both[] = {c->rank / 2 * 2, c->rank / 2 * 2 + 1};
    OK(cdp_group_new(c->g, both, 2, &pair));
    h.kind = CDP_HOOK_POST_LOCAL_SGD;
    h.subgroup = pair; /* has no communicator */
    FAILS(CDP_ERR_INVALID, "subgroup", cdp_nccl_hook_create(c->g, &h, &hook));
    cdp_group_destroy(pair);
    OK(cdp_group_split(c->g, c->rank / 2, c->rank, &pair));
    p.data = gpu_new(NULL, 16);
    p.count = 4;
    d.group = c->g;
    d.params = &p;
    d.param_count = 1;
    h.kind = CDP_HOOK_POST_LOCAL_SGD;
    h.start = 1;
    h.subgroup = pair;
    if (OK(cdp_ddp_create(&d, &ddp)) && OK(cdp_nccl_hook_create(c->g, &h, &hook))
        && OK(cdp_ddp_set_hook(ddp, &hook))) {
        for (int step = 0; step < 3; ++step) {
            for (int i = 0; i < 4; ++i)
                host[i] = (float)(4 * c->rank + (uint32_t)i);
            OK(cdp_ddp_backward_begin(ddp));
            GPU(cudaMemcpyAsync(cdp_ddp_grad(ddp, 0), host, 16, GPU_TO_DEVICE, c->stream));
            OK(cdp_ddp_ready(ddp, 0));
            OK(cdp_ddp_backward_end(ddp));
            GPU(cudaMemcpyAsync(host, cdp_ddp_grad(ddp, 0), 16, GPU_TO_HOST, c->stream));
            GPU(cudaStreamSynchronize(c->stream));
            const float of_two = c->rank / 2 ? 10.0f : 2.0f;
            T(host[3] == (step == 0 ? 6.0f : of_two) + 3);
        }
    }
    cdp_ddp_destroy(ddp);
    OK(cdp_barrier(c->g));
    cdp_group_destroy(pair);
    GPU(cudaFree(p.data));
}
TEST(local_sgd) {
    on_cards(4, local_sgd_of_rank, NULL);
    clean();
}

/* Ranks with 1, 3 and 5 steps. */
static void join_of_rank(card *c) {
    const model *const m = (const model *)c->arg;
    const int steps = 1 + 2 * (int)c->rank;
    side host, dev;
    if (side_open(&host, c, m, false) && side_open(&dev, c, m, true)) {
        for (int step = 0; step < steps; ++step)
            T(pass(&host, step, 0, true));
        OK(cdp_ddp_join(host.ddp));
        for (int step = 0; step < steps; ++step)
            T(pass(&dev, step, 0, true));
        OK(cdp_ddp_join(dev.ddp));
        if (steps == 5) same(&host, &dev, "join", steps);
        side_close(&host);
        side_close(&dev);
    }
}
TEST(join) {
    model m = model_of(77);
    m.join = true;
    m.find_unused = m.static_graph = m.own_grad = false;
    m.hook = -1;
    on_cards(3, join_of_rank, &m);
    clean();
}

/* The model of one rank is changed behind our back. */
static void verify_of_rank(card *c) {
    model m = model_of(5);
    side dev;
    m.hook = -1;
    m.params = 2;
    m.counts[0] = m.counts[1] = 50;
    if (side_open(&dev, c, &m, true)) {
        OK(cdp_ddp_verify(dev.ddp));
        if (c->rank == 1) GPU(cudaMemsetAsync(dev.data[1], 7, 4, c->stream));
        FAILS(CDP_ERR_MISMATCH, "param1", cdp_ddp_verify(dev.ddp));
        double norm = 0;
        OK(cdp_ddp_clip(dev.ddp, 1, &norm));
        T(norm == 0);
        side_close(&dev);
    }
    OK(cdp_barrier(c->g));
}
TEST(verify) {
    on_cards(2, verify_of_rank, NULL);
    clean();
}

/* Clipping changes the gradients as on the host. */
static void clip_of_rank(card *c) {
    model m = model_of(6);
    side dev;
    float g[16], norm_f;
    double norm = 0;
    m.hook = -1;
    m.params = 1;
    m.counts[0] = 16;
    m.dtypes[0] = CDP_DTYPE_F32;
    m.own_grad = m.find_unused = m.static_graph = m.buffers = false;
    m.divisor = m.predivide = 0;
    if (side_open(&dev, c, &m, true)) {
        T(pass(&dev, 0, 0, true));
        mem_get(&dev, g, grad_of(&dev, 0), sizeof g);
        double want = 0;
        for (int i = 0; i < 16; ++i)
            want += (double)g[i] * g[i];
        const double before = (double)g[3];
        OK(cdp_ddp_clip(dev.ddp, 1, &norm));
        T(norm * norm - want < 1e-3 * want && want - norm * norm < 1e-3 * want);
        mem_get(&dev, g, grad_of(&dev, 0), sizeof g);
        norm_f = (float)(before / norm);
        T(g[3] - norm_f < 1e-5f && norm_f - g[3] < 1e-5f);
        side_close(&dev);
    }
}
TEST(clip) {
    on_cards(2, clip_of_rank, NULL);
    clean();
}

static void ddp_refusals_of_rank(card *c) {
    cdp_param p[2];
    cdp_ddp *ddp = NULL;
    cdp_hook hook;
    float host[8] = {0};
    void *dev = gpu_new(NULL, 64);
    memset(p, 0, sizeof p);
    cdp_ddp_desc d = {.group = c->g, .params = p, .param_count = 2};
    cdp_hook_desc h = {0};
    p[0].data = dev;
    p[0].count = 8;
    p[1].data = host;
    p[1].count = 8;
    p[1].name = "the_odd_one";
    FAILS(CDP_ERR_INVALID, "the_odd_one", cdp_ddp_create(&d, &ddp));
    p[1].data = dev;
    p[1].grad = host;
    FAILS(CDP_ERR_INVALID, "the_odd_one", cdp_ddp_create(&d, &ddp));
    p[1].grad = NULL;
    OK(cdp_barrier(c->g));
    /* another device is current, then memory of another device */
    GPU(cudaSetDevice(1 - (int)c->device));
    FAILS(CDP_ERR_INVALID, "cudaSetDevice", cdp_ddp_create(&d, &ddp));
    void *const far = gpu_new(NULL, 64);
    GPU(cudaSetDevice((int)c->device));
    p[1].data = far;
    FAILS(CDP_ERR_INVALID, "memory of device", cdp_ddp_create(&d, &ddp));
    p[1].data = dev;
    p[1].device = 1;
    FAILS(CDP_ERR_UNSUPPORTED, "the_odd_one", cdp_ddp_create(&d, &ddp));
    p[1].device = 0;
    OK(cdp_barrier(c->g));
    GPU(cudaFree(far));
    p[1].sparse = true;
    p[1].rows = 8;
    FAILS(CDP_ERR_UNSUPPORTED, "", cdp_ddp_create(&d, &ddp));
    h.kind = CDP_HOOK_POWERSGD;
    FAILS(CDP_ERR_UNSUPPORTED, "POWERSGD", cdp_nccl_hook_create(c->g, &h, &hook));
    d.param_count = 1;
    if (OK(cdp_ddp_create(&d, &ddp))) {
        h.kind = CDP_HOOK_QUANTIZE; /* one that reads with the processor */
        if (OK(cdp_hook_create(&h, &hook))) T(cdp_ddp_set_hook(ddp, &hook) < 0);
        cdp_ddp_destroy(ddp);
    }
    T(cdp_group_status(c->g) == CDP_OK);
    OK(cdp_barrier(c->g));
    GPU(cudaFree(dev));
}
TEST(ddp_refusals) {
    on_cards(2, ddp_refusals_of_rank, NULL);
    clean();
}

/* No room for the buckets on one of the devices: an error everywhere, and the group goes on. */
static void no_memory_of_rank(card *c) {
    cdp_ddp *ddp = NULL;
    void *rest = NULL, *dev = gpu_new(NULL, 20 << 20);
    cdp_param p = {.data = dev, .count = 5 << 20};
    cdp_ddp_desc d = {.group = c->g, .params = &p, .param_count = 1};
    if (c->rank == 1) GPU(cudaMalloc(&rest, 100 << 20)); /* of 128 */
    const cdp_status st = cdp_ddp_create(&d, &ddp);
    test_check(st == CDP_ERR_NOMEM, __FILE__, __LINE__, "rank %u: %s %s", c->rank,
        cdp_status_name(st), cdp_last_error()->text);
    cdp_ddp_destroy(ddp);
    OK(cdp_barrier(c->g));
    T(cdp_group_status(c->g) == CDP_OK);
    GPU(cudaFree(rest));
    GPU(cudaFree(dev));
}
TEST(no_memory) {
    on_cards(2, no_memory_of_rank, NULL);
    clean();
}

/* A rank stops in the middle of a step: the others get an error at the deadline, and their
   devices go on. */
static void stuck_of_rank(card *c) {
    model m = model_of(8);
    side dev;
    m.hook = -1;
    m.find_unused = m.static_graph = false;
    if (side_open(&dev, c, &m, true)) {
        hurry(c, 700);
        OK(cdp_ddp_backward_begin(dev.ddp));
        if (c->rank == 0) {
            for (uint32_t i = 0; i < m.params; ++i)
                (void)cdp_ddp_ready(dev.ddp, i);
            cdp_status st = cdp_ddp_backward_end(dev.ddp);
            const uint64_t start = test_now_ns();
            while (st == CDP_OK && test_now_ns() - start < 20000000000u) {
                test_sleep_ms(5);
                st = cdp_group_status(c->g);
            }
            test_check(st == CDP_ERR_TIMEOUT, __FILE__, __LINE__, "%s: %s", cdp_status_name(st),
                cdp_last_error()->text);
        } else {
            while (cdp_group_status(c->g) == CDP_OK)
                test_sleep_ms(5);
        }
        GPU(cudaStreamSynchronize(c->stream));
        side_close(&dev);
    }
}
/* Gradients, and the memory of a hook, are given up while operations on them hang, and NCCL is
   on its way with others. */
static void given_up_of_rank(card *c) {
    model m = model_of(9);
    side dev;
    m.hook = *(const int *)c->arg;
    m.ratio = 4;
    m.params = 6;
    m.bucket_bytes = 64;
    m.find_unused = m.static_graph = m.own_grad = m.buffers = m.rebuild = false;
    for (uint32_t i = 0; i < m.params; ++i) {
        m.counts[i] = 100;
        m.dtypes[i] = CDP_DTYPE_F32;
    }
    if (!side_open(&dev, c, &m, true)) return;
    T(pass(&dev, 0, 0, true));
    hurry(c, 250);
    const uint64_t start = test_now_ns();
    OK(cdp_ddp_backward_begin(dev.ddp));
    /* rank 1 stops half way */
    for (uint32_t i = m.params; i-- > (c->rank ? 3 : 0);)
        (void)cdp_ddp_ready(dev.ddp, i);
    side_close(&dev);
    T_WITHIN(4000, test_now_ns() - start);
}
TEST(given_up) {
    static const int hooks[] = {-1, CDP_HOOK_FP16, CDP_HOOK_TOPK, CDP_HOOK_QUANTIZE};
    for (int k = 0; k < 5; ++k) {
        cards all = {.n = 2,
            .func = given_up_of_rank,
            .arg = (void *)(uintptr_t)&hooks[k % 4],
            .desc.keep = k % 2 == 1,
            .group.logger.level = CDP_LOG_SILENT};
        cards_run(&all);
    }
    clean();
}

TEST(stuck_rank) {
    const cards all = {.n = 2, .func = stuck_of_rank, .group.logger.level = CDP_LOG_SILENT};
    cards_run(&all);
    clean();
}

/* ---- kernels ---- */

/* The text of the kernels is compiled as C by the stand-in's NVRTC, and every 16-bit number is
   compared with the conversions of cdp.h. */
static void casts_of_rank(card *c) {
    enum {
        N = 65536
    };
    cdp__nccl *const b = (cdp__nccl *)cdp_group_backend(c->g)->self;
    static const cdp_dtype halves[] = {CDP_DTYPE_F16, CDP_DTYPE_BF16};
    uint16_t *const all = (uint16_t *)malloc(2 * N), *const back = (uint16_t *)malloc(2 * N);
    float *const wide = (float *)malloc(4 * N);
    float want[CDP__BLOCK], in[CDP__BLOCK];
    uint16_t half[CDP__BLOCK];
    void *d_half = gpu_new(NULL, 2 * N), *d_wide = gpu_new(NULL, 4 * N),
         *d_back = gpu_new(NULL, 2 * N);
    uint64_t state = 9;
    for (int i = 0; i < N; ++i)
        all[i] = (uint16_t)i;
    for (int h = 0; h < 2; ++h) {
        int wrong = 0;
        GPU(cudaMemcpyAsync(d_half, all, 2 * N, GPU_TO_DEVICE, c->stream));
        OK(cdp__nccl_cast(
            b, halves[h], d_half, CDP_DTYPE_F32, d_wide, N, 1, (cdp__cu_stream)c->stream));
        OK(cdp__nccl_cast(
            b, CDP_DTYPE_F32, d_wide, halves[h], d_back, N, 1, (cdp__cu_stream)c->stream));
        GPU(cudaMemcpyAsync(wide, d_wide, 4 * N, GPU_TO_HOST, c->stream));
        GPU(cudaMemcpyAsync(back, d_back, 2 * N, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        for (uint32_t i = 0; i < N; i += CDP__BLOCK) { /* there, and back again */
            cdp__widen_block(halves[h], all + i, want);
            for (uint32_t k = 0; k < CDP__BLOCK; ++k) {
                if (want[k] != want[k])
                    wrong += wide[i + k] == wide[i + k]
                        || (back[i + k] & 0x7fff) <= (halves[h] == CDP_DTYPE_F16 ? 0x7c00 : 0x7f80);
                /* x + 0 may lose the sign of zero */
                else
                    wrong += memcmp(&want[k], &wide[i + k], 4) != 0
                        || (back[i + k] != all[i + k]
                            && !(all[i + k] == 0x8000 && back[i + k] == 0));
            }
        }
        test_check(wrong == 0, __FILE__, __LINE__, "%s: %d of 65536 values do not come back",
            cdp_dtype_name(halves[h]), wrong);
        for (int i = 0; i < N; ++i) { /* any f32, and those near the middle of two */
            uint32_t u = (uint32_t)test_random(&state);
            if (i % 3 == 0) u = (u & 0xffff0000u) | 0x7fffu | (u & 1u);
            if (i % 3 == 1) u = (u & 0x8fffe000u) | 0x38000000u | (u & 0x1fffu ? 0x1000u : 0xfffu);
            memcpy(&wide[i], &u, 4);
        }
        GPU(cudaMemcpyAsync(d_wide, wide, 4 * N, GPU_TO_DEVICE, c->stream));
        OK(cdp__nccl_cast(
            b, CDP_DTYPE_F32, d_wide, halves[h], d_back, N, 1, (cdp__cu_stream)c->stream));
        GPU(cudaMemcpyAsync(back, d_back, 2 * N, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        wrong = 0;
        for (uint32_t i = 0; i < N; i += CDP__BLOCK) {
            memcpy(in, wide + i, sizeof in);
            cdp__narrow_block(halves[h], in, half);
            for (uint32_t k = 0; k < CDP__BLOCK; ++k)
                if (in[k] == in[k])
                    wrong += half[k] != back[i + k]
                        && !((half[k] & 0x7fff) == 0 && (back[i + k] & 0x7fff) == 0);
        }
        test_check(wrong == 0, __FILE__, __LINE__, "%s: %d of 65536 values are rounded otherwise",
            cdp_dtype_name(halves[h]), wrong);
    }
    GPU(cudaFree(d_half));
    GPU(cudaFree(d_wide));
    GPU(cudaFree(d_back));
    free(all);
    free(back);
    free(wide);
}
TEST(casts) {
    on_cards(1, casts_of_rank, NULL);
    clean();
}

/* No compiler, one that fails, no driver: an error of the call that needed it, and a group that
   goes on. */
static void without_of_rank(card *c) {
    cdp_hook hook;
    float *d = (float *)gpu_new(NULL, 64);
    const struct {
        const char *name;
        int code;
    } calls[] = {{"nvrtcCreateProgram", 1}, {"nvrtcCompileProgram", 6}, {"nvrtcGetCUBINSize", 4},
        {"nvrtcGetCUBIN", 4}, {"cuModuleLoadData", 200}, {"cuModuleGetFunction", 500}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
        standin_fail(calls[i].name, 1, calls[i].code);
        const cdp_status st = cdp_nccl_hook_create(c->g, &fp16, &hook);
        test_check(st < 0, __FILE__, __LINE__, "a hook although %s failed", calls[i].name);
        if (st == CDP_OK) hook.destroy(hook.self);
        standin_fail(calls[i].name, 0, 0);
    }
    OK(cdp_allreduce(c->g, NULL, d, 16, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    if (OK(cdp_nccl_hook_create(c->g, &fp16, &hook))) hook.destroy(hook.self);
    T(cdp_group_status(c->g) == CDP_OK);
    GPU(cudaDeviceSynchronize());
    GPU(cudaFree(d));
}
TEST(without_compiler) {
    on_cards(1, without_of_rank, NULL);
    clean();
}

/* Where NVIDIA's NVRTC is installed (it needs no GPU), that compiles every kernel. */
typedef struct nvrtc {
    int (*create)(
        void **, const char *, const char *, int, const char *const *, const char *const *),
        (*compile)(void *, int, const char *const *), (*size_of_log)(void *, size_t *);
    int (*get_log)(void *, char *), (*count)(int *), (*list)(int *), (*destroy)(void **),
        (*size_of_code)(void *, size_t *);
} nvrtc;
static void nvidia_compiles(const nvrtc *n, const char *source, int arch) {
    char option[40], log[4000] = "";
    const char *options[] = {option, "--fmad=false", "--std=c++11"};
    void *made = NULL;
    size_t bytes = 0;
    snprintf(option, sizeof option, "--gpu-architecture=sm_%d", arch);
    T_EQ(0, n->create(&made, source, "cdp_nccl.cu", 0, NULL, NULL));
    const int r = n->compile(made, 3, options);
    if (n->size_of_log(made, &bytes) == 0 && bytes <= sizeof log) n->get_log(made, log);
    test_check(
        r == 0 && strstr(log, "warning") == NULL, __FILE__, __LINE__, "sm_%d: %d %s", arch, r, log);
    bytes = 0;
    T(n->size_of_code(made, &bytes) == 0 && bytes > 1000);
    n->destroy(&made);
}
TEST(nvidia_compiles_them) {
    static const char *const places[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
    static const int wanted[] = {75, 80, 90, 100};
    nvrtc n;
    char name[200], hooks[32768], casts[CDP__NCCL_SOURCE], names[CDP__NCCL_NAMES];
    int archs[64], there = 0;
    void *lib = NULL;
    for (int i = 0; i < 3 && !lib; ++i) {
        snprintf(name, sizeof name, "/usr/local/cuda/lib64/%s", places[i]);
        lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (!lib || TEST_SLOW) {
        test_skip(lib ? "NVIDIA's compiler is not for sanitizers"
                      : "/usr/local/cuda/lib64 has no libnvrtc.so");
        return;
    }
    *(void **)&n.create = dlsym(lib, "nvrtcCreateProgram");
    *(void **)&n.compile = dlsym(lib, "nvrtcCompileProgram");
    *(void **)&n.size_of_log = dlsym(lib, "nvrtcGetProgramLogSize");
    *(void **)&n.get_log = dlsym(lib, "nvrtcGetProgramLog");
    *(void **)&n.count = dlsym(lib, "nvrtcGetNumSupportedArchs");
    *(void **)&n.list = dlsym(lib, "nvrtcGetSupportedArchs");
    *(void **)&n.destroy = dlsym(lib, "nvrtcDestroyProgram");
    *(void **)&n.size_of_code = dlsym(lib, "nvrtcGetCUBINSize");
    T_EQ(0, n.count(&there));
    T_EQ(0, n.list(archs));
    cdp__nccl_cast_source(casts, names);
    snprintf(hooks, sizeof hooks, "%s%s", cdp__nccl_hook_source, cdp__nccl_quantize_source());
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; ++k) {
        bool known = false;
        for (int i = 0; i < there; ++i)
            known = known || archs[i] == wanted[k];
        if (!known) {
            printf("  SKIP sm_%d: this NVRTC does not know it\n", wanted[k]);
            continue;
        }
        nvidia_compiles(&n, casts, wanted[k]);
        nvidia_compiles(&n, hooks, wanted[k]);
        printf("  compiled by NVIDIA's compiler for sm_%d\n", wanted[k]);
    }
}

/* ---- other libraries, and processes: this program again, with another library path ---- */

/* `which`: the kind of child, and its words */
static void run_child(
    const char *which, const char *folder, const char *settings, const char *expect) {
    char command[PATH_MAX * 2 + 300], line[600], all[4000] = "";
    snprintf(command, sizeof command,
        "STANDIN_FOLDER=x STANDIN='%s' LD_LIBRARY_PATH='%s' '%s' --child %s 2>&1", settings,
        libraries_folder(program, folder), program, which);
    FILE *const f = popen(command, "r");
    if (!T(f != NULL)) return;
    while (fgets(line, sizeof line, f))
        strncat(all, line, sizeof all - strlen(all) - 1);
    const int rc = pclose(f);
    test_check(rc == 0 && strstr(all, expect) != NULL, __FILE__, __LINE__,
        "%s with %s %s: exit code %d, \"%s\" expected in: %s", which, folder, settings, rc, expect,
        all);
}

/* Prints what attach said; every rank must say the same, and the group must work without. */
static void child_attach_of_rank(card *c) {
    float host = 1;
    cdp_nccl_desc desc = {.stream = c->stream};
    const cdp_status st = cdp_nccl_attach(c->g, &desc);
    printf("rank %u: %s %s\n", c->rank, cdp_status_name(st),
        st == CDP_OK ? "" : cdp_last_error()->text);
    OK(cdp_allreduce(c->g, NULL, &host, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(host == 2);
    if (st == CDP_OK) {
        printf("version %u\n", cdp_nccl_version(c->g));
        cdp_group *part = NULL;
        void *d = gpu_new(NULL, 64), *mem = NULL;
        OK(cdp_allreduce(c->g, NULL, d, 4, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        OK(cdp_alltoall(c->g, d, (char *)d + 32, 1, CDP_DTYPE_F32));
        OK(cdp_nccl_alloc(c->g, 64, &mem));
        cdp_nccl_free(c->g, mem);
        OK(cdp_group_split(c->g, 0, 0, &part));
        if (c->rank == 0 && cdp_nccl_version(c->g) < 22400)
            FAILS(CDP_ERR_UNSUPPORTED, "2.18",
                cdp_allreduce(c->g, NULL, d, 4, CDP_DTYPE_F8E4M3, CDP_REDUCE_SUM));
        memset(&desc, 0, sizeof desc);
        if (cdp_nccl_version(c->g) < 22700) { /* features of newer versions, refused by name */
            cdp_group *again = NULL;
            const uint32_t both[] = {0, 1};
            OK(cdp_group_new(c->g, both, 2, &again));
            desc.stream = c->stream;
            desc.from = c->g;
            desc.grow = true;
            FAILS(CDP_ERR_UNSUPPORTED, "ncclCommGrow", cdp_nccl_attach(again, &desc));
            desc.grow = false;
            FAILS(CDP_ERR_UNSUPPORTED, "ncclCommShrink", cdp_nccl_attach(again, &desc));
            OK(cdp_barrier(again));
            cdp_group_destroy(again);
        }
        if (cdp_nccl_version(c->g) < 22800) {
            cdp_group *kept = NULL;
            const uint32_t both[] = {0, 1};
            memset(&desc, 0, sizeof desc);
            desc.stream = c->stream;
            desc.keep = true;
            OK(cdp_group_new(c->g, both, 2, &kept));
            FAILS(CDP_ERR_UNSUPPORTED, "ncclCommRevoke", cdp_nccl_attach(kept, &desc));
            OK(cdp_barrier(kept));
            cdp_group_destroy(kept);
        }
        GPU(cudaStreamSynchronize(c->stream));
        cdp_group_destroy(part);
        GPU(cudaFree(d));
    }
}

static void child_ranks(bool with_gpu) {
    cards all = {.n = 2, .func = child_attach_of_rank, .no_attach = true, .zero_stream = !with_gpu};
    cards_run(&all);
}

/* Without any library: only the group itself is there. */
typedef struct bare {
    cdp_nccl_desc desc;
    cdp_status st;
    char text[512];
} bare;
static void bare_of_rank(cdp_group *g, void *arg) {
    bare *const b = (bare *)arg + cdp_rank(g);
    float host = 1;
    b->st = cdp_nccl_attach(g, &b->desc);
    snprintf(b->text, sizeof b->text, "%s", cdp_last_error()->text);
    OK(cdp_allreduce(g, NULL, &host, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(host == 2);
}
static void child_bare(const char *cudart, const char *nccl) {
    bare b[RANKS_MAX];
    memset(b, 0, sizeof b);
    for (int r = 0; r < 2; ++r) {
        b[r].desc.cudart = *cudart ? cudart : NULL;
        b[r].desc.nccl = *nccl ? nccl : NULL;
    }
    run_ranks(2, NULL, 0, bare_of_rank, b);
    T(b[0].st == b[1].st);
    printf("%s %s\n", cdp_status_name(b[0].st), b[0].text);
}

TEST(libraries) {
    /* the real ones may be installed: so by name */
    run_child("bare /nowhere/libcudart.so ''", "", "", "UNSUPPORTED");
    run_child("bare /nowhere/libcudart.so ''", "", "", "/nowhere/libcudart.so");
    run_child("bare '' /nowhere/libnccl.so", "", "", "/nowhere/libnccl.so");
    run_child("bare '' libcuda.so.1", "", "", "ncclGetVersion"); /* some other library */
    run_child("bare", "2.10", "", "UNSUPPORTED");
    run_child("bare", "2.10", "", "too old");
    run_child("bare", "", "devices=0", "device");
    run_child("bare", "", "driver=0", "driver");
    run_child("bare", "", "runtime=11000", "11.8");
    run_child("attach", "2.18", "", "version 21805");
    run_child("attach", "2.27", "", "version 22703");
    run_child("attach", "", "runtime=12040", "version 22907");
}

/* ---- a process that dies ---- */

static int child_rank(const char *port, uint32_t rank, uint32_t n, bool dies) {
    cdp_group *g = NULL;
    cdp_nccl_desc desc;
    void *d;
    cdp_work w;
    char url[64];
    snprintf(url, sizeof url, "%s", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", url, 1);
    char number[16];
    snprintf(number, sizeof number, "%u", rank);
    setenv("RANK", number, 1);
    snprintf(number, sizeof number, "%u", n);
    setenv("WORLD_SIZE", number, 1);
    if (gpu_load() || cdp_init_from_env(NULL, &g) != CDP_OK) return cdp_print_error(stdout);
    memset(&desc, 0, sizeof desc);
    if (gpu_cudaSetDevice((int)rank % 2) || cdp_nccl_attach(g, &desc) != CDP_OK)
        return cdp_print_error(stdout);
    d = gpu_new(NULL, 4000);
    cdp_status st = cdp_allreduce(g, NULL, d, 1000, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (st == CDP_OK) st = (cdp_status)gpu_cudaDeviceSynchronize();
    if (st != CDP_OK) return cdp_print_error(stdout);
    if (dies) {
        /* others wait for more */
        st = cdp_allreduce_async(g, NULL, d, 10, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
        test_sleep_ms(100);
        printf("rank %u dies\n", rank);
        fflush(stdout);
        raise(SIGKILL);
    }
    st = cdp_allreduce_async(g, NULL, d, 10, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
    if (st == CDP_OK) st = cdp_allreduce_async(g, NULL, d, 20, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
    if (st == CDP_OK) st = cdp_work_wait_for(w, 30000);
    printf("rank %u: %s %s\n", rank, cdp_status_name(st), cdp_last_error()->text);
    const uint64_t start = test_now_ns();
    gpu_cudaStreamSynchronize(NULL);
    const bool quick = test_now_ns() - start < 2000000000u;
    cdp_group_destroy(g);
    gpu_cudaFree(d);
    fflush(stdout);
    return quick ? 0 : 5;
}

TEST(killed_process) {
    char command[PATH_MAX * 2 + 200], line[800], all[6000] = "";
    const uint32_t port = free_port();
    FILE *f[3];
    const uint64_t start = test_now_ns();
    for (int r = 0; r < 3; ++r) {
        snprintf(command, sizeof command, "exec timeout -s KILL 100 '%s' --rank %u %d 3 %d 2>&1",
            program, port, r, r == 1);
        f[r] = popen(command, "r");
        if (!T(f[r] != NULL)) return;
    }
    for (int r = 0; r < 3; ++r) {
        while (fgets(line, sizeof line, f[r]))
            strncat(all, line, sizeof all - strlen(all) - 1);
        const int rc = pclose(f[r]);
        test_check(r == 1 ? rc != 0 : rc == 0, __FILE__, __LINE__, "rank %d ended with %d: %s", r,
            rc, all);
    }
    T_TEXT("rank 0: PEER_LOST", all);
    T_TEXT("rank 2: PEER_LOST", all);
    T_WITHIN(6000, test_now_ns() - start);
}

/* Two processes with different versions of NCCL. */
TEST(versions_differ) {
    char command[PATH_MAX * 2 + 300], line[800], all[4000] = "";
    const uint32_t port = free_port();
    FILE *f[2];
    for (int r = 0; r < 2; ++r) {
        snprintf(command, sizeof command,
            "STANDIN_FOLDER=x LD_LIBRARY_PATH='%s' exec timeout -s KILL 100 '%s' --rank %u %d 2 0 "
            "2>&1",
            libraries_folder(program, r ? "2.27" : ""), program, port, r);
        f[r] = popen(command, "r");
        if (!T(f[r] != NULL)) return;
    }
    for (int r = 0; r < 2; ++r) {
        while (fgets(line, sizeof line, f[r]))
            strncat(all, line, sizeof all - strlen(all) - 1);
        T(pclose(f[r]) != 0);
    }
    T_TEXT("rank 0 has NCCL 2.29, rank 1 has 2.27; install the same everywhere", all);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"table_1", table_1, 120}, {"table_2", table_2, 120},
        {"table_3", table_3, 120}, {"table_4", table_4, 120}, {"eight_bits", eight_bits, 60},
        {"uneven", uneven, 60}, {"messages", messages, 60}, {"several_as_one", several_as_one, 60},
        {"order", order, 60}, {"order_can_fail", order_can_fail, 60}, {"waits", waits, 60},
        {"other_streams", other_streams, 60}, {"lifetimes", lifetimes, 60},
        {"refusals", refusals, 60}, {"memory", memory, 60}, {"graphs", graphs, 60},
        {"graphs_and_other_threads", graphs_and_other_threads, 60},
        {"copy_behind", copy_behind, 60}, {"aborted", aborted, 60}, {"deadline", deadline, 60},
        {"mismatch", mismatch, 60}, {"own_copy", own_copy, 60},
        {"asked_by_others", asked_by_others, 60}, {"odd_pointer", odd_pointer, 60},
        {"stuck_stream", stuck_stream, 60}, {"abort_while_made", abort_while_made, 120},
        {"asynchronous_error", asynchronous_error, 60}, {"sick_device", sick_device, 60},
        {"split", split, 60}, {"shrink", shrink, 60}, {"nobody_gone", nobody_gone, 60},
        {"grow", grow, 60}, {"two_on_one_gpu", two_on_one_gpu, 60}, {"no_thread", no_thread, 60},
        {"polled", polled, 60}, {"leave_one_by_one", leave_one_by_one, 60},
        {"destroy_in_flight", destroy_in_flight, 60}, {"abort_anywhere", abort_anywhere, 120},
        {"any_function_fails", any_function_fails, 120},
        {"any_allocation_fails", any_allocation_fails, 120},
        {"more_allocations_fail", more_allocations_fail, 60}, {"descs_differ", descs_differ, 60},
        {"split_fails", split_fails, 60}, {"grow_fails", grow_fails, 60},
        {"shrink_fails", shrink_fails, 60}, {"watchdog", watchdog, 60},
        {"host_in_capture", host_in_capture, 60}, {"like_the_host", like_the_host, 200},
        {"every_hook", every_hook, 60}, {"compressing_hooks", compressing_hooks, 60},
        {"saved_hooks", saved_hooks, 60}, {"local_sgd", local_sgd, 60}, {"join", join, 60},
        {"verify", verify, 60}, {"clip", clip, 60}, {"ddp_refusals", ddp_refusals, 60},
        {"no_memory", no_memory, 60}, {"stuck_rank", stuck_rank, 60}, {"given_up", given_up, 60},
        {"casts", casts, 60}, {"without_compiler", without_compiler, 60},
        {"nvidia_compiles_them", nvidia_compiles_them, 120}, {"libraries", libraries, 60},
        {"killed_process", killed_process, 60}, {"versions_differ", versions_differ, 60}};
    program = argv[0];
    if (argc >= 3 && strcmp(argv[1], "--child") == 0) {
        const bool attach = strcmp(argv[2], "attach") == 0;
        if (attach && gpu_load()) return 3;
        test__now.name = argv[2];
        if (attach)
            child_ranks(true);
        else
            child_bare(argc > 3 ? argv[3] : "", argc > 4 ? argv[4] : "");
        return test__now.failed_checks != 0;
    }
    libraries_at_hand(argv, "");
    if (argc == 6 && strcmp(argv[1], "--rank") == 0)
        return child_rank(
            argv[2], (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]), atoi(argv[5]) != 0);
    const char *const missing = gpu_load();
    if (missing || !standin_set) {
        printf("  the stand-in does not load: %s\nnot ok load\n0 passed, 1 failed\n",
            missing ? missing : "this is no stand-in");
        return 1;
    }
    printf("on the stand-in for CUDA and NCCL, no GPU is involved\n");
    if (argc > 2 && strcmp(argv[1], "models") == 0) { /* models COUNT: more of them, by hand */
        model_count = (uint64_t)atol(argv[2]);
        argc = 2;
        argv[1] = (char *)(uintptr_t) "like_the_host";
    }
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
