/* ddp/state.h - the data of a ddp

   Knows: all members of a ddp, and whether gradients are in host or device memory. Promises: the
   first failure of a pass is kept. */
#ifndef CDP_SRC_DDP_STATE_H
#define CDP_SRC_DDP_STATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/backend_api.h"
#include "ddp_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/helpers.h"
#include "../base/text.h"
#include "../base/ended.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "../message/stream.h"
#include "../group/state.h"
#include "group_access.h"
#include "../dtype/numbers.h"

#ifndef CDP_NO_DDP

typedef enum cdp__mark {
    CDP__MARK_NONE,
    CDP__MARK_READY,
    CDP__MARK_UNUSED
} cdp__mark;

/* A sparse parameter: the rows that this rank has received since the last synchronized pass, and
   the mean that this pass computed. */
typedef struct cdp__sparse {
    uint32_t *rows, *mean_rows;
    uint32_t *place; /* for each row of the matrix: its position in the mean, from 1; 0: none */
    uint8_t *values, *mean;
    uint64_t used, room, mean_used, mean_room;
    /* the rows of all ranks while they are exchanged */
    uint32_t *all_rows;
    uint8_t *all_values;
    uint64_t all_used, all_room;
} cdp__sparse;

typedef struct cdp__param {
    cdp_param user; /* as the caller gave it, with defaults; its name is a copy */
    char *name;
    uint32_t bucket;
    uint64_t elem; /* bytes of one element */
    uint8_t *grad; /* the gradient's position in its bucket */
    uint8_t
        /* copy of the gradient, restored if no rank used the parameter; allocated when first
           needed */
        *kept;
    cdp__mark mark;       /* in this pass */
    bool touched;         /* this rank had a gradient for it since the last synchronized pass */
    bool used;            /* some rank had a gradient for it in the last synchronized pass */
    uint32_t calls, want; /* calls of ready() in this pass; expected calls (static graph) */
    uint64_t ready_ns;
    cdp__sparse *sparse; /* NULL: dense */
#ifndef CDP_NO_TRAINING
    bool moved; /* user.grad is of this pass alone, see cdp_ddp_ready_from() */
#endif
} cdp__param;

typedef struct cdp__bucket {
    uint8_t *memory; /* gradients, then flags that are summed with them */
    uint64_t room;   /* its bytes */
    uint64_t count;  /* elements, without the flags */
    cdp_dtype dtype;
    uint64_t elem;            /* bytes of one element */
    uint32_t params, pending; /* its parameters; those not complete yet */
    uint32_t used_flags;      /* flags which say that a parameter was used; only in the last one */
    const uint32_t *slots;    /* indices of its parameters, in memory order */
    bool done;                /* the hook has finished with this bucket */
    uint8_t *flags;           /* flags on the host if gradients are in device memory; else NULL */
    cdp_work work;
    uint64_t start_ns, end_ns; /* written with the group's lock held */
    uint64_t late_ns;          /* duration of further operations, which only hooks start */
    cdp_bucket view;           /* what the hook sees */
} cdp__bucket;

#define CDP__HOOK_GROUPS 8u

/* What a synchronized pass leaves in gradients. */
typedef enum cdp__ddp_result {
    CDP__DDP_MEAN,  /* the mean, or what a hook made of it */
    CDP__DDP_PARTS, /* the mean of the elements that this rank updates; the others mean nothing */
    CDP__DDP_SPENT  /* zeros: parameters were updated */
} cdp__ddp_result;

/* What cdp_ddp_poll() goes on with. */
typedef enum cdp__ddp_task {
    CDP__DDP_IDLE,
    CDP__DDP_CREATES,
    CDP__DDP_ENDS,
    CDP__DDP_FAILED /* creation has failed */
} cdp__ddp_task;

