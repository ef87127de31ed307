/* cdp_mem.h under random operations: 8 streams, pools, captures, failures of the driver and of host
   memory.

       test_mem_random                                 a few seconds
       MEM_LONG=1 test_mem_random ten_million          10^7 operations

   A failure prints its seed and the number of the operation. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "source.h"
#include "viewer.h"

#define MIB (1ull << 20)
#define STREAMS 8u
#define LIVE_MAX 600u
#define WAITS_MAX 4000u

typedef struct live {
    char *at;
    uint64_t bytes, size;
    uint32_t stream, pool, uses; /* uses: bit i: stream i was recorded */
} live;

typedef struct wait_of { /* memory that was freed, and what it waits for */
    uint64_t at, size;
    uint64_t until[STREAMS];
    uint32_t uses;
} wait_of;

typedef struct run {
    uint64_t seed, random, operation, hash;
    fake f;
    cdp_os os;
    cdp_mem *mem;
    cdp_mem_pool *pools[4];
    live live[LIVE_MAX];
    wait_of waits[WAITS_MAX];
    uint32_t live_count, wait_count, labels;
    uint32_t *stream_of; /* by 2 MiB of addresses: stream + 1 */
    uint64_t stream_room;
    bool whole;         /* the history is complete */
    uint64_t host_fail; /* the n-th allocation of host memory from now on fails; 0: none */
    uint64_t host_calls;
    int64_t host_left;
    uint64_t now;
    uint64_t events, ooms, failures; /* what happened, so that a run that did nothing is seen */
} run;

static run *now_running;
static bool gone_wrong;

static void wrong(run *r, const char *what) {
    if (gone_wrong) return;
    gone_wrong = true;
    test_check(false, __FILE__, 0, "seed %llu, operation %llu: %s", (unsigned long long)r->seed,
        (unsigned long long)r->operation, what);
}

static uint64_t pick(run *r, uint64_t n) {
    return test_random(&r->random) % n;
}

/* ---- the system below: memory that may fail, a clock that each reading moves, streams that work
   while a thread waits ---- */

static void *host_alloc(void *user, uint64_t bytes) {
    run *const r = now_running;
    void *p;
    (void)user;
    ++r->host_calls;
    if (r->host_fail && --r->host_fail == 0) return NULL;
    if (posix_memalign(&p, 64, bytes ? bytes : 1) != 0) return NULL;
    ++r->host_left;
    return p;
}
static void host_free(void *user, void *p) {
    (void)user;
    if (p) --now_running->host_left;
    free(p);
}
static uint64_t host_now(void *user) {
    (void)user;
    return now_running->now += 1000;
}
static void host_yield(void *user) {
    run *const r = now_running;
    (void)user;
    r->now += 100000;
    const uint32_t s = (uint32_t)pick(r, STREAMS + 2);
    if (s < STREAMS && !r->f.streams[s].captured) fake_pass(&r->f, s);
}

/* ---- what must hold ---- */

static void check_all(run *r) {
    const char *const bad = mem_wrong(r->mem);
    if (bad) wrong(r, bad);
    if (r->f.fault) wrong(r, r->f.fault);
    if (r->mem->held != r->f.held) wrong(r, "the source has given other bytes than are held");
    for (uint32_t i = 0; i < r->live_count; ++i) {
        const live *const l = &r->live[i];
        const cdp__mem_part *const p =
            cdp__mem_table_find(&r->mem->table, (uint64_t)(uintptr_t)l->at);
        if (!p || p->state != CDP_MEM_ACTIVE || p->requested != l->bytes || p->size != l->size)
            wrong(r, "a live block is not as it was given out");
    }
}

