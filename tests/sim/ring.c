/*  ring.c - the rings and mailboxes that processes share, with the words by which they wake each other, and what they lend to each
    other: every interleaving of small cases, on memory that is as weak as C11 allows

        ring            all cases; then the same with planted mistakes, each of which must be found
        ring --case N   one case, with its counts

    The code under test is that of the headers itself: cdp__shared_move, _doze, _rise, cdp__slot_put, _find, _taken, _news and what
    they call (of a mailbox, one place is used again and again); and cdp__mesh_expose, _retract, _recall, _view and _unview, where the
    owner writes into what it has lent as soon as it may. Its atomic
    accesses and its copies to and from the ring end up here, where two coroutines, a writer and a reader, stop before each of
    them, and every order in which they can go on is tried.

    A place in memory is the list of all values that were ever written to it. Each side has a view: for every place, the oldest of
    them that it may still read. A relaxed or plain load may return any that is not older than the view. A release store carries its
    writer's view along, and an acquire load of it adds that to the reader's. SEQ_CST accesses are also in one order for all: such a
    load sees at least the last such store. This is the usual operational form of C11's release, acquire and seq_cst; it has no loads that see
    values from the future (a store that overtakes a load before it), so it does not judge whether the store of `tail`, or of
    `taken`, may be weaker than it is. System calls (waking, sleeping) are release and acquire.
    What replaces a value (compare and exchange) sees the newest one. A plain load of a byte of the ring that could return more than one
    value is a race, and counts as an error like a wrong byte; bytes that are lent may be any, but not be taken for good. */
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
static uint64_t model_exchange(void *p, uint64_t v, size_t bytes, int order);

/* clang and gcc both take these names for macros */
#define __atomic_load_n(p, order) \
    ((__typeof__(*(p) + 0))model_load((const void *)(p), sizeof *(p), (order)))
#define __atomic_store_n(p, v, order) model_store((void *)(p), (uint64_t)(v), sizeof *(p), (order))
#define __atomic_compare_exchange_n(p, e, v, weak, order, otherwise) \
    model_replace((void *)(p), (void *)(e), (uint64_t)(uintptr_t)(v), sizeof *(p), (order))
#define __atomic_exchange_n(p, v, order) \
    ((__typeof__(*(p) + 0))model_exchange((void *)(p), (uint64_t)(v), sizeof *(p), (order)))
#define memcpy(to, from, bytes) model_copy((to), (from), (bytes))
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#undef memcpy
#undef __atomic_load_n
#undef __atomic_store_n
#undef __atomic_compare_exchange_n
#undef __atomic_exchange_n

#define ROOM_MAX 2
#define PLACES (7 + ROOM_MAX)
enum {
    HEAD,
    TAIL,
    WAKE_WRITER,
    WAKE_READER,
    SERIAL,
    TAKEN,
    MAIL,
    DATA
};
/* in the case of loans: of the loan, which is sent, when it was read, what is lent */
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
    O_CHOICE
} op;

typedef struct thread {
    ucontext_t context;
    op op;
    uint8_t where, order, value, expected; /* any: 255 */
    uint8_t result;
    uint64_t since; /* a hash of what it has read since it was at the top of its loop */
    cdp__shared s;
    cdp__slot_counts post;
    uint8_t done; /* bytes */
    uint8_t view[PLACES];
} thread;

/* ---- what is tried ---- */

typedef enum means {
    RING,
    MAILBOX,
    LOANS
} means;

/* a case: so many bytes in pieces through a ring, frames through a mailbox, or loans in slices */
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
    HEAD_RELEASED,      /* the change itself is not in that order */
    WORD_CLEARED_LATE,  /* after waking */
    RUNG_ONCE,          /* and never again */
    ROOM_NOT_ASKED,     /* who waits for room does not say so */
    ROOM_NOT_RUNG,
    SERIAL_RELAXED,
    SERIAL_READ_RELAXED,
    SERIAL_RELEASED,    /* not in one order with the look at the word */
    TAKEN_NOT_AWAITED,  /* a place is used again before it has been read */
    MAIL_LOOK_ACQUIRES, /* the second look, for mail */
    MAIL_NOT_RUNG,
    LOAN_ONLY_LOOKED_AT, /* after it was read */
    LOAN_NOT_HELD,       /* before */
    MISTAKES
} mistake;
static const char *const mistake_names[MISTAKES] = {"none", "head relaxed", "head read relaxed",
    "word released only", "second look acquires only", "no second look",
    "look at the word acquires only", "head released only", "word cleared late", "rung once only",
    "room not asked for", "room not rung for", "serial relaxed", "serial read relaxed",
    "serial released only", "taken not awaited", "second look for mail acquires only",
    "mail not rung for", "loan only looked at", "loan not held"};

static rules now;
static mistake planted;

