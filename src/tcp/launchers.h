/* tcp/launchers.h - variables that launchers set (pure)

   Knows: the variables of cdprun, torchrun, Open MPI, MVAPICH, PALS, Flux, MPICH and Slurm.
   Promises: an error names the variable, its value, and what it should contain. */
#ifndef CDP_SRC_TCP_LAUNCHERS_H
#define CDP_SRC_TCP_LAUNCHERS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/hash.h"
#include "launch_api.h"

#ifndef CDP_NO_ENV

typedef struct cdp__vars {
    cdp_getenv_func get;
    void *user;
} cdp__vars;

/* The value of a variable; NULL if it is unset or empty. */
CDP__PRIVATE CDP__ONE_COPY const char *cdp__var(const cdp__vars *v, const char *name) {
    const char *text = v->get(v->user, name);
    return text && *text ? text : NULL;
}

/* Parses a decimal integer in lo .. hi. */
CDP__PRIVATE cdp_status cdp__var_number(
    const cdp__vars *v, const char *name, uint32_t lo, uint32_t hi, uint32_t *out) {
    const char *text = cdp__var(v, name), *p = text;
    uint64_t n = 0;
    if (!text)
        return cdp__fail(CDP_ERR_INVALID,
            "the environment variable %s is not set, though others of its launcher are; start the "
            "program with `cdprun -n 4 PROGRAM`, torchrun, mpirun or srun",
            name);
    for (; *p >= '0' && *p <= '9' && n <= hi; ++p)
        n = n * 10 + (uint64_t)(*p - '0');
    if (*p || p == text || n < lo || n > hi)
        return cdp__fail(CDP_ERR_INVALID,
            "the environment variable %s is '%s'; it must be a whole number from %u to %u", name,
            text, lo, hi);
    *out = (uint32_t)n;
    return CDP_OK;
}

/* Reads rank, world size, local rank and local size from the variables with these names. The last
   two names may be NULL, and these variables may be unset. */
CDP__PRIVATE cdp_status cdp__launch_numbers(const cdp__vars *v, cdp_launch *l, const char *rank,
    const char *size, const char *local_rank, const char *local_size) {
    cdp_status st = cdp__var_number(v, size, 1, 65535, &l->world_size);
    if (st == CDP_OK) st = cdp__var_number(v, rank, 0, 65534, &l->rank);
    if (st == CDP_OK && l->rank >= l->world_size)
        st = cdp__fail(CDP_ERR_INVALID,
            "the environment variable %s is %u but %s is %u; ranks are 0 to %u", rank, l->rank,
            size, l->world_size, l->world_size - 1);
    if (st == CDP_OK && local_rank && cdp__var(v, local_rank))
        st = cdp__var_number(v, local_rank, 0, 65534, &l->local_rank);
    if (st == CDP_OK && local_size && cdp__var(v, local_size))
        st = cdp__var_number(v, local_size, 1, 65535, &l->local_size);
    return st;
}

/* Appends text to the name of a key or file; special characters become dashes. */
CDP__PRIVATE void cdp__name_add(cdp__text *t, const char *text) {
    char c;
    for (; *text && t->used < 40; ++text) {
        c = *text;
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.'
                || c == '_'))
            c = '-';
        cdp__text_add(t, "%c", c);
    }
}

/* The first host of a Slurm node list: "node[003-010,012],login" gives node003. False if the
   list is invalid. */
CDP__PRIVATE bool cdp__first_host(const char *list, char *out, uint64_t size) {
    uint64_t n = 0;
    bool inside = false, skipping = false;
    for (; *list && (inside || *list != ','); ++list) {
        const char c = *list;
        if (c == '[' || c == ']') {
            if (inside == (c == '[')) return false;
            inside = c == '[';
            skipping = false;
        } else if (inside && (c == '-' || c == ',')) {
            skipping = true; /* skip the rest of a range or list */
        } else if (!skipping) {
            if (c <= ' ' || c > '~' || n + 1 >= size) return false;
            out[n++] = c;
        }
    }
    out[n] = 0;
    return n > 0 && !inside;
}

/* The number of tasks on node `node` in a Slurm list like "2(x3),1": two on each of the first
   three nodes, one on the fourth. 0: not in the list. */
