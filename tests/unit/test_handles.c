/* test_handles.c - a child of fork() that uses and destroys what its parent made leaves the
   parent's job as it was; the use of what was destroyed is an error */
#define CDP_IMPLEMENTATION
#include "cdp_checkpoint.h"
#include "cdp_elastic.h"
#include "cdp_launch.h"
#include "cdp_rpc.h"
#include "cdp_dtensor.h"
#include "cdp_fsdp.h"
#include "cdp_mem.h"
#include "cdp_pipeline.h"
#include "test.h"
#include "ranks.h"
#include <sys/wait.h>
#include <unistd.h>

/* True if the last error says that the parent alone uses the object. */
static bool of_parent(cdp_status st) {
    return st == CDP_ERR_STATE
        && strstr(cdp_last_error()->text, "this process is a child, by fork()") != NULL;
}

/* Runs `func` in a child; true if it returned true there. */
static bool child_does(bool (*func)(void *), void *arg) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(func(arg) ? 0 : 1);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- stores ---------------------------------------------------------------------------------- */

static bool store_in_child(void *arg) {
    cdp_store *store = (cdp_store *)arg;
    int64_t n;
    bool good = of_parent(cdp_store_set(store, "child", "x", 1))
        && of_parent(cdp_store_add(store, "n", 1, &n));
    cdp_store_destroy(store);
    return good;
}

/* After the child, the parent's store has what the parent wrote. */
static void store_stays(cdp_store *store) {
    int64_t n = 0;
    bool there = true;
    const char *key = "child";
    T_EQ(CDP_OK, cdp_store_add(store, "n", 1, &n));
    T(child_does(store_in_child, store));
    T_EQ(CDP_OK, cdp_store_add(store, "n", 1, &n));
    T_EQ(2, n);
    T_EQ(CDP_OK, cdp_store_check(store, &key, 1, &there));
    T(!there);
}

TEST(a_child_leaves_hash_and_prefix_stores_alone) {
    cdp_store *hash, *view;
    T_EQ(CDP_OK, cdp_hash_store_create(NULL, &hash));
    store_stays(hash);
    T_EQ(CDP_OK, cdp_prefix_store_create(hash, "p", &view));
    store_stays(view);
    cdp_store_destroy(view);
    cdp_store_destroy(hash);
}

static uint32_t destroyed;
static cdp_bytes only;
static uint8_t only_at[32];
static cdp_status get_only(void *user, cdp_bytes key, cdp_bytes *value) {
    (void)user;
    (void)key;
    *value = only;
    return only.data ? CDP_OK : CDP_PENDING;
}
static cdp_status swap_only(
    void *user, cdp_bytes key, const cdp_bytes *expected, const cdp_bytes *desired) {
    (void)user;
    (void)key;
    (void)expected;
    memcpy(only_at, desired->data, (size_t)desired->bytes);
    only.data = only_at;
    only.bytes = desired->bytes;
    return CDP_OK;
}
static void destroy_only(void *user) {
    (void)user;
    ++destroyed;
}

static bool custom_in_child(void *arg) {
    return store_in_child(arg) && !destroyed;
}
TEST(a_child_leaves_custom_stores_alone) {
    cdp_store *store;
    cdp_custom_store_desc d = {.get = get_only, .swap = swap_only, .destroy = destroy_only};
    T_EQ(CDP_OK, cdp_custom_store_create(&d, &store));
    T(child_does(custom_in_child, store));
    cdp_store_destroy(store);
    T_EQ(1, destroyed);
}

typedef struct tcp_pair {
    cdp_store_server *server;
    cdp_store *client;
    cdp_store *clone;
} tcp_pair;

static bool server_in_child(void *arg) {
    tcp_pair *p = (tcp_pair *)arg;
    int64_t n;
    bool good = store_in_child(p->clone) && of_parent(cdp_store_server_poll(p->server, 0));
    cdp_store_server_destroy(p->server);
    /* a client of its own is a way on */
    good = good && cdp_store_clone(p->client, &p->clone) == CDP_OK
        && cdp_store_add(p->clone, "own", 5, &n) == CDP_OK && n == 5;
    cdp_store_destroy(p->clone);
    return good;
}

/* Its client has a last will, which the server must not run when the child destroys its copy. */
TEST(a_child_leaves_tcp_stores_and_their_server_alone) {
    tcp_pair p;
    int64_t n;
    cdp_store_server_desc sd = {.host = "127.0.0.1"};
    cdp_tcp_store_desc cd = {0};
    T_EQ(CDP_OK, cdp_store_server_create(&sd, &p.server));
    cd.host = "127.0.0.1";
    cd.port = cdp_store_server_port(p.server);
    T_EQ(CDP_OK, cdp_tcp_store_create(&cd, &p.client));
    T_EQ(CDP_OK, cdp_store_clone(p.client, &p.clone));
    store_stays(p.client);
    T(child_does(server_in_child, &p));
    T_EQ(CDP_OK, cdp_store_add(p.clone, "own", 1, &n));
    T_EQ(6, n);
    cdp_store_destroy(p.clone);
    cdp_store_destroy(p.client);
    cdp_store_server_destroy(p.server);
}

static bool file_in_child(void *arg) {
    cdp_store *store = (cdp_store *)arg;
    int64_t n;
    const bool good = cdp_store_add(store, "n", 1, &n) == CDP_OK && n == 2;
    cdp_store_destroy(store);
    return good;
}

/* Its file is removed by the last of two users; the child is none of them. */
TEST(a_child_is_no_user_of_a_file_store) {
    char path[64];
    cdp_file_store_desc d;
    cdp_store *a, *b;
    int64_t n;
    memset(&d, 0, sizeof d);
    snprintf(path, sizeof path, "/tmp/test_handles.%d", (int)getpid());
    d.path = path;
    d.world_size = 2;
    T_EQ(CDP_OK, cdp_file_store_create(&d, &a));
    T_EQ(CDP_OK, cdp_file_store_create(&d, &b));
    T_EQ(CDP_OK, cdp_store_add(a, "n", 1, &n));
    T(child_does(file_in_child, a));
    T_EQ(CDP_OK, cdp_store_add(a, "n", 0, &n));
    T(access(path, F_OK) == 0);
    cdp_store_destroy(a);
    T(access(path, F_OK) == 0);
    cdp_store_destroy(b);
    T(access(path, F_OK) != 0);
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct mem_and_block {
    cdp_mem *mem;
    cdp_mem_pool *pool;
    void *block;
} mem_and_block;

static bool mem_in_child(void *arg) {
    mem_and_block *m = (mem_and_block *)arg;
    cdp_mem_record_desc record;
    void *block;
    memset(&record, 0, sizeof record);
    return of_parent(cdp_mem_alloc(m->mem, 512, NULL, &block))
        && of_parent(cdp_mem_free(m->mem, m->block)) && of_parent(cdp_mem_record(m->mem, &record))
        && of_parent(cdp_mem_pool_destroy(m->pool)) && cdp_mem_trim(m->mem) == 0
        && cdp_mem_destroy(m->mem) == 0 && cdp_mem_destroy(m->mem) == 0;
}

TEST(a_child_leaves_an_allocator_alone) {
    cdp_mem_source source;
    cdp_mem_desc d;
    cdp_mem_pool_desc pd;
    mem_and_block m;
    memset(&d, 0, sizeof d);
    memset(&pd, 0, sizeof pd);
    T_EQ(CDP_OK, cdp_mem_source_host(NULL, 0, &source));
    d.source = &source;
    T_EQ(CDP_OK, cdp_mem_create(&d, &m.mem));
    T_EQ(CDP_OK, cdp_mem_pool_create(m.mem, &pd, &m.pool));
    T_EQ(CDP_OK, cdp_mem_alloc(m.mem, 4096, NULL, &m.block));
    T(child_does(mem_in_child, &m));
    T_EQ(CDP_OK, cdp_mem_free(m.mem, m.block));
    T_EQ(CDP_OK, cdp_mem_pool_destroy(m.pool));
    T_EQ(0, cdp_mem_destroy(m.mem));
}

/* ---- groups, ddps and meshes ----------------------------------------------------------------- */

typedef struct trained {
    cdp_group *group;
    cdp_ddp *ddp;
    cdp_mesh *mesh;
} trained;

static bool training_in_child(void *arg) {
    trained *t = (trained *)arg;
    cdp_net net;
    double norm;
    const bool good = of_parent(cdp_ddp_backward_begin(t->ddp))
        && of_parent(cdp_ddp_ready(t->ddp, 0)) && of_parent(cdp_ddp_clip(t->ddp, 1, &norm))
        && of_parent(cdp_ddp_verify(t->ddp)) && cdp_mesh_measure(t->mesh, &net) < 0;
    cdp_ddp_destroy(t->ddp);
    cdp_ddp_destroy(t->ddp);
    cdp_mesh_destroy(t->mesh);
    cdp_group_destroy(t->group);
    return good;
}

static void rank_trains(cdp_group *g, void *arg) {
    float w[3] = {1, 2, 3};
    trained t;
    (void)arg;
    cdp_param p = {.data = w, .count = 3};
    cdp_ddp_desc d = {0};
    cdp_mesh_desc md = {0};
    d.group = md.group = t.group = g;
    d.params = &p;
    d.param_count = 1;
    md.ndim = 1;
    md.shape[0] = 2;
    md.names[0] = "dp";
    T_EQ(CDP_OK, cdp_mesh_create(&md, &t.mesh));
    T_EQ(CDP_OK, cdp_ddp_create(&d, &t.ddp));
    T(child_does(training_in_child, &t));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(t.ddp));
    ((float *)cdp_ddp_grad(t.ddp, 0))[0] = (float)(1 + cdp_rank(g));
    T_EQ(CDP_OK, cdp_ddp_ready(t.ddp, 0));
    T_EQ(CDP_OK, cdp_ddp_backward_end(t.ddp));
    T(((float *)cdp_ddp_grad(t.ddp, 0))[0] == 1.5f);
    cdp_ddp_destroy(t.ddp);
    cdp_mesh_destroy(t.mesh);
}
TEST(a_child_leaves_ddps_and_meshes_alone) {
    run_ranks(2, NULL, 0, rank_trains, NULL);
}

