/* cdp_mem.h: recording that begins, ends or is replaced while calls are under way, in one thread: a
   lock that changes the recording just before it is taken stands for the other thread. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"
#include "viewer.h"

#define MIB (1ull << 20)

static cdp_os hooked; /* the default, with the functions below */
static cdp_mem *mem;
static fake device;
static cdp_mem_record_desc change; /* the recording that a hook begins; history OFF: ends it */
static int before_lock;            /* the n-th lock from now on comes after a change; 0: none */
static bool while_waiting;         /* a wait for events changes the recording, and ends */
static void *freed_by_hook;        /* a block that is freed after the change, or NULL */

static void hook(void) {
    OK(cdp_mem_record(mem, &change));
    OK(cdp_mem_free(mem, freed_by_hook));
    freed_by_hook = NULL;
}
static void hooked_lock(void *user, void *mutex) {
    if (before_lock && --before_lock == 0) hook();
    cdp_os_default()->threads.mutex_lock(user, mutex);
}
static void hooked_yield(void *user) {
    if (!while_waiting) cdp_os_default()->threads.yield(user);
    while_waiting = false;
    hook();
    for (uint32_t i = 0; i < FAKE_STREAMS; ++i)
        fake_pass(&device, i);
}

static cdp_mem_record_desc everything(void) {
    cdp_mem_record_desc d;
    memset(&d, 0, sizeof d);
    d.history = CDP_MEM_HISTORY_ALL;
    d.stacks = CDP_MEM_STACKS_FRAME_POINTER;
    d.max_entries = 500;
    return d;
}

static void begin(const cdp_mem_record_desc *record, uint64_t limit) {
    cdp_mem_source source;
    cdp_mem_desc d;
    hooked = *cdp_os_default();
    hooked.threads.mutex_lock = hooked_lock;
    hooked.threads.yield = hooked_yield;
    memset(&device, 0, sizeof device);
    memset(&d, 0, sizeof d);
    device.numbers = true;
    device.limit = limit;
    source = fake_source(&device);
    d.source = &source;
    d.os = &hooked;
    if (record) d.record = *record;
    before_lock = 0;
    while_waiting = false;
    OK(cdp_mem_create(&d, &mem));
}
static void end(void) {
    before_lock = 0;
    T_WELL(mem);
    T_EQ(0, cdp_mem_destroy(mem));
    T_EQ(0, device.held);
    T_EQ(0, device.events);
}

static void *take(uint64_t bytes, void *stream) {
    void *p = NULL;
    OK(cdp_mem_alloc_at(mem, NULL, bytes, stream, CDP_MEM_HERE, &p));
    return p;
}

/* Events lead to the blocks that are there, times are sane, and stacks are in the shot. */
static void replays(const char *what) {
    const cdp_mem_segment *segments;
    const cdp_mem_event *events;
    const uint64_t now = cdp__mem_wall_us(NULL);
    written w = {NULL, 0, 0, 0};
    cdp_mem_shot *s;
    viewer_file v;
    if (!OK(cdp_mem_snapshot(&mem, 1, false, &s))) return;
    const uint64_t n = cdp_mem_events(s, 0, &events);
    for (uint64_t i = 0; i < n; ++i) {
        const uint64_t at = events[i].time_us;
        test_check(at + 60000000 > now && at < now + 60000000, __FILE__, __LINE__,
            "%s: event %d is %lld us away from now", what, (int)i, (long long)(at - now));
        T(at >= mem->log.start_us);
        T(events[i].stack < s->stack_count);
    }
    for (uint32_t i = cdp_mem_segments(s, &segments); i > 0; --i)
        for (uint32_t j = 0; j < segments[i - 1].block_count; ++j)
            T(segments[i - 1].blocks[j].stack < s->stack_count);
    OK(cdp_mem_write(s, CDP_MEM_PICKLE, written_sink, &w));
    const char *wrong = viewer_open(&v, w.at, w.bytes);
    if (!wrong) wrong = viewer_replay(&v, 0, false);
    test_check(!wrong, __FILE__, __LINE__, "%s: %s", what, wrong ? wrong : "");
    viewer_close(&v);
    free(w.at);
    cdp_mem_shot_free(s);
}

/* ---- a change between the beginning of a call and its lock ---- */

static const char *const call_names[] = {
    "alloc", "free", "free later", "trim", "note", "pool", "forget_stream", "snapshot", "oom"};

