/* group/lists_api.h - collectives over separate arrays */
#ifndef CDP_SRC_GROUP_LISTS_API_H
#define CDP_SRC_GROUP_LISTS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "group_api.h"
#include "collectives_api.h"

#ifndef CDP_NO_OBJECTS
/* Run one operation whose parts lie in separate arrays of world_size pointers. ins[r] goes to rank
   r: SCATTER (on the root), REDUCE_SCATTER, ALLTOALL. outs[r] gets what comes from rank r:
   ALLGATHER, GATHER (on the root), ALLTOALL. A list takes the place of the member `in` or `out` of
   `request`, which is then ignored; all other members mean what they do for cdp_start(), and
   in_counts and out_counts make parts of different lengths. So other ranks may call cdp_start()
   with packed parts. A list that this rank does not need may be NULL, and so may a pointer to a
   part without elements; other arrays may have any alignment.
   In place: ALLGATHER, and GATHER on the root, with request->in NULL take this rank's part from
   outs[rank]; ALLTOALL accepts the same arrays in both lists. Otherwise no array of `outs` may
   overlap another one.

   Blocks, and packs: the parts are copied into memory of the group's os as large as all of them
   together, which is allocated for each call; results are copied out of it. After an error, no
   array of `outs` has been changed. Errors: INVALID (also a kind without parts, or a missing
   pointer: the text says which), UNSUPPORTED (device memory), NOMEM: then nothing was started, and
   the other ranks wait for this one; or the group's failure. Any thread. */
CDP_MUST_CHECK CDP_API cdp_status cdp_collective_lists(
    cdp_group *group, const cdp_request *request, const void *const *ins, void *const *outs);
#endif

#endif /* CDP_SRC_GROUP_LISTS_API_H */