/* ---- elastic jobs ---------------------------------------------------------------------------- */

static bool elastic_in_child(void *arg) {
    cdp_elastic *e = (cdp_elastic *)arg;
    cdp_elastic_now now;
    bool all;
    const bool good = of_parent(cdp_elastic_next(e, &now)) && of_parent(cdp_elastic_commit(e))
        && of_parent(cdp_elastic_poll(e)) && of_parent(cdp_elastic_agree(e, true, &all))
        && of_parent(cdp_elastic_alarm(e, "x")) && of_parent(cdp_elastic_finish(e))
        && cdp_elastic_history(e, NULL, 0) == 0;
    cdp_elastic_leave(e, "a child");
    cdp_elastic_destroy(e);
    return good;
}

TEST(a_child_leaves_an_elastic_job_alone) {
    cdp_store_server_desc sd;
    cdp_tcp_store_desc cd;
    cdp_elastic_desc d;
    cdp_store_server *server;
    cdp_elastic *e;
    cdp_elastic_now now;
    float w[2] = {1, 2};
    cdp_entry entry;
    memset(&sd, 0, sizeof sd);
    memset(&cd, 0, sizeof cd);
    memset(&d, 0, sizeof d);
    memset(&entry, 0, sizeof entry);
    sd.host = cd.host = "127.0.0.1";
    T_EQ(CDP_OK, cdp_store_server_create(&sd, &server));
    cd.port = cdp_store_server_port(server);
    T_EQ(CDP_OK, cdp_tcp_store_create(&cd, &d.store));
    entry.name = "w";
    entry.data = w;
    entry.count = 2;
    d.entries = &entry;
    d.entry_count = 1;
    d.min_ranks = 1;
    T_EQ(CDP_OK, cdp_elastic_create(&d, &e));
    T_EQ(CDP_OK, cdp_elastic_next(e, &now));
    T(child_does(elastic_in_child, e));
    T_EQ(CDP_OK, cdp_elastic_commit(e));
    T_EQ(CDP_OK, cdp_elastic_finish(e));
    cdp_elastic_destroy(e);
    cdp_elastic_destroy(e);
    T_TEXT("this cdp_elastic was destroyed", cdp_last_error()->text);
    T(cdp_elastic_next(e, &now) == CDP_ERR_STATE && cdp_elastic_poll(e) == CDP_ERR_STATE);
    cdp_store_destroy(d.store);
    cdp_store_server_destroy(server);
}

/* ---- what was destroyed ---------------------------------------------------------------------- */

#define GONE(call) T((call) == CDP_ERR_STATE && strstr(cdp_last_error()->text, "was destroyed"))

static cdp_group *alone(void) {
    cdp_group *g = NULL;
    cdp_group_desc d = {.world_size = 1};
    T_EQ(CDP_OK, cdp_group_create(&d, &g));
    return g;
}

static cdp_ddp *ddp_of(cdp_group *g, float *w) {
    cdp_ddp *ddp = NULL;
    cdp_param p = {.data = w, .count = 3};
    cdp_ddp_desc d = {.group = g, .params = &p, .param_count = 1};
    T_EQ(CDP_OK, cdp_ddp_create(&d, &ddp));
    return ddp;
}

static void ddp_refuses(cdp_ddp *ddp) {
    double norm;
    GONE(cdp_ddp_backward_begin(ddp));
    GONE(cdp_ddp_ready(ddp, 0));
    GONE(cdp_ddp_backward_end(ddp));
    GONE(cdp_ddp_clip(ddp, 1, &norm));
    GONE(cdp_ddp_verify(ddp));
    GONE(cdp_ddp_join(ddp));
    T(!cdp_ddp_group(ddp));
}

TEST(a_destroyed_ddp_is_refused) {
    float w[3] = {0, 0, 0};
    cdp_group *g = alone();
    cdp_ddp *ddp = ddp_of(g, w);
    cdp_ddp_destroy(ddp);
    cdp_ddp_destroy(ddp);
    T_TEXT("this ddp was destroyed", cdp_last_error()->text);
    ddp_refuses(ddp);
    T(cdp_ddp_param_count(ddp) == 0 && !cdp_ddp_param(ddp, 0) && !cdp_ddp_grad(ddp, 0));
    T(!cdp_ddp_used(ddp, 0) && cdp_ddp_rows(ddp, 0).count == 0);
    T(cdp_ddp_stats_of(ddp).bucket_count == 0 && cdp_ddp_bucket(ddp, 0).bytes == 0);
    cdp_ddp_zero_grad(ddp);
    cdp_group_destroy(g);
}

TEST(a_destroyed_group_is_refused) {
    float x = 1;
    void *memory = &x;
    cdp_ddp_desc d;
    cdp_ddp *ddp;
    cdp_mesh_desc md;
    cdp_mesh *mesh;
    cdp_param p;
    cdp_group *g = alone();
    memset(&d, 0, sizeof d);
    memset(&p, 0, sizeof p);
    memset(&md, 0, sizeof md);
    cdp_group_destroy(g);
    cdp_group_destroy(g);
    GONE(cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GONE(cdp_group_status(g));
    GONE(cdp_group_alloc(g, 8, &memory));
    T(!memory);
    T(cdp_size(g) == 0 && cdp_rank(g) == 0 && !cdp_group_desc_of(g));
    T(cdp_world_rank_of(g, 0) == UINT32_MAX);
    p.data = &x;
    p.count = 1;
    d.group = md.group = g;
    d.params = &p;
    d.param_count = 1;
    GONE(cdp_ddp_create(&d, &ddp));
    md.ndim = 1;
    md.shape[0] = 1;
    md.names[0] = "dp";
    GONE(cdp_mesh_create(&md, &mesh));
}

/* A new group may have the address of the one before; the ddp is not in it until it is bound. */
static void group_ends_under_a_ddp(bool in_backward) {
    float w[3] = {1, 2, 3};
    cdp_group *g = alone(), *other;
    cdp_ddp *ddp = ddp_of(g, w), *bound = ddp_of(g, w);
    if (in_backward) T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    cdp_group_destroy(g);
    ddp_refuses(ddp);
    other = alone();
    ddp_refuses(ddp);
    T_EQ(CDP_OK, cdp_ddp_rebind(bound, other));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(bound));
    T_EQ(CDP_OK, cdp_ddp_ready(bound, 0));
    T_EQ(CDP_OK, cdp_ddp_backward_end(bound));
    cdp_ddp_destroy(bound);
    cdp_ddp_destroy(ddp);
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(other);
}
TEST(a_ddp_outlives_its_group) {
    group_ends_under_a_ddp(false);
    group_ends_under_a_ddp(true);
}

/* Hooks have groups of their own, and memory. */
TEST(a_ddp_with_a_hook_outlives_its_group) {
    float w[3] = {1, 2, 3};
    for (int kind = CDP_HOOK_FP16; kind <= CDP_HOOK_TOPK; ++kind) {
        cdp_group *g = alone();
        cdp_ddp *ddp = ddp_of(g, w);
        cdp_hook hook;
        cdp_hook_desc d = {.kind = (cdp_hook_kind)kind};
        T_EQ(CDP_OK, cdp_hook_create(&d, &hook));
        T_EQ(CDP_OK, cdp_ddp_set_hook(ddp, &hook));
        cdp_group_destroy(g);
        ddp_refuses(ddp);
        cdp_ddp_destroy(ddp);
    }
}

static void rank_has_a_mesh(cdp_group *g, void *arg) {
    static const uint32_t both[2] = {0, 1};
    cdp_group *part;
    cdp_mesh_desc d;
    cdp_mesh *mesh;
    cdp_net net;
    (void)arg;
    memset(&d, 0, sizeof d);
    T_EQ(CDP_OK, cdp_group_new(g, both, 2, &part));
    d.group = part;
    d.ndim = 1;
    d.shape[0] = 2;
    d.names[0] = "dp";
    T_EQ(CDP_OK, cdp_mesh_create(&d, &mesh));
    T_EQ(CDP_OK, cdp_mesh_measure(mesh, &net));
    cdp_group_destroy(part);
    T_EQ(CDP_OK, cdp_mesh_measure(mesh, &net)); /* it has groups of its own */
    T(cdp_mesh_size(mesh, 0) == 2);
    cdp_mesh_destroy(mesh);
    cdp_mesh_destroy(mesh);
    T_TEXT("this mesh was destroyed", cdp_last_error()->text);
}

