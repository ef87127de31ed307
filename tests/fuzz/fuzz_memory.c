/* What a process of this host may write into memory that a rank shares with it: rings, eager
   slots, exposures and their tokens, segments, doorbells. Two ranks work in one thread over one
   shared memory, polled in turn; rank 1 is honest, but the input also writes wherever rank 1 may.

   Inputs made from a seed: what both ranks do, in which order, and what is written where. How to
   run it: fuzz.h.

   Whatever is written, rank 0 may not crash, hang, leak, write beside a buffer, or map or read
   what is not there; and without such writes every result is right. */
#include "fuzz.h"
#include "../unit/group_memory.h"

/* ---- a false host: memory in blocks, descriptors that are their numbers */

#define BLOCKS 64
#define FDS_QUEUED 256
#define PASS_FD 1000 /* + rank */
#define BELL_FD 2000

typedef struct block {
    uint8_t *at;
    uint64_t bytes, mapped; /* mapped: by both ranks together, so up to twice `bytes` */
} block;

typedef struct host {
    block blocks[BLOCKS];
    uint32_t count;
    int32_t passed[2][FDS_QUEUED]; /* to rank */
    uint32_t put[2], got[2];
    uint64_t now, live;
    uint32_t rung[2];
} host;

static host h;
/* what rank 1's process has besides: only this can be read there */
static uint8_t *peer_memory;
#define PEER_BYTES (1u << 18)

static void *host_alloc(void *user, uint64_t bytes) {
    void *p = bytes > (4u << 20) ? NULL : fuzz_alloc(bytes);
    (void)user;
    h.live += p != NULL;
    return p;
}

static void host_release(void *user, void *p) {
    (void)user;
    h.live -= p != NULL;
    fuzz_free(p);
}

static uint64_t host_now(void *user) {
    (void)user;
    return h.now;
}

#define COUNT 10000
#define BUFFER_BYTES ((COUNT + 1) * 4)

/* Zeroes what ranks use of it: of a segment the beginning, with two buffers. */
static int32_t host_create(void *user, uint64_t bytes) {
    const uint64_t used = 2 * (BUFFER_BYTES + 64);
    uint8_t *at;
    (void)user;
    if (h.count == BLOCKS || bytes > (4u << 20)) return -ENOMEM;
    at = (uint8_t *)fuzz_alloc(bytes);
    memset(at, 0, (size_t)(bytes < CDP__SEGMENT_BYTES ? bytes : used));
    h.blocks[h.count].at = at;
    h.blocks[h.count].bytes = bytes;
    h.blocks[h.count].mapped = 0;
    return (int32_t)h.count++;
}

static void *host_map(void *user, int32_t fd, bool writable, uint64_t *bytes) {
    (void)user;
    (void)writable;
    if (fd < 0 || (uint32_t)fd >= h.count) return NULL;
    *bytes = h.blocks[fd].bytes;
    h.blocks[fd].mapped += *bytes;
    return h.blocks[fd].at;
}

static void host_unmap(void *user, void *at, uint64_t bytes) {
    const uint8_t *from = (const uint8_t *)at;
    uint32_t i = 0;
    (void)user;
    while (i < h.count && (from < h.blocks[i].at || from >= h.blocks[i].at + h.blocks[i].bytes))
        ++i;
    T(i < h.count && bytes <= h.blocks[i].bytes - (uint64_t)(from - h.blocks[i].at));
    T(bytes <= h.blocks[i].mapped);
    h.blocks[i].mapped -= bytes;
}

static void host_close(void *user, int32_t fd) {
    (void)user;
    (void)fd;
}

static int32_t host_pass(void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending) {
    const uint32_t to = (uint32_t)(fd - PASS_FD) ^ (sending ? 1u : 0u);
    (void)user;
    T((fd == PASS_FD || fd == PASS_FD + 1) && n == 1);
    if (sending) {
        if (h.put[to] - h.got[to] == FDS_QUEUED) return -EAGAIN;
        h.passed[to][h.put[to]++ % FDS_QUEUED] = *fds;
        return 1;
    }
    if (h.put[to] == h.got[to]) return -EAGAIN;
    *fds = h.passed[to][h.got[to]++ % FDS_QUEUED];
    return 1;
}

static bool inside(uint64_t at, uint64_t bytes, const void *p, uint64_t room) {
    const uint64_t from = (uint64_t)(uintptr_t)p;
    return at >= from && at - from <= room && bytes <= room - (at - from);
}

static cdp__mesh meshes[2];
static cdp__link links[2][2]; /* of rank r, to peer p */

