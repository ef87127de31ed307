/* rpc_worlds.c - remote calls, references and backward passes of whole jobs in a simulated world

   Each seed draws the number of ranks, how rough the network is, and a program: every rank
   calls functions of others (inline, in waits, slow ones, such that fail, nested ones, such
   that keep their request and reply from another function or a later step), cancels, shares
   references in every direction, drops them, and runs backward passes over several ranks. In a
   world with a fault a rank is killed, stopped or isolated, a connection is cut or an
   allocation fails, at any point of the run. What must hold, in every world:

   a call ends once, by its deadline, a tenth of it and a constant; its function ran at most once;
   not at all where the call says so; once where it says so (I7, I8). A value ends once (I4);
   without a fault no reference breaks (I5) and every result and every gradient is right (I14).
   In every second world, ranks shut down among survivors: all that reach each other say the same of
   who is alive, and the others of a killed rank end well.
   What was lost is named (I10). No run hangs, also not in a shutdown, which leaves nothing behind
   where it succeeds, and after which as many messages were received of each rank as it has sent
   (I12); a rank that ends has given all memory back. Memory that the program has back, because a
   call has ended or released it, is not read or written any more (I13). A rank that waits sleeps:
   it makes no more calls of the os than CALLS_MAX in a whole run. The same seed makes the same run
   (I15).

   After every step of the world the tables of all ranks that are not in the middle of something
   are compared with each other: a live reference has its fork at the owner, and its value (I1); no
   rank takes another one for a liar, so nobody deletes what was not there (I2, G1); the parent of a
   reference that is not confirmed has a live one and waits (I3, G2); nothing breaks before anything
   was lost (I5); a fork that was deleted does not come back (I6); of a lost rank nothing is left
   (I10); queues and tables are within their limits (I11). A function sees only references that are
   confirmed, and values that were not destroyed (I9).

       rpc_worlds [--seeds A..B] [--seed N] [--trace] [--plant N] [FAULT]

   Without a FAULT: all of them, and then the mistakes that are planted into cdp_rpc.h, each of
   which must be found by the check that it is for, in one of the first worlds.
   `make sim SEEDS=1..10000` runs these seeds with every fault. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "own.h"

#include <stdbool.h>
typedef enum plant {
    PLANT_NOTHING,
    PLANT_NO_DEADLINE,       /* calls do not end by their deadlines */
    PLANT_TOLD_TWICE,        /* `done` is called twice */
    PLANT_NOT_CONFIRMED,     /* functions do not wait for references that are not confirmed */
    PLANT_NO_CREDIT,         /* a caller does not wait until there is room for a call */
    PLANT_NO_LIMIT_OF_BYTES, /* all long arguments are fetched at once */
    PLANT_ANY_LIST,          /* looked for by rpc_rolls.c */
    PLANT_ONE_SUM,           /* a shutdown ends with its first sum, whatever it is */
    PLANT_NOT_COUNTED,       /* messages of one kind are missing in the sums of a shutdown */
    PLANT_BACK_EARLY,        /* memory of arguments goes back before it was read */
    PLANT_ADDED_TWICE,       /* a gradient counts twice */
    PLANT_NOT_OF_THE_SEED,   /* in every second world: a pause is longer */
    PLANTS
} plant;
static plant planted;
static bool plant_here(plant p);
#define CDP__RPC_PLANT(defect) plant_here(PLANT_##defect)
#include "cdp_rpc.h"
#include "../unit/group_memory.h"

#define SIM_OWN_BYTES 64
static void sim_own(unsigned char *bytes, _Bool keep) {
    cdp__rpc_here *here = cdp__rpc_here_of();
    bool *inside = cdp__inside();
    if (keep) {
        memcpy(bytes, here, sizeof *here);
        memcpy(bytes + sizeof *here, inside, sizeof *inside);
    } else {
        memcpy(here, bytes, sizeof *here);
        memcpy(inside, bytes + sizeof *here, sizeof *inside);
    }
}
#include "sim.h"

enum {
    NODES = 5,
    STEPS = 24,
    CALLS = 4096,
    CALLS_MAX = 200000, /* 60000 were the most in 300 seeds of each fault */
    HELD = 4,
    KEPT = 3,    /* requests of one rank that wait for their replies */
    FIDS = 4096, /* numbers of references of one rank that are watched */
    LONG = 100000
};

typedef enum fault_kind {
    F_NONE,
    F_DELAY,
    F_KILL,
    F_CUT,
    F_ISOLATE,
    F_STOP,
    F_NOMEM,
    F_KINDS
} fault_kind;
static const char *const fault_names[F_KINDS] = {
    "none", "delay", "kill", "cut", "isolate", "stop", "nomem"};

typedef struct value {
    uint32_t alive;
    int64_t n;
    cdp_iov iov;
} value;

typedef struct rank_state {
    cdp_rpc *rpc;
    bool ended;
    uint64_t random;
    cdp_rref weight;
    double w[3];
    cdp_tensor t;
    int32_t values, saved;
    struct {
        cdp_rpc_request *request;
        int64_t n;
    } kept[KEPT];
    uint32_t kept_count;
    bool keeps;                            /* its program runs: it may keep requests */
    uint64_t sent[NODES], received[NODES]; /* messages, when it has shut down well */
    bool shut;
    bool alive[NODES]; /* what it then says of the others */
} rank_state;

static uint32_t begun;      /* so many worlds */
static uint64_t kept_calls; /* requests that were kept in the worlds of a fault */
static bool plant_here(plant p) {
    return planted == p && (p != PLANT_NOT_OF_THE_SEED || begun % 2);
}

static struct {
    sim_world *world;
    uint64_t seed;
    uint32_t nodes, calls;
    bool faulty;
    fault_kind kind;
    uint8_t ran[CALLS]; /* by the number of the call */
    uint8_t not_run[CALLS], ends[CALLS];
    /* of each owner: how often it was looked at; by rank and number: when it last had this fork */
    uint32_t looks[NODES], seen[NODES][NODES][FIDS];
    rank_state rank[NODES];
    char wrong[600];
} x;

