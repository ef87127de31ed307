/* collective/select.h - the choice of an algorithm, equal on all ranks (pure)

   Knows: what each algorithm is good at, as a table. Promises: the same choice on all ranks, from
   inputs that are equal on all. */
#ifndef CDP_SRC_COLLECTIVE_SELECT_H
#define CDP_SRC_COLLECTIVE_SELECT_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "rounds.h"
#include "rounds_scan.h"
#include "rounds_fixed.h"
#include "rounds_by_size.h"
#include "hosts.h"

enum {
    CDP__RING,
    CDP__DOUBLING,
    CDP__TREE,
    CDP__GATHER,
    CDP__DISSEMINATION,
    CDP__REDUCE_TREE,
    CDP__LINEAR_GATHER,
    CDP__LINEAR_SCATTER,
    CDP__PAIRWISE_REDUCE,
    CDP__PAIRWISE,
    CDP__DIRECT,
    CDP__FIXED_ALLREDUCE,
    CDP__FIXED_REDUCE,
    CDP__FIXED_SCATTER,
    CDP__SCAN_DOUBLING,
    CDP__EXSCAN_DOUBLING, /* CDP__ALGO_LAST of CDP_FEW_ALGORITHMS */
    /* not with that: */
    CDP__REDUCE_RING,
    CDP__BRUCK,
    CDP__TREE_GATHER,
    CDP__TREE_SCATTER,
    CDP__HALVING,
    CDP__SPREAD,
    CDP__RABENSEIFNER,
    CDP__DIRECT_ALL,
    CDP__DIRECT_SCATTER,
    CDP__DIRECT_GATHER,
    CDP__FLAT,
    CDP__FLAT_GATHER,
    CDP__FLAT_BARRIER,
    CDP__FLAT_BROADCAST,
    CDP__SCAN_CHAIN,
    CDP__EXSCAN_CHAIN,
    /* for several hosts */
    CDP__LANES,
    CDP__LEADERS,
    CDP__HOSTS_BROADCAST,
    CDP__HOSTS_BARRIER,
    CDP__HOSTS_REDUCE,
    CDP__HOSTS_GATHER,
    CDP__HOSTS_SCATTER,
    CDP__ALGO_COUNT
};

#define CDP__ALGO_NONE \
    { "?", CDP_COLL_NONE, false, NULL, NULL, NULL }

