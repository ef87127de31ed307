/* ddp/backward.h - one backward pass, from begin to end

   Knows: which parameters are complete, unused or missing. Promises: backward_end returns the first
   failure of the pass, on every rank. */
#ifndef CDP_SRC_DDP_BACKWARD_H
#define CDP_SRC_DDP_BACKWARD_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/child.h"
#include "../group/deferred.h"
#include "group_access.h"
#include "state.h"
#include "log.h"
#include "buckets.h"
#include "broadcast.h"
#include "bucket_launch.h"
#include "deliver.h"
#include "rows.h"

#ifndef CDP_NO_DDP

CDP_API bool cdp_ddp_is_no_sync(const cdp_ddp *d) {
    return cdp__ddp_lives(d) && !d->sync_next;
}

CDP_API cdp_status cdp_ddp_no_sync(cdp_ddp *d, bool on) {
    const cdp_status st = cdp__ddp_between(d, "cdp_ddp_no_sync");
    if (st == CDP_OK) d->sync_next = !on;
    return st;
}

/* The number of the pass that records the order of parameters. With a static graph, the first
   pass launches nothing until its end, so it has no order. */
CDP__PRIVATE uint64_t cdp__ddp_observed(const cdp_ddp *d) {
    return d->desc.static_graph ? 1 : 0;
}

/* Rebuilds the buckets in the order that rank 0 has recorded, unless a hook keeps state for each
   bucket. */
CDP__PRIVATE cdp_status cdp__ddp_rebuild(cdp_ddp *d) {
    cdp_status st;
    if (!d->rebuild_due || d->stats.steps <= cdp__ddp_observed(d)
        || (d->hook.stage && d->hook.keeps_layout))
        return CDP_OK;
    d->rebuild_due = false;
    st = cdp__must_not_wait();
    if (st == CDP_OK)
        st = cdp__ddp_copy_from(d, 0, CDP__TAG_ORDER, d->order, d->param_count, CDP_DTYPE_U32);
    if (st == CDP_OK) st = cdp_work_wait(d->last);
    if (st != CDP_OK) return st;
    st = cdp__ddp_place(d, d->order);
    if (st != CDP_OK) { /* other ranks continue with new buckets, so this rank cannot */
        const cdp_error why = *cdp_last_error();
        cdp__group_abort_now(d->group, why.text);
        *cdp__error_slot() = why; /* the reason, not the error of the abort */
    }
    d->stats.rebuilt = st == CDP_OK;
    return st;
}

CDP_API cdp_status cdp_ddp_forward_begin(cdp_ddp *d) {
    cdp_status st = cdp__ddp_between(d, "cdp_ddp_forward_begin");
    if (st != CDP_OK) return st;
    d->forward_ns = d->os->now_ns(d->os->user);
    st = cdp_group_status(d->group);
    if (st == CDP_OK) st = cdp__ddp_rebuild(d);
    return st == CDP_OK && d->sync_next ? cdp__ddp_send_buffers(d) : st;
}

/* Begins a pass, also one in which this rank has no data. */
CDP__PRIVATE cdp_status cdp__ddp_begin(cdp_ddp *d, bool sync) {
    cdp_status st = cdp_group_status(d->group);
    uint32_t i;
    if (st == CDP_OK) st = cdp__ddp_rebuild(d);
    if (st == CDP_OK && sync) st = cdp__ddp_send_buffers(d);
    d->in_backward = true;
    d->sync = sync;
    d->launched = 0;
    d->failed = CDP_OK;
    d->called_ns = 0;
    d->active.seq = d->used.seq = 0;
    memset(d->at, 0, sizeof d->at);
    for (i = 0; i < d->bucket_count; ++i) {
        d->buckets[i].pending = d->buckets[i].params;
        d->buckets[i].done = false;
        d->buckets[i].late_ns = 0;
    }
    for (i = 0; i < d->param_count; ++i) {
        cdp__param *p = &d->params[i];
        p->mark = CDP__MARK_NONE;
        p->calls = 0;
        p->ready_ns = 0;
        cdp__param_drop_moved(p);
    }
    if (sync) d->stats.sent_bytes = d->ordered = 0;
    d->begin_ns = d->os->now_ns(d->os->user);
    return st;
}

