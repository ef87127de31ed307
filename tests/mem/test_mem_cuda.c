/* cdp_mem.h over CUDA, on the stand-in of tests/nccl: no GPU is involved. Streams are threads that
   begin their work late, so that memory reused too early shows. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"
#include "../nccl/libraries.h"

#define MIB (1ull << 20)

/* The libraries are loaded when the program runs; these are looked up in them. */
/* clang-format off */
#define CALLS(X) \
    X(cudaSetDevice, int, (int)) \
    X(cudaGetDevice, int, (int *)) \
    X(cudaStreamCreateWithFlags, int, (void **, unsigned)) \
    X(cudaStreamDestroy, int, (void *)) \
    X(cudaStreamSynchronize, int, (void *)) \
    X(cudaMemcpyAsync, int, (void *, const void *, size_t, int, void *)) \
    X(cudaMemsetAsync, int, (void *, int, size_t, void *)) \
    X(cudaStreamBeginCapture, int, (void *, int)) \
    X(cudaStreamEndCapture, int, (void *, void **)) \
    X(cudaGraphDestroy, int, (void *)) \
    X(cudaGetLastError, int, (void)) \
    X(standin_set, void, (const char *, long)) \
    X(standin_fail, void, (const char *, int, int)) \
    X(standin_calls, long, (const char *)) \
    X(standin_faults, int, (char *, size_t)) \
    X(standin_left, long, (const char *)) \
    X(standin_forget_faults, void, (void))
/* clang-format on */
#define DECLARE(name, result, parameters) static result(*p_##name) parameters;
CALLS(DECLARE)

