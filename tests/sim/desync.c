/* desync.c - ranks that fall out of step: does everybody else learn of it in time, and whose
   fault it was?

   desync [FROM..TO] [--verbose]

   A run is a job of 2 to 8 ranks in the simulator, over TCP and once more over a hub, that go
   through one list of operations. One rank does something else: it comes late, dies, stops,
   leaves an operation out, adds one, takes two in the wrong order, gives up and takes itself
   down, or calls an operation with another count, dtype, reduction or root. Asked is that every
   other rank gets an error, at most 10% after its deadline, and that the error names the rank
   that did it: in at least 99 of 100 runs. The others are listed. Where calls differ, a rank
   that has not come so far itself cannot know which of two ranks is right: then both must be
   named. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "sim.h"
#include "hub_os.h"

typedef enum fault_kind {
    LATE,
    CRASHED,
    STOPPED,
    SKIPPED,
    EXTRA,
    REORDERED,
    TORN_DOWN,
    WRONG_COUNT,
    WRONG_DTYPE,
    WRONG_OP,
    WRONG_ROOT,
    KINDS
} fault_kind;
static const char *const kind_names[KINDS] = {"late", "crashed", "stopped", "skipped one",
    "one too many", "wrong order", "torn down", "wrong count", "wrong dtype", "wrong reduction",
    "wrong root"};

#define OPS_MAX 24u
#define RANKS_MAX 8u
#define ROOM 40000u
#define SLACK_NS (30 * SIM_MS) /* what the simulated network and processors take, besides the 10% */

typedef struct op {
    cdp_coll_kind kind;
    cdp_dtype dtype;
    cdp_reduce_op reduce;
    uint64_t count;
    uint32_t root;
    bool async; /* together with the next one */
} op;

typedef struct end { /* of one rank */
    bool over, failed, torn_down;
    cdp_error error;
    uint64_t call_ns, end_ns;
} end;

typedef struct run {
    uint64_t seed;
    uint32_t n, culprit, op_count, at, timeout_ms;
    fault_kind kind;
    op ops[OPS_MAX], wrong; /* `wrong` is what the culprit calls at `at` */
    bool no_thread;
    end ends[RANKS_MAX];
    sim_world *world;
    bool by_hub;
    cdp_hub *hub;
    cdp_os hub_os;
} run;

static bool verbose;

/* ---- >>plan ---------------------------------------------------------------------------------- */

static bool has_root(cdp_coll_kind k) {
    return k == CDP_COLL_BROADCAST || k == CDP_COLL_REDUCE || k == CDP_COLL_GATHER
        || k == CDP_COLL_SCATTER;
}
static bool reduces(cdp_coll_kind k) {
    return k == CDP_COLL_ALLREDUCE || k == CDP_COLL_REDUCE || k == CDP_COLL_REDUCE_SCATTER;
}

static op op_make(uint64_t *s, uint32_t n) {
    static const uint64_t counts[] = {1, 2, 10, 100, 1000, 4000};
    op o;
    memset(&o, 0, sizeof o);
    o.kind = (cdp_coll_kind)sim_between(s, CDP_COLL_ALLREDUCE, CDP_COLL_ALLTOALL);
    o.dtype = sim_chance(s, 512) ? CDP_DTYPE_F32 : CDP_DTYPE_I32;
    o.reduce = sim_chance(s, 512) ? CDP_REDUCE_SUM : CDP_REDUCE_MAX;
    o.count = counts[sim_random(s) % 6] + sim_random(s) % 50;
    o.root = (uint32_t)(sim_random(s) % n);
    o.async = sim_chance(s, 200);
    return o;
}

static cdp_dtype other_than_f32(uint64_t *s) {
    return sim_chance(s, 512) ? CDP_DTYPE_I32 : CDP_DTYPE_F64;
}

