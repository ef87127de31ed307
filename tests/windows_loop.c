/* windows_loop.c - adds up with the others until one of them is gone, and says what it was told:
   tests/windows.sh kills one. Its arguments: the rank, how many ranks, the port of rank 0. */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    cdp_group *world;
    if (argc != 4) return 2;
    const cdp_tcp_desc desc = {
        .group = {.rank = (uint32_t)atoi(argv[1]), .world_size = (uint32_t)atoi(argv[2])},
        .master_addr = "127.0.0.1",
        .master_port = (uint16_t)atoi(argv[3])};
    if (cdp_init(&desc, &world) != CDP_OK) return cdp_print_error(stderr);
    for (uint64_t i = 0;; ++i) {
        float x[1000];
        for (uint32_t k = 0; k < 1000; ++k)
            x[k] = (float)(k + desc.group.rank);
        if (cdp_allreduce(world, x, x, 1000, CDP_DTYPE_F32, CDP_REDUCE_SUM) != CDP_OK) break;
        if (x[999]
            != (float)(999 * desc.group.world_size
                + desc.group.world_size * (desc.group.world_size - 1) / 2)) {
            printf("a wrong sum\n");
            return 3;
        }
        if (i == 100) {
            printf("rank %u is on its way\n", desc.group.rank);
            fflush(stdout);
        }
    }
    printf("rank %u: %s, peer %d\n", desc.group.rank, cdp_status_name(cdp_last_error()->status),
        cdp_last_error()->peer);
    cdp_group_destroy(world);
    return 0;
}
