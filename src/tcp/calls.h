/* tcp/calls.h - the public functions

   Knows: descs and the environment. Promises: a call that fails leaves nothing behind. */
#ifndef CDP_SRC_TCP_CALLS_H
#define CDP_SRC_TCP_CALLS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/basics.h"
#include "../os/words.h"
#include "../os/child.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../os/whole.h"
#include "../os/loop.h"
#include "../collective/select.h"
#include "../group/state.h"
#include "../store/addr.h"
#include "../store/auth.h"
#include "../store/client_calls.h"
#include "desc_api.h"
#include "create_api.h"
#include "launch_api.h"
#include "cxx_api.h"
#include "paths.h"
#include "mesh.h"
#include "transport.h"
#include "first_cause.h"
#include "rendezvous.h"
#include "rendezvous_meeting.h"
#include "rendezvous_given.h"
#include "launchers.h"
#include "url.h"
#include "backends.h"

CDP__PRIVATE cdp_tcp_desc cdp__tcp_desc_defaults(const cdp_tcp_desc *desc) {
    cdp_tcp_desc d = *desc;
    d.master_addr = cdp__def(d.master_addr, "127.0.0.1");
    d.job = cdp__def(d.job, "cdp");
    d.init_timeout_ms = cdp__def(d.init_timeout_ms, 300000);
    d.connections = cdp__def(d.connections, 1);
    if (!d.group.os) d.group.os = cdp_os_default();
    return d;
}

/* Checks a desc for invalid values and combinations. */
CDP__PRIVATE CDP__COLD cdp_status cdp__tcp_desc_check(const cdp_tcp_desc *d) {
    cdp_addr at;
    if (cdp__os_whole(d->group.os, "cdp_init") != CDP_OK) return CDP_ERR_INVALID;
    if (d->group.hub || d->group.transport)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: group.%s is set; leave it NULL, or call cdp_group_create() for ranks that "
            "are connected by it",
            d->group.hub ? "hub" : "transport");
    if (!d->group.world_size || d->group.world_size > 65535)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_init: world_size %u is not in 1 .. 65535", d->group.world_size);
    if (d->group.rank >= d->group.world_size)
        return cdp__fail(CDP_ERR_INVALID, "cdp_init: rank %u is not below world_size %u",
            d->group.rank, d->group.world_size);
    if (!cdp__host_plausible(d->master_addr))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: master_addr '%s' is neither an address nor the name of a host: give that "
            "alone, "
            "such as 10.0.0.1 or node7",
            d->master_addr);
    if (d->listen_addr && !cdp__addr_parse(d->listen_addr, &at))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: listen_addr '%s' is no address; names are not allowed there",
            d->listen_addr);
    if (d->ring_bytes && (d->ring_bytes < 64 || d->ring_bytes > 1u << 30))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: ring_bytes %llu is not in 64 .. 1073741824; 0 is the default",
            (unsigned long long)d->ring_bytes);
    if (d->connections > 16)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_init: connections %u is not in 1 .. 16", d->connections);
    if (d->interfaces && !d->group.os->net.addresses)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_init: interfaces '%s': the os of the desc has no function `addresses` that could "
            "find them; give it one, or set listen_addr instead",
            d->interfaces);
#ifdef CDP_NO_MAC
    if (d->mac)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_init: mac is set, but CDP_NO_MAC is defined: compile without it, or unset mac");
#endif
    if (d->mac && !(d->job_key && d->job_key[0]))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: mac needs a job key: set CDP_JOB_KEY, or job_key, to the same secret for "
            "all ranks");
#ifndef CDP_NO_ENV
    if (!cdp__backend_is_tcp(d->backend))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "backend '%s': only cdp_init(), cdp_init_url() and cdp_init_from_env() start with "
            "backends of the program; leave desc.backend and CDP_BACKEND empty here, or set "
            "\"tcp\"",
            d->backend);
