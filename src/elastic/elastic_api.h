/* elastic/elastic_api.h - jobs that go on when ranks die, leave or join */
#ifndef CDP_SRC_ELASTIC_ELASTIC_API_H
#define CDP_SRC_ELASTIC_ELASTIC_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../store/interface_api.h"
#include "../group/group_api.h"
#include "../tcp/desc_api.h"

typedef struct cdp_elastic cdp_elastic;

/* An array that all ranks have alike after each step: a parameter, a state of the optimizer. */
typedef struct cdp_entry {
    const char *name; /* for texts */
    void *data;       /* host memory */
    uint64_t count;   /* elements */
    cdp_dtype dtype;
} cdp_entry;

/* Where the job stands; texts and the group are valid until the next call of cdp_elastic_next(). */
typedef struct cdp_elastic_now {
    /* of this epoch. When `changed` is set it is another one than before; the former one has
       failed and is destroyed by the call after this one, so destroy what was made of it */
    cdp_group *group;
    uint64_t epoch;   /* from 1 */
    uint64_t step;    /* how many are committed in the state that this rank holds */
    uint64_t stable;  /* how many of them all ranks have committed: for effects outside */
    uint64_t samples; /* the samples of those steps, of all ranks: see `batch` */
    uint32_t rank, size;
    uint32_t old_rank;     /* in the epoch before; UINT32_MAX: this process is new */
    uint32_t lost, joined; /* members that went and came with this epoch */
    bool changed;          /* since the last call: `group`, and perhaps rank and size */
    bool received;         /* since the last call: entries were overwritten */
    const char *cause;     /* why the epoch before ended */
} cdp_elastic_now;

typedef struct cdp_elastic_desc {
    /* required: served by a process that outlives the ranks; must outlive the cdp_elastic */
    cdp_store *store;
    /* prefix of this job's keys, 1 to 63 characters, equal on all (default: "elastic"); copied. Use
       another one, or another store, for each run */
    const char *job;
    /* of this process: 32 digits 0 to 9 and a to f, never used twice (default: random); copied */
    const char *id;
    /* how groups connect; group.timeout_ms is the deadline of operations, and master_addr the
       address at which this process listens if it becomes rank 0. rank, world_size, store, job and
       init_timeout_ms are set here. Its texts must outlive the cdp_elastic (default: all
       defaults) */
    const cdp_tcp_desc *tcp;
    /* with fewer the job waits; processes beyond max_ranks wait as spares. Equal on all (default:
       1, 65535) */
    uint32_t min_ranks, max_ranks;
    /* for min_ranks, for a newcomer to be tried, and to be taken in then: each, in ms
       (default: 600000) */
    uint32_t join_ms;
    /* how long a turn waits for members that have not arrived and are not known to be dead, in ms;
       if this process itself was stopped meanwhile, the wait begins anew, at most three times. The
       first epoch begins when no process has joined for as long (default: 200; required without
       threads, where it must exceed the longest time between two calls by 1500: see NO THREAD
       above) */
    uint32_t settle_ms;
    /* newcomers end an epoch at the earliest this long after it began, in ms; longer after
       newcomers that were left out, see THOSE WHO BLOCK above (default: 5000) */
    uint32_t grow_ms;
    /* what the entries hold at the start, from a checkpoint: counts on rank 0 of the first epoch,
       from which the other ranks receive it */
    uint64_t step, samples;
    /* samples of one rank in one step; each commit adds size * batch to now.samples. Rank r takes
       those from now.samples + r * batch on: a step that counts nowhere is dealt again, and none
       twice. Equal on all (default: 0, not counted) */
    uint32_t batch;
    /* the state that all ranks share: number, names, counts and dtypes are compared; kept, not
       copied */
    const cdp_entry *entries;
    uint32_t entry_count;
    /* Both or neither: a small blob beside the entries (states of random generators, a schedule).
       save() returns its size in bytes, and writes it if `room` is that much; it is called twice on
       the first source. load() reads it on a rank that receives, after the hashes of all ranks were
       equal. An error that it returns, of whatever status, is that of cdp_elastic_next() and starts
       no turn, unless the group has failed meanwhile. */
    uint64_t (*save)(void *user, void *data, uint64_t room);
    cdp_status (*load)(void *user, const void *data, uint64_t bytes);
    /* Called in cdp_elastic_next() on all ranks for each new group, before state moves: once or
       several times in a call, for an epoch may end before it runs. In a newcomer to a job that
       runs it is called before, with a group of this process alone and epoch 0: see NEWCOMERS
       above. An error that it returns, of
       whatever status, is that of cdp_elastic_next() and starts no turn, unless the group has
       failed meanwhile: then the next epoch calls it again. now->group lives at least until
       connected() has returned for a later one, or until cdp_elastic_destroy(): what was made of
       the group before may be destroyed here. */
    cdp_status (*connected)(void *user, const cdp_elastic_now *now);
    void *user;
} cdp_elastic_desc;

