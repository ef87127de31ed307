/* failure.c - who is to blame: every order of events in small worlds

   failure [WORD ...] [--all] [--verbose]

   Drives cdp__failure_step(), the same that groups use, for 2 to 4 ranks that send each other
   messages in collectives, overlapping groups, rings, chains and circles. Explored are all
   orders in which messages can be delivered, ranks killed (with and without what they sent last),
   stopped or their links cut in one or both directions, waits noticed and deadlines reached.
   A run is fair when messages arrive before settling ends, as the times are chosen; there every
   blame is checked. Unfair ones end settling whenever they like: there must still be an end.

   Properties, in every state that is reached:
     ends      every rank that lives and waits in vain ends failed, and those of its group that
               it is linked to with it
     right     it names an end of a cut link, or one of several victims, and nobody else
     bounded   no record is corrected more often than the world has ranks; no state comes again
     codec     what is sent decodes to the same record

   Words: only scenarios whose name contains one of them. --all: also those of more than a million
   states. --verbose: longer lists of events. Ends with "N passed, N failed". */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include <stdio.h>

#define RANKS 4u
#define ITEMS 12u
#define DOMAINS 4u
#define EDGES 5u
#define WAITERS 4u
#define WILLS 4u
#define QUEUE 24u
#define DEPTH 400u
#define ARMED 1000u /* every timer of a state: when it ends does not depend on when it began */

typedef enum item_kind {
    ITEM_END,
    ITEM_MESSAGES,
    ITEM_COMPUTE,
    ITEM_LEAVE
} item_kind;

typedef struct item { /* what a rank does next: it sends, then waits for one message */
    uint8_t kind, channel, seq, round, call;
    int8_t to, from; /* -1: nobody */
    uint8_t any;     /* it waits for the next message of any of these ranks (bits) */
} item;

typedef struct scenario {
    char name[64];
    uint32_t ranks, domains;
    uint8_t domain_of[16]; /* of a channel */
    item program[RANKS][ITEMS];
    uint32_t length[RANKS];
    uint32_t culprits; /* even without a fault */
    int32_t differs;   /* this rank calls something else, and all others are to say so; or -1 */
    uint32_t kills, stops, cuts, half_cuts;
    bool deaf;  /* a rank that computes reads nothing */
    bool stays; /* a rank that has failed computes instead of leaving */
    bool fair;
    bool calm;    /* no fault begins while a rank settles what it saw */
    bool early;   /* ranks whose wait lasts say what they call, */
    bool endless; /* and no deadline passes */
    /* the transport keeps the first record of all ranks, and shows it to them; one group */
    bool keeps;
    /* deadlines that pass although what is waited for is on its way: that goes on while the timeout
       is settled, and if it completes nothing has failed */
    uint32_t lates;
    bool skips; /* a rank goes on with its other groups when one has failed */
} scenario;

typedef enum life {
    ALIVE,
    STOPPED,
    GONE
} life;

typedef struct rank {
    uint8_t life, pc;
    uint16_t arrived;    /* bit i: what item i waits for is here */
    uint8_t posted;      /* items whose message was sent */
    uint8_t lost;        /* bit p: nothing more comes from p */
    uint8_t gone;        /* the first of those, and 1 */
    uint8_t came[RANKS]; /* messages from p that an item took which waits for any rank */
    uint8_t late;        /* an operation is late that ends before this item; 0: none */
    uint8_t will[RANKS]; /* items begun when the last will of p came, and 1 */
    uint8_t stale;       /* bit p: named by a will whose author has gone on since */
    cdp__failure f;
    cdp__failure_edge edges[EDGES];
    cdp__failure_waiter waiters[WAITERS];
    cdp__failure_report wills[WILLS];
    cdp__failure_domain domains[DOMAINS];
} rank;

typedef struct world {
    rank r[RANKS];
    uint16_t queue[RANKS][RANKS][QUEUE]; /* message numbers */
    uint8_t queued[RANKS][RANKS];
    uint8_t cut[RANKS]; /* bit p: what this rank sends to p is lost */
    uint8_t culprits, kills, stops, cuts, half_cuts, lates;
    uint16_t kept; /* number of the FAILURE whose record the transport keeps, 0: none */
} world;

/* ---- messages: equal ones have one number ---- */

typedef enum message_kind {
    DATA = 1,
    WAIT,
    ANSWER,
    FAILURE,
    BYE
} message_kind;

typedef struct message {
    uint16_t bytes;
    uint8_t data[CDP__FAILURE_BYTES + 1];
} message;

static message *messages;
static uint32_t message_count, message_room;
#define SLOTS (1u << 17)
static uint16_t message_slots[SLOTS];

static uint64_t mix(uint64_t h, const void *data, uint64_t bytes) {
    const uint8_t *p = (const uint8_t *)data;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        h = (h ^ v) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    for (; bytes; --bytes, ++p)
        h = (h ^ *p) * 0x100000001b3ull;
    return h ^ h >> 32;
}

static uint16_t message_number(const uint8_t *data, uint32_t bytes) {
    uint32_t at = (uint32_t)mix(7, data, bytes) % SLOTS;
    for (; message_slots[at]; at = (at + 1) % SLOTS) {
        const message *m = &messages[message_slots[at] - 1];
        if (m->bytes == bytes && memcmp(m->data, data, bytes) == 0) return message_slots[at];
    }
    if (message_count == message_room) {
        message_room = message_room ? 2 * message_room : 256;
        messages = (message *)realloc(messages, message_room * sizeof *messages);
        if (!messages || message_room > 65535) abort();
    }
    messages[message_count].bytes = (uint16_t)bytes;
    memcpy(messages[message_count].data, data, bytes);
    message_slots[at] = (uint16_t)++message_count;
    return (uint16_t)message_count;
}

/* ---- what went wrong ---- */

static const scenario *now;
static char wrong[900];
static bool verbose, all;

static void found(const char *format, ...) {
    va_list ap;
    if (wrong[0]) return;
    va_start(ap, format);
    vsnprintf(wrong, sizeof wrong, format, ap);
    va_end(ap);
}

/* ---- a rank ---- */

static bool uses(uint32_t a, uint32_t b) {
    uint32_t i;
    for (i = 0; i < now->length[a]; ++i) {
        const item *x = &now->program[a][i];
        if (x->to == (int8_t)b || x->from == (int8_t)b || (x->any >> b & 1)) return true;
    }
    return false;
}

static bool linked(uint32_t a, uint32_t b) {
    return uses(a, b) || uses(b, a);
}

/* The channel of messages from rank p to an item that waits for any rank. */
static uint32_t way_of(const item *i, uint32_t p) {
    return i->channel + 1u + p;
}

/* Does item i wait for the message x of rank p? Its number counts where it names a rank. */
static bool takes(const item *i, uint32_t p, uint32_t channel, uint32_t seq, uint32_t round) {
    if (i->any) return (i->any >> p & 1) && way_of(i, p) == channel;
    return i->from == (int8_t)p && i->channel == channel && i->seq == seq && i->round == round;
}

static cdp__position place_of(const item *i) {
    cdp__position at;
    memset(&at, 0, sizeof at);
    at.channel = i->channel;
    at.seq = i->seq;
    at.round = i->round;
    return at;
}

static cdp__fingerprint call_of(const item *i) {
    cdp__fingerprint f;
    memset(&f, 0, sizeof f);
    f.kind = i->call;
    f.seq = i->seq;
    return f;
}

