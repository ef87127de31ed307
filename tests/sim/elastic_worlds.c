/* elastic_worlds.c - whole jobs of cdp_elastic.h in a simulated world: processes that train, come,
   go, stand still, are cut off and die, and a store that decides

   Node 0 serves the store; each other node is a process. Each seed draws how many there are, when
   they come, how long a step takes, who leaves, who raises an alarm, and one or more faults. The
   clocks of the nodes differ by hours. The state of a process is what a serial program makes of the
   steps in its history: integers, and the order of steps counts.

   After each piece of a run, in every world:
   (1) an epoch has one decision; (2) steps of its members differ by at most one, and their
   histories are prefixes of each other; (3, 8) what a process holds is what the serial program
   makes of its history and of the decisions; (4) a step that all members of an epoch hold is never
   lost; (7) every sample is in exactly one step; (10) nobody commits after it arrived. At the end:
   (5) each member that lives is in the next epoch or was told why not; (6) the dead are named;
   (9) each call, and each turn, ends in time; (12) no memory, descriptor, thread or key of an old
   epoch is left; (13) there are no more turns than reasons for one; (14) spares cause none. All
   answers to one cdp_elastic_agree() are equal. (11), restarts, is a matter of launchers. The
   worlds "ask" count what each member asks of the store in a turn, and hold it to a budget.

   In one of two worlds nobody has a thread: processes arrive and decide in their calls. In those of
   the kind "long" one of them computes for longer than settle_ms: it is left out, and told for how
   long it was away; unless it calls cdp_elastic_poll() meanwhile. All have threads in those of the
   kind "thin": without them nobody knows how fast a link is.

   Then planted mistakes, each of which some world must find.

       elastic_worlds [--seeds A..B] [--seed N] [--trace] [--plant N] [FAULT] */
#define CDP_IMPLEMENTATION
#include "elastic_plants.h"

#include "elastic_world.h"

enum {
    NODES = 33, /* with the store */
    USUAL = 16, /* processes at most, but for F_CROWD */
    EPOCHS = 128,
    STEPS = 10,
    MOST_STEPS = 40, /* where newcomers must have time to be tried */
    LIVES = 3,
    WEIGHTS = 24,
    BATCH = 2,
    ANSWERS = 8,
    SETTLE_MS = 200,
    SETTLE_ALONE_MS = 1600, /* without threads: a step, and 1500 */
    JOIN_MS = 20000,
    OPERATION_MS = 3000,
    BALLAST = 1 << 18, /* F_THIN: bytes of the state that never change */
    THIN_BYTES = 2048, /* of them on their way to it at the same time */
    THIN_MS = 20,
    FAR_OPERATION_MS = 30000 /* 100 round trips */
};

typedef enum fault_kind {
    F_NONE,
    F_DELAY,
    F_KILL,  /* at any os call */
    F_EVERY, /* at the os call with the number of the seed, in one world */
    F_PAIR,
    F_NODE,  /* some of them at once */
    F_STORM, /* eight newcomers come at once, and three of all die */
    F_CROWD, /* the same with sixteen newcomers */
    F_STOP,
    F_CUT,
    F_PART,
    F_ONE_WAY,
    F_SLOW_STORE,
    F_NO_STORE,
    F_NOMEM,
    F_APART, /* two members do not reach each other from some moment on */
    F_FIRST, /* a member dies or stands still before the job begins, and no store has last wills */
    F_FIREWALL, /* the last newcomer reaches the store, and some of the ranks not */
    F_GONE,     /* all members die, or stand still, at once, and no store has last wills */
    F_MUTE,     /* the host of the store stands still for seconds while steps are computed */
    F_SOURCE,   /* who alone has the newest step dies, at each call of the turn and the transfer */
    F_DEAF,     /* answers of the store stop reaching a member that calls cdp_elastic_agree() */
    F_AGREE,    /* a member dies at each call of cdp_elastic_agree() */
    F_PAUSE,    /* all stand still, the store too, for longer than settle_ms, while a turn begins */
    F_ASK,      /* what a turn asks of the store is counted */
    F_LONG,     /* without threads somebody computes for longer than settle_ms in a turn */
    F_OTHER,    /* the last newcomer has another setting */
    F_HANG,     /* a member computes for ever, and its thread lives */
    F_AWAY,     /* the last newcomer is away before cdp_elastic_next(), or in connected() */
    F_THIN,     /* the state does not reach the last newcomer in time */
    F_FAR,      /* round trips of up to 300 ms */
    F_KINDS
} fault_kind;
static const char *const fault_names[F_KINDS] = {"none", "delay", "kill", "every", "pair", "node",
    "storm", "crowd", "stop", "cut", "part", "one_way", "slow_store", "no_store", "nomem", "apart",
    "first", "firewall", "gone", "mute", "source", "deaf", "agree", "pause", "ask", "long", "other",
    "hang", "away", "thin", "far"};

/* What is known of an epoch, whoever told it first. */
typedef struct epoch_seen {
    uint8_t decision[CDP__ELASTIC_HEAD_BYTES + NODES * CDP__ELASTIC_MEMBER_BYTES];
    uint32_t size, lost, joined;
    uint64_t step;
    uint8_t node[NODES], life[NODES]; /* of each rank */
    uint64_t holds[NODES];            /* steps that it held at most */
    uint8_t hist[MOST_STEPS];         /* of the state with which it begins */
    uint64_t arrived_ns, running_ns;  /* the first member that has arrived; that runs */
    char cause[160];
    uint8_t answer[ANSWERS]; /* of cdp_elastic_agree(): 0 none yet; 1 no; 2 yes */
    bool said_no[ANSWERS];
} epoch_seen;

typedef struct member {
    cdp_elastic *e; /* NULL: it is in none */
    sim_node *node;
    uint64_t random, start_ns, leave_at;
    uint32_t life, pace_us, agreed;
    bool claims, over; /* it was told that the job is over, or lost */
    bool computed;     /* F_LONG: for longer than settle_ms, without a call */
    uint64_t w[WEIGHTS], grad[WEIGHTS];
    uint8_t hist[MOST_STEPS], blob[MOST_STEPS]; /* in which epoch each step was committed */
    cdp__elastic_place last;                    /* as the last look saw it */
    uint32_t asked[2][CDP_STORE_OP_COUNT];      /* F_ASK: before and after the decision */
    cdp_status status;
    char text[512];
} member;

static struct {
    sim_world *world;
    uint64_t seed;
    fault_kind kind;
    bool no_thread;
    uint32_t bad[2];  /* nodes that keep the others from going on; 0: none */
    uint64_t long_in; /* F_LONG: the epoch in which it happens */
    bool cuts;        /* F_FIRST: it stands still */
    bool turns;       /* F_ASK: the alarm was raised */
    uint64_t died_ns; /* F_GONE: when all members do */
    bool faulty,
        doomed; /* F_SOURCE, F_AGREE, F_DEAF: somebody is about to die; F_PAUSE: all stood still */
    uint32_t settle_ms, steps, nodes, fresh, min_ranks, max_ranks, alarms, leaves, newest;
    uint64_t stable;
    uint8_t stable_hist[MOST_STEPS];
    epoch_seen e[EPOCHS];
    member m[NODES];
    char wrong[900];
} x;

static uint8_t ballast[NODES][BALLAST]; /* of each node */

static struct {
    uint64_t worlds, epochs, lost, back, named, unnamed, slowest_ns, crowds, no_thread, away,
        others, evicted, kept_out, deaf;
} total;

static bool trace; /* of the last run of a seed */
#include "worlds.h"
#include "elastic_nodes.h"

static SIM_FORMAT(2, 3) void wrong(const member *m, const char *f, ...) {
    char text[600];
    va_list ap;
    if (x.wrong[0]) return;
    va_start(ap, f);
    vsnprintf(text, sizeof text, f, ap);
    va_end(ap);
    snprintf(x.wrong, sizeof x.wrong, "node %u, epoch %llu, step %llu: %s", (uint32_t)(m - x.m),
        (unsigned long long)m->last.epoch, (unsigned long long)m->last.step, text);
}

static bool at_once(uint32_t kind) {
    return kind == F_STORM || kind == F_CROWD;
}

/* Worlds in which somebody lives, reaches the store and blocks the others. */
static bool blocks(void) {
    return x.kind == F_APART || x.kind == F_FIREWALL || x.kind == F_HANG || x.kind == F_AWAY
        || x.kind == F_THIN;
}

