/*  test_checkpoint_cuts.c - the power fails at each call that changes the disk: the newest step
    that was reported as saved, or a newer one, loads and verifies */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_checkpoint.h"

#include "said.h"
#include "ranks.h"
#include "model_disk.h"

enum {
    ELEMENTS = 700
};

typedef struct job {
    cdp_os os;
    uint64_t first, last; /* steps to save */
    uint64_t durable;     /* the newest that was reported */
    uint64_t found;       /* by a load */
    uint32_t keep;
    bool bad, stopped; /* what was loaded is not what was saved; a save failed */
    cdp_status status; /* of the load */
} job;

typedef struct state {
    float a[ELEMENTS], b[ELEMENTS];
    char note[32];
    cdp_item items[2];
    cdp_ckpt_blob blob;
} state;

static float value_at(uint64_t step, uint32_t i) {
    return (float)(step * 1000 + i);
}

static void state_open(state *s, uint64_t step) {
    memset(s, 0, sizeof *s);
    for (uint32_t i = 0; step && i < ELEMENTS; ++i) {
        s->a[i] = value_at(step, i);
        s->b[i] = -value_at(step, i);
    }
    s->items[0] = (cdp_item){.name = "a"};
    s->items[0].tensor.layout = (cdp_layout){.ndim = 1, .shape = {ELEMENTS}};
    s->items[0].tensor.data = s->a;
    s->items[1] = s->items[0];
    s->items[1].name = "b";
    s->items[1].tensor.data = s->b;
    s->blob = (cdp_ckpt_blob){.name = "note", .data = s->note, .room = sizeof s->note};
    s->blob.bytes = (uint64_t)snprintf(s->note, sizeof s->note, "step %u", (unsigned)step);
}

static cdp_ckpt *ckpt_of(cdp_group *g, const job *j, state *s) {
    cdp_ckpt *c = NULL;
    const cdp_ckpt_desc d = {.group = g,
        .path = "disk/run",
        .items = s->items,
        .item_count = 2,
        .blobs = &s->blob,
        .blob_count = 1,
        .file_bytes = 4000,
        .keep = j->keep,
        .os = &j->os};
    OK(cdp_ckpt_create(&d, &c));
    return c;
}

static void save_steps(cdp_group *g, void *arg) {
    job *const j = (job *)arg;
    uint64_t step;
    for (step = j->first; step <= j->last; ++step) {
        state s;
        state_open(&s, step);
        cdp_ckpt *const c = ckpt_of(g, j, &s);
        const cdp_status st = cdp_ckpt_save(c, step);
        if (st == CDP_OK && cdp_rank(g) == 0) j->durable = step;
        if (st != CDP_OK && cdp_rank(g) == 0) j->stopped = true;
        cdp_ckpt_destroy(c);
        if (st != CDP_OK) break;
    }
}

static void load_newest(cdp_group *g, void *arg) {
    job *const j = (job *)arg;
    uint64_t found = 0;
    state s, want;
    state_open(&s, 0);
    cdp_ckpt *const c = ckpt_of(g, j, &s);
    const cdp_status st = cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, &found);
    state_open(&want, found);
    if (cdp_rank(g) == 0) {
        j->status = st;
        j->found = found;
        if (st == CDP_OK)
            j->bad = memcmp(s.a, want.a, sizeof s.a) || memcmp(s.b, want.b, sizeof s.b)
                || s.blob.bytes != want.blob.bytes || memcmp(s.note, want.note, s.blob.bytes) != 0;
    }
    cdp_ckpt_destroy(c);
}

/* Saves steps 1 to 4 until the power fails at call `cut`, and loads after that. True: nothing that
   was promised is lost. *ended: the power did not fail. */
static bool survives(
    uint32_t ranks, int64_t cut, uint64_t seed, uint32_t keep, int lies, bool *ended) {
    job j = {.os = *model_os(), .first = 1, .last = 4, .keep = keep};
    md_format();
    OK(md_make_folder(NULL, "disk"));
    OK(md_sync_folder(NULL, "."));
    md.calls = 0;
    md.cut = cut;
    md.lies_files = lies == 1;
    md.lies_folders = lies == 2;
    run_ranks(ranks, NULL, 0, save_steps, &j);
    *ended = md.calls < cut;
    T(*ended == !j.stopped || j.durable == 4); /* what fails after the last step is swept later */
    md_crash(seed);
    md.lies_files = md.lies_folders = false;
    const uint64_t durable = j.durable;
    run_ranks(ranks, NULL, 0, load_newest, &j);
    if (j.status == CDP_ERR_STATE) return durable == 0;
    if (j.status != CDP_OK || j.bad || j.found < durable) return false;
    /* and it goes on from there */
    j.first = j.last = j.found + 1;
    j.stopped = false;
    run_ranks(ranks, NULL, 0, save_steps, &j);
    if (!T(!j.stopped)) printf("  %s\n", cdp_last_error()->text);
    md_crash(seed + 1);
    run_ranks(ranks, NULL, 0, load_newest, &j);
    return j.status == CDP_OK && !j.bad && j.found == j.last;
}

/* Every cut, some seeds each; returns how often something was lost. */
static uint32_t losses(uint32_t ranks, uint32_t keep, uint32_t seeds, int lies, int64_t *calls) {
    uint32_t lost = 0;
    bool ended = false;
    int64_t cut;
    for (cut = 1; !ended && cut < 2000; ++cut)
        for (uint32_t s = 0; s < seeds; ++s)
            if (!survives(ranks, cut, (uint64_t)cut * 977 + s * 7919 + keep, keep, lies, &ended)) {
                if (!lies && lost < 5)
                    printf(
                        "  lost: cut %d, seed %u, keep %u, %u ranks\n", (int)cut, s, keep, ranks);
                ++lost;
            }
    *calls = cut - 1;
    T(ended);
    return lost;
}

TEST(no_cut_loses_a_step_that_was_saved) {
    int64_t calls;
    const uint32_t usual = TEST_SLOW ? 1 : 4;
    for (uint32_t keep = TEST_SLOW; keep <= 2; ++keep) {
        T_EQ(0, losses(1, keep, test_more() && !TEST_SLOW ? 24 : usual, 0, &calls));
        T(calls > 100);
    }
}

TEST(nor_where_three_ranks_write) {
    int64_t calls;
    T_EQ(0, losses(3, 1, 1, 0, &calls));
    T(calls > 100);
}

/* The model finds what is lost where syncing does nothing. */
TEST(a_disk_that_lies_loses_steps) {
    int64_t calls;
    T(losses(1, 1, 1, 1, &calls) > 10);
    T(losses(1, 1, 1, 2, &calls) > 10);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"no_cut_loses_a_step_that_was_saved", no_cut_loses_a_step_that_was_saved, 120},
        {"nor_where_three_ranks_write", nor_where_three_ranks_write, 120},
        {"a_disk_that_lies_loses_steps", a_disk_that_lies_loses_steps, 120},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