/* The rank's thread is here; NULL: its program is over. */
static const item *item_of(const world *w, uint32_t a) {
    return w->r[a].pc < now->length[a] ? &now->program[a][w->r[a].pc] : NULL;
}

/* It computes, and nothing of the library runs meanwhile. */
static bool deaf(const world *w, uint32_t a) {
    const item *i = item_of(w, a);
    return now->deaf && (!i || i->kind == ITEM_COMPUTE);
}

static void put(world *w, uint32_t from, uint32_t to, const uint8_t *data, uint32_t bytes) {
    uint8_t *n = &w->queued[from][to];
    if (w->r[to].life != ALIVE || deaf(w, to) || (w->cut[from] >> to & 1)) return;
    if (*n == QUEUE) abort();
    w->queue[from][to][(*n)++] = message_number(data, bytes);
}

static bool blocked(const world *w, uint32_t a) {
    const item *i = item_of(w, a);
    return w->r[a].life == ALIVE && i && i->kind == ITEM_MESSAGES && (i->from >= 0 || i->any)
        && !(w->r[a].arrived >> w->r[a].pc & 1);
}

static cdp__failure_domain *domain_of(world *w, uint32_t a, uint32_t channel) {
    return &w->r[a].domains[now->domain_of[channel]];
}

/* Has rank a sent what belongs to this place? */
static bool passed(const world *w, uint32_t a, const cdp__position *at) {
    uint32_t i;
    for (i = 0; i < w->r[a].posted; ++i) {
        const cdp__position here = place_of(&now->program[a][i]);
        if (here.channel == at->channel && cdp__position_reached(&here, at)) return true;
    }
    return false;
}

static void step(world *w, uint32_t a, cdp__failure_event *v);

static void flush(world *w, uint32_t a) {
    cdp__failure *f = &w->r[a].f;
    uint8_t out[1 + CDP__WAIT_BYTES];
    uint32_t p, i, what;
    for (p = 0; p < now->ranks && f->outbox; ++p) {
        cdp__answer_message m, back;
        cdp__wait_message wait;
        while ((what = cdp__failure_take(f, p, &wait, &m)) != 0) {
            if (what == 2) {
                out[0] = ANSWER;
                put(w, a, p, out, 1 + cdp__answer_encode(&m, out + 1));
                if (!cdp__answer_decode(out + 1, CDP__ANSWER_BYTES, now->ranks, &back))
                    found("codec: an answer of rank %u does not decode", a);
                continue;
            }
            for (i = 0; i <= w->r[a].pc && i < now->length[a]; ++i)
                if (now->program[a][i].channel == wait.at.channel
                    && wait.call_count < CDP__WAIT_CALLS)
                    wait.calls[wait.call_count++] = call_of(&now->program[a][i]);
            out[0] = WAIT;
            put(w, a, p, out, 1 + cdp__wait_encode(&wait, out + 1));
        }
    }
    f->outbox = false;
}

/* Rank a ends: what it sent arrives before others see that. */
static void leave(world *w, uint32_t a) {
    static const uint8_t bye = BYE;
    uint32_t p;
    for (p = 0; p < now->ranks; ++p) {
        if (p == a) continue;
        if (linked(a, p)) put(w, a, p, &bye, 1);
        w->queued[p][a] = 0;
    }
    memset(&w->r[a], 0, sizeof w->r[a]);
    w->r[a].life = GONE;
}

/* The group is broken on rank a: every rank that it has talked to is told. */
static void report(world *w, uint32_t a, const cdp__failure_domain *d) {
    cdp__failure_record back;
    cdp__failure_event v;
    uint8_t out[1 + CDP__FAILURE_BYTES];
    const uint32_t bytes = cdp__failure_encode(&d->record, out + 1);
    uint32_t p, c;
    out[0] = FAILURE;
    if (now->keeps && !w->kept) w->kept = message_number(out, 1 + bytes);
    if (d->record.corrections > now->ranks)
        found("bounded: rank %u corrects for the %uth time", a, d->record.corrections);
    if (!cdp__failure_decode(out + 1, bytes, now->ranks, &back)
        || !cdp__endpoint_same(&back.end, &d->record.end) || back.status != d->record.status)
        found("codec: a record of rank %u does not decode", a);
    for (p = 0; p < now->ranks; ++p)
        if (p != a && linked(a, p)) put(w, a, p, out, 1 + bytes);
    for (c = 1; c < 16; ++c) {
        const item *i = item_of(w, a);
        memset(&v, 0, sizeof v);
        v.type = CDP__FAILURE_MOVING;
        v.at.channel = c;
        if (i && i->channel == c) v.at = place_of(i);
        if (&w->r[a].domains[now->domain_of[c]] == d) step(w, a, &v);
    }
}

static void finished(world *w, uint32_t a, const cdp__failure_domain *d) {
    int32_t named;
    cdp_error e;
    uint32_t p, i;
    for (p = 0; p < now->ranks && now->fair; ++p)
        for (i = 0; i < DOMAINS; ++i)
            if (p != a && w->r[p].life == ALIVE && linked(a, p) && !(w->cut[a] >> p & 1)
                && !deaf(w, p) && w->r[p].domains[i].channel == d->channel
                && w->r[p].domains[i].state == CDP__FAILURE_HEALTHY)
                found("ends: rank %u has failed, and rank %u does not know", a, p);
    cdp__failure_text(&d->record, a, now->ranks, &e);
    named = e.peer;
    if (now->differs >= 0 && named != now->differs && a != (uint32_t)now->differs)
        found("right: rank %u does not blame rank %d: %s", a, (int)now->differs, e.text);
    if (now->fair && (named < 0 || !(w->culprits >> named & 1)))
        found("right: rank %u blames rank %d: %s", a, (int)named, e.text);
    if (named >= 0 && (w->r[a].stale >> named & 1))
        found("right: rank %u blames rank %d by a last will that holds no more", a, (int)named);
}

static bool more; /* other steps of this rank follow before anything is sent */

static void step(world *w, uint32_t a, cdp__failure_event *v) {
    rank *r = &w->r[a];
    uint32_t what, i;
    r->f.edges = r->edges;
    r->f.waiters = r->waiters;
    r->f.reports = r->wills;
    v->time_ns = ARMED;
    what = cdp__failure_step(&r->f, v);
    if (what & CDP__FAILURE_PUBLISH) report(w, a, v->domain);
    if (what & CDP__FAILURE_FINISHED) finished(w, a, v->domain);
    if (!more) flush(w, a);
    r->f.edges = NULL;
    r->f.waiters = NULL;
    r->f.reports = NULL;
    for (i = 0; i < EDGES; ++i)
        r->edges[i].since_ns = 0;
    for (i = 0; i < WILLS; ++i)
        r->wills[i].since_ns = 0;
    for (i = 0; i < DOMAINS; ++i)
        r->domains[i].due_ns = 0;
}

static bool registered(const world *w, uint32_t a, bool compared) {
    const item *i = item_of(w, a);
    uint32_t k;
    for (k = 0; k < EDGES; ++k) {
        const cdp__failure_edge *e = &w->r[a].edges[k];
        const cdp__position at = place_of(i);
        if (i->any && e->used && e->set == i->channel) return true;
        if (e->used && cdp__position_same(&e->at, &at)) return e->compared || !compared;
    }
    return false;
}

