/* cdp_mem.h: whatever a recording leaves out, PyTorch's viewer can replay the file. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"
#include "viewer.h"

#define MIB (1ull << 20)

static cdp_mem *open_mem(fake *f, const cdp_mem_record_desc *record) {
    cdp_mem_source source = fake_source(f);
    cdp_mem_desc d = {.source = &source, .timeout_ms = 1};
    cdp_mem *m = NULL;
    f->numbers = true;
    if (record) d.record = *record;
    OK(cdp_mem_create(&d, &m));
    return m;
}

static void replays(cdp_mem *const *mems, uint32_t count, const char *name) {
    cdp_mem_shot *s = NULL;
    viewer_file v;
    written w = {0};
    OK(cdp_mem_snapshot(mems, count, false, &s));
    OK(cdp_mem_write(s, CDP_MEM_PICKLE, written_sink, &w));
    const char *wrong = viewer_open(&v, w.at, w.bytes);
    if (!wrong) wrong = viewer_replay(&v, 0, false);
    test_check(!wrong, __FILE__, __LINE__, "%s: %s", name, wrong ? wrong : "");
    viewer_close(&v);
    cdp_mem_shot_free(s);
    free(w.at);
}

/* Blocks of all sizes that come and go, frees that wait, segments given back, a failure. */
static void story(const char *name, cdp_mem_record_desc record, bool late) {
    fake f = {.limit = 300 * MIB};
    cdp_mem *const m = open_mem(&f, late ? NULL : &record);
    void *p[60] = {0}, *big = NULL, *before = NULL;
    uint64_t random = 9;
    OK(cdp_mem_alloc(m, 300 * 1024, NULL, &before));
    if (late) OK(cdp_mem_record(m, &record));
    for (int turn = 0; turn < 600; ++turn) {
        const uint32_t i = (uint32_t)(test_random(&random) % 60);
        const uint64_t bytes = 1 + test_random(&random) % (i % 6 ? 200000 : 4 * MIB);
        if (p[i]) {
            if (i % 3 == 0) OK(cdp_mem_record_stream(m, p[i], fake_handle(2)));
            fake_work(&f, 2);
            if (turn % 7 == 0) fake_pass(&f, 2);
            OK(cdp_mem_free(m, p[i]));
            p[i] = NULL;
        } else
            OK(cdp_mem_alloc_at(m, NULL, bytes, fake_handle(i % 2), CDP_MEM_HERE, &p[i]));
        if (turn % 100 == 0) (void)cdp_mem_trim(m);
        if (turn % 40 == 0) replays(&m, 1, name);
    }
    fake_pass(&f, 2);
    T_EQ(CDP_ERR_NOMEM, cdp_mem_alloc(m, 500 * MIB, NULL, &big));
    OK(cdp_mem_external(m, "communicator", 17 * MIB));
    replays(&m, 1, name);
    for (int i = 0; i < 60; ++i)
        OK(cdp_mem_free(m, p[i]));
    replays(&m, 1, name);
    OK(cdp_mem_free(m, before));
    cdp_mem_destroy(m);
}

TEST(every_recording_can_be_replayed) {
    const cdp_mem_record_desc all = {.history = CDP_MEM_HISTORY_ALL, .stacks = CDP_MEM_STACKS_SITE};
    cdp_mem_record_desc d = all;
    story("all", d, false);
    story("all, begun late", d, true);
    d.history = CDP_MEM_HISTORY_STATE;
    story("state", d, false);
    d = all;
    d.context = CDP_MEM_CONTEXT_NONE;
    story("no stacks", d, false);
    for (uint32_t entries = 1; entries < 400; entries = entries * 3 + 1) {
        d = all;
        d.max_entries = entries;
        story("a short ring", d, false);
        d.min_bytes = 100000;
        story("a short ring, min_bytes", d, false);
    }
    d = all;
    d.min_bytes = 100000;
    story("min_bytes", d, false);
    story("min_bytes, begun late", d, true);
    d.min_bytes = 2 * MIB;
    story("large min_bytes", d, false);
    d = all;
    d.max_stacks = 1;
    story("one stack", d, false);
    d.skip = 1u << CDP_MEM_OOM | 1u << CDP_MEM_SNAPSHOT;
    story("skip", d, false);
}

