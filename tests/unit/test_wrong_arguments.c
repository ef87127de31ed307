/* test_wrong_arguments.c - every call of a group, with every argument that is wrong for it: each
   is refused with INVALID or STATE, and costs the group nothing */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "worlds.h"

/* ---- wrong arguments ------------------------------------------------------------------------- */

/* The arguments of one call, right as they are; and which of them the call looks at. */
typedef struct arguments {
    cdp_group *g;
    void *in, *out, *all; /* `count` elements, and world_size times as many */
    uint64_t count;
    cdp_dtype dtype;
    cdp_reduce_op op;
    uint32_t root, peer;
    cdp_work *work;
    cdp_message *got;
    cdp_blob *blob;
    const uint64_t *counts;
    uint32_t n; /* of a list */
} arguments;

enum {
    GROUP = 1,
    IN = 2,
    OUT = 4,
    COUNT = 8,
    DTYPE = 16,
    REDUCE = 32,
    ROOT = 64,
    PEER = 128,
    WORK = 256,
    GOT = 512,
    BLOB = 1024,
    TO_ALL = 2048,
    FROM_ALL = 4096,
    NOT_IN_PLACE = 8192,
    LIST = 16384,
    BYTES = 32768,
    OVERLAP = 65536
};

static cdp_request request_of(const arguments *a, cdp_coll_kind kind) {
    return (cdp_request){.kind = kind,
        .in = a->in,
        .out = a->out,
        .count = a->count,
        .dtype = a->dtype,
        .op = a->op,
        .root = a->root};
}
static cdp_status wait_if(cdp_status st, const cdp_work *w) {
    return st == CDP_OK ? cdp_work_wait(*w) : st;
}

#define CALL(name, expression)                   \
    static cdp_status name(const arguments *a) { \
        return expression;                       \
    }
CALL(call_allreduce, cdp_allreduce(a->g, a->in, a->out, a->count, a->dtype, a->op))
CALL(call_allreduce_async,
    wait_if(cdp_allreduce_async(a->g, a->in, a->out, a->count, a->dtype, a->op, a->work), a->work))
CALL(call_broadcast, cdp_broadcast(a->g, a->out, a->count, a->dtype, a->root))
CALL(call_broadcast_async,
    wait_if(cdp_broadcast_async(a->g, a->out, a->count, a->dtype, a->root, a->work), a->work))
CALL(call_allgather, cdp_allgather(a->g, a->in, a->all, a->count, a->dtype))
CALL(call_allgather_async,
    wait_if(cdp_allgather_async(a->g, a->in, a->all, a->count, a->dtype, a->work), a->work))
CALL(call_reduce_to, cdp_reduce(a->g, a->in, a->out, a->count, a->dtype, a->op, a->root))
CALL(call_reduce_to_async,
    wait_if(cdp_reduce_async(a->g, a->in, a->out, a->count, a->dtype, a->op, a->root, a->work),
        a->work))
CALL(call_gather, cdp_gather(a->g, a->in, a->all, a->count, a->dtype, a->root))
CALL(call_gather_async,
    wait_if(cdp_gather_async(a->g, a->in, a->all, a->count, a->dtype, a->root, a->work), a->work))
CALL(call_scatter, cdp_scatter(a->g, a->all, a->out, a->count, a->dtype, a->root))
CALL(call_scatter_async,
    wait_if(cdp_scatter_async(a->g, a->all, a->out, a->count, a->dtype, a->root, a->work), a->work))
CALL(call_reduce_scatter, cdp_reduce_scatter(a->g, a->all, a->out, a->count, a->dtype, a->op))
CALL(call_reduce_scatter_async,
    wait_if(cdp_reduce_scatter_async(a->g, a->all, a->out, a->count, a->dtype, a->op, a->work),
        a->work))
CALL(call_alltoall, cdp_alltoall(a->g, a->all, (uint8_t *)a->out + 4096, a->count, a->dtype))
CALL(call_alltoall_async,
    wait_if(cdp_alltoall_async(a->g, a->all, (uint8_t *)a->out + 4096, a->count, a->dtype, a->work),
        a->work))
