/* cdp_mem.h under cdp_nccl.h and DDP, on the stand-in for CUDA and NCCL: no GPU is involved. Each
   rank has a fixed pool over registered memory of its communicator; buckets, hooks and
   cdp_nccl_alloc take from it. */
#define CDP_IMPLEMENTATION
#include "cdp_nccl.h"

#include "cdp_mem.h"

#include "../nccl/cards.h"

#define MIB (1ull << 20)
#define COUNT 3000

static bool has_label(cdp_mem *mem, const char *label) {
    const cdp_mem_segment *g;
    cdp_mem_shot *s;
    bool found = false;
    if (!OK(cdp_mem_snapshot(&mem, 1, false, &s))) return false;
    const uint32_t n = cdp_mem_segments(s, &g);
    for (uint32_t i = 0; i < n; ++i)
        for (uint32_t j = 0; j < g[i].block_count; ++j)
            found = found || (g[i].blocks[j].label && strcmp(g[i].blocks[j].label, label) == 0);
    cdp_mem_shot_free(s);
    return found;
}

static cdp_mem *mem_begin(card *c, cdp_mem_pool **pool, bool symmetric) {
    cdp_mem_source cuda, registered;
    cdp_mem_desc d;
    cdp_mem_pool_desc pd;
    cdp_mem *mem = NULL;
    const cdp_allocator own =
        symmetric ? cdp_nccl_symmetric_allocator(c->g) : cdp_nccl_allocator(c->g);
    memset(&d, 0, sizeof d);
    memset(&pd, 0, sizeof pd);
    d.source = &cuda;
    d.record.history = CDP_MEM_HISTORY_ALL;
    d.record.stacks = CDP_MEM_STACKS_SITE;
    pd.label = "communication";
    pd.source = &registered;
    pd.fixed_bytes = 4 * MIB;
    OK(cdp_mem_source_cuda(NULL, &cuda));
    OK(cdp_mem_source_of(&own, NULL, &registered));
    OK(cdp_mem_create(&d, &mem));
    OK(cdp_mem_pool_create(mem, &pd, pool));
    return mem;
}

/* Equal calls on all ranks gave equal offsets. */
static void same_offsets(card *c, const cdp_mem_pool *pool) {
    uint64_t mine = cdp_mem_pool_hash(pool), all[8];
    OK(cdp_allgather(c->g, &mine, all, 1, CDP_DTYPE_U64));
    for (uint32_t r = 0; r < c->n; ++r)
        T(all[r] == mine && mine != 0);
}

