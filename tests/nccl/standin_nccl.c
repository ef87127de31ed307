/* standin_nccl.c - NCCL's part of the stand-in (standin.h says what that is): libnccl.so

   STANDIN_NCCL is the version that it pretends to be (default: 22907); what that version does
   not have is left out. Ranks meet in a file below $TMPDIR, whose name is the unique id; it is
   removed as soon as all have opened it. Between two ranks there is one small mailbox for each
   direction; every collective is a number of messages and, for reductions, arithmetic of each
   rank for itself in the order of ranks. Every message carries what was called: whoever gets
   another one than it expects waits until it is aborted, as with the real library. */
#define _GNU_SOURCE
#include "standin.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef STANDIN_NCCL
#define STANDIN_NCCL 22907
#endif
#define RANKS_MAX 16
#define MAIL_BYTES 32768

typedef struct mail {
    uint32_t full, bytes;
    uint64_t what;
    uint8_t data[MAIL_BYTES];
} mail;

typedef struct shared {
    uint32_t here, left, finalized, splits[RANKS_MAX], split_read[RANKS_MAX];
    int32_t color[RANKS_MAX], key[RANKS_MAX];
    mail box[RANKS_MAX * RANKS_MAX];
} shared;

typedef struct handle {
    struct handle *next;
} handle;

/* Memory that all ranks have registered together. The real library keeps it at one offset on all
   ranks, which follows from the windows that exist: so these must be the same ones everywhere. */
typedef struct window {
    struct window *next;
    const uint8_t *at;
    size_t bytes;
    uint32_t number; /* of this communicator, from 1 */
} window;

struct ncclComm {
    struct ncclComm *next;
    int n, rank, device;
    bool blocking, premul_used;
    char name[160];
    shared *mem;
    int abort_flag, state; /* state: an ncclResult_t */
    int flying, launching; /* operations in streams; helpers that will put some there */
    bool finalizing, revoked, dead, used;
    uint64_t ops;
    uint32_t splits, shrinks, grows;
    struct handle *handles; /* of memory that is registered; they go with the communicator */
    struct window *windows; /* likewise */
    uint32_t windows_made;
    /* operations of one communicator run one after the other, whatever their streams */
    standin_point *last;
    double factors[64]; /* of operators of its own */
    uint8_t factor_used[64];
    ncclDataType_t factor_type[64];
};

typedef enum kind {
    ALLREDUCE = 1,
    REDUCE,
    BROADCAST,
    ALLGATHER,
    REDUCE_SCATTER,
    ALLTOALL,
    GATHER,
    SCATTER,
    SEND,
    RECV
} kind;

typedef struct op {
    kind kind;
    const void *in;
    void *out;
    uint64_t count, seq;
    ncclDataType_t type;
    int op, peer; /* peer: or the root */
    double factor;
    ncclComm_t comm;
    cudaStream_t stream;
} op;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ncclComm_t comms;
static __thread int depth;
static __thread op *pending;
static __thread int n_pending;
static __thread ncclResult_t group_error;
static __thread char last_error[300];

