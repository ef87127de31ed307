/*  op_pieces.h - operators on integers, whole and in pieces. Include after cdp_dtensor.h.

    Every kernel works on local arrays alone, as a program's kernels do: it is told the sizes of its
    pieces and the flags of the rules, and where a piece starts only if a flag allows that. The
    kernels of softmax, norm and attention are stand-ins with integers that need the same elements.
   */
#ifndef OP_PIECES_INCLUDED
#define OP_PIECES_INCLUDED

#include "../unit/said.h"

#define PIECE_ROOM 1024u
#define PIECE_RANKS 8u

typedef struct piece {
    uint32_t ndim;
    uint64_t size[CDP_TENSOR_DIMS], start[CDP_TENSOR_DIMS];
    int64_t v[PIECE_ROOM];
} piece;

/* What a test does with an operator. */
typedef struct op_case {
    const char *name;
    cdp_op op;
    uint32_t inputs;
    cdp_layout in[CDP_OP_INPUTS]; /* shapes alone */
} op_case;

TEST_API uint64_t piece_volume(const piece *p) {
    uint64_t n = 1;
    for (uint32_t d = 0; d < p->ndim; ++d)
        n *= p->size[d];
    return n;
}

/* Element i of a piece as coordinates within it. */
TEST_API void piece_at(const piece *p, uint64_t i, uint64_t *at) {
    for (uint32_t d = p->ndim; d-- > 0; i /= p->size[d])
        at[d] = i % p->size[d];
}

TEST_API uint64_t piece_index(const piece *p, const uint64_t *at) {
    uint64_t i = 0;
    for (uint32_t d = 0; d < p->ndim; ++d)
        i = i * p->size[d] + at[d];
    return i;
}

/* ---- kernels: out->size is set, out->v is filled ---- */

TEST_API void kernel_shape(piece *out, uint32_t ndim, const uint64_t *size) {
    out->ndim = ndim;
    memcpy(out->size, size, ndim * sizeof *size);
    if (piece_volume(out) > PIECE_ROOM) abort();
}

TEST_API int64_t einsum_term(const cdp__dt_letters *l, const piece *in, const uint64_t *letter) {
    int64_t product = 1;
    for (uint32_t k = 0; k < l->inputs; ++k) {
        uint64_t at[CDP_TENSOR_DIMS];
        for (uint32_t d = 0; d < in[k].ndim; ++d)
            at[d] = letter[l->in[k][d] - 'a'];
        if (k != l->addend) product *= in[k].v[piece_index(&in[k], at)];
    }
    return product;
}

TEST_API void kernel_einsum(const cdp_op *op, const piece *in, uint32_t flags, piece *out) {
    cdp__dt_letters l;
    uint64_t size[26], letter[26], n = 1;
    char inner[30];
    uint32_t inners = 0;
    OK(cdp__dt_letters_parse(op->text, &l));
    for (uint32_t c = 0; c < 26; ++c)
        size[c] = 0;
    for (uint32_t k = 0; k < l.inputs; ++k)
        for (uint32_t d = 0; d < in[k].ndim; ++d) {
            const uint32_t c = (uint32_t)(l.in[k][d] - 'a');
            if (size[c]) T_EQ(size[c], in[k].size[d]);
            size[c] = in[k].size[d];
            if (!strchr(l.out, l.in[k][d]) && !memchr(inner, l.in[k][d], inners)) {
                inner[inners++] = l.in[k][d];
                n *= in[k].size[d];
            }
        }
    uint64_t shape[CDP_TENSOR_DIMS] = {0};
    for (uint32_t d = 0; l.out[d]; ++d)
        shape[d] = size[l.out[d] - 'a'];
    kernel_shape(out, (uint32_t)strlen(l.out), shape);
    for (uint64_t i = 0; i < piece_volume(out); ++i) {
        uint64_t at[CDP_TENSOR_DIMS];
        piece_at(out, i, at);
        for (uint32_t d = 0; d < out->ndim; ++d)
            letter[l.out[d] - 'a'] = at[d];
        out->v[i] = 0;
        for (uint64_t j = 0; j < n; ++j) {
            uint64_t rest = j;
            for (uint32_t k = 0; k < inners; ++k) {
                letter[inner[k] - 'a'] = rest % size[inner[k] - 'a'];
                rest /= size[inner[k] - 'a'];
            }
            out->v[i] += einsum_term(&l, in, letter);
        }
        if (l.addend == CDP__DT_NO_INPUT || (flags & CDP_RULE_ONCE)) continue;
        for (uint32_t d = 0; d < in[l.addend].ndim; ++d)
            at[d] = letter[l.in[l.addend][d] - 'a'];
        out->v[i] += in[l.addend].v[piece_index(&in[l.addend], at)];
    }
}

