/* test_channel.c - ordered messages to each rank: order, bounded memory, offered bodies, ranks that
   are lost */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "worlds.h"

typedef struct side {
    cdp_channel *c;
    uint32_t rank;
    uint64_t got, bytes, next[RANKS_MAX], credits, released, fetched, lost, timers;
    uint64_t offered, handle, handle_bytes;
    cdp_status last_released, last_fetched;
    int32_t lost_peer;
    bool wrong;
} side;

/* What a callback wrote before it counted is seen by whoever has seen the count. */
static void count_one(uint64_t *count) {
    __atomic_add_fetch(count, 1, __ATOMIC_RELEASE);
}
static uint64_t counted(const uint64_t *count) {
    return __atomic_load_n(count, __ATOMIC_ACQUIRE);
}

static void deliver(void *user, const cdp_channel_message *m) {
    side *s = (side *)user;
    if (m->handle) {
        s->handle = m->handle;
        s->handle_bytes = m->bytes;
        if (m->body) s->wrong = true;
        count_one(&s->offered);
        return;
    }
    /* a counts the messages of a sender; the body holds b bytes of that number */
    if (m->a != s->next[m->peer]++ || m->bytes != m->b || m->kind != 7 || m->aux != m->peer)
        s->wrong = true;
    for (uint64_t i = 0; i < m->bytes; ++i)
        if (((const uint8_t *)m->body)[i] != (uint8_t)m->a) s->wrong = true;
    s->bytes += m->bytes;
    count_one(&s->got);
}

static void lost(void *user, uint32_t peer, const cdp_error *why) {
    side *s = (side *)user;
    s->lost_peer = (int32_t)peer;
    if (why->status != CDP_ERR_PEER_LOST) s->wrong = true;
    count_one(&s->lost);
}
static void credit(void *user, uint32_t peer) {
    (void)peer;
    count_one(&((side *)user)->credits);
}
static void released(void *user, uint32_t peer, uint64_t handle, cdp_status status) {
    side *s = (side *)user;
    (void)peer;
    (void)handle;
    s->last_released = status;
    count_one(&s->released);
}
static void fetched(void *user, uint32_t peer, uint64_t handle, cdp_status status) {
    side *s = (side *)user;
    (void)peer;
    (void)handle; /* the next offer may have come already */
    s->last_fetched = status;
    count_one(&s->fetched);
}
static void timer(void *user) {
    count_one(&((side *)user)->timers);
}

static bool side_open(side *s, cdp_group *g, uint32_t number) {
    const cdp_channel_desc d = {.group = g,
        .number = number,
        .user = s,
        .deliver = deliver,
        .lost = lost,
        .credit = credit,
        .released = released,
        .fetched = fetched,
        .timer = timer};
    memset(s, 0, sizeof *s);
    s->rank = cdp_rank(g);
    s->lost_peer = -1;
    return OK(cdp_channel_open(&d, &s->c));
}

/* Until `*count` is at least `want`. */
static bool side_wait(side *s, const uint64_t *count, uint64_t want) {
    const uint64_t until = test_until_ns(20000);
    while (counted(count) < want && test_now_ns() < until)
        (void)!cdp_channel_wait(s->c, 1000);
    return counted(count) >= want;
}

static uint8_t numbered[RANKS_MAX][300000];

static void send_numbered(side *s, uint32_t to, uint64_t number, uint64_t bytes) {
    const cdp_channel_message m = {to, 7, s->rank, number, bytes, numbered[s->rank], bytes, 0};
    cdp_status st;
    memset(numbered[s->rank], (int)(uint8_t)number, (size_t)bytes);
    while ((st = cdp_channel_send(s->c, &m)) == CDP_PENDING)
        (void)!cdp_channel_wait(s->c, 100);
    T_EQ(CDP_OK, st);
}

