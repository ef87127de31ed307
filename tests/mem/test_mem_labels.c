/* cdp_mem.h: stacks, sites and labels of long recordings. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"

static uint32_t unwound;
int backtrace(void **at, int most);
int backtrace(void **at, int most) { /* in place of the C library's */
    (void)at;
    (void)most;
    ++unwound;
    return 0;
}

static cdp_mem *open_mem(fake *f, cdp_mem_stacks stacks, uint32_t entries, uint32_t max_stacks) {
    cdp_mem_source source = fake_source(f);
    cdp_mem_desc d = {.source = &source,
        .record = {.history = CDP_MEM_HISTORY_ALL,
            .stacks = stacks,
            .max_entries = entries,
            .max_stacks = max_stacks}};
    cdp_mem *m = NULL;
    f->numbers = true;
    OK(cdp_mem_create(&d, &m));
    return m;
}

TEST(a_site_unwinds_nothing) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_STACKS_SITE, 0, 0);
    const uint32_t before = unwound;
    for (int i = 0; i < 100; ++i) {
        void *p = NULL;
        OK(cdp_mem_alloc_at(m, NULL, 4096, NULL, CDP_MEM_HERE, &p));
        OK(cdp_mem_free(m, p));
    }
    T_EQ(before, unwound);
    cdp_mem_destroy(m);
}

/* "step N" with three parts each, as the manual shows them: far more labels than live at a time. */
static void steps(cdp_mem *m, uint32_t from, uint32_t count) {
    static const char *const parts[] = {"forward", "backward", "optimizer"};
    for (uint32_t step = from; step < from + count; ++step) {
        char name[32];
        snprintf(name, sizeof name, "step %u", step);
        cdp_mem_label(name);
        for (int part = 0; part < 3; ++part) {
            void *p = NULL;
            cdp_mem_label(parts[part]);
            OK(cdp_mem_alloc_at(m, NULL, 4000, NULL, CDP_MEM_HERE, &p));
            OK(cdp_mem_free(m, p));
            cdp_mem_label(NULL);
        }
        cdp_mem_label(NULL);
    }
}

TEST(labels_of_many_steps) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_STACKS_SITE, 3000, 0);
    const cdp_mem_event *e = NULL;
    cdp_mem_stats stats;
    cdp_mem_shot *s = NULL;
    void *kept = NULL;
    char want[64];
    cdp_mem_label("weights");
    OK(cdp_mem_alloc(m, 1000, NULL, &kept));
    cdp_mem_label(NULL);
    steps(m, 0, 20000);
    stats = cdp_mem_stats_of(m);
    T_EQ(0, stats.labels_lost);
    T_EQ(0, stats.stacks_lost);
    T(m->log.labels.room <= 4096); /* 1,000 are in the ring, and one lives */
    OK(cdp_mem_snapshot(&m, 1, false, &s));
    T_EQ(3000, cdp_mem_events(s, 0, &e));
    for (uint32_t i = 0; i < 3000; ++i) { /* each event has the label of its step */
        const char *const part[] = {"forward", "backward", "optimizer"};
        snprintf(want, sizeof want, "step %u/%s", 20000 - 3000 / 9 + (i + 6) / 9 - 1,
            part[(i + 6) / 3 % 3]);
        if (i % 100 == 0) T_TEXT(want, e[i].label ? e[i].label : "");
    }
    const cdp_mem_segment *g = NULL;
    T_EQ(1, cdp_mem_segments(s, &g));
    T_TEXT("weights", g->blocks[0].label ? g->blocks[0].label : "");
    T(s->stack_count < 10); /* labels do not multiply stacks */
    cdp_mem_shot_free(s);
    OK(cdp_mem_free(m, kept));
    T_WELL(m);
    cdp_mem_destroy(m);
}

/* Nothing is lost in silence: the reports say that max_stacks was too small. */
TEST(reports_say_what_was_lost) {
    fake f = {.numbers = true};
    cdp_mem *const m = open_mem(&f, CDP_MEM_STACKS_SITE, 0, 2);
    cdp_mem_site site = {"a.c", 0, "f"};
    cdp_mem_shot *s = NULL, *back = NULL;
    written w = {0};
    void *p[10];
    for (uint32_t i = 0; i < 10; ++i) {
        site.line = i + 1;
        OK(cdp_mem_alloc_at(m, NULL, 4000, NULL, &site, &p[i]));
    }
    OK(cdp_mem_snapshot(&m, 1, false, &s));
    OK(cdp_mem_write(s, CDP_MEM_PEAK, written_sink, &w));
    T_TEXT("8 calls have no stack, because max_stacks is too small", w.at);
    w.bytes = 0;
    OK(cdp_mem_write(s, CDP_MEM_SVG, written_sink, &w));
    T_TEXT("8 calls have no stack, because max_stacks is too small", w.at);
    w.bytes = 0;
    OK(cdp_mem_write(s, CDP_MEM_PICKLE, written_sink, &w));
    OK(cdp_mem_read(w.at, w.bytes, NULL, &back));
    T_EQ(8, back->stacks_lost);
    cdp_mem_shot_free(back);
    cdp_mem_shot_free(s);
    free(w.at);
    for (uint32_t i = 0; i < 10; ++i)
        OK(cdp_mem_free(m, p[i]));
    cdp_mem_destroy(m);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"a_site_unwinds_nothing", a_site_unwinds_nothing, 10},
        {"labels_of_many_steps", labels_of_many_steps, 20},
        {"reports_say_what_was_lost", reports_say_what_was_lost, 10}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
