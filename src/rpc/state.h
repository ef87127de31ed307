/* rpc/state.h - what an rpc holds

   Knows: the lock of an rpc, its pools. Promises: callbacks of the program run without the lock;
   used records are reused. */
#ifndef CDP_SRC_RPC_STATE_H
#define CDP_SRC_RPC_STATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../channel/channel_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "../base/hash.h"
#include "../message/stream.h"
#include "../group/state.h"
#include "../channel/channel.h"
#include "worker_api.h"
#include "calls_api.h"
#include "handler_api.h"
#include "gradients_api.h"
#include "alive.h"
#include "table.h"
#include "waves.h"
#include "levels.h"
#include "roll.h"
#include "packets.h"

typedef struct cdp__rpc_task {
    struct cdp__rpc_task *next;
    void (*run)(cdp_rpc *rpc, struct cdp__rpc_task *task); /* without the lock */
} cdp__rpc_task;

/* A message to be sent: `bytes` bytes follow it in memory. */
typedef struct cdp__rpc_out {
    struct cdp__rpc_out *next;
    cdp__rpc_packet p;
    uint32_t to;
    uint32_t waits; /* references in it that are not confirmed */
    uint32_t on;    /* slot of a reference that must be confirmed first, or 0 */
    uint32_t children;
    uint64_t child[CDP__RPC_RREFS];
    uint64_t handle;     /* of its offer, once offered */
    bool broken;         /* a reference in it broke: it must not be sent */
    bool in_order;       /* waits for earlier calls of its order */
    const void *lent;    /* the body in memory of the program; NULL: it follows this record */
    cdp__rpc_task *back; /* runs when the program owns its body again */
} cdp__rpc_out;

typedef struct cdp__rpc_call {
    cdp__rpc_task task; /* runs `done` */
    uint32_t index, uses, next_free;
    uint32_t to, function;
    uint64_t start_ns, deadline_ns;
    uint64_t bytes;  /* of its arguments */
    uint64_t record; /* its number among records */
    cdp_call *call;  /* NULL: nobody waits for it any more */
    cdp_call *done_call;
    void (*done)(void *user, cdp_call *call);
    void *done_user;
    uint32_t on;         /* slot of the reference that it runs on, while in flight */
    uint64_t remote_fid; /* fid of the reference that it creates, or 0 */
    uint64_t order;      /* its number among calls in order; 0: none */
    uint64_t order_on;   /* value that defines the order; 0: the function does */
    cdp_ctx *ctx;        /* used until the record is closed */
    bool used, left, wire_over, one_way;
    bool result_comes; /* a long one was offered */
    bool cut;          /* it has less time than it asked for, see cdp__rpc_cut() */
    bool nested;       /* a function started it */
    bool no_room;      /* it waits for room, see cdp__flight_fits() */
    cdp__rpc_why held; /* what it waited for when its rank reported that last */
    uint64_t held_limit;
    int32_t level;
} cdp__rpc_call;

typedef struct cdp__rpc_value cdp__rpc_value;

typedef enum cdp__rpc_stage {
    CDP__RPC_NEW,
    CDP__RPC_CONFIRMING, /* waits for references among its arguments, or for its turn */
    CDP__RPC_PARKED,     /* waits for the value that it is to run on */
    CDP__RPC_QUEUED,     /* waits for a thread */
    CDP__RPC_RUNNING,
    CDP__RPC_KEPT, /* its function has returned without a reply */
    CDP__RPC_REPLIED
} cdp__rpc_stage;

/* State of one registered function. */
typedef struct cdp__rpc_use {
    uint32_t running;
    bool known; /* it has run, so `waits` is known */
    bool waits; /* it has waited for something of this rpc */
} cdp__rpc_use;

