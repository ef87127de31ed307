/* checkpoint/torch.h - what PyTorch's distributed checkpoints say

   Knows: the classes in `.metadata`, which lists tensors and the archives that have their blocks,
   and the pickle in such an archive, which says where the elements are. Promises: nothing of
   Python is looked up or called; any bytes yield entries with blocks inside their tensors, or a
   reason. */
#ifndef CDP_SRC_CHECKPOINT_TORCH_H
#define CDP_SRC_CHECKPOINT_TORCH_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/hash.h"
#include "../text/tree.h"
#include "../text/unpickle.h"
#include "../dtype/dtype.h"
#include "../dtensor/mesh_api.h"
#include "table.h"
#include "safetensors.h"
#include "disk.h"
#include "zip.h"

#define CDP__CK_METADATA ".metadata"
#define CDP__CK_METADATA_MAX (1u << 30) /* bytes */
#define CDP__CK_PICKLE_MAX (1u << 20)   /* of one tensor */
#ifndef CDP__CK_LOOKS
#define CDP__CK_LOOKS (1u << 26) /* most comparisons of places; PyTorch's order needs one each */
#endif

/* ---- values */

static const struct {
    const char *name, *storage; /* of the dtype, and of arrays of it */
    cdp_dtype dtype;
} cdp__ck_torch_dtypes[] = {
    {"float32", "FloatStorage", CDP_DTYPE_F32},
    {"float64", "DoubleStorage", CDP_DTYPE_F64},
    {"float16", "HalfStorage", CDP_DTYPE_F16},
    {"bfloat16", "BFloat16Storage", CDP_DTYPE_BF16},
    {"int64", "LongStorage", CDP_DTYPE_I64},
    {"int32", "IntStorage", CDP_DTYPE_I32},
    {"int16", "ShortStorage", CDP_DTYPE_I16},
    {"int8", "CharStorage", CDP_DTYPE_I8},
    {"uint8", "ByteStorage", CDP_DTYPE_U8},
    {"bool", "BoolStorage", CDP_DTYPE_BOOL},
    {"uint16", "", CDP_DTYPE_U16},
    {"uint32", "", CDP_DTYPE_U32},
    {"uint64", "", CDP_DTYPE_U64},
    {"float8_e4m3fn", "", CDP_DTYPE_F8E4M3},
    {"float8_e5m2", "", CDP_DTYPE_F8E5M2},
    {"complex64", "ComplexFloatStorage", CDP_DTYPE_CF32},
    {"complex128", "ComplexDoubleStorage", CDP_DTYPE_CF64},
};

/* The dtype that a global says; CDP_DTYPE_COUNT: none that is known here. */
CDP__PRIVATE cdp_dtype cdp__ck_torch_dtype(const cdp__tree *v) {
    uint32_t i;
    for (i = 0; i < sizeof cdp__ck_torch_dtypes / sizeof *cdp__ck_torch_dtypes; ++i)
        if (cdp__pk_is(v, "torch", cdp__ck_torch_dtypes[i].name)
            || (*cdp__ck_torch_dtypes[i].storage
                && cdp__pk_is(v, "torch", cdp__ck_torch_dtypes[i].storage)))
            return cdp__ck_torch_dtypes[i].dtype;
    return CDP_DTYPE_COUNT;
}

CDP__PRIVATE bool cdp__ck_unknown(cdp__ck_table *t, const char *why) {
    if (!t->why) {
        t->why = why;
        t->status = CDP_ERR_UNSUPPORTED;
    }
    return false;
}

/* Whether a value is a record of a class of this name, which only PyTorch has. */
CDP__PRIVATE bool cdp__ck_torch_is(const cdp__tree *v, const char *name) {
    return v && v->kind == CDP__TREE_RECORD
        && cdp__tree_is(&v->as.box->items[0].as.box->items[1], name);
}

/* The state of a record; NULL: it has none. */
CDP__PRIVATE const cdp__tree *cdp__ck_torch_state(const cdp__tree *v, const char *name) {
    return cdp__ck_torch_is(v, name) && v->as.box->count > 2 ? &v->as.box->items[2] : NULL;
}

