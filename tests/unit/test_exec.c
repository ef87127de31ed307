/* test_exec.c - the executor by itself: algorithms, buffers and streams, without any group

   Each rank is a world, one stream to each other rank, and an executor. The transport has the five
   required functions alone and hands over as many bytes at a time as a case says. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include "test.h"

#define RANKS 5u
#define ROOM 4096u
#define CHANNEL 77u

typedef struct pipe_of {
    uint8_t bytes[ROOM];
    uint32_t used;
    bool ended; /* its writer is gone */
} pipe_of;

static pipe_of pipes[RANKS][RANKS]; /* by writer and reader */
static uint32_t dribble;            /* bytes that one call moves, at most */
static uint64_t polls, sent_bytes, put_calls;

typedef struct rank_of {
    cdp__world *w;
    cdp__exec x;
    cdp__stream streams[RANKS];
    uint32_t rank;
} rank_of;

static rank_of all[RANKS];

static int64_t put(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    pipe_of *p = &pipes[((rank_of *)self)->rank][peer];
    int64_t moved = 0;
    ++put_calls;
    if (p->ended) return cdp_error_set(CDP_ERR_PEER_LOST, (int32_t)peer, 0, "gone");
    for (uint32_t i = 0; i < n; ++i) {
        uint64_t k = iov[i].bytes;
        if (k > ROOM - p->used) k = ROOM - p->used;
        if (k > dribble - (uint64_t)moved) k = dribble - (uint64_t)moved;
        memcpy(p->bytes + p->used, iov[i].data, k);
        p->used += (uint32_t)k;
        moved += (int64_t)k;
        if (k < iov[i].bytes) break;
    }
    sent_bytes += (uint64_t)moved;
    return moved;
}

static int64_t take(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    pipe_of *p = &pipes[peer][((rank_of *)self)->rank];
    int64_t moved = 0;
    if (!p->used && p->ended) return cdp_error_set(CDP_ERR_PEER_LOST, (int32_t)peer, 0, "gone");
    for (uint32_t i = 0; i < n && p->used; ++i) {
        uint64_t k = iov[i].bytes;
        if (k > p->used) k = p->used;
        if (k > dribble - (uint64_t)moved) k = dribble - (uint64_t)moved;
        memcpy(iov[i].data, p->bytes, k);
        p->used -= (uint32_t)k;
        memmove(p->bytes, p->bytes + k, p->used);
        moved += (int64_t)k;
        if (k < iov[i].bytes) break;
    }
    return moved;
}

static cdp_status rest(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    (void)self;
    (void)lock;
    (void)deadline_ns;
    return CDP_OK;
}

static void nothing(void *self) {
    (void)self;
}

static void open_rank(uint32_t rank, uint32_t size) {
    rank_of *r = &all[rank];
    const cdp_transport t = {
        .self = r, .send = put, .recv = take, .wait = rest, .wake = nothing, .destroy = nothing};
    cdp_group_desc d;
    memset(&d, 0, sizeof d);
    d.rank = rank;
    d.world_size = size;
    cdp__group_desc_defaults(&d);
    memset(r, 0, sizeof *r);
    r->rank = rank;
    r->w = cdp__world_create(&d, &t);
    if (!T(r->w != NULL)) abort();
    for (uint32_t p = 0; p < size; ++p) {
        r->streams[p].channel = CHANNEL;
        r->streams[p].peer = p;
        if (p != rank) cdp__stream_insert(r->w, &r->streams[p]);
    }
    r->x.w = r->w;
    r->x.streams = r->streams;
    r->x.piece_bytes = 1024;
    r->x.expose_bytes = 1 << 20;
}

static void open_all(uint32_t size, uint32_t bytes_a_call) {
    memset(pipes, 0, sizeof pipes);
    dribble = bytes_a_call;
    polls = sent_bytes = 0;
    for (uint32_t i = 0; i < size; ++i)
        open_rank(i, size);
}

static void close_all(uint32_t size) {
    for (uint32_t i = 0; i < size; ++i) {
        for (uint32_t p = 0; p < size; ++p) {
            cdp__stream_remove(all[i].w, &all[i].streams[p]);
            cdp__free(all[i].w->os, all[i].streams[p].early);
        }
        cdp__free(all[i].w->os, all[i].x.tmp);
        cdp__world_destroy(all[i].w);
    }
}