/* One call of each kind, with one before that is recorded already, or not. */
static void call_of(uint32_t call, int lock, void *first) {
    const cdp_mem_pool_desc desc = {"pool", NULL, 4 * MIB, false, false, false};
    cdp_mem_pool *pool = NULL;
    cdp_mem_shot *s = NULL;
    void *p = NULL;
    if (call == 2) OK(cdp_mem_record_stream(mem, first, fake_handle(2)));
    if (call == 3 || call == 6) OK(cdp_mem_free(mem, first));
    before_lock = lock;
    switch (call) {
    case 0: p = take(5000, NULL); break;
    case 1:
    case 2: OK(cdp_mem_free(mem, first)); break;
    case 3: T(cdp_mem_trim(mem) > 0); break;
    case 4: cdp_mem_note(mem, first, "noted"); break;
    case 5: OK(cdp_mem_pool_create(mem, &desc, &pool)); break;
    case 6: OK(cdp_mem_forget_stream(mem, fake_handle(1))); break;
    case 7: OK(cdp_mem_snapshot(&mem, 1, false, &s)); break;
    default: T_EQ(CDP_ERR_NOMEM, cdp_mem_alloc(mem, 900 * MIB, NULL, &p));
    }
    before_lock = 0;
    cdp_mem_shot_free(s);
    replays(call_names[call]);
    OK(cdp_mem_free(mem, p));
    if (call == 0 || call == 4 || call == 5 || call >= 7) OK(cdp_mem_free(mem, first));
    replays(call_names[call]);
    OK(cdp_mem_pool_destroy(pool));
}

TEST(recording_changes_before_a_lock) {
    const cdp_mem_record_desc all = everything();
    cdp_mem_record_desc none = all;
    memset(&none, 0, sizeof none);
    for (uint32_t call = 0; call < sizeof call_names / sizeof *call_names; ++call)
        for (int lock = 1; lock <= 3; ++lock)
            for (int kind = 0; kind < 4; ++kind) { /* off or on, to off or on */
                begin(kind & 1 ? &all : NULL, 800 * MIB);
                change = kind & 2 ? all : none;
                call_of(call, lock, take(5000, fake_handle(1)));
                end();
            }
}

/* An alloc begins; another thread starts to record and frees a block; the alloc gets that block.
   The history has the free, so it must have the alloc. */
TEST(an_alloc_is_not_missed) {
    begin(NULL, 800 * MIB);
    change = everything();
    void *const p = take(5000, NULL);
    freed_by_hook = p;
    before_lock = 1;
    T(take(5000, NULL) == p);
    replays("an alloc");
    OK(cdp_mem_free(mem, p));
    end();
}

/* ---- a change while a request waits ---- */

TEST(recording_changes_while_a_request_waits) {
    const cdp_mem_record_desc all = everything();
    begin(&all, 40 * MIB);
    change = all;
    change.max_stacks = 1;      /* numbers of the old history mean nothing in the new one */
    for (int i = 0; i < 5; ++i) /* five sites */
        OK(cdp_mem_free(mem, take(512 + (uint64_t)i, NULL)));
    void *const p = take(30 * MIB, NULL);
    OK(cdp_mem_record_stream(mem, p, fake_handle(1)));
    fake_work(&device, 1);
    OK(cdp_mem_free(mem, p));
    while_waiting = true;
    void *const q = take(30 * MIB, NULL);
    T(!while_waiting);
    replays("a wait");
    const cdp_mem_segment *g;
    const cdp_mem_frame *frames;
    cdp_mem_shot *s;
    OK(cdp_mem_snapshot(&mem, 1, false, &s));
    for (uint32_t n = cdp_mem_segments(s, &g); n > 0; --n, ++g) /* a stack of the new history */
        T(g->blocks[0].address != (uint64_t)(uintptr_t)q
            || cdp_mem_frames(s, g->blocks[0].stack, &frames) > 0);
    cdp_mem_shot_free(s);
    OK(cdp_mem_free(mem, q));
    end();
}

/* ---- stacks ---- */

static const cdp_mem_event *last_of(const cdp_mem_shot *s, cdp_mem_action action) {
    const cdp_mem_event *events;
    uint64_t n = cdp_mem_events(s, 0, &events);
    while (n > 0 && events[n - 1].action != action)
        --n;
    T(n > 0);
    return n ? &events[n - 1] : NULL;
}

TEST(a_free_under_a_label_shows_the_allocation) {
    cdp_mem_record_desc d = everything();
    cdp_mem_shot *s;
    d.context = CDP_MEM_CONTEXT_ALLOC;
    begin(&d, 800 * MIB);
    void *const p = take(5000, NULL);
    cdp_mem_label("a phase");
    OK(cdp_mem_free(mem, p));
    cdp_mem_label(NULL);
    OK(cdp_mem_snapshot(&mem, 1, false, &s));
    T_EQ(last_of(s, CDP_MEM_ALLOC)->stack, last_of(s, CDP_MEM_FREE_COMPLETED)->stack);
    cdp_mem_shot_free(s);
    end();
}

