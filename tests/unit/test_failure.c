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
    cdp__failure_will wills[EDGES];
    cdp__failure_domain world;
} side;

static void side_make(side *s, uint32_t rank, uint32_t world_size) {
    memset(s, 0, sizeof *s);
    s->f.rank = rank;
    s->f.world_size = world_size;
    s->f.edge_room = s->f.waiter_room = s->f.will_room = EDGES;
    s->f.edges = s->edges;
    s->f.waiters = s->waiters;
    s->f.wills = s->wills;
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

static cdp__place place_at(uint64_t channel, uint64_t seq) {
    cdp__place at;
    memset(&at, 0, sizeof at);
    at.channel = channel;
    at.seq = seq;
    return at;
}

static cdp__failure_record record_of(cdp_status status, int32_t peer, cdp__place at) {
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
    v = event_of(CDP__FAILURE_SEEN, &s);
    v.record = &lost;
    T_EQ(0, cdp__failure_step(&s.f, &v));
    cdp__failure_plain(&said, CDP_ERR_TIMEOUT, 0, 3, "still waiting for rank 3");
    v = event_of(CDP__FAILURE_TOLD, &s);
    v.record = &said;
    T_EQ(CDP__FAILURE_REPORT, cdp__failure_step(&s.f, &v));
    T_EQ(3, s.world.record.end.named);
    T_EQ(0, s.world.record.corrections);
}

/* What rank `rank` answers when it is told that `target`, which does not answer, waits for rank 0
   to finish starting. */
static cdp__endpoint guessed(uint32_t rank, uint32_t target, bool passed) {
    const cdp__place at = place_at(1, 1);
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
    v = event_of(CDP__FAILURE_SEEN, &s);
    v.record = &late;
    T_EQ(0, cdp__failure_step(&s.f, &v));
    v.record = &lost; /* it still waits for rank 1: the timeout stays */
    T_EQ(0, cdp__failure_step(&s.f, &v));
    T_EQ(CDP_ERR_TIMEOUT, s.world.record.status);
    v = event_of(CDP__FAILURE_MOVING, NULL);
    v.at = place_at(1, 1);
    v.at.round = 1;
    (void)cdp__failure_step(&s.f, &v);
    v = event_of(CDP__FAILURE_SEEN, &s);
    v.record = &lost;
    T_EQ(0, cdp__failure_step(&s.f, &v));
    T_EQ(CDP_ERR_PEER_LOST, s.world.record.status);
    v = event_of(CDP__FAILURE_TIMER, &s);
    v.time_ns = s.world.due_ns;
    T_EQ(CDP__FAILURE_REPORT, cdp__failure_step(&s.f, &v));
    T_EQ(2, s.world.record.end.named);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_rank_that_could_not_start_ends_no_chain", a_rank_that_could_not_start_ends_no_chain,
            10},
        {"a_guess_ends_where_it_is_known_to_be_wrong", a_guess_ends_where_it_is_known_to_be_wrong,
            10},
        {"a_loss_behind_a_late_message_is_named", a_loss_behind_a_late_message_is_named, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
