/* Sharded training that goes on after deaths: who holds what and which step counts, over all
   orders of events in small worlds; moves of least volume; real groups in which a rank leaves at
   every call; ranks that join. Parameters are those of a run without deaths, bit for bit. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "cdp_fsdp.h"
#include "ranks.h"
#include <math.h>

/* ---- the protocol, explored ---- */

enum {
    MOST = 4,   /* ranks */
    EPOCHS = 6, /* groups that there may be */
    TURNS = 2,  /* steps of the program */
    TABLE = 1 << 21
};
enum {
    COMPUTES,
    HAS_SENT,
    IS_READY,
    SAW_END
}; /* in a step */
enum {
    WORKS,
    TOLD,
    DECIDED,
    COMPLETE
}; /* in a change */
typedef enum plant {
    NO_PLANT,
    READY_TOO_EARLY,    /* enters the closing allreduce without what others have sent */
    FORGETS_PENDING,    /* a rank that does not know whether others go on drops what is new */
    GOES_ON_ALONE,      /* what is new is used before all have it */
    UPDATES_BEFORE_END, /* the closing allreduce is not awaited */
    PLANTS
} plant;

typedef struct one {
    uint8_t alive, group, turn, phase;                 /* the step it is in, of that group */
    uint8_t change, stage;                             /* the change it is in */
    uint8_t layout, old_rank, old_ranks, turns, flags; /* what it holds */
    uint8_t pending, pending_rank, pending_ranks, seen;
    uint8_t told[9];                   /* its record in the change */
    uint16_t history, pending_history; /* which gradients its shards have got, in order */
} one;
typedef struct scene {
    one rank[MOST];
    uint8_t members[EPOCHS], complete[EPOCHS]; /* of each group, as bits; who has had all of it */
    uint8_t groups, deaths, joins;
} scene;

static struct {
    uint32_t ranks, deaths, joins, copies;
    plant plant;
    uint64_t *seen;
    scene *stack;
    uint64_t states, depth, room, wrong, lost, finished;
} explorer;

static cdp__fsdp_record record_of(const one *r) {
    cdp__fsdp_record c;
    memset(&c, 0, sizeof c);
    c.layout = r->told[0];
    c.rank = r->told[1];
    c.ranks = r->told[2];
    c.copies = c.ranks ? cdp__fsdp_copies(explorer.copies, 1, (uint32_t)c.ranks) : 0;
    c.distance = 1;
    c.turn = r->told[3];
    c.flags = r->told[4];
    c.pending = r->told[5];
    c.pending_rank = r->told[6];
    c.pending_ranks = r->told[8];
    c.pending_copies =
        c.pending_ranks ? cdp__fsdp_copies(explorer.copies, 1, (uint32_t)c.pending_ranks) : 0;
    c.seen = r->told[7];
    c.wanted = CDP_FSDP_AGREE;
    return c;
}

/* Which ranks of `group` have come at least so far in step `turn` of it, dead or not. */
static bool all_have(const scene *s, uint8_t group, uint8_t turn, uint8_t phase) {
    for (uint32_t i = 0; i < MOST; ++i) {
        const one *r = &s->rank[i];
        if (!(s->members[group] >> i & 1)) continue;
        if (r->group != group || (r->turn <= turn && (r->turn < turn || r->phase < phase)))
            return false;
    }
    return true;
}
static bool all_in_change(const scene *s, uint8_t change, uint8_t stage) {
    for (uint32_t i = 0; i < MOST; ++i) {
        const one *r = &s->rank[i];
        if (!(s->members[change] >> i & 1) || (r->stage == WORKS && r->group == change)) continue;
        if (r->change != change || r->stage < stage) return false;
    }
    return true;
}
static bool has_dead(const scene *s, uint8_t group) {
    for (uint32_t i = 0; i < MOST; ++i)
        if (s->members[group] >> i & 1 && !s->rank[i].alive) return true;
    return false;
}

/* The verdict of a change, and where each member stands in it. */
static cdp__fsdp_verdict decide(
    const scene *s, uint8_t change, cdp__fsdp_record *c, uint32_t *member, uint32_t *n) {
    cdp__fsdp_verdict v;
    *n = 0;
    for (uint32_t i = 0; i < MOST; ++i) {
        if (!(s->members[change] >> i & 1)) continue;
        c[*n] = record_of(&s->rank[i]);
        member[(*n)++] = i;
    }
    cdp__fsdp_resolve(c, *n, &v);
    return v;
}