/* Checks a call of ready() or unused() before parameter i is accessed. */
CDP__PRIVATE cdp_status cdp__ddp_call_check(cdp_ddp *d, uint32_t i, const char *call) {
    const cdp_status st = cdp__ddp_free_to(d, call);
    if (st != CDP_OK) return st;
    if (!d->in_backward)
        return cdp__fail(CDP_ERR_STATE,
            "%s(%u): no backward pass is open; call cdp_ddp_backward_begin first", call, i);
    if (i < d->param_count) return CDP_OK;
    return cdp__ddp_fail(d,
        cdp__fail(CDP_ERR_INVALID, "%s(%u): it should be less than param_count, %u", call, i,
            d->param_count));
}

/* Reports that parameter i is marked already and cannot be marked as `now` in this pass. */
CDP__PRIVATE cdp_status cdp__ddp_marked_twice(cdp_ddp *d, uint32_t i, cdp__mark now) {
    static const char *const how[2][2] = {
        {"ready twice", "ready and then unused"}, {"unused and then ready", "unused twice"}};
    const cdp__param *p = &d->params[i];
    const uint32_t rank = cdp_rank(d->group);
    if (d->recorded && d->sync)
        return cdp__ddp_fail(d,
            cdp__fail_peer(CDP_ERR_STATE, rank, 0,
                "static graph: parameter '%s' (index %u) was marked ready %u times in the first "
                "synchronized pass of rank %u, and now once more; without static_graph passes may "
                "differ",
                p->name, i, p->want, rank));
    if (cdp__param_uses(p) > 1 && p->calls == cdp__param_uses(p))
        return cdp__ddp_fail(d,
            cdp__fail_peer(CDP_ERR_STATE, rank, 0,
                "parameter '%s' (index %u) was marked ready more often in one backward pass of "
                "rank "
                "%u than its .uses says, %u",
                p->name, i, rank, cdp__param_uses(p)));
    return cdp__ddp_fail(d,
        cdp__fail_peer(CDP_ERR_STATE, rank, 0,
            "parameter '%s' (index %u) was marked %s in one backward pass of rank %u; mark it "
            "once, when its gradient is complete",
            p->name, i, how[p->mark == CDP__MARK_UNUSED][now == CDP__MARK_UNUSED], rank));
}

/* Parameter i is complete in this pass: its bucket waits for one parameter less. If the gradient
   is in the caller's own array, it is copied to the bucket first. */
CDP__PRIVATE void cdp__ddp_complete(cdp_ddp *d, uint32_t i) {
    cdp__param *p = &d->params[i];
    if (p->mark == CDP__MARK_READY && p->user.grad)
        cdp__ddp_copy(d, p->grad, p->user.grad, cdp__param_bytes(p));
    cdp_lock_acquire(&d->lock);
    CDP_ASSERT(d->ordered < d->param_count && d->buckets[p->bucket].pending);
    d->last_order[d->ordered] = i;
    if (d->stats.steps == cdp__ddp_observed(d)) d->order[d->ordered] = i;
    ++d->ordered;
    --d->buckets[p->bucket].pending;
    cdp_lock_release(&d->lock);
}

CDP_API cdp_status cdp_ddp_backward_begin(cdp_ddp *d) {
    cdp_status st = cdp__ddp_free_to(d, "cdp_ddp_backward_begin");
    uint32_t i;
    if (st != CDP_OK) return st;
    if (d->in_backward && cdp_group_status(d->group) == CDP_OK)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_ddp_backward_begin: the backward pass before this one has not ended; call "
            "cdp_ddp_backward_end first");
    st = cdp__ddp_begin(d, d->sync_next);
    /* kept, so that backward_end reports it if the caller ignores it here */
    (void)cdp__ddp_fail(d, st);
    /* static graph: the first pass has shown which parameters are never ready */
    for (i = 0; d->sync && d->recorded && i < d->param_count; ++i) {
        if (d->params[i].want) continue;
        d->params[i].mark = CDP__MARK_UNUSED;
        cdp__ddp_complete(d, i);
    }
    return st;
}

/* True if parameter p may be marked ready now. The caller holds the ddp's lock. */
CDP__PRIVATE bool cdp__ddp_may_be_ready(const cdp_ddp *d, const cdp__param *p) {
    if (p->mark == CDP__MARK_UNUSED) return false;
    if (!d->desc.static_graph) return p->calls < cdp__param_uses(p);
    return !d->sync || !d->recorded || p->calls < p->want;
}

