/* The store's server and client, fed with whatever. No sockets: a false os hands out the bytes
   of the input.

   Inputs made from a seed: mostly well-formed conversations, cut, repeated and damaged. How to
   run it: fuzz.h.

   Whatever comes, nothing may crash, leak or be accounted wrongly; and what one connection is
   answered must not depend on how its bytes were cut into pieces. */
#include "world.h"

/* ---- the server ---- */

/* What the books say of one key. */
static uint64_t audit_entry(const cdp__kv_entry *e, uint64_t *waiters) {
    const cdp__chain *heads[2] = {&e->waits, &e->watches}, *link;
    const cdp__kv_item *item;
    uint64_t cost = cdp__kv_cost(sizeof *e + e->key_bytes) + cdp__kv_cost(e->value_room);
    uint64_t items = 0;
    uint32_t i;
    T(e->present || e->item_count || heads[0]->next != heads[0] || heads[1]->next != heads[1]);
    for (i = 0; i < 2; ++i)
        for (link = heads[i]->next; link != heads[i]; link = link->next) {
            T(((const cdp__waiter *)link)->watch == (i == 1));
            ++*waiters;
            cost += cdp__kv_cost(sizeof(cdp__waiter));
        }
    for (item = e->first_item; item; item = item->next) {
        ++items;
        cost += cdp__kv_cost(sizeof *item + item->bytes);
        T(item->next || item == e->last_item);
    }
    T(items == e->item_count);
    return cost;
}

static void audit_conn(const cdp__conn *c, uint64_t *waiters) {
    const cdp__chain *link;
    uint32_t waits = 0, watches = 0;
    T(!c->closing && !c->dirty && c->io.fd >= 0);
    for (link = c->waiters.next; link != &c->waiters; link = link->next) {
        const cdp__waiter *w = (const cdp__waiter *)(const void *)((const uint8_t *)link
            - offsetof(cdp__waiter, of_conn));
        T(w->conn == c);
        waits += !w->watch;
        watches += w->watch;
        --*waiters;
    }
    T(c->wait_count == waits && c->watch_count == watches);
    T(c->awaited == waits + (c->wire.row && c->wire.row->cmd == CDP__CMD_WAIT));
}

/* Its books must agree with what is there. */
static void audit(const cdp_store_server *s) {
    uint64_t kv = 0, buffers = 0, i, entries = 0, present = 0, clients = 0, waiters = 0;
    const cdp__conn *heads[2] = {&s->fresh, &s->conns}, *c;
    const cdp__kv_entry *e;
    const cdp__chain *link;
    for (i = 0; i < s->kv.bucket_count; ++i)
        for (e = s->kv.buckets[i]; e; e = e->next) {
            kv += audit_entry(e, &waiters);
            ++entries;
            present += e->present;
        }
    for (link = s->satisfied.next; link != &s->satisfied; link = link->next) {
        ++waiters;
        kv += cdp__kv_cost(sizeof(cdp__waiter));
    }
    for (i = 0; i < 2; ++i)
        for (c = heads[i]->next; c != heads[i]; c = c->next) {
            ++clients;
            buffers += cdp__kv_cost(c->in.room) + cdp__kv_cost(c->out.room);
            kv += cdp__last_will_cost(c->last_will);
            audit_conn(c, &waiters);
        }
    T(kv == s->kv.bytes && buffers == s->buffer_bytes && clients == s->client_count && waiters == 0
        && entries == s->kv.entry_count && present == s->kv.present_count);
    /* rounding of small buffers */
    T(s->kv.bytes + s->buffer_bytes <= s->desc.max_total_bytes + 4096);
}

static cdp_store_server *open_server(world *w, const cdp_os *os, uint64_t *log, bool keyed) {
    cdp_store_server_desc d;
    cdp_store_server *s = NULL;
    memset(&d, 0, sizeof d);
    d.os = os;
    d.logger.func = quiet;
    d.logger.user = log;
    d.logger.level = CDP_LOG_DEBUG;
    d.max_key_bytes = 64;
    d.max_value_bytes = 70000;
    d.max_list = 100;
    d.max_total_bytes = 300000;
    d.max_reply_bytes = 150000;
    d.job_key = keyed ? "k" : NULL;
    (void)w;
    return cdp_store_server_create(&d, &s) == CDP_OK ? s : NULL;
}

