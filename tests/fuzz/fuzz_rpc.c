/* What peers may send to an rpc: calls, answers, long bodies and messages about references, most of
   them nearly right, from ranks that lie. This is rank 0 of 3, which has calls, values and
   references of its own; no other rank exists. How to run it: fuzz.h.

   Whatever comes, nothing may crash, leak, hang or be destroyed twice; a rank that lies is given
   up, and the other one is not. */
#include "fuzz.h"

#include "cdp_rpc.h"

#include <sys/mman.h>

static uint64_t live, now;

static void *world_alloc(void *user, uint64_t bytes) {
    void *p = bytes > (1u << 24) ? NULL : fuzz_alloc(bytes);
    (void)user;
    live += p != NULL;
    return p;
}
static void world_free(void *user, void *p) {
    (void)user;
    live -= p != NULL;
    fuzz_free(p);
}
static uint64_t world_now(void *user) {
    (void)user;
    return now;
}

static uint32_t made, destroyed, kept_count;
static cdp_rpc_request *kept[64];

static void value_end(void *user, void *data) {
    (void)user;
    T(*(uint32_t *)data == 7);
    *(uint32_t *)data = 8;
    free(data);
    ++destroyed;
}
static cdp_value value_make(void) {
    uint32_t *data = (uint32_t *)malloc(sizeof *data);
    cdp_value v;
    memset(&v, 0, sizeof v);
    T(data != NULL);
    *data = 7;
    v.data = data;
    v.destroy = value_end;
    ++made;
    return v;
}

static uint64_t sum;
static void touch(cdp_rpc_request *q) {
    for (uint32_t k = 0; k < q->tensor_count; ++k) {
        const uint64_t n = cdp__rpc_tensor_bytes(&q->tensors[k]);
        for (uint64_t i = 0; i < n; ++i)
            sum += ((const uint8_t *)q->tensors[k].data)[i];
    }
    for (uint64_t i = 0; i < q->bytes; ++i)
        sum += ((const uint8_t *)q->data)[i];
}
static void f_echo(void *user, cdp_rpc_request *q) {
    const cdp_iov iov = {(void *)(uintptr_t)q->data, q->bytes};
    const cdp_args args = {.iov = &iov,
        .iov_count = 1,
        .rrefs = q->rrefs,
        .rref_count = q->rref_count,
        .tensors = q->tensors,
        .tensor_count = q->tensor_count};
    (void)user;
    touch(q);
    (void)cdp_rpc_reply(q, &args);
}
static cdp_status f_echo_backward(void *user, cdp_backward *b) {
    (void)user;
    for (uint32_t i = 0; i < b->in_count && i < b->out_count; ++i)
        b->grad_in[i] = b->grad_out[i];
    return CDP_OK;
}
static void f_value(void *user, cdp_rpc_request *q) {
    const cdp_value v = value_make();
    (void)user;
    touch(q);
    if (cdp_rpc_reply_value(q, &v) != CDP_OK) value_end(NULL, v.data);
}
static void f_keep(void *user, cdp_rpc_request *q) {
    (void)user;
    touch(q);
    if (kept_count < 64)
        kept[kept_count++] = q;
    else
        (void)cdp_rpc_fail(q, 1, "full");
}
static void f_on(void *user, cdp_rpc_request *q) {
    (void)user;
    if (q->on && q->on->destroy) T(*(uint32_t *)q->on->data == 7);
}

static cdp_rpc_function functions[4];
static uint32_t ids[5];

