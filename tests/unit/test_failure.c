/* Who is to blame, in short lists of events: what tests/sim/failure.c does not model, since a rank
   there has always finished starting. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "test.h"

#define EDGES 4u

typedef struct side { /* one rank */
    cdp__failure f;
    cdp__failure_edge edges[EDGES];
    cdp__failure_waiter waiters[EDGES];
    cdp__failure_report wills[EDGES];
    cdp__failure_domain world;
} side;

static void side_make(side *s, uint32_t rank, uint32_t world_size) {
    memset(s, 0, sizeof *s);
    s->f.rank = rank;
    s->f.world_size = world_size;
    s->f.edge_room = s->f.waiter_room = s->f.report_room = EDGES;
    s->f.edges = s->edges;
    s->f.waiters = s->waiters;
    s->f.reports = s->wills;
    s->world.channel = 1;
}

static cdp__failure_event event_of(cdp__failure_event_type type, side *s) {
    cdp__failure_event v;
    memset(&v, 0, sizeof v);
    v.type = type;
    v.domain = s && type < CDP__FAILURE_GROUP_EVENTS ? &s->world : NULL;
    v.time_ns = 1000;
    return v;
}

static cdp__position place_at(uint64_t channel, uint64_t seq) {
    cdp__position at;
    memset(&at, 0, sizeof at);
    at.channel = channel;
    at.seq = seq;
    return at;
}

static cdp__failure_record record_of(cdp_status status, int32_t peer, cdp__position at) {
    cdp__failure_record r;
    memset(&r, 0, sizeof r);
    r.status = status;
    r.peer = r.end.named = peer;
    r.end.last.waiter = r.end.last.target = -1;
    r.at = at;
    r.timeout_ms = 1000;
    return r;
}

/* Rank 3 started late, and has lost rank 2, which had given up; then it reads that rank 0 gave up
   waiting for rank 3. That is no chain of waits that goes on to rank 2. */
TEST(a_rank_that_could_not_start_ends_no_chain) {
    cdp__failure_record lost = record_of(CDP_ERR_PEER_LOST, 2, place_at(1, 1)), said;
    cdp__failure_event v;
    side s;
    side_make(&s, 3, 4);
    v = event_of(CDP__FAILURE_OBSERVED, &s);
    v.record = &lost;
    T_EQ(0, cdp__failure_step(&s.f, &v));
    cdp__failure_plain(&said, CDP_ERR_TIMEOUT, 0, 3, "still waiting for rank 3");
    v = event_of(CDP__FAILURE_REPORTED, &s);
    v.record = &said;
    T_EQ(CDP__FAILURE_PUBLISH, cdp__failure_step(&s.f, &v));
    T_EQ(3, s.world.record.end.named);
    T_EQ(0, s.world.record.corrections);
}

/* What rank `rank` answers when it is told that `target`, which does not answer, waits for rank 0
   to finish starting. */
static cdp__endpoint guessed(uint32_t rank, uint32_t target, bool passed) {
    const cdp__position at = place_at(1, 1);
    cdp__failure_event v;
    side s;
    side_make(&s, rank, 5);
    v = event_of(CDP__FAILURE_BLOCKED, &s);
    v.at = at;
    v.from = 4;
    v.caller = true;
    (void)cdp__failure_step(&s.f, &v);
    v = event_of(CDP__FAILURE_ANSWER, &s);
    v.at = at;
    v.from = 4;
    v.serial = 1;
    v.passed = passed;
    v.end.named = 0;
    v.end.why = CDP__WHY_AWAITED;
    v.end.last.waiter = 3;
    v.end.last.target = (int32_t)target;
    v.end.last.at = at;
    (void)cdp__failure_step(&s.f, &v);
    return s.edges[0].end;
}

/* Rank 3 does not hear from rank 2, and takes it for a rank that waits for rank 0 at its start. */
TEST(a_guess_ends_where_it_is_known_to_be_wrong) {
    cdp__endpoint end = guessed(1, 2, false); /* it cannot know better */
    T_EQ(0, end.named);
    T_EQ(CDP__WHY_AWAITED, end.why);
    end = guessed(0, 2, false); /* this one has finished: so it is no circle */
    T_EQ(2, end.named);
    T_EQ(CDP__WHY_SILENT, end.why);
    end = guessed(2, 2, true); /* has done its part for rank 3: the link is cut */
    T_EQ(3, end.named);
    T_EQ(CDP__WHY_SENT, end.why);
}

