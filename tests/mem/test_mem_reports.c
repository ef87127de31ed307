/* cdp_mem.h: whom reports, pictures and errors name, and in which order. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"
#include "viewer.h"

#include <unistd.h>

#define MIB (1ull << 20)

static fake devices[20];

static cdp_mem *open_mem(uint32_t device, const cdp_mem_desc *desc) {
    cdp_mem_source source = fake_source(&devices[device]);
    cdp_mem_desc d = *desc;
    cdp_mem *m = NULL;
    memset(&devices[device], 0, sizeof devices[device]);
    devices[device].numbers = true;
    devices[device].limit = 8192 * MIB;
    source.device = device;
    d.source = &source;
    OK(cdp_mem_create(&d, &m));
    return m;
}

static cdp_mem_desc sites(void) {
    cdp_mem_desc d;
    memset(&d, 0, sizeof d);
    d.record.history = CDP_MEM_HISTORY_ALL;
    d.record.stacks = CDP_MEM_STACKS_SITE;
    return d;
}

static void *get(cdp_mem *m, uint64_t bytes, const cdp_mem_site *site) {
    void *p = NULL;
    OK(cdp_mem_alloc_at(m, NULL, bytes, NULL, site, &p));
    return p;
}

static cdp_mem_shot *shot_of(cdp_mem *const *mems, uint32_t count) {
    cdp_mem_shot *s = NULL;
    OK(cdp_mem_snapshot(mems, count, false, &s));
    return s;
}

static char *text_of(const cdp_mem_shot *s, cdp_mem_format format) {
    written w = {NULL, 0, 0, 0};
    OK(cdp_mem_write(s, format, written_sink, &w));
    return w.at;
}

/* The texts stand in `where` in this order. */
#define ORDER(where, ...) order(where, __LINE__, (const char *const[]){__VA_ARGS__, NULL})
static void order(const char *where, int line, const char *const *texts) {
    const char *at = where;
    for (; *texts; ++texts) {
        const char *const next = strstr(at, *texts);
        if (!test_check(next, __FILE__, line, "no \"%s\" from here on:\n%s", *texts, at)) return;
        at = next + 1;
    }
}

/* Two lines of one function have rows of their own, the larger one first. */
TEST(rows_are_lines) {
    const cdp_mem_site first = {"src/train.c", 10, "step"}, second = {"src/train.c", 20, "step"};
    const cdp_mem_desc d = sites();
    cdp_mem *m = open_mem(0, &d);
    cdp_mem_shot *const before = shot_of(&m, 1);
    void *p[3] = {get(m, 30 * MIB, &first), get(m, 20 * MIB, &second), get(m, 20 * MIB, &second)};
    cdp_mem_shot *const after = shot_of(&m, 1);
    char text[1000];
    (void)cdp_mem_compare(before, after, NULL, text, sizeof text);
    T_TEXT("+40.0 MiB in 2 blocks: step (train.c:20)\n+30.0 MiB in 1 blocks: step (train.c:10)\n",
        text);
    char *const peak = text_of(after, CDP_MEM_PEAK), *const svg = text_of(after, CDP_MEM_SVG);
    ORDER(peak, "peak: 70.0 MiB", "40.0 MiB in 2 blocks: step (train.c:20)\n",
        "30.0 MiB in 1 blocks: step (train.c:10)\n", "end: 70.0 MiB");
    ORDER(svg, "Largest at the peak", "40.0 MiB in 2 blocks: step (train.c:20)",
        "30.0 MiB in 1 block: step (train.c:10)");
    free(peak);
    free(svg);
    cdp_mem_shot_free(before);
    cdp_mem_shot_free(after);
    for (int i = 0; i < 3; ++i)
        OK(cdp_mem_free(m, p[i]));
    T_EQ(0, cdp_mem_destroy(m));
}

