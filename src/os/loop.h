/* os/loop.h - sockets and timers in one place

   Knows: cdp_os and locks. Promises: at most one thread sleeps in a loop; callbacks may add and
   remove any socket or timer; no system call is made for a socket without events. */
#ifndef CDP_SRC_OS_LOOP_H
#define CDP_SRC_OS_LOOP_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "os_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "linux.h"

/* A socket in a loop. `ready` holds the directions worth trying: an event of the system sets a
   bit, and a call that moves no bytes clears it. So a socket with unread data costs nothing, and
   no interest in reading is ever registered or withdrawn. */
typedef struct cdp__io {
    int32_t fd;      /* -1: none */
    uint16_t ready;  /* CDP_IO_READ | CDP_IO_WRITE | CDP_IO_END */
    bool want_write; /* there is something to send */
    /* the system also watches for room to send. Only while the loop waits for it: otherwise
       every acknowledgement on the connection would be an event. */
    bool watched_write;
    /* the system reported an error: both directions became ready once, later events are ignored */
    bool broken;
    void (*func)(struct cdp__io *io); /* called when `ready` grew; may remove any io of the loop */
    void *user;
    uint32_t slot; /* index in cdp__loop.slots */
    struct cdp__io *next, *prev;
} cdp__io;

/* An event may concern a socket that was removed while the loop slept, and whose memory is in
   use for something else. So the system stores the number of a socket's slot and a use count,
   not the address of the socket. */
typedef struct cdp__loop_slot {
    cdp__io *io; /* NULL: the slot is free, next_free is the next free one */
    uint32_t used, next_free;
} cdp__loop_slot;

typedef struct cdp__timer {
    uint64_t at_ns; /* CDP__NEVER: not set */
    void (*func)(struct cdp__timer *t);
    void *user;
    struct cdp__timer *next, *prev;
} cdp__timer;

typedef struct cdp__loop {
    const cdp_os *os;
    void *watch; /* NULL: the os has no network */
    cdp__io ios; /* list heads */
    cdp__timer timers;
    uint32_t io_count;
    int32_t add_errno; /* errno of a socket that could not be watched; the next run reports it */
    cdp__loop_slot *slots;
    uint32_t slot_count, free_slot; /* free_slot: CDP__NO_SLOT when all are in use */
    cdp_ready events[CDP__MANY];    /* events being served */
    uint32_t moved;                 /* sockets that had events at the last poll */
    int32_t wake_fd[2];
    uint64_t turns; /* runs of the loop: work that is spread over several runs counts by it */
    uint32_t awake; /* wake was set and not yet cleared (atomic) */
} cdp__loop;

#define CDP__NO_SLOT UINT32_MAX
#define CDP__SLOT_BITS 20u /* low bits of the system's number: the slot; high bits: its use */

CDP__PRIVATE void *cdp__loop_owner(const cdp__loop *l, uint32_t slot) {
    return (void *)(((uintptr_t)l->slots[slot].used << CDP__SLOT_BITS | slot) + 1);
}

/* NULL: the socket was removed. */
CDP__PRIVATE cdp__io *cdp__loop_find(const cdp__loop *l, const void *owner) {
    const uint32_t slot = (uint32_t)(((uintptr_t)owner - 1) & ((1u << CDP__SLOT_BITS) - 1));
    if (slot >= l->slot_count || cdp__loop_owner(l, slot) != owner) return NULL;
    return l->slots[slot].io;
}

CDP__PRIVATE bool cdp__loop_more_slots(cdp__loop *l) {
    const uint32_t count = l->slot_count ? 2 * l->slot_count : 8;
    cdp__loop_slot *slots;
    uint32_t i;
    if (count > 1u << CDP__SLOT_BITS) return false;
    slots = (cdp__loop_slot *)cdp__alloc_zero(l->os, count * sizeof *slots);
    if (!slots) return false;
    if (l->slot_count) memcpy(slots, l->slots, l->slot_count * sizeof *slots);
    for (i = l->slot_count; i < count; ++i)
        slots[i].next_free = i + 1 < count ? i + 1 : CDP__NO_SLOT;
    l->free_slot = l->slot_count;
    l->slot_count = count;
    cdp__free(l->os, l->slots);
    l->slots = slots;
    return true;
}

