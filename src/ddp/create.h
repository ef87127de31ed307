/* ddp/create.h - creating a ddp, and its checks

   Knows: valid descs. Promises: a ddp is created completely, or not at all. */
#ifndef CDP_SRC_DDP_CREATE_H
#define CDP_SRC_DDP_CREATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/backend_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "../base/bytes.h"
#include "../base/ended.h"
#include "../dtype/dtype.h"
#include "../message/stream.h"
#include "../group/state.h"
#include "../group/create.h"
#include "group_access.h"
#include "state.h"
#include "log.h"
#include "overlap.h"
#include "buckets.h"
#include "compare.h"

#ifndef CDP_NO_DDP

CDP__PRIVATE void cdp__sparse_free(cdp_ddp *d, cdp__sparse *s) {
    if (!s) return;
    cdp__free(d->os, s->rows);
    cdp__free(d->os, s->values);
    cdp__free(d->os, s->mean_rows);
    cdp__free(d->os, s->mean);
    cdp__free(d->os, s->place);
    cdp__free(d->os, s->all_rows);
    cdp__free(d->os, s->all_values);
    cdp__free(d->os, s);
}

#ifndef CDP_NO_FRAMES
/* Other ranks wait for what this one does not end: they receive the reason. */
CDP__PRIVATE void cdp__ddp_forsake(cdp_ddp *d) {
    if (d->task == CDP__DDP_IDLE || d->task == CDP__DDP_FAILED) return;
    if (d->task == CDP__DDP_ENDS && !d->sync) return; /* nobody waits */
    (void)cdp__ddp_fail(d,
        cdp__fail_peer(CDP_ERR_STATE, cdp_rank(d->group), 0,
            "rank %u/%u destroyed a ddp before cdp_ddp_poll had ended its %s", cdp_rank(d->group),
            cdp_size(d->group), d->task == CDP__DDP_CREATES ? "creation" : "backward pass"));
    cdp__ddp_break(d);
}
#endif

/* Waits for all operations that use memory of this ddp. */
CDP__PRIVATE void cdp__ddp_settle(cdp_ddp *d) {
    uint32_t i;
    (void)!cdp_work_wait(d->last);
    for (i = 0; d->in_backward && d->hook.stage && i < d->launched; ++i)
        (void)!cdp_work_wait(d->buckets[i].work);
    if (cdp__ddp_on_device(d))
        (void)!cdp_work_wait_for(
            cdp__group_device_work(d->group), cdp_group_desc_of(d->group)->timeout_ms);
}

/* Ends what the ddp does in its group. False: a callback must not do that. */
CDP__PRIVATE bool cdp__ddp_leave(cdp_ddp *d) {
    if ((d->in_backward || (CDP__BUDGETS && d->task))
        && cdp__destroys_inside(d->group, "cdp_ddp_destroy"))
        return false;
    /* destroyed after a failure, without backward_end */
    if (d->in_backward && d->sync && d->failed != CDP_OK) cdp__ddp_break(d);
#ifndef CDP_NO_FRAMES
    cdp__ddp_forsake(d);
#endif
    cdp__ddp_settle(d);
    return true;
}

