/* test_elastic_records.c - records of the store, and what a turn decides from them (pure) */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_elastic.h"

#include "said.h"
#include "ranks.h"

#include <pthread.h>

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

/* Without threads one request at a time is either for newcomers or for a trial: a member that is
   due for the first at each look never sees a trial. */
TEST(who_looks_for_newcomers_sees_trials_too) {
    static cdp__elastic_member m[5000];
    static cdp_elastic e;
    e.place.rank = 1;
    e.d.members = m;
    for (e.d.size = 2; e.d.size < 5000; ++e.d.size)
        T(cdp__elastic_question_ms(&e.d) > cdp__elastic_look_ms(&e));
}

static uint64_t clock_ns;
static uint64_t clock_now(void *user) {
    (void)user;
    return clock_ns;
}

/* What a newcomer says of a probe of so many bytes that took so long: 64 MiB of state are to
   come. */
static cdp_status judge_probe(uint32_t trip_ms, uint64_t probe, uint64_t took_ms, uint8_t *answer) {
    static const cdp_entry weights = {"weights", NULL, 16u << 20, CDP_DTYPE_F32};
    cdp_os os = *cdp_os_default();
    cdp_elastic e;
    memset(&e, 0, sizeof e);
    os.now_ns = clock_now;
    e.os = &os;
    e.desc.entries = &weights;
    e.desc.entry_count = 1;
    e.tcp.group.timeout_ms = 60000;
    e.round_trip_ns = trip_ms * CDP__MS;
    e.trial.trip_ms = trip_ms;
    e.trial.slow = true;
    e.trial.probe = probe;
    e.trial.probe_ns = 1000 * CDP__MS;
    clock_ns = (1000 + took_ms) * CDP__MS;
    return cdp__elastic_trial_judge(&e, answer);
}

/* Members ask the store in between, and the exchange itself takes round trips. */
TEST(probes_over_long_round_trips_say_nothing_about_the_link) {
    uint8_t answer = CDP__ELASTIC_AGAIN;
    T_EQ(CDP_OK, judge_probe(300, 16u << 10, 1350, &answer));
    T_EQ(CDP__ELASTIC_MORE, answer);
    T_EQ(CDP_OK, judge_probe(300, 4u << 20, 1800, &answer));
    T_EQ(CDP__ELASTIC_ENOUGH, answer);
    REFUSED(CDP_ERR_TIMEOUT, "the state would take", judge_probe(300, 4u << 20, 9000, &answer));
    REFUSED(CDP_ERR_TIMEOUT, "16384 bytes took 1350 ms", judge_probe(0, 16u << 10, 1350, &answer));
}

/* Looks of a newcomer, 100 ms apart, until it gives up: returns after how many. Another question
   stands in the store after each `every`. */
static uint32_t looks_until_silence(uint32_t every) {
    static cdp__elastic_member m[1];
    cdp_os os = *cdp_os_default();
    cdp__elastic_decision d;
    cdp__elastic_silence q;
    cdp_elastic e;
    uint32_t i;
    memset(&d, 0, sizeof d);
    memset(&q, 0, sizeof q);
    memset(&e, 0, sizeof e);
    os.now_ns = clock_now;
    clock_ns = 1000 * CDP__MS;
    e.os = &os;
    e.desc.settle_ms = 200;
    e.desc.join_ms = 600000;
    d.members = m;
    d.size = 1;
    for (i = 0; i < 1000; ++i, clock_ns += 100 * CDP__MS) {
        char id[40];
        cdp__format(id, sizeof id, "%u", i / every);
        if (cdp__elastic_silent(&e, &d, &q, id) != CDP_OK) break;
    }
    return i;
}

/* Takes longer than members wait; then there is no more memory. */
static cdp_status connects_for_long(void *user, const cdp_elastic_now *now) {
    *(cdp_group **)user = now->group;
    clock_ns += 2000 * CDP__MS;
    own_fail_at = 1;
    return CDP_OK;
}

TEST(the_group_of_a_rehearsal_lives_until_a_later_one_was_shown) {
    cdp_os os = *counted_os();
    cdp_group *shown = NULL;
    cdp_elastic e;
    memset(&e, 0, sizeof e);
    os.now_ns = clock_now;
    e.os = &os;
    e.tcp.group.os = &os;
    e.tcp.group.no_thread = true;
    e.tcp.group.timeout_ms = 1000;
    e.desc.connected = connects_for_long;
    e.desc.user = &shown;
    T_EQ(CDP_ERR_NOMEM, cdp__elastic_rehearse(&e));
    own_fail_at = 0;
    T(shown == e.middle);
    T_EQ(CDP_OK, cdp_group_status(shown));
    cdp_group_destroy(e.middle);
    T_EQ(0, counted.held);
}

