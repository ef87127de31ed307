/* Whole jobs in a simulated world: N ranks, store, sockets and clock in one process, with seeded
   delays and faults.

   A run is made from three things: a scenario (what the ranks do), a kind of fault, and a seed.
   The same three give the same run, call by call. Faulty runs are made twice: once without the
   fault, to learn how long the run is, so that the fault can be put anywhere inside it; then
   with it.

   What is asked of every run: no rank hangs; no call outlives its deadline by more than 10 % and
   a constant; whatever succeeded has the right result; whatever failed blames the right rank; no
   rank that ends leaves memory or descriptors.

   sim --help */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include "cdp_dtensor.h"
#include "own.h"

#define CDP__BLOCK_BYTES 700u /* so that short streams take all connections of a link */
#include "cdp_tcp.h"

#include "sim.h"
#include "hub_os.h"
#include <signal.h>
#include <sys/wait.h>

/* ---- >>plan: everything about a run, from its seed ------------------------------------------- */

typedef enum fault_class {
    F_NONE,
    F_DELAY,
    F_KILL,
    F_CUT,
    F_PARTITION,
    F_ISOLATE,
    F_STOP,
    F_PAUSE,
    F_VANISH,
    F_NOMEM,
    F_ABORT,
    F_LEAVE,
    F_MISMATCH,
    F_CONFIG,
    F_COUNT
} fault_class;
static const char *const fault_names[F_COUNT] = {"none", "delay", "kill", "cut", "partition",
    "isolate", "stop", "pause", "vanish", "nomem", "abort", "leave", "mismatch", "config"};

typedef enum verdict {
    V_RIGHT,
    V_ERROR,
    V_BLAME,
    V_HANG,
    V_LATE,
    V_WRONG,
    V_LEAK,
    V_OTHER,
    V_COUNT
} verdict;
static const char *const verdict_names[V_COUNT] = {
    "right", "right error", "wrong blame", "hang", "late", "wrong result", "leak", "other"};

typedef struct outcome {
    bool ended, wrong, late;
    cdp_status status;
    cdp_error error;
    uint64_t ended_ns, call_deadline_ns;
    char note[300];
} outcome;

typedef struct run run;

typedef struct scenario {
    const char *name;
    cdp_status (*func)(run *r, sim_node *node);
    uint32_t nodes_min, nodes_max;
    uint32_t faults; /* bit set of fault_class */
    bool blame;      /* errors must name the right rank */
    /* What the ranks of a group do (NULL: job_program). */
    cdp_status (*program)(run *r, sim_node *node, cdp_group *g);
    uint32_t share; /* only every so many-th seed, unless asked for by name (0: every seed) */
    bool lenient;   /* with blame: but groups of some ranks may blame the first that leaves */
} scenario;

struct run {
    const scenario *sc;
    fault_class fault_kind;
    uint64_t seed;
    uint32_t nodes, timeout_ms, init_timeout_ms;
    bool tiny, one_host, threads, memory;
    bool shared_hosts, large;     /* several ranks per host; payloads above 64 KiB */
    uint32_t frame_us;            /* it starts by cdp_init_poll(), each call that long; 0: not */
    uint8_t hosts[SIM_MAX_NODES]; /* of each rank */
    sim_noise noise;
    sim_fault fault;
    sim_world *world;
    outcome out[SIM_MAX_NODES];
    /* what a rank does wrong on purpose: ABORT, LEAVE, MISMATCH, CONFIG, at a place in its
       program */
    fault_class act;
    uint32_t act_node;
    uint64_t act_at;
    bool act_now;
    /* memory that the library may still hold when an operation failed: freed after the group */
    void *later[SIM_MAX_NODES][32];
    uint32_t later_n[SIM_MAX_NODES];
    bool joined[SIM_MAX_NODES]; /* its death can be noticed from now on */
    cdp_hub *hub;
    cdp_os hub_os;
    uint32_t hub_left;
    uint64_t slack_ns; /* what a call may take beyond its deadline, besides 10 % */
    /* what the world said at its end */
    uint64_t hash, virtual_ns, calls[SIM_MAX_NODES], allocs[SIM_MAX_NODES], notice_ns;
};

static uint64_t started_at(const run *r, const sim_node *node) {
    (void)r;
    return node->world->now;
}

/* A call that must return in time: between begin and end, the node has `timeout_ms`. */
static void call_begin(run *r, sim_node *node, uint32_t timeout_ms) {
    r->out[node->id].call_deadline_ns =
        started_at(r, node) + timeout_ms * SIM_MS * 11 / 10 + r->slack_ns;
}

static void call_end(run *r, sim_node *node, const char *what) {
    outcome *o = &r->out[node->id];
    const uint64_t now = node->world->now;
    if (now > o->call_deadline_ns && !o->late) {
        o->late = true;
        snprintf(o->note, sizeof o->note,
            "%s returned %llu ms after its deadline and the allowance", what,
            (unsigned long long)((now - o->call_deadline_ns) / SIM_MS));
    }
}

static __attribute__((format(printf, 3, 4))) cdp_status wrong(
    run *r, sim_node *node, const char *f, ...) {
    outcome *o = &r->out[node->id];
    va_list ap;
    if (o->wrong) return CDP_OK;
    o->wrong = true;
    va_start(ap, f);
    vsnprintf(o->note, sizeof o->note, f, ap);
    va_end(ap);
    sim_say(node, "WRONG: %s", o->note);
    return CDP_OK;
}

/* ---- >>raw: the simulated sockets themselves ------------------------------------------------- */

/* Node 0 echoes what the others send; each checks that its own bytes come back in order. No
   library above the loop. */
typedef struct raw_end {
    cdp__loop *loop;
    cdp__io io;
    sim_node *node;
    run *r;
    uint64_t key, total, sent, got; /* client: stream positions */
    uint8_t room[2048];             /* server: bytes to send back */
    uint32_t held, held_from;
    int32_t err;
    bool done, connected, eof;
} raw_end;

static uint8_t raw_byte(uint64_t key, uint64_t i) {
    return (uint8_t)((i * 167 + (i >> 8) * 13 + key) ^ (i >> 16));
}

static void raw_serve(cdp__io *io) {
    raw_end *e = (raw_end *)io->user;
    for (;;) {
        cdp_iov v[2];
        int64_t n;
        if (!e->held && !e->eof) {
            v[0].data = e->room;
            v[0].bytes = 700; /* in two pieces, to see that scattering works */
            v[1].data = e->room + 700;
            v[1].bytes = sizeof e->room - 700;
            n = cdp__io_recv(e->loop, io, v, 2);
            if (n == 0) return;
            if (n == CDP_IO_EOF)
                e->eof = true;
            else if (n < 0)
                e->err = (int32_t)-n;
            else {
                e->held = (uint32_t)n;
                e->held_from = 0;
            }
        }
        if (e->err || (e->eof && !e->held)) {
            e->done = true;
            cdp__loop_remove(e->loop, io);
            return;
        }
        v[0].data = e->room + e->held_from;
        v[0].bytes = e->held;
        n = cdp__io_send(e->loop, io, v, 1);
        if (n == 0) return;
        if (n < 0) {
            e->err = (int32_t)-n;
            continue;
        }
        e->held -= (uint32_t)n;
        e->held_from += (uint32_t)n;
    }
}

static void raw_client(cdp__io *io) {
    raw_end *e = (raw_end *)io->user;
    uint8_t buf[600];
    cdp_iov v;
    int64_t n;
    uint64_t i;
    if (!e->connected) {
        if (!(io->ready & CDP_IO_WRITE)) return;
        e->err = -e->node->os.net.connect_result(e->node, io->fd);
        e->connected = e->err == 0;
    }
    while (!e->err && e->sent < e->total) {
        v.data = buf;
        v.bytes = sizeof buf < e->total - e->sent ? sizeof buf : e->total - e->sent;
        for (i = 0; i < v.bytes; ++i)
            buf[i] = raw_byte(e->key, e->sent + i);
        n = cdp__io_send(e->loop, io, &v, 1);
        if (n == 0) break;
        if (n < 0)
            e->err = (int32_t)-n;
        else
            e->sent += (uint64_t)n;
    }
    while (!e->err && e->got < e->total) {
        v.data = buf;
        v.bytes = sizeof buf;
        n = cdp__io_recv(e->loop, io, &v, 1);
        if (n == 0) break;
        if (n < 0) e->err = n == CDP_IO_EOF ? ECONNRESET : (int32_t)-n;
        for (i = 0; n > 0 && i < (uint64_t)n; ++i)
            if (buf[i] != raw_byte(e->key, e->got + i))
                wrong(
                    e->r, e->node, "byte %llu came back changed", (unsigned long long)(e->got + i));
        if (n > 0) e->got += (uint64_t)n;
    }
    if (e->err || e->got == e->total) e->done = true;
}

typedef struct raw_server {
    cdp__loop loop;
    cdp__io listener;
    raw_end *ends;
    uint32_t count, room;
    run *r;
    sim_node *node;
} raw_server;

static void raw_accept(cdp__io *io) {
    raw_server *s = (raw_server *)io->user;
    cdp_addr from;
    int32_t fd;
    while ((fd = s->node->os.net.accept_next(s->node, io->fd, &from)) >= 0) {
        raw_end *e = &s->ends[s->count++];
        if (s->count > s->room) abort();
        e->loop = &s->loop;
        e->r = s->r;
        e->node = s->node;
        cdp__loop_add(&s->loop, &e->io, fd, raw_serve, e);
    }
    cdp__loop_used_up(&s->loop, io, CDP_IO_READ);
}

static cdp_status raw_serve_all(run *r, sim_node *node) {
    raw_server *s = (raw_server *)sim_alloc(node, sizeof *s);
    const uint64_t until = node->world->now + r->timeout_ms * SIM_MS;
    cdp_addr at = sim_host_addr(node->world, node->host, 7000), bound;
    cdp_status st = CDP_OK;
    uint32_t i, done = 0;
    int32_t fd;
    s->room = 8 * r->nodes;
    s->ends = (raw_end *)sim_alloc(node, s->room * sizeof *s->ends);
    s->r = r;
    s->node = node;
    if (cdp__loop_open(&s->loop, &node->os) != CDP_OK) st = CDP_ERR_NOMEM;
    fd = node->os.net.listen_at(node, &at, &bound);
    if (fd < 0) st = cdp__fail_peer(CDP_ERR_IO, -1, -fd, "listen");
    cdp__loop_add(&s->loop, &s->listener, fd, raw_accept, s);
    while (st == CDP_OK && node->os.now_ns(node) < until) {
        for (done = i = 0; i < s->count; ++i)
            done += s->ends[i].done && !s->ends[i].err;
        if (done >= r->nodes - 1) break;
        st = cdp__loop_run(&s->loop, NULL, until);
    }
    if (st == CDP_OK && done < r->nodes - 1)
        st = cdp__fail(CDP_ERR_TIMEOUT, "%u of %u clients served", done, r->nodes - 1);
    for (i = 0; i < s->count; ++i)
        cdp__loop_remove(&s->loop, &s->ends[i].io);
    cdp__loop_remove(&s->loop, &s->listener);
    cdp__loop_close(&s->loop);
    sim_free(node, s->ends);
    sim_free(node, s);
    return st;
}

static cdp_status raw_ask(run *r, sim_node *node) {
    raw_end *e = (raw_end *)sim_alloc(node, sizeof *e);
    cdp__loop *loop = (cdp__loop *)sim_alloc(node, sizeof *loop);
    const uint64_t until = node->world->now + r->timeout_ms * SIM_MS;
    const cdp_addr to = sim_host_addr(node->world, 0, 7000);
    cdp_status st = cdp__loop_open(loop, &node->os);
    uint64_t rnd = sim_stream(r->seed, 500 + node->id);
    const uint64_t total = sim_log_between(&rnd, 1, r->tiny ? 300 : 60000);
    while (st == CDP_OK) {
        const int32_t fd = node->os.net.connect_to(node, &to);
        memset(e, 0, sizeof *e);
        e->loop = loop;
        e->r = r;
        e->node = node;
        e->key = node->id;
        e->total = total;
        if (fd < 0) {
            st = cdp__fail_peer(CDP_ERR_IO, 0, -fd, "connect");
            break;
        }
        cdp__loop_add(loop, &e->io, fd, raw_client, e);
        cdp__loop_want_write(loop, &e->io);
        while (!e->done && st == CDP_OK && node->os.now_ns(node) < until)
            st = cdp__loop_run(loop, NULL, until);
        cdp__loop_remove(loop, &e->io);
        if (e->done && !e->err) break;
        if (node->os.now_ns(node) >= until)
            st = cdp__fail_peer(CDP_ERR_TIMEOUT, 0, 0, "%llu of %llu bytes came back",
                (unsigned long long)e->got, (unsigned long long)total);
        else if (e->done && e->err != ECONNREFUSED)
            st = cdp__fail_peer(CDP_ERR_PEER_LOST, 0, e->err, "%llu of %llu bytes came back",
                (unsigned long long)e->got, (unsigned long long)total);
        else
            sim_sleep(node, 10 * SIM_MS); /* nobody listens there yet */
    }
    cdp__loop_close(loop);
    sim_free(node, loop);
    sim_free(node, e);
    return st;
}