static bool calls_found(void) {
    void *const lib = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    void *f;
    if (!lib) return false;
#define FIND(name, result, parameters)               \
    f = dlsym(lib, #name);                           \
    if (!f) {                                        \
        printf("  the stand-in has no %s\n", #name); \
        return false;                                \
    }                                                \
    memcpy(&p_##name, &f, sizeof f);
    CALLS(FIND)
    return true;
}

static bool expandable; /* of the worlds that begin */

typedef struct world {
    cdp_mem *mem;
    void *streams[8];
} world;

static void world_begin(world *w, uint64_t limit) {
    cdp_mem_source source;
    cdp_mem_desc d;
    memset(w, 0, sizeof *w);
    memset(&d, 0, sizeof d);
    OK(cdp_mem_source_cuda(NULL, &source));
    T_TEXT("cuda:", source.name);
    d.source = &source;
    d.limit_bytes = limit;
    d.expandable = expandable;
    d.timeout_ms = 10000;
    d.record.history = CDP_MEM_HISTORY_ALL;
    OK(cdp_mem_create(&d, &w->mem));
    for (int i = 0; i < 8; ++i)
        T_EQ(0, p_cudaStreamCreateWithFlags(&w->streams[i], 1));
}

static void world_end(world *w) {
    char text[400];
    for (int i = 0; i < 8; ++i)
        T_EQ(0, p_cudaStreamSynchronize(w->streams[i]));
    T_WELL(w->mem);
    T_EQ(0, cdp_mem_destroy(w->mem));
    for (int i = 0; i < 8; ++i)
        T_EQ(0, p_cudaStreamDestroy(w->streams[i]));
    test_check(p_standin_faults(text, sizeof text) == 0, __FILE__, __LINE__, "%s", text);
    T_EQ(0, p_standin_left("bytes"));
    T_EQ(0, p_standin_left("events"));
    T_EQ(0, p_standin_left("ranges"));
    T_EQ(0, p_cudaGetLastError()); /* no error is left for the next call */
}

TEST(device_memory) {
    world w;
    void *p, *q;
    world_begin(&w, 0);
    OK(cdp_mem_alloc(w.mem, 1000, w.streams[0], &p));
    OK(cdp_mem_alloc(w.mem, 3 * MIB, w.streams[1], &q));
    T_EQ(22 * MIB, p_standin_left("bytes"));
    T_EQ(0, p_cudaMemsetAsync(p, 1, 1000, w.streams[0]));
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_free(w.mem, q));
    T_EQ(22 * MIB, cdp_mem_trim(w.mem));
    world_end(&w);
}

TEST(another_device_is_left_alone) {
    cdp_mem_source source;
    cdp_mem_desc d;
    cdp_mem *m;
    void *p;
    int device = -1;
    T_EQ(0, p_cudaSetDevice(2));
    OK(cdp_mem_source_cuda(NULL, &source));
    T_TEXT("cuda:2", source.name);
    memset(&d, 0, sizeof d);
    d.source = &source;
    OK(cdp_mem_create(&d, &m));
    T_EQ(0, p_cudaSetDevice(1));
    OK(cdp_mem_alloc(m, 100, NULL, &p)); /* of device 2, although 1 is current */
    T_EQ(0, p_cudaGetDevice(&device));
    T_EQ(1, device);
    OK(cdp_mem_free(m, p));
    T_EQ(0, cdp_mem_destroy(m));
    T_EQ(0, p_cudaSetDevice(0));
    T_EQ(0, p_standin_left("bytes"));
}

/* A second stream works on a block that is freed and allocated again: it must copy out what was
   there before. */
static int reused_early(bool record) {
    static uint8_t out[64][4096];
    world w;
    int wrong = 0;
    void *copies;
    memset(out, 0, sizeof out);
    world_begin(&w, 0);
    OK(cdp_mem_alloc(w.mem, sizeof out, w.streams[0],
        &copies)); /* copies to the host would wait for the stream */
    for (int i = 0; i < 64; ++i) {
        void *p;
        OK(cdp_mem_alloc(w.mem, 4096, w.streams[0], &p));
        T_EQ(0, p_cudaMemsetAsync(p, i + 1, 4096, w.streams[0]));
        T_EQ(0, p_cudaStreamSynchronize(w.streams[0]));
        T_EQ(0,
            p_cudaMemcpyAsync((char *)copies + i * 4096, p, 4096, 4,
                w.streams[1 + i % 3])); /* runs a while later */
        if (record) OK(cdp_mem_record_stream(w.mem, p, w.streams[1 + i % 3]));
        OK(cdp_mem_free(w.mem, p));
    }
    for (int i = 0; i < 8; ++i)
        T_EQ(0, p_cudaStreamSynchronize(w.streams[i]));
    T_EQ(0, p_cudaMemcpyAsync(out, copies, sizeof out, 4, w.streams[0]));
    T_EQ(0, p_cudaStreamSynchronize(w.streams[0]));
    OK(cdp_mem_free(w.mem, copies));
    for (int i = 0; i < 64; ++i)
        wrong += out[i][17] != i + 1;
    world_end(&w);
    return wrong;
}

TEST(recorded_streams_are_waited_for) {
    p_standin_set("delay_us", 500);
    T_EQ(0, reused_early(true));
    if (!TEST_OWN_THREADS)
        T(reused_early(false) > 0); /* the defect shows without it: this test can fail */
    p_standin_set("delay_us", 200);
}

TEST(the_device_is_full) {
    world w;
    void *p[8], *q;
    world_begin(&w, 0);
    p_standin_set("memory", (long)(64 * MIB));
    OK(cdp_mem_alloc(w.mem, 40 * MIB, w.streams[0], &p[0]));
    FAILS(CDP_ERR_NOMEM, "no 30.0 MiB", cdp_mem_alloc(w.mem, 30 * MIB, w.streams[1], &q));
    T_TEXT("has 24.0 MiB free of 64.0 MiB", cdp_last_error()->text);
    T_TEXT("most is held by code at ", cdp_last_error()->text);
    T_EQ(0, p_cudaGetLastError());
    T_EQ(0, p_cudaMemsetAsync(p[0], 1, 1000, w.streams[2]));
    OK(cdp_mem_record_stream(w.mem, p[0], w.streams[2]));
    OK(cdp_mem_free(w.mem, p[0]));
    OK(cdp_mem_alloc(
        w.mem, 50 * MIB, w.streams[1], &q)); /* waits for stream 2, and gives the segment back */
    OK(cdp_mem_free(w.mem, q));
    p_standin_set("memory", (long)(128 * MIB));
    world_end(&w);
}

/* Every call of the driver fails once at every place of this program; nothing may be lost. */
static void little(world *w) {
    void *p = NULL, *q = NULL;
    if (cdp_mem_alloc(w->mem, 3 * MIB, w->streams[0], &p) == CDP_OK) {
        T_EQ(0, p_cudaMemsetAsync(p, 1, 100, w->streams[1]));
        (void)!cdp_mem_record_stream(w->mem, p, w->streams[1]);
    }
    if (cdp_mem_alloc(w->mem, 100, w->streams[0], &q) == CDP_OK
        && cdp_mem_free(w->mem, q) != CDP_OK)
        OK(cdp_mem_free(w->mem, q));
    if (p && cdp_mem_free(w->mem, p) != CDP_OK)
        OK(cdp_mem_free(w->mem, p)); /* it is still ours: the second try is good */
    if (cdp_mem_alloc(w->mem, 30 * MIB, w->streams[2], &q) == CDP_OK) OK(cdp_mem_free(w->mem, q));
    cdp_mem_trim(w->mem);
}

TEST(the_driver_fails_everywhere) {
    static const char *const functions[] = {"cudaMalloc", "cudaFree", "cudaEventCreateWithFlags",
        "cudaEventRecord", "cudaEventQuery", "cudaMemGetInfo"};
    for (size_t f = 0; f < sizeof functions / sizeof *functions; ++f)
        for (int nth = 1; nth <= 4; ++nth)
            for (int kind = 0; kind < 2; ++kind) {
                world w;
                world_begin(&w, 0);
                p_standin_fail(functions[f], nth, kind ? 2 : 1);
                little(&w);
                T_WELL(w.mem);
                p_standin_fail(functions[f], 0, 0);
                little(&w);
                world_end(&w);
            }
}

TEST(graphs_have_their_own_pool) {
    world w;
    cdp_mem_pool_desc pd;
    cdp_mem_pool *pool;
    void *p, *q, *graph = NULL;
    memset(&pd, 0, sizeof pd);
    pd.label = "graph 1";
    world_begin(&w, 0);
    OK(cdp_mem_pool_create(w.mem, &pd, &pool));
    T_EQ(0,
        p_cudaStreamBeginCapture(w.streams[0],
            0)); /* global: calls that are not safe spoil it, unless this thread is exempt */
    FAILS(CDP_ERR_STATE, "being captured", cdp_mem_alloc(w.mem, 100, w.streams[0], &p));
    OK(cdp_mem_alloc_at(
        w.mem, pool, 3 * MIB, w.streams[0], NULL, &p)); /* a new segment in a capture */
    T_EQ(0, p_cudaMemsetAsync(p, 1, 100, w.streams[0]));
    OK(cdp_mem_record_stream(w.mem, p, w.streams[1]));
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_alloc(w.mem, 100, w.streams[2], &q)); /* other streams go on */
    OK(cdp_mem_free(w.mem, q));
    T_EQ(0, p_cudaStreamEndCapture(w.streams[0], &graph));
    T(graph != NULL); /* nothing spoiled it */
    T_EQ(0, p_cudaGraphDestroy(graph));
    OK(cdp_mem_alloc(w.mem, 100, w.streams[2], &q));
    OK(cdp_mem_free(w.mem, q));
    while (cdp_mem_pool_destroy(pool) == CDP_ERR_STATE)
        test_sleep_ms(1); /* the event has to pass */
    world_end(&w);
}

TEST(streams_may_be_gone) {
    world w;
    void *p, *gone = NULL;
    world_begin(&w, 0);
    T_EQ(0, p_cudaStreamCreateWithFlags(&gone, 1));
    OK(cdp_mem_alloc(w.mem, 1000, w.streams[0], &p));
    OK(cdp_mem_record_stream(w.mem, p, gone));
    OK(cdp_mem_forget_stream(w.mem, gone));
    T_EQ(0, p_cudaStreamDestroy(gone));
    OK(cdp_mem_free(w.mem, p));
    T(cdp_mem_trim(w.mem) == 2 * MIB);
    world_end(&w);
}

/* The same tests over pages that the driver maps. */
TEST(pages_wait_for_recorded_streams) {
    expandable = true;
    recorded_streams_are_waited_for();
    expandable = false;
}

TEST(segments_grow_on_a_device) {
    world w;
    void *p, *q, *r;
    char back[64];
    expandable = true;
    world_begin(&w, 0);
    expandable = false;
    OK(cdp_mem_alloc(w.mem, 3 * MIB, w.streams[0], &p));
    T_EQ(4 * MIB, p_standin_left("bytes"));
    OK(cdp_mem_alloc(w.mem, 5 * MIB, w.streams[0], &q)); /* 1 MiB of it was there already */
    T((char *)q == (char *)p + 3 * MIB);
    T_EQ(8 * MIB, p_standin_left("bytes"));
    T_EQ(0, p_cudaMemsetAsync(q, 7, 5 * MIB, w.streams[0])); /* over pages of two calls */
    OK(cdp_mem_alloc(w.mem, 20 * MIB, w.streams[1], &r));
    T_EQ(0, p_cudaMemsetAsync(r, 9, 20 * MIB, w.streams[1]));
    T_EQ(28 * MIB, p_standin_left("bytes"));
    OK(cdp_mem_free(w.mem, r));
    T_EQ(20 * MIB, cdp_mem_trim(w.mem)); /* waits for the memset, or there were a fault */
    OK(cdp_mem_free(w.mem, p));
    T_EQ(2 * MIB, cdp_mem_trim(w.mem)); /* of 3 MiB; the other page has a part of q */
    T_EQ(0, p_cudaMemcpyAsync(back, q, 64, 2, w.streams[0]));
    T_EQ(0, p_cudaStreamSynchronize(w.streams[0]));
    T_EQ(7, back[63]);
    OK(cdp_mem_free(w.mem, q));
    world_end(&w);
}

/* Idle pages of another stream make room on a device that is full. */
TEST(pages_go_where_they_are_needed) {
    world w;
    void *p, *q;
    p_standin_set("memory", (long)(40 * MIB));
    expandable = true;
    world_begin(&w, 0);
    expandable = false;
    OK(cdp_mem_alloc(w.mem, 30 * MIB, w.streams[0], &p));
    T_EQ(0, p_cudaMemsetAsync(p, 1, 30 * MIB, w.streams[0]));
    OK(cdp_mem_free(w.mem, p));
    OK(cdp_mem_alloc(w.mem, 36 * MIB, w.streams[1], &q));
    T_EQ(0, p_cudaMemsetAsync(q, 2, 36 * MIB, w.streams[1]));
    FAILS(CDP_ERR_NOMEM, "cdp_mem_alloc: no 6.0 MiB",
        cdp_mem_alloc(w.mem, 6 * MIB, w.streams[0], &p));
    OK(cdp_mem_free(w.mem, q));
    world_end(&w);
    p_standin_set("memory", (long)(128 * MIB));
}

/* Each of the driver's calls fails, each time it is made: nothing is left half done. */
TEST(each_call_of_the_driver_for_pages_fails) {
    static const char *const names[] = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap",
        "cuMemSetAccess", "cuMemUnmap", "cudaStreamSynchronize", "cudaMemGetInfo"};
    for (size_t k = 0; k < sizeof names / sizeof *names; ++k)
        for (int n = 1; n <= 3; ++n) {
            world w;
            void *p = NULL, *q = NULL;
            cdp_status st;
            expandable = true;
            world_begin(&w, 0);
            expandable = false;
            p_standin_fail(names[k], n, n == 3 ? 2 : 1);
            st = cdp_mem_alloc(w.mem, 5 * MIB, w.streams[0], &p);
            T(st == CDP_OK ? p != NULL : !p && strstr(cdp_last_error()->text, "cu"));
            T_WELL(w.mem);
            st = cdp_mem_alloc(w.mem, 9 * MIB, w.streams[0], &q);
            T_WELL(w.mem);
            if (p) OK(cdp_mem_free(w.mem, p));
            (void)cdp_mem_trim(w.mem);
            T_WELL(w.mem);
            p_standin_fail(names[k], 0, 0);
            if (q) OK(cdp_mem_free(w.mem, q));
            world_end(&w);
        }
}

