/* train/tokens.h - files of token numbers

   Knows: their headers and the files of an os. Promises: a sample is never read across the end of
   a file. */
#ifndef CDP_SRC_TRAIN_TOKENS_H
#define CDP_SRC_TRAIN_TOKENS_H

#include "loader_api.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "../base/compiler.h"
#include "../os/whole.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "../base/text.h"

#if !defined(CDP_NO_TRAINING) && !defined(CDP_NO_SAMPLER) && !defined(CDP_NO_FILES)

#define CDP__TOKENS_MAGIC 20240520u
#define CDP__TOKENS_HEADER 1024u

typedef struct cdp__token_file {
    char *path;
    int32_t fd;
    uint64_t begin;  /* of the tokens, in bytes */
    uint64_t before; /* samples of the files before it */
} cdp__token_file;

struct cdp_tokens {
    const cdp_os *os;
    cdp__token_file *files;
    uint32_t count;  /* open files */
    uint32_t length; /* tokens of a sample, without the last target */
    uint32_t size;   /* bytes of a token: 2 or 4 */
    uint64_t samples;
};

/* Reads all of these bytes. Returns 0, 1 where the file ends before them, or a negative errno. */
CDP__PRIVATE int32_t cdp__tokens_get(
    const cdp_tokens *t, int32_t fd, uint64_t at, uint8_t *to, uint64_t bytes) {
    while (bytes) {
        const int64_t got = t->os->files.read_at(t->os->user, fd, at, to, bytes);
        if (got < 0) return (int32_t)got;
        if (!got) return 1;
        at += (uint64_t)got;
        to += got;
        bytes -= (uint64_t)got;
    }
    return 0;
}

CDP__PRIVATE CDP__COLD cdp_status cdp__tokens_failed(
    const cdp__token_file *f, const char *what, int32_t err) {
    if (err > 0)
        return cdp__fail(CDP_ERR_IO, "%s \"%s\": the file has become shorter", what, f->path);
    return cdp__fail_peer(
        CDP_ERR_IO, -1, -err, "%s \"%s\": error %d of the system", what, f->path, (int)-err);
}