static void plan(run *r, uint64_t seed) {
    uint64_t s = sim_stream(seed, 1);
    uint32_t i;
    memset(r, 0, sizeof *r);
    r->seed = seed;
    r->kind = (fault_kind)(seed % KINDS);
    r->n = (uint32_t)sim_between(&s, 2, RANKS_MAX);
    r->culprit = (uint32_t)(sim_random(&s) % r->n);
    r->timeout_ms = (uint32_t)sim_between(&s, 200, 3000);
    r->op_count = (uint32_t)sim_between(&s, 6, OPS_MAX);
    /* at least one operation before and two after it */
    r->at = (uint32_t)sim_between(&s, 1, r->op_count - 3);
    r->no_thread = sim_chance(&s, 512);
    for (i = 0; i < r->op_count; ++i)
        r->ops[i] = op_make(&s, r->n);
    if (r->kind == WRONG_DTYPE || r->kind == WRONG_COUNT || r->kind == WRONG_OP
        || r->kind == WRONG_ROOT)
        while (r->ops[r->at].kind == CDP_COLL_BARRIER
            || (r->kind == WRONG_ROOT && !has_root(r->ops[r->at].kind))
            || (r->kind == WRONG_OP && !reduces(r->ops[r->at].kind)))
            r->ops[r->at] = op_make(&s, r->n);
    r->wrong = r->ops[r->at];
    if (r->kind == EXTRA) r->wrong = op_make(&s, r->n);
    if (r->kind == WRONG_COUNT) r->wrong.count += sim_chance(&s, 512) ? 1 : 1000;
    if (r->kind == WRONG_DTYPE)
        r->wrong.dtype = r->wrong.dtype == CDP_DTYPE_F32 ? other_than_f32(&s) : CDP_DTYPE_F32;
    if (r->kind == WRONG_OP)
        r->wrong.reduce = r->wrong.reduce == CDP_REDUCE_SUM ? CDP_REDUCE_MIN : CDP_REDUCE_SUM;
    if (r->kind == WRONG_ROOT)
        r->wrong.root = (r->wrong.root + 1 + (uint32_t)(sim_random(&s) % (r->n - 1))) % r->n;
}

static const char *op_text(const op *o, char text[96]) {
    snprintf(text, 96, "%s of %llu x %s%s%s root %u%s", cdp_coll_name(o->kind),
        (unsigned long long)o->count, cdp_dtype_name(o->dtype), reduces(o->kind) ? " " : "",
        reduces(o->kind) ? cdp_reduce_name(o->reduce) : "", o->root, o->async ? ", async" : "");
    return text;
}

/* ---- >>a rank -------------------------------------------------------------------------------- */

static cdp_status start(run *r, cdp_group *g, const op *o, void *in, void *out, cdp_work *w) {
    cdp_request rq;
    (void)r;
    memset(&rq, 0, sizeof rq);
    rq.kind = o->kind;
    rq.in = in;
    rq.out = out;
    rq.count = o->count;
    rq.dtype = o->dtype;
    rq.op = o->reduce;
    rq.root = o->root;
    return cdp_start(g, &rq, w);
}

/* At this operation the culprit does what it does. Returns false when it is to end. */
static bool misbehave(run *r, sim_node *node, uint32_t *order, uint32_t *count) {
    uint64_t s = sim_stream(r->seed, 2);
    sim_fault f;
    uint32_t i;
    switch (r->kind) {
    case LATE: sim_sleep(node, r->timeout_ms * SIM_MS * 3); break;
    case CRASHED:
    case STOPPED:
        memset(&f, 0, sizeof f);
        f.kind = r->kind == CRASHED ? SIM_FAULT_KILL : SIM_FAULT_STOP;
        f.a = (int32_t)node->id;
        f.for_ns = SIM_FOREVER;
        f.at_ns = node->world->now - node->world->start_ns + sim_random(&s) % (200 * SIM_US);
        sim_add_fault(node->world, &f);
        break;
    case SKIPPED:
        for (i = r->at; i + 1 < *count; ++i)
            order[i] = order[i + 1];
        --*count;
        break;
    case EXTRA:
        for (i = *count; i > r->at; --i)
            order[i] = order[i - 1];
        order[r->at] = UINT32_MAX;
        ++*count;
        break;
    case REORDERED:
        order[r->at] = r->at + 1;
        order[r->at + 1] = r->at;
        break;
    case TORN_DOWN: return false;
    default: order[r->at] = UINT32_MAX; break;
    }
    return true;
}