/* Parameter i is marked and its gradient is in place: launches full buckets. */
CDP__PRIVATE cdp_status cdp__ddp_marked_ready(cdp_ddp *d, uint32_t i, bool complete) {
    if (!complete) return CDP_OK;
    d->params[i].ready_ns = d->os->now_ns(d->os->user);
    cdp__ddp_complete(d, i);
    return cdp__ddp_fail(d, cdp__ddp_launch_ready(d));
}

/* Marks p ready. True: it is complete, and is reduced in this pass. The caller holds the ddp's
   lock. */
CDP__PRIVATE bool cdp__ddp_mark_ready(cdp_ddp *d, cdp__param *p) {
    p->mark = CDP__MARK_READY;
    ++p->calls;
    if (!d->sync) p->touched = true;
    if (!d->sync) return false;
    return d->desc.static_graph ? d->recorded && p->calls == p->want
                                : p->calls == cdp__param_uses(p);
}

CDP_API cdp_status cdp_ddp_ready(cdp_ddp *d, uint32_t i) {
    const cdp_status st = cdp__ddp_call_check(d, i, "cdp_ddp_ready");
    bool may, complete = false;
    if (st != CDP_OK) return st;
    if (d->params[i].sparse)
        return cdp__ddp_fail(d,
            cdp__fail(CDP_ERR_INVALID,
                "cdp_ddp_ready: parameter '%s' (index %u) is sparse; give its rows to "
                "cdp_ddp_ready_rows",
                d->params[i].name, i));
    cdp_lock_acquire(&d->lock);
    may = cdp__ddp_may_be_ready(d, &d->params[i]);
    if (may) complete = cdp__ddp_mark_ready(d, &d->params[i]);
    cdp_lock_release(&d->lock);
    return may ? cdp__ddp_marked_ready(d, i, complete)
               : cdp__ddp_marked_twice(d, i, CDP__MARK_READY);
}

#ifndef CDP_NO_TRAINING
/* Checks the arguments of ready_from. */
CDP__PRIVATE cdp_status cdp__ddp_check_from(
    const cdp_ddp *d, const cdp__param *p, uint32_t i, const void *grad) {
    const cdp_backend *b = cdp_group_backend(d->group);
    const int own = grad && b ? b->owns(b->self, grad) : 0;
    if (own < 0) return (cdp_status)own;
    if ((p->user.grad && !p->moved) || d->desc.grad_arena)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_ready_from: parameter '%s' (index %u) has a gradient array of its own; leave "
            "cdp_param.grad and grad_arena NULL, or call cdp_ddp_ready",
            p->name, i);
    if (!d->sync)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_ddp_ready_from: parameter '%s' (index %u): under no_sync gradients stay where "
            "they "
            "are, and passes add to them; give them an array that does not move",
            p->name, i);
    if ((!grad && p->user.count) || (uintptr_t)grad % p->elem
        || (grad && (own != 0) != cdp__ddp_on_device(d)))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_ready_from: the gradient of parameter '%s' (index %u) is NULL, not aligned to "
            "%u bytes, or not in the memory of its parameter",
            p->name, i, (uint32_t)p->elem);
    return CDP_OK;
}

CDP_API cdp_status cdp_ddp_ready_from(cdp_ddp *d, uint32_t i, void *grad) {
    cdp_status st = cdp__ddp_call_check(d, i, "cdp_ddp_ready_from");
    if (st != CDP_OK) return st;
    if (d->params[i].sparse) return cdp_ddp_ready(d, i); /* which says so */
    st = cdp__ddp_fail(d, cdp__ddp_check_from(d, &d->params[i], i, grad));
    if (st != CDP_OK) return st;
    d->params[i].user.grad = grad;
    d->params[i].moved = true;
    return cdp_ddp_ready(d, i);
}
#endif

