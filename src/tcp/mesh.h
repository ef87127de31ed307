/* tcp/mesh.h - all links of a rank, and its listener

   Knows: all links of a rank, its listener, the store. Promises: the first cause of a failure is
   kept. */
#ifndef CDP_SRC_TCP_MESH_H
#define CDP_SRC_TCP_MESH_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../store/interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../os/loop.h"
#include "../message/header.h"
#include "../store/desc_api.h"
#include "../store/auth.h"
#include "../store/server.h"
#include "desc_api.h"
#include "handshake.h"
#include "paths.h"
#include "starts.h"
#include "memory.h"
#include "link.h"

/* Progress of reading another rank's wait record in the store: which rank it waits for while it
   starts. */
typedef enum cdp__wait_record_state {
    CDP__WAIT_RECORD_NONE,
    CDP__WAIT_RECORD_CHECK, /* asking whether there is one */
    CDP__WAIT_RECORD_GET,
    CDP__WAIT_RECORD_DONE
} cdp__wait_record_state;

/* A request that stores this rank's record of the job's failure. */
typedef struct cdp__cause_put {
    cdp_store_request rq;
    cdp_bytes key, values[2]; /* expected, and new */
    uint8_t value[CDP__FAILURE_MAX];
} cdp__cause_put;

/* A state of rendezvous; see >>tcp/rendezvous. */
typedef cdp_status cdp__join_func(struct cdp__mesh *m);

#define CDP__ENDPOINT_BYTES 1024u

typedef enum cdp__join_wait {
    CDP__WAITS_NOT,
    CDP__WAITS_REQUEST,    /* for the answer of a store */
    CDP__WAITS_CONNECTION, /* for the connection `made` to a store */
    CDP__WAITS_LISTENER,   /* for one of several addresses to accept a connection */
    CDP__WAITS_LINKS,      /* until no link is being made any more */
    CDP__WAITS_TIME
} cdp__join_wait;

typedef struct cdp__join {
    cdp__join_func *next;
    cdp__join_func *back; /* continues after states that several callers share */
    cdp__join_wait waits;
    cdp_status result; /* of what the previous state waited for */
    cdp_error why;     /* if that is an error; in reports of missing ranks, what they say */
    uint32_t step;
    uint32_t hold; /* it pauses before this step; 0: nowhere */
    bool over;
    bool with_values;     /* of keys of all ranks: also reads their values, into m->addrs */
    cdp_status status;    /* of the whole rendezvous */
    uint64_t deadline_ns; /* for finding all ranks; see cdp__mesh_init_deadline */
    bool complete;        /* all ranks have come, so that is later now */
    uint64_t until_ns;

    /* which ranks are missing */
    uint32_t looks;
    uint32_t rank, middle, end; /* whether ranks rank .. middle - 1 have come is asked now */
    bool narrow;                /* one of the ranks rank .. end - 1 has not come */
    bool blameless;             /* the store answers: rank 0, which serves it, is not to blame */
    uint32_t found;
    int32_t absent;
    int32_t named; /* the rank that the last report names; -1: none */
    /* the store has been asked whether other ranks of this host miss the same; they do */
    bool counted, quiet;
    uint32_t gloo;
    uint32_t polls; /* polls of a store that is not on this rank's loop */
    uint64_t pause_ns, give_up_ns, last_ns;

    /* the request in progress */
    cdp_store *asked;
    cdp_store_request rq;
    uint32_t timeout_ms;
    /* when a reported failure ends the wait for all ranks; 0: none was reported */
    uint64_t cause_grace_ns;
    cdp_bytes key, values[2];

    /* connections to a store, or to find out whether an address is in use */
    cdp_store *made;
    cdp_store *second;          /* another one to that store, which becomes `watch`; NULL: none */
    uint64_t reread_ns;         /* when the published address is read again; 0: it is not */
    uint64_t followed;          /* a hash of that address */
    uint32_t reached, reaching; /* connections that are up; that are being made */

    /* for a key that one process may own: the value of this process, and that of another one */
    uint64_t own_bytes, own_head;
    void *theirs;
    uint64_t their_bytes;
    bool config; /* that key is the config of rank 0 */

    /* the start that was found in the store, and waiting for the next one */
    cdp__start_found start;
    cdp__join_func *reopen;                      /* see cdp__join_reopen() */
    uint32_t look;                               /* the number of the key that is asked for now */
    uint64_t retry_ms, log_ns, claimed_until_ns; /* the last pause; when to log; how long to look */

    /* keys of all ranks */
    char (*texts)[96];
    cdp_bytes *keys;

    void *file; /* the cdp__file_store of the desc */
    uint64_t patience_ms;

    /* texts and lists of these */
    char key_text[96];
    char names[128];
    cdp__text list;
    cdp_addr at[CDP__PATHS];
    cdp__io reach[CDP__PATHS];
    uint8_t own[CDP__ENDPOINT_BYTES];
    cdp_error error; /* of the whole rendezvous */
} cdp__join;