CDP_API void cdp_ddp_destroy(cdp_ddp *d) {
    uint32_t i;
    if (!d) return;
    if (cdp__ended(d)) {
        (void)cdp__ddp_refuse(d, "cdp_ddp_destroy");
        return;
    }
    if (d->group && cdp__ddp_has_group(d)) {
        if (cdp__is_child(d->group->w->forks) || !cdp__ddp_leave(d)) return;
    }
    if (d->hook.destroy) d->hook.destroy(d->hook.self);
    for (i = 1; i < CDP__HOOK_GROUPS; ++i)
        if (d->groups[i] != d->group) cdp_group_destroy(d->groups[i]);
    cdp__ddp_free_buckets(d, d->buckets, d->bucket_count);
    for (i = 0; d->params && i < d->param_count; ++i) {
        cdp__free(d->os, d->params[i].name);
        cdp__ddp_free(d, d->params[i].kept);
        cdp__sparse_free(d, d->params[i].sparse);
    }
    for (i = 0; d->buffers && i < d->desc.buffer_count; ++i)
        cdp__free(d->os, (void *)(uintptr_t)d->buffers[i].name);
    cdp__free(d->os, d->buffers);
    cdp__free(d->os, d->params);
    cdp__free(d->os, (void *)(uintptr_t)d->desc.bucket_list);
    cdp__free(d->os, d->slots);
    cdp__ddp_free(d, d->pack);
    cdp__free(d->os, d->order);
    cdp__free(d->os, d->sparse_counts);
    cdp__free(d->os, d->scratch);
    cdp__lock_close(&d->lock);
    cdp__ended_add(d);
    cdp__free(d->os, d);
}

/* A copy of a name, or of "<what><i>" if there is none. */
CDP__PRIVATE char *cdp__ddp_name(cdp_ddp *d, const char *name, const char *what, uint32_t i) {
    char fallback[32], *copy;
    cdp__format(fallback, sizeof fallback, "%s%u", what, i);
    if (!name) name = fallback;
    copy = (char *)cdp__alloc(d->os, strlen(name) + 1);
    if (copy) memcpy(copy, name, strlen(name) + 1);
    return copy;
}

/* Stores whether the model is in device memory. All parameters, gradients and buffers must be
   where the first one is. */
CDP__PRIVATE cdp_status cdp__ddp_where(
    cdp_ddp *d, const char *what, const char *name, uint32_t i, const void *data) {
    const cdp_backend *b = cdp_group_backend(d->group);
    const int own = data && b ? b->owns(b->self, data) : 0;
    if (own < 0) return (cdp_status)own;
    if (data && !d->placed) d->device = own ? b : NULL;
    d->placed = d->placed || data;
    if (!data || (own != 0) == cdp__ddp_on_device(d)) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_ddp_create: %s '%s' (index %u) is in %s memory, but those before are in %s memory; "
        "put all of them in the same memory",
        what, name, i, own ? "device" : "host", own ? "host" : "device");
}

/* Checks the numbers of one parameter for mistakes. */
CDP__PRIVATE cdp_status cdp__ddp_check_param(const cdp__param *mine, uint32_t i) {
    const cdp_param *p = &mine->user;
    uint64_t bytes;
    if (!cdp__dtype_has_grads(p->dtype))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: parameter '%s' (index %u) has dtype %s; gradients are f32, f64, f16 "
            "or bf16",
            mine->name, i, cdp_dtype_name(p->dtype));
    if (cdp__dtype_left_out(p->dtype))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_create: parameter '%s' (index %u) has dtype %s, and CDP_ONLY_F32 was defined "
            "when cdp.h was compiled",
            mine->name, i, cdp_dtype_name(p->dtype));
    if (!cdp__mul_fits(p->count, cdp_dtype_size(p->dtype), &bytes))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: parameter '%s' (index %u) is larger than 2^63 bytes", mine->name, i);
    if (p->count && !p->data)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: parameter '%s' (index %u) has no data pointer", mine->name, i);
    if (p->rows && p->count % p->rows)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: parameter '%s' (index %u) has %llu values, which %llu rows do not "
            "divide",
            mine->name, i, (unsigned long long)p->count, (unsigned long long)p->rows);
    if (p->device)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_create: parameter '%s' (index %u) is on device %u; set device 0, the pointer "
            "says where memory is",
            mine->name, i, p->device);
    return CDP_OK;
}