typedef struct cdp__rpc_rq {
    struct cdp_rpc_request pub; /* the first member: the program has a pointer to it */
    struct cdp__rpc_rq *next;
    struct cdp__rpc_rq *after, *before; /* in the list of all */
    const cdp_rpc_function *f;
    cdp__rpc_use *use; /* of f */
    cdp__rpc_stage stage;
    uint64_t call;
    uint32_t flags;
    uint32_t on;    /* slot of the value that it runs on: pinned */
    uint32_t makes; /* slot of the value that it makes: pinned */
    cdp_value on_value;
    uint8_t *buffer;     /* arguments that do not fit `room` */
    cdp_tensor *tensors; /* among its arguments */
    uint64_t area_bytes; /* of arguments, tensors included */
    uint64_t ctx_number; /* number of the context, until that is found */
    uint64_t turn;       /* its place in the queue, see cdp__rpc_enqueue() */
    uint32_t node;       /* node whose backward function runs, or 0 */
    uint32_t made_node;  /* node of this call in its context, or 0 */
    uint64_t room[32];
    cdp_rref refs[CDP__RPC_RREFS];
    uint64_t counted;   /* of in_bytes */
    uint64_t record;    /* its number among records */
    uint64_t report_ns; /* when its caller is told what it waits for, or 0 */
    uint64_t passed_ns; /* since when waits that have too little time pass it over, or 0 */
    int32_t level;
    bool nested; /* a function started it */
    bool cancelled, in_function;
} cdp__rpc_rq;

struct cdp__rpc_value {
    cdp__rpc_task task; /* destroys it */
    cdp_value value;
    bool settled;      /* the value exists, or creating it has failed */
    cdp_status failed; /* OK: the value exists */
    int32_t code;
    char *why;
    cdp__rpc_rq *parked, **parked_end;
    uint8_t *area; /* the library's copy of the contents, or NULL */
    /* what value.plain points to; a handle each of the references */
    cdp_iov *iov;
    cdp_tensor *tensors;
    cdp_rref *rrefs;
};

/* A long body that is being fetched, or that waits for memory. */
typedef struct cdp__rpc_in {
    struct cdp__rpc_in *next;
    cdp_channel_message m;
    uint8_t *body; /* NULL: not asked for yet */
    uint64_t arrived_ns;
    uint64_t report_ns; /* when its caller is told that it waits for memory, or 0 */
    bool cancelled;
} cdp__rpc_in;

typedef struct cdp__rpc_peer {
    cdp__rpc_task task; /* tells the program that the peer is lost */
    char name[CDP__RPC_NAME];
    uint32_t limit;            /* calls under way to it: so many, and so many from functions */
    cdp__rpc_flight flight[2]; /* to it; [1]: of calls that functions have started */
    uint32_t requests[2];      /* of it, here */
    uint64_t turn;             /* of its last request in the queue */
    uint32_t arriving;         /* long bodies of it, in `in` */
    uint32_t marks;            /* how many gradients it may still send */
    bool dropped;              /* it was given up */
    cdp_error why;
    uint64_t sent, received;          /* messages to it and from it, for the sums of shutdown */
    cdp__rpc_out *queue, **queue_end; /* messages that the channel had no room for */
    cdp__rpc_out *list;               /* a queued list that has room, or NULL */
    cdp__rpc_out *offered;            /* bodies that it has not fetched yet */
} cdp__rpc_peer;

/* Further data of each slot of the table. */
typedef struct cdp__rpc_extra {
    cdp__rpc_value *value; /* owner */
    char *label;           /* owner and user */
    cdp__rpc_out *out;     /* hold that waits */
    cdp_status broken;     /* user */
} cdp__rpc_extra;

typedef enum cdp__rpc_phase {
    CDP__RPC_OPEN,
    CDP__RPC_REFUSING,
    CDP__RPC_SHUT
} cdp__rpc_phase;

/* The name of a function that was called from this rank. */
#define CDP__RPC_CALLED 64u
typedef struct cdp__rpc_called {
    uint32_t id;
    char *name;
} cdp__rpc_called;

#define CDP__RPC_BUILTINS 3u
#define CDP__RPC_RECORDS 256u

/* Memory for long messages, kept for reuse, because fresh memory of the system costs as much as
   a copy. */
#define CDP__RPC_AREAS 16u
typedef struct cdp__rpc_area {
    void *at; /* NULL: none */
    uint64_t room;
    bool used;
} cdp__rpc_area;

