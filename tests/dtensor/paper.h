/*  paper.h - plans of all ranks, executed in the memory of one process. Include after
   cdp_dtensor.h.

    A case is a mesh, a shape and two layouts. Every rank's plan is made on a mesh on paper;
   messages are then delivered phase by phase, in the order of both lists. A message that has no
   counterpart in its phase would be a deadlock. */
#ifndef PAPER_INCLUDED
#define PAPER_INCLUDED

#include "../unit/said.h"

#define PAPER_RANKS 16u

typedef struct paper {
    uint32_t n;
    cdp_mesh *mesh[PAPER_RANKS];
} paper;

static uint32_t paper_host_ranks; /* of the meshes that are opened next */

/* Meshes of all ranks: of `ndim` dimensions `shape`, whose product is the number of ranks. */
TEST_API bool paper_open(paper *p, uint32_t ndim, const uint32_t *shape) {
    memset(p, 0, sizeof *p);
    p->n = 1;
    for (uint32_t d = 0; d < ndim; ++d)
        p->n *= shape[d];
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_mesh_desc d = {
            .paper_ranks = p->n, .paper_rank = r, .ndim = ndim, .host_ranks = paper_host_ranks};
        memcpy(d.shape, shape, ndim * sizeof *shape);
        if (!OK(cdp_mesh_create(&d, &p->mesh[r]))) return false;
    }
    return true;
}

TEST_API void paper_close(paper *p) {
    for (uint32_t r = 0; r < p->n; ++r)
        cdp_mesh_destroy(p->mesh[r]);
}

/* A layout as text, for messages. */
TEST_API const char *paper_text(const cdp_layout *l) {
    static char text[4][200];
    static uint32_t turn;
    char *out = text[turn++ % 4];
    uint64_t used = cdp_layout_text(l, out, 200);
    for (uint32_t d = 0; d < l->ndim && used < 180; ++d)
        used += (uint64_t)snprintf(
            out + used, 200 - used, "%s%llu", d ? "x" : " of ", (unsigned long long)l->shape[d]);
    used += (uint64_t)snprintf(out + used, 200 - used, " on ");
    for (uint32_t d = 0; d < l->mesh->desc.ndim; ++d)
        used += (uint64_t)snprintf(
            out + used, 200 - used, "%s%u", d ? "x" : "", l->mesh->desc.shape[d]);
    return out;
}

/* The value of an element of the whole tensor. */
TEST_API uint64_t paper_value(uint64_t index) {
    uint64_t state = index * 77 + 5;
    return test_random(&state);
}

/* The index in the whole tensor of element i of a box. */
TEST_API uint64_t paper_index(const cdp_layout *l, const cdp_box *box, uint64_t i) {
    uint64_t index = 0, step = 1;
    for (uint32_t d = l->ndim; d-- > 0;) {
        index += (box->start[d] + i % box->size[d]) * step;
        i /= box->size[d];
        step *= l->shape[d];
    }
    return index;
}

/* What a rank must hold, or holds at first: u64, PARTIAL sums modulo 2^64. Contribution 0 is what
   is missing from the sum of the others, which are random. `seed` 0: the whole value at once. */
TEST_API uint64_t paper_element(const cdp_layout *l, uint32_t position, uint64_t index) {
    uint64_t value = paper_value(index), terms = 1, own = 0, scale = 1;
    for (uint32_t by = 0; by < l->mesh->desc.ndim; ++by) {
        const uint32_t n = l->mesh->desc.shape[by];
        if (l->place[by].kind != CDP_PLACE_PARTIAL) continue;
        own += position / l->mesh->stride[by] % n * scale;
        scale *= n;
        terms *= n;
    }
    if (own) {
        uint64_t state = index * 1000 + own;
        return test_random(&state);
    }
    for (uint64_t t = 1; t < terms; ++t) {
        uint64_t state = index * 1000 + t;
        value -= test_random(&state);
    }
    return value;
}

/* The memory of one case: local arrays and plans of all ranks. */
typedef struct paper_case {
    cdp_plan *plan[PAPER_RANKS];
    uint64_t *in[PAPER_RANKS], *out[PAPER_RANKS];
    uint8_t scratch[PAPER_RANKS][1 << 17];
} paper_case;

static uint64_t paper_memory[2][PAPER_RANKS][2048];
static paper_case paper_now;