static cdp_status raw_main(run *r, sim_node *node) {
    cdp_status st;
    sim_doing(node, "echo");
    call_begin(r, node, r->timeout_ms);
    st = node->id == 0 ? raw_serve_all(r, node) : raw_ask(r, node);
    call_end(r, node, "echo");
    return st;
}

/* ---- >>job: a random program of collectives and training steps ------------------------------- */

/* The first failure of a node is what its user sees; what the cleanup says afterwards does not
   count. */
static cdp_status failed(run *r, sim_node *node, cdp_status st) {
    outcome *o = &r->out[node->id];
    if (st == CDP_OK || o->error.status != CDP_OK) return st;
    o->error = *cdp_last_error();
    if (o->error.status != st)
        wrong(r, node, "returned %s but cdp_last_error() says %s: %s", cdp_status_name(st),
            cdp_status_name(o->error.status), o->error.text);
    return st;
}

/* how soon a killed rank must be known to all: generous, since delays are wild */
#define NOTICE_NS (2000 * SIM_MS)
#define MAX_OPS 8u /* in flight */

typedef struct op {
    cdp_request rq;
    uint64_t id;
    bool in_place;
    cdp_work work;
    void *in, *out, *memory;
    uint64_t started_ns;
    bool done;
} op;

/* Small whole numbers, so that sums are exact in every dtype and in every order. */
static int64_t job_value(uint64_t seed, uint64_t id, uint32_t rank, uint64_t i) {
    uint64_t s = seed ^ id * 0x9e3779b97f4a7c15ull ^ (uint64_t)rank << 40 ^ i;
    return (int64_t)(sim_random(&s) % 41) - 20;
}

static void store_value(void *p, cdp_dtype t, uint64_t i, int64_t v) {
    switch (t) {
    case CDP_DTYPE_F64: ((double *)p)[i] = (double)v; break;
    case CDP_DTYPE_I32: ((int32_t *)p)[i] = (int32_t)v; break;
    case CDP_DTYPE_I64: ((int64_t *)p)[i] = v; break;
    case CDP_DTYPE_U8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    default: ((float *)p)[i] = (float)v; break;
    }
}

/* The serial reference: element i of the reduction over all ranks, written to p[0]. */
static void job_reduced(const run *r, const op *o, uint64_t i, void *p) {
    const cdp_dtype t = o->rq.dtype;
    int64_t acc = 0;
    uint32_t k;
    for (k = 0; k < r->nodes; ++k) {
        int64_t v = job_value(r->seed, o->id, k, i);
        if (t == CDP_DTYPE_U8) v = (uint8_t)v;
        if (k == 0)
            acc = v;
        else if (o->rq.op == CDP_REDUCE_MIN)
            acc = v < acc ? v : acc;
        else if (o->rq.op == CDP_REDUCE_MAX)
            acc = v > acc ? v : acc;
        else
            acc += v;
    }
    if (t == CDP_DTYPE_U8 && o->rq.op != CDP_REDUCE_AVG) acc = (uint8_t)acc;
    store_value(p, t, 0, acc);
    if (o->rq.op != CDP_REDUCE_AVG) return;
    if (t == CDP_DTYPE_F64)
        *(double *)p = (double)acc / (double)r->nodes;
    else if (t == CDP_DTYPE_F32)
        *(float *)p = (float)acc / (float)r->nodes;
    else
        store_value(
            p, t, 0, (2 * acc + (acc < 0 ? -1 : 1) * (int64_t)r->nodes) / (2 * (int64_t)r->nodes));
}

static void job_check(run *r, sim_node *node, const op *o) {
    const uint64_t size = cdp_dtype_size(o->rq.dtype),
                   n = o->rq.kind == CDP_COLL_ALLGATHER ? o->rq.count * r->nodes : o->rq.count;
    uint64_t i;
    for (i = 0; i < n; ++i) {
        union {
            uint64_t align;
            uint8_t bytes[8];
        } want;
        if (o->rq.kind == CDP_COLL_ALLREDUCE)
            job_reduced(r, o, i, want.bytes);
        else if (o->rq.kind == CDP_COLL_BROADCAST)
            store_value(want.bytes, o->rq.dtype, 0, job_value(r->seed, o->id, o->rq.root, i));
        else
            store_value(want.bytes, o->rq.dtype, 0,
                job_value(r->seed, o->id, (uint32_t)(i / o->rq.count), i % o->rq.count));
        if (memcmp(want.bytes, (uint8_t *)o->out + i * size, (size_t)size) == 0) continue;
        wrong(r, node, "operation %llu, %s of %llu x %s, %s: element %llu is wrong",
            (unsigned long long)o->id, cdp_coll_name(o->rq.kind), (unsigned long long)o->rq.count,
            cdp_dtype_name(o->rq.dtype), cdp_reduce_name(o->rq.op), (unsigned long long)i);
        return;
    }
}

/* The same on every rank but for the memory. */
static void job_make(run *r, sim_node *node, uint64_t *s, op *o, uint64_t id) {
    static const cdp_coll_kind kinds[] = {CDP_COLL_ALLREDUCE, CDP_COLL_ALLREDUCE,
        CDP_COLL_ALLREDUCE, CDP_COLL_BROADCAST, CDP_COLL_ALLGATHER, CDP_COLL_BARRIER};
    uint64_t size, i, most = 24;
    if (!r->tiny) most = sim_chance(s, 256) ? 4000 : 300;
    memset(o, 0, sizeof *o);
    o->id = id;
    o->rq.kind = kinds[sim_random(s) % 6];
    o->rq.dtype = (cdp_dtype)sim_between(s, CDP_DTYPE_F32, CDP_DTYPE_U8);
    o->rq.op = (cdp_reduce_op)sim_between(s, CDP_REDUCE_SUM, CDP_REDUCE_MAX);
    o->rq.root = (uint32_t)(sim_random(s) % r->nodes);
    o->rq.count = sim_chance(s, 60) ? 0 : sim_log_between(s, 1, most);
    if (r->large && sim_chance(s, 128))
        o->rq.count = sim_between(s, 65537, 200000) / cdp_dtype_size(o->rq.dtype);
    o->in_place = sim_chance(s, 512) || o->rq.kind == CDP_COLL_BROADCAST;
    if (o->rq.kind == CDP_COLL_BARRIER) {
        o->rq.count = 0;
        return;
    }
    size = cdp_dtype_size(o->rq.dtype);
    o->memory = sim_alloc(node, (o->rq.count * (r->nodes + 1) + 2) * size + 64);
    o->out = o->memory;
    o->in = (uint8_t *)o->memory + (o->rq.count * r->nodes + 1) * size;
    for (i = 0; i < o->rq.count; ++i) {
        const int64_t v = job_value(r->seed, id, node->id, i);
        if (o->rq.kind == CDP_COLL_ALLGATHER && o->in_place)
            store_value(o->out, o->rq.dtype, node->id * o->rq.count + i, v);
        else
            store_value(o->in_place ? o->out : o->in, o->rq.dtype, i, v);
    }
    if (o->rq.kind == CDP_COLL_BROADCAST && node->id != o->rq.root)
        memset(o->out, 0x55, (size_t)(o->rq.count * size));
    o->rq.out = o->out;
    o->rq.in = o->in_place ? NULL : o->in;
}

/* Ranks without threads that look once in so long, and wait nowhere else (--frames). */
static uint64_t with_frames_ns;

static cdp_status wait_for(sim_node *node, cdp_work w) {
    cdp_status st;
    if (!with_frames_ns) return cdp_work_wait(w);
    while ((st = cdp_work_poll(w, 0)) == CDP_PENDING)
        sim_sleep(node, with_frames_ns);
    return st;
}

static cdp_status job_sync(run *r, sim_node *node, cdp_group *g, op *o) {
    const cdp_request *q = &o->rq;
    cdp_status st;
    call_begin(r, node, r->timeout_ms);
    if (with_frames_ns) {
        st = cdp_start(g, q, &o->work);
        if (st == CDP_OK) st = wait_for(node, o->work);
        call_end(r, node, cdp_coll_name(q->kind));
        return failed(r, node, st);
    }
    switch (q->kind) {
    case CDP_COLL_ALLREDUCE: st = cdp_allreduce(g, q->in, q->out, q->count, q->dtype, q->op); break;
    case CDP_COLL_BROADCAST: st = cdp_broadcast(g, q->out, q->count, q->dtype, q->root); break;
    case CDP_COLL_ALLGATHER: st = cdp_allgather(g, q->in, q->out, q->count, q->dtype); break;
    default: st = cdp_barrier(g); break;
    }
    call_end(r, node, cdp_coll_name(q->kind));
    return failed(r, node, st);
}

/* Wait for one operation, or ask for it again and again while computing. */
static cdp_status job_wait(run *r, sim_node *node, op *o, bool ask, uint64_t *own) {
    cdp_status st;
    r->out[node->id].call_deadline_ns =
        o->started_ns + r->timeout_ms * SIM_MS * 11 / 10 + r->slack_ns;
    if (ask) {
        uint32_t asked = 0;
        while ((st = cdp_work_test(o->work)) == CDP_PENDING && ++asked < 200)
            sim_sleep(node, sim_log_between(own, 5 * SIM_US, 2 * SIM_MS));
        if (st == CDP_PENDING) st = wait_for(node, o->work); /* enough computed */
    } else {
        st = wait_for(node, o->work);
    }
    call_end(r, node, ask ? "cdp_work_test" : "cdp_work_wait");
    o->done = true;
    return failed(r, node, st);
}

/* Several operations: all at once, or one after the other; waited for in an order of this rank's
   own. */
static cdp_status job_batch(
    run *r, sim_node *node, cdp_group *g, uint64_t *s, uint64_t *own, uint64_t first_id) {
    op ops[MAX_OPS];
    const uint32_t ops_max = r->tiny ? 3 : MAX_OPS;
    const uint32_t n = sim_chance(s, 512) ? 1 : (uint32_t)sim_between(s, 2, ops_max);
    const bool sync = n == 1 && sim_chance(s, 768);
    cdp_status st = CDP_OK;
    uint32_t i, left;
    for (i = 0; i < n; ++i)
        job_make(r, node, s, &ops[i], first_id + i);
    if (r->act == F_MISMATCH && r->act_node == node->id && ops[0].rq.kind != CDP_COLL_BARRIER
        && r->act_now && ops[0].rq.count)
        ops[0].rq.count--;
    else if (r->act == F_MISMATCH && r->act_node == node->id && r->act_now)
        ops[0].rq.kind = ops[0].rq.kind == CDP_COLL_BARRIER ? CDP_COLL_ALLGATHER : CDP_COLL_BARRIER;
    for (i = 0; i < n && st == CDP_OK; ++i) {
        sim_doing(node, "operation %llu: %s of %llu x %s %s%s", (unsigned long long)ops[i].id,
            cdp_coll_name(ops[i].rq.kind), (unsigned long long)ops[i].rq.count,
            cdp_dtype_name(ops[i].rq.dtype), cdp_reduce_name(ops[i].rq.op),
            sync ? "" : ", started");
        ops[i].started_ns = node->world->now;
        if (sync)
            st = job_sync(r, node, g, &ops[i]);
        else
            st = failed(r, node, cdp_start(g, &ops[i].rq, &ops[i].work));
        if (sim_chance(own, 100)) sim_sleep(node, sim_log_between(own, SIM_US, 20 * SIM_MS));
    }
    for (left = sync ? 0 : n; left && st == CDP_OK; --left) {
        i = (uint32_t)(sim_random(own) % n);
        while (ops[i].done)
            i = (i + 1) % n;
        sim_doing(node, "waits for operation %llu", (unsigned long long)ops[i].id);
        st = job_wait(r, node, &ops[i], sim_chance(own, 200), own);
    }
    for (i = 0; i < n; ++i) {
        if (st == CDP_OK) job_check(r, node, &ops[i]);
        if (st == CDP_OK && ops[i].memory) sim_free(node, ops[i].memory);
    }
    for (i = 0; st != CDP_OK && i < n; ++i)
        /* the library's until the group is gone */
        if (ops[i].memory) r->later[node->id][r->later_n[node->id]++] = ops[i].memory;
    return st;
}

#define MAX_PARAMS 7u

typedef struct model {
    cdp_param params[MAX_PARAMS];
    char names[MAX_PARAMS][16];
    uint32_t n;
} model;

static void model_free(sim_node *node, model *m) {
    uint32_t i;
    for (i = 0; i < m->n; ++i) {
        sim_free(node, m->params[i].data);
        if (m->params[i].grad) sim_free(node, m->params[i].grad);
    }
}