#ifdef CDP_NO_SPARSE
CDP__PRIVATE cdp_status cdp__ddp_open_sparse(cdp_ddp *d, cdp__param *mine, uint32_t i) {
    (void)d;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_ddp_create: parameter '%s' (index %u) is sparse, and CDP_NO_SPARSE was defined when "
        "cdp.h was compiled",
        mine->name, i);
}
#else
CDP__PRIVATE cdp_status cdp__ddp_open_sparse(cdp_ddp *d, cdp__param *mine, uint32_t i) {
    const cdp_param *p = &mine->user;
    cdp__sparse *s;
    if (cdp__ddp_on_device(d))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_create: parameter '%s' (index %u) is sparse; rows of gradients must be in "
            "host memory",
            mine->name, i);
    if (!p->rows || p->rows >> 32 || p->grad)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: parameter '%s' (index %u) is sparse, so it needs rows (below 2^32) "
            "and no gradient array",
            mine->name, i);
    ++d->sparse_count;
    s = mine->sparse = (cdp__sparse *)cdp__alloc_zero(d->os, sizeof *s);
    if (s) s->place = (uint32_t *)cdp__alloc_zero(d->os, p->rows * sizeof *s->place);
    return s && s->place ? CDP_OK
                         : cdp__fail_nomem("a sparse parameter", p->rows * sizeof *s->place);
}
#endif

CDP__PRIVATE cdp_status cdp__ddp_copy_param(cdp_ddp *d, uint32_t i, const cdp_param *p) {
    cdp__param *mine = &d->params[i];
    cdp_status st;
    mine->user = *p;
    if (!p->dtype) mine->user.dtype = CDP_DTYPE_F32;
    mine->elem = cdp_dtype_size(mine->user.dtype);
    mine->name = cdp__ddp_name(d, p->name, "param", i);
    mine->user.name = mine->name;
    if (!mine->name) return cdp__fail_nomem("a parameter's name", 32);
    st = cdp__ddp_check_param(mine, i);
    if (st == CDP_OK) st = cdp__ddp_where(d, "parameter", mine->name, i, p->data);
    if (st == CDP_OK) st = cdp__ddp_where(d, "the gradient of parameter", mine->name, i, p->grad);
    return st == CDP_OK && p->sparse ? cdp__ddp_open_sparse(d, mine, i) : st;
}

CDP__PRIVATE cdp_status cdp__ddp_copy_buffer(cdp_ddp *d, uint32_t i, const cdp_buffer *b) {
    cdp_buffer *mine = &d->buffers[i];
    uint64_t bytes;
    *mine = *b;
    if (!b->dtype) mine->dtype = CDP_DTYPE_F32;
    mine->name = cdp__ddp_name(d, b->name, "buffer", i);
    if (!mine->name) return cdp__fail_nomem("a buffer's name", 32);
    if ((uint32_t)b->dtype >= CDP_DTYPE_COUNT
        || !cdp__mul_fits(b->count, cdp_dtype_size(mine->dtype), &bytes) || (b->count && !b->data))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: buffer '%s' (index %u) has no data pointer, an unknown dtype, or more "
            "than 2^63 bytes",
            mine->name, i);
    return cdp__ddp_where(d, "buffer", mine->name, i, b->data);
}

/* Copies the limits of buckets: one or more. */
CDP__PRIVATE cdp_status cdp__ddp_open_limits(cdp_ddp *d, const cdp_ddp_desc *desc) {
    const uint32_t n = desc->bucket_list_count;
    uint64_t *const list = (uint64_t *)cdp__alloc(d->os, (n + 2ull) * sizeof *list);
    uint32_t i;
    if (!list) return cdp__fail_nomem("sizes of buckets", (n + 2ull) * sizeof *list);
    /* an explicit bucket size also applies to the first bucket, as in PyTorch */
    list[0] = cdp__def(desc->first_bucket_bytes, cdp__def(desc->bucket_bytes, 1024 * 1024));
    list[1] = cdp__def(desc->bucket_bytes, 25 * 1024 * 1024);
    for (i = 0; i < n; ++i)
        list[i] = desc->bucket_list[i];
    d->desc.bucket_list = list;
    d->desc.bucket_list_count = n ? n : 2;
    return CDP_OK;
}