static const cdp__algo cdp__algos[] = {
    {"ring", CDP_COLL_ALLREDUCE, false, cdp__ring_rounds, cdp__ring_round, cdp__no_tmp},
    {"recursive doubling", CDP_COLL_ALLREDUCE, true, cdp__doubling_rounds, cdp__doubling_round,
        cdp__doubling_tmp},
    {"binomial tree", CDP_COLL_BROADCAST, true, cdp__log_rounds, cdp__tree_round, cdp__no_tmp},
    {"ring", CDP_COLL_ALLGATHER, true, cdp__gather_rounds, cdp__gather_round, cdp__no_tmp},
    {"dissemination", CDP_COLL_BARRIER, true, cdp__log_rounds, cdp__barrier_round, cdp__no_tmp},
    {"binomial tree", CDP_COLL_REDUCE, false, cdp__reduce_tree_rounds, cdp__reduce_tree_round,
        cdp__reduce_tmp},
    {"linear", CDP_COLL_GATHER, true, cdp__gather_rounds, cdp__linear_round, cdp__no_tmp},
    {"linear", CDP_COLL_SCATTER, true, cdp__gather_rounds, cdp__linear_round, cdp__no_tmp},
    {"pairwise", CDP_COLL_REDUCE_SCATTER, false, cdp__gather_rounds, cdp__scatter_reduce_round,
        cdp__pairwise_tmp},
    {"pairwise", CDP_COLL_ALLTOALL, true, cdp__gather_rounds, cdp__alltoall_round, cdp__no_tmp},
    {"direct", CDP_COLL_SEND, true, cdp__log_rounds, cdp__tree_round, cdp__no_tmp},
#ifdef CDP_NO_REPRODUCIBLE /* removed constants keep their numbers */
    CDP__ALGO_NONE, CDP__ALGO_NONE, CDP__ALGO_NONE,
#else
    {"fixed order", CDP_COLL_ALLREDUCE, true, cdp__fixed_rounds, cdp__fixed_round, cdp__fixed_tmp},
    {"fixed order", CDP_COLL_REDUCE, true, cdp__fixed_rounds, cdp__fixed_round, cdp__fixed_tmp},
    {"fixed order", CDP_COLL_REDUCE_SCATTER, true, cdp__fixed_rounds, cdp__fixed_round,
        cdp__fixed_tmp},
#endif
#ifdef CDP_NO_SCAN
    CDP__ALGO_NONE, CDP__ALGO_NONE,
#else
    {"recursive doubling", CDP_COLL_SCAN, true, cdp__scan_rounds, cdp__scan_round, cdp__scan_tmp},
    {"recursive doubling", CDP_COLL_EXSCAN, true, cdp__scan_rounds, cdp__scan_round, cdp__scan_tmp},
#endif
#ifndef CDP_FEW_ALGORITHMS
    {"ring", CDP_COLL_REDUCE, false, cdp__ring_rounds, cdp__reduce_ring_round, cdp__reduce_tmp},
    {"Bruck", CDP_COLL_ALLGATHER, true, cdp__bruck_rounds, cdp__bruck_round, cdp__bruck_tmp},
    {"binomial tree", CDP_COLL_GATHER, true, cdp__bruck_rounds, cdp__subtree_round,
        cdp__subtree_tmp},
    {"binomial tree", CDP_COLL_SCATTER, true, cdp__bruck_rounds, cdp__subtree_round,
        cdp__subtree_tmp},
    {"recursive halving", CDP_COLL_REDUCE_SCATTER, false, cdp__doubling_rounds, cdp__halving_round,
        cdp__halving_tmp},
    {"spread", CDP_COLL_ALLTOALL, true, cdp__spread_rounds, cdp__spread_round, cdp__no_tmp},
    {"rabenseifner", CDP_COLL_ALLREDUCE, false, cdp__rabenseifner_rounds, cdp__rabenseifner_round,
        cdp__no_tmp},
    {"direct", CDP_COLL_ALLREDUCE, false, cdp__direct_rounds, cdp__direct_round, cdp__no_tmp},
    {"direct", CDP_COLL_REDUCE_SCATTER, false, cdp__direct_rounds, cdp__direct_round,
        cdp__pairwise_tmp},
    {"direct", CDP_COLL_ALLGATHER, true, cdp__direct_rounds, cdp__direct_round, cdp__no_tmp},
    {"at once", CDP_COLL_ALLREDUCE, true, cdp__once_rounds, cdp__once_round, cdp__once_tmp},
    {"at once", CDP_COLL_ALLGATHER, true, cdp__once_rounds, cdp__once_round, cdp__once_tmp},
    {"at once", CDP_COLL_BARRIER, true, cdp__once_rounds, cdp__once_round, cdp__once_tmp},
    {"at once", CDP_COLL_BROADCAST, true, cdp__once_rounds, cdp__once_round, cdp__once_tmp},
#ifdef CDP_NO_SCAN
    CDP__ALGO_NONE, CDP__ALGO_NONE,
#else
    {"chain", CDP_COLL_SCAN, false, cdp__chain_rounds, cdp__chain_round, cdp__chain_tmp},
    {"chain", CDP_COLL_EXSCAN, false, cdp__chain_rounds, cdp__chain_round, cdp__chain_tmp},
#endif
    {"hierarchical", CDP_COLL_ALLREDUCE, false, cdp__lanes_rounds, cdp__lanes_round, cdp__no_tmp},
    {"leaders", CDP_COLL_ALLREDUCE, false, cdp__leaders_rounds, cdp__leaders_round,
        cdp__doubling_tmp},
    {"hierarchical", CDP_COLL_BROADCAST, true, cdp__leaders_rounds, cdp__leaders_round,
        cdp__no_tmp},
    {"hierarchical", CDP_COLL_BARRIER, true, cdp__leaders_rounds, cdp__leaders_round, cdp__no_tmp},
    {"hierarchical", CDP_COLL_REDUCE, false, cdp__leaders_rounds, cdp__leaders_round,
        cdp__reduce_tmp},
    {"hierarchical", CDP_COLL_ALLGATHER, true, cdp__hosts_gather_rounds, cdp__hosts_gather_round,
        cdp__no_tmp},
    {"hierarchical", CDP_COLL_REDUCE_SCATTER, false, cdp__hosts_scatter_rounds,
        cdp__hosts_scatter_round, cdp__hosts_scatter_tmp},
#endif
    CDP__ALGO_NONE, /* an algorithm of another build */
};
#ifdef CDP_FEW_ALGORITHMS
#define CDP__ALGO_LAST CDP__EXSCAN_DOUBLING
#else
#define CDP__ALGO_LAST (CDP__ALGO_COUNT - 1)
#endif
/* Each constant has its row, in every build: else the array has a negative size. */
typedef char
    cdp__algos_fit[sizeof cdp__algos / sizeof cdp__algos[0] == CDP__ALGO_LAST + 2u ? 1 : -1];