/* Rank 1 has exposed these bytes, in an exposure that rank 0 is reading. */
static bool exposed(uint64_t at, uint64_t bytes) {
    const cdp__exposure *e = links[0][1].shared->line.in->exposed;
    for (uint32_t i = 0; i < CDP_EXPOSURES; ++i)
        if ((e[i].state & CDP__BEGUN) && at - e[i].at <= e[i].bytes
            && bytes <= e[i].bytes - (at - e[i].at))
            return true;
    return false;
}

/* The processes are one here, so the false kernel looks what belongs to rank 1 (or, for rank 1, to
   rank 0: anything it asks for was exposed to it). */
static const void *readable[4];
static uint64_t readable_bytes[4];

static int32_t host_read(
    void *user, int32_t pid, const uint64_t *from, const cdp_iov *to, uint32_t n) {
    (void)user;
    T(pid == 1 || n == 1 || exposed(from[1], to[1].bytes)); /* the first is the proof */
    for (uint32_t i = 0; i < n; ++i) {
        bool good = pid == 1; /* rank 1 reads of rank 0 */
        for (uint32_t k = 0; k < 4 && !good; ++k)
            good = readable[k] && inside(from[i], to[i].bytes, readable[k], readable_bytes[k]);
        if (!good) return -EFAULT;
        memcpy(to[i].data, (const void *)(uintptr_t)from[i], (size_t)to[i].bytes);
    }
    return 0;
}

static void host_wake(void *user, int32_t fd) {
    (void)user;
    T(fd == BELL_FD || fd == BELL_FD + 1);
    ++h.rung[fd - BELL_FD];
}

static cdp_status host_random(void *user, void *dst, uint64_t bytes) {
    (void)user;
    memset(dst, 5, (size_t)bytes);
    return CDP_OK;
}

/* ---- two ranks over it */

static bool nonsense[2];

static int64_t side_move(void *self, const cdp_iov *v, uint32_t n, bool sending) {
    const uint32_t me = (uint32_t)((cdp__mesh *)self - meshes);
    const int64_t r =
        nonsense[me] ? -1 : cdp__line_move(&links[me][1 - me].shared->line, v, n, sending);
    if (r >= 0) return r;
    nonsense[me] = true;
    return cdp_error_set(CDP_ERR_PEER_LOST, 1 - (int32_t)me, 0, "nonsense");
}

static int64_t side_send(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    (void)peer;
    return side_move(self, v, n, true);
}

static int64_t side_recv(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    (void)peer;
    return side_move(self, v, n, false);
}

/* Nobody else moves while a rank sleeps, so it sleeps until its deadline. */
static cdp_status side_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    cdp__mesh *m = (cdp__mesh *)self;
    bool news = false;
    (void)lock;
    if (deadline_ns || h.now % 150000 < 50000) news = cdp__shared_doze(m->sharing);
    cdp__shared_awake(m->sharing);
    h.now += 50000;
    if (!news && deadline_ns != UINT64_MAX) h.now = cdp__max(h.now, deadline_ns);
    return CDP_OK;
}

static void side_nothing(void *self) {
    (void)self;
}

static cdp_transport side_transport(uint32_t me) {
    cdp_transport t;
    memset(&t, 0, sizeof t);
    t.self = &meshes[me];
    t.send = side_send;
    t.recv = side_recv;
    t.wait = side_wait;
    t.wake = t.destroy = side_nothing;
    t.memory.alloc = cdp__mesh_alloc;
    t.memory.release = cdp__mesh_release;
    t.slots.memory = cdp__mesh_slots;
    t.slots.ring = cdp__mesh_doorbell;
    t.remote.expose = cdp__mesh_expose;
    t.remote.revoke = cdp__mesh_revoke;
    t.remote.try_revoke = cdp__mesh_try_revoke;
    t.remote.map = cdp__mesh_map;
    t.remote.unmap = cdp__mesh_unmap;
    t.remote.get = cdp__mesh_get;
    return t;
}

