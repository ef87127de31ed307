/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
/*  cdp_elastic.h - ranks that come, go and die - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        A training job that goes on when its number of processes changes. When a rank dies or
        leaves, the others continue in the same process with the state of the last committed step;
        at most the step in flight is computed again (one exception: see THE DEAD). A newcomer
        receives that state from the ranks that have it; nobody restarts. A key-value store decides
        which processes are in: the first decision in the store counts, so the history of a job
        never forks.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_elastic.h"        which includes cdp_tcp.h, cdp_store.h and cdp.h

    QUICK START
        cdp_entry entries[] = {{"w", w, w_count, CDP_DTYPE_F32}, {"momentum", m, w_count,
            CDP_DTYPE_F32}};
        cdp_elastic_desc desc = {0};
        desc.store = store;             // served by a process that outlives the ranks
        desc.min_ranks = 2;
        desc.entries = entries;
        desc.entry_count = 2;
        cdp_elastic *e;
        cdp_elastic_now now;
        cdp_status st;
        if (cdp_elastic_create(&desc, &e) != CDP_OK) return cdp_print_error(stderr);
        while ((st = cdp_elastic_next(e, &now)) == CDP_OK && now.step < steps) {
            forward_backward(grad, now.step, now.rank, now.size);
            if (cdp_allreduce(now.group, NULL, grad, w_count, CDP_DTYPE_F32, CDP_REDUCE_AVG)
                != CDP_OK) continue;    // somebody died: this step counts nowhere here
            if (cdp_elastic_commit(e) != CDP_OK) continue;
            optimizer(w, m, grad);      // only now
        }
        if (st == CDP_OK) st = cdp_elastic_finish(e);
        if (st != CDP_OK) return cdp_print_error(stderr);
        cdp_elastic_destroy(e);
        With cdp_elastic_create_from_env() the launcher serves the store. On one machine:
            cdprun -n 4 --stay --max-restarts 3 ./train
        On each of 2 to 4 machines, HOST being one of them and FILE the same secret:
            cdprun -n 4 --nnodes 2:4 --stay --rdzv-endpoint HOST --job-key-file FILE ./train

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_elastic.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                       call
        join a job, or begin it                            cdp_elastic_create
        the same, told by variables                        cdp_elastic_create_from_env
        get this step's group, rank and size               cdp_elastic_next
        say that the gradients of a step are complete      cdp_elastic_commit
        know which samples belong to this step             .batch, now.samples
        stay in during a long step, without threads        cdp_elastic_poll
        decide something together, also when ranks die     cdp_elastic_agree
        end the job                                        cdp_elastic_finish, cdp_elastic_destroy
        take this process out, the others go on            cdp_elastic_leave
        end the epoch from outside                         cdp_elastic_alarm
        attach NCCL to each new group                      .connected
        see what happened and how long it took             cdp_elastic_history
        keep a cdp_ddp over a change                       cdp_ddp_rebind (cdp.h)
        go on after all ranks have died                    .step, .samples; cdp_checkpoint.h:
                                                           examples/29_elastic_checkpoint.c
        know which samples of a data set are left          .consumed of cdp_sampler (cdp.h)
        keep steps and state myself: who is left?          cdp_group_shrink
        keep the store when a process that has it dies     cdp_quorum_store_create

    COMING FROM torchrun, torchft
        --nnodes MIN:MAX                       .min_ranks, .max_ranks; CDP_ELASTIC=MIN:MAX, which
                                               cdprun --nnodes MIN:MAX --stay sets
        restart of all workers on a change     none: survivors keep their memory (a program without
                                               this header: cdprun --nnodes MIN:MAX restarts it)
        rendezvous, last_call_timeout          a turn: .settle_ms, for those of whom nobody knows
                                               whether they live
        lighthouse, quorum                     compare-and-set of one key for each epoch
        should_commit (a vote)                 cdp_elastic_commit: local; repaired by transfer
        heal from the highest step             only from members of the last epoch: a newcomer that
                                               claims a higher step is never a source

    HOW IT WORKS
        An epoch is a decided list of members with ranks. When a rank is lost, leaves or asks to be
        taken in, somebody sets the alarm of the epoch. Each process has a thread that waits for it
        (without threads: see NO THREAD): it aborts the group, and writes into the store which step
        it has committed (it arrives). From then on nothing is committed in that epoch. The lowest
        rank that arrived decides: the next epoch has those who arrived, then the newcomers; it
        begins with the highest step that one of the arrived members has committed, and those who
        have it are the sources of state.
        The others receive entries and blob, in pieces from up to 8 sources, and use them only after
        the hashes of all ranks were equal. Every epoch has connections of its own, and each rank
        says on them which member of which epoch it is.
        Committed steps differ by at most one within an epoch, because an allreduce completes
        nowhere before each member gave its part.
        So a rank may be given a step that it has not committed itself. Let every rank record what
        you want once for each step (a loss curve), not rank 0 alone, and keep the later of two
        records of one step.

    TIMES
        timeout_ms of tcp->group   one operation, and the time until each rank calls
                                   cdp_elastic_next() after a change. At least 10 times the longest
                                   round trip between a process and the store (a log line at level
                                   WARN says so): 3000 where that is 300 ms
        settle_ms                  a turn waits so long for members of whom nobody knows whether
                                   they live. A process whose machine or network stands still for
                                   longer is left out, and comes back as a newcomer. Also for a
                                   process that has not called cdp_elastic_next() after a change:
                                   it is asked whether it lives. Without threads it has no default:
                                   see NO THREAD
        join_ms                    being below min_ranks, waiting to be taken in, and epochs that
                                   fail one after the other before they begin, or that time out
                                   before a step is committed: each alone

    CONFIGURATION
        CDP_ELASTIC_IMPLEMENTATION implements this header and those below it, whose private parts it
        uses, in the same file. The macros of cdp.h and cdp_tcp.h hold here, too. CDP_NO_ENV: no
        cdp_elastic_create_from_env. CDP_NO_GROUPS, CDP_NO_OBJECTS and CDP_NO_STORE_CALLS are an
        error. cdp_elastic_create_from_env reads CDP_ELASTIC (MIN:MAX, MIN: or N), CDP_ELASTIC_ID,
        CDP_ELASTIC_JOB (of .job), MASTER_ADDR, MASTER_PORT, CDP_JOB_KEY, CDP_TRUST_NETWORK=1 (of
        .tcp->trust_network), and CDP_ELASTIC_SERVERS: the store lives on these servers, and not at
        MASTER_PORT. `cdprun --nnodes MIN:MAX --stay` sets them.

    THREADS
        cdp_elastic_next, _commit, _agree, _finish: one thread at a time. cdp_elastic_leave, _alarm,
        _history: any thread. The store must be one that several threads may use (all of
        cdp_store.h are). One thread of this header's own sleeps in a wait of the store and wakes
        ten times a second. It also polls for newcomers, and connects with them to try them, with a
        third client of the store. Another one destroys the group of an epoch that has ended.

    NO THREAD
        With no_thread of tcp->group, with CDP_NO_THREADS, or with an os that has none, this header
        starts no thread, and neither do its groups. All calls come from one thread, also
        cdp_elastic_leave() and _alarm(), and none from a signal handler. What the thread would do
        is done in cdp_elastic_next(), _commit(), _agree(), _finish() and _poll(): at most once in a
        millisecond they look whether the store has answered what they asked before, and go on.
        They wait for the store only in a turn, or when the group has failed or newcomers have come.
        A process arrives in such a call only. So settle_ms must be set, on each rank that has no
        thread and on those beside it, to 1500 ms more than the longest time that any rank spends
        between two such calls: in a step, a checkpoint, connected(), save() or load(). A rank that
        is away for longer in a turn is left out although it is healthy (STATE; the text says for
        how long it was away). 1500 ms: so late an operation may hear that the epoch has ended, if
        rank 0 of the epoch computes meanwhile. Call cdp_elastic_poll() in a step that takes long.
        A member that is known to be dead is not waited for; only the first epoch waits for
        settle_ms, if fewer than max_ranks come. CDP_NO_FRAMES: UNSUPPORTED.

    THE DEAD
        A killed process is noticed by its peers' connections. Whether it is known to be dead, so
        that a turn need not wait for settle_ms, depends on the store: a TCP client whose will_key
        is JOB/gone/ID (cdp_elastic_create_from_env makes one) tells it at once. With other stores
        a death costs up to three times settle_ms before the job begins: the process with the oldest
        ticket proposes the first epoch, and 100 ms later the next one does; members that wait for
        one that has not called cdp_elastic_next() ask it, and its thread answers within settle_ms
        if it lives; then a turn leaves it out.
        A death while the members of a new epoch connect may be noticed at the deadline of that
        attempt alone: 500 ms, 20 ms for each rank and 48 of the longest round trips to the store,
        twice as long after each attempt that failed, until that is timeout_ms or 30 s.
        If exactly one rank has committed the last step, the others receive it from there, beside
        what they hold: if that rank dies meanwhile, they go on without that step. Only where they
        have no memory for both, or are all newcomers, the job ends with STATE. In the first epoch,
        where rank 0 alone has the state, another rank takes its place that has not yet begun to
        receive. Where all ranks are dead, waiting newcomers get STATE: at once where the store
        knows of the deaths, otherwise settle_ms, 2 s and 24 round trips later, and with more than
        64 members 4 ms for each of them. They ask in the store whether a member lives, and no
        member answers; without threads members look between two operations, so who waits without
        threads waits for timeout_ms more. No process begins the job anew beside members that may
        live and not reach the store. So a launcher that
        starts all ranks again, as torchrun does after a failure, must give each start another
        `job`, such as one with TORCHELASTIC_RESTART_COUNT in it where that is the same on
        all machines.

    NEWCOMERS
        A process that comes while a job runs is tried first: it and all members connect beside the
        epoch, as they would for the next one, exchange a few KiB, and part again. If the state has
        more than 16 KiB, members also send some of as many bytes: a newcomer to which the state
        would not come within timeout_ms is not taken in. Members lose no step by a newcomer that
        does not reach each of them. If the trial fails, it is tried again, with pauses that grow
        from 1 s to 32 s, until join_ms: then the error says what failed. After a failure
        newcomers are tried one by one, the newest and the oldest by turns, so that one that starts
        again and again keeps no other out. If the trial succeeds,
        cdp_elastic_create() returns there, and the next cdp_elastic_next() of the newcomer asks the
        members to end the epoch; until then it may take its time. Before it asks it calls
        connected(), with a group of itself alone (epoch 0): what takes long when it is done first,
        such as to load a library, delays nobody. If that takes longer than timeout_ms, also once
        more, cdp_elastic_next() returns TIMEOUT, and members have lost no step. Rank 0
        polls for newcomers, and the other members for a trial, ten times a second (in large jobs
        less often). Not tried are those with which a job begins, those that come in a turn that
        lasts for longer than 0.5 s or that too few members live for, and newcomers of one trial
        among those of another. How fast a link is cannot be told where a member has no thread. What
        a newcomer does after that may still cost epochs: see below.
        With CDP_NO_FRAMES nobody is tried.

    THOSE WHO BLOCK
        A rank may live and keep the others from going on: it hangs, or the path between two ranks
        carries nothing. Each member says in its arrival with whom it could not go on. Who is blamed
        in three epochs, with no step committed meanwhile, is left out (STATE); of ranks that cannot
        go on with each other as few as possible are, and never so many that fewer than min_ranks
        stay. Newcomers that have not received state go first: for what they do themselves after
        two epochs, and also where a member is to blame that ran before they came. One that is left
        out may come back as a newcomer; each that is doubles the time before newcomers end an
        epoch (grow_ms, at most 64 times), until one of them has committed a step. Blames do not
        count in an epoch of which a member did not arrive: that explains its end.

    A STORE THAT SURVIVES
        cdp_quorum_store_create() opens a store that 3 servers keep together (or 5), each of them in
        a rank or in any other process. Any one of them may die, stop or be cut off at any moment
        (of 5: two), and all go on at once: nobody takes over, because nobody leads. So a job needs
        no process that outlives the ranks:
            cdp_quorum_store_desc q = {0};
            q.servers = "10.0.0.1:29400,10.0.0.2:29400,10.0.0.3:29400"; // the same on all ranks
            q.serve = number < 3 ? number + 1 : 0;                      // three ranks serve
            q.job_key = secret;
            q.will_key = "elastic/gone/ID";     // ID is desc.id: if this process dies, the others
            q.will_value.data = "it ended";     // need not wait for settle_ms
            q.will_value.bytes = 8;
            cdp_quorum_store_create(&q, &store);  // desc.store; destroyed after the cdp_elastic
        A newcomer passes the same list, whoever of it has died. `cdprun --stay --rdzv-endpoint
        10.0.0.1,10.0.0.2,10.0.0.3` does the same: there three launchers serve.
        The protocol is Paxos without a leader, for each key alone. Every server holds, of a
        key, the highest ballot that it has promised, and the last value that it has accepted
        with its ballot. To read, a client asks all servers: if a majority holds a value of the
        same ballot, that is the value. To change it, a client takes a ballot above all that it
        has seen, with its random number in it, so that no other client has the same. It asks
        the servers to promise that ballot. When a majority has, it takes the value of the
        highest ballot among their answers, changes it if it is the expected one, and asks the
        servers to accept it. The change counts when a majority has. A server never accepts a
        ballot below one that it has promised. Two majorities have a server in common, so who
        asks later sees every value that counts: there are never two histories. A value says who
        made the last 32 changes. So a client that was interrupted learns whether its change
        counts, also if another one completed it; one that stood still for more changes gets
        STORE, which says that nobody knows.
        A server that ends forgets. One that comes back at its address is not used: the servers have
        random ids, and each holds the list of all, written when the store began. So a job survives
        the loss of a minority of its servers, once.
        A client that reaches no majority gets STORE within answer_ms: a minority that is cut off
        ends. Two ranks alone do not survive the loss of one: of 2 servers both are needed.
        A change costs three round trips, and a read one; waits poll every 10 ms or more often. A
        call may delay those of other threads by one operation. Connections that end are not made
        again. A value may have 304 bytes less than on one server; a deleted key leaves as much.
        On several machines set master_addr of .tcp, as with every store that is not a TCP store.

    MEMORY
        From the os of tcp->group. 40 bytes for each member of the epoch; the blob, while it moves;
        on a rank that is a step behind, as much as all entries, while it receives them.
        The store keeps each decision (224 bytes and 24 for each member), each ticket (48, three
        for each newcomer), one key for each call of cdp_elastic_agree(), and one for each process
        that has ended (JOB/gone/ID); and at most one question of newcomers (JOB/ask).

    ERRORS
        cdp_elastic_create: INVALID (desc; an id that was used before; no settle_ms without
        threads), UNSUPPORTED (no threads, and CDP_NO_FRAMES), TIMEOUT (join_ms; the text says who
        was there), MISMATCH (settings, also those of `tcp` that groups compare, or entries differ
        from those of the job; the text shows the first that does), STATE (the job is over: this
        process came too late and is not needed; or all its ranks have died: start again from a
        checkpoint), STORE, NOMEM.
        cdp_elastic_next: TIMEOUT (below min_ranks, or no epoch begins, for join_ms), STATE (left
        out; left; nobody that is left has state: start from a checkpoint), MISMATCH (state that
        should be equal is not), STORE (the store is lost: this process must end; one that does not
        answer, as when its machine stands still, is lost after join_ms: until then steps go on, and
        so does the job when it answers; for cdp_elastic_alarm() after timeout_ms of tcp->group, at
        most 30 s), and whatever is a
        mistake of the program (INVALID, MISMATCH, UNSUPPORTED of an operation): it does not start a
        turn. IO, NOMEM: the system refuses something here, as a descriptor or memory; the others go
        on without this process. An error of another rank is the loss of that rank, and only calls
        that differ (MISMATCH) end all that see it. The first call of a newcomer also returns what
        cdp_elastic_create() returns while it waits (TIMEOUT, STATE).

    WHAT IS NOT THERE
        A store of one server is the single point of failure: see A STORE THAT SURVIVES. Survivors
        do not reuse their connections (after cdp_group_shrink() they do). State does not move
        beside the running epoch: members wait while a newcomer receives it.

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h.                            */

/* Joined from src/cdp_elastic.h and what it includes: change that, then `make headers`. */
#if defined(CDP_ELASTIC_IMPLEMENTATION) && !defined(CDP_TCP_IMPLEMENTATION)
#define CDP_TCP_IMPLEMENTATION
#endif
#if !defined(CDP_TCP_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_STORE_IMPLEMENTATION) \
    || defined(CDP_TCP_IMPLEMENTATION) \
    || defined(CDP_ELASTIC_IMPLEMENTATION)
#include "cdp_tcp.h"
#endif

#ifndef CDP_ELASTIC_INCLUDED
#define CDP_ELASTIC_INCLUDED

#define CDP_ELASTIC_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_ELASTIC_VERSION != CDP_VERSION
#error "cdp_elastic.h and cdp.h are of different versions: copy both from the same release"
#endif

#if defined(CDP_NO_GROUPS) || defined(CDP_NO_OBJECTS) || defined(CDP_NO_STORE_CALLS)
#error "cdp_elastic.h needs groups, objects and all store calls"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>elastic/elastic_api: jobs that go on when ranks die, leave or join -------------------- */

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

/* ---- >>elastic/quorum_api: a store that lives on several servers ----------------------------- */

#ifndef CDP_NO_CUSTOM_STORE
typedef struct cdp_quorum_store_desc {
    /* required: "HOST:PORT,HOST:PORT,HOST:PORT", 1 to 5 servers, the same text on all processes.
       Of 3 servers one may die, of 5 two. Each HOST is an address or a name, an IPv6 address in
       brackets */
    const char *servers;
    /* this process serves that one of them, counted from 1: it listens at its HOST and PORT until
       cdp_store_destroy() (default: 0, none of them) */
    uint32_t serve;
    /* of the servers: see cdp_store_server_desc and cdp_tcp_store_desc (default: none, and only
       processes of one machine) */
    const char *job_key;
    bool trust_network;
    /* of calls whose timeout_ms is 0 (default: 300000; or CDP_NO_TIMEOUT) */
    uint32_t timeout_ms;
    /* how long to try to connect (default: timeout_ms) */
    uint32_t connect_timeout_ms;
    /* how long an operation waits for a majority of the servers (default: 10000) */
    uint32_t answer_ms;
    /* last will: if the connections of this process to a majority of the servers end without
       cdp_store_destroy(), the key gets this value, if it is absent. Other processes see that if
       they have a last will under a key of the same folder (the text up to the last '/'). Copied
       (default: none) */
    const char *will_key;
    cdp_bytes will_value;
    /* (default: cdp_os_default()); must outlive the store */
    const cdp_os *os;
    /* (default: warnings and errors to stderr) */
    cdp_logger logger;
} cdp_quorum_store_desc;

/* Opens a store that several servers keep together: see A STORE THAT SURVIVES above. The first time
   all servers must be there, later a majority of them. Blocks until then, at most
   connect_timeout_ms. Any number of threads may use the store; calls on it are those on a custom
   store, but a key has at most 8189 bytes, none of them 0, and a value at most 8388304 (INVALID).
   The caller owns *out (cdp_store_destroy(); where it serves, that waits up to 5 s for other
   clients to disconnect). Errors: INVALID (the desc); NOMEM; IO (this process cannot listen);
   TIMEOUT (the text names servers that did not answer); MISMATCH (job keys differ; or the servers
   belong to several stores: start all of them again); STORE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_quorum_store_create(
    const cdp_quorum_store_desc *desc, cdp_store **out);
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>elastic/cxx_api: descs by reference in C++ -------------------------------------------- */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
inline cdp_status cdp_group_shrink(
    cdp_group *group, const cdp_shrink_desc &desc, uint64_t *steps, cdp_group **out) {
    return cdp_group_shrink(group, &desc, steps, out);
}
#ifndef CDP_NO_CUSTOM_STORE
inline cdp_status cdp_quorum_store_create(const cdp_quorum_store_desc &desc, cdp_store **out) {
    return cdp_quorum_store_create(&desc, out);
}
#endif
inline cdp_status cdp_elastic_create(const cdp_elastic_desc &desc, cdp_elastic **out) {
    return cdp_elastic_create(&desc, out);
}
inline cdp_status cdp_elastic_create_from_env(const cdp_elastic_desc &desc, cdp_elastic **out) {
    return cdp_elastic_create_from_env(&desc, out);
}
} /* extern "C++" */
#endif

#endif /* CDP_ELASTIC_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_ELASTIC_IMPLEMENTATION)) \
    && !defined(CDP_ELASTIC_IMPL_INCLUDED)
#define CDP_ELASTIC_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_ELASTIC

/* ---- >>text/json_read: JSON, piece by piece (pure) ------------------------------------------- */

/* Knows: the grammar of JSON, and the NaN and Infinity that Python writes. Promises: any bytes
   yield pieces or a reason; no recursion, no memory; at most 32 levels. */
#ifndef CDP_SRC_TEXT_JSON_READ_H
#define CDP_SRC_TEXT_JSON_READ_H

#include <stdlib.h>
#include <string.h>

#define CDP__JSON_DEEP 32u   /* as many as cdp__json_reader.dicts has bits */
#define CDP__JSON_DIGITS 40u /* what further digits of a number say is lost */

typedef enum cdp__json_kind {
    CDP__JSON_BAD, /* this is no JSON: `why` says why, `at` says where */
    CDP__JSON_END, /* nothing follows the value */
    CDP__JSON_DICT,
    CDP__JSON_LIST,
    CDP__JSON_CLOSE, /* the end of the last dict or list that is open */
    CDP__JSON_KEY,   /* a text; a value follows */
    CDP__JSON_TEXT,
    CDP__JSON_WHOLE,
    CDP__JSON_REAL, /* also a whole number that has more than 63 bits */
    CDP__JSON_TRUE,
    CDP__JSON_FALSE,
    CDP__JSON_NULL
} cdp__json_kind;

typedef struct cdp__json_reader {
    const uint8_t *data;
    uint64_t bytes, at;
    const char *why;
    uint32_t depth, dicts; /* bit i of dicts: the i-th open container is a dict */
    bool value, first;     /* a value must follow, after a key or at the beginning; just opened */
    /* of the last piece */
    const uint8_t *text; /* KEY, TEXT: what stands between the quotes, not decoded */
    uint64_t length;     /* of that; the decoded text is not longer */
    bool escapes;        /* it has some, else it is as it stands */
    int64_t whole;
    double real;
} cdp__json_reader;

CDP__PRIVATE cdp__json_reader cdp__json_open(const void *data, uint64_t bytes) {
    cdp__json_reader r;
    memset(&r, 0, sizeof r);
    r.data = (const uint8_t *)data;
    r.bytes = bytes;
    r.value = true;
    return r;
}

CDP__PRIVATE cdp__json_kind cdp__json_bad(cdp__json_reader *r, const char *why) {
    r->why = why;
    return CDP__JSON_BAD;
}

/* The next byte that is no blank, which is not taken; 0: there is none. */
CDP__PRIVATE uint8_t cdp__json_look(cdp__json_reader *r) {
    for (; r->at < r->bytes; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
    }
    return 0;
}

CDP__PRIVATE bool cdp__json_word(cdp__json_reader *r, const char *word) {
    const uint64_t n = strlen(word);
    if (r->bytes - r->at < n || memcmp(r->data + r->at, word, (size_t)n) != 0) return false;
    r->at += n;
    return true;
}

