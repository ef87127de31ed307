/* group/works_api.h - operations in flight: waiting, chaining, cancelling */
#ifndef CDP_SRC_GROUP_WORKS_API_H
#define CDP_SRC_GROUP_WORKS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "group_api.h"
#include "collectives_api.h"

/* Writes the state of a work to *out: status OK or PENDING as from cdp_work_test(), or its failure.
   Does not advance communication, and leaves cdp_last_error() alone. INVALID: `out` is NULL. Any
   thread. */
CDP_API cdp_status cdp_work_error(cdp_work work, cdp_error *out);

#ifndef CDP_NO_CHAINS
/* Call func(user, status) once when `work` is done (status CDP_OK), has failed (the failure, which
   is also the thread's last error) or was cancelled (ABORTED); CDP_ERR_STATE: the group is being
   destroyed. *next (NULL is allowed) is a work that is done when `func` has returned; it fails as
   `work` does, or when `func` returns an error, which breaks the group on all ranks. `func` is
   called by the thread that advances communication: the progress thread, or a thread inside
   cdp_poll(), cdp_work_test() or any wait or blocking operation, of any group of the same world;
   never inside this call. One function at a time, those of one work in the order of the calls. It
   may start, test, chain, cancel and abort, but not wait (STATE) nor destroy groups, nor a ddp in a
   backward pass (nothing happens). What it starts takes its place in the order of operations only
   then; see cdp_start_after() for a place that is certain. Errors: INVALID, NOMEM, STATE
   (max_pending of the desc works are waiting already), UNSUPPORTED (an operation of a backend, on
   memory of a device). Any thread. */
CDP_MUST_CHECK CDP_API cdp_status cdp_work_then(
    cdp_work work, cdp_status (*func)(void *user, cdp_status status), void *user, cdp_work *next);

/* cdp_start(), but the operation does not begin before `after` is done: an operation of any
   group of the same world, or what cdp_work_then() gave. It has its place in the group's order
   from this call on, as all ranks see it, and those behind it wait. The deadline counts from
   this call. Where `after` fails or is cancelled, the group of this operation breaks for that
   cause. */
CDP_MUST_CHECK CDP_API cdp_status cdp_start_after(
    cdp_group *group, const cdp_request *request, cdp_work after, cdp_work *out);

/* End a work that is no longer needed; waits for it then return CDP_ERR_ABORTED. Two kinds of work
   end without an error on other ranks: a function that was not called yet (it never is), and a
   message of which nothing has been sent or received (the message of the other side meets the next
   one here, and is not lost). Other ranks take part in any other operation: to cancel it breaks
   the group on all ranks, as cdp_group_abort() does, and names this rank. Errors: STATE (too late:
   it is done, failing, or a message on its way; or it is a batch). */
CDP_API cdp_status cdp_work_cancel(cdp_work work);
#endif /* CDP_NO_CHAINS */

#endif /* CDP_SRC_GROUP_WORKS_API_H */
