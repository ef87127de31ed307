/* test_hostile.c - what a channel does when the bytes of a peer are wrong, late or cut short. A
   transport hands out bytes that the test has written; this is rank 0 of 3. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include "wire.h"

/* How many bytes of long bodies have this value. */
static uint64_t sent_bytes(const wire *w, uint32_t peer, uint8_t value) {
    const line *l = &w->line[peer];
    uint64_t count = 0;
    cdp__head h;
    for (uint64_t at = 0; at + CDP__HEAD_BYTES <= l->out_bytes; at += CDP__HEAD_BYTES + h.bytes) {
        if (!T(cdp__head_decode(l->out + at, &h))) return 0;
        for (uint64_t i = 0; h.bytes > 1000 && i < h.bytes; ++i)
            count += l->out[at + CDP__HEAD_BYTES + i] == value;
    }
    return count;
}

/* ---- a channel whose callbacks count ---- */

typedef struct seen {
    uint64_t got[3], offers[3], handle[3], credits, released, fetched;
    uint32_t lost[3];
    cdp_status released_as, fetched_as;
    bool wrong;
} seen;

static void deliver(void *user, const cdp_channel_message *m) {
    seen *s = (seen *)user;
    volatile uint8_t sum = 0;
    if (m->peer == 0 || m->peer > 2) {
        s->wrong = true;
        return;
    }
    ++*(m->handle ? &s->offers[m->peer] : &s->got[m->peer]);
    if (s->lost[m->peer]) s->wrong = true;
    if (m->handle) {
        s->handle[m->peer] = m->handle;
        if (m->body || !m->bytes) s->wrong = true;
        return;
    }
    if (!m->body != !m->bytes) s->wrong = true;
    for (uint64_t i = 0; i < m->bytes && m->body; ++i)
        sum = (uint8_t)(sum + ((const uint8_t *)m->body)[i]);
}
static void lost(void *user, uint32_t peer, const cdp_error *why) {
    (void)why;
    ++((seen *)user)->lost[peer];
}
static void credit(void *user, uint32_t peer) {
    (void)peer;
    ++((seen *)user)->credits;
}
static void released(void *user, uint32_t peer, uint64_t handle, cdp_status st) {
    (void)peer;
    (void)handle;
    ++((seen *)user)->released;
    ((seen *)user)->released_as = st;
}
static void fetched(void *user, uint32_t peer, uint64_t handle, cdp_status st) {
    (void)peer;
    (void)handle;
    ++((seen *)user)->fetched;
    ((seen *)user)->fetched_as = st;
}

static cdp_channel *channel(cdp_group *g, seen *s) {
    cdp_channel *c = NULL;
    const cdp_channel_desc d = {.group = g,
        .number = 1,
        .user = s,
        .deliver = deliver,
        .lost = lost,
        .credit = credit,
        .released = released,
        .fetched = fetched};
    memset(s, 0, sizeof *s);
    OK(cdp_channel_open(&d, &c));
    return c;
}

static cdp__head message(
    const cdp_channel *c, uint8_t what, uint64_t a, uint64_t b, uint32_t bytes) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_DATA;
    h.kind = CDP_COLL_SEND;
    h.channel = c->id;
    h.dtype = what;
    h.seq = a;
    h.count = b;
    h.bytes = bytes;
    return h;
}

static uint8_t bulk[CDP_CHANNEL_BODY_MAX];

/* ---- the tests ---- */

/* A FAILURE whose stream goes while it arrives leaves nothing behind for the next. */
TEST(a_failure_cut_short) {
    static const uint32_t pair[2] = {0, 1};
    uint8_t text[CDP__FAILURE_MAX] = {0};
    wire w;
    cdp_group *g = world(&w), *sub = NULL, *next = NULL;
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_FAILURE;
    h.bytes = CDP__FAILURE_MAX;
    OK(cdp_group_new(g, pair, 2, &sub));
    h.channel = sub->channel;
    feed_head(&w, 1, h);
    feed(&w, 1, text, CDP__FAILURE_MAX - 10);
    T_EQ(0, cdp__port_pump(g->w, 1, NULL));
    T_EQ(CDP__FAILURE_MAX - 10, g->w->ports[1].failure_got);
    cdp_group_destroy(sub);
    feed(&w, 1, text, 10);
    OK(cdp_group_new(g, pair, 2, &next));
    h.channel = next->channel;
    feed_head(&w, 1, h);
    feed(&w, 1, text, CDP__FAILURE_MAX - 1);
    T_EQ(0, cdp__port_pump(g->w, 1, NULL));
    T_EQ(CDP__FAILURE_MAX - 1, g->w->ports[1].failure_got);
    cdp_group_destroy(next);
    world_end(&w, g);
}

