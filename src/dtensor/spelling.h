/* dtensor/spelling.h - layouts as text, and whether they are valid

   Knows: layouts and their text. Promises: a layout that passes the checks has a plan; its text can
   be parsed again. Pure except for the text of errors. */
#ifndef CDP_SRC_DTENSOR_SPELLING_H
#define CDP_SRC_DTENSOR_SPELLING_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "../base/helpers.h"
#include "../base/ended.h"
#include "../text/format.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "kit.h"
#include "kernels.h"
#include "grid.h"
#include "cuts.h"

/* True if there is a mesh, which was not destroyed. */
CDP__DT bool cdp__dt_has_mesh(const cdp_layout *l) {
    return l && l->mesh && !cdp__dt_mesh_ended(l->mesh);
}

CDP__DT cdp_status cdp__dt_mesh_refused(const cdp_layout *l, const char *call) {
    if (!l) return cdp__dt_missing(call, "layout");
    if (!l->mesh) return cdp__dt_missing(call, "layout.mesh");
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: its mesh was destroyed", call);
}

CDP__DT cdp_status cdp__dt_wrong(const char *what, uint32_t by, const char *why) {
    return cdp_error_set(
        CDP_ERR_INVALID, -1, 0, "layout: %s of mesh dimension %u: %s", what, by, why);
}

CDP__DT cdp_status cdp__dt_check_shard(const cdp_layout *l, uint32_t by) {
    const cdp_place *p = &l->place[by];
    const int64_t d = p->dim < 0 ? (int64_t)p->dim + l->ndim : p->dim;
    if (d < 0 || d >= (int64_t)l->ndim)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "layout: mesh dimension %u shards dimension %d of a tensor of %u dimensions", by,
            p->dim, l->ndim);
    if (p->block >> 62) return cdp__dt_wrong("block", by, "it must be below 2^62");
    if (!p->cut) return CDP_OK;
    const cdp__dt_cut *c = cdp__dt_cut_find(l->mesh, p->cut);
    if (c ? c->replaced : p->cut <= l->mesh->cuts.last)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "layout: cut %u of mesh dimension %u was replaced by later ones; call "
            "cdp_layout_from_local() again, or keep such a cut with cdp_mesh_cut()",
            p->cut, by);
    if (!c || c->dim != by)
        return cdp__dt_wrong("cut", by, "cdp_mesh_cut() gave no such number there");
    if (c->starts[l->mesh->desc.shape[by]] != l->shape[d])
        return cdp__dt_wrong("cut", by, "its sizes do not add up to the size of the tensor");
    for (uint32_t e = 0; e < l->mesh->desc.ndim; ++e)
        if (e != by && l->place[e].kind == CDP_PLACE_SHARD && cdp__dt_dim(l, e) == (uint32_t)d)
            return cdp__dt_wrong("cut", by, "another mesh dimension shards the same dimension");
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_check_partial(const cdp_layout *l, uint32_t by, cdp_reduce_op *kind) {
    const cdp_reduce_op op = cdp__dt_op(&l->place[by]);
    if (op > CDP_REDUCE_PRODUCT) return cdp__dt_wrong("op", by, "use sum, avg, min, max, product");
    if (!cdp__dt_reduces(l->dtype, op))
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0, "layout: there is no %s of %s",
            cdp_reduce_name(op), cdp_dtype_name(l->dtype));
    const cdp_reduce_op base = op == CDP_REDUCE_AVG ? CDP_REDUCE_SUM : op;
    if (*kind != CDP_REDUCE_DEFAULT && *kind != base)
        return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
            "layout: PARTIAL of %s and of %s in one layout; only sum and avg can be mixed",
            cdp_reduce_name(*kind), cdp_reduce_name(op));
    *kind = base;
    return CDP_OK;
}

/* Checks the cuts of one dimension of the tensor: each block must be a multiple of the next one. */
CDP__DT cdp_status cdp__dt_check_blocks(const cdp_layout *l) {
    uint32_t sequence[CDP_MESH_DIMS];
    const uint32_t n = cdp__dt_sequence(l, l->mesh->desc.ndim, sequence);
    for (uint32_t a = 0; a < n; ++a)
        for (uint32_t b = a + 1; b < n; ++b) {
            const uint64_t outer = l->place[sequence[a]].block, inner = l->place[sequence[b]].block;
            if (cdp__dt_dim(l, sequence[a]) != cdp__dt_dim(l, sequence[b])) continue;
            if (cdp__max(outer, 1) % cdp__max(inner, 1))
                return cdp__dt_wrong(
                    "block", sequence[b], "it must divide the block of the cut before it");
        }
    return CDP_OK;
}

