/* elastic_nodes.h - nodes, store and faults that elastic_shrink.c and elastic_worlds.c have alike

   The program that includes it has declared `x` (world, nodes, kind, faulty, m[].node, wrong; cuts:
   somebody may live and not be heard), the kinds F_... of faults, and has included sim.h. Node 0
   serves the store. */
#ifndef ELASTIC_NODES_INCLUDED
#define ELASTIC_NODES_INCLUDED

#include "store_node.h"

static bool alive(uint32_t i) {
    return x.world->nodes[i].state != SIM_DEAD;
}

/* A fault after which a rank may live and not be heard: a partition may leave a member out. */
static bool cuts_off(void) {
    return x.faulty
        && (x.cuts || x.kind == F_STOP || x.kind == F_PART || x.kind == F_ONE_WAY
            || x.kind == F_SLOW_STORE || x.kind == F_NO_STORE);
}

/* Faults, and the links of a store that is slow from the first fault on. */
static void add_faults(const sim_fault *f, uint32_t faults, fault_kind kind) {
    for (uint32_t i = 1; i < x.nodes; ++i)
        x.m[i].node = &x.world->nodes[i];
    for (uint32_t i = 0; i < faults; ++i)
        sim_add_fault(x.world, &f[i]);
    for (uint32_t i = 1; faults && kind == F_SLOW_STORE && i < x.nodes; ++i) {
        const sim_link_rule r = {.from = 0,
            .to = i,
            .since_ns = f[0].at_ns,
            .until_ns = f[0].at_ns + 3 * SIM_S,
            .delay_ns = SIM_S};
        sim_add_link_rule(x.world, &r);
    }
}

/* What a fault that is drawn for a kill is in worlds of another kind. */
static void fault_of_kind(sim_fault *f, fault_kind kind, const uint64_t *allocs, uint64_t *s) {
    if (kind == F_STOP) f->kind = SIM_FAULT_STOP;
    if (kind == F_CUT) f->kind = SIM_FAULT_CUT;
    if (kind == F_SLOW_STORE) f->kind = SIM_FAULT_NONE;
    if (kind == F_NO_STORE) f->a = 0;
    if (kind == F_NOMEM) {
        f->kind = SIM_FAULT_NOMEM;
        f->at_count = 1 + sim_random(s) % allocs[f->a];
    }
    if (kind == F_PART || kind == F_ONE_WAY) {
        f->kind = SIM_FAULT_PARTITION;
        f->set_a = sim_random(s) & ((1ull << x.nodes) - 1);
        f->set_b = ~f->set_a & ((1ull << x.nodes) - 1);
        f->one_way = kind == F_ONE_WAY;
    }
}

#endif
