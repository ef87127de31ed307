/* channel/channel_api.h - ordered messages to each rank */
#ifndef CDP_SRC_CHANNEL_CHANNEL_API_H
#define CDP_SRC_CHANNEL_CHANNEL_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"

#ifndef CDP_NO_CHANNELS
/* A channel sends messages to every rank of a group, in order for each of them, with bounded memory
   on both sides: the base of remote calls (cdp_rpc.h) and of protocols of your own. A channel that
   loses one rank goes on with the others. Groups and channels share the links: a channel that is
   always full can delay the messages of a group.

   All functions: any thread, also inside the callbacks of the channel, and never blocking but
   cdp_channel_wait(). Callbacks run one at a time, on whichever thread lets communication advance
   (the progress thread, a caller that waits, cdp_poll()), without a lock; they must not wait. */
typedef struct cdp_channel cdp_channel;

typedef struct cdp_channel_message {
    uint32_t peer;      /* rank in the group: to, or from */
    uint32_t kind, aux; /* yours: they arrive as they are */
    uint64_t a, b;      /* yours */
    const void *body;   /* NULL when bytes is 0, or when the body stays with the sender */
    uint64_t bytes;
    /* Not 0: the sender offers the body. Answer with cdp_channel_fetch() or cdp_channel_refuse(),
       at any time. */
    uint64_t handle;
} cdp_channel_message;

typedef struct cdp_channel_desc {
    cdp_group *group; /* required; it must outlive the channel */
    uint32_t number;  /* which channel of this group: the same on all its ranks, each once */
    void *user;       /* first argument of every function below */
    /* Required. A message has come. The message and its body are valid until this returns. */
    void (*deliver)(void *user, const cdp_channel_message *message);
    /* The rank has died, or has closed the channel: nothing more comes from it, and nothing goes to
       it. Called once for each rank. (default: nothing is called) */
    void (*lost)(void *user, uint32_t peer, const cdp_error *why);
    /* After cdp_channel_send() or _offer() returned CDP_PENDING: there is room again. */
    void (*credit)(void *user, uint32_t peer);
    /* An offered body is the caller's again: CDP_OK: it was fetched; CDP_ERR_ABORTED: refused;
       CDP_ERR_PEER_LOST, or what broke the group. */
    void (*released)(void *user, uint32_t peer, uint64_t handle, cdp_status status);
    /* A body that was asked for is there: CDP_OK, or CDP_ERR_PEER_LOST, or what broke the group. */
    void (*fetched)(void *user, uint32_t peer, uint64_t handle, cdp_status status);
    /* os->now_ns has reached the time that was given to cdp_channel_timer(). */
    void (*timer)(void *user);
} cdp_channel_desc;

/* Longest body of cdp_channel_send(). */
#define CDP_CHANNEL_BODY_MAX (1024u * 1024u) /* a quarter of window_bytes, where that is less */

/* Opens a channel; other ranks may open it later, what is sent to them waits (up to window_bytes
   each). Errors: INVALID (desc, number in use), NOMEM, STATE (the group was destroyed). */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_open(const cdp_channel_desc *desc, cdp_channel **out);

/* Sends a message; the body is copied, so it is the caller's again. CDP_PENDING: not taken, too
   much is under way to that rank; try again after the callback `credit`. Errors: INVALID (peer,
   this rank itself, body too long), PEER_LOST, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_send(
    cdp_channel *channel, const cdp_channel_message *message);

/* Sends a message whose body stays here until the callback `released`; *handle names it. The
   receiver reads it in place where memory is shared, else it is sent. Returns what
   cdp_channel_send() does. */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_offer(
    cdp_channel *channel, const cdp_channel_message *message, uint64_t *handle);

/* Asks for an offered body: `to` has room for its `bytes` and is in use until the callback
   `fetched`. Errors: INVALID, PEER_LOST, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_fetch(
    cdp_channel *channel, uint32_t peer, uint64_t handle, void *to, uint64_t bytes);
/* Declines it. Errors as for cdp_channel_fetch(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_refuse(
    cdp_channel *channel, uint32_t peer, uint64_t handle);

/* Sets the channel's timer: the callback `timer` is called once when os->now_ns reaches at_ns
   (UINT64_MAX: clears the timer). */
CDP_API void cdp_channel_timer(cdp_channel *channel, uint64_t at_ns);

/* Lets communication advance until some callback of this channel has run: CDP_OK, or until
   timeout_ms have passed: CDP_PENDING. Errors: STATE (inside a callback; or another thread, or
   such a callback, has closed the channel). */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_wait(cdp_channel *channel, uint32_t timeout_ms);

/* For a thread that waits for something that callbacks of this channel, or other threads, change:
   start with *seen = 0, and in turn look whether it has changed and call this. Returns CDP_OK at
   once if a callback has returned, or cdp_channel_wake() was called, since the previous turn;
   otherwise lets communication advance until then, or until os->now_ns reaches until_ns
   (CDP_PENDING). Errors as for cdp_channel_wait(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_channel_wait_since(
    cdp_channel *channel, uint64_t *seen, uint64_t until_ns);
/* Ends the waits of other threads on this channel, as a callback does. Any thread; NULL is
   allowed. */
CDP_API void cdp_channel_wake(cdp_channel *channel);

/* Gives up the rank `peer`, for instance because it has violated the program's protocol: on this
   rank the callback `lost` is called with `reason` (copied; at most 400 bytes), on the peer as if
   this rank had closed the channel. The other ranks of the channel go on; a rank that was lost
   before stays so. Any thread. Errors: INVALID: channel or reason is NULL, or `peer` is this rank
   or not in the channel's group; nothing was done. */
CDP_API cdp_status cdp_channel_drop(cdp_channel *channel, uint32_t peer, const char *reason);

/* Closes the channel: no callback runs after this returned (or, inside a callback, after that one
   returned). Other ranks get the callback `lost` for this one. Offered bodies are the caller's
   again. NULL is allowed. */
CDP_API void cdp_channel_close(cdp_channel *channel);
#endif /* CDP_NO_CHANNELS */

#endif /* CDP_SRC_CHANNEL_CHANNEL_API_H */