static uint64_t hash_of(const scene *s) {
    return cdp__fsdp_hash(0xcbf29ce484222325u, s, sizeof *s);
}
static void push(const scene *s) {
    const uint64_t h = hash_of(s) | 1;
    uint64_t at = h % TABLE;
    while (explorer.seen[at] && explorer.seen[at] != h)
        at = (at + 1) % TABLE;
    if (explorer.seen[at]) return;
    explorer.seen[at] = h;
    ++explorer.states;
    if (explorer.states > TABLE / 4 * 3) abort();
    if (explorer.depth == explorer.room) {
        explorer.room = explorer.room ? 2 * explorer.room : 1024;
        explorer.stack = (scene *)realloc(explorer.stack, explorer.room * sizeof *s);
        if (!explorer.stack) abort();
    }
    explorer.stack[explorer.depth++] = *s;
}

/* A step of the program on rank i. */
static void works(const scene *s, uint32_t i) {
    scene t = *s;
    one *r = &t.rank[i];
    if (r->turn == TURNS) return;
    switch (r->phase) {
    case COMPUTES: r->phase = HAS_SENT; break;
    case HAS_SENT:
        if (!all_have(s, r->group, r->turn, HAS_SENT)
            && !(explorer.plant == READY_TOO_EARLY && r->turn))
            return;
        r->phase = IS_READY;
        r->flags |= CDP__FSDP_READY;
        if (!all_have(s, r->group, r->turn, HAS_SENT)) r->history |= 1 << 15; /* a wrong gradient */
        break;
    case IS_READY:
        if (!all_have(s, r->group, r->turn, IS_READY) && explorer.plant != UPDATES_BEFORE_END)
            return;
        r->phase = SAW_END;
        r->flags |= CDP__FSDP_ENDED;
        break;
    default: /* updates */
        ++r->turn;
        ++r->turns;
        r->phase = COMPUTES;
        r->flags = 0;
        r->history = (uint16_t)(r->history * 7 + r->group + 1);
        if (r->turn == TURNS) ++explorer.finished;
    }
    push(&t);
}

/* Rank i enters a change: the newest one that has it as a member, or a new one. */
static void enters(const scene *s, uint32_t i) {
    scene t = *s;
    one *r = &t.rank[i];
    uint8_t change = (uint8_t)(s->groups - 1);
    const uint8_t now = r->stage == WORKS ? r->group : r->change;
    bool fresh = false;
    for (uint32_t k = 0; k < MOST; ++k) /* one that waits to be let in */
        fresh = fresh || (s->rank[k].alive && !(s->members[change] >> k & 1));
    if (change == now || !(s->members[change] >> i & 1)) {
        if (s->groups == EPOCHS || (!has_dead(s, now) && !fresh)) return;
        if (r->stage == WORKS && change != now && !fresh && !has_dead(s, now)) return;
        change = t.groups++;
        for (uint32_t k = 0; k < MOST; ++k)
            t.members[change] = (uint8_t)(t.members[change] | s->rank[k].alive << k);
    }
    r->change = change;
    r->stage = TOLD;
    r->told[0] = r->layout;
    r->told[1] = r->old_rank;
    r->told[2] = r->old_ranks;
    r->told[3] = r->turns;
    r->told[4] = (uint8_t)(r->flags | CDP__FSDP_FILLED);
    r->told[5] = explorer.plant == FORGETS_PENDING ? 0 : r->pending;
    r->told[6] = r->pending_rank;
    r->told[7] = r->seen;
    r->told[8] = r->pending_ranks;
    push(&t);
}

/* Whether so many have died that what all had is gone. */
static bool may_be_lost(const scene *s) {
    uint32_t i, g = s->groups, dead = 0, n = 0;
    do
        --g;
    while (s->complete[g] != s->members[g]);
    for (i = 0; i < MOST; ++i)
        if (s->members[g] >> i & 1) {
            ++n;
            dead += !s->rank[i].alive;
        }
    return dead > cdp__fsdp_copies(explorer.copies, 1, n);
}