static void check_file(run *r) {
    cdp_mem_shot *shot, *again;
    written a = {NULL, 0, 0, 0}, b = {NULL, 0, 0, 0};
    viewer_file v;
    const char *bad;
    if (cdp_mem_snapshot(&r->mem, 1, false, &shot) != CDP_OK) {
        if (cdp_last_error()->status != CDP_ERR_NOMEM) wrong(r, "no snapshot");
        return;
    }
    if (cdp_mem_write(shot, CDP_MEM_PICKLE, written_sink, &a) != CDP_OK) {
        if (cdp_last_error()->status != CDP_ERR_NOMEM) wrong(r, "no file");
        cdp_mem_shot_free(shot);
        free(a.at);
        return;
    }
    bad = viewer_open(&v, a.at, a.bytes);
    if (!bad && r->mem->log.desc.history == CDP_MEM_HISTORY_ALL && !r->mem->log.desc.min_bytes
        && r->whole)
        bad = viewer_replay(&v, 0, false);
    if (bad) wrong(r, bad);
    viewer_close(&v);
    if (cdp_mem_read(a.at, a.bytes, &r->os, &again) != CDP_OK) {
        if (cdp_last_error()->status != CDP_ERR_NOMEM) wrong(r, "the file cannot be read");
    } else {
        if (cdp_mem_write(again, CDP_MEM_PICKLE, written_sink, &b) == CDP_OK
            && (a.bytes != b.bytes || memcmp(a.at, b.at, a.bytes) != 0))
            wrong(r, "the file read and written is another one");
        cdp_mem_shot_free(again);
    }
    cdp_mem_shot_free(shot);
    free(a.at);
    free(b.at);
}

/* Memory that was given out: nothing may wait for it any more, and it stays with its stream. */
static void check_new(run *r, const live *l) {
    const uint64_t at = (uint64_t)(uintptr_t)l->at;
    const uint64_t slot = (at - FAKE_ADDRESSES) / (2 * MIB);
    for (uint32_t i = 0; i < r->wait_count;) {
        const wait_of *const w = &r->waits[i];
        bool over = true;
        for (uint32_t s = 0; s < STREAMS; ++s)
            if (w->uses >> s & 1 && r->f.streams[s].done < w->until[s]) over = false;
        if (!over && at < w->at + w->size && w->at < at + l->size)
            wrong(r, "a block was reused before a stream was done with it");
        if (over)
            r->waits[i] = r->waits[--r->wait_count];
        else
            ++i;
    }
    if (!r->f.numbers || FAKE_FEW_ADDRESSES) return; /* few addresses are given again, to others */
    if (slot >= r->stream_room) {
        const uint64_t room = 2 * slot + 1024;
        r->stream_of = (uint32_t *)realloc(r->stream_of, room * sizeof *r->stream_of);
        memset(r->stream_of + r->stream_room, 0, (room - r->stream_room) * sizeof *r->stream_of);
        r->stream_room = room;
    }
    if (r->stream_of[slot] && r->stream_of[slot] != l->stream + 1)
        wrong(r, "a block changed its stream");
    r->stream_of[slot] = l->stream + 1;
}

/* The best block for a small request by searching all; 0: there is none. The end of a segment that
   grows serves only if no other block does. */
static uint64_t oracle(const run *r, uint64_t size, uint32_t stream) {
    uint64_t best = UINT64_MAX, end = UINT64_MAX;
    for (const cdp__mem_span *s = r->mem->spans; s; s = s->next) {
        if (s->large || s->arena->pool != &r->mem->base || s->arena->stream != fake_handle(stream))
            continue;
        for (const cdp__mem_part *p = s->first; p; p = p->next)
            if (p->state == CDP_MEM_INACTIVE && p->size >= size) {
                uint64_t *const of = s->range && !p->next ? &end : &best;
                if (p->size < *of) *of = p->size;
            }
    }
    if (best == UINT64_MAX) best = end;
    return best == UINT64_MAX ? 0 : best;
}

static uint64_t size_at(const run *r, const void *at) {
    for (const cdp__mem_span *s = r->mem->spans; s; s = s->next)
        for (const cdp__mem_part *p = s->first; p; p = p->next)
            if (p->at == (uint64_t)(uintptr_t)at && p->state == CDP_MEM_INACTIVE) return p->size;
    return 0;
}

/* ---- operations ---- */

static uint64_t a_size(run *r) {
    switch (pick(r, 8)) {
    case 0: return 1 + pick(r, 2000);
    case 1: return MIB - 600 + pick(r, 1200);
    case 2: return 1 + pick(r, 3 * MIB);
    case 3: return pick(r, 20) ? 512 * (1 + pick(r, 8)) : 10 * MIB - 600 + pick(r, 1200);
    case 4: return pick(r, 10) ? 1 + pick(r, 100000) : 1 + pick(r, 30 * MIB);
    default: return 1 + pick(r, 300000);
    }
}

