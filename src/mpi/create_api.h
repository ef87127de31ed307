/* mpi/create_api.h - a group over the network that an MPI drives */
#ifndef CDP_SRC_MPI_CREATE_API_H
#define CDP_SRC_MPI_CREATE_API_H

#include "../base/config.h"
#include "config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"

/* The group of the ranks of `comm`, with rank and size as there. `desc` (NULL: all defaults) says
   everything else; rank and world_size must be 0 or what `comm` says, hub and transport NULL.
   Collective over `comm`, which is duplicated and stays the caller's; all ranks end the group
   before MPI_Finalize. Errors: INVALID (MPI is not initialized, or has been finalized; an
   intercommunicator; a progress thread without MPI_THREAD_MULTIPLE), IO (what MPI said), and on
   all ranks alike NOMEM (the text names the rank that lacks memory) and MISMATCH (see
   CONFIGURATION). */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_from_mpi(
    MPI_Comm comm, const cdp_group_desc *desc, cdp_group **out);

/* A transport over `comm`, for a cdp_group_desc of your own; `os` NULL: the default one. The group
   that gets it destroys it. Collective. Errors: those of cdp_init_from_mpi(), but it accepts
   any thread level of MPI. */
CDP_MUST_CHECK CDP_API cdp_status cdp_mpi_transport(
    MPI_Comm comm, const cdp_os *os, cdp_transport *out);

/* For cdp_tcp_desc: .exchange = cdp_mpi_exchange, .exchange_user = &comm (a MPI_Comm, which stays
   until cdp_init() has returned). 0: done. */
CDP_API int cdp_mpi_exchange(void *comm, void *bytes, uint64_t count);

#endif /* CDP_SRC_MPI_CREATE_API_H */
