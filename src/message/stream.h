/* message/stream.h - the messages of one channel to and from one peer

   Knows: transport, messages, slots. Promises: messages of a stream arrive whole and in order;
   whatever order ranks use their channels in, no channel waits for another; unexpected data is
   bounded. */
#ifndef CDP_SRC_MESSAGE_STREAM_H
#define CDP_SRC_MESSAGE_STREAM_H

#include "../base/config.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "transport_api.h"
#include "../group/group_api.h"
#include "../channel/channel_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/linux.h"
#include "../collective/select.h"
#include "header.h"
#include "../failure/chains.h"
#include "fabric.h"
#include "deferred.h"

#define CDP__WINDOW (4u << 20) /* the largest window_bytes of any rank */
/* A FAILURE is sent even where the window is used up: the receiver keeps room for one. */
#define CDP__WINDOW_SLACK (CDP__HEAD_BYTES + CDP__FAILURE_MAX)
/* Half of a usual L2 cache, so that a reduction finds received data in the cache. */
#define CDP__STAGE_BYTES (128u * 1024u)
/* A message longer than this begins only if the window has room for this much of it. */
#define CDP__PIECE_MIN (64u * 1024u)
#define CDP__UNEXPECTED 256u /* unexpected streams, at most */
/* recently closed channels; messages for them are dropped */
#if defined(CDP_NO_GROUPS) && defined(CDP_NO_MESSAGES)
#define CDP__CLOSED_KEPT 1u /* there is one channel */
#else
#define CDP__CLOSED_KEPT 64u
#endif
/* Whether a message may stay in memory that both ranks reach: in a slot, or exposed. False in
   builds without such memory, so that compilers omit the code that uses it. */
#if defined(CDP_NO_SHARED_MEMORY) && defined(CDP_NO_HUB)
#define CDP__IN_PLACE false
#else
#define CDP__IN_PLACE true
#endif
#define CDP__CONTROL_MAX (1u << 30) /* bytes of queued messages per link, at most */
#define CDP__WORLD_CHANNEL 1u       /* channel of the group created with the transport */

typedef struct cdp__stream {
    uint64_t channel;
    struct cdp__stream *next; /* next stream in the same row of world->streams */
    uint32_t peer;            /* rank in the world */
    uint32_t put, got;        /* messages sent and received, in slots or on the link */
    bool unexpected;          /* no call of this rank has asked for it yet */
    bool left;                /* the peer has left the channel */
    bool dropping;            /* the channel failed: arriving messages are dropped */
    bool asking, asked;       /* this rank, the peer has asked for credit */
    /* the peer has not yet confirmed that it has read the exposed payload */
    bool exposed;
    bool refused;         /* the peer has answered that it cannot read that payload */
    uint64_t sent, acked; /* bytes with headers: sent; of these, read by the peer */
    uint64_t taken;       /* bytes read here */
    uint64_t credited;    /* of these, those that the last CREDIT told */
    uint64_t
        /* bytes allowed beyond the window, for the peer's answers to bodies that this rank
           offers */
        slack;
    uint8_t *early; /* ring of bytes that arrived before a call asked for them */
    uint64_t early_at, early_used, early_room;
    /* body of a FAILURE for a channel that is not open here yet */
    uint8_t *failure;
    uint32_t failure_bytes;
    /* the message being read */
    uint64_t body_left;
    /* the slot with its body; NULL: the body is in `early` or on the link */
    const cdp__eager_slot *slot;
    uint32_t slot_at;
} cdp__stream;

typedef struct cdp__port { /* this rank's end of one link */
    uint32_t tx_head_left, rx_head_got;
    /* body bytes still missing of the message half sent, half received */
    uint64_t tx_left, rx_left;
    /* its stream. NULL: the stream is gone: zeros complete the body; it is dropped */
    cdp__stream *tx_stream, *rx_stream;
    bool rx_fresh;   /* rx_head is complete, but the reader of rx_stream has not taken it */
    bool rx_control; /* the body of a FAILURE, WAIT or ENDPOINT is being received */
    bool broken;     /* received bytes were no valid message */
    bool dead;       /* the transport reports that the peer is lost */
    bool used;       /* bytes were sent to the peer, or came from it */
    /* 1: unexpected streams of the peer reached the limit here; 2: streams of this rank did
       there */
    uint32_t over_limit;
    bool nomem; /* out of memory for an unexpected stream: its messages cannot be stored */
    cdp__eager slots;
    uint8_t *control; /* queued whole messages, sent before the next DATA */
    uint32_t control_at, control_used, control_room;
    uint8_t *failure; /* body of the FAILURE, WAIT or ENDPOINT that is being received */
    uint32_t failure_got;
    uint8_t tx_head[CDP__HEAD_BYTES], rx_head[CDP__HEAD_BYTES];
} cdp__port;

