/* mem/build_id.h - the build id of a module (pure)

   Knows: where an ELF file has the note that linkers write. Promises: reads nothing but the bytes
   that it gets, whatever stands in them. */
#ifndef CDP_SRC_MEM_BUILD_ID_H
#define CDP_SRC_MEM_BUILD_ID_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

#define CDP__MEM_BUILD_ID 41u /* bytes of its text: 20 bytes as hexadecimal digits, and a zero */

/* A number of the file, in the byte order of this machine; 0 beyond its end. */
CDP__PRIVATE uint64_t cdp__mem_elf(
    const uint8_t *file, uint64_t bytes, uint64_t at, uint32_t width) {
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    if (at > bytes || bytes - at < width) return 0;
    switch (width) {
    case 2: memcpy(&two, file + at, 2); return two;
    case 4: memcpy(&four, file + at, 4); return four;
    default: memcpy(&eight, file + at, 8); return eight;
    }
}

/* Looks through notes: lengths of name and contents, a type, the name, the contents. */
CDP__PRIVATE bool cdp__mem_build_note(const uint8_t *at, uint64_t bytes, char *out) {
    static const char digits[] = "0123456789abcdef";
    while (bytes >= 12) {
        const uint64_t name = (cdp__mem_elf(at, bytes, 0, 4) + 3) & ~3ull;
        const uint64_t length = cdp__mem_elf(at, bytes, 4, 4), whole = (length + 3) & ~3ull;
        uint64_t i;
        if (name > bytes - 12 || whole > bytes - 12 - name) return false;
        if (cdp__mem_elf(at, bytes, 8, 4) == 3 && name == 4 && memcmp(at + 12, "GNU", 4) == 0) {
            for (i = 0; i < length && 2 * i + 2 < CDP__MEM_BUILD_ID; ++i) {
                *out++ = digits[at[16 + i] >> 4];
                *out++ = digits[at[16 + i] & 15];
            }
            *out = 0;
            return length > 0;
        }
        at += 12 + name + whole;
        bytes -= 12 + name + whole;
    }
    return false;
}

/* Finds the build id in the beginning of an ELF file. False: there is none; `out` is "" then. */
CDP__PRIVATE bool cdp__mem_build_id(
    const uint8_t *file, uint64_t bytes, char out[CDP__MEM_BUILD_ID]) {
    const bool wide = bytes > 4 && file[4] == 2; /* 64 bits */
    const uint32_t word = wide ? 8 : 4;
    uint64_t at, each, count;
    out[0] = 0;
    if (bytes < 52 || memcmp(file, "\177ELF", 4) != 0) return false;
    at = cdp__mem_elf(file, bytes, wide ? 32 : 28, word); /* the program headers */
    each = cdp__mem_elf(file, bytes, wide ? 54 : 42, 2);
    count = cdp__mem_elf(file, bytes, wide ? 56 : 44, 2);
    for (; count && at < bytes; --count, at += each) {
        const uint64_t from = cdp__mem_elf(file, bytes, at + (wide ? 8 : 4), word);
        const uint64_t length = cdp__mem_elf(file, bytes, at + (wide ? 32 : 16), word);
        if (cdp__mem_elf(file, bytes, at, 4) != 4) continue; /* no notes */
        if (from > bytes || length > bytes - from) continue;
        if (cdp__mem_build_note(file + from, length, out)) return true;
    }
    return false;
}

#endif /* CDP_SRC_MEM_BUILD_ID_H */
