/*  dumps.c - writes snapshots of every kind into a folder, for foreign readers: interop.sh */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"

#define MIB (1ull << 20)

static const char *folder;

static void save(cdp_mem *m, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s.pickle", folder, name);
    if (cdp_mem_dump(m, path) != CDP_OK) exit(cdp_print_error(stderr));
}

static cdp_mem *begin(fake *f, const cdp_mem_record_desc *record, bool no_cache) {
    cdp_mem_source s;
    cdp_mem_desc d;
    cdp_mem *m;
    memset(f, 0, sizeof *f);
    memset(&d, 0, sizeof d);
    f->numbers = true;
    f->limit = 500 * MIB;
    s = fake_source(f);
    d.source = &s;
    d.no_cache = no_cache;
    d.timeout_ms = 1;
    d.record = *record;
    if (cdp_mem_create(&d, &m) != CDP_OK) exit(cdp_print_error(stderr));
    return m;
}

static void run(
    const char *name, cdp_mem_record_desc record, uint32_t turns, bool no_cache, bool pending) {
    static void *live[200];
    fake f;
    uint64_t random = 4;
    void *p;
    cdp_mem *const m = begin(&f, &record, no_cache);
    memset(live, 0, sizeof live);
    for (uint32_t i = 0; i < turns; ++i) {
        void **const at = &live[test_random(&random) % 200];
        cdp_mem_label(i % 3 ? "layer \xc3\xa4 \xff" : "batch");
        if (*at) {
            if (pending && i % 4 == 0) (void)!cdp_mem_record_stream(m, *at, fake_handle(2));
            fake_work(&f, 2);
            if (i % 50 == 0) fake_pass(&f, 2);
            (void)!cdp_mem_free(m, *at);
            *at = NULL;
        } else
            (void)!cdp_mem_alloc_at(m, NULL, 1 + test_random(&random) % (i % 9 ? 20000 : 3 * MIB),
                fake_handle(pending ? i % 3 : 0), i % 2 ? CDP_MEM_HERE : NULL, at);
        cdp_mem_label(NULL);
    }
    fake_pass(&f, 2);
    if (cdp_mem_alloc(m, 600 * MIB, NULL, &p) != CDP_ERR_NOMEM) exit(1);
    if (pending) { /* a free that waits at the end */
        if (cdp_mem_alloc(m, 5000, NULL, &p) != CDP_OK
            || cdp_mem_record_stream(m, p, fake_handle(2)) != CDP_OK)
            exit(1);
        fake_work(&f, 2);
        if (cdp_mem_free(m, p) != CDP_OK) exit(1);
    }
    cdp_mem_note(m, NULL, "a moment");
    if (cdp_mem_external(m, "nccl", 7 * MIB) != CDP_OK) exit(1);
    save(m, "before");
    save(m, name);
}

/* Another allocator, whose segments grow. */
static void say(cdp_mem *m, cdp_mem_action action, uint64_t at, uint64_t size) {
    cdp_mem_event e;
    memset(&e, 0, sizeof e);
    e.action = action;
    e.address = (1ull << 44) + at;
    e.size = size;
    e.stream = 3;
    e.device_free = 9 * MIB;
    if (cdp_mem_note_event(m, &e) != CDP_OK) exit(cdp_print_error(stderr));
}
static void run_mapped(const cdp_mem_record_desc *record) {
    cdp_mem_desc d;
    cdp_mem *m;
    memset(&d, 0, sizeof d);
    d.recorder_only = true;
    d.record = *record;
    if (cdp_mem_create(&d, &m) != CDP_OK) exit(cdp_print_error(stderr));
    say(m, CDP_MEM_SEGMENT_ALLOC, 100 * MIB, 4 * MIB);
    say(m, CDP_MEM_ALLOC, 101 * MIB, MIB);
    for (uint64_t turn = 0; turn < 200; ++turn) {
        const uint64_t from = turn % 2 * 50 * MIB;
        say(m, CDP_MEM_SEGMENT_MAP, from, 2 * MIB);
        say(m, CDP_MEM_ALLOC, from, MIB);
        say(m, CDP_MEM_SEGMENT_MAP, from + 2 * MIB, 20 * MIB);
        say(m, CDP_MEM_ALLOC, from + MIB, 8 * MIB); /* over both */
        say(m, CDP_MEM_ALLOC, from + 12 * MIB, 3 * MIB);
        if (turn > 197) break;
        say(m, CDP_MEM_FREE_REQUESTED, from + MIB, 1);
        say(m, CDP_MEM_SEGMENT_UNMAP, from + 16 * MIB, 6 * MIB);
        say(m, CDP_MEM_FREE_COMPLETED, from + MIB, 1);
        say(m, CDP_MEM_SEGMENT_UNMAP, from + 2 * MIB, 4 * MIB); /* in the middle */
        say(m, CDP_MEM_FREE_REQUESTED, from, 1);
        say(m, CDP_MEM_FREE_COMPLETED, from, 1);
        say(m, CDP_MEM_SEGMENT_UNMAP, from, 2 * MIB);
        say(m, CDP_MEM_FREE_REQUESTED, from + 12 * MIB, 1);
        say(m, CDP_MEM_FREE_COMPLETED, from + 12 * MIB, 1);
        say(m, CDP_MEM_SEGMENT_UNMAP, from + 6 * MIB, 10 * MIB);
    }
    say(m, CDP_MEM_FREE_REQUESTED, 12 * MIB, 1); /* waits at the end */
    say(m, CDP_MEM_OOM, 0, 500 * MIB);
    save(m, "mapped");
}

int main(int argc, char **argv) {
    cdp_mem_record_desc d;
    if (argc != 2) return 2;
    folder = argv[1];
    memset(&d, 0, sizeof d);
    run("state", d, 500, false, true); /* nothing recorded */
    d.history = CDP_MEM_HISTORY_ALL;
    run("plain", d, 4000, false, false);
    run("streams", d, 4000, false, true);
    run("uncached", d, 3000, true, true);
    d.max_entries = 1500;
    run("overwritten", d, 4000, false, true);
    d.max_entries = 0;
    d.context = CDP_MEM_CONTEXT_NONE;
    run("no_stacks", d, 4000, false, true);
    run_mapped(&d);
    d.context = CDP_MEM_CONTEXT_ALL;
    d.max_stacks = 3;
    run("full_table", d, 1000, false, true);
    printf("8 files\n");
    return 0;
}
