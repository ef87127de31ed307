/* rpc_sides.h - worlds of ranks that call each other: the functions that every rank has, and what
   opens and ends the worlds of test_rpc.c and test_rpc_calls.c. Each runs as threads of this
   program over memory (with workers, without, and polled), over TCP, and over shared memory; at the
   end of each world every allocation was given back. */
#ifndef RPC_SIDES_INCLUDED
#define RPC_SIDES_INCLUDED

#include "ranks.h"
#include "ports.h"
#include "group_memory.h"

#include <sys/wait.h>

#define CALL(...) (&(cdp_call_desc){__VA_ARGS__})
#define F(name) .function = cdp_rpc_id(name)
#define BYTES(data_, bytes_) .args = {.iov = &(cdp_iov){(data_), (bytes_)}, .iov_count = 1}
#define RREF(r_) .args = {.rrefs = &(cdp_rref[1]){r_}[0], .rref_count = 1}

typedef struct lives {
    int32_t made, destroyed;
} lives;

typedef struct side {
    uint32_t rank, ranks;
    cdp_group *g;
    cdp_rpc *rpc;
    lives values;
    uint32_t lost, leaked, ran, cancelled;
    int32_t lost_rank;
    cdp_rpc_request *kept[64];
    uint32_t kept_count;
} side;

static side sides[RANKS_MAX];
static uint32_t ranks;
static void (*body)(side *s);
static cdp_rpc_desc like;
static bool shut_by_body; /* the body ends the rpc itself */
static uint64_t window;   /* of all ranks; 0: the default */
static enum {
    HUB,
    HUB_NO_WORKERS,
    HUB_POLLED,
    TCP,
    SHARED,
    HOWS
} how;

TEST_API void count(uint32_t *n) {
    __atomic_add_fetch(n, 1, __ATOMIC_SEQ_CST);
}
TEST_API uint32_t counted_of(const uint32_t *n) {
    return __atomic_load_n(n, __ATOMIC_SEQ_CST);
}

/* ---- the functions of every rank ---- */

static side *side_of(cdp_rpc_request *q) {
    return (side *)q->user;
}

static void reply(cdp_rpc_request *q, const void *data, uint64_t bytes) {
    const cdp_iov iov = {(void *)(uintptr_t)data, bytes};
    const cdp_args args = {.iov = &iov, .iov_count = 1};
    OK(cdp_rpc_reply(q, &args));
}
static void reply_i64(cdp_rpc_request *q, int64_t x) {
    reply(q, &x, sizeof x);
}
static int64_t i64_at(const void *data, uint32_t i) {
    int64_t x;
    memcpy(&x, (const uint8_t *)data + 8 * i, 8);
    return x;
}