/* Each block of a recorder is a segment: both ends of a small one are left out, or neither. */
TEST(small_blocks_of_a_recorder) {
    cdp_mem_desc d = {.recorder_only = true,
        .record = {
            .history = CDP_MEM_HISTORY_ALL, .context = CDP_MEM_CONTEXT_NONE, .min_bytes = 5000}};
    const cdp_mem_event *e = NULL;
    cdp_mem_shot *s = NULL;
    cdp_mem *m = NULL;
    OK(cdp_mem_create(&d, &m));
    char *const at = (char *)FAKE_ADDRESSES;
    OK(cdp_mem_note_alloc(m, at, 9000, NULL));
    OK(cdp_mem_note_free(m, at));
    OK(cdp_mem_note_alloc(m, at + 512, 1000, NULL)); /* in the place of the large one */
    OK(cdp_mem_note_alloc(m, at + 4096, 1000, NULL));
    OK(cdp_mem_note_free(m, at + 4096));
    replays(&m, 1, "recorder");
    OK(cdp_mem_snapshot(&m, 1, false, &s));
    T_EQ(8, cdp_mem_events(s, 0, &e)); /* five of the large one, a snapshot, two of the small one */
    uint32_t ends = 0, begins = 0;
    for (int i = 0; i < 8; ++i) {
        ends += e[i].action == CDP_MEM_SEGMENT_FREE;
        begins += e[i].action == CDP_MEM_SEGMENT_ALLOC;
    }
    T_EQ(1, ends);
    T_EQ(2, begins);
    cdp_mem_shot_free(s);
    OK(cdp_mem_note_free(m, at + 512));
    cdp_mem_destroy(m);
}

/* Both blocks live at the same time: the peak has both, and time goes on. */
TEST(two_allocators_of_one_device) {
    const cdp_mem_record_desc record = {
        .history = CDP_MEM_HISTORY_ALL, .context = CDP_MEM_CONTEXT_NONE};
    fake f = {.numbers = true};
    fake g = {.numbers = true, .next_number = 1ull << 30};
    cdp_mem *const two[2] = {open_mem(&f, &record), open_mem(&g, &record)};
    const cdp_mem_segment *segments = NULL;
    const cdp_mem_event *e = NULL;
    cdp_mem_shot *s = NULL;
    written w = {0};
    void *p[2];
    OK(cdp_mem_external(two[0], "one", MIB));
    OK(cdp_mem_external(two[1], "two", MIB));
    for (int i = 0; i < 2; ++i)
        OK(cdp_mem_alloc(two[i], 100 * MIB, NULL, &p[i]));
    for (int i = 0; i < 2; ++i)
        OK(cdp_mem_free(two[i], p[i]));
    OK(cdp_mem_snapshot(two, 2, false, &s));
    const uint64_t n = cdp_mem_events(s, 0, &e);
    T_EQ(8, n);
    for (uint64_t i = 1; i < n; ++i)
        T(e[i].time_us >= e[i - 1].time_us);
    OK(cdp_mem_write(s, CDP_MEM_PEAK, written_sink, &w));
    T_TEXT("peak: 202.0 MiB", w.at);
    const uint32_t count = cdp_mem_segments(s, &segments);
    for (uint32_t i = 0; i < count; ++i) /* made-up addresses differ, too */
        for (uint32_t j = 0; j < i; ++j)
            T(segments[i].address != segments[j].address);
    cdp_mem_shot_free(s);
    free(w.at);
    replays(two, 2, "two allocators");
    cdp_mem_destroy(two[0]);
    cdp_mem_destroy(two[1]);
}

TEST(every_setting_is_listed) {
    static const char *const names[] = {"max_split_size", "max_non_split_rounding",
        "garbage_collection_threshold", "large_segment_size", "roundup_power2_divisions",
        "coarse_bins", "no_cache", "timeout_ms", "limit", "source"};
    fake f = {.numbers = true};
    cdp_mem_source source = fake_source(&f);
    cdp_mem_desc d = {.source = &source};
    uint32_t divisions[16];
    cdp_mem *m = NULL;
    cdp_mem_shot *s = NULL;
    written w = {0};
    OK(cdp_mem_settings_read("roundup_power2_divisions:[2:8,>:4]", divisions, &d));
    OK(cdp_mem_create(&d, &m));
    OK(cdp_mem_snapshot(&m, 1, false, &s));
    OK(cdp_mem_write(s, CDP_MEM_JSON, written_sink, &w));
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        T_TEXT(names[i], w.at);
    T_TEXT("1:8,2:8,4:4,", w.at);
    cdp_mem_shot_free(s);
    free(w.at);
    cdp_mem_destroy(m);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"every_recording_can_be_replayed", every_recording_can_be_replayed, 60},
        {"small_blocks_of_a_recorder", small_blocks_of_a_recorder, 10},
        {"every_setting_is_listed", every_setting_is_listed, 10},
        {"two_allocators_of_one_device", two_allocators_of_one_device, 10}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
