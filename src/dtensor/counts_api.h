/* dtensor/counts_api.h - how much is communicated, and by which part of a program */
#ifndef CDP_SRC_DTENSOR_COUNTS_API_H
#define CDP_SRC_DTENSOR_COUNTS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "mesh_api.h"
#include "layout_api.h"

#ifndef CDP_NO_TENSOR_OPS

/* Of this rank. SEND stands for exchanges that are no single collective, and for rings. */
typedef struct cdp_comm_count {
    uint64_t calls[CDP_COLL_COUNT], bytes[CDP_COLL_COUNT]; /* bytes that were received */
} cdp_comm_count;

/* Count what runs between begin and end under `label`, below the labels that are open: "block3",
   then "mlp" in it make the path "block3/mlp". Counted are plans, edges, layers, losses and rings
   of all meshes that were made from one another; what edges and layers do backward is kept apart.
   Calls on groups are counted if the program notes them. Local. Errors: INVALID (a label that is
   empty, holds '/', or more than 16 of them, or a path of more than 127 bytes), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_count_begin(cdp_mesh *mesh, const char *label);
CDP_API void cdp_count_end(cdp_mesh *mesh);

/* From now on (until false) all communication counts as backward. */
CDP_API void cdp_count_backward(cdp_mesh *mesh, bool on);

/* Count an operation of one's own, such as an allreduce of a group, under the open labels. */
CDP_API void cdp_count_note(cdp_mesh *mesh, cdp_coll_kind kind, uint64_t bytes);

/* What was counted under `path` and below it (NULL: everything), forward or backward. Zeros if
   there is none. */
CDP_API cdp_comm_count cdp_counts(const cdp_mesh *mesh, const char *path, bool backward);
CDP_API void cdp_counts_clear(cdp_mesh *mesh); /* sets all counts to 0; labels stay */

/* A table of labels and operations, forward and backward; TEXT or JSON (others: TEXT). Writes at
   most `room` bytes, a zero at the end among them; `text` may be NULL. Returns the length of the
   whole text without the zero. */
CDP_API uint64_t cdp_counts_draw(
    const cdp_mesh *mesh, cdp_draw_format format, char *text, uint64_t room);

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_COUNTS_API_H */
