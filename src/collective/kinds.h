/* collective/kinds.h - what each kind of collective is (pure)

   Knows: one row per kind. Promises: every module reads these rows; a kind does what its row
   allows, and nothing else. */
#ifndef CDP_SRC_COLLECTIVE_KINDS_H
#define CDP_SRC_COLLECTIVE_KINDS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"

/* Whether a kind has a root, and which way data travels. */
typedef enum cdp__root {
    CDP__ROOT_NONE,
    CDP__ROOT_SENDS,
    CDP__ROOT_RECEIVES
} cdp__root;

/* The number of elements of `in` and `out`. */
typedef enum cdp__extent {
    CDP__NOTHING,
    CDP__VECTOR,      /* `count` */
    CDP__ROOT_VECTOR, /* `count` on the root, 0 on the other ranks */
    CDP__PARTS,       /* one part per rank, of `count` or the counts that the caller gives */
    CDP__ROOT_PARTS   /* likewise on the root, 0 on the other ranks */
} cdp__extent;

/* May be done in place; if not, `in` is required. */
#define CDP__KIND_IN_PLACE 1u
#define CDP__KIND_REDUCES 2u
/* What cdp_start() takes; the others only name calls in messages and records. */
#define CDP__KIND_STARTS 4u
/* Backends of device memory have it: cdp_nccl.h. */
#define CDP__KIND_NCCL 8u
/* Each rank gets the reduction of other ranks than the next one does, so there is no average. */
#define CDP__KIND_PREFIX 16u

typedef struct cdp__kind {
    const char *name;
    uint8_t in, out, root, flags;
} cdp__kind;

CDP__PRIVATE const cdp__kind *cdp__kind_of(cdp_coll_kind kind) {
    enum {
        STARTS = CDP__KIND_STARTS,
        MOVES = STARTS | CDP__KIND_IN_PLACE | CDP__KIND_NCCL,
        REDUCES = MOVES | CDP__KIND_REDUCES,
        APART = STARTS | CDP__KIND_NCCL,
        PREFIX = STARTS | CDP__KIND_IN_PLACE | CDP__KIND_REDUCES | CDP__KIND_PREFIX
    };
    static const cdp__kind rows[] = {
        {"nothing", CDP__NOTHING, CDP__NOTHING, CDP__ROOT_NONE, 0},
        {"allreduce", CDP__VECTOR, CDP__VECTOR, CDP__ROOT_NONE, REDUCES},
        {"broadcast", CDP__NOTHING, CDP__VECTOR, CDP__ROOT_SENDS, MOVES},
        {"allgather", CDP__VECTOR, CDP__PARTS, CDP__ROOT_NONE, MOVES},
        {"barrier", CDP__NOTHING, CDP__NOTHING, CDP__ROOT_NONE, STARTS | CDP__KIND_IN_PLACE},
        {"reduce", CDP__VECTOR, CDP__ROOT_VECTOR, CDP__ROOT_RECEIVES, REDUCES},
        {"gather", CDP__VECTOR, CDP__ROOT_PARTS, CDP__ROOT_RECEIVES, MOVES},
        {"scatter", CDP__ROOT_PARTS, CDP__VECTOR, CDP__ROOT_SENDS, MOVES},
        {"reduce_scatter", CDP__PARTS, CDP__VECTOR, CDP__ROOT_NONE, REDUCES},
        {"alltoall", CDP__PARTS, CDP__PARTS, CDP__ROOT_NONE, APART},
        {"message", CDP__NOTHING, CDP__VECTOR, CDP__ROOT_NONE, 0},
        {"scan", CDP__VECTOR, CDP__VECTOR, CDP__ROOT_NONE, PREFIX},
        {"exscan", CDP__VECTOR, CDP__VECTOR, CDP__ROOT_NONE, PREFIX},
        {"?", CDP__NOTHING, CDP__NOTHING, CDP__ROOT_NONE, 0},
    };
    typedef char one_row_per_kind[sizeof rows / sizeof *rows == CDP_COLL_COUNT + 1 ? 1 : -1];
    (void)sizeof(one_row_per_kind);
    return &rows[(uint32_t)kind < CDP_COLL_COUNT ? (uint32_t)kind : (uint32_t)CDP_COLL_COUNT];
}

CDP_API const char *cdp_coll_name(cdp_coll_kind kind) {
    return cdp__kind_of(kind)->name;
}

CDP__PRIVATE bool cdp__kind_is(cdp_coll_kind k, uint32_t flag) {
    return (cdp__kind_of(k)->flags & flag) != 0;
}
CDP__PRIVATE bool cdp__kind_reduces(cdp_coll_kind k) {
    return cdp__kind_is(k, CDP__KIND_REDUCES);
}
CDP__PRIVATE bool cdp__kind_has_root(cdp_coll_kind k) {
    return cdp__kind_of(k)->root != CDP__ROOT_NONE;
}
CDP__PRIVATE bool cdp__kind_parts_in(cdp_coll_kind k) {
    return cdp__kind_of(k)->in >= CDP__PARTS;
}
CDP__PRIVATE bool cdp__kind_parts_out(cdp_coll_kind k) {
    return cdp__kind_of(k)->out >= CDP__PARTS;
}
CDP__PRIVATE bool cdp__kind_has_parts(cdp_coll_kind k) {
    return cdp__kind_parts_in(k) || cdp__kind_parts_out(k);
}
/* The parts of input and result differ, and differ by rank. */
CDP__PRIVATE bool cdp__kind_exchanges(cdp_coll_kind k) {
    return cdp__kind_parts_in(k) && cdp__kind_parts_out(k);
}

/* The elements of a buffer. `all`: those of all parts together. */
CDP__PRIVATE uint64_t cdp__extent_of(uint8_t extent, uint64_t count, uint64_t all, bool root) {
    if (extent == CDP__NOTHING) return 0;
    if ((extent == CDP__ROOT_VECTOR || extent == CDP__ROOT_PARTS) && !root) return 0;
    return extent >= CDP__PARTS ? all : count;
}

#endif /* CDP_SRC_COLLECTIVE_KINDS_H */