CDP__PRIVATE int cdp__hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The four digits of an escape; -1: they are not there. */
CDP__PRIVATE int32_t cdp__json_unit_at(const uint8_t *s, uint64_t bytes) {
    int32_t unit = 0;
    uint32_t i;
    for (i = 0; i < 4; ++i) {
        const int digit = i < bytes ? cdp__hex_digit(s[i]) : -1;
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

/* Takes a text, from its first quote on. */
CDP__PRIVATE cdp__json_kind cdp__json_take_text(cdp__json_reader *r, cdp__json_kind kind) {
    const uint64_t from = ++r->at;
    r->escapes = false;
    for (; r->at < r->bytes && r->data[r->at] != '"'; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c < 32) return cdp__json_bad(r, "a text has a control character");
        if (c != '\\') continue;
        r->escapes = true;
        if (++r->at == r->bytes) break;
        if (r->data[r->at] == 'u') {
            if (cdp__json_unit_at(r->data + r->at + 1, r->bytes - r->at - 1) < 0)
                return cdp__json_bad(r, "four hexadecimal digits are expected after \\u");
            r->at += 4;
        } else if (!r->data[r->at] || !strchr("\"\\/bfnrt", r->data[r->at]))
            return cdp__json_bad(r, "there is no such escape");
    }
    if (r->at >= r->bytes) return cdp__json_bad(r, "a text does not end");
    r->text = r->data + from;
    r->length = r->at++ - from;
    return kind;
}

/* Decodes one escape of a text that was taken, from the byte after the backslash on. */
CDP__PRIVATE uint32_t cdp__json_escape(const uint8_t **at, const uint8_t *end) {
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    const uint8_t c = *(*at)++;
    const char *const known = strchr(from, c);
    uint32_t unit;
    int32_t low;
    if (c != 'u') return known ? (uint8_t)to[known - from] : c;
    unit = (uint32_t)cdp__json_unit_at(*at, 4);
    *at += 4;
    if (unit < 0xd800 || unit >= 0xdc00) return unit;
    if (end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u') return unit;
    low = cdp__json_unit_at(*at + 2, 4);
    if (low < 0xdc00 || low >= 0xe000) return unit;
    *at += 6;
    return 0x10000 + ((unit - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
}

/* Writes the last key or text, decoded, to `out`, which has room for r->length bytes. Returns its
   length. What is no character, and a zero byte, become '?'. */
CDP__PRIVATE uint64_t cdp__json_decode(const cdp__json_reader *r, char *out) {
    const uint8_t *at = r->text, *const end = at + r->length;
    const char *const from = out;
    while (at < end) {
        uint32_t c = *at++;
        if (c != '\\') {
            *out++ = (char)c;
            continue;
        }
        c = cdp__json_escape(&at, end);
        out += cdp__utf8_put(c ? c : '?', out);
    }
    return (uint64_t)(out - from);
}

CDP__PRIVATE bool cdp__json_is_digit(const cdp__json_reader *r) {
    return r->at < r->bytes && r->data[r->at] >= '0' && r->data[r->at] <= '9';
}

/* Digits of a number without its point, as text for strtod(), which then needs no locale. */
typedef struct cdp__json_digits {
    char text[CDP__JSON_DIGITS + 32];
    uint32_t count;
    int64_t exponent;
} cdp__json_digits;

CDP__PRIVATE void cdp__json_take_digits(cdp__json_reader *r, cdp__json_digits *d, bool fraction) {
    for (; cdp__json_is_digit(r); ++r->at) {
        const bool kept = d->count < CDP__JSON_DIGITS;
        const char c = (char)r->data[r->at];
        if (kept && (d->count || c != '0')) d->text[d->count++] = c;
        d->exponent += (int64_t)!kept - fraction;
    }
}

CDP__PRIVATE double cdp__json_real_of(cdp__json_digits *d) {
    const bool below = d->exponent < 0;
    uint64_t e = below ? 0 - (uint64_t)d->exponent : (uint64_t)d->exponent;
    char *at = d->text + sizeof d->text;
    uint32_t n = d->count;
    if (!n) return 0;
    *--at = 0;
    do
        *--at = (char)('0' + e % 10);
    while (e /= 10);
    d->text[n++] = 'e';
    d->text[n++] = below ? '-' : '+';
    memmove(d->text + n, at, strlen(at) + 1);
    return strtod(d->text, NULL);
}

/* Takes what follows the digits of a real number: digits behind a point, an exponent. */
CDP__PRIVATE bool cdp__json_take_rest(cdp__json_reader *r, cdp__json_digits *d) {
    int64_t exponent = 0;
    bool below = false;
    if (r->at < r->bytes && r->data[r->at] == '.') {
        ++r->at;
        if (!cdp__json_is_digit(r)) return false;
        cdp__json_take_digits(r, d, true);
    }
    if (r->at < r->bytes && (r->data[r->at] | 32) == 'e') {
        ++r->at;
        if (r->at < r->bytes && (r->data[r->at] == '+' || r->data[r->at] == '-'))
            below = r->data[r->at++] == '-';
        if (!cdp__json_is_digit(r)) return false;
        for (; cdp__json_is_digit(r); ++r->at)
            if (exponent < 1000000) exponent = exponent * 10 + (r->data[r->at] - '0');
    }
    d->exponent += below ? -exponent : exponent;
    return true;
}

CDP__PRIVATE cdp__json_kind cdp__json_take_number(cdp__json_reader *r) {
    const uint64_t from = r->at;
    const bool minus = cdp__json_word(r, "-");
    cdp__json_digits d;
    uint64_t whole = 0, i;
    uint8_t next;
    d.count = 0;
    d.exponent = 0;
    if (!cdp__json_is_digit(r)) {
        const bool nan = !minus && cdp__json_word(r, "NaN");
        if (!nan && !cdp__json_word(r, "Infinity"))
            return cdp__json_bad(r, "a value is expected here");
        r->real = strtod(nan ? "nan" : "inf", NULL);
        if (minus) r->real = -r->real;
        return CDP__JSON_REAL;
    }
    cdp__json_take_digits(r, &d, false);
    if (r->data[from + minus] == '0' && r->at > from + minus + 1)
        return cdp__json_bad(r, "a number begins with a zero");
    for (i = 0; i < d.count && d.count < 20; ++i)
        whole = whole * 10 + (uint64_t)(d.text[i] - '0');
    next = r->at < r->bytes ? r->data[r->at] : 0;
    if (next != '.' && (next | 32) != 'e' && d.count < 20 && whole <= (uint64_t)INT64_MAX) {
        r->whole = minus ? -(int64_t)whole : (int64_t)whole;
        return CDP__JSON_WHOLE;
    }
    if (!cdp__json_take_rest(r, &d)) return cdp__json_bad(r, "a digit is expected here");
    r->real = cdp__json_real_of(&d);
    if (minus) r->real = -r->real;
    return CDP__JSON_REAL;
}

CDP__PRIVATE cdp__json_kind cdp__json_take_value(cdp__json_reader *r) {
    const uint8_t c = cdp__json_look(r);
    r->value = r->first = false;
    if (c == '"') return cdp__json_take_text(r, CDP__JSON_TEXT);
    if (c == '{' || c == '[') {
        if (r->depth == CDP__JSON_DEEP) return cdp__json_bad(r, "it is nested too deep");
        ++r->at;
        r->dicts &= ~(1u << r->depth);
        r->dicts |= (uint32_t)(c == '{') << r->depth++;
        r->first = true;
        return c == '{' ? CDP__JSON_DICT : CDP__JSON_LIST;
    }
    if (cdp__json_word(r, "true")) return CDP__JSON_TRUE;
    if (cdp__json_word(r, "false")) return CDP__JSON_FALSE;
    if (cdp__json_word(r, "null")) return CDP__JSON_NULL;
    return cdp__json_take_number(r);
}

/* Takes the next piece. After BAD or END it must not be called again. */
CDP__PRIVATE cdp__json_kind cdp__json_next(cdp__json_reader *r) {
    const bool dict = r->depth && r->dicts >> (r->depth - 1) & 1;
    uint8_t c;
    if (r->value) return cdp__json_take_value(r);
    c = cdp__json_look(r);
    if (!r->depth)
        return r->at < r->bytes ? cdp__json_bad(r, "its end is expected here") : CDP__JSON_END;
    if (c == (dict ? '}' : ']')) {
        ++r->at;
        --r->depth;
        r->first = false;
        return CDP__JSON_CLOSE;
    }
    if (!r->first && !cdp__json_word(r, ","))
        return cdp__json_bad(r, "a comma or the end of a list is expected here");
    if (!dict) return cdp__json_take_value(r);
    if (cdp__json_look(r) != '"') return cdp__json_bad(r, "a key is expected here");
    if (cdp__json_take_text(r, CDP__JSON_KEY) == CDP__JSON_BAD) return CDP__JSON_BAD;
    if (cdp__json_look(r) != ':') return cdp__json_bad(r, "a colon is expected here");
    ++r->at;
    r->value = true;
    return CDP__JSON_KEY;
}

#endif /* CDP_SRC_TEXT_JSON_READ_H */

/* ---- >>elastic/epoch: who is in, from which step on, and whose state counts (pure) ----------- */

/* Knows: the place of one process, arrivals, tickets and decisions. Promises: a process that has
   arrived commits nothing more in its epoch; the step of a decision is the highest one committed
   among the arrived members of the epoch before; newcomers are never sources. */

/* Tests plant defects here, to see that their exploration finds them. */
#ifndef CDP__ELASTIC_PLANT
#define CDP__ELASTIC_PLANT(defect) false
#endif

#define CDP__ELASTIC_ID_BYTES 16u
#define CDP__ELASTIC_NEW 0xffffffffu /* the old rank of a newcomer */

typedef enum cdp__elastic_phase {
    CDP__ELASTIC_WAITING, /* it has a ticket, and is in no epoch yet */
    CDP__ELASTIC_JOINED,  /* in an epoch; it connects, sends or receives state */
    CDP__ELASTIC_RUNNING, /* it runs and commits steps */
    CDP__ELASTIC_ARRIVED, /* it commits nothing more in its epoch */
    CDP__ELASTIC_OUT      /* it was left out, or has left */
} cdp__elastic_phase;

/* What one process stores about itself. */
typedef struct cdp__elastic_place {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint64_t epoch;         /* 0: none yet */
    uint64_t step, samples; /* committed, in the state that it holds */
    uint32_t rank, size;    /* in that epoch */
    uint32_t blamed;        /* 1 + the rank because of which it ended here; 0: none */
    bool absent;            /* that rank did not call, which others see as well */
    uint8_t phase;          /* cdp__elastic_phase */
    bool has_state;         /* no while it receives: half of it would be of another step */
    bool fresh;             /* it holds what it came with, in an epoch of newcomers alone */
    bool live;              /* the group of this epoch may communicate */
    bool ending;            /* it has committed its last step */
} cdp__elastic_place;

/* A newcomer asks to be taken in. The step counts for the first epoch alone. */
typedef struct cdp__elastic_ticket {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint64_t step, samples;
    uint32_t round_trip_ms; /* between its process and the store */
    bool ended;             /* its process has ended */
    bool asks;              /* to be tried, or says that it was: not yet to be taken in */
    bool untried;           /* it asks, and no later ticket is of the same process */
} cdp__elastic_ticket;

/* "I complete nothing more in this epoch." */
typedef struct cdp__elastic_arrival {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint64_t step, samples;
    uint32_t rank;
    uint32_t blamed;        /* 1 + the rank with which it could not go on; 0: none */
    uint32_t round_trip_ms; /* of a ticket: between its process and the store */
    bool absent;            /* because that rank did not call */
    bool has_state, fresh, ending;
    bool asks, tried; /* of a ticket: it wants to be tried; it was */
} cdp__elastic_arrival;

typedef struct cdp__elastic_member {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint32_t old_rank;      /* CDP__ELASTIC_NEW: a newcomer */
    bool source;            /* it holds the state of the decision's step */
    bool on_trial;          /* it came to an epoch that had members, and never had their state */
    uint8_t strikes;        /* epochs that ended because of it since the last step was committed */
    uint16_t round_trip_ms; /* between it and the store, when it came */
    /* only while cdp__elastic_decide() runs, of the member with this rank in the old epoch */
    bool struck, evicted, absent, counts;
    uint32_t blamed; /* as in its arrival, if that counts */
} cdp__elastic_member;

typedef struct cdp__elastic_decision {
    uint64_t epoch;         /* 0: none */
    uint64_t step, samples; /* of the state with which this epoch begins */
    uint32_t tickets;       /* how many tickets, from the first on, have been dealt with */
    uint32_t size, sources, lost, joined;
    uint32_t evicted; /* of the lost: members that arrived, and were left out */
    uint32_t cool;    /* evictions since newcomers last committed a step: they wait longer */
    cdp__elastic_member *members; /* in the order of ranks; the caller's memory */
    char cause[160];
} cdp__elastic_decision;

typedef enum cdp__elastic_verdict {
    CDP__ELASTIC_DECIDED,
    CDP__ELASTIC_FEW,     /* below the minimum */
    CDP__ELASTIC_NO_STATE /* no arrived member of the last epoch has state */
} cdp__elastic_verdict;

CDP__PRIVATE bool cdp__elastic_same(const uint8_t *a, const uint8_t *b) {
    return memcmp(a, b, CDP__ELASTIC_ID_BYTES) == 0;
}

/* A step begins. False: this process has to take part in a turn first. */
CDP__PRIVATE bool cdp__elastic_begin(cdp__elastic_place *p, uint32_t batch) {
    if (p->phase != CDP__ELASTIC_RUNNING || !p->has_state) return false;
    if (CDP__ELASTIC_PLANT(COUNTED_EARLY)) p->samples += (uint64_t)p->size * batch;
    return true;
}

/* Counts the step and its samples on this rank. False: an alarm came first, so the step does not
   count on this rank. */
CDP__PRIVATE bool cdp__elastic_count(cdp__elastic_place *p, uint32_t batch) {
    const bool may = p->phase == CDP__ELASTIC_RUNNING
        || (CDP__ELASTIC_PLANT(COMMIT_AFTER_ARRIVAL) && p->phase == CDP__ELASTIC_ARRIVED);
    if (!may || !p->has_state) return false;
    ++p->step;
    if (!CDP__ELASTIC_PLANT(COUNTED_EARLY)) p->samples += (uint64_t)p->size * batch;
    return true;
}

/* The process may end: all members of its epoch have called cdp_elastic_finish(). */
CDP__PRIVATE bool cdp__elastic_ends(const cdp__elastic_place *p, bool all_called) {
    if (p->phase != CDP__ELASTIC_RUNNING || !p->has_state) return false;
    return all_called || CDP__ELASTIC_PLANT(LEAVES_EARLY);
}

/* Fills in the arrival record of this process. */
CDP__PRIVATE void cdp__elastic_describe(const cdp__elastic_place *p, cdp__elastic_arrival *out) {
    memset(out, 0, sizeof *out);
    memcpy(out->id, p->id, sizeof out->id);
    out->step = p->step;
    out->samples = p->samples;
    out->rank = p->rank;
    out->blamed = p->blamed;
    out->absent = p->absent;
    out->has_state = p->has_state;
    out->fresh = p->fresh;
    out->ending = p->ending;
}

/* The process arrives: it revokes its group, commits nothing more in the epoch, and records in *out
   what it holds. False: it is in no epoch, or has arrived before. */
CDP__PRIVATE bool cdp__elastic_arrive(cdp__elastic_place *p, cdp__elastic_arrival *out) {
    if (p->phase != CDP__ELASTIC_JOINED && p->phase != CDP__ELASTIC_RUNNING) return false;
    p->phase = CDP__ELASTIC_ARRIVED;
    if (!CDP__ELASTIC_PLANT(NO_REVOKE)) p->live = false;
    cdp__elastic_describe(p, out);
    return true;
}

/* The arrival of rank r of that epoch, or NULL. Arrivals of processes that are not this member are
   ignored. Of several arrivals of the member the first one counts, or a later one that adds that
   the rank is ending. */
CDP__PRIVATE const cdp__elastic_arrival *cdp__elastic_arrival_of(const cdp__elastic_decision *d,
    uint32_t r, const cdp__elastic_arrival *arrivals, uint32_t count) {
    const cdp__elastic_arrival *found = NULL;
    uint32_t i;
    for (i = 0; i < count; ++i)
        if (arrivals[i].rank == r && cdp__elastic_same(arrivals[i].id, d->members[r].id)
            && (!found || arrivals[i].ending))
            found = &arrivals[i];
    return found;
}

CDP__PRIVATE void cdp__elastic_add(
    cdp__elastic_decision *d, const uint8_t *id, uint32_t old_rank, bool source) {
    cdp__elastic_member *m = &d->members[d->size++];
    memset(m, 0, sizeof *m);
    memcpy(m->id, id, sizeof m->id);
    m->old_rank = old_rank;
    m->source = source;
    d->sources += source;
}

/* What a decision is made of. */
typedef struct cdp__elastic_view {
    const cdp__elastic_decision *old; /* epoch 0: this decision makes the first epoch */
    const cdp__elastic_arrival *arrivals;
    uint32_t arrival_count;
    const cdp__elastic_ticket *tickets; /* all of them, oldest first */
    uint32_t ticket_count;
    uint32_t min_ranks, max_ranks;
} cdp__elastic_view;

/* Newcomers come behind the members of the last epoch, in the order of their tickets, until there
   are max_ranks. */
CDP__PRIVATE void cdp__elastic_take_in(const cdp__elastic_view *v, cdp__elastic_decision *out) {
    uint32_t i;
    for (i = v->old->tickets; i < v->ticket_count && out->size < v->max_ranks; ++i) {
        out->tickets = i + 1;
        if (v->tickets[i].ended || v->tickets[i].asks) continue;
        cdp__elastic_add(out, v->tickets[i].id, CDP__ELASTIC_NEW, false);
        out->members[out->size - 1].on_trial = v->old->epoch > 0;
        out->members[out->size - 1].round_trip_ms = (uint16_t)v->tickets[i].round_trip_ms;
        ++out->joined;
    }
}

/* ---- who is tried

   A newcomer to a job that runs asks to be tried: it and the members connect beside the epoch, and
   only then it may be taken in, so one that the members cannot reach costs them no step. If an
   attempt with all that ask fails, each is tried alone: by turns the newest and the oldest one that
   was not yet. Not the newest alone: one that starts again before it was tried would have each
   attempt. */

/* Which of those that ask, the oldest first, has attempt `turn` alone, from 0 on. The oldest is
   first again and again, one further each time (0; 0 1; 0 1 2; ...): however many more come
   meanwhile, each has attempts without end. */
CDP__PRIVATE uint32_t cdp__elastic_tried_alone(uint32_t turn, uint32_t ask) {
    uint32_t i = turn / 2, row = 1;
    if (turn % 2 == 0) return ask - 1 - i % ask;
    for (; i >= row; ++row)
        i -= row;
    return i % ask;
}

/* Lists the members and those that are tried: all, or those of that attempt alone; out->members has
   room as for cdp__elastic_decide(). False: nobody asks. */
CDP__PRIVATE bool cdp__elastic_draw_trial(
    const cdp__elastic_view *v, bool alone, uint32_t turn, cdp__elastic_decision *out) {
    const cdp__elastic_decision *old = v->old;
    cdp__elastic_member *const members = out->members;
    uint32_t r, i, ask = 0, at = 0, one = 0;
    memset(out, 0, sizeof *out);
    out->members = members;
    for (r = 0; r < old->size; ++r) {
        cdp__elastic_add(out, old->members[r].id, r, !r);
        out->members[r].round_trip_ms = old->members[r].round_trip_ms;
    }
    for (i = 0; i < v->ticket_count; ++i)
        ask += v->tickets[i].untried && !v->tickets[i].ended;
    if (ask && alone) one = cdp__elastic_tried_alone(turn, ask);
    for (i = 0; i < v->ticket_count; ++i) {
        if (!v->tickets[i].untried || v->tickets[i].ended) continue;
        if (at++ != one && alone) continue;
        cdp__elastic_add(out, v->tickets[i].id, CDP__ELASTIC_NEW, false);
        out->members[out->size - 1].round_trip_ms = (uint16_t)v->tickets[i].round_trip_ms;
    }
    return ask > 0;
}

/* The state of the first epoch is that of its rank 0. */
CDP__PRIVATE cdp__elastic_verdict cdp__elastic_found(
    const cdp__elastic_view *v, cdp__elastic_decision *out) {
    cdp__elastic_take_in(v, out);
    if (!out->size || out->size < v->min_ranks) return CDP__ELASTIC_FEW;
    out->members[0].source = true;
    out->sources = 1;
    for (uint32_t i = 0; i < v->ticket_count; ++i) {
        if (!cdp__elastic_same(v->tickets[i].id, out->members[0].id)) continue;
        out->step = v->tickets[i].step;
        out->samples = v->tickets[i].samples;
    }
    return CDP__ELASTIC_DECIDED;
}

/* A planted defect: makes a newcomer a source if it claims a later step than the last epoch has.
   That is wrong, because its state does not contain what the members have committed. */
CDP__PRIVATE void cdp__elastic_trust_newcomers(
    const cdp__elastic_view *v, cdp__elastic_decision *out) {
    uint32_t i, k;
    for (i = v->old->tickets; i < v->ticket_count; ++i)
        if (v->tickets[i].step > out->step) {
            out->step = v->tickets[i].step;
            out->samples = v->tickets[i].samples;
            out->sources = 0;
            for (k = 0; k < out->size; ++k)
                out->members[k].source = false;
        }
    for (k = 0; k < out->size; ++k)
        for (i = v->old->tickets; i < v->ticket_count; ++i)
            if (v->tickets[i].step == out->step
                && cdp__elastic_same(v->tickets[i].id, out->members[k].id)) {
                out->members[k].source = true;
                ++out->sources;
            }
}

/* ---- who is left out because others cannot go on with it

   A process may live, reach the store and block its peers: it hangs, or a path between two members
   carries nothing. Each member says in its arrival whom it could not go on with. A member that is
   blamed in so many epochs, with no step committed meanwhile, is left out; of members that cannot
   go on with each other, as few as possible are. A newcomer that has no state yet goes sooner, and
   before members of earlier epochs. If a member has not arrived, that explains why the epoch
   ended. */
#define CDP__ELASTIC_STRIKES 3u
#define CDP__ELASTIC_STRIKES_NEW 2u
#define CDP__ELASTIC_COOL 6u /* newcomers wait at most 2 to this power times grow_ms */

/* A newcomer that has not received state yet. */
CDP__PRIVATE bool cdp__elastic_on_trial(const cdp__elastic_view *v, uint32_t r) {
    const cdp__elastic_arrival *a =
        cdp__elastic_arrival_of(v->old, r, v->arrivals, v->arrival_count);
    return v->old->members[r].on_trial && a && !a->has_state;
}

/* Two members that were not left out, one of which blames the other. */
CDP__PRIVATE bool cdp__elastic_apart(const cdp__elastic_member *m, uint32_t a, uint32_t b) {
    return !m[a].evicted && !m[b].evicted && (m[a].blamed == b + 1 || m[b].blamed == a + 1);
}

/* Members that are apart from rank r; *last is one of them. */
CDP__PRIVATE uint32_t cdp__elastic_apart_from(
    const cdp__elastic_member *m, uint32_t size, uint32_t r, uint32_t *last) {
    uint32_t i, n = 0;
    for (i = 0; i < size; ++i) {
        if (i == r || !cdp__elastic_apart(m, r, i)) continue;
        *last = i;
        ++n;
    }
    return n;
}

/* Keeps the strikes of each rank, and whom it blames now. True if all have arrived. */
CDP__PRIVATE bool cdp__elastic_blames(
    const cdp__elastic_view *v, cdp__elastic_member *m, bool committed) {
    const uint32_t size = v->old->size;
    bool all = true;
    uint32_t r;
    for (r = 0; r < size; ++r) {
        const cdp__elastic_arrival *a =
            cdp__elastic_arrival_of(v->old, r, v->arrivals, v->arrival_count);
        memset(&m[r], 0, sizeof m[r]);
        m[r].strikes = committed ? 0 : v->old->members[r].strikes;
        all = all && a;
        if (!a || a->blamed > size || a->blamed == r + 1) continue;
        m[r].blamed = a->blamed;
        m[r].absent = a->absent;
    }
    return all;
}

/* A newcomer on trial alone blames a member: perhaps nothing comes to itself. */
CDP__PRIVATE bool cdp__elastic_alone(
    const cdp__elastic_view *v, const cdp__elastic_member *m, uint32_t r) {
    uint32_t i;
    if (!m[r].blamed || m[r].absent || !cdp__elastic_on_trial(v, r)) return false;
    for (i = 0; i < v->old->size; ++i)
        if (m[i].blamed == m[r].blamed && !cdp__elastic_on_trial(v, i)) return false;
    return true;
}

/* Counts strikes, and keeps the blames that count. True if there are any. */
CDP__PRIVATE bool cdp__elastic_strike(
    const cdp__elastic_view *v, cdp__elastic_member *m, bool committed) {
    const uint32_t size = v->old->size;
    bool any = false;
    uint32_t r;
    if (!cdp__elastic_blames(v, m, committed)) return false;
    for (r = 0; r < size; ++r)
        if (m[r].blamed) m[cdp__elastic_alone(v, m, r) ? r : m[r].blamed - 1].struck = true;
    for (r = 0; r < size; ++r)
        m[r].strikes = (uint8_t)(m[r].strikes + (m[r].struck && m[r].strikes < 255));
    for (r = 0; r < size; ++r) {
        const uint32_t who = cdp__elastic_alone(v, m, r) ? r : m[r].blamed - 1;
        if (!m[r].blamed) continue;
        m[r].counts = m[who].strikes
            >= (cdp__elastic_on_trial(v, who) ? CDP__ELASTIC_STRIKES_NEW : CDP__ELASTIC_STRIKES);
        any = any || m[r].counts;
    }
    for (r = 0; r < size; ++r)
        if (!m[r].counts) m[r].blamed = 0;
    return any;
}

/* Newcomers on trial go before any member does: who is blamed says little about which path carries
   nothing, and the members went on before these came. Not for a member that did not call. */
CDP__PRIVATE uint32_t cdp__elastic_end_trials(const cdp__elastic_view *v, cdp__elastic_member *m) {
    uint32_t r, n = 0;
    bool path = false;
    for (r = 0; r < v->old->size; ++r)
        path = path || (m[r].blamed && !m[r].absent);
    for (r = 0; path && r < v->old->size; ++r) {
        m[r].evicted = cdp__elastic_on_trial(v, r);
        n += m[r].evicted;
    }
    return n;
}

/* Whom to leave out next; `size`: nobody. A member that one other member alone is apart from, and
   that is apart from more, goes: so as few as possible do, since each blames one. Where there is no
   such member all are pairs or circles, in which any may go: the one that is blamed does. */
CDP__PRIVATE uint32_t cdp__elastic_next_out(const cdp__elastic_member *m, uint32_t size) {
    uint32_t r, other = 0, more = 0, found = size;
    for (r = 0; r < size; ++r) {
        const uint32_t b = m[r].blamed - 1;
        if (m[r].blamed && cdp__elastic_apart(m, r, b))
            found = m[b].blamed == r + 1 ? (uint32_t)cdp__max(r, b) : b;
    }
    for (r = 0; found < size && r < size; ++r)
        if (cdp__elastic_apart_from(m, size, r, &other) == 1
            && cdp__elastic_apart_from(m, size, other, &more) > 1)
            return other;
    return found;
}

/* The arrival whose state the next epoch begins with: of the members that arrived with state, the
   first with the highest step. In an epoch of newcomers alone perhaps no member has state yet, and
   then no member has committed a step in it: returns the first one that has not begun to receive
   state. NULL: there is none. Without those that are left out in `m` (NULL: nobody is). */
CDP__PRIVATE const cdp__elastic_arrival *cdp__elastic_best(
    const cdp__elastic_view *v, const cdp__elastic_member *m) {
    const cdp__elastic_arrival *best = NULL, *a;
    uint32_t r;
    for (r = 0; r < v->old->size; ++r) {
        a = cdp__elastic_arrival_of(v->old, r, v->arrivals, v->arrival_count);
        if (!a || (m && m[r].evicted)) continue;
        if (a->has_state && (!best || !best->has_state || a->step > best->step)) best = a;
        if (a->fresh && !best) best = a;
    }
    return best;
}

/* Marks who is left out; returns how many. */
CDP__PRIVATE uint32_t cdp__elastic_evict(
    const cdp__elastic_view *v, cdp__elastic_member *m, bool committed) {
    const uint32_t size = v->old->size;
    uint32_t r, n = 0;
    if (!cdp__elastic_strike(v, m, committed)) return 0;
    if (!cdp__elastic_end_trials(v, m))
        while ((r = cdp__elastic_next_out(m, size)) < size)
            m[r].evicted = true;
    for (r = 0; r < size; ++r)
        n += m[r].evicted;
    if (size - n >= v->min_ranks && cdp__elastic_best(v, m)) return n;
    for (r = 0; r < size; ++r)
        m[r].evicted = false;
    return 0;
}

/* The next decision; out->members has room for the members of the last epoch and for the tickets.
   Any process may make one of what it has seen, at any time: the first one that is in the store
   counts. */
CDP__PRIVATE cdp__elastic_verdict cdp__elastic_decide(
    const cdp__elastic_view *v, cdp__elastic_decision *out) {
    const cdp__elastic_decision *old = v->old;
    cdp__elastic_member *const members = out->members;
    const cdp__elastic_arrival *a, *best;
    uint32_t r, here = 0, ending = 0;
    bool committed;
    memset(out, 0, sizeof *out);
    out->members = members;
    out->epoch = old->epoch + 1;
    out->tickets = old->tickets;
    if (!old->epoch) return cdp__elastic_found(v, out);
    best = cdp__elastic_best(v, NULL);
    committed = best && best->step > old->step;
    out->evicted = cdp__elastic_evict(v, members, committed);
    out->cool = (committed && old->joined ? 0 : old->cool) + out->evicted;
    out->cool = (uint32_t)cdp__min(out->cool, CDP__ELASTIC_COOL);
    best = cdp__elastic_best(v, members);
    out->step = best ? best->step : 0;
    out->samples = best ? best->samples : 0;
    for (r = 0; r < old->size; ++r) {
        const uint8_t strikes = members[r].strikes; /* members are added at r or before */
        const bool trial = cdp__elastic_on_trial(v, r);
        a = cdp__elastic_arrival_of(old, r, v->arrivals, v->arrival_count);
        if (!a || members[r].evicted) continue;
        ++here;
        ending += a->ending;
        if (out->size == v->max_ranks) continue;
        cdp__elastic_add(out, a->id, r, a == best || (a->has_state && a->step == out->step));
        out->members[out->size - 1].strikes = strikes;
        out->members[out->size - 1].on_trial = trial;
        out->members[out->size - 1].round_trip_ms = old->members[r].round_trip_ms;
    }
    out->lost = old->size - out->size;
    /* members that have done all steps need no others: min_ranks is for steps still to come */
    if (!here || ending < here) cdp__elastic_take_in(v, out);
    if (CDP__ELASTIC_PLANT(NEWCOMER_SOURCE)) cdp__elastic_trust_newcomers(v, out);
    if (!here) return CDP__ELASTIC_FEW;
    /* newcomers would not help */
    if (!best) return CDP__ELASTIC_NO_STATE;
    if (out->size < v->min_ranks && ending < here) return CDP__ELASTIC_FEW;
    return CDP__ELASTIC_DECIDED;
}

/* Applies a decision to the place of this process. False: this process is not a member of the new
   epoch. */
CDP__PRIVATE bool cdp__elastic_learn(cdp__elastic_place *p, const cdp__elastic_decision *d) {
    const cdp__elastic_member *m;
    uint32_t r;
    for (r = 0; r < d->size && !cdp__elastic_same(d->members[r].id, p->id); ++r) {
    }
    if (r == d->size) {
        if (p->phase == CDP__ELASTIC_ARRIVED && d->epoch == p->epoch + 1)
            p->phase = CDP__ELASTIC_OUT;
        return false;
    }
    m = &d->members[r];
    p->epoch = d->epoch;
    p->rank = r;
    p->size = d->size;
    p->blamed = 0;
    p->absent = false;
    p->phase = CDP__ELASTIC_JOINED;
    p->live = true;
    if (m->source) {
        p->has_state = true;
        p->fresh = false;
    } else if (m->old_rank == CDP__ELASTIC_NEW) {
        /* a newcomer's own state belongs to no epoch; otherwise it would count if this epoch ended
           before the newcomer had received state */
        p->has_state = false;
        p->fresh = d->members[0].old_rank == CDP__ELASTIC_NEW;
    }
    return true;
}

/* This process is about to receive state. `apart`: into separate memory, so that its present state
   stays complete until cdp__elastic_hold(). */
CDP__PRIVATE void cdp__elastic_receive(cdp__elastic_place *p, bool apart) {
    if (!apart && !CDP__ELASTIC_PLANT(RECEIVER_KEEPS_STATE)) p->has_state = p->fresh = false;
}

/* All of the state was received, and its hashes were equal: this process has it, also if it arrives
   before it runs. No: an alarm was first. */
CDP__PRIVATE bool cdp__elastic_hold(cdp__elastic_place *p, const cdp__elastic_decision *d) {
    if (p->phase != CDP__ELASTIC_JOINED || p->epoch != d->epoch) return false;
    p->has_state = true;
    p->fresh = false;
    p->step = d->step;
    p->samples = d->samples;
    return true;
}

/* The members are connected, and this process holds the state of the decision. No: an alarm was
   first. */
CDP__PRIVATE bool cdp__elastic_run(cdp__elastic_place *p, const cdp__elastic_decision *d) {
    if (!cdp__elastic_hold(p, d)) return false;
    p->phase = CDP__ELASTIC_RUNNING;
    return true;
}

/* Identifies a process, in the first message on each connection and in all that it sends: the
   member with this rank of this epoch. */
typedef struct cdp__elastic_hello {
    uint8_t id[CDP__ELASTIC_ID_BYTES];
    uint64_t epoch;
} cdp__elastic_hello;

CDP__PRIVATE bool cdp__elastic_fits(
    const cdp__elastic_decision *d, uint32_t rank, const cdp__elastic_hello *h) {
    if (rank >= d->size || !cdp__elastic_same(d->members[rank].id, h->id)) return false;
    return h->epoch == d->epoch || CDP__ELASTIC_PLANT(NO_EPOCH);
}

/* ---- >>elastic/turn: who proposes, and when (pure) ------------------------------------------- */

/* Knows: who arrived and who is dead. Promises: nobody waits for the dead, nor longer than
   settle_ms (begun anew after a standstill of its own) for those of whom nothing is known; a
   dead leader costs CDP__ELASTIC_STAGGER_MS. These times decide how good a decision is, never
   whether there is one. */

#define CDP__ELASTIC_STAGGER_MS 50u
#define CDP__ELASTIC_FOUND_MS 100u /* the same before the first epoch, where all poll less often */
#define CDP__ELASTIC_LOOK_MS 10u   /* how often the leader reads the arrivals */
#define CDP__ELASTIC_AGAIN_MS 100u /* after a proposal that was not possible */
#define CDP__ELASTIC_PAUSES 3u /* after which the time goes on, on a machine that is always late */

/* How many round trips things take; see cdp__elastic_init_ms() and cdp__elastic_settle_ms(). */
#define CDP__ELASTIC_INIT_TRIPS 48u
#define CDP__ELASTIC_SETTLE_TRIPS 4u
#define CDP__ELASTIC_INIT_MS 500u /* for the first attempt to connect, without them */

/* The longest round trip of a member to the store, which is equal on all ranks of the epoch. */
CDP__PRIVATE uint32_t cdp__elastic_round_trip_ms(const cdp__elastic_decision *d) {
    uint32_t r, most = 0;
    for (r = 0; r < d->size; ++r)
        most = (uint32_t)cdp__max(most, d->members[r].round_trip_ms);
    return most;
}

/* For an attempt to connect, after so many that failed. cdp_init() over TCP took 15 to 20 round
   trips without a job key, and 43 of 100 ms where there was one: addresses in the store of the job,
   a connection to the store of rank 0, addresses of all ranks there, connections between ranks, and
   the agreement that all are complete. */
CDP__PRIVATE uint32_t cdp__elastic_init_ms(const cdp__elastic_decision *d, uint32_t failures) {
    const uint32_t trips_ms = CDP__ELASTIC_INIT_TRIPS * cdp__elastic_round_trip_ms(d);
    return (CDP__ELASTIC_INIT_MS + d->size * 20u + trips_ms) << cdp__min(failures, 5);
}

/* The same, where operations may take timeout_ms: that bounds how the time grows, and not the first
   attempt, which needs its round trips. */
CDP__PRIVATE uint32_t cdp__elastic_attempt_ms(
    const cdp__elastic_decision *d, uint32_t failures, uint32_t timeout_ms) {
    const uint32_t least_ms = (uint32_t)cdp__max(timeout_ms, cdp__elastic_init_ms(d, 0));
    return (uint32_t)cdp__min(cdp__elastic_init_ms(d, failures), least_ms);
}

/* For how long arrivals are waited for. Between the first arrival and another one are half a round
   trip until the other process reads the alarm, one in which it may finish what it asks now, and
   one in which it arrives; the process that waits needs two to read the arrivals. */
CDP__PRIVATE uint32_t cdp__elastic_settle_ms(const cdp__elastic_decision *d, uint32_t settle_ms) {
    return settle_ms + CDP__ELASTIC_SETTLE_TRIPS * cdp__elastic_round_trip_ms(d);
}

typedef struct cdp__elastic_turn {
    const cdp__elastic_decision *d; /* the epoch that ends */
    const cdp__elastic_arrival *arrivals;
    uint32_t count;
    const bool *dead;  /* of each rank: known to be dead */
    uint32_t rank;     /* of the process that asks */
    uint64_t since_ms; /* see cdp__elastic_waited_ms() */
    uint32_t settle_ms;
} cdp__elastic_turn;

/* How long a process has waited for members that have neither arrived nor are known to be dead. */
typedef struct cdp__elastic_settle {
    uint64_t since_ns, due_ns; /* due_ns: when it planned to poll next */
    uint32_t pauses;
} cdp__elastic_settle;

/* If this process polls much later than planned, it was stopped itself, perhaps with its machine
   and all other processes there. Then missing arrivals prove nothing, so the other members get the
   whole time once more. */
CDP__PRIVATE uint64_t cdp__elastic_waited_ms(
    cdp__elastic_settle *s, uint64_t time_ns, uint32_t settle_ms) {
    const uint64_t late_ns = time_ns > s->due_ns ? time_ns - s->due_ns : 0;
    if (late_ns > settle_ms * CDP__MS / 2 && s->pauses < CDP__ELASTIC_PAUSES
        && !CDP__ELASTIC_PLANT(COUNTS_PAUSES)) {
        ++s->pauses;
        s->since_ns = time_ns;
    }
    return (time_ns - s->since_ns) / CDP__MS;
}

/* Each member has arrived or is known to be dead. */
CDP__PRIVATE bool cdp__elastic_complete(const cdp__elastic_turn *t) {
    uint32_t r;
    for (r = 0; r < t->d->size; ++r) {
        const bool known_dead = t->dead[r] && !CDP__ELASTIC_PLANT(WAITS_FOR_DEAD);
        if (!known_dead && !cdp__elastic_arrival_of(t->d, r, t->arrivals, t->count)) return false;
    }
    return true;
}

/* The leader: the lowest rank that has arrived and, as far as this process knows, is alive. */
CDP__PRIVATE uint32_t cdp__elastic_leader(const cdp__elastic_turn *t) {
    uint32_t r;
    for (r = 0; r < t->rank; ++r)
        if (!t->dead[r] && cdp__elastic_arrival_of(t->d, r, t->arrivals, t->count)) break;
    return r;
}

/* True if this process proposes a decision now. False: it polls again after *wait_ms. If the leader
   does not propose, the other ranks do, one after the other. */
CDP__PRIVATE bool cdp__elastic_proposes(const cdp__elastic_turn *t, uint64_t *wait_ms) {
    uint64_t own_ms = t->settle_ms;
    uint32_t r, before = 0;
    for (r = 0; r < t->rank; ++r)
        if (!t->dead[r]) before += cdp__elastic_arrival_of(t->d, r, t->arrivals, t->count) != NULL;
    *wait_ms = 0;
    if (!before && cdp__elastic_complete(t)) return true;
    own_ms += (uint64_t)before * CDP__ELASTIC_STAGGER_MS;
    if (t->since_ms >= own_ms) return true;
    *wait_ms = own_ms - t->since_ms;
    if (!before && *wait_ms > CDP__ELASTIC_LOOK_MS) *wait_ms = CDP__ELASTIC_LOOK_MS;
    return false;
}

/* True if this process proposes the first epoch now. The process with the oldest live ticket does,
   when there are max_ranks, or at least min_ranks and no new ticket for settle_ms. It may be dead,
   and not known to be: if it does not propose, the others do, one after the other. */
CDP__PRIVATE bool cdp__elastic_founds(
    const cdp__elastic_view *v, const uint8_t *id, uint64_t quiet_ms, uint32_t settle_ms) {
    uint32_t i, there = 0, before = 0;
    bool mine = false;
    for (i = 0; i < v->ticket_count; ++i) {
        if (v->tickets[i].ended) continue;
        mine = mine || cdp__elastic_same(v->tickets[i].id, id);
        before += !mine;
        ++there;
    }
    if (!mine || there < v->min_ranks) return false;
    if (!before && there >= v->max_ranks) return true;
    return quiet_ms >= settle_ms + (uint64_t)before * CDP__ELASTIC_FOUND_MS;
}

/* ---- >>elastic/records: tickets, arrivals and decisions as bytes (pure) ---------------------- */

/* Knows: what is in the store. Promises: bytes that nobody wrote as a record are refused, and never
   read beyond their end. */

#define CDP__ELASTIC_RECORD_BYTES 48u /* of a ticket or an arrival */
#define CDP__ELASTIC_HEAD_BYTES 224u  /* of a decision, before its members */
#define CDP__ELASTIC_MEMBER_BYTES 24u
#define CDP__ELASTIC_RECORD_MARK 0x31726c65u   /* "elr1" */
#define CDP__ELASTIC_DECISION_MARK 0x31646c65u /* "eld1" */

/* mark, rank, flags and whom it blames (of a ticket: its round trip), sum over the rest; step,
   samples; id */
CDP__PRIVATE void cdp__elastic_put_record(uint8_t *out, const cdp__elastic_arrival *a) {
    cdp__put_u32(out, CDP__ELASTIC_RECORD_MARK);
    cdp__put_u32(out + 4, a->rank);
    cdp__put_u32(out + 8,
        (a->has_state ? 1u : 0u) | (a->ending ? 2u : 0u) | (a->fresh ? 4u : 0u)
            | (a->absent ? 8u : 0u) | (a->asks ? 16u : 0u) | (a->tried ? 32u : 0u)
            | (a->rank == CDP__ELASTIC_NEW ? a->round_trip_ms : a->blamed) << 16);
    cdp__put_u64(out + 16, a->step);
    cdp__put_u64(out + 24, a->samples);
    memcpy(out + 32, a->id, CDP__ELASTIC_ID_BYTES);
    cdp__put_u32(out + 12, 0);
    cdp__put_u32(out + 12, (uint32_t)cdp__hash(CDP__HASH_START, out, CDP__ELASTIC_RECORD_BYTES));
}

CDP__PRIVATE bool cdp__elastic_get_record(const uint8_t *in, cdp__elastic_arrival *a) {
    uint8_t copy[CDP__ELASTIC_RECORD_BYTES];
    memcpy(copy, in, sizeof copy);
    memset(copy + 12, 0, 4);
    memset(a, 0, sizeof *a);
    if (cdp__get_u32(in) != CDP__ELASTIC_RECORD_MARK) return false;
    if (cdp__get_u32(in + 12) != (uint32_t)cdp__hash(CDP__HASH_START, copy, sizeof copy))
        return false;
    a->rank = cdp__get_u32(in + 4);
    a->has_state = (in[8] & 1) != 0;
    a->ending = (in[8] & 2) != 0;
    a->fresh = (in[8] & 4) != 0;
    a->absent = (in[8] & 8) != 0;
    a->asks = (in[8] & 16) != 0;
    a->tried = (in[8] & 32) != 0;
    if (a->rank == CDP__ELASTIC_NEW)
        a->round_trip_ms = cdp__get_u32(in + 8) >> 16;
    else
        a->blamed = cdp__get_u32(in + 8) >> 16;
    a->step = cdp__get_u64(in + 16);
    a->samples = cdp__get_u64(in + 24);
    memcpy(a->id, in + 32, sizeof a->id);
    return true;
}

CDP__PRIVATE uint64_t cdp__elastic_decision_bytes(uint32_t size) {
    return CDP__ELASTIC_HEAD_BYTES + (uint64_t)size * CDP__ELASTIC_MEMBER_BYTES;
}

/* mark, size, tickets, lost, joined, 0; epoch, step, samples; sum; cause; evicted, cool; then
   members */
CDP__PRIVATE void cdp__elastic_put_decision(uint8_t *out, const cdp__elastic_decision *d) {
    const uint64_t bytes = cdp__elastic_decision_bytes(d->size);
    uint32_t r;
    memset(out, 0, (size_t)bytes);
    cdp__put_u32(out, CDP__ELASTIC_DECISION_MARK);
    cdp__put_u32(out + 4, d->size);
    cdp__put_u32(out + 8, d->tickets);
    cdp__put_u32(out + 12, d->lost);
    cdp__put_u32(out + 16, d->joined);
    cdp__put_u64(out + 24, d->epoch);
    cdp__put_u64(out + 32, d->step);
    cdp__put_u64(out + 40, d->samples);
    memcpy(out + 56, d->cause, sizeof d->cause);
    cdp__put_u32(out + 216, d->evicted);
    cdp__put_u32(out + 220, d->cool);
    for (r = 0; r < d->size; ++r) {
        uint8_t *at = out + cdp__elastic_decision_bytes(r);
        memcpy(at, d->members[r].id, CDP__ELASTIC_ID_BYTES);
        cdp__put_u32(at + 16, d->members[r].old_rank);
        at[20] = (uint8_t)((d->members[r].source ? 1 : 0) | (d->members[r].on_trial ? 2 : 0));
        at[21] = d->members[r].strikes;
        at[22] = (uint8_t)d->members[r].round_trip_ms;
        at[23] = (uint8_t)(d->members[r].round_trip_ms >> 8);
    }
    cdp__put_u64(out + 48, cdp__hash(CDP__HASH_START, out, bytes));
}

/* How many members the bytes hold; 0: they are no decision. */
CDP__PRIVATE uint32_t cdp__elastic_decision_size(const uint8_t *in, uint64_t bytes) {
    uint32_t size;
    if (bytes < CDP__ELASTIC_HEAD_BYTES || cdp__get_u32(in) != CDP__ELASTIC_DECISION_MARK) return 0;
    size = cdp__get_u32(in + 4);
    return bytes == cdp__elastic_decision_bytes(size) ? size : 0;
}

/* d->members has room for as many as cdp__elastic_decision_size() said. Changes `in`. */
CDP__PRIVATE bool cdp__elastic_get_decision(uint8_t *in, uint64_t bytes, cdp__elastic_decision *d) {
    const uint32_t size = cdp__elastic_decision_size(in, bytes);
    const uint64_t sum = size ? cdp__get_u64(in + 48) : 0;
    cdp__elastic_member *const members = d->members;
    uint32_t r;
    if (!size) return false;
    cdp__put_u64(in + 48, 0);
    if (cdp__hash(CDP__HASH_START, in, bytes) != sum) return false;
    memset(d, 0, sizeof *d);
    d->members = members;
    d->tickets = cdp__get_u32(in + 8);
    d->lost = cdp__get_u32(in + 12);
    d->joined = cdp__get_u32(in + 16);
    d->epoch = cdp__get_u64(in + 24);
    d->step = cdp__get_u64(in + 32);
    d->samples = cdp__get_u64(in + 40);
    d->evicted = cdp__get_u32(in + 216);
    d->cool = (uint32_t)cdp__min(cdp__get_u32(in + 220), CDP__ELASTIC_COOL);
    cdp__text_foreign_in(d->cause, sizeof d->cause, (const char *)in + 56, sizeof d->cause - 1);
    for (r = 0; r < size; ++r) {
        const uint8_t *at = in + cdp__elastic_decision_bytes(r);
        cdp__elastic_add(d, at, cdp__get_u32(at + 16), (at[20] & 1) != 0);
        d->members[r].on_trial = (at[20] & 2) != 0;
        d->members[r].strikes = at[21];
        d->members[r].round_trip_ms = (uint16_t)(at[22] | at[23] << 8);
    }
    return d->epoch && d->sources;
}

/* ---- >>elastic/member: what a process holds of its job --------------------------------------- */

/* Knows: the members of a cdp_elastic. Promises: what a lock guards is said. */

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

/* ---- >>elastic/store: keys of the job, and short requests ------------------------------------ */

/* Knows: the keys. Promises: a request ends by cdp__elastic_store_limit(); what it returns is the
   caller's memory. */

/* A request took so long. The shortest one is the round trip: others had to wait for something. */
CDP__PRIVATE void cdp__elastic_measured(cdp_elastic *e, uint64_t took_ns) {
    if (!e->round_trip_ns || took_ns < e->round_trip_ns) e->round_trip_ns = took_ns;
}

/* The status of a request, or of a wait for it. A store that its host has closed answers STATE, and
   one that is silent TIMEOUT, which of the calls of this header say something else. */
CDP__PRIVATE cdp_status cdp__elastic_store_status(const cdp_elastic *e, cdp_status st) {
    if (st != CDP_ERR_STATE && (st != CDP_ERR_TIMEOUT || e->asks_again)) return st;
    cdp__error_slot()->status = CDP_ERR_STORE;
    return CDP_ERR_STORE;
}

/* This client is the one that polls for the alarm and in turns. */
CDP__PRIVATE bool cdp__elastic_watches(const cdp_elastic *e, const cdp_store *s) {
    return s == e->polls;
}

/* From now on a call of the program waits for the store as long as for anything else, or (no) for
   store_ms, as calls that do not wait for others do. */
CDP__PRIVATE void cdp__elastic_be_patient(cdp_elastic *e, bool patient) {
    const uint64_t until_ns = patient ? cdp__deadline(e->os, e->desc.join_ms) : 0;
    cdp__elastic_lock(e);
    if (!patient || !e->patient_ns) e->patient_ns = until_ns;
    cdp__elastic_unlock(e);
}

/* Until when a request is waited for that was sent at begun_ns. An epoch goes on without the store,
   and nothing does in a turn: so who polls waits for as long as a call of the program may. */
CDP__PRIVATE uint64_t cdp__elastic_store_limit(
    cdp_elastic *e, const cdp_store *s, uint64_t begun_ns) {
    const uint64_t least = begun_ns + e->store_ms * CDP__MS;
    uint64_t patient_ns;
    if (cdp__elastic_watches(e, s)) return cdp__max(least, begun_ns + e->desc.join_ms * CDP__MS);
    cdp__elastic_lock(e);
    patient_ns = e->patient_ns;
    cdp__elastic_unlock(e);
    return cdp__max(least, patient_ns);
}

CDP__PRIVATE bool cdp__elastic_stops(cdp_elastic *e) {
    bool stop;
    cdp__elastic_lock(e);
    stop = e->stop;
    cdp__elastic_unlock(e);
    return stop;
}

/* Waits for the answer: CDP_PENDING, and not before that time, if there is none. A store without
   locks does not wait. (Another thread may be writing rq->status; wait() locks.) */
CDP__PRIVATE cdp_status cdp__elastic_answer(
    cdp_elastic *e, cdp_store *s, cdp_store_request *rq, uint64_t until_ns) {
    const cdp_status st = cdp__elastic_store_status(e, s->wait(s->self, rq, until_ns));
    if (st == CDP_PENDING && cdp__elastic_now_ns(e) < until_ns) cdp__sleep_until(e->os, until_ns);
    return st;
}

/* The end of a request that was sent at begun_ns. cdp_elastic_destroy() does not wait for it. */
CDP__PRIVATE cdp_status cdp__elastic_store_end(
    cdp_elastic *e, cdp_store *s, cdp_store_request *rq, uint64_t begun_ns) {
    const uint64_t until_ns = cdp__elastic_store_limit(e, s, begun_ns);
    const bool beside = cdp__elastic_watches(e, s) && !e->no_thread;
    uint64_t now = cdp__elastic_now_ns(e);
    cdp_status st;
    do {
        const uint64_t slice_ns = now + CDP__ELASTIC_SLICE_MS * CDP__MS;
        st = cdp__elastic_answer(e, s, rq, beside ? cdp__min(until_ns, slice_ns) : until_ns);
        now = cdp__elastic_now_ns(e);
    } while (st == CDP_PENDING && now < until_ns && !(beside && cdp__elastic_stops(e)));
    return cdp__elastic_store_status(
        e, cdp__store_end(s, rq, st, (uint32_t)((now - begun_ns) / CDP__MS)));
}

/* One request. *data (NULL: not wanted) is freed with cdp_store_free(). */
CDP__PRIVATE cdp_status cdp__elastic_ask(
    cdp_elastic *e, cdp_store *s, cdp__store_call *c, void **data, uint64_t *bytes) {
    const uint64_t begun = cdp__elastic_now_ns(e);
    cdp_status st = cdp__elastic_store_status(e, cdp__store_begin(s, &c->rq));
    if (data) *data = NULL;
    if (st >= 0) st = cdp__elastic_store_end(e, s, &c->rq, begun);
    if (st != CDP_OK) return st;
    if (!e->handed_in) cdp__elastic_measured(e, cdp__elastic_now_ns(e) - begun);
    if (data && c->rq.results) {
        *bytes = c->rq.results[0].bytes;
        memcpy(data, &c->rq.results[0].data, sizeof *data);
        c->rq.results[0].data = NULL;
    }
    cdp_store_request_free(s, &c->rq);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__elastic_put(cdp_elastic *e, cdp_store *s, cdp_store_op op,
    const char *key, const void *value, uint64_t bytes) {
    cdp__store_call c;
    const cdp_status st = cdp__store_call_make(&c, op, key, value, bytes);
    return st == CDP_OK ? cdp__elastic_ask(e, s, &c, NULL, NULL) : st;
}

/* Writes the key if it is absent; *data is what it holds then. */
CDP__PRIVATE cdp_status cdp__elastic_claim(cdp_elastic *e, cdp_store *s, const char *key,
    const void *value, uint64_t count, void **data, uint64_t *bytes) {
    cdp__store_call c;
    cdp_status st = cdp__store_call_make(&c, CDP_STORE_COMPARE_SET, key, "", 0);
    *data = NULL;
    if (st != CDP_OK) return st;
    c.value[1].data = value;
    c.value[1].bytes = count;
    st = cdp__elastic_ask(e, s, &c, data, bytes);
    if (st == CDP_OK && !*data) st = cdp__fail(CDP_ERR_STORE, "the store has no value of %s", key);
    return st;
}

/* The same where the caller does not need the value. */
CDP__PRIVATE cdp_status cdp__elastic_mark(
    cdp_elastic *e, cdp_store *s, const char *key, const char *text) {
    void *data;
    uint64_t bytes;
    const cdp_status st = cdp__elastic_claim(e, s, key, text, strlen(text), &data, &bytes);
    cdp_store_free(s, data);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_there(
    cdp_elastic *e, cdp_store *s, const char *key, bool *there) {
    cdp__store_call c;
    cdp_status st = cdp__store_call_make(&c, CDP_STORE_CHECK, key, NULL, 0);
    *there = false;
    if (st == CDP_OK) st = cdp__elastic_ask(e, s, &c, NULL, NULL);
    if (st == CDP_OK) *there = c.rq.number == 1;
    return st;
}

/* What no key of a job holds. An absent key does not match it, and it is the answer then: so a
   comparison with it reads a key, or learns that it is absent, in one round trip. */
static const uint8_t cdp__elastic_absent[8] = {0, 'a', 'b', 's', 'e', 'n', 't', 0};

/* A key that is read together with others. */
typedef struct cdp__elastic_get {
    cdp__store_call call;
    char key[CDP__ELASTIC_KEY];
    const void *claim; /* written first if the key is absent; NULL: it is only read */
    uint64_t claim_bytes;
    bool removes; /* it is deleted, and not read */
    void *data;   /* NULL: it is absent; freed with cdp_store_free() */
    uint64_t bytes;
} cdp__elastic_get;

CDP__PRIVATE cdp_status cdp__elastic_get_begin(
    const cdp_elastic *e, cdp_store *s, cdp__elastic_get *g) {
    const bool reads = !g->removes && !g->claim;
    cdp_status st =
        cdp__store_call_make(&g->call, g->removes ? CDP_STORE_DELETE : CDP_STORE_COMPARE_SET,
            g->key, cdp__elastic_absent, reads ? sizeof cdp__elastic_absent : 0);
    g->call.value[1] = g->call.value[0];
    if (g->claim) {
        g->call.value[1].data = g->claim;
        g->call.value[1].bytes = g->claim_bytes;
    }
    if (st == CDP_OK) st = cdp__elastic_store_status(e, cdp__store_begin(s, &g->call.rq));
    return st < 0 ? st : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__elastic_get_end(
    cdp_elastic *e, cdp_store *s, cdp__elastic_get *g, uint64_t begun_ns) {
    cdp_store_request *rq = &g->call.rq;
    cdp_status st = cdp__elastic_store_end(e, s, rq, begun_ns);
    if (st != CDP_OK || g->removes) return st;
    if (!rq->results || !rq->results[0].data)
        st = cdp__fail(CDP_ERR_STORE, "the store has no answer for %s", g->key);
    else if (rq->results[0].bytes != sizeof cdp__elastic_absent
        || memcmp(rq->results[0].data, cdp__elastic_absent, sizeof cdp__elastic_absent) != 0) {
        g->bytes = rq->results[0].bytes;
        memcpy(&g->data, &rq->results[0].data, sizeof g->data);
        rq->results[0].data = NULL;
    }
    cdp_store_request_free(s, rq);
    return st;
}

CDP__PRIVATE void cdp__elastic_get_free(cdp_store *s, cdp__elastic_get *g, uint32_t count) {
    uint32_t i;
    for (i = 0; i < count; ++i)
        cdp_store_free(s, g[i].data);
}

/* Reads keys that do not depend on each other: all requests are sent before the first answer is
   awaited. After an error nothing is left to free. */
CDP__PRIVATE cdp_status cdp__elastic_get_all(
    cdp_elastic *e, cdp_store *s, cdp__elastic_get *g, uint32_t count) {
    const uint64_t begun = cdp__elastic_now_ns(e);
    uint32_t i, n;
    cdp_status st = CDP_OK, one;
    cdp_error why;
    memset(&why, 0, sizeof why);
    for (n = 0; n < count; ++n) {
        g[n].data = NULL;
        g[n].bytes = 0;
    }
    for (n = 0; st == CDP_OK && n < count; ++n)
        st = cdp__elastic_get_begin(e, s, &g[n]);
    if (st != CDP_OK) {
        why = *cdp_last_error();
        --n; /* it was not begun */
    }
    for (i = 0; i < n; ++i) {
        one = cdp__elastic_get_end(e, s, &g[i], begun);
        if (one == CDP_OK || st != CDP_OK) continue;
        st = one;
        why = *cdp_last_error();
    }
    if (st == CDP_OK) {
        if (!e->handed_in) cdp__elastic_measured(e, cdp__elastic_now_ns(e) - begun);
        return CDP_OK;
    }
    cdp__elastic_get_free(s, g, count);
    for (i = 0; i < count; ++i)
        g[i].data = NULL;
    *cdp__error_slot() = why;
    return st;
}

/* Reads the key; *data NULL: it is absent. */
CDP__PRIVATE cdp_status cdp__elastic_read(
    cdp_elastic *e, cdp_store *s, const char *key, void **data, uint64_t *bytes) {
    cdp__elastic_get g;
    cdp_status st;
    memset(&g, 0, sizeof g);
    cdp__format(g.key, sizeof g.key, "%s", key);
    st = cdp__elastic_get_all(e, s, &g, 1);
    *data = g.data;
    *bytes = g.bytes;
    return st;
}

/* Waits for the key, at most `ms`: CDP_OK, or CDP_PENDING if it is still absent. */
CDP__PRIVATE cdp_status cdp__elastic_await(
    cdp_elastic *e, cdp_store *s, const char *key, uint64_t ms) {
    cdp__store_call c;
    cdp_status st = cdp__store_call_make(&c, CDP_STORE_WAIT, key, NULL, 0);
    if (st == CDP_OK) st = cdp__elastic_store_status(e, cdp__store_begin(s, &c.rq));
    if (st < 0) return st;
    st = cdp__elastic_answer(e, s, &c.rq, cdp__elastic_now_ns(e) + ms * CDP__MS);
    if (st == CDP_PENDING) s->cancel(s->self, &c.rq);
    if (st == CDP_PENDING && c.rq.status == CDP_OK) st = CDP_OK;
    return st;
}

/* The decision that made epoch k (0: any), of what its key holds; d->members is allocated, NULL:
   there is none yet. */
CDP__PRIVATE cdp_status cdp__elastic_decision_of(
    cdp_elastic *e, uint64_t k, void *data, uint64_t bytes, cdp__elastic_decision *d) {
    uint32_t size;
    memset(d, 0, sizeof *d);
    if (!data) return CDP_OK;
    size = cdp__elastic_decision_size((const uint8_t *)data, bytes);
    d->members = (cdp__elastic_member *)cdp__alloc(e->os, (size + 1) * sizeof *d->members);
    if (!d->members) return cdp__fail_nomem("a list of members", size * sizeof *d->members);
    if (cdp__elastic_get_decision((uint8_t *)data, bytes, d) && (!k || d->epoch == k))
        return CDP_OK;
    cdp__free(e->os, d->members);
    d->members = NULL;
    return cdp__fail(CDP_ERR_STORE,
        "the key %s/e/%llu holds no decision of cdp_elastic.h: another program writes to it; "
        "choose another `job`",
        e->job, (unsigned long long)k);
}

/* Reads what has the form of a decision on epoch k from a key; k 0: its number is not compared. */
CDP__PRIVATE cdp_status cdp__elastic_read_form(
    cdp_elastic *e, cdp_store *s, const char *key, uint64_t k, cdp__elastic_decision *d) {
    void *data;
    uint64_t bytes;
    cdp_status st;
    memset(d, 0, sizeof *d);
    st = cdp__elastic_read(e, s, key, &data, &bytes);
    if (st == CDP_OK) st = cdp__elastic_decision_of(e, k, data, bytes, d);
    cdp_store_free(s, data);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_read_decision(
    cdp_elastic *e, cdp_store *s, uint64_t k, cdp__elastic_decision *d) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_key(e, key, "e/%llu", (unsigned long long)k);
    return cdp__elastic_read_form(e, s, key, k, d);
}

/* A list of records that a key holds; `tickets` or `arrivals`. *list is freed with cdp__free(). */
CDP__PRIVATE cdp_status cdp__elastic_records_of(cdp_elastic *e, const char *key, const void *data,
    uint64_t bytes, cdp__elastic_arrival **list, uint32_t *count) {
    const uint64_t n = bytes / CDP__ELASTIC_RECORD_BYTES;
    uint64_t i;
    *count = 0;
    *list = (cdp__elastic_arrival *)cdp__alloc(e->os, (n + 1) * sizeof **list);
    if (!*list) return cdp__fail_nomem("a list of records", bytes);
    for (i = 0; i < n; ++i)
        if (!cdp__elastic_get_record(
                (const uint8_t *)data + i * CDP__ELASTIC_RECORD_BYTES, &(*list)[i])) {
            cdp__free(e->os, *list);
            *list = NULL;
            return cdp__fail(CDP_ERR_STORE,
                "the key %s holds no records of cdp_elastic.h: another program writes to it; "
                "choose another `job`",
                key);
        }
    *count = (uint32_t)n;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__elastic_read_records(
    cdp_elastic *e, cdp_store *s, const char *key, cdp__elastic_arrival **list, uint32_t *count) {
    void *data;
    uint64_t bytes;
    cdp_status st = cdp__elastic_read(e, s, key, &data, &bytes);
    *count = 0;
    *list = NULL;
    if (st == CDP_OK) st = cdp__elastic_records_of(e, key, data, bytes, list, count);
    cdp_store_free(s, data);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_has_ended(
    cdp_elastic *e, cdp_store *s, const uint8_t *id, bool *ended) {
    char key[CDP__ELASTIC_KEY], hex[2 * CDP__ELASTIC_ID_BYTES + 1];
    cdp__elastic_hex(id, hex);
    cdp__elastic_key(e, key, "gone/%s", hex);
    return cdp__elastic_there(e, s, key, ended);
}

/* Of a list of tickets: process number i asks, and has no later one. */
CDP__PRIVATE bool cdp__elastic_untried(
    const cdp__elastic_arrival *list, uint32_t count, uint32_t i) {
    uint32_t k;
    for (k = i + 1; list[i].asks && k < count; ++k)
        if (cdp__elastic_same(list[k].id, list[i].id)) return false;
    return list[i].asks;
}

#define CDP__ELASTIC_TOGETHER 16u /* keys that are read, or deleted, at the same time */

/* Of `count` processes, which are known to be gone; *ended true: that is known already. The strides
   are those of the arrays that contain the ids, and the answers. */
CDP__PRIVATE cdp_status cdp__elastic_have_ended(cdp_elastic *e, cdp_store *s, const uint8_t *id,
    uint64_t id_stride, bool *ended, uint64_t ended_stride, uint32_t count) {
    const uint64_t room = cdp__min(count, CDP__ELASTIC_TOGETHER) * sizeof(cdp__elastic_get);
    cdp__elastic_get *g;
    bool *of[CDP__ELASTIC_TOGETHER];
    uint32_t i = 0, k, n;
    cdp_status st = CDP_OK;
    if (!count) return CDP_OK;
    g = (cdp__elastic_get *)cdp__alloc_zero(e->os, room);
    if (!g) return cdp__fail_nomem("requests to the store", room);
    while (st == CDP_OK && i < count) {
        for (n = 0; i < count && n < CDP__ELASTIC_TOGETHER; ++i) {
            char hex[2 * CDP__ELASTIC_ID_BYTES + 1];
            bool *const at = (bool *)((uint8_t *)ended + i * ended_stride);
            if (*at) continue;
            of[n] = at;
            cdp__elastic_hex(id + i * id_stride, hex);
            cdp__elastic_key(e, g[n++].key, "gone/%s", hex);
        }
        st = cdp__elastic_get_all(e, s, g, n);
        for (k = 0; st == CDP_OK && k < n; ++k)
            *of[k] = g[k].data != NULL;
        cdp__elastic_get_free(s, g, st == CDP_OK ? n : 0);
    }
    cdp__free(e->os, g);
    return st;
}

/* The tickets in what "join/in" holds. Of those before number `from` it is all one whether they
   are gone; of the others that is not known yet. */
CDP__PRIVATE cdp_status cdp__elastic_tickets_in(cdp_elastic *e, uint32_t from, const void *data,
    uint64_t bytes, cdp__elastic_ticket **list, uint32_t *count) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_arrival *records;
    uint32_t i;
    cdp_status st;
    *list = NULL;
    cdp__elastic_key(e, key, "join/in");
    st = cdp__elastic_records_of(e, key, data, bytes, &records, count);
    if (st != CDP_OK) return st;
    *list = (cdp__elastic_ticket *)cdp__alloc_zero(e->os, (*count + 1) * sizeof **list);
    if (!*list) st = cdp__fail_nomem("a list of tickets", *count * sizeof **list);
    for (i = 0; st == CDP_OK && i < *count; ++i) {
        cdp__elastic_ticket *t = &(*list)[i];
        memcpy(t->id, records[i].id, sizeof t->id);
        t->step = records[i].step;
        t->samples = records[i].samples;
        t->round_trip_ms = records[i].round_trip_ms;
        t->asks = records[i].asks || records[i].tried;
        t->untried = cdp__elastic_untried(records, *count, i);
        t->ended = !t->untried && (t->asks || i < from); /* it does not matter of these */
    }
    cdp__free(e->os, records);
    if (st != CDP_OK) *count = 0;
    return st;
}

/* The same, and whether they are gone. */
CDP__PRIVATE cdp_status cdp__elastic_tickets_of(cdp_elastic *e, cdp_store *s, uint32_t from,
    const void *data, uint64_t bytes, cdp__elastic_ticket **list, uint32_t *count) {
    cdp_status st = cdp__elastic_tickets_in(e, from, data, bytes, list, count);
    if (st == CDP_OK)
        st = cdp__elastic_have_ended(
            e, s, (*list)->id, sizeof **list, &(*list)->ended, sizeof **list, *count);
    if (st != CDP_OK) {
        cdp__free(e->os, *list);
        *list = NULL;
        *count = 0;
    }
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_read_tickets(
    cdp_elastic *e, cdp_store *s, uint32_t from, cdp__elastic_ticket **list, uint32_t *count) {
    char key[CDP__ELASTIC_KEY];
    void *data;
    uint64_t bytes;
    cdp_status st;
    *list = NULL;
    *count = 0;
    cdp__elastic_key(e, key, "join/in");
    st = cdp__elastic_read(e, s, key, &data, &bytes);
    if (st == CDP_OK) st = cdp__elastic_tickets_of(e, s, from, data, bytes, list, count);
    cdp_store_free(s, data);
    return st;
}

/* The number of an epoch in a text. */
CDP__PRIVATE uint64_t cdp__elastic_number(const char *p) {
    uint64_t n = 0;
    for (; p && *p >= '0' && *p <= '9' && n < UINT32_MAX; ++p)
        n = n * 10 + (uint64_t)(*p - '0');
    return n;
}

/* The newest epoch that has begun, as its rank 0 said; 0: none has. */
CDP__PRIVATE cdp_status cdp__elastic_hint(cdp_elastic *e, uint64_t *epoch) {
    char key[CDP__ELASTIC_KEY];
    void *text;
    uint64_t bytes;
    cdp_status st;
    cdp__elastic_key(e, key, "e/now");
    st = cdp__elastic_read(e, e->store, key, &text, &bytes);
    *epoch = cdp__elastic_number((const char *)text);
    cdp_store_free(e->store, text);
    return st;
}

/* What an operation of a group returned. Its ranks met through a store of their own, which ends
   with rank 0 of the epoch: as long as the store of the job answers, that is the loss of a rank. */
CDP__PRIVATE cdp_status cdp__elastic_of_group(cdp_elastic *e, cdp_status st) {
    const cdp_error why = *cdp_last_error();
    char key[CDP__ELASTIC_KEY];
    bool there;
    if (st != CDP_ERR_STORE) return st;
    cdp__elastic_key(e, key, "final");
    if (cdp__elastic_there(e, e->store, key, &there) != CDP_OK) return cdp_last_error()->status;
    return cdp__fail(CDP_ERR_PEER_LOST, "rank 0 of the epoch ended: %s", why.text);
}

/* Adds a record to a list. */
CDP__PRIVATE cdp_status cdp__elastic_append(
    cdp_elastic *e, cdp_store *s, const char *key, const cdp__elastic_arrival *a) {
    uint8_t record[CDP__ELASTIC_RECORD_BYTES];
    cdp__elastic_put_record(record, a);
    return cdp__elastic_put(e, s, CDP_STORE_APPEND, key, record, sizeof record);
}

/* Records in the store that the process of this id has ended. */
CDP__PRIVATE cdp_status cdp__elastic_record_end(cdp_elastic *e, cdp_store *s, const char *why) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_key(e, key, "gone/%s", e->id);
    return cdp__elastic_mark(e, s, key, why);
}

/* Ends epoch k on all ranks; the first reason counts. */
CDP__PRIVATE cdp_status cdp__elastic_alarm_at(
    cdp_elastic *e, cdp_store *s, uint64_t k, const char *why) {
    char key[CDP__ELASTIC_KEY], text[160];
    cdp__format(text, sizeof text, "%s", why);
    cdp__elastic_key(e, key, "e/%llu/alarm", (unsigned long long)k);
    return cdp__elastic_mark(e, s, key, text);
}

/* Proposes a decision. *won: the one that counts; its members are allocated (NULL after an
   error). */
CDP__PRIVATE cdp_status cdp__elastic_propose(
    cdp_elastic *e, cdp_store *s, const cdp__elastic_decision *d, cdp__elastic_decision *won) {
    char key[CDP__ELASTIC_KEY];
    const uint64_t bytes = cdp__elastic_decision_bytes(d->size);
    uint8_t *out = (uint8_t *)cdp__alloc(e->os, bytes);
    void *data;
    uint64_t held;
    cdp_status st;
    if (!out) return cdp__fail_nomem("a decision", bytes);
    cdp__elastic_put_decision(out, d);
    cdp__elastic_key(e, key, "e/%llu", (unsigned long long)d->epoch);
    st = cdp__elastic_claim(e, s, key, out, bytes, &data, &held);
    if (st == CDP_OK) st = cdp__elastic_decision_of(e, d->epoch, data, held, won);
    cdp_store_free(s, data);
    cdp__free(e->os, out);
    return st;
}

/* ---- >>elastic/trial: newcomers are tried beside the running epoch --------------------------- */

/* Knows: who asks for it. A newcomer and all members connect as they would for the next epoch, and
   part again. Promises: a member waits for nothing here but short answers of the store, and only
   while newcomers ask; the epoch goes on, whatever becomes of a trial. */

#define CDP__ELASTIC_MOST_JOB 48u /* that cdp_tcp_desc.job takes */

/* The name under which ranks meet, for cdp_tcp_desc.job, which is shorter than a key may be.
   `trial` 0: those of epoch k; else those of that trial beside it. */
CDP__PRIVATE void cdp__elastic_meeting(
    const cdp_elastic *e, char out[CDP__ELASTIC_KEY], uint64_t k, uint64_t trial) {
    char what[64];
    if (trial)
        cdp__format(what, sizeof what, "e/%llu/trial/%llu", (unsigned long long)k,
            (unsigned long long)trial);
    else
        cdp__format(what, sizeof what, "e/%llu/init", (unsigned long long)k);
    cdp__elastic_key(e, out, "%s", what);
    if (strlen(out) <= CDP__ELASTIC_MOST_JOB) return;
    cdp__format(out, CDP__ELASTIC_KEY, "%llx/%s",
        (unsigned long long)cdp__hash(CDP__HASH_START, e->job, strlen(e->job)), what);
}

/* The key that ranks leave behind which met under this name. */
CDP__PRIVATE void cdp__elastic_meeting_key(
    const cdp_elastic *e, char out[CDP__ELASTIC_KEY], uint64_t k, uint64_t trial) {
    cdp__elastic_meeting(e, out, k, trial);
    memcpy(out + strlen(out), "/meet", 6);
}

/* The trial beside epoch k: d->epoch is its number; d->members is allocated, NULL: there is
   none. */
CDP__PRIVATE cdp_status cdp__elastic_read_trial(
    cdp_elastic *e, cdp_store *s, uint64_t k, cdp__elastic_decision *d) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_key(e, key, "e/%llu/trial", (unsigned long long)k);
    return cdp__elastic_read_form(e, s, key, 0, d);
}

/* Announces a trial: d->epoch is its number. */
CDP__PRIVATE cdp_status cdp__elastic_put_trial(
    cdp_elastic *e, uint64_t k, const cdp__elastic_decision *d) {
    char key[CDP__ELASTIC_KEY];
    const uint64_t bytes = cdp__elastic_decision_bytes(d->size);
    uint8_t *out = (uint8_t *)cdp__alloc(e->os, bytes);
    cdp_status st;
    if (!out) return cdp__fail_nomem("a trial", bytes);
    cdp__elastic_put_decision(out, d);
    cdp__elastic_key(e, key, "e/%llu/trial", (unsigned long long)k);
    st = cdp__elastic_put(e, e->store, CDP_STORE_SET, key, out, bytes);
    cdp__free(e->os, out);
    return st;
}

/* Removes the keys of a trial. */
CDP__PRIVATE cdp_status cdp__elastic_tidy_trial(cdp_elastic *e, uint64_t k, uint64_t number) {
    char key[CDP__ELASTIC_KEY];
    cdp_status st;
    cdp__elastic_key(e, key, "e/%llu/trial", (unsigned long long)k);
    st = cdp__elastic_put(e, e->store, CDP_STORE_DELETE, key, NULL, 0);
    cdp__elastic_meeting_key(e, key, k, number);
    return st == CDP_OK ? cdp__elastic_put(e, e->store, CDP_STORE_DELETE, key, NULL, 0) : st;
}

/* Tickets of those that may be taken in: they live, and do not ask to be tried before. */
CDP__PRIVATE uint32_t cdp__elastic_waiting(
    const cdp__elastic_ticket *tickets, uint32_t from, uint32_t count) {
    uint32_t i, n = 0;
    for (i = from; i < count; ++i)
        n += !tickets[i].ended && !tickets[i].asks;
    return n;
}

#ifndef CDP_NO_FRAMES

#define CDP__ELASTIC_TRIAL_US 5000u /* for how long a thread goes on before it checks the alarm */
#define CDP__ELASTIC_TRIAL_BYTES 4096u /* more than a packet holds: some networks drop long ones */
#define CDP__ELASTIC_PROBE_BYTES (16u << 10) /* of the first one; smaller states come at once */
#define CDP__ELASTIC_MOST_PROBE (4u << 20)
#define CDP__ELASTIC_PROBE_MS 250u       /* one that takes so long says how fast a link is */
#define CDP__ELASTIC_PROBE_TRIPS 8u      /* and what these take says nothing about it */
#define CDP__ELASTIC_TRIAL_PAUSE_MS 500u /* between trials; doubles with each that fails */

/* Ranks other than 0 poll for a trial less often in large jobs, for the sake of the store. */
CDP__PRIVATE uint64_t cdp__elastic_look_ms(const cdp_elastic *e) {
    return CDP__ELASTIC_SLICE_MS + (e->place.rank ? e->d.size * 2u : 0u);
}

/* Long enough for members without threads, which go on in their calls only: nobody waits for it but
   other newcomers. */
CDP__PRIVATE uint32_t cdp__elastic_trial_ms(const cdp_elastic *e, const cdp__elastic_decision *d) {
    const uint64_t looks_ms = 2 * (CDP__ELASTIC_SLICE_MS + d->size * 2u) + 4ull * e->desc.settle_ms;
    return cdp__elastic_attempt_ms(d, d->cool, e->store_ms)
        + (uint32_t)cdp__min(looks_ms, e->store_ms);
}

/* How this process connects as `rank` in trial number d->epoch beside epoch k. */
CDP__PRIVATE void cdp__elastic_trial_desc(
    cdp_elastic *e, const cdp__elastic_decision *d, uint64_t k, uint32_t rank, cdp_tcp_desc *t) {
    cdp__elastic_trial *const tr = &e->trial;
    uint32_t r;
    *t = e->tcp;
    cdp__elastic_meeting(e, tr->job, k, d->epoch);
    t->group.rank = rank;
    t->group.world_size = d->size;
    t->group.no_thread = true;
    t->group.logger.level = CDP_LOG_SILENT; /* a trial that fails is no mistake of a member */
    t->store = tr->store ? tr->store : e->store;
    t->job = tr->job;
    t->master_port = 0; /* the group of the epoch may listen there */
    t->init_timeout_ms = cdp__elastic_trial_ms(e, d);
    t->group.timeout_ms = t->init_timeout_ms;
    tr->number = d->epoch;
    tr->trip_ms = cdp__elastic_round_trip_ms(d);
    for (r = tr->newcomers = 0; r < d->size; ++r)
        tr->newcomers += d->members[r].old_rank == CDP__ELASTIC_NEW;
}

/* What belongs to another epoch is forgotten. */
CDP__PRIVATE cdp__elastic_trial *cdp__elastic_trial_of(cdp_elastic *e, uint64_t k) {
    if (e->trial.epoch != k) memset(&e->trial, 0, sizeof e->trial);
    e->trial.epoch = k;
    return &e->trial;
}

/* Somebody asks who did not before, and is tried at once; alone, if an attempt with all failed. */
CDP__PRIVATE void cdp__elastic_trial_soon(cdp__elastic_trial *tr) {
    tr->failures = tr->failures > 0;
    tr->due_ns = 0;
}

CDP__PRIVATE uint32_t cdp__elastic_rank_in(const cdp__elastic_decision *d, const uint8_t *id) {
    uint32_t r;
    for (r = 0; r < d->size && !cdp__elastic_same(d->members[r].id, id); ++r) {
    }
    return r;
}

CDP__PRIVATE bool cdp__elastic_trial_runs(const cdp_elastic *e) {
    return e->trial.starting || e->trial.group;
}

/* Nothing of a trial goes on any more, at once: who stops it may be about to decide on the next
   epoch. Its keys are removed with those of the epoch. */
CDP__PRIVATE void cdp__elastic_trial_stop(cdp_elastic *e) {
    cdp__elastic_trial *const tr = &e->trial;
    const cdp_error why = *cdp_last_error();
    cdp_init_cancel(tr->starting);
    /* a group that is being left ends without a wait */
    if (tr->group && cdp_group_leave(tr->group, 0) == CDP_PENDING) cdp_group_destroy(tr->group);
    cdp__free(e->os, tr->data);
    if (tr->store) cdp_store_destroy(tr->store);
    tr->starting = NULL;
    tr->group = NULL;
    tr->data = NULL;
    tr->store = NULL;
    tr->leaving = false;
    *cdp__error_slot() = why;
}

CDP__PRIVATE bool cdp__elastic_any(const uint8_t *p, uint64_t bytes) {
    uint64_t i;
    for (i = 0; i < bytes && !p[i]; ++i) {
    }
    return i < bytes;
}

/* Newcomers and all ranks exchange so much: `sent` bytes from each rank that is not a newcomer, and
   `back` from newcomers to each rank. */
CDP__PRIVATE cdp_status cdp__elastic_trial_move(cdp_elastic *e, uint64_t sent, uint64_t back) {
    cdp__elastic_trial *const tr = &e->trial;
    const uint32_t size = cdp_size(tr->group), rank = cdp_rank(tr->group);
    const uint32_t first = size - tr->newcomers;
    const uint64_t most = (uint64_t)size * cdp__max(sent, back);
    const uint64_t room = 2ull * size * sizeof(uint64_t) + 2 * most;
    uint64_t *counts;
    cdp_request rq;
    uint32_t r;
    cdp__free(e->os, tr->data);
    tr->data = (uint8_t *)cdp__alloc_zero(e->os, room);
    if (!tr->data) return cdp__fail_nomem("what a trial exchanges", room);
    counts = (uint64_t *)(void *)tr->data;
    for (r = 0; r < size; ++r) {
        if (r == rank || (r < first && rank < first)) continue;
        counts[r] = rank < first ? sent : back;
        counts[size + r] = r < first ? sent : back;
    }
    memset(&rq, 0, sizeof rq);
    rq.kind = CDP_COLL_ALLTOALL;
    rq.dtype = CDP_DTYPE_U8;
    rq.in_counts = counts;
    rq.out_counts = counts + size;
    rq.in = tr->data + 2ull * size * sizeof *counts;
    rq.out = tr->data + 2ull * size * sizeof *counts + most;
    memset(tr->data + 2ull * size * sizeof *counts, e->no_thread, (size_t)most);
    return cdp_start(tr->group, &rq, &tr->work);
}

/* Groups connect two ranks when these have something for each other: here each newcomer exchanges
   something with all ranks. */
CDP__PRIVATE cdp_status cdp__elastic_trial_exchange(cdp_elastic *e) {
    e->trial.part = CDP__ELASTIC_MEETS;
    e->trial.probe = 0;
    e->trial.slow = false;
    return cdp__elastic_trial_move(e, CDP__ELASTIC_TRIAL_BYTES, CDP__ELASTIC_TRIAL_BYTES);
}

/* ---- how fast the state would come

   While a newcomer receives the state, the members wait. If its link is so slow that the state does
   not arrive within the deadline of operations, they would lose whole epochs: so they send it some
   of as many bytes before, twice as much each time, until that took long enough to judge. What
   seems too slow is looked at twice: a machine may be busy for a moment. Where the store is far
   away, a probe takes round trips, and members wait for answers of the store before they send it:
   that time does not count. Members without threads send in their calls alone, which says nothing
   about the link. */

/* Bytes of state that may be on their way to a newcomer at the same time: each must arrive within
   timeout_ms. */
CDP__PRIVATE uint64_t cdp__elastic_in_flight(const cdp_elastic *e) {
    uint64_t bytes = 0;
    uint32_t i;
    for (i = 0; i < e->desc.entry_count; ++i)
        bytes += e->desc.entries[i].count * cdp_dtype_size(e->desc.entries[i].dtype);
    return cdp__min(bytes, 2ull * CDP__ELASTIC_SOURCES * CDP__ELASTIC_PIECE);
}

CDP__PRIVATE cdp_status cdp__elastic_trial_probe(cdp_elastic *e) {
    cdp__elastic_trial *const tr = &e->trial;
    const uint32_t members = cdp_size(tr->group) - tr->newcomers;
    if (!tr->slow) tr->probe = tr->probe ? 2 * tr->probe : CDP__ELASTIC_PROBE_BYTES;
    tr->part = CDP__ELASTIC_PROBES;
    tr->probe_ns = cdp__elastic_now_ns(e);
    return cdp__elastic_trial_move(e, tr->probe / members + 1, 0);
}

/* What a newcomer says of a probe: the least answer of all ranks counts. */
enum {
    CDP__ELASTIC_AGAIN, /* it was too slow */
    CDP__ELASTIC_MORE,
    CDP__ELASTIC_ENOUGH
};

/* A newcomer has got a probe. An error if the state would not arrive in time. */
CDP__PRIVATE cdp_status cdp__elastic_trial_judge(cdp_elastic *e, uint8_t *answer) {
    cdp__elastic_trial *const tr = &e->trial;
    const uint64_t bytes = cdp__elastic_in_flight(e);
    const uint64_t took_us = (cdp__elastic_now_ns(e) - tr->probe_ns) / 1000;
    const uint64_t trips_us = CDP__ELASTIC_PROBE_TRIPS * tr->trip_ms * 1000ull;
    const uint64_t us = took_us > trips_us ? took_us - trips_us : 0;
    const uint64_t ms = us * (bytes / (tr->probe >> 10) + 1) / 1024 / 1000;
    const bool enough = us >= CDP__ELASTIC_PROBE_MS * 1000ull || tr->probe >= bytes
        || tr->probe >= CDP__ELASTIC_MOST_PROBE;
    const bool late = enough && !tr->uneven && ms > e->tcp.group.timeout_ms;
    *answer = enough ? CDP__ELASTIC_ENOUGH : CDP__ELASTIC_MORE;
    if (late) *answer = CDP__ELASTIC_AGAIN;
    if (!late || !tr->slow) return CDP_OK;
    return cdp__fail(CDP_ERR_TIMEOUT,
        "%llu bytes took %llu ms from the ranks to this process; the state would take %llu ms, and "
        "timeout_ms is %u ms",
        (unsigned long long)tr->probe, (unsigned long long)(us / 1000), (unsigned long long)ms,
        e->tcp.group.timeout_ms);
}

/* All ranks learn whether each newcomer knows enough; ranks that are none have no opinion. */
CDP__PRIVATE cdp_status cdp__elastic_trial_ask(cdp_elastic *e) {
    cdp__elastic_trial *const tr = &e->trial;
    const bool newcomer = cdp_rank(tr->group) >= cdp_size(tr->group) - tr->newcomers;
    cdp_status st = CDP_OK;
    tr->answer[0] = CDP__ELASTIC_ENOUGH;
    if (newcomer) st = cdp__elastic_trial_judge(e, &tr->answer[0]);
    if (st != CDP_OK) return st;
    tr->part = CDP__ELASTIC_JUDGES;
    return cdp_allreduce_async(
        tr->group, &tr->answer[0], &tr->answer[1], 1, CDP_DTYPE_U8, CDP_REDUCE_MIN, &tr->work);
}

/* What comes after a part that has succeeded: CDP_PENDING, or CDP_OK if it was the last one. */
CDP__PRIVATE cdp_status cdp__elastic_trial_next(cdp_elastic *e) {
    cdp__elastic_trial *const tr = &e->trial;
    const uint32_t size = cdp_size(tr->group);
    const uint8_t *const got =
        tr->data + 2ull * size * sizeof(uint64_t) + (uint64_t)size * CDP__ELASTIC_TRIAL_BYTES;
    bool more = false;
    cdp_status st;
    if (tr->part == CDP__ELASTIC_PARTS) return CDP_OK;
    if (tr->part == CDP__ELASTIC_MEETS) {
        tr->uneven = cdp__elastic_any(got, (uint64_t)(size - 1) * CDP__ELASTIC_TRIAL_BYTES);
        more =
            cdp__elastic_in_flight(e) > CDP__ELASTIC_PROBE_BYTES && !CDP__ELASTIC_PLANT(NO_PROBE);
    }
    if (tr->part == CDP__ELASTIC_JUDGES) {
        more = tr->answer[1] != CDP__ELASTIC_ENOUGH;
        tr->slow = tr->answer[1] == CDP__ELASTIC_AGAIN;
    }
    if (tr->part == CDP__ELASTIC_PROBES)
        st = cdp__elastic_trial_ask(e);
    else if (more)
        st = cdp__elastic_trial_probe(e);
    else {
        tr->part = CDP__ELASTIC_PARTS;
        st = cdp_barrier_async(tr->group, &tr->work);
    }
    return st == CDP_OK ? CDP_PENDING : st;
}

/* How long a member may take for a client of its own: it reads no alarm meanwhile, and others wait
   for it as long. Connecting takes up to 8 round trips. */
CDP__PRIVATE uint32_t cdp__elastic_clone_ms(const cdp_elastic *e) {
    const uint32_t settle_ms = cdp__elastic_settle_ms(&e->d, e->desc.settle_ms);
    return settle_ms + CDP__ELASTIC_SETTLE_TRIPS * cdp__elastic_round_trip_ms(&e->d);
}

/* This member begins to connect. If it cannot, the trial fails, and nothing else. */
CDP__PRIVATE void cdp__elastic_trial_begin(
    cdp_elastic *e, const cdp__elastic_decision *d, uint64_t k) {
    cdp__elastic_trial *const tr = &e->trial;
    const uint32_t rank = cdp__elastic_rank_in(d, e->place.id);
    cdp_tcp_desc t;
    cdp_status st;
    if (rank == d->size) return;
    st = cdp__store_clone_within(e->store, cdp__elastic_clone_ms(e), &tr->store);
    if (st == CDP_ERR_UNSUPPORTED) st = CDP_OK;
    cdp__elastic_trial_desc(e, d, k, rank, &t);
    if (st == CDP_OK) st = cdp_init_start(&t, &tr->starting);
    if (st != CDP_OK) cdp__elastic_trial_stop(e);
}

/* A member reads which trial there is. */
CDP__PRIVATE cdp_status cdp__elastic_trial_read(cdp_elastic *e, uint64_t k) {
    cdp__elastic_trial *const tr = cdp__elastic_trial_of(e, k);
    cdp__elastic_decision d;
    cdp_status st;
    if (cdp__elastic_trial_runs(e)) return CDP_OK;
    st = cdp__elastic_read_trial(e, e->store, k, &d);
    if (st == CDP_OK && d.members && d.epoch > tr->number) cdp__elastic_trial_begin(e, &d, k);
    cdp__free(e->os, d.members);
    return st;
}

/* The trial has ended on this member. Rank 0 removes its keys. */
CDP__PRIVATE cdp_status cdp__elastic_trial_ended(cdp_elastic *e, bool connected) {
    cdp__elastic_trial *const tr = &e->trial;
    uint64_t pause_ms;
    if (!tr->announced) return CDP_OK;
    tr->announced = false;
    tr->failures = connected ? 0 : tr->failures + 1;
    pause_ms = CDP__ELASTIC_TRIAL_PAUSE_MS << cdp__min(tr->failures, CDP__ELASTIC_COOL);
    tr->due_ns = cdp__elastic_now_ns(e) + pause_ms * CDP__MS;
    return cdp__elastic_tidy_trial(e, tr->epoch, tr->number);
}

/* Rank 0 has `tickets` in v, and begins a trial if somebody asks for one. */
CDP__PRIVATE cdp_status cdp__elastic_trial_call(
    cdp_elastic *e, const cdp__elastic_view *v, uint64_t k, bool *asked) {
    cdp__elastic_trial *const tr = cdp__elastic_trial_of(e, k);
    const uint64_t room = (uint64_t)v->old->size + v->ticket_count + 1;
    cdp__elastic_decision d;
    cdp_status st = CDP_OK;
    d.members = (cdp__elastic_member *)cdp__alloc(e->os, room * sizeof *d.members);
    if (!d.members) return cdp__fail_nomem("a list of members", room * sizeof *d.members);
    *asked = cdp__elastic_draw_trial(v, tr->failures > 0, tr->turn, &d);
    if (!*asked) tr->failures = tr->turn = 0;
    if (*asked && !cdp__elastic_trial_runs(e) && cdp__elastic_now_ns(e) >= tr->due_ns) {
        d.epoch = tr->number + 1;
        d.cool = (uint32_t)cdp__min(tr->failures, CDP__ELASTIC_COOL);
        tr->turn += tr->failures > 0;
        st = cdp__elastic_put_trial(e, k, &d);
        tr->announced = true;
        if (st == CDP_OK) cdp__elastic_trial_begin(e, &d, k);
        if (st == CDP_OK && !cdp__elastic_trial_runs(e)) st = cdp__elastic_trial_ended(e, false);
    }
    cdp__free(e->os, d.members);
    return st;
}

/* One step in the group of a trial: CDP_PENDING, or how the trial ends. */
CDP__PRIVATE cdp_status cdp__elastic_trial_step(cdp_elastic *e, uint32_t budget_us) {
    cdp__elastic_trial *const tr = &e->trial;
    cdp_status st;
    if (tr->starting) {
        st = cdp_init_poll(tr->starting, budget_us, &tr->group);
        if (st == CDP_PENDING) return st;
        tr->starting = NULL;
        if (st == CDP_OK) st = cdp__elastic_trial_exchange(e);
        return st == CDP_OK ? CDP_PENDING : st;
    }
    st = cdp_work_poll(tr->work, budget_us);
    return st == CDP_OK ? cdp__elastic_trial_next(e) : st;
}

/* Goes on with a trial for so long; 0: one step. */
CDP__PRIVATE cdp_status cdp__elastic_trial_poll(cdp_elastic *e, uint32_t budget_us) {
    cdp__elastic_trial *const tr = &e->trial;
    cdp_status st;
    if (!tr->leaving) {
        st = cdp__elastic_trial_step(e, budget_us);
        if (st == CDP_PENDING) return CDP_OK;
        tr->leaving = true;
        if (!tr->group) cdp__elastic_trial_stop(e);
        return cdp__elastic_trial_ended(e, st == CDP_OK);
    }
    if (cdp_group_leave(tr->group, budget_us) == CDP_PENDING) return CDP_OK;
    tr->group = NULL;
    cdp__elastic_trial_stop(e);
    return CDP_OK;
}

/* A newcomer is tried beside epoch k, if a trial lists it. */
CDP__PRIVATE cdp_status cdp__elastic_join_trial(cdp_elastic *e, uint64_t k) {
    cdp__elastic_trial *const tr = cdp__elastic_trial_of(e, k);
    cdp__elastic_decision d;
    cdp_tcp_desc t;
    uint32_t rank;
    cdp_status st;
    st = cdp__elastic_read_trial(e, e->store, k, &d);
    rank = st == CDP_OK ? cdp__elastic_rank_in(&d, e->place.id) : 0;
    if (st == CDP_OK && rank < d.size && d.epoch > tr->number) {
        cdp__elastic_trial_desc(e, &d, k, rank, &t);
        st = cdp_init(&t, &tr->group);
        if (st == CDP_OK) st = cdp__elastic_trial_exchange(e);
        do {
            if (st == CDP_OK || st == CDP_PENDING) st = cdp_work_wait(tr->work);
            if (st == CDP_OK) st = cdp__elastic_trial_next(e);
        } while (st == CDP_PENDING);
        if (st == CDP_OK)
            e->stage = CDP__ELASTIC_TRIED;
        else
            cdp__format(e->untried, sizeof e->untried, "%s", cdp_last_error()->text);
        cdp_group_destroy(tr->group); /* members may not have read all that it has sent */
        tr->group = NULL;
        cdp__elastic_trial_stop(e);
        st = CDP_OK;
    }
    cdp__free(e->os, d.members);
    return st;
}

#endif /* CDP_NO_FRAMES */

/* ---- >>elastic/doubt: whether a member lives that the others wait for ------------------------ */

/* Knows: the questions in the store. After a change all members wait for each other, newcomers wait
   for any member, and a store without last wills does not know of a death. Promises: who waits for
   a member that has ended or stands still learns so settle_ms after the question, and who waits for
   members of which none lives so much later as members look for that question; a member whose
   program is late is not blamed. */

#define CDP__ELASTIC_LARGE 64u

/* For the sake of the store, members of large jobs look less often. */
CDP__PRIVATE uint32_t cdp__elastic_large_ms(const cdp__elastic_decision *d) {
    return d->size > CDP__ELASTIC_LARGE ? d->size * 2u : 0;
}

/* Between two looks for ranks that have ended. After each, every member names all ranks to the
   store again. */
CDP__PRIVATE uint64_t cdp__elastic_wait_ms(const cdp__elastic_decision *d) {
    return CDP__ELASTIC_SLICE_MS + cdp__elastic_large_ms(d)
        + CDP__ELASTIC_DEATH_TRIPS * cdp__elastic_round_trip_ms(d);
}

/* What a process that waits in cdp_elastic_next() knows of a rank that has not called it. */
typedef struct cdp__elastic_doubt {
    uint32_t rank;              /* which one: after its own, the first that is not here */
    uint32_t asks;              /* how often this process has asked */
    uint64_t due_ns;            /* when it may ask */
    char asked[40];             /* the question that stands in the store; "": there is none */
    cdp__elastic_settle settle; /* for how long it has */
} cdp__elastic_doubt;

/* What is read of those that are not here. */
enum {
    CDP__ELASTIC_NEXT_ENDED, /* the next rank has ended */
    CDP__ELASTIC_ASK,        /* the question; see cdp__elastic_doubts() */
    CDP__ELASTIC_HERE,       /* doubt->rank has come */
    CDP__ELASTIC_DOUBTS
};

CDP__PRIVATE uint64_t cdp__elastic_next_ask(uint64_t now) {
    return now + CDP__ELASTIC_ASK_MS * CDP__MS;
}

/* The question that was read: it is repeated until it is removed, but nobody waits for an answer
   longer than settle_ms. */
CDP__PRIVATE cdp_status cdp__elastic_doubt_of(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, cdp__elastic_doubt *q, const cdp__elastic_get g[CDP__ELASTIC_DOUBTS]) {
    const cdp__elastic_get *const ask = &g[CDP__ELASTIC_ASK];
    const uint32_t settle_ms = cdp__elastic_settle_ms(d, e->desc.settle_ms);
    const uint64_t now = cdp__elastic_now_ns(e);
    const bool here = g[CDP__ELASTIC_HERE].data != NULL;
    char text[sizeof q->asked] = "";
    if (ask->data) cdp__text_foreign(text, sizeof text, ask->data, ask->bytes);
    if (q->asked[0] && !text[0]) q->due_ns = cdp__elastic_next_ask(now);
    if (here) {
        q->rank = (q->rank + 1) % d->size;
        q->due_ns = 0;
    }
    if (strcmp(text, q->asked) != 0) {
        memset(&q->settle, 0, sizeof q->settle);
        q->settle.since_ns = q->settle.due_ns = now;
        memcpy(q->asked, text, sizeof text);
    }
    if (text[0] && cdp__elastic_waited_ms(&q->settle, now, settle_ms) >= settle_ms)
        return cdp__fail(CDP_ERR_PEER_LOST,
            "epoch %llu: rank %llu did not call cdp_elastic_next(), and nothing of its process "
            "answered within settle_ms, %u ms: it has ended, or stands still",
            (unsigned long long)d->epoch, (unsigned long long)cdp__elastic_number(text),
            e->desc.settle_ms);
    q->settle.due_ns = now + cdp__elastic_wait_ms(d) * CDP__MS;
    if (text[0] || here || now < q->due_ns || q->rank == rank) return CDP_OK;
    q->due_ns = cdp__elastic_next_ask(now); /* the answer may come before the next look */
    cdp__format(text, sizeof text, "%u, asks %u: %u", q->rank, rank, ++q->asks);
    return cdp__elastic_mark(e, e->store, ask->key, text);
}

/* Checks whether the next rank has ended; and, where the store may not know that, whether a rank
   that is not here lives: it is asked, in a key that its thread removes, or a call of its program.
   One is asked at a time, and all who wait see the question: so one whose asker has died
   is answered, too. */
CDP__PRIVATE cdp_status cdp__elastic_doubts(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t rank, cdp__elastic_doubt *q) {
    const unsigned long long k = (unsigned long long)d->epoch;
    const uint32_t next = (rank + 1) % d->size;
    char hex[2 * CDP__ELASTIC_ID_BYTES + 1];
    cdp__elastic_get g[CDP__ELASTIC_DOUBTS];
    cdp_status st;
    memset(g, 0, sizeof g);
    if (q->rank == rank) q->rank = next;
    cdp__elastic_hex(d->members[next].id, hex);
    cdp__elastic_key(e, g[CDP__ELASTIC_NEXT_ENDED].key, "gone/%s", hex);
    cdp__elastic_key(e, g[CDP__ELASTIC_ASK].key, "e/%llu/ask", k);
    cdp__elastic_key(e, g[CDP__ELASTIC_HERE].key, "e/%llu/here/%u", k, q->rank);
    st = cdp__elastic_get_all(e, e->store, g, CDP__ELASTIC_DOUBTS);
    if (st != CDP_OK) return st;
    if (g[CDP__ELASTIC_NEXT_ENDED].data)
        st = cdp__fail(
            CDP_ERR_PEER_LOST, "epoch %llu: rank %u ended before it was connected", k, next);
    else
        st = cdp__elastic_doubt_of(e, d, rank, q, g);
    cdp__elastic_get_free(e->store, g, CDP__ELASTIC_DOUBTS);
    return st;
}

/* Whether this process looks now for the question of those who wait for its program: see
   cdp__elastic_doubts(). Lock held. */
CDP__PRIVATE bool cdp__elastic_is_awaited(const cdp_elastic *e) {
    const uint64_t since = cdp__max(e->watch.asked_ns, e->epoch_ns);
    return e->place.phase == CDP__ELASTIC_JOINED && e->present_epoch != e->place.epoch
        && cdp__elastic_now_ns(e) - since >= CDP__ELASTIC_SLICE_MS * CDP__MS;
}

/* Removes the question whether this process lives, if it is asked. */
CDP__PRIVATE cdp_status cdp__elastic_answer_doubts(cdp_elastic *e, uint64_t k) {
    char key[CDP__ELASTIC_KEY];
    void *data;
    uint64_t bytes;
    bool mine;
    cdp_status st;
    cdp__elastic_key(e, key, "e/%llu/ask", (unsigned long long)k);
    st = cdp__elastic_read(e, e->watched, key, &data, &bytes);
    mine = data && cdp__elastic_number((const char *)data) == e->place.rank;
    cdp_store_free(e->watched, data);
    if (st == CDP_OK && mine) st = cdp__elastic_put(e, e->watched, CDP_STORE_DELETE, key, NULL, 0);
    e->watch.asked_ns = cdp__elastic_now_ns(e);
    return st;
}

/* ---- newcomers ask whether any member lives

   The question is a key that any of them removes, in each phase. Nobody concludes from silence that
   another history may begin: members that do not reach the store may go on without it. */
#define CDP__ELASTIC_QUESTION_MS 1000u /* how often members look, where the store is near */
#define CDP__ELASTIC_QUESTION_TRIPS 8u
#define CDP__ELASTIC_LIVE_MS 5000u /* newcomers ask again so long after an answer */

/* What a newcomer knows of the members. */
typedef struct cdp__elastic_silence {
    char asked[40];             /* whose question stands in the store; "": there is none */
    uint64_t due_ns;            /* when to ask again */
    cdp__elastic_settle settle; /* for how long nobody has answered */
} cdp__elastic_silence;

CDP__PRIVATE void cdp__elastic_ask_key(const cdp_elastic *e, char out[CDP__ELASTIC_KEY]) {
    cdp__elastic_key(e, out, "ask");
}

/* How often members look: less often than for trials, see cdp__elastic_check_newcomers(). */
CDP__PRIVATE uint32_t cdp__elastic_question_ms(const cdp__elastic_decision *d) {
    return CDP__ELASTIC_QUESTION_MS + cdp__elastic_large_ms(d)
        + CDP__ELASTIC_QUESTION_TRIPS * cdp__elastic_round_trip_ms(d);
}

/* They look twice within it, and may wait before for what they have asked; the answer, and the look
   that finds it, take a round trip each. Without threads members look between operations. */
CDP__PRIVATE uint64_t cdp__elastic_silence_ms(
    const cdp_elastic *e, const cdp__elastic_decision *d) {
    const uint64_t own_ms = cdp__min(e->round_trip_ns / CDP__MS, CDP__ELASTIC_MOST_TRIP_MS);
    const uint32_t settle_ms = cdp__elastic_settle_ms(d, e->desc.settle_ms);
    return settle_ms + 2ull * cdp__elastic_question_ms(d) + CDP__ELASTIC_SETTLE_TRIPS * own_ms
        + (e->no_thread ? e->tcp.group.timeout_ms : 0);
}

/* One look of a newcomer beside epoch d->epoch. `text`: whose question it has read; "": none. An
   error if nobody has answered it for so long. If it was answered between two looks, and another
   newcomer has asked again, it has another id. */
CDP__PRIVATE cdp_status cdp__elastic_silent(
    cdp_elastic *e, const cdp__elastic_decision *d, cdp__elastic_silence *q, const char *text) {
    const uint32_t most_ms = (uint32_t)cdp__min(cdp__elastic_silence_ms(e, d), e->desc.join_ms);
    const uint64_t now = cdp__elastic_now_ns(e);
    char key[CDP__ELASTIC_KEY];
    bool asks;
    if (q->asked[0] && !text[0]) q->due_ns = now + CDP__ELASTIC_LIVE_MS * CDP__MS;
    asks = !text[0] && now >= q->due_ns;
    if (asks || strcmp(text, q->asked) != 0) {
        cdp__format(q->asked, sizeof q->asked, "%s", asks ? e->id : text);
        memset(&q->settle, 0, sizeof q->settle);
        q->settle.since_ns = now;
    } else if (text[0] && cdp__elastic_waited_ms(&q->settle, now, most_ms) >= most_ms) {
        return cdp__fail(CDP_ERR_STATE,
            "cdp_elastic_create: none of the %u ranks of epoch %llu of the job \"%s\" has answered "
            "within %u ms: they have ended, stand still or do not reach the store, and nobody else "
            "has the state of the job. If they have ended (a launcher may have started all of them "
            "again), start from a checkpoint, under another name or with another store",
            d->size, (unsigned long long)d->epoch, e->job, most_ms);
    }
    q->settle.due_ns = now + (CDP__ELASTIC_SLICE_MS + e->round_trip_ns / CDP__MS) * CDP__MS;
    if (!asks) return CDP_OK;
    cdp__elastic_ask_key(e, key);
    return cdp__elastic_mark(e, e->store, key, e->id);
}

/* Whether this member looks now for that question. Lock held. */
CDP__PRIVATE bool cdp__elastic_reads_question(const cdp_elastic *e) {
    const uint64_t since = cdp__max(e->watch.question_ns, e->epoch_ns);
    return cdp__elastic_now_ns(e) - since >= cdp__elastic_question_ms(&e->d) * CDP__MS;
}

/* Removes it, if it is there. */
CDP__PRIVATE cdp_status cdp__elastic_answer_newcomers(cdp_elastic *e) {
    char key[CDP__ELASTIC_KEY];
    bool there;
    cdp_status st;
    cdp__elastic_ask_key(e, key);
    st = cdp__elastic_there(e, e->watched, key, &there);
    if (st == CDP_OK && there) st = cdp__elastic_put(e, e->watched, CDP_STORE_DELETE, key, NULL, 0);
    e->watch.question_ns = cdp__elastic_now_ns(e);
    return st;
}

/* ---- >>elastic/turns: looks for the alarm, arrives and decides ------------------------------- */

/* Knows: the alarm of the epoch. cdp__elastic_tick() is one look; a thread of this header calls it
   again and again, or, with no_thread, the calls of the program do (cdp__elastic_attend()).
   Promises: after an alarm this process arrives at the next look, and the thread looks within
   CDP__ELASTIC_SLICE_MS, also while the program computes; each turn ends with a decision, or
   with e->failure. */

/* True if another rank saw the error first, such as one that has no memory. */
CDP__PRIVATE bool cdp__elastic_reported(const cdp_error *why) {
    return why->origin >= 0 && why->origin != why->rank;
}

/* True for statuses of this thread's last error that end an epoch: the loss of a peer, and every
   error of a peer, which is the end of that peer alone. Other errors are mistakes of the program,
   which would recur on each survivor; so are calls that differ, whoever saw that first. */
CDP__PRIVATE bool cdp__elastic_is_loss(cdp_status st) {
    if (st == CDP_OK) return false;
    return st == CDP_ERR_PEER_LOST || st == CDP_ERR_TIMEOUT || st == CDP_ERR_ABORTED
        || st == CDP_ERR_IO || (st != CDP_ERR_MISMATCH && cdp__elastic_reported(cdp_last_error()));
}

/* Whom this process could not go on with, if it is still in epoch k. `absent`: a rank that did not
   call cdp_elastic_next(). Lock held. */
CDP__PRIVATE void cdp__elastic_blame(
    cdp_elastic *e, uint64_t k, const cdp_error *why, bool absent) {
    const bool blocked = why->status == CDP_ERR_TIMEOUT || why->status == CDP_ERR_PEER_LOST;
    if (e->place.epoch != k || !blocked || why->peer < 0) return;
    if ((uint32_t)why->peer == e->place.rank) return;
    e->place.blamed = (uint32_t)why->peer + 1;
    e->place.absent = absent;
}

/* Ends this process's part in the job with this thread's last error. Lock held. */
CDP__PRIVATE void cdp__elastic_fail(cdp_elastic *e) {
    if (e->failure.status == CDP_OK) e->failure = *cdp_last_error();
    e->place.live = false;
    if (e->place.phase != CDP__ELASTIC_OUT) e->place.phase = CDP__ELASTIC_OUT;
    if (e->group) cdp__elastic_break(e->group, e->failure.text);
    *cdp__error_slot() = e->failure;
    cdp__elastic_signal(e);
}

/* Sets the error of a process that the others have left out of the next epoch. */
CDP__PRIVATE void cdp__elastic_left_out(cdp_elastic *e, const cdp__elastic_decision *d) {
    const uint64_t away_ms = e->away_ns / CDP__MS;
    const char *const back = "create another cdp_elastic to come back as a newcomer";
    if (d->evicted && away_ms <= e->desc.settle_ms)
        (void)cdp__fail(CDP_ERR_STATE,
            "left out of epoch %llu (%s): in %u epochs in which nothing was committed the others "
            "could not go on with this process: it called nothing for timeout_ms, %u ms, or a "
            "connection to one of them carries nothing; %s",
            (unsigned long long)d->epoch, d->cause, e->d.members[e->place.rank].strikes + 1u,
            e->tcp.group.timeout_ms, back);
    else if (away_ms > e->desc.settle_ms)
        (void)cdp__fail(CDP_ERR_STATE,
            "left out of epoch %llu (%s): this process called nothing of cdp_elastic.h for %llu "
            "ms, and settle_ms is %u; without threads make it longer than the longest time "
            "between two calls, or call cdp_elastic_poll() in between; %s",
            (unsigned long long)d->epoch, d->cause, (unsigned long long)away_ms, e->desc.settle_ms,
            back);
    else
        (void)cdp__fail(CDP_ERR_STATE,
            "left out of epoch %llu (%s): this process did not arrive within settle_ms, %u ms, or "
            "its connection to the store ended; %s",
            (unsigned long long)d->epoch, d->cause, e->desc.settle_ms, back);
}

/* A decision becomes the one of this process. Takes d->members. Lock held. */
CDP__PRIVATE void cdp__elastic_adopt(cdp_elastic *e, cdp__elastic_decision *d) {
    const uint64_t now = cdp__elastic_now_ns(e);
    if (!cdp__elastic_learn(&e->place, d)) {
        cdp__elastic_left_out(e, d);
        e->left = true;
        cdp__elastic_fail(e);
        cdp__free(e->os, d->members);
        return;
    }
    cdp__elastic_past *p = &e->past[e->pasts++ % CDP__ELASTIC_PASTS];
    memset(p, 0, sizeof *p);
    p->epoch = d->epoch;
    p->step = d->step;
    p->size = d->size;
    p->rank = e->place.rank;
    p->lost = d->lost;
    p->joined = d->joined;
    p->turn_ns = e->d.epoch ? now - e->epoch_ns : 0;
    memcpy(p->cause, d->cause, sizeof p->cause);
    cdp__free(e->os, e->d.members);
    e->d = *d;
    e->epoch_ns = now;
    e->away_ns = 0;
    e->few = false;
    cdp__elastic_signal(e);
}

/* Epoch k ends here: nothing is committed in it from now on. */
CDP__PRIVATE cdp_status cdp__elastic_arrive_at(cdp_elastic *e, uint64_t k) {
    char key[CDP__ELASTIC_KEY], why[160];
    cdp__elastic_arrival a;
    void *data;
    uint64_t bytes;
    bool arrived;
    cdp_status st;
    cdp__elastic_key(e, key, "e/%llu/alarm", (unsigned long long)k);
    st = cdp__elastic_read(e, e->watched, key, &data, &bytes);
    if (st != CDP_OK) return st;
    cdp__format(why, sizeof why, "its alarm was removed");
    if (data) cdp__text_foreign(why, sizeof why, data, bytes);
    cdp_store_free(e->watched, data);
    cdp__elastic_lock(e);
    arrived = e->place.epoch == k && cdp__elastic_arrive(&e->place, &a);
    if (arrived) {
        e->epoch_ns = cdp__elastic_now_ns(e);
        if (e->group) cdp__elastic_break(e->group, why);
        cdp__elastic_signal(e);
    }
    cdp__elastic_unlock(e);
    if (!arrived) return CDP_OK;
    cdp__elastic_key(e, key, "e/%llu/in", (unsigned long long)k);
    return cdp__elastic_append(e, e->watched, key, &a);
}

/* Makes a decision of these arrivals and of the tickets, and proposes it. `why`: what ended the
   epoch, NULL: nothing did. *won: the decision that counts, if the verdict is DECIDED; its members
   are allocated. */
CDP__PRIVATE cdp_status cdp__elastic_try(cdp_elastic *e, cdp_store *s, const cdp__elastic_view *v,
    const cdp__elastic_get *why, cdp__elastic_verdict *verdict, cdp__elastic_decision *won) {
    const uint64_t room = (uint64_t)v->old->size + v->ticket_count + 1;
    cdp__elastic_decision d;
    cdp_status st = CDP_OK;
    memset(won, 0, sizeof *won);
    d.members = (cdp__elastic_member *)cdp__alloc(e->os, room * sizeof *d.members);
    if (!d.members) return cdp__fail_nomem("a list of members", room * sizeof *d.members);
    *verdict = cdp__elastic_decide(v, &d);
    if (*verdict == CDP__ELASTIC_DECIDED) {
        cdp__format(d.cause, sizeof d.cause, "the job begins");
        if (why && why->data) cdp__text_foreign(d.cause, sizeof d.cause, why->data, why->bytes);
        st = cdp__elastic_propose(e, s, &d, won);
    }
    cdp__free(e->os, d.members);
    return st;
}

/* The same for a turn: reads the tickets and the alarm first. */
CDP__PRIVATE cdp_status cdp__elastic_try_turn(cdp_elastic *e, cdp_store *s,
    const cdp__elastic_decision *old, const cdp__elastic_arrival *arrivals, uint32_t count,
    cdp__elastic_verdict *verdict, cdp__elastic_decision *won) {
    cdp__elastic_get g[2];
    cdp__elastic_ticket *tickets = NULL;
    cdp__elastic_view v;
    cdp_status st;
    memset(won, 0, sizeof *won);
    memset(g, 0, sizeof g);
    memset(&v, 0, sizeof v);
    v.old = old;
    v.arrivals = arrivals;
    v.arrival_count = count;
    v.min_ranks = e->desc.min_ranks;
    v.max_ranks = e->desc.max_ranks;
    cdp__elastic_key(e, g[0].key, "join/in");
    cdp__elastic_key(e, g[1].key, "e/%llu/alarm", (unsigned long long)old->epoch);
    st = cdp__elastic_get_all(e, s, g, 2);
    if (st != CDP_OK) return st;
    st = cdp__elastic_tickets_of(
        e, s, old->tickets, g[0].data, g[0].bytes, &tickets, &v.ticket_count);
    v.tickets = tickets;
    if (st == CDP_OK) st = cdp__elastic_try(e, s, &v, &g[1], verdict, won);
    cdp__elastic_get_free(s, g, 2);
    cdp__free(e->os, tickets);
    return st;
}

/* Finds out which members are gone, and removes their arrivals, because they could send no state. A
   process that does not lead asks only for the leader, and for all members if the leader is
   gone. */
CDP__PRIVATE cdp_status cdp__elastic_find_dead(
    cdp_elastic *e, cdp__elastic_turn *t, bool *dead, cdp__elastic_arrival *arrivals) {
    const uint32_t leader = cdp__elastic_leader(t);
    uint32_t r, i;
    cdp_status st = CDP_OK;
    if (leader != t->rank) {
        st = cdp__elastic_has_ended(e, e->watched, t->d->members[leader].id, &dead[leader]);
        if (st != CDP_OK || !dead[leader]) return st;
    }
    dead[t->rank] = true; /* that is not to be asked */
    if (t->d->size)
        st = cdp__elastic_have_ended(e, e->watched, t->d->members[0].id, sizeof *t->d->members,
            dead, sizeof *dead, t->d->size);
    dead[t->rank] = false;
    for (i = 0; i < t->count;) {
        r = arrivals[i].rank;
        if (r < t->d->size && dead[r])
            arrivals[i] = arrivals[--t->count];
        else
            ++i;
    }
    return st;
}

/* Why a turn that cannot be decided ends: CDP_OK if it goes on. */
CDP__PRIVATE cdp_status cdp__elastic_hopeless(
    cdp_elastic *e, const cdp__elastic_turn *t, uint64_t turn_ms, cdp__elastic_verdict verdict) {
    uint32_t r, there = 0; /* a member may have two arrival records */
    if (verdict == CDP__ELASTIC_NO_STATE && cdp__elastic_complete(t))
        return cdp__fail(CDP_ERR_STATE,
            "no member of epoch %llu that is left has state: start again from a checkpoint",
            (unsigned long long)t->d->epoch);
    if (verdict == CDP__ELASTIC_DECIDED || turn_ms < e->desc.join_ms) return CDP_OK;
    for (r = 0; r < t->d->size; ++r)
        there += cdp__elastic_arrival_of(t->d, r, t->arrivals, t->count) != NULL;
    if (verdict == CDP__ELASTIC_NO_STATE)
        return cdp__fail(CDP_ERR_TIMEOUT,
            "epoch %llu ended and %u of its %u ranks arrived, none of them with state: of those "
            "that have it, nobody came or was known to be dead within join_ms, %u ms",
            (unsigned long long)t->d->epoch, there, t->d->size, e->desc.join_ms);
    return cdp__fail(CDP_ERR_TIMEOUT,
        "epoch %llu ended and %u of its %u ranks arrived, but min_ranks is %u: nobody came within "
        "join_ms, %u ms",
        (unsigned long long)t->d->epoch, there, t->d->size, e->desc.min_ranks, e->desc.join_ms);
}

/* One poll of a turn, of which `in` holds the arrivals: proposes if it is time. *wait_ms: when to
   poll again. *won: the decision, if there is one now; its members are allocated. */
CDP__PRIVATE cdp_status cdp__elastic_look(cdp_elastic *e, const cdp__elastic_get *in,
    cdp__elastic_settle *settle, uint64_t *wait_ms, cdp__elastic_decision *won) {
    const uint64_t now = cdp__elastic_now_ns(e);
    cdp__elastic_verdict verdict = CDP__ELASTIC_DECIDED;
    cdp__elastic_arrival *arrivals;
    cdp__elastic_turn t;
    bool *dead = (bool *)cdp__alloc_zero(e->os, e->d.size * sizeof *dead);
    cdp_status st;
    if (!dead) return cdp__fail_nomem("a list of members", e->d.size);
    memset(&t, 0, sizeof t);
    t.d = &e->d; /* whoever looks alone changes it */
    t.dead = dead;
    t.rank = e->place.rank;
    t.settle_ms = cdp__elastic_settle_ms(t.d, e->desc.settle_ms);
    t.since_ms = cdp__elastic_waited_ms(settle, now, t.settle_ms);
    st = cdp__elastic_records_of(e, in->key, in->data, in->bytes, &arrivals, &t.count);
    t.arrivals = arrivals;
    if (st == CDP_OK) st = cdp__elastic_find_dead(e, &t, dead, arrivals);
    if (st == CDP_OK && cdp__elastic_proposes(&t, wait_ms)) {
        *wait_ms = CDP__ELASTIC_AGAIN_MS;
        st = cdp__elastic_try_turn(e, e->watched, t.d, arrivals, t.count, &verdict, won);
    }
    if (st == CDP_OK && verdict == CDP__ELASTIC_FEW) {
        cdp__elastic_lock(e);
        e->few = true;
        cdp__elastic_signal(e);
        cdp__elastic_unlock(e);
    }
    if (st == CDP_OK) st = cdp__elastic_hopeless(e, &t, (now - e->epoch_ns) / CDP__MS, verdict);
    *wait_ms = cdp__min(*wait_ms, CDP__ELASTIC_SLICE_MS);
    settle->due_ns = now + *wait_ms * CDP__MS;
    cdp__free(e->os, arrivals);
    cdp__free(e->os, dead);
    return st;
}

/* Begins to wait for a key of epoch k; the request stays open from one poll to the next. */
CDP__PRIVATE cdp_status cdp__elastic_open(cdp_elastic *e, cdp__elastic_asks asks, uint64_t k) {
    cdp__elastic_watch *w = &e->watch;
    const unsigned long long epoch = (unsigned long long)k;
    cdp_status st;
    if (asks == CDP__ELASTIC_ASKS_ALARM)
        cdp__elastic_key(e, w->key, "e/%llu/alarm", epoch);
    else
        cdp__elastic_key(e, w->key, "e/%llu", epoch + 1);
    st = cdp__store_call_make(&w->call, CDP_STORE_WAIT, w->key, NULL, 0);
    if (st == CDP_OK) st = cdp__elastic_store_status(e, cdp__store_begin(e->watched, &w->call.rq));
    if (st < 0) return st;
    w->asks = (uint8_t)asks;
    w->epoch = k;
    return CDP_OK;
}

/* Nothing is asked any more. */
CDP__PRIVATE void cdp__elastic_close(cdp_elastic *e) {
    cdp_store_request *rq = &e->watch.call.rq;
    if (e->watch.asks != CDP__ELASTIC_ASKS_NOTHING && rq->status == CDP_PENDING)
        e->watched->cancel(e->watched->self, rq);
    e->watch.asks = CDP__ELASTIC_ASKS_NOTHING;
}

/* No list of tickets is read any more, nor is a trial looked for. */
CDP__PRIVATE void cdp__elastic_close_tickets(cdp_elastic *e) {
    cdp_store_request *rq = &e->watch.tickets.rq;
    if (!e->watch.reads) return;
    e->watch.reads = false;
    if (rq->status == CDP_PENDING) e->store->cancel(e->store->self, rq);
    if (rq->status == CDP_OK) cdp_store_request_free(e->store, rq);
}

CDP__PRIVATE void cdp__elastic_close_all(cdp_elastic *e) {
    cdp__elastic_close(e);
    cdp__elastic_close_tickets(e);
}

/* One poll of a turn, between the arrival in epoch k and the next decision. Waits for that decision
   until `until_ns`, but not longer than until the next poll is due. */
CDP__PRIVATE cdp_status cdp__elastic_look_for_decision(
    cdp_elastic *e, uint64_t k, uint64_t until_ns) {
    cdp__elastic_watch *w = &e->watch;
    cdp__elastic_get g[2];
    cdp__elastic_decision d;
    uint64_t wait_ms = 0;
    bool here;
    cdp_status st;
    memset(g, 0, sizeof g);
    if (w->turn != k) {
        w->turn = k;
        w->settle.since_ns = w->settle.due_ns = e->epoch_ns;
        w->settle.pauses = 0;
    }
    if (w->asks == CDP__ELASTIC_ASKS_DECISION) {
        st = cdp__elastic_answer(e, e->watched, &w->call.rq, cdp__min(until_ns, w->due_ns));
        if (st == CDP_PENDING && cdp__elastic_now_ns(e) < w->due_ns) return CDP_OK;
        cdp__elastic_close(e);
        if (st < 0) return st;
    }
    cdp__elastic_key(e, g[0].key, "e/%llu", (unsigned long long)(k + 1));
    cdp__elastic_key(e, g[1].key, "e/%llu/in", (unsigned long long)k);
    st = cdp__elastic_get_all(e, e->watched, g, 2);
    if (st != CDP_OK) return st;
    st = cdp__elastic_decision_of(e, k + 1, g[0].data, g[0].bytes, &d);
    if (st == CDP_OK && !d.members) {
        st = cdp__elastic_look(e, &g[1], &w->settle, &wait_ms, &d);
        w->due_ns = cdp__elastic_now_ns(e) + wait_ms * CDP__MS;
    }
    cdp__elastic_get_free(e->watched, g, 2);
    if (st == CDP_OK && !d.members && wait_ms)
        st = cdp__elastic_open(e, CDP__ELASTIC_ASKS_DECISION, k);
    if (st != CDP_OK || !d.members) {
        cdp__free(e->os, d.members);
        return st;
    }
    cdp__elastic_lock(e);
    here = e->place.phase == CDP__ELASTIC_ARRIVED; /* no: it has left meanwhile */
    if (here) cdp__elastic_adopt(e, &d);
    cdp__elastic_unlock(e);
    if (!here) cdp__free(e->os, d.members);
    return CDP_OK;
}

/* So many newcomers may be taken in: *found if they end the epoch. */
CDP__PRIVATE cdp_status cdp__elastic_let_in(cdp_elastic *e, uint32_t waiting, bool *found) {
    char why[80];
    if (!waiting) return CDP_OK;
    *found = true;
    cdp__format(why, sizeof why, "%u newcomer%s", waiting, waiting == 1 ? " waits" : "s wait");
    return cdp__elastic_alarm_at(e, e->watched, e->d.epoch, why);
}

/* Newcomers end the epoch: *found. */
CDP__PRIVATE cdp_status cdp__elastic_look_for_newcomers(cdp_elastic *e, bool *found) {
    cdp__elastic_ticket *tickets;
    uint32_t count, waiting;
    cdp_status st;
    *found = false;
    st = cdp__elastic_read_tickets(e, e->watched, e->d.tickets, &tickets, &count);
    if (st != CDP_OK) return st;
    waiting = cdp__elastic_waiting(tickets, e->d.tickets, count);
    cdp__free(e->os, tickets);
    return cdp__elastic_let_in(e, waiting, found);
}

/* Newcomers may end the epoch now. Lock held. */
CDP__PRIVATE bool cdp__elastic_grows(const cdp_elastic *e) {
    return !e->place.ending && e->place.size < e->desc.max_ranks
        && cdp__elastic_now_ns(e) - e->epoch_ns
        >= ((uint64_t)e->desc.grow_ms << e->d.cool) * CDP__MS;
}

/* Newcomers that were tried end the epoch, at the earliest grow_ms after it began, if there is
   room: *found. Others are tried. Rank 0 does this. */
CDP__PRIVATE cdp_status cdp__elastic_receive_newcomers(cdp_elastic *e, uint64_t k, bool *found) {
#ifdef CDP_NO_FRAMES
    (void)k;
    return cdp__elastic_look_for_newcomers(e, found);
#else
    cdp__elastic_trial *const tr = cdp__elastic_trial_of(e, k);
    cdp__elastic_ticket *tickets;
    cdp__elastic_view v;
    uint32_t waiting;
    bool grows;
    cdp_status st;
    memset(&v, 0, sizeof v);
    st = cdp__elastic_read_tickets(e, e->watched, e->d.tickets, &tickets, &v.ticket_count);
    if (st != CDP_OK) return st;
    v.old = &e->d;
    v.tickets = tickets;
    if (tr->ticket_count != v.ticket_count) cdp__elastic_trial_soon(tr);
    tr->ticket_count = v.ticket_count;
    waiting = cdp__elastic_waiting(tickets, e->d.tickets, v.ticket_count);
    cdp__elastic_lock(e);
    grows = cdp__elastic_grows(e);
    cdp__elastic_unlock(e);
    if (grows) st = cdp__elastic_let_in(e, waiting, found);
    if (st == CDP_OK && !*found) st = cdp__elastic_trial_call(e, &v, k, &tr->asked);
    tr->asked = tr->asked || waiting;
    cdp__free(e->os, tickets);
    return st;
#endif
}

/* What this process has to do while it waits for an alarm. */
typedef enum cdp__elastic_duty {
    CDP__ELASTIC_NOTHING,
    CDP__ELASTIC_ALARM,    /* the group failed: this thread's last error says why */
    CDP__ELASTIC_ANSWER,   /* others wait for its program, and may ask whether it lives */
    CDP__ELASTIC_NEWCOMERS /* it polls for newcomers: rank 0 for tickets, others for a trial */
} cdp__elastic_duty;

/* The answer to what cdp__elastic_check_newcomers() asked: whether there may be something to do. */
CDP__PRIVATE bool cdp__elastic_found_some(const cdp_elastic *e, const cdp_store_request *rq) {
    const cdp__elastic_trial *const tr = &e->trial;
    uint64_t count;
    if (rq->op == CDP_STORE_CHECK) return rq->number == 1;
    count = rq->results ? rq->results[0].bytes / CDP__ELASTIC_RECORD_BYTES : 0;
    /* the decision counts tickets of processes that only ask, and may not have been tried yet */
    if (tr->epoch != e->d.epoch) return count > 0;
    return tr->asked || (count > e->d.tickets && count != tr->ticket_count);
}

/* Sets *may if there may be new tickets, or a trial. With a thread rank 0 reads them in
   cdp__elastic_receive_newcomers(). Otherwise the request is spread over several polls, so that no
   call of the program is delayed, and goes over `store`, while `watched` waits for the alarm. */
CDP__PRIVATE cdp_status cdp__elastic_check_newcomers(cdp_elastic *e, uint64_t k, bool *may) {
    cdp__elastic_watch *w = &e->watch;
    cdp_store_request *rq = &w->tickets.rq;
    const bool leads = e->place.rank == 0;
    cdp_status st = CDP_OK;
    *may = leads && !e->no_thread;
    if (*may) cdp__elastic_close_tickets(e); /* of an epoch in which another rank led */
    if (!w->reads) w->tickets_ns = cdp__elastic_now_ns(e);
    if (*may) return CDP_OK;
    if (!w->reads) {
        w->reads_question = e->no_thread && cdp__elastic_reads_question(e);
        if (w->reads_question)
            cdp__elastic_ask_key(e, w->tickets_key);
        else if (leads)
            cdp__elastic_key(e, w->tickets_key, "join/in");
        else
            cdp__elastic_key(e, w->tickets_key, "e/%llu/trial", (unsigned long long)k);
        st = cdp__store_call_make(&w->tickets,
            leads && !w->reads_question ? CDP_STORE_GET : CDP_STORE_CHECK, w->tickets_key, NULL, 0);
        if (st == CDP_OK) st = cdp__elastic_store_status(e, cdp__store_begin(e->store, rq));
        if (st < 0) return st;
        w->reads = true;
    }
    st = cdp__elastic_answer(e, e->store, rq, 0);
    if (st == CDP_PENDING
        && cdp__elastic_now_ns(e) - w->tickets_ns
            < cdp__max(e->store_ms, e->desc.join_ms) * CDP__MS)
        return CDP_OK;
    w->reads = false;
    st = cdp__elastic_store_status(e, cdp__store_end(e->store, rq, st, e->desc.join_ms));
    if (st != CDP_OK) return st;
    if (w->reads_question) {
        w->question_ns = cdp__elastic_now_ns(e);
        if (rq->number != 1) return CDP_OK;
        cdp__elastic_close(e);
        return cdp__elastic_answer_newcomers(e);
    }
    *may = cdp__elastic_found_some(e, rq);
    cdp_store_request_free(e->store, rq);
    return CDP_OK;
}

/* Whether this process polls for newcomers now. Lock held. */
CDP__PRIVATE bool cdp__elastic_looks(const cdp_elastic *e) {
    const uint64_t now = cdp__elastic_now_ns(e);
#ifdef CDP_NO_FRAMES
    if (e->place.rank || !cdp__elastic_grows(e)) return false;
    return e->watch.reads || now - e->watch.tickets_ns >= CDP__ELASTIC_SLICE_MS * CDP__MS;
#else
    if (e->place.ending) return false;
    return e->watch.reads || now - e->watch.tickets_ns >= cdp__elastic_look_ms(e) * CDP__MS;
#endif
}

CDP__PRIVATE cdp__elastic_duty cdp__elastic_duty_of(cdp_elastic *e, uint64_t k) {
    cdp__elastic_duty duty = CDP__ELASTIC_NOTHING;
    cdp__elastic_lock(e);
    const bool here = !e->stop && !e->ended && e->failure.status == CDP_OK && e->place.epoch == k;
    if (here && cdp__elastic_is_awaited(e))
        duty = CDP__ELASTIC_ANSWER;
    else if (!here || e->place.phase != CDP__ELASTIC_RUNNING)
        duty = CDP__ELASTIC_NOTHING; /* `group` may be that of the epoch before */
    else if (cdp__elastic_is_loss(cdp_group_status(e->group)))
        duty = CDP__ELASTIC_ALARM;
    else if (cdp__elastic_looks(e))
        duty = CDP__ELASTIC_NEWCOMERS;
    cdp__elastic_unlock(e);
    return duty;
}

/* There is no alarm yet: if the group has failed or ranks want to join, this process raises it and
   arrives. */
CDP__PRIVATE cdp_status cdp__elastic_do_duty(cdp_elastic *e, uint64_t k) {
    const cdp__elastic_duty duty = cdp__elastic_duty_of(e, k);
    const cdp_error why = *cdp_last_error();
    bool alarm = duty == CDP__ELASTIC_ALARM, may = false;
    cdp_status st = CDP_OK;
    if (duty == CDP__ELASTIC_ANSWER) {
        cdp__elastic_close(e);
        return cdp__elastic_answer_doubts(e, k);
    }
    if (duty == CDP__ELASTIC_NEWCOMERS) st = cdp__elastic_check_newcomers(e, k, &may);
    if (st != CDP_OK || !(alarm || may)) return st;
#ifndef CDP_NO_FRAMES
    if (!alarm && e->place.rank) return cdp__elastic_trial_read(e, k);
#endif
    cdp__elastic_close(e);
    if (alarm) {
        cdp__elastic_lock(e);
        cdp__elastic_blame(e, k, &why, false);
        cdp__elastic_unlock(e);
        st = cdp__elastic_alarm_at(e, e->watched, k, why.text);
    }
    if (!alarm) st = cdp__elastic_receive_newcomers(e, k, &alarm);
    return st == CDP_OK && alarm ? cdp__elastic_arrive_at(e, k) : st;
}

/* One poll of an epoch that goes on: waits for its alarm until `until_ns`, and then arrives. The
   request to the store stays open between polls, so that calls of a program without a thread are
   not delayed. It uses `watched`: `store` may be busy for as long as the program's thread
   connects. */
CDP__PRIVATE cdp_status cdp__elastic_look_for_alarm(cdp_elastic *e, uint64_t k, uint64_t until_ns) {
    cdp__elastic_watch *w = &e->watch;
    cdp_status st = CDP_OK;
    if (w->asks == CDP__ELASTIC_ASKS_NOTHING) st = cdp__elastic_open(e, CDP__ELASTIC_ASKS_ALARM, k);
#ifndef CDP_NO_FRAMES
    if (st == CDP_OK && cdp__elastic_trial_runs(e)) {
        st = cdp__elastic_trial_poll(e, e->no_thread ? 0 : CDP__ELASTIC_TRIAL_US);
        until_ns = 0;
    }
#endif
    if (st == CDP_OK) st = cdp__elastic_answer(e, e->watched, &w->call.rq, until_ns);
    if (st == CDP_PENDING) return cdp__elastic_do_duty(e, k);
    cdp__elastic_close(e);
    return st == CDP_OK ? cdp__elastic_arrive_at(e, k) : st;
}

/* It is in no epoch that could end. Lock held. */
CDP__PRIVATE bool cdp__elastic_idle(const cdp_elastic *e) {
    return e->place.phase == CDP__ELASTIC_OUT || e->failure.status != CDP_OK || e->ended
        || !e->place.epoch;
}

/* One poll of the store; waits until until_ns at most for the alarm or the decision. */
CDP__PRIVATE cdp_status cdp__elastic_tick(cdp_elastic *e, uint64_t until_ns) {
    const cdp__elastic_watch *w = &e->watch;
    bool arrived, idle, asked;
    uint64_t k;
    cdp_status st = CDP_OK;
    cdp__elastic_lock(e);
    k = e->place.epoch;
    arrived = e->place.phase == CDP__ELASTIC_ARRIVED;
    idle = cdp__elastic_idle(e);
    /* in its steps, a program without threads does not wait: see cdp__elastic_check_newcomers() */
    asked = !idle && (!e->no_thread || e->place.phase != CDP__ELASTIC_RUNNING || e->place.ending)
        && cdp__elastic_reads_question(e);
    cdp__elastic_unlock(e);
    if (asked || idle || w->epoch != k || (w->asks == CDP__ELASTIC_ASKS_DECISION) != arrived)
        cdp__elastic_close(e);
#ifndef CDP_NO_FRAMES
    if (idle || arrived || e->trial.epoch != k) cdp__elastic_trial_stop(e);
#endif
    if (asked) st = cdp__elastic_answer_newcomers(e);
    if (idle || st != CDP_OK) return st;
    return arrived ? cdp__elastic_look_for_decision(e, k, until_ns)
                   : cdp__elastic_look_for_alarm(e, k, until_ns);
}

/* ---- >>elastic/attend: who polls for alarms and decisions, and when -------------------------- */

/* Knows: the thread of this header and, with no_thread, the calls of the program. Promises: the
   thread polls within CDP__ELASTIC_SLICE_MS; without it each call does, but not more than once
   in CDP__ELASTIC_REST_NS. */

/* The thread of this header. */
CDP__PRIVATE void cdp__elastic_main(void *arg) {
    cdp_elastic *e = (cdp_elastic *)arg;
    cdp__elastic_lock(e);
    while (!e->stop) {
        cdp_status st;
        if (cdp__elastic_idle(e)) {
            e->os->threads.cond_wait(e->os->user, e->cond, e->mutex, CDP__NEVER);
            continue;
        }
        cdp__elastic_unlock(e);
        st = cdp__elastic_tick(e, cdp__elastic_now_ns(e) + CDP__ELASTIC_SLICE_MS * CDP__MS);
        cdp__elastic_lock(e);
        if (st < 0) cdp__elastic_fail(e);
    }
    cdp__elastic_unlock(e);
}

/* One poll without a thread; the program made no call for away_ns before it. A turn leaves out
   processes that do not arrive within settle_ms, so the longest such time is kept until settle_ms
   later, for the error that explains this. */
CDP__PRIVATE void cdp__elastic_visit(cdp_elastic *e, uint64_t until_ns, uint64_t away_ns) {
    const bool arrived = e->place.phase == CDP__ELASTIC_ARRIVED;
    const uint64_t now = cdp__elastic_now_ns(e);
    if (!arrived && (away_ns >= e->away_ns || now - e->back_ns >= e->desc.settle_ms * CDP__MS)) {
        e->away_ns = away_ns;
        e->back_ns = now;
    }
#ifndef CDP_NO_FRAMES
    if (e->closing && cdp_group_leave(e->closing, 0) == CDP_OK) e->closing = NULL;
#endif
    /* the others, inside its operations, learn from the group that it was aborted */
    if (arrived && e->group) (void)cdp_poll(e->group, 0);
    if (cdp__elastic_tick(e, until_ns) < 0) cdp__elastic_fail(e);
    e->looked_ns = cdp__elastic_now_ns(e);
}

/* Without a thread, calls of the program poll, at most one in CDP__ELASTIC_REST_NS. So an alarm is
   seen that much later at most, and in steps of microseconds most calls only read the clock.
   `until_ns`: how long to wait; 0: not at all. */
CDP__PRIVATE void cdp__elastic_attend(cdp_elastic *e, uint64_t until_ns) {
    uint64_t now;
    if (!e->no_thread) return;
    now = cdp__elastic_now_ns(e);
    if (!until_ns && now - e->looked_ns < CDP__ELASTIC_REST_NS) return;
    cdp__elastic_visit(e, until_ns, now - e->looked_ns);
}

/* Called before a function of the program. Polls, and begins a new time away: the time until the
   function returns is the program's. */
CDP__PRIVATE void cdp__elastic_before_callback(cdp_elastic *e) {
    if (e->no_thread) cdp__elastic_visit(e, 0, 0);
}

/* Called after that function has returned. Keeps this thread's last error. */
CDP__PRIVATE void cdp__elastic_after_callback(cdp_elastic *e) {
    const cdp_error why = *cdp_last_error();
    cdp__elastic_attend(e, 0);
    *cdp__error_slot() = why;
}

/* Waits until the place of this process may have changed. Lock held; released while waiting. */
CDP__PRIVATE void cdp__elastic_sleep(cdp_elastic *e, uint64_t deadline_ns) {
    if (e->no_thread)
        cdp__elastic_attend(
            e, cdp__min(deadline_ns, cdp__elastic_now_ns(e) + CDP__ELASTIC_LOOK_MS * CDP__MS));
    else
        e->os->threads.cond_wait(e->os->user, e->cond, e->mutex, deadline_ns);
}

/* ---- >>elastic/quorum: one key that several servers keep, changed by a majority of them (pure)  */

/* Knows: one operation on one key, and what the servers answered. Each server keeps a record of the
   key: the ballot that it has promised, and the last value that it has accepted, with its ballot.
   (This is Paxos without a leader, as in "CASPaxos".) A client asks each server to replace the
   record that it knows by another one, compare-and-set, so a request that arrives late changes
   nothing that is newer.
   Promises: the values of a key are one history. A change that was reported is in it once, a change
   that was refused is not in it, and who asks later sees it. This holds whichever servers and
   clients die, stop or are cut off, as long as no server forgets. If a majority of the servers
   answers and clients pause differently long after BEATEN, each operation ends. */

#ifndef CDP__QUORUM_PLANT
#define CDP__QUORUM_PLANT(defect) false /* tests plant mistakes */
#endif

#define CDP__QUORUM_SERVERS 5u
#ifndef CDP__QUORUM_WRITERS
#define CDP__QUORUM_WRITERS 32u /* how many versions back a record says who made them */
#endif

typedef struct cdp__ballot { /* round 0: none */
    uint64_t round, proposer;
} cdp__ballot;

/* What a record says beside the value. A server without a record has one of zeros. */
typedef struct cdp__quorum_head {
    cdp__ballot promised, accepted;
    uint64_t version;                      /* changes until this value */
    uint64_t writers[CDP__QUORUM_WRITERS]; /* the tag of the change to version - i */
    bool present;                          /* false: the key is absent */
} cdp__quorum_head;

typedef enum cdp__quorum_phase {
    CDP__QUORUM_READ,    /* asks for records */
    CDP__QUORUM_PREPARE, /* asks for promises */
    CDP__QUORUM_ACCEPT   /* asks to accept a value */
} cdp__quorum_phase;

typedef enum cdp__quorum_outcome {
    CDP__QUORUM_VALUE,   /* a read: `next` is the head of the value */
    CDP__QUORUM_SWAPPED, /* the change is in the history */
    CDP__QUORUM_DIFFERS, /* it is not, and never will be: the key had another value */
    CDP__QUORUM_UNKNOWN  /* nobody knows any more: too many changes since the first attempt */
} cdp__quorum_outcome;

typedef enum cdp__quorum_verdict {
    CDP__QUORUM_WAITS,    /* for answers */
    CDP__QUORUM_PROMISED, /* call cdp__quorum_decide() */
    CDP__QUORUM_DONE,     /* `outcome` and `next` hold */
    CDP__QUORUM_BEATEN,   /* call cdp__quorum_again(), after a pause if it is not the first time */
    CDP__QUORUM_LOST      /* too many servers are lost */
} cdp__quorum_verdict;

typedef enum cdp__quorum_state { /* of a server, in this phase */
    CDP__QUORUM_IDLE,            /* to be asked; again, if its record was not the one known here */
    CDP__QUORUM_ASKED,
    CDP__QUORUM_YES,
    CDP__QUORUM_NO
} cdp__quorum_state;

typedef struct cdp__quorum_server {
    cdp__quorum_head head; /* its record as far as known */
    uint8_t state;
    bool known; /* false: it must be asked for its record first */
    bool lost;  /* no answer will come */
} cdp__quorum_server;

typedef struct cdp__quorum {
    uint32_t count, from;  /* from: the server whose record has the value */
    uint64_t proposer;     /* of this client alone */
    uint64_t tag;          /* of this change alone */
    uint64_t tried;        /* the lowest version that this change may have made; 0: none */
    cdp__ballot ballot;    /* its last one, also of earlier operations */
    cdp__quorum_head next; /* the record that is to be accepted, or was read */
    uint8_t phase, outcome;
    bool swaps;
    bool fresh;     /* `next` is the new value, not that of `from` */
    bool impatient; /* a read does not wait for slow servers any more */
    cdp__quorum_server at[CDP__QUORUM_SERVERS];
} cdp__quorum;

CDP__PRIVATE int32_t cdp__ballot_order(const cdp__ballot *a, const cdp__ballot *b) {
    if (a->round != b->round) return a->round < b->round ? -1 : 1;
    if (a->proposer != b->proposer) return a->proposer < b->proposer ? -1 : 1;
    return 0;
}

CDP__PRIVATE uint32_t cdp__quorum_majority(uint32_t count) {
    if (CDP__QUORUM_PLANT(HALF)) return (count + 1) / 2;
    if (CDP__QUORUM_PLANT(NEEDS_ALL)) return count;
    return count / 2 + 1;
}

CDP__PRIVATE void cdp__quorum_ask_all(cdp__quorum *q, cdp__quorum_phase phase) {
    uint32_t i;
    q->phase = (uint8_t)phase;
    for (i = 0; i < q->count; ++i) {
        /* a server that is known to have promised a higher ballot is not asked to break it */
        const bool no = phase == CDP__QUORUM_ACCEPT
            && cdp__ballot_order(&q->at[i].head.promised, &q->ballot) > 0;
        q->at[i].state = CDP__QUORUM_IDLE;
        if (no && !CDP__QUORUM_PLANT(ASKS_TOO_MUCH)) q->at[i].state = CDP__QUORUM_NO;
    }
}

/* A new ballot, above all that this client has seen. */
CDP__PRIVATE void cdp__quorum_again(cdp__quorum *q) {
    uint64_t round = q->ballot.round;
    uint32_t i;
    for (i = 0; i < q->count; ++i)
        round = cdp__max(round, q->at[i].head.promised.round);
    q->ballot.round = round + !CDP__QUORUM_PLANT(SAME_BALLOT);
    q->ballot.proposer = CDP__QUORUM_PLANT(SAME_BALLOT) ? 1 : q->proposer;
    if (!q->ballot.round) q->ballot.round = 1;
    cdp__quorum_ask_all(q, CDP__QUORUM_PREPARE);
}

/* Begins an operation; the caller has set count, proposer and, of each server, head, known and
   lost. `tag`: of a change, never used before; 0: a read. */
CDP__PRIVATE void cdp__quorum_begin(cdp__quorum *q, uint64_t tag) {
    q->tag = tag;
    q->swaps = tag != 0;
    q->tried = 0;
    q->fresh = q->impatient = false;
    /* ballot stays: a request of an earlier operation may be on its way, so none is used twice */
    if (q->swaps)
        cdp__quorum_again(q);
    else
        cdp__quorum_ask_all(q, CDP__QUORUM_READ);
}

/* The head of the record that server i is asked to keep in place of the known one. */
CDP__PRIVATE cdp__quorum_head cdp__quorum_wanted(const cdp__quorum *q, uint32_t i) {
    cdp__quorum_head h = q->at[i].head;
    if (q->phase == CDP__QUORUM_ACCEPT) return q->next;
    h.promised = q->ballot;
    return h;
}

/* Server i answered: its record is `h` now. */
CDP__PRIVATE void cdp__quorum_answer(cdp__quorum *q, uint32_t i, const cdp__quorum_head *h) {
    cdp__quorum_server *s = &q->at[i];
    const bool first = !s->known;
    int32_t order = cdp__ballot_order(&h->promised, &q->ballot);
    s->head = *h;
    s->known = true;
    if (CDP__QUORUM_PLANT(BREAKS_PROMISES) && q->phase == CDP__QUORUM_ACCEPT && order > 0)
        order = -1;
    if (q->phase == CDP__QUORUM_READ)
        s->state = CDP__QUORUM_YES;
    else if (q->phase == CDP__QUORUM_ACCEPT && cdp__ballot_order(&h->accepted, &q->ballot) == 0)
        s->state = CDP__QUORUM_YES;
    else if (order > 0)
        s->state = CDP__QUORUM_NO;
    else if (q->phase == CDP__QUORUM_PREPARE && order == 0 && !first)
        s->state = CDP__QUORUM_YES;
    else
        s->state = CDP__QUORUM_IDLE;
}

CDP__PRIVATE uint32_t cdp__quorum_in(const cdp__quorum *q, cdp__quorum_state state) {
    uint32_t i, n = 0;
    for (i = 0; i < q->count; ++i)
        n += q->at[i].state == state && (state != CDP__QUORUM_IDLE || !q->at[i].lost);
    return n;
}

/* Of the servers that said yes, one that accepted the highest ballot; how many accepted it. */
CDP__PRIVATE uint32_t cdp__quorum_newest(const cdp__quorum *q, uint32_t *count) {
    uint32_t i, best = q->count;
    *count = 0;
    for (i = 0; i < q->count; ++i) {
        int32_t order;
        if (q->at[i].state != CDP__QUORUM_YES) continue;
        order = best == q->count
            ? 1
            : cdp__ballot_order(&q->at[i].head.accepted, &q->at[best].head.accepted);
        if (order > 0 && !(CDP__QUORUM_PLANT(FIRST_VALUE) && best < q->count)) {
            best = i;
            *count = 0;
        }
        *count += order >= 0;
    }
    return best;
}

CDP__PRIVATE cdp__quorum_verdict cdp__quorum_verdict_of(cdp__quorum *q) {
    const uint32_t need = cdp__quorum_majority(q->count);
    uint32_t i, same, may = 0, lost = 0;
    for (i = 0; i < q->count; ++i) {
        const bool open = q->at[i].state == CDP__QUORUM_IDLE || q->at[i].state == CDP__QUORUM_ASKED;
        may += open && !q->at[i].lost;
        lost += q->at[i].lost && q->at[i].state != CDP__QUORUM_YES;
    }
    if (cdp__quorum_in(q, CDP__QUORUM_YES) >= need) {
        q->from = cdp__quorum_newest(q, &same);
        if (q->phase == CDP__QUORUM_PREPARE) return CDP__QUORUM_PROMISED;
        if (q->phase == CDP__QUORUM_ACCEPT) return CDP__QUORUM_DONE;
        q->next = q->at[q->from].head;
        q->outcome = CDP__QUORUM_VALUE;
        if (same >= need || CDP__QUORUM_PLANT(READS_ANY)) return CDP__QUORUM_DONE;
        return same + may >= need && !q->impatient ? CDP__QUORUM_WAITS : CDP__QUORUM_BEATEN;
    }
    if (q->count - lost < need) return CDP__QUORUM_LOST;
    return cdp__quorum_in(q, CDP__QUORUM_YES) + may >= need ? CDP__QUORUM_WAITS
                                                            : CDP__QUORUM_BEATEN;
}

/* What became of earlier attempts at this change, given the newest value. */
CDP__PRIVATE cdp__quorum_outcome cdp__quorum_fate(
    const cdp__quorum *q, const cdp__quorum_head *newest) {
    uint64_t i;
    if (!q->tried || CDP__QUORUM_PLANT(FORGETS_ATTEMPTS)) return CDP__QUORUM_DIFFERS;
    for (i = 0; i < CDP__QUORUM_WRITERS && i < newest->version; ++i)
        if (newest->writers[i] == q->tag) return CDP__QUORUM_SWAPPED;
    return newest->version >= q->tried + CDP__QUORUM_WRITERS ? CDP__QUORUM_UNKNOWN
                                                             : CDP__QUORUM_DIFFERS;
}

/* After PROMISED: decides which value the servers are asked to accept. `equal`: the value of server
   `from` is the one that the change expects; `present`: the change leaves the key present. */
CDP__PRIVATE void cdp__quorum_decide(cdp__quorum *q, bool equal, bool present) {
    const cdp__quorum_head *const newest = &q->at[q->from].head;
    uint32_t i;
    q->outcome = CDP__QUORUM_VALUE;
    q->next = *newest;
    q->fresh = false;
    if (q->swaps) {
        q->outcome = (uint8_t)cdp__quorum_fate(q, newest);
        q->fresh = q->outcome == CDP__QUORUM_DIFFERS && equal;
    }
    if (q->fresh) {
        for (i = CDP__QUORUM_WRITERS - 1; i; --i)
            q->next.writers[i] = q->next.writers[i - 1];
        q->next.writers[0] = q->tag;
        ++q->next.version;
        q->next.present = present;
        q->outcome = CDP__QUORUM_SWAPPED;
        if (!q->tried || q->next.version < q->tried) q->tried = q->next.version;
    }
    q->next.promised = q->next.accepted = q->ballot;
    cdp__quorum_ask_all(q, CDP__QUORUM_ACCEPT);
}

/* ---- >>elastic/quorum_servers: one operation on several servers ------------------------------ */

/* Knows: a client for each server, and the operation of quorum.h that is under way. A key K of the
   store is the record "q/K" on each server. Promises: no operation takes longer than answer_ms, nor
   waits for servers beyond a majority; a server is lost only if its connection is. */

#ifndef CDP_NO_CUSTOM_STORE

#define CDP__QUORUM_ID 16u
#define CDP__QUORUM_HEAD_BYTES (48u + 8u * CDP__QUORUM_WRITERS)
#define CDP__QUORUM_MOST_KEY (CDP_STORE_MAX_KEY_BYTES - 3u) /* "q/" precedes it */
#define CDP__QUORUM_MOST_VALUE (CDP_STORE_MAX_VALUE_BYTES - CDP__QUORUM_HEAD_BYTES)
#define CDP__QUORUM_MARK 0x31726f71u /* "qor1" */
#define CDP__QUORUM_ANSWER_MS 10000u
#define CDP__QUORUM_SLICE_NS CDP__MS           /* of a wait for one of several servers */
#define CDP__QUORUM_PATIENCE_NS (20 * CDP__MS) /* for the servers beyond a majority */
#define CDP__QUORUM_READS 4u /* how many times as long as one a look for a will may take */
#define CDP__QUORUM_REST_NS (10 * CDP__MS) /* between two searches for the servers */
#define CDP__QUORUM_LINGER_MS 5000u

typedef struct cdp__quorum_peer { /* one server */
    cdp_store *store;             /* NULL: lost */
    cdp__store_call call;
    uint8_t *record; /* the last one that it answered; NULL: none */
    uint64_t bytes;
    uint8_t *wanted; /* the one that it is asked to keep */
    bool slow;       /* gave no answer in time when it was asked last */
} cdp__quorum_peer;

typedef struct cdp__quorum_store {
    const cdp_os *os;
    cdp_logger logger;
    cdp_store_server *own;
    char *will_folder; /* NULL: no wills are looked for */
    uint64_t tags, dice;
    uint32_t answer_ms;
    cdp__quorum q;
    char *key;     /* "q/" and the key of q, of `records` and so on; NULL: none */
    uint8_t *kept; /* a value that is not in a record any more */
    cdp_bytes value;
    cdp__quorum_peer peer[CDP__QUORUM_SERVERS];
    char name[CDP__QUORUM_SERVERS][80];
} cdp__quorum_store;

CDP__PRIVATE uint64_t cdp__quorum_now(const cdp__quorum_store *s) {
    return s->os->now_ns(s->os->user);
}

CDP__PRIVATE void cdp__quorum_put_ballot(uint8_t *out, const cdp__ballot *b) {
    cdp__put_u64(out, b->round);
    cdp__put_u64(out + 8, b->proposer);
}

CDP__PRIVATE cdp__ballot cdp__quorum_get_ballot(const uint8_t *in) {
    cdp__ballot b;
    b.round = cdp__get_u64(in);
    b.proposer = cdp__get_u64(in + 8);
    return b;
}

/* mark, present; promised, accepted; version, writers; then the value */
CDP__PRIVATE void cdp__quorum_put_head(uint8_t *out, const cdp__quorum_head *h) {
    uint32_t i;
    cdp__put_u32(out, CDP__QUORUM_MARK);
    cdp__put_u32(out + 4, h->present);
    cdp__quorum_put_ballot(out + 8, &h->promised);
    cdp__quorum_put_ballot(out + 24, &h->accepted);
    cdp__put_u64(out + 40, h->version);
    for (i = 0; i < CDP__QUORUM_WRITERS; ++i)
        cdp__put_u64(out + 48 + 8 * i, h->writers[i]);
}

CDP__PRIVATE bool cdp__quorum_get_head(const uint8_t *in, uint64_t bytes, cdp__quorum_head *h) {
    uint32_t i;
    memset(h, 0, sizeof *h);
    if (!bytes) return true;
    if (bytes < CDP__QUORUM_HEAD_BYTES || cdp__get_u32(in) != CDP__QUORUM_MARK) return false;
    h->present = cdp__get_u32(in + 4) != 0;
    h->promised = cdp__quorum_get_ballot(in + 8);
    h->accepted = cdp__quorum_get_ballot(in + 24);
    h->version = cdp__get_u64(in + 40);
    for (i = 0; i < CDP__QUORUM_WRITERS; ++i)
        h->writers[i] = cdp__get_u64(in + 48 + 8 * i);
    return true;
}

/* ---- one server ---- */

CDP__PRIVATE void cdp__quorum_lose(cdp__quorum_store *s, uint32_t i) {
    cdp__quorum_peer *p = &s->peer[i];
    if (p->store)
        cdp__log(&s->logger, CDP_LOG_WARN, -1, "quorum store: server %s is lost: %s", s->name[i],
            cdp_last_error()->text);
    cdp_store_destroy(p->store);
    p->store = NULL;
    s->q.at[i].lost = true;
}

/* A request to server i failed: this says whether no other one can succeed. */
CDP__PRIVATE cdp_status cdp__quorum_failed(cdp__quorum_store *s, uint32_t i, cdp_status st) {
    s->q.at[i].state = CDP__QUORUM_IDLE;
    if (st != CDP_ERR_STORE && st != CDP_ERR_STATE && st != CDP_ERR_IO) return st;
    cdp__quorum_lose(s, i);
    return CDP_OK;
}

/* Begins compare_set(key, expected -> desired) on server i. */
CDP__PRIVATE cdp_status cdp__quorum_start(
    cdp__quorum_store *s, uint32_t i, const char *key, cdp_bytes expected, cdp_bytes desired) {
    cdp__quorum_peer *p = &s->peer[i];
    cdp_status st =
        cdp__store_call_make(&p->call, CDP_STORE_COMPARE_SET, key, expected.data, expected.bytes);
    p->call.value[1] = desired;
    if (st == CDP_OK) st = cdp__store_begin(p->store, &p->call.rq);
    s->q.at[i].state = CDP__QUORUM_ASKED;
    return st < 0 ? cdp__quorum_failed(s, i, st) : CDP_OK;
}

/* The same to read a key without changing it: an absent key answers what was expected. */
CDP__PRIVATE cdp_status cdp__quorum_probe(cdp__quorum_store *s, uint32_t i, const char *key) {
    cdp_bytes nothing;
    nothing.data = "?";
    nothing.bytes = 1;
    return cdp__quorum_start(s, i, key, nothing, nothing);
}

/* Waits for the answer of server i. OK: *data, of *bytes, is the caller's; NULL: the server is
   lost. */
CDP__PRIVATE cdp_status cdp__quorum_collect(
    cdp__quorum_store *s, uint32_t i, uint64_t until_ns, uint8_t **data, uint64_t *bytes) {
    cdp__quorum_peer *p = &s->peer[i];
    cdp_store_request *rq = &p->call.rq;
    const cdp_status st = p->store->wait(p->store->self, rq, until_ns);
    *data = NULL;
    *bytes = 0;
    if (st == CDP_PENDING) return st;
    if (st != CDP_OK) return cdp__quorum_failed(s, i, st);
    s->q.at[i].state = CDP__QUORUM_IDLE;
    memcpy(data, &rq->results[0].data, sizeof *data);
    *bytes = rq->results[0].bytes;
    rq->results[0].data = NULL;
    cdp_store_request_free(p->store, rq);
    if (*bytes == 1 && **data == '?') *bytes = 0; /* absent */
    p->slow = false;
    return CDP_OK;
}

/* Of the servers that have not answered, nobody waits for the answer any more. */
CDP__PRIVATE void cdp__quorum_drop(cdp__quorum_store *s) {
    uint32_t i;
    for (i = 0; i < s->q.count; ++i) {
        cdp__quorum_peer *p = &s->peer[i];
        if (s->q.at[i].state != CDP__QUORUM_ASKED) continue;
        s->q.at[i].state = CDP__QUORUM_IDLE;
        if (!p->store) continue;
        p->slow = true;
        p->store->cancel(p->store->self, &p->call.rq);
        if (p->call.rq.status == CDP_OK) cdp_store_request_free(p->store, &p->call.rq);
    }
}

/* How long to wait for server i: quick ones first, and the slow ones while no other is left. */
CDP__PRIVATE uint64_t cdp__quorum_until(const cdp__quorum_store *s, uint32_t i, uint64_t end_ns) {
    const uint64_t now = cdp__quorum_now(s);
    uint32_t k;
    for (k = 0; s->peer[i].slow && k < s->q.count; ++k)
        if (s->q.at[k].state == CDP__QUORUM_ASKED && s->peer[k].store && !s->peer[k].slow)
            return now;
    return cdp__min(end_ns, now + CDP__QUORUM_SLICE_NS);
}

/* ---- an operation ---- */

CDP__PRIVATE void cdp__quorum_forget(cdp__quorum_store *s) {
    uint32_t i;
    for (i = 0; i < s->q.count; ++i) {
        cdp__free(s->os, s->peer[i].record);
        s->peer[i].record = NULL;
        s->peer[i].bytes = 0;
        memset(&s->q.at[i].head, 0, sizeof s->q.at[i].head);
        s->q.at[i].known = false;
    }
}

/* The records that were read last are those of the key from now on. */
CDP__PRIVATE cdp_status cdp__quorum_open(cdp__quorum_store *s, cdp_bytes key) {
    if (key.bytes > CDP__QUORUM_MOST_KEY)
        return cdp__fail(CDP_ERR_INVALID, "quorum store: a key has at most %u bytes, not %llu",
            CDP__QUORUM_MOST_KEY, (unsigned long long)key.bytes);
    if (key.bytes && memchr(key.data, 0, (size_t)key.bytes))
        return cdp__fail(CDP_ERR_INVALID, "quorum store: a key contains no zero bytes");
    if (s->key && strlen(s->key + 2) == key.bytes
        && memcmp(s->key + 2, key.data, (size_t)key.bytes) == 0)
        return CDP_OK;
    cdp__quorum_forget(s);
    cdp__free(s->os, s->key);
    s->key = (char *)cdp__alloc_zero(s->os, key.bytes + 3);
    if (!s->key) return cdp__fail_nomem("a key", key.bytes + 3);
    memcpy(s->key, "q/", 2);
    memcpy(s->key + 2, key.data, (size_t)key.bytes);
    return CDP_OK;
}

CDP__PRIVATE cdp_bytes cdp__quorum_value_of(const cdp__quorum_store *s, uint32_t i) {
    cdp_bytes v;
    v.data = "";
    v.bytes = 0;
    if (s->peer[i].bytes <= CDP__QUORUM_HEAD_BYTES) return v;
    v.data = s->peer[i].record + CDP__QUORUM_HEAD_BYTES;
    v.bytes = s->peer[i].bytes - CDP__QUORUM_HEAD_BYTES;
    return v;
}

/* Asks server i what this phase asks. */
CDP__PRIVATE cdp_status cdp__quorum_ask(cdp__quorum_store *s, uint32_t i) {
    cdp__quorum_peer *p = &s->peer[i];
    const bool accepts = s->q.phase == CDP__QUORUM_ACCEPT;
    const cdp_bytes value = accepts ? s->value : cdp__quorum_value_of(s, i);
    const cdp__quorum_head head = cdp__quorum_wanted(&s->q, i);
    cdp_bytes expected, desired;
    if (s->q.phase == CDP__QUORUM_READ || !s->q.at[i].known) return cdp__quorum_probe(s, i, s->key);
    cdp__free(s->os, p->wanted);
    p->wanted = (uint8_t *)cdp__alloc(s->os, CDP__QUORUM_HEAD_BYTES + value.bytes);
    if (!p->wanted) return cdp__fail_nomem("a value", CDP__QUORUM_HEAD_BYTES + value.bytes);
    cdp__quorum_put_head(p->wanted, &head);
    if (value.bytes) memcpy(p->wanted + CDP__QUORUM_HEAD_BYTES, value.data, (size_t)value.bytes);
    expected.data = p->record;
    expected.bytes = p->bytes;
    desired.data = p->wanted;
    desired.bytes = CDP__QUORUM_HEAD_BYTES + value.bytes;
    return cdp__quorum_start(s, i, s->key, expected, desired);
}

/* Asks whoever is to be asked, and takes the answers that are there within a millisecond. */
CDP__PRIVATE cdp_status cdp__quorum_turn(cdp__quorum_store *s, uint64_t end_ns) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; st == CDP_OK && i < s->q.count; ++i)
        if (s->q.at[i].state == CDP__QUORUM_IDLE && s->peer[i].store) st = cdp__quorum_ask(s, i);
    for (i = 0; st == CDP_OK && i < s->q.count; ++i) {
        cdp__quorum_peer *p = &s->peer[i];
        cdp__quorum_head head;
        uint8_t *data;
        uint64_t bytes;
        if (s->q.at[i].state != CDP__QUORUM_ASKED || !p->store) continue;
        st = cdp__quorum_collect(s, i, cdp__quorum_until(s, i, end_ns), &data, &bytes);
        if (st < 0) return st;
        st = CDP_OK; /* CDP_PENDING: another one may have answered */
        if (!data) continue;
        cdp__free(s->os, p->record);
        p->record = data;
        p->bytes = bytes;
        s->q.at[i].known = cdp__quorum_get_head(data, bytes, &head);
        if (!s->q.at[i].known)
            return cdp__fail(CDP_ERR_STORE,
                "quorum store: \"%s\" on server %s is no record: another program writes to it",
                s->key, s->name[i]);
        cdp__quorum_answer(&s->q, i, &head);
    }
    return st;
}

/* A majority has promised. `expected` and `desired` are those of a change; NULL: absent. */
CDP__PRIVATE cdp_status cdp__quorum_choose(
    cdp__quorum_store *s, const cdp_bytes *expected, const cdp_bytes *desired) {
    const cdp_bytes value = cdp__quorum_value_of(s, s->q.from);
    const bool present = s->q.at[s->q.from].head.present;
    bool equal = !present && !expected;
    if (present && expected)
        equal = value.bytes == expected->bytes
            && (!value.bytes || memcmp(value.data, expected->data, (size_t)value.bytes) == 0);
    cdp__quorum_decide(&s->q, equal, desired != NULL);
    memset(&s->value, 0, sizeof s->value);
    if (s->q.fresh) {
        if (desired) s->value = *desired;
        return CDP_OK;
    }
    /* the record of `from` changes meanwhile */
    cdp__free(s->os, s->kept);
    s->kept = (uint8_t *)cdp__alloc(s->os, value.bytes + 1);
    if (!s->kept) return cdp__fail_nomem("a value", value.bytes);
    if (value.bytes) memcpy(s->kept, value.data, (size_t)value.bytes);
    s->value.data = s->kept;
    s->value.bytes = value.bytes;
    return CDP_OK;
}

/* Another client asked for a higher ballot: lets it finish, differently long each time. */
CDP__PRIVATE void cdp__quorum_pause(cdp__quorum_store *s, uint32_t times) {
    const uint64_t most = CDP__MS / 4 << cdp__min(times, 7);
    s->dice = s->dice * 6364136223846793005u + 1442695040888963407u;
    if (times) cdp__sleep_until(s->os, cdp__quorum_now(s) + (s->dice >> 33) % most);
}

CDP__PRIVATE cdp_status cdp__quorum_no_majority(const cdp__quorum_store *s, bool late) {
    char text[200];
    cdp__text t = cdp__text_of(text, sizeof text);
    uint32_t i, lost = 0;
    for (i = 0; i < s->q.count; ++i) {
        if (s->peer[i].store && !(late && s->peer[i].slow)) continue;
        cdp__text_add(&t, "%s%s", lost++ ? ", " : "", s->name[i]);
    }
    (void)cdp__text_end(&t);
    if (s->q.count - lost >= cdp__quorum_majority(s->q.count))
        return cdp__fail(CDP_ERR_STORE,
            "quorum store: the servers answer, but others used \"%s\" so often that this process "
            "had no turn within answer_ms",
            s->key + 2);
    return cdp__fail(CDP_ERR_STORE,
        "quorum store: %s majority of the %u servers%s (%s): this process is cut off, or too many "
        "of them have ended",
        late ? "no answer from a" : "there is no", s->q.count, late ? " within answer_ms" : "",
        text);
}

/* Runs the operation that cdp__quorum_begin() began. */
CDP__PRIVATE cdp_status cdp__quorum_run(
    cdp__quorum_store *s, const cdp_bytes *expected, const cdp_bytes *desired) {
    const uint64_t begun = cdp__quorum_now(s), end = begun + s->answer_ms * CDP__MS;
    uint32_t beaten = 0;
    cdp_status st = CDP_OK;
    while (st == CDP_OK) {
        const cdp__quorum_verdict verdict = cdp__quorum_verdict_of(&s->q);
        const uint64_t now = cdp__quorum_now(s);
        s->q.impatient = now - begun >= CDP__QUORUM_PATIENCE_NS;
        if (verdict == CDP__QUORUM_WAITS && now < end) {
            st = cdp__quorum_turn(s, end);
            continue;
        }
        cdp__quorum_drop(s);
        if (verdict == CDP__QUORUM_DONE) break;
        if (verdict == CDP__QUORUM_LOST || now >= end)
            st = cdp__quorum_no_majority(s, verdict != CDP__QUORUM_LOST);
        else if (verdict == CDP__QUORUM_PROMISED)
            st = cdp__quorum_choose(s, expected, desired);
        else if (verdict == CDP__QUORUM_BEATEN) {
            cdp__quorum_pause(s, beaten++);
            cdp__quorum_again(&s->q);
        }
    }
    if (st == CDP_OK && s->q.phase == CDP__QUORUM_READ)
        s->value = cdp__quorum_value_of(s, s->q.from);
    if (st != CDP_OK) cdp__quorum_drop(s);
    return st;
}

CDP__PRIVATE cdp_status cdp__quorum_swap(
    void *user, cdp_bytes key, const cdp_bytes *expected, const cdp_bytes *desired) {
    cdp__quorum_store *s = (cdp__quorum_store *)user;
    uint8_t *copy = NULL;
    cdp_bytes want;
    cdp_status st = cdp__quorum_open(s, key);
    memset(&want, 0, sizeof want);
    if (st == CDP_OK && desired && desired->bytes > CDP__QUORUM_MOST_VALUE)
        st = cdp__fail(CDP_ERR_INVALID,
            "quorum store: the value of \"%s\" has at most %u bytes, not %llu", s->key + 2,
            CDP__QUORUM_MOST_VALUE, (unsigned long long)desired->bytes);
    if (st == CDP_OK && expected) { /* it may be what the last read returned */
        copy = (uint8_t *)cdp__alloc(s->os, expected->bytes + 1);
        if (!copy) return cdp__fail_nomem("a value", expected->bytes);
        if (expected->bytes) memcpy(copy, expected->data, (size_t)expected->bytes);
        want.data = copy;
        want.bytes = expected->bytes;
    }
    if (st == CDP_OK) {
        cdp__quorum_begin(&s->q, ++s->tags);
        st = cdp__quorum_run(s, expected ? &want : NULL, desired);
    }
    cdp__free(s->os, copy);
    if (st != CDP_OK) return st;
    if (s->q.outcome == CDP__QUORUM_UNKNOWN)
        return cdp__fail(CDP_ERR_STORE,
            "quorum store: others changed \"%s\" so often meanwhile that nobody knows whether the "
            "change of this process counted",
            s->key + 2);
    return s->q.outcome == CDP__QUORUM_SWAPPED ? CDP_OK : CDP_PENDING;
}

/* Whether a majority of the servers has seen the process end whose last will is under this key. A
   read of it took so long just now. */
CDP__PRIVATE bool cdp__quorum_has_last_will(cdp__quorum_store *s, cdp_bytes key, uint64_t took_ns) {
    const uint32_t need = cdp__quorum_majority(s->q.count);
    const uint64_t limit_ns = CDP__QUORUM_PATIENCE_NS + CDP__QUORUM_READS * took_ns;
    const uint64_t end = cdp__quorum_now(s) + cdp__min(limit_ns, s->answer_ms * CDP__MS);
    uint32_t i, there = 0, open = 0;
    char name[300];
    if (key.bytes > 290) return false;
    memcpy(name, "w/", 2);
    memcpy(name + 2, key.data, (size_t)key.bytes);
    name[2 + key.bytes] = 0;
    for (i = 0; i < s->q.count; ++i) {
        s->q.at[i].state = CDP__QUORUM_NO;
        if (s->peer[i].store) (void)cdp__quorum_probe(s, i, name);
        open += s->q.at[i].state == CDP__QUORUM_ASKED;
    }
    while (there < need && there + open >= need && cdp__quorum_now(s) < end)
        for (i = 0; i < s->q.count; ++i) {
            uint8_t *data;
            uint64_t bytes;
            cdp_status st;
            if (s->q.at[i].state != CDP__QUORUM_ASKED || !s->peer[i].store) continue;
            st = cdp__quorum_collect(s, i, cdp__quorum_until(s, i, end), &data, &bytes);
            if (st == CDP_PENDING) continue;
            s->q.at[i].state = CDP__QUORUM_NO;
            --open;
            there += bytes != 0;
            cdp__free(s->os, data);
        }
    cdp__quorum_drop(s);
    return there >= need;
}

CDP__PRIVATE cdp_status cdp__quorum_get(void *user, cdp_bytes key, cdp_bytes *value) {
    cdp__quorum_store *s = (cdp__quorum_store *)user;
    const uint64_t folder = s->will_folder ? strlen(s->will_folder) : UINT64_MAX;
    const uint64_t begun = cdp__quorum_now(s);
    cdp_bytes ended;
    cdp_status st = cdp__quorum_open(s, key);
    if (st != CDP_OK) return st;
    cdp__quorum_begin(&s->q, 0);
    st = cdp__quorum_run(s, NULL, NULL);
    if (st != CDP_OK) return st;
    *value = s->value;
    if (s->q.next.present) return CDP_OK;
    if (key.bytes <= folder || memcmp(key.data, s->will_folder, (size_t)folder) != 0
        || !cdp__quorum_has_last_will(s, key, cdp__quorum_now(s) - begun))
        return CDP_PENDING;
    ended.data = "its process ended";
    ended.bytes = strlen("its process ended");
    st = cdp__quorum_swap(s, key, NULL, &ended);
    return st < 0 ? st : cdp__quorum_get(s, key, value);
}

#endif /* CDP_NO_CUSTOM_STORE */

/* ---- >>elastic/quorum_store: a store that lives on several servers --------------------------- */

/* Knows: who the servers are. Promises: a server that came back without what it had is never used;
   nothing is left behind where creation fails. */

#ifndef CDP_NO_CUSTOM_STORE

CDP__PRIVATE void cdp__quorum_destroy(void *user) {
    cdp__quorum_store *s = (cdp__quorum_store *)user;
    const cdp_os *os = s->os;
    uint32_t i;
    cdp__quorum_forget(s);
    for (i = 0; i < s->q.count; ++i) {
        cdp_store_destroy(s->peer[i].store);
        cdp__free(os, s->peer[i].wanted);
    }
    if (s->own) {
        const uint64_t end = cdp__deadline(os, CDP__QUORUM_LINGER_MS);
        while (cdp__store_server_clients(s->own) && cdp__quorum_now(s) < end)
            cdp__sleep_until(os, cdp__quorum_now(s) + CDP__MS);
        cdp_store_server_destroy(s->own);
    }
    cdp__free(os, s->key);
    cdp__free(os, s->kept);
    cdp__free(os, s->will_folder);
    cdp__free(os, s);
}

/* Takes apart the list of servers: s->name and s->q.count. */
CDP__PRIVATE bool cdp__quorum_names(cdp__quorum_store *s, const char *list) {
    uint32_t n = 0;
    for (;;) {
        const char *const end = strchr(list, ',');
        const uint64_t bytes = end ? (uint64_t)(end - list) : strlen(list);
        if (!bytes || bytes >= sizeof s->name[0] || n == CDP__QUORUM_SERVERS) return false;
        memcpy(s->name[n++], list, (size_t)bytes);
        if (!end) break;
        list = end + 1;
    }
    s->q.count = n;
    return true;
}

/* host: room for a name. */
CDP__PRIVATE bool cdp__quorum_split(const char *name, char *host, uint16_t *port) {
    const char *const colon = strrchr(name, ':');
    const char *end = NULL;
    uint32_t number = 0;
    if (colon) end = cdp__addr_decimal(colon + 1, 65535, &number);
    if (!end || *end || !number || colon == name) return false;
    memcpy(host, name, (size_t)(colon - name));
    host[colon - name] = 0;
    *port = (uint16_t)number;
    return true;
}

CDP__PRIVATE cdp_status cdp__quorum_serve(cdp__quorum_store *s, const cdp_quorum_store_desc *d) {
    cdp_store_server_desc server;
    char host[80];
    if (!d->serve) return CDP_OK;
    memset(&server, 0, sizeof server);
    (void)cdp__quorum_split(s->name[d->serve - 1], host, &server.port);
    server.host = host;
    server.job_key = d->job_key;
    server.trust_network = d->trust_network;
    server.os = d->os;
    server.logger = d->logger;
    return cdp_store_server_create(&server, &s->own);
}

/* One attempt to connect to server i. */
CDP__PRIVATE cdp_status cdp__quorum_connect(
    cdp__quorum_store *s, const cdp_quorum_store_desc *d, uint32_t i, uint64_t ms) {
    cdp_tcp_store_desc c;
    char host[80], will[300];
    memset(&c, 0, sizeof c);
    (void)cdp__quorum_split(s->name[i], host, &c.port);
    c.host = host;
    c.job_key = d->job_key;
    c.os = d->os;
    c.logger = d->logger;
    c.timeout_ms = s->answer_ms;
    c.connect_timeout_ms = (uint32_t)ms;
    /* with the head of a record */
    c.max_value_bytes = CDP_STORE_MAX_VALUE_BYTES;
    if (d->will_key) {
        cdp__format(will, sizeof will, "w/%s", d->will_key);
        c.will_key = will;
        c.will_value = d->will_value;
    }
    return cdp_tcp_store_create(&c, &s->peer[i].store);
}

/* compare_set(key, "" -> value) on server i; out: room for what it holds then. */
CDP__PRIVATE cdp_status cdp__quorum_claim(
    cdp__quorum_store *s, uint32_t i, const char *key, const char *value, char out[200]) {
    void *data;
    uint64_t bytes;
    const char *const expected = *value ? "" : "?";
    const cdp_status st = cdp_store_compare_set(s->peer[i].store, key, expected, strlen(expected),
        *value ? value : "?", *value ? strlen(value) : 1, &data, &bytes);
    if (st != CDP_OK) return st;
    bytes = cdp__min(bytes, 199);
    memcpy(out, data, (size_t)bytes);
    out[bytes] = 0;
    if (strcmp(out, "?") == 0) out[0] = 0;
    cdp_store_free(s->peer[i].store, data);
    return CDP_OK;
}

/* Server i did not answer while the servers were sought: it is tried again. */
CDP__PRIVATE void cdp__quorum_part(cdp__quorum_store *s, uint32_t i) {
    cdp_store_destroy(s->peer[i].store);
    s->peer[i].store = NULL;
}

/* The servers are those of one store if a majority of them holds the same list of all their ids.
   The id of a server is lost when it ends, so one that comes back is not in the list. `made`: the
   list to write where a server has none yet; *known: how many hold *list. */
CDP__PRIVATE cdp_status cdp__quorum_members(
    cdp__quorum_store *s, const char *made, char list[200], uint32_t *known) {
    uint32_t i;
    *known = 0;
    for (i = 0; i < s->q.count; ++i) {
        char held[200];
        if (!s->peer[i].store) continue;
        if (cdp__quorum_claim(s, i, "q:members", made, held) != CDP_OK)
            cdp__quorum_part(s, i);
        else if (held[0] && !list[0])
            memcpy(list, held, sizeof held);
        if (s->peer[i].store && held[0] && strcmp(held, list) != 0)
            return cdp__fail(CDP_ERR_MISMATCH,
                "quorum store: server %s belongs to another store than a server before it: start "
                "all of them again",
                s->name[i]);
        *known += s->peer[i].store && held[0];
    }
    return CDP_OK;
}

/* Servers whose id is not in the list have lost what they had: they are not used. */
CDP__PRIVATE cdp_status cdp__quorum_found(cdp__quorum_store *s, bool *founded) {
    char id[CDP__QUORUM_SERVERS][200], all[200], list[200] = "";
    cdp__text t = cdp__text_of(all, sizeof all);
    uint32_t i, known, here = 0;
    cdp_status st;
    for (i = 0; i < s->q.count; ++i) {
        uint8_t random[CDP__QUORUM_ID];
        char mine[2 * CDP__QUORUM_ID + 1];
        if (!s->peer[i].store) continue;
        st = s->os->random(s->os->user, random, sizeof random);
        if (st != CDP_OK) return st;
        cdp__elastic_hex(random, mine);
        if (cdp__quorum_claim(s, i, "q:id", mine, id[i]) != CDP_OK) {
            cdp__quorum_part(s, i);
            continue;
        }
        cdp__text_add(&t, "%s%s", here++ ? "," : "", id[i]);
    }
    (void)cdp__text_end(&t);
    st = cdp__quorum_members(s, "", list, &known);
    if (st != CDP_OK || (!known && here < s->q.count)) return st;
    if (!known) memcpy(list, all, sizeof all);
    for (i = 0; i < s->q.count; ++i)
        if (s->peer[i].store
            && strncmp(list + (2 * CDP__QUORUM_ID + 1) * i, id[i], 2 * CDP__QUORUM_ID) != 0) {
            (void)cdp__fail(CDP_ERR_STORE, "it ended, and another one took its place");
            cdp__quorum_lose(s, i);
        }
    memcpy(all, list, sizeof all);
    st = cdp__quorum_members(s, all, list, &known);
    *founded = st == CDP_OK && known >= cdp__quorum_majority(s->q.count);
    return st;
}

/* Connects to all servers, or, where the store has begun, to a majority. */
CDP__PRIVATE cdp_status cdp__quorum_join(cdp__quorum_store *s, const cdp_quorum_store_desc *d) {
    const uint32_t limit = cdp__def(d->connect_timeout_ms, cdp__def(d->timeout_ms, 300000));
    const uint64_t end = cdp__deadline(s->os, limit);
    uint64_t attempt_ms = 1000;
    bool founded = false;
    cdp_status st = CDP_OK;
    for (;; attempt_ms = cdp__min(2 * attempt_ms, 8000)) {
        uint32_t i, here = 0, lost = 0;
        for (i = 0; i < s->q.count; ++i) {
            const uint64_t now = cdp__quorum_now(s);
            const uint64_t left_ms = end > now ? (end - now) / CDP__MS : 0;
            if (!s->peer[i].store && !s->q.at[i].lost) {
                st = cdp__quorum_connect(s, d, i, cdp__min(attempt_ms, left_ms + 1));
                if (st == CDP_ERR_MISMATCH || st == CDP_ERR_INVALID || st == CDP_ERR_NOMEM)
                    return st;
            }
            here += s->peer[i].store != NULL;
        }
        if (here >= cdp__quorum_majority(s->q.count)) {
            st = cdp__quorum_found(s, &founded);
            if (st != CDP_OK) return st;
        }
        if (founded) break;
        for (i = 0; i < s->q.count; ++i)
            lost += s->q.at[i].lost;
        if (s->q.count - lost < cdp__quorum_majority(s->q.count))
            return cdp__fail(CDP_ERR_MISMATCH,
                "quorum store: %u of the %u servers ended and came back without what they had: "
                "start all of them again",
                lost, s->q.count);
        cdp__sleep_until(s->os, cdp__quorum_now(s) + CDP__QUORUM_REST_NS);
        if (cdp__quorum_now(s) >= end)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "cdp_quorum_store_create: %u of the %u servers answered within %u ms; the first "
                "time all must be there, later a majority. The last error: %s",
                here, s->q.count, limit, cdp_last_error()->text);
    }
    for (uint32_t i = 0; i < s->q.count; ++i)
        if (!s->peer[i].store) s->q.at[i].lost = true;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__quorum_check(cdp__quorum_store *s, const cdp_quorum_store_desc *d) {
    const char *const slash = d->will_key ? strrchr(d->will_key, '/') : NULL;
    char host[80];
    uint16_t port;
    uint32_t i;
    bool good = cdp__quorum_names(s, d->servers);
    for (i = 0; good && i < s->q.count; ++i)
        good = cdp__quorum_split(s->name[i], host, &port);
    if (!good)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_quorum_store_desc.servers is \"%s\"; it should be HOST:PORT,HOST:PORT,HOST:PORT "
            "(1 to %u servers)",
            d->servers, CDP__QUORUM_SERVERS);
    if (d->serve > s->q.count)
        return cdp__fail(CDP_ERR_INVALID, "cdp_quorum_store_desc.serve is %u of %u servers",
            d->serve, s->q.count);
    if (d->will_key && strlen(d->will_key) > 290)
        return cdp__fail(CDP_ERR_INVALID, "cdp_quorum_store_desc.will_key is too long");
    if (!slash) return CDP_OK;
    s->will_folder = (char *)cdp__alloc_zero(s->os, (uint64_t)(slash - d->will_key) + 2);
    if (!s->will_folder) return cdp__fail_nomem("a key", 0);
    memcpy(s->will_folder, d->will_key, (size_t)(slash - d->will_key) + 1);
    return CDP_OK;
}

CDP_API cdp_status cdp_quorum_store_create(const cdp_quorum_store_desc *desc, cdp_store **out) {
    cdp_custom_store_desc custom;
    cdp__quorum_store *s;
    const cdp_os *os;
    cdp_status st;
    if (!out) return cdp__missing("cdp_quorum_store_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_quorum_store_create", "desc");
    if (!desc->servers) return cdp__missing("cdp_quorum_store_create", "desc.servers");
    if (cdp__os_whole(desc->os, "cdp_quorum_store_create") != CDP_OK) return CDP_ERR_INVALID;
    os = desc->os ? desc->os : cdp_os_default();
    s = (cdp__quorum_store *)cdp__alloc_zero(os, sizeof *s);
    if (!s) return cdp__fail_nomem("a quorum store", sizeof *s);
    s->os = os;
    s->logger = desc->logger;
    s->answer_ms = cdp__def(desc->answer_ms, CDP__QUORUM_ANSWER_MS);
    st = cdp__quorum_check(s, desc);
    if (st == CDP_OK) st = os->random(os->user, &s->q.proposer, sizeof s->q.proposer);
    if (st == CDP_OK) st = os->random(os->user, &s->tags, sizeof s->tags);
    s->dice = s->tags;
    if (st == CDP_OK) st = cdp__quorum_serve(s, desc);
    if (st == CDP_OK) st = cdp__quorum_join(s, desc);
    memset(&custom, 0, sizeof custom);
    custom.get = cdp__quorum_get;
    custom.swap = cdp__quorum_swap;
    custom.destroy = cdp__quorum_destroy;
    custom.user = s;
    custom.timeout_ms = desc->timeout_ms;
    custom.os = os;
    if (st == CDP_OK) st = cdp_custom_store_create(&custom, out);
    if (st == CDP_OK) return CDP_OK;
    const cdp_error why = *cdp_last_error();
    cdp__quorum_destroy(s);
    *cdp__error_slot() = why;
    return st;
}

#endif /* CDP_NO_CUSTOM_STORE */

/* ---- >>elastic/transfer: state, from several sources to all who lack it ---------------------- */

/* Knows: entries, blobs, who is a source. Promises: what was received is used only after the hashes
   of all members were equal; no member waits longer than the epoch lasts. */

/* From this size on a round takes longer to copy than its source sleeps. */
#define CDP__ELASTIC_LONG (8u << 20)

typedef struct cdp__elastic_transfer {
    cdp_elastic *e;
    cdp_group *group;
    const cdp__elastic_decision *d;
    uint32_t rank, count; /* count: of sources that are used */
    uint32_t source[CDP__ELASTIC_SOURCES];
    cdp_group *from[CDP__ELASTIC_SOURCES]; /* that source, and all receivers; NULL: not with it */
    uint32_t turn;                         /* pieces that have begun */
    uint8_t *apart;   /* the entries come here; NULL: they are overwritten as they come */
    uint64_t hash[2]; /* of the entries; of the blob */
    uint8_t *blob;    /* as saved, or received */
    uint64_t blob_bytes;
    bool has_blob; /* it was received */
} cdp__elastic_transfer;

/* What a function of the program returned. Its error is final, also one that would be a loss in an
   operation: each epoch would call it again. But if the group has failed, that is why. */
CDP__PRIVATE cdp_status cdp__elastic_returned(
    cdp_elastic *e, cdp_group *group, const char *name, cdp_status st) {
    const cdp_error why = *cdp_last_error();
    cdp__elastic_after_callback(e);
    if (st == CDP_OK) return st;
    if (cdp__elastic_is_loss(cdp_group_status(group))) return cdp_last_error()->status;
    e->refused = true;
    *cdp__error_slot() = why;
    if (st < 0 && why.status == st) return st;
    return cdp__fail(st < 0 ? st : CDP_ERR_INVALID, "%s() of cdp_elastic_desc returned %s", name,
        cdp_status_name(st));
}

/* A member that is behind by a step keeps what it holds until all of the newer state is there: if
   the sources die before, the job goes on without that step. Where there is no memory for both, its
   entries are overwritten, and it has no state meanwhile. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_begin(cdp__elastic_transfer *t) {
    cdp_elastic *e = t->e;
    uint64_t bytes = 0;
    uint32_t i;
    bool in;
    for (i = 0; i < e->desc.entry_count; ++i)
        bytes += e->desc.entries[i].count * cdp_dtype_size(e->desc.entries[i].dtype);
    cdp__elastic_lock(e);
    in = e->place.epoch == t->d->epoch && e->place.phase == CDP__ELASTIC_JOINED;
    if (in && !t->d->members[t->rank].source) {
        if (e->place.has_state) t->apart = (uint8_t *)cdp__alloc(e->os, bytes + 1);
        cdp__elastic_receive(&e->place, t->apart != NULL);
    }
    cdp__elastic_unlock(e);
    return in ? CDP_OK : cdp__fail(CDP_ERR_ABORTED, "the epoch ended before its state was there");
}

/* The groups of each source with all receivers. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_groups(cdp__elastic_transfer *t) {
    const cdp__elastic_decision *d = t->d;
    uint32_t *ranks = (uint32_t *)cdp__alloc(t->e->os, d->size * sizeof *ranks);
    uint32_t i, r, n;
    cdp_status st = CDP_OK;
    if (!ranks) return cdp__fail_nomem("a list of ranks", d->size * sizeof *ranks);
    for (r = 0; r < d->size && t->count < CDP__ELASTIC_SOURCES; ++r)
        if (d->members[r].source) t->source[t->count++] = r;
    for (i = 0; st == CDP_OK && i < t->count; ++i) {
        if (d->members[t->rank].source && t->source[i] != t->rank) continue;
        n = 0;
        ranks[n++] = t->source[i];
        for (r = 0; r < d->size; ++r)
            if (!d->members[r].source) ranks[n++] = r;
        if (n == d->size && !t->source[i])
            t->from[i] = t->group; /* the same ranks in the same order */
        else
            st = cdp_group_new(t->group, ranks, n, &t->from[i]);
    }
    cdp__free(t->e->os, ranks);
    return st;
}

/* One step of a lane takes two words and one multiplication, which is what limits it. It tells
   every change of one word, and the rotation carries bits at the top to where the next product
   spreads them. It comes last: a word that is added after it would meet the first word of the next
   step at the same bits, and equal changes of both would cancel. */
CDP__PRIVATE uint64_t cdp__elastic_lane(uint64_t lane, const uint8_t *p) {
    uint64_t word[2];
    memcpy(word, p, sizeof word);
    lane = (lane ^ word[0]) * 0x9e3779b97f4a7c15ull + word[1];
    return lane << 29 | lane >> 35;
}

/* Continues a hash over gigabytes: cdp__hash() reads single bytes, which takes longer than to move
   them. The lanes are variables, which stay in registers. 64 MiB take 1.1 ms where they are in the
   cache and 1.9 where they are not (gcc 12, -O2); four lanes of a word each take 2.7 and 2.8, and
   in an array 6.7. */
CDP__PRIVATE uint64_t cdp__elastic_hash(uint64_t start, const void *data, uint64_t bytes) {
    const uint8_t *p = (const uint8_t *)data;
    uint64_t a = start, b = start + 1, c = start + 2, d = start + 3;
    uint64_t e = start + 4, f = start + 5, g = start + 6, h = start + 7, i;
    for (i = 0; i + 128 <= bytes; i += 128) {
        a = cdp__elastic_lane(a, p + i);
        b = cdp__elastic_lane(b, p + i + 16);
        c = cdp__elastic_lane(c, p + i + 32);
        d = cdp__elastic_lane(d, p + i + 48);
        e = cdp__elastic_lane(e, p + i + 64);
        f = cdp__elastic_lane(f, p + i + 80);
        g = cdp__elastic_lane(g, p + i + 96);
        h = cdp__elastic_lane(h, p + i + 112);
    }
    const uint64_t lanes[8] = {a, b, c, d, e, f, g, h};
    return cdp__hash(cdp__hash(start, lanes, sizeof lanes), p + i, bytes - i);
}

/* An entry that is hashed in blocks, as far as it is there. */
typedef struct cdp__elastic_reading {
    uint64_t *hash;
    uint8_t *data;
    uint64_t bytes, done;
    uint64_t begin, piece; /* where the piece begins that is coming, and its length */
} cdp__elastic_reading;

CDP__PRIVATE void cdp__elastic_hash_to(cdp__elastic_reading *r, uint64_t there) {
    uint64_t n;
    for (; r->done < there; r->done += n) {
        n = cdp__min(r->bytes - r->done, CDP__ELASTIC_BLOCK);
        if (n > there - r->done) break;
        *r->hash = cdp__elastic_hash(*r->hash, r->data + r->done, n);
    }
}

CDP__PRIVATE void cdp__elastic_arrived(void *user, uint64_t bytes) {
    cdp__elastic_reading *r = (cdp__elastic_reading *)user;
    cdp__elastic_hash_to(r, r->begin + cdp__min(bytes, r->piece));
}

/* Pieces that move at the same time: one of each source. */
typedef struct cdp__elastic_round {
    cdp_work works[CDP__ELASTIC_SOURCES];
    uint32_t count;
    uint64_t bytes;
} cdp__elastic_round;

/* The length of a piece of an entry, equal on all ranks: large, but each source has two of them. */
CDP__PRIVATE uint64_t cdp__elastic_piece(const cdp__elastic_transfer *t, uint64_t bytes) {
    const uint64_t share = cdp__max(bytes / (2u * t->count), CDP__ELASTIC_LEAST_PIECE);
    return cdp__min(share, CDP__ELASTIC_PIECE);
}

/* Pieces go round the sources; each group has its own order. */
CDP__PRIVATE cdp_status cdp__elastic_round_begin(cdp__elastic_transfer *t,
    const cdp__elastic_reading *r, uint64_t at, cdp__elastic_round *round) {
    const uint64_t bytes = r->bytes - at, most = cdp__elastic_piece(t, r->bytes);
    cdp_status st = CDP_OK;
    uint32_t i;
    memset(round, 0, sizeof *round);
    for (i = 0; st == CDP_OK && i < t->count && round->bytes < bytes; ++i) {
        const uint64_t piece = cdp__min(bytes - round->bytes, most);
        cdp_group *g = t->from[t->turn++ % t->count];
        if (g)
            st = cdp_broadcast_async(g, r->data + at + round->bytes, piece, CDP_DTYPE_U8, 0,
                &round->works[round->count]);
        if (g && st == CDP_OK) ++round->count;
        round->bytes += piece;
    }
    return st;
}

/* The groups of sources fail alone, and a source that has met the end of the epoch before it came
   here sends nothing in them: the end of the group of the epoch ends them. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_wait(
    cdp__elastic_transfer *t, cdp_work work, cdp__elastic_reading *reading) {
    uint32_t i;
    while (cdp__work_wait_arriving(work, CDP__ELASTIC_LOOK_MS, cdp__elastic_arrived, reading)
        == CDP_PENDING) {
        cdp__elastic_attend(t->e, 0);
        if (cdp_poll(t->group, 0) == CDP_OK) continue;
        for (i = 0; i < t->count; ++i)
            if (t->from[i])
                cdp__elastic_break(t->from[i], "the epoch ended before its state moved");
        break;
    }
    return cdp_work_wait(work);
}

/* The round begins at `begin` of the entry. Receivers hash each piece as it comes. */
CDP__PRIVATE cdp_status cdp__elastic_round_end(cdp__elastic_transfer *t, cdp__elastic_round *round,
    cdp__elastic_reading *reading, uint64_t begin) {
    const uint64_t most = cdp__elastic_piece(t, reading->bytes);
    cdp_status st = CDP_OK, one;
    uint32_t i;
    for (i = 0; i < round->count; ++i) {
        reading->begin = begin + i * most;
        reading->piece = cdp__min(begin + round->bytes - reading->begin, most);
        one = cdp__elastic_transfer_wait(t, round->works[i], reading);
        if (st == CDP_OK) st = one;
        if (st == CDP_OK) cdp__elastic_arrived(reading, reading->piece);
    }
    round->count = 0;
    return st;
}

/* A source hashes what it has begun to send while receivers copy it. First it sleeps: a receiver
   that this thread has just woken may be on its core, and would wait there until the hash is
   complete although another core is idle. On a machine of two cores 64 MiB take 10.3 ms with this
   and 11.3 without. Small pieces would be there before the sleep ends. */
CDP__PRIVATE void cdp__elastic_hash_begun(
    cdp__elastic_reading *reading, const cdp__elastic_round *round, uint64_t begun) {
    if (round->count && round->bytes >= CDP__ELASTIC_LONG)
        (void)!cdp_work_wait_for(round->works[0], 1);
    cdp__elastic_hash_to(reading, begun);
}

/* While one round is in flight, the next one has begun. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_entry(
    cdp__elastic_transfer *t, uint8_t *data, uint64_t bytes) {
    cdp__elastic_round rounds[2];
    cdp__elastic_reading reading = {&t->hash[0], data, bytes, 0, 0, 0};
    const bool source = t->d->members[t->rank].source;
    uint64_t begun = 0, ended = 0;
    uint32_t next = 0, k = 0;
    cdp_status st = CDP_OK, one;
    memset(rounds, 0, sizeof rounds);
    while (st == CDP_OK && ended < bytes) {
        while (st == CDP_OK && begun < bytes && next < k + 2) {
            cdp__elastic_round *round = &rounds[next++ % 2];
            st = cdp__elastic_round_begin(t, &reading, begun, round);
            begun += round->bytes;
            if (source) cdp__elastic_hash_begun(&reading, round, begun);
        }
        one = cdp__elastic_round_end(t, &rounds[k % 2], &reading, ended);
        if (st == CDP_OK) st = one;
        ended += rounds[k++ % 2].bytes;
    }
    for (k = 0; k < 2; ++k) {
        one = cdp__elastic_round_end(t, &rounds[k], &reading, ended);
        if (st == CDP_OK) st = one;
    }
    return st;
}

/* Transfers all entries or, if `place` is set, copies them from the separate memory to the
   program's. */
CDP__PRIVATE cdp_status cdp__elastic_each_entry(cdp__elastic_transfer *t, bool place) {
    const cdp_elastic_desc *d = &t->e->desc;
    uint8_t *apart = t->apart;
    uint32_t i;
    cdp_status st = CDP_OK;
    for (i = 0; st == CDP_OK && i < d->entry_count; ++i) {
        const uint64_t bytes = d->entries[i].count * cdp_dtype_size(d->entries[i].dtype);
        uint8_t *data = apart ? apart : (uint8_t *)d->entries[i].data;
        if (!place) st = cdp__elastic_transfer_entry(t, data, bytes);
        if (place && apart && bytes) memcpy(d->entries[i].data, data, (size_t)bytes);
        if (apart) apart += bytes;
    }
    return st;
}

/* Broadcasts bytes from the first source to all receivers. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_bytes(
    cdp__elastic_transfer *t, void *data, uint64_t bytes) {
    cdp__elastic_reading nothing = {NULL, NULL, 0, 0, 0, 0};
    cdp_work work;
    cdp_status st;
    if (!bytes) return CDP_OK;
    st = cdp_broadcast_async(t->from[0], data, bytes, CDP_DTYPE_U8, 0, &work);
    return st == CDP_OK ? cdp__elastic_transfer_wait(t, work, &nothing) : st;
}

CDP__PRIVATE uint64_t cdp__elastic_save(cdp_elastic *e, void *data, uint64_t room) {
    uint64_t bytes;
    cdp__elastic_before_callback(e);
    bytes = e->desc.save(e->desc.user, data, room);
    cdp__elastic_after_callback(e);
    return bytes;
}

/* The small blob comes from the first source: its size, then its bytes. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_blob(cdp__elastic_transfer *t) {
    const cdp_elastic_desc *d = &t->e->desc;
    const bool first = t->rank == t->source[0];
    uint8_t size[8] = {0};
    cdp_status st;
    if (!d->save || !t->from[0]) return CDP_OK;
    if (first) cdp__put_u64(size, cdp__elastic_save(t->e, NULL, 0));
    st = cdp__elastic_transfer_bytes(t, size, sizeof size);
    if (st != CDP_OK) return st;
    t->blob_bytes = cdp__get_u64(size);
    t->blob = (uint8_t *)cdp__alloc(t->e->os, t->blob_bytes + 1);
    if (!t->blob) return cdp__fail_nomem("the blob of save()", t->blob_bytes);
    if (first && cdp__elastic_save(t->e, t->blob, t->blob_bytes) != t->blob_bytes)
        return cdp__fail(
            CDP_ERR_INVALID, "save() of cdp_elastic_desc returned another size in its second call");
    st = cdp__elastic_transfer_bytes(t, t->blob, t->blob_bytes);
    if (st == CDP_OK) t->hash[1] = cdp__hash(CDP__HASH_START, t->blob, t->blob_bytes);
    t->has_blob = st == CDP_OK && !first;
    return st;
}

/* The same bits everywhere, or nothing that came is used. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_compare(cdp__elastic_transfer *t) {
    const uint32_t size = t->d->size, first = t->source[0];
    /* of all ranks, then this rank's own: in a block, which is aligned on every system */
    const uint64_t bytes = (size + 1ull) * sizeof t->hash;
    uint64_t *all = (uint64_t *)cdp__alloc(t->e->os, bytes), *mine;
    uint32_t r;
    cdp_status st;
    if (!all) return cdp__fail_nomem("hashes of all ranks", bytes);
    mine = all + (size_t)2 * size;
    memcpy(mine, t->hash, sizeof t->hash);
    st = cdp_allgather(t->group, mine, all, 2, CDP_DTYPE_U64);
    for (r = 0; st == CDP_OK && r < size; ++r) {
        const bool blob = r == first || !t->d->members[r].source;
        if (all[(size_t)2 * r] == all[(size_t)2 * first]
            && (!blob || all[(size_t)2 * r + 1] == all[(size_t)2 * first + 1]))
            continue;
        st = cdp__fail(CDP_ERR_MISMATCH,
            "epoch %llu: the state of rank %u is not that of rank %u after step %llu, so the "
            "optimizer does not give the same bits on all ranks, or an entry is missing",
            (unsigned long long)t->d->epoch, r, first, (unsigned long long)t->d->step);
    }
    cdp__free(t->e->os, all);
    if (st == CDP_ERR_MISMATCH) { /* all ranks find this; none may leave before the last one has */
        const cdp_error why = *cdp_last_error();
        if (cdp_barrier(t->group) != CDP_OK) *cdp__error_slot() = why;
    }
    return st;
}

/* Under the lock, this rank is recorded as holding the decision's state: if an alarm comes later,
   its arrival says so, and this thread enters the next epoch only after all entries are in place.
   After the barrier all ranks hold the state, so a rank that then leaves takes nothing with it. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_end(cdp__elastic_transfer *t) {
    cdp_elastic *e = t->e;
    const cdp_elastic_desc *d = &e->desc;
    cdp_status st = CDP_OK;
    bool in;
    cdp__elastic_lock(e);
    in = cdp__elastic_hold(&e->place, t->d);
    e->received = e->received || (in && !t->d->members[t->rank].source);
    cdp__elastic_unlock(e);
    if (!in) return cdp__fail(CDP_ERR_ABORTED, "the epoch ended before its state was there");
    (void)cdp__elastic_each_entry(t, true);
    if (t->has_blob) cdp__elastic_before_callback(e);
    if (t->has_blob)
        st = cdp__elastic_returned(e, t->group, "load", d->load(d->user, t->blob, t->blob_bytes));
    return st == CDP_OK ? cdp_barrier(t->group) : st;
}

/* Collective over the group of the epoch. CDP_OK: this rank holds the state of the decision. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_all(
    cdp_elastic *e, cdp_group *group, const cdp__elastic_decision *d, uint32_t rank) {
    cdp__elastic_transfer t;
    uint32_t i;
    cdp_status st;
    if (d->sources == d->size || (!e->desc.entry_count && !e->desc.save)) return CDP_OK;
    memset(&t, 0, sizeof t);
    t.e = e;
    t.group = group;
    t.d = d;
    t.rank = rank;
    t.hash[0] = CDP__HASH_START;
    st = cdp__elastic_transfer_begin(&t);
    if (st == CDP_OK) st = cdp__elastic_transfer_groups(&t);
    if (st == CDP_OK) st = cdp__elastic_each_entry(&t, false);
    if (st == CDP_OK) st = cdp__elastic_transfer_blob(&t);
    if (st == CDP_OK) st = cdp__elastic_transfer_compare(&t);
    if (st == CDP_OK) st = cdp__elastic_transfer_end(&t);
    const cdp_error why = *cdp_last_error();
    cdp__free(e->os, t.blob);
    for (i = 0; i < t.count; ++i)
        if (t.from[i] != group) cdp_group_destroy(t.from[i]);
    cdp__free(e->os, t.apart);
    *cdp__error_slot() = why;
    return st;
}

/* ---- >>elastic/connect: a decision becomes a group ------------------------------------------- */

/* Knows: the members of a decision. Promises: a group is used only after each of its ranks has said
   that it is that member of that epoch; nobody waits for a member that is known to be gone. */

CDP__PRIVATE bool cdp__elastic_still(cdp_elastic *e, uint64_t k) {
    bool still;
    cdp__elastic_lock(e);
    still = e->place.epoch == k && e->place.phase == CDP__ELASTIC_JOINED && !e->stop;
    cdp__elastic_unlock(e);
    return still;
}

CDP__PRIVATE cdp_status cdp__elastic_not_here(cdp_elastic *e, const cdp__elastic_decision *d) {
    char key[CDP__ELASTIC_KEY];
    uint32_t r, missing = 0, first = 0;
    for (r = 0; r < d->size; ++r) {
        bool there;
        cdp__elastic_key(e, key, "e/%llu/here/%u", (unsigned long long)d->epoch, r);
        if (cdp__elastic_there(e, e->store, key, &there) != CDP_OK) return cdp_last_error()->status;
        if (!there && !missing++) first = r;
    }
    e->absent = true;
    return cdp__fail_peer(CDP_ERR_TIMEOUT, first, 0,
        "epoch %llu: %u of its %u ranks, rank %u first, did not call cdp_elastic_next() within "
        "timeout_ms, %u ms",
        (unsigned long long)d->epoch, missing, d->size, first, e->tcp.group.timeout_ms);
}

/* Waits for all members with one request that stays open: a store far away answers after two round
   trips, which may be longer than a slice. CDP_PENDING: it is time to check whether a member is
   gone. */
CDP__PRIVATE cdp_status cdp__elastic_await_all(
    cdp_elastic *e, const cdp__elastic_decision *d, cdp_store_request *rq, uint64_t deadline) {
    const uint64_t slice_ms = e->no_thread ? CDP__ELASTIC_LOOK_MS : CDP__ELASTIC_SLICE_MS;
    uint64_t now = cdp__elastic_now_ns(e);
    const uint64_t until = cdp__min(deadline, now + cdp__elastic_wait_ms(d) * CDP__MS);
    cdp_status st = cdp__elastic_store_status(e, cdp__store_begin(e->store, rq));
    if (st < 0) return st;
    do {
        st = cdp__elastic_answer(e, e->store, rq, cdp__min(until, now + slice_ms * CDP__MS));
        if (st != CDP_PENDING) return st;
        cdp__elastic_attend(e, 0);
        if (!cdp__elastic_still(e, d->epoch))
            st = cdp__fail(
                CDP_ERR_ABORTED, "epoch %llu ended before it began", (unsigned long long)d->epoch);
        now = cdp__elastic_now_ns(e);
    } while (st == CDP_PENDING && now < until);
    e->store->cancel(e->store->self, rq);
    if (st == CDP_PENDING && rq->status == CDP_OK) return CDP_OK; /* all came just now */
    if (rq->status == CDP_OK) cdp_store_request_free(e->store, rq);
    return st;
}

/* All members are inside cdp_elastic_next(). */
CDP__PRIVATE void cdp__elastic_all_present(cdp_elastic *e, uint64_t k) {
    cdp__elastic_lock(e);
    e->present_epoch = k;
    cdp__elastic_unlock(e);
}

/* Says that this process is here, with the value `own`, and waits until the keys of all members
   are there. Meanwhile each of them checks whether others have ended. */
CDP__PRIVATE cdp_status cdp__elastic_gather_with(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, cdp_bytes own, cdp_store_request *rq) {
    const uint64_t deadline = cdp__deadline(e->os, e->tcp.group.timeout_ms);
    const char *const key = (const char *)rq->keys[rank].data;
    cdp__elastic_doubt doubt;
    cdp_status st = cdp__elastic_put(e, e->store, CDP_STORE_SET, key, own.data, own.bytes);
    memset(&doubt, 0, sizeof doubt);
    doubt.rank = rank;
    while (st == CDP_OK) {
        st = cdp__elastic_await_all(e, d, rq, deadline);
        if (st == CDP_OK) cdp__elastic_all_present(e, d->epoch);
        if (st != CDP_PENDING) return st;
        if (cdp__elastic_now_ns(e) >= deadline) return cdp__elastic_not_here(e, d);
        st = cdp__elastic_doubts(e, d, rank, &doubt);
    }
    return st;
}

/* What members do when all of them are inside cdp_elastic_next(); `starting` NULL: nothing. */
CDP__PRIVATE cdp_status cdp__elastic_gathered(
    cdp_elastic *e, struct cdp_starting *starting, cdp_store_request *rq) {
#ifndef CDP_NO_FRAMES
    const cdp_status st = starting ? cdp__starting_give(starting, rq->results) : CDP_OK;
    cdp_store_request_free(e->store, rq);
    return st;
#else
    (void)starting;
    cdp_store_request_free(e->store, rq);
    return CDP_OK;
#endif
}

/* Waits until all members are inside cdp_elastic_next(). `own`: what this one says there, which
   others read; `starting`, if it is not NULL, gets what they say. */
CDP__PRIVATE cdp_status cdp__elastic_gather(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, cdp_bytes own, struct cdp_starting *starting) {
    const uint64_t room = (uint64_t)d->size * (sizeof(cdp_bytes) + CDP__ELASTIC_KEY);
    cdp_store_request rq;
    cdp_bytes *keys = (cdp_bytes *)cdp__alloc(e->os, room);
    char *text = (char *)(keys + d->size);
    uint32_t r;
    cdp_status st;
    if (!keys) return cdp__fail_nomem("the keys of all members", room);
    for (r = 0; r < d->size; ++r, text += CDP__ELASTIC_KEY) {
        cdp__elastic_key(e, text, "e/%llu/here/%u", (unsigned long long)d->epoch, r);
        keys[r].data = text;
        keys[r].bytes = strlen(text);
    }
    memset(&rq, 0, sizeof rq);
    rq.op = starting ? CDP_STORE_MULTI_GET : CDP_STORE_WAIT;
    rq.keys = keys;
    rq.key_count = d->size;
    st = cdp__elastic_gather_with(e, d, rank, own, &rq);
    if (st == CDP_OK) st = cdp__elastic_gathered(e, starting, &rq);
    cdp__free(e->os, keys);
    return st;
}

/* Links to all ranks are opened together in jobs of at most this many ranks. */
#define CDP__ELASTIC_MESH 16u

/* From this round trip on, members meet without a store of rank 0. That takes 20 round trips less;
   but after the loss of a rank the others wait CDP__FAILURE_SETTLE_MS for reports of an earlier
   cause, because no store says which record was the first. */
#define CDP__ELASTIC_FAR_MS 20u

/* True if members find each other in the store of the job: see cdp__elastic_meet_at_once(). The
   same on all of them. */
CDP__PRIVATE bool cdp__elastic_meets_at_once(const cdp__elastic_decision *d) {
#ifdef CDP_NO_FRAMES
    (void)d; /* no start can wait for the others */
    return false;
#else
    return d->size <= CDP__ELASTIC_MESH && cdp__elastic_round_trip_ms(d) >= CDP__ELASTIC_FAR_MS;
#endif
}

/* All ranks exchange ids and epochs, and check that each rank is the member that the decision
   lists. Not needed where the name of a start says both: only who knows that is connected. */
CDP__PRIVATE cdp_status cdp__elastic_greet(
    cdp_elastic *e, cdp_group *group, const cdp__elastic_decision *d, uint32_t rank) {
    const uint32_t each = CDP__ELASTIC_ID_BYTES + 8;
    uint8_t mine[CDP__ELASTIC_ID_BYTES + 8], *all;
    cdp__elastic_hello h;
    uint32_t r;
    cdp_status st;
    all = (uint8_t *)cdp__alloc(e->os, (uint64_t)d->size * each);
    if (!all) return cdp__fail_nomem("greetings of all ranks", (uint64_t)d->size * each);
    memcpy(mine, d->members[rank].id, CDP__ELASTIC_ID_BYTES);
    cdp__put_u64(mine + CDP__ELASTIC_ID_BYTES, d->epoch);
    st = cdp_allgather(group, mine, all, each, CDP_DTYPE_U8);
    for (r = 0; st == CDP_OK && r < d->size; ++r) {
        memcpy(h.id, all + (size_t)r * each, sizeof h.id);
        h.epoch = cdp__get_u64(all + (size_t)r * each + CDP__ELASTIC_ID_BYTES);
        if (!cdp__elastic_fits(d, r, &h))
            st = cdp__fail(CDP_ERR_MISMATCH,
                "epoch %llu: the process that connected as rank %u is not the one that the "
                "decision of the "
                "epoch lists",
                (unsigned long long)d->epoch, r);
    }
    cdp__free(e->os, all);
    return st;
}

/* How this process connects as `rank`. */
CDP__PRIVATE void cdp__elastic_init_desc(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, char job[CDP__ELASTIC_KEY], cdp_tcp_desc *t) {
    *t = e->tcp;
    cdp__elastic_meeting(e, job, d->epoch, 0);
    t->group.rank = rank;
    t->group.world_size = d->size;
    t->store = e->store;
    t->job = job;
    t->connect_all = t->connect_all || d->size <= CDP__ELASTIC_MESH;
    /* All members are here, so connecting takes some round trips. A member that dies now may be
       noticed only at the deadline, so the timeout is short at first, and later ones are longer. */
    t->init_timeout_ms = cdp__elastic_attempt_ms(d, e->failures, e->store_ms);
}

#ifdef CDP_NO_FRAMES
/* No start can wait for the others. */
CDP__PRIVATE cdp_status cdp__elastic_gather_and_init(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t rank, cdp_group **out) {
    char job[CDP__ELASTIC_KEY];
    const cdp_bytes here = {"1", 1};
    cdp_tcp_desc t;
    cdp_status st = cdp__elastic_gather(e, d, rank, here, NULL);
    if (st != CDP_OK) return st;
    cdp__elastic_init_desc(e, d, rank, job, &t);
    ++e->failures;
    st = cdp_init(&t, out);
    if (st == CDP_OK) e->failures = 0;
    return st;
}
#else
/* cdp_init(), which may take longer than settle_ms: without a thread it is interrupted to poll. */
CDP__PRIVATE cdp_status cdp__elastic_init_in_steps(
    cdp_elastic *e, cdp_starting *starting, uint64_t k, cdp_group **out) {
    const uint32_t look_us = e->no_thread ? CDP__ELASTIC_LOOK_MS * 1000 : UINT32_MAX;
    cdp_status st;
    for (;;) {
        st = cdp_init_poll(starting, look_us, out);
        if (st != CDP_PENDING) return st;
        cdp__elastic_attend(e, 0);
        if (cdp__elastic_still(e, k)) continue;
        cdp_init_cancel(starting);
        return cdp__fail(CDP_ERR_ABORTED, "the epoch ended before it began");
    }
}

/* The name of the start of an epoch: who knows it knows the epoch and all its members. */
CDP__PRIVATE void cdp__elastic_start_name(
    const cdp_elastic *e, const cdp__elastic_decision *d, uint8_t out[CDP__JOB_BYTES]) {
    uint64_t h = cdp__hash(CDP__HASH_START, e->job, strlen(e->job));
    uint32_t i, r;
    for (i = 0; i < CDP__JOB_BYTES / 8; ++i) {
        h = cdp__hash(h, &i, sizeof i);
        h = cdp__hash(h, &d->epoch, sizeof d->epoch);
        for (r = 0; r < d->size; ++r)
            h = cdp__hash(h, d->members[r].id, sizeof d->members[r].id);
        cdp__put_u64(out + 8 * i, h);
    }
}

/* Each member says in the store of the job where it listens, and that it is here, in one key: so
   when all are here they connect, and need no other store to meet. The time to connect begins
   then. */
CDP__PRIVATE cdp_status cdp__elastic_meet_at_once(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, const cdp_tcp_desc *t, cdp_starting **starting) {
    uint8_t name[CDP__JOB_BYTES];
    cdp_bytes own;
    cdp_status st;
    cdp__elastic_start_name(e, d, name);
    st = cdp__starting_given(t, name, &own, starting);
    if (st != CDP_OK) ++e->failures;
    return st == CDP_OK ? cdp__elastic_gather(e, d, rank, own, *starting) : st;
}

/* Large jobs, and near ones, meet in a store of rank 0. It publishes before it waits for the
   others, who read that as soon as all are here: the time to connect begins then. */
CDP__PRIVATE cdp_status cdp__elastic_meet_in_store(cdp_elastic *e, const cdp__elastic_decision *d,
    uint32_t rank, const cdp_tcp_desc *t, cdp_starting **starting) {
    const cdp_bytes here = {"1", 1};
    cdp_status st = CDP_OK;
    if (rank == 0) st = cdp_init_start(t, starting);
    if (st == CDP_OK && rank == 0) st = cdp__starting_publish(*starting);
    if (st != CDP_OK) ++e->failures;
    if (st == CDP_OK) st = cdp__elastic_gather(e, d, rank, here, NULL);
    if (st == CDP_OK && rank != 0) st = cdp_init_start(t, starting);
    if (st == CDP_OK && rank == 0) cdp__starting_anew(*starting);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_gather_and_init(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t rank, cdp_group **out) {
    char job[CDP__ELASTIC_KEY];
    cdp_tcp_desc t;
    cdp_starting *starting = NULL;
    cdp_status st;
    cdp__elastic_init_desc(e, d, rank, job, &t);
    if (cdp__elastic_meets_at_once(d))
        st = cdp__elastic_meet_at_once(e, d, rank, &t, &starting);
    else
        st = cdp__elastic_meet_in_store(e, d, rank, &t, &starting);
    if (st != CDP_OK) {
        const cdp_error why = *cdp_last_error();
        cdp_init_cancel(starting);
        *cdp__error_slot() = why;
        return st;
    }
    ++e->failures;
    st = cdp__elastic_init_in_steps(e, starting, d->epoch, out);
    if (st == CDP_OK) e->failures = 0;
    return st;
}
#endif

/* Removes all keys of an epoch but its decision. */
CDP__PRIVATE cdp_status cdp__elastic_tidy_epoch(cdp_elastic *e, uint64_t k) {
    static const char *const names[3] = {"alarm", "in", "ask"};
    const uint64_t room = CDP__ELASTIC_TOGETHER * sizeof(cdp__elastic_get);
    const unsigned long long epoch = (unsigned long long)k;
    cdp__elastic_get *g;
    cdp__elastic_decision d;
    uint32_t i = 0, n;
    cdp_status st = cdp__elastic_read_trial(e, e->store, k, &d);
    if (st == CDP_OK && d.members) st = cdp__elastic_tidy_trial(e, k, d.epoch);
    cdp__free(e->os, d.members);
    if (st != CDP_OK) return st;
    st = cdp__elastic_read_decision(e, e->store, k, &d);
    if (st != CDP_OK) return st;
    g = (cdp__elastic_get *)cdp__alloc_zero(e->os, room);
    if (!g) st = cdp__fail_nomem("requests to the store", room);
    while (st == CDP_OK && i < 4 + d.size) {
        for (n = 0; n < CDP__ELASTIC_TOGETHER && i < 4 + d.size; ++i, ++n) {
            g[n].removes = true;
            if (i < 3)
                cdp__elastic_key(e, g[n].key, "e/%llu/%s", epoch, names[i]);
            else if (i == 3)
                cdp__elastic_meeting_key(e, g[n].key, k, 0);
            else
                cdp__elastic_key(e, g[n].key, "e/%llu/here/%u", epoch, i - 4);
        }
        st = cdp__elastic_get_all(e, e->store, g, n);
    }
    cdp__free(e->os, g);
    cdp__free(e->os, d.members);
    return st;
}

/* Rank 0 removes keys that no rank needs any more: those of the epoch before last, and those that
   earlier epochs had no time to remove. */
CDP__PRIVATE cdp_status cdp__elastic_tidy(cdp_elastic *e, const cdp__elastic_decision *d) {
    char key[CDP__ELASTIC_KEY], text[24];
    uint64_t k = 0;
    cdp_status st = d->epoch > 2 ? cdp__elastic_hint(e, &k) : CDP_OK;
    for (k = k > 2 ? k - 1 : 1; st == CDP_OK && k + 2 <= d->epoch; ++k)
        st = cdp__elastic_tidy_epoch(e, k);
    if (st != CDP_OK) return st;
    cdp__format(text, sizeof text, "%llu", (unsigned long long)d->epoch);
    cdp__elastic_key(e, key, "e/now");
    return cdp__elastic_put(e, e->store, CDP_STORE_SET, key, text, strlen(text));
}

#define CDP__ELASTIC_REHEARSALS 2u

/* A newcomer that was tried calls connected() beside the running epoch, with a group of itself
   alone: what takes long when it is done first, such as to load a library, delays nobody then. If
   it takes longer than the members would wait for it, also once more, this process stays out. */
CDP__PRIVATE cdp_status cdp__elastic_rehearse(cdp_elastic *e) {
    const uint32_t most_ms = e->tcp.group.timeout_ms;
    cdp_group_desc alone = e->tcp.group;
    cdp_elastic_now now;
    uint64_t ms = 0, begun;
    uint32_t i;
    cdp_status st = CDP_OK;
    alone.rank = 0;
    alone.world_size = 1;
    for (i = 0; st == CDP_OK && i < CDP__ELASTIC_REHEARSALS && (!i || ms > most_ms); ++i) {
        cdp_group *const before = e->middle;
        st = cdp_group_create(&alone, &e->middle);
        if (st != CDP_OK) e->middle = before; /* connected() was called with that one */
        if (st != CDP_OK) return st;
        begun = cdp__elastic_now_ns(e);
        memset(&now, 0, sizeof now);
        now.group = e->middle;
        now.size = 1;
        now.old_rank = CDP__ELASTIC_NEW;
        now.cause = "this process was tried, and will be taken in";
        st =
            cdp__elastic_returned(e, e->middle, "connected", e->desc.connected(e->desc.user, &now));
        ms = (cdp__elastic_now_ns(e) - begun) / CDP__MS;
        cdp_group_destroy(before);
    }
    if (st != CDP_OK || ms <= most_ms) return st;
    return cdp__fail(CDP_ERR_TIMEOUT,
        "connected() of cdp_elastic_desc took %llu ms, twice, before this process was taken in, "
        "and the members wait for timeout_ms, %u ms: let it do less, or raise timeout_ms of "
        "tcp->group on all ranks",
        (unsigned long long)ms, most_ms);
}

/* The group is connected: calls connected() of the program, and transfers state. */
CDP__PRIVATE cdp_status cdp__elastic_fill(
    cdp_elastic *e, cdp_group *group, const cdp__elastic_decision *d, uint32_t rank) {
    cdp_elastic_now now;
    cdp_status st = CDP_OK;
    if (e->desc.connected) {
        memset(&now, 0, sizeof now);
        now.group = group;
        now.epoch = d->epoch;
        now.step = d->step;
        now.samples = d->samples;
        now.rank = rank;
        now.size = d->size;
        now.old_rank = d->members[rank].old_rank;
        now.cause = d->cause;
        e->shown = true;
        cdp__elastic_before_callback(e);
        st = cdp__elastic_returned(e, group, "connected", e->desc.connected(e->desc.user, &now));
    }
    return st == CDP_OK ? cdp__elastic_transfer_all(e, group, d, rank) : st;
}

CDP__PRIVATE cdp_status cdp__elastic_connect(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t rank) {
    const uint64_t begun = cdp__elastic_now_ns(e);
    uint64_t connected;
    cdp_group *group = NULL;
    bool in;
    cdp_status st;
    e->absent = false;
    st = cdp__elastic_gather_and_init(e, d, rank, &group);
    if (st != CDP_OK) return st;
    cdp__elastic_lock(e);
    in = e->place.epoch == d->epoch && e->place.phase == CDP__ELASTIC_JOINED;
    if (in) e->group = group;
    cdp__elastic_unlock(e);
    if (!in) {
        cdp_group_destroy(group);
        return cdp__fail(CDP_ERR_ABORTED, "the epoch ended before it began");
    }
    if (!cdp__elastic_meets_at_once(d)) st = cdp__elastic_greet(e, group, d, rank);
    connected = cdp__elastic_now_ns(e);
    if (st == CDP_OK) st = cdp__elastic_fill(e, group, d, rank);
    if (st == CDP_OK && rank == 0) st = cdp__elastic_tidy(e, d);
    if (st != CDP_OK) return st;
    cdp__elastic_lock(e);
    in = cdp__elastic_run(&e->place, d);
    if (in) {
        cdp__elastic_past *p = &e->past[(e->pasts - 1) % CDP__ELASTIC_PASTS];
        p->connect_ns = connected - begun;
        p->transfer_ns = cdp__elastic_now_ns(e) - connected;
        e->changed = true;
        e->received = e->received || !d->members[rank].source;
        e->epoch_ns = cdp__elastic_now_ns(e);
        memcpy(e->cause, d->cause, sizeof e->cause);
    }
    cdp__elastic_unlock(e);
    return in ? CDP_OK : cdp__fail(CDP_ERR_ABORTED, "the epoch ended before its first step");
}

/* ---- >>elastic/entry: from a ticket to the first epoch of a process -------------------------- */

/* Knows: settings as text, tickets. Promises: a process whose settings differ never gets a ticket;
   one that gives up says so. */

/* What groups compare when they connect, or in their first operation: a newcomer that differs would
   end that epoch. */
CDP__PRIVATE void cdp__elastic_group_settings(const cdp_tcp_desc *tcp, cdp__text *t) {
    cdp_group_desc g = tcp->group;
    uint32_t i;
    cdp__group_desc_defaults(&g);
#ifdef CDP_NO_FRAMES
    cdp__text_add(t, "newcomers: not tried\n");
#else
    cdp__text_add(t, "newcomers: tried\n");
#endif
    cdp__text_add(t, "version %u of messages, %s-endian\njob_key: %s\nmac: %s\nconnections %u\n",
        (unsigned)CDP_WIRE_VERSION, cdp__byte_order() == CDP__HEAD_LITTLE_ENDIAN ? "little" : "big",
        tcp->job_key && tcp->job_key[0] ? "set" : "not set", tcp->mac ? "on" : "off",
        cdp__def(tcp->connections, 1));
    cdp__text_add(t, "small_bytes %llu\npiece_bytes %llu\nreproducible: %s\n%u choices\n",
        (unsigned long long)g.small_bytes, (unsigned long long)g.piece_bytes,
        g.reproducible ? "on" : "off", tcp->group.choice_count);
    for (i = 0; i < tcp->group.choice_count; ++i) {
        const cdp_choice *c = &tcp->group.choices[i];
        cdp__text_add(t, "choice %u: %u %s, %llu bytes, %u ranks\n", i, (unsigned)c->kind,
            c->algorithm ? c->algorithm : "", (unsigned long long)c->max_bytes, c->max_ranks);
    }
}

/* What must be equal on all ranks, a line each. Returns the length with its zero; writes as much as
   there is room for; `out` may be NULL. */
CDP__PRIVATE uint64_t cdp__elastic_settings(const cdp_elastic *e, char *out, uint64_t room) {
    const cdp_elastic_desc *d = &e->desc;
    cdp__text t = cdp__text_of(out, room);
    uint32_t i;
    cdp__text_add(&t, "min_ranks %u\nmax_ranks %u\nbatch %u\nsave and load: %s\n", d->min_ranks,
        d->max_ranks, d->batch, d->save ? "set" : "not set");
    cdp__elastic_group_settings(&e->tcp, &t);
    for (i = 0; i < d->entry_count; ++i) {
        const cdp_entry *n = &d->entries[i];
        cdp__text_add(&t, "entry %u: %s, %llu x %s\n", i, n->name, (unsigned long long)n->count,
            cdp_dtype_name(n->dtype));
    }
    cdp__text_add(&t, "%u entries\n", d->entry_count);
    return cdp__text_end(&t) + 1;
}

CDP__PRIVATE uint32_t cdp__elastic_line(const char *text) {
    uint32_t n = 0;
    while (text[n] && text[n] != '\n' && n < 150)
        ++n;
    return n;
}

/* The first line that differs. */
CDP__PRIVATE cdp_status cdp__elastic_differs(const char *mine, const char *theirs) {
    char a[160], b[160];
    for (;;) {
        const uint32_t n = cdp__elastic_line(mine), m = cdp__elastic_line(theirs);
        cdp__format(a, n + 1u, "%s", mine);
        cdp__format(b, m + 1u, "%s", theirs);
        if (strcmp(a, b) != 0 || !mine[n] || !theirs[m]) break;
        mine += n + (mine[n] == '\n');
        theirs += m + (theirs[m] == '\n');
    }
    return cdp__fail(CDP_ERR_MISMATCH,
        "cdp_elastic_create: the settings of this process are not those of the job: here \"%s\", "
        "there \"%s\"",
        a, b);
}

/* What a process reads of a job before it writes its ticket; the first one claims the settings. */
enum {
    CDP__ELASTIC_SETTINGS,
    CDP__ELASTIC_NOW,   /* the newest epoch that has begun, as its rank 0 said */
    CDP__ELASTIC_FIRST, /* the decision that made the first epoch */
    CDP__ELASTIC_USED,  /* this process has ended: its id was used before */
    CDP__ELASTIC_BEFORE
};

/* `mine`: the settings of this process. */
CDP__PRIVATE cdp_status cdp__elastic_read_before(
    cdp_elastic *e, const char *mine, cdp__elastic_get g[CDP__ELASTIC_BEFORE]) {
    cdp_status st;
    memset(g, 0, CDP__ELASTIC_BEFORE * sizeof *g);
    cdp__elastic_key(e, g[CDP__ELASTIC_SETTINGS].key, "settings");
    g[CDP__ELASTIC_SETTINGS].claim = mine;
    g[CDP__ELASTIC_SETTINGS].claim_bytes = strlen(mine);
    cdp__elastic_key(e, g[CDP__ELASTIC_NOW].key, "e/now");
    cdp__elastic_key(e, g[CDP__ELASTIC_FIRST].key, "e/1");
    cdp__elastic_key(e, g[CDP__ELASTIC_USED].key, "gone/%s", e->id);
    st = cdp__elastic_get_all(e, e->store, g, CDP__ELASTIC_BEFORE);
    if (st == CDP_OK
        && (g->bytes != strlen(mine) || memcmp(mine, g->data, (size_t)g->bytes) != 0)) {
        st = cdp__elastic_differs(mine, g->data ? (const char *)g->data : "");
        cdp__elastic_get_free(e->store, g, CDP__ELASTIC_BEFORE);
    }
    return st;
}

#define CDP__ELASTIC_LEAST_TRIPS 10u /* to the store: the least timeout_ms */

/* Connecting takes the round trips that it needs, but an operation or a request to the store has
   timeout_ms. */
CDP__PRIVATE CDP__COLD void cdp__elastic_warn_of_time(const cdp_elastic *e) {
    const uint32_t ms = (uint32_t)cdp__min(e->round_trip_ns / CDP__MS, CDP__ELASTIC_MOST_TRIP_MS);
    const uint32_t least_ms = CDP__ELASTIC_LEAST_TRIPS * ms;
    if (e->tcp.group.timeout_ms >= least_ms) return;
    cdp__log(&e->tcp.group.logger, CDP_LOG_WARN, -1,
        "cdp_elastic_create: timeout_ms of tcp->group is %u ms, and a round trip to the store "
        "takes "
        "%u ms: operations may time out although nobody has died; make it at least %u",
        e->tcp.group.timeout_ms, ms, least_ms);
}

/* Adds a ticket of this process. */
CDP__PRIVATE cdp_status cdp__elastic_hand_in_as(cdp_elastic *e, cdp__elastic_stage stage) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_arrival a;
    memset(&a, 0, sizeof a);
    a.asks = stage == CDP__ELASTIC_ASKS;
    a.tried = stage == CDP__ELASTIC_TRIED;
    e->stage = (uint8_t)stage;
    memcpy(a.id, e->place.id, sizeof a.id);
    a.step = e->desc.step;
    a.samples = e->desc.samples;
    a.rank = CDP__ELASTIC_NEW;
    a.has_state = true;
    a.round_trip_ms = (uint32_t)cdp__min(e->round_trip_ns / CDP__MS, CDP__ELASTIC_MOST_TRIP_MS);
    cdp__elastic_key(e, key, "join/in");
    return cdp__elastic_append(e, e->store, key, &a);
}

CDP__PRIVATE cdp_status cdp__elastic_hand_in(cdp_elastic *e) {
    return cdp__elastic_hand_in_as(e, CDP__ELASTIC_HANDED_IN);
}

/* *next becomes *d. True if this process is in it. */
CDP__PRIVATE bool cdp__elastic_follow(
    cdp_elastic *e, cdp__elastic_decision *d, const cdp__elastic_decision *next) {
    bool in;
    cdp__free(e->os, d->members);
    *d = *next;
    cdp__elastic_lock(e);
    in = cdp__elastic_learn(&e->place, d);
    cdp__elastic_unlock(e);
    return in;
}

/* The newest decision from that of epoch k on, or the one that this process is in; its members are
   allocated. *d stays as it is if there is none. */
CDP__PRIVATE cdp_status cdp__elastic_newest(cdp_elastic *e, cdp__elastic_decision *d, uint64_t k) {
    cdp__elastic_decision next;
    cdp_status st = CDP_OK;
    for (; st == CDP_OK; ++k) {
        st = cdp__elastic_read_decision(e, e->store, k, &next);
        if (st != CDP_OK || !next.members) break;
        if (cdp__elastic_follow(e, d, &next)) break;
    }
    return st;
}

/* What a process that waits for its first epoch reads again and again. */
enum {
    CDP__ELASTIC_FINAL,                        /* the job is over */
    CDP__ELASTIC_NEXT,                         /* the decision after the newest one */
    CDP__ELASTIC_TICKETS,                      /* before the first epoch */
    CDP__ELASTIC_QUERY = CDP__ELASTIC_TICKETS, /* after it: the question whether a member lives */
    CDP__ELASTIC_KNOWN, /* before it, of each ticket that is known: whether its process is gone */
    CDP__ELASTIC_MOST_KNOWN = 12, /* so all fit into one batch of requests */
    CDP__ELASTIC_ENTERS = CDP__ELASTIC_KNOWN + CDP__ELASTIC_MOST_KNOWN
};

/* What such a process has seen. */
typedef struct cdp__elastic_entry {
    uint32_t ticket_count; /* before the first epoch */
    uint64_t since_ns;     /* since when there are so many */
    uint8_t known[CDP__ELASTIC_MOST_KNOWN][CDP__ELASTIC_ID_BYTES]; /* theirs, if they fit in */
    uint32_t dead; /* members that are known to be gone */
    cdp__elastic_silence silence;
} cdp__elastic_entry;

/* How many of the processes are known that have tickets. */
CDP__PRIVATE uint32_t cdp__elastic_known(const cdp__elastic_entry *n) {
    return n->ticket_count <= CDP__ELASTIC_MOST_KNOWN ? n->ticket_count : 0;
}

/* Fills in which keys are read before the first epoch, from CDP__ELASTIC_TICKETS on. Returns where
   they end. */
CDP__PRIVATE uint32_t cdp__elastic_ask_tickets(
    const cdp_elastic *e, const cdp__elastic_entry *n, cdp__elastic_get *g) {
    const uint32_t end = CDP__ELASTIC_KNOWN + cdp__elastic_known(n);
    char hex[2 * CDP__ELASTIC_ID_BYTES + 1];
    uint32_t i;
    cdp__elastic_key(e, g[CDP__ELASTIC_TICKETS].key, "join/in");
    for (i = CDP__ELASTIC_KNOWN; i < end; ++i) {
        cdp__elastic_hex(n->known[i - CDP__ELASTIC_KNOWN], hex);
        cdp__elastic_key(e, g[i].key, "gone/%s", hex);
    }
    return end;
}

/* The tickets are those of the last poll, so it is known which processes are gone; or else is asked
   now, if it would matter. */
CDP__PRIVATE cdp_status cdp__elastic_who_is_gone(cdp_elastic *e, const cdp__elastic_get *g,
    cdp__elastic_entry *n, cdp__elastic_ticket *tickets, const cdp__elastic_view *v,
    uint64_t quiet_ms) {
    const uint32_t count = v->ticket_count;
    uint32_t i;
    if (count == n->ticket_count && cdp__elastic_known(n)) {
        for (i = 0; i < count; ++i)
            tickets[i].ended = tickets[i].ended || g[CDP__ELASTIC_KNOWN + i].data;
        return CDP_OK;
    }
    n->ticket_count = count;
    for (i = 0; i < cdp__elastic_known(n); ++i)
        memcpy(n->known[i], tickets[i].id, sizeof n->known[i]);
    if (cdp__elastic_known(n) && !cdp__elastic_founds(v, e->place.id, quiet_ms, e->desc.settle_ms))
        return CDP_OK;
    return cdp__elastic_have_ended(
        e, e->store, tickets->id, sizeof *tickets, &tickets->ended, sizeof *tickets, count);
}

/* No epoch yet, and `g` holds the tickets: the oldest one leads. *won: the decision that makes the
   first epoch, if this process has proposed one; its members are allocated. */
CDP__PRIVATE cdp_status cdp__elastic_found_first(
    cdp_elastic *e, const cdp__elastic_get *g, cdp__elastic_entry *n, cdp__elastic_decision *won) {
    const cdp__elastic_get *const in = &g[CDP__ELASTIC_TICKETS];
    cdp__elastic_decision none;
    cdp__elastic_ticket *tickets;
    cdp__elastic_verdict verdict;
    cdp__elastic_view v;
    uint64_t quiet_ms;
    cdp_status st;
    memset(&none, 0, sizeof none);
    memset(won, 0, sizeof *won);
    memset(&v, 0, sizeof v);
    v.old = &none;
    st = cdp__elastic_tickets_in(e, 0, in->data, in->bytes, &tickets, &v.ticket_count);
    if (v.ticket_count != n->ticket_count) n->since_ns = cdp__elastic_now_ns(e);
    v.tickets = tickets;
    v.min_ranks = e->desc.min_ranks;
    v.max_ranks = e->desc.max_ranks;
    quiet_ms = (cdp__elastic_now_ns(e) - n->since_ns) / CDP__MS;
    if (st == CDP_OK) st = cdp__elastic_who_is_gone(e, g, n, tickets, &v, quiet_ms);
    if (st == CDP_OK && cdp__elastic_founds(&v, e->place.id, quiet_ms, e->desc.settle_ms))
        st = cdp__elastic_try(e, e->store, &v, NULL, &verdict, won);
    cdp__free(e->os, tickets);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_nobody(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t tickets) {
    if (!d->epoch)
        return cdp__fail(CDP_ERR_TIMEOUT,
            "cdp_elastic_create: %u processes came within join_ms, %u ms, and min_ranks is %u",
            tickets, e->desc.join_ms, e->desc.min_ranks);
    return cdp__fail(CDP_ERR_TIMEOUT,
        "cdp_elastic_create: epoch %llu of %u ranks (max_ranks %u) did not take this process in "
        "within join_ms, %u ms%s%s",
        (unsigned long long)d->epoch, d->size, e->desc.max_ranks, e->desc.join_ms,
        e->stage == CDP__ELASTIC_ASKS && e->untried[0] ? ": it and the ranks cannot connect: " : "",
        e->stage == CDP__ELASTIC_ASKS ? e->untried : "");
}

/* Called before this process writes its ticket: checks that its settings, the text `mine`, are of
   the job, and that its id was not used before. A launcher of machines has other settings. */
CDP__PRIVATE cdp_status cdp__elastic_fresh_as(
    cdp_elastic *e, const char *mine, cdp__elastic_decision *d) {
    cdp__elastic_get g[CDP__ELASTIC_BEFORE];
    cdp__elastic_decision first;
    bool ended;
    uint64_t said;
    cdp_status st = cdp__elastic_read_before(e, mine, g);
    if (st != CDP_OK) return st;
    ended = g[CDP__ELASTIC_USED].data != NULL;
    said = cdp__elastic_number((const char *)g[CDP__ELASTIC_NOW].data);
    st = cdp__elastic_decision_of(
        e, 1, g[CDP__ELASTIC_FIRST].data, g[CDP__ELASTIC_FIRST].bytes, &first);
    cdp__elastic_get_free(e->store, g, CDP__ELASTIC_BEFORE);
    if (st == CDP_OK && first.members && !cdp__elastic_follow(e, d, &first))
        st = cdp__elastic_newest(e, d, cdp__max(said, 2));
    if (st == CDP_OK && (ended || e->place.epoch))
        st = cdp__fail(CDP_ERR_INVALID,
            "cdp_elastic_create: the id %s was used before in the job \"%s\"; each process needs "
            "one of its own",
            e->id, e->job);
    return st;
}

CDP__PRIVATE cdp_status cdp__elastic_fresh(cdp_elastic *e, cdp__elastic_decision *d) {
    const uint64_t room = cdp__elastic_settings(e, NULL, 0);
    char *mine = (char *)cdp__alloc(e->os, room);
    cdp_status st;
    if (!mine) return cdp__fail_nomem("the settings as text", room);
    (void)cdp__elastic_settings(e, mine, room);
    st = cdp__elastic_fresh_as(e, mine, d);
    cdp__free(e->os, mine);
    return st;
}

/* An error if all members of the epoch have ended, because a newcomer would wait for them in vain.
   The first *dead members are known to be gone; each call continues after them, until it finds a
   live one. */
CDP__PRIVATE cdp_status cdp__elastic_anybody(
    cdp_elastic *e, const cdp__elastic_decision *d, uint32_t *dead) {
    bool ended = true, over = false;
    char key[CDP__ELASTIC_KEY];
    cdp_status st = CDP_OK;
    while (st == CDP_OK && ended && *dead < d->size) {
        st = cdp__elastic_has_ended(e, e->store, d->members[*dead].id, &ended);
        *dead += st == CDP_OK && ended;
    }
    if (st != CDP_OK || !d->size || *dead < d->size) return st;
    cdp__elastic_key(e, key, "final"); /* written before members end in good order */
    st = cdp__elastic_there(e, e->store, key, &over);
    if (st != CDP_OK || over) return st;
    cdp__elastic_key(e, key, "e/%llu", (unsigned long long)(d->epoch + 1));
    st = cdp__elastic_there(e, e->store, key, &over);
    if (st != CDP_OK || over) return st;
    return cdp__fail(CDP_ERR_STATE,
        "cdp_elastic_create: all %u ranks of epoch %llu have ended, so nobody has the state of the "
        "job \"%s\": start again from a checkpoint, under another name or with another store",
        d->size, (unsigned long long)d->epoch, e->job);
}

/* One poll: *d is the newest decision then. */
CDP__PRIVATE cdp_status cdp__elastic_enter_look(
    cdp_elastic *e, cdp__elastic_decision *d, cdp__elastic_entry *n) {
    const uint64_t before = d->epoch;
    char asked[sizeof n->silence.asked] = "";
    cdp__elastic_get g[CDP__ELASTIC_ENTERS];
    uint32_t end = CDP__ELASTIC_QUERY + 1;
    cdp__elastic_decision next;
    cdp_status st;
    memset(g, 0, sizeof g);
    cdp__elastic_key(e, g[CDP__ELASTIC_FINAL].key, "final");
    cdp__elastic_key(e, g[CDP__ELASTIC_NEXT].key, "e/%llu", (unsigned long long)(before + 1));
    if (before)
        cdp__elastic_ask_key(e, g[CDP__ELASTIC_QUERY].key);
    else
        end = cdp__elastic_ask_tickets(e, n, g);
    st = cdp__elastic_get_all(e, e->store, g, end);
    if (st != CDP_OK) return st;
    if (before && g[CDP__ELASTIC_QUERY].data)
        cdp__text_foreign(
            asked, sizeof asked, g[CDP__ELASTIC_QUERY].data, g[CDP__ELASTIC_QUERY].bytes);
    if (g[CDP__ELASTIC_FINAL].data)
        st = cdp__fail(CDP_ERR_STATE, "cdp_elastic_create: the job \"%s\" is over", e->job);
    else
        st = cdp__elastic_decision_of(
            e, before + 1, g[CDP__ELASTIC_NEXT].data, g[CDP__ELASTIC_NEXT].bytes, &next);
    if (st == CDP_OK && !before && !next.members) st = cdp__elastic_found_first(e, g, n, &next);
    cdp__elastic_get_free(e->store, g, end);
    if (st == CDP_OK && next.members && !cdp__elastic_follow(e, d, &next))
        st = cdp__elastic_newest(e, d, d->epoch + 1);
    if (d->epoch != before) {
        n->dead = 0;
        memset(&n->silence, 0, sizeof n->silence);
    }
    if (st != CDP_OK || !before || e->place.phase == CDP__ELASTIC_JOINED) return st;
    st = cdp__elastic_anybody(e, d, &n->dead);
    if (st == CDP_OK && d->epoch == before) st = cdp__elastic_silent(e, d, &n->silence, asked);
    return st;
}

/* How long to wait for a decision before the next poll: the answer takes a round trip. Who waits
   until nobody has come for settle_ms polls then. */
CDP__PRIVATE uint64_t cdp__elastic_pause_ms(
    const cdp_elastic *e, uint64_t epoch, uint64_t since_ns) {
    const uint64_t quiet_ms = (cdp__elastic_now_ns(e) - since_ns) / CDP__MS;
    const uint64_t ms = CDP__ELASTIC_LOOK_MS * 5 + e->round_trip_ns / CDP__MS;
    if (epoch || quiet_ms >= e->desc.settle_ms) return ms;
    return cdp__min(ms, e->desc.settle_ms - quiet_ms + 1);
}

/* Hands in what this process is due: where a job runs, it asks to be tried first. */
CDP__PRIVATE cdp_status cdp__elastic_apply(cdp_elastic *e, cdp__elastic_decision *d) {
    cdp__elastic_stage next = CDP__ELASTIC_HANDED_IN;
    cdp_status st = CDP_OK;
    if (e->stage == CDP__ELASTIC_HANDED_IN) return CDP_OK;
    if (e->stage == CDP__ELASTIC_STRANGER) {
        st = cdp__elastic_fresh(e, d);
        e->handed_in = st == CDP_OK;
        if (st == CDP_OK) cdp__elastic_warn_of_time(e);
#ifndef CDP_NO_FRAMES
        if (d->epoch) next = CDP__ELASTIC_ASKS;
#endif
    }
    return st == CDP_OK ? cdp__elastic_hand_in_as(e, next) : st;
}

#define CDP__ELASTIC_FEW_MS 500u

/* Whether fewer than min_ranks members of the epoch live: when it has ended, they wait for
   newcomers. */
CDP__PRIVATE cdp_status cdp__elastic_too_few(
    cdp_elastic *e, const cdp__elastic_decision *d, bool *few) {
    bool *ended;
    uint32_t r, live = 0;
    cdp_status st;
    *few = d->size < e->desc.min_ranks;
    if (*few || !d->size) return CDP_OK;
    ended = (bool *)cdp__alloc_zero(e->os, d->size * sizeof *ended);
    if (!ended) return cdp__fail_nomem("a list of members", d->size);
    st = cdp__elastic_have_ended(
        e, e->store, d->members[0].id, sizeof *d->members, ended, sizeof *ended, d->size);
    for (r = 0; r < d->size; ++r)
        live += !ended[r];
    cdp__free(e->os, ended);
    *few = live < e->desc.min_ranks;
    return st;
}

/* One look of a process that asks to be tried beside epoch d->epoch. If that has ended, its members
   may wait for newcomers, and nobody is tried: it is to be taken in at once if too few of them
   live, or if there is no next epoch for so long. */
CDP__PRIVATE cdp_status cdp__elastic_ask_again(
    cdp_elastic *e, const cdp__elastic_decision *d, uint64_t *ended_ns) {
    const uint64_t now = cdp__elastic_now_ns(e);
    char key[CDP__ELASTIC_KEY];
    bool ended = false, few = false;
    cdp_status st = CDP_OK;
    if (e->stage != CDP__ELASTIC_ASKS) return CDP_OK;
#ifndef CDP_NO_FRAMES
    st = cdp__elastic_join_trial(e, d->epoch);
    if (st == CDP_OK && e->stage == CDP__ELASTIC_TRIED)
        return cdp__elastic_hand_in_as(e, CDP__ELASTIC_TRIED);
#endif
    cdp__elastic_key(e, key, "e/%llu/alarm", (unsigned long long)d->epoch);
    if (st == CDP_OK) st = cdp__elastic_there(e, e->store, key, &ended);
    if (!ended) *ended_ns = 0;
    if (ended && !*ended_ns) *ended_ns = now;
    if (st != CDP_OK || !ended) return st;
    st = cdp__elastic_too_few(e, d, &few);
    if (st != CDP_OK || (!few && now - *ended_ns < CDP__ELASTIC_FEW_MS * CDP__MS)) return st;
    return cdp__elastic_hand_in(e);
}

/* Waits until a decision lists this process as a member, or until it was tried: then it goes on at
   the next call. */
CDP__PRIVATE cdp_status cdp__elastic_enter(cdp_elastic *e) {
    const uint64_t deadline = cdp__deadline(e->os, e->desc.join_ms);
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_decision d;
    cdp__elastic_entry n;
    uint64_t ended_ns = 0;
    cdp_status st = CDP_OK;
    memset(&d, 0, sizeof d);
    memset(&n, 0, sizeof n);
    n.since_ns = cdp__elastic_now_ns(e);
    st = cdp__elastic_apply(e, &d);
    while (st == CDP_OK) {
        const uint64_t before = d.epoch;
        st = cdp__elastic_enter_look(e, &d, &n);
        if (st != CDP_OK) break;
        if (e->place.phase == CDP__ELASTIC_JOINED) {
            cdp__elastic_lock(e);
            cdp__elastic_adopt(e, &d);
            cdp__elastic_unlock(e);
            return CDP_OK;
        }
        if (d.epoch != before) ended_ns = 0;
        if (d.epoch) st = cdp__elastic_ask_again(e, &d, &ended_ns);
        if (e->stage == CDP__ELASTIC_TRIED) break;
        if (st == CDP_OK && cdp__elastic_now_ns(e) >= deadline)
            st = cdp__elastic_nobody(e, &d, n.ticket_count);
        cdp__elastic_key(e, key, "e/%llu", (unsigned long long)(d.epoch + 1));
        if (st == CDP_OK)
            st =
                cdp__elastic_await(e, e->store, key, cdp__elastic_pause_ms(e, d.epoch, n.since_ns));
        if (st == CDP_PENDING) st = CDP_OK;
    }
    cdp__free(e->os, d.members);
    return st;
}

/* This process is in an epoch: from now on it looks for the end of that. */
CDP__PRIVATE cdp_status cdp__elastic_attends(cdp_elastic *e) {
    e->looked_ns = cdp__elastic_now_ns(e);
    if (e->no_thread) return CDP_OK;
    e->thread = e->os->threads.start(e->os, cdp__elastic_main, e);
    if (e->thread) return CDP_OK;
    return cdp__fail(
        CDP_ERR_IO, "cannot start the thread of this cdp_elastic; set no_thread of tcp->group");
}

/* ---- >>elastic/create: making and ending a member -------------------------------------------- */

/* Knows: the desc. Promises: nothing is left behind where creation fails. */

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

/* ---- >>elastic/calls: steps, and what ends them ---------------------------------------------- */

/* Knows: the place of this process and its group. Promises: each wait ends by join_ms; what a call
   returns holds for the epoch that it was made in. */

CDP__PRIVATE cdp_status cdp__elastic_set_error(const cdp_error *why) {
    *cdp__error_slot() = *why;
    return why->status;
}

/* Lock held. */
CDP__PRIVATE void cdp__elastic_now_of(cdp_elastic *e, cdp_elastic_now *now) {
    const cdp__elastic_place *p = &e->place;
    memset(now, 0, sizeof *now);
    now->group = e->group;
    now->epoch = p->epoch;
    now->step = p->step;
    now->samples = p->samples;
    /* an operation of the last step has ended here, and all ranks began it with the step before
       committed */
    now->stable = p->step > e->d.step ? p->step - 1 : p->step;
    now->rank = p->rank;
    now->size = p->size;
    now->old_rank = e->d.members[p->rank].old_rank;
    now->lost = e->d.lost;
    now->joined = e->d.joined;
    now->changed = e->changed;
    now->received = e->received;
    now->cause = e->cause;
    e->changed = e->received = false;
    if (e->reported != p->epoch) e->agreed = 0;
    e->reported = p->epoch;
}

/* The program asked to leave. Lock held; given back meanwhile. */
CDP__PRIVATE cdp_status cdp__elastic_leave_job(cdp_elastic *e) {
    const uint64_t k = e->place.epoch;
    char why[160];
    cdp_status st;
    cdp__format(why, sizeof why, "rank %u leaves: %s", e->place.rank, e->leaving);
    e->place.phase = CDP__ELASTIC_OUT;
    e->place.live = false;
    cdp__elastic_unlock(e);
    st = cdp__elastic_record_end(e, e->store, why);
    if (st == CDP_OK && k) st = cdp__elastic_alarm_at(e, e->store, k, why);
    cdp__elastic_lock(e);
    e->left = st == CDP_OK;
    if (st == CDP_OK) (void)cdp__fail(CDP_ERR_STATE, "this process left: %s", e->leaving);
    cdp__elastic_fail(e);
    return e->failure.status;
}

CDP__PRIVATE void cdp__elastic_end_group_now(void *arg) {
    cdp_group_destroy((cdp_group *)arg);
}

/* Destroys a group, in a thread of its own, because this takes up to 0.7 s after a failure. Without
   threads, each poll makes one step of leaving the group. */
CDP__PRIVATE void cdp__elastic_end_group(cdp_elastic *e, cdp_group *group) {
    if (!group) return;
#ifndef CDP_NO_FRAMES
    if (e->no_thread) {
        cdp_group_destroy(e->closing);
        e->closing = group;
        return;
    }
#endif
    if (e->no_thread) {
        cdp_group_destroy(group);
        return;
    }
    if (e->destroyer) e->os->threads.join(e->os, e->destroyer);
    e->destroyer = e->os->threads.start(e->os, cdp__elastic_end_group_now, group);
    if (!e->destroyer) cdp_group_destroy(group);
}

/* The group of the epoch before stays until the call after the one that said `changed`. */
CDP__PRIVATE void cdp__elastic_retire(cdp_elastic *e) {
    cdp_group *old;
    cdp__elastic_lock(e);
    old = e->retired;
    e->retired = NULL;
    cdp__elastic_unlock(e);
    cdp__elastic_end_group(e, old);
}

/* One attempt to begin the epoch in which this process is. Lock held; given back meanwhile. */
CDP__PRIVATE cdp_status cdp__elastic_join(cdp_elastic *e) {
    cdp__elastic_decision d = e->d;
    const uint32_t rank = e->place.rank;
    cdp_group *old = e->group;
    cdp_status st;
    e->group = NULL;
    if (!e->retired) {
        e->retired = old;
        old = NULL;
    } else if (old && e->shown) { /* two changes in one call: connected() has seen the first */
        e->middle = old;
        old = NULL;
    }
    e->shown = false;
    d.members = (cdp__elastic_member *)cdp__alloc(e->os, d.size * sizeof *d.members);
    if (d.members) memcpy(d.members, e->d.members, d.size * sizeof *d.members);
    cdp__elastic_unlock(e);
    cdp__elastic_end_group(e, old);
    st = d.members ? cdp__elastic_connect(e, &d, rank) : cdp__fail_nomem("a list of members", 0);
    /* what came last was not the program's time */
    if (e->no_thread) e->looked_ns = cdp__elastic_now_ns(e);
    st = cdp__elastic_of_group(e, st);
    cdp__free(e->os, d.members);
    if (e->shown && e->middle) {
        const cdp_error why = *cdp_last_error();
        cdp__elastic_end_group(e, e->middle);
        e->middle = NULL;
        *cdp__error_slot() = why;
    }
    cdp__elastic_lock(e);
    return st;
}

/* A call that waits for other ranks waits for the store, too. Lock held. */
CDP__PRIVATE void cdp__elastic_has_patience(cdp_elastic *e) {
    if (!e->patient_ns) e->patient_ns = cdp__deadline(e->os, e->desc.join_ms);
}

/* The deadline of a turn, or of a wait for one, that began at begun_ns. */
CDP__PRIVATE uint64_t cdp__elastic_limit(const cdp_elastic *e, uint64_t begun_ns) {
    return begun_ns + ((uint64_t)e->desc.join_ms + e->store_ms) * CDP__MS;
}

/* True if the system of this process refused something, such as a descriptor. Each later epoch
   would fail for the same reason, so this process ends, and the others go on without it. */
CDP__PRIVATE bool cdp__elastic_is_own(const cdp_error *why) {
    return why->status == CDP_ERR_IO && why->peer < 0 && why->origin == why->rank;
}

/* This thread's last error ends the epoch if it is a loss, or, while the members connect (`joins`),
   any error of another rank: no operation of the program can differ yet. Waits until this process
   has arrived. Lock held; given back meanwhile. */
CDP__PRIVATE cdp_status cdp__elastic_give_up(cdp_elastic *e, uint64_t k, bool joins) {
    const cdp_error why = *cdp_last_error();
    const bool lost = cdp__elastic_is_loss(why.status) || (joins && cdp__elastic_reported(&why));
    uint64_t deadline;
    cdp_status st;
    if (!lost || cdp__elastic_is_own(&why) || e->refused) {
        if (e->place.phase == CDP__ELASTIC_JOINED) cdp__elastic_fail(e);
        return why.status;
    }
    cdp__elastic_blame(e, k, &why, joins && e->absent);
    cdp__elastic_unlock(e);
    st = cdp__elastic_alarm_at(e, e->store, k, why.text);
    cdp__elastic_lock(e);
    if (st != CDP_OK) return st;
    deadline = cdp__elastic_limit(e, cdp__elastic_now_ns(e));
    while (e->place.epoch == k && e->failure.status == CDP_OK
        && e->place.phase != CDP__ELASTIC_ARRIVED) {
        if (cdp__elastic_now_ns(e) >= deadline)
            return cdp__fail(CDP_ERR_TIMEOUT,
                "epoch %llu failed (%s), and the store did not say so within join_ms, %u ms",
                (unsigned long long)k, why.text, e->desc.join_ms);
        cdp__elastic_sleep(e, deadline);
    }
    return CDP_OK;
}

/* True if the program has asked to leave and may: no rank receives state from this process now, and
   no decision relies on it. Lock held. */
CDP__PRIVATE bool cdp__elastic_may_leave(const cdp_elastic *e) {
    const cdp__elastic_place *p = &e->place;
    if (!e->leaving[0]) return false;
    if (p->phase == CDP__ELASTIC_RUNNING || p->phase == CDP__ELASTIC_WAITING) return true;
    return p->phase == CDP__ELASTIC_JOINED ? p->size == 1 : e->few;
}

/* Epoch k did not begin, or timed out without a step: perhaps two members reach the store and not
   each other. Says so from the third one on, and ends it after join_ms; if it begins, not before
   that, since steps may take long. Lock held. */
CDP__PRIVATE cdp_status cdp__elastic_persist(
    cdp_elastic *e, uint64_t k, const cdp_error *why, bool joins) {
    cdp__elastic_tries *tries = &e->tries;
    const uint64_t now = cdp__elastic_now_ns(e);
    if (!tries->count++) tries->deadline_ns = cdp__elastic_limit(e, now);
    if (now < tries->deadline_ns || (!joins && tries->count < 3)) {
        if (tries->count > 2)
            cdp__log(&e->tcp.group.logger, CDP_LOG_WARN, e->place.rank,
                "epoch %llu %s, the next one tries again: %s", (unsigned long long)k,
                joins ? "did not begin" : "committed nothing", why->text);
        return CDP_OK;
    }
    (void)cdp__fail(CDP_ERR_TIMEOUT,
        "no epoch %s within join_ms, %u ms; the last one, epoch %llu, failed: %s",
        joins ? "began" : "committed a step", e->desc.join_ms, (unsigned long long)k, why->text);
    cdp__elastic_fail(e);
    return e->failure.status;
}

/* Waits for the next decision. A wait for min_ranks has a limit of its own, and takes nothing from
   that of e->tries. Lock held; given back meanwhile. */
CDP__PRIVATE void cdp__elastic_wait_for_turn(cdp_elastic *e) {
    const uint64_t begun = cdp__elastic_now_ns(e);
    const bool few = e->few;
    cdp__elastic_sleep(e, cdp__elastic_limit(e, e->epoch_ns));
    if (few) e->tries.deadline_ns += cdp__elastic_now_ns(e) - begun;
}

CDP__PRIVATE cdp_status cdp__elastic_step(cdp_elastic *e, cdp_elastic_now *now) {
    for (;;) {
        const uint64_t k = e->place.epoch;
        const bool joins = e->place.phase == CDP__ELASTIC_JOINED;
        cdp_status st = CDP_OK;
        if (e->failure.status != CDP_OK) return cdp__elastic_set_error(&e->failure);
        if (e->place.phase != CDP__ELASTIC_RUNNING) cdp__elastic_has_patience(e);
        if (e->ended) return cdp__fail(CDP_ERR_STATE, "cdp_elastic_finish() has ended the job");
        if (cdp__elastic_may_leave(e)) return cdp__elastic_leave_job(e);
        if (e->place.phase == CDP__ELASTIC_WAITING) {
            cdp__elastic_unlock(e);
            if (e->stage == CDP__ELASTIC_TRIED && e->desc.connected
                && !CDP__ELASTIC_PLANT(NO_REHEARSAL))
                st = cdp__elastic_rehearse(e);
            if (st == CDP_OK) st = cdp__elastic_enter(e);
            if (st == CDP_OK) st = cdp__elastic_attends(e);
            cdp__elastic_lock(e);
            if (st != CDP_OK) return st;
            continue;
        }
        if (e->group && !joins) st = cdp_group_status(e->group);
        if (st != CDP_OK) cdp__elastic_has_patience(e);
        if (st == CDP_ERR_STORE) {
            cdp__elastic_unlock(e);
            st = cdp__elastic_of_group(e, st);
            cdp__elastic_lock(e);
            if (e->place.epoch != k) continue;
        }
        if (st != CDP_OK && !cdp__elastic_is_loss(st)) return cdp_last_error()->status;
        if (e->place.phase == CDP__ELASTIC_RUNNING) {
            if (st == CDP_OK && cdp__elastic_begin(&e->place, e->desc.batch)) {
                cdp__elastic_now_of(e, now);
                return CDP_OK;
            }
        } else if (joins) {
            st = cdp__elastic_join(e);
        } else if (cdp__elastic_now_ns(e) >= cdp__elastic_limit(e, e->epoch_ns)) {
            return cdp__fail(CDP_ERR_TIMEOUT,
                "epoch %llu ended, and no decision was there after join_ms, %u ms",
                (unsigned long long)k, e->desc.join_ms);
        } else {
            st = CDP_OK;
            cdp__elastic_wait_for_turn(e);
        }
        if (st == CDP_OK) continue;
        const cdp_error why = *cdp_last_error();
        st = cdp__elastic_give_up(e, k, joins);
        if (st == CDP_OK && (joins || why.status == CDP_ERR_TIMEOUT))
            st = cdp__elastic_persist(e, k, &why, joins);
        if (st != CDP_OK) return st;
    }
}

CDP_API cdp_status cdp_elastic_next(cdp_elastic *e, cdp_elastic_now *now) {
    cdp_status st;
    st = cdp__elastic_here(e, "cdp_elastic_next");
    if (st != CDP_OK) return st;
    if (!now) return cdp__missing("cdp_elastic_next", "now");
    if (e->retired) cdp__elastic_retire(e); /* this thread alone sets it */
    cdp__elastic_attend(e, 0);
    cdp__elastic_lock(e);
    st = cdp__elastic_step(e, now);
    e->patient_ns = 0;
    cdp__elastic_unlock(e);
    return st;
}

CDP_API cdp_status cdp_elastic_commit(cdp_elastic *e) {
    bool counts;
    if (cdp__elastic_here(e, "cdp_elastic_commit") != CDP_OK) return cdp_last_error()->status;
    cdp__elastic_attend(e, 0);
    cdp__elastic_lock(e);
    counts = cdp__elastic_count(&e->place, e->desc.batch);
    if (counts) e->tries.count = 0;
    cdp__elastic_unlock(e);
    if (counts) return CDP_OK;
    return cdp__fail(CDP_ERR_ABORTED,
        "the epoch ended before this step: drop its gradients and call cdp_elastic_next()");
}

CDP_API cdp_status cdp_elastic_poll(cdp_elastic *e) {
    cdp_error why;
    bool runs;
    if (cdp__elastic_here(e, "cdp_elastic_poll") != CDP_OK) return cdp_last_error()->status;
    cdp__elastic_attend(e, 0);
    cdp__elastic_lock(e);
    why = e->failure;
    runs = e->place.phase == CDP__ELASTIC_RUNNING || e->place.phase == CDP__ELASTIC_WAITING;
    /* it has not begun here. In a step that counts nowhere the group is still that of the epoch
       that has ended, and was aborted. */
    if (e->place.phase == CDP__ELASTIC_JOINED)
        runs = !e->group || cdp_group_status(e->group) == CDP_OK;
    cdp__elastic_unlock(e);
    if (why.status != CDP_OK) return cdp__elastic_set_error(&why);
    if (runs) return CDP_OK;
    return cdp__fail(
        CDP_ERR_ABORTED, "the epoch ended, and this step counts nowhere: call cdp_elastic_next()");
}

CDP_API cdp_status cdp_elastic_agree(cdp_elastic *e, bool yes, bool *all) {
    char key[CDP__ELASTIC_KEY];
    uint8_t flag = yes;
    cdp_group *group;
    void *data;
    uint64_t bytes, number;
    bool may;
    cdp_status st;
    st = cdp__elastic_here(e, "cdp_elastic_agree");
    if (st != CDP_OK) return st;
    if (!all) return cdp__missing("cdp_elastic_agree", "all");
    *all = false;
    cdp__elastic_attend(e, 0);
    cdp__elastic_lock(e);
    may = e->reported && !e->ended && e->failure.status == CDP_OK;
    group = e->place.epoch == e->reported ? e->group : NULL;
    cdp__elastic_unlock(e);
    if (!may) return cdp__fail(CDP_ERR_STATE, "cdp_elastic_agree: call cdp_elastic_next() before");
    /* Epoch and number are those that this thread has seen. The thread of this header may be in a
       later epoch already: then this rank contributes nothing to the operation, so no rank can have
       received a yes. */
    number = ++e->agreed;
    st = CDP_ERR_ABORTED;
    if (group) st = cdp_allreduce(group, NULL, &flag, 1, CDP_DTYPE_U8, CDP_REDUCE_MIN);
    st = cdp__elastic_of_group(e, st);
    if (st != CDP_OK && !cdp__elastic_is_loss(st)) return st;
    if (CDP__ELASTIC_PLANT(AGREE_ALONE)) {
        *all = st == CDP_OK && flag;
        return CDP_OK;
    }
    /* the first rank that sets the key also decides for ranks on which the operation failed */
    cdp__elastic_key(
        e, key, "agree/%llu/%llu", (unsigned long long)e->reported, (unsigned long long)number);
    cdp__elastic_be_patient(e, true);
    st = cdp__elastic_claim(e, e->store, key, st == CDP_OK && flag ? "y" : "n", 1, &data, &bytes);
    cdp__elastic_be_patient(e, false);
    if (st == CDP_OK) *all = bytes == 1 && *(const char *)data == 'y';
    cdp_store_free(e->store, data);
    if (st == CDP_OK) return st;
    /* the others may have an answer: this process must not go on in their epoch without it */
    cdp__elastic_lock(e);
    cdp__elastic_fail(e);
    cdp__elastic_unlock(e);
    return e->failure.status;
}

/* The job is over on all ranks: no rank waits for this process any more. */
CDP__PRIVATE cdp_status cdp__elastic_end(cdp_elastic *e) {
    char key[CDP__ELASTIC_KEY];
    cdp_status st;
    cdp__elastic_key(e, key, "final");
    st = cdp__elastic_mark(e, e->store, key, "done");
    /* after the mark: members that are all gone without it have lost the state of the job */
    if (st == CDP_OK) st = cdp__elastic_record_end(e, e->store, "has finished");
    cdp__elastic_lock(e);
    e->ended = true;
    cdp__elastic_signal(e);
    cdp__elastic_unlock(e);
    return st;
}

/* This process has done all its steps. If it arrived before, its arrival does not say so: it adds a
   second one, because with fewer than min_ranks the remaining members would wait for newcomers that
   they do not need. */
CDP__PRIVATE cdp_status cdp__elastic_report_ending(cdp_elastic *e) {
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_arrival a;
    bool arrived;
    cdp__elastic_lock(e);
    e->place.ending = true;
    arrived = e->place.phase == CDP__ELASTIC_ARRIVED;
    cdp__elastic_describe(&e->place, &a);
    cdp__elastic_key(e, key, "e/%llu/in", (unsigned long long)e->place.epoch);
    cdp__elastic_unlock(e);
    return arrived ? cdp__elastic_append(e, e->store, key, &a) : CDP_OK;
}

CDP__PRIVATE cdp_status cdp__elastic_end_all(cdp_elastic *e) {
    char key[CDP__ELASTIC_KEY];
    cdp_elastic_now now;
    bool over = false, ends;
    cdp_status st;
    cdp__elastic_be_patient(e, true);
    st = cdp__elastic_report_ending(e);
    if (st != CDP_OK) return st;
    cdp__elastic_key(e, key, "final");
    for (;;) {
        st = cdp_elastic_next(e, &now);
        if (st != CDP_OK) return st;
        cdp__elastic_be_patient(e, true);
        st = cdp__elastic_of_group(e, cdp_barrier(now.group));
        cdp__elastic_lock(e);
        ends = cdp__elastic_ends(&e->place, st == CDP_OK);
        cdp__elastic_unlock(e);
        if (ends) return cdp__elastic_end(e);
        if (st != CDP_OK && !cdp__elastic_is_loss(st)) return st;
        /* others may have seen all members here, and have gone */
        st = cdp__elastic_there(e, e->store, key, &over);
        if (st != CDP_OK) return st;
        if (over) return cdp__elastic_end(e);
    }
}

CDP_API cdp_status cdp_elastic_finish(cdp_elastic *e) {
    cdp_status st = cdp__elastic_here(e, "cdp_elastic_finish");
    if (st != CDP_OK) return st;
    st = cdp__elastic_end_all(e);
    cdp__elastic_be_patient(e, false);
    return st;
}

CDP_API void cdp_elastic_leave(cdp_elastic *e, const char *reason) {
    if (cdp__elastic_here(e, "cdp_elastic_leave") != CDP_OK) return;
    cdp__elastic_lock(e);
    if (!e->leaving[0])
        cdp__format(e->leaving, sizeof e->leaving, "%s", reason && *reason ? reason : "asked to");
    cdp__elastic_signal(e);
    cdp__elastic_unlock(e);
}

CDP_API cdp_status cdp_elastic_alarm(cdp_elastic *e, const char *reason) {
    uint64_t k;
    if (cdp__elastic_here(e, "cdp_elastic_alarm") != CDP_OK) return cdp_last_error()->status;
    cdp__elastic_lock(e);
    k = e->place.epoch;
    cdp__elastic_unlock(e);
    if (!k) return CDP_OK; /* a newcomer, which is in none yet */
    return cdp__elastic_alarm_at(e, e->store, k, reason && *reason ? reason : "asked to");
}

/* ---- >>elastic/shrink: who is left of a group ------------------------------------------------ */

/* Knows: the ranks of a group; each stands for a member whose id is its rank. Promises: one
   decision for each group; nobody waits longer than timeout_ms of the group. */

/* Longer than all ranks of a group need to notice that it has failed. */
#define CDP__SHRINK_SETTLE_MS 500u
typedef char cdp__assert_shrink_settle
    [CDP__SHRINK_SETTLE_MS >= CDP__FAILURE_SETTLE_MS + CDP__FAILURE_REPORT_MS + 100 ? 1 : -1];

CDP__PRIVATE cdp_status cdp__shrink_check(
    cdp_group *group, const cdp_shrink_desc *d, cdp_group **out) {
    if (!out) return cdp__missing("cdp_group_shrink", "out");
    *out = NULL;
    if (!group) return cdp__missing("cdp_group_shrink", "group");
    if (!d) return cdp__missing("cdp_group_shrink", "desc");
    if (!d->store)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_group_shrink: the desc has no store, and without one the ranks cannot decide who "
            "is "
            "left; let a process that outlives the ranks serve one");
    if (!d->store->start || !d->store->os)
        return cdp__fail(CDP_ERR_STATE, "cdp_shrink_desc.store was destroyed");
    if (d->job && (!d->job[0] || strlen(d->job) > 40))
        return cdp__fail(CDP_ERR_INVALID, "cdp_shrink_desc.job has 1 to 40 characters");
    if (d->min_ranks > cdp_size(group))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_shrink_desc.min_ranks is %u, and the group has only %u ranks", d->min_ranks,
            cdp_size(group));
    return CDP_OK;
}