CALL(call_barrier, cdp_barrier(a->g))
CALL(call_barrier_async, wait_if(cdp_barrier_async(a->g, a->work), a->work))
CALL(call_monitored_barrier, cdp_monitored_barrier(a->g, 0))
CALL(call_sendrecv,
    cdp_sendrecv(a->g, a->in, a->count, a->peer, a->out, a->count,
        cdp_size(a->g) ? (cdp_rank(a->g) + cdp_size(a->g) - 1) % cdp_size(a->g) : 0, a->dtype, 1))
CALL(call_poll, cdp_poll(a->g, 0))
CALL(call_status, cdp_group_status(a->g))

static cdp_status call_send_recv(const arguments *a) { /* to the next, from the one before */
    const uint32_t n = cdp_size(a->g), from = n ? (cdp_rank(a->g) + n - 1) % n : 0;
    const cdp_status st = cdp_send_async(a->g, a->in, a->count, a->dtype, a->peer, 2, a->work);
    return st == CDP_OK ? cdp_recv(a->g, a->out, a->count, a->dtype, from, 2) : st;
}
static cdp_status call_recv_send(const arguments *a) {
    const uint32_t n = cdp_size(a->g), to = n ? (2 * cdp_rank(a->g) + n - a->peer) % n : 0;
    const cdp_status st = cdp_recv_async(a->g, a->out, a->count, a->dtype, a->peer, 3, a->work);
    if (st != CDP_OK) return st;
    const cdp_status sent = cdp_send(a->g, a->in, a->count, a->dtype, to, 3);
    return sent == CDP_OK ? cdp_work_wait(*a->work) : sent;
}
static cdp_status call_recv_any(const arguments *a) {
    const uint32_t n = cdp_size(a->g), to = n ? (2 * cdp_rank(a->g) + n - a->peer) % n : 0;
    const cdp_status st =
        cdp_recv_any_async(a->g, a->out, a->count, a->dtype, a->peer, 4, a->got, a->work);
    if (st != CDP_OK) return st;
    const cdp_status sent = cdp_send(a->g, a->in, a->count, a->dtype, to, 4);
    return sent == CDP_OK ? cdp_work_wait(*a->work) : sent;
}
static cdp_status call_probe(const arguments *a) {
    const cdp_status st = cdp_probe(a->g, a->peer, 99, a->got);
    return st == CDP_PENDING ? CDP_OK : st;
}
static cdp_status call_batch(const arguments *a) {
    const uint32_t n = cdp_size(a->g);
    const cdp_transfer t[2] = {
        {.data = a->in, .count = a->count, .dtype = a->dtype, .peer = a->peer, .tag = 5},
        {.receive = true,
            .data = a->out,
            .count = a->count,
            .dtype = a->dtype,
            .peer = n ? (2 * cdp_rank(a->g) + n - a->peer) % n : 0,
            .tag = 5}};
    return wait_if(cdp_batch(a->g, a->n ? t : NULL, 2, a->work), a->work);
}
static cdp_status call_start(const arguments *a) {
    const cdp_request rq = request_of(a, CDP_COLL_ALLREDUCE);
    return wait_if(cdp_start(a->g, a->n ? &rq : NULL, a->work), a->work);
}
static cdp_status call_start_after(const arguments *a) {
    const cdp_request rq = request_of(a, CDP_COLL_REDUCE);
    return wait_if(cdp_start_after(a->g, a->n ? &rq : NULL, (cdp_work){NULL, 0}, a->work), a->work);
}
static cdp_status call_start_all(const arguments *a) {
    const cdp_request rq[2] = {{.kind = CDP_COLL_BARRIER}, request_of(a, CDP_COLL_ALLREDUCE)};
    return wait_if(cdp_start_all(a->g, rq, a->n, a->work), a->work);
}
static cdp_status call_uneven(const arguments *a) {
    const cdp_request rq = {.kind = CDP_COLL_ALLGATHER,
        .in = a->in,
        .out = a->all,
        .dtype = a->dtype,
        .out_counts = a->counts};
    return wait_if(cdp_start(a->g, &rq, a->work), a->work);
}
static cdp_status blob_ended(const arguments *a, cdp_status st) {
    if (st == CDP_OK && a->blob) cdp_blob_free(a->g, a->blob);
    return st;
}
CALL(call_allgather_bytes, blob_ended(a, cdp_allgather_bytes(a->g, a->in, a->count, a->blob)))
CALL(call_gather_bytes, blob_ended(a, cdp_gather_bytes(a->g, a->in, a->count, a->root, a->blob)))
CALL(call_broadcast_bytes,
    blob_ended(a, cdp_broadcast_bytes(a->g, a->in, a->count, a->root, a->blob)))