static int load(const int *p) {
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
static void store(int *p, int v) {
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);
}
static uint32_t load_u(const uint32_t *p) {
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

static ncclResult_t refuse(ncclResult_t e, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(last_error, sizeof last_error, format, ap);
    va_end(ap);
    return e;
}

#define ENTER(name)                                                                \
    do {                                                                           \
        int e_;                                                                    \
        if (standin_call(name, &e_))                                               \
            return refuse((ncclResult_t)e_, "%s: as the stand-in was told", name); \
    } while (0)

/* ---- arithmetic ---- */

static size_t size_of(int type) {
    static const uint8_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < (STANDIN_NCCL >= 22400 ? 12 : 10) ? sizes[type] : 0;
}

static float from_f16(uint16_t h) {
    _Float16 f;
    memcpy(&f, &h, 2);
    return (float)f;
}
static uint16_t to_f16(float v) {
    const _Float16 f = (_Float16)v;
    uint16_t h;
    memcpy(&h, &f, 2);
    return h;
}
static float from_bf16(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f != f) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* 8 bits: 1 sign, `e` exponent bits; e4m3 has no infinity, and is clipped at 448. */
static float from_f8(uint8_t v, int e) {
    const int m = 7 - e, bias = (1 << (e - 1)) - 1, ex = v >> m & ((1 << e) - 1),
              fr = v & ((1 << m) - 1);
    float f = ex ? (float)(fr + (1 << m)) : (float)fr;
    int shift = (ex ? ex : 1) - bias - m;
    if (e == 4 ? (v & 127) == 127 : ex == 31)
        f = e == 5 && !fr ? __builtin_inff() : __builtin_nanf("");
    for (; shift > 0; --shift)
        f *= 2;
    for (; shift < 0; ++shift)
        f /= 2;
    return v & 128 ? -f : f;
}
static uint8_t to_f8(float f, int e) { /* the nearest of 256, the even one of two: slow and plain */
    int best = -1;
    double least = 0;
    if (f != f) return 127;
    for (int v = 0; v < 128; ++v) {
        const float g = from_f8((uint8_t)v, e);
        const double d = __builtin_fabs((double)g - __builtin_fabs((double)f));
        if (g != g || __builtin_isinf(g)) continue;
        if (best < 0 || d < least || (d == least && !(v & 1))) {
            best = v;
            least = d;
        }
    }
    return (uint8_t)(best | (f < 0 || (f == 0 && __builtin_signbit(f)) ? 128 : 0));
}
static float from_e4m3(uint8_t v) {
    return from_f8(v, 4);
}
static float from_e5m2(uint8_t v) {
    return from_f8(v, 5);
}
static uint8_t to_e4m3(float f) {
    return to_f8(f, 4);
}
static uint8_t to_e5m2(float f) {
    return to_f8(f, 5);
}

/* Of type U_ are sums and products, of T_ everything else: unsigned numbers wrap. */
#define COMBINE(T_, U_)                                     \
    switch (op) {                                           \
    case ncclProd: result = (T_)(U_)((U_)a * (U_)b); break; \
    case ncclMax: result = a > b ? a : b; break;            \
    case ncclMin: result = a < b ? a : b; break;            \
    default: result = (T_)(U_)((U_)a + (U_)b);              \
    }
#define INTS(T_, U_)                                          \
    for (uint64_t i = 0; i < count; ++i) {                    \
        const T_ a = ((T_ *)acc)[i], b = ((const T_ *)in)[i]; \
        T_ result;                                            \
        COMBINE(T_, U_)                                       \
        ((T_ *)acc)[i] = result;                              \
    }                                                         \
    break
#define FLOATS(T_, S_, GET, PUT)                                        \
    for (uint64_t i = 0; i < count; ++i) {                              \
        const T_ a = GET(((S_ *)acc)[i]), b = GET(((const S_ *)in)[i]); \
        T_ result;                                                      \
        COMBINE(T_, T_)                                                 \
        ((S_ *)acc)[i] = PUT(result);                                   \
    }                                                                   \
    break

/* acc := acc op in. Signed integers wrap, as they do on a GPU. */
static void combine(void *acc, const void *in, uint64_t count, int type, int op) {
    switch (type) {
    case ncclInt8: INTS(int8_t, uint32_t);
    case ncclUint8: INTS(uint8_t, uint32_t);
    case ncclInt32: INTS(int32_t, uint32_t);
    case ncclUint32: INTS(uint32_t, uint32_t);
    case ncclInt64: INTS(int64_t, uint64_t);
    case ncclUint64: INTS(uint64_t, uint64_t);
    case ncclFloat16: FLOATS(float, uint16_t, from_f16, to_f16);
    case ncclBfloat16: FLOATS(float, uint16_t, from_bf16, to_bf16);
    case ncclFloat8e4m3: FLOATS(float, uint8_t, from_e4m3, to_e4m3);
    case ncclFloat8e5m2: FLOATS(float, uint8_t, from_e5m2, to_e5m2);
    case ncclFloat32: FLOATS(float, float, , );
    case ncclFloat64: FLOATS(double, double, , );
    default: abort();
    }
}

/* NCCL's mean: floats are multiplied by 1/n before the sum, integers are divided after it. */
static void scale(void *v, uint64_t count, int type, double factor) {
    for (uint64_t i = 0; i < count; ++i)
        switch (type) {
        case ncclFloat16:
            ((uint16_t *)v)[i] = to_f16(from_f16(((uint16_t *)v)[i]) * (float)factor);
            break;
        case ncclBfloat16:
            ((uint16_t *)v)[i] = to_bf16(from_bf16(((uint16_t *)v)[i]) * (float)factor);
            break;
        case ncclFloat8e4m3:
            ((uint8_t *)v)[i] = to_e4m3(from_e4m3(((uint8_t *)v)[i]) * (float)factor);
            break;
        case ncclFloat8e5m2:
            ((uint8_t *)v)[i] = to_e5m2(from_e5m2(((uint8_t *)v)[i]) * (float)factor);
            break;
        case ncclFloat32: ((float *)v)[i] *= (float)factor; break;
        case ncclFloat64: ((double *)v)[i] *= factor; break;
        default: break;
        }
}
static void divide(void *v, uint64_t count, int type, int n) {
    for (uint64_t i = 0; i < count; ++i)
        switch (type) {
        case ncclInt8: ((int8_t *)v)[i] = (int8_t)(((int8_t *)v)[i] / n); break;
        case ncclUint8: ((uint8_t *)v)[i] = (uint8_t)(((uint8_t *)v)[i] / (unsigned)n); break;
        case ncclInt32: ((int32_t *)v)[i] /= n; break;
        case ncclUint32: ((uint32_t *)v)[i] /= (unsigned)n; break;
        case ncclInt64: ((int64_t *)v)[i] /= n; break;
        case ncclUint64: ((uint64_t *)v)[i] /= (unsigned)n; break;
        default: break;
        }
}

/* ---- messages ---- */

typedef struct message {
    bool send, begun, lost;
    int peer;
    uint8_t *at;
    uint64_t bytes, moved, what;
} message;

typedef struct plan { /* the messages of what runs now */
    message m[4 * RANKS_MAX];
    int n;
} plan;

static void nap(void) {
    const struct timespec t = {0, 30000};
    nanosleep(&t, NULL);
}

static bool move(ncclComm_t c, message *m) { /* true: something was moved */
    mail *const box =
        &c->mem->box[m->send ? c->rank * RANKS_MAX + m->peer : m->peer * RANKS_MAX + c->rank];
    const uint64_t left = m->bytes - m->moved, piece = left < MAIL_BYTES ? left : MAIL_BYTES;
    if (m->lost || (!left && m->begun)) return false;
    if (m->send) {
        if (load_u(&box->full)) return false;
        memcpy(box->data, m->at + m->moved, piece);
        box->bytes = (uint32_t)piece;
        box->what = m->what;
        __atomic_store_n(&box->full, 1, __ATOMIC_SEQ_CST);
    } else {
        if (!load_u(&box->full)) return false;
        /* not what was expected: hangs, as the real one does */
        if (box->what != m->what || box->bytes != piece) {
            m->lost = true;
            return false;
        }
        memcpy(m->at + m->moved, box->data, piece);
        __atomic_store_n(&box->full, 0, __ATOMIC_SEQ_CST);
    }
    m->moved += piece;
    m->begun = true;
    return true;
}

static bool exchange(ncclComm_t c, plan *p) { /* false: aborted */
    for (;;) {
        bool done = true, moved = false;
        for (int i = 0; i < p->n; ++i) {
            moved = move(c, &p->m[i]) || moved;
            done = done && p->m[i].begun && p->m[i].moved == p->m[i].bytes;
        }
        if (load(&c->abort_flag)) return false;
        if (done) return true;
        if (!moved) nap();
    }
}

static void message_add(
    plan *p, bool send, int peer, const void *at, uint64_t bytes, uint64_t what) {
    if (p->n == 4 * RANKS_MAX) abort();
    message *const m = &p->m[p->n++];
    memset(m, 0, sizeof *m);
    m->send = send;
    m->peer = peer;
    m->at = (uint8_t *)(uintptr_t)at;
    m->bytes = bytes;
    m->what = what;
}

static uint64_t what_of(const op *o) {
    const int type = o->kind == SEND ? 0 : (int)o->type, root = o->kind == SEND ? 0 : o->peer;
    return ((((uint64_t)o->kind * 16 + (uint64_t)type) * 32 + (uint64_t)(o->op > 7 ? 7 : o->op))
                   * 32
               + (uint64_t)root)
        * 1000003u
        + o->count * 7919u + (o->kind == SEND ? 0 : o->seq << 48);
}

/* ---- operations, in the thread of a stream ---- */

/* Every rank sends block `to` of its input to rank `to` (all: the whole of it), and reduces what
   it gets. */
static bool run_reduce(ncclComm_t c, const op *o, const uint8_t *in, uint8_t *out) {
    const bool scatter = o->kind == REDUCE_SCATTER, mine = o->kind != REDUCE || o->peer == c->rank;
    const uint64_t bytes = o->count * size_of(o->type),
                   whole = bytes * (scatter ? (uint64_t)c->n : 1);
    uint8_t *const copy = (uint8_t *)malloc(whole + 1),
                   *const got = (uint8_t *)malloc(bytes * (uint64_t)c->n + 1);
    const double factor = o->op == ncclAvg ? 1.0 / c->n : o->factor;
    plan p = {.n = 0};
    bool ok;
    memcpy(copy, in, whole);
    if (o->op == ncclAvg || o->op >= ncclNumOps)
        scale(copy, whole / size_of(o->type), (int)o->type, factor);
    for (int r = 0; r < c->n; ++r) {
        const uint8_t *const part = copy + (scatter ? bytes * (uint64_t)r : 0);
        if (r == c->rank)
            memcpy(got + bytes * (uint64_t)r, part, bytes);
        else if (o->kind != REDUCE || r == o->peer)
            message_add(&p, true, r, part, bytes, what_of(o));
        if (r != c->rank && mine)
            message_add(&p, false, r, got + bytes * (uint64_t)r, bytes, what_of(o));
    }
    ok = exchange(c, &p);
    if (ok && mine) {
        for (int r = 1; r < c->n; ++r)
            combine(got, got + bytes * (uint64_t)r, o->count, (int)o->type,
                o->op > ncclMin ? ncclSum : o->op);
        if (o->op == ncclAvg) divide(got, o->count, (int)o->type, c->n);
        memcpy(out, got, bytes);
    }
    free(copy);
    free(got);
    return ok;
}

static bool run_move(ncclComm_t c, const op *o, const uint8_t *in, uint8_t *out) {
    const uint64_t bytes = o->count * size_of(o->type);
    const bool root = o->peer == c->rank,
               all_send = o->kind == ALLGATHER || o->kind == ALLTOALL || o->kind == GATHER;
    const bool all_get =
        o->kind == ALLGATHER || o->kind == ALLTOALL || o->kind == SCATTER || o->kind == BROADCAST;
    uint8_t *const copy = (uint8_t *)malloc(bytes * (uint64_t)c->n + 1);
    const bool parts = o->kind == ALLTOALL || o->kind == SCATTER, sends = all_send || root;
    plan p = {.n = 0};
    if (sends) memcpy(copy, in, bytes * (parts ? (uint64_t)c->n : 1));
    for (int r = 0; r < c->n; ++r) {
        const uint8_t *const from = copy + (parts ? bytes * (uint64_t)r : 0);
        const bool from_r = all_send || o->peer == r, to_r = all_get || o->peer == r;
        uint8_t *const to = out
            + (o->kind == ALLGATHER || o->kind == ALLTOALL || o->kind == GATHER
                    ? bytes * (uint64_t)r
                    : 0);
        if (r == c->rank) {
            if (sends && (all_get || root)) memcpy(to, from, bytes);
            continue;
        }
        if (sends && to_r) message_add(&p, true, r, from, bytes, what_of(o));
        if (from_r && (all_get || root)) message_add(&p, false, r, to, bytes, what_of(o));
    }
    const bool ok = exchange(c, &p);
    free(copy);
    return ok;
}

typedef struct launch {
    int n, refs;
    ncclComm_t comm;
    op ops[];
} launch;

static bool run_op(ncclComm_t c, const op *o) {
    const uint64_t bytes = o->count * size_of(o->type), all = bytes * (uint64_t)c->n;
    const bool root = o->peer == c->rank,
               wide_in = o->kind == REDUCE_SCATTER || o->kind == ALLTOALL || o->kind == SCATTER;
    const bool wide_out = o->kind == ALLGATHER || o->kind == ALLTOALL || o->kind == GATHER;
    const bool reads = root || (o->kind != BROADCAST && o->kind != SCATTER),
               writes = root || (o->kind != REDUCE && o->kind != GATHER);
    const uint8_t *in = NULL;
    uint8_t *out = NULL;
    if (reads)
        in = (const uint8_t *)standin_bytes(
            o->in, wide_in ? all : bytes, c->device, "the input of an NCCL operation");
    if (writes)
        out = (uint8_t *)standin_bytes(
            o->out, wide_out ? all : bytes, c->device, "the output of an NCCL operation");
    if ((reads && !in) || (writes && !out)) return false;
    return o->kind == ALLREDUCE || o->kind == REDUCE || o->kind == REDUCE_SCATTER
        ? run_reduce(c, o, in, out)
        : run_move(c, o, in, out);
}

static void launch_run(void *arg) {
    launch *const l = (launch *)arg;
    ncclComm_t const c = l->comm;
    plan p = {.n = 0};
    bool ok = true, graph = false;
    pthread_mutex_lock(&lock);
    if (c->dead)
        graph = true;
    else if (l->refs > 1)
        ++c->flying;
    pthread_mutex_unlock(&lock);
    if (graph) {
        standin_fault("a graph ran an operation of a communicator that was destroyed");
        return;
    }
    for (int i = 0; i < l->n && ok; ++i) {
        const op *const o = &l->ops[i];
        if (o->kind != SEND && o->kind != RECV) continue;
        op as = *o;
        as.kind = SEND; /* a receive expects what the other side calls a send */
        void *const at = standin_bytes(o->kind == SEND ? o->in : o->out,
            o->count * size_of(o->type), c->device, "the memory of an NCCL message");
        ok = at != NULL;
        if (ok)
            message_add(
                &p, o->kind == SEND, o->peer, at, o->count * size_of(o->type), what_of(&as));
    }
    if (ok && p.n) ok = exchange(c, &p);
    for (int i = 0; i < l->n && ok; ++i)
        if (l->ops[i].kind != SEND && l->ops[i].kind != RECV) ok = run_op(c, &l->ops[i]);
    pthread_mutex_lock(&lock);
    --c->flying;
    pthread_mutex_unlock(&lock);
}

static void launch_drop(void *arg) {
    free(arg);
}

/* Puts operations of one communicator behind what is in all of their streams, as one item. */
static ncclResult_t launch_ops(ncclComm_t c, const op *ops, int n) {
    launch *const l = (launch *)calloc(1, sizeof *l + (size_t)n * sizeof *ops);
    standin_stream *const s = standin_find((void *)ops[0].stream, c->device);
    const standin_work w = {launch_run, launch_drop, l, "NCCL"};
    bool captured;
    if (!s || standin_device_of(s) != c->device) {
        free(l);
        return refuse(ncclUnhandledCudaError, "the stream is none of device %d", c->device);
    }
    captured = standin_capturing(s);
    l->n = n;
    l->comm = c;
    l->refs = captured ? 2 : 1; /* operations of a graph may run any number of times */
    memcpy(l->ops, ops, (size_t)n * sizeof *ops);
    for (int i = 1; i < n; ++i) {
        standin_stream *const o = standin_find((void *)ops[i].stream, c->device);
        if (!o || standin_device_of(o) != c->device) {
            free(l);
            return refuse(ncclUnhandledCudaError, "a stream is none of device %d", c->device);
        }
        if (o == s) continue;
        standin_point *const here = standin_here(o);
        standin_after(s, here);
        standin_point_free(here);
    }
    pthread_mutex_lock(&lock);
    standin_point *const last = c->last;
    c->last = NULL;
    if (!captured) ++c->flying;
    pthread_mutex_unlock(&lock);
    standin_after(s, last);
    standin_point_free(last);
    standin_submit(s, &w);
    standin_point *const here = standin_here(s);
    for (int i = 1; i < n; ++i) {
        standin_stream *const o = standin_find((void *)ops[i].stream, c->device);
        if (o != s) standin_after(o, here);
    }
    pthread_mutex_lock(&lock);
    c->last = here;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

typedef struct later {
    ncclComm_t comm;
    int n;
    op ops[];
} later;

static void *later_main(void *p) {
    later *const l = (later *)p;
    standin_pause();
    /* what comes after this look comes too late */
    const bool stopped = load(&l->comm->abort_flag) != 0;
    standin_pause();
    const ncclResult_t e = stopped ? ncclSuccess : launch_ops(l->comm, l->ops, l->n);
    pthread_mutex_lock(&lock);
    if (l->comm->state == ncclInProgress) store(&l->comm->state, (int)e);
    --l->comm->launching;
    pthread_mutex_unlock(&lock);
    free(l);
    return NULL;
}

static void detached(void *(*func)(void *), void *arg) {
    pthread_t t;
    if (pthread_create(&t, NULL, func, arg) != 0) abort();
    pthread_detach(t);
}

/* Non-blocking communicators put their operations into the stream later, now and then. */
static ncclResult_t launch_for(ncclComm_t c, const op *ops, int n) {
    const long lazy = standin_get("lazy");
    standin_stream *const s = standin_find((void *)ops[0].stream, c->device);
    const bool first = !c->used;
    c->used = true;
    if (!s) return refuse(ncclUnhandledCudaError, "there is no such stream");
    if (c->blocking || lazy < 1 || standin_capturing(s)
        || !(first || standin_random() % (uint64_t)lazy == 0))
        return launch_ops(c, ops, n);
    later *const l = (later *)malloc(sizeof *l + (size_t)n * sizeof *ops);
    l->comm = c;
    l->n = n;
    memcpy(l->ops, ops, (size_t)n * sizeof *ops);
    pthread_mutex_lock(&lock);
    store(&c->state, ncclInProgress);
    ++c->launching;
    pthread_mutex_unlock(&lock);
    detached(later_main, l);
    return ncclInProgress;
}

static ncclResult_t flush_group(void) {
    ncclResult_t e = group_error;
    bool progress = false;
    op *const ops = pending, *const some = (op *)malloc(((size_t)n_pending + 1) * sizeof *some);
    const int n = n_pending;
    pending = NULL;
    n_pending = 0;
    group_error = ncclSuccess;
    for (int i = 0; i < n && e == ncclSuccess; ++i) {
        int k = 0;
        ncclComm_t const c = ops[i].comm;
        if (!c) continue; /* went with an earlier one */
        for (int j = i; j < n; ++j)
            if (ops[j].comm == c) {
                some[k++] = ops[j];
                ops[j].comm = NULL;
            }
        e = launch_for(c, some, k);
        if (e == ncclInProgress) {
            progress = true;
            e = ncclSuccess;
        }
    }
    free(some);
    free(ops);
    return e == ncclSuccess && progress ? ncclInProgress : e;
}

static bool exists(ncclComm_t c) {
    for (ncclComm_t o = comms; o; o = o->next)
        if (o == c) return true;
    return false;
}

static ncclResult_t usable(ncclComm_t c) {
    if (!c) return refuse(ncclInvalidArgument, "no communicator"); /* the real one says so, too */
    pthread_mutex_lock(&lock);
    const bool known = exists(c);
    pthread_mutex_unlock(&lock);
    if (!known) {
        standin_fault("an NCCL call on a communicator that does not exist");
        return refuse(ncclInvalidArgument, "no such communicator");
    }
    if (load(&c->state) == ncclInProgress) {
        standin_fault("an NCCL call on a communicator whose last call is still in progress");
        return refuse(ncclInvalidArgument, "the communicator is not ready yet");
    }
    if (c->revoked || c->finalizing)
        return refuse(
            ncclInvalidUsage, "the communicator was %s", c->revoked ? "revoked" : "finalized");
    return load(&c->state) == ncclSuccess
        ? ncclSuccess
        : refuse((ncclResult_t)load(&c->state), "the communicator has failed");
}

static ncclResult_t start(kind kind, const void *in, void *out, uint64_t count, ncclDataType_t type,
    int red, int peer, ncclComm_t c, cudaStream_t stream) {
    op o = {kind, in, out, count, 0, type, red, peer, 1, c, stream};
    ncclResult_t e = usable(c);
    if (e == ncclSuccess && !size_of((int)type))
        e = refuse(ncclInvalidArgument, "there is no type %d", (int)type);
    if (e == ncclSuccess && (peer < 0 || peer >= c->n))
        e = refuse(ncclInvalidArgument, "there is no rank %d", peer);
    if (e == ncclSuccess
        && (red < 0
            || (red >= ncclNumOps
                && (red - ncclNumOps >= 64 || !c->factor_used[red - ncclNumOps]
                    || c->factor_type[red - ncclNumOps] != type))))
        e = refuse(ncclInvalidArgument, "there is no reduction %d for this type", red);
    if (e != ncclSuccess) {
        if (depth) group_error = e;
        return e;
    }
    if (red >= ncclNumOps) o.factor = c->factors[red - ncclNumOps];
    if (kind != SEND && kind != RECV) o.seq = ++c->ops;
    if (count) {
        pending = (op *)realloc(pending, ((size_t)n_pending + 1) * sizeof o);
        pending[n_pending++] = o;
    }
    return depth ? ncclSuccess : flush_group();
}

/* ---- communicators ---- */

static shared *map_file(const char *name, bool *last, int n) {
    const int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(shared)) != 0) return NULL;
    shared *const m =
        (shared *)mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (m == MAP_FAILED) return NULL;
    *last = __atomic_add_fetch(&m->here, 1, __ATOMIC_SEQ_CST) == (uint32_t)n;
    if (*last) unlink(name);
    return m;
}