CDP_API cdp_status cdp_layout_check(const cdp_layout *l) {
    cdp_reduce_op kind = CDP_REDUCE_DEFAULT;
    cdp_status st = CDP_OK;
    bool fits = true;
    if (!cdp__dt_has_mesh(l)) return cdp__dt_mesh_refused(l, "cdp_layout_check");
    if (l->ndim > CDP_TENSOR_DIMS || !cdp_dtype_size(l->dtype))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "layout: ndim %u (at most %u) or dtype %u is out of range", l->ndim, CDP_TENSOR_DIMS,
            (unsigned)l->dtype);
    uint64_t bytes = cdp_dtype_size(l->dtype);
    for (uint32_t d = 0; d < l->ndim; ++d)
        bytes = cdp__dt_times(bytes, cdp__max(l->shape[d], 1), &fits);
    if (!fits)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0, "layout: the shape has more than 2^63 bytes");
    for (uint32_t by = 0; st == CDP_OK && by < l->mesh->desc.ndim; ++by) {
        if (l->place[by].kind == CDP_PLACE_SHARD)
            st = cdp__dt_check_shard(l, by);
        else if (l->place[by].kind == CDP_PLACE_PARTIAL)
            st = cdp__dt_check_partial(l, by, &kind);
        else if (l->place[by].kind != CDP_PLACE_REPLICATE)
            st = cdp__dt_wrong("kind", by, "it is none of cdp_place_kind");
    }
    return st == CDP_OK ? cdp__dt_check_blocks(l) : st;
}

CDP__DT const char *cdp__dt_digits(const char *s, uint64_t *v) {
    uint64_t n = 0;
    const char *first = s;
    for (; *s >= '0' && *s <= '9'; ++s) {
        if (n >> 58) return first;
        n = n * 10 + (uint64_t)(*s - '0');
    }
    *v = n;
    return s;
}

/* Parses one placement; returns the character after it, or NULL with *at at the invalid
   character. */
CDP__DT const char *cdp__dt_parse_shard(const char *s, cdp_place *p, const char **at) {
    const bool minus = *s == '-';
    uint64_t v = 0;
    const char *end;
    *at = s += minus;
    end = cdp__dt_digits(s, &v);
    if (end == s || v > CDP_TENSOR_DIMS) return NULL;
    p->kind = CDP_PLACE_SHARD;
    p->dim = minus ? -(int32_t)v : (int32_t)v;
    while (*end == '/' || *end == '!' || *end == '#') {
        const char what = *end;
        *at = s = end + 1;
        end = cdp__dt_digits(s, &v);
        if (end == s || (what != '/' && v >> 32) || (what == '/' && !v)) return NULL;
        if (what == '/') p->block = v;
        if (what == '!') p->order = (uint32_t)v;
        if (what == '#') p->cut = (uint32_t)v;
    }
    return end;
}

CDP__DT const char *cdp__dt_parse_partial(const char *s, cdp_place *p, const char **at) {
    p->kind = CDP_PLACE_PARTIAL;
    p->op = CDP_REDUCE_SUM;
    if (*s != '(') return s;
    *at = ++s;
    for (uint32_t op = CDP_REDUCE_SUM; op <= CDP_REDUCE_PRODUCT; ++op) {
        const char *name = cdp_reduce_name((cdp_reduce_op)op);
        const size_t n = strlen(name);
        if (strncmp(s, name, n) != 0 || s[n] != ')') continue;
        p->op = (cdp_reduce_op)op;
        return s + n + 1;
    }
    return NULL;
}

CDP_API cdp_status cdp_layout_parse(cdp_layout *l, const char *places) {
    cdp_place place[CDP_MESH_DIMS];
    const char *s = places, *at = places;
    if (!cdp__dt_has_mesh(l)) return cdp__dt_mesh_refused(l, "cdp_layout_parse");
    if (!places) return cdp__dt_missing("cdp_layout_parse", "text");
    memset(place, 0, sizeof place);
    for (uint32_t by = 0; s && by < l->mesh->desc.ndim; ++by) {
        at = s;
        if (by > 0 && *s++ != ',') s = NULL;
        if (s) at = s;
        if (s && *s == 'R')
            ++s;
        else if (s && *s == 'S')
            s = cdp__dt_parse_shard(s + 1, &place[by], &at);
        else if (s && *s == 'P')
            s = cdp__dt_parse_partial(s + 1, &place[by], &at);
        else
            s = NULL;
    }
    if (s && *s) at = s;
    if (!s || *s)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_layout_parse: \"%s\" at character %u: expected %u placements such as R, S0, "
            "P(max)",
            places, (unsigned)(at - places), l->mesh->desc.ndim);
    memcpy(l->place, place, sizeof place);
    return cdp_layout_check(l);
}

