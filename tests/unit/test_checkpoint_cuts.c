/*  test_checkpoint_cuts.c - the power fails at each call that changes the disk: the newest step
    that was reported as saved, or a newer one, loads and verifies. Saves in the call, and in the
    background, where memory changes and disks fail while files are written */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_checkpoint.h"

#include "said.h"
#include "ranks.h"
#include "model_disk.h"

enum {
    ELEMENTS = 700
};

typedef enum way {
    IN_THE_CALL,
    COPIED, /* in the background: memory changes as soon as the call returns */
    LATE    /* after cdp_ckpt_staged() */
} way;

typedef struct job {
    cdp_os os;
    way way;
    uint64_t stage_bytes;
    uint64_t first, last; /* steps to save */
    uint64_t durable;     /* the newest that was reported */
    uint64_t found;       /* by a load */
    uint32_t keep;
    bool incremental, no_sync, no_rename;
    bool bad, stopped; /* what was loaded is not what was saved; a save failed */
    cdp_status status; /* of the load */
} job;

typedef struct state {
    float a[ELEMENTS], b[ELEMENTS];
    char note[32];
    cdp_item items[2];
    cdp_ckpt_blob blob;
} state;

static bool slow; /* "a" changes at every second step only */

static float value_at(uint64_t step, uint32_t i) {
    return (float)(step * 1000 + i);
}

static void state_open(state *s, uint64_t step) {
    memset(s, 0, sizeof *s);
    for (uint32_t i = 0; step && i < ELEMENTS; ++i) {
        s->a[i] = value_at(slow ? step / 2 + 1 : step, i);
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
        .late = j->way == LATE,
        .stage_bytes = j->stage_bytes,
        .incremental = j->incremental,
        .no_sync = j->no_sync,
        .no_rename = j->no_rename,
        .os = &j->os};
    OK(cdp_ckpt_create(&d, &c));
    return c;
}

/* As an optimizer does. */
static void state_change(state *s) {
    for (uint32_t i = 0; i < ELEMENTS; ++i)
        s->a[i] = s->b[i] = 0.5f;
    memset(s->note, '?', sizeof s->note);
}

/* Until a save in the background has ended: step by step where no thread writes. */
static cdp_status wait_for(cdp_group *g, cdp_ckpt *c) {
    cdp_status st;
    do
        st = cdp_ckpt_wait(c, cdp_group_desc_of(g)->no_thread ? 0 : CDP_NO_TIMEOUT);
    while (st == CDP_PENDING);
    return st;
}

static cdp_status save_one(cdp_group *g, const job *j, cdp_ckpt *c, state *s, uint64_t step) {
    if (j->way == IN_THE_CALL) return cdp_ckpt_save(c, step);
    cdp_status st = cdp_ckpt_save_async(c, step);
    if (st != CDP_OK) return st;
    if (j->way == LATE) OK(cdp_ckpt_staged(c));
    state_change(s);
    return wait_for(g, c);
}

