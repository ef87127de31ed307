/*  test_checkpoint.c - what each rank writes and reads, sums, headers, files: without ranks where
    it is arithmetic, with ranks as threads and real files where it is not */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_checkpoint.h"
#include "cdp_fsdp.h"

#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "said.h"
#include "ranks.h"

/* ---- shares and runs, in memory ---- */

/* All shapes of meshes of n ranks in up to three dimensions. */
static uint32_t shapes_of(uint32_t n, uint32_t out[][3]) {
    uint32_t count = 0;
    for (uint32_t a = 1; a <= n; ++a)
        for (uint32_t b = 1; n % a == 0 && b <= n / a; ++b)
            if (n / a % b == 0) {
                out[count][0] = a;
                out[count][1] = b;
                out[count++][2] = n / a / b;
            }
    return count;
}

static cdp_mesh *paper(const uint32_t shape[3]) {
    cdp_mesh *m = NULL;
    cdp_mesh_desc d = {.ndim = 3,
        .shape = {shape[0], shape[1], shape[2]},
        .paper_ranks = shape[0] * shape[1] * shape[2]};
    OK(cdp_mesh_create(&d, &m));
    return m;
}

static const char *const places[] = {"R,R,R", "S0,R,R", "R,S0,S1", "S0,S1,R", "S1,R,S0", "S0,S0,S0",
    "S0!1,S0,S1", "S1/2,S0,R", "R,S2,S0", "S2,S1,S0", "R,R,S1/3"};
enum {
    PLACES = sizeof places / sizeof *places,
    ELEMENTS = 5 * 4 * 3
};

typedef struct image { /* what is written of one tensor */
    uint16_t at[ELEMENTS];
    uint8_t times[ELEMENTS];
    uint64_t sum;
} image;

static const uint16_t *values(void) {
    static uint16_t all[ELEMENTS];
    for (uint32_t i = 0; i < ELEMENTS; ++i)
        all[i] = (uint16_t)(i * 2654435761u >> 7);
    return all;
}

static cdp_layout cut(const cdp_mesh *m, const char *how) {
    cdp_layout l = {.mesh = m, .dtype = CDP_DTYPE_U16, .ndim = 3, .shape = {5, 4, 3}};
    OK(cdp_layout_parse(&l, how));
    return l;
}

/* A rank's memory: what of the tensor is in its box. */
static void hold(const cdp__ck_piece *p, uint16_t *memory) {
    uint64_t k = 0;
    for (uint64_t a = 0; a < p->box.size[0]; ++a)
        for (uint64_t b = 0; b < p->box.size[1]; ++b)
            for (uint64_t c = 0; c < p->box.size[2]; ++c)
                memory[k++] = values()[((p->box.start[0] + a) * 4 + p->box.start[1] + b) * 3
                    + p->box.start[2] + c];
}

static void coord_of(const cdp_mesh *m, uint32_t k, uint32_t *coord) {
    for (uint32_t d = 0; d < m->desc.ndim; ++d)
        coord[d] = k / m->stride[d] % m->desc.shape[d];
}

static void save_image(const cdp__ck_weights *w, const cdp_layout *l, image *out) {
    uint64_t least = UINT64_MAX, most = 0;
    memset(out, 0, sizeof *out);
    for (uint32_t k = 0; k < l->mesh->count; ++k) {
        uint16_t memory[ELEMENTS];
        uint32_t coord[CDP_MESH_DIMS];
        coord_of(l->mesh, k, coord);
        const cdp__ck_piece p = cdp__ck_piece_of(l, coord, 0, 1);
        hold(&p, memory);
        least = p.last - p.first < least ? p.last - p.first : least;
        most = p.last - p.first > most ? p.last - p.first : most;
        for (uint64_t local = p.first; local < p.last;) {
            const cdp__ck_run r = cdp__ck_run_at(&p, local, p.last);
            for (uint64_t i = 0; i < r.count; ++i) {
                out->at[r.at + i] = memory[r.place + i];
                ++out->times[r.at + i];
            }
            cdp__ck_sum_slabs(w, memory + r.place, 2, r.at, r.count, ELEMENTS, &out->sum);
            local += r.count;
        }
    }
    /* copies are written evenly */
    if (l->place[0].kind + l->place[1].kind + l->place[2].kind == 0) T(most - least <= 1);
}

static void load_image(const cdp_layout *l, const image *from) {
    for (uint32_t k = 0; k < l->mesh->count; ++k) {
        uint16_t memory[ELEMENTS], want[ELEMENTS];
        uint32_t coord[CDP_MESH_DIMS];
        coord_of(l->mesh, k, coord);
        const cdp__ck_piece p = cdp__ck_piece_of(l, coord, 0, 1);
        for (uint64_t local = 0; local < p.count;) {
            const cdp__ck_run r = cdp__ck_run_at(&p, local, p.count);
            memcpy(memory + r.place, from->at + r.at, r.count * 2);
            local += r.count;
        }
        hold(&p, want);
        if (!T(memcmp(memory, want, p.count * 2) == 0)) return;
    }
}

/* Saved from every mesh and layout of 1 to 16 ranks: each element once, and the same bytes and sum,
   whatever the layout. So loading from one image is loading from all of them. */
TEST(every_layout_writes_the_same_file_which_every_layout_loads) {
    static cdp__ck_weights w;
    uint64_t saved = 0;
    image first, other;
    cdp__ck_weights_fill(&w);
    for (uint32_t n = 1; n <= 16; ++n) {
        uint32_t shape[64][3];
        const uint32_t count = shapes_of(n, shape);
        for (uint32_t s = 0; s < count; ++s) {
            cdp_mesh *m = paper(shape[s]);
            for (uint32_t k = 0; k < PLACES; ++k) {
                const cdp_layout l = cut(m, places[k]);
                save_image(&w, &l, saved ? &other : &first);
                if (!saved) other = first;
                ++saved;
                for (uint32_t e = 0; e < ELEMENTS; ++e)
                    T_EQ(1, other.times[e]);
                T(memcmp(first.at, other.at, sizeof first.at) == 0);
                T(first.sum == other.sum);
                T(memcmp(first.at, values(), sizeof first.at) == 0);
                load_image(&l, &first);
                if (test__now.failed_checks) printf("  %s on %u ranks\n", places[k], n);
            }
            cdp_mesh_destroy(m);
            if (test__now.failed_checks) return;
        }
    }
    T_EQ(1210, saved);
}

/* Flat views with cuts at any element, in memory: shares of 1 to 9 ranks. */
TEST(flat_cuts_and_copies_without_a_mesh) {
    for (uint32_t n = 1; n < 10; ++n) {
        uint64_t sizes[9], covered = 0, start;
        uint32_t number, shape[3] = {n, 1, 1};
        cdp_mesh *m = paper(shape);
        for (uint32_t i = 0; i < n; ++i)
            sizes[i] = i * 7 % 5;
        uint64_t total = 0;
        for (uint32_t i = 0; i < n; ++i)
            total += sizes[i];
        OK(cdp_mesh_cut(m, 0, sizes, &number));
        cdp_layout l = {.mesh = m, .ndim = 1, .shape = {total}};
        l.place[0].kind = CDP_PLACE_SHARD;
        l.place[0].cut = number;
        OK(cdp_layout_check(&l));
        for (uint32_t k = 0; k < n; ++k) {
            const uint32_t coord[CDP_MESH_DIMS] = {k};
            const cdp__ck_piece p = cdp__ck_piece_of(&l, coord, 0, 1);
            T_EQ(sizes[k], p.last - p.first);
            if (p.count) T_EQ(covered, cdp__ck_run_at(&p, 0, p.count).at);
            covered += p.count;
        }
        T_EQ(total, covered);
        start = 0;
        l = (cdp_layout){.ndim = 2, .shape = {3, 7}};
        for (uint32_t k = 0; k < n; ++k) {
            const cdp__ck_piece p = cdp__ck_piece_of(&l, NULL, k, n);
            T_EQ(start, p.first);
            start = p.last;
            T(p.last - p.first <= 21 / n + 1 && p.last - p.first >= 21 / n);
        }
        T_EQ(21, start);
        cdp_mesh_destroy(m);
    }
}

/* ---- sums ---- */

