/* group/state.h - the data of a group

   Knows: executors, streams, works. Promises: types, and small functions about groups that many
   later sections need. */
#ifndef CDP_SRC_GROUP_STATE_H
#define CDP_SRC_GROUP_STATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../os/child.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "messages_api.h"
#include "../channel/channel_api.h"
#include "backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../collective/kinds.h"
#include "../base/hash.h"
#include "../base/ended.h"
#include "../collective/rounds.h"
#include "../collective/select.h"
#include "../message/header.h"
#include "../failure/records.h"
#include "../failure/chains.h"
#include "../message/deferred.h"
#include "../message/stream.h"
#include "../message/transfer.h"
#include "../collective/executor.h"

/* The record of an operation: for cdp_group_records(), and for comparing calls later. */
typedef struct cdp__past {
    cdp__head call;
    uint64_t start_ns, end_ns;
    uint32_t round, rounds;
    int32_t from, to; /* of a message: ranks in the world; else -1 */
} cdp__past;

/* What a group records of each of its ranks. */
typedef struct cdp__peer {
    bool used;       /* the group has used the link to it, so it is told of a failure */
    bool report_due; /* a FAILURE has to be sent to it */
    /* its link has ended: receives from any rank no longer wait for this one */
    bool lost;
    /* it has sent its own FAILURE, or its link has ended: this rank does not wait for it */
    bool answered;
} cdp__peer;

/* An operation in the queue. */
typedef struct cdp__op {
    /* with defaults; in_counts and out_counts only say whether the caller gave any */
    cdp_request rq;
    /* where uneven parts begin, 2 * (world_size + 1) entries; reused by later operations that take
       this place in the queue */
    uint64_t *offs;
    uint64_t parts;
    uint64_t seq;
    uint64_t deadline_ns, start_ns;
    cdp_work after; /* the work that must be done before it begins */
    /* called with the lock held, by the thread that made the progress */
    void (*done)(void *user, uint64_t start_ns, uint64_t end_ns);
    void *user;
    uint32_t tag; /* what it copies, with the number of a ddp; or 0 */
    bool device;  /* a backend runs it: the ranks only compare the call, in a barrier */
} cdp__op;

/* A send or a receive of one message. Entries of the pool are reused; `use` says which work an
   entry currently belongs to. */
typedef struct cdp__post {
    struct cdp__post *next; /* in the queue of its flow, or in the list of free posts */
    cdp__head call;
    cdp__transfer x;
    uint64_t start_ns, deadline_ns;
    uint32_t timeout_ms;
    uint32_t index;
    uint64_t use;
    uint64_t cancelled; /* bit i: use number `use - 1 - i` was cancelled */
    cdp_message *got;   /* receives of up to call.count elements store the true count here */
    void (*done)(void *user, uint64_t start_ns, uint64_t end_ns);
    void *user;
    uint64_t reported_moved; /* bytes that had moved when its wait was last reported, plus 1 */
    bool begun, taken;
    bool rendezvous; /* a send that may wait for its receiver, however short it is */
} cdp__post;

/* The messages with one tag between this rank and one other. */
typedef struct cdp__flow {
    cdp__stream s; /* must be first: a message channel's stream is cast to its flow */
    cdp_group *g;
    /* the channel whose offered bodies it moves; NULL: messages of the group */
    struct cdp_channel *owner;
    /* set with `owner`: called if a transfer fails, which then breaks no group */
    void (*failed)(struct cdp__flow *flow, const cdp_error *why);
    struct cdp__flow *next;        /* in g->messages.flows */
    struct cdp__flow *next_active; /* in g->messages.active */
    bool active;
    uint32_t tag, rank;
    /* [0]: sends, [1]: receives */
    cdp__post *first[2], *last[2];
    uint64_t count[2]; /* messages, without cancelled ones */
} cdp__flow;

/* The number of a work encodes its kind: a deferred work (47 bits of use, 16 of index), a work
   of the backend (the other bits are the backend's number), a message (41 bits of use, 20 of
   index), or without any of these bits an operation of the queue. */
