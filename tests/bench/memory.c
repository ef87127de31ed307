/*  memory.c - what cdp_mem.h costs, beside other allocators, in one run:
        bash tests/bench/memory.sh

    Times are processor time of one thread; each is the best of several rounds. mimalloc and
    jemalloc are loaded where they are installed. They hand out host memory, so compare the time of
    a pair and nothing else. The model has PyTorch's structures (memory_model.cc) and, like this
    allocator here, nothing behind its addresses. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "test.h"

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
        for (int k = i; k > 0 && ratio[k] < ratio[k - 1]; --k) {
            const double swap = ratio[k];
            ratio[k] = ratio[k - 1];
            ratio[k - 1] = swap;
        }
    }
    return ratio[4];
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
    recording();
    dumps();
    return 0;
}