/* Takes a torch.Size, or a tuple, of at most CDP_TENSOR_DIMS numbers. */
CDP__PRIVATE bool cdp__ck_torch_numbers(
    cdp__ck_table *t, const cdp__tree *v, uint64_t *out, uint32_t *count) {
    const cdp__tree_box *list;
    uint64_t i;
    if (cdp__ck_torch_is(v, "Size")) {
        list = cdp__tree_list(&v->as.box->items[1]);
        v = list && list->count ? &list->items[0] : NULL;
    }
    list = cdp__tree_list(v);
    if (!list) return cdp__ck_bad(t, "a size is no tuple");
    if (list->count > CDP_TENSOR_DIMS)
        return cdp__ck_unknown(t, "a tensor has too many dimensions");
    for (i = 0; i < list->count; ++i) {
        if (list->items[i].kind != CDP__TREE_INT || list->items[i].as.whole < 0)
            return cdp__ck_bad(t, "a size is no number");
        out[i] = (uint64_t)list->items[i].as.whole;
    }
    *count = (uint32_t)list->count;
    return true;
}

CDP__PRIVATE bool cdp__ck_torch_number(cdp__ck_table *t, const cdp__tree *v, uint64_t *out) {
    if (!v || v->kind != CDP__TREE_INT || v->as.whole < 0)
        return cdp__ck_bad(t, "a number is missing");
    *out = (uint64_t)v->as.whole;
    return true;
}

/* A text, stored; UINT64_MAX: it is none that can be a name, or out of memory. */
CDP__PRIVATE uint64_t cdp__ck_torch_text(cdp__ck_table *t, const cdp__tree *v) {
    uint64_t at;
    if (!v || v->kind != CDP__TREE_TEXT || v->length > CDP__CK_NAME
        || (v->length && memchr(v->as.text, 0, v->length))) {
        (void)cdp__ck_bad(t, "a name is no text, or too long");
        return UINT64_MAX;
    }
    at = cdp__ck_text(t, v->as.text, v->length);
    if (at != UINT64_MAX && cdp__ck_name_fits(t->text + at)) return at;
    (void)cdp__ck_bad(t, "a name is empty, or not UTF-8");
    return UINT64_MAX;
}

/* ---- .metadata */

/* Adds a block, of which it is not known yet where it is. */
CDP__PRIVATE bool cdp__ck_torch_block(
    cdp__ck_table *t, const cdp__tree *v, const cdp__ck_entry *e, uint64_t *left) {
    const cdp__tree *const state = cdp__ck_torch_state(v, "ChunkStorageMetadata");
    const uint64_t elem = cdp__dtype_row_of(e->dtype)->bytes;
    uint32_t starts, sizes, d;
    cdp__ck_block b;
    memset(&b, 0, sizeof b);
    b.file = UINT32_MAX;
    if (!cdp__ck_torch_numbers(t, cdp__tree_get(state, "offsets"), b.box.start, &starts)
        || !cdp__ck_torch_numbers(t, cdp__tree_get(state, "sizes"), b.box.size, &sizes))
        return false;
    if (starts != e->ndim || sizes != e->ndim)
        return cdp__ck_bad(t, "a block has other dimensions than its tensor");
    for (d = 0; d < e->ndim; ++d)
        if (b.box.start[d] > e->shape[d] || b.box.size[d] > e->shape[d] - b.box.start[d])
            return cdp__ck_bad(t, "a block leaves its tensor");
    (void)cdp__ck_entry_bytes(e->dtype, e->ndim, b.box.size, &b.bytes); /* at most the tensor's */
    if (b.bytes / elem > *left) return cdp__ck_bad(t, "blocks of a tensor overlap");
    *left -= b.bytes / elem;
    return cdp__ck_add_block(t, &b);
}

/* Each coordinate of each dimension has a random weight; the measure of a box is the product, over
   dimensions, of the differences between the weights of its two ends, modulo a prime. Measures of
   boxes that divide a box add up to its own. Of other boxes they do so with a chance of about
   2^-29, whoever has chosen them, as long as the seed is not known. */
