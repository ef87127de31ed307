/* group/clocks.h - clocks of ranks are compared

   Knows: barriers. Promises: where ranks read the same clock, nothing is to be added. */
#ifndef CDP_SRC_GROUP_CLOCKS_H
#define CDP_SRC_GROUP_CLOCKS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"

#define CDP__CLOCK_TURNS 8u

/* What is added to a clock to get that of rank 0: between low and high. */
typedef struct cdp__shift_bounds {
    int64_t low, high;
} cdp__shift_bounds;

/* A barrier began at `left` and ended at `came`, on each rank's own clock: on none has it ended
   before it began on the other one. */
CDP__PRIVATE void cdp__shift_narrow(
    cdp__shift_bounds *b, uint64_t left, uint64_t came, uint64_t left_0, uint64_t came_0) {
    const int64_t low = (int64_t)(left_0 - came), high = (int64_t)(came_0 - left);
    if (low > b->low) b->low = low;
    if (high < b->high) b->high = high;
}

/* The middle; 0 where that is possible, because then it may be the same clock. */
CDP__PRIVATE int64_t cdp__shift_middle(const cdp__shift_bounds *b) {
    if (b->low <= 0 && b->high >= 0) return 0;
    return b->low + (b->high - b->low) / 2;
}

/* *add: what to add to the clock of this rank to get that of rank 0, within the time that the
   fastest of some barriers takes. Collective. */
CDP__PRIVATE cdp_status cdp__clock_compare(cdp_group *g, const cdp_os *os, int64_t *add) {
    cdp__shift_bounds b = {-INT64_MAX / 4, INT64_MAX / 4};
    uint64_t mine[2 * CDP__CLOCK_TURNS], first[2 * CDP__CLOCK_TURNS];
    cdp_status st = CDP_OK;
    uint32_t i;
    *add = 0;
    for (i = 0; i < CDP__CLOCK_TURNS && st == CDP_OK; ++i) {
        mine[2 * i] = os->now_ns(os->user);
        st = cdp_barrier(g);
        mine[2 * i + 1] = os->now_ns(os->user);
    }
    if (st != CDP_OK) return st;
    memcpy(first, mine, sizeof first);
    st = cdp_broadcast(g, first, 2 * CDP__CLOCK_TURNS, CDP_DTYPE_U64, 0);
    if (st != CDP_OK) return st;
    for (i = 0; i < CDP__CLOCK_TURNS; ++i)
        cdp__shift_narrow(&b, mine[2 * i], mine[2 * i + 1], first[2 * i], first[2 * i + 1]);
    if (cdp_rank(g)) *add = cdp__shift_middle(&b);
    return CDP_OK;
}

#endif /* CDP_SRC_GROUP_CLOCKS_H */