TEST_API bool paper_plans(const paper *p, const cdp_plan_desc *like) {
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_plan_desc d = *like;
        d.from.mesh = d.to.mesh = p->mesh[r];
        if (!OK(cdp_plan_create(&d, &paper_now.plan[r]))) return false;
        cdp_plan *plan = paper_now.plan[r];
        if (plan->scratch_used > sizeof paper_now.scratch[r]) return T(!"scratch memory is enough");
        plan->scratch = paper_now.scratch[r];
        plan->in = paper_now.in[r] = paper_memory[0][r];
        plan->out = paper_now.out[r] = paper_memory[1][r];
    }
    return true;
}

TEST_API void paper_drop(const paper *p) {
    for (uint32_t r = 0; r < p->n; ++r) {
        if (paper_now.plan[r]) paper_now.plan[r]->scratch = NULL;
        cdp_plan_destroy(paper_now.plan[r]);
        paper_now.plan[r] = NULL;
    }
}

/* The k-th message from `from` in `ph`, counted over pieces whose peer is `to`; NULL: there is
   none. */
TEST_API const cdp__dt_piece *paper_send(const cdp__dt_phase *ph, uint32_t to, uint32_t k) {
    for (uint32_t i = 0; i < ph->sends; ++i)
        if (ph->send[i].peer == to && k-- == 0) return &ph->send[i];
    return NULL;
}

/* What a message of the group would do: `row` elements, `step` apart, where it is received. */
TEST_API void paper_message(
    const cdp_plan *to, const cdp__dt_piece *x, const cdp_plan *from, const cdp__dt_piece *y) {
    cdp_transfer in, out;
    cdp__dt_transfer(to, &in, x, true);
    cdp__dt_transfer(from, &out, y, false);
    if (!in.row) memcpy(in.data, out.data, in.count * 8);
    for (uint64_t i = 0; in.row && i < in.count; ++i)
        ((uint64_t *)in.data)[i / in.row * in.step + i % in.row] = ((const uint64_t *)out.data)[i];
}

/* Deliver all messages of phase number `phase`; false if one has no counterpart. */
TEST_API bool paper_deliver(const paper *p, uint32_t phase) {
    uint64_t sent = 0, received = 0;
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_plan *plan = paper_now.plan[r];
        const cdp__dt_phase *ph = &plan->phases[phase];
        uint32_t seen[PAPER_RANKS] = {0};
        sent += ph->sends;
        received += ph->recvs;
        for (uint32_t i = 0; i < ph->recvs; ++i) {
            const cdp__dt_piece *x = &ph->recv[i];
            if (x->peer >= p->n || x->peer == r) return false;
            cdp_plan *other = paper_now.plan[x->peer];
            const cdp__dt_piece *y = paper_send(&other->phases[phase], r, seen[x->peer]++);
            if (!y || y->elements != x->elements) return false;
            paper_message(plan, x, other, y);
        }
    }
    return sent == received;
}

TEST_API void paper_fill(const paper *p, const cdp_layout *from) {
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_layout l = *from;
        cdp_box box;
        l.mesh = p->mesh[r];
        const uint64_t n = cdp_layout_box(&l, NULL, &box);
        for (uint64_t i = 0; i < n; ++i)
            paper_now.in[r][i] = paper_element(&l, r, paper_index(&l, &box, i));
        memset(paper_now.out[r], 0xa5, sizeof paper_memory[1][r]);
    }
}

/* What every rank holds afterwards, and that nothing beyond it was written. With PARTIAL targets
   the sums over them are compared. */
TEST_API bool paper_right(const paper *p, const cdp_layout *to) {
    static uint64_t sum[2048];
    const uint64_t all = 2048, guard = 0xa5a5a5a5a5a5a5a5u;
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_layout l = *to;
        cdp_box box;
        l.mesh = p->mesh[r];
        const uint64_t n = cdp_layout_box(&l, NULL, &box);
        if (n < all && paper_now.out[r][n] != guard) return false;
        memset(sum, 0, n * sizeof *sum);
        for (uint32_t q = 0; q < p->n; ++q) { /* all contributions to what r holds */
            bool same = true;
            for (uint32_t by = 0; by < l.mesh->desc.ndim; ++by)
                if (l.place[by].kind != CDP_PLACE_PARTIAL)
                    same = same
                        && r / l.mesh->stride[by] % l.mesh->desc.shape[by]
                            == q / l.mesh->stride[by] % l.mesh->desc.shape[by];
            for (uint64_t i = 0; same && i < n; ++i)
                sum[i] += paper_now.out[q][i];
        }
        for (uint64_t i = 0; i < n; ++i)
            if (sum[i] != paper_value(paper_index(&l, &box, i))) return false;
    }
    return true;
}

