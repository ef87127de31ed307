/* ddp/ddp_api.h - data parallel training */
#ifndef CDP_SRC_DDP_DDP_API_H
#define CDP_SRC_DDP_DDP_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"

#ifndef CDP_NO_DDP

/* Distributed data parallel training. Every rank holds the whole model and computes gradients on
   its own part of the batch; the library averages gradients over all ranks while the backward pass
   is still running. Buckets, their sizes and their launch order are those of PyTorch's
   DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020, arXiv 2006.15704). There is
   no autograd here: the caller reports when a gradient is complete.

   Threads: one thread at a time calls functions of a ddp. The exceptions are cdp_ddp_ready(),
   cdp_ddp_ready_from(), cdp_ddp_ready_rows() and cdp_ddp_unused(), which several threads may call
   in one backward pass.
   Memory: the gradients once (buckets hold them), twice during a rebuild, and a copy of each
   gradient that this rank did not use while other ranks may have used it. All from the group's os,
   or from cdp_group_alloc().
   Failures: after a failure of the group every call returns it; destroy the ddp, then the group.
   A group may have any number of ddps; create them in the same order on all ranks. */
typedef struct cdp_ddp cdp_ddp;

/* One parameter of the model, as an array. Arrays of parameters, gradients and buffers are aligned
   to their dtype and do not overlap, or creation is INVALID and names them: list an array that
   several layers use once, see `uses`. */
typedef struct cdp_param {
    const char *name; /* for messages; copied; equal on all ranks (default: "param<i>") */
    void *data;       /* `count` values, owned by the caller; must outlive the ddp */
    /* NULL: the gradient is in the bucket, see cdp_ddp_grad(). Else `count` values owned by the
       caller: cdp_ddp_ready() copies them to the bucket, cdp_ddp_backward_end() copies the mean
       back. */
    void *grad;
    uint64_t count;  /* elements; 0 is allowed */
    cdp_dtype dtype; /* f32 (default), f64, f16 or bf16; parameters may differ */
    /* First dimension of a matrix, which must divide count. Needed by `sparse`, used by hooks that
       compress matrices (default: the parameter is a vector). */
    uint64_t rows;
    /* An embedding: gradients are some rows of the matrix, see cdp_ddp_ready_rows(). Needs `rows`
       below 2^32 and no `grad`; host memory alone. */
    bool sparse;
    uint32_t device; /* 0: the pointers tell; device memory needs cdp_nccl_attach() */
    /* Its gradient travels last, in a bucket of all such parameters of its dtype */
    bool delayed;
#ifndef CDP_NO_TRAINING
    /* Layers that share this array (tied weights): it is complete when cdp_ddp_ready() was called
       so often in a pass, once for each layer that has added its part (default: 1). Its bucket
       leaves then, once: parts that are sent one by one would be twice the bytes. static_graph
       counts by itself. */
    uint32_t uses;
#endif
} cdp_param;

/* State that is no parameter, such as running means. Before each synchronized step, rank 0's values
   are copied to every rank; with join, those of the highest rank that has data in that step. */
typedef struct cdp_buffer {
    const char *name; /* as in cdp_param (default: "buffer<i>") */
    void *data;       /* `count` values, owned by the caller; must outlive the ddp */
    uint64_t count;
    cdp_dtype dtype; /* any (default: f32) */
} cdp_buffer;

/* A rank that is out of data (cdp_ddp_join) must start the operations that the caller's own code
   starts on the other ranks. The library calls join_hook where that code runs there: */
typedef enum cdp_join_when {
    /* between cdp_ddp_forward_begin and cdp_ddp_backward_begin; also once more in the last step,
       where all ranks are in cdp_ddp_join(): only its first bucket tells them that none has data */
    CDP_JOIN_FORWARD,
    CDP_JOIN_STEP, /* after cdp_ddp_backward_end */
    CDP_JOIN_LAST  /* once, when all ranks are out of data and parameters are equal again */
} cdp_join_when;

/* Except for `data`, `grad` and pointers, all members must be equal on all ranks; creation compares
   them. */
