/* mpi/config.h - the MPI, and macros that a program may set */
#ifndef CDP_SRC_MPI_CONFIG_H
#define CDP_SRC_MPI_CONFIG_H

#include <mpi.h>

#ifndef CDP_MPI_SEGMENT
#define CDP_MPI_SEGMENT 65536
#endif
#ifndef CDP_MPI_WINDOW
#define CDP_MPI_WINDOW 4
#endif

#endif /* CDP_SRC_MPI_CONFIG_H */
