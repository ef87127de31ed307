/* standin_cuda.c - the CUDA runtime's part of the stand-in (standin.h says what that is):
   libcudart.so */
#define _GNU_SOURCE
#include "standin.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define DEVICES_MAX 8
#define ARENA_BYTES ((size_t)3 << 30)    /* address space of each device */
#define MALLOC_BYTES ((size_t)128 << 20) /* of cudaMalloc; behind it lie ranges of the driver */
#define PAGE_BYTES ((size_t)2 << 20)
#define NAMES_MAX 256

/* One lock and one condition for everything: nothing here has to be fast. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- settings, errors on demand, faults, what is left ---- */

static struct {
    const char *name;
    long value;
} settings[] = {{"delay_us", 200}, {"seed", 1}, {"devices", 4}, {"driver", 13000},
    {"memory", (long)MALLOC_BYTES}, {"drop_wait", 0}, {"early_free", 0}, {"lazy", 4},
    {"slow_init", 0}, {"refuse", 0}, {"capability", 90}, {"runtime", 13000}, {"symmetric", 1},
    {"pages", 1}};

typedef struct counted {
    char name[48];
    long calls, fail_at;
    int code;
    long left;
} counted;
static counted functions[NAMES_MAX], kept[16];

static int faults;
static char first_fault[400];
static uint64_t random_state;

static long *setting(const char *name) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; ++i)
        if (strcmp(settings[i].name, name) == 0) return &settings[i].value;
    fprintf(stderr, "standin: there is no setting %s\n", name);
    abort();
}

static long setting_of(const char *name) {
    return __atomic_load_n(setting(name), __ATOMIC_RELAXED);
}
static void start(void);
void standin_set(const char *name, long value) {
    pthread_once(&once, start);
    __atomic_store_n(setting(name), value, __ATOMIC_RELAXED);
}
long standin_get(const char *name) {
    pthread_once(&once, start);
    return setting_of(name);
}

static int find_name(void *table, const char *name) {
    for (int i = 0; i < (table == (void *)kept ? 16 : NAMES_MAX); ++i) {
        char *at = table == (void *)kept ? kept[i].name : functions[i].name;
        if (!at[0]) snprintf(at, sizeof functions[0].name, "%s", name);
        if (strcmp(at, name) == 0) return i;
    }
    abort();
}

void standin_fail(const char *function, int nth, int code) {
    pthread_mutex_lock(&lock);
    const int i = find_name(functions, function);
    functions[i].fail_at = nth ? functions[i].calls + nth : 0;
    functions[i].code = code;
    pthread_mutex_unlock(&lock);
}

long standin_calls(const char *function) {
    pthread_mutex_lock(&lock);
    const long n = functions[find_name(functions, function)].calls;
    pthread_mutex_unlock(&lock);
    return n;
}

bool standin_call(const char *function, int *code) {
    pthread_mutex_lock(&lock);
    const int i = find_name(functions, function);
    const bool fails = ++functions[i].calls == functions[i].fail_at;
    *code = functions[i].code;
    pthread_mutex_unlock(&lock);
    return fails;
}

static void count_locked(const char *what, long by) {
    kept[find_name(kept, what)].left += by;
}
void standin_count(const char *what, long by) {
    pthread_mutex_lock(&lock);
    count_locked(what, by);
    pthread_mutex_unlock(&lock);
}
long standin_left(const char *what) {
    pthread_mutex_lock(&lock);
    const long n = kept[find_name(kept, what)].left;
    pthread_mutex_unlock(&lock);
    return n;
}

static void fault_locked(const char *format, va_list ap) {
    if (faults++ == 0) vsnprintf(first_fault, sizeof first_fault, format, ap);
}
void standin_fault(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    pthread_mutex_lock(&lock);
    fault_locked(format, ap);
    pthread_mutex_unlock(&lock);
    va_end(ap);
}
int standin_faults(char *text, size_t size) {
    pthread_mutex_lock(&lock);
    const int n = faults;
    if (text && size) snprintf(text, size, "%s", n ? first_fault : "");
    pthread_mutex_unlock(&lock);
    return n;
}

