/* test_elastic.c - cdp_elastic.h with ranks as threads of this process, over TCP on this machine */
#define CDP__ELASTIC_PIECE 1000u /* bytes: the entries of a job move in several pieces */
#define CDP__ELASTIC_LEAST_PIECE 300u
#define CDP__ELASTIC_BLOCK 130u
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "own.h"

#include "cdp_elastic.h"

#include "ports.h"
#include "elastic_job.h"
#include "ranks.h"

#include <pthread.h>

enum {
    MOST = 6
};

/* ---- records and turns, pure ---- */

static void random_bytes(uint64_t *state, void *out, size_t n) {
    for (size_t i = 0; i < n; ++i)
        ((uint8_t *)out)[i] = (uint8_t)test_random(state);
}

TEST(records_come_back_and_nothing_else_does) {
    uint64_t state = 1;
    for (int round = 0; round < 300; ++round) {
        uint8_t bytes[CDP__ELASTIC_RECORD_BYTES];
        cdp__elastic_arrival a, b;
        memset(&a, 0, sizeof a);
        random_bytes(&state, a.id, sizeof a.id);
        a.step = test_random(&state);
        a.samples = test_random(&state);
        a.rank = (uint32_t)test_random(&state);
        a.has_state = round & 1;
        a.ending = round & 2;
        cdp__elastic_put_record(bytes, &a);
        T(cdp__elastic_get_record(bytes, &b));
        T(a.step == b.step && a.samples == b.samples && a.rank == b.rank);
        T(a.has_state == b.has_state && a.ending == b.ending);
        T(cdp__elastic_same(a.id, b.id));
        bytes[test_random(&state) % sizeof bytes] ^= (uint8_t)(1u << round % 8);
        T(!cdp__elastic_get_record(bytes, &b));
    }
}

TEST(a_ticket_tells_the_round_trip_and_an_arrival_whom_it_blames) {
    uint8_t bytes[CDP__ELASTIC_RECORD_BYTES];
    cdp__elastic_arrival a, b;
    memset(&a, 0, sizeof a);
    a.rank = CDP__ELASTIC_NEW;
    a.round_trip_ms = 65535;
    cdp__elastic_put_record(bytes, &a);
    T(cdp__elastic_get_record(bytes, &b));
    T_EQ(65535, b.round_trip_ms);
    T_EQ(0, b.blamed);
    a.rank = 3;
    a.blamed = 2;
    cdp__elastic_put_record(bytes, &a);
    T(cdp__elastic_get_record(bytes, &b));
    T_EQ(0, b.round_trip_ms);
    T_EQ(2, b.blamed);
}

/* A first epoch of three tickets, and one in which the slowest of them is lost. */
TEST(decisions_carry_the_round_trips_of_their_members) {
    cdp__elastic_ticket tickets[3];
    cdp__elastic_member first[4], second[4], read[4];
    cdp__elastic_arrival arrivals[2];
    cdp__elastic_decision none, d, e, f;
    cdp__elastic_view v;
    uint8_t bytes[CDP__ELASTIC_HEAD_BYTES + 4 * CDP__ELASTIC_MEMBER_BYTES];
    memset(tickets, 0, sizeof tickets);
    memset(arrivals, 0, sizeof arrivals);
    memset(&none, 0, sizeof none);
    memset(&v, 0, sizeof v);
    for (uint8_t i = 0; i < 3; ++i) {
        tickets[i].id[0] = (uint8_t)(i + 1);
        tickets[i].round_trip_ms = i == 1 ? 300 : 20u + i;
    }
    v.old = &none;
    v.tickets = tickets;
    v.ticket_count = 3;
    v.min_ranks = 1;
    v.max_ranks = 4;
    d.members = first;
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&v, &d));
    T_EQ(300, cdp__elastic_round_trip_ms(&d));
    f.members = read;
    cdp__elastic_put_decision(bytes, &d);
    T(cdp__elastic_get_decision(bytes, cdp__elastic_decision_bytes(3), &f));
    T_EQ(300, f.members[1].round_trip_ms);
    T_EQ(22, f.members[2].round_trip_ms);
    for (uint32_t i = 0; i < 2; ++i) {
        arrivals[i].rank = 2 * i;
        arrivals[i].has_state = true;
        arrivals[i].id[0] = (uint8_t)(2 * i + 1);
    }
    v.old = &d;
    v.arrivals = arrivals;
    v.arrival_count = 2;
    e.members = second;
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&v, &e));
    T_EQ(2, e.size);
    T_EQ(22, cdp__elastic_round_trip_ms(&e));
}

TEST(members_of_large_jobs_look_less_often_who_is_there) {
    static cdp__elastic_member m[1000];
    cdp__elastic_decision d;
    memset(&d, 0, sizeof d);
    d.members = m;
    d.size = 64;
    T_EQ(100, cdp__elastic_wait_ms(&d));
    d.size = 1000;
    T_EQ(2100, cdp__elastic_wait_ms(&d));
}

TEST(times_grow_with_the_longest_round_trip) {
    cdp__elastic_member m[2];
    cdp__elastic_decision d;
    memset(m, 0, sizeof m);
    memset(&d, 0, sizeof d);
    d.members = m;
    d.size = 2;
    T_EQ(540, cdp__elastic_init_ms(&d, 0)); /* as on one machine */
    T_EQ(200, cdp__elastic_settle_ms(&d, 200));
    m[0].round_trip_ms = 20;
    m[1].round_trip_ms = 300;
    T_EQ(540 + 300 * CDP__ELASTIC_INIT_TRIPS, cdp__elastic_init_ms(&d, 0));
    T_EQ((540 + 300 * CDP__ELASTIC_INIT_TRIPS) * 2, cdp__elastic_init_ms(&d, 1));
    T_EQ((540 + 300 * CDP__ELASTIC_INIT_TRIPS) * 32, cdp__elastic_init_ms(&d, 9));
    T_EQ(200 + 300 * CDP__ELASTIC_SETTLE_TRIPS, cdp__elastic_settle_ms(&d, 200));
}

TEST(decisions_come_back_and_nothing_else_does) {
    uint64_t state = 2;
    for (uint32_t round = 0; round < 300; ++round) {
        cdp__elastic_member members[8], copies[8];
        cdp__elastic_decision d, c;
        uint8_t bytes[CDP__ELASTIC_HEAD_BYTES + 8 * CDP__ELASTIC_MEMBER_BYTES], copy[sizeof bytes];
        memset(&d, 0, sizeof d);
        d.members = members;
        c.members = copies;
        d.epoch = 1 + test_random(&state) % 1000;
        d.step = test_random(&state);
        snprintf(d.cause, sizeof d.cause, "round %u", round);
        for (uint32_t r = 0; r <= round % 8; ++r) {
            uint8_t id[CDP__ELASTIC_ID_BYTES];
            random_bytes(&state, id, sizeof id);
            cdp__elastic_add(&d, id, r % 3 ? r : CDP__ELASTIC_NEW, r == 0 || r % 2);
        }
        const uint64_t n = cdp__elastic_decision_bytes(d.size);
        cdp__elastic_put_decision(bytes, &d);
        memcpy(copy, bytes, (size_t)n);
        T_EQ(d.size, cdp__elastic_decision_size(copy, n));
        T(cdp__elastic_get_decision(copy, n, &c));
        T(c.epoch == d.epoch && c.step == d.step && c.size == d.size && c.sources == d.sources);
        T(!memcmp(members, copies, d.size * sizeof *members) && !strcmp(c.cause, d.cause));
        memcpy(copy, bytes, (size_t)n);
        copy[test_random(&state) % n] ^= 16;
        T(!cdp__elastic_get_decision(copy, n, &c));
        T_EQ(0, cdp__elastic_decision_size(bytes, n - 1));
    }
}

TEST(a_turn_waits_for_the_living_and_for_nobody_else) {
    cdp__elastic_member members[3];
    cdp__elastic_decision d;
    cdp__elastic_arrival in[3];
    bool gone[3] = {false, false, false};
    uint64_t wait_ms;
    cdp__elastic_turn t = {&d, in, 0, gone, 1, 0, 200};
    memset(&d, 0, sizeof d);
    memset(in, 0, sizeof in);
    d.members = members;
    for (uint32_t r = 0; r < 3; ++r) {
        const uint8_t id[CDP__ELASTIC_ID_BYTES] = {(uint8_t)(r + 1)};
        cdp__elastic_add(&d, id, r, true);
    }
    /* ranks 1 and 2 arrive; rank 0 is silent */
    for (uint32_t i = 0; i < 2; ++i) {
        in[i].rank = i + 1;
        memcpy(in[i].id, members[i + 1].id, sizeof in[i].id);
    }
    t.count = 2;
    T(!cdp__elastic_proposes(&t, &wait_ms));
    T_EQ(CDP__ELASTIC_LOOK_MS, wait_ms);
    t.since_ms = 195;
    T(!cdp__elastic_proposes(&t, &wait_ms));
    T_EQ(5, wait_ms);
    t.since_ms = 200;
    T(cdp__elastic_proposes(&t, &wait_ms));
    t.rank = 2; /* not the lowest: later */
    T(!cdp__elastic_proposes(&t, &wait_ms));
    T_EQ(CDP__ELASTIC_STAGGER_MS, wait_ms);
    t.since_ms = 250;
    T(cdp__elastic_proposes(&t, &wait_ms));
    /* rank 0 is known to be dead: at once */
    t.since_ms = 0;
    gone[0] = true;
    T(!cdp__elastic_proposes(&t, &wait_ms));
    t.rank = 1;
    T(cdp__elastic_proposes(&t, &wait_ms));
    /* so is rank 1, which arrived and leads: the next one does */
    gone[1] = true;
    t.rank = 2;
    T_EQ(2, cdp__elastic_leader(&t));
    T(cdp__elastic_proposes(&t, &wait_ms));
    gone[1] = false;
    T_EQ(1, cdp__elastic_leader(&t));
    T(!cdp__elastic_proposes(&t, &wait_ms));
    /* the arrival of a stranger with the number of a member is none */
    in[0].id[5] = 1;
    T(!cdp__elastic_complete(&t));
}

/* The only one that has state has died, and those that are left are below the minimum: newcomers,
   who bring none, would not help. */
TEST(nobody_waits_for_newcomers_where_the_state_is_lost) {
    cdp__elastic_member members[3], next[4];
    cdp__elastic_decision d, out;
    cdp__elastic_arrival in = {0};
    cdp__elastic_view v = {0};
    memset(&d, 0, sizeof d);
    d.members = members;
    d.epoch = 2;
    for (uint32_t r = 0; r < 3; ++r) {
        const uint8_t id[CDP__ELASTIC_ID_BYTES] = {(uint8_t)(r + 1)};
        cdp__elastic_add(&d, id, r, r == 2);
    }
    in.rank = 1;
    memcpy(in.id, members[1].id, sizeof in.id);
    v.old = &d;
    v.arrivals = &in;
    v.arrival_count = 1;
    v.min_ranks = 2;
    v.max_ranks = 3;
    out.members = next;
    T_EQ(CDP__ELASTIC_NO_STATE, cdp__elastic_decide(&v, &out));
    in.has_state = true;
    T_EQ(CDP__ELASTIC_FEW, cdp__elastic_decide(&v, &out));
    v.min_ranks = 1;
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&v, &out));
}

