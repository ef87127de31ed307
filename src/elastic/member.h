/* elastic/member.h - what a process holds of its job

   Knows: the members of a cdp_elastic. Promises: what a lock guards is said. */
#ifndef CDP_SRC_ELASTIC_MEMBER_H
#define CDP_SRC_ELASTIC_MEMBER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../os/child.h"
#include "../store/interface_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/backend_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/ended.h"
#include "../group/state.h"
#include "../store/store_api.h"
#include "../store/calls.h"
#include "../tcp/desc_api.h"
#include "elastic_api.h"
#include "epoch.h"
#include "turn.h"

typedef struct cdp__elastic_past { /* one epoch, for cdp_elastic_history() */
    uint64_t epoch, step;
    uint32_t size, rank, lost, joined;
    uint64_t turn_ns, connect_ns, transfer_ns;
    char cause[160];
} cdp__elastic_past;

#define CDP__ELASTIC_PASTS 32u
#define CDP__ELASTIC_KEY 192u
#define CDP__ELASTIC_SLICE_MS 100u   /* how soon a waiting thread checks if it still should */
#define CDP__ELASTIC_REST_NS CDP__MS /* between two polls of calls that do not wait */
#define CDP__ELASTIC_STORE_MS 30000u
#define CDP__ELASTIC_MOST_TRIP_MS 60000u /* that a ticket can hold, and a store would need */
#define CDP__ELASTIC_ASK_MS 1000u /* between an answer of a rank that lives and the next question */
#define CDP__ELASTIC_DEATH_TRIPS 4u /* of a wait that nothing interrupts but a look for the dead */

/* How state moves: see transfer.h. */
#define CDP__ELASTIC_SOURCES 8u        /* more would not make it faster */
#ifndef CDP__ELASTIC_PIECE             /* tests take less */
#define CDP__ELASTIC_PIECE (32u << 20) /* at most */
#define CDP__ELASTIC_LEAST_PIECE (4u << 20)
/* So many bytes are hashed at a time, while they are in the cache of the core that copied them. */
#define CDP__ELASTIC_BLOCK (256u << 10)
#endif

/* Epochs that failed one after the other, and in which no step was committed. */
typedef struct cdp__elastic_tries {
    uint32_t count;
    uint64_t deadline_ns; /* counts from the first of them on */
} cdp__elastic_tries;

/* The request to the store that stays open from one poll to the next. */
typedef enum cdp__elastic_asks {
    CDP__ELASTIC_ASKS_NOTHING,
    CDP__ELASTIC_ASKS_ALARM,   /* waits for the alarm of the epoch */
    CDP__ELASTIC_ASKS_DECISION /* waits for the decision that makes the next epoch */
} cdp__elastic_asks;

typedef struct cdp__elastic_watch {
    uint8_t asks; /* cdp__elastic_asks */
    cdp__store_call call;
    char key[CDP__ELASTIC_KEY];
    uint64_t epoch;  /* whose alarm, or whose end, this is about */
    uint64_t turn;   /* the epoch that `settle` and `due_ns` are about */
    uint64_t due_ns; /* the next look at the turn */
    cdp__elastic_settle settle;
    bool reads; /* no_thread: `tickets` reads them; it may take several polls */
    cdp__store_call tickets;
    char tickets_key[CDP__ELASTIC_KEY];
    uint64_t tickets_ns;  /* when this process began to look for newcomers last */
    uint64_t asked_ns;    /* when it looked last whether others ask if it lives */
    uint64_t question_ns; /* the same of newcomers */
    bool reads_question;  /* `tickets` looks for their question */
} cdp__elastic_watch;

/* What the ranks of a trial do, one after the other. */
typedef enum cdp__elastic_part {
    CDP__ELASTIC_MEETS,  /* each newcomer exchanges something with all ranks */
    CDP__ELASTIC_PROBES, /* members send as much as a part of the state */
    CDP__ELASTIC_JUDGES, /* newcomers say whether they know enough */
    CDP__ELASTIC_PARTS   /* all wait until all others have done the same */
} cdp__elastic_part;