/* Memory for bodies of control messages is refused. */
static void *no_room_for_a_body(void *user, uint64_t bytes) {
    (void)user;
    return bytes == CDP__FAILURE_MAX ? NULL : malloc(bytes);
}

/* A peer that waits only asks. Where there is no memory for its question, or for its answer, both
   are dropped, and the messages after them arrive. */
TEST(a_question_without_memory_is_dropped) {
    static const uint8_t body[100] = {0};
    wire w;
    seen s;
    cdp_group *g = world_with_clock(&w, false);
    cdp_channel *c = channel(g, &s);
    cdp__head h = message(c, CDP__CHANNEL_INLINE, 0, 0, sizeof body);
    w.os.alloc = no_room_for_a_body;
    for (uint8_t type = CDP__MESSAGE_WAIT; type <= CDP__MESSAGE_ENDPOINT; ++type) {
        h.type = type;
        feed_head(&w, 1, h);
        feed(&w, 1, body, sizeof body);
    }
    h.type = CDP__MESSAGE_DATA;
    feed_head(&w, 1, h);
    feed(&w, 1, body, sizeof body);
    OK(polled(g));
    T_EQ(1, s.got[1]);
    T_EQ(0, s.lost[1]);
    cdp_channel_close(c);
    world_end(&w, g);
}

/* Messages that wait for a link which is always busy take as much memory as waits at once. */
TEST(a_busy_link_needs_bounded_memory) {
    wire w;
    cdp_group *g = world(&w);
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_DATA;
    h.bytes = 1000;
    w.piece = UINT64_MAX;
    for (uint32_t i = 0; i < 5; ++i)
        T(cdp__control_add(g->w, 1, &h, bulk));
    for (uint32_t i = 0; i < 20000; ++i) {
        cdp__port *port = &g->w->ports[1];
        T(cdp__control_add(g->w, 1, &h, bulk));
        port->control_at += CDP__HEAD_BYTES + h.bytes; /* as if the link had taken one */
    }
    T(g->w->ports[1].control_room <= 64 * 1024);
    world_end(&w, g);
}

/* An offer is answered with its handle, so it has one, and a length. */
TEST(an_offer_without_a_handle) {
    for (uint32_t i = 0; i < 2; ++i) {
        uint8_t body[CDP__REMOTE_BYTES] = {0};
        wire w;
        seen s;
        cdp_group *g = world(&w);
        cdp_channel *c = channel(g, &s);
        body[8 * i] = 5;
        feed_head(&w, 1, message(c, CDP__CHANNEL_OFFER, 0, 0, sizeof body));
        feed(&w, 1, body, sizeof body);
        OK(polled(g));
        T_EQ(0, s.got[1] + s.offers[1]);
        T_EQ(1, s.lost[1]);
        T_EQ(0, s.lost[2]);
        cdp_channel_close(c);
        world_end(&w, g);
    }
}

/* A peer that this rank has given up is told, lest it wait for what will never come. */
TEST(a_peer_that_is_given_up_is_told) {
    wire w;
    seen s;
    cdp_group *g = world(&w);
    cdp_channel *c = channel(g, &s);
    feed_head(&w, 1, message(c, CDP__CHANNEL_FETCH, 17, 5, 0));
    OK(polled(g));
    OK(polled(g));
    T_EQ(1, s.lost[1]);
    T_EQ(1, sent_of(&w, 1, CDP__MESSAGE_LEAVE));
    T_EQ(0, sent_of(&w, 2, CDP__MESSAGE_LEAVE));
    cdp_channel_close(c);
    world_end(&w, g);
}

