/* train/loader.h - batches that are read ahead

   Knows: the order of a sampler, a thread. Promises: batches come in the sampler's order, whoever
   reads them; a failed read is reported for its own batch, not before. */
#ifndef CDP_SRC_TRAIN_LOADER_H
#define CDP_SRC_TRAIN_LOADER_H

#include "loader_api.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "../base/compiler.h"
#include "../os/whole.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "../base/status.h"
#include "../base/text.h"
#include "../os/child.h"
#include "../os/linux.h"
#include "sampler.h"

#if !defined(CDP_NO_TRAINING) && !defined(CDP_NO_SAMPLER)

struct cdp_loader {
    cdp_loader_desc d; /* with its defaults filled in */
    const cdp_os *os;
    cdp__order order;
    void *memory;          /* of the slots */
    uint8_t *slots;        /* ahead + 1 batches: step k is in slot k % (ahead + 1) */
    uint64_t slot_bytes;   /* of a batch, rounded up */
    uint64_t count, steps; /* samples of this rank and steps, from sampler.consumed on */
    void *thread;          /* or NULL */
    uint32_t forks;

    cdp_lock lock; /* for what follows */
    void *cond;
    uint64_t taken;  /* steps that were handed out; the last of them still has its slot */
    uint64_t read;   /* steps that are there */
    uint32_t within; /* samples that are there of the next one */
    bool busy;       /* a sample is being read, without the lock */
    bool stops;      /* nothing is begun any more: it ends or restarts */
    bool ends;
    cdp_error failed; /* the read of step `read`, or OK */
    uint64_t failed_at;
    cdp_loader_stats stats;
};

CDP__PRIVATE uint64_t cdp__loader_slots(const cdp_loader *l) {
    return (uint64_t)l->d.ahead + 1;
}

/* Samples of a step of this rank. */
CDP__PRIVATE uint32_t cdp__loader_samples(const cdp_loader *l, uint64_t step) {
    const uint64_t first = step * l->d.sampler.batch;
    return first < l->count ? (uint32_t)cdp__min(l->d.sampler.batch, l->count - first) : 0;
}

CDP__PRIVATE bool cdp__loader_wants(const cdp_loader *l) {
    return !l->stops && !l->failed.status && l->read < l->steps && l->read < l->taken + l->d.ahead;
}

CDP__PRIVATE void cdp__loader_wake(const cdp_loader *l) {
    if (l->cond) l->os->threads.cond_broadcast(l->os->user, l->cond);
}

/* Without the lock: reads one sample. The text of a library call that failed meanwhile is kept for
   the call that needs the sample. This may be the program's own thread: otherwise its last error
   stays. */
CDP__PRIVATE cdp_status cdp__loader_sample(cdp_loader *l, uint64_t at, void *out) {
    cdp_error *const last = cdp__error_slot();
    const char first = last->text[0];
    cdp_status st;
    l->failed_at = cdp__order_at(&l->order, at);
    last->text[0] = 0; /* so that a new text shows */
    st = l->d.read(l->d.user, l->failed_at, out);
    if (st) memcpy(l->failed.text, last->text, sizeof l->failed.text);
    if (!last->text[0]) last->text[0] = first;
    return st;
}

/* With the lock: reads one sample of the next step, if that has any. */
CDP__PRIVATE void cdp__loader_step(cdp_loader *l) {
    const uint32_t samples = cdp__loader_samples(l, l->read);
    cdp_status st = CDP_OK;
    if (l->within < samples) {
        uint8_t *slot = l->slots + l->read % cdp__loader_slots(l) * l->slot_bytes;
        const uint64_t at = l->read * l->d.sampler.batch + l->within;
        l->busy = true;
        cdp__lock_give(&l->lock);
        st = cdp__loader_sample(l, at, slot + l->within * l->d.sample_bytes);
        cdp__lock_take(&l->lock);
        l->busy = false;
        l->failed.status = st;
    }
    if (!st && (l->within >= samples || ++l->within == samples)) {
        l->within = 0;
        ++l->read;
    }
    l->stats.samples += samples && !st;
    if (st || !l->within || l->stops) cdp__loader_wake(l);
}

static void cdp__loader_main(void *arg) {
    cdp_loader *const l = (cdp_loader *)arg;
    cdp__lock_take(&l->lock);
    while (!l->ends) {
        if (cdp__loader_wants(l))
            cdp__loader_step(l);
        else
            l->os->threads.cond_wait(l->os->user, l->cond, l->lock.mutex, CDP__NEVER);
    }
    cdp__lock_give(&l->lock);
}

/* Opens the order of d.sampler; after a failure the epoch is at its end. */
CDP__PRIVATE cdp_status cdp__loader_open(cdp_loader *l) {
    const cdp_status st = cdp__order_open(&l->order, &l->d.sampler);
    l->taken = l->read = l->within = 0;
    l->failed.status = CDP_OK;
    l->count = st ? 0 : cdp_sampler_count(&l->d.sampler);
    l->steps = st ? 0 : cdp_sampler_steps(&l->d.sampler);
    return st;
}

