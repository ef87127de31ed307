/*  torch_files.h - writes what torch.distributed.checkpoint does: a .metadata of a tensor in
    blocks, and an archive of each block; good ones, and some that are not. Include after cdp.h. */
#ifndef TORCH_FILES_INCLUDED
#define TORCH_FILES_INCLUDED

typedef struct octets {
    uint8_t at[1 << 16];
    size_t n;
} octets;

static void put(octets *b, const void *from, size_t n) {
    if (b->n + n > sizeof b->at) abort();
    memcpy(b->at + b->n, from, n);
    b->n += n;
}
static void put_text(octets *b, const char *text) {
    put(b, text, strlen(text));
}
static void put_low(octets *b, uint64_t v, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const uint8_t byte = i < 8 ? (uint8_t)(v >> 8 * i) : 0;
        put(b, &byte, 1);
    }
}
static void pk_name(octets *b, const char *text) {
    put_text(b, "X");
    put_low(b, strlen(text), 4);
    put_text(b, text);
}
static void pk_number(octets *b, uint64_t v) {
    put_text(b, "J");
    put_low(b, v, 4);
}
static void pk_tuple(octets *b, const uint64_t *v, uint32_t n) {
    put_text(b, "(");
    for (uint32_t i = 0; i < n; ++i)
        pk_number(b, v[i]);
    put_text(b, "t");
}
static void pk_size(octets *b, const uint64_t *v, uint32_t n) {
    put_text(b, "ctorch\nSize\n(");
    pk_tuple(b, v, n);
    put_text(b, "tR");
}
/* An object of a class of the metadata; its state, which ends with "ub", follows. */
static void pk_object(octets *b, const char *class_name) {
    put_text(b, "ctorch.distributed.checkpoint.");
    put_text(b, class_name);
    put_text(b, "\n)\x81}(");
}

enum {
    ROWS = 7,
    COLUMNS = 5,
    MEMBERS = 3
};

/* What a folder is to have: a tensor of ROWS x COLUMNS in blocks of rows or columns, and bytes. */
typedef struct sample {
    uint32_t blocks;
    bool columns;
    const char *dtype, *storage, *rebuild;
    uint64_t step, first; /* stride of a row (0: right), place in the storage */
    const char *order;
    uint32_t lacks;   /* 1: a block has no place, 2: blocks leave a gap, 3: transformed, 4: blocks
                         overlap, and have as many elements as the tensor */
    uint32_t packed;  /* member that is compressed, from 1 on */
    int64_t cut;      /* bytes that the archive is shorter */
    const char *file; /* its name */
} sample;

static float value(uint64_t row, uint64_t column) {
    return (float)(row * 100 + column);
}

static void block_of(const sample *s, uint32_t i, uint64_t start[2], uint64_t size[2]) {
    const uint64_t all = s->columns ? COLUMNS : ROWS;
    const uint64_t from = all * i / s->blocks, to = all * (i + 1) / s->blocks;
    start[0] = start[1] = 0;
    size[0] = ROWS;
    size[1] = COLUMNS;
    start[s->columns] = from;
    size[s->columns] = to - from;
    if (s->lacks != 4) return;
    start[s->columns] = 0;
    if (s->blocks < 3) return;
    start[0] = i ? 5 - 2 * i : 0; /* 0, 3, 1 */
    size[0] = i ? 2 : 3;
}

static void pickle_of(const sample *s, const uint64_t size[2], octets *b) {
    const uint64_t strides[2] = {s->step ? s->step : size[1], 1};
    put_text(b,
        "\x80\x02"
        "ctorch._utils\n");
    put_text(b, s->rebuild ? s->rebuild : "_rebuild_tensor_v2");
    put_text(b, "\n((");
    pk_name(b, "storage");
    put_text(b, "ctorch\n");
    put_text(b, s->storage ? s->storage : "FloatStorage");
    put_text(b, "\n");
    pk_name(b, "0");
    pk_name(b, "cpu");
    pk_number(b, size[0] * size[1]);
    put_text(b, "tQ");
    pk_number(b, s->first);
    pk_tuple(b, size, 2);
    pk_tuple(b, strides, 2);
    put_text(b,
        "\x89"
        "ccollections\nOrderedDict\n)RtR.");
}