TEST(a_driver_without_pages) {
    cdp_mem_source source;
    cdp_mem_desc d;
    cdp_mem *m;
    memset(&d, 0, sizeof d);
    p_standin_set("pages", 0);
    OK(cdp_mem_source_cuda(NULL, &source));
    T(!source.map && !source.page_bytes);
    d.source = &source;
    d.expandable = true;
    FAILS(CDP_ERR_UNSUPPORTED, "cuda:0 cannot map pages", cdp_mem_create(&d, &m));
    T(!m);
    p_standin_set("pages", 1);
}

TEST(a_library_can_be_named) {
    static const char *const names[] = {"libcudart.so.13", "libcudart.so"};
    for (int i = 0; i < 2; ++i) {
        cdp_mem_source source;
        if (!OK(cdp_mem_source_cuda(names[i], &source))) return;
        T_TEXT("cuda:", source.name);
        source.destroy(source.user);
    }
}

TEST(no_device_no_library) {
    cdp_mem_source source;
    cdp_mem_desc d;
    cdp_mem *m;
    memset(&d, 0, sizeof d);
    FAILS(CDP_ERR_UNSUPPORTED, "looked for /nowhere/cudart",
        cdp_mem_source_cuda("/nowhere/cudart", &source));
    p_standin_set("devices", 0);
    FAILS(CDP_ERR_UNSUPPORTED, "no GPU here", cdp_mem_source_cuda(NULL, &source));
    FAILS(CDP_ERR_UNSUPPORTED, "no GPU here", cdp_mem_create(&d, &m));
    p_standin_set("devices", 4);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"device_memory", device_memory, 30},
        {"another_device_is_left_alone", another_device_is_left_alone, 30},
        {"recorded_streams_are_waited_for", recorded_streams_are_waited_for, 60},
        {"the_device_is_full", the_device_is_full, 30},
        {"the_driver_fails_everywhere", the_driver_fails_everywhere, 60},
        {"graphs_have_their_own_pool", graphs_have_their_own_pool, 30},
        {"streams_may_be_gone", streams_may_be_gone, 30},
        {"pages_wait_for_recorded_streams", pages_wait_for_recorded_streams, 60},
        {"segments_grow_on_a_device", segments_grow_on_a_device, 30},
        {"pages_go_where_they_are_needed", pages_go_where_they_are_needed, 30},
        {"each_call_of_the_driver_for_pages_fails", each_call_of_the_driver_for_pages_fails, 60},
        {"a_driver_without_pages", a_driver_without_pages, 30},
        {"a_library_can_be_named", a_library_can_be_named, 30},
        {"no_device_no_library", no_device_no_library, 30}};
    libraries_at_hand(argv, "");
    if (!calls_found()) {
        printf("SKIP everything: no stand-in for CUDA beside this program\n0 passed, 1 failed\n");
        return 1;
    }
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
