/* group/hub_api.h - ranks in one process */
#ifndef CDP_SRC_GROUP_HUB_API_H
#define CDP_SRC_GROUP_HUB_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"

/* Connects ranks that are threads of one program, or that one thread polls in turn. A payload of at
   least the group's expose_bytes is copied once: the receiver reads it in the sender's memory. */
typedef struct cdp_hub cdp_hub;

typedef struct cdp_hub_desc {
    uint32_t world_size; /* required, > 0 */
    /* memory of one direction of one pair, made on first use (default: 256 KiB) */
    uint64_t ring_bytes;
    const cdp_os *os; /* (default: cdp_os_default()) */
} cdp_hub_desc;

#ifndef CDP_NO_HUB
/* Errors: INVALID (world size), NOMEM. The hub must outlive its groups. Each rank makes one
   group in it, once; groups of some ranks are made of that one. For another world, also after a
   failure (but INVALID: call again), make another hub. */
CDP_MUST_CHECK CDP_API cdp_status cdp_hub_create(const cdp_hub_desc *desc, cdp_hub **out);
CDP_API void cdp_hub_destroy(cdp_hub *hub); /* NULL is allowed */
#endif                                      /* CDP_NO_HUB */

#endif /* CDP_SRC_GROUP_HUB_API_H */
