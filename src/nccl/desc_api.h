/* nccl/desc_api.h - which device, stream and limits */
#ifndef CDP_SRC_NCCL_DESC_API_H
#define CDP_SRC_NCCL_DESC_API_H

#include "../base/config.h"
#include "../group/group_api.h"

/* Those marked * must be equal on all ranks; that is checked. */
typedef struct cdp_nccl_desc {
    /* a cudaStream_t: where the caller's own work is (default: NULL, the legacy default stream) */
    void *stream;
    /* for making the communicator (default: the group's timeout_ms) */
    uint32_t init_timeout_ms;
    uint32_t
        /* how often a thread checks for operations past their deadline and for errors of NCCL, even
           if no caller waits, in ms; costs a call of a host function behind each operation
           (default: 0, no checks) */
        watchdog_ms;
    /* * ranks do not compare their calls over the links */
    bool no_check;
    /* * ranks compare each call before the GPU gets it, so that it never hangs in a mismatch;
       slow */
    bool check_first;
    /* * do not watch over the links whether a rank has died while GPUs work */
    bool no_peer_watch;
    /* cdp_work_wait() blocks the host until the operation is done or its deadline has passed */
    bool blocking_wait;
    /* * memory of cdp_nccl_alloc and of gradients is not registered with the communicator */
    bool no_register;
    bool
        /* * when the group fails, revoke the communicator, and keep it for `from`; no
           ncclCommRevoke: UNSUPPORTED */
        keep;
    /* * `from` is a part of this group, and others are new */
    bool grow;
    cdp_group *
        /* make the communicator from the one of this group, which may have failed (then:
           `keep`). Without `grow`: its ranks, in their order, without those that are not here.
           With it: its ranks come first in this group in the same order, and new ranks leave
           this NULL. When NCCL fails on the way, so does that group */
        from;
    /* files to load in place of the usual names; what the first attach of the process loaded */
    const char *cudart;
    /* serves all later ones */
    const char *nccl;
    const char *nvrtc;
    const char *driver;
} cdp_nccl_desc;

#endif /* CDP_SRC_NCCL_DESC_API_H */