TEST(sums_add_up_and_see_every_bit) {
    static cdp__ck_weights w;
    static uint8_t data[8 * 2500];
    cdp__ck_weights_fill(&w);
    for (uint32_t i = 0; i < sizeof data; ++i)
        data[i] = (uint8_t)(i * 2654435761u >> 11);
    for (uint64_t elem = 1; elem <= 8; elem *= 2) {
        const uint64_t n = 2500, whole = cdp__ck_sum(&w, data, elem, 0, n);
        for (uint64_t at = 0; at <= n; at += 7) {
            const uint64_t parts = cdp__ck_sum(&w, data, elem, 0, at)
                + cdp__ck_sum(&w, data + at * elem, elem, at, n - at);
            T(parts == whole);
        }
        /* a sanitizer sees no more in each; every place in an element has its turn all the same */
        for (uint64_t bit = 0; bit < n * elem * 8; bit += TEST_SLOW ? 11 : 1) {
            data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (!T(cdp__ck_sum(&w, data, elem, 0, n) != whole)) return;
            data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        /* two elements that change places, and all of them shifted by one */
        for (uint64_t at = 0; at + elem * 2 <= n * elem; at += elem) {
            uint8_t held[8];
            memcpy(held, data + at, elem);
            if (memcmp(held, data + at + elem, elem) == 0) continue;
            memcpy(data + at, data + at + elem, elem);
            memcpy(data + at + elem, held, elem);
            if (!T(cdp__ck_sum(&w, data, elem, 0, n) != whole)) return;
            memcpy(held, data + at, elem);
            memcpy(data + at, data + at + elem, elem);
            memcpy(data + at + elem, held, elem);
        }
        T(cdp__ck_sum(&w, data, elem, 1, n) != whole);
    }
}

/* ---- headers ---- */

static bool parses(const char *json, uint64_t data_bytes, cdp__ck_table *t) {
    cdp__ck_table_open(t, cdp_os_default());
    cdp__ck_file *const f = cdp__ck_file_new(t);
    uint64_t twice;
    f->data_at = 8 + strlen(json);
    return cdp__ck_read_header(t, json, strlen(json), data_bytes) && cdp__ck_index(t, &twice);
}

TEST(headers_of_others_and_hostile_ones) {
    static const struct {
        const char *json, *why;
        uint64_t bytes;
    } rows[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}  ", NULL, 24},
        {"{\"__metadata__\":{\"x\":\"y\"},\"\\u00e4\\\"\":{\"shape\":[],\"dtype\":\"BF16\","
         "\"data_offsets\":[0,2],\"other\":[{}]}}",
            NULL, 2},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", NULL, 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,12]}}", "offsets", 12},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", "not in the file", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "offsets", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "no tensor", 9},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
            "overlap", 3},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
            "twice", 2},
        {"{\"a\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]}}", "dtype", 8},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[9223372036854775807,9223372036854775807],"
         "\"data_offsets\":[0,8]}}",
            "too large", 8},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
            "too long", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", "negative", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", "lacks", 1},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "name", 1},
        {"[]", "no JSON dict", 0},
        {"{\"a\":1}", "no dict", 0},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", "", 1},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        cdp__ck_table t;
        const bool ok = parses(rows[i].json, rows[i].bytes, &t);
        if (!T(ok == !rows[i].why)) printf("  row %u: %s\n", i, t.why ? t.why : "accepted");
        if (rows[i].why && !ok) T_TEXT(rows[i].why, t.why ? t.why : "");
        if (i == 1 && ok) T(strcmp(t.text + t.entries[0].name, "\xc3\xa4\"") == 0);
        cdp__ck_table_close(&t);
    }
}

/* The sums of entries are counted in slabs, so these come first; bytes of a blob are U8. */
TEST(descriptions_that_would_make_sums_of_other_lengths) {
    static const struct {
        const char *slab, *dtype, *behind, *why;
    } rows[] = {
        {",\"slab_bytes\":8", "U8", "", NULL},
        {"", "U8", ",\"slab_bytes\":8", "slab_bytes is behind tensors"},
        {",\"slab_bytes\":8", "F64", "", "a blob is not U8"},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char json[512];
        cdp__ck_table t;
        const int n = snprintf(json, sizeof json,
            "{\"format\":\"" CDP__CK_FORMAT "\",\"step\":1%s,\"files\":[{\"name\":\"x\","
            "\"bytes\":64}],\"blobs\":[{\"name\":\"b\",\"dtype\":\"%s\",\"shape\":[8],"
            "\"file\":0,\"offset\":0,\"sums\":\"%0*d\"}]%s}",
            rows[i].slab, rows[i].dtype, strcmp(rows[i].dtype, "F64") ? 16 : 128, 0,
            rows[i].behind);
        cdp__json_reader j = cdp__json_open(json, (uint64_t)n);
        cdp__ck_table_open(&t, cdp_os_default());
        const bool ok = cdp__ck_read_body(&t, &j);
        if (!T(ok == !rows[i].why)) printf("  row %u: %s\n", i, t.why ? t.why : "accepted");
        if (rows[i].why && !ok) T_TEXT(rows[i].why, t.why ? t.why : "");
        cdp__ck_table_close(&t);
    }
}

/* ---- files ---- */

static char folder[256];

static void folder_new(void) {
    snprintf(folder, sizeof folder, "/tmp/cdp_ckpt.XXXXXX");
    if (!mkdtemp(folder)) abort();
}

static void folder_gone(void) {
    char line[320];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    if (system(line) != 0) abort();
}

/* A model: tensors that are cut by what `how` says, for g. */
typedef struct model {
    cdp_mesh *mesh;
    cdp_item items[4];
    cdp_ckpt_blob blobs[2];
    float whole[7], *cut_data, *flat_data;
    uint16_t half[9 * 5];
    uint64_t count;
    char notes[2][64];
} model;

static float cut_value(uint64_t k) {
    return (float)k * 0.5f + 3;
}

static void model_open(model *m, cdp_group *g, const char *how, bool filled) {
    const uint32_t n = cdp_size(g), r = cdp_rank(g);
    cdp_mesh_desc d = {.group = g};
    cdp_box box;
    uint64_t sizes[RANKS_MAX], rest = 60;
    uint32_t number;
    memset(m, 0, sizeof *m);
    OK(cdp_mesh_create(&d, &m->mesh));
    m->items[0] = (cdp_item){.name = "whole \xc3\xa4\"\\"};
    m->items[0].tensor.layout = (cdp_layout){.ndim = 1, .shape = {7}};
    m->items[0].tensor.data = m->whole;
    m->items[1] = (cdp_item){.name = "cut"};
    m->items[1].tensor.layout = (cdp_layout){.mesh = m->mesh, .ndim = 2, .shape = {10, 6}};
    OK(cdp_layout_parse(&m->items[1].tensor.layout, how));
    m->count = cdp_layout_box(&m->items[1].tensor.layout, NULL, &box);
    m->cut_data = (float *)calloc(m->count + 1, 4);
    m->items[1].tensor.data = m->cut_data;
    for (uint32_t i = 0; i < n; ++i) {
        sizes[i] = i + 1 < n ? rest / 3 : rest;
        rest -= sizes[i];
    }
    OK(cdp_mesh_cut(m->mesh, 0, sizes, &number));
    m->items[2] = (cdp_item){.name = "flat", .ndim = 3, .shape = {3, 4, 5}, .file = "optimizer"};
    m->items[2].tensor.layout = (cdp_layout){.mesh = m->mesh, .ndim = 1, .shape = {60}};
    m->items[2].tensor.layout.place[0] = (cdp_place){.kind = CDP_PLACE_SHARD, .cut = number};
    m->flat_data = (float *)calloc(sizes[r] + 1, 4);
    m->items[2].tensor.data = m->flat_data;
    m->items[3] = (cdp_item){.name = "half"};
    m->items[3].tensor.layout =
        (cdp_layout){.mesh = m->mesh, .dtype = CDP_DTYPE_BF16, .ndim = 2, .shape = {9, 5}};
    m->items[3].tensor.data = m->half;
    m->blobs[0] = (cdp_ckpt_blob){.name = "notes", .data = m->notes[0], .room = 64};
    m->blobs[1] = (cdp_ckpt_blob){.name = "own", .data = m->notes[1], .room = 64, .per_rank = true};
    if (!filled) return;
    for (uint32_t i = 0; i < 7; ++i)
        m->whole[i] = (float)i + 0.25f;
    for (uint64_t i = 0; i < m->count; ++i)
        m->cut_data[i] =
            cut_value((box.start[0] + i / box.size[1]) * 6 + box.start[1] + i % box.size[1]);
    uint64_t first = 0;
    for (uint32_t i = 0; i < r; ++i)
        first += sizes[i];
    for (uint64_t i = 0; i < sizes[r]; ++i)
        m->flat_data[i] = (float)(first + i) - 30;
    for (uint32_t i = 0; i < 45; ++i)
        m->half[i] = (uint16_t)(i * 999);
    m->blobs[0].bytes = (uint64_t)snprintf(m->notes[0], 64, "of rank %u", r);
    m->blobs[1].bytes = (uint64_t)snprintf(m->notes[1], 64, "I am %u", r);
}

static void model_close(model *m) {
    free(m->cut_data);
    free(m->flat_data);
    cdp_mesh_destroy(m->mesh);
}

static void models_equal(const model *a, const model *b, uint32_t rank, uint32_t saved_ranks) {
    char own[64];
    uint64_t flat = 0;
    cdp_box box;
    T(memcmp(a->whole, b->whole, sizeof a->whole) == 0);
    T(memcmp(a->cut_data, b->cut_data, a->count * 4) == 0);
    flat = cdp_layout_box(&a->items[2].tensor.layout, NULL, &box);
    T(memcmp(a->flat_data, b->flat_data, flat * 4) == 0);
    T(memcmp(a->half, b->half, sizeof a->half) == 0);
    T_EQ(9, b->blobs[0].bytes);
    T(memcmp(b->notes[0], "of rank 0", 9) == 0);
    snprintf(own, sizeof own, "I am %u", rank);
    T_EQ(rank < saved_ranks ? strlen(own) : 0, b->blobs[1].bytes);
    if (rank < saved_ranks) T(memcmp(b->notes[1], own, strlen(own)) == 0);
}

