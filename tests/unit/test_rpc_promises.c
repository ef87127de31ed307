/* test_rpc_promises.c - what the declarations and the manual of cdp_rpc.h promise about calls that
   are refused, limits that meet, ranks that only serve, texts that blame, and what a program still
   holds when the rpc is gone. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

/* ---- what is refused has not started ---- */

/* Tries everything that starts calls and waits for them, where waits are refused. What had started
   would write to this stack later. */
static cdp_rref refused_rref;
static cdp_dist_optim *refused_optim;
static cdp_ctx *refused_ctx;
static void try_to_wait(cdp_rpc *rpc, uint32_t to) {
    cdp_dist_optim *none;
    cdp_call c[2];
    const uint64_t started = cdp_rpc_stats_of(rpc).calls_out;
    memset(c, 0, sizeof c);
    REFUSED(CDP_ERR_STATE, "must not wait", cdp_rpc_call(rpc, CALL(.to = to, F("nothing")), &c[0]));
    T_EQ(CDP_ERR_STATE, c[0].status);
    T_EQ(CDP_RAN_NO, c[0].ran);
    T(strstr(c[0].error.text, "must not wait") != NULL);
    REFUSED(CDP_ERR_STATE, "must not wait", cdp_rref_to_here(refused_rref, 0, &c[1]));
    REFUSED(CDP_ERR_STATE, "must not wait", cdp_dist_optim_step(refused_optim, refused_ctx));
    REFUSED(CDP_ERR_STATE, "must not wait", cdp_dist_optim_set(refused_optim, 1, 0));
    REFUSED(CDP_ERR_STATE, "must not wait",
        cdp_dist_optim_create(&(cdp_optim_desc){.rpc = rpc,
                                  .params = &refused_rref,
                                  .param_count = 1,
                                  .kind = CDP_OPTIM_SGD,
                                  .lr = 1},
            &none));
    T_EQ(started, cdp_rpc_stats_of(rpc).calls_out);
}
static void tries_when_done(void *user, cdp_call *c) {
    side *s = (side *)user;
    T_EQ(CDP_OK, c->status);
    try_to_wait(s->rpc, next_of(s));
    count(&s->ran);
}
static void f_tries_inline(void *user, cdp_rpc_request *q) {
    (void)user;
    try_to_wait(q->rpc, next_of(side_of(q)));
}
static const cdp_rpc_function refusing_functions[] = {
    {.name = "nothing", .func = f_nothing},
    {.name = "tries_inline", .func = f_tries_inline, .flags = CDP_RPC_INLINE},
};
static uint32_t refused_place;
static void refuses(side *s) {
    cdp_call c = {0};
    if (s->rank == 0) {
        weights_open(s);
        refused_rref = weight_rref[0];
        OK(cdp_ctx_begin(s->rpc, &refused_ctx));
        OK(cdp_dist_optim_create(&(cdp_optim_desc){.rpc = s->rpc,
                                     .params = &refused_rref,
                                     .param_count = 1,
                                     .kind = CDP_OPTIM_SGD,
                                     .lr = 1},
            &refused_optim));
        OK(cdp_rpc_call(s->rpc, CALL(.to = 0, F("tries_inline")), &c));
        cdp_call_free(&c);
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = 1, F("nothing"), .done = tries_when_done, .user = s), &c));
        OK(cdp_call_wait(&c));
        cdp_call_free(&c);
        T_EQ(1, counted_of(&s->ran));
        cdp_dist_optim_destroy(refused_optim);
        OK(cdp_ctx_end(refused_ctx, 0));
        weights_close(s);
    }
    meet(s, &refused_place);
}
TEST(what_must_not_wait_starts_nothing) {
    like.functions = refusing_functions;
    like.function_count = 2;
    run(2, refuses);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"what_must_not_wait_starts_nothing", what_must_not_wait_starts_nothing, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