/* Until everybody is here, or it is aborted. */
static void meet(ncclComm_t c) {
    bool last = false;
    const long slow = standin_get("slow_init");
    for (long i = 0; i < slow && !load(&c->abort_flag); ++i)
        usleep(1000);
    shared *const m = load(&c->abort_flag) ? NULL : map_file(c->name, &last, c->n);
    while (m && load_u(&m->here) < (uint32_t)c->n && !load(&c->abort_flag))
        usleep(200);
    pthread_mutex_lock(&lock);
    c->mem = m;
    if (c->state == ncclInProgress)
        store(&c->state, !m ? ncclSystemError : (ncclResult_t)standin_get("refuse"));
    --c->launching;
    pthread_mutex_unlock(&lock);
}
static void *meet_main(void *p) {
    meet((ncclComm_t)p);
    return NULL;
}

static ncclResult_t read_config(const ncclConfig_t *config, bool *blocking) {
    int v[4];
    *blocking = true;
    if (!config) return ncclSuccess;
    if (config->size < 40 || config->magic != 0xcafebeef || config->version < 21400)
        return refuse(ncclInvalidArgument, "the configuration was not initialized");
    memcpy(v, &config->blocking, sizeof v);
    if (v[0] != NCCL_CONFIG_UNDEF_INT && v[0] != 0 && v[0] != 1)
        return refuse(ncclInvalidArgument, "blocking is %d", v[0]);
    if (config->version >= 21700
        && ((v[1] != NCCL_CONFIG_UNDEF_INT && v[1] < 0)
            || (v[2] != NCCL_CONFIG_UNDEF_INT && v[2] <= 0)
            || (v[3] != NCCL_CONFIG_UNDEF_INT && v[3] <= 0)))
        return refuse(
            ncclInvalidArgument, "a field of the configuration is neither set nor undefined");
    *blocking = v[0] != 0;
    return ncclSuccess;
}

