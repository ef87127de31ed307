/* fsdp/times.h - how long a step will take, without ranks

   Knows: a desc, the speed of a network, the time of each unit. Promises: one pass over the units
   forward and one backward, in memory that does not grow with them. */
#ifndef CDP_SRC_FSDP_TIMES_H
#define CDP_SRC_FSDP_TIMES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "fsdp_api.h"
#include "cuts.h"
#include "checks.h"
#include "paper.h"

#define CDP__FSDP_AHEAD 64u /* most units whose gathers are looked at ahead */

/* Of a step, in microseconds from its begin. Needs are numbered: every unit forward, then the other
   way. */
typedef struct cdp__fsdp_timing {
    const cdp_fsdp_desc *d;
    const cdp_fsdp_speed *speed;
    cdp__fsdp_list list;
    cdp__fsdp_sizes sizes; /* that came in backward */
    uint32_t ranks, rank, units, ahead, asked;
    double rounds;                   /* of an operation, times the latency */
    double now, link;                /* the program is here; the link is free from here on */
    double arrives[CDP__FSDP_AHEAD]; /* of needs that were asked for */
    double reduced[2];               /* when the last two reductions end */
    double busy, waited;
} cdp__fsdp_timing;

/* An operation that begins now, or when the link is free. Returns when it ends. */
CDP__PRIVATE double cdp__fsdp_travel(cdp__fsdp_timing *t, uint64_t bytes) {
    const double took = t->rounds + (double)bytes / t->speed->bytes_per_us;
    t->link = (t->link > t->now ? t->link : t->now) + took;
    t->busy += took;
    return t->link;
}

CDP__PRIVATE void cdp__fsdp_wait_until(cdp__fsdp_timing *t, double until) {
    if (until <= t->now) return;
    t->waited += until - t->now;
    t->now = until;
}

CDP__PRIVATE uint32_t cdp__fsdp_unit_of_need(const cdp__fsdp_timing *t, uint32_t need) {
    return need < t->units ? need : 2 * t->units - 1 - need;
}

/* Whether a unit that backward needs is here still: of each size the last ones of forward are. */
CDP__PRIVATE bool cdp__fsdp_stays(cdp__fsdp_timing *t, uint32_t unit) {
    const uint32_t i = cdp__fsdp_find_size(&t->sizes, cdp__fsdp_whole_of(&t->list, unit));
    const uint32_t slots = cdp__fsdp_slots_for(t->d, UINT32_MAX);
    uint32_t before, all;
    if (cdp__fsdp_keeps(t->d, unit)) return true;
    if (i < t->sizes.count) return t->sizes.came[i]++ < slots;
    before = cdp__fsdp_alike(&t->sizes, unit, t->units, &all);
    return all - 1 - before < slots;
}

/* Asks for the next unit that was not asked for. */
CDP__PRIVATE void cdp__fsdp_ask(cdp__fsdp_timing *t) {
    const uint32_t need = t->asked++, unit = cdp__fsdp_unit_of_need(t, need);
    const cdp__fsdp_plan p = cdp__fsdp_plan_of(&t->list, unit, t->ranks, t->rank);
    const uint64_t bytes =
        (cdp__fsdp_whole(&p) - p.own[0] - p.own[1]) * cdp__fsdp_size_of(t->d->compute);
    double *const arrives = &t->arrives[need % CDP__FSDP_AHEAD];
    *arrives = 0;
    if (t->ranks == 1 || !cdp__fsdp_whole(&p)) return;
    if (need < t->units || !cdp__fsdp_stays(t, unit)) *arrives = cdp__fsdp_travel(t, bytes);
}

/* Waits for the memory of the last but one gradient, and begins a reduction. */
CDP__PRIVATE void cdp__fsdp_time_reduction(cdp__fsdp_timing *t, uint32_t unit) {
    const cdp__fsdp_plan p = cdp__fsdp_plan_of(&t->list, unit, t->ranks, t->rank);
    if (!p.total[0] || t->ranks == 1) return;
    cdp__fsdp_wait_until(t, t->reduced[0]);
    t->reduced[0] = t->reduced[1];
    t->reduced[1] =
        cdp__fsdp_travel(t, (t->ranks - 1ull) * p.own[0] * cdp__fsdp_size_of(t->d->reduce));
}

/* Backward takes twice the time of forward. */
CDP__PRIVATE void cdp__fsdp_time_units(cdp__fsdp_timing *t) {
    uint32_t need;
    for (need = 0; need < 2 * t->units; ++need) {
        const uint32_t unit = cdp__fsdp_unit_of_need(t, need);
        const double us = t->speed->unit_us ? t->speed->unit_us[unit] : 0;
        while (t->asked < 2 * t->units && t->asked <= need + t->ahead)
            cdp__fsdp_ask(t);
        cdp__fsdp_wait_until(t, t->arrives[need % CDP__FSDP_AHEAD]);
        t->now += need < t->units ? us : 2 * us;
        if (need >= t->units) cdp__fsdp_time_reduction(t, unit);
    }
}

CDP__PRIVATE void cdp__fsdp_time(cdp__fsdp_timing *t, cdp_fsdp_times *out) {
    uint32_t n;
    for (n = 1; n < t->ranks; n *= 2)
        t->rounds += t->speed->latency_us;
    cdp__fsdp_time_units(t);
    cdp__fsdp_wait_until(t, t->reduced[1]);
    if (t->ranks > 1) cdp__fsdp_wait_until(t, cdp__fsdp_travel(t, 16));
    out->step_us = t->now;
    out->exposed_us = t->waited;
    out->comm_us = t->busy;
    out->hidden = t->busy > 0 ? 1 - t->waited / t->busy : 0;
}

CDP_API cdp_status cdp_fsdp_preview_times(
    const cdp_fsdp_desc *d, uint32_t rank, const cdp_fsdp_speed *speed, cdp_fsdp_times *out) {
    cdp__fsdp_timing t;
    cdp_status st;
    uint32_t i;
    if (!out) return cdp__fsdp_missing("cdp_fsdp_preview_times", "out");
    memset(out, 0, sizeof *out);
    memset(&t, 0, sizeof t);
    if (!speed) return cdp__fsdp_missing("cdp_fsdp_preview_times", "speed");
    st = cdp__fsdp_check("cdp_fsdp_preview_times", d);
    if (st == CDP_OK) st = cdp__fsdp_paper_ranks("cdp_fsdp_preview_times", d, rank, &t.ranks);
    if (st != CDP_OK) return st;
    if (!(speed->bytes_per_us > 0) || !(speed->latency_us >= 0))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_fsdp_preview_times: speed->bytes_per_us is not above 0, or latency_us is negative "
            "or NaN");
    t.d = d;
    t.speed = speed;
    t.list = cdp__fsdp_list_of(d);
    t.rank = rank;
    t.units = cdp__fsdp_unit_count(d);
    t.sizes = cdp__fsdp_sizes_of(d, &t.list, t.units);
    t.ahead = d->no_prefetch ? 0 : cdp__def(d->prefetch, 1u);
    t.ahead = (uint32_t)cdp__min(t.ahead, CDP__FSDP_AHEAD - 1);
    for (i = 0; i < t.units && speed->unit_us; ++i)
        if (!(speed->unit_us[i] >= 0))
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_fsdp_preview_times: speed->unit_us[%u] is negative or NaN", i);
    cdp__fsdp_time(&t, out);
    return CDP_OK;
}

#endif /* CDP_SRC_FSDP_TIMES_H */
