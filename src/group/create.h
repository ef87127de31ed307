/* group/create.h - creating and destroying a group

   Knows: worlds, streams, the queue. Promises: destroying is local and bounded; other ranks are
   told. */
#ifndef CDP_SRC_GROUP_CREATE_H
#define CDP_SRC_GROUP_CREATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../os/child.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "backend_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../collective/kinds.h"
#include "../base/text.h"
#include "../base/ended.h"
#include "../collective/rounds.h"
#include "../collective/select.h"
#include "../message/header.h"
#include "../failure/chains.h"
#include "../message/stream.h"
#include "../message/port.h"
#include "../message/send.h"
#include "../message/transfer.h"
#include "../collective/executor.h"
#include "state.h"
#include "log.h"
#include "../failure/waits.h"
#include "../failure/spread.h"
#include "flows.h"
#include "running.h"
#include "hub.h"
#include "deferred.h"
#include "progress.h"
#include "world.h"

/* Enters the streams of a new group into the table. Messages that arrived for its channel before it
   was created become its own. Returns false when out of memory. */
CDP__PRIVATE bool cdp__group_enter_streams(cdp_group *g) {
    cdp__world *w = g->w;
    uint32_t p;
    if (!cdp__streams_reserve(w, g->desc.world_size)) return false;
    for (p = 0; p < g->desc.world_size; ++p) {
        g->streams[p].channel = g->channel;
        g->streams[p].peer = cdp__world_rank(g, p);
        if (cdp__stream_enter(w, &g->streams[p])) g->peers[p].used = true;
    }
    return true;
}

/* Handles FAILURE messages that arrived before this rank created the group. */
CDP__PRIVATE void cdp__group_read_early(cdp_group *g) {
    uint32_t p;
    for (p = 0; p < g->desc.world_size; ++p) {
        cdp__stream *s = &g->streams[p];
        if (!s->failure) continue;
        (void)cdp__world_on_control(
            g->w, s->peer, CDP__MESSAGE_FAILURE, g->channel, s->failure, s->failure_bytes);
        cdp__free(g->os, s->failure);
        s->failure = NULL;
    }
}

/* Completes half-sent messages of operations that never end here with their true bytes: a
   receiver may need only these. Not after a failure, because the memory belongs to the caller
   again. */
CDP__PRIVATE void cdp__group_keep(cdp_group *g) {
    cdp__exec *x = &g->exec;
    uint32_t i;
    if (g->health != CDP__HEALTHY) return;
    for (i = 0; i < x->transfer_count; ++i) {
        const cdp__transfer *t = &x->transfers[i];
        cdp__port *port = t->s ? &g->w->ports[t->s->peer] : NULL;
        if (t->receive || !port || port->tx_stream != t->s || (!t->data && port->tx_left)) continue;
        cdp__port_keep(g->w, t->s->peer, t->data ? t->data + t->moved : NULL);
        cdp__port_abandon(port);
    }
}

/* Tells peers that this rank has left, and releases the ports. Lock held. */
CDP__PRIVATE void cdp__group_unlink(cdp_group *g) {
    cdp__world *m = g->w;
    cdp_group **at;
    uint32_t p;
    for (at = &m->active; g->active && *at && *at != g; at = &(*at)->next_active) {
    }
    if (g->active && *at) *at = g->next_active;
    g->active = false;
    *g->link = g->next;
    if (g->next) g->next->link = g->link;
    if (cdp__group_parent(g)) --g->parent->children;
    cdp__group_revoke(g);
    cdp__group_keep(g);
    cdp__flows_close(g, m->groups || g->backed);
    cdp__world_record_closed(m, g->channel);
    for (p = 0; p < g->desc.world_size; ++p)
        cdp__stream_close(m, &g->streams[p], (m->groups || g->backed) && cdp__peer_used(g, p));
    if (m->control_queued) cdp__world_send_queued(m);
}

