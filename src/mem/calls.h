/* mem/calls.h - alloc and free

   Knows: the public calls around requests and frees. Promises: a mistake of the caller, or a failed
   free, changes nothing. */
#ifndef CDP_SRC_MEM_CALLS_H
#define CDP_SRC_MEM_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/child.h"
#include "desc_api.h"
#include "allocator_api.h"
#include "live_api.h"
#include "shots_api.h"
#include "sizes.h"
#include "bins.h"
#include "table.h"
#include "depot.h"
#include "blocks.h"
#include "history.h"
#include "streams.h"
#include "ranges.h"
#include "request.h"
#include "out_of_memory.h"
#include "lifetime.h"
#include "budgets.h"

#define CDP__MEM_CALLER(c) ((c)->caller = cdp__return_address(), (c)->frame = cdp__frame_address())

/* Call without the lock: calls the functions whose levels were passed. */
CDP__PRIVATE CDP__COLD void cdp__mem_levels_tell(cdp_mem *m) {
    uint32_t i;
    for (i = 0; i < CDP__MEM_WATCHERS; ++i) {
        cdp__mem_level l;
        cdp__mem_lock(m);
        if (!i) m->levels_due = false;
        l = m->levels[i];
        m->levels[i].due = false;
        cdp__mem_unlock(m);
        if (l.func && l.due) l.func(l.user, m, l.bytes, l.now);
    }
}

/* Tries once to allocate. */
CDP__PRIVATE cdp_status cdp__mem_alloc_once(cdp_mem *m, cdp__mem_call *c, cdp_mem_pool *pool,
    uint64_t bytes, void *stream, void **out, cdp_mem_oom *oom) {
    cdp__mem_request a;
    cdp_status st;
    bool due;
    cdp__mem_lock(m);
    cdp__mem_call_enter(m, c);
    a.no_host = true; /* no device is short of memory yet */
    st = m->has_budgets ? cdp__mem_budget_check(m, bytes) : CDP_OK;
    if (st == CDP_OK) st = cdp__mem_request_begin(m, &a, pool, bytes, stream);
    if (st == CDP_OK) st = cdp__mem_serve(m, c, &a, out);
    if (st == CDP_ERR_NOMEM && !a.no_host)
        st = cdp__mem_oom_report(m, c, &a, oom);
    else
        oom->bytes = 0;
    due = m->levels_due;
    cdp__mem_unlock(m);
    if (due) cdp__mem_levels_tell(m);
    return st;
}

/* Writes the dump and calls the caller's function. Returns whether to try once more. */
CDP__PRIVATE bool cdp__mem_oom_hooks(cdp_mem *m, const cdp_mem_oom *oom) {
    const cdp_error error = *cdp_last_error();
    cdp_mem_oom_func func;
    void *user;
    bool dump, again;
    cdp__mem_lock(m);
    dump = m->dump_path[0] && !m->dumped;
    m->dumped = m->dumped || dump;
    func = m->on_oom;
    user = m->on_oom_user;
    cdp__mem_unlock(m);
    if (dump && cdp_mem_dump(m, m->dump_path) != CDP_OK) cdp__mem_warn(m, cdp_last_error()->text);
    again = func && func(user, m, oom);
    *cdp__error_slot() = error;
    return again;
}

CDP__PRIVATE cdp_status cdp__mem_alloc_any(
    cdp_mem *m, cdp__mem_call *c, cdp_mem_pool *pool, uint64_t bytes, void *stream, void **out) {
    cdp_mem_oom oom;
    cdp_status st;
    bool again = false;
    if (m->desc.recorder_only)
        return cdp__fail(CDP_ERR_STATE, "cdp_mem_alloc: a recorder_only has no memory");
    if (bytes >= CDP__MEM_REQUEST_MAX)
        return cdp__fail(CDP_ERR_NOMEM,
            "cdp_mem_alloc: %llu bytes are 2^60 or more; was a negative "
            "number converted?",
            (unsigned long long)bytes);
    for (;;) {
        st = cdp__mem_alloc_once(m, c, pool, bytes, stream, out, &oom);
        if (st != CDP_ERR_NOMEM || !oom.bytes || again) return st;
        again = cdp__mem_oom_hooks(m, &oom);
        if (!again) return st;
    }
}