static cdp_status never_connects(void *user, const cdp_elastic_now *now) {
    (void)now;
    ++*(uint32_t *)user;
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, "no library");
}

/* Else it would be taken in, and fail in an epoch of the others. */
TEST(a_rehearsal_that_failed_is_repeated) {
    uint32_t calls = 0;
    cdp_elastic_now now;
    cdp_elastic e;
    memset(&e, 0, sizeof e);
    e.os = counted_os();
    e.tcp.group.os = e.os;
    e.tcp.group.no_thread = true;
    e.tcp.group.timeout_ms = e.desc.join_ms = 60000;
    e.desc.connected = never_connects;
    e.desc.user = &calls;
    e.place.phase = CDP__ELASTIC_WAITING;
    e.stage = CDP__ELASTIC_TRIED;
    REFUSED(CDP_ERR_INVALID, "no library", cdp__elastic_step(&e, &now));
    REFUSED(CDP_ERR_INVALID, "no library", cdp__elastic_step(&e, &now));
    T_EQ(2, calls);
    cdp_group_destroy(e.middle);
    T_EQ(0, counted.held);
}

static cdp_status late_start(void *self, cdp_store_request *rq) {
    (void)self;
    (void)rq;
    return CDP_PENDING;
}

static cdp_status late_wait(void *self, cdp_store_request *rq, uint64_t deadline_ns) {
    (void)self;
    (void)rq;
    (void)deadline_ns;
    return CDP_PENDING;
}

/* All members are there just before nobody waits for them any more. */
static void late_cancel(void *self, cdp_store_request *rq) {
    const cdp_bytes one = {"1", 1};
    const cdp_os *const os = (const cdp_os *)self;
    T(cdp__store_request_make_results(os, rq) && cdp__store_request_put_result(os, rq, 0, one));
    rq->status = CDP_OK;
}

TEST(addresses_that_come_when_an_epoch_has_ended_are_freed) {
    static cdp__elastic_member m[1];
    const cdp_bytes key = {"here", 4};
    cdp_os os = *counted_os();
    cdp_store store = {&os, &os, 1000, late_start, late_wait, late_cancel, NULL};
    cdp_store_request rq = {.op = CDP_STORE_MULTI_GET, .keys = &key, .key_count = 1};
    cdp_elastic e;
    memset(&e, 0, sizeof e);
    os.now_ns = clock_now;
    clock_ns = 1000 * CDP__MS;
    e.os = &os;
    e.store = &store;
    e.d.members = m;
    e.d.size = e.d.epoch = 1;
    T_EQ(CDP_ERR_ABORTED, cdp__elastic_await_all(&e, &e.d, &rq, clock_ns));
    T_EQ(0, counted.held);
}

/* Where ranks meet has a short name, also for a job with a long one. */
TEST(jobs_with_long_names_meet_at_places_of_their_own) {
    static const char *const jobs[] = {
        "a job with a name longer than what fits where its ranks meet a",
        "a job with a name longer than what fits where its ranks meet b"};
    char at[8][CDP__ELASTIC_KEY];
    static cdp_elastic e;
    uint32_t n = 0;
    for (uint32_t i = 0; i < 8; ++i) {
        cdp__format(e.job, sizeof e.job, "%s", jobs[i & 1]);
        cdp__elastic_meeting(&e, at[i], 7 + (i >> 1 & 1), i >> 2 ? 3 : 0);
        T(strlen(at[i]) <= CDP__ELASTIC_MOST_JOB);
        for (uint32_t k = 0; k < i; ++k)
            n += strcmp(at[i], at[k]) == 0;
    }
    T_EQ(0, n);
}

TEST(questions_of_other_newcomers_are_told_apart) {
    const uint32_t silence = looks_until_silence(1000);
    T(silence >= 22 && silence < 30); /* settle_ms and two looks of members */
    T_EQ(1000, looks_until_silence(10));
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

/* timeout_ms is shorter than a start over long round trips takes. */
TEST(a_first_attempt_to_connect_has_its_round_trips) {
    cdp__elastic_member m = {.round_trip_ms = 300};
    cdp__elastic_decision d = {.members = &m, .size = 1};
    const uint32_t first = 520 + 300 * CDP__ELASTIC_INIT_TRIPS;
    cdp_elastic e;
    cdp_tcp_desc t;
    char job[CDP__ELASTIC_KEY];
    memset(&e, 0, sizeof e);
    e.store_ms = e.tcp.group.timeout_ms = 4000;
    e.desc.settle_ms = 200;
    cdp__elastic_init_desc(&e, &d, 0, job, &t);
    T_EQ(first, t.init_timeout_ms);
    T(cdp__elastic_trial_ms(&e, &d) > first);
    e.failures = d.cool = 4; /* later ones have no more than that */
    cdp__elastic_init_desc(&e, &d, 0, job, &t);
    T_EQ(first, t.init_timeout_ms);
    m.round_trip_ms = 0;
    cdp__elastic_init_desc(&e, &d, 0, job, &t);
    T_EQ(4000, t.init_timeout_ms);
    T(cdp__elastic_trial_ms(&e, &d) <= 8000);
}

static char time_warning[300];
static void keep_warning(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)rank;
    (void)user;
    if (level == CDP_LOG_WARN) cdp__format(time_warning, sizeof time_warning, "%s", text);
}

