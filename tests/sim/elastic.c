/* elastic.c - every order of alarms, arrivals, decisions, transfers, deaths and returns, explored
   with the transition functions of cdp_elastic.h themselves

   A state is what each process stores, what each epoch's decision and arrivals hold in the store,
   which parts of operations were sent, and who is dead. Nothing is trusted that depends on time:
   anybody may arrive at any moment (a false alarm), and propose a decision of any part of the
   arrivals and newcomers. A process that was left out comes back as a newcomer and claims the
   steps that it had. A member that is a step behind receives beside what it holds, or in place of it.
   What is sent arrives, also when its sender is dead or in another epoch.

   After every transition: histories of one epoch are prefixes of each other and differ by at most
   one step; sources hold the same bits; what all members of an epoch hold is never lost; nobody
   hears two decisions; no process communicates in two epochs; no step is made of parts of another
   epoch; every sample is counted in exactly the steps that were committed; nobody ends before all
   have the last step; nobody waits for the dead.

       elastic             the worlds of the table below that are small, and the planted mistakes
       elastic --all       all worlds
       elastic --plant N   what the planted mistake N (0: none) leads to, step by step

   Visited states are known by 128 bits of hash. */
#define CDP_IMPLEMENTATION
#include "elastic_plants.h"

#include "cdp_elastic.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    PROCS = 4,
    EPOCHS = 4, /* numbers 1 to 4; 0 is none */
    STEPS = 2,
    FOREIGN = 0x80, /* in a history: a part came from another epoch */
    HALF = 0x7f     /* in a history: half received */
};

typedef struct config {
    const char *name;
    uint8_t members, waiting, epochs, steps, deaths;
    bool large;
    uint32_t states; /* expected; 0: not known */
} config;

static const config configs[] = {
    {"2 ranks, 1 change, 2 steps, 1 death", 2, 0, 2, 2, 1, false, 5079},
    {"2 ranks and a newcomer, 2 changes, 1 step, 1 death", 2, 1, 3, 1, 1, false, 2864440},
    {"3 ranks, 1 change, 2 steps, 2 deaths", 3, 0, 2, 2, 2, false, 326479},
    {"2 ranks and a newcomer, 2 changes, 2 steps, 1 death", 2, 1, 3, 2, 1, true, 7062980},
    {"3 ranks, 2 changes, 1 step, 1 death", 3, 0, 3, 1, 1, true, 6832430},
    {"3 ranks, 2 changes, 2 steps, 1 death", 3, 0, 3, 2, 1, true, 18934522},
};

enum { /* of a member that is no source */
    RECEIVING = 1,
    RECEIVED = 2
};

typedef struct proc {
    uint8_t phase, epoch, rank, step, samples, has_state, serial, heard;
    uint8_t live; /* bit e: its group of epoch e communicates */
    uint8_t dead, ended, receiving;
    uint8_t hist[STEPS]; /* the epoch in which each step was committed */
} proc;

typedef struct epoch {
    uint8_t decided, version, step, samples, size, sources; /* sources: bits of ranks */
    uint8_t id[PROCS], old[PROCS];                          /* serial numbers */
    uint8_t arrived[PROCS], arrived_step[PROCS], arrived_samples[PROCS], arrived_state[PROCS];
    uint8_t gave[PROCS];    /* of each rank: its part of step gave - 1 was sent; 0: none */
    uint8_t foreign[PROCS]; /* that part was sent in another epoch */
    uint8_t holds[PROCS];   /* how many steps that rank holds at most */
} epoch;

typedef struct state {
    proc p[PROCS];
    epoch e[EPOCHS + 1];
    uint8_t deaths, serials, stable, stable_hist[STEPS];
} state;

/* How a state was reached: what was done to which state, and by whom. */
typedef struct step {
    const char *what;
    uint32_t from, who;
} step;

typedef struct pending {
    state s;
    uint32_t at; /* in the log */
} pending;

static struct {
    const config *c;
    const char *wrong;
    uint64_t (*seen)[2];
    uint64_t mask, count, transitions;
    struct pending *stack;
    uint64_t used, room;
    struct step *log;
    uint64_t logged, log_room;
    uint32_t from, who;
    bool tell;
} x;

