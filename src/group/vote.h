/* group/vote.h - a rank that cannot go on tells the others

   Knows: a status on every rank. Promises: all ranks learn whether one of them has failed, which
   one, and why, and the group stays usable. */
#ifndef CDP_SRC_GROUP_VOTE_H
#define CDP_SRC_GROUP_VOTE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../base/kept_error.h"

/* Every rank brings its status and, where that is a failure, its last error. Returns that, or the
   failure of the highest rank that has one; `call` begins the text. */
CDP__PRIVATE cdp_status cdp__vote(cdp_group *g, cdp_status own, const char *call) {
    const cdp_error e = *cdp_last_error();
    uint64_t bad = own == CDP_OK ? 0 : (cdp_rank(g) + 1ull) << 32 | (uint32_t) - (int32_t)own;
    char why[sizeof e.text];
    uint32_t rank;
    cdp_status st = cdp_allreduce(g, NULL, &bad, 1, CDP_DTYPE_U64, CDP_REDUCE_MAX);
    rank = (uint32_t)(bad >> 32) - 1;
    memcpy(why, e.text, sizeof why);
    if (st == CDP_OK && bad) st = cdp_broadcast(g, why, sizeof why, CDP_DTYPE_U8, rank);
    if (own != CDP_OK) return cdp__error_again(own, &e);
    if (st != CDP_OK || !bad) return st;
    why[sizeof why - 1] = 0;
    rank = cdp_world_rank_of(g, rank);
    return cdp_error_set((cdp_status) - (int32_t)(uint32_t)bad, (int32_t)rank, 0,
        "%s has failed on rank %u: %s", call, rank, why);
}

#endif /* CDP_SRC_GROUP_VOTE_H */
