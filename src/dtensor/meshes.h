/* dtensor/meshes.h - ranks as an n-dimensional array, with groups

   Knows: lists of ranks and their groups. Promises: each list's group is created once, in the same
   order on all ranks, and freed with its last mesh. */
#ifndef CDP_SRC_DTENSOR_MESHES_H
#define CDP_SRC_DTENSOR_MESHES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/helpers.h"
#include "../base/kept_error.h"
#include "../base/ended.h"
#include "../text/format.h"
#include "../group/state.h"
#include "mesh_api.h"
#include "kit.h"
#include "counter.h"
#include "grid.h"
#include "cuts.h"

/* Compares n words over a group. *rank: the first one that differs from rank 0, CDP__DT_NONE:
   none; *word: the first word that differs; values[]: that word on rank 0 and on *rank. */
CDP__DT cdp_status cdp__dt_agree(cdp_group *g, const cdp_os *os, const uint64_t *words, uint32_t n,
    uint32_t *rank, uint32_t *word, uint64_t values[2]) {
    const uint32_t size = cdp_size(g);
    uint64_t *all, hash = cdp__dt_hash(words, n);
    uint32_t i;
    cdp_status st;
    *rank = CDP__DT_NONE;
    *word = 0;
    if (size == 1) return CDP_OK;
    all = (uint64_t *)cdp__dt_alloc(os, (uint64_t)size * n * 8);
    if (!all) return cdp__dt_nomem("comparing ranks", (uint64_t)size * n * 8);
    st = cdp_allgather(g, &hash, all, 1, CDP_DTYPE_U64);
    for (i = 1; st == CDP_OK && i < size && all[i] == all[0]; ++i) {
    }
    if (st == CDP_OK && i < size) {
        *rank = i;
        st = cdp_allgather(g, words, all, n, CDP_DTYPE_U64);
        while (st == CDP_OK && *word + 1 < n && all[(uint64_t)i * n + *word] == all[*word])
            ++*word;
        values[0] = all[*word];
        values[1] = all[(uint64_t)i * n + *word];
    }
    cdp__dt_free(os, all);
    return st;
}

CDP__DT void cdp__dt_link_drop(cdp__dt_root *root, cdp__dt_link *link) {
    cdp__dt_link **at = &root->links;
    if (!link || --link->refs) return;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    for (cdp__dt_scratch *s = root->scratch; s; s = s->next)
        if (s->link == link) s->link = NULL;
    if (!link->borrowed) cdp_group_destroy(link->group);
    while (link->retired) {
        cdp__dt_retired *g = link->retired;
        link->retired = g->next;
        if (g->memory) cdp_group_free(root->group, g->memory);
        cdp__dt_free(root->os, g);
    }
    cdp__dt_free(root->os, link->ranks);
    cdp__dt_free(root->os, link);
}

/* Refuses to run in a child of fork(): it shares memory of groups with the process whose mesh this
   is. */
CDP__DT cdp_status cdp__dt_link_here(const cdp__dt_link *link) {
    const cdp_status st = link ? cdp_group_status(link->group) : CDP_OK;
    return st == CDP_ERR_STATE ? st : CDP_OK; /* failures are those of the calls that follow */
}

/* Frees memory of cdp_group_alloc() that messages of this group have used. If the group has
   failed, the memory is freed later; without memory for a record of that, it is leaked. */
CDP__DT void cdp__dt_retire(cdp__dt_root *root, cdp__dt_link *link, void *memory) {
    cdp__dt_retired *g;
    if (!memory) return;
    if (!link || cdp_group_status(link->group) == CDP_OK) {
        cdp_group_free(root->group, memory);
        return;
    }
    g = (cdp__dt_retired *)cdp__dt_alloc(root->os, sizeof *g);
    if (!g) return;
    g->memory = memory;
    g->next = link->retired;
    link->retired = g;
}

