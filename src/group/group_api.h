/* group/group_api.h - groups of ranks */
#ifndef CDP_SRC_GROUP_GROUP_API_H
#define CDP_SRC_GROUP_GROUP_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "hub_api.h"

/* Which algorithm runs: the first row that fits an operation, the caller's rows before the
   built-in ones, which cdp_describe() lists. Rows must be the same on all ranks; where they are
   not, the first operation that differs says so. */
typedef struct cdp_choice {
    cdp_coll_kind kind;
    /* required, as cdp_describe() spells it; "hierarchical" and "leaders" (of an allreduce): only
       where a group spans several hosts of which one has several ranks */
    const char *algorithm;
    /* the row fits up to this size: of the vector, or of the parts of all ranks together (default:
       any) */
    uint64_t max_bytes;
    uint32_t max_ranks; /* the row fits groups of up to so many ranks (default: any) */
} cdp_choice;

/* A set of ranks that communicate. Ranks are numbered 0 to world_size - 1. Operations of one
   group run in the order in which they are called, which must be the same on every rank; the
   first message of each carries what was called, so ranks that differ all get an error. */
typedef struct cdp_group cdp_group;

typedef struct cdp_group_desc {
    /* this rank, < world_size */
    uint32_t rank;
    /* required, > 0 */
    uint32_t world_size;
    /* ranks in one process: the hub that connects them. Without hub and transport, world_size must
       be 1 */
    cdp_hub *hub;
    /* or any transport; copied; destroyed with the group, also when creation fails */
    cdp_transport *transport;
    /* deadline of each operation in ms, from the call on (default: 600000; CDP_NO_TIMEOUT: none) */
    uint32_t timeout_ms;
    /* operations of up to so many bytes use algorithms of few rounds (default: 64 KiB) */
    uint64_t small_bytes;
    /* bytes of the largest piece of a message, and so the delay of an abort (default: 1 MiB) */
    uint64_t piece_bytes;
    /* Ranks that share memory read data of at least so many bytes in place; UINT64_MAX: never
       (default: 64 KiB; more where a transport says so). Up to 4 MiB that no peer has begun to
       read after some milliseconds are copied, and leave before they are asked for; longer data
       wait for their reader */
    uint64_t expose_bytes;
    /* microseconds for which a waiting caller polls before it sleeps (default: 20) */
    uint32_t spin_us;
    /* a waiting caller sleeps at once */
    bool no_spin;
    /* no progress thread: operations advance in cdp_poll() and in waits; ERRORS, above, says why a
       rank that polls seldom may be blamed for what another one does */
    bool no_thread;
    /* reductions whose bits depend on the numbers of each rank alone: neither on counts,
       small_bytes, piece_bytes and buckets, nor on the transport */
    bool reproducible;
    /* rows before the built-in table of algorithms; read at creation */
    const cdp_choice *choices;
    uint32_t choice_count;
    /* operations that each group remembers, see cdp_group_records() (default: 32) */
    uint32_t records;
    /* when the group fails, this rank writes PATH.RANK.json, see cdp_group_dump(); kept, not
       copied: at most 1000 bytes (default: nothing is written) */
    const char *dump_path;
    /* how many works that are not operations, such as those of cdp_work_then(), may exist at once,
       at most 65535 (default: 64) */
    uint32_t max_pending;
    /* received bytes are combined in portions of this many bytes (default: 128 KiB; at least
       256) */
    uint64_t stage_bytes;
    /* how many bytes this rank sends in each channel to each rank before that rank asks for them,
       which is also the memory that they may take there; longer messages pause. Equal on all ranks,
       else senders have to ask for credit more often. cdp_channel_send() takes bodies of at most a
       quarter of it (default and at most: 4 MiB; at least 4096) */
    uint64_t window_bytes;
    /* operations for which there is memory from the beginning; longer queues take more of it
       (default: 64) */
    uint32_t operations;
    /* waits, beyond one for each rank, that are remembered to find whom to blame for a timeout;
       with too few the blame is less deep (default: 32) */
    uint32_t waits;
    /* (default: cdp_os_default()) */
    const cdp_os *os;
    /* (default: warnings and errors to stderr) */
    cdp_logger logger;
} cdp_group_desc;

