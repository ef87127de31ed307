/*  ring.c - the local fabric of cdp.h: rings, slots, doorbells and exposures, between threads of
    one process and between processes: every interleaving of small cases, on memory that is as weak
    as C11 allows

        ring            all cases but the two longest; then planted mistakes: each must be found
        ring --all      all cases, and so on
        ring --case N   one case, with its counts

    The code under test is that of the headers itself: cdp__line_move, _ring, _wants, _busy,
    _expose, _try_revoke, _revoke, _read_begin, _read_end, cdp__eager_put, _find, _taken (one slot
    is used again and again), cdp__doorbell_*, and cdp__shared_doze and _rise of cdp_tcp.h. The
    owner of an exposure writes into it as soon as it may. The atomic accesses of the headers and
    their copies to and from the ring end up here, where two coroutines, a writer and a reader, stop
    before each of them, and every order in which they can go on is tried.

    A place in memory is the list of all values that were ever written to it. Each side has a view:
    for every place, the oldest of them that it may still read. A relaxed or plain load may return
    any that is not older than the view. A release store carries its writer's view along, and an
    acquire load of it adds that to the reader's. SEQ_CST accesses are also in one order for all:
    such a load sees at least the last such store. This is the usual operational form of C11's
    release, acquire and seq_cst; it has no loads that see values from the future (a store that
    overtakes a load before it), so it does not judge whether the store of `tail`, or of `taken`,
    may be weaker than it is. System calls (waking, sleeping) are release and acquire. An access
    that replaces a value (compare and exchange, add, and) sees the newest one. A plain load of a
    byte of the ring that could return more than one value is a race, and counts as an error like a
    wrong byte; exposed bytes may have any value, but void ones must not be taken for good. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

static uint64_t model_load(const void *p, size_t bytes, int order);
static void model_store(void *p, uint64_t v, size_t bytes, int order);
static void model_copy(void *to, const void *from, size_t bytes);
static bool model_replace(void *p, void *expected, uint64_t v, size_t bytes, int order);
static uint64_t model_exchange(void *p, uint64_t v, int order);
static uint64_t model_add(void *p, uint64_t v, int order);
static uint64_t model_and(void *p, uint64_t v, int order);

/* clang and gcc both take these names for macros */
#define __atomic_load_n(p, order) \
    ((__typeof__((void)0, *(p)))model_load((const void *)(p), sizeof *(p), (order)))
#define __atomic_store_n(p, v, order) model_store((void *)(p), (uint64_t)(v), sizeof *(p), (order))
#define __atomic_compare_exchange_n(p, e, v, weak, order, otherwise) \
    model_replace((void *)(p), (void *)(e), (uint64_t)(uintptr_t)(v), sizeof *(p), (order))
#define __atomic_exchange_n(p, v, order) \
    ((__typeof__((void)0, *(p)))model_exchange((void *)(p), (uint64_t)(v), (order)))
#define __atomic_add_fetch(p, v, order)                                                           \
    __extension__({                                                                               \
        __typeof__(*(p) + 0) r_ = (__typeof__(r_))model_add((void *)(p), (uint64_t)(v), (order)); \
        r_;                                                                                       \
    })
#define __atomic_and_fetch(p, v, order)                                                           \
    __extension__({                                                                               \
        __typeof__(*(p) + 0) r_ = (__typeof__(r_))model_and((void *)(p), (uint64_t)(v), (order)); \
        r_;                                                                                       \
    })
#define memcpy(to, from, bytes) model_copy((to), (from), (bytes))
#define CDP_STATIC /* what is not called here is not compiled */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#undef memcpy
#undef __atomic_load_n
#undef __atomic_store_n
#undef __atomic_compare_exchange_n
#undef __atomic_exchange_n
#undef __atomic_add_fetch
#undef __atomic_and_fetch

#define ROOM_MAX 2
#define PLACES (9 + ROOM_MAX)
enum {
    HEAD,
    TAIL,
    WANTS_WRITER, /* the doorbells */
    WANTS_READER,
    RUNG_WRITER, /* for room, by the reader */
    RUNG_READER, /* for data, by the writer */
    SERIAL,
    TAKEN,
    MAIL,
    DATA
};
/* in the case of exposures: of the exposure, which is sent, when it was read, what is exposed */
enum {
    STATE,
    TOKEN,
    READ,
    LENT
};
#define WRITES 16

