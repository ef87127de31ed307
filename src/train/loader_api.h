/* train/loader_api.h - batches that are read ahead */
#ifndef CDP_SRC_TRAIN_LOADER_API_H
#define CDP_SRC_TRAIN_LOADER_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "sampler_api.h"

#if !defined(CDP_NO_TRAINING) && !defined(CDP_NO_SAMPLER)
/* Reads the samples of a sampler ahead, in its order: in a thread of its own, or in
   cdp_loader_poll(). Used by one thread. */
typedef struct cdp_loader cdp_loader;

typedef struct cdp_loader_desc {
    /* Required. Its `batch` is that of a step; weights and lengths stay the caller's. */
    cdp_sampler sampler;
    /* Required. Writes sample `index`, sample_bytes long, to `out`. Called in the order of the
       sampler, one call at a time. What it returns but OK ends the epoch here with that status;
       the text of cdp_last_error() is kept if a call of this library failed. */
    cdp_status (*read)(void *user, uint64_t index, void *out);
    void *user;            /* first argument of `read` */
    uint64_t sample_bytes; /* required */
    uint32_t ahead;        /* batches read ahead (default: 2) */
    uint32_t timeout_ms;   /* for a batch that is not there yet (default: 300,000) */
    bool no_thread; /* read in cdp_loader_next() and cdp_loader_poll(), as with CDP_NO_THREADS */
} cdp_loader_desc;

/* Since the creation. */
typedef struct cdp_loader_stats {
    uint64_t batches;   /* handed out */
    uint64_t samples;   /* read */
    uint64_t waited_ns; /* in cdp_loader_next(), for samples that were not there */
} cdp_loader_stats;

/* Errors: INVALID (an argument or a setting is missing; those of cdp_sampler_fill), NOMEM, IO (the
   thread could not be started). */
CDP_MUST_CHECK CDP_API cdp_status cdp_loader_create(const cdp_loader_desc *desc, cdp_loader **out);
/* The batch of the next step, one sample after the other, aligned to 64 bytes, which is valid until
   the next call: `count` samples, fewer than sampler.batch only in the last step, and perhaps 0 in
   that of an `exact` sampler. NULL at the end of the epoch, which all ranks reach after equally
   many steps. Errors: what `read` returned for a sample of this batch, which the text names, again
   at each call until cdp_loader_restart(); TIMEOUT, after which the call can be repeated; STATE in
   a child of fork(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_loader_next(
    cdp_loader *loader, const void **batch, uint32_t *count);
/* Without a thread: reads samples until `budget_us` microseconds are over or all batches that may
   be read ahead are there. It ends after a sample, so the longest read counts on top. With a
   thread it does nothing. Errors: STATE in a child; a failed read is reported by next. */
CDP_MUST_CHECK CDP_API cdp_status cdp_loader_poll(cdp_loader *loader, uint32_t budget_us);
/* The sampler after the batches that were handed out, not after those read ahead: call it after a
   step that counts, and save it. Equal on all ranks but for `rank`. Zeros for NULL. */
CDP_API cdp_sampler cdp_loader_state(const cdp_loader *loader);
/* Goes on from another state: of a checkpoint, with other ranks, in another epoch (NULL: the next
   one, from its begin). Drops what was read ahead. Batch, sample_bytes, and an `os` that the other
   state does not have stay. Waits for a read that is under way. Errors: as create; TIMEOUT, and the
   loader is as it was; STATE in a child. After INVALID and NOMEM the former epoch is at its end,
   and it can be restarted. */
CDP_MUST_CHECK CDP_API cdp_status cdp_loader_restart(
    cdp_loader *loader, const cdp_sampler *sampler);
/* Zeros for NULL, and in a child of fork(). */
CDP_API cdp_loader_stats cdp_loader_stats_of(const cdp_loader *loader);
/* Waits for a read that is under way, and frees. NULL is allowed; in a child of fork() it does
   nothing. */
CDP_API void cdp_loader_destroy(cdp_loader *loader);

#ifndef CDP_NO_FILES
/* Files of token numbers, as llm.c and others write them: an optional header, then numbers of two
   or four bytes, the least significant byte first. Sample k of a file is the tokens k * length to
   k * length + length: `length` inputs, and the same moved on by one as targets. */
typedef struct cdp_tokens cdp_tokens;

typedef struct cdp_tokens_desc {
    const char *const *paths; /* required: path_count files, whose samples follow each other */
    uint32_t path_count;
    uint32_t length; /* required: tokens of a sample, without the last target */
    cdp_dtype dtype; /* of the file: U16, U32 or I32 (default: U16) */
    /* Before the tokens (default: 1,024 if the file begins with the number 20240520, as llm.c's do,
       else none) */
    uint32_t header_bytes;
    const cdp_os *os; /* (default: cdp_os_default()) */
} cdp_tokens_desc;

/* Opens the files. Errors: INVALID (an argument or a setting is missing, another dtype, a file that
   has no sample or half a token at its end), IO (a file cannot be opened: the text has its
   path), NOMEM, UNSUPPORTED (an os without files). */
CDP_MUST_CHECK CDP_API cdp_status cdp_tokens_create(const cdp_tokens_desc *desc, cdp_tokens **out);
/* Samples of all files together: size of a cdp_sampler. 0 for NULL. */
CDP_API uint64_t cdp_tokens_count(const cdp_tokens *tokens);
/* Bytes of a sample: 4 * (length + 1), int32_t each, in the byte order of the machine. */
CDP_API uint64_t cdp_tokens_bytes(const cdp_tokens *tokens);
/* `read` of a cdp_loader_desc whose `user` is a cdp_tokens. Any thread. Errors: INVALID (no such
   sample), IO (reading failed, or the file has become shorter). */
CDP_MUST_CHECK CDP_API cdp_status cdp_tokens_read(void *tokens, uint64_t index, void *out);
CDP_API void cdp_tokens_destroy(cdp_tokens *tokens); /* after its loader. NULL is allowed */
#endif                                               /* CDP_NO_FILES */
#endif                                               /* CDP_NO_TRAINING, CDP_NO_SAMPLER */

#endif /* CDP_SRC_TRAIN_LOADER_API_H */
