/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
/*  cdp_mpi.h - process groups over any MPI - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        A group of cdp.h whose bytes travel as messages of MPI, so that a program on InfiniBand,
        Slingshot or Omni-Path uses the network that its MPI already drives. What the group can do
        is what every group can do: collectives, messages, channels, DDP. And the other way round:
        an exchange function with which cdp_tcp.h finds its ranks over MPI, and then talks TCP and
        shared memory itself.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_mpi.h"            which brings cdp.h and mpi.h along

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_mpi.h"
        #include <stdio.h>
        int main(int argc, char **argv) {
            int provided;
            float sum = 1;
            cdp_group *world;
            MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
            if (cdp_init_from_mpi(MPI_COMM_WORLD, NULL, &world) != CDP_OK)
                return cdp_print_error(stderr);
            if (cdp_allreduce(world, NULL, &sum, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM) != CDP_OK)
                return cdp_print_error(stderr);
            printf("rank %u of %u: %g\n", cdp_rank(world), cdp_size(world), sum);
            cdp_group_destroy(world);   // before MPI_Finalize
            MPI_Finalize();
            return 0;
        }
        mpicc -O2 ones.c -o ones -pthread && mpirun -n 4 ./ones

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_mpi.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                           call
        let MPI carry everything               cdp_init_from_mpi
        set options of the group myself        cdp_mpi_transport, then cdp_group_create
        find the ranks over MPI, and use       cdp_mpi_exchange as .exchange of a cdp_tcp_desc
        TCP and shared memory of cdp_tcp.h

    WHICH OF THE TWO
        On one machine and over Ethernet take cdp_tcp.h: ranks of one machine read each other's
        memory, a rank sleeps where nothing comes, and a process that ends is noticed at once.
        cdp_mpi.h is for networks that TCP does not use well. Side by side on your machine:
        make bench-peers PEERS="--only cdp,cdp-memory,openmpi,cdp-openmpi --lines FILE".

    THREADS
        With a progress thread (the default) MPI must have been initialized with
        MPI_THREAD_MULTIPLE; otherwise set group.no_thread, and operations advance in waits and in
        cdp_poll(). Without a thread any level will do, as long as the calls of this library come
        from threads that may call MPI.

    FAILURES
        MPI says nothing of a process that has ended; most launchers then end the job. Where they
        do not, the others notice by their deadlines, and the rank that hangs is named.
        cdp_group_destroy() says goodbye to the ranks that this one talked to, and waits up to 1 s
        until they have what was sent. What has not left by then stays with MPI: its memory and the
        communicator are not released.

    MEMORY
        Up to 2 * CDP_MPI_WINDOW * CDP_MPI_SEGMENT bytes for each rank that this one talks to
        (512 KiB), from the os of the group, when they are first needed.

    CONFIGURATION
        CDP_MPI_SEGMENT   65536   largest message of MPI, in bytes
        CDP_MPI_WINDOW    4       such messages to one rank that it has not yet read
        Both are equal on all ranks: if they are not, no rank gets a group.

    LIMITS
        An idle rank looks for messages once in a millisecond, since MPI has no way to wake a
        thread that sleeps. All ranks are of one byte order.

    WALKS
        bytes to MPI: cdp__mpi_send, cdp__mpi_put, MPI_Isend
        MPI to bytes: cdp__mpi_wait, cdp__mpi_look, cdp__mpi_match, cdp__mpi_arrive; cdp__mpi_recv

    LICENSE
        MIT-0 or Unlicense, as you like; both are at the end of cdp.h.
*/

/* Joined from src/cdp_mpi.h and what it includes: change that, then `make headers`. */
#ifndef CDP_MPI_INCLUDED
#define CDP_MPI_INCLUDED

#if !defined(CDP_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_MPI_IMPLEMENTATION)
#include "cdp.h"
#endif

#define CDP_MPI_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_MPI_VERSION != CDP_VERSION
#error "cdp_mpi.h and cdp.h are of different versions: copy both from one release"
#endif

#ifdef __has_include
#if !__has_include(<mpi.h>)
#error "cdp_mpi.h needs an MPI: compile with mpicc, or name the folder of its mpi.h with -I"
#define CDP__NO_MPI /* that one error is enough */
#endif
#endif
#ifndef CDP__NO_MPI
/* ---- >>mpi/config: the MPI, and macros that a program may set -------------------------------- */

#include <mpi.h>

#ifndef CDP_MPI_SEGMENT
#define CDP_MPI_SEGMENT 65536
#endif
#ifndef CDP_MPI_WINDOW
#define CDP_MPI_WINDOW 4
#endif