/* Rank 0 waits for rank 1 until its deadline; that comes late, and then rank 2 is lost. */
TEST(a_loss_behind_a_late_message_is_named) {
    cdp__failure_record late = record_of(CDP_ERR_TIMEOUT, 1, place_at(1, 1)),
                        lost = record_of(CDP_ERR_PEER_LOST, 2, place_at(1, 1));
    cdp__failure_event v;
    side s;
    side_make(&s, 0, 3);
    v = event_of(CDP__FAILURE_OBSERVED, &s);
    v.record = &late;
    T_EQ(0, cdp__failure_step(&s.f, &v));
    v.record = &lost; /* it still waits for rank 1: the timeout stays */
    T_EQ(0, cdp__failure_step(&s.f, &v));
    T_EQ(CDP_ERR_TIMEOUT, s.world.record.status);
    v = event_of(CDP__FAILURE_MOVING, NULL);
    v.at = place_at(1, 1);
    v.at.round = 1;
    (void)cdp__failure_step(&s.f, &v);
    v = event_of(CDP__FAILURE_OBSERVED, &s);
    v.record = &lost;
    T_EQ(0, cdp__failure_step(&s.f, &v));
    T_EQ(CDP_ERR_PEER_LOST, s.world.record.status);
    v = event_of(CDP__FAILURE_TIMER, &s);
    v.time_ns = s.world.due_ns;
    T_EQ(CDP__FAILURE_PUBLISH, cdp__failure_step(&s.f, &v));
    T_EQ(2, s.world.record.end.named);
}

/* Rank 0 of 4 waits for rank 1, and its deadline has passed. */
static void late_for_rank_1(side *s, cdp__failure_record *late) {
    cdp__failure_event v;
    side_make(s, 0, 4);
    *late = record_of(CDP_ERR_TIMEOUT, 1, place_at(1, 1));
    v = event_of(CDP__FAILURE_OBSERVED, s);
    v.record = late;
    T_EQ(0, cdp__failure_step(&s->f, &v));
    T_EQ(CDP__FAILURE_SETTLING, s->world.state);
}

/* Rank 1 answers the last question about the wait: `named` keeps it waiting. */
static void answers(side *s, int32_t named, cdp__why why) {
    cdp__failure_event v = event_of(CDP__FAILURE_ANSWER, s);
    v.from = 1;
    v.at = s->edges[0].at;
    v.serial = s->edges[0].serial;
    v.end.named = v.end.last.target = named;
    v.end.why = (uint8_t)why;
    v.end.last.waiter = 1;
    v.end.last.at = v.at;
    (void)cdp__failure_step(&s->f, &v);
}

/* The late operation goes on to another wait for rank 1. */
static void waits_again(side *s) {
    cdp__failure_event v = event_of(CDP__FAILURE_BLOCKED, s);
    v.at = place_at(1, 1);
    v.at.round = 1;
    v.from = 1;
    v.caller = true;
    (void)cdp__failure_step(&s->f, &v);
}

static void looks(side *s, uint64_t time_ns) {
    cdp__failure_event v = event_of(CDP__FAILURE_TIMER, s);
    v.time_ns = time_ns;
    (void)cdp__failure_step(&s->f, &v);
}

/* When settling is about to end, rank 1 hears that rank 3 is silent, too: what kept it waiting
   until the deadline was rank 2. */
TEST(the_first_silent_rank_stays_to_blame) {
    cdp__failure_record late;
    side s;
    late_for_rank_1(&s, &late);
    answers(&s, 2, CDP__WHY_SILENT);
    looks(&s, 1000);
    answers(&s, 3, CDP__WHY_SILENT);
    looks(&s, s.world.due_ns);
    T_EQ(CDP__FAILURE_REPORTING, s.world.state);
    T_EQ(2, s.world.record.end.named);
    /* but a rank that answers after all is not to blame */
    late_for_rank_1(&s, &late);
    answers(&s, 2, CDP__WHY_SILENT);
    looks(&s, 1000);
    answers(&s, 3, CDP__WHY_BUSY);
    looks(&s, s.world.due_ns);
    T_EQ(3, s.world.record.end.named);
}

/* The wait that lasted until the deadline is over, and its end is known. Rank 1 does not answer
   about the next wait in time: it is not to blame for that. */
TEST(the_wait_behind_the_late_one_is_not_blamed) {
    cdp__failure_record late;
    uint32_t looked;
    side s;
    for (looked = 0; looked < 2; ++looked) {
        late_for_rank_1(&s, &late);
        answers(&s, 2, CDP__WHY_BUSY);
        looks(&s, 1000);
        waits_again(&s);
        if (looked) looks(&s, 1001); /* while there is time to ask */
        looks(&s, s.world.due_ns);
        T_EQ(CDP__FAILURE_REPORTING, s.world.state);
        T_EQ(2, s.world.record.end.named);
    }
}

/* Without an answer about the first wait, the next one is asked about, and decides. */
TEST(the_wait_behind_an_unexplained_one_is_asked_about) {
    cdp__failure_record late;
    side s;
    late_for_rank_1(&s, &late);
    looks(&s, 1000);
    s.edges[0].ask = false; /* that question was sent */
    waits_again(&s);
    looks(&s, 1001);
    T(s.edges[0].ask && s.edges[0].probe == 4);
    answers(&s, 2, CDP__WHY_BUSY);
    looks(&s, 1002);
    looks(&s, s.world.due_ns);
    T_EQ(2, s.world.record.end.named);
    T_EQ(1, s.world.record.at.round);
}

