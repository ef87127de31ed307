/* store/record.h - the records of a file store (pure)

   Knows: the format of a file store's file. Promises: an incomplete record is recognised. */
#ifndef CDP_SRC_STORE_RECORD_H
#define CDP_SRC_STORE_RECORD_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"

/* The format of PyTorch's FileStore: a sequence of records, each a 32-bit length and a key, then
   a 32-bit length and a value, integers little-endian. A later record overrides an earlier one.
   A program's key k is "/k" in the file; a record of "-/k" removes it. Lower-case words that end
   in a slash are keys that count the users. */
/* PyTorch has no limit. Other data misread as a length is far above this one. */
#define CDP__RECORD_MAX_KEY 1048576u

typedef enum cdp__record_result {
    CDP__RECORD_WHOLE,
    CDP__RECORD_MORE,
    CDP__RECORD_TORN,
    CDP__RECORD_BAD
} cdp__record_result;

typedef struct cdp__record {
    /* point into the parsed bytes; the key of a removal is without its minus */
    cdp_bytes key, value;
    bool removal;
    uint64_t bytes; /* length of the record, as far as known */
} cdp__record;

/* True if these n bytes can be the beginning of a key in a file (`whole`: can be a whole key). */
CDP__PRIVATE bool cdp__record_key_fits(const uint8_t *p, uint64_t n, bool whole) {
    uint64_t i;
    if (!n) return !whole;
    if (*p == '/') return true;
    if (*p == '-') return n == 1 ? !whole : p[1] == '/';
    for (i = 0; i < n; ++i)
        if (!((p[i] >= 'a' && p[i] <= 'z') || p[i] == '_'
                || (p[i] == '/' && i && (!whole || i == n - 1))))
            return false;
    return !whole || p[n - 1] == '/';
}

/* Parses the n bytes at p; from p on, the file has `left` bytes. WHOLE: *out is the record.
   MORE: call again with out->bytes bytes. TORN: the file ends before the record does. BAD: this
   is no record. */
CDP__PRIVATE cdp__record_result cdp__record_next(
    const uint8_t *p, uint64_t n, uint64_t left, cdp__record *out) {
    uint64_t key_bytes;
    memset(out, 0, sizeof *out);
    out->bytes = 4;
    if (n >= 4) {
        key_bytes = cdp__get_u32(p);
        if (key_bytes > CDP__RECORD_MAX_KEY
            || !cdp__record_key_fits(p + 4, cdp__min(n - 4, key_bytes), n - 4 >= key_bytes))
            return CDP__RECORD_BAD;
        out->bytes = 8 + key_bytes;
        if (n >= out->bytes) {
            out->removal = p[4] == '-';
            out->key.data = p + 4 + out->removal;
            out->key.bytes = key_bytes - out->removal;
            out->value.data = p + out->bytes;
            out->value.bytes = cdp__get_u32(p + out->bytes - 4);
            out->bytes += out->value.bytes;
        }
    }
    if (out->bytes <= n) return CDP__RECORD_WHOLE;
    if (out->bytes <= left) return CDP__RECORD_MORE;
    if (out->key.data || n == left) return CDP__RECORD_TORN;
    /* the file ends inside the record; its key shows whether it is a record at all */
    out->bytes = left;
    return CDP__RECORD_MORE;
}

CDP__PRIVATE uint64_t cdp__record_bytes(const char *prefix, cdp_bytes key, uint64_t value_bytes) {
    return 8 + strlen(prefix) + key.bytes + value_bytes;
}

CDP__PRIVATE uint8_t *cdp__record_copy(uint8_t *p, cdp_bytes s) {
    if (s.bytes) memcpy(p, s.data, (size_t)s.bytes);
    return p + s.bytes;
}

/* Writes a record to p, which has room; returns the position after it. The value may be in two
   parts. */
CDP__PRIVATE uint8_t *cdp__record_put(
    uint8_t *p, const char *prefix, cdp_bytes key, cdp_bytes value, cdp_bytes more) {
    const uint32_t prefix_bytes = (uint32_t)strlen(prefix);
    cdp__put_u32(p, prefix_bytes + (uint32_t)key.bytes);
    memcpy(p + 4, prefix, prefix_bytes);
    p = cdp__record_copy(p + 4 + prefix_bytes, key);
    cdp__put_u32(p, (uint32_t)(value.bytes + more.bytes));
    return cdp__record_copy(cdp__record_copy(p + 4, value), more);
}

#endif /* CDP_SRC_STORE_RECORD_H */
