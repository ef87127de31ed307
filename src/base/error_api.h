/* base/error_api.h - the last error, as values and as text */
#ifndef CDP_SRC_BASE_ERROR_API_H
#define CDP_SRC_BASE_ERROR_API_H

#include "config.h"
#include "status_api.h"
#include "types_api.h"

/* Everything known about a failure. `text` is one complete sentence that already contains the
   other fields. Ranks are those in the world, also where a group of some of them failed. */
typedef struct cdp_error {
    cdp_status status;
    /* who reports it, -1 outside a group */
    int32_t rank;
    /* the rank to blame (it died, is late, or differs), -1: none */
    int32_t peer;
    /* the rank that saw the cause first; equals `rank` when it was seen here */
    int32_t origin;
    /* the operation that was running, NONE outside one */
    cdp_coll_kind kind;
    /* round of that operation */
    uint32_t round;
    /* sequence number of that operation in its group, from 1; 0 outside one */
    uint64_t op_seq;
    /* errno, 0 when the operating system had no part in it */
    int32_t sys_errno;
    /* the place in the library where it was noticed: static memory, never NULL */
    const char *file;
    /* (0: not in the library) */
    uint32_t line;
    char text[CDP_ERROR_TEXT];
} cdp_error;

/* The last failure that a call on this thread reported. Never NULL; status CDP_OK before the first
   one. A success does not clear it. Valid until the thread's next failing call. A failure that a
   progress thread saw arrives here when this thread waits for the operation or uses the group. */
CDP_API const cdp_error *cdp_last_error(void);

#ifdef CDP_NO_LOG_STRINGS
#define CDP_AT(call) (call)
#else
/* st = CDP_AT(cdp_allreduce(group, ...)): where the call fails, the text of cdp_last_error() ends
   with the caller's place, as " (called at train.c:120)", where there is room. Of a MISMATCH each
   rank says its own place. Around a start with _async the place is that of the start, around
   cdp_work_wait() that of the wait. The call must return a cdp_status. */
#define CDP_AT(call) cdp_error_at(__FILE__, (uint32_t)__LINE__, (call))

/* What CDP_AT() calls: adds `file`, without its folders, and `line` to the last error of this
   thread, if `status` is its status and it has no such place yet; returns `status`. `file` NULL:
   nothing is added. Any thread. */
CDP_MUST_CHECK CDP_API cdp_status cdp_error_at(const char *file, uint32_t line, cdp_status status);
#endif

/* Print cdp_last_error() as one line ("cdp: ...") to a `FILE *` (usually stderr) and return 1,
   so that main() can end with `return cdp_print_error(stderr);`. Does nothing but return 1 under
   CDP_NO_STDIO. */
CDP_API int cdp_print_error(void *file);

/* Leave the reason of this rank's failure to the launcher: write it to the file `path` in the form
   that torchrun and cdprun read, {"message": {"message": ..., "extraInfo": {"py_callstack": ...,
   "timestamp": "seconds since 1970"}}}, replacing what is there. `message` (NULL: cdp_last_error())
   is UTF-8 text for people. ..._from_env: to the file that the variable TORCHELASTIC_ERROR_FILE
   names, and nowhere (CDP_OK) if there is none. Call it before the program ends, as
   cdp_print_error(): cdp_last_error() stays as it is even when this fails. Any thread. Errors:
   INVALID (no path); IO (the file cannot be written, errno says why); UNSUPPORTED under
   CDP_NO_FILES. */
CDP_API cdp_status cdp_error_record(const char *path, const char *message);
CDP_API cdp_status cdp_error_record_from_env(const char *message);

#endif /* CDP_SRC_BASE_ERROR_API_H */