/* What a program still holds of a mesh. */
static void rank_keeps_layouts(cdp_group *g, void *arg) {
    cdp_mesh *mesh;
    cdp_plan *plan, *other;
    cdp_dtensor t, owned;
    float in[4] = {1, 2, 3, 4}, out[4];
    char text[40];
    (void)arg;
    cdp_mesh_desc d = {.group = g, .ndim = 1, .shape[0] = 2};
    cdp_layout l = {0};
    cdp_plan_desc pd = {0};
    T_EQ(CDP_OK, cdp_mesh_create(&d, &mesh));
    l.mesh = mesh;
    l.ndim = 1;
    l.shape[0] = 4;
    l.dtype = CDP_DTYPE_F32;
    pd.from = pd.to = l;
    T_EQ(CDP_OK, cdp_layout_parse(&pd.from, "S0"));
    T_EQ(CDP_OK, cdp_plan_create(&pd, &plan));
    T_EQ(CDP_OK, cdp_plan_run(plan, in, out));
    T_EQ(CDP_OK, cdp_dtensor_create(&l, in, &t));
    T_EQ(CDP_OK, cdp_dtensor_create(&l, NULL, &owned));
    cdp_dtensor_free(&owned);
    T_EQ(CDP_OK, cdp_barrier(g));
    cdp_mesh_destroy(mesh);
    T_EQ(CDP_ERR_STATE, cdp_layout_check(&l));
    T_TEXT("cdp_layout_check: its mesh was destroyed", cdp_last_error()->text);
    T_EQ(CDP_ERR_STATE, cdp_layout_parse(&l, "R"));
    T_EQ(0, cdp_layout_text(&l, text, sizeof text));
    T_EQ(0, cdp_layout_box(&l, NULL, NULL));
    T(!cdp_layout_same(&l, &l));
    T_EQ(CDP_ERR_STATE, cdp_plan_create(&pd, &other));
    T(!other);
    T_EQ(CDP_ERR_STATE, cdp_plan_run(plan, in, out));
    T_EQ(CDP_ERR_STATE, cdp_redistribute(&t, &t));
    cdp_dtensor_free(&t); /* the memory is the program's */
    cdp_plan_destroy(plan);
    T_TEXT("cdp_plan_destroy: its mesh was destroyed", cdp_last_error()->text);
}
static cdp_status block_of_none(void *user, uint32_t owner, const void *kv, void *grad) {
    (void)user;
    (void)owner;
    (void)kv;
    (void)grad;
    return CDP_OK;
}
/* What is asked of the mesh itself, and what was made of it. */
static void rank_asks_a_former_mesh(cdp_group *g, void *arg) {
    const uint32_t at[1] = {0}, shape[2] = {2, 1};
    const uint64_t sizes[2] = {1, 3};
    const char *const names[2] = {"a", "b"};
    cdp_mesh *mesh, *part;
    cdp_edge *edge;
    cdp_tp *tp, *second;
    cdp_cp *cp, *another;
    cdp_net net;
    cdp_work work;
    float x[32] = {0};
    uint64_t rows[4];
    uint32_t cut;
    (void)arg;
    cdp_mesh_desc d = {.group = g, .ndim = 1, .shape[0] = 2, .names[0] = "dp"};
    cdp_edge_desc ed = {0};
    cdp_tp_desc td = {0};
    cdp_cp_desc cd = {0};
    T_EQ(CDP_OK, cdp_mesh_create(&d, &mesh));
    ed.from.mesh = mesh;
    ed.from.ndim = 1;
    ed.from.shape[0] = 4;
    ed.from.dtype = CDP_DTYPE_F32;
    ed.to = ed.from;
    ed.wire = CDP_DTYPE_BF16; /* it has buffers */
    T_EQ(CDP_OK, cdp_layout_parse(&ed.from, "S0"));
    T_EQ(CDP_OK, cdp_edge_create(&ed, &edge));
    td.mesh = mesh;
    td.style = CDP_TP_ROW;
    td.rows = td.in_features = td.out_features = 4;
    T_EQ(CDP_OK, cdp_tp_create(&td, &tp));
    cd.mesh = mesh;
    cd.length = 4;
    cd.heads = cd.width = 1;
    T_EQ(CDP_OK, cdp_cp_create(&cd, &cp));
    T_EQ(CDP_OK, cdp_barrier(g));
    cdp_mesh_destroy(mesh);
    T_EQ(CDP_NO_DIM, cdp_mesh_dim(mesh, "dp"));
    T_EQ(0, cdp_mesh_size(mesh, 0));
    T_EQ(CDP_NO_DIM, cdp_mesh_coord(mesh, 0));
    T_EQ(CDP_NO_DIM, cdp_mesh_rank_at(mesh, at));
    T(!cdp_mesh_group(mesh, 0) && !cdp_mesh_desc_of(mesh));
    cdp_mesh_drop_plans(mesh);
    GONE(cdp_mesh_sub(mesh, "dp", &part));
    GONE(cdp_mesh_flatten(mesh, "dp", "all", &part));
    GONE(cdp_mesh_unflatten(mesh, "dp", 2, shape, names, &part));
    GONE(cdp_mesh_join(mesh, mesh, &part));
    GONE(cdp_mesh_cut(mesh, 0, sizes, &cut));
    GONE(cdp_mesh_measure(mesh, &net));
    T(!part);
    GONE(cdp_count_begin(mesh, "layer"));
    cdp_count_end(mesh);
    cdp_count_backward(mesh, true);
    cdp_count_note(mesh, CDP_COLL_ALLREDUCE, 8);
    T_EQ(0, cdp_counts(mesh, NULL, false).calls[CDP_COLL_ALLREDUCE]);
    cdp_counts_clear(mesh);
    T(cdp_counts_draw(mesh, CDP_DRAW_TEXT, NULL, 0) > 0);
    GONE(cdp_edge_forward(edge, x, x + 16));
    GONE(cdp_edge_forward_async(edge, x, x + 16, &work));
    T(!work.group && !work.seq);
    GONE(cdp_tp_create(&td, &second));
    GONE(cdp_tp_forward(tp, x, x, NULL, x));
    GONE(cdp_tp_backward(tp, x, x, x, x, x, NULL));
    GONE(cdp_cp_create(&cd, &another));
    GONE(cdp_cp_attention(cp, x, x, x, x, x));
    GONE(cdp_cp_ring(cp, x, 8, NULL, 0, block_of_none, NULL));
    T_EQ(0, cdp_cp_rows(&cd, 0, rows, rows + 2));
    cdp_edge_destroy(edge);
    cdp_tp_destroy(tp);
    cdp_cp_destroy(cp);
}
/* In a child: what layers had of the memory of groups is lost with them. */
static bool ranks_ask_a_former_mesh(void *arg) {
    run_ranks(2, NULL, 0, rank_asks_a_former_mesh, arg);
    return test__now.failed_checks == 0;
}
TEST(a_destroyed_mesh_is_asked_nothing) {
    T(child_does(ranks_ask_a_former_mesh, NULL));
}

TEST(layouts_and_plans_of_a_destroyed_mesh_are_refused) {
    run_ranks(2, NULL, 0, rank_keeps_layouts, NULL);
}
TEST(a_mesh_outlives_its_group) {
    run_ranks(2, NULL, 0, rank_has_a_mesh, NULL);
}

TEST(a_prefix_store_outlives_its_store) {
    cdp_store *hash, *view, *deep;
    T_EQ(CDP_OK, cdp_hash_store_create(NULL, &hash));
    T_EQ(CDP_OK, cdp_prefix_store_create(hash, "a", &view));
    T_EQ(CDP_OK, cdp_prefix_store_create(view, "b", &deep));
    T_EQ(CDP_OK, cdp_store_set(deep, "k", "v", 1));
    cdp_store_destroy(hash);
    GONE(cdp_store_set(view, "k", "v", 1));
    GONE(cdp_store_set(deep, "k", "v", 1));
    T(cdp_store_timeout(deep) > 0);
    cdp_store_destroy(view);
    GONE(cdp_store_set(deep, "k", "v", 1));
    cdp_store_destroy(deep);
}

static void ends_once(cdp_store *s) {
    (void)cdp_error_set(CDP_OK, -1, 0, "nothing");
    cdp_store_destroy(s);
    T_TEXT("nothing", cdp_last_error()->text);
    cdp_store_destroy(s);
    T_TEXT("cdp_store_destroy: this store was destroyed", cdp_last_error()->text);
}

/* Its memory is the program's. */
static void ends_plain(void *self) {
    ++*(uint32_t *)self;
}

TEST(a_store_is_destroyed_once) {
    uint32_t ended = 0;
    cdp_store_server_desc sd;
    cdp_store_server *server;
    cdp_tcp_store_desc cd;
    cdp_custom_store_desc own;
    cdp_store *hash, *s, plain;
    memset(&sd, 0, sizeof sd);
    memset(&cd, 0, sizeof cd);
    memset(&own, 0, sizeof own);
    memset(&plain, 0, sizeof plain);
    own.get = get_only;
    own.swap = swap_only;
    for (uint32_t i = 0; i < 3; ++i) { /* again at the same addresses */
        T_EQ(CDP_OK, cdp_hash_store_create(NULL, &hash));
        T_EQ(CDP_OK, cdp_prefix_store_create(hash, "a", &s));
        T_EQ(CDP_OK, cdp_store_set(s, "k", "v", 1));
        ends_once(s);
        ends_once(hash);
        T_EQ(CDP_OK, cdp_custom_store_create(&own, &s));
        ends_once(s);
        plain.self = &ended;
        plain.destroy = ends_plain;
        cdp_store_destroy(&plain);
        T_EQ(i + 1, ended);
    }
    T_EQ(CDP_OK, cdp_store_server_create(&sd, &server));
    cd.host = "127.0.0.1";
    cd.port = cdp_store_server_port(server);
    T_EQ(CDP_OK, cdp_tcp_store_create(&cd, &s));
    ends_once(s);
    cdp_store_server_destroy(server);
}

static void rank_ends_rpc_twice(cdp_group *g, void *arg) {
    cdp_rpc *rpc;
    (void)arg;
    cdp_rpc_desc d = {.group = g};
    T_EQ(CDP_OK, cdp_rpc_create(&d, &rpc));
    T_EQ(CDP_OK, cdp_rpc_shutdown(rpc, 0));
    cdp_rpc_destroy(rpc);
    cdp_rpc_destroy(rpc);
    T_TEXT("this rpc was destroyed", cdp_last_error()->text);
}
TEST(an_rpc_is_destroyed_once) {
    run_ranks(2, NULL, 0, rank_ends_rpc_twice, NULL);
}

/* ---- handles that are destroyed once --------------------------------------------------------- */

#define ENDED(HOW, CALL) (T_EQ(CDP_ERR_STATE, CALL), T_TEXT(HOW, cdp_last_error()->text))
#define DESTROYED(CALL) ENDED("destroyed", CALL)
#define CLOSED(CALL) ENDED("closed", CALL)

static void rank_ends_optimizers_twice(cdp_group *g, void *arg) {
    float x[4] = {1, 2, 3, 4}, values[4];
    cdp_ddp *ddp;
    cdp_norm norm;
    cdp_param p = {.data = x, .count = 4};
    cdp_optim optim = {.kind = CDP_OPTIM_ADAM, .lr = 1};
    cdp_ddp_desc dd = {.group = g, .params = &p, .param_count = 1};
    cdp_optimizer_desc d = {.optim = &optim, .deferred = true, .whole = *(const bool *)arg};
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &ddp));
    d.ddp = ddp;
    for (uint32_t i = 0; i < 3; ++i) { /* again at the same address */
        cdp_optimizer *o;
        T_EQ(CDP_OK, cdp_optimizer_create(&d, &o));
        T(cdp_optimizer_count(o) > 0 && cdp_optimizer_part_of(o, 0).count > 0);
        cdp_optimizer_destroy(o);
        cdp_optimizer_destroy(o);
        DESTROYED(cdp_optimizer_step(o, 1));
        DESTROYED(cdp_optimizer_norm(o, &norm));
        DESTROYED(cdp_optimizer_gather(o, 0, 0, values, 0));
        DESTROYED(cdp_optimizer_scatter(o, 0, 0, values, 0));
        T_EQ(0, cdp_optimizer_count(o));
        T_EQ(0, cdp_optimizer_part_of(o, 0).count);
    }
    cdp_ddp_destroy(ddp);
}
TEST(an_optimizer_is_destroyed_once) {
    bool whole = false;
    run_ranks(1, NULL, 0, rank_ends_optimizers_twice, &whole);
    whole = true;
    run_ranks(1, NULL, 0, rank_ends_optimizers_twice, &whole);
}