#ifndef CDP_NO_SPARSE
/* Checks the arguments of ready_rows. */
CDP__PRIVATE cdp_status cdp__ddp_check_rows(
    const cdp__param *p, uint32_t i, const uint32_t *rows, uint32_t n, const void *values) {
    uint32_t k;
    if (!p->sparse)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_ready_rows: parameter '%s' (index %u) is not sparse; set sparse and rows, or "
            "call cdp_ddp_ready",
            p->name, i);
    if (n && (!rows || !values))
        return cdp__missing("cdp_ddp_ready_rows", rows ? "values" : "rows");
    for (k = 0; k < n; ++k)
        if (rows[k] >= p->user.rows)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ddp_ready_rows: parameter '%s' (index %u) has %u rows, not row %u", p->name, i,
                (uint32_t)p->user.rows, rows[k]);
    return CDP_OK;
}

CDP_API cdp_status cdp_ddp_ready_rows(
    cdp_ddp *d, uint32_t i, const uint32_t *rows, uint32_t n, const void *values) {
    cdp_status st = cdp__ddp_call_check(d, i, "cdp_ddp_ready_rows");
    bool may, stored = false, complete = false;
    cdp__param *p;
    if (st != CDP_OK) return st;
    p = &d->params[i];
    st = cdp__ddp_fail(d, cdp__ddp_check_rows(p, i, rows, n, values));
    if (st != CDP_OK) return st;
    cdp_lock_acquire(&d->lock);
    may = cdp__ddp_may_be_ready(d, p);
    if (may) stored = cdp__sparse_append(d, p, rows, n, values);
    if (stored) complete = cdp__ddp_mark_ready(d, p);
    cdp_lock_release(&d->lock);
    if (!may) return cdp__ddp_marked_twice(d, i, CDP__MARK_READY);
    if (!stored) return cdp__ddp_fail(d, cdp__fail_nomem("rows of a gradient", n));
    return cdp__ddp_marked_ready(d, i, complete);
}
#endif /* CDP_NO_SPARSE */

CDP_API cdp_status cdp_ddp_unused(cdp_ddp *d, uint32_t i) {
    const cdp_status st = cdp__ddp_call_check(d, i, "cdp_ddp_unused");
    bool known, may;
    cdp__param *p;
    if (st != CDP_OK) return st;
    p = &d->params[i];
    if (!d->desc.find_unused && !d->desc.static_graph)
        return cdp__ddp_fail(d,
            cdp__fail(CDP_ERR_INVALID,
                "cdp_ddp_unused: parameter '%s' (index %u): set find_unused in the desc on all "
                "ranks, so that they can agree on which parameters no rank used",
                p->name, i));
    cdp_lock_acquire(&d->lock);
    known = d->sync && d->recorded; /* the first pass of a static graph has decided it */
    may = known ? p->mark == CDP__MARK_UNUSED : p->mark == CDP__MARK_NONE;
    if (may) p->mark = CDP__MARK_UNUSED;
    cdp_lock_release(&d->lock);
    if (!may) return cdp__ddp_marked_twice(d, i, CDP__MARK_UNUSED);
    if (known || !d->sync || d->desc.static_graph) return CDP_OK;
    cdp__ddp_complete(d, i);
    return cdp__ddp_fail(d, cdp__ddp_launch_ready(d));
}

/* The buckets have arrived. */
CDP__PRIVATE cdp_status cdp__ddp_collect(cdp_ddp *d) {
    const cdp_status st = cdp__ddp_read_active(d);
    if (st != CDP_OK) return st;
    return d->sparse_count ? cdp__ddp_sparse(d) : cdp__ddp_arrived(d);
}

/* All operations of a synchronized pass have ended. On a device, waits for kernels of a hook, too,
   which belong to no operation. If no rank had data, the pass ends here. */
CDP__PRIVATE cdp_status cdp__ddp_reduced(cdp_ddp *d) {
    if (d->shadow && !d->stats.active_ranks) return CDP_OK;
    if (!cdp__ddp_on_device(d)) return cdp__ddp_collect(d);
    return cdp__ddp_then(d, cdp__group_device_work(d->group), cdp__ddp_collect);
}

/* The hook finishes with every bucket, then all operations end. */
CDP__PRIVATE cdp_status cdp__ddp_finish(cdp_ddp *d) {
    cdp_status st = CDP_OK;
    uint32_t i = d->hook.stage ? 0 : d->bucket_count;
    if (d->hook.stage) st = cdp__ddp_advance(d);
    while (i < d->bucket_count && d->buckets[i].done)
        ++i;
    if (st == CDP_OK && i < d->bucket_count)
        return cdp__ddp_then(d, d->buckets[i].work, cdp__ddp_finish);
    return cdp__ddp_after(d, st, cdp__ddp_reduced);
}

