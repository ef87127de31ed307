/* test_rpc_ends.c - how an rpc ends while threads and calls still use it, in a child of fork(), and
   when the rank that was called is gone. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

static void f_destroys(void *user, cdp_rpc_request *q);
static const cdp_rpc_function own_functions[] = {
    {.name = "nothing", .func = f_nothing},
    {.name = "destroys", .func = f_destroys},
    {.name = "destroys_inline", .func = f_destroys, .flags = CDP_RPC_INLINE},
    {.name = "keep", .func = f_keep, .flags = CDP_RPC_LATER | CDP_RPC_INLINE},
    {.name = "counter", .func = f_counter},
    {.name = "count", .func = f_count},
    {.name = "echo", .func = f_echo, .flags = CDP_RPC_INLINE},
    {.name = "lend", .func = f_lend},
    {.name = "fail", .func = f_fail},
    {.name = "mul", .func = f_mul, .backward = b_mul},
    {.name = "weight_rref", .func = f_weight_rref},
};
/* An rpc is not destroyed by what it runs. */
static void f_destroys(void *user, cdp_rpc_request *q) {
    (void)user;
    cdp_rpc_destroy(q->rpc);
    T_EQ(CDP_ERR_STATE, cdp_last_error()->status);
    T_TEXT("a function or a callback must not destroy", cdp_last_error()->text);
    count(&side_of(q)->ran);
}

static void destroys_in_done(void *user, cdp_call *ended) {
    side *s = (side *)user;
    T_EQ(CDP_OK, ended->status);
    cdp_rpc_destroy(s->rpc);
    T_TEXT("a function or a callback must not destroy", cdp_last_error()->text);
}

static void destroyed_inside(side *s) {
    static const char *const names[] = {"destroys", "destroys_inline"};
    static uint32_t place;
    for (uint32_t i = 0; i < 2; ++i) {
        cdp_call c = {0};
        OK(cdp_rpc_call(s->rpc,
            CALL(.to = next_of(s), .function = cdp_rpc_id(names[i]), .done = destroys_in_done,
                .user = s),
            &c));
        cdp_call_free(&c);
    }
    serve_until(s, &s->ran, 2);
    meet(s, &place);
}

TEST(destroying_inside_a_function_is_refused) {
    run_own(2, destroyed_inside);
}

/* Threads that serve, or ask for a reference, while another one shuts the rpc down: they end with
   it, and not with an error. */
static void *serve_main(void *arg) {
    side *s = (side *)arg;
    count(&s->ran);
    OK(cdp_rpc_serve(s->rpc, 20000));
    return NULL;
}

static void served(side *s) {
    pthread_t t[3];
    static uint32_t place;
    for (uint32_t i = 0; i < 3; ++i)
        pthread_create(&t[i], NULL, serve_main, s);
    serve_until(s, &s->ran, 3);
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    for (uint32_t i = 0; i < 3; ++i)
        pthread_join(t[i], NULL);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}

static void served_body(side *s) {
    open_then(s, served);
}

TEST(threads_that_serve_end_with_the_rpc) {
    for (uint32_t i = 0; i < 3; ++i) {
        shut_by_body = true;
        run(2, served_body);
    }
}

/* A reference is dropped as a leak while another thread waits until it is confirmed. */
static void *confirm_main(void *arg) {
    const cdp_rref *r = (const cdp_rref *)arg;
    REFUSED(CDP_ERR_STATE, "dropped", cdp_rref_confirmed(*r, 20000));
    return NULL;
}

static void leaks_while_asked(side *s) {
    static uint32_t place;
    int64_t x[2] = {1, 0};
    char text[160];
    cdp_rref r;
    pthread_t t;
    gather(&place);
    if (s->rank == 0) {
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &r));
        pthread_create(&t, NULL, confirm_main, &r);
        until_one_waits(s);
        cdp_lock_acquire(&s->rpc->lock);
        T_EQ(1, cdp__rpc_drop_leaks(s->rpc, text));
        cdp_lock_release(&s->rpc->lock);
    }
    gather(&place);
    meet(s, &place); /* now rank 1 confirms */
    if (s->rank == 0) pthread_join(t, NULL);
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}