struct cdp_rpc {
    cdp_rpc_desc desc;
    const cdp_os *os;
    uint32_t forks; /* see cdp__is_child() */
    cdp_lock lock;
    cdp_group *group; /* moves bodies; has no operations, so none can break it */
    cdp_group *sums;  /* exchanges names, and adds up counts in shutdown */
    cdp_channel *channel;
    uint32_t rank, ranks, share;
    cdp__rpc_phase phase;
    bool shutting;  /* cdp_rpc_shutdown() was called */
    bool leaving;   /* closing ranks no longer count as lost */
    cdp__roll roll; /* with desc.survivors; else its lists are NULL */
    uint8_t *word;  /* room for one of the roll */
    cdp__rpc_peer *peers;
    bool *lost;                  /* by rank */
    cdp_rpc_function *functions; /* what desc.functions points to */
    cdp__rpc_use *uses;          /* by function */

    cdp__rpc_called called[CDP__RPC_CALLED]; /* by id */
    cdp__rpc_call **calls;                   /* by index; 0 is not used */
    uint32_t call_room, call_count, call_free, calls_used;
    cdp__rpc_rq *all, *free_rqs;
    uint32_t rqs;                            /* in `all` */
    cdp__rpc_rq *queue, **queue_end;         /* for threads, ordered by turns */
    uint64_t turn, last_turn;                /* that was served last; the largest one so far */
    cdp__rpc_rq *inline_queue, **inline_end; /* requests of this rank to itself, run by callbacks */
    cdp__rpc_rq *confirming;
    cdp__rpc_rq *unparked, **unparked_end; /* their value is settled; while one is looked at */
    cdp__rpc_out *waiting;                 /* messages whose references are not confirmed */
    cdp__rpc_in *in, **in_end;
    uint64_t in_bytes;   /* bodies of `in` and of requests */
    uint64_t grad_bytes; /* gradients of `in` */

    cdp__refs refs;
    cdp__rpc_extra *extra;
    uint64_t ids;    /* numbers created so far */
    uint64_t orders; /* calls in order so far */
    bool confirmed;  /* a reference was confirmed or broke */

    cdp_ctx *contexts;
    uint32_t context_count;
    struct cdp__rpc_wave *waves, **waves_end; /* steps of backward passes on this rank */
    cdp_rpc_function builtins[CDP__RPC_BUILTINS];
    cdp__rpc_use builtin_uses[CDP__RPC_BUILTINS];
    cdp_rpc_function backward; /* stands for the functions of nodes */
    cdp__rpc_use backward_use;

    cdp__rpc_task *tasks, **tasks_end;
    uint64_t timer_ns;
    uint64_t now_ns;                                       /* see cdp__rpc_time() */
    uint64_t refused, late, one_ways, bytes_out, bytes_in; /* since it was created */
    cdp_rpc_record *records; /* of the last CDP__RPC_RECORDS calls, by their numbers */
    uint64_t record_count;
    uint64_t moved_ns; /* when the last call came or ended, see rpc/shutdown.h */
    uint32_t waiters;  /* threads in waits */
    bool changed;      /* waits should look again */

    void *cond; /* where workers sleep; NULL: there are none */
    void **threads;
    uint32_t thread_count, idle;
    bool stop;
    uint32_t kept;       /* requests that outlive cdp_rpc_destroy() */
    uint64_t inline_max; /* CDP__RPC_INLINE_MAX, or what cdp_channel_send() takes if that is less */
    uint8_t *scratch;    /* CDP__RPC_INLINE_MAX bytes, in which short messages are put together */
    cdp__rpc_area areas[CDP__RPC_AREAS];
    uint64_t areas_kept; /* bytes of unused areas */
    /* runs when the body of the message being posted may be freed; NULL: that is copied */
    cdp__rpc_task *lends;
};

/* A gradient that one input of one node sent. */
typedef struct cdp__ctx_sum {
    struct cdp__ctx_sum *next;
    uint32_t rank, node, edge; /* contributions are added in this order */
    cdp_tensor t;              /* its contents follow in memory */
    uint32_t *rows;            /* rows of the contribution, stored after the contents; NULL: all */
} cdp__ctx_sum;

/* Further data of each node. */
typedef struct cdp__ctx_node {
    cdp_status (*backward)(void *user, cdp_backward *b); /* NULL: a leaf, or an import */
    void *user, *saved;
    void (*release)(void *saved);
    uint32_t value; /* the only output of a leaf or an import */
    uint32_t in_count, out_count;
    uint32_t *outputs; /* values; then, for each edge, the index of its input */
    uint32_t *input_of;
} cdp__ctx_node;