/* It waits for the next message of each of several ranks: one edge to each. */
static void say_any(world *w, uint32_t a, const item *i) {
    uint32_t p, left = i->any;
    for (p = 0; p < now->ranks; ++p) {
        cdp__failure_event v;
        if (!(left >> p & 1)) continue;
        left &= ~(1u << p);
        memset(&v, 0, sizeof v);
        v.type = CDP__FAILURE_BLOCKED;
        v.at.channel = way_of(i, p);
        v.at.seq = w->r[a].came[p] + 1u;
        v.from = p;
        v.set = i->channel;
        v.caller = true;
        more = left != 0;
        step(w, a, &v);
    }
}

/* Its wait lasts (`long_ago`), or somebody wants to know. */
static void say_blocked(world *w, uint32_t a, bool long_ago) {
    const item *i = item_of(w, a);
    cdp__failure_event v;
    if (!blocked(w, a) || registered(w, a, long_ago && now->early)) return;
    if (i->any) {
        say_any(w, a, i);
        return;
    }
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_BLOCKED;
    v.at = place_of(i);
    v.from = (uint32_t)i->from;
    v.caller = true;
    v.compare = long_ago && now->early;
    step(w, a, &v);
}

static void saw(world *w, uint32_t a, cdp_status st, int32_t peer, const cdp__fingerprint *other) {
    const item *i = item_of(w, a);
    cdp__failure_record rec;
    cdp__failure_event v;
    memset(&rec, 0, sizeof rec);
    memset(&v, 0, sizeof v);
    rec.status = st;
    rec.peer = peer;
    rec.at = place_of(i);
    rec.call = call_of(i);
    rec.timeout_ms = 1000;
    if (st == CDP_ERR_PEER_LOST && peer < 0) rec.end.named = w->r[a].gone - 1;
    if (other) rec.other = *other;
    if (other) rec.end.why = CDP__WHY_CALLS;
    v.type = CDP__FAILURE_OBSERVED;
    v.record = &rec;
    v.domain = domain_of(w, a, i->channel);
    step(w, a, &v);
}

/* The operation that begins at item i of rank a ends before this item. */
static uint8_t end_of_call(uint32_t a, uint32_t i) {
    const item *x = &now->program[a][i];
    while (i < now->length[a] && now->program[a][i].channel == x->channel
        && now->program[a][i].seq == x->seq)
        ++i;
    return (uint8_t)i;
}

/* Is an operation of rank a late, and goes on while that is settled? */
static bool goes_on_late(const rank *r, const cdp__failure_domain *d) {
    return r->late && d->state == CDP__FAILURE_SETTLING;
}

/* The timer of a domain that settles, before its time is up: groups look again and again. */
static void look(world *w, uint32_t a, cdp__failure_domain *d) {
    cdp__failure_event v;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_TIMER;
    v.domain = d;
    d->due_ns = CDP__NEVER;
    step(w, a, &v);
}

/* Rank a has done item i: the operation that was late may be complete, and who took part in it has
   not left because of an earlier failure. */
static void done_with(world *w, uint32_t a, const item *i) {
    rank *r = &w->r[a];
    cdp__failure_event v;
    const cdp__failure_report *will;
    memset(&v, 0, sizeof v);
    if (r->late && r->pc >= r->late) {
        r->late = 0;
        v.type = CDP__FAILURE_RESUMED;
        v.domain = domain_of(w, a, i->channel);
        step(w, a, &v);
    }
    if (!now->skips || i->from < 0 || !r->will[i->from] || r->will[i->from] > r->pc) return;
    r->f.reports = r->wills;
    will = cdp__failure_find_report(&r->f, (uint32_t)i->from);
    if (will && will->record.end.named >= 0) r->stale |= (uint8_t)(1u << will->record.end.named);
    r->will[i->from] = 0;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_CONTINUED;
    v.from = (uint32_t)i->from;
    v.begun_ns = CDP__NEVER; /* well after the will */
    step(w, a, &v);
}

/* What rank a sends at item i. False: the receiver is gone, and that was seen. */
static bool post(world *w, uint32_t a, const item *i) {
    const uint8_t data[4] = {DATA, i->channel, i->seq, i->round};
    rank *r = &w->r[a];
    if (r->posted != r->pc) return true;
    ++r->posted;
    if (i->to < 0) return true;
    if (r->lost >> i->to & 1) {
        saw(w, a, CDP_ERR_PEER_LOST, i->to, NULL);
        return false;
    }
    put(w, a, (uint32_t)i->to, data, 4);
    return true;
}

/* The group that item i belongs to has failed on rank a. True: it goes on with another one. */
static bool after_failure(world *w, uint32_t a, const item *i) {
    rank *r = &w->r[a];
    const uint32_t d = now->domain_of[i->channel];
    if (now->stays) r->pc = (uint8_t)now->length[a];
    if (!now->stays && !now->skips) leave(w, a);
    if (now->stays || !now->skips) return false;
    while (
        (i = item_of(w, a)) != NULL && i->kind == ITEM_MESSAGES && now->domain_of[i->channel] == d)
        ++r->pc;
    if (r->posted < r->pc) r->posted = r->pc;
    return true;
}

/* Everything that rank a does without anybody else: it goes on as far as it can. */
static void run(world *w, uint32_t a) {
    rank *r = &w->r[a];
    const item *i;
    while (r->life == ALIVE && (i = item_of(w, a)) != NULL && i->kind == ITEM_MESSAGES) {
        cdp__failure_domain *d = domain_of(w, a, i->channel);
        cdp__failure_event v;
        if (d->state == CDP__FAILURE_DONE) {
            if (!after_failure(w, a, i)) return;
            continue;
        }
        if (d->state != CDP__FAILURE_HEALTHY && !goes_on_late(r, d)) return;
        if (!post(w, a, i)) {
            if (r->late) return;
            continue;
        }
        if (blocked(w, a)) {
            if (i->any ? (i->any & ~r->lost) != 0 : !(r->lost >> i->from & 1)) break;
            saw(w, a, CDP_ERR_PEER_LOST, i->from, NULL);
            if (r->late) return;
            continue;
        }
        ++r->pc;
        memset(&v, 0, sizeof v);
        v.type = CDP__FAILURE_MOVING;
        v.at = place_of(i);
        ++v.at.round;
        step(w, a, &v);
        done_with(w, a, i);
    }
    i = r->life == ALIVE ? item_of(w, a) : NULL;
    if (i && i->kind == ITEM_LEAVE) leave(w, a);
    if (r->life == ALIVE && r->f.waiting) say_blocked(w, a, false);
    if (i && r->life == ALIVE && i->kind == ITEM_MESSAGES
        && goes_on_late(r, domain_of(w, a, i->channel)))
        look(w, a, domain_of(w, a, i->channel));
}

static void receive_failure(world *w, uint32_t a, uint32_t from, const message *m) {
    cdp__failure_record rec;
    cdp__failure_event v;
    uint32_t i;
    memset(&v, 0, sizeof v);
    if (!cdp__failure_decode(m->data + 1, m->bytes - 1u, now->ranks, &rec)) abort();
    v.type = CDP__FAILURE_REPORTED;
    v.from = from;
    v.record = &rec;
    v.passed = passed(w, a, &rec.end.last.at);
    for (i = 0; i < DOMAINS; ++i)
        if (w->r[a].domains[i].channel == rec.domain) v.domain = &w->r[a].domains[i];
    if (!v.domain) w->r[a].will[from] = (uint8_t)(w->r[a].posted + 1);
    for (i = 0; i < now->length[a] && i <= w->r[a].pc; ++i)
        if (now->program[a][i].channel == rec.at.channel && now->program[a][i].seq == rec.call.seq)
            v.own = call_of(&now->program[a][i]);
    step(w, a, &v);
}