static void leaks_while_asked_body(side *s) {
    if (how == HUB_POLLED) open_then(s, leaks_while_asked);
}

TEST(a_leak_that_another_thread_asks_for) {
    shut_by_body = true;
    run(2, leaks_while_asked_body);
}

typedef struct parts {
    cdp_call ended, under_way;
    cdp_rref mine, far;
    cdp_ctx *ctx;
} parts;

static bool is_told(cdp_status st) {
    return st == CDP_ERR_INVALID && cdp_last_error()->status == CDP_ERR_INVALID
        && strstr(cdp_last_error()->text, "this process is a child, by fork()") != NULL;
}

/* In the child, where only this thread is. Returns the first function that was not refused. */
static int child_main(side *s, parts *p) {
    cdp_call c = {0};
    cdp_call *one = &p->under_way;
    const cdp_value value = {.data = p};
    cdp_rref_info info;
    cdp_rpc_record record;
    cdp_dist_optim *optim;
    cdp_value v;
    cdp_work w;
    cdp_rref r;
    cdp_ctx *ctx;
    uint32_t which;
    uint64_t number;
    char text[100];
    alarm(30);
    if (!is_told(cdp_rpc_call(s->rpc, CALL(F("nothing")), &c))) return 1;
    if (!is_told(cdp_rpc_start(s->rpc, CALL(F("nothing")), &c))) return 2;
    if (!is_told(cdp_rpc_remote(s->rpc, CALL(F("counter")), &r))) return 3;
    if (!is_told(cdp_call_wait(one)) || !is_told(cdp_call_test(one))) return 4;
    if (!is_told(cdp_call_wait_for(one, 5)) || !is_told(cdp_call_wait_all(&one, 1))) return 5;
    if (!is_told(cdp_call_wait_any(&one, 1, 5, &which))) return 6;
    if (!is_told(cdp_call_cancel(one)) || !is_told(cdp_call_work(one, &w))) return 7;
    if (!is_told(cdp_rref_create(s->rpc, &value, NULL, &r))) return 8;
    if (!is_told(cdp_rref_fetch(p->far, 0, &c)) || !is_told(cdp_rref_to_here(p->far, 0, &c)))
        return 9;
    if (!is_told(cdp_rref_local(p->mine, 0, 0, &v))) return 10;
    if (!is_told(cdp_rref_confirmed(p->far, 0)) || !is_told(cdp_rref_info_of(p->far, &info)))
        return 11;
    if (!is_told(cdp_rpc_reply(s->kept[0], NULL)) || !is_told(cdp_rpc_fail(s->kept[0], 1, NULL)))
        return 12;
    if (!is_told(cdp_rpc_reply_value(s->kept[0], &value)) || !cdp_rpc_cancelled(s->kept[0]))
        return 13;
    if (!is_told(cdp_ctx_begin(s->rpc, &ctx)) || !is_told(cdp_ctx_end(p->ctx, 5))) return 14;
    if (!is_told(cdp_ctx_value(p->ctx, &number)) || cdp_ctx_grad_rows(p->ctx, 1)) return 15;
    if (!is_told(cdp_rpc_poll(s->rpc, 0)) || !is_told(cdp_rpc_serve(s->rpc, 5))
        || !is_told(cdp_rpc_shutdown(s->rpc, 5)))
        return 16;
    if (cdp_rpc_alive(s->rpc, 0) || cdp_rpc_stats_of(s->rpc).calls_out) return 17;
    if (cdp_rpc_describe(s->rpc, text, 100) || cdp_rpc_records(s->rpc, &record, 1)) return 18;
    if (!is_told(cdp_dist_optim_create(
            &(cdp_optim_desc){
                .rpc = s->rpc, .params = &p->mine, .param_count = 1, .kind = CDP_OPTIM_SGD},
            &optim)))
        return 19;
    cdp_rref_keep(p->far);
    if (!is_told(cdp_last_error()->status)) return 20;
    cdp_rref_drop(p->far);
    cdp_rref_drop(p->mine);
    cdp_call_free(&p->ended);
    cdp_rpc_destroy(s->rpc);
    return is_told(cdp_last_error()->status) ? 0 : 21;
}