static bool is_bad(const member *m) {
    return blocks() && m > x.m && (m == &x.m[x.bad[0]] || m == &x.m[x.bad[1]]);
}

/* A newcomer that has no state yet may be refused in place of one of two members. One that has
   received it, over the paths that it has, is a member: then either of two may go. */
static bool is_suspect(const member *m) {
    if (x.kind == F_FIREWALL && x.m[x.bad[0]].last.has_state) return true;
    return is_bad(m) || (blocks() && m > &x.m[x.nodes - 1 - x.fresh] && !m->last.has_state);
}

/* ---- the serial program */

static uint64_t samples_of(const uint8_t *hist, uint64_t steps) {
    uint64_t n = 0;
    for (uint64_t s = 0; s < steps; ++s)
        n += (uint64_t)x.e[hist[s]].size * BATCH;
    return n;
}

static void replay(const uint8_t *hist, uint64_t steps, uint64_t *w) {
    uint64_t sample = 0;
    memset(w, 0, WEIGHTS * sizeof *w);
    for (uint64_t s = 0; s < steps; ++s) {
        const uint64_t end = sample + (uint64_t)x.e[hist[s]].size * BATCH;
        for (uint32_t i = 0; i < WEIGHTS; ++i)
            w[i] *= 3;
        for (; sample < end; ++sample)
            for (uint32_t i = 0; i < WEIGHTS; ++i)
                w[i] += (sample + 1) * (i + 1);
    }
}

/* ---- what must always be so */

static void note_held(member *m, const cdp__elastic_place *p) {
    epoch_seen *e = &x.e[p->epoch];
    uint64_t least = UINT64_MAX;
    if (p->samples != samples_of(m->hist, p->step))
        wrong(m, "samples are counted in steps that were not committed");
    if (e->holds[p->rank] < p->step) e->holds[p->rank] = p->step;
    if (p->epoch == x.newest && memcmp(m->hist, x.stable_hist, x.stable) != 0)
        wrong(m, "a step that all members had is lost");
    for (uint32_t r = 0; r < e->size; ++r)
        if (e->holds[r] < least) least = e->holds[r];
    if (least <= x.stable) return;
    x.stable = least;
    memcpy(x.stable_hist, m->hist, least);
}

static void check_pairs(const member *m, const cdp__elastic_place *p) {
    for (uint32_t i = 1; i < x.nodes; ++i) {
        const cdp__elastic_place *q = &x.m[i].last;
        const uint64_t least = p->step < q->step ? p->step : q->step;
        if (&x.m[i] == m || !x.m[i].e || !alive(i) || q->epoch != p->epoch) continue;
        if (!p->has_state || !q->has_state || q->phase == CDP__ELASTIC_OUT) continue;
        if (p->step > q->step + 1 || q->step > p->step + 1)
            wrong(m, "committed steps of node %u and this one differ by more than one", i);
        if (memcmp(m->hist, x.m[i].hist, least) != 0)
            wrong(m, "the histories of node %u and this one are no prefixes of each other", i);
    }
}

static void check_sources(const member *m, epoch_seen *e, const cdp__elastic_decision *d) {
    bool any = false;
    if (d->step < x.stable) wrong(m, "a decision loses a step that all members had");
    if (d->epoch == 1) return;
    for (uint32_t r = 0; r < d->size; ++r) {
        const member *s = &x.m[e->node[r]];
        const epoch_seen *old = &x.e[d->epoch - 1];
        const uint32_t o = d->members[r].old_rank;
        if (o != CDP__ELASTIC_NEW
            && (o >= old->size || old->node[o] != e->node[r] || old->life[o] != e->life[r]))
            wrong(m, "rank %u of epoch %llu was not rank %u before", r,
                (unsigned long long)d->epoch, o);
        if (!d->members[r].source) continue;
        if (o == CDP__ELASTIC_NEW) wrong(m, "a newcomer is a source");
        if (!any) memcpy(e->hist, s->hist, d->step);
        if (memcmp(e->hist, s->hist, d->step) != 0) wrong(m, "two sources hold different bits");
        any = true;
    }
    if (memcmp(e->hist, x.stable_hist, x.stable) != 0)
        wrong(m, "the sources do not have the steps that all members had");
}

static void see_decision(member *m, const cdp__elastic_decision *d) {
    uint8_t bytes[sizeof x.e[0].decision];
    epoch_seen *e = &x.e[d->epoch];
    if (d->epoch >= EPOCHS || d->size >= NODES) {
        wrong(m, "epoch %llu of %u ranks", (unsigned long long)d->epoch, d->size);
        return;
    }
    memset(bytes, 0, sizeof bytes);
    cdp__elastic_put_decision(bytes, d);
    if (e->size) {
        if (memcmp(bytes, e->decision, sizeof bytes) != 0)
            wrong(m, "it heard another decision of epoch %llu", (unsigned long long)d->epoch);
        return;
    }
    memcpy(e->decision, bytes, sizeof bytes);
    e->size = d->size;
    e->step = d->step;
    e->lost = d->lost;
    e->joined = d->joined;
    memcpy(e->cause, d->cause, sizeof e->cause);
    for (uint32_t r = 0; r < d->size; ++r) {
        e->node[r] = d->members[r].id[0];
        e->life[r] = d->members[r].id[1];
    }
    check_sources(m, e, d);
    if (d->epoch > x.newest) x.newest = (uint32_t)d->epoch;
}

static void look_at(member *m, const cdp__elastic_place *p) {
    const cdp__elastic_place was = m->last;
    const bool entered = was.epoch != p->epoch;
    epoch_seen *e = &x.e[p->epoch];
    m->last = *p;
    if (p->epoch < was.epoch) wrong(m, "it goes back to an old epoch");
    if (p->phase == CDP__ELASTIC_ARRIVED && !e->arrived_ns) e->arrived_ns = x.world->now;
    if (p->phase == CDP__ELASTIC_RUNNING && !e->running_ns) e->running_ns = x.world->now;
    if (!p->has_state || p->phase == CDP__ELASTIC_OUT) return;
    if (!entered && was.has_state && p->step != was.step && was.phase != CDP__ELASTIC_JOINED) {
        if (was.phase != CDP__ELASTIC_RUNNING) wrong(m, "it commits after it arrived");
        if (p->step != was.step + 1) wrong(m, "it commits %d steps at once", (int)p->step);
        m->hist[was.step] = (uint8_t)p->epoch;
        note_held(m, p);
    } else if (p->step == e->step && (entered || !was.has_state || p->step != was.step)) {
        if (entered && p->epoch > 1 && memcmp(m->hist, e->hist, e->step) != 0)
            wrong(m, "a source holds other steps than its epoch begins with");
        memcpy(m->hist, e->hist, e->step);
        note_held(m, p);
    }
    check_pairs(m, p);
}

static void look(sim_world *w) {
    for (uint32_t i = 1; i < x.nodes; ++i) {
        member *m = &x.m[i];
        if (!m->e || w->nodes[i].state != SIM_READY || !m->e->place.epoch) continue;
        if (m->e->d.epoch != m->e->place.epoch) continue;
        if (!memcmp(&m->last, &m->e->place, sizeof m->last)) continue;
        see_decision(m, &m->e->d);
        if (!x.wrong[0]) look_at(m, &m->e->place);
    }
}

/* After each step of the world. */
static void pause_all(sim_world *w) {
    const uint64_t arrived = x.e[x.newest].arrived_ns;
    if (x.kind != F_PAUSE || x.doomed || !arrived) return;
    if (w->now < arrived + x.seed % 16 * 10 * SIM_US) return;
    x.doomed = x.faulty = true;
    /* below OPERATION_MS, after which the store would be lost */
    const uint64_t ms =
        x.settle_ms + SETTLE_MS / 2 + x.seed * 37 % (x.no_thread ? OPERATION_MS / 3 : 1500);
    for (uint32_t i = 0; i < x.nodes; ++i) /* they do not go on at the same moment */
        sim__stop(w, &w->nodes[i], (ms + sim_random(&x.m[i].random) % 150) * SIM_MS);
}

/* ---- what a turn asks of the store */