CDP__PRIVATE uint64_t cdp__ck_torch_measure(const cdp_box *b, uint32_t ndim, uint64_t seed) {
    const uint64_t prime = 4294967291u; /* the largest of 32 bits */
    uint64_t all = 1;
    uint32_t d;
    for (d = 0; d < ndim; ++d) {
        const uint64_t of = cdp__mix(seed + d);
        const uint64_t from = cdp__mix(of ^ b->start[d]) % prime;
        const uint64_t to = cdp__mix(of ^ (b->start[d] + b->size[d])) % prime;
        all = all * ((to + prime - from) % prime) % prime;
    }
    return all;
}

/* Blocks that have as many elements as their tensor are all of it if none overlaps another. To
   compare each with each would take the square of the time. */
CDP__PRIVATE bool cdp__ck_torch_apart(cdp__ck_table *t, const cdp__ck_entry *e) {
    uint64_t seed = 0, i;
    uint32_t twice;
    cdp_box all;
    memset(&all, 0, sizeof all);
    memcpy(all.size, e->shape, sizeof e->shape);
    if (t->os->random(t->os->user, &seed, sizeof seed) != CDP_OK) seed = 0;
    for (twice = 0; twice < 2; ++twice, seed = cdp__mix(seed)) {
        uint64_t sum = 0;
        for (i = 0; i < e->blocks; ++i)
            sum += cdp__ck_torch_measure(&t->blocks[e->first_block + i].box, e->ndim, seed);
        if (sum % 4294967291u != cdp__ck_torch_measure(&all, e->ndim, seed))
            return cdp__ck_bad(t, "blocks of a tensor overlap");
    }
    return true;
}

/* Takes what there is of a tensor. */
CDP__PRIVATE bool cdp__ck_torch_tensor(cdp__ck_table *t, const cdp__tree *state, cdp__ck_entry *e) {
    const cdp__tree *const properties =
        cdp__ck_torch_state(cdp__tree_get(state, "properties"), "TensorProperties");
    const cdp__tree_box *const members = cdp__tree_list(properties);
    const cdp__tree_box *const blocks = cdp__tree_list(cdp__tree_get(state, "chunks"));
    uint64_t left, i;
    if (!members || !members->count || !blocks)
        return cdp__ck_bad(t, "a tensor has no properties, or no chunks");
    e->dtype = cdp__ck_torch_dtype(&members->items[0]);
    if (e->dtype == CDP_DTYPE_COUNT)
        return cdp__ck_unknown(t, "a tensor has a dtype that is not known here");
    if (!cdp__ck_torch_numbers(t, cdp__tree_get(state, "size"), e->shape, &e->ndim)) return false;
    if (!cdp__ck_entry_bytes(e->dtype, e->ndim, e->shape, &e->bytes))
        return cdp__ck_bad(t, "a tensor is too large");
    left = e->bytes / cdp__dtype_row_of(e->dtype)->bytes;
    e->first_block = t->block_count;
    e->blocks = blocks->count;
    for (i = 0; i < blocks->count; ++i)
        if (!cdp__ck_torch_block(t, &blocks->items[i], e, &left)) return false;
    if (left) return cdp__ck_bad(t, "the blocks of a tensor are not all of it");
    return cdp__ck_torch_apart(t, e);
}

/* Adds an entry: a tensor, or bytes, whose length is not known yet. */
CDP__PRIVATE bool cdp__ck_torch_entry(
    cdp__ck_table *t, const cdp__tree *name, const cdp__tree *what) {
    const cdp__tree *const tensor = cdp__ck_torch_state(what, "TensorStorageMetadata");
    cdp__ck_entry e;
    memset(&e, 0, sizeof e);
    e.blob = cdp__ck_torch_is(what, "BytesStorageMetadata");
    if (!tensor && !e.blob) return cdp__ck_unknown(t, "an entry is neither a tensor nor bytes");
    e.name = cdp__ck_torch_text(t, name);
    if (e.name == UINT64_MAX) return false;
    e.file = UINT32_MAX;
    if (e.blob) {
        e.dtype = CDP_DTYPE_U8;
        e.ndim = 1;
    }
    return (e.blob || cdp__ck_torch_tensor(t, tensor, &e)) && cdp__ck_add_entry(t, &e);
}

/* Counts comparisons, which in an order that nobody writes would be the square of the file. */
CDP__PRIVATE bool cdp__ck_torch_looks(cdp__ck_table *t, uint64_t count) {
    t->looks += count;
    return t->looks <= CDP__CK_LOOKS
        || cdp__ck_unknown(t, "too many files, or blocks in another order, to compare");
}

