/* launch/metric.h - numbers under names, as lines of JSON

   Knows: files, two variables. Promises: a line is whole, also where processes share the file. */
#ifndef CDP_SRC_LAUNCH_METRIC_H
#define CDP_SRC_LAUNCH_METRIC_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "metric_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../text/json_write.h"
#include "../text/json_real.h"
#include "../os/words.h"
#include "facts.h"

#include <stdlib.h>
#include <string.h>

#define CDP__METRIC_NAME 200u
#define CDP__METRIC_LOCK_MS 1000u /* how long another process may have the file */

/* Writes `text` behind what the file holds. Returns 0 or -errno. */
CDP__PRIVATE int32_t cdp__metric_append(
    const cdp_os *os, const char *path, const char *text, uint64_t bytes) {
    const cdp_os_files *const f = &os->files;
    const uint64_t until = os->now_ns(os->user) + CDP__METRIC_LOCK_MS * CDP__MS;
    cdp_file_info info;
    int64_t n;
    int32_t err, closed;
    const int32_t fd =
        f->open_file ? f->open_file(os->user, path, CDP_FILE_WRITE | CDP_FILE_CREATE) : -ENOSYS;
    if (fd < 0) return fd;
    while ((err = f->lock_file(os->user, fd, CDP_FILE_LOCK_ALONE)) == -EAGAIN) {
        const uint64_t now = os->now_ns(os->user);
        if (now >= until) break;
        cdp__sleep_until(os, now + CDP__MS);
    }
    if (!err) {
        memset(&info, 0, sizeof info);
        err = f->file_info(os->user, fd, &info);
        n = err ? 0 : f->write_at(os->user, fd, info.bytes, text, bytes);
        if (!err && n < 0) err = (int32_t)n;
        if (!err && (uint64_t)n < bytes) {
            (void)f->cut_file(os->user, fd, info.bytes);
            err = -EIO;
        }
        (void)f->lock_file(os->user, fd, CDP_FILE_UNLOCK);
    }
    closed = f->close_file(os->user, fd);
    return err ? err : closed;
}

/* -1: RANK is no number of a rank. Not by strtol(), which the C library of a board may lack. */
CDP__PRIVATE int32_t cdp__metric_rank(void) {
    const char *at = getenv("RANK");
    uint32_t rank = 0;
    if (!at || !*at) return -1;
    for (; *at >= '0' && *at <= '9' && rank < 65535; ++at)
        rank = rank * 10 + (uint32_t)(*at - '0');
    return !*at && rank < 65535 ? (int32_t)rank : -1;
}

CDP__PRIVATE uint64_t cdp__metric_text(const cdp_metric *m, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    const uint32_t part = (uint32_t)(m->time_us / 1000 % 1000);
    cdp__text_add(&t, "{\"time\": %llu.%u%u%u, \"rank\": %d, \"name\": \"",
        (unsigned long long)(m->time_us / 1000000), part / 100, part / 10 % 10, part % 10,
        (int)m->rank);
    cdp__json_inside(&t, m->name);
    cdp__text_add(&t, "\", \"value\": ");
    cdp__json_real(&t, m->value, false);
    cdp__text_add(&t, "}\n");
    return cdp__text_end(&t);
}

CDP_API cdp_status cdp_metric_put(const cdp_metrics *to, const char *name, double value) {
    const char *path = to && to->path ? to->path : getenv("CDP_METRICS_FILE");
    char text[6 * CDP__METRIC_NAME + 160];
    cdp_metric m;
    int32_t err;
    if (!name) return cdp__missing("cdp_metric_put", "name");
    if (!cdp__launch_label_fits(name, CDP__METRIC_NAME))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_metric_put: the name has %zu characters; it must have 1 to %u, without control "
            "characters",
            strlen(name), CDP__METRIC_NAME);
    m.name = name;
    m.value = value;
    m.time_us = cdp__os_date_us();
    m.rank = cdp__metric_rank();
    if (to && to->func) {
        to->func(&m, to->user);
        return CDP_OK;
    }
    if (!path || !*path) return CDP_OK;
    err = cdp__metric_append(cdp_os_default(), path, text, cdp__metric_text(&m, text, sizeof text));
    if (!err) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, -err, "cdp_metric_put: cannot write %s", path);
}

#endif /* CDP_SRC_LAUNCH_METRIC_H */