CDP__PRIVATE cdp_status cdp__loader_alloc(cdp_loader *l) {
    const uint64_t slots = cdp__loader_slots(l);
    uint64_t batch, bytes = 0;
    bool fits = cdp__mul_fits(l->d.sampler.batch, l->d.sample_bytes, &batch);
    l->slot_bytes = fits ? (cdp__min(batch, UINT64_MAX - 63) + 63) & ~63ull : 0;
    fits = fits && cdp__mul_fits(l->slot_bytes, slots, &bytes) && bytes < SIZE_MAX - 63;
    if (!fits)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_loader_create: %llu batches of %u samples of %llu bytes are too many",
            (unsigned long long)slots, l->d.sampler.batch, (unsigned long long)l->d.sample_bytes);
    l->memory = cdp__alloc(l->os, bytes + 63);
    if (!l->memory) return cdp__fail_nomem("batches that are read ahead", bytes + 63);
    l->slots = (uint8_t *)(((uintptr_t)l->memory + 63) & ~(uintptr_t)63);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__loader_start(cdp_loader *l) {
    const bool threads = !l->d.no_thread && l->os->threads.start;
    if (!cdp__lock_open(&l->lock, l->os, threads))
        return cdp__fail_nomem("a loader's lock", sizeof(void *));
    if (!threads) return CDP_OK;
    l->cond = l->os->threads.cond_create(l->os);
    if (l->cond) l->thread = l->os->threads.start(l->os, cdp__loader_main, l);
    if (l->thread) return CDP_OK;
    return cdp__fail(CDP_ERR_IO,
        "cdp_loader_create: its thread could not be started; raise the limit of processes, or set "
        "no_thread");
}

CDP__PRIVATE void cdp__loader_end(cdp_loader *l) {
    cdp__lock_take(&l->lock);
    l->stops = l->ends = true;
    cdp__loader_wake(l);
    cdp__lock_give(&l->lock);
    if (l->thread) l->os->threads.join(l->os, l->thread);
    if (l->cond) l->os->threads.cond_destroy(l->os, l->cond);
    cdp__lock_close(&l->lock);
    cdp__order_close(&l->order);
    cdp__free(l->os, l->memory);
    cdp__free(l->os, l);
}