/* All have told what they hold: rank i decides, and makes the update that it lacks. */
static void decides(const scene *s, uint32_t i) {
    scene t = *s;
    one *r = &t.rank[i];
    cdp__fsdp_record c[MOST];
    cdp__fsdp_verdict v;
    uint32_t member[MOST], n, k;
    if (!all_in_change(s, r->change, TOLD)) return;
    v = decide(s, r->change, c, member, &n);
    for (k = 0; k < n && member[k] != i; ++k) {
    }
    if (!v.layout || v.lost != CDP__FSDP_NONE) {
        if (!may_be_lost(s)) ++explorer.wrong;
        ++explorer.lost;
        return;
    }
    if (v.impossible || v.unknown || v.turn < r->turns) ++explorer.wrong;
    if (cdp__fsdp_has_layout(&c[k], v.layout) == 2) {
        r->layout = r->pending;
        r->old_rank = r->pending_rank;
        r->old_ranks = r->pending_ranks;
        r->history = r->pending_history;
        r->flags = 0;
    }
    if (cdp__fsdp_role_of(&c[k], &v) == CDP__FSDP_UPDATES) {
        ++r->turns;
        r->flags = 0;
        r->history = (uint16_t)(r->history * 7 + r->group + 1);
    }
    r->pending = 0;
    r->seen = (uint8_t)(v.seen + 1);
    r->stage = DECIDED;
    push(&t);
}

/* Shards move: all that is sent has one history. */
static void receives(const scene *s, uint32_t i) {
    scene t = *s;
    one *r = &t.rank[i];
    cdp__fsdp_record c[MOST];
    cdp__fsdp_verdict v;
    uint32_t member[MOST], n, k, own = 0;
    bool found = false;
    uint16_t history = 0;
    if (!all_in_change(s, r->change, DECIDED)) return;
    v = decide(s, r->change, c, member, &n);
    for (k = 0; k < n; ++k) {
        const one *other = &s->rank[member[k]];
        if (member[k] == i) own = k;
        if (cdp__fsdp_old_rank(&c[k], &v) == CDP__FSDP_NONE) continue;
        if (other->stage == WORKS && other->group == r->change) continue; /* it was complete then */
        if (found && history != other->history) ++explorer.wrong;
        found = true;
        history = other->history;
    }
    if (history >> 15) ++explorer.wrong;
    if (!found) history = r->pending_history;
    r->pending = (uint8_t)(v.seen + 1);
    r->pending_rank = (uint8_t)own;
    r->pending_ranks = (uint8_t)n;
    r->pending_history = history;
    r->turns = (uint8_t)v.turn;
    r->stage = COMPLETE;
    t.complete[r->change] = (uint8_t)(t.complete[r->change] | 1u << i);
    push(&t);
}

static void goes_on(const scene *s, uint32_t i) {
    scene t = *s;
    one *r = &t.rank[i];
    if (!all_in_change(s, r->change, COMPLETE) && explorer.plant != GOES_ON_ALONE) return;
    r->layout = r->seen = r->pending;
    r->old_rank = r->pending_rank;
    r->old_ranks = r->pending_ranks;
    r->history = r->pending_history;
    r->group = r->change;
    r->turn = r->turns;
    r->stage = WORKS;
    r->phase = COMPUTES;
    r->flags = 0;
    r->pending = 0;
    push(&t);
}

static void expand(const scene *s) {
    for (uint32_t i = 0; i < MOST; ++i) {
        const one *r = &s->rank[i];
        scene t = *s;
        if (!r->alive) {
            if (i < explorer.ranks || s->joins == explorer.joins || r->layout || r->seen) continue;
            t.rank[i].alive = t.rank[i].seen = 1; /* a newcomer, once */
            t.rank[i].group = UINT8_MAX;
            ++t.joins;
            push(&t);
            continue;
        }
        if (s->deaths < explorer.deaths) {
            t.rank[i].alive = 0;
            ++t.deaths;
            push(&t);
        }
        if (r->stage != WORKS || r->group == UINT8_MAX || s->groups - 1 != r->group
            || has_dead(s, r->group) || s->joins)
            if (r->group != UINT8_MAX || s->members[s->groups - 1] >> i & 1 || r->stage != WORKS)
                enters(s, i);
        if (r->stage == WORKS && r->group != UINT8_MAX) works(s, i);
        if (r->stage == TOLD) decides(s, i);
        if (r->stage == DECIDED) receives(s, i);
        if (r->stage == COMPLETE) goes_on(s, i);
    }
}

static void explore(uint32_t ranks, uint32_t copies, uint32_t deaths, uint32_t joins, plant p) {
    scene s;
    memset(&s, 0, sizeof s);
    memset(&explorer, 0, sizeof explorer);
    explorer.ranks = ranks;
    explorer.copies = copies;
    explorer.deaths = deaths;
    explorer.joins = joins;
    explorer.plant = p;
    explorer.seen = (uint64_t *)calloc(TABLE, sizeof *explorer.seen);
    if (!explorer.seen) abort();
    s.groups = 1;
    s.members[0] = s.complete[0] = (uint8_t)((1u << ranks) - 1);
    for (uint32_t i = 0; i < ranks; ++i) {
        one *r = &s.rank[i];
        r->alive = r->layout = r->seen = 1;
        r->old_rank = (uint8_t)i;
        r->old_ranks = (uint8_t)ranks;
    }
    push(&s);
    while (explorer.depth && (p == NO_PLANT || !explorer.wrong)) {
        s = explorer.stack[--explorer.depth];
        expand(&s);
    }
    free(explorer.seen);
    free(explorer.stack);
}