static cdp_ckpt_desc desc_of(cdp_group *g, model *m) {
    return (cdp_ckpt_desc){.group = g,
        .path = folder,
        .items = m->items,
        .item_count = 4,
        .blobs = m->blobs,
        .blob_count = 2,
        .file_bytes = 300};
}

typedef struct run {
    const char *how;
    uint64_t step;
    uint32_t saved_ranks, keep;
    const cdp_os *os;
    cdp_status want;
    const char *says, *path;
    cdp_ckpt_info info;
} run;

static void save_ranks(cdp_group *g, void *arg) {
    run *const r = (run *)arg;
    model m;
    cdp_ckpt *c;
    model_open(&m, g, r->how, true);
    cdp_ckpt_desc d = desc_of(g, &m);
    d.keep = r->keep;
    d.os = r->os;
    OK(cdp_ckpt_create(&d, &c));
    T_EQ(r->want, cdp_ckpt_save(c, r->step));
    if (r->want) T_TEXT(r->says, cdp_last_error()->text);
    OK(cdp_group_status(g));
    OK(cdp_barrier(g)); /* the group is usable */
    if (cdp_rank(g) == 0) r->info = cdp_ckpt_info_of(c);
    cdp_ckpt_destroy(c);
    model_close(&m);
}

static void load_ranks(cdp_group *g, void *arg) {
    run *const r = (run *)arg;
    model want, m;
    cdp_ckpt *c;
    uint64_t found = 0;
    model_open(&want, g, r->how, true);
    model_open(&m, g, r->how, false);
    cdp_ckpt_desc d = desc_of(g, &m);
    d.os = r->os;
    OK(cdp_ckpt_create(&d, &c));
    T_EQ(r->want, cdp_ckpt_load(c, r->path, r->step, &found));
    if (r->want) T_TEXT(r->says, cdp_last_error()->text);
    if (!r->want) models_equal(&want, &m, cdp_rank(g), r->saved_ranks);
    OK(cdp_group_status(g));
    OK(cdp_barrier(g));
    if (cdp_rank(g) == 0) r->info = cdp_ckpt_info_of(c);
    if (cdp_rank(g) == 0 && !r->want && r->step != CDP_CKPT_LATEST) T_EQ(r->step, found);
    cdp_ckpt_destroy(c);
    model_close(&m);
    model_close(&want);
}

/* Each rank has a whole copy of a tensor on a mesh of its own: sums would count each of them. */
static void alone_ranks(cdp_group *g, void *arg) {
    cdp_mesh_desc two = {.group = g, .ndim = 2, .shape = {3, 1}, .names = {"a", "b"}};
    cdp_mesh *other = NULL, *sub = NULL;
    model m;
    cdp_ckpt *c;
    (void)arg;
    model_open(&m, g, "S0", false);
    OK(cdp_mesh_create(&two, &other));
    OK(cdp_mesh_sub(other, "b", &sub));
    m.items[3].tensor.layout.mesh = sub;
    cdp_ckpt_desc d = desc_of(g, &m);
    OK(cdp_ckpt_create(&d, &c));
    T_EQ(CDP_ERR_INVALID, cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, NULL));
    T_TEXT("'half' has 45 elements, and ranks hold 135", cdp_last_error()->text);
    OK(cdp_group_status(g));
    cdp_ckpt_destroy(c);
    d.no_verify = true; /* then nothing is counted */
    OK(cdp_ckpt_create(&d, &c));
    OK(cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, NULL));
    T(m.half[1] == 999);
    cdp_ckpt_destroy(c);
    cdp_mesh_destroy(sub);
    cdp_mesh_destroy(other);
    model_close(&m);
}

TEST(saved_by_some_ranks_and_loaded_by_others) {
    static const char *const hows[] = {"S0", "S1", "R"};
    folder_new();
    for (uint32_t n = 1; n <= 5; ++n)
        for (uint32_t k = 0; k < 3; ++k) {
            run r = {.how = hows[k], .step = n * 10 + k};
            run_ranks(n, NULL, 0, save_ranks, &r);
            T_EQ(n == 1 ? 7 * 4 + 60 * 4 * 2 + 90 : r.info.total_bytes, r.info.total_bytes);
            T_EQ(3, r.info.files); /* model: at most 300 bytes each */
            for (uint32_t other = 1; other <= 5; other += n == 3 ? 1 : 2) {
                run l = {.how = hows[(k + other) % 3], .step = r.step, .saved_ranks = n};
                run_ranks(other, NULL, 0, load_ranks, &l);
                T_EQ(0, l.info.missing + l.info.surplus);
            }
        }
    run_ranks(3, NULL, 0, alone_ranks, NULL);
    folder_gone();
}

TEST(memory_comes_back) {
    folder_new();
    run r = {.how = "S1", .step = 4, .saved_ranks = 3};
    run_counted(3, save_ranks, &r);
    run_counted(3, load_ranks, &r);
    folder_gone();
}

/* ---- damage ---- */

static void flip_in(const char *file, int64_t at, uint8_t bits) {
    char path[400];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "r+b");
    if (!T(f != NULL)) return;
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    byte = (uint8_t)fgetc(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    fputc(byte ^ bits, f);
    fclose(f);
}

static void flip(const char *file, int64_t at, uint8_t bits) {
    char path[120];
    snprintf(path, sizeof path, "step-00000001/%s", file);
    flip_in(path, at, bits);
}

TEST(damage_is_named) {
    folder_new();
    run r = {.how = "S0", .step = 1, .saved_ranks = 2};
    run_ranks(2, NULL, 0, save_ranks, &r);
    run_ranks(3, NULL, 0, load_ranks, &r);
    for (int64_t at = -240; at < 0; at += 7) { /* "cut" is at the end of the first file, or alone */
        flip("optimizer-00001-of-00001.safetensors", at, 4);
        r.want = CDP_ERR_IO;
        r.says = "'flat' in ";
        run_ranks(3, NULL, 0, load_ranks, &r);
        flip("optimizer-00001-of-00001.safetensors", at, 4);
    }
    flip("blobs.safetensors", -1, 128);
    r.says = "'own.rank00001' in ";
    run_ranks(2, NULL, 0, load_ranks, &r);
    flip("blobs.safetensors", -1, 128);
    for (int64_t at = 5; at < 400; at += 37) { /* a checkpoint.json that was changed is none */
        flip("checkpoint.json", at, 1);
        r.want = CDP_ERR_IO;
        r.says = "was changed";
        run_ranks(2, NULL, 0, load_ranks, &r);
        r.step = CDP_CKPT_LATEST;
        r.want = CDP_ERR_STATE;
        r.says = "neither a complete step";
        run_ranks(2, NULL, 0, load_ranks, &r);
        r.step = 1;
        flip("checkpoint.json", at, 1);
    }
    r.want = CDP_OK;
    run_ranks(3, NULL, 0, load_ranks, &r);
    folder_gone();
}

/* ---- mistakes ---- */

static void mistaken_ranks(cdp_group *g, void *arg) {
    static const char *const kinds[] = {"name", "shape", "dtype", "partial", "twice", "complex",
        "no data", "sub-mesh", "blob twice"};
    const uint32_t kind = *(const uint32_t *)arg, r = cdp_rank(g);
    model m;
    cdp_ckpt *c;
    cdp_mesh *other = NULL, *sub = NULL;
    model_open(&m, g, "S0", true);
    cdp_ckpt_desc d = desc_of(g, &m);
    cdp_status want = CDP_ERR_INVALID;
    const char *says = "";
    char name[600];
    switch (kind) {
    case 0:
        if (r == 1) m.items[1].name = "kut";
        want = CDP_ERR_MISMATCH;
        says = "item 1, 'cut' on rank 0, is another one on rank 1";
        break;
    case 1:
        if (r == 2) m.items[0].tensor.layout.shape[0] = 6;
        want = CDP_ERR_MISMATCH;
        says = "on rank 2";
        break;
    case 2:
        if (r == 0) m.items[3].tensor.layout.dtype = CDP_DTYPE_F16;
        want = CDP_ERR_MISMATCH;
        says = "'half'";
        break;
    case 3:
        OK(cdp_layout_parse(&m.items[1].tensor.layout, "P"));
        says = "'cut' is PARTIAL";
        break;
    case 4:
        m.items[1].name = "flat";
        says = "two items have the name 'flat'";
        break;
    case 5:
        m.items[0].tensor.layout.dtype = CDP_DTYPE_CF32;
        want = CDP_ERR_UNSUPPORTED;
        says = "does not have";
        break;
    case 6:
        if (r == 1) m.items[3].tensor.data = NULL;
        says = "rank 1: cdp_ckpt: item 'half' has no data";
        break;
    case 7: {
        cdp_mesh_desc two = {.group = g, .ndim = 2, .shape = {3, 1}, .names = {"a", "b"}};
        OK(cdp_mesh_create(&two, &other));
        OK(cdp_mesh_sub(other, "b", &sub));
        m.items[3].tensor.layout.mesh = sub;
        says = "'half' has 45 elements, and ranks hold 135";
        break;
    }
    case 8:
        m.blobs[0].name = "flat";
        says = "two items or blobs have the name 'flat'";
        break;
    case 9:
        memset(name, 'x', sizeof name);
        name[512] = 0;
        m.items[0].name = name;
        says = "items[0].name";
        break;
    case 10:
        m.items[0].name = "\xff";
        says = "items[0].name";
        break;
    case 11:
        d.no_verify = r == 1; /* else it would not take part in the checks of a load */
        want = CDP_ERR_MISMATCH;
        says = "no_verify is not the same on ranks 0 and 1";
        break;
    case 12:
        d.no_sync = r != 2;
        want = CDP_ERR_MISMATCH;
        says = "no_sync is not the same on ranks 0 and 2";
        break;
    default:
        d.item_count = r == 1 ? 3 : 4;
        want = CDP_ERR_MISMATCH;
        says = "the number of items";
        break;
    }
    OK(cdp_ckpt_create(&d, &c));
    const cdp_status got = cdp_ckpt_save(c, 5);
    if (!T_EQ(want, got)) printf("  %s\n", kind < 9 ? kinds[kind] : "");
    T_TEXT(says, cdp_last_error()->text);
    OK(cdp_group_status(g));
    cdp_ckpt_destroy(c);
    cdp_mesh_destroy(sub);
    cdp_mesh_destroy(other);
    model_close(&m);
}