static void wrong(const char *why) {
    if (!x.wrong) x.wrong = why;
}

/* ---- the structs of the library, from a state and back */

static void id_of(uint8_t serial, uint8_t *id) {
    memset(id, 0, CDP__ELASTIC_ID_BYTES);
    id[3] = serial;
}

static cdp__elastic_place place_of(const state *s, uint32_t i) {
    const proc *p = &s->p[i];
    cdp__elastic_place out;
    memset(&out, 0, sizeof out);
    id_of(p->serial, out.id);
    out.epoch = p->epoch;
    out.step = p->step;
    out.samples = p->samples;
    out.rank = p->rank;
    out.size = s->e[p->epoch].size;
    out.phase = p->phase;
    out.has_state = p->has_state;
    out.live = p->live >> p->epoch & 1;
    return out;
}

static void put_place(state *s, uint32_t i, const cdp__elastic_place *in) {
    proc *p = &s->p[i];
    p->epoch = (uint8_t)in->epoch;
    p->step = (uint8_t)in->step;
    p->samples = (uint8_t)in->samples;
    p->rank = (uint8_t)in->rank;
    p->phase = in->phase;
    p->has_state = in->has_state;
    p->live = (uint8_t)(p->live & ~(1u << p->epoch));
    p->live = (uint8_t)(p->live | (in->live ? 1u << p->epoch : 0));
}

static cdp__elastic_decision decision_of(const state *s, uint32_t k, cdp__elastic_member *members) {
    const epoch *e = &s->e[k];
    cdp__elastic_decision d;
    memset(&d, 0, sizeof d);
    d.members = members;
    for (uint32_t r = 0; r < e->size; ++r) {
        uint8_t id[CDP__ELASTIC_ID_BYTES];
        id_of(e->id[r], id);
        cdp__elastic_add(
            &d, id, e->old[r] == 0xff ? CDP__ELASTIC_NEW : e->old[r], e->sources >> r & 1);
    }
    d.epoch = k;
    d.step = e->step;
    d.samples = e->samples;
    return d;
}

static void put_decision(state *s, const cdp__elastic_decision *d) {
    epoch *e = &s->e[d->epoch];
    const uint8_t version = (uint8_t)(e->version + 1);
    memset(e, 0, sizeof *e);
    e->decided = 1;
    e->version = version;
    e->step = (uint8_t)d->step;
    e->samples = (uint8_t)d->samples;
    e->size = (uint8_t)d->size;
    for (uint32_t r = 0; r < d->size; ++r) {
        e->id[r] = d->members[r].id[3];
        e->old[r] = (uint8_t)d->members[r].old_rank;
        e->sources = (uint8_t)(e->sources | (d->members[r].source ? 1u << r : 0));
    }
}

static uint32_t arrivals_of(
    const state *s, uint32_t k, uint32_t subset, cdp__elastic_arrival *out) {
    const epoch *e = &s->e[k];
    uint32_t n = 0;
    for (uint32_t r = 0; r < e->size; ++r) {
        if (!e->arrived[r] || !(subset >> r & 1)) continue;
        memset(&out[n], 0, sizeof out[n]);
        id_of(e->id[r], out[n].id);
        out[n].rank = r;
        out[n].step = e->arrived_step[r];
        out[n].samples = e->arrived_samples[r];
        out[n++].has_state = e->arrived_state[r];
    }
    return n;
}

/* The process that is rank r of epoch k and still is the one that it was then; PROCS: none. */
static uint32_t proc_of(const state *s, uint32_t k, uint32_t r) {
    uint32_t i;
    for (i = 0; i < PROCS && s->p[i].serial != s->e[k].id[r]; ++i) {
    }
    return i;
}

/* ---- what must always be so */

static bool same_history(const uint8_t *a, const uint8_t *b, uint32_t steps) {
    return memcmp(a, b, steps) == 0;
}

