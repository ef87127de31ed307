/* mpi/streams.h - bytes as messages of MPI

   Knows: segments. Promises: at most CDP_MPI_WINDOW segments to a rank are unread, so there is a
   buffer for each that arrives. */
#ifndef CDP_SRC_MPI_STREAMS_H
#define CDP_SRC_MPI_STREAMS_H

#include "../base/config.h"
#include "config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "state.h"

/* Sends the segment in the next buffer, which cdp__mpi_room() has found free. < 0: lost. */
CDP__PRIVATE int cdp__mpi_put(cdp__mpi *m, uint32_t peer, uint32_t bytes) {
    cdp__mpi_peer *p = m->peers[peer];
    const uint32_t i = (uint32_t)(p->sent % CDP_MPI_WINDOW);
    cdp__mpi_segment *s = p->out[i];
    int rc;
    s->head.acknowledged = p->acked = p->read;
    s->head.bytes = bytes;
    s->head.leaving = 0;
    rc = MPI_Isend(s, (int)(CDP__MPI_HEAD + bytes), MPI_BYTE, (int)peer, CDP__MPI_TAG, m->comm,
        &p->sending[i]);
    if (rc != MPI_SUCCESS) return cdp__mpi_failed(rc, (int32_t)peer, "MPI_Isend");
    ++p->sent;
    return 1;
}

/* Checks whether MPI has sent what the next buffer holds: 1, 0, or < 0: lost. That can be later
   than the acknowledgement of the segment, and no message announces it. */
CDP__PRIVATE int cdp__mpi_buffer_sent(cdp__mpi *m, uint32_t peer) {
    cdp__mpi_peer *p = m->peers[peer];
    int done = 1;
    const int rc = MPI_Test(&p->sending[p->sent % CDP_MPI_WINDOW], &done, MPI_STATUS_IGNORE);
    if (rc != MPI_SUCCESS) return cdp__mpi_failed(rc, (int32_t)peer, "sending");
    if (p->full && done) --m->full;
    if (!p->full && !done) ++m->full;
    p->full = !done;
    return done;
}

/* Checks whether there is a buffer for one more segment: 1, 0, or < 0: lost. */
CDP__PRIVATE int cdp__mpi_room(cdp__mpi *m, uint32_t peer) {
    cdp__mpi_peer *p = m->peers[peer];
    const uint32_t i = (uint32_t)(p->sent % CDP_MPI_WINDOW);
    int done;
    if (p->sent - p->acknowledged >= CDP_MPI_WINDOW) return 0;
    done = cdp__mpi_buffer_sent(m, peer);
    if (done <= 0) return done;
    return cdp__mpi_place(m, &p->out[i]) ? 1 : cdp__fail_nomem("a segment", CDP_MPI_SEGMENT);
}

/* Acknowledges read segments, if that is due. Such a message needs no answer, and MPI sends 16
   bytes at once. */
CDP__PRIVATE int cdp__mpi_acknowledge(cdp__mpi *m, uint32_t peer, bool leaving) {
    cdp__mpi_peer *p = m->peers[peer];
    const cdp__mpi_head head = {p->read, 0, leaving ? 1u : 0u};
    int rc;
    if (p->left || (!leaving && p->read - p->acked < (CDP_MPI_WINDOW + 1) / 2)) return 0;
    rc = MPI_Send(&head, (int)sizeof head, MPI_BYTE, (int)peer, CDP__MPI_TAG, m->comm);
    if (rc != MPI_SUCCESS) return cdp__mpi_failed(rc, (int32_t)peer, "MPI_Send");
    p->acked = p->read;
    return 1;
}

/* Handles the head of a segment that has arrived. */
CDP__PRIVATE void cdp__mpi_read_head(cdp__mpi *m, cdp__mpi_peer *p, const cdp__mpi_head *h) {
    if (h->acknowledged > p->acknowledged) p->acknowledged = h->acknowledged;
    if (h->leaving) p->left = true;
    m->progressed = true;
}

/* Handles matched segments that have arrived, in their order. */
CDP__PRIVATE int cdp__mpi_arrive(cdp__mpi *m, uint32_t peer) {
    cdp__mpi_peer *p = m->peers[peer];
    for (; p->arrived < p->matched; ++p->arrived) {
        const uint32_t i = (uint32_t)(p->arrived % CDP_MPI_WINDOW);
        int here = 0;
        const int rc = MPI_Test(&p->arriving[i], &here, MPI_STATUS_IGNORE);
        if (rc != MPI_SUCCESS) return cdp__mpi_failed(rc, (int32_t)peer, "receiving");
        if (!here) break;
        --m->arriving;
        cdp__mpi_read_head(m, p, &p->in[i]->head);
    }
    return 0;
}

/* Begins to receive a message that MPI has matched. */
CDP__PRIVATE int cdp__mpi_match(cdp__mpi *m, MPI_Message *message, MPI_Status *status) {
    const uint32_t peer = (uint32_t)status->MPI_SOURCE;
    cdp__mpi_peer *p = cdp__mpi_peer_of(m, peer);
    cdp__mpi_head head;
    int bytes = 0, rc;
    MPI_Get_count(status, MPI_BYTE, &bytes);
    if (!p) return cdp__fail_nomem("the state of a peer", sizeof *p);
    if (bytes <= (int)CDP__MPI_HEAD) {
        rc = MPI_Mrecv(&head, (int)CDP__MPI_HEAD, MPI_BYTE, message, MPI_STATUS_IGNORE);
        if (rc == MPI_SUCCESS) cdp__mpi_read_head(m, p, &head);
    } else {
        const uint32_t i = (uint32_t)(p->matched % CDP_MPI_WINDOW);
        if (!cdp__mpi_place(m, &p->in[i])) return cdp__fail_nomem("a segment", CDP_MPI_SEGMENT);
        CDP_ASSERT(p->matched - p->read < CDP_MPI_WINDOW);
        rc = MPI_Imrecv(p->in[i], bytes, MPI_BYTE, message, &p->arriving[i]);
        if (rc == MPI_SUCCESS) {
            ++p->matched;
            ++m->arriving;
        }
    }
    return rc == MPI_SUCCESS ? 0 : cdp__mpi_failed(rc, (int32_t)peer, "MPI_Imrecv");
}

/* Looks after one rank's segments that were on their way when it looked last. */
CDP__PRIVATE int cdp__mpi_check(cdp__mpi *m, uint32_t peer) {
    cdp__mpi_peer *p = m->peers[peer];
    int rc;
    if (p->full) {
        rc = cdp__mpi_buffer_sent(m, peer);
        if (rc < 0) return rc;
        if (rc) m->progressed = true;
    }
    return p->arrived < p->matched ? cdp__mpi_arrive(m, peer) : 0;
}

/* Receives the messages of all ranks. Errors concern the whole job, since MPI does not name a
   rank. */
CDP__PRIVATE int cdp__mpi_look(cdp__mpi *m) {
    int found = 1, rc = 0;
    while (found && rc == 0) {
        MPI_Message message;
        MPI_Status status;
        rc = MPI_Improbe(MPI_ANY_SOURCE, CDP__MPI_TAG, m->comm, &found, &message, &status);
        if (rc != MPI_SUCCESS) return cdp__mpi_failed(rc, -1, "MPI_Improbe");
        if (found) rc = cdp__mpi_match(m, &message, &status);
    }
    for (uint32_t i = 0; (m->arriving || m->full) && i < m->size && rc == 0; ++i)
        if (m->peers[i]) rc = cdp__mpi_check(m, i);
    return rc;
}

#endif /* CDP_SRC_MPI_STREAMS_H */