CDP_API cdp_status cdp_loader_create(const cdp_loader_desc *d, cdp_loader **out) {
    const cdp_os *os;
    cdp_loader *l;
    cdp_status st;
    if (!out) return cdp__missing("cdp_loader_create", "out");
    *out = NULL;
    if (!d) return cdp__missing("cdp_loader_create", "desc");
    if (!d->read) return cdp__missing("cdp_loader_create", "desc.read");
    if (!d->sample_bytes)
        return cdp__fail(CDP_ERR_INVALID, "cdp_loader_create: desc.sample_bytes is 0");
    if (cdp__os_whole(d->sampler.os, "cdp_loader_create") != CDP_OK) return CDP_ERR_INVALID;
    os = d->sampler.os ? d->sampler.os : cdp_os_default();
    l = (cdp_loader *)cdp__alloc_zero(os, sizeof *l);
    if (!l) return cdp__fail_nomem("a loader", sizeof *l);
    l->os = os;
    l->d = *d;
    l->forks = cdp__forks_watch();
    if (!l->d.ahead) l->d.ahead = 2;
    if (!l->d.timeout_ms) l->d.timeout_ms = 300000;
    if (!l->d.sampler.batch) l->d.sampler.batch = 1;
    st = cdp__loader_open(l);
    if (!st) st = cdp__loader_alloc(l);
    if (!st) st = cdp__loader_start(l);
    if (st) {
        cdp__loader_end(l);
        return st;
    }
    cdp__ended_remove(l);
    *out = l;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__loader_alive(const cdp_loader *l, const char *call) {
    if (!l) return cdp__missing(call, "loader");
    if (cdp__ended(l)) return cdp__fail(CDP_ERR_STATE, "%s: this loader was destroyed", call);
    if (cdp__is_child(l->forks)) return cdp__child_refuses(CDP_ERR_STATE, call, "loader");
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__loader_failed(const cdp_loader *l) {
    const cdp_error *const e = &l->failed;
    const cdp_status st = cdp__status_is_error((int32_t)e->status) ? e->status : CDP_ERR_INVALID;
    return cdp__fail(st, "cdp_loader_next: reading sample %llu of the data set returned %d%s%s",
        (unsigned long long)l->failed_at, (int)e->status, e->text[0] ? ": " : "", e->text);
}

/* With the lock: waits until the next step is there, or reads it. */
CDP__PRIVATE cdp_status cdp__loader_await(cdp_loader *l) {
    const uint64_t since = l->os->now_ns(l->os->user);
    const uint64_t deadline = cdp__deadline(l->os, l->d.timeout_ms);
    cdp_status st = CDP_OK;
    while (!st && l->read <= l->taken) {
        if (l->failed.status)
            st = cdp__loader_failed(l);
        else if (l->os->now_ns(l->os->user) >= deadline)
            st = cdp__fail(CDP_ERR_TIMEOUT,
                "cdp_loader_next: %u of %u samples of this batch are there after %u ms: `read` is "
                "too slow, or wait longer (timeout_ms)",
                l->within, cdp__loader_samples(l, l->taken), l->d.timeout_ms);
        else if (l->thread)
            l->os->threads.cond_wait(l->os->user, l->cond, l->lock.mutex, deadline);
        else
            cdp__loader_step(l);
    }
    l->stats.waited_ns += l->os->now_ns(l->os->user) - since;
    return st;
}

CDP_API cdp_status cdp_loader_next(cdp_loader *l, const void **batch, uint32_t *count) {
    cdp_status st;
    if (batch) *batch = NULL;
    if (count) *count = 0;
    st = cdp__loader_alive(l, "cdp_loader_next");
    if (st) return st;
    if (!batch) return cdp__missing("cdp_loader_next", "batch");
    if (!count) return cdp__missing("cdp_loader_next", "count");
    cdp__lock_take(&l->lock);
    if (l->taken < l->steps) {
        if (l->read <= l->taken) st = cdp__loader_await(l);
        if (!st) {
            *batch = l->slots + l->taken % cdp__loader_slots(l) * l->slot_bytes;
            *count = cdp__loader_samples(l, l->taken++);
            ++l->stats.batches;
            cdp__loader_wake(l);
        }
    }
    cdp__lock_give(&l->lock);
    return st;
}

CDP_API cdp_status cdp_loader_poll(cdp_loader *l, uint32_t budget_us) {
    const cdp_status st = cdp__loader_alive(l, "cdp_loader_poll");
    uint64_t end;
    if (st || l->thread) return st;
    end = l->os->now_ns(l->os->user) + (uint64_t)budget_us * 1000;
    while (cdp__loader_wants(l) && l->os->now_ns(l->os->user) < end)
        cdp__loader_step(l);
    return CDP_OK;
}

CDP_API cdp_sampler cdp_loader_state(const cdp_loader *l) {
    cdp_sampler s;
    uint64_t had;
    memset(&s, 0, sizeof s);
    if (!l || cdp__ended(l)) return s;
    s = l->d.sampler;
    if (!s.row) s.row = s.ranks; /* also where another number of ranks goes on */
    had = l->taken < l->steps ? l->taken * s.ranks * s.batch : cdp__sampler_left(&s);
    s.consumed += had;
    return s;
}

CDP_API cdp_loader_stats cdp_loader_stats_of(const cdp_loader *l) {
    cdp_loader_stats stats = {0, 0, 0};
    /* in a child nobody gives back the lock that the thread may have had at the fork */
    if (!l || cdp__ended(l) || cdp__is_child(l->forks)) return stats;
    cdp_loader *const own = (cdp_loader *)(uintptr_t)l;
    cdp__lock_take(&own->lock);
    stats = own->stats;
    cdp__lock_give(&own->lock);
    return stats;
}

/* With the lock: no sample is being read. */
CDP__PRIVATE cdp_status cdp__loader_stop(cdp_loader *l) {
    const uint64_t deadline = cdp__deadline(l->os, l->d.timeout_ms);
    l->stops = true;
    while (l->busy) {
        if (l->os->now_ns(l->os->user) >= deadline) {
            l->stops = false;
            return cdp__fail(CDP_ERR_TIMEOUT,
                "cdp_loader_restart: `read` has not returned for %u ms", l->d.timeout_ms);
        }
        l->os->threads.cond_wait(l->os->user, l->cond, l->lock.mutex, deadline);
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_loader_restart(cdp_loader *l, const cdp_sampler *s) {
    cdp_status st = cdp__loader_alive(l, "cdp_loader_restart");
    cdp_sampler former, next;
    if (st) return st;
    former = l->d.sampler;
    next = s ? *s : former;
    next.batch = former.batch;
    if (!next.os) next.os = former.os; /* a saved sampler has none */
    if (!s) {
        ++next.epoch;
        next.consumed = 0;
    }
    cdp__lock_take(&l->lock);
    st = cdp__loader_stop(l);
    if (!st) {
        cdp__order_close(&l->order);
        l->d.sampler = next;
        st = cdp__loader_open(l);
        if (st) l->d.sampler = former; /* so that NULL does not leave out an epoch */
        l->stops = false;
        cdp__loader_wake(l);
    }
    cdp__lock_give(&l->lock);
    return st;
}

CDP_API void cdp_loader_destroy(cdp_loader *l) {
    if (!l || cdp__ended(l) || cdp__is_child(l->forks)) return;
    cdp__ended_add(l);
    cdp__loader_end(l);
}
#endif /* CDP_NO_TRAINING, CDP_NO_SAMPLER */

#endif /* CDP_SRC_TRAIN_LOADER_H */