/* The group as a decision, and this rank as a member that arrives. Its record says which rank it
   has lost: as number of samples, from 1. */
CDP__PRIVATE cdp_status cdp__shrink_arrive(
    cdp_elastic *e, cdp_group *group, const cdp_shrink_desc *desc, uint32_t lost) {
    char key[CDP__ELASTIC_KEY];
    uint8_t id[CDP__ELASTIC_ID_BYTES] = {0};
    cdp__elastic_arrival a;
    uint32_t r;
    e->d.epoch = 1;
    for (r = 0; r < cdp_size(group); ++r) {
        cdp__put_u32(id, r);
        cdp__elastic_add(&e->d, id, r, false);
    }
    e->place.rank = cdp_rank(group);
    memset(&a, 0, sizeof a);
    memcpy(a.id, e->d.members[e->place.rank].id, sizeof a.id);
    a.rank = e->place.rank;
    a.step = desc->step;
    a.samples = lost < cdp_size(group) ? lost + 1 : 0;
    a.has_state = true;
    cdp__elastic_key(e, key, "e/1/in");
    return cdp__elastic_append(e, e->store, key, &a);
}

/* One look: proposes if it is time. *wait_ms: when to look again. */
CDP__PRIVATE cdp_status cdp__shrink_look(cdp_elastic *e, bool *dead, cdp__elastic_settle *settle,
    uint64_t *wait_ms, uint32_t *there, cdp__elastic_decision *won) {
    char key[CDP__ELASTIC_KEY];
    const uint64_t now = cdp__elastic_now_ns(e);
    cdp__elastic_arrival *arrivals;
    cdp__elastic_verdict verdict = CDP__ELASTIC_DECIDED;
    cdp__elastic_turn t;
    uint32_t i;
    cdp_status st;
    memset(&t, 0, sizeof t);
    t.d = &e->d;
    t.dead = dead;
    t.rank = e->place.rank;
    t.since_ms = cdp__elastic_waited_ms(settle, now, e->desc.settle_ms);
    t.settle_ms = e->desc.settle_ms;
    cdp__elastic_key(e, key, "e/1/in");
    st = cdp__elastic_read_records(e, e->store, key, &arrivals, &t.count);
    t.arrivals = arrivals;
    *there = 0;
    for (i = 0; i < e->d.size; ++i) /* one that has called twice is one */
        *there += cdp__elastic_arrival_of(&e->d, i, arrivals, t.count) != NULL;
    for (i = 0; i < t.count; ++i)
        if (arrivals[i].samples && arrivals[i].samples <= e->d.size)
            dead[arrivals[i].samples - 1] = true;
    for (i = 0; i < t.count; ++i) /* a member that calls is alive, even if it was reported dead */
        if (arrivals[i].rank < e->d.size) dead[arrivals[i].rank] = false;
    *wait_ms = 0;
    memset(won, 0, sizeof *won);
    if (st == CDP_OK && cdp__elastic_proposes(&t, wait_ms)) {
        st = cdp__elastic_try_turn(e, e->store, t.d, arrivals, t.count, &verdict, won);
        if (st == CDP_OK && verdict != CDP__ELASTIC_DECIDED) *wait_ms = CDP__ELASTIC_AGAIN_MS;
    }
    settle->due_ns = now + *wait_ms * CDP__MS;
    cdp__free(e->os, arrivals);
    return st;
}

