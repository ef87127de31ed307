/* mem/names.h - names and time

   Knows: the names of actions, and the time of day. Promises: every value of an action has a
   name. */
#ifndef CDP_SRC_MEM_NAMES_H
#define CDP_SRC_MEM_NAMES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/words.h"
#include "desc_api.h"

CDP_API const char *cdp_mem_action_name(cdp_mem_action action) {
    static const char *const names[CDP_MEM_ACTION_COUNT] = {"alloc", "free_requested",
        "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom",
        "snapshot", "user_defined", "annotate"};
    return (uint32_t)action < CDP_MEM_ACTION_COUNT ? names[action] : "?";
}

CDP__PRIVATE uint64_t cdp__mem_wall_us(void *user) {
    (void)user;
    return cdp__os_date_us();
}

#endif /* CDP_SRC_MEM_NAMES_H */
