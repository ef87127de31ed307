/* message/transport_api.h - what to implement for another network */
#ifndef CDP_SRC_MESSAGE_TRANSPORT_API_H
#define CDP_SRC_MESSAGE_TRANSPORT_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"

/* The lock that guards a group. A transport releases it while it sleeps in wait(). */
typedef struct cdp_lock cdp_lock;

/* A transport carries ordered, reliable bytes from this rank to every other rank and back. It
   does not interpret them. To run cdp over a network of your own, fill in this struct and pass it
   in cdp_group_desc.transport.

   Required: send, recv, wait, wake and destroy. Everything else is an optional capability. The
   members of one group below belong together: set them as the group says, and leave a group that
   you do not offer NULL. Without optional capabilities everything works over send and recv.

   Threads: the library calls wake from any thread. It calls every other function with the group's
   lock held, one call at a time, and a function other than wait must not block. Peers are ranks
   of the world that the transport was made for; a rank never names itself as a peer.

   Errors: a negative result is a cdp_status. Describe it with cdp_error_set() before returning. */
typedef struct cdp_transport {
    void *self; /* passed to every function */

    /* ---- required ---- */

    /* Append the bytes of iov[0..n) to the stream to `peer`. Returns how many were taken, which
       may be fewer than offered; 0 when none can be taken now, for example because the
       connection is still being made (make it at the first call); or < 0 when the peer is lost,
       CDP_ERR_PEER_LOST as a rule. The bytes are copied or sent before this returns. */
    int64_t (*send)(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n);

    /* Move bytes that `peer` has sent into iov[0..n). Returns how many; 0 when there are none now;
       < 0 when the peer is lost and everything that it sent has been delivered. */
    int64_t (*recv)(void *self, uint32_t peer, const cdp_iov *iov, uint32_t n);

    /* Sleep until send or recv may do more than before, wake() was called, or now_ns of the os
       reaches `deadline_ns` (0: do not sleep, only look). May return early. Release the lock
       around the sleep: cdp_lock_release(lock), sleep, cdp_lock_acquire(lock). `lock` may be
       NULL. A wake() that comes before the sleep begins must end it. An error fails every group
       of the world: return one only if no peer can be reached any more. */
    cdp_status (*wait)(void *self, cdp_lock *lock, uint64_t deadline_ns);

    /* Make a wait() that is running, or the next one, return soon. Any thread, without the lock. */
    void (*wake)(void *self);

    /* Release everything. Bytes that send has taken should still arrive. Last call for `self`. */
    void (*destroy)(void *self);

    /* ---- optional: where ranks are ---- */

    struct {
        /* The number of the host that `peer`, or this rank itself, runs on. Hosts are numbered from
           0 in the order in which they first appear among ranks 0, 1, ...: rank 0 is always on
           host 0. The answer must be known at creation, never change, and be the same on every
           rank; otherwise the first operation reports that ranks call different things.
           Algorithms are chosen by it. NULL: nothing is assumed. */
        uint32_t (*host)(void *self, uint32_t peer);
    } topology;

    /* ---- optional: memory for cdp_group_alloc(); both or neither ---- */

    struct {
        /* `bytes` of memory, aligned to 64, that peers can map if it is exposed to them. It stays
           valid after destroy(). NULL: none is available; ordinary memory is used instead. */
        void *(*alloc)(void *self, uint64_t bytes);
        /* Release memory of alloc. False: `ptr` did not come from alloc; nothing was done. */
        bool (*release)(void *self, void *ptr);
    } memory;

    /* ---- optional: slots for small messages; both or neither ---- */

    struct {
        /* Memory of CDP_SLOTS_BYTES, aligned to CDP_SLOTS_ALIGN, that only this rank and `peer`
           share: what goes to the peer (`outgoing`), or what comes from it. Zero at first; after
           that only the library writes there. The answer is the same at every call, but for
           NULL, which means "not now": not connected yet, or (outgoing only) the peer is lost.
           The writer never waits for the reader: without room, messages take the stream. */
        void *(*memory)(void *self, uint32_t peer, bool outgoing);
        /* Doorbell: this rank has written to the slots of `peer`. End the peer's wait(), if it
           is in one. What was written before a wait() begins must keep it from sleeping. */
        void (*ring)(void *self, uint32_t peer);
    } slots;

    /* ---- optional: remote read; expose and revoke with map and unmap, or get, or all ---- */

    /* The owner of some memory exposes it to one peer and sends only the token. The peer reads
       the memory in place and reports that it has; then the owner revokes the exposure. Many
       exposures may exist at once. Tokens and lengths come from a peer: map and get must refuse
       what was not exposed to this rank in exactly that length. */
    struct {
        /* Let `peer` read data[0..bytes). Returns true and a token never used before for it.
           False: not to this peer, too many exposures, or not worth it; the bytes are then sent
           instead. `fresh`: the operation has just written these bytes, so they are in this
           processor's cache, from where another processor reads them at about half the speed. */
        bool (*expose)(void *self, uint32_t peer, const void *data, uint64_t bytes, bool fresh,
            uint64_t *token);
        /* End an exposure, read or not; called once for each that expose returned and try_revoke
           did not end. Afterwards the caller may change or free the memory: a peer either has
           stopped reading, or learns from unmap or get that what it read is void. */
        void (*revoke)(void *self, uint32_t peer, uint64_t token);
        /* Optional even where the rest is set. Like revoke, but only if the peer has not begun to
           read: else returns false and the exposure stays. The library calls it for messages of
           up to 4 MiB that no peer has begun to read after a few milliseconds, and sends them, so
           that no rank waits for a reader that waits for something else. Without it, messages
           that small are exposed only if cdp_group_desc.expose_bytes says so. */
        bool (*try_revoke)(void *self, uint32_t peer, uint64_t token);
        /* The peer's memory as seen here, all `bytes` of it, until unmap. The library holds it
           only while it reads some 100 KB. NULL: cannot be mapped, was never exposed to this rank
           in that length, or has been revoked. */
        const void *(*map)(void *self, uint32_t peer, uint64_t token, uint64_t bytes);
        /* Ends map. False: the exposure was revoked meanwhile, what was read is void. */
        bool (*unmap)(void *self, uint32_t peer, uint64_t token);
        /* Copy `bytes` from `offset` of the exposed memory to dst. Returns `bytes`; 0: revoked,
           or never exposed to this rank in that length; CDP_ERR_PEER_LOST: the peer has ended;
           any other error: it cannot be read, and the owner is asked to send it instead. */
        int64_t (*get)(
            void *self, uint32_t peer, uint64_t token, uint64_t offset, void *dst, uint64_t bytes);
    } remote;

    /* ---- optional: reports of failures; each on its own ---- */

    struct {
        /* The world has failed, and `record` says why, in the library's own form. The first record
           of all ranks is kept: keep a copy, unless there is one already, for ranks that are not
           connected to this one, and let their wait() return an error of status CDP_ERR_ABORTED.
           Called again when this rank has a better record, for ranks that connect later. Both or
           neither of these two. */
        void (*publish)(void *self, const void *record, uint32_t bytes);
        /* The record that is kept, if it is known here: copy it and return its length, at most
           `room`; 0: not known. It may be the one that this rank has published. */
        uint32_t (*first)(void *self, void *record, uint32_t room);
        /* Called repeatedly when `peer` does not answer, or (`lost`) is gone. If `peer` had not
           finished starting, returns the rank that it waited for. -1: it had finished, or that is
           not known yet; called again unless `last`. -2: rank 0 is gone, too; which of them went
           first is not known. */
        int32_t (*starting)(void *self, uint32_t peer, bool lost, bool last);
        /* Is `peer` connected? Connected peers are told of a failure even if nothing was
           exchanged with them yet. */
        bool (*linked)(void *self, uint32_t peer);
        /* Is `peer` connected, and its host has acknowledged nothing for some time although
           something was sent? Then the network between the two is blamed, not what the peer's
           process does. */
        bool (*unacked)(void *self, uint32_t peer);
    } failure;

    /* ---- optional: text for people ---- */

    const char *name; /* a word such as "tcp", for cdp_group_backend_name(); static memory */

    /* Describe the connection to `peer` for cdp_describe(): its kind, addresses and state. */
    void (*describe)(void *self, uint32_t peer, char *out, uint64_t size);

    /* ---- optional: leaving without blocking ---- */

    /* Called before destroy() when this rank leaves, until it returns false: nothing is sent or
       received any more. Takes one step, and waits until `until_ns` at most, so that peers receive
       what was sent. destroy() does not wait then. Also without such calls before, destroy() must
       release everything. */
    bool (*leave)(void *self, uint64_t until_ns);
} cdp_transport;

/* Size and alignment of the memory that cdp_transport.slots.memory returns. */
#define CDP_SLOTS_BYTES (CDP_SLOTS * (CDP_SLOT_BYTES + 512u))
#define CDP_SLOTS_ALIGN 64u

/* For wait() above; NULL is allowed. Only the thread in wait() releases the lock that it was given,
   and takes it again before it returns: nothing guards against a second release, nor against a lock
   whose group was destroyed. */
CDP_API void cdp_lock_release(cdp_lock *lock);
CDP_API void cdp_lock_acquire(cdp_lock *lock);

/* For implementers of the interfaces above: set this thread's last error and return `status`.
   `format` knows %s %d %u %x %c %% with l, ll and z. Any thread. */
CDP_API CDP_FORMAT_CHECK cdp_status cdp_error_set(
    cdp_status status, int32_t peer, int32_t sys_errno, const char *format, ...);

#endif /* CDP_SRC_MESSAGE_TRANSPORT_API_H */