TEST(all_orders_of_deaths_and_joins_lose_nothing) {
    static const uint32_t worlds[][4] = {{2, 1, 1, 0}, {3, 1, 1, 0}, {3, 1, 2, 0}, {3, 2, 2, 0},
        {2, 1, 1, 1}, {2, 0, 0, 1}, {3, 1, 1, 1}};
    const bool all = getenv("CDP_TEST_STATES") != NULL; /* the last one takes seconds */
    const uint32_t some = TEST_SLOW ? 4 : 6, count = all ? 7 : some;
    for (uint32_t i = 0; i < count; ++i) {
        explore(worlds[i][0], worlds[i][1], worlds[i][2], worlds[i][3], NO_PLANT);
        T_EQ(0, explorer.wrong);
        T(explorer.finished > 0);
        T((explorer.lost > 0) == (worlds[i][2] > worlds[i][1]));
        if (all)
            printf("    %u ranks, %u copies, %u deaths, %u joins: %llu states\n", worlds[i][0],
                worlds[i][1], worlds[i][2], worlds[i][3], (unsigned long long)explorer.states);
    }
}
TEST(planted_faults_of_the_protocol_are_found) {
    for (uint32_t p = NO_PLANT + 1; p < PLANTS; ++p) {
        const bool grows = p == GOES_ON_ALONE; /* two ranks have all of each other */
        explore(grows ? 2 : 3, 1, grows ? 1 : 2, grows, (plant)p);
        if (!T(explorer.wrong > 0)) printf("    plant %u\n", p);
    }
}

/* ---- moves ---- */

/* Old shards on a random part of the old ranks move to a group with newcomers: each stretch of each
   shard comes once, from a rank that holds it, and nothing moves to a rank that does. */
static void moves_of(uint64_t *random, uint32_t old, uint32_t copies) {
    static const uint64_t shapes[] = {5, 12, 1, 30};
    cdp_fsdp_param params[4];
    cdp_fsdp_desc d = {.params = params, .param_count = 4};
    cdp__fsdp_record records[8];
    cdp__fsdp_verdict v;
    cdp__fsdp_mover m;
    cdp__fsdp_piece_move p;
    uint64_t old_cuts[9], new_cuts[9], sent[8] = {0};
    uint32_t member[8], n = 0;
    cdp__fsdp_list l;
    memset(params, 0, sizeof params);
    memset(records, 0, sizeof records);
    memset(member, 0xff, sizeof member);
    for (uint32_t i = 0; i < 4; ++i) {
        params[i].ndim = 1;
        params[i].shape[0] = shapes[i];
    }
    l = cdp__fsdp_list_of(&d);
    for (uint32_t r = 0; r < old; ++r) {
        cdp__fsdp_record *c = &records[n];
        if (test_random(random) % 3 == 0) continue;
        c->layout = c->seen = 1;
        c->ranks = old;
        c->rank = r;
        c->copies = cdp__fsdp_copies(copies, 1, old);
        c->distance = 1;
        c->flags = CDP__FSDP_FILLED;
        c->wanted = CDP_FSDP_AGREE;
        member[r] = n++;
    }
    n += (uint32_t)(test_random(random) % 3);
    cdp__fsdp_resolve(records, n, &v);
    if (!n || !v.layout || v.lost != CDP__FSDP_NONE) return;
    memset(&m, 0, sizeof m);
    m.records = records;
    m.verdict = &v;
    m.ranks = n;
    m.copies = cdp__fsdp_copies(copies, 1, n);
    m.distance = 1;
    m.old_cuts = old_cuts;
    m.new_cuts = new_cuts;
    m.sent = sent;
    m.member = member;
    cdp__fsdp_move_range(&m, &l, 0, false);
    for (uint32_t to = 0; to < n; ++to)
        for (uint32_t image = 0; image <= m.copies; ++image) {
            const uint32_t shard = cdp__fsdp_held(n, 1, to, image);
            uint64_t at = new_cuts[shard];
            while (at < new_cuts[shard + 1]) {
                if (!T(cdp__fsdp_next_move(&m, &p))) return;
                T(p.to == to && p.image == image && p.first == at);
                T(p.first >= old_cuts[p.shard] && p.first + p.count <= old_cuts[p.shard + 1]);
                T(cdp__fsdp_holds(&records[p.from], &v, p.shard) != CDP__FSDP_NONE);
                if (cdp__fsdp_holds(&records[to], &v, p.shard) != CDP__FSDP_NONE) T_EQ(to, p.from);
                at += p.count;
            }
            T_EQ(new_cuts[shard + 1], at);
        }
    T(!cdp__fsdp_next_move(&m, &p));
}
TEST(shards_move_by_the_least_volume) {
    uint64_t random = 11;
    for (uint32_t i = 0; i < 2000; ++i)
        moves_of(&random, 1 + i % 6, i / 6 % 4);
}