TEST(mistakes_are_the_same_on_all_ranks) {
    folder_new();
    for (uint32_t kind = 0; kind <= 13; ++kind)
        run_ranks(3, NULL, 0, mistaken_ranks, &kind);
    run r = {.how = "S0", .step = 5};
    run_ranks(3, NULL, 0, save_ranks, &r); /* nothing is left of them */
    r.want = CDP_ERR_INVALID;
    r.says = "step 5 exists";
    run_ranks(2, NULL, 0, save_ranks, &r);
    folder_gone();
}

static void unfit_ranks(cdp_group *g, void *arg) {
    model m;
    cdp_ckpt *c;
    (void)arg;
    model_open(&m, g, "S0", false);
    cdp_ckpt_desc d = desc_of(g, &m);
    m.items[0].name = "other";
    m.items[1].tensor.layout.shape[0] = 12;
    free(m.cut_data);
    m.items[1].tensor.data = m.cut_data = (float *)calloc(12 * 6, 4);
    m.items[3].tensor.layout.dtype = CDP_DTYPE_F16;
    m.blobs[0].room = 3;
    OK(cdp_ckpt_create(&d, &c));
    T_EQ(CDP_ERR_MISMATCH, cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, NULL));
    T_TEXT("3 of 4 items do not fit (1 surplus", cdp_last_error()->text);
    T_TEXT("'other' is not in the files", cdp_last_error()->text);
    T_TEXT("'cut' is f32[10,6] in the files and f32[12,6] here", cdp_last_error()->text);
    T_TEXT("'half' is bf16[9,5] in the files and f16[9,5] here", cdp_last_error()->text);
    cdp_ckpt_destroy(c);
    model_close(&m);
    model_open(&m, g, "S0", false);
    d = desc_of(g, &m);
    d.items = m.items;
    m.blobs[0].room = 3;
    OK(cdp_ckpt_create(&d, &c));
    T_EQ(CDP_ERR_INVALID, cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, NULL));
    T_TEXT("blob 'notes' has 9 bytes, its room is 3", cdp_last_error()->text);
    T_EQ(CDP_ERR_STATE, cdp_ckpt_load(c, NULL, 77, NULL));
    T_TEXT("there is no step 77", cdp_last_error()->text);
    T_EQ(CDP_ERR_STATE, cdp_ckpt_load(c, "/tmp/no/such/folder", CDP_CKPT_LATEST, NULL));
    cdp_ckpt_destroy(c);
    m.items[0].name = "other"; /* missing is allowed on request, and keeps its value */
    m.whole[3] = 8;
    m.blobs[0].room = 64;
    d.partial = true;
    OK(cdp_ckpt_create(&d, &c));
    OK(cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, NULL));
    T_EQ(1, cdp_ckpt_info_of(c).missing);
    T(m.whole[3] == 8 && m.half[1] == 999);
    cdp_ckpt_destroy(c);
    model_close(&m);
}

/* Names that are longer than the text of an error. */
static void long_named_ranks(cdp_group *g, void *arg) {
    char names[2][512];
    model m;
    cdp_ckpt *c;
    (void)arg;
    model_open(&m, g, "S0", false);
    for (uint32_t i = 0; i < 2; ++i) {
        memset(names[i], 'a' + (int)i, 511);
        names[i][511] = 0;
        m.items[i].name = names[i];
    }
    cdp_ckpt_desc d = desc_of(g, &m);
    OK(cdp_ckpt_create(&d, &c));
    T_EQ(CDP_ERR_MISMATCH, cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, NULL));
    T_TEXT("2 of 4 items do not fit", cdp_last_error()->text);
    T_TEXT("aaa...' is not in the files; 'bbb", cdp_last_error()->text);
    cdp_ckpt_destroy(c);
    model_close(&m);
}

/* A step of f32 and bf16, loaded as other dtypes, whole and cut by columns, at odd places. */
static void cast_ranks(cdp_group *g, void *arg) {
    const bool damaged = *(const bool *)arg;
    model m;
    cdp_ckpt *c;
    model_open(&m, g, "S1", false);
    cdp_ckpt_desc d = desc_of(g, &m);
    cdp_box box;
    double *const wide = (double *)calloc(m.count + 1, 8);
    float half[45] = {0};
    uint16_t whole[7] = {0};
    m.items[0].tensor.layout.dtype = CDP_DTYPE_BF16;
    m.items[0].tensor.data = whole;
    m.items[1].tensor.layout.dtype = CDP_DTYPE_F64;
    m.items[1].tensor.data = wide;
    m.items[3].tensor.layout.dtype = CDP_DTYPE_F32;
    m.items[3].tensor.data = half;
    OK(cdp_ckpt_create(&d, &c));
    T_EQ(CDP_ERR_MISMATCH, cdp_ckpt_load(c, NULL, 5, NULL)); /* only on request */
    T_TEXT("3 of 4 items do not fit", cdp_last_error()->text);
    cdp_ckpt_destroy(c);
    d.cast = true;
    OK(cdp_ckpt_create(&d, &c));
    T_EQ(damaged ? CDP_ERR_IO : CDP_OK, cdp_ckpt_load(c, NULL, 5, NULL));
    if (damaged) T_TEXT("is damaged", cdp_last_error()->text);
    T_EQ(3, cdp_ckpt_info_of(c).cast);
    cdp_layout_box(&m.items[1].tensor.layout, NULL, &box);
    for (uint64_t i = 0; !damaged && i < m.count; ++i)
        T(wide[i]
            == (double)cut_value(
                (box.start[0] + i / box.size[1]) * 6 + box.start[1] + i % box.size[1]));
    for (uint32_t i = 0; !damaged && i < 45; ++i) {
        const uint16_t bits = (uint16_t)(i * 999);
        const uint32_t want = (uint32_t)bits << 16;
        T(memcmp(&want, &half[i], 4) == 0);
    }
    for (uint32_t i = 0; !damaged && i < 7; ++i) {
        const float value = (float)i + 0.25f;
        uint16_t want;
        OK(cdp_convert(&value, CDP_DTYPE_F32, &want, CDP_DTYPE_BF16, 1, NULL));
        T_EQ(want, whole[i]);
    }
    cdp_ckpt_destroy(c);
    free(wide);
    model_close(&m);
}

TEST(elements_are_converted_on_request) {
    bool damaged = false;
    folder_new();
    run r = {.how = "S0", .step = 5};
    run_ranks(2, NULL, 0, save_ranks, &r);
    for (uint32_t n = 1; n <= 3; ++n)
        run_ranks(n, NULL, 0, cast_ranks, &damaged);
    damaged = true; /* sums are those of the files */
    flip_in("step-00000005/model-00001-of-00002.safetensors", -1, 2);
    run_ranks(2, NULL, 0, cast_ranks, &damaged);
    folder_gone();
}

TEST(all_that_does_not_fit_is_listed_at_once) {
    folder_new();
    run r = {.how = "S0", .step = 5};
    run_ranks(2, NULL, 0, save_ranks, &r);
    run_ranks(3, NULL, 0, unfit_ranks, NULL);
    run_ranks(2, NULL, 0, long_named_ranks, NULL);
    folder_gone();
}

/* ---- parts: shards of FSDP ---- */

enum {
    SHARDED = 3,
    ARRAYS = 3, /* values and two states */
    MOST = 36
};

typedef struct shards {
    cdp_fsdp_param params[SHARDED];
    cdp_optim optim;
    cdp_fsdp *f;
    char names[SHARDED * ARRAYS][32];
    cdp_item items[SHARDED * ARRAYS];
    cdp_ckpt_blob blob;
} shards;

static void shards_fill(void *user, uint32_t param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t k = 0; k < count; ++k)
        out[k] = user ? (float)((param * 5 + first + k) % 7) : -1;
}