static cdp_status join_hub(run *r, sim_node *node, const cdp_tcp_desc *like, cdp_group **out) {
    cdp_group_desc d;
    cdp_hub_desc h;
    cdp_status st = CDP_OK;
    memset(&h, 0, sizeof h);
    memset(&d, 0, sizeof d);
    if (!r->hub) { /* the first to come makes it */
        r->hub_os = hub_os_of(&r->world);
        h.world_size = r->n;
        h.os = &r->hub_os;
        st = cdp_hub_create(&h, &r->hub);
    }
    d.rank = node->id;
    d.world_size = r->n;
    d.hub = r->hub;
    d.timeout_ms = like->group.timeout_ms;
    d.small_bytes = like->group.small_bytes;
    d.os = like->group.os;
    d.logger = like->group.logger;
    return st == CDP_OK ? cdp_group_create(&d, out) : st;
}

static void node_main(sim_node *node, void *arg) {
    run *r = (run *)arg;
    end *e = &r->ends[node->id];
    const bool culprit = node->id == r->culprit;
    uint32_t order[OPS_MAX + 1], count = r->op_count, i;
    uint8_t *memory = (uint8_t *)sim_alloc(node, 2ull * RANKS_MAX * ROOM);
    cdp_tcp_desc d;
    cdp_group *g = NULL;
    cdp_status st;
    memset(memory, 0, 2ull * RANKS_MAX * ROOM);
    memset(&d, 0, sizeof d);
    d.group.rank = node->id;
    d.group.world_size = r->n;
    d.master_addr = "10.0.0.1";
    d.trust_network = true;
    d.master_port = 29500;
    d.init_timeout_ms = 60000;
    d.group.timeout_ms = r->timeout_ms;
    d.group.small_bytes = r->seed % 2 ? 1024 : 0;
    d.group.os = &node->os;
    d.group.logger.level = CDP_LOG_SILENT;
    st = r->by_hub ? join_hub(r, node, &d, &g) : cdp_init(&d, &g);
    e->call_ns = node->world->now;
    for (i = 0; i < count; ++i)
        order[i] = i;
    for (i = 0; i < count && st == CDP_OK; ++i) {
        cdp_work w[2];
        const op *o;
        if (culprit && i == r->at && !misbehave(r, node, order, &count)) break;
        o = order[i] == UINT32_MAX ? &r->wrong : &r->ops[order[i]];
        e->call_ns = node->world->now;
        sim_doing(node, "operation %u", i);
        st = start(r, g, o, memory, memory + RANKS_MAX * ROOM, &w[0]);
        if (st == CDP_OK && o->async && i + 1 < count && !(culprit && i + 1 == r->at)) {
            ++i;
            st = start(r, g, order[i] == UINT32_MAX ? &r->wrong : &r->ops[order[i]], memory,
                memory + RANKS_MAX * ROOM, &w[1]);
            if (st == CDP_OK) st = cdp_work_wait(w[1]);
        } else if (st == CDP_OK) {
            st = cdp_work_wait(w[0]);
        }
    }
    /* it has not happened yet */
    while (culprit && st == CDP_OK && (r->kind == CRASHED || r->kind == STOPPED))
        sim_sleep(node, SIM_MS);
    /* nobody leaves before all have come so far */
    if (st == CDP_OK && !(culprit && r->kind == TORN_DOWN)) {
        e->call_ns = node->world->now;
        st = cdp_barrier(g);
    }
    if (st != CDP_OK) {
        e->failed = true;
        e->error = *cdp_last_error();
    }
    e->end_ns = node->world->now;
    cdp_group_destroy(g);
    sim_free(node, memory);
    e->over = true;
}

/* ---- >>judge --------------------------------------------------------------------------------- */

typedef enum verdict {
    NAMED,
    PAIR,
    WRONG_NAME,
    NO_ERROR,
    TOO_LATE,
    HANGS,
    VERDICTS
} verdict;
static const char *const verdict_names[VERDICTS] = {
    "named", "named as one of two that differ", "named wrong", "no error", "too late", "hang"};

