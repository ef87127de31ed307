/* Files of PyTorch that somebody else wrote: the .metadata of torch.distributed.checkpoint, and the
   archive of a tensor, a zip file with a pickle.

   Inputs made from a seed: good files, of less and of more than 4 GiB by their own word, damaged.
   The first byte says which of the two it is. How to run it: fuzz.h.

   Whatever comes, nothing may be read or written beyond its place, and memory is bounded by the
   size of the file; what is accepted lies in its tensor and its file. */
#define FUZZ_BEFORE_TCP "cdp_checkpoint.h"
#include "fuzz.h"
#include "../unit/torch_files.h"

static struct {
    const uint8_t *at;
    uint64_t bytes;
} file; /* the only one there is */

static int64_t file_read(void *user, int32_t fd, uint64_t at, void *to, uint64_t bytes) {
    const uint64_t left = at < file.bytes ? file.bytes - at : 0, n = bytes < left ? bytes : left;
    (void)user;
    T(fd == 3);
    if (n) memcpy(to, file.at + at, (size_t)n);
    return (int64_t)n;
}

/* Blocks of memory know their length. */
static uint64_t taken, most;
static void *counted_alloc(void *user, uint64_t bytes) {
    uint8_t *p;
    (void)user;
    T(bytes < 1u << 28);
    p = (uint8_t *)fenced_alloc(bytes + 64);
    if (!p) return NULL;
    memcpy(p, &bytes, sizeof bytes);
    taken += bytes;
    if (taken > most) most = taken;
    return p + 64;
}
static void counted_free(void *user, void *p) {
    uint64_t bytes;
    (void)user;
    if (!p) return;
    memcpy(&bytes, (uint8_t *)p - 64, sizeof bytes);
    taken -= bytes;
    fenced_free((uint8_t *)p - 64);
}

static void look_at(const cdp__ck_table *t) {
    for (uint64_t i = 0; i < t->count; ++i) {
        const cdp__ck_entry *const e = &t->entries[i];
        uint64_t bytes, sum = 0;
        T(e->file < t->file_count && e->ndim <= CDP_TENSOR_DIMS);
        T(cdp__ck_name_fits(cdp__ck_name(t, e)));
        T(cdp__ck_look(t, cdp__ck_name(t, e)) == e);
        T(e->first_block + e->blocks <= t->block_count);
        if (e->blob) {
            T(e->bytes <= INT64_MAX - e->at);
            continue;
        }
        T(cdp__ck_entry_bytes(e->dtype, e->ndim, e->shape, &bytes) && bytes == e->bytes);
        for (uint64_t k = 0; k < e->blocks; ++k) {
            const cdp__ck_block *const b = &t->blocks[e->first_block + k];
            for (uint32_t d = 0; d < e->ndim; ++d)
                T(b->box.start[d] <= e->shape[d]
                    && b->box.size[d] <= e->shape[d] - b->box.start[d]);
            if (!b->bytes) continue;
            T(b->file < t->file_count && b->archive <= INT64_MAX - b->at);
            sum += b->bytes;
        }
        T(sum == e->bytes);
    }
}

static void try_metadata(cdp__ck_table *t) {
    if (cdp__ck_read_metadata(t, file.at, file.bytes))
        look_at(t);
    else
        T(t->why && t->status);
}

