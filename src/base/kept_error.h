/* base/kept_error.h - an error that was kept while other calls went on

   Knows: this thread's last error. Promises: a kept error comes back with all that it knew: who
   saw it first, in which operation, and where. */
#ifndef CDP_SRC_BASE_KEPT_ERROR_H
#define CDP_SRC_BASE_KEPT_ERROR_H

#include "config.h"
#include "status_api.h"
#include "error_api.h"
#include "compiler.h"

/* Makes `e` this thread's last error again, as `status`. That error is the library's own, and const
   for its callers alone. */
CDP__PRIVATE cdp_status cdp__error_again(cdp_status status, const cdp_error *e) {
    cdp_error *const last = (cdp_error *)(uintptr_t)cdp_last_error();
    *last = *e;
    return last->status = status;
}

#endif /* CDP_SRC_BASE_KEPT_ERROR_H */