/* the sum of 64-bit numbers */
static void f_add(void *user, cdp_rpc_request *q) {
    int64_t sum = 0;
    (void)user;
    for (uint32_t i = 0; i < q->bytes / 8; ++i)
        sum += i64_at(q->data, i);
    reply_i64(q, sum);
}
static void f_echo(void *user, cdp_rpc_request *q) {
    (void)user;
    reply(q, q->data, q->bytes);
}
static void f_whoami(void *user, cdp_rpc_request *q) {
    (void)user;
    reply_i64(q, (int64_t)q->from * 1000 + side_of(q)->rank);
}
static void f_nothing(void *user, cdp_rpc_request *q) {
    (void)user;
    count(&side_of(q)->ran);
}
static void f_fail(void *user, cdp_rpc_request *q) {
    char text[500];
    (void)user;
    snprintf(text, sizeof text, "%.*s", (int)q->bytes, (const char *)q->data);
    OK(cdp_rpc_fail(q, 42, text));
}
/* sleeps so many ms, or until it is cancelled */
static void f_sleep(void *user, cdp_rpc_request *q) {
    const uint64_t until = test_now_ns() + (uint64_t)i64_at(q->data, 0) * 1000000;
    (void)user;
    while (test_now_ns() < until && !cdp_rpc_cancelled(q)) {
        if (how == HUB_POLLED) (void)!cdp_poll(side_of(q)->g, 0);
        test_sleep_ms(1);
    }
    if (cdp_rpc_cancelled(q)) count(&side_of(q)->cancelled);
    count(&side_of(q)->ran);
    reply_i64(q, 7);
}
/* {ttl}: calls the next rank with ttl - 1, and adds 1 */
static void f_chain(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    int64_t ttl = i64_at(q->data, 0) - 1, sum = 0;
    cdp_call c = {0};
    (void)user;
    if (ttl > 0) {
        if (!OK(cdp_rpc_call(
                q->rpc, CALL(.to = (s->rank + 1) % ranks, F("chain"), BYTES(&ttl, 8)), &c))) {
            cdp_rpc_fail(q, 1, cdp_last_error()->text);
            cdp_call_free(&c);
            return;
        }
        sum = i64_at(c.data, 0);
        cdp_call_free(&c);
    }
    reply_i64(q, sum + 1);
}
/* how many ms its caller gave it, and what a nested call would have */
static void f_time_left(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    const uint64_t now = cdp_os_default()->now_ns(NULL);
    int64_t left[2] = {(int64_t)(q->deadline_ns - now) / 1000000, 0};
    cdp_call c = {0};
    (void)user;
    if (q->bytes) {
        const cdp_call_desc next = {
            .to = (s->rank + 1) % ranks, F("time_left"), .detached = q->bytes == 16};
        if (OK(cdp_rpc_call(q->rpc, &next, &c))) left[1] = i64_at(c.data, 0);
        cdp_call_free(&c);
    }
    reply(q, left, sizeof left);
}
/* keeps the request; all are answered when so many are there as the first argument says */
static void f_batch(void *user, cdp_rpc_request *q) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    side *s = side_of(q);
    const uint32_t want = (uint32_t)i64_at(q->data, 0);
    (void)user;
    pthread_mutex_lock(&mutex);
    s->kept[s->kept_count++] = q;
    if (s->kept_count == want) {
        for (uint32_t i = 0; i < want; ++i)
            reply_i64(s->kept[i], want);
        s->kept_count = 0;
    }
    pthread_mutex_unlock(&mutex);
}
static void f_keep(void *user, cdp_rpc_request *q) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    side *s = side_of(q);
    (void)user;
    pthread_mutex_lock(&mutex);
    s->kept[counted_of(&s->kept_count)] = q;
    count(&s->kept_count);
    pthread_mutex_unlock(&mutex);
}
static void f_twice(void *user, cdp_rpc_request *q) {
    cdp_rpc_request *again = q;
    (void)user;
    reply_i64(q, 1);
    REFUSED(CDP_ERR_STATE, "replied to before", cdp_rpc_reply(again, NULL));
}
static void f_waits_inline(void *user, cdp_rpc_request *q) {
    int64_t ms = 20000;
    cdp_call c = {0};
    (void)user;
    OK(cdp_rpc_start(q->rpc, CALL(.to = side_of(q)->rank, F("sleep"), BYTES(&ms, 8)), &c));
    REFUSED(CDP_ERR_STATE, "must not wait", cdp_call_wait(&c));
    OK(cdp_call_cancel(&c));
    cdp_call_free(&c);
    REFUSED(CDP_ERR_STATE, "must not shut down", cdp_rpc_shutdown(q->rpc, 0));
}

/* values: a counter */
typedef struct counter {
    side *owner;
    int64_t n;
} counter;