/* Joins the job: waits until an epoch has this process in it or, if the job runs already, until its
   members and this process have connected once (see NEWCOMERS above); at most join_ms. The caller
   owns *out (cdp_elastic_destroy()). Errors: see ERRORS above; nothing is left behind. */
CDP_MUST_CHECK CDP_API cdp_status cdp_elastic_create(
    const cdp_elastic_desc *desc, cdp_elastic **out);
#ifndef CDP_NO_ENV
/* The same on a copy of *desc (NULL: all defaults) with what the environment says: see
   CONFIGURATION. `store` is not read: a client of the store at MASTER_ADDR:MASTER_PORT is made (or
   of that on CDP_ELASTIC_SERVERS), with a last will. Errors: those of cdp_elastic_create(), and
   INVALID (a variable; the text names it). */
CDP_MUST_CHECK CDP_API cdp_status cdp_elastic_create_from_env(
    const cdp_elastic_desc *desc, cdp_elastic **out);
#endif

/* Call it before every step. If nothing has changed it costs two locks (without threads: a reading
   of the clock, and a look at the store's socket each millisecond). Otherwise everything that
   is needed happens here, as often as needed: the turn, new connections, the transfer. Errors: see
   ERRORS above; after one, destroy the cdp_elastic. */
CDP_MUST_CHECK CDP_API cdp_status cdp_elastic_next(cdp_elastic *elastic, cdp_elastic_now *now);

/* Call it when the gradients of the step are complete, before anything of the state is changed.
   CDP_OK: the step counts, and the state must now become that of the next step. Local: no message.
   Errors: ABORTED (an alarm was first: leave the state as it is, and call cdp_elastic_next());
   INVALID. */
CDP_MUST_CHECK CDP_API cdp_status cdp_elastic_commit(cdp_elastic *elastic);

/* Says whether the step that is being computed can still count; before the first
   cdp_elastic_next() and in connected(), whether the epoch can still begin. A program without
   threads whose steps take long calls it now and then to stay in the job (see NO THREAD above). It
   does not wait for other ranks; only in a turn it waits for answers of the store. Called by the
   thread that calls cdp_elastic_next(). Errors: ABORTED (the epoch has ended: drop the step, and
   call cdp_elastic_next()); INVALID; and those of cdp_elastic_next(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_elastic_poll(cdp_elastic *elastic);

/* Collective over the ranks of the epoch: *all is true if each rank has passed `yes` true. Every
   rank that gets an answer gets the same one, also when ranks die meanwhile (then it is false, or
   the result that other ranks got before). One allreduce, one request to the store, one key that
   stays; a store that does not answer is waited for until join_ms. Errors: STATE (before
   cdp_elastic_next(), or after an error of it), STORE, INVALID; a
   mistake of the program as in cdp_allreduce(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_elastic_agree(cdp_elastic *elastic, bool yes, bool *all);

/* Call it after the last step. Waits until all ranks have called it, and takes part in turns until
   then: a rank that ended earlier might be the only one that has committed the last step. Then the
   job is over, and newcomers get STATE. Errors: as cdp_elastic_next(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_elastic_finish(cdp_elastic *elastic);

/* Asks this process to leave: its next call of cdp_elastic_next() returns STATE, the others go on.
   Then destroy it. During a change it first sees the next epoch begin, because others may receive
   state from this process; where they wait for min_ranks it leaves at once. `reason` (may be NULL)
   is copied. Any thread; without threads the one that makes all calls. */