typedef struct written {
    uint8_t value, has_view, view[PLACES];
} written;

typedef struct place {
    uint8_t count; /* the oldest are forgotten when nobody can read them any more */
    written w[WRITES];
} place;

typedef enum op {
    O_NONE,
    O_LOAD,
    O_STORE,
    O_SLEEP,
    O_WAKE,
    O_MARK,
    O_DONE,
    O_REPLACE,
    O_ADD,
    O_AND,
    O_CHOICE
} op;

typedef struct thread {
    ucontext_t context;
    op op;
    uint8_t where, order, value, expected; /* any: 255 */
    uint8_t result;
    uint64_t since; /* a hash of what it has read since it was at the top of its loop */
    cdp__shared s;
    cdp__eager eager;
    uint8_t done; /* bytes */
    uint8_t view[PLACES];
} thread;

/* ---- what is tried ---- */

typedef enum means {
    RING,
    MAILBOX,
    LOANS, /* between processes */
    LOANS_INSIDE
} means;

/* a case: so many bytes in pieces through a ring, messages through a slot, or exposures in
   slices */
typedef struct rules {
    means by;
    uint32_t room, bytes, piece;
} rules;

typedef enum mistake {
    RIGHT,
    HEAD_RELAXED, /* the bytes may come after it */
    HEAD_READ_RELAXED,
    WORD_RELEASED, /* said before sleeping, but not in one order with the looks */
    LOOK_ACQUIRES, /* the second look may see what was there long ago */
    NO_SECOND_LOOK,
    BELL_LOOK_ACQUIRES, /* the look at the word, after a change */
    COUNT_RELEASED,     /* the count of changes is not in that order */
    COUNTED_EARLY,      /* before the change */
    NOT_COUNTED,
    WORD_CLEARED_LATE, /* after waking */
    RUNG_ONCE,         /* and never again */
    ROOM_NOT_ASKED,    /* who waits for room does not say so */
    ROOM_NOT_RUNG,
    SERIAL_RELAXED,
    SERIAL_READ_RELAXED,
    TAKEN_NOT_AWAITED, /* a slot is used again before it has been read */
    MAIL_NOT_RUNG,
    LOAN_ONLY_LOOKED_AT, /* after it was read */
    LOAN_NOT_HELD,       /* before */
    READER_NOT_AWAITED,  /* inside one process */
    READING_NOT_SAID,
    MISTAKES
} mistake;
static const char *const mistake_names[MISTAKES] = {"none", "head relaxed", "head read relaxed",
    "word released only", "second look acquires only", "no second look",
    "look at the word acquires only", "count released only", "counted before the change",
    "not counted", "word cleared late", "rung once only", "room not asked for", "room not rung for",
    "serial relaxed", "serial read relaxed", "taken not awaited", "slot not rung for",
    "exposure only looked at", "exposure not begun", "reader in this process not awaited",
    "reader in this process does not say so"};

static rules now;
static mistake planted;

/* ---- the machine ---- */

static uint8_t memory[2][sizeof(cdp__way) + 64] __attribute__((aligned(64)));
static cdp__pair pair;
static thread threads[2]; /* the writer, the reader */
static place places[PLACES];
static uint8_t seq_cst[PLACES];
static uint8_t bells[2], bell_views[2][PLACES];
static thread *running;
static ucontext_t scheduler;
static const char *wrong;
static uint64_t rung[2];

/* What thread i writes; the way back stays empty. */
static cdp__way *way_of(int i) {
    return (cdp__way *)memory[i];
}

static bool exposing(void) {
    return now.by == LOANS || now.by == LOANS_INSIDE;
}

/* -1: private memory. */
static int place_of(const void *p) {
    const cdp__way *w = way_of(0);
    const uint8_t *b = (const uint8_t *)p, *data = (const uint8_t *)(&w->ring + 1);
    if (exposing()) return p == &w->exposed[0].state ? STATE : -1;
    if (p == &w->ring.head) return HEAD;
    if (p == &w->ring.tail) return TAIL;
    if (p == &w->eager.slots.place[0].serial) return SERIAL;
    if (p == &w->eager.slots.taken[0]) return TAKEN;
    if (p == &w->eager.slots.place[0].data[0]) return MAIL;
    if (p == &pair.side[0].bell.wants) return WANTS_WRITER;
    if (p == &pair.side[1].bell.wants) return WANTS_READER;
    if (p == &pair.side[0].bell.rung[1]) return RUNG_WRITER;
    if (p == &pair.side[1].bell.rung[0]) return RUNG_READER;
    if (b >= data && b < data + now.room) return DATA + (int)(b - data);
    return -1;
}