/* ---- the machine ---- */

static uint8_t memory[sizeof(cdp__pair) + 2 * (sizeof(cdp__ring) + 64)]
    __attribute__((aligned(64)));
static thread threads[2]; /* the writer, the reader */
static place places[PLACES];
static uint8_t seq_cst[PLACES];
static uint8_t bells[2], bell_views[2][PLACES];
static thread *running;
static ucontext_t scheduler;
static const char *wrong;
static uint64_t rung[2];

/* the maker writes it */
static cdp__ring *ring_of(void) {
    return (cdp__ring *)(memory + sizeof(cdp__pair));
}
static cdp__pair *pair_of(void) {
    return (cdp__pair *)memory;
}

/* -1: private memory. */
static int place_of(const void *p) {
    const uint8_t *b = (const uint8_t *)p, *data = (const uint8_t *)(ring_of() + 1);
    if (now.by == LOANS) return p == &pair_of()->side[0].lent[0].state ? STATE : -1;
    if (p == &ring_of()->head) return HEAD;
    if (p == &ring_of()->tail) return TAIL;
    if (p == &pair_of()->mail[0].slot[0].serial) return SERIAL;
    if (p == &pair_of()->mail[0].taken[0]) return TAKEN;
    if (p == &pair_of()->mail[0].slot[0].body[0]) return MAIL;
    if (p == &pair_of()->side[0].wake) return WAKE_WRITER;
    if (p == &pair_of()->side[1].wake) return WAKE_READER;
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
    if (planted == LOOK_ACQUIRES && order == __ATOMIC_SEQ_CST && where == (writer ? TAIL : HEAD))
        order = __ATOMIC_ACQUIRE;
    if (planted == NO_SECOND_LOOK && order == __ATOMIC_SEQ_CST && where == (writer ? TAIL : HEAD))
        return writer ? running->s.seen_tail : running->s.seen_head;
    if (planted == BELL_LOOK_ACQUIRES && where == (writer ? WAKE_READER : WAKE_WRITER))
        order = __ATOMIC_ACQUIRE;
    if (planted == SERIAL_READ_RELAXED && where == SERIAL && order == __ATOMIC_ACQUIRE)
        order = __ATOMIC_RELAXED;
    if (planted == MAIL_LOOK_ACQUIRES && where == SERIAL) order = __ATOMIC_ACQUIRE;
    if (planted == TAKEN_NOT_AWAITED && where == TAKEN && writer) return running->post.put[0];
    if (planted == MAIL_NOT_RUNG && where == WAKE_READER && now.by == MAILBOX) return 0;
    if (planted == ROOM_NOT_RUNG && where == WAKE_WRITER) return 0;
    if (planted == RUNG_ONCE && where == (writer ? WAKE_READER : WAKE_WRITER) && rung[writer])
        return 0;
    return ask(O_LOAD, where, 0, order);
}

static bool late; /* a word is still to be cleared */