/* A body is under way when its receiver is given up: it ends once, nothing of it is used again,
   and the link is free for others. */
TEST(a_body_under_way_ends_with_its_rank) {
    static uint8_t body[CDP_CHANNEL_BODY_MAX];
    const cdp_channel_message m = {1, 0, 0, 0, 0, body, sizeof body, 0};
    const cdp_channel_message small = {1, 0, 0, 0, 0, NULL, 0, 0};
    wire w;
    seen s;
    uint64_t handle;
    cdp_group *g = world(&w);
    cdp_channel *c = channel(g, &s);
    memset(body, 7, sizeof body);
    OK(cdp_channel_offer(c, &m, &handle));
    feed_head(&w, 1, message(c, CDP__CHANNEL_FETCH, handle, sizeof body, 0));
    w.room = 5000; /* it is stuck in the middle */
    OK(polled(g));
    T_EQ(0, w.room);
    feed_head(&w, 1, message(c, CDP__CHANNEL_FETCH, 99, 5, 0));
    OK(polled(g));
    T_EQ(1, s.lost[1]);
    T_EQ(1, s.released);
    T_EQ(CDP_ERR_PEER_LOST, s.released_as);
    memset(body, 9, sizeof body); /* the caller's again */
    w.room = UINT64_MAX;
    OK(polled(g));
    OK(polled(g));
    T_EQ(1, s.released);
    T(!g->w->ports[1].tx_stream && !g->w->ports[1].tx_left);
    T_EQ(CDP_ERR_PEER_LOST, cdp_channel_send(c, &small));
    /* the message that was begun has its true bytes: its receiver may need no more than those */
    T_EQ(2, sent_of(&w, 1, CDP__MESSAGE_DATA));
    T_EQ(1, sent_of(&w, 1, CDP__MESSAGE_LEAVE));
    T_EQ(sizeof body, sent_bytes(&w, 1, 7));
    T_EQ(0, sent_bytes(&w, 1, 9));
    cdp_channel_close(c);
    world_end(&w, g);
}

/* A group ends while something of it is half sent: what was begun has its true bytes. */
static void half_sent(bool collective) {
    static const uint32_t pair[2] = {0, 1};
    static uint8_t data[CDP_CHANNEL_BODY_MAX];
    wire w;
    cdp_work work;
    cdp_group *g = world(&w), *sub = NULL;
    memset(data, 7, sizeof data);
    OK(cdp_group_new(g, pair, 2, &sub));
    w.room = 5000;
    if (collective)
        OK(cdp_broadcast_async(sub, data, sizeof data, CDP_DTYPE_U8, 0, &work));
    else
        OK(cdp_send_async(sub, data, sizeof data, CDP_DTYPE_U8, 1, 3, &work));
    (void)!polled(g);
    T_EQ(0, w.room);
    cdp_group_destroy(sub);
    memset(data, 9, sizeof data); /* the caller's again */
    w.room = UINT64_MAX;
    OK(polled(g));
    OK(polled(g));
    T(sent_bytes(&w, 1, 7) > 5000);
    T_EQ(0, sent_bytes(&w, 1, 9));
    T_EQ(0, sent_bytes(&w, 1, 0));
    world_end(&w, g);
}

TEST(a_group_ends_in_the_middle_of_a_message) {
    half_sent(false);
}
TEST(a_group_ends_in_the_middle_of_a_broadcast) {
    half_sent(true);
}

/* Whoever was told to wait is told when there is room, also if it has sent smaller messages since
   it asked. */
TEST(credit_is_asked_for_again) {
    cdp_channel_message m = {1, 0, 0, 0, 0, bulk, CDP_CHANNEL_BODY_MAX, 0};
    wire w;
    seen s;
    cdp__head h;
    cdp_group *g = world(&w);
    cdp_channel *c = channel(g, &s);
    while (cdp_channel_send(c, &m) == CDP_OK) {
    }
    T_EQ(1, sent_of(&w, 1, CDP__MESSAGE_ASK));
    m.bytes = 100000;
    while (c->streams[1].sent + m.bytes + 64 < CDP__WINDOW)
        OK(cdp_channel_send(c, &m));
    memset(&h, 0, sizeof h);
    h.type = CDP__MESSAGE_CREDIT;
    h.channel = c->id;
    h.ack = 1100000;
    feed_head(&w, 1, h);
    OK(polled(g));
    T_EQ(0, s.credits);
    T_EQ(2, sent_of(&w, 1, CDP__MESSAGE_ASK));
    h.ack = (uint32_t)c->streams[1].sent;
    feed_head(&w, 1, h);
    OK(polled(g));
    T_EQ(1, s.credits);
    cdp_channel_close(c);
    world_end(&w, g);
}