/* All to all, of all lengths, beside collectives of the same group. */
static void crossing(uint32_t rank, cdp_group *g) {
    static const uint64_t lengths[] = {0, 1, 100, 4096, 4097, 70000, 300000};
    side s;
    int32_t x = 1;
    uint64_t bytes = 0;
    if (!side_open(&s, g, 1)) return;
    for (uint32_t i = 0; i < 70; ++i) {
        for (uint32_t p = 0; p < 3; ++p)
            if (p != rank) send_numbered(&s, p, i, lengths[i % 7]);
        bytes += 2 * lengths[i % 7];
        if (i % 10 == 0) OK(cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_MAX));
    }
    T(side_wait(&s, &s.got, 140));
    T_EQ(bytes, s.bytes);
    T(!s.wrong);
    OK(cdp_barrier(g));
    cdp_channel_close(s.c);
    T_EQ(140, counted(&s.got));
}

TEST(messages_arrive_in_order_beside_collectives) {
    run(3, 20000, crossing);
}

/* What is under way is bounded: a sender is told to wait, and told when there is room. */
static void window(uint32_t rank, cdp_group *g) {
    side s;
    uint64_t taken = 0;
    OK(cdp_barrier(g));
    if (rank == 0) {
        const cdp_channel_message m = {1, 7, 0, 0, 100000, numbered[0], 100000, 0};
        cdp_channel_message next = m;
        if (!side_open(&s, g, 2)) return;
        for (next.a = 0; next.a < 200; ++next.a) {
            memset(numbered[0], (int)(uint8_t)next.a, 100000);
            if (cdp_channel_send(s.c, &next) != CDP_OK) break;
            taken += 100000;
        }
        /* the receiver has not opened the channel */
        T(taken <= CDP__WINDOW && taken + 200000 > CDP__WINDOW);
        T_EQ(0, counted(&s.credits));
        OK(cdp_barrier(g));
        T(side_wait(&s, &s.credits, 1));
        while (next.a < 200)
            send_numbered(&s, 1, next.a++, 100000);
    } else {
        OK(cdp_barrier(g));
        if (!side_open(&s, g, 2)) return;
        T(side_wait(&s, &s.got, 200));
        T(!s.wrong);
    }
    OK(cdp_barrier(g));
    cdp_channel_close(s.c);
}

TEST(what_is_under_way_is_bounded) {
    run(2, 20000, window);
}

/* Bodies that stay with the sender: fetched, in another order than offered, or refused. */
static void offers(uint32_t rank, cdp_group *g) {
    enum {
        BYTES = 6000000
    };
    static uint8_t from[BYTES], to[BYTES];
    side s;
    if (!side_open(&s, g, 3)) return;
    if (rank == 0) {
        cdp_channel_message m = {1, 1, 2, 3, 4, from, BYTES, 0};
        uint64_t handle[3];
        for (uint32_t i = 0; i < BYTES; ++i)
            from[i] = (uint8_t)(i * 7);
        for (uint32_t i = 0; i < 3; ++i) {
            m.bytes = i == 2 ? 10 : BYTES;
            OK(cdp_channel_offer(s.c, &m, &handle[i]));
            T(side_wait(&s, &s.released, i + 1));
            T_EQ(i == 1 ? CDP_ERR_ABORTED : CDP_OK, s.last_released);
        }
        T(handle[0] != handle[1]);
    } else {
        memset(to, 0, BYTES);
        for (uint32_t i = 0; i < 3; ++i) {
            const uint64_t bytes = i == 2 ? 10 : BYTES;
            uint64_t right = 0;
            T(side_wait(&s, &s.offered, i + 1));
            T_EQ(bytes, s.handle_bytes);
            if (i == 1) {
                OK(cdp_channel_refuse(s.c, 0, s.handle));
                continue;
            }
            OK(cdp_channel_fetch(s.c, 0, s.handle, to, bytes));
            T(side_wait(&s, &s.fetched, i / 2 + 1));
            T_EQ(CDP_OK, s.last_fetched);
            while (right < bytes && to[right] == (uint8_t)(right * 7))
                ++right;
            T_EQ(bytes, right);
            memset(to, 0, BYTES);
        }
    }
    T(!s.wrong);
    OK(cdp_barrier(g));
    cdp_channel_close(s.c);
}

TEST(offered_bodies) {
    run(2, 20000, offers);
}

/* A rank that closes its channel is lost to the others, which go on with each other, and so does
   the group. */