/* How many groups of the same ranks were created here. The counts are equal on all ranks, so
   they number such groups without a message. */
typedef struct cdp__made {
    uint64_t ranks; /* hash of the ranks */
    uint64_t count;
    struct cdp__made *next;
} cdp__made;

/* Result of a call that never blocks. */
typedef enum cdp__advance {
    CDP__IDLE,    /* nothing to do */
    CDP__BLOCKED, /* waits for the transport */
    CDP__MOVED    /* poll again */
} cdp__advance;

/* State shared by all groups of one transport. The lock guards everything but `os`, and all
   groups. Members that much code uses come first. */
typedef struct cdp__world {
    const cdp_os *os;
    uint32_t forks; /* see cdp__is_child() */
    uint32_t size, rank;
    cdp__port *ports;
    cdp_group *groups;             /* all */
    cdp_group *active;             /* those with something to do */
    struct cdp__deferred *pending; /* works that are not operations, in the order of the calls */
    void *cond;          /* where callers sleep while another thread is in transport.wait */
    bool sleeping;       /* a thread is in transport.wait; at most one is */
    bool stop;           /* the progress thread must end */
    bool follows;        /* some operation was to follow a work, which may be another group's */
    bool control_queued; /* some port has control messages to send */
#ifndef CDP_NO_GROUPS
    bool untold; /* a failed group has peers that were not connected in time */
#endif
    bool fast_poll;         /* this poll of the groups is one of several: only the last one checks
                          deadlines */
    bool cut;               /* this poll ended at its budget, and there is more to do */
    uint64_t poll_until_ns; /* when this poll is to end; 0: when nothing moves any more */
    cdp_lock lock;
    cdp_transport transport;
    cdp_error fault;       /* why an executor has failed, until its group has read it */
    cdp__stream **streams; /* hash table, by channel and peer */
    uint32_t stream_rows;  /* a power of two */
    uint32_t stream_count;
    uint32_t unexpected_count;
    int32_t spin_luck; /* > 0: polling before sleeping has paid off lately; < 0: it has not */
    uint64_t arrivals; /* increases when a receive from any rank might find a message */
    /* `stored` counts events for other streams than the one being read; `stored_before` is its
       value at the last poll of all groups */
    uint64_t stored, stored_before;
    uint64_t closed[CDP__CLOSED_KEPT];
    uint32_t closed_at;
    cdp__made *made;
    struct cdp_channel *channels; /* that are open */
    /* called as soon as a FAILURE, WAIT or ENDPOINT has arrived, whatever this rank reads just now;
       false: it is invalid */
    bool (*on_control)(struct cdp__world *w, uint32_t peer, uint8_t type, uint64_t channel,
        const uint8_t *body, uint32_t bytes);
    /* set when the first channel opens */
    cdp__advance (*channels_poll)(struct cdp__world *w);
    uint64_t (*channels_deadline)(const struct cdp__world *w);
    uint64_t polls;                     /* how often `pending` was polled */
    cdp_group *calling;                 /* the group whose callback is running, without the lock */
    uint8_t *stage;                     /* received bytes before they are reduced */
    uint64_t stage_bytes, window_bytes; /* of the desc */

    /* threads */
    void *thread;
    void *park;            /* where the progress thread sleeps while callers make progress */
    uint32_t lock_waiters; /* (atomic) */
#ifndef CDP_NO_THREADS
    uint32_t aborts;      /* (atomic) how often a group was to be aborted */
    uint32_t aborts_seen; /* its value when that was last done */
#endif
    /* threads inside a wait: they make progress, the progress thread stands by */
    uint32_t callers;
    /* Counts of waits and of completed operations, many of which need no wait: a change shows
       the progress thread that callers are active. */
    uint64_t waits, ended;
    uint64_t yield_again; /* the value of `waits` from which on yielding is tried again */
    cdp__failure failure;
    cdp__choosing choosing;
    cdp_group_desc given; /* the desc as the caller wrote it, without defaults */
#ifndef CDP_NO_LOG_STRINGS
    /* group/log.h: the second in which INFO and DEBUG lines are counted, how many were made in it,
       and how many were left out since the last line that said so */
    uint64_t log_second;
    uint32_t log_lines, log_left_out;
#endif
} cdp__world;