CDP_API void cdp_elastic_leave(cdp_elastic *elastic, const char *reason);

/* Ends the epoch now: all ranks that live are in the next one. `reason` (may be NULL) becomes its
   cause. Any thread (without threads: the one that makes all calls); may wait while another thread
   connects. Errors: STORE, INVALID. */
CDP_MUST_CHECK CDP_API cdp_status cdp_elastic_alarm(cdp_elastic *elastic, const char *reason);

/* Ends this member. If neither cdp_elastic_finish() nor cdp_elastic_leave() was called before, the
   others treat it as a member that has left. Destroys the group. Takes up to a second; where the
   store cannot be reached or is silent, also after an error of it, up to timeout_ms of tcp->group
   and at most 30 s for each of three requests. Destroy groups and ddps that were made from the
   group before this call. NULL is allowed. In a child of fork() it does nothing, and other calls
   are STATE; likewise after it was destroyed, as long as no other object has its memory. */
CDP_API void cdp_elastic_destroy(cdp_elastic *elastic);

/* The last 32 epochs of this process as JSON: epoch, step, size, rank, lost, joined, cause, and how
   long turn, connecting and transfer took, in microseconds. Writes at most `room` bytes, a zero at
   the end among them; `text` may be NULL. Returns the length of the whole text without the zero
   (about 250 bytes per epoch, and its cause); 0 if elastic is
   NULL. Any thread. */
CDP_API uint64_t cdp_elastic_history(cdp_elastic *elastic, char *text, uint64_t room);

/* ---- the pieces alone, for a program that keeps steps and state itself ---- */

typedef struct cdp_shrink_desc {
    /* required: a store that this thread may use, served by a process that outlives the ranks */
    cdp_store *store;
    /* prefix of the keys, 1 to 40 characters, equal on all ranks (default: "shrink"). Use another
       one, or another store, for each run */
    const char *job;
    /* how long to wait for ranks that may be alive or dead, in ms (default: 500; it should be less
       than timeout_ms of the group). A rank that comes later is left out, and told so. Ranks that
       are inside an operation notice a failure up to 350 ms after each other; those that compute
       notice it at their next one. A rank that is not connected to those that noticed it is told
       when it connects to one of them */
    uint32_t settle_ms;
    uint32_t min_ranks; /* with fewer it waits, at most timeout_ms of the group (default: 1) */
    uint64_t step;      /* any number: the others get it */
    /* a rank whose loss the group has reported is not waited for. It is left out also where only a
       connection was cut, and it lives. (Of a rank that ends its group after an earlier failure the
       group reports who caused that one, so it is waited for.) If two ranks live, come both, and
       lack a connection, the new group has both and fails as well: a program that gets the same
       ranks again and again should end */
    bool trust_links;
} cdp_shrink_desc;

/* The ranks of `group` that are left, as a group of their own over the same links, in the order of
   their ranks. Each of them calls it after a failure of `group`, or before one: the group is
   aborted, so that all learn of it. The first decision in the store counts, so all who get a group
   get the same one. steps[r] (may be NULL; room for cdp_size(group) numbers) is the `step` of rank
   r of the new group: who is behind asks one that is not. If one of the ranks dies meanwhile, the
   new group fails: call this with it. `group` stays the caller's, who destroys it. Not while
   another thread uses it. Keeps two keys in the store for each group, 48 bytes for each rank.
   Errors: INVALID; UNSUPPORTED (no store); STATE (left out: the others have decided without this
   rank); TIMEOUT (fewer than min_ranks came within timeout_ms of the group; this may be called
   again); STORE; NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_shrink(
    cdp_group *group, const cdp_shrink_desc *desc, uint64_t *steps, cdp_group **out);

#endif /* CDP_SRC_ELASTIC_ELASTIC_API_H */