CDP__PRIVATE uint32_t cdp__tasks_of(const char *list, uint32_t node) {
    uint64_t tasks = 0, times;
    const char *p = list;
    for (;; ++p) {
        for (tasks = 0; *p >= '0' && *p <= '9' && tasks < 65536; ++p)
            tasks = tasks * 10 + (uint64_t)(*p - '0');
        times = 1;
        if (p[0] == '(' && p[1] == 'x') {
            for (p += 2, times = 0; *p >= '0' && *p <= '9' && times < 1000000; ++p)
                times = times * 10 + (uint64_t)(*p - '0');
            if (*p++ != ')') return 0;
        }
        if (node < times) return tasks < 65536 ? (uint32_t)tasks : 0;
        node -= (uint32_t)times;
        if (*p != ',') return 0;
    }
}

/* srun sets the rank and the size, but not the address of rank 0, which runs on the first node of
   the step. A script under sbatch has most of these variables, too, without being a task of a step;
   only SLURM_STEP_ID tells them apart. */
CDP__PRIVATE cdp_status cdp__launch_slurm(const cdp__vars *v, cdp_launch *l) {
    const char *list = cdp__var(v, "SLURM_STEP_NODELIST"), *job = cdp__var(v, "SLURM_JOB_ID"),
               *step = cdp__var(v, "SLURM_STEP_ID");
    const char *ports = cdp__var(v, "SLURM_STEP_RESV_PORTS"),
               *tasks = cdp__var(v, "SLURM_STEP_TASKS_PER_NODE"),
               *again = cdp__var(v, "SLURM_RESTART_COUNT");
    cdp__text t = cdp__text_of(l->job, sizeof l->job);
    uint32_t node = 0, port = 0;
    cdp_status st = cdp__launch_numbers(v, l, "SLURM_PROCID",
        cdp__var(v, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
        "SLURM_LOCALID", NULL);
    if (st != CDP_OK) return st;
    if (tasks && cdp__var(v, "SLURM_NODEID"))
        st = cdp__var_number(v, "SLURM_NODEID", 0, 65534, &node);
    if (st != CDP_OK) return st;
    if (tasks) l->local_size = cdp__tasks_of(tasks, node);
    if (!list) list = cdp__var(v, "SLURM_JOB_NODELIST");
    if (!list || !cdp__first_host(list, l->master_addr, sizeof l->master_addr))
        return cdp__fail(CDP_ERR_INVALID,
            "SLURM_STEP_NODELIST is '%s', which is no list of hosts; set MASTER_ADDR to the "
            "machine of rank 0",
            list ? list : "");
    if (l->local_size == l->world_size)
        cdp__format(l->master_addr, sizeof l->master_addr, "127.0.0.1");
    cdp__text_add(&t, "slurm-");
    cdp__name_add(&t, job ? job : "");
    cdp__text_add(&t, ".");
    cdp__name_add(&t, step);
    if (again) cdp__text_add(&t, ".");
    if (again) cdp__name_add(&t, again);
    for (; ports && *ports >= '0' && *ports <= '9' && port < 65536; ++ports)
        port = port * 10 + (uint32_t)(*ports - '0');
    /* below the range of ephemeral ports */
    if (!port || port > 65535)
        port = 10000 + (uint32_t)(cdp__hash(0, l->job, cdp__text_kept(&t)) % 20000);
    l->master_port = (uint16_t)port;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__launch_torchrun(const cdp__vars *v, cdp_launch *l) {
    const char *agent = cdp__var(v, "TORCHELASTIC_USE_AGENT_STORE");
    cdp_status st =
        cdp__launch_numbers(v, l, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    if (agent && strcmp(agent, "True") == 0) l->external_store = true;
    return st;
}

/* A launcher that says all by variables of its own. */
typedef struct cdp__launcher {
    const char *name, *rank, *size, *local_rank;
    /* NULL: it has no such variable. job: a name; nodes: 1 where local_size is the world's */
    const char *local_size, *job, *nodes;
} cdp__launcher;

/* The one that started this process, or NULL. MPICH's Hydra is looked for last, because PALS and
   Flux set its variables, too; but where Hydra runs inside of these, it sets MPI_LOCALRANKID. In a
   Slurm step, PMI_RANK alone may be set by srun itself. */
CDP__PRIVATE const cdp__launcher *cdp__launcher_of(const cdp__vars *v, bool step) {
    static const cdp__launcher all[] = {
        {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL},
        {"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
            "MV2_COMM_WORLD_LOCAL_SIZE", NULL, NULL},
        {"pals", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_APID",
            NULL},
        {"flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", NULL, "FLUX_JOB_ID",
            "FLUX_JOB_NNODES"},
        {"mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL},
    };
    const bool hydra = cdp__var(v, "PMI_RANK") && cdp__var(v, "MPI_LOCALRANKID");
    uint32_t i;
    for (i = 0; i < sizeof all / sizeof *all; ++i) {
        const bool last = i + 1 == sizeof all / sizeof *all;
        if (!cdp__var(v, all[i].rank) || (last && step && !hydra)) continue;
        if (!all[i].job || !hydra) return &all[i];
    }
    return NULL;
}

CDP__PRIVATE cdp_status cdp__launch_row(
    const cdp__vars *v, const cdp__launcher *row, cdp_launch *l) {
    cdp__text t = cdp__text_of(l->job, sizeof l->job);
    const char *const job = row->job ? cdp__var(v, row->job) : NULL;
    uint32_t nodes = 0;
    cdp_status st =
        cdp__launch_numbers(v, l, row->rank, row->size, row->local_rank, row->local_size);
    if (st == CDP_OK && row->nodes && cdp__var(v, row->nodes))
        st = cdp__var_number(v, row->nodes, 1, 65535, &nodes);
    if (nodes == 1) l->local_size = l->world_size;
    if (!job) return st;
    cdp__text_add(&t, "%s-", row->name);
    cdp__name_add(&t, job);
    return st;
}

/* Open MPI has no variable of its own for these; MPI may run without PMIx. */
CDP__PRIVATE void cdp__launch_openmpi(const cdp__vars *v, cdp_launch *l) {
    const char *const dir = cdp__var(v, "PMIX_SERVER_TMPDIR");
    const char *job = cdp__var(v, "PMIX_NAMESPACE");
    cdp__text t = cdp__text_of(l->job, sizeof l->job);
    if (!job) job = cdp__var(v, "OMPI_MCA_ess_base_jobid");
    if (job) {
        cdp__text_add(&t, "ompi-");
        cdp__name_add(&t, job);
    }
    if (dir && strlen(dir) < sizeof l->dir) cdp__format(l->dir, sizeof l->dir, "%s", dir);
}

CDP__PRIVATE CDP__COLD cdp_status cdp__launch_read(const cdp__vars *v, cdp_launch *l) {
    const char *name = "", *addr = cdp__var(v, "MASTER_ADDR");
    const bool step = cdp__var(v, "SLURM_STEP_ID") && cdp__var(v, "SLURM_PROCID");
    const cdp__launcher *const row = cdp__launcher_of(v, step);
    cdp_status st = CDP_OK;
    uint32_t port;
    memset(l, 0, sizeof *l);
    if (cdp__var(v, "RANK") || cdp__var(v, "WORLD_SIZE")) {
        name = "torchrun";
        st = cdp__launch_torchrun(v, l);
    } else if (row) {
        name = row->name;
        st = cdp__launch_row(v, row, l);
        if (strcmp(name, "openmpi") == 0) cdp__launch_openmpi(v, l);
    } else if (step) {
        name = "slurm";
        st = cdp__launch_slurm(v, l);
    }
    if (st != CDP_OK) return st;
    cdp__format(l->launcher, sizeof l->launcher, "%s", name);
    if (addr && strlen(addr) >= sizeof l->master_addr)
        return cdp__fail(CDP_ERR_INVALID, "MASTER_ADDR has %u characters; no host has such a name",
            (unsigned)strlen(addr));
    if (addr) cdp__format(l->master_addr, sizeof l->master_addr, "%s", addr);
    if (l->world_size == 1 || !v->get(v->user, "MASTER_PORT")) return CDP_OK;
    st = cdp__var_number(v, "MASTER_PORT", 1, 65535, &port);
    if (st == CDP_OK) l->master_port = (uint16_t)port;
    return st;
}

#endif /* CDP_NO_ENV */

#endif /* CDP_SRC_TCP_LAUNCHERS_H */