static uint8_t ask(op o, int where, uint64_t value, int order) {
    thread *t = running;
    t->op = o;
    t->where = (uint8_t)where;
    t->value = (uint8_t)value;
    t->order = (uint8_t)order;
    swapcontext(&t->context, &scheduler);
    return t->result;
}

static uint64_t model_load(const void *p, size_t bytes, int order) {
    const int where = place_of(p);
    const bool writer = running == &threads[0];
    if (where < 0) { /* of the other ring, which stays empty */
        uint64_t v = 0;
        memcpy(&v, p, bytes);
        return v;
    }
    if (planted == HEAD_READ_RELAXED && where == HEAD && order == __ATOMIC_ACQUIRE)
        order = __ATOMIC_RELAXED;
    if (planted == LOOK_ACQUIRES && where == (writer ? RUNG_WRITER : RUNG_READER))
        order = __ATOMIC_ACQUIRE;
    if (planted == NO_SECOND_LOOK && order == __ATOMIC_SEQ_CST
        && where == (writer ? RUNG_WRITER : RUNG_READER))
        return running->s.bell_counts[writer];
    if (planted == BELL_LOOK_ACQUIRES && where == (writer ? WANTS_READER : WANTS_WRITER))
        order = __ATOMIC_ACQUIRE;
    if (planted == SERIAL_READ_RELAXED && where == SERIAL && order == __ATOMIC_ACQUIRE)
        order = __ATOMIC_RELAXED;
    if (planted == TAKEN_NOT_AWAITED && where == TAKEN && writer) return running->eager.put[0];
    if (planted == MAIL_NOT_RUNG && where == WANTS_READER && now.by == MAILBOX) return 0;
    if (planted == ROOM_NOT_RUNG && where == WANTS_WRITER && !writer) return 0;
    if (planted == RUNG_ONCE && where == (writer ? WANTS_READER : WANTS_WRITER) && rung[writer])
        return 0;
    return ask(O_LOAD, where, 0, order);
}

static bool late;          /* a word is still to be cleared */
static uint64_t held_head; /* is still to be stored; 0: nothing */

static void model_store(void *p, uint64_t v, size_t bytes, int order) {
    const int where = place_of(p);
    const bool writer = running == &threads[0];
    (void)bytes;
    if (where < 0 && exposing()) memcpy(p, &v, bytes); /* what only its owner changes */
    if (where < 0) return;                             /* the other ring is not used */
    if (planted == SERIAL_RELAXED && where == SERIAL) order = __ATOMIC_RELAXED;
    if (planted == HEAD_RELAXED && where == HEAD) order = __ATOMIC_RELAXED;
    if (planted == WORD_RELEASED && v && (where == WANTS_WRITER || where == WANTS_READER))
        order = __ATOMIC_RELEASE;
    if (planted == ROOM_NOT_ASKED && where == WANTS_WRITER) v &= ~(uint64_t)CDP__BELL_ROOM;
    if (planted == COUNTED_EARLY && where == HEAD) {
        held_head = v;
        return;
    }
    if (planted == WORD_CLEARED_LATE && !v && where == (writer ? WANTS_READER : WANTS_WRITER)) {
        late = true;
        return;
    }
    ask(O_STORE, where, v, order);
}

static void model_copy(void *to, const void *from, size_t bytes) {
    size_t i;
    for (i = 0; i < bytes; ++i) {
        const int a = place_of((uint8_t *)to + i), b = place_of((const uint8_t *)from + i);
        if (a >= 0)
            ask(O_STORE, a, ((const uint8_t *)from)[i], __ATOMIC_RELAXED);
        else
            ((uint8_t *)to)[i] =
                b >= 0 ? ask(O_LOAD, b, 0, __ATOMIC_RELAXED) : ((const uint8_t *)from)[i];
    }
}

static uint8_t replace(int where, uint8_t expected, uint64_t v, int order) {
    running->expected = expected;
    return ask(O_REPLACE, where, v, order);
}

