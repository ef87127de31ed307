/* The measurements of collectives.c for MPI: one source, compiled with mpicc.openmpi and with
   mpicc.mpich. Started by
   mpirun with the options of collectives.c; --meet is required, since the ranks are not children of
   one program.
   MEASURE_LIB and MEASURE_TRANSPORT in the environment are the first two columns. */
#include <mpi.h>

#include "../measure.h"

static bool call(m_case *c) {
    const int n = (int)c->count;
    switch (c->op) {
    case M_ALLREDUCE: MPI_Allreduce(c->in, c->out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case M_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(c->in, c->out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case M_ALLGATHER:
        MPI_Allgather(c->in, n, MPI_FLOAT, c->out, n, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case M_BROADCAST: MPI_Bcast(c->out, n, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case M_ALLTOALL: MPI_Alltoall(c->in, n, MPI_FLOAT, c->out, n, MPI_FLOAT, MPI_COMM_WORLD); break;
    case M_BARRIER: MPI_Barrier(MPI_COMM_WORLD); break;
    default:
        if (c->rank == 0) MPI_Send(c->in, n, MPI_FLOAT, 1, 7, MPI_COMM_WORLD);
        MPI_Recv(c->out, n, MPI_FLOAT, (int)(1 - c->rank), 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (c->rank == 1) MPI_Send(c->out, n, MPI_FLOAT, 0, 7, MPI_COMM_WORLD);
        break;
    }
    return false;
}

int main(int argc, char **argv) {
    static const bool has[M_OPS] = {true, true, true, true, true, true, true};
    const char *lib = getenv("MEASURE_LIB"), *transport = getenv("MEASURE_TRANSPORT");
    int rank, size, status;
    bool right;
    MPI_Init(&argc, &argv);
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
    right = m_run(lib ? lib : "mpi", transport ? transport : "-", has, call);
    MPI_Finalize();
    return right ? 0 : 1;
}
