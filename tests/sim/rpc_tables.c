/* rpc_tables.c - every order in which messages about remote references can arrive, explored with
   the transition functions of cdp_rpc.h themselves

   Rank 0 owns one value; the other ranks are its users. A state is what the tables of all ranks
   hold, the messages under way, and which ranks and links have failed. From each state every step
   is tried: the program drops, shares, or shares before the owner has confirmed; any message under
   way arrives, in any order; a rank dies, a link breaks, a rank notices that. After every step:
   a live reference has its fork at the owner and its value; nothing breaks unless something
   failed; no function reports a lie; and where nothing can happen any more, the value was
   destroyed once and no table holds anything. Planted mistakes must be found.

       rpc_tables             the configurations of the table below, then the planted mistakes
       rpc_tables N F K L     N ranks, at most F forks, K ranks die, L links break */
#define CDP_IMPLEMENTATION
#include "cdp_rpc.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    RANKS = 4,
    FORKS = 6,
    HOLDS = 8,
    MESSAGES = 24,
    STATE_BYTES = 256
};

typedef enum plant {
    NOTHING,
    EARLY_ACCEPT,      /* a child is accepted before the owner knows it */
    NO_ACCEPT_ON_LOSS, /* a pending child whose owner is lost tells its parent nothing */
    NO_RELEASE,        /* forks of a lost rank stay */
    NO_HOLD,           /* a parent does not wait for its children */
    ACK_FORGOTTEN,     /* the owner does not answer FORK */
    PLANTS
} plant;

static const char *const plant_names[PLANTS] = {"nothing", "accepted before the owner knows it",
    "no accept when the owner is lost", "forks of a lost rank stay",
    "a parent does not wait for its children", "no answer to FORK"};

typedef struct hold {
    uint8_t child, to, waiting;
} hold;
typedef struct user {
    uint8_t rank, fid, state, parent, handles, holds;
    hold hold[HOLDS];
} user;
typedef struct message {
    uint8_t kind, from, to, fid, how;
} message;
enum {
    REMOTE = 40, /* beside the kinds of cdp__ref_what */
    SHARE
};

typedef struct state {
    uint8_t created, alive, locals, destroyed, forks, users, messages, next_fid;
    uint8_t dead, kills, cuts, down[RANKS], noticed[RANKS]; /* bits of ranks */
    uint8_t fork[FORKS][2];
    user user[FORKS];
    message message[MESSAGES];
} state;

static struct {
    uint32_t ranks, forks, kills, cuts;
    plant plant;
    /* states, as bytes, each with its length, the state before it and the step that led here */
    uint8_t *bytes;
    uint64_t used, room;
    uint64_t *at;
    uint32_t *before, *chains, mask, count, count_room;
    char (*label)[40];
    const char *wrong;
    /* the table of the rank that acts */
    cdp__refs t;
    cdp__ref slots[64];
    uint32_t heads[64];
    bool lost[RANKS];
    state *s;
    uint32_t rank;
} x;

static void wrong(const char *why) {
    if (!x.wrong) x.wrong = why;
}

/* ---- states as bytes */

/* forks, too: by two numbers */
static int user_order(const void *a, const void *b) {
    return memcmp(a, b, 2);
}
static int hold_order(const void *a, const void *b) {
    return memcmp(a, b, sizeof(hold));
}
static int message_order(const void *a, const void *b) {
    return memcmp(a, b, sizeof(message));
}

static uint32_t state_bytes(state *s, uint8_t *out) {
    uint8_t *p = out;
    qsort(s->fork, s->forks, 2, user_order);
    qsort(s->user, s->users, sizeof(user), user_order);
    qsort(s->message, s->messages, sizeof(message), message_order);
    memcpy(p, s, offsetof(state, fork));
    p += offsetof(state, fork);
    memcpy(p, s->fork, 2u * s->forks);
    p += 2 * s->forks;
    for (uint32_t i = 0; i < s->users; ++i) {
        user *u = &s->user[i];
        qsort(u->hold, u->holds, sizeof(hold), hold_order);
        memcpy(p, u, offsetof(user, hold) + u->holds * sizeof(hold));
        p += offsetof(user, hold) + u->holds * sizeof(hold);
    }
    memcpy(p, s->message, s->messages * sizeof(message));
    p += s->messages * sizeof(message);
    return (uint32_t)(p - out);
}