/* Until there is a decision; its members are allocated. Without a progress thread this one tells
   the others that the group has failed: some of them may be inside its operations. */
CDP__PRIVATE cdp_status cdp__shrink_decide(
    cdp_elastic *e, cdp_group *group, bool *dead, cdp__elastic_decision *d) {
    const uint32_t timeout_ms = cdp_group_desc_of(group)->timeout_ms;
    const uint64_t deadline = cdp__deadline(e->os, timeout_ms);
    cdp__elastic_settle settle = {0, 0, 0};
    char key[CDP__ELASTIC_KEY];
    uint64_t wait_ms, now;
    uint32_t there = 0;
    bool late = false;
    cdp_status st;
    settle.since_ns = settle.due_ns = cdp__elastic_now_ns(e);
    cdp__elastic_key(e, key, "e/2");
    for (;;) {
        st = cdp__elastic_read_decision(e, e->store, 2, d);
        if (st != CDP_OK || d->members) return st;
        if (late) /* and the last poll has brought no decision, either */
            return cdp__fail(CDP_ERR_TIMEOUT,
                "cdp_group_shrink: %u of %u ranks came within timeout_ms of the group, %u ms, and "
                "min_ranks is %u",
                there, e->d.size, timeout_ms, e->desc.min_ranks);
        st = cdp__shrink_look(e, dead, &settle, &wait_ms, &there, d);
        if (st != CDP_OK || d->members) return st;
        if (st == CDP_OK && !group->w->thread) {
            (void)cdp_poll(group, 0);
            wait_ms = cdp__min(wait_ms, CDP__ELASTIC_LOOK_MS);
        }
        now = cdp__elastic_now_ns(e);
        late = now >= deadline;
        if (st == CDP_OK && wait_ms && !late)
            st = cdp__elastic_await(
                e, e->store, key, cdp__min(wait_ms, (deadline - now) / CDP__MS + 1));
        if (st < 0) return st;
    }
}