/* Rank `from` failed in a group of its own, for rank `named`. */
static void leaves_will(side *s, uint32_t from, int32_t named, uint64_t time_ns) {
    cdp__failure_record r = record_of(CDP_ERR_PEER_LOST, named, place_at(9, 1));
    cdp__failure_event v = event_of(CDP__FAILURE_REPORTED, NULL);
    r.observer = (int32_t)from;
    v.from = from;
    v.record = &r;
    v.time_ns = time_ns;
    (void)cdp__failure_step(&s->f, &v);
}

/* A receive from any rank has lost all others, rank 2 first. Of the wills that come while that is
   settled, the one of rank 2 explains it. */
TEST(of_all_who_are_gone_the_first_is_asked) {
    cdp__failure_record lost = record_of(CDP_ERR_PEER_LOST, -1, place_at(1, 1));
    cdp__failure_event v;
    side s;
    side_make(&s, 0, 5);
    lost.end.named = 2;
    v = event_of(CDP__FAILURE_OBSERVED, &s);
    v.record = &lost;
    T_EQ(0, cdp__failure_step(&s.f, &v));
    leaves_will(&s, 1, 4, 1001);
    leaves_will(&s, 2, 3, 1002);
    looks(&s, s.world.due_ns);
    T_EQ(CDP__FAILURE_REPORTING, s.world.state);
    T_EQ(3, s.world.record.end.named);
}

/* Rank 1 is gone, and so is rank 0 with its store: which of them went first is not known. A last
   will that rank 2 left just before explains it. */
TEST(a_recent_will_explains_two_losses) {
    cdp__failure_record lost = record_of(CDP_ERR_PEER_LOST, 1, place_at(1, 1));
    cdp__failure_event v;
    side s;
    side_make(&s, 3, 5);
    leaves_will(&s, 2, 4, 999);
    v = event_of(CDP__FAILURE_OBSERVED, &s);
    v.record = &lost;
    T_EQ(0, cdp__failure_step(&s.f, &v));
    v = event_of(CDP__FAILURE_STARTING, &s);
    v.from = 1;
    v.end.named = -1;
    v.end.why = CDP__WHY_FIRST;
    T_EQ(0, cdp__failure_step(&s.f, &v));
    T_EQ(CDP__WHY_FIRST, s.world.record.end.why);
    looks(&s, s.world.due_ns);
    T_EQ(CDP__FAILURE_REPORTING, s.world.state);
    T_EQ(4, s.world.record.end.named);
}

/* Rank 2 fails in a group of some ranks, says so, and leaves. Its part of an operation that rank 3
   begins then had come before: that does not prove that rank 2 goes on. Its part of a much later
   operation does. After the time that it takes to leave, the will says nothing any more. */
TEST(what_came_before_a_failure_does_not_outlast_it) {
    cdp__failure_record failed = record_of(CDP_ERR_NOMEM, -1, place_at(7, 1)), lost;
    cdp__failure_event v;
    for (uint32_t k = 0; k < 3; ++k) {
        const bool late = k > 0;
        side s;
        side_make(&s, 3, 5);
        failed.observer = 2;
        v = event_of(CDP__FAILURE_REPORTED, NULL);
        v.record = &failed;
        v.from = 2;
        (void)cdp__failure_step(&s.f, &v);
        v = event_of(CDP__FAILURE_CONTINUED, NULL);
        v.from = 2;
        v.begun_ns = k == 1 ? 1000 * CDP__MS : 2000;
        (void)cdp__failure_step(&s.f, &v);
        lost = record_of(CDP_ERR_PEER_LOST, 2, place_at(1, 2));
        v = event_of(CDP__FAILURE_OBSERVED, &s);
        v.record = &lost;
        if (k == 2) v.time_ns = 1000 * CDP__MS;
        T_EQ(late ? 0 : CDP__FAILURE_PUBLISH, cdp__failure_step(&s.f, &v));
        T_EQ(late ? CDP_ERR_PEER_LOST : CDP_ERR_NOMEM, s.world.record.status);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_rank_that_could_not_start_ends_no_chain", a_rank_that_could_not_start_ends_no_chain,
            10},
        {"a_guess_ends_where_it_is_known_to_be_wrong", a_guess_ends_where_it_is_known_to_be_wrong,
            10},
        {"a_loss_behind_a_late_message_is_named", a_loss_behind_a_late_message_is_named, 10},
        {"the_first_silent_rank_stays_to_blame", the_first_silent_rank_stays_to_blame, 10},
        {"the_wait_behind_the_late_one_is_not_blamed", the_wait_behind_the_late_one_is_not_blamed,
            10},
        {"the_wait_behind_an_unexplained_one_is_asked_about",
            the_wait_behind_an_unexplained_one_is_asked_about, 10},
        {"of_all_who_are_gone_the_first_is_asked", of_all_who_are_gone_the_first_is_asked, 10},
        {"a_recent_will_explains_two_losses", a_recent_will_explains_two_losses, 10},
        {"what_came_before_a_failure_does_not_outlast_it",
            what_came_before_a_failure_does_not_outlast_it, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
