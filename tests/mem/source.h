/*  source.h - a source of memory for tests: host memory, streams that are counters, failures on
    demand

    A stream is a number. fake_work() queues work on it, fake_pass() completes what is queued. An
    event has passed when its stream completed what was queued when the event was recorded. */
#ifndef SOURCE_INCLUDED
#define SOURCE_INCLUDED

#include "test.h"

#define FAKE_STREAMS 10u
/* The first address that is a number alone; higher where pointers have 64 bits. */
#define FAKE_FEW_ADDRESSES (sizeof(void *) < 8)
#define FAKE_ADDRESSES ((uintptr_t)1 << (FAKE_FEW_ADDRESSES ? 28 : 44))
#define FAKE_UNIT 0x200000u /* 2 MiB */
#define FAKE_UNITS 1900u    /* of 32 bits after FAKE_ADDRESSES */
#define FAKE_RANGES 128u
#define FAKE_PAGES 64u /* of a range at most, 2 MiB each */

typedef struct fake_stream {
    uint64_t queued, done;
    bool gone, captured;
} fake_stream;

typedef struct fake_event {
    uint32_t stream;
    uint64_t at;
} fake_event;

typedef struct fake_range { /* addresses whose pages can be mapped */
    char *at;
    uint64_t bytes;
    bool mapped[FAKE_PAGES];
} fake_range;

typedef struct fake {
    fake_stream streams[FAKE_STREAMS];
    uint64_t held, limit, calls, fail_at; /* the fail_at-th call from now on fails; 0: none */
    uint64_t reserves, releases;
    int64_t events;
    cdp_status fail_with;
    bool numbers; /* addresses are numbers, nothing is behind them */
    uint64_t next_number;
    bool taken[FAKE_UNITS]; /* by units of addresses, where these are few */
    fake_range ranges[FAKE_RANGES];
    uint64_t range_count, maps, unmaps;
    const char *fault; /* the first mistake of the allocator; NULL: none */
    int destroyed;
} fake;

TEST_API bool fake_fails(fake *f) {
    ++f->calls;
    if (!f->fail_at || --f->fail_at) return false;
    cdp_error_set(f->fail_with, -1, 0, "the driver failed on demand");
    return true;
}

/* Units of addresses for so many bytes, with one that stays free behind them. */
TEST_API size_t fake_units(uint64_t bytes) {
    return (size_t)((bytes + FAKE_UNIT - 1) / FAKE_UNIT + 1);
}

/* The next addresses: new ones, or, where there are few, those after the last ones that nobody
   holds. UINT64_MAX: there are none. */
TEST_API uint64_t fake_next_address(fake *f, uint64_t bytes) {
    const size_t units = fake_units(bytes), first = (size_t)(f->next_number / FAKE_UNIT);
    uint64_t number = f->next_number;
    for (size_t i = 0; FAKE_FEW_ADDRESSES; ++i) {
        const size_t at = (first + i) % FAKE_UNITS;
        if (i == FAKE_UNITS) return UINT64_MAX;
        if (at + units > FAKE_UNITS || memchr(f->taken + at, 1, units)) continue;
        memset(f->taken + at, 1, units);
        number = (uint64_t)at * FAKE_UNIT;
        break;
    }
    f->next_number = number + units * FAKE_UNIT;
    return number;
}

TEST_API cdp_status fake_reserve(void *user, uint64_t bytes, void **out) {
    fake *const f = (fake *)user;
    if (fake_fails(f)) return f->fail_with;
    if (f->limit && f->held + bytes > f->limit)
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "the device is full");
    if (f->numbers) {
        const uint64_t number = fake_next_address(f, bytes);
        if (number == UINT64_MAX)
            return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "no addresses are left");
        *out = (void *)(FAKE_ADDRESSES + (uintptr_t)number);
    } else if (posix_memalign(out, 512, bytes) != 0)
        return CDP_ERR_NOMEM;
    f->held += bytes;
    ++f->reserves;
    return CDP_OK;
}