/* Allocates the lists of parameters and buffers, and copies the caller's entries. */
CDP__PRIVATE cdp_status cdp__ddp_open_lists(cdp_ddp *d, const cdp_ddp_desc *desc) {
    const uint32_t n = desc->param_count;
    cdp_status st = CDP_OK;
    uint64_t room;
    uint32_t i;
    d->param_count = n;
    d->params = (cdp__param *)cdp__alloc_zero(d->os, n * sizeof *d->params);
    d->buffers =
        (cdp_buffer *)cdp__alloc_zero(d->os, (desc->buffer_count + 1) * sizeof *d->buffers);
    d->slots = (uint32_t *)cdp__alloc(d->os, n * sizeof *d->slots);
    d->order = (uint32_t *)cdp__alloc(d->os, 2ull * n * sizeof *d->order);
    d->last_order = d->order + n;
    if (!d->params || !d->buffers || !d->slots || !d->order)
        return cdp__fail_nomem("the parameter list", n * sizeof *d->params);
    for (i = 0; i < n && st == CDP_OK; ++i)
        st = cdp__ddp_copy_param(d, i, &desc->params[i]);
    for (i = 0; i < desc->buffer_count && st == CDP_OK; ++i)
        st = cdp__ddp_copy_buffer(d, i, &desc->buffers[i]);
    if (st == CDP_OK) st = cdp__ddp_check_memory(d);
    if (st == CDP_OK) st = cdp__ddp_open_limits(d, desc);
    for (i = 0; i < n; ++i)
        d->order[i] = n - 1 - i;
    if (st != CDP_OK || !d->sparse_count) return st;
    room = (d->sparse_count + 1ull) * cdp_size(d->group) * sizeof *d->sparse_counts;
    d->sparse_counts = (uint64_t *)cdp__alloc(d->os, room);
    return d->sparse_counts ? CDP_OK : cdp__fail_nomem("counts of rows", room);
}

/* One step that clears buckets in host memory. Then ranks compare their models. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_clear(cdp_ddp *d) {
    while (!cdp__ddp_on_device(d) && d->item < d->bucket_count) {
        const cdp__bucket *b = &d->buckets[d->item];
        uint64_t at;
        const uint64_t n = cdp__ddp_piece(d, b->room, &at);
        memset(b->memory + at, 0, (size_t)n);
        if (CDP__BUDGETS) return cdp__ddp_at_once(d, cdp__ddp_clear);
    }
    return cdp__ddp_compare(d);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_open(cdp_ddp *d, const cdp_ddp_desc *desc) {
    cdp_status st = cdp__ddp_open_lists(d, desc);
    if (st == CDP_OK) st = cdp__ddp_place(d, d->order);
    /* some ranks may run out of device memory while others do not: these must learn it */
    if (st == CDP_ERR_NOMEM && cdp__ddp_on_device(d))
        (void)cdp__ddp_fail(d, st);
    else if (st != CDP_OK)
        return st;
    return cdp__ddp_clear(d);
}

CDP__PRIVATE cdp_status cdp__ddp_check_desc(const cdp_ddp_desc *desc) {
    if (!desc->group) return cdp__missing("cdp_ddp_create", "desc.group");
    if (!desc->params || !desc->param_count)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_ddp_create: there are no parameters; set params and param_count");
    if (desc->buffer_count && !desc->buffers)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: buffer_count is %u but there are no buffers", desc->buffer_count);
    if (desc->bucket_list_count && !desc->bucket_list)
        return cdp__missing("cdp_ddp_create", "desc.bucket_list");
    if (!(desc->divisor >= 0) || !(desc->predivide >= 0))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: divisor and predivide must be positive (0: the default)");
    if (desc->accumulate && desc->accumulate != CDP_DTYPE_F32)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: accumulate is %d; set it to CDP_DTYPE_F32, or leave it 0",
            (int)desc->accumulate);
