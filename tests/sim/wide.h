/*  wide.h - what the ranks of a group do in the scenarios "wide": every collective with even and
   uneven parts, on the world and on groups of some of its ranks; works that follow on one another;
   messages, batches of them, and objects; and training with all that a ddp can do. Part of
   sim_main.c. */
#ifndef WIDE_INCLUDED
#define WIDE_INCLUDED

#define WIDE_PARAMS 4u

typedef struct wide {
    run *r;
    sim_node *node;
    cdp_group *world;
    uint64_t s, own; /* what all ranks draw alike, what this one draws */
    uint64_t id;     /* of the next operation */
    bool strict;     /* what is not promised yet, too */
    void *blocks;    /* memory that operations may use until the group is gone */
} wide;

static void *wide_room(wide *w, uint64_t bytes) {
    void **p = (void **)sim_alloc(w->node, bytes + 16);
    *p = w->blocks;
    w->blocks = p;
    return p + 2;
}

static void wide_free(wide *w) {
    while (w->blocks) {
        void *next = *(void **)w->blocks;
        sim_free(w->node, w->blocks);
        w->blocks = next;
    }
}

static void wide_pause(wide *w) {
    if (sim_chance(&w->own, 150)) sim_sleep(w->node, sim_log_between(&w->own, SIM_US, 5 * SIM_MS));
}

/* ---- collectives ---- */

typedef struct wide_op {
    cdp_request rq;
    cdp_group *g;
    uint64_t id;
    uint32_t n, me;
    bool uneven;
    uint64_t counts[2][SIM_MAX_NODES];
    cdp_work work;
} wide_op;

/* How many elements rank `from` has for rank `to`. */
static uint64_t wide_count(const wide_op *o, uint32_t from, uint32_t to) {
    uint64_t key = o->id * 1000003 + to;
    if (!o->uneven) return o->rq.count;
    if (o->rq.kind == CDP_COLL_ALLTOALL) key += (from + 1) * 4099ull;
    return sim_random(&key) % 9;
}

static uint64_t wide_before(const wide_op *o, uint32_t from, uint32_t to) {
    uint64_t sum = 0;
    for (uint32_t k = 0; k < to; ++k)
        sum += wide_count(o, from, k);
    return sum;
}

static int64_t wide_value(const wide *w, const wide_op *o, uint32_t rank, uint64_t i) {
    return job_value(w->r->seed, o->id, rank, i);
}

static int64_t wide_reduced(const wide *w, const wide_op *o, uint64_t i) {
    int64_t acc = wide_value(w, o, 0, i);
    for (uint32_t k = 1; k < o->n; ++k) {
        const int64_t v = wide_value(w, o, k, i);
        if (o->rq.op == CDP_REDUCE_MIN)
            acc = v < acc ? v : acc;
        else if (o->rq.op == CDP_REDUCE_MAX)
            acc = v > acc ? v : acc;
        else
            acc += v;
    }
    return acc;
}

/* Elements of this rank's `out`, 0 where nothing is promised. */
static uint64_t wide_out(const wide_op *o) {
    const bool root = o->rq.root == o->me;
    uint64_t sum = 0;
    switch (o->rq.kind) {
    case CDP_COLL_BARRIER: return 0;
    case CDP_COLL_REDUCE: return root ? o->rq.count : 0;
    case CDP_COLL_ALLGATHER: return wide_before(o, 0, o->n);
    case CDP_COLL_GATHER: return root ? wide_before(o, 0, o->n) : 0;
    case CDP_COLL_SCATTER:
    case CDP_COLL_REDUCE_SCATTER: return wide_count(o, 0, o->me);
    case CDP_COLL_ALLTOALL:
        for (uint32_t k = 0; k < o->n; ++k)
            sum += wide_count(o, k, o->me);
        return sum;
    default: return o->rq.count;
    }
}

static int64_t wide_want(const wide *w, const wide_op *o, uint64_t i) {
    uint32_t k = 0;
    switch (o->rq.kind) {
    case CDP_COLL_BROADCAST: return wide_value(w, o, o->rq.root, i);
    case CDP_COLL_ALLGATHER:
    case CDP_COLL_GATHER:
        for (; i >= wide_count(o, 0, k); ++k)
            i -= wide_count(o, 0, k);
        return wide_value(w, o, k, i);
    case CDP_COLL_SCATTER: return wide_value(w, o, o->rq.root, wide_before(o, 0, o->me) + i);
    case CDP_COLL_REDUCE_SCATTER: return wide_reduced(w, o, wide_before(o, 0, o->me) + i);
    case CDP_COLL_ALLTOALL:
        for (; i >= wide_count(o, k, o->me); ++k)
            i -= wide_count(o, k, o->me);
        return wide_value(w, o, k, wide_before(o, k, o->me) + i);
    default: return wide_reduced(w, o, i);
    }
}