static bool model_replace(void *p, void *expected, uint64_t v, size_t bytes, int order) {
    uint64_t want = 0, got;
    if (place_of(p) < 0) abort();
    memcpy(&want, expected, bytes);
    if (planted == LOAN_NOT_HELD && (v & CDP__BEGUN)) {
        v &= ~(uint64_t)CDP__BEGUN;
        want &= ~(uint64_t)CDP__BEGUN;
    }
    if (planted == READING_NOT_SAID) v &= ~(uint64_t)CDP__HELD;
    if (planted == LOAN_ONLY_LOOKED_AT && want == v)
        got = ask(O_LOAD, place_of(p), 0, __ATOMIC_ACQUIRE);
    else
        got = replace(place_of(p), (uint8_t)want, v, order);
    memcpy(expected, &got, bytes);
    return got == want;
}

static uint64_t model_exchange(void *p, uint64_t v, int order) {
    if (place_of(p) < 0) abort();
    return replace(place_of(p), 255, v, order);
}

static uint64_t model_add(void *p, uint64_t v, int order) {
    uint64_t r;
    if (place_of(p) < 0) return 1; /* who is rung for what it never waits for */
    if (planted == NOT_COUNTED) return 1;
    if (planted == COUNT_RELEASED) order = __ATOMIC_ACQ_REL;
    r = ask(O_ADD, place_of(p), v, order) + v;
    if (held_head) ask(O_STORE, HEAD, held_head, __ATOMIC_RELEASE);
    held_head = 0;
    return r;
}

static uint64_t model_and(void *p, uint64_t v, int order) {
    const bool owner = running == &threads[0];
    uint64_t r;
    if (place_of(p) < 0) abort();
    r = ask(O_AND, place_of(p), v, order) & v;
    return planted == READER_NOT_AWAITED && owner ? r & ~(uint64_t)CDP__HELD : r;
}

static void model_wake(void *user, int32_t fd) {
    bool clear = late;
    (void)user;
    late = false; /* both belong to one side, which does nothing in between */
    ++rung[running == &threads[0]];
    ask(O_WAKE, fd, 0, 0);
    if (clear)
        ask(O_STORE, running == &threads[0] ? WANTS_READER : WANTS_WRITER, 0, __ATOMIC_SEQ_CST);
}

static cdp_os model_os;

/* ---- the two sides ---- */

static void top(thread *t) {
    t->since = 0;
    ask(O_MARK, 0, 0, 0);
}

static uint8_t byte_of(uint32_t i) {
    return (uint8_t)(i + 1);
}

/* The two ends of an exposure. What a side remembers stands in in_at and out_at of its line, so
   that it counts as part of the state. */
static uint8_t exposed_bytes[64];

static void give_up(thread *t, uint64_t token) {
    while (!cdp__line_revoke(&t->s.line, token))
        top(t);
}

static void owner_main(thread *t) {
    cdp__line *l = &t->s.line;
    uint64_t token = 0;
    for (l->in_at = 1; l->in_at <= now.bytes; ++l->in_at) {
        ask(O_STORE, LENT, l->in_at, __ATOMIC_RELAXED);
        if (!cdp__line_expose(l, exposed_bytes, 64, 0, 0, &token)) wrong = "nothing can be exposed";
        ask(O_STORE, TOKEN, token, __ATOMIC_RELEASE);
        for (;;) {
            if (ask(O_LOAD, READ, 0, __ATOMIC_ACQUIRE) == (uint8_t)token) {
                give_up(t, token);
                break;
            }
            if (ask(O_CHOICE, 0, 0, 0)) { /* no patience; or it fails */
                if (!cdp__line_try_revoke(l, token))
                    give_up(t, token);
                else if (threads[1].s.line.out_at == token)
                    wrong = "what was read is revoked as unread";
                break;
            }
            top(t);
        }
    }
    ask(O_STORE, LENT, 99, __ATOMIC_RELAXED);
}