/* Members that much code uses come first. */
struct cdp_ddp {
    cdp_group *group;
    const cdp_os *os;
    cdp__param *params;
    uint32_t param_count, bucket_count;
    cdp__bucket *buckets;
    const cdp_backend *device; /* where parameters and gradients are; NULL: in host memory */
    cdp_buffer *buffers;
    bool in_backward, sync, sync_next;
    bool rebuild_due, buffers_due;
    bool recorded;     /* static graph: the first pass is over */
    bool shadow;       /* this rank is out of data and contributes zeros in this pass */
    bool equal;        /* all ranks had data in the last pass in which any rank had data */
    uint32_t root;     /* the highest rank that had data in that pass */
    uint32_t launched; /* buckets that have started in this pass */
    cdp_status failed; /* the first failure of this pass */
    cdp_work last;     /* the last operation started in `group` */
    /* Creation and backward_end run in stages: the next one, when `awaits` is done. */
    cdp_status (*stage)(cdp_ddp *d);
    cdp__ddp_task task;
    uint32_t item; /* of what a stage works on, and where it goes on there, in bytes */
    uint64_t at_byte;
    uint64_t begin_ns, called_ns, forward_ns, end_ns;
    cdp_work awaits;

    cdp_ddp_desc desc; /* with defaults; its pointers to params and buffers are not used */
    uint32_t *slots;   /* indices of parameters, in memory order */
    uint8_t *pack;     /* small parameters or buffers are broadcast from here in one message */
    uint64_t pack_bytes;
    uint32_t *order; /* order in which parameters became complete in the first synchronized pass */
    uint32_t *last_order, ordered; /* that order in the last pass; number of complete parameters */

    /* Several threads may call ready() in one pass. The lock guards marks, `pending`, rows of
       sparse parameters, `failed` and the next two members. The others are only used by the
       thread that has set `launching`, or by the thread that begins and ends passes. */
    cdp_lock lock;
    bool launching, launch_again;

    cdp_hook hook; /* stage NULL: none */
#ifndef CDP_NO_TRAINING
    cdp__ddp_result result;
#endif
    /* groups in which the stages of a hook run; the first one is `group` */
    cdp_group *groups[CDP__HOOK_GROUPS];
    uint32_t at[CDP__HOOK_GROUPS + 1]; /* the next bucket for each stage */
    cdp_work active, used;             /* operations that sum flags which a hook must not see */
    uint32_t number;                   /* number of this ddp in its group */
    uint32_t group_made;               /* which of the groups at this address `group` is */
    bool group_memory;                 /* buckets may be in memory of the group's transport */
    uint32_t sparse_count;
    uint64_t *sparse_counts; /* rows of each rank and sparse parameter, then of one parameter */
    bool placed;             /* `device` is decided */
    uint64_t own_steps;      /* synchronized passes in which this rank had data */
    /* hash of the parameters that this rank used in the last of these passes */
    uint64_t marks;
    cdp_ddp_stats stats;
    uint32_t pack_first, pack_root; /* of a broadcast: the first item that is not sent yet */
    uint32_t pack_tag;              /* what errors call it */
    uint64_t pack_used;
    bool rows_under_way; /* of the sparse parameter `item` */
    bool pack_sent;      /* its packed items are on their way, or are being unpacked */
    uint64_t *scratch;   /* what ranks compare at creation */

    cdp_error failed_error;
};

/* Runs `stage` next: when `work` is done; at once if `work` is zero. */
CDP__PRIVATE cdp_status cdp__ddp_then(cdp_ddp *d, cdp_work work, cdp_status (*stage)(cdp_ddp *d)) {
    d->awaits = work;
    d->stage = stage;
    return CDP_PENDING;
}
CDP__PRIVATE cdp_status cdp__ddp_at_once(cdp_ddp *d, cdp_status (*stage)(cdp_ddp *d)) {
    const cdp_work none = {NULL, 0};
    return cdp__ddp_then(d, none, stage);
}

/* The last stage of a task that has nothing left to do. */
CDP__PRIVATE cdp_status cdp__ddp_nothing(cdp_ddp *d) {
    (void)d;
    return CDP_OK;
}