/* Rank a lost a peer, and does not know yet whether the record that it offered is the first. */
static bool asks(const world *w, uint32_t a) {
    const cdp__failure_domain *d = &w->r[a].domains[0];
    return now->keeps && w->r[a].life == ALIVE && d->state == CDP__FAILURE_SETTLING
        && d->record.status == CDP_ERR_PEER_LOST;
}

/* The transport has something to show to rank a. */
static bool news(const world *w, uint32_t a) {
    return w->kept && w->r[a].life == ALIVE && !deaf(w, a) && item_of(w, a)
        && w->r[a].domains[0].state == CDP__FAILURE_HEALTHY;
}

/* The transport answers rank a, or shows it what it keeps. */
static void shown(world *w, uint32_t a) {
    cdp__failure_domain *d = &w->r[a].domains[0];
    uint8_t out[1 + CDP__FAILURE_BYTES];
    cdp__failure_event v;
    if (w->kept) {
        const message *m = &messages[w->kept - 1];
        receive_failure(w, a, cdp__get_u32(m->data + 5), m);
        return;
    }
    out[0] = FAILURE;
    w->kept = message_number(out, 1 + cdp__failure_encode(&d->record, out + 1));
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_TIMER;
    v.domain = d;
    v.sure = true;
    step(w, a, &v);
}

/* A rank that waits calls something else than this one: it will wait in vain. */
static bool differs(world *w, uint32_t a, uint32_t from, const cdp__wait_message *m) {
    uint32_t i, k;
    for (i = 0; i <= w->r[a].pc && i < now->length[a]; ++i)
        for (k = 0; k < m->call_count; ++k) {
            const cdp__fingerprint own = call_of(&now->program[a][i]);
            if (now->program[a][i].channel != m->at.channel
                || !cdp__fingerprint_differs(&own, &m->calls[k]) || !blocked(w, a))
                continue;
            saw(w, a, CDP_ERR_MISMATCH, (int32_t)from, &m->calls[k]);
            return true;
        }
    return false;
}

static void receive(world *w, uint32_t a, uint32_t from, const message *m) {
    rank *r = &w->r[a];
    cdp__failure_event v;
    uint32_t i;
    memset(&v, 0, sizeof v);
    v.from = from;
    if (m->data[0] == DATA) {
        for (i = 0; i < now->length[a]; ++i) {
            const item *x = &now->program[a][i];
            if ((r->arrived >> i & 1) || !takes(x, from, m->data[1], m->data[2], m->data[3]))
                continue;
            r->arrived |= (uint16_t)(1u << i);
            if (x->any) ++r->came[from];
            if (x->any) break;
        }
    } else if (m->data[0] == BYE) {
        r->lost |= (uint8_t)(1u << from);
        if (!r->gone) r->gone = (uint8_t)(from + 1);
    } else if (m->data[0] == FAILURE) {
        receive_failure(w, a, from, m);
    } else if (m->data[0] == WAIT) {
        cdp__wait_message wait;
        if (!cdp__wait_decode(m->data + 1, m->bytes - 1u, &wait)) abort();
        if (differs(w, a, from, &wait) || !wait.probe) return;
        v.type = CDP__FAILURE_WAITS;
        v.at = wait.at;
        v.serial = wait.serial;
        v.probe = wait.probe;
        v.passed = passed(w, a, &wait.at);
        step(w, a, &v);
    } else {
        cdp__answer_message answer;
        if (!cdp__answer_decode(m->data + 1, m->bytes - 1u, now->ranks, &answer)) abort();
        v.type = CDP__FAILURE_ANSWER;
        v.at = answer.at;
        v.serial = answer.serial;
        v.end = answer.end;
        v.passed = passed(w, a, &answer.end.last.at);
        step(w, a, &v);
    }
}

/* ---- what is true ---- */

/* Could rank a ever go on, if nobody noticed anything? */
static bool stuck(const world *w, uint32_t a) {
    uint32_t pc[RANKS], got[RANKS], k, p, i;
    bool again = true, posted;
    memset(got, 0, sizeof got);
    for (k = 0; k < now->ranks; ++k) {
        pc[k] = w->r[k].pc;
        got[k] = w->r[k].arrived;
        for (p = 0; p < now->ranks; ++p)
            for (i = 0; i < w->queued[p][k] && w->r[k].life == ALIVE; ++i) {
                const message *m = &messages[w->queue[p][k][i] - 1];
                uint32_t x;
                for (x = 0; x < now->length[k] && m->data[0] == DATA; ++x) {
                    const item *it = &now->program[k][x];
                    if ((got[k] >> x & 1) || !takes(it, p, m->data[1], m->data[2], m->data[3]))
                        continue;
                    got[k] |= 1u << x;
                    if (it->any) break;
                }
            }
    }
    while (again) {
        again = false;
        for (k = 0; k < now->ranks; ++k) {
            const item *it = pc[k] < now->length[k] ? &now->program[k][pc[k]] : NULL;
            if (w->r[k].life != ALIVE || !it || it->kind != ITEM_MESSAGES
                || w->r[k].domains[now->domain_of[it->channel]].state != CDP__FAILURE_HEALTHY)
                continue;
            posted = it->to < 0 || (w->cut[k] >> it->to & 1);
            for (i = 0; !posted && i < now->length[it->to]; ++i) {
                const item *x = &now->program[it->to][i];
                if (takes(x, k, it->channel, it->seq, it->round) && pc[k] >= w->r[k].posted
                    && !(got[it->to] >> i & 1)) {
                    got[it->to] |= 1u << i;
                    again = true;
                    if (x->any) break;
                }
            }
            if ((it->from >= 0 || it->any) && !(got[k] >> pc[k] & 1)) continue;
            ++pc[k];
            again = true;
        }
    }
    return pc[a] == w->r[a].pc;
}

/* ---- choices ---- */

typedef enum choice_kind {
    DELIVER,
    NOTICE,   /* a wait has lasted long */
    DEADLINE, /* of what rank a waits for */
    TIMER,    /* of a domain */
    SHOW,     /* the record that the transport keeps */
    KILL,     /* what it sent arrives */
    KILL_NOW, /* and is lost */
    STOP,
    CUT,
    HALF_CUT,
    CHOICES
} choice_kind;
static const char *const choice_names[CHOICES] = {"deliver", "notice", "deadline", "timer", "show",
    "kill", "kill now", "stop", "cut", "half cut"};

typedef struct choice {
    uint8_t kind, a, b;
} choice;

static bool quiet(const world *w) {
    uint32_t a, b;
    for (a = 0; a < now->ranks; ++a)
        for (b = 0; b < now->ranks; ++b)
            if (w->queued[a][b] && w->r[b].life == ALIVE && !deaf(w, b)) return false;
    for (a = 0; a < now->ranks; ++a)
        if (asks(w, a)) return false;
    for (a = 0; a < now->ranks; ++a)
        if (w->r[a].f.waiting && blocked(w, a) && !registered(w, a, false)
            && domain_of((world *)(uintptr_t)w, a, item_of(w, a)->channel)->state
                == CDP__FAILURE_HEALTHY)
            return false;
    return true;
}