#ifdef __cplusplus
extern "C" {
#endif
/* ---- >>mpi/create_api: a group over the network that an MPI drives --------------------------- */

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

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>mpi/cxx_api: descs by reference in C++ ------------------------------------------------ */

#ifdef __cplusplus
inline cdp_status cdp_init_from_mpi(MPI_Comm comm, const cdp_group_desc &desc, cdp_group **out) {
    return cdp_init_from_mpi(comm, &desc, out);
}
#endif

#endif /* CDP__NO_MPI */
#endif /* CDP_MPI_INCLUDED */

#if defined(CDP_IMPLEMENTATION) && !defined(CDP_MPI_IMPL_INCLUDED) && !defined(CDP__NO_MPI)
#define CDP_MPI_IMPL_INCLUDED

/* ---- >>mpi/state: what a rank keeps for each other rank -------------------------------------- */

/* Knows: MPI's requests. Promises: the state that a rank keeps for each other rank; no
   communication. */

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

/* ---- >>mpi/streams: bytes as messages of MPI ------------------------------------------------- */

/* Knows: segments. Promises: at most CDP_MPI_WINDOW segments to a rank are unread, so there is a
   buffer for each that arrives. */

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

/* ---- >>mpi/transport: MPI as a cdp_transport ------------------------------------------------- */

/* Knows: cdp_transport. Promises: its five required functions, and the hosts of ranks. */

CDP__PRIVATE int64_t cdp__mpi_send(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    cdp__mpi *m = (cdp__mpi *)self;
    cdp__mpi_peer *p = cdp__mpi_peer_of(m, peer);
    int64_t taken = 0;
    uint64_t at = 0; /* in iov[0] */
    if (!p) return cdp__fail_nomem("the state of a peer", sizeof *p);
    if (p->left) return cdp__fail_peer(CDP_ERR_PEER_LOST, peer, 0, "rank %u has left", peer);
    while (n) {
        cdp__mpi_segment *s;
        uint32_t bytes = 0;
        int r = cdp__mpi_room(m, peer);
        if (r <= 0) return r < 0 && !taken ? r : taken;
        s = p->out[p->sent % CDP_MPI_WINDOW];
        for (; n && bytes < CDP_MPI_SEGMENT; at = 0, ++iov, --n) {
            const uint64_t part = cdp__min(iov->bytes - at, (uint64_t)CDP_MPI_SEGMENT - bytes);
            memcpy(s->data + bytes, (const uint8_t *)iov->data + at, (size_t)part);
            bytes += (uint32_t)part;
            at += part;
            if (at < iov->bytes) break;
        }
        if (!bytes) return taken;
        r = cdp__mpi_put(m, peer, bytes);
        if (r < 0) return taken ? taken : r;
        taken += bytes;
    }
    return taken;
}

/* Copies from the segment being read, up to its end. */
CDP__PRIVATE uint64_t cdp__mpi_copy(cdp__mpi_peer *p, uint8_t *to, uint64_t room) {
    const cdp__mpi_segment *s = p->in[p->read % CDP_MPI_WINDOW];
    const uint64_t bytes = cdp__min(room, s->head.bytes - p->at);
    memcpy(to, s->data + p->at, (size_t)bytes);
    p->at += (uint32_t)bytes;
    if (p->at == s->head.bytes) {
        ++p->read;
        p->at = 0;
    }
    return bytes;
}

CDP__PRIVATE int64_t cdp__mpi_recv(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n) {
    cdp__mpi *m = (cdp__mpi *)self;
    cdp__mpi_peer *p = m->peers[peer];
    int64_t got = 0;
    int r;
    if (!p || p->read == p->arrived) {
        r = cdp__mpi_look(m);
        if (r < 0) return r;
        p = m->peers[peer];
    }
    if (!p) return 0;
    for (uint32_t i = 0; i < n; ++i)
        for (uint64_t at = 0; at < iov[i].bytes && p->read < p->arrived;) {
            const uint64_t bytes = cdp__mpi_copy(p, (uint8_t *)iov[i].data + at, iov[i].bytes - at);
            at += bytes;
            got += (int64_t)bytes;
        }
    r = cdp__mpi_acknowledge(m, peer, false);
    if (r < 0 && !got) return r;
    if (!got && p->left && p->read == p->matched)
        return cdp__fail_peer(CDP_ERR_PEER_LOST, peer, 0, "rank %u has left", peer);
    return got;
}

/* Sleeps for at most `ns`, or until wake(). */
CDP__PRIVATE void cdp__mpi_nap(cdp__mpi *m, uint64_t ns) {
    const cdp_os *os = m->os;
    const uint64_t until = os->now_ns(os->user) + ns;
    if (!m->cond) {
        cdp__sleep_until(os, until);
        return;
    }
    os->threads.mutex_lock(os->user, m->mutex);
    if (!m->woken) os->threads.cond_wait(os->user, m->cond, m->mutex, until);
    os->threads.mutex_unlock(os->user, m->mutex);
}

CDP__PRIVATE bool cdp__mpi_woken(cdp__mpi *m) {
    const cdp_os *os = m->os;
    bool woken;
    if (m->cond) os->threads.mutex_lock(os->user, m->mutex);
    woken = m->woken;
    m->woken = false;
    if (m->cond) os->threads.mutex_unlock(os->user, m->mutex);
    return woken;
}

/* MPI cannot wake a thread, so this polls, with pauses that are a small part of the time waited
   so far. */
CDP__PRIVATE cdp_status cdp__mpi_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    cdp__mpi *m = (cdp__mpi *)self;
    const cdp_os *os = m->os;
    const uint64_t from = os->now_ns(os->user);
    for (;;) {
        const int r = cdp__mpi_look(m);
        const bool progressed = m->progressed;
        uint64_t now;
        m->progressed = false;
        if (r < 0) return (cdp_status)r;
        if (cdp__mpi_woken(m) || progressed) return CDP_OK;
        now = os->now_ns(os->user);
        if (now >= deadline_ns) return CDP_OK;
        if (lock) cdp_lock_release(lock);
        if (now - from < CDP__MPI_YIELDS_NS && os->threads.yield)
            os->threads.yield(os->user);
        else
            cdp__mpi_nap(m, cdp__min(deadline_ns - now, cdp__min((now - from) / 8, CDP__MPI_MS)));
        if (lock) cdp_lock_acquire(lock);
    }
}