typedef struct cdp_ddp_desc {
    cdp_group *group;        /* required; must outlive the ddp */
    const cdp_param *params; /* required; in the order of the forward pass; copied */
    uint32_t param_count;
    /* Bytes of the first bucket of each dtype (default: bucket_bytes if that is set, as in
       PyTorch, else 1 MiB). A bucket is full when it reaches its size, so it may exceed it. */
    uint64_t first_bucket_bytes;
    uint64_t bucket_bytes; /* bytes of the other buckets (default: 25 MiB) */
    /* In place of both: bytes of the first bucket of each dtype, of the second, and so on; the last
       entry is for all others. Copied */
    const uint64_t *bucket_list;
    uint32_t bucket_list_count;
    bool no_broadcast;         /* rank 0's parameters and buffers are not copied at creation */
    const cdp_buffer *buffers; /* copied */
    uint32_t buffer_count;
    bool no_buffer_broadcast; /* after creation every rank keeps its own buffers */
    /* Called in place of copying buffers; may start operations, the same on all ranks.
       cdp_ddp_forward_begin or cdp_ddp_backward_begin returns its status. */
    cdp_status (*buffer_hook)(cdp_ddp *ddp, void *user);
    void *user; /* for buffer_hook and join_hook */
    /* The sum over ranks is divided by this (default: the number of ranks; 1 keeps the sum). */
    cdp_real divisor;
    /* The part of the divisor by which gradients are multiplied as 1 / predivide before they are
       summed, against overflow (default: 1; for f16 all of the divisor, because sums of f16 exceed
       65504 early). PyTorch divides all dtypes first: the number of ranks gives its bits. */
    cdp_real predivide;
    /* As in cdp_request: CDP_DTYPE_F32 adds gradients of 16 bits in f32 and rounds once, at no more
       bytes. Means over all ranks (divisor 0, no join_effective, no predivide) always do, but
       for f16, which is divided first unless this is set. UNSUPPORTED: gradients on a device. */
    cdp_dtype accumulate;
    /* Parameters may have no gradient in a pass, different ones on different ranks. */
    bool find_unused;
    /* The same parameters get gradients, equally often, in every synchronized pass. */
    bool static_graph;
    /* After the first synchronized pass, gradients are stored in the order in which they became
       ready on rank 0. Pointers from cdp_ddp_grad() change once, in the next call of
       cdp_ddp_forward_begin or cdp_ddp_backward_begin. */
    bool rebuild;
    bool join;           /* ranks may run out of data at different times, see cdp_ddp_join() */
    bool join_throw;     /* with join: if one rank runs out, that step is an error on every rank */
    bool join_effective; /* with join: divide by the number of ranks that had data */
    /* See cdp_join_when. cdp_ddp_join returns its status. */
    cdp_status (*join_hook)(cdp_ddp *ddp, cdp_join_when when, void *user);
    /* Of the model, for the log and cdp_ddp_trace(); kept, not copied; ranks may differ (default:
       none) */
    const char *name;
    /* The logger of the group has a line of settings at creation, at INFO. And one of statistics
       after each so many synchronized steps in which this rank had data; ranks may differ (default:
       never) */
    uint32_t log_steps;
#ifndef CDP_NO_TRAINING
    /* One array of all gradients, in the order of `params`, without gaps: buckets are ranges of it,
       so nothing is allocated or copied, and cdp_ddp_grad() points into it. Owned by the caller,
       who also sets it to zero; host memory, best from cdp_group_alloc(), which peers read in
       place. Sparse parameters have nothing there. Flags (find_unused, static_graph, join) travel
       in operations of their own. INVALID: with `rebuild`, with cdp_param.grad, or a gradient that
       is not aligned; UNSUPPORTED: device memory, or parameters of one dtype that stand apart, the
       delayed ones among them, or the others. */
    void *grad_arena;
#endif
} cdp_ddp_desc;

/* Figures of a ddp. Times are in nanoseconds. "Last step": the last synchronized pass in which this
   rank had data. */