#ifndef CDP_NO_TRAINING
    if (desc->grad_arena && desc->rebuild)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: rebuild would change the order of gradients in grad_arena; leave one "
            "of them out");
#endif
    if ((desc->join_throw || desc->join_effective) && !desc->join)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_ddp_create: join_throw and join_effective need join");
    if (desc->join_effective && desc->divisor != 0)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_create: join_effective divides by the number of ranks with data; leave "
            "divisor 0");
#ifdef CDP_NO_JOIN
    if (desc->join)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_create: join is set, and CDP_NO_JOIN was defined when cdp.h was compiled");
#endif
    return CDP_OK;
}

/* Creation has ended: releases what is left of a ddp that failed. */
CDP__PRIVATE cdp_status cdp__ddp_created(cdp_ddp **out, cdp_status st) {
    if (st == CDP_OK) cdp__ddp_log_made(*out);
    if (st == CDP_OK) return st;
    cdp_ddp_destroy(*out);
    *out = NULL;
    return st;
}

CDP__PRIVATE void cdp__ddp_set_group(cdp_ddp *d, cdp_group *group) {
    d->group = group;
    d->group_made = group->made;
    d->group_memory = group->w->transport.memory.release != NULL;
}

/* Begins to create a ddp. CDP_PENDING: creation continues in stages. After any other status than
   that and CDP_OK nothing is left behind. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_create(const cdp_ddp_desc *desc, cdp_ddp **out) {
    const cdp_os *os;
    cdp_status st;
    cdp_ddp *d;
    if (!out) return cdp__missing("cdp_ddp_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_ddp_create", "desc");
    st = cdp__ddp_check_desc(desc);
    if (st == CDP_OK) st = cdp__alive(desc->group, "cdp_ddp_create");
    if (st != CDP_OK) return st;
    os = cdp__group_os(desc->group);
    d = (cdp_ddp *)cdp__alloc_zero(os, sizeof *d);
    if (!d) return cdp__fail_nomem("a ddp", sizeof *d);
    cdp__ended_remove(d);
    d->os = os;
    cdp__ddp_set_group(d, desc->group);
    d->desc = *desc;
    d->desc.bucket_list = NULL; /* until it is copied */
    d->sync = d->sync_next = d->equal = d->stats.can_set_static_graph = true;
    d->buffers_due = desc->buffer_hook || (desc->buffer_count && !desc->no_buffer_broadcast);
    d->rebuild_due = desc->rebuild;
    d->number = cdp__group_next_ddp(desc->group);
    *out = d;
    st = cdp__lock_open(&d->lock, os, true) ? cdp__ddp_open(d, desc)
                                            : cdp__fail_nomem("a lock", sizeof(void *));
    return st == CDP_PENDING ? st : cdp__ddp_created(out, st);
}

CDP_API cdp_status cdp_ddp_create(const cdp_ddp_desc *desc, cdp_ddp **out) {
    cdp_status st;
    CDP__NOT_COLD();
    st = cdp__ddp_create(desc, out);
    return st == CDP_PENDING ? cdp__ddp_created(out, cdp__ddp_wait(*out, st)) : st;
}

#ifndef CDP_NO_FRAMES
CDP_API cdp_status cdp_ddp_create_start(const cdp_ddp_desc *desc, cdp_ddp **out) {
    cdp_status st;
    CDP__NOT_COLD();
    st = cdp__ddp_create(desc, out);
    if (st != CDP_PENDING) return st;
    (*out)->task = CDP__DDP_CREATES;
    return CDP_OK;
}
#endif

