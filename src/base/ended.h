/* base/ended.h - handles that were destroyed

   Knows: addresses. Promises: the use of a destroyed handle is recognized without reading its
   memory, from any thread, without a lock, until others take its places in a table. */
#ifndef CDP_SRC_BASE_ENDED_H
#define CDP_SRC_BASE_ENDED_H

#include "config.h"
#include "compiler.h"

#ifndef CDP_NO_OS
#define CDP__ENDED_MAX 1024u /* remembered at once: a power of two */
#ifdef CDP_NO_LOG_STRINGS    /* where bytes count */
#define CDP__ENDED_WAYS 1u
#else
#define CDP__ENDED_WAYS 4u /* places that an address may have */
#endif

/* The places of an address in the table of this process. */
CDP__PRIVATE void **cdp__ended_at(const void *handle) {
    static void *table[CDP__ENDED_MAX];
    const uint32_t hash = (uint32_t)((uintptr_t)handle >> 4) * 0x9e3779b1u >> 16;
    return &table[hash % CDP__ENDED_MAX & ~(CDP__ENDED_WAYS - 1)];
}

/* True if this handle was destroyed. */
CDP__PRIVATE bool cdp__ended(const void *handle) {
    for (uint32_t i = 0; handle && i < CDP__ENDED_WAYS; ++i)
        if (cdp__atomic_load_ptr(cdp__ended_at(handle) + i, CDP__RELAXED) == handle) return true;
    return false;
}

/* A place that is free, or that of one of the others in turn. */
CDP__PRIVATE void **cdp__ended_place(void **at) {
    static uint32_t turn;
    for (uint32_t i = 0; i < CDP__ENDED_WAYS; ++i)
        if (!cdp__atomic_load_ptr(&at[i], CDP__RELAXED)) return &at[i];
    return &at[cdp__atomic_add_u32(&turn, 1, CDP__RELAXED) % CDP__ENDED_WAYS];
}

/* Its memory will be freed. */
CDP__PRIVATE void cdp__ended_add(const void *handle) {
    void **at = cdp__ended_at(handle);
    if (CDP__ENDED_WAYS > 1) at = cdp__ended_place(at);
    void *former = cdp__atomic_load_ptr(at, CDP__RELAXED);
    void *const mine = (void *)(uintptr_t)handle;
    while (!cdp__atomic_cas_ptr(at, &former, mine, CDP__ACQ_REL, CDP__ACQUIRE)) {
    }
}

/* The memory at this address is that of a new handle now. */
CDP__PRIVATE void cdp__ended_remove(const void *handle) {
    for (uint32_t i = 0; handle && i < CDP__ENDED_WAYS; ++i) {
        void **const at = cdp__ended_at(handle) + i, *mine = (void *)(uintptr_t)handle;
        if (cdp__atomic_load_ptr(at, CDP__RELAXED) == handle)
            (void)cdp__atomic_cas_ptr(at, &mine, NULL, CDP__ACQ_REL, CDP__ACQUIRE);
    }
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
