/* dtensor/counter.h - operations by label

   Knows: labels and numbers. Promises: counting allocates nothing; a new label does, once. */
#ifndef CDP_SRC_DTENSOR_COUNTER_H
#define CDP_SRC_DTENSOR_COUNTER_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/helpers.h"
#include "kit.h"

#define CDP__DT_PATH 128u
#define CDP__DT_LABELS 16u

typedef struct cdp__dt_label {
    struct cdp__dt_label *next;
    char path[CDP__DT_PATH];
    uint64_t calls[2][CDP_COLL_COUNT], bytes[2][CDP_COLL_COUNT]; /* forward, backward */
} cdp__dt_label;

typedef struct cdp__dt_counter {
    cdp__dt_label *first, **last;
    cdp__dt_label *open[CDP__DT_LABELS + 1]; /* open[0]: what is under no label */
    uint32_t depth, backward;
    bool user_backward;
} cdp__dt_counter;

CDP__DT void cdp__dt_count(cdp__dt_counter *c, cdp_coll_kind kind, uint64_t bytes, bool backward) {
    if (!c) return;
    cdp__dt_label *l = c->open[c->depth];
    const uint32_t way = backward || c->backward || c->user_backward;
    ++l->calls[way][kind];
    l->bytes[way][kind] += bytes;
}

/* The label with this path, created on first use; NULL: out of memory. */
CDP__DT cdp__dt_label *cdp__dt_label_of(cdp__dt_counter *c, const cdp_os *os, const char *path) {
    for (cdp__dt_label *l = c->first; l; l = l->next)
        if (strcmp(l->path, path) == 0) return l;
    cdp__dt_label *l = (cdp__dt_label *)cdp__dt_alloc(os, sizeof *l);
    if (!l) return NULL;
    memcpy(l->path, path, strlen(path) + 1);
    *c->last = l;
    c->last = &l->next;
    return l;
}

CDP__DT void cdp__dt_counter_free(cdp__dt_counter *c, const cdp_os *os) {
    while (c && c->first) {
        cdp__dt_label *next = c->first->next;
        cdp__dt_free(os, c->first);
        c->first = next;
    }
    cdp__dt_free(os, c);
}

CDP__DT cdp__dt_counter *cdp__dt_counter_make(const cdp_os *os) {
    cdp__dt_counter *c = (cdp__dt_counter *)cdp__dt_alloc(os, sizeof *c);
    if (!c) return NULL;
    c->last = &c->first;
    c->open[0] = cdp__dt_label_of(c, os, "");
    if (c->open[0]) return c;
    cdp__dt_free(os, c);
    return NULL;
}

#endif /* CDP_SRC_DTENSOR_COUNTER_H */