/* Operation `seq` of rank `rank`; `sizes` and `root` as in a group. */
static cdp__task task_of(uint32_t rank, uint32_t size, uint32_t algo, uint64_t seq, const float *in,
    float *out, uint64_t count, uint32_t root) {
    cdp__task t;
    memset(&t, 0, sizeof t); /* shapes are compared as bytes */
    t.call.channel = CHANNEL;
    t.call.seq = seq;
    t.call.count = count;
    t.call.root = root;
    t.call.kind = (uint8_t)cdp__algo_at(algo)->kind;
    t.call.dtype = CDP_DTYPE_F32;
    t.call.op = CDP_REDUCE_SUM;
    t.call.algo = (uint8_t)algo;
    t.shape.kind = cdp__algo_at(algo)->kind;
    t.shape.op = CDP_REDUCE_SUM;
    t.shape.rank = rank;
    t.shape.size = size;
    t.shape.root = root;
    t.shape.count = count;
    t.shape.in_place = in == out;
    t.in = in == out ? NULL : in;
    t.out = out;
    t.factor = 1;
    return t;
}

/* Poll every rank in turn until all are idle, one has failed, or nothing moves any more. */
static bool run_all(uint32_t size) {
    for (uint32_t still = 0; still < 3;) {
        bool busy = false, moved = false;
        for (uint32_t i = 0; i < size; ++i) {
            const cdp__advance a = cdp__exec_poll(&all[i].x);
            if (a != CDP__IDLE) busy = true;
            if (a == CDP__MOVED) moved = true;
            if (all[i].x.fault != CDP__FAULT_NONE) return false;
            ++polls;
        }
        if (!busy) return true;
        still = moved ? 0 : still + 1;
    }
    return false;
}

#define COUNT 300u

static float in[RANKS][RANKS * COUNT], out[RANKS][RANKS * COUNT];

static void fill(uint32_t size) {
    for (uint32_t r = 0; r < size; ++r)
        for (uint32_t i = 0; i < RANKS * COUNT; ++i) {
            in[r][i] = (float)(r * 10000 + i);
            out[r][i] = -1;
        }
}

static void begin_all(uint32_t size, uint32_t algo, uint64_t seq, uint64_t count, bool again) {
    for (uint32_t r = 0; r < size; ++r) {
        const cdp__task t = task_of(r, size, algo, seq, in[r], out[r], count, 0);
        const bool like = cdp__exec_like(&all[r].x, &t.shape, 4);
        T_EQ(again, like);
        cdp__exec_begin(&all[r].x, &t, like);
    }
}

static bool summed(uint32_t size, uint64_t count) {
    for (uint32_t r = 0; r < size; ++r)
        for (uint32_t i = 0; i < count; ++i) {
            float want = 0;
            for (uint32_t p = 0; p < size; ++p)
                want += in[p][i];
            if (out[r][i] != want) return false;
        }
    return true;
}

/* Every algorithm of allreduce that takes any number of ranks, a byte at a time and many. */
TEST(every_allreduce_adds_up) {
    static const uint32_t pieces[] = {1, 7, 64, ROOM};
    uint32_t ran = 0;
    for (uint32_t a = 0; a < CDP__ALGO_COUNT; ++a) {
        if (cdp__algo_at(a)->kind != CDP_COLL_ALLREDUCE) continue;
        if (a == CDP__LANES || a == CDP__LEADERS) continue; /* need hosts */
        for (uint32_t size = 2; size <= RANKS; ++size)
            for (uint32_t k = 0; k < sizeof pieces / sizeof *pieces; ++k) {
                open_all(size, pieces[k]);
                fill(size);
                begin_all(size, a, 1, COUNT, false);
                T(run_all(size));
                T(summed(size, COUNT));
                close_all(size);
                ++ran;
            }
    }
    T(ran >= 5 * 4 * 4);
}

/* An operation like the last one finds its steps, and its buffers are the new ones. */
TEST(steps_of_a_like_operation_are_kept) {
    open_all(4, ROOM);
    fill(4);
    begin_all(4, CDP__FLAT, 1, 8, false);
    T(run_all(4));
    T(all[0].x.kept);
    for (uint32_t r = 0; r < 4; ++r)
        for (uint32_t i = 0; i < 8; ++i)
            in[r][i] *= 2;
    begin_all(4, CDP__FLAT, 2, 8, true);
    T(run_all(4));
    T(summed(4, 8));
    begin_all(4, CDP__FLAT, 3, 9, false);
    T(run_all(4));
    T(summed(4, 9));
    close_all(4);
}