#define CDP__DEFERRED_BIT (1ull << 63)
#define CDP__DEVICE_BIT (1ull << 62)
#define CDP__POST_BIT (1ull << 61)
#define CDP__WORK_BITS (CDP__DEFERRED_BIT | CDP__DEVICE_BIT | CDP__POST_BIT)
#define CDP__POST_INDEX 20u
/* Whether any call of this build sends messages. */
#ifdef CDP_NO_MESSAGES
#define CDP__POSTS false
#else
#define CDP__POSTS true
#endif

typedef enum cdp__health {
    CDP__HEALTHY,
    CDP__SETTLING, /* a failure was seen here; peers may still report an earlier cause */
    CDP__FAILED    /* `error` is final and is being passed on */
} cdp__health;

#define CDP__GROUP_MAGIC 0x70726763u
#define CDP__LEAVING_MAGIC \
    0x6c726763u /* cdp_group_leave() is under way, and its streams are closed */

/* The parts of a group. The comment of each names the files that write it; group/create.h sets all
   of them first, and other files only read them. */

/* group/queue.h and group/running.h: operations, in order of issue; the first one runs. Calls that
   wait count themselves in `waiters`. */
typedef struct cdp__group_queue {
    cdp__op *ops;
    uint32_t room, at, used;
    uint32_t waiters;           /* threads that wait for one of its operations */
    uint64_t issued, completed; /* sequence numbers */
} cdp__group_queue;

/* group/flows.h: sends and receives. group/running.h takes flows without work off `active`. */
typedef struct cdp__group_messages {
    cdp__flow *active, *flows;   /* those with something to do; all */
    cdp__post **posts;           /* the pool, by index */
    cdp__post *free, *last_free; /* the one that was free longest is first */
    uint32_t count, room;        /* of the pool */
} cdp__group_messages;

/* group/message_calls.h: receives from any rank. */
typedef struct cdp__group_any {
    uint32_t turn;        /* the rank that such a receive tries first */
    uint32_t first_ended; /* the first rank found to have left or died, plus 1; 0: none */
    uint64_t links_read;  /* value of world->polls when links were last read for such receives */
} cdp__group_any;

/* group/records.h, group/flows.h: the last desc.records operations and messages. */
typedef struct cdp__group_records {
    cdp__past *ops;      /* by sequence number */
    cdp__past *messages; /* allocated with the first message */
    uint64_t message_count;
} cdp__group_records;

/* group/deferred.h: works that are no operations. */
typedef struct cdp__group_deferred {
    cdp__deferred *entries; /* desc.max_pending of them, allocated with the first one */
    uint32_t at; /* index where the search for a free entry begins: the one that was free longest */
} cdp__group_deferred;

/* group/running.h, group/flows.h: when to act next; CDP__NEVER: not set. Calls that start an
   operation or a message may lower `soonest_ns`. */
typedef struct cdp__group_timers {
    uint64_t soonest_ns;    /* at or before the earliest deadline of an operation or message */
    uint64_t wait_ns;       /* when to check for long waits */
    uint64_t poll_peers_ns; /* when to read from peers that this rank does not wait for */
    uint64_t revoke_ns;     /* when exposed payloads that are not being read are sent instead */
    uint64_t checked_moved; /* progress of the awaited transfer when last checked: its bytes */
    uint32_t checked_round; /* and its round */
} cdp__group_timers;

/* failure/spread.h and failure/report.h. `late_ms` is set by the file that finds a missed deadline,
   `leave_ns` by group/create.h. */
typedef struct cdp__group_failure {
    /* failed by the caller or a backend: a late operation that completes does not undo it */
    bool by_caller;
    uint32_t late_ms;   /* the timeout that passed, ms */
    uint64_t answer_ns; /* until when peers may answer with their FAILURE; 0: over */
    uint64_t settle_ns; /* when SETTLING ends, then when reporting ends */
    /* when leaving ends although the failure is not reported; 0: this rank does not leave */
    uint64_t leave_ns;
    cdp__failure_domain domain; /* of a group without a parent */
    cdp_error error;
    uint8_t cause[CDP__FAILURE_BYTES];
    uint32_t cause_bytes;
} cdp__group_failure;

#ifndef CDP_NO_THREADS
/* group/abort.h: what cdp_group_abort() left, which may have run in a signal handler. */
enum {
    CDP__ABORT_NONE,
    CDP__ABORT_WRITES,
    CDP__ABORT_ASKED,
    CDP__ABORT_DONE
};
typedef struct cdp__group_abort {
    uint32_t state;   /* (atomic) CDP__ABORT_... */
    char reason[200]; /* in case the caller's is gone when it is read */
} cdp__group_abort;
#endif