static void state_of(const uint8_t *p, state *s) {
    memset(s, 0, sizeof *s);
    memcpy(s, p, offsetof(state, fork));
    p += offsetof(state, fork);
    memcpy(s->fork, p, 2u * s->forks);
    p += 2 * s->forks;
    for (uint32_t i = 0; i < s->users; ++i) {
        user *u = &s->user[i];
        memcpy(u, p, offsetof(user, hold));
        p += offsetof(user, hold);
        memcpy(u->hold, p, u->holds * sizeof(hold));
        p += u->holds * sizeof(hold);
    }
    memcpy(s->message, p, s->messages * sizeof(message));
}

#include "states.h"

static void state_add(state *s, uint32_t before, const char *label) {
    const uint32_t n = state_number(s);
    if (!n) return;
    x.before[n] = before;
    snprintf(x.label[n], sizeof x.label[0], "%s", label);
}

/* ---- one rank's table, out of a state and back into it */

static bool noticed(const state *s, uint32_t rank, uint32_t peer) {
    return s->noticed[rank] >> peer & 1;
}

static void put(state *s, uint32_t kind, uint32_t from, uint32_t to, uint64_t fid, uint32_t how) {
    const message m = {(uint8_t)kind, (uint8_t)from, (uint8_t)to, (uint8_t)fid, (uint8_t)how};
    if (noticed(s, from, to)) return;
    if (s->messages == MESSAGES) {
        wrong("too many messages for this program");
        return;
    }
    s->message[s->messages++] = m;
}

static void act(void *unused, const cdp__ref_act *a) {
    (void)unused;
    if (a->what == CDP__REF_SHARE_NOW) {
        put(x.s, SHARE, x.rank, a->to, a->fid, 0);
    } else if (a->what == CDP__REF_NOW_ENDED) {
        if (x.rank == 0) ++x.s->destroyed;
    } else if (a->what <= CDP__REF_SEND_DELETE) {
        const bool fork = a->what == CDP__REF_SEND_FORK;
        if (x.plant == EARLY_ACCEPT && fork)
            put(x.s, CDP__REF_SEND_ACCEPT, x.rank, a->parent, a->fid, 0);
        if (x.plant == EARLY_ACCEPT && a->what == CDP__REF_SEND_ACCEPT && x.rank) return;
        if (x.plant == ACK_FORGOTTEN && a->what == CDP__REF_SEND_FORK_ACK) return;
        if (x.plant == NO_ACCEPT_ON_LOSS && a->how == CDP__REF_LOST) return;
        /* `how` travels with answers alone */
        put(x.s, a->what, x.rank, a->to, a->fid,
            a->what == CDP__REF_SEND_ACCEPT ? CDP__REF_OK : a->how);
    }
}

static void table_load(state *s, uint32_t rank) {
    cdp__refs *t = &x.t;
    memset(t, 0, sizeof *t);
    cdp__refs_move(t, x.slots, 64, x.heads, 64);
    t->rank = rank;
    t->lost = x.lost;
    t->act = act;
    x.s = s;
    x.rank = rank;
    for (uint32_t r = 0; r < RANKS; ++r)
        x.lost[r] = noticed(s, rank, r);
    if (rank == 0 && s->alive) {
        const uint32_t slot = cdp__ref_create(t, 1);
        t->at[slot].handles = s->locals;
        for (uint32_t i = 0; i < s->forks; ++i)
            (void)cdp__ref_share(t, slot, s->fork[i][0], s->fork[i][1]);
    }
    for (uint32_t i = 0; i < s->users; ++i) {
        const user *u = &s->user[i];
        if (u->rank != rank) continue;
        const uint32_t slot =
            cdp__ref_user(t, 1, u->fid, 0, u->parent == 255 ? CDP__REF_NONE : u->parent);
        for (uint32_t k = 0; k < u->holds; ++k) {
            t->at[slot].state = u->hold[k].waiting ? CDP__REF_PENDING : CDP__REF_LIVE;
            (void)cdp__ref_share(t, slot, u->hold[k].child, u->hold[k].to);
        }
        t->at[slot].state = u->state;
        t->at[slot].handles = u->handles;
    }
}

