/* tcp/backends.h - ways to start, by name

   Knows: names and functions of the program. Promises: a name that is unknown is refused before
   anything has started. */
#ifndef CDP_SRC_TCP_BACKENDS_H
#define CDP_SRC_TCP_BACKENDS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "desc_api.h"
#include "backends_api.h"

#ifndef CDP_NO_ENV

#define CDP__BACKEND_NAME 32u
#define CDP__BACKENDS 8u

typedef struct cdp__named_backend {
    char name[CDP__BACKEND_NAME]; /* "": a free place */
    cdp_backend_func create;
    void *user;
} cdp__named_backend;

/* One table per process, filled before groups are started. */
static cdp__named_backend cdp__backends[CDP__BACKENDS];

/* None, "tcp" and "gloo" are cdp_init() itself. */
CDP__PRIVATE bool cdp__backend_is_tcp(const char *name) {
    return !name || !name[0] || strcmp(name, "tcp") == 0 || strcmp(name, "gloo") == 0;
}

CDP__PRIVATE bool cdp__backend_name_fits(const char *name) {
    size_t i = 0;
    for (; name[i]; ++i) {
        const char c = name[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '-') return false;
    }
    return i > 0 && i < CDP__BACKEND_NAME;
}

/* The place of a name; "": the first free one. NULL: there is none. */
CDP__PRIVATE cdp__named_backend *cdp__backend_at(const char *name) {
    uint32_t i;
    for (i = 0; i < CDP__BACKENDS; ++i)
        if (strcmp(cdp__backends[i].name, name) == 0) return &cdp__backends[i];
    return NULL;
}

CDP_API cdp_status cdp_backend_register(const char *name, cdp_backend_func create, void *user) {
    cdp__named_backend *b;
    if (!name) return cdp__missing("cdp_backend_register", "name");
    if (name[0] && cdp__backend_is_tcp(name))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_backend_register: the name '%s' is that of cdp_init(); use another one", name);
    if (!cdp__backend_name_fits(name))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_backend_register: the name '%s' is not 1 to 31 letters, digits, '_' and '-'",
            name);
    b = cdp__backend_at(name);
    if (!create && !b)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_backend_register: create is NULL, but no backend is named '%s'", name);
    if (!b) b = cdp__backend_at("");
    if (!b)
        return cdp__fail(CDP_ERR_NOMEM,
            "cdp_backend_register: there are %u backends, and no place for '%s'; take one away",
            CDP__BACKENDS, name);
    memset(b, 0, sizeof *b);
    if (!create) return CDP_OK;
    cdp__format(b->name, sizeof b->name, "%s", name);
    b->create = create;
    b->user = user;
    return CDP_OK;
}

/* Starts with the backend that the desc names. */
CDP__PRIVATE CDP__COLD cdp_status cdp__backend_start(const cdp_tcp_desc *desc, cdp_group **out) {
    const cdp__named_backend *b = desc->backend[0] ? cdp__backend_at(desc->backend) : NULL;
    char names[CDP__BACKENDS * (CDP__BACKEND_NAME + 2) + 1];
    cdp__text t = cdp__text_of(names, sizeof names);
    cdp_tcp_desc d = *desc;
    cdp_status st;
    uint32_t i;
    if (b) {
        d.backend = "tcp"; /* so that it may start a group from the environment, too */
        st = b->create(&d, b->user, out);
        if (st < 0) *out = NULL;
        return st;
    }
    for (i = 0; i < CDP__BACKENDS; ++i)
        if (cdp__backends[i].name[0]) cdp__text_add(&t, ", %s", cdp__backends[i].name);
    (void)cdp__text_end(&t);
    return cdp__fail(CDP_ERR_INVALID,
        "cdp_init: no backend is named '%s'; there is: tcp, gloo%s (see cdp_backend_register)",
        desc->backend, names);
}

#endif /* CDP_NO_ENV */

#endif /* CDP_SRC_TCP_BACKENDS_H */