static void model_make(run *r, sim_node *node, uint64_t *s, model *m) {
    const uint64_t most = r->tiny ? 16 : 600;
    uint32_t i;
    uint64_t k;
    memset(m, 0, sizeof *m);
    m->n = (uint32_t)sim_between(s, 1, MAX_PARAMS);
    for (i = 0; i < m->n; ++i) {
        cdp_param *p = &m->params[i];
        snprintf(m->names[i], sizeof m->names[i], "layer%u", i);
        p->name = m->names[i];
        p->dtype = sim_chance(s, 700) ? CDP_DTYPE_F32 : CDP_DTYPE_F64;
        p->count = sim_chance(s, 60) ? 0 : sim_log_between(s, 1, most);
        p->data = sim_alloc(node, p->count * 8 + 8);
        if (sim_chance(s, 300)) p->grad = sim_alloc(node, p->count * 8 + 8);
        for (k = 0; k < p->count; ++k)
            store_value(p->data, p->dtype, k, job_value(r->seed, 9000 + i, node->id, k));
    }
}

static double value_of(const void *p, cdp_dtype t, uint64_t i) {
    return t == CDP_DTYPE_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static void grad_add(cdp_ddp *d, const model *m, uint32_t i, uint64_t k, int64_t v) {
    void *p = m->params[i].grad ? m->params[i].grad : cdp_ddp_grad(d, i);
    if (m->params[i].dtype == CDP_DTYPE_F64)
        ((double *)p)[k] += (double)v;
    else
        ((float *)p)[k] += (float)v;
}

static void ddp_check(
    run *r, sim_node *node, cdp_ddp *d, const model *m, uint64_t pass, uint64_t passes) {
    uint32_t i, k;
    uint64_t j, a;
    for (i = 0; i < m->n; ++i) {
        const void *p = m->params[i].grad ? m->params[i].grad : cdp_ddp_grad(d, i);
        for (j = 0; j < m->params[i].count; ++j) {
            int64_t sum = 0;
            for (k = 0; k < r->nodes; ++k)
                for (a = 0; a < passes; ++a)
                    sum += job_value(r->seed, 20000 + (pass + a) * 64 + i, k, j);
            if (value_of(p, m->params[i].dtype, j)
                == (m->params[i].dtype == CDP_DTYPE_F64 ? (double)sum / (double)r->nodes
                                                        : (double)((float)sum / (float)r->nodes)))
                continue;
            wrong(r, node, "backward pass %llu: gradient %u, element %llu is not the mean",
                (unsigned long long)pass, i, (unsigned long long)j);
            return;
        }
    }
}

/* Creation, and the end of a pass: half of the ranks do them in frames. Where that takes long, the
   frames get long budgets, most of which the rank sleeps: with buffers of some bytes, and a look
   now and then, no operation would end in time, and the run would take too many steps. */
static cdp_status ddp_frames(sim_node *node, cdp_ddp *d, uint64_t *own) {
    cdp_status st = CDP_PENDING;
    uint32_t i;
    while (with_frames_ns && (st = cdp_ddp_poll(d, 0)) == CDP_PENDING)
        sim_sleep(node, with_frames_ns);
    for (i = 0; st == CDP_PENDING; ++i) {
        st = cdp_ddp_poll(d, i < 100 ? (uint32_t)(sim_random(own) % 20) : 500000);
        if (st == CDP_PENDING && i < 100) sim_sleep(node, sim_log_between(own, SIM_US, SIM_MS / 2));
    }
    return st;
}

/* A call with a budget has returned: it may take longer than that by what the world's noise costs,
   and by no wait. */
static void budget_end(
    run *r, sim_node *node, uint64_t from_ns, uint32_t budget_us, const char *what) {
    const uint64_t took = node->world->now - from_ns;
    const bool stops = r->fault.kind == SIM_FAULT_STOP && r->fault.a == (int32_t)node->id;
    if (took > budget_us * SIM_US + 30 * SIM_MS && !stops)
        wrong(r, node, "%s with a budget of %u us took %llu us", what, budget_us,
            (unsigned long long)(took / SIM_US));
}

/* So does leaving. */
static void group_leave(run *r, sim_node *node, cdp_group *g, uint64_t *own) {
    cdp_status st;
    if (sim_chance(own, 500) && !with_frames_ns) {
        cdp_group_destroy(g);
        return;
    }
    do {
        const uint32_t budget_us = (uint32_t)(sim_random(own) % 20);
        const uint64_t from_ns = node->world->now;
        st = cdp_group_leave(g, budget_us);
        budget_end(r, node, from_ns, budget_us, "cdp_group_leave");
        if (st == CDP_PENDING)
            sim_sleep(node, with_frames_ns ? with_frames_ns : sim_log_between(own, SIM_US, SIM_MS));
    } while (st == CDP_PENDING);
}

static cdp_status ddp_create(sim_node *node, const cdp_ddp_desc *desc, uint64_t *own, cdp_ddp **d) {
    cdp_status st;
    if (sim_chance(own, 500) && !with_frames_ns) return cdp_ddp_create(desc, d);
    st = cdp_ddp_create_start(desc, d);
    return st == CDP_OK ? ddp_frames(node, *d, own) : st;
}

static cdp_status ddp_end(sim_node *node, cdp_ddp *d, uint64_t *own) {
    cdp_status st;
    if (sim_chance(own, 500) && !with_frames_ns) return cdp_ddp_backward_end(d);
    st = cdp_ddp_backward_end_start(d);
    return st == CDP_OK ? ddp_frames(node, d, own) : st;
}

/* One backward pass; gradients become ready in an order of this rank's own. */
static cdp_status ddp_pass(
    run *r, sim_node *node, cdp_ddp *d, const model *m, uint64_t *own, uint64_t pass, bool sync) {
    cdp_status st, st2;
    bool done[MAX_PARAMS] = {false};
    uint32_t left, i;
    uint64_t k;
    call_begin(r, node, r->timeout_ms);
    st = failed(r, node, cdp_ddp_backward_begin(d));
    for (left = m->n; left && st == CDP_OK; --left) {
        i = sim_chance(own, 700) ? left - 1 : (uint32_t)(sim_random(own) % m->n);
        while (done[i])
            i = (i + 1) % m->n;
        done[i] = true;
        for (k = 0; k < m->params[i].count; ++k)
            grad_add(d, m, i, k, job_value(r->seed, 20000 + pass * 64 + i, node->id, k));
        if (sim_chance(own, 100)) sim_sleep(node, sim_log_between(own, SIM_US, 5 * SIM_MS));
        (void)cdp_ddp_ready(d, i); /* a failure comes again from backward_end */
    }
    call_begin(r, node, r->timeout_ms);
    st2 = ddp_end(node, d, own);
    call_end(r, node, "cdp_ddp_backward_end");
    if (st == CDP_OK) st = failed(r, node, st2);
    (void)sync;
    return st;
}

static cdp_status ddp_train(run *r, sim_node *node, cdp_group *g, uint64_t *s, uint64_t *own) {
    cdp_ddp_desc desc;
    cdp_ddp *d = NULL;
    model m;
    cdp_status st;
    uint64_t step, pass = 0, i, j;
    const uint64_t steps = sim_between(s, 1, 3);
    model_make(r, node, s, &m);
    memset(&desc, 0, sizeof desc);
    desc.group = g;
    desc.params = m.params;
    desc.param_count = m.n;
    desc.first_bucket_bytes = sim_log_between(s, 1, 4000);
    desc.bucket_bytes = sim_log_between(s, 1, 8000);
    sim_doing(node, "cdp_ddp_create");
    call_begin(r, node, (m.n + 1) * r->timeout_ms);
    st = failed(r, node, ddp_create(node, &desc, own, &d));
    call_end(r, node, "cdp_ddp_create");
    for (i = 0; st == CDP_OK && i < m.n; ++i)
        for (j = 0; j < m.params[i].count; ++j)
            if (value_of(m.params[i].data, m.params[i].dtype, j)
                != (double)job_value(r->seed, 9000 + i, 0, j)) {
                wrong(r, node, "parameter %llu, element %llu is not rank 0's",
                    (unsigned long long)i, (unsigned long long)j);
                break;
            }
    for (step = 0; step < steps && st == CDP_OK; ++step) {
        /* all but the last stay local */
        const uint64_t passes = sim_chance(s, 600) ? 1 : sim_between(s, 2, 3);
        cdp_ddp_zero_grad(d);
        for (i = 0; i < passes && st == CDP_OK; ++i) {
            sim_doing(node, "step %llu, backward pass %llu of %llu", (unsigned long long)step,
                (unsigned long long)i + 1, (unsigned long long)passes);
            st = failed(r, node, cdp_ddp_no_sync(d, i + 1 < passes));
            if (st == CDP_OK) st = ddp_pass(r, node, d, &m, own, pass + i, i + 1 == passes);
        }
        if (st == CDP_OK) ddp_check(r, node, d, &m, pass, passes);
        pass += passes;
    }
    sim_doing(node, "cdp_ddp_destroy");
    call_begin(r, node, r->timeout_ms);
    cdp_ddp_destroy(d);
    call_end(r, node, "cdp_ddp_destroy");
    if (st == CDP_OK) model_free(node, &m);
    /* broadcasts of a failed group may still hold them */
    for (i = 0; st != CDP_OK && i < m.n; ++i) {
        r->later[node->id][r->later_n[node->id]++] = m.params[i].data;
        if (m.params[i].grad) r->later[node->id][r->later_n[node->id]++] = m.params[i].grad;
    }
    return st;
}

static void quiet(cdp_log_level level, const char *text, int32_t rank, void *user) {
    sim_node *node = (sim_node *)user;
    (void)rank;
    (void)level;
    sim_say(node, "log: %s", text);
}

static cdp_status send_to(
    sim_node *node, cdp_group *g, const int32_t *data, uint64_t count, uint32_t to, uint32_t tag) {
    cdp_work work;
    cdp_status st;
    if (!with_frames_ns) return cdp_send(g, data, count, CDP_DTYPE_I32, to, tag);
    st = cdp_send_async(g, data, count, CDP_DTYPE_I32, to, tag, &work);
    return st == CDP_OK ? wait_for(node, work) : st;
}

/* The program; then the group goes, and what it may still have held. */
/* Everybody sends to one rank messages of lengths that only the sender knows; that rank takes
   them from whoever comes, a few at once, and each sender's in the order in which they were
   sent. Whose arrives when is up to the network. */
static cdp_status job_messages(
    run *r, sim_node *node, cdp_group *g, uint64_t *s, uint64_t *own, uint32_t tag) {
    enum {
        MOST = 40,
        AT_ONCE = 3
    };
    const uint32_t to = (uint32_t)(sim_random(s) % r->nodes), each = (uint32_t)sim_between(s, 1, 4),
                   all = each * (r->nodes - 1);
    const uint64_t seed = sim_random(s);
    int32_t *data = (int32_t *)sim_alloc(node, AT_ONCE * MOST * sizeof *data);
    cdp_work work[AT_ONCE];
    cdp_message got[AT_ONCE];
    uint32_t seen[64] = {0}, started = 0, i, k;
    cdp_status st = CDP_OK;
    sim_doing(node, "%u messages from each rank to rank %u", each, to);
    call_begin(r, node, r->timeout_ms);
    for (i = 0; i < (node->id == to ? all : each) && st == CDP_OK; ++i) {
        if (node->id != to) {
            const uint64_t count = (uint64_t)(job_value(seed, i, node->id, 0) + 20) % MOST;
            for (k = 0; k < count; ++k)
                data[k] = (int32_t)job_value(seed, i, node->id, 1 + k);
            st = failed(r, node, send_to(node, g, data, count, to, tag));
            if (sim_chance(own, 300)) sim_sleep(node, sim_log_between(own, SIM_US, 5 * SIM_MS));
            continue;
        }
        for (; st == CDP_OK && started < all && started < i + AT_ONCE; ++started)
            st = failed(r, node,
                cdp_recv_any_async(g, data + started % AT_ONCE * MOST, MOST, CDP_DTYPE_I32,
                    CDP_ANY_RANK, tag, &got[started % AT_ONCE], &work[started % AT_ONCE]));
        if (st == CDP_OK) st = failed(r, node, wait_for(node, work[i % AT_ONCE]));
        if (st == CDP_OK) {
            const cdp_message *m = &got[i % AT_ONCE];
            const uint32_t at = m->source < r->nodes ? seen[m->source]++ : 0;
            bool right = m->source < r->nodes && m->source != to
                && m->count == (uint64_t)(job_value(seed, at, m->source, 0) + 20) % MOST;
            for (k = 0; right && k < m->count; ++k)
                right =
                    data[i % AT_ONCE * MOST + k] == (int32_t)job_value(seed, at, m->source, 1 + k);
            if (!right)
                wrong(r, node, "message %u from rank %u, of %llu elements, is wrong", at, m->source,
                    (unsigned long long)m->count);
        }
    }
    call_end(r, node, "messages");
    if (st == CDP_OK)
        sim_free(node, data);
    else
        r->later[node->id][r->later_n[node->id]++] = data;
    return st;
}

/* What this rank does wrong on purpose, if it is its turn at place i of so many. True: it
   leaves. */
static bool job_act(run *r, sim_node *node, cdp_group *g, uint64_t i, uint64_t places) {
    r->act_now = r->act_node == node->id && i == r->act_at % places;
    if (!r->act_now || (r->act != F_LEAVE && r->act != F_ABORT && r->act != F_MISMATCH))
        return false;
    r->fault.happened = true;
    r->fault.happened_ns = node->world->now;
    if (r->act != F_ABORT) return r->act == F_LEAVE;
    sim_doing(node, "cdp_group_abort");
    call_begin(r, node, 100);
    cdp_group_abort(g, "the test says so");
    call_end(r, node, "cdp_group_abort");
    return false;
}

static cdp_status job_program(run *r, sim_node *node, cdp_group *g) {
    uint64_t s = sim_stream(r->seed, 20), own = sim_stream(r->seed, 100 + node->id);
    const uint64_t batches = sim_between(&s, 1, r->tiny ? 4 : 7);
    const uint64_t ddp_at = sim_chance(&s, 512) ? sim_between(&s, 0, batches) : UINT64_MAX;
    cdp_status st = CDP_OK;
    uint64_t i;
    for (i = 0; i <= batches && st == CDP_OK; ++i) {
        if (job_act(r, node, g, i, batches + 1)) break;
        if (i == ddp_at) st = ddp_train(r, node, g, &s, &own);
        if (st == CDP_OK && i < batches) st = job_batch(r, node, g, &s, &own, 100 * i);
        /* the next ones may come before these have been taken */
        if (st == CDP_OK && r->nodes > 1 && (r->fault_kind == F_NONE || r->fault_kind == F_DELAY)
            && sim_chance(&s, 400))
            st = job_messages(r, node, g, &s, &own, (uint32_t)i);
        r->act_now = false;
    }
    sim_doing(node, "cdp_group_destroy");
    call_begin(r, node, 500);
    group_leave(r, node, g, &own);
    call_end(r, node, "cdp_group_destroy");
    while (r->later_n[node->id])
        sim_free(node, r->later[node->id][--r->later_n[node->id]]);
    return st;
}

/* One of the names and addresses of the node where the store's server is. */
static const char *host_of_node_0(const run *r) {
    if (r->seed % 3) return "node0";
    return r->one_host ? "127.0.0.1" : "10.0.0.1";
}

static void group_desc_of(run *r, sim_node *node, cdp_group_desc *d) {
    const uint64_t least_piece = r->tiny ? 4 : 64;
    uint64_t s = sim_stream(r->seed, 21);
    memset(d, 0, sizeof *d);
    d->rank = node->id;
    d->world_size = r->nodes;
    d->timeout_ms = r->timeout_ms;
    d->small_bytes = sim_log_between(&s, 1, 65536);
    d->piece_bytes = sim_chance(&s, 300) ? 0 : sim_log_between(&s, least_piece, 65536);
    if (with_frames_ns) d->piece_bytes = 0; /* a piece, a step */
    d->no_spin = sim_chance(&s, 768);
    d->spin_us = (uint32_t)sim_between(&s, 1, 5);
    d->os = &node->os;
    d->logger.func = quiet;
    d->logger.user = node;
    d->logger.level = CDP_LOG_DEBUG;
}

#include "tensors.h"
#include "wide.h"

/* ---- >>hub: ranks of one process, polled in turn --------------------------------------------- */

static cdp_status hub_main(run *r, sim_node *node) {
    cdp_group_desc d;
    cdp_group *g = NULL;
    cdp_status st = CDP_OK;
    if (!r->hub) { /* the first to come makes it */
        cdp_hub_desc h;
        uint64_t s = sim_stream(r->seed, 22);
        memset(&h, 0, sizeof h);
        r->hub_os = hub_os_of(&r->world);
        h.world_size = r->nodes;
        /* a node without threads looks 10,000 times a second */
        h.ring_bytes = r->tiny ? sim_log_between(&s, 1, 64) : sim_log_between(&s, 512, 65536);
        h.os = &r->hub_os;
        st = cdp_hub_create(&h, &r->hub);
    }
    group_desc_of(r, node, &d);
    d.hub = r->hub;
    sim_doing(node, "cdp_group_create");
    if (st == CDP_OK) st = failed(r, node, cdp_group_create(&d, &g));
    if (st == CDP_OK) st = (r->sc->program ? r->sc->program : job_program)(r, node, g);
    if (++r->hub_left == r->nodes) {
        cdp_hub_destroy(r->hub);
        r->hub = NULL;
    }
    return st;
}

/* ---- >>store: a server and its clients ------------------------------------------------------- */

typedef struct store_client {
    run *r;
    sim_node *node;
    cdp_store *store;
    cdp_store_server *server; /* node 0 */
    cdp__loop loop;           /* node 0: server and client take turns on it */
    bool ok;                  /* false: a call failed */
    cdp_status st;
} store_client;

static bool store_ok(store_client *c, cdp_status st, const char *what) {
    call_end(c->r, c->node, what);
    /* an answer: the server knows the will */
    if (st == CDP_OK && strcmp(what, "cdp_store_set") != 0) c->r->joined[c->node->id] = true;
    if (st != CDP_OK && c->ok) {
        c->ok = false;
        c->st = failed(c->r, c->node, st);
    }
    return c->ok;
}

/* What a call is and how long it may take; false when an earlier one failed. */
static bool store_next(store_client *c, const char *what) {
    if (!c->ok) return false;
    sim_doing(c->node, "%s", what);
    call_begin(c->r, c->node, c->r->timeout_ms);
    return true;
}

static uint64_t store_payload(const run *r, uint32_t rank, uint8_t *out, uint64_t room) {
    uint64_t s = sim_stream(r->seed, 600 + rank), i;
    const uint64_t most = r->tiny ? 60 : room;
    const uint64_t n = sim_chance(&s, 100) ? 0 : sim_log_between(&s, 1, most);
    for (i = 0; i < n; ++i)
        out[i] = (uint8_t)sim_random(&s);
    return n;
}

static void store_barrier(store_client *c, const char *name) {
    char go[40];
    const char *keys[1];
    int64_t n = 0;
    snprintf(go, sizeof go, "%s.go", name);
    keys[0] = go;
    if (store_next(c, name)) store_ok(c, cdp_store_add(c->store, name, 1, &n), "cdp_store_add");
    if (c->ok && n == (int64_t)c->r->nodes && store_next(c, go))
        store_ok(c, cdp_store_set(c->store, go, "1", 1), "cdp_store_set");
    if (store_next(c, go))
        store_ok(c, cdp_store_wait(c->store, keys, 1, c->r->timeout_ms), "cdp_store_wait");
}

/* The values of all ranks, one by one or all at once. */
static void store_read_all(store_client *c, bool at_once) {
    const uint32_t n = c->r->nodes;
    char names[SIM_MAX_NODES][24];
    const char *keys[SIM_MAX_NODES];
    cdp_bytes values[SIM_MAX_NODES];
    uint8_t want[3000];
    uint32_t i;
    void *memory = NULL;
    for (i = 0; i < n; ++i) {
        snprintf(names[i], sizeof names[i], "value/%u", i);
        keys[i] = names[i];
    }
    if (at_once) {
        if (!store_next(c, "multi_get")
            || !store_ok(c,
                cdp_store_multi_get(c->store, keys, n, values, &memory, c->r->timeout_ms),
                "cdp_store_multi_get"))
            return;
    }
    for (i = 0; i < n && c->ok; ++i) {
        const uint64_t bytes = store_payload(c->r, i, want, sizeof want);
        if (!at_once) {
            void *v = NULL;
            uint64_t got = 0;
            if (!store_next(c, keys[i])
                || !store_ok(c, cdp_store_get(c->store, keys[i], &v, &got, c->r->timeout_ms),
                    "cdp_store_get"))
                return;
            values[i].data = memory = v;
            values[i].bytes = got;
        }
        if (values[i].bytes != bytes || memcmp(values[i].data, want, (size_t)bytes) != 0
            || ((const char *)values[i].data)[bytes] != 0)
            wrong(c->r, c->node, "%s has the wrong value (%llu bytes, %llu expected)", keys[i],
                (unsigned long long)values[i].bytes, (unsigned long long)bytes);
        if (!at_once) cdp_store_free(c->store, memory);
    }
    if (at_once) cdp_store_free(c->store, memory);
}

static void store_set_own(store_client *c, bool as_list) {
    uint8_t value[3000];
    char name[16];
    const char *keys[2] = {name, "shared"};
    cdp_bytes values[2];
    snprintf(name, sizeof name, "value/%u", c->node->id);
    values[0].data = value;
    values[0].bytes = store_payload(c->r, c->node->id, value, sizeof value);
    values[1].data = "same";
    values[1].bytes = 4;
    if (!store_next(c, name)) return;
    store_ok(c,
        as_list ? cdp_store_multi_set(c->store, keys, values, 2)
                : cdp_store_set(c->store, name, value, values[0].bytes),
        "cdp_store_set");
}

/* Exactly one rank wins, and all agree who. */
static void store_elect(store_client *c) {
    char me[16], who[16] = "";
    void *v = NULL;
    uint64_t bytes = 0;
    snprintf(me, sizeof me, "rank %u", c->node->id);
    if (!store_next(c, "compare_set")
        || !store_ok(c,
            cdp_store_compare_set(c->store, "leader", "", 0, me, strlen(me), &v, &bytes),
            "cdp_store_compare_set"))
        return;
    memcpy(who, v, (size_t)(bytes < 15 ? bytes : 15));
    cdp_store_free(c->store, v);
    if (!store_next(c, "get leader")
        || !store_ok(
            c, cdp_store_get(c->store, "leader", &v, &bytes, c->r->timeout_ms), "cdp_store_get"))
        return;
    if (bytes != strlen(who) || memcmp(v, who, (size_t)bytes) != 0)
        wrong(
            c->r, c->node, "the leader changed from %s to %.*s", who, (int)bytes, (const char *)v);
    cdp_store_free(c->store, v);
}

static void store_program(store_client *c) {
    uint64_t s = sim_stream(c->r->seed, 23), own = sim_stream(c->r->seed, 700 + c->node->id);
    const bool list = sim_chance(&s, 512), at_once = sim_chance(&s, 512);
    const uint32_t adds = (uint32_t)sim_between(&s, 1, 5);
    const uint32_t n = c->r->nodes;
    const char *missing[2] = {"value/0", "never"};
    int64_t sum = 0, before = 0;
    uint64_t bytes = 0;
    void *v = NULL;
    bool there = true;
    uint32_t i;
    store_set_own(c, list);
    for (i = 0; i < adds; ++i) {
        if (!store_next(c, "add")
            || !store_ok(c, cdp_store_add(c->store, "sum", c->node->id + 1, &sum), "cdp_store_add"))
            break;
        if (sum <= before)
            wrong(
                c->r, c->node, "the sum went from %lld to %lld", (long long)before, (long long)sum);
        before = sum;
    }
    if (sim_chance(&own, 300)) sim_sleep(c->node, sim_log_between(&own, SIM_US, 200 * SIM_MS));
    store_read_all(c, at_once); /* waits for those who are late */
    if (store_next(c, "append"))
        store_ok(c, cdp_store_append(c->store, "log", "x", 1), "cdp_store_append");
    store_elect(c);
    store_barrier(c, "half");
    if (store_next(c, "add 0")
        && store_ok(c, cdp_store_add(c->store, "sum", 0, &sum), "cdp_store_add")
        && sum != (int64_t)adds * n * (n + 1) / 2)
        wrong(c->r, c->node, "the sum is %lld", (long long)sum);
    if (store_next(c, "check")
        && store_ok(c, cdp_store_check(c->store, missing, 1, &there), "cdp_store_check") && !there)
        wrong(c->r, c->node, "a key is gone");
    if (store_next(c, "check")
        && store_ok(c, cdp_store_check(c->store, missing, 2, &there), "cdp_store_check") && there)
        wrong(c->r, c->node, "a key is there that nobody set");
    if (store_next(c, "get log")
        && store_ok(c, cdp_store_get(c->store, "log", &v, &bytes, 0), "cdp_store_get")) {
        if (bytes != n) wrong(c->r, c->node, "%llu appends of %u", (unsigned long long)bytes, n);
        cdp_store_free(c->store, v);
    }
    if (store_next(c, "get never")) { /* a wait that must end at its deadline */
        const uint64_t t0 = c->node->world->now;
        const cdp_status st = cdp_store_get(c->store, "never", &v, &bytes, 50);
        if (st == CDP_ERR_TIMEOUT && c->node->world->now - t0 < 50 * SIM_MS)
            wrong(c->r, c->node, "a wait of 50 ms ended early");
        if (st == CDP_ERR_TIMEOUT && c->node->world->now - t0 > 55 * SIM_MS + c->r->slack_ns
            && (c->r->fault.kind != SIM_FAULT_STOP || c->r->fault.a != (int32_t)c->node->id))
            wrong(c->r, c->node, "a wait of 50 ms took %llu",
                (unsigned long long)((c->node->world->now - t0) / SIM_MS));
        if (st == CDP_OK) wrong(c->r, c->node, "a key was read that nobody set");
        if (st != CDP_ERR_TIMEOUT) store_ok(c, st, "cdp_store_get");
    }
    if (n == 1) return;
    if (c->node->id == 0) { /* it serves until all others need it no more */
        const char *bye[1] = {"bye.go"};
        if (store_next(c, "bye.go"))
            store_ok(c, cdp_store_wait(c->store, bye, 1, c->r->timeout_ms), "cdp_store_wait");
    } else if (store_next(c, "bye")
        && store_ok(c, cdp_store_add(c->store, "bye", 1, &sum), "cdp_store_add")
        && sum == (int64_t)n - 1) {
        if (store_next(c, "bye.go"))
            store_ok(c, cdp_store_set(c->store, "bye.go", "1", 1), "cdp_store_set");
    }
}

/* A client that ended without saying goodbye has its last will carried out, one that left has
   not. */
static void store_wills(store_client *c) {
    const sim_fault *f = c->r->world->fault_count ? &c->r->world->faults[0] : &c->r->fault;
    char key[24];
    const char *keys[1] = {key};
    bool there = false;
    uint32_t i;
    const uint64_t until = c->node->world->now + 300 * SIM_MS;
    while (c->node->world->now < until)
        if (cdp__loop_run(&c->loop, NULL, until) != CDP_OK) return;
    for (i = 1; i < c->r->nodes; ++i) {
        snprintf(key, sizeof key, "will/%u", i);
        if (cdp_store_check(c->store, keys, 1, &there) != CDP_OK) return;
        if (f->happened && c->r->fault_kind != F_PAUSE
            && (c->r->fault_kind != F_KILL || (f->a == (int32_t)i && !c->r->joined[i])))
            continue;
        /* the server or the client was stopped, longer than a goodbye may take */
        if (f->happened && c->r->fault_kind == F_PAUSE && (!f->a || f->a == (int32_t)i)
            && c->r->tiny && f->for_ns > 100 * SIM_MS)
            continue;
        if (there != (f->happened && c->r->fault_kind == F_KILL && f->a == (int32_t)i))
            wrong(c->r, c->node, "the last will of client %u was %scarried out", i,
                there ? "" : "not ");
    }
}

/* Node 0 serves, every node is a client; then `program`. */
static cdp_status store_session(run *r, sim_node *node, void (*program)(store_client *c)) {
    store_client *c = (store_client *)sim_alloc(node, sizeof *c);
    cdp_store_server_desc sd;
    cdp_tcp_store_desc cd;
    char host[20], will[24];
    cdp_status st = CDP_OK;
    c->r = r;
    c->node = node;
    c->ok = true;
    memset(&sd, 0, sizeof sd);
    memset(&cd, 0, sizeof cd);
    if (node->id == 0) {
        st = failed(r, node, cdp__loop_open(&c->loop, &node->os));
        sd.host = r->one_host ? NULL : "0.0.0.0";
        sd.port = 29500;
        sd.job_key = r->seed % 2 ? "simulated" : NULL;
        sd.trust_network = !r->one_host;
        sd.os = &node->os;
        sd.logger.func = quiet;
        sd.logger.user = node;
        sd.loop = &c->loop;
        sim_doing(node, "cdp_store_server_create");
        if (st == CDP_OK) st = failed(r, node, cdp_store_server_create(&sd, &c->server));
        cd.loop = &c->loop;
    }
    snprintf(host, sizeof host, "%s", host_of_node_0(r));
    snprintf(will, sizeof will, "will/%u", node->id);
    cd.host = host;
    cd.port = 29500;
    cd.job_key = r->seed % 2 ? "simulated" : NULL;
    cd.timeout_ms = r->timeout_ms;
    cd.connect_timeout_ms = r->init_timeout_ms;
    cd.will_key = will;
    cd.will_value.data = "gone";
    cd.will_value.bytes = 4;
    cd.os = &node->os;
    cd.logger.func = quiet;
    cd.logger.user = node;
    sim_doing(node, "cdp_tcp_store_create");
    call_begin(r, node, r->init_timeout_ms);
    if (st == CDP_OK) st = failed(r, node, cdp_tcp_store_create(&cd, &c->store));
    call_end(r, node, "cdp_tcp_store_create");
    if (st == CDP_OK) {
        program(c);
        st = c->st;
    }
    if (c->store && node->id == 0) store_wills(c);
    r->joined[node->id] = false;
    sim_doing(node, "cdp_store_destroy");
    call_begin(r, node, 200);
    cdp_store_destroy(c->store);
    call_end(r, node, "cdp_store_destroy");
    if (node->id == 0) {
        cdp_store_server_destroy(c->server);
        cdp__loop_close(&c->loop);
    }
    sim_free(node, c);
    return st;
}

static cdp_status store_main(run *r, sim_node *node) {
    return store_session(r, node, store_program);
}

/* Small cases that were wrong once. */

/* Whoever waits for a key is woken by each of the ways to set one. */
static void wake_program(store_client *c) {
    static const char *const names[] = {"set", "add", "append", "compare_set", "multi_set", "last"};
    const char *keys[1] = {names[4]};
    cdp_bytes value;
    void *v = NULL;
    uint64_t bytes, i;
    value.data = "1";
    value.bytes = 1;
    if (c->node->id == 0) {
        const uint64_t until = c->node->world->now + 200 * SIM_MS;
        while (c->ok && c->node->world->now < until)
            store_ok(c, cdp__loop_run(&c->loop, NULL, until), "cdp__loop_run");
        if (store_next(c, "set"))
            store_ok(c, cdp_store_set(c->store, names[0], "1", 1), "cdp_store_set");
        if (store_next(c, "add"))
            store_ok(c, cdp_store_add(c->store, names[1], 1, NULL), "cdp_store_add");
        if (store_next(c, "append"))
            store_ok(c, cdp_store_append(c->store, names[2], "1", 1), "cdp_store_append");
        if (store_next(c, "compare_set")
            && store_ok(c, cdp_store_compare_set(c->store, names[3], "", 0, "1", 1, &v, &bytes),
                "cdp_store_compare_set"))
            cdp_store_free(c->store, v);
        if (store_next(c, "multi_set"))
            store_ok(c, cdp_store_multi_set(c->store, keys, &value, 1), "cdp_store_multi_set");
        store_barrier(c, names[5]);
        return;
    }
    i = (c->r->seed + c->node->id) % 5; /* each way has somebody who waits for it alone */
    if (store_next(c, names[i])
        && store_ok(
            c, cdp_store_get(c->store, names[i], &v, &bytes, c->r->timeout_ms), "cdp_store_get")) {
        if (bytes != 1 || *(const char *)v != '1')
            wrong(c->r, c->node, "%s: woken with another value", names[i]);
        cdp_store_free(c->store, v);
    }
    store_barrier(c, names[5]);
}

static cdp_status wake_main(run *r, sim_node *node) {
    return store_session(r, node, wake_program);
}

/* A client that gives up a wait and leaves at once has left in order: its last will is not
   carried out. */
static void goodbye_program(store_client *c) {
    void *v = NULL;
    uint64_t bytes;
    cdp_status st = CDP_OK;
    if (c->node->id == 0) {
        const uint64_t until = c->node->world->now + 20000 * SIM_MS; /* the others may begin late */
        call_begin(c->r, c->node, 20000);
        while (c->ok && c->node->world->now < until)
            store_ok(c, cdp__loop_run(&c->loop, NULL, until), "cdp__loop_run");
        return;
    }
    if (!store_next(c, "get never")) return;
    st = cdp_store_get(c->store, "never", &v, &bytes, 50);
    if (st != CDP_ERR_TIMEOUT) wrong(c->r, c->node, "%s instead of a timeout", cdp_status_name(st));
}

static cdp_status goodbye_main(run *r, sim_node *node) {
    return store_session(r, node, goodbye_program);
}

/* ---- >>whole jobs over TCP ------------------------------------------------------------------- */

/* Starts as a program does that has frames. */
static cdp_status tcp_start(run *r, sim_node *node, const cdp_tcp_desc *t, cdp_group **g) {
    cdp_starting *starting = NULL;
    cdp_status st;
    if (!r->frame_us) return cdp_init(t, g);
    st = cdp_init_start(t, &starting);
    if (st == CDP_OK) st = CDP_PENDING;
    while (st == CDP_PENDING) {
        const uint64_t from_ns = node->world->now;
        st = cdp_init_poll(starting, r->frame_us, g);
        budget_end(r, node, from_ns, r->frame_us, "cdp_init_poll");
    }
    return st;
}

static cdp_status tcp_main(run *r, sim_node *node) {
    cdp_group_desc d;
    cdp_tcp_desc t;
    cdp_group *g = NULL;
    cdp_status st;
    group_desc_of(r, node, &d);
    memset(&t, 0, sizeof t);
    t.group.rank = d.rank;
    t.group.world_size = d.world_size;
    t.master_addr = host_of_node_0(r);
    t.master_port = 29500;
    t.job_key = r->seed % 2 ? "simulated" : NULL;
    t.mac = t.job_key && r->seed / 2 % 4 == 1;
    t.trust_network = !r->one_host;
    t.init_timeout_ms = r->init_timeout_ms;
    t.group.timeout_ms = d.timeout_ms;
    t.group.small_bytes = d.small_bytes;
    t.group.piece_bytes = d.piece_bytes;
    t.connections = 1 + (uint32_t)(r->seed / 6) % 3;
    t.group.spin_us = d.spin_us;
    t.group.no_spin = d.no_spin;
    t.group.os = d.os;
    t.group.logger = d.logger;
    if (r->memory) { /* short messages are read in place, too */
        t.ring_bytes = 4096u << r->seed % 5;
        t.group.expose_bytes = 64u << r->seed % 11;
    }
    /* started with other settings than the rest */
    if (r->act == F_CONFIG && r->act_node == node->id) {
        r->fault.happened = true;
        r->fault.happened_ns = node->world->now;
        if (r->act_at % 4 == 0)
            t.group.small_bytes++;
        else if (r->act_at % 4 == 1)
            t.group.world_size++;
        else if (r->act_at % 4 == 2)
            t.connections++;
        else
            t.group.rank = (uint32_t)r->fault.b; /* somebody else's */
    }
    sim_doing(node, "cdp_init");
    call_begin(r, node, r->init_timeout_ms);
    st = failed(r, node, tcp_start(r, node, &t, &g));
    call_end(r, node, "cdp_init");
    r->joined[node->id] = st == CDP_OK;
    if (st != CDP_OK) return st;
    return r->sc->program ? r->sc->program(r, node, g) : job_program(r, node, g);
}

/* ---- >>scenarios ----------------------------------------------------------------------------- */

#define OWN_FAULTS ((1u << F_ABORT) | (1u << F_LEAVE) | (1u << F_MISMATCH))
#define ALL_FAULTS ((1u << F_COUNT) - 1)
#define NETWORK_FAULTS (ALL_FAULTS & ~(OWN_FAULTS | (1u << F_NOMEM) | (1u << F_CONFIG)))

#define ONLY_BY_NAME 0xffffffffu /* as a share: what is asked there is not promised yet */

static const scenario scenarios[] = {
    {"raw", raw_main, 1, 6, NETWORK_FAULTS, false, NULL, 0, false},
    {"hub", hub_main, 1, 9,
        (1u << F_NONE) | (1u << F_DELAY) | (1u << F_PAUSE) | (1u << F_NOMEM) | OWN_FAULTS, true,
        NULL, 0, false},
    {"wide", hub_main, 1, 8,
        (1u << F_NONE) | (1u << F_DELAY) | (1u << F_PAUSE) | (1u << F_NOMEM) | (1u << F_ABORT)
            | (1u << F_LEAVE),
        true, wide_program, 4, true},
    {"tensors", hub_main, 1, 8,
        (1u << F_NONE) | (1u << F_DELAY) | (1u << F_PAUSE) | (1u << F_NOMEM), true, tensors_program,
        20, false},
    {"wake", wake_main, 6, 6, (1u << F_NONE) | (1u << F_DELAY), false, NULL, 0, false},
    {"goodbye", goodbye_main, 3, 3, (1u << F_NONE) | (1u << F_DELAY), false, NULL, 0, false},
    {"store", store_main, 1, 9, NETWORK_FAULTS | (1u << F_NOMEM), false, NULL, 0, false},
    {"job", tcp_main, 1, 9, ALL_FAULTS, true, NULL, 0, false},
    {"wide_tcp", tcp_main, 1, 8, ALL_FAULTS & ~((1u << F_MISMATCH) | (1u << F_CONFIG)), true,
        wide_program, 4, true},
    /* What is not promised yet: groups of some ranks do not know why a rank left; a rank that ends
       at once is lost for one that still starts. */
    {"strict_tcp", tcp_main, 2, 8, ALL_FAULTS & ~((1u << F_MISMATCH) | (1u << F_CONFIG)), true,
        strict_program, ONLY_BY_NAME, false},

    /* Several groups, each of which fails alone: the first rank to leave one may be blamed. */
    {"tensors_tcp", tcp_main, 1, 8, NETWORK_FAULTS | (1u << F_NOMEM), false, tensors_program, 20,
        false},
};
#define SCENARIO_COUNT ((uint32_t)(sizeof scenarios / sizeof scenarios[0]))

/* ---- >>run ----------------------------------------------------------------------------------- */

static void node_main(sim_node *node, void *arg) {
    run *r = (run *)arg;
    outcome *o = &r->out[node->id];
    o->status = r->sc->func(r, node);
    if (o->status != CDP_OK && o->error.status == CDP_OK) o->error = *cdp_last_error();
    o->ended = true;
    o->ended_ns = node->world->now;
    sim_say(node, "result: %s%s%s", cdp_status_name(o->status), o->status == CDP_OK ? "" : ": ",
        o->status == CDP_OK ? "" : o->error.text);
}

/* What users run by default: a progress thread, and memory between ranks of one host. */
static bool with_threads, with_memory;

/* Ranks that share hosts, in any order and not as many on each; and operations whose payloads the
   receiver may read remotely. Their random numbers are a stream of their own: all other seeds give
   the runs that they gave before. */
static void plan_frames(run *r) {
    uint64_t s = sim_stream(r->seed, 24);
    if (!r->tiny && sim_chance(&s, 200))
        r->frame_us = (uint32_t)(sim_log_between(&s, 100 * SIM_US, 100 * SIM_MS) / SIM_US);
}

static void plan_hosts(run *r) {
    uint64_t s = sim_stream(r->seed, 23);
    uint32_t i, count;
    r->large = !r->tiny && sim_chance(&s, 64) && !with_frames_ns;
    if (r->nodes < 3 || !sim_chance(&s, 256)) return;
    count = (uint32_t)sim_between(&s, 2, r->nodes - 1);
    for (i = 1; i < r->nodes; ++i)
        r->hosts[i] = (uint8_t)(sim_random(&s) % count);
    r->hosts[1 + sim_random(&s) % (r->nodes - 1)] = 1; /* they are not all on one */
    r->shared_hosts = true;
    r->one_host = false;
    r->memory = with_memory;
}

static void plan_make(run *r, const scenario *sc, fault_class fault, uint64_t seed) {
    uint64_t s = sim_stream(seed, 9);
    memset(r, 0, sizeof *r);
    r->sc = sc;
    r->fault_kind = fault;
    r->seed = seed;
    r->nodes = (uint32_t)sim_between(&s, sc->nodes_min, sc->nodes_max);
    if (r->nodes < 2 && fault != F_NONE && fault != F_DELAY && fault != F_PAUSE && fault != F_NOMEM
        && fault != F_ABORT)
        r->nodes = 2 + (uint32_t)(seed % (sc->nodes_max - 1));
    if (with_frames_ns && r->nodes > 6) r->nodes = 6; /* chains are followed within 0.3 s */
    r->one_host = sim_chance(&s, 512);
    r->timeout_ms = (uint32_t)sim_between(&s, 5000, 20000);
    r->init_timeout_ms = (uint32_t)sim_between(&s, 10000, 20000);
    r->tiny = fault != F_NONE && sim_chance(&s, 100) && !with_frames_ns; /* a byte per frame */
    if (r->tiny && r->nodes > 6) r->nodes = 6; /* every byte is an event of its own */
    r->noise = fault == F_NONE ? sim_noise_calm() : sim_noise_wild(seed, r->tiny);
    /* somebody is really late */
    if (fault != F_NONE && sim_chance(&s, 60))
        r->noise.start_ns = sim_log_between(&s, 100 * SIM_MS, 4000 * SIM_MS);
    r->slack_ns = 1000 * SIM_MS;
    if (with_frames_ns) { /* a frame makes one step; if it is small, no operation ends */
        r->noise.buffer_min = r->noise.buffer_max = 65536;
        r->noise.split_1024 = 0;
        r->timeout_ms += 10000;
    }
    r->threads = with_threads;
    /* no network lies between ranks of one host, so none can be cut */
    r->memory = with_memory
        && !(r->one_host && (fault == F_PARTITION || fault == F_ISOLATE || fault == F_VANISH));
    if (sc->func == tcp_main) plan_hosts(r);
    if (sc->func == tcp_main) plan_frames(r);
}

/* The ranks of a's host. */
static uint64_t host_of(const run *r, uint32_t a) {
    uint64_t set = 1ull << a;
    uint32_t i;
    for (i = 0; r->shared_hosts && i < r->nodes; ++i)
        if (r->hosts[i] == r->hosts[a]) set |= 1ull << i;
    return set;
}

/* Where the fault goes, now that it is known what the run without it looks like. */
static void plan_fault(run *r, const run *dry) {
    uint64_t s = sim_stream(r->seed, 10);
    sim_fault *f = &r->fault;
    const uint32_t n = r->nodes, a = (uint32_t)(sim_random(&s) % n),
                   b = (a + 1 + (uint32_t)(sim_random(&s) % (n > 1 ? n - 1 : 1))) % n;
    const bool by_call = sim_chance(&s, 512);
    uint32_t k;
    memset(f, 0, sizeof *f);
    f->a = (int32_t)a;
    f->b = (int32_t)b;
    f->at_ns = sim_random(&s) % (dry->virtual_ns + dry->virtual_ns / 50 + 1);
    f->for_ns = SIM_FOREVER;
    switch (r->fault_kind) {
    case F_KILL:
    case F_STOP:
        f->kind = r->fault_kind == F_KILL ? SIM_FAULT_KILL : SIM_FAULT_STOP;
        if (by_call) f->at_count = sim_between(&s, 1, dry->calls[a]);
        break;
    case F_PAUSE:
        f->kind = SIM_FAULT_STOP;
        f->for_ns = sim_log_between(&s, SIM_MS, 1500 * SIM_MS);
        if (by_call) f->at_count = sim_between(&s, 1, dry->calls[a]);
        break;
    case F_VANISH:
        f->kind = SIM_FAULT_VANISH;
        f->set_a = host_of(r, a);
        break;
    case F_CUT: f->kind = SIM_FAULT_CUT; break;
    case F_PARTITION:
    case F_ISOLATE:
        f->kind = SIM_FAULT_PARTITION;
        f->set_a = host_of(r, a);
        /* no network lies between ranks of one host */
        for (k = 0; k < n && (f->set_a >> f->b & 1); ++k)
            f->b = (int32_t)((b + k) % n);
        f->set_b = r->fault_kind == F_PARTITION ? host_of(r, (uint32_t)f->b) : ~f->set_a;
        if (sim_chance(&s, 300)) f->for_ns = sim_log_between(&s, SIM_MS, 60 * SIM_S);
        break;
    case F_NOMEM:
        f->kind = SIM_FAULT_NOMEM;
        f->at_count = sim_between(&s, 1, dry->allocs[a] ? dry->allocs[a] : 1);
        break;
    case F_ABORT:
    case F_LEAVE:
    case F_MISMATCH:
    case F_CONFIG:
        r->act = r->fault_kind;
        r->act_node = a;
        r->act_at = sim_random(&s);
        break;
    default: break;
    }
}

static bool world_run(run *r, FILE *trace) {
    sim_desc d;
    uint32_t i;
    bool ok;
    memset(&d, 0, sizeof d);
    d.seed = r->seed;
    d.node_count = r->nodes;
    d.main = node_main;
    d.arg = r;
    d.noise = r->noise;
    d.one_host = r->one_host;
    d.hosts = r->shared_hosts ? r->hosts : NULL;
    d.threads = r->threads;
    d.memory = r->memory;
    d.trace = trace;
    d.limit_ns = 600 * SIM_S;
    r->world = sim_open(&d);
    if (r->fault.kind != SIM_FAULT_NONE) sim_add_fault(r->world, &r->fault);
    ok = sim_run(r->world);
    if (r->world->fault_count && r->fault.kind != SIM_FAULT_NONE) r->fault = r->world->faults[0];
    if (r->hub) { /* its users were killed or stopped */
        cdp_hub_destroy(r->hub);
        r->hub = NULL;
    }
    r->hash = r->world->hash;
    r->virtual_ns = r->world->now - r->world->start_ns;
    for (i = 0; i < r->nodes; ++i) {
        r->calls[i] = r->world->nodes[i].calls;
        r->allocs[i] = r->world->nodes[i].alloc_calls;
    }
    return ok;
}

/* Ranks that an error of `node` may rightly blame. */
static uint64_t blamable(const run *r, uint32_t node) {
    const sim_fault *f = &r->fault;
    const uint64_t a = 1ull << (f->a & 63), b = 1ull << (f->b & 63);
    switch (r->fault_kind) {
    case F_VANISH: return a | f->set_a;
    case F_KILL:
    case F_STOP:
    case F_ABORT:
    case F_LEAVE:
    case F_CONFIG:
    case F_NOMEM: return a;
    case F_MISMATCH: return node == (uint32_t)f->a ? ~0ull : a;
    case F_CUT: return a | b;
    case F_PARTITION: return a | b | f->set_a | f->set_b;
    case F_ISOLATE: return (f->set_a >> node & 1) || node == (uint32_t)f->a ? ~0ull : a | f->set_a;
    default: return 0;
    }
}

/* Did rank p ever say a word to node i? A probe of a connection says none. */
static bool has_spoken(const run *r, uint32_t p, uint32_t i) {
    uint32_t k;
    for (k = 0; k < r->world->sock_n; ++k) {
        const sim__sock *s = r->world->socks[k];
        if (s->node->id == p && s->peer && s->peer->node->id == i && s->out.written) return true;
    }
    return false;
}

/* Node i does not blame the culprit. Could nobody who knew better tell it, and was nobody left,
   or within reach, to ask? */
static bool could_not_know(const run *r, uint32_t i) {
    const sim_fault *f = &r->fault;
    const cdp_error *e = &r->out[i].error;
    const outcome *blamed = (uint32_t)e->peer < r->nodes ? &r->out[e->peer] : NULL,
                  *by = (uint32_t)e->origin < r->nodes ? &r->out[e->origin] : NULL;
    /* The one that is blamed has failed for the culprit, and says so itself. */
    const bool failed = blamed && blamed->ended && blamed->status != CDP_OK,
               lacked = failed && r->fault_kind == F_NOMEM && blamed->error.origin == f->a,
               said = lacked
        || (failed && blamed->error.peer >= 0
            && (blamable(r, (uint32_t)e->peer) >> (blamed->error.peer & 63) & 1));
    /* Groups of some ranks fail alone, and objects that find no memory fail no group: the first
       rank that leaves the world for that may be blamed, but by what is strict. */
    if (said && r->sc->lenient
        && (strstr(blamed->error.text, "group of ") || strstr(e->text, "group of ")
            || blamed->status == CDP_ERR_NOMEM))
        return true;
    /* Rank 0 took its leave, and its store with it; those who needed it are gone, too, and were
       never connected to this one. Nobody is left who knows the order: both are named. */
    if (r->fault_kind == F_LEAVE && f->a == 0 && strstr(e->text, "rank 0 is gone, too"))
        return true;
    /* Rank 0 has come to its end, and its store with it. Who knows the culprit was never
       connected to this one. */
    if (said && r->out[0].ended && r->out[0].status == CDP_OK
        && !has_spoken(r, (uint32_t)e->peer, i))
        return true;
    /* The one that is blamed gave up while rank 0 and its store were cut off, and had not reached
       this one yet: it could tell nobody. */
    if (said && r->fault_kind == F_ISOLATE && !f->a && !has_spoken(r, (uint32_t)e->peer, i)
        && blamed->ended_ns < f->happened_ns + f->for_ns)
        return true;
    /* A record of some hundred bytes was on its way through sockets of 3 bytes when the time for
       telling it was over: the rank that was told first left before it could pass it on. */
    if (said && r->fault_kind == F_ABORT && r->tiny && blamed->status == CDP_ERR_ABORTED
        && blamed->ended_ns < f->happened_ns + (CDP__REPORT_MS + CDP__PART_MS) * SIM_MS)
        return true;
    /* The rank, or rank 0 and its store, come back just before the first deadline, and what others
       had to say about whom they wait for is still held back (sim__held: up to 200 ms; and then it
       takes some time to end). Who could not be asked over its cut link, or has left no word in the
       store, looks like the one that does not wait. It is an end of a cut link. */
    if (r->fault_kind == F_ISOLATE && f->for_ns != SIM_FOREVER && e->status == CDP_ERR_TIMEOUT && by
        && by->ended)
        return by->ended_ns > f->happened_ns + f->for_ns
            && by->ended_ns - f->happened_ns - f->for_ns < 300 * SIM_MS;
    return false;
}

/* One rank took its leave, and another one waits for a message from any rank until its deadline.
   Those that are left could send it, for all that it can know: their programs might, so to fail
   before the deadline would be wrong in another world with the same events. */
static bool may_still_send(const run *r) {
    uint32_t i;
    for (i = 0; i < r->nodes; ++i)
        if (r->fault_kind == F_LEAVE && r->out[i].ended && r->out[i].status == CDP_ERR_TIMEOUT
            && strstr(r->out[i].error.text, "from any rank"))
            return true;
    return false;
}

/* Node i was stopped for longer than an ending server waits for clients to take their last answers,
   and its socket holds a few bytes: for it the server is gone. */
static bool missed_the_last_answer(const run *r, uint32_t i) {
    return r->fault_kind == F_PAUSE && r->fault.happened && r->fault.a == (int32_t)i && r->tiny
        && r->fault.for_ns > CDP__SERVER_LAST_MS * SIM_MS && r->out[i].status == CDP_ERR_STORE
        && r->out[0].ended && r->out[0].status == CDP_OK
        && r->out[0].ended_ns < r->fault.happened_ns + r->fault.for_ns;
}

/* Reads the end of the world; `text` says what is wrong, if anything is. */
static verdict judge(run *r, bool ok, char *text, size_t size) {
    const bool may_fail = r->fault.happened && r->fault_kind != F_PAUSE;
    bool failed = false;
    uint32_t i;
    text[0] = 0;
    if (!ok) {
        snprintf(text, size, "%s", r->world->failure);
        return r->world->hang ? V_HANG : V_OTHER;
    }
    for (i = 0; i < r->nodes; ++i) {
        const sim_node *d = &r->world->nodes[i];
        const outcome *o = &r->out[i];
        /* killed, or stopped for good: sim_run() has seen to everybody else */
        if (!o->ended) continue;
        if (o->wrong) {
            snprintf(text, size, "node %u: %s", i, o->note);
            return V_WRONG;
        }
        if (d->block_count || d->fd_count) {
            snprintf(text, size,
                "node %u ended with %s and left %llu allocations (%llu bytes) and %u descriptors",
                i, cdp_status_name(o->status), (unsigned long long)d->block_count,
                (unsigned long long)d->block_bytes, d->fd_count);
            return V_LEAK;
        }
        if (o->late && !(r->fault.kind == SIM_FAULT_STOP && r->fault.a == (int32_t)i)) {
            snprintf(text, size, "node %u: %s (%s: %s)", i, o->note, cdp_status_name(o->status),
                o->error.text);
            return V_LATE;
        }
        if (o->status == CDP_OK) continue;
        failed = true;
        if (r->fault.happened && o->ended_ns > r->fault.happened_ns
            && o->ended_ns - r->fault.happened_ns > r->notice_ns)
            r->notice_ns = o->ended_ns - r->fault.happened_ns;
        if (!may_fail && !missed_the_last_answer(r, i)) {
            snprintf(text, size, "node %u failed without a cause: %s: %s", i,
                cdp_status_name(o->status), o->error.text);
            return V_OTHER;
        }
    }
    if (r->sc->blame && r->notice_ns > NOTICE_NS && r->joined[r->fault.a] && !may_still_send(r)
        && (r->fault_kind == F_KILL || r->fault_kind == F_ABORT || r->fault_kind == F_LEAVE)) {
        snprintf(text, size, "the last rank ended %llu ms after the fault",
            (unsigned long long)(r->notice_ns / SIM_MS));
        for (i = 0; i < r->nodes; ++i)
            if (r->out[i].ended && r->out[i].status != CDP_OK
                && r->out[i].ended_ns - r->fault.happened_ns == r->notice_ns)
                snprintf(text, size, "node %u took %llu ms to notice: %s: %s", i,
                    (unsigned long long)(r->notice_ns / SIM_MS), cdp_status_name(r->out[i].status),
                    r->out[i].error.text);
        return V_LATE;
    }
    for (i = 0; r->sc->blame && i < r->nodes; ++i) {
        const outcome *o = &r->out[i];
        if (!o->ended || o->status == CDP_OK) continue;
        if (r->fault_kind == F_NOMEM && o->status == CDP_ERR_NOMEM && r->fault.a == (int32_t)i)
            continue;
        if (o->error.peer >= 0 && (blamable(r, i) >> (o->error.peer & 63) & 1)) continue;
        /* the job was over before it came */
        if (o->error.peer == 0 && strstr(o->error.text, "no store answered")) continue;
        /* the rank it took; or rank 0, says it */
        if (r->fault_kind == F_CONFIG
            && (o->error.peer == r->fault.b || o->error.origin == r->fault.b
                || o->error.origin == r->fault.a))
            continue;
        /* it says so itself */
        if ((r->fault_kind == F_NOMEM || r->fault_kind == F_ABORT || r->fault_kind == F_MISMATCH)
            && o->error.origin == r->fault.a)
            continue;
        /* from within, it is the others that are cut off: any rank is the end of a cut link */
        if (r->fault_kind == F_ISOLATE && o->error.origin >= 0
            && ((r->fault.set_a | 1ull << (r->fault.a & 63)) >> o->error.origin & 1))
            continue;
        if (could_not_know(r, i)) continue;
        /* its store may fail somebody else for it */
        if (r->fault_kind == F_NOMEM && r->fault.a == 0 && o->error.peer >= 0) continue;
        snprintf(text, size, "node %u blames rank %d: %s: %s (%s:%u)", i, (int)o->error.peer,
            cdp_status_name(o->status), o->error.text, o->error.file, o->error.line);
        return V_BLAME;
    }
    return failed ? V_ERROR : V_RIGHT;
}

typedef struct options {
    uint64_t from, to;
    const scenario *only;
    int32_t fault; /* -1: all */
    bool single, verbose, twice;
    bool mixed; /* threads and memory, one of them or none, as choose_defaults() says */
    uint32_t jobs;
    uint64_t until_ns; /* of real time; then no further run is begun, whatever `to` is */
    int64_t kill_node, kill_at;
} options;

static const char *hosts_text(const run *r) {
    if (r->one_host) return ", one host";
    return r->shared_hosts ? ", shared hosts" : "";
}

static const char *fault_text(const run *r, char *out, size_t size) {
    const sim_fault *f = &r->fault;
    if (r->fault_kind == F_NONE || r->fault_kind == F_DELAY)
        snprintf(out, size, "no fault");
    else if (r->fault_kind == F_CUT || r->fault_kind == F_PARTITION)
        snprintf(out, size, "%s between %d and %d at %.3f ms%s", fault_names[r->fault_kind], f->a,
            f->b, (double)f->happened_ns / 1e6 - 1e3, f->happened ? "" : " (did not happen)");
    else
        snprintf(out, size, "%s of %d at %.3f ms (os call %llu)%s", fault_names[r->fault_kind],
            f->a, (double)f->happened_ns / 1e6 - 1e3, (unsigned long long)f->at_count,
            f->happened ? "" : " (did not happen)");
    return out;
}

/* One seed: the run without the fault, then the one with it. All faults of a seed share the
   first: it is kept. */
static verdict seed_run(run *r, const scenario *sc, fault_class fault, uint64_t seed,
    const options *opt, FILE *trace, char *text, size_t size) {
    static run dry;
    static bool kept;
    verdict v;
    plan_make(r, sc, fault, seed);
    if (fault != F_NONE && fault != F_DELAY) {
        if (!kept || dry.sc != sc || dry.seed != seed || dry.nodes != r->nodes
            || dry.memory != r->memory) {
            plan_make(&dry, sc, fault, seed);
            v = judge(&dry, world_run(&dry, NULL), text, size);
            sim_close(dry.world);
            kept = v == V_RIGHT;
            if (!kept && trace) {
                plan_make(&dry, sc, fault, seed);
                (void)world_run(&dry, trace);
                sim_close(dry.world);
            }
            if (!kept) {
                *r = dry;
                return v;
            }
        }
        plan_fault(r, &dry);
    }
    if (opt->kill_at >= 0) {
        r->fault.a = (int32_t)opt->kill_node;
        r->fault.at_count = (uint64_t)opt->kill_at;
    }
    v = judge(r, world_run(r, trace), text, size);
    sim_close(r->world);
    return v;
}

/* ---- >>command line -------------------------------------------------------------------------- */

typedef struct cell {
    uint64_t runs, verdicts[V_COUNT], happened, worst_notice_ns, virtual_ns;
} cell;

typedef struct worker {
    uint64_t at; /* the task it is at */
    uint64_t passed, failed, replayed;
    pid_t pid;
    cell cells[16][F_COUNT];
} worker;

static uint64_t task_count(const options *o, uint32_t *scs, uint32_t *faults) {
    uint32_t i;
    uint64_t n = 0;
    for (i = 0; i < SCENARIO_COUNT * F_COUNT; ++i) {
        const scenario *sc = &scenarios[i / F_COUNT];
        const uint32_t f = i % F_COUNT;
        if ((o->only && o->only != sc) || (o->fault >= 0 && (uint32_t)o->fault != f)
            || !(sc->faults >> f & 1))
            continue;
        scs[n] = i / F_COUNT;
        faults[n++] = f;
    }
    return n;
}

/* A quarter of the seeds each with neither, one and both; also a quarter of every 20th seed. */
static void choose_defaults(const options *o, uint64_t seed) {
    const uint64_t n = seed + seed / 20;
    if (!o->mixed) return;
    with_threads = n & 1;
    with_memory = n >> 1 & 1;
}

static uint64_t real_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SIM_S + (uint64_t)t.tv_nsec;
}