CDP__PRIVATE void cdp__mpi_wake(void *self) {
    cdp__mpi *m = (cdp__mpi *)self;
    const cdp_os *os = m->os;
    if (m->cond) os->threads.mutex_lock(os->user, m->mutex);
    m->woken = true;
    if (!m->cond) return;
    os->threads.cond_broadcast(os->user, m->cond);
    os->threads.mutex_unlock(os->user, m->mutex);
}

CDP__PRIVATE uint32_t cdp__mpi_host(void *self, uint32_t peer) {
    return ((cdp__mpi *)self)->hosts[peer];
}

/* True if all messages to this peer have been sent. */
CDP__PRIVATE bool cdp__mpi_flushed(cdp__mpi_peer *p) {
    for (uint32_t i = 0; i < CDP_MPI_WINDOW; ++i) {
        int done = 0;
        if (MPI_Test(&p->sending[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
            return false;
    }
    return true;
}

/* Tells the peers that this rank leaves. Waits until its messages are sent and the others leave,
   too. False: MPI still has messages of this rank. */
CDP__PRIVATE bool cdp__mpi_goodbye(cdp__mpi *m) {
    const cdp_os *os = m->os;
    const uint64_t from = os->now_ns(os->user);
    for (uint32_t i = 0; i < m->size; ++i)
        if (m->peers[i] && !m->peers[i]->left) (void)cdp__mpi_acknowledge(m, i, true);
    for (;;) {
        const uint64_t waited = os->now_ns(os->user) - from;
        bool flushed = true, alone = true;
        (void)cdp__mpi_look(m);
        for (uint32_t i = 0; i < m->size; ++i) {
            cdp__mpi_peer *p = m->peers[i];
            if (!p) continue;
            p->read = p->arrived; /* unread data is dropped */
            if (!cdp__mpi_flushed(p)) flushed = false;
            if (!p->left) alone = false;
        }
        if (flushed && (alone || waited > 100 * CDP__MPI_MS)) return true;
        if (waited > 1000 * CDP__MPI_MS) return false;
        cdp__mpi_nap(m, CDP__MPI_MS / 20);
    }
}

/* What *m refers to. */
CDP__PRIVATE void cdp__mpi_free(cdp__mpi *m) {
    for (uint32_t i = 0; m->peers && i < m->size; ++i) {
        cdp__mpi_peer *p = m->peers[i];
        for (uint32_t k = 0; p && k < CDP_MPI_WINDOW; ++k) {
            cdp__free(m->os, p->out[k]);
            cdp__free(m->os, p->in[k]);
        }
        cdp__free(m->os, p);
    }
    if (m->cond) m->os->threads.cond_destroy(m->os, m->cond);
    if (m->mutex) m->os->threads.mutex_destroy(m->os, m->mutex);
    cdp__free(m->os, m->peers);
    cdp__free(m->os, m->hosts);
}

/* Does not free memory that MPI may still read. */
CDP__PRIVATE void cdp__mpi_destroy(void *self) {
    cdp__mpi *m = (cdp__mpi *)self;
    const cdp_error kept = *cdp_last_error();
    int over = 0;
    MPI_Finalized(&over);
    if (!over && !cdp__mpi_goodbye(m)) return;
    if (!over) MPI_Comm_free(&m->comm);
    cdp__mpi_free(m);
    cdp__free(m->os, m);
    *cdp__error_slot() = kept;
}

/* ---- >>mpi/create: makes a transport, and a group -------------------------------------------- */

/* Knows: communicators. Promises: the calls above. */

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

#endif /* CDP_MPI_IMPL_INCLUDED */