/* Nobody sends: the poll says that only the transport can help, and whom the rank waits for. */
TEST(who_is_awaited_is_known) {
    open_all(2, ROOM);
    fill(2);
    const cdp__task t = task_of(1, 2, CDP__TREE, 1, out[1], out[1], COUNT, 0);
    cdp__exec_begin(&all[1].x, &t, false);
    for (int i = 0; i < 10; ++i)
        T_EQ(CDP__BLOCKED, cdp__exec_poll(&all[1].x));
    const cdp__transfer *late = cdp__exec_late(&all[1].x);
    if (T(late != NULL)) T_EQ(0, cdp__exec_rank_of(&all[1].x, late));
    close_all(2);
}

/* A peer whose bytes end in the middle of a body. */
TEST(a_lost_peer_is_a_fault) {
    open_all(2, 100);
    fill(2);
    cdp__task t = task_of(0, 2, CDP__TREE, 1, in[0], in[0], COUNT, 0);
    cdp__exec_begin(&all[0].x, &t, false);
    t = task_of(1, 2, CDP__TREE, 1, out[1], out[1], COUNT, 0);
    cdp__exec_begin(&all[1].x, &t, false);
    for (int i = 0; i < 5; ++i)
        cdp__exec_poll(&all[0].x);
    pipes[0][1].ended = true;
    for (int i = 0; i < 100 && all[1].x.fault == CDP__FAULT_NONE; ++i)
        cdp__exec_poll(&all[1].x);
    T_EQ(CDP__FAULT_LOST, all[1].x.fault);
    T_EQ(0, all[1].x.fault_rank);
    T_EQ(CDP__MOVED, cdp__exec_poll(&all[1].x)); /* it says so until it is asked no more */
    close_all(2);
}

/* What is to be said to a lost peer is tried once, not in every turn of a wait, and takes no
   memory. */
TEST(messages_to_a_lost_peer_are_not_tried_again) {
    open_all(2, ROOM);
    cdp__world *w = all[0].w;
    pipes[0][1].ended = true;
    put_calls = 0;
    for (int i = 0; i < 100; ++i) {
        T(cdp__stream_send_control(w, &all[0].streams[1], CDP__MESSAGE_CREDIT));
        cdp__world_send_queued(w);
    }
    T_EQ(1, put_calls);
    T(!cdp__port_flush(w, 1));
    T_EQ(w->ports[1].control_at, w->ports[1].control_used);
    w->control_queued = true;
    cdp__world_send_queued(w);
    T(!w->control_queued);
    close_all(2);
}

/* Another call than ours: what came is kept for the text of the error. */
TEST(another_call_is_a_fault) {
    open_all(2, ROOM);
    fill(2);
    cdp__task t = task_of(0, 2, CDP__TREE, 1, in[0], in[0], 7, 0);
    cdp__exec_begin(&all[0].x, &t, false);
    t = task_of(1, 2, CDP__TREE, 1, out[1], out[1], 8, 0);
    cdp__exec_begin(&all[1].x, &t, false);
    T(!run_all(2));
    T_EQ(CDP__FAULT_MISMATCH, all[1].x.fault);
    T_EQ(0, all[1].x.fault_rank);
    T_EQ(7, all[1].x.theirs.count);
    T(out[1][0] == -1); /* nothing was received into the caller's memory */
    close_all(2);
}

/* ---- a message that is read where it lies */

static const void *lies_at;

static bool show(
    void *self, uint32_t peer, const void *data, uint64_t bytes, bool fresh, uint64_t *token) {
    (void)self;
    (void)peer;
    (void)bytes;
    (void)fresh;
    lies_at = data;
    *token = 5;
    return true;
}

static void hide(void *self, uint32_t peer, uint64_t token) {
    (void)self;
    (void)peer;
    (void)token;
}

static const void *look_at(void *self, uint32_t peer, uint64_t token, uint64_t bytes) {
    (void)self;
    (void)peer;
    (void)bytes;
    return token == 5 ? lies_at : NULL;
}

static bool looked_at(void *self, uint32_t peer, uint64_t token) {
    hide(self, peer, token);
    return true;
}

static void show_all(uint32_t size) {
    for (uint32_t r = 0; r < size; ++r) {
        all[r].w->transport.remote.expose = show;
        all[r].w->transport.remote.revoke = hide;
        all[r].w->transport.remote.map = look_at;
        all[r].w->transport.remote.unmap = looked_at;
        all[r].x.expose_bytes = 64;
    }
}

