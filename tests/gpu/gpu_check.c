/*  gpu_check.c - cdp_nccl.h on a real GPU; run.sh builds it, starts it with one to four ranks and
    shows what rank 0 prints.

        gpu_check --probe     "DEVICES NCCL-VERSION", or why there is none, and exit code 77
        gpu_check WORDS       as a rank (see cdp_init_from_env): the parts whose names contain a
                              word, or all of them

    The reference is the same operation over the links of the processor, which has tests of its own;
    for DDP likewise. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "../../cdp_tcp.h"

#include "../../cdp_nccl.h"

#include "../../cdp_mem.h"

#include "../nccl/cards.h"

#include "../nccl/models.h"
#include "../nccl/operations.h"

#include <pthread.h>

static card me;

/* Time as rank 0 sees it, with everybody in step. */
static double seconds(void) {
    return (double)test_now_ns() / 1e9;
}

TEST(table) {
    table_of_rank(&me);
}
TEST(eight_bits) {
    if (!has_eight_bits(&me))
        test_skip("8-bit floats need NCCL 2.24 and compute capability 9.0");
    else if (me.n <= 4)
        eight_bits_of_rank(&me);
}
TEST(uneven) {
    me.n > 1 ? uneven_of_rank(&me) : test_skip("needs two ranks");
}
TEST(messages) {
    me.n > 1 ? messages_of_rank(&me) : test_skip("needs two ranks");
}
TEST(several_as_one) {
    me.n > 1 ? several_of_rank(&me) : test_skip("needs two ranks");
}
TEST(order) {
    T_EQ(0, chain(&me, 20, true));
}
TEST(lifetimes) {
    lifetimes_of_rank(&me);
}
TEST(graphs) {
    capture_of_rank(&me);
}

TEST(ddp) {
    for (uint64_t seed = 1; seed <= 12 && !test__now.failed_checks; ++seed) {
        model m = model_of(seed);
        /* thirds are rounded otherwise than on the host */
        if (me.n == 3) {
            m.divisor = 2;
            m.predivide = 0;
        }
        me.arg = &m;
        model_of_rank(&me);
    }
}

/* Those that compress gather and add in the order of ranks: the same bits as on the host for any
   number of them. */
TEST(hooks) {
    static const int kinds[] = {CDP_HOOK_QUANTIZE, CDP_HOOK_QUANTIZE_CHANNEL, CDP_HOOK_TOPK};
    for (int k = 0; k < 9 && !test__now.failed_checks; ++k) {
        model m = model_of(2000 + (uint64_t)k);
        m.hook = kinds[k % 3];
        m.ratio = 1 + k % 7;
        m.find_unused = m.static_graph = m.rebuild = false;
        me.arg = &m;
        model_of_rank(&me);
    }
}