static ncclResult_t make(
    ncclComm_t *out, int n, int rank, int device, const char *name, bool blocking) {
    ncclComm_t const c = (ncclComm_t)calloc(1, sizeof *c);
    c->n = n;
    c->rank = rank;
    c->device = device;
    c->blocking = blocking;
    c->state = ncclInProgress;
    c->launching = 1;
    snprintf(c->name, sizeof c->name, "%s", name);
    pthread_mutex_lock(&lock);
    c->next = comms;
    comms = c;
    pthread_mutex_unlock(&lock);
    standin_count("comms", 1);
    *out = c;
    if (!blocking) {
        detached(meet_main, c);
        return ncclInProgress;
    }
    meet(c);
    return (ncclResult_t)load(&c->state);
}

extern cudaError_t cudaGetDevice(int *device);

ncclResult_t ncclGetVersion(int *version) {
    ENTER("ncclGetVersion");
    *version = STANDIN_NCCL;
    return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    ENTER("ncclGetUniqueId");
    const char *dir = getenv("TMPDIR");
    static uint32_t made;
    memset(id, 0, sizeof *id);
    /* the name is the id, so a folder with a long name has no room in it */
    if (!dir || !*dir || strlen(dir) > 60) dir = "/tmp";
    snprintf(id->internal, sizeof id->internal, "%s/standin.%d.%u", dir, (int)getpid(),
        __atomic_add_fetch(&made, 1, __ATOMIC_SEQ_CST));
    return ncclSuccess;
}
#if STANDIN_NCCL < 21400
typedef ncclConfig_t standin_config;
static
#endif
    ncclResult_t
    ncclCommInitRankConfig(
        ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config) {
    bool blocking;
    int device = 0;
    ENTER("ncclCommInitRankConfig");
    ncclResult_t e = read_config(config, &blocking);
    *comm = NULL;
    if (e != ncclSuccess) return e;
    if (cudaGetDevice(&device) != cudaSuccess)
        return refuse(ncclUnhandledCudaError, "there is no device");
    if (n < 1 || n > RANKS_MAX || rank < 0 || rank >= n)
        return refuse(ncclInvalidArgument, "rank %d of %d", rank, n);
    return make(comm, n, rank, device, id.internal, blocking);
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n, ncclUniqueId id, int rank) {
    ENTER("ncclCommInitRank");
    return ncclCommInitRankConfig(comm, n, id, rank, NULL);
}