/* What one member may ask in the turn from the second epoch to the third. A read compares with what
   no key holds (COMPARE_SET), for a GET would wait. A member looks at the
   turn twice at most, for here all arrive within 10 ms. Before the decision it reads the alarm,
   appends its arrival, and reads in each look the decision (not there yet), the arrivals, and
   whether the leader is gone; it waits for the decision, and reads it. Each of its two threads may
   notice the failure, and raise the alarm. The leader asks in each look for all members, reads
   tickets and alarm, and decides. Afterwards each member says that it is here and waits for all,
   and cdp_init() exchanges addresses; rank 0 tidies up after the epoch before: a key for each of
   its ranks, and six others; and asks (COMPARE_SET) for a trial of newcomers. So the requests of
   the leader grow with the number of ranks, those of the other members do not. Without threads
   members arrive within a step, 45 ms here, and who has arrived first leads for a while: it looks
   every 10 ms; and before rank 0 sees the alarm it may have begun to read tickets (GET). */
static const struct {
    uint8_t half; /* 0: until the member knows the decision; 1: from there on until it runs */
    cdp_store_op op;
    uint32_t most, leads, each; /* rank 0 may ask more: `leads`, and `each` for each rank */
} budget[] = {{0, CDP_STORE_APPEND, 1, 0, 0}, {0, CDP_STORE_COMPARE_SET, 10, 3, 2},
    {0, CDP_STORE_CHECK, 2, 0, 0}, {0, CDP_STORE_WAIT, 2, 0, 0}, {0, CDP_STORE_GET, 0, 1, 0},
    {1, CDP_STORE_COMPARE_SET, 0, 3, 0}, {1, CDP_STORE_GET, 1, 0, 0}, {1, CDP_STORE_WAIT, 2, 0, 0},
    {1, CDP_STORE_ADD, 1, 0, 0}, {1, CDP_STORE_SET, 2, 3, 0}, {1, CDP_STORE_DELETE, 0, 7, 1}};

static cdp_status (*plain_start)(void *self, cdp_store_request *rq);

static cdp_status counting_start(void *self, cdp_store_request *rq) {
    static const char alarm[] = "elastic/e/2/alarm";
    if (rq->op == CDP_STORE_COMPARE_SET && rq->keys[0].bytes == sizeof alarm - 1
        && memcmp(rq->keys[0].data, alarm, sizeof alarm - 1) == 0)
        x.turns = true;
    for (uint32_t i = 1; x.turns && i < x.nodes; ++i) {
        member *m = &x.m[i];
        if (!m->e || !alive(i) || (m->e->store->self != self && m->e->watched->self != self))
            continue;
        if (m->e->place.epoch == 2) ++m->asked[0][rq->op];
        if (m->e->place.epoch == 3 && m->e->place.phase == CDP__ELASTIC_JOINED)
            ++m->asked[1][rq->op];
    }
    return plain_start(self, rq);
}

/* Both clients of this process. */
static void count_requests(const member *m) {
    plain_start = m->e->store->start;
    m->e->store->start = m->e->watched->start = counting_start;
}

static uint32_t allowed(uint32_t half, uint32_t op, uint32_t rank) {
    const bool reads = op == CDP_STORE_CHECK || op == CDP_STORE_COMPARE_SET || op == CDP_STORE_WAIT;
    const bool looks = x.no_thread && !half && reads;
    for (uint32_t i = 0; i < sizeof budget / sizeof *budget; ++i) {
        const uint32_t leads = budget[i].leads + budget[i].each * x.e[2].size;
        if (budget[i].half != half || budget[i].op != op) continue;
        if (op == CDP_STORE_GET && !half) return x.no_thread && !rank;
        if (looks) return budget[i].most + 5 * leads + (op == CDP_STORE_WAIT ? 5 : 0);
        if (!rank) return budget[i].most + leads;
        return budget[i].most + budget[i].each / 2 * x.e[2].size; /* it may come first, and lead */
    }
    return 0;
}

static void judge_requests(void) {
    if (x.no_thread && !x.e[3].running_ns) return; /* the steps ended before the next look */
    if (!x.turns || !x.e[3].running_ns) {
        wrong(&x.m[0], "there was no turn from epoch 2 to 3");
        return;
    }
    for (uint32_t r = 0; r < x.e[3].size; ++r) {
        const member *m = &x.m[x.e[3].node[r]];
        uint32_t sum = 0;
        for (uint32_t half = 0; half < 2; ++half)
            for (uint32_t op = 0; op < CDP_STORE_OP_COUNT; ++op) {
                const uint32_t n = m->asked[half][op], most = allowed(half, op, r);
                sum += n;
                if (n > most)
                    wrong(m,
                        "rank %u of %u: %u requests of kind %u %s the decision, and %u are allowed",
                        r, x.e[2].size, n, op, half ? "after" : "before", most);
            }
        if (m->asked[0][CDP_STORE_APPEND] != 1) wrong(m, "rank %u has not arrived once", r);
        if (trace) printf("    rank %u of %u: %u requests\n", r, x.e[2].size, sum);
    }
}

/* ---- a process */

static uint64_t save(void *user, void *data, uint64_t room) {
    member *m = (member *)user;
    if (room >= sizeof m->hist) memcpy(data, m->hist, sizeof m->hist);
    return sizeof m->hist;
}

static cdp_status load(void *user, const void *data, uint64_t bytes) {
    member *m = (member *)user;
    if (bytes != sizeof m->blob) wrong(m, "a blob of another size");
    memcpy(m->blob, data, sizeof m->blob);
    return CDP_OK;
}

static void within(const member *m, const char *call, uint64_t began, uint64_t ms) {
    const uint64_t took = x.world->now - began;
    if (took > ms * SIM_MS * 11 / 10 && x.kind != F_STOP && !x.cuts)
        wrong(m, "%s took %llu ms", call, (unsigned long long)(took / SIM_MS));
}

/* What cdp_elastic_next() says is what the serial program has. */
static void check_now(member *m, const cdp_elastic_now *now) {
    uint64_t w[WEIGHTS];
    if (now->epoch != m->last.epoch && m->e->place.epoch == now->epoch) return; /* not seen yet */
    if (now->received && memcmp(m->blob, m->hist, now->step) != 0)
        wrong(m, "the blob is not that of its step");
    if (now->samples != samples_of(m->hist, now->step)) wrong(m, "now.samples is wrong");
    if (now->stable > x.stable) wrong(m, "now.stable is a step that not all have");
    if (now->rank >= now->size || now->size != x.e[now->epoch].size) wrong(m, "a wrong size");
    replay(m->hist, now->step, w);
    if (memcmp(w, m->w, sizeof w) != 0) wrong(m, "its state is not that of its history");
    if (now->changed) m->agreed = 0;
}

/* Dies at one of its next `calls` calls of the os. */
static void doom(member *m, uint32_t calls) {
    const sim_fault f = {.kind = SIM_FAULT_KILL,
        .a = (int32_t)m->node->id,
        .at_count = m->node->calls + 1 + x.seed * 37 % calls};
    x.doomed = x.faulty = true;
    sim_add_fault(x.world, &f);
}

/* From one of the next moments on it hears nothing of the store; what it asks arrives. */
static void be_deaf(const member *m) {
    const sim_fault f = {.kind = SIM_FAULT_PARTITION,
        .set_a = 1,
        .set_b = 1ull << m->node->id,
        .one_way = true,
        .at_ns = x.world->now - x.world->start_ns + x.seed % 8 * 20 * SIM_US,
        .for_ns = SIM_FOREVER};
    x.doomed = x.faulty = true;
    x.bad[0] = m->node->id;
    sim_add_fault(x.world, &f);
}

/* All who get an answer get the same one. */
static void agree(member *m, const cdp_elastic_now *now) {
    /* the store may answer nothing for a while */
    const bool silent = x.kind == F_MUTE || x.kind == F_PART || x.kind == F_ONE_WAY;
    const bool yes = !sim_chance(&m->random, 200);
    epoch_seen *e = &x.e[now->epoch];
    const uint32_t n = m->agreed++;
    const uint64_t began = x.world->now;
    bool all = false;
    if (n >= ANSWERS) return;
    e->said_no[n] = e->said_no[n] || !yes;
    if (x.kind == F_AGREE && !x.doomed && now->step >= 4 && now->rank == x.seed / 150 % now->size)
        doom(m, 150);
    if (x.kind == F_DEAF && !x.doomed && now->size > 1 && now->step >= 4
        && now->rank == x.seed / 8 % now->size)
        be_deaf(m);
    if (cdp_elastic_agree(m->e, yes, &all) != CDP_OK) {
        /* a program may ask again: the others must not take that for their next operation */
        if (x.kind == F_DEAF && cdp_elastic_agree(m->e, yes, &all) == CDP_OK)
            wrong(m, "it agrees in an epoch that it has left");
        return;
    }
    within(m, "cdp_elastic_agree", began, 2 * OPERATION_MS + (silent ? JOIN_MS : 1000));
    if (e->answer[n] && e->answer[n] != (all ? 2 : 1))
        wrong(m, "two members got two answers of cdp_elastic_agree()");
    e->answer[n] = all ? 2 : 1;
    if (all && e->said_no[n]) wrong(m, "they agreed, and one said no");
}