static void forks(side *s) {
    static uint32_t place;
    parts p = {.ctx = NULL};
    cdp_value v = counter_value(s, 3, iov_next());
    int64_t x[2] = {5, 0};
    int result = -1;
    OK(cdp_rref_create(s->rpc, &v, NULL, &p.mine));
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &p.far));
    OK(cdp_rref_to_here(p.far, 0, &p.ended));
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep")), &p.under_way));
    OK(cdp_ctx_begin(s->rpc, &p.ctx));
    serve_until(s, &s->kept_count, 1);
    meet(s, &place);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) _exit(child_main(s, &p));
    T_EQ(child, waitpid(child, &result, 0));
    T(WIFEXITED(result));
    T_EQ(0, WEXITSTATUS(result));
    meet(s, &place); /* and here nothing was lost */
    OK(cdp_rpc_reply(s->kept[0], NULL));
    OK(cdp_call_wait(&p.under_way));
    cdp_call_free(&p.under_way);
    T_EQ(5, i64_at(p.ended.data, 0));
    cdp_call_free(&p.ended);
    OK(cdp_rref_to_here(p.far, 0, &p.ended));
    cdp_call_free(&p.ended);
    OK(cdp_ctx_end(p.ctx, 0));
    T_EQ(2, cdp_rpc_stats_of(s->rpc).owners);
    meet(s, &place);
    cdp_rref_drop(p.far);
    cdp_rref_drop(p.mine);
}

TEST(a_child_of_fork_is_told_and_loses_nothing) {
    run_own(2, forks);
}

/* handle_send_exceptions: the callee is gone: pending calls and new ones fail, nothing else. */
static void callee_gone(side *s) {
    static uint32_t place;
    cdp_call pending = {0}, c = {0};
    if (s->rank == 0) OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep")), &pending));
    if (s->rank == 1) {
        serve_until(s, &s->kept_count, 1);
        cdp_rpc_destroy(s->rpc);
        OK(cdp_rpc_reply(s->kept[0], NULL));
    } else if (s->rank == 0) {
        T_EQ(CDP_ERR_PEER_LOST, cdp_call_wait(&pending));
        T_EQ(1, pending.error.peer);
        T_EQ(CDP_RAN_UNKNOWN, pending.ran);
        cdp_call_free(&pending);
        for (uint32_t i = 0; i < 3; ++i) {
            T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing")), &c));
            T_EQ(CDP_RAN_NO, c.ran);
            T_TEXT("nothing on rank 1", c.error.text);
            cdp_call_free(&c);
        }
        OK(cdp_rpc_call(s->rpc, CALL(.to = 2, F("nothing")), &c)); /* and rank 2 goes on */
        cdp_call_free(&c);
    } else {
        serve_until(s, &s->ran, 1);
    }
    gather(&place);
    if (s->rank != 1) cdp_rpc_destroy(s->rpc);
}

static void callee_gone_body(side *s) {
    open_then(s, callee_gone);
}

TEST(handle_send_exceptions) {
    shut_by_body = true;
    run_own(3, callee_gone_body);
}

/* What the program still holds when it destroys the rpc, as a destructor of C++ does: nothing of it
   touches freed memory, which is filled meanwhile. */
typedef struct outlives {
    cdp_call small, large, lent, under_way, told;
    cdp_rref owner, user;
    uint32_t told_times;
} outlives;

static void tells(void *user, cdp_call *ended) {
    T_EQ(CDP_ERR_STATE, ended->status);
    count(&((outlives *)user)->told_times);
}

static void hold_all(side *s, outlives *o) {
    static uint8_t bytes[100000];
    int64_t x[2] = {5, 0};
    cdp_iov iov;
    const cdp_value v = counter_value(s, 3, &iov);
    OK(cdp_rref_create(s->rpc, &v, "held", &o->owner));
    OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &o->user));
    OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("echo"), BYTES(x, 16)), &o->small));
    OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("echo"), BYTES(bytes, sizeof bytes)), &o->large));
    OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("lend"), BYTES(x, 8)), &o->lent));
    T_EQ(1, o->lent.rref_count);
    OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep")), &o->under_way));
    OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep"), .done = tells, .user = o), &o->told));
}