typedef struct cdp__mesh {
    const cdp_os *os;
    cdp__link *links; /* the first connection of each peer, then the second of each, and so on */
    cdp__join *join;  /* rendezvous; NULL when it is over */
    cdp_store *store; /* for requests */
    cdp_store *watch; /* its only request waits for the key "fail" */
    cdp__segment *segments; /* CDP_SEGMENTS entries, allocated with the first one */
    cdp__shared *sharing;   /* memory of all links, also of lost ones */
    cdp__incoming *incoming;
    uint32_t incoming_count;
    uint32_t mine_count;
    cdp_tcp_desc desc;
    cdp__io listener;
    cdp__timer accept_timer;
    cdp__timer unanswered_timer; /* period of cdp__mesh_check_unanswered() */
    bool clients_warned, refusal_warned, memory_warned;
    bool keyed;
    bool spread;    /* connections of a link are spread over the interfaces of the desc */
    bool job_known; /* rank 0's published address was read, so `job` is known */
    uint64_t init_deadline_ns;
    uint64_t place; /* see cdp_os_shared.process_place */
    uint64_t looked_ns, start_ns;
    cdp_addr at; /* address of this rank's listener */
#ifndef CDP_NO_FRAMES
    cdp_addr home; /* without a store: an address of this host; see >>tcp/rendezvous_given */
#endif
    cdp_addr mine[CDP__ADDRS]; /* addresses of this host; mine_count of them */
    cdp_store_request addrs;   /* results: the published addresses of each rank */
    uint32_t *hosts;           /* host number of each rank, in order of appearance */
    uint8_t job[CDP__JOB_BYTES];
    uint8_t key[CDP__AUTH_BYTES];
    /* a store may outlive this start: a random part of the keys of this start */
    char round[20];
    char job_name[64];

    /* rendezvous */
    cdp_store_server *server; /* rank 0, unless the store is external */
    cdp_store *meeting;       /* the store in which rank 0 publishes its address, if any */
    char fail_key[96];
    cdp_store_request watch_rq;
    cdp_bytes watch_key;
    cdp__cause_put puts[2]; /* the first one, and then corrections by turns */
    uint32_t put_count;     /* how many were begun */
    bool watching;
    bool claimed;          /* this process owns its rank */
    bool started;          /* it has found all other ranks */
    bool foreign;          /* the missing rank is a process of PyTorch */
    bool frugal;           /* this process may have few descriptors: only TCP */
    uint64_t linger_ns[2]; /* until when it lingers after a failed start: least, most */
    bool parting;          /* it has ended its sending side of all links */
    uint64_t part_ns;      /* until when it waits for peers to close theirs; 0: not yet */
    /* only reports the cause of a failure to ranks that connect now */
    bool leaving;
    uint64_t leave_ns;               /* when it began to leave; 0: not yet */
    uint8_t cause[CDP__FAILURE_MAX]; /* this rank's record of the job's failure */
    uint32_t cause_bytes;
    bool failing;             /* `cause` is set */
    uint64_t known_ns;        /* rank 0: when it received the first cause; 0: not yet */
    cdp__timer readers_timer; /* gives other ranks time to read it */

    /* Wait records in the store, key wait/<rank>: the rank that this rank waits for while it
       starts. */
    bool wait_recorded; /* this rank has written one */
    cdp__wait_record_state wait_record_state;
    uint32_t wait_record_rank; /* the rank whose record is read */
    uint64_t wait_record_ns;   /* since when */
    int32_t wait_record_named;
    cdp_store_request wait_record_rq;
    cdp_bytes wait_record_key;
    char wait_record_text[96];

    cdp__loop loop;
} cdp__mesh;