/* Through a wrapper, all has one place: it is skipped by name. A label is not a place. */
TEST(wrappers_are_skipped) {
    static const char *const names[2][3] = {
        {"xmalloc", "tensor_new", "forward"}, {"xmalloc", "tensor_new", "backward"}};
    const cdp_mem_site site[2] = {{"a.c", 1, "a"}, {"b.c", 1, "b"}};
    const cdp_mem_desc d = sites();
    cdp_mem *m = open_mem(0, &d);
    cdp_mem_label("layer");
    void *const p = get(m, 20 * MIB, &site[0]);
    cdp_mem_label(NULL);
    void *const q = get(m, 30 * MIB, &site[1]);
    cdp_mem_shot *const s = shot_of(&m, 1), *const none = shot_of(&m, 1);
    for (uint32_t i = 0; i < s->segment_count; ++i) { /* stacks as PyTorch's files have them */
        const uint32_t stack = cdp__mem_shot_stack(s, 3);
        const bool large = s->segments[i].blocks[0].requested == 30 * MIB;
        for (uint32_t j = 0; j < 3; ++j)
            OK(cdp_mem_frame_set(s, stack, j, "model.py", names[large][j], 7 + j));
        s->blocks[s->segments[i].blocks - s->blocks].stack = stack;
    }
    s->devices[0].count = 0; /* the blocks alone */
    none->segment_count = none->block_count = 0;
    static const struct {
        cdp_mem_rows rows;
        const char *skip, *want;
    } cases[] = {{CDP_MEM_ROWS_LABEL, NULL,
                     "+30.0 MiB in 1 blocks: xmalloc (model.py:7)\n+20.0 MiB in 1 blocks: layer\n"},
        {CDP_MEM_ROWS_LABEL, "tensor_new,xmalloc",
            "+30.0 MiB in 1 blocks: backward (model.py:9)\n+20.0 MiB in 1 blocks: layer\n"},
        {CDP_MEM_ROWS_PLACE, NULL, "+50.0 MiB in 2 blocks: xmalloc (model.py:7)\n"},
        {CDP_MEM_ROWS_PLACE, "xm*,tensor", "+50.0 MiB in 2 blocks: tensor_new (model.py:8)\n"},
        {CDP_MEM_ROWS_PLACE, "tensor_new", "+50.0 MiB in 2 blocks: xmalloc (model.py:7)\n"},
        {CDP_MEM_ROWS_PLACE, "*", /* the outermost stays */
            "+30.0 MiB in 1 blocks: backward (model.py:9)\n"
            "+20.0 MiB in 1 blocks: forward (model.py:9)\n"},
        {CDP_MEM_ROWS_STACK, "xmalloc",
            "+30.0 MiB in 1 blocks: tensor_new (model.py:8) < backward (model.py:9)\n"
            "+20.0 MiB in 1 blocks: tensor_new (model.py:8) < forward (model.py:9)\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char text[1000];
        OK(cdp_mem_shot_rows(s, cases[i].rows, cases[i].skip));
        (void)cdp_mem_compare(none, s, NULL, text, sizeof text);
        test_check(strcmp(text, cases[i].want) == 0, __FILE__, __LINE__,
            "case %d: \"%s\" and not \"%s\"", (int)i, text, cases[i].want);
    }
    FAILS(CDP_ERR_INVALID, "no rows 3", cdp_mem_shot_rows(s, (cdp_mem_rows)3, NULL));
    FAILS(CDP_ERR_INVALID, "shot", cdp_mem_shot_rows(NULL, CDP_MEM_ROWS_LABEL, NULL));
    cdp_mem_shot_free(s);
    cdp_mem_shot_free(none);
    OK(cdp_mem_free(m, p));
    OK(cdp_mem_free(m, q));
    T_EQ(0, cdp_mem_destroy(m));
}

/* Each device has a panel with its name, also in the picture of segments. */
TEST(pictures_name_every_device) {
    const cdp_mem_desc d = sites();
    cdp_mem *m[20];
    void *p[20];
    for (uint32_t i = 0; i < 20; ++i) {
        m[i] = open_mem(i, &d);
        p[i] = get(m[i], (20 + 100 * (uint64_t)i) * MIB, NULL);
    }
    cdp_mem *const two[] = {m[1], m[3]};
    cdp_mem_shot *s = shot_of(two, 2);
    char *svg = text_of(s, CDP_MEM_SVG), *rows = text_of(s, CDP_MEM_SVG_SEGMENTS);
    ORDER(svg, "viewBox=\"0 0 1200 1200.0\"", ">Device 1</text>", "peak 120.0 MiB",
        "translate(0,600)", ">Device 3</text>", "peak 320.0 MiB");
    T(!strstr(svg, "Device 0") && !strstr(svg, "Device 2") && !xml_wrong(svg));
    ORDER(rows, "a full row: 320.0 MiB", ">Device 1</text>", "device 1, stream", ">Device 3</text>",
        "device 3, stream");
    T(!xml_wrong(rows));
    free(svg);
    free(rows);
    cdp_mem_shot_free(s);
    s = shot_of(m, 20);
    svg = text_of(s, CDP_MEM_SVG);
    ORDER(svg, ">Device 0</text>", ">Device 15</text>", "and 4 more devices");
    T(!strstr(svg, "Device 16") && !xml_wrong(svg));
    free(svg);
    cdp_mem_shot_free(s);
    for (uint32_t i = 0; i < 20; ++i) {
        OK(cdp_mem_free(m[i], p[i]));
        T_EQ(0, cdp_mem_destroy(m[i]));
    }
}

/* ---- leaks ---- */

static char leaks[8000];

static void keep_line(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)level;
    (void)rank;
    (void)user;
    strncat(leaks, text, sizeof leaks - strlen(leaks) - 2);
    strcat(leaks, "\n");
}