static void wide_check(wide *w, const wide_op *o) {
    const uint64_t n = wide_out(o);
    for (uint64_t i = 0; i < n; ++i) {
        union {
            uint64_t align;
            uint8_t bytes[8];
        } want;
        const uint64_t size = cdp_dtype_size(o->rq.dtype);
        store_value(want.bytes, o->rq.dtype, 0, wide_want(w, o, i));
        if (memcmp(want.bytes, (uint8_t *)o->rq.out + i * size, (size_t)size) == 0) continue;
        wrong(w->r, w->node, "%s %s of %llu x %s by %u ranks: element %llu is wrong",
            o->uneven ? "uneven" : "even", cdp_coll_name(o->rq.kind),
            (unsigned long long)o->rq.count, cdp_dtype_name(o->rq.dtype), o->n,
            (unsigned long long)i);
        return;
    }
}

/* The same on every rank of the group but for the memory. */
static void wide_make(wide *w, cdp_group *g, uint64_t *s, uint64_t id, wide_op *o) {
    const uint64_t most = w->r->tiny ? 16 : 200;
    uint64_t in;
    memset(o, 0, sizeof *o);
    o->g = g;
    o->id = id;
    o->n = cdp_size(g);
    o->me = cdp_rank(g);
    o->rq.kind = (cdp_coll_kind)sim_between(s, CDP_COLL_ALLREDUCE, CDP_COLL_ALLTOALL);
    o->rq.dtype = (cdp_dtype)sim_between(s, CDP_DTYPE_F32, CDP_DTYPE_I64);
    if (o->rq.dtype != CDP_DTYPE_F32 && o->rq.dtype != CDP_DTYPE_F64
        && o->rq.dtype != CDP_DTYPE_I32)
        o->rq.dtype = CDP_DTYPE_I64;
    o->rq.op = CDP_REDUCE_SUM;
    if (!sim_chance(s, 500)) o->rq.op = sim_chance(s, 512) ? CDP_REDUCE_MIN : CDP_REDUCE_MAX;
    o->rq.root = (uint32_t)(sim_random(s) % o->n);
    o->rq.count = sim_chance(s, 60) ? 0 : sim_log_between(s, 1, most);
    o->uneven = sim_chance(s, 512) && o->rq.kind != CDP_COLL_ALLREDUCE
        && o->rq.kind != CDP_COLL_BROADCAST && o->rq.kind != CDP_COLL_REDUCE;
    if (o->rq.kind == CDP_COLL_BARRIER) {
        o->rq.count = 0;
        o->uneven = false;
        return;
    }
    in = wide_before(o, o->me, o->n) + o->rq.count;
    o->rq.in = wide_room(w, in * 8 + 8);
    o->rq.out = wide_room(w, (wide_out(o) + o->rq.count) * 8 + 8);
    for (uint64_t i = 0; i < in; ++i)
        store_value((void *)o->rq.in, o->rq.dtype, i, wide_value(w, o, o->me, i));
    if (o->rq.kind == CDP_COLL_BROADCAST) {
        if (o->rq.root == o->me)
            memcpy(o->rq.out, o->rq.in, (size_t)(o->rq.count * cdp_dtype_size(o->rq.dtype)));
        o->rq.in = NULL;
    }
    for (uint32_t k = 0; k < o->n && o->uneven; ++k) {
        o->counts[0][k] = wide_count(o, o->me, k);
        o->counts[1][k] = wide_count(o, k, o->me);
    }
    if (!o->uneven) return;
    if (o->rq.kind != CDP_COLL_ALLGATHER && o->rq.kind != CDP_COLL_GATHER)
        o->rq.in_counts = o->counts[0];
    else
        o->rq.out_counts = o->counts[0];
    if (o->rq.kind == CDP_COLL_ALLTOALL) o->rq.out_counts = o->counts[1];
}

typedef struct wide_call {
    uint32_t calls;
    cdp_status status;
} wide_call;

static cdp_status wide_called(void *user, cdp_status status) {
    wide_call *c = (wide_call *)user;
    c->calls++;
    c->status = status;
    return CDP_OK;
}