static void wrong(uint32_t node, const char *what) {
    if (!x.wrong[0]) snprintf(x.wrong, sizeof x.wrong, "node %u: %.500s", node, what);
}
static rank_state *here_of(cdp_rpc_request *q) {
    return (rank_state *)q->user;
}
static uint32_t node_of(const rank_state *r) {
    return (uint32_t)(r - x.rank);
}

/* ---- functions; the first number of every call is its own */

static void ran(cdp_rpc_request *q) {
    int64_t n = 0;
    if (q->bytes >= 8) memcpy(&n, q->data, 8);
    if (n <= 0 || n >= CALLS) return;
    if (x.ran[n]++) wrong(node_of(here_of(q)), "a function ran twice for one call");
    if (x.not_run[n])
        wrong(node_of(here_of(q)), "a function runs although the call said it did not");
}
static void reply(cdp_rpc_request *q, int64_t n) {
    const cdp_iov iov = {&n, 8};
    (void)cdp_rpc_reply(q, &(cdp_args){.iov = &iov, .iov_count = 1});
}
static int64_t number(const void *data, uint32_t i) {
    int64_t n;
    memcpy(&n, (const uint8_t *)data + 8 * i, 8);
    return n;
}
static void f_twice(void *user, cdp_rpc_request *q) {
    (void)user;
    ran(q);
    reply(q, 2 * number(q->data, 1));
}
static void f_slow(void *user, cdp_rpc_request *q) {
    rank_state *r = here_of(q);
    (void)user;
    ran(q);
    sim_sleep(&x.world->nodes[node_of(r)], (uint64_t)number(q->data, 1) % 200 * SIM_MS);
    reply(q, 2 * number(q->data, 1));
}
static void f_fails(void *user, cdp_rpc_request *q) {
    (void)user;
    ran(q);
    (void)cdp_rpc_fail(q, 9, "on purpose");
}
static void f_nested(void *user, cdp_rpc_request *q) {
    rank_state *r = here_of(q);
    int64_t args[2] = {0, number(q->data, 1)}, got = -1;
    const cdp_iov iov = {args, 16};
    cdp_call c = {0};
    (void)user;
    ran(q);
    if (cdp_rpc_call(q->rpc,
            &(cdp_call_desc){.to = (node_of(r) + 1) % x.nodes,
                .function = cdp_rpc_id("twice"),
                .args = {.iov = &iov, .iov_count = 1}},
            &c)
        == CDP_OK)
        got = number(c.data, 0);
    cdp_call_free(&c);
    if (got < 0)
        (void)cdp_rpc_fail(q, 3, "the nested call failed");
    else
        reply(q, got);
}

/* Replies to the oldest `count` of the requests that this rank keeps. */
static void reply_kept(rank_state *r, uint32_t count) {
    for (; count && r->kept_count; --count) {
        cdp_rpc_request *q = r->kept[0].request;
        const int64_t n = r->kept[0].n;
        --r->kept_count;
        memmove(r->kept, r->kept + 1, r->kept_count * sizeof *r->kept);
        reply(q, 2 * n);
    }
}
static void f_keeps(void *user, cdp_rpc_request *q) {
    rank_state *r = here_of(q);
    (void)user;
    ran(q);
    if (r->kept_count == KEPT) reply_kept(r, 1 + (uint32_t)(sim_random(&r->random) % KEPT));
    if (!r->keeps || r->kept_count == KEPT) {
        reply(q, 2 * number(q->data, 1));
        return;
    }
    ++kept_calls;
    r->kept[r->kept_count].n = number(q->data, 1);
    r->kept[r->kept_count++].request = q;
}

static void value_end(void *user, void *data) {
    value *v = (value *)data;
    rank_state *r = (rank_state *)user;
    if (v->alive != 1) wrong(node_of(r), "a value ends twice");
    v->alive = 0;
    --r->values;
    free(v);
}
static cdp_value value_of(rank_state *r, int64_t n) {
    value *v = (value *)calloc(1, sizeof *v);
    v->alive = 1;
    v->n = n;
    v->iov.data = &v->n;
    v->iov.bytes = 8;
    ++r->values;
    return (cdp_value){
        .data = v, .plain = {.iov = &v->iov, .iov_count = 1}, .destroy = value_end, .user = r};
}
static void f_make(void *user, cdp_rpc_request *q) {
    const cdp_value v = value_of(here_of(q), number(q->data, 1));
    (void)user;
    ran(q);
    if (cdp_rpc_reply_value(q, &v) != CDP_OK) value_end(v.user, v.data);
}
/* on a value: what it holds */
static void f_look(void *user, cdp_rpc_request *q) {
    const value *v = q->on ? (const value *)q->on->data : NULL;
    (void)user;
    ran(q);
    if (!v || v->alive != 1)
        wrong(node_of(here_of(q)), "a function runs on a value that is gone");
    else
        reply(q, v->n);
}

