/* mem/lifetime.h - create and destroy

   Knows: how a desc is checked and filled in, and what is destroyed with an allocator. Promises: a
   source that was passed is destroyed exactly once, even if creation fails. */
#ifndef CDP_SRC_MEM_LIFETIME_H
#define CDP_SRC_MEM_LIFETIME_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "source_api.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "record_api.h"
#include "shots_api.h"
#include "sizes.h"
#include "bins.h"
#include "depot.h"
#include "blocks.h"
#include "history.h"
#include "streams.h"
#include "ranges.h"
#include "shot.h"
#include "names.h"
#include "settings.h"
#include "out_of_memory.h"

CDP__PRIVATE void cdp__mem_source_drop(const cdp_mem_source *s) {
    if (s->destroy) s->destroy(s->user);
}

CDP__PRIVATE cdp_status cdp__mem_source_check(const cdp_mem_source *s) {
    const int events =
        !!s->event_create + !!s->event_destroy + !!s->event_record + !!s->event_query;
    const int pages =
        !!s->page_bytes + !!s->range_reserve + !!s->range_release + !!s->map + !!s->unmap;
    if (!s->reserve || !s->release || !s->name)
        return cdp__fail(CDP_ERR_INVALID, "a source needs a name, reserve and release");
    if (events != 0 && events != 4)
        return cdp__fail(CDP_ERR_INVALID, "a source has all four functions of events, or none");
    if (pages != 0 && (pages != 5 || s->page_bytes < 4096 || s->page_bytes % CDP__MEM_UNIT))
        return cdp__fail(CDP_ERR_INVALID,
            "a source has page_bytes, range_reserve, range_release, map and unmap, or none of "
            "them; page_bytes %llu must be 4096 or more, and a multiple of 512",
            (unsigned long long)s->page_bytes);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_desc_check(const cdp_mem_desc *d, uint32_t device) {
    uint32_t i;
    if (device >= CDP__MEM_DEVICES)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_mem_create: device %u is above %u", device, CDP__MEM_DEVICES - 1);
    if (d->max_split_bytes && d->max_split_bytes < 20 * CDP__MEM_MIB)
        return cdp__fail(CDP_ERR_INVALID, "max_split_bytes %llu is below 20 MiB",
            (unsigned long long)d->max_split_bytes);
    if (d->large_segment_bytes
        && (d->large_segment_bytes < 10 * CDP__MEM_MIB
            || d->large_segment_bytes % CDP__MEM_SMALL_SEGMENT))
        return cdp__fail(CDP_ERR_INVALID,
            "large_segment_bytes %llu is below 10 MiB, or no multiple of 2 MiB",
            (unsigned long long)d->large_segment_bytes);
    if (d->expandable && (d->max_split_bytes || d->no_cache || d->recorder_only))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_mem_create: expandable segments go with no max_split_bytes, no_cache or "
            "recorder_only; leave one of them out");
    if (!(d->gc_threshold >= 0 && d->gc_threshold < 1))
        return cdp__fail(CDP_ERR_INVALID, "gc_threshold is not between 0 and 1");
    for (i = 0; d->roundup_divisions && i < 16; ++i)
        if (!cdp__mem_divisions_valid(d->roundup_divisions[i]))
            return cdp__fail(CDP_ERR_INVALID,
                "roundup_divisions[%u] is %u, which is no power of two up to 64", i,
                d->roundup_divisions[i]);
    if (d->dump_path && strlen(d->dump_path) >= sizeof((cdp_mem *)NULL)->dump_path)
        return cdp__fail(CDP_ERR_INVALID, "dump_path has more than 1023 bytes");
    return CDP_OK;
}

CDP__PRIVATE void cdp__mem_desc_defaults(cdp_mem *m, const cdp_mem_desc *desc) {
    cdp__mem_sizes *const z = &m->sizes;
    m->desc = *desc;
    m->os = m->desc.os = cdp__def(desc->os, cdp_os_default());
    m->desc.timeout_ms = cdp__def(desc->timeout_ms, 60000u);
    m->desc.wall_us = cdp__def(desc->wall_us, cdp__mem_wall_us);
    m->desc.source = NULL;
    m->desc.roundup_divisions = NULL;
    m->desc.dump_path = NULL;
    if (desc->recorder_only) m->desc.no_cache = true;
    m->limit = desc->limit_bytes;
    z->max_split = cdp__def(desc->max_split_bytes, UINT64_MAX);
    z->max_non_split_rounding = cdp__def(desc->max_non_split_rounding_bytes, 20 * CDP__MEM_MIB);
    if (!desc->max_split_bytes) z->max_non_split_rounding = CDP__MEM_REQUEST_MAX;
    z->large_segment = cdp__def(desc->large_segment_bytes, 20 * CDP__MEM_MIB);
    if (desc->roundup_divisions) {
        memcpy(z->divisions, desc->roundup_divisions, sizeof z->divisions);
        z->divided = true;
    }
    if (desc->dump_path) cdp__mem_text_copy(m->dump_path, desc->dump_path, sizeof m->dump_path);
}