static void reader_main(thread *t) {
    cdp__line *l = &t->s.line;
    uint64_t last = 0;
    while (l->in_at < now.bytes) {
        const uint64_t token = ask(O_LOAD, TOKEN, 0, __ATOMIC_ACQUIRE);
        cdp__exposure e;
        uint32_t slice;
        if (token != last) {
            last = token;
            l->in_at = token / 8 + 1; /* which of them it is */
            for (slice = 0; slice < now.piece; ++slice) {
                const bool there = cdp__line_read_begin(l, token, &e);
                const uint8_t byte = there ? ask(O_LOAD, LENT, 0, __ATOMIC_RELAXED) : 0;
                if (!there || !cdp__line_read_end(l, token)) break;
                if (byte != l->in_at) wrong = "void bytes are taken for good";
                l->out_at = token;
            }
            if (slice == now.piece) ask(O_STORE, READ, token, __ATOMIC_RELEASE);
        }
        top(t);
    }
}

/* One byte in each message. Its slot is used again and again: a writer that finds it taken tries
   again (where it would send it through the stream). */
static void mail_main(int reader) {
    thread *t = &threads[reader];
    cdp__eager_slots *slots = &way_of(0)->eager.slots;
    const uint8_t head[CDP__SLOT_HEAD] = {0};
    while (t->done < now.bytes) {
        const uint32_t number = t->done * CDP_SLOTS;
        const cdp__eager_slot *m = reader ? cdp__eager_find(&t->eager, slots, 0, number) : NULL;
        uint8_t byte = byte_of(t->done);
        if (!reader) {
            if (cdp__eager_put(&t->eager, slots, 0, number, head, &byte, 1)) {
                ++t->done;
                cdp__line_ring(&t->s.line, CDP__BELL_DATA);
            }
        } else if (m) {
            model_copy(&byte, m->data, 1);
            if (byte != byte_of(t->done)) wrong = "a wrong byte";
            cdp__eager_taken(&t->eager, slots, 0, number);
            ++t->done;
        } else {
            if (!cdp__shared_doze(&t->s)) ask(O_SLEEP, reader, 0, 0);
            cdp__shared_awake(&t->s);
        }
        top(t);
    }
    ask(O_DONE, 0, 0, 0);
}

static void side_main(int reader) {
    thread *t = &threads[reader];
    if (now.by == MAILBOX) mail_main(reader);
    if (exposing()) {
        if (reader)
            reader_main(t);
        else
            owner_main(t);
        ask(O_DONE, 0, 0, 0);
    }
    while (t->done < now.bytes) {
        uint8_t buffer[8];
        cdp_iov v;
        int64_t r;
        uint32_t i;
        v.data = buffer;
        v.bytes = cdp__min(now.piece, now.bytes - t->done);
        for (i = 0; i < v.bytes; ++i)
            buffer[i] = reader ? 0 : byte_of(t->done + i);
        r = cdp__line_move(&t->s.line, &v, 1, !reader);
        if (r < 0) wrong = "nonsense is seen where there is none";
        for (i = 0; reader && r > 0 && i < (uint32_t)r; ++i)
            if (buffer[i] != byte_of(t->done + i)) wrong = "a wrong byte";
        t->done = (uint8_t)(t->done + (r > 0 ? r : 0));
        if (r > 0) {
            top(t);
            continue;
        }
        if (!cdp__shared_doze(&t->s)) ask(O_SLEEP, reader, 0, 0);
        cdp__shared_awake(&t->s);
        top(t);
    }
    ask(O_DONE, 0, 0, 0);
}

static char stacks[2][64 * 1024];

static void begin(void) {
    int i;
    memset(&way_of(0)->ring, 0, sizeof(cdp__ring) + ROOM_MAX);
    memset(&way_of(0)->eager.slots.place[0], 0, 128);
    memset(&way_of(0)->exposed[0], 0, sizeof way_of(0)->exposed[0]);
    memset(&pair, 0, sizeof pair);
    memset(places, 0, sizeof places);
    memset(seq_cst, 0, sizeof seq_cst);
    memset(bells, 0, sizeof bells);
    memset(bell_views, 0, sizeof bell_views);
    memset(rung, 0, sizeof rung);
    late = false;
    held_head = 0;
    wrong = NULL;
    for (i = 0; i < PLACES; ++i)
        places[i].count = 1;
    for (i = 0; i < 2; ++i) {
        thread *t = &threads[i];
        memset(t, 0, sizeof *t);
        t->s.os = &model_os;
        t->s.mine = &pair.side[i];
        t->s.theirs = &pair.side[1 - i];
        t->s.bell = 1 - i;
        t->s.line.size = now.room;
        t->s.line.out = way_of(i);
        t->s.line.in = way_of(1 - i);
        t->s.line.same_process = now.by == LOANS_INSIDE;
        t->s.line.theirs = &pair.side[1 - i].bell;
        t->s.line.wake = cdp__shared_wake;
        t->s.line.owner = &t->s;
        getcontext(&t->context);
        t->context.uc_stack.ss_sp = stacks[i];
        t->context.uc_stack.ss_size = sizeof stacks[i];
        t->context.uc_link = &scheduler;
        makecontext(&t->context, (void (*)(void))side_main, 1, i);
    }
}