/* Step 4 of the first epoch: rank 0 commits it, and dies; the others hear of that before. */
static void die_with_a_step(member *m, const cdp_elastic_now *now) {
    if (x.kind != F_SOURCE || now->epoch != 1 || now->step != 4) return;
    if (now->rank) {
        sim_sleep(m->node, 150 * SIM_MS);
    } else if (cdp_elastic_alarm(m->e, "a turn begins") == CDP_OK) {
        ++x.alarms;
        doom(m, 1200);
    }
}

/* F_ASK: the first epoch ends without a fault, so that there is something to tidy up in the turn
   after it, in which somebody raises an alarm, or dies. */
static void begin_turns(member *m, const cdp_elastic_now *now) {
    const bool first = now->epoch == 1 && now->step == 2;
    if (now->rank != x.seed / 14 % now->size) return;
    if (!first && (now->epoch != 2 || now->step < 5 || x.doomed || x.alarms > 1)) return;
    if (!first && now->step == x.e[2].step) return; /* others may still tidy up */
    if (!first && x.seed % 2)
        doom(m, 8); /* soon: some make 20 calls in all that is left */
    else if (cdp_elastic_alarm(m->e, "a turn begins") == CDP_OK)
        ++x.alarms;
}

/* F_LONG: in step 4 another rank raises an alarm while this one computes. Half
   of them look now and then, and stay in. */
static void compute_for_long(member *m, const cdp_elastic_now *now) {
    const uint64_t begun = x.world->now;
    const bool polls = x.seed % 2;
    cdp_status st = CDP_OK;
    if (x.kind != F_LONG || now->step != 4 || now->size < 2) return;
    if (!x.long_in) x.long_in = now->epoch;
    if (now->epoch != x.long_in) return;
    if (now->rank == (x.seed / 2 + 1) % now->size) {
        ++x.alarms;
        if (cdp_elastic_alarm(m->e, "a turn begins") < 0) wrong(m, "no alarm");
        while (cdp_elastic_poll(m->e) == CDP_OK) /* it arrives, and ends the others' operation */
            sim_sleep(m->node, SIM_MS);
    } else if (now->rank == x.seed / 2 % now->size) {
        m->computed = !polls;
        while (st == CDP_OK && x.world->now < begun + 3 * x.settle_ms * SIM_MS) {
            sim_sleep(m->node, x.settle_ms / 4 * SIM_MS);
            if (polls) st = cdp_elastic_poll(m->e);
        }
        if (polls && st != CDP_ERR_ABORTED) wrong(m, "cdp_elastic_poll() did not see the alarm");
        if (polls && x.world->now > begun + x.settle_ms * SIM_MS) wrong(m, "it saw it late");
    }
}

/* F_AWAY: seconds in which it calls nothing. */
static void be_away(member *m, bool in_connected) {
    if (x.kind == F_AWAY && is_bad(m) && in_connected == (x.seed % 2 == 1))
        sim_sleep(m->node, (in_connected ? 8 : 40) * SIM_S);
}

static cdp_status connected(void *user, const cdp_elastic_now *now) {
    (void)now;
    be_away((member *)user, true);
    return CDP_OK;
}

static void hang(const member *m, const cdp_elastic_now *now) {
    if (x.kind == F_HANG && is_bad(m) && now->step >= 4 && now->size > 1)
        sim_sleep(m->node, 100 * SIM_S);
}

static void one_step(member *m, const cdp_elastic_now *now) {
    const uint64_t first = now->samples + (uint64_t)now->rank * BATCH;
    memset(m->grad, 0, sizeof m->grad);
    for (uint64_t s = first; s < first + BATCH; ++s)
        for (uint32_t i = 0; i < WEIGHTS; ++i)
            m->grad[i] += (s + 1) * (i + 1);
    sim_sleep(m->node, (1 + sim_random(&m->random) % m->pace_us) * SIM_US);
    compute_for_long(m, now);
    hang(m, now);
    if (cdp_allreduce(now->group, NULL, m->grad, WEIGHTS, CDP_DTYPE_U64, CDP_REDUCE_SUM) != CDP_OK)
        return;
    if (sim_chance(&m->random, 256)) sim_sleep(m->node, sim_random(&m->random) % (5 * SIM_MS));
    if (now->rank) die_with_a_step(m, now);
    if (cdp_elastic_commit(m->e) != CDP_OK) return;
    if (!now->rank) die_with_a_step(m, now);
    for (uint32_t i = 0; i < WEIGHTS; ++i)
        m->w[i] = 3 * m->w[i] + m->grad[i];
}

static cdp_status train(member *m) {
    cdp_elastic_now now;
    cdp_status st;
    for (;;) {
        uint64_t began = x.world->now;
        st = cdp_elastic_next(m->e, &now);
        within(m, "cdp_elastic_next", began, JOIN_MS + 3 * OPERATION_MS);
        if (st != CDP_OK) return st;
        look(x.world);
        check_now(m, &now);
        if (now.step >= x.steps) break;
        if (m->leave_at && now.step >= m->leave_at) cdp_elastic_leave(m->e, "enough");
        if (x.kind == F_ASK) begin_turns(m, &now);
        if (sim_chance(&m->random, (x.seed % 4 && x.kind != F_PAUSE) || x.kind == F_ASK ? 0 : 20)) {
            ++x.alarms;
            if (cdp_elastic_alarm(m->e, "on purpose") < 0 && !x.faulty) wrong(m, "no alarm");
        }
        if (now.step % 3 == 1 && x.kind != F_ASK) agree(m, &now);
        one_step(m, &now);
    }
    st = cdp_elastic_finish(m->e);
    look(x.world);
    if (st == CDP_OK && x.stable < x.steps) wrong(m, "it ends before all have the last step");
    return st;
}

/* F_GONE: who comes later is told so at once, and not after join_ms. */
static void judge_silence(const member *m, uint64_t began) {
    const uint64_t took_ms = (x.world->now - began) / SIM_MS;
    const uint32_t most_ms = x.settle_ms + 4000 + (x.no_thread ? OPERATION_MS : 0);
    if (x.died_ns && began >= x.world->start_ns + x.died_ns && took_ms > most_ms)
        wrong(m, "it waited %llu ms for members that had died", (unsigned long long)took_ms);
}

/* F_OTHER: whose setting differs, and which: what the text of its error says. */
static bool is_other(const member *m) {
    return x.kind == F_OTHER && m == &x.m[x.nodes - 1];
}

static const char *const other_words[] = {"here \"small_bytes 4096\", there \"small_bytes 65536\"",
    "here \"piece_bytes 8192\"", "here \"connections 2\", there \"connections 1\"",
    "here \"reproducible: on\", there \"reproducible: off\"", "here \"1 choices\"",
    "here \"batch 3\", there \"batch 2\""};
enum {
    OTHERS = sizeof other_words / sizeof *other_words
};

static void differ(cdp_elastic_desc *d, cdp_tcp_desc *tcp) {
    static const cdp_choice ring[] = {{CDP_COLL_ALLREDUCE, "ring", 0, 0}};
    const uint64_t which = x.seed % OTHERS;
    d->tcp = tcp;
    if (which == 0) tcp->group.small_bytes = 4096;
    if (which == 1) tcp->group.piece_bytes = 8192;
    if (which == 2) tcp->connections = 2;
    if (which == 3) tcp->group.reproducible = true;
    if (which == 4) tcp->group.choices = ring;
    if (which == 4) tcp->group.choice_count = 1;
    if (which == 5) d->batch = BATCH + 1;
}