/* An epoch whose members have all arrived: blames[r] is 1 + whom rank r blames. */
typedef struct blaming {
    cdp__elastic_member members[5], next[8];
    cdp__elastic_arrival in[5];
    cdp__elastic_decision d, out;
    cdp__elastic_view v;
} blaming;

static void blaming_of(blaming *b, uint32_t size, const uint32_t *blames, uint8_t strikes) {
    memset(b, 0, sizeof *b);
    b->d.members = b->members;
    b->d.epoch = 3;
    b->d.step = 7;
    for (uint32_t r = 0; r < size; ++r) {
        const uint8_t id[CDP__ELASTIC_ID_BYTES] = {(uint8_t)(r + 1)};
        cdp__elastic_add(&b->d, id, r, true);
        b->members[r].strikes = strikes;
        b->in[r].rank = r;
        b->in[r].step = 7;
        b->in[r].has_state = true;
        b->in[r].blamed = blames[r];
        memcpy(b->in[r].id, id, sizeof id);
    }
    b->v.old = &b->d;
    b->v.arrivals = b->in;
    b->v.arrival_count = size;
    b->v.min_ranks = 1;
    b->v.max_ranks = 5;
    b->out.members = b->next;
}

/* Bits of the ranks that a decision keeps. */
static uint32_t kept_of(const blaming *b) {
    uint32_t bits = 0;
    for (uint32_t r = 0; r < b->out.size; ++r)
        bits |= 1u << b->out.members[r].old_rank;
    return bits;
}

static bool can_go_on(uint32_t bits, uint32_t size, const uint32_t *blames) {
    for (uint32_t r = 0; r < size; ++r)
        if (bits >> r & 1 && blames[r] && bits >> (blames[r] - 1) & 1) return false;
    return true;
}

/* Every way in which up to five members can blame one another: those who stay blame nobody that
   stays, and as many stay as can, or as min_ranks asks for. */
TEST(as_many_stay_as_can_go_on_with_each_other) {
    static blaming b;
    for (uint32_t size = 2; size <= 5; ++size) {
        uint32_t ways = 1;
        for (uint32_t r = 0; r < size; ++r)
            ways *= size + 1;
        for (uint32_t w = 0; w < ways; ++w) {
            uint32_t blames[5], most = 0, rest = w;
            for (uint32_t r = 0; r < size; ++r, rest /= size + 1)
                blames[r] = rest % (size + 1) == r + 1 ? 0 : rest % (size + 1);
            for (uint32_t bits = 1; bits < 1u << size; ++bits)
                if (can_go_on(bits, size, blames) && (uint32_t)__builtin_popcount(bits) > most)
                    most = (uint32_t)__builtin_popcount(bits);
            blaming_of(&b, size, blames, CDP__ELASTIC_STRIKES - 1);
            T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&b.v, &b.out));
            T(can_go_on(kept_of(&b), size, blames));
            T_EQ(most, b.out.size);
            T_EQ(size - most, b.out.evicted);
            b.v.min_ranks = most + 1;
            T_EQ(most == size ? CDP__ELASTIC_FEW : CDP__ELASTIC_DECIDED,
                cdp__elastic_decide(&b.v, &b.out));
            if (most < size) T_EQ(size, b.out.size); /* they could not go on without these */
        }
    }
}

/* Who was blamed stays while steps are committed, while somebody is missing, and until the third
   time; then newcomers wait longer. */
TEST(nobody_is_left_out_too_soon) {
    static blaming b;
    const uint32_t blames[3] = {2, 0, 2};
    blaming_of(&b, 3, blames, CDP__ELASTIC_STRIKES - 2);
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&b.v, &b.out));
    T(b.out.size == 3 && !b.out.evicted && !b.out.cool);
    T_EQ(CDP__ELASTIC_STRIKES - 1, b.out.members[1].strikes);
    blaming_of(&b, 3, blames, CDP__ELASTIC_STRIKES - 1);
    b.in[2].step = 8;
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&b.v, &b.out));
    T_EQ(3, b.out.size);
    T_EQ(1, b.out.members[1].strikes);
    blaming_of(&b, 3, blames, CDP__ELASTIC_STRIKES - 1);
    b.v.arrival_count = 2;
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&b.v, &b.out));
    T_EQ(2, b.out.size);
    T_EQ(CDP__ELASTIC_STRIKES - 1, b.out.members[1].strikes);
    b.v.arrival_count = 3;
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&b.v, &b.out));
    T(b.out.size == 2 && b.out.evicted == 1 && b.out.cool == 1 && b.out.lost == 1);
    T_EQ(2, b.out.members[1].old_rank);
}

/* A newcomer that has no state goes first, after two epochs, also if it alone blames a member; but
   not for a member that did not call. */
TEST(a_newcomer_goes_before_members) {
    static blaming b;
    const uint32_t alone[3] = {0, 0, 1}, all[3] = {2, 0, 2};
    for (uint32_t kind = 0; kind < 3; ++kind) {
        blaming_of(&b, 3, kind ? all : alone, kind ? CDP__ELASTIC_STRIKES - 1 : 1);
        b.in[2].has_state = b.members[2].source = false;
        b.members[2].on_trial = true;
        b.in[0].absent = b.in[2].absent = kind == 2;
        T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&b.v, &b.out));
        T_EQ(kind == 2 ? 5 : 3, kept_of(&b));
        T_EQ(kind == 2, b.out.members[1].on_trial);
    }
}

/* The source of the first epoch is dead. Who has not begun to receive holds what it came with: the
   first of them is the source, and it alone, for the others may hold other bits. */
TEST(a_first_epoch_that_never_ran_begins_anew) {
    cdp__elastic_member members[4], next[4];
    cdp__elastic_decision none = {0}, d, out;
    cdp__elastic_ticket tickets[4];
    cdp__elastic_arrival in[3];
    cdp__elastic_place p[4];
    cdp__elastic_view v = {0};
    memset(tickets, 0, sizeof tickets);
    memset(p, 0, sizeof p);
    for (uint32_t i = 0; i < 4; ++i) {
        tickets[i].id[0] = p[i].id[0] = (uint8_t)(i + 1);
        tickets[i].step = p[i].step = 10 - i;
        p[i].has_state = true;
    }
    v.old = &none;
    v.tickets = tickets;
    v.ticket_count = 4;
    v.min_ranks = 1;
    v.max_ranks = 4;
    d.members = members;
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&v, &d));
    T_EQ(10, d.step);
    for (uint32_t i = 0; i < 4; ++i)
        T(cdp__elastic_learn(&p[i], &d));
    cdp__elastic_receive(&p[1], false);
    for (uint32_t i = 1; i < 4; ++i)
        T(cdp__elastic_arrive(&p[i], &in[i - 1]));
    v.old = &d;
    v.arrivals = in;
    v.arrival_count = 3;
    out.members = next;
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&v, &out));
    T_EQ(3, out.size);
    T_EQ(1, out.sources);
    T(out.members[1].source); /* the one before it has begun to receive */
    T_EQ(8, out.step);
    for (uint32_t i = 1; i < 4; ++i)
        T(cdp__elastic_learn(&p[i], &out));
    T(!p[1].has_state && p[2].has_state && !p[3].has_state);
    v.arrival_count = 1;
    T_EQ(CDP__ELASTIC_NO_STATE, cdp__elastic_decide(&v, &out));
}

/* The oldest ticket that is not gone leads; the last call lasts settle_ms, or until max_ranks. */
TEST(the_first_epoch_waits_for_the_last_call) {
    cdp__elastic_member members[4];
    cdp__elastic_decision none = {0}, d;
    cdp__elastic_ticket tickets[4];
    cdp__elastic_view v = {0};
    memset(tickets, 0, sizeof tickets);
    for (uint32_t i = 0; i < 4; ++i)
        tickets[i].id[0] = (uint8_t)(i + 1);
    v.old = &none;
    v.tickets = tickets;
    v.min_ranks = 2;
    v.max_ranks = 3;
    d.members = members;
    v.ticket_count = 1;
    T(!cdp__elastic_founds(&v, tickets[0].id, 1000, 200)); /* below the minimum */
    T_EQ(CDP__ELASTIC_FEW, cdp__elastic_decide(&v, &d));
    v.ticket_count = 2;
    T(!cdp__elastic_founds(&v, tickets[0].id, 199, 200));
    T(cdp__elastic_founds(&v, tickets[0].id, 200, 200));
    T(!cdp__elastic_founds(&v, tickets[1].id, 299, 200));  /* it does not lead */
    T(cdp__elastic_founds(&v, tickets[1].id, 300, 200));   /* who does may be dead */
    T(!cdp__elastic_founds(&v, tickets[2].id, 1000, 200)); /* it has no ticket yet */
    v.ticket_count = 4;
    T(cdp__elastic_founds(&v, tickets[0].id, 0, 200)); /* all that may be in are there */
    T(!cdp__elastic_founds(&v, tickets[3].id, 499, 200));
    T(cdp__elastic_founds(&v, tickets[3].id, 500, 200)); /* a spare, where three are dead */
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&v, &d));
    T_EQ(3, d.size);
    T_EQ(3, d.tickets); /* the fourth is a spare, and is not dealt with */
    for (uint32_t r = 0; r < d.size; ++r)
        T_EQ(r + 1, d.members[r].id[0]);
    tickets[0].gone = tickets[2].gone = tickets[3].gone = true; /* below the minimum again */
    T(!cdp__elastic_founds(&v, tickets[1].id, 1000, 200));
    tickets[3].gone = false;
    T(cdp__elastic_founds(&v, tickets[1].id, 200, 200));
    T_EQ(CDP__ELASTIC_DECIDED, cdp__elastic_decide(&v, &d));
    T_EQ(2, d.size);
    T_EQ(4, d.members[1].id[0]);
}

/* Rank 1 is as the test says: 0 who it should be; 1 a member of the epoch before; 2 a stranger. */
static void rank_greets(cdp_group *g, void *arg) {
    const uint32_t kind = *(const uint32_t *)arg, me = cdp_rank(g);
    cdp__elastic_member members[2];
    cdp__elastic_decision d;
    cdp_elastic e;
    memset(&e, 0, sizeof e);
    memset(&d, 0, sizeof d);
    e.os = cdp_os_default();
    d.members = members;
    d.epoch = me && kind == 1 ? 3 : 4;
    for (uint32_t r = 0; r < 2; ++r) {
        const uint8_t id[CDP__ELASTIC_ID_BYTES] = {(uint8_t)(me && r && kind == 2 ? 9 : r + 1)};
        cdp__elastic_add(&d, id, r, true);
    }
    if (kind == 0 || (kind == 2 && me))
        OK(cdp__elastic_greet(&e, g, &d, me));
    else
        REFUSED(CDP_ERR_MISMATCH,
            me ? "epoch 3: the process that connected as rank 0 is not the one"
               : "the process that connected as rank 1 is not the one",
            cdp__elastic_greet(&e, g, &d, me));
}

