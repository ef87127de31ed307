/* Ranks of a build without the store server and without what else a board can do without: with a
   store that others serve, and with a rank 0 of another build. The functions of the other build are
   those of the whole library. */
#define CDP_NO_STORE_SERVER
#define CDP_NO_MEETING
#define CDP_NO_REPRODUCIBLE
#define CDP_NO_BACKEND
#define CDP_FEW_DTYPES
#define CDP_NO_SCAN
#define CDP_API static __attribute__((unused))
#define CDP_IMPLEMENTATION
#define CDP__TEST_OF_ITS_OWN /* this program compiles the library itself */
#define cdp_init board_init
#define cdp_allreduce board_allreduce
#define cdp_group_destroy board_group_destroy
#define cdp_start board_start
#include "cdp_tcp.h"
#undef cdp_init
#undef cdp_allreduce
#undef cdp_group_destroy
#undef cdp_start

#include "test.h"
#include "ports.h"

#include <pthread.h>

#define RANKS 3u

cdp_status cdp_store_server_create(const cdp_store_server_desc *desc, cdp_store_server **out);
uint16_t cdp_store_server_port(const cdp_store_server *server);
void cdp_store_server_destroy(cdp_store_server *server);
cdp_status cdp_init(const cdp_tcp_desc *desc, cdp_group **out);
cdp_status cdp_allreduce(
    cdp_group *g, const void *in, void *out, uint64_t count, cdp_dtype dtype, cdp_reduce_op op);
void cdp_group_destroy(cdp_group *g);

typedef struct seat {
    uint32_t rank;
    uint16_t port;
    bool external, whole;
    pthread_t thread;
} seat;

static void *run_rank(void *user) {
    const seat *s = user;
    cdp_tcp_desc d;
    cdp_group *g = NULL;
    int32_t x[RANKS];
    cdp_status st;
    memset(&d, 0, sizeof d);
    d.group.rank = s->rank;
    d.group.world_size = RANKS;
    d.group.timeout_ms = 20000;
    d.master_addr = "127.0.0.1";
    d.master_port = s->port;
    d.external_store = s->external;
    d.init_timeout_ms = 20000;
    st = s->whole ? cdp_init(&d, &g) : board_init(&d, &g);
    test_check(st == CDP_OK, __FILE__, __LINE__, "rank %u: %s", s->rank, cdp_last_error()->text);
    if (!g) return NULL;
    for (uint32_t i = 0; i < RANKS; ++i)
        x[i] = (int32_t)(i * 10 + s->rank);
    st = s->whole ? cdp_allreduce(g, x, x, RANKS, CDP_DTYPE_I32, CDP_REDUCE_SUM)
                  : board_allreduce(g, x, x, RANKS, CDP_DTYPE_I32, CDP_REDUCE_SUM);
    T_EQ(CDP_OK, st);
    for (uint32_t i = 0; i < RANKS; ++i)
        T_EQ((int32_t)(i * 10 * RANKS + 3), x[i]);
    if (s->whole)
        cdp_group_destroy(g);
    else
        board_group_destroy(g);
    return NULL;
}

static void run_job(uint16_t port, bool external, bool whole_first) {
    seat seats[RANKS];
    for (uint32_t i = 0; i < RANKS; ++i) {
        seats[i].rank = i;
        seats[i].port = port;
        seats[i].external = external;
        seats[i].whole = whole_first && i == 0;
        pthread_create(&seats[i].thread, NULL, run_rank, &seats[i]);
    }
    for (uint32_t i = 0; i < RANKS; ++i)
        pthread_join(seats[i].thread, NULL);
}

TEST(all_ranks_use_a_store_that_others_serve) {
    cdp_store_server_desc d;
    cdp_store_server *server = NULL;
    memset(&d, 0, sizeof d);
    if (!T_EQ(CDP_OK, cdp_store_server_create(&d, &server))) return;
    run_job(cdp_store_server_port(server), true, false);
    cdp_store_server_destroy(server);
}

TEST(rank_0_of_another_build_serves_the_others) {
    run_job(free_port(), false, true);
}

TEST(rank_0_without_a_server_says_so) {
    cdp_tcp_desc d;
    cdp_group *g = NULL;
    memset(&d, 0, sizeof d);
    d.group.world_size = 2;
    d.master_port = free_port();
    d.init_timeout_ms = 20000;
    T_EQ(CDP_ERR_UNSUPPORTED, board_init(&d, &g));
    T(g == NULL);
    T_TEXT("CDP_NO_STORE_SERVER", cdp_last_error()->text);
    T_TEXT("external_store", cdp_last_error()->text);
}