TEST(a_timeout_of_few_round_trips_is_warned_of) {
    cdp_elastic e;
    memset(&e, 0, sizeof e);
    e.tcp.group.logger.func = keep_warning;
    e.tcp.group.timeout_ms = 3000;
    e.round_trip_ns = 300 * CDP__MS;
    cdp__elastic_warn_of_time(&e);
    T(!time_warning[0]);
    e.tcp.group.timeout_ms = 2999;
    cdp__elastic_warn_of_time(&e);
    T_TEXT("timeout_ms of tcp->group is 2999 ms, and a round trip to the store takes 300 ms",
        time_warning);
    T_TEXT("make it at least 3000", time_warning);
}

/* Processes 1, 2 and 3 ask. Then number 9 ends and comes again before each attempt, and no store
   says that it has ended: the others are tried all the same, again and again. */
TEST(a_newcomer_that_starts_again_and_again_keeps_no_other_out) {
    static cdp__elastic_ticket tickets[400];
    static cdp__elastic_member members[401];
    cdp__elastic_decision none = {.epoch = 3}, d = {.members = members};
    cdp__elastic_view v = {.old = &none, .tickets = tickets};
    uint32_t tried[10] = {0};
    for (v.ticket_count = 3; v.ticket_count < 400; ++v.ticket_count) {
        const uint32_t turn = v.ticket_count - 3;
        for (uint32_t i = v.ticket_count == 3 ? 0 : v.ticket_count - 1; i < v.ticket_count; ++i) {
            tickets[i].untried = tickets[i].asks = true;
            tickets[i].id[0] = (uint8_t)(i < 3 ? i + 1 : 9);
        }
        T(cdp__elastic_draw_trial(&v, true, turn, &d));
        T_EQ(1, d.size);
        ++tried[members[0].id[0]];
    }
    for (uint32_t i = 1; i <= 3; ++i)
        test_check(tried[i] >= 15, __FILE__, __LINE__, "%u was tried %u times", i, tried[i]);
    T(tried[9] >= 150); /* nor do they keep it out */
    T(cdp__elastic_draw_trial(&v, false, 0, &d));
    T_EQ(399, d.size); /* together */
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
    tickets[0].ended = tickets[2].ended = tickets[3].ended = true; /* below the minimum again */
    T(!cdp__elastic_founds(&v, tickets[1].id, 1000, 200));
    tickets[3].ended = false;
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

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_ticket_tells_the_round_trip_and_an_arrival_whom_it_blames",
            a_ticket_tells_the_round_trip_and_an_arrival_whom_it_blames, 10},
        {"decisions_carry_the_round_trips_of_their_members",
            decisions_carry_the_round_trips_of_their_members, 10},
        {"members_of_large_jobs_look_less_often_who_is_there",
            members_of_large_jobs_look_less_often_who_is_there, 10},
        {"who_looks_for_newcomers_sees_trials_too", who_looks_for_newcomers_sees_trials_too, 10},
        {"probes_over_long_round_trips_say_nothing_about_the_link",
            probes_over_long_round_trips_say_nothing_about_the_link, 5},
        {"addresses_that_come_when_an_epoch_has_ended_are_freed",
            addresses_that_come_when_an_epoch_has_ended_are_freed, 5},
        {"the_group_of_a_rehearsal_lives_until_a_later_one_was_shown",
            the_group_of_a_rehearsal_lives_until_a_later_one_was_shown, 5},
        {"a_rehearsal_that_failed_is_repeated", a_rehearsal_that_failed_is_repeated, 5},
        {"jobs_with_long_names_meet_at_places_of_their_own",
            jobs_with_long_names_meet_at_places_of_their_own, 5},
        {"questions_of_other_newcomers_are_told_apart", questions_of_other_newcomers_are_told_apart,
            10},
        {"a_first_attempt_to_connect_has_its_round_trips",
            a_first_attempt_to_connect_has_its_round_trips, 10},
        {"a_timeout_of_few_round_trips_is_warned_of", a_timeout_of_few_round_trips_is_warned_of,
            10},
        {"a_newcomer_that_starts_again_and_again_keeps_no_other_out",
            a_newcomer_that_starts_again_and_again_keeps_no_other_out, 10},
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
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