CDP_API cdp_status cdp_mem_alloc(cdp_mem *mem, uint64_t bytes, void *stream, void **out) {
    cdp__mem_call c;
    if (!out) return cdp__missing("cdp_mem_alloc", "out");
    *out = NULL;
    if (cdp__mem_here(mem, "cdp_mem_alloc") != CDP_OK) return cdp_last_error()->status;
    if (!bytes) return CDP_OK;
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_STACK, NULL);
    return cdp__mem_alloc_any(mem, &c, NULL, bytes, stream, out);
}

CDP_API cdp_status cdp_mem_alloc_at(cdp_mem *mem, cdp_mem_pool *pool, uint64_t bytes, void *stream,
    const cdp_mem_site *site, void **out) {
    cdp__mem_call c;
    if (!out) return cdp__missing("cdp_mem_alloc_at", "out");
    *out = NULL;
    if (cdp__mem_here(mem, "cdp_mem_alloc_at") != CDP_OK) return cdp_last_error()->status;
    if (cdp__mem_pool_here(pool, "cdp_mem_alloc_at") != CDP_OK) return CDP_ERR_STATE;
    if (pool && pool->mem != mem)
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_alloc_at: the pool is another allocator's");
    if (!bytes) return CDP_OK;
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_STACK, site);
    return cdp__mem_alloc_any(mem, &c, pool, bytes, stream, out);
}

/* The live block at `data`, or an error that says why there is none. The caller holds the lock. */
CDP__MEM_HOT cdp_status cdp__mem_live(
    const cdp_mem *m, const void *data, const char *call, cdp__mem_part **out) {
    const unsigned long long at = (unsigned long long)(uintptr_t)data;
    *out = cdp__mem_table_find(&m->table, (uint64_t)at);
    if (!*out)
        return cdp__fail(CDP_ERR_INVALID,
            "%s: 0x%llx is no block of this allocator on %s: freed already, or of another one, or "
            "not the start of a block",
            call, at, m->base.source.name);
    if ((*out)->state == CDP_MEM_ACTIVE) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "%s: 0x%llx was freed already, and waits for the streams that use it", call, at);
}

CDP__PRIVATE cdp_status cdp__mem_free_any(
    cdp_mem *m, cdp__mem_call *c, const void *data, const char *call) {
    cdp__mem_part *p;
    cdp_status st;
    cdp__mem_lock(m);
    cdp__mem_call_enter(m, c);
    st = cdp__mem_live(m, data, call, &p);
    if (st == CDP_OK) {
        cdp_mem_pool *const pool = p->span->arena->pool;
        const uint64_t offset = cdp__mem_offset(p);
        st = cdp__mem_free_part(m, c, p);
        if (st == CDP_OK && pool != &m->base) pool->hash = cdp__mem_mix(pool->hash, offset + 1);
    }
    cdp__mem_unlock(m);
    return st;
}

CDP_API cdp_status cdp_mem_free(cdp_mem *mem, void *data) {
    cdp__mem_call c;
    if (!data) return CDP_OK;
    if (cdp__mem_here(mem, "cdp_mem_free") != CDP_OK) return cdp_last_error()->status;
    CDP__MEM_CALLER(&c);
    cdp__mem_call_begin(mem, &c, CDP__MEM_WANTS_FREE, NULL);
    return cdp__mem_free_any(mem, &c, data, "cdp_mem_free");
}

CDP_API cdp_status cdp_mem_record_stream(cdp_mem *mem, void *data, void *stream) {
    cdp__mem_part *p;
    cdp_status st;
    if (cdp__mem_here(mem, "cdp_mem_record_stream") != CDP_OK) return cdp_last_error()->status;
    if (!data) return cdp__missing("cdp_mem_record_stream", "data");
    cdp__mem_lock(mem);
    st = cdp__mem_live(mem, data, "cdp_mem_record_stream", &p);
    if (st == CDP_OK) {
        const cdp__mem_arena *const a = p->span->arena;
        if (a->stream != stream && !a->pool->fixed_bytes && a->pool->source.event_create)
            st = cdp__mem_use_add(mem, p, stream);
    }
    cdp__mem_unlock(mem);
    return st;
}

