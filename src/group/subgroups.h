/* group/subgroups.h - groups of some ranks

   Knows: groups and the ranks that they share. Promises: groups of the same ranks get equal numbers
   on every rank. */
#ifndef CDP_SRC_GROUP_SUBGROUPS_H
#define CDP_SRC_GROUP_SUBGROUPS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../base/hash.h"
#include "../message/stream.h"
#include "state.h"
#include "../failure/spread.h"
#include "running.h"
#include "progress.h"
#include "create.h"

#ifndef CDP_NO_GROUPS

/* A new channel number for a group: a hash of its ranks and of how many groups of these ranks
   exist. Equal on all ranks, and different for each group. */
CDP__PRIVATE uint64_t cdp__world_channel(cdp__world *m, uint64_t ranks) {
    cdp__made *made;
    for (made = m->made; made && made->ranks != ranks; made = made->next) {
    }
    if (!made) {
        made = (cdp__made *)cdp__alloc_zero(m->os, sizeof *made);
        if (!made) return 0;
        made->ranks = ranks;
        made->next = m->made;
        m->made = made;
    }
    ++made->count;
    /* neither 0 nor CDP__WORLD_CHANNEL */
    return cdp__hash(ranks, &made->count, sizeof made->count) | 2;
}

/* Gives *to a copy of the rows. False: out of memory. */
CDP__PRIVATE bool cdp__rows_copy(const cdp_os *os, const cdp__choosing *from, cdp__choosing *to) {
    cdp__row *rows = (cdp__row *)cdp__alloc(os, from->row_count * sizeof *rows);
    to->rows = rows;
    to->row_count = from->row_count;
    if (rows && from->row_count) memcpy(rows, from->rows, from->row_count * sizeof *rows);
    return rows != NULL;
}

/* A copy of how the parent's algorithms are chosen, where that is not how those of the world are:
   the parent may be destroyed first. False: out of memory. */
CDP__PRIVATE bool cdp__group_inherit(const cdp_group *parent, cdp__choosing *to) {
    if (parent->choosing == &parent->w->choosing || to->rows) return true;
    to->small_bytes = parent->choosing->small_bytes;
    to->reproducible = parent->choosing->reproducible;
    return cdp__rows_copy(parent->os, parent->choosing, to);
}

/* Creates a group of the world ranks world[0 .. count - 1], with these settings. `own`: how its
   algorithms are chosen, whose rows it takes; rows NULL: as those of its parent. Lock held. NULL:
   out of memory. */
CDP__PRIVATE cdp_group *cdp__group_of(cdp_group *parent, const uint32_t *world, uint32_t count,
    uint64_t channel, const cdp_group_desc *like, cdp__choosing *chosen) {
    cdp_group_desc d = *like;
    uint32_t *own = (uint32_t *)cdp__alloc(parent->os, count * sizeof *own);
    cdp_group *g;
    if (!own || !cdp__group_inherit(parent, chosen)) {
        cdp__free(parent->os, own);
        return NULL;
    }
    memcpy(own, world, count * sizeof *own);
    d.world_size = count;
    d.logger.level = parent->desc.logger.level;
    for (d.rank = 0; own[d.rank] != parent->w->rank; ++d.rank) {
    }
    g = cdp__group_make(parent->w, &d, channel, own);
    if (!g) {
        cdp__free(parent->os, own);
        return NULL;
    }
    if (chosen->rows) {
        g->own = *chosen;
        g->choosing = &g->own;
        chosen->rows = NULL; /* they are the group's now */
    }
    cdp__log_made(g);
    return g;
}

/* Puts what `own` has in place of settings of the parent, which *d has. *chosen gets rows where
   its algorithms are not chosen as those of its parent; the caller frees them. */
