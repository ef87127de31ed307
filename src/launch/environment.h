/* launch/environment.h - the variables of a worker

   Knows: the names that torchrun's workers find. Promises: variables of this process, then those of
   the desc, then the agent's own, each name once; this process keeps its own as they are. */
#ifndef CDP_SRC_LAUNCH_ENVIRONMENT_H
#define CDP_SRC_LAUNCH_ENVIRONMENT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "launch_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../os/processes.h"
#include "variables.h"
#include "state.h"

#include <string.h>

typedef struct cdp__agent_env {
    char **at;
    uint32_t count;
    uint64_t used;
    char room[5 * CDP__AGENT_PATH]; /* the agent's own variables */
} cdp__agent_env;

CDP__PRIVATE uint32_t cdp__agent_list(const char *const *list) {
    uint32_t n = 0;
    while (list && list[n])
        ++n;
    return n;
}

/* Takes a variable out, of which this process may have several: `name` ends with '=' or a zero. */
CDP__PRIVATE void cdp__agent_env_drop(cdp__agent_env *e, const char *name) {
    const size_t length = strcspn(name, "=");
    uint32_t i, kept = 0;
    for (i = 0; i < e->count; ++i)
        if (strncmp(e->at[i], name, length) != 0 || e->at[i][length] != '=')
            e->at[kept++] = e->at[i];
    e->count = kept;
}

CDP__PRIVATE void cdp__agent_env_put(cdp__agent_env *e, char *variable) {
    cdp__agent_env_drop(e, variable);
    e->at[e->count++] = variable;
}

/* exec takes variables as `char *`, and changes none. */
CDP__PRIVATE void cdp__agent_env_list(cdp__agent_env *e, const char *const *list) {
    union {
        const char *in;
        char *out;
    } one;
    for (; list && *list; ++list) {
        one.in = *list;
        cdp__agent_env_put(e, one.out);
    }
}

CDP__PRIVATE void cdp__agent_env_text(cdp__agent_env *e, const char *name, const char *value) {
    char *const at = e->room + e->used;
    const uint64_t left = sizeof e->room - e->used;
    const uint64_t length = cdp__format(at, left, "%s=%s", name, value);
    if (length >= left) return; /* texts are limited at creation, so that all fit */
    e->used += length + 1;
    cdp__agent_env_put(e, at);
}

CDP__PRIVATE bool cdp__agent_env_has(const cdp__agent_env *e, const char *name) {
    const size_t length = strlen(name);
    uint32_t i;
    for (i = 0; i < e->count; ++i)
        if (strncmp(e->at[i], name, length) == 0 && e->at[i][length] == '=') return true;
    return false;
}

CDP__PRIVATE void cdp__agent_env_set(void *user, const char *name, const char *value) {
    cdp__agent_env *const e = (cdp__agent_env *)user;
    if (value)
        cdp__agent_env_text(e, name, value);
    else
        cdp__agent_env_drop(e, name);
}

/* Workers count by themselves in each role. */
CDP__PRIVATE void cdp__agent_place_role(const cdp_agent *a, uint32_t i, cdp__launch_place *p) {
    const char *const role = cdp__agent_role(a, i);
    uint32_t k, before = 0, here = 0;
    for (k = 0; k < a->desc.workers; ++k) {
        const bool same = strcmp(cdp__agent_role(a, k), role) == 0;
        here += same;
        before += same && k < i;
    }
    p->role = role;
    p->role_rank = a->desc.node_rank * here + before;
    p->role_world = a->desc.nodes * here;
}

CDP__PRIVATE void cdp__agent_env_own(
    const cdp_agent *a, cdp__agent_env *e, uint32_t i, uint16_t port) {
    const cdp_launch_desc *const d = &a->desc;
    cdp__launch_place p;
    memset(&p, 0, sizeof p);
    p.rank = cdp__agent_rank(a, i);
    p.world = d->workers * d->nodes;
    p.local_rank = i;
    p.local_world = d->workers;
    p.node = d->node_rank;
    p.nodes = d->nodes;
    p.restarts = a->attempt;
    p.max_restarts = d->max_restarts;
    p.master_port = port;
    cdp__agent_place_role(a, i, &p);
    p.run_id = d->run_id;
    p.master_addr = d->master_addr;
    p.error_file = a->workers[i].error_file;
    p.timer_file = a->workers[i].timer_file;
    cdp__launch_place_common(&p, d->trust_network ? NULL : a->key,
        !a->threads[0] || cdp__agent_env_has(e, "OMP_NUM_THREADS") ? NULL : a->threads);
    cdp__launch_variables(&p, cdp__agent_env_set, e);
}

/* All variables of worker i. The caller frees e->at. */
CDP__PRIVATE cdp_status cdp__agent_env_make(
    const cdp_agent *a, cdp__agent_env *e, uint32_t i, uint16_t port) {
    char **const mine = cdp__process_variables();
    const char *const *const extra = a->desc.env_of ? a->desc.env_of[i] : NULL;
    uint32_t n = 0, own = 0;
    while (mine && mine[n])
        ++n;
    while (cdp__launch_variable_at(own))
        ++own;
    e->count = 0;
    e->used = 0;
    n += cdp__agent_list(a->desc.env) + cdp__agent_list(extra) + own + 1;
    e->at = (char **)cdp__alloc(a->os, n * sizeof *e->at);
    if (!e->at) return cdp__fail(CDP_ERR_NOMEM, "cdp_agent_start: no memory for variables");
    for (n = 0; mine && mine[n]; ++n)
        e->at[e->count++] = mine[n];
    cdp__agent_env_list(e, a->desc.env);
    cdp__agent_env_list(e, extra);
    cdp__agent_env_own(a, e, i, port);
    e->at[e->count] = NULL;
    return CDP_OK;
}

#endif /* CDP_SRC_LAUNCH_ENVIRONMENT_H */