CDP__PRIVATE void cdp__group_free(cdp_group *g) {
    const cdp_os *os = g->os;
    uint32_t i;
    g->magic = 0;
    cdp__ended_add(g);
    for (i = 0; g->queue.ops && i < g->queue.room; ++i)
        cdp__free(os, g->queue.ops[i].offs);
    cdp__free(os, g->records.ops);
    cdp__free(os, g->streams);
    cdp__free(os, g->peers);
    cdp__free(os, g->queue.ops);
    cdp__free(os, g->barrier);
    cdp__free(os, g->deferred.entries);
    cdp__free(os, g->exec.tmp);
    cdp__free(os, g->members);
#ifndef CDP_NO_GROUPS
    cdp__free(os, (void *)(uintptr_t)g->own.rows);
#endif
    cdp__free(os, g->topology.hosts.ranks);
    cdp__free(os, g);
}

/* Makes threads that wait for operations of the group return with an error, and waits until no
   callback of the group runs. The caller holds the lock. */
CDP__PRIVATE void cdp__group_dismiss(cdp_group *g) {
    cdp__world *m = g->w;
    cdp_group *x;
    uint32_t waiting;
    while (m->calling)
        m->os->threads.cond_wait(
            m->os->user, m->cond, m->lock.mutex, m->os->now_ns(m->os->user) + 10 * CDP__MS);
    if (CDP__DEFERS) cdp__deferred_drop(g);
    for (;;) {
        for (waiting = 0, x = g->children ? m->groups : g; x; x = g->children ? x->next : NULL) {
            if ((x != g && x->parent != g) || !x->queue.waiters) continue;
            waiting += x->queue.waiters;
            if (x->health == CDP__FAILED && x->failure.settle_ns == CDP__NEVER) continue;
            cdp__error(&x->failure.error, CDP_ERR_STATE, -1,
                "rank %u/%u: the group was destroyed while this thread was waiting for one of its "
                "operations",
                g->desc.rank, g->desc.world_size);
            cdp__group_revoke(x);
            x->health = CDP__FAILED;
            x->failure.domain.state = CDP__FAILURE_DONE;
            x->failure.settle_ns = CDP__NEVER;
        }
        if (!waiting) return;
        cdp__world_wake(m);
        m->os->threads.cond_wait(
            m->os->user, m->cond, m->lock.mutex, m->os->now_ns(m->os->user) + 10 * CDP__MS);
    }
}

/* Refuses to destroy a group inside a callback, because its works may still be in use. */
CDP__PRIVATE bool cdp__destroys_inside(cdp_group *g, const char *call) {
    if (!*cdp__inside()) return false;
    (void)call; /* unused with CDP_NO_LOG_STRINGS */
    cdp__enter(g);
    cdp__log(&g->desc.logger, CDP_LOG_ERROR, g->desc.rank,
        "%s: a function given to cdp_work_then() must not destroy groups, nor a ddp in a backward "
        "pass; nothing was done",
        call);
    cdp__leave(g);
    return true;
}

/* True while this group's failure is not told to the peers, even if its cause is not settled. */
CDP__PRIVATE bool cdp__group_must_report(cdp_group *g) {
    return g->failure.settle_ns != CDP__NEVER
        && (g->health != CDP__HEALTHY || (!cdp__group_parent(g) && cdp__group_settling(g)));
}

/* The first part of leaving: other threads return, and no backend is left. Locks the world. */
CDP__PRIVATE void cdp__group_retire(cdp_group *g) {
    cdp__world *m = g->w;
#ifndef CDP_NO_BACKEND
    if (g->backend) {
        const cdp_backend b = *g->backend;
        b.destroy(b.self);
        cdp_group_clear_backend(g);
    }
#endif
    cdp__enter(g);
    cdp__group_dismiss(g);
    /* reads the questions of other ranks, since unread data would reset the connections */
    if (!cdp__group_parent(g) && g->channel == CDP__WORLD_CHANNEL) cdp__world_read_all(m);
    g->failure.leave_ns = m->os->now_ns(m->os->user) + (CDP__SETTLE_MS + CDP__REPORT_MS) * CDP__MS;
}

/* The second part of leaving, after peers were told of a failure, if any: unlinks the group and
   unlocks the world. False: the world has other groups, and goes on. */