/* Further data of each value. */
typedef struct cdp__ctx_value {
    cdp__ctx_sum *sums; /* contributions in this pass */
    cdp__ctx_sum *grad; /* leaf: sum over all passes */
    uint64_t other;     /* import: the value on its home rank; parameter: its rid */
    uint32_t next;      /* in its chain */
} cdp__ctx_value;

/* What a context waits for from each rank. */
enum {
    CDP__CTX_STRANGER,
    CDP__CTX_WITH,   /* it takes part */
    CDP__CTX_ENDING, /* it was told that the context ends */
    CDP__CTX_LOST
};

struct cdp_ctx {
    cdp__rpc_task task; /* frees it */
    cdp_rpc *rpc;
    cdp_ctx *next;
    uint64_t id;
    uint32_t uses;    /* requests, calls, steps of passes and waits that use it */
    uint32_t answers; /* answers that its end waits for */
    bool ended, failed;
    bool mine; /* cdp_ctx_backward() runs on this rank */
    bool over; /* its pass has ended */
    cdp_error why;
    uint8_t *with; /* by rank */
    cdp__waves w;
    cdp__ctx_node *nodes;
    cdp__ctx_value *values;
    uint32_t node_room, edge_room, value_room, receiver_room, chains[64];
    const cdp_tensor *roots;             /* while it is mine */
    const cdp_tensor *sending;           /* gradients of the inputs of the sending node */
    const uint32_t *const *sending_rows; /* rows of each gradient; NULL: all rows of all */
    cdp__rpc_rq *fires, **fires_end;     /* for the thread in cdp_ctx_backward() */
};

/* A step of a pass on this rank. */
typedef struct cdp__rpc_wave {
    struct cdp__rpc_wave *next;
    cdp_ctx *ctx;
    cdp__wave_act act;
    cdp__ctx_sum *sum;
} cdp__rpc_wave;

/* This thread's state for an rpc. */
typedef struct cdp__rpc_here {
    cdp__rpc_rq *request; /* the request whose function runs */
    uint32_t depth;
    int32_t level;     /* of the function that runs, plus 1; 0: none does */
    uint32_t no_wait;  /* inside an INLINE function or a task */
    uint64_t until_ns; /* the deadline of the waits that run it; 0: none */
    cdp_call *done;    /* whose `done` runs; NULL: none, or it has freed its call */
} cdp__rpc_here;

CDP__PRIVATE cdp__rpc_here *cdp__rpc_here_of(void) {
    static CDP__THREAD_LOCAL cdp__rpc_here here;
    return &here;
}

/* The level of the function that this thread runs, or CDP__RPC_OUTSIDE. */
CDP__PRIVATE int32_t cdp__rpc_inside(void) {
    return cdp__rpc_here_of()->level - 1;
}

/* A function that runs inside a wait delays the end of that wait. So its own waits end at most
   this much after the outer one: a function that begins late still has time for a short call. */
#define CDP__RPC_GRACE_NS 50000000u

CDP__PRIVATE void cdp__rpc_lock(cdp_rpc *rpc) {
    cdp_lock_acquire(&rpc->lock);
    rpc->now_ns = 0;
}

/* The time of os->now_ns, read once each time the lock is taken: a call needs it in many places,
   and reading it takes as long as many other steps of a short call. */
CDP__PRIVATE uint64_t cdp__rpc_time(cdp_rpc *rpc) {
    if (!rpc->now_ns) rpc->now_ns = cdp__now(rpc->os);
    return rpc->now_ns;
}

/* So many bytes were copied, which may have taken long. */
CDP__PRIVATE void cdp__rpc_copied(cdp_rpc *rpc, uint64_t bytes) {
    if (bytes > CDP__RPC_INLINE_MAX) rpc->now_ns = 0;
}

/* This process is a child of the one that made the rpc: its locks may be held by threads that are
   not here, its links are the parent's. */
CDP__PRIVATE bool cdp__rpc_forked(const cdp_rpc *rpc, const char *call) {
    if (!cdp__is_child(rpc->forks)) return false;
    (void)cdp__child_refuses(CDP_ERR_INVALID, call, "rpc");
    return true;
}