static void print_failure(const char *sc, uint32_t fault, uint64_t seed, const char *verdict_name,
    const char *text, const run *r) {
    char line[6000], ft[200];
    const int n = snprintf(line, sizeof line,
        "FAIL %s/%s seed %llu: %s: %s\n     %s%s%u nodes%s\n     replay: sim%s%s --scenario %s "
        "--faults %s --seed %llu --verbose\n",
        sc, fault_names[fault], (unsigned long long)seed, verdict_name, text,
        r ? fault_text(r, ft, sizeof ft) : "", r ? ", " : "", r ? r->nodes : 0,
        r && r->tiny ? ", tiny buffers" : "", with_threads ? " --threads" : "",
        with_memory ? " --memory" : "", sc, fault_names[fault], (unsigned long long)seed);
    fflush(stdout);
    /* one write: lines of several processes do not mix */
    if (n > 0 && write(1, line, (size_t)n) < 0) return;
}

static void task_run(worker *w, const options *opt, uint32_t sc, uint32_t fault, uint64_t seed) {
    static run r, again;
    char text[5000], text2[5000];
    verdict v;
    cell *c = &w->cells[sc][fault];
    choose_defaults(opt, seed);
    alarm(60);
    v = seed_run(&r, &scenarios[sc], (fault_class)fault, seed, opt, NULL, text, sizeof text);
    if (v <= V_ERROR && (opt->twice || seed % 32 == 7)) { /* the same seed must give the same run */
        const verdict v2 = seed_run(
            &again, &scenarios[sc], (fault_class)fault, seed, opt, NULL, text2, sizeof text2);
        ++w->replayed;
        if (v2 != v || again.hash != r.hash) {
            snprintf(text, sizeof text, "a second run differs: %s, %016llx against %016llx",
                verdict_names[v2], (unsigned long long)again.hash, (unsigned long long)r.hash);
            v = V_OTHER;
        }
    }
    alarm(0);
    c->runs++;
    c->verdicts[v]++;
    c->happened += r.fault.happened;
    c->virtual_ns += r.virtual_ns;
    if (r.notice_ns > c->worst_notice_ns) c->worst_notice_ns = r.notice_ns;
    if (v <= V_ERROR) {
        w->passed++;
        return;
    }
    w->failed++;
    print_failure(scenarios[sc].name, fault, seed, verdict_names[v], text, &r);
}