const char *ncclGetErrorString(ncclResult_t e) {
    static const char *const texts[] = {"no error", "unhandled cuda error",
        "unhandled system error", "internal error", "invalid argument", "invalid usage",
        "remote process exited or there was a network error", "NCCL operation in progress"};
    return (unsigned)e < 8 ? texts[e] : "unknown result code";
}
const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return last_error;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *e) {
    ENTER("ncclCommGetAsyncError");
    pthread_mutex_lock(&lock);
    const bool known = exists(c);
    pthread_mutex_unlock(&lock);
    if (!known) {
        standin_fault("ncclCommGetAsyncError of a communicator that does not exist");
        return refuse(ncclInvalidArgument, "no such communicator");
    }
    *e = (ncclResult_t)load(&c->state);
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t c, int *n) {
    ENTER("ncclCommCount");
    *n = c->n;
    return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t c, int *device) {
    ENTER("ncclCommCuDevice");
    *device = c->device;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank) {
    ENTER("ncclCommUserRank");
    *rank = c->rank;
    return ncclSuccess;
}

void standin_async_error(int rank, int code) {
    pthread_mutex_lock(&lock);
    for (ncclComm_t c = comms; c; c = c->next)
        if (c->rank == rank) store(&c->state, code);
    pthread_mutex_unlock(&lock);
}

static bool busy(ncclComm_t c) {
    pthread_mutex_lock(&lock);
    const bool yes = c->flying || c->launching;
    pthread_mutex_unlock(&lock);
    return yes;
}

static ncclResult_t take_away(ncclComm_t c, const char *how) {
    pthread_mutex_lock(&lock);
    ncclComm_t *at = &comms;
    while (*at && *at != c)
        at = &(*at)->next;
    const bool known = *at != NULL;
    if (known) *at = c->next;
    pthread_mutex_unlock(&lock);
    if (!known) {
        standin_fault("%s of a communicator that does not exist", how);
        return refuse(ncclInvalidArgument, "no such communicator");
    }
    while (busy(c))
        nap();
    pthread_mutex_lock(&lock);
    c->dead = true;
    if (c->mem) munmap(c->mem, sizeof(shared));
    c->mem = NULL;
    while (c->handles) {
        handle *const h = c->handles;
        c->handles = h->next;
        free(h);
    }
    while (c->windows) {
        window *const w = c->windows;
        c->windows = w->next;
        free(w);
        standin_count("windows", -1);
    }
    standin_point *const last = c->last;
    c->last = NULL;
    pthread_mutex_unlock(&lock);
    standin_point_free(last);
    standin_count("comms", -1);
    /* The rest stays, since graphs may still name it: the stand-in then says so instead of
       crashing. */
    static ncclComm_t graveyard;
    pthread_mutex_lock(&lock);
    c->next = graveyard;
    graveyard = c;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c) {
    ENTER("ncclCommAbort");
    if (!c) return ncclSuccess;
    standin_pause(); /* the caller may have been kept waiting for the processor as well */
    store(&c->abort_flag, 1);
    return take_away(c, "ncclCommAbort");
}
ncclResult_t ncclCommDestroy(ncclComm_t c) {
    ENTER("ncclCommDestroy");
    if (!c) return ncclSuccess;
    return take_away(c, "ncclCommDestroy");
}

#if STANDIN_NCCL >= 21400
static void *finalize_main(void *p) {
    ncclComm_t const c = (ncclComm_t)p;
    for (;;) { /* its own operations, then everybody's */
        pthread_mutex_lock(&lock);
        const bool quiet = !c->flying && c->launching == 1;
        pthread_mutex_unlock(&lock);
        if (quiet || load(&c->abort_flag)) break;
        nap();
    }
    if (c->mem) __atomic_add_fetch(&c->mem->finalized, 1, __ATOMIC_SEQ_CST);
    while (c->mem && load_u(&c->mem->finalized) < (uint32_t)c->n && !load(&c->abort_flag))
        nap();
    pthread_mutex_lock(&lock);
    if (c->state == ncclInProgress) store(&c->state, ncclSuccess);
    --c->launching;
    pthread_mutex_unlock(&lock);
    return NULL;
}
ncclResult_t ncclCommFinalize(ncclComm_t c) {
    ENTER("ncclCommFinalize");
    const ncclResult_t e = usable(c);
    if (e != ncclSuccess) return e;
    pthread_mutex_lock(&lock);
    c->finalizing = true;
    store(&c->state, ncclInProgress);
    ++c->launching;
    pthread_mutex_unlock(&lock);
    if (!c->blocking) {
        detached(finalize_main, c);
        return ncclInProgress;
    }
    finalize_main(c);
    return (ncclResult_t)load(&c->state);
}
#endif