/* Some operations, each of which may wait for the one before; a function follows the last. */
static cdp_status wide_collectives(wide *w, cdp_group *g, uint64_t *s, uint64_t id) {
    const uint32_t n = (uint32_t)sim_between(s, 1, w->r->tiny ? 2 : 4);
    wide_op *ops = (wide_op *)wide_room(w, n * sizeof *ops);
    wide_call *call = (wide_call *)wide_room(w, sizeof *call);
    const bool function = sim_chance(s, 300);
    cdp_work last = {NULL, 0};
    cdp_status st = CDP_OK;
    call_begin(w->r, w->node, w->r->timeout_ms);
    for (uint32_t i = 0; i < n && st == CDP_OK; ++i) {
        wide_op *o = &ops[i];
        const bool after = sim_chance(s, 300) && i;
        wide_make(w, g, s, id + i, o);
        sim_doing(w->node, "%s %s of %llu by %u ranks", o->uneven ? "uneven" : "even",
            cdp_coll_name(o->rq.kind), (unsigned long long)o->rq.count, o->n);
        st = failed(w->r, w->node,
            after ? cdp_start_after(g, &o->rq, ops[i - 1].work, &o->work)
                  : cdp_start(g, &o->rq, &o->work));
        if (st == CDP_OK) last = o->work;
        wide_pause(w);
    }
    if (st == CDP_OK && function)
        st = failed(w->r, w->node, cdp_work_then(last, wide_called, call, &last));
    if (st == CDP_OK) st = failed(w->r, w->node, cdp_work_wait(last));
    for (uint32_t i = 0; i < n && st == CDP_OK; ++i) {
        st = failed(w->r, w->node, cdp_work_wait(ops[i].work));
        if (st == CDP_OK) wide_check(w, &ops[i]);
    }
    call_end(w->r, w->node, "collectives");
    if (st == CDP_OK && function && (call->calls != 1 || call->status != CDP_OK))
        wrong(w->r, w->node, "a function was called %u times, with %s", call->calls,
            cdp_status_name(call->status));
    return st;
}

/* ---- messages ---- */

static void wide_numbers(const wide *w, int32_t *p, uint64_t n, uint64_t id, uint32_t from) {
    for (uint64_t i = 0; i < n; ++i)
        p[i] = (int32_t)job_value(w->r->seed, id, from, i);
}

static void wide_compare(wide *w, const int32_t *p, uint64_t n, uint64_t id, uint32_t from) {
    for (uint64_t i = 0; i < n; ++i)
        if (p[i] != (int32_t)job_value(w->r->seed, id, from, i)) {
            wrong(w->r, w->node, "message from rank %u: element %llu of %llu is wrong", from,
                (unsigned long long)i, (unsigned long long)n);
            return;
        }
}

/* Around the ring, some times. */
static cdp_status wide_ring(wide *w, cdp_group *g, uint64_t *s, uint64_t id) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g), turns = (uint32_t)sim_between(s, 1, 4);
    const uint32_t step = n > 1 ? (uint32_t)sim_between(s, 1, n - 1) : 0;
    const uint64_t count = sim_log_between(s, 1, w->r->tiny ? 16 : 600);
    const uint32_t from = (me + n - step) % n;
    int32_t *out, *in;
    cdp_status st = CDP_OK;
    if (n < 2) return CDP_OK;
    out = (int32_t *)wide_room(w, count * 4);
    in = (int32_t *)wide_room(w, count * 4);
    for (uint32_t i = 0; i < turns && st == CDP_OK; ++i) {
        sim_doing(w->node, "ring of %u ranks, turn %u", n, i);
        wide_numbers(w, out, count, id + i, me);
        call_begin(w->r, w->node, w->r->timeout_ms);
        st = failed(w->r, w->node,
            cdp_sendrecv(g, out, count, (me + step) % n, in, count, from, CDP_DTYPE_I32, 7));
        call_end(w->r, w->node, "cdp_sendrecv");
        if (st == CDP_OK) wide_compare(w, in, count, id + i, from);
        wide_pause(w);
    }
    return st;
}

/* Into rows of an array in place of contiguous memory, with gaps of this rank's own. */
static void wide_rows(wide *w, cdp_transfer *t) {
    t->row = sim_between(&w->own, 1, t->count);
    t->step = t->row + sim_between(&w->own, 0, 3);
    t->data = wide_room(w, (t->count / t->row + 1) * t->step * 4);
    memset(t->data, 0x5a, (t->count / t->row + 1) * t->step * 4);
}

/* Moves rows together; in the gaps nothing may have been written. */
static void wide_unrow(wide *w, const cdp_transfer *t) {
    int32_t *data = (int32_t *)t->data;
    for (uint64_t i = 0; t->row && i < (t->count / t->row + 1) * t->step; ++i) {
        const uint64_t at = i / t->step * t->row + i % t->step;
        if (i % t->step < t->row && at < t->count)
            data[at] = data[i];
        else if (data[i] != 0x5a5a5a5a)
            wrong(w->r, w->node, "a receive of rows of %llu wrote into the gap at %llu",
                (unsigned long long)t->row, (unsigned long long)i);
    }
}

