/* fsdp/copies.h - further holders of a shard repeat its updates

   Knows: the shards that this rank holds for others. Promises: what an update needs is with all
   holders before any rank can update; in place, while backward goes on. */
#ifndef CDP_SRC_FSDP_COPIES_H
#define CDP_SRC_FSDP_COPIES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/messages_api.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "fsdp_api.h"
#include "checks.h"
#include "holders.h"
#include "state.h"

/* Elements of one range of a unit that a shard has. */
CDP__PRIVATE uint64_t cdp__fsdp_in_image(
    const cdp_fsdp *f, uint32_t unit, uint32_t frozen, uint32_t image) {
    return f->units[unit].range[frozen].counts[f->images[image].shard];
}

CDP__PRIVATE uint64_t cdp__fsdp_place(
    const cdp_fsdp *f, uint32_t unit, uint32_t frozen, uint32_t image) {
    return f->images[image].at[2 * unit + frozen];
}

/* Where each unit begins in a shard: trainable ranges of all units, then the frozen ones. */
CDP__PRIVATE void cdp__fsdp_lay_out(cdp_fsdp *f, uint32_t image) {
    cdp__fsdp_image *m = &f->images[image];
    uint32_t unit, k;
    for (k = 0; k < 2; ++k) {
        for (unit = 0; unit < f->unit_count; ++unit) {
            m->at[2 * unit + k] = m->value_count;
            m->value_count += cdp__fsdp_in_image(f, unit, k, image);
        }
        if (!k) m->mean_count = m->value_count;
    }
}

/* The shards that this rank holds: its own one, and copies. */
CDP__PRIVATE cdp_status cdp__fsdp_open_images(cdp_fsdp *f) {
    uint32_t i, k;
    for (i = 0; i < f->image_count; ++i) {
        cdp__fsdp_image *m = &f->images[i];
        m->shard = cdp__fsdp_held(f->ranks, f->distance, f->rank, i);
        m->at = (uint64_t *)cdp__fsdp_alloc(f, 2ull * f->unit_count * sizeof *m->at);
        if (!m->at) return cdp__fsdp_nomem("places", 2ull * f->unit_count * sizeof *m->at);
        cdp__fsdp_lay_out(f, i);
        if (!i) {
            m->values = f->values;
            m->means = f->means;
            memcpy(m->states, f->states, sizeof m->states);
            continue;
        }
        m->values = (float *)cdp__fsdp_memory(f, m->value_count * 4, &f->stats.held_bytes);
        m->means = (float *)cdp__fsdp_memory(f, m->mean_count * 4, &f->stats.held_bytes);
        if (!m->values || !m->means) return CDP_ERR_NOMEM;
        for (k = 0; k < cdp__fsdp_states(&f->desc); ++k) {
            m->states[k] = (float *)cdp__fsdp_memory(f, m->mean_count * 4, &f->stats.held_bytes);
            if (!m->states[k]) return CDP_ERR_NOMEM;
        }
    }
    return CDP_OK;
}

CDP__PRIVATE void cdp__fsdp_free_images(cdp_fsdp *f) {
    uint32_t i, k;
    for (i = 0; i < f->image_count; ++i) {
        cdp__fsdp_free(f, f->images[i].at);
        if (!i) continue;
        cdp_group_free(f->gathers, f->images[i].values);
        cdp_group_free(f->gathers, f->images[i].means);
        for (k = 0; k < CDP_FSDP_STATES; ++k)
            cdp_group_free(f->gathers, f->images[i].states[k]);
    }
}

/* ---- messages to holders ---- */

/* Adds one stretch: this rank's goes to its holders, those of others come. `array` of each image
   begins at `at`. */
CDP__PRIVATE void cdp__fsdp_add_transfers(cdp_fsdp *f, uint32_t tag, float *const *array,
    const uint64_t *count, cdp_transfer *list, uint32_t *n) {
    uint32_t i;
    for (i = 1; i < f->image_count; ++i) {
        const uint32_t to = cdp__fsdp_holder(f->ranks, f->distance, f->rank, i);
        cdp_transfer t;
        memset(&t, 0, sizeof t);
        t.tag = tag;
        t.data = array[0];
        t.count = count[0];
        t.peer = to;
        if (t.count) list[(*n)++] = t;
        f->now.forward_bytes += t.count * sizeof(float);
        t.receive = true;
        t.data = array[i];
        t.count = count[i];
        t.peer = f->images[i].shard;
        if (t.count) list[(*n)++] = t;
    }
}