/* {number, bytes, ...}: checks what it got, and returns as much, which the caller reads in place */
static void fill(uint8_t *at, uint64_t bytes, int64_t n) {
    for (uint64_t i = 16; i < bytes; ++i)
        at[i] = (uint8_t)(i + (uint64_t)n);
    memcpy(at, &n, 8);
    memcpy(at + 8, &bytes, 8);
}
static bool filled(const uint8_t *at, uint64_t bytes, int64_t n) {
    bool same = number(at, 0) == n && (uint64_t)number(at, 1) == bytes;
    for (uint64_t i = 16; i < bytes; ++i)
        same = same && at[i] == (uint8_t)(i + (uint64_t)n);
    return same;
}
static void memory_back(void *data) {
    if (planted != PLANT_BACK_EARLY) free(data); /* else it may still be read */
}
static void long_end(void *user, void *data) {
    --((rank_state *)user)->saved;
    memset(data, 0xee, LONG);
    memory_back(data);
}
static void f_long(void *user, cdp_rpc_request *q) {
    rank_state *r = here_of(q);
    const int64_t n = number(q->data, 0);
    uint8_t *data = (uint8_t *)malloc(LONG);
    cdp_iov iov = {data, LONG};
    const cdp_value v = {
        .data = data, .plain = {.iov = &iov, .iov_count = 1}, .destroy = long_end, .user = r};
    (void)user;
    ran(q);
    if (!filled((const uint8_t *)q->data, q->bytes, n))
        wrong(node_of(r), "a function got what was not sent");
    fill(data, LONG, n);
    ++r->saved;
    if (cdp_rpc_reply_value(q, &v) != CDP_OK) long_end(r, data);
}

/* fetches its references and returns the last one */
static void f_share(void *user, cdp_rpc_request *q) {
    const int64_t expected = number(q->data, 1);
    ran(q);
    for (uint32_t i = 0; i < q->rref_count; ++i) {
        cdp_call c = {0};
        if (!user && cdp_rref_confirmed(q->rrefs[i], 0) == CDP_PENDING)
            wrong(node_of(here_of(q)), "a function sees a reference that is not confirmed");
        if (cdp_rref_to_here(q->rrefs[i], 0, &c) == CDP_OK) {
            if (number(c.data, 0) != expected) wrong(node_of(here_of(q)), "a wrong value");
        } else if (!x.faulty) {
            wrong(node_of(here_of(q)), "a reference breaks although nothing failed");
        }
        cdp_call_free(&c);
    }
    (void)cdp_rpc_reply(q, &(cdp_args){.rrefs = q->rrefs, .rref_count = q->rref_count});
}

/* ---- gradients: y = w x, integers */

static cdp_tensor f64s(double *data, uint64_t tag) {
    const cdp_tensor t = {
        .data = data, .dtype = CDP_DTYPE_F64, .dims = 1, .shape = {3}, .value = tag};
    return t;
}
typedef struct saved_x {
    rank_state *r;
    double x[3];
} saved_x;
static void saved_end(void *saved) {
    --((saved_x *)saved)->r->saved;
    free(saved);
}
static void f_mul(void *user, cdp_rpc_request *q) {
    rank_state *r = here_of(q);
    double y[3];
    (void)user;
    if (q->tensor_count != 1) return;
    for (uint32_t i = 0; i < 3; ++i)
        y[i] = r->w[i] * ((const double *)q->tensors[0].data)[i];
    if (q->ctx) {
        saved_x *s = (saved_x *)calloc(1, sizeof *s);
        uint64_t param;
        s->r = r;
        ++r->saved;
        memcpy(s->x, q->tensors[0].data, 24);
        if (cdp_ctx_param(q->ctx, r->weight, &param) != CDP_OK
            || cdp_ctx_save(q, s, saved_end, &param, 1) != CDP_OK)
            saved_end(s);
    }
    const cdp_tensor out = f64s(y, 0);
    (void)cdp_rpc_reply(q, &(cdp_args){.tensors = &out, .tensor_count = 1});
}
static cdp_status b_mul(void *user, cdp_backward *b) {
    const saved_x *s = (const saved_x *)b->saved;
    const double *g = (const double *)b->grad_out[0].data;
    (void)user;
    if (!s || !g) return CDP_ERR_INTERNAL; /* it could not be saved */
    for (uint32_t i = 0; i < 2; ++i) {
        double *to = (double *)memory_of_backward(b, 24);
        if (!to) return CDP_ERR_NOMEM;
        b->grad_in[i] = f64s(to, 0);
        for (uint32_t k = 0; k < 3; ++k)
            to[k] = g[k] * (i ? s->x[k] : s->r->w[k]);
    }
    return CDP_OK;
}
static void f_weight_grad(void *user, cdp_rpc_request *q) {
    uint64_t param;
    cdp_tensor g = {0};
    (void)user;
    if (cdp_ctx_param(q->ctx, here_of(q)->weight, &param) == CDP_OK
        && cdp_ctx_grad(q->ctx, param, &g) == CDP_OK && g.data)
        (void)cdp_rpc_reply(q, &(cdp_args){.tensors = &g, .tensor_count = 1});
    else
        (void)cdp_rpc_fail(q, 1, "no gradient");
}

static const cdp_rpc_function functions[] = {
    {.name = "twice", .func = f_twice, .flags = CDP_RPC_INLINE},
    {.name = "twice_later", .func = f_twice}, {.name = "slow", .func = f_slow},
    {.name = "fails", .func = f_fails}, {.name = "nested", .func = f_nested},
    {.name = "make", .func = f_make}, {.name = "share", .func = f_share},
    {.name = "share_early", .func = f_share, .user = &x, .flags = CDP_RPC_EARLY},
    {.name = "look", .func = f_look}, {.name = "long", .func = f_long},
    {.name = "keeps", .func = f_keeps, .flags = CDP_RPC_LATER},
    {.name = "keeps_inline", .func = f_keeps, .flags = CDP_RPC_LATER | CDP_RPC_INLINE},
    {.name = "mul", .func = f_mul, .backward = b_mul},
    {.name = "weight_grad", .func = f_weight_grad}};

/* ---- the program of a rank */

static uint64_t now_of(const rank_state *r) {
    return x.world->nodes[node_of(r)].os.now_ns(x.world->nodes[node_of(r)].os.user);
}

