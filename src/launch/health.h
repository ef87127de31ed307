/* launch/health.h - a file that shows that an agent works

   Knows: the state of an agent. Promises: whoever reads the file sees all of it; it is at most a
   second older than the last look of the agent. */
#ifndef CDP_SRC_LAUNCH_HEALTH_H
#define CDP_SRC_LAUNCH_HEALTH_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "launch_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/words.h"
#include "../os/file_text.h"
#include "state.h"
#include "ends.h"

#define CDP__AGENT_HEALTH_MS 1000u /* how often the file is written while nothing changes */

/* Writes the file, if it is time or the state has changed. Returns 0 or an errno. */
CDP__PRIVATE int32_t cdp__agent_health(cdp_agent *a) {
    const uint64_t now = cdp__agent_now(a);
    char path[CDP__AGENT_PATH + 8];
    uint32_t i, running = 0;
    cdp__file_text f;
    int32_t err;
    if (!a->desc.health_file) return 0;
    if (now < a->health_ns && a->health_state == a->state) return 0;
    a->health_ns = now + CDP__AGENT_HEALTH_MS * CDP__MS;
    a->health_state = a->state;
    for (i = 0; i < a->desc.workers; ++i)
        running += a->workers[i].p.pid && !a->workers[i].p.ended;
    cdp__format(path, sizeof path, "%s.new", a->desc.health_file);
    err = cdp__file_text_open(&f, a->os, path);
    if (err) return err;
    cdp__text_add(&f.text, "{\"state\": \"%s\"", cdp_agent_state_name(a->state));
    cdp__agent_json_ms(&f.text, "time", cdp__os_date_us() / 1000);
    cdp__agent_json_text(&f.text, "host", a->host);
    cdp__text_add(&f.text, ", \"attempt\": %u, \"workers\": %u, \"running\": %u}\n", a->attempt,
        a->desc.workers, running);
    err = cdp__file_text_close(&f);
    if (!err) err = -a->os->files.rename_file(a->os->user, path, a->desc.health_file);
    return err;
}

#endif /* CDP_SRC_LAUNCH_HEALTH_H */