/* One life of a process: it joins, trains, and ends. */
static cdp_status live(member *m) {
    sim_node *node = m->node;
    char host[20], id[2 * CDP__ELASTIC_ID_BYTES + 1], will[80];
    const uint64_t seed[1] = {x.seed};
    uint8_t raw[CDP__ELASTIC_ID_BYTES] = {(uint8_t)node->id, (uint8_t)m->life};
    cdp_entry entries[4] = {{"first", m->w, 5, CDP_DTYPE_U64},
        {"second", m->w + 5, WEIGHTS - 6, CDP_DTYPE_U64},
        {"third", m->w + WEIGHTS - 1, 1, CDP_DTYPE_U64},
        {"ballast", ballast[node->id], BALLAST, CDP_DTYPE_U8}};
    cdp_store *store;
    cdp_status st;
    memcpy(raw + 8, seed, sizeof seed);
    cdp__elastic_hex(raw, id);
    snprintf(host, sizeof host, "10.0.0.%u", node->id + 1);
    snprintf(will, sizeof will, "elastic/gone/%s", id);
    const cdp_tcp_store_desc c = {.host = "10.0.0.1",
        .port = 29500,
        .os = &node->os,
        .connect_timeout_ms = JOIN_MS,
        .will_key = x.kind == F_FIRST || x.kind == F_GONE ? NULL : will,
        .will_value = {"its process ended", 17},
        .logger = {.level = CDP_LOG_SILENT}};
    const cdp_tcp_desc tcp = {.master_addr = host,
        .trust_network = true,
        .job_key = x.kind == F_FAR && x.seed % 2 ? "a key of a job far away" : NULL,
        .group = {
            .timeout_ms = x.kind == F_FAR || x.kind == F_FIRST ? FAR_OPERATION_MS : OPERATION_MS,
            .os = &node->os,
            .logger = {.level = CDP_LOG_SILENT},
            .no_thread = x.no_thread}};
    cdp_tcp_desc other = tcp;
    cdp_elastic_desc d = {.id = id,
        .tcp = &tcp,
        .min_ranks = x.min_ranks,
        .max_ranks = x.max_ranks,
        .join_ms = JOIN_MS,
        .settle_ms = x.settle_ms,
        .grow_ms = 100,
        .batch = BATCH,
        .step = x.newest ? m->last.step : 0, /* what it claims counts for nothing then */
        .entries = entries,
        .entry_count = x.kind == F_THIN ? 4 : 3,
        .save = save,
        .load = load,
        .connected = x.kind == F_AWAY ? connected : NULL,
        .user = m};
    if (is_other(m)) differ(&d, &other);
    memset(&m->last, 0, sizeof m->last);
    st = cdp_tcp_store_create(&c, &store);
    if (st != CDP_OK) return st;
    d.store = store;
    const uint64_t began = x.world->now;
    st = cdp_elastic_create(&d, &m->e);
    judge_silence(m, began);
    if (st == CDP_OK && x.kind == F_ASK) count_requests(m);
    if (st == CDP_OK) be_away(m, false);
    if (st == CDP_OK) st = train(m);
    snprintf(m->text, sizeof m->text, "%s", st == CDP_OK ? "" : cdp_last_error()->text);
    cdp_elastic *e = m->e;
    m->e = NULL;
    cdp_elastic_destroy(e);
    cdp_store_destroy(store);
    return st;
}

/* Nobody that lives has the state of the job. */
static bool state_is_lost(void) {
    for (uint32_t r = 0; r < x.e[x.newest].size; ++r) {
        const uint32_t i = x.e[x.newest].node[r];
        const member *m = &x.m[i];
        if (!alive(i) || m->life != x.e[x.newest].life[r] || !m->e) continue;
        if (m->last.has_state && m->e->failure.status == CDP_OK) return false;
    }
    return true;
}

static uint32_t living(void) {
    uint32_t n = 0;
    for (uint32_t i = 1; i < x.nodes; ++i)
        n += alive(i) && !x.m[i].over && x.m[i].status == CDP_PENDING;
    return n;
}

/* F_LONG: it was left out as it should be, and told for how long it was away. */
static bool was_away(const member *m) {
    const char *at = strstr(m->text, "this process called nothing of cdp_elastic.h for ");
    unsigned ms = 0;
    return m->computed && at && strstr(at, "ms, and settle_ms is 1600")
        && sscanf(at + 49, "%u", &ms) == 1 && ms >= 3 * x.settle_ms && ms < 4 * x.settle_ms;
}

/* The node that fault number i hits. */
static uint32_t node_of_fault(uint32_t i) {
    return (uint32_t)x.world->faults[i].a;
}

/* Whether a process may end so. */
static bool may_end(const member *m) {
    const char *t = m->text;
    if (m->status == CDP_OK) return true;
    if (m->status == CDP_ERR_STATE && strstr(t, "is over")) return true;
    if (x.kind == F_MUTE) return x.seed % 4 == 0 && m->status == CDP_ERR_STORE;
    if (strstr(t, "has answered"))
        return cuts_off() || (x.died_ns && x.world->now > x.world->start_ns + x.died_ns);
    if (x.kind == F_GONE && m->status == CDP_ERR_TIMEOUT) return x.cuts;
    if (blocks() && m->life) return true; /* it was left out, and tried again */
    if (is_bad(m) && m->status == CDP_ERR_TIMEOUT)
        return strstr(t, "did not take this process in")
            || strstr(t, "before this process was taken");
    if (m->status == CDP_ERR_STATE && strstr(t, "this process left")) return m->leave_at > 0;
    if (m->status == CDP_ERR_STATE && strstr(t, "left out of epoch"))
        return cuts_off() || x.kind == F_CUT || was_away(m);
    if (m->status == CDP_ERR_STATE && strstr(t, "start again from a checkpoint"))
        return x.faulty && x.kind != F_SOURCE && state_is_lost();
    if (m->status == CDP_ERR_TIMEOUT)
        return cuts_off() || living() < x.min_ranks || ((x.faulty || x.leaves) && state_is_lost());
    if (m->status == CDP_ERR_MISMATCH)
        return is_other(m) && strstr(t, other_words[x.seed % OTHERS]);
    if (m->status == CDP_ERR_NOMEM) return x.kind == F_NOMEM && node_of_fault(0) == m->node->id;
    if (x.kind == F_DEAF && m == &x.m[x.bad[0]]) return m->status == CDP_ERR_STORE;
    if (m->status == CDP_ERR_STORE) return cuts_off() || x.kind == F_CUT;
    return false;
}

static void node_main_member(sim_node *node) {
    member *m = &x.m[node->id];
    cdp_status st = CDP_PENDING;
    sim_sleep(node, m->start_ns);
    for (; m->life < LIVES; ++m->life) {
        st = live(m);
        if (st != CDP_ERR_STATE || !strstr(m->text, "left out of epoch")) break;
        if (!cuts_off() && x.kind != F_CUT && !was_away(m) && !is_suspect(m))
            wrong(m, "%s", m->text);
        total.evicted += is_bad(m);
        total.away += was_away(m);
        m->computed = false;
    }
    if (m->life == LIVES) m->life = LIVES - 1;
    m->status = st;
    if (!may_end(m)) wrong(m, "it ends with %s: %s", cdp_status_name(st), m->text);
    if (st == CDP_ERR_STATE && strstr(m->text, "checkpoint")) total.lost += x.stable > 0;
    m->over = true;
    if (node->block_count) wrong(m, "%u blocks of memory are left", (uint32_t)node->block_count);
    if (node->fd_count) wrong(m, "%u descriptors are left", node->fd_count);
}

/* ---- the store */

/* Somebody lived to the end: else the last rank 0 may have died while it removed keys. */
static bool finished(void) {
    for (uint32_t i = 1; i < x.nodes; ++i)
        if (x.m[i].over && x.m[i].status == CDP_OK) return true;
    return false;
}

/* No key of an old epoch is left but its decision. */
static void check_keys(cdp__loop *loop, sim_node *node) {
    const cdp_tcp_store_desc c = {.host = "10.0.0.1",
        .port = 29500,
        .os = &node->os,
        .loop = loop,
        .logger = {.level = CDP_LOG_SILENT}};
    cdp_store *store;
    cdp_bytes *keys;
    uint64_t count;
    uint32_t newest = x.newest;
    while (newest && !x.e[newest].running_ns)
        --newest; /* it never began */
    if (cdp_tcp_store_create(&c, &store) != CDP_OK) return;
    if (cdp_store_list_keys(store, &keys, &count) == CDP_OK) {
        for (uint64_t i = 0; i < count; ++i) {
            const char *key = (const char *)keys[i].data;
            unsigned k = 0;
            int at = 0;
            if (sscanf(key, "elastic/e/%u/%n", &k, &at) == 1 && at && k + 2 <= newest)
                wrong(&x.m[0], "the key %s is left, and epoch %u is the newest", key, newest);
        }
        cdp_store_free(store, keys);
    }
    cdp_store_destroy(store);
}

