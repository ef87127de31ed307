/* The smallest build: everything optional is left out, and ranks still train over TCP. */
#define CDP_NO_HOOKS
#define CDP_NO_AVERAGER
#define CDP_NO_TRACE
#define CDP_NO_SPARSE
#define CDP_NO_JOIN
#define CDP_NO_CLIP
#define CDP_NO_VERIFY
#define CDP_NO_SAMPLER
#define CDP_NO_FILE_STORE
#define CDP_NO_FILES
#define CDP_NO_HASH_STORE
#define CDP_NO_PREFIX_STORE
#define CDP_NO_CUSTOM_STORE
#define CDP_NO_MESSAGES
#define CDP_NO_OBJECTS
#define CDP_NO_HUB
#define CDP_NO_RECORDER
#define CDP_NO_CHAINS
#define CDP_NO_GROUPS
#define CDP_NO_FRAMES
#define CDP_NO_SHARED_MEMORY
#define CDP_NO_MAC
#define CDP_NO_ENV
#define CDP_NO_STDIO
#define CDP_NO_LOG_STRINGS
#define CDP_FEW_ALGORITHMS
#define CDP_NO_STORE_CALLS
#define CDP_NO_JOB_KEY
#define CDP_IMPLEMENTATION
#define CDP__TEST_OF_ITS_OWN /* this program compiles the library itself */
#include "cdp_tcp.h"

#include "test.h"
#include "ports.h"
#include "kind_rows.h"

#include <pthread.h>
#include <stdio.h>

#define RANKS_MAX 5u
#define COUNT 70001u
#define STEPS 6u

typedef struct job {
    uint32_t size;
    uint16_t port;
    bool reproducible;
    void (*work)(cdp_group *g);
} job;

typedef struct seat {
    const job *j;
    uint32_t rank;
    pthread_t thread;
} seat;

static void *run_rank(void *user) {
    const seat *s = user;
    cdp_tcp_desc d;
    cdp_group *g = NULL;
    memset(&d, 0, sizeof d);
    d.group.rank = s->rank;
    d.group.world_size = s->j->size;
    d.group.timeout_ms = 20000;
    d.group.reproducible = s->j->reproducible;
    d.master_addr = "127.0.0.1";
    d.master_port = s->j->port;
    d.init_timeout_ms = 20000;
    test_check(cdp_init(&d, &g) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
    if (g) s->j->work(g);
    cdp_group_destroy(g);
    return NULL;
}

static void run_job(uint32_t size, bool reproducible, void (*work)(cdp_group *g)) {
    seat seats[RANKS_MAX];
    const job j = {size, free_port(), reproducible, work};
    for (uint32_t i = 0; i < size; ++i) {
        seats[i].j = &j;
        seats[i].rank = i;
        pthread_create(&seats[i].thread, NULL, run_rank, &seats[i]);
    }
    for (uint32_t i = 0; i < size; ++i)
        pthread_join(seats[i].thread, NULL);
}

/* ---- every collective, with numbers whose sums are exact ---- */

static int32_t value_of(uint32_t rank, uint32_t i) {
    return (int32_t)(rank * 7919u + i * 31u);
}

static int32_t sum_of(uint32_t size, uint32_t i) {
    int32_t sum = 0;
    for (uint32_t r = 0; r < size; ++r)
        sum += value_of(r, i);
    return sum;
}

static void fill(int32_t *x, uint32_t rank, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i)
        x[i] = value_of(rank, i);
}

static uint32_t wrong_sums(const int32_t *x, uint32_t size, uint32_t first, uint32_t n) {
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < n; ++i)
        wrong += x[i] != sum_of(size, first + i);
    return wrong;
}

static uint32_t wrong_values(const int32_t *x, uint32_t rank, uint32_t first, uint32_t n) {
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < n; ++i)
        wrong += x[i] != value_of(rank, first + i);
    return wrong;
}

