/* test_telling.c - which ranks a failure is told to, how often and for how long, and the timer of a
   channel. This is rank 0 of 3; the test holds the clock and the bytes of all links. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include "wire.h"

#define MS 1000000u

/* All that can happen at this time. */
static void happens(cdp_group *g) {
    for (uint32_t i = 0; i < 100; ++i)
        (void)!cdp_poll(g, 0);
}

static void later(wire *w, cdp_group *g, uint64_t ns) {
    w->now_ns += ns;
    happens(g);
}

/* How many records of failures rank 0 has sent to a peer on this channel; *r is the last one. */
static uint32_t told(const wire *w, uint32_t peer, uint64_t channel, cdp__failure_record *r) {
    const line *l = &w->line[peer];
    uint32_t count = 0;
    cdp__head h;
    for (uint64_t at = 0; at + CDP__HEAD_BYTES <= l->out_bytes; at += CDP__HEAD_BYTES + h.bytes) {
        if (!T(cdp__head_decode(l->out + at, &h))) return 0;
        if (h.type != CDP__MESSAGE_FAILURE || h.channel != channel) continue;
        ++count;
        T(cdp__failure_decode(l->out + at + CDP__HEAD_BYTES, h.bytes, 3, r));
    }
    return count;
}

static uint32_t told_of_world(const wire *w, uint32_t peer) {
    cdp__failure_record r;
    return told(w, peer, CDP__WORLD_CHANNEL, &r);
}

/* Rank `from` says that the group `channel` has failed for rank `named`. */
static void is_told(wire *w, uint32_t from, uint64_t channel, int32_t named) {
    uint8_t body[CDP__FAILURE_BYTES];
    cdp__failure_record r;
    cdp__head h;
    cdp__failure_plain(&r, CDP_ERR_PEER_LOST, (int32_t)from, named, "gone");
    r.domain = channel;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_FAILURE;
    h.channel = channel;
    h.bytes = cdp__failure_encode(&r, body);
    feed_head(w, from, h);
    feed(w, from, body, h.bytes);
}

/* A message to rank 1 is all that there was: rank 1 is told, rank 2 is not. */
TEST(who_got_a_message_is_told_once) {
    int32_t x = 1;
    wire w;
    cdp_work work;
    cdp_group *g = world_with_clock(&w, false);
    OK(cdp_send_async(g, &x, 1, CDP_DTYPE_I32, 1, 0, &work));
    happens(g);
    cdp_group_abort(g, "for a test");
    happens(g);
    T_EQ(1, told_of_world(&w, 1));
    T_EQ(0, told_of_world(&w, 2));
    later(&w, g, 10000ull * MS);
    T_EQ(1, told_of_world(&w, 1));
    T_EQ(0, told_of_world(&w, 2));
    world_end(&w, g);
}

/* Rank 1 says that rank 2 is gone, and rank 2 says that rank 1 is: the first is passed on, once. A
   rank that this one does not wait for is listened to when the wait has lasted a quarter of the
   timeout. */
TEST(what_is_told_first_is_passed_on_once) {
    cdp__failure_record r;
    int32_t x[3] = {1, 0, 0};
    wire w;
    cdp_work work;
    cdp_group *g = world_with_clock(&w, false);
    OK(cdp_broadcast_async(g, x, 1, CDP_DTYPE_I32, 0, &work)); /* to both */
    OK(cdp_allgather_async(g, NULL, x, 1, CDP_DTYPE_I32, &work));
    happens(g);
    is_told(&w, 1, CDP__WORLD_CHANNEL, 2);
    later(&w, g, 250 * MS);
    is_told(&w, 2, CDP__WORLD_CHANNEL, 1);
    happens(g);
    for (uint32_t p = 1; p < 3; ++p) {
        T_EQ(1, told(&w, p, CDP__WORLD_CHANNEL, &r));
        T_EQ(1, r.observer);
        T_EQ(2, r.end.named);
        T_EQ(1, r.hops);
    }
    later(&w, g, 10000ull * MS);
    T_EQ(1, told_of_world(&w, 1));
    T_EQ(1, told_of_world(&w, 2));
    world_end(&w, g);
}

/* A link that takes nothing keeps the caller's memory for CDP__REPORT_MS, and no longer. */
TEST(telling_ends_in_time) {
    static int32_t big[100000];
    wire w;
    cdp_work work;
    cdp_group *g = world_with_clock(&w, false);
    w.room = 5000; /* it is stuck in the middle */
    OK(cdp_send_async(g, big, 100000, CDP_DTYPE_I32, 1, 0, &work));
    happens(g);
    cdp_group_abort(g, "for a test");
    happens(g);
    later(&w, g, CDP__REPORT_MS * MS - 1);
    T_EQ(CDP_PENDING, cdp_work_test(work));
    later(&w, g, 1);
    T_EQ(CDP_ERR_ABORTED, cdp_work_test(work));
    w.room = UINT64_MAX; /* too late: the message was not completed, and nothing may follow it */
    later(&w, g, 10000ull * MS);
    T_EQ(5000, w.line[1].out_bytes);
    world_end(&w, g);
}