/* Nothing of earlier epochs is left. F_LONG: who was away arrives after rank 0 has removed the keys
   of that epoch, and makes e/K/in anew. */
static void look_at_keys(cdp__loop *loop, sim_node *node) {
    if (finished() && !cuts_off() && x.kind != F_NOMEM && x.kind != F_LONG && !blocks())
        check_keys(loop, node);
}

static void node_main(sim_node *node, void *arg) {
    (void)arg;
    if (node->id)
        node_main_member(node);
    else
        store_node_serve(node, NULL, look_at_keys);
}

/* ---- worlds */

static void draw_world(uint64_t seed, fault_kind kind, bool no_thread) {
    uint64_t s = sim_stream(seed, 77);
    static const uint8_t sizes[] = {2, 3, 4, 6, 8, 12, 16};
    const uint32_t most = kind == F_CROWD ? NODES - 1 : USUAL;
    uint32_t members, fresh;
    memset(&x, 0, sizeof x);
    x.seed = seed;
    x.kind = kind;
    x.no_thread = no_thread;
    x.settle_ms = no_thread ? SETTLE_ALONE_MS : SETTLE_MS;
    members = 2 + (uint32_t)(sim_random(&s) % 4);
    if (sim_chance(&s, 40)) members = 16;
    fresh = (uint32_t)(sim_random(&s) % 3);
    if (kind == F_STORM) fresh = 8;
    if (kind == F_CROWD) fresh = 16;
    if (kind == F_ASK) members = sizes[seed / 2 % (sizeof sizes / sizeof *sizes)];
    if (kind == F_ASK) fresh = 0;
    if (kind == F_FAR) members = 2 + (uint32_t)(seed % 3);
    if ((kind == F_OTHER || kind == F_FIREWALL || kind == F_AWAY) && !fresh) fresh = 1;
    if (kind == F_THIN) members = 2 + (uint32_t)(seed % 2);
    if (kind == F_THIN) fresh = 1;
    if (kind == F_APART && members < 3) members = 3;
    if (kind == F_GONE && members > 4) members = 4;
    if (kind == F_GONE && !fresh) fresh = 1;
    if (kind == F_MUTE && seed % 4) fresh = 0;
    if (kind == F_EVERY) members = 3;
    if (kind == F_EVERY) fresh = 1;
    if (members + fresh > most) members = most - fresh;
    x.fresh = fresh;
    x.steps = at_once(kind) || kind == F_GONE || kind == F_MUTE || kind == F_FIREWALL
            || kind == F_AWAY || kind == F_THIN
        ? MOST_STEPS
        : STEPS;
    x.nodes = 1 + members + fresh;
    x.min_ranks = 1 + (uint32_t)(sim_random(&s) % (members > 2 ? 3 : 2));
    x.max_ranks = sim_chance(&s, 256) ? members : most;
    if (kind == F_EVERY || kind == F_SOURCE || kind == F_AGREE) x.min_ranks = 1;
    if (kind == F_LONG || kind == F_FAR || blocks()) x.min_ranks = 1;
    if (kind == F_ASK || kind == F_GONE) x.min_ranks = 1;
    if (kind == F_ASK) x.max_ranks = members;
    for (uint32_t i = 1; i < x.nodes; ++i) {
        member *m = &x.m[i];
        m->random = sim_stream(seed, 100 + i);
        m->status = CDP_PENDING;
        m->pace_us = (uint32_t)sim_log_between(&s, 100, 40000);
        m->start_ns = sim_random(&s) % (20 * SIM_MS);
        if (i > members) m->start_ns = sim_random(&s) % (600 * SIM_MS);
        if (at_once(kind)) { /* the job begins after 270 ms at the latest, and runs for long */
            m->pace_us = (uint32_t)sim_log_between(&s, 20000, 40000);
            if (i > members) m->start_ns = 330 * SIM_MS;
        }
        if (kind == F_OTHER && i == x.nodes - 1) m->start_ns = (30 + seed % 300) * SIM_MS;
        if (kind == F_GONE || kind == F_MUTE)
            m->pace_us = (uint32_t)sim_log_between(&s, 20000, 40000);
        if (kind == F_GONE && i > members) m->start_ns += seed % 2 * 3 * SIM_S;
        if (blocks()) m->pace_us = (uint32_t)sim_log_between(&s, 20000, 40000);
        if (kind == F_THIN) m->pace_us = (uint32_t)sim_log_between(&s, 60000, 90000);
        if (blocks() && i > members) m->start_ns = (x.settle_ms + 100 + seed % 50) * SIM_MS;
        if (kind == F_NONE && sim_chance(&s, 100)) m->leave_at = 1 + sim_random(&s) % STEPS;
        x.leaves += m->leave_at > 0;
    }
    x.bad[0] = x.nodes - 1;
    if (kind == F_HANG) x.bad[0] = 1 + (uint32_t)(seed % members);
    if (kind == F_APART) x.bad[0] = 1 + (uint32_t)(seed % members);
    if (kind == F_APART) x.bad[1] = 1 + (uint32_t)((seed + 1 + seed / 2 % (members - 1)) % members);
}

/* There are no more turns than reasons for one, and those without losses are not late. */
static void judge_turns(uint32_t faults) {
    /* a step takes 45 ms; see die_with_a_step() */
    const uint32_t most_ms = x.kind == F_SOURCE ? 300 : 150;
    uint32_t deaths = 0, attempts = 0;
    for (uint32_t i = 1; i < x.nodes; ++i)
        deaths += !alive(i);
    for (uint32_t k = 1; k <= x.newest; ++k)
        attempts += x.e[k].joined;
    for (uint32_t k = 2; k <= x.newest; ++k) {
        const uint64_t began = x.e[k - 1].arrived_ns, ended = x.e[k].running_ns;
        /* below the minimum it waits for newcomers */
        if (!began || !ended || x.e[k].size - x.e[k].joined < x.min_ranks) continue;
        if (ended - began > total.slowest_ns) total.slowest_ns = ended - began;
        /* a death while they connect is noticed at the end of that attempt */
        if (ended - began > (most_ms + deaths * (CDP__ELASTIC_INIT_MS + x.settle_ms)) * SIM_MS)
            wrong(&x.m[0], "the turn to epoch %u took %llu ms, with %u deaths", k,
                (unsigned long long)((ended - began) / SIM_MS), deaths);
        if (trace)
            printf(
                "    turn to epoch %u: %llu us\n", k, (unsigned long long)(ended - began) / 1000);
    }
    if (x.newest > 1 + deaths + attempts + x.leaves + x.alarms + (faults ? 2 : 0))
        wrong(&x.m[0], "%u epochs for %u deaths, %u newcomers, %u leaves, %u alarms", x.newest,
            deaths, attempts, x.leaves, x.alarms);
}

/* F_FAR: one way, to the store and between members. */
static uint64_t far_ns(uint64_t seed) {
    static const uint64_t us[] = {500, 10000, 50000, 150000};
    return us[seed % (sizeof us / sizeof *us)] * SIM_US;
}

/* F_FIREWALL, F_AWAY, F_THIN: the bad newcomer was in no epoch, so no member lost a step because of
   it. Not where it is cut off from other newcomers alone: they may both be connected to all
   members, when they are tried one after the other. */
static bool is_tried(uint32_t set_b) {
    const uint32_t members = (1u << (x.nodes - x.fresh)) - 2;
    if (x.kind == F_FIREWALL) return (set_b & members) != 0;
    return x.kind == F_AWAY || x.kind == F_THIN;
}

static void judge_trials(void) {
    const member *const m = &x.m[x.bad[0]];
    for (uint32_t k = 2; k <= x.newest; ++k)
        for (uint32_t r = 0; r < x.e[k].size; ++r)
            if (x.e[k].node[r] == x.bad[0] && (x.kind != F_AWAY || x.seed % 2))
                wrong(m, "epoch %u has the newcomer that would block it", k);
    total.kept_out += m->status != CDP_PENDING;
    for (uint32_t k = 2; k <= x.newest; ++k)
        if (x.e[k].lost) wrong(m, "epoch %u lost %u ranks because of a newcomer", k, x.e[k].lost);
}