CDP__PRIVATE bool cdp__group_part(cdp_group *g) {
    cdp__world *m = g->w;
    cdp_group *x;
    bool last;
    for (x = m->groups; x && g->children; x = x->next) {
        if (cdp__group_parent(x) != g) continue;
        x->parent = NULL; /* it lives on, and from now on fails alone */
        --g->children;
    }
    cdp__group_unlink(g);
    last = !m->groups;
    cdp_lock_release(&m->lock);
    if (last) cdp__world_stop(m);
    return last;
}

/* Frees the group, and its world if it was the last one of it. */
CDP__PRIVATE void cdp__group_release(cdp_group *g, bool last) {
    cdp__world *m = g->w;
    cdp__group_free(g);
    if (last) cdp__world_destroy(m);
}

CDP__PRIVATE void cdp__group_end(cdp_group *g) {
    cdp__world *m;
    bool last, at_once;
#ifndef CDP_NO_FRAMES
    if (!cdp__ended(g) && g->magic == CDP__LEAVING_MAGIC) {
        /* a child of fork() leaves the parent's group alone, see cdp__alive() */
        if (!cdp__is_child(g->w->forks)) cdp__group_release(g, true);
        return;
    }
#endif
    if (cdp__alive(g, "cdp_group_destroy") != CDP_OK) return; /* a second call does nothing */
    if (cdp__destroys_inside(g, "cdp_group_destroy")) return;
    m = g->w;
    at_once = CDP__BUDGETS && g->failure.leave_ns; /* cdp_group_leave() is under way */
    cdp__group_retire(g);
    if (!at_once && cdp__group_must_report(g))
        cdp__progress_until(g, CDP__ALL_WORK, g->failure.leave_ns, false);
    last = cdp__group_part(g);
    while (last && !at_once && m->transport.leave
        && m->transport.leave(m->transport.self, CDP__NEVER)) {
    }
    cdp__group_release(g, last);
}

CDP_API void cdp_group_destroy(cdp_group *g) {
    const cdp_error before = *cdp_last_error(); /* errors of leaving are not the caller's */
    if (!g) return;
    cdp__group_end(g);
    *cdp__error_slot() = before;
}

#ifndef CDP_NO_FRAMES
CDP__PRIVATE cdp_status cdp__group_leave_for(cdp_group *g, uint32_t budget_us) {
    cdp__world *m;
    uint64_t until;
    cdp_status st = CDP_OK;
    if (!g) return CDP_OK;
    if (cdp__ended(g) || g->magic != CDP__LEAVING_MAGIC) st = cdp__alive(g, "cdp_group_leave");
    if (st != CDP_OK) return st;
    m = g->w;
    until = m->os->now_ns(m->os->user) + budget_us * 1000ull;
    if (g->magic != CDP__LEAVING_MAGIC) {
        if (cdp__must_not_wait() != CDP_OK) return CDP_ERR_STATE;
        if (!g->failure.leave_ns)
            cdp__group_retire(g);
        else
            cdp__enter(g);
        if (cdp__group_must_report(g)) {
            cdp__world_poll_transport(m, until);
            cdp__progress_until(g, CDP__ALL_WORK, cdp__min(until, g->failure.leave_ns), true);
        }
        if (cdp__group_must_report(g) && m->os->now_ns(m->os->user) < g->failure.leave_ns) {
            cdp__leave(g);
            return CDP_PENDING;
        }
        if (!cdp__group_part(g)) {
            cdp__group_release(g, false);
            return CDP_OK;
        }
        g->magic = CDP__LEAVING_MAGIC;
    }
    while (m->transport.leave && m->transport.leave(m->transport.self, until))
        if (m->os->now_ns(m->os->user) >= until) return CDP_PENDING;
    cdp__group_release(g, true);
    return CDP_OK;
}

CDP_API cdp_status cdp_group_leave(cdp_group *g, uint32_t budget_us) {
    const cdp_error before = *cdp_last_error();
    const cdp_status st = cdp__group_leave_for(g, budget_us);
    if (st >= 0) *cdp__error_slot() = before;
    return st;
}
#endif

/* Stores which ranks share a host, and the resulting properties of the group. False: out of
   memory. */