static void do_alloc(run *r) {
    live l;
    void *at = NULL;
    cdp_mem_pool *pool;
    uint64_t best = 0;
    cdp_status st;
    if (r->live_count == LIVE_MAX) return;
    memset(&l, 0, sizeof l);
    l.bytes = a_size(r);
    l.stream = (uint32_t)pick(r, STREAMS);
    l.pool = pick(r, 6) ? 0 : (uint32_t)pick(r, 4);
    pool = r->pools[l.pool];
    if (!pool) l.pool = 0;
    const bool ask = !pool && l.bytes <= MIB && r->operation % 16 == 0 && !r->mem->waiting
        && !r->mem->delayed && !r->f.fail_at && !r->host_fail;
    const uint64_t size = cdp__mem_round(&r->mem->sizes, l.bytes);
    if (ask) best = oracle(r, size, l.stream);
    const uint64_t segments = r->f.reserves;
    st = cdp_mem_alloc_at(
        r->mem, pool, l.bytes, fake_handle(l.stream), pick(r, 2) ? CDP_MEM_HERE : NULL, &at);
    r->hash = cdp__mem_mix(r->hash, (uint64_t)(uintptr_t)at);
    if (st != CDP_OK) {
        if (at) wrong(r, "a failing request has a result");
        ++r->ooms;
        if (!pool && r->f.streams[l.stream].captured && st != CDP_ERR_STATE)
            wrong(r, "a capture without a pool was served");
        return;
    }
    l.at = (char *)at;
    l.size = cdp_mem_usable(r->mem, at);
    if (l.size < l.bytes) wrong(r, "a block is too small");
    if (best && segments != r->f.reserves) wrong(r, "a segment was taken although a block fitted");
    if (best) { /* the rest lies behind it, free and not merged: both were the best block */
        const uint64_t rest = l.size < best ? size_at(r, l.at + l.size) : 0;
        if (l.size + rest != best) wrong(r, "it was not the best fit");
    }
    if (pool
        && cdp__mem_table_find(&r->mem->table, (uint64_t)(uintptr_t)at)->span->arena->pool != pool)
        wrong(r, "a block is of another pool");
    if (!r->f.numbers) memset(l.at, (int)(l.bytes * 7 + l.stream), l.bytes);
    if (!(pool && pool->fixed_bytes)) check_new(r, &l);
    r->live[r->live_count++] = l;
}

static bool untouched(const live *l) {
    const char c = (char)(l->bytes * 7 + l->stream);
    for (uint64_t i = 0; i < l->bytes; i += i + 64 < l->bytes ? 61 : 1)
        if (l->at[i] != c) return false;
    return true;
}

static void do_free(run *r) {
    if (!r->live_count) return;
    live *const l = &r->live[pick(r, r->live_count)];
    wait_of w;
    memset(&w, 0, sizeof w);
    if (!r->f.numbers && !untouched(l)) wrong(r, "the contents of a live block changed");
    w.at = (uint64_t)(uintptr_t)l->at;
    w.size = l->size;
    w.uses = l->uses;
    for (uint32_t s = 0; s < STREAMS; ++s)
        w.until[s] = r->f.streams[s].queued;
    if (cdp_mem_free(r->mem, l->at) != CDP_OK) {
        ++r->failures;
        if (!cdp_mem_usable(r->mem, l->at)) wrong(r, "a failing free took the block");
        return;
    }
    if (w.uses && r->wait_count < WAITS_MAX) r->waits[r->wait_count++] = w;
    if (cdp_mem_usable(r->mem, l->at)) wrong(r, "a freed block is still there");
    if (pick(r, 50) == 0 && cdp_mem_free(r->mem, l->at) != CDP_ERR_INVALID)
        wrong(r, "a double free was taken");
    *l = r->live[--r->live_count];
}

static void do_record(run *r) {
    if (!r->live_count) return;
    live *const l = &r->live[pick(r, r->live_count)];
    const uint32_t s = (uint32_t)pick(r, STREAMS);
    const bool fixed = l->pool && r->pools[l->pool] && r->pools[l->pool]->fixed_bytes;
    if (cdp_mem_record_stream(r->mem, l->at, fake_handle(s)) != CDP_OK) return;
    if (s != l->stream && !fixed) l->uses |= 1u << s;
}

static void do_pool(run *r) {
    const uint32_t i = 1 + (uint32_t)pick(r, 3);
    cdp_mem_pool_desc d;
    if (r->pools[i]) {
        if (cdp_mem_pool_destroy(r->pools[i]) == CDP_OK) r->pools[i] = NULL;
        return;
    }
    memset(&d, 0, sizeof d);
    d.label = "a pool";
    d.fixed_bytes = i == 1 ? 4 * MIB : 0;
    d.no_split = i == 2 && pick(r, 2);
    (void)!cdp_mem_pool_create(r->mem, &d, &r->pools[i]);
}