CALL(call_scatter_bytes, blob_ended(a, cdp_scatter_bytes(a->g, a->in, a->counts, a->root, a->blob)))
static cdp_status call_group_new(const arguments *a) {
    const uint32_t ranks[3] = {0, 1, a->root == 1 ? 2 : a->root};
    cdp_group *made;
    const cdp_status st = cdp_group_new(a->g, a->n ? ranks : NULL, 3, &made);
    if (st == CDP_OK) cdp_group_destroy(made);
    return st;
}
static cdp_status call_group_split(const arguments *a) {
    cdp_group *made;
    const cdp_status st = cdp_group_split(a->g, 1, 0, a->n ? &made : NULL);
    if (st == CDP_OK) cdp_group_destroy(made);
    return st;
}

static const struct {
    const char *name;
    cdp_status (*call)(const arguments *a);
    uint32_t looks_at;
} calls[] = {
    {"allreduce", call_allreduce, GROUP | IN | OUT | COUNT | DTYPE | REDUCE | OVERLAP},
    {"allreduce_async", call_allreduce_async,
        GROUP | IN | OUT | COUNT | DTYPE | REDUCE | WORK | OVERLAP},
    {"broadcast", call_broadcast, GROUP | OUT | COUNT | DTYPE | ROOT},
    {"broadcast_async", call_broadcast_async, GROUP | OUT | COUNT | DTYPE | ROOT | WORK},
    {"allgather", call_allgather, GROUP | IN | TO_ALL | COUNT | DTYPE | OVERLAP},
    {"allgather_async", call_allgather_async, GROUP | IN | TO_ALL | COUNT | DTYPE | WORK | OVERLAP},
    {"reduce_to", call_reduce_to, GROUP | IN | OUT | COUNT | DTYPE | REDUCE | ROOT | OVERLAP},
    {"reduce_to_async", call_reduce_to_async,
        GROUP | IN | OUT | COUNT | DTYPE | REDUCE | ROOT | WORK | OVERLAP},
    {"gather", call_gather, GROUP | IN | TO_ALL | COUNT | DTYPE | ROOT | OVERLAP},
    {"gather_async", call_gather_async,
        GROUP | IN | TO_ALL | COUNT | DTYPE | ROOT | WORK | OVERLAP},
    {"scatter", call_scatter, GROUP | FROM_ALL | OUT | COUNT | DTYPE | ROOT | OVERLAP},
    {"scatter_async", call_scatter_async,
        GROUP | FROM_ALL | OUT | COUNT | DTYPE | ROOT | WORK | OVERLAP},
    {"reduce_scatter", call_reduce_scatter,
        GROUP | FROM_ALL | OUT | COUNT | DTYPE | REDUCE | OVERLAP},
    {"reduce_scatter_async", call_reduce_scatter_async,
        GROUP | FROM_ALL | OUT | COUNT | DTYPE | REDUCE | WORK | OVERLAP},
    {"alltoall", call_alltoall, GROUP | FROM_ALL | COUNT | DTYPE | NOT_IN_PLACE},
    {"alltoall_async", call_alltoall_async, GROUP | FROM_ALL | COUNT | DTYPE | WORK | NOT_IN_PLACE},
    {"barrier", call_barrier, GROUP},
    {"barrier_async", call_barrier_async, GROUP | WORK},
    {"monitored_barrier", call_monitored_barrier, GROUP},
    {"sendrecv", call_sendrecv, GROUP | IN | OUT | COUNT | DTYPE | PEER | OVERLAP | NOT_IN_PLACE},
    {"send", call_send_recv, GROUP | IN | COUNT | DTYPE | PEER | WORK | NOT_IN_PLACE},
    {"recv", call_recv_send, GROUP | OUT | COUNT | DTYPE | PEER | WORK},
    {"recv_any", call_recv_any, GROUP | OUT | COUNT | DTYPE | PEER | WORK | GOT},
    {"probe", call_probe, GROUP | PEER | GOT},
    {"batch", call_batch, GROUP | IN | OUT | COUNT | DTYPE | PEER | WORK | LIST | NOT_IN_PLACE},
    {"start", call_start, GROUP | IN | OUT | COUNT | DTYPE | REDUCE | WORK | LIST | OVERLAP},
    {"start_after", call_start_after,
        GROUP | IN | OUT | COUNT | DTYPE | REDUCE | ROOT | WORK | LIST | OVERLAP},
    {"start_all", call_start_all,
        GROUP | IN | OUT | COUNT | DTYPE | REDUCE | WORK | LIST | OVERLAP},
    {"uneven", call_uneven, GROUP | IN | TO_ALL | DTYPE | WORK},
    {"allgather_bytes", call_allgather_bytes, GROUP | BYTES | BLOB},
    {"gather_bytes", call_gather_bytes, GROUP | BYTES | BLOB | ROOT},
    {"broadcast_bytes", call_broadcast_bytes, GROUP | BYTES | ROOT},
    {"scatter_bytes", call_scatter_bytes, GROUP | BYTES | BLOB | ROOT},
    {"group_new", call_group_new, GROUP | ROOT | LIST},
    {"group_split", call_group_split, GROUP | LIST},
    {"poll", call_poll, GROUP},
    {"status", call_status, GROUP},
};