static void archive_of(
    const sample *s, const uint64_t start[2], const uint64_t size[2], octets *b) {
    static const char *const names[MEMBERS] = {
        "archive/data.pkl", "archive/byteorder", "archive/data/0"};
    static octets member[MEMBERS], list;
    const size_t begin = b->n;
    for (uint32_t m = 0; m < MEMBERS; ++m)
        member[m].n = 0;
    list.n = 0;
    pickle_of(s, size, &member[0]);
    put_text(&member[1], s->order ? s->order : "little");
    for (uint64_t r = 0; r < size[0]; ++r)
        for (uint64_t c = 0; c < size[1]; ++c) {
            const float v = value(start[0] + r, start[1] + c);
            put(&member[2], &v, 4);
        }
    for (uint32_t m = 0; m < MEMBERS; ++m) {
        const uint32_t method = s->packed == m + 1 ? 8 : 0;
        const size_t at = b->n - begin;
        put_low(b, 0x04034b50, 4);
        put_low(b, 0, 4);
        put_low(b, method, 2);
        put_low(b, 0, 16);
        put_low(b, strlen(names[m]), 2);
        put_low(b, 3, 2); /* a field that fills up */
        put_text(b, names[m]);
        put(b, "pad", 3);
        put(b, member[m].at, member[m].n);
        put_low(&list, 0x02014b50, 4);
        put_low(&list, 0, 6);
        put_low(&list, method, 2);
        put_low(&list, 0, 8);
        put_low(&list, member[m].n, 4);
        put_low(&list, member[m].n, 4);
        put_low(&list, strlen(names[m]), 2);
        put_low(&list, 0, 12);
        put_low(&list, at, 4);
        put_text(&list, names[m]);
    }
    const size_t at = b->n - begin;
    put(b, list.at, list.n);
    put_low(b, 0x06054b50, 4);
    put_low(b, 0, 4);
    put_low(b, MEMBERS, 2);
    put_low(b, MEMBERS, 2);
    put_low(b, list.n, 4);
    put_low(b, at, 4);
    put_low(b, 0, 2);
}

static void pk_place(octets *b, const char *name, const uint64_t *start, const char *file,
    uint64_t at, uint64_t length, bool changed) {
    pk_object(b, "metadata\nMetadataIndex");
    pk_name(b, "fqn");
    pk_name(b, name);
    pk_name(b, "index");
    put_text(b, "N");
    pk_name(b, "offset");
    if (start)
        pk_size(b, start, 2);
    else
        put_text(b, "N");
    put_text(b, "ub");
    pk_object(b, "filesystem\n_StorageInfo");
    pk_name(b, "relative_path");
    pk_name(b, file);
    pk_name(b, "offset");
    pk_number(b, at);
    pk_name(b, "length");
    pk_number(b, length);
    if (changed) {
        pk_name(b, "transform_descriptors");
        put_text(b, "]");
    }
    put_text(b, "ub");
}

static void metadata_of(const sample *s, const uint64_t *at, const uint64_t *length, octets *b) {
    const uint64_t shape[2] = {ROWS, COLUMNS};
    put_text(b, "\x80\x04");
    pk_object(b, "metadata\nMetadata");
    pk_name(b, "state_dict_metadata");
    put_text(b, "}(");
    pk_name(b, "net.w");
    pk_object(b, "metadata\nTensorStorageMetadata");
    pk_name(b, "properties");
    put_text(b, "ctorch.distributed.checkpoint.metadata\nTensorProperties\n)\x81(ctorch\n");
    put_text(b, s->dtype ? s->dtype : "float32");
    put_text(b, "\nN\x89N\x89tb");
    pk_name(b, "size");
    pk_size(b, shape, 2);
    pk_name(b, "chunks");
    put_text(b, "](");
    for (uint32_t i = s->lacks == 2; i < s->blocks; ++i) {
        uint64_t start[2], size[2];
        block_of(s, i, start, size);
        pk_object(b, "metadata\nChunkStorageMetadata");
        pk_name(b, "offsets");
        pk_size(b, start, 2);
        pk_name(b, "sizes");
        pk_size(b, size, 2);
        put_text(b, "ub");
    }
    put_text(b, "eub");
    pk_name(b, "step");
    put_text(b, "ctorch.distributed.checkpoint.metadata\nBytesStorageMetadata\n)\x81");
    put_text(b, "u");
    pk_name(b, "planner_data");
    put_text(b, "csome.where\nClass\n(K\1tR"); /* of no interest */
    pk_name(b, "storage_data");
    put_text(b, "}(");
    for (uint32_t i = s->lacks == 1; i < s->blocks; ++i) {
        uint64_t start[2], size[2];
        block_of(s, i, start, size);
        pk_place(
            b, "net.w", start, s->file ? s->file : "__0_0.distcp", at[i], length[i], s->lacks == 3);
    }
    pk_place(b, "step", NULL, s->file ? s->file : "__0_0.distcp", 1, 3, false);
    put_text(b, "uub.");
}

#endif