static void counter_destroy(void *user, void *data) {
    side *s = (side *)user;
    __atomic_add_fetch(&s->values.destroyed, 1, __ATOMIC_SEQ_CST);
    ((counter *)data)->n = -1;
    free(data);
}
static cdp_value counter_value(side *s, int64_t n, cdp_iov *iov) {
    counter *c = (counter *)malloc(sizeof *c);
    const cdp_value v = {.data = c,
        .type = 5,
        .plain = {.iov = iov, .iov_count = 1},
        .destroy = counter_destroy,
        .user = s};
    c->owner = s;
    c->n = n;
    iov->data = &c->n;
    iov->bytes = 8;
    __atomic_add_fetch(&s->values.made, 1, __ATOMIC_SEQ_CST);
    return v;
}
static cdp_iov iovs[4096];
static uint32_t iovs_used;
static cdp_iov *iov_next(void) {
    return &iovs[__atomic_fetch_add(&iovs_used, 1, __ATOMIC_SEQ_CST) % 4096];
}
/* {n, ms}: makes a counter that begins with n, after ms */
static void f_counter(void *user, cdp_rpc_request *q) {
    cdp_value v;
    (void)user;
    if (q->bytes > 8) test_sleep_ms((uint32_t)i64_at(q->data, 1));
    v = counter_value(side_of(q), i64_at(q->data, 0), iov_next());
    if (counted.fail_at && cdp_rpc_reply_value(q, &v) == CDP_ERR_NOMEM)
        counter_destroy(v.user, v.data); /* it is the program's */
    else if (!counted.fail_at)
        OK(cdp_rpc_reply_value(q, &v));
}
/* on a counter: adds, returns the sum */
static void f_count(void *user, cdp_rpc_request *q) {
    counter *c = q->on ? (counter *)q->on->data : NULL;
    (void)user;
    if (!T(c != NULL)) return;
    reply_i64(q, __atomic_add_fetch(&c->n, i64_at(q->data, 0), __ATOMIC_SEQ_CST));
}
/* fetches its references and adds what they hold */
static void f_sum_of(void *user, cdp_rpc_request *q) {
    int64_t sum = 0;
    (void)user;
    for (uint32_t i = 0; i < q->rref_count; ++i) {
        cdp_call c = {0};
        T_EQ(CDP_OK, cdp_rref_confirmed(q->rrefs[i], 0));
        if (OK(cdp_rref_to_here(q->rrefs[i], 0, &c))) sum += i64_at(c.data, 0);
        cdp_call_free(&c);
    }
    reply_i64(q, sum);
}
/* returns its references */
static void f_give_back(void *user, cdp_rpc_request *q) {
    const cdp_args args = {.rrefs = q->rrefs, .rref_count = q->rref_count};
    (void)user;
    OK(cdp_rpc_reply(q, &args));
}
/* makes a counter of this rank and returns a reference to it */
static void f_lend(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    cdp_value v = counter_value(s, i64_at(q->data, 0), iov_next());
    cdp_rref r;
    (void)user;
    if (!OK(cdp_rref_create(q->rpc, &v, "lent", &r))) return;
    const cdp_args args = {.rrefs = &r, .rref_count = 1};
    OK(cdp_rpc_reply(q, &args));
    cdp_rref_drop(r);
}
/* {ttl}: a reference to what the next rank makes, and so on; the last one makes a counter */
static void f_forward(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    int64_t ttl = i64_at(q->data, 0) - 1;
    cdp_rref r;
    (void)user;
    if (!OK(cdp_rpc_remote(
            q->rpc, CALL(.to = (s->rank + 1) % ranks, F("counter"), BYTES(&ttl, 8)), &r)))
        return;
    const cdp_args args = {.rrefs = &r, .rref_count = 1};
    OK(cdp_rpc_reply(q, &args));
    cdp_rref_drop(r);
}

/* Byte k of a long argument or result is 7 k: whole blocks of it are copied and compared, since
   loops over single bytes take most of the time of a test under a sanitizer. */
TEST_API void fill_sevens(uint8_t *at, uint64_t bytes) {
    const uint64_t period = 256;
    for (uint64_t k = 0; k < period && k < bytes; ++k)
        at[k] = (uint8_t)(k * 7);
    for (uint64_t k = period; k < bytes; k += period)
        memcpy(at + k, at, bytes - k < period ? bytes - k : period);
}
TEST_API bool are_sevens(const uint8_t *at, uint64_t from, uint64_t bytes) {
    uint8_t want[256];
    bool same = true;
    fill_sevens(want, sizeof want);
    for (uint64_t k = from; k < bytes && same;) {
        const uint64_t in = k % sizeof want, most = sizeof want - in,
                       n = bytes - k < most ? bytes - k : most;
        same = memcmp(at + k, want + in, n) == 0;
        k += n;
    }
    return same;
}

/* {bytes}: a result of so many, in memory that is poisoned when it is given back */
static uint32_t in_place_now[RANKS_MAX], in_place_back[RANKS_MAX];
static void in_place_end(void *user, void *data) {
    uint8_t *at = (uint8_t *)data;
    const uint64_t bytes = (uint64_t)i64_at(at, 0);
    memset(at, 0xee, bytes);
    free(at);
    __atomic_add_fetch((uint32_t *)user, 1, __ATOMIC_SEQ_CST);
}
static void f_in_place(void *user, cdp_rpc_request *q) {
    const uint32_t rank = side_of(q)->rank;
    const uint64_t bytes = (uint64_t)i64_at(q->data, 0);
    uint8_t *data = (uint8_t *)malloc(bytes);
    cdp_iov iov = {data, bytes};
    const cdp_value v = {.data = data,
        .plain = {.iov = &iov, .iov_count = 1},
        .destroy = in_place_end,
        .user = &in_place_back[rank]};
    (void)user;
    fill_sevens(data, bytes);
    memcpy(data, &bytes, 8);
    __atomic_add_fetch(&in_place_now[rank], 1, __ATOMIC_SEQ_CST);
    OK(cdp_rpc_reply_value(q, &v));
}