static void go_on(thread *t) {
    running = t;
    swapcontext(&scheduler, &t->context);
}

static void join_view(uint8_t *to, const uint8_t *from) {
    for (int i = 0; i < PLACES; ++i)
        to[i] = to[i] > from[i] ? to[i] : from[i];
}

/* How many ways there are to do what this side is about to do; 0: it has to wait. */
static uint32_t ways(const thread *t) {
    const place *p = &places[t->where];
    uint32_t oldest;
    switch (t->op) {
    case O_SLEEP: return bells[t->where] != 0;
    case O_DONE: return 0;
    case O_LOAD:
        oldest = t->view[t->where];
        if (t->order == __ATOMIC_SEQ_CST && seq_cst[t->where] > oldest) oldest = seq_cst[t->where];
        return p->count - oldest;
    case O_CHOICE: return 2;
    default: return 1;
    }
}

static bool too_long; /* more writes than are kept: this way is not followed */

static void perform(thread *t, uint32_t way) {
    place *p = &places[t->where];
    const uint32_t k = p->count - 1u - way; /* the newest first */
    written *w;
    switch (t->op) {
    case O_LOAD:
        if (t->where >= DATA && ways(t) > 1) wrong = "a race for a byte";
        t->view[t->where] = (uint8_t)k;
        t->result = p->w[k].value;
        t->since = t->since * 1099511628211u + t->result + 1;
        if (t->order != __ATOMIC_RELAXED && p->w[k].has_view) join_view(t->view, p->w[k].view);
        break;
    case O_CHOICE: t->result = (uint8_t)way; break;
    case O_REPLACE: /* these three acquire and release: of the newest value */
    case O_ADD:
    case O_AND:
        t->view[t->where] = (uint8_t)(p->count - 1u);
        t->result = p->w[p->count - 1].value;
        t->since = t->since * 1099511628211u + t->result + 1;
        if (p->w[p->count - 1].has_view) join_view(t->view, p->w[p->count - 1].view);
        if (t->op == O_REPLACE && t->expected != 255 && t->result != t->expected) break;
        if (p->count == WRITES) {
            too_long = true;
            break;
        }
        w = &p->w[p->count];
        w->value = t->value;
        if (t->op == O_ADD) w->value = (uint8_t)(t->result + t->value);
        if (t->op == O_AND) w->value = t->result & t->value;
        t->view[t->where] = p->count++;
        w->has_view = 1;
        memcpy(w->view, t->view, PLACES);
        if (t->order == __ATOMIC_SEQ_CST) seq_cst[t->where] = t->view[t->where];
        break;
    case O_STORE:
        if (p->count == WRITES) {
            too_long = true;
            break;
        }
        w = &p->w[p->count];
        memset(w, 0, sizeof *w);
        w->value = t->value;
        t->view[t->where] = p->count++;
        w->has_view = t->order != __ATOMIC_RELAXED;
        if (w->has_view) memcpy(w->view, t->view, PLACES);
        if (t->order == __ATOMIC_SEQ_CST) seq_cst[t->where] = t->view[t->where];
        break;
    case O_WAKE:
        bells[t->where] = 1;
        join_view(bell_views[t->where], t->view);
        break;
    case O_SLEEP:
        bells[t->where] = 0;
        join_view(t->view, bell_views[t->where]);
        break;
    default: break;
    }
    t->since = t->since * 1099511628211u + (uint64_t)t->op * 16 + t->where + 7;
}