static uint32_t add(choice *out, uint32_t n, choice_kind kind, uint32_t a, uint32_t b) {
    out[n].kind = (uint8_t)kind;
    out[n].a = (uint8_t)a;
    out[n].b = (uint8_t)b;
    return n + 1;
}

static uint32_t faults(const world *w, choice *out, uint32_t n) {
    uint32_t a, b;
    for (a = 0; a < now->ranks && now->calm; ++a)
        for (b = 0; b < now->domains; ++b)
            if (w->r[a].domains[b].state == CDP__FAILURE_SETTLING) return n;
    for (a = 0; a < now->ranks; ++a) {
        if (w->r[a].life != ALIVE) continue;
        if (w->kills < now->kills) n = add(out, n, KILL, a, 0);
        if (w->kills < now->kills) n = add(out, n, KILL_NOW, a, 0);
        if (w->stops < now->stops) n = add(out, n, STOP, a, 0);
        for (b = 0; b < now->ranks; ++b) {
            if (a == b || !linked(a, b) || w->r[b].life != ALIVE || (w->cut[a] >> b & 1)) continue;
            if (a < b && w->cuts < now->cuts) n = add(out, n, CUT, a, b);
            if (w->half_cuts < now->half_cuts) n = add(out, n, HALF_CUT, a, b);
        }
    }
    return n;
}

static uint32_t choices(const world *w, choice *out) {
    const bool still = quiet(w);
    uint32_t a, b, n = 0;
    for (a = 0; a < now->ranks; ++a)
        for (b = 0; b < now->ranks; ++b)
            if (w->queued[a][b] && w->r[b].life == ALIVE && !deaf(w, b))
                n = add(out, n, DELIVER, a, b);
    for (a = 0; a < now->ranks; ++a) {
        const rank *r = &w->r[a];
        if (r->life != ALIVE) continue;
        if (asks(w, a) || news(w, a)) n = add(out, n, SHOW, a, 0);
        if (blocked(w, a)) {
            const uint32_t d = now->domain_of[item_of(w, a)->channel];
            const bool healthy = r->domains[d].state == CDP__FAILURE_HEALTHY;
            if (healthy && !registered(w, a, now->early)) n = add(out, n, NOTICE, a, 0);
            if (healthy && !now->endless && (w->lates < now->lates || stuck(w, a)))
                n = add(out, n, DEADLINE, a, 0);
        }
        for (b = 0; b < now->domains; ++b)
            if ((r->domains[b].state == CDP__FAILURE_SETTLING
                    || r->domains[b].state == CDP__FAILURE_REPORTING)
                && (still || !now->fair))
                n = add(out, n, TIMER, a, b);
    }
    return faults(w, out, n);
}

static void kill_rank(world *w, uint32_t a, bool lose) {
    uint32_t p;
    for (p = 0; p < now->ranks && lose; ++p)
        w->queued[a][p] = 0;
    leave(w, a);
}

static void cut(world *w, uint32_t a, uint32_t b) {
    w->cut[a] |= (uint8_t)(1u << b);
    w->queued[a][b] = 0;
    w->culprits |= (uint8_t)(1u << a | 1u << b);
}

static void deadline(world *w, uint32_t a) {
    if (now->lates && !stuck(w, a)) ++w->lates;
    say_blocked(w, a, false);
    if (now->lates) w->r[a].late = end_of_call(a, w->r[a].pc);
    saw(w, a, CDP_ERR_TIMEOUT, item_of(w, a)->from, NULL);
}

static void choose(world *w, const choice *c) {
    cdp__failure_event v;
    uint16_t m;
    memset(&v, 0, sizeof v);
    v.type = CDP__FAILURE_TIMER;
    switch ((choice_kind)c->kind) {
    case DELIVER:
        m = w->queue[c->a][c->b][0];
        memmove(w->queue[c->a][c->b], w->queue[c->a][c->b] + 1,
            --w->queued[c->a][c->b] * sizeof(uint16_t));
        receive(w, c->b, c->a, &messages[m - 1]);
        run(w, c->b);
        break;
    case NOTICE: say_blocked(w, c->a, true); break;
    case DEADLINE: deadline(w, c->a); break;
    case TIMER:
        v.domain = &w->r[c->a].domains[c->b];
        step(w, c->a, &v);
        run(w, c->a);
        break;
    case SHOW:
        shown(w, c->a);
        run(w, c->a);
        break;
    case STOP:
        w->r[c->a].life = STOPPED;
        for (m = 0; m < now->ranks; ++m)
            w->queued[m][c->a] = 0;
        w->culprits |= (uint8_t)(1u << c->a);
        ++w->stops;
        break;
    case CUT:
        cut(w, c->a, c->b);
        cut(w, c->b, c->a);
        ++w->cuts;
        break;
    case HALF_CUT:
        cut(w, c->a, c->b);
        ++w->half_cuts;
        break;
    default:
        kill_rank(w, c->a, c->kind == KILL_NOW);
        w->culprits |= (uint8_t)(1u << c->a);
        ++w->kills;
        break;
    }
}

/* ---- the exploration ---- */

static uint64_t *seen;
static uint64_t seen_room, seen_count;

static uint64_t hash_record(uint64_t h, const cdp__failure_record *r) {
    uint8_t out[CDP__FAILURE_BYTES];
    return mix(h, out, cdp__failure_encode(r, out));
}

static uint64_t hash_rank(uint64_t h, const rank *r) {
    const uint32_t head[8] = {r->life, r->pc, r->arrived, r->posted, r->lost, r->f.waiting,
        r->f.report_at, r->f.waiter_at};
    uint8_t out[CDP__WAIT_AT_BYTES + CDP__WAIT_END_BYTES];
    uint32_t i;
    h = mix(mix(h ^ r->gone, head, sizeof head), r->came, sizeof r->came);
    h = mix(h ^ r->late ^ (uint32_t)r->stale << 8, r->will, sizeof r->will);
    for (i = 0; i < EDGES; ++i) {
        const cdp__failure_edge *e = &r->edges[i];
        const uint8_t bits[8] = {e->used, e->caller, e->probe, (uint8_t)e->serial,
            (uint8_t)e->needed, (uint8_t)e->answer, (uint8_t)e->peer, e->compared};
        cdp__position_encode(&e->at, out);
        cdp__endpoint_encode(&e->end, out + CDP__WAIT_AT_BYTES);
        h = mix(mix(h ^ e->set, bits, 8), out, sizeof out);
    }
    for (i = 0; i < WAITERS; ++i) {
        const cdp__failure_waiter *e = &r->waiters[i];
        const uint8_t bits[8] = {e->used, e->passed, e->answer_due, (uint8_t)e->rank,
            (uint8_t)e->serial, (uint8_t)e->probe};
        cdp__position_encode(&e->at, out);
        cdp__endpoint_encode(&e->end, out + CDP__WAIT_AT_BYTES);
        if (e->used) h = mix(mix(h ^ i, bits, 8), out, sizeof out);
    }
    for (i = 0; i < WILLS; ++i)
        if (r->wills[i].used) h = hash_record(h ^ i ^ r->wills[i].rank << 8, &r->wills[i].record);
    for (i = 0; i < now->domains; ++i) {
        h = (h ^ r->domains[i].state) * 0x9e3779b97f4a7c15ull;
        if (r->domains[i].state) h = hash_record(h ^ i, &r->domains[i].record);
        if (r->domains[i].state == CDP__FAILURE_SETTLING && now->lates) {
            cdp__position_encode(&r->domains[i].asked, out);
            cdp__endpoint_encode(&r->domains[i].end, out + CDP__WAIT_AT_BYTES);
            h = mix(h ^ r->domains[i].known ^ (uint32_t)r->domains[i].found << 1, out, sizeof out);
        }
    }
    return h;
}