CDP__PRIVATE CDP__COLD void cdp__loop_close(cdp__loop *l) {
    const cdp_os *os = l->os;
    if (!os || !l->ios.next) return; /* it was never opened */
    if (l->watch && l->wake_fd[0] >= 0) os->net.watch_remove(os->user, l->watch, l->wake_fd[0]);
    if (l->watch) os->net.watch_close(os, l->watch);
    if (l->wake_fd[1] >= 0 && l->wake_fd[1] != l->wake_fd[0])
        os->net.close_fd(os->user, l->wake_fd[1]);
    if (l->wake_fd[0] >= 0) os->net.close_fd(os->user, l->wake_fd[0]);
    cdp__free(os, l->slots);
    memset(l, 0, sizeof *l);
}

CDP__PRIVATE cdp_status cdp__loop_open(cdp__loop *l, const cdp_os *os) {
    int32_t r;
    memset(l, 0, sizeof *l);
    l->os = os;
    l->ios.next = l->ios.prev = &l->ios;
    l->timers.next = l->timers.prev = &l->timers;
    l->wake_fd[0] = l->wake_fd[1] = -1;
    l->free_slot = CDP__NO_SLOT;
    if (!os->net.watch_open)
        return cdp__fail(CDP_ERR_UNSUPPORTED, "this cdp_os has no network: set its member `net`");
    r = os->net.watch_open(os, &l->watch);
    if (r == 0 && os->net.wake_open) r = os->net.wake_open(os->user, l->wake_fd);
    if (r >= 0 && l->wake_fd[0] >= 0)
        r = os->net.watch_add(os, l->watch, l->wake_fd[0], CDP_IO_READ, NULL);
    if (r >= 0) return CDP_OK;
    cdp__loop_close(l);
    if (r == -ENOMEM) return cdp__fail_nomem("a list of descriptors to wait for", 0);
    return cdp__fail_peer(CDP_ERR_IO, -1, -r, "cannot make a list of descriptors to wait for%s",
        r == -EMFILE || r == -ENFILE ? ": too many open descriptors; raise the limit (ulimit -n)"
                                     : "");
}

/* Thread-safe. Several wake-ups before the loop runs again cost one system call. */
CDP__PRIVATE void cdp__loop_wake(cdp__loop *l) {
    if (l->wake_fd[1] >= 0 && !cdp__atomic_swap_u32(&l->awake, 1, CDP__ACQ_REL))
        l->os->net.wake_set(l->os->user, l->wake_fd[1]);
}

/* Watches `fd` from now on. The caller owns `io` and must not move or free it before
   cdp__loop_remove. */
CDP__PRIVATE void cdp__loop_add(
    cdp__loop *l, cdp__io *io, int32_t fd, void (*func)(cdp__io *io), void *user) {
    int32_t r = -ENOMEM;
    memset(io, 0, sizeof *io);
    io->slot = CDP__NO_SLOT;
    io->fd = fd;
    io->func = func;
    io->user = user;
    io->next = &l->ios;
    io->prev = l->ios.prev;
    io->prev->next = io->next->prev = io;
    ++l->io_count;
    if (l->free_slot != CDP__NO_SLOT || cdp__loop_more_slots(l)) {
        io->slot = l->free_slot;
        l->free_slot = l->slots[io->slot].next_free;
        l->slots[io->slot].io = io;
        r = l->os->net.watch_add(l->os, l->watch, fd, CDP_IO_READ, cdp__loop_owner(l, io->slot));
    }
    if (r >= 0) return;
    l->add_errno = -r;
    cdp__loop_wake(l); /* another thread may sleep in this loop */
}