CDP__PRIVATE const cdp__algo *cdp__algo_at(uint32_t i) {
    return &cdp__algos[cdp__min(i, sizeof cdp__algos / sizeof cdp__algos[0] - 1)];
}

#define CDP__SMALL UINT64_MAX        /* in a row: the group's small_bytes */
#define CDP__TINY (UINT64_MAX - 1)   /* in a row: a quarter of CDP__SMALL */
#define CDP__LITTLE (UINT64_MAX - 2) /* in a row: a sixteenth of CDP__SMALL */
/* up to this size, the parts of 64 ranks are below the default expose_bytes and are copied */
#define CDP__PARTS_COPIED (4u << 20)

/* A row of the table. The first row that matches an operation chooses its algorithm; 0 stands
   for any number of bytes or ranks. */
typedef struct cdp__row {
    uint64_t max_bytes;
    uint32_t max_ranks;
    uint8_t algo;
    uint8_t only; /* CDP__POWERS, ...: group and operation must have all these properties */
} cdp__row;
#define CDP__POWERS 1u    /* 2, 4, 8, ... ranks: with others it would send much more */
#define CDP__SHARED 2u    /* all ranks read each other's memory */
#define CDP__SAME_HOST 4u /* all ranks are on one host */
#define CDP__HOSTS 8u     /* several hosts, at least one with several ranks */
#define CDP__UNIFORM 16u  /* all hosts have equally many ranks */
/* Properties of the operation: its partial results have a wider dtype than its input. No dtype is
   wide enough to send them. */
#define CDP__WIDER 32u
#define CDP__WIDEST 64u

/* True if an algorithm combines all ranks' slices at once, so that it can widen them there. */
CDP__PRIVATE bool cdp__algo_combines(uint32_t i) {
    return i >= CDP__FIXED_ALLREDUCE && i <= CDP__FIXED_SCATTER
        && cdp__algo_at(i)->kind != CDP_COLL_NONE;
}

/* The built-in rows. The caller's own rows (cdp_group_desc.choices) come before them. CDP__BY_HOST:
   whether any algorithm depends on which ranks share a host. */