TEST_API int64_t pointwise_value(cdp_linear linear, const int64_t *x, uint32_t n) {
    int64_t y = x[0];
    switch (linear) {
    case CDP_LINEAR_SCALE: return -3 * x[0];
    case CDP_LINEAR_RISING: return x[0] > 0 ? x[0] * x[0] : x[0] / 2;
    case CDP_LINEAR_FALLING: return 5 - x[0] * x[0] * x[0];
    case CDP_LINEAR_QUOTIENT: return x[0] / (n > 1 ? x[1] : 1);
    default: break;
    }
    for (uint32_t k = 1; k < n; ++k) {
        if (linear == CDP_LINEAR_ADD) y = k == 1 ? y - x[k] : y + x[k];
        if (linear == CDP_LINEAR_PRODUCT) y *= x[k];
        if (linear == CDP_LINEAR_MAX && x[k] > y) y = x[k];
        if (linear == CDP_LINEAR_MIN && x[k] < y) y = x[k];
        if (linear == CDP_LINEAR_NO) y = y * y + x[k] * 7;
    }
    return linear == CDP_LINEAR_NO ? y * y + 1 : y;
}

TEST_API void kernel_pointwise(const cdp_op *op, const piece *in, uint32_t n, piece *out) {
    uint64_t shape[CDP_TENSOR_DIMS];
    uint32_t ndim = 0;
    for (uint32_t k = 0; k < n; ++k)
        if (in[k].ndim > ndim) ndim = in[k].ndim;
    for (uint32_t d = 0; d < ndim; ++d) {
        shape[d] = 1;
        for (uint32_t k = 0; k < n; ++k) {
            const uint32_t before = ndim - in[k].ndim;
            if (d >= before && in[k].size[d - before] != 1) shape[d] = in[k].size[d - before];
        }
    }
    kernel_shape(out, ndim, shape);
    for (uint64_t i = 0; i < piece_volume(out); ++i) {
        uint64_t at[CDP_TENSOR_DIMS], own[CDP_TENSOR_DIMS];
        int64_t x[CDP_OP_INPUTS] = {0};
        piece_at(out, i, at);
        for (uint32_t k = 0; k < n; ++k) {
            for (uint32_t d = 0; d < in[k].ndim; ++d)
                own[d] = in[k].size[d] == 1 ? 0 : at[d + ndim - in[k].ndim];
            x[k] = in[k].v[piece_index(&in[k], own)];
        }
        out->v[i] = pointwise_value(op->linear, x, n);
    }
}

TEST_API int64_t combine(cdp_reduce_op op, int64_t a, int64_t b) {
    if (op == CDP_REDUCE_MIN) return a < b ? a : b;
    if (op == CDP_REDUCE_MAX) return a > b ? a : b;
    return op == CDP_REDUCE_PRODUCT ? a * b : a + b;
}

TEST_API int64_t identity_of(cdp_reduce_op op) {
    if (op == CDP_REDUCE_MIN) return INT64_MAX;
    if (op == CDP_REDUCE_MAX) return INT64_MIN;
    return op == CDP_REDUCE_PRODUCT;
}

/* `whole`: of the dimension, or of all, for means. */
TEST_API void kernel_reduce(const cdp_op *op, const piece *in, uint64_t whole, piece *out) {
    const cdp_reduce_op what = op->reduce == CDP_REDUCE_DEFAULT ? CDP_REDUCE_SUM : op->reduce;
    const uint32_t dim = (uint32_t)(op->dim < 0 ? op->dim + (int32_t)in->ndim : op->dim);
    uint64_t shape[CDP_TENSOR_DIMS] = {0};
    uint32_t ndim = 0;
    for (uint32_t d = 0; d < in->ndim; ++d) {
        const bool gone = op->all || d == dim;
        if (!gone || op->keep_dim) shape[ndim++] = gone ? 1 : in->size[d];
    }
    kernel_shape(out, ndim, shape);
    for (uint64_t i = 0; i < piece_volume(out); ++i)
        out->v[i] = identity_of(what);
    for (uint64_t i = 0; i < piece_volume(in); ++i) {
        uint64_t at[CDP_TENSOR_DIMS], to[CDP_TENSOR_DIMS];
        uint32_t n = 0;
        piece_at(in, i, at);
        for (uint32_t d = 0; d < in->ndim; ++d) {
            const bool gone = op->all || d == dim;
            if (!gone || op->keep_dim) to[n++] = gone ? 0 : at[d];
        }
        int64_t *y = &out->v[piece_index(out, to)];
        *y = combine(what, *y, in->v[i]);
    }
    for (uint64_t i = 0; what == CDP_REDUCE_AVG && i < piece_volume(out); ++i)
        out->v[i] /= (int64_t)(whole ? whole : 1);
}