/* Makes a link for a list of ranks; `borrowed`: the caller's group, or NULL. */
CDP__DT cdp_status cdp__dt_link_make(cdp__dt_root *root, const uint32_t *ranks, uint32_t count,
    cdp_group *borrowed, cdp__dt_link **out) {
    cdp__dt_link *l = (cdp__dt_link *)cdp__dt_alloc(root->os, sizeof *l);
    uint32_t *list = (uint32_t *)cdp__dt_alloc(root->os, count * sizeof *list);
    cdp_status st = CDP_OK;
    if (!l || !list)
        st = cdp__dt_nomem("a group of a mesh", count * sizeof *list);
    else if (!borrowed)
        st = cdp_group_new(root->group, ranks, count, &l->group);
    if (st != CDP_OK) {
        cdp__dt_free(root->os, l);
        cdp__dt_free(root->os, list);
        return st;
    }
    memcpy(list, ranks, count * sizeof *list);
    if (borrowed) l->group = borrowed;
    l->borrowed = borrowed != NULL;
    l->refs = 1;
    l->count = count;
    l->ranks = list;
    l->next = root->links;
    root->links = l;
    *out = l;
    return CDP_OK;
}

CDP__DT cdp_status cdp__dt_link_get(
    cdp__dt_root *root, const uint32_t *ranks, uint32_t count, cdp__dt_link **out) {
    for (cdp__dt_link *l = root->links; l; l = l->next)
        if (l->count == count && memcmp(l->ranks, ranks, count * sizeof *ranks) == 0) {
            ++l->refs;
            *out = l;
            return CDP_OK;
        }
    return cdp__dt_link_make(root, ranks, count, NULL, out);
}

CDP__DT void cdp__dt_root_drop(cdp__dt_root *root) {
    const cdp_os *os;
    if (!root || --root->refs) return;
    os = root->os;
    cdp__dt_link_drop(root, root->base);
    while (root->scratch) {
        cdp__dt_scratch *s = root->scratch;
        root->scratch = s->next;
        cdp_group_free(root->group, s->at);
        cdp__dt_free(os, s);
    }
    cdp__dt_counter_free(root->counter, os);
    cdp__dt_free(os, root->ranks);
    cdp__dt_free(os, root);
}

CDP__DT bool cdp__dt_name_good(const char *s) {
    uint32_t n = 0;
    for (; s[n]; ++n) {
        const char c = s[n];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (n == 31 || !(letter || (c >= '0' && c <= '9') || c == '_' || c == '-')) return false;
    }
    return n > 0;
}

CDP__DT cdp_status cdp__dt_mesh_names(cdp_mesh *m, const char *const *names) {
    uint64_t words[sizeof m->names[0] / 8];
    for (uint32_t d = 0; d < m->desc.ndim; ++d) {
        if (names && names[d]) {
            if (!cdp__dt_name_good(names[d]))
                return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                    "mesh: names[%u] \"%s\" must be 1 to 31 letters, digits, '_' or '-'", d,
                    names[d]);
            memcpy(m->names[d], names[d], strlen(names[d]) + 1);
        } else {
            m->names[d][0] = (char)('0' + d);
        }
        m->desc.names[d] = m->names[d];
        memcpy(words, m->names[d], sizeof words);
        m->name_hash[d] = cdp__dt_hash(words, 4);
        for (uint32_t e = 0; e < d; ++e)
            if (strcmp(m->names[e], m->names[d]) == 0)
                return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                    "mesh: dimensions %u and %u are both called \"%s\"; give each its own name", e,
                    d, m->names[d]);
    }
    return CDP_OK;
}

/* Copies the shape, and computes the size that is given as 0. */
CDP__DT cdp_status cdp__dt_mesh_shape(cdp_mesh *m, uint32_t ndim, const uint32_t *shape) {
    const uint32_t size = m->root->size;
    uint64_t known = 1;
    uint32_t open = CDP__DT_NONE, d;
    if (ndim > CDP_MESH_DIMS)
        return cdp_error_set(
            CDP_ERR_INVALID, -1, 0, "mesh: ndim %u is above the limit of %u", ndim, CDP_MESH_DIMS);
    m->desc.ndim = ndim ? ndim : 1;
    for (d = 0; d < m->desc.ndim; ++d) {
        m->desc.shape[d] = shape ? shape[d] : 0;
        if (!m->desc.shape[d] && open != CDP__DT_NONE)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "mesh: shape[%u] and shape[%u] are both 0; one size at most may be left open", open,
                d);
        if (!m->desc.shape[d]) open = d;
        known = known * cdp__max(m->desc.shape[d], 1);
        if (known > size)
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "mesh: its shape needs at least %llu ranks, there are %u",
                (unsigned long long)known, size);
    }
    if (open != CDP__DT_NONE) {
        m->desc.shape[open] = (uint32_t)(size / known);
        known *= m->desc.shape[open];
    }
    m->count = (uint32_t)known;
    for (d = m->desc.ndim, known = 1; d-- > 0; known *= m->desc.shape[d])
        m->stride[d] = (uint32_t)known;
    return CDP_OK;
}