/* Launches what is complete, and goes on with the end of the pass. */
CDP__PRIVATE cdp_status cdp__ddp_launch_rest(cdp_ddp *d) {
    const cdp_status st = cdp__ddp_launch_ready(d);
    if (st != CDP_OK) return st;
    if (d->launched == d->bucket_count) return cdp__ddp_finish(d);
    CDP_ASSERT(d->active.seq); /* the operation that sums the divisor of the hook */
    return cdp__ddp_then(d, d->active, cdp__ddp_launch_rest);
}

/* True if a parameter was marked ready, but not as often as it is used. */
CDP__PRIVATE bool cdp__ddp_is_short(const cdp_ddp *d, const cdp__param *p) {
    if (p->mark != CDP__MARK_READY) return false;
    if (d->desc.static_graph) return d->recorded && p->calls < p->want;
    return p->calls < cdp__param_uses(p);
}

/* Reports parameters that were not marked ready; a long list is truncated. CDP_OK: there are
   none. */
CDP__PRIVATE cdp_status cdp__ddp_missing(cdp_ddp *d) {
    char names[256];
    cdp__text t = cdp__text_of(names, sizeof names);
    uint32_t i, count = 0;
    for (i = 0; i < d->param_count; ++i) {
        const cdp__param *p = &d->params[i];
        if (p->mark != CDP__MARK_NONE && !cdp__ddp_is_short(d, p)) continue;
        if (count++ < 5 && CDP__TEXTS)
            cdp__text_add(&t, "%s'%s' (index %u)", count > 1 ? ", " : "", p->name, i);
    }
    if (count > 5 && CDP__TEXTS) cdp__text_add(&t, " and %u more", count - 5);
    if (!count) return CDP_OK;
    if (d->recorded)
        return cdp__fail_peer(CDP_ERR_STATE, cdp_rank(d->group), 0,
            "backward pass of rank %u ended although %u of %u parameters were never marked ready "
            "as often as in the first synchronized pass (static graph): %s",
            cdp_rank(d->group), count, d->param_count, names);
    return cdp__fail_peer(CDP_ERR_STATE, cdp_rank(d->group), 0,
        d->desc.find_unused
            ? "backward pass of rank %u ended although %u of %u parameters were never marked "
              "ready: %s"
            : "backward pass of rank %u ended although %u of %u parameters were never marked "
              "ready: %s; if they have no gradient in this pass, set find_unused in the desc",
        cdp_rank(d->group), count, d->param_count, names);
}

/* Ends the marking of a pass: unmarked parameters count as unused where that is allowed, and the
   first pass of a static graph launches its buckets now. */
CDP__PRIVATE cdp_status cdp__ddp_close(cdp_ddp *d) {
    const bool first = d->desc.static_graph && !d->recorded;
    uint32_t i;
    for (i = 0; i < d->param_count; ++i) {
        cdp__param *p = &d->params[i];
        const bool open = p->mark == CDP__MARK_NONE;
        if (open && !d->shadow && !first && (!d->desc.find_unused || d->recorded))
            return cdp__ddp_missing(d);
        if (open) p->mark = CDP__MARK_UNUSED;
        if (first && !d->shadow) p->want = p->calls;
        if (!open && cdp__ddp_is_short(d, p) && (!d->desc.find_unused || d->recorded))
            return cdp__ddp_missing(d);
        if (open || (first && !d->shadow) || cdp__ddp_is_short(d, p)) cdp__ddp_complete(d, i);
    }
    if (first && !d->shadow) d->recorded = true;
    return cdp__ddp_launch_rest(d);
}

#ifdef CDP_NO_JOIN
CDP__PRIVATE cdp_status cdp__ddp_uneven(const cdp_ddp *d) {
    (void)d;
    return CDP_OK;
}
#else
/* With join_throw: reports the ranks that have run out of data while others have not. */
CDP__PRIVATE cdp_status cdp__ddp_uneven(const cdp_ddp *d) {
    const uint32_t used = d->buckets->used_flags, n = cdp_size(d->group);
    char ranks[128];
    cdp__text t = cdp__text_of(ranks, sizeof ranks);
    uint32_t i, first = n, count = n - d->stats.active_ranks;
    if (!d->desc.join_throw || !count || count == n) return CDP_OK;
    for (i = 0; i < n; ++i) {
        if (cdp__flag_get(d->buckets, used + i)) continue;
        cdp__text_add(&t, first < n ? ", %u" : "%u", i);
        if (first == n) first = i;
    }
    return cdp__fail_peer(CDP_ERR_STATE, first, 0,
        "%u of %u ranks ran out of data before the others (join_throw): rank %s", count, n, ranks);
}
#endif