static void reductions(cdp_group *g, int32_t *in, int32_t *out, uint32_t n) {
    const uint32_t size = cdp_size(g), me = cdp_rank(g), root = size - 1;
    fill(in, me, n * size);
    T_EQ(CDP_OK, cdp_allreduce(g, in, out, n, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T_EQ(0, wrong_sums(out, size, 0, n));
    T_EQ(CDP_OK, cdp_reduce(g, in, out, n, CDP_DTYPE_I32, CDP_REDUCE_SUM, root));
    if (me == root) T_EQ(0, wrong_sums(out, size, 0, n));
    T_EQ(CDP_OK, cdp_reduce_scatter(g, in, out, n, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T_EQ(0, wrong_sums(out, size, me * n, n));
}

static void copies(cdp_group *g, int32_t *in, int32_t *out, uint32_t n) {
    const uint32_t size = cdp_size(g), me = cdp_rank(g), root = size - 1;
    fill(in, me, n * size);
    T_EQ(CDP_OK, cdp_allgather(g, in, out, n, CDP_DTYPE_I32));
    for (uint32_t r = 0; r < size; ++r)
        T_EQ(0, wrong_values(out + r * n, r, 0, n));
    T_EQ(CDP_OK, cdp_alltoall(g, in, out, n, CDP_DTYPE_I32));
    for (uint32_t r = 0; r < size; ++r)
        T_EQ(0, wrong_values(out + r * n, r, me * n, n));
    T_EQ(CDP_OK, cdp_gather(g, in, out, n, CDP_DTYPE_I32, root));
    for (uint32_t r = 0; r < size && me == root; ++r)
        T_EQ(0, wrong_values(out + r * n, r, 0, n));
    T_EQ(CDP_OK, cdp_scatter(g, in, out, n, CDP_DTYPE_I32, root));
    T_EQ(0, wrong_values(out, root, me * n, n));
    T_EQ(CDP_OK, cdp_broadcast(g, in, n, CDP_DTYPE_I32, root));
    T_EQ(0, wrong_values(in, root, 0, n));
    T_EQ(CDP_OK, cdp_barrier(g));
}

static void collectives(cdp_group *g) {
    static const uint32_t counts[] = {1, 1000, COUNT};
    int32_t *in = malloc(RANKS_MAX * COUNT * sizeof *in);
    int32_t *out = malloc(RANKS_MAX * COUNT * sizeof *out);
    for (uint32_t i = 0; i < 3; ++i) {
        reductions(g, in, out, counts[i]);
        copies(g, in, out, counts[i]);
    }
    free(in);
    free(out);
}

TEST(every_kind_has_its_rows) {
    check_kind_rows();
}

TEST(every_collective_has_an_algorithm_for_every_size) {
    for (uint32_t size = 1; size <= RANKS_MAX; ++size)
        run_job(size, false, collectives);
}

TEST(reproducible_groups_have_one_too) {
    run_job(3, true, collectives);
    run_job(4, true, collectives);
}

/* ---- training ---- */

static void train(cdp_group *g) {
    float w[300], b = 1;
    cdp_param params[] = {
        {.name = "w", .data = w, .count = 300}, {.name = "b", .data = &b, .count = 1}};
    const cdp_ddp_desc desc = {.group = g, .params = params, .param_count = 2, .bucket_bytes = 256};
    cdp_ddp *ddp = NULL;
    for (uint32_t i = 0; i < 300; ++i)
        w[i] = (float)(cdp_rank(g) + i); /* creation makes all ranks' equal to rank 0's */
    T_EQ(CDP_OK, cdp_ddp_create(&desc, &ddp));
    if (!ddp) return;
    T(w[299] == 299);
    for (uint32_t step = 0; step < STEPS; ++step) {
        T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
        *(float *)cdp_ddp_grad(ddp, 1) = (float)(cdp_rank(g) + step);
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, 1));
        for (uint32_t i = 0; i < 300; ++i)
            ((float *)cdp_ddp_grad(ddp, 0))[i] = (float)(i + 2 * cdp_rank(g));
        T_EQ(CDP_OK, cdp_ddp_ready(ddp, 0));
        T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
        /* the mean of ranks 0 .. 2 is 1 */
        T(*(float *)cdp_ddp_grad(ddp, 1) == (float)(1 + step));
        T(((float *)cdp_ddp_grad(ddp, 0))[299] == 301);
    }
    cdp_ddp_destroy(ddp);
}

TEST(ranks_train_over_tcp) {
    run_job(3, false, train);
}

/* ---- what was left out says so ---- */

static cdp_status no_stage(void *self, cdp_bucket *bucket, uint32_t stage, cdp_request *op) {
    (void)self;
    (void)bucket;
    (void)stage;
    (void)op;
    return CDP_OK;
}

/* Without texts an error says where it was found: in which file, at which line. */
static void names_its_line(const char *file) {
    const cdp_error *e = cdp_last_error();
    char where[32];
    T(e->line > 0 && strcmp(e->file, file) == 0);
    snprintf(where, sizeof where, "%s:%u", file, e->line);
    T(strcmp(where, e->text) == 0);
}

TEST(errors_name_the_header_that_found_them) {
    cdp_group *g = NULL;
    cdp_store_server *server = NULL;
    const cdp_tcp_desc nobody = {.master_port = 1, .group = {.world_size = 0}};
    const cdp_store_server_desc nowhere = {.has_listen_fd = true, .listen_fd = -1};
    T_EQ(CDP_ERR_INVALID, cdp_init(&nobody, &g));
    names_its_line("cdp_tcp.h");
    T_EQ(CDP_ERR_INVALID, cdp_store_server_create(&nowhere, &server));
    names_its_line("cdp_store.h");
}

static void hook_of_two(cdp_group *g) {
    float w = 0;
    const cdp_param params[] = {{.name = "w", .data = &w, .count = 1}};
    const cdp_ddp_desc desc = {.group = g, .params = params, .param_count = 1};
    cdp_hook hook;
    cdp_ddp *ddp = NULL;
    memset(&hook, 0, sizeof hook);
    hook.stage = no_stage;
    hook.operations = 2;
    T_EQ(CDP_OK, cdp_ddp_create(&desc, &ddp));
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_ddp_set_hook(ddp, &hook));
    names_its_line("cdp.h");
    cdp_ddp_destroy(ddp);
}

TEST(a_hook_of_two_operations_needs_groups) {
    run_job(1, false, hook_of_two);
}

static void sparse_or_join(cdp_group *g) {
    float w[4] = {0};
    const cdp_param params[] = {{.name = "w", .data = w, .count = 4, .rows = 2, .sparse = true}};
    const cdp_param dense[] = {{.name = "w", .data = w, .count = 4}};
    cdp_ddp_desc desc = {.group = g, .params = params, .param_count = 1};
    cdp_ddp *ddp = NULL;
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_ddp_create(&desc, &ddp));
    names_its_line("cdp.h");
    T(!ddp);
    desc.params = dense;
    desc.join = true;
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_ddp_create(&desc, &ddp));
    names_its_line("cdp.h");
    T(!ddp);
    desc.join = false;
    T_EQ(CDP_OK, cdp_ddp_create(&desc, &ddp));
    cdp_ddp_destroy(ddp);
}