/* Each epoch has new connections, and each rank says on them who it is. */
TEST(members_of_another_epoch_are_refused) {
    const cdp_group_desc like = {.logger = {.level = CDP_LOG_SILENT}};
    for (uint32_t kind = 0; kind < 3; ++kind)
        run_ranks(2, &like, 0, rank_greets, &kind);
}

/* ---- jobs ---- */

static cdp_store *shared;
static job_member members[MOST];

static void *run_main(void *p) {
    job_run((job_member *)p);
    return NULL;
}

static void job_begin(void) {
    memset(members, 0, sizeof members);
    OK(cdp_hash_store_create(NULL, &shared));
    for (uint32_t i = 0; i < MOST; ++i)
        members[i].desc.store = shared;
}

static pthread_t go(job_member *m) {
    pthread_t t;
    if (pthread_create(&t, NULL, run_main, m) != 0) abort();
    return t;
}

static void run_all(uint32_t n) {
    pthread_t t[MOST];
    for (uint32_t i = 0; i < n; ++i)
        t[i] = go(&members[i]);
    for (uint32_t i = 0; i < n; ++i)
        pthread_join(t[i], NULL);
}

static bool ended(const job_member *m, cdp_status want) {
    return test_check(m->status == want && !m->wrong, __FILE__, __LINE__,
        "member %u: %s, %u wrong: %s\n%s", (unsigned)(m - members), cdp_status_name(m->status),
        m->wrong, m->error.text, m->history);
}

static void wait_for_key(const char *key) {
    OK(cdp_store_wait(shared, &key, 1, 20000 * TEST_SLACK));
}

static void wait_for_epoch(uint32_t k) {
    char key[40];
    snprintf(key, sizeof key, "elastic/e/%u", k);
    wait_for_key(key);
}

/* Until the thread that watches has taken over the decision that makes epoch k. */
static void wait_for_own_epoch(cdp_elastic *e, uint32_t k) {
    const uint64_t until = test_until_ns(5000);
    char words[40], history[4000];
    bool there = false;
    snprintf(words, sizeof words, "\"epoch\": %u,", k);
    while (!there && test_now_ns() < until) {
        (void)cdp_elastic_history(e, history, sizeof history);
        there = strstr(history, words) != NULL;
        if (!there) test_sleep_ms(2);
    }
    T(there);
}

static void wait_for_failure(cdp_group *group) {
    const uint64_t until = test_until_ns(5000);
    while (cdp_group_status(group) == CDP_OK && test_now_ns() < until)
        test_sleep_ms(2);
    T(cdp_group_status(group) != CDP_OK);
}

static void wait_for_steps(const job_member *m, uint64_t committed) {
    const uint64_t until = test_until_ns(20000);
    while (__atomic_load_n(&m->committed, __ATOMIC_ACQUIRE) < committed && test_now_ns() < until)
        test_sleep_ms(1);
    T(__atomic_load_n(&m->committed, __ATOMIC_ACQUIRE) >= committed);
}

/* Of the first n members: how many ranks there are, steps (0: see job_member), ms for each step. */
static void set_all(uint32_t n, uint32_t min, uint32_t max, uint64_t steps, uint32_t pace_ms) {
    for (uint32_t i = 0; i < n; ++i) {
        members[i].desc.min_ranks = min;
        members[i].desc.max_ranks = max;
        members[i].steps = steps;
        members[i].pace_ms = pace_ms;
    }
}

TEST(one_process_is_a_job) {
    job_begin();
    members[0].steps = 50;
    run_all(1);
    ended(&members[0], CDP_OK);
    T_EQ(50, members[0].last.step);
    T_EQ(50 * JOB_BATCH, members[0].last.samples);
    T_EQ(1, members[0].changes);
    cdp_store_destroy(shared);
}

TEST(four_begin_together) {
    job_begin();
    set_all(4, 4, 4, 40, 0);
    run_all(4);
    for (uint32_t i = 0; i < 4; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(40u * 4 * JOB_BATCH, members[i].last.samples);
        T_EQ(4, members[i].last.size);
        T(members[i].last.epoch <= 3); /* connecting may need another attempt */
    }
    cdp_store_destroy(shared);
}

/* From a checkpoint that only the first rank may have: the others receive it. */
TEST(the_first_rank_brings_the_state) {
    uint32_t received = 0;
    job_begin();
    set_all(3, 3, 3, 30, 0);
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].desc.step = 10;
        members[i].desc.samples = 77;
        job_fill(&members[i], 77);
    }
    run_all(3);
    for (uint32_t i = 0; i < 3; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(10, members[i].first_step);
        T_EQ(77u + 20 * 3 * JOB_BATCH, members[i].last.samples);
        received += members[i].received;
        T_EQ(members[i].received, members[i].loads);
    }
    T_EQ(2, received);
    cdp_store_destroy(shared);
}

TEST(a_rank_leaves_and_the_others_go_on) {
    job_begin();
    set_all(3, 2, 3, 0, 1);
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].want = 2;
        members[i].more = 20;
        members[i].desc.settle_ms = 400 * TEST_SLACK; /* so that all three are in the first epoch */
    }
    members[1].leave_at = 8;
    run_all(3);
    ended(&members[0], CDP_OK);
    ended(&members[1], CDP_ERR_STATE);
    T_TEXT("this process left: seen enough", members[1].error.text);
    ended(&members[2], CDP_OK);
    for (uint32_t i = 0; i < 3; i += 2) {
        T_EQ(2, members[i].last.size);
        T_TEXT("leaves: seen enough", members[i].history);
        T(members[i].last.old_rank != UINT32_MAX);
        T_TEXT("\"lost\": 1", members[i].history);
    }
    T_EQ(members[0].last.samples, members[2].last.samples);
    cdp_store_destroy(shared);
}

/* It says nothing but that it is destroyed: the program returned early. */
TEST(a_rank_that_is_destroyed_has_left) {
    job_begin();
    set_all(3, 2, 3, 0, 0);
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].want = 2;
        members[i].more = 20;
        members[i].desc.settle_ms = 400 * TEST_SLACK;
    }
    members[0].vanish_at = 5;
    run_all(3);
    for (uint32_t i = 1; i < 3; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(2, members[i].last.size);
    }
    cdp_store_destroy(shared);
}

/* Rank 1 arrives between the operation of a step and its commit, while rank 0 commits it: the step
   counts, and rank 1 receives what it lacks. */
static void arrive_before_commit(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    const job_member *other = m == &members[0] ? &members[1] : &members[0];
    if (now->step != 5) return;
    m->between = NULL;
    if (now->rank != 1) return;
    wait_for_steps(other, 6);
    OK(cdp_elastic_alarm(e, "rank 1 is late"));
    wait_for_failure(now->group);
    /* it has arrived, so its commit does not count */
    wait_for_own_epoch(e, (uint32_t)now->epoch + 1);
}

TEST(a_member_that_is_behind_by_one_step_receives_it) {
    uint32_t received = 0, dropped = 0;
    job_begin();
    set_all(2, 2, 2, 12, 0);
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.settle_ms = 300 * TEST_SLACK; /* nobody is left out */
        members[i].between = arrive_before_commit;
    }
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(12u * 2 * JOB_BATCH, members[i].last.samples);
        T_TEXT("\"step\": 6", members[i].history);
        received += members[i].received;
        dropped += members[i].dropped > 0;
    }
    T(received >= 2); /* once in each epoch: the state of the first one is that of its rank 0 */
    T(dropped >= 1);
    cdp_store_destroy(shared);
}

static void newcomers_join(const char *job, uint32_t old, uint32_t fresh) {
    pthread_t t[MOST];
    const uint32_t n = old + fresh;
    job_begin();
    for (uint32_t i = 0; i < n; ++i) {
        members[i].desc.job = job;
        members[i].desc.min_ranks = old;
        /* the first epoch begins so long after the last of the old ones came, and a busy machine
           may let members arrive so late */
        members[i].desc.settle_ms = 300 * TEST_SLACK; /* well below join_ms */
        members[i].want = n;
        members[i].more = 15;
        members[i].pace_ms = 2;
    }
    for (uint32_t i = 0; i < old; ++i)
        t[i] = go(&members[i]);
    wait_for_steps(&members[0], 1);
    for (uint32_t i = old; i < n; ++i)
        t[i] = go(&members[i]);
    for (uint32_t i = 0; i < n; ++i)
        pthread_join(t[i], NULL);
    for (uint32_t i = 0; i < n; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(n, members[i].last.size);
        T_EQ(members[0].last.samples, members[i].last.samples);
        T_EQ(members[0].last.step, members[i].last.step);
        if (i >= old) T(members[i].first_step > 0 && members[i].received >= 1);
    }
    cdp_store_destroy(shared);
}

TEST(a_newcomer_is_taken_in) {
    newcomers_join(NULL, 2, 1);
}
TEST(a_newcomer_is_taken_in_by_a_job_of_the_longest_name) {
    newcomers_join("a job whose name is as long as may be: of 63 characters .......", 2, 1);
}
TEST(newcomers_receive_from_several_sources) {
    newcomers_join(NULL, 3, 2);
}

static void operator_asks(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    (void)e;
    if (now->epoch != 1 || now->step != 10) return;
    m->each = NULL;
    OK(cdp_store_set(shared, "elastic/e/1/alarm", "the operator asks", 17));
    wait_for_failure(now->group);
}

TEST(an_alarm_begins_an_epoch_with_the_same_members) {
    job_begin();
    set_all(2, 2, 2, 20, 0);
    members[1].each = operator_asks;
    for (uint32_t i = 0; i < 2; ++i)
        members[i].desc.settle_ms = 300 * TEST_SLACK; /* nobody is left out */
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i) {
        ended(&members[i], CDP_OK);
        T(members[i].last.epoch >= 2);
        T_EQ(2, members[i].last.size);
        T_EQ(0, members[i].last.lost);
    }
    cdp_store_destroy(shared);
}

/* One rank computes while the others have begun a turn, are in the next epoch, and wait for it: for
   longer than the members have for connecting. */
static uint32_t computes;

static void compute_for_long(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    if (now->epoch != 1 || now->step != 5) return;
    m->each = NULL;
    if (now->rank == computes)
        test_sleep_ms(900);
    else
        OK(cdp_elastic_alarm(e, "while another rank computes"));
}