static void do_history(run *r) {
    cdp_mem_record_desc d;
    memset(&d, 0, sizeof d);
    d.history = (cdp_mem_history)pick(r, 3);
    d.context = (cdp_mem_context)pick(r, 4);
    d.stacks = (cdp_mem_stacks)(1 + pick(r, 2));
    d.max_entries = pick(r, 2) ? 3000 : 20000;
    d.max_stacks = pick(r, 2) ? 20 : 1000;
    d.min_bytes = pick(r, 4) ? 0 : 5000;
    d.keep = pick(r, 2);
    if (cdp_mem_record(r->mem, &d) == CDP_OK)
        r->whole = !d.keep; /* what was left out may be missing from a kept one */
}

static void do_seldom(run *r) {
    uint32_t s = (uint32_t)pick(r, STREAMS);
    switch (pick(r, 10)) {
    case 0: cdp_mem_trim(r->mem); break;
    case 1: cdp_mem_set_limit(r->mem, pick(r, 2) ? 0 : (40 + pick(r, 200)) * MIB); break;
    case 2: do_pool(r); break;
    case 3:
        r->f.streams[s].captured = s && !r->f.streams[s].captured;
        break; /* the default stream cannot be */
    case 4: do_history(r); break;
    case 5:
        if (cdp_mem_forget_stream(r->mem, fake_handle(s)) == CDP_OK)
            for (uint32_t i = 0; i < r->live_count; ++i)
                r->live[i].uses &= ~(1u << s);
        fake_pass(&r->f, s); /* its work is over, as the caller promises */
        break;
    case 6:
        r->f.fail_at = 1 + pick(r, 6);
        r->f.fail_with = pick(r, 2) ? CDP_ERR_NOMEM : CDP_ERR_IO;
        break;
    case 7: r->f.limit = (60 + pick(r, 300)) * MIB; break;
    case 8:
        cdp_mem_note(r->mem, r->live_count && pick(r, 2) ? r->live[0].at : NULL, "a note");
        break;
    default:
        (void)!cdp_mem_external(r->mem, pick(r, 2) ? "context" : "nccl", pick(r, 2) * 300 * MIB);
        break;
    }
}

static void do_one(run *r) {
    const uint64_t what = pick(r, 1000);
    const uint32_t s = (uint32_t)pick(r, STREAMS);
    if (what < 450)
        do_alloc(r);
    else if (what < 860)
        do_free(r);
    else if (what < 910)
        do_record(r);
    else if (what < 950)
        fake_work(&r->f, s);
    else if (what < 985)
        fake_pass(&r->f, s);
    else if (what < 992 && r->labels < 5) {
        cdp_mem_label(pick(r, 2) ? "step" : "layer");
        ++r->labels;
    } else if (what < 996 && r->labels) {
        cdp_mem_label(NULL);
        --r->labels;
    } else
        do_seldom(r);
}

/* ---- a run ---- */

static void begin(run *r, uint64_t seed, bool numbers) {
    cdp_mem_source source;
    cdp_mem_desc d;
    memset(r, 0, sizeof *r);
    now_running = r;
    gone_wrong = false;
    r->seed = r->random = seed;
    r->f.numbers = numbers;
    r->f.limit = 400 * MIB;
    r->os = *cdp_os_default();
    r->os.alloc = host_alloc;
    r->os.release = host_free;
    r->os.now_ns = host_now;
    r->os.threads.yield = host_yield;
    source = fake_source(&r->f);
    memset(&d, 0, sizeof d);
    d.source = &source;
    d.os = &r->os;
    d.timeout_ms = 20;
    d.logger.level = CDP_LOG_SILENT;
    d.coarse_bins = false;
    d.max_split_bytes = seed % 5 == 0 ? 24 * MIB : 0;
    d.no_cache = seed % 11 == 0;
    d.expandable = seed % 2 && !d.max_split_bytes && !d.no_cache;
    d.gc_threshold = seed % 3 == 0 ? 0.6 : 0;
    r->whole = true;
    if (cdp_mem_create(&d, &r->mem) != CDP_OK) wrong(r, "no allocator");
}