/* group/create.h: where its ranks are. */
typedef struct cdp__group_topology {
    uint8_t flags;    /* for >>collective/select: CDP__SAME_HOST, CDP__SHARED, CDP__HOSTS, ... */
    cdp__hosts hosts; /* only for several hosts */
} cdp__group_topology;

/* Members without a part are set by group/create.h and group/subgroups.h, except `health`, which
   failure/ writes. Those that most functions use come first: instructions that use the first 128
   bytes are shorter. */
struct cdp_group {
    /* detects the use of a destroyed group, until its memory is reused */
    uint32_t magic;
    cdp__health health;
    const cdp_os *os;
    cdp__world *w;
    uint64_t channel;     /* equal on all its ranks */
    cdp__stream *streams; /* of the channel, one per rank */
    cdp__peer *peers;
    uint32_t *members;          /* world rank of each of its ranks; NULL: equal */
    cdp_group *parent;          /* the group that it fails together with; NULL: none */
    const cdp_backend *backend; /* NULL: none */
    cdp__group_queue queue;
    cdp__group_messages messages;
    cdp__group_timers timers;
    cdp__group_topology topology;
#ifndef CDP_NO_GROUPS
    /* how its algorithms are chosen: as in its world, or by `own`, whose rows are the group's */
    const cdp__choosing *choosing;
    cdp__choosing own;
#endif

    cdp_group_desc desc; /* with defaults; rank and world_size are those of this group */
    cdp_group *next;     /* in world->groups */
    cdp_group **link;    /* what points to it there, so that it leaves without a search */
    uint32_t children;   /* groups whose `parent` it is */
    cdp_group *next_active;
    bool active;   /* in world->active */
    bool backed;   /* it has or had a backend */
    uint32_t ddps; /* ddps created on it */
    uint32_t made; /* see cdp__handle_number() */
    void *barrier; /* memory of cdp_monitored_barrier(), kept for the next one */
    cdp__group_records records;
    cdp__group_any any;
    cdp__group_deferred deferred;
    cdp__group_failure failure;
#ifndef CDP_NO_THREADS
    cdp__group_abort abort;
#endif
    cdp__exec exec; /* runs the first operation of the queue */
};

/* NULL: the group has no backend, so all memory is host memory. */
CDP__PRIVATE const cdp_backend *cdp__backend_of(const cdp_group *g) {
#ifdef CDP_NO_BACKEND
    (void)g;
    return NULL;
#else
    return g->backend;
#endif
}

/* How algorithms are chosen. */
CDP__PRIVATE const cdp__choosing *cdp__choosing_of(const cdp_group *g) {
#ifdef CDP_NO_GROUPS
    return &g->w->choosing;
#else
    return g->choosing;
#endif
}

#define CDP__SETTLE_MS CDP__FAILURE_SETTLE_MS
#define CDP__REPORT_MS CDP__FAILURE_REPORT_MS
#define CDP__ANSWER_MS 8u /* how much of CDP__REPORT_MS may be spent waiting for answers */
#define CDP__POLL_PEERS_MS 20u
#define CDP__REVOKE_MS 5u /* copying 4 MiB is cheaper than waiting longer for the reader */

/* The first check of every public function. */
CDP__PRIVATE CDP__ONE_COPY cdp_status cdp__alive(const cdp_group *g, const char *call) {
    if (!g) return cdp__missing(call, "group");
    if (cdp__ended(g) || g->magic != CDP__GROUP_MAGIC)
        return cdp__fail(CDP_ERR_STATE, "%s: this group was destroyed", call);
    if (!cdp__is_child(g->w->forks)) return CDP_OK;
    return cdp__child_refuses(CDP_ERR_STATE, call, "group");
}

/* cdp__alive() for an operation, whose errors begin with its name. */
CDP__PRIVATE cdp_status cdp__alive_for(const cdp_group *g, cdp_coll_kind kind) {
    if (g && !cdp__ended(g) && g->magic == CDP__GROUP_MAGIC && !cdp__is_child(g->w->forks))
        return CDP_OK;
    return cdp__alive(g, kind ? cdp_coll_name(kind) : "cdp_start");
}