/* ---- gradients: functions ---- */

typedef struct weights {
    side *owner;
    double w[4];
    cdp_iov iov;
    cdp_tensor t;
} weights;
static weights weights_of[RANKS_MAX];
static cdp_rref weight_rref[RANKS_MAX];

TEST_API cdp_tensor f64s(double *data, uint64_t n, uint64_t value) {
    const cdp_tensor t = {
        .data = data, .dtype = CDP_DTYPE_F64, .dims = 1, .shape = {n}, .value = value};
    return t;
}
static int32_t saved_live[RANKS_MAX];
typedef struct saved_x {
    double x[4];
    int32_t count;
    uint32_t rank;
} saved_x;
static void saved_x_free(void *saved) {
    __atomic_sub_fetch(&saved_live[((saved_x *)saved)->rank], 1, __ATOMIC_SEQ_CST);
    free(saved);
}
/* y = w * x, element by element; w is a parameter of this rank */
static void f_mul(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    const weights *w = &weights_of[s->rank];
    double y[4];
    (void)user;
    if (!T_EQ(1, q->tensor_count) || !T_EQ(CDP_DTYPE_F64, q->tensors[0].dtype)) return;
    const double *x = (const double *)q->tensors[0].data;
    for (uint32_t i = 0; i < 4; ++i)
        y[i] = w->w[i] * x[i];
    if (q->ctx) {
        saved_x *saved = (saved_x *)calloc(1, sizeof *saved);
        uint64_t param;
        memcpy(saved->x, x, sizeof saved->x);
        saved->rank = s->rank;
        __atomic_add_fetch(&saved_live[s->rank], 1, __ATOMIC_SEQ_CST);
        if (cdp_ctx_param(q->ctx, weight_rref[s->rank], &param) != CDP_OK
            || cdp_ctx_save(q, saved, saved_x_free, &param, 1) != CDP_OK)
            saved_x_free(saved);
    }
    const cdp_tensor out = f64s(y, 4, 0);
    (void)!cdp_rpc_reply(q, &(cdp_args){.tensors = &out, .tensor_count = 1});
}
static void grad_mul(cdp_backward *b, const double *w) {
    const saved_x *saved = (const saved_x *)b->saved;
    const double *g = (const double *)b->grad_out[0].data;
    for (uint32_t i = 0; i < 2; ++i) {
        double *to = (double *)memory_of_backward(b, 32);
        b->grad_in[i] = f64s(to, 4, 0);
        for (uint32_t k = 0; g && k < 4; ++k)
            to[k] = g[k] * (i ? saved->x[k] : w[k]);
    }
}
static cdp_status b_mul(void *user, cdp_backward *b) {
    side *s = (side *)b->rpc_user;
    (void)user;
    T_EQ(1, b->out_count);
    T_EQ(2, b->in_count);
    count(&s->ran);
    grad_mul(b, weights_of[s->rank].w);
    return CDP_OK;
}
static cdp_status b_fails(void *user, cdp_backward *b) {
    (void)user;
    (void)b;
    return CDP_ERR_INVALID;
}
static cdp_status b_dies(void *user, cdp_backward *b) {
    (void)user;
    (void)b;
    raise(SIGKILL);
    return CDP_OK;
}
static cdp_status b_sleeps(void *user, cdp_backward *b) {
    test_sleep_ms(TEST_SLOW ? 1500 : 250);
    return b_mul(user, b);
}
/* {ttl}, x: multiplies on ttl ranks, the next one first */
static void f_mul_chain(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    int64_t ttl = i64_at(q->data, 0) - 1;
    cdp_call c = {0};
    cdp_call_desc d = {.to = (s->rank + 1) % ranks,
        .function = cdp_rpc_id(ttl ? "mul_chain" : "mul"),
        .ctx = q->ctx,
        BYTES(&ttl, 8)};
    (void)user;
    d.args.tensors = q->tensors;
    d.args.tensor_count = 1;
    if (OK(cdp_rpc_call(q->rpc, &d, &c)))
        OK(cdp_rpc_reply(q, &(cdp_args){.tensors = c.tensors, .tensor_count = 1}));
    cdp_call_free(&c);
}
/* the gradient of this rank's parameter in the context of the call */
static void f_weight_grad(void *user, cdp_rpc_request *q) {
    uint64_t param;
    cdp_tensor g = {0};
    (void)user;
    if (OK(cdp_ctx_param(q->ctx, weight_rref[side_of(q)->rank], &param)))
        OK(cdp_ctx_grad(q->ctx, param, &g));
    OK(cdp_rpc_reply(q, &(cdp_args){.tensors = &g, .tensor_count = g.data ? 1 : 0}));
}