/* The group that was decided. */
CDP__PRIVATE cdp_status cdp__shrink_make(cdp_elastic *e, cdp_group *group,
    const cdp__elastic_decision *d, uint64_t *steps, cdp_group **out) {
    char key[CDP__ELASTIC_KEY];
    uint32_t *ranks = (uint32_t *)cdp__alloc(e->os, d->size * sizeof *ranks), r, n;
    cdp__elastic_arrival *arrivals = NULL;
    const cdp__elastic_arrival *a;
    bool in = false;
    cdp_status st = CDP_OK;
    if (!ranks) return cdp__fail_nomem("a list of ranks", d->size * sizeof *ranks);
    for (r = 0; r < d->size; ++r) {
        ranks[r] = d->members[r].old_rank;
        in = in || ranks[r] == e->place.rank;
    }
    if (!in)
        st = cdp__fail(CDP_ERR_STATE,
            "cdp_group_shrink: the other ranks have decided without this one, which did not come "
            "within settle_ms, %u ms",
            e->desc.settle_ms);
    cdp__elastic_key(e, key, "e/1/in");
    if (st == CDP_OK && steps) st = cdp__elastic_read_records(e, e->store, key, &arrivals, &n);
    for (r = 0; st == CDP_OK && steps && r < d->size; ++r) {
        a = cdp__elastic_arrival_of(&e->d, ranks[r], arrivals, n);
        steps[r] = a ? a->step : 0;
    }
    if (st == CDP_OK) st = cdp_group_new(group, ranks, d->size, out);
    cdp__free(e->os, arrivals);
    cdp__free(e->os, ranks);
    return st;
}

