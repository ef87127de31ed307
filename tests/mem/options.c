/*  options.c - writes a snapshot for each way of recording into a folder, each of the same small
    story, for browser.sh: streams, frees that wait, a pool, notes, memory outside, two devices,
    a request that fails, segments given back. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"

#define MIB (1ull << 20)

static const char *folder;

static void good(cdp_status st) {
    if (st != CDP_OK) exit(cdp_print_error(stderr));
}

static void work(cdp_mem *m, fake *f) {
    const cdp_mem_pool_desc pool_desc = {.label = "graph"};
    cdp_mem_pool *pool;
    void *at[30], *in_pool, *waits, *p;
    good(cdp_mem_external(m, "nccl", 7 * MIB));
    good(cdp_mem_pool_create(m, &pool_desc, &pool));
    good(cdp_mem_alloc_at(m, pool, 5 * MIB, fake_handle(1), CDP_MEM_HERE, &in_pool));
    for (uint32_t i = 0; i < 30; ++i) {
        cdp_mem_label(i % 2 ? "layer \xc3\xa4" : "batch");
        good(cdp_mem_alloc_at(m, NULL, i % 3 ? (i + 1) * 40000ull : 700u + i,
            fake_handle(i % 4 ? 0 : 2), i % 2 ? CDP_MEM_HERE : NULL, &at[i]));
        cdp_mem_label(NULL);
    }
    cdp_mem_note(m, NULL, "a moment");
    cdp_mem_note(m, at[3], "the third");
    for (uint32_t i = 0; i < 30; i += 2)
        good(cdp_mem_free(m, at[i]));
    good(cdp_mem_alloc(m, 3 * MIB, NULL, &waits));
    good(cdp_mem_record_stream(m, waits, fake_handle(2)));
    fake_work(f, 2);
    good(cdp_mem_free(m, waits));
    fake_pass(f, 2);
    if (cdp_mem_alloc(m, 500 * MIB, NULL, &p) != CDP_ERR_NOMEM) exit(1);
    good(cdp_mem_alloc(m, 3 * MIB, NULL, &waits));
    good(cdp_mem_record_stream(m, waits, fake_handle(2)));
    fake_work(f, 2);
    good(cdp_mem_free(m, waits)); /* waits in the snapshot */
    (void)cdp_mem_trim(m);
}

/* `late`: recording begins when blocks exist already. */
static void story(const char *name, cdp_mem_record_desc record, bool late) {
    static fake f[2];
    cdp_mem *mems[2];
    cdp_mem_shot *shot;
    char path[600];
    for (uint32_t i = 0; i < 2; ++i) {
        cdp_mem_source s;
        cdp_mem_desc d;
        void *before;
        memset(&f[i], 0, sizeof f[i]);
        memset(&d, 0, sizeof d);
        f[i].numbers = true;
        f[i].limit = 300 * MIB;
        s = fake_source(&f[i]);
        s.device = i;
        d.source = &s;
        d.timeout_ms = 1;
        d.logger.level = CDP_LOG_ERROR;
        if (!late) d.record = record;
        good(cdp_mem_create(&d, &mems[i]));
        good(cdp_mem_alloc(mems[i], 300 * 1024, NULL, &before));
        if (late || record.keep) good(cdp_mem_record(mems[i], &record));
        work(mems[i], &f[i]);
    }
    snprintf(path, sizeof path, "%s/%s%s.pickle", folder, name, late ? "_late" : "");
    good(cdp_mem_snapshot(mems, 2, false, &shot));
    good(cdp_mem_write_file(shot, CDP_MEM_PICKLE, path));
    cdp_mem_shot_free(shot);
}

int main(int argc, char **argv) {
    static const char *const pairs[] = {"skip", "min_bytes", "ring_20", "ring_min"};
    const cdp_mem_record_desc all = {.history = CDP_MEM_HISTORY_ALL};
    const uint32_t may = 1u << CDP_MEM_OOM | 1u << CDP_MEM_SNAPSHOT | 1u << CDP_MEM_USER_DEFINED
        | 1u << CDP_MEM_ANNOTATE;
    cdp_mem_record_desc d = all;
    if (argc != 2) return 2;
    folder = argv[1];
    for (uint32_t late = 0; late < 2; ++late) {
        story("all", all, late);
        for (uint32_t i = 0; i < 4; ++i) { /* what is left out, in all pairs */
            d = all;
            d.min_bytes = i & 1 ? 100000 : 0;
            d.max_entries = i & 2 ? 20 : 0;
            d.skip = may;
            story(pairs[i], d, late);
        }
    }
    d = all;
    d.min_bytes = 1000;
    story("min_1000", d, false);
    d = all;
    d.max_entries = 1;
    story("ring_1", d, false);
    d = all;
    d.max_stacks = 3;
    story("few_stacks", d, false);
    d = all;
    d.max_frames = 1;
    story("one_frame", d, false);
    d = all;
    d.keep = true;
    story("keep", d, false);
    d = all;
    d.context = CDP_MEM_CONTEXT_ALLOC;
    story("context_alloc", d, false);
    d.context = CDP_MEM_CONTEXT_STATE;
    story("context_state", d, false);
    d.context = CDP_MEM_CONTEXT_NONE;
    story("context_none", d, false);
    d = all;
    d.stacks = CDP_MEM_STACKS_FRAME_POINTER;
    story("frame_pointer", d, false);
    d.stacks = CDP_MEM_STACKS_SITE;
    story("site", d, false);
    d.history = CDP_MEM_HISTORY_STATE;
    story("state", d, false);
    d.history = CDP_MEM_HISTORY_OFF;
    story("off", d, false);
    return 0;
}