#endif
    if (strlen(d->job) > 48)
        return cdp__fail(CDP_ERR_INVALID, "cdp_init: the job name is longer than 48 bytes");
    if (d->group.world_size > 1 && !d->master_port && !d->file && !d->store && !d->exchange)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_init: master_port is 0; set it to a port that is free on rank 0's machine");
    return CDP_OK;
}

CDP__PRIVATE void cdp__mesh_transport(cdp__mesh *m, cdp_transport *t) {
    memset(t, 0, sizeof *t);
    t->self = m;
    t->send = m->desc.connections > 1 ? cdp__bundle_send : cdp__mesh_send;
    t->recv = m->desc.connections > 1 ? cdp__bundle_recv : cdp__mesh_recv;
    t->wait = cdp__mesh_wait;
    t->wake = cdp__mesh_wake;
    t->failure.publish = cdp__mesh_publish;
    t->failure.first = cdp__mesh_first;
    t->failure.linked = cdp__mesh_linked;
    t->failure.unacked = cdp__mesh_unacked;
#ifndef CDP_NO_RECORDER
    t->describe = cdp__mesh_describe;
    t->name = "tcp";
#endif
    t->failure.starting = cdp__mesh_starting;
    t->leave = cdp__mesh_leave;
    t->destroy = cdp__mesh_close;
#ifndef CDP_NO_SHARED_MEMORY
    t->remote.expose = cdp__mesh_expose;
    t->remote.revoke = cdp__mesh_revoke;
    t->remote.try_revoke = cdp__mesh_try_revoke;
    t->remote.map = cdp__mesh_map;
    t->remote.unmap = cdp__mesh_unmap;
    t->remote.get = cdp__mesh_get;
    t->memory.alloc = cdp__mesh_alloc;
    t->memory.release = cdp__mesh_release;
    t->slots.memory = cdp__mesh_slots;
    t->slots.ring = cdp__mesh_doorbell;
#endif
    if (CDP__BY_HOST) t->topology.host = cdp__mesh_host;
}

/* Closes what is left of an attempt that has failed for the reason `why`. */
CDP__PRIVATE cdp_status cdp__mesh_undo(cdp__mesh *m, const cdp_error *why) {
    m->failing = true;
    while (cdp__mesh_leave(m, CDP__NEVER)) {
    }
    cdp__mesh_close(m);
    return cdp__error_record(why);
}

/* All that is needed to meet the other ranks. */
CDP__PRIVATE cdp_status cdp__mesh_make(const cdp_tcp_desc *d, cdp__mesh **out) {
    cdp__mesh *m = (cdp__mesh *)cdp__alloc_zero(d->group.os, sizeof *m);
    cdp_error why;
    cdp_status st;
    if (!m) return cdp__fail_nomem("a mesh", sizeof *m);
    m->desc = *d;
    cdp__format(m->job_name, sizeof m->job_name, "%s", d->job);
    m->spread = d->interfaces && d->connections > 1;
    m->os = d->group.os;
    st = cdp__auth_key_read(d->job_key, m->key, &m->keyed);
    if (st != CDP_OK) {
        cdp__free(m->os, m);
        return st;
    }
    st = cdp__mesh_open(m);
    if (st == CDP_OK) {
        *out = m;
        return CDP_OK;
    }
    why = *cdp_last_error();
    return cdp__mesh_undo(m, &why);
}

