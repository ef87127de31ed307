/*  checkpoint_torch.h - writes files as torch.save() does: a zip archive with a pickle

    A dict of names and tensors, which torch.load(weights_only=True) reads. Members are not
    compressed, and elements begin at multiples of 64 bytes, so that torch.load(mmap=True) works.
    Include after cdp_checkpoint.h. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef CHECKPOINT_TORCH_H
#define CHECKPOINT_TORCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pickles: a text with a tensor for each name ---- */

static void put_low(cdp__text *t, uint64_t v, uint32_t bytes) {
    for (; bytes; --bytes, v >>= 8)
        cdp__text_char(t, (char)(v & 255));
}

static void pickle_text(cdp__text *t, const char *text) {
    cdp__text_char(t, 'X');
    put_low(t, strlen(text), 4);
    cdp__text_add(t, "%s", text);
}

static void pickle_number(cdp__text *t, uint64_t v) {
    const bool wide = v > INT32_MAX; /* at most INT64_MAX */
    if (wide) cdp__text_char(t, '\x8a');
    cdp__text_char(t, wide ? 8 : 'J');
    put_low(t, v, wide ? 8 : 4);
}

static void pickle_numbers(cdp__text *t, const uint64_t *v, uint32_t n) {
    cdp__text_char(t, '(');
    for (uint32_t i = 0; i < n; ++i)
        pickle_number(t, v[i]);
    cdp__text_char(t, 't');
}

static void pickle_class(cdp__text *t, const char *module, const char *name) {
    cdp__text_add(t, "c%s\n%s\n", module, name);
}

/* Where PyTorch's names of a dtype are in their table; UINT32_MAX: it has none. */
static uint32_t torch_dtype(cdp_dtype dtype) {
    for (uint32_t i = 0; i < sizeof cdp__ck_torch_dtypes / sizeof *cdp__ck_torch_dtypes; ++i)
        if (cdp__ck_torch_dtypes[i].dtype == dtype) return i;
    return UINT32_MAX;
}

/* The tensor whose elements are member data/`key`. */
static void pickle_tensor(cdp__text *t, const cdp_ckpt_entry *e, uint32_t key) {
    const uint32_t row = torch_dtype(e->dtype);
    const char *const storage = cdp__ck_torch_dtypes[row].storage;
    const bool bytes = !*storage; /* PyTorch has no storage of its own for newer dtypes */
    uint64_t strides[CDP_TENSOR_DIMS], step = 1;
    char number[16];
    for (uint32_t d = e->ndim; d-- > 0;) {
        strides[d] = step;
        if (e->shape[d]) step *= e->shape[d];
    }
    snprintf(number, sizeof number, "%u", key);
    pickle_class(t, "torch._utils", bytes ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
    cdp__text_add(t, "((");
    pickle_text(t, "storage");
    pickle_class(t, bytes ? "torch.storage" : "torch", bytes ? "UntypedStorage" : storage);
    pickle_text(t, number);
    pickle_text(t, "cpu");
    pickle_number(t, bytes ? e->bytes : e->bytes / cdp_dtype_size(e->dtype));
    cdp__text_add(t, "tQ");
    pickle_number(t, 0);
    pickle_numbers(t, e->shape, e->ndim);
    pickle_numbers(t, strides, e->ndim);
    cdp__text_char(t, '\x89');
    pickle_class(t, "collections", "OrderedDict");
    cdp__text_add(t, ")R");
    if (bytes) pickle_class(t, "torch", cdp__ck_torch_dtypes[row].name);
    cdp__text_add(t, "tR");
}

/* ---- zip archives ---- */

#define ZIP_DATE 0x21 /* 1980-01-01: equal tensors make equal files */

typedef struct zip_member {
    char name[32];
    uint64_t at, bytes; /* of its header in the file; of its content */
    uint32_t crc;
} zip_member;

typedef struct zip_file {
    FILE *f;
    uint64_t at; /* where it ends now */
    zip_member *members;
    uint32_t count;
    uint32_t crcs[8][256]; /* of a byte with 0 to 7 zeros behind it */
    bool ok;
} zip_file;

static void zip_open(zip_file *z, FILE *f, zip_member *members) {
    memset(z, 0, sizeof *z);
    z->f = f;
    z->members = members;
    z->ok = true;
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t v = i;
        for (uint32_t bit = 0; bit < 8; ++bit)
            v = v >> 1 ^ (v & 1 ? 0xedb88320u : 0);
        z->crcs[0][i] = v;
    }
    for (uint32_t k = 1; k < 8; ++k)
        for (uint32_t i = 0; i < 256; ++i)
            z->crcs[k][i] = z->crcs[k - 1][i] >> 8 ^ z->crcs[0][z->crcs[k - 1][i] & 255];
}

static uint32_t zip_crc(const zip_file *z, uint32_t crc, const uint8_t *p, uint64_t bytes) {
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        const uint64_t v = cdp__get_u64(p) ^ crc;
        crc = 0;
        for (uint32_t k = 0; k < 8; ++k)
            crc ^= z->crcs[7 - k][v >> 8 * k & 255];
    }
    for (; bytes; --bytes)
        crc = crc >> 8 ^ z->crcs[0][(crc ^ *p++) & 255];
    return ~crc;
}

static void zip_put(zip_file *z, const void *data, uint64_t bytes) {
    z->ok = z->ok && fwrite(data, 1, (size_t)bytes, z->f) == bytes;
    z->at += bytes;
}

static bool zip_wide(const zip_member *m) {
    return m->bytes >= UINT32_MAX;
}
static uint64_t zip_32(uint64_t v) { /* what stands where 32 bits are too few */
    return v < UINT32_MAX ? v : UINT32_MAX;
}