static void sides_open(cdp_os *os) {
    const uint8_t proof[CDP__NAME_BYTES] = {1, 2, 3};
    const int32_t fd = host_create(NULL, cdp__shared_size(4096));
    for (uint32_t me = 0; me < 2; ++me) {
        cdp__mesh *m = &meshes[me];
        cdp__shared *s = cdp__shared_open(os, fd, me == 1);
        T(s != NULL);
        memset(m, 0, sizeof *m);
        memset(links[me], 0, sizeof links[me]);
        m->os = os;
        m->desc.group.rank = me;
        m->desc.group.world_size = 2;
        m->desc.group.expose_bytes = 2048;
        m->links = links[me];
        m->sharing = s;
        links[me][1 - me].mesh = m;
        links[me][1 - me].peer = 1 - me;
        links[me][1 - me].state = CDP__LINK_UP;
        links[me][1 - me].shared = s;
        s->bell = BELL_FD + 1 - (int32_t)me;
        s->pass = PASS_FD + (int32_t)me;
        cdp__shared_prove(s, proof);
        nonsense[me] = false;
    }
    readable[0] = links[1][0].shared->proof;
    readable_bytes[0] = sizeof links[1][0].shared->proof;
    readable[1] = peer_memory;
    readable_bytes[1] = PEER_BYTES;
    for (uint32_t me = 0; me < 2; ++me) /* the number of a process: that of its rank + 1 */
        cdp__shared_try(links[me][1 - me].shared, (int32_t)(2 - me));
}

static void side_close(uint32_t me) {
    cdp__mesh *m = &meshes[me];
    for (uint32_t i = 0; m->segments && i < CDP_SEGMENTS; ++i)
        T(!m->segments[i].at);
    host_release(NULL, m->segments);
    cdp__shared_close(links[me][1 - me].shared);
}

static void blocks_free(void) {
    for (uint32_t i = 0; i < h.count; ++i) {
        T(h.blocks[i].mapped == 0);
        fuzz_free(h.blocks[i].at);
    }
}

/* ---- what the input writes: wherever rank 1 may */

static uint64_t value_of(fuzz_input *in, uint64_t old) {
    uint64_t v = 0;
    const uint8_t how = next_byte(in);
    for (uint32_t i = 0; i < how % 9u; ++i)
        v = v << 8 | next_byte(in);
    switch (how >> 6) {
    case 0: return v;
    case 1: return old + v;
    case 2: return old - v;
    default: return old ^ v;
    }
}

#define WRITE(x) (x) = (__typeof__(x))value_of(in, (uint64_t)(x))

static void write_slot(fuzz_input *in, cdp__eager_slots *slots) {
    cdp__eager_slot *p = &slots->place[next_byte(in) % CDP_SLOTS];
    const uint8_t what = next_byte(in);
    switch (what % 6) {
    case 0: WRITE(p->serial); break;
    case 1: WRITE(p->number); break;
    case 2: WRITE(p->channel); break;
    case 3: WRITE(p->bytes); break;
    case 4: WRITE(p->head[what / 6 % CDP__SLOT_HEAD]); break;
    default: WRITE(p->data[what]); break;
    }
}

static void write_exposure(fuzz_input *in, cdp__exposure *all) {
    cdp__exposure *e = &all[next_byte(in) % 4];
    switch (next_byte(in) % 5) {
    case 0: WRITE(e->at); break;
    case 1: WRITE(e->bytes); break;
    case 2: WRITE(e->off); break;
    case 3: WRITE(e->state); break;
    default: WRITE(e->segment); break;
    }
}

static void write_side(fuzz_input *in, cdp__side *s) {
    const uint8_t what = next_byte(in);
    switch (what % 6) {
    case 0: WRITE(s->bell.wants); break;
    case 1: WRITE(s->proof_at); break;
    case 2: WRITE(s->reads); break;
    case 3: WRITE(s->freed); break;
    default: WRITE(s->segments[what / 6 % 4]); break;
    }
}

static void write_anything(fuzz_input *in) {
    cdp__shared *s = links[1][0].shared;
    cdp__way *out = s->line.out, *back = s->line.in;
    const uint8_t what = next_byte(in);
    switch (what % 10) {
    case 0: WRITE(out->ring.head); break;
    case 1: WRITE(back->ring.tail); break;
    case 2:
        WRITE(((uint8_t *)(&out->ring + 1))[(s->line.out_at + what / 8 - 32) % s->line.size]);
        break;
    case 3: WRITE(back->eager.slots.taken[next_byte(in) % CDP_SLOTS]); break;
    case 4:
    case 5: write_slot(in, &out->eager.slots); break;
    case 6: write_exposure(in, out->exposed); break;
    /* of what rank 0 exposes: the rest of it only rank 1 reads */
    case 7: WRITE(back->exposed[next_byte(in) % 4].state); break;
    case 8: WRITE(links[0][1].shared->mine->bell.rung[what / 10 % 2]); break;
    default: write_side(in, s->mine); break;
    }
    if (next_byte(in) % 4 == 0) { /* a descriptor comes, of a block of any length */
        int32_t fd = host_create(NULL, 64u + 64u * next_byte(in));
        if (fd >= 0) (void)host_pass(NULL, PASS_FD + 1, &fd, 1, true);
    }
}