CDP_API cdp_status cdp_group_shrink(
    cdp_group *group, const cdp_shrink_desc *desc, uint64_t *steps, cdp_group **out) {
    const uint32_t size = cdp_size(group);
    cdp__elastic_decision d;
    cdp_elastic *e;
    bool *dead;
    uint32_t lost = UINT32_MAX;
    cdp_status st = cdp__shrink_check(group, desc, out);
    if (st == CDP_OK) st = cdp__alive(group, "cdp_group_shrink");
    if (st != CDP_OK) return st;
    if (cdp_group_status(group) == CDP_ERR_PEER_LOST && desc->trust_links)
        lost = cdp_rank_of_world(group, (uint32_t)cdp_last_error()->peer);
    cdp_group_abort(group, "cdp_group_shrink() was called");
    e = (cdp_elastic *)cdp__alloc_zero(group->os, sizeof *e);
    if (!e) return cdp__fail_nomem("the ranks that are left", sizeof *e);
    memset(&d, 0, sizeof d);
    e->os = group->os;
    e->store = desc->store;
    e->desc.settle_ms = cdp__def(desc->settle_ms, CDP__SHRINK_SETTLE_MS);
    e->desc.min_ranks = cdp__def(desc->min_ranks, 1);
    e->desc.max_ranks = size;
    e->store_ms = (uint32_t)cdp__min(cdp_group_desc_of(group)->timeout_ms, CDP__ELASTIC_STORE_MS);
    cdp__format(e->job, sizeof e->job, "%s/%llx", desc->job ? desc->job : "shrink",
        (unsigned long long)group->channel);
    e->d.members = (cdp__elastic_member *)cdp__alloc(e->os, size * sizeof *e->d.members);
    dead = (bool *)cdp__alloc_zero(e->os, size * sizeof *dead);
    if (!e->d.members || !dead) st = cdp__fail_nomem("a list of members", size);
    if (st == CDP_OK) st = cdp__shrink_arrive(e, group, desc, lost);
    if (st == CDP_OK) st = cdp__shrink_decide(e, group, dead, &d);
    if (st == CDP_OK) st = cdp__shrink_make(e, group, &d, steps, out);
    cdp__free(e->os, d.members);
    cdp__free(e->os, dead);
    cdp__free(e->os, e->d.members);
    cdp__free(e->os, e);
    return st;
}