uint64_t standin_random(void) {
    uint64_t z = __atomic_add_fetch(&random_state, 0x9e3779b97f4a7c15u, __ATOMIC_RELAXED)
        + (uint64_t)setting_of("seed") * 0x2545f4914f6cdd1du;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void standin_pause(void) {
    const uint64_t most = (uint64_t)setting_of("delay_us");
    if (!most) return;
    const uint64_t us = standin_random() % most * (standin_random() % 16 ? 1 : 10);
    if (us) usleep((useconds_t)us);
}

/* ---- devices and memory ---- */

typedef struct block {
    struct block *next; /* by address */
    size_t at, bytes;
    standin_handle *handle; /* of pages that the driver mapped */
    bool open;              /* cuMemSetAccess was called       */
} block;

static struct {
    block *blocks;
    size_t used;
    int sick;
} devices[DEVICES_MAX];

typedef struct pinned {
    struct pinned *next;
    char *at;
    size_t bytes;
    int device;
    bool managed;
} pinned;
static pinned *pinneds;

static char *device_base; /* what programs see: nobody may touch it */
static char *alias_base;  /* the same bytes, for the stand-in */
static __thread int current_device;
static __thread int last_error;

static void start(void) {
    const char *env = getenv("STANDIN");
    char text[400], *save = NULL;
    snprintf(text, sizeof text, "%s", env ? env : "");
    for (char *word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        char *value = strchr(word, '=');
        if (value) *value++ = 0;
        *setting(word) = value ? atol(value) : 1;
    }
    const int fd = memfd_create("standin", 0);
    const size_t all = ARENA_BYTES * DEVICES_MAX;
    if (fd < 0 || ftruncate(fd, (off_t)all) != 0) abort();
    alias_base = (char *)mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    device_base = (char *)mmap(
        NULL, all + PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    close(fd);
    if (alias_base == MAP_FAILED || device_base == MAP_FAILED) abort();
    device_base += (PAGE_BYTES - (uintptr_t)device_base % PAGE_BYTES) % PAGE_BYTES;
}

static int arena_of(const void *p) {
    const size_t at = (size_t)((const char *)p - device_base);
    return (const char *)p >= device_base && at < ARENA_BYTES * DEVICES_MAX
        ? (int)(at / ARENA_BYTES)
        : -1;
}

/* True if a block, or pages side by side from it on, reach `end`. */
static bool block_reaches(const block *b, size_t end) {
    for (; end > b->at + b->bytes; b = b->next)
        if (!b->handle || !b->open || !b->next || b->next->at != b->at + b->bytes) return false;
    return !b->handle || b->open;
}

static block *block_of(const void *p, size_t bytes) {
    const int d = arena_of(p);
    const size_t at = d < 0 ? 0 : (size_t)((const char *)p - device_base) - (size_t)d * ARENA_BYTES;
    if (d >= 0)
        for (block *b = devices[d].blocks; b; b = b->next)
            if (at >= b->at && at < b->at + b->bytes)
                return block_reaches(b, at + bytes) ? b : NULL;
    return NULL;
}

static pinned *pinned_of(const void *p, size_t bytes) {
    for (pinned *m = pinneds; m; m = m->next)
        if ((const char *)p >= m->at && (const char *)p + bytes <= m->at + m->bytes) return m;
    return NULL;
}

static void *alias_of(const void *p) {
    return alias_base + ((const char *)p - device_base);
}

static cudaError_t device_alloc(void **out, size_t bytes, int d) {
    const size_t size = (bytes + 511) / 512 * 512;
    block **at = &devices[d].blocks, *b;
    size_t from = 0;
    *out = NULL;
    if (bytes > MALLOC_BYTES) return cudaErrorMemoryAllocation;
    while (*at && (*at)->at - from < size + 1024) {
        /* a gap that belongs to nobody */
        from = (*at)->at + ((*at)->bytes + 511) / 512 * 512 + 512;
        at = &(*at)->next;
    }
    if (from + size + 512 > MALLOC_BYTES || devices[d].used + size > (size_t)setting_of("memory"))
        return cudaErrorMemoryAllocation;
    b = (block *)malloc(sizeof *b);
    b->at = from;
    b->bytes = bytes;
    b->handle = NULL;
    b->next = *at;
    *at = b;
    devices[d].used += size;
    count_locked("bytes", (long)size);
    *out = device_base + (size_t)d * ARENA_BYTES + from;
    return cudaSuccess;
}

static bool device_free(void *p) {
    const int d = arena_of(p);
    const size_t offset = d < 0 ? 0 : (size_t)((char *)p - device_base) - (size_t)d * ARENA_BYTES;
    block **at = d < 0 ? NULL : &devices[d].blocks, *b;
    while (at && *at && (*at)->at != offset)
        at = &(*at)->next;
    if (!at || !*at || (*at)->handle) return false;
    b = *at;
    *at = b->next;
    devices[d].used -= (b->bytes + 511) / 512 * 512;
    count_locked("bytes", -(long)((b->bytes + 511) / 512 * 512));
    memset(alias_of(p), 0xdd, b->bytes);
    free(b);
    return true;
}

void standin_sick(int device, int error) {
    int none = 0;
    if (device >= 0 && device < DEVICES_MAX)
        __atomic_compare_exchange_n(
            &devices[device].sick, &none, error, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static int sick(void) {
    return __atomic_load_n(&devices[current_device].sick, __ATOMIC_SEQ_CST);
}

void standin_forget_faults(void) {
    pthread_mutex_lock(&lock);
    faults = 0;
    for (int d = 0; d < DEVICES_MAX; ++d)
        devices[d].sick = 0;
    pthread_mutex_unlock(&lock);
}

void *standin_bytes(const void *p, size_t bytes, int device, const char *why) {
    char *at = NULL;
    pthread_mutex_lock(&lock);
    if (block_of(p, bytes) && (device < 0 || arena_of(p) == device))
        at = (char *)alias_of(p);
    else if (pinned_of(p, bytes))
        at = (char *)(uintptr_t)p;
    pthread_mutex_unlock(&lock);
    if (!at) {
        const char *what = "are not allocated (any more)";
        if (device >= 0 && arena_of(p) != device) what = "are on another device";
        if (arena_of(p) < 0) what = "are no memory of a device";
        standin_fault("%s: %zu bytes at %p %s", why, bytes, p, what);
        standin_sick(device < 0 ? 0 : device, cudaErrorIllegalAddress);
    }
    return at;
}

/* ---- streams: queues, each with a thread while there is something in it ---- */

typedef struct ticket { /* a moment in a stream */
    int refs;
    bool done;
    double ms;
} ticket;

typedef struct node { /* of a graph */
    standin_work work;
    int deps[32], n_deps, state; /* state: 0 waits, 1 runs, 2 done */
    ticket *in;                  /* an event recorded in a graph as an external one */
} node;

struct CUgraph_st {
    int refs;
    int n;
    node *nodes;
};

typedef struct capture {
    struct capture *next;
    int refs;
    unsigned long long id;
    bool spoiled, ended;
    int mode;
    pthread_t thread;
    standin_stream *origin;
    struct CUgraph_st *graph;
} capture;

struct standin_point {
    ticket *ticket;
    capture *cap;
    int deps[32], n_deps;
};

typedef struct item {
    struct item *next;
    standin_work work;
    ticket *wait, *tick; /* instead of work */
    bool has_work;
} item;

struct standin_stream {
    standin_stream *next;
    int refs, device;
    unsigned flags;
    bool running, destroyed, legacy;
    pthread_cond_t filled; /* it has an item, or was destroyed */
    item *head, **tail;
    unsigned long submitted, done;
    capture *cap;
    int deps[32], n_deps;
};

struct CUevent_st {
    struct CUevent_st *next;
    standin_point at;
    bool recorded, timed;
    int device;
};

static standin_stream *streams; /* those that exist */
static standin_stream legacy_streams[DEVICES_MAX];
static struct CUevent_st *events;
static capture *captures;
static unsigned long long capture_ids;
static __thread int exchange_mode = cudaStreamCaptureModeGlobal;

static void ticket_drop(ticket *t) {
    if (t && --t->refs == 0) free(t);
}
static ticket *ticket_keep(ticket *t) {
    if (t) ++t->refs;
    return t;
}
static ticket *ticket_new(void) {
    ticket *t = (ticket *)calloc(1, sizeof *t);
    t->refs = 1;
    return t;
}
static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}
static void wait_for(pthread_cond_t *what) { /* or 20 ms; with the lock */
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 20000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        ++t.tv_sec;
    }
    pthread_cond_timedwait(what, &lock, &t);
}
static void wait_a_bit(void) {
    wait_for(&changed);
}

static void graph_drop(struct CUgraph_st *g) {
    if (!g || --g->refs) return;
    for (int i = 0; i < g->n; ++i) {
        node *const n = &g->nodes[i];
        ticket_drop(n->in);
        if (n->work.drop) {
            pthread_mutex_unlock(&lock);
            n->work.drop(n->work.arg);
            pthread_mutex_lock(&lock);
        }
    }
    free(g->nodes);
    free(g);
}

static void capture_drop(capture *c) {
    if (!c || --c->refs) return;
    for (capture **at = &captures; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    graph_drop(c->graph);
    free(c);
}

static void stream_drop(standin_stream *s) {
    if (--s->refs || s->legacy) return;
    pthread_cond_destroy(&s->filled);
    free(s);
}

static void *stream_main(void *p) {
    standin_stream *const s = (standin_stream *)p;
    pthread_mutex_lock(&lock);
    for (int idle = 0;;) {
        item *const i = s->head;
        if (!i) {
            /* tests count threads: none stays that has nothing to do */
            if (s->destroyed || ++idle > 2) break;
            wait_for(&s->filled);
            continue;
        }
        idle = 0;
        if (i->wait) {
            while (!i->wait->done)
                wait_a_bit();
        } else {
            pthread_mutex_unlock(&lock);
            standin_pause();
            if (i->has_work) i->work.run(i->work.arg);
            if (i->has_work && i->work.drop) i->work.drop(i->work.arg);
            pthread_mutex_lock(&lock);
        }
        if (i->tick) {
            i->tick->done = true;
            i->tick->ms = now_ms();
        }
        ticket_drop(i->wait);
        ticket_drop(i->tick);
        s->head = i->next;
        if (!s->head) s->tail = &s->head;
        ++s->done;
        free(i);
        pthread_cond_broadcast(&changed);
    }
    s->running = false;
    stream_drop(s);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void enqueue(standin_stream *s, const standin_work *w, ticket *wait, ticket *tick) {
    item *const i = (item *)calloc(1, sizeof *i);
    if (w) {
        i->work = *w;
        i->has_work = true;
    }
    i->wait = ticket_keep(wait);
    i->tick = ticket_keep(tick);
    *s->tail = i;
    s->tail = &i->next;
    ++s->submitted;
    if (!s->running) {
        pthread_t t;
        pthread_attr_t detached;
        s->running = true;
        ++s->refs;
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        if (pthread_create(&t, &detached, stream_main, s) != 0) abort();
        pthread_attr_destroy(&detached);
    }
    pthread_cond_signal(&s->filled);
}

/* the end of what is in the stream by now */
static void tick_of(standin_stream *s, standin_point *p) {
    memset(p, 0, sizeof *p);
    p->ticket = ticket_new();
    if (s->done == s->submitted) {
        p->ticket->done = true;
        p->ticket->ms = now_ms();
    } else
        enqueue(s, NULL, NULL, p->ticket);
}

/* What a stream that was not made non-blocking and stream 0 owe to each other. */
static void legacy_order(standin_stream *s) {
    standin_point p;
    if (s->legacy) {
        for (standin_stream *o = streams; o; o = o->next)
            if (o->device == s->device && !(o->flags & cudaStreamNonBlocking) && !o->cap
                && o->done != o->submitted) {
                tick_of(o, &p);
                enqueue(s, NULL, p.ticket, NULL);
                ticket_drop(p.ticket);
            }
    } else if (!(s->flags & cudaStreamNonBlocking)
        && legacy_streams[s->device].done != legacy_streams[s->device].submitted) {
        tick_of(&legacy_streams[s->device], &p);
        enqueue(s, NULL, p.ticket, NULL);
        ticket_drop(p.ticket);
    }
}

static standin_stream *find_locked(void *stream, int device) {
    if (!stream || stream == (void *)1) {
        standin_stream *const s = &legacy_streams[device];
        if (!s->tail) {
            s->tail = &s->head;
            s->refs = 1;
            pthread_cond_init(&s->filled, NULL);
            s->legacy = true;
            s->device = device;
        }
        return s;
    }
    for (standin_stream *s = streams; s; s = s->next)
        if ((void *)s == stream) return s;
    return NULL;
}

standin_stream *standin_find(void *stream, int device) {
    pthread_mutex_lock(&lock);
    standin_stream *const s = find_locked(stream, device);
    pthread_mutex_unlock(&lock);
    return s;
}

int standin_device_of(standin_stream *s) {
    return s->device;
}

/* ---- capture ---- */

static void dep_add(int *deps, int *n, int d) {
    for (int i = 0; i < *n; ++i)
        if (deps[i] == d) return;
    if (*n == 32) abort();
    deps[(*n)++] = d;
}

static int node_add(standin_stream *s, const standin_work *w) {
    struct CUgraph_st *const g = s->cap->graph;
    g->nodes = (node *)realloc(g->nodes, (size_t)(g->n + 1) * sizeof *g->nodes);
    node *const n = &g->nodes[g->n];
    memset(n, 0, sizeof *n);
    n->work = *w;
    memcpy(n->deps, s->deps, sizeof n->deps);
    n->n_deps = s->n_deps;
    s->deps[0] = g->n;
    s->n_deps = 1;
    return g->n++;
}

bool standin_capturing(standin_stream *s) {
    pthread_mutex_lock(&lock);
    const bool yes = s->cap != NULL;
    pthread_mutex_unlock(&lock);
    return yes;
}

void standin_submit(standin_stream *s, const standin_work *w) {
    pthread_mutex_lock(&lock);
    if (s->cap)
        node_add(s, w);
    else {
        legacy_order(s);
        enqueue(s, w, NULL, NULL);
    }
    pthread_mutex_unlock(&lock);
}

static void point_set(standin_point *p, standin_stream *s) {
    memset(p, 0, sizeof *p);
    if (s->cap) {
        p->cap = s->cap;
        ++p->cap->refs;
        memcpy(p->deps, s->deps, sizeof p->deps);
        p->n_deps = s->n_deps;
    } else {
        legacy_order(s);
        tick_of(s, p);
    }
}

static void point_clear(standin_point *p) {
    ticket_drop(p->ticket);
    capture_drop(p->cap);
    memset(p, 0, sizeof *p);
}

static void capture_join(standin_stream *s, capture *c) {
    s->cap = c;
    s->n_deps = 0;
    ++c->refs;
}

static int after_locked(standin_stream *s, const standin_point *p) {
    if (p->cap) {
        if (p->cap->ended) return cudaErrorCapturedEvent;
        if (!s->cap) capture_join(s, p->cap);
        if (s->cap != p->cap) return cudaErrorInvalidValue;
        for (int i = 0; i < p->n_deps; ++i)
            dep_add(s->deps, &s->n_deps, p->deps[i]);
    } else if (p->ticket) {
        if (s->cap) {
            s->cap->spoiled = true;
            return cudaErrorStreamCaptureIsolation;
        }
        if (!p->ticket->done) enqueue(s, NULL, p->ticket, NULL);
    }
    return cudaSuccess;
}

standin_point *standin_here(standin_stream *s) {
    standin_point *const p = (standin_point *)malloc(sizeof *p);
    pthread_mutex_lock(&lock);
    point_set(p, s);
    pthread_mutex_unlock(&lock);
    return p;
}
void standin_after(standin_stream *s, const standin_point *p) {
    pthread_mutex_lock(&lock);
    /* else: ordered by other means */
    if (p && (!p->cap || !p->cap->ended) && (p->cap || !s->cap)) (void)after_locked(s, p);
    pthread_mutex_unlock(&lock);
}
void standin_point_free(standin_point *p) {
    if (!p) return;
    pthread_mutex_lock(&lock);
    point_clear(p);
    pthread_mutex_unlock(&lock);
    free(p);
}

/* A call that must not happen while anybody captures in global mode, or this thread in any but
   the relaxed one. */
static int forbidden_locked(void) {
    int e = cudaSuccess;
    if (exchange_mode == cudaStreamCaptureModeRelaxed) return e;
    for (capture *c = captures; c; c = c->next) {
        const bool mine = pthread_equal(c->thread, pthread_self());
        if (c->ended || c->mode == cudaStreamCaptureModeRelaxed) continue;
        if (mine
            || (c->mode == cudaStreamCaptureModeGlobal
                && exchange_mode == cudaStreamCaptureModeGlobal)) {
            c->spoiled = true;
            e = cudaErrorStreamCaptureUnsupported;
        }
    }
    return e;
}

/* ---- what programs call ---- */

static cudaError_t give(int e) {
    if (e != cudaSuccess && e != cudaErrorNotReady) last_error = e;
    return (cudaError_t)e;
}

#define ENTER(name)                               \
    int e_ = cudaSuccess;                         \
    pthread_once(&once, start);                   \
    if (standin_call(name, &e_)) return give(e_); \
    e_ = present();                               \
    if (e_ != cudaSuccess) return give(e_);       \
    pthread_mutex_lock(&lock)
#define LEAVE(e)                     \
    do {                             \
        const int e2_ = (e);         \
        pthread_mutex_unlock(&lock); \
        return give(e2_);            \
    } while (0)
#define HEALTHY() \
    if (sick()) LEAVE(sick())
#define SAFE()                              \
    do {                                    \
        const int e3_ = forbidden_locked(); \
        if (e3_ != cudaSuccess) LEAVE(e3_); \
    } while (0)
#define STREAM(s, stream)                                                    \
    standin_stream *const s = find_locked(stream, current_device);           \
    if (!s) LEAVE(cudaErrorInvalidResourceHandle);                           \
    if (s->cap && s->cap->spoiled) LEAVE(cudaErrorStreamCaptureInvalidated); \
    if (s->legacy && captures_global(s->device)) LEAVE(cudaErrorStreamCaptureImplicit)

static int present(void) {
    if (setting_of("driver") < setting_of("runtime") / 1000 * 1000)
        return cudaErrorInsufficientDriver;
    return setting_of("devices") < 1 ? cudaErrorNoDevice : cudaSuccess;
}

/* Stream 0 cannot be used while a stream that synchronises with it captures. */
static bool captures_global(int device) {
    for (standin_stream *s = streams; s; s = s->next)
        if (s->cap && s->device == device && !(s->flags & cudaStreamNonBlocking)) {
            s->cap->spoiled = true;
            return true;
        }
    return false;
}

cudaError_t cudaGetLastError(void) {
    const int e = sick() ? sick() : last_error;
    last_error = 0;
    return (cudaError_t)e;
}
cudaError_t cudaPeekAtLastError(void) {
    return (cudaError_t)(sick() ? sick() : last_error);
}

static const struct {
    int code;
    const char *name, *text;
} error_names[] = {{cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
        "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
        "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
        "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
        "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
        "capturing stream has unjoined work"}};

const char *cudaGetErrorName(cudaError_t e) {
    for (size_t i = 0; i < sizeof error_names / sizeof *error_names; ++i)
        if (error_names[i].code == (int)e) return error_names[i].name;
    return "cudaError of the stand-in";
}
const char *cudaGetErrorString(cudaError_t e) {
    for (size_t i = 0; i < sizeof error_names / sizeof *error_names; ++i)
        if (error_names[i].code == (int)e) return error_names[i].text;
    return "an error of the stand-in";
}

cudaError_t cudaRuntimeGetVersion(int *v) {
    pthread_once(&once, start);
    *v = (int)setting_of("runtime");
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) {
    pthread_once(&once, start);
    *v = (int)setting_of("driver");
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *n) {
    ENTER("cudaGetDeviceCount");
    *n = (int)setting_of("devices");
    LEAVE(cudaSuccess);
}
cudaError_t cudaGetDevice(int *d) {
    ENTER("cudaGetDevice");
    *d = current_device;
    LEAVE(cudaSuccess);
}
cudaError_t cudaSetDevice(int d) {
    ENTER("cudaSetDevice");
    if (d < 0 || d >= setting_of("devices") || d >= DEVICES_MAX) LEAVE(cudaErrorInvalidDevice);
    current_device = d;
    LEAVE(cudaSuccess);
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
    ENTER("cudaDeviceGetAttribute");
    if (device < 0 || device >= setting_of("devices")) LEAVE(cudaErrorInvalidDevice);
    switch ((int)attr) {
    case cudaDevAttrComputeCapabilityMajor: *value = (int)setting_of("capability") / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = (int)setting_of("capability") % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = 2; break;
    default: *value = 1;
    }
    LEAVE(cudaSuccess);
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
    ENTER("cudaDeviceGetPCIBusId");
    if (device < 0 || device >= setting_of("devices")) LEAVE(cudaErrorInvalidDevice);
    snprintf(id, (size_t)size, "0000:%02x:00.0", device + 1);
    LEAVE(cudaSuccess);
}

static void drain(standin_stream *s) {
    const unsigned long until = s->submitted;
    ++s->refs;
    while (s->done < until)
        wait_a_bit();
    stream_drop(s);
}
static void drain_device(int d) {
    for (bool again = true; again;) {
        again = false;
        for (standin_stream *s = streams; s; s = s->next)
            if (s->device == d && s->done != s->submitted) {
                drain(s);
                again = true;
                break;
            }
        if (legacy_streams[d].done != legacy_streams[d].submitted) {
            drain(&legacy_streams[d]);
            again = true;
        }
    }
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER("cudaDeviceSynchronize");
    SAFE();
    drain_device(current_device);
    LEAVE(sick());
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **p, size_t bytes) {
    ENTER("cudaMalloc");
    SAFE();
    HEALTHY();
    const cudaError_t e = bytes ? device_alloc(p, bytes, current_device) : cudaSuccess;
    if (!bytes) *p = NULL;
    if (e == cudaSuccess && bytes) memset(alias_of(*p), 0xcb, bytes);
    LEAVE(e);
}
cudaError_t cudaFree(void *p) {
    ENTER("cudaFree");
    SAFE();
    if (!p) LEAVE(sick());
    if (arena_of(p) >= 0) drain_device(arena_of(p));
    if (!device_free(p)) {
        pthread_mutex_unlock(&lock);
        standin_fault("cudaFree(%p): it is not allocated", p);
        return give(cudaErrorInvalidValue);
    }
    LEAVE(sick());
}

/* ---- pages: what the driver's functions of virtual memory do (standin_driver.c) ---- */

typedef struct range {
    struct range *next;
    size_t at, bytes;
    int device;
} range;
static range *ranges;

static size_t offset_in(const void *p, int d) {
    return (size_t)((const char *)p - device_base) - (size_t)d * ARENA_BYTES;
}

bool standin_range(void **out, size_t bytes, int d) {
    size_t from = MALLOC_BYTES;
    pthread_mutex_lock(&lock);
    for (range *r = ranges; r; r = r ? r->next : ranges) {
        if (r->device != d || from >= r->at + r->bytes || r->at >= from + bytes) continue;
        from = r->at + r->bytes;
        r = NULL; /* from the first one again */
    }
    const bool room = from + bytes <= ARENA_BYTES;
    if (room) {
        range *const r = (range *)malloc(sizeof *r);
        r->at = from;
        r->bytes = bytes;
        r->device = d;
        r->next = ranges;
        ranges = r;
        count_locked("ranges", 1);
        *out = device_base + (size_t)d * ARENA_BYTES + from;
    }
    pthread_mutex_unlock(&lock);
    return room;
}

bool standin_range_free(void *p, size_t bytes) {
    const int d = arena_of(p);
    bool found = false, used = false;
    pthread_mutex_lock(&lock);
    for (range **at = &ranges; d >= 0 && !found && *at;) {
        range *const r = *at;
        found = r->device == d && r->at == offset_in(p, d) && r->bytes == bytes;
        for (const block *b = found ? devices[d].blocks : NULL; b; b = b->next)
            used = used || (b->handle && b->at >= r->at && b->at < r->at + r->bytes);
        if (found && !used) {
            *at = r->next;
            free(r);
            count_locked("ranges", -1);
        } else
            at = &r->next;
    }
    pthread_mutex_unlock(&lock);
    return found && !used;
}

standin_handle *standin_page(size_t bytes, int d) {
    standin_handle *h = NULL;
    pthread_mutex_lock(&lock);
    if (devices[d].used + bytes <= (size_t)setting_of("memory")) {
        h = (standin_handle *)calloc(1, sizeof *h);
        h->bytes = bytes;
        h->device = d;
        h->refs = 1;
        devices[d].used += bytes;
        count_locked("bytes", (long)bytes);
    }
    pthread_mutex_unlock(&lock);
    return h;
}

static void page_drop(standin_handle *h) {
    if (--h->refs) return;
    devices[h->device].used -= h->bytes;
    count_locked("bytes", -(long)h->bytes);
    free(h);
}
void standin_page_drop(standin_handle *h) {
    pthread_mutex_lock(&lock);
    page_drop(h);
    pthread_mutex_unlock(&lock);
}

bool standin_map(void *p, standin_handle *h) {
    const int d = arena_of(p);
    const size_t from = d < 0 ? 0 : offset_in(p, d), to = from + h->bytes;
    block **at = d < 0 ? NULL : &devices[d].blocks;
    bool ok = false;
    pthread_mutex_lock(&lock);
    for (const range *r = ranges; r; r = r->next)
        ok = ok || (r->device == d && from >= r->at && to <= r->at + r->bytes);
    while (ok && *at && (*at)->at < from)
        at = &(*at)->next;
    for (const block *b = ok ? devices[d].blocks : NULL; b; b = b->next)
        if (b->at < to && from < b->at + b->bytes) ok = false; /* mapped already */
    if (ok) {
        block *const b = (block *)calloc(1, sizeof *b);
        b->at = from;
        b->bytes = h->bytes;
        b->handle = h;
        ++h->refs;
        b->next = *at;
        *at = b;
        memset(alias_of(p), 0xcb, h->bytes);
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

/* The pages in these bytes, which must be whole ones without holes: opens them, or unmaps them. */
bool standin_pages(void *p, size_t bytes, bool unmap) {
    const int d = arena_of(p);
    const size_t from = d < 0 ? 0 : offset_in(p, d), to = from + bytes;
    block **at = d < 0 ? NULL : &devices[d].blocks;
    size_t found = 0;
    pthread_mutex_lock(&lock);
    for (const block *b = at ? *at : NULL; b; b = b->next)
        if (b->handle && b->at >= from && b->at + b->bytes <= to) found += b->bytes;
    while (found == bytes && *at) {
        block *const b = *at;
        at = &b->next;
        if (b->at < from || b->at >= to) continue;
        b->open = true;
        if (!unmap) continue;
        for (at = &devices[d].blocks; *at != b;)
            at = &(*at)->next;
        *at = b->next;
        memset(alias_of(device_base + (size_t)d * ARENA_BYTES + b->at), 0xdd, b->bytes);
        page_drop(b->handle);
        free(b);
    }
    pthread_mutex_unlock(&lock);
    return bytes && found == bytes;
}

bool standin_free(void *p) {
    pthread_mutex_lock(&lock);
    const bool was = device_free(p);
    pthread_mutex_unlock(&lock);
    if (!was) standin_fault("ncclMemFree(%p): it is not allocated", p);
    return was;
}

static void free_run(void *arg) {
    pthread_mutex_lock(&lock);
    device_free(arg);
    pthread_mutex_unlock(&lock);
}

cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t stream) {
    ENTER("cudaMallocAsync");
    HEALTHY();
    STREAM(s, stream);
    if (s->cap) LEAVE(cudaErrorNotSupported);
    const cudaError_t e = device_alloc(p, bytes ? bytes : 1, s->device);
    if (e == cudaSuccess) memset(alias_of(*p), 0xcb, bytes);
    LEAVE(e);
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) {
    ENTER("cudaFreeAsync");
    STREAM(s, stream);
    const standin_work w = {free_run, NULL, p, "free"};
    if (s->cap) LEAVE(cudaErrorNotSupported);
    if (!p) LEAVE(cudaSuccess);
    if (!block_of(p, 1)) {
        pthread_mutex_unlock(&lock);
        standin_fault("cudaFreeAsync(%p): it is not allocated", p);
        return give(cudaErrorInvalidValue);
    }
    if (setting_of("early_free"))
        device_free(p);
    else {
        legacy_order(s);
        enqueue(s, &w, NULL, NULL);
    }
    LEAVE(cudaSuccess);
}

static cudaError_t pin(void **p, size_t bytes, bool managed) {
    SAFE();
    HEALTHY();
    pinned *const m = (pinned *)calloc(1, sizeof *m);
    m->at = (char *)malloc(bytes ? bytes : 1);
    memset(m->at, 0xcb, bytes);
    m->bytes = bytes;
    m->device = current_device;
    m->managed = managed;
    m->next = pinneds;
    pinneds = m;
    count_locked("pinned", 1);
    *p = m->at;
    LEAVE(cudaSuccess);
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    ENTER("cudaMallocHost");
    return pin(p, bytes, false);
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER("cudaHostAlloc");
    return pin(p, bytes, false);
}
cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER("cudaMallocManaged");
    return pin(p, bytes, true);
}
cudaError_t cudaFreeHost(void *p) {
    ENTER("cudaFreeHost");
    SAFE();
    if (!p) LEAVE(cudaSuccess);
    drain_device(current_device);
    for (pinned **at = &pinneds; *at; at = &(*at)->next)
        if ((*at)->at == (char *)p) {
            pinned *const m = *at;
            *at = m->next;
            memset(m->at, 0xdd, m->bytes);
            free(m->at);
            free(m);
            count_locked("pinned", -1);
            LEAVE(cudaSuccess);
        }
    pthread_mutex_unlock(&lock);
    standin_fault("cudaFreeHost(%p): it is not allocated", p);
    return give(cudaErrorInvalidValue);
}
cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned flags) {
    (void)flags;
    ENTER("cudaHostGetDevicePointer");
    *out = p;
    LEAVE(pinned_of(p, 1) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    ENTER("cudaMemGetInfo");
    *total = (size_t)setting_of("memory");
    *left = *total - devices[current_device].used;
    LEAVE(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    ENTER("cudaPointerGetAttributes");
    const bool old = setting_of("runtime") < 13000; /* before that version the struct ended here */
    const pinned *const m = pinned_of(p, 1);
    memset(a, 0,
        old ? offsetof(struct cudaPointerAttributes, hostPointer) + sizeof(void *) : sizeof *a);
    a->device = -2;
    if (block_of(p, 1)) {
        a->type = cudaMemoryTypeDevice;
        a->device = arena_of(p);
        a->devicePointer = (void *)(uintptr_t)p;
    } else if (m) {
        a->type = m->managed ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
        a->device = m->device;
        a->devicePointer = a->hostPointer = (void *)(uintptr_t)p;
    } else {
        a->hostPointer = (void *)(uintptr_t)p;
    }
    LEAVE(cudaSuccess);
}

typedef struct copy {
    void *to;
    const void *from; /* NULL: set to `value` */
    size_t bytes;
    int value;
    void *staged;
} copy;

static void *where(const void *p, size_t bytes) { /* any memory at all; NULL after a fault */
    return arena_of(p) >= 0 ? standin_bytes(p, bytes, -1, "a copy") : (void *)(uintptr_t)p;
}
static void copy_run(void *arg) {
    const copy *const c = (const copy *)arg;
    void *const to = where(c->to, c->bytes);
    const void *from = c->staged;
    if (!from && c->from) from = where(c->from, c->bytes);
    if (to && !c->from && !c->staged)
        memset(to, c->value, c->bytes);
    else if (to && from)
        memmove(to, from, c->bytes);
}
static void copy_drop(void *arg) {
    free(((copy *)arg)->staged);
    free(arg);
}

static bool direction_is_wrong(const void *to, const void *from, int kind) {
    const bool to_dev = arena_of(to) >= 0, from_dev = arena_of(from) >= 0;
    if (kind == cudaMemcpyDefault || pinned_of(to, 1) || pinned_of(from, 1)) return false;
    return to_dev != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice)
        || from_dev != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
}

/* `now`: wait for it. Host memory that is not pinned is read at once, and written before the
   call returns. */
static cudaError_t copy_start(
    void *to, const void *from, int value, size_t bytes, int kind, cudaStream_t stream, bool now) {
    HEALTHY();
    STREAM(s, stream);
    copy *c;
    if (now) SAFE();
    if (!bytes) LEAVE(cudaSuccess);
    if (from && direction_is_wrong(to, from, kind)) LEAVE(cudaErrorInvalidValue);
    c = (copy *)calloc(1, sizeof *c);
    c->to = to;
    c->from = from;
    c->value = value;
    c->bytes = bytes;
    if (from && !s->cap && arena_of(from) < 0 && !pinned_of(from, bytes)) {
        c->staged = malloc(bytes);
        memcpy(c->staged, from, bytes);
    }
    now = now || (!s->cap && arena_of(to) < 0 && !pinned_of(to, bytes));
    const standin_work w = {copy_run, copy_drop, c, from ? "copy" : "set"};
    if (s->cap)
        node_add(s, &w);
    else {
        legacy_order(s);
        enqueue(s, &w, NULL, NULL);
    }
    if (now && !s->cap) drain(s);
    LEAVE(now ? sick() : cudaSuccess);
}

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    ENTER("cudaMemcpyAsync");
    return copy_start(to, from, 0, bytes, (int)kind, stream, false);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    ENTER("cudaMemcpy");
    return copy_start(to, from, 0, bytes, (int)kind, NULL, true);
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    ENTER("cudaMemsetAsync");
    return copy_start(to, NULL, value, bytes, 0, stream, false);
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    ENTER("cudaMemset");
    return copy_start(to, NULL, value, bytes, 0, NULL, true);
}

/* ---- streams and events ---- */

static cudaError_t stream_create(cudaStream_t *out, unsigned flags) {
    HEALTHY();
    standin_stream *const s = (standin_stream *)calloc(1, sizeof *s);
    s->refs = 1;
    pthread_cond_init(&s->filled, NULL);
    s->flags = flags;
    s->device = current_device;
    s->tail = &s->head;
    s->next = streams;
    streams = s;
    count_locked("streams", 1);
    *out = (cudaStream_t)(void *)s;
    LEAVE(cudaSuccess);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    ENTER("cudaStreamCreateWithPriority");
    (void)priority;
    return stream_create(out, flags);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    ENTER("cudaStreamCreateWithFlags");
    return stream_create(out, flags);
}
cudaError_t cudaStreamCreate(cudaStream_t *out) {
    return cudaStreamCreateWithFlags(out, 0);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER("cudaDeviceGetStreamPriorityRange");
    *least = 0;
    *greatest = -5;
    LEAVE(cudaSuccess);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    ENTER("cudaStreamDestroy");
    standin_stream **at = &streams;
    while (*at && (void *)*at != (void *)stream)
        at = &(*at)->next;
    standin_stream *const s = *at;
    if (!s) LEAVE(cudaErrorInvalidResourceHandle);
    *at = s->next;
    s->destroyed = true;
    pthread_cond_signal(&s->filled);
    if (s->cap) {
        s->cap->spoiled = true;
        capture_drop(s->cap);
        s->cap = NULL;
    }
    count_locked("streams", -1);
    stream_drop(s);
    LEAVE(cudaSuccess);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    ENTER("cudaStreamQuery");
    SAFE();
    STREAM(s, stream);
    if (s->cap) {
        s->cap->spoiled = true;
        LEAVE(cudaErrorStreamCaptureUnsupported);
    }
    HEALTHY();
    LEAVE(s->done == s->submitted ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    ENTER("cudaStreamSynchronize");
    SAFE();
    STREAM(s, stream);
    if (s->cap) {
        s->cap->spoiled = true;
        LEAVE(cudaErrorStreamCaptureUnsupported);
    }
    if (s->legacy) legacy_order(s);
    drain(s);
    LEAVE(sick());
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    ENTER("cudaStreamGetDevice");
    STREAM(s, stream);
    *device = s->device;
    LEAVE(cudaSuccess);
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    ENTER("cudaStreamGetFlags");
    STREAM(s, stream);
    *flags = s->flags;
    LEAVE(cudaSuccess);
}
static enum cudaStreamCaptureStatus capture_status(const standin_stream *s) {
    if (!s->cap) return cudaStreamCaptureStatusNone;
    return s->cap->spoiled ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    ENTER("cudaStreamIsCapturing");
    standin_stream *const s = find_locked(stream, current_device);
    if (!s) LEAVE(cudaErrorInvalidResourceHandle);
    if (s->legacy && captures_global(s->device)) LEAVE(cudaErrorStreamCaptureImplicit);
    *status = capture_status(s);
    LEAVE(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    ENTER("cudaEventCreateWithFlags");
    HEALTHY();
    cudaEvent_t const e = (cudaEvent_t)calloc(1, sizeof *e);
    e->timed = !(flags & cudaEventDisableTiming);
    e->device = current_device;
    e->next = events;
    events = e;
    count_locked("events", 1);
    *out = e;
    LEAVE(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, 0);
}

static bool event_exists(cudaEvent_t event) {
    for (cudaEvent_t e = events; e; e = e->next)
        if (e == event) return true;
    return false;
}
#define EVENT(event) \
    if (!event_exists(event)) LEAVE(cudaErrorInvalidResourceHandle)

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ENTER("cudaEventDestroy");
    EVENT(event);
    cudaEvent_t *at = &events;
    while (*at != event)
        at = &(*at)->next;
    *at = event->next;
    point_clear(&event->at);
    free(event);
    count_locked("events", -1);
    LEAVE(cudaSuccess);
}

static void tick_run(void *arg) {
    pthread_mutex_lock(&lock);
    ((ticket *)arg)->done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static cudaError_t record(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    STREAM(s, stream);
    EVENT(event);
    if (s->device != event->device) LEAVE(cudaErrorInvalidResourceHandle);
    point_clear(&event->at);
    event->recorded = true;
    if (s->cap && (flags & 1)) { /* an external event: a node of the graph */
        event->at.ticket = ticket_new();
        const standin_work w = {tick_run, NULL, event->at.ticket, "event"};
        s->cap->graph->nodes[node_add(s, &w)].in = ticket_keep(event->at.ticket);
    } else {
        point_set(&event->at, s);
    }
    LEAVE(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER("cudaEventRecord");
    HEALTHY();
    return record(event, stream, 0);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    ENTER("cudaEventRecordWithFlags");
    HEALTHY();
    return record(event, stream, flags);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    ENTER("cudaStreamWaitEvent");
    (void)flags;
    STREAM(s, stream);
    EVENT(event);
    const long drop = setting_of("drop_wait");
    if (drop < 0) LEAVE(cudaSuccess);
    if (drop > 0) {
        standin_set("drop_wait", drop - 1);
        if (drop == 1) LEAVE(cudaSuccess);
    }
    legacy_order(s);
    LEAVE(event->recorded ? after_locked(s, &event->at) : cudaSuccess);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER("cudaEventQuery");
    EVENT(event);
    SAFE();
    if (event->at.cap) {
        event->at.cap->spoiled = true;
        LEAVE(cudaErrorCapturedEvent);
    }
    HEALTHY();
    LEAVE(!event->at.ticket || event->at.ticket->done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER("cudaEventSynchronize");
    EVENT(event);
    SAFE();
    if (event->at.cap) {
        event->at.cap->spoiled = true;
        LEAVE(cudaErrorCapturedEvent);
    }
    ticket *const t = ticket_keep(event->at.ticket);
    while (t && !t->done)
        wait_a_bit();
    ticket_drop(t);
    LEAVE(sick());
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    ENTER("cudaEventElapsedTime");
    EVENT(from);
    EVENT(to);
    if (!from->timed || !to->timed || !from->at.ticket || !to->at.ticket)
        LEAVE(cudaErrorInvalidResourceHandle);
    if (!from->at.ticket->done || !to->at.ticket->done) LEAVE(cudaErrorNotReady);
    *ms = (float)(to->at.ticket->ms - from->at.ticket->ms);
    LEAVE(cudaSuccess);
}

typedef struct host_call {
    cudaHostFn_t func;
    void *arg;
} host_call;
static void host_run(void *arg) {
    ((host_call *)arg)->func(((host_call *)arg)->arg);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t func, void *arg) {
    ENTER("cudaLaunchHostFunc");
    HEALTHY();
    STREAM(s, stream);
    host_call *const h = (host_call *)malloc(sizeof *h);
    h->func = func;
    h->arg = arg;
    const standin_work w = {host_run, free, h, "host function"};
    if (s->cap)
        node_add(s, &w);
    else {
        legacy_order(s);
        enqueue(s, &w, NULL, NULL);
    }
    LEAVE(cudaSuccess);
}

/* ---- capture and graphs ---- */

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    ENTER("cudaThreadExchangeStreamCaptureMode");
    const int old = exchange_mode;
    exchange_mode = (int)*mode;
    *mode = (enum cudaStreamCaptureMode)old;
    LEAVE(cudaSuccess);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    ENTER("cudaStreamBeginCapture");
    standin_stream *const s = find_locked(stream, current_device);
    if (!s) LEAVE(cudaErrorInvalidResourceHandle);
    if (s->legacy) LEAVE(cudaErrorStreamCaptureUnsupported);
    if (s->cap) LEAVE(cudaErrorInvalidValue);
    capture *const c = (capture *)calloc(1, sizeof *c);
    c->id = ++capture_ids;
    c->mode = (int)mode;
    c->origin = s;
    c->thread = pthread_self();
    c->graph = (struct CUgraph_st *)calloc(1, sizeof *c->graph);
    c->graph->refs = 1;
    c->next = captures;
    captures = c;
    capture_join(s, c);
    LEAVE(cudaSuccess);
}

static bool reaches(const struct CUgraph_st *g, const int *from, int n, int to) {
    for (int i = 0; i < n; ++i)
        if (from[i] == to || reaches(g, g->nodes[from[i]].deps, g->nodes[from[i]].n_deps, to))
            return true;
    return false;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    ENTER("cudaStreamEndCapture");
    standin_stream *const s = find_locked(stream, current_device);
    int e = cudaSuccess;
    if (!s) LEAVE(cudaErrorInvalidResourceHandle);
    capture *const c = s->cap;
    if (!c) LEAVE(cudaErrorInvalidValue);
    if (c->origin != s) LEAVE(cudaErrorStreamCaptureUnmatched);
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
        LEAVE(cudaErrorStreamCaptureWrongThread);
    for (standin_stream *o = streams; o; o = o->next) {
        if (o->cap != c || o == s) continue;
        for (int i = 0; i < o->n_deps; ++i)
            if (!reaches(c->graph, s->deps, s->n_deps, o->deps[i]))
                e = cudaErrorStreamCaptureUnjoined;
        o->cap = NULL;
        capture_drop(c);
    }
    if (c->spoiled) e = cudaErrorStreamCaptureInvalidated;
    *out = NULL;
    if (e == cudaSuccess) {
        *out = c->graph;
        ++c->graph->refs;
        count_locked("graphs", 1);
    }
    c->ended = true;
    s->cap = NULL;
    capture_drop(c);
    LEAVE(e);
}

static cudaError_t capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
    unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **deps, size_t *n) {
    standin_stream *const s = find_locked(stream, current_device);
    if (!s) LEAVE(cudaErrorInvalidResourceHandle);
    if (s->legacy && captures_global(s->device)) LEAVE(cudaErrorStreamCaptureImplicit);
    if (status) *status = capture_status(s);
    if (id && s->cap) *id = s->cap->id;
    if (graph) *graph = s->cap ? s->cap->graph : NULL;
    if (deps) *deps = NULL;
    if (n) *n = 0;
    LEAVE(cudaSuccess);
}
/* CUDA 12 knows _v2 (without edgeData); CUDA 13 has this form under the plain name. */
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
    unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **deps, size_t *n) {
    ENTER("cudaStreamGetCaptureInfo");
    return capture_info(stream, status, id, graph, deps, n);
}

struct CUgraphExec_st {
    int refs;
    struct CUgraph_st *graph;
    bool busy;
};

cudaError_t cudaGraphInstantiate(
    cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    ENTER("cudaGraphInstantiate");
    (void)flags;
    SAFE();
    cudaGraphExec_t const x = (cudaGraphExec_t)calloc(1, sizeof *x);
    x->refs = 1;
    x->graph = graph;
    ++graph->refs;
    count_locked("graphs", 1);
    *out = x;
    LEAVE(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    ENTER("cudaGraphDestroy");
    count_locked("graphs", -1);
    graph_drop(graph);
    LEAVE(cudaSuccess);
}
static void exec_drop(cudaGraphExec_t x) {
    if (--x->refs) return;
    graph_drop(x->graph);
    free(x);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) {
    ENTER("cudaGraphExecDestroy");
    count_locked("graphs", -1);
    exec_drop(x);
    LEAVE(cudaSuccess);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) {
    ENTER("cudaGraphGetNodes");
    (void)nodes;
    *n = (size_t)graph->n;
    LEAVE(cudaSuccess);
}

typedef struct node_job {
    struct CUgraph_st *graph;
    int *state, node;
} node_job;

static void *node_main(void *p) {
    node_job *const j = (node_job *)p;
    standin_pause();
    j->graph->nodes[j->node].work.run(j->graph->nodes[j->node].work.arg);
    pthread_mutex_lock(&lock);
    j->state[j->node] = 2;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(j);
    return NULL;
}

static void graph_run(void *arg) {
    cudaGraphExec_t const x = (cudaGraphExec_t)arg;
    struct CUgraph_st *const g = x->graph;
    int *const state = (int *)calloc((size_t)g->n + 1, sizeof *state), done = 0;
    pthread_t *const threads = (pthread_t *)calloc((size_t)g->n + 1, sizeof *threads);
    pthread_mutex_lock(&lock);
    while (x->busy)
        wait_a_bit(); /* one run at a time */
    x->busy = true;
    while (done < g->n) {
        done = 0;
        for (int i = 0; i < g->n; ++i) {
            bool ready = state[i] == 0;
            for (int k = 0; k < g->nodes[i].n_deps; ++k)
                ready = ready && state[g->nodes[i].deps[k]] == 2;
            if (ready) {
                node_job *const j = (node_job *)malloc(sizeof *j);
                j->graph = g;
                j->state = state;
                j->node = i;
                state[i] = 1;
                if (pthread_create(&threads[i], NULL, node_main, j) != 0) abort();
            }
            done += state[i] == 2;
        }
        if (done < g->n) wait_a_bit();
    }
    x->busy = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < g->n; ++i)
        pthread_join(threads[i], NULL);
    free(threads);
    free(state);
}
static void graph_run_drop(void *arg) {
    pthread_mutex_lock(&lock);
    exec_drop((cudaGraphExec_t)arg);
    pthread_mutex_unlock(&lock);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t stream) {
    ENTER("cudaGraphLaunch");
    HEALTHY();
    STREAM(s, stream);
    const standin_work w = {graph_run, graph_run_drop, x, "graph"};
    if (s->cap) LEAVE(cudaErrorNotSupported);
    ++x->refs;
    legacy_order(s);
    enqueue(s, &w, NULL, NULL);
    LEAVE(cudaSuccess);
}
