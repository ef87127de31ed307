/* Rank 0 of the job of test_ranks.py, whose other ranks are in Python: the same calls in the
   same order.
   SPDX-License-Identifier: MIT-0 OR Unlicense */
#include "cdp_checkpoint.h"
#include "cdp_rpc.h"
#include "cdp_tcp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "not ok in C: %s\n", what);
    cdp_print_error(stderr);
    exit(1);
}

static void collectives(cdp_group *world) {
    double x[3];
    int32_t from_python[2] = {0, 0};
    uint16_t mine = 1, all[4];
    char text[64] = "";
    cdp_blob blob = {0};
    const double ranks = 4;
    for (int i = 0; i < 3; ++i)
        x[i] = i + 1;
    must(cdp_allreduce(world, NULL, x, 3, CDP_DTYPE_F64, CDP_REDUCE_SUM) == CDP_OK, "allreduce");
    for (int i = 0; i < 3; ++i)
        must(x[i] == (i + 1) * ranks * (ranks + 1) / 2, "the sum");
    must(cdp_broadcast(world, from_python, 2, CDP_DTYPE_I32, 1) == CDP_OK, "broadcast");
    must(from_python[0] == 77 && from_python[1] == -5, "what Python broadcast");
    must(cdp_allgather(world, &mine, all, 1, CDP_DTYPE_U16) == CDP_OK, "allgather");
    for (int i = 0; i < 4; ++i)
        must(all[i] == i + 1, "the parts");
    must(cdp_send(world, "ping", 4, CDP_DTYPE_U8, 1, 3) == CDP_OK, "send");
    must(cdp_recv(world, text, 4, CDP_DTYPE_U8, 1, 4) == CDP_OK, "recv");
    must(!strcmp(text, "PING"), "the answer");
    blob.data = text;
    blob.room = sizeof text - 1;
    must(cdp_allgather_bytes(world, "C", 1, &blob) == CDP_OK, "allgather_bytes");
    must(blob.bytes == 7 && !memcmp(text, "Cpypypy", 7), "the bytes");
}

static void train(cdp_group *world, float *w) {
    cdp_ddp *ddp;
    cdp_param param;
    cdp_ddp_desc desc;
    memset(&param, 0, sizeof param);
    memset(&desc, 0, sizeof desc);
    param.name = "w";
    param.data = w;
    param.count = 2;
    desc.group = world;
    desc.params = &param;
    desc.param_count = 1;
    must(cdp_ddp_create(&desc, &ddp) == CDP_OK, "ddp");
    must(w[0] == 0.25f, "rank 0's parameters count");
    for (int step = 0; step < 400; ++step) {
        float *g = (float *)cdp_ddp_grad(ddp, 0);
        const float x = (float)(step % 10) / 10, err = w[0] + w[1] * x - (1 + 2 * x);
        must(cdp_ddp_backward_begin(ddp) == CDP_OK, "backward_begin");
        g[0] = err;
        g[1] = err * x;
        must(
            cdp_ddp_ready(ddp, 0) == CDP_OK && cdp_ddp_backward_end(ddp) == CDP_OK, "backward_end");
        w[0] -= 0.5f * g[0];
        w[1] -= 0.5f * g[1];
    }
    must(cdp_ddp_verify(ddp) == CDP_OK, "parameters are the same bits in C and in Python");
    must(cdp_barrier(world) == CDP_OK, "barrier");
    cdp_ddp_destroy(ddp);
}

static void square(void *user, cdp_rpc_request *request) {
    cdp_args args = {0};
    unsigned char n = *(const unsigned char *)request->data;
    cdp_iov iov = {&n, 1};
    (void)user;
    n = (unsigned char)(n * n);
    args.iov = &iov;
    args.iov_count = 1;
    cdp_rpc_reply(request, &args);
}

static void calls(cdp_group *world) {
    cdp_rpc *rpc;
    cdp_rpc_desc desc;
    cdp_rpc_function function;
    cdp_call_desc what;
    cdp_call call;
    cdp_iov iov = {(void *)(uintptr_t) "rank 0", 6};
    memset(&desc, 0, sizeof desc);
    memset(&function, 0, sizeof function);
    memset(&what, 0, sizeof what);
    memset(&call, 0, sizeof call);
    function.name = "square";
    function.func = square;
    desc.group = world;
    desc.functions = &function;
    desc.function_count = 1;
    must(cdp_rpc_create(&desc, &rpc) == CDP_OK, "rpc");
    what.to = 2;
    what.function = cdp_rpc_id("greet");
    what.args.iov = &iov;
    what.args.iov_count = 1;
    must(cdp_rpc_call(rpc, &what, &call) == CDP_OK, "a call of Python");
    must(call.bytes == 12 && !memcmp(call.data, "hello rank 0", 12), "what Python returned");
    cdp_call_free(&call);
    must(cdp_rpc_shutdown(rpc, 0) == CDP_OK, "shutdown");
    cdp_rpc_destroy(rpc);
}

static void checkpoint(cdp_group *world, const char *path, float *w) {
    cdp_ckpt *ckpt;
    cdp_ckpt_desc desc;
    cdp_item item;
    uint64_t step = 0;
    const float trained = w[1];
    memset(&desc, 0, sizeof desc);
    memset(&item, 0, sizeof item);
    item.name = "w";
    item.tensor.layout.ndim = 1;
    item.tensor.layout.shape[0] = 2;
    item.tensor.data = w;
    desc.group = world;
    desc.path = path;
    desc.items = &item;
    desc.item_count = 1;
    must(cdp_ckpt_create(&desc, &ckpt) == CDP_OK, "checkpoint");
    must(cdp_ckpt_save(ckpt, 100) == CDP_OK, "save");
    w[1] = 0;
    must(cdp_ckpt_load(ckpt, NULL, CDP_CKPT_LATEST, &step) == CDP_OK, "load");
    must(step == 100 && w[1] == trained, "what was loaded");
    cdp_ckpt_destroy(ckpt);
}

int main(int argc, char **argv) {
    cdp_group *world, *none;
    float w[2] = {0.25f, 0}, one[4] = {0};
    must(argc == 2 && cdp_init_from_env(NULL, &world) == CDP_OK, "init");
    collectives(world);
    train(world, w);
    calls(world);
    checkpoint(world, argv[1], w);
    must(cdp_group_split(world, CDP_NO_COLOR, 0, &none) == CDP_OK && !none, "split");
    must(cdp_allreduce(world, NULL, one, 3, CDP_DTYPE_F32, CDP_REDUCE_SUM) == CDP_ERR_MISMATCH,
        "Python has 4 elements");
    cdp_group_destroy(world);
    printf("rank 0: C and Python agree\n");
    return 0;
}