/* All ranks have met: the group. */
#ifdef CDP_NO_LOG_STRINGS
CDP__PRIVATE void cdp__mesh_log_start(const cdp__mesh *m) {
    (void)m;
}
#else
/* The ranks have met. */
CDP__PRIVATE CDP__COLD void cdp__mesh_log_start(const cdp__mesh *m) {
    const cdp_group_desc *const g = &m->desc.group;
    const char *store = "a store elsewhere";
    uint32_t i, hosts = 0;
    char at[80];
    if (m->desc.file) store = "a file";
    if (m->desc.store) store = "a store of the program";
    if (cdp__mesh_alone(m)) store = "addresses that were given";
    if (cdp__mesh_serves(m)) store = "a store that this rank serves";
    for (i = 0; m->hosts && i < g->world_size; ++i)
        hosts = (uint32_t)cdp__max(hosts, m->hosts[i] + 1);
    cdp__log(&g->logger, CDP_LOG_INFO, g->rank,
        "started in %llu ms: rank %u of %u, job '%s', %u hosts, met by %s; listens on %s; %s, %s%s",
        (unsigned long long)((cdp__mesh_now(m) - m->start_ns) / CDP__MS), g->rank, g->world_size,
        m->job_name, hosts, store, cdp__addr_text(&m->at, at, sizeof at),
        m->keyed ? "with a job key" : "without a job key",
        m->desc.mac ? "codes of all bytes" : "no codes",
        m->desc.no_shared_memory ? ", no shared memory" : "");
}
#endif

CDP__PRIVATE cdp_status cdp__mesh_group(cdp__mesh *m, cdp_group **out) {
    cdp_group_desc g = m->desc.group;
    cdp_transport t;
    cdp__mesh_log_start(m);
    /* the caller's texts are only valid while it starts */
    m->desc.master_addr = "";
    m->desc.listen_addr = m->desc.interfaces = m->desc.file = m->desc.job_key = NULL;
    m->desc.store = NULL;
    m->desc.exchange = NULL;
    m->desc.job = m->job_name;
    cdp__mesh_transport(m, &t);
    g.transport = &t;
    return cdp_group_create(&g, out);
}

CDP__PRIVATE cdp_status cdp__init_check(
    const cdp_tcp_desc *desc, const void *out, cdp_tcp_desc *d) {
    if (!out) return cdp__missing("cdp_init", "out");
    if (!desc) return cdp__missing("cdp_init", "desc");
    *d = cdp__tcp_desc_defaults(desc);
    return cdp__tcp_desc_check(d);
}

CDP_API cdp_status cdp_init(const cdp_tcp_desc *desc, cdp_group **out) {
    cdp_tcp_desc d;
    cdp__mesh *m = NULL;
    cdp_error why;
    cdp_status st;
    CDP__NOT_COLD();
    if (out) *out = NULL;
#ifndef CDP_NO_ENV
    if (desc && out && !cdp__backend_is_tcp(desc->backend)) return cdp__backend_start(desc, out);
#endif
    st = cdp__init_check(desc, out, &d);
    if (st != CDP_OK) return st;
    if (d.group.world_size == 1) return cdp_group_create(&d.group, out);
    st = cdp__mesh_make(&d, &m);
    if (st != CDP_OK) return st;
    st = cdp__mesh_rendezvous(m, &why);
    return st == CDP_OK ? cdp__mesh_group(m, out) : cdp__mesh_undo(m, &why);
}

#ifndef CDP_NO_FRAMES

struct cdp_starting {
    const cdp_os *os;
    uint32_t forks;       /* see cdp__is_child() */
    cdp_group_desc alone; /* of a rank without others */
    cdp__mesh *mesh;      /* NULL: there are none */
    cdp_status status;    /* PENDING while the ranks meet; then a failure that others still read */
    cdp_error error;
};

/* Where a start that is over is remembered: inside of it, because a group may soon have its
   address. */
CDP__PRIVATE const void *cdp__starting_mark(const cdp_starting *s) {
    return (const char *)s + 16;
}

/* Refuses a start that is over, and one that a parent by fork() has begun. */
CDP__PRIVATE cdp_status cdp__starting_lives(const cdp_starting *s, const char *call) {
    if (!s) return cdp__missing(call, "starting");
    if (cdp__ended(cdp__starting_mark(s)))
        return cdp__fail(CDP_ERR_STATE,
            "%s: this start is over: cdp_init_poll() has returned another status than PENDING, or "
            "it was cancelled",
            call);
    return cdp__is_child(s->forks) ? cdp__child_refuses(CDP_ERR_STATE, call, "start") : CDP_OK;
}

