/* windows_loop.c - adds up with the others until one of them is gone, and says what it was told:
   tests/windows.sh kills one. Its argument: a word by which it is found. With a second one it
   talks over TCP alone. */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    cdp_group *world;
    static char links[16384];
    const cdp_tcp_desc desc = {.no_shared_memory = argc == 3};
    uint32_t rank, size;
    if (argc != 2 && argc != 3) return 2;
    if (cdp_init_from_env(&desc, &world) != CDP_OK) return cdp_print_error(stderr);
    rank = cdp_rank(world);
    size = cdp_size(world);
    for (uint64_t i = 0;; ++i) {
        float x[1000];
        for (uint32_t k = 0; k < 1000; ++k)
            x[k] = (float)(k + rank);
        if (cdp_allreduce(world, x, x, 1000, CDP_DTYPE_F32, CDP_REDUCE_SUM) != CDP_OK) break;
        if (x[999] != (float)(999 * size + size * (size - 1) / 2)) {
            printf("a wrong sum\n");
            return 3;
        }
        if (i == 100) {
            cdp_describe(world, links, sizeof links);
            printf("rank %u, process %lu, is on its way over %s\n", rank,
                (unsigned long)GetCurrentProcessId(),
                strstr(links, ": memory, ") ? "memory" : "TCP");
            fflush(stdout);
        }
    }
    printf("rank %u: %s, peer %d\n", rank, cdp_status_name(cdp_last_error()->status),
        cdp_last_error()->peer);
    cdp_group_destroy(world);
    return 0;
}