TEST(sparse_parameters_and_joins_that_were_left_out_are_refused) {
    run_job(1, false, sparse_or_join);
}

TEST(an_algorithm_that_was_left_out_is_unknown) {
    const cdp_choice choice = {.kind = CDP_COLL_ALLGATHER, .algorithm = "Bruck"};
    const cdp_group_desc desc = {.world_size = 1, .choices = &choice, .choice_count = 1};
    cdp_group *g = NULL;
    T_EQ(CDP_ERR_INVALID, cdp_group_create(&desc, &g));
    names_its_line("cdp.h");
    T(strstr(cdp_last_error()->text, "Bruck") == NULL);
}

/* ---- failures of several ranks keep all but their texts ---- */

static void calls_that_differ(cdp_group *g) {
    int32_t x[4] = {0};
    const uint32_t me = cdp_rank(g);
    const cdp_error *e = cdp_last_error();
    T_EQ(CDP_ERR_MISMATCH, cdp_allreduce(g, NULL, x, 4 - me, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T(e->peer == (int32_t)(1 - me) && e->rank == (int32_t)me);
    T(e->kind == CDP_COLL_ALLREDUCE && e->op_seq == 1);
    T(strcmp("MISMATCH", e->text) == 0);
}

TEST(ranks_that_call_different_things_are_named_without_a_text) {
    run_job(2, false, calls_that_differ);
}

static void one_aborts(cdp_group *g) {
    if (cdp_rank(g) == 1) cdp_group_abort(g, "without a reason in this build");
    T_EQ(CDP_ERR_ABORTED, cdp_barrier(g));
    T(cdp_last_error()->origin == 1);
    T_TEXT("cdp.h:", cdp_last_error()->text);
}

TEST(the_line_that_aborted_is_told) {
    run_job(2, false, one_aborts);
}

TEST(a_store_knows_the_calls_of_cdp_init_and_no_others) {
    const cdp_store_server_desc sd = {.no_thread = false};
    cdp_store_server *server = NULL;
    cdp_store *store = NULL;
    cdp_bytes key = {"k", 1};
    cdp_store_request rq = {.op = CDP_STORE_QUEUE_LEN, .keys = &key, .key_count = 1};
    void *value = NULL;
    uint64_t bytes = 0;
    int64_t sum = 0;
    T_EQ(CDP_OK, cdp_store_server_create(&sd, &server));
    const cdp_tcp_store_desc cd = {.host = "127.0.0.1", .port = cdp_store_server_port(server)};
    T_EQ(CDP_OK, cdp_tcp_store_create(&cd, &store));
    T_EQ(CDP_OK, cdp_store_set(store, "k", "value", 5));
    T_EQ(CDP_OK, cdp_store_get(store, "k", &value, &bytes, 1000));
    T(bytes == 5 && memcmp(value, "value", 5) == 0);
    cdp_store_free(store, value);
    T_EQ(CDP_OK, cdp_store_add(store, "n", 3, &sum));
    T_EQ(3, (int)sum);
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_store_run(store, &rq, 1000));
    rq.op = CDP_STORE_CHECK;
    T_EQ(CDP_OK, cdp_store_run(store, &rq, 1000));
    T_EQ(1, (int)rq.number);
    cdp_store_destroy(store);
    cdp_store_server_destroy(server);
}

/* Bytes that a server without job keys must answer by closing the connection, and nothing else. */
static void closes_for(const void *first, size_t bytes) {
    const cdp_store_server_desc sd = {.no_thread = false};
    cdp_store_server *server = NULL;
    struct sockaddr_in at;
    char got[64];
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    T_EQ(CDP_OK, cdp_store_server_create(&sd, &server));
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(cdp_store_server_port(server));
    T(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    T(send(fd, first, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
    T(recv(fd, got, sizeof got, 0) <= 0);
    close(fd);
    cdp_store_server_destroy(server);
}

TEST(a_server_closes_for_what_was_left_out) {
    static const uint8_t key[32] = "cdp-key1\1";
    static const uint8_t old[9] = {6}; /* the number of keys, in the dialect of PyTorch 1.13 */
    uint8_t list[6] = {CDP__OP_VALIDATE, 0, 0, 0, 0, CDP__OP_LIST_KEYS};
    cdp__put_u32(list + 1, CDP__WIRE_MAGIC);
    closes_for(key, sizeof key);
    closes_for(old, sizeof old);
    closes_for(list, sizeof list);
}

TEST(a_job_key_is_refused_and_not_ignored) {
    const cdp_store_server_desc sd = {.job_key = "sixteen or more characters"};
    const cdp_tcp_store_desc cd = {
        .host = "127.0.0.1", .port = 1, .job_key = "sixteen or more characters"};
    cdp_tcp_desc d;
    cdp_store_server *server = NULL;
    cdp_store *store = NULL;
    cdp_group *g = NULL;
    memset(&d, 0, sizeof d);
    d.group.world_size = 2;
    d.master_port = 1;
    d.job_key = "sixteen or more characters";
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_store_server_create(&sd, &server));
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_tcp_store_create(&cd, &store));
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_init(&d, &g));
    T(!server && !store && !g);
}

/* Another machine is refused without a key, also where there can be none. */
TEST(strangers_are_refused_without_a_key) {
    cdp__mesh m;
    cdp__incoming g;
    cdp_addr from;
    memset(&m, 0, sizeof m);
    memset(&g, 0, sizeof g);
    T(cdp__addr_parse("203.0.113.7:4000", &from));
    m.os = cdp_os_default();
    g.mesh = &m;
    T(cdp__incoming_guard(&g, -1, &from) && g.guarded);
    m.desc.trust_network = true;
    T(cdp__incoming_guard(&g, -1, &from) && !g.guarded);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"every_kind_has_its_rows", every_kind_has_its_rows, 20},
        {"every_collective_has_an_algorithm_for_every_size",
            every_collective_has_an_algorithm_for_every_size, 60},
        {"reproducible_groups_have_one_too", reproducible_groups_have_one_too, 60},
        {"errors_name_the_header_that_found_them", errors_name_the_header_that_found_them, 10},
        {"ranks_train_over_tcp", ranks_train_over_tcp, 60},
        {"a_hook_of_two_operations_needs_groups", a_hook_of_two_operations_needs_groups, 10},
        {"sparse_parameters_and_joins_that_were_left_out_are_refused",
            sparse_parameters_and_joins_that_were_left_out_are_refused, 10},
        {"an_algorithm_that_was_left_out_is_unknown", an_algorithm_that_was_left_out_is_unknown,
            10},
        {"ranks_that_call_different_things_are_named_without_a_text",
            ranks_that_call_different_things_are_named_without_a_text, 30},
        {"the_line_that_aborted_is_told", the_line_that_aborted_is_told, 30},
        {"a_store_knows_the_calls_of_cdp_init_and_no_others",
            a_store_knows_the_calls_of_cdp_init_and_no_others, 10},
        {"a_server_closes_for_what_was_left_out", a_server_closes_for_what_was_left_out, 10},
        {"a_job_key_is_refused_and_not_ignored", a_job_key_is_refused_and_not_ignored, 10},
        {"strangers_are_refused_without_a_key", strangers_are_refused_without_a_key, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