/* A message from each to each, in one batch, in an order of this rank's own. */
static cdp_status wide_batch(wide *w, cdp_group *g, uint64_t *s, uint64_t id) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    const uint64_t count = sim_log_between(s, 1, w->r->tiny ? 8 : 100);
    cdp_transfer list[2 * SIM_MAX_NODES];
    const uint32_t first = (uint32_t)(sim_random(&w->own) % n);
    const bool shaped = w->r->seed % 3 == 2; /* of one world in three messages have shapes */
    cdp_work work = {NULL, 0};
    uint32_t m = 0;
    cdp_status st;
    if (n < 2) return CDP_OK;
    memset(list, 0, sizeof list);
    for (uint32_t i = 0; i < 2 * n; ++i) {
        cdp_transfer *t = &list[m];
        t->peer = (first + i / 2) % n;
        if (t->peer == me) continue;
        t->receive = (i + first) % 2;
        t->count = count;
        if (shaped && t->receive && sim_chance(&w->own, 500))
            wide_rows(w, t);
        else
            t->data = wide_room(w, count * 4);
        t->dtype = CDP_DTYPE_I32;
        t->tag = 9;
        if (!t->receive) wide_numbers(w, (int32_t *)t->data, count, id + t->peer, me);
        t->rendezvous = shaped && !t->receive && sim_chance(&w->own, 500);
        ++m;
    }
    sim_doing(w->node, "batch of %u messages", m);
    call_begin(w->r, w->node, w->r->timeout_ms);
    st = failed(w->r, w->node, cdp_batch(g, list, m, &work));
    if (st == CDP_OK) st = failed(w->r, w->node, cdp_work_wait(work));
    call_end(w->r, w->node, "cdp_batch");
    for (uint32_t i = 0; i < m && st == CDP_OK; ++i) {
        if (!list[i].receive) continue;
        wide_unrow(w, &list[i]);
        wide_compare(w, (int32_t *)list[i].data, count, id + me, list[i].peer);
    }
    return st;
}

/* One rank asks whether something has come from another, and only then receives it. */
static cdp_status wide_probe(wide *w, cdp_group *g, uint64_t *s, uint64_t id) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g);
    const uint32_t to = (uint32_t)(sim_random(s) % n), from = (to + 1) % n;
    const uint64_t count = sim_log_between(s, 1, w->r->tiny ? 8 : 100);
    const uint64_t until = w->node->world->now + 300 * SIM_MS; /* it never says who has left */
    int32_t *data;
    cdp_message got;
    cdp_status st = CDP_PENDING;
    if (n < 2 || (me != to && me != from)) return CDP_OK;
    data = (int32_t *)wide_room(w, count * 4);
    wide_numbers(w, data, count, id, me);
    call_begin(w->r, w->node, 2 * w->r->timeout_ms);
    sim_doing(w->node, me == from ? "cdp_send" : "cdp_probe");
    if (me == from) {
        st = failed(w->r, w->node, cdp_send(g, data, count, CDP_DTYPE_I32, to, 11));
    } else {
        while (st == CDP_PENDING && w->node->world->now < until) {
            st = cdp_probe(g, from, 11, &got);
            if (st == CDP_PENDING) sim_sleep(w->node, sim_log_between(&w->own, SIM_US, SIM_MS));
        }
        if (st == CDP_OK && (got.source != from || got.count != count || got.tag != 11))
            wrong(w->r, w->node, "cdp_probe: %llu elements from rank %u",
                (unsigned long long)got.count, got.source);
        if (st == CDP_PENDING) st = CDP_OK;
        st = failed(w->r, w->node, st);
        sim_doing(w->node, "cdp_recv");
        if (st == CDP_OK)
            st = failed(w->r, w->node, cdp_recv(g, data, count, CDP_DTYPE_I32, from, 11));
        if (st == CDP_OK) wide_compare(w, data, count, id, from);
    }
    call_end(w->r, w->node, "cdp_probe");
    return st;
}

/* ---- objects ---- */

static uint64_t wide_length(const wide *w, uint64_t id, uint32_t rank) {
    return (uint64_t)(job_value(w->r->seed, id, rank, 1u << 20) + 20) * (w->r->tiny ? 1 : 5);
}

static uint8_t wide_byte(const wide *w, uint64_t id, uint32_t rank, uint64_t i) {
    return (uint8_t)job_value(w->r->seed, id, rank, i);
}