/* The world rank of rank p of the group. Errors and links use world ranks. */
CDP__PRIVATE uint32_t cdp__world_rank(const cdp_group *g, uint32_t p) {
#ifdef CDP_NO_GROUPS
    (void)g;
    return p;
#else
    return g->members ? g->members[p] : p;
#endif
}

/* The first operation of the queue, which must not be empty. */
CDP__PRIVATE cdp__op *cdp__group_head(const cdp_group *g) {
    return &g->queue.ops[g->queue.at];
}

CDP__PRIVATE void cdp__group_activate(cdp_group *g) {
    if (g->active) return;
    g->active = true;
    g->next_active = g->w->active;
    g->w->active = g;
}

CDP__PRIVATE bool cdp__group_linked(const cdp_group *g, uint32_t p) {
    const cdp_transport *t = &g->w->transport;
    return t->failure.linked && t->failure.linked(t->self, cdp__world_rank(g, p));
}

/* True if this group has exchanged messages with rank p. */
CDP__PRIVATE bool cdp__peer_used(const cdp_group *g, uint32_t p) {
    return g->peers[p].used || g->streams[p].put || g->streams[p].got;
}

/* The group that this one was made from, and fails together with; or NULL. */
CDP__PRIVATE cdp_group *cdp__group_parent(const cdp_group *g) {
#ifdef CDP_NO_GROUPS
    (void)g;
    return NULL;
#else
    return g->parent;
#endif
}

/* The group that settles failures for all groups that fail together with g. */
CDP__PRIVATE cdp_group *cdp__group_top(cdp_group *g) {
    return cdp__group_parent(g) ? cdp__group_parent(g) : g;
}

/* True while the cause of a failure or timeout is being settled. */
CDP__PRIVATE bool cdp__group_settling(const cdp_group *g) {
    const cdp_group *top = cdp__group_parent(g) ? cdp__group_parent(g) : g;
    return top->failure.domain.state == CDP__FAILURE_SETTLING;
}

CDP__PRIVATE cdp__past *cdp__past_at(const cdp_group *g, uint64_t seq) {
    return &g->records.ops[seq % g->desc.records];
}

/* Revokes all exposed memory of the group's operations and messages. */
CDP__PRIVATE void cdp__group_revoke(cdp_group *g) {
    cdp__flow *flow;
    cdp__exec_revoke(&g->exec);
    for (flow = g->messages.active; flow; flow = flow->next_active)
        if (flow->first[0]) cdp__transfer_revoke(g->w, &flow->first[0]->x);
}

/* The channel number under which waits for messages are reported: one per pair of ranks,
   direction and tag. */
CDP__PRIVATE uint64_t cdp__way_channel(uint64_t channel, uint32_t from, uint32_t to) {
    uint8_t id[16];
    cdp__put_u64(id, channel);
    cdp__put_u32(id + 8, from);
    cdp__put_u32(id + 12, to);
    return cdp__hash(CDP__HASH_START, id, sizeof id) | 2;
}

CDP__PRIVATE uint64_t cdp__flow_channel(const cdp__flow *flow, bool receive) {
    const uint32_t me = flow->g->w->rank, peer = flow->s.peer;
    return cdp__way_channel(flow->s.channel, receive ? peer : me, receive ? me : peer);
}

CDP__PRIVATE cdp_group *cdp__group_of_channel(const cdp__world *w, uint64_t channel) {
    cdp_group *g = w->groups;
    while (g && g->channel != channel)
        g = g->next;
    return g;
}

CDP__PRIVATE cdp_status cdp__world_wrong(const char *call, uint32_t size) {
    return cdp__fail(CDP_ERR_INVALID,
        "%s: world_size %u is not in 1 .. 65535; set it to the number of ranks", call, size);
}

CDP__PRIVATE cdp__head cdp__op_call(const cdp__op *op) {
    const cdp_request *rq = &op->rq;
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.kind = (uint8_t)rq->kind;
    h.dtype = (uint8_t)rq->dtype;
    h.op = (uint8_t)rq->op;
    h.accumulate = (uint8_t)rq->accumulate;
    h.seq = op->seq;
    h.count = op->parts ? 0 : rq->count;
    h.parts = op->parts;
    h.root = rq->root | op->tag;
    return h;
}

#endif /* CDP_SRC_GROUP_STATE_H */