/* A call has ended: what it says must be true, and it must not be late. */
static void check_call(rank_state *r, const cdp_call *c, int64_t id, uint64_t began, uint32_t ms) {
    const uint64_t bound = ms * SIM_MS * 11 / 10 + 400 * SIM_MS; /* seeded stalls */
    if (c->ran == CDP_RAN_NO && x.ran[id]) wrong(node_of(r), "it ran, and the call says not");
    x.not_run[id] = c->ran == CDP_RAN_NO;
    if (c->ran == CDP_RAN_YES && x.ran[id] != 1) wrong(node_of(r), "it did not run, they say so");
    if (x.kind != F_STOP && now_of(r) - began > bound)
        wrong(node_of(r), "a call outlived its time");
    if (!x.faulty && c->status != CDP_OK && c->status != CDP_ERR_REMOTE
        && c->status != CDP_ERR_ABORTED && c->status != CDP_ERR_TIMEOUT)
        wrong(node_of(r), c->error.text);
    if (c->status == CDP_ERR_PEER_LOST && c->error.peer < 0) wrong(node_of(r), "nobody is blamed");
}

static void one_end(void *user, cdp_call *c) {
    if (++*(uint8_t *)user > 1 || c->status == CDP_PENDING)
        wrong(0, "a call ends twice, or before its end");
}

static void step_call(rank_state *r) {
    static const char *const names[] = {
        "twice", "twice_later", "slow", "fails", "nested", "keeps", "keeps_inline"};
    const uint32_t kind = (uint32_t)(sim_random(&r->random) % 7);
    const uint32_t ms = sim_chance(&r->random, 200) ? 30 : 5000;
    int64_t args[2] = {
        x.calls < CALLS - 1 ? ++x.calls : 0, (int64_t)(sim_random(&r->random) % 999)};
    const cdp_iov iov = {args, 16};
    const uint64_t began = now_of(r);
    const cdp_call_desc d = {.to = (uint32_t)(sim_random(&r->random) % x.nodes),
        .function = cdp_rpc_id(names[kind]),
        .timeout_ms = ms,
        .args = {.iov = &iov, .iov_count = 1},
        .done = one_end,
        .user = &x.ends[args[0]]};
    cdp_call c = {0};
    if (cdp_rpc_start(r->rpc, &d, &c) != CDP_OK) {
        if (!x.faulty) wrong(node_of(r), cdp_last_error()->text);
        return;
    }
    if (sim_chance(&r->random, 100)) (void)cdp_call_cancel(&c);
    if (cdp_call_wait(&c) == CDP_OK && number(c.data, 0) != 2 * args[1])
        wrong(node_of(r), "a wrong result");
    if (kind == 3 && c.status == CDP_OK) wrong(node_of(r), "it failed, and the call says not");
    if (args[0]) check_call(r, &c, args[0], began, ms);
    if (args[0] && x.ends[args[0]] != 1) wrong(node_of(r), "a call has ended, and nobody was told");
    cdp_call_free(&c);
}

/* More calls at once than may be under way: the others wait until there is room. */
static void step_burst(rank_state *r) {
    enum {
        BURST = 8
    };
    const uint32_t to = (uint32_t)(sim_random(&r->random) % x.nodes);
    cdp_call c[BURST] = {{0}};
    int64_t args[BURST][2];
    for (uint32_t i = 0; i < BURST; ++i) {
        const cdp_iov iov = {args[i], 16};
        args[i][0] = x.calls < CALLS - 1 ? ++x.calls : 0;
        args[i][1] = i;
        if (cdp_rpc_start(r->rpc,
                &(cdp_call_desc){.to = to,
                    .function = cdp_rpc_id(i % 2 ? "twice_later" : "twice"),
                    .timeout_ms = 5000,
                    .args = {.iov = &iov, .iov_count = 1}},
                &c[i])
                != CDP_OK
            && !x.faulty)
            wrong(node_of(r), cdp_last_error()->text);
    }
    for (uint32_t i = 0; i < BURST; ++i) {
        if (c[i].priv[0] && cdp_call_wait(&c[i]) == CDP_OK
            && number(c[i].data, 0) != 2 * (int64_t)i)
            wrong(node_of(r), "a wrong result");
        cdp_call_free(&c[i]);
    }
}

/* Long arguments that are not copied, a long result in memory of the program. What is given back is
   poisoned at once, and watched until the end of the step. */
typedef struct borrowed {
    uint8_t *data;
    bool back, left; /* left: the step is over, and it has not come back */
} borrowed;
static void borrowed_free(borrowed *b) {
    memory_back(b->data);
    free(b);
}
static void long_back(void *user) {
    borrowed *b = (borrowed *)user;
    if (b->back) wrong(0, "memory of arguments comes back twice");
    b->back = true;
    memset(b->data, 0xee, LONG);
    if (b->left) borrowed_free(b);
}
static bool poisoned(const uint8_t *at, uint64_t bytes) {
    while (bytes && at[bytes - 1] == 0xee)
        --bytes;
    return !bytes;
}
static void step_long(rank_state *r) {
    const int64_t n = x.calls < CALLS - 1 ? ++x.calls : 0;
    const uint32_t ms = sim_chance(&r->random, 300) ? 1 : 5000;
    const bool cancel = sim_chance(&r->random, 100);
    borrowed *b = (borrowed *)calloc(1, sizeof *b);
    uint64_t *into = (uint64_t *)calloc(1, LONG);
    const cdp_iov iov = {b->data = (uint8_t *)malloc(LONG), LONG};
    cdp_call c = {.into = {into, LONG}};
    const uint64_t began = now_of(r);
    fill(b->data, LONG, n);
    const cdp_call_desc d = {.to = (uint32_t)(sim_random(&r->random) % x.nodes),
        .function = cdp_rpc_id("long"),
        .timeout_ms = ms,
        .args = {.iov = &iov, .iov_count = 1},
        .release = long_back,
        .release_user = b};
    if (cdp_rpc_start(r->rpc, &d, &c) == CDP_OK) {
        if (cancel) (void)cdp_call_cancel(&c);
        if (cdp_call_wait(&c) == CDP_OK && !filled((const uint8_t *)c.data, c.bytes, n))
            wrong(node_of(r), "a wrong long result");
        if (n) check_call(r, &c, n, began, ms);
        cdp_call_free(&c);
        memset(into, 0xee, LONG);
        const uint64_t until = now_of(r) + 100 * SIM_MS;
        while (now_of(r) < until || (!b->back && !x.faulty && now_of(r) < until + 10 * SIM_S))
            if (cdp_rpc_serve(r->rpc, 5) < 0) break;
        if (!b->back && !x.faulty) wrong(node_of(r), "memory of arguments does not come back");
        if ((b->back && !poisoned(b->data, LONG)) || !poisoned((const uint8_t *)into, LONG))
            wrong(node_of(r), "memory is written to that the program has back (I13)");
    } else {
        if (!x.faulty) wrong(node_of(r), cdp_last_error()->text);
        b->back = true; /* a start that failed borrows nothing */
    }
    free(into);
    if (b->back)
        borrowed_free(b);
    else
        b->left = true;
}