static verdict judge(const run *r, uint32_t rank, uint64_t *late_ns) {
    const end *e = &r->ends[rank];
    const uint64_t limit = r->timeout_ms * SIM_MS * 11 / 10 + SLACK_NS,
                   early = 2 * cdp__failure_period_ns(r->timeout_ms) + 100 * SIM_MS,
                   took = e->end_ns - e->call_ns;
    char says[32];
    *late_ns = took;
    if (!e->over) return HANGS;
    if (!e->failed) return NO_ERROR;
    if (took > limit) return TOO_LATE;
    /* ranks that wait for each other say what they call before any deadline */
    if (e->error.status == CDP_ERR_MISMATCH && took > early) return TOO_LATE;
    if (e->error.peer == (int32_t)r->culprit) return NAMED;
    snprintf(says, sizeof says, "rank %u calls ", r->culprit);
    if (e->error.status == CDP_ERR_MISMATCH && strstr(e->error.text, says)) return PAIR;
    return WRONG_NAME;
}

static verdict run_one(run *r, uint64_t seed, bool by_hub) {
    sim_desc d;
    verdict worst = NAMED;
    uint32_t i;
    char a[96], b[96];
    uint64_t took;
    plan(r, seed);
    r->by_hub = by_hub;
    memset(&d, 0, sizeof d);
    d.seed = seed;
    d.node_count = r->n;
    d.main = node_main;
    d.arg = r;
    d.noise = sim_noise_calm();
    d.limit_ns = 600 * SIM_S;
    r->world = sim_open(&d);
    if (!sim_run(r->world)) {
        printf("seed %llu: %s\n", (unsigned long long)seed, r->world->failure);
        worst = HANGS;
    }
    for (i = 0; i < r->n; ++i) {
        const verdict v = i == r->culprit ? NAMED : judge(r, i, &took);
        if (v > worst) worst = v;
    }
    if (worst > PAIR || verbose) {
        printf("%s, seed %llu, %s: rank %u of %u at operation %u (%s; it calls %s), deadline %u "
               "ms: %s\n",
            by_hub ? "hub" : "TCP", (unsigned long long)seed, kind_names[r->kind], r->culprit, r->n,
            r->at, op_text(&r->ops[r->at], a),
            op_text(r->kind == REORDERED || r->kind == SKIPPED ? &r->ops[r->at + 1] : &r->wrong, b),
            r->timeout_ms, verdict_names[worst]);
        for (i = 0; i < r->n; ++i) {
            const verdict v = judge(r, i, &took);
            if (!r->ends[i].over && i == r->culprit) continue;
            printf("    rank %u after %.1f ms%s%s: %s\n", i, (double)took / 1e6,
                i == r->culprit ? "" : ", ", i == r->culprit ? "" : verdict_names[v],
                r->ends[i].failed ? r->ends[i].error.text : "nothing");
        }
    }
    cdp_hub_destroy(r->hub);
    r->hub = NULL;
    sim_close(r->world);
    return worst;
}

int main(int argc, char **argv) {
    static run r;
    uint64_t from = 1, to = 110, seed, good = 0, k, v;
    uint32_t by_hub;
    bool enough = true;
    int i;
    for (i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--verbose") == 0)
            verbose = true;
        else if (sscanf(
                     argv[i], "%llu..%llu", (unsigned long long *)&from, (unsigned long long *)&to)
            < 2)
            to = from;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (by_hub = 0; by_hub < 2; ++by_hub) {
        uint64_t tally[KINDS][VERDICTS], right = 0, pairs = 0;
        memset(tally, 0, sizeof tally);
        for (seed = from; seed <= to; ++seed) {
            const verdict w = run_one(&r, seed, by_hub != 0);
            ++tally[r.kind][w];
            right += w <= PAIR;
            pairs += w == PAIR;
        }
        for (k = 0; k < KINDS; ++k) {
            printf("%s %-16s", by_hub ? "hub" : "TCP", kind_names[k]);
            for (v = 0; v < VERDICTS; ++v)
                if (tally[k][v])
                    printf("  %s %llu", verdict_names[v], (unsigned long long)tally[k][v]);
            printf("\n");
        }
        printf("%s: the right rank is named in %llu of %llu runs (in %llu of them as one of two "
               "whose calls differ)\n",
            by_hub ? "hub" : "TCP", (unsigned long long)right, (unsigned long long)(to - from + 1),
            (unsigned long long)pairs);
        good += right;
        enough = enough && right * 100 >= (to - from + 1) * 99;
    }
    printf("%llu passed, %llu failed\n", (unsigned long long)good,
        (unsigned long long)(enough ? 0 : 2 * (to - from + 1) - good));
    return enough ? 0 : 1;
}