#ifdef CDP_FEW_ALGORITHMS
#define CDP__BY_HOST false
static const cdp__row cdp__rows[] = {
    {CDP__SMALL, 0, CDP__DOUBLING, 0},
    {0, 0, CDP__FIXED_ALLREDUCE, CDP__WIDER},
    {0, 0, CDP__RING, 0},
    {0, 0, CDP__FIXED_ALLREDUCE, 0},
    {0, 0, CDP__TREE, 0},
    {0, 0, CDP__DISSEMINATION, 0},
    {0, 0, CDP__DIRECT, 0},
    {0, 0, CDP__GATHER, 0},
    {0, 0, CDP__FIXED_REDUCE, CDP__WIDER},
    {0, 0, CDP__REDUCE_TREE, 0},
    {0, 0, CDP__FIXED_REDUCE, 0},
    {0, 0, CDP__LINEAR_GATHER, 0},
    {0, 0, CDP__LINEAR_SCATTER, 0},
    {0, 0, CDP__FIXED_SCATTER, CDP__WIDER},
    {0, 0, CDP__PAIRWISE_REDUCE, 0},
    {0, 0, CDP__FIXED_SCATTER, 0},
    {0, 0, CDP__PAIRWISE, 0},
    {0, 0, CDP__SCAN_DOUBLING, 0},
    {0, 0, CDP__EXSCAN_DOUBLING, 0},
};
#else
#define CDP__BY_HOST true
static const cdp__row cdp__rows[] = {
    /* with more ranks, fewer rounds matter more */
    {CDP__LITTLE, 4, CDP__FLAT, CDP__SAME_HOST},
    {CDP__LITTLE, 4, CDP__FLAT_BROADCAST, CDP__SAME_HOST},
    {CDP__LITTLE, 4, CDP__DIRECT_SCATTER, CDP__SAME_HOST},
    {0, 7, CDP__FLAT_BARRIER, CDP__SAME_HOST},
    {CDP__TINY, 4, CDP__FLAT_GATHER, CDP__SAME_HOST},
    {CDP__TINY, 0, CDP__LEADERS, CDP__HOSTS},
    {0, 0, CDP__LANES, CDP__HOSTS},
    {CDP__TINY, 0, CDP__DOUBLING, 0},
    /* wider partial results would be sent, so this exchange pays earlier than others */
    {0, 16, CDP__FIXED_ALLREDUCE, CDP__WIDER},
    {CDP__SMALL, 0, CDP__DOUBLING, CDP__WIDER},
    {0, 0, CDP__FIXED_ALLREDUCE, CDP__WIDER},
    /* its rounds grow with the ranks, so it pays only if the parts are long enough to be exposed */
    {0, 8, CDP__DIRECT_ALL, CDP__SHARED},
    {CDP__PARTS_COPIED, 0, CDP__RABENSEIFNER, CDP__SHARED},
    {0, 0, CDP__DIRECT_ALL, CDP__SHARED},
    {CDP__SMALL, 0, CDP__DOUBLING, 0},
    {0, 2, CDP__RING, 0},
    {1u << 20, 16, CDP__RABENSEIFNER, CDP__POWERS},
    {0, 16, CDP__RING, 0},
    {8u << 20, 0, CDP__RABENSEIFNER, CDP__POWERS},
    {1u << 19, 0, CDP__RABENSEIFNER, 0},
    {0, 0, CDP__RING, 0},
    {0, 0, CDP__FIXED_ALLREDUCE, 0},
    {0, 0, CDP__HOSTS_BROADCAST, CDP__HOSTS},
    {0, 0, CDP__TREE, 0},
    {0, 0, CDP__HOSTS_BARRIER, CDP__HOSTS},
    {0, 0, CDP__DISSEMINATION, 0},
    {0, 0, CDP__DIRECT, 0},
    {CDP__TINY, 0, CDP__BRUCK, CDP__UNIFORM},
    {0, 16, CDP__HOSTS_GATHER, CDP__UNIFORM},
    {CDP__SMALL, 0, CDP__BRUCK, CDP__UNIFORM},
    {0, 0, CDP__HOSTS_GATHER, CDP__UNIFORM},
    {0, 2, CDP__GATHER, 0},
    {CDP__SMALL, 16, CDP__BRUCK, 0},
    {0, 8, CDP__DIRECT_GATHER, CDP__SHARED},
    {CDP__PARTS_COPIED, 0, CDP__BRUCK, CDP__SHARED},
    {0, 0, CDP__DIRECT_GATHER, CDP__SHARED},
    {8u << 20, 16, CDP__BRUCK, CDP__POWERS},
    {0, 16, CDP__GATHER, 0},
    {4u << 20, 0, CDP__BRUCK, 0},
    {0, 0, CDP__GATHER, 0},
    {0, 0, CDP__HOSTS_REDUCE, CDP__HOSTS},
    {CDP__SMALL, 0, CDP__REDUCE_TREE, 0},
    {0, 0, CDP__FIXED_REDUCE, CDP__WIDER},
    {0, 16, CDP__REDUCE_RING, 0},
    {1u << 20, 0, CDP__REDUCE_TREE, 0},
    {0, 0, CDP__REDUCE_RING, 0},
    {0, 0, CDP__FIXED_REDUCE, 0},
    {0, 8, CDP__LINEAR_GATHER, 0},
    {4u << 20, 0, CDP__TREE_GATHER, 0},
    {0, 0, CDP__LINEAR_GATHER, 0},
    {0, 8, CDP__LINEAR_SCATTER, 0},
    {CDP__SMALL, 0, CDP__TREE_SCATTER, 0},
    {0, 0, CDP__LINEAR_SCATTER, 0},
    {CDP__TINY, 0, CDP__HALVING, CDP__UNIFORM},
    {0, 16, CDP__HOSTS_SCATTER, CDP__UNIFORM},
    {CDP__SMALL, 0, CDP__HALVING, CDP__UNIFORM},
    {0, 0, CDP__HOSTS_SCATTER, CDP__UNIFORM},
    {CDP__TINY, 0, CDP__HALVING, CDP__WIDER},
    {0, 0, CDP__FIXED_SCATTER, CDP__WIDER},
    {0, 2, CDP__PAIRWISE_REDUCE, 0},
    {CDP__SMALL, 16, CDP__HALVING, 0},
    {0, 8, CDP__DIRECT_SCATTER, CDP__SHARED},
    {CDP__PARTS_COPIED, 0, CDP__HALVING, CDP__SHARED},
    {0, 0, CDP__DIRECT_SCATTER, CDP__SHARED},
    {1u << 20, 16, CDP__HALVING, CDP__POWERS},
    {0, 16, CDP__PAIRWISE_REDUCE, 0},
    {4u << 20, 0, CDP__HALVING, CDP__POWERS},
    {1u << 18, 0, CDP__HALVING, 0},
    {0, 0, CDP__PAIRWISE_REDUCE, 0},
    {0, 0, CDP__FIXED_SCATTER, 0},
    {CDP__SMALL, 0, CDP__SPREAD, 0},
    {0, 0, CDP__PAIRWISE, 0},
    {CDP__SMALL, 0, CDP__SCAN_DOUBLING, 0},
    {0, 0, CDP__SCAN_CHAIN, 0},
    {0, 0, CDP__SCAN_DOUBLING, 0}, /* its order of operands does not depend on the size */
    {CDP__SMALL, 0, CDP__EXSCAN_DOUBLING, 0},
    {0, 0, CDP__EXSCAN_CHAIN, 0},
    {0, 0, CDP__EXSCAN_DOUBLING, 0},
};
#endif