#if STANDIN_NCCL >= 21800
/* Everybody writes its colour, and nobody goes on before all have read them. */
static bool agree(ncclComm_t c, int color, int key, int *colors, int *keys) {
    const uint32_t round = ++c->splits;
    shared *const m = c->mem;
    for (int r = 0; r < c->n; ++r)
        while (load_u(&m->split_read[r]) < round - 1 && !load(&c->abort_flag))
            nap();
    m->color[c->rank] = color;
    m->key[c->rank] = key;
    __atomic_store_n(&m->splits[c->rank], round, __ATOMIC_SEQ_CST);
    for (int r = 0; r < c->n; ++r) {
        while (load_u(&m->splits[r]) < round && !load(&c->abort_flag))
            nap();
        colors[r] = __atomic_load_n(&m->color[r], __ATOMIC_SEQ_CST);
        keys[r] = __atomic_load_n(&m->key[r], __ATOMIC_SEQ_CST);
    }
    __atomic_store_n(&m->split_read[c->rank], round, __ATOMIC_SEQ_CST);
    return !load(&c->abort_flag);
}

static void outstanding(ncclComm_t c, const char *call) {
    pthread_mutex_lock(&lock);
    const bool yes = c->flying > 0;
    pthread_mutex_unlock(&lock);
    if (yes) standin_fault("%s while operations of the communicator are outstanding", call);
}

/* A communicator that is made from another one. A parent that does not block is in progress
   meanwhile, and *out is written when that is over: also after an abort that came too late to
   stop it. */
typedef struct making {
    ncclComm_t parent, *out;
    bool split, blocking;
    int color, key, n, rank, device;
    char name[160];
} making;