/* The source of a new allocator: that of the desc, none for a recorder, or CUDA. */
CDP__PRIVATE cdp_status cdp__mem_source_of_desc(const cdp_mem_desc *d, cdp_mem_source *out) {
    cdp_status st;
    memset(out, 0, sizeof *out);
    out->name = "recorder";
    if (d->recorder_only && d->source) {
        cdp__mem_source_drop(d->source);
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_create: recorder_only has no source");
    }
    if (d->recorder_only) return CDP_OK;
    if (!d->source) return cdp_mem_source_cuda(NULL, out);
    *out = *d->source;
    st = cdp__mem_source_check(out);
    if (st != CDP_OK) cdp__mem_source_drop(out);
    return st;
}

CDP_API cdp_status cdp_mem_create(const cdp_mem_desc *desc, cdp_mem **out) {
    cdp_mem_source source;
    const cdp_os *os;
    cdp_mem *m;
    cdp_status st;
    if (!out) return cdp__missing("cdp_mem_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_mem_create", "desc");
    if (cdp__os_whole(desc->os, "cdp_mem_create") != CDP_OK) {
        if (desc->source) cdp__mem_source_drop(desc->source);
        return CDP_ERR_INVALID;
    }
    os = cdp__def(desc->os, cdp_os_default());
    st = cdp__mem_source_of_desc(desc, &source);
    if (st != CDP_OK) return st;
    st = cdp__mem_desc_check(desc, desc->recorder_only ? desc->device : source.device);
    if (st == CDP_OK && desc->expandable && !source.map)
        st = cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_mem_create: the source %s cannot map pages, which expandable needs; leave "
            "expandable out",
            source.name);
    m = st == CDP_OK ? (cdp_mem *)cdp__alloc_zero(os, sizeof *m) : NULL;
    if (st == CDP_OK && !m) st = cdp__fail_nomem("cdp_mem_create", sizeof *m);
    if (st != CDP_OK) {
        cdp__mem_source_drop(&source);
        return st;
    }
    cdp__ended_remove(m);
    cdp__mem_desc_defaults(m, desc);
    m->forks = cdp__forks_watch();
    m->base.mem = m;
    m->base.source = source;
    if (!desc->recorder_only) m->desc.device = source.device;
    if (!cdp__lock_open(&m->lock, os, true)) st = cdp__fail_nomem("cdp_mem_create", sizeof *m);
    if (st == CDP_OK && desc->record.history) st = cdp_mem_record(m, &desc->record);
    if (st != CDP_OK)
        (void)cdp_mem_destroy(m);
    else
        *out = m;
    return st;
}

CDP__PRIVATE void cdp__mem_warn(const cdp_mem *m, const char *text) {
    const cdp_logger *const l = &m->desc.logger;
    if (cdp__log_wants(l, CDP_LOG_WARN)) cdp__log_text(l, CDP_LOG_WARN, -1, text);
}

CDP__PRIVATE int cdp__mem_holders_order(const void *a, const void *b) {
    const cdp__mem_holder *const x = (const cdp__mem_holder *)a;
    const cdp__mem_holder *const y = (const cdp__mem_holder *)b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    if (x->first == y->first) return 0;
    return x->first < y->first ? -1 : 1;
}

/* Logs what holds blocks that are still in use, the largest first. */
CDP__PRIVATE void cdp__mem_leaks_log(const cdp_mem *m, cdp__mem_holder *h, uint64_t count) {
    char name[CDP__MEM_NAME], text[CDP__MEM_NAME + 160], size[32];
    uint64_t i, blocks = 0;
    qsort(h, (size_t)count, sizeof *h, cdp__mem_holders_order);
    for (i = 0; i < count && h[i].blocks; ++i) {
        const bool known = h[i].label || h[i].stack;
        if (i >= 10) {
            blocks += h[i].blocks;
            continue;
        }
        if (known) cdp__mem_holder_text(m, &h[i], name);
        cdp__format(text, sizeof text,
            "cdp_mem_destroy: still in use: %s in %llu %s, at 0x%llx%s, allocated by %s",
            cdp__mem_size_text(size, h[i].bytes), (unsigned long long)h[i].blocks,
            h[i].blocks == 1 ? "block" : "blocks", (unsigned long long)h[i].first,
            h[i].blocks == 1 ? "" : " and others",
            known ? name : "calls that were not recorded (see desc.record)");
        cdp__mem_warn(m, text);
    }
    if (!blocks) return;
    cdp__format(text, sizeof text, "cdp_mem_destroy: and %llu more blocks of %llu others",
        (unsigned long long)blocks, (unsigned long long)(i - 10));
    cdp__mem_warn(m, text);
}

