/* Files of checkpoints that somebody else wrote: headers of safetensors, and checkpoint.json.

   Inputs made from a seed: good files, joined, cut and damaged. The first byte says which of the
   two it is. How to run it: fuzz.h.

   Whatever comes, nothing may be read or written beyond its place; each entry that is accepted lies
   in its file, has the bytes of its shape, a name of its own, and can be found by it. */
#define FUZZ_BEFORE_TCP "cdp_checkpoint.h"
#include "fuzz.h"

/* Accepted entries keep what the comments of the table promise. */
static void look_at(cdp__ck_table *t, bool sums) {
    uint64_t i, twice;
    if (!cdp__ck_index(t, &twice)) {
        T(t->status == CDP_ERR_NOMEM || twice < t->count);
        return;
    }
    for (i = 0; i < t->count; ++i) {
        const cdp__ck_entry *const e = &t->entries[i];
        const cdp__ck_file *f;
        uint64_t bytes;
        T(e->file < t->file_count);
        f = &t->files[e->file];
        T(e->at <= f->bytes && e->bytes <= f->bytes - e->at);
        T(e->ndim <= CDP_TENSOR_DIMS && e->dtype > 0 && e->dtype < CDP_DTYPE_COUNT);
        T(cdp__ck_entry_bytes(e->dtype, e->ndim, e->shape, &bytes) && bytes == e->bytes);
        T(cdp__ck_name_fits(cdp__ck_name(t, e)));
        T(cdp__ck_look(t, cdp__ck_name(t, e)) == e);
        if (sums) T(e->sums == cdp__ck_slab_count(t, e) && e->first_sum + e->sums <= t->sum_count);
    }
}

static void try_header(cdp__ck_table *t, const uint8_t *data, uint64_t bytes) {
    const uint64_t data_bytes = bytes ? data[0] : 0;
    cdp__ck_file *const f = cdp__ck_file_new(t);
    if (!f) return;
    f->name = cdp__ck_text(t, "x", 1);
    f->data_at = 8 + bytes;
    f->bytes = f->data_at + data_bytes;
    if (cdp__ck_read_header(t, data + (bytes > 0), bytes - (bytes > 0), data_bytes))
        look_at(t, false);
    else
        T(t->why && t->status);
}

static void try_description(cdp__ck_table *t, const uint8_t *data, uint64_t bytes) {
    cdp__json_reader j = cdp__json_open(data, bytes);
    (void)cdp__ck_checked((const char *)data, bytes);
    /* without the sum at its end, which no damaged file would have */
    if (cdp__ck_read_body(t, &j))
        look_at(t, true);
    else
        T(t->why && t->status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *const copy = (uint8_t *)fenced_alloc(size ? size - 1 : 0);
    cdp__ck_table t;
    if (size > 1) memcpy(copy, data + 1, size - 1);
    cdp__ck_table_open(&t, cdp_os_default());
    if (size && data[0] & 1)
        try_header(&t, copy, size - 1);
    else if (size)
        try_description(&t, copy, size - 1);
    cdp__ck_table_close(&t);
    fenced_free(copy);
    return 0;
}

#ifndef FUZZ_LIB
static const char *const headers[] = {
    "\x18{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}   ",
    "\x06{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[],"
    "\"data_offsets\":[0,2]},\"\\u00e4\\\"\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]"
    "}}",
};
static const char *const descriptions[] = {
    "{\"format\":\"cdp checkpoint 1\",\"step\":7,\"slab_bytes\":64,\"files\":[{\"name\":\"m.s\","
    "\"bytes\":4200}],\n\"tensors\":[\n{\"name\":\"w\",\"dtype\":\"F32\",\"shape\":[4,5],\"file\":"
    "0,"
    "\"offset\":4096,\"layout\":\"S1 on 4\",\"sums\":\"be569e1566a50000be569e1566a50001\"}],\n"
    "\"blobs\":[\n{\"name\":\"n\",\"dtype\":\"U8\",\"shape\":[3],\"file\":0,\"offset\":4180,"
    "\"sums\":\"0fc9fa686f944508\"}]\n,\"check\":\"1413902876f54ee0\"}\n",
};
static const char *const words[] = {"\"", "{", "}", "[", "]", ",", ":", "0", "-1", "1e9", "\\u0000",
    "18446744073709551615", "9223372036854775807", "\"F64\"", "\"C64\"",
    "\"shape\":", "\"sums\":\"\"", "\"file\":9", "\"data_offsets\":[0,0]", "null",
    "\"name\":\"..\"", "\"name\":\"a/b\"", "\xff", "[[["};

static size_t make_input(uint64_t seed, uint8_t *out) {
    const bool header = seed & 1;
    const char *const good = header ? headers[pick(2)] : descriptions[0];
    size_t n = strlen(good) + 1;
    out[0] = header;
    memcpy(out + 1, good, n - 1);
    for (uint32_t changes = pick(5); changes; --changes) {
        const size_t at = 1 + pick((uint32_t)n);
        const char *const word = words[pick(sizeof words / sizeof *words)];
        const size_t length = strlen(word);
        switch (pick(4)) {
        case 0:
            if (at < n) out[at] ^= (uint8_t)(1u << pick(8));
            break;
        case 1: n = at < n ? at : n; break;
        case 2: /* over what is there */
            memcpy(out + at, word, length);
            if (at + length > n) n = at + length;
            break;
        default:
            memmove(out + at + length, out + at, n > at ? n - at : 0);
            memcpy(out + at, word, length);
            n = (n > at ? n : at) + length;
        }
    }
    return n;
}
#endif