CDP__PRIVATE uint64_t cdp__now(const cdp_os *os) {
    return os->now_ns(os->user);
}

#ifdef CDP_NO_FRAMES
#define CDP__BUDGETS 0
#else
#define CDP__BUDGETS 1
#endif
/* Most bytes that one step of a poll with a budget copies, combines or gives to the transport. Such
   a step takes about ten microseconds, so a poll exceeds its budget by at most about that. */
#define CDP__STEP_BYTES (64u * 1024u)

/* How many of `bytes` this step may move. */
CDP__PRIVATE uint64_t cdp__step_bytes(const cdp__world *w, uint64_t bytes) {
    return CDP__BUDGETS && w->poll_until_ns ? cdp__min(bytes, CDP__STEP_BYTES) : bytes;
}

/* Called after a step that moved something. True if the poll's budget is used up, so it ends
   here. */
CDP__PRIVATE bool cdp__poll_over(cdp__world *w) {
    if (!CDP__BUDGETS) return false;
    if (!w->poll_until_ns || cdp__now(w->os) < w->poll_until_ns) return false;
    w->cut = true;
    return true;
}

/* A poll with a budget may take this long, however small its budget, to read what has arrived when
   it begins, and while a failure is settled: a peer's messages about a failure arrive behind data
   that it sent before, and must be read in time. */
#define CDP__POLL_EXTRA_NS 50000u
CDP__PRIVATE void cdp__poll_extend(cdp__world *w) {
    if (!CDP__BUDGETS || !w->poll_until_ns) return;
    w->poll_until_ns = cdp__max(w->poll_until_ns, cdp__now(w->os) + CDP__POLL_EXTRA_NS);
}

/* ---- streams by channel and peer */