/* Its memory goes. */
CDP__PRIVATE void cdp__starting_free(cdp_starting *s) {
    cdp__ended_add(cdp__starting_mark(s));
    cdp__free(s->os, s);
}

CDP_API cdp_status cdp_init_start(const cdp_tcp_desc *desc, cdp_starting **out) {
    cdp_tcp_desc d;
    cdp_starting *s;
    cdp_status st;
    CDP__NOT_COLD();
    if (out) *out = NULL;
    st = cdp__init_check(desc, out, &d);
    if (st != CDP_OK) return st;
    s = (cdp_starting *)cdp__alloc_zero(d.group.os, sizeof *s);
    if (!s) return cdp__fail_nomem("a start", sizeof *s);
    cdp__ended_remove(cdp__starting_mark(s));
    s->os = d.group.os;
    s->forks = cdp__forks_watch();
    s->alone = d.group;
    s->status = CDP_PENDING;
    if (d.group.world_size > 1) st = cdp__mesh_make(&d, &s->mesh);
    if (st == CDP_OK)
        *out = s;
    else
        cdp__free(s->os, s);
    return st;
}

CDP_API void cdp_init_cancel(cdp_starting *s) {
    if (!s || cdp__starting_lives(s, "cdp_init_cancel") != CDP_OK) return;
    if (s->mesh) {
        cdp__join_free(s->mesh);
        /* its last will tells the others, unless its failure already has */
        if (s->status == CDP_PENDING && s->mesh->watch) cdp__tcp_store_abandon(s->mesh->watch);
        cdp__mesh_close(s->mesh);
    }
    cdp__starting_free(s);
}

/* One step of a start; waits until until_ns at most. A rank that could not start stays until the
   others have read the reason. */
CDP__PRIVATE cdp_status cdp__starting_step(cdp_starting *s, uint64_t until_ns) {
    cdp__mesh *m = s->mesh;
    cdp_status st = s->status;
    if (st == CDP_PENDING) st = cdp__join_go_on(m);
    if (st == CDP_PENDING) {
        if (!cdp__join_held(m->join)) cdp__join_run(m, until_ns);
        return CDP_PENDING;
    }
    if (st == CDP_OK) {
        cdp__join_free(m);
        return st;
    }
    if (s->status == CDP_PENDING) {
        s->error = m->join->error;
        s->status = st;
        cdp__join_free(m);
        m->leaving = true;
    }
    if (!m->part_ns && cdp__mesh_lingers(m, until_ns)) return CDP_PENDING;
    return cdp__mesh_parts(m, until_ns) ? CDP_PENDING : st;
}

/* It goes on, and the time in which all ranks must be found begins now. */
CDP__PRIVATE void cdp__starting_anew(cdp_starting *s) {
    cdp__mesh *m = s->mesh;
    if (!m) return;
    m->join->hold = 0;
    m->start_ns = cdp__mesh_now(m);
    m->join->deadline_ns = cdp__mesh_init_deadline(m);
}

/* A start for which the caller exchanges what *own is: a record of this rank, valid until the start
   continues. See cdp__mesh_given(). */
CDP__PRIVATE cdp_status cdp__starting_given(
    const cdp_tcp_desc *desc, const uint8_t *job, cdp_bytes *own, cdp_starting **out) {
    cdp_error why;
    cdp_status st = cdp_init_start(desc, out);
    own->data = "1";
    own->bytes = 1;
    if (st != CDP_OK || !(*out)->mesh) return st;
    st = cdp__mesh_given((*out)->mesh, job, desc->store);
    *own = (*out)->mesh->join->values[0];
    if (st == CDP_OK) return st;
    why = *cdp_last_error();
    cdp_init_cancel(*out);
    *out = NULL;
    return cdp__error_record(&why);
}

/* The records of all ranks, in their order: the start goes on, and its time begins now. */
CDP__PRIVATE cdp_status cdp__starting_give(cdp_starting *s, const cdp_bytes *records) {
    const cdp_status st = s->mesh ? cdp__mesh_take_records(s->mesh, records) : CDP_OK;
    if (st == CDP_OK) cdp__starting_anew(s);
    return st;
}

