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
} cdp_item;

#endif /* CDP_SRC_DTENSOR_ITEM_API_H */
