/* mpi/state.h - what a rank keeps for each other rank

   Knows: MPI's requests. Promises: the state that a rank keeps for each other rank; no
   communication. */
#ifndef CDP_SRC_MPI_STATE_H
#define CDP_SRC_MPI_STATE_H

#include "../base/config.h"
#include "config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"

/* A message of MPI. Without bytes, it only acknowledges segments of the other direction. */
typedef struct cdp__mpi_head {
    uint64_t acknowledged; /* number of segments of the other direction that were read */
    uint32_t bytes;
    uint32_t leaving; /* the last message */
} cdp__mpi_head;

typedef struct cdp__mpi_segment {
    cdp__mpi_head head;
    uint8_t data[CDP_MPI_SEGMENT];
} cdp__mpi_segment;

#define CDP__MPI_HEAD ((uint32_t)sizeof(cdp__mpi_head))
#define CDP__MPI_TAG 0
#define CDP__MPI_MS 1000000ull
/* A wait first yields for longer than the shortest nap lasts (0.1 ms): otherwise two ranks that
   answer each other nap in turn, which took four times as long (16 MiB, 2 ranks). */
#define CDP__MPI_YIELDS_NS 250000ull

/* Segments are counted from 0; segment i uses buffer i % CDP_MPI_WINDOW. */
typedef struct cdp__mpi_peer {
    cdp__mpi_segment *out[CDP_MPI_WINDOW], *in[CDP_MPI_WINDOW];
    MPI_Request sending[CDP_MPI_WINDOW], arriving[CDP_MPI_WINDOW];
    uint64_t sent, acknowledged;     /* outgoing */
    uint64_t matched, arrived, read; /* incoming */
    uint64_t acked;                  /* value of `read` last sent to the peer */
    uint32_t at;                     /* bytes read of segment `read` */
    bool left;                       /* the peer sends nothing more */
    bool full;                       /* the last send() found no buffer that MPI had done with */
} cdp__mpi_peer;

typedef struct cdp__mpi {
    const cdp_os *os;
    MPI_Comm comm;
    uint32_t rank, size;
    cdp__mpi_peer **peers; /* NULL: no message yet */
    uint32_t *hosts;
    uint64_t arriving; /* segments of all ranks that are matched but have not arrived */
    uint32_t full;     /* number of peers of which `full` is true */
    bool progressed;   /* since the last wait(), a message arrived or a buffer became free */
    /* guarded by `mutex` */
    void *mutex, *cond;
    bool woken;
} cdp__mpi;

CDP__PRIVATE cdp_status cdp__mpi_failed(int code, int32_t peer, const char *what) {
    char text[MPI_MAX_ERROR_STRING + 1];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
    text[length] = 0;
    return cdp__fail_peer(
        peer < 0 ? CDP_ERR_IO : CDP_ERR_PEER_LOST, peer, 0, "%s failed: %s", what, text);
}

CDP__PRIVATE cdp__mpi_peer *cdp__mpi_peer_of(cdp__mpi *m, uint32_t peer) {
    cdp__mpi_peer *p = m->peers[peer];
    if (p) return p;
    p = (cdp__mpi_peer *)cdp__alloc_zero(m->os, sizeof *p);
    if (!p) return NULL;
    for (uint32_t i = 0; i < CDP_MPI_WINDOW; ++i)
        p->sending[i] = p->arriving[i] = MPI_REQUEST_NULL;
    m->peers[peer] = p;
    return p;
}

CDP__PRIVATE cdp__mpi_segment *cdp__mpi_place(cdp__mpi *m, cdp__mpi_segment **at) {
    if (!*at) *at = (cdp__mpi_segment *)cdp__alloc(m->os, sizeof **at);
    return *at;
}

#endif /* CDP_SRC_MPI_STATE_H */