/* Finds out where the tokens begin and how many samples they make. */
CDP__PRIVATE cdp_status cdp__tokens_measure(
    cdp_tokens *t, const cdp_tokens_desc *d, cdp__token_file *f) {
    cdp_file_info info;
    uint8_t magic[4] = {0, 0, 0, 0};
    uint64_t tokens;
    int32_t err = t->os->files.file_info(t->os->user, f->fd, &info);
    if (!err && !d->header_bytes && info.bytes >= CDP__TOKENS_HEADER)
        err = cdp__tokens_get(t, f->fd, 0, magic, sizeof magic);
    if (err) return cdp__tokens_failed(f, "reading", err);
    f->begin = d->header_bytes;
    if (cdp__get_u32(magic) == CDP__TOKENS_MAGIC) f->begin = CDP__TOKENS_HEADER;
    tokens = info.bytes > f->begin ? info.bytes - f->begin : 0;
    if (tokens % t->size)
        return cdp__fail(CDP_ERR_INVALID,
            "\"%s\" ends within a token of %u bytes: are dtype and header_bytes those of the file?",
            f->path, t->size);
    tokens /= t->size;
    if (tokens <= t->length)
        return cdp__fail(CDP_ERR_INVALID,
            "\"%s\" has %llu tokens; a sample of length %u needs %llu", f->path,
            (unsigned long long)tokens, t->length, (unsigned long long)t->length + 1);
    f->before = t->samples;
    t->samples += (tokens - 1) / t->length;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__tokens_open(
    cdp_tokens *t, const cdp_tokens_desc *d, const char *path) {
    cdp__token_file *const f = &t->files[t->count];
    const uint64_t bytes = strlen(path) + 1;
    f->path = (char *)cdp__alloc(t->os, bytes);
    if (!f->path) return cdp__fail_nomem("the name of a file", bytes);
    memcpy(f->path, path, (size_t)bytes);
    f->fd = t->os->files.open_file(t->os->user, path, 0);
    ++t->count;
    return f->fd < 0 ? cdp__tokens_failed(f, "opening", f->fd) : cdp__tokens_measure(t, d, f);
}

CDP_API void cdp_tokens_destroy(cdp_tokens *t) {
    if (!t || cdp__ended(t)) return;
    cdp__ended_add(t);
    while (t->count) {
        const cdp__token_file *const f = &t->files[--t->count];
        if (f->fd >= 0) t->os->files.close_file(t->os->user, f->fd);
        cdp__free(t->os, f->path);
    }
    cdp__free(t->os, t->files);
    cdp__free(t->os, t);
}

CDP__PRIVATE cdp_status cdp__tokens_check(const cdp_tokens_desc *d) {
    static const char *const call = "cdp_tokens_create";
    uint32_t i;
    if (!d) return cdp__missing(call, "desc");
    if (!d->paths || !d->path_count) return cdp__missing(call, "desc.paths");
    for (i = 0; i < d->path_count; ++i)
        if (!d->paths[i]) return cdp__missing(call, "a path of desc.paths");
    if (!d->length) return cdp__fail(CDP_ERR_INVALID, "%s: desc.length is 0", call);
    if (d->dtype && d->dtype != CDP_DTYPE_U16 && d->dtype != CDP_DTYPE_U32
        && d->dtype != CDP_DTYPE_I32)
        return cdp__fail(CDP_ERR_INVALID, "%s: tokens are U16, U32 or I32", call);
    return CDP_OK;
}

CDP_API cdp_status cdp_tokens_create(const cdp_tokens_desc *d, cdp_tokens **out) {
    const cdp_os *os;
    cdp_tokens *t;
    cdp_status st;
    uint32_t i;
    if (!out) return cdp__missing("cdp_tokens_create", "out");
    *out = NULL;
    st = cdp__tokens_check(d);
    if (st) return st;
    if (cdp__os_whole(d->os, "cdp_tokens_create") != CDP_OK) return CDP_ERR_INVALID;
    os = d->os ? d->os : cdp_os_default();
    if (!os->files.open_file)
        return cdp__fail(CDP_ERR_UNSUPPORTED, "cdp_tokens_create: this os has no files");
    t = (cdp_tokens *)cdp__alloc_zero(os, sizeof *t);
    if (!t) return cdp__fail_nomem("files of tokens", sizeof *t);
    cdp__ended_remove(t);
    t->os = os;
    t->length = d->length;
    t->size = d->dtype == CDP_DTYPE_U32 || d->dtype == CDP_DTYPE_I32 ? 4 : 2;
    t->files = (cdp__token_file *)cdp__alloc_zero(os, d->path_count * sizeof *t->files);
    if (!t->files) st = cdp__fail_nomem("files of tokens", d->path_count * sizeof *t->files);
    for (i = 0; !st && i < d->path_count; ++i)
        st = cdp__tokens_open(t, d, d->paths[i]);
    if (st)
        cdp_tokens_destroy(t);
    else
        *out = t;
    return st;
}

CDP_API uint64_t cdp_tokens_count(const cdp_tokens *t) {
    return t && !cdp__ended(t) ? t->samples : 0;
}

CDP_API uint64_t cdp_tokens_bytes(const cdp_tokens *t) {
    return t && !cdp__ended(t) ? 4 * ((uint64_t)t->length + 1) : 0;
}

/* The file with this sample: the last one that has none after it. */
CDP__PRIVATE const cdp__token_file *cdp__tokens_file(const cdp_tokens *t, uint64_t index) {
    uint32_t low = 0, high = t->count - 1;
    while (low < high) {
        const uint32_t middle = high - (high - low) / 2;
        if (t->files[middle].before <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return &t->files[low];
}

CDP_API cdp_status cdp_tokens_read(void *tokens, uint64_t index, void *out) {
    const cdp_tokens *const t = (const cdp_tokens *)tokens;
    const cdp__token_file *f;
    uint64_t at, n, i;
    uint8_t *raw;
    int32_t err;
    if (!t) return cdp__missing("cdp_tokens_read", "tokens");
    if (cdp__ended(t))
        return cdp__fail(CDP_ERR_STATE, "cdp_tokens_read: these tokens were destroyed");
    if (!out) return cdp__missing("cdp_tokens_read", "out");
    if (index >= t->samples)
        return cdp__fail(CDP_ERR_INVALID, "cdp_tokens_read: sample %llu of %llu",
            (unsigned long long)index, (unsigned long long)t->samples);
    f = cdp__tokens_file(t, index);
    at = f->begin + (index - f->before) * t->length * t->size;
    n = (uint64_t)t->length + 1;
    raw = (uint8_t *)out + n * (4 - t->size); /* at the end: numbers are widened from the front */
    err = cdp__tokens_get(t, f->fd, at, raw, n * t->size);
    if (err) return cdp__tokens_failed(f, "reading", err);
    for (i = 0; i < n; ++i) {
        const uint8_t *const p = raw + i * t->size;
        const uint32_t token =
            t->size == 4 ? cdp__get_u32(p) : (uint32_t)p[0] | (uint32_t)p[1] << 8;
        memcpy((uint8_t *)out + 4 * i, &token, 4);
    }
    return CDP_OK;
}
#endif /* CDP_NO_TRAINING, CDP_NO_SAMPLER, CDP_NO_FILES */

#endif /* CDP_SRC_TRAIN_TOKENS_H */
