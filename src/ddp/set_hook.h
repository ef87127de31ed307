/* ddp/set_hook.h - sets the hook of a ddp

   Knows: that stages of a hook run in groups of their own. Promises: a hook given to
   cdp_ddp_set_hook is destroyed exactly once. */
#ifndef CDP_SRC_DDP_SET_HOOK_H
#define CDP_SRC_DDP_SET_HOOK_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "ddp_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "group_access.h"
#include "state.h"

#ifndef CDP_NO_DDP

CDP_API const cdp_hook *cdp_ddp_hook(const cdp_ddp *d) {
    return cdp__ddp_lives(d) && d->hook.stage ? &d->hook : NULL;
}

/* Creates one group per operation of a bucket. On a device all stages share the queue of one
   group. */
CDP__PRIVATE cdp_status cdp__ddp_open_groups(cdp_ddp *d, uint32_t operations) {
    const uint32_t n = cdp_size(d->group);
    uint32_t *all, i;
    cdp_status st = CDP_OK;
    d->groups[0] = d->group;
    for (i = 1; i < operations && cdp__ddp_on_device(d); ++i)
        d->groups[i] = d->group;
    if (operations < 2 || cdp__ddp_on_device(d)) return CDP_OK;
#ifdef CDP_NO_GROUPS
    (void)all;
    (void)n;
    (void)st;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_ddp_set_hook: a hook of %u operations needs groups of its own, and CDP_NO_GROUPS was "
        "defined when cdp.h was compiled",
        operations);
#else
    all = (uint32_t *)cdp__alloc(d->os, n * sizeof *all);
    if (!all) return cdp__fail_nomem("a hook", n * sizeof *all);
    for (i = 1; i < operations && st == CDP_OK; ++i)
        if (!d->groups[i]) st = cdp__group_alike(d->group, all, &d->groups[i]);
    cdp__free(d->os, all);
    return st;
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

CDP_API CDP__COLD cdp_status cdp_ddp_set_hook(cdp_ddp *d, const cdp_hook *hook) {
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