/* As cdp_rpc_create() makes it, but for the exchange with ranks that do not exist. */
static cdp_rpc *rpc_make(cdp_group *g, uint64_t max_message_bytes) {
    static const uint32_t ranks[] = {0, 1, 2};
    cdp_rpc *rpc = (cdp_rpc *)cdp__alloc_zero(cdp_group_desc_of(g)->os, sizeof *rpc);
    T(rpc != NULL);
    rpc->desc.group = g;
    rpc->desc.functions = functions;
    rpc->desc.function_count = 4;
    rpc->desc.max_queue = 16;
    rpc->desc.max_rrefs = 40;
    rpc->desc.max_message_bytes = max_message_bytes;
    rpc->desc.max_queue_bytes = 400000;
    rpc->os = cdp_group_desc_of(g)->os;
    rpc->ranks = 3;
    cdp__rpc_defaults(rpc);
    cdp__rpc_builtins(rpc);
    T(cdp__rpc_memory(rpc) == CDP_OK && cdp__rpc_enlist(rpc));
    T(cdp_group_new(g, ranks, 3, &rpc->group) == CDP_OK);
    for (uint32_t r = 0; r < 3; ++r) {
        rpc->peers[r].limit = 8;
        cdp__format(rpc->peers[r].name, 16, "rank%u", r);
    }
    T(cdp__rpc_open(rpc) == CDP_OK);
    return rpc;
}

static uint64_t number_of(fuzz_input *in) { /* ids that exist, nearly exist, or do not */
    const uint64_t rank = next_byte(in) % 4, n = next_byte(in) % 12;
    return next_byte(in) % 32 == 0 ? UINT64_MAX : rank << 48 | n;
}

/* The next entry of this kind after some slot, of that rank; 0: there is none. */
static uint32_t entry_of(cdp_rpc *rpc, fuzz_input *in, cdp__ref_kind kind, uint32_t rank) {
    const uint32_t room = rpc->refs.room, from = next_byte(in);
    for (uint32_t i = 0; i < room; ++i) {
        const uint32_t slot = 1 + (from + i) % (room - 1);
        const cdp__ref *r = &rpc->refs.at[slot];
        if (r->kind == kind && (rank == 3 || r->rank == rank)) return slot;
    }
    return 0;
}

static uint64_t fresh;

/* What an honest peer could send now: a message of this kind with numbers that fit. False: it
   could not. */
static bool honest_message(
    cdp_rpc *rpc, fuzz_input *in, cdp_channel_message *m, uint64_t ids_of[2]) {
    const uint64_t mine = (uint64_t)m->peer << 48, other = (uint64_t)(3 - m->peer) << 48;
    uint32_t slot = 0;
    switch (m->kind & 0xff) {
    case CDP__RPC_CALL:
        ids_of[0] = mine | ++fresh;
        ids_of[1] = mine | ++fresh;
        if (!(m->kind >> 8 & CDP__RPC_ON)) return true;
        slot = entry_of(rpc, in, CDP__REF_FORK, m->peer);
        ids_of[0] = rpc->refs.at[slot].rid;
        ids_of[1] = rpc->refs.at[slot].key;
        return slot != 0;
    case CDP__RPC_REPLY:
    case CDP__RPC_FAIL:
        for (uint32_t i = 1; i <= rpc->call_count; ++i) {
            const cdp__rpc_call *c = rpc->calls[i];
            if (!c->used || c->to != m->peer || c->wire_over) continue;
            m->a = cdp__rpc_call_id(c);
            m->aux = 1 + next_byte(in) % 13u;
            m->b = next_byte(in) | (uint64_t)(next_byte(in) % 3) << 32;
            return true;
        }
        return false;
    case CDP__RPC_REMOTE_ACK:
    case CDP__RPC_FORK_ACK:
        slot = entry_of(rpc, in, CDP__REF_USER, m->peer);
        m->aux = next_byte(in) % 3;
        break;
    case CDP__RPC_FORK:
        slot = entry_of(rpc, in, CDP__REF_OWNER, 3);
        m->a = rpc->refs.at[slot].rid;
        m->b = other | ++fresh;
        m->aux = 3 - m->peer;
        return slot != 0;
    case CDP__RPC_ACCEPT: slot = entry_of(rpc, in, CDP__REF_HOLD, m->peer); break;
    case CDP__RPC_DELETE: slot = entry_of(rpc, in, CDP__REF_FORK, m->peer); break;
    default: return true;
    }
    m->a = rpc->refs.at[slot].rid;
    m->b = rpc->refs.at[slot].key;
    return slot != 0;
}

