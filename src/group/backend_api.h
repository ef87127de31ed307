/* group/backend_api.h - memory that the processor does not reach */
#ifndef CDP_SRC_GROUP_BACKEND_API_H
#define CDP_SRC_GROUP_BACKEND_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "group_api.h"
#include "collectives_api.h"
#include "messages_api.h"

/* A backend runs whole requests on memory of its own, such as that of a GPU, in queues of its own.
   If a group has one, the calls above check their pointers: requests on memory that the backend
   owns go to it, others over the links as before. cdp_nccl.h is one. For its works cdp_work_wait()
   orders what the caller does next on the device and returns; cdp_work_wait_for() and
   cdp_work_test() check whether they are done; cdp_work_then(), cdp_start_after(),
   cdp_work_cancel() and receives from any rank are UNSUPPORTED. The library calls all functions but
   `failed` without the group's lock. If start, transfer or wait returns a status < 0 while any of
   its work is in flight, the group breaks on all ranks. */
typedef struct cdp_backend {
    void *self;
    const char *name; /* for cdp_describe() */
    /* Returns 1 if `data` is memory of this backend, 0 if it is host memory. < 0: a status with its
       text in cdp_last_error(): neither the backend nor the host can use the memory */
    int (*owns)(void *self, const void *data);
    /* Starts `n` requests together; the caller has checked them and filled in defaults. *number
       becomes the backend's own count of what it started, from 1, below 2^62, or 0 if it failed
       before anything started. */
    cdp_status (*start)(void *self, const cdp_request *requests, uint32_t n, uint64_t *number);
    /* Like `start`, for `n` messages. */
    cdp_status (*transfer)(void *self, const cdp_transfer *list, uint32_t n, uint64_t *number);
    /* Waits for the work with this number (0: for everything so far) until os->now_ns >=
       deadline_ns: OK, PENDING, or the error. deadline_ns 0: only checks, and the lock may be held.
       UINT64_MAX: does not wait, but orders later work of the caller on the device after it.
       INVALID and STATE are the caller's mistakes. */
    cdp_status (*wait)(void *self, uint64_t number, uint64_t deadline_ns);
    /* the group broke: stop what runs. Lock held, must not block */
    void (*failed)(void *self, const cdp_error *error);
    /* Optional: gives the new group `part` a backend (NULL: this rank is in no part). */
    cdp_status (*split)(void *self, uint32_t color, uint32_t key, cdp_group *part);
    void (*destroy)(void *self);
    /* Memory for gradients, in the order of the caller's other device work. When `copy` to or from
       host memory returns, it is done. */
    void *(*alloc)(void *self, uint64_t bytes); /* NULL: sets the last error */
    void (*release)(void *self, void *data);
    cdp_status (*copy)(void *self, void *dst, const void *src, uint64_t bytes);
    cdp_status (*zero)(void *self, void *dst, uint64_t bytes);
    cdp_status (*scale)(void *self, cdp_dtype dtype, void *data, uint64_t count, double factor);
    /* waits for the result */
    cdp_status (*sum_squares)(
        void *self, cdp_dtype dtype, const void *data, uint64_t count, double *sum);
} cdp_backend;

#ifndef CDP_NO_BACKEND
/* Give the group a backend; it is copied, and destroyed with the group. Groups made of this one
   have none, but those of cdp_group_split(). Errors: INVALID; STATE (it has one). */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_set_backend(
    cdp_group *group, const cdp_backend *backend);
/* For backends: checks that all ranks call the same requests, and sends nothing else. The text of a
   MISMATCH names both calls, that of a TIMEOUT the rank that has not called. `wait`: returns only
   when the check is done. Errors: INVALID (no group, no requests), STATE (destroyed), the group's
   failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_compare(
    cdp_group *group, const cdp_request *requests, uint32_t n, bool wait);
/* For backends: notice that rank `peer` has died although nothing over the links waits for it,
   when work of the backend is still not done half a second later. Takes one place of
   max_pending. Errors: INVALID, NOMEM, STATE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_group_watch(cdp_group *group, uint32_t peer);
/* For backends, in their destroy: from now on no thread calls one of their functions. NULL is
   allowed. */
CDP_API void cdp_group_clear_backend(cdp_group *group);
#endif /* CDP_NO_BACKEND */

CDP_API const cdp_backend *cdp_group_backend(const cdp_group *group); /* NULL: none */
/* For backends: break the group on all ranks for this thread's last error, unless it is broken.
   Any thread, not in `failed`. */
CDP_API void cdp_group_fail(cdp_group *group);

#endif /* CDP_SRC_GROUP_BACKEND_API_H */