/* The first check of public functions: the rpc was destroyed, or is a parent's. */
CDP__PRIVATE bool cdp__rpc_gone(const cdp_rpc *rpc, const char *call) {
    if (cdp__rpc_exists(rpc)) return cdp__rpc_forked(rpc, call);
    (void)cdp__fail(CDP_ERR_INVALID, "%s: this rpc was destroyed", call);
    return true;
}

CDP__PRIVATE void cdp__rpc_add_task(cdp_rpc *rpc, cdp__rpc_task *task) {
    task->next = NULL;
    *rpc->tasks_end = task;
    rpc->tasks_end = &task->next;
}

CDP__PRIVATE uint64_t cdp__rpc_number(cdp_rpc *rpc) {
    return (uint64_t)rpc->rank << 48 | ++rpc->ids;
}

CDP__PRIVATE void cdp__rpc_timer(cdp_rpc *rpc, uint64_t at_ns) {
    if (at_ns >= rpc->timer_ns || !rpc->channel) return;
    rpc->timer_ns = at_ns;
    cdp_channel_timer(rpc->channel, at_ns);
}

CDP__PRIVATE uint32_t cdp__rpc_id_of(const char *name) {
    const uint64_t h = cdp__hash(CDP__HASH_START, name ? name : "", name ? strlen(name) : 0);
    const uint32_t id = (uint32_t)(h ^ h >> 32);
    return id ? id : 1;
}

/* The last names that this thread has given to cdp_rpc_id(), by their ids: what a text says of a
   function that is not registered on this rank. */
#define CDP__RPC_WRITTEN 8u
typedef struct cdp__rpc_written {
    uint32_t id;
    char name[CDP__RPC_NAME];
} cdp__rpc_written;

CDP__PRIVATE cdp__rpc_written *cdp__rpc_written_of(uint32_t id) {
    static CDP__THREAD_LOCAL cdp__rpc_written written[CDP__RPC_WRITTEN];
    return &written[id % CDP__RPC_WRITTEN];
}

CDP_API uint32_t cdp_rpc_id(const char *name) {
    const uint32_t id = cdp__rpc_id_of(name);
    cdp__rpc_written *w = cdp__rpc_written_of(id);
    if (w->id != id) cdp__format(w->name, sizeof w->name, "%s", name ? name : "");
    w->id = id;
    return id;
}

/* A copy in memory of the rpc. NULL: of NULL, or out of memory. */
CDP__PRIVATE char *cdp__rpc_text_copy(cdp_rpc *rpc, const char *text) {
    const uint64_t bytes = text ? strlen(text) + 1 : 0;
    char *copy = text ? (char *)cdp__alloc(rpc->os, bytes) : NULL;
    if (copy) memcpy(copy, text, (size_t)bytes);
    return copy;
}

/* A call of this function starts in this thread, which has written its name most likely. */
CDP__PRIVATE void cdp__rpc_remember_name(cdp_rpc *rpc, uint32_t id) {
    cdp__rpc_called *known = &rpc->called[id % CDP__RPC_CALLED];
    const cdp__rpc_written *w = cdp__rpc_written_of(id);
    char *name;
    if (known->id == id || w->id != id) return;
    name = cdp__rpc_text_copy(rpc, w->name);
    if (!name) return; /* texts then say its number */
    cdp__free(rpc->os, known->name);
    known->name = name;
    known->id = id;
}

/* The name of a function for texts: as registered on this rank, else as the program has written it
   in a call, else its number. */
CDP__PRIVATE const char *cdp__rpc_function_name(const cdp_rpc *rpc, uint32_t id, char text[16]) {
    const cdp__rpc_called *known = &rpc->called[id % CDP__RPC_CALLED];
    uint32_t i;
    for (i = 0; i < rpc->desc.function_count; ++i)
        if (cdp__rpc_id_of(rpc->desc.functions[i].name) == id) return rpc->desc.functions[i].name;
    if (known->name && known->id == id) return known->name;
    cdp__format(text, 16, "0x%x", id);
    return text;
}

#endif /* CDP_SRC_RPC_STATE_H */