static void wide_blob_check(wide *w, const cdp_blob *b, uint64_t id, uint32_t from, uint32_t to) {
    uint64_t at = 0;
    for (uint32_t k = from; k < to; ++k) {
        const uint64_t n = wide_length(w, id, k);
        for (uint64_t i = 0; i < n; ++i, ++at)
            if (at >= b->bytes || ((const uint8_t *)b->data)[at] != wide_byte(w, id, k, i)) {
                wrong(w->r, w->node, "byte %llu of rank %u's object is wrong",
                    (unsigned long long)i, k);
                return;
            }
    }
    if (at != b->bytes)
        wrong(w->r, w->node, "%llu bytes of objects instead of %llu", (unsigned long long)b->bytes,
            (unsigned long long)at);
}

static cdp_status wide_objects(wide *w, cdp_group *g, uint64_t *s, uint64_t id) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g), root = (uint32_t)(sim_random(s) % n);
    const uint32_t kind = (uint32_t)(sim_random(s) % 4);
    uint64_t lengths[SIM_MAX_NODES], bytes = 0, mine = wide_length(w, id, me);
    uint8_t *data = (uint8_t *)wide_room(w, (n + 1) * 400);
    cdp_blob b;
    cdp_status st;
    memset(&b, 0, sizeof b);
    for (uint32_t k = 0; k < n; ++k) {
        lengths[k] = wide_length(w, id, k);
        for (uint64_t i = 0; i < lengths[k] && (kind == 3 || k == me); ++i)
            data[bytes++] = wide_byte(w, id, k, i);
    }
    sim_doing(w->node, "objects, kind %u", kind);
    call_begin(w->r, w->node, 3 * w->r->timeout_ms);
    if (kind == 0)
        st = cdp_allgather_bytes(g, data, mine, &b);
    else if (kind == 1)
        st = cdp_gather_bytes(g, data, mine, root, &b);
    else if (kind == 2)
        st = cdp_broadcast_bytes(g, data, mine, root, me == root ? NULL : &b);
    else
        st = cdp_scatter_bytes(g, data, lengths, root, &b);
    call_end(w->r, w->node, "objects");
    st = failed(w->r, w->node, st);
    if (st == CDP_OK && (kind == 0 || (kind == 1 && me == root))) wide_blob_check(w, &b, id, 0, n);
    if (st == CDP_OK && kind == 2 && me != root) wide_blob_check(w, &b, id, root, root + 1);
    if (st == CDP_OK && kind == 3) wide_blob_check(w, &b, id, me, me + 1);
    cdp_blob_free(g, &b);
    return st;
}

/* ---- groups of some of the ranks ---- */

static cdp_status wide_one(wide *w, cdp_group *g, uint64_t *s, uint64_t id) {
    switch (sim_random(s) % 6) {
    case 0: return wide_ring(w, g, s, id);
    case 1: return wide_batch(w, g, s, id);
    case 2: return wide_probe(w, g, s, id);
    case 3: return wide_objects(w, g, s, id);
    default: return wide_collectives(w, g, s, id);
    }
}

/* The world is split, and each part does something; then some of the ranks do. */
static cdp_status wide_groups(wide *w) {
    run *r = w->r;
    const uint32_t colors = (uint32_t)sim_between(&w->s, 1, 3);
    const uint32_t leave = (uint32_t)(sim_random(&w->s) % (r->nodes + 1));
    uint64_t color = 0, s;
    cdp_group *g = NULL;
    cdp_status st;
    for (uint32_t k = 0; k < r->nodes; ++k) {
        const uint64_t c = k == leave && r->nodes > 1 ? CDP_NO_COLOR : sim_random(&w->s) % colors;
        if (k == w->node->id) color = c;
    }
    sim_doing(w->node, "cdp_group_split");
    call_begin(r, w->node, r->timeout_ms);
    st = failed(r, w->node, cdp_group_split(w->world, (uint32_t)color, 0, &g));
    call_end(r, w->node, "cdp_group_split");
    s = sim_stream(r->seed, 5000 + w->id + color);
    w->id += 100;
    for (uint32_t i = 0; i < 2 && st == CDP_OK && g; ++i)
        st = wide_one(w, g, &s, w->id + 1000000 * (color + 1) + 50 * i);
    sim_doing(w->node, "cdp_group_destroy of a part");
    call_begin(r, w->node, 1000);
    cdp_group_destroy(g);
    call_end(r, w->node, "cdp_group_destroy of a part");
    return st;
}

/* ---- training ---- */

typedef struct wide_model {
    cdp_ddp_desc desc;
    cdp_param params[WIDE_PARAMS];
    cdp_buffer buffer;
    uint64_t id, steps[SIM_MAX_NODES], own_steps, most;
    bool hook, compressed;
} wide_model;