/* F_FAR: a process reaches itself at once. */
static void be_far(void) {
    for (uint32_t i = 0; x.kind == F_FAR && i < x.nodes; ++i) {
        const sim_link_rule r = {.from = i, .to = i, .delay_ns = 20 * SIM_US};
        sim_add_link_rule(x.world, &r);
    }
}

/* F_THIN: the last newcomer and all others. */
static void be_thin(void) {
    for (uint32_t i = 1; x.kind == F_THIN && i < x.bad[0]; ++i)
        for (uint32_t back = 0; back < 2; ++back) {
            const sim_link_rule r = {.from = back ? x.bad[0] : i,
                .to = back ? i : x.bad[0],
                .delay_ns = THIN_MS * SIM_MS,
                .buffer_bytes = THIN_BYTES / (x.nodes - 1 - x.fresh)};
            sim_add_link_rule(x.world, &r);
        }
}

/* F_FAR: round trips one after the other, from the start to the first step, but for
   settle_ms (twice) and the time in which processes come. Half of the jobs have a key, the ranks
   prove to each other that they know it; the store has none. */
enum {
    FAR_TRIPS = 17,
    NEAR_TRIPS = 25 /* below CDP__ELASTIC_FAR_MS, where members meet in a store of rank 0 */
};

/* F_FAR: the first attempt to begin an epoch is enough, and nobody is left out. */
static void judge_far(void) {
    const uint64_t trip_ns = 2 * far_ns(x.seed);
    const uint64_t took_ns = x.e[1].running_ns - x.world->start_ns;
    const uint64_t least_ns = (600 + 2 * x.settle_ms + 100) * SIM_MS;
    const uint64_t trips = trip_ns < CDP__ELASTIC_FAR_MS * SIM_MS ? NEAR_TRIPS : FAR_TRIPS;
    if (x.e[1].running_ns && took_ns > least_ns + trips * trip_ns)
        wrong(&x.m[0], "the first epoch began after %llu ms, %llu round trips",
            (unsigned long long)(took_ns / SIM_MS), (unsigned long long)(took_ns / trip_ns));
    for (uint32_t k = 1; k <= x.newest; ++k) {
        if (trace)
            printf("    epoch %u, %u ranks: runs %llu ms after the start, round trip %llu ms\n", k,
                x.e[k].size, (unsigned long long)((x.e[k].running_ns - x.world->start_ns) / SIM_MS),
                (unsigned long long)(trip_ns / SIM_MS));
        if (!x.e[k].running_ns) wrong(&x.m[0], "epoch %u did not begin", k);
        if (x.e[k].lost && !x.leaves) wrong(&x.m[0], "epoch %u lost %u ranks", k, x.e[k].lost);
    }
}

/* F_FIRST: those that are left begin without it, if there are enough of them: after settle_ms until
   somebody proposes the first epoch, until a question is answered, and of the turn; each time with
   the looks in between; and after an attempt to connect. One newcomer more may be tried. */
static void judge_first(const sim_fault *f) {
    const uint64_t most_ns = (3 * x.settle_ms + 2 * CDP__ELASTIC_INIT_MS + 1000) * SIM_MS;
    uint64_t last_ns = x.world->start_ns + f->at_ns;
    uint32_t k = x.newest, left = 0;
    for (uint32_t i = 1; i < x.nodes; ++i) {
        left += (int32_t)i != f->a;
        if (x.m[i].start_ns + x.world->start_ns > last_ns)
            last_ns = x.m[i].start_ns + x.world->start_ns;
    }
    if (left < x.min_ranks) return;
    while (k > 1 && x.e[k - 1].running_ns)
        --k; /* that runs without a break */
    if (!x.e[k].running_ns)
        wrong(&x.m[0], "no epoch began, with %u processes", left);
    else if (x.e[k].running_ns > last_ns + most_ns)
        wrong(&x.m[0], "the job began %llu ms after the last event",
            (unsigned long long)((x.e[k].running_ns - last_ns) / SIM_MS));
}

static void judge_names(const sim_fault *f) {
    for (uint32_t k = 1; k < x.newest; ++k)
        for (uint32_t r = 0; r < x.e[k].size; ++r) {
            char name[40];
            if (x.e[k].node[r] != (uint32_t)f->a || x.e[k + 1].lost != 1) continue;
            if (!x.e[k].running_ns || f->happened_ns < x.e[k].running_ns) continue;
            if (x.e[k].arrived_ns && f->happened_ns > x.e[k].arrived_ns) continue;
            snprintf(name, sizeof name, "rank %u", r);
            if (strstr(x.e[k + 1].cause, "on purpose")) continue; /* an alarm was first */
            if (strstr(x.e[k + 1].cause, name)) {
                ++total.named;
                continue;
            }
            ++total.unnamed;
            if (trace) printf("    not named: %s: %s\n", name, x.e[k + 1].cause);
        }
}

typedef struct outcome {
    uint64_t hash, length, calls[NODES], allocs[NODES];
    uint64_t first_ns; /* when the first epoch began to run */
} outcome;

static sim_noise noise_of(uint64_t seed, fault_kind kind) {
    sim_noise n = kind == F_DELAY ? sim_noise_wild(seed, false) : sim_noise_calm();
    if (kind != F_FAR) return n;
    n.delay_min_ns = n.delay_max_ns = far_ns(seed);
    n.buffer_min = n.buffer_max = 1u << 18;
    return n;
}

static bool world_run(uint64_t seed, fault_kind kind, bool no_thread, const sim_fault *f,
    uint32_t faults, outcome *out) {
    sim_desc d = {
        .seed = seed, .main = node_main, .limit_ns = 900 * SIM_S, .threads = true, .clocks = true};
    bool ok;
    draw_world(seed, kind, no_thread);
    x.faulty = faults > 0;
    x.cuts = faults && (kind == F_FIRST || kind == F_GONE) && f[0].kind == SIM_FAULT_STOP;
    x.died_ns = faults && kind == F_GONE ? f[0].at_ns : 0;
    d.node_count = x.nodes;
    d.look = look;
    d.looks = pause_all;
    d.trace = trace && (faults || kind <= F_DELAY || kind >= F_SOURCE) ? stderr : NULL;
    d.noise = noise_of(seed, kind);
    x.world = sim_open(&d);
    add_faults(f, faults, kind);
    be_far();
    be_thin();
    ok = sim_run(x.world);
    if (!ok && !x.wrong[0]) snprintf(x.wrong, sizeof x.wrong, "%.800s", x.world->failure);
    if (!cuts_off() && kind != F_DELAY && kind != F_CUT && kind != F_NOMEM && kind != F_PAUSE
        && kind != F_LONG && kind != F_FAR && kind != F_FIRST && kind != F_GONE && kind != F_MUTE
        && kind != F_DEAF && !blocks())
        judge_turns(faults);
    if (kind == F_FAR) judge_far();
    if (kind == F_FIRST && faults) judge_first(&f[0]);
    if (is_tried(faults ? (uint32_t)f[0].set_b : 0)) judge_trials();
    if (kind == F_ASK) judge_requests();
    total.deaf += kind == F_DEAF && x.doomed && x.m[x.bad[0]].status < 0;
    total.others += kind == F_OTHER && x.m[x.nodes - 1].status == CDP_ERR_MISMATCH;
    if (faults == 1 && (kind == F_KILL || kind == F_EVERY) && x.world->faults[0].happened)
        judge_names(&x.world->faults[0]);
    total.epochs += x.newest;
    for (uint32_t k = 2; k <= x.newest; ++k)
        total.back += x.e[k].step < x.e[k - 1].step;
    for (uint32_t k = 2; k <= x.newest; ++k)
        total.crowds += x.e[k].joined == x.fresh && x.e[k].running_ns;
    ++total.worlds;
    total.no_thread += no_thread;
    out->hash = x.world->hash;
    out->length = x.world->now - x.world->start_ns;
    out->first_ns = x.e[1].running_ns ? x.e[1].running_ns - x.world->start_ns : 0;
    for (uint32_t i = 0; i < x.nodes; ++i) {
        out->calls[i] = x.world->nodes[i].calls;
        out->allocs[i] = x.world->nodes[i].alloc_calls;
    }
    sim_close(x.world);
    return !x.wrong[0];
}