/* Rank 0 waits until its message is read. Between its poll and its look at what else rank 1 says,
   rank 1 reads it and goes on to its next call. */
TEST(a_receiver_that_has_read_may_be_a_call_ahead) {
    open_all(2, ROOM);
    show_all(2);
    fill(2);
    cdp__task t = task_of(0, 2, CDP__TREE, 1, in[0], in[0], COUNT, 0);
    cdp__exec_begin(&all[0].x, &t, false);
    while (cdp__exec_poll(&all[0].x) == CDP__MOVED) {
    }
    t = task_of(1, 2, CDP__TREE, 1, out[1], out[1], COUNT, 0);
    cdp__exec_begin(&all[1].x, &t, false);
    for (int i = 0; i < 10 && all[1].x.running; ++i)
        cdp__exec_poll(&all[1].x);
    T(!all[1].x.running);
    T(out[1][COUNT - 1] == in[0][COUNT - 1]);
    t = task_of(1, 2, CDP__TREE, 2, in[1], in[1], 4, 1);
    cdp__exec_begin(&all[1].x, &t, false);
    for (int i = 0; i < 10 && all[1].x.running; ++i)
        cdp__exec_poll(&all[1].x);
    T(cdp__exec_check_receiver(&all[0].x, 0));
    T_EQ(CDP__FAULT_NONE, all[0].x.fault);
    T(run_all(2));
    t = task_of(0, 2, CDP__TREE, 2, out[0], out[0], 4, 1);
    cdp__exec_begin(&all[0].x, &t, false);
    T(run_all(2));
    T(out[0][3] == in[1][3]);
    close_all(2);
}

/* As long as it has not read it, what it says is of a call that is not rank 0's. */
TEST(a_receiver_that_has_not_read_is_overheard) {
    open_all(2, ROOM);
    show_all(2);
    fill(2);
    cdp__task t = task_of(0, 2, CDP__TREE, 1, in[0], in[0], COUNT, 0);
    cdp__exec_begin(&all[0].x, &t, false);
    while (cdp__exec_poll(&all[0].x) == CDP__MOVED) {
    }
    t = task_of(1, 2, CDP__TREE, 1, in[1], in[1], 4, 1);
    cdp__exec_begin(&all[1].x, &t, false);
    cdp__exec_poll(&all[1].x);
    T(cdp__exec_check_receiver(&all[0].x, 0));
    T_EQ(CDP__FAULT_MISMATCH, all[0].x.fault);
    T_EQ(4, all[0].x.theirs.count);
    close_all(2);
}

static void *no_alloc(void *user, uint64_t bytes) {
    (void)user;
    (void)bytes;
    return NULL;
}

TEST(scratch_that_cannot_be_had_is_a_fault) {
    open_all(2, ROOM);
    fill(2);
    cdp_os os = *all[0].w->os;
    os.alloc = no_alloc;
    const cdp_os *kept = all[0].w->os;
    all[0].w->os = &os;
    const cdp__task t = task_of(0, 2, CDP__DOUBLING, 1, in[0], out[0], COUNT, 0);
    cdp__exec_begin(&all[0].x, &t, false);
    all[0].w->os = kept;
    T_EQ(CDP__FAULT_NOMEM, all[0].x.fault);
    T_EQ(0, sent_bytes);
    close_all(2);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"every_allreduce_adds_up", every_allreduce_adds_up, 20},
        {"steps_of_a_like_operation_are_kept", steps_of_a_like_operation_are_kept, 5},
        {"who_is_awaited_is_known", who_is_awaited_is_known, 5},
        {"a_lost_peer_is_a_fault", a_lost_peer_is_a_fault, 5},
        {"messages_to_a_lost_peer_are_not_tried_again", messages_to_a_lost_peer_are_not_tried_again,
            10},
        {"another_call_is_a_fault", another_call_is_a_fault, 5},
        {"a_receiver_that_has_read_may_be_a_call_ahead",
            a_receiver_that_has_read_may_be_a_call_ahead, 5},
        {"a_receiver_that_has_not_read_is_overheard", a_receiver_that_has_not_read_is_overheard, 5},
        {"scratch_that_cannot_be_had_is_a_fault", scratch_that_cannot_be_had_is_a_fault, 5},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