static cdp_group *a_destroyed_group;

/* Wrong number k of a call; false: there are no more. *applies: whether this call looks at it. */
static bool make_wrong(
    uint32_t k, uint32_t looks_at, arguments *a, bool *applies, cdp_status *want) {
    static const uint64_t much[3] = {1ull << 62, 1ull << 63, 1ull << 63};
    uint32_t at = 0;
    *want = CDP_ERR_INVALID;
    switch (k) {
    case 0:
        at = GROUP;
        a->g = NULL;
        break;
    case 1:
        at = GROUP;
        a->g = a_destroyed_group;
        *want = CDP_ERR_STATE;
        break;
    case 2:
        at = OUT;
        a->out = NULL;
        break;
    case 3:
        at = OUT;
        a->out = (uint8_t *)a->out + 1;
        break;
    case 4:
        at = IN;
        a->in = (uint8_t *)a->in + 1;
        break;
    case 5:
        at = OVERLAP;
        a->in = (uint8_t *)a->out + 4;
        if (looks_at & TO_ALL)
            a->all = (uint8_t *)a->in - 4;
        else if (looks_at & FROM_ALL)
            a->all = (uint8_t *)a->out + 4;
        break;
    case 6:
        at = COUNT;
        a->count = 1ull << 62;
        break;
    case 7:
        at = DTYPE;
        a->dtype = (cdp_dtype)CDP_DTYPE_COUNT;
        break;
    case 8:
        at = DTYPE;
        a->dtype = (cdp_dtype)-1;
        break;
    case 9:
        at = REDUCE;
        a->op = (cdp_reduce_op)CDP_REDUCE_COUNT;
        break;
    case 10:
        at = REDUCE;
        a->op = CDP_REDUCE_BOR;
        *want = CDP_ERR_UNSUPPORTED;
        break;
    case 11:
        at = REDUCE;
        a->dtype = CDP_DTYPE_I32;
        a->op = CDP_REDUCE_PREMUL_SUM;
        *want = CDP_ERR_UNSUPPORTED;
        break;
    case 12:
        at = REDUCE;
        a->dtype = CDP_DTYPE_BOOL;
        a->op = CDP_REDUCE_AVG;
        *want = CDP_ERR_UNSUPPORTED;
        break;
    case 13:
        at = ROOT;
        a->root = 3;
        break;
    case 14:
        at = ROOT;
        a->root = CDP_ANY_RANK;
        break;
    case 15:
        at = PEER;
        a->peer = 3;
        break;
    case 16:
        at = PEER;
        a->peer = cdp_rank(a->g);
        break;
    case 17:
        at = WORK;
        a->work = NULL;
        break;
    case 18:
        at = GOT;
        a->got = NULL;
        break;
    case 19:
        at = BLOB;
        a->blob = NULL;
        break;
    case 20:
        at = TO_ALL;
        a->all = NULL;
        break;
    case 21:
        at = TO_ALL;
        a->all = (uint8_t *)a->all + 2;
        break;
    case 22:
        at = FROM_ALL;
        a->all = (uint8_t *)a->all + 2;
        break;
    case 23:
        at = NOT_IN_PLACE;
        a->in = a->all = NULL;
        break;
    case 24:
        at = LIST;
        a->n = 0;
        break;
    case 25:
        at = BYTES;
        a->in = NULL;
        break;
    case 26:
        at = TO_ALL | FROM_ALL;
        a->count = UINT64_MAX / 3;
        a->counts = much;
        break;
    default: return false;
    }
    *applies = (looks_at & at) != 0;
    return true;
}