CDP__PRIVATE void cdp__loop_watch(cdp__loop *l, const cdp__io *io) {
    if (io->slot != CDP__NO_SLOT)
        l->os->net.watch_change(l->os->user, l->watch, io->fd,
            CDP_IO_READ | (io->watched_write ? CDP_IO_WRITE : 0), cdp__loop_owner(l, io->slot));
}

/* The callback left bytes unread: call it once more in the next run. */
CDP__PRIVATE void cdp__loop_again(cdp__loop *l, cdp__io *io) {
    io->ready &= (uint16_t)~CDP_IO_READ;
    cdp__loop_watch(l, io);
}

/* A call moved no bytes in this direction: it is not ready until the next event. */
CDP__PRIVATE CDP__ONE_COPY void cdp__loop_used_up(cdp__loop *l, cdp__io *io, uint32_t bit) {
    io->ready &= (uint16_t)~bit;
    if (l->os->net.watch_used_up) l->os->net.watch_used_up(l->os->user, l->watch, io->fd, bit);
}

/* Waits for room to send, or for the end of an attempt to connect. */
CDP__PRIVATE void cdp__loop_want_write(cdp__loop *l, cdp__io *io) {
    io->want_write = true;
    cdp__loop_used_up(l, io, CDP_IO_WRITE);
    if (io->watched_write) return;
    io->watched_write = true;
    cdp__loop_watch(l, io);
}

/* Removes the descriptor from the loop and returns it, still open; -1: `io` had none. */
CDP__PRIVATE int32_t cdp__loop_detach(cdp__loop *l, cdp__io *io) {
    const int32_t fd = io->fd;
    if (!io->next) return -1;
    io->next->prev = io->prev;
    io->prev->next = io->next;
    io->next = io->prev = NULL;
    --l->io_count;
    if (fd >= 0) l->os->net.watch_remove(l->os->user, l->watch, fd);
    if (io->slot != CDP__NO_SLOT) {
        l->slots[io->slot].io = NULL;
        ++l->slots[io->slot].used;
        l->slots[io->slot].next_free = l->free_slot;
        l->free_slot = io->slot;
    }
    io->fd = -1;
    return fd;
}

/* Removes and closes the descriptor. Does nothing if `io` is in no loop. */
CDP__PRIVATE void cdp__loop_remove(cdp__loop *l, cdp__io *io) {
    const int32_t fd = cdp__loop_detach(l, io);
    if (fd >= 0) l->os->net.close_fd(l->os->user, fd);
}

CDP__PRIVATE CDP__ONE_COPY void cdp__loop_timer_clear(cdp__timer *t) {
    if (t->next) {
        t->next->prev = t->prev;
        t->prev->next = t->next;
        t->next = t->prev = NULL;
    }
    t->at_ns = CDP__NEVER;
}

CDP__PRIVATE CDP__ONE_COPY void cdp__loop_timer_set(
    cdp__loop *l, cdp__timer *t, uint64_t at_ns, void (*func)(cdp__timer *t), void *user) {
    cdp__loop_timer_clear(t);
    t->at_ns = at_ns;
    t->func = func;
    t->user = user;
    t->next = &l->timers;
    t->prev = l->timers.prev;
    t->prev->next = t->next->prev = t;
}

CDP__PRIVATE uint64_t cdp__loop_next_timer(const cdp__loop *l) {
    uint64_t at = CDP__NEVER;
    const cdp__timer *t;
    for (t = l->timers.next; t != &l->timers; t = t->next)
        at = cdp__min(at, t->at_ns);
    return at;
}

/* Each due timer fires once. It is cleared before its callback, which may set it again. */
CDP__PRIVATE void cdp__loop_fire_timers(cdp__loop *l) {
    const uint64_t now = l->timers.next != &l->timers ? l->os->now_ns(l->os->user) : 0;
    cdp__timer *t = l->timers.next;
    while (t != &l->timers) {
        if (t->at_ns <= now) {
            cdp__loop_timer_clear(t);
            t->func(t);
            t = l->timers.next; /* restart: the callback may have changed the list */
        } else {
            t = t->next;
        }
    }
}