static void one_computes_for_long(uint32_t rank) {
    job_begin();
    set_all(2, 2, 2, 12, 0);
    computes = rank;
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.settle_ms = 300 * TEST_SLACK; /* nobody is left out */
        members[i].each = compute_for_long;
    }
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i) {
        ended(&members[i], CDP_OK);
        T_EQ(2, members[i].last.epoch);
        T_EQ(0, members[i].last.lost);
    }
    cdp_store_destroy(shared);
}

TEST(a_rank_that_computes_for_long_begins_no_other_epoch) {
    one_computes_for_long(0);
}
TEST(rank_0_waits_for_a_rank_that_computes_for_long) {
    one_computes_for_long(1);
}

/* The rank of which is asked whether it lives; 0: there is no question. */
static int asked_rank(void) {
    const char *const key = "elastic/e/1/ask";
    bool there = false;
    void *data;
    uint64_t bytes;
    int rank;
    OK(cdp_store_check(shared, &key, 1, &there));
    if (!there) return 0;
    OK(cdp_store_get(shared, key, &data, &bytes, 1000));
    rank = atoi((const char *)data);
    cdp_store_free(shared, data);
    return rank;
}

static void answer_the_question(void) {
    bool there;
    OK(cdp_store_delete(shared, "elastic/e/1/ask", &there));
    T(there);
}

TEST(a_rank_that_lives_is_not_asked_again_at_once_and_the_next_one_is) {
    cdp_elastic *const e = (cdp_elastic *)calloc(1, sizeof *e);
    cdp__elastic_member m[3];
    cdp__elastic_decision d;
    cdp__elastic_doubt q;
    job_begin();
    memset(m, 0, sizeof m);
    memset(&d, 0, sizeof d);
    memset(&q, 0, sizeof q);
    d.epoch = 1;
    d.size = 3;
    d.members = m;
    e->os = cdp_os_default();
    e->store = shared;
    e->store_ms = 5000;
    e->desc.settle_ms = 5000;
    strcpy(e->job, "elastic");
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    T_EQ(1, asked_rank());
    answer_the_question(); /* before rank 0 looks again */
    for (int i = 0; i < 3; ++i) {
        OK(cdp__elastic_doubts(e, &d, 0, &q));
        T_EQ(0, asked_rank());
    }
    OK(cdp_store_set(shared, "elastic/e/1/here/1", "1", 1));
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    T_EQ(2, asked_rank());
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    answer_the_question(); /* and it comes, and rank 1 is next again */
    OK(cdp_store_set(shared, "elastic/e/1/here/2", "1", 1));
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    OK(cdp__elastic_doubts(e, &d, 0, &q));
    T_EQ(0, asked_rank());
    cdp_store_destroy(shared);
    free(e);
}

static void ask_for_an_epoch(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    if (now->step != 6 || now->rank != 1) return;
    m->each = NULL;
    OK(cdp_elastic_alarm(e, "rank 1 wants it"));
    wait_for_failure(now->group); /* or the job may be over before */
}

TEST(any_rank_can_end_an_epoch) {
    job_begin();
    set_all(3, 3, 3, 60, 0);
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].desc.settle_ms = 300 * TEST_SLACK; /* nobody is left out */
        members[i].each = ask_for_an_epoch;
    }
    run_all(3);
    for (uint32_t i = 0; i < 3; ++i) {
        ended(&members[i], CDP_OK);
        T(members[i].last.epoch >= 2);
        T_TEXT("rank 1 wants it", members[i].history);
    }
    cdp_store_destroy(shared);
}

TEST(below_the_minimum_the_job_waits_and_then_ends) {
    job_begin();
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.min_ranks = 2;
        members[i].steps = 1000000;
        members[i].pace_ms = 1;
        members[i].desc.join_ms = 500 * TEST_SLACK;
    }
    members[1].leave_at = 5;
    const uint64_t start = test_now_ns();
    run_all(2);
    T_WITHIN(4000, test_now_ns() - start);
    ended(&members[0], CDP_ERR_TIMEOUT);
    T_TEXT("min_ranks is 2: nobody came within join_ms", members[0].error.text);
    cdp_store_destroy(shared);
}

/* Member 1 goes when member 0 has its last step and has not yet called cdp_elastic_finish(). */
static void let_the_other_be_done(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    const uint64_t until = test_until_ns(20000);
    (void)m;
    (void)e;
    if (now->step != 9) return;
    while (!__atomic_load_n(&members[0].answer, __ATOMIC_SEQ_CST) && test_now_ns() < until)
        test_sleep_ms(1);
}

static void arrive_before_finish(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    const uint64_t until = test_until_ns(20000);
    bool arrived = false;
    (void)now;
    __atomic_store_n(&m->answer, 1, __ATOMIC_SEQ_CST);
    while (!arrived && test_now_ns() < until) {
        cdp__elastic_lock(e);
        arrived = e->place.phase == CDP__ELASTIC_ARRIVED;
        cdp__elastic_unlock(e);
        test_sleep_ms(1);
    }
    T(arrived);
}

/* Below the minimum; newcomers would find nothing to do. */
TEST(who_has_all_steps_needs_no_newcomers) {
    job_begin();
    set_all(2, 2, 2, 10, 0);
    for (uint32_t i = 0; i < 2; ++i)
        members[i].desc.join_ms = 10000 * TEST_SLACK;
    members[0].at_end = arrive_before_finish;
    members[1].steps = 11;
    members[1].between = let_the_other_be_done;
    members[1].vanish_at = 10;
    run_all(2);
    ended(&members[0], CDP_OK);
    ended(&members[1], CDP_OK);
    T_EQ(1, members[0].answer);
    cdp_store_destroy(shared);
}

/* The time begins anew after a standstill, three times at most. */
TEST(a_process_that_stood_still_waits_once_more) {
    cdp__elastic_settle s = {1000 * CDP__MS, 1000 * CDP__MS, 0};
    T_EQ(0, cdp__elastic_waited_ms(&s, 1000 * CDP__MS, 200));
    s.due_ns = 1010 * CDP__MS;
    T_EQ(110, cdp__elastic_waited_ms(&s, 1110 * CDP__MS, 200)); /* late, by half of it */
    s.due_ns = 1120 * CDP__MS;
    for (uint64_t i = 0; i < CDP__ELASTIC_PAUSES; ++i) {
        T_EQ(0, cdp__elastic_waited_ms(&s, (2000 + 1000 * i) * CDP__MS, 200));
        s.due_ns = (2010 + 1000 * i) * CDP__MS;
        T_EQ(10, cdp__elastic_waited_ms(&s, s.due_ns, 200));
    }
    T_EQ(1000, cdp__elastic_waited_ms(&s, 5000 * CDP__MS, 200)); /* always late */
}

TEST(a_replacement_lets_a_job_below_its_minimum_go_on) {
    pthread_t t[3];
    job_begin();
    set_all(3, 2, 2, 40, 1);
    members[1].leave_at = 5;
    t[0] = go(&members[0]);
    t[1] = go(&members[1]);
    pthread_join(t[1], NULL);
    test_sleep_ms(300);
    t[2] = go(&members[2]);
    pthread_join(t[0], NULL);
    pthread_join(t[2], NULL);
    ended(&members[0], CDP_OK);
    ended(&members[1], CDP_ERR_STATE);
    ended(&members[2], CDP_OK);
    T_EQ(2, members[0].last.size);
    T_EQ(40, members[2].last.step);
    cdp_store_destroy(shared);
}

TEST(too_few_at_the_beginning) {
    job_begin();
    members[0].desc.min_ranks = 2;
    members[0].desc.join_ms = 1000; /* longer than a machine stands still */
    run_all(1);
    ended(&members[0], CDP_ERR_TIMEOUT);
    T_TEXT("1 processes came within join_ms, 1000 ms, and min_ranks is 2", members[0].error.text);
    /* its ticket counts for nobody later */
    members[1].steps = members[2].steps = 5;
    members[1].desc.min_ranks = members[2].desc.min_ranks = 2;
    pthread_t a = go(&members[1]), b = go(&members[2]);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    ended(&members[1], CDP_OK);
    ended(&members[2], CDP_OK);
    T_EQ(2, members[1].last.size);
    cdp_store_destroy(shared);
}

TEST(a_spare_waits_and_replaces_who_leaves) {
    pthread_t t[3];
    job_begin();
    set_all(3, 2, 2, 60, 3);
    members[1].leave_at = 30;
    t[0] = go(&members[0]);
    t[1] = go(&members[1]);
    wait_for_epoch(1);
    t[2] = go(&members[2]);
    for (uint32_t i = 0; i < 3; ++i)
        pthread_join(t[i], NULL);
    ended(&members[0], CDP_OK);
    ended(&members[1], CDP_ERR_STATE);
    ended(&members[2], CDP_OK);
    /* the spare caused no epoch while there was no room for it */
    const char *newcomers = strstr(members[0].history, " newcomer");
    T(!newcomers || !strstr(newcomers + 1, " newcomer"));
    T(members[2].first_step >= 29);
    cdp_store_destroy(shared);
}

TEST(a_job_that_is_over_takes_nobody_in) {
    job_begin();
    members[0].steps = members[1].steps = 5;
    run_all(1);
    ended(&members[0], CDP_OK);
    job_run(&members[1]);
    ended(&members[1], CDP_ERR_STATE);
    T_TEXT("the job \"elastic\" is over", members[1].error.text);
    cdp_store_destroy(shared);
}

TEST(settings_that_differ_are_named) {
    cdp_elastic *e;
    job_begin();
    members[0].steps = 5;
    run_all(1);
    for (uint32_t i = 1; i < 4; ++i)
        job_desc(&members[i]);
    members[1].desc.min_ranks = 2;
    REFUSED(CDP_ERR_MISMATCH, "here \"min_ranks 2\", there \"min_ranks 1\"",
        cdp_elastic_create(&members[1].desc, &e));
    members[2].entries[1].count = 599;
    REFUSED(CDP_ERR_MISMATCH, "here \"entry 1: upper, 599 x u64\", there \"entry 1: upper, 600 x ",
        cdp_elastic_create(&members[2].desc, &e));
    members[3].desc.entry_count = 1;
    REFUSED(CDP_ERR_MISMATCH, "here \"1 entries\"", cdp_elastic_create(&members[3].desc, &e));
    job_desc(&members[3]);
    members[3].tcp.mac = true;
    REFUSED(CDP_ERR_MISMATCH, "here \"mac: on\", there \"mac: off\"",
        cdp_elastic_create(&members[3].desc, &e));
    T(!e);
    cdp_store_destroy(shared);
}