/* Draws until every member of the desc is there that a job can set. */
static void wide_model_make(wide *w, wide_model *m) {
    uint64_t *s = &w->s;
    m->id = w->id;
    m->desc.group = w->world;
    m->desc.params = m->params;
    m->desc.param_count = WIDE_PARAMS;
    m->desc.first_bucket_bytes = sim_log_between(s, 1, 1000);
    m->desc.bucket_bytes = sim_log_between(s, 1, 2000);
    m->desc.find_unused = sim_chance(s, 400);
    m->desc.static_graph = !m->desc.find_unused && sim_chance(s, 300);
    m->desc.rebuild = sim_chance(s, 400);
    m->desc.join = !m->desc.static_graph && sim_chance(s, 400);
    m->desc.join_effective = m->desc.join && sim_chance(s, 400);
    for (uint32_t i = 0; i < WIDE_PARAMS; ++i) {
        cdp_param *p = &m->params[i];
        p->rows = sim_between(s, 1, 5);
        p->count = p->rows * sim_between(s, 1, w->r->tiny ? 3 : 30);
        p->sparse = !m->desc.static_graph && sim_chance(s, 200);
        p->data = wide_room(w, p->count * 4);
        for (uint64_t k = 0; k < p->count; ++k)
            ((float *)p->data)[k] = (float)job_value(w->r->seed, m->id + i, w->node->id, k);
    }
    if (sim_chance(s, 400)) {
        m->buffer.count = sim_between(s, 1, 20);
        m->buffer.data = wide_room(w, m->buffer.count * 4);
        m->desc.buffers = &m->buffer;
        m->desc.buffer_count = 1;
    }
    for (uint32_t k = 0; k < w->r->nodes; ++k) {
        m->steps[k] = sim_between(s, 1, w->r->tiny ? 2 : 4);
        if (!m->desc.join) m->steps[k] = m->steps[0];
        if (m->steps[k] > m->most) m->most = m->steps[k];
    }
    m->own_steps = m->steps[w->node->id];
    m->hook = sim_chance(s, 400);
}

static cdp_status wide_hook(wide *w, wide_model *m, cdp_ddp *ddp) {
    static const cdp_hook_kind kinds[] = {CDP_HOOK_ALLREDUCE, CDP_HOOK_FP16, CDP_HOOK_BF16,
        CDP_HOOK_POWERSGD, CDP_HOOK_POWERSGD_BATCHED, CDP_HOOK_QUANTIZE, CDP_HOOK_QUANTIZE_CHANNEL,
        CDP_HOOK_TOPK};
    cdp_hook_desc d;
    cdp_hook hook;
    cdp_status st;
    memset(&d, 0, sizeof d);
    d.kind = kinds[sim_random(&w->s) % 8];
    d.os = &w->node->os;
    d.start = sim_between(&w->s, 1, 2);
    d.ratio = 3;
    m->compressed = d.kind != CDP_HOOK_ALLREDUCE;
    st = failed(w->r, w->node, cdp_hook_create(&d, &hook));
    if (st == CDP_OK) st = failed(w->r, w->node, cdp_ddp_set_hook(ddp, &hook));
    return st;
}

/* Has `rank` a gradient for parameter i in that step? */
static bool wide_used(
    const wide *w, const wide_model *m, uint32_t rank, uint64_t step, uint32_t i) {
    if (m->desc.static_graph) return job_value(w->r->seed, m->id + 7, rank, i) > -10;
    if (m->desc.find_unused) return job_value(w->r->seed, m->id + 8 + step, rank, i) > -10;
    return true;
}

static float wide_grad(
    const wide *w, const wide_model *m, uint32_t rank, uint64_t step, uint32_t i, uint64_t k) {
    return (float)job_value(w->r->seed, m->id + 20 + step * WIDE_PARAMS + i, rank, k);
}

/* A sparse gradient has one row. */
static uint32_t wide_row(
    const wide *w, const wide_model *m, uint32_t rank, uint64_t step, uint32_t i) {
    return (uint32_t)(job_value(w->r->seed, m->id + 60 + step, rank, i) + 20)
        % (uint32_t)m->params[i].rows;
}

static float wide_mean(const wide *w, const wide_model *m, uint64_t step, uint32_t i, uint64_t k) {
    const uint64_t width = m->params[i].count / m->params[i].rows;
    float sum = 0;
    uint32_t active = 0;
    for (uint32_t rank = 0; rank < w->r->nodes; ++rank) {
        if (m->steps[rank] <= step) continue;
        ++active;
        if (!wide_used(w, m, rank, step, i)) continue;
        if (!m->params[i].sparse)
            sum += wide_grad(w, m, rank, step, i, k);
        else if (wide_row(w, m, rank, step, i) == k / width)
            sum += wide_grad(w, m, rank, step, i, k % width);
    }
    return sum / (float)(m->desc.join_effective ? active : w->r->nodes);
}

