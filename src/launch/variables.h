/* launch/variables.h - the variables of a rank, as torchrun's workers find them

   Knows: their names, and where their values come from. Promises: each is set or taken away, so
   that none reaches a rank from a launcher around this one; but those of ranks that stay are the
   caller's where this launcher starts none. */
#ifndef CDP_SRC_LAUNCH_VARIABLES_H
#define CDP_SRC_LAUNCH_VARIABLES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"

#include <stddef.h>
#include <string.h>

/* What the variables say. */
typedef struct cdp__launch_place {
    uint32_t rank, world, local_rank, local_world, node, nodes, role_rank, role_world;
    uint32_t restarts, max_restarts, master_port;
    /* NULL: the variable is taken away */
    const char *role, *run_id, *master_addr, *error_file, *timer_file, *job_key, *trust_network,
        *agent_store;
    const char *threads;    /* NULL: OMP_NUM_THREADS stays as it is */
    const char *elastic_id; /* of a rank that stays (cdp_elastic.h); NULL: taken away */
    /* of the others of them; NULL: stays as it is, but where `elastic` is set it is taken away */
    const char *elastic, *elastic_job, *elastic_servers;
} cdp__launch_place;

typedef enum cdp__launch_value {
    CDP__LAUNCH_NUMBER,
    CDP__LAUNCH_TEXT,
    CDP__LAUNCH_MAYBE, /* a text of ranks that stay; NULL: see cdp__launch_place */
    CDP__LAUNCH_HINT   /* the same, and it may be set by the user */
} cdp__launch_value;

typedef struct cdp__launch_variable {
    const char *name;
    cdp__launch_value kind;
    size_t at; /* in cdp__launch_place */
} cdp__launch_variable;

/* NULL after the last one. */
CDP__PRIVATE const cdp__launch_variable *cdp__launch_variable_at(uint32_t i) {
#define CDP__ROW(name, kind, member) \
    { name, CDP__LAUNCH_##kind, offsetof(cdp__launch_place, member) }
    static const cdp__launch_variable table[] = {
        CDP__ROW("RANK", NUMBER, rank),
        CDP__ROW("WORLD_SIZE", NUMBER, world),
        CDP__ROW("LOCAL_RANK", NUMBER, local_rank),
        CDP__ROW("LOCAL_WORLD_SIZE", NUMBER, local_world),
        CDP__ROW("GROUP_RANK", NUMBER, node),
        CDP__ROW("GROUP_WORLD_SIZE", NUMBER, nodes),
        CDP__ROW("ROLE_RANK", NUMBER, role_rank),
        CDP__ROW("ROLE_WORLD_SIZE", NUMBER, role_world),
        CDP__ROW("ROLE_NAME", TEXT, role),
        CDP__ROW("MASTER_ADDR", TEXT, master_addr),
        CDP__ROW("MASTER_PORT", NUMBER, master_port),
        CDP__ROW("TORCHELASTIC_RESTART_COUNT", NUMBER, restarts),
        CDP__ROW("TORCHELASTIC_MAX_RESTARTS", NUMBER, max_restarts),
        CDP__ROW("TORCHELASTIC_RUN_ID", TEXT, run_id),
        CDP__ROW("TORCHELASTIC_USE_AGENT_STORE", TEXT, agent_store),
        CDP__ROW("TORCHELASTIC_ERROR_FILE", TEXT, error_file),
        CDP__ROW("CDP_TIMER_FILE", TEXT, timer_file),
        CDP__ROW("CDP_JOB_KEY", TEXT, job_key),
        CDP__ROW("CDP_TRUST_NETWORK", TEXT, trust_network),
        CDP__ROW("CDP_ELASTIC", MAYBE, elastic),
        CDP__ROW("CDP_ELASTIC_ID", TEXT, elastic_id),
        CDP__ROW("CDP_ELASTIC_JOB", MAYBE, elastic_job),
        CDP__ROW("CDP_ELASTIC_SERVERS", MAYBE, elastic_servers),
        CDP__ROW("OMP_NUM_THREADS", HINT, threads),
    };
#undef CDP__ROW
    return i < sizeof table / sizeof *table ? &table[i] : NULL;
}

/* Whether a launcher sets this variable, so that a user cannot. */
CDP__PRIVATE bool cdp__launch_owns(const char *name, uint64_t length) {
    const cdp__launch_variable *v;
    uint32_t i;
    for (i = 0; (v = cdp__launch_variable_at(i)) != NULL; ++i)
        if (v->kind != CDP__LAUNCH_HINT && strlen(v->name) == length
            && memcmp(v->name, name, (size_t)length) == 0)
            return true;
    return false;
}

/* Settings that are the same for every launcher: rank 0 serves the store. `key` is NULL where
   whoever reaches the ports may take part. `threads`: of a rank whose user gives no
   OMP_NUM_THREADS, or n ranks would use n times the cores; NULL: as it is. */
CDP__PRIVATE void cdp__launch_place_common(
    cdp__launch_place *p, const char *key, const char *threads) {
    p->agent_store = "False";
    p->job_key = key;
    p->trust_network = key ? NULL : "1";
    p->threads = threads;
}

/* Calls put() for each variable; `value` NULL: take it away. */
CDP__PRIVATE void cdp__launch_variables(const cdp__launch_place *p,
    void (*put)(void *user, const char *name, const char *value), void *user) {
    const cdp__launch_variable *v;
    uint32_t i;
    for (i = 0; (v = cdp__launch_variable_at(i)) != NULL; ++i) {
        const void *const at = (const char *)p + v->at;
        char text[16];
        const char *value = text;
        if (v->kind == CDP__LAUNCH_NUMBER)
            cdp__format(text, sizeof text, "%u", *(const uint32_t *)at);
        else
            value = *(const char *const *)at;
        if (value || v->kind == CDP__LAUNCH_TEXT || (v->kind == CDP__LAUNCH_MAYBE && p->elastic))
            put(user, v->name, value);
    }
}

#endif /* CDP_SRC_LAUNCH_VARIABLES_H */