/* Whose records these are is said, and under which key. */
TEST(a_key_of_another_program_is_named) {
    static const char *const keys[] = {"elastic/join/in", "elastic/e/1"};
    for (uint32_t i = 0; i < 2; ++i) {
        char garbage[2 * CDP__ELASTIC_HEAD_BYTES];
        cdp_elastic *e;
        cdp_elastic_desc d = {.join_ms = 20000};
        memset(garbage, 'x', sizeof garbage);
        job_begin();
        d.store = shared;
        OK(cdp_store_set(shared, keys[i], garbage, sizeof garbage));
        REFUSED(CDP_ERR_STORE, "another program writes to it", cdp_elastic_create(&d, &e));
        T_TEXT(keys[i], cdp_last_error()->text);
        cdp_store_destroy(shared);
    }
}

TEST(mistakes_are_refused) {
    cdp_elastic *e;
    cdp_elastic_now now;
    bool all;
    job_begin();
    cdp_elastic_desc d = {0};
    REFUSED(CDP_ERR_INVALID, "store is NULL", cdp_elastic_create(&d, &e));
    d.store = shared;
    d.id = "12";
    REFUSED(CDP_ERR_INVALID, "32 digits", cdp_elastic_create(&d, &e));
    d.id = NULL;
    d.min_ranks = 3;
    d.max_ranks = 2;
    REFUSED(CDP_ERR_INVALID, "max_ranks, 2, is below min_ranks, 3", cdp_elastic_create(&d, &e));
    d.min_ranks = d.max_ranks = 0;
    d.save = job_save;
    REFUSED(CDP_ERR_INVALID, "both save and load", cdp_elastic_create(&d, &e));
    d.save = NULL;
    d.entry_count = 1;
    REFUSED(CDP_ERR_INVALID, "entries is NULL", cdp_elastic_create(&d, &e));
    d.entry_count = 0;
    d.job = "";
    REFUSED(CDP_ERR_INVALID, "1 to 63", cdp_elastic_create(&d, &e));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_elastic_create(NULL, &e));
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_elastic_commit(NULL));
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_elastic_poll(NULL));
    REFUSED(CDP_ERR_INVALID, "is NULL", cdp_elastic_next(NULL, &now));
    REFUSED(CDP_ERR_INVALID, "is NULL", cdp_elastic_agree(NULL, true, &all));
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_elastic_finish(NULL));
    REFUSED(CDP_ERR_INVALID, "NULL", cdp_elastic_alarm(NULL, NULL));
    T_EQ(0, cdp_elastic_history(NULL, NULL, 0));
    cdp_elastic_leave(NULL, NULL);
    cdp_elastic_destroy(NULL);
    d.job = NULL;
    OK(cdp_elastic_create(&d, &e));
    REFUSED(CDP_ERR_ABORTED, "call cdp_elastic_next", cdp_elastic_commit(e));
    OK(cdp_elastic_poll(e)); /* nothing has ended yet */
    REFUSED(CDP_ERR_STATE, "call cdp_elastic_next", cdp_elastic_agree(e, true, &all));
    OK(cdp_elastic_next(e, &now));
    T(now.changed && !now.received && now.old_rank == UINT32_MAX && now.size == 1);
    OK(cdp_elastic_poll(e));
    OK(cdp_elastic_next(e, &now));
    T(!now.changed);
    cdp_elastic_destroy(e);
    cdp_store_destroy(shared);
}

/* Ranks that call different things would do so again in the next epoch. */
static void call_another_count(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    uint64_t x[2] = {0, 0};
    (void)m;
    (void)e;
    if (now->step == 4)
        T(cdp_allreduce(now->group, NULL, x, 1 + now->rank, CDP_DTYPE_U64, CDP_REDUCE_SUM) < 0);
}

TEST(a_mistake_of_the_program_begins_no_epoch) {
    job_begin();
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.min_ranks = 2;
        members[i].steps = 20;
        members[i].each = call_another_count;
    }
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i) {
        ended(&members[i], CDP_ERR_MISMATCH);
        T(members[i].last.epoch <= 3);
    }
    cdp_store_destroy(shared);
}

/* So that both have committed the same steps, and both are sources. */
static void wait_for_the_third(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    (void)m;
    (void)e;
    if (now->step == 10 && now->size == 2) wait_for_failure(now->group);
}

TEST(sources_whose_bits_differ_are_found) {
    pthread_t t[3];
    job_begin();
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].desc.min_ranks = 2;
        members[i].want = 3;
        members[i].more = 5;
        members[i].pace_ms = 2;
        members[i].spoil_at = UINT64_MAX;             /* weights are not compared here */
        members[i].desc.settle_ms = 200 * TEST_SLACK; /* neither of the first two is left out */
    }
    members[1].spoil_at = 3;
    members[0].each = members[1].each = wait_for_the_third;
    t[0] = go(&members[0]);
    t[1] = go(&members[1]);
    /* the third comes when the bits differ */
    wait_for_steps(&members[1], 4);
    t[2] = go(&members[2]);
    for (uint32_t i = 0; i < 3; ++i)
        pthread_join(t[i], NULL);
    for (uint32_t i = 0; i < 3; ++i) {
        T_EQ(CDP_ERR_MISMATCH, members[i].status);
        T_TEXT("does not give the same bits on all ranks", members[i].error.text);
    }
    cdp_store_destroy(shared);
}

static void agree_each_step(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    bool all = false;
    OK(cdp_elastic_agree(e, true, &all));
    T(all);
    OK(cdp_elastic_agree(e, now->rank != 1 || now->step % 2, &all));
    T_EQ(now->step % 2, all);
    m->loads += all;
}

TEST(ranks_agree) {
    job_begin();
    for (uint32_t i = 0; i < 3; ++i) {
        members[i].desc.min_ranks = 3;
        members[i].steps = 10;
        members[i].each = agree_each_step;
    }
    run_all(3);
    for (uint32_t i = 0; i < 3; ++i)
        ended(&members[i], CDP_OK);
    cdp_store_destroy(shared);
}

/* ---- what the program's own functions do ---- */

static cdp_status connected_fails(void *user, const cdp_elastic_now *now) {
    ++((job_member *)user)->mark_ns;
    (void)now;
    cdp_error_set(CDP_ERR_IO, -1, 0, "%s", "no such file");
    return CDP_ERR_IO;
}
static cdp_status connected_is_silent(void *user, const cdp_elastic_now *now) {
    ++((job_member *)user)->mark_ns;
    (void)now;
    return CDP_ERR_PEER_LOST;
}
static cdp_status load_fails(void *user, const void *data, uint64_t bytes) {
    ++((job_member *)user)->mark_ns;
    (void)data;
    (void)bytes;
    return CDP_ERR_TIMEOUT;
}

static void leave_in_epoch_3(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    (void)m;
    if (now->epoch >= 3) cdp_elastic_leave(e, "the newcomer is gone");
}

/* A newcomer's function fails with what would be a loss in an operation: once, and for good. The
   other one goes on without it long before timeout_ms. */
static void a_newcomer_fails(cdp_status want, const char *words) {
    pthread_t t[2];
    for (uint32_t i = 0; i < 2; ++i)
        members[i].tcp.group.timeout_ms = 100000 * TEST_SLACK;
    members[0].each = leave_in_epoch_3;
    members[0].pace_ms = 2;
    members[0].steps = UINT64_MAX;
    members[1].steps = 1;
    t[0] = go(&members[0]);
    wait_for_epoch(1);
    t[1] = go(&members[1]);
    pthread_join(t[1], NULL);
    pthread_join(t[0], NULL);
    T_EQ(want, members[1].status);
    T_EQ(want, members[1].error.status);
    T_TEXT(words, members[1].error.text);
    T_EQ(1, members[1].mark_ns);
    ended(&members[0], CDP_ERR_STATE);
    T_EQ(1, members[0].last.size);
    cdp_store_destroy(shared);
}

TEST(an_error_of_a_function_of_the_program_is_final) {
    job_begin();
    members[1].desc.connected = connected_fails;
    a_newcomer_fails(CDP_ERR_IO, "no such file");
    job_begin();
    members[1].desc.connected = connected_is_silent;
    a_newcomer_fails(CDP_ERR_PEER_LOST, "connected() of cdp_elastic_desc returned");
    job_begin();
    members[1].desc.load = load_fails;
    a_newcomer_fails(CDP_ERR_TIMEOUT, "load() of cdp_elastic_desc returned");
}

static void end_epoch(uint64_t k, cdp_group *group) {
    char key[40];
    snprintf(key, sizeof key, "elastic/e/%llu/alarm", (unsigned long long)k);
    OK(cdp_store_set(shared, key, "again", 5));
    wait_for_failure(group);
}

static cdp_group *attached;

/* Two epochs end before they run. What was made of a group ends in the next call. */
static cdp_status attach(void *user, const cdp_elastic_now *now) {
    (void)user;
    if (now->epoch == 3) test_sleep_ms(1000); /* destroying a failed group takes up to 0.7 s */
    if (attached) T_EQ(CDP_ERR_ABORTED, cdp_group_status(attached));
    attached = now->group;
    if (now->epoch < 4) end_epoch(now->epoch, now->group);
    return CDP_OK;
}

TEST(a_group_lives_until_the_next_one_was_connected) {
    job_begin();
    attached = NULL;
    members[0].desc.connected = attach;
    members[0].steps = 5;
    run_all(1);
    ended(&members[0], CDP_OK);
    T(members[0].last.epoch >= 4);
    cdp_store_destroy(shared);
}

enum {
    LATE_MS = 500
};

static cdp_status connected_takes_long(void *user, const cdp_elastic_now *now) {
    (void)user;
    if (now->epoch > 1) return CDP_OK;
    test_sleep_ms((2 * LATE_MS + 100) * TEST_SLACK);
    if (now->rank == 0) OK(cdp_store_set(shared, "elastic/e/1/alarm", "late", 4));
    wait_for_failure(now->group);
    return CDP_OK;
}

/* Longer than join_ms and a request of the store together; then a turn begins, and has its time. */
TEST(a_turn_may_begin_late_in_a_call) {
    job_begin();
    set_all(2, 2, 2, 5, 0);
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.join_ms = LATE_MS * TEST_SLACK;
        members[i].tcp.group.timeout_ms = LATE_MS * TEST_SLACK;
        members[i].desc.connected = connected_takes_long;
    }
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i)
        ended(&members[i], CDP_OK);
    cdp_store_destroy(shared);
}

/* ---- calls while an epoch ends ---- */

/* The thread that watches is in epoch 2; the program still is in epoch 1. */
static void agree_in_an_old_epoch(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    bool all = true;
    if (now->epoch == 1 && now->step == 3) {
        if (now->rank == 0) OK(cdp_elastic_alarm(e, "rank 0 asks"));
        wait_for_own_epoch(e, 2);
        if (now->rank) return;
        OK(cdp_elastic_agree(e, true, &all));
        T(!all);
    } else if (now->epoch == 2 && now->changed) {
        OK(cdp_elastic_agree(e, true, &all));
        T(all);
        ++m->mark_ns;
    }
}

