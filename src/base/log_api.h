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

/* Where messages go. `func` may be called from any thread of the library, one call at a time per
   group; it must not call back into the library. `rank` is -1 before a rank is known. Default:
   lines on stderr (nowhere under CDP_NO_STDIO). */
typedef struct cdp_logger {
    void (*func)(cdp_log_level level, const char *text, int32_t rank, void *user);
    void *user;
    cdp_log_level level; /* (default: WARN) messages less urgent than this are not made */
} cdp_logger;

#endif /* CDP_SRC_BASE_LOG_API_H */