/* One item for each array of each parameter; of pieces, where this rank has one. */
static void shards_open(shards *s, cdp_group *g, bool filled) {
    static const char *const array[ARRAYS] = {"", ".exp_avg", ".exp_avg_sq"};
    memset(s, 0, sizeof *s);
    s->params[0] = (cdp_fsdp_param){.ndim = 2, .shape = {5, 7}};
    s->params[1] = (cdp_fsdp_param){.ndim = 1, .shape = {7}};
    s->params[2] = (cdp_fsdp_param){.unit = 1, .ndim = 2, .shape = {9, 4}};
    s->optim = (cdp_optim){.kind = CDP_OPTIM_ADAMW, .lr = .01};
    const cdp_fsdp_desc d = {.group = g,
        .params = s->params,
        .param_count = SHARDED,
        .optim = &s->optim,
        .fill = shards_fill,
        .user = filled ? s : NULL,
        .compute = CDP_DTYPE_BF16,
        .divisor = 1};
    OK(cdp_fsdp_create(&d, &s->f));
    for (uint32_t i = 0; i < SHARDED * ARRAYS; ++i) {
        cdp_item *const item = &s->items[i];
        const cdp_fsdp_param *const p = &s->params[i % SHARDED];
        snprintf(s->names[i], 32, "p%u%s", i % SHARDED, array[i / SHARDED]);
        item->name = s->names[i];
        item->file = i < SHARDED ? NULL : "optimizer";
        item->part = true;
        item->tensor.layout = (cdp_layout){.ndim = p->ndim, .shape = {p->shape[0], p->shape[1]}};
    }
    for (uint32_t k = 0; k < cdp_fsdp_piece_count(s->f); ++k) {
        const cdp_fsdp_piece p = cdp_fsdp_piece_at(s->f, k);
        for (uint32_t a = 0; a < ARRAYS; ++a) {
            cdp_item *const item = &s->items[a * SHARDED + p.param];
            item->first = p.first;
            item->count = p.count;
            item->tensor.data = a ? p.state[a - 1] : p.data;
        }
    }
    s->blob = (cdp_ckpt_blob){.name = "optim.step",
        .data = &s->optim.step,
        .bytes = sizeof s->optim.step,
        .room = sizeof s->optim.step};
}

static cdp_ckpt *shards_ckpt(cdp_group *g, shards *s) {
    cdp_ckpt *c = NULL;
    const cdp_ckpt_desc d = {.group = g,
        .path = folder,
        .items = s->items,
        .item_count = SHARDED * ARRAYS,
        .blobs = &s->blob,
        .blob_count = 1,
        .late = true};
    OK(cdp_ckpt_create(&d, &c));
    return c;
}

/* Gradients of rank 0 alone, so that sums are the same for any number of ranks. */
static void shards_backward(shards *s, cdp_group *g) {
    for (uint32_t u = 0; u < 2; ++u) {
        OK(cdp_fsdp_need(s->f, u));
        for (uint32_t p = 0; p < SHARDED; ++p) {
            const uint64_t n = s->params[p].shape[0] * (p == 1 ? 1 : s->params[p].shape[1]);
            if (s->params[p].unit != u) continue;
            float *const grad = cdp_fsdp_grad(s->f, p);
            for (uint64_t k = 0; cdp_rank(g) == 0 && k < n; ++k)
                grad[k] += (float)(k % 5) - 2;
        }
        OK(cdp_fsdp_ready(s->f, u));
    }
    OK(cdp_fsdp_backward_end(s->f, 0, NULL));
}

typedef float whole_model[SHARDED * ARRAYS][MOST];

static void shards_whole(shards *s, whole_model out) {
    for (uint32_t i = 0; i < SHARDED * ARRAYS; ++i)
        OK(cdp_fsdp_save(
            s->f, i % SHARDED, i < SHARDED ? CDP_FSDP_VALUES : i / SHARDED - 1, out[i], 0));
}

static whole_model shards_saved, shards_next; /* of rank 0 */

static void shards_save_ranks(cdp_group *g, void *arg) {
    shards s;
    (void)arg;
    shards_open(&s, g, true);
    cdp_ckpt *const c = shards_ckpt(g, &s);
    for (uint32_t step = 0; step < 2; ++step) {
        shards_backward(&s, g);
        OK(cdp_fsdp_step(s.f));
    }
    shards_whole(&s, shards_saved);
    OK(cdp_ckpt_save_async(c, 2));
    shards_backward(&s, g);
    OK(cdp_ckpt_staged(c));
    OK(cdp_fsdp_step(s.f)); /* writes what was saved */
    shards_whole(&s, shards_next);
    OK(cdp_ckpt_wait(c, CDP_NO_TIMEOUT));
    cdp_ckpt_destroy(c);
    cdp_fsdp_destroy(s.f);
}

static void shards_load_ranks(cdp_group *g, void *arg) {
    static whole_model got;
    shards s;
    (void)arg;
    shards_open(&s, g, false);
    cdp_ckpt *const c = shards_ckpt(g, &s);
    OK(cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, NULL));
    OK(cdp_fsdp_loaded(s.f));
    T_EQ(2, s.optim.step);
    shards_whole(&s, got);
    if (cdp_rank(g) == 0) T(memcmp(got, shards_saved, sizeof got) == 0);
    OK(cdp_fsdp_need(s.f, 0)); /* what is gathered in bf16 is new, too */
    const float whole = got[0][1];
    float first = 0;
    OK(cdp_convert((const uint16_t *)cdp_fsdp_data(s.f, 0) + 1, CDP_DTYPE_BF16, &first,
        CDP_DTYPE_F32, 1, NULL));
    if (cdp_rank(g) == 0) T(first > whole - 0.05f && first < whole + 0.05f);
    OK(cdp_fsdp_done(s.f, 0));
    shards_backward(&s, g);
    OK(cdp_fsdp_step(s.f));
    shards_whole(&s, got); /* and goes on as the other job did */
    if (cdp_rank(g) == 0) T(memcmp(got, shards_next, sizeof got) == 0);
    cdp_ckpt_destroy(c);
    cdp_fsdp_destroy(s.f);
}

TEST(shards_and_their_optimizer_state_go_to_another_number_of_ranks) {
    folder_new();
    run_ranks(4, NULL, 0, shards_save_ranks, NULL);
    run_ranks(3, NULL, 0, shards_load_ranks, NULL);
    run_ranks(1, NULL, 0, shards_load_ranks, NULL);
    run_ranks(7, NULL, 0, shards_load_ranks, NULL);
    folder_gone();
}

/* Two shards with two copies each; then one shard too many, and ranges outside of the tensor. */
static void parts_ranks(cdp_group *g, void *arg) {
    static const char *const says[] = {NULL, "parts must not overlap",
        "rank 3: cdp_ckpt: item 'w': elements 4 to 7 of 6, copy 1 of 2",
        "copy 2 of 2: a part must be in the tensor"};
    const uint32_t r = cdp_rank(g), kind = *(const uint32_t *)arg;
    const float values[6] = {1, 2, 3, 4, 5, 6};
    float mine[6];
    cdp_ckpt *c;
    cdp_item item = {.name = "w", .part = true, .first = r / 2 * 4, .count = r < 2 ? 4 : 2};
    item.copy = r % 2;
    item.copies = 2;
    item.tensor.layout = (cdp_layout){.ndim = 2, .shape = {3, 2}};
    item.tensor.data = mine;
    memcpy(mine, values + item.first, item.count * sizeof *mine);
    if (kind == 1) item.copies = r % 2 + 1; /* a copy that counts as a shard */
    if (kind == 2 && r == 3) item.count = 3;
    if (kind == 3 && r == 3) item.copy = 2;
    const cdp_ckpt_desc d = {.group = g, .path = folder, .items = &item, .item_count = 1};
    OK(cdp_ckpt_create(&d, &c));
    if (kind) {
        T_EQ(CDP_ERR_INVALID, cdp_ckpt_save(c, 1));
        T_TEXT(says[kind], cdp_last_error()->text);
    } else {
        OK(cdp_ckpt_save(c, 1));
        T_EQ(r < 2 ? 8 : 4, cdp_ckpt_info_of(c).bytes_written);
        memset(mine, 0, sizeof mine);
        OK(cdp_ckpt_load(c, NULL, 1, NULL));
        T(memcmp(mine, values + item.first, item.count * sizeof *mine) == 0);
    }
    cdp_ckpt_destroy(c);
}

TEST(parts_with_copies_are_written_once) {
    folder_new();
    for (uint32_t kind = 0; kind < 4; ++kind)
        run_ranks(4, NULL, 0, parts_ranks, &kind);
    folder_gone();
}

/* ---- disks that fail ---- */

static struct {
    int64_t calls, fail_at;
    int32_t with;
} disk;