static ncclResult_t making_child(making *m, ncclComm_t *child) {
    ncclComm_t const c = m->parent;
    int colors[RANKS_MAX], keys[RANKS_MAX];
    if (m->split) {
        if (!agree(c, m->color, m->key, colors, keys)) return refuse(ncclInternalError, "aborted");
        if (m->color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
        for (int r = 0; r < c->n; ++r)
            if (colors[r] == m->color) {
                ++m->n;
                m->rank += keys[r] < m->key || (keys[r] == m->key && r < c->rank);
            }
        snprintf(m->name, sizeof m->name, "%s.%u.%d", c->name, c->splits, m->color);
    }
    return make(child, m->n, m->rank, m->device, m->name, m->blocking);
}

static void *making_main(void *p) {
    making *const m = (making *)p;
    ncclComm_t child = NULL;
    standin_pause();
    const ncclResult_t e = making_child(m, &child);
    if (child) __atomic_store_n(m->out, child, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&lock);
    if (m->parent->state == ncclInProgress)
        store(&m->parent->state, e == ncclInProgress ? ncclSuccess : (int)e);
    --m->parent->launching;
    pthread_mutex_unlock(&lock);
    free(m);
    return NULL;
}

static ncclResult_t made_from(const making *how) {
    ncclComm_t const c = how->parent;
    making *const m = (making *)malloc(sizeof *m);
    ncclComm_t child = NULL;
    ncclResult_t e;
    *m = *how;
    pthread_mutex_lock(&lock);
    if (!c->blocking && standin_get("lazy") > 0) {
        store(&c->state, ncclInProgress);
        ++c->launching;
        pthread_mutex_unlock(&lock);
        detached(making_main, m);
        return ncclInProgress;
    }
    ++c->launching; /* an abort from another thread waits until this one is out again */
    pthread_mutex_unlock(&lock);
    e = making_child(m, &child);
    if (child) *m->out = child;
    pthread_mutex_lock(&lock);
    --c->launching;
    pthread_mutex_unlock(&lock);
    free(m);
    return e;
}

ncclResult_t ncclCommSplit(
    ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    making m = {.parent = c,
        .out = out,
        .split = true,
        .blocking = c ? c->blocking : true,
        .color = color,
        .key = key,
        .device = c ? c->device : 0};
    ENTER("ncclCommSplit");
    ncclResult_t e = usable(c);
    *out = NULL;
    if (e == ncclSuccess && config) e = read_config(config, &m.blocking);
    if (e != ncclSuccess) return e;
    outstanding(c, "ncclCommSplit");
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
        return refuse(ncclInvalidArgument, "colour %d", color);
    return made_from(&m);
}
ncclResult_t ncclRedOpCreatePreMulSum(
    ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t where, ncclComm_t c) {
    ENTER("ncclRedOpCreatePreMulSum");
    const ncclResult_t e = usable(c);
    int i = 0;
    if (e != ncclSuccess) return e;
    if (where != ncclScalarHostImmediate)
        return refuse(ncclInvalidUsage, "the stand-in has no factors in device memory");
    while (i < 64 && c->factor_used[i])
        ++i;
    if (i == 64) return refuse(ncclInternalError, "too many reductions");
    c->factor_type[i] = type;
    switch ((int)type) {
    case ncclFloat64: c->factors[i] = *(double *)scalar; break;
    case ncclFloat32: c->factors[i] = *(float *)scalar; break;
    case ncclFloat16: c->factors[i] = from_f16(*(uint16_t *)scalar); break;
    case ncclBfloat16: c->factors[i] = from_bf16(*(uint16_t *)scalar); break;
    case ncclFloat8e4m3: c->factors[i] = from_e4m3(*(uint8_t *)scalar); break;
    case ncclFloat8e5m2: c->factors[i] = from_e5m2(*(uint8_t *)scalar); break;
    default: return refuse(ncclInvalidArgument, "a factor of an integer");
    }
    c->factor_used[i] = 1;
    *op = (ncclRedOp_t)(ncclNumOps + i);
    return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t c) {
    ENTER("ncclRedOpDestroy");
    if (load(&c->state) == ncclInProgress)
        standin_fault("ncclRedOpDestroy on a communicator whose last call is still in progress");
    const int i = (int)op - ncclNumOps;
    if (i < 0 || i >= 64 || !c->factor_used[i])
        return refuse(ncclInvalidArgument, "there is no such reduction");
    c->factor_used[i] = 0;
    return ncclSuccess;
}
#endif

#if STANDIN_NCCL >= 21900
typedef struct piece { /* of ncclMemAlloc */
    struct piece *next;
    uint8_t *at;
    size_t bytes;
} piece;
static piece *pieces; /* guarded by `lock` */

ncclResult_t ncclMemAlloc(void **p, size_t bytes) {
    extern cudaError_t cudaMalloc(void **, size_t);
    ENTER("ncclMemAlloc");
    if (cudaMalloc(p, bytes) != cudaSuccess) return ncclUnhandledCudaError;
    piece *const made = (piece *)calloc(1, sizeof *made);
    made->at = (uint8_t *)*p;
    made->bytes = bytes;
    pthread_mutex_lock(&lock);
    made->next = pieces;
    pieces = made;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* Whether a window of any communicator is in memory from `at` on. Under the lock. */
static bool in_a_window(const uint8_t *at, size_t bytes) {
    for (ncclComm_t c = comms; c; c = c->next)
        for (const window *w = c->windows; w; w = w->next)
            if (w->at < at + bytes && at < w->at + w->bytes) return true;
    return false;
}

ncclResult_t ncclMemFree(void *p) {
    piece **at, *gone = NULL;
    bool registered = false;
    ENTER("ncclMemFree");
    pthread_mutex_lock(&lock);
    for (at = &pieces; *at && (*at)->at != p; at = &(*at)->next) {
    }
    if (*at) {
        gone = *at;
        *at = gone->next;
        registered = in_a_window(gone->at, gone->bytes);
    }
    pthread_mutex_unlock(&lock);
    free(gone);
    if (registered) standin_fault("ncclMemFree(%p): it is in a window", p);
    /* unmaps: waits for nothing, unlike cudaFree */
    return standin_free(p) ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t c, void *p, size_t bytes, void **out) {
    ENTER("ncclCommRegister");
    *out = NULL;
    if (usable(c) != ncclSuccess || !standin_bytes(p, bytes, c->device, "ncclCommRegister"))
        return ncclInvalidArgument;
    handle *const h = (handle *)calloc(1, sizeof *h);
    pthread_mutex_lock(&lock);
    h->next = c->handles;
    c->handles = h;
    pthread_mutex_unlock(&lock);
    *out = h;
    return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t c, void *p) {
    handle **at, *h = NULL;
    ENTER("ncclCommDeregister");
    if (usable(c) != ncclSuccess) return ncclInvalidArgument;
    pthread_mutex_lock(&lock);
    for (at = &c->handles; *at && *at != p; at = &(*at)->next) {
    }
    if (*at) {
        h = *at;
        *at = h->next;
    }
    pthread_mutex_unlock(&lock);
    if (!h) standin_fault("ncclCommDeregister of a handle that this communicator does not have");
    free(h);
    return h ? ncclSuccess : ncclInvalidArgument;
}
#endif

#if STANDIN_NCCL >= 22700
/* A window that is being made: all ranks meet, and *out is written when they have, maybe late. */
typedef struct opening {
    ncclComm_t comm;
    ncclWindow_t *out;
    window *made;
} opening;

/* What all ranks must agree about: the windows that exist, and the size of the next one. */
static int heap_of(ncclComm_t c) {
    uint32_t sum = 0;
    pthread_mutex_lock(&lock);
    for (const window *w = c->windows; w; w = w->next)
        sum += (w->number * 2654435761u) ^ (uint32_t)w->bytes;
    pthread_mutex_unlock(&lock);
    return (int)(sum & 0x7fffffff);
}

static ncclResult_t open_together(opening *o) {
    ncclComm_t const c = o->comm;
    int bytes[RANKS_MAX], heaps[RANKS_MAX];
    if (!agree(c, (int)(o->made->bytes & 0x7fffffff), heap_of(c), bytes, heaps))
        return refuse(ncclInternalError, "aborted");
    for (int r = 0; r < c->n; ++r) {
        if (bytes[r] != bytes[0])
            standin_fault("ncclCommWindowRegister of %d bytes on rank 0, %d on rank %d", bytes[0],
                bytes[r], r);
        if (heaps[r] != heaps[0])
            standin_fault("ncclCommWindowRegister: rank %d has other windows than rank 0", r);
    }
    pthread_mutex_lock(&lock);
    o->made->number = ++c->windows_made;
    o->made->next = c->windows;
    c->windows = o->made;
    pthread_mutex_unlock(&lock);
    standin_count("windows", 1);
    __atomic_store_n(o->out, (ncclWindow_t)(void *)o->made, __ATOMIC_SEQ_CST);
    return ncclSuccess;
}

static void *opening_main(void *p) {
    opening *const o = (opening *)p;
    standin_pause();
    const ncclResult_t e = open_together(o);
    if (e != ncclSuccess) free(o->made);
    pthread_mutex_lock(&lock);
    if (o->comm->state == ncclInProgress) store(&o->comm->state, (int)e);
    --o->comm->launching;
    pthread_mutex_unlock(&lock);
    free(o);
    return NULL;
}

/* Windows are in memory of ncclMemAlloc, and begin at a multiple of 4096. */
static bool suits_a_window(const uint8_t *at, size_t bytes) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (const piece *m = pieces; m; m = m->next)
        found = found
            || (at >= m->at && at + bytes <= m->at + m->bytes && (size_t)(at - m->at) % 4096 == 0);
    pthread_mutex_unlock(&lock);
    return found;
}

ncclResult_t ncclCommWindowRegister(
    ncclComm_t c, void *p, size_t bytes, ncclWindow_t *out, int flags) {
    ENTER("ncclCommWindowRegister");
    const ncclResult_t e = usable(c);
    *out = NULL;
    if (e != ncclSuccess) return e;
    if (flags != NCCL_WIN_COLL_SYMMETRIC) return refuse(ncclInvalidArgument, "flags %d", flags);
    if (!standin_get("symmetric")) return ncclSuccess; /* and there is no window */
    if (!suits_a_window((const uint8_t *)p, bytes))
        return refuse(ncclInvalidArgument, "%zu bytes at %p are not of ncclMemAlloc", bytes, p);
    opening *const o = (opening *)calloc(1, sizeof *o);
    o->comm = c;
    o->out = out;
    o->made = (window *)calloc(1, sizeof *o->made);
    o->made->at = (const uint8_t *)p;
    o->made->bytes = bytes;
    pthread_mutex_lock(&lock);
    store(&c->state, ncclInProgress);
    ++c->launching;
    pthread_mutex_unlock(&lock);
    if (!c->blocking) {
        detached(opening_main, o);
        return ncclInProgress;
    }
    opening_main(o);
    return (ncclResult_t)load(&c->state);
}

/* Of this rank alone: unmaps at once. */
ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t p) {
    window **at, *w = NULL;
    ENTER("ncclCommWindowDeregister");
    const ncclResult_t e = usable(c);
    if (e != ncclSuccess || !p) return e;
    outstanding(c, "ncclCommWindowDeregister");
    pthread_mutex_lock(&lock);
    for (at = &c->windows; *at && (void *)*at != (void *)p; at = &(*at)->next) {
    }
    if (*at) {
        w = *at;
        *at = w->next;
    }
    pthread_mutex_unlock(&lock);
    if (!w) standin_fault("ncclCommWindowDeregister of a window that does not exist");
    if (w) standin_count("windows", -1);
    free(w);
    return w ? ncclSuccess : ncclInvalidArgument;
}

/* Ends what is in flight, and makes the communicator usable for management again. */
static void stop_flying(ncclComm_t c) {
    store(&c->abort_flag, 1);
    for (;;) {
        pthread_mutex_lock(&lock);
        const bool quiet = !c->flying && !c->launching;
        pthread_mutex_unlock(&lock);
        if (quiet) break;
        nap();
    }
    store(&c->abort_flag, 0);
}