/* Runs `stage` when the operation that was started last is done. `st`: what its start returned. */
CDP__PRIVATE cdp_status cdp__ddp_after(cdp_ddp *d, cdp_status st, cdp_status (*stage)(cdp_ddp *d)) {
    return st == CDP_OK ? cdp__ddp_then(d, d->last, stage) : st;
}

/* Runs stages until the last one has ended. `st` is what the first one has returned. */
CDP__PRIVATE cdp_status cdp__ddp_wait(cdp_ddp *d, cdp_status st) {
    while (st == CDP_PENDING) {
        st = cdp_work_wait(d->awaits);
        if (st == CDP_OK) st = d->stage(d);
    }
    return st;
}

/* False: it was destroyed, or is NULL. */
CDP__PRIVATE bool cdp__ddp_lives(const cdp_ddp *d) {
    return d && !cdp__ended(d);
}

/* True if the ddp has a group that was not destroyed. */
CDP__PRIVATE bool cdp__ddp_has_group(const cdp_ddp *d) {
    return d->group && !cdp__ended(d->group) && d->group->made == d->group_made;
}

/* The error for a call that the ddp cannot carry out in its present state. */
CDP__PRIVATE cdp_status cdp__ddp_refuse(const cdp_ddp *d, const char *call) {
    if (!d) return cdp__missing(call, "ddp");
    if (cdp__ended(d)) return cdp__fail(CDP_ERR_STATE, "%s: this ddp was destroyed", call);
#ifndef CDP_NO_GROUPS
    if (!d->group)
        return cdp__fail(CDP_ERR_STATE,
            "%s: cdp_ddp_rebind() has failed; call it again, or destroy this ddp", call);
#endif
    if (!cdp__ddp_has_group(d))
        return cdp__fail(CDP_ERR_STATE,
            "%s: the group of this ddp was destroyed; destroy the ddp before the group", call);
    if (cdp__is_child(d->group->w->forks)) return cdp__alive(d->group, call);
    if (CDP__BUDGETS && d->task == CDP__DDP_FAILED)
        return cdp__fail(
            CDP_ERR_STATE, "%s: the creation of this ddp has failed; destroy it", call);
    if (CDP__BUDGETS && d->task != CDP__DDP_IDLE)
        return cdp__fail(CDP_ERR_STATE,
            "%s: what cdp_ddp_%s_start has begun is under way; call cdp_ddp_poll until it no "
            "longer returns CDP_PENDING",
            call, d->task == CDP__DDP_CREATES ? "create" : "backward_end");
    return cdp__fail(
        CDP_ERR_STATE, "%s: a backward pass is open; call cdp_ddp_backward_end first", call);
}

/* Refuses calls while another one is under way. */
CDP__PRIVATE cdp_status cdp__ddp_free_to(const cdp_ddp *d, const char *call) {
    const bool idle = cdp__ddp_lives(d) && cdp__ddp_has_group(d)
        && !cdp__is_child(d->group->w->forks) && (!CDP__BUDGETS || d->task == CDP__DDP_IDLE);
    return idle ? CDP_OK : cdp__ddp_refuse(d, call);
}

/* Refuses calls while another one is under way, or while a backward pass is open. */
CDP__PRIVATE cdp_status cdp__ddp_between(const cdp_ddp *d, const char *call) {
    const cdp_status st = cdp__ddp_free_to(d, call);
    return st == CDP_OK && d->in_backward ? cdp__ddp_refuse(d, call) : st;
}

CDP__PRIVATE void cdp__ddp_set_result(cdp_ddp *d, cdp__ddp_result result) {
#ifdef CDP_NO_TRAINING
    (void)d;
    (void)result;
#else
    d->result = result;
#endif
}

CDP__PRIVATE bool cdp__ddp_leaves(const cdp_ddp *d, cdp__ddp_result result) {
#ifdef CDP_NO_TRAINING
    (void)d;
    return result == CDP__DDP_MEAN;
#else
    return d->result == result;
#endif
}

