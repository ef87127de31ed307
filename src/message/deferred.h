/* message/deferred.h - works that are not operations

   Knows: works, requests for messages. Promises: entries of a pool, which are reused. */
#ifndef CDP_SRC_MESSAGE_DEFERRED_H
#define CDP_SRC_MESSAGE_DEFERRED_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../base/basics.h"

/* Whether any call of this build opens such works. */
#if defined(CDP_NO_CHAINS) && defined(CDP_NO_MESSAGES) && defined(CDP_NO_BACKEND)
#define CDP__DEFERS false
#else
#define CDP__DEFERS true
#endif

/* A work that is not an operation of the queue: a chained function, a receive from any rank, a
   batch. Entries are reused; `use` says which work an entry currently belongs to. */
typedef enum cdp__deferred_kind {
    CDP__DEFERRED_FREE = 0,
    CDP__DEFERRED_THEN,
    CDP__DEFERRED_ANY,
    CDP__DEFERRED_BATCH,
    CDP__DEFERRED_CALL /* the code that opened it closes it */
} cdp__deferred_kind;

typedef struct cdp__deferred {
    struct cdp__deferred *next; /* in world->pending */
    cdp_group *owner;
    cdp__deferred_kind kind;
    uint64_t use;
    uint64_t cancelled; /* bit i: use number `use - 1 - i` was cancelled */
    /* THEN: the work that it waits for. ANY: the receive that it was turned into */
    cdp_work after;
    cdp_status (*func)(void *user, cdp_status status);
    void *user;
    uint32_t left; /* BATCH: messages that are not complete yet */
    cdp_group *of; /* ANY: the group whose ranks may send */
    cdp_transfer want;
    uint64_t arrivals;    /* world->arrivals at the last poll */
    uint64_t set;         /* ANY: the channel of the messages that it accepts */
    uint64_t reported_ns; /* ANY: when this rank last reported the wait to its peers; 0: never */
    uint64_t start_ns, wait_ns; /* ANY: when it began, and when its wait counts as long */
    uint64_t deadline_ns;
    /* ANY: polls; true when something has changed */
    bool (*poll)(struct cdp__deferred *s, uint64_t now);
} cdp__deferred;

#endif /* CDP_SRC_MESSAGE_DEFERRED_H */