CDP__PRIVATE cdp__stream **cdp__stream_row(const cdp__world *w, uint64_t channel, uint32_t peer) {
    const uint64_t h = (channel ^ peer * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;
    return &w->streams[h >> 32 & (w->stream_rows - 1)];
}

CDP__PRIVATE cdp__stream *cdp__stream_find(const cdp__world *w, uint64_t channel, uint32_t peer) {
    cdp__stream *s = *cdp__stream_row(w, channel, peer);
    while (s && (s->channel != channel || s->peer != peer))
        s = s->next;
    return s;
}

/* Makes room for `more` streams in the table. False: out of memory. */
CDP__PRIVATE CDP__COLD bool cdp__streams_reserve(cdp__world *w, uint32_t more) {
    cdp__stream **old = w->streams;
    const uint32_t old_rows = w->stream_rows;
    uint32_t rows = old_rows ? old_rows : 8, i;
    while (rows < w->stream_count + more)
        rows *= 2;
    if (rows == old_rows) return true;
    w->streams = (cdp__stream **)cdp__alloc_zero(w->os, rows * sizeof *w->streams);
    if (!w->streams) {
        w->streams = old;
        return old != NULL; /* without a larger table, rows only become longer and slower */
    }
    w->stream_rows = rows;
    for (i = 0; i < old_rows; ++i)
        while (old[i]) {
            cdp__stream *s = old[i], **row = cdp__stream_row(w, s->channel, s->peer);
            old[i] = s->next;
            s->next = *row;
            *row = s;
        }
    cdp__free(w->os, old);
    return true;
}

CDP__PRIVATE void cdp__stream_insert(cdp__world *w, cdp__stream *s) {
    cdp__stream **row = cdp__stream_row(w, s->channel, s->peer);
    s->next = *row;
    *row = s;
    ++w->stream_count;
}

/* The buffer of the half-sent message is gone. If nothing of the message was sent, it is taken
   back: zeros for its body would pass for data of this rank, if the receiver is late and its
   operation still goes on. */
CDP__PRIVATE void cdp__port_abandon(cdp__port *port) {
    port->tx_stream = NULL;
    if (port->tx_head_left != CDP__HEAD_BYTES) return;
    port->tx_head_left = 0;
    port->tx_left = 0;
}

/* Removes the stream from the table and from its port. */
CDP__PRIVATE void cdp__stream_remove(cdp__world *w, cdp__stream *s) {
    cdp__stream **at = cdp__stream_row(w, s->channel, s->peer);
    cdp__port *port = &w->ports[s->peer];
    while (*at && *at != s)
        at = &(*at)->next;
    if (*at) {
        *at = s->next;
        --w->stream_count;
        if (s->unexpected) --w->unexpected_count;
    }
    if (port->tx_stream == s) cdp__port_abandon(port);
    if (port->rx_stream == s) {
        port->rx_stream = NULL;
        port->rx_fresh = false;
    }
}

/* The new stream `to` takes over all state of the unexpected stream `from`. */
CDP__PRIVATE void cdp__stream_replace(cdp__world *w, cdp__stream *from, cdp__stream *to) {
    cdp__port *port = &w->ports[from->peer];
    const bool receiving = port->rx_stream == from, fresh = port->rx_fresh;
    CDP_ASSERT(from->unexpected && port->tx_stream != from);
    cdp__stream_remove(w, from);
    *to = *from;
    to->unexpected = false;
    cdp__stream_insert(w, to);
    if (receiving) {
        port->rx_stream = to;
        port->rx_fresh = fresh;
    }
}

/* Enters a new stream, whose channel and peer are set, into the table, which has room for it. True:
   an unexpected stream had them, has given its state to the new one, and is freed. */
CDP__PRIVATE bool cdp__stream_enter(cdp__world *w, cdp__stream *s) {
    cdp__stream *came = cdp__stream_find(w, s->channel, s->peer);
    CDP_ASSERT(!came || came->unexpected);
    if (came) {
        cdp__stream_replace(w, came, s);
        cdp__free(w->os, came);
    } else {
        cdp__stream_insert(w, s);
    }
    return came != NULL;
}

/* A new stream that is not part of a group's array. NULL: out of memory. */
CDP__PRIVATE cdp__stream *cdp__stream_make(cdp__world *w, uint64_t channel, uint32_t peer) {
    cdp__stream *s;
    if (!cdp__streams_reserve(w, 1)) return NULL;
    s = (cdp__stream *)cdp__alloc_zero(w->os, sizeof *s);
    if (!s) return NULL;
    s->channel = channel;
    s->peer = peer;
    cdp__stream_insert(w, s);
    return s;
}

/* True if this channel was closed here not long ago. */
CDP__PRIVATE bool cdp__world_closed(const cdp__world *w, uint64_t channel) {
    uint32_t i;
    for (i = 0; i < CDP__CLOSED_KEPT; ++i)
        if (w->closed[i] == channel) return true;
    return false;
}

/* Records that a channel was closed here; one entry covers its streams to all ranks. */
CDP__PRIVATE void cdp__world_record_closed(cdp__world *w, uint64_t channel) {
    if (!cdp__world_closed(w, channel)) w->closed[w->closed_at++ % CDP__CLOSED_KEPT] = channel;
}

/* A stream for a message that no call has asked for. NULL: the channel is closed, the limit of
   unexpected streams is reached, or out of memory. */
CDP__PRIVATE cdp__stream *cdp__stream_unexpected(cdp__world *w, uint64_t channel, uint32_t peer) {
    cdp__stream *s;
    if (cdp__world_closed(w, channel)) return NULL;
    if (w->unexpected_count == CDP__UNEXPECTED) {
        w->ports[peer].over_limit = 1;
        return NULL;
    }
    s = cdp__stream_make(w, channel, peer);
    w->ports[peer].nomem = !s;
    if (!s) return NULL;
    s->unexpected = true;
    ++w->unexpected_count;
    return s;
}

#endif /* CDP_SRC_MESSAGE_STREAM_H */