/* The rest of a message comes before the record, so that both can be read. */
TEST(a_message_is_completed_before_the_record) {
    static int32_t big[100000];
    wire w;
    cdp_work work;
    cdp_group *g = world_with_clock(&w, false);
    w.room = 5000;
    OK(cdp_send_async(g, big, 100000, CDP_DTYPE_I32, 1, 0, &work));
    happens(g);
    cdp_group_abort(g, "for a test");
    happens(g);
    later(&w, g, 20 * MS);
    T_EQ(5000, w.line[1].out_bytes);
    w.room = UINT64_MAX;
    happens(g);
    T_EQ(1, told_of_world(&w, 1));
    T(w.line[1].out_bytes > sizeof big);
    T_EQ(CDP_ERR_ABORTED, cdp_work_test(work));
    world_end(&w, g);
}

/* A rank that connects while others are told is told, too, and so is one that connects later, once.
   What was to be sent to that one before, and was not, is not sent: its memory is the caller's
   again. */
TEST(who_connects_late_is_told) {
    for (uint32_t late = 0; late < 6; ++late) {
        const uint64_t ms[3] = {20, CDP__REPORT_MS, 100 * CDP__REPORT_MS};
        int32_t x = 1;
        wire w;
        cdp_work work;
        cdp_group *g = world_with_clock(&w, true);
        w.linked[1] = true;
        w.room = 0;
        OK(cdp_send_async(g, &x, 1, CDP_DTYPE_I32, 1, 0, &work));
        if (late >= 3) OK(cdp_send_async(g, &x, 1, CDP_DTYPE_I32, 2, 0, &work));
        cdp_group_abort(g, "for a test");
        later(&w, g, ms[late % 3] * MS);
        T_EQ(0, told_of_world(&w, 2));
        w.room = UINT64_MAX;
        w.linked[2] = true;
        happens(g);
        T_EQ(1, told_of_world(&w, 2));
        if (late % 3) T_EQ(0, sent_of(&w, 2, CDP__MESSAGE_DATA));
        later(&w, g, 10000ull * MS);
        T_EQ(1, told_of_world(&w, 2));
        world_end(&w, g);
    }
}

/* A group of ranks 0 and 1 fails: rank 1 is told, and rank 2 gets the same as a last will, if it is
   connected. The world does not fail. */
TEST(others_get_a_last_will_once) {
    static const uint32_t pair[2] = {0, 1};
    for (uint32_t linked = 0; linked < 2; ++linked) {
        cdp__failure_record r;
        wire w;
        cdp_group *g = world_with_clock(&w, true), *sub = NULL;
        w.linked[1] = true;
        w.linked[2] = linked == 1;
        OK(cdp_group_new(g, pair, 2, &sub));
        cdp_group_abort(sub, "for a test");
        happens(g);
        later(&w, g, 10000ull * MS);
        T_EQ(1, told(&w, 1, sub->channel, &r));
        T_EQ(0, told_of_world(&w, 1));
        T_EQ(linked, told(&w, 2, CDP__WORLD_CHANNEL, &r));
        if (linked) T_EQ(sub->channel, r.domain);
        T_EQ(0, told(&w, 2, sub->channel, &r));
        T_EQ(CDP_OK, cdp_poll(g, 0));
        cdp_group_destroy(sub);
        world_end(&w, g);
    }
}

/* A FAILURE on a channel that this rank has closed, or has not opened yet, tells why the peer may
   leave soon. */
TEST(a_failure_of_a_group_that_is_not_open_is_a_last_will) {
    static const uint32_t pair[2] = {0, 1};
    for (uint32_t early = 0; early < 2; ++early) {
        const cdp__failure_report *will;
        uint64_t channel = 0x1234567;
        wire w;
        cdp_group *g = world_with_clock(&w, true), *sub = NULL;
        w.linked[1] = true;
        if (!early) {
            OK(cdp_group_new(g, pair, 2, &sub));
            channel = sub->channel;
            cdp_group_destroy(sub);
        }
        is_told(&w, 1, channel, 2);
        T(cdp__port_pump(g->w, 1, NULL) >= 0);
        T_EQ(CDP_OK, cdp_poll(g, 0));
        will = cdp__failure_find_report(&g->w->failure, 1);
        if (T(will != NULL)) T_EQ(2, will->record.end.named);
        world_end(&w, g);
    }
}