static void task_next(worker *w, const options *opt, uint64_t kinds) {
    ++w->at;
    if (w->at % kinds == 0) w->at += (opt->jobs - 1) * kinds;
}

/* Some scenarios are slow: they run for part of the seeds. */
static bool task_due(const options *opt, const scenario *sc, uint64_t seed) {
    if (sc->share == ONLY_BY_NAME) return opt->only == sc;
    return opt->only == sc || !sc->share || seed % sc->share == 0;
}

static void worker_start(worker *w, const options *opt, const uint32_t *scs, const uint32_t *faults,
    uint64_t kinds, uint64_t total) {
    pid_t pid;
    fflush(stdout);
    pid = fork();
    if (pid < 0) abort();
    if (pid > 0) {
        w->pid = pid; /* not in the child: this memory is shared */
        return;
    }
    while (w->at < total
        && real_ns()
            < opt->until_ns) { /* all kinds of one seed, then the next seed of this worker */
        const uint32_t sc = scs[w->at % kinds];
        const uint64_t seed = opt->from + w->at / kinds;
        if (task_due(opt, &scenarios[sc], seed)) task_run(w, opt, sc, faults[w->at % kinds], seed);
        task_next(w, opt, kinds);
    }
    _exit(0);
}

/* Pairs of a scenario and a fault, without what is run by name only. */
static uint64_t task_kinds(const options *opt) {
    uint64_t n = 0;
    for (uint32_t sc = 0; sc < SCENARIO_COUNT; ++sc)
        for (uint32_t f = 0; f < F_COUNT; ++f)
            n += (!opt->only || opt->only == &scenarios[sc])
                && (opt->fault < 0 || (uint32_t)opt->fault == f) && (scenarios[sc].faults >> f & 1)
                && (scenarios[sc].share != ONLY_BY_NAME || opt->only == &scenarios[sc]);
    return n;
}

