/* base/ended.h - handles that were destroyed

   Knows: addresses. Promises: the use of a destroyed handle is recognized without reading its
   memory, from any thread, without a lock, until another handle takes its place in a table. */
#ifndef CDP_SRC_BASE_ENDED_H
#define CDP_SRC_BASE_ENDED_H

#include "config.h"
#include "compiler.h"

#ifndef CDP_NO_OS
#define CDP__ENDED_MAX 1024u /* remembered at once: a power of two */

/* The place of an address in the table of this process. */
CDP__PRIVATE void **cdp__ended_at(const void *handle) {
    static void *table[CDP__ENDED_MAX];
    return &table[((uint32_t)((uintptr_t)handle >> 4) * 0x9e3779b1u >> 16) % CDP__ENDED_MAX];
}

/* True if this handle was destroyed. */
CDP__PRIVATE bool cdp__ended(const void *handle) {
    return handle && cdp__atomic_load_ptr(cdp__ended_at(handle), CDP__RELAXED) == handle;
}

/* Its memory will be freed. */
CDP__PRIVATE void cdp__ended_add(const void *handle) {
    void **at = cdp__ended_at(handle);
    void *former = cdp__atomic_load_ptr(at, CDP__RELAXED);
    void *const mine = (void *)(uintptr_t)handle;
    while (!cdp__atomic_cas_ptr(at, &former, mine, CDP__ACQ_REL, CDP__ACQUIRE)) {
    }
}

/* The memory at this address is that of a new handle now. */
CDP__PRIVATE void cdp__ended_remove(const void *handle) {
    void *mine = (void *)(uintptr_t)handle;
    if (cdp__ended(handle))
        (void)cdp__atomic_cas_ptr(cdp__ended_at(handle), &mine, NULL, CDP__ACQ_REL, CDP__ACQUIRE);
}

/* Tells handles apart that were at one address one after the other. */
CDP__PRIVATE uint32_t cdp__handle_number(void) {
    static uint32_t last;
    return cdp__atomic_add_u32(&last, 1, CDP__RELAXED);
}
#else
CDP__PRIVATE bool cdp__ended(const void *handle) {
    (void)handle;
    return false;
}
CDP__PRIVATE void cdp__ended_add(const void *handle) {
    (void)handle;
}
CDP__PRIVATE void cdp__ended_remove(const void *handle) {
    (void)handle;
}
CDP__PRIVATE uint32_t cdp__handle_number(void) {
    return 0;
}
#endif

#endif /* CDP_SRC_BASE_ENDED_H */