CDP__DT void cdp__dt_add_place(cdp__text *t, const cdp_layout *l, uint32_t by) {
    const cdp_place *p = &l->place[by];
    if (p->kind == CDP_PLACE_REPLICATE) cdp__text_add(t, "R");
    if (p->kind == CDP_PLACE_PARTIAL) cdp__text_add(t, "P");
    if (p->kind == CDP_PLACE_PARTIAL && cdp__dt_op(p) != CDP_REDUCE_SUM)
        cdp__text_add(t, "(%s)", cdp_reduce_name(p->op));
    if (p->kind != CDP_PLACE_SHARD) return;
    cdp__text_add(t, "S%u", cdp__dt_dim(l, by));
    if (p->block > 1) cdp__text_add(t, "/%llu", (unsigned long long)p->block);
    if (p->order) cdp__text_add(t, "!%u", p->order);
    if (p->cut) cdp__text_add(t, "#%u", p->cut);
}

CDP__DT void cdp__dt_add_places(cdp__text *t, const cdp_layout *l) {
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        if (by) cdp__text_char(t, ',');
        cdp__dt_add_place(t, l, by);
    }
}

CDP_API uint64_t cdp_layout_text(const cdp_layout *l, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    if (cdp__dt_has_mesh(l)) cdp__dt_add_places(&t, l);
    return cdp__text_end(&t);
}

CDP__DT uint64_t cdp__dt_box_out(const cdp__dt_region *r, uint32_t ndim, cdp_box *out) {
    for (uint32_t d = 0; out && d < CDP_TENSOR_DIMS; ++d) {
        out->start[d] = d < ndim ? r->start[d] : 0;
        out->size[d] = d < ndim ? r->size[d] : 0;
    }
    return cdp__dt_volume(r, ndim);
}

CDP_API uint64_t cdp_layout_box(const cdp_layout *l, const uint32_t *coord, cdp_box *out) {
    cdp__dt_region r;
    memset(&r, 0, sizeof r);
    if (out) memset(out, 0, sizeof *out);
    if (!cdp__dt_has_mesh(l) || !cdp__dt_cuts_last(l)) return 0;
    uint32_t position = l->mesh->me;
    if (coord) {
        position = 0;
        for (uint32_t d = 0; d < l->mesh->desc.ndim; ++d)
            position += coord[d] * l->mesh->stride[d];
    }
    if (position == CDP__DT_NONE) {
        for (uint32_t d = 0; out && d < l->ndim; ++d)
            out->start[d] = l->shape[d];
        return 0;
    }
    const cdp__dt_side s = cdp__dt_side_of(l, 0);
    r = cdp__dt_region_of(&s, position);
    return cdp__dt_box_out(&r, l->ndim, out);
}

CDP__DT bool cdp__dt_mesh_same(const cdp_mesh *a, const cdp_mesh *b) {
    return a == b
        || (a->root->group == b->root->group && a->count == b->count && a->desc.ndim == b->desc.ndim
            && memcmp(a->desc.shape, b->desc.shape, a->desc.ndim * sizeof a->desc.shape[0]) == 0
            && memcmp(a->ranks, b->ranks, a->count * sizeof *a->ranks) == 0);
}

CDP__DT bool cdp__dt_shape_same(const cdp_layout *a, const cdp_layout *b) {
    return a->ndim == b->ndim && cdp__dt_dtype(a) == cdp__dt_dtype(b)
        && memcmp(a->shape, b->shape, a->ndim * sizeof a->shape[0]) == 0;
}

CDP_API bool cdp_layout_same(const cdp_layout *a, const cdp_layout *b) {
    if (!cdp__dt_has_mesh(a) || !cdp__dt_has_mesh(b) || !cdp__dt_shape_same(a, b)) return false;
    if (!cdp__dt_mesh_same(a->mesh, b->mesh)) return false;
    if (!cdp__dt_cuts_last(a) || !cdp__dt_cuts_last(b)) return false;
    for (uint32_t by = 0; by < a->mesh->desc.ndim; ++by) {
        const cdp_place *p = &a->place[by], *q = &b->place[by];
        const bool x = p->kind == CDP_PLACE_PARTIAL, y = q->kind == CDP_PLACE_PARTIAL;
        if (a->mesh->desc.shape[by] == 1) continue;
        if (x != y || (x && cdp__dt_op(p) != cdp__dt_op(q))) return false;
    }
    const cdp__dt_side s = cdp__dt_side_of(a, 0), t = cdp__dt_side_of(b, 0);
    for (uint32_t k = 0; k < s.count; ++k) {
        const cdp__dt_region x = cdp__dt_region_of(&s, k), y = cdp__dt_region_of(&t, k);
        const uint64_t n = cdp__dt_volume(&x, s.ndim);
        if (n != cdp__dt_volume(&y, t.ndim)) return false;
        if (n && memcmp(x.start, y.start, a->ndim * sizeof x.start[0]) != 0) return false;
        if (n && memcmp(x.size, y.size, a->ndim * sizeof x.size[0]) != 0) return false;
    }
    return true;
}

#endif /* CDP_SRC_DTENSOR_SPELLING_H */