typedef struct cdp_ddp_stats {
    uint64_t steps; /* synchronized passes so far */
    uint32_t bucket_count;
    uint64_t bytes_per_step; /* of dense gradients */
    uint64_t sent_bytes;     /* last step: given to operations; fewer if a hook compresses */
    uint64_t backward_ns;    /* last step: from backward_begin to the call of backward_end */
    uint64_t comm_ns;        /* last step: operations of buckets were running */
    uint64_t exposed_ns;     /* last step: the part of comm_ns for which backward_end waited */
    cdp_real hidden;         /* last step: 1 - exposed_ns / comm_ns, 0 to 1 */
    uint64_t total_backward_ns, total_comm_ns, total_exposed_ns; /* over all steps */
    uint32_t active_ranks;     /* last step: ranks that had data */
    uint32_t unused_count;     /* last step: parameters that no rank used */
    bool rebuilt;              /* buckets are in the order of the first pass, see .rebuild */
    bool can_set_static_graph; /* this rank had gradients for the same parameters in every step */
    uint64_t unused_bytes;     /* last step: gradient bytes of parameters that no rank used */
    /* last step: from the last forward_begin to backward_begin; 0 if forward_begin is not called */
    uint64_t forward_ns;
    uint64_t overlap_ns; /* last step: from the start of the first bucket to backward_end's call */
    uint64_t total_forward_ns, total_overlap_ns;                           /* over all steps */
    uint64_t avg_forward_ns, avg_backward_ns, avg_comm_ns, avg_overlap_ns; /* total / steps */
} cdp_ddp_stats;

/* One bucket. Times are in nanoseconds from backward_begin of the last synchronized pass, and 0 if
   the bucket did not travel in it. */
typedef struct cdp_bucket_stats {
    uint64_t bytes; /* of gradients */
    cdp_dtype dtype;
    uint32_t param_count;
    const uint32_t *params; /* indices in memory order; valid until the next step */
    uint64_t ready_ns;      /* the last parameter became ready */
    uint64_t start_ns;      /* its first operation began */
    uint64_t end_ns;        /* its first operation ended */
} cdp_bucket_stats;

/* Create a ddp. Collective: every rank calls it with the same parameters. It compares names,
   dtypes, counts, order and settings over all ranks, then copies rank 0's values to all. The caller
   owns the result. Errors, on the rank that made the mistake: INVALID or UNSUPPORTED (the text says
   which member of the desc to change), NOMEM; the other ranks wait until their deadline. On all
   ranks: MISMATCH (the first parameter, buffer or setting that differs, here and there: make it
   equal), NOMEM (a rank has no device memory left), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_create(const cdp_ddp_desc *desc, cdp_ddp **out);

#ifndef CDP_NO_FRAMES
/* cdp_ddp_create() for a program that must not block: checks *desc, allocates, and sends the first
   bytes; cdp_ddp_poll() goes on with it. It does not wait, and takes some microseconds for each
   parameter. Until creation ends, parameters and buffers must stay as they are, and calls with the
   ddp other than cdp_ddp_poll() and cdp_ddp_destroy() return STATE. Ranks may mix this form and the
   blocking one. Errors: INVALID, UNSUPPORTED, NOMEM as cdp_ddp_create(), and then *out is NULL; or
   the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_create_start(const cdp_ddp_desc *desc, cdp_ddp **out);

/* Goes on with what cdp_ddp_create_start() or cdp_ddp_backward_end_start() has begun, for at most
   `budget_us` microseconds (0: one step), as cdp_work_poll() does. The budget includes its own
   work, in steps of at most 64 KiB: it clears buckets, divides gradients, copies them to the
   caller's arrays, packs parameters. Not bounded are a stage of a hook, the rows of one sparse
   parameter, and buckets that start at the end because parameters were not marked before. Only this
   call goes on, no other thread, because hooks and devices are bound to the thread of the ddp;
   operations that are in flight advance without it, too. Returns CDP_PENDING: call it again. Else
   what cdp_ddp_create() or cdp_ddp_backward_end() would have returned, or CDP_OK if nothing is
   under way. After a creation that failed, each call returns that failure again; destroy the ddp.
   INVALID: NULL. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_poll(cdp_ddp *ddp, uint32_t budget_us);
#endif

/* Destroy a ddp. Local. Waits for operations in flight, at most until their deadlines. Call it
   before the group is destroyed: once that is done, all calls of the ddp but this one and
   cdp_ddp_rebind() are STATE, and memory of the group for buckets is not freed. A second call
   does nothing but set cdp_last_error() (STATE), and other calls of a destroyed ddp are STATE,
   as long as no other object has its memory; the last few hundred handles are known. In a child
   of fork() it does nothing, and calls of the parent's ddp are STATE. NULL is allowed. Inside a
   function given to cdp_work_then() and a backward pass it does nothing but log an error. While
   cdp_ddp_poll() still returns CDP_PENDING the other ranks wait for this one, so it breaks the
   group on all ranks, with STATE. */
