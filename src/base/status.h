/* base/status.h - one row for each status (pure)

   Knows: the name of each status, what it means, who may report it. Promises: a status that comes
   from another process is one of these rows, or is refused. The compiler names a status of
   cdp_status that has no row. */
#ifndef CDP_SRC_BASE_STATUS_H
#define CDP_SRC_BASE_STATUS_H

#include "config.h"
#include "status_api.h"
#include "compiler.h"

/*   name     of the status
     status   its value
     group    1: a group may end with it, so that ranks report it to each other
     meaning  what a program that has only the number can say */
#define CDP__STATUSES(X)                                                                        \
    X("OK", CDP_OK, 0, "success")                                                               \
    X("PENDING", CDP_PENDING, 0, "not finished yet; call again")                                \
    X("INVALID", CDP_ERR_INVALID, 1, "an argument is wrong; nothing was done")                  \
    X("NOMEM", CDP_ERR_NOMEM, 1, "the allocator returned nothing")                              \
    X("TIMEOUT", CDP_ERR_TIMEOUT, 1, "the deadline passed")                                     \
    X("PEER_LOST", CDP_ERR_PEER_LOST, 1, "a peer's connection ended or could not be made")      \
    X("ABORTED", CDP_ERR_ABORTED, 1, "a rank called cdp_group_abort()")                         \
    X("MISMATCH", CDP_ERR_MISMATCH, 1, "ranks called different things, or have other settings") \
    X("UNSUPPORTED", CDP_ERR_UNSUPPORTED, 1, "this combination is not supported")               \
    X("IO", CDP_ERR_IO, 1, "the operating system refused; see sys_errno")                       \
    X("STORE", CDP_ERR_STORE, 1, "the key-value store failed or went away")                     \
    X("STATE", CDP_ERR_STATE, 1, "the call came at the wrong time")                             \
    X("INTERNAL", CDP_ERR_INTERNAL, 1, "a mistake in this library; please report it")           \
    X("REMOTE", CDP_ERR_REMOTE, 0, "the function on another rank reported a failure")           \
    X("BUSY", CDP_ERR_BUSY, 0, "a limit of this rank or of the peer is reached; nothing was done")

typedef struct cdp__status_row {
    const char *name;
#ifndef CDP_NO_LOG_STRINGS
    const char *meaning;
#endif
    bool group;
} cdp__status_row;
#ifdef CDP_NO_LOG_STRINGS
#define CDP__STATUS_ROW(name, group, meaning) \
    { name, group }
#else
#define CDP__STATUS_ROW(name, group, meaning) \
    { name, meaning, group }
#endif

/* The row of a number, which another process may have sent; a row without meaning for others. */
CDP__PRIVATE CDP__COLD const cdp__status_row *cdp__status_row_of(int32_t number) {
    static const cdp__status_row unknown = CDP__STATUS_ROW("?", false, "an unknown status");
#define CDP__ROW(name, status, group, meaning)                                           \
    case status: {                                                                       \
        static const cdp__status_row row = CDP__STATUS_ROW(name, (group) != 0, meaning); \
        return &row;                                                                     \
    }
    switch ((cdp_status)number) { CDP__STATUSES(CDP__ROW) }
#undef CDP__ROW
    return &unknown;
}

/* Whether a number is an error of this library. */
CDP__PRIVATE bool cdp__status_is_error(int32_t number) {
    return number < 0 && cdp__status_row_of(number)->name[0] != '?';
}

#endif /* CDP_SRC_BASE_STATUS_H */
