/*  test_checkpoint_torch.c - folders as torch.distributed.checkpoint writes them, read without it:
    blocks in archives, loaded in any layout; what is damaged, or not known here. That PyTorch's own
    files are read is tests/interop/test_checkpoint_torch.sh */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_checkpoint.h"

#include "said.h"
#include "ranks.h"
#include "torch_files.h"

#include <sys/stat.h>

static char folder[256];

static void file_put(const char *name, const octets *b) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(b->at, 1, b->n, f) != b->n || fclose(f) != 0) abort();
}

static void write_sample(const sample *s) {
    static octets data, about;
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
    static octets about;
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

/* ---- many blocks ---- */

enum {
    MANY = 300000 /* the square of it takes minutes */
};

static uint64_t lot;
static uint64_t draw(uint64_t n) {
    lot = lot * 6364136223846793005u + 1442695040888963407u;
    return (lot >> 33) % n;
}

/* Divides a tensor of `ndim` dimensions into random blocks. */
static void divide(cdp__ck_table *t, cdp__ck_entry *e, uint32_t ndim) {
    cdp__ck_block b;
    memset(e, 0, sizeof *e);
    memset(&b, 0, sizeof b);
    e->dtype = CDP_DTYPE_U8;
    e->ndim = ndim;
    e->first_block = t->block_count;
    for (uint32_t d = 0; d < ndim; ++d)
        e->shape[d] = b.box.size[d] = 1 + draw(9);
    if (!T(cdp__ck_add_block(t, &b))) return;
    e->blocks = 1;
    for (uint32_t cuts = (uint32_t)draw(12); ndim && cuts; --cuts) {
        const uint64_t which = e->first_block + draw(e->blocks), d = draw(ndim);
        b = t->blocks[which];
        const uint64_t size = draw(b.box.size[d] + 1); /* one of both may be empty */
        t->blocks[which].box.size[d] = size;
        b.box.start[d] += size;
        b.box.size[d] -= size;
        if (!T(cdp__ck_add_block(t, &b))) return;
        ++e->blocks;
    }
}

static uint64_t elements(const cdp_box *b, uint32_t ndim) {
    uint64_t n = 1;
    for (uint32_t d = 0; d < ndim; ++d)
        n *= b->size[d];
    return n;
}

/* Blocks with as many elements as their tensor are all of it, or are refused. */
TEST(blocks_that_overlap_are_told_from_a_division) {
    uint32_t moved = 0;
    for (uint32_t i = 0; i < 2000; ++i) {
        cdp__ck_table t;
        cdp__ck_entry e;
        cdp__ck_table_open(&t, cdp_os_default());
        divide(&t, &e, i % 5);
        T(cdp__ck_torch_apart(&t, &e));
        for (uint64_t k = 0; k < e.blocks && e.ndim; ++k) { /* moves one block by one place */
            cdp_box *const box = &t.blocks[e.first_block + k].box;
            const uint64_t d = draw(e.ndim);
            if (!elements(box, e.ndim) || !box->start[d]) continue;
            --box->start[d];
            T(!cdp__ck_torch_apart(&t, &e));
            T_TEXT("overlap", t.why);
            ++moved;
            break;
        }
        cdp__ck_table_close(&t);
    }
    T(moved > 500);
}

/* Nor does it take the square of the time, however blocks lie. */
TEST(many_blocks_are_compared_in_time) {
    cdp__ck_table t;
    cdp__ck_entry e;
    cdp__ck_block b;
    cdp__ck_table_open(&t, cdp_os_default());
    memset(&e, 0, sizeof e);
    memset(&b, 0, sizeof b);
    e.dtype = CDP_DTYPE_U8;
    e.ndim = 2;
    e.shape[0] = b.box.size[0] = b.box.size[1] = 1;
    e.shape[1] = e.blocks = MANY;
    b.file = UINT32_MAX;
    for (uint32_t i = 0; i < MANY; ++i) {
        b.box.start[1] = i;
        if (!T(cdp__ck_add_block(&t, &b))) break;
    }
    T(cdp__ck_torch_apart(&t, &e));
    /* places in an order that nobody writes, and without the numbers of their blocks */
    uint32_t found = 0;
    for (uint32_t i = MANY; i-- > 0 && !t.why;) {
        const uint64_t start[2] = {0, i};
        cdp__ck_block *const at = cdp__ck_torch_find(&t, &e, start, 0);
        if (at) at->file = 0;
        found += at != NULL;
    }
    T(found && found < MANY);
    T_EQ(CDP_ERR_UNSUPPORTED, t.status);
    T_TEXT("another order", t.why);
    cdp__ck_table_close(&t);
}

/* Any cut or changed byte of .metadata and of the archives: an error or a value, never a crash. */
TEST(damaged_bytes_end_in_an_error) {
    static octets whole[2], other;
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
        {"blocks_that_overlap_are_told_from_a_division",
            blocks_that_overlap_are_told_from_a_division, 20},
        {"many_blocks_are_compared_in_time", many_blocks_are_compared_in_time, 60},
        {"damaged_bytes_end_in_an_error", damaged_bytes_end_in_an_error, 120},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
