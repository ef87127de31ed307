/* mpi/cxx_api.h - descs by reference in C++ */
#ifndef CDP_SRC_MPI_CXX_API_H
#define CDP_SRC_MPI_CXX_API_H

#include "../base/config.h"
#include "config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "create_api.h"

#ifdef __cplusplus
inline cdp_status cdp_init_from_mpi(MPI_Comm comm, const cdp_group_desc &desc, cdp_group **out) {
    return cdp_init_from_mpi(comm, &desc, out);
}
#endif

#endif /* CDP_SRC_MPI_CXX_API_H */
