/* store_node.h - a node of a simulated world that serves a store as long as others need it */
#ifndef STORE_NODE_INCLUDED
#define STORE_NODE_INCLUDED

/* `then`, if any, looks at the store before it goes. */
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
        while (!over())
            if (cdp_store_server_poll(server, sim_time_of(node) + 20 * SIM_MS) != CDP_OK) break;
        if (then) then(&loop, node);
        cdp_store_server_destroy(server);
    }
    cdp__loop_close(&loop);
}

#endif /* STORE_NODE_INCLUDED */
