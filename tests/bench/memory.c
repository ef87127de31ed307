/*  memory.c - what cdp_mem.h costs, beside other allocators, in one run:
        bash tests/bench/memory.sh

    Times are processor time of one thread; each is the best of several rounds. mimalloc and
    jemalloc are loaded where they are installed. They hand out host memory, so compare the time of
    a pair and nothing else. The model has PyTorch's structures (memory_model.cc) and, like this
    allocator here, nothing behind its addresses. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "test.h"
#include "memory_traces.h"

#define MIB (1ull << 20)
#define LIVE 1000

typedef struct subject {
    const char *name;
    void *(*alloc)(uint64_t bytes);
    void (*free)(void *p);
} subject;

/* ---- the allocator, over addresses that are numbers ---- */

static uint64_t next_number, reserved;
static cdp_status number_reserve(void *user, uint64_t bytes, void **out) {
    (void)user;
    *out = (void *)(uintptr_t)(0x100000000000u + next_number);
    next_number += bytes + 2 * MIB;
    reserved += bytes;
    return CDP_OK;
}
static cdp_status number_release(void *user, void *at, uint64_t bytes) {
    (void)user;
    (void)at;
    reserved -= bytes;
    return CDP_OK;
}

static cdp_mem *mem;
static void mem_begin(
    const char *settings, bool coarse, bool no_cache, const cdp_mem_record_desc *record) {
    uint32_t divisions[16];
    cdp_mem_source source;
    cdp_mem_desc d;
    memset(&source, 0, sizeof source);
    memset(&d, 0, sizeof d);
    source.name = "numbers";
    source.reserve = number_reserve;
    source.release = number_release;
    d.source = &source;
    d.coarse_bins = coarse;
    d.no_cache = no_cache;
    if (record) d.record = *record;
    if (cdp_mem_settings_read(settings, divisions, &d) != CDP_OK
        || cdp_mem_create(&d, &mem) != CDP_OK)
        exit(cdp_print_error(stderr));
}
static void *mem_alloc(uint64_t bytes) {
    void *p;
    if (cdp_mem_alloc(mem, bytes, NULL, &p) != CDP_OK) exit(cdp_print_error(stderr));
    return p;
}
static void mem_free(void *p) {
    if (cdp_mem_free(mem, p) != CDP_OK) exit(cdp_print_error(stderr));
}

/* ---- others ---- */

#ifdef MODEL
void *model_alloc(uint64_t bytes);
void model_free(void *p);
uint64_t model_segments(void);
#endif
static void *glibc_alloc(uint64_t bytes) {
    return malloc(bytes);
}
static void glibc_free(void *p) {
    free(p);
}

static bool load(
    subject *s, const char *name, const char *file, const char *alloc, const char *give_back) {
    void *const lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void *const a = lib ? dlsym(lib, alloc) : NULL, *const f = lib ? dlsym(lib, give_back) : NULL;
    if (!a || !f) {
        printf("SKIP %s: %s\n", name, lib ? "no such functions" : dlerror());
        return false;
    }
    s->name = name;
    memcpy(&s->alloc, &a, sizeof a);
    memcpy(&s->free, &f, sizeof f);
    return true;
}

/* ---- what is measured ---- */

static double pair_ns(const subject *s, uint64_t bytes) {
    double best = 1e9;
    for (int round = 0; round < 7; ++round) {
        const uint64_t from = test_cpu_ns();
        for (int i = 0; i < 200000; ++i) {
            void *volatile p = s->alloc(bytes);
            s->free(p);
        }
        const double ns = (double)(test_cpu_ns() - from) / 200000;
        if (ns < best) best = ns;
    }
    return best;
}