/* Begins a member of so many bytes. Its sum is known behind it, and stands there. */
static void zip_begin(zip_file *z, const char *name, uint64_t bytes) {
    zip_member *const m = &z->members[z->count++];
    char head[256];
    cdp__text t = cdp__text_of(head, sizeof head);
    memset(m, 0, sizeof *m);
    snprintf(m->name, sizeof m->name, "archive/%s", name);
    m->at = z->at;
    m->bytes = bytes;
    const uint64_t least = m->at + 30 + strlen(m->name) + (zip_wide(m) ? 20u : 0u) + 4;
    const uint64_t filler = (64 - least % 64) % 64;
    put_low(&t, 0x04034b50, 4);
    put_low(&t, zip_wide(m) ? 45 : 20, 2);
    put_low(&t, 8, 2); /* the sum stands behind the content */
    put_low(&t, 0, 4);
    put_low(&t, ZIP_DATE, 2);
    put_low(&t, 0, 4);
    put_low(&t, zip_wide(m) ? UINT32_MAX : 0, 4);
    put_low(&t, zip_wide(m) ? UINT32_MAX : 0, 4);
    put_low(&t, strlen(m->name), 2);
    put_low(&t, (zip_wide(m) ? 20u : 0u) + 4 + filler, 2);
    cdp__text_add(&t, "%s", m->name);
    if (zip_wide(m)) {
        put_low(&t, 1, 2);
        put_low(&t, 16, 2);
        put_low(&t, 0, 8);
        put_low(&t, 0, 8);
    }
    cdp__text_add(&t, "FB"); /* a field that fills up, as PyTorch has it */
    put_low(&t, filler, 2);
    for (uint64_t i = 0; i < filler; ++i)
        cdp__text_char(&t, 'Z');
    zip_put(z, head, t.used);
}

/* The next bytes of the member that was begun last. */
static void zip_more(zip_file *z, const void *data, uint64_t bytes) {
    zip_member *const m = &z->members[z->count - 1];
    m->crc = zip_crc(z, m->crc, (const uint8_t *)data, bytes);
    zip_put(z, data, bytes);
}

static void zip_end(zip_file *z) {
    const zip_member *const m = &z->members[z->count - 1];
    const uint32_t size = zip_wide(m) ? 8 : 4;
    char tail[32];
    cdp__text t = cdp__text_of(tail, sizeof tail);
    put_low(&t, 0x08074b50, 4);
    put_low(&t, m->crc, 4);
    put_low(&t, m->bytes, size);
    put_low(&t, m->bytes, size);
    zip_put(z, tail, t.used);
}

/* Adds a short member. */
static void zip_text(zip_file *z, const char *name, const char *text, uint64_t bytes) {
    zip_begin(z, name, bytes);
    zip_more(z, text, bytes);
    zip_end(z);
}

static void zip_list(zip_file *z, const zip_member *m) {
    const bool far_away = m->at >= UINT32_MAX;
    const uint32_t numbers = (zip_wide(m) ? 16u : 0u) + (far_away ? 8u : 0u);
    char row[128];
    cdp__text t = cdp__text_of(row, sizeof row);
    put_low(&t, 0x02014b50, 4);
    put_low(&t, 45, 2);
    put_low(&t, numbers ? 45 : 20, 2);
    put_low(&t, 8, 2);
    put_low(&t, 0, 4);
    put_low(&t, ZIP_DATE, 2);
    put_low(&t, m->crc, 4);
    put_low(&t, zip_wide(m) ? UINT32_MAX : m->bytes, 4);
    put_low(&t, zip_wide(m) ? UINT32_MAX : m->bytes, 4);
    put_low(&t, strlen(m->name), 2);
    put_low(&t, numbers ? 4 + numbers : 0, 2);
    put_low(&t, 0, 10);
    put_low(&t, zip_32(m->at), 4);
    cdp__text_add(&t, "%s", m->name);
    if (numbers) {
        put_low(&t, 1, 2);
        put_low(&t, numbers, 2);
    }
    if (zip_wide(m)) {
        put_low(&t, m->bytes, 8);
        put_low(&t, m->bytes, 8);
    }
    if (far_away) put_low(&t, m->at, 8);
    zip_put(z, row, t.used);
}

/* Writes the list of members, with which an archive ends. False: something was not written. */
static bool zip_close(zip_file *z) {
    const uint64_t from = z->at;
    char end[128];
    cdp__text t = cdp__text_of(end, sizeof end);
    for (uint32_t i = 0; i < z->count; ++i)
        zip_list(z, &z->members[i]);
    const uint64_t bytes = z->at - from;
    if (z->count >= 0xffff || from >= UINT32_MAX) {
        put_low(&t, 0x06064b50, 4);
        put_low(&t, 44, 8);
        put_low(&t, 45, 2);
        put_low(&t, 45, 2);
        put_low(&t, 0, 8);
        put_low(&t, z->count, 8);
        put_low(&t, z->count, 8);
        put_low(&t, bytes, 8);
        put_low(&t, from, 8);
        put_low(&t, 0x07064b50, 4);
        put_low(&t, 0, 4);
        put_low(&t, z->at, 8);
        put_low(&t, 1, 4);
    }
    put_low(&t, 0x06054b50, 4);
    put_low(&t, 0, 4);
    put_low(&t, z->count < 0xffff ? z->count : 0xffff, 2);
    put_low(&t, z->count < 0xffff ? z->count : 0xffff, 2);
    put_low(&t, zip_32(bytes), 4);
    put_low(&t, zip_32(from), 4);
    put_low(&t, 0, 2);
    zip_put(z, end, t.used);
    return z->ok;
}

#endif