static void table_save(void) {
    const cdp__refs *t = &x.t;
    state *s = x.s;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->users; ++i)
        if (s->user[i].rank != x.rank) s->user[n++] = s->user[i];
    s->users = (uint8_t)n;
    if (x.rank == 0) s->alive = s->forks = 0;
    for (uint32_t slot = 1; slot < t->room; ++slot) {
        const cdp__ref *r = &t->at[slot];
        if (r->kind == CDP__REF_OWNER) {
            s->alive = 1;
            s->locals = (uint8_t)r->handles;
        } else if (r->kind == CDP__REF_FORK) {
            s->fork[s->forks][0] = (uint8_t)r->key;
            s->fork[s->forks++][1] = (uint8_t)r->rank;
        } else if (r->kind == CDP__REF_USER) {
            user *u = &s->user[s->users++];
            memset(u, 0, sizeof *u);
            u->rank = (uint8_t)x.rank;
            u->fid = (uint8_t)r->key;
            u->state = r->state;
            /* who shared it does not matter any more once it is settled */
            u->parent = r->state == CDP__REF_PENDING ? (uint8_t)r->parent : 255;
            u->handles = (uint8_t)r->handles;
            for (uint32_t k = r->sibling; k; k = t->at[k].sibling) {
                hold *h = &u->hold[u->holds++];
                h->child = (uint8_t)t->at[k].key;
                h->to = (uint8_t)t->at[k].rank;
                h->waiting = t->at[k].waiting;
            }
            if (u->holds != r->count) wrong("holds were miscounted");
        }
    }
    if (x.rank == 0 && !s->alive) s->locals = 0;
}

/* ---- steps */

static bool failed(const state *s) {
    return s->kills || s->cuts;
}
static bool dead(const state *s, uint32_t rank) {
    return s->dead >> rank & 1;
}
static bool up(const state *s, uint32_t a, uint32_t b) {
    return !dead(s, a) && !dead(s, b) && !(s->down[a] >> b & 1);
}

/* After plants that need a hand in the table. */
static void planted_share(uint32_t child, uint32_t to) {
    if (x.plant == NO_HOLD && x.rank) (void)cdp__ref_got_accept(&x.t, to, child);
}

static void step_programs(const state *from, uint32_t at) {
    char label[40];
    for (uint32_t i = 0; i < from->users; ++i) {
        const user u = from->user[i];
        if (dead(from, u.rank) || !u.handles) continue;
        state s = *from;
        table_load(&s, u.rank);
        cdp__ref_drop(&x.t, cdp__refs_find(&x.t, CDP__REF_USER, u.fid));
        table_save();
        snprintf(label, sizeof label, "%u drops f%u", u.rank, u.fid);
        state_add(&s, at, label);
        if (from->next_fid > x.forks || u.state == CDP__REF_BROKEN) continue;
        for (uint32_t to = 0; to < x.ranks; ++to) {
            if (to == u.rank || noticed(from, u.rank, to)) continue;
            s = *from;
            table_load(&s, u.rank);
            const uint32_t child = s.next_fid++;
            if (cdp__ref_share(&x.t, cdp__refs_find(&x.t, CDP__REF_USER, u.fid), child, to)
                == CDP__REF_LIVE) {
                put(&s, SHARE, u.rank, to, child, 0);
                planted_share(child, to);
            }
            table_save();
            snprintf(label, sizeof label, "%u shares f%u->%u f%u", u.rank, u.fid, to, child);
            state_add(&s, at, label);
        }
    }
}

static void step_owner(const state *from, uint32_t at) {
    char label[40];
    if (dead(from, 0) || !from->alive || !from->locals) return;
    state s = *from;
    table_load(&s, 0);
    cdp__ref_drop(&x.t, cdp__refs_find(&x.t, CDP__REF_OWNER, 1));
    table_save();
    state_add(&s, at, "the owner drops");
    for (uint32_t to = 1; to < x.ranks && from->next_fid <= x.forks; ++to) {
        if (noticed(from, 0, to)) continue;
        s = *from;
        table_load(&s, 0);
        (void)cdp__ref_share(&x.t, cdp__refs_find(&x.t, CDP__REF_OWNER, 1), s.next_fid, to);
        put(&s, SHARE, 0, to, s.next_fid, 0);
        table_save();
        snprintf(label, sizeof label, "owner shares ->%u f%u", to, s.next_fid++);
        state_add(&s, at, label);
    }
}

/* What the receiver does with a message. */
static void deliver(const message *m) {
    cdp__refs *t = &x.t;
    uint32_t slot = 0;
    bool honest = true;
    switch (m->kind) {
    case REMOTE:
        honest = cdp__ref_got_remote(t, m->from, 1, m->fid, &slot);
        x.s->created = 1;
        break;
    case SHARE:
        honest = cdp__ref_take(t, m->from, 0, 1, m->fid, &slot);
        if (!slot && !failed(x.s)) wrong("a shared reference is gone at its owner");
        break;
    case CDP__REF_SEND_REMOTE_ACK:
    case CDP__REF_SEND_FORK_ACK:
        honest = cdp__ref_got_ack(t, m->from, m->fid, (cdp__ref_how)m->how);
        if (m->how && !failed(x.s)) wrong("a fork was refused although nothing failed");
        break;
    case CDP__REF_SEND_FORK: honest = cdp__ref_got_fork(t, m->from, 1, m->fid); break;
    case CDP__REF_SEND_ACCEPT: honest = cdp__ref_got_accept(t, m->from, m->fid); break;
    default: honest = cdp__ref_got_delete(t, m->from, 1, m->fid); break;
    }
    if (!honest && x.plant != NO_HOLD) wrong("a message is taken for a lie");
}

