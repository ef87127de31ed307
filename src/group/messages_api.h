/* group/messages_api.h - from one rank to another */
#ifndef CDP_SRC_GROUP_MESSAGES_API_H
#define CDP_SRC_GROUP_MESSAGES_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "group_api.h"
#include "collectives_api.h"

#define CDP_ANY_RANK 0xffffffffu

/* What is known of a message. */
typedef struct cdp_message {
    uint32_t source, tag; /* the rank that sent it, in the group it was received in */
    uint64_t count;       /* elements */
    cdp_dtype dtype;
} cdp_message;

/* One message of a batch. */
typedef struct cdp_transfer {
    bool receive; /* else: send */
    void *data;
    uint64_t count;
    cdp_dtype dtype;     /* (default: f32) */
    uint32_t peer, tag;  /* the other rank */
    uint32_t timeout_ms; /* (default: the group's) */
    /* receive: if not NULL, up to `count` elements are accepted, and *got says how many came and
       from where, see cdp_recv_any() (default: NULL, exactly `count`) */
    cdp_message *got;
    /* receive: `data` is rows of `row` elements each, which begin `step` elements apart; the last
       one may be shorter (default: contiguous) */
    uint64_t row, step;
    /* send: it may wait until its receiver takes it, however short it is; then, from expose_bytes
       of the group on, the receiver reads it in place (default: only what is longer than 4 MiB
       may wait) */
    bool rendezvous;
} cdp_transfer;

#ifndef CDP_NO_MESSAGES
/* From one rank to another. The k-th send to a rank with a tag meets the k-th receive there from
   this rank with that tag; tags (any but 0xffffffff) are independent of each other and of
   collectives. A send is done when its bytes are on their way (up to 4 MiB ahead of the
   receiver) or have been read in place, a receive when they are there. count and dtype
   must be the same on both sides (MISMATCH). A failure breaks the group. From and to oneself:
   INVALID. Errors otherwise as for collectives. */
CDP_MUST_CHECK CDP_API cdp_status cdp_send(
    cdp_group *group, const void *data, uint64_t count, cdp_dtype dtype, uint32_t to, uint32_t tag);
CDP_MUST_CHECK CDP_API cdp_status cdp_send_async(cdp_group *group, const void *data, uint64_t count,
    cdp_dtype dtype, uint32_t to, uint32_t tag, cdp_work *work);
CDP_MUST_CHECK CDP_API cdp_status cdp_recv(
    cdp_group *group, void *data, uint64_t count, cdp_dtype dtype, uint32_t from, uint32_t tag);
CDP_MUST_CHECK CDP_API cdp_status cdp_recv_async(cdp_group *group, void *data, uint64_t count,
    cdp_dtype dtype, uint32_t from, uint32_t tag, cdp_work *work);

/* Both at once, so that two ranks may call it with each other: `out` goes to rank `to`, what
   comes from rank `from` goes to `in`. INVALID if `to` or `from` is this rank: copy the data
   yourself. */
CDP_MUST_CHECK CDP_API cdp_status cdp_sendrecv(cdp_group *group, const void *out,
    uint64_t out_count, uint32_t to, void *in, uint64_t in_count, uint32_t from, cdp_dtype dtype,
    uint32_t tag);

/* A message of a length that only its sender knows: up to `room` elements (a longer one is a
   MISMATCH, which breaks the group). From rank `from`, where it is one more receive in the order of
   those from that rank with this tag. Or from CDP_ANY_RANK: then it takes the next message with
   this tag that arrives from any rank and that no receive from that very rank waits for; where
   several are there, ranks come in turn, starting after the one that was last. Messages from one
   rank keep their order. A rank that has left, or died, is not waited for. If no other rank is left
   that could send, the group breaks with PEER_LOST, which names the first rank that went, unless
   one of them has sent a reason. After a TIMEOUT all ranks that could have sent are asked: one that
   does not answer is named, or else one that waits for no other. *got is written when it is done,
   and must stay until then. Errors otherwise as for cdp_recv(); STATE: max_pending of the desc
   receives from any rank are waiting already. */
CDP_MUST_CHECK CDP_API cdp_status cdp_recv_any(cdp_group *group, void *data, uint64_t room,
    cdp_dtype dtype, uint32_t from, uint32_t tag, cdp_message *got);
CDP_MUST_CHECK CDP_API cdp_status cdp_recv_any_async(cdp_group *group, void *data, uint64_t room,
    cdp_dtype dtype, uint32_t from, uint32_t tag, cdp_message *got, cdp_work *work);

/* Is there a message from `from` (or CDP_ANY_RANK) with this tag that no receive waits for?
   CDP_OK: *got says which, and a receive from that rank gets it; CDP_PENDING: none has come yet.
   Never blocks. Errors: INVALID, or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_probe(
    cdp_group *group, uint32_t from, uint32_t tag, cdp_message *got);

/* Allocates records for `messages` sends and receives of the group in flight at a time, for
   programs that must not allocate later. Without this call they are allocated when more messages
   are in flight than ever before. Local. Errors: INVALID; NOMEM (the group keeps the records that
   it had). */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_reserve(cdp_group *group, uint32_t messages);

/* Start `n` sends and receives in this order: all, or none when one of them is wrong. *out is
   done when all are. No rank waits for another because of the order inside a batch. Errors: as
   for cdp_send(); INVALID: also rows that overlap, or of a send; STATE: max_pending of the desc;
   UNSUPPORTED: rows in device memory. */
CDP_MUST_CHECK CDP_API cdp_status cdp_batch(
    cdp_group *group, const cdp_transfer *list, uint32_t n, cdp_work *out);

/* A barrier that names the missing ranks. Rank 0 receives a message from every other rank, then
   answers all of them. If some are missing after `timeout_ms` (0: the group's timeout), the group
   breaks with a TIMEOUT that names all of them; `peer` of the error is the first. (To name that one
   alone would be no sooner: it may come until the deadline.) If rank 0 itself is missing, it breaks
   at most a second later, and the TIMEOUT names rank 0. Slower than cdp_barrier(): for tests. */
CDP_MUST_CHECK CDP_API cdp_status cdp_monitored_barrier(cdp_group *group, uint32_t timeout_ms);
#endif /* CDP_NO_MESSAGES */

#endif /* CDP_SRC_GROUP_MESSAGES_API_H */
