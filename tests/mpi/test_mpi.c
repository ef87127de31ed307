/* One rank of a job over MPI; run.sh starts it with Open MPI and MPICH.

   test_mpi [thread|poll|exchange|sizes]

   Rank 0 prints a line for each check, and "N passed, N failed" in the end. */
#define CDP_IMPLEMENTATION
#include "cdp_mpi.h"
#include "cdp_tcp.h"

#include <stdio.h>
#include <stdlib.h>

static uint32_t passed, failed;
static int my_rank;

/* Until then MPI says of no request that it is complete. */
static _Atomic double incomplete_until;

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
    if (MPI_Wtime() >= incomplete_until) return PMPI_Test(request, flag, status);
    *flag = 0;
    return MPI_SUCCESS;
}

/* Right on all ranks? */
static void check(const char *name, bool right) {
    int mine = right ? 1 : 0, all = 0;
    if (!right) fprintf(stderr, "rank %d: %s: %s\n", my_rank, name, cdp_last_error()->text);
    (void)cdp_error_set(CDP_OK, -1, 0, "no call has failed"); /* this one is not the next one's */
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (all)
        ++passed;
    else
        ++failed;
    if (my_rank == 0) printf("%s %s\n", all ? "ok" : "not ok", name);
}

static bool sums(cdp_group *w, uint64_t count) {
    const uint32_t n = cdp_size(w), me = cdp_rank(w);
    int32_t *x = (int32_t *)malloc(count * sizeof *x);
    bool right = x != NULL;
    for (uint64_t i = 0; right && i < count; ++i)
        x[i] = (int32_t)(i % 1000 + me);
    right = right && cdp_allreduce(w, NULL, x, count, CDP_DTYPE_I32, CDP_REDUCE_SUM) == CDP_OK;
    for (uint64_t i = 0; right && i < count; ++i)
        right = x[i] == (int32_t)(n * (i % 1000) + n * (n - 1) / 2);
    free(x);
    return right;
}

static bool gathers(cdp_group *w, uint64_t count) {
    const uint32_t n = cdp_size(w), me = cdp_rank(w);
    uint32_t *x = (uint32_t *)malloc(2 * n * count * sizeof *x), *y = x + n * count;
    bool right = x != NULL;
    for (uint64_t i = 0; right && i < count; ++i)
        y[i] = me;
    right = right && cdp_allgather(w, y, x, count, CDP_DTYPE_U32) == CDP_OK;
    for (uint64_t i = 0; right && i < n * count; ++i)
        right = x[i] == i / count;
    right = right && cdp_alltoall(w, x, y, count, CDP_DTYPE_U32) == CDP_OK;
    for (uint64_t i = 0; right && i < n * count; ++i)
        right = y[i] == me;
    free(x);
    return right;
}

static bool rings(cdp_group *w, uint64_t count) {
    const uint32_t n = cdp_size(w), me = cdp_rank(w), to = (me + 1) % n, from = (me + n - 1) % n;
    uint32_t *x = (uint32_t *)malloc(2 * count * sizeof *x);
    bool right = x != NULL;
    for (uint64_t i = 0; right && i < count; ++i)
        x[i] = me + (uint32_t)i;
    if (n > 1)
        right = right
            && cdp_sendrecv(w, x, count, to, x + count, count, from, CDP_DTYPE_U32, 3) == CDP_OK;
    for (uint64_t i = 0; n > 1 && right && i < count; ++i)
        right = x[count + i] == from + (uint32_t)i;
    free(x);
    return right;
}