static double random_ns(const subject *s, uint32_t live_count) {
    static void *live[10000];
    static uint32_t which[65536], size[65536];
    uint64_t random = 3;
    double best = 1e9;
    for (uint32_t i = 0; i < 65536; ++i) {
        which[i] = (uint32_t)(test_random(&random) % live_count);
        size[i] = 1 + (uint32_t)(test_random(&random) % 262144);
    }
    for (uint32_t i = 0; i < live_count; ++i)
        live[i] = s->alloc(size[i]);
    for (int round = 0; round < 9; ++round) {
        const uint64_t from = test_cpu_ns();
        for (uint32_t i = 0; i < 65536; ++i) {
            s->free(live[which[i]]);
            live[which[i]] = s->alloc(size[i]);
        }
        const double ns = (double)(test_cpu_ns() - from) / 65536;
        if (round && ns < best) best = ns;
    }
    for (uint32_t i = 0; i < live_count; ++i)
        s->free(live[i]);
    return best;
}

typedef struct figures {
    double pair, random; /* of 512 bytes; with 1,000 live */
} figures;

static figures row(const subject *s) {
    const figures f = {pair_ns(s, 512), random_ns(s, LIVE)};
    printf("%-28s %8.1f %8.1f %9.1f %9.1f %9.1f\n", s->name, f.pair, pair_ns(s, 65536),
        random_ns(s, 100), f.random, random_ns(s, 10000));
    fflush(stdout);
    return f;
}

static const subject ours = {"cdp_mem", mem_alloc, mem_free};

static void *mem_alloc_here(uint64_t bytes) {
    void *p;
    if (cdp_mem_alloc_at(mem, NULL, bytes, NULL, CDP_MEM_HERE, &p) != CDP_OK)
        exit(cdp_print_error(stderr));
    return p;
}
static const subject ours_here = {"cdp_mem, with sites", mem_alloc_here, mem_free};

static void variants(void) {
    static const struct {
        const char *name, *settings;
        bool coarse, no_cache;
    } rows[] = {{"exact bins (default)", "", false, false}, {"coarse bins", "", true, false},
        {"exact, sizes in 4 parts", "roundup_power2_divisions:4", false, false},
        {"exact, split below 32 MiB", "max_split_size_mb:32", false, false},
        {"no cache", "", false, true}};
    printf("\n%-28s %8s %8s %9s %9s %9s   (ns for a pair; random: up to 256 KiB)\n", "variant",
        "512 B", "64 KiB", "live 100", "1,000", "10,000");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        subject s = ours;
        cdp_mem_stats stats;
        s.name = rows[i].name;
        mem_begin(rows[i].settings, rows[i].coarse, rows[i].no_cache, NULL);
        (void)row(&s);
        stats = cdp_mem_stats_of(mem);
        printf("%-28s %llu segments taken, %.0f MiB at most for %.0f MiB asked at most\n", "",
            (unsigned long long)stats.segment[0].allocated,
            (double)stats.reserved_bytes[0].peak / (double)MIB,
            (double)stats.requested_bytes[0].peak / (double)MIB);
        cdp_mem_destroy(mem);
    }
}

/* So many frames lie above the call. */
static __attribute__((noinline)) double deep_pair(int depth, uint64_t bytes) {
    volatile double ns = depth > 0 ? deep_pair(depth - 1, bytes) : pair_ns(&ours, bytes);
    return ns;
}