/* The number of a file; UINT32_MAX: a mistake. Neighbours mostly are in the same file. */
CDP__PRIVATE uint32_t cdp__ck_torch_file(cdp__ck_table *t, const cdp__tree *v) {
    const uint64_t name = cdp__ck_torch_text(t, v);
    cdp__ck_file *f;
    uint64_t i;
    if (name == UINT64_MAX) return UINT32_MAX;
    if (strpbrk(t->text + name, "/\\:")) {
        (void)cdp__ck_bad(t, "a file has a name with a path");
        return UINT32_MAX;
    }
    for (i = t->file_count; i-- > 0;)
        if (strcmp(t->text + t->files[i].name, t->text + name) == 0) {
            t->text_used = name; /* it is there already */
            return cdp__ck_torch_looks(t, t->file_count - i) ? (uint32_t)i : UINT32_MAX;
        }
    if (!cdp__ck_torch_looks(t, t->file_count)) return UINT32_MAX;
    f = cdp__ck_file_new(t);
    if (!f) {
        (void)cdp__ck_none(t);
        return UINT32_MAX;
    }
    f->name = name;
    return (uint32_t)t->file_count - 1;
}

/* The block of an entry that begins at these places; `hint`: probably this one. NULL: none, or it
   takes too long to find it. */
CDP__PRIVATE cdp__ck_block *cdp__ck_torch_find(
    cdp__ck_table *t, const cdp__ck_entry *e, const uint64_t *start, uint64_t hint) {
    cdp__ck_block *const all = t->blocks + e->first_block;
    uint64_t i;
    if (hint < e->blocks && memcmp(all[hint].box.start, start, e->ndim * sizeof *start) == 0
        && all[hint].file == UINT32_MAX)
        return &all[hint];
    if (!cdp__ck_torch_looks(t, e->blocks)) return NULL;
    for (i = 0; i < e->blocks; ++i)
        if (memcmp(all[i].box.start, start, e->ndim * sizeof *start) == 0
            && all[i].file == UINT32_MAX)
            return &all[i];
    return NULL;
}

/* Notes where something is: `key` says what, `value` where. */
CDP__PRIVATE bool cdp__ck_torch_place(
    cdp__ck_table *t, const cdp__tree *key, const cdp__tree *value) {
    const cdp__tree *const what = cdp__ck_torch_state(key, "MetadataIndex");
    const cdp__tree *const where = cdp__ck_torch_state(value, "_StorageInfo");
    const cdp__tree *const name = cdp__tree_get(what, "fqn"),
                           *const hint = cdp__tree_get(what, "index"),
                           *const changed = cdp__tree_get(where, "transform_descriptors");
    uint64_t start[CDP_TENSOR_DIMS] = {0}, at, bytes, text, likely;
    uint32_t dims = 0, file;
    cdp__ck_entry *e;
    cdp__ck_block *b;
    if (changed && changed->kind != CDP__TREE_NONE)
        return cdp__ck_unknown(t, "a tensor was transformed (transform_descriptors)");
    if (!cdp__ck_torch_number(t, cdp__tree_get(where, "offset"), &at)
        || !cdp__ck_torch_number(t, cdp__tree_get(where, "length"), &bytes))
        return false;
    if (bytes > INT64_MAX - at) return cdp__ck_bad(t, "a place in a file has more than 63 bits");
    text = cdp__ck_torch_text(t, name);
    e = text == UINT64_MAX ? NULL : cdp__ck_look(t, t->text + text);
    if (text != UINT64_MAX) t->text_used = text;
    if (!e) return cdp__ck_bad(t, "what is in a file has no entry");
    file = cdp__ck_torch_file(t, cdp__tree_get(where, "relative_path"));
    if (file == UINT32_MAX) return false;
    if (e->blob) {
        e->file = file;
        e->at = at;
        e->bytes = e->shape[0] = bytes;
        return true;
    }
    if (!cdp__ck_torch_numbers(t, cdp__tree_get(what, "offset"), start, &dims)) return false;
    likely = hint && hint->kind == CDP__TREE_INT ? (uint64_t)hint->as.whole : 0;
    b = dims == e->ndim ? cdp__ck_torch_find(t, e, start, likely) : NULL;
    if (!b) return cdp__ck_bad(t, "a block in a file is no block of its tensor");
    b->file = e->file = file;
    b->at = at;
    b->archive = bytes;
    return true;
}

