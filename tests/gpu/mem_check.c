/* mem_check.c - cdp_mem.h on a real GPU: what the stand-in cannot show. Run by run.sh. Ends with
   "N passed, N failed"; with exit code 77 and one line where there is no GPU. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"

#include "../test.h"

#include "../nccl/gpu.h"

#define MIB (1ull << 20)
#define OK(call) \
    test_check((call) == CDP_OK, __FILE__, __LINE__, "%s: %s", #call, cdp_last_error()->text)

static cdp_mem *begin(void) {
    cdp_mem_source cuda;
    cdp_mem_desc d;
    cdp_mem *mem = NULL;
    memset(&d, 0, sizeof d);
    d.source = &cuda;
    d.record.history = CDP_MEM_HISTORY_ALL;
    if (OK(cdp_mem_source_cuda(NULL, &cuda))) OK(cdp_mem_create(&d, &mem));
    return mem;
}

/* Copies of a second stream, which lie behind long work, see what was there when the block was
   freed. */
TEST(order_of_streams) {
    static uint8_t host[64][4096];
    cdp_mem *const mem = begin();
    void *streams[2], *copies, *slow;
    if (!mem) return;
    for (int i = 0; i < 2; ++i)
        GPU(cudaStreamCreateWithFlags(&streams[i], 1));
    OK(cdp_mem_alloc(mem, sizeof host, streams[0], &copies));
    OK(cdp_mem_alloc(mem, 64 * MIB, streams[1], &slow));
    for (int i = 0; i < 64; ++i) {
        void *p;
        OK(cdp_mem_alloc(mem, 4096, streams[0], &p));
        GPU(cudaMemsetAsync(p, i + 1, 4096, streams[0]));
        GPU(cudaStreamSynchronize(streams[0]));
        GPU(cudaMemsetAsync(slow, i, 64 * MIB, streams[1]));
        GPU(cudaMemcpyAsync((char *)copies + i * 4096, p, 4096, 4, streams[1]));
        OK(cdp_mem_record_stream(mem, p, streams[1]));
        OK(cdp_mem_free(mem, p));
    }
    for (int i = 0; i < 2; ++i)
        GPU(cudaStreamSynchronize(streams[i]));
    GPU(cudaMemcpy(host, copies, sizeof host, 4));
    for (int i = 0; i < 64; ++i)
        T_EQ(i + 1, host[i][4095]);
    OK(cdp_mem_free(mem, copies));
    OK(cdp_mem_free(mem, slow));
    T_EQ(0, cdp_mem_destroy(mem));
    for (int i = 0; i < 2; ++i)
        GPU(cudaStreamDestroy(streams[i]));
    T_EQ(0, gpu_cudaGetLastError());
}

TEST(more_than_the_device_has) {
    cdp_mem *const mem = begin();
    void *p;
    if (!mem) return;
    T_EQ(CDP_ERR_NOMEM, cdp_mem_alloc(mem, 1ull << 45, NULL, &p));
    T_TEXT("the device has", cdp_last_error()->text);
    printf("  %s\n", cdp_last_error()->text);
    T_EQ(0, gpu_cudaGetLastError()); /* nothing is left for the next call */
    OK(cdp_mem_alloc(mem, 1000, NULL, &p));
    GPU(cudaMemset(p, 1, 1000));
    OK(cdp_mem_free(mem, p));
    T_EQ(0, cdp_mem_destroy(mem));
}

/* A request that only fits after a second stream is done waits for it, and succeeds. */
TEST(frees_that_wait_come_back_on_need) {
    cdp_mem *const mem = begin();
    cdp_mem_stats stats;
    void *streams[2], *p, *q;
    if (!mem) return;
    for (int i = 0; i < 2; ++i)
        GPU(cudaStreamCreateWithFlags(&streams[i], 1));
    cdp_mem_set_limit(mem, 200 * MIB);
    OK(cdp_mem_alloc(mem, 150 * MIB, streams[0], &p));
    for (int i = 0; i < 100; ++i)
        GPU(cudaMemsetAsync(p, i, 150 * MIB, streams[1]));
    OK(cdp_mem_record_stream(mem, p, streams[1]));
    OK(cdp_mem_free(mem, p));
    OK(cdp_mem_alloc(mem, 150 * MIB, streams[0], &q));
    GPU(cudaStreamSynchronize(streams[1]));
    stats = cdp_mem_stats_of(mem);
    T(stats.reserved_bytes[0].peak <= 200 * MIB);
    OK(cdp_mem_free(mem, q));
    T_EQ(0, cdp_mem_destroy(mem));
    for (int i = 0; i < 2; ++i)
        GPU(cudaStreamDestroy(streams[i]));
    T_EQ(0, gpu_cudaGetLastError());
}

TEST(a_graph_and_its_pool) {
    cdp_mem *const mem = begin();
    cdp_mem_pool_desc d;
    cdp_mem_pool *pool;
    void *stream, *p, *graph = NULL;
    if (!mem) return;
    memset(&d, 0, sizeof d);
    OK(cdp_mem_pool_create(mem, &d, &pool));
    GPU(cudaStreamCreateWithFlags(&stream, 1));
    GPU(cudaStreamBeginCapture(stream, 0));
    T_EQ(CDP_ERR_STATE, cdp_mem_alloc(mem, 1000, stream, &p));
    OK(cdp_mem_alloc_at(mem, pool, 3 * MIB, stream, NULL, &p));
    GPU(cudaMemsetAsync(p, 1, 1000, stream));
    OK(cdp_mem_free(mem, p));
    GPU(cudaStreamEndCapture(stream, &graph));
    T(graph != NULL);
    OK(cdp_mem_pool_destroy(pool));
    T_EQ(0, cdp_mem_destroy(mem));
    GPU(cudaStreamDestroy(stream));
}

TEST(a_snapshot_of_the_device) {
    cdp_mem *const mem = begin();
    const cdp_mem_segment *g;
    cdp_mem_shot *s;
    void *p;
    if (!mem) return;
    OK(cdp_mem_alloc(mem, 5 * MIB, NULL, &p));
    OK(cdp_mem_snapshot(&mem, 1, false, &s));
    T_EQ(1, cdp_mem_segments(s, &g));
    T(g->address == (uint64_t)(uintptr_t)p && g->size == 20 * MIB);
    cdp_mem_shot_free(s);
    OK(cdp_mem_free(mem, p));
    const uint64_t from = test_now_ns();
    for (int i = 0; i < 100000; ++i) {
        if (cdp_mem_alloc(mem, 5 * MIB, NULL, &p) != CDP_OK) return;
        if (cdp_mem_free(mem, p) != CDP_OK) return;
    }
    printf("  a pair of alloc and free, recorded with stacks: %.0f ns\n",
        (double)(test_now_ns() - from) / 1e5);
    T_EQ(0, cdp_mem_destroy(mem));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"order_of_streams", order_of_streams, 60},
        {"more_than_the_device_has", more_than_the_device_has, 60},
        {"frees_that_wait_come_back_on_need", frees_that_wait_come_back_on_need, 60},
        {"a_graph_and_its_pool", a_graph_and_its_pool, 60},
        {"a_snapshot_of_the_device", a_snapshot_of_the_device, 60}};
    cdp_mem_source cuda;
    const char *const missing = gpu_load();
    if (missing || cdp_mem_source_cuda(NULL, &cuda) != CDP_OK) {
        printf("no GPU here: %s\n", missing ? missing : cdp_last_error()->text);
        return 77;
    }
    cuda.destroy(cuda.user);
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