/* ---- >>elastic/history: what happened, as JSON ----------------------------------------------- */

/* Knows: the last epochs of this process. Promises: text that JSON parsers take. */

CDP_API uint64_t cdp_elastic_history(cdp_elastic *e, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    uint64_t i;
    if (cdp__elastic_here(e, "cdp_elastic_history") != CDP_OK) return cdp__text_end(&t);
    cdp__elastic_lock(e);
    i = e->pasts > CDP__ELASTIC_PASTS ? e->pasts - CDP__ELASTIC_PASTS : 0;
    cdp__text_char(&t, '[');
    for (; i < e->pasts; ++i) {
        const cdp__elastic_past *p = &e->past[i % CDP__ELASTIC_PASTS];
        if (t.used > 1) cdp__text_add(&t, ",\n ");
        cdp__text_add(&t,
            "{\"epoch\": %llu, \"step\": %llu, \"size\": %u, \"rank\": %u, \"lost\": %u, "
            "\"joined\": %u, \"turn_us\": %llu, \"connect_us\": %llu, \"transfer_us\": %llu, "
            "\"cause\": ",
            (unsigned long long)p->epoch, (unsigned long long)p->step, p->size, p->rank, p->lost,
            p->joined, (unsigned long long)p->turn_ns / 1000,
            (unsigned long long)p->connect_ns / 1000, (unsigned long long)p->transfer_ns / 1000);
        cdp__json_string(&t, p->cause);
        cdp__text_add(&t, "}");
    }
    cdp__text_add(&t, "]\n");
    cdp__elastic_unlock(e);
    return cdp__text_end(&t);
}

#endif /* CDP_ELASTIC_IMPL_INCLUDED */