/* ---- a remote embedding: functions ---- */

#define TABLE_ROWS 1000u
#define TABLE_WIDTH 3u
typedef struct table {
    float w[TABLE_ROWS * TABLE_WIDTH];
    cdp_tensor t;
    cdp_rref rref;
    uint32_t ill; /* what its backward does wrong: 1 a row too far, 2 a row and a whole one */
} table;
static table table_of[RANKS_MAX];

typedef struct looked_up {
    uint32_t rows[8], count, rank;
} looked_up;
static void looked_up_free(void *saved) {
    __atomic_sub_fetch(&saved_live[((looked_up *)saved)->rank], 1, __ATOMIC_SEQ_CST);
    free(saved);
}
/* {rows} -> these rows of the table of this rank */
static void f_lookup(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    const table *t = &table_of[s->rank];
    looked_up *l = (looked_up *)calloc(1, sizeof *l);
    float found[8 * TABLE_WIDTH];
    uint64_t param;
    (void)user;
    l->count = (uint32_t)(q->bytes / 4);
    l->rank = s->rank;
    memcpy(l->rows, q->data, q->bytes);
    for (uint32_t i = 0; i < l->count; ++i)
        memcpy(found + i * TABLE_WIDTH, t->w + l->rows[i] * TABLE_WIDTH, 4 * TABLE_WIDTH);
    const cdp_tensor out = {
        .data = found, .dtype = CDP_DTYPE_F32, .dims = 2, .shape = {l->count, TABLE_WIDTH}};
    __atomic_add_fetch(&saved_live[s->rank], 1, __ATOMIC_SEQ_CST);
    if (!OK(cdp_ctx_param(q->ctx, t->rref, &param))
        || !OK(cdp_ctx_save(q, l, looked_up_free, &param, 1)))
        looked_up_free(l);
    OK(cdp_rpc_reply(q, &(cdp_args){.tensors = &out, .tensor_count = 1}));
}
static cdp_status b_lookup(void *user, cdp_backward *b) {
    looked_up *l = (looked_up *)b->saved;
    const table *t = &table_of[l->rank];
    (void)user;
    T_EQ(1, b->in_count);
    if (!T(b->grad_out[0].data)) return CDP_OK;
    b->grad_in[0] = b->grad_out[0];
    b->grad_rows[0] = l->rows;
    if (t->ill == 1) l->rows[0] = TABLE_ROWS;
    if (t->ill == 2 && l->count == 2) b->grad_rows[0] = NULL;
    return CDP_OK;
}

/* a reference to the table of this rank */
static void f_table_rref(void *user, cdp_rpc_request *q) {
    (void)user;
    OK(cdp_rpc_reply(q, &(cdp_args){.rrefs = &table_of[side_of(q)->rank].rref, .rref_count = 1}));
}

/* a reference to this rank's parameter */
static void f_weight_rref(void *user, cdp_rpc_request *q) {
    (void)user;
    OK(cdp_rpc_reply(q, &(cdp_args){.rrefs = &weight_rref[side_of(q)->rank], .rref_count = 1}));
}

/* waits for rank 1 as long as its caller does */
static void f_asks_rank_1(void *user, cdp_rpc_request *q) {
    cdp_call c = {0};
    (void)user;
    if (cdp_rpc_call(q->rpc, CALL(.to = 1, F("nothing")), &c) == CDP_OK)
        OK(cdp_rpc_reply(q, NULL));
    else
        OK(cdp_rpc_fail(q, 1, "rank 1 does not answer"));
    cdp_call_free(&c);
}