/* ---- real groups ---- */

enum {
    UNITS = 4,
    PARAMS = 3 * UNITS,
    ELEMENTS = 35,
    STEPS = 3,
    SAMPLES = 12,
    CALLS = 4 * UNITS + 2, /* of a step */
    WORLDS = 3,
    PLAYERS = 6
};

/* Worlds one after the other. A player of one that is not in the next dies there at call `die_at`,
   counted from its beginning; 0: before any. Without such players all go on after a step. */
typedef struct play {
    uint32_t worlds, copies, members[WORLDS], die_at[WORLDS], grow_after;
    cdp_dtype compute;
    cdp_fsdp_stage stage;
    bool own_update, lost, loads; /* loads: first values are written into pieces */
    world world[WORLDS];
} play;

typedef struct player {
    play *p;
    uint32_t id, at, calls;
    cdp_fsdp_param params[PARAMS];
    cdp_optim optim;
    cdp_fsdp_desc desc;
    cdp_fsdp *f;
    pthread_t thread;
} player;

static float expected[3][PARAMS][ELEMENTS]; /* of a run without deaths: values, states */

static void play_fill(void *user, uint32_t param, uint64_t first, uint64_t count, float *out) {
    const float wrong = ((const player *)user)->p->loads ? 9.0f : 0.0f;
    for (uint64_t k = 0; k < count; ++k)
        out[k] = (float)((param * 3 + first + k) % 7) - 2.5f + wrong;
}
/* As cdp_ckpt_load() does. */
static cdp_status play_load(player *q) {
    for (uint32_t i = 0; i < cdp_fsdp_piece_count(q->f); ++i) {
        const cdp_fsdp_piece piece = cdp_fsdp_piece_at(q->f, i);
        for (uint64_t k = 0; k < piece.count; ++k)
            piece.data[k] -= 9.0f;
    }
    return cdp_fsdp_loaded(q->f);
}
static cdp_status play_update(void *user, const cdp_fsdp_piece *p) {
    const player *q = (const player *)user;
    cdp_optim o = q->optim;
    const cdp_optim_range r = {.param = p->data,
        .state = {p->state[0], p->state[1]},
        .grad = p->grad,
        .count = p->count,
        .scale = p->scale};
    o.step = p->step;
    return cdp_optim_update(&o, &r);
}

static uint32_t bits_below(uint32_t bits, uint32_t id) {
    return (uint32_t)__builtin_popcount(bits & ((1u << id) - 1));
}
static cdp_group *group_of(const player *q) {
    return q->p->world[q->at].group[bits_below(q->p->members[q->at], q->id)];
}

static void player_desc(player *q) {
    cdp_fsdp_desc *d = &q->desc;
    for (uint32_t i = 0; i < PARAMS; ++i) {
        q->params[i].unit = i / 3;
        q->params[i].ndim = i % 3 == 1 ? 1 : 2;
        q->params[i].shape[0] = 5;
        q->params[i].shape[1] = i / 3 == UNITS - 1 ? 7 : 3;
        q->params[i].frozen = i % 3 == 2;
    }
    q->optim.kind = CDP_OPTIM_ADAMW;
    q->optim.lr = .125;
    d->params = q->params;
    d->param_count = PARAMS;
    d->fill = play_fill;
    d->divisor = 8;
    d->max_norm = 4; /* squares of means are whole numbers of 1/64: their sums are exact */
    d->compute = q->p->compute;
    d->stage = q->p->stage;
    d->copies = q->p->copies;
    d->user = q;
    if (!q->p->own_update)
        d->optim = &q->optim;
    else {
        d->update = play_update;
        d->states = 2;
    }
}