CDP__PRIVATE bool cdp__group_read_topology(cdp_group *g) {
    const cdp_transport *t = &g->w->transport;
    const uint32_t n = g->desc.world_size;
    uint32_t *host = (uint32_t *)cdp__alloc(g->os, n * sizeof *host), i, k, at = 0;
    uint16_t *list = (uint16_t *)cdp__alloc(g->os, n * sizeof *list);
    cdp__hosts *h = &g->topology.hosts;
    h->ranks = list;
    h->fewest = UINT32_MAX;
    for (i = 0; i < n && host && list; ++i)
        host[i] = t->topology.host(t->self, cdp__world_rank(g, i));
    for (i = 0; i < n && host && list; ++i) {
        const uint32_t first = at, of = host[i];
        if (of == UINT32_MAX) continue; /* already in the list */
        for (k = i; k < n; ++k) {
            if (host[k] != of) continue;
            list[at] = (uint16_t)(k | (at == first ? CDP__HOST_BEGINS : 0));
            host[k] = UINT32_MAX;
            ++at;
        }
        ++h->count;
        h->fewest = (uint32_t)cdp__min(h->fewest, at - first);
        h->most = (uint32_t)cdp__max(h->most, at - first);
    }
    cdp__free(g->os, host);
    if (h->count == 1)
        g->topology.flags = (uint8_t)(CDP__SAME_HOST | (t->remote.map ? CDP__SHARED : 0));
    if (h->count > 1 && h->most > 1 && n <= CDP__HOST_BEGINS) {
        g->topology.flags = h->fewest == h->most ? CDP__HOSTS | CDP__UNIFORM : CDP__HOSTS;
    } else { /* the list is not needed */
        cdp__free(g->os, list);
        h->ranks = NULL;
    }
    return host && list;
}

/* Allocates the group's arrays. After a failure cdp__group_free() frees those that exist. */
CDP__PRIVATE bool cdp__group_memory(cdp_group *g) {
    const uint32_t n = g->desc.world_size;
    g->peers = (cdp__peer *)cdp__alloc_zero(g->os, n * sizeof *g->peers);
    g->streams = (cdp__stream *)cdp__alloc_zero(g->os, n * sizeof *g->streams);
    g->queue.ops = (cdp__op *)cdp__alloc_zero(g->os, g->queue.room * sizeof *g->queue.ops);
    g->records.ops = (cdp__past *)cdp__alloc_zero(g->os, g->desc.records * sizeof *g->records.ops);
    return g->peers && g->streams && g->queue.ops && g->records.ops;
}

/* Creates a group over existing links. Takes ownership of `members` (NULL: all ranks) if it
   succeeds. Lock held if other threads use the world. */
CDP__PRIVATE cdp_group *cdp__group_make(
    cdp__world *m, const cdp_group_desc *desc, uint64_t channel, uint32_t *members) {
    cdp_group *g = (cdp_group *)cdp__alloc_zero(m->os, sizeof *g);
    bool good;
    if (!g) return NULL;
    g->magic = CDP__GROUP_MAGIC;
    g->made = cdp__handle_number();
    cdp__ended_remove(g);
    g->os = m->os;
    g->w = m;
    g->desc = *desc;
    g->desc.transport = &m->transport;
    g->channel = channel;
#ifndef CDP_NO_GROUPS
    g->choosing = &m->choosing;
#endif
    g->members = members;
    g->failure.domain.channel = channel;
    g->failure.domain.due_ns = g->timers.wait_ns = CDP__NEVER;
    g->timers.soonest_ns = g->timers.revoke_ns = CDP__NEVER;
    g->queue.room = desc->operations;
    if (channel != CDP__WORLD_CHANNEL) g->queue.room = (uint32_t)cdp__min(desc->operations, 8);
    good = cdp__group_memory(g) && cdp__streams_reserve(m, desc->world_size)
        && (!CDP__BY_HOST || !m->transport.topology.host || cdp__group_read_topology(g));
    if (!good || !cdp__group_enter_streams(g)) {
        g->members = NULL; /* the caller keeps it */
        cdp__group_free(g);
        return NULL;
    }
    g->exec.w = m;
    g->exec.streams = g->streams;
    g->exec.piece_bytes = g->desc.piece_bytes;
    g->exec.expose_bytes = g->desc.expose_bytes;
    g->next = m->groups;
    g->link = &m->groups;
    if (g->next) g->next->link = &g->next;
    m->groups = g;
    cdp__group_read_early(g);
    return g;
}