static void step_reference(rank_state *r, cdp_rref *held, int64_t *n) {
    const uint32_t to = (uint32_t)(sim_random(&r->random) % x.nodes);
    int64_t args[2] = {0, *n};
    const cdp_iov iov = {args, 16};
    cdp_call_desc d = {.to = to, .timeout_ms = 5000, .args = {.iov = &iov, .iov_count = 1}};
    cdp_call c = {0};
    if (!held->rpc) {
        args[1] = *n = (int64_t)(sim_random(&r->random) % 999);
        d.function = cdp_rpc_id("make");
        if (cdp_rpc_remote(r->rpc, &d, held) != CDP_OK && !x.faulty)
            wrong(node_of(r), cdp_last_error()->text);
    } else if (sim_chance(&r->random, 300)) {
        cdp_rref_drop(*held);
        held->rpc = NULL;
    } else if (sim_chance(&r->random, 200)) {
        d.function = cdp_rpc_id("look");
        d.on = *held;
        if (cdp_rpc_call(r->rpc, &d, &c) == CDP_OK) {
            if (number(c.data, 0) != *n) wrong(node_of(r), "a wrong value");
        } else if (!x.faulty) {
            wrong(node_of(r), cdp_last_error()->text);
        }
        cdp_call_free(&c);
    } else {
        const bool gone = sim_chance(&r->random, 500); /* not even while it is on its way */
        d.function = cdp_rpc_id(sim_chance(&r->random, 500) ? "share" : "share_early");
        d.args.rrefs = held;
        d.args.rref_count = 1;
        cdp_status st = cdp_rpc_start(r->rpc, &d, &c);
        if (gone) cdp_rref_drop(*held);
        if (st == CDP_OK) st = cdp_call_wait(&c);
        if (st == CDP_OK && c.rref_count == 1) {
            cdp_rref_keep(c.rrefs[0]);
            if (!gone) cdp_rref_drop(*held);
            *held = c.rrefs[0];
        } else if (!x.faulty) {
            wrong(node_of(r), cdp_last_error()->text);
        } else if (gone) {
            held->rpc = NULL;
        }
        cdp_call_free(&c);
        if (x.faulty && held->rpc && cdp_rref_confirmed(*held, 0) < 0) {
            cdp_rref_drop(*held);
            held->rpc = NULL;
        }
    }
}

static cdp_status mul(rank_state *r, cdp_ctx *ctx, uint32_t to, const cdp_tensor *in, cdp_call *c) {
    const cdp_call_desc d = {.to = to,
        .function = cdp_rpc_id("mul"),
        .timeout_ms = 5000,
        .ctx = ctx,
        .args = {.tensors = in, .tensor_count = 1}};
    return cdp_rpc_call(r->rpc, &d, c);
}

/* y = w_b w_a x and an unused branch; the gradients of x and of w_b. */
static cdp_status pass(rank_state *r, cdp_ctx *ctx) {
    const uint32_t a = (uint32_t)(sim_random(&r->random) % x.nodes);
    const uint32_t b = (uint32_t)(sim_random(&r->random) % x.nodes);
    double in[3] = {1, 2, -3};
    cdp_call c[3] = {{0}}, grad = {0};
    cdp_tensor g;
    uint64_t tag;
    cdp_status st = cdp_ctx_value(ctx, &tag);
    const cdp_tensor t = f64s(in, st == CDP_OK ? tag : 0);
    if (st == CDP_OK) st = mul(r, ctx, a, &t, &c[0]);
    if (st == CDP_OK) st = mul(r, ctx, b, &c[0].tensors[0], &c[1]);
    if (st == CDP_OK) st = mul(r, ctx, (a + 1) % x.nodes, &t, &c[2]);
    if (st == CDP_OK)
        st = cdp_ctx_backward(ctx,
            &(cdp_backward_desc){.roots = &c[1].tensors[0], .root_count = 1, .timeout_ms = 5000});
    if (st == CDP_OK) st = cdp_ctx_grad(ctx, tag, &g);
    for (uint32_t i = 0; st == CDP_OK && i < 3; ++i)
        if (!g.data || ((const double *)g.data)[i] != x.rank[a].w[i] * x.rank[b].w[i])
            wrong(node_of(r), "a wrong gradient of the input");
    if (st == CDP_OK)
        st = cdp_rpc_call(r->rpc,
            &(cdp_call_desc){
                .to = b, .function = cdp_rpc_id("weight_grad"), .timeout_ms = 5000, .ctx = ctx},
            &grad);
    for (uint32_t i = 0; st == CDP_OK && a != b && i < 3; ++i)
        if (((const double *)grad.tensors[0].data)[i] != x.rank[a].w[i] * in[i])
            wrong(node_of(r), "a wrong gradient of a parameter");
    cdp_call_free(&grad);
    for (uint32_t i = 0; i < 3; ++i)
        cdp_call_free(&c[i]);
    return st;
}

