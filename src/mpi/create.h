/* mpi/create.h - makes a transport, and a group

   Knows: communicators. Promises: the calls above. */
#ifndef CDP_SRC_MPI_CREATE_H
#define CDP_SRC_MPI_CREATE_H

#include "../base/config.h"
#include "config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../group/state.h"
#include "create_api.h"
#include "state.h"
#include "transport.h"

CDP__PRIVATE cdp_status cdp__mpi_ready(void) {
    int begun = 0, over = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&over);
    if (!begun) return cdp__fail(CDP_ERR_INVALID, "MPI is not initialized: call MPI_Init_thread");
    return over ? cdp__fail(CDP_ERR_INVALID, "MPI has been finalized") : CDP_OK;
}

/* Hosts are numbered in the order of their first ranks. */
CDP__PRIVATE int cdp__mpi_hosts(cdp__mpi *m) {
    MPI_Comm here;
    uint32_t leader = m->rank, count = 0;
    int rc = MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    if (rc == MPI_SUCCESS) {
        rc = MPI_Bcast(&leader, 1, MPI_UINT32_T, 0, here);
        MPI_Comm_free(&here);
    }
    if (rc == MPI_SUCCESS)
        rc = MPI_Allgather(&leader, 1, MPI_UINT32_T, m->hosts, 1, MPI_UINT32_T, m->comm);
    for (uint32_t i = 0; rc == MPI_SUCCESS && i < m->size; ++i)
        m->hosts[i] = m->hosts[i] == i ? count++ : m->hosts[m->hosts[i]];
    return rc;
}

/* The least value of all ranks, and whose it is: what MPI calls MPI_2INT. */
typedef struct cdp__mpi_least {
    int value, rank;
} cdp__mpi_least;

/* `ends`: the least and the negated greatest value of a macro. */
CDP__PRIVATE cdp_status cdp__mpi_equal(const char *name, const cdp__mpi_least *ends) {
    if (ends[0].value == -ends[1].value) return CDP_OK;
    return cdp__fail(CDP_ERR_MISMATCH,
        "%s is %d on rank %d and %d on rank %d: compile all ranks with the same value", name,
        ends[0].value, ends[0].rank, -ends[1].value, ends[1].rank);
}

/* Fails on all ranks if one of them lacks memory, or was compiled with other sizes: a rank that
   returned alone would leave the others in MPI, which has no deadlines. */
CDP__PRIVATE cdp_status cdp__mpi_agree(const cdp__mpi *m, bool ready) {
    const int mine[5] = {ready, CDP_MPI_SEGMENT, -CDP_MPI_SEGMENT, CDP_MPI_WINDOW, -CDP_MPI_WINDOW};
    cdp__mpi_least own[5], least[5];
    cdp_status st;
    int rc;
    for (int i = 0; i < 5; ++i) {
        own[i].value = mine[i];
        own[i].rank = (int)m->rank;
    }
    rc = MPI_Allreduce(own, least, 5, MPI_2INT, MPI_MINLOC, m->comm);
    if (rc != MPI_SUCCESS) return cdp__mpi_failed(rc, -1, "MPI_Allreduce");
    if (!least[0].value)
        return cdp__fail(
            CDP_ERR_NOMEM, "rank %d has no memory for a transport over MPI", least[0].rank);
    st = cdp__mpi_equal("CDP_MPI_SEGMENT", least + 1);
    return st == CDP_OK ? cdp__mpi_equal("CDP_MPI_WINDOW", least + 3) : st;
}

/* False: out of memory. */
CDP__PRIVATE bool cdp__mpi_room_for_all(cdp__mpi *m) {
    m->peers = (cdp__mpi_peer **)cdp__alloc_zero(m->os, m->size * sizeof *m->peers);
    m->hosts = (uint32_t *)cdp__alloc_zero(m->os, m->size * sizeof *m->hosts);
    if (!m->peers || !m->hosts) return false;
    if (!m->os->threads.cond_create) return true;
    m->mutex = m->os->threads.mutex_create(m->os);
    m->cond = m->os->threads.cond_create(m->os);
    return m->mutex && m->cond;
}