TEST(files_of_tokens_are_closed_once) {
    static const uint8_t bytes[64];
    char path[64];
    const char *paths[1] = {path};
    int32_t got[5];
    FILE *f;
    snprintf(path, sizeof path, "/tmp/cdp_handles_%ld", (long)getpid());
    f = fopen(path, "wb");
    if (!T(f && fwrite(bytes, 1, sizeof bytes, f) == sizeof bytes && fclose(f) == 0)) return;
    cdp_tokens_desc d = {.paths = paths, .path_count = 1, .length = 4};
    for (uint32_t i = 0; i < 3; ++i) {
        cdp_tokens *t;
        T_EQ(CDP_OK, cdp_tokens_create(&d, &t));
        T_EQ(CDP_OK, cdp_tokens_read(t, 0, got));
        cdp_tokens_destroy(t);
        cdp_tokens_destroy(t);
        DESTROYED(cdp_tokens_read(t, 0, got));
        T_EQ(0, cdp_tokens_count(t));
        T_EQ(0, cdp_tokens_bytes(t));
    }
    remove(path);
}

static void rank_ends_fsdp_twice(cdp_group *g, void *arg) {
    float x[4] = {1, 2, 3, 4};
    (void)arg;
    cdp_fsdp_param p = {.ndim = 1, .shape[0] = 4};
    cdp_fsdp_desc d = {.group = g, .params = &p, .param_count = 1};
    for (uint32_t i = 0; i < 3; ++i) {
        cdp_fsdp *f;
        T_EQ(CDP_OK, cdp_fsdp_create(&d, &f));
        T_EQ(CDP_OK, cdp_fsdp_restore(f, 0, CDP_FSDP_VALUES, x, 0));
        T_EQ(1, cdp_fsdp_piece_count(f));
        cdp_fsdp_destroy(f);
        cdp_fsdp_destroy(f);
        DESTROYED(cdp_fsdp_need(f, 0));
        DESTROYED(cdp_fsdp_done(f, 0));
        DESTROYED(cdp_fsdp_ready(f, 0));
        DESTROYED(cdp_fsdp_no_sync(f, true));
        DESTROYED(cdp_fsdp_backward_end(f, 1, NULL));
        DESTROYED(cdp_fsdp_step(f));
        DESTROYED(cdp_fsdp_drop(f));
        DESTROYED(cdp_fsdp_save(f, 0, CDP_FSDP_VALUES, x, 0));
        DESTROYED(cdp_fsdp_restore(f, 0, CDP_FSDP_VALUES, x, 0));
        DESTROYED(cdp_fsdp_loaded(f));
        DESTROYED(cdp_fsdp_rebind(f, g, 0));
        T(!cdp_fsdp_data(f, 0) && !cdp_fsdp_grad(f, 0));
        T_EQ(0, cdp_fsdp_piece_count(f));
        T_EQ(0, cdp_fsdp_piece_at(f, 0).count);
        T_EQ(0, cdp_fsdp_stats_of(f).total_bytes);
        T_EQ(0, cdp_fsdp_turn(f));
        T_EQ(cdp_fsdp_trace(NULL, CDP_TRACE_JSON, NULL, 0),
            cdp_fsdp_trace(f, CDP_TRACE_JSON, NULL, 0));
    }
}
TEST(an_fsdp_is_destroyed_once) {
    run_ranks(1, NULL, 0, rank_ends_fsdp_twice, NULL);
}

static cdp_status computes(void *user, const cdp_pipe_micro *micro) {
    (void)user;
    (void)micro;
    return CDP_OK;
}

static void rank_ends_pipelines_twice(cdp_group *g, void *arg) {
    cdp_schedule_desc sd;
    cdp_pipe_stage stage;
    cdp_pipeline_desc d;
    (void)arg;
    memset(&sd, 0, sizeof sd);
    memset(&stage, 0, sizeof stage);
    memset(&d, 0, sizeof d);
    sd.ranks = sd.micros = 1;
    stage.forward = stage.backward = computes;
    d.group = g;
    d.stages = &stage;
    d.stage_count = 1;
    for (uint32_t i = 0; i < 3; ++i) {
        cdp_schedule *s;
        cdp_pipeline *p, *next = NULL;
        double sum, at[2];
        cdp_pipe_times times;
        memset(&times, 0, sizeof times);
        times.start_us = times.end_us = at;
        T_EQ(CDP_OK, cdp_schedule_create(&sd, &s));
        d.schedule = s;
        T_EQ(CDP_OK, cdp_pipeline_create(&d, &p));
        T_EQ(CDP_OK, cdp_pipeline_step(p));
        if (i == 1) { /* the schedule first */
            cdp_schedule_destroy(s);
            DESTROYED(cdp_pipeline_step(p));
        }
        cdp_pipeline_destroy(p);
        cdp_pipeline_destroy(p);
        DESTROYED(cdp_pipeline_step(p));
        DESTROYED(cdp_pipeline_start(p));
        DESTROYED(cdp_pipeline_poll(p, 0));
        DESTROYED(cdp_pipeline_losses(p, NULL, &sum));
        DESTROYED(cdp_pipeline_times(p, &times));
        cdp_schedule_destroy(s);
        cdp_schedule_destroy(s);
        DESTROYED(cdp_pipeline_create(&d, &next));
        DESTROYED(cdp_schedule_preview(s, NULL, false, NULL));
        DESTROYED(cdp_schedule_times(s, NULL, false, NULL));
        DESTROYED(cdp_schedule_deadlock(s, NULL));
        T_EQ(0, cdp_schedule_info_of(s).rows);
        T_EQ(0, cdp_schedule_rows(s, 0, NULL));
        T_EQ(UINT32_MAX, cdp_schedule_rank_of(s, 0));
        T_EQ(0, cdp_schedule_peak(s, 0));
        T_EQ(0, cdp_schedule_text(s, CDP_PIPE_CSV, NULL, 0));
        T_EQ(0, cdp_schedule_draw(s, &times, NULL, CDP_PIPE_PICTURE_TEXT, NULL, 0));
    }
}
TEST(a_pipeline_and_its_schedule_are_destroyed_once) {
    run_ranks(1, NULL, 0, rank_ends_pipelines_twice, NULL);
}

static void rank_ends_remote_optimizers_twice(cdp_group *g, void *arg) {
    double w[2] = {1, 2};
    cdp_rref param;
    cdp_call_desc asked;
    cdp_call done;
    cdp_rpc *rpc;
    cdp_ctx *ctx;
    uint64_t value;
    memset(&asked, 0, sizeof asked);
    memset(&done, 0, sizeof done);
    (void)arg;
    cdp_tensor t = {.data = w, .dtype = CDP_DTYPE_F64, .dims = 1, .shape[0] = 2};
    cdp_rpc_desc rd = {.group = g};
    cdp_optim_desc d = {0};
    cdp_value v = {.param = true, .plain.tensors = &t, .plain.tensor_count = 1};
    T_EQ(CDP_OK, cdp_rpc_create(&rd, &rpc));
    T_EQ(CDP_OK, cdp_rref_create(rpc, &v, NULL, &param));
    T_EQ(CDP_OK, cdp_ctx_begin(rpc, &ctx));
    d.rpc = rpc;
    d.kind = CDP_OPTIM_SGD;
    d.params = &param;
    d.param_count = 1;
    for (uint32_t i = 0; i < 3; ++i) {
        cdp_dist_optim *o;
        T_EQ(CDP_OK, cdp_dist_optim_create(&d, &o));
        T_EQ(CDP_OK, cdp_dist_optim_set(o, 1, 0));
        cdp_dist_optim_destroy(o);
        cdp_dist_optim_destroy(o);
        DESTROYED(cdp_dist_optim_step(o, ctx));
        DESTROYED(cdp_dist_optim_set(o, 1, 0));
    }
    T_EQ(CDP_OK, cdp_ctx_end(ctx, 0));
    ENDED("has ended", cdp_ctx_end(ctx, 0));
    ENDED("has ended", cdp_ctx_value(ctx, &value));
    T_EQ(0, cdp_ctx_id(ctx));
    asked.ctx = ctx;
    asked.function = cdp_rpc_id("none");
    ENDED("has ended", cdp_rpc_call(rpc, &asked, &done));
    T_EQ(CDP_OK, cdp_ctx_begin(rpc, &ctx)); /* at the same address, most likely */
    T_EQ(CDP_OK, cdp_ctx_value(ctx, &value));
    T_EQ(CDP_OK, cdp_ctx_end(ctx, 0));
    cdp_rref_drop(param);
    T_EQ(CDP_OK, cdp_rpc_shutdown(rpc, 0));
    cdp_rpc_destroy(rpc);
}
TEST(a_remote_optimizer_is_destroyed_once) {
    run_ranks(1, NULL, 0, rank_ends_remote_optimizers_twice, NULL);
}

TEST(a_hub_is_destroyed_once) {
    cdp_hub_desc hd;
    cdp_group_desc d;
    memset(&hd, 0, sizeof hd);
    memset(&d, 0, sizeof d);
    hd.world_size = d.world_size = 2;
    for (uint32_t i = 0; i < 3; ++i) {
        cdp_group *g;
        T_EQ(CDP_OK, cdp_hub_create(&hd, &d.hub));
        T_EQ(CDP_OK, cdp_group_create(&d, &g));
        cdp_group_destroy(g);
        cdp_hub_destroy(d.hub);
        cdp_hub_destroy(d.hub);
        DESTROYED(cdp_group_create(&d, &g));
        T(!g);
    }
}