static void step_pass(rank_state *r) {
    const uint64_t began = now_of(r);
    cdp_ctx *ctx;
    cdp_status st = cdp_ctx_begin(r->rpc, &ctx);
    if (st == CDP_OK) {
        st = pass(r, ctx);
        if (st != CDP_OK && !x.faulty) wrong(node_of(r), cdp_last_error()->text);
        st = cdp_ctx_end(ctx, 5000);
    }
    if (st != CDP_OK && !x.faulty) wrong(node_of(r), cdp_last_error()->text);
    if (x.kind != F_STOP && now_of(r) - began > 40 * SIM_S) wrong(node_of(r), "a pass hangs");
}

static void program(rank_state *r) {
    cdp_rref held[HELD] = {{0}};
    int64_t n[HELD] = {0};
    r->keeps = true;
    for (uint32_t i = 0; i < STEPS; ++i) {
        if (sim_chance(&r->random, 700)) reply_kept(r, KEPT);
        const uint32_t what = (uint32_t)(sim_random(&r->random) % 8);
        if (what < 3) step_call(r);
        if (what >= 3 && what < 7) step_reference(r, &held[what - 3], &n[what - 3]);
        if (what == 7 && i % 2) step_pass(r);
        if (what == 7 && i % 4 == 0) step_long(r);
        if (what == 7 && i % 4 == 2) step_burst(r);
    }
    r->keeps = false;
    reply_kept(r, KEPT);
    for (uint32_t i = 0; i < HELD; ++i)
        cdp_rref_drop(held[i]);
}

static bool survivors_of(uint64_t seed) {
    return seed % 2;
}

static void with_rpc(rank_state *r) {
    cdp_status st;
    for (uint32_t i = 0; i < 3; ++i)
        r->w[i] = 2 + node_of(r) + i;
    r->t = f64s(r->w, 0);
    const cdp_value v = {.data = r->w, .plain = {.tensors = &r->t, .tensor_count = 1}};
    st = cdp_rref_create(r->rpc, &v, "weights", &r->weight);
    if (st == CDP_OK) program(r);
    st = cdp_rpc_shutdown(r->rpc, 20000);
    cdp_rref_drop(r->weight);
    if (st == CDP_OK) {
        const cdp_rpc_stats s = cdp_rpc_stats_of(r->rpc);
        for (uint32_t i = 0; i < x.nodes; ++i) {
            r->sent[i] = r->rpc->peers[i].sent;
            r->received[i] = r->rpc->peers[i].received;
            r->alive[i] = cdp_rpc_alive(r->rpc, i);
        }
        r->shut = true;
        if (s.calls_out || s.calls_in || s.users || s.forks || s.holds || s.contexts)
            wrong(node_of(r), "a good shutdown leaves something behind");
        if (!x.faulty && r->values) wrong(node_of(r), "a value is left after a good shutdown");
    } else if (!x.faulty || (x.kind == F_KILL && survivors_of(x.seed))) {
        wrong(node_of(r), cdp_last_error()->text);
    }
    {
        cdp_rpc *rpc = r->rpc;
        r->rpc = NULL; /* nobody looks at it any more */
        cdp_rpc_destroy(rpc);
    }
    if (r->values) wrong(node_of(r), "a value is never destroyed");
    if (r->saved) wrong(node_of(r), "what a context has saved is never released");
}

static void node_main(sim_node *node, void *arg) {
    rank_state *r = &x.rank[node->id];
    cdp_tcp_desc t = {.master_addr = "10.0.0.1",
        .master_port = 29500,
        .trust_network = true,
        .init_timeout_ms = 60000,
        .group = {.rank = node->id,
            .world_size = x.nodes,
            .timeout_ms = 20000,
            .os = &node->os,
            .logger = {.level = CDP_LOG_SILENT}}};
    cdp_rpc_desc d = {.functions = functions,
        .function_count = sizeof functions / sizeof *functions,
        .user = r,
        .survivors = survivors_of(x.seed),
        .timeout_ms = 5000};
    if (x.seed % 3 == 0) { /* little room */
        d.max_calls = 3;
        d.max_queue_bytes = LONG + LONG / 2;
    }
    (void)arg;
    if (cdp_init(&t, &d.group) == CDP_OK) {
        if (cdp_rpc_create(&d, &r->rpc) == CDP_OK)
            with_rpc(r);
        else if (!x.faulty)
            wrong(node->id, cdp_last_error()->text);
        cdp_group_destroy(d.group);
    } else if (!x.faulty) {
        wrong(node->id, cdp_last_error()->text);
    }
    if (node->block_count) wrong(node->id, "memory is left");
    r->ended = true;
}

/* ---- what must hold after every step */

/* The rpc of a rank that is in the middle of nothing: it waits, or has slept since its last call.
   NULL: it has none, or is dead. */
static const cdp_rpc *still(uint32_t i) {
    const sim_node *node = &x.world->nodes[i];
    const char *call = node->last_call ? node->last_call : "";
    if (node->state == SIM_DEAD || !x.rank[i].rpc || !x.rank[i].rpc->channel) return NULL;
    return !strcmp(call, "poll") || !strcmp(call, "sleep") ? x.rank[i].rpc : NULL;
}
static bool linked(uint32_t a, uint32_t b) {
    return !still(a)->lost[b] && !still(b)->lost[a];
}

static void look_at_user(uint32_t i, const cdp__ref *r, bool any_loss) {
    const cdp_rpc *owner = still(r->rank), *parent;
    if (r->state == CDP__REF_BROKEN && !any_loss && x.kind != F_NOMEM)
        wrong(i, "a reference is broken, and nothing was lost (I5)");
    if (!owner || !linked(i, r->rank) || (!r->handles && !r->count)) return;
    if (r->state == CDP__REF_LIVE) {
        const uint32_t fork = cdp__refs_fork(&owner->refs, r->key, i);
        if (!fork || !owner->extra[owner->refs.at[fork].of].value)
            wrong(i, "a live reference, and its owner has no fork or no value (I1)");
    } else if (r->state == CDP__REF_PENDING && r->parent != CDP__REF_NONE) {
        parent = still(r->parent);
        if (!parent || !linked(i, r->parent) || !linked(r->parent, r->rank)) return;
        const uint32_t hold = cdp__refs_find(&parent->refs, CDP__REF_HOLD, r->key);
        if (!hold || parent->refs.at[parent->refs.at[hold].of].state != CDP__REF_LIVE)
            wrong(i, "a reference is not confirmed, and its parent does not wait (I3, G2)");
    }
}