/* Make this rank's end of a group. Local: nothing is sent yet (links are made on first use).
   Errors: INVALID (rank, world size, no way to reach the others, a rank of the hub that is
   taken, a row of `choices`), NOMEM, IO (no thread). */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_create(const cdp_group_desc *desc, cdp_group **out);

#ifndef CDP_NO_GROUPS
/* A group of some of the ranks of another one, over the same links. Only those ranks call it,
   all with the same list: ranks[i] of `parent` becomes rank i. Local, like creation: nothing is
   sent. It inherits the settings of its parent and outlives it if need be. Groups, also of
   the same ranks, do not disturb each other: their operations may be called in different orders
   on different ranks. When several are made of the same ranks, the first one here is the first
   one there. It fails alone, and after its parent has failed another one can be made of the
   ranks that are left. Errors: INVALID (no ranks, one of them twice or not in the parent, this
   rank not among them), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_new(
    cdp_group *parent, const uint32_t *ranks, uint32_t count, cdp_group **out);

/* cdp_group_new() with settings of its own: those of `own` (NULL: none) that are not 0 take the
   place of the parent's. These may be: timeout_ms, small_bytes, piece_bytes, expose_bytes,
   reproducible, choices (in place of the parent's rows), records, max_pending, operations. Ranks
   must agree on them as in any group; a group made of this one inherits them. A backend:
   cdp_group_set_backend(). Errors: as cdp_group_new(); INVALID: also another member, or a row of
   `choices` that does not exist, or that reproducible forbids; UNSUPPORTED: CDP_NO_REPRODUCIBLE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_new_with(cdp_group *parent, const uint32_t *ranks,
    uint32_t count, const cdp_group_desc *own, cdp_group **out);

/* Writes the rank in the world of each rank of the group, in order, at most `max_count` of them;
   `out` may be NULL. Returns how many ranks the group has; 0 for no group or one that is gone. Any
   thread. */
CDP_API uint32_t cdp_group_ranks(const cdp_group *group, uint32_t *out, uint32_t max_count);

#define CDP_NO_COLOR 0xffffffffu

/* Collective over the parent: ranks of the same colour form a group, in the order of their keys
   (equal keys: of their ranks). With CDP_NO_COLOR this rank gets none: *out is NULL. Errors:
   those of an allgather and of cdp_group_new(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_split(
    cdp_group *parent, uint32_t color, uint32_t key, cdp_group **out);
#endif /* CDP_NO_GROUPS */

/* Ranks of a group and of the world it was made from. UINT32_MAX: there is no such rank. Any
   thread. */
CDP_API uint32_t cdp_world_rank_of(const cdp_group *group, uint32_t rank);
CDP_API uint32_t cdp_rank_of_world(const cdp_group *group, uint32_t world_rank);

/* Leave: local, and never an error for the others unless they still wait for this rank.
   Operations in flight end with CDP_ERR_STATE for threads that wait for them. NULL is allowed.
   Not while another thread uses the group. A group that leaves others of its world behind (those
   made by cdp_group_new() and cdp_group_split(), or the one they were made from) does not wait,
   unless it has failed and has not told its peers; a rank with which this one has exchanged nothing
   in it is told when it has waited for a second. The last one ends its connections when the
   peers have read what this rank sent: mostly that takes less than a millisecond, over TCP some
   ms where a peer computes meanwhile and its progress thread stands by. A peer that does not
   read, because it is stopped or computes without a progress thread, is awaited over TCP for 0.1
   s at most. Unmapping takes 0.1 to 0.3 ms per MiB of the peers' memory of cdp_group_alloc().
   After a failure it first tells its cause: for 0.35 s at most, mostly some milliseconds. Then
   others may read the cause in the store of rank 0, which waits for 0.3 s at most; where that
   store is gone the other ranks wait for 50 ms. So all of it takes 0.75 s at most.
   cdp_group_leave() does the same in frames, and does not block. The last error stays what it
   was. In a child of fork() it does nothing, and calls of the parent's group are STATE: make a
   group of its own there. So are calls of a group that was destroyed, and of what was made of
   it, as long as no other object has its memory; the last few hundred handles are known. */
