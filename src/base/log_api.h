/* base/log_api.h - messages for a log */
#ifndef CDP_SRC_BASE_LOG_API_H
#define CDP_SRC_BASE_LOG_API_H

#include "config.h"

typedef enum cdp_log_level {
    CDP_LOG_DEFAULT = 0, /* means WARN */
    CDP_LOG_ERROR,
    CDP_LOG_WARN,
    CDP_LOG_INFO,
    CDP_LOG_DEBUG,
    CDP_LOG_SILENT
} cdp_log_level;

/* Where messages go. ERROR and WARN: what goes wrong. INFO: a line for each start, group and ddp,
   with its settings. DEBUG: a line for each collective as it begins and as it ends. `func` may be
   called from any thread of the library, one call at a time per group; it must not call back into
   the library. `rank` is -1 before a rank is known. Default: lines on stderr (nowhere under
   CDP_NO_STDIO). */
typedef struct cdp_logger {
    void (*func)(cdp_log_level level, const char *text, int32_t rank, void *user);
    void *user;
    cdp_log_level level; /* (default: WARN) messages less urgent than this are not made */
    /* how many INFO and DEBUG lines about a group, and about those that share its links, may be
       made in one second; a line says how many were left out. Warnings and errors are never left
       out (default: any number) */
    uint32_t lines_per_second;
    /* where the level is read before each message, in place of `level`: a variable of the program
       that holds a cdp_log_level, and must live as long as what this logger was given to. The
       program may change it at any time, in a signal handler, too (default: NULL) */
    const volatile uint32_t *level_at;
} cdp_logger;

#endif /* CDP_SRC_BASE_LOG_API_H */
