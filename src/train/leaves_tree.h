/* train/leaves_tree.h - which nodes of a tree of micro-batches a rank owns (pure)

   Knows: numbers of leaves and ranks. Promises: whatever the number of ranks, nodes are joined in
   pairs as one tree over all leaves has them. */
#ifndef CDP_SRC_TRAIN_LEAVES_TREE_H
#define CDP_SRC_TRAIN_LEAVES_TREE_H

#include "../base/config.h"
#include "../base/compiler.h"

#ifndef CDP_NO_TRAINING

/* The aligned binary tree over `leaves` micro-batches: node (k, j) covers the leaves from j * 2^k
   to (j + 1) * 2^k; leaves that do not exist add nothing. So with 6 leaves:

                      (3,0) = root
                 /            \
             (2,0)            (2,1) = (1,2)
            /     \             |
         (1,0)   (1,1)        (1,2)
         /  \    /  \         /  \
        0    1  2    3       4    5

   Of 2 ranks, rank 0 owns the leaves 0 to 2 and sends (1,0) and leaf 2; rank 1 owns 3 to 5 and
   sends leaf 3 and (2,1). Floats are added in an order that the tree alone decides. */
typedef struct cdp__leaf_node {
    uint64_t index;
    uint32_t level;
} cdp__leaf_node;

/* Nodes of neighbouring leaves, none of which is the other half of the one before. */
#define CDP__LEAF_DEPTH 64u /* of 2^31 leaves a rank owns at most 60 nodes */
typedef struct cdp__leaf_stack {
    cdp__leaf_node nodes[CDP__LEAF_DEPTH];
    uint32_t depth;
} cdp__leaf_stack;

/* The first leaf of rank r; that of rank `ranks` is the number of leaves. */
CDP__PRIVATE uint64_t cdp__leaf_first(uint64_t leaves, uint64_t ranks, uint64_t r) {
    return leaves * r / ranks;
}

/* Appends the node that begins where the last one ends. Returns how often the value at the top is
   then added to the one below it: 0 if the node stays apart. */
CDP__PRIVATE uint32_t cdp__leaf_push(cdp__leaf_stack *s, cdp__leaf_node node, uint64_t leaves) {
    uint32_t added = 0;
    for (;;) {
        if (node.index & 1) {
            const cdp__leaf_node *below = s->depth ? &s->nodes[s->depth - 1] : NULL;
            if (!below || below->level != node.level || below->index + 1 != node.index) break;
            --s->depth;
            ++added;
        } else if (!node.index && (uint64_t)1 << node.level >= leaves) {
            break; /* the root */
        } else if ((node.index + 1) << node.level < leaves) {
            break; /* its other half exists, and is not here yet */
        }
        node.index >>= 1;
        ++node.level;
    }
    s->nodes[s->depth++] = node;
    return added;
}

/* Leaves [from, to) as nodes. Returns the largest depth on the way. */
CDP__PRIVATE uint32_t cdp__leaf_nodes(
    uint64_t leaves, uint64_t from, uint64_t to, cdp__leaf_stack *s) {
    cdp__leaf_node leaf = {0, 0};
    uint32_t most = 0;
    s->depth = 0;
    for (; from < to; ++from) {
        leaf.index = from;
        (void)cdp__leaf_push(s, leaf, leaves);
        most = s->depth > most ? s->depth : most;
    }
    return most;
}

#endif /* CDP_NO_TRAINING */

#endif /* CDP_SRC_TRAIN_LEAVES_TREE_H */