TEST_API cdp_status fake_release(void *user, void *at, uint64_t bytes) {
    fake *const f = (fake *)user;
    if (fake_fails(f)) return f->fail_with == CDP_ERR_NOMEM ? CDP_ERR_IO : f->fail_with;
    if (!f->numbers)
        free(at);
    else if (FAKE_FEW_ADDRESSES)
        memset(f->taken + ((uintptr_t)at - FAKE_ADDRESSES) / FAKE_UNIT, 0, fake_units(bytes));
    f->held -= bytes;
    ++f->releases;
    return CDP_OK;
}

/* ---- ranges: pages that are mapped twice, used unmapped or left behind are faults ---- */

TEST_API void fake_blame(fake *f, const char *what) {
    if (!f->fault) f->fault = what;
}

TEST_API cdp_status fake_range_reserve(void *user, uint64_t least, void **at, uint64_t *bytes) {
    fake *const f = (fake *)user;
    fake_range *r = f->ranges;
    if (fake_fails(f)) return f->fail_with;
    while (r < f->ranges + FAKE_RANGES && r->bytes)
        ++r;
    if (least > (uint64_t)FAKE_PAGES * FAKE_UNIT || r == f->ranges + FAKE_RANGES)
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "no addresses are left");
    memset(r, 0, sizeof *r);
    r->bytes = least < 32u * FAKE_UNIT ? 32u * FAKE_UNIT : least;
    if (f->numbers) {
        const uint64_t number = fake_next_address(f, r->bytes);
        if (number != UINT64_MAX) r->at = (char *)(FAKE_ADDRESSES + (uintptr_t)number);
    } else if (posix_memalign((void **)&r->at, 512, (size_t)r->bytes) != 0)
        r->at = NULL;
    if (!r->at) {
        r->bytes = 0;
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "no addresses are left");
    }
    *at = r->at;
    *bytes = r->bytes;
    ++f->range_count;
    return CDP_OK;
}

TEST_API void fake_range_release(void *user, void *at, uint64_t bytes) {
    fake *const f = (fake *)user;
    fake_range *r = f->ranges;
    while (r < f->ranges + FAKE_RANGES && (!r->bytes || r->at != (char *)at))
        ++r;
    if (r == f->ranges + FAKE_RANGES || r->bytes != bytes) {
        fake_blame(f, "a range was released that is none");
        return;
    }
    if (memchr(r->mapped, 1, sizeof r->mapped)) fake_blame(f, "a range with pages was released");
    if (!f->numbers)
        free(at);
    else if (FAKE_FEW_ADDRESSES)
        memset(f->taken + ((uintptr_t)at - FAKE_ADDRESSES) / FAKE_UNIT, 0, fake_units(bytes));
    r->bytes = 0;
    --f->range_count;
}

/* The flags of these pages, which must all be `mapped`; NULL, and a fault: they are not. */
TEST_API bool *fake_pages(fake *f, const void *at, uint64_t bytes, bool mapped) {
    const fake_range *r = f->ranges;
    for (; r < f->ranges + FAKE_RANGES; ++r) {
        const uint64_t from = (uint64_t)((const char *)at - r->at);
        if (!r->bytes || (const char *)at < r->at || from + bytes > r->bytes) continue;
        if (from % FAKE_UNIT || bytes % FAKE_UNIT || !bytes) break;
        if (memchr(r->mapped + from / FAKE_UNIT, !mapped, (size_t)(bytes / FAKE_UNIT))) break;
        return (bool *)r->mapped + from / FAKE_UNIT;
    }
    fake_blame(f, mapped ? "pages were unmapped that are none" : "pages were mapped twice");
    return NULL;
}

TEST_API cdp_status fake_map(void *user, void *at, uint64_t bytes) {
    fake *const f = (fake *)user;
    bool *const pages = fake_pages(f, at, bytes, false);
    if (fake_fails(f) || !pages) return f->fail_with;
    if (f->limit && f->held + bytes > f->limit)
        return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "the device is full");
    memset(pages, 1, (size_t)(bytes / FAKE_UNIT));
    if (!f->numbers) memset(at, 0xcb, (size_t)bytes);
    f->held += bytes;
    ++f->reserves;
    ++f->maps;
    return CDP_OK;
}