CDP_API void cdp_group_destroy(cdp_group *group);

#ifndef CDP_NO_FRAMES
/* cdp_group_destroy() for a program that must not block: each call works on leaving for at most
   `budget_us` microseconds (0: one step), exceeded by at most one step as in cdp_poll().
   CDP_PENDING: call it again; after the first call the group may be given to cdp_group_leave() and
   cdp_group_destroy() alone. CDP_OK: the group is destroyed, or NULL, and must not be given to any
   call any more. Nothing is lost: it lasts as long as cdp_group_destroy() would have waited.
   cdp_group_destroy() in between ends it at once: the system still sends what it has taken, but a
   peer that then sends something to this rank may lose what it has not read yet, and after a
   failure peers may not learn its cause. Not bounded: a backend's destroy(), a function given to
   cdp_work_then() that is still running, a transport without leave(), such as that of cdp_mpi.h,
   the end of the progress thread, which takes some microseconds, and memory of cdp_group_alloc()
   that a peer had not freed when its process ended: the last rank that unmaps it gives it back to
   the system, in one call of 0.1 to 0.3 ms per MiB. Errors: STATE (inside such a function; or the
   group was destroyed). */
CDP_API cdp_status cdp_group_leave(cdp_group *group, uint32_t budget_us);
#endif

/* This rank, from 0, and how many ranks the group has; 0 for NULL. Any thread. */
CDP_API uint32_t cdp_rank(const cdp_group *group);
CDP_API uint32_t cdp_size(const cdp_group *group);
/* The desc of the group with the defaults filled in, the group's own. Any thread. */
CDP_API const cdp_group_desc *cdp_group_desc_of(const cdp_group *group);

#ifndef CDP_NO_LOG_STRINGS
/* From now on, messages about this group, and about all that share its links, are made up to this
   level (CDP_LOG_DEFAULT: WARN). Messages about the links themselves keep the level that the desc
   had. Local; any thread, any time; in a signal handler change level_at of the logger in its place.
   Errors: INVALID (no group; no such level), STATE (the group was destroyed; its logger has a
   level_at: change what that points to). */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_set_log_level(cdp_group *group, cdp_log_level level);
#endif

/* CDP_OK, or the status of the first failure, which then is this thread's cdp_last_error(). Any
   thread. A group that failed stays failed: destroy it and make another. Operations that were in
   flight end soon after the failure, within 0.35 s: their memory is the caller's again when
   cdp_work_test() does not say PENDING any more, or when cdp_group_destroy() has returned. */
CDP_API cdp_status cdp_group_status(cdp_group *group);

/* Allocates memory that other ranks of this host can read in place, if the transport has such
   memory (cdp_tcp.h has, between processes); else memory of the group's os. Operations work with
   any memory; large ones are faster with this, as input and as output. Aligned to 64 bytes, not
   cleared. Free it with a group of the same world while one is left: afterwards it stays valid,
   but can no longer be freed. It may be shared memory: a parent reads what its child of fork()
   writes there. Any thread. Errors: INVALID, NOMEM, and then *out is NULL. */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_alloc(cdp_group *group, uint64_t bytes, void **out);

/* `ptr` is from cdp_group_alloc() of a group of this world, or NULL. Call it when no operation on
   that memory is in flight (see cdp_group_status()). Nobody may use it any more, neither another
   rank nor a child of fork(). Memory that was shared goes back to the system at once, which takes
   0.1 to 0.3 ms per MiB. Any thread. */
CDP_API void cdp_group_free(cdp_group *group, void *ptr);