static uint32_t any_member(uint64_t *s) {
    return 1 + (uint32_t)(sim_random(s) % (x.nodes - 1));
}

/* Half of the times the first fault is in the turn that takes newcomers in, or soon after it. */
static void aim_at_newcomers(uint64_t *s, sim_fault *f) {
    const uint32_t aims = sim_chance(s, 512);
    for (uint32_t k = 2; aims && k <= x.newest; ++k) {
        const uint64_t since = x.e[k - 1].arrived_ns, until = x.e[k].running_ns;
        if (!x.e[k].joined || !since || until <= since) continue;
        f[0].at_ns = since - SIM_S + sim_random(s) % ((until - since) * 3 / 2);
        return;
    }
}

/* Faults of a world that was run without any before. Returns how many. */
static uint32_t draw_faults(uint64_t seed, fault_kind kind, const outcome *o, sim_fault *f) {
    uint64_t s = sim_stream(seed, 99);
    uint32_t n = 1;
    memset(f, 0, SIM_MAX_FAULTS * sizeof *f);
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; ++i) {
        f[i].kind = SIM_FAULT_KILL;
        f[i].a = (int32_t)any_member(&s);
        f[i].at_ns = i ? f[i - 1].at_ns : sim_random(&s) % o->length;
        f[i].for_ns = sim_log_between(&s, 50 * SIM_MS, 50 * SIM_S);
    }
    if (kind == F_KILL) f[0].at_count = 1 + sim_random(&s) % o->calls[f[0].a];
    if (kind == F_EVERY) {
        f[0].a = 1 + (int32_t)(seed % (x.nodes - 1));
        f[0].at_count = 1 + seed / (x.nodes - 1) * 769 % o->calls[f[0].a];
    }
    if (at_once(kind)) aim_at_newcomers(&s, f);
    if (kind == F_PAIR || at_once(kind)) {
        n = kind == F_PAIR ? 2 : 3;
        for (uint32_t i = 1; i < n; ++i)
            f[i].at_ns += sim_log_between(&s, SIM_US, SIM_S);
    }
    if (kind == F_NODE) n = 2 + (uint32_t)(sim_random(&s) % 4);
    fault_of_kind(f, kind, o->allocs, &s);
    if (kind == F_FIRST) {
        f[0].a = 1 + (int32_t)(sim_random(&s) % (x.nodes - 1 - x.fresh));
        f[0].at_ns = sim_random(&s) % (o->first_ns + SIM_MS);
        if (seed % 4 == 0) f[0].kind = SIM_FAULT_STOP;
        if (seed % 4 == 0) f[0].for_ns = 100 * SIM_S;
    }
    if (kind == F_GONE) {
        n = x.nodes - 1 - x.fresh;
        for (uint32_t i = 0; i < n; ++i) {
            f[i].a = 1 + (int32_t)i;
            f[i].at_ns = o->first_ns + seed * 37 % 600 * SIM_MS;
        }
        if (seed % 4 == 0) f[0].kind = SIM_FAULT_STOP;
        if (seed % 4 == 0) f[0].for_ns = 100 * SIM_S;
    }
    if (kind == F_MUTE) {
        f[0].kind = SIM_FAULT_STOP;
        f[0].a = 0;
        f[0].at_ns = o->first_ns + seed * 37 % 600 * SIM_MS;
        f[0].for_ns = (OPERATION_MS + 1000 + seed % 8 * 1000) * SIM_MS;
    }
    if (kind == F_APART || kind == F_FIREWALL) {
        f[0].kind = SIM_FAULT_PARTITION;
        f[0].set_a = 1ull << x.bad[0];
        f[0].set_b = 1ull << x.bad[1];
        f[0].for_ns = SIM_FOREVER;
    }
    if (kind == F_FIREWALL) {
        f[0].at_ns = SIM_MS;
        f[0].set_b = sim_random(&s) & ((1ull << x.nodes) - 2) & ~f[0].set_a;
        if (!f[0].set_b) f[0].set_b = 2;
    }
    return n;
}

static bool seed_run(uint64_t seed, uint32_t kind) {
    const uint64_t drawn = kind == F_EVERY ? 1 : seed;
    uint64_t s = sim_stream(seed, 78);
    const bool no_thread = kind == F_LONG || (kind != F_THIN && sim_chance(&s, 512));
    sim_fault f[SIM_MAX_FAULTS];
    outcome o, again;
    uint32_t faults = 0;
    bool ok = world_run(drawn, kind, no_thread, NULL, 0, &o);
    if (ok && kind > F_DELAY && kind < F_SOURCE) {
        faults = draw_faults(seed, kind, &o, f);
        ok = world_run(drawn, kind, no_thread, f, faults, &o);
    } else if (ok && seed % 16 == 0) {
        ok = world_run(seed, kind, no_thread, NULL, 0, &again);
        if (ok && again.hash != o.hash) {
            ok = false;
            snprintf(x.wrong, sizeof x.wrong, "the same seed made another run");
        }
    }
    if (!ok && !planted)
        printf("not ok %s seed %llu, %u nodes%s%s: %s\n", fault_names[kind],
            (unsigned long long)seed, x.nodes, no_thread ? " without threads" : "",
            faults ? "" : " (no fault yet)", x.wrong);
    return ok;
}

/* Says what there was. It is not well if the dead were not named in more than one run of a hundred,
   or if the kind of world did not do what it is for. */
static bool kind_end(uint32_t kind, uint32_t bad, uint64_t seeds) {
    const bool silent = total.unnamed * 100 > total.named + total.unnamed
        || (kind == F_SOURCE && seeds >= 25 && !total.back)
        || (at_once(kind) && seeds >= 25 && total.crowds < seeds / 5)
        || (kind == F_LONG && seeds >= 25 && total.away < seeds / 4)
        || (kind == F_DEAF && seeds >= 25 && total.deaf < seeds / 3)
        || (kind == F_OTHER && seeds >= 25 && total.others < seeds / 2)
        || ((kind == F_APART || kind == F_HANG) && seeds >= 25 && total.evicted < seeds / 3)
        || ((kind == F_AWAY || kind == F_FIREWALL || kind == F_THIN) && seeds >= 25
            && total.kept_out < seeds / 3)
        || (seeds >= 25 && kind != F_THIN && !total.no_thread);
    printf("%s %s: %llu seeds, %llu of %llu worlds without threads, %u failed; %llu epochs, %llu "
           "of them a step back, %llu ends without "
           "state; the dead were named %llu times, and %llu times not; slowest turn %llu ms\n",
        bad || silent ? "not ok" : "ok", fault_names[kind], (unsigned long long)seeds,
        (unsigned long long)total.no_thread, (unsigned long long)total.worlds, bad,
        (unsigned long long)total.epochs, (unsigned long long)total.back,
        (unsigned long long)total.lost, (unsigned long long)total.named,
        (unsigned long long)total.unnamed, (unsigned long long)(total.slowest_ns / SIM_MS));
    memset(&total, 0, sizeof total);
    return !bad && !silent;
}

int main(int argc, char **argv) {
    /* what elastic.c cannot see, or what must be seen here, too */
    static const world_plant plants[] = {
        {PLANT_NEWCOMER_SOURCE, F_KILL, "a newcomer with a higher step is source", NULL},
        {PLANT_COMMIT_AFTER_ARRIVAL, F_STORM, "commits after arrival", NULL},
        {PLANT_LEAVES_EARLY, F_KILL, "ends before all have the last step", NULL},
        {PLANT_COUNTED_EARLY, F_NONE, "samples counted before the commit", NULL},
        {PLANT_WAITS_FOR_DEAD, F_NONE, "waits for the dead", NULL},
        {PLANT_AGREE_ALONE, F_AGREE, "who has the result agrees without the store", NULL},
        {PLANT_NO_PROBE, F_THIN, "newcomers are taken in over any link", NULL},
        {PLANT_NO_REHEARSAL, F_AWAY, "members wait for a newcomer's connected()", NULL},
        {PLANT_COUNTS_PAUSES, F_PAUSE, "the time of a standstill counts as silence of others",
            NULL}};
    const worlds w = {fault_names, F_KINDS, 25, seed_run, x.wrong, kind_end, plants,
        sizeof plants / sizeof *plants, 300};
    return worlds_main(argc, argv, &w);
}
