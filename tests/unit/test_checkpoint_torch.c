/*  test_checkpoint_torch.c - folders as torch.distributed.checkpoint writes them, read without it:
    blocks in archives, loaded in any layout; what is damaged, or not known here. That PyTorch's own
    files are read is tests/interop/test_checkpoint_torch.sh */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_checkpoint.h"

#include "said.h"
#include "ranks.h"

#include <sys/stat.h>

/* ---- a writer of pickles and archives ---- */

typedef struct bytes {
    uint8_t at[1 << 16];
    size_t n;
} bytes;

static void put(bytes *b, const void *from, size_t n) {
    if (b->n + n > sizeof b->at) abort();
    memcpy(b->at + b->n, from, n);
    b->n += n;
}
static void put_text(bytes *b, const char *text) {
    put(b, text, strlen(text));
}
static void put_low(bytes *b, uint64_t v, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const uint8_t byte = i < 8 ? (uint8_t)(v >> 8 * i) : 0;
        put(b, &byte, 1);
    }
}
static void pk_name(bytes *b, const char *text) {
    put_text(b, "X");
    put_low(b, strlen(text), 4);
    put_text(b, text);
}
static void pk_number(bytes *b, uint64_t v) {
    put_text(b, "J");
    put_low(b, v, 4);
}
static void pk_tuple(bytes *b, const uint64_t *v, uint32_t n) {
    put_text(b, "(");
    for (uint32_t i = 0; i < n; ++i)
        pk_number(b, v[i]);
    put_text(b, "t");
}
static void pk_size(bytes *b, const uint64_t *v, uint32_t n) {
    put_text(b, "ctorch\nSize\n(");
    pk_tuple(b, v, n);
    put_text(b, "tR");
}
/* An object of a class of the metadata; its state, which ends with "ub", follows. */
static void pk_object(bytes *b, const char *class_name) {
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

static char folder[256];

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

static void pickle_of(const sample *s, const uint64_t size[2], bytes *b) {
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

static void archive_of(const sample *s, const uint64_t start[2], const uint64_t size[2], bytes *b) {
    static const char *const names[MEMBERS] = {
        "archive/data.pkl", "archive/byteorder", "archive/data/0"};
    static bytes member[MEMBERS], list;
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

static void pk_place(bytes *b, const char *name, const uint64_t *start, const char *file,
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

static void metadata_of(const sample *s, const uint64_t *at, const uint64_t *length, bytes *b) {
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

static void file_put(const char *name, const bytes *b) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(b->at, 1, b->n, f) != b->n || fclose(f) != 0) abort();
}

static void write_sample(const sample *s) {
    static bytes data, about;
    uint64_t at[8], length[8];
    data.n = about.n = 0;
    put_text(&data, "-abc-"); /* "step" is in it */
    for (uint32_t i = 0; i < s->blocks; ++i) {
        uint64_t start[2], size[2];
        block_of(s, i, start, size);
        at[i] = data.n;
        archive_of(s, start, size, &data);
        length[i] = data.n - at[i] - (uint64_t)s->cut;
    }
    file_put("__0_0.distcp", &data);
    metadata_of(s, at, length, &about);
    file_put(".metadata", &about);
}

/* ---- loading ---- */

typedef struct load {
    const char *how, *says;
    cdp_status want;
    bool flat, cast;
} load;

static void load_ranks(cdp_group *g, void *arg) {
    const load *const l = (const load *)arg;
    cdp_mesh_desc md = {.group = g};
    cdp_mesh *mesh;
    cdp_box box;
    cdp_ckpt *c;
    char note[8];
    double mine[ROWS * COLUMNS];
    float narrow[ROWS * COLUMNS];
    uint64_t n, found = 9;
    OK(cdp_mesh_create(&md, &mesh));
    cdp_item item = {.name = "net.w"};
    item.tensor.layout = (cdp_layout){.mesh = mesh, .ndim = 2, .shape = {ROWS, COLUMNS}};
    OK(cdp_layout_parse(&item.tensor.layout, l->how));
    n = cdp_layout_box(&item.tensor.layout, NULL, &box);
    item.tensor.data = narrow;
    if (l->flat) { /* a part of it, at any element */
        item.part = true;
        item.tensor.layout.mesh = NULL;
        item.first = ROWS * COLUMNS * cdp_rank(g) / cdp_size(g);
        item.count = ROWS * COLUMNS * (cdp_rank(g) + 1) / cdp_size(g) - item.first;
        n = item.count;
    }
    if (l->cast) {
        item.tensor.layout.dtype = CDP_DTYPE_F64;
        item.tensor.data = mine;
    }
    cdp_ckpt_blob blob = {.name = "step", .data = note, .room = sizeof note};
    cdp_ckpt_desc d = {.group = g,
        .path = folder,
        .items = &item,
        .item_count = 1,
        .blobs = &blob,
        .blob_count = 1,
        .cast = l->cast};
    OK(cdp_ckpt_create(&d, &c));
    T_EQ(l->want, cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, &found));
    if (l->want) T_TEXT(l->says, cdp_last_error()->text);
    if (!l->want) {
        T_EQ(0, found);
        T_EQ(3, blob.bytes);
        T(memcmp(note, "abc", 3) == 0);
    }
    for (uint64_t i = 0; !l->want && i < n; ++i) {
        const uint64_t at = l->flat
            ? item.first + i
            : (box.start[0] + i / box.size[1]) * COLUMNS + box.start[1] + i % box.size[1];
        const double got = l->cast ? mine[i] : (double)narrow[i];
        if (!T(got == (double)value(at / COLUMNS, at % COLUMNS))) break;
    }
    OK(cdp_group_status(g));
    cdp_ckpt_destroy(c);
    cdp_mesh_destroy(mesh);
}

static void folder_new(void) {
    snprintf(folder, sizeof folder, "/tmp/cdp_torch.XXXXXX");
    if (!mkdtemp(folder)) abort();
}
static void folder_gone(void) {
    char line[320];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    if (system(line) != 0) abort();
}

TEST(blocks_are_loaded_in_any_layout) {
    static const char *const hows[] = {"S0", "S1", "R"};
    folder_new();
    for (uint32_t blocks = 1; blocks <= 4; ++blocks)
        for (uint32_t columns = 0; columns < 2; ++columns) {
            const sample s = {.blocks = blocks, .columns = columns != 0};
            write_sample(&s);
            for (uint32_t n = 1; n <= 3; ++n)
                for (uint32_t k = 0; k < 4; ++k) {
                    load l = {.how = hows[k % 3], .flat = k == 3, .cast = (blocks + n) % 2 == 0};
                    run_ranks(n, NULL, 0, load_ranks, &l);
                }
        }
    folder_gone();
}

TEST(what_is_damaged_or_not_known_is_named) {
    static const struct {
        sample s;
        cdp_status want;
        const char *says;
    } rows[] = {
        {{.blocks = 2, .lacks = 1}, CDP_ERR_IO, "a block of a tensor is in no file"},
        {{.blocks = 2, .lacks = 2}, CDP_ERR_IO, "the blocks of a tensor are not all of it"},
        {{.blocks = 2, .lacks = 4}, CDP_ERR_IO, "blocks of a tensor overlap"},
        {{.blocks = 3, .lacks = 4}, CDP_ERR_IO, "blocks of a tensor overlap"},
        {{.blocks = 2, .lacks = 4, .columns = true}, CDP_ERR_IO, "blocks of a tensor overlap"},
        {{.blocks = 1, .lacks = 3}, CDP_ERR_UNSUPPORTED, "transform_descriptors"},
        {{.blocks = 1, .dtype = "complex32"}, CDP_ERR_UNSUPPORTED, "a dtype that is not known"},
        {{.blocks = 1, .dtype = "float64"}, CDP_ERR_MISMATCH, "f64[7,5] in the files"},
        {{.blocks = 1, .storage = "IntStorage"}, CDP_ERR_IO, "another dtype"},
        {{.blocks = 1, .rebuild = "_rebuild_parameter"}, CDP_ERR_UNSUPPORTED,
            "something else than a tensor"},
        {{.blocks = 1, .step = 6}, CDP_ERR_UNSUPPORTED, "not contiguous"},
        {{.blocks = 1, .first = 1}, CDP_ERR_IO, "not in its storage"},
        {{.blocks = 1, .order = "big"}, CDP_ERR_IO, "big-endian"},
        {{.blocks = 1, .packed = 1}, CDP_ERR_IO, "compressed"},
        {{.blocks = 1, .packed = 3}, CDP_ERR_IO, "compressed"},
        {{.blocks = 1, .cut = 1}, CDP_ERR_IO, "does not end with its list"},
        {{.blocks = 1, .file = "../x"}, CDP_ERR_IO, "a name with a path"},
        {{.blocks = 1, .file = "none"}, CDP_ERR_IO, "none"},
    };
    folder_new();
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        load l = {.how = "S1", .want = rows[i].want, .says = rows[i].says};
        write_sample(&rows[i].s);
        run_ranks(2, NULL, 0, load_ranks, &l);
        if (test__now.failed_checks) printf("  row %u\n", i);
    }
    folder_gone();
}

/* One list of blocks in many tensors: memory that grows with the square of the file. */
TEST(a_list_of_blocks_is_not_repeated_at_will) {
    static const uint64_t none[2] = {0, 0}, shape[2] = {0, COLUMNS};
    static bytes about;
    cdp_ckpt_reader *r;
    about.n = 0;
    folder_new();
    put_text(&about, "\x80\x04");
    pk_object(&about, "metadata\nMetadata");
    pk_name(&about, "state_dict_metadata");
    put_text(&about, "}(");
    for (uint32_t i = 0; i < 150; ++i) {
        char name[16];
        snprintf(name, sizeof name, "t%u", i);
        pk_name(&about, name);
        pk_object(&about, "metadata\nTensorStorageMetadata");
        pk_name(&about, "properties");
        put_text(&about,
            "ctorch.distributed.checkpoint.metadata\nTensorProperties\n)\x81(ctorch\n"
            "float32\nN\x89N\x89tb");
        pk_name(&about, "size");
        pk_size(&about, shape, 2);
        pk_name(&about, "chunks");
        if (i == 0) { /* 1: the list, whose items are 0 */
            put_text(&about, "](");
            pk_object(&about, "metadata\nChunkStorageMetadata");
            pk_name(&about, "offsets");
            pk_size(&about, none, 2);
            pk_name(&about, "sizes");
            pk_size(&about, shape, 2);
            put(&about, "ubq\0", 4);
            for (uint32_t k = 0; k < 999; ++k)
                put(&about, "h\0", 2);
            put(&about, "eq\1", 3);
        } else
            put(&about, "h\1", 2);
        put_text(&about, "ub");
    }
    put_text(&about, "u");
    pk_name(&about, "storage_data");
    put_text(&about, "}ub.");
    file_put(".metadata", &about);
    REFUSED(CDP_ERR_IO, "a list of blocks is repeated too often", cdp_ckpt_open(folder, NULL, &r));
    folder_gone();
}

/* A file that has only the first archive: what lies there is read. */
TEST(only_archives_of_what_is_read_are_opened) {
    const sample s = {.blocks = 3};
    const cdp_box first = {.size = {1, COLUMNS}}, last = {.start = {6, 0}, .size = {1, COLUMNS}};
    float out[COLUMNS];
    cdp_ckpt_reader *r;
    char path[400];
    folder_new();
    write_sample(&s);
    snprintf(path, sizeof path, "%s/__0_0.distcp", folder);
    struct stat info;
    if (stat(path, &info) != 0 || truncate(path, info.st_size / 2) != 0) abort();
    OK(cdp_ckpt_open(folder, NULL, &r));
    const uint32_t at = cdp_ckpt_find(r, "net.w");
    OK(cdp_ckpt_read(r, at, &first, out));
    T(out[4] == value(0, 4));
    REFUSED(CDP_ERR_IO, "cannot read", cdp_ckpt_read(r, at, &last, out));
    cdp_ckpt_close(r);
    folder_gone();
}

TEST(an_error_says_nothing_of_an_earlier_one) {
    const sample s = {.blocks = 1, .packed = 3};
    float out[ROWS * COLUMNS];
    cdp_ckpt_reader *r;
    char path[400];
    folder_new();
    write_sample(&s);
    snprintf(path, sizeof path, "%s/__0_0.distcp", folder);
    OK(cdp_ckpt_open(folder, NULL, &r));
    REFUSED(CDP_ERR_IO, "compressed", cdp_ckpt_read(r, cdp_ckpt_find(r, "net.w"), NULL, out));
    if (truncate(path, 2) != 0) abort();
    REFUSED(CDP_ERR_IO, "cannot read", cdp_ckpt_read(r, cdp_ckpt_find(r, "step"), NULL, out));
    T(!strstr(cdp_last_error()->text, "compressed"));
    cdp_ckpt_close(r);
    folder_gone();
}

/* Any cut or changed byte of .metadata and of the archives: an error or a value, never a crash. */
TEST(damaged_bytes_end_in_an_error) {
    static bytes whole[2], other;
    static const char *const names[2] = {".metadata", "__0_0.distcp"};
    const sample s = {.blocks = 2};
    folder_new();
    write_sample(&s);
    for (uint32_t k = 0; k < 2; ++k) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder, names[k]);
        FILE *f = fopen(path, "rb");
        whole[k].n = f ? fread(whole[k].at, 1, sizeof whole[k].at, f) : 0;
        if (!T(f && fclose(f) == 0)) return;
    }
    for (uint32_t k = 0; k < 2; ++k) {
        uint32_t read = 0;
        for (size_t i = 0; i < whole[k].n; i += TEST_SLOW ? 17 : 1) {
            cdp_ckpt_reader *r;
            float out[ROWS * COLUMNS];
            other = whole[k];
            if (i % 3)
                other.at[i] ^= (uint8_t)(1u << i % 8);
            else
                other.n = i;
            file_put(names[k], &other);
            if (cdp_ckpt_open(folder, NULL, &r) != CDP_OK) continue;
            const uint32_t at = cdp_ckpt_find(r, "net.w");
            if (at != UINT32_MAX && cdp_ckpt_entry_at(r, at).bytes <= sizeof out
                && cdp_ckpt_read(r, at, NULL, out) == CDP_OK)
                ++read;
            cdp_ckpt_close(r);
        }
        T(read > 0);
        file_put(names[k], &whole[k]);
    }
    folder_gone();
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"blocks_are_loaded_in_any_layout", blocks_are_loaded_in_any_layout, 120},
        {"what_is_damaged_or_not_known_is_named", what_is_damaged_or_not_known_is_named, 60},
        {"a_list_of_blocks_is_not_repeated_at_will", a_list_of_blocks_is_not_repeated_at_will, 20},
        {"only_archives_of_what_is_read_are_opened", only_archives_of_what_is_read_are_opened, 20},
        {"an_error_says_nothing_of_an_earlier_one", an_error_says_nothing_of_an_earlier_one, 20},
        {"damaged_bytes_end_in_an_error", damaged_bytes_end_in_an_error, 120},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