static const uint32_t only_rank_0[] = {0};
static const cdp_rpc_function functions[] = {
    {.name = "add", .func = f_add, .flags = CDP_RPC_INLINE},
    {.name = "add_in_worker", .func = f_add},
    {.name = "echo", .func = f_echo, .flags = CDP_RPC_INLINE},
    {.name = "whoami", .func = f_whoami},
    {.name = "nothing", .func = f_nothing},
    {.name = "fail", .func = f_fail},
    {.name = "sleep", .func = f_sleep},
    {.name = "one_sleep", .func = f_sleep, .max_running = 1},
    {.name = "chain", .func = f_chain},
    {.name = "time_left", .func = f_time_left},
    {.name = "batch", .func = f_batch, .flags = CDP_RPC_LATER},
    {.name = "keep", .func = f_keep, .flags = CDP_RPC_LATER | CDP_RPC_INLINE},
    {.name = "twice", .func = f_twice, .flags = CDP_RPC_LATER},
    {.name = "waits_inline", .func = f_waits_inline, .flags = CDP_RPC_INLINE},
    {.name = "tiny", .func = f_echo, .max_bytes = 8},
    {.name = "only_rank_0", .func = f_nothing, .allow = only_rank_0, .allow_count = 1},
    {.name = "counter", .func = f_counter},
    {.name = "count", .func = f_count},
    {.name = "sum_of", .func = f_sum_of},
    {.name = "give_back", .func = f_give_back},
    {.name = "lend", .func = f_lend},
    {.name = "forward", .func = f_forward},
    {.name = "mul", .func = f_mul, .backward = b_mul},
    {.name = "mul_fails", .func = f_mul, .backward = b_fails},
    {.name = "mul_dies", .func = f_mul, .backward = b_dies},
    {.name = "mul_sleeps", .func = f_mul, .backward = b_sleeps},
    {.name = "mul_chain", .func = f_mul_chain},
    {.name = "weight_grad", .func = f_weight_grad},
    {.name = "weight_rref", .func = f_weight_rref},
    {.name = "in_place", .func = f_in_place},
    {.name = "lookup", .func = f_lookup, .backward = b_lookup},
    {.name = "table_rref", .func = f_table_rref},
    {.name = "asks_rank_1", .func = f_asks_rank_1},
};

/* ---- worlds ---- */

static void on_lost(void *user, uint32_t rank, const cdp_error *why) {
    side *s = (side *)user;
    T_EQ(CDP_ERR_PEER_LOST, why->status);
    s->lost_rank = (int32_t)rank;
    count(&s->lost);
}
static void on_leaked(void *user, uint64_t rid, uint32_t owner, const char *label) {
    (void)rid;
    (void)owner;
    (void)label;
    count(&((side *)user)->leaked);
}

static cdp_rpc_desc desc_of(side *s) {
    cdp_rpc_desc d = like;
    d.group = s->g;
    if (!d.functions) {
        d.functions = functions;
        d.function_count = sizeof functions / sizeof *functions;
    }
    if (how == HUB_NO_WORKERS) d.no_workers = true;
    d.lost = on_lost;
    d.leaked = on_leaked;
    d.user = s;
    return d;
}

static cdp_hub *hub;
static uint16_t port;
static const cdp_os *os;

static bool side_open(side *s) {
    cdp_group_desc d = {.rank = s->rank,
        .world_size = ranks,
        .hub = hub,
        .timeout_ms = 5000 * TEST_LATE,
        .no_thread = how == HUB_POLLED,
        .window_bytes = window,
        .os = os,
        .logger = {.level = CDP_LOG_SILENT}};
    if (how < TCP) return OK(cdp_group_create(&d, &s->g));
    cdp_tcp_desc t = {
        .group = d, .master_port = port, .init_timeout_ms = 20000, .no_shared_memory = how == TCP};
    t.group.hub = NULL;
    return OK(cdp_init(&t, &s->g));
}