CDP__PRIVATE bool cdp__ck_torch_places(cdp__ck_table *t, const cdp__tree *places) {
    uint64_t i, k;
    if (!places || places->kind != CDP__TREE_DICT)
        return cdp__ck_unknown(t, ".metadata has no dict storage_data");
    for (i = 0; i + 1 < places->as.box->count; i += 2)
        if (!cdp__ck_torch_place(t, &places->as.box->items[i], &places->as.box->items[i + 1]))
            return false;
    for (i = 0; i < t->count; ++i) {
        cdp__ck_entry *const e = &t->entries[i];
        for (k = 0; k < e->blocks; ++k)
            if (t->blocks[e->first_block + k].file == UINT32_MAX
                && t->blocks[e->first_block + k].bytes)
                return cdp__ck_bad(t, "a block of a tensor is in no file");
        if (e->file == UINT32_MAX && e->blob) return cdp__ck_bad(t, "bytes are in no file");
        if (e->file == UINT32_MAX) e->file = 0; /* it is empty */
    }
    return t->file_count || !t->count || cdp__ck_file_new(t) || cdp__ck_none(t);
}

/* Reads a whole `.metadata` into an empty table. */
CDP__PRIVATE bool cdp__ck_read_metadata(cdp__ck_table *t, const void *data, uint64_t bytes) {
    cdp__tree_reader r;
    cdp__tree v;
    const cdp__tree *state, *entries;
    uint64_t i, twice;
    bool ok;
    memset(&r, 0, sizeof r);
    r.data = (const uint8_t *)data;
    r.bytes = bytes;
    r.memory.os = t->os;
    r.records = true;
    ok = cdp__unpickle(&r, &v);
    if (!ok) ok = r.no_memory ? cdp__ck_none(t) : cdp__ck_bad(t, r.why);
    state = ok ? cdp__ck_torch_state(&v, "Metadata") : NULL;
    entries = cdp__tree_get(state, "state_dict_metadata");
    if (ok && (!entries || entries->kind != CDP__TREE_DICT))
        ok = cdp__ck_unknown(t, "it is not the Metadata of torch.distributed.checkpoint");
    for (i = 0; ok && i + 1 < entries->as.box->count; i += 2) {
        ok = cdp__ck_torch_entry(t, &entries->as.box->items[i], &entries->as.box->items[i + 1]);
        /* one list of blocks in many tensors would need the square of the memory of the file */
        if (ok && t->block_count > bytes)
            ok = cdp__ck_bad(t, "a list of blocks is repeated too often");
    }
    ok = ok && cdp__ck_index(t, &twice)
        && cdp__ck_torch_places(t, cdp__tree_get(state, "storage_data"));
    cdp__tree_close(&r);
    return ok;
}

/* ---- a tensor in an archive */

/* Takes the record of a tensor: the name of the member that has its elements, and its place there
   in elements. False: it is not that of this block. */
CDP__PRIVATE bool cdp__ck_torch_elements(cdp__ck_table *t, const cdp__tree *v, cdp_dtype dtype,
    const cdp__ck_block *b, uint32_t ndim, const cdp__tree **member, uint64_t *first) {
    const cdp__tree_box *args, *outside;
    uint64_t sizes[CDP_TENSOR_DIMS] = {0}, strides[CDP_TENSOR_DIMS] = {0}, step = 1;
    uint32_t n, m, d;
    const bool third = cdp__ck_torch_is(v, "_rebuild_tensor_v3");
    if (!third && !cdp__ck_torch_is(v, "_rebuild_tensor_v2"))
        return cdp__ck_unknown(t, "an archive has something else than a tensor");
    args = v->as.box->items[1].as.box;
    if (args->count < (third ? 7 : 4) || args->items[0].kind != CDP__TREE_OUTSIDE)
        return cdp__ck_bad(t, "a tensor in an archive has too few arguments");
    outside = cdp__tree_list(&args->items[0].as.box->items[0]);
    if (!outside || outside->count < 5 || outside->items[2].kind != CDP__TREE_TEXT)
        return cdp__ck_bad(t, "a tensor in an archive has no storage");
    if (cdp__ck_torch_dtype(third ? &args->items[6] : &outside->items[1]) != dtype)
        return cdp__ck_bad(t, "a tensor in an archive has another dtype");
    if (!cdp__ck_torch_number(t, &args->items[1], first)
        || !cdp__ck_torch_numbers(t, &args->items[2], sizes, &n)
        || !cdp__ck_torch_numbers(t, &args->items[3], strides, &m))
        return false;
    if (n != ndim || m != n || memcmp(sizes, b->box.size, sizeof sizes) != 0)
        return cdp__ck_bad(t, "a tensor in an archive has another shape");
    for (d = n; d-- > 0; step *= sizes[d])
        if (sizes[d] > 1 && strides[d] != step)
            return cdp__ck_unknown(t, "a tensor in an archive is not contiguous");
    *member = &outside->items[2];
    return true;
}

