/* store_node.h - a node of a simulated world that serves a store as long as others need it, and how
   the others start from it */
#ifndef STORE_NODE_INCLUDED
#define STORE_NODE_INCLUDED

/* True when each node but node 0 has ended, or is lost. */
static bool store_node_left(const sim_world *w) {
    for (uint32_t i = 1; i < w->n; ++i)
        if (w->nodes[i].state == SIM_READY && !w->lost[i]) return false;
    return true;
}

/* Until over(), or while others live (NULL). `then`, if any, looks at the store before it goes. */
static void store_node_serve(
    sim_node *node, bool (*over)(void), void (*then)(cdp__loop *loop, sim_node *node)) {
    cdp__loop loop;
    cdp_store_server *server;
    cdp_store_server_desc d = {.host = "0.0.0.0",
        .port = 29500,
        .trust_network = true,
        .os = &node->os,
        .logger = {.level = CDP_LOG_SILENT}};
    if (cdp__loop_open(&loop, &node->os) != CDP_OK) return;
    d.loop = &loop;
    if (cdp_store_server_create(&d, &server) == CDP_OK) {
        while (over ? !over() : !store_node_left(node->world))
            if (cdp_store_server_poll(server, sim_time_of(node) + 20 * SIM_MS) != CDP_OK) break;
        if (then) then(&loop, node);
        cdp_store_server_destroy(server);
    }
    cdp__loop_close(&loop);
}

/* Makes a rank of nodes 1 to `ranks` of this node, with the store of node 0. */
SIM_API cdp_status store_node_start(
    sim_node *node, uint32_t ranks, uint32_t timeout_ms, cdp_store **store, cdp_group **g) {
    char host[20];
    snprintf(host, sizeof host, "10.0.0.%u", node->id + 1);
    const cdp_tcp_store_desc c = {.host = "10.0.0.1",
        .port = 29500,
        .os = &node->os,
        .connect_timeout_ms = 5000,
        .logger = {.level = CDP_LOG_SILENT}};
    const cdp_status st = cdp_tcp_store_create(&c, store);
    const cdp_tcp_desc t = {.store = *store,
        .master_addr = host,
        .trust_network = true,
        .group = {.rank = node->id - 1,
            .world_size = ranks,
            .timeout_ms = timeout_ms,
            .os = &node->os,
            .logger = {.level = CDP_LOG_SILENT}}};
    *g = NULL;
    return st == CDP_OK ? cdp_init(&t, g) : st;
}

#endif /* STORE_NODE_INCLUDED */