/* What a caller can get wrong: one clear error each, nothing started, and the group goes on. */
TEST(refusals) {
    float host[8] = {0}, *d = (float *)gpu_new(NULL, 64);
    void *more = NULL;
    cdp_hook hook;
    cdp_hook_desc h;
    FAILS(CDP_ERR_INVALID, "host memory",
        cdp_allreduce(me.g, host, d, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_INVALID, "host memory",
        cdp_allreduce(me.g, d, host, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_INVALID, "overlap",
        cdp_allreduce(me.g, d, d + 1, 8, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(
        CDP_ERR_UNSUPPORTED, "i16", cdp_allreduce(me.g, NULL, d, 8, CDP_DTYPE_I16, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_STATE, "backend", cdp_nccl_attach(me.g, NULL));
    FAILS(CDP_ERR_NOMEM, "device memory", cdp_nccl_alloc(me.g, (uint64_t)1 << 46, &more));
    memset(&h, 0, sizeof h);
    h.kind = CDP_HOOK_POWERSGD;
    FAILS(CDP_ERR_UNSUPPORTED, "POWERSGD", cdp_nccl_hook_create(me.g, &h, &hook));
    OK(cdp_barrier(me.g));
    OK(cdp_allreduce(me.g, NULL, d, 8, CDP_DTYPE_F32, CDP_REDUCE_MAX));
    GPU(cudaStreamSynchronize(me.stream));
    GPU(cudaFree(d));
}

TEST(split) {
    cdp_group *part = NULL;
    float host = 1, *d = (float *)gpu_new(&host, 4);
    OK(cdp_group_split(me.g, me.rank % 2, 0, &part));
    OK(cdp_allreduce(part, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, me.stream));
    GPU(cudaStreamSynchronize(me.stream));
    T(host == (float)((me.n + 1 - me.rank % 2) / 2));
    cdp_group_destroy(part);
    GPU(cudaFree(d));
}

/* Bytes per second beside NCCL's own call on the same memory, stream and communicator, in turns. */
static int (*nccl_allreduce)(const void *, void *, size_t, int, int, void *, void *);
static int (*nccl_state)(void *, int *);
static int own(void *d, uint64_t count) {
    int r = nccl_allreduce(d, d, count, 7, 0, cdp_nccl_comm(me.g), cdp_nccl_stream(me.g));
    while (r == 7) /* in progress, as the communicator is one that does not block */
        if (nccl_state(cdp_nccl_comm(me.g), &r) != 0) return -1;
    return r;
}
TEST(bandwidth) {
    void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (lib) {
        *(void **)&nccl_allreduce = dlsym(lib, "ncclAllReduce");
        *(void **)&nccl_state = dlsym(lib, "ncclCommGetAsyncError");
    }
    if (!T(nccl_allreduce && nccl_state)) return;
    if (me.rank == 0)
        printf("  allreduce of f32, %u ranks     cdp us    NCCL us   cdp/NCCL   cdp GB/s\n", me.n);
    for (uint64_t bytes = 1024;
         bytes <= (me.n > 1 ? (uint64_t)16 << 20 : (uint64_t)256 << 20) && !test__now.failed_checks;
         bytes *= 16) {
        const int rounds = bytes > 1 << 20 ? 5 : 20;
        double least[2] = {1e9, 1e9};
        void *d = NULL;
        if (!OK(cdp_nccl_alloc(me.g, bytes, &d))) return;
        GPU(cudaMemset(d, 0, bytes));
        GPU(cudaDeviceSynchronize());
        for (int turn = 0; turn < 6; ++turn) {
            OK(cdp_barrier(me.g));
            const double start = seconds();
            for (int i = 0; i < rounds; ++i) {
                if (turn % 2)
                    T_EQ(0, own(d, bytes / 4));
                else
                    OK(cdp_allreduce(me.g, NULL, d, bytes / 4, CDP_DTYPE_F32, CDP_REDUCE_SUM));
            }
            GPU(cudaStreamSynchronize(turn % 2 ? cdp_nccl_stream(me.g) : me.stream));
            const double took = (seconds() - start) / rounds;
            if (turn > 1 && took < least[turn % 2]) least[turn % 2] = took;
        }
        if (me.rank == 0)
            printf("  %12llu bytes       %10.1f %10.1f %10.2f %10.2f\n", (unsigned long long)bytes,
                least[0] * 1e6, least[1] * 1e6, least[0] / least[1],
                (double)bytes / least[0] / 1e9);
        OK(cdp_barrier(me.g));
        cdp_nccl_free(me.g, d);
    }
}

/* Memory that all ranks register together: right numbers, also in a captured graph, and what
   differs between ranks is an error. Says whether NCCL gave windows. */
static void in_window(float *d, const char *what) {
    float host[3] = {(float)me.rank, 1, 2};
    GPU(cudaMemcpyAsync(d, host, sizeof host, GPU_TO_DEVICE, me.stream));
    OK(cdp_allreduce(me.g, NULL, d, 3, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaMemcpyAsync(host, d, sizeof host, GPU_TO_HOST, me.stream));
    GPU(cudaStreamSynchronize(me.stream));
    test_check(host[0] == (float)(me.n * (me.n - 1) / 2) && host[2] == (float)(2 * me.n), __FILE__,
        __LINE__, "%s: %g %g %g", what, (double)host[0], (double)host[1], (double)host[2]);
}
static void in_graph(float *d) {
    void *graph = NULL, *exec = NULL, *none = NULL;
    GPU(cudaMemsetAsync(d, 0, 4, me.stream));
    GPU(cudaStreamSynchronize(me.stream));
    OK(cdp_barrier(me.g));
    GPU(cudaStreamBeginCapture(me.stream, 2));
    OK(cdp_allreduce(me.g, NULL, d, 1 << 20, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_STATE, "capture", cdp_nccl_alloc_symmetric(me.g, 4096, &none));
    GPU(cudaStreamEndCapture(me.stream, &graph));
    GPU(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; ++i)
        GPU(cudaGraphLaunch(exec, me.stream));
    GPU(cudaStreamSynchronize(me.stream));
    GPU(cudaGraphExecDestroy(exec));
    GPU(cudaGraphDestroy(graph));
}
static double best_of(float *d, uint64_t count) {
    double least = 1e9;
    for (int turn = 0; turn < 6; ++turn) {
        OK(cdp_barrier(me.g));
        const double start = seconds();
        for (int i = 0; i < 10; ++i)
            OK(cdp_allreduce(me.g, NULL, d, count, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        GPU(cudaStreamSynchronize(me.stream));
        if (turn && seconds() - start < least) least = seconds() - start;
    }
    return least / 10;
}
TEST(symmetric) {
    float *a = NULL, *b = NULL, *plain = NULL;
    void *none = NULL;
    const uint64_t count = 1 << 20;
    if (!OK(cdp_nccl_alloc_symmetric(me.g, 4 * count, (void **)&a))) return;
    OK(cdp_nccl_alloc_symmetric(me.g, 4 * count, (void **)&b));
    OK(cdp_nccl_alloc(me.g, 4 * count, (void **)&plain));
    in_window(a, "the beginning");
    in_window(a + 1024, "the same offset on all ranks");
    in_window(b + 1000, "another window");
    in_graph(b);
    const double registered = best_of(plain, count), symmetric = best_of(a, count);
    if (me.rank == 0)
        printf("  allreduce of f32, 4 MiB: registered %.1f us, %s %.1f us\n", registered * 1e6,
            cdp_nccl_window(me.g, a) ? "symmetric" : "without windows (NCCL gives none here)",
            symmetric * 1e6);
    if (me.n > 1) {
        FAILS(
            CDP_ERR_MISMATCH, "8192", cdp_nccl_alloc_symmetric(me.g, me.rank ? 4096 : 8192, &none));
        cdp_nccl_free(me.g, me.rank ? a : b);
        FAILS(CDP_ERR_MISMATCH, "alike", cdp_nccl_alloc_symmetric(me.g, 4096, &none));
        cdp_nccl_free(me.g, me.rank ? b : a);
    } else {
        cdp_nccl_free(me.g, a);
        cdp_nccl_free(me.g, b);
    }
    cdp_nccl_free(me.g, plain);
    OK(cdp_nccl_alloc_symmetric(me.g, 4096, (void **)&a)); /* where others lay before */
    in_window(a, "a second time");
    cdp_nccl_free(me.g, a);
}

/* The same through a fixed pool of cdp_mem.h: one window for all of its blocks. */
TEST(symmetric_pool) {
    const cdp_allocator windows = cdp_nccl_symmetric_allocator(me.g);
    cdp_mem_source cuda, source;
    cdp_mem_pool *pool = NULL;
    cdp_mem_pool_desc d;
    cdp_mem_desc md;
    cdp_mem *mem = NULL;
    float *x[3];
    memset(&d, 0, sizeof d);
    memset(&md, 0, sizeof md);
    d.source = &source;
    d.fixed_bytes = 16 << 20;
    md.source = &cuda;
    OK(cdp_mem_source_cuda(NULL, &cuda));
    if (!OK(cdp_mem_create(&md, &mem))) return;
    OK(cdp_mem_source_of(&windows, NULL, &source));
    if (OK(cdp_mem_pool_create(mem, &d, &pool))) {
        const cdp_allocator a = cdp_mem_pool_allocator(pool);
        OK(cdp_nccl_set_memory(me.g, &a));
        for (int i = 0; i < 3; ++i)
            OK(cdp_nccl_alloc(me.g, 100000u << i, (void **)&x[i]));
        for (int i = 0; i < 3; ++i) {
            in_window(x[i], "a block of the pool");
            T(cdp_nccl_window(me.g, x[i]) == cdp_nccl_window(me.g, x[0]));
        }
        for (int i = 0; i < 3; ++i)
            cdp_nccl_free(me.g, x[i]);
        OK(cdp_nccl_set_memory(me.g, NULL));
        OK(cdp_mem_pool_destroy(pool));
    }
    T_EQ(0, cdp_mem_destroy(mem));
}

/* A communicator that is revoked when its group fails, and the survivors' one that is made from
   it. */
TEST(yy_shrink) {
    cdp_group *all = NULL, *rest = NULL;
    cdp_nccl_desc desc;
    uint32_t ranks[RANKS_MAX];
    cdp_work w;
    float host = 1, *d;
    if (me.n < 3 || cdp_nccl_version(me.g) < 22809) {
        test_skip("needs three ranks, and ncclCommRevoke and ncclCommShrink");
        return;
    }
    d = (float *)gpu_new(&host, 4);
    for (uint32_t r = 0; r < me.n; ++r)
        ranks[r] = r;
    memset(&desc, 0, sizeof desc);
    desc.stream = me.stream;
    desc.keep = true;
    OK(cdp_group_new(me.g, ranks, me.n, &all));
    if (!OK(cdp_nccl_attach(all, &desc))) return;
    OK(cdp_allreduce(all, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaStreamSynchronize(me.stream));
    OK(cdp_barrier(me.g));
    if (me.rank + 1 == me.n) { /* the last one is lost */
        test_sleep_ms(200);
        cdp_group_abort(all, "this rank is lost");
    } else {
        cdp_status st = cdp_allreduce_async(all, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
        if (st == CDP_OK) st = cdp_work_wait_for(w, 30000);
        T(st < 0);
    }
    if (me.rank + 1 < me.n) {
        OK(cdp_group_new(me.g, ranks, me.n - 1, &rest));
        desc.from = all;
        desc.keep = false;
        host = 1;
        if (OK(cdp_nccl_attach(rest, &desc))) {
            GPU(cudaMemcpyAsync(d, &host, 4, GPU_TO_DEVICE, me.stream));
            OK(cdp_allreduce(rest, NULL, d, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
            GPU(cudaMemcpyAsync(&host, d, 4, GPU_TO_HOST, me.stream));
            GPU(cudaStreamSynchronize(me.stream));
            T(host == (float)(me.n - 1));
        }
    }
    OK(cdp_barrier(me.g));
    cdp_group_destroy(rest);
    cdp_group_destroy(all);
    GPU(cudaFree(d));
}

/* The last one: rank 0 waits for an operation that the others never start, and aborts it from
   another thread. */
static void *abort_soon(void *unused) {
    (void)unused;
    test_sleep_ms(500);
    cdp_group_abort(me.g, "this is the test of abort");
    return NULL;
}
TEST(zz_abort) {
    float *d = (float *)gpu_new(NULL, 4 << 20);
    cdp_work w;
    pthread_t t;
    cdp_status st = CDP_OK;
    if (me.n < 2) {
        GPU(cudaFree(d));
        test_skip("needs two ranks");
        return;
    }
    OK(cdp_barrier(me.g));
    const uint64_t start = test_now_ns();
    if (me.rank == 0) {
        T_EQ(0, pthread_create(&t, NULL, abort_soon, NULL));
        st = cdp_allreduce_async(me.g, NULL, d, 1 << 20, CDP_DTYPE_F32, CDP_REDUCE_SUM, &w);
        if (st == CDP_OK) st = cdp_work_wait_for(w, 30000);
        pthread_join(t, NULL);
    } else {
        while ((st = cdp_group_status(me.g)) == CDP_OK && test_now_ns() - start < 30000000000u)
            test_sleep_ms(1);
    }
    test_check(st == CDP_ERR_ABORTED, __FILE__, __LINE__, "%s: %s", cdp_status_name(st),
        cdp_last_error()->text);
    const uint64_t then = test_now_ns();
    GPU(cudaStreamSynchronize(me.stream)); /* what ran was ended */
    if (me.rank == 0)
        printf("  the stream went on %.0f ms after the abort was seen\n",
            (double)(test_now_ns() - then) / 1e6);
    T(test_now_ns() - then < 10000000000u);
    GPU(cudaFree(d));
}

static int probe(void) {
    const char *const missing = gpu_load();
    int devices = 0, r, version = 0;
    int (*nccl_version)(int *) = NULL;
    void *nccl;
    if (missing) {
        printf("%s is not installed\n", missing);
        return 77;
    }
    r = gpu_cudaGetDeviceCount(&devices);
    if (r != 0 || devices < 1) {
        printf("CUDA sees no device (error %d)\n", r);
        return 77;
    }
    nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (nccl) *(void **)&nccl_version = dlsym(nccl, "ncclGetVersion");
    if (!nccl_version || nccl_version(&version) != 0) {
        printf("libnccl.so.2 is not installed\n");
        return 77;
    }
    printf("%d %d%s\n", devices, version, standin_set ? " stand-in" : "");
    return 0;
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"table", table, 240}, {"eight_bits", eight_bits, 60},
        {"uneven", uneven, 60}, {"messages", messages, 60}, {"several_as_one", several_as_one, 60},
        {"order", order, 60}, {"lifetimes", lifetimes, 60}, {"graphs", graphs, 60},
        {"refusals", refusals, 60}, {"split", split, 60}, {"ddp", ddp, 200}, {"hooks", hooks, 120},
        {"bandwidth", bandwidth, 120}, {"symmetric", symmetric, 60},
        {"symmetric_pool", symmetric_pool, 60}, {"yy_shrink", yy_shrink, 60},
        {"zz_abort", zz_abort, 60}};
    cdp_nccl_desc desc;
    cdp_launch place;
    int devices = 1;
    if (argc == 2 && strcmp(argv[1], "--probe") == 0) return probe();
    memset(&desc, 0, sizeof desc);
    if (gpu_load() || gpu_cudaGetDeviceCount(&devices) != 0) return probe();
    if (cdp_launch_read(NULL, NULL, &place) != CDP_OK || cdp_init_from_env(NULL, &me.g) != CDP_OK)
        return cdp_print_error(stderr);
    me.rank = cdp_rank(me.g);
    me.n = cdp_size(me.g);
    me.device = place.local_rank % (uint32_t)devices;
    if (gpu_cudaSetDevice((int)me.device) != 0
        || gpu_cudaStreamCreateWithFlags(&me.stream, GPU_NON_BLOCKING) != 0)
        return 1;
    desc.stream = me.stream;
    table_brief = getenv("GPU_SHARED") != NULL;
    if (cdp_nccl_attach(me.g, &desc) != CDP_OK) return cdp_print_error(stderr);
    if (me.rank == 0)
        printf("%u ranks, NCCL %u%s\n", me.n, cdp_nccl_version(me.g),
            standin_set ? " of the STAND-IN: no GPU is involved, figures mean nothing" : "");
    const int rc = test_main(argc, argv, cases, sizeof cases / sizeof *cases);
    cdp_group_destroy(me.g);
    gpu_cudaStreamDestroy(me.stream);
    return rc;
}