CDP__PRIVATE const cdp__row *cdp__row_at(uint32_t i) {
    return i < sizeof cdp__rows / sizeof cdp__rows[0] ? &cdp__rows[i] : NULL;
}

/* The inputs of a choice; equal on all ranks. */
typedef struct cdp__choosing {
    const cdp__row *rows; /* the caller's own rows */
    uint32_t row_count;
    uint64_t small_bytes;
    bool reproducible; /* only algorithms whose bits depend on the inputs alone */
} cdp__choosing;

CDP__PRIVATE uint64_t cdp__row_bytes(const cdp__choosing *c, const cdp__row *row) {
    return row->max_bytes < CDP__LITTLE ? row->max_bytes
                                        : c->small_bytes >> 2 * (CDP__SMALL - row->max_bytes);
}

/* Returns the algorithm for an operation: that of the first row that matches it. `bytes`: length of
   the vector that is reduced or broadcast, or of all ranks' parts together. `is`: the properties of
   the group, as in cdp__row.only. */
CDP__PRIVATE uint32_t cdp__select(
    const cdp__choosing *c, cdp_coll_kind kind, uint64_t bytes, uint32_t ranks, uint8_t is) {
    uint32_t i;
    if (!(ranks & (ranks - 1))) is |= CDP__POWERS;
    for (i = 0;; ++i) {
        const cdp__row *row = i < c->row_count ? &c->rows[i] : cdp__row_at(i - c->row_count);
        const cdp__algo *a;
        /* every kind has a row for all sizes, whose algorithm has a fixed order of operands */
        CDP_ASSERT(row);
        a = cdp__algo_at(row->algo);
        if (a->kind != kind || (c->reproducible && !a->fixed)
            || ((is & CDP__WIDEST) && !cdp__algo_combines(row->algo))
            || (row->max_ranks && ranks > row->max_ranks) || (row->only & ~is))
            continue;
        if (row->max_bytes && bytes > cdp__row_bytes(c, row)) continue;
        return row->algo;
    }
}

#endif /* CDP_SRC_COLLECTIVE_SELECT_H */
