/* test_messages.c - messages between ranks: from any rank, in batches, with many tags, small
   ones and large ones in their order; objects of any length */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "worlds.h"

/* ---- messages -------------------------------------------------------------------------------- */

/* Length in elements of the k-th message of a rank; what its elements are. */
static uint64_t length_of(uint32_t rank, uint32_t k) {
    if (k % 5 == 0) return 0;
    return k % 7 == 3 ? 1250000 : 1 + (rank * 31 + k * 17) % 300;
}
static int32_t element_of(uint32_t rank, uint32_t k, uint64_t i) {
    return (int32_t)(rank * 100000 + k * 1000 + (uint32_t)(i % 997));
}

static void expect(const int32_t *x, const cdp_message *m, uint32_t k, uint32_t tag) {
    T_EQ(tag, m->tag);
    T_EQ(CDP_DTYPE_I32, m->dtype);
    T_EQ(length_of(m->source, k), m->count);
    for (uint64_t i = 0; i < m->count; ++i)
        if (x[i] != element_of(m->source, k, i)) {
            test_check(false, __FILE__, __LINE__,
                "element %llu of message %u from rank %u is wrong", (unsigned long long)i, k,
                m->source);
            return;
        }
}

enum {
    MANY = 14,
    LARGEST = 1250000
};

/* Everybody but rank 0 sends messages of many lengths; rank 0 takes them from anybody, several
   at once, and each rank's come in the order in which that rank sent them. */
static void from_anybody(uint32_t rank, cdp_group *w) {
    const uint32_t n = cdp_size(w);
    if (rank) {
        int32_t *x = (int32_t *)malloc(LARGEST * sizeof *x);
        for (uint32_t k = 0; k < MANY; ++k) {
            for (uint64_t i = 0; i < length_of(rank, k); ++i)
                x[i] = element_of(rank, k, i);
            OK(cdp_send(w, x, length_of(rank, k), CDP_DTYPE_I32, 0, 9));
        }
        free(x);
    } else {
        enum {
            AT_ONCE = 3
        };
        int32_t *x[AT_ONCE];
        cdp_message got[AT_ONCE];
        cdp_work work[AT_ONCE];
        uint32_t next[RANKS_MAX] = {0}, started = 0;
        for (uint32_t i = 0; i < AT_ONCE; ++i)
            x[i] = (int32_t *)malloc(LARGEST * sizeof **x);
        for (uint32_t done = 0; done < (n - 1) * MANY && !test__now.failed_checks; ++done) {
            for (; started < done + AT_ONCE && started < (n - 1) * MANY; ++started)
                OK(cdp_recv_any_async(w, x[started % AT_ONCE], LARGEST, CDP_DTYPE_I32, CDP_ANY_RANK,
                    9, &got[started % AT_ONCE], &work[started % AT_ONCE]));
            if (!OK(cdp_work_wait(work[done % AT_ONCE]))) break;
            const uint32_t from = got[done % AT_ONCE].source;
            if (T(from > 0 && from < n))
                expect(x[done % AT_ONCE], &got[done % AT_ONCE], next[from]++, 9);
        }
        for (uint32_t i = 0; i < AT_ONCE; ++i)
            free(x[i]);
        for (uint32_t r = 1; r < n; ++r)
            T_EQ(MANY, next[r]);
    }
    OK(cdp_barrier(w));
}

TEST(receives_from_any_rank) {
    run(4, 30000, from_anybody);
}

/* Ranks come in turn; a receive from one rank goes before those from any; probe says what is
   there. */
static void in_turn(uint32_t rank, cdp_group *w) {
    int32_t x = (int32_t)rank, y = 0, z[4];
    cdp_message got, seen;
    cdp_work any;
    if (rank) {
        for (int32_t i = 0; i < 3; ++i) {
            x = (int32_t)rank * 10 + i;
            OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 0, 4));
        }
        OK(cdp_barrier(w));
        if (rank == 2) {
            OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 0, 5));
            OK(cdp_send(w, &x, 1, CDP_DTYPE_I32, 0, 5));
        }
        if (rank == 1) OK(cdp_send(w, (int32_t[]){1, 2, 3}, 3, CDP_DTYPE_I32, 0, 6));
    } else {
        T_EQ(CDP_PENDING, cdp_probe(w, 1, 77, &seen));
        OK(cdp_barrier(w)); /* all nine are on their way now */
        for (uint32_t i = 0; i < 9; ++i) {
            while (cdp_probe(w, i % 3 + 1, 4, &seen) == CDP_PENDING) {
            }
            T_EQ(i % 3 + 1, seen.source);
            T_EQ(1, seen.count);
            if (i < 6) {
                OK(cdp_recv_any(w, &y, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 4, &got));
                T_EQ(i % 3 + 1, got.source);
                T_EQ(got.source * 10 + i / 3, y);
            } else {
                OK(cdp_recv(w, &y, 1, CDP_DTYPE_I32, i % 3 + 1, 4));
                T_EQ((i % 3 + 1) * 10 + 2, y);
            }
        }
        OK(cdp_recv_any_async(w, &y, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 5, &got, &any));
        OK(cdp_recv(w, &x, 1, CDP_DTYPE_I32, 2, 5));
        /* the one that was left, or the first where it was already claimed */
        OK(cdp_work_wait(any));
        T_EQ(2, got.source);
        while (cdp_probe(w, CDP_ANY_RANK, 6, &seen) == CDP_PENDING) {
        }
        T(seen.source == 1 && seen.count == 3 && seen.dtype == CDP_DTYPE_I32);
        OK(cdp_recv_any(w, z, 4, CDP_DTYPE_I32, 1, 6, &got));
        T(got.source == 1 && got.count == 3 && z[0] == 1 && z[2] == 3);
    }
    OK(cdp_barrier(w));
}

