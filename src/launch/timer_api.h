/* launch/timer_api.h - times after which a worker that is stuck is ended by its launcher */
#ifndef CDP_SRC_LAUNCH_TIMER_API_H
#define CDP_SRC_LAUNCH_TIMER_API_H

#include "../base/config.h"
#include "../base/status_api.h"

/* In a worker: what is done now takes at most `seconds`. Without cdp_timer_end() until then, the
   agent or cdprun kills this worker, names the label as the reason, and goes on as after every
   failure. A timer that runs under this label begins again. `label`: 1 to 100 characters, without
   control characters. Where no launcher watches (the variable CDP_TIMER_FILE is not set) nothing
   happens. Any thread. Errors: INVALID (label; seconds is not above 0 or more than 1e9); BUSY (16
   timers of this process run); IO. */
CDP_MUST_CHECK CDP_API cdp_status cdp_timer_begin(double seconds, const char *label);
/* The timer under this label ends. Does nothing where there is none. Any thread. */
CDP_API void cdp_timer_end(const char *label);

#endif /* CDP_SRC_LAUNCH_TIMER_API_H */
