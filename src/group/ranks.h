/* group/ranks.h - which rank is which, in a group and in the world

   Knows: groups. Promises: an answer for every group and every rank, also for what is none. */
#ifndef CDP_SRC_GROUP_RANKS_H
#define CDP_SRC_GROUP_RANKS_H

#include "../base/config.h"
#include "group_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "state.h"

CDP_API uint32_t cdp_world_rank_of(const cdp_group *g, uint32_t rank) {
    return rank < cdp_size(g) ? cdp__world_rank(g, rank) : UINT32_MAX;
}

CDP_API uint32_t cdp_rank_of_world(const cdp_group *g, uint32_t world_rank) {
    uint32_t p;
    for (p = 0; p < cdp_size(g); ++p)
        if (cdp__world_rank(g, p) == world_rank) return p;
    return UINT32_MAX;
}

CDP_API uint32_t cdp_rank(const cdp_group *g) {
    return g && !cdp__ended(g) ? g->desc.rank : 0;
}
CDP_API uint32_t cdp_size(const cdp_group *g) {
    return g && !cdp__ended(g) ? g->desc.world_size : 0;
}
CDP_API const cdp_group_desc *cdp_group_desc_of(const cdp_group *g) {
    return g && !cdp__ended(g) ? &g->desc : NULL;
}

#endif /* CDP_SRC_GROUP_RANKS_H */