static void try_archive(cdp__ck_table *t) {
    cdp__ck_disk disk;
    cdp__ck_entry e;
    cdp__ck_block b;
    memset(&disk, 0, sizeof disk);
    memset(&e, 0, sizeof e);
    memset(&b, 0, sizeof b);
    disk.os = t->os;
    e.dtype = CDP_DTYPE_F32;
    e.ndim = 2;
    e.shape[0] = b.box.size[0] = ROWS;
    e.shape[1] = b.box.size[1] = COLUMNS;
    e.bytes = b.bytes = ROWS * COLUMNS * 4;
    b.at = file.bytes ? file.at[0] % 16 : 0; /* something else is before it */
    if (b.at > file.bytes) b.at = file.bytes;
    b.archive = file.bytes - b.at;
    const uint64_t begin = b.at;
    const int32_t err = cdp__ck_torch_open(&disk, t, &e, &b, 3);
    T(err >= 0);
    if (!err) T(!b.archive && b.at >= begin && b.at <= file.bytes && b.bytes <= file.bytes - b.at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cdp_os os = *cdp_os_default();
    cdp__ck_table t;
    uint8_t *copy;
    if (!size) return 0;
    copy = (uint8_t *)fenced_alloc(size - 1);
    if (!copy) return 0;
    if (size > 1) memcpy(copy, data + 1, size - 1);
    file.at = copy;
    file.bytes = size - 1;
    os.alloc = counted_alloc;
    os.release = counted_free;
    os.files.read_at = file_read;
    taken = most = 0;
    cdp__ck_table_open(&t, &os);
    if (data[0] & 1)
        try_metadata(&t);
    else
        try_archive(&t);
    cdp__ck_table_close(&t);
    T(!taken);
    T(most < (1u << 20) + 1024 * (uint64_t)size);
    fenced_free(copy);
    return 0;
}

#ifndef FUZZ_LIB
static const char *const words[] = {"\x80\x04", "(", ")", "t", "}", "]", "u", "s", "a", "e", "b",
    "R", "\x81", "Q", "N", "0", "2", ".", "q\1", "h\1", "\x94", "\x85", "\x93", "J\xff\xff\xff\xff",
    "\xff\xff\xff\xff", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", "X\2", "PK\1\2", "PK\3\4",
    "PK\5\6", "PK\6\6", "PK\6\7", "ctorch\nSize\n", "ctorch\nint8\n", "X\4", "archive/data/0"};

static void damage(octets *b) {
    for (uint32_t changes = pick(4); changes && b->n; --changes) {
        const size_t at = pick((uint32_t)b->n);
        const char *const word = words[pick(sizeof words / sizeof *words)];
        const size_t n = strlen(word);
        switch (pick(6)) {
        case 0: b->at[at] ^= (uint8_t)(1u << pick(8)); break;
        case 1: b->at[at] = (uint8_t)pick(256); break;
        case 2: b->n = at; break;
        case 3: /* a number of the list, or a length */
            for (size_t i = at; i < at + 1 + pick(8) && i < b->n; ++i)
                b->at[i] = pick(2) ? 0xff : 0;
            break;
        case 4: /* over what is there */
            if (at + n <= b->n) memcpy(b->at + at, word, n);
            break;
        default: /* between */
            if (b->n + n > sizeof b->at) break;
            memmove(b->at + at + n, b->at + at, b->n - at);
            memcpy(b->at + at, word, n);
            b->n += n;
        }
    }
}

/* Ends an archive as one of more than 4 GiB does. */
static void enlarge(octets *b) {
    const uint64_t size = cdp__get_u32(b->at + b->n - 10), from = cdp__get_u32(b->at + b->n - 6);
    b->n -= 22;
    const size_t record = b->n;
    put_low(b, 0x06064b50, 4);
    put_low(b, 44, 8);
    put_low(b, 0, 28);
    put_low(b, size, 8);
    put_low(b, from, 8);
    put_low(b, 0x07064b50, 4);
    put_low(b, 0, 4);
    put_low(b, record, 8);
    put_low(b, 1, 4);
    put_low(b, 0x06054b50, 4);
    put_low(b, 0, 4);
    for (uint32_t i = 0; i < 6; ++i)
        put_low(b, 0xffff, 2);
    put_low(b, 0, 2);
}

static size_t make_input(uint64_t seed, uint8_t *out) {
    static const char *const dtypes[] = {NULL, "float64", "int8", "complex64", "float31"};
    static const char *const rebuilds[] = {NULL, "_rebuild_tensor_v3", "_rebuild_other"};
    static octets b;
    const uint64_t places[3] = {0, 700, 1400}, lengths[3] = {700, 700, 700};
    const uint64_t start[2] = {0, 0}, size[2] = {ROWS, COLUMNS};
    sample s;
    memset(&s, 0, sizeof s);
    s.blocks = 1 + pick(3);
    s.columns = pick(2) != 0;
    if (!pick(4)) s.dtype = dtypes[pick(5)];
    if (!pick(8)) s.lacks = pick(4);
    if (!pick(8)) s.packed = pick(MEMBERS + 1);
    if (!pick(8)) s.rebuild = rebuilds[pick(3)];
    if (!pick(8)) s.first = pick(40);
    b.n = 0;
    out[0] = seed & 1;
    if (seed & 1)
        metadata_of(&s, places, lengths, &b);
    else {
        archive_of(&s, start, size, &b);
        if (!pick(3)) enlarge(&b);
    }
    damage(&b);
    memcpy(out + 1, b.at, b.n);
    return b.n + 1;
}
#endif