/* Blocks recorded on this stream no longer wait for it. */
CDP__PRIVATE void cdp__mem_stream_queue_forget(cdp_mem *m, const cdp__mem_call *c, void *stream) {
    cdp__mem_slab *s;
    for (s = m->slabs; s; s = s->next) {
        cdp__mem_use *const uses =
            (cdp__mem_use *)(void *)((char *)s + cdp__mem_up_to(sizeof *s, 16));
        uint64_t i;
        for (i = 0; i < s->uses; ++i)
            if (uses[i].part && uses[i].queue->stream == stream) uses[i].forgotten = true;
    }
    (void)cdp__mem_poll(m, c);
}

/* Returns the free memory of this stream, and removes its data from the ordinary pool. */
CDP__PRIVATE cdp_status cdp__mem_arena_forget(cdp_mem *m, const cdp__mem_call *c, void *stream) {
    cdp__mem_span *s, *next;
    cdp__mem_arena **at, *a;
    uint64_t bytes = 0;
    for (s = m->spans; s; s = next) {
        cdp_status st;
        next = s->next;
        if (s->reported || s->arena->stream != stream || s->arena->pool != &m->base) continue;
        st = cdp__mem_give_back(m, c, s, &bytes);
        if (st != CDP_OK) return st;
    }
    for (at = &m->base.arenas; *at && (*at)->stream != stream;)
        at = &(*at)->next;
    a = *at;
    if (!a) return CDP_OK;
    *at = a->next;
    cdp__mem_arena_close(m->os, a);
    return CDP_OK;
}

CDP_API cdp_status cdp_mem_forget_stream(cdp_mem *mem, void *stream) {
    const cdp__mem_span *s;
    cdp_mem_pool *pool;
    cdp__mem_arena *a;
    cdp__mem_call c;
    cdp_status st = CDP_OK;
    if (cdp__mem_here(mem, "cdp_mem_forget_stream") != CDP_OK) return cdp_last_error()->status;
    cdp__mem_call_plain(mem, &c);
    cdp__mem_lock(mem);
    cdp__mem_call_enter(mem, &c);
    for (s = mem->spans; s && st == CDP_OK; s = s->next) {
        const cdp__mem_part *p = s->first;
        if (s->arena->stream != stream || s->arena->pool != &mem->base) continue;
        while (p && p->state == CDP_MEM_INACTIVE)
            p = p->next;
        if (p)
            st = cdp__fail(p->state == CDP_MEM_ACTIVE ? CDP_ERR_INVALID : CDP_ERR_STATE,
                "cdp_mem_forget_stream: 0x%llx, allocated for stream 0x%llx, is %s",
                (unsigned long long)p->at, (unsigned long long)(uintptr_t)stream,
                p->state == CDP_MEM_ACTIVE ? "still in use; free it first"
                                           : "freed, but waits for other streams");
    }
    if (st == CDP_OK) cdp__mem_stream_queue_forget(mem, &c, stream);
    if (st == CDP_OK) st = cdp__mem_arena_forget(mem, &c, stream);
    for (pool = st == CDP_OK ? mem->base.next : NULL; pool; pool = pool->next)
        for (a = pool->arenas; a; a = a->next)
            if (a->stream == stream) a->forgotten = true;
    cdp__mem_unlock(mem);
    return st;
}

CDP_API uint64_t cdp_mem_usable(const cdp_mem *mem, const void *data) {
    const cdp__mem_part *p;
    uint64_t bytes;
    if (!data || !cdp__mem_lives(mem)) return 0;
    cdp__mem_lock(mem);
    p = cdp__mem_table_find(&mem->table, (uint64_t)(uintptr_t)data);
    bytes = p && p->state == CDP_MEM_ACTIVE ? p->size : 0;
    cdp__mem_unlock(mem);
    return bytes;
}

CDP_API uint64_t cdp_mem_trim(cdp_mem *mem) {
    cdp__mem_call c;
    cdp_status st;
    uint64_t bytes;
    if (!cdp__mem_lives(mem)) return 0;
    cdp__mem_call_plain(mem, &c);
    cdp__mem_lock(mem);
    cdp__mem_call_enter(mem, &c);
    (void)cdp__mem_poll(mem, &c);
    bytes = cdp__mem_release_idle(mem, &c, NULL, &st);
    cdp__mem_unlock(mem);
    return bytes;
}

CDP_API void cdp_mem_set_limit(cdp_mem *mem, uint64_t bytes) {
    if (!cdp__mem_lives(mem)) return;
    cdp__mem_lock(mem);
    mem->limit = bytes;
    cdp__mem_unlock(mem);
}