/* An attempt to connect with newcomers beside the epoch; see trial.h. */
typedef struct cdp__elastic_trial {
    uint64_t epoch;                /* in which the rest is valid */
    uint64_t number;               /* of the last one in it; 0: there was none */
    struct cdp_starting *starting; /* NULL: none is under way */
    cdp_group *group;              /* of this trial */
    cdp_work work;                 /* in it: `part` */
    uint8_t part;                  /* cdp__elastic_part */
    uint8_t answer[2];             /* JUDGES: of this rank; the least of all ranks */
    bool slow;                     /* PROBES: the last one was too slow, and is repeated */
    bool uneven;                   /* a newcomer: some rank moves its bytes in its calls alone */
    uint32_t trip_ms;              /* the longest round trip to the store of all its ranks */
    uint64_t probe, probe_ns;      /* PROBES: bytes to each newcomer, and when that began */
    uint8_t *data;                 /* MEETS, PROBES: counts, what it sends, what it gets */
    bool leaving;                  /* this process leaves the group */
    uint32_t newcomers;            /* the last ranks of the group */
    cdp_store *store;              /* for it alone; NULL: e->store */
    uint32_t failures;             /* rank 0: attempts that failed since somebody came */
    uint32_t turn;                 /* rank 0: attempts with one newcomer, while somebody asks */
    uint32_t ticket_count;         /* rank 0: tickets, when it read them last */
    uint64_t due_ns;               /* rank 0: when the next one may begin */
    bool announced;                /* rank 0: its keys are in the store */
    bool asked;                    /* rank 0: somebody did, when it read them */
    char job[CDP__ELASTIC_KEY];    /* `starting` reads it */
} cdp__elastic_trial;

/* How far a newcomer is on its way into the job. */
typedef enum cdp__elastic_stage {
    CDP__ELASTIC_STRANGER,
    CDP__ELASTIC_ASKS,     /* it waits to be tried */
    CDP__ELASTIC_TRIED,    /* it was; it may be taken in when it calls cdp_elastic_next() */
    CDP__ELASTIC_HANDED_IN /* it has a ticket */
} cdp__elastic_stage;

struct cdp_elastic {
    cdp_elastic_desc desc; /* with defaults */
    cdp_tcp_desc tcp;
    const cdp_os *os;
    uint32_t forks;     /* see cdp__is_child() */
    cdp_store *store;   /* for the threads of the program */
    cdp_store *watched; /* for `watch`: a clone, or `shared` */
    cdp_store shared;   /* the same store in other words, if it has no clones */
    cdp_store *polls;   /* `watched`, if this process is in */
    bool own_store;
    bool no_thread; /* calls of the program poll; there is no lock either */
    char job[64], id[2 * CDP__ELASTIC_ID_BYTES + 1];
    uint32_t store_ms;
    bool asks_again; /* a launcher: a request that was not answered is TIMEOUT, and made again */
    uint64_t round_trip_ns; /* the shortest of a request before the ticket; 0: not measured */
    void *mutex, *cond, *thread;
    cdp__elastic_watch watch; /* of the thread that looks */
    cdp__elastic_trial trial; /* the same; of a newcomer, before there is one */
    uint8_t stage;            /* cdp__elastic_stage */
    char untried[160];        /* of a newcomer: why the last attempt failed; "": there was none */
    /* of the thread in cdp_elastic_next() */
    void *destroyer;    /* a thread that destroys a group; NULL: none was started */
    cdp_group *closing; /* no_thread: a group that is being left */
    uint64_t looked_ns; /* no_thread: the end of the last poll */
    uint64_t away_ns;   /* no_thread: the longest recent time without a poll */
    uint64_t back_ns;   /* no_thread: when that one ended */
    uint32_t failures;  /* attempts to connect that failed in a row */
    cdp__elastic_tries tries;
    bool absent;       /* a member did not call cdp_elastic_next(): the last error says so */
    bool refused;      /* connected() or load() returned an error: it starts no turn */
    bool shown;        /* connected() was called with `group` */
    cdp_group *middle; /* connected() alone has seen it, and for no later group it was called */
    uint64_t reported; /* the epoch that the last cdp_elastic_next() reported; 0: none yet */
    uint64_t agreed;   /* calls of cdp_elastic_agree() in that epoch */
    /* guarded by mutex from here on */
    cdp__elastic_place place;
    cdp__elastic_decision d; /* of place.epoch */
    cdp_group *group;        /* of place.epoch; NULL: not connected */
    cdp_group *retired;      /* of the epoch before: the program may still hold it */
    cdp_error failure;       /* status CDP_OK: none; else this process cannot go on */
    bool stop, changed, received, ended;
    bool few;               /* this turn waits for newcomers: too few ranks are left */
    bool handed_in;         /* others may have seen this id */
    bool left;              /* the others know, or have decided, that this process is out */
    char leaving[100];      /* why; "": it stays */
    char cause[160];        /* of now.cause */
    uint64_t present_epoch; /* the last epoch whose members were all in cdp_elastic_next() */
    uint64_t epoch_ns;      /* when this epoch began here, or this process arrived */
    uint64_t patient_ns;    /* until when a call of the program waits for the store; 0: store_ms */
    cdp__elastic_past past[CDP__ELASTIC_PASTS];
    uint64_t pasts;
};