/* Copies the ranks; NULL: 0, 1, ... */
CDP__DT cdp_status cdp__dt_mesh_ranks(cdp_mesh *m, const uint32_t *ranks) {
    cdp__dt_root *root = m->root;
    uint8_t *seen = (uint8_t *)cdp__dt_alloc(root->os, root->size);
    cdp_status st = CDP_OK;
    m->me = CDP__DT_NONE;
    m->ranks = (uint32_t *)cdp__dt_alloc(root->os, m->count * sizeof *m->ranks);
    if (!m->ranks || !seen) st = cdp__dt_nomem("a mesh", m->count * sizeof *m->ranks);
    for (uint32_t i = 0; st == CDP_OK && i < m->count; ++i) {
        const uint32_t r = m->ranks[i] = ranks ? ranks[i] : i;
        if (r >= root->size || seen[r])
            st = cdp_error_set(CDP_ERR_INVALID, -1, 0, "mesh: ranks[%u] is %u; %s", i, r,
                r >= root->size ? "the group has fewer ranks" : "each rank may occur only once");
        else
            seen[r] = 1;
        if (r == root->rank) m->me = i;
        m->ranks_hash = (m->ranks_hash ^ (r + 1ull)) * 0x100000001b3u;
    }
    cdp__dt_free(root->os, seen);
    m->desc.ranks = m->ranks;
    return st;
}

/* Writes the ranks of this rank's row along `dim` to `row`. */
CDP__DT void cdp__dt_mesh_row(const cdp_mesh *m, uint32_t dim, uint32_t *row) {
    const uint32_t step = m->stride[dim], own = m->me / step % m->desc.shape[dim];
    for (uint32_t i = 0; i < m->desc.shape[dim]; ++i)
        row[i] = m->ranks[m->me - own * step + i * step];
}

CDP__DT cdp_status cdp__dt_mesh_groups(cdp_mesh *m) {
    cdp__dt_root *root = m->root;
    uint32_t *row;
    cdp_status st = CDP_OK;
    if (!root->group || m->me == CDP__DT_NONE) return CDP_OK;
    row = (uint32_t *)cdp__dt_alloc(root->os, m->count * sizeof *row);
    if (!row) return cdp__dt_nomem("a mesh", m->count * sizeof *row);
    st = cdp__dt_link_get(root, m->ranks, m->count, &m->all);
    for (uint32_t d = 0; st == CDP_OK && d < m->desc.ndim; ++d) {
        if (m->link[d]) continue;
        cdp__dt_mesh_row(m, d, row);
        st = cdp__dt_link_get(root, row, m->desc.shape[d], &m->link[d]);
    }
    cdp__dt_free(root->os, row);
    return st;
}

/* Fills in everything except groups. The mesh belongs to the root even if this fails. */
CDP__DT cdp_status cdp__dt_mesh_fill(cdp_mesh *m, uint32_t ndim, const uint32_t *shape,
    const char *const *names, const uint32_t *ranks) {
    cdp_status st = cdp__dt_mesh_shape(m, ndim, shape);
    if (st == CDP_OK) st = cdp__dt_mesh_names(m, names);
    if (st == CDP_OK) st = cdp__dt_mesh_ranks(m, ranks);
    return st;
}

