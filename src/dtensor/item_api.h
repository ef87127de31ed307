/* dtensor/item_api.h - a tensor with a name */
#ifndef CDP_SRC_DTENSOR_ITEM_API_H
#define CDP_SRC_DTENSOR_ITEM_API_H

#include "../base/config.h"
#include "mesh_api.h"
#include "dtensor_api.h"

/* A tensor with a name: an entry of a checkpoint. */
typedef struct cdp_item {
    const char *name; /* UTF-8, at most 511 bytes, unique */
    /* layout.mesh NULL: every rank of the group holds the whole tensor, as in cdp_ddp */
    cdp_dtensor tensor;
    /* in files, where `tensor` is a flat view of it (default: the shape of the tensor) */
    uint32_t ndim;
    uint64_t shape[CDP_TENSOR_DIMS];
    const char *file; /* begin of file names (default: "model") */
    /* `part`: this rank holds `count` elements of it from `first` on, row-major, and other ranks
       hold the rest, as in cdp_fsdp_piece. `tensor` has the shape of the whole, no mesh, and the
       memory of these elements. Where `copies` ranks hold the same ones, `copy` counts them from 0
       (default: one does). A rank that holds none has count 0 */
    bool part;
    uint64_t first, count;
    uint32_t copy, copies;
} cdp_item;

#endif /* CDP_SRC_DTENSOR_ITEM_API_H */