/* True if this process serves the store. */
CDP__PRIVATE bool cdp__mesh_serves(const cdp__mesh *m) {
#ifdef CDP_NO_STORE_SERVER
    (void)m;
    return false;
#else
    return m->server != NULL;
#endif
}

/* True if this rank asks no store: see >>tcp/rendezvous_given. A constant in builds without such
   starts. */
CDP__PRIVATE bool cdp__mesh_alone(const cdp__mesh *m) {
#ifdef CDP_NO_FRAMES
    (void)m;
    return false;
#else
    return m->home.family != 0;
#endif
}

/* Then, an address of this host. */
CDP__PRIVATE bool cdp__mesh_home(const cdp__mesh *m, cdp_addr *out) {
#ifdef CDP_NO_FRAMES
    (void)m;
    (void)out;
    return false;
#else
    *out = m->home;
    return true;
#endif
}

/* The shared memory of a link. A constant in builds without shared memory, so that compilers
   omit the code that uses it. */
CDP__PRIVATE cdp__shared *cdp__link_shared(const cdp__link *l) {
#ifdef CDP_NO_SHARED_MEMORY
    (void)l;
    return NULL;
#else
    return l->shared;
#endif
}

/* The first in the list of all links' shared memory. */
CDP__PRIVATE cdp__shared *cdp__mesh_sharing(const cdp__mesh *m) {
#ifdef CDP_NO_SHARED_MEMORY
    (void)m;
    return NULL;
#else
    return m->sharing;
#endif
}

CDP__PRIVATE void cdp__race_end(cdp__link *l) {
    uint32_t i;
    if (!l->race) return;
    for (i = 0; i < l->race->begun; ++i)
        cdp__loop_remove(&l->mesh->loop, &l->race->paths[i].io);
    cdp__loop_timer_clear(&l->race->timer);
    cdp__free(l->mesh->os, l->race);
    l->race = NULL;
    l->inviting = false;
}

/* Marks the link as lost. The caller closes its connection, if any. */
CDP__PRIVATE void cdp__link_forget(cdp__link *l, cdp_status status, int32_t err) {
    l->was_up = l->state == CDP__LINK_UP
        && (l->mesh->desc.connections == 1 || l->mesh->links[l->peer].whole);
    cdp__race_end(l);
    cdp__loop_remove(&l->mesh->loop, &l->probe);
    cdp__loop_timer_clear(&l->probe_timer);
    cdp__loop_remove(&l->mesh->loop, &l->process);
    cdp__loop_timer_clear(&l->process_timer);
    l->state = CDP__LINK_LOST;
    l->status = status;
    l->lost_errno = err;
    /* Unmaps the peer's memory. If its process has ended, the last rank that unmaps makes the
       system free it, which takes 0.1 ms per MiB: too long for a poll with a budget, so without a
       progress thread this is left until this rank leaves. */
    if (cdp__link_shared(l) && !l->mesh->desc.group.no_thread) cdp__shared_tidy(l->shared, true);
}

CDP__PRIVATE void cdp__link_drop(cdp__link *l, cdp_status status, int32_t err) {
    cdp__link_forget(l, status, err);
    cdp__loop_remove(&l->mesh->loop, &l->io);
}

#endif /* CDP_SRC_TCP_MESH_H */