/* Continues the start of rank 0 up to where it needs others, who can read then where it listens.
   For that, it connects to nothing but itself. It waits for nothing when this returns: a time limit
   would pass while nobody continues it. */
CDP__PRIVATE cdp_status cdp__starting_publish(cdp_starting *s) {
    cdp__mesh *m = s->mesh;
    cdp_status st = s->status;
    if (m) m->join->hold = CDP__JOIN_OTHERS;
    while (m && st == CDP_PENDING && !(m->join && cdp__join_held(m->join)))
        st = cdp__starting_step(s, cdp__deadline(s->os, 100));
    return st < 0 ? cdp__error_record(&s->error) : CDP_OK;
}

CDP_API cdp_status cdp_init_poll(cdp_starting *s, uint32_t budget_us, cdp_group **out) {
    uint64_t until;
    cdp_status st = CDP_OK;
    cdp_error e;
    if (!out) return cdp__missing("cdp_init_poll", "out");
    *out = NULL;
    if (cdp__starting_lives(s, "cdp_init_poll") != CDP_OK) return cdp_last_error()->status;
    until = budget_us ? s->os->now_ns(s->os->user) + budget_us * 1000ull : 0;
    do
        if (s->mesh) st = cdp__starting_step(s, until);
    while (st == CDP_PENDING && s->os->now_ns(s->os->user) < until);
    if (st == CDP_PENDING) return st;
    if (st == CDP_OK) {
        st = s->mesh ? cdp__mesh_group(s->mesh, out) : cdp_group_create(&s->alone, out);
        cdp__starting_free(s);
        return st;
    }
    e = s->error;
    cdp_init_cancel(s);
    return cdp__error_record(&e);
}

#endif /* CDP_NO_FRAMES */

#ifndef CDP_NO_ENV

CDP__PRIVATE const char *cdp__getenv(void *user, const char *name) {
    (void)user;
    return getenv(name);
}

CDP_API cdp_status cdp_launch_read(cdp_getenv_func get, void *user, cdp_launch *out) {
    cdp__vars v;
    if (!out) return cdp__missing("cdp_launch_read", "out");
    v.get = get ? get : cdp__getenv;
    v.user = user;
    CDP__NOT_COLD();
    return cdp__launch_read(&v, out);
}

/* The file in which the ranks of one host meet if their launcher gives no port. */
CDP__PRIVATE void cdp__launch_file(const cdp_launch *l, char *file, uint64_t size) {
    const char *dir = l->dir[0] ? l->dir : cdp__os_temporary();
    const unsigned user = cdp__os_user_number();
    if (l->job[0]) {
        cdp__format(file, size, "%s/cdp-%u-%s", dir, user, l->job);
        return;
    }
    /* Hydra has one parent process per host */
    cdp__format(file, size, "%s/cdp-%u-parent-%u", dir, user, (unsigned)cdp__os_parent_number());
}

CDP__PRIVATE cdp_status cdp__log_level_read(const char *text, cdp_log_level *level) {
    static const char *const names[] = {"", "error", "warn", "info", "debug", "silent"};
    uint32_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; ++i)
        if (!text || strcmp(text, names[i]) == 0) {
            *level = text ? (cdp_log_level)i : CDP_LOG_DEFAULT;
            return CDP_OK;
        }
    return cdp__fail(CDP_ERR_INVALID,
        "the environment variable CDP_LOG_LEVEL is '%s'; set it to error, warn, info, debug or "
        "silent",
        text);
}

/* Sets *flag if the variable is 1. */
CDP__PRIVATE cdp_status cdp__flag_read(const char *name, bool *flag) {
    const cdp__vars own = {cdp__getenv, NULL};
    uint32_t on = 0;
    const cdp_status st = cdp__var(&own, name) ? cdp__var_number(&own, name, 0, 1, &on) : CDP_OK;
    if (on) *flag = true;
    return st;
}