static void wide_bad_gradient(wide *w, uint32_t i, uint64_t k, float got, float want) {
    wrong(w->r, w->node, "gradient %u, element %llu is %g, not %g", i, (unsigned long long)k,
        (double)got, (double)want);
}

static void wide_rows_check(wide *w, const wide_model *m, cdp_ddp *ddp, uint64_t step, uint32_t i) {
    const cdp_rows rows = cdp_ddp_rows(ddp, i);
    for (uint64_t k = 0; k < rows.count * rows.width; ++k) {
        const float got = ((const float *)rows.values)[k];
        const uint64_t at = rows.rows[k / rows.width] * rows.width + k % rows.width;
        const float want = wide_mean(w, m, step, i, at);
        if (got - want > 0.001f || want - got > 0.001f) wide_bad_gradient(w, i, at, got, want);
    }
}

/* Compressed gradients are the same everywhere, which the last comparison of parameters shows. */
static void wide_step_check(wide *w, wide_model *m, cdp_ddp *ddp, uint64_t step) {
    for (uint32_t i = 0; i < WIDE_PARAMS; ++i) {
        const float *g = (const float *)cdp_ddp_grad(ddp, i);
        if (m->params[i].sparse) {
            wide_rows_check(w, m, ddp, step, i);
            continue;
        }
        for (uint64_t k = 0; k < m->params[i].count; ++k) {
            const float want = wide_mean(w, m, step, i, k);
            if (!m->compressed && (g[k] - want > 0.001f || want - g[k] > 0.001f)) {
                wide_bad_gradient(w, i, k, g[k], want);
                return;
            }
            ((float *)m->params[i].data)[k] -= g[k];
        }
    }
}

static void wide_ready(wide *w, wide_model *m, cdp_ddp *ddp, uint64_t step, uint32_t i) {
    const uint32_t me = w->node->id;
    const cdp_param *p = &m->params[i];
    const uint64_t width = p->count / p->rows;
    float *g = p->sparse ? (float *)wide_room(w, width * 4) : (float *)cdp_ddp_grad(ddp, i);
    const bool used = wide_used(w, m, me, step, i);
    for (uint64_t k = 0; used && k < (p->sparse ? width : p->count); ++k)
        g[k] = wide_grad(w, m, me, step, i, k);
    if (!used) { /* what is not marked until the end counts as unused, too */
        if (sim_chance(&w->own, 512) && !p->sparse) (void)cdp_ddp_unused(ddp, i);
    } else if (p->sparse) {
        const uint32_t row = wide_row(w, m, me, step, i);
        (void)cdp_ddp_ready_rows(ddp, i, &row, 1, g);
    } else {
        (void)cdp_ddp_ready(ddp, i);
    }
}

/* The buffer is that of rank 0, or with join of the highest rank that has data. */
static void wide_buffer(wide *w, wide_model *m, uint64_t step, bool set) {
    uint32_t from = 0;
    for (uint32_t k = 0; k < w->r->nodes && m->desc.join; ++k)
        if (m->steps[k] > step) from = k;
    for (uint64_t k = 0; k < m->buffer.count; ++k) {
        float *at = (float *)m->buffer.data + k;
        const uint32_t whose = set ? w->node->id : from;
        const float v = (float)job_value(w->r->seed, m->id + 90 + step, whose, k);
        if (set)
            *at = v;
        else if (*at != v)
            wrong(w->r, w->node, "buffer, element %llu: %g, not %g", (unsigned long long)k,
                (double)*at, (double)v);
    }
}

static cdp_status wide_step(wide *w, wide_model *m, cdp_ddp *ddp, uint64_t step) {
    const bool forward = sim_chance(&w->s, 512);
    const uint64_t first = sim_random(&w->own);
    cdp_status st = CDP_OK, st2;
    sim_doing(
        w->node, "step %llu of %llu", (unsigned long long)step, (unsigned long long)m->own_steps);
    wide_buffer(w, m, step, true);
    cdp_ddp_zero_grad(ddp);
    call_begin(w->r, w->node, 12 * w->r->timeout_ms);
    if (forward) st = failed(w->r, w->node, cdp_ddp_forward_begin(ddp));
    if (st == CDP_OK) st = failed(w->r, w->node, cdp_ddp_backward_begin(ddp));
    if (st != CDP_OK) return st;
    wide_buffer(w, m, step, false);
    for (uint32_t i = 0; i < WIDE_PARAMS; ++i) {
        wide_ready(w, m, ddp, step, (uint32_t)((first + i) % WIDE_PARAMS));
        wide_pause(w);
    }
    st2 = ddp_end(w->node, ddp, &w->own);
    call_end(w->r, w->node, "cdp_ddp_backward_end");
    st = failed(w->r, w->node, st2);
    if (st == CDP_OK) wide_step_check(w, m, ddp, step);
    return st;
}