CDP_API void cdp_ddp_destroy(cdp_ddp *ddp);

#ifndef CDP_NO_GROUPS
/* Go on with another group, for instance after the loss of a rank: the same parameters and
   settings, and from then on the same bits as a ddp that is created in `group`. Collective over
   `group`: ranks without a ddp call cdp_ddp_create() with the same desc and no_broadcast, because
   nothing is broadcast: parameters and buffers must be equal on all ranks, as they are after
   cdp_elastic_next(). An open pass is dropped if its group has failed. Gradients in buckets, also
   those in grad_arena, are 0, pointers from cdp_ddp_grad() change (not into grad_arena), means are
   divided by the new number of ranks; statistics, the order that `rebuild` learns and the pass that
   `static_graph` records begin anew. The former group is used here for the last time: destroy it
   afterwards. Errors: INVALID (NULL; `group` has
   another os), STATE (a pass is open, and its group has not failed), UNSUPPORTED (a hook was set,
   or the model is in device memory: destroy the ddp and create another), and then nothing has
   changed. NOMEM (the new group is aborted, so that others do not wait), MISMATCH as in creation,
   the new group's failure: then the ddp has no group; call this again with a later one, or destroy
   the ddp, other calls return STATE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_rebind(cdp_ddp *ddp, cdp_group *group);
#endif

/* The group (after cdp_ddp_rebind(): the new one) and the number of parameters that the ddp was
   created with; NULL and 0 for NULL. */
CDP_API cdp_group *cdp_ddp_group(const cdp_ddp *ddp);
CDP_API uint32_t cdp_ddp_param_count(const cdp_ddp *ddp);
/* Parameter `index` as it was given, with defaults filled in and the ddp's copy of its name. Valid
   until destroy. NULL: there is no such parameter. */
CDP_API const cdp_param *cdp_ddp_param(const cdp_ddp *ddp, uint32_t index);

/* Where the gradient of parameter `index` is in its bucket: `count` values, owned by the ddp, valid
   until destroy (but see .rebuild). Write them or add to them before cdp_ddp_ready(); read the mean
   after cdp_ddp_backward_end(). They are zero at first, then hold the last mean until the caller
   changes them. NULL, with INVALID as last error: there is no such parameter, or it is sparse (see
   cdp_ddp_rows). */
CDP_API void *cdp_ddp_grad(cdp_ddp *ddp, uint32_t index);

/* Did any rank have a gradient for parameter `index` in the last synchronized pass? The same
   answer on all ranks. An optimizer that skips parameters without a gradient (PyTorch: grad is
   None) skips those for which this is false. Without find_unused and static_graph it is true for
   all parameters after the first synchronized pass. False before that pass, for an index that
   does not exist, and for NULL. Call it outside a backward pass. */
CDP_API bool cdp_ddp_used(const cdp_ddp *ddp, uint32_t index);

/* Set all gradients to zero, also those in the caller's arrays, and drop collected rows. Between
   backward_begin and backward_end it does nothing. */
CDP_API void cdp_ddp_zero_grad(cdp_ddp *ddp);

