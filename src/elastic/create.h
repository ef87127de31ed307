/* elastic/create.h - making and ending a member

   Knows: the desc. Promises: nothing is left behind where creation fails. */
#ifndef CDP_SRC_ELASTIC_CREATE_H
#define CDP_SRC_ELASTIC_CREATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../os/linux.h"
#include "../os/child.h"
#include "../store/interface_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/ended.h"
#include "../failure/chains.h"
#include "../group/state.h"
#include "../store/desc_api.h"
#include "../store/store_api.h"
#include "../store/addr.h"
#include "../store/calls.h"
#include "../tcp/desc_api.h"
#include "../tcp/launchers.h"
#include "../tcp/calls.h"
#include "elastic_api.h"
#include "quorum_api.h"
#include "cxx_api.h"
#include "epoch.h"
#include "store.h"
#include "turns.h"
#include "entry.h"

CDP__PRIVATE cdp_status cdp__elastic_check(const cdp_elastic_desc *d) {
    uint32_t i;
    const char *p;
    if (!d->store) return cdp__missing("cdp_elastic_create", "desc.store");
    if (!d->store->start || !d->store->os)
        return cdp__fail(CDP_ERR_STATE, "cdp_elastic_desc.store was destroyed");
    if (d->job && (!d->job[0] || strlen(d->job) > 63))
        return cdp__fail(CDP_ERR_INVALID, "cdp_elastic_desc.job has 1 to 63 characters");
    for (p = d->id; p && *p; ++p)
        if (!((*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f'))) break;
    if (d->id && (*p || strlen(d->id) != 2 * CDP__ELASTIC_ID_BYTES))
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_elastic_desc.id has 32 digits from 0 to 9 and a to f");
    if (d->max_ranks && d->max_ranks < d->min_ranks)
        return cdp__fail(CDP_ERR_INVALID, "cdp_elastic_desc.max_ranks, %u, is below min_ranks, %u",
            d->max_ranks, d->min_ranks);
    if (d->entry_count && !d->entries) return cdp__missing("cdp_elastic_create", "desc.entries");
    for (i = 0; i < d->entry_count; ++i)
        if (!d->entries[i].name || (!d->entries[i].data && d->entries[i].count)
            || !cdp_dtype_size(d->entries[i].dtype))
            return cdp__fail(
                CDP_ERR_INVALID, "cdp_elastic_desc.entries[%u] needs a name, data and a dtype", i);
    if (!d->save != !d->load)
        return cdp__fail(CDP_ERR_INVALID, "cdp_elastic_desc needs both save and load, or neither");
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__elastic_defaults(cdp_elastic *e, const cdp_elastic_desc *desc) {
    cdp_elastic_desc *d = &e->desc;
    uint32_t i;
    *d = *desc;
    if (desc->tcp) e->tcp = *desc->tcp;
    d->tcp = NULL;
    e->tcp.group.os = e->os;
    e->tcp.group.timeout_ms = cdp__def(e->tcp.group.timeout_ms, 600000);
    d->min_ranks = cdp__def(d->min_ranks, 1);
    d->max_ranks = cdp__def(d->max_ranks, 65535);
    d->join_ms = cdp__def(d->join_ms, 600000);
    d->settle_ms = cdp__def(d->settle_ms, 200);
    d->grow_ms = cdp__def(d->grow_ms, 5000);
    e->store = d->store;
    e->store_ms = (uint32_t)cdp__min(e->tcp.group.timeout_ms, CDP__ELASTIC_STORE_MS);
    cdp__format(e->job, sizeof e->job, "%s", desc->job ? desc->job : "elastic");
    if (!desc->id) {
        const cdp_status st = e->os->random(e->os->user, e->place.id, sizeof e->place.id);
        if (st != CDP_OK) return st;
    }
    for (i = 0; desc->id && i < 2 * CDP__ELASTIC_ID_BYTES; ++i) {
        const char c = desc->id[i];
        const uint8_t digit = (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        e->place.id[i / 2] = (uint8_t)(e->place.id[i / 2] << 4 | digit);
    }
    cdp__elastic_hex(e->place.id, e->id);
    e->place.step = d->step;
    e->place.samples = d->samples;
    e->place.has_state = true;
    return CDP_OK;
}

CDP__PRIVATE void cdp__elastic_free(cdp_elastic *e) {
    const cdp_os *os = e->os;
    if (e->thread) os->threads.join(os, e->thread);
    if (e->destroyer) os->threads.join(os, e->destroyer);
    cdp__elastic_close_all(e);
#ifndef CDP_NO_FRAMES
    cdp__elastic_trial_stop(e);
#endif
    cdp_group_destroy(e->closing);
    cdp_group_destroy(e->group);
    cdp_group_destroy(e->retired);
    cdp_group_destroy(e->middle);
    if (e->watched != &e->shared) cdp_store_destroy(e->watched);
    if (e->own_store) cdp_store_destroy(e->store);
    if (e->cond) os->threads.cond_destroy(os, e->cond);
    if (e->mutex) os->threads.mutex_destroy(os, e->mutex);
    cdp__free(os, e->d.members);
    cdp__ended_add(e);
    cdp__free(os, e);
}

/* Another connection to the store, for `watched`. */
typedef struct cdp__elastic_second {
    cdp_elastic *e;
    void *thread; /* NULL: it was made before */
    cdp_error error;
} cdp__elastic_second;

CDP__PRIVATE void cdp__elastic_second_make(void *arg) {
    cdp__elastic_second *s = (cdp__elastic_second *)arg;
    cdp_status st = cdp__store_clone_within(s->e->store, s->e->desc.join_ms, &s->e->watched);
    if (st == CDP_ERR_UNSUPPORTED) {
        s->e->shared = *s->e->store;
        s->e->watched = &s->e->shared;
        st = CDP_OK;
    }
    if (cdp__elastic_store_status(s->e, st) != CDP_OK) s->error = *cdp_last_error();
}

/* It is needed only after this process is in an epoch: a thread makes it meanwhile, for it takes
   some round trips. */
CDP__PRIVATE void cdp__elastic_second_begin(cdp_elastic *e, cdp__elastic_second *s) {
    memset(s, 0, sizeof *s);
    s->e = e;
    if (!e->no_thread) s->thread = e->os->threads.start(e->os, cdp__elastic_second_make, s);
    if (!s->thread) cdp__elastic_second_make(s);
}

/* Keeps this thread's last error where `st` says that there is one. */
CDP__PRIVATE cdp_status cdp__elastic_second_end(cdp__elastic_second *s, cdp_status st) {
    if (s->thread) s->e->os->threads.join(s->e->os, s->thread);
    if (st != CDP_OK || s->error.status == CDP_OK) return st;
    *cdp__error_slot() = s->error;
    return s->error.status;
}

CDP__PRIVATE cdp_status cdp__elastic_start(cdp_elastic *e) {
    cdp__elastic_second second;
    cdp_status st;
    cdp__elastic_second_begin(e, &second);
    cdp__elastic_be_patient(e, true);
    st = second.error.status == CDP_OK || second.thread ? cdp__elastic_enter(e) : CDP_OK;
    st = cdp__elastic_second_end(&second, st);
    cdp__elastic_be_patient(e, false);
    e->polls = e->watched;
    if (st == CDP_OK && e->place.epoch) st = cdp__elastic_attends(e);
    if (st != CDP_OK) {
        const cdp_error why = *cdp_last_error();
        if (e->handed_in && cdp__elastic_record_end(e, e->store, "gave up") == CDP_OK
            && e->place.epoch)
            (void)cdp__elastic_alarm_at(e, e->store, e->place.epoch, "a newcomer gave up");
        *cdp__error_slot() = why;
    }
    return st;
}

/* How long a process without a thread may need to learn, inside an operation, that the group was
   aborted: until it compares calls with its peers, and the cause has settled. */
#define CDP__ELASTIC_NOTICE_MS 1500u
typedef char cdp__assert_elastic_notice[CDP__ELASTIC_NOTICE_MS
            >= CDP__FAILURE_WAIT_MS + CDP__FAILURE_SETTLE_MS + CDP__FAILURE_REPORT_MS
        ? 1
        : -1];

/* Without a thread a process arrives only in calls, and may be away for as long as a step. */
CDP__PRIVATE cdp_status cdp__elastic_check_no_thread(const cdp_elastic_desc *d) {
    const char *const away =
        "the longest time that any rank spends between two calls of cdp_elastic.h, such as a step "
        "or a checkpoint: a rank that is away for longer is left out";
#ifdef CDP_NO_FRAMES
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_elastic_create: without threads (no_thread of tcp->group, or an os that has none) it "
        "connects in steps, which CDP_NO_FRAMES leaves out");
#endif
    if (!d->settle_ms)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_elastic_create: without threads (no_thread of tcp->group, or an os that has none) "
            "cdp_elastic_desc.settle_ms has no default; set it to %u more than %s",
            CDP__ELASTIC_NOTICE_MS, away);
    if (d->settle_ms < CDP__ELASTIC_NOTICE_MS)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_elastic_desc.settle_ms is %u; without threads (no_thread of tcp->group, or an os "
            "that has none) set it to %u more than %s",
            d->settle_ms, CDP__ELASTIC_NOTICE_MS, away);
    return CDP_OK;
}

CDP_API cdp_status cdp_elastic_create(const cdp_elastic_desc *desc, cdp_elastic **out) {
    const cdp_os *os;
    cdp_elastic *e;
    bool no_thread;
    cdp_status st;
    if (!out) return cdp__missing("cdp_elastic_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_elastic_create", "desc");
    if (cdp__os_whole(desc->tcp ? desc->tcp->group.os : NULL, "cdp_elastic_create") != CDP_OK)
        return CDP_ERR_INVALID;
    st = cdp__elastic_check(desc);
    if (st != CDP_OK) return st;
    os = desc->tcp && desc->tcp->group.os ? desc->tcp->group.os : cdp_os_default();
    no_thread = !os->threads.start || (desc->tcp && desc->tcp->group.no_thread);
    if (no_thread) st = cdp__elastic_check_no_thread(desc);
    if (st != CDP_OK) return st;
    e = (cdp_elastic *)cdp__alloc_zero(os, sizeof *e);
    if (!e) return cdp__fail_nomem("a cdp_elastic", sizeof *e);
    cdp__ended_remove(e);
    e->os = os;
    e->forks = cdp__forks_watch();
    e->no_thread = no_thread;
    if (!no_thread) {
        e->mutex = os->threads.mutex_create(os);
        e->cond = os->threads.cond_create(os);
        if (!e->mutex || !e->cond) st = cdp__fail_nomem("a lock", 0);
    }
    if (st == CDP_OK) st = cdp__elastic_defaults(e, desc);
    if (st == CDP_OK) st = cdp__elastic_start(e);
    if (st == CDP_OK) {
        *out = e;
        return CDP_OK;
    }
    const cdp_error why = *cdp_last_error();
    cdp__elastic_free(e);
    *cdp__error_slot() = why;
    return st;
}

#ifndef CDP_NO_ENV
/* MIN:MAX, MIN: or N. */
CDP__PRIVATE bool cdp__elastic_range(const char *p, uint32_t *from, uint32_t *to) {
    p = cdp__addr_decimal(p, 65535, from);
    *to = *from;
    if (!p || !*from) return false;
    if (*p == ':') {
        *to = 0;
        if (!*++p) return true;
        p = cdp__addr_decimal(p, 65535, to);
    }
    return p && !*p && *to >= *from;
}

/* The same store, if it lives on several servers. */
CDP__PRIVATE cdp_status cdp__elastic_quorum_client(const cdp_elastic_desc *d,
    const cdp_tcp_desc *tcp, const char *servers, const char *will_key, cdp_bytes will,
    cdp_store **out) {
#ifdef CDP_NO_CUSTOM_STORE
    (void)d;
    (void)tcp;
    (void)will_key;
    (void)will;
    (void)out;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_elastic_create_from_env: CDP_ELASTIC_SERVERS is %s, and this program was built with "
        "CDP_NO_CUSTOM_STORE",
        servers);
#else
    cdp_quorum_store_desc q;
    memset(&q, 0, sizeof q);
    q.servers = servers;
    q.job_key = tcp->job_key;
    q.trust_network = tcp->trust_network;
    q.connect_timeout_ms = cdp__def(d->join_ms, 600000);
    q.will_key = will_key;
    q.will_value = will;
    q.os = tcp->group.os;
    q.logger = tcp->group.logger;
    return cdp_quorum_store_create(&q, out);
#endif
}

/* A store client whose last will says that this process is gone. `servers`: those that the store
   lives on, or NULL. */
CDP__PRIVATE cdp_status cdp__elastic_client(cdp_elastic_desc *d, const cdp_tcp_desc *tcp,
    const char *id, const char *servers, cdp_store **out) {
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    const cdp_bytes will = {"its process ended", 17};
    cdp_tcp_store_desc c;
    uint32_t number = 0;
    char key[CDP__ELASTIC_KEY];
    const char *end = port ? cdp__addr_decimal(port, 65535, &number) : NULL;
    if (!host || !end || *end || !number)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_elastic_create_from_env: MASTER_ADDR is \"%s\" and MASTER_PORT \"%s\"; start the "
            "program with `cdprun -n 4 --stay PROGRAM`, or set them to where a store is served "
            "that outlives the ranks",
            host ? host : "", port ? port : "");
    cdp__format(key, sizeof key, "%s/gone/%s", d->job ? d->job : "elastic", id);
    if (servers) return cdp__elastic_quorum_client(d, tcp, servers, key, will, out);
    memset(&c, 0, sizeof c);
    c.host = host;
    c.port = (uint16_t)number;
    c.job_key = tcp->job_key;
    c.os = tcp->group.os;
    c.logger = tcp->group.logger;
    c.connect_timeout_ms = cdp__def(d->join_ms, 600000);
    c.will_key = key;
    c.will_value = will;
    return cdp_tcp_store_create(&c, out);
}

CDP_API cdp_status cdp_elastic_create_from_env(const cdp_elastic_desc *desc, cdp_elastic **out) {
    const char *range = getenv("CDP_ELASTIC"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    const char *const servers = getenv("CDP_ELASTIC_SERVERS");
    const cdp__vars own = {cdp__getenv, NULL};
    uint32_t trust = 0;
    const cdp_os *os;
    cdp_elastic_desc d;
    cdp_tcp_desc tcp;
    uint8_t random[CDP__ELASTIC_ID_BYTES];
    char id[2 * CDP__ELASTIC_ID_BYTES + 1];
    cdp_store *store;
    cdp_status st;
    if (!out) return cdp__missing("cdp_elastic_create_from_env", "out");
    *out = NULL;
    memset(&d, 0, sizeof d);
    memset(&tcp, 0, sizeof tcp);
    if (desc) d = *desc;
    if (d.tcp) tcp = *d.tcp;
    d.tcp = &tcp;
    os = tcp.group.os ? tcp.group.os : cdp_os_default();
    if (!range && agent && strcmp(agent, "False") == 0)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_elastic_create_from_env: this launcher serves no store that outlives the ranks "
            "(TORCHELASTIC_USE_AGENT_STORE is False); start the program with `cdprun --stay`, or "
            "unset "
            "that variable where MASTER_ADDR and MASTER_PORT name such a store");
    if (range && !cdp__elastic_range(range, &d.min_ranks, &d.max_ranks))
        return cdp__fail(CDP_ERR_INVALID,
            "CDP_ELASTIC is \"%s\"; it should be MIN:MAX, MIN: or a number", range);
    if (!tcp.job_key) tcp.job_key = getenv("CDP_JOB_KEY");
    if (!d.id) d.id = getenv("CDP_ELASTIC_ID");
    if (!d.job) d.job = getenv("CDP_ELASTIC_JOB");
    if (cdp__var(&own, "CDP_TRUST_NETWORK")
        && cdp__var_number(&own, "CDP_TRUST_NETWORK", 0, 1, &trust) != CDP_OK)
        return CDP_ERR_INVALID;
    if (trust) tcp.trust_network = true;
    if (!d.id) {
        st = os->random(os->user, random, sizeof random);
        if (st != CDP_OK) return st;
        cdp__elastic_hex(random, id);
        d.id = id;
    }
    if (servers && !tcp.master_addr) tcp.master_addr = getenv("MASTER_ADDR");
    st = cdp__elastic_client(&d, &tcp, d.id, servers, &store);
    if (st != CDP_OK) return st;
    d.store = store;
    st = cdp_elastic_create(&d, out);
    if (st == CDP_OK) {
        (*out)->own_store = true;
        return CDP_OK;
    }
    const cdp_error why = *cdp_last_error();
    cdp_store_destroy(store);
    *cdp__error_slot() = why;
    return st;
}
#endif /* CDP_NO_ENV */

CDP_API void cdp_elastic_destroy(cdp_elastic *e) {
    cdp_group *failed = NULL;
    uint64_t k;
    bool leaves;
    /* a child of fork() leaves the parent's job alone: its threads are not here */
    if (cdp__elastic_here(e, "cdp_elastic_destroy") != CDP_OK) return;
    cdp__elastic_lock(e);
    e->stop = true;
    e->patient_ns = 0;
    k = e->place.epoch;
    /* also after an error of its own, for which the others would wait until timeout_ms */
    leaves = !e->ended && !e->left;
    e->place.phase = CDP__ELASTIC_OUT;
    if (e->group && cdp_group_status(e->group) < 0
        && !cdp__elastic_is_loss(cdp_last_error()->status)) {
        failed = e->group;
        e->group = NULL;
    }
    cdp__elastic_signal(e);
    cdp__elastic_unlock(e);
    cdp_group_destroy(failed); /* tells the mistake to the others, before the alarm hides it */
    if (leaves && cdp__elastic_record_end(e, e->store, "was destroyed") == CDP_OK && k)
        (void)cdp__elastic_alarm_at(e, e->store, k, "a rank called cdp_elastic_destroy()");
    cdp__elastic_free(e);
}

#endif /* CDP_SRC_ELASTIC_CREATE_H */
