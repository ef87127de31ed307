/* ddp/averager.h - periodic averaging of parameters

   Knows: when to average, and with which ranks. Promises: every rank averages at the same steps. */
#ifndef CDP_SRC_DDP_AVERAGER_H
#define CDP_SRC_DDP_AVERAGER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "ddp_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../group/state.h"
#include "state.h"

#ifndef CDP_NO_AVERAGER

/* The group in which parameters are averaged at this step; NULL: no averaging. */
CDP__PRIVATE cdp_group *cdp__averager_group(const cdp_averager *a, uint64_t since) {
    cdp_group *group = NULL, *all = cdp_ddp_group(a->ddp);
    uint64_t longest = 0;
    uint32_t i;
    if (!a->level_count) return since % cdp__def(a->period, 1) == 0 ? all : NULL;
    for (i = 0; i < a->level_count; ++i) {
        const cdp_average_level *l = &a->levels[i];
        if (!l->period || since % l->period || l->period < longest) continue;
        longest = l->period;
        group = l->group ? l->group : all;
    }
    return group;
}

CDP_API cdp_status cdp_averager_step(cdp_averager *a) {
    cdp_status st = CDP_OK;
    cdp_group *group;
    cdp_work last;
    uint32_t i;
    if (!a) return cdp__missing("cdp_averager_step", "averager");
    if (!a->ddp) return cdp__missing("cdp_averager_step", "averager.ddp");
    if (a->level_count && !a->levels) return cdp__missing("cdp_averager_step", "averager.levels");
    if (a->step++ < a->warmup) return CDP_OK;
    group = cdp__averager_group(a, a->step - 1 - a->warmup);
    memset(&last, 0, sizeof last);
    for (i = 0; group && i < cdp_ddp_param_count(a->ddp) && st == CDP_OK; ++i) {
        const cdp_param *p = cdp_ddp_param(a->ddp, i);
        st = cdp__ddp_divide_data(a->ddp, p->dtype, p->data, p->count, (cdp_real)cdp_size(group));
        if (st == CDP_OK)
            st = cdp_allreduce_async(
                group, NULL, p->data, p->count, p->dtype, CDP_REDUCE_SUM, &last);
    }
    return st == CDP_OK ? cdp_work_wait(last) : st;
}
#endif /* CDP_NO_AVERAGER */

#endif /* CDP_SRC_DDP_AVERAGER_H */