static void *side_main(void *arg) {
    side *s = (side *)arg;
    cdp_rpc_desc d;
    if (!side_open(s)) return NULL;
    d = desc_of(s);
    if (body && shut_by_body) {
        body(s);
    } else if (OK(cdp_rpc_create(&d, &s->rpc))) {
        OK(cdp_barrier(s->g)); /* all know the others' sides */
        body(s);
        OK(cdp_rpc_shutdown(s->rpc, 5000 * TEST_LATE));
        const cdp_rpc_stats st = cdp_rpc_stats_of(s->rpc);
        T_EQ(0, st.calls_out + st.calls_in + st.users + st.forks + st.holds);
        OK(cdp_barrier(s->g));
        cdp_rpc_destroy(s->rpc);
        T_EQ(s->values.made, s->values.destroyed);
    }
    cdp_group_destroy(s->g);
    return NULL;
}

static void run_one(uint32_t n, void (*func)(side *s)) {
    pthread_t t[RANKS_MAX];
    const cdp_hub_desc h = {.world_size = n, .os = os = counted_os()};
    ranks = n;
    body = func;
    memset(sides, 0, sizeof sides);
    hub = NULL;
    if (how < TCP && !OK(cdp_hub_create(&h, &hub))) return;
    port = free_port();
    for (uint32_t r = 0; r < n; ++r) {
        sides[r].rank = r;
        sides[r].ranks = n;
        pthread_create(&t[r], NULL, side_main, &sides[r]);
    }
    for (uint32_t r = 0; r < n; ++r)
        pthread_join(t[r], NULL);
    cdp_hub_destroy(hub);
    T_EQ(0, counted.held);
}

TEST_API void run(uint32_t n, void (*func)(side *s)) {
    for (uint32_t i = 0; i < (TEST_THREADS_WATCHED ? SHARED : HOWS) && !test__now.failed_checks;
         ++i) {
        how = i;
        run_one(n, func);
        if (test__now.failed_checks) printf("  in world %u\n", i);
    }
    memset(&like, 0, sizeof like);
    shut_by_body = false;
}

/* run(), with these functions in place of those that all tests have. */
TEST_API void run_with(
    const cdp_rpc_function *own, uint32_t count, uint32_t n, void (*func)(side *s)) {
    like.functions = own;
    like.function_count = count;
    run(n, func);
}

/* The functions that a test puts in place of those that all tests have, and rows of such tables. */
#define run_own(n, func) \
    run_with(own_functions, sizeof own_functions / sizeof *own_functions, n, func)
#define KEPT_AND_COUNTED                                                            \
    {.name = "keep", .func = f_keep, .flags = CDP_RPC_LATER | CDP_RPC_INLINE},      \
        {.name = "counter", .func = f_counter}, {.name = "count", .func = f_count}, \
        {.name = "echo", .func = f_echo, .flags = CDP_RPC_INLINE},                  \
        {.name = "lend", .func = f_lend}, {                                         \
        .name = "fail", .func = f_fail                                              \
    }

/* Rank 1 stands still when it has said so: it polls nothing until the other one is through. */
static uint32_t still, through;

TEST_API void stand_still(void) {
    const uint64_t until = test_until_ns(20000);
    __atomic_store_n(&still, 1, __ATOMIC_SEQ_CST);
    while (!counted_of(&through) && test_now_ns() < until)
        test_sleep_ms(1);
}

TEST_API void polled(void (*func)(side *s)) {
    still = through = 0;
    how = HUB_POLLED;
    run_one(2, func);
    memset(&like, 0, sizeof like);
}