/* What the collective does that the plans are: of all ranks, or of each row. */
TEST_API bool paper_collective(const paper *p) {
    const cdp__dt_single s = paper_now.plan[0]->single;
    const uint64_t parts = s.kind == CDP_COLL_ALLREDUCE ? 1 : s.nodes;
    bool ok = s.nodes == p->n || s.by != CDP__DT_NONE;
    for (uint32_t r = 0; r < p->n; ++r) {
        const cdp_plan *plan = paper_now.plan[r];
        const uint32_t me = r / s.step % s.nodes;
        const uint64_t n = plan->single.count;
        const bool gathers = s.kind == CDP_COLL_ALLGATHER;
        uint64_t *out = (uint64_t *)plan->out;
        ok = ok && plan->single.kind == s.kind && plan->single.by == s.by
            && plan->in_bytes == (gathers ? n : parts * n) * 8
            && plan->out_bytes == (gathers ? parts * n : n) * 8;
        if (ok && !gathers) memset(out, 0, n * 8);
        for (uint32_t q = 0; ok && q < s.nodes; ++q) {
            const cdp_plan *other = paper_now.plan[r - me * s.step + q * s.step];
            const uint64_t *in = (const uint64_t *)other->in;
            ok = other->single.count == n;
            for (uint64_t i = 0; i < n && gathers; ++i)
                out[q * n + i] = in[i];
            for (uint64_t i = 0; i < n && !gathers; ++i)
                out[i] += in[(parts > 1 ? me * n : 0) + i];
        }
    }
    return ok;
}

/* Run a phase of all plans. */
TEST_API bool paper_phase(const paper *p, uint32_t k) {
    for (uint32_t r = 0; r < p->n; ++r)
        cdp__dt_pack(paper_now.plan[r], &paper_now.plan[r]->phases[k]);
    const bool ok = paper_deliver(p, k);
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp__dt_locals(paper_now.plan[r], &paper_now.plan[r]->phases[k]);
        cdp__dt_finish(paper_now.plan[r], &paper_now.plan[r]->phases[k]);
    }
    return ok;
}

/* What a call gives the ranks `row`, of which the k-th has the step act[k]. All that is given is
   right only if nobody writes what others still read. */
TEST_API bool paper_call(const uint32_t *row, uint32_t n, const cdp__dt_act *const *act) {
    static uint64_t sum[8192];
    const cdp_coll_kind kind = act[0]->kind;
    const bool scatters = kind == CDP_COLL_REDUCE_SCATTER, gathers = kind == CDP_COLL_ALLGATHER;
    const bool sums = scatters || kind == CDP_COLL_ALLREDUCE;
    uint64_t start[PAPER_RANKS + 1] = {0}, total;
    for (uint32_t k = 0; k < n; ++k) {
        const uint64_t own = act[0]->counts ? act[0]->counts[k] : act[0]->count;
        start[k + 1] = start[k] + own;
        if (act[k]->kind != kind || act[k]->by != act[0]->by) return false;
        if ((scatters || gathers) && act[k]->count != own) return false;
        if (!scatters && !gathers && act[k]->count != act[0]->count) return false;
    }
    total = scatters || gathers ? start[n] : act[0]->count;
    memset(sum, 0, sizeof sum);
    for (uint32_t k = 0; k < n; ++k) {
        const cdp_plan *plan = paper_now.plan[row[k]];
        const uint64_t *in =
            (const uint64_t *)(const void *)(cdp__dt_at(plan, act[k]->from) + act[k]->from_at);
        for (uint64_t i = 0; sums && i < total; ++i)
            sum[i] += in[i];
        if (gathers) memcpy(sum + start[k], in, act[k]->count * 8);
    }
    for (uint32_t k = 0; k < n; ++k) {
        const cdp_plan *plan = paper_now.plan[row[k]];
        memcpy(cdp__dt_at(plan, act[k]->to) + act[k]->to_at, sum + (scatters ? start[k] : 0),
            (scatters ? act[k]->count : total) * 8);
        cdp__dt_act_finish(plan, act[k]);
    }
    return true;
}