/* The number of the algorithm that `c` names. CDP__ALGO_COUNT: there is none; `known` then lists
   those of its collective. */
CDP__PRIVATE uint32_t cdp__choice_algo(const cdp_choice *c, char *known, uint64_t room) {
    cdp__text t = cdp__text_of(known, room);
    uint32_t a;
    for (a = 0; a < CDP__ALGO_COUNT; ++a) {
        const cdp__algo *algo = cdp__algo_at(a);
        if (algo->kind != c->kind) continue;
        if (c->algorithm && strcmp(algo->name, c->algorithm) == 0) return a;
        if (CDP__TEXTS) cdp__text_add(&t, "%s%s", t.used ? ", " : "", algo->name);
    }
    return a;
}

/* Reads the caller's rows of algorithm choices, and resolves the algorithms' names. */
CDP__PRIVATE cdp_status cdp__choices_read(
    const cdp_os *os, cdp__choosing *to, const cdp_group_desc *desc, const char *call) {
    cdp__row *rows = (cdp__row *)cdp__alloc(os, desc->choice_count * sizeof *rows);
    uint32_t i;
    (void)call; /* unused with CDP_NO_LOG_STRINGS */
    to->rows = rows;
    to->small_bytes = cdp__def(desc->small_bytes, 64 * 1024);
    to->reproducible = desc->reproducible;
    if (!rows) return cdp__fail_nomem("a group", desc->choice_count * sizeof *rows);
#ifdef CDP_NO_REPRODUCIBLE
    if (desc->reproducible)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "%s: reproducible is set, but this program was built with "
            "CDP_NO_REPRODUCIBLE",
            call);
#endif
    if (desc->choice_count && !desc->choices) return cdp__missing(call, "desc.choices");
    for (i = 0; i < desc->choice_count; ++i) {
        const cdp_choice *c = &desc->choices[i];
        char known[160] = "";
        const uint32_t a = cdp__choice_algo(c, known, sizeof known);
        if (a == CDP__ALGO_COUNT)
            return cdp__fail(CDP_ERR_INVALID,
                "%s: choices[%u]: there is no algorithm \"%s\" for %s; there is: %s", call, i,
                c->algorithm, cdp_coll_name(c->kind), known);
        if (desc->reproducible && !cdp__algo_at(a)->fixed)
            return cdp__fail(CDP_ERR_INVALID,
                "%s: choices[%u]: the bits of %s depend on the message's size, which "
                "`reproducible` forbids",
                call, i, c->algorithm);
        rows[i].algo = (uint8_t)a;
        rows[i].max_bytes = cdp__min(c->max_bytes, CDP__TINY - 1);
        rows[i].max_ranks = c->max_ranks;
        rows[i].only = a < CDP__HOSTS_GATHER ? CDP__HOSTS : CDP__UNIFORM;
        if (a < CDP__LANES) rows[i].only = 0;
    }
    to->row_count = desc->choice_count;
    return CDP_OK;
}

/* Without a system the caller's cdp_os is required, and whole. */
CDP__PRIVATE bool cdp__group_has_os(const cdp_os *os) {
#ifdef CDP_NO_OS
    return os && os->alloc && os->release && os->now_ns && os->random;
#else
    (void)os;
    return true;
#endif
}

/* Checks the desc that the caller has filled in. */
CDP__PRIVATE cdp_status cdp__group_desc_check(const cdp_group_desc *desc) {
    const cdp_transport *t = desc->transport;
    const bool linked =
        t ? t->send && t->recv && t->wait && t->wake : desc->hub || desc->world_size == 1;
    if (desc->world_size - 1 >= 65535)
        return cdp__world_wrong("cdp_group_create", desc->world_size);
    if (desc->rank >= desc->world_size)
        return cdp__fail(CDP_ERR_INVALID, "cdp_group_create: rank %u is not below world_size %u",
            desc->rank, desc->world_size);
    if (!cdp__group_has_os(desc->os))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_create: the library was compiled with CDP_NO_OS: set os in the desc, with "
            "alloc, release, now_ns and random");
    if (cdp__os_whole(desc->os, "cdp_group_create") != CDP_OK) return CDP_ERR_INVALID;
    if (!linked)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_create: %u ranks need a hub or a transport with send, recv, wait and wake "
            "(or cdp_init_from_env of cdp_tcp.h)",
            desc->world_size);
    if (desc->window_bytes && (desc->window_bytes < 4096 || desc->window_bytes > CDP__WINDOW))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_create: window_bytes %llu is not in 4096 .. %u; 0 is the default",
            (unsigned long long)desc->window_bytes, CDP__WINDOW);
    if (desc->dump_path && strlen(desc->dump_path) > 1000)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_group_create: dump_path has %u bytes; at most 1000 are kept",
            (unsigned)strlen(desc->dump_path));
