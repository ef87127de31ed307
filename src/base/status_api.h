/* base/status_api.h - what calls return */
#ifndef CDP_SRC_BASE_STATUS_API_H
#define CDP_SRC_BASE_STATUS_API_H

#include "config.h"

/* What every fallible function returns. Zero is success, errors are negative; the details are in
   cdp_last_error(). */
typedef enum cdp_status {
    CDP_OK = 0,
    /* only from functions that document it: not finished yet, call again */
    CDP_PENDING = 1,
    /* an argument is wrong; nothing was done; the text says what to change */
    CDP_ERR_INVALID = -1,
    /* the allocator returned nothing */
    CDP_ERR_NOMEM = -2,
    /* The deadline passed; the text names the rank that was waited for. Operations that complete
       while the cause is being settled (5% of the timeout, at most 300 ms) return CDP_OK. */
    CDP_ERR_TIMEOUT = -3,
    /* a peer's connection ended or could not be made; `peer` names it */
    CDP_ERR_PEER_LOST = -4,
    /* a rank called cdp_group_abort(); the text contains the reason */
    CDP_ERR_ABORTED = -5,
    /* ranks called different things, or brought different models, versions or settings */
    CDP_ERR_MISMATCH = -6,
    /* a combination that is not supported, such as BAND of a float dtype */
    CDP_ERR_UNSUPPORTED = -7,
    /* the operating system refused, sys_errno says why; EBADMSG: bytes were changed on the way
       (`mac` of cdp_tcp.h) */
    CDP_ERR_IO = -8,
    /* the key-value store failed or went away */
    CDP_ERR_STORE = -9,
    /* the call came at the wrong time (twice, never, after destroy) */
    CDP_ERR_STATE = -10,
    /* a mistake in this library; please report it */
    CDP_ERR_INTERNAL = -11,
    /* the function that was called on another rank ran, and reported a failure (cdp_rpc.h) */
    CDP_ERR_REMOTE = -12,
    /* a limit of this rank or of the peer is reached, nothing was done; the text says which one */
    CDP_ERR_BUSY = -13
} cdp_status;

/* The usual short name of a status, for example "TIMEOUT". Never NULL. Any thread. */
CDP_API const char *cdp_status_name(cdp_status status);

/* What a status means, for programs that have only the number: "the deadline passed". The text of
   cdp_last_error() says more. With CDP_NO_LOG_STRINGS, the name. Never NULL. Any thread. */
CDP_API const char *cdp_status_text(cdp_status status);

#endif /* CDP_SRC_BASE_STATUS_API_H */