static int ratio_order(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle_of_nine(double ratio[9]) {
    qsort(ratio, 9, sizeof *ratio, ratio_order);
    return ratio[4];
}

/* A pair with a site, beside one that is not recorded, in turns; the median of the ratios. */
static double site_ratio(void) {
    cdp_mem_record_desc d;
    double ratio[9];
    memset(&d, 0, sizeof d);
    d.history = CDP_MEM_HISTORY_ALL;
    d.stacks = CDP_MEM_STACKS_SITE;
    for (int i = 0; i < 9; ++i) {
        double ns[2];
        for (int recorded = 0; recorded < 2; ++recorded) {
            mem_begin("", false, false, recorded ? &d : NULL);
            ns[recorded] = pair_ns(&ours_here, 512);
            cdp_mem_destroy(mem);
        }
        ratio[i] = ns[1] / ns[0];
    }
    return middle_of_nine(ratio);
}

static double recorded_ns(cdp_mem_history history, cdp_mem_context context, cdp_mem_stacks stacks) {
    cdp_mem_record_desc d;
    double ns;
    memset(&d, 0, sizeof d);
    d.history = history;
    d.context = context;
    d.stacks = stacks;
    d.max_frames = 16;
    mem_begin("", false, false, history ? &d : NULL);
    ns = deep_pair(20, 512);
    cdp_mem_destroy(mem);
    return ns;
}

static void recording(void) {
    const double none = recorded_ns(CDP_MEM_HISTORY_OFF, CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    const double events =
        recorded_ns(CDP_MEM_HISTORY_ALL, CDP_MEM_CONTEXT_NONE, CDP_MEM_STACKS_SITE);
    const double frames =
        recorded_ns(CDP_MEM_HISTORY_ALL, CDP_MEM_CONTEXT_ALL, CDP_MEM_STACKS_FRAME_POINTER);
    const double unwound =
        recorded_ns(CDP_MEM_HISTORY_ALL, CDP_MEM_CONTEXT_ALL, CDP_MEM_STACKS_BACKTRACE);
    printf("\nrecording: a pair has three events, and with stacks two stacks of 16 frames\n");
    printf("off                          %8.1f ns a pair\n", none);
    printf(
        "events without stacks        %8.1f ns more for an event (goal 40)\n", (events - none) / 3);
    printf("stacks by frame pointers     %8.1f ns more for an event (goal 100)\n",
        (frames - none) / 3);
    printf("source lines alone           %8.2f times a pair without recording (goal 2)\n",
        site_ratio());
    printf("stacks by backtrace          %8.1f ns more for an event (goal 2600)\n",
        (unwound - none) / 3);
}

/* Two calls with different code behind them, so two return addresses: as many stacks as paths. */
static __attribute__((noinline)) void *leaf(int depth, uint64_t path, uint64_t bytes) {
    static volatile int odd, even;
    void *volatile p;
    if (!depth) return mem_alloc(bytes);
    if (path & 1) {
        p = leaf(depth - 1, path >> 1, bytes);
        odd = depth;
    } else {
        p = leaf(depth - 1, path >> 1, bytes);
        even = depth;
    }
    return p;
}

static void dumps(void) {
    cdp_mem_record_desc d;
    cdp_mem_stats stats;
    cdp_mem_shot *shot;
    double held = 1e9, whole = 1e9;
    memset(&d, 0, sizeof d);
    d.history = CDP_MEM_HISTORY_ALL;
    d.context = CDP_MEM_CONTEXT_ALLOC;
    d.stacks = CDP_MEM_STACKS_FRAME_POINTER;
    d.max_frames = 16;
    mem_begin("", false, false, &d);
    for (int i = 0; i < 40000; ++i)
        mem_free(leaf(12, (uint64_t)i % 2000, 1000 + (uint64_t)i % 2000 * 512));
    for (int round = 0; round < 7; ++round) {
        cdp__mem_raw raw;
        uint64_t from = test_cpu_ns();
        if (cdp__mem_raw_take(mem, false, &raw) != CDP_OK) exit(cdp_print_error(stderr));
        cdp_lock_acquire(&mem->lock);
        from = test_cpu_ns();
        cdp__mem_raw_copy(mem, &raw); /* what happens under the lock */
        const double locked = (double)(test_cpu_ns() - from) / 1e6;
        cdp_lock_release(&mem->lock);
        cdp__free(mem->os, raw.memory);
        from = test_cpu_ns();
        if (cdp_mem_dump(mem, "/tmp/cdp_bench_memory.pickle") != CDP_OK)
            exit(cdp_print_error(stderr));
        const double all = (double)(test_cpu_ns() - from) / 1e6;
        if (locked < held) held = locked;
        if (all < whole) whole = all;
    }
    stats = cdp_mem_stats_of(mem);
    if (cdp_mem_snapshot(&mem, 1, false, &shot) != CDP_OK) exit(cdp_print_error(stderr));
    if (shot->stack_count < 2000) {
        printf("not ok: only %llu stacks\n", (unsigned long long)shot->stack_count);
        exit(1);
    }
    FILE *const f = fopen("/tmp/cdp_bench_memory.pickle", "rb");
    fseek(f, 0, SEEK_END);
    printf("\nsnapshot of %llu events, %llu stacks: lock held %.1f ms (goal 5), whole dump %.1f ms "
           "(goal 50), file %.1f MB\n",
        (unsigned long long)cdp_mem_events(shot, 0, NULL), (unsigned long long)shot->stack_count,
        held, whole, (double)ftell(f) / 1e6);
    fclose(f);
    remove("/tmp/cdp_bench_memory.pickle");
    cdp_mem_shot_free(shot);
    cdp_mem_destroy(mem);
}

/* ---- fragmentation: traces on devices of any size, with and without segments that grow ---- */

typedef struct device {
    uint64_t room, used, peak, next;
} device;

static cdp_status device_take(device *d, uint64_t bytes) {
    if (bytes > d->room || d->used > d->room - bytes) return CDP_ERR_NOMEM;
    d->used += bytes;
    if (d->used > d->peak) d->peak = d->used;
    return CDP_OK;
}
static cdp_status device_range(void *user, uint64_t least, void **at, uint64_t *bytes) {
    device *const d = (device *)user;
    *bytes = least > 1ull << 40 ? least : 1ull << 40;
    *at = (void *)(uintptr_t)(0x100000000000u + d->next);
    d->next += *bytes;
    return CDP_OK;
}
static void device_range_release(void *user, void *at, uint64_t bytes) {
    (void)user;
    (void)at;
    (void)bytes;
}
static cdp_status device_map(void *user, void *at, uint64_t bytes) {
    (void)at;
    return device_take((device *)user, bytes);
}
static cdp_status device_unmap(void *user, void *at, uint64_t bytes, void *stream) {
    (void)at;
    (void)stream;
    ((device *)user)->used -= bytes;
    return CDP_OK;
}
static cdp_status device_reserve(void *user, uint64_t bytes, void **out) {
    device *const d = (device *)user;
    if (device_take(d, bytes) != CDP_OK) return CDP_ERR_NOMEM;
    *out = (void *)(uintptr_t)(0x100000000000u + d->next);
    d->next += bytes + 2 * MIB;
    return CDP_OK;
}
static cdp_status device_release(void *user, void *at, uint64_t bytes) {
    return device_unmap(user, at, bytes, NULL);
}

/* Runs a trace; false: the device is too small. *peak: what it held at most. */
static bool trace_runs(const trace *t, uint64_t room, bool expandable, uint64_t *peak) {
    device d = {room, 0, 0, 0};
    cdp_mem_source source;
    cdp_mem_desc desc;
    void **const at = (void **)calloc(t->ids, sizeof *at);
    cdp_status st = CDP_OK;
    memset(&source, 0, sizeof source);
    memset(&desc, 0, sizeof desc);
    source.user = &d;
    source.name = "a device";
    source.reserve = device_reserve;
    source.release = device_release;
    source.page_bytes = 2 * MIB;
    source.range_reserve = device_range;
    source.range_release = device_range_release;
    source.map = device_map;
    source.unmap = device_unmap;
    desc.source = &source;
    desc.expandable = expandable;
    desc.logger.level = CDP_LOG_SILENT;
    if (!at || cdp_mem_create(&desc, &mem) != CDP_OK) exit(cdp_print_error(stderr));
    for (uint64_t i = 0; i < t->count && st == CDP_OK; ++i) {
        const trace_op *const o = &t->ops[i];
        void *const stream = (void *)(uintptr_t)o->stream;
        if (o->bytes)
            st = cdp_mem_alloc(mem, o->bytes, stream, &at[o->id]);
        else
            mem_free(at[o->id]);
    }
    cdp_mem_destroy(mem);
    free(at);
    *peak = d.peak;
    return st == CDP_OK;
}

/* What a trace reserves, and the smallest device in which it runs, by the ideal peak. */
static void trace_figures(const trace *t, bool expandable, double out[2]) {
    const uint64_t ideal = trace_ideal(t);
    uint64_t small_one = ideal, large_one = 0, peak;
    (void)trace_runs(t, UINT64_MAX, expandable, &large_one);
    out[0] = (double)large_one / (double)ideal;
    while (large_one - small_one > ideal / 200) {
        const uint64_t room = small_one + (large_one - small_one) / 2;
        if (trace_runs(t, room, expandable, &peak))
            large_one = room;
        else
            small_one = room;
    }
    out[1] = (double)large_one / (double)ideal;
}

static void fragmentation(void) {
    static const struct {
        const char *name;
        void (*make)(trace *t);
    } all[] = {{"training, any length", trace_of_training}, {"n^2 attention", trace_of_attention},
        {"checkpointing", trace_of_checkpointing}, {"generation", trace_of_generation},
        {"serving", trace_of_serving}, {"images of any size", trace_of_images},
        {"shards, two streams", trace_of_shards}, {"chance", trace_of_chance}};
    const uint32_t count = sizeof all / sizeof *all;
    double sum[4] = {0};
    printf("\n%-28s %9s %9s %9s %9s   (by the ideal peak: reserved; smallest device that runs)\n",
        "trace", "ordinary", "device", "growing", "device");
    for (uint32_t i = 0; i < count; ++i) {
        trace t;
        double f[4];
        memset(&t, 0, sizeof t);
        t.random = i + 1;
        all[i].make(&t);
        trace_figures(&t, false, f);
        trace_figures(&t, true, f + 2);
        printf("%-28s %9.3f %9.3f %9.3f %9.3f\n", all[i].name, f[0], f[1], f[2], f[3]);
        fflush(stdout);
        for (int k = 0; k < 4; ++k)
            sum[k] += f[k] / count;
        free(t.ops);
    }
    printf("%-28s %9.3f %9.3f %9.3f %9.3f   (goal of growing: 1.05, 1.03)\n", "mean", sum[0],
        sum[1], sum[2], sum[3]);
}

/* A pair where nothing grows, beside one of ordinary segments, in turns; the median ratio. */
static double growing_ratio(uint64_t bytes) {
    double ratio[9];
    for (int i = 0; i < 9; ++i) {
        double ns[2];
        for (int expandable = 0; expandable < 2; ++expandable) {
            cdp_mem_source host;
            cdp_mem_desc d;
            memset(&d, 0, sizeof d);
            if (cdp_mem_source_host(NULL, 0, &host) != CDP_OK) exit(cdp_print_error(stderr));
            d.source = &host;
            d.expandable = expandable;
            if (cdp_mem_create(&d, &mem) != CDP_OK) exit(cdp_print_error(stderr));
            ns[expandable] = pair_ns(&ours, bytes);
            cdp_mem_destroy(mem);
        }
        ratio[i] = ns[1] / ns[0];
    }
    return middle_of_nine(ratio);
}

int main(void) {
    subject s;
    printf("%-28s %8s %8s %9s %9s %9s   (ns for a pair; random: up to 256 KiB)\n", "allocator",
        "512 B", "64 KiB", "live 100", "1,000", "10,000");
    mem_begin("", false, false, NULL);
    const figures own = row(&ours);
    cdp_mem_destroy(mem);
#ifdef MODEL
    s.name = "model of PyTorch's";
    s.alloc = model_alloc;
    s.free = model_free;
    (void)row(&s);
#else
    printf("SKIP the model of PyTorch's structures: it needs g++\n");
#endif
    s.name = "glibc";
    s.alloc = glibc_alloc;
    s.free = glibc_free;
    (void)row(&s);
    if (load(&s, "mimalloc", "libmimalloc.so.2", "mi_malloc", "mi_free")) (void)row(&s);
    if (load(&s, "jemalloc", "libjemalloc.so.2", "malloc", "free")) (void)row(&s);
    printf("cdp_mem: %.1f ns for a pair of one size (goal 60), %.1f ns for random sizes with 1,000 "
           "live (goal 150)\n",
        own.pair, own.random);
    variants();
    fragmentation();
    printf("segments that grow: %.3f times a pair of 512 B, %.3f of 4 MiB (goal 1)\n",
        growing_ratio(512), growing_ratio(4 * MIB));
    recording();
    dumps();
    return 0;
}