static void step_messages(const state *from, uint32_t at) {
    static const char *const names[] = {"REMOTE_ACK", "FORK", "FORK_ACK", "ACCEPT", "DELETE"};
    char label[40];
    for (uint32_t i = 0; i < from->messages; ++i) {
        const message m = from->message[i];
        const char *own = m.kind == REMOTE ? "REMOTE" : "SHARE";
        const char *name = m.kind >= REMOTE ? own : names[m.kind];
        state s = *from;
        s.message[i] = s.message[--s.messages];
        snprintf(label, sizeof label, "%s %u->%u f%u", name, m.from, m.to, m.fid);
        if (dead(from, m.to) || noticed(from, m.to, m.from)) {
            state_add(&s, at, label); /* discarded */
            continue;
        }
        if (!up(from, m.from, m.to)) {
            state lost = s;
            state_add(&lost, at, "a message is lost");
            /* what a dead rank sent may still arrive */
            if ((from->down[m.from] >> m.to & 1) && !dead(from, m.from)) continue;
        }
        table_load(&s, m.to);
        deliver(&m);
        table_save();
        state_add(&s, at, label);
    }
}

static void step_failures(const state *from, uint32_t at) {
    char label[40];
    for (uint32_t r = 0; r < x.ranks && from->kills < x.kills; ++r) {
        state s = *from;
        uint32_t n = 0;
        if (dead(from, r)) continue;
        s.dead |= (uint8_t)(1u << r);
        ++s.kills;
        for (uint32_t i = 0; i < s.users; ++i)
            if (s.user[i].rank != r) s.user[n++] = s.user[i];
        s.users = (uint8_t)n;
        snprintf(label, sizeof label, "%u dies", r);
        state_add(&s, at, label);
    }
    for (uint32_t a = 0; a < x.ranks && from->cuts < x.cuts; ++a) {
        for (uint32_t b = a + 1; b < x.ranks; ++b) {
            state s = *from;
            if (dead(from, a) || dead(from, b) || (s.down[a] >> b & 1)) continue;
            s.down[a] |= (uint8_t)(1u << b);
            s.down[b] |= (uint8_t)(1u << a);
            ++s.cuts;
            snprintf(label, sizeof label, "link %u-%u breaks", a, b);
            state_add(&s, at, label);
        }
    }
}

static void step_notices(const state *from, uint32_t at) {
    char label[40];
    for (uint32_t r = 0; r < x.ranks; ++r) {
        for (uint32_t peer = 0; peer < x.ranks && !dead(from, r); ++peer) {
            state s = *from;
            if (peer == r || noticed(from, r, peer) || up(from, r, peer)) continue;
            s.noticed[r] |= (uint8_t)(1u << peer);
            table_load(&s, r);
            if (x.plant != NO_RELEASE || r) cdp__ref_lost(&x.t, peer);
            table_save();
            snprintf(label, sizeof label, "%u notices %u", r, peer);
            state_add(&s, at, label);
        }
    }
}

/* ---- what must hold */

static void check(const state *s) {
    if (s->destroyed > 1) wrong("destroyed twice");
    if (dead(s, 0)) return;
    for (uint32_t i = 0; i < s->users; ++i) {
        const user *u = &s->user[i];
        bool known = false;
        if (u->state == CDP__REF_BROKEN && !failed(s)) wrong("broken although nothing failed");
        if (u->state != CDP__REF_LIVE || !up(s, u->rank, 0) || noticed(s, 0, u->rank)) continue;
        for (uint32_t k = 0; k < s->forks; ++k)
            known = known || s->fork[k][0] == u->fid;
        if (!s->alive || !known) wrong("a live reference that its owner has forgotten");
    }
}

static void check_quiet(const state *s) {
    if (s->users) wrong("nothing happens any more, and a user entry is left");
    if (dead(s, 0)) return;
    if (s->alive) wrong("nothing happens any more, and the value is left");
    if (s->created && s->destroyed != 1) wrong("the value was not destroyed once");
}