TEST(ranks_count_their_agreements_alike) {
    const char *first = "elastic/agree/2/1", *second = "elastic/agree/2/2";
    bool there = false;
    job_begin();
    set_all(2, 2, 2, 10, 0);
    for (uint32_t i = 0; i < 2; ++i)
        members[i].each = agree_in_an_old_epoch;
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i)
        ended(&members[i], CDP_OK);
    if (members[0].mark_ns && members[1].mark_ns) {
        OK(cdp_store_check(shared, &first, 1, &there));
        T(there);
        OK(cdp_store_check(shared, &second, 1, &there));
        T(!there);
    }
    cdp_store_destroy(shared);
}

/* Rank 1 gives its part of the operation and receives nothing; rank 0 has the result. */
static struct {
    cdp_os os;
    bool on, answered;
} deaf;

static int64_t recv_or_not(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    if (__atomic_load_n(&deaf.on, __ATOMIC_SEQ_CST)) return 0;
    return cdp_os_default()->net.recv_iov(user, fd, iov, n);
}

static void answer_alike(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    bool all = false;
    if (m->answer || now->step != 3) return;
    const uint64_t until = test_until_ns(5000);
    if (m == &members[1]) __atomic_store_n(&deaf.on, true, __ATOMIC_SEQ_CST);
    OK(cdp_elastic_agree(e, true, &all));
    m->answer = all ? 2 : 1;
    if (m == &members[1]) {
        __atomic_store_n(&deaf.answered, true, __ATOMIC_SEQ_CST);
        return;
    }
    OK(cdp_elastic_alarm(e, "rank 1 hears nothing"));
    while (!__atomic_load_n(&deaf.answered, __ATOMIC_SEQ_CST) && test_now_ns() < until)
        test_sleep_ms(2);
    __atomic_store_n(&deaf.on, false, __ATOMIC_SEQ_CST);
}

TEST(who_has_no_result_agrees_with_who_has_one) {
    job_begin();
    memset(&deaf, 0, sizeof deaf);
    deaf.os = *cdp_os_default();
    deaf.os.net.recv_iov = recv_or_not;
    set_all(2, 2, 2, 10, 0);
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].tcp.no_shared_memory = true;
        members[i].tcp.group.timeout_ms = 20000 * TEST_SLACK;
        members[i].each = answer_alike;
    }
    members[1].tcp.group.os = &deaf.os;
    run_all(2);
    for (uint32_t i = 0; i < 2; ++i)
        ended(&members[i], CDP_OK);
    T(deaf.answered);
    T_EQ(2, members[0].answer);
    T_EQ(2, members[1].answer);
    cdp_store_destroy(shared);
}

/* A newcomer was decided; who asks to leave holds all there is. */
static void leave_when_joined(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    if (now->step < 5 || now->epoch != 1) return;
    m->each = NULL;
    wait_for_own_epoch(e, 2);
    cdp_elastic_leave(e, "scaling down");
}

TEST(the_only_source_leaves_after_it_was_received) {
    pthread_t t[2];
    job_begin();
    members[0].each = leave_when_joined;
    members[0].steps = UINT64_MAX;
    members[0].pace_ms = 2;
    members[1].steps = 40;
    t[0] = go(&members[0]);
    wait_for_epoch(1);
    t[1] = go(&members[1]);
    for (uint32_t i = 0; i < 2; ++i)
        pthread_join(t[i], NULL);
    ended(&members[0], CDP_ERR_STATE);
    T_TEXT("this process left: scaling down", members[0].error.text);
    T(members[1].status == CDP_OK && !members[1].wrong && members[1].received >= 1);
    cdp_store_destroy(shared);
}

static cdp_elastic *lonely;

static void tell_elastic(job_member *m, cdp_elastic *e, const cdp_elastic_now *now) {
    (void)m;
    (void)now;
    __atomic_store_n(&lonely, e, __ATOMIC_SEQ_CST);
}

/* Below min_ranks nobody waits for this process: it need not wait for join_ms. */
TEST(who_waits_for_newcomers_may_leave) {
    pthread_t t[2];
    job_begin();
    set_all(2, 2, 2, UINT64_MAX, 1);
    for (uint32_t i = 0; i < 2; ++i)
        members[i].desc.join_ms = 1000000;
    members[0].each = tell_elastic;
    members[1].leave_at = 5;
    t[0] = go(&members[0]);
    t[1] = go(&members[1]);
    pthread_join(t[1], NULL);
    test_sleep_ms(300);
    cdp_elastic_leave(__atomic_load_n(&lonely, __ATOMIC_SEQ_CST), "enough");
    pthread_join(t[0], NULL);
    ended(&members[0], CDP_ERR_STATE);
    T_TEXT("this process left: enough", members[0].error.text);
    cdp_store_destroy(shared);
}

TEST(an_id_is_used_once) {
    cdp_elastic *e, *same;
    cdp_elastic_now now;
    cdp_elastic_desc d = {0};
    OK(cdp_hash_store_create(NULL, &shared));
    d.store = shared;
    d.settle_ms = 1;
    d.id = "00112233445566778899aabbccddeeff";
    OK(cdp_elastic_create(&d, &e));
    REFUSED(CDP_ERR_INVALID, "was used before", cdp_elastic_create(&d, &same));
    for (uint32_t i = 0; i < 3; ++i) { /* nobody says that the first one is gone */
        OK(cdp_elastic_next(e, &now));
        T_EQ(1, now.epoch);
        OK(cdp_elastic_commit(e));
        test_sleep_ms(20);
    }
    cdp_elastic_destroy(e);
    REFUSED(CDP_ERR_INVALID, "was used before", cdp_elastic_create(&d, &e));
    cdp_store_destroy(shared);
}

static _Thread_local bool no_memory;

static void *alloc_or_not(void *user, uint64_t bytes) {
    return no_memory ? NULL : cdp_os_default()->alloc(user, bytes);
}

static void *run_short_of_memory(void *p) {
    job_member *m = (job_member *)p;
    cdp_os os = *cdp_os_default();
    cdp_elastic *e;
    cdp_elastic_now now;
    os.alloc = alloc_or_not;
    m->tcp.group.os = &os;
    job_desc(m);
    OK(cdp_elastic_create(&m->desc, &e));
    no_memory = true;
    T_EQ(CDP_ERR_NOMEM, cdp_elastic_next(e, &now));
    T_EQ(CDP_ERR_NOMEM, cdp_last_error()->status);
    no_memory = false;
    cdp_elastic_destroy(e);
    return NULL;
}

/* It fails before there is a group that could tell. */
TEST(who_cannot_connect_lets_the_others_go_on) {
    pthread_t t[2];
    job_begin();
    for (uint32_t i = 0; i < 2; ++i) {
        members[i].desc.max_ranks = 2;
        members[i].desc.settle_ms = 20000 * TEST_SLACK;
        members[i].tcp.group.timeout_ms = 100000 * TEST_SLACK;
        members[i].steps = 5;
    }
    t[0] = go(&members[0]);
    wait_for_key("elastic/join/in"); /* so that it is rank 0, and holds the state */
    if (pthread_create(&t[1], NULL, run_short_of_memory, &members[1]) != 0) abort();
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    ended(&members[0], CDP_OK);
    T_EQ(1, members[0].last.size);
    cdp_store_destroy(shared);
}

/* Whichever allocation fails: an error, nothing is left, and nobody waits. */
/* A member and a newcomer in a trial; each is a thread. */
typedef struct tried {
    pthread_t id;
    cdp_tcp_desc desc;
    cdp_elastic e;
    pthread_barrier_t *both;
} tried;

static _Thread_local bool counts_waits;
static uint32_t waits_of_stop;

static int32_t watched_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    if (counts_waits && deadline_ns > cdp_os_default()->now_ns(user)) ++waits_of_stop;
    return cdp_os_default()->net.watch_wait(user, watch, out, max_count, deadline_ns);
}

static void *tried_main(void *p) {
    tried *t = (tried *)p;
    cdp__elastic_trial *const tr = &t->e.trial;
    t->e.os = t->desc.group.os;
    tr->newcomers = 1;
    if (!OK(cdp_init(&t->desc, &tr->group))) return NULL;
    if (!OK(cdp__elastic_trial_exchange(&t->e)) || !OK(cdp_work_wait(tr->work))) return NULL;
    if (t->desc.group.rank == 0) OK(cdp_barrier_async(tr->group, &tr->work));
    counts_waits = t->desc.group.rank == 0;
    if (counts_waits) cdp__elastic_trial_stop(&t->e);
    counts_waits = false;
    pthread_barrier_wait(t->both);
    cdp__elastic_trial_stop(&t->e);
    T(tr->group == NULL);
    return NULL;
}