/* The first check of every public function. */
CDP__PRIVATE cdp_status cdp__elastic_here(const cdp_elastic *e, const char *call) {
    if (!e) return cdp__missing(call, "elastic");
    if (cdp__ended(e)) return cdp__fail(CDP_ERR_STATE, "%s: this cdp_elastic was destroyed", call);
    if (cdp__is_child(e->forks)) return cdp__child_refuses(CDP_ERR_STATE, call, "cdp_elastic");
    return CDP_OK;
}

CDP__PRIVATE uint64_t cdp__elastic_now_ns(const cdp_elastic *e) {
    return e->os->now_ns(e->os->user);
}
CDP__PRIVATE void cdp__elastic_lock(cdp_elastic *e) {
    if (e->mutex) e->os->threads.mutex_lock(e->os->user, e->mutex);
}
CDP__PRIVATE void cdp__elastic_unlock(cdp_elastic *e) {
    if (e->mutex) e->os->threads.mutex_unlock(e->os->user, e->mutex);
}
CDP__PRIVATE void cdp__elastic_signal(cdp_elastic *e) {
    if (e->cond) e->os->threads.cond_broadcast(e->os->user, e->cond);
}

/* Breaks the group of an epoch, and tells peers before it returns: cdp_group_abort(), which may be
   called in a signal handler, leaves that to the thread of the group. */
CDP__PRIVATE void cdp__elastic_break(cdp_group *g, const char *reason) {
    (void)cdp_error_set(CDP_ERR_ABORTED, (int32_t)cdp_rank(g), 0, CDP__ABORTED "%s", reason);
    cdp_group_fail(g);
}

CDP__PRIVATE CDP__PRINTF(3, 4) void cdp__elastic_key(
    const cdp_elastic *e, char out[CDP__ELASTIC_KEY], const char *f, ...) {
    cdp__text t = cdp__text_of(out, CDP__ELASTIC_KEY);
    va_list ap;
    cdp__text_add(&t, "%s/", e->job);
    va_start(ap, f);
    cdp__text_add_v(&t, f, ap);
    va_end(ap);
}

CDP__PRIVATE void cdp__elastic_hex(const uint8_t *id, char out[2 * CDP__ELASTIC_ID_BYTES + 1]) {
    uint32_t i;
    for (i = 0; i < CDP__ELASTIC_ID_BYTES; ++i) {
        out[2 * i] = "0123456789abcdef"[id[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[id[i] & 15];
    }
    out[2 * CDP__ELASTIC_ID_BYTES] = 0;
}

#endif /* CDP_SRC_ELASTIC_MEMBER_H */