static bool disk_fails(void) {
    return __atomic_add_fetch(&disk.calls, 1, __ATOMIC_SEQ_CST) == disk.fail_at;
}
static int64_t disk_write(void *user, int32_t fd, uint64_t at, const void *from, uint64_t bytes) {
    if (disk_fails()) return -disk.with;
    return cdp_os_default()->files.write_at(user, fd, at, from, bytes);
}
static int32_t disk_sync(void *user, int32_t fd) {
    return disk_fails() ? -disk.with : cdp_os_default()->files.sync_file(user, fd);
}
static int32_t disk_rename(void *user, const char *from, const char *to) {
    return disk_fails() ? -disk.with : cdp_os_default()->files.rename_file(user, from, to);
}
static int32_t disk_open(void *user, const char *path, uint32_t how) {
    if ((how & CDP_FILE_WRITE) && disk_fails()) return -disk.with;
    return cdp_os_default()->files.open_file(user, path, how);
}

static void failing_ranks(cdp_group *g, void *arg) {
    run *const r = (run *)arg;
    model m;
    cdp_ckpt *c;
    model_open(&m, g, "S0", true);
    cdp_ckpt_desc d = desc_of(g, &m);
    d.os = r->os;
    OK(cdp_ckpt_create(&d, &c));
    const cdp_status st = cdp_ckpt_save(c, r->step);
    int32_t code = st, all[2] = {0, 0}, minus = -st;
    T(st == CDP_OK || (st == CDP_ERR_IO && cdp_last_error()->sys_errno == disk.with));
    OK(cdp_allreduce(g, &code, &all[0], 1, CDP_DTYPE_I32, CDP_REDUCE_MIN));
    OK(cdp_allreduce(g, &minus, &all[1], 1, CDP_DTYPE_I32, CDP_REDUCE_MIN));
    T_EQ(all[0], -all[1]); /* the same on all ranks */
    if (cdp_rank(g) == 0) r->want = st;
    cdp_ckpt_destroy(c);
    model_close(&m);
}

TEST(a_disk_that_fails_at_any_call_fails_on_all_ranks) {
    static cdp_os os;
    uint32_t failures = 0;
    folder_new();
    os = *cdp_os_default();
    os.files.write_at = disk_write;
    os.files.sync_file = disk_sync;
    os.files.rename_file = disk_rename;
    os.files.open_file = disk_open;
    run r = {.how = "S0", .step = 1, .saved_ranks = 3};
    run_ranks(3, NULL, 0, save_ranks, &r);
    for (int64_t k = 1;; ++k) {
        static const int32_t errors[] = {ENOSPC, EIO, EROFS};
        run f = {.step = 2, .os = &os};
        disk.calls = 0;
        disk.fail_at = k;
        disk.with = errors[k % 3];
        run_ranks(3, NULL, 0, failing_ranks, &f);
        const bool ended = disk.calls < k;
        run l = {.how = "S1", .step = CDP_CKPT_LATEST, .saved_ranks = 3};
        run_ranks(2, NULL, 0, load_ranks, &l); /* the older step, or this one: whole */
        if (f.want != CDP_OK) ++failures;
        if (!T(k < 200) || ended) break;
        if (f.want == CDP_OK || l.info.step == 2) { /* it exists: remove it */
            char line[400];
            snprintf(line, sizeof line, "rm -rf %s/step-00000002", folder);
            T(system(line) == 0);
        }
    }
    T(failures > 20);
    folder_gone();
}

TEST(older_steps_are_swept_and_leftovers_too) {
    char path[1600];
    folder_new();
    snprintf(path, sizeof path,
        "mkdir %s/step-00000001.tmp-12ab && touch %s/step-00000001.tmp-12ab/x "
        "%s/other && mkdir %s/step-7 %s/step-00000002.tmpx",
        folder, folder, folder, folder, folder);
    T(system(path) == 0);
    for (uint64_t step = 1; step <= 6; ++step) {
        run r = {.how = "S0", .step = step, .keep = 2};
        run_ranks(2, NULL, 0, save_ranks, &r);
    }
    snprintf(path, sizeof path,
        "test \"$(cd %s && ls | tr '\\n' ' ')\" = 'latest lock other step-00000002.tmpx "
        "step-00000005 step-00000006 step-7 ' && test $(cat %s/latest) = step-00000006",
        folder, folder);
    T(system(path) == 0);
    folder_gone();
}

/* A program has put a folder into a step, which is swept as far as that goes, again and again. */
TEST(what_cannot_be_swept_holds_up_no_save) {
    char line[900];
    folder_new();
    for (uint64_t step = 1; step <= 4; ++step) {
        run r = {.how = "S0", .step = step, .keep = 1};
        run_ranks(2, NULL, 0, save_ranks, &r);
        snprintf(line, sizeof line, step == 1 ? "mkdir %s/step-00000001/all" : "true", folder);
        if (step == 3) /* the same number once more, which cannot be swept yet, and an older one */
            snprintf(line, sizeof line,
                "cd %s && cp -R step-00000003 step-00000001 && cp -R "
                "step-00000003 step-00000000",
                folder);
        T(system(line) == 0);
    }
    snprintf(line, sizeof line,
        "cd %s && test \"$(echo *)\" = 'latest lock step-00000001 step-00000001.tmp-swept "
        "step-00000004' && test \"$(ls step-00000001.tmp-swept)\" = all && rmdir "
        "step-00000001.tmp-swept/all",
        folder);
    T(system(line) == 0);
    run r = {.how = "S0", .step = 5, .keep = 1};
    run_ranks(2, NULL, 0, save_ranks, &r);
    snprintf(
        line, sizeof line, "cd %s && test \"$(echo *)\" = 'latest lock step-00000005'", folder);
    T(system(line) == 0);
    folder_gone();
}

/* A process that was forked while a step was written, as readers of data are, lives on. */
static pid_t forked;
static int32_t sync_and_fork(void *user, int32_t fd) {
    if (!forked) forked = fork();
    if (!forked) {
        pause();
        _exit(0);
    }
    return cdp_os_default()->files.sync_file(user, fd);
}

TEST(a_forked_process_keeps_no_lock) {
    cdp_os os = *cdp_os_default();
    folder_new();
    forked = 0;
    os.files.sync_file = sync_and_fork;
    for (uint64_t step = 1; step <= 2; ++step) {
        run r = {.how = "S0", .step = step, .os = &os};
        run_ranks(1, NULL, 0, save_ranks, &r);
    }
    T(forked > 0 && kill(forked, SIGKILL) == 0 && waitpid(forked, NULL, 0) == forked);
    folder_gone();
}

/* A folder that lost its checkpoint.json, as while it was swept; and one with another's name. */
TEST(a_step_is_saved_where_a_rest_of_it_is_and_loaded_by_its_own_name) {
    char line[700];
    folder_new();
    run r = {.how = "S0", .step = 5, .saved_ranks = 2};
    run_ranks(2, NULL, 0, save_ranks, &r);
    snprintf(line, sizeof line, "rm %s/step-00000005/checkpoint.json", folder);
    T(system(line) == 0);
    run_ranks(2, NULL, 0, save_ranks, &r);
    r.step = 6;
    run_ranks(2, NULL, 0, save_ranks, &r);
    snprintf(line, sizeof line, "mv %s/step-00000005 %s/step-00000009", folder, folder);
    T(system(line) == 0);
    run l = {.how = "S0", .step = CDP_CKPT_LATEST, .saved_ranks = 2};
    run_ranks(2, NULL, 0, load_ranks, &l);
    T_EQ(6, l.info.step);
    l.step = 9;
    l.want = CDP_ERR_IO;
    l.says = "is of another step than the name of its folder";
    run_ranks(2, NULL, 0, load_ranks, &l);
    /* what cannot be removed is named */
    snprintf(line, sizeof line, "mkdir -p %s/step-00000007/mine/deep", folder);
    T(system(line) == 0);
    run n = {
        .how = "S0", .step = 7, .want = CDP_ERR_IO, .says = "/step-00000007, which an earlier"};
    run_ranks(2, NULL, 0, save_ranks, &n);
    snprintf(line, sizeof line, "%s/step-00000009", folder); /* as one step it has any name */
    l = (run){.how = "S0", .step = 5, .saved_ranks = 2, .path = line};
    run_ranks(2, NULL, 0, load_ranks, &l);
    folder_gone();
}

/* A checkpoint.json that cannot be opened, as where descriptors run out, is no reason to remove the
   step. */
static int32_t unread_open(void *user, const char *path, uint32_t how) {
    if (!(how & CDP_FILE_WRITE) && strstr(path, "/checkpoint.json")) return -EMFILE;
    return cdp_os_default()->files.open_file(user, path, how);
}

TEST(a_step_that_cannot_be_read_is_not_removed) {
    cdp_os os = *cdp_os_default();
    folder_new();
    run r = {.how = "S0", .step = 5, .saved_ranks = 2};
    run_ranks(2, NULL, 0, save_ranks, &r);
    os.files.open_file = unread_open;
    run again = {.how = "S0", .step = 5, .os = &os, .want = CDP_ERR_IO};
    again.says = "cannot read checkpoint.json in";
    run_ranks(2, NULL, 0, save_ranks, &again);
    run_ranks(2, NULL, 0, load_ranks, &r);
    folder_gone();
}

/* Every file that one rank writes is synced once: what a sync costs is most of a small save. */
static struct { uint32_t files, folders; } synced;
static int32_t count_sync(void *user, int32_t fd) {
    ++synced.files;
    return cdp_os_default()->files.sync_file(user, fd);
}
static int32_t count_sync_folder(void *user, const char *path) {
    ++synced.folders;
    return cdp_os_default()->files.sync_folder(user, path);
}

