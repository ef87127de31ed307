/* dtensor/mesh_parts.h - meshes made from other meshes

   Knows: meshes. Promises: sends no message; creates groups only for new lists of ranks. */
#ifndef CDP_SRC_DTENSOR_MESH_PARTS_H
#define CDP_SRC_DTENSOR_MESH_PARTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../base/helpers.h"
#include "../dtype/reduce.h"
#include "mesh_api.h"
#include "kit.h"
#include "kernels.h"
#include "grid.h"
#include "meshes.h"

/* Parses a list like "dp,tp" to indices of dimensions. */
CDP__DT cdp_status cdp__dt_mesh_list(
    const cdp_mesh *m, const char *names, uint32_t dims[CDP_MESH_DIMS], uint32_t *n) {
    char word[32];
    uint32_t used = 0, seen = 0;
    *n = 0;
    for (const char *s = names ? names : "";; ++s) {
        if (*s && *s != ',') {
            if (used < 31) word[used++] = *s;
            continue;
        }
        word[used] = 0;
        used = 0;
        const uint32_t d = cdp_mesh_dim(m, word);
        if (d == CDP_NO_DIM || seen >> d & 1)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                d == CDP_NO_DIM ? "mesh: there is no dimension \"%s\""
                                : "mesh: dimension \"%s\" is named twice",
                word);
        seen |= 1u << d;
        dims[(*n)++] = d;
        if (!*s) return CDP_OK;
    }
}

/* Makes a mesh with the root of `like` and with these ranks. */
CDP__DT cdp_status cdp__dt_mesh_from(cdp_mesh *like, uint32_t ndim, const uint32_t *shape,
    const char *const *names, const uint32_t *ranks, cdp_mesh **out) {
    cdp_mesh *m = cdp__dt_mesh_of_root(like->root);
    if (!m) return cdp__dt_nomem("a mesh", sizeof *m);
    m->desc.host_ranks = like->desc.host_ranks;
    cdp_status st = cdp__dt_mesh_fill(m, ndim, shape, names, ranks);
    if (st == CDP_OK) st = cdp__dt_mesh_groups(m);
    if (st != CDP_OK) {
        cdp__dt_mesh_free(m);
        return st;
    }
    *out = m;
    return CDP_OK;
}

/* The sub-mesh of these dimensions that contains this rank; `one`: for a single dimension. */
CDP__DT cdp_status cdp__dt_mesh_part(
    cdp_mesh *m, const char *names, const char *one, cdp_mesh **out) {
    uint32_t dims[CDP_MESH_DIMS], n, shape[CDP_MESH_DIMS], count = 1;
    const char *list[CDP_MESH_DIMS];
    const char *const call = one ? "cdp_mesh_flatten" : "cdp_mesh_sub";
    if (!out) return cdp__dt_missing(call, "out");
    *out = NULL;
    cdp_status st = cdp__dt_mesh_alive(m, call);
    if (st != CDP_OK) return st;
    st = cdp__dt_mesh_list(m, names, dims, &n);
    if (st != CDP_OK) return st;
    uint32_t at = m->me == CDP__DT_NONE ? 0 : m->me;
    for (uint32_t k = 0; k < n; ++k) {
        shape[k] = m->desc.shape[dims[k]];
        list[k] = m->names[dims[k]];
        count *= shape[k];
        at -= at / m->stride[dims[k]] % shape[k] * m->stride[dims[k]];
    }
    uint32_t *ranks = (uint32_t *)cdp__dt_alloc(m->root->os, count * sizeof *ranks);
    if (!ranks) return cdp__dt_nomem("a mesh", count * sizeof *ranks);
    for (uint32_t i = 0; i < count; ++i) {
        uint32_t position = at, rest = i;
        for (uint32_t k = n; k-- > 0; rest /= shape[k])
            position += rest % shape[k] * m->stride[dims[k]];
        ranks[i] = m->ranks[position];
    }
    st = one ? cdp__dt_mesh_from(m, 1, &count, &one, ranks, out)
             : cdp__dt_mesh_from(m, n, shape, list, ranks, out);
    cdp__dt_free(m->root->os, ranks);
    return st;
}

CDP_API cdp_status cdp_mesh_sub(cdp_mesh *m, const char *names, cdp_mesh **out) {
    return cdp__dt_mesh_part(m, names, NULL, out);
}

CDP_API cdp_status cdp_mesh_flatten(
    cdp_mesh *m, const char *names, const char *name, cdp_mesh **out) {
    if (out) *out = NULL;
    if (!name) return cdp__dt_missing("cdp_mesh_flatten", "name");
    return cdp__dt_mesh_part(m, names, name, out);
}