/* ---- the timer of a channel ---- */

typedef struct clock_side {
    cdp_channel *c;
    uint32_t calls;
    uint64_t again_ns; /* the callback sets the timer to this; 0: it does not */
} clock_side;

static void nothing(void *user, const cdp_channel_message *m) {
    (void)user;
    (void)m;
}
static void timer(void *user) {
    clock_side *s = (clock_side *)user;
    ++s->calls;
    if (s->again_ns) cdp_channel_timer(s->c, s->again_ns);
    s->again_ns = 0;
}

static cdp_group *with_timer(wire *w, clock_side *s) {
    cdp_group *g = world_with_clock(w, false);
    const cdp_channel_desc d = {
        .group = g, .number = 1, .user = s, .deliver = nothing, .timer = timer};
    memset(s, 0, sizeof *s);
    OK(cdp_channel_open(&d, &s->c));
    return g;
}

TEST(a_timer_fires_at_its_time_and_once) {
    wire w;
    clock_side s;
    cdp_group *g = with_timer(&w, &s);
    later(&w, g, 1000 * MS);
    T_EQ(0, s.calls);
    cdp_channel_timer(s.c, w.now_ns + 30 * MS);
    later(&w, g, 30 * MS - 1);
    T_EQ(0, s.calls);
    later(&w, g, 1);
    T_EQ(1, s.calls);
    later(&w, g, 1000 * MS);
    T_EQ(1, s.calls);
    cdp_channel_timer(s.c, w.now_ns - 1); /* that time has passed */
    happens(g);
    T_EQ(2, s.calls);
    cdp_channel_close(s.c);
    world_end(&w, g);
}

TEST(the_last_time_that_was_set_counts) {
    wire w;
    clock_side s;
    cdp_group *g = with_timer(&w, &s);
    cdp_channel_timer(s.c, w.now_ns + 30 * MS);
    cdp_channel_timer(s.c, w.now_ns + 60 * MS);
    later(&w, g, 59 * MS);
    T_EQ(0, s.calls);
    later(&w, g, 1 * MS);
    T_EQ(1, s.calls);
    cdp_channel_timer(s.c, w.now_ns + 30 * MS);
    cdp_channel_timer(s.c, UINT64_MAX);
    later(&w, g, 1000 * MS);
    T_EQ(1, s.calls);
    s.again_ns = w.now_ns + 50 * MS; /* and it may be set where it fires */
    cdp_channel_timer(s.c, w.now_ns + 20 * MS);
    later(&w, g, 20 * MS);
    T_EQ(2, s.calls);
    later(&w, g, 29 * MS);
    T_EQ(2, s.calls);
    later(&w, g, 1 * MS);
    T_EQ(3, s.calls);
    cdp_channel_timer(s.c, w.now_ns + 30 * MS);
    cdp_channel_close(s.c); /* no callback after that */
    later(&w, g, 1000 * MS);
    T_EQ(3, s.calls);
    world_end(&w, g);
}

/* A wait sleeps until the timer, not past it; without one, until its own end. */
TEST(a_wait_ends_with_the_timer) {
    wire w;
    clock_side s;
    cdp_group *g = with_timer(&w, &s);
    const uint64_t begin = w.now_ns;
    cdp_channel_timer(s.c, begin + 30 * MS);
    T_EQ(CDP_OK, cdp_channel_wait(s.c, 1000));
    T_EQ(1, s.calls);
    T_EQ(begin + 30 * MS, w.until_ns);
    T_EQ(begin + 30 * MS, w.now_ns);
    T_EQ(CDP_PENDING, cdp_channel_wait(s.c, 1000));
    T_EQ(begin + 1030 * MS, w.now_ns);
    T_EQ(1, s.calls);
    cdp_channel_close(s.c);
    world_end(&w, g);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"who_got_a_message_is_told_once", who_got_a_message_is_told_once, 10},
        {"what_is_told_first_is_passed_on_once", what_is_told_first_is_passed_on_once, 10},
        {"telling_ends_in_time", telling_ends_in_time, 10},
        {"a_message_is_completed_before_the_record", a_message_is_completed_before_the_record, 10},
        {"who_connects_late_is_told", who_connects_late_is_told, 10},
        {"others_get_a_last_will_once", others_get_a_last_will_once, 10},
        {"a_failure_of_a_group_that_is_not_open_is_a_last_will",
            a_failure_of_a_group_that_is_not_open_is_a_last_will, 10},
        {"a_timer_fires_at_its_time_and_once", a_timer_fires_at_its_time_and_once, 10},
        {"the_last_time_that_was_set_counts", the_last_time_that_was_set_counts, 10},
        {"a_wait_ends_with_the_timer", a_wait_ends_with_the_timer, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