static void look_at_fork(uint32_t i, const cdp_rpc *rpc, const cdp__ref *r) {
    const uint32_t maker = cdp__rpc_maker(r->key), n = (uint32_t)r->key;
    if (rpc->lost[r->rank]) wrong(i, "a fork of a lost rank is left (I10)");
    if (maker >= x.nodes || n >= FIDS) return;
    if (x.seen[i][maker][n] && x.seen[i][maker][n] + 1 < x.looks[i])
        wrong(i, "a fork that was deleted is there again (I6)");
    x.seen[i][maker][n] = x.looks[i];
}

static void look_at_limits(uint32_t i, const cdp_rpc *rpc) {
    const cdp_rpc_desc *d = &rpc->desc;
    uint32_t from[2][NODES] = {{0}};
    uint64_t nested = 0;
    for (const cdp__rpc_rq *rq = rpc->all; rq; rq = rq->after) {
        from[rq->nested][rq->pub.from] += rq->stage != CDP__RPC_REPLIED && !rq->node;
        nested += rq->nested ? rq->counted : 0;
        if (rpc->lost[rq->pub.from] && rq->stage < CDP__RPC_RUNNING && !rq->cancelled)
            wrong(i, "a request of a lost rank waits (I10)");
    }
    for (uint32_t k = 0; k < rpc->ranks; ++k) {
        const cdp__rpc_peer *p = &rpc->peers[k];
        for (uint32_t n = 0; n < 2; ++n) {
            const uint32_t more = n ? CDP__RPC_LEVELS : 0;
            if (k != i && from[n][k] > rpc->share + more)
                wrong(i, "more requests of a rank than its part (I11)");
            if (k != i && !rpc->lost[k] && p->requests[n] != from[n][k])
                wrong(i, "requests are miscounted");
            if (p->flight[n].calls > p->limit + more)
                wrong(i, "more than max_calls are under way (I11)");
        }
        if (p->dropped && x.kind != F_NOMEM && !x.wrong[0])
            snprintf(x.wrong, sizeof x.wrong,
                "node %u: rank %u is given up for what it has sent (I2, G1): %.300s", i, k,
                p->why.text);
        if (rpc->lost[k] && (p->queue || p->flight[0].calls || p->flight[1].calls))
            wrong(i, "something waits for a lost rank (I10)");
    }
    if (rpc->refs.room && rpc->refs.room - 1 - rpc->refs.left > d->max_rrefs)
        wrong(i, "more than max_rrefs (I11)");
    for (const cdp__rpc_in *in = rpc->in; in; in = in->next)
        nested += in->body && (in->m.b >> 48 & 1) ? in->m.bytes : 0;
    if (rpc->in_bytes > d->max_queue_bytes + nested) wrong(i, "more than max_queue_bytes (I11)");
    if (rpc->context_count > d->max_contexts) wrong(i, "more than max_contexts (I11)");
    if (rpc->areas_kept > 2 * d->max_message_bytes) wrong(i, "too much memory is kept (I11)");
}

static void looks(sim_world *world) {
    bool any_loss = false;
    (void)world;
    for (uint32_t i = 0; i < x.nodes; ++i) {
        any_loss = any_loss || x.world->nodes[i].state == SIM_DEAD;
        for (uint32_t k = 0; x.rank[i].rpc && k < x.nodes; ++k)
            any_loss = any_loss || x.rank[i].rpc->lost[k];
    }
    for (uint32_t i = 0; i < x.nodes && !x.wrong[0]; ++i) {
        const cdp_rpc *rpc = still(i);
        if (!rpc) continue;
        ++x.looks[i];
        look_at_limits(i, rpc);
        for (uint32_t slot = 1; slot < rpc->refs.room; ++slot) {
            const cdp__ref *r = &rpc->refs.at[slot];
            if (r->kind == CDP__REF_USER) look_at_user(i, r, any_loss);
            if (r->kind == CDP__REF_FORK) look_at_fork(i, rpc, r);
            if (r->kind == CDP__REF_HOLD && rpc->lost[r->rank])
                wrong(i, "a child that went to a lost rank is waited for (I10)");
        }
    }
}

/* After the end: of two ranks that have shut down well, each has what the other one has sent. */
static void look_at_sums(void) {
    for (uint32_t i = 0; i < x.nodes; ++i)
        for (uint32_t k = 0; k < x.nodes && !x.faulty; ++k)
            if (i != k && x.rank[i].shut && x.rank[k].shut
                && x.rank[i].sent[k] != x.rank[k].received[i])
                wrong(i, "a message was sent and has not come, and both have shut down well (I12)");
}

/* After the end: two ranks that have shut down well among survivors, and are alive for each other,
   say the same of all; where no link breaks, each says the same of the other. */
static void look_at_lists(void) {
    for (uint32_t i = 0; i < x.nodes && survivors_of(x.seed); ++i)
        for (uint32_t k = 0; k < x.nodes; ++k) {
            const rank_state *a = &x.rank[i], *b = &x.rank[k];
            if (!a->shut || !b->shut) continue;
            if (a->alive[k] != b->alive[i] && (!x.faulty || x.kind == F_KILL))
                wrong(i, "it is alive for one, and not the other way");
            if (a->alive[k] && b->alive[i] && memcmp(a->alive, b->alive, sizeof a->alive) != 0)
                wrong(i, "two that are alive for each other do not say the same of all");
        }
}