TEST_API cdp_status fake_unmap(void *user, void *at, uint64_t bytes, void *stream) {
    fake *const f = (fake *)user;
    bool *const pages = fake_pages(f, at, bytes, true);
    fake_stream *const s = &f->streams[(uintptr_t)stream / 16u];
    if (fake_fails(f) || !pages) return f->fail_with == CDP_ERR_NOMEM ? CDP_ERR_IO : f->fail_with;
    s->done = s->queued; /* it waited */
    memset(pages, 0, (size_t)(bytes / FAKE_UNIT));
    if (!f->numbers) memset(at, 0xdd, (size_t)bytes);
    f->held -= bytes;
    ++f->releases;
    ++f->unmaps;
    return CDP_OK;
}

TEST_API cdp_status fake_info(void *user, uint64_t *free_bytes, uint64_t *total) {
    const fake *const f = (const fake *)user;
    *total = f->limit;
    *free_bytes = f->limit - f->held;
    return CDP_OK;
}

TEST_API cdp_status fake_event_create(void *user, void **event) {
    fake *const f = (fake *)user;
    if (fake_fails(f)) return f->fail_with;
    *event = calloc(1, sizeof(fake_event));
    ++f->events;
    return CDP_OK;
}

TEST_API void fake_event_destroy(void *user, void *event) {
    --((fake *)user)->events;
    free(event);
}

TEST_API uint32_t fake_number(void *stream) {
    return (uint32_t)(uintptr_t)stream / 16u;
}
TEST_API void *fake_handle(uint32_t number) {
    return (void *)(uintptr_t)(number * 16u);
}

TEST_API cdp_status fake_event_record(void *user, void *event, void *stream) {
    fake *const f = (fake *)user;
    fake_event *const e = (fake_event *)event;
    if (fake_fails(f)) return f->fail_with;
    if (f->streams[fake_number(stream)].gone)
        return cdp_error_set(CDP_ERR_IO, -1, 0, "cudaEventRecord: invalid resource handle");
    e->stream = fake_number(stream);
    e->at = f->streams[e->stream].queued;
    return CDP_OK;
}

TEST_API cdp_status fake_event_query(void *user, void *event) {
    fake *const f = (fake *)user;
    const fake_event *const e = (const fake_event *)event;
    if (fake_fails(f)) return f->fail_with == CDP_ERR_NOMEM ? CDP_ERR_IO : f->fail_with;
    return f->streams[e->stream].done >= e->at ? CDP_OK : CDP_PENDING;
}

TEST_API bool fake_capturing(void *user, void *stream) {
    return ((fake *)user)->streams[fake_number(stream)].captured;
}

TEST_API void fake_destroy(void *user) {
    ++((fake *)user)->destroyed;
}

TEST_API void fake_work(fake *f, uint32_t stream) {
    ++f->streams[stream].queued;
}
TEST_API void fake_pass(fake *f, uint32_t stream) {
    f->streams[stream].done = f->streams[stream].queued;
}

TEST_API cdp_mem_source fake_source(fake *f) {
    cdp_mem_source s;
    memset(&s, 0, sizeof s);
    s.user = f;
    s.name = "fake:0";
    s.reserve = fake_reserve;
    s.release = fake_release;
    s.info = fake_info;
    s.event_create = fake_event_create;
    s.event_destroy = fake_event_destroy;
    s.event_record = fake_event_record;
    s.event_query = fake_event_query;
    s.capturing = fake_capturing;
    s.page_bytes = FAKE_UNIT;
    s.range_reserve = fake_range_reserve;
    s.range_release = fake_range_release;
    s.map = fake_map;
    s.unmap = fake_unmap;
    s.destroy = fake_destroy;
    return s;
}

/* ---- bytes that a shot writes ---- */

typedef struct written {
    char *at;
    size_t bytes, room;
    uint64_t stop_at; /* the sink says no after so many bytes; 0: never */
} written;

