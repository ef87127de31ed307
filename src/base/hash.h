/* base/hash.h - one hash for keys, fingerprints and seeds (pure)

   Knows: bytes. Promises: the same number from the same bytes on every machine. */
#ifndef CDP_SRC_BASE_HASH_H
#define CDP_SRC_BASE_HASH_H

#include "config.h"
#include "compiler.h"
#include "basics.h"

/* FNV-1a, 64 bits (Fowler, Noll, Vo): detects accidental differences, not malicious ones. */
#define CDP__HASH_START 0xcbf29ce484222325ull
CDP__PRIVATE uint64_t cdp__hash(uint64_t h, const void *data, uint64_t bytes) {
    const uint8_t *p = (const uint8_t *)data;
    uint64_t i;
    for (i = 0; i < bytes; ++i)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

/* Mixes all bits of a number (the finalizer of SplitMix64, Steele and others 2014). */
CDP__PRIVATE uint64_t cdp__mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

#endif /* CDP_SRC_BASE_HASH_H */