#ifndef CDP_NO_GROUPS
CDP__PRIVATE cdp_status cdp__ddp_check_rebind(cdp_ddp *d, cdp_group *group) {
    /* the last call has failed, or the former group was destroyed */
    const bool again =
        cdp__ddp_lives(d) && !cdp__ddp_has_group(d) && (!CDP__BUDGETS || d->task == CDP__DDP_IDLE);
    cdp_status st = again ? CDP_OK : cdp__ddp_free_to(d, "cdp_ddp_rebind");
    if (st == CDP_OK) st = cdp__alive(group, "cdp_ddp_rebind");
    if (st != CDP_OK) return st;
    if (cdp__group_os(group) != d->os)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_ddp_rebind: the group has another cdp_os than the one that the ddp was created "
            "in");
    if (d->hook.stage)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_rebind: a hook was set, which belongs to the former group; destroy the ddp, "
            "create it again, and set the hook");
    if (cdp__ddp_on_device(d))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_rebind: the model is in device memory of the former group; destroy the ddp "
            "and create it again");
    if (d->in_backward && !again && cdp_group_status(d->group) == CDP_OK)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_ddp_rebind: a backward pass is open; call cdp_ddp_backward_end first");
    return CDP_OK;
}

/* Resets marks, rows and the order of parameters to their state at creation. */
CDP__PRIVATE void cdp__ddp_forget(cdp_ddp *d) {
    uint32_t i;
    for (i = 0; i < d->param_count; ++i) {
        cdp__param *p = &d->params[i];
        p->grad = NULL; /* so that placing it copies nothing */
        p->mark = CDP__MARK_NONE;
        p->touched = p->used = false;
        p->calls = p->want = 0;
        p->ready_ns = 0;
        if (p->sparse) p->sparse->used = p->sparse->mean_used = 0;
        cdp__param_drop_moved(p);
        d->order[i] = d->param_count - 1 - i;
    }
    d->launching = d->launch_again = d->in_backward = d->recorded = d->shadow = false;
    d->launched = d->root = d->ordered = 0;
    d->sync = d->sync_next = d->equal = true;
    d->rebuild_due = d->desc.rebuild;
    d->buffers_due = d->desc.buffer_hook || (d->desc.buffer_count && !d->desc.no_buffer_broadcast);
    memset(&d->active, 0, sizeof d->active);
    memset(&d->used, 0, sizeof d->used);
    memset(&d->last, 0, sizeof d->last);
    d->failed = CDP_OK;
    d->forward_ns = d->own_steps = d->marks = d->at_byte = d->pack_used = 0;
    d->item = 0;
    d->rows_under_way = d->pack_sent = false;
    cdp__free(d->os, d->scratch);
    d->scratch = NULL;
    memset(&d->stats, 0, sizeof d->stats);
    d->stats.can_set_static_graph = true;
}

/* It has no group until the next cdp_ddp_rebind(). */
CDP__PRIVATE void cdp__ddp_unbind(cdp_ddp *d) {
    uint32_t i;
    for (i = 1; i < CDP__HOOK_GROUPS; ++i) { /* of a hook that was removed */
        if (d->groups[i] != d->group) cdp_group_destroy(d->groups[i]);
        d->groups[i] = NULL;
    }
    cdp__ddp_free_buckets(d, d->buckets, d->bucket_count);
    d->buckets = NULL;
    d->bucket_count = 0;
    for (i = 0; i < d->param_count; ++i)
        d->params[i].grad = NULL;
    d->group = d->desc.group = NULL;
}

CDP__PRIVATE cdp_status cdp__ddp_bind(cdp_ddp *d, cdp_group *group) {
    uint64_t room;
    cdp_status st;
    cdp__ddp_set_group(d, group);
    d->desc.group = group;
    d->desc.no_broadcast = true;
    d->number = cdp__group_next_ddp(group);
    cdp__ddp_forget(d);
    if (d->sparse_count) {
        cdp__free(d->os, d->sparse_counts);
        room = (d->sparse_count + 1ull) * cdp_size(group) * sizeof *d->sparse_counts;
        d->sparse_counts = (uint64_t *)cdp__alloc(d->os, room);
        if (!d->sparse_counts) return cdp__fail_nomem("counts of rows", room);
    }
    st = cdp__ddp_place(d, d->order);
    if (st != CDP_OK) return st;
    if (cdp__ddp_arena(d)) cdp__ddp_zero_buckets(d); /* which a dropped pass has written to */
    return cdp__ddp_wait(d, cdp__ddp_clear(d));
}