CDP__PRIVATE void cdp__loop_woken(cdp__loop *l) {
    const cdp_os *os = l->os;
    os->net.wake_clear(os->user, l->wake_fd[0]);
    if (os->net.watch_used_up)
        os->net.watch_used_up(os->user, l->watch, l->wake_fd[0], CDP_IO_READ);
    cdp__atomic_store_u32(&l->awake, 0, CDP__RELEASE);
}

CDP__PRIVATE void cdp__loop_dispatch(cdp__loop *l, uint32_t count) {
    bool woken = false;
    uint32_t i;
    l->moved = 0;
    ++l->turns;
    for (i = 0; i < count; ++i) {
        cdp__io *io = l->events[i].owner ? cdp__loop_find(l, l->events[i].owner) : NULL;
        const uint32_t got = l->events[i].got;
        woken = woken || !l->events[i].owner;
        if (!io) continue;
        ++l->moved;
        io->broken = (got & CDP_IO_ERROR) != 0;
        io->ready |= (uint16_t)(io->broken ? CDP_IO_READ | CDP_IO_WRITE : got);
        if ((got & CDP_IO_WRITE) && io->watched_write && !io->broken) {
            io->watched_write = false;
            cdp__loop_watch(l, io);
        }
        io->func(io);
    }
    /* last: wake-ups during this run need no system call, because the caller polls after it */
    if (woken) cdp__loop_woken(l);
}

/* Sleeps once, until an event, a due timer, a wake-up or the deadline, then calls the callbacks
   that are due. `lock` (may be NULL) is held on entry and exit, and released during the sleep.
   One thread at a time. */
CDP__PRIVATE cdp_status cdp__loop_run(cdp__loop *l, cdp_lock *lock, uint64_t deadline_ns) {
    const cdp_os *os = l->os;
    int32_t r = -l->add_errno;
    l->add_errno = 0; /* not after the wait: another thread may add a socket meanwhile */
    if (!r) {
        deadline_ns = cdp__min(deadline_ns, cdp__loop_next_timer(l));
        cdp_lock_release(deadline_ns ? lock : NULL);
        r = os->net.watch_wait(os->user, l->watch, l->events, CDP__MANY, deadline_ns);
        cdp_lock_acquire(deadline_ns ? lock : NULL);
    }
    if (r == -ENOMEM) return cdp__fail_nomem("a list of descriptors to wait for", 0);
    if (r < 0)
        return cdp__fail_peer(CDP_ERR_IO, -1, -r, "cannot wait for %u descriptors", l->io_count);
    cdp__loop_dispatch(l, (uint32_t)r);
    cdp__loop_fire_timers(l);
    return CDP_OK;
}

/* Receive and send. A call that moves no bytes clears the ready bit. Results as in cdp_os. */
CDP__PRIVATE int64_t cdp__io_recv(cdp__loop *l, cdp__io *io, const cdp_iov *iov, uint32_t n) {
    const int64_t r = l->os->net.recv_iov(l->os->user, io->fd, iov, n);
    if (r == 0) cdp__loop_used_up(l, io, CDP_IO_READ);
    return r;
}

/* Receives one buffer. A short read emptied the socket, so its ready bit is cleared, unless the
   end of the stream was reported: that event does not repeat. */
CDP__PRIVATE int64_t cdp__io_drain(cdp__loop *l, cdp__io *io, const cdp_iov *iov) {
    const int64_t r = cdp__io_recv(l, io, iov, 1);
    if (r > 0 && (uint64_t)r < iov->bytes && !(io->ready & CDP_IO_END) && !io->broken)
        cdp__loop_used_up(l, io, CDP_IO_READ);
    return r;
}

CDP__PRIVATE CDP__ONE_COPY int64_t cdp__io_send(
    cdp__loop *l, cdp__io *io, const cdp_iov *iov, uint32_t n) {
    const int64_t r = l->os->net.send_iov(l->os->user, io->fd, iov, n);
    io->want_write = false;
    if (r == 0) cdp__loop_want_write(l, io);
    return r;
}

#endif /* CDP_SRC_OS_LOOP_H */