static void calls_after_the_rpc(outlives *o) {
    static const char *const destroyed = "this rank's rpc was destroyed";
    cdp_call *both[2] = {&o->large, &o->under_way};
    cdp_work work;
    uint32_t which = 7;
    T_EQ(1, o->told_times);
    REFUSED(CDP_ERR_STATE, destroyed, cdp_call_test(&o->under_way));
    REFUSED(CDP_ERR_STATE, destroyed, cdp_call_wait(&o->told));
    REFUSED(CDP_ERR_STATE, destroyed, cdp_call_wait_for(&o->told, 10));
    REFUSED(CDP_ERR_STATE, destroyed, cdp_call_wait_all(both, 2));
    OK(cdp_call_wait_any(both, 2, 10, &which));
    T_EQ(0, which);
    REFUSED(CDP_ERR_STATE, "has ended before", cdp_call_cancel(&o->under_way));
    REFUSED(CDP_ERR_INVALID, "destroyed", cdp_call_work(&o->large, &work));
    OK(cdp_call_wait(&o->small));
    T_EQ(5, i64_at(o->small.data, 0));
    T_EQ(100000, o->large.bytes);
}

static void references_after_the_rpc(outlives *o) {
    cdp_rref_info info;
    cdp_value v;
    cdp_call c = {0};
    for (uint32_t i = 0; i < 2; ++i) {
        const cdp_rref r = i ? o->user : o->owner;
        REFUSED(CDP_ERR_STATE, "destroyed", cdp_rref_fetch(r, 0, &c));
        REFUSED(CDP_ERR_STATE, "destroyed", cdp_rref_to_here(r, 0, &c));
        REFUSED(CDP_ERR_STATE, "destroyed", cdp_rref_local(r, 0, 0, &v));
        REFUSED(CDP_ERR_STATE, "destroyed", cdp_rref_confirmed(r, 0));
        REFUSED(CDP_ERR_STATE, "destroyed", cdp_rref_info_of(r, &info));
        cdp_rref_keep(r);
        cdp_rref_drop(r);
        cdp_rref_unpin(r);
    }
}

/* references of the rpc that was destroyed do not fit the next one, wherever that is in memory */
static void not_of_another(side *s, outlives *o) {
    const cdp_rpc_desc d = desc_of(s);
    cdp_rref r;
    int64_t x[2] = {1, 0};
    cdp_rref_info info;
    if (!OK(cdp_rpc_create(&d, &s->rpc))) return;
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &r));
    if (s->rank == 0) {
        o->user.rpc = s->rpc; /* as if it were at the same address */
        cdp_rref_drop(o->user);
        OK(cdp_rref_info_of(r, &info));
    }
    cdp_rref_drop(r);
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    cdp_rpc_destroy(s->rpc);
}

static void outlive(side *s) {
    static outlives o;
    static uint32_t place;
    if (s->rank == 0) {
        memset(&o, 0, sizeof o);
        hold_all(s, &o);
    } else {
        serve_until(s, &s->kept_count, 2);
    }
    gather(&place);
    if (s->rank == 0) cdp_rpc_destroy(s->rpc);
    gather(&place); /* a rank that leaves is lost to the other one */
    if (s->rank == 1) cdp_rpc_destroy(s->rpc);
    if (s->rank == 0) {
        calls_after_the_rpc(&o);
        references_after_the_rpc(&o);
        cdp_call_free(&o.small);
        cdp_call_free(&o.large);
        cdp_call_free(&o.lent);
        cdp_call_free(&o.under_way);
        cdp_call_free(&o.told);
        T(!o.lent.rrefs && !o.large.data);
    }
    for (uint32_t i = 0; s->rank && i < 2; ++i)
        OK(cdp_rpc_reply(s->kept[i], NULL));
    T_EQ(s->values.made, s->values.destroyed);
    gather(&place);
    not_of_another(s, &o);
    gather(&place);
}

static void outlive_body(side *s) {
    open_then(s, outlive);
}

TEST(calls_and_references_outlive_the_rpc) {
    shut_by_body = true;
#ifdef __GLIBC__
    mallopt(M_PERTURB, 0x5a);
#endif
    run_own(2, outlive_body);
#ifdef __GLIBC__
    mallopt(M_PERTURB, 0);
#endif
}