TEST(a_store_server_is_destroyed_once) {
    cdp_store_server_desc d;
    cdp_store_server *s;
    memset(&d, 0, sizeof d);
    T_EQ(CDP_ERR_INVALID, cdp_store_server_create(&d, NULL));
    T_TEXT("out is NULL", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_store_server_poll(NULL, 0));
    T_EQ(0, cdp_store_server_port(NULL));
    for (uint32_t i = 0; i < 3; ++i) {
        d.no_thread = i == 1;
        T_EQ(CDP_OK, cdp_store_server_create(&d, &s));
        T(cdp_store_server_port(s) != 0);
        cdp_store_server_destroy(s);
        cdp_store_server_destroy(s);
        DESTROYED(cdp_store_server_poll(s, 0));
        T_EQ(0, cdp_store_server_port(s));
    }
}

static void deliver_nothing(void *user, const cdp_channel_message *m) {
    (void)user;
    (void)m;
}

static void rank_closes_channels_twice(cdp_group *g, void *arg) {
    (void)arg;
    cdp_channel_desc d = {.group = g, .deliver = deliver_nothing};
    for (uint32_t i = 0; i < 3; ++i) {
        cdp_channel *c;
        uint64_t handle = 1;
        cdp_channel_message m = {.peer = 1 - cdp_rank(g)};
        T_EQ(CDP_OK, cdp_barrier(g));
        T_EQ(CDP_OK, cdp_channel_open(&d, &c));
        T_EQ(CDP_OK, cdp_channel_send(c, &m));
        T_EQ(CDP_OK, cdp_barrier(g));
        cdp_channel_close(c);
        cdp_channel_close(c);
        cdp_channel_timer(c, 0);
        cdp_channel_wake(c);
        CLOSED(cdp_channel_send(c, &m));
        CLOSED(cdp_channel_offer(c, &m, &handle));
        CLOSED(cdp_channel_fetch(c, m.peer, handle, &m, 1));
        CLOSED(cdp_channel_refuse(c, m.peer, handle));
        CLOSED(cdp_channel_wait(c, 0));
        CLOSED(cdp_channel_wait_since(c, &handle, 0));
        CLOSED(cdp_channel_drop(c, m.peer, "for a test"));
    }
}
TEST(a_channel_is_closed_once) {
    run_ranks(2, NULL, 0, rank_closes_channels_twice, NULL);
}

/* ---- checkpoints and agents ------------------------------------------------------------------ */

#define CKPT_PLACE "build/handles.ckpt"

static bool ckpt_in_child(void *arg) {
    cdp_ckpt *c = (cdp_ckpt *)arg;
    const bool good = of_parent(cdp_ckpt_save(c, 9)) && of_parent(cdp_ckpt_wait(c, 0));
    cdp_ckpt_destroy(c);
    return good;
}

static void ckpt_is_refused(cdp_ckpt *c, const char *why) {
    ENDED(why, cdp_ckpt_save(c, 3));
    ENDED(why, cdp_ckpt_save_async(c, 3));
    ENDED(why, cdp_ckpt_staged(c));
    ENDED(why, cdp_ckpt_wait(c, 0));
    ENDED(why, cdp_ckpt_load(c, NULL, CDP_CKPT_LATEST, NULL));
}

static void reader_is_closed_twice(void) {
    cdp_ckpt_reader *r;
    float x[2];
    T_EQ(CDP_OK, cdp_ckpt_open(CKPT_PLACE, NULL, &r));
    T_EQ(1, cdp_ckpt_count(r));
    cdp_ckpt_close(r);
    cdp_ckpt_close(r);
    T_EQ(0, cdp_ckpt_count(r));
    T_EQ(0, cdp_ckpt_step_of(r));
    T_EQ(UINT32_MAX, cdp_ckpt_find(r, "w"));
    T(!cdp_ckpt_entry_at(r, 0).name);
    CLOSED(cdp_ckpt_read(r, 0, NULL, x));
    CLOSED(cdp_ckpt_verify(r, 0));
}

static void rank_ends_checkpoints_twice(cdp_group *g, void *arg) {
    float w[2] = {1, 2};
    cdp_ckpt *c;
    (void)arg;
    cdp_item item = {
        .name = "w", .tensor.layout.ndim = 1, .tensor.layout.shape[0] = 2, .tensor.data = w};
    cdp_ckpt_desc d = {.group = g, .path = CKPT_PLACE, .items = &item, .item_count = 1};
    const uint32_t alone = 0;
    for (uint64_t i = 1; i < 4; ++i) {
        T_EQ(CDP_OK, cdp_ckpt_create(&d, &c));
        T_EQ(CDP_OK, cdp_ckpt_save(c, i));
        T(child_does(ckpt_in_child, c));
        T_EQ(CDP_OK, cdp_ckpt_load(c, NULL, i, NULL));
        reader_is_closed_twice();
        cdp_ckpt_destroy(c);
        cdp_ckpt_destroy(c);
        T_EQ(0, cdp_ckpt_info_of(c).files);
        ckpt_is_refused(c, "destroyed");
    }
    T_EQ(CDP_OK, cdp_group_new(g, &alone, 1, &d.group));
    T_EQ(CDP_OK, cdp_ckpt_create(&d, &c));
    cdp_group_destroy(d.group);
    ckpt_is_refused(c, "destroyed before it");
    cdp_ckpt_destroy(c);
    DESTROYED(cdp_ckpt_create(&d, &c));
}
TEST(a_checkpoint_and_its_reader_are_ended_once) {
    T_EQ(0, system("mkdir -p build && rm -rf " CKPT_PLACE));
    run_ranks(1, NULL, 0, rank_ends_checkpoints_twice, NULL);
    T_EQ(0, system("rm -rf " CKPT_PLACE));
}

static bool agent_in_child(void *arg) {
    cdp_agent *a = (cdp_agent *)arg;
    const bool good = of_parent(cdp_agent_step(a, 0)) && of_parent(cdp_agent_wait(a, 1));
    cdp_agent_stop(a);
    cdp_agent_destroy(a);
    return good && !cdp_agent_result(a);
}

TEST(an_agent_is_destroyed_once_and_by_its_process) {
    const char *words[] = {"/bin/sh", "-c", "sleep 0.3", NULL};
    cdp_agent *a;
    cdp_launch_desc d = {.command = words, .workers = 2};
    for (uint32_t i = 0; i < 3; ++i) {
        T_EQ(CDP_OK, cdp_agent_start(&d, &a));
        T(child_does(agent_in_child, a));
        T_EQ(CDP_OK, cdp_agent_wait(a, 10000)); /* the child has killed no worker */
        cdp_agent_destroy(a);
        cdp_agent_destroy(a);
        cdp_agent_stop(a);
        T_EQ(CDP_AGENT_INIT, cdp_agent_state_of(a));
        T(!cdp_agent_result(a));
        DESTROYED(cdp_agent_step(a, 0));
        DESTROYED(cdp_agent_wait(a, 0));
        DESTROYED(cdp_agent_save(a, "build/never"));
    }
}

/* ---- layers ---------------------------------------------------------------------------------- */

typedef struct layers {
    cdp_mesh *mesh;
    cdp_plan *plan;
    cdp_edge *edge; /* its messages have another dtype: it has memory of the group */
    cdp_tp *tp;
    cdp_cp *cp;
    cdp_dtensor tensor;
} layers;

static layers layers_of(cdp_group *g) {
    static float memory[8];
    cdp_mesh_desc md;
    cdp_plan_desc pd;
    cdp_edge_desc ed;
    cdp_tp_desc td;
    cdp_cp_desc cd;
    layers l;
    memset(&md, 0, sizeof md);
    memset(&pd, 0, sizeof pd);
    memset(&ed, 0, sizeof ed);
    memset(&td, 0, sizeof td);
    memset(&cd, 0, sizeof cd);
    memset(&l, 0, sizeof l);
    md.group = g;
    md.ndim = 1;
    md.shape[0] = cdp_size(g);
    T_EQ(CDP_OK, cdp_mesh_create(&md, &l.mesh));
    pd.from.mesh = l.mesh;
    pd.from.ndim = 1;
    pd.from.shape[0] = 4;
    pd.from.dtype = CDP_DTYPE_F32;
    pd.to = pd.from;
    T_EQ(CDP_OK, cdp_layout_parse(&pd.from, "S0"));
    T_EQ(CDP_OK, cdp_plan_create(&pd, &l.plan));
    T_EQ(CDP_OK, cdp_dtensor_create(&pd.from, memory, &l.tensor));
    ed.from = pd.from;
    ed.to = pd.to;
    ed.wire = CDP_DTYPE_BF16;
    T_EQ(CDP_OK, cdp_edge_create(&ed, &l.edge));
    td.mesh = cd.mesh = l.mesh;
    td.style = CDP_TP_ROW;
    td.rows = td.in_features = td.out_features = 4;
    T_EQ(CDP_OK, cdp_tp_create(&td, &l.tp));
    cd.length = 4;
    cd.heads = cd.width = 1;
    T_EQ(CDP_OK, cdp_cp_create(&cd, &l.cp));
    return l;
}

static void layers_end(const layers *l) {
    cdp_plan_destroy(l->plan);
    cdp_edge_destroy(l->edge);
    cdp_tp_destroy(l->tp);
    cdp_cp_destroy(l->cp);
}

/* Each call of a layer fails, by `failed`, and touches no memory. */
static bool layers_refuse(const layers *l, bool (*failed)(cdp_status st)) {
    float x[16] = {0};
    cdp_work work;
    const bool forward = failed(cdp_plan_run(l->plan, x, x + 8))
        && failed(cdp_plan_run_async(l->plan, x, x + 8, &work))
        && failed(cdp_edge_forward(l->edge, x, x + 8))
        && failed(cdp_edge_forward_async(l->edge, x, x + 8, &work))
        && failed(cdp_edge_forward_pieces(l->edge, x, x + 8, NULL, NULL))
        && failed(cdp_tp_forward(l->tp, x, x, NULL, x))
        && failed(cdp_cp_attention(l->cp, x, x, x, x, x))
        && failed(cdp_cp_ring(l->cp, x, 8, NULL, 0, block_of_none, NULL));
    return forward && failed(cdp_edge_backward(l->edge, x, x + 8))
        && failed(cdp_edge_backward_async(l->edge, x, x + 8, &work))
        && failed(cdp_tp_backward(l->tp, x, x, x, x, x, NULL))
        && failed(cdp_cp_attention_backward(l->cp, x, x, x, x, x, x, x, x, x));
}