static bool trains(cdp_group *w) {
    float p[1000] = {0};
    const cdp_param param = {.name = "w", .data = p, .count = 1000};
    const cdp_ddp_desc d = {.group = w, .params = &param, .param_count = 1};
    cdp_ddp *ddp;
    bool right = true;
    if (cdp_ddp_create(&d, &ddp) != CDP_OK) return false;
    for (uint32_t step = 0; right && step < 5; ++step) {
        float *g = (float *)cdp_ddp_grad(ddp, 0);
        right = cdp_ddp_backward_begin(ddp) == CDP_OK;
        for (uint32_t i = 0; i < 1000; ++i)
            g[i] = (float)(i + 2 * cdp_rank(w));
        right = right && cdp_ddp_ready(ddp, 0) == CDP_OK && cdp_ddp_backward_end(ddp) == CDP_OK;
        for (uint32_t i = 0; right && i < 1000; ++i)
            right = g[i] == (float)(i + cdp_size(w) - 1);
    }
    cdp_ddp_destroy(ddp);
    return right;
}

/* Groups of the odd and the even ranks work at the same time. */
static bool halves(cdp_group *w) {
    cdp_group *half;
    bool right;
    if (cdp_group_split(w, cdp_rank(w) % 2, 0, &half) != CDP_OK) return false;
    right = sums(half, 100) && sums(half, 100000);
    cdp_group_destroy(half);
    return right;
}

/* The best time of three broadcasts of 16 segments; for `late_s` seconds rank 0 gets no buffer of
   them back. Negative: one has failed. */
static double broadcasts(cdp_group *w, double late_s) {
    enum {
        COUNT = 16 * CDP_MPI_SEGMENT
    };
    uint8_t *x = (uint8_t *)calloc(1, COUNT);
    bool right = x != NULL;
    double best = 1e9;
    for (uint32_t i = 0; right && i < 3; ++i) {
        double from;
        right = cdp_barrier(w) == CDP_OK;
        from = MPI_Wtime();
        if (my_rank == 0) memset(x, (int)i + 7, COUNT);
        if (my_rank == 0 && late_s > 0) incomplete_until = from + late_s;
        right = right && cdp_broadcast(w, x, COUNT, CDP_DTYPE_U8, 0) == CDP_OK;
        right = right && x[COUNT - 1] == i + 7;
        if (MPI_Wtime() - from < best) best = MPI_Wtime() - from;
    }
    free(x);
    return right ? best : -1;
}

/* MPI may have done with a buffer after the peer has acknowledged what was in it, and then no
   message wakes the sender: it looks itself, and does not sleep for the second that a wait may
   last. On a busy machine all broadcasts are slow. */
static bool late_sends(cdp_group *w) {
    const double plain = broadcasts(w, 0), late = broadcasts(w, 0.05);
    if (plain >= 0 && late >= 0 && late - plain < 0.8) return true;
    fprintf(
        stderr, "rank %d: %.3f s, and %.3f s with buffers that are late\n", my_rank, plain, late);
    return false;
}

static void everything(cdp_group *w) {
    static const uint64_t counts[] = {1, 1000, 16380, 16384, 1000000};
    char name[64];
    for (uint32_t i = 0; i < 5; ++i) {
        snprintf(name, sizeof name, "allreduce of %u", (unsigned)counts[i]);
        check(name, sums(w, counts[i]));
        snprintf(name, sizeof name, "allgather, alltoall of %u", (unsigned)counts[i]);
        check(name, gathers(w, counts[i]));
        snprintf(name, sizeof name, "messages of %u around the ring", (unsigned)counts[i]);
        check(name, rings(w, counts[i]));
    }
    check("ddp", trains(w));
    check("buffers that become free late", late_sends(w));
    check("two groups at a time", halves(w));
    check("all ranks end a barrier", cdp_barrier(w) == CDP_OK);
}

/* Rank 1 hangs: the others name it when their time is over. */
static void names_who_hangs(void) {
    const cdp_group_desc d = {.timeout_ms = 700, .no_thread = true};
    cdp_group *w;
    bool right;
    int x = 1;
    if (cdp_init_from_mpi(MPI_COMM_WORLD, &d, &w) != CDP_OK) {
        check("a group with a deadline", false);
        return;
    }
    check("before the deadline", sums(w, 10));
    right = true;
    if (my_rank != 1) {
        const cdp_status st = cdp_allreduce(w, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM);
        right = st == CDP_ERR_TIMEOUT && strstr(cdp_last_error()->text, "rank 1") != NULL;
    }
    check("who hangs is named", cdp_size(w) == 1 || right);
    cdp_group_destroy(w);
}