/* Answers to offers come in addition to a full window. */
TEST(answers_beyond_the_window) {
    enum {
        OFFERS = 200
    };
    const cdp_channel_message m = {1, 0, 0, 0, 0, bulk, 100, 0};
    wire w;
    seen s;
    uint64_t handle[OFFERS], left = CDP__WINDOW;
    cdp_group *g = world(&w);
    cdp_channel *c = channel(g, &s);
    for (uint32_t i = 0; i < OFFERS; ++i)
        OK(cdp_channel_offer(c, &m, &handle[i]));
    while (left) {
        const uint32_t bytes = (uint32_t)cdp__min(left - CDP__HEAD_BYTES, CDP_CHANNEL_BODY_MAX);
        feed_head(&w, 1, message(c, CDP__CHANNEL_INLINE, 0, 0, bytes));
        feed(&w, 1, bulk, bytes);
        left -= bytes + CDP__HEAD_BYTES;
    }
    for (uint32_t i = 0; i < OFFERS; ++i)
        feed_head(&w, 1, message(c, CDP__CHANNEL_REFUSE, handle[i], 0, 0));
    T_EQ(0, cdp__port_pump(g->w, 1, NULL)); /* the channel does not read, a callback is busy */
    T(!g->w->ports[1].broken);
    OK(polled(g));
    OK(polled(g));
    T_EQ(OFFERS, s.released);
    T_EQ(0, s.lost[1]);
    T_EQ(0, c->streams[1].slack);
    /* more than that is still refused */
    feed_head(&w, 1, message(c, CDP__CHANNEL_REFUSE, handle[0], 0, 0));
    OK(polled(g));
    OK(polled(g));
    T_EQ(1, s.lost[1]);
    cdp_channel_close(c);
    world_end(&w, g);
}

/* One channel that is closed does not make this rank forget the others. */
TEST(many_closed_streams_are_one_channel) {
    wire w;
    cdp_group *g = world(&w);
    for (uint32_t i = 0; i < 3 * CDP__CLOSED_KEPT; ++i)
        cdp__world_record_closed(g->w, 4711);
    T_EQ(1, g->w->closed_at);
    world_end(&w, g);
}

/* Random messages of rank 1, well-formed and not; rank 2 is honest: whatever comes, this rank
   lives, and neither rank 2 nor the group is lost unless the link of rank 1 is damaged. */
static uint64_t chance_at;
static uint32_t chance(uint32_t below) {
    chance_at = chance_at * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(chance_at >> 33) % below;
}

static void hostile_message(wire *w, cdp_channel *c, const uint64_t *handles) {
    static const uint32_t lengths[] = {0, 1, 15, 16, 17, 64, 4096, 100000, CDP_CHANNEL_BODY_MAX};
    const uint32_t r = chance(100);
    uint8_t what = (uint8_t)chance(5);
    uint32_t bytes = what == CDP__CHANNEL_INLINE ? lengths[chance(9)] : 0;
    uint64_t a = chance(3) ? handles[chance(4)] : chance(10);
    cdp__head h;
    if (what == CDP__CHANNEL_OFFER) bytes = CDP__REMOTE_BYTES;
    if (r < 5) bytes = lengths[chance(9)];
    h = message(c, what, a, chance(2) ? 5000 : chance(3), bytes);
    if (r == 6) h.type = (uint8_t)(1 + chance(9));
    if (r == 7) h.kind = (uint8_t)chance(20);
    if (r == 8) h.channel = cdp__channel_id(c->g, 1, 1);
    if (r == 9) h.channel ^= chance(8);
    if (r == 10) h.ack = chance(1u << 30);
    if (r == 11) h.bytes = chance(2) ? CDP_CHANNEL_BODY_MAX + 1 : 1u << 30;
    if (r == 12) what = 200;
    if (h.type == CDP__MESSAGE_FAILURE) h.bytes = chance(CDP__FAILURE_MAX + 1);
    if (h.type == CDP__MESSAGE_REMOTE) h.bytes = CDP__REMOTE_BYTES;
    if (cdp__type_is_control(h.type)) h.bytes = 0;
    feed_head(w, 1, h);
    bytes = (uint32_t)cdp__min(h.bytes, sizeof bulk);
    if (r == 13) bytes = chance(bytes + 1); /* and nothing more */
    for (uint32_t i = 0; i < cdp__min(bytes, 32); ++i)
        bulk[i] = (uint8_t)chance(i % 8 < 2 ? 256 : 1);
    feed(w, 1, bulk, bytes);
}