/* A reference that `peer` may share: to a value of this rank, of its own, or of the third. */
static void honest_record(cdp_rpc *rpc, fuzz_input *in, uint32_t peer, uint8_t *at) {
    const uint32_t owner = next_byte(in) % 3;
    const uint32_t slot = owner ? 0 : entry_of(rpc, in, CDP__REF_OWNER, 3);
    const uint64_t rid =
        slot ? rpc->refs.at[slot].rid : (uint64_t)owner << 48 | (1u + next_byte(in) % 8);
    cdp__rpc_put_record(at, rid, (uint64_t)peer << 48 | ++fresh, owner);
}

/* A context that is there, or one of a peer that is not yet. */
static uint64_t context_of(cdp_rpc *rpc, fuzz_input *in) {
    if (rpc->contexts && next_byte(in) % 4) return rpc->contexts->id;
    return (uint64_t)(1 + next_byte(in) % 2) << 48 | (1u + next_byte(in) % 3);
}
static void context_message(cdp_rpc *rpc, fuzz_input *in, cdp_channel_message *m) {
    m->a = context_of(rpc, in);
    m->b = 1u + next_byte(in) % 6;
    m->aux = next_byte(in) % 5;
    if (m->kind == CDP__RPC_CTX_FAIL) m->aux = 1 + next_byte(in) % 13u;
    if (m->kind == CDP__RPC_DONE && rpc->contexts) m->b = rpc->contexts->w.pass;
}
/* What stands in the slot: a context, or a pass. */
static uint64_t slot_of(cdp_rpc *rpc, fuzz_input *in, const cdp_channel_message *m) {
    const uint32_t kind = m->kind & 0xff;
    if (kind == CDP__RPC_CALL) return context_of(rpc, in);
    for (uint32_t i = 1; i <= rpc->call_count && kind == CDP__RPC_REPLY; ++i)
        if (rpc->calls[i]->used && rpc->calls[i]->ctx) return rpc->calls[i]->ctx->id;
    if (rpc->contexts && rpc->contexts->w.pass && next_byte(in) % 4) return rpc->contexts->w.pass;
    return (uint64_t)m->peer << 48 | (1u + next_byte(in) % 3);
}

#define BODY_ROOM 81920u /* whole pages, of any size up to 16 KiB */

/* Copies a body to where nobody may read behind it: the next page is closed. Bodies are aligned as
   allocated ones, so up to seven bytes lie between; AddressSanitizer sees those. */