/* The unit's gradient was sent, and its copies have come. */
CDP__PRIVATE cdp_status cdp__fsdp_forwarded(cdp_fsdp *f, cdp__fsdp_unit *u) {
    cdp_status st;
    if (!u->forwarding) return CDP_OK;
    st = cdp__fsdp_wait(f, "cdp_fsdp_backward_end: copies", u, u->forward);
    if (st == CDP_OK) u->forwarding = false;
    return st;
}

/* Sends the sum of this rank's part of a unit's gradient on, and lets those of others come. */
CDP__PRIVATE cdp_status cdp__fsdp_forward(cdp_fsdp *f, uint32_t unit) {
    cdp__fsdp_unit *u = &f->units[unit];
    cdp_transfer list[2 * CDP_FSDP_COPIES];
    float *array[1 + CDP_FSDP_COPIES];
    uint64_t count[1 + CDP_FSDP_COPIES];
    uint32_t i, n = 0;
    cdp_status st = cdp__fsdp_forwarded(f, u);
    if (st != CDP_OK) return st;
    for (i = 0; i < f->image_count; ++i) {
        array[i] = f->images[i].means + cdp__fsdp_place(f, unit, 0, i);
        count[i] = cdp__fsdp_in_image(f, unit, 0, i);
    }
    cdp__fsdp_add_transfers(f, unit, array, count, list, &n);
    u->forwarded = u->sums;
    if (!n) return CDP_OK;
    st = cdp_batch(f->buddies, list, n, &u->forward);
    if (st != CDP_OK) return cdp__fsdp_named("cdp_fsdp_ready", u, st);
    u->forwarding = true;
    return CDP_OK;
}

/* A sum has arrived. If the last step had no more of this unit, it goes on at once. */
CDP__PRIVATE cdp_status cdp__fsdp_pass_on(cdp_fsdp *f, uint32_t unit) {
    cdp__fsdp_unit *u = &f->units[unit];
    ++u->sums;
    return f->image_count > 1 && u->sums >= u->expected ? cdp__fsdp_forward(f, unit) : CDP_OK;
}

/* Values and state of this rank's shard go to its holders. */
CDP__PRIVATE cdp_status cdp__fsdp_refill(cdp_fsdp *f) {
    cdp_transfer list[2 * CDP_FSDP_COPIES];
    float *array[1 + CDP_FSDP_COPIES];
    uint64_t count[1 + CDP_FSDP_COPIES];
    const uint32_t states = cdp__fsdp_states(&f->desc);
    uint32_t i, k, n;
    cdp_work work;
    cdp_status st = CDP_OK;
    for (k = 0; k <= states && st == CDP_OK && f->image_count > 1; ++k) {
        n = 0;
        for (i = 0; i < f->image_count; ++i) {
            array[i] = k < states ? f->images[i].states[k] : f->images[i].values;
            count[i] = k < states ? f->images[i].mean_count : f->images[i].value_count;
        }
        cdp__fsdp_add_transfers(f, UINT32_MAX - 1, array, count, list, &n);
        if (n) st = cdp_batch(f->buddies, list, n, &work);
        if (n && st == CDP_OK) st = cdp__fsdp_await(f, work);
    }
    if (st == CDP_OK) f->filled = true;
    return st;
}

/* Everything that an update of a copy needs is here, and what others need has left. */
CDP__PRIVATE cdp_status cdp__fsdp_complete_copies(cdp_fsdp *f) {
    cdp_status st = f->filled || f->image_count == 1 ? CDP_OK : cdp__fsdp_refill(f);
    uint32_t i;
    for (i = 0; i < f->unit_count && st == CDP_OK && f->image_count > 1; ++i)
        if (f->units[i].forwarded != f->units[i].sums) st = cdp__fsdp_forward(f, i);
    for (i = 0; i < f->unit_count && st == CDP_OK; ++i)
        st = cdp__fsdp_forwarded(f, &f->units[i]);
    return st;
}

#endif /* CDP_SRC_FSDP_COPIES_H */