CDP__PRIVATE uint8_t *cdp__ddp_arena(const cdp_ddp *d) {
#ifdef CDP_NO_TRAINING
    (void)d;
    return NULL;
#else
    return (uint8_t *)d->desc.grad_arena;
#endif
}

/* True if flags travel in operations of their own: a hook, or memory of the caller, has no room for
   them behind the gradients. */
CDP__PRIVATE bool cdp__ddp_flags_apart(const cdp_ddp *d) {
    return d->hook.stage || cdp__ddp_arena(d);
}

/* Calls of ready() that make a parameter complete, if the graph is not static. */
CDP__PRIVATE uint32_t cdp__param_uses(const cdp__param *p) {
#ifdef CDP_NO_TRAINING
    (void)p;
    return 1;
#else
    return p->user.uses ? p->user.uses : 1;
#endif
}

/* True if parameters and gradients are in device memory. */
CDP__PRIVATE bool cdp__ddp_on_device(const cdp_ddp *d) {
#ifdef CDP_NO_BACKEND
    (void)d;
    return false;
#else
    return d->device != NULL;
#endif
}

/* Keeps the first failure of a pass, which backward_end reports again. Returns st. The caller
   must not hold the ddp's lock. */
CDP__PRIVATE CDP__ONE_COPY cdp_status cdp__ddp_fail(cdp_ddp *d, cdp_status st) {
    if (st == CDP_OK) return st;
    cdp_lock_acquire(&d->lock);
    if (d->failed == CDP_OK) {
        d->failed = st;
        d->failed_error = *cdp_last_error();
        d->failed_error.status = st; /* also where a function of the program has set no error */
    }
    cdp_lock_release(&d->lock);
    return st;
}

/* Before a function of the program is called: it shows afterwards whether that has set an error. */
CDP__PRIVATE cdp_status cdp__ddp_call_begin(void) {
    const cdp_status before = CDP__TEXTS ? cdp__error_slot()->status : CDP_OK;
    if (CDP__TEXTS) cdp__error_slot()->status = CDP_OK;
    return before;
}

/* After it: a failure has a text. `before`: what cdp__ddp_call_begin() has returned. */
CDP__PRIVATE cdp_status cdp__ddp_call_end(
    const cdp_ddp *d, cdp_status before, cdp_status st, const char *what) {
    const cdp_status set = CDP__TEXTS ? cdp__error_slot()->status : st;
    if (!CDP__TEXTS) return st;
    if (st != CDP_OK && set == CDP_OK)
        return cdp__fail(st < 0 ? st : CDP_ERR_INVALID,
            "rank %u/%u: %s of ddp %u returned %s, without saying why", cdp_rank(d->group),
            cdp_size(d->group), what, d->number, cdp_status_name(st));
    if (set == CDP_OK) cdp__error_slot()->status = before;
    return st > 0 ? set : st;
}

CDP__PRIVATE cdp_status cdp__ddp_failed(cdp_ddp *d) {
    cdp_status st;
    cdp_lock_acquire(&d->lock);
    st = d->failed;
    cdp_lock_release(&d->lock);
    return st;
}

/* Allocates zeroed memory for gradients. If a device cannot clear it, the end of the pass reports
   that. */
CDP__PRIVATE void *cdp__ddp_alloc(cdp_ddp *d, uint64_t bytes, const char *purpose) {
    void *p;
    if (!cdp__ddp_on_device(d)) return cdp__alloc_zero(d->os, bytes);
    *cdp__purpose() = purpose;
    p = d->device->alloc(d->device->self, bytes ? bytes : 1);
    *cdp__purpose() = NULL;
    if (p && bytes) (void)cdp__ddp_fail(d, d->device->zero(d->device->self, p, bytes));
    return p;
}

CDP__PRIVATE void cdp__ddp_free(cdp_ddp *d, void *p) {
    if (!d->device || !p)
        cdp__free(d->os, p);
    else if (cdp__ddp_has_group(d)
        && cdp_group_backend(d->group)) /* a backend frees its memory when it is destroyed */
        d->device->release(d->device->self, p);
}