static void say(uint32_t at) {
    if (x.before[at]) say(x.before[at]);
    if (at > 1) printf("    %s\n", x.label[at]);
}

static bool step(uint32_t at) {
    state from;
    state_of(x.bytes + x.at[at - 1], &from);
    check(&from);
    if (!x.wrong) step_programs(&from, at);
    if (!x.wrong) step_owner(&from, at);
    if (!x.wrong) step_messages(&from, at);
    if (!x.wrong) step_notices(&from, at);
    if (!x.wrong && !from.messages) {
        /* the program has nothing to drop, and nobody has anything to notice */
        bool more = from.locals && !dead(&from, 0) && from.alive;
        for (uint32_t i = 0; i < from.users; ++i)
            more = more || from.user[i].handles;
        for (uint32_t a = 0; a < x.ranks; ++a)
            for (uint32_t b = 0; b < x.ranks; ++b)
                more = more
                    || (a != b && !dead(&from, a) && !noticed(&from, a, b) && !up(&from, a, b));
        if (!more) check_quiet(&from);
    }
    if (!x.wrong) step_failures(&from, at);
    return !x.wrong;
}

static void memory(bool open) {
    if (!open) {
        free(x.bytes);
        free(x.at);
        free(x.before);
        free(x.chains);
        free(x.label);
        return;
    }
    x.count_room = 1000000;
    x.room = 100u * 1000000;
    x.mask = (1u << 21) - 1;
    x.bytes = (uint8_t *)malloc(x.room);
    x.at = (uint64_t *)calloc(x.count_room, sizeof *x.at);
    x.before = (uint32_t *)calloc(x.count_room, sizeof *x.before);
    x.chains = (uint32_t *)calloc(x.mask + 1u, sizeof *x.chains);
    x.label = (char(*)[40])calloc(x.count_room, sizeof *x.label);
    if (!x.bytes || !x.at || !x.before || !x.chains || !x.label) abort();
}

/* Returns how many states there are, 0 where something is wrong. */
static uint32_t explore(
    uint32_t ranks, uint32_t forks, uint32_t kills, uint32_t cuts, plant planted) {
    state s;
    uint32_t at = 1;
    memset(&x, 0, sizeof x);
    x.ranks = ranks;
    x.forks = forks;
    x.kills = kills;
    x.cuts = cuts;
    x.plant = planted;
    memory(true);
    memset(&s, 0, sizeof s);
    table_load(&s, 1); /* rank 1 has called remote */
    (void)cdp__ref_remote(&x.t, 1, 1, 0);
    table_save();
    put(&s, REMOTE, 1, 0, 1, 0);
    s.next_fid = 2;
    state_add(&s, 0, "");
    while (at <= x.count && step(at))
        ++at;
    if (x.wrong && !planted) {
        printf("  %s:\n", x.wrong);
        say(at);
    }
    if (x.wrong && planted) printf("  found after %u states: %s\n", at, x.wrong);
    memory(false);
    return x.wrong ? 0 : x.count;
}

int main(int argc, char **argv) {
    static const struct {
        uint32_t ranks, forks, kills, cuts, states; /* states: of the first model of these rules */
    } table[] = {{3, 4, 0, 0, 16788}, {4, 4, 0, 0, 78446}, {3, 4, 1, 0, 307775},
        {3, 4, 0, 1, 350124}, {3, 3, 1, 1, 133686}};
    uint32_t passed = 0, failures = 0;
    if (argc == 5) {
        const uint32_t n = explore((uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]),
            (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]), NOTHING);
        printf("%u states\n", n);
        return n == 0;
    }
    for (uint32_t i = 0; i < sizeof table / sizeof *table; ++i) {
        const uint32_t n =
            explore(table[i].ranks, table[i].forks, table[i].kills, table[i].cuts, NOTHING);
        const bool ok = n == table[i].states;
        printf("%s %u ranks, %u forks, %u killed, %u links broken: %u states, expected %u\n",
            ok ? "ok" : "not ok", table[i].ranks, table[i].forks, table[i].kills, table[i].cuts, n,
            table[i].states);
        ++*(ok ? &passed : &failures);
    }
    for (plant p = EARLY_ACCEPT; p < PLANTS; p = (plant)(p + 1)) {
        const bool fails = p == NO_ACCEPT_ON_LOSS || p == NO_RELEASE;
        const bool ok = explore(3, 4, fails, 0, p) == 0;
        printf("%s planted: %s\n", ok ? "ok" : "not ok", plant_names[p]);
        ++*(ok ? &passed : &failures);
    }
    printf("%u passed, %u failed\n", passed, failures);
    return failures != 0;
}