/* A context that the program has not ended is gone with its rpc: nothing touches its memory. */
static void context_outlives(side *s) {
    static uint32_t place;
    static cdp_ctx *left[2];
    double x[4] = {1, 2, 3, 4};
    cdp_tensor root = f64s(x, 4, 0), g;
    uint64_t value = 0;
    cdp_call c = {0};
    if (s->rank == 0) {
        for (uint32_t i = 0; i < 2; ++i) {
            OK(cdp_ctx_begin(s->rpc, &left[i]));
            OK(cdp_ctx_value(left[i], &value));
        }
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing"), .ctx = left[0]), &c));
        cdp_call_free(&c);
    } else {
        serve_until(s, &s->ran, 1);
    }
    gather(&place);
    if (s->rank == 0) cdp_rpc_destroy(s->rpc);
    gather(&place);
    if (s->rank == 1) cdp_rpc_destroy(s->rpc);
    for (uint32_t i = 0; s->rank == 0 && i < 2; ++i) {
        cdp_ctx *ctx = left[i];
        root.value = value;
        REFUSED(CDP_ERR_STATE, "destroyed", cdp_ctx_end(ctx, 0));
        REFUSED(CDP_ERR_STATE, "destroyed", cdp_ctx_end(ctx, 0));
        REFUSED(CDP_ERR_STATE, "destroyed", cdp_ctx_value(ctx, &value));
        REFUSED(CDP_ERR_STATE, "destroyed",
            cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1}));
        REFUSED(CDP_ERR_STATE, "destroyed", cdp_ctx_grad(ctx, value, &g));
        T_EQ(0, cdp_ctx_id(ctx));
        T(cdp_ctx_grad_rows(ctx, value) == NULL);
    }
    gather(&place);
}

static void context_outlives_body(side *s) {
    open_then(s, context_outlives);
}

TEST(contexts_outlive_the_rpc) {
    shut_by_body = true;
    run_own(2, context_outlives_body);
}

/* The memory of a context that is gone may be that of another one: that one is used as any. */
static void contexts_again(side *s) {
    static uint32_t place;
    cdp_ctx *gone[4], *again;
    uint64_t value;
    if (how != HUB) {
        cdp_rpc_destroy(s->rpc);
        return;
    }
    for (uint32_t i = 0; i < 4; ++i)
        OK(cdp_ctx_begin(s->rpc, &gone[i]));
    cdp_rpc_destroy(s->rpc);
    gather(&place);
    for (uint32_t n = 0; n < 100; ++n) {
        const cdp_rpc_desc d = desc_of(s);
        if (!OK(cdp_rpc_create(&d, &s->rpc))) return;
        for (uint32_t i = 0; i < 4; ++i) {
            OK(cdp_ctx_begin(s->rpc, &again));
            OK(cdp_ctx_value(again, &value));
            OK(cdp_ctx_end(again, 0));
        }
        for (uint32_t i = 0; i < 4; ++i)
            OK(cdp_ctx_begin(s->rpc, &again));
        cdp_rpc_destroy(s->rpc);
        gather(&place);
    }
    REFUSED(CDP_ERR_STATE, "destroyed", cdp_ctx_end(again, 0));
}

static void contexts_again_body(side *s) {
    open_then(s, contexts_again);
}

TEST(contexts_in_memory_of_contexts_that_are_gone) {
    shut_by_body = true;
    run_own(1, contexts_again_body);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"destroying_inside_a_function_is_refused", destroying_inside_a_function_is_refused, 60},
        {"threads_that_serve_end_with_the_rpc", threads_that_serve_end_with_the_rpc, 60},
        {"a_leak_that_another_thread_asks_for", a_leak_that_another_thread_asks_for, 60},
        {"a_child_of_fork_is_told_and_loses_nothing", a_child_of_fork_is_told_and_loses_nothing,
            60},
        {"handle_send_exceptions", handle_send_exceptions, 60},
        {"calls_and_references_outlive_the_rpc", calls_and_references_outlive_the_rpc, 60},
        {"contexts_outlive_the_rpc", contexts_outlive_the_rpc, 60},
        {"contexts_in_memory_of_contexts_that_are_gone",
            contexts_in_memory_of_contexts_that_are_gone, 60}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