/* y = 3 x - 2 sum + max^2, over dimensions first.. of the piece. */
TEST_API void stand_in(const piece *in, uint32_t first, uint32_t end, piece *out) {
    kernel_shape(out, in->ndim, in->size);
    for (uint64_t i = 0; i < piece_volume(in); ++i) {
        uint64_t at[CDP_TENSOR_DIMS], other[CDP_TENSOR_DIMS];
        int64_t sum = 0, most = INT64_MIN;
        piece_at(in, i, at);
        for (uint64_t j = 0; j < piece_volume(in); ++j) {
            bool same = true;
            piece_at(in, j, other);
            for (uint32_t d = 0; d < in->ndim; ++d)
                same = same && ((d >= first && d < end) || at[d] == other[d]);
            if (!same) continue;
            sum += in->v[j];
            most = in->v[j] > most ? in->v[j] : most;
        }
        out->v[i] = 3 * in->v[i] - 2 * sum + most * most;
    }
}

TEST_API void kernel_norm(const cdp_op *op, const piece *in, uint32_t n, piece *out) {
    const uint32_t dim = (uint32_t)(op->dim < 0 ? op->dim + (int32_t)in->ndim : op->dim);
    stand_in(in, dim, in->ndim, out);
    for (uint64_t i = 0; i < piece_volume(out); ++i) {
        uint64_t at[CDP_TENSOR_DIMS];
        piece_at(out, i, at);
        for (uint32_t k = 1; k < n; ++k) {
            const int64_t w = in[k].v[piece_index(&in[k], at + dim)];
            out->v[i] = k == 1 ? out->v[i] * w : out->v[i] + w;
        }
    }
}

/* ids are taken modulo `rows`, the rows of the whole table. */
TEST_API void kernel_embedding(const piece *in, uint32_t flags, uint64_t rows, piece *out) {
    const uint64_t width = in[0].size[1];
    uint64_t shape[CDP_TENSOR_DIMS];
    memcpy(shape, in[1].size, sizeof shape);
    shape[in[1].ndim] = width;
    kernel_shape(out, in[1].ndim + 1, shape);
    for (uint64_t i = 0; i < piece_volume(&in[1]); ++i) {
        const uint64_t first = flags & CDP_RULE_MASK ? in[0].start[0] : 0;
        const uint64_t id = (uint64_t)(in[1].v[i] + 1000 * (int64_t)rows) % rows;
        const bool here = id >= first && id < first + in[0].size[0];
        if (!(flags & CDP_RULE_MASK)) T(here);
        for (uint64_t j = 0; j < width; ++j)
            out->v[i * width + j] = here ? in[0].v[(id - first) * width + j] : 0;
    }
}

TEST_API int64_t *piece_4(const piece *p, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    const uint64_t at[4] = {a, b, c, d};
    return (int64_t *)(uintptr_t)&p->v[piece_index(p, at)];
}

/* Causal attention without softmax; `group`: heads of q for each head of k and v. */
TEST_API void kernel_attention(const piece *in, uint32_t flags, uint64_t group, piece *out) {
    const piece *q = &in[0], *k = &in[1], *v = &in[2];
    const bool offset = (flags & CDP_RULE_OFFSET) != 0;
    uint64_t shape[4] = {q->size[0], q->size[1], q->size[2], v->size[3]};
    kernel_shape(out, 4, shape);
    for (uint64_t i = 0; i < piece_volume(out); ++i) {
        uint64_t at[4];
        piece_at(out, i, at);
        const uint64_t head = at[1] + (offset ? q->start[1] - k->start[1] * group : 0);
        const uint64_t t = at[2] + (offset ? q->start[2] : 0), g = head / group;
        out->v[i] = 0;
        if (!T(g < k->size[1])) return;
        for (uint64_t s = 0; s < k->size[2] && s <= t; ++s) {
            int64_t score = 0;
            for (uint64_t d = 0; d < q->size[3]; ++d)
                score += *piece_4(q, at[0], at[1], at[2], d) * *piece_4(k, at[0], g, s, d);
            out->v[i] += score * *piece_4(v, at[0], g, s, at[3]);
        }
    }
}