static int run_many(const options *opt) {
    static uint32_t scs[16 * F_COUNT], faults[16 * F_COUNT];
    const uint64_t kinds = task_count(opt, scs, faults), total = kinds * (opt->to - opt->from + 1);
    worker *ws = (worker *)mmap(
        NULL, opt->jobs * sizeof *ws, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t t0 = real_ns(), last = 0;
    double seconds;
    uint64_t passed = 0, failed = 0, replayed = 0, cells_run = 0, cells_happened = 0;
    uint32_t j, f, sc, alive = 0;
    if (ws == (worker *)MAP_FAILED) abort();
    for (j = 0; j < opt->jobs; ++j)
        ws[j].at = j * kinds;
    for (j = 0; j < opt->jobs || alive; ++j) {
        if (j < opt->jobs) { /* start one */
            worker_start(&ws[j], opt, scs, faults, kinds, total);
            ++alive;
            continue;
        }
        {
            int status = 0;
            const pid_t pid = wait(&status);
            worker *w = ws;
            while (w->pid != pid)
                ++w;
            --alive;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
            { /* it died in a run: that run failed, and the rest goes on in a new process */
                char text[100];
                const uint64_t at = w->at;
                snprintf(text, sizeof text,
                    WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM
                        ? "still running after 60 s of real time"
                        : "the process died: %s %d",
                    WIFSIGNALED(status) ? "signal" : "exit status",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
                choose_defaults(opt, opt->from + at / kinds);
                print_failure(scenarios[scs[at % kinds]].name, faults[at % kinds],
                    opt->from + at / kinds, "other", text, NULL);
                w->failed++;
                w->cells[scs[at % kinds]][faults[at % kinds]].runs++;
                w->cells[scs[at % kinds]][faults[at % kinds]].verdicts[V_OTHER]++;
                task_next(w, opt, kinds);
                worker_start(w, opt, scs, faults, kinds, total);
                ++alive;
            }
        }
    }
    seconds = (double)(real_ns() - t0) * 1e-9;
    printf("%-10s %-10s %7s %8s %8s %8s %6s %6s %6s %6s %6s %6s %10s\n", "scenario", "fault",
        "runs", "happened", "right", "r.error", "blame", "hang", "late", "wrong", "leak", "other",
        "noticed ms");
    for (sc = 0; sc < SCENARIO_COUNT; ++sc)
        for (f = 0; f < F_COUNT; ++f) {
            cell c;
            memset(&c, 0, sizeof c);
            for (j = 0; j < opt->jobs; ++j) {
                const cell *x = &ws[j].cells[sc][f];
                uint32_t v;
                c.runs += x->runs;
                c.happened += x->happened;
                for (v = 0; v < V_COUNT; ++v)
                    c.verdicts[v] += x->verdicts[v];
                if (x->worst_notice_ns > c.worst_notice_ns) c.worst_notice_ns = x->worst_notice_ns;
            }
            if (!c.runs) continue;
            ++cells_run;
            cells_happened += f <= F_DELAY || c.happened;
            printf(
                "%-10s %-10s %7llu %8llu %8llu %8llu %6llu %6llu %6llu %6llu %6llu %6llu %10.1f\n",
                scenarios[sc].name, fault_names[f], (unsigned long long)c.runs,
                (unsigned long long)c.happened, (unsigned long long)c.verdicts[V_RIGHT],
                (unsigned long long)c.verdicts[V_ERROR], (unsigned long long)c.verdicts[V_BLAME],
                (unsigned long long)c.verdicts[V_HANG], (unsigned long long)c.verdicts[V_LATE],
                (unsigned long long)c.verdicts[V_WRONG], (unsigned long long)c.verdicts[V_LEAK],
                (unsigned long long)c.verdicts[V_OTHER], (double)c.worst_notice_ns * 1e-6);
        }
    for (j = 0; j < opt->jobs; ++j) {
        passed += ws[j].passed;
        failed += ws[j].failed;
        replayed += ws[j].replayed;
        if (ws[j].at / kinds > last) last = ws[j].at / kinds;
    }
    if (opt->until_ns != UINT64_MAX)
        printf(
            "seeds %llu to about %llu; %llu of %llu pairs of a scenario and a fault were run, and "
            "in %llu of them the fault happened\n",
            (unsigned long long)opt->from, (unsigned long long)(opt->from + last),
            (unsigned long long)cells_run, (unsigned long long)task_kinds(opt),
            (unsigned long long)cells_happened);
    printf("%.1f s, %.0f runs per second, %llu of them repeated with the same trace\n", seconds,
        (double)(passed + failed) / seconds, (unsigned long long)replayed);
    printf("%llu passed, %llu failed\n", (unsigned long long)passed, (unsigned long long)failed);
    munmap(ws, opt->jobs * sizeof *ws);
    return failed ? 1 : 0;
}

/* One seed, in this process, so that a debugger sees it. */
static int run_one(const options *opt) {
    static uint32_t scs[16 * F_COUNT], faults[16 * F_COUNT];
    static run r;
    const uint64_t kinds = task_count(opt, scs, faults);
    uint64_t i, passed = 0;
    char text[5000], ft[200];
    for (i = 0; i < kinds; ++i) {
        const verdict v = seed_run(&r, &scenarios[scs[i]], (fault_class)faults[i], opt->from, opt,
            opt->verbose ? stdout : NULL, text, sizeof text);
        uint32_t k;
        printf("%s/%s seed %llu: %s%s%s\n  %u nodes%s%s%s, %s, %.3f ms of virtual time, trace "
               "%016llx\n",
            scenarios[scs[i]].name, fault_names[faults[i]], (unsigned long long)opt->from,
            verdict_names[v], text[0] ? ": " : "", text, r.nodes, r.tiny ? ", tiny buffers" : "",
            hosts_text(&r), r.frame_us ? ", in frames" : "", fault_text(&r, ft, sizeof ft),
            (double)r.virtual_ns * 1e-6, (unsigned long long)r.hash);
        for (k = 0; k < r.nodes; ++k)
            printf("    node %u: %s%s%s at %.3f ms, %llu os calls, blames %d\n", k,
                r.out[k].ended ? cdp_status_name(r.out[k].status) : "did not end",
                r.out[k].ended && r.out[k].status != CDP_OK ? ": " : "",
                r.out[k].ended ? r.out[k].error.text : "", (double)r.out[k].ended_ns * 1e-6 - 1e3,
                (unsigned long long)r.calls[k], r.out[k].error.peer);
        passed += v <= V_ERROR;
    }
    printf("%llu passed, %llu failed\n", (unsigned long long)passed,
        (unsigned long long)(kinds - passed));
    return passed == kinds ? 0 : 1;
}

/* Kill one node at each of its os calls in turn. */
static int run_sweep(const options *opt, int64_t stride) {
    static run r, dry;
    char text[5000];
    uint64_t passed = 0, failed_runs = 0, of_node;
    uint32_t i, sc;
    for (sc = 0; sc < SCENARIO_COUNT; ++sc) {
        options o = *opt;
        if (opt->only && opt->only != &scenarios[sc]) continue;
        plan_make(&dry, &scenarios[sc], F_KILL, opt->from);
        (void)world_run(&dry, NULL);
        sim_close(dry.world);
        for (i = 0; i < dry.nodes; ++i) {
            o.kill_node = i;
            of_node = 0;
            for (o.kill_at = 1; o.kill_at <= (int64_t)dry.calls[i]; o.kill_at += stride) {
                const verdict v =
                    seed_run(&r, &scenarios[sc], F_KILL, opt->from, &o, NULL, text, sizeof text);
                if (v <= V_ERROR) {
                    ++passed;
                    continue;
                }
                ++failed_runs;
                if (++of_node > 5) continue;
                printf("FAIL %s: node %u killed at its os call %lld: %s: %s\n     replay: sim "
                       "--scenario %s --faults kill --seed %llu --kill %u:%lld --verbose\n",
                    scenarios[sc].name, i, (long long)o.kill_at, verdict_names[v], text,
                    scenarios[sc].name, (unsigned long long)opt->from, i, (long long)o.kill_at);
            }
            if (of_node > 5)
                printf("     (and %llu more places where a kill of node %u goes wrong)\n",
                    (unsigned long long)of_node - 5, i);
        }
    }
    printf(
        "%llu passed, %llu failed\n", (unsigned long long)passed, (unsigned long long)failed_runs);
    return failed_runs ? 1 : 0;
}

static int usage(int code) {
    uint32_t i;
    printf("sim [--seeds N | FROM..TO] [--scenario NAME] [--faults KIND] [--jobs J] [--twice]\n"
           "    run every scenario with every kind of fault for seeds 1..N (default: 20)\n"
           "sim --seed N [--scenario NAME] [--faults KIND] [--verbose] [--kill NODE:CALL]\n"
           "    one seed in this process; --verbose prints all that happens; --kill puts the kill "
           "at that os call\n"
           "sim --sweep STRIDE --seed N [--scenario NAME]\n"
           "    kill each node at every STRIDE-th of its os calls in turn\n"
           "sim --seconds S [--from SEED] [--scenario NAME] [--faults KIND] [--jobs J]\n"
           "    for S seconds over seeds from SEED on (default: from the clock, so that nobody has "
           "used them),\n"
           "    a quarter of them each with neither, one and both of --threads and --memory\n"
           "--threads, --memory: with what users have by default, a progress thread in each rank, "
           "and\n"
           "    shared memory between ranks of one host\n"
           "--frames MS: ranks of the scenarios with `job` look once in so long, and wait nowhere "
           "else\n"
           "scenarios:");
    for (i = 0; i < SCENARIO_COUNT; ++i)
        printf(" %s", scenarios[i].name);
    printf("\nfaults:");
    for (i = 0; i < F_COUNT; ++i)
        printf(" %s", fault_names[i]);
    printf("\n");
    return code;
}

static const char *option_value(int argc, char **argv, int *i) {
    if (*i + 1 >= argc) exit(usage(2));
    return argv[++*i];
}

int main(int argc, char **argv) {
    options o;
    int64_t sweep = 0;
    uint64_t seconds = 0, from = 0;
    uint32_t k;
    int i;
    memset(&o, 0, sizeof o);
    o.from = 1;
    o.to = 20;
    o.fault = -1;
    o.kill_at = o.kill_node = -1;
    o.jobs = 1;
    o.until_ns = UINT64_MAX;
    for (i = 1; i < argc; ++i) {
        const char *a = argv[i];
        if (strcmp(a, "--help") == 0)
            return usage(0);
        else if (strcmp(a, "--verbose") == 0)
            o.verbose = true;
        else if (strcmp(a, "--twice") == 0)
            o.twice = true;
        else if (strcmp(a, "--threads") == 0)
            with_threads = true;
        else if (strcmp(a, "--memory") == 0)
            with_memory = true;
        else if (strcmp(a, "--frames") == 0)
            with_frames_ns = strtoull(option_value(argc, argv, &i), NULL, 0) * SIM_MS;
        else if (strcmp(a, "--seconds") == 0)
            seconds = strtoull(option_value(argc, argv, &i), NULL, 0);
        else if (strcmp(a, "--from") == 0)
            from = strtoull(option_value(argc, argv, &i), NULL, 0);
        else if (strcmp(a, "--jobs") == 0)
            o.jobs = (uint32_t)atoi(option_value(argc, argv, &i));
        else if (strcmp(a, "--sweep") == 0)
            sweep = atoi(option_value(argc, argv, &i));
        else if (strcmp(a, "--kill") == 0) {
            const char *v = option_value(argc, argv, &i), *colon = strchr(v, ':');
            if (!colon) return usage(2);
            o.kill_node = atoi(v);
            o.kill_at = atoll(colon + 1);
        } else if (strcmp(a, "--seed") == 0) {
            o.from = o.to = strtoull(option_value(argc, argv, &i), NULL, 0);
            o.single = true;
        } else if (strcmp(a, "--seeds") == 0) {
            const char *v = option_value(argc, argv, &i), *dots = strstr(v, "..");
            o.from = dots ? strtoull(v, NULL, 0) : 1;
            o.to = strtoull(dots ? dots + 2 : v, NULL, 0);
        } else if (strcmp(a, "--scenario") == 0) {
            const char *v = option_value(argc, argv, &i);
            for (k = 0; k < SCENARIO_COUNT && strcmp(v, scenarios[k].name) != 0; ++k) {
            }
            if (k == SCENARIO_COUNT) return usage(2);
            o.only = &scenarios[k];
        } else if (strcmp(a, "--faults") == 0) {
            const char *v = option_value(argc, argv, &i);
            for (k = 0; k < F_COUNT && strcmp(v, fault_names[k]) != 0; ++k) {
            }
            if (k == F_COUNT) return usage(2);
            o.fault = (int32_t)k;
        } else {
            return usage(2);
        }
    }
    if (seconds) {
        o.from = from ? from : (uint64_t)time(NULL) * 1000;
        o.to = o.from + 1000000000;
        o.until_ns = real_ns() + seconds * SIM_S;
        o.mixed = !with_threads && !with_memory;
        printf("seeds from %llu on, for %llu s: sim --seconds %llu --from %llu\n",
            (unsigned long long)o.from, (unsigned long long)seconds, (unsigned long long)seconds,
            (unsigned long long)o.from);
    }
    if (o.jobs < 1 || o.jobs > 256 || o.to < o.from) return usage(2);
    if (sweep > 0) return run_sweep(&o, sweep);
    return o.single ? run_one(&o) : run_many(&o);
}