CDP__DT cdp_mesh *cdp__dt_mesh_of_root(cdp__dt_root *root) {
    cdp_mesh *m = (cdp_mesh *)cdp__dt_alloc(root->os, sizeof *m);
    cdp__ended_remove(cdp__dt_mesh_mark(m));
    if (!m) return NULL;
    m->root = root;
    ++root->refs;
    m->desc.group = root->group;
    m->desc.paper_ranks = root->group ? 0 : root->size;
    m->desc.paper_rank = root->group ? 0 : root->rank;
    m->me = CDP__DT_NONE;
    return m;
}

/* Frees a mesh that keeps no plans. */
CDP__DT void cdp__dt_mesh_free(cdp_mesh *m) {
    const cdp_os *os = m->root->os;
    CDP_ASSERT(!m->kept);
    cdp__ended_add(cdp__dt_mesh_mark(m));
    cdp__dt_cuts_free(m);
    for (uint32_t d = 0; d < CDP_MESH_DIMS; ++d)
        cdp__dt_link_drop(m->root, m->link[d]);
    cdp__dt_link_drop(m->root, m->all); /* it has the memory of plans that use several groups */
    cdp__dt_free(os, m->ranks);
    cdp__dt_root_drop(m->root);
    cdp__dt_free(os, m);
}

CDP__DT cdp_status cdp__dt_root_make(const cdp_mesh_desc *d, cdp__dt_root **out) {
    const cdp_group_desc *group = cdp_group_desc_of(d->group);
    const cdp_os *os = group ? group->os : NULL;
    if (d->group && !group) return cdp_group_status(d->group); /* it was destroyed */
    if (!os) os = cdp_os_default();
    if (!d->group && (!d->paper_ranks || d->paper_rank >= d->paper_ranks))
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "cdp_mesh_create: no group, and paper_rank %u of paper_ranks %u; set .group, or both",
            d->paper_rank, d->paper_ranks);
    cdp__dt_root *root = (cdp__dt_root *)cdp__dt_alloc(os, sizeof *root);
    if (!root) return cdp__dt_nomem("a mesh", sizeof *root);
    root->refs = 1;
    root->os = os;
    root->group = d->group;
    root->size = d->group ? cdp_size(d->group) : d->paper_ranks;
    root->rank = d->group ? cdp_rank(d->group) : d->paper_rank;
    *out = root;
    return CDP_OK;
}

#define CDP__DT_MESH_WORDS (3u + CDP_MESH_DIMS + 4u * CDP_MESH_DIMS)

CDP__DT void cdp__dt_mesh_words(const cdp_mesh *m, bool good, uint64_t *words) {
    memset(words, 0, CDP__DT_MESH_WORDS * sizeof *words);
    if (!good) return;
    words[0] = 1;
    words[1] = m->desc.ndim;
    words[2] = m->desc.host_ranks;
    for (uint32_t d = 0; d < m->desc.ndim; ++d) {
        words[3 + d] = m->desc.shape[d];
        memcpy(words + 3 + CDP_MESH_DIMS + 4 * d, m->names[d], 32);
    }
}

/* The name of the desc member at a word, for errors. */
CDP__DT void cdp__dt_mesh_word_name(uint32_t word, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    const uint32_t d = word < 3 ? 0 : word - 3;
    if (word < 3)
        cdp__text_add(&t, "%s", word == 1 ? "ndim" : "host_ranks");
    else if (d < CDP_MESH_DIMS)
        cdp__text_add(&t, "shape[%u]", d);
    else
        cdp__text_add(&t, "names[%u]", (d - CDP_MESH_DIMS) / 4);
    (void)cdp__text_end(&t);
}

CDP__DT cdp_status cdp__dt_mesh_differs(uint32_t word, uint32_t rank, const uint64_t values[2]) {
    char name[32];
    if (word == 0)
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)(values[0] ? rank : 0), 0,
            "cdp_mesh_create: the desc of rank %u is not valid; its error says why",
            values[0] ? rank : 0u);
    cdp__dt_mesh_word_name(word, name, sizeof name);
    if (word >= 3 + CDP_MESH_DIMS)
        return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)rank, 0,
            "cdp_mesh_create: ranks 0 and %u gave different %s", rank, name);
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)rank, 0,
        "cdp_mesh_create: %s is %llu on rank 0 and %llu on rank %u", name,
        (unsigned long long)values[0], (unsigned long long)values[1], rank);
}