TEST(leaks_by_size_with_their_sites) {
    cdp_mem_site site[14];
    cdp_mem_desc d = sites();
    d.logger.func = keep_line;
    for (int recorded = 0; recorded < 2; ++recorded) {
        if (!recorded) memset(&d.record, 0, sizeof d.record);
        if (recorded) d.record = sites().record;
        cdp_mem *const m = open_mem(0, &d);
        leaks[0] = 0;
        for (uint32_t i = 0; i < 14; ++i) { /* later ones are larger, and have higher addresses */
            site[i] = (cdp_mem_site){"model.c", i + 1, "layer"};
            (void)get(m, (20 + 2 * (uint64_t)i) * MIB, &site[i]);
            (void)get(m, (20 + 2 * (uint64_t)i) * MIB, &site[i]);
        }
        cdp_mem_label("cache");
        (void)get(m, 200 * MIB, &site[0]);
        cdp_mem_label(NULL);
        T_EQ((2 * (14 * 20 + 13 * 14) + 200) * MIB, cdp_mem_destroy(m));
        if (recorded)
            ORDER(leaks, "200.0 MiB in 1 block, at 0x", "allocated by \"cache\"\n",
                "92.0 MiB in 2 blocks, at 0x", "and others, allocated by model.c:14:layer\n",
                "model.c:13:layer\n", "model.c:6:layer\n", "and 10 more blocks of 5 others\n");
        else
            ORDER(leaks, "1.0 GiB in 29 blocks", "calls that were not recorded");
    }
}

/* ---- errors ---- */

static __attribute__((noinline)) cdp_status wrapper(cdp_mem *m, uint64_t bytes, void **out) {
    const cdp_status st = cdp_mem_alloc(m, bytes, NULL, out);
    return st + *(volatile int *)&(int){0}; /* no tail call */
}