/* Forget what nobody can read any more, so that equal states look equal. */
static void tidy(void) {
    for (int i = 0; i < PLACES; ++i) {
        place *p = &places[i];
        uint8_t oldest =
            threads[0].view[i] < threads[1].view[i] ? threads[0].view[i] : threads[1].view[i];
        if (!oldest) continue;
        p->count = (uint8_t)(p->count - oldest);
        memmove(p->w, p->w + oldest, p->count * sizeof *p->w);
        memset(p->w + p->count, 0, (WRITES - p->count) * sizeof *p->w);
        threads[0].view[i] = (uint8_t)(threads[0].view[i] - oldest);
        threads[1].view[i] = (uint8_t)(threads[1].view[i] - oldest);
        seq_cst[i] = (uint8_t)(seq_cst[i] > oldest ? seq_cst[i] - oldest : 0);
        for (int k = 0; k < 2; ++k)
            bell_views[k][i] = (uint8_t)(bell_views[k][i] > oldest ? bell_views[k][i] - oldest : 0);
        for (int q = 0; q < PLACES; ++q)
            for (int k = 0; k < places[q].count; ++k)
                places[q].w[k].view[i] =
                    (uint8_t)(places[q].w[k].view[i] > oldest ? places[q].w[k].view[i] - oldest
                                                              : 0);
    }
}

static uint64_t mixed(uint64_t h, const void *p, size_t n) {
    for (size_t i = 0; i < n; ++i)
        h = (h ^ ((const uint8_t *)p)[i]) * 1099511628211u;
    return h ^ h >> 31;
}

static uint64_t state_hash(void) {
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < 2; ++i) {
        const thread *t = &threads[i];
        const cdp__line *l = &t->s.line;
        const uint64_t own[8] = {t->since, l->in_at, l->out_at, l->out_tail, t->s.bell_counts[0],
            t->s.bell_counts[1], l->full + 2u * l->state[0],
            (uint64_t)t->expected << 32 | (uint64_t)t->op << 24 | (uint64_t)t->where << 16
                | t->value};
        const uint32_t mail[4] = {t->eager.put[0], t->eager.freed[0], t->eager.got[0], t->done};
        h = mixed(h, own, sizeof own);
        h = mixed(h, mail, now.by == MAILBOX ? sizeof mail : 0);
        h = mixed(h, t->view, PLACES);
    }
    h = mixed(h, places, sizeof places);
    h = mixed(h, seq_cst, sizeof seq_cst);
    h = mixed(h, bells, sizeof bells);
    return mixed(
        mixed(h, bell_views, sizeof bell_views), rung, planted == RUNG_ONCE ? sizeof rung : 0);
}

/* ---- all ways ---- */

#define SEEN_BITS 24
static uint64_t *seen;
static uint64_t seen_count, paths, deepest;

/* True when it is new. */
static bool see(uint64_t h) {
    uint64_t at = h >> (64 - SEEN_BITS);
    h |= 1;
    while (seen[at] && seen[at] != h)
        at = (at + 1) & ((1u << SEEN_BITS) - 1);
    if (seen[at]) return false;
    if (seen_count > (1u << SEEN_BITS) / 4 * 3) {
        printf("too many states\n");
        exit(2);
    }
    seen[at] = h;
    ++seen_count;
    return true;
}

#define DEPTH 2000
static struct { uint8_t thread, way; } trail[DEPTH];

/* Every side stands before its next access. Repeat the first `fixed` choices of the trail, then
   always take the first way, until the end or a state that was seen. Returns the number of
   choices made; *more: where the next alternative lies. */
static const char *walk(uint32_t fixed, uint32_t *length) {
    uint32_t n = 0;
    begin();
    too_long = false;
    go_on(&threads[0]);
    go_on(&threads[1]);
    for (;;) {
        uint32_t who = 0;
        thread *t;
        for (int i = 0; i < 2; ++i) /* the loop's top is nothing to anybody else */
            while (threads[i].op == O_MARK) {
                threads[i].since = 0;
                go_on(&threads[i]);
            }
        tidy();
        if (wrong || too_long) break;
        if (n >= fixed && !see(state_hash())) break;
        if (n >= fixed) {
            while (who < 2 && !ways(&threads[who]))
                ++who;
            if (who == 2) {
                if (threads[0].op != O_DONE || threads[1].op != O_DONE) wrong = "both sleep";
                break;
            }
            trail[n].thread = (uint8_t)who;
            trail[n].way = 0;
        }
        t = &threads[trail[n].thread];
        perform(t, trail[n].way);
        go_on(t);
        if (++n == DEPTH) {
            wrong = "it does not end";
            break;
        }
    }
    *length = n;
    return wrong;
}