CDP_API cdp_status cdp_mesh_unflatten(cdp_mesh *m, const char *name, uint32_t ndim,
    const uint32_t *shape, const char *const *names, cdp_mesh **out) {
    const uint32_t dim = cdp_mesh_dim(m, name);
    uint32_t sizes[CDP_MESH_DIMS], n = 0;
    uint64_t product = 1;
    const char *list[CDP_MESH_DIMS];
    if (out) *out = NULL;
    cdp_status st = cdp__dt_mesh_alive(m, "cdp_mesh_unflatten");
    if (st != CDP_OK) return st;
    if (!name) return cdp__dt_missing("cdp_mesh_unflatten", "name");
    if (!shape) return cdp__dt_missing("cdp_mesh_unflatten", "shape");
    if (!names) return cdp__dt_missing("cdp_mesh_unflatten", "names");
    if (!out) return cdp__dt_missing("cdp_mesh_unflatten", "out");
    if (dim == CDP_NO_DIM || !ndim)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_unflatten: ndim is 0, or there is no dimension \"%s\"", name);
    if (m->desc.ndim + ndim - 1 > CDP_MESH_DIMS || ndim > CDP_MESH_DIMS)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_unflatten: that makes more than %u dimensions", CDP_MESH_DIMS);
    for (uint32_t d = 0; d < m->desc.ndim; ++d) {
        for (uint32_t k = 0; d == dim && k < ndim; ++k) {
            product *= shape[k];
            list[n] = names[k];
            sizes[n++] = shape[k];
        }
        if (d == dim) continue;
        list[n] = m->names[d];
        sizes[n++] = m->desc.shape[d];
    }
    if (product != m->desc.shape[dim])
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_unflatten: the sizes make %llu, but \"%s\" has %u ranks",
            (unsigned long long)product, name, m->desc.shape[dim]);
    return cdp__dt_mesh_from(m, n, sizes, list, m->ranks, out);
}

/* The position of each rank in the first mesh; ranks outside have the position 0. The caller frees
   it. NULL: out of memory. */
CDP__DT uint32_t *cdp__dt_root_positions(const cdp__dt_root *root) {
    uint32_t count = 1;
    for (uint32_t d = 0; d < root->ndim; ++d)
        count *= root->shape[d];
    uint32_t *at = (uint32_t *)cdp__dt_alloc(root->os, root->size * sizeof *at);
    for (uint32_t i = 0; at && i < count; ++i)
        at[root->ranks[i]] = i;
    return at;
}

/* The rank that has the coordinates of `a` where these differ from `base`, else those of `b`. */
CDP__DT uint32_t cdp__dt_root_cross(
    const cdp__dt_root *root, uint32_t a, uint32_t b, uint32_t base) {
    uint32_t stride = 1, position = 0;
    for (uint32_t d = root->ndim; d-- > 0;) {
        const uint32_t n = root->shape[d], x = a / stride % n, y = b / stride % n;
        position += (x != base / stride % n ? x : y) * stride;
        stride *= n;
    }
    return root->ranks[position];
}

CDP_API cdp_status cdp_mesh_join(cdp_mesh *outer, cdp_mesh *inner, cdp_mesh **out) {
    uint32_t shape[CDP_MESH_DIMS], n = 0, d;
    const char *names[CDP_MESH_DIMS];
    if (out) *out = NULL;
    if (cdp__dt_mesh_ended(outer)) return cdp__dt_mesh_alive(outer, "cdp_mesh_join");
    if (cdp__dt_mesh_ended(inner)) return cdp__dt_mesh_alive(inner, "cdp_mesh_join");
    if (!outer || !inner || !out || outer->root != inner->root)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "cdp_mesh_join: both meshes must have been made from one mesh");
    if (outer->desc.ndim + inner->desc.ndim > CDP_MESH_DIMS)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_join: that makes more than %u dimensions", CDP_MESH_DIMS);
    for (d = 0; d < outer->desc.ndim; ++d, ++n) {
        shape[n] = outer->desc.shape[d];
        names[n] = outer->names[d];
    }
    for (d = 0; d < inner->desc.ndim; ++d, ++n) {
        shape[n] = inner->desc.shape[d];
        names[n] = inner->names[d];
    }
    const cdp__dt_root *root = outer->root;
    const uint64_t count = (uint64_t)outer->count * inner->count;
    if (count > root->size)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_join: the meshes share a dimension, or have more than all ranks together");
    uint32_t *ranks = (uint32_t *)cdp__dt_alloc(root->os, count * sizeof *ranks);
    uint32_t *at = cdp__dt_root_positions(root);
    const uint32_t me = outer->me == CDP__DT_NONE ? outer->ranks[0] : outer->ranks[outer->me];
    for (uint64_t i = 0; ranks && at && i < count; ++i)
        ranks[i] = cdp__dt_root_cross(
            root, at[outer->ranks[i / inner->count]], at[inner->ranks[i % inner->count]], at[me]);
    const bool made = ranks && at;
    cdp__dt_free(root->os, at);
    cdp_status st = made ? CDP_OK : cdp__dt_nomem("a mesh", (count + root->size) * sizeof *ranks);
    if (made) st = cdp__dt_mesh_from(outer, n, shape, names, ranks, out);
    cdp__dt_free(root->os, ranks);
    return st;
}