static void hostile_life(uint64_t seed) {
    static uint8_t room[CDP_CHANNEL_BODY_MAX];
    wire w;
    seen s;
    uint64_t handles[4] = {0}, offered = 0, asked = 0, honest = 0;
    cdp_group *g = world(&w);
    cdp_channel *c = channel(g, &s);
    chance_at = seed;
    for (uint32_t i = 0; i < 60; ++i) {
        const uint32_t what = chance(10);
        cdp_channel_message m = {1, 1, 2, 3, 4, bulk, 5000, 0};
        if (what < 5) hostile_message(&w, c, handles);
        if (what == 5) {
            feed_head(&w, 2, message(c, CDP__CHANNEL_INLINE, honest++, 0, 0));
        }
        if (what == 6 && cdp_channel_offer(c, &m, &handles[chance(4)]) == CDP_OK) ++offered;
        if (what == 7 && s.handle[1]
            && cdp_channel_fetch(c, 1, s.handle[1], room, sizeof room) == CDP_OK)
            ++asked;
        if (what == 8 && cdp_channel_send(c, &m) != CDP_OK)
            T(s.lost[1] || c->peers[1].lost || c->peers[1].starved);
        if (what == 9) w.piece = chance(3) ? chance(2000) : UINT64_MAX;
        if (chance(2)) (void)!cdp_poll(g, 0);
    }
    w.piece = 0;
    for (uint32_t i = 0; i < 4; ++i)
        (void)!polled(g);
    T_EQ(honest, s.got[2]);
    T_EQ(0, s.lost[2]);
    T(s.lost[1] <= 1);
    T(s.released <= offered && s.fetched <= asked);
    if (s.lost[1]) T(s.released == offered && s.fetched == asked);
    T(!s.wrong);
    cdp_channel_close(c);
    world_end(&w, g);
}

TEST(random_nonsense) {
    const char *lives = getenv("HOSTILE_LIVES"); /* for longer searches */
    const uint64_t n = lives ? strtoull(lives, NULL, 10) : 1000;
    for (uint64_t seed = 1; seed <= n && !test__now.failed_checks; ++seed) {
        hostile_life(seed);
        if (test__now.failed_checks) printf("seed %llu\n", (unsigned long long)seed);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_failure_cut_short", a_failure_cut_short, 60},
        {"a_question_without_memory_is_dropped", a_question_without_memory_is_dropped, 60},
        {"a_busy_link_needs_bounded_memory", a_busy_link_needs_bounded_memory, 60},
        {"an_offer_without_a_handle", an_offer_without_a_handle, 60},
        {"a_peer_that_is_given_up_is_told", a_peer_that_is_given_up_is_told, 60},
        {"a_body_under_way_ends_with_its_rank", a_body_under_way_ends_with_its_rank, 60},
        {"a_group_ends_in_the_middle_of_a_message", a_group_ends_in_the_middle_of_a_message, 60},
        {"a_group_ends_in_the_middle_of_a_broadcast", a_group_ends_in_the_middle_of_a_broadcast,
            60},
        {"credit_is_asked_for_again", credit_is_asked_for_again, 60},
        {"answers_beyond_the_window", answers_beyond_the_window, 60},
        {"many_closed_streams_are_one_channel", many_closed_streams_are_one_channel, 60},
        {"random_nonsense", random_nonsense, 300},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
