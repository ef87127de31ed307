/* tcp/create_api.h - ranks find each other, and are connected */
#ifndef CDP_SRC_TCP_CREATE_API_H
#define CDP_SRC_TCP_CREATE_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "desc_api.h"

/* Join the job: meet the other ranks through the store, then return this rank's group. Blocks
   until every rank is there, at most init_timeout_ms. Errors: see the top of this file; nothing
   is left behind after one. */
CDP_MUST_CHECK CDP_API cdp_status cdp_init(const cdp_tcp_desc *desc, cdp_group **out);

#ifndef CDP_NO_FRAMES
/* A job that this rank is about to join. */
typedef struct cdp_starting cdp_starting;

/* cdp_init() for a program that must not block: checks *desc and begins to join; cdp_init_poll()
   goes on with it. All that *desc points to (texts, store, os, group.choices) must stay valid until
   that ends. Errors: INVALID, UNSUPPORTED, NOMEM, and then *out is NULL. A name in master_addr
   (rank 0), a file that another process has locked and `exchange` may still block: use an address
   and master_port. */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_start(const cdp_tcp_desc *desc, cdp_starting **out);

/* Goes on for at most `budget_us` microseconds (0: one step, without waiting); waiting may take a
   millisecond more. CDP_PENDING: call it again. Everything else ends the start and releases it:
   CDP_OK, then *out is this rank's group; or what cdp_init() would have returned. STATE: the start
   is over already, or this process is a child, by fork(), of the one that began it. One thread at a
   time. */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_poll(
    cdp_starting *starting, uint32_t budget_us, cdp_group **out);

/* Ends a start at once and releases it; NULL is allowed. The other ranks' starts fail with an error
   that names this rank: at once, or at their deadline if this rank had hardly begun. Does nothing
   for a start that is over, and in a child of fork(). */
CDP_API void cdp_init_cancel(cdp_starting *starting);
#endif /* CDP_NO_FRAMES */

#ifndef CDP_NO_ENV
/* Fill in rank, world_size and how to find rank 0 from the variables that a launcher has set:
   cdprun, torchrun, mpirun of Open MPI, mpiexec of MPICH (Hydra), srun of Slurm, MVAPICH, PALS,
   Flux; see cdp_launch_read() for which. MASTER_ADDR and MASTER_PORT are read under every launcher.
   If they are missing: under torchrun and cdprun the address is 127.0.0.1, and a missing port is an
   error; under Slurm they are the first node of the step and a port made from the numbers of job
   and step; under the others with all ranks on one machine they meet in a file named after the job
   (Open MPI: in its session directory; MPICH, MVAPICH: after the parent process, in TMPDIR), so any
   number of jobs can start at once; on several machines an error that says what to pass.
   TORCHELASTIC_USE_AGENT_STORE=True sets external_store
   (TORCHELASTIC_RESTART_COUNT is not read: it differs between the agents of one start);
   CDP_JOB_KEY becomes job_key unless there is one, and CDP_TRUST_NETWORK=1 (`cdprun --open`)
   sets trust_network; CDP_MAC=1 sets mac; CDP_INTERFACES is `interfaces`, CDP_CONNECTIONS
   `connections`, CDP_BACKEND `backend`, CDP_LOG_LEVEL (error, warn, info, debug, silent)
   logger.level, and CDP_LOG_LINES logger.lines_per_second, unless the desc has them. What the desc
   has already counts before the environment: rank and world_size if world_size is not 0,
   master_addr, master_port; a program that gives these two numbers needs no launcher. Where no
   launcher has set anything: an error, or with alone_ok one rank. The texts are valid until the
   environment changes or this thread calls this again.
   Errors: INVALID, naming the variable, what it holds and what it should hold. */
CDP_MUST_CHECK CDP_API cdp_status cdp_tcp_desc_from_env(cdp_tcp_desc *desc);

/* cdp_tcp_desc_from_env() on a copy of *desc (NULL: all defaults), then cdp_init(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_from_env(const cdp_tcp_desc *desc, cdp_group **out);

/* Fill in how to find rank 0 from one text:
       env://                  cdp_tcp_desc_from_env()
       tcp://HOST:PORT         master_addr and master_port; HOST as in [fe80::1%eth0] if it has
                               colons
       file:///PATH            file
   Each may go on with ?rank=R&world_size=N&backend=NAME, or some of these, which count before the
   desc and the environment. The texts are valid until this thread calls this again. Errors:
   INVALID. */
CDP_MUST_CHECK CDP_API cdp_status cdp_tcp_desc_from_url(const char *url, cdp_tcp_desc *desc);

/* cdp_tcp_desc_from_url() on a copy of *desc (NULL: all defaults), then cdp_init(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_init_url(
    const char *url, const cdp_tcp_desc *desc, cdp_group **out);
#endif /* CDP_NO_ENV */

#endif /* CDP_SRC_TCP_CREATE_API_H */
