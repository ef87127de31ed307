/* byte_orders.c - one rank of a job, or one end of a store, for tests/byte_orders.sh, which starts
   some of them as programs of machines with another byte order.

     byte_orders rank R N PORT     starts and adds up; prints the sum, or the error
     byte_orders serve PORT        serves a store and writes to it, reads what the client wrote
     byte_orders ask PORT          the client */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include <stdio.h>
#include <stdlib.h>

static int rank_of_job(uint32_t rank, uint32_t size, uint16_t port) {
    cdp_tcp_desc desc;
    cdp_group *world;
    uint32_t x[1000], i;
    memset(&desc, 0, sizeof desc);
    desc.group.rank = rank;
    desc.group.world_size = size;
    desc.group.timeout_ms = 60000;
    desc.init_timeout_ms = 60000;
    desc.master_addr = "127.0.0.1";
    desc.master_port = port;
    if (cdp_init(&desc, &world) != CDP_OK) return cdp_print_error(stdout);
    for (i = 0; i < 1000; ++i)
        x[i] = (rank + 1) * (i + 1);
    if (cdp_allreduce(world, NULL, x, 1000, CDP_DTYPE_U32, CDP_REDUCE_SUM) != CDP_OK)
        return cdp_print_error(stdout);
    printf("rank %u: sum %u\n", (unsigned)rank, (unsigned)x[999]);
    cdp_group_destroy(world);
    return 0;
}

/* Values, counters and binary bytes of a store are the same for both ends. */
static int exchange(cdp_store *store, const char *own, const char *other) {
    static const uint8_t bytes[5] = {1, 2, 3, 4, 250};
    void *got = NULL;
    uint64_t n = 0;
    int64_t sum = 0;
    if (cdp_store_add(store, "count", INT64_C(0x123456789), &sum) != CDP_OK
        || cdp_store_set(store, own, bytes, sizeof bytes) != CDP_OK
        || cdp_store_get(store, other, &got, &n, 60000) != CDP_OK
        || cdp_store_add(store, "count", 0, &sum) != CDP_OK)
        return cdp_print_error(stdout);
    printf("%s: %s, sum %lld\n", own,
        n == sizeof bytes && memcmp(got, bytes, sizeof bytes) == 0 ? "same bytes" : "other bytes",
        (long long)sum);
    cdp_store_free(store, got);
    return 0;
}

static int end_of_store(bool serves, uint16_t port) {
    cdp_store_server_desc sd;
    cdp_tcp_store_desc cd;
    cdp_store_server *server = NULL;
    cdp_store *store;
    void *done = NULL;
    int rc;
    memset(&sd, 0, sizeof sd);
    memset(&cd, 0, sizeof cd);
    sd.port = cd.port = port;
    cd.host = "127.0.0.1";
    if (serves && cdp_store_server_create(&sd, &server) != CDP_OK) return cdp_print_error(stdout);
    if (cdp_tcp_store_create(&cd, &store) != CDP_OK) return cdp_print_error(stdout);
    rc = exchange(store, serves ? "server" : "client", serves ? "client" : "server");
    if (cdp_store_set(store, serves ? "served" : "asked", "1", 1) != CDP_OK
        || (serves && cdp_store_get(store, "asked", &done, NULL, 60000) != CDP_OK))
        return cdp_print_error(stdout);
    cdp_store_free(store, done);
    cdp_store_destroy(store);
    cdp_store_server_destroy(server);
    return rc;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "rank") == 0)
        return rank_of_job(
            (uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]), (uint16_t)atoi(argv[4]));
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return end_of_store(true, (uint16_t)atoi(argv[2]));
    if (argc == 3 && strcmp(argv[1], "ask") == 0)
        return end_of_store(false, (uint16_t)atoi(argv[2]));
    return 2;
}
