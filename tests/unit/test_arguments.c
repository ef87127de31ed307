/* What all public functions promise about their arguments: after a failure *out is NULL, and an
   argument that is missing is named, in the same words everywhere. */
#define CDP_IMPLEMENTATION
#include "cdp_elastic.h"
#include "cdp_rpc.h"
#include "cdp_dtensor.h"
#include "cdp_mem.h"
#include "cdp_fsdp.h"
#include "cdp_checkpoint.h"
#include "cdp_launch.h"
#include "cdp_nccl.h"
#include "cdp_pipeline.h"
#include "test.h"

/* The call fails, `out` was something before and is NULL afterwards. */
#define LEAVES_NULL(type, call)                                 \
    do {                                                        \
        type *out = (type *)(void *)&somewhere;                 \
        T((call) != CDP_OK);                                    \
        if (out) printf("  %s leaves *out as it was\n", #call); \
        T(!out);                                                \
    } while (0)

/* The call fails with the text "FUNCTION: ARGUMENT is NULL". */
#define NAMES(what, call)                                \
    do {                                                 \
        T_EQ(CDP_ERR_INVALID, (call));                   \
        T_TEXT(what " is NULL", cdp_last_error()->text); \
    } while (0)

static int somewhere;

TEST(out_is_null_after_a_failure) {
    const char *const keys[] = {"k"};
    cdp_bytes values[1];
    uint64_t found;
    uint32_t samples;
    LEAVES_NULL(cdp_hub, cdp_hub_create((const cdp_hub_desc *)0, &out));
    LEAVES_NULL(cdp_hub, cdp_hub_create(&(cdp_hub_desc){0}, &out));
    LEAVES_NULL(cdp_group, cdp_group_create(&(cdp_group_desc){0}, &out));
    LEAVES_NULL(cdp_group, cdp_group_new(NULL, NULL, 0, &out));
    LEAVES_NULL(cdp_group, cdp_group_new_with(NULL, NULL, 0, NULL, &out));
    LEAVES_NULL(cdp_group, cdp_group_split(NULL, 0, 0, &out));
    LEAVES_NULL(cdp_group, cdp_group_shrink(NULL, NULL, NULL, &out));
    LEAVES_NULL(cdp_ddp, cdp_ddp_create(&(cdp_ddp_desc){0}, &out));
    LEAVES_NULL(cdp_ddp, cdp_ddp_create_start(&(cdp_ddp_desc){0}, &out));
    LEAVES_NULL(cdp_channel, cdp_channel_open(&(cdp_channel_desc){0}, &out));
    LEAVES_NULL(cdp_store,
        cdp_hash_store_create(NULL, NULL) == CDP_OK ? CDP_OK
                                                    : cdp_prefix_store_create(NULL, "x", &out));
    LEAVES_NULL(cdp_store, cdp_custom_store_create(&(cdp_custom_store_desc){0}, &out));
    LEAVES_NULL(cdp_store, cdp_file_store_create(&(cdp_file_store_desc){0}, &out));
    LEAVES_NULL(cdp_store, cdp_tcp_store_create(&(cdp_tcp_store_desc){0}, &out));
    LEAVES_NULL(cdp_store, cdp_store_clone(NULL, &out));
    LEAVES_NULL(cdp_store_server, cdp_store_server_create(NULL, &out));
    LEAVES_NULL(cdp_group, cdp_init(&(cdp_tcp_desc){0}, &out));
    LEAVES_NULL(cdp_group, cdp_init_url("bad", NULL, &out));
    LEAVES_NULL(cdp_starting, cdp_init_start(&(cdp_tcp_desc){0}, &out));
    LEAVES_NULL(cdp_rpc, cdp_rpc_create(&(cdp_rpc_desc){0}, &out));
    LEAVES_NULL(cdp_ctx, cdp_ctx_begin(NULL, &out));
    LEAVES_NULL(cdp_dist_optim, cdp_dist_optim_create(&(cdp_optim_desc){0}, &out));
    LEAVES_NULL(cdp_elastic, cdp_elastic_create(&(cdp_elastic_desc){0}, &out));
    LEAVES_NULL(cdp_mesh, cdp_mesh_create(&(cdp_mesh_desc){0}, &out));
    LEAVES_NULL(cdp_mesh, cdp_mesh_from_groups(NULL, NULL, &out));
    LEAVES_NULL(cdp_mesh, cdp_mesh_sub(NULL, "x", &out));
    LEAVES_NULL(cdp_mesh, cdp_mesh_flatten(NULL, "x", NULL, &out));
    LEAVES_NULL(cdp_mesh, cdp_mesh_unflatten(NULL, "x", 0, NULL, NULL, &out));
    LEAVES_NULL(cdp_mesh, cdp_mesh_join(NULL, NULL, &out));
    LEAVES_NULL(cdp_plan, cdp_plan_create(&(cdp_plan_desc){0}, &out));
    LEAVES_NULL(cdp_edge, cdp_edge_create(&(cdp_edge_desc){0}, &out));
    LEAVES_NULL(cdp_tp, cdp_tp_create(&(cdp_tp_desc){0}, &out));
    LEAVES_NULL(cdp_cp, cdp_cp_create(&(cdp_cp_desc){0}, &out));
    LEAVES_NULL(cdp_mem, cdp_mem_create((const cdp_mem_desc *)0, &out));
    LEAVES_NULL(cdp_mem_pool, cdp_mem_pool_create(NULL, NULL, &out));
    LEAVES_NULL(cdp_fsdp, cdp_fsdp_create((const cdp_fsdp_desc *)0, &out));
    LEAVES_NULL(cdp_mem_shot, cdp_mem_snapshot(NULL, 0, false, &out));
    LEAVES_NULL(cdp_mem_shot, cdp_mem_read(NULL, 0, NULL, &out));
    LEAVES_NULL(void, cdp_mem_alloc(NULL, 1, NULL, &out));
    LEAVES_NULL(void, cdp_mem_alloc_at(NULL, NULL, 1, NULL, NULL, &out));
    LEAVES_NULL(void, cdp_group_alloc(NULL, 1, &out));
    LEAVES_NULL(void, cdp_store_get(NULL, "k", &out, NULL, 0));
    LEAVES_NULL(void, cdp_store_compare_set(NULL, "k", "", 0, "", 0, &out, NULL));
    LEAVES_NULL(void, cdp_store_queue_pop(NULL, "k", &out, NULL, 0));
    LEAVES_NULL(void, cdp_store_queue_try_pop(NULL, "k", &out, NULL));
    LEAVES_NULL(void, cdp_store_multi_get(NULL, keys, 1, values, &out, 0));
    LEAVES_NULL(cdp_bytes, cdp_store_list_keys(NULL, &out, &found));
    LEAVES_NULL(cdp_group, cdp_init_from_env(&(cdp_tcp_desc){.group.timeout_ms = 1}, &out));
    LEAVES_NULL(cdp_group, cdp_init_poll(NULL, 0, &out));
    LEAVES_NULL(cdp_elastic, cdp_elastic_create_from_env(&(cdp_elastic_desc){0}, &out));
    LEAVES_NULL(cdp_store, cdp_quorum_store_create(&(cdp_quorum_store_desc){0}, &out));
    LEAVES_NULL(cdp_optimizer, cdp_optimizer_create(&(cdp_optimizer_desc){0}, &out));
    LEAVES_NULL(cdp_leaves, cdp_leaves_create(&(cdp_leaves_desc){0}, &out));
    LEAVES_NULL(cdp_outer, cdp_outer_create(&(cdp_outer_desc){0}, &out));
    LEAVES_NULL(cdp_report, cdp_report_create(&(cdp_report_desc){0}, &out));
    LEAVES_NULL(cdp_loader, cdp_loader_create(&(cdp_loader_desc){0}, &out));
    LEAVES_NULL(const void, cdp_loader_next(NULL, &out, &samples));
    LEAVES_NULL(cdp_tokens, cdp_tokens_create(&(cdp_tokens_desc){0}, &out));
    LEAVES_NULL(cdp_ckpt, cdp_ckpt_create(&(cdp_ckpt_desc){0}, &out));
    LEAVES_NULL(cdp_ckpt_reader, cdp_ckpt_open(NULL, NULL, &out));
    LEAVES_NULL(cdp_agent, cdp_agent_start(&(cdp_launch_desc){0}, &out));
    LEAVES_NULL(cdp_schedule, cdp_schedule_create((const cdp_schedule_desc *)0, &out));
    LEAVES_NULL(cdp_pipeline, cdp_pipeline_create(&(cdp_pipeline_desc){0}, &out));
    LEAVES_NULL(void, cdp_backward_alloc(NULL, 1, &out));
    LEAVES_NULL(void, cdp_nccl_alloc(NULL, 1, &out));
    LEAVES_NULL(void, cdp_nccl_alloc_symmetric(NULL, 1, &out));
}

TEST(a_missing_argument_is_named) {
    cdp_group *g;
    cdp_ddp *d;
    cdp_rpc *r;
    cdp_store *s;
    cdp_mesh *m;
    cdp_ckpt *c;
    cdp_mem *a;
    void *p;
    NAMES("barrier: work", cdp_barrier_async(NULL, NULL));
    NAMES("allreduce: work",
        cdp_allreduce_async(NULL, NULL, NULL, 0, CDP_DTYPE_F32, CDP_REDUCE_SUM, NULL));
    NAMES("cdp_group_create: out", cdp_group_create(&(cdp_group_desc){0}, NULL));
    NAMES("cdp_group_create: desc", cdp_group_create(NULL, &g));
    NAMES("cdp_group_new: group", cdp_group_new(NULL, NULL, 0, &g));
    NAMES("cdp_group_alloc: group", cdp_group_alloc(NULL, 1, &p));
    NAMES("cdp_init: desc", cdp_init(NULL, &g));
    NAMES("cdp_ddp_create: desc", cdp_ddp_create(NULL, &d));
    NAMES("cdp_ddp_create: desc.group", cdp_ddp_create(&(cdp_ddp_desc){0}, &d));
    NAMES("cdp_ddp_ready: ddp", cdp_ddp_ready(NULL, 0));
    NAMES("cdp_rpc_create: desc", cdp_rpc_create(NULL, &r));
    NAMES("cdp_rpc_create: desc.group", cdp_rpc_create(&(cdp_rpc_desc){0}, &r));
    NAMES("cdp_rpc_shutdown: rpc", cdp_rpc_shutdown(NULL, 0));
    NAMES("cdp_store_clone: store", cdp_store_clone(NULL, &s));
    NAMES("cdp_tcp_store_create: desc.host", cdp_tcp_store_create(&(cdp_tcp_store_desc){0}, &s));
    NAMES("cdp_file_store_create: desc.path", cdp_file_store_create(&(cdp_file_store_desc){0}, &s));
    NAMES("cdp_store_set: store", cdp_store_set(NULL, "k", "v", 1));
    NAMES("cdp_layout_check: layout", cdp_layout_check(NULL));
    NAMES("cdp_mesh_cut: mesh", cdp_mesh_cut(NULL, 0, NULL, NULL));
    NAMES("cdp_mesh_unflatten: mesh", cdp_mesh_unflatten(NULL, "x", 0, NULL, NULL, &m));
    NAMES("cdp_count_begin: mesh", cdp_count_begin(NULL, "x"));
    NAMES("cdp_op_rules: count", cdp_op_rules(NULL, NULL, 0, NULL, 0, NULL));
    NAMES("cdp_tp_forward: tp", cdp_tp_forward(NULL, NULL, NULL, NULL, NULL));
    NAMES("cdp_cp_attention: cp", cdp_cp_attention(NULL, NULL, NULL, NULL, NULL, NULL));
    NAMES("cdp_edge_forward_pieces: edge", cdp_edge_forward_pieces(NULL, NULL, NULL, NULL, NULL));
    NAMES("cdp_mesh_create: desc", cdp_mesh_create(NULL, &m));
    NAMES("cdp_mesh_sub: out", cdp_mesh_sub(NULL, "dp", NULL));
    NAMES("cdp_mesh_flatten: out", cdp_mesh_flatten(NULL, "dp", "all", NULL));
    NAMES("cdp_ckpt_create: desc.group", cdp_ckpt_create(&(cdp_ckpt_desc){0}, &c));
    NAMES("cdp_ckpt_read: reader", cdp_ckpt_read(NULL, 0, NULL, NULL));
    NAMES("cdp_fsdp_need: fsdp", cdp_fsdp_need(NULL, 0));
    NAMES("cdp_mem_create: desc", cdp_mem_create(NULL, &a));
    NAMES("cdp_mem_alloc: mem", cdp_mem_alloc(NULL, 1, NULL, &p));
    NAMES("allreduce: group", cdp_allreduce(NULL, NULL, NULL, 0, CDP_DTYPE_F32, CDP_REDUCE_SUM));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"out_is_null_after_a_failure", out_is_null_after_a_failure, 20},
        {"a_missing_argument_is_named", a_missing_argument_is_named, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