static void syncing_rank(cdp_group *g, void *arg) {
    const cdp_os *const os = (const cdp_os *)arg;
    model m;
    cdp_ckpt *c;
    cdp_ckpt_info info;
    model_open(&m, g, "S0", true);
    cdp_ckpt_desc d = desc_of(g, &m);
    d.os = os;
    d.keep = 1;
    OK(cdp_ckpt_create(&d, &c));
    for (uint64_t step = 1; step <= 3; ++step) {
        memset(&synced, 0, sizeof synced);
        OK(cdp_ckpt_save(c, step));
        info = cdp_ckpt_info_of(c);
        T(info.files > 1);
        /* files of tensors; an index for "model" and one for "half"; blobs; checkpoint.json */
        T_EQ(info.files + 4, synced.files);
        /* the step and the folder of steps; at first the one above; later the step that is swept */
        T_EQ(3, synced.folders);
    }
    cdp_ckpt_destroy(c);
    model_close(&m);
}

TEST(each_file_is_synced_once) {
    cdp_os os = *cdp_os_default();
    folder_new();
    os.files.sync_file = count_sync;
    os.files.sync_folder = count_sync_folder;
    run_ranks(1, NULL, 0, syncing_rank, &os);
    folder_gone();
}

/* ---- files that have not changed ---- */

typedef struct again {
    const cdp_os *os;
    const char *how;
    uint64_t step;
    uint32_t keep, half; /* half: what is added to the tensor of that name */
    bool late, background;
    cdp_ckpt_info info; /* of rank 0 */
    uint64_t written;   /* by all ranks */
} again;

static void again_ranks(cdp_group *g, void *arg) {
    again *const a = (again *)arg;
    uint64_t written;
    model m;
    cdp_ckpt *c;
    model_open(&m, g, a->how, true);
    m.half[3] = (uint16_t)(m.half[3] + a->half);
    cdp_ckpt_desc d = desc_of(g, &m);
    d.incremental = true;
    d.keep = a->keep;
    d.late = a->late;
    d.os = a->os;
    OK(cdp_ckpt_create(&d, &c));
    if (a->background) {
        OK(cdp_ckpt_save_async(c, a->step));
        OK(cdp_ckpt_staged(c));
        memset(m.whole, 0, sizeof m.whole);
        memset(m.half, 0, sizeof m.half);
        OK(cdp_ckpt_wait(c, CDP_NO_TIMEOUT));
    } else
        OK(cdp_ckpt_save(c, a->step));
    written = cdp_ckpt_info_of(c).bytes_written;
    OK(cdp_allreduce(g, NULL, &written, 1, CDP_DTYPE_U64, CDP_REDUCE_SUM));
    if (cdp_rank(g) == 0) {
        a->info = cdp_ckpt_info_of(c);
        a->written = written;
    }
    cdp_ckpt_destroy(c);
    model_close(&m);
}

/* Saves, and compares what was written and linked with all there is. */
static void again_saves(uint32_t ranks, again *a, uint64_t linked_files, uint64_t written) {
    run_ranks(ranks, NULL, 0, again_ranks, a);
    T_EQ(linked_files, a->info.linked_files);
    T_EQ(written, a->written);
    T_EQ(a->info.total_bytes, a->written + a->info.linked_bytes);
    T(a->info.predicted_us == (double)written / 750);
}

/* How many names the file of tensor `name` of a step has; 0: no file. */
static uint64_t names_of(uint64_t step, const char *name) {
    char path[600];
    struct stat st;
    uint64_t names = 0;
    cdp_ckpt_reader *r;
    snprintf(path, sizeof path, "%s/step-%08u", folder, (unsigned)step);
    OK(cdp_ckpt_open(path, NULL, &r));
    const cdp_ckpt_entry e = cdp_ckpt_entry_at(r, cdp_ckpt_find(r, name));
    for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i)
        OK(cdp_ckpt_verify(r, i));
    snprintf(path, sizeof path, "%s/step-%08u/%s", folder, (unsigned)step, e.file);
    if (stat(path, &st) == 0) names = (uint64_t)st.st_nlink;
    cdp_ckpt_close(r);
    return names;
}

/* The step that is removed when the next save asks for random numbers, which it does after it has
   found files to link; 0: none. */
static uint64_t removes_step;

static cdp_status random_and_remove(void *user, void *dst, uint64_t bytes) {
    char command[700];
    if (removes_step) {
        snprintf(command, sizeof command, "rm -r %s/step-%08u", folder, (unsigned)removes_step);
        T_EQ(0, system(command));
    }
    removes_step = 0;
    return cdp_os_default()->random(user, dst, bytes);
}

/* Somebody removes the older step just then: what was to be linked is there all the same. */
TEST(a_step_that_is_removed_while_the_next_one_begins) {
    cdp_os os = *cdp_os_default();
    os.random = random_and_remove;
    for (uint32_t ranks = 1; ranks <= 2; ++ranks) {
        again a = {.os = &os, .how = "S0", .step = 1};
        folder_new();
        run_ranks(ranks, NULL, 0, again_ranks, &a);
        removes_step = 1;
        a.step = 2;
        a.half = 1;
        run_ranks(ranks, NULL, 0, again_ranks, &a);
        T_EQ(0, removes_step);
        T(a.info.linked_files > 0);
        T_EQ(1, names_of(2, "cut"));
        folder_gone();
    }
}

static void step_loads(uint64_t step, uint32_t saved_ranks) {
    run l = {.how = "S1", .step = step, .saved_ranks = saved_ranks};
    run_ranks(2, NULL, 0, load_ranks, &l);
}

TEST(files_that_have_not_changed_are_linked) {
    for (uint32_t n = 1; n <= 3; ++n) {
        again a = {.how = "S0", .step = 1};
        folder_new();
        again_saves(n, &a, 0, 598); /* there is no step yet */
        const uint64_t files = a.info.files;
        a.step = 2;
        again_saves(n, &a, files, 0);
        T_EQ(2, names_of(2, "cut"));
        a.step = 3;
        a.how = "S1"; /* files know no layout */
        a.half = 1;
        again_saves(n, &a, files - 1, 90);
        T_EQ(3, names_of(3, "cut"));
        T_EQ(1, names_of(3, "half"));
        a.step = 4;
        a.keep = 1;
        a.half = 0; /* what it was two steps ago does not count */
        again_saves(n, &a, files - 1, 90);
        T_EQ(1, names_of(4, "cut")); /* older steps are gone, and their files are here */
        step_loads(4, n);
        folder_gone();
    }
}

TEST(and_in_the_background) {
    for (uint32_t late = 0; late < 2; ++late) {
        again a = {.how = "S0", .step = 1, .background = true, .late = late, .keep = 1};
        folder_new();
        again_saves(3, &a, 0, 598);
        a.step = 2;
        again_saves(3, &a, a.info.files, 0);
        T_EQ(0, a.info.stage_bytes);
        step_loads(2, 3);
        folder_gone();
    }
}

static int32_t no_link(void *user, const char *from, const char *to) {
    (void)user;
    (void)from;
    (void)to;
    return -EMLINK;
}

TEST(where_links_fail_they_are_copied) {
    for (uint32_t kind = 0; kind < 2; ++kind) {
        cdp_os os = *cdp_os_default();
        again a = {.how = "S0", .step = 1, .os = &os, .keep = 1};
        os.files.link_file = kind ? no_link : NULL;
        folder_new();
        again_saves(2, &a, 0, 598);
        a.step = 2;
        again_saves(2, &a, a.info.files, 0);
        T_EQ(1, names_of(2, "cut"));
        step_loads(2, 2);
        folder_gone();
    }
}

/* As a file system of a network whose answer is lost. */
static int32_t link_unheard(void *user, const char *from, const char *to) {
    const int32_t r = cdp_os_default()->files.link_file(user, from, to);
    return r ? r : -EEXIST;
}

TEST(a_link_that_is_there_already_empties_no_older_step) {
    cdp_os os = *cdp_os_default();
    again a = {.how = "S0", .step = 1, .os = &os};
    os.files.link_file = link_unheard;
    folder_new();
    again_saves(2, &a, 0, 598);
    a.step = 2;
    again_saves(2, &a, a.info.files, 0);
    step_loads(1, 2);
    step_loads(2, 2);
    folder_gone();
}

/* A file that has another length is written, and so are all where no step is whole. */
TEST(what_an_older_step_has_not_is_written) {
    char line[700];
    again a = {.how = "S0", .step = 1};
    folder_new();
    again_saves(2, &a, 0, 598);
    const uint64_t files = a.info.files;
    snprintf(line, sizeof line, "truncate -s 5000 %s/step-00000001/optimizer-*", folder);
    T(system(line) == 0);
    a.step = 2;
    again_saves(2, &a, files - 1, 240);
    T_EQ(1, names_of(2, "flat"));
    snprintf(line, sizeof line, "chmod a-w %s/step-00000002/*", folder); /* may be linked */
    T(system(line) == 0);
    a.step = 3;
    again_saves(2, &a, files, 0);
    snprintf(line, sizeof line, "chmod u+w %s/step-00000003/*", folder);
    T(system(line) == 0);
    snprintf(line, sizeof line, "echo x >> %s/step-00000003/checkpoint.json", folder);
    T(system(line) == 0);
    a.step = 4;
    again_saves(2, &a, files, 0); /* of step 2 */
    snprintf(line, sizeof line, "rm %s/step-0000000?/checkpoint.json", folder);
    T(system(line) == 0);
    a.step = 5;
    again_saves(2, &a, 0, 598);
    step_loads(5, 2);
    folder_gone();
}

