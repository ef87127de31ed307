/* Redistributions of doubles with ScaLAPACK's pdgemr2d, one block for each process, for dtensor.sh;
   2 or 4 ranks. A line for each pair and size: PAIR BYTES LEAST_US MEDIAN_US. The matrix is stored
   by columns, so rows cut among the ranks (S0) are what cdp calls S1, and the other way round: both
   exchange parts of the same shape.

   mpicc -O2 scalapack.c -o scalapack -lscalapack-openmpi; mpirun -n 4 ./scalapack --seconds 0.2 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

extern void Cblacs_get(int context, int what, int *value);
extern void Cblacs_gridinit(int *context, char *order, int rows, int columns);
extern void Cblacs_gridinfo(int context, int *rows, int *columns, int *row, int *column);
extern void Cpdgemr2d(int m, int n, double *a, int ia, int ja, int *da, double *b, int ib, int jb,
    int *db, int context);
extern int numroc_(int *n, int *nb, int *me, int *source, int *ranks);
extern void descinit_(
    int *d, int *m, int *n, int *mb, int *nb, int *rs, int *cs, int *context, int *ld, int *info);

enum {
    MOST = 2000
};
static double seconds = 0.2;
static int size, rank;

typedef struct matrix {
    int desc[9], context, rows, columns;
    double *data;
} matrix;

static matrix make(int n, int grid_rows, int grid_columns) {
    matrix m;
    int row, column, a, b, zero = 0, info, mb = (n + grid_rows - 1) / grid_rows,
                           nb = (n + grid_columns - 1) / grid_columns;
    Cblacs_get(-1, 0, &m.context);
    Cblacs_gridinit(&m.context, "Row", grid_rows, grid_columns);
    Cblacs_gridinfo(m.context, &a, &b, &row, &column);
    m.rows = numroc_(&n, &mb, &row, &zero, &a);
    m.columns = numroc_(&n, &nb, &column, &zero, &b);
    int ld = m.rows > 0 ? m.rows : 1;
    descinit_(m.desc, &n, &n, &mb, &nb, &zero, &zero, &m.context, &ld, &info);
    m.data = malloc(((size_t)m.rows * (size_t)m.columns + 1) * sizeof(double));
    for (int i = 0; i < m.rows * m.columns; ++i)
        m.data[i] = i;
    return m;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(const char *pair, int n, int ar, int ac, int br, int bc) {
    static double us[MOST];
    matrix a = make(n, ar, ac), b = make(n, br, bc);
    int count = 0, more = 1;
    for (int i = 0; i < 3; ++i)
        Cpdgemr2d(n, n, a.data, 1, 1, a.desc, b.data, 1, 1, b.desc, a.context);
    const double end = MPI_Wtime() + seconds;
    while (more && count + 10 < MOST) {
        for (int i = 0; i < (n > 700 ? 1 : 10); ++i) {
            MPI_Barrier(MPI_COMM_WORLD);
            const double start = MPI_Wtime();
            Cpdgemr2d(n, n, a.data, 1, 1, a.desc, b.data, 1, 1, b.desc, a.context);
            us[count++] = (MPI_Wtime() - start) * 1e6;
        }
        more = MPI_Wtime() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    qsort(us, (size_t)count, sizeof *us, by_size);
    if (!rank) printf("%s %lld %.1f %.1f\n", pair, 8LL * n * n, us[0], us[count / 2]);
    free(a.data);
    free(b.data);
}

int main(int argc, char **argv) {
    static const int sides[4] = {24, 88, 360, 1448}; /* about 4 KiB to 16 MiB */
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc > 2) seconds = atof(argv[2]);
    for (int s = 0; s < 4; ++s) {
        measure("S0->S1", sides[s], size, 1, 1, size);
        if (size == 4) measure("S0,S1->S0,S0", sides[s], 2, 2, 4, 1);
    }
    MPI_Finalize();
    return 0;
}
