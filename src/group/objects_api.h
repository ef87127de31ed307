/* group/objects_api.h - bytes of any length from every rank */
#ifndef CDP_SRC_GROUP_OBJECTS_API_H
#define CDP_SRC_GROUP_OBJECTS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "group_api.h"

#ifndef CDP_NO_OBJECTS
/* Where a call stores the bytes that it receives, and how many it received. Ranks exchange lengths
   before any of them allocates: if bytes do not fit on a rank, all ranks get the same error, and
   the group stays usable. All zero is fine: memory comes from the group's os, at most 1 GiB, and
   goes back with cdp_blob_free(). */
typedef struct cdp_blob {
    /* the caller's memory, or NULL: the call allocates memory if it receives bytes, and sets
       this */
    void *data;
    /* bytes at `data` */
    uint64_t room;
    /* never take more than that (default: 1 GiB) */
    uint64_t max_bytes;
    /* both or neither (default: those of the group's os) */
    void *(*alloc)(void *user, uint64_t bytes);
    void (*release)(void *user, void *ptr);
    void *user;
    /* NULL, or room for world_size numbers: how many bytes are of each rank */
    uint64_t *lengths;
    /* set: how many came */
    uint64_t bytes;
    /* set: `data` is to go back with cdp_blob_free() */
    bool allocated;
} cdp_blob;

/* Every rank's `bytes` bytes, one after the other, go to every rank. Collective. This call and the
   next three block, and allocate memory for the lengths. Errors: INVALID (of the call; or, on all
   ranks, that some rank's room or max_bytes is too small: the text says whose and how much it
   needs), NOMEM (on all ranks: some rank could not allocate), MISMATCH (ranks called different ones
   of these functions, or with different roots; the group stays usable), or the group's failure. */
CDP_MUST_CHECK CDP_API cdp_status cdp_allgather_bytes(
    cdp_group *group, const void *data, uint64_t bytes, cdp_blob *all);
/* Like cdp_allgather_bytes(), but only rank `root` receives; `all` may be NULL on the others. */
CDP_MUST_CHECK CDP_API cdp_status cdp_gather_bytes(
    cdp_group *group, const void *data, uint64_t bytes, uint32_t root, cdp_blob *all);
/* Root's bytes go to all others; `got` may be NULL on root, where it is left alone. Only root
   reads `data` and `bytes`. */
CDP_MUST_CHECK CDP_API cdp_status cdp_broadcast_bytes(
    cdp_group *group, const void *data, uint64_t bytes, uint32_t root, cdp_blob *got);
/* Rank r gets the next lengths[r] bytes of root's `data`, root too; `data` and `lengths` count
   on root alone. */
CDP_MUST_CHECK CDP_API cdp_status cdp_scatter_bytes(
    cdp_group *group, const void *data, const uint64_t *lengths, uint32_t root, cdp_blob *mine);
/* Frees the memory that a call allocated for the blob, before the group is destroyed; memory of the
   caller stays, and a second call does nothing. A copy of the blob must not be freed, too. NULL is
   allowed. Memory from the group's os of a group that was destroyed, or in a child of fork(), is
   left alone (the last error is STATE); with `release` of its own a blob needs no group. */
CDP_API void cdp_blob_free(cdp_group *group, cdp_blob *blob);
#endif /* CDP_NO_OBJECTS */

#endif /* CDP_SRC_GROUP_OBJECTS_API_H */