/* Begins the end of a pass. */
CDP__PRIVATE cdp_status cdp__ddp_end(cdp_ddp *d) {
    d->called_ns = d->os->now_ns(d->os->user);
    return d->failed == CDP_OK && d->sync ? cdp__ddp_close(d) : d->failed;
}

/* The pass has ended with this status. Returns what backward_end returns. */
CDP__PRIVATE cdp_status cdp__ddp_ended(cdp_ddp *d, cdp_status st) {
    (void)cdp__ddp_fail(d, st);
    st = d->failed;
    if (st != CDP_OK && d->sync) {
        cdp__ddp_break(d);
        /* the group's error is the first cause */
        if (cdp_group_status(d->group) != CDP_OK) st = cdp_group_status(d->group);
    }
    if (st != CDP_OK && !d->sync) *cdp__error_slot() = d->failed_error;
    if (st == CDP_OK && d->sync) st = cdp__ddp_uneven(d);
    d->in_backward = false;
    return st;
}

CDP__PRIVATE cdp_status cdp__ddp_may_end(cdp_ddp *d, const char *call) {
    const cdp_status st = cdp__ddp_free_to(d, call);
    if (st != CDP_OK || d->in_backward) return st;
    return cdp__fail(
        CDP_ERR_STATE, "%s: no backward pass is open; call cdp_ddp_backward_begin first", call);
}

CDP_API cdp_status cdp_ddp_backward_end(cdp_ddp *d) {
    const cdp_status st = cdp__ddp_may_end(d, "cdp_ddp_backward_end");
    return st == CDP_OK ? cdp__ddp_ended(d, cdp__ddp_wait(d, cdp__ddp_end(d))) : st;
}

#ifndef CDP_NO_FRAMES
CDP_API cdp_status cdp_ddp_backward_end_start(cdp_ddp *d) {
    cdp_status st = cdp__ddp_may_end(d, "cdp_ddp_backward_end_start");
    if (st != CDP_OK) return st;
    d->task = CDP__DDP_ENDS;
    st = cdp__ddp_end(d);
    if (st == CDP_PENDING) return CDP_OK;
    (void)cdp__ddp_fail(d, st); /* cdp_ddp_poll() reports it */
    (void)cdp__ddp_at_once(d, cdp__ddp_failed);
    return CDP_OK;
}

CDP_API cdp_status cdp_ddp_poll(cdp_ddp *d, uint32_t budget_us) {
    cdp_status st;
    uint64_t now, until;
    if (!cdp__ddp_lives(d)) return cdp__ddp_refuse(d, "cdp_ddp_poll");
    if (d->task == CDP__DDP_FAILED) *cdp__error_slot() = d->failed_error;
    if (d->task == CDP__DDP_FAILED) return d->failed;
    if (!cdp__ddp_has_group(d) || cdp__is_child(d->group->w->forks))
        return cdp__ddp_refuse(d, "cdp_ddp_poll");
    if (d->task == CDP__DDP_IDLE) return CDP_OK;
    now = d->os->now_ns(d->os->user);
    until = now + budget_us * 1000ull;
    do {
        st = cdp_work_poll(d->awaits, (uint32_t)((until - now) / 1000));
        if (st == CDP_OK) st = d->stage(d);
        now = d->os->now_ns(d->os->user);
    } while (st == CDP_PENDING && now < until);
    if (st == CDP_PENDING) return st;
    if (d->task == CDP__DDP_ENDS) {
        d->task = CDP__DDP_IDLE;
        return cdp__ddp_ended(d, st);
    }
    (void)cdp__ddp_fail(d, st);
    d->task = st == CDP_OK ? CDP__DDP_IDLE : CDP__DDP_FAILED;
    if (st == CDP_OK) cdp__ddp_log_made(d);
    return st;
}
#endif

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_BACKWARD_H */
