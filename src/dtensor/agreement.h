/* dtensor/agreement.h - layouts from pieces, and checks of replicas

   Knows: shapes and replicas of all ranks. Promises: an error names the first difference, and the
   group stays usable. */
#ifndef CDP_SRC_DTENSOR_AGREEMENT_H
#define CDP_SRC_DTENSOR_AGREEMENT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "mesh_api.h"
#include "layout_api.h"
#include "dtensor_api.h"
#include "kit.h"
#include "kernels.h"
#include "chunks.h"
#include "grid.h"
#include "cuts.h"
#include "meshes.h"
#include "plan_words.h"
#include "runner.h"
#include "tensors.h"

/* The shapes of the pieces of all ranks of a mesh, by position. */
typedef struct cdp__dt_shapes {
    const cdp_mesh *mesh;
    uint32_t ndim;
    const uint64_t *of; /* CDP_TENSOR_DIMS numbers for each */
} cdp__dt_shapes;

CDP__DT cdp_status cdp__dt_shapes_differ(
    const cdp__dt_shapes *s, uint32_t dim, uint32_t a, uint32_t b) {
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)s->mesh->ranks[b], 0,
        "cdp_layout_from_local: dimension %u has %llu elements on rank %u and %llu on rank %u; "
        "their layout says that these are equal",
        dim, (unsigned long long)s->of[(uint64_t)a * CDP_TENSOR_DIMS + dim], s->mesh->ranks[a],
        (unsigned long long)s->of[(uint64_t)b * CDP_TENSOR_DIMS + dim], s->mesh->ranks[b]);
}

/* Checks that ranks with equal coordinates in the dimensions `by` (bits) have equal sizes. */
CDP__DT cdp_status cdp__dt_shapes_equal(const cdp__dt_shapes *s, uint32_t dim, uint32_t by) {
    const cdp_mesh *m = s->mesh;
    for (uint32_t k = 0; k < m->count; ++k) {
        uint32_t first = 0;
        for (uint32_t d = 0; d < m->desc.ndim; ++d)
            if (by >> d & 1) first += k / m->stride[d] % m->desc.shape[d] * m->stride[d];
        const uint64_t a = s->of[(uint64_t)first * CDP_TENSOR_DIMS + dim];
        if (s->of[(uint64_t)k * CDP_TENSOR_DIMS + dim] != a)
            return cdp__dt_shapes_differ(s, dim, first, k);
    }
    return CDP_OK;
}

/* Joins one tensor dimension: computes its whole size, and a cut if one mesh dimension cuts it
   unevenly. */
CDP__DT cdp_status cdp__dt_shapes_join(
    const cdp__dt_shapes *s, cdp_layout *l, uint32_t dim, uint64_t *sizes) {
    cdp_mesh *m = (cdp_mesh *)(uintptr_t)s->mesh;
    uint32_t by = 0, count = 0, only = 0;
    uint64_t total = 0, start;
    for (uint32_t d = 0; d < m->desc.ndim; ++d)
        if (l->place[d].kind == CDP_PLACE_SHARD && cdp__dt_dim(l, d) == dim) {
            by |= 1u << d;
            only = d;
            ++count;
        }
    cdp_status st = cdp__dt_shapes_equal(s, dim, by);
    if (st != CDP_OK) return st;
    for (uint32_t k = 0; k < m->count; ++k) {
        bool first = true;
        for (uint32_t d = 0; d < m->desc.ndim; ++d)
            if (!(by >> d & 1) && k / m->stride[d] % m->desc.shape[d]) first = false;
        if (first) total += s->of[(uint64_t)k * CDP_TENSOR_DIMS + dim];
    }
    l->shape[dim] = total;
    if (count != 1) return CDP_OK;
    const uint32_t n = m->desc.shape[only];
    const uint64_t block = cdp__max(l->place[only].block, 1);
    bool even = true;
    for (uint32_t i = 0; i < n; ++i) {
        sizes[i] = s->of[(uint64_t)i * m->stride[only] * CDP_TENSOR_DIMS + dim];
        even = even && sizes[i] == cdp__dt_chunk(total, block, n, i, &start);
    }
    l->place[only].cut = 0;
    return even ? CDP_OK : cdp__dt_cut_of(m, only, sizes, true, &l->place[only].cut);
}

