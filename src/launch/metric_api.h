/* launch/metric_api.h - numbers of a program under names */
#ifndef CDP_SRC_LAUNCH_METRIC_API_H
#define CDP_SRC_LAUNCH_METRIC_API_H

#include "../base/config.h"
#include "../base/status_api.h"

typedef struct cdp_metric {
    const char *name;
    double value;
    uint64_t time_us; /* since 1970 */
    int32_t rank;     /* of the variable RANK; -1: it is not set */
} cdp_metric;

/* Where numbers go. All 0: to the file that the variable CDP_METRICS_FILE names, or nowhere. */
typedef struct cdp_metrics {
    /* in place of a file: hears of each number, in the thread that puts it; the metric is valid
       during the call */
    void (*func)(const cdp_metric *metric, void *user);
    void *user;
    /* a file to which lines of JSON are appended: {"time", "rank", "name", "value"}, where what is
       not finite is null. Processes of one machine may share it. "": nowhere */
    const char *path;
} cdp_metrics;

/* Puts a number under a name, of 1 to 200 characters without control characters. `to`: NULL means
   all 0. Each call opens the file and writes one line: for some numbers a second, not for each
   operation. Any thread. Errors: INVALID (name); IO (the file). */
CDP_MUST_CHECK CDP_API cdp_status cdp_metric_put(
    const cdp_metrics *to, const char *name, double value);

#endif /* CDP_SRC_LAUNCH_METRIC_API_H */