/* Serves until *n is at least `want`. */
TEST_API void serve_until(side *s, const uint32_t *n, uint32_t want) {
    const uint64_t until = test_now_ns() + 20000000000ull;
    while (counted_of(n) < want && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    T(counted_of(n) >= want);
}

static void meet_once(side *s, uint32_t *place) {
    const uint64_t until = test_until_ns(10000);
    const uint32_t came = __atomic_fetch_add(place, 1, __ATOMIC_SEQ_CST);
    while (counted_of(place) < (came / ranks + 1) * ranks && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
}

/* All ranks come here; unlike in cdp_barrier(), functions run meanwhile. What workers of any rank
   did before is visible after it, for ThreadSanitizer too, which does not see an order in what goes
   over a socket: when all are here, each takes the lock that its workers left, and tells. */
TEST_API void meet(side *s, uint32_t *place) {
    meet_once(s, place);
    (void)cdp_rpc_alive(s->rpc, s->rank);
    meet_once(s, place);
}

/* Until a thread waits inside the rpc. */
TEST_API void until_one_waits(side *s) {
    const uint64_t until = test_now_ns() + 10000000000ull;
    uint32_t waiters = 0;
    while (!waiters && test_now_ns() < until) {
        test_sleep_ms(1);
        cdp_lock_acquire(&s->rpc->lock);
        waiters = s->rpc->waiters;
        cdp_lock_release(&s->rpc->lock);
    }
    T_EQ(1, waiters);
}

TEST_API uint32_t next_of(const side *s) {
    return (s->rank + 1) % ranks;
}
TEST_API int64_t call_i64(side *s, uint32_t to, const char *name, int64_t a, int64_t b) {
    int64_t two[2] = {a, b}, got = -1;
    cdp_call c = {0};
    if (OK(cdp_rpc_call(s->rpc, CALL(.to = to, F(name), BYTES(two, 16)), &c))) {
        T_EQ(8, c.bytes);
        T_EQ(CDP_RAN_YES, c.ran);
        got = i64_at(c.data, 0);
    }
    cdp_call_free(&c);
    return got;
}

TEST_API void open_then(side *s, void (*func)(side *s)) {
    const cdp_rpc_desc d = desc_of(s);
    if (!OK(cdp_rpc_create(&d, &s->rpc))) return;
    OK(cdp_barrier(s->g));
    func(s);
}

static int process_main(uint32_t rank, void (*life)(side *s)) {
    side s = {.rank = rank, .ranks = ranks};
    os = counted_os();
    if (!side_open(&s)) return 1;
    open_then(&s, life);
    cdp_group_destroy(s.g);
    T_EQ(0, counted.held);
    return test__now.failed_checks != 0;
}

/* Three ranks that are processes, over TCP and over shared memory. `life`: from the open rpc to its
   end; rank 2 is killed in it, the others end well. */
TEST_API void run_processes(void (*life)(side *s)) {
    pid_t child[3];
    ranks = 3;
    hub = NULL;
    for (uint32_t i = TCP; i <= SHARED; ++i) {
        how = i;
        port = free_port();
        fflush(stdout);
        for (uint32_t rank = 0; rank < ranks; ++rank)
            if ((child[rank] = fork()) == 0) _exit(process_main(rank, life));
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            int result = 0;
            waitpid(child[rank], &result, 0);
            if (rank < 2) T(WIFEXITED(result) && WEXITSTATUS(result) == 0);
        }
    }
}

/* All ranks come here once they serve no more. */
TEST_API void gather(uint32_t *place) {
    const uint64_t until = test_until_ns(10000);
    const uint32_t came = __atomic_fetch_add(place, 1, __ATOMIC_SEQ_CST);
    while (counted_of(place) < (came / ranks + 1) * ranks && test_now_ns() < until)
        test_sleep_ms(1);
}

TEST_API void weights_open(side *s) {
    weights *w = &weights_of[s->rank];
    w->owner = s;
    for (uint32_t i = 0; i < 4; ++i)
        w->w[i] = 3 + s->rank * 2 + i;
    w->t = f64s(w->w, 4, 0);
    const cdp_value v = {.data = w, .param = true, .plain = {.tensors = &w->t, .tensor_count = 1}};
    OK(cdp_rref_create(s->rpc, &v, "weights", &weight_rref[s->rank]));
    saved_live[s->rank] = 0;
}
TEST_API void weights_close(side *s) {
    const uint64_t until = test_until_ns(5000);
    cdp_rref_drop(weight_rref[s->rank]);
    while (test_now_ns() < until
        && (__atomic_load_n(&saved_live[s->rank], __ATOMIC_SEQ_CST)
            || cdp_rpc_stats_of(s->rpc).contexts))
        (void)!cdp_rpc_serve(s->rpc, 1); /* what a context has saved goes soon after its end */
    T_EQ(0, __atomic_load_n(&saved_live[s->rank], __ATOMIC_SEQ_CST));
    T_EQ(0, cdp_rpc_stats_of(s->rpc).contexts);
}

TEST_API cdp_status mul(side *s, cdp_ctx *ctx, uint32_t to, const char *name, int64_t ttl,
    const cdp_tensor *x, cdp_call *c) {
    cdp_call_desc d = {.to = to, .function = cdp_rpc_id(name), .ctx = ctx, BYTES(&ttl, 8)};
    d.args.tensors = x;
    d.args.tensor_count = 1;
    return cdp_rpc_call(s->rpc, &d, c);
}

#endif /* RPC_SIDES_INCLUDED */