/* Pieces: one byte whose lowest two bits say which connection, the next two what: bytes, bytes,
   its end, time. */
static void run_server(fuzz_input in, uint8_t flags) {
    static const uint8_t greeting[] = {0, 0xce, 0xf7, 0x85, 0x3c};
    uint8_t proved[2 * CDP__AUTH_BYTES + sizeof greeting];
    world *w = (world *)calloc(1, sizeof *w);
    const cdp_os os = world_os(w);
    uint64_t log = 0;
    cdp_store_server *s;
    uint32_t i;
    w->piece = flags & 1 ? 1 + next_byte(&in) : 0;
    w->fail_at = flags & 2 ? 1 + next_byte(&in) : 0;
    w->far = flags & 16 && flags & 32;
    s = open_server(w, &os, &log, (flags & 8) != 0);
    (void)proof_of(false, CDP__AUTH_STORE, proved);
    memcpy(proved + 2 * CDP__AUTH_BYTES, greeting, sizeof greeting);
    /* without a greeting it may be the old dialect */
    for (i = 0; s && i < CONNS && !(flags & 4); ++i) {
        w->conn[i].in = flags & 8 ? proved : greeting;
        w->conn[i].in_bytes = flags & 8 ? sizeof proved : sizeof greeting;
    }
    for (i = 0; s && i < 4; ++i)
        (void)cdp_store_server_poll(s, 0);
    while (s && in.n) {
        const uint8_t b = next_byte(&in), length = next_byte(&in);
        pipe_end *c = &w->conn[b & 3];
        const uint64_t n = cdp__min(length * (b & 64 ? 256u : 1u), in.n);
        w->deaf = (b & 0x30) == 0x30;
        if ((b & 12) == 8 && b & 128) c->ended = true;
        if ((b & 12) == 12) w->now += length * 1000 * CDP__MS;
        if (!c->in_bytes) {
            c->in = in.p;
            c->in_bytes = n;
        }
        in.p += n;
        in.n -= n;
        for (i = 0; i < 3; ++i)
            (void)cdp_store_server_poll(s, 0);
        audit(s);
    }
    cdp_store_server_destroy(s);
    for (i = 0; i < CONNS; ++i)
        T(!w->conn[i].open);
    T(w->live == 0);
    free(w);
}

/* The same bytes on one connection, at once and in pieces: the same answer. */
static void run_pieces(fuzz_input in) {
    uint64_t hash[2], bytes[2], log = 0, i;
    const uint8_t seed = next_byte(&in);
    uint32_t round;
    for (round = 0; round < 2; ++round) {
        world *w = (world *)calloc(1, sizeof *w);
        const cdp_os os = world_os(w);
        cdp_store_server *s = open_server(w, &os, &log, false);
        uint64_t at = 0, random = seed;
        pipe_end *c = &w->conn[0];
        while (at < in.n || !at) {
            uint64_t n = in.n - at;
            random = random * 6364136223846793005u + 1442695040888963407u;
            if (round) n = cdp__min(n, 1 + (random >> 60));
            c->in = in.p + at;
            c->in_bytes = n;
            at += n;
            for (i = 0; i < 100 && (c->in_bytes || i < 3); ++i)
                (void)cdp_store_server_poll(s, 0);
            if (!in.n || !c->open) break;
        }
        hash[round] = c->answer_hash;
        bytes[round] = c->answer_bytes;
        /* Answers that pile up inside one piece may break a limit earlier: then the piecewise
           run has more. */
        cdp_store_server_destroy(s);
        T(w->live == 0);
        free(w);
    }
    T(bytes[0] == bytes[1] && hash[0] == hash[1]);
}

/* ---- the client ---- */

