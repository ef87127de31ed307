/* base/bytes.h - fixed layouts, little-endian on every machine (pure)

   Knows: widths of integers. Promises: the same bytes on every machine, at any alignment. */
#ifndef CDP_SRC_BASE_BYTES_H
#define CDP_SRC_BASE_BYTES_H

#include "config.h"
#include "compiler.h"
#include "basics.h"

/* not a loop, so that compilers make one store of it */
CDP__PRIVATE void cdp__put_u32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

CDP__PRIVATE CDP__ONE_COPY void cdp__put_u64(uint8_t *p, uint64_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
    p[4] = (uint8_t)(v >> 32);
    p[5] = (uint8_t)(v >> 40);
    p[6] = (uint8_t)(v >> 48);
    p[7] = (uint8_t)(v >> 56);
}

CDP__PRIVATE uint32_t cdp__get_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

CDP__PRIVATE uint64_t cdp__get_u64(const uint8_t *p) {
    return (uint64_t)cdp__get_u32(p) | (uint64_t)cdp__get_u32(p + 4) << 32;
}

/* Stores a * b, the size of an array of `a` elements of `b` bytes. False if the product exceeds
   any memory. This also catches negative lengths that became unsigned, and keeps addresses from
   overflowing. */
CDP__PRIVATE bool cdp__mul_fits(uint64_t a, uint64_t b, uint64_t *out) {
    if (b && a > UINT64_MAX / 2 / b) return false;
    *out = a * b;
    return true;
}

/* This machine's byte order: 1 little-endian, 2 big-endian. */
CDP__PRIVATE uint32_t cdp__byte_order(void) {
    const uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    return first ? 1 : 2;
}

#endif /* CDP_SRC_BASE_BYTES_H */
