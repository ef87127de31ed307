/* ddp/deliver.h - what is left to do when all gradients have arrived

   Knows: buckets, divisors, where the caller reads gradients. Promises: a step copies at most
   CDP__STEP_BYTES. */
#ifndef CDP_SRC_DDP_DELIVER_H
#define CDP_SRC_DDP_DELIVER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/hash.h"
#include "../message/stream.h"
#include "state.h"
#include "log.h"
#include "buckets.h"
#include "stats.h"
#include "bucket_launch.h"

#ifndef CDP_NO_DDP

/* One step that applies the rest of the divisor; or clears a bucket whose mean was used up. */
CDP__PRIVATE void cdp__ddp_divide(cdp_ddp *d, cdp__bucket *b) {
    const cdp_real by = d->hook.stage ? 1 : cdp__ddp_rest(d, b->dtype);
    const bool spent = cdp__ddp_leaves(d, CDP__DDP_SPENT);
    uint64_t at;
    const uint64_t n = cdp__ddp_piece(d, by != 1 || spent ? cdp__bucket_bytes(b) : 0, &at);
    if (n && spent)
        cdp__ddp_zero(d, b->memory + at, n);
    else if (n)
        (void)cdp__ddp_fail(d, cdp__ddp_divide_data(d, b->dtype, b->memory + at, n / b->elem, by));
}

/* One step that copies the result of one parameter to where the caller reads it. `used`: at least
   one rank had a gradient for the parameter. If not, the gradient is restored to its content before
   the step. */
CDP__PRIVATE void cdp__ddp_deliver_param(cdp_ddp *d, cdp__param *p, bool used) {
    const uint64_t bytes = cdp__param_bytes(p);
    const uint8_t *from = used ? p->grad : p->kept;
    uint8_t *const to = used ? (uint8_t *)p->user.grad : p->grad;
    const bool copied = from && to && !d->shadow && used == (p->user.grad != NULL);
    uint64_t at, n;
    if (!CDP__BUDGETS || !d->at_byte) {
        p->used = used;
        if (!used) {
            ++d->stats.unused_count;
            d->stats.unused_bytes += bytes;
        }
    }
    n = cdp__ddp_piece(d, copied ? bytes : 0, &at);
    if (n) cdp__ddp_copy(d, to + at, from + at, n);
}

/* The pass has ended well. */
CDP__PRIVATE cdp_status cdp__ddp_delivered(cdp_ddp *d) {
    uint64_t marks = CDP__HASH_START;
    uint32_t i;
    for (i = 0; i < d->param_count; ++i) {
        cdp__param *p = &d->params[i];
        const uint8_t mark = p->mark == CDP__MARK_READY || p->touched;
        marks = cdp__hash(marks, &mark, 1);
        p->touched = false;
    }
    if (!d->shadow) {
        if (d->own_steps && marks != d->marks) d->stats.can_set_static_graph = false;
        d->marks = marks;
    }
    if (d->failed != CDP_OK) return d->failed;
    if (!d->shadow) cdp__ddp_account(d);
    ++d->stats.steps;
    if (!d->shadow) cdp__ddp_log_step(d);
    d->buffers_due = d->desc.buffer_hook || (d->desc.buffer_count && !d->desc.no_buffer_broadcast);
    return CDP_OK;
}

/* One step after all operations of the pass: works on a bucket, then on a parameter. */
CDP__PRIVATE cdp_status cdp__ddp_deliver(cdp_ddp *d) {
    cdp__bucket *last = &d->buckets[d->bucket_count - 1];
    const uint32_t flags = last->used_flags;
    do {
        const uint32_t i = d->item - d->bucket_count;
        if (d->item < d->bucket_count)
            cdp__ddp_divide(d, &d->buckets[d->item]);
        else if (i < d->param_count)
            cdp__ddp_deliver_param(d, &d->params[i], !flags || cdp__flag_get(last, i));
        else
            return cdp__ddp_delivered(d);
    } while (!CDP__BUDGETS);
    return cdp__ddp_at_once(d, cdp__ddp_deliver);
}

/* Everything has arrived. */
CDP__PRIVATE cdp_status cdp__ddp_arrived(cdp_ddp *d) {
    cdp__bucket *last = &d->buckets[d->bucket_count - 1];
    d->end_ns = d->os->now_ns(d->os->user);
    cdp__flags_move(d, last, last->used_flags, false);
    d->stats.unused_count = 0;
    d->stats.unused_bytes = 0;
    d->item = 0;
    d->at_byte = 0;
    return cdp__ddp_deliver(d);
}

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_DELIVER_H */
