/* train/stragglers.h - who is late (pure)

   Knows: durations of ranks. Promises: a rank counts as late by its own work, not by what it
   waited for. */
#ifndef CDP_SRC_TRAIN_STRAGGLERS_H
#define CDP_SRC_TRAIN_STRAGGLERS_H

#include "report_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"

#ifndef CDP_NO_DDP
#ifndef CDP_NO_TRACE
#ifndef CDP_NO_TRAINING

#define CDP__LATE_STEPS 100u

/* The last steps: who was late, and how much. */
typedef struct cdp__late {
    uint32_t rank[CDP__LATE_STEPS];
    uint64_t ns[CDP__LATE_STEPS]; /* 0: nobody was late */
    uint64_t steps;               /* so far */
} cdp__late;

/* How many of n durations, `stride` apart, are below `v`. */
CDP__PRIVATE uint32_t cdp__late_below(
    const uint64_t *busy, uint32_t n, uint64_t stride, uint64_t v) {
    uint32_t r, below = 0;
    for (r = 0; r < n; ++r)
        below += busy[r * stride] < v;
    return below;
}

/* The lower median, which is at most `high`: the least number that half of all do not exceed. */
CDP__PRIVATE uint64_t cdp__late_median(
    const uint64_t *busy, uint32_t n, uint64_t stride, uint64_t high) {
    uint64_t low = 0;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (cdp__late_below(busy, n, stride, middle + 1) < (n + 1) / 2)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds a step: rank r has worked for busy[r * stride] ns. */
CDP__PRIVATE void cdp__late_add(cdp__late *l, const uint64_t *busy, uint32_t n, uint64_t stride) {
    const uint32_t at = (uint32_t)(l->steps++ % CDP__LATE_STEPS);
    uint64_t late;
    uint32_t r, last = 0;
    for (r = 1; r < n; ++r)
        if (busy[r * stride] > busy[last * stride]) last = r;
    late = busy[last * stride] - cdp__late_median(busy, n, stride, busy[last * stride]);
    l->rank[at] = last;
    l->ns[at] = late > busy[last * stride] / 20 ? late : 0;
}

CDP__PRIVATE cdp_straggler cdp__late_find(const cdp__late *l, uint32_t n) {
    const uint64_t of = cdp__min(l->steps, CDP__LATE_STEPS), first = l->steps - of;
    cdp_straggler s;
    uint64_t i, ns;
    uint32_t r, often;
    memset(&s, 0, sizeof s);
    for (r = 0; r < n && of; ++r) {
        uint64_t since = 0;
        for (i = of, often = 0, ns = 0; i-- > 0;) {
            const uint32_t at = (uint32_t)((first + i) % CDP__LATE_STEPS);
            if (!l->ns[at] || l->rank[at] != r) continue;
            ++often;
            ns += l->ns[at];
            since = first + i + 1;
        }
        if (often * 2ull < of || often <= s.often) continue;
        s.found = true;
        s.rank = r;
        s.often = often;
        s.of = (uint32_t)of;
        s.late_ms = (double)ns / often / 1e6;
        s.since_step = since;
    }
    return s;
}

#endif /* CDP_NO_TRAINING */
#endif /* CDP_NO_TRACE */
#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_TRAIN_STRAGGLERS_H */