/* Every call with everything wrong that it looks at, on one rank after the other: an error at
   the call, in words, and then the right call works on all ranks. */
static void wrong(uint32_t rank, cdp_group *w) {
    static _Alignas(64) uint8_t in[3][4096], out[3][16384], all[3][4096];
    static uint64_t counts[3] = {4, 4, 4};
    uint32_t tried = 0;
    if (rank == 0) {
        const cdp_group_desc d = {.world_size = 1};
        if (!OK(cdp_group_create(&d, &a_destroyed_group))) return;
        /* what a destroyed one looks like, in memory that is still there */
        a_destroyed_group->magic = 0;
        come();
    }
    OK(cdp_barrier(w));
    await(1); /* ThreadSanitizer does not know what a barrier over sockets orders */
    for (uint32_t c = 0; c < sizeof calls / sizeof *calls && !test__now.failed_checks; ++c) {
        cdp_work work;
        cdp_message got;
        cdp_blob blob;
        arguments right, a;
        bool applies;
        cdp_status want;
        memset(&right, 0, sizeof right);
        right.g = w;
        right.in = in[rank];
        right.out = out[rank];
        right.all = all[rank];
        right.count = 4;
        right.dtype = CDP_DTYPE_F32;
        right.work = &work;
        right.got = &got;
        right.blob = &blob;
        right.counts = counts;
        right.n = 2;
        right.peer = (rank + 1) % 3;
        for (uint32_t k = 0; rank == c % 3; ++k) {
            a = right;
            a.root = rank; /* what a root alone looks at is looked at here */
            memset(&blob, 0, sizeof blob);
            if (!make_wrong(k, calls[c].looks_at, &a, &applies, &want)) break;
            if (!applies) continue;
            (void)cdp_error_set(CDP_OK, -1, 0, "%s", "");
            const cdp_status st = calls[c].call(&a);
            ++tried;
            test_check(
                st == want && strlen(cdp_last_error()->text) > 10 && cdp_last_error()->status == st,
                __FILE__, __LINE__, "%s with wrong argument %u: %s, not %s: \"%s\"", calls[c].name,
                k, cdp_status_name(st), cdp_status_name(want), cdp_last_error()->text);
        }
        right.root = 1;
        memset(&blob, 0, sizeof blob);
        const cdp_status st = calls[c].call(&right);
        test_check(st == CDP_OK, __FILE__, __LINE__, "%s on rank %u after wrong calls: %s: %s",
            calls[c].name, rank, cdp_status_name(st), cdp_last_error()->text);
    }
    test_check(tried > 50 || test__now.failed_checks, __FILE__, __LINE__,
        "only %u wrong calls were tried", tried);
    OK(cdp_barrier(w));
    come();
    if (rank == 0) {
        await(4);
        a_destroyed_group->magic = CDP__GROUP_MAGIC;
        cdp_group_destroy(a_destroyed_group);
    }
}

TEST(wrong_arguments_cost_nothing) {
    run(3, 20000, wrong);
}

/* ---- many tags ---- */

/* Rank 1 waits for an operation and for a message. While it listens for the message, the operation
   of rank 0 arrives, which it had listened for before: it must look again before it sleeps. */

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"wrong_arguments_cost_nothing", wrong_arguments_cost_nothing, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