/* Checks that the layout found gives every rank the shape of its piece. */
CDP__DT cdp_status cdp__dt_shapes_fit(const cdp__dt_shapes *s, const cdp_layout *l) {
    const cdp__dt_side side = cdp__dt_side_of(l, 0);
    for (uint32_t k = 0; k < s->mesh->count; ++k) {
        const cdp__dt_region r = cdp__dt_region_of(&side, k);
        for (uint32_t d = 0; d < l->ndim; ++d) {
            const uint64_t has = s->of[(uint64_t)k * CDP_TENSOR_DIMS + d];
            if (has == r.size[d]) continue;
            return cdp_error_set(CDP_ERR_UNSUPPORTED, -1, 0,
                "cdp_layout_from_local: dimension %u, sharded by several mesh dimensions, has %llu "
                "elements on rank %u; the chunk rule gives %llu",
                d, (unsigned long long)has, s->mesh->ranks[k], (unsigned long long)r.size[d]);
        }
    }
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_from_local(
    cdp_mesh *m, cdp_layout *l, const uint64_t *local_shape, uint64_t *memory) {
    uint64_t own[CDP_TENSOR_DIMS] = {0};
    cdp__dt_shapes s;
    s.mesh = m;
    s.ndim = l->ndim;
    s.of = memory;
    for (uint32_t d = 0; d < l->ndim; ++d)
        own[d] = local_shape[d];
    cdp_status st = cdp_allgather(m->all->group, own, memory, CDP_TENSOR_DIMS, CDP_DTYPE_U64);
    for (uint32_t d = 0; st == CDP_OK && d < l->ndim; ++d)
        st = cdp__dt_shapes_join(&s, l, d, memory + (uint64_t)m->count * CDP_TENSOR_DIMS);
    if (st == CDP_OK) st = cdp_layout_check(l);
    return st == CDP_OK ? cdp__dt_shapes_fit(&s, l) : st;
}

CDP_API cdp_status cdp_layout_from_local(cdp_mesh *m, cdp_layout *l, const uint64_t *local_shape) {
    if (!m) return cdp__dt_missing("cdp_layout_from_local", "mesh");
    if (!l) return cdp__dt_missing("cdp_layout_from_local", "layout");
    if (l->ndim && !local_shape) return cdp__dt_missing("cdp_layout_from_local", "local_shape");
    l->mesh = m;
    for (uint32_t d = 0; d < CDP_TENSOR_DIMS; ++d)
        l->shape[d] = 0;
    for (uint32_t by = 0; by < m->desc.ndim; ++by)
        l->place[by].cut = 0;
    cdp_status st = cdp_layout_check(l);
    if (st != CDP_OK) return st;
    if (!m->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_layout_from_local: the mesh is on paper");
    if (!m->all) return CDP_OK;
    const uint64_t bytes = (uint64_t)m->count * (CDP_TENSOR_DIMS + 1) * 8;
    uint64_t *memory = (uint64_t *)cdp__dt_alloc(m->root->os, bytes);
    if (!memory) return cdp__dt_nomem("cdp_layout_from_local", bytes);
    st = cdp__dt_from_local(m, l, local_shape, memory);
    cdp__dt_free(m->root->os, memory);
    return st;
}

CDP__DT uint64_t cdp__dt_hash_bytes(const void *data, uint64_t bytes) {
    const uint8_t *at = (const uint8_t *)data;
    uint64_t h = bytes, word;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        memcpy(&word, at, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; bytes; --bytes, ++at)
        h = (h ^ *at) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

/* The position whose replica a position must equal: coordinate 0 in all dimensions in which the
   tensor is replicated. */
CDP__DT uint32_t cdp__dt_original(const cdp__dt_side *s, uint32_t position) {
    uint32_t at = 0;
    for (uint32_t d = 0; d < s->dims; ++d)
        if (s->role[d] != CDP__DT_SAME) at += cdp__dt_digit(s, position, d) * s->stride[d];
    return at;
}

/* Sends the original to the replicas that differ from it; a replica receives it in `other`. */
CDP__DT cdp_status cdp__dt_check_exchange(
    cdp_dtensor *t, const cdp__dt_side *s, const uint64_t *hash, void *other) {
    const cdp_mesh *m = t->layout.mesh;
    const cdp_os *os = m->root->os;
    const uint64_t bytes = cdp__dt_local_bytes(&t->layout);
    cdp_transfer *list = (cdp_transfer *)cdp__dt_alloc(os, m->count * sizeof *list);
    cdp_work work;
    cdp_status st = CDP_OK;
    uint32_t n = 0;
    if (!list) return cdp__dt_nomem("cdp_dtensor_check", m->count * sizeof *list);
    for (uint32_t k = 0; k < m->count; ++k) {
        const uint32_t first = cdp__dt_original(s, k);
        if (hash[k] == hash[first] || (k != m->me && first != m->me)) continue;
        list[n].receive = k == m->me;
        list[n].data = k == m->me ? other : t->data;
        list[n].count = bytes;
        list[n].dtype = CDP_DTYPE_U8;
        list[n].peer = k == m->me ? first : k;
        list[n++].tag = CDP__DT_TAG + 2;
    }
    if (n) st = cdp_batch(m->all->group, list, n, &work);
    if (n && st == CDP_OK) st = cdp_work_wait(work);
    cdp__dt_free(os, list);
    return st;
}

/* The index in the whole tensor of the first element that differs; UINT64_MAX: none. */
CDP__DT uint64_t cdp__dt_first_difference(const cdp_dtensor *t, const void *other) {
    const uint64_t elem = cdp_dtype_size(t->layout.dtype);
    const uint64_t n = cdp_layout_box(&t->layout, NULL, NULL);
    const uint8_t *a = (const uint8_t *)t->data, *b = (const uint8_t *)other;
    cdp_box box;
    uint64_t i = 0, index = 0, step = 1;
    while (i < n && memcmp(a + i * elem, b + i * elem, (size_t)elem) == 0)
        ++i;
    if (i == n) return UINT64_MAX;
    (void)cdp_layout_box(&t->layout, NULL, &box);
    for (uint32_t d = t->layout.ndim; d-- > 0; step *= t->layout.shape[d]) {
        index += (box.start[d] + i % box.size[d]) * step;
        i /= box.size[d];
    }
    return index;
}

CDP__DT cdp_status cdp__dt_element_differs(
    const cdp_layout *l, uint64_t index, uint32_t original, uint32_t rank) {
    char text[160];
    cdp__text t = cdp__text_of(text, sizeof text);
    uint64_t step = 1, rest = index;
    for (uint32_t d = 0; d < l->ndim; ++d)
        step *= l->shape[d];
    for (uint32_t d = 0; d < l->ndim; ++d) {
        step /= l->shape[d];
        cdp__text_add(&t, d ? ",%llu" : "%llu", (unsigned long long)(rest / step));
        rest %= step;
    }
    (void)cdp__text_end(&t);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)rank, 0,
        "cdp_dtensor_check: replicas differ: element [%s] is not the same on ranks %u and %u", text,
        original, rank);
}

/* Compares replicas with the original byte by byte if hashes differ; all ranks get the first
   difference. */
CDP__DT cdp_status cdp__dt_check_replicas(
    cdp_dtensor *t, const cdp__dt_side *s, uint64_t *all, bool repair) {
    const cdp_mesh *m = t->layout.mesh;
    const uint64_t bytes = cdp__dt_local_bytes(&t->layout);
    const bool differs = all[m->me] != all[cdp__dt_original(s, m->me)];
    uint64_t first = UINT64_MAX;
    void *other = differs ? m->root->os->alloc(m->root->os->user, bytes) : NULL;
    if (differs && !other) return cdp__dt_nomem("cdp_dtensor_check", bytes);
    cdp_status st = cdp__dt_check_exchange(t, s, all, other);
    if (st == CDP_OK && differs) first = cdp__dt_first_difference(t, other);
    if (st == CDP_OK && differs && repair) memcpy(t->data, other, (size_t)bytes);
    cdp__dt_free(m->root->os, other);
    if (st != CDP_OK || repair) return st;
    st = cdp_allgather(m->all->group, &first, all, 1, CDP_DTYPE_U64);
    for (uint32_t k = 0; st == CDP_OK && k < m->count; ++k)
        if (all[k] != UINT64_MAX)
            return cdp__dt_element_differs(
                &t->layout, all[k], m->ranks[cdp__dt_original(s, k)], m->ranks[k]);
    return st;
}

CDP__DT cdp_status cdp__dt_check_layouts(const cdp_dtensor *t) {
    const cdp_mesh *m = t->layout.mesh;
    uint64_t words[CDP__DT_LAYOUT_WORDS], values[2];
    uint32_t rank, word;
    char name[48];
    cdp__dt_layout_words(&t->layout, words);
    const cdp_status st = cdp__dt_agree(
        m->all->group, m->root->os, words, CDP__DT_LAYOUT_WORDS, &rank, &word, values);
    if (st != CDP_OK || rank == CDP__DT_NONE) return st;
    cdp__text text = cdp__text_of(name, sizeof name);
    const bool plain = cdp__dt_layout_word_name(word, &text);
    (void)cdp__text_end(&text);
    return cdp__dt_words_differ("cdp_dtensor_check: layouts differ", plain ? values : NULL, name,
        m->ranks[0], m->ranks[rank]);
}

CDP_API cdp_status cdp_dtensor_check(cdp_dtensor *t, bool repair) {
    cdp_status st = cdp__dt_tensor_check(t, "cdp_dtensor_check");
    if (st != CDP_OK) return st;
    const cdp_mesh *m = t->layout.mesh;
    if (!m->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_dtensor_check: the mesh is on paper");
    if (!m->all) return CDP_OK;
    st = cdp__dt_check_layouts(t);
    if (st != CDP_OK) return st;
    const cdp__dt_side s = cdp__dt_side_of(&t->layout, 0);
    const uint64_t hash = cdp__dt_hash_bytes(t->data, cdp__dt_local_bytes(&t->layout));
    uint64_t *all = (uint64_t *)cdp__dt_alloc(m->root->os, m->count * sizeof *all);
    bool equal = true;
    if (!all) return cdp__dt_nomem("cdp_dtensor_check", m->count * sizeof *all);
    st = cdp_allgather(m->all->group, &hash, all, 1, CDP_DTYPE_U64);
    for (uint32_t k = 0; st == CDP_OK && k < m->count; ++k)
        equal = equal && all[k] == all[cdp__dt_original(&s, k)];
    if (st == CDP_OK && !equal) st = cdp__dt_check_replicas(t, &s, all, repair);
    cdp__dt_free(m->root->os, all);
    return st;
}

#if !defined(CDP_NO_DDP) && !defined(CDP_NO_CLIP)
CDP_API cdp_status cdp_norm_item_of(const cdp_dtensor *t, cdp_norm_item *out) {
    if (!out) return cdp__dt_missing("cdp_norm_item_of", "out");
    memset(out, 0, sizeof *out);
    const cdp_status st = cdp__dt_tensor_check(t, "cdp_norm_item_of");
    if (st != CDP_OK) return st;
    const cdp_mesh *m = t->layout.mesh;
    for (uint32_t d = 0; d < m->desc.ndim; ++d)
        if (t->layout.place[d].kind == CDP_PLACE_PARTIAL)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_norm_item_of: the gradient is partial over '%s'; redistribute it first",
                m->names[d]);
    out->grad = t->data;
    out->dtype = cdp__dt_dtype(&t->layout);
    if (m->me == CDP__DT_NONE) return CDP_OK;
    const cdp__dt_side s = cdp__dt_side_of(&t->layout, 0);
    out->count = cdp_layout_box(&t->layout, NULL, NULL);
    out->copy = cdp__dt_original(&s, m->me) != m->me;
    return CDP_OK;
}
#endif

#endif /* CDP_SRC_DTENSOR_AGREEMENT_H */