static bool was_destroyed(cdp_status st) {
    return st == CDP_ERR_STATE && strstr(cdp_last_error()->text, "was destroyed") != NULL;
}

static void rank_ends_layers_twice(cdp_group *g, void *arg) {
    (void)arg;
    for (uint32_t i = 0; i < 3; ++i) { /* again at the same addresses */
        const layers l = layers_of(g);
        /* in turn, or what another rank makes meanwhile may get these addresses */
        for (uint32_t turn = 0; turn < cdp_rank(g); ++turn)
            T_EQ(CDP_OK, cdp_barrier(g));
        layers_end(&l);
        layers_end(&l);
        T_TEXT("cdp_cp_destroy: this cp was destroyed", cdp_last_error()->text);
        T(layers_refuse(&l, was_destroyed));
        T(cdp_plan_info_of(l.plan).messages == 0
            && cdp_plan_draw(l.plan, CDP_DRAW_TEXT, NULL, 0) == 0);
        T(cdp_edge_info(l.edge, false).messages == 0 && !cdp_edge_desc_of(l.edge));
        T(!cdp_tp_layouts_of(l.tp) && !cdp_tp_edge(l.tp, true));
        for (uint32_t turn = cdp_rank(g); turn < cdp_size(g); ++turn)
            T_EQ(CDP_OK, cdp_barrier(g));
        cdp_mesh_destroy(l.mesh);
    }
}
TEST(plans_edges_and_layers_are_destroyed_once) {
    run_ranks(2, NULL, 0, rank_ends_layers_twice, NULL);
}

/* A call that would check its arguments first is of the child, too. */
static bool of_parent_or_invalid(cdp_status st) {
    return of_parent(st) || st == CDP_ERR_INVALID;
}

static bool layers_in_child(void *arg) {
    layers *l = (layers *)arg;
    cdp_layout of = l->tensor.layout;
    cdp_dtensor owned;
    cdp_fill fill;
    float x[8] = {0};
    memset(&fill, 0, sizeof fill);
    const bool good = layers_refuse(l, of_parent_or_invalid)
        && of_parent(cdp_plan_run(l->plan, x, x + 4))
        && of_parent(cdp_edge_forward(l->edge, x, x + 4))
        && of_parent(cdp_dtensor_create(&of, NULL, &owned))
        && of_parent(cdp_dtensor_fill(&l->tensor, &fill))
        && of_parent(cdp_distribute(&l->tensor, x, CDP_EACH));
    layers_end(l);
    cdp_mesh_destroy(l->mesh);
    return good;
}

static void rank_has_layers(cdp_group *g, void *arg) {
    float x[4] = {1, 2, 3, 4}, y[4] = {0, 0, 0, 0};
    layers l = layers_of(g);
    (void)arg;
    T_EQ(CDP_OK, cdp_barrier(g));
    T(child_does(layers_in_child, &l));
    T_EQ(CDP_OK, cdp_barrier(g));
    T_EQ(CDP_OK, cdp_edge_forward(l.edge, x, y));
    T(y[0] == 1 && y[1] == 2 && y[2] == 1 && y[3] == 2);
    T_EQ(CDP_OK, cdp_plan_run(l.plan, x, y));
    layers_end(&l);
    cdp_mesh_destroy(l.mesh);
}
TEST(a_child_leaves_layers_alone) {
    run_ranks(2, NULL, 0, rank_has_layers, NULL);
}

/* ---- allocators and their snapshots ---------------------------------------------------------- */

static cdp_mem *mem_of_host(void) {
    cdp_mem_source source;
    cdp_mem_desc d;
    cdp_mem *m = NULL;
    memset(&d, 0, sizeof d);
    T_EQ(CDP_OK, cdp_mem_source_host(NULL, 0, &source));
    d.source = &source;
    T_EQ(CDP_OK, cdp_mem_create(&d, &m));
    return m;
}

static void mem_refuses(cdp_mem *m, cdp_mem_pool *pool) {
    cdp_mem_pool_desc pd;
    cdp_mem_pool *next;
    cdp_mem_shot *shot;
    cdp_mem_record_desc record;
    cdp_allocator a = cdp_mem_allocator(m), of_pool = cdp_mem_pool_allocator(pool);
    void *block;
    memset(&pd, 0, sizeof pd);
    memset(&record, 0, sizeof record);
    DESTROYED(cdp_mem_alloc(m, 512, NULL, &block));
    DESTROYED(cdp_mem_alloc_at(m, NULL, 512, NULL, NULL, &block));
    DESTROYED(cdp_mem_free(m, &pd));
    DESTROYED(cdp_mem_record(m, &record));
    DESTROYED(cdp_mem_record_stream(m, &pd, NULL));
    DESTROYED(cdp_mem_forget_stream(m, NULL));
    DESTROYED(cdp_mem_pool_create(m, &pd, &next));
    DESTROYED(cdp_mem_pool_destroy(pool));
    DESTROYED(cdp_mem_snapshot(&m, 1, false, &shot));
    DESTROYED(cdp_mem_external(m, "x", 1));
    T(cdp_mem_trim(m) == 0 && cdp_mem_usable(m, &pd) == 0 && cdp_mem_destroy(m) == 0);
    T(cdp_mem_pool_trim(pool) == 0 && cdp_mem_pool_hash(pool) == 0);
    T_EQ(0, cdp_mem_stats_of(m).allocation[0].current);
    T(!a.alloc(a.user, 512, NULL, NULL) && !of_pool.alloc(of_pool.user, 512, NULL, NULL));
    a.release(a.user, &pd);
    of_pool.release(of_pool.user, &pd);
    cdp_mem_set_limit(m, 1);
    cdp_mem_on_oom(m, NULL, NULL);
    cdp_mem_unwatch(m, NULL);
    cdp_mem_reset(m, true, true);
    cdp_mem_note(m, NULL, "x");
}

TEST(an_allocator_is_destroyed_once) {
    for (uint32_t i = 0; i < 3; ++i) {
        cdp_mem *m = mem_of_host();
        cdp_mem_pool_desc pd;
        cdp_mem_pool *pool, *left;
        void *block;
        memset(&pd, 0, sizeof pd);
        T_EQ(CDP_OK, cdp_mem_pool_create(m, &pd, &left));
        T_EQ(CDP_OK, cdp_mem_pool_create(m, &pd, &pool));
        T_EQ(CDP_OK, cdp_mem_alloc_at(m, pool, 512, NULL, NULL, &block));
        T_EQ(CDP_OK, cdp_mem_free(m, block));
        T_EQ(CDP_OK, cdp_mem_pool_destroy(pool));
        DESTROYED(cdp_mem_pool_destroy(pool));
        DESTROYED(cdp_mem_alloc_at(m, pool, 512, NULL, NULL, &block));
        T_EQ(0, cdp_mem_pool_hash(pool));
        T_EQ(0, cdp_mem_destroy(m)); /* and the pool that is left */
        T_EQ(0, cdp_mem_destroy(m));
        T_TEXT("cdp_mem_destroy: this cdp_mem was destroyed", cdp_last_error()->text);
        mem_refuses(m, left);
    }
}

static bool swallow(void *user, const void *data, uint64_t bytes) {
    (void)user;
    (void)data;
    (void)bytes;
    return true;
}

#define FREED(CALL) ENDED("this shot was freed", CALL)
TEST(a_snapshot_is_freed_once) {
    cdp_mem *m = mem_of_host();
    void *block;
    T_EQ(CDP_OK, cdp_mem_alloc(m, 512, NULL, &block));
    for (uint32_t i = 0; i < 3; ++i) {
        const cdp_mem_segment *segments;
        cdp_mem_shot *s;
        char text[8];
        T_EQ(CDP_OK, cdp_mem_snapshot(&m, 1, false, &s));
        T_EQ(1, cdp_mem_segments(s, &segments));
        cdp_mem_shot_free(s);
        cdp_mem_shot_free(s);
        T_TEXT("this shot was freed", cdp_last_error()->text);
        FREED(cdp_mem_write(s, CDP_MEM_JSON, swallow, NULL));
        FREED(cdp_mem_write_file(s, CDP_MEM_JSON, "build/never"));
        FREED(cdp_mem_shot_rows(s, CDP_MEM_ROWS_STACK, NULL));
        FREED(cdp_mem_frame_set(s, 0, 0, "f", "n", 1));
        T(cdp_mem_segments(s, &segments) == 0 && !segments);
        T(cdp_mem_devices(s) == 0 && cdp_mem_events(s, 0, NULL) == 0);
        T(cdp_mem_frames(s, 0, NULL) == 0 && !cdp_mem_module(s, 0, NULL, NULL));
        T_EQ(0, cdp_mem_compare(s, s, NULL, text, sizeof text));
        cdp_mem_shot_names(s);
    }
    T_EQ(CDP_OK, cdp_mem_free(m, block));
    T_EQ(0, cdp_mem_destroy(m));
}

/* ---- starts ---------------------------------------------------------------------------------- */

static bool start_in_child(void *arg) {
    cdp_starting *s = (cdp_starting *)arg;
    cdp_group *g;
    const bool good = of_parent(cdp_init_poll(s, 0, &g)) && !g;
    cdp_init_cancel(s);
    return good && of_parent(CDP_ERR_STATE);
}