/* The module, the offset in it and its build id find the line in any later run. */
TEST(an_error_says_the_build) {
    static uint8_t file[1 << 16];
    char id[CDP__MEM_BUILD_ID], want[100];
    cdp_mem_desc d;
    void *p = NULL, *q = NULL;
    memset(&d, 0, sizeof d);
    d.record.history = CDP_MEM_HISTORY_STATE;
    d.limit_bytes = 100 * MIB;
    d.record.stacks = CDP_MEM_STACKS_BACKTRACE;
    FILE *const exe = fopen("/proc/self/exe", "rb");
    if (!exe) return;
    const size_t n = fread(file, 1, sizeof file, exe);
    fclose(exe);
    cdp_mem *const m = open_mem(0, &d);
    OK(wrapper(m, 60 * MIB, &p));
    T_EQ(CDP_ERR_NOMEM, wrapper(m, 80 * MIB, &q));
    const char *const text = cdp_last_error()->text;
    ORDER(text, "most is held by code at ", "+0x", " < ", "+0x", ": 60.0 MiB in 1 blocks");
    if (cdp__mem_build_id(file, n, id)) {
        T_EQ(40, strlen(id));
        snprintf(want, sizeof want, " (build id %s): 60.0 MiB", id);
        T_TEXT(want, text);
    }
    OK(cdp_mem_free(m, p));
    T_EQ(0, cdp_mem_destroy(m));
}

static void put(uint8_t *at, uint64_t v, uint32_t width) {
    const uint16_t two = (uint16_t)v;
    const uint32_t four = (uint32_t)v;
    if (width == 2) memcpy(at, &two, 2);
    if (width == 4) memcpy(at, &four, 4);
    if (width == 8) memcpy(at, &v, 8);
}

/* An ELF file of `bytes` bytes: two program headers; the second has two notes. */
static void make_elf(uint8_t *file, bool wide) {
    const uint32_t word = wide ? 8 : 4, at = wide ? 64 : 52, each = wide ? 56 : 32;
    uint8_t *const notes = file + 200, *const head = file + at + each;
    memset(file, 0, 300);
    memcpy(file, "\177ELF", 4);
    file[4] = wide ? 2 : 1;
    put(file + (wide ? 32 : 28), at, word);
    put(file + (wide ? 54 : 42), each, 2);
    put(file + (wide ? 56 : 44), 2, 2);
    put(file + at, 1, 4);
    put(head, 4, 4);
    put(head + (wide ? 8 : 4), 200, word);
    put(head + (wide ? 32 : 16), 20 + 36, word);
    put(notes, 4, 4);
    put(notes + 4, 2, 4);
    put(notes + 8, 1, 4);
    memcpy(notes + 12, "GNU", 4);
    put(notes + 20, 4, 4);
    put(notes + 24, 20, 4);
    put(notes + 28, 3, 4);
    memcpy(notes + 32, "GNU", 4);
    for (uint8_t i = 0; i < 20; ++i)
        notes[36 + i] = (uint8_t)(i * 13 + 1);
}

TEST(build_ids_of_any_bytes) {
    uint8_t file[256];
    char id[CDP__MEM_BUILD_ID];
    uint64_t random = 7;
    for (int wide = 0; wide < 2; ++wide) {
        uint8_t whole[300];
        make_elf(whole, wide);
        T(cdp__mem_build_id(whole, 256, id));
        T_TEXT("010e1b2835424f5c697683909daab7c4d1deebf8", id);
        for (uint64_t n = 0; n < 256; ++n) { /* what is behind the end is not read */
            uint8_t *const cut = malloc((size_t)n + 1);
            memcpy(cut, whole, (size_t)n);
            T(!cdp__mem_build_id(cut, n, id) && !id[0]);
            free(cut);
        }
        for (int i = 0; i < 200000; ++i) {
            memcpy(file, whole, sizeof file);
            for (int k = 0; k < 3; ++k)
                file[test_random(&random) % sizeof file] = (uint8_t)test_random(&random);
            if (!cdp__mem_build_id(file, sizeof file, id)) T_EQ(0, id[0]);
            T(strlen(id) < CDP__MEM_BUILD_ID);
        }
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"rows_are_lines", rows_are_lines, 10},
        {"wrappers_are_skipped", wrappers_are_skipped, 10},
        {"pictures_name_every_device", pictures_name_every_device, 10},
        {"leaks_by_size_with_their_sites", leaks_by_size_with_their_sites, 10},
        {"an_error_says_the_build", an_error_says_the_build, 10},
        {"build_ids_of_any_bytes", build_ids_of_any_bytes, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