static const uint8_t *body_fenced(const uint8_t *body, uint64_t bytes) {
    static uint8_t *room;
    uint8_t *at;
    if (!room) {
        room = (uint8_t *)mmap(
            NULL, 2 * BODY_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        T(room != MAP_FAILED && mprotect(room + BODY_ROOM, BODY_ROOM, PROT_NONE) == 0);
    }
    FUZZ_UNPOISON(room, BODY_ROOM);
    at = room + BODY_ROOM - cdp__rpc_filled(bytes);
    memcpy(at, body, (size_t)bytes);
    memset(at + bytes, 0xa5, (size_t)(cdp__rpc_filled(bytes) - bytes));
    FUZZ_POISON(at + bytes, (size_t)(cdp__rpc_filled(bytes) - bytes));
    return at;
}

/* Every message like this one is a lie: it has more references than a message may, less than it
   says that it has, or more than all ranks have agreed upon. */
static bool surely_wrong(const cdp_rpc *rpc, const cdp_channel_message *m) {
    const uint32_t flags = m->kind >> 8 & 0xff, rrefs = m->kind >> 16 & 0xff;
    const uint64_t head = (flags & CDP__RPC_ON ? 16u : 0u) + (flags & CDP__RPC_REMOTE ? 16u : 0u)
        + (flags & CDP__RPC_CTX ? 8u : 0u) + 24u * rrefs + 80u * (m->kind >> 24);
    return rrefs > 16 || m->bytes < head || m->bytes - head > rpc->desc.max_message_bytes;
}

static void message_of(cdp_rpc *rpc, fuzz_input *in) {
    static uint8_t body[BODY_ROOM];
    static uint64_t handles;
    cdp_channel_message m;
    uint64_t numbers[2] = {0, 0};
    uint32_t rrefs = 0, flags = 0, tensors = 0;
    uint8_t *p = body;
    const uint8_t odd = next_byte(in);
    memset(&m, 0, sizeof m);
    m.peer = 1 + next_byte(in) % 2;
    if (rpc->lost[m.peer] || rpc->peers[m.peer].dropped) return;
    m.kind = next_byte(in) % 64 ? 1 + next_byte(in) % 16u : next_byte(in);
    if (next_byte(in) % 4 == 0) m.kind = CDP__RPC_CALL;
    if (m.kind == CDP__RPC_CALL) flags = next_byte(in) % 4 ? 0 : next_byte(in) % 16u;
    if (m.kind <= CDP__RPC_REPLY) rrefs = next_byte(in) % 2 ? 0 : next_byte(in) % 4u;
    m.aux = m.kind == CDP__RPC_CALL ? ids[next_byte(in) % 5] : next_byte(in) % 15u;
    m.a =
        next_byte(in) % 2 ? number_of(in) : (uint64_t)(next_byte(in) % 3) << 32 | next_byte(in) % 6;
    m.b = m.kind == CDP__RPC_CALL ? (uint64_t)next_byte(in) * 10 : number_of(in);
    if (flags & CDP__RPC_FETCH) flags = CDP__RPC_FETCH | CDP__RPC_ON;
    if (rrefs && next_byte(in) % 64 == 0) rrefs = 15 + next_byte(in) % 4u;
    if (flags & CDP__RPC_ONE_WAY) rrefs = 0;
    if (m.kind <= CDP__RPC_REPLY && next_byte(in) % 4 == 0) flags |= CDP__RPC_CTX;
    if (m.kind == CDP__RPC_MARK || m.kind == CDP__RPC_GRAD) flags = CDP__RPC_CTX;
    if (flags & CDP__RPC_FETCH) flags &= ~CDP__RPC_CTX;
    if (m.kind <= CDP__RPC_REPLY || m.kind == CDP__RPC_GRAD) tensors = next_byte(in) % 2;
    if (flags & CDP__RPC_FETCH) tensors = 0;
    if (m.kind > CDP__RPC_DELETE && odd > 3) context_message(rpc, in, &m);
    m.kind |= flags << 8;
    if (odd > 3 && !honest_message(rpc, in, &m, numbers)) return;
    m.kind &= 0xff;
    for (uint32_t i = 0; i < 2; ++i) {
        if (!(flags & (i ? CDP__RPC_REMOTE : CDP__RPC_ON))) continue;
        cdp__put_u64(p, odd > 3 ? numbers[0] : number_of(in));
        cdp__put_u64(p + 8, odd > 3 ? numbers[1] : number_of(in));
        p += 16;
    }
    if (flags & CDP__RPC_CTX) {
        cdp__put_u64(p, slot_of(rpc, in, &m));
        p += 8;
    }
    for (uint32_t i = 0; i < rrefs; ++i, p += CDP__RPC_RECORD) {
        cdp__rpc_put_record(p, number_of(in), number_of(in), next_byte(in) % 4);
        if (odd > 3) honest_record(rpc, in, m.peer, p);
    }
    for (uint32_t i = 0; i < tensors; ++i, p += CDP__RPC_SHAPE) {
        cdp_tensor t = {.dtype = CDP_DTYPE_F64, .dims = next_byte(in) % 3, .shape = {2, 3}};
        if (odd < 3) t.dtype = (cdp_dtype)next_byte(in);
        if (odd < 3 && next_byte(in) % 2) t.shape[0] = UINT64_MAX / 2;
        const uint64_t value =
            next_byte(in) % 2 && (flags & CDP__RPC_CTX) && (m.kind & 0xff) != CDP__RPC_GRAD
            ? (uint64_t)m.peer << 48 | (1u + next_byte(in) % 4)
            : 0;
        cdp__rpc_put_shape(p, &t, value);
        if (i + 1 == tensors) p += t.dims <= 8 && odd > 3 ? cdp__rpc_tensor_bytes(&t) : 0;
    }
    for (uint32_t i = cdp__rpc_is_list((cdp__rpc_kind)m.kind) ? next_byte(in) % 4 : 0; i; --i) {
        cdp_channel_message more = m; /* a list: of what there is, or of anything */
        more.a = more.b = number_of(in);
        if (odd > 3) (void)honest_message(rpc, in, &more, numbers);
        cdp__put_u64(p, more.a);
        cdp__put_u64(p + 8, more.b);
        p += 16;
    }
    m.bytes = (uint64_t)(p - body);
    if (m.kind <= CDP__RPC_FAIL && !(flags & CDP__RPC_FETCH)) m.bytes += next_byte(in);
    m.kind |= flags << 8 | rrefs << 16 | tensors << 24;
    if (odd == 0) m.bytes = next_byte(in) * 300u;
    if (odd == 3) m.bytes -= cdp__min(m.bytes, 1u + next_byte(in) % 64u);
    if (odd == 1) m.kind ^= 1u << next_byte(in) % 32;
    if (odd % 8 == 2 && (m.kind & 0xff) < 3) { /* a long one, which comes later, or never */
        const uint64_t handle = ++handles;
        cdp__rpc_in *at;
        m.handle = handle;
        if (!m.bytes) return;
        cdp__rpc_deliver(rpc, &m);
        for (at = rpc->in; at && at->m.handle != handle;)
            at = at->next;
        if (!at || !at->body || next_byte(in) % 4 == 0) return;
        memcpy(at->body, body, (size_t)m.bytes);
        cdp__rpc_fetched(rpc, m.peer, handle, CDP_OK);
        return;
    }
    m.body = m.bytes ? body_fenced(body, m.bytes) : NULL;
    cdp__rpc_deliver(rpc, &m);
    T(!surely_wrong(rpc, &m) || rpc->peers[m.peer].dropped);
}

/* As cdp_ctx_backward() begins one; nobody waits for its end. */
static void pass_begins(cdp_rpc *rpc, const cdp_tensor *root) {
    cdp_ctx *ctx = rpc->contexts;
    cdp_lock_acquire(&rpc->lock);
    ctx->roots = root;
    if (!ctx->failed && cdp__ctx_reserve(rpc, ctx, 0, 1, 0, 0))
        (void)cdp__wave_begin(&ctx->w, cdp__rpc_number(rpc), &root->value, 1);
    cdp__rpc_leave(rpc);
}

static void program_of(cdp_rpc *rpc, fuzz_input *in, cdp_rref *mine, cdp_call *calls) {
    const uint32_t what = next_byte(in) % 8, k = next_byte(in) % 4;
    cdp_call_desc d;
    memset(&d, 0, sizeof d);
    d.to = next_byte(in) % 3;
    d.function = ids[next_byte(in) % 5];
    if (rpc->contexts && next_byte(in) % 2 && what > 2) {
        static double x[6];
        static cdp_tensor t = {.data = x, .dtype = CDP_DTYPE_F64, .dims = 1, .shape = {6}};
        d.ctx = rpc->contexts;
        if (next_byte(in) % 2) (void)!cdp_ctx_value(d.ctx, &t.value);
        if (!cdp__ctx_entry(d.ctx, t.value)) t.value = 0;
        d.args.tensors = &t;
        d.args.tensor_count = 1;
        if (t.value && next_byte(in) % 4 == 0) pass_begins(rpc, &t);
    }
    if (what == 1 && next_byte(in) % 4 == 0) {
        cdp_ctx *ctx;
        (void)!cdp_ctx_begin(rpc, &ctx);
        return;
    }
    if (mine[k].rpc && next_byte(in) % 2) {
        d.args.rrefs = &mine[k];
        d.args.rref_count = 1;
    }
    if (what == 0 && !mine[k].rpc) {
        const cdp_value v = value_make();
        if (cdp_rref_create(rpc, &v, "mine", &mine[k]) != CDP_OK) value_end(NULL, v.data);
    } else if (what == 1 && !mine[k].rpc) {
        (void)!cdp_rpc_remote(rpc, &d, &mine[k]);
    } else if (what == 2) {
        cdp_rref_drop(mine[k]);
        mine[k].rpc = NULL;
    } else if (what == 3 && kept_count) {
        (void)cdp_rpc_reply(kept[--kept_count], NULL);
    } else if (what == 4 && mine[k].rpc) {
        d.on = mine[k];
        (void)!cdp_rpc_start(rpc, &d, &calls[k]);
    } else if (what == 5) {
        (void)!cdp_call_cancel(&calls[k]);
        cdp_call_free(&calls[k]);
    } else if (what == 6) {
        now += next_byte(in) * 10000000ull;
    } else {
        (void)!cdp_rpc_start(rpc, &d, &calls[k]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    cdp_os os = *cdp_os_default();
    cdp_hub_desc h;
    cdp_group_desc d;
    cdp_hub *hub;
    cdp_group *g;
    cdp_rpc *rpc;
    cdp_rref mine[4];
    cdp_call calls[4];
    memset(&h, 0, sizeof h);
    memset(&d, 0, sizeof d);
    memset(mine, 0, sizeof mine);
    memset(calls, 0, sizeof calls);
    live = fresh = made = destroyed = kept_count = 0;
    now = 1000000000;
    os.alloc = world_alloc;
    os.release = world_free;
    os.now_ns = world_now;
    functions[0].name = "echo";
    functions[0].func = f_echo;
    functions[0].flags = CDP_RPC_INLINE;
    functions[0].backward = f_echo_backward;
    functions[1].name = "value";
    functions[1].func = f_value;
    functions[2].name = "keep";
    functions[2].func = f_keep;
    functions[2].flags = CDP_RPC_LATER | CDP_RPC_EARLY;
    functions[3].name = "on";
    functions[3].func = f_on;
    functions[3].max_bytes = 20;
    for (uint32_t i = 0; i < 4; ++i)
        ids[i] = cdp_rpc_id(functions[i].name);
    ids[4] = 99;
    h.world_size = d.world_size = 3;
    h.os = d.os = &os;
    T(cdp_hub_create(&h, &hub) == CDP_OK);
    d.hub = hub;
    d.no_thread = d.no_spin = true;
    d.logger.level = CDP_LOG_SILENT;
    T(cdp_group_create(&d, &g) == CDP_OK);
    rpc = rpc_make(g, size % 4 ? 60000 : UINT64_MAX);
    while (in.n) {
        const uint32_t what = next_byte(&in) % 8;
        if (what < 5)
            message_of(rpc, &in);
        else if (what < 7)
            program_of(rpc, &in, mine, calls);
        else
            (void)cdp_poll(g, 0);
        if (next_byte(&in) % 4 == 0) {
            cdp_lock_acquire(&rpc->lock);
            while (rpc->queue)
                cdp__rpc_run(rpc, cdp__rpc_next(rpc, 0, CDP__NEVER));
            cdp__rpc_leave(rpc);
        }
        for (uint32_t r = 1; r <= 2; ++r) {
            const uint32_t *has = rpc->peers[r].requests; /* nested ones are the second */
            T(has[0] <= rpc->share && has[1] <= rpc->share + CDP__RPC_LEVELS);
        }
        T(rpc->refs.room <= 41 && rpc->in_bytes < 1000000);
    }
    for (uint32_t i = 0; i < 20; ++i) {
        now += 20000000000ull;
        (void)cdp_poll(g, 0);
    }
    for (uint32_t i = 0; i < 4; ++i) {
        T(calls[i].priv[CDP__CALL_STAGE] != CDP__CALL_UNDER_WAY); /* each ends by its deadline */
        cdp_call_free(&calls[i]);
        cdp_rref_drop(mine[i]);
    }
    (void)cdp_poll(g, 0);
    cdp_rpc_destroy(rpc);
    while (kept_count)
        (void)cdp_rpc_reply(kept[--kept_count], NULL);
    cdp_group_destroy(g);
    cdp_hub_destroy(hub);
    T(made == destroyed);
    T(live == 0);
    return 0;
}

#ifndef FUZZ_LIB
static size_t make_input(uint64_t seed, uint8_t *out) {
    const uint32_t n = 20 + pick(1500);
    (void)seed;
    for (uint32_t i = 0; i < n; ++i)
        out[i] = (uint8_t)pick(256);
    return n;
}
#endif