/* Run the next step of rank r, if the others of its row are there, too; false: they are not. */
TEST_API bool paper_step(const paper *p, uint32_t r, uint32_t *at, bool *ok) {
    const cdp__dt_act *act[PAPER_RANKS], *mine = &paper_now.plan[r]->acts[at[r]];
    const cdp_mesh *m = p->mesh[0];
    uint32_t row[PAPER_RANKS], n = 0;
    for (uint32_t q = 0; q < p->n; ++q) {
        bool member = true;
        for (uint32_t d = 0; d < m->desc.ndim && mine->by != CDP__DT_NONE; ++d)
            member = member
                && (d == mine->by
                    || q / m->stride[d] % m->desc.shape[d] == r / m->stride[d] % m->desc.shape[d]);
        if (!member) continue;
        if (at[q] == paper_now.plan[q]->act_count) return false;
        act[n] = &paper_now.plan[q]->acts[at[q]];
        if (act[n]->by != mine->by || act[n]->phase != mine->phase) return false;
        row[n++] = q;
    }
    *ok = *ok
        && (mine->phase == CDP__DT_NONE ? paper_call(row, n, act) : paper_phase(p, mine->phase));
    for (uint32_t k = 0; k < n; ++k)
        ++at[row[k]];
    return true;
}

/* Run the steps of all plans; false if ranks wait for one another for ever. */
TEST_API bool paper_steps(const paper *p) {
    uint32_t at[PAPER_RANKS] = {0};
    bool ok = true, moved = true;
    while (ok && moved) {
        moved = false;
        for (uint32_t r = 0; ok && r < p->n; ++r)
            moved = (at[r] < paper_now.plan[r]->act_count && paper_step(p, r, at, &ok)) || moved;
    }
    for (uint32_t r = 0; r < p->n; ++r)
        ok = ok && at[r] == paper_now.plan[r]->act_count;
    return ok;
}

/* Run all phases of all plans, or their collective, or their steps. */
TEST_API bool paper_run_plans(const paper *p) {
    bool ok = true;
    if (paper_now.plan[0]->single.kind) return paper_collective(p);
    if (paper_now.plan[0]->acts) return paper_steps(p);
    for (uint32_t k = 0; ok && k < paper_now.plan[0]->phase_count; ++k)
        ok = paper_phase(p, k);
    return ok;
}

TEST_API bool paper_run(const paper *p, const cdp_plan_desc *d) {
    paper_fill(p, &d->from);
    return paper_run_plans(p);
}

/* The least number of elements that all ranks must receive, from the definition, element by
   element. */
TEST_API uint64_t paper_bound(const paper *p, const cdp_layout *from, const cdp_layout *to) {
    const cdp_mesh *m = p->mesh[0];
    uint64_t total = 0, elements = 1, groups = 1;
    cdp_box has[PAPER_RANKS], needs[PAPER_RANKS];
    uint32_t kept = 0, terms = 1;
    for (uint32_t by = 0; by < m->desc.ndim; ++by) {
        const bool stays = to->place[by].kind == CDP_PLACE_PARTIAL;
        if (from->place[by].kind == CDP_PLACE_PARTIAL && !stays) terms *= m->desc.shape[by];
        if (from->place[by].kind == CDP_PLACE_PARTIAL && stays) kept |= 1u << by;
        if (from->place[by].kind == CDP_PLACE_PARTIAL && stays) groups *= m->desc.shape[by];
    }
    for (uint32_t d = 0; d < from->ndim; ++d)
        elements *= from->shape[d];
    for (uint32_t r = 0; r < p->n; ++r) {
        cdp_layout a = *from, b = *to;
        a.mesh = b.mesh = p->mesh[r];
        (void)cdp_layout_box(&a, NULL, &has[r]);
        (void)cdp_layout_box(&b, NULL, &needs[r]);
    }
    for (uint64_t e = 0; e < elements; ++e)
        for (uint64_t g = 0; g < groups; ++g) {
            uint32_t wanted = 0, both = 0;
            for (uint32_t r = 0; r < p->n; ++r) {
                uint64_t own = 0, rest = e;
                bool in_a = true, in_b = true;
                for (uint32_t by = 0; by < m->desc.ndim; ++by)
                    if (kept >> by & 1)
                        own = own * m->desc.shape[by] + r / m->stride[by] % m->desc.shape[by];
                if (own != g) continue;
                for (uint32_t d = from->ndim; d-- > 0; rest /= from->shape[d]) {
                    const uint64_t x = rest % from->shape[d];
                    in_a = in_a && x >= has[r].start[d] && x - has[r].start[d] < has[r].size[d];
                    in_b =
                        in_b && x >= needs[r].start[d] && x - needs[r].start[d] < needs[r].size[d];
                }
                wanted += in_b;
                both += in_a && in_b;
            }
            if (terms > 1)
                total += terms - 1 + wanted - (both > 0);
            else
                total += wanted - both;
        }
    return total;
}

#endif