/* The environment of a program that has given both numbers: half of them there means nothing. */
CDP__PRIVATE const char *cdp__getenv_else(void *user, const char *name) {
    if (strcmp(name, "RANK") == 0 || strcmp(name, "WORLD_SIZE") == 0) return NULL;
    return cdp__getenv(user, name);
}

/* One of the two numbers that the caller has given, where the environment has the other one. */
typedef struct cdp__env_number {
    const char *name;
    char text[16];
} cdp__env_number;

CDP__PRIVATE const char *cdp__getenv_and(void *user, const char *name) {
    const cdp__env_number *const given = (const cdp__env_number *)user;
    return strcmp(name, given->name) == 0 ? given->text : cdp__getenv(NULL, name);
}

/* Reads the environment: numbers that the caller has given count before those in it. */
CDP__PRIVATE cdp_status cdp__launch_read_given(
    const cdp_tcp_desc *d, bool has_rank, bool has_size, cdp_launch *l) {
    const cdp__vars own = {cdp__getenv, NULL};
    const bool rank = cdp__var(&own, "RANK") != NULL, size = cdp__var(&own, "WORLD_SIZE") != NULL;
    cdp__env_number given;
    if (rank == size) return cdp_launch_read(NULL, NULL, l);
    if (has_rank && has_size) return cdp_launch_read(cdp__getenv_else, NULL, l);
    if (rank ? !has_size : !has_rank) return cdp_launch_read(NULL, NULL, l);
    given.name = rank ? "WORLD_SIZE" : "RANK";
    cdp__format(given.text, sizeof given.text, "%u", rank ? d->group.world_size : d->group.rank);
    return cdp_launch_read(cdp__getenv_and, &given, l);
}

/* How its user passes variables. */
CDP__PRIVATE CDP__COLD const char *cdp__launch_hint(const char *launcher) {
    if (strcmp(launcher, "openmpi") == 0)
        return "as in mpirun -x MASTER_ADDR=node-0 -x MASTER_PORT=29500";
    if (strcmp(launcher, "flux") == 0)
        return "as in flux run --env=MASTER_ADDR=node-0 --env=MASTER_PORT=29500";
    return "as in mpiexec -genv MASTER_ADDR node-0 -genv MASTER_PORT 29500";
}