TEST(a_start_ends_once_and_by_its_process) {
    char path[64];
    cdp_tcp_desc d;
    cdp_starting *s;
    cdp_group *g;
    memset(&d, 0, sizeof d);
    snprintf(path, sizeof path, "/tmp/cdp_handles_start_%ld", (long)getpid());
    d.group.world_size = 1;
    T_EQ(CDP_OK, cdp_init_start(&d, &s));
    T_EQ(CDP_OK, cdp_init_poll(s, 0, &g));
    cdp_group_destroy(g);
    ENDED("this start is over", cdp_init_poll(s, 0, &g));
    T(!g);
    cdp_init_cancel(s);
    T_TEXT("cdp_init_cancel: this start is over", cdp_last_error()->text);
    d.group.world_size = 2;
    d.file = path;
    for (uint32_t i = 0; i < 3; ++i) {
        T_EQ(CDP_OK, cdp_init_start(&d, &s));
        T_EQ(CDP_PENDING, cdp_init_poll(s, 1000, &g));
        T(child_does(start_in_child, s));
        T_EQ(CDP_PENDING, cdp_init_poll(s, 1000, &g));
        cdp_init_cancel(s);
        cdp_init_cancel(s);
        ENDED("this start is over", cdp_init_poll(s, 0, &g));
        remove(path);
    }
}

/* ---- memory that calls returned -------------------------------------------------------------- */

/* What is freed after its store, is not freed: nobody knows any more whose memory it was. */
static void frees_after(cdp_store *s) {
    cdp_store_request rq;
    const cdp_bytes key = {"k", 1};
    void *value = NULL, *copy;
    uint64_t bytes;
    memset(&rq, 0, sizeof rq);
    rq.op = CDP_STORE_GET;
    rq.keys = &key;
    rq.key_count = 1;
    T_EQ(CDP_OK, cdp_store_set(s, "k", "v", 1));
    T_EQ(CDP_OK, cdp_store_run(s, &rq, 0));
    cdp_store_request_free(s, &rq);
    T(!rq.results);
    cdp_store_request_free(s, &rq);
    cdp_store_request_free(s, NULL);
    T_EQ(CDP_OK, cdp_store_get(s, "k", &value, &bytes, 0));
    T_EQ(CDP_OK, cdp_store_run(s, &rq, 0));
    cdp_store_destroy(s);
    cdp_store_free(s, value);
    cdp_store_request_free(s, &rq);
    T(rq.results && memcmp(value, "v", 1) == 0);
    cdp__free(cdp_os_default(), value);
    copy = (void *)(uintptr_t)rq.results[0].data;
    cdp__free(cdp_os_default(), copy);
    cdp__free(cdp_os_default(), rq.results);
}

TEST(results_outlive_their_store) {
    cdp_store *hash, *view;
    T_EQ(CDP_OK, cdp_hash_store_create(NULL, &hash));
    T_EQ(CDP_OK, cdp_prefix_store_create(hash, "p", &view));
    frees_after(view);
    frees_after(hash);
}

static uint32_t own_released;
static void *own_alloc(void *user, uint64_t bytes) {
    (void)user;
    return malloc((size_t)bytes);
}
static void own_release(void *user, void *ptr) {
    (void)user;
    ++own_released;
    free(ptr);
}

TEST(blobs_outlive_their_group) {
    const cdp_group_desc d = {.world_size = 1};
    cdp_blob blob, own, freed;
    cdp_group *g;
    memset(&blob, 0, sizeof blob);
    memset(&own, 0, sizeof own);
    own.alloc = own_alloc;
    own.release = own_release;
    own_released = 0;
    T_EQ(CDP_OK, cdp_group_create(&d, &g));
    T_EQ(CDP_OK, cdp_allgather_bytes(g, "abc", 3, &own));
    T_EQ(CDP_OK, cdp_allgather_bytes(g, "abc", 3, &blob));
    freed = blob;
    cdp_blob_free(g, &freed);
    cdp_blob_free(g, &freed);
    T(!freed.data && !freed.allocated);
    memset(&blob, 0, sizeof blob);
    T_EQ(CDP_OK, cdp_allgather_bytes(g, "abc", 3, &blob));
    cdp_group_destroy(g);
    cdp_blob_free(g, &own);
    T_EQ(1, own_released);
    cdp_blob_free(g, &blob);
    T_TEXT("cdp_blob_free: this group was destroyed", cdp_last_error()->text);
    T(blob.allocated && memcmp(blob.data, "abc", 3) == 0);
    cdp__free(cdp_os_default(), blob.data);
    T(!cdp_group_backend(g));
}

/* ---- rpcs and requests ----------------------------------------------------------------------- */

static cdp_rpc_request *request_kept; /* by another thread, before: */
static uint32_t requests_kept;
static cdp_rpc_request *request_answered;

static void keeps(void *user, cdp_rpc_request *r) {
    (void)user;
    request_kept = r;
    (void)cdp__atomic_add_u32(&requests_kept, 1, CDP__RELEASE);
}
static void answers(void *user, cdp_rpc_request *r) {
    (void)user;
    request_answered = r;
    T_EQ(CDP_OK, cdp_rpc_reply(r, NULL));
}

static void rpc_refuses(cdp_rpc *rpc) {
    static const char gone[] = "this rpc was destroyed";
    cdp_call_desc d;
    cdp_call begun;
    cdp_rref ref;
    cdp_value value;
    cdp_ctx *ctx;
    cdp_optim_desc od;
    cdp_dist_optim *o;
    memset(&d, 0, sizeof d);
    memset(&begun, 0, sizeof begun);
    memset(&value, 0, sizeof value);
    memset(&od, 0, sizeof od);
    od.rpc = rpc;
    od.kind = CDP_OPTIM_SGD;
#define GONE_RPC(CALL) (T_EQ(CDP_ERR_INVALID, CALL), T_TEXT(gone, cdp_last_error()->text))
    GONE_RPC(cdp_rpc_start(rpc, &d, &begun));
    GONE_RPC(cdp_rpc_call(rpc, &d, &begun));
    GONE_RPC(cdp_rpc_remote(rpc, &d, &ref));
    GONE_RPC(cdp_rref_create(rpc, &value, NULL, &ref));
    GONE_RPC(cdp_ctx_begin(rpc, &ctx));
    GONE_RPC(cdp_rpc_shutdown(rpc, 0));
    GONE_RPC(cdp_rpc_serve(rpc, 1));
    GONE_RPC(cdp_rpc_poll(rpc, 0));
    GONE_RPC(cdp_dist_optim_create(&od, &o));
    T(!ctx && !o && !ref.rpc);
    T(!cdp_rpc_alive(rpc, 0) && !cdp_rpc_name_of(rpc, 0));
    T_EQ(-1, cdp_rpc_rank_of(rpc, "a"));
    T_EQ(0, cdp_rpc_describe(rpc, NULL, 0));
    T_EQ(0, cdp_rpc_stats_of(rpc).workers);
    T_EQ(0, cdp_rpc_records(rpc, NULL, 0));
}

static void request_refuses(cdp_rpc_request *r) {
    cdp_value value;
    memset(&value, 0, sizeof value);
    ENDED("destroyed, and the request", cdp_rpc_reply(r, NULL));
    ENDED("destroyed, and the request", cdp_rpc_reply_value(r, &value));
    ENDED("destroyed, and the request", cdp_rpc_fail(r, 1, "x"));
    T(cdp_rpc_cancelled(r));
}

static void rank_uses_a_former_rpc(cdp_group *g, void *arg) {
    const cdp_rpc_function functions[2] = {{.name = "keeps", .func = keeps, .flags = CDP_RPC_LATER},
        {.name = "answers", .func = answers}};
    (void)arg;
    for (uint32_t i = 0; i < 3; ++i) {
        cdp_rpc_desc d;
        cdp_call_desc cd;
        cdp_call kept, answered;
        cdp_rpc *rpc;
        memset(&d, 0, sizeof d);
        memset(&cd, 0, sizeof cd);
        memset(&kept, 0, sizeof kept);
        memset(&answered, 0, sizeof answered);
        d.group = g;
        d.functions = functions;
        d.function_count = 2;
        T_EQ(CDP_OK, cdp_rpc_create(&d, &rpc));
        cd.function = cdp_rpc_id("keeps");
        requests_kept = 0;
        T_EQ(CDP_OK, cdp_rpc_start(rpc, &cd, &kept));
        while (!cdp__atomic_load_u32(&requests_kept, CDP__ACQUIRE))
            T_EQ(CDP_OK, cdp_rpc_poll(rpc, 1000));
        cd.function = cdp_rpc_id("answers");
        T_EQ(CDP_OK, cdp_rpc_call(rpc, &cd, &answered));
        ENDED("was replied to before", cdp_rpc_reply(request_answered, NULL));
        cdp_rpc_destroy(rpc);
        rpc_refuses(rpc);
        T_EQ(CDP_OK, cdp_rpc_reply(request_kept, NULL)); /* late: it is dropped */
        request_refuses(request_kept);
        request_refuses(request_answered);
        cdp_call_free(&answered);
        cdp_call_free(&kept);
        cdp_call_free(&kept);
    }
}
TEST(rpcs_and_requests_end_once) {
    run_ranks(1, NULL, 0, rank_uses_a_former_rpc, NULL);
}

/* ---- what trains, in a child ----------------------------------------------------------------- */

typedef struct trainers {
    cdp_group *group;
    cdp_hub *hub;
    cdp_ddp *ddp;
    cdp_optim optim;
    cdp_optimizer *optimizer;
    cdp_outer *outer;
    cdp_leaves *leaves;
    cdp_report *report;
    cdp_fsdp *fsdp;
    cdp_schedule *schedule;
    cdp_pipeline *pipeline;
    cdp_rpc *rpc;
} trainers;