TEST(ranks_come_in_turn) {
    run(4, 20000, in_turn);
}

/* Those who have left are not waited for; when nobody is left, no message can come. */
static void all_leave(uint32_t rank, cdp_group *w) {
    int32_t x = 0;
    cdp_message got;
    cdp_work work;
    OK(cdp_barrier(w));
    if (rank) {
        OK(cdp_send_async(w, &x, 1, CDP_DTYPE_I32, 0, 1, &work));
        OK(cdp_work_wait(work));
        if (rank == 2) test_sleep_ms(30);
        return; /* leaves */
    }
    OK(cdp_recv_any(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 1, &got));
    OK(cdp_recv_any(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 1, &got));
    T_EQ(CDP_ERR_PEER_LOST, cdp_recv_any(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 1, &got));
    T_TEXT("all other ranks have left; rank 1 sent fewest of them, 1", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
}

TEST(nobody_is_left_to_send) {
    run(3, 20000, all_leave);
}

static void nobody_sends(uint32_t rank, cdp_group *w) {
    int32_t x;
    cdp_message got;
    cdp_work work;
    if (rank == 0) {
        OK(cdp_recv_any_async(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 3, &got, &work));
        T_EQ(CDP_OK, cdp_work_cancel(work));
        T_EQ(CDP_ERR_ABORTED, cdp_work_wait(work));
        const uint64_t from = test_now_ns();
        T_EQ(CDP_ERR_TIMEOUT, cdp_recv_any(w, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 3, &got));
        T_TEXT("400 ms passed while waiting for a message with tag 3 from any rank",
            cdp_last_error()->text);
        T_WITHIN(1000, test_now_ns() - from);
        come();
    } else {
        await(1);
        while (cdp_barrier(w) == CDP_OK) {
        }
    }
}

TEST(nobody_sends_in_time) {
    run(2, 400, nobody_sends);
}

/* In a group of some ranks, which one of them breaks. */
static void any_and_abort(uint32_t rank, cdp_group *w) {
    const uint32_t all[3] = {2, 1, 0};
    cdp_group *g;
    int32_t x = 5;
    cdp_message got;
    if (!OK(cdp_group_new(w, all, 3, &g))) return;
    if (rank == 1) {
        OK(cdp_send(g, &x, 1, CDP_DTYPE_I32, 2, 0));
        OK(cdp_barrier(w));
        cdp_group_abort(g, "enough of this");
    } else if (rank == 0) {
        OK(cdp_recv_any(g, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 0, &got));
        T_EQ(1, got.source);
        OK(cdp_barrier(w));
        const uint64_t from = test_now_ns();
        T_EQ(CDP_ERR_ABORTED, cdp_recv_any(g, &x, 1, CDP_DTYPE_I32, CDP_ANY_RANK, 0, &got));
        T_TEXT("enough of this", cdp_last_error()->text);
        T_WITHIN(300, test_now_ns() - from);
    } else {
        OK(cdp_barrier(w));
    }
    OK(cdp_barrier(w));
    cdp_group_destroy(g);
}

TEST(any_rank_and_a_broken_group) {
    run(3, 20000, any_and_abort);
}

static void too_long(uint32_t rank, cdp_group *w) {
    int32_t x[9] = {0};
    cdp_message got;
    OK(cdp_barrier(w));
    if (rank == 0) {
        OK(cdp_send(w, x, 9, CDP_DTYPE_I32, 1, 2));
    } else {
        T_EQ(CDP_ERR_MISMATCH, cdp_recv_any(w, x, 8, CDP_DTYPE_I32, 0, 2, &got));
        T_TEXT("9 elements, but there is room for 8 only", cdp_last_error()->text);
    }
    T_EQ(CDP_ERR_MISMATCH, cdp_barrier(w));
}

TEST(a_message_longer_than_the_room) {
    run(2, 20000, too_long);
}

/* Around a ring, and all with all in one batch whose order is different on every rank. */
static void batches(uint32_t rank, cdp_group *w) {
    enum {
        COUNT = 700000
    };
    const uint32_t n = cdp_size(w);
    int32_t *out = (int32_t *)malloc(COUNT * sizeof *out),
            *in = (int32_t *)malloc(RANKS_MAX * COUNT * sizeof *in);
    cdp_transfer t[2 * RANKS_MAX];
    cdp_message got[RANKS_MAX];
    cdp_work work;
    uint32_t k = 0;
    memset(t, 0, sizeof t);
    for (int32_t i = 0; i < COUNT; ++i)
        out[i] = (int32_t)rank + i;
    OK(cdp_sendrecv(
        w, out, COUNT, (rank + 1) % n, in, COUNT, (rank + n - 1) % n, CDP_DTYPE_I32, 0));
    T(in[0] == (int32_t)((rank + n - 1) % n)
        && in[COUNT - 1] == (int32_t)((rank + n - 1) % n) + COUNT - 1);
    for (uint32_t i = 0; i < 2 * n; ++i) {
        const uint32_t p = (i * (rank + 1) + rank) % n;
        bool there = p == rank;
        for (uint32_t j = 0; j < k; ++j)
            there = there || (t[j].peer == p && t[j].receive == (i % 2 == rank % 2));
        if (there) continue;
        t[k].receive = i % 2 == rank % 2;
        t[k].data = t[k].receive ? in + p * COUNT : out;
        t[k].count = t[k].receive ? COUNT : 1000 + rank;
        t[k].got = t[k].receive ? &got[p] : NULL;
        t[k].dtype = CDP_DTYPE_I32;
        t[k].tag = 8;
        t[k++].peer = p;
    }
    for (uint32_t p = 0; p < n; ++p) /* what the pattern above left out */
        for (uint32_t r = 0; r < 2; ++r) {
            bool there = p == rank;
            for (uint32_t j = 0; j < k; ++j)
                there = there || (t[j].peer == p && t[j].receive == (r == 1));
            if (there) continue;
            t[k] = (cdp_transfer){.receive = r == 1,
                .data = r ? in + p * COUNT : out,
                .count = r ? COUNT : 1000 + rank,
                .dtype = CDP_DTYPE_I32,
                .peer = p,
                .tag = 8,
                .got = r ? &got[p] : NULL};
            ++k;
        }
    T_EQ(2 * (n - 1), k);
    t[k - 1].peer = n; /* one is wrong: none is started */
    T_EQ(CDP_ERR_INVALID, cdp_batch(w, t, k, &work));
    for (uint32_t p = 0; p < n; ++p) {
        bool send = false, receive = false;
        for (uint32_t j = 0; j + 1 < k; ++j) {
            send = send || (t[j].peer == p && !t[j].receive);
            receive = receive || (t[j].peer == p && t[j].receive);
        }
        if (p != rank && !(send && receive)) t[k - 1].peer = p;
    }
    for (uint32_t round = 0; round < 20; ++round) {
        OK(cdp_batch(w, t, k, &work));
        OK(cdp_work_wait(work));
        for (uint32_t p = 0; p < n; ++p)
            if (p != rank)
                T(got[p].source == p && got[p].count == 1000 + p && in[p * COUNT] == (int32_t)p
                    && in[p * COUNT + 999 + p] == (int32_t)(p + 999 + p));
    }
    OK(cdp_barrier(w));
    free(out);
    free(in);
}

TEST(batches_in_any_order) {
    run(4, 20000, batches);
}

/* ---- objects --------------------------------------------------------------------------------- */

static uint64_t object_bytes(uint32_t rank, uint32_t round) {
    static const uint64_t sizes[] = {1, 0, 777, TEST_SLOW ? 600000 : 5 << 20, 3};
    if (round == 0) return 0;
    if (round == 1) return rank == 0 ? 1 : 0;
    return sizes[(rank + round) % 5];
}

/* What the bytes are: a long pattern, from another place on for each rank and round. */
static const uint8_t *object_pattern(uint32_t rank, uint32_t round) {
    static uint8_t pattern[(5 << 20) + 1000];
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    for (uint32_t i = pattern[1] ? (uint32_t)sizeof pattern : 0; i < sizeof pattern; ++i)
        pattern[i] = (uint8_t)(i * 7 + i / 251);
    pthread_mutex_unlock(&once);
    return pattern + rank * 31 + round;
}

static uint8_t *object_of(uint32_t rank, uint32_t round) {
    uint8_t *p = (uint8_t *)malloc(object_bytes(rank, round) + 1);
    memcpy(p, object_pattern(rank, round), object_bytes(rank, round));
    return p;
}

static bool is_object(const uint8_t *p, uint64_t bytes, uint32_t rank, uint32_t round) {
    return test_check(bytes == object_bytes(rank, round)
            && (!bytes || memcmp(p, object_pattern(rank, round), bytes) == 0),
        __FILE__, __LINE__, "the %llu bytes from rank %u in round %u are wrong",
        (unsigned long long)bytes, rank, round);
}

static void are_objects(const cdp_blob *b, uint32_t n, uint32_t round) {
    uint64_t at = 0;
    for (uint32_t r = 0; r < n; at += b->lengths[r++])
        if (!is_object(b->data ? (const uint8_t *)b->data + at : NULL, b->lengths[r], r, round))
            return;
    T_EQ(at, b->bytes);
}

static uint32_t held;
static void *hold(void *user, uint64_t bytes) {
    __atomic_add_fetch((uint32_t *)user, 1, __ATOMIC_SEQ_CST);
    return malloc(bytes);
}
static void let_go(void *user, void *p) {
    __atomic_sub_fetch((uint32_t *)user, 1, __ATOMIC_SEQ_CST);
    free(p);
}
static void *refuse(void *user, uint64_t bytes) {
    (void)user;
    (void)bytes;
    return NULL;
}

/* All four, of all lengths; memory from the os, from a function, and of one's own, differently
   on every rank. */
static void objects(uint32_t rank, cdp_group *w) {
    const uint32_t n = cdp_size(w);
    uint64_t lengths[RANKS_MAX], total;
    for (uint32_t round = 0; round < 6; ++round) {
        const uint32_t root = round % n;
        uint8_t *mine = object_of(rank, round), *all, *own = NULL;
        cdp_blob b;
        total = 0;
        for (uint32_t r = 0; r < n; ++r)
            total += object_bytes(r, round);
        all = (uint8_t *)malloc(total + 1);
        for (uint32_t what = 0; what < 4; ++what) {
            memset(&b, 0, sizeof b);
            memset(lengths, 0xff, sizeof lengths);
            b.lengths = lengths;
            if ((rank + round) % 3 == 1) {
                b.alloc = hold;
                b.release = let_go;
                b.user = &held;
            }
            if ((rank + round) % 3 == 2) {
                b.data = own = (uint8_t *)malloc(total + 1);
                b.room = total;
            }
            if (what == 0) {
                if (OK(cdp_allgather_bytes(w, mine, object_bytes(rank, round), &b)))
                    are_objects(&b, n, round);
            } else if (what == 1) {
                if (OK(cdp_gather_bytes(
                        w, mine, object_bytes(rank, round), root, rank == root ? &b : NULL))
                    && rank == root)
                    are_objects(&b, n, round);
            } else if (what == 2) {
                if (OK(cdp_broadcast_bytes(w, mine, object_bytes(rank, round), root, &b))
                    && rank != root)
                    is_object((uint8_t *)b.data, b.bytes, root, round);
            } else {
                uint64_t at = 0, parts[RANKS_MAX];
                for (uint32_t r = 0; r < n; at += parts[r++]) {
                    parts[r] = object_bytes(r, round);
                    memcpy(all + at, object_pattern(r, round), parts[r]);
                }
                if (OK(cdp_scatter_bytes(
                        w, rank == root ? all : NULL, rank == root ? parts : NULL, root, &b)))
                    is_object((uint8_t *)b.data, b.bytes, rank, round);
            }
            cdp_blob_free(w, &b);
            free(own);
            own = NULL;
        }
        free(all);
        free(mine);
    }
    OK(cdp_barrier(w));
    T_EQ(0, __atomic_load_n(&held, __ATOMIC_SEQ_CST));
}

TEST(bytes_of_any_length_1) {
    run(1, 30000, objects);
}
TEST(bytes_of_any_length_2) {
    run(2, 30000, objects);
}
TEST(bytes_of_any_length_5) {
    run(5, 30000, objects);
}

/* What does not fit anywhere is the same error everywhere, and the group goes on. */
static void objects_refused(uint32_t rank, cdp_group *w) {
    uint8_t mine[100] = {1}, room[250];
    uint64_t parts[3] = {UINT64_MAX, UINT64_MAX / 2, 5};
    cdp_blob b;
    memset(&b, 0, sizeof b);
    if (rank == 1) {
        b.data = room;
        b.room = 250;
    } /* 300 will come */
    T_EQ(CDP_ERR_INVALID, cdp_allgather_bytes(w, mine, 100, &b));
    T_TEXT("rank 1 is to get 300 bytes, but takes 250 at most", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
    memset(&b, 0, sizeof b);
    if (rank == 2) b.max_bytes = 299;
    T_EQ(CDP_ERR_INVALID, cdp_gather_bytes(w, mine, 100, 2, &b));
    T_TEXT("rank 2 is to get 300 bytes", cdp_last_error()->text);
    memset(&b, 0, sizeof b);
    if (rank == 2) {
        b.alloc = refuse;
        b.release = let_go;
    }
    T_EQ(CDP_ERR_NOMEM, cdp_broadcast_bytes(w, mine, 100, 0, &b));
    T_TEXT("rank 2 could not allocate", cdp_last_error()->text);
    T(b.data == NULL && !b.allocated);
    memset(&b, 0, sizeof b);
    T_EQ(CDP_ERR_INVALID, cdp_scatter_bytes(w, mine, rank == 0 ? parts : NULL, 0, &b));
    T_EQ(rank == 1 ? CDP_ERR_MISMATCH : CDP_ERR_MISMATCH,
        rank == 1 ? cdp_gather_bytes(w, mine, 1, 0, &b) : cdp_allgather_bytes(w, mine, 1, &b));
    T_TEXT(
        "rank 0 calls cdp_allgather_bytes with root 0, rank 1 calls cdp_gather_bytes with root 0",
        cdp_last_error()->text);
    T_EQ(CDP_ERR_MISMATCH, cdp_gather_bytes(w, mine, 1, rank == 2 ? 1 : 0, &b));
    OK(cdp_allgather_bytes(w, mine, 100, &b));
    T_EQ(300, b.bytes);
    cdp_blob_free(w, &b);
    cdp_blob_free(w, &b);
    OK(cdp_barrier(w));
}

TEST(bytes_that_do_not_fit) {
    run(3, 20000, objects_refused);
}

/* ---- many tags ---- */

/* What both sides draw from one seed: messages from anybody to anybody with many tags, received
   in another order than they were sent in, by those who can. */
static void many_tags(uint32_t rank, cdp_group *w) {
    enum {
        MESSAGES = 3000,
        TAGS = 60,
        WINDOW = 40
    };
    const uint32_t n = cdp_size(w);
    uint64_t state = 4711;
    uint32_t sent[RANKS_MAX][RANKS_MAX][TAGS] = {{{0}}};
    for (uint32_t at = 0; at < MESSAGES && !test__now.failed_checks; at += WINDOW) {
        cdp_work work[WINDOW];
        uint32_t data[WINDOW][8], want[WINDOW], from_to_tag[WINDOW], mine = 0;
        for (uint32_t i = 0; i < WINDOW; ++i) {
            const uint32_t from = (uint32_t)(test_random(&state) % n),
                           to = (from + 1 + (uint32_t)(test_random(&state) % (n - 1))) % n,
                           tag = (uint32_t)(test_random(&state) % TAGS);
            const uint32_t k = sent[from][to][tag]++,
                           what = k * 1000000 + from * 10000 + to * 100 + tag;
            if (from == rank) {
                for (uint32_t j = 0; j < 8; ++j)
                    data[mine][j] = what + j;
                want[mine] = UINT32_MAX;
                from_to_tag[mine] = tag;
                OK(cdp_send_async(w, data[mine], 8, CDP_DTYPE_U32, to, tag, &work[mine]));
                ++mine;
            } else if (to == rank) {
                memset(data[mine], 0, sizeof data[mine]);
                want[mine] = what;
                from_to_tag[mine] = from << 16 | tag;
                if (i % 2)
                    OK(cdp_recv_async(w, data[mine], 8, CDP_DTYPE_U32, from, tag, &work[mine]));
                else
                    work[mine].seq = 0; /* received below: it may come before anybody asks */
                ++mine;
            }
        }
        for (uint32_t i = 0; i < mine; ++i) {
            if (want[i] != UINT32_MAX && !work[i].seq) continue;
            OK(cdp_work_wait(work[i]));
        }
        /* those of one rank and tag in order; where one was posted above already, it took the
           first */
        for (uint32_t i = 0; i < mine; ++i)
            if (want[i] != UINT32_MAX && !work[i].seq)
                OK(cdp_recv(
                    w, data[i], 8, CDP_DTYPE_U32, from_to_tag[i] >> 16, from_to_tag[i] & 0xffff));
        for (uint32_t i = 0; i < mine; ++i) {
            if (want[i] == UINT32_MAX) continue;
            bool found = false; /* the same rank's and tag's, in some order within this window */
            for (uint32_t j = 0; j < mine; ++j)
                found = found
                    || (want[j] != UINT32_MAX && from_to_tag[j] == from_to_tag[i]
                        && data[j][0] == want[i] && data[j][7] == want[i] + 7);
            test_check(
                found, __FILE__, __LINE__, "rank %u: message %u did not come", rank, want[i]);
        }
        if (n > 1) OK(cdp_barrier(w));
    }
    test_check(w->messages.count <= WINDOW, __FILE__, __LINE__, "%u places for %u messages at once",
        w->messages.count, (unsigned)WINDOW);
}

/* Small messages lie beside the stream that large ones take, as many as there is room for: they
   keep their order all the same, are found by who probes, and what nobody has asked for yet is
   in nobody's way. */
static void small_and_large(uint32_t rank, cdp_group *w) {
    enum {
        TAGS = 20,
        EACH = 5
    };
    static const uint64_t counts[EACH] = {2, 1500, 0, 1024, 1025};
    static int32_t data[TAGS][EACH][1500];
    cdp_work work[TAGS][EACH];
    cdp_message seen;
    for (uint32_t again = 0; again < 4; ++again) {
        const uint32_t first = again % 2 * TAGS; /* tags that are used again after others */
        int32_t sum = 0;
        for (uint32_t i = 0; rank == 0 && i < TAGS * EACH; ++i) {
            const uint32_t tag = i % TAGS, k = i / TAGS;
            for (uint64_t j = 0; j < counts[k]; ++j)
                data[tag][k][j] = (int32_t)(again * 1000000 + tag * 10000 + k * 2000 + j);
            OK(cdp_send_async(
                w, data[tag][k], counts[k], CDP_DTYPE_I32, 1, first + tag, &work[tag][k]));
        }
        OK(cdp_allreduce(w, NULL, &sum, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
        for (uint32_t i = 0; rank == 1 && i < TAGS * EACH; ++i) {
            const uint32_t tag = TAGS - 1 - i % TAGS, k = i / TAGS;
            int32_t got[1500];
            bool right = true;
            while (cdp_probe(w, CDP_ANY_RANK, first + tag, &seen) == CDP_PENDING) {
            }
            T_EQ(counts[k], seen.count);
            if (i % 3)
                OK(cdp_recv_any(w, got, 1500, CDP_DTYPE_I32, CDP_ANY_RANK, first + tag, &seen));
            else
                OK(cdp_recv(w, got, counts[k], CDP_DTYPE_I32, 0, first + tag));
            for (uint64_t j = 0; j < counts[k]; ++j)
                right = right && got[j] == (int32_t)(again * 1000000 + tag * 10000 + k * 2000 + j);
            test_check(right, __FILE__, __LINE__, "message %u with tag %u is another one", k, tag);
        }
        for (uint32_t i = 0; rank == 0 && i < TAGS * EACH; ++i)
            OK(cdp_work_wait(work[i % TAGS][i / TAGS]));
        OK(cdp_barrier(w));
    }
}

TEST(small_messages_and_large_keep_their_order) {
    run(2, 30000, small_and_large);
}

TEST(few_places_for_many_tags) {
    run(3, 30000, many_tags);
}

static uint64_t kept;
static void *sized_alloc(void *user, uint64_t bytes) {
    uint64_t *p = (uint64_t *)cdp__os_alloc(user, bytes + 64);
    __atomic_add_fetch(&kept, bytes, __ATOMIC_SEQ_CST);
    p[0] = bytes;
    return p + 8;
}
static void sized_free(void *user, void *p) {
    if (!p) return;
    __atomic_sub_fetch(&kept, ((uint64_t *)p)[-8], __ATOMIC_SEQ_CST);
    cdp__os_release(user, (uint64_t *)p - 8);
}

/* Ten thousand tags: at most 320 bytes each, and their counts go on when they are used again. */
TEST(a_tag_that_is_not_in_use_is_cheap) {
    enum {
        TAGS = 10000
    };
    cdp_os os = *cdp_os_default();
    cdp_group *g[2];
    uint64_t before = 0;
    uint32_t x, y;
    cdp_message got;
    cdp_work out, in;
    os.alloc = sized_alloc;
    os.release = sized_free;
    const cdp_hub_desc h = {.world_size = 2, .os = &os};
    if (!OK(cdp_hub_create(&h, &hub))) return;
    for (uint32_t r = 0; r < 2; ++r) {
        const cdp_group_desc d = {
            .rank = r, .world_size = 2, .hub = hub, .os = &os, .no_thread = true};
        if (!OK(cdp_group_create(&d, &g[r]))) return;
    }
    for (uint32_t round = 0; round < 2; ++round)
        for (uint32_t t = 0; t < TAGS && !test__now.failed_checks; ++t) {
            x = round * TAGS + t;
            y = 0;
            if (t == 20 && round == 0) before = kept;
            OK(cdp_send_async(g[1], &x, 1, CDP_DTYPE_U32, 0, t, &out));
            if (t % 2) (void)cdp_poll(g[0], 0); /* it may be there before it is asked for */
            if (t % 3)
                OK(cdp_recv_async(g[0], &y, 1, CDP_DTYPE_U32, 1, t, &in));
            else
                OK(cdp_recv_any_async(g[0], &y, 1, CDP_DTYPE_U32, CDP_ANY_RANK, t, &got, &in));
            for (uint32_t k = 0; k < 100 && cdp_work_test(in) == CDP_PENDING; ++k)
                (void)cdp_poll(g[1], 0);
            OK(cdp_work_test(in));
            OK(cdp_work_test(out));
            T_EQ(x, y);
        }
    test_check(kept - before < 2 * TAGS * 320, __FILE__, __LINE__,
        "%llu bytes for a tag on each side", (unsigned long long)(kept - before) / TAGS / 2);
    printf("  %llu bytes for a tag that is not in use\n",
        (unsigned long long)(kept - before) / TAGS / 2);
    cdp_group_destroy(g[0]);
    cdp_group_destroy(g[1]);
    cdp_hub_destroy(hub);
    T_EQ(0, kept);
}

/* A small message is put beside the stream, and a large one behind it into the stream, while the
   receiver is between its look at the one and its look at the other. */
static int64_t (*hub_recv)(void *self, uint32_t peer, const cdp_iov *v, uint32_t n);
static cdp_group *sends_meanwhile;
static uint8_t small_one[100], large_one[20000];

/* `n` ranks of a hub, which the test polls. What the last one receives passes `recv`, which calls
   hub_recv. */
static bool polled_ranks(cdp_group **g, uint32_t n,
    int64_t (*recv)(void *self, uint32_t peer, const cdp_iov *v, uint32_t count)) {
    const cdp_hub_desc h = {.world_size = n};
    cdp_group_desc d = {.world_size = n, .no_thread = true, .timeout_ms = 20000};
    static cdp_transport t;
    memset(&t, 0, sizeof t);
    if (!OK(cdp_hub_create(&h, &hub)) || !OK(cdp__hub_attach(hub, n - 1, n, &t))) return false;
    hub_recv = t.recv;
    t.recv = recv;
    for (d.rank = 0; d.rank < n; ++d.rank) {
        d.hub = d.rank + 1 < n ? hub : NULL;
        d.transport = d.rank + 1 < n ? NULL : &t;
        if (!OK(cdp_group_create(&d, &g[d.rank]))) return false;
    }
    return true;
}

static void polled_ranks_end(cdp_group **g, uint32_t n) {
    for (uint32_t r = 0; r < n; ++r)
        cdp_group_destroy(g[r]);
    cdp_hub_destroy(hub);
}

static int64_t recv_a_little_later(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    cdp_group *g = sends_meanwhile;
    cdp_work w;
    sends_meanwhile = NULL;
    if (g) OK(cdp_send_async(g, small_one, sizeof small_one, CDP_DTYPE_U8, 1, 7, &w));
    if (g) OK(cdp_send_async(g, large_one, sizeof large_one, CDP_DTYPE_U8, 1, 7, &w));
    return hub_recv(self, peer, v, n);
}

TEST(a_message_behind_one_beside_the_stream_is_found) {
    cdp_group *g[2];
    cdp_message m;
    cdp_work w;
    static uint8_t got[sizeof large_one];
    if (!polled_ranks(g, 2, recv_a_little_later)) return;
    for (uint32_t k = 1; k < 3; ++k) { /* with the first one the ring is made */
        if (k == 1) OK(cdp_send_async(g[0], small_one, sizeof small_one, CDP_DTYPE_U8, 1, 7, &w));
        small_one[99] = (uint8_t)k;
        large_one[sizeof large_one - 1] = (uint8_t)k;
        OK(cdp_recv_async(g[1], got, sizeof small_one, CDP_DTYPE_U8, 0, 7, &w));
        sends_meanwhile = k == 1 ? NULL : g[0];
        for (uint32_t i = 0; i < 100 && cdp_work_test(w) == CDP_PENDING; ++i)
            OK(cdp_poll(g[1], 0));
        OK(cdp_work_test(w));
    }
    T_EQ(2, got[99]);
    OK(cdp_probe(g[1], 0, 7, &m));
    T_EQ(sizeof large_one, m.count);
    OK(cdp_recv_any_async(g[1], got, sizeof got, CDP_DTYPE_U8, CDP_ANY_RANK, 7, &m, &w));
    for (uint32_t i = 0; i < 100 && cdp_work_test(w) == CDP_PENDING; ++i)
        OK(cdp_poll(g[1], 0));
    OK(cdp_work_test(w));
    T_EQ(2, got[sizeof got - 1]);
    polled_ranks_end(g, 2);
}

/* Two receives from any rank wait. The first one has looked in vain; before the second one looks
   for the first time, two messages are put beside the stream: the first one takes the first.

   How often rank 1 was listened to; when so many messages are sent: */
static uint32_t listened, sends_at, sends;

static int64_t recv_and_two_more(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    cdp_group *g = sends_meanwhile;
    cdp_work w;
    if (peer != 1 || ++listened != sends_at) return hub_recv(self, peer, v, n);
    sends_meanwhile = NULL;
    for (uint8_t k = 1; g && k <= sends; ++k)
        OK(cdp_send_async(g, &k, 1, CDP_DTYPE_U8, 2, 7, &w));
    return hub_recv(self, peer, v, n);
}

TEST(receives_from_any_rank_take_messages_in_their_order) {
    cdp_group *g[3];
    cdp_message m[3];
    cdp_work w[3], sent;
    uint8_t got[3] = {9, 9, 9};
    if (!polled_ranks(g, 3, recv_and_two_more)) return;
    /* with the first message the slots are made */
    OK(cdp_send_async(g[0], &got[1], 1, CDP_DTYPE_U8, 2, 7, &sent));
    for (uint32_t i = 0; i < 3; ++i) {
        if (i == 2) sends_meanwhile = g[0];
        sends = 2;
        sends_at = listened + 1; /* after rank 0, which sends, was listened to */
        OK(cdp_recv_any_async(g[2], &got[i], 1, CDP_DTYPE_U8, CDP_ANY_RANK, 7, &m[i], &w[i]));
        for (uint32_t k = 0; k < 20 && (i != 1 || k < 5); ++k)
            OK(cdp_poll(g[2], 0));
        T_EQ(i == 1 ? CDP_PENDING : CDP_OK, cdp_work_test(w[i]));
    }
    OK(cdp_work_test(w[1]));
    T_EQ(1, got[1]);
    T_EQ(2, got[2]);
    /* One waits, and a message comes after its last look and before that of a probe: it is not
       there for others. */
    OK(cdp_recv_any_async(g[2], &got[0], 1, CDP_DTYPE_U8, CDP_ANY_RANK, 7, &m[0], &w[0]));
    T_EQ(CDP_PENDING, cdp_probe(g[2], CDP_ANY_RANK, 7, &m[1]));
    listened = sends_at = 0;
    T_EQ(CDP_PENDING, cdp_probe(g[2], CDP_ANY_RANK, 7, &m[1]));
    sends_at = listened;
    listened = 0;
    sends_meanwhile = g[0];
    sends = 1;
    T_EQ(CDP_PENDING, cdp_probe(g[2], CDP_ANY_RANK, 7, &m[1]));
    T_EQ(sends_at, listened);
    OK(cdp_work_test(w[0]));
    T_EQ(1, got[0]);
    polled_ranks_end(g, 3);
}

/* Rank 1 waits for an operation and for a message. While it listens for the message, the operation
   of rank 0 arrives, which it had listened for before: it must look again before it sleeps. */

static int64_t recv_and_an_operation(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    cdp_group *g = sends_meanwhile;
    cdp_work w;
    if (++listened == 2 && g) OK(cdp_broadcast_async(g, large_one, 5000, CDP_DTYPE_F32, 0, &w));
    return hub_recv(self, peer, v, n);
}

TEST(what_is_stored_for_another_is_looked_at) {
    cdp_group *g[2];
    cdp_work w[2];
    static uint8_t got[sizeof large_one];
    if (!polled_ranks(g, 2, recv_and_an_operation)) return;
    OK(cdp_recv_async(g[1], small_one, 1, CDP_DTYPE_U8, 0, 7, &w[0]));
    OK(cdp_broadcast_async(g[1], got, 5000, CDP_DTYPE_F32, 0, &w[1]));
    for (uint32_t k = 0; k < 10; ++k) /* the ring is made */
        OK(cdp_poll(g[1], 0));
    listened = 0;
    sends_meanwhile = g[0];
    while (listened < 2) {
        const cdp__advance a = cdp__world_poll(g[1]->w);
        T_EQ(listened < 2 ? CDP__BLOCKED : CDP__MOVED, a);
    }
    cdp_group_abort(g[0], "the end");
    polled_ranks_end(g, 2);
}

/* What a wait reports has arrived, and does not change any more. */
enum {
    ARRIVING = 8 << 20
};
static uint8_t arriving[2][ARRIVING];
static uint64_t arrived_bytes, arrived_parts;

static void has_arrived(void *user, uint64_t bytes) {
    const uint64_t there = cdp__min(bytes, ARRIVING);
    (void)user;
    if (!bytes || !T(there >= arrived_bytes)) return; /* 0: not known */
    if (there > arrived_bytes && there < ARRIVING) ++arrived_parts;
    T(memcmp(
          arriving[1] + arrived_bytes, arriving[0] + arrived_bytes, (size_t)(there - arrived_bytes))
        == 0);
    arrived_bytes = there;
}

static void arrives(uint32_t rank, cdp_group *w) {
    cdp_work work;
    for (uint32_t i = 0; i < ARRIVING; ++i)
        arriving[rank][i] = rank == 0 ? (uint8_t)(i * 5 ^ i >> 7) : 0;
    if (rank == 1) arrived_bytes = 0;
    if (rank == 0) come(); /* what it has written is read by the other one */
    await(1);
    OK(cdp_barrier(w));
    if (rank == 0) test_sleep_ms(20); /* until the other one waits */
    OK(cdp_broadcast_async(w, arriving[rank], ARRIVING, CDP_DTYPE_U8, 0, &work));
    if (rank == 1) {
        while (cdp__work_wait_arriving(work, 1000, has_arrived, NULL) == CDP_PENDING) {
        }
        has_arrived(NULL, UINT64_MAX);
    }
    OK(cdp_work_wait(work));
}

TEST(what_has_arrived_is_there) {
    arrived_parts = 0;
    run(2, 20000, arrives);
    T(arrived_parts > 0);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"what_has_arrived_is_there", what_has_arrived_is_there, 60},
        {"receives_from_any_rank", receives_from_any_rank, 120},
        {"ranks_come_in_turn", ranks_come_in_turn, 60},
        {"nobody_is_left_to_send", nobody_is_left_to_send, 60},
        {"nobody_sends_in_time", nobody_sends_in_time, 60},
        {"any_rank_and_a_broken_group", any_rank_and_a_broken_group, 60},
        {"a_message_longer_than_the_room", a_message_longer_than_the_room, 60},
        {"batches_in_any_order", batches_in_any_order, 60},
        {"bytes_of_any_length_1", bytes_of_any_length_1, 60},
        {"bytes_of_any_length_2", bytes_of_any_length_2, 60},
        {"bytes_of_any_length_5", bytes_of_any_length_5, 120},
        {"bytes_that_do_not_fit", bytes_that_do_not_fit, 60},
        {"few_places_for_many_tags", few_places_for_many_tags, 60},
        {"small_messages_and_large_keep_their_order", small_messages_and_large_keep_their_order,
            120},
        {"a_tag_that_is_not_in_use_is_cheap", a_tag_that_is_not_in_use_is_cheap, 60},
        {"a_message_behind_one_beside_the_stream_is_found",
            a_message_behind_one_beside_the_stream_is_found, 20},
        {"receives_from_any_rank_take_messages_in_their_order",
            receives_from_any_rank_take_messages_in_their_order, 20},
        {"what_is_stored_for_another_is_looked_at", what_is_stored_for_another_is_looked_at, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