static uint64_t hash_world(const world *w) {
    uint64_t h = mix(1, w->cut, sizeof w->cut);
    const uint8_t budget[8] = {w->culprits, w->kills, w->stops, w->cuts, w->half_cuts, w->lates};
    uint32_t a, b;
    h = mix(h ^ w->kept, budget, sizeof budget);
    for (a = 0; a < now->ranks; ++a) {
        h = hash_rank(h, &w->r[a]);
        for (b = 0; b < now->ranks; ++b)
            h = mix(h ^ w->queued[a][b], w->queue[a][b], w->queued[a][b] * sizeof(uint16_t));
    }
    return h ? h : 1;
}

/* True when it is new. */
static bool remember(uint64_t h) {
    uint64_t at, i;
    if (2 * seen_count >= seen_room) {
        uint64_t *old = seen, room = seen_room;
        seen_room = seen_room ? 2 * seen_room : 1u << 16;
        seen = (uint64_t *)calloc(seen_room, sizeof *seen);
        if (!seen) abort();
        for (i = 0; i < room; ++i) {
            if (!old[i]) continue;
            for (at = old[i] % seen_room; seen[at]; at = (at + 1) % seen_room) {
            }
            seen[at] = old[i];
        }
        free(old);
    }
    for (at = h % seen_room; seen[at]; at = (at + 1) % seen_room)
        if (seen[at] == h) return false;
    seen[at] = h;
    ++seen_count;
    return true;
}

typedef struct frame {
    world w;
    choice out[96];
    uint32_t count, at;
    uint64_t hash;
} frame;
static frame *stack;

static void check_end(const world *w) {
    uint32_t a;
    for (a = 0; a < now->ranks; ++a)
        if (blocked(w, a)) found("ends: rank %u waits forever", a);
}

static void print_path(uint32_t depth) {
    uint32_t i;
    for (i = depth > 60 && !verbose ? depth - 60 : 0; i <= depth; ++i) {
        const choice *c = &stack[i].out[stack[i].at - 1];
        const message *m =
            c->kind == DELIVER ? &messages[stack[i].w.queue[c->a][c->b][0] - 1] : NULL;
        static const char *const kinds[] = {"", "data", "WAIT", "ENDPOINT", "FAILURE", "bye"};
        printf(
            "      %s %u %u %s\n", choice_names[c->kind], c->a, c->b, m ? kinds[m->data[0]] : "");
    }
}

static void start(world *w) {
    uint32_t a, d;
    memset(w, 0, sizeof *w);
    w->culprits = (uint8_t)now->culprits;
    for (a = 0; a < now->ranks; ++a) {
        rank *r = &w->r[a];
        r->f.rank = a;
        r->f.world_size = now->ranks;
        r->f.edge_room = EDGES;
        r->f.waiter_room = WAITERS;
        r->f.report_room = WILLS;
        for (d = 0; d < DOMAINS; ++d)
            r->domains[d].channel = UINT64_MAX;
        for (d = 0; d < now->length[a]; ++d) {
            const uint32_t at = now->domain_of[now->program[a][d].channel];
            if (now->program[a][d].kind == ITEM_MESSAGES) r->domains[at].channel = 100 + at;
        }
    }
    for (a = 0; a < now->ranks; ++a)
        run(w, a);
}

static bool on_stack(uint64_t h, uint32_t depth) {
    uint32_t i;
    for (i = 0; i <= depth; ++i)
        if (stack[i].hash == h) return true;
    return false;
}

/* Depth first, every state once. Returns the number of transitions. */
static uint64_t explore(void) {
    uint64_t moves = 0;
    uint32_t depth = 0;
    start(&stack[0].w);
    stack[0].count = choices(&stack[0].w, stack[0].out);
    stack[0].at = 0;
    (void)remember(stack[0].hash = hash_world(&stack[0].w));
    for (;;) {
        frame *f = &stack[depth], *g = &stack[depth + 1];
        if (f->at == f->count) {
            if (depth-- == 0) return moves;
            continue;
        }
        g->w = f->w;
        ++moves;
        choose(&g->w, &f->out[f->at++]);
        g->hash = hash_world(&g->w);
        if (!wrong[0] && !now->fair && on_stack(g->hash, depth))
            found("bounded: a state comes again");
        if (!wrong[0] && remember(g->hash)) {
            g->count = choices(&g->w, g->out);
            g->at = 0;
            if (!g->count) check_end(&g->w);
            if (depth + 2 == DEPTH) found("bounded: more than %u events", DEPTH);
            if (!wrong[0]) ++depth;
        }
        if (wrong[0]) {
            printf("    %s\n    after\n", wrong);
            print_path(depth);
            return moves;
        }
    }
}

/* ---- scenarios ---- */

static scenario made;

static void begin(const char *name, uint32_t ranks) {
    memset(&made, 0, sizeof made);
    snprintf(made.name, sizeof made.name, "%s", name);
    made.ranks = ranks;
    made.domains = 1;
    made.differs = -1;
    made.fair = true;
}

static void does(uint32_t a, uint32_t channel, uint32_t seq, uint32_t round, int to, int from) {
    item *i = &made.program[a][made.length[a]++];
    i->kind = ITEM_MESSAGES;
    i->channel = (uint8_t)channel;
    i->seq = (uint8_t)seq;
    i->round = (uint8_t)round;
    i->call = CDP_COLL_ALLREDUCE;
    i->to = (int8_t)to;
    i->from = (int8_t)from;
}

/* It computes forever, or ends its program: whoever needs it waits in vain. */
static void quits(uint32_t a, item_kind how) {
    made.program[a][made.length[a]++].kind = (uint8_t)how;
    made.culprits |= 1u << a;
}

/* Every rank sends to the next and receives from the one before, in `rounds` rounds. */
static void ring(uint32_t n, uint32_t rounds, uint32_t seq) {
    uint32_t a, k;
    for (a = 0; a < n; ++a)
        for (k = 0; k < rounds; ++k)
            does(a, 1, seq, k, (int)((a + 1) % n), (int)((a + n - 1) % n));
}

/* Rank 0 needs rank 1, which needs rank 2, ... Each pair has a channel of its own; `groups`: and
   is a group of its own. */
static void chain(uint32_t n, bool groups, item_kind last) {
    uint32_t a;
    made.domains = groups ? n - 1 : 1;
    for (a = 0; groups && a + 1 < n; ++a)
        made.domain_of[2 + a] = (uint8_t)a;
    if (last != ITEM_MESSAGES) quits(n - 1, last);
    for (a = 0; a < n; ++a) {
        if (a + 1 < n) does(a, 2 + a, 1, 0, -1, (int)a + 1);
        if (a) does(a, 1 + a, 1, 0, (int)a - 1, -1);
    }
}

/* Rank a waits for a message of any of these ranks. */
static void takes_any(uint32_t a, uint32_t channel, uint32_t ranks) {
    does(a, channel, 0, 0, -1, -1);
    made.program[a][made.length[a] - 1].any = (uint8_t)ranks;
}