/* Measures `rounds` exchanges of `bytes` with the ranks `step` positions away, in us. */
CDP__DT cdp_status cdp__dt_measure(
    cdp_mesh *m, uint32_t step, uint32_t rounds, uint64_t bytes, uint8_t *memory, double *us) {
    const cdp_os *os = m->root->os;
    const uint32_t to = (m->me + step) % m->count, from = (m->me + m->count - step) % m->count;
    cdp_status st = cdp_barrier(m->all->group);
    const uint64_t start = os->now_ns(os->user);
    for (uint32_t i = 0; st == CDP_OK && i < rounds; ++i)
        st = cdp_sendrecv(m->all->group, memory, bytes, to, memory + bytes, bytes, from,
            CDP_DTYPE_U8, 0xcd700001u);
    *us = (double)(os->now_ns(os->user) - start) / 1000.0 / rounds;
    return st;
}

/* Measures copying and adding n bytes, in bytes per us. */
CDP__DT void cdp__dt_measure_memory(const cdp_os *os, uint8_t *memory, uint64_t n, cdp_net *net) {
    uint64_t start = os->now_ns(os->user);
    for (uint32_t i = 0; i < 4; ++i)
        memcpy(memory + n, memory, (size_t)n);
    net->copy_bytes_per_us = (double)(4 * n) * 1000 / (double)(os->now_ns(os->user) - start + 1);
    start = os->now_ns(os->user);
    for (uint32_t i = 0; i < 4; ++i)
        cdp__reduce(CDP_DTYPE_F32, CDP_REDUCE_SUM, false, memory + n, memory, n / 4);
    net->reduce_bytes_per_us = (double)(4 * n) * 1000 / (double)(os->now_ns(os->user) - start + 1);
}

CDP__DT cdp_status cdp__dt_measure_links(cdp_mesh *m, uint8_t *memory, uint64_t n, cdp_net *net) {
    const uint32_t distant =
        m->desc.host_ranks && m->desc.host_ranks < m->count ? m->desc.host_ranks : 1;
    double short_us, long_us;
    cdp_status st = cdp__dt_measure(m, 1, 20, 8, memory, &short_us);
    if (st == CDP_OK) st = cdp__dt_measure(m, 1, 200, 8, memory, &short_us);
    if (st == CDP_OK) st = cdp__dt_measure(m, 1, 8, n, memory, &long_us);
    if (st != CDP_OK) return st;
    net->latency_us = short_us;
    net->bytes_per_us = (double)n / cdp__dt_or(long_us - short_us, 1);
    st = cdp__dt_measure(m, distant, 100, 8, memory, &short_us);
    if (st == CDP_OK) st = cdp__dt_measure(m, distant, 8, n, memory, &long_us);
    net->far_latency_us = short_us;
    net->far_bytes_per_us = (double)n / cdp__dt_or(long_us - short_us, 1);
    return st;
}

CDP_API cdp_status cdp_mesh_measure(cdp_mesh *m, cdp_net *out) {
    const uint64_t n = 1u << 20;
    if (!out) return cdp__dt_missing("cdp_mesh_measure", "out");
    cdp_status st = cdp__dt_mesh_alive(m, "cdp_mesh_measure");
    if (st != CDP_OK) return st;
    if (!m->root->group)
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "cdp_mesh_measure: the mesh is on paper");
    memset(out, 0, sizeof *out);
    if (!m->all) return CDP_OK;
    uint8_t *memory = (uint8_t *)cdp__dt_group_memory(m->all->group, 2 * n);
    if (!memory) return cdp__dt_nomem("cdp_mesh_measure", 2 * n);
    memset(memory, 0, (size_t)(2 * n));
    cdp__dt_measure_memory(m->root->os, memory, n, out);
    st = m->count > 1 ? cdp__dt_measure_links(m, memory, n, out) : CDP_OK;
    if (st == CDP_OK)
        st = cdp_allreduce(m->all->group, NULL, out, 6, CDP_DTYPE_F64, CDP_REDUCE_AVG);
    cdp_group_free(m->all->group, memory);
    return st;
}

#endif /* CDP_SRC_DTENSOR_MESH_PARTS_H */