ncclResult_t ncclCommShrink(
    ncclComm_t c, int *exclude, int count, ncclComm_t *out, ncclConfig_t *config, int flags) {
    making m = {
        .parent = c, .out = out, .blocking = c ? c->blocking : true, .device = c ? c->device : 0};
    unsigned gone = 0;
    ENTER("ncclCommShrink");
    ncclResult_t e = c ? ncclSuccess : refuse(ncclInvalidArgument, "no communicator");
    *out = NULL;
    if (c && !(flags & NCCL_SHRINK_ABORT) && !c->revoked) {
        e = usable(c);
        outstanding(c, "ncclCommShrink");
    }
    if (e == ncclSuccess && config) e = read_config(config, &m.blocking);
    if (e != ncclSuccess) return e;
    for (int i = 0; i < count; ++i) {
        if (exclude[i] < 0 || exclude[i] >= c->n || exclude[i] == c->rank)
            return refuse(ncclInvalidArgument, "rank %d cannot be excluded", exclude[i]);
        gone |= 1u << exclude[i];
    }
    if (count < 1) return refuse(ncclInvalidArgument, "nobody is excluded");
    if (flags & NCCL_SHRINK_ABORT) stop_flying(c);
    for (int r = 0; r < c->n; ++r)
        if (!(gone >> r & 1)) {
            m.rank += r < c->rank;
            ++m.n;
        }
    snprintf(m.name, sizeof m.name, "%s.s%u.%x", c->name, ++c->shrinks, gone);
    return made_from(&m);
}
#endif

#if STANDIN_NCCL >= 22809
static void *revoke_main(void *p) {
    ncclComm_t const c = (ncclComm_t)p;
    for (;;) {
        pthread_mutex_lock(&lock);
        const bool quiet = !c->flying && c->launching == 1;
        pthread_mutex_unlock(&lock);
        if (quiet) break;
        nap();
    }
    store(&c->abort_flag, 0);
    pthread_mutex_lock(&lock);
    if (c->state == ncclInProgress) store(&c->state, ncclSuccess);
    --c->launching;
    pthread_mutex_unlock(&lock);
    return NULL;
}
ncclResult_t ncclCommRevoke(ncclComm_t c, int flags) {
    ENTER("ncclCommRevoke");
    if (flags) return refuse(ncclInvalidArgument, "there are no flags");
    pthread_mutex_lock(&lock);
    store(&c->abort_flag, 1);
    store(&c->state, ncclInProgress);
    c->revoked = true;
    ++c->launching;
    pthread_mutex_unlock(&lock);
    if (!c->blocking) {
        detached(revoke_main, c);
        return ncclInProgress;
    }
    revoke_main(c);
    return ncclSuccess;
}
#endif

#if STANDIN_NCCL >= 22900
ncclResult_t ncclCommGetUniqueId(ncclComm_t c, ncclUniqueId *id) {
    ENTER("ncclCommGetUniqueId");
    const ncclResult_t e = usable(c);
    if (e != ncclSuccess) return e;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%s.g%u", c->name, c->grows + 1);
    return ncclSuccess;
}
/* Of those that are there already only one brings the id; they keep their ranks, and new ranks
   follow. */
ncclResult_t ncclCommGrow(
    ncclComm_t c, int n, const ncclUniqueId *id, int rank, ncclComm_t *out, ncclConfig_t *config) {
    making m = {.parent = c,
        .out = out,
        .blocking = c ? c->blocking : true,
        .n = n,
        .rank = c ? c->rank : rank};
    ENTER("ncclCommGrow");
    *out = NULL;
    ncclResult_t e = c ? usable(c) : ncclSuccess;
    if (e == ncclSuccess && config) e = read_config(config, &m.blocking);
    if (e != ncclSuccess) return e;
    if (c ? rank != -1 || n <= c->n : !id || rank < 0 || rank >= n)
        return refuse(ncclInvalidArgument, "rank %d of %d does not fit", rank, n);
    if (cudaGetDevice(&m.device) != cudaSuccess)
        return refuse(ncclUnhandledCudaError, "there is no device");
    if (c)
        snprintf(m.name, sizeof m.name, "%s.g%u", c->name, ++c->grows);
    else
        snprintf(m.name, sizeof m.name, "%s", id->internal);
    return c ? made_from(&m) : make(out, n, rank, m.device, m.name, m.blocking);
}
#endif

/* ---- operations ---- */

ncclResult_t ncclGroupStart(void) {
    ENTER("ncclGroupStart");
    ++depth;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void) {
    int e;
    if (!depth) return refuse(ncclInvalidUsage, "there is no group");
    --depth;
    if (standin_call("ncclGroupEnd", &e)) {
        n_pending = 0;
        free(pending);
        pending = NULL;
        return refuse((ncclResult_t)e, "ncclGroupEnd: as the stand-in was told");
    }
    return depth ? ncclSuccess : flush_group();
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
    ncclRedOp_t op, ncclComm_t c, cudaStream_t stream) {
    ENTER("ncclAllReduce");
    return start(ALLREDUCE, in, out, count, type, (int)op, 0, c, stream);
}
ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
    ncclRedOp_t op, int root, ncclComm_t c, cudaStream_t stream) {
    ENTER("ncclReduce");
    return start(REDUCE, in, out, count, type, (int)op, root, c, stream);
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
    ncclRedOp_t op, ncclComm_t c, cudaStream_t stream) {
    ENTER("ncclReduceScatter");
    return start(REDUCE_SCATTER, in, out, count, type, (int)op, 0, c, stream);
}
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
    ncclComm_t c, cudaStream_t stream) {
    ENTER("ncclBroadcast");
    return start(BROADCAST, in, out, count, type, 0, root, c, stream);
}
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
    ncclComm_t c, cudaStream_t stream) {
    ENTER("ncclAllGather");
    return start(ALLGATHER, in, out, count, type, 0, 0, c, stream);
}
#if STANDIN_NCCL >= 22800
ncclResult_t ncclAlltoAll(const void *in, void *out, size_t count, ncclDataType_t type,
    ncclComm_t c, cudaStream_t stream) {
    ENTER("ncclAlltoAll");
    return start(ALLTOALL, in, out, count, type, 0, 0, c, stream);
}
ncclResult_t ncclGather(const void *in, void *out, size_t count, ncclDataType_t type, int root,
    ncclComm_t c, cudaStream_t stream) {
    ENTER("ncclGather");
    return start(GATHER, in, out, count, type, 0, root, c, stream);
}
ncclResult_t ncclScatter(const void *in, void *out, size_t count, ncclDataType_t type, int root,
    ncclComm_t c, cudaStream_t stream) {
    ENTER("ncclScatter");
    return start(SCATTER, in, out, count, type, 0, root, c, stream);
}
#endif
ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
    cudaStream_t stream) {
    ENTER("ncclSend");
    return start(SEND, in, NULL, count, type, 0, peer, c, stream);
}
ncclResult_t ncclRecv(
    void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
    ENTER("ncclRecv");
    return start(RECV, NULL, out, count, type, 0, peer, c, stream);
}