static void check_pair(const state *s, uint32_t i, uint32_t k) {
    const proc *a = &s->p[i], *b = &s->p[k];
    const uint32_t shorter = a->step < b->step ? a->step : b->step;
    if (a->epoch != b->epoch || a->dead || b->dead) return;
    if (a->heard != b->heard) wrong("two members heard two decisions of one epoch");
    if (!a->has_state || !b->has_state) return;
    if (a->step > b->step + 1 || b->step > a->step + 1)
        wrong("committed steps differ by more than one");
    if (!same_history(a->hist, b->hist, shorter))
        wrong("histories of one epoch are no prefixes of each other");
}

static void check_proc(const state *s, uint32_t i) {
    const proc *p = &s->p[i];
    uint32_t samples = 0;
    if (p->live & (p->live - 1)) wrong("a process communicates in two epochs");
    if (!p->has_state || p->dead) return;
    for (uint32_t n = 0; n < p->step; ++n) {
        if (p->hist[n] == HALF) {
            wrong("half received state passes for state");
            return;
        }
        if (p->hist[n] & FOREIGN) wrong("a step was made of parts of another epoch");
        samples += s->e[p->hist[n] & ~FOREIGN].size;
    }
    if (p->samples != samples) wrong("samples are counted in steps that were not committed");
}

static void check(const state *s) {
    for (uint32_t i = 0; i < PROCS; ++i) {
        check_proc(s, i);
        for (uint32_t k = i + 1; k < PROCS; ++k)
            if (s->p[i].epoch && s->p[i].phase != CDP__ELASTIC_OUT
                && s->p[k].phase != CDP__ELASTIC_OUT)
                check_pair(s, i, k);
    }
}

/* What all members of an epoch hold is stable from here on. */
static void note_held(state *s, uint32_t i) {
    const proc *p = &s->p[i];
    epoch *e = &s->e[p->epoch];
    uint32_t least = STEPS;
    if (e->holds[p->rank] < p->step) e->holds[p->rank] = p->step;
    for (uint32_t r = 0; r < e->size; ++r)
        if (e->holds[r] < least) least = e->holds[r];
    if (least <= s->stable) return;
    s->stable = (uint8_t)least;
    memcpy(s->stable_hist, p->hist, least);
}

static void check_decision(const state *s, const cdp__elastic_decision *d) {
    const proc *first = NULL;
    for (uint32_t r = 0; r < d->size; ++r) {
        uint32_t i;
        for (i = 0; i < PROCS && s->p[i].serial != d->members[r].id[3]; ++i) {
        }
        if (!d->members[r].source || i == PROCS) continue;
        const proc *p = &s->p[i];
        if (p->step != d->step) wrong("a source does not hold the step of its decision");
        if (!first) first = p;
        if (!same_history(first->hist, p->hist, (uint32_t)d->step))
            wrong("two sources hold different bits");
        if (d->step < s->stable || !same_history(s->stable_hist, p->hist, s->stable))
            wrong("a step that all members had is lost");
    }
}

/* As soon as each member has arrived or is dead, the leader proposes. */
static void check_waiting(const state *s, uint32_t k) {
    cdp__elastic_member members[PROCS];
    cdp__elastic_arrival arrivals[PROCS];
    const cdp__elastic_decision d = decision_of(s, k, members);
    bool gone[PROCS] = {false};
    uint64_t wait_ms;
    cdp__elastic_turn t = {&d, arrivals, arrivals_of(s, k, ~0u, arrivals), gone, PROCS, 0, 200};
    for (uint32_t r = d.size; r-- > 0;) {
        const uint32_t i = proc_of(s, k, r);
        gone[r] = i < PROCS && (s->p[i].dead || s->p[i].ended);
        if (!s->e[k].arrived[r] && !gone[r]) return;
        if (s->e[k].arrived[r] && !gone[r]) t.rank = r;
    }
    if (t.rank < PROCS && !cdp__elastic_proposes(&t, &wait_ms))
        wrong("the leader waits for members that are dead");
}

/* ---- states */

