/* dtensor/counting.h - labels and their table

   Knows: the counter of a mesh. Promises: the functions of section counts. */
#ifndef CDP_SRC_DTENSOR_COUNTING_H
#define CDP_SRC_DTENSOR_COUNTING_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "../text/json_write.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "counts_api.h"
#include "kit.h"
#include "counter.h"
#include "grid.h"
#include "cuts.h"

#ifndef CDP_NO_TENSOR_OPS

/* NULL: nothing is counted, or the mesh was destroyed. */
CDP__DT cdp__dt_counter *cdp__dt_counter_of(const cdp_mesh *m) {
    m = cdp__dt_mesh_known(m);
    return m ? m->root->counter : NULL;
}

CDP_API cdp_status cdp_count_begin(cdp_mesh *m, const char *label) {
    char path[CDP__DT_PATH];
    const cdp_status st = cdp__dt_mesh_alive(m, "cdp_count_begin");
    if (st != CDP_OK) return st;
    if (!label) return cdp__dt_missing("cdp_count_begin", "label");
    if (!*label || strchr(label, '/'))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_count_begin: the label \"%s\" is empty or holds a '/'", label);
    cdp__dt_root *root = m->root;
    if (!root->counter) root->counter = cdp__dt_counter_make(root->os);
    cdp__dt_counter *c = root->counter;
    if (!c) return cdp__dt_nomem("a label", sizeof *c);
    const char *above = c->open[c->depth]->path;
    if (c->depth == CDP__DT_LABELS || strlen(above) + strlen(label) + 2 > CDP__DT_PATH)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_count_begin: \"%s\" lies too deep: at most %u labels and %u bytes", label,
            CDP__DT_LABELS, CDP__DT_PATH - 1);
    cdp__text t = cdp__text_of(path, sizeof path);
    cdp__text_add(&t, *above ? "%s/%s" : "%s%s", above, label);
    (void)cdp__text_end(&t);
    cdp__dt_label *l = cdp__dt_label_of(c, root->os, path);
    if (!l) return cdp__dt_nomem("a label", sizeof *l);
    c->open[++c->depth] = l;
    return CDP_OK;
}

CDP_API void cdp_count_end(cdp_mesh *m) {
    cdp__dt_counter *c = cdp__dt_counter_of(m);
    if (c && c->depth) --c->depth;
}

CDP_API void cdp_count_backward(cdp_mesh *m, bool on) {
    cdp__dt_counter *c = cdp__dt_counter_of(m);
    if (c) c->user_backward = on;
}

CDP_API void cdp_count_note(cdp_mesh *m, cdp_coll_kind kind, uint64_t bytes) {
    if ((uint32_t)kind < CDP_COLL_COUNT) cdp__dt_count(cdp__dt_counter_of(m), kind, bytes, false);
}

/* True if `path` is this label, or above it. */
CDP__DT bool cdp__dt_label_below(const cdp__dt_label *l, const char *path) {
    const size_t n = path ? strlen(path) : 0;
    return !n || (strncmp(l->path, path, n) == 0 && (!l->path[n] || l->path[n] == '/'));
}

CDP_API cdp_comm_count cdp_counts(const cdp_mesh *m, const char *path, bool backward) {
    cdp_comm_count sum;
    memset(&sum, 0, sizeof sum);
    const cdp__dt_counter *c = cdp__dt_counter_of(m);
    for (const cdp__dt_label *l = c ? c->first : NULL; l; l = l->next)
        for (uint32_t k = 0; cdp__dt_label_below(l, path) && k < CDP_COLL_COUNT; ++k) {
            sum.calls[k] += l->calls[backward][k];
            sum.bytes[k] += l->bytes[backward][k];
        }
    return sum;
}

CDP_API void cdp_counts_clear(cdp_mesh *m) {
    cdp__dt_counter *c = cdp__dt_counter_of(m);
    for (cdp__dt_label *l = c ? c->first : NULL; l; l = l->next) {
        memset(l->calls, 0, sizeof l->calls);
        memset(l->bytes, 0, sizeof l->bytes);
    }
}

/* Writes counts like "2 allreduce 4096, 1 allgather 512": bytes after the names. */
CDP__DT void cdp__dt_add_counts(cdp__text *t, const cdp_comm_count *c, bool json) {
    bool some = false;
    for (uint32_t k = 0; k < CDP_COLL_COUNT; ++k) {
        if (!c->calls[k]) continue;
        const unsigned long long calls = c->calls[k], bytes = c->bytes[k];
        cdp__text_add(t, some ? ", " : "");
        if (json)
            cdp__text_add(t, "\"%s\": {\"calls\": %llu, \"bytes\": %llu}",
                cdp_coll_name((cdp_coll_kind)k), calls, bytes);
        else
            cdp__text_add(t, "%llu %s (%llu B)", calls, cdp_coll_name((cdp_coll_kind)k), bytes);
        some = true;
    }
    if (!some && !json) cdp__text_add(t, "-");
}

CDP__DT void cdp__dt_counts_line(
    cdp__text *t, const cdp_mesh *m, const char *path, bool json, bool first) {
    const cdp_comm_count forward = cdp_counts(m, path, false), backward = cdp_counts(m, path, true);
    const uint64_t line = t->used;
    if (json) {
        cdp__text_add(t, first ? "\n  {\"path\": \"" : ",\n  {\"path\": \"");
        cdp__json_inside(t, path);
        cdp__text_add(t, "\", \"forward\": {");
        cdp__dt_add_counts(t, &forward, true);
        cdp__text_add(t, "}, \"backward\": {");
        cdp__dt_add_counts(t, &backward, true);
        cdp__text_add(t, "}}");
        return;
    }
    cdp__text_add(t, "%s", *path ? path : "(all)");
    cdp__text_pad(t, line, 20);
    cdp__dt_add_counts(t, &forward, false);
    cdp__text_pad(t, line, 66);
    cdp__text_add(t, " ");
    cdp__dt_add_counts(t, &backward, false);
    cdp__text_char(t, '\n');
}

CDP__DT void cdp__dt_counts_head(cdp__text *t) {
    cdp__text_add(t, "label");
    cdp__text_pad(t, 0, 20);
    cdp__text_add(t, "forward");
    cdp__text_pad(t, 0, 67);
    cdp__text_add(t, "backward\n");
}

CDP_API uint64_t cdp_counts_draw(
    const cdp_mesh *m, cdp_draw_format format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    const cdp__dt_counter *c = cdp__dt_counter_of(m);
    const bool json = format == CDP_DRAW_JSON;
    if (json)
        cdp__text_add(&t, "[");
    else
        cdp__dt_counts_head(&t);
    for (const cdp__dt_label *l = c ? c->first : NULL; l; l = l->next)
        cdp__dt_counts_line(&t, m, l->path, json, l == c->first);
    if (json) cdp__text_add(&t, "\n]\n");
    return cdp__text_end(&t);
}

#endif /* CDP_NO_TENSOR_OPS */

#endif /* CDP_SRC_DTENSOR_COUNTING_H */