/* `flags`: of all dimensions of the mesh together. */
TEST_API void kernel_run(const op_case *c, const piece *in, uint32_t flags, piece *out) {
    const cdp_op *op = &c->op;
    uint64_t whole = 1;
    const uint32_t dim = (uint32_t)(op->dim < 0 ? op->dim + (int32_t)c->in->ndim : op->dim);
    for (uint32_t d = 0; d < c->in->ndim; ++d)
        if (op->all || d == dim) whole *= c->in->shape[d];
    switch (op->kind) {
    case CDP_OP_EINSUM: kernel_einsum(op, in, flags, out); break;
    case CDP_OP_POINTWISE: kernel_pointwise(op, in, c->inputs, out); break;
    case CDP_OP_REDUCE: kernel_reduce(op, in, whole, out); break;
    case CDP_OP_SOFTMAX: stand_in(in, dim, dim + 1, out); break;
    case CDP_OP_NORM: kernel_norm(op, in, c->inputs, out); break;
    case CDP_OP_EMBEDDING: kernel_embedding(in, flags, c->in[0].shape[0], out); break;
    case CDP_OP_ATTENTION:
        kernel_attention(in, flags, c->in[0].shape[1] / c->in[1].shape[1], out);
        break;
    default: memcpy(out->v, in->v, sizeof out->v); break; /* VIEW: the same elements */
    }
}

/* ---- pieces of whole tensors ---- */

static uint64_t piece_salt;

TEST_API int64_t piece_random(uint64_t a, uint64_t b, uint64_t c, uint64_t most) {
    uint64_t state = piece_salt * 1000003 + a * 7919 + b * 104729 + c * 31;
    (void)test_random(&state);
    return (int64_t)(test_random(&state) % (2 * most + 1)) - (int64_t)most;
}

/* Values that the kernels divide without a rest. */
TEST_API int64_t piece_unit(const op_case *c, uint32_t input) {
    if (c->op.kind == CDP_OP_POINTWISE && c->op.linear == CDP_LINEAR_QUOTIENT && input == 0)
        return 4;
    if (c->op.kind != CDP_OP_REDUCE || c->op.reduce != CDP_REDUCE_AVG) return 1;
    int64_t unit = 1;
    for (uint32_t d = 0; d < c->in->ndim; ++d)
        unit *= c->in->shape[d] ? (int64_t)c->in->shape[d] : 1;
    return unit;
}

TEST_API int64_t piece_whole(const op_case *c, uint32_t input, uint64_t index) {
    const int64_t v = piece_random(input, index, 0, 9);
    if (c->op.kind == CDP_OP_POINTWISE && c->op.linear == CDP_LINEAR_QUOTIENT && input)
        return (v & 1 ? 1 : -1) * (int64_t)(1u << (uint32_t)((v + 9) % 3));
    return v * piece_unit(c, input);
}

/* What the contribution number `term` of `terms` is: together they are `value`. */
TEST_API int64_t piece_term(const op_case *c, uint32_t input, uint64_t index, cdp_reduce_op op,
    uint64_t term, uint64_t terms, uint64_t means) {
    const int64_t value = piece_whole(c, input, index), unit = piece_unit(c, input);
    if (terms == 1) return value;
    if (op == CDP_REDUCE_MAX || op == CDP_REDUCE_MIN) {
        const uint64_t owner = (index * 7 + input) % terms;
        const int64_t off =
            term == owner ? 0 : (piece_random(input, index, term + 1, 3) + 3) * unit;
        return op == CDP_REDUCE_MAX ? value - off : value + off;
    }
    if (op == CDP_REDUCE_PRODUCT) {
        const int64_t sign = piece_random(input, index, 1, 1) < 0 ? -1 : 1;
        if (term > 1) return 1;
        return term ? sign : value * sign;
    }
    if (term) return piece_random(input, index, term, 9) * unit;
    int64_t rest = value * (int64_t)means;
    for (uint64_t t = 1; t < terms; ++t)
        rest -= piece_random(input, index, t, 9) * unit;
    return rest;
}