static void run_more(cdp_store *s, uint32_t what) {
    cdp_bytes *list = NULL;
    uint64_t count, i;
    int64_t number;
    void *value = NULL;
    switch (what) {
    case 0: (void)!cdp_store_queue_push(s, "k", "v", 1); break;
    case 1: (void)!cdp_store_queue_pop(s, "k", &value, NULL, 10); break;
    case 2: (void)!cdp_store_queue_try_pop(s, "k", &value, NULL); break;
    case 3: (void)!cdp_store_queue_len(s, "k", &number); break;
    case 4: (void)!cdp_store_barrier(s, "k", 2, 10); break;
    default:
        if (cdp_store_list_keys(s, &list, &count) != CDP_OK) break;
        for (i = 0; i < count; ++i)
            T(list[i].bytes <= 1000 && ((const char *)list[i].data)[list[i].bytes] == 0);
        break;
    }
    cdp_store_free(s, value);
    cdp_store_free(s, list);
}

static void run_client(fuzz_input in, uint8_t flags) {
    static const cdp_store_op later[4][2] = {{CDP_STORE_WAIT, CDP_STORE_GET},
        {CDP_STORE_QUEUE_POP, CDP_STORE_BARRIER}, {CDP_STORE_WAIT, CDP_STORE_GET},
        {CDP_STORE_QUEUE_POP, CDP_STORE_GET}};
    static const char *const keys[] = {"a", "bc", ""};
    static const uint8_t hello[] = {0, 0, 0, 0, 0}; /* the nonce, and "one of ours" */
    static const uint8_t old_hello[] = {0, 1, 3, 0, 0, 0, 0, 0, 0, 0};
    uint8_t proved[2 * CDP__AUTH_BYTES + sizeof hello];
    world *w = (world *)calloc(1, sizeof *w);
    const cdp_os os = world_os(w);
    const cdp_bytes set[] = {{"1", 1}, {"", 0}, {"333", 3}};
    cdp_tcp_store_desc d;
    cdp_store *s, *p = NULL;
    uint64_t log = 0;
    uint32_t i;
    memset(&d, 0, sizeof d);
    d.host = "127.0.0.1";
    d.port = 1;
    d.os = &os;
    d.logger.func = quiet;
    d.logger.user = &log;
    d.timeout_ms = 1000;
    d.max_value_bytes = 1000;
    if (flags & 4) {
        d.will_key = "will";
        d.will_value = set[2];
    }
    w->piece = flags & 1 ? 1 + next_byte(&in) : 0;
    w->fail_at = flags & 2 ? 1 + next_byte(&in) : 0;
    (void)proof_of(true, CDP__AUTH_STORE, proved);
    memcpy(proved + 2 * CDP__AUTH_BYTES, hello, sizeof hello);
    if (flags & 32 && flags & 1) d.job_key = "k";
    w->conn[0].in = d.job_key ? proved : hello;
    w->conn[0].in_bytes = d.job_key ? sizeof proved : sizeof hello;
    if (flags & 8) {
        w->conn[0].in = in.p;
        w->conn[0].in_bytes = in.n;
    }
    w->conn[0].ended = (flags & 16) != 0;
    w->silent_connects = flags & 32 && !(flags & 1);
    w->then = flags & 8 ? in.p : old_hello;
    w->then_bytes = flags & 8 ? in.n : sizeof old_hello;
    if (cdp_tcp_store_create(&d, &s) == CDP_OK) {
        if (cdp_prefix_store_create(s, "p", &p) != CDP_OK) p = NULL;
        for (i = 0; i < 12 && in.n; ++i) {
            const uint8_t b = next_byte(&in);
            cdp_store *t = p && b & 128 ? p : s;
            const uint64_t n = cdp__min(next_byte(&in), in.n);
            uint64_t skip;
            void *value = NULL;
            cdp_bytes values[3];
            int64_t number;
            bool flag;
            w->deaf = (b & 96) == 96;
            /* Answers lie ready before the request: a client that looks first finds bytes nobody
               asked for. */
            if (!w->conn[0].in_bytes && (b & 16)) {
                w->conn[0].in = in.p;
                w->conn[0].in_bytes = n;
            }
            if (!(b & 16)) {
                w->conn[0].in = in.p;
                w->conn[0].in_bytes = 0;
            }
            switch (b & 15) {
            case 0: (void)!cdp_store_set(t, "k", "v", 1); break;
            case 1:
            case 2: (void)!cdp_store_get(t, "k", &value, NULL, 10); break;
            case 3: (void)!cdp_store_add(t, "k", 1, &number); break;
            case 4: (void)!cdp_store_compare_set(t, "k", "", 0, "v", 1, &value, NULL); break;
            case 5: (void)!cdp_store_wait(t, keys, 3, 10); break;
            case 6: (void)!cdp_store_check(t, keys, 3, &flag); break;
            case 7: (void)!cdp_store_delete(t, "k", &flag); break;
            case 8: (void)!cdp_store_num_keys(t, &number); break;
            case 9: (void)!cdp_store_append(t, "k", "v", 1); break;
            case 10:
            case 11: (void)!cdp_store_multi_get(t, keys, 3, values, &value, 10); break;
            case 12: (void)!cdp_store_multi_set(t, keys, set, 3); break;
            case 13: run_more(t, next_byte(&in) % 7); break;
            default: {
                /* Start, let the answer come, wait a little, cancel. */
                cdp_store_request rq;
                const cdp_bytes key = {"k", 1};
                memset(&rq, 0, sizeof rq);
                rq.op = later[b >> 5 & 3][b & 1];
                rq.delta = b >> 6 & 1;
                rq.keys = &key;
                rq.key_count = 1;
                if (t->start(t->self, &rq) == CDP_PENDING) {
                    w->conn[0].in = in.p;
                    w->conn[0].in_bytes = n;
                    if (t->wait(t->self, &rq, w->now) == CDP_PENDING) t->cancel(t->self, &rq);
                }
                T(rq.status != CDP_PENDING);
                if (rq.status == CDP_OK) cdp_store_request_free(t, &rq);
                break;
            }
            }
            cdp_store_free(t, value);
            skip = cdp__min(n, in.n); /* a call may have taken a byte of them */
            in.p += skip;
            in.n -= skip;
        }
        cdp_store_destroy(p);
        cdp_store_destroy(s);
    }
    T(!w->conn[0].open && w->live == 0);
    free(w);
}