static bool trainers_in_child(void *arg) {
    trainers *t = (trainers *)arg;
    cdp_report_figures figures;
    cdp_group_desc gd;
    cdp_group *g;
    float x[4];
    memset(&figures, 0, sizeof figures);
    memset(&gd, 0, sizeof gd);
    gd.hub = t->hub;
    gd.world_size = 2;
    const bool good = of_parent(cdp_optimizer_step(t->optimizer, 1))
        && of_parent(cdp_outer_step(t->outer)) && of_parent(cdp_leaves_begin(t->leaves, NULL))
        && of_parent(cdp_report_step(t->report, &figures)) && of_parent(cdp_fsdp_need(t->fsdp, 0))
        && of_parent(cdp_fsdp_step(t->fsdp)) && of_parent(cdp_fsdp_loaded(t->fsdp))
        && of_parent(cdp_fsdp_save(t->fsdp, 0, CDP_FSDP_VALUES, x, 0))
        && cdp_pipeline_step(t->pipeline) < 0 && cdp_rpc_poll(t->rpc, 0) == CDP_ERR_INVALID
        && of_parent(cdp_group_create(&gd, &g));
    cdp_rpc_destroy(t->rpc);
    cdp_pipeline_destroy(t->pipeline);
    cdp_schedule_destroy(t->schedule);
    cdp_fsdp_abort(t->fsdp, "a child");
    cdp_fsdp_destroy(t->fsdp);
    cdp_report_destroy(t->report);
    cdp_leaves_destroy(t->leaves);
    cdp_outer_destroy(t->outer);
    cdp_optimizer_destroy(t->optimizer);
    cdp_ddp_destroy(t->ddp);
    cdp_group_destroy(t->group);
    cdp_hub_destroy(t->hub);
    return good;
}

static void trainers_make_ddp(trainers *t, cdp_param *p) {
    cdp_ddp_desc dd;
    cdp_optimizer_desc od;
    cdp_outer_desc ud;
    cdp_report_desc rd;
    memset(&dd, 0, sizeof dd);
    memset(&od, 0, sizeof od);
    memset(&ud, 0, sizeof ud);
    memset(&rd, 0, sizeof rd);
    dd.group = ud.group = t->group;
    dd.params = ud.params = p;
    dd.param_count = ud.param_count = 1;
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &t->ddp));
    t->optim.kind = CDP_OPTIM_SGD;
    t->optim.lr = 1;
    od.ddp = rd.ddp = t->ddp;
    od.optim = &t->optim;
    od.deferred = true;
    T_EQ(CDP_OK, cdp_optimizer_create(&od, &t->optimizer));
    T_EQ(CDP_OK, cdp_outer_create(&ud, &t->outer));
    T_EQ(CDP_OK, cdp_report_create(&rd, &t->report));
}

static void trainers_make(trainers *t, float *x, cdp_pipe_stage *stage) {
    cdp_leaves_desc ld;
    cdp_fsdp_param fp;
    cdp_fsdp_desc fd;
    cdp_schedule_desc sd;
    cdp_pipeline_desc pd;
    cdp_rpc_desc rd;
    memset(&ld, 0, sizeof ld);
    memset(&fp, 0, sizeof fp);
    memset(&fd, 0, sizeof fd);
    memset(&sd, 0, sizeof sd);
    memset(&pd, 0, sizeof pd);
    memset(&rd, 0, sizeof rd);
    ld.group = fd.group = pd.group = rd.group = t->group;
    ld.grads = x + 4;
    ld.count = 4;
    ld.leaves = 2;
    T_EQ(CDP_OK, cdp_leaves_create(&ld, &t->leaves));
    fp.ndim = 1;
    fp.shape[0] = 4;
    fd.params = &fp;
    fd.param_count = 1;
    T_EQ(CDP_OK, cdp_fsdp_create(&fd, &t->fsdp));
    sd.ranks = 2;
    sd.micros = 2;
    T_EQ(CDP_OK, cdp_schedule_create(&sd, &t->schedule));
    pd.schedule = t->schedule;
    pd.stages = stage;
    pd.stage_count = 1;
    T_EQ(CDP_OK, cdp_pipeline_create(&pd, &t->pipeline));
    T_EQ(CDP_OK, cdp_rpc_create(&rd, &t->rpc));
}

static void trainers_go_on(trainers *t) {
    cdp_report_figures figures;
    memset(&figures, 0, sizeof figures);
    T_EQ(CDP_OK, cdp_ddp_backward_begin(t->ddp));
    T_EQ(CDP_OK, cdp_ddp_ready(t->ddp, 0));
    T_EQ(CDP_OK, cdp_ddp_backward_end(t->ddp));
    T_EQ(CDP_OK, cdp_optimizer_step(t->optimizer, 1));
    T_EQ(CDP_OK, cdp_outer_step(t->outer));
    T_EQ(CDP_OK, cdp_report_step(t->report, &figures));
    T_EQ(CDP_OK, cdp_leaves_begin(t->leaves, NULL));
    T_EQ(CDP_OK, cdp_leaves_end(t->leaves));
    T_EQ(CDP_OK, cdp_fsdp_need(t->fsdp, 0));
    T_EQ(CDP_OK, cdp_fsdp_done(t->fsdp, 0));
    T_EQ(CDP_OK, cdp_pipeline_step(t->pipeline));
    T_EQ(CDP_OK, cdp_rpc_shutdown(t->rpc, 0));
}

static void rank_has_trainers(cdp_group *g, void *arg) {
    float x[8] = {1, 2, 3, 4, 0, 0, 0, 0};
    cdp_pipe_edge between;
    cdp_pipe_stage stage;
    cdp_param p;
    trainers t;
    memset(&between, 0, sizeof between);
    memset(&stage, 0, sizeof stage);
    memset(&p, 0, sizeof p);
    memset(&t, 0, sizeof t);
    t.group = g;
    t.hub = *(cdp_hub **)arg;
    p.data = x;
    p.count = 4;
    between.count = 1;
    between.dtype = CDP_DTYPE_F32;
    stage.forward = stage.backward = computes;
    if (cdp_rank(g)) stage.in = &between;
    if (cdp_rank(g)) stage.in_count = 1;
    if (!cdp_rank(g)) stage.out = &between;
    if (!cdp_rank(g)) stage.out_count = 1;
    trainers_make_ddp(&t, &p);
    trainers_make(&t, x, &stage);
    T_EQ(CDP_OK, cdp_barrier(g));
    T(child_does(trainers_in_child, &t));
    T_EQ(CDP_OK, cdp_barrier(g));
    trainers_go_on(&t);
    cdp_rpc_destroy(t.rpc);
    cdp_pipeline_destroy(t.pipeline);
    cdp_schedule_destroy(t.schedule);
    cdp_fsdp_destroy(t.fsdp);
    cdp_leaves_destroy(t.leaves);
    cdp_outer_destroy(t.outer);
    cdp_report_destroy(t.report);
    cdp_optimizer_destroy(t.optimizer);
    cdp_ddp_destroy(t.ddp);
}
TEST(a_child_leaves_trainers_alone) {
    world w;
    if (!world_open(&w, 2, NULL, 0)) return;
    world_threads(&w, rank_has_trainers, &w.hub);
    world_close(&w);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_child_leaves_hash_and_prefix_stores_alone", a_child_leaves_hash_and_prefix_stores_alone,
            20},
        {"a_child_leaves_custom_stores_alone", a_child_leaves_custom_stores_alone, 20},
        {"a_child_leaves_tcp_stores_and_their_server_alone",
            a_child_leaves_tcp_stores_and_their_server_alone, 30},
        {"a_child_is_no_user_of_a_file_store", a_child_is_no_user_of_a_file_store, 20},
        {"a_child_leaves_an_allocator_alone", a_child_leaves_an_allocator_alone, 20},
        {"a_child_leaves_ddps_and_meshes_alone", a_child_leaves_ddps_and_meshes_alone, 20},
        {"a_child_leaves_an_elastic_job_alone", a_child_leaves_an_elastic_job_alone, 30},
        {"a_destroyed_ddp_is_refused", a_destroyed_ddp_is_refused, 20},
        {"a_destroyed_group_is_refused", a_destroyed_group_is_refused, 20},
        {"a_ddp_outlives_its_group", a_ddp_outlives_its_group, 20},
        {"a_ddp_with_a_hook_outlives_its_group", a_ddp_with_a_hook_outlives_its_group, 20},
        {"a_mesh_outlives_its_group", a_mesh_outlives_its_group, 20},
        {"a_prefix_store_outlives_its_store", a_prefix_store_outlives_its_store, 20},
        {"a_destroyed_mesh_is_asked_nothing", a_destroyed_mesh_is_asked_nothing, 20},
        {"layouts_and_plans_of_a_destroyed_mesh_are_refused",
            layouts_and_plans_of_a_destroyed_mesh_are_refused, 20},
        {"a_store_is_destroyed_once", a_store_is_destroyed_once, 20},
        {"an_rpc_is_destroyed_once", an_rpc_is_destroyed_once, 20},
        {"an_optimizer_is_destroyed_once", an_optimizer_is_destroyed_once, 20},
        {"files_of_tokens_are_closed_once", files_of_tokens_are_closed_once, 20},
        {"an_fsdp_is_destroyed_once", an_fsdp_is_destroyed_once, 20},
        {"a_pipeline_and_its_schedule_are_destroyed_once",
            a_pipeline_and_its_schedule_are_destroyed_once, 20},
        {"a_remote_optimizer_is_destroyed_once", a_remote_optimizer_is_destroyed_once, 20},
        {"a_hub_is_destroyed_once", a_hub_is_destroyed_once, 20},
        {"a_store_server_is_destroyed_once", a_store_server_is_destroyed_once, 20},
        {"a_channel_is_closed_once", a_channel_is_closed_once, 20},
        {"a_checkpoint_and_its_reader_are_ended_once", a_checkpoint_and_its_reader_are_ended_once,
            20},
        {"an_agent_is_destroyed_once_and_by_its_process",
            an_agent_is_destroyed_once_and_by_its_process, 20},
        {"plans_edges_and_layers_are_destroyed_once", plans_edges_and_layers_are_destroyed_once,
            30},
        {"a_child_leaves_layers_alone", a_child_leaves_layers_alone, 30},
        {"an_allocator_is_destroyed_once", an_allocator_is_destroyed_once, 30},
        {"a_snapshot_is_freed_once", a_snapshot_is_freed_once, 30},
        {"a_start_ends_once_and_by_its_process", a_start_ends_once_and_by_its_process, 30},
        {"results_outlive_their_store", results_outlive_their_store, 20},
        {"blobs_outlive_their_group", blobs_outlive_their_group, 20},
        {"rpcs_and_requests_end_once", rpcs_and_requests_end_once, 30},
        {"a_child_leaves_trainers_alone", a_child_leaves_trainers_alone, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