CDP__PRIVATE cdp_status cdp__group_settings(
    const cdp_group *parent, const cdp_group_desc *own, cdp_group_desc *d, cdp__choosing *chosen) {
    cdp_group_desc mine;
    cdp_status st;
    memset(chosen, 0, sizeof *chosen);
    if (!own) return CDP_OK;
    if (own->rank || own->world_size || own->hub || own->transport || own->spin_us || own->no_spin
        || own->no_thread || own->dump_path || own->stage_bytes || own->window_bytes || own->waits
        || own->os || own->logger.func || own->logger.level || own->logger.lines_per_second
        || own->logger.level_at)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_new_with: own has a member that groups of one world share; set timeout_ms, "
            "small_bytes, piece_bytes, expose_bytes, reproducible, choices, records, max_pending "
            "and operations, and nothing else");
    mine = *own;
    mine.os = parent->os;
    cdp__group_desc_defaults(&mine);
    if (own->timeout_ms) d->timeout_ms = mine.timeout_ms;
    if (own->small_bytes) d->small_bytes = mine.small_bytes;
    if (own->piece_bytes) d->piece_bytes = mine.piece_bytes;
    if (own->expose_bytes) d->expose_bytes = mine.expose_bytes;
    if (own->records) d->records = mine.records;
    if (own->max_pending) d->max_pending = mine.max_pending;
    if (own->operations) d->operations = mine.operations;
    d->reproducible = d->reproducible || own->reproducible;
    if (!own->small_bytes && !own->reproducible && !own->choice_count) return CDP_OK;
    mine.small_bytes = d->small_bytes;
    mine.reproducible = d->reproducible;
    mine.choices = own->choices;
    mine.choice_count = own->choice_count;
    st = cdp__choices_read(parent->os, chosen, &mine, "cdp_group_new_with");
    if (st != CDP_OK || own->choice_count) return st;
    cdp__free(parent->os, (void *)(uintptr_t)chosen->rows);
    return cdp__rows_copy(parent->os, cdp__choosing_of(parent), chosen)
        ? CDP_OK
        : cdp__fail_nomem("a group", cdp__choosing_of(parent)->row_count * sizeof(cdp__row));
}

/* Checks the list of ranks of a new group. */
CDP__PRIVATE cdp_status cdp__group_list_check(
    const cdp_group *parent, const uint32_t *ranks, uint32_t count, const char *call) {
    bool member = false;
    uint32_t i, k;
    if (!ranks) return cdp__missing(call, "ranks");
    if (!count)
        return cdp__fail(CDP_ERR_INVALID, "%s: count is 0; a group has at least one rank", call);
    for (i = 0; i < count; ++i) {
        if (ranks[i] >= parent->desc.world_size)
            return cdp__fail(CDP_ERR_INVALID, "%s: rank %u is not below the parent's size %u", call,
                ranks[i], parent->desc.world_size);
        for (k = 0; k < i; ++k)
            if (ranks[k] == ranks[i])
                return cdp__fail(
                    CDP_ERR_INVALID, "%s: rank %u is in the list twice", call, ranks[i]);
        member = member || ranks[i] == parent->desc.rank;
    }
    if (member) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "%s: this rank (%u) is not in the list; only the ranks of the new group make it", call,
        parent->desc.rank);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__group_new(cdp_group *parent, const uint32_t *ranks,
    uint32_t count, const cdp_group_desc *own, const char *call, cdp_group **out) {
    uint32_t *world, i;
    uint64_t channel, hash = CDP__HASH_START;
    cdp_group_desc d;
    cdp__choosing chosen;
    cdp_status st = cdp__alive(parent, call);
    if (out) *out = NULL;
    if (st == CDP_OK && !out) st = cdp__missing(call, "out");
    if (st == CDP_OK) st = cdp__group_list_check(parent, ranks, count, call);
    if (st != CDP_OK) return st;
    cdp__enter(parent); /* cdp_group_set_log_level() writes to it */
    d = parent->desc;
    cdp__leave(parent);
    st = cdp__group_settings(parent, own, &d, &chosen);
    if (st != CDP_OK) {
        cdp__free(parent->os, (void *)(uintptr_t)chosen.rows);
        return st;
    }
    for (i = 0; i < count; ++i) {
        uint8_t bytes[4];
        cdp__put_u32(bytes, cdp__world_rank(parent, ranks[i]));
        hash = cdp__hash(hash, bytes, 4);
    }
    world = (uint32_t *)cdp__alloc(parent->os, count * sizeof *world);
    for (i = 0; world && i < count; ++i)
        world[i] = cdp__world_rank(parent, ranks[i]);
    cdp__enter(parent);
    channel = cdp__world_channel(parent->w, hash); /* counts where memory is lacking, too */
    if (world && channel) *out = cdp__group_of(parent, world, count, channel, &d, &chosen);
    cdp__leave(parent);
    cdp__free(parent->os, world);
    cdp__free(parent->os, (void *)(uintptr_t)chosen.rows);
    return *out ? CDP_OK : cdp__fail_nomem("a group", count * sizeof(cdp__peer));
}