/* What rank a sends to such a place of rank `to`, number `seq` of those. */
static void feeds(uint32_t a, uint32_t channel, uint32_t seq, uint32_t to) {
    does(a, channel + 1 + a, seq, 0, (int)to, -1);
}

/* Each waits for the next, the last for the first. */
static void circle(uint32_t n, bool groups) {
    uint32_t a;
    made.domains = groups ? n : 1;
    for (a = 0; groups && a < n; ++a)
        made.domain_of[2 + a] = (uint8_t)a;
    for (a = 0; a < n; ++a) {
        does(a, 2 + a, 1, 0, -1, (int)((a + 1) % n));
        does(a, 2 + (a + n - 1) % n, 1, 0, (int)((a + n - 1) % n), -1);
        made.culprits |= 1u << a;
    }
}

/* Rank 0 takes one message from each, in turn, then each takes one from it. */
static void star(uint32_t n) {
    uint32_t a;
    for (a = 1; a < n; ++a) {
        does(0, 1, a, 0, -1, (int)a);
        does(a, 1, a, 0, 0, -1);
        does(a, 1, 9, 0, -1, 0);
    }
    for (a = 1; a < n; ++a)
        does(0, 1, 9, a, (int)a, -1);
    for (a = 1; a < n; ++a)
        made.program[a][1].round = (uint8_t)a;
}

static uint32_t passes, fails;
static char **words;
static int word_count;
static uint64_t all_states, all_moves;

/* An underscore stands for a space. */
static bool named(const char *word) {
    const size_t n = strlen(word);
    size_t at, i;
    for (at = 0; made.name[at]; ++at) {
        for (i = 0; i < n
             && (made.name[at + i] == word[i] || (word[i] == '_' && made.name[at + i] == ' '));
             ++i) {
        }
        if (i == n) return true;
    }
    return false;
}

static bool wanted(void) {
    int i;
    bool any = false;
    for (i = 0; i < word_count; ++i) {
        if (strncmp(words[i], "--", 2) == 0) continue;
        any = true;
        if (named(words[i])) return true;
    }
    return !any;
}

static void explore_made(const char *suffix) {
    const size_t n = strlen(made.name);
    uint64_t moves;
    snprintf(made.name + n, sizeof made.name - n, "%s", suffix);
    if (!wanted()) {
        made.name[n] = 0;
        return;
    }
    now = &made;
    wrong[0] = 0;
    free(seen);
    seen = NULL;
    seen_room = seen_count = 0;
    message_count = 0;
    memset(message_slots, 0, sizeof message_slots);
    moves = explore();
    all_states += seen_count;
    all_moves += moves;
    printf("%s %-44s %9llu states %10llu transitions\n", wrong[0] ? "not ok" : "ok", made.name,
        (unsigned long long)seen_count, (unsigned long long)moves);
    fflush(stdout);
    if (wrong[0]) ++fails;
    if (!wrong[0]) ++passes;
    made.name[n] = 0;
}

static void faulty(
    const char *suffix, uint32_t kills, uint32_t stops, uint32_t cuts, uint32_t half) {
    made.kills = kills;
    made.stops = stops;
    made.cuts = cuts;
    made.half_cuts = half;
    explore_made(suffix);
}

/* One fault of every kind: ranks that failed leave, or stay; and unfair. */
static void single(void) {
    static const char *const how[] = {"", ", stays", ", unfair"};
    char text[32];
    uint32_t i;
    for (i = 0; i < 3; ++i) {
        made.stays = i == 1;
        made.fair = i < 2;
        snprintf(text, sizeof text, ": kill%s", how[i]);
        faulty(text, 1, 0, 0, 0);
        snprintf(text, sizeof text, ": stop%s", how[i]);
        faulty(text, 0, 1, 0, 0);
        snprintf(text, sizeof text, ": cut%s", how[i]);
        faulty(text, 0, 0, 1, 0);
        snprintf(text, sizeof text, ": half cut%s", how[i]);
        if (made.fair) faulty(text, 0, 0, 0, 1);
        if (made.ranks > 3 && !all) break;
    }
    made.fair = true;
    made.stays = false;
}

static void twofold(void) {
    faulty(": two kills", 2, 0, 0, 0);
    faulty(": two stops", 0, 2, 0, 0);
    faulty(": kill and stop", 1, 1, 0, 0);
    faulty(": stop and cut", 0, 1, 1, 0);
    faulty(": kill and cut", 1, 0, 1, 0);
}

/* With a transport that keeps the first record. */
static void kept(void) {
    made.keeps = true;
    faulty(", kept: kill", 1, 0, 0, 0);
    faulty(", kept: two kills", 2, 0, 0, 0);
    faulty(", kept: cut", 0, 0, 1, 0);
    faulty(", kept: kill and stop", 1, 1, 0, 0);
    if (made.ranks < 4 || all) faulty(", kept: kill and cut", 1, 0, 1, 0);
    made.stays = true;
    faulty(", kept: kill, stays", 1, 0, 0, 0);
    made.stays = made.keeps = false;
}

static void pairs_and_rings(void) {
    begin("pair", 2);
    ring(2, 2, 1);
    single();
    twofold();
    kept();
    begin("ring of 3", 3);
    ring(3, 2, 1);
    single();
    kept();
    begin("long ring of 3", 3);
    ring(3, 3, 1);
    if (all) faulty(": half cut", 0, 0, 0, 1);
    begin("star of 3", 3);
    star(3);
    single();
    twofold();
    kept();
}

static void chains(void) {
    uint32_t groups;
    for (groups = 0; groups < 2; ++groups) {
        const bool g = groups == 1;
        begin(g ? "groups, chain of 3" : "chain of 3", 3);
        chain(3, g, ITEM_MESSAGES);
        single();
        twofold();
        if (!g) kept();
        begin(g ? "groups, chain of 4" : "chain of 4", 4);
        chain(4, g, ITEM_MESSAGES);
        single();
        begin(g ? "groups, late rank" : "late rank", 4);
        chain(4, g, ITEM_COMPUTE);
        faulty(": no fault", 0, 0, 0, 0);
        made.stays = true;
        faulty(": no fault, stays", 0, 0, 0, 0);
        made.deaf = true;
        faulty(": no fault, deaf, stays", 0, 0, 0, 0);
        made.calm = true;
        faulty(": stop, deaf, stays", 0, 1, 0, 0);
        begin(g ? "groups, early end" : "early end", 4);
        chain(4, g, ITEM_LEAVE);
        faulty(": no fault", 0, 0, 0, 0);
        made.calm = true;
        faulty(": stop", 0, 1, 0, 0);
    }
}

static void circles(void) {
    uint32_t groups;
    for (groups = 0; groups < 2; ++groups) {
        const bool g = groups == 1;
        begin(g ? "groups, circle of 2" : "circle of 2", 2);
        circle(2, g);
        faulty(": no fault", 0, 0, 0, 0);
        faulty(": stop", 0, 1, 0, 0);
        made.fair = false;
        faulty(": no fault, unfair", 0, 0, 0, 0);
        begin(g ? "groups, rank before a circle" : "rank before a circle", 3);
        circle(2, g);
        made.domains = g ? 3 : 1;
        made.domain_of[9] = g ? 2 : 0;
        does(2, 9, 1, 0, -1, 0);
        faulty(": no fault", 0, 0, 0, 0);
        begin(g ? "groups, circle of 3" : "circle of 3", 3);
        circle(3, g);
        if (all) faulty(": no fault", 0, 0, 0, 0);
        made.fair = false;
        if (all) faulty(": no fault, unfair", 0, 0, 0, 0);
    }
}