/* `ready`: there is memory for *m itself. */
CDP__PRIVATE cdp_status cdp__mpi_open(cdp__mpi *m, MPI_Comm comm, bool ready) {
    int between = 0, n = 0, rc = MPI_Comm_test_inter(comm, &between);
    cdp_status st;
    if (between) return cdp__fail(CDP_ERR_INVALID, "an intercommunicator has two groups of ranks");
    if (rc == MPI_SUCCESS) rc = MPI_Comm_dup(comm, &m->comm);
    if (rc != MPI_SUCCESS) return cdp__mpi_failed(rc, -1, "MPI_Comm_dup");
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(m->comm, &n);
    m->rank = (uint32_t)n;
    MPI_Comm_size(m->comm, &n);
    m->size = (uint32_t)n;
    st = cdp__mpi_agree(m, ready && cdp__mpi_room_for_all(m));
    if (st != CDP_OK) return st;
    rc = cdp__mpi_hosts(m);
    return rc == MPI_SUCCESS ? CDP_OK : cdp__mpi_failed(rc, -1, "MPI_Comm_split_type");
}

CDP_API cdp_status cdp_mpi_transport(MPI_Comm comm, const cdp_os *os, cdp_transport *out) {
    cdp_status st;
    cdp__mpi m, *kept;
    if (!out) return cdp__missing("cdp_mpi_transport", "out");
    memset(out, 0, sizeof *out);
    if (cdp__os_whole(os, "cdp_mpi_transport") != CDP_OK) return CDP_ERR_INVALID;
    st = cdp__mpi_ready();
    if (st != CDP_OK) return st;
    memset(&m, 0, sizeof m);
    m.os = os ? os : cdp_os_default();
    m.comm = MPI_COMM_NULL;
    kept = (cdp__mpi *)cdp__alloc(m.os, sizeof *kept);
    st = cdp__mpi_open(&m, comm, kept != NULL);
    if (st != CDP_OK) {
        if (m.comm != MPI_COMM_NULL) MPI_Comm_free(&m.comm);
        cdp__mpi_free(&m);
        cdp__free(m.os, kept);
        return st;
    }
    *kept = m;
    out->self = kept;
    out->send = cdp__mpi_send;
    out->recv = cdp__mpi_recv;
    out->wait = cdp__mpi_wait;
    out->wake = cdp__mpi_wake;
    out->name = "mpi";
    out->destroy = cdp__mpi_destroy;
    out->topology.host = cdp__mpi_host;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mpi_desc_check(const cdp_group_desc *d, uint32_t rank, uint32_t size) {
    int level = 0;
    MPI_Query_thread(&level);
    if (d->hub || d->transport)
        return cdp__fail(CDP_ERR_INVALID, "cdp_init_from_mpi makes the transport itself");
    if ((d->rank && d->rank != rank) || (d->world_size && d->world_size != size))
        return cdp__fail(CDP_ERR_INVALID, "the communicator says rank %u of %u, the desc %u of %u",
            rank, size, d->rank, d->world_size);
    if (!d->no_thread && level < MPI_THREAD_MULTIPLE)
        return cdp__fail(CDP_ERR_INVALID,
            "a progress thread needs MPI_Init_thread with MPI_THREAD_MULTIPLE, which this MPI did "
            "not grant; or set no_thread");
    return CDP_OK;
}

CDP_API cdp_status cdp_init_from_mpi(MPI_Comm comm, const cdp_group_desc *desc, cdp_group **out) {
    cdp_group_desc d;
    cdp_transport t;
    int rank = 0, size = 0;
    cdp_status st = cdp__mpi_ready();
    if (out) *out = NULL;
    if (!out) return cdp__missing("cdp_init_from_mpi", "out");
    if (st != CDP_OK) return st;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &size) != MPI_SUCCESS)
        return cdp__fail(CDP_ERR_INVALID, "cdp_init_from_mpi needs a communicator");
    st = cdp__mpi_desc_check(&d, (uint32_t)rank, (uint32_t)size);
    if (st == CDP_OK) st = cdp_mpi_transport(comm, d.os, &t);
    if (st != CDP_OK) return st;
    d.rank = (uint32_t)rank;
    d.world_size = (uint32_t)size;
    d.transport = &t;
    return cdp_group_create(&d, out);
}

CDP_API int cdp_mpi_exchange(void *comm, void *bytes, uint64_t count) {
    enum {
        PART = 1 << 20 /* MPI counts with an int */
    };
    uint8_t *at = (uint8_t *)bytes;
    for (; count; at += PART) {
        const int n = (int)cdp__min(count, (uint64_t)PART);
        if (MPI_Bcast(at, n, MPI_BYTE, 0, *(MPI_Comm *)comm) != MPI_SUCCESS) return -1;
        count -= (uint64_t)n;
    }
    return 0;
}

#endif /* CDP_SRC_MPI_CREATE_H */