static void mistakes(int level) {
    const cdp_group_desc wrong = {.rank = 77}, threads = {.no_thread = false};
    cdp_transport t;
    cdp_group *w;
    check("no place for the result",
        cdp_init_from_mpi(MPI_COMM_WORLD, NULL, NULL) == CDP_ERR_INVALID
            && cdp_mpi_transport(MPI_COMM_WORLD, NULL, NULL) == CDP_ERR_INVALID);
    check("another rank in the desc",
        cdp_init_from_mpi(MPI_COMM_WORLD, &wrong, &w) == CDP_ERR_INVALID);
    if (level < MPI_THREAD_MULTIPLE)
        check("a thread that MPI forbids",
            cdp_init_from_mpi(MPI_COMM_WORLD, &threads, &w) == CDP_ERR_INVALID);
    check("a transport that no group gets", cdp_mpi_transport(MPI_COMM_WORLD, NULL, &t) == CDP_OK);
    t.destroy(t.self);
}

static void *no_memory(void *user, uint64_t bytes) {
    (void)user;
    (void)bytes;
    return NULL;
}

/* The last rank has no memory: all hear of it, and none waits for it inside MPI. */
static void one_without_memory(int n) {
    cdp_os os = *cdp_os_default();
    cdp_transport t;
    cdp_status st;
    char name[32];
    snprintf(name, sizeof name, "rank %d has no memory", n - 1);
    if (my_rank == n - 1) os.alloc = no_memory;
    st = cdp_mpi_transport(MPI_COMM_WORLD, &os, &t);
    check("a rank without memory is named by all",
        st == CDP_ERR_NOMEM && strstr(cdp_last_error()->text, name) != NULL);
    if (st == CDP_OK) t.destroy(t.self);
}

/* Rank 0 was compiled with other sizes than the others. */
static void other_sizes(void) {
    cdp_transport t;
    const cdp_status st = cdp_mpi_transport(MPI_COMM_WORLD, NULL, &t);
    check("sizes that differ are refused, naming two ranks",
        st == CDP_ERR_MISMATCH
            && strstr(cdp_last_error()->text, "CDP_MPI_SEGMENT is 4096 on rank 0")
            && strstr(cdp_last_error()->text, "65536 on rank 1"));
    if (st == CDP_OK) t.destroy(t.self);
}

/* cdp_tcp.h finds its ranks over MPI. */
static bool over_tcp(int n) {
    MPI_Comm comm = MPI_COMM_WORLD;
    const cdp_tcp_desc d = {.group = {.rank = (uint32_t)my_rank, .world_size = (uint32_t)n},
        .exchange = cdp_mpi_exchange,
        .exchange_user = &comm};
    cdp_group *w;
    bool right;
    if (cdp_init(&d, &w) != CDP_OK) return false;
    right = sums(w, 1000) && gathers(w, 1000);
    cdp_group_destroy(w);
    return right;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "thread";
    const bool poll = strcmp(how, "poll") == 0;
    cdp_group_desc d = {.no_thread = poll};
    cdp_group *w;
    int level = 0, n = 0;
    bool made;
    if (cdp_init_from_mpi(MPI_COMM_WORLD, NULL, &w) != CDP_ERR_INVALID) ++failed;
    MPI_Init_thread(&argc, &argv, poll ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (strcmp(how, "exchange") == 0) {
        check("cdp_tcp.h meets over MPI", over_tcp(n));
    } else if (strcmp(how, "sizes") == 0) {
        other_sizes();
    } else {
        mistakes(level);
        one_without_memory(n);
        made = cdp_init_from_mpi(MPI_COMM_WORLD, &d, &w) == CDP_OK;
        check("a group", made);
        if (made) everything(w);
        if (made) cdp_group_destroy(w);
        names_who_hangs();
    }
    MPI_Finalize();
    if (my_rank == 0) printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
