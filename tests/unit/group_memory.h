/* group_memory.h - memory of a group, or of a backward function, as an expression; NULL: none */
#ifndef TESTS_UNIT_GROUP_MEMORY_H
#define TESTS_UNIT_GROUP_MEMORY_H

__attribute__((unused)) static void *memory_of_group(cdp_group *g, uint64_t bytes) {
    void *p;
    return cdp_group_alloc(g, bytes, &p) == CDP_OK ? p : NULL;
}

#ifdef CDP_RPC_INCLUDED
__attribute__((unused)) static void *memory_of_backward(cdp_backward *b, uint64_t bytes) {
    void *p;
    return cdp_backward_alloc(b, bytes, &p) == CDP_OK ? p : NULL;
}
#endif

#endif