static bool is_positive(const player *q, const void *data, uint64_t k) {
    uint16_t narrow;
    if (q->p->compute != CDP_DTYPE_BF16) return ((const float *)data)[k] > 0;
    memcpy(&narrow, (const uint16_t *)data + k, sizeof narrow);
    return narrow && !(narrow >> 15);
}

/* Gradients of the samples that are this rank's. */
static void add_gradients(player *q, uint32_t unit, uint64_t turn) {
    cdp_group *g = group_of(q);
    for (uint32_t i = 3 * unit; i < 3 * unit + 2; ++i) {
        const uint32_t n = (uint32_t)cdp__fsdp_count(&q->params[i]);
        const void *data = cdp_fsdp_data(q->f, i);
        float *grad = cdp_fsdp_grad(q->f, i);
        for (uint32_t s = cdp_rank(g); s < SAMPLES && grad && data; s += cdp_size(g))
            for (uint32_t k = 0; k < n; ++k)
                grad[k] += (float)((s * 5 + turn * 3 + i + k) % 7) - 3
                    + (is_positive(q, data, k) ? 1.0f : -1.0f);
    }
}

/* Whether the player dies now. */
static bool dies(player *q) {
    const play *p = q->p;
    if (q->at + 1 == p->worlds || p->members[q->at + 1] >> q->id & 1) return false;
    return q->calls++ == p->die_at[q->at];
}
#define CALL(expr)                       \
    do {                                 \
        if (dies(q)) return CDP_PENDING; \
        st = (expr);                     \
        if (st != CDP_OK) return st;     \
    } while (0)

/* CDP_PENDING: it dies. */
static cdp_status one_step(player *q) {
    const uint64_t turn = cdp_fsdp_turn(q->f);
    cdp_status st;
    for (uint32_t u = 0; u < UNITS; ++u) {
        CALL(cdp_fsdp_need(q->f, u));
        CALL(cdp_fsdp_done(q->f, u));
    }
    for (uint32_t u = UNITS; u-- > 0;) {
        CALL(cdp_fsdp_need(q->f, u));
        add_gradients(q, u, turn);
        CALL(cdp_fsdp_ready(q->f, u));
    }
    CALL(cdp_fsdp_backward_end(q->f, 0, NULL));
    CALL(cdp_fsdp_step(q->f));
    return CDP_OK;
}

static bool all_go_on(const play *p, uint32_t at) {
    return at + 1 < p->worlds && !(p->members[at] & ~p->members[at + 1]);
}

/* Until the end, a death, or the next world. */
static cdp_status lives(player *q) {
    cdp_status st = CDP_OK;
    while (st == CDP_OK && cdp_fsdp_turn(q->f) < STEPS) {
        if (all_go_on(q->p, q->at) && cdp_fsdp_turn(q->f) == q->p->grow_after) return CDP_ERR_STATE;
        st = one_step(q);
    }
    return st;
}

static void compare_to_expected(player *q, bool keep) {
    float whole[ELEMENTS];
    for (uint32_t state = 0; state < 3; ++state)
        for (uint32_t i = 0; i < PARAMS; ++i) {
            const uint64_t bytes = cdp__fsdp_count(&q->params[i]) * sizeof(float);
            if (state && q->params[i].frozen) continue;
            T_EQ(CDP_OK, cdp_fsdp_save(q->f, i, state ? state - 1 : CDP_FSDP_VALUES, whole, 0));
            if (cdp_rank(group_of(q))) continue;
            if (keep) memcpy(expected[state][i], whole, bytes);
            T(!memcmp(expected[state][i], whole, bytes));
        }
}

/* Enters the world at q->at. */
static cdp_status enters_world(player *q, bool first) {
    if (dies(q)) return CDP_PENDING;
    if (q->f) return cdp_fsdp_rebind(q->f, group_of(q), CDP_FSDP_AGREE);
    q->desc.group = group_of(q);
    q->desc.receive = !first;
    return cdp_fsdp_create(&q->desc, &q->f);
}

static void *player_main(void *arg) {
    player *q = (player *)arg;
    const play *p = q->p;
    cdp_status st = CDP_OK;
    while (!(p->members[q->at] >> q->id & 1))
        ++q->at;
    for (bool first = q->at == 0;; first = false) {
        st = enters_world(q, first);
        if (st == CDP_OK && first && p->loads) st = play_load(q);
        if (st == CDP_OK) st = lives(q);
        if (st == CDP_OK || st == CDP_PENDING || q->at + 1 == p->worlds) break;
        ++q->at;
        q->calls = 0;
    }
    if (st == CDP_PENDING) { /* a death */
        cdp_group **g = &q->p->world[q->at].group[bits_below(p->members[q->at], q->id)];
        cdp_fsdp_destroy(q->f);
        cdp_group_destroy(*g);
        *g = NULL;
        return NULL;
    }
    if (p->lost) {
        T_EQ(CDP_ERR_STATE, st);
        T(strstr(cdp_last_error()->text, "that held the shard of rank") != NULL);
    } else if (T_EQ(CDP_OK, st))
        compare_to_expected(q, p->worlds == 1);
    else
        printf("    player %u, world %u, calls %u: %s\n", q->id, q->at, p->die_at[0],
            cdp_last_error()->text);
    cdp_fsdp_destroy(q->f);
    return NULL;
}

