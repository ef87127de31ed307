/* os/cores.h - which processors a rank gets (pure)

   Knows: lists of processors as Linux writes them, cores and their hardware threads, NUMA nodes.
   Promises: no two ranks share a core, except by node; cores of one rank lie side by side, of two
   nodes where the rank before left too few; only processors that the launcher may use are given. */
#ifndef CDP_SRC_OS_CORES_H
#define CDP_SRC_OS_CORES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

#include <string.h>

#define CDP__CORES_MAX 4096u   /* processors of a machine; others are not used */
#define CDP__CORES_NONE 65535u /* not allowed, or not there */

/* Processors, a bit for each. */
typedef struct cdp__cores {
    uint64_t bits[CDP__CORES_MAX / 64];
} cdp__cores;

/* What the launcher may use. Cores are numbered node by node. */
typedef struct cdp__cores_map {
    uint16_t core_of[CDP__CORES_MAX]; /* by processor */
    uint16_t node_of[CDP__CORES_MAX]; /* by core */
    uint32_t cores, nodes;            /* nodes: those that have a core */
} cdp__cores_map;

CDP__PRIVATE void cdp__cores_add(cdp__cores *c, uint32_t processor) {
    if (processor < CDP__CORES_MAX) c->bits[processor / 64] |= 1ull << processor % 64;
}

CDP__PRIVATE bool cdp__cores_has(const cdp__cores *c, uint32_t processor) {
    return processor < CDP__CORES_MAX && (c->bits[processor / 64] >> processor % 64 & 1) != 0;
}

CDP__PRIVATE const char *cdp__cores_number(const char *at, uint32_t *n) {
    for (*n = 0; *at >= '0' && *at <= '9'; ++at)
        if (*n < CDP__CORES_MAX) *n = *n * 10 + (uint32_t)(*at - '0');
    return at;
}

/* Adds a list as "0-3,8,10-11". What follows something else is left out. */
CDP__PRIVATE void cdp__cores_list(cdp__cores *c, const char *at) {
    while (*at >= '0' && *at <= '9') {
        uint32_t from, to;
        at = cdp__cores_number(at, &from);
        to = from;
        if (*at == '-') at = cdp__cores_number(at + 1, &to);
        for (; from <= to && from < CDP__CORES_MAX; ++from)
            cdp__cores_add(c, from);
        at += *at == ',';
    }
}

/* Before the first node. */
CDP__PRIVATE void cdp__cores_map_begin(cdp__cores_map *m) {
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < CDP__CORES_MAX; ++i)
        m->core_of[i] = CDP__CORES_NONE;
}

/* The next core of the node `m->nodes`: those of its hardware threads that are allowed and in no
   core yet. */
CDP__PRIVATE void cdp__cores_map_add(
    cdp__cores_map *m, const cdp__cores *threads, const cdp__cores *allowed) {
    bool any = false;
    for (uint32_t i = 0; i < CDP__CORES_MAX; ++i) {
        if (!cdp__cores_has(threads, i) || !cdp__cores_has(allowed, i)) continue;
        if (m->core_of[i] != CDP__CORES_NONE) continue;
        m->core_of[i] = (uint16_t)m->cores;
        any = true;
    }
    if (any) m->node_of[m->cores++] = (uint16_t)m->nodes;
}

/* After the last core of a node, which may have none. */
CDP__PRIVATE void cdp__cores_map_node(cdp__cores_map *m) {
    if (m->cores && m->node_of[m->cores - 1] == m->nodes) ++m->nodes;
}

/* How many cores each of `ranks` has where nobody says it: all of them together no more than there
   are, if that is possible. */
CDP__PRIVATE uint32_t cdp__cores_each(const cdp__cores_map *m, uint32_t ranks) {
    return m->cores > ranks ? m->cores / ranks : 1;
}

/* The processors of rank `i` of n: `each` cores that are its own, or all of a node, which
   neighbours share. */
CDP__PRIVATE void cdp__cores_of_rank(
    const cdp__cores_map *m, bool by_node, uint32_t each, uint32_t i, uint32_t n, cdp__cores *out) {
    const uint32_t node = (uint32_t)((uint64_t)i * m->nodes / n);
    memset(out, 0, sizeof *out);
    for (uint32_t p = 0; p < CDP__CORES_MAX; ++p) {
        const uint32_t core = m->core_of[p];
        if (core == CDP__CORES_NONE) continue;
        if (by_node ? m->node_of[core] == node : core / each == i) cdp__cores_add(out, p);
    }
}

#endif /* CDP_SRC_OS_CORES_H */