/* ---- one life */

#define GUARD 0x7e7e7e7e
#define OPERATIONS 4
#define INPUT_BYTES 512 /* the rest of an input is left out: it takes time and shows nothing new */
#define STEPS 4000      /* more than an operation needs while nothing was written */
#define STEPS_AFTER 24  /* when the input has ended, and something was written */
#define TIMEOUT_MS 1000
#define LATE_NS 300000000u /* so much later the input may make it in one operation */

static const uint32_t counts[] = {1, 50, 900, 1100, 6000, COUNT};
static int32_t *buffers[2][2];

/* What `rank` gives to operation k. Sums of two do not overflow. */
static const int32_t *elements(uint32_t rank, uint32_t k) {
    static int32_t all[COUNT + 2000];
    if (!all[1])
        for (uint32_t i = 0; i < COUNT + 2000; ++i)
            all[i] = (int32_t)(i * 2654435761u >> 2);
    return all + 200 * k + 97 * rank;
}

static uint32_t count_of(uint8_t what) {
    return counts[what >> 2 & 7 ? (what >> 2 & 7) % 6 : 4];
}

static cdp_status begin(cdp_group *g, uint32_t k, uint8_t what, cdp_work *work) {
    const uint32_t me = cdp_rank(g), n = count_of(what);
    int32_t *in = buffers[me][0], *out = buffers[me][1];
    memcpy(in, elements(me, k), n * sizeof *in);
    in[n] = out[n] = GUARD;
    switch (what % 4) {
    case 0: return cdp_allreduce_async(g, in, out, n, CDP_DTYPE_I32, CDP_REDUCE_SUM, work);
    case 1: return cdp_allgather_async(g, in, out, n / 2, CDP_DTYPE_I32, work);
    case 2: return cdp_broadcast_async(g, in, n, CDP_DTYPE_I32, 1, work);
    default:
        return me ? cdp_send_async(g, in, n, CDP_DTYPE_I32, 0, k, work)
                  : cdp_recv_async(g, out, n, CDP_DTYPE_I32, 1, k, work);
    }
}

/* What rank 0 has now. */
static bool right(uint32_t k, uint8_t what) {
    const uint32_t n = count_of(what);
    const int32_t *in = buffers[0][0], *out = buffers[0][1];
    const int32_t *mine = elements(0, k), *theirs = elements(1, k);
    switch (what % 4) {
    case 0:
        for (uint32_t i = 0; i < n; ++i)
            if (out[i] != mine[i] + theirs[i]) return false;
        return true;
    case 1:
        return memcmp(out, mine, n / 2 * sizeof *out) == 0
            && memcmp(out + n / 2, theirs, n / 2 * sizeof *out) == 0;
    case 2: return memcmp(in, theirs, n * sizeof *in) == 0;
    default: return memcmp(out, theirs, n * sizeof *out) == 0;
    }
}

/* As cdp_work_test(), but nothing advances. */
static bool has_ended(cdp_work work) {
    return cdp__work_status(work.group, work.seq) != CDP_PENDING;
}

/* Each message that rank 0 reads from an eager slot lies within that slot. The body of one with an
   impossible length is never read. */
static void slots_look(const cdp_group *g) {
    const cdp__world *w = g->w;
    for (uint32_t i = 0; i < w->stream_rows; ++i)
        for (const cdp__stream *s = w->streams[i]; s; s = s->next)
            T(!s->slot || s->body_left == UINT32_MAX
                || s->slot_at + s->body_left <= CDP_SLOT_BYTES);
}

/* Lets both ranks advance, as the input says; then in turn. True: both works have ended. */
static bool advance(cdp_group *g[2], cdp_work work[2], fuzz_input *in, bool *honest) {
    uint32_t after = 0;
    uint64_t late = 0;
    for (uint32_t step = 0; step < STEPS; ++step) {
        const uint8_t op = next_byte(in);
        if (in->n && op % 8 == 0) {
            write_anything(in);
            *honest = false;
        }
        if (!in->n || op & 16) (void)cdp_poll(g[0], 20);
        if (!*honest) slots_look(g[0]);
        if (!in->n || op & 32) (void)cdp_poll(g[1], 20);
        if (op % 8 == 1 && late < LATE_NS) {
            late += (uint64_t)op * 100000;
            h.now += (uint64_t)op * 100000;
        }
        if (has_ended(work[0]) && has_ended(work[1])) return true;
        if (!in->n && !*honest && ++after == STEPS_AFTER) return false;
    }
    return false;
}