/* Rank 0 takes messages from any rank, and others wait for it. Channels 4 to 8 are its. */
static void server(const char *name, uint32_t n, uint32_t last_domain) {
    uint32_t c;
    begin(name, n);
    made.domains = last_domain + 1;
    for (c = 10; c < 16; ++c)
        made.domain_of[c] = (uint8_t)last_domain;
}

static void servers(void) {
    uint32_t g, a;
    for (g = 0; g < 2; ++g) {
        /* two messages from any of two, and an answer to each */
        server(g ? "groups, server of 3" : "server of 3", 3, g);
        takes_any(0, 4, 6);
        takes_any(0, 4, 6);
        for (a = 1; a < 3; ++a) {
            feeds(a, 4, 1, 0);
            does(a, 10, 1, a, -1, 0);
            does(0, 10, 1, a, (int)a, -1);
        }
        single();
        twofold();
        /* one that could send waits for the next, which comes too late */
        server(g ? "groups, any of a chain" : "any of a chain", 3, g);
        takes_any(0, 4, 6);
        does(1, 10, 1, 0, -1, 2);
        feeds(1, 4, 1, 0);
        quits(2, ITEM_COMPUTE);
        faulty(": no fault", 0, 0, 0, 0);
        made.stays = made.deaf = true;
        faulty(": no fault, deaf, stays", 0, 0, 0, 0);
        /* one that could send waits for the server itself */
        server(g ? "groups, any of a circle" : "any of a circle", 3, g);
        takes_any(0, 4, 6);
        does(0, 10, 1, 0, 1, -1);
        does(1, 10, 1, 0, -1, 0);
        feeds(1, 4, 1, 0);
        quits(2, ITEM_COMPUTE);
        faulty(": no fault", 0, 0, 0, 0);
        made.stays = true;
        faulty(": no fault, stays", 0, 0, 0, 0);
        made.fair = false;
        faulty(": no fault, unfair", 0, 0, 0, 0);
    }
    /* what was thought of rank 2 at first must not go round in the circle */
    server("any of a circle and a chain", 4, 0);
    takes_any(0, 4, 6);
    does(1, 10, 1, 0, -1, 0);
    does(2, 10, 1, 1, -1, 3);
    quits(3, ITEM_COMPUTE);
    if (all) faulty(": no fault", 0, 0, 0, 0);
    server("two servers of 3", 3, 0);
    takes_any(0, 4, 6);
    takes_any(1, 9, 5);
    quits(2, ITEM_COMPUTE);
    faulty(": no fault", 0, 0, 0, 0);
    made.fair = false;
    if (all) faulty(": no fault, unfair", 0, 0, 0, 0);
    server("two servers of 4", 4, 0);
    takes_any(0, 4, 6);
    takes_any(1, 9, 13);
    quits(2, ITEM_COMPUTE);
    quits(3, ITEM_COMPUTE);
    if (all) faulty(": no fault", 0, 0, 0, 0);
}

/* Ranks that call different things learn it without any deadline. */
static void early(void) {
    made.early = made.endless = true;
    faulty(": early", 0, 0, 0, 0);
    made.endless = false;
    faulty(": early, or a deadline", 0, 0, 0, 0);
}

static void calls(void) {
    begin("different calls of 2", 2);
    circle(2, false);
    made.program[0][0].channel = made.program[1][0].channel = 1;
    made.program[1][0].call = CDP_COLL_BROADCAST;
    faulty(": no fault", 0, 0, 0, 0);
    early();
    begin("different calls of 3", 3);
    does(0, 1, 1, 0, -1, 1);
    does(0, 1, 1, 1, 2, -1);
    does(1, 1, 1, 0, -1, 0);
    does(2, 1, 1, 1, -1, 0);
    made.program[1][0].call = CDP_COLL_BROADCAST;
    made.culprits = 3;
    made.differs = 1;
    faulty(": no fault", 0, 0, 0, 0);
    early();
    begin("equal calls of 3", 3);
    ring(3, 2, 1);
    made.early = true;
    faulty(", early: kill", 1, 0, 0, 0);
    faulty(", early: stop", 0, 1, 0, 0);
    faulty(", early: half cut", 0, 0, 0, 1);
}

/* A deadline passes although what is waited for is on its way. In a fair run it comes while the
   timeout is settled: then nobody fails, unless there was a fault. */
static void late(uint32_t lates) {
    made.lates = lates;
    faulty(": late", 0, 0, 0, 0);
    made.calm = true;
    faulty(": late, kill", 1, 0, 0, 0);
    faulty(": late, stop", 0, 1, 0, 0);
    faulty(": late, cut", 0, 0, 1, 0);
    made.calm = made.fair = false;
    if (made.ranks < 3 || all) faulty(": late, unfair", 0, 0, 0, 0);
    made.fair = true;
}

static void resumed(void) {
    uint32_t g;
    begin("late pair", 2);
    ring(2, 2, 1);
    ring(2, 1, 2);
    late(2);
    begin("late ring of 3", 3);
    ring(3, 2, 1);
    late(1);
    for (g = 0; g < 2; ++g) {
        begin(g ? "groups, late chain of 3" : "late chain of 3", 3);
        chain(3, g == 1, ITEM_MESSAGES);
        late(1);
    }
    begin("late star of 3", 3);
    star(3);
    late(1);
}

/* Rank 1 loses rank 0 in a group of the two, and goes on in its group with rank 2, which has its
   last will. When rank 2 loses rank 1 later, the will explains that only as long as rank 1 has not
   gone on. */
static void wills(void) {
    begin("wills, three in two groups", 3);
    made.domains = 2;
    made.domain_of[3] = 1;
    made.skips = made.endless = true;
    does(0, 2, 1, 0, 1, -1);
    does(1, 2, 1, 0, -1, 0);
    does(1, 3, 1, 0, 2, 2);
    does(2, 3, 1, 0, 1, 1);
    does(1, 3, 2, 0, 2, 2);
    does(2, 3, 2, 0, 1, 1);
    does(1, 3, 3, 0, 2, 2);
    does(2, 3, 3, 0, 1, 1);
    faulty(": kill", 1, 0, 0, 0);
    faulty(": two kills", 2, 0, 0, 0);
    made.fair = false;
    faulty(": two kills, unfair", 2, 0, 0, 0);
}

int main(int argc, char **argv) {
    words = argv + 1;
    word_count = argc - 1;
    for (int i = 1; i < argc; ++i)
        if (strcmp(argv[i], "--verbose") == 0) verbose = true;
    for (int i = 1; i < argc; ++i)
        if (strcmp(argv[i], "--all") == 0) all = true;
    stack = (frame *)malloc(DEPTH * sizeof *stack);
    if (!stack) return 1;

    pairs_and_rings();
    chains();
    circles();
    servers();
    calls();
    resumed();
    wills();
    printf("%llu states, %llu transitions\n%u passed, %u failed\n", (unsigned long long)all_states,
        (unsigned long long)all_moves, passes, fails);
    free(stack);
    free(seen);
    free(messages);
    return fails ? 1 : 0;
}