static bool give_room(void *user, cdp_mem *m, const cdp_mem_oom *oom) {
    (void)m;
    (void)oom;
    device.limit = 800 * MIB;
    return *(bool *)user;
}

static __attribute__((noinline)) void *deep(int depth, uint64_t bytes) {
    void *volatile p = depth ? deep(depth - 1, bytes) : take(bytes, NULL);
    return p;
}

/* The second try has the stack of the first: site and label once, and 64 frames at most. */
TEST(a_retried_request_keeps_its_stack) {
    cdp_mem_record_desc d = everything();
    const cdp_mem_frame *frames;
    bool again = true;
    cdp_mem_shot *s;
    d.max_frames = 64;
    begin(&d, 10 * MIB);
    cdp_mem_on_oom(mem, give_room, &again);
    cdp_mem_label("a phase");
    void *const p = deep(80, 30 * MIB);
    cdp_mem_label(NULL);
    OK(cdp_mem_snapshot(&mem, 1, false, &s));
    const cdp_mem_event *const alloc = last_of(s, CDP_MEM_ALLOC);
    const uint32_t n = cdp_mem_frames(s, alloc->stack, &frames);
    T(n == 65 || n < 40); /* a compiler may leave frame pointers out */
    T_EQ(last_of(s, CDP_MEM_OOM)->stack, alloc->stack);
    T_TEXT("take", frames[0].name);
    T_TEXT("a phase", alloc->label);
    for (uint32_t i = 1; i < n; ++i)
        T(frames[i].line == 0);
    cdp_mem_shot_free(s);
    OK(cdp_mem_free(mem, p));
    end();
}

/* The history would have the alloc of a block and not its free. */
TEST(another_least_size_starts_a_new_history) {
    cdp_mem_record_desc d = everything();
    begin(&d, 800 * MIB);
    void *const p = take(5000, NULL);
    d.keep = true;
    d.min_bytes = 6000;
    OK(cdp_mem_record(mem, &d));
    OK(cdp_mem_free(mem, p));
    replays("a larger least size");
    end();
}

/* Ticks may stand for the clock: a time is never ahead of it, at most two microseconds behind, and
   later for each call of a thread, whichever allocator it calls. */
TEST(times_are_those_of_the_clock) {
    enum {
        PAIRS = 20000
    };
    static uint64_t before[PAIRS], after[PAIRS];
    cdp_mem_record_desc d = everything();
    const cdp_os *const os = cdp_os_default();
    cdp_mem *two[2];
    void *p;
    uint64_t last = 0;
    d.stacks = CDP_MEM_STACKS_SITE;
    d.max_entries = 3 * PAIRS;
    for (int i = 0; i < 2; ++i) {
        begin(&d, 1000 * MIB);
        two[i] = mem;
    }
    for (uint32_t i = 0; i < PAIRS; ++i) {
        before[i] = os->now_ns(os->user);
        OK(cdp_mem_alloc_at(two[i % 2], NULL, 512, NULL, CDP_MEM_HERE, &p));
        OK(cdp_mem_free(two[i % 2], p));
        after[i] = os->now_ns(os->user);
    }
    for (uint32_t i = 0, k[2] = {0, 0}; i < PAIRS; ++i) {
        const cdp__mem_ring *const r = &two[i % 2]->log.ring;
        uint32_t *const at = &k[i % 2];
        *at += r->at[*at].action == CDP_MEM_SEGMENT_ALLOC;
        const uint64_t alloc = r->at[*at].time_ns, freed = r->at[*at + 1].time_ns;
        if (!T(alloc > last && freed >= alloc)) break;
        if (!T(alloc + 2000 >= before[i] && freed <= after[i])) break;
        last = freed;
        *at += 3;
    }
    for (int i = 0; i < 2; ++i) {
        mem = two[i];
        T_EQ(0, cdp_mem_destroy(mem));
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"recording_changes_before_a_lock", recording_changes_before_a_lock, 30},
        {"an_alloc_is_not_missed", an_alloc_is_not_missed, 10},
        {"recording_changes_while_a_request_waits", recording_changes_while_a_request_waits, 10},
        {"a_free_under_a_label_shows_the_allocation", a_free_under_a_label_shows_the_allocation,
            10},
        {"a_retried_request_keeps_its_stack", a_retried_request_keeps_its_stack, 10},
        {"times_are_those_of_the_clock", times_are_those_of_the_clock, 30},
        {"another_least_size_starts_a_new_history", another_least_size_starts_a_new_history, 10}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