static void one_closes(uint32_t rank, cdp_group *g) {
    side s;
    int32_t x = 1;
    if (!side_open(&s, g, 4)) return;
    OK(cdp_barrier(g));
    if (rank == 2) {
        cdp_channel_close(s.c);
    } else {
        T(side_wait(&s, &s.lost, 1));
        T_EQ(2, s.lost_peer);
        const cdp_channel_message m = {2, 7, 0, 0, 0, NULL, 0, 0};
        T_EQ(CDP_ERR_PEER_LOST, cdp_channel_send(s.c, &m));
        T_TEXT("rank 2 is lost", cdp_last_error()->text);
        for (uint32_t i = 0; i < 20; ++i)
            send_numbered(&s, 1 - rank, i, 5000);
        T(side_wait(&s, &s.got, 20));
        T(!s.wrong);
        T_EQ(1, counted(&s.lost));
    }
    OK(cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T_EQ(3, x);
    OK(cdp_barrier(g));
    if (rank != 2) cdp_channel_close(s.c);
}

TEST(a_channel_loses_a_rank_and_goes_on) {
    run(3, 20000, one_closes);
}

/* A rank that leaves while an offer is open: the offer ends, with the rank's loss. */
static void leaves_with_an_offer(uint32_t rank, cdp_group *g) {
    static uint8_t data[100000];
    side s;
    if (!side_open(&s, g, 5)) return;
    if (rank == 0) {
        const cdp_channel_message m = {1, 1, 2, 3, 4, data, sizeof data, 0};
        uint64_t handle;
        OK(cdp_channel_offer(s.c, &m, &handle));
        T(side_wait(&s, &s.released, 1));
        T_EQ(CDP_ERR_PEER_LOST, s.last_released);
    } else {
        T(side_wait(&s, &s.offered, 1));
    }
    cdp_channel_close(s.c);
}

TEST(an_open_offer_ends_with_its_rank) {
    run(2, 20000, leaves_with_an_offer);
}

static void timers(uint32_t rank, cdp_group *g) {
    const uint64_t from = test_now_ns();
    side s;
    (void)rank;
    if (!side_open(&s, g, 6)) return;
    cdp_channel_timer(s.c, cdp_os_default()->now_ns(NULL) + 30000000u);
    T(side_wait(&s, &s.timers, 1));
    T(test_now_ns() - from >= 29000000u);
    cdp_channel_timer(s.c, cdp_os_default()->now_ns(NULL) + 30000000u);
    cdp_channel_timer(s.c, UINT64_MAX);
    T_EQ(CDP_PENDING, cdp_channel_wait(s.c, 60));
    T_EQ(1, counted(&s.timers));
    OK(cdp_barrier(g));
    cdp_channel_close(s.c);
}

TEST(a_timer_is_called_once) {
    run(2, 20000, timers);
}

/* ---- closing ---- */

typedef struct closing {
    cdp_channel *c;
    cdp_group *g;
    uint64_t got, stop;
    uint32_t sleep_ms;
    bool close_inside;
    cdp_status waited;
} closing;

static void closing_deliver(void *user, const cdp_channel_message *m) {
    closing *s = (closing *)user;
    (void)m;
    if (s->sleep_ms) test_sleep_ms(s->sleep_ms);
    if (s->close_inside) cdp_channel_close(s->c);
    count_one(&s->got);
}

static bool closing_open(closing *s, cdp_group *g, uint32_t number) {
    const cdp_channel_desc d = {
        .group = g, .number = number, .user = s, .deliver = closing_deliver};
    s->g = g;
    return OK(cdp_channel_open(&d, &s->c));
}

static void send_empty(side *s, uint32_t n) {
    const cdp_channel_message m = {1, 7, 0, 0, 0, NULL, 0, 0};
    for (uint32_t i = 0; i < n; ++i)
        if (cdp_channel_send(s->c, &m) < 0) return;
}

/* In a callback, while nobody is in cdp_channel_wait(). */
static void closes_inside(uint32_t rank, cdp_group *g) {
    closing s = {.close_inside = true};
    side sender;
    if (rank == 0) {
        if (!side_open(&sender, g, 8)) return;
        OK(cdp_barrier(g));
        send_empty(&sender, 50);
        OK(cdp_barrier(g));
        await(1); /* what rank 1 answers to messages after it closed must not meet a closed link */
        cdp_channel_close(sender.c);
        return;
    }
    if (!closing_open(&s, g, 8)) return;
    OK(cdp_barrier(g));
    for (uint32_t i = 0; i < 2000 && !counted(&s.got); ++i) {
        (void)!cdp_poll(g, 0);
        test_sleep_ms(1);
    }
    OK(cdp_barrier(g));
    come();
    T_EQ(1, counted(&s.got));
}

TEST(closed_inside_a_callback) {
    run(2, 20000, closes_inside);
}

/* The first message comes while a thread is in cdp_channel_wait(), and closes the channel. */
static void closes_below_wait(uint32_t rank, cdp_group *g) {
    closing s = {.close_inside = true};
    side sender;
    if (rank == 0) {
        if (!side_open(&sender, g, 9)) return;
        await(1);
        test_sleep_ms(20); /* it waits by now: if not, this test sees less and still passes */
        send_empty(&sender, 50);
        OK(cdp_barrier(g));
        cdp_channel_close(sender.c);
        return;
    }
    if (!closing_open(&s, g, 9)) return;
    come();
    OK(cdp_channel_wait(s.c, 10000));
    OK(cdp_barrier(g));
    T_EQ(1, counted(&s.got));
}

TEST(closed_below_a_wait) {
    run(2, 20000, closes_below_wait);
}

static void *poll_on(void *arg) {
    closing *s = (closing *)arg;
    while (!counted(&s->stop)) {
        (void)!cdp_poll(s->g, 0);
        test_sleep_ms(1);
    }
    return NULL;
}

/* By one thread while another runs its callbacks, with more messages to come. */
static void closes_beside(uint32_t rank, cdp_group *g) {
    closing s = {.sleep_ms = 5};
    pthread_t other;
    uint64_t got;
    side sender;
    if (rank == 0) {
        if (!side_open(&sender, g, 10)) return;
        send_empty(&sender, 1000);
        OK(cdp_barrier(g));
        cdp_channel_close(sender.c);
        return;
    }
    if (!closing_open(&s, g, 10)) return;
    pthread_create(&other, NULL, poll_on, &s);
    while (counted(&s.got) < 3)
        test_sleep_ms(1);
    cdp_channel_close(s.c);
    got = counted(&s.got);
    T(got < 500); /* it did not wait until there was nothing left to deliver */
    test_sleep_ms(20);
    T_EQ(got, counted(&s.got));
    count_one(&s.stop);
    pthread_join(other, NULL);
    OK(cdp_barrier(g));
}

TEST(closed_beside_a_callback) {
    run(2, 20000, closes_beside);
}

static void *wait_once(void *arg) {
    closing *s = (closing *)arg;
    s->waited = cdp_channel_wait(s->c, 20000);
    return NULL;
}

static void closes_a_wait(uint32_t rank, cdp_group *g) {
    closing s = {.sleep_ms = 0};
    pthread_t other;
    uint32_t waiting = 0;
    uint64_t at;
    if (!closing_open(&s, g, 11)) return;
    OK(cdp_barrier(g));
    if (rank == 0) { /* its loss would be a callback */
        OK(cdp_barrier(g));
        cdp_channel_close(s.c);
        return;
    }
    pthread_create(&other, NULL, wait_once, &s);
    for (uint32_t i = 0; i < 10000 && !waiting; ++i) {
        test_sleep_ms(1);
        cdp_lock_acquire(&g->w->lock);
        waiting = s.c->waiting;
        cdp_lock_release(&g->w->lock);
    }
    at = test_now_ns();
    cdp_channel_close(s.c);
    pthread_join(other, NULL);
    T(test_now_ns() - at < 10000000000ull);
    T_EQ(CDP_ERR_STATE, s.waited);
    OK(cdp_barrier(g));
}

TEST(closed_beside_a_wait) {
    run(2, 20000, closes_a_wait);
}

/* A body that was released as fetched arrives, also if its sender closes at once. */
static void closes_after_a_body(uint32_t rank, cdp_group *g) {
    enum {
        BYTES = 3000000
    };
    static uint8_t from[BYTES], to[BYTES];
    side s;
    for (uint32_t n = 0; n < 10; ++n) {
        if (!side_open(&s, g, 100 + n)) return;
        if (rank == 0) {
            const cdp_channel_message m = {1, 1, 2, 3, 4, from, BYTES, 0};
            uint64_t handle;
            memset(from, (int)n + 1, BYTES);
            OK(cdp_channel_offer(s.c, &m, &handle));
            T(side_wait(&s, &s.released, 1));
            T_EQ(CDP_OK, s.last_released);
        } else {
            uint64_t right = 0;
            T(side_wait(&s, &s.offered, 1));
            if (counted(&s.offered)) OK(cdp_channel_fetch(s.c, 0, s.handle, to, BYTES));
            T(side_wait(&s, &s.fetched, 1));
            T_EQ(CDP_OK, s.last_fetched);
            while (right < BYTES && to[right] == n + 1)
                ++right;
            T_EQ(BYTES, right);
        }
        cdp_channel_close(s.c);
    }
    OK(cdp_barrier(g));
}

TEST(a_body_comes_before_its_sender_leaves) {
    run(2, 20000, closes_after_a_body);
}

/* Nothing of what rank 1 said is read until it has closed the channel: that it has read the body
   counts, though it is found together with its leaving. Only a rank without a progress thread can
   leave it unread, and only memory that is read by others takes such an answer. */
static void closes_when_it_has_read(uint32_t rank, cdp_group *g) {
    enum {
        BYTES = 3000000
    };
    static uint8_t from[BYTES], to[BYTES];
    const cdp_channel_message m = {1, 1, 2, 3, 4, from, BYTES, 0};
    uint64_t handle;
    side s;
    if (over_tcp || !no_thread || !side_open(&s, g, 13)) return;
    if (rank == 1) {
        T(side_wait(&s, &s.offered, 1));
        if (counted(&s.offered)) OK(cdp_channel_fetch(s.c, 0, s.handle, to, BYTES));
        come();
        await(2); /* rank 0 has shown its memory, and polls no more */
        T(side_wait(&s, &s.fetched, 1));
        T_EQ(CDP_OK, s.last_fetched);
        cdp_channel_close(s.c);
        come();
        OK(cdp_barrier(g));
        return;
    }
    OK(cdp_channel_offer(s.c, &m, &handle));
    await(1);
    const uint64_t until = test_until_ns(10000);
    while (!(s.c->peers[1].bulk && s.c->peers[1].bulk->s.exposed) && test_now_ns() < until)
        (void)!cdp_channel_wait(s.c, 1);
    T(s.c->peers[1].bulk && s.c->peers[1].bulk->s.exposed);
    come();
    await(3);
    cdp_lock_acquire(&g->w->lock);
    while (!s.c->peers[1].lost && test_now_ns() < until)
        (void)cdp__channel_read(s.c, 1);
    cdp_lock_release(&g->w->lock);
    T(s.c->peers[1].lost);
    T(side_wait(&s, &s.released, 1));
    T_EQ(CDP_OK, s.last_released);
    OK(cdp_barrier(g));
    cdp_channel_close(s.c);
}

TEST(a_body_that_was_read_is_released_though_its_reader_left) {
    run(2, 20000, closes_when_it_has_read);
}

/* A change that happens between a look and the wait is not missed, whoever makes it. */
static void *wakes(void *arg) {
    side *s = (side *)arg;
    count_one(&s->credits); /* here: anything that is waited for */
    cdp_channel_wake(s->c);
    return NULL;
}

static void waits_since(uint32_t rank, cdp_group *g) {
    side s;
    uint64_t seen = 0, from;
    (void)rank;
    if (!side_open(&s, g, 12)) return;
    for (uint32_t i = 0; i < 20; ++i) {
        pthread_t other;
        from = test_now_ns();
        pthread_create(&other, NULL, wakes, &s);
        while (counted(&s.credits) <= i && test_now_ns() - from < 10000000000ull)
            (void)!cdp_channel_wait_since(s.c, &seen, UINT64_MAX);
        T(test_now_ns() - from < 10000000000ull);
        pthread_join(other, NULL);
    }
    while (cdp_channel_wait_since(s.c, &seen, 0) == CDP_OK) {
    }
    T_EQ(CDP_PENDING, cdp_channel_wait_since(s.c, &seen, cdp_os_default()->now_ns(NULL) + 1000000));
    T_EQ(CDP_ERR_INVALID, cdp_channel_wait_since(s.c, NULL, 0));
    OK(cdp_barrier(g));
    cdp_channel_close(s.c);
}

TEST(a_wait_misses_no_change) {
    run(2, 20000, waits_since);
}

/* A rank is given up: both sides are told, and the rank in between is not. */
static void drops_one(uint32_t rank, cdp_group *g) {
    side s;
    int32_t x = 1;
    if (!side_open(&s, g, 13)) return;
    OK(cdp_barrier(g));
    if (rank == 0) {
        const cdp_channel_message m = {2, 7, 0, 0, 0, NULL, 0, 0};
        T_EQ(CDP_ERR_INVALID, cdp_channel_drop(s.c, 0, "this rank itself"));
        T_TEXT("rank 0 is no other rank of the channel's group of 3", cdp_last_error()->text);
        T_EQ(CDP_ERR_INVALID, cdp_channel_drop(s.c, 3, "a rank that there is not"));
        T_EQ(CDP_ERR_INVALID, cdp_channel_drop(s.c, 2, NULL));
        T_EQ(CDP_ERR_INVALID, cdp_channel_drop(NULL, 2, "it lies"));
        T_TEXT(" is NULL", cdp_last_error()->text);
        T_EQ(0, counted(&s.lost));
        OK(cdp_channel_drop(s.c, 2, "it lies"));
        T_TEXT(" is NULL", cdp_last_error()->text); /* not changed */
        T_EQ(CDP_ERR_PEER_LOST, cdp_channel_send(s.c, &m));
        T_TEXT("it lies", cdp_last_error()->text);
    }
    if (rank != 1) {
        T(side_wait(&s, &s.lost, 1));
        T_EQ(2 - rank, s.lost_peer);
    }
    OK(cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T_EQ(rank != 1, counted(&s.lost));
    T(!s.wrong);
    OK(cdp_barrier(g));
    cdp_channel_close(s.c);
}

TEST(a_rank_is_given_up) {
    run(3, 20000, drops_one);
}

static void mistakes(uint32_t rank, cdp_group *g) {
    cdp_channel_message m = {rank, 0, 0, 0, 0, NULL, 0, 0};
    cdp_channel *other;
    side s;
    if (!side_open(&s, g, 7)) return;
    const cdp_channel_desc twice = {.group = g, .number = 7, .deliver = deliver};
    T_EQ(CDP_ERR_INVALID, cdp_channel_open(&twice, &other));
    T_TEXT("channel 7 of this group is open already", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_channel_send(s.c, &m));
    T_TEXT("is no other rank of the channel's group", cdp_last_error()->text);
    m.peer = 1 - rank;
    m.bytes = CDP_CHANNEL_BODY_MAX + 1;
    m.body = numbered;
    T_EQ(CDP_ERR_INVALID, cdp_channel_send(s.c, &m));
    T_TEXT("use cdp_channel_offer()", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_channel_open(NULL, &other));
    OK(cdp_barrier(g));
    cdp_channel_close(s.c);
    cdp_channel_close(NULL);
}

TEST(mistakes_get_a_sentence) {
    run(2, 20000, mistakes);
}

/* ---- polls with a budget ---- */

/* Two ranks of one thread, each with a channel; everything moves in polls alone. */
typedef struct polled {
    cdp_hub *hub;
    cdp_group *g[2];
    side s[2];
} polled;
static bool polled_open(polled *p) {
    const cdp_hub_desc h = {.world_size = 2};
    memset(p, 0, sizeof *p);
    if (!OK(cdp_hub_create(&h, &p->hub))) return false;
    for (uint32_t r = 0; r < 2; ++r) {
        const cdp_group_desc d = {.rank = r, .world_size = 2, .hub = p->hub, .no_thread = true};
        if (!OK(cdp_group_create(&d, &p->g[r])) || !side_open(&p->s[r], p->g[r], 20)) return false;
    }
    return true;
}
static void polled_close(polled *p) {
    for (uint32_t r = 0; r < 2; ++r) {
        cdp_channel_close(p->s[r].c);
        cdp_group_destroy(p->g[r]);
    }
    cdp_hub_destroy(p->hub);
}

TEST(a_poll_delivers_all_messages_that_came) {
    polled p;
    if (polled_open(&p)) {
        for (uint32_t i = 0; i < 100; ++i)
            send_numbered(&p.s[0], 1, i, 10);
        for (uint32_t i = 0; i < 1000; ++i)
            OK(cdp_poll(p.g[0], 0));
        OK(cdp_poll(p.g[1], 10000000));
        T_EQ(100, p.s[1].got);
        T(!p.s[1].wrong);
    }
    polled_close(&p);
}

/* A thread polls with a budget while a message has come in part, and another one waits: that wait
   keeps its own deadline. */
static void *poll_briefly(void *arg) {
    closing *s = (closing *)arg;
    while (!counted(&s->stop))
        (void)!cdp_poll(s->g, 300);
    return NULL;
}
TEST(a_wait_beside_polls_with_a_budget_ends_in_time) {
    polled p;
    closing polls = {0};
    pthread_t t;
    cdp_work work;
    float x = 1;
    if (polled_open(&p)) {
        send_numbered(&p.s[0], 1, 0, sizeof numbered[0]); /* more than the link holds */
        for (uint32_t i = 0; i < 100; ++i)
            OK(cdp_poll(p.g[0], 0));
        polls.g = p.g[1];
        T_EQ(0, pthread_create(&t, NULL, poll_briefly, &polls));
        test_sleep_ms(20); /* it has read what came, most times */
        OK(cdp_allreduce_async(p.g[1], NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work));
        for (uint32_t i = 0; i < 10; ++i)
            T_EQ(CDP_PENDING, cdp_work_wait_for(work, 30)); /* without end, where it fails */
        count_one(&polls.stop);
        pthread_join(t, NULL);
        T_EQ(0, p.s[1].got);
        cdp_group_abort(p.g[0], "over");
        cdp_group_abort(p.g[1], "over");
    }
    polled_close(&p);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"messages_arrive_in_order_beside_collectives", messages_arrive_in_order_beside_collectives,
            60},
        {"what_is_under_way_is_bounded", what_is_under_way_is_bounded, 60},
        {"offered_bodies", offered_bodies, 60},
        {"a_channel_loses_a_rank_and_goes_on", a_channel_loses_a_rank_and_goes_on, 60},
        {"an_open_offer_ends_with_its_rank", an_open_offer_ends_with_its_rank, 60},
        {"a_timer_is_called_once", a_timer_is_called_once, 60},
        {"closed_inside_a_callback", closed_inside_a_callback, 60},
        {"closed_below_a_wait", closed_below_a_wait, 60},
        {"a_poll_delivers_all_messages_that_came", a_poll_delivers_all_messages_that_came, 60},
        {"a_wait_beside_polls_with_a_budget_ends_in_time",
            a_wait_beside_polls_with_a_budget_ends_in_time, 60},
        {"closed_beside_a_callback", closed_beside_a_callback, 60},
        {"closed_beside_a_wait", closed_beside_a_wait, 60},
        {"a_body_comes_before_its_sender_leaves", a_body_comes_before_its_sender_leaves, 120},
        {"a_body_that_was_read_is_released_though_its_reader_left",
            a_body_that_was_read_is_released_though_its_reader_left, 60},
        {"a_wait_misses_no_change", a_wait_misses_no_change, 60},
        {"a_rank_is_given_up", a_rank_is_given_up, 60},
        {"mistakes_get_a_sentence", mistakes_get_a_sentence, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