CDP__PRIVATE void cdp__ddp_copy(cdp_ddp *d, void *dst, const void *src, uint64_t bytes) {
    if (!cdp__ddp_on_device(d))
        memcpy(dst, src, (size_t)bytes);
    else if (bytes)
        (void)cdp__ddp_fail(d, d->device->copy(d->device->self, dst, src, bytes));
}

CDP__PRIVATE void cdp__ddp_zero(cdp_ddp *d, void *dst, uint64_t bytes) {
    if (!cdp__ddp_on_device(d))
        memset(dst, 0, (size_t)bytes);
    else if (bytes)
        (void)cdp__ddp_fail(d, d->device->zero(d->device->self, dst, bytes));
}

/* Divides `n` numbers in the ddp's memory, on host or device. */
CDP__PRIVATE cdp_status cdp__ddp_divide_data(
    cdp_ddp *d, cdp_dtype t, void *data, uint64_t n, cdp_real by) {
    if (cdp__ddp_on_device(d))
        return n ? d->device->scale(d->device->self, t, data, n, 1 / by) : CDP_OK;
    cdp__divide_by(t, data, n, by);
    return CDP_OK;
}

/* The next piece of the current item, which has `bytes`: as much as one step may copy. *at: where
   it begins. The cursor moves behind it. */
CDP__PRIVATE uint64_t cdp__ddp_piece(cdp_ddp *d, uint64_t bytes, uint64_t *at) {
    *at = CDP__BUDGETS ? d->at_byte : 0;
    bytes -= *at;
    if (CDP__BUDGETS && bytes > CDP__STEP_BYTES && !cdp__ddp_on_device(d)) {
        d->at_byte += CDP__STEP_BYTES;
        return CDP__STEP_BYTES;
    }
    if (CDP__BUDGETS) d->at_byte = 0;
    ++d->item;
    return bytes;
}

/* Other ranks wait for buckets that this rank will not send: breaks the group, so that they
   receive the reason. */
CDP__PRIVATE void cdp__ddp_break(cdp_ddp *d) {
    cdp__group_break_unless_failing(d->group, &d->failed_error);
    (void)cdp_group_status(d->group);
}

/* Number of elements and bytes of a parameter in its bucket. */
CDP__PRIVATE uint64_t cdp__param_count(const cdp__param *p) {
    return p->user.sparse ? 0 : p->user.count;
}

CDP__PRIVATE uint64_t cdp__param_bytes(const cdp__param *p) {
    return cdp__param_count(p) * p->elem;
}

/* A gradient array of the last pass alone is the caller's again, see cdp_ddp_ready_from(). */
CDP__PRIVATE void cdp__param_drop_moved(cdp__param *p) {
#ifdef CDP_NO_TRAINING
    (void)p;
#else
    if (p->moved) p->user.grad = NULL;
    p->moved = false;
#endif
}

CDP__PRIVATE uint64_t cdp__bucket_bytes(const cdp__bucket *b) {
    return b->count * b->elem;
}

/* The gradient between passes: in the caller's own array or in the bucket. NULL: the parameter
   is sparse. */
CDP__PRIVATE uint8_t *cdp__param_grad(const cdp__param *p) {
    if (p->sparse) return NULL;
    return p->user.grad ? (uint8_t *)p->user.grad : p->grad;
}

CDP__PRIVATE uint64_t cdp__sparse_width(const cdp_param *p) {
    return p->count / p->rows;
}

/* The number by which the sum of a bucket is finally divided. */
CDP__PRIVATE cdp_real cdp__ddp_divisor(const cdp_ddp *d) {
    if (d->desc.join_effective) return (cdp_real)cdp__max(d->stats.active_ranks, 1);
    return d->desc.divisor != 0 ? d->desc.divisor : (cdp_real)cdp_size(d->group);
}

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_STATE_H */