/* Logs the blocks that are still in use. Returns their bytes. */
CDP__PRIVATE uint64_t cdp__mem_leaks(const cdp_mem *m) {
    uint64_t count = 0;
    const uint64_t bytes = cdp__mem_now(&m->tally.allocated_bytes);
    cdp__mem_holder *const sums = bytes ? cdp__mem_live_holders(m, &count) : NULL;
    if (sums)
        cdp__mem_leaks_log(m, sums, count);
    else if (bytes)
        cdp__mem_warn(m, "cdp_mem_destroy: blocks are still in use; no memory to say which");
    cdp__free(m->os, sums);
    return bytes;
}

CDP__PRIVATE void cdp__mem_arenas_close(const cdp_os *os, cdp_mem_pool *pool) {
    cdp__mem_arena *a, *next;
    for (a = pool->arenas; a; a = next) {
        next = a->next;
        cdp__mem_arena_close(os, a);
    }
    pool->arenas = NULL;
}

/* Destroys the events of a slab of uses; events in use belong to the source of their block. */
CDP__PRIVATE void cdp__mem_slab_events(const cdp_mem *m, cdp__mem_slab *s) {
    cdp__mem_use *const uses = (cdp__mem_use *)(void *)((char *)s + cdp__mem_up_to(sizeof *s, 16));
    uint64_t i;
    for (i = 0; i < s->uses; ++i) {
        const cdp__mem_part *const p = uses[i].part;
        cdp__mem_use_forget(p ? &p->span->arena->pool->source : &m->base.source, &uses[i]);
    }
}

CDP__PRIVATE void cdp__mem_close(cdp_mem *m) {
    const cdp_os *const os = m->os;
    cdp_mem_pool *pool, *next_pool;
    cdp__mem_slab *s, *next_slab;
    cdp__mem_stream_queue *l, *next_queue;
    cdp__mem_outside *o, *next_outside;
    for (s = m->slabs; s; s = s->next)
        cdp__mem_slab_events(m, s);
    for (s = m->slabs; s; s = next_slab) {
        next_slab = s->next;
        cdp__free(os, s);
    }
    for (l = m->stream_queues; l; l = next_queue) {
        next_queue = l->next;
        cdp__free(os, l);
    }
    for (o = m->outside; o; o = next_outside) {
        next_outside = o->next;
        cdp__free(os, o);
    }
    for (pool = &m->base; pool; pool = next_pool) {
        next_pool = pool->next;
        cdp__mem_arenas_close(os, pool);
        if (pool == &m->base || pool->own_source) cdp__mem_source_drop(&pool->source);
        if (pool == &m->base) continue;
        cdp__ended_add(pool);
        cdp__free(os, pool);
    }
    cdp__free(os, m->table.slots);
    cdp__mem_log_close(os, &m->log);
    cdp__lock_close(&m->lock);
    cdp__free(os, m);
}

CDP_API uint64_t cdp_mem_destroy(cdp_mem *mem) {
    cdp__mem_span *s, *next;
    cdp__mem_call c;
    uint64_t bytes, back = 0;
    if (!mem || cdp__mem_here(mem, "cdp_mem_destroy") != CDP_OK) return 0;
    cdp__ended_add(mem);
    cdp__mem_call_plain(mem, &c);
    cdp__mem_lock(mem);
    cdp__mem_call_enter(mem, &c);
    if (cdp__mem_drain(mem, &c) != CDP_OK) cdp__mem_warn(mem, cdp_last_error()->text);
    bytes = cdp__mem_leaks(mem);
    for (s = mem->spans; s; s = next) {
        next = s->next;
        if (cdp__mem_give_back(mem, &c, s, &back) != CDP_OK)
            cdp__mem_warn(mem, cdp_last_error()->text);
    }
    cdp__mem_unlock(mem);
    cdp__mem_close(mem);
    return bytes;
}

#endif /* CDP_SRC_MEM_LIFETIME_H */
