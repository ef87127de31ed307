/* cards.h - ranks of one process, each a thread with a device and a stream of its own, for tests
   of cdp_nccl.h. Include after cdp_nccl.h. */
#ifndef CARDS_INCLUDED
#define CARDS_INCLUDED

#include "../test.h"

#include "../unit/ranks.h"

#include <pthread.h>

#include "gpu.h"

#include "libraries.h"

/* does not see that memory of a thread's variables in loaded libraries serves the next one after
   a join */
#ifdef __SANITIZE_THREAD__
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) {
    return "race:_dl_deallocate_tls\n";
}
#endif

#define NOTE(format, ...) test_check(false, __FILE__, __LINE__, format, __VA_ARGS__)

/* Nothing wrong was done, and nothing is left of what the libraries gave. */
TEST_API void clean(void) {
    static const char *const kinds[] = {
        "streams", "events", "bytes", "pinned", "graphs", "comms", "modules", "windows"};
    char text[400];
    const int n = standin_faults(text, sizeof text);
    if (n) NOTE("%d faults: %s", n, text);
    standin_forget_faults();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        static long before[8]; /* what an earlier case left is told once */
        const long left = standin_left(kinds[i]);
        if (left > before[i]) NOTE("%ld %s are left", left - before[i], kinds[i]);
        before[i] = left;
    }
}

typedef struct card { /* what a rank's thread knows */
    cdp_group *g;
    uint32_t rank, n, device;
    void *stream;
    void *arg;
    pthread_barrier_t *all;
} card;

/* All ranks of this process are here. Not by cdp_barrier(): a rank may be in that yet when
   another one goes on, and breaks the group. */
TEST_API void meet(const card *c) {
    if (c->all) pthread_barrier_wait(c->all);
}

/* From now on operations have so long: what came before is to succeed on a machine that is busy,
   too. */
TEST_API void hurry(const card *c, uint32_t timeout_ms) {
    cdp__nccl *const b = cdp__nccl_of(c->g);
    meet(c);
    c->g->desc.timeout_ms = timeout_ms;
    if (b) b->timeout_ms = timeout_ms;
    meet(c);
}

typedef struct cards {
    uint32_t n;
    uint32_t hurry_ms;  /* timeout_ms of the group when all have attached (0: as it is) */
    cdp_nccl_desc desc; /* stream is filled in */
    cdp_group_desc group;
    bool zero_stream; /* use stream 0 */
    bool no_attach;
    /* groups are destroyed by one thread, one after the other, in place of side by side */
    bool one_by_one;
    void (*func)(card *c);
    void (*between)(void *arg); /* when all have ended, before groups are destroyed */
    void *arg;
} cards;

typedef struct card_thread {
    const cards *all;
    card c;
    pthread_t id;
} card_thread;

static void *card_main(void *p) {
    card_thread *const t = (card_thread *)p;
    card *const c = &t->c;
    cdp_nccl_desc d = t->all->desc;
    GPU(cudaSetDevice((int)c->device));
    if (!t->all->zero_stream) GPU(cudaStreamCreateWithFlags(&c->stream, GPU_NON_BLOCKING));
    if (!d.stream) d.stream = c->stream;
    const bool good = t->all->no_attach
        || test_check(cdp_nccl_attach(c->g, &d) == CDP_OK, __FILE__, __LINE__, "attach: %s",
            cdp_last_error()->text);
    meet(c);
    if (t->all->hurry_ms) hurry(c, t->all->hurry_ms);
    if (good) t->all->func(c);
    gpu_cudaStreamSynchronize(c->stream);
    if (c->stream) gpu_cudaStreamDestroy(c->stream);
    return NULL;
}

static void *card_leave(void *p) {
    card_thread *const t = (card_thread *)p;
    cdp_group_destroy(t->c.g); /* whatever device is current here */
    return NULL;
}

/* func in a thread for every rank, on a device of its own where there are enough: a thread that
   frees memory waits for all of its device, and so for the other ranks on it, which may wait for
   this one. Groups are destroyed when all have ended. */
TEST_API void cards_run(const cards *all) {
    world w;
    card_thread t[RANKS_MAX];
    pthread_barrier_t together;
    int devices = 1;
    memset(t, 0, sizeof t);
    gpu_cudaGetDeviceCount(&devices);
    if (devices < 1) devices = 1;
    pthread_barrier_init(&together, NULL, all->n);
    if (world_open(&w, all->n, &all->group, 0)) {
        for (uint32_t r = 0; r < all->n; ++r) {
            t[r].all = all;
            t[r].c.g = w.group[r];
            t[r].c.rank = r;
            t[r].c.n = all->n;
            t[r].c.device = r % (uint32_t)devices;
            t[r].c.arg = all->arg;
            t[r].c.all = &together;
            if (pthread_create(&t[r].id, NULL, card_main, &t[r]) != 0) abort();
        }
        for (uint32_t r = 0; r < all->n; ++r)
            pthread_join(t[r].id, NULL);
        if (all->between) all->between(all->arg);
        for (uint32_t r = 0; r < all->n && !all->one_by_one; ++r) {
            if (pthread_create(&t[r].id, NULL, card_leave, &t[r]) != 0) abort();
            w.group[r] = NULL;
        }
        for (uint32_t r = 0; r < all->n && !all->one_by_one; ++r)
            pthread_join(t[r].id, NULL);
    }
    world_close(&w);
    pthread_barrier_destroy(&together);
}

TEST_API void on_cards(uint32_t n, void (*func)(card *c), void *arg) {
    cards all;
    memset(&all, 0, sizeof all);
    all.n = n;
    all.func = func;
    all.arg = arg;
    cards_run(&all);
}

#define FAILS(status, part, call)                                                      \
    do {                                                                               \
        const cdp_status st_ = (call);                                                 \
        test_check(st_ == (status), __FILE__, __LINE__, "%s is %s, not %s: %s", #call, \
            cdp_status_name(st_), cdp_status_name(status), cdp_last_error()->text);    \
        if (st_ == (status)) T_TEXT(part, cdp_last_error()->text);                     \
    } while (0)

static void host_nap(void *ms) {
    test_sleep_ms((uint32_t)(uintptr_t)ms);
}

/* Sends `bytes` to the device in the stream, after a while: who does not wait for the stream
   finds other bytes there. */
TEST_API void put_late(
    void *to, const void *pinned_from, uint64_t bytes, void *stream, uint32_t ms) {
    GPU(cudaLaunchHostFunc(stream, host_nap, (void *)(uintptr_t)ms));
    GPU(cudaMemcpyAsync(to, pinned_from, bytes, GPU_TO_DEVICE, stream));
}

#endif