static void finish(run *r) {
    cdp_mem_stats s;
    r->f.fail_at = r->host_fail = 0;
    for (; r->labels; --r->labels)
        cdp_mem_label(NULL);
    for (uint32_t i = 0; i < STREAMS; ++i)
        r->f.streams[i].captured = false;
    while (r->live_count && !gone_wrong)
        do_free(r);
    for (uint32_t i = 0; i < STREAMS; ++i)
        fake_pass(&r->f, i);
    cdp_mem_trim(r->mem);
    for (uint32_t i = 1; i < 4; ++i)
        if (cdp_mem_pool_destroy(r->pools[i]) != CDP_OK) wrong(r, "a pool cannot be destroyed");
    cdp_mem_trim(r->mem);
    check_all(r);
    s = cdp_mem_stats_of(r->mem);
    if (r->mem->spans || s.reserved_bytes[0].current || r->f.held)
        wrong(r, "something is left when all is free");
    check_file(r);
    if (cdp_mem_destroy(r->mem) != 0) wrong(r, "blocks are left");
    if (r->f.range_count) wrong(r, "ranges of addresses are left");
    if (r->f.fault) wrong(r, r->f.fault);
    if (r->f.events) wrong(r, "events are left");
    if (r->host_left) wrong(r, "host memory is left");
    free(r->stream_of);
}

static uint64_t one(uint64_t seed, uint64_t operations, bool numbers, uint64_t check_every) {
    static run r;
    begin(&r, seed, numbers);
    for (r.operation = 1; r.operation <= operations && !gone_wrong; ++r.operation) {
        do_one(&r);
        if (r.operation % check_every == 0) check_all(&r);
        if (r.operation % (check_every * 64) == 0 && !r.f.fail_at) check_file(&r);
    }
    finish(&r);
    T(operations < 1000 || seed % 11 == 0 || (r.ooms && r.f.releases));
    T(operations < 1000 || seed % 2 == 0 || !r.f.numbers || seed % 11 == 0 || seed % 5 == 0
        || (r.f.maps && r.f.unmaps));
    return r.hash;
}

static uint64_t chosen_seed, chosen_count;

TEST(random_operations) {
    if (chosen_seed) {
        one(chosen_seed, chosen_count, true, 64);
        return;
    }
    for (uint64_t seed = 1; seed <= (TEST_SLOW ? 3 : 20) && !gone_wrong; ++seed)
        one(seed, 12000, true, 64);
}

TEST(random_operations_with_contents) {
    for (uint64_t seed = 101; seed <= 102 && !gone_wrong; ++seed)
        one(seed, TEST_SLOW ? 1000 : 4000, false, 64);
}

TEST(equal_seeds_give_equal_offsets) {
    T(one(7, 5000, true, 1000) == one(7, 5000, true, 100));
    T(one(7, 5000, true, 1000) != one(8, 5000, true, 1000));
}

/* The n-th allocation of host memory fails, for every n until a run needs no more. */
TEST(host_memory_fails_everywhere) {
    static run r;
    uint64_t n;
    for (n = 1; n < 400 && !gone_wrong; ++n) {
        uint64_t before;
        begin(&r, 1000 + n % 7, true);
        if (gone_wrong) return;
        before = r.host_calls;
        r.host_fail = n;
        for (r.operation = 1; r.operation <= 400 && !gone_wrong; ++r.operation) {
            do_one(&r);
            if (r.operation == 100) do_history(&r);
            if (r.operation == 200) check_file(&r);
        }
        check_all(&r);
        const bool reached = r.host_fail == 0;
        T(before > 0);
        finish(&r);
        if (!reached) break;
    }
    T(n > 20);
}

TEST(ten_million_operations) {
    uint64_t i;
    if (!getenv("MEM_LONG")) {
        test_skip("10^7 operations take a minute; set MEM_LONG=1, as .ci/run does");
        return;
    }
    for (i = 0; i < 20 && !gone_wrong; ++i)
        one(10000 + i, 500000, true, 4096);
    printf("  %llu operations\n", (unsigned long long)(i * 500000));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"random_operations", random_operations, 120},
        {"random_operations_with_contents", random_operations_with_contents, 60},
        {"equal_seeds_give_equal_offsets", equal_seeds_give_equal_offsets, 60},
        {"host_memory_fails_everywhere", host_memory_fails_everywhere, 60},
        {"ten_million_operations", ten_million_operations, 900}};
    if (argc >= 3 && strcmp(argv[1], "--seed") == 0) {
        chosen_seed = strtoull(argv[2], NULL, 10);
        chosen_count = argc > 3 ? strtoull(argv[3], NULL, 10) : 12000;
        return test_main(1, argv, cases, 1);
    }
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