/* Copy buffers before a forward pass whose backward pass is synchronized: rank 0's to all ranks,
   or with join those of the highest rank that has data in this step. Collective, once per
   synchronized pass however often it is called, and not while no_sync is on. If it was not called,
   backward_begin copies them; without buffers it is not needed. Errors: INVALID (NULL), STATE (a
   backward pass is open: end it first), NOMEM, what buffer_hook returns, or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_forward_begin(cdp_ddp *ddp);

/* One backward pass: begin, ready(i) for every parameter when its gradient is complete (usually the
   last layer first), then end. A bucket whose parameters are all ready starts on its way at once;
   buckets start in the same order on all ranks. After end, gradients hold the mean over all ranks.

   ready and unused may be called by several threads of a rank, one call for each parameter, as
   backward passes use threads; begin must have returned before, and end is called when all those
   calls have returned. With gradients in device memory, one thread at a time calls them. A function
   given to cdp_work_then() may call them, too.

   unused(i) takes the place of ready(i) with find_unused or static_graph: this rank has no gradient
   for i in this pass, and the bucket does not wait for it. A parameter that is not marked until end
   counts as unused, too. The rank contributes what the gradient held: zeros after zero_grad. A
   parameter that no rank used keeps its gradient as it was, see cdp_ddp_used(). One that got a
   gradient under no_sync since the last synchronized pass counts as used.

   With static_graph, the first synchronized pass records how often ready(i) is called for each i,
   and sends everything at its end. Later passes must call it equally often; a parameter is complete
   at its last ready(i).

   begin: INVALID (NULL), STATE (the pass before has not ended), NOMEM, or the group's failure.
   ready, unused: INVALID (no such parameter; sparse; unused without find_unused), STATE (marked
   twice, outside begin and end, or more often than recorded), NOMEM, what a hook returns, or the
   group's failure. end reports the first failure of the pass again, or STATE with the name of each
   parameter that was never ready, or STATE with the ranks that are out of data (join_throw). After
   a failure of a synchronized pass the group is broken on all ranks, because the others wait for
   gradients of this one: correct the program and start the job again. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_backward_begin(cdp_ddp *ddp);
CDP_API cdp_status cdp_ddp_ready(cdp_ddp *ddp, uint32_t index);
CDP_API cdp_status cdp_ddp_unused(cdp_ddp *ddp, uint32_t index);
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_backward_end(cdp_ddp *ddp);

#ifndef CDP_NO_TRAINING
/* cdp_ddp_ready() for a gradient that is elsewhere in every pass, as in graphs that are built anew:
   until the next backward_begin, `grad` takes the place of cdp_param.grad, which must be NULL,
   and must stay valid, for instance for cdp_ddp_zero_grad() and cdp_optimizer_step(). It is
   copied to the bucket, and gets the mean in backward_end. Where this rank marked a parameter
   unused, the mean is in the bucket alone. Threads: as ready; for one parameter one at a time.
   Errors: those of ready; INVALID (NULL, not aligned, in the other kind of memory;
   cdp_param.grad or grad_arena is set), STATE (under no_sync, where passes add to what the one
   before has left). */
CDP_API cdp_status cdp_ddp_ready_from(cdp_ddp *ddp, uint32_t index, void *grad);
#endif

#ifndef CDP_NO_FRAMES
/* cdp_ddp_backward_end() for a program that must not block: cdp_ddp_poll() goes on with it, and
   returns what backward_end would have returned, the same bits and errors. Gradients are the ddp's
   until then: read and write nothing there. Other calls with the ddp return STATE until then. Ranks
   may mix this form and the blocking one. Errors: INVALID (NULL), STATE (no backward pass is open,
   or its end is under way). */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_backward_end_start(cdp_ddp *ddp);
#endif

/* Some rows of a matrix. */
typedef struct cdp_rows {
    uint64_t count; /* rows */
    uint64_t width; /* values in each row */
    const uint32_t *rows;
    void *values; /* count * width values of the parameter's dtype, row after row */
} cdp_rows;

#ifndef CDP_NO_SPARSE
/* In place of ready(i) for a sparse parameter: its gradient is `n` rows of the matrix, with n *
   count / rows numbers in `values`. Both arrays are copied. A row may occur several times: its
   values are added. n = 0: the parameter is used, without any row. Passes under no_sync add to the
   rows that the next synchronized pass sends. Threads: as ready. Errors: INVALID (not sparse; a row
   that does not exist; no rows or values), NOMEM, and those of ready.

   backward_end exchanges rows after the buckets, not through hooks: counts, then indices, then
   values of all ranks. If all ranks together have more rows than the matrix, a dense gradient is
   cheaper. Memory grows to the largest exchange and is kept. */
CDP_API cdp_status cdp_ddp_ready_rows(
    cdp_ddp *ddp, uint32_t index, const uint32_t *rows, uint32_t n, const void *values);

/* The mean of a sparse parameter after backward_end: the rows that any rank had, each once, those
   of rank 0 first, equal on all ranks. The ddp owns them, until the next backward_end or
   zero_grad. All zero: there is no such parameter, or it is dense. */
CDP_API cdp_rows cdp_ddp_rows(const cdp_ddp *ddp, uint32_t index);
#endif /* CDP_NO_SPARSE */

/* Gradient accumulation. While on, backward passes stay local: nothing is sent, and gradients hold
   what this rank wrote (add to them). The first pass that begins after it was switched off sends
   the accumulated gradients. It takes effect at the next backward_begin, the same on all ranks. To
   nest, remember what is_no_sync returns and restore it. Errors: INVALID (NULL), STATE (a backward
   pass is open). */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_no_sync(cdp_ddp *ddp, bool on);