/* The newcomer of a trial has stopped answering, and the epoch ends. */
TEST(a_trial_ends_without_a_wait) {
    static tried t[2];
    const uint16_t port = free_port();
    cdp_os os = *cdp_os_default();
    pthread_barrier_t both;
    memset(t, 0, sizeof t);
    waits_of_stop = 0;
    os.net.watch_wait = watched_wait;
    pthread_barrier_init(&both, NULL, 2);
    for (uint32_t r = 0; r < 2; ++r) {
        t[r].both = &both;
        t[r].desc.group.rank = r;
        t[r].desc.group.world_size = 2;
        t[r].desc.group.os = &os;
        t[r].desc.group.no_thread = true;
        t[r].desc.no_shared_memory = true;
        t[r].desc.master_port = port;
        if (pthread_create(&t[r].id, NULL, tried_main, &t[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < 2; ++r)
        pthread_join(t[r].id, NULL);
    T_EQ(0, waits_of_stop);
    pthread_barrier_destroy(&both);
}

TEST(out_of_memory_at_any_point) {
    uint32_t refused = 0;
    for (int64_t n = 1; n < 400; ++n) {
        cdp_elastic_desc d = {0};
        cdp_tcp_desc tcp = {0};
        cdp_elastic *e = NULL;
        cdp_elastic_now now;
        cdp_status st;
        OK(cdp_hash_store_create(NULL, &shared));
        tcp.group.os = counted_os();
        tcp.group.timeout_ms = 3000;
        tcp.group.logger.level = CDP_LOG_SILENT;
        counted.fail_at = n;
        d.store = shared;
        d.tcp = &tcp;
        d.settle_ms = 1;
        d.join_ms = 3000;
        st = cdp_elastic_create(&d, &e);
        if (st == CDP_OK) st = cdp_elastic_next(e, &now);
        if (st == CDP_OK) st = cdp_elastic_finish(e);
        refused += st == CDP_ERR_NOMEM;
        test_check(st == CDP_OK || st == CDP_ERR_NOMEM || st == CDP_ERR_IO, __FILE__, __LINE__,
            "allocation %d: %s: %s", (int)n, cdp_status_name(st), cdp_last_error()->text);
        cdp_elastic_destroy(e);
        if (!T_EQ(0, counted.held)) printf("  after allocation %d failed\n", (int)n);
        cdp_store_destroy(shared);
        if (counted.calls < n) break;
    }
    T(refused > 10);
}

/* Of every single byte, and of two sign bits that meet in one lane. */
TEST(the_hash_of_contents_tells_changes_apart) {
    static uint8_t data[1003];
    for (uint32_t i = 0; i < sizeof data; ++i)
        data[i] = (uint8_t)(i * 7);
    const uint64_t hash = cdp__elastic_hash(1, data, sizeof data);
    for (uint32_t i = 0; i < sizeof data; ++i) {
        data[i] ^= 0x80;
        T(cdp__elastic_hash(1, data, sizeof data) != hash);
        for (uint32_t k = i + 32; k < sizeof data; k += 32) {
            data[k] ^= 0x80;
            T(cdp__elastic_hash(1, data, sizeof data) != hash);
            data[k] ^= 0x80;
        }
        data[i] ^= 0x80;
    }
    /* the second word of a lane's step and the first one of its next step, each bit */
    for (uint32_t p = 0; p + 136 <= 896; p += 16)
        for (uint32_t bit = 0; bit < 64; ++bit) {
            data[p + 8 + bit / 8] ^= (uint8_t)(1u << bit % 8);
            data[p + 128 + bit / 8] ^= (uint8_t)(1u << bit % 8);
            T(cdp__elastic_hash(1, data, sizeof data) != hash);
            data[p + 8 + bit / 8] ^= (uint8_t)(1u << bit % 8);
            data[p + 128 + bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    T(cdp__elastic_hash(1, data, sizeof data) == hash);
    T(cdp__elastic_hash(2, data, sizeof data) != hash);
    T(cdp__elastic_hash(1, data, sizeof data - 1) != hash);
}

/* In pieces of any size, of which blocks may be parts; and a source hashes all at once. */
TEST(a_hash_does_not_depend_on_how_data_arrives) {
    static uint8_t data[30 * CDP__ELASTIC_BLOCK + 77];
    uint64_t all = 5;
    cdp__elastic_reading whole = {&all, data, sizeof data, 0, 0, 0};
    for (uint32_t i = 0; i < sizeof data; ++i)
        data[i] = (uint8_t)(i * 7 ^ i >> 8);
    cdp__elastic_hash_to(&whole, sizeof data);
    T(whole.done == sizeof data && all != 5);
    for (uint64_t piece = 7; piece < 2 * sizeof data; piece = piece * 5 / 2) {
        uint64_t hash = 5;
        cdp__elastic_reading r = {&hash, data, sizeof data, 0, 0, 0};
        for (r.begin = 0; r.begin < sizeof data; r.begin += piece) {
            r.piece = cdp__min(sizeof data - r.begin, piece);
            for (uint64_t there = 0; there < r.piece; there += 1 + r.piece / 3) {
                cdp__elastic_arrived(&r, there);
                T(r.done <= r.begin + there); /* nothing is read that is not there */
            }
            cdp__elastic_arrived(&r, UINT64_MAX);
        }
        T(r.done == sizeof data && hash == all);
    }
}

/* What a step costs besides its operations. */
TEST(next_and_commit_cost_little) {
    cdp_elastic_desc d = {0};
    cdp_elastic *e;
    cdp_elastic_now now;
    uint64_t begun, best = UINT64_MAX;
    OK(cdp_hash_store_create(NULL, &shared));
    d.store = shared;
    OK(cdp_elastic_create(&d, &e));
    for (uint32_t round = 0; round < 20; ++round) {
        begun = test_cpu_ns();
        for (uint32_t i = 0; i < 10000; ++i)
            if (cdp_elastic_next(e, &now) != CDP_OK || cdp_elastic_commit(e) != CDP_OK) abort();
        begun = test_cpu_ns() - begun;
        if (begun < best) best = begun;
    }
    printf("    cdp_elastic_next and cdp_elastic_commit: %.0f ns together\n", (double)best / 10000);
    if (!TEST_SLOW) T(best < 10000 * 1000);
    OK(cdp_elastic_finish(e));
    cdp_elastic_destroy(e);
    cdp_store_destroy(shared);
}

/* Over a store server, whose clients have clones for the thread that watches; and by variables. */
TEST(a_job_from_the_environment) {
    cdp_store_server_desc sd = {0};
    cdp_store_server *server;
    cdp_elastic *e;
    cdp_elastic_desc d = {0};
    cdp_elastic_now now;
    char port[12];
    OK(cdp_store_server_create(&sd, &server));
    snprintf(port, sizeof port, "%u", cdp_store_server_port(server));
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("CDP_ELASTIC", "3:1", 1);
    REFUSED(CDP_ERR_INVALID, "CDP_ELASTIC is \"3:1\"", cdp_elastic_create_from_env(&d, &e));
    setenv("CDP_ELASTIC", "1:4", 1);
    REFUSED(CDP_ERR_INVALID, "MASTER_PORT \"\"; start the program with `cdprun",
        cdp_elastic_create_from_env(&d, &e));
    setenv("MASTER_PORT", port, 1);
    /* a launcher under which rank 0 would have to serve the store says so at once */
    setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
    unsetenv("CDP_ELASTIC");
    REFUSED(CDP_ERR_INVALID, "`cdprun --stay`", cdp_elastic_create_from_env(&d, &e));
    setenv("CDP_ELASTIC", "1:4", 1);
    OK(cdp_elastic_create_from_env(NULL, &e));
    OK(cdp_elastic_next(e, &now));
    OK(cdp_elastic_commit(e));
    OK(cdp_elastic_alarm(e, "again"));
    const uint64_t until = test_until_ns(5000);
    while (now.epoch == 1 && test_now_ns() < until) {
        OK(cdp_elastic_next(e, &now));
        test_sleep_ms(5);
    }
    T(now.epoch >= 2);
    T_EQ(1, now.step);
    OK(cdp_elastic_finish(e));
    cdp_elastic_destroy(e);
    cdp_store_server_destroy(server);
}

TEST(a_store_that_ends_ends_the_job) {
    cdp_store_server_desc sd = {0};
    cdp_store_server *server;
    cdp_tcp_store_desc cd = {0};
    cdp_store *store;
    cdp_elastic *e;
    cdp_elastic_desc d = {0};
    cdp_elastic_now now;
    cdp_status st = CDP_OK;
    OK(cdp_store_server_create(&sd, &server));
    cd.host = "127.0.0.1";
    cd.port = cdp_store_server_port(server);
    cd.logger.level = CDP_LOG_SILENT;
    OK(cdp_tcp_store_create(&cd, &store));
    d.store = store;
    OK(cdp_elastic_create(&d, &e));
    OK(cdp_elastic_next(e, &now));
    cdp_store_server_destroy(server);
    const uint64_t until = test_until_ns(5000);
    while (st == CDP_OK && test_now_ns() < until) {
        st = cdp_elastic_next(e, &now);
        test_sleep_ms(5);
    }
    T(st == CDP_ERR_STORE || st == CDP_ERR_STATE);
    cdp_elastic_destroy(e);
    cdp_store_destroy(store);
}

/* ---- who is left of a group ---- */

typedef struct shrinking {
    cdp_shrink_desc desc;
    uint32_t dead, late; /* bits: they go without a word; they come when the others have decided */
    bool healthy;        /* nobody has failed: they shrink to all of them */
    uint32_t rounds;
} shrinking;

/* Ranks that are left decide, train, and decide again when the next one has gone. */
static void rank_shrinks(cdp_group *g, void *arg) {
    const shrinking *s = (const shrinking *)arg;
    cdp_shrink_desc d = s->desc;
    const uint32_t me = cdp_rank(g), all = cdp_size(g);
    uint32_t dead = s->dead;
    cdp_group *now = g, *next = NULL;
    d.store = shared;
    d.step = 100 + me;
    for (uint32_t round = 0; round < s->rounds; ++round) {
        uint64_t steps[RANKS_MAX], sum = me, want = 0, count = 0;
        if (dead >> me & 1) break;
        if (!s->healthy) T(cdp_barrier(now) != CDP_OK);
        if (s->late >> me & 1) {
            char key[60];
            const char *keys[1] = {key};
            snprintf(key, sizeof key, "shrink/%llx/e/2", (unsigned long long)now->channel);
            OK(cdp_store_wait(shared, keys, 1, 20000 * TEST_SLACK));
            T_EQ(CDP_ERR_STATE, cdp_group_shrink(now, &d, steps, &next));
            T_TEXT("the other ranks have decided without this one", cdp_last_error()->text);
            T(next == NULL);
            break;
        }
        if (!OK(cdp_group_shrink(now, &d, steps, &next))) break;
        for (uint32_t r = 0; r < all; ++r) {
            if ((dead | s->late) >> r & 1) continue;
            if (r == me) T_EQ(count, cdp_rank(next));
            T_EQ(100 + r, steps[count]);
            want += r;
            ++count;
        }
        T_EQ(count, cdp_size(next));
        OK(cdp_allreduce(next, NULL, &sum, 1, CDP_DTYPE_U64, CDP_REDUCE_SUM));
        T_EQ(want, sum);
        T(cdp_group_status(now) != CDP_OK);
        if (now != g) cdp_group_destroy(now);
        now = next;
        dead |= dead << 1 & ((1u << all) - 1);
    }
    if (now != g) cdp_group_destroy(now);
}

/* Each rank in a thread that ends its group when it is done: so others see that it has gone. */
typedef struct shrinker {
    pthread_t id;
    cdp_group *group;
    shrinking *s;
} shrinker;

static void *shrinker_main(void *p) {
    shrinker *t = (shrinker *)p;
    rank_shrinks(t->group, t->s);
    cdp_group_destroy(t->group);
    return NULL;
}

static void shrink(uint32_t n, shrinking *s) {
    const cdp_group_desc like = {.timeout_ms = 30000, .logger = {.level = CDP_LOG_SILENT}};
    shrinker t[RANKS_MAX];
    world w;
    OK(cdp_hash_store_create(NULL, &shared));
    if (!world_open(&w, n, &like, 0)) return;
    for (uint32_t r = 0; r < n; ++r) {
        t[r].group = w.group[r];
        t[r].s = s;
        if (pthread_create(&t[r].id, NULL, shrinker_main, &t[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < n; ++r)
        pthread_join(t[r].id, NULL);
    cdp_hub_destroy(w.hub);
    cdp_store_destroy(shared);
}

TEST(a_group_shrinks_to_those_who_are_left) {
    static const uint32_t dead[] = {1, 4, 8, 6, 14};
    for (uint32_t i = 0; i < sizeof dead / sizeof *dead; ++i) {
        shrinking s = {.dead = dead[i], .rounds = 1};
        s.desc.settle_ms = 300 * TEST_SLACK;
        shrink(4, &s);
    }
}

TEST(a_group_shrinks_again_and_again) {
    shrinking s = {.dead = 1, .rounds = 4};
    s.desc.settle_ms = 300 * TEST_SLACK;
    shrink(5, &s);
}

/* All come, so nobody waits for settle_ms. */
TEST(a_group_without_a_loss_shrinks_to_itself) {
    shrinking s = {.healthy = true, .rounds = 3};
    const uint64_t start = test_now_ns();
    s.desc.settle_ms = 20000 * TEST_SLACK;
    shrink(4, &s);
    T(test_now_ns() - start < 20000ull * TEST_SLACK * 1000000);
}

/* Nor for a rank of which the group says that it is lost. */
TEST(a_lost_rank_is_not_waited_for) {
    shrinking s = {.dead = 4, .rounds = 1};
    const uint64_t start = test_now_ns();
    s.desc.settle_ms = 20000 * TEST_SLACK;
    s.desc.trust_links = true;
    shrink(4, &s);
    T(test_now_ns() - start < 20000ull * TEST_SLACK * 1000000);
}

TEST(a_rank_that_comes_late_is_left_out) {
    shrinking s = {.dead = 1, .late = 4, .rounds = 1};
    s.desc.settle_ms = 150 * TEST_SLACK;
    shrink(4, &s);
}

static void rank_is_alone(cdp_group *g, void *arg) {
    cdp_shrink_desc d = {.store = shared, .min_ranks = 2};
    cdp_group *out = g;
    (void)arg;
    if (cdp_rank(g)) return;
    REFUSED(CDP_ERR_TIMEOUT, "1 of 2 ranks came", cdp_group_shrink(g, &d, NULL, &out));
    T(out == NULL);
    /* may be called again, which makes nobody two */
    REFUSED(CDP_ERR_TIMEOUT, "1 of 2 ranks came", cdp_group_shrink(g, &d, NULL, &out));
    d.min_ranks = 1;
    d.settle_ms = 1; /* the deadline is for what takes processor time */
    OK(cdp_group_shrink(g, &d, NULL, &out));
    T_EQ(1, cdp_size(out));
    cdp_group_destroy(out);
}

/* The last of three does not come, and the time for that is longer than timeout_ms. */
static void rank_settles_too_long(cdp_group *g, void *arg) {
    const cdp_shrink_desc d = {.store = shared, .job = "settles", .settle_ms = 5000 * TEST_LATE};
    const uint64_t start = test_now_ns();
    cdp_group *out;
    (void)arg;
    if (cdp_rank(g) == 2) return;
    REFUSED(CDP_ERR_TIMEOUT, "of 3 ranks came", cdp_group_shrink(g, &d, NULL, &out));
    T(test_now_ns() - start < 5000ull * TEST_LATE * 1000000);
}

TEST(mistakes_in_shrinking) {
    const cdp_group_desc like = {
        .timeout_ms = 250 * TEST_LATE, .logger = {.level = CDP_LOG_SILENT}};
    cdp_shrink_desc d = {.job = "j"};
    cdp_group *out, *g;
    world w;
    OK(cdp_hash_store_create(NULL, &shared));
    run_ranks(2, &like, 0, rank_is_alone, NULL);
    run_ranks(3, &like, 0, rank_settles_too_long, NULL);
    if (!world_open(&w, 1, NULL, 0)) return;
    g = w.group[0];
    REFUSED(CDP_ERR_INVALID, "cdp_group_shrink: ", cdp_group_shrink(NULL, &d, NULL, &out));
    REFUSED(CDP_ERR_INVALID, "cdp_group_shrink: ", cdp_group_shrink(g, NULL, NULL, &out));
    REFUSED(CDP_ERR_INVALID, "cdp_group_shrink: ", cdp_group_shrink(g, &d, NULL, NULL));
    REFUSED(CDP_ERR_UNSUPPORTED, "has no store", cdp_group_shrink(g, &d, NULL, &out));
    d.store = shared;
    d.job = "";
    REFUSED(CDP_ERR_INVALID, "1 to 40 characters", cdp_group_shrink(g, &d, NULL, &out));
    d.job = NULL;
    d.min_ranks = 2;
    REFUSED(CDP_ERR_INVALID, "only 1 ranks", cdp_group_shrink(g, &d, NULL, &out));
    OK(cdp_group_status(g)); /* nothing has happened to it */
    world_close(&w);
    cdp_store_destroy(shared);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_ticket_tells_the_round_trip_and_an_arrival_whom_it_blames",
            a_ticket_tells_the_round_trip_and_an_arrival_whom_it_blames, 10},
        {"decisions_carry_the_round_trips_of_their_members",
            decisions_carry_the_round_trips_of_their_members, 10},
        {"members_of_large_jobs_look_less_often_who_is_there",
            members_of_large_jobs_look_less_often_who_is_there, 10},
        {"times_grow_with_the_longest_round_trip", times_grow_with_the_longest_round_trip, 10},
        {"records_come_back_and_nothing_else_does", records_come_back_and_nothing_else_does, 10},
        {"decisions_come_back_and_nothing_else_does", decisions_come_back_and_nothing_else_does,
            10},
        {"nobody_waits_for_newcomers_where_the_state_is_lost",
            nobody_waits_for_newcomers_where_the_state_is_lost, 10},
        {"as_many_stay_as_can_go_on_with_each_other", as_many_stay_as_can_go_on_with_each_other,
            10},
        {"nobody_is_left_out_too_soon", nobody_is_left_out_too_soon, 10},
        {"a_newcomer_goes_before_members", a_newcomer_goes_before_members, 10},
        {"a_first_epoch_that_never_ran_begins_anew", a_first_epoch_that_never_ran_begins_anew, 10},
        {"a_turn_waits_for_the_living_and_for_nobody_else",
            a_turn_waits_for_the_living_and_for_nobody_else, 10},
        {"the_first_epoch_waits_for_the_last_call", the_first_epoch_waits_for_the_last_call, 10},
        {"members_of_another_epoch_are_refused", members_of_another_epoch_are_refused, 60},
        {"a_key_of_another_program_is_named", a_key_of_another_program_is_named, 60},
        {"one_process_is_a_job", one_process_is_a_job, 30},
        {"four_begin_together", four_begin_together, 30},
        {"the_first_rank_brings_the_state", the_first_rank_brings_the_state, 30},
        {"a_rank_leaves_and_the_others_go_on", a_rank_leaves_and_the_others_go_on, 40},
        {"a_rank_that_is_destroyed_has_left", a_rank_that_is_destroyed_has_left, 40},
        {"a_member_that_is_behind_by_one_step_receives_it",
            a_member_that_is_behind_by_one_step_receives_it, 40},
        {"out_of_memory_at_any_point", out_of_memory_at_any_point, 120},
        {"next_and_commit_cost_little", next_and_commit_cost_little, 40},
        {"a_newcomer_is_taken_in", a_newcomer_is_taken_in, 40},
        {"a_newcomer_is_taken_in_by_a_job_of_the_longest_name",
            a_newcomer_is_taken_in_by_a_job_of_the_longest_name, 40},
        {"newcomers_receive_from_several_sources", newcomers_receive_from_several_sources, 40},
        {"an_alarm_begins_an_epoch_with_the_same_members",
            an_alarm_begins_an_epoch_with_the_same_members, 40},
        {"a_rank_that_computes_for_long_begins_no_other_epoch",
            a_rank_that_computes_for_long_begins_no_other_epoch, 40},
        {"rank_0_waits_for_a_rank_that_computes_for_long",
            rank_0_waits_for_a_rank_that_computes_for_long, 40},
        {"a_rank_that_lives_is_not_asked_again_at_once_and_the_next_one_is",
            a_rank_that_lives_is_not_asked_again_at_once_and_the_next_one_is, 20},
        {"any_rank_can_end_an_epoch", any_rank_can_end_an_epoch, 40},
        {"below_the_minimum_the_job_waits_and_then_ends",
            below_the_minimum_the_job_waits_and_then_ends, 40},
        {"who_has_all_steps_needs_no_newcomers", who_has_all_steps_needs_no_newcomers, 60},
        {"a_process_that_stood_still_waits_once_more", a_process_that_stood_still_waits_once_more,
            10},
        {"a_replacement_lets_a_job_below_its_minimum_go_on",
            a_replacement_lets_a_job_below_its_minimum_go_on, 40},
        {"too_few_at_the_beginning", too_few_at_the_beginning, 40},
        {"a_spare_waits_and_replaces_who_leaves", a_spare_waits_and_replaces_who_leaves, 40},
        {"a_job_that_is_over_takes_nobody_in", a_job_that_is_over_takes_nobody_in, 40},
        {"settings_that_differ_are_named", settings_that_differ_are_named, 40},
        {"mistakes_are_refused", mistakes_are_refused, 40},
        {"a_mistake_of_the_program_begins_no_epoch", a_mistake_of_the_program_begins_no_epoch, 40},
        {"sources_whose_bits_differ_are_found", sources_whose_bits_differ_are_found, 40},
        {"ranks_agree", ranks_agree, 40},
        {"an_error_of_a_function_of_the_program_is_final",
            an_error_of_a_function_of_the_program_is_final, 40},
        {"a_group_lives_until_the_next_one_was_connected",
            a_group_lives_until_the_next_one_was_connected, 40},
        {"a_turn_may_begin_late_in_a_call", a_turn_may_begin_late_in_a_call, 40},
        {"ranks_count_their_agreements_alike", ranks_count_their_agreements_alike, 40},
        {"who_has_no_result_agrees_with_who_has_one", who_has_no_result_agrees_with_who_has_one,
            40},
        {"the_only_source_leaves_after_it_was_received",
            the_only_source_leaves_after_it_was_received, 40},
        {"who_waits_for_newcomers_may_leave", who_waits_for_newcomers_may_leave, 40},
        {"an_id_is_used_once", an_id_is_used_once, 40},
        {"who_cannot_connect_lets_the_others_go_on", who_cannot_connect_lets_the_others_go_on, 40},
        {"a_trial_ends_without_a_wait", a_trial_ends_without_a_wait, 40},
        {"the_hash_of_contents_tells_changes_apart", the_hash_of_contents_tells_changes_apart, 40},
        {"a_hash_does_not_depend_on_how_data_arrives", a_hash_does_not_depend_on_how_data_arrives,
            40},
        {"a_job_from_the_environment", a_job_from_the_environment, 40},
        {"a_store_that_ends_ends_the_job", a_store_that_ends_ends_the_job, 40},
        {"a_group_shrinks_to_those_who_are_left", a_group_shrinks_to_those_who_are_left, 60},
        {"a_group_shrinks_again_and_again", a_group_shrinks_again_and_again, 60},
        {"a_group_without_a_loss_shrinks_to_itself", a_group_without_a_loss_shrinks_to_itself, 60},
        {"a_lost_rank_is_not_waited_for", a_lost_rank_is_not_waited_for, 60},
        {"a_rank_that_comes_late_is_left_out", a_rank_that_comes_late_is_left_out, 60},
        {"mistakes_in_shrinking", mistakes_in_shrinking, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