static uint64_t mix(uint64_t h) {
    h ^= h >> 31;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static bool is_new(const state *s) {
    const uint8_t *bytes = (const uint8_t *)s;
    uint64_t a = 1, b = 2, word;
    for (uint32_t i = 0; i < sizeof *s; i += 8) {
        word = 0;
        memcpy(&word, bytes + i, sizeof *s - i < 8 ? sizeof *s - i : 8);
        a = mix(a ^ word);
        b = mix(b + word * 0xff51afd7ed558ccdu);
    }
    uint64_t at = a & x.mask;
    a |= 1;
    for (; x.seen[at][0]; at = (at + 1) & x.mask)
        if (x.seen[at][0] == a && x.seen[at][1] == b) return false;
    x.seen[at][0] = a;
    x.seen[at][1] = b;
    if (++x.count > x.mask / 4 * 3) wrong("too many states for this program");
    return true;
}

static void tell(uint32_t at) {
    if (at) tell(x.log[at].from);
    printf("    %c %s\n", 'A' + (char)x.log[at].who, x.log[at].what);
}

static void *grown(void *list, uint64_t *room, uint64_t used, uint64_t bytes) {
    if (used < *room) return list;
    *room = *room ? 2 * *room : 4096;
    list = realloc(list, *room * bytes);
    if (!list) abort();
    return list;
}

static void push(const state *s, const char *what) {
    const bool was_wrong = x.wrong != NULL;
    ++x.transitions;
    check(s);
    if (x.wrong && x.tell && x.count) {
        tell(x.from);
        printf("    %c %s\n", 'A' + (char)x.who, what);
    }
    if (x.wrong || was_wrong || !is_new(s)) return;
    x.stack = (pending *)grown(x.stack, &x.room, x.used, sizeof *x.stack);
    x.log = (step *)grown(x.log, &x.log_room, x.logged, sizeof *x.log);
    x.log[x.logged].what = what;
    x.log[x.logged].from = x.from;
    x.log[x.logged].who = x.who;
    x.stack[x.used].s = *s;
    x.stack[x.used++].at = (uint32_t)x.logged++;
}

/* ---- transitions */

static void go_give(const state *s, uint32_t i) {
    state n = *s;
    epoch *e = &n.e[s->p[i].epoch];
    const uint32_t r = s->p[i].rank;
    cdp__elastic_place pl = place_of(s, i);
    const bool last = pl.step == x.c->steps;
    if (!pl.live || e->gave[r] > pl.step) return;
    if (!last && !cdp__elastic_begin(&pl, 1)) return;
    if (last && (pl.phase != CDP__ELASTIC_RUNNING || !pl.has_state)) return;
    e->gave[r] = (uint8_t)(pl.step + 1);
    e->foreign[r] = 0;
    put_place(&n, i, &pl);
    push(&n, "gives its part");
}

/* A part that member r sent in epoch j is taken for one of epoch k, if it says nothing else. */
static void go_late_parts(const state *s, uint32_t j, uint32_t k) {
    cdp__elastic_member members[PROCS];
    const cdp__elastic_decision d = decision_of(s, k, members);
    for (uint32_t r = 0; r < s->e[j].size && r < s->e[k].size; ++r) {
        cdp__elastic_hello h;
        id_of(s->e[j].id[r], h.id);
        h.epoch = j;
        if (s->e[k].gave[r] >= s->e[j].gave[r] || !cdp__elastic_fits(&d, r, &h)) continue;
        state n = *s;
        n.e[k].gave[r] = s->e[j].gave[r];
        n.e[k].foreign[r] = 1;
        push(&n, "takes a part of another epoch");
    }
}

/* All members gave their part of the step that this process is at. */
static bool complete(const state *s, uint32_t i, bool *foreign) {
    const epoch *e = &s->e[s->p[i].epoch];
    *foreign = false;
    for (uint32_t r = 0; r < e->size; ++r) {
        if (e->gave[r] <= s->p[i].step) return false;
        *foreign = *foreign || e->foreign[r];
    }
    return true;
}

static void go_commit(const state *s, uint32_t i) {
    state n = *s;
    proc *p = &n.p[i];
    bool foreign;
    cdp__elastic_place pl = place_of(s, i);
    if (pl.step >= x.c->steps || !complete(s, i, &foreign)) return;
    if (!cdp__elastic_count(&pl, 1)) return;
    put_place(&n, i, &pl);
    p->hist[p->step - 1] = (uint8_t)(p->epoch | (foreign ? FOREIGN : 0));
    /* a decision that has been made does not know of it */
    note_held(&n, i);
    push(&n, "commits");
}

static void go_end(const state *s, uint32_t i) {
    state n = *s;
    bool foreign;
    const cdp__elastic_place pl = place_of(s, i);
    if (pl.step < x.c->steps || !cdp__elastic_ends(&pl, complete(s, i, &foreign))) return;
    n.p[i].ended = 1;
    n.p[i].live = 0;
    if (n.stable < x.c->steps) wrong("a process ends before all have the last step");
    push(&n, "ends");
}

static void go_arrive(const state *s, uint32_t i) {
    state n = *s;
    epoch *e = &n.e[s->p[i].epoch];
    cdp__elastic_arrival a;
    cdp__elastic_place pl = place_of(s, i);
    if (pl.epoch >= x.c->epochs || !cdp__elastic_arrive(&pl, &a)) return;
    e->arrived[a.rank] = 1;
    e->arrived_step[a.rank] = (uint8_t)a.step;
    e->arrived_samples[a.rank] = (uint8_t)a.samples;
    e->arrived_state[a.rank] = a.has_state;
    put_place(&n, i, &pl);
    n.p[i].receiving = 0;
    check_waiting(&n, (uint32_t)pl.epoch);
    push(&n, "arrives");
}

/* Proposes what it has seen of arrivals and newcomers. */
static void propose(const state *s, uint32_t i, uint32_t arrived, uint32_t newcomers) {
    cdp__elastic_member old_members[PROCS], members[PROCS];
    cdp__elastic_arrival arrivals[PROCS];
    cdp__elastic_ticket tickets[PROCS];
    const uint32_t k = s->p[i].epoch;
    const cdp__elastic_decision old = decision_of(s, k, old_members);
    cdp__elastic_decision d;
    cdp__elastic_view v = {
        &old, arrivals, arrivals_of(s, k, arrived, arrivals), tickets, 0, 1, PROCS};
    state n = *s;
    for (uint32_t q = 0; q < PROCS; ++q) {
        if (!(newcomers >> q & 1)) continue;
        memset(&tickets[v.ticket_count], 0, sizeof tickets[0]);
        id_of(s->p[q].serial, tickets[v.ticket_count].id);
        tickets[v.ticket_count].samples = s->p[q].samples;
        tickets[v.ticket_count++].step = s->p[q].step;
    }
    d.members = members;
    if (cdp__elastic_decide(&v, &d) != CDP__ELASTIC_DECIDED) return;
    check_decision(s, &d);
    put_decision(&n, &d);
    push(&n, "decides");
}

static void go_decide(const state *s, uint32_t i) {
    const uint32_t k = s->p[i].epoch;
    uint32_t here = 0, waiting = 0;
    if (s->p[i].phase != CDP__ELASTIC_ARRIVED || k >= x.c->epochs) return;
    /* the first one in the store counts */
    if (s->e[k + 1].decided && (!CDP__ELASTIC_PLANT(SET) || s->e[k + 1].version > 1)) return;
    for (uint32_t r = 0; r < s->e[k].size; ++r)
        here |= (uint32_t)s->e[k].arrived[r] << r;
    for (uint32_t q = 0; q < PROCS; ++q)
        if (s->p[q].serial && s->p[q].phase == CDP__ELASTIC_WAITING) waiting |= 1u << q;
    for (uint32_t a = here; a; a = (a - 1) & here) {
        if (!(a >> s->p[i].rank & 1)) continue;
        for (uint32_t w = waiting;; w = (w - 1) & waiting) {
            propose(s, i, a, w);
            if (!w) break;
        }
    }
}

static void go_learn(const state *s, uint32_t i) {
    const proc *p = &s->p[i];
    const bool waits = p->phase == CDP__ELASTIC_WAITING;
    const uint32_t from = waits ? 2 : p->epoch + 1u, to = waits ? x.c->epochs : p->epoch + 1u;
    if (!waits && p->phase != CDP__ELASTIC_ARRIVED) return;
    for (uint32_t k = from; k <= to && k <= x.c->epochs; ++k) {
        cdp__elastic_member members[PROCS];
        state n = *s;
        if (!s->e[k].decided) continue;
        const cdp__elastic_decision d = decision_of(s, k, members);
        cdp__elastic_place pl = place_of(s, i);
        const bool in = cdp__elastic_learn(&pl, &d);
        if (!in && waits) continue;
        const uint8_t before = p->live;
        put_place(&n, i, &pl);
        n.p[i].live = (uint8_t)(before | (pl.live && in ? 1u << k : 0));
        n.p[i].heard = in ? s->e[k].version : 0;
        push(&n, in ? "is in" : "is left out");
    }
}

/* A member of the same epoch that holds what the decision says, and can send it. */
static uint32_t source_of(const state *s, uint32_t k) {
    for (uint32_t r = 0; r < s->e[k].size; ++r) {
        const uint32_t i = proc_of(s, k, r);
        if (!(s->e[k].sources >> r & 1) || i == PROCS) continue;
        if (!s->p[i].dead && !s->p[i].ended && s->p[i].epoch == k && s->p[i].live >> k & 1)
            return i;
    }
    return PROCS;
}

static void holds(state *n, uint32_t i, const cdp__elastic_place *pl, uint8_t receiving) {
    put_place(n, i, pl);
    n->p[i].receiving = receiving;
    for (uint32_t j = pl->step > STEPS ? STEPS : (uint32_t)pl->step; j < STEPS; ++j)
        n->p[i].hist[j] = 0;
    note_held(n, i);
}

/* Beside what it holds, if it holds anything and has the memory; else it loses that. */
static void go_receive(const state *s, uint32_t i) {
    state n = *s;
    cdp__elastic_place pl = place_of(s, i);
    if (pl.has_state) {
        cdp__elastic_receive(&pl, true);
        put_place(&n, i, &pl);
        n.p[i].receiving = RECEIVING;
        push(&n, "begins to receive, apart");
    }
    cdp__elastic_receive(&pl, false);
    put_place(&n, i, &pl);
    n.p[i].receiving = RECEIVING;
    memset(n.p[i].hist, HALF, STEPS);
    push(&n, "begins to receive");
}

static void go_run(const state *s, uint32_t i) {
    cdp__elastic_member members[PROCS];
    state n = *s;
    const uint32_t k = s->p[i].epoch;
    cdp__elastic_place pl = place_of(s, i);
    if (pl.phase != CDP__ELASTIC_JOINED) return;
    const cdp__elastic_decision d = decision_of(s, k, members);
    if (!d.members[pl.rank].source && s->p[i].receiving != RECEIVED) {
        const uint32_t q = source_of(s, k);
        if (q == PROCS) return;
        if (!s->p[i].receiving) {
            go_receive(s, i);
            return;
        }
        if (!cdp__elastic_hold(&pl, &d)) return;
        memcpy(n.p[i].hist, s->p[q].hist, STEPS);
        holds(&n, i, &pl, RECEIVED);
        push(&n, "has received");
        return;
    }
    if (!cdp__elastic_run(&pl, &d)) return;
    holds(&n, i, &pl, 0);
    push(&n, "runs");
}

static void go_die(const state *s, uint32_t i) {
    state n = *s;
    if (s->deaths >= x.c->deaths) return;
    ++n.deaths;
    n.p[i].dead = 1;
    n.p[i].live = 0;
    if (n.p[i].epoch) check_waiting(&n, n.p[i].epoch);
    push(&n, "dies");
}

static void go_back(const state *s, uint32_t i) {
    state n = *s;
    if (s->p[i].phase != CDP__ELASTIC_OUT || s->p[i].epoch >= x.c->epochs) return;
    n.p[i].serial = ++n.serials;
    n.p[i].phase = CDP__ELASTIC_WAITING;
    n.p[i].epoch = 0;
    n.p[i].heard = 0;
    n.p[i].rank = 0;
    push(&n, "comes back");
}

static void all_of(const state *s) {
    for (uint32_t i = 0; i < PROCS && !x.wrong; ++i) {
        x.who = i;
        if (!s->p[i].serial || s->p[i].dead || s->p[i].ended) continue;
        go_give(s, i);
        go_commit(s, i);
        go_end(s, i);
        go_arrive(s, i);
        go_decide(s, i);
        go_learn(s, i);
        go_run(s, i);
        go_die(s, i);
        go_back(s, i);
    }
    for (uint32_t j = 1; j <= x.c->epochs; ++j)
        for (uint32_t k = 1; k <= x.c->epochs && !x.wrong; ++k)
            if (j != k && !x.wrong) go_late_parts(s, j, k);
}

/* ---- worlds */

static void first_state(state *s) {
    cdp__elastic_member members[PROCS];
    cdp__elastic_ticket tickets[PROCS];
    cdp__elastic_decision none, d;
    cdp__elastic_view v = {&none, NULL, 0, tickets, x.c->members, x.c->members, x.c->members};
    memset(s, 0, sizeof *s);
    memset(&none, 0, sizeof none);
    memset(tickets, 0, sizeof tickets);
    for (uint32_t i = 0; i < x.c->members; ++i)
        id_of((uint8_t)(i + 1), tickets[i].id);
    d.members = members;
    if (cdp__elastic_decide(&v, &d) != CDP__ELASTIC_DECIDED) wrong("there is no first epoch");
    put_decision(s, &d);
    for (uint32_t i = 0; i < x.c->members + x.c->waiting; ++i) {
        cdp__elastic_place pl;
        s->p[i].serial = ++s->serials;
        s->p[i].phase = CDP__ELASTIC_WAITING;
        if (i >= x.c->members) continue;
        pl = place_of(s, i);
        if (!cdp__elastic_learn(&pl, &d) || !cdp__elastic_run(&pl, &d)) wrong("nobody runs");
        put_place(s, i, &pl);
        s->p[i].heard = 1;
    }
    put_decision(s, &d);
    s->e[1].version = 1;
}

static bool explore(const config *c) {
    state s;
    x.c = c;
    x.wrong = NULL;
    x.count = x.transitions = x.used = x.logged = 0;
    x.from = x.who = 0;
    memset(x.seen, 0, (x.mask + 1) * sizeof *x.seen);
    first_state(&s);
    push(&s, "begins");
    while (x.used && !x.wrong) {
        s = x.stack[--x.used].s;
        x.from = x.stack[x.used].at;
        all_of(&s);
    }
    return !x.wrong;
}

static bool found(plant which) {
    bool hit = false;
    planted = which;
    for (uint32_t i = 0; i < sizeof configs / sizeof configs[0] && !hit; ++i)
        if (!configs[i].large) hit = !explore(&configs[i]);
    planted = PLANT_NOTHING;
    return hit;
}

static const char *const plant_names[PLANTS] = {"nothing",
    "a newcomer with a higher step is source", "commits after arrival", "arrives without revoking",
    "ends before all have the last step", "decision set in place of compared and set",
    "no epoch in what is sent", "samples counted before the commit", "waits for the dead",
    "a receiver keeps its state"};

int main(int argc, char **argv) {
    const bool all = argc > 1 && !strcmp(argv[1], "--all");
    const plant one =
        argc > 2 && !strcmp(argv[1], "--plant") ? (plant)atoi(argv[2]) : PLANT_NOTHING;
    uint32_t passed = 0, failed = 0;
    x.mask = ((uint64_t)1 << (all ? 25 : 22)) - 1;
    x.seen = (uint64_t(*)[2])calloc(x.mask + 1, sizeof *x.seen);
    if (!x.seen) return 2;
    x.tell = argc > 1 && !all;
    if (x.tell) return found(one);
    for (uint32_t i = 0; i < sizeof configs / sizeof configs[0]; ++i) {
        const config *c = &configs[i];
        if (c->large && !all) continue;
        const bool ok = explore(c) && (!c->states || c->states == x.count);
        printf("%s %s: %llu states, %llu transitions%s%s\n", ok ? "ok" : "not ok", c->name,
            (unsigned long long)x.count, (unsigned long long)x.transitions, x.wrong ? ": " : "",
            x.wrong ? x.wrong : "");
        fflush(stdout);
        ok ? ++passed : ++failed;
    }
    for (uint32_t p = 1; p < PLANTS; ++p) {
        const bool ok = found((plant)p);
        printf("%s planted: %s: %s after %llu states\n", ok ? "ok" : "not ok", plant_names[p],
            ok ? x.wrong : "not found", (unsigned long long)x.count);
        ok ? ++passed : ++failed;
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed > 0;
}