TEST_API bool written_sink(void *user, const void *data, uint64_t bytes) {
    written *const w = (written *)user;
    if (w->stop_at && w->bytes + bytes > w->stop_at) return false;
    if (w->bytes + bytes + 1 > w->room) {
        w->room = 2 * (w->bytes + bytes + 1);
        w->at = (char *)realloc(w->at, w->room);
    }
    memcpy(w->at + w->bytes, data, bytes);
    w->bytes += bytes;
    w->at[w->bytes] = 0;
    return true;
}

/* ---- invariants of an allocator, looked up from the inside ---- */

typedef struct sums {
    uint64_t n[3], bytes[3];
} sums;

TEST_API void sums_add(sums *s, bool large, uint64_t bytes) {
    ++s->n[0];
    ++s->n[1 + large];
    s->bytes[0] += bytes;
    s->bytes[1 + large] += bytes;
}

TEST_API bool sums_equal(const sums *s, const cdp_mem_stat n[3], const cdp_mem_stat bytes[3]) {
    for (int i = 0; i < 3; ++i) {
        if (n
            && (s->n[i] != n[i].current || n[i].peak < n[i].current
                || n[i].allocated - n[i].freed != n[i].current))
            return false;
        if (s->bytes[i] != bytes[i].current || bytes[i].peak < bytes[i].current) return false;
        if (bytes[i].allocated - bytes[i].freed != bytes[i].current) return false;
    }
    return true;
}

TEST_API bool listed(const cdp__mem_part *p) {
    const cdp__mem_bins *const b = p->span->arena->bins[p->span->large];
    const uint32_t i = cdp__mem_bin_of(b->coarse, p->size);
    const cdp__mem_part *k;
    if (!(b->map[i / 64] >> i % 64 & 1) || !(b->top[i / 4096] >> i / 64 % 64 & 1)) return false;
    for (k = b->head[i]; k && k != p; k = k->bin_next) {
    }
    return k == p;
}

TEST_API uint64_t listed_count(const cdp_mem *m) {
    uint64_t n = 0;
    for (const cdp_mem_pool *pool = &m->base; pool; pool = pool->next)
        for (const cdp__mem_arena *a = pool->arenas; a; a = a->next)
            for (int large = 0; large < 2; ++large)
                for (uint32_t i = 0; a->bins[large] && i < a->bins[large]->count; ++i) {
                    const cdp__mem_part *p = a->bins[large]->head[i];
                    if ((p != NULL) != (a->bins[large]->map[i / 64] >> i % 64 & 1))
                        return UINT64_MAX;
                    for (; p; p = p->bin_next)
                        ++n;
                }
    return n;
}

/* Bytes and blocks of labels are those of the blocks that carry them. */
TEST_API bool labels_right(const cdp_mem *m) {
    const cdp__mem_labels *const l = &m->log.labels;
    uint64_t bytes = l->bytes, blocks = l->blocks, left = l->bytes;
    for (const cdp__mem_span *s = m->spans; s; s = s->next)
        for (const cdp__mem_part *p = s->first; p; p = p->next) {
            if (!p->label) continue;
            if (p->state == CDP_MEM_INACTIVE || l->at[p->label - 1].bytes < p->size) return false;
            bytes -= p->size;
            --blocks;
        }
    for (uint32_t i = 0; i < l->used; ++i) {
        if (l->at[i].peak < l->at[i].bytes) return false;
        left -= l->at[i].bytes;
    }
    return !bytes && !blocks && !left;
}

/* What is wrong with a segment that grows and its place in its range. */
TEST_API const char *grown_wrong(const cdp__mem_span *s) {
    const cdp__mem_range *const r = s->range;
    const uint64_t page = s->arena->pool->source.page_bytes;
    const cdp__mem_range *of = s->arena->ranges[s->large];
    while (of && of != r)
        of = of->next;
    if (!of) return "a segment is in a range of another arena";
    if ((s->at - r->at) % page || s->size % page) return "a segment is not made of pages";
    if (s->at < r->at || s->at + s->size > r->at + r->size) return "a segment leaves its range";
    if (s->below ? s->below->above != s : r->first != s) return "a range has its segments wrong";
    if (s->above && s->above->below != s) return "a range has its segments wrong";
    if (s->above && s->above->at <= s->at + s->size) return "two segments of a range touch";
    return s->grows ? NULL : "a segment in a range does not grow";
}