#ifndef CDP_NO_RECORDER
    if (desc->dump_path && !(desc->os ? desc->os : cdp_os_default())->files.open_file)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_group_create: dump_path is set and this cdp_os has no files; set its member "
            "`files`, or leave dump_path NULL");
#endif
    return CDP_OK;
}

/* The transport of a new group: the caller's, the hub's, or that of a rank without peers. */
CDP__PRIVATE cdp_status cdp__group_transport(const cdp_group_desc *desc, cdp_transport *t) {
    if (desc->transport) return CDP_OK;
    if (desc->hub) return cdp__hub_attach(desc->hub, desc->rank, desc->world_size, t);
    t->send = t->recv = cdp__alone_move;
    t->wait = cdp__alone_wait;
    t->wake = t->destroy = cdp__alone_nothing;
    return CDP_OK;
}

/* Starts the progress thread of the world, unless the desc forbids it. */
#ifdef CDP_NO_THREADS
CDP__PRIVATE cdp_status cdp__group_start_thread(cdp_group *g) {
    (void)g;
    return CDP_OK;
}
#else
CDP__PRIVATE cdp_status cdp__group_start_thread(cdp_group *g) {
    cdp__world *m = g->w;
    if (!m->cond || g->desc.no_thread || g->desc.world_size == 1) return CDP_OK;
    m->thread = g->os->threads.start(g->os, cdp__progress_thread, m);
    return m->thread ? CDP_OK
                     : cdp__fail(CDP_ERR_IO,
                         "cannot start the progress thread; set no_thread in the desc and call "
                         "cdp_poll() instead");
}
#endif

CDP_API cdp_status cdp_group_create(const cdp_group_desc *desc, cdp_group **out) {
    cdp_group_desc d;
    cdp_transport t;
    cdp__world *m = NULL;
    cdp_status st;
    if (!out) return cdp__missing("cdp_group_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_group_create", "desc");
    d = *desc;
    cdp__group_desc_defaults(&d);
    memset(&t, 0, sizeof t);
    if (desc->transport) t = *desc->transport;
    st = cdp__group_desc_check(desc);
    if (st == CDP_OK) st = cdp__group_transport(desc, &t);
    if (st == CDP_OK) m = cdp__world_create(&d, &t);
    if (!m) {
        if (t.destroy) t.destroy(t.self);
        return st == CDP_OK
            ? cdp__fail_nomem("a group", d.world_size * sizeof(cdp__port) + d.stage_bytes)
            : st;
    }
    m->given = *desc;
    if (!desc->expose_bytes && !t.remote.try_revoke) d.expose_bytes = d.window_bytes + 1;
    st = cdp__choices_read(m->os, &m->choosing, desc, "cdp_group_create");
    if (st == CDP_ERR_INVALID && !desc->transport && desc->hub) cdp__hub_refuse(t.self);
    if (st == CDP_OK) *out = cdp__group_make(m, &d, CDP__WORLD_CHANNEL, NULL);
    if (st == CDP_OK && !*out) st = cdp__fail_nomem("a group", d.world_size * sizeof(cdp__peer));
    if (st != CDP_OK) {
        cdp__world_destroy(m);
        return st;
    }
    cdp__log_made(*out);
    st = cdp__group_start_thread(*out);
    if (st == CDP_OK) return CDP_OK;
    cdp_group_destroy(*out);
    *out = NULL;
    return st;
}

#endif /* CDP_SRC_GROUP_CREATE_H */