CDP__DT cdp_status cdp__dt_mesh_compare(const cdp_mesh *m, bool good) {
    uint64_t words[CDP__DT_MESH_WORDS], values[2] = {0, 0}, *list;
    uint32_t rank, word;
    cdp__dt_mesh_words(m, good, words);
    cdp_status st =
        cdp__dt_agree(m->root->group, m->root->os, words, CDP__DT_MESH_WORDS, &rank, &word, values);
    if (st != CDP_OK) return st;
    if (rank != CDP__DT_NONE) return cdp__dt_mesh_differs(word, rank, values);
    if (!good) return CDP_OK;
    list = (uint64_t *)cdp__dt_alloc(m->root->os, m->count * sizeof *list);
    if (!list) return cdp__dt_nomem("a mesh", m->count * sizeof *list);
    for (uint32_t i = 0; i < m->count; ++i)
        list[i] = m->ranks[i];
    st = cdp__dt_agree(m->root->group, m->root->os, list, m->count, &rank, &word, values);
    cdp__dt_free(m->root->os, list);
    if (st != CDP_OK || rank == CDP__DT_NONE) return st;
    return cdp_error_set(CDP_ERR_MISMATCH, (int32_t)rank, 0,
        "cdp_mesh_create: ranks[%u] is %llu on rank 0 and %llu on rank %u", word,
        (unsigned long long)values[0], (unsigned long long)values[1], rank);
}

/* Checks that the caller's group for one dimension has the ranks of the mesh. */
CDP__DT cdp_status cdp__dt_mesh_borrow(cdp_mesh *m, uint32_t dim, cdp_group *g) {
    const uint32_t n = m->desc.shape[dim];
    uint32_t *row = (uint32_t *)cdp__dt_alloc(m->root->os, n * sizeof *row);
    cdp_status st = CDP_OK;
    if (!row) return cdp__dt_nomem("a mesh", n * sizeof *row);
    cdp__dt_mesh_row(m, dim, row);
    for (uint32_t i = 0; st == CDP_OK && i < n; ++i) {
        const uint32_t want = cdp_world_rank_of(m->root->group, row[i]);
        if (!g || cdp_size(g) != n || cdp_world_rank_of(g, i) != want)
            st = cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_mesh_from_groups: groups[%u] must have %u ranks, and at %u rank %u of the "
                "world",
                dim, n, i, want);
    }
    if (st == CDP_OK) st = cdp__dt_link_make(m->root, row, n, g, &m->link[dim]);
    cdp__dt_free(m->root->os, row);
    return st;
}

/* Creates the groups of a first mesh, and records the mesh in its root. */
CDP__DT cdp_status cdp__dt_mesh_first(cdp_mesh *m, cdp_group *const *groups) {
    cdp__dt_root *root = m->root;
    cdp_status st = CDP_OK;
    uint32_t *every = (uint32_t *)cdp__dt_alloc(root->os, root->size * sizeof *every);
    root->ranks = (uint32_t *)cdp__dt_alloc(root->os, m->count * sizeof *every);
    if (!every || !root->ranks) st = cdp__dt_nomem("a mesh", root->size * sizeof *every);
    for (uint32_t i = 0; st == CDP_OK && i < root->size; ++i)
        every[i] = i;
    if (st == CDP_OK && root->group) st = cdp__dt_link_get(root, every, root->size, &root->base);
    cdp__dt_free(root->os, every);
    if (st != CDP_OK) return st;
    memcpy(root->ranks, m->ranks, m->count * sizeof *root->ranks);
    memcpy(root->shape, m->desc.shape, sizeof root->shape);
    root->ndim = m->desc.ndim;
    for (uint32_t d = 0; st == CDP_OK && groups && m->me != CDP__DT_NONE && d < m->desc.ndim; ++d)
        st = cdp__dt_mesh_borrow(m, d, groups[d]);
    return st == CDP_OK ? cdp__dt_mesh_groups(m) : st;
}