CDP_API bool cdp_ddp_is_no_sync(const cdp_ddp *ddp); /* false for NULL */

#ifndef CDP_NO_JOIN
/* This rank has no more data; needs .join. It takes part in the steps of the other ranks with
   gradients of zero, until every rank has called this. Then all ranks get the parameters and
   buffers of the highest rank that had data in the last step, and training may go on. Gradients
   accumulated under no_sync and not sent are lost. Cost: one number per rank in the first bucket
   (with a hook a small operation of its own), with buffers one operation of 4 bytes per step, and
   at the end one more first bucket. Errors: INVALID (NULL, or join is not set), STATE (a backward
   pass is open; or join_throw and other ranks have data), what join_hook returns, NOMEM, or the
   group's failure. After a failure in a step, but that of join_throw, the group is broken on all
   ranks, because the others wait for this one. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_join(cdp_ddp *ddp);

/* One of the things that communicate in each step of a training loop. */
typedef struct cdp_joinable {
    cdp_ddp *ddp; /* or NULL, and: */
    /* starts what the loop of the other ranks starts at this place of a step, with values that
       change nothing (0 for a sum). Required without a ddp */
    cdp_status (*step)(void *user);
    /* once, when all ranks are out of data; or NULL */
    cdp_status (*last)(void *user);
    void *user; /* first argument of both */
} cdp_joinable;

/* As cdp_ddp_join, for a loop with several ddps (two models of a GAN) or with operations of its
   own: `items` in the order in which a step uses them, the same on all ranks, the first one a ddp,
   whose first bucket says who has data. A rank may run out of data between steps, not within one.
   Errors: also INVALID (no items, the first is no ddp, an item without ddp and step), and what
   `step` and `last` return. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_join_all(const cdp_joinable *items, uint32_t count);
#endif /* CDP_NO_JOIN */

#ifndef CDP_NO_VERIFY
/* Compare parameters (not buffers) bit for bit over all ranks. Collective, between passes. They are
   equal as long as every rank does the same arithmetic with the same gradients; another compiler or
   a bug changes that silently. Sends one hash per rank, reads all parameters. Errors: INVALID
   (NULL), STATE (a backward pass is open), NOMEM, MISMATCH on all ranks (the first parameter that
   differs, and the first rank that has other bits than rank 0; the group stays usable), or the
   group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_verify(cdp_ddp *ddp);
#endif /* CDP_NO_VERIFY */

/* Return copies of the statistics; all zero for NULL, or for a bucket that does not exist. */
CDP_API cdp_ddp_stats cdp_ddp_stats_of(const cdp_ddp *ddp);
CDP_API cdp_bucket_stats cdp_ddp_bucket(const cdp_ddp *ddp, uint32_t index);

#ifndef CDP_NO_TRACE
/* How cdp_ddp_trace() writes. Pictures show the last synchronized step: when parameters became
   ready, and when buckets were on their way. */
typedef enum cdp_trace_format {
    CDP_TRACE_JSON = 0, /* for chrome://tracing or ui.perfetto.dev */
    CDP_TRACE_SVG,
    CDP_TRACE_TEXT /* settings and figures, one "name: value" per line, as PyTorch names them */
} cdp_trace_format;

/* Writes at most `room` bytes, a zero at the end among them; `text` may be NULL. Returns the length
   of the whole text without the zero; 0 if there is no step to draw yet, or for NULL. Not inside a
   backward pass. */
CDP_API uint64_t cdp_ddp_trace(
    const cdp_ddp *ddp, cdp_trace_format format, char *text, uint64_t room);
#endif /* CDP_NO_TRACE */

#ifndef CDP_NO_CLIP
/* Scale all gradients so that their Euclidean norm over all parameters is at most max_norm (0: do
   not scale). *norm, if not NULL, gets the norm before. Local, after backward_end: gradients, and
   so the norm, are equal on all ranks of the ddp's group. Where other groups hold other pieces of
   the model (a mesh, a pipeline), use cdp_grads_norm() and cdp_grads_scale(). Errors: INVALID
   (NULL, or max_norm is negative or NaN), STATE (a backward pass is open; a cdp_optimizer that cuts
   buckets is set), or what a device returns. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ddp_clip(cdp_ddp *ddp, double max_norm, double *norm);
#endif /* CDP_NO_CLIP */

#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_DDP_DDP_API_H */