/* ---- without a group ---- */

TEST(a_reader_needs_no_group) {
    cdp_ckpt_reader *r;
    uint64_t step;
    char path[400];
    float box[4];
    folder_new();
    T_EQ(CDP_ERR_STATE, cdp_ckpt_newest(folder, NULL, &step));
    T_EQ(CDP_ERR_STATE, cdp_ckpt_open(folder, NULL, &r));
    T(r == NULL);
    run s = {.how = "S1", .step = 9};
    run_ranks(4, NULL, 0, save_ranks, &s);
    OK(cdp_ckpt_newest(folder, NULL, &step));
    T_EQ(9, step);
    OK(cdp_ckpt_open(folder, NULL, &r));
    T_EQ(9, cdp_ckpt_step_of(r));
    T_EQ(4 + 1 + 4, cdp_ckpt_count(r));
    for (uint32_t i = 0; i < cdp_ckpt_count(r); ++i)
        OK(cdp_ckpt_verify(r, i));
    const cdp_box middle = {.start = {3, 2}, .size = {2, 2}};
    OK(cdp_ckpt_read(r, cdp_ckpt_find(r, "cut"), &middle, box));
    T(box[0] == cut_value(20) && box[1] == cut_value(21) && box[2] == cut_value(26)
        && box[3] == cut_value(27));
    cdp_box beyond = middle; /* what is behind the dimensions of the tensor does not count */
    for (uint32_t i = 2; i < CDP_TENSOR_DIMS; ++i)
        beyond.start[i] = beyond.size[i] = UINT64_MAX;
    box[0] = 0;
    OK(cdp_ckpt_read(r, cdp_ckpt_find(r, "cut"), &beyond, box));
    T(box[0] == cut_value(20));
    const cdp_box outside = {.start = {9, 2}, .size = {2, 2}};
    T_EQ(CDP_ERR_INVALID, cdp_ckpt_read(r, cdp_ckpt_find(r, "cut"), &outside, box));
    T_EQ(UINT32_MAX, cdp_ckpt_find(r, "nobody"));
    T_EQ(3, cdp_ckpt_entry_at(r, cdp_ckpt_find(r, "flat")).ndim);
    /* how they were cut */
    T_TEXT("S1 on 4", cdp_ckpt_entry_at(r, cdp_ckpt_find(r, "cut")).layout);
    T_TEXT("S0#1 on 4 of 60", cdp_ckpt_entry_at(r, cdp_ckpt_find(r, "flat")).layout);
    T(cdp_ckpt_entry_at(r, cdp_ckpt_find(r, "whole \xc3\xa4\"\\")).layout == NULL);
    cdp_ckpt_close(r);
    /* the same files without checkpoint.json: as Hugging Face has them */
    snprintf(path, sizeof path, "rm %s/step-00000009/checkpoint.json", folder);
    T(system(path) == 0);
    snprintf(path, sizeof path, "%s/step-00000009", folder);
    OK(cdp_ckpt_open(path, NULL, &r));
    T_EQ(9, cdp_ckpt_count(r));
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_ckpt_verify(r, 0));
    OK(cdp_ckpt_read(r, cdp_ckpt_find(r, "cut"), &middle, box));
    T(box[3] == cut_value(27));
    cdp_ckpt_close(r);
    run l = {.how = "R", .step = CDP_CKPT_LATEST, .saved_ranks = 4, .path = path};
    run_ranks(3, NULL, 0, load_ranks, &l);
    strcat(path, "/optimizer-00001-of-00001.safetensors");
    OK(cdp_ckpt_open(path, NULL, &r));
    T_EQ(1, cdp_ckpt_count(r));
    cdp_ckpt_close(r);
    folder_gone();
}

TEST(what_would_be_written) {
    cdp_ckpt_info info;
    cdp_mesh *m = NULL;
    cdp_mesh_desc md = {.ndim = 2, .shape = {64, 64}, .paper_ranks = 4096, .paper_rank = 7};
    cdp_item item = {.name = "w"};
    OK(cdp_mesh_create(&md, &m));
    item.tensor.layout = (cdp_layout){.mesh = m, .ndim = 2, .shape = {1u << 16, 1u << 14}};
    OK(cdp_layout_parse(&item.tensor.layout, "S0,R"));
    const cdp_ckpt_desc d = {.items = &item, .item_count = 1};
    OK(cdp_ckpt_preview(&d, &info));
    T_EQ(1ull << 32, info.total_bytes);
    T_EQ(1ull << 20, info.bytes_written); /* 1 / 4096: copies share the work */
    T_EQ(2, info.writes); /* of 512 KiB: a sum is made while the cache has the bytes */
    OK(cdp_layout_parse(&item.tensor.layout, "R,S1"));
    OK(cdp_ckpt_preview(&d, &info));
    T_EQ(1ull << 20, info.bytes_written);
    T_EQ(1024, info.writes); /* columns */
    T(info.predicted_us == (double)(1ull << 32) / 750);
    cdp_ckpt_desc slow = d;
    slow.disk_bytes_per_us = 64; /* a disk, not a rank */
    OK(cdp_ckpt_preview(&slow, &info));
    T(info.predicted_us == (double)(1u << 26));
    const double wrong[3] = {-1, HUGE_VAL, (double)NAN};
    for (uint32_t i = 0; i < 3; ++i) {
        slow.disk_bytes_per_us = wrong[i];
        T_EQ(CDP_ERR_INVALID, cdp_ckpt_preview(&slow, &info));
        T_TEXT("cdp_ckpt_preview: desc.disk_bytes_per_us is", cdp_last_error()->text);
    }
    cdp_mesh_destroy(m);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"every_layout_writes_the_same_file_which_every_layout_loads",
            every_layout_writes_the_same_file_which_every_layout_loads, 60},
        {"flat_cuts_and_copies_without_a_mesh", flat_cuts_and_copies_without_a_mesh, 10},
        {"sums_add_up_and_see_every_bit", sums_add_up_and_see_every_bit, 120},
        {"headers_of_others_and_hostile_ones", headers_of_others_and_hostile_ones, 10},
        {"descriptions_that_would_make_sums_of_other_lengths",
            descriptions_that_would_make_sums_of_other_lengths, 10},
        {"saved_by_some_ranks_and_loaded_by_others", saved_by_some_ranks_and_loaded_by_others, 120},
        {"memory_comes_back", memory_comes_back, 30},
        {"damage_is_named", damage_is_named, 120},
        {"mistakes_are_the_same_on_all_ranks", mistakes_are_the_same_on_all_ranks, 60},
        {"elements_are_converted_on_request", elements_are_converted_on_request, 30},
        {"all_that_does_not_fit_is_listed_at_once", all_that_does_not_fit_is_listed_at_once, 30},
        {"shards_and_their_optimizer_state_go_to_another_number_of_ranks",
            shards_and_their_optimizer_state_go_to_another_number_of_ranks, 30},
        {"parts_with_copies_are_written_once", parts_with_copies_are_written_once, 30},
        {"a_disk_that_fails_at_any_call_fails_on_all_ranks",
            a_disk_that_fails_at_any_call_fails_on_all_ranks, 120},
        {"older_steps_are_swept_and_leftovers_too", older_steps_are_swept_and_leftovers_too, 30},
        {"a_step_is_saved_where_a_rest_of_it_is_and_loaded_by_its_own_name",
            a_step_is_saved_where_a_rest_of_it_is_and_loaded_by_its_own_name, 30},
        {"what_cannot_be_swept_holds_up_no_save", what_cannot_be_swept_holds_up_no_save, 30},
        {"a_forked_process_keeps_no_lock", a_forked_process_keeps_no_lock, 30},
        {"a_step_that_is_removed_while_the_next_one_begins",
            a_step_that_is_removed_while_the_next_one_begins, 30},
        {"a_step_that_cannot_be_read_is_not_removed", a_step_that_cannot_be_read_is_not_removed,
            30},
        {"each_file_is_synced_once", each_file_is_synced_once, 30},
        {"files_that_have_not_changed_are_linked", files_that_have_not_changed_are_linked, 60},
        {"and_in_the_background", and_in_the_background, 30},
        {"where_links_fail_they_are_copied", where_links_fail_they_are_copied, 30},
        {"a_link_that_is_there_already_empties_no_older_step",
            a_link_that_is_there_already_empties_no_older_step, 30},
        {"what_an_older_step_has_not_is_written", what_an_older_step_has_not_is_written, 30},
        {"a_reader_needs_no_group", a_reader_needs_no_group, 30},
        {"what_would_be_written", what_would_be_written, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