CDP_API cdp_status cdp_group_new(
    cdp_group *parent, const uint32_t *ranks, uint32_t count, cdp_group **out) {
    CDP__NOT_COLD();
    return cdp__group_new(parent, ranks, count, NULL, "cdp_group_new", out);
}

CDP_API cdp_status cdp_group_new_with(cdp_group *parent, const uint32_t *ranks, uint32_t count,
    const cdp_group_desc *own, cdp_group **out) {
    CDP__NOT_COLD();
    return cdp__group_new(parent, ranks, count, own, "cdp_group_new_with", out);
}

CDP_API uint32_t cdp_group_ranks(const cdp_group *g, uint32_t *out, uint32_t max_count) {
    const uint32_t n = cdp_size(g);
    uint32_t p;
    for (p = 0; out && p < n && p < max_count; ++p)
        out[p] = cdp__world_rank(g, p);
    return n;
}

CDP_API cdp_status cdp_group_split(
    cdp_group *parent, uint32_t color, uint32_t key, cdp_group **out) {
    const uint32_t n = cdp_size(parent), me = cdp_rank(parent);
    uint32_t *all, *ranks, count = 0, i, k;
    cdp_status st = cdp__alive(parent, "cdp_group_split");
    if (out) *out = NULL;
    if (st != CDP_OK) return st;
    if (!out) return cdp__missing("cdp_group_split", "out");
    all = (uint32_t *)cdp__alloc(parent->os, 3ull * n * sizeof *all);
    if (!all) return cdp__fail_nomem("a split", 3ull * n * sizeof *all);
    ranks = all + 2 * n;
    all[2 * me] = color;
    all[2 * me + 1] = key;
    st = cdp_allgather(parent, NULL, all, 2, CDP_DTYPE_U32);
    /* insertion sort by key; ranks are read in order, so equal keys stay in rank order */
    for (i = 0; i < n && st == CDP_OK; ++i) {
        if (all[2 * i] != color) continue;
        for (k = count++; k && all[2 * ranks[k - 1] + 1] > all[2 * i + 1]; --k)
            ranks[k] = ranks[k - 1];
        ranks[k] = i;
    }
    if (st == CDP_OK && color != CDP_NO_COLOR) st = cdp_group_new(parent, ranks, count, out);
    cdp__free(parent->os, all);
    if (st == CDP_OK && cdp__backend_of(parent) && parent->backend->split)
        st = parent->backend->split(parent->backend->self, color, key, *out);
    if (st != CDP_OK && *out) {
        const cdp_error e = *cdp_last_error();
        cdp_group_destroy(*out);
        *out = NULL;
        *cdp__error_slot() = e;
    }
    return st;
}

#endif /* CDP_NO_GROUPS */

#endif /* CDP_SRC_GROUP_SUBGROUPS_H */