/* Which contribution a rank holds; what all of them are. */
TEST_API uint64_t piece_terms(
    const cdp_layout *l, uint32_t rank, uint64_t *term, uint64_t *means, cdp_reduce_op *op) {
    uint64_t terms = 1;
    *term = 0;
    *means = 1;
    *op = CDP_REDUCE_SUM;
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        const uint32_t n = l->mesh->desc.shape[by];
        if (l->place[by].kind != CDP_PLACE_PARTIAL) continue;
        *term = *term * n + rank / l->mesh->stride[by] % n;
        terms *= n;
        *op = cdp__dt_op(&l->place[by]);
        if (*op == CDP_REDUCE_AVG) *means *= n;
        if (*op == CDP_REDUCE_AVG) *op = CDP_REDUCE_SUM;
    }
    return terms;
}

TEST_API void piece_box(const cdp_layout *l, uint32_t rank, piece *p) {
    cdp_box box;
    uint32_t coord[CDP_MESH_DIMS];
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by)
        coord[by] = rank / l->mesh->stride[by] % l->mesh->desc.shape[by];
    (void)cdp_layout_box(l, coord, &box);
    p->ndim = l->ndim;
    memcpy(p->size, box.size, sizeof p->size);
    memcpy(p->start, box.start, sizeof p->start);
}

TEST_API uint64_t piece_global(const cdp_layout *l, const piece *p, uint64_t i) {
    uint64_t at[CDP_TENSOR_DIMS] = {0}, index = 0;
    piece_at(p, i, at);
    for (uint32_t d = 0; d < l->ndim; ++d)
        index = index * l->shape[d] + p->start[d] + at[d];
    return index;
}

TEST_API void piece_fill(
    const op_case *c, uint32_t input, const cdp_layout *l, uint32_t rank, piece *p) {
    uint64_t term, means;
    cdp_reduce_op op;
    piece_box(l, rank, p);
    const uint64_t terms = piece_terms(l, rank, &term, &means, &op);
    for (uint64_t i = 0; i < piece_volume(p); ++i)
        p->v[i] = piece_term(c, input, piece_global(l, p, i), op, term, terms, means);
}

/* Apply the operator to the pieces of all ranks; true if they make up the result of the whole. */
TEST_API bool pieces_right(const op_case *c, const cdp_op_choice *how) {
    static piece whole[CDP_OP_INPUTS], in[CDP_OP_INPUTS], right, out[PIECE_RANKS], box;
    const cdp_layout *l = &how->out;
    uint32_t flags = 0;
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by)
        flags |= how->flags[by];
    for (uint32_t k = 0; k < c->inputs; ++k) {
        cdp_layout all = how->in[k];
        memset(all.place, 0, sizeof all.place);
        piece_fill(c, k, &all, 0, &whole[k]);
    }
    right = whole[0];
    kernel_run(c, whole, flags & CDP_RULE_ONCE, &right);
    for (uint32_t r = 0; r < l->mesh->count; ++r) {
        for (uint32_t k = 0; k < c->inputs; ++k)
            piece_fill(c, k, &how->in[k], r, &in[k]);
        piece_box(l, r, &box);
        out[r] = box;
        kernel_run(c, in, flags, &out[r]);
        if (piece_volume(&box) != piece_volume(&out[r])) return false;
        if (c->op.kind != CDP_OP_VIEW && piece_volume(&box)
            && memcmp(box.size, out[r].size, box.ndim * sizeof box.size[0]) != 0)
            return false;
        memcpy(out[r].start, box.start, sizeof box.start);
        memcpy(out[r].size, box.size, sizeof box.size);
        out[r].ndim = box.ndim;
    }
    for (uint32_t r = 0; r < l->mesh->count; ++r) {
        uint64_t term, means;
        cdp_reduce_op op;
        (void)piece_terms(l, r, &term, &means, &op);
        for (uint64_t i = 0; i < piece_volume(&out[r]); ++i) {
            int64_t got = identity_of(op);
            for (uint32_t s = 0; s < l->mesh->count; ++s) {
                bool same = true;
                for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by)
                    if (l->place[by].kind != CDP_PLACE_PARTIAL)
                        same = same
                            && r / l->mesh->stride[by] % l->mesh->desc.shape[by]
                                == s / l->mesh->stride[by] % l->mesh->desc.shape[by];
                if (same) got = combine(op, got, out[s].v[i]);
            }
            if (got % (int64_t)means) return false;
            if (got / (int64_t)means != right.v[piece_global(l, &out[r], i)]) return false;
        }
    }
    return true;
}

#endif
