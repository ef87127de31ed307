/* dtensor/local_map_api.h - a function of local arrays */
#ifndef CDP_SRC_DTENSOR_LOCAL_MAP_API_H
#define CDP_SRC_DTENSOR_LOCAL_MAP_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "layout_api.h"
#include "dtensor_api.h"

#ifndef CDP_NO_TENSOR_OPS

typedef struct cdp_local_map_desc {
    const cdp_dtensor *in;
    uint32_t in_count;
    const cdp_layout *need; /* in_count layouts; one with mesh NULL, or need NULL: the input's */
    bool redistribute;      /* convert inputs with other layouts; false: these are INVALID */
    cdp_dtensor *out;       /* with their layouts and data */
    uint32_t out_count;
    cdp_status (*func)(void *user, const cdp_dtensor *in, cdp_dtensor *out);
    void *user;
} cdp_local_map_desc;

/* Run func once on the local pieces of the inputs, which have the layouts that it needs. The pieces
   that it writes are taken as pieces of the layouts of `out`. Collective if inputs are
   redistributed. Errors: INVALID (an input has another layout: names it and both layouts), NOMEM,
   what func returns, and those of cdp_redistribute(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_local_map(const cdp_local_map_desc *desc);

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_LOCAL_MAP_API_H */
