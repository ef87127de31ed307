/* rpc/waves.h - which gradients flow where, and when all have arrived (pure)

   Knows: the values of one context on this rank, and the nodes that made them. Promises: in a
   backward pass every node that the roots reach fires once, when all gradients of its outputs
   have arrived; no other node fires; the starter learns when the pass is over on all ranks; a
   pass never waits for a value that the roots do not reach. */
#ifndef CDP_SRC_RPC_WAVES_H
#define CDP_SRC_RPC_WAVES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

typedef struct cdp__wave_edge {
    uint64_t value; /* an input */
    uint32_t to;    /* the rank on which it lives */
} cdp__wave_edge;

typedef enum cdp__wave_state {
    CDP__WAVE_IDLE,
    CDP__WAVE_MARKED,
    CDP__WAVE_FIRING, /* all gradients have arrived; its function runs */
    CDP__WAVE_FIRED,  /* gradients of its inputs are being sent */
    CDP__WAVE_OVER
} cdp__wave_state;

typedef struct cdp__wave_node {
    uint32_t first, edges;        /* its inputs, in the array of all edges */
    uint32_t marked, got;         /* gradients expected in this pass; of these, received */
    uint32_t deficit;             /* messages of it that are not answered by DONE */
    uint32_t parent, parent_node; /* rank and node that get its DONE */
    uint32_t epoch;               /* the pass that these counts belong to */
    uint8_t state;
} cdp__wave_node;

typedef struct cdp__wave_value {
    uint32_t node;      /* the node that made it */
    uint32_t output;    /* which one of its outputs */
    uint32_t receivers; /* the first rank that it was sent to; 0: none */
} cdp__wave_value;

typedef struct cdp__wave_receiver {
    uint32_t rank, next;
    uint32_t epoch; /* the last pass in which that rank sent its MARK */
} cdp__wave_receiver;

typedef enum cdp__wave_what {
    CDP__WAVE_SEND_MARK, /* to, node (which sends), value */
    CDP__WAVE_SEND_GRAD, /* to, node, value, edge (which input of the node) */
    CDP__WAVE_SEND_DONE, /* to, node (which gets it) */
    CDP__WAVE_FIRE,      /* node: call its function, then cdp__wave_fired() */
    CDP__WAVE_COUNTED,   /* the starter's first wave is over: cdp__wave_grads() */
    CDP__WAVE_ENDED      /* the pass is over on all ranks */
} cdp__wave_what;

typedef struct cdp__wave_act {
    cdp__wave_what what;
    uint32_t to, node, edge;
    uint64_t value;
} cdp__wave_act;

/* The result of handling a message. */
typedef enum cdp__wave_how {
    CDP__WAVE_OK,
    CDP__WAVE_LIE,      /* no peer of this version sends that */
    CDP__WAVE_CONFLICT, /* another pass of this context is in progress here */
    /* No peer of this version sends that now; but its sender may be honest, and another rank of the
       context has answered too early, or too often. */
    CDP__WAVE_DISORDER
} cdp__wave_how;

/* The caller owns and enlarges the arrays. Entry 0 of each is unused, except node 0: the
   starter, whose inputs are the roots. */
typedef struct cdp__waves {
    cdp__wave_node *nodes;
    cdp__wave_edge *edges;
    cdp__wave_value *values;
    cdp__wave_receiver *receivers;
    uint32_t node_count, edge_count, value_count, receiver_count;
    uint32_t rank;
    uint32_t epoch; /* number of passes on this rank so far */
    uint32_t open;  /* visited nodes of the pass that are not complete */
    uint64_t pass;
    void (*act)(void *user, const cdp__wave_act *act); /* must not call functions of this section */
    void *user;
} cdp__waves;

CDP__PRIVATE uint32_t cdp__wave_home(uint64_t value) {
    return (uint32_t)(value >> 48);
}

/* The entry of a value of this rank; 0: there is none. */
CDP__PRIVATE uint32_t cdp__wave_entry(const cdp__waves *t, uint64_t value) {
    const uint64_t index = value & 0xffffffffffffull;
    return cdp__wave_home(value) == t->rank && index <= t->value_count ? (uint32_t)index : 0;
}

/* ---- the graph; there must be room in the arrays */

/* Adds a node with these inputs: values of this rank or, for an import, one value of another
   rank. */