/* The pickle of an archive says where the block is. */
CDP__PRIVATE int32_t cdp__ck_torch_look(
    cdp__ck_zip *z, cdp_dtype dtype, uint32_t ndim, cdp__ck_block *b) {
    const uint64_t elem = cdp__dtype_row_of(dtype)->bytes;
    cdp__tree_reader r;
    cdp__tree v;
    const cdp__tree *member = NULL;
    char name[CDP__CK_NAME + 8];
    uint8_t *data = NULL, order[3] = {'l', 'i', 't'};
    uint64_t at = 0, bytes = 0, first = 0;
    int32_t err = cdp__ck_zip_find(z, "byteorder", 9, &at, &bytes);
    if (!err && bytes > 2) err = cdp__ck_read(z->disk, z->fd, at, order, 3);
    if (err == ENOENT) err = 0; /* older ones have none */
    if (!err && memcmp(order, "lit", 3) != 0) err = cdp__ck_zip_bad(z, "it is big-endian");
    if (!err) err = cdp__ck_zip_find(z, "data.pkl", 8, &at, &bytes);
    if (!err && bytes > CDP__CK_PICKLE_MAX) err = EBADMSG;
    if (!err && !(data = (uint8_t *)cdp__alloc(z->t->os, bytes))) err = ENOMEM;
    if (!err) err = cdp__ck_read(z->disk, z->fd, at, data, bytes);
    memset(&r, 0, sizeof r);
    r.data = data;
    r.bytes = bytes;
    r.memory.os = z->t->os;
    r.records = true;
    if (!err && !cdp__unpickle(&r, &v)) err = r.no_memory ? ENOMEM : cdp__ck_zip_bad(z, r.why);
    if (!err && !cdp__ck_torch_elements(z->t, &v, dtype, b, ndim, &member, &first)) err = EBADMSG;
    if (!err && (!member->length || member->length > CDP__CK_NAME)) err = EBADMSG;
    if (!err) {
        memcpy(name, "data/", 5);
        memcpy(name + 5, member->as.text, member->length);
        err = cdp__ck_zip_find(z, name, 5 + member->length, &at, &bytes);
    }
    if (!err && (first > bytes / elem || b->bytes > bytes - first * elem))
        err = cdp__ck_zip_bad(z, "a tensor is not in its storage");
    if (!err) b->at = at + first * elem;
    cdp__tree_close(&r);
    cdp__free(z->t->os, data);
    return err == ENOENT ? cdp__ck_zip_bad(z, "an archive lacks a member") : err;
}

/* Finds out where the elements of a block are. */
CDP__PRIVATE int32_t cdp__ck_torch_open(
    cdp__ck_disk *disk, cdp__ck_table *t, const cdp__ck_entry *e, cdp__ck_block *b, int32_t fd) {
    cdp__ck_zip z;
    int32_t err;
    memset(&z, 0, sizeof z);
    z.disk = disk;
    z.t = t;
    z.at = b->at;
    z.bytes = b->archive;
    z.fd = fd;
    err = cdp__ck_zip_open(&z);
    if (!err) err = cdp__ck_torch_look(&z, e->dtype, e->ndim, b);
    cdp__ck_zip_close(&z);
    if (!err) b->archive = 0;
    return err;
}

#endif /* CDP_SRC_CHECKPOINT_TORCH_H */
