/* ddp/set_hook.h - sets the hook of a ddp

   Knows: that stages of a hook run in groups of their own. Promises: a hook given to
   cdp_ddp_set_hook is destroyed exactly once. */
#ifndef CDP_SRC_DDP_SET_HOOK_H
#define CDP_SRC_DDP_SET_HOOK_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "ddp_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../group/vote.h"
#include "group_access.h"
#include "state.h"

#ifndef CDP_NO_DDP

CDP_API const cdp_hook *cdp_ddp_hook(const cdp_ddp *d) {
    return cdp__ddp_lives(d) && d->hook.stage ? &d->hook : NULL;
}

#ifndef CDP_NO_GROUPS
/* Makes the groups from number `first` on, in which operations of a bucket run, or none of them:
   all ranks learn whether one of them has no memory, and have made the same groups then. */
CDP__PRIVATE cdp_status cdp__ddp_make_groups(cdp_ddp *d, uint32_t first, uint32_t operations) {
    const uint64_t bytes = cdp_size(d->group) * sizeof(uint32_t);
    uint32_t *const all = (uint32_t *)cdp__alloc(d->os, bytes);
    cdp_status st = all ? CDP_OK : cdp__fail_nomem("a hook", bytes);
    uint32_t i;
    st = cdp__vote(d->group, st, "cdp_ddp_set_hook");
    for (i = first; st == CDP_OK && i < operations; ++i)
        st =
            cdp__vote(d->group, cdp__group_alike(d->group, all, &d->groups[i]), "cdp_ddp_set_hook");
    cdp__free(d->os, all);
    if (st == CDP_OK) return st;
    const cdp_error why = *cdp_last_error();
    for (; i > first; --i) {
        cdp_group_destroy(d->groups[i - 1]);
        d->groups[i - 1] = NULL;
    }
    *cdp__error_slot() = why;
    return st;
}
#endif

/* Creates one group per operation of a bucket. On a device all stages share the queue of one
   group. */
CDP__PRIVATE cdp_status cdp__ddp_open_groups(cdp_ddp *d, uint32_t operations) {
    uint32_t i;
    d->groups[0] = d->group;
    for (i = 1; i < operations && cdp__ddp_on_device(d); ++i)
        d->groups[i] = d->group;
    if (operations < 2 || cdp__ddp_on_device(d)) return CDP_OK;
#ifdef CDP_NO_GROUPS
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_ddp_set_hook: a hook of %u operations needs groups of its own, and CDP_NO_GROUPS was "
        "defined when cdp.h was compiled",
        operations);
#else
    while (i < operations && d->groups[i])
        ++i;
    return i < operations ? cdp__ddp_make_groups(d, i, operations) : CDP_OK;
#endif
}

CDP__PRIVATE cdp_status cdp__ddp_check_hook(cdp_ddp *d, const cdp_hook *hook) {
    const cdp_status st = cdp__ddp_between(d, "cdp_ddp_set_hook");
    if (st != CDP_OK) return st;
    if (hook && !hook->stage)
        return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_set_hook: the hook has no stage function");
    if (hook && hook->operations > CDP__HOOK_GROUPS)
        return cdp__fail(CDP_ERR_INVALID, "cdp_ddp_set_hook: a hook may have at most %u operations",
            CDP__HOOK_GROUPS);
    if (hook && hook->device != cdp__ddp_on_device(d))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_ddp_set_hook: the parameters are in %s memory, and this hook is not for that (see "
            "cdp_nccl_hook_create)",
            cdp__ddp_on_device(d) ? "device" : "host");
    return hook ? cdp__ddp_open_groups(d, hook->operations) : CDP_OK;
}

CDP_API cdp_status cdp_ddp_set_hook(cdp_ddp *d, const cdp_hook *hook) {
    const cdp_status st = cdp__ddp_check_hook(d, hook);
    if (st != CDP_OK) {
        if (hook && hook->destroy) hook->destroy(hook->self);
        return st;
    }
    if (d->hook.destroy) d->hook.destroy(d->hook.self);
    memset(&d->hook, 0, sizeof d->hook);
    if (hook) d->hook = *hook;
    cdp__ddp_set_result(d, CDP__DDP_MEAN);
    d->hook.operations = (uint32_t)cdp__max(d->hook.operations, 1);
    return CDP_OK;
}

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_SET_HOOK_H */