/* The next way that was not gone: from the end of the trail backwards, the first choice that has
   another one. Needs the state at that point, which a walk up to there restores. */
static bool next_way(uint32_t *length) {
    while (*length) {
        const uint32_t n = *length - 1;
        uint32_t k;
        begin();
        go_on(&threads[0]);
        go_on(&threads[1]);
        for (k = 0;; ++k) {
            for (int i = 0; i < 2; ++i)
                while (threads[i].op == O_MARK) {
                    threads[i].since = 0;
                    go_on(&threads[i]);
                }
            tidy();
            if (k == n) break;
            perform(&threads[trail[k].thread], trail[k].way);
            go_on(&threads[trail[k].thread]);
        }
        if (trail[n].way + 1u < ways(&threads[trail[n].thread])) {
            ++trail[n].way;
            return true;
        }
        if (trail[n].thread == 0 && ways(&threads[1])) {
            trail[n].thread = 1;
            trail[n].way = 0;
            return true;
        }
        --*length;
    }
    return false;
}

static const char *explore(const rules *r, mistake m) {
    uint32_t length = 0;
    const char *bad;
    now = *r;
    planted = m;
    memset(seen, 0, sizeof *seen << SEEN_BITS);
    seen_count = paths = deepest = 0;
    do {
        bad = walk(length, &length);
        ++paths;
        deepest = length > deepest ? length : deepest;
    } while (!bad && next_way(&length));
    return bad;
}

static const rules cases[] = {{MAILBOX, 0, 2, 1}, {MAILBOX, 0, 3, 1}, {RING, 1, 2, 1},
    {RING, 1, 3, 1}, {RING, 2, 3, 1}, {RING, 2, 4, 2}, {RING, 1, 3, 2}, {RING, 2, 3, 2},
    {LOANS, 0, 2, 1}, {LOANS, 0, 2, 2}, {LOANS, 0, 3, 2}, {LOANS_INSIDE, 0, 2, 1},
    {LOANS_INSIDE, 0, 2, 2}, {LOANS_INSIDE, 0, 3, 2}};
#define CASES (sizeof cases / sizeof *cases)

static bool concerns(mistake m, means by) {
    if (m >= READER_NOT_AWAITED) return by == LOANS_INSIDE;
    if (m >= LOAN_ONLY_LOOKED_AT) return by == LOANS;
    return by == RING || by == MAILBOX;
}

int main(int argc, char **argv) {
    uint32_t passed = 0, failed = 0, c, m;
    model_os.net.wake_set = model_wake;
    seen = (uint64_t *)malloc(sizeof *seen << SEEN_BITS);
    if (!seen) return 2;
    for (c = 0; c < CASES; ++c) {
        if (argc == 3 && (uint32_t)atoi(argv[2]) != c) continue;
        /* three bytes one by one take longer than all others together */
        if (argc < 2 && cases[c].by == RING && cases[c].bytes == 3 && cases[c].piece == 1) continue;
        const char *bad = explore(&cases[c], RIGHT);
        static const char *const what[] = {"ring of %u, %u bytes in pieces of %u: ",
            "slots (%u), %u messages of %u: ", "no ring (%u), %u exposures in slices: %u: ",
            "one process (%u), %u exposures in slices: %u: "};
        printf("%s ", bad ? "not ok" : "ok");
        printf(what[cases[c].by], cases[c].room, cases[c].bytes, cases[c].piece);
        printf("%llu states, %llu ways, the longest of %llu accesses%s%s\n",
            (unsigned long long)seen_count, (unsigned long long)paths, (unsigned long long)deepest,
            bad ? ": " : "", bad ? bad : "");
        fflush(stdout);
        ++*(bad ? &failed : &passed);
    }
    for (m = 1; m < MISTAKES && argc < 3; ++m) {
        const char *bad = NULL;
        for (c = 0; c < CASES && !bad; ++c)
            if (concerns((mistake)m, cases[c].by)) bad = explore(&cases[c], (mistake)m);
        printf("%s planted: %s: %s\n", bad ? "ok" : "not ok", mistake_names[m],
            bad ? bad : "not found");
        fflush(stdout);
        ++*(bad ? &passed : &failed);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
