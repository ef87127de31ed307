/* tcp/launch_api.h - what launchers tell a rank */
#ifndef CDP_SRC_TCP_LAUNCH_API_H
#define CDP_SRC_TCP_LAUNCH_API_H

#include "../base/config.h"
#include "../base/status_api.h"

#ifndef CDP_NO_ENV
/* Returns the value of a variable, or NULL, as getenv() does. The text must stay valid until the
   cdp_ function that was given this one has returned. */
typedef const char *(*cdp_getenv_func)(void *user, const char *name);

/* What a launcher passes to a process in environment variables. */
typedef struct cdp_launch {
    /* "torchrun" (under cdprun, too), "openmpi", "mvapich", "pals", "flux", "mpich", "slurm"; ""
       when there is none */
    char launcher[12];
    uint32_t rank, world_size;
    /* among the ranks of this machine; local_size 0: not given */
    uint32_t local_rank, local_size;
    /* "": not given and not known */
    char master_addr[256];
    /* 0: likewise */
    uint16_t master_port;
    /* a name that no other job of this launcher has now; "": not known */
    char job[64];
    /* where it keeps files of this job; "": not known */
    char dir[200];
    bool external_store;
} cdp_launch;

/* Which variables are read, in this order:
       torchrun, cdprun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
                          TORCHELASTIC_USE_AGENT_STORE
       Open MPI           OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; PMIX_NAMESPACE,
                          PMIX_SERVER_TMPDIR
       MVAPICH            MV2_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
       PALS (HPE Cray)    PALS_RANKID, PMI_SIZE, PALS_LOCAL_RANKID, PALS_LOCAL_SIZE, PALS_APID
       Flux               FLUX_TASK_RANK, FLUX_JOB_SIZE, FLUX_TASK_LOCAL_ID, FLUX_JOB_ID,
                          FLUX_JOB_NNODES
       MPICH (Hydra)      PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
       Slurm              SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID,
                          SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID, SLURM_STEP_NODELIST,
                          SLURM_JOB_ID, SLURM_STEP_ID, SLURM_STEP_RESV_PORTS, SLURM_RESTART_COUNT
   and MASTER_ADDR, MASTER_PORT. All values come from `get` (NULL: the environment). Without a
   launcher: CDP_OK with launcher "". Errors: INVALID, naming the variable. */
CDP_MUST_CHECK CDP_API cdp_status cdp_launch_read(cdp_getenv_func get, void *user, cdp_launch *out);
#endif /* CDP_NO_ENV */

#endif /* CDP_SRC_TCP_LAUNCH_API_H */
