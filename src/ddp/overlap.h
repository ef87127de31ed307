/* ddp/overlap.h - checks the memory of a model

   Knows: parameters, gradients, buffers. Promises: what is not aligned, or overlaps, is named. */
#ifndef CDP_SRC_DDP_OVERLAP_H
#define CDP_SRC_DDP_OVERLAP_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "ddp_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../dtype/dtype.h"
#include "state.h"

#ifndef CDP_NO_DDP

typedef struct cdp__ddp_array {
    uintptr_t at;
    uint64_t bytes;
    uint32_t index; /* of parameter or buffer */
    uint8_t what;   /* see cdp__ddp_array_text() */
} cdp__ddp_array;

CDP__PRIVATE CDP__COLD const char *cdp__ddp_array_text(
    const cdp_ddp *d, const cdp__ddp_array *a, char *out, uint64_t room) {
    static const char *const what[] = {"parameter", "the gradient of parameter", "buffer"};
    if (a->what == 3) return "grad_arena";
    cdp__format(out, room, "%s '%s' (index %u)", what[a->what],
        a->what == 2 ? d->buffers[a->index].name : d->params[a->index].name, a->index);
    return out;
}

/* Adds an array to the list, if there is one. */
CDP__PRIVATE cdp_status cdp__ddp_add_array(const cdp_ddp *d, cdp__ddp_array *list, uint32_t *n,
    uint8_t what, uint32_t index, const void *data, uint64_t count, cdp_dtype dtype) {
    const uint64_t size = cdp_dtype_size(dtype);
    /* a complex number is aligned as its parts are */
    const uint64_t align = size / cdp__dtype_parts(dtype);
    cdp__ddp_array *a = &list[*n];
    char text[160];
    if (!data || !count) return CDP_OK;
    a->at = (uintptr_t)data;
    a->bytes = count * size;
    a->index = index;
    a->what = what;
    ++*n;
    if (a->at % align == 0) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_ddp_create: %s is not aligned to its dtype %s; align it to %u bytes",
        cdp__ddp_array_text(d, a, text, sizeof text), cdp_dtype_name(dtype), (uint32_t)align);
}

/* By address; arrays at one address in the order in which they were given. */
CDP__PRIVATE bool cdp__ddp_array_after(const cdp__ddp_array *a, const cdp__ddp_array *b) {
    if (a->at != b->at) return a->at > b->at;
    return a->what != b->what ? a->what > b->what : a->index > b->index;
}

/* Moves element i down a heap of n whose last array in order is on top. */
CDP__PRIVATE void cdp__ddp_sift_down(cdp__ddp_array *list, uint32_t i, uint32_t n) {
    const cdp__ddp_array a = list[i];
    uint32_t child;
    for (; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && cdp__ddp_array_after(&list[child + 1], &list[child])) ++child;
        if (!cdp__ddp_array_after(&list[child], &a)) break;
        list[i] = list[child];
    }
    list[i] = a;
}

/* Sorts the arrays by address: if any two overlap, two neighbours do. */
CDP__PRIVATE cdp_status cdp__ddp_check_arrays(const cdp_ddp *d, cdp__ddp_array *list, uint32_t n) {
    char one[160], two[160];
    uint32_t i;
    for (i = n / 2; i-- > 0;)
        cdp__ddp_sift_down(list, i, n);
    for (i = n; i-- > 1;) {
        const cdp__ddp_array last = list[i];
        list[i] = list[0];
        list[0] = last;
        cdp__ddp_sift_down(list, 0, i);
    }
    for (i = 1; i < n; ++i) {
        const uint64_t apart = list[i].at - list[i - 1].at;
        if (apart < list[i - 1].bytes)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ddp_create: %s and %s share %llu bytes; give each memory of its own, and list "
                "an array that several layers use once",
                cdp__ddp_array_text(d, &list[i - 1], one, sizeof one),
                cdp__ddp_array_text(d, &list[i], two, sizeof two),
                (unsigned long long)cdp__min(list[i - 1].bytes - apart, list[i].bytes));
    }
    return CDP_OK;
}

#ifndef CDP_NO_TRAINING
/* Checks that each bucket can be a range of the arena; adds the arena to the list. */
CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_check_arena(
    const cdp_ddp *d, cdp__ddp_array *list, uint32_t *n) {
    uint32_t last = CDP_DTYPE_DEFAULT, i;
    uint64_t seen = 0, at = 0;
    if (!d->desc.grad_arena) return CDP_OK;
    if (cdp__ddp_on_device(d))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_create: grad_arena is for host memory, and the parameters are in device "
            "memory; leave it NULL");
    for (i = 0; i < d->param_count; ++i) {
        const cdp__param *p = &d->params[i];
        const cdp_dtype t = p->user.dtype;
        /* parameters with the same number here may share a bucket */
        const uint32_t kind = (uint32_t)t + (p->user.delayed ? (uint32_t)CDP_DTYPE_COUNT : 0);
        if (p->sparse || !p->user.count) continue;
        if (p->user.grad)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ddp_create: parameter '%s' (index %u) has a gradient array, and grad_arena is "
                "set; leave one of them NULL",
                p->name, i);
        if (kind != last && (seen >> kind & 1))
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "cdp_ddp_create: parameter '%s' (index %u) is %s%s, and others like it do not "
                "stand next to it; with grad_arena list all parameters of a dtype together, and "
                "among them all that are delayed",
                p->name, i, cdp_dtype_name(t), p->user.delayed ? " and delayed" : "");
        if (((uintptr_t)d->desc.grad_arena + at) % p->elem)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_ddp_create: the gradient of parameter '%s' (index %u), %llu bytes behind "
                "grad_arena, is not aligned to its dtype %s",
                p->name, i, (unsigned long long)at, cdp_dtype_name(t));
        last = kind;
        seen |= 1ull << kind;
        at += cdp__param_bytes(p);
    }
    return cdp__ddp_add_array(d, list, n, 3, 0, d->desc.grad_arena, at, CDP_DTYPE_U8);
}
#endif

CDP__PRIVATE CDP__COLD cdp_status cdp__ddp_check_memory(cdp_ddp *d) {
    const uint64_t most = 2ull * d->param_count + d->desc.buffer_count + 1;
    cdp__ddp_array *list = (cdp__ddp_array *)cdp__alloc(d->os, most * sizeof *list);
    cdp_status st = CDP_OK;
    uint32_t n = 0, i;
    if (!list) return cdp__fail_nomem("the check of the parameters' memory", most * sizeof *list);
    for (i = 0; i < d->param_count && st == CDP_OK; ++i) {
        const cdp_param *p = &d->params[i].user;
        st = cdp__ddp_add_array(d, list, &n, 0, i, p->data, p->count, p->dtype);
        if (st == CDP_OK) st = cdp__ddp_add_array(d, list, &n, 1, i, p->grad, p->count, p->dtype);
    }
    for (i = 0; i < d->desc.buffer_count && st == CDP_OK; ++i) {
        const cdp_buffer *b = &d->buffers[i];
        st = cdp__ddp_add_array(d, list, &n, 2, i, b->data, b->count, b->dtype);
    }
#ifndef CDP_NO_TRAINING
    if (st == CDP_OK) st = cdp__ddp_check_arena(d, list, &n);
#endif
    if (st == CDP_OK) st = cdp__ddp_check_arrays(d, list, n);
    cdp__free(d->os, list);
    return st;
}

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_OVERLAP_H */