static cdp_status wide_train(wide *w) {
    run *r = w->r;
    wide_model *m = (wide_model *)wide_room(w, sizeof *m);
    cdp_ddp *ddp = NULL;
    cdp_status st;
    memset(m, 0, sizeof *m);
    wide_model_make(w, m);
    w->id += 200;
    sim_doing(w->node, "cdp_ddp_create");
    call_begin(r, w->node, 12 * r->timeout_ms);
    st = failed(r, w->node, ddp_create(w->node, &m->desc, &w->own, &ddp));
    call_end(r, w->node, "cdp_ddp_create");
    if (st == CDP_OK && m->hook) st = wide_hook(w, m, ddp);
    for (uint64_t step = 0; step < m->most && st == CDP_OK; ++step) {
        const uint64_t kept = w->s;
        if (step < m->own_steps) st = wide_step(w, m, ddp, step);
        w->s = kept; /* ranks that are out of data draw what the others do */
        (void)sim_random(&w->s);
    }
    sim_doing(w->node, "cdp_ddp_join");
    call_begin(r, w->node, 40 * r->timeout_ms);
    if (st == CDP_OK && m->desc.join) st = failed(r, w->node, cdp_ddp_join(ddp));
    sim_doing(w->node, "cdp_ddp_verify");
    if (st == CDP_OK) st = failed(r, w->node, cdp_ddp_verify(ddp));
    call_end(r, w->node, "cdp_ddp_join and cdp_ddp_verify");
    sim_doing(w->node, "cdp_ddp_destroy");
    call_begin(r, w->node, r->timeout_ms);
    cdp_ddp_destroy(ddp);
    call_end(r, w->node, "cdp_ddp_destroy");
    return st;
}

/* ---- all of it ---- */

static cdp_status wide_round(wide *w, uint32_t round) {
    run *r = w->r;
    cdp_status st;
    const uint64_t what = sim_random(&w->s) % 10;
    if (what < 2) return wide_train(w);
    if (what < 4) return wide_groups(w);
    if (what == 4 && r->nodes > 1
        && (w->strict || r->fault_kind == F_NONE || r->fault_kind == F_DELAY
            || r->fault_kind == F_PAUSE))
        return job_messages(r, w->node, w->world, &w->s, &w->own, 100 + round);
    if (what == 5) {
        sim_doing(w->node, "cdp_monitored_barrier");
        call_begin(r, w->node, 2 * r->timeout_ms);
        st = failed(r, w->node, cdp_monitored_barrier(w->world, 0));
        call_end(r, w->node, "cdp_monitored_barrier");
        return st;
    }
    st = wide_one(w, w->world, &w->s, w->id);
    w->id += 50;
    return st;
}

static cdp_status wide_run(run *r, sim_node *node, cdp_group *g, bool strict) {
    wide *w = (wide *)sim_alloc(node, sizeof *w);
    cdp_status st = CDP_OK;
    uint64_t rounds;
    w->r = r;
    w->node = node;
    w->world = g;
    w->strict = strict;
    w->s = sim_stream(r->seed, 40);
    w->own = sim_stream(r->seed, 800 + node->id);
    w->id = 1;
    if (!strict && r->nodes > 1) { /* nobody ends while another one still starts */
        sim_doing(node, "cdp_barrier");
        call_begin(r, node, r->timeout_ms);
        st = failed(r, node, cdp_barrier(g));
        call_end(r, node, "cdp_barrier");
    }
    rounds = sim_between(&w->s, 1, r->tiny ? 3 : 6);
    for (uint64_t i = 0; i < rounds && st == CDP_OK && !job_act(r, node, g, i, rounds); ++i)
        st = wide_round(w, (uint32_t)i);
    sim_doing(node, "cdp_group_destroy");
    call_begin(r, node, 500);
    group_leave(r, node, g, &w->own);
    call_end(r, node, "cdp_group_destroy");
    while (r->later_n[node->id])
        sim_free(node, r->later[node->id][--r->later_n[node->id]]);
    wide_free(w);
    sim_free(node, w);
    return st;
}

static cdp_status wide_program(run *r, sim_node *node, cdp_group *g) {
    return wide_run(r, node, g, false);
}

static cdp_status strict_program(run *r, sim_node *node, cdp_group *g) {
    return wide_run(r, node, g, true);
}

#endif