static void run_play(play p) {
    const cdp_group_desc like = {.os = counted_os()};
    player players[PLAYERS];
    uint32_t all = 0;
    memset(players, 0, sizeof players);
    for (uint32_t w = 0; w < p.worlds; ++w) {
        all |= p.members[w];
        if (!world_open(&p.world[w], bits_below(p.members[w], 31), &like, 0)) abort();
    }
    for (uint32_t i = 0; i < PLAYERS; ++i) {
        players[i].p = &p;
        players[i].id = i;
        player_desc(&players[i]);
        if (all >> i & 1 && pthread_create(&players[i].thread, NULL, player_main, &players[i]))
            abort();
    }
    for (uint32_t i = 0; i < PLAYERS; ++i)
        if (all >> i & 1) pthread_join(players[i].thread, NULL);
    for (uint32_t w = 0; w < p.worlds; ++w)
        world_close(&p.world[w]);
    T_EQ(0, counted.held);
}
static void expect(void) {
    const play p = {.worlds = 1, .members = {1}};
    run_play(p);
}

TEST(a_rank_dies_at_every_call_and_nothing_is_lost) {
    expect();
    for (uint32_t at_call = CALLS; at_call <= 2 * CALLS; ++at_call) {
        play p = {.worlds = 2, .copies = 1, .members = {7, 7}, .die_at = {at_call}};
        p.members[1] &= ~(1u << at_call % 3);
        p.own_update = at_call % 4 == 1;
        p.compute = at_call % 5 == 2 ? CDP_DTYPE_BF16 : CDP_DTYPE_DEFAULT;
        p.stage = (cdp_fsdp_stage)(at_call % 3);
        run_play(p);
    }
}
TEST(several_ranks_die_at_once_or_one_after_the_other) {
    expect();
    for (uint32_t at_call = 3; at_call < 2 * CALLS; at_call += 13) {
        play at_once = {.worlds = 2, .copies = 2, .members = {31, 21}, .die_at = {at_call}};
        play in_turn = {.worlds = 3, .copies = 1, .members = {15, 13, 9}, .die_at = {at_call, 5}};
        play in_the_change = {
            .worlds = 3, .copies = 2, .members = {15, 14, 12}, .die_at = {at_call}};
        run_play(at_once);
        run_play(in_turn);
        run_play(in_the_change);
    }
}
TEST(values_that_were_loaded_are_in_the_copies) {
    expect();
    for (uint32_t at_call = 1; at_call < 2 * CALLS; at_call += 3) {
        play p = {.worlds = 2, .copies = 1, .members = {7, 5}, .die_at = {at_call}, .loads = true};
        p.compute = at_call % 2 ? CDP_DTYPE_BF16 : CDP_DTYPE_DEFAULT;
        p.lost = at_call < CALLS; /* copies are filled before the first step ends */
        run_play(p);
    }
}
TEST(all_holders_of_a_shard_die_and_the_others_say_so) {
    play p = {.worlds = 2, .copies = 1, .members = {15, 9}, .die_at = {CALLS + 3}, .lost = true};
    run_play(p);
    p.members[1] = 13; /* no copies at all */
    p.copies = 0;
    run_play(p);
}
TEST(ranks_join_with_and_without_a_death) {
    expect();
    for (uint32_t copies = 0; copies < 3; ++copies)
        for (uint32_t after = 0; after < STEPS; ++after) {
            play grows = {.worlds = 2, .copies = copies, .members = {3, 31}, .grow_after = after};
            play takes_over = {.worlds = 2, .copies = copies, .members = {7, 14 + 16}};
            takes_over.die_at[0] = after * CALLS + 5;
            run_play(grows);
            if (copies) run_play(takes_over);
        }
}