CDP__PRIVATE uint32_t cdp__wave_add_node(cdp__waves *t, const uint64_t *inputs, uint32_t count) {
    const uint32_t node = ++t->node_count;
    cdp__wave_node *n = &t->nodes[node];
    uint32_t i;
    memset(n, 0, sizeof *n);
    n->first = t->edge_count + 1;
    for (i = 0; i < count; ++i) {
        if (!inputs[i]) continue; /* a constant */
        ++n->edges;
        t->edges[++t->edge_count].value = inputs[i];
        t->edges[t->edge_count].to = cdp__wave_home(inputs[i]);
    }
    return node;
}

/* Adds a value of this rank, made by this node. */
CDP__PRIVATE uint64_t cdp__wave_add_value(cdp__waves *t, uint32_t node, uint32_t output) {
    cdp__wave_value *v = &t->values[++t->value_count];
    v->node = node;
    v->output = output;
    v->receivers = 0;
    return (uint64_t)t->rank << 48 | t->value_count;
}

/* The record that this value was sent to that rank; 0: it was not. */
CDP__PRIVATE uint32_t cdp__wave_has(const cdp__waves *t, uint32_t value, uint32_t rank) {
    uint32_t at = t->values[value].receivers;
    while (at && t->receivers[at].rank != rank)
        at = t->receivers[at].next;
    return at;
}

/* Records that this value is sent to a rank, from which gradients may come back. */
CDP__PRIVATE void cdp__wave_record_sent(cdp__waves *t, uint32_t value, uint32_t rank) {
    if (cdp__wave_has(t, value, rank)) return;
    t->receivers[++t->receiver_count].rank = rank;
    t->receivers[t->receiver_count].epoch = 0;
    t->receivers[t->receiver_count].next = t->values[value].receivers;
    t->values[value].receivers = t->receiver_count;
}

/* ---- the waves */

CDP__PRIVATE void cdp__wave_do(const cdp__waves *t, cdp__wave_what what, uint32_t to, uint32_t node,
    uint64_t value, uint32_t edge) {
    cdp__wave_act act;
    act.what = what;
    act.to = to;
    act.node = node;
    act.value = value;
    act.edge = edge;
    t->act(t->user, &act);
}

CDP__PRIVATE void cdp__wave_enter(cdp__waves *t, uint64_t pass) {
    t->pass = pass;
    ++t->epoch;
}

/* Answers the message by which the node joined the wave. */
CDP__PRIVATE void cdp__wave_answer(cdp__waves *t, cdp__wave_node *n) {
    if (n->state == CDP__WAVE_FIRED) {
        n->state = CDP__WAVE_OVER;
        --t->open;
    }
    cdp__wave_do(t, CDP__WAVE_SEND_DONE, n->parent, n->parent_node, 0, 0);
}

/* Sends one message per input. */
CDP__PRIVATE void cdp__wave_spread(cdp__waves *t, uint32_t node, cdp__wave_what what) {
    cdp__wave_node *n = &t->nodes[node];
    uint32_t i;
    n->deficit = n->edges;
    for (i = 0; i < n->edges; ++i)
        cdp__wave_do(t, what, t->edges[n->first + i].to, node, t->edges[n->first + i].value, i);
    if (!n->deficit) cdp__wave_answer(t, n);
}

/* Begins a pass on this rank, whose roots are values of this rank. False: another pass is in
   progress. */
CDP__PRIVATE bool cdp__wave_begin(
    cdp__waves *t, uint64_t pass, const uint64_t *roots, uint32_t count) {
    uint32_t i;
    if (t->open) return false;
    cdp__wave_enter(t, pass);
    ++t->open;
    t->nodes[0].first = t->edge_count + 1;
    t->nodes[0].edges = count;
    for (i = 0; i < count; ++i) {
        t->edges[++t->edge_count].value = roots[i];
        t->edges[t->edge_count].to = t->rank;
    }
    t->nodes[0].state = CDP__WAVE_MARKED;
    cdp__wave_spread(t, 0, CDP__WAVE_SEND_MARK);
    return true;
}

/* Starts the second wave, after COUNTED. */
CDP__PRIVATE void cdp__wave_grads(cdp__waves *t) {
    t->nodes[0].state = CDP__WAVE_FIRED;
    cdp__wave_spread(t, 0, CDP__WAVE_SEND_GRAD);
}