/* What is in the desc already wins: the caller has given it. */
CDP__PRIVATE cdp_status cdp__desc_from_env(cdp_tcp_desc *d, bool has_rank, bool has_size) {
    static CDP__THREAD_LOCAL cdp_launch l;
    static CDP__THREAD_LOCAL char file[400];
    const cdp__vars own = {cdp__getenv, NULL};
    cdp_status st;
    st = cdp__launch_read_given(d, has_rank, has_size, &l);
    if (st == CDP_OK && !l.launcher[0] && !d->alone_ok && !(has_rank && has_size))
        st = cdp__fail(CDP_ERR_INVALID,
            "the environment variable RANK is not set; start the program with `cdprun -n 4 "
            "PROGRAM`, torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT (to run alone: alone_ok in the desc, or RANK=0 WORLD_SIZE=1)");
    if (st != CDP_OK) return st;
    if (!l.launcher[0]) l.world_size = 1;
    if (!has_rank) d->group.rank = l.rank;
    if (!has_size) d->group.world_size = l.world_size;
    if (!d->master_port) d->master_port = l.master_port;
    if (l.master_addr[0] && !d->master_addr) d->master_addr = l.master_addr;
    if (!d->job_key) d->job_key = getenv("CDP_JOB_KEY");
    if (!d->interfaces) d->interfaces = getenv("CDP_INTERFACES");
    if (!d->backend) d->backend = cdp__var(&own, "CDP_BACKEND");
    if (!d->connections && cdp__var(&own, "CDP_CONNECTIONS"))
        st = cdp__var_number(&own, "CDP_CONNECTIONS", 1, 16, &d->connections);
    if (st == CDP_OK) st = cdp__flag_read("CDP_MAC", &d->mac);
    if (st == CDP_OK) st = cdp__flag_read("CDP_TRUST_NETWORK", &d->trust_network);
    if (st == CDP_OK && d->group.logger.level == CDP_LOG_DEFAULT)
        st = cdp__log_level_read(getenv("CDP_LOG_LEVEL"), &d->group.logger.level);
    if (st == CDP_OK && !d->group.logger.lines_per_second && cdp__var(&own, "CDP_LOG_LINES"))
        st = cdp__var_number(&own, "CDP_LOG_LINES", 1, 1000000, &d->group.logger.lines_per_second);
    if (st != CDP_OK) return st;
    if (l.external_store) d->external_store = true;
    if (l.job[0] && !d->job) d->job = l.job;
    if (d->group.world_size == 1 || l.master_port || d->master_port || d->file || d->store
        || d->exchange)
        return CDP_OK;
    if (!cdp__backend_is_tcp(d->backend)
        && (!l.launcher[0] || !strcmp(l.launcher, "torchrun") || l.local_size != l.world_size))
        return CDP_OK; /* a backend of the program may need no port */
    if (!l.launcher[0] || strcmp(l.launcher, "torchrun") == 0)
        return cdp__fail(CDP_ERR_INVALID,
            "the environment variable MASTER_PORT is not set; set it to a port that is free on "
            "rank 0's machine, and MASTER_ADDR to that machine");
    if (l.local_size != l.world_size)
        return cdp__fail(CDP_ERR_INVALID,
            "%s has started %u ranks on several machines and does not say where rank 0 is: pass "
            "MASTER_ADDR (the machine of rank 0) and MASTER_PORT (a free port there) to all ranks, "
            "%s",
            l.launcher, l.world_size, cdp__launch_hint(l.launcher));
    cdp__launch_file(&l, file, sizeof file);
    d->file = file;
    return CDP_OK;
}

CDP_API cdp_status cdp_tcp_desc_from_env(cdp_tcp_desc *d) {
    bool given;
    if (!d) return cdp__missing("cdp_tcp_desc_from_env", "desc");
    given = d->group.world_size > 0;
    return cdp__desc_from_env(d, given, given);
}

CDP_API cdp_status cdp_tcp_desc_from_url(const char *url, cdp_tcp_desc *d) {
    static CDP__THREAD_LOCAL cdp__url u;
    bool given;
    cdp_status st;
    if (!url) return cdp__missing("cdp_tcp_desc_from_url", "url");
    if (!d) return cdp__missing("cdp_tcp_desc_from_url", "desc");
    st = cdp__url_parse(url, &u);
    if (st != CDP_OK) return st;
    given = d->group.world_size > 0;
    if (u.has_rank) d->group.rank = u.rank;
    if (u.has_size) d->group.world_size = u.world_size;
    if (u.backend[0]) d->backend = u.backend;
    if (u.kind == CDP__URL_ENV)
        return cdp__desc_from_env(d, u.has_rank || given, u.has_size || given);
    if (u.kind == CDP__URL_TCP) {
        d->master_addr = u.host;
        d->master_port = u.port;
    }
    if (u.kind == CDP__URL_FILE) d->file = u.host;
    return CDP_OK;
}

CDP_API cdp_status cdp_init_url(const char *url, const cdp_tcp_desc *desc, cdp_group **out) {
    cdp_tcp_desc d;
    cdp_status st;
    if (out) *out = NULL;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    st = cdp_tcp_desc_from_url(url, &d);
    return st == CDP_OK ? cdp_init(&d, out) : st;
}

CDP_API cdp_status cdp_init_from_env(const cdp_tcp_desc *desc, cdp_group **out) {
    cdp_tcp_desc d;
    cdp_status st;
    if (out) *out = NULL;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    st = cdp_tcp_desc_from_env(&d);
    return st == CDP_OK ? cdp_init(&d, out) : st;
}

#endif /* CDP_NO_ENV */

#endif /* CDP_SRC_TCP_CALLS_H */
