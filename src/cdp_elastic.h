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
#if defined(CDP_ELASTIC_IMPLEMENTATION) && !defined(CDP_TCP_IMPLEMENTATION)
#define CDP_TCP_IMPLEMENTATION
#endif
#include "cdp_tcp.h"

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

#include "elastic/elastic_api.h"
#include "elastic/quorum_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "elastic/cxx_api.h"

#endif /* CDP_ELASTIC_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_ELASTIC_IMPLEMENTATION)) \
    && !defined(CDP_ELASTIC_IMPL_INCLUDED)
#define CDP_ELASTIC_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_ELASTIC

#include "text/json_read.h" /* for launchers, which read the error files of ranks */

#include "elastic/epoch.h"
#include "elastic/turn.h"
#include "elastic/records.h"
#include "elastic/member.h"
#include "elastic/store.h"
#include "elastic/trial.h"
#include "elastic/doubt.h"
#include "elastic/turns.h"
#include "elastic/attend.h"
#include "elastic/quorum.h"
#include "elastic/quorum_servers.h"
#include "elastic/quorum_store.h"
#include "elastic/transfer.h"
#include "elastic/connect.h"
#include "elastic/entry.h"
#include "elastic/create.h"
#include "elastic/calls.h"
#include "elastic/shrink.h"
#include "elastic/history.h"

#endif /* CDP_ELASTIC_IMPL_INCLUDED */