static void save_steps(cdp_group *g, void *arg) {
    job *const j = (job *)arg;
    uint64_t step;
    for (step = j->first; step <= j->last; ++step) {
        state s;
        state_open(&s, step);
        cdp_ckpt *const c = ckpt_of(g, j, &s);
        const cdp_status st = save_one(g, j, c, &s, step);
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

static bool no_links, no_rename; /* of the disk */

static int32_t not_renamed(void *user, const char *from, const char *to) {
    (void)user;
    T(!from && !to); /* nothing tries it */
    return -ENOSYS;
}

/* Saves steps 1 to 4 until the power fails at call `cut`, and loads after that. True: nothing that
   was promised is lost. *ended: the power did not fail. */
static bool survives(
    uint32_t ranks, way kind, int64_t cut, uint64_t seed, uint32_t keep, int lies, bool *ended) {
    job j = {
        .os = *model_os(), .way = kind, .first = 1, .last = 4, .keep = keep, .incremental = slow};
    j.no_rename = no_rename;
    if (no_rename) j.os.files.rename_file = not_renamed;
    md_format();
    md.no_links = no_links;
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
static uint32_t losses(
    uint32_t ranks, way kind, uint32_t keep, uint32_t seeds, int lies, int64_t *calls) {
    uint32_t lost = 0;
    bool ended = false;
    int64_t cut;
    for (cut = 1; !ended && cut < 2000; ++cut)
        for (uint32_t s = 0; s < seeds; ++s)
            if (!survives(
                    ranks, kind, cut, (uint64_t)cut * 977 + s * 7919 + keep, keep, lies, &ended)) {
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
    /* threads that are watched do the same in each call */
    for (uint32_t keep = TEST_SLOW + TEST_THREADS_WATCHED; keep <= 2; ++keep) {
        T_EQ(0, losses(1, IN_THE_CALL, keep, test_more() && !TEST_SLOW ? 24 : usual, 0, &calls));
        T(calls > 100);
    }
}

TEST(nor_where_three_ranks_write) {
    int64_t calls;
    T_EQ(0, losses(3, IN_THE_CALL, 1, 1, 0, &calls));
    T(calls > 100);
}

TEST(nor_where_saves_go_on_in_the_background) {
    int64_t calls;
    T_EQ(0, losses(1, LATE, 1, 1, 0, &calls));
    T(calls > 100);
    if (TEST_SLOW) return;
    T_EQ(0, losses(2, COPIED, 1, 1, 0, &calls));
    T(calls > 100);
}

/* Step 3 has the file of "a" of step 2, which is removed after that. */
static void links(uint32_t ranks, way kind, bool copies) {
    int64_t calls;
    slow = true;
    no_links = copies;
    T_EQ(0, losses(ranks, kind, 1, 1, 0, &calls));
    T(calls > 100);
    slow = no_links = false;
}

TEST(nor_where_files_are_linked) {
    links(1, IN_THE_CALL, false);
    if (!TEST_SLOW) links(2, LATE, false);
}

TEST(nor_where_they_are_copied_instead) {
    links(1, IN_THE_CALL, true);
}

/* Only checkpoint.json, which is written last and removed first, says that a step is there. */
TEST(nor_where_nothing_can_be_renamed) {
    int64_t calls;
    no_rename = true;
    for (uint32_t keep = TEST_SLOW + TEST_THREADS_WATCHED; keep <= 2; ++keep) {
        T_EQ(0, losses(1, IN_THE_CALL, keep, TEST_SLOW || keep != 1 ? 1 : 4, 0, &calls));
        T(calls > 100);
    }
    if (!TEST_SLOW) T_EQ(0, losses(1, LATE, 1, 1, 0, &calls));
    if (!TEST_SLOW) links(1, IN_THE_CALL, false);
    no_rename = false;
}

static int32_t path_not_synced(void *user, const char *path) {
    return strcmp(path, "disk/run") == 0 ? -EIO : md_sync_folder(user, path);
}

/* The last call of a save fails: the step is whole, and another rank may have heard that it is. */
TEST(a_whole_step_stays_where_nothing_can_be_renamed) {
    job j = {.os = *model_os(), .first = 1, .last = 1, .no_rename = true};
    md_format();
    OK(md_make_folder(NULL, "disk"));
    j.os.files.rename_file = not_renamed;
    j.os.files.sync_folder = path_not_synced;
    run_ranks(1, NULL, 0, save_steps, &j);
    T(j.stopped && !j.durable);
    run_ranks(1, NULL, 0, load_newest, &j);
    T(j.status == CDP_OK && j.found == 1 && !j.bad);
}

/* What an earlier job did not sync is, before a step that has it is durable. */
TEST(a_linked_file_is_on_disk_whoever_wrote_it) {
    for (uint32_t seed = 1; seed <= 8; ++seed) {
        job j = {.os = *model_os(), .first = 2, .last = 2, .no_sync = true, .incremental = true};
        slow = true;
        md_format();
        OK(md_make_folder(NULL, "disk"));
        OK(md_sync_folder(NULL, "."));
        run_ranks(1, NULL, 0, save_steps, &j);
        j.no_sync = false;
        j.first = j.last = 3;
        run_ranks(1, NULL, 0, save_steps, &j);
        T_EQ(3, j.durable);
        md_crash(seed * 7919);
        run_ranks(1, NULL, 0, load_newest, &j);
        T(j.status == CDP_OK && j.found == 3 && !j.bad);
        slow = false;
    }
}

/* The model finds what is lost where syncing does nothing. */
TEST(a_disk_that_lies_loses_steps) {
    int64_t calls;
    if (!TEST_THREADS_WATCHED) T(losses(1, IN_THE_CALL, 1, 1, 1, &calls) > 10);
    T(losses(1, IN_THE_CALL, 1, 1, 2, &calls) > 10);
}

/* ---- in the background: a disk that stops and fails ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool closed;                     /* calls wait here */
    bool in_write;                   /* in the first write of a tensor; else in making a folder */
    int64_t calls, fail_at, stopped; /* that change something; how many wait */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

static void gate_pass(void) {
    pthread_mutex_lock(&gate.lock);
    ++gate.stopped;
    pthread_cond_broadcast(&gate.cond);
    while (gate.closed)
        pthread_cond_wait(&gate.cond, &gate.lock);
    --gate.stopped;
    pthread_mutex_unlock(&gate.lock);
}
static void gate_set(bool closed) {
    pthread_mutex_lock(&gate.lock);
    gate.closed = closed;
    pthread_cond_broadcast(&gate.cond);
    pthread_mutex_unlock(&gate.lock);
}
static void gate_reached(void) {
    pthread_mutex_lock(&gate.lock);
    while (!gate.stopped)
        pthread_cond_wait(&gate.cond, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static bool call_fails(void) {
    return __atomic_add_fetch(&gate.calls, 1, __ATOMIC_SEQ_CST) == gate.fail_at;
}
static int64_t gate_write(void *user, int32_t fd, uint64_t at, const void *from, uint64_t bytes) {
    if (call_fails()) return -ENOSPC;
    if (gate.in_write && bytes == ELEMENTS * sizeof(float)) gate_pass();
    return md_write(user, fd, at, from, bytes);
}
static int32_t gate_sync(void *user, int32_t fd) {
    return call_fails() ? -EIO : md_sync_file(user, fd);
}
static int32_t gate_rename(void *user, const char *from, const char *to) {
    return call_fails() ? -EIO : md_rename(user, from, to);
}
static int32_t gate_folder(void *user, const char *path) {
    if (!gate.in_write) gate_pass();
    return md_make_folder(user, path);
}

static job gate_job(way kind) {
    job j = {.os = *model_os(), .way = kind};
    j.os.files.write_at = gate_write;
    j.os.files.sync_file = gate_sync;
    j.os.files.rename_file = gate_rename;
    j.os.files.make_folder = gate_folder;
    md_format();
    OK(md_make_folder(NULL, "disk"));
    gate.closed = gate.in_write = false;
    gate.calls = gate.fail_at = 0;
    return j;
}

/* A rank alone: the writer stops before the first write, and memory changes after `staged`. What
   was there at the call, or before cdp_ckpt_staged(), is loaded. */
static void stopped_rank(cdp_group *g, void *arg) {
    job *const j = (job *)arg;
    const bool early = j->last == 99; /* the mistake: memory changes before cdp_ckpt_staged() */
    state s, want;
    uint64_t found;
    state_open(&s, 7);
    cdp_ckpt *const c = ckpt_of(g, j, &s);
    gate_set(true);
    OK(cdp_ckpt_save_async(c, 7));
    gate_reached();
    T_EQ(CDP_PENDING, cdp_ckpt_wait(c, 0));
    T_EQ(CDP_PENDING, cdp_ckpt_wait(c, 5));
    T_EQ(CDP_ERR_BUSY, cdp_ckpt_save_async(c, 8));
    T_TEXT("cdp_ckpt_save_async: an earlier save is still being written", cdp_last_error()->text);
    T_EQ(CDP_ERR_BUSY, cdp_ckpt_save(c, 8));
    T_EQ(CDP_ERR_BUSY, cdp_ckpt_load(c, NULL, 8, NULL));
    if (early) state_change(&s);
    OK(cdp_ckpt_staged(c));
    OK(cdp_ckpt_staged(c)); /* the second one has nothing to do */
    state_change(&s);
    gate_set(false);
    OK(cdp_ckpt_wait(c, CDP_NO_TIMEOUT));
    T_EQ(2 * sizeof s.a, cdp_ckpt_info_of(c).bytes_written);
    T_EQ(2 * sizeof s.a, cdp_ckpt_info_of(c).stage_bytes);
    T(cdp_ckpt_info_of(c).stall_ns > 0);
    OK(cdp_ckpt_wait(c, 0)); /* there is none */
    OK(cdp_ckpt_staged(c));
    OK(cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, &found));
    state_open(&want, 7);
    T_EQ(!early, memcmp(s.a, want.a, sizeof s.a) == 0 && memcmp(s.b, want.b, sizeof s.b) == 0);
    T(memcmp(s.note, want.note, want.blob.bytes) == 0);
    OK(cdp_ckpt_save_async(c, 9));
    cdp_status st;
    do
        st = cdp_ckpt_load(c, NULL, 9, NULL);
    while (st == CDP_ERR_BUSY);
    OK(st);
    T_EQ(2 * sizeof s.a, cdp_ckpt_info_of(c).total_bytes); /* of the load alone */
    T_EQ(0, cdp_ckpt_info_of(c).bytes_written);
    cdp_ckpt_destroy(c);
}

TEST(memory_may_change_while_it_is_written) {
    job j = gate_job(COPIED);
    run_counted(1, stopped_rank, &j);
    j = gate_job(LATE);
    run_counted(1, stopped_rank, &j);
    j = gate_job(LATE);
    j.last = 99;
    run_counted(1, stopped_rank, &j);
}

/* The disk stops in the first write of a tensor: that one is from memory of the program, so
   cdp_ckpt_staged() waits for it, and copies the rest. */
static void *open_gate(void *arg) {
    cdp__ck_save *const s = (cdp__ck_save *)arg; /* NULL: nothing is copied */
    bool copied = !s;
    gate_reached();
    while (!copied) { /* else the writer might be faster than the copy */
        cdp__lock_take(&s->lock);
        copied = s->stage_bytes != 0;
        cdp__lock_give(&s->lock);
        test_sleep_ms(1);
    }
    gate_set(false);
    return NULL;
}

static void halfway_rank(cdp_group *g, void *arg) {
    const job *const j = (const job *)arg;
    pthread_t opener;
    state s, want;
    state_open(&s, 7);
    state_open(&want, 7);
    cdp_ckpt *const c = ckpt_of(g, j, &s);
    OK(cdp_ckpt_save_async(c, 7));
    gate_reached();
    if (pthread_create(&opener, NULL, open_gate, j->stage_bytes ? NULL : c->saving) != 0) abort();
    OK(cdp_ckpt_staged(c));
    state_change(&s);
    pthread_join(opener, NULL);
    OK(cdp_ckpt_wait(c, CDP_NO_TIMEOUT));
    T_EQ(j->stage_bytes ? 0 : sizeof s.b, cdp_ckpt_info_of(c).stage_bytes);
    OK(cdp_ckpt_load(c, NULL, 7, NULL));
    T(memcmp(s.a, want.a, sizeof s.a) == 0 && memcmp(s.b, want.b, sizeof s.b) == 0);
    cdp_ckpt_destroy(c);
}

TEST(what_is_being_written_is_waited_for_and_the_rest_copied) {
    for (uint32_t i = 0; i < 2; ++i) {
        job j = gate_job(LATE);
        j.stage_bytes = i; /* no room: the rest is waited for, too */
        gate.in_write = true;
        gate_set(true);
        run_counted(1, halfway_rank, &j);
    }
}

/* Call number fail_at fails. How the save ended is the same on all ranks; those that do not wait
   learn it from the next call. */
static void failing_ranks(cdp_group *g, void *arg) {
    job *const j = (job *)arg;
    state s;
    state_open(&s, 5);
    cdp_ckpt *const c = ckpt_of(g, j, &s);
    cdp_status st = cdp_ckpt_save_async(c, 5);
    OK(st);
    if (j->first == 0) st = wait_for(g, c);
    if (j->first == 1) do
            st = cdp_ckpt_save_async(c, 6);
        while (st == CDP_ERR_BUSY); /* the next call says so, and begins nothing */
    if (j->first == 2) do
            st = cdp_ckpt_load(c, NULL, 5, NULL);
        while (st == CDP_ERR_BUSY);
    int32_t code = st, all[2] = {0, 0}, minus = -st;
    if (st != CDP_OK) T_EQ(CDP_ERR_IO, st);
    if (st != CDP_OK) { /* the rank whose disk it is, and no other one */
        T_TEXT("rank ", cdp_last_error()->text);
        T_EQ(atoi(cdp_last_error()->text + 5), cdp_last_error()->peer);
        T(strstr(cdp_last_error()->text + 5, "rank ") == NULL);
    }
    OK(cdp_allreduce(g, &code, &all[0], 1, CDP_DTYPE_I32, CDP_REDUCE_MIN));
    OK(cdp_allreduce(g, &minus, &all[1], 1, CDP_DTYPE_I32, CDP_REDUCE_MIN));
    T_EQ(all[0], -all[1]);
    if (cdp_rank(g) == 0) j->status = st;
    const cdp_status again = wait_for(g, c);
    if (st != CDP_OK || j->first != 1) OK(again); /* an error is told once; nothing was begun */
    cdp_ckpt_destroy(c);
    OK(cdp_group_status(g));
}

static uint32_t failures_of(uint32_t ranks, const cdp_group_desc *like, uint64_t learns) {
    uint32_t failures = 0;
    for (int64_t k = 1;; ++k) {
        job j = gate_job(k % 2 ? COPIED : LATE);
        j.first = learns;
        gate.fail_at = k;
        run_ranks(ranks, like, 0, failing_ranks, &j);
        if (j.status != CDP_OK) ++failures;
        if (!T(k < 200) || gate.calls < k || j.status == CDP_OK) break;
    }
    return failures;
}

TEST(a_disk_that_fails_in_the_background_fails_on_all_ranks) {
    for (uint64_t learns = 0; learns < 3; ++learns)
        T(failures_of(3, NULL, learns) > 8);
}

/* The same without threads: cdp_ckpt_wait(ckpt, 0) writes. */
TEST(in_frames) {
    const cdp_group_desc like = {.no_thread = true};
    int64_t calls = 0;
    job j = gate_job(LATE);
    j.first = j.last = 3;
    run_ranks(3, &like, 0, save_steps, &j);
    T_EQ(3, j.durable);
    calls = gate.calls;
    run_ranks(2, &like, 0, load_newest, &j);
    T(j.status == CDP_OK && j.found == 3 && !j.bad && calls > 10);
    T(failures_of(2, &like, 0) > 8);
}

/* A rank without memory for its copy would wait for frames of the others, which do not come. */
static __thread bool poor; /* this rank; there are no other threads */
static void *poor_alloc(void *user, uint64_t bytes) {
    return poor && bytes == ELEMENTS * sizeof(float) ? NULL : cdp_os_default()->alloc(user, bytes);
}

static void poor_ranks(cdp_group *g, void *arg) {
    const job *const j = (const job *)arg;
    state s, want;
    state_open(&s, 5);
    state_open(&want, 5);
    cdp_ckpt *const c = ckpt_of(g, j, &s);
    poor = j->last == 1 && cdp_rank(g) == 1;
    const cdp_status st = cdp_ckpt_save_async(c, 5);
    poor = false;
    T_EQ(j->status, st);
    if (st != CDP_OK) { /* the rank, and what to do */
        T_EQ(1, cdp_last_error()->peer);
        T(strstr(cdp_last_error()->text, "rank 1: cdp_ckpt_save_async: out of memory for a copy"));
    } else { /* all have written, before the call returned */
        T_EQ(0, cdp_ckpt_info_of(c).stage_bytes);
        state_change(&s);
        OK(cdp_ckpt_wait(c, 0));
        OK(cdp_ckpt_load(c, NULL, 5, NULL));
        T(memcmp(s.a, want.a, sizeof s.a) == 0 && memcmp(s.b, want.b, sizeof s.b) == 0);
    }
    OK(cdp_group_status(g));
    OK(cdp_barrier(g));
    cdp_ckpt_destroy(c);
}

TEST(in_frames_a_copy_that_does_not_fit_makes_no_rank_wait) {
    cdp_os os = *cdp_os_default();
    const cdp_group_desc like = {.no_thread = true, .os = &os, .timeout_ms = 3000};
    os.alloc = poor_alloc;
    for (uint32_t i = 0; i < 4; ++i) {
        job j = gate_job(i % 2 ? LATE : COPIED);
        j.last = i < 2; /* no memory; else: no room */
        j.stage_bytes = i < 2 ? 0 : 1000;
        j.status = i < 2 ? CDP_ERR_NOMEM : CDP_OK;
        run_ranks(2, &like, 0, poor_ranks, &j);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"no_cut_loses_a_step_that_was_saved", no_cut_loses_a_step_that_was_saved, 120},
        {"nor_where_three_ranks_write", nor_where_three_ranks_write, 120},
        {"nor_where_saves_go_on_in_the_background", nor_where_saves_go_on_in_the_background, 120},
        {"nor_where_files_are_linked", nor_where_files_are_linked, 120},
        {"nor_where_they_are_copied_instead", nor_where_they_are_copied_instead, 120},
        {"nor_where_nothing_can_be_renamed", nor_where_nothing_can_be_renamed, 240},
        {"a_whole_step_stays_where_nothing_can_be_renamed",
            a_whole_step_stays_where_nothing_can_be_renamed, 20},
        {"a_linked_file_is_on_disk_whoever_wrote_it", a_linked_file_is_on_disk_whoever_wrote_it,
            30},
        {"a_disk_that_lies_loses_steps", a_disk_that_lies_loses_steps, 120},
        {"memory_may_change_while_it_is_written", memory_may_change_while_it_is_written, 30},
        {"what_is_being_written_is_waited_for_and_the_rest_copied",
            what_is_being_written_is_waited_for_and_the_rest_copied, 30},
        {"a_disk_that_fails_in_the_background_fails_on_all_ranks",
            a_disk_that_fails_in_the_background_fails_on_all_ranks, 60},
        {"in_frames", in_frames, 60},
        {"in_frames_a_copy_that_does_not_fit_makes_no_rank_wait",
            in_frames_a_copy_that_does_not_fit_makes_no_rank_wait, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
