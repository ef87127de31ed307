/* os/pages.h - addresses without memory, and memory for their pages

   Knows: mmap() and VirtualAlloc(). Promises: reserved addresses cost no memory; what is committed
   reads as 0; what is taken back is memory of nobody. For cdp_mem.h. */
#ifndef CDP_SRC_OS_PAGES_H
#define CDP_SRC_OS_PAGES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

#ifdef CDP_NO_OS
#define CDP__PAGES 0
#else
#define CDP__PAGES 1 /* the functions below exist */
#ifdef _WIN32
CDP__PRIVATE void *cdp__pages_reserve(uint64_t bytes) {
    return VirtualAlloc(NULL, (SIZE_T)bytes, MEM_RESERVE, PAGE_NOACCESS);
}
CDP__PRIVATE void cdp__pages_release(void *at, uint64_t bytes) {
    (void)bytes;
    VirtualFree(at, 0, MEM_RELEASE);
}
CDP__PRIVATE bool cdp__pages_commit(void *at, uint64_t bytes) {
    return VirtualAlloc(at, (SIZE_T)bytes, MEM_COMMIT, PAGE_READWRITE) != NULL;
}
CDP__PRIVATE bool cdp__pages_take_back(void *at, uint64_t bytes) {
    return VirtualFree(at, (SIZE_T)bytes, MEM_DECOMMIT) != 0;
}
#else
#include <sys/mman.h>
#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif
CDP__PRIVATE void *cdp__pages_none(void *at, uint64_t bytes, int flags) {
    void *const p = mmap(
        at, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}
CDP__PRIVATE void *cdp__pages_reserve(uint64_t bytes) {
    return cdp__pages_none(NULL, bytes, 0);
}
CDP__PRIVATE void cdp__pages_release(void *at, uint64_t bytes) {
    munmap(at, (size_t)bytes);
}
CDP__PRIVATE bool cdp__pages_commit(void *at, uint64_t bytes) {
    return mprotect(at, (size_t)bytes, PROT_READ | PROT_WRITE) == 0;
}
/* A new mapping in place of the old one: that gives the memory back everywhere at once. */
CDP__PRIVATE bool cdp__pages_take_back(void *at, uint64_t bytes) {
    return cdp__pages_none(at, bytes, MAP_FIXED) != NULL;
}
#endif
#endif

#endif /* CDP_SRC_OS_PAGES_H */
