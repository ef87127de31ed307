/* launch/timer.h - timers of a worker, in a file that its launcher reads

   Knows: the file: a text of 128 bytes for each timer, "NANOSECONDS LABEL" by the clock of the
   machine. Promises: whoever has the lock of the file sees whole texts. */
#ifndef CDP_SRC_LAUNCH_TIMER_H
#define CDP_SRC_LAUNCH_TIMER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "timer_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"
#include "facts.h"

#include <stdlib.h>
#include <string.h>

#define CDP__TIMERS 16u
#define CDP__TIMER_LABEL 100u
#define CDP__TIMER_BYTES 128u
#define CDP__TIMER_LOCK_MS 1000u /* how long another thread may have the file */
#define CDP__TIMER_LOOK_MS 500u  /* how often a launcher reads the file */

/* Why a worker was killed, for its label. */
#define CDP__TIMER_SAYS "the time of the timer '%s' is over"

/* Puts the timer for which a worker was killed before what that has left in its error file. */
CDP__PRIVATE void cdp__timer_before(char *message, uint64_t room, const char *expired) {
    char left[512];
    if (!expired[0]) return;
    cdp__format(left, sizeof left, "%s", message);
    cdp__format(message, room, CDP__TIMER_SAYS "%s%s", expired,
        left[0] ? "; its error file says: " : "", left);
}

typedef struct cdp__timers {
    const cdp_os *os;
    int32_t fd;
    char slots[CDP__TIMERS][CDP__TIMER_BYTES];
} cdp__timers;

/* Opens, locks and reads the file. Returns 0 or -errno. */
CDP__PRIVATE int32_t cdp__timers_open(cdp__timers *t, const cdp_os *os, const char *path,
    uint32_t how, cdp_file_lock lock, uint32_t wait_ms) {
    const cdp_os_files *const f = &os->files;
    const uint64_t until = os->now_ns(os->user) + wait_ms * CDP__MS;
    int32_t err;
    uint32_t i;
    memset(t, 0, sizeof *t);
    t->os = os;
    t->fd = f->open_file ? f->open_file(os->user, path, how) : -ENOSYS;
    if (t->fd < 0) return t->fd;
    while ((err = f->lock_file(os->user, t->fd, lock)) == -EAGAIN) {
        const uint64_t now = os->now_ns(os->user);
        if (now >= until) break;
        cdp__sleep_until(os, now + CDP__MS);
    }
    if (err) {
        (void)f->close_file(os->user, t->fd);
        return err;
    }
    (void)f->read_at(os->user, t->fd, 0, t->slots, sizeof t->slots);
    for (i = 0; i < CDP__TIMERS; ++i)
        t->slots[i][CDP__TIMER_BYTES - 1] = 0;
    return 0;
}

/* Ends the lock, which a process that was forked meanwhile would keep. */
CDP__PRIVATE void cdp__timers_close(cdp__timers *t) {
    const cdp_os_files *const f = &t->os->files;
    (void)f->lock_file(t->os->user, t->fd, CDP_FILE_UNLOCK);
    (void)f->close_file(t->os->user, t->fd);
}

/* When the timer in a slot expires, and its label; 0: there is none. */
CDP__PRIVATE uint64_t cdp__timer_in(const char *slot, const char **label) {
    uint64_t at = 0;
    for (; *slot >= '0' && *slot <= '9'; ++slot)
        at = at * 10 + (uint64_t)(*slot - '0');
    *label = *slot == ' ' ? slot + 1 : "";
    return **label ? at : 0;
}

/* The slot of this label, or else one that is free; CDP__TIMERS: none. */
CDP__PRIVATE uint32_t cdp__timer_slot(const cdp__timers *t, const char *label, bool or_free) {
    uint32_t i, none = CDP__TIMERS;
    for (i = 0; i < CDP__TIMERS; ++i) {
        const char *is;
        const bool used = cdp__timer_in(t->slots[i], &is) != 0;
        if (used && strcmp(is, label) == 0) return i;
        if (!used && or_free && none == CDP__TIMERS) none = i;
    }
    return none;
}