CDP__DT cdp_status cdp__dt_mesh_create(
    const cdp_mesh_desc *desc, cdp_group *const *groups, cdp_mesh **out) {
    cdp__dt_root *root = NULL;
    if (!out) return cdp__dt_missing("cdp_mesh_create", "out");
    *out = NULL;
    if (!desc) return cdp__dt_missing("cdp_mesh_create", "desc");
    cdp_status st = cdp__dt_root_make(desc, &root), own;
    if (st != CDP_OK) return st;
    cdp_mesh *m = cdp__dt_mesh_of_root(root);
    cdp__dt_root_drop(root); /* the mesh holds a reference */
    if (!m) return cdp__dt_nomem("a mesh", sizeof *m);
    m->desc.host_ranks = desc->host_ranks;
    m->desc.no_check = desc->no_check;
    own = cdp__dt_mesh_fill(m, desc->ndim, desc->shape, desc->names, desc->ranks);
    const cdp_error why = *cdp_last_error();
    if (root->group && !desc->no_check) st = cdp__dt_mesh_compare(m, own == CDP_OK);
    /* this rank's own error, not the report of the others */
    if (own != CDP_OK) st = cdp__error_again(own, &why);
    if (st == CDP_OK) st = cdp__dt_mesh_first(m, groups);
    if (st != CDP_OK) {
        cdp__dt_mesh_free(m);
        return st;
    }
    *out = m;
    return CDP_OK;
}

CDP_API cdp_status cdp_mesh_create(const cdp_mesh_desc *desc, cdp_mesh **out) {
    return cdp__dt_mesh_create(desc, NULL, out);
}

CDP_API cdp_status cdp_mesh_from_groups(
    const cdp_mesh_desc *desc, cdp_group *const *groups, cdp_mesh **out) {
    if (!out) return cdp__dt_missing("cdp_mesh_from_groups", "out");
    *out = NULL;
    if (!groups) return cdp__dt_missing("cdp_mesh_from_groups", "groups");
    if (!desc) return cdp__dt_missing("cdp_mesh_from_groups", "desc");
    if (!desc->group) return cdp__dt_missing("cdp_mesh_from_groups", "desc.group");
    return cdp__dt_mesh_create(desc, groups, out);
}

CDP_API uint32_t cdp_mesh_dim(const cdp_mesh *m, const char *name) {
    m = cdp__dt_mesh_known(m);
    for (uint32_t d = 0; m && name && d < m->desc.ndim; ++d)
        if (strcmp(m->names[d], name) == 0) return d;
    return CDP_NO_DIM;
}

CDP_API uint32_t cdp_mesh_size(const cdp_mesh *m, uint32_t dim) {
    m = cdp__dt_mesh_known(m);
    if (m && dim == CDP_NO_DIM) return m->count;
    return m && dim < m->desc.ndim ? m->desc.shape[dim] : 0;
}

CDP_API uint32_t cdp_mesh_coord(const cdp_mesh *m, uint32_t dim) {
    m = cdp__dt_mesh_known(m);
    if (!m || m->me == CDP__DT_NONE) return CDP_NO_DIM;
    if (dim == CDP_NO_DIM) return m->me;
    return dim < m->desc.ndim ? m->me / m->stride[dim] % m->desc.shape[dim] : CDP_NO_DIM;
}

CDP_API uint32_t cdp_mesh_rank_at(const cdp_mesh *m, const uint32_t *coord) {
    uint32_t position = 0;
    m = cdp__dt_mesh_known(m);
    for (uint32_t d = 0; m && d < m->desc.ndim; ++d) {
        if (!coord || coord[d] >= m->desc.shape[d]) return CDP_NO_DIM;
        position += coord[d] * m->stride[d];
    }
    return m ? m->ranks[position] : CDP_NO_DIM;
}

CDP_API cdp_group *cdp_mesh_group(const cdp_mesh *m, uint32_t dim) {
    m = cdp__dt_mesh_known(m);
    const cdp__dt_link *l = NULL;
    if (m && dim == CDP_NO_DIM) l = m->all;
    if (m && dim < m->desc.ndim) l = m->link[dim];
    return l ? l->group : NULL;
}

CDP_API const cdp_mesh_desc *cdp_mesh_desc_of(const cdp_mesh *m) {
    return cdp__dt_mesh_known(m) ? &m->desc : NULL;
}

#endif /* CDP_SRC_DTENSOR_MESHES_H */
