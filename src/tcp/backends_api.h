/* tcp/backends_api.h - ways to start, by name */
#ifndef CDP_SRC_TCP_BACKENDS_API_H
#define CDP_SRC_TCP_BACKENDS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "desc_api.h"

#ifndef CDP_NO_ENV
/* Makes this rank's group, as cdp_init() does; `backend` of *desc is "tcp", so it may call that. It
   returns a status below 0 after a failure, and has left nothing behind then. */
typedef cdp_status (*cdp_backend_func)(const cdp_tcp_desc *desc, void *user, cdp_group **out);

/* Give a way to start a name, so that `backend` of a desc, backend=NAME in a URL or the variable
   CDP_BACKEND can choose it: cdp_init(), cdp_init_url() and cdp_init_from_env() then call `create`.
   For example "nccl": a function that calls cdp_init() and cdp_nccl_attach(); "mpi": one that calls
   cdp_init_from_mpi(). "tcp", and "gloo" as PyTorch calls it, are cdp_init() itself. `name` is
   copied: 1 to 31 letters, digits, '_' and '-'. A second call with a name replaces its function; a
   NULL function takes the name away. At most 8 names in a process; call it before other threads
   start groups. Errors: INVALID (the name; "tcp" and "gloo"; a NULL function of an unknown name),
   NOMEM (8 names). */
CDP_MUST_CHECK CDP_API cdp_status cdp_backend_register(
    const char *name, cdp_backend_func create, void *user);
#endif

#endif /* CDP_SRC_TCP_BACKENDS_API_H */