CDP__PRIVATE int32_t cdp__timer_write(cdp__timers *t, uint32_t slot) {
    const int64_t n = t->os->files.write_at(
        t->os->user, t->fd, (uint64_t)slot * CDP__TIMER_BYTES, t->slots[slot], CDP__TIMER_BYTES);
    if (n < 0) return (int32_t)-n;
    return n == CDP__TIMER_BYTES ? 0 : EIO;
}

CDP_API cdp_status cdp_timer_begin(double seconds, const char *label) {
    const cdp_os *const os = cdp_os_default();
    const char *const path = getenv("CDP_TIMER_FILE");
    cdp__timers t;
    uint32_t slot;
    int32_t err;
    if (!label) return cdp__missing("cdp_timer_begin", "label");
    if (!cdp__launch_label_fits(label, CDP__TIMER_LABEL))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_timer_begin: the label has %zu characters; it must have 1 to %u, without control "
            "characters",
            strlen(label), CDP__TIMER_LABEL);
    if (!(seconds > 0 && seconds <= 1e9))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_timer_begin: the seconds of '%s' must be above 0 and at most 1e9", label);
    if (!path || !*path) return CDP_OK;
    err = cdp__timers_open(&t, os, path, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_PRIVATE,
        CDP_FILE_LOCK_ALONE, CDP__TIMER_LOCK_MS);
    if (err) return cdp__fail_peer(CDP_ERR_IO, -1, -err, "cdp_timer_begin: cannot open %s", path);
    slot = cdp__timer_slot(&t, label, true);
    if (slot < CDP__TIMERS) {
        memset(t.slots[slot], 0, CDP__TIMER_BYTES);
        cdp__format(t.slots[slot], CDP__TIMER_BYTES, "%llu %s",
            (unsigned long long)(os->now_ns(os->user) + (uint64_t)(seconds * 1e9)), label);
        err = cdp__timer_write(&t, slot);
    }
    cdp__timers_close(&t);
    if (slot == CDP__TIMERS)
        return cdp__fail(CDP_ERR_BUSY,
            "cdp_timer_begin: %u timers run already; end one before '%s' begins", CDP__TIMERS,
            label);
    if (!err) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, err, "cdp_timer_begin: cannot write %s", path);
}

CDP_API void cdp_timer_end(const char *label) {
    const char *const path = getenv("CDP_TIMER_FILE");
    cdp__timers t;
    uint32_t slot;
    if (!label || !path || !*path) return;
    if (cdp__timers_open(
            &t, cdp_os_default(), path, CDP_FILE_WRITE, CDP_FILE_LOCK_ALONE, CDP__TIMER_LOCK_MS)
        != 0)
        return;
    slot = cdp__timer_slot(&t, label, false);
    if (slot < CDP__TIMERS) {
        memset(t.slots[slot], 0, CDP__TIMER_BYTES);
        (void)cdp__timer_write(&t, slot);
    }
    cdp__timers_close(&t);
}

/* In a launcher: whether a timer in this file has expired, and which. Never waits: while the worker
   writes, the next look counts. */
CDP__PRIVATE bool cdp__timer_expired(
    const cdp_os *os, const char *path, char label[CDP__TIMER_LABEL + 1]) {
    const uint64_t now = os->now_ns(os->user);
    cdp__timers t;
    uint32_t i;
    bool expired = false;
    if (cdp__timers_open(&t, os, path, 0, CDP_FILE_LOCK_SHARED, 0) != 0) return false;
    for (i = 0; i < CDP__TIMERS && !expired; ++i) {
        const char *is;
        uint64_t at;
        at = cdp__timer_in(t.slots[i], &is);
        expired = at && now > at;
        if (expired) cdp__format(label, CDP__TIMER_LABEL + 1, "%s", is);
    }
    cdp__timers_close(&t);
    return expired;
}

#endif /* CDP_SRC_LAUNCH_TIMER_H */