static void operations(cdp_group *g[2], fuzz_input *in) {
    bool honest = true, fine = true;
    for (uint32_t k = 1; k <= OPERATIONS && fine && (in->n || k == 1); ++k) {
        const uint8_t what = next_byte(in);
        cdp_work work[2];
        const bool begun =
            begin(g[0], k, what, &work[0]) == CDP_OK && begin(g[1], k, what, &work[1]) == CDP_OK;
        bool done;
        T(begun || !honest);
        if (!begun) return;
        done = advance(g, work, in, &honest);
        for (uint32_t r = 0; r < 2; ++r) /* by its deadline */
            fine = cdp_work_wait(work[r]) == CDP_OK && fine;
        for (uint32_t b = 0; b < 2; ++b)
            T(buffers[0][b][count_of(what)] == GUARD);
        T(!honest || (done && fine && right(k, what)));
    }
}

static void buffers_free(cdp_group *g, bool segments) {
    const uint32_t me = cdp_rank(g);
    for (uint32_t b = 0; b < 2; ++b) {
        if (segments)
            cdp_group_free(g, buffers[me][b]);
        else if (me == 0)
            fuzz_free(buffers[me][b]);
    }
}

/* Both ranks end together, or rank 0 ends while rank 1 still has its segments. */
static void end(cdp_group *g[2], bool segments, bool one_by_one) {
    for (uint32_t r = 0; r < 2; ++r) {
        buffers_free(g[r], segments);
        if (!one_by_one) continue;
        cdp_group_destroy(g[r]);
        side_close(r);
    }
    for (uint32_t r = 0; r < 2 && !one_by_one; ++r)
        cdp_group_destroy(g[r]);
    for (uint32_t r = 0; r < 2 && !one_by_one; ++r)
        side_close(r);
    blocks_free();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cdp_os os = *cdp_os_default();
    fuzz_input in = {data, cdp__min(size, INPUT_BYTES)};
    cdp_group *g[2];
    const uint8_t how = next_byte(&in);
    const bool segments = how & 1;
    if (!peer_memory) peer_memory = (uint8_t *)malloc(PEER_BYTES);
    memset(&h, 0, sizeof h);
    h.now = 1;
    os.alloc = host_alloc;
    os.release = host_release;
    os.now_ns = host_now;
    os.random = host_random;
    os.threads.start = NULL;
    os.threads.mutex_create = NULL;
    os.net.close_fd = host_close;
    os.net.wake_set = host_wake;
    os.shared.create = host_create;
    os.shared.map = host_map;
    os.shared.unmap = host_unmap;
    os.shared.unmap_parts = (how & 8) != 0;
    os.shared.pass = host_pass;
    os.shared.read_process = host_read;
    sides_open(&os);
    for (uint32_t r = 0; r < 2; ++r) {
        cdp_transport t = side_transport(r);
        const cdp_group_desc d = {.rank = r,
            .world_size = 2,
            .transport = &t,
            .timeout_ms = TIMEOUT_MS,
            .expose_bytes = 2048,
            .stage_bytes = 4096,
            .records = 4,
            .no_spin = (how & 2) != 0,
            .no_thread = true,
            .os = &os,
            .logger = {.level = CDP_LOG_SILENT}};
        T(cdp_group_create(&d, &g[r]) == CDP_OK);
        for (uint32_t b = 0; b < 2; ++b) {
            if (segments)
                buffers[r][b] = (int32_t *)memory_of_group(g[r], BUFFER_BYTES);
            else if (r == 1)
                buffers[r][b] = (int32_t *)peer_memory + b * (COUNT + 1);
            else
                buffers[r][b] = (int32_t *)fuzz_alloc(BUFFER_BYTES);
            T(buffers[r][b] != NULL);
        }
    }
    operations(g, &in);
    end(g, segments, (how & 4) != 0);
    T(h.live == 0);
    return 0;
}

/* ---- inputs of its own */

#ifndef FUZZ_LIB
static size_t make_input(uint64_t seed, uint8_t *out) {
    const uint32_t n = 40 + pick(400), rare = 1 + pick(5), honest = pick(8) == 0;
    (void)seed;
    for (uint32_t i = 0; i < n; ++i) {
        out[i] = (uint8_t)pick(256);
        if (pick(rare) == 0) out[i] = (uint8_t)(out[i] & ~7u); /* write, then what that needs */
        if (honest) out[i] |= 2;                               /* nothing at all */
        if (pick(2)) out[i] |= 16;
    }
    return n;
}
#endif