/* An overflow makes the clip impossible: cdp_fsdp_step() refuses, so nobody makes that update. */
static void *overflows(void *arg) {
    player *q = (player *)arg;
    float whole[ELEMENTS];
    T_EQ(CDP_OK, enters_world(q, true));
    for (uint32_t u = 0; u < UNITS; ++u) {
        cdp_fsdp_grad(q->f, 3 * u)[0] = INFINITY;
        T_EQ(CDP_OK, cdp_fsdp_ready(q->f, u));
    }
    T_EQ(CDP_OK, cdp_fsdp_backward_end(q->f, 0, NULL));
    if (q->id == 2) {
        cdp_fsdp_destroy(q->f);
        q->f = NULL;
        return NULL;
    }
    ++q->at;
    T_EQ(CDP_OK, enters_world(q, false));
    T_EQ(1, cdp_fsdp_turn(q->f));
    for (uint32_t i = 0; i < PARAMS; ++i) {
        T_EQ(CDP_OK, cdp_fsdp_save(q->f, i, CDP_FSDP_VALUES, whole, 0));
        for (uint32_t k = 0; k < cdp__fsdp_count(&q->params[i]) && !q->id; ++k)
            T((double)whole[k] == (double)((i * 3 + k) % 7) - 2.5);
    }
    return NULL;
}

/* Groups of a cdp_fsdp fail alone: rank 1 leaves for another epoch where rank 0 waits for it. */
static void *leaves_or_waits(void *arg) {
    player *q = (player *)arg;
    const bool saves = q->p->lost;
    float whole[ELEMENTS];
    T_EQ(CDP_OK, enters_world(q, true));
    T_EQ(CDP_OK, cdp_fsdp_loaded(q->f)); /* copies are sent anew */
    for (uint32_t u = 0; u < UNITS && !saves; ++u)
        T_EQ(CDP_OK, cdp_fsdp_ready(q->f, u));
    if (q->id)
        cdp_group_abort(group_of(q), "an epoch has ended");
    else
        T_EQ(CDP_ERR_ABORTED,
            saves ? cdp_fsdp_save(q->f, 0, CDP_FSDP_VALUES, whole, 0)
                  : cdp_fsdp_backward_end(q->f, 0, NULL));
    return NULL;
}
static void run_players(play p, uint32_t n, void *(*func)(void *)) {
    player players[3];
    memset(players, 0, sizeof players);
    for (uint32_t w = 0; w < p.worlds; ++w)
        if (!world_open(&p.world[w], n - w, NULL, 0)) abort();
    for (uint32_t i = 0; i < n; ++i) {
        players[i].p = &p;
        players[i].id = i;
        player_desc(&players[i]);
        if (pthread_create(&players[i].thread, NULL, func, &players[i])) abort();
    }
    for (uint32_t i = 0; i < n; ++i)
        pthread_join(players[i].thread, NULL);
    for (uint32_t i = 0; i < n; ++i)
        cdp_fsdp_destroy(players[i].f);
    for (uint32_t w = 0; w < p.worlds; ++w)
        world_close(&p.world[w]);
}
TEST(no_wait_outlives_the_group) {
    for (uint32_t saves = 0; saves < 2; ++saves) {
        const play p = {.worlds = 1, .copies = 1, .members = {3}, .lost = saves != 0};
        run_players(p, 2, leaves_or_waits);
    }
}
TEST(an_update_that_is_impossible_is_made_by_nobody) {
    const play p = {.worlds = 2, .copies = 1, .members = {7, 3}, .die_at = {99}};
    run_players(p, 3, overflows);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"all_orders_of_deaths_and_joins_lose_nothing", all_orders_of_deaths_and_joins_lose_nothing,
            60},
        {"planted_faults_of_the_protocol_are_found", planted_faults_of_the_protocol_are_found, 60},
        {"shards_move_by_the_least_volume", shards_move_by_the_least_volume, 20},
        {"a_rank_dies_at_every_call_and_nothing_is_lost",
            a_rank_dies_at_every_call_and_nothing_is_lost, 120},
        {"several_ranks_die_at_once_or_one_after_the_other",
            several_ranks_die_at_once_or_one_after_the_other, 120},
        {"values_that_were_loaded_are_in_the_copies", values_that_were_loaded_are_in_the_copies,
            60},
        {"no_wait_outlives_the_group", no_wait_outlives_the_group, 20},
        {"an_update_that_is_impossible_is_made_by_nobody",
            an_update_that_is_impossible_is_made_by_nobody, 20},
        {"all_holders_of_a_shard_die_and_the_others_say_so",
            all_holders_of_a_shard_die_and_the_others_say_so, 60},
        {"ranks_join_with_and_without_a_death", ranks_join_with_and_without_a_death, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