CDP_API cdp_status cdp_ddp_rebind(cdp_ddp *d, cdp_group *group) {
    cdp_status st = cdp__ddp_check_rebind(d, group);
    cdp_error why;
    if (st != CDP_OK) return st;
    if (d->group) {
        if (cdp__ddp_has_group(d)) cdp__ddp_settle(d);
        cdp__ddp_unbind(d);
    }
    st = cdp__ddp_bind(d, group);
    if (st == CDP_OK) return st;
    why = *cdp_last_error();
    if (st == CDP_ERR_NOMEM) cdp__group_abort_now(group, why.text);
    cdp__ddp_unbind(d);
    *cdp__error_slot() = why;
    return st;
}
#endif

CDP_API cdp_group *cdp_ddp_group(const cdp_ddp *d) {
    return cdp__ddp_lives(d) && cdp__ddp_has_group(d) ? d->group : NULL;
}
CDP_API uint32_t cdp_ddp_param_count(const cdp_ddp *d) {
    return cdp__ddp_lives(d) ? d->param_count : 0;
}
CDP_API const cdp_param *cdp_ddp_param(const cdp_ddp *d, uint32_t i) {
    return i < cdp_ddp_param_count(d) ? &d->params[i].user : NULL;
}

CDP_API void *cdp_ddp_grad(cdp_ddp *d, uint32_t i) {
    if (cdp__ended(d)) {
        (void)cdp__ddp_refuse(d, "cdp_ddp_grad");
        return NULL;
    }
    if (!d || i >= d->param_count) {
        (void)cdp__fail(CDP_ERR_INVALID, "cdp_ddp_grad(%u): it should be less than param_count, %u",
            i, d ? d->param_count : 0);
        return NULL;
    }
    /* also for hooks and updates while a pass ends */
    if (!(CDP__BUDGETS && d->task == CDP__DDP_ENDS && cdp__ddp_has_group(d))
        && cdp__ddp_free_to(d, "cdp_ddp_grad") != CDP_OK)
        return NULL;
    if (!d->params[i].sparse) return d->params[i].grad;
    (void)cdp__fail(CDP_ERR_INVALID,
        "cdp_ddp_grad: parameter '%s' (index %u) is sparse and has no dense gradient; give its "
        "rows to cdp_ddp_ready_rows and read their mean with cdp_ddp_rows",
        d->params[i].name, i);
    return NULL;
}

CDP_API bool cdp_ddp_used(const cdp_ddp *d, uint32_t i) {
    return i < cdp_ddp_param_count(d) && d->params[i].used;
}

/* Sets gradients to zero, but those of sparse parameters. */
CDP__PRIVATE void cdp__ddp_zero_dense(cdp_ddp *d) {
    uint32_t i;
    cdp__ddp_zero_buckets(d);
    for (i = 0; i < d->param_count; ++i)
        if (d->params[i].user.grad)
            cdp__ddp_zero(d, d->params[i].user.grad, cdp__param_bytes(&d->params[i]));
}

CDP_API void cdp_ddp_zero_grad(cdp_ddp *d) {
    uint32_t i;
    if (cdp__ddp_between(d, "cdp_ddp_zero_grad") != CDP_OK) return;
    cdp__ddp_zero_dense(d);
    for (i = 0; i < d->param_count; ++i)
        if (d->params[i].sparse) d->params[i].sparse->used = d->params[i].sparse->mean_used = 0;
}

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_CREATE_H */