TEST(what_was_left_out_is_refused_by_name) {
    cdp_tcp_desc d;
    cdp_group *g = NULL;
    memset(&d, 0, sizeof d);
    d.group.world_size = 2;
    d.group.rank = 1;
    d.file = "/tmp/cdp_test_board.meeting";
    d.init_timeout_ms = 20000;
    T_EQ(CDP_ERR_UNSUPPORTED, board_init(&d, &g));
    T_TEXT("CDP_NO_MEETING", cdp_last_error()->text);
    T(access(d.file, F_OK) != 0);
    memset(&d, 0, sizeof d);
    d.group.world_size = 1;
    d.group.reproducible = true;
    T_EQ(CDP_ERR_UNSUPPORTED, board_init(&d, &g));
    T_TEXT("CDP_NO_REPRODUCIBLE", cdp_last_error()->text);
    T(g == NULL);
}

TEST(dtypes_that_were_left_out_are_refused_and_the_others_reduced) {
    cdp_request r;
    cdp_work w;
    cdp_tcp_desc d;
    cdp_group *g = NULL;
    uint16_t halves[2] = {0x3c00, 0x4000};
    uint8_t bytes[2] = {1, 0};
    int64_t longs[2] = {7, -7};
    float complex_one[2] = {1, 2};
    double wide[2] = {3, 4};
    memset(&d, 0, sizeof d);
    d.group.world_size = 1;
    T_EQ(CDP_OK, board_init(&d, &g));
    T_EQ(CDP_OK, board_allreduce(g, NULL, halves, 2, CDP_DTYPE_F16, CDP_REDUCE_SUM));
    T_EQ(CDP_OK, board_allreduce(g, NULL, wide, 2, CDP_DTYPE_F64, CDP_REDUCE_AVG));
    T_EQ(3, (int)wide[0]);
    T_EQ(CDP_ERR_UNSUPPORTED, board_allreduce(g, NULL, halves, 2, CDP_DTYPE_F16, CDP_REDUCE_AVG));
    T_TEXT("avg of f16", cdp_last_error()->text);
    T_EQ(
        CDP_ERR_UNSUPPORTED, board_allreduce(g, NULL, halves, 4, CDP_DTYPE_F8E5M2, CDP_REDUCE_SUM));
    T_EQ(CDP_ERR_UNSUPPORTED,
        board_allreduce(g, NULL, complex_one, 1, CDP_DTYPE_CF32, CDP_REDUCE_SUM));
    for (uint32_t t = CDP_DTYPE_I8; t <= CDP_DTYPE_U64; ++t)
        T_EQ(CDP_ERR_UNSUPPORTED, board_allreduce(g, NULL, wide, 2, (cdp_dtype)t, CDP_REDUCE_SUM));
    T_EQ(CDP_ERR_UNSUPPORTED, board_allreduce(g, NULL, wide, 2, CDP_DTYPE_U32, CDP_REDUCE_BOR));
    T_EQ(CDP_OK, board_allreduce(g, NULL, bytes, 2, CDP_DTYPE_U8, CDP_REDUCE_MAX));
    T_EQ(CDP_OK, board_allreduce(g, NULL, bytes, 2, CDP_DTYPE_BOOL, CDP_REDUCE_BOR));
    T_EQ(CDP_OK, board_allreduce(g, NULL, longs, 2, CDP_DTYPE_I64, CDP_REDUCE_AVG));
    T_EQ(7, (int)longs[0]);
    memset(&r, 0, sizeof r);
    r.kind = CDP_COLL_ALLREDUCE;
    r.out = halves;
    r.count = 2;
    r.dtype = CDP_DTYPE_F16;
    r.accumulate = CDP_DTYPE_F32;
    T_EQ(CDP_ERR_UNSUPPORTED, board_start(g, &r, &w));
    T_TEXT("CDP_FEW_DTYPES", cdp_last_error()->text);
    r.accumulate = CDP_DTYPE_DEFAULT;
    r.kind = CDP_COLL_SCAN;
    T_EQ(CDP_ERR_UNSUPPORTED, board_start(g, &r, &w));
    T_TEXT("CDP_NO_SCAN", cdp_last_error()->text);
    board_group_destroy(g);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"all_ranks_use_a_store_that_others_serve", all_ranks_use_a_store_that_others_serve, 60},
        {"rank_0_of_another_build_serves_the_others", rank_0_of_another_build_serves_the_others,
            60},
        {"rank_0_without_a_server_says_so", rank_0_without_a_server_says_so, 10},
        {"what_was_left_out_is_refused_by_name", what_was_left_out_is_refused_by_name, 10},
        {"dtypes_that_were_left_out_are_refused_and_the_others_reduced",
            dtypes_that_were_left_out_are_refused_and_the_others_reduced, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
