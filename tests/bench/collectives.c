/* Measures the collectives of cdp between processes of this machine: one line for each op and size.
   The program forks its ranks. Over memory that they share, as they do by themselves; likewise,
   with buffers of cdp_group_alloc() (segments); or over TCP on 127.0.0.1.

   collectives [--transport memory|tcp|segments] [--op LIST] [--size LIST] [--ranks N]
               [--seconds S] [--iterations N] ...        (--help says it all)

   gcc -O2 -I. tests/bench/collectives.c -o collectives -pthread -lm

   Compiled with mpicc and -DOVER_MPI it measures cdp_mpi.h, is started by mpirun, and needs --meet,
   as peers/mpi.c does. */
#define _GNU_SOURCE /* measure.h binds ranks to cores */
#define CDP_IMPLEMENTATION
#ifdef OVER_MPI
#include "cdp_mpi.h"
#else
#include "cdp_tcp.h"
#endif

#include "measure.h"

static cdp_group *group;

static bool call(m_case *c) {
    cdp_status st = CDP_OK;
    switch (c->op) {
    case M_ALLREDUCE:
        st = cdp_allreduce(group, c->in, c->out, c->count, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        break;
    case M_REDUCE_SCATTER:
        st = cdp_reduce_scatter(group, c->in, c->out, c->count, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        break;
    case M_ALLGATHER: st = cdp_allgather(group, c->in, c->out, c->count, CDP_DTYPE_F32); break;
    case M_BROADCAST: st = cdp_broadcast(group, c->out, c->count, CDP_DTYPE_F32, 0); break;
    case M_ALLTOALL: st = cdp_alltoall(group, c->in, c->out, c->count, CDP_DTYPE_F32); break;
    case M_BARRIER: st = cdp_barrier(group); break;
    default: /* there and back */
        if (c->rank == 0) st = cdp_send(group, c->in, c->count, CDP_DTYPE_F32, 1, 7);
        if (st == CDP_OK) st = cdp_recv(group, c->out, c->count, CDP_DTYPE_F32, 1 - c->rank, 7);
        if (st == CDP_OK && c->rank == 1)
            st = cdp_send(group, c->out, c->count, CDP_DTYPE_F32, 0, 7);
        break;
    }
    if (st == CDP_OK) return false;
    cdp_print_error(stderr);
    errno = 0;
    m_die("cdp failed");
    return false;
}

static const bool has[M_OPS] = {true, true, true, true, true, true, true};

#ifdef OVER_MPI

int main(int argc, char **argv) {
    const char *transport = getenv("MEASURE_TRANSPORT");
    cdp_group_desc d;
    int provided, rank, size, status;
    bool right;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    status = m_parse(argc, argv);
    if (status < 0 && (!m_opt.meet || (uint32_t)size != m_opt.ranks))
        status = m_usage(argv[0], stderr, 2);
    if (status >= 0) {
        MPI_Finalize();
        return status;
    }
    m_rank = (uint32_t)rank;
    m_open();
    memset(&d, 0, sizeof d);
    d.timeout_ms = 60000;
    if (cdp_init_from_mpi(MPI_COMM_WORLD, &d, &group) != CDP_OK) return cdp_print_error(stderr);
    right = m_run("cdp", transport ? transport : "mpi", has, call);
    cdp_group_destroy(group);
    MPI_Finalize();
    return right ? 0 : 1;
}

#else

static uint16_t port;
static const char *transport = "memory";
static const char *expose = "0"; /* --expose BYTES: as in the desc */

static void *group_memory(uint64_t bytes) {
    void *p;
    return cdp_group_alloc(group, bytes, &p) == CDP_OK ? p : NULL;
}

static int rank_main(uint32_t rank) {
    cdp_tcp_desc d;
    bool right;
    memset(&d, 0, sizeof d);
    d.group.rank = rank;
    d.group.world_size = m_opt.ranks;
    d.master_port = port;
    d.init_timeout_ms = d.group.timeout_ms = 60000;
    d.no_shared_memory = strcmp(transport, "tcp") == 0;
    d.group.expose_bytes = m_size_of(expose);
    if (cdp_init(&d, &group) != CDP_OK) return cdp_print_error(stderr);
    if (strcmp(transport, "segments") == 0) m_alloc = group_memory;
    right = m_run("cdp", transport, has, call);
    cdp_group_destroy(group);
    return right ? 0 : 1;
}

static uint16_t free_port(void) {
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || getsockname(fd, (struct sockaddr *)&a, &len))
        m_die("no free port");
    close(fd);
    return ntohs(a.sin_port);
}

int main(int argc, char **argv) {
    int status;
    while (argc > 2 && (strcmp(argv[1], "--transport") == 0 || strcmp(argv[1], "--expose") == 0)) {
        *(argv[1][2] == 't' ? &transport : &expose) = argv[2];
        argv[2] = argv[0];
        argc -= 2;
        argv += 2;
    }
    if (strcmp(transport, "memory") != 0 && strcmp(transport, "segments") != 0
        && strcmp(transport, "tcp") != 0)
        argc = 0;
    status = argc
        ? m_parse(argc, argv)
        : m_usage("collectives [--transport memory|segments|tcp] [--expose BYTES]", stderr, 2);
    if (status >= 0) return status;
    m_open();
    port = free_port();
    return m_fork(rank_main);
}

#endif