/* ---- worlds */

static bool trace; /* of the last run of a seed */
#include "worlds.h"

static bool world_run(uint64_t seed, fault_kind kind, const sim_fault *f, uint64_t *hash,
    uint64_t *calls, uint64_t *allocs, uint64_t *length) {
    sim_desc d = {.seed = seed, .main = node_main, .looks = looks, .limit_ns = 900 * SIM_S};
    uint64_t s = sim_stream(seed, 77);
    bool ok;
    memset(&x, 0, sizeof x);
    ++begun;
    x.seed = seed;
    x.kind = kind;
    x.faulty = kind > F_DELAY && f;
    x.nodes = 2 + (uint32_t)(sim_random(&s) % (NODES - 1));
    for (uint32_t i = 0; i < x.nodes; ++i)
        x.rank[i].random = sim_stream(seed, 100 + i);
    d.node_count = x.nodes;
    d.trace = trace && (f || kind <= F_DELAY) ? stderr : NULL;
    d.noise = kind == F_DELAY ? sim_noise_wild(seed, false) : sim_noise_calm();
    x.world = sim_open(&d);
    if (f) sim_add_fault(x.world, f);
    ok = sim_run(x.world);
    if (!ok && !x.wrong[0]) snprintf(x.wrong, sizeof x.wrong, "%.200s", x.world->failure);
    look_at_sums();
    look_at_lists();
    *hash = x.world->hash;
    *length = x.world->now - x.world->start_ns;
    for (uint32_t i = 0; i < x.nodes; ++i) {
        calls[i] = x.world->nodes[i].calls;
        allocs[i] = x.world->nodes[i].alloc_calls;
        if (calls[i] > CALLS_MAX) wrong(i, "it looks again and again without sleeping");
    }
    sim_close(x.world);
    return !x.wrong[0];
}

static sim_fault draw(uint64_t seed, fault_kind kind, const uint64_t *calls, const uint64_t *allocs,
    uint64_t length) {
    uint64_t s = sim_stream(seed, 99);
    sim_fault f;
    memset(&f, 0, sizeof f);
    f.a = (int32_t)(sim_random(&s) % x.nodes);
    f.at_ns = sim_random(&s) % length;
    f.for_ns = SIM_FOREVER;
    f.set_a = 1ull << f.a;
    f.set_b = ~f.set_a;
    f.kind = SIM_FAULT_CUT;
    if (kind == F_KILL) f.kind = SIM_FAULT_KILL;
    if (kind == F_STOP) f.kind = SIM_FAULT_STOP;
    if (kind == F_ISOLATE) f.kind = SIM_FAULT_PARTITION;
    if (kind == F_NOMEM) f.kind = SIM_FAULT_NOMEM;
    if (kind == F_STOP) f.for_ns = sim_log_between(&s, SIM_MS, 20 * SIM_S);
    if (kind == F_KILL) f.at_count = 1 + sim_random(&s) % calls[f.a];
    if (kind == F_NOMEM) f.at_count = 1 + sim_random(&s) % allocs[f.a];
    return f;
}

static bool seed_run(uint64_t seed, uint32_t kind) {
    uint64_t calls[NODES], allocs[NODES], length, hash, again;
    sim_fault f;
    bool ok = world_run(seed, kind, NULL, &hash, calls, allocs, &length);
    if (ok && kind > F_DELAY) {
        f = draw(seed, kind, calls, allocs, length);
        ok = world_run(seed, kind, &f, &hash, calls, allocs, &length);
    } else if (ok && seed % 16 == 0) {
        ok = world_run(seed, kind, NULL, &again, calls, allocs, &length);
        if (ok && again != hash) {
            ok = false;
            snprintf(x.wrong, sizeof x.wrong, "the same seed made another run");
        }
    }
    if (!ok && !planted)
        printf("not ok %s seed %llu, %u nodes: %s\n", fault_names[kind], (unsigned long long)seed,
            x.nodes, x.wrong);
    return ok;
}

static bool kind_end(uint32_t kind, uint32_t bad, uint64_t seeds) {
    if (!kept_calls && seeds > 10) ++bad; /* nothing was tried */
    printf("%s %s: %llu worlds, %u failed; %llu requests were kept\n", bad ? "not ok" : "ok",
        fault_names[kind], (unsigned long long)seeds, bad, (unsigned long long)kept_calls);
    kept_calls = 0;
    return !bad;
}

int main(int argc, char **argv) {
    /* each must be found by the check that is for it */
    static const world_plant plants[] = {
        /* late, or never where two ranks keep each other's requests */
        {PLANT_NO_DEADLINE, F_ISOLATE, "I8: no deadline", NULL},
        {PLANT_TOLD_TWICE, F_NONE, "I8: a call ends twice", "a call ends twice"},
        {PLANT_NOT_CONFIRMED, F_NONE, "I9: not confirmed", "a reference that is not confirmed"},
        {PLANT_NO_CREDIT, F_NONE, "I11: calls without room", "(I11)"},
        {PLANT_NO_LIMIT_OF_BYTES, F_NONE, "I11: arguments without room", "(I11)"},
        {PLANT_ONE_SUM, F_NONE, "I12: shut down at once", NULL},
        {PLANT_NOT_COUNTED, F_NONE, "I12: a message that does not count", NULL},
        {PLANT_BACK_EARLY, F_NONE, "I13: given back too early", "got what was not sent"},
        {PLANT_ADDED_TWICE, F_NONE, "I14: a gradient counts twice", "a wrong gradient"},
        {PLANT_NOT_OF_THE_SEED, F_NONE, "I15: not of the seed", "another run"}};
    const worlds w = {fault_names, F_KINDS, 150, seed_run, x.wrong, kind_end, plants,
        sizeof plants / sizeof *plants, 100};
    return worlds_main(argc, argv, &w);
}