CDP_API void cdp_mem_on_oom(cdp_mem *mem, cdp_mem_oom_func func, void *user) {
    if (!cdp__mem_lives(mem)) return;
    cdp__mem_lock(mem);
    mem->on_oom = func;
    mem->on_oom_user = user;
    cdp__mem_unlock(mem);
}

CDP_API cdp_status cdp_mem_watch(cdp_mem *mem, cdp_mem_watch_func func, void *user) {
    const cdp__mem_span *s;
    uint32_t i = 0;
    if (cdp__mem_here(mem, "cdp_mem_watch") != CDP_OK) return cdp_last_error()->status;
    if (!func) return cdp__missing("cdp_mem_watch", "func");
    cdp__mem_lock(mem);
    while (i < CDP__MEM_WATCHERS && mem->watchers[i].func)
        ++i;
    if (i < CDP__MEM_WATCHERS) {
        mem->watchers[i].func = func;
        mem->watchers[i].user = user;
        for (s = mem->spans; s; s = s->next)
            func(user, s->grows ? CDP_MEM_SEGMENT_MAP : CDP_MEM_SEGMENT_ALLOC,
                (void *)(uintptr_t)s->at, s->size,
                s->arena->pool == &mem->base ? NULL : s->arena->pool);
    }
    cdp__mem_unlock(mem);
    if (i < CDP__MEM_WATCHERS) return CDP_OK;
    return cdp__fail(
        CDP_ERR_INVALID, "cdp_mem_watch: %u watchers exist already", CDP__MEM_WATCHERS);
}

/* From now on requests look at levels, or no longer. */
CDP__PRIVATE void cdp__mem_levels_want(cdp_mem *m, bool wanted) {
    const uint32_t rest = m->log.what & ~CDP__MEM_WANTS_LEVEL;
    cdp__atomic_store_u32(&m->log.what, rest | (wanted ? CDP__MEM_WANTS_LEVEL : 0), CDP__RELEASE);
}

CDP_API void cdp_mem_unwatch(cdp_mem *mem, void *user) {
    bool left = false;
    uint32_t i;
    if (!cdp__mem_lives(mem)) return;
    cdp__mem_lock(mem);
    for (i = 0; i < CDP__MEM_WATCHERS; ++i) {
        if (mem->watchers[i].user == user) mem->watchers[i].func = NULL;
        if (mem->levels[i].user == user) mem->levels[i].func = NULL;
        left = left || mem->levels[i].func;
    }
    if (!left) cdp__mem_levels_want(mem, false);
    cdp__mem_unlock(mem);
}

CDP_API cdp_status cdp_mem_watch_level(
    cdp_mem *mem, uint64_t bytes, uint64_t again_bytes, cdp_mem_level_func func, void *user) {
    uint32_t i = 0;
    if (cdp__mem_here(mem, "cdp_mem_watch_level") != CDP_OK) return cdp_last_error()->status;
    if (!func) return cdp__missing("cdp_mem_watch_level", "func");
    if (again_bytes > bytes)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_mem_watch_level: again_bytes %llu is above bytes %llu; memory must fall to "
            "again_bytes before the next call",
            (unsigned long long)again_bytes, (unsigned long long)bytes);
    cdp__mem_lock(mem);
    while (i < CDP__MEM_WATCHERS && mem->levels[i].func)
        ++i;
    if (i < CDP__MEM_WATCHERS) {
        cdp__mem_level *const l = &mem->levels[i];
        memset(l, 0, sizeof *l);
        l->func = func;
        l->user = user;
        l->bytes = bytes;
        l->again = again_bytes;
        l->armed = true;
        cdp__mem_levels_want(mem, true);
    }
    cdp__mem_unlock(mem);
    if (i < CDP__MEM_WATCHERS) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_mem_watch_level: %u levels are watched already; cdp_mem_unwatch removes them",
        CDP__MEM_WATCHERS);
}

/* Lets *place carry a label; none while nothing is recorded. */
CDP__PRIVATE void cdp__mem_label_of(cdp__mem_log *l, uint32_t *place, const char *text) {
    const uint32_t n = cdp__mem_labels_number(&l->labels, cdp__mem_text_hash(text), text);
    cdp__mem_label_set(&l->labels, place, n);
}

#endif /* CDP_SRC_MEM_CALLS_H */