static void train(card *c, cdp_mem *mem) {
    static const cdp_hook_desc fp16 = {.kind = CDP_HOOK_FP16};
    float host[COUNT];
    cdp_param p[2];
    cdp_ddp_desc d;
    cdp_ddp *ddp = NULL;
    cdp_hook hook;
    memset(p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    for (int i = 0; i < 2; ++i) {
        p[i].data = gpu_new(NULL, COUNT * 4);
        p[i].count = COUNT;
    }
    d.group = c->g;
    d.params = p;
    d.param_count = 2;
    d.first_bucket_bytes = d.bucket_bytes = COUNT * 4; /* two buckets */
    if (!OK(cdp_ddp_create(&d, &ddp))) return;
    T(has_label(mem, "ddp bucket 0") && has_label(mem, "ddp bucket 1"));
    OK(cdp_nccl_hook_create(c->g, &fp16, &hook));
    OK(cdp_ddp_set_hook(ddp, &hook));
    for (int i = 0; i < COUNT; ++i)
        host[i] = (float)c->rank;
    OK(cdp_ddp_backward_begin(ddp));
    for (uint32_t i = 2; i > 0; --i) {
        void *const grad = cdp_ddp_grad(ddp, i - 1);
        GPU(cudaMemcpyAsync(grad, host, COUNT * 4, GPU_TO_DEVICE, c->stream));
        OK(cdp_ddp_ready(ddp, i - 1));
    }
    OK(cdp_ddp_backward_end(ddp));
    T(has_label(mem, "hook scratch"));
    for (uint32_t i = 0; i < 2; ++i) {
        GPU(cudaMemcpyAsync(host, cdp_ddp_grad(ddp, i), COUNT * 4, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        T(host[0] == (float)(c->n - 1) / 2 && host[COUNT - 1] == host[0]);
    }
    cdp_ddp_destroy(ddp);
    for (int i = 0; i < 2; ++i)
        GPU(cudaFree(p[i].data));
}

static void joined_of_rank(card *c) {
    cdp_mem_pool *pool = NULL;
    const bool symmetric = c->arg != NULL;
    cdp_mem *const mem = mem_begin(c, &pool, symmetric);
    cdp_allocator a, half = {NULL, NULL, NULL};
    void *x = NULL, *y = NULL;
    if (!mem || !pool) return;
    a = cdp_mem_pool_allocator(pool);
    FAILS(CDP_ERR_INVALID, "both functions", cdp_nccl_set_memory(c->g, &half));
    OK(cdp_nccl_set_memory(c->g, &a));
    train(c, mem);
    OK(cdp_nccl_alloc(c->g, MIB, &x));
    T(cdp_mem_usable(mem, x) == MIB && has_label(mem, "nccl"));
    T((cdp_nccl_window(c->g, x) != NULL) == symmetric);
    GPU(cudaMemsetAsync(x, 0, MIB, c->stream));
    OK(cdp_allreduce(c->g, NULL, x, (int)MIB / 4, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    FAILS(CDP_ERR_NOMEM, "the pool is fixed at 4.0 MiB", cdp_nccl_alloc(c->g, 5 * MIB, &y));
    cdp_nccl_free(c->g, x);
    same_offsets(c, pool);
    OK(cdp_nccl_set_memory(c->g, NULL));
    OK(cdp_nccl_alloc(c->g, MIB, &x)); /* of NCCL again */
    T_EQ(0, cdp_mem_usable(mem, x));
    cdp_nccl_free(c->g, x);
    OK(cdp_barrier(c->g));
    T_EQ(0, cdp_mem_destroy(mem)); /* the pool goes back to the group, which still lives */
}

TEST(buckets_hooks_and_nccl_alloc) {
    on_cards(2, joined_of_rank, NULL);
    clean();
}

/* The same, with the pool in a window that all ranks have registered together. */
TEST(in_a_symmetric_pool) {
    static bool symmetric = true;
    const long before = standin_calls("ncclCommWindowRegister");
    for (uint32_t n = 1; n < 4; ++n) {
        on_cards(n, joined_of_rank, &symmetric);
        clean();
    }
    T_EQ(6, standin_calls("ncclCommWindowRegister") - before); /* once for each pool */
}

static cdp_status pool_of(card *c, cdp_mem *mem, uint64_t bytes, cdp_mem_pool **pool) {
    const cdp_allocator own = cdp_nccl_symmetric_allocator(c->g);
    cdp_mem_source windows;
    cdp_mem_pool_desc d;
    memset(&d, 0, sizeof d);
    d.source = &windows;
    d.fixed_bytes = bytes;
    const cdp_status st = cdp_mem_source_of(&own, NULL, &windows);
    return st == CDP_OK ? cdp_mem_pool_create(mem, &d, pool) : st;
}

/* What keeps the pool of one rank from being made is the error of all ranks. */
static void unlike_of_rank(card *c) {
    cdp_mem_pool *pool = NULL, *second = NULL;
    cdp_mem_source cuda;
    cdp_mem_desc d;
    cdp_mem *mem = NULL;
    void *p, *q;
    memset(&d, 0, sizeof d);
    d.source = &cuda;
    OK(cdp_mem_source_cuda(NULL, &cuda));
    if (!OK(cdp_mem_create(&d, &mem))) return;
    FAILS(CDP_ERR_MISMATCH, "2097152", pool_of(c, mem, c->rank ? MIB : 2 * MIB, &pool));
    T_TEXT("1048576", cdp_last_error()->text);
    FAILS(CDP_ERR_NOMEM, "rank", pool_of(c, mem, 1ull << 40, &pool));
    T(!pool && cdp_group_status(c->g) == CDP_OK);
    OK(pool_of(c, mem, MIB, &pool));
    OK(cdp_mem_alloc_at(mem, pool, 5000, c->stream, NULL, &p));
    OK(cdp_mem_alloc_at(mem, pool, 100, c->stream, NULL, &q));
    T(cdp_nccl_window(c->g, p) != NULL && cdp_nccl_window(c->g, p) == cdp_nccl_window(c->g, q));
    same_offsets(c, pool);
    OK(cdp_mem_free(mem, p));
    OK(cdp_mem_free(mem, q));
    OK(cdp_mem_pool_destroy(pool));
    T(!cdp_nccl_window(c->g, p));
    OK(pool_of(c, mem, MIB, &second));
    OK(cdp_mem_pool_destroy(second));
    T_EQ(0, cdp_mem_destroy(mem));
}
TEST(pools_that_differ) {
    on_cards(3, unlike_of_rank, NULL);
    clean();
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"buckets_hooks_and_nccl_alloc", buckets_hooks_and_nccl_alloc, 120},
        {"in_a_symmetric_pool", in_a_symmetric_pool, 120},
        {"pools_that_differ", pools_that_differ, 60}};
    const char *missing;
    libraries_at_hand(argv, "");
    missing = gpu_load();
    if (missing || !standin_set) {
        printf("  the stand-in does not load: %s\nnot ok load\n0 passed, 1 failed\n",
            missing ? missing : "this is no stand-in");
        return 1;
    }
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