/* What is wrong with an allocator; NULL: nothing. */
TEST_API const char *mem_wrong(const cdp_mem *m) {
    sums allocated = {{0}, {0}}, active = {{0}, {0}}, split = {{0}, {0}}, held = {{0}, {0}},
         asked = {{0}, {0}};
    uint64_t idle = 0, live = 0, parts = 0;
    cdp_mem_stats stats;
    stats = cdp_mem_stats_of(m);
    for (const cdp__mem_span *s = m->spans; s; s = s->next) {
        uint64_t at = s->at;
        uint32_t busy = 0;
        sums_add(&held, s->large, s->size);
        if (s->range && grown_wrong(s)) return grown_wrong(s);
        for (const cdp__mem_part *p = s->first; p; p = p->next) {
            ++parts;
            if (!p->next && s->last != p) return "the last block is another one";
            if (p->at != at || p->span != s) return "blocks do not tile their segment";
            if (p->size % 512 || !p->size) return "a size is no multiple of 512";
            if (p->next && p->next->prev != p) return "neighbours disagree";
            at += p->size;
            if (p->state == CDP_MEM_INACTIVE) {
                ++idle;
                if (p->next && p->next->state == CDP_MEM_INACTIVE)
                    return "two free neighbours were not merged";
                if (!listed(p)) return "a free block is in no list";
                if (p->prev || p->next) sums_add(&split, s->large, p->size);
                continue;
            }
            ++busy;
            ++live;
            if (cdp__mem_table_find(&m->table, p->at) != p)
                return "a block in use is not in the table";
            sums_add(&active, s->large, p->size);
            sums_add(&asked, s->large, p->requested);
            if (p->requested > p->size || !p->requested)
                return "a block is smaller than what was asked for";
            if (p->state == CDP_MEM_ACTIVE) sums_add(&allocated, s->large, p->size);
            if ((p->state == CDP_MEM_PENDING) != (p->waits > 0))
                return "a block waits for nothing, or is not freed and waits";
        }
        if (at != s->at + s->size) return "blocks do not fill their segment";
        if (busy != s->busy) return "the count of busy blocks is wrong";
    }
    if (listed_count(m) != idle) return "a list has a block that is not free, or a bitmap is wrong";
    if (m->table.used != live) return "the table has other blocks";
    if (m->part_count != parts) return "the count of blocks is wrong";
    if (m->held != held.bytes[0]) return "the held bytes are wrong";
    if (!sums_equal(&allocated, stats.allocation, stats.allocated_bytes))
        return "statistics of allocations are wrong";
    if (!sums_equal(&active, stats.active, stats.active_bytes))
        return "statistics of active blocks are wrong";
    if (!sums_equal(&split, stats.inactive_split, stats.inactive_split_bytes))
        return "statistics of split blocks are wrong";
    if (!sums_equal(&held, stats.segment, stats.reserved_bytes))
        return "statistics of segments are wrong";
    if (!sums_equal(&asked, NULL, stats.requested_bytes))
        return "statistics of requested bytes are wrong";
    if (!labels_right(m)) return "the bytes of labels are wrong";
    return NULL;
}

#define T_WELL(mem) test__well((mem), __FILE__, __LINE__)
TEST_API bool test__well(const cdp_mem *m, const char *file, int line) {
    const char *const wrong = mem_wrong(m);
    return test_check(!wrong, file, line, "%s", wrong ? wrong : "");
}

#define OK(call) \
    test_check((call) == CDP_OK, __FILE__, __LINE__, "%s: %s", #call, cdp_last_error()->text)
#define FAILS(status, part, call)               \
    do {                                        \
        T_EQ((status), (call));                 \
        T_TEXT((part), cdp_last_error()->text); \
    } while (0)

#endif