CDP__PRIVATE cdp__wave_how cdp__wave_got_mark(
    cdp__waves *t, uint32_t from, uint32_t from_node, uint64_t pass, uint64_t value) {
    const uint32_t v = cdp__wave_entry(t, value);
    const uint32_t receiver = v && from != t->rank ? cdp__wave_has(t, v, from) : 0;
    cdp__wave_node *n;
    if (!v || (from != t->rank && !receiver)) return CDP__WAVE_LIE;
    if (pass != t->pass && t->open) return CDP__WAVE_CONFLICT;
    if (pass != t->pass) cdp__wave_enter(t, pass);
    if (receiver && t->receivers[receiver].epoch == t->epoch)
        return CDP__WAVE_LIE; /* it has one import */
    if (receiver) t->receivers[receiver].epoch = t->epoch;
    n = &t->nodes[t->values[v].node];
    if (n->epoch != t->epoch) {
        n->epoch = t->epoch;
        n->marked = n->got = n->deficit = 0;
        n->state = CDP__WAVE_IDLE;
    }
    if (n->got) return CDP__WAVE_DISORDER;
    if (n->marked++) {
        cdp__wave_do(t, CDP__WAVE_SEND_DONE, from, from_node, 0, 0);
        return CDP__WAVE_OK;
    }
    n->state = CDP__WAVE_MARKED;
    n->parent = from;
    n->parent_node = from_node;
    ++t->open;
    cdp__wave_spread(t, t->values[v].node, CDP__WAVE_SEND_MARK);
    return CDP__WAVE_OK;
}

/* Handles a GRAD. The caller adds its gradient to the value *entry. */
CDP__PRIVATE cdp__wave_how cdp__wave_got_grad(cdp__waves *t, uint32_t from, uint32_t from_node,
    uint64_t pass, uint64_t value, uint32_t *entry) {
    cdp__wave_node *n;
    *entry = cdp__wave_entry(t, value);
    if (!*entry || (from != t->rank && !cdp__wave_has(t, *entry, from))) return CDP__WAVE_LIE;
    n = &t->nodes[t->values[*entry].node];
    if (pass != t->pass || n->epoch != t->epoch || n->state != CDP__WAVE_MARKED || n->deficit)
        return CDP__WAVE_DISORDER;
    if (++n->got < n->marked) {
        cdp__wave_do(t, CDP__WAVE_SEND_DONE, from, from_node, 0, 0);
        return CDP__WAVE_OK;
    }
    n->state = CDP__WAVE_FIRING;
    n->parent = from;
    n->parent_node = from_node;
    cdp__wave_do(t, CDP__WAVE_FIRE, t->rank, t->values[*entry].node, value, 0);
    return CDP__WAVE_OK;
}

/* The function of a node has returned. */
CDP__PRIVATE void cdp__wave_fired(cdp__waves *t, uint32_t node) {
    CDP_ASSERT(t->nodes[node].state == CDP__WAVE_FIRING);
    t->nodes[node].state = CDP__WAVE_FIRED;
    cdp__wave_spread(t, node, CDP__WAVE_SEND_GRAD);
}

CDP__PRIVATE bool cdp__wave_knows(const cdp__waves *t, const cdp__wave_node *n, uint32_t rank) {
    uint32_t i;
    for (i = 0; i < n->edges; ++i)
        if (t->edges[n->first + i].to == rank) return true;
    return false;
}

CDP__PRIVATE cdp__wave_how cdp__wave_got_done(
    cdp__waves *t, uint32_t from, uint64_t pass, uint32_t node) {
    cdp__wave_node *n = node <= t->node_count ? &t->nodes[node] : NULL;
    if (!n || !cdp__wave_knows(t, n, from)) return CDP__WAVE_LIE;
    if (pass != t->pass) return CDP__WAVE_DISORDER;
    if (!n->deficit) return CDP__WAVE_LIE; /* nobody else answers an import */
    if (--n->deficit) return CDP__WAVE_OK;
    if (node) {
        cdp__wave_answer(t, n);
    } else if (n->state == CDP__WAVE_MARKED) {
        cdp__wave_do(t, CDP__WAVE_COUNTED, t->rank, 0, 0, 0);
    } else {
        n->state = CDP__WAVE_OVER;
        --t->open;
        cdp__wave_do(t, CDP__WAVE_ENDED, t->rank, 0, 0, 0);
    }
    return CDP__WAVE_OK;
}

#endif /* CDP_SRC_RPC_WAVES_H */