static void model_store(void *p, uint64_t v, size_t bytes, int order) {
    const int where = place_of(p);
    const bool writer = running == &threads[0];
    (void)bytes;
    if (where < 0 && now.by == LOANS) memcpy(p, &v, bytes); /* what only its owner changes */
    if (where < 0) return;                                  /* the other ring is not used */
    if (planted == SERIAL_RELAXED && where == SERIAL) order = __ATOMIC_RELAXED;
    if (planted == SERIAL_RELEASED && where == SERIAL) order = __ATOMIC_RELEASE;
    if (planted == HEAD_RELAXED && where == HEAD) order = __ATOMIC_RELAXED;
    if (planted == HEAD_RELEASED && where == HEAD) order = __ATOMIC_RELEASE;
    if (planted == WORD_RELEASED && v && where >= WAKE_WRITER) order = __ATOMIC_RELEASE;
    if (planted == ROOM_NOT_ASKED && where == WAKE_WRITER) v &= ~(uint64_t)CDP__WAKE_ROOM;
    if (planted == WORD_CLEARED_LATE && !v && where == (writer ? WAKE_READER : WAKE_WRITER)) {
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
    if (planted == LOAN_NOT_HELD && v == (want | 4)) v = want &= ~4ull;
    if (planted == LOAN_ONLY_LOOKED_AT && want == v)
        got = ask(O_LOAD, place_of(p), 0, __ATOMIC_ACQUIRE);
    else
        got = replace(place_of(p), (uint8_t)want, v, order);
    memcpy(expected, &got, bytes);
    return got == want;
}

static uint64_t model_exchange(void *p, uint64_t v, size_t bytes, int order) {
    (void)bytes;
    if (place_of(p) < 0) abort();
    return replace(place_of(p), 255, v, order);
}

static void model_wake(void *user, int32_t fd) {
    bool clear = late;
    (void)user;
    late = false; /* both belong to one side, which does nothing in between */
    ++rung[running == &threads[0]];
    ask(O_WAKE, fd, 0, 0);
    if (clear)
        ask(O_STORE, running == &threads[0] ? WAKE_READER : WAKE_WRITER, 0, __ATOMIC_SEQ_CST);
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

/* The two ends of a loan. What a side remembers stands in s.in_at and s.out_at, so that it
   counts as part of the state. */
static cdp__mesh meshes[2];
static cdp__link links[2];
static cdp__segment segments[CDP__SEGMENTS];
static uint8_t lent_bytes[64];

static void owner_main(thread *t) {
    uint64_t token = 0;
    for (t->s.in_at = 1; t->s.in_at <= now.bytes; ++t->s.in_at) {
        ask(O_STORE, LENT, t->s.in_at, __ATOMIC_RELAXED);
        if (!cdp__mesh_expose(&meshes[0], 0, lent_bytes, 64, false, &token))
            wrong = "nothing can be lent";
        ask(O_STORE, TOKEN, token, __ATOMIC_RELEASE);
        for (;;) {
            if (ask(O_LOAD, READ, 0, __ATOMIC_ACQUIRE) == (uint8_t)token) {
                cdp__mesh_revoke(&meshes[0], 0, token);
                break;
            }
            if (ask(O_CHOICE, 0, 0, 0)) { /* no patience; or it fails */
                if (!cdp__mesh_try_revoke(&meshes[0], 0, token))
                    cdp__mesh_revoke(&meshes[0], 0, token);
                else if (threads[1].s.out_at == token)
                    wrong = "what was read is retracted";
                break;
            }
            top(t);
        }
    }
    ask(O_STORE, LENT, 99, __ATOMIC_RELAXED);
}

static void reader_main(thread *t) {
    uint64_t last = 0;
    while (t->s.in_at < now.bytes) {
        const uint64_t token = ask(O_LOAD, TOKEN, 0, __ATOMIC_ACQUIRE);
        uint32_t slice;
        if (token != last) {
            last = token;
            t->s.in_at = token / 8 + 1; /* which of them it is */
            for (slice = 0; slice < now.piece; ++slice) {
                const bool there = cdp__mesh_map(&meshes[1], 0, token, 64) != NULL;
                const uint8_t byte = there ? ask(O_LOAD, LENT, 0, __ATOMIC_RELAXED) : 0;
                if (!there || !cdp__mesh_unmap(&meshes[1], 0, token)) break;
                if (byte != t->s.in_at) wrong = "void bytes are taken for good";
                t->s.out_at = token;
            }
            if (slice == now.piece) ask(O_STORE, READ, token, __ATOMIC_RELEASE);
        }
        top(t);
    }
}

static void loans_begin(void) {
    int i;
    memset(segments, 0, sizeof segments);
    segments[0].at = lent_bytes;
    segments[0].bytes = 64;
    for (i = 0; i < 2; ++i) {
        memset(&meshes[i], 0, sizeof meshes[i]);
        memset(&links[i], 0, sizeof links[i]);
        meshes[i].links = &links[i];
        meshes[i].segments = segments;
        links[i].state = CDP__LINK_UP;
        links[i].shared = &threads[i].s;
    }
    threads[0].s.told[0] = true;
    pair_of()->side[0].segments[0] = threads[1].s.views[0].number = 1;
    pair_of()->side[1].reads = CDP__VIEWS;
    threads[1].s.views[0].at = lent_bytes;
    threads[1].s.views[0].bytes = 64;
}

/* One byte in each frame. Its place is used again and again: a writer that finds it taken tries
   again (where it would send the frame through the stream). */
static void mail_main(int reader) {
    thread *t = &threads[reader];
    while (t->done < now.bytes) {
        const uint32_t number = t->done * CDP__SLOTS;
        const cdp__eager_slot *m =
            reader ? cdp__slot_find(&t->post, t->s.mail[0], 0, number) : NULL;
        uint8_t byte = byte_of(t->done);
        cdp__head f;
        memset(&f, 0, sizeof f);
        f.type = CDP__MESSAGE_DATA;
        f.bytes = 1;
        if (!reader) {
            if (cdp__slot_put(&t->post, t->s.mail[1], number, &f, &byte)) {
                ++t->done;
                cdp__shared_ring_bell(&model_os, &t->s, CDP__WAKE_DATA);
            }
        } else if (m) {
            model_copy(&byte, m->body, 1);
            if (byte != byte_of(t->done)) wrong = "a wrong byte";
            cdp__slot_taken(&t->post, t->s.mail[0], 0, number);
            ++t->done;
        } else {
            if (!cdp__shared_doze(&t->s)) ask(O_SLEEP, reader, 0, 0);
            cdp__shared_rise(&t->s);
        }
        top(t);
    }
    ask(O_DONE, 0, 0, 0);
}

static void side_main(int reader) {
    thread *t = &threads[reader];
    if (now.by == MAILBOX) mail_main(reader);
    if (now.by == LOANS) {
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
        r = cdp__shared_move(&model_os, &t->s, &v, 1, !reader);
        if (r < 0) wrong = "nonsense is seen where there is none";
        for (i = 0; reader && r > 0 && i < (uint32_t)r; ++i)
            if (buffer[i] != byte_of(t->done + i)) wrong = "a wrong byte";
        t->done = (uint8_t)(t->done + (r > 0 ? r : 0));
        if (r > 0) {
            top(t);
            continue;
        }
        if (!cdp__shared_doze(&t->s)) ask(O_SLEEP, reader, 0, 0);
        cdp__shared_rise(&t->s);
        top(t);
    }
    ask(O_DONE, 0, 0, 0);
}

static char stacks[2][64 * 1024];

static void begin(void) {
    int i;
    memset(memory, 0, sizeof memory);
    memset(places, 0, sizeof places);
    memset(seq_cst, 0, sizeof seq_cst);
    memset(bells, 0, sizeof bells);
    memset(bell_views, 0, sizeof bell_views);
    memset(rung, 0, sizeof rung);
    late = false;
    wrong = NULL;
    for (i = 0; i < PLACES; ++i)
        places[i].count = 1;
    for (i = 0; i < 2; ++i) {
        thread *t = &threads[i];
        memset(t, 0, sizeof *t);
        t->s.pair = pair_of();
        t->s.room = now.room;
        t->s.out = i == 0 ? ring_of() : (cdp__ring *)((uint8_t *)(ring_of() + 1) + 64);
        t->s.in = i == 1 ? ring_of() : (cdp__ring *)((uint8_t *)(ring_of() + 1) + 64);
        t->s.mine = &pair_of()->side[i];
        t->s.theirs = &pair_of()->side[1 - i];
        t->s.mail[0] = &pair_of()->mail[1 - i];
        t->s.mail[1] = &pair_of()->mail[i];
        t->s.bell = 1 - i;
        getcontext(&t->context);
        t->context.uc_stack.ss_sp = stacks[i];
        t->context.uc_stack.ss_size = sizeof stacks[i];
        t->context.uc_link = &scheduler;
        makecontext(&t->context, (void (*)(void))side_main, 1, i);
    }
    if (now.by == LOANS) loans_begin();
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
    case O_REPLACE: /* acquire and release: of the newest value */
        t->view[t->where] = (uint8_t)(p->count - 1u);
        t->result = p->w[p->count - 1].value;
        t->since = t->since * 1099511628211u + t->result + 1;
        if (p->w[p->count - 1].has_view) join_view(t->view, p->w[p->count - 1].view);
        if (t->expected != 255 && t->result != t->expected) break;
        if (p->count == WRITES) {
            too_long = true;
            break;
        }
        w = &p->w[p->count];
        w->value = t->value;
        t->view[t->where] = p->count++;
        w->has_view = 1;
        memcpy(w->view, t->view, PLACES);
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
        const uint64_t own[8] = {t->since, t->s.in_at, t->s.out_at, t->s.out_tail, t->s.seen_head,
            t->s.seen_tail, t->s.full + 2u * t->s.lent[0],
            (uint64_t)t->expected << 32 | (uint64_t)t->op << 24 | (uint64_t)t->where << 16
                | t->value};
        const uint32_t mail[5] = {
            t->post.put[0], t->post.freed[0], t->post.got[0], t->s.seen_mail[0], t->done};
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
    {LOANS, 0, 2, 1}, {LOANS, 0, 2, 2}, {LOANS, 0, 3, 2}};
#define CASES (sizeof cases / sizeof *cases)

int main(int argc, char **argv) {
    uint32_t passed = 0, failed = 0, c, m;
    model_os.net.wake_set = model_wake;
    seen = (uint64_t *)malloc(sizeof *seen << SEEN_BITS);
    if (!seen) return 2;
    for (c = 0; c < CASES; ++c) {
        if (argc == 3 && (uint32_t)atoi(argv[2]) != c) continue;
        const char *bad = explore(&cases[c], RIGHT);
        static const char *const what[] = {"ring of %u, %u bytes in pieces of %u: ",
            "mailbox (%u), %u frames of %u: ", "no ring (%u), %u loans in slices: %u: "};
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
            if ((cases[c].by == LOANS) == (m >= LOAN_ONLY_LOOKED_AT))
                bad = explore(&cases[c], (mistake)m);
        printf("%s planted: %s: %s\n", bad ? "ok" : "not ok", mistake_names[m],
            bad ? bad : "not found");
        fflush(stdout);
        ++*(bad ? &passed : &failed);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