/* Break the group on every rank: waits return CDP_ERR_ABORTED with `reason` everywhere. Any thread,
   any time, any number of times; the first reason wins. Does not wait for other ranks.

   With a thread of the library the caller leaves the reason to that thread and waits for it, at
   most 20 ms: as long in a function that this thread itself calls. So it may be called in a signal
   handler, but only for groups of cdp_tcp.h without desc.no_thread, and no other call of this
   library may be made there. A reason is cut after 199 bytes. */
CDP_API void cdp_group_abort(cdp_group *group, const char *reason);

#ifndef CDP_NO_RECORDER
/* What the group remembers of an operation: always on, in memory of a fixed size. Times are of
   os->now_ns. */
typedef enum cdp_record_state {
    CDP_RECORD_QUEUED,
    CDP_RECORD_RUNNING,
    CDP_RECORD_DONE,
    CDP_RECORD_FAILED
} cdp_record_state;
typedef struct cdp_record {
    uint64_t seq; /* its number in the group, from 1 */
    cdp_record_state state;
    cdp_coll_kind kind;
    cdp_dtype dtype;
    cdp_reduce_op op;
    uint32_t root;          /* for a message: its tag */
    uint64_t count;         /* elements as the operation counts them; 0: uneven parts */
    const char *algorithm;  /* NULL while QUEUED */
    uint32_t round, rounds; /* where it is, or ended */
    /* RUNNING and FAILED: the rank in the world that it needs something from, else -1 */
    int32_t waits_for;
    uint64_t start_ns, end_ns; /* 0: not yet */
} cdp_record;

/* The group's last operations, oldest first, those that are still queued included: at most
   `max_count` of the newest. Returns how many; 0 for no group or one that is gone, see
   cdp_last_error(). Any thread, any time, also after a failure. */
CDP_API uint32_t cdp_group_records(cdp_group *group, cdp_record *out, uint32_t max_count);

/* Write the state of this rank as JSON: its groups, their failures, the last operations of each and
   the ranks that these wait for, and messages. tools/who_is_stuck.c reads the files of all ranks
   and prints which rank keeps which other ranks waiting; with --trace it makes one trace in
   Chrome's format of them, on one clock. `records` of the desc says how far back they go. Any
   thread, any time. Errors: IO (the file), NOMEM,
   INVALID (no group, no path), STATE (destroyed), UNSUPPORTED (the group's os has no files). */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_dump(cdp_group *group, const char *path);

/* What moves data of the group, as a word: the name of its backend where it has one ("nccl"), which
   is for device memory; else that of its transport: "tcp" (cdp_tcp.h, with shared memory inside a
   host), "hub" (threads), "mpi", "alone" (one rank), "custom" (one of the program's own without a
   name). Static memory; "" for no group or one that is gone. Any thread. */
CDP_API const char *cdp_group_backend_name(const cdp_group *group);

/* Every setting with its value and where it came from, the table of algorithms, and the link to
   each rank, as text for a reader. Writes at most `room` bytes, a zero at the end among them;
   `text` may be NULL. Returns the length of the whole text without the zero (about 4 KB and 100
   bytes per rank); 0 for no group or one that is gone, see cdp_last_error(). Any thread. */
CDP_API uint64_t cdp_describe(cdp_group *group, char *text, uint64_t room);
#endif /* CDP_NO_RECORDER */

/* Let communication advance, for programs without a progress thread, until `budget_us` microseconds
   have passed or nothing is in flight. The clock is read after each step of at most 64 KiB, so the
   budget is exceeded by one such step. Budget 0: reads what has arrived, and makes one step.
   Functions of the caller, such as those of cdp_work_then(), take their time on top; so does memory
   that an operation needs because it is larger than all before it, and, where the system cannot
   unmap memory in parts, as on Windows, memory of cdp_group_alloc() that a peer has freed. Any
   thread. Returns cdp_group_status(). */
CDP_API cdp_status cdp_poll(cdp_group *group, uint32_t budget_us);

#endif /* CDP_SRC_GROUP_GROUP_API_H */