static void run_text(fuzz_input in) {
    char text[200], again[64];
    const uint64_t n = cdp__min(in.n, sizeof text - 1);
    cdp_addr a, b;
    int64_t v;
    memcpy(text, in.p, (size_t)n);
    text[n] = 0;
    if (cdp__addr_parse(text, &a)) {
        cdp__addr_text(&a, again, sizeof again);
        T(cdp__addr_parse(again, &b) && memcmp(a.ip, b.ip, 16) == 0 && a.port == b.port
            && a.scope == b.scope && a.family == b.family);
    }
    (void)cdp__number_parse((const uint8_t *)text, n, &v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in;
    uint8_t flags;
    in.p = data;
    in.n = size;
    flags = next_byte(&in);
    if (flags >> 6 == 0) run_server(in, flags);
    if (flags >> 6 == 1) run_pieces(in);
    if (flags >> 6 == 2) run_client(in, flags);
    if (flags >> 6 == 3) run_text(in);
    return 0;
}

#ifndef FUZZ_LIB
/* ---- inputs from a seed ---- */

static uint8_t *put_string(uint8_t *p, uint32_t kind) {
    static const char *const keys[] = {"/a", "/b", "/c", "/dd", "init/", "cdp/server"};
    static const char *const values[] = {"", "1", "-5", " 12x", "text", "9223372036854775807"};
    const char *s = kind == 'k' ? keys[pick(6)] : values[pick(6)];
    uint64_t n = strlen(s), said;
    if (kind == 'v' && pick(20) == 0) {
        n = pick(2000);
        cdp__put_u64(p, n);
        memset(p + 8, 'x', (size_t)n);
        return p + 8 + n;
    }
    said = n;
    if (!pick(200)) said = pick(2) ? UINT64_MAX : 65;
    cdp__put_u64(p, said);
    memcpy(p + 8, s, (size_t)n);
    return p + 8 + n;
}

static uint8_t *put_command(uint8_t *p, bool old) {
    const cdp__wire_row *row = old
        ? &cdp__wire_old[pick(sizeof cdp__wire_old / sizeof *cdp__wire_old - 1)]
        : &cdp__wire_v2[pick(sizeof cdp__wire_v2 / sizeof *cdp__wire_v2 - 1)];
    const char *f = row->fields;
    uint64_t times = 1, i;
    *p++ = row->op;
    if (*f == '*') {
        ++f;
        times = pick(5);
        cdp__put_u64(p, times);
        p += 8;
    }
    for (i = 0; i < times; ++i) {
        const char *g;
        for (g = f; *g; ++g) {
            if (*g == 'k' || *g == 'v') {
                p = put_string(p, (uint32_t)*g);
            } else {
                cdp__put_u64(p, pick(4));
                p += *g == 'i' ? 8 : 4;
            }
        }
    }
    return p;
}

static uint8_t *put_answer(uint8_t *p) {
    const uint32_t kind = pick(6);
    if (kind < 3) {
        *p++ = (uint8_t)(pick(10) ? kind % 2 : pick(256));
        if (kind == 2 || pick(2)) return p;
    }
    if (pick(20))
        cdp__put_u64(p, pick(6));
    else
        cdp__put_u64(p, pick(2) ? 1001 : UINT64_MAX);
    if (kind == 4) return p + 8 + pick(12);
    return p + 8 + (kind == 5 ? 5 : 0);
}

static size_t make_input(uint64_t seed, uint8_t *out) {
    static uint8_t body[65536];
    uint8_t *p = out, *q = body;
    uint64_t at = 0, total;
    uint32_t n = 1 + pick(40), mode, i;
    bool old;
    (void)seed;
    mode = pick(16);
    memset(body, 0, sizeof body);
    *p = (uint8_t)(((mode >= 7) + (mode >= 11) + (mode >= 15)) << 6);
    *p++ |= (uint8_t)(pick(64) & (pick(3) ? 0x33 : 0x3f));
    if (out[0] >> 6 == 1)
        *p++ = (uint8_t)pick(256);
    else if (out[0] >> 6 != 3 && out[0] & 1)
        *p++ = (uint8_t)pick(64);
    if (out[0] >> 6 != 1 && out[0] >> 6 != 3 && out[0] & 2) *p++ = (uint8_t)pick(128);
    old = out[0] >> 6 == 1 ? pick(2) : out[0] & 4;
    if (out[0] >> 6 == 1 && !old && pick(20)) {
        memcpy(q, "\0\xce\xf7\x85\x3c", 5);
        q += 5;
    }
    for (i = 0; i < n; ++i) {
        if (out[0] >> 6 == 2)
            q = put_answer(q);
        else if (out[0] >> 6 == 3)
            *q++ = (uint8_t)("0123456789abcf.:[]%- "[pick(21)]);
        else
            q = put_command(q, old);
    }
    total = (uint64_t)(q - body);
    if (pick(3) == 0)
        for (i = 0; i < 1 + pick(4); ++i)
            body[pick((uint32_t)total)] = (uint8_t)pick(256);
    if (out[0] >> 6 == 1 || out[0] >> 6 == 3) {
        memcpy(p, body, (size_t)total);
        return (size_t)(p - out) + (size_t)total;
    }
    /* in pieces, to several connections; a command may go on on the same one */
    while (at < total) {
        const uint64_t piece = cdp__min(1 + pick(pick(3) ? 60 : 255), total - at);
        *p++ = (uint8_t)(pick(5) ? pick(256) & 0xb7 : pick(256));
        *p++ = (uint8_t)piece;
        memcpy(p, body + at, (size_t)piece);
        p += piece;
        at += piece;
    }
    return (size_t)(p - out);
}

#endif
