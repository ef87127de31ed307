/* test_mac.c - authentication codes of records: the hash against known results, every single bit
   that can flip between two ends, records that are left out, repeated, swapped or cut; and whole
   jobs over sockets, one of whose connections flips a bit. */
#define CDP_IMPLEMENTATION
#define CDP__BLOCK_BYTES 1000u /* so that short streams take all of several connections */
#include "cdp_store.h"
#include "own.h"

#include "cdp_tcp.h"
#include "ranks.h"
#include "ports.h"

/* ---- the hash ---- */

/* Of the bytes 0, 1, 2, ... with the key 0, 1, .. 15, as OpenSSL's SIPHASH of size 16 has them. */
TEST(hash_has_known_results) {
    static const struct {
        uint32_t bytes;
        uint8_t result[16];
    } known[] = {
        {8,
            {0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83, 0xe2, 0x64, 0xf3, 0x14,
                0x97, 0xb4}},
        {15,
            {0x54, 0x93, 0xe9, 0x99, 0x33, 0xb0, 0xa8, 0x11, 0x7e, 0x08, 0xec, 0x0f, 0x97, 0xcf,
                0xc3, 0xd9}},
        {16,
            {0x6e, 0xe2, 0xa4, 0xca, 0x67, 0xb0, 0x54, 0xbb, 0xfd, 0x33, 0x15, 0xbf, 0x85, 0x23,
                0x05, 0x77}},
        {63,
            {0x51, 0x50, 0xd1, 0x77, 0x2f, 0x50, 0x83, 0x4a, 0x50, 0x3e, 0x06, 0x9a, 0x97, 0x3f,
                0xbd, 0x7c}},
    };
    uint8_t bytes[64], out[16];
    uint64_t key[2];
    uint32_t i;
    for (i = 0; i < sizeof bytes; ++i)
        bytes[i] = (uint8_t)i;
    key[0] = cdp__get_u64(bytes);
    key[1] = cdp__get_u64(bytes + 8);
    for (i = 0; i < sizeof known / sizeof known[0]; ++i) {
        cdp__sip(key, cdp__get_u64(bytes), bytes + 8, known[i].bytes - 8, out);
        T(memcmp(out, known[i].result, 16) == 0);
    }
}

/* Each direction of each connection has a key of its own, and any difference of CHOSEN another. */
TEST(keys_differ) {
    uint8_t key[CDP__AUTH_BYTES] = {1}, nonce[2][16] = {{2}, {3}}, chosen[CDP__HELLO_BYTES] = {4};
    uint64_t keys[2][2], others[2][2];
    cdp__mac *a, *b;
    cdp__mac_keys(key, nonce, chosen, keys);
    T(memcmp(keys[0], keys[1], 16) != 0);
    a = cdp__mac_open(cdp_os_default(), key, nonce, chosen, true);
    b = cdp__mac_open(cdp_os_default(), key, nonce, chosen, false);
    T(a && b && memcmp(a->key[0], b->key[1], 16) == 0 && memcmp(a->key[1], b->key[0], 16) == 0);
    cdp__mac_close(cdp_os_default(), a);
    cdp__mac_close(cdp_os_default(), b);
    for (uint32_t i = 0; i < 8 * (sizeof nonce + sizeof chosen + sizeof key); ++i) {
        uint8_t *at = i / 8 < 32 ? &nonce[0][0] + i / 8 : chosen + i / 8 - 32;
        if (i / 8 >= 32 + sizeof chosen) at = key + i / 8 - 32 - sizeof chosen;
        *at ^= (uint8_t)(1u << i % 8);
        cdp__mac_keys(key, nonce, chosen, others);
        T(memcmp(keys[0], others[0], 16) != 0 && memcmp(keys[1], others[1], 16) != 0);
        *at ^= (uint8_t)(1u << i % 8);
    }
}

/* ---- two ends and bytes in memory between them ---- */

#define LINE_ROOM (1u << 20)

typedef struct line {
    uint8_t bytes[LINE_ROOM];
    uint64_t used, read;
    uint64_t room;  /* that the socket still takes */
    uint32_t piece; /* most that one call moves; 0: no limit */
    bool ended;
} line;

static line between;

static int64_t line_send(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    line *l = (line *)user;
    uint64_t bytes = cdp__min(v->bytes, l->room);
    (void)fd;
    T(n == 1 && v->bytes);
    if (l->piece) bytes = cdp__min(bytes, l->piece);
    memcpy(l->bytes + l->used, v->data, bytes);
    l->used += bytes;
    l->room -= bytes;
    return (int64_t)bytes;
}

static int64_t line_recv(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    line *l = (line *)user;
    uint64_t bytes = cdp__min(v->bytes, l->used - l->read);
    (void)fd;
    T(n == 1 && v->bytes);
    if (!bytes) return l->ended ? CDP_IO_EOF : 0;
    if (l->piece) bytes = cdp__min(bytes, l->piece);
    memcpy(v->data, l->bytes + l->read, bytes);
    l->read += bytes;
    return (int64_t)bytes;
}

typedef struct ends {
    cdp_os os;
    cdp__loop loop;
    cdp__io io;
    cdp__mac *mac[2]; /* of the sender, of the receiver */
} ends;

static void ends_open(ends *e) {
    uint8_t key[CDP__AUTH_BYTES] = {7}, nonce[2][16] = {{8}}, chosen[CDP__HELLO_BYTES] = {9};
    memset(e, 0, sizeof *e);
    memset(&between, 0, sizeof between);
    between.room = UINT64_MAX;
    e->os = *cdp_os_default();
    e->os.user = &between;
    e->os.net.send_iov = line_send;
    e->os.net.recv_iov = line_recv;
    e->os.net.watch_used_up = NULL;
    e->loop.os = &e->os;
    e->io.slot = CDP__NO_SLOT; /* nobody watches it */
    e->io.ready = CDP_IO_READ | CDP_IO_WRITE;
    for (uint32_t i = 0; i < 2; ++i)
        e->mac[i] = cdp__mac_open(cdp_os_default(), key, nonce, chosen, i);
}

static void ends_close(ends *e) {
    cdp__mac_close(cdp_os_default(), e->mac[0]);
    cdp__mac_close(cdp_os_default(), e->mac[1]);
}

static int64_t put(ends *e, const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    cdp_iov v[2];
    v[0].data = (void *)(uintptr_t)a;
    v[0].bytes = a_bytes;
    v[1].data = (void *)(uintptr_t)b;
    v[1].bytes = b_bytes;
    return cdp__mac_send(e->mac[0], &e->loop, &e->io, v, b_bytes ? 2 : 1);
}

static int64_t get(ends *e, void *to, uint64_t bytes) {
    uint32_t ends_seen = 0;
    int64_t r;
    cdp_iov v;
    v.data = to;
    v.bytes = bytes;
    do { /* a socket reports what is left after a short read */
        e->io.ready |= CDP_IO_READ;
        r = cdp__mac_recv(e->mac[1], &e->loop, &e->io, &v);
    } while (r == 0 && (between.read < between.used || (between.ended && ++ends_seen < 3)));
    return r;
}

static uint8_t text[300000], copy[300000];

static void fill_text(void) {
    uint64_t state = 5;
    for (uint32_t i = 0; i < sizeof text; ++i)
        text[i] = (uint8_t)test_random(&state);
}

/* Whatever the socket takes and gives at a time, and whatever the caller brings: the same bytes.
   What was reported as taken to its last byte is on its way: nothing of it waits at the sender, who
   may not come again for long. */
TEST(bytes_arrive_in_any_pieces) {
    uint64_t state = 1;
    fill_text();
    for (uint32_t round = 0; round < 200; ++round) {
        ends e;
        uint64_t sent = 0, got = 0;
        const uint64_t all = 1 + test_random(&state) % (round % 4 ? 3000 : sizeof text);
        ends_open(&e);
        between.piece = round % 3 ? 1 + (uint32_t)test_random(&state) % 40000 : 0;
        while (got < all || sent < all) {
            const uint64_t most = 1 + test_random(&state) % (round % 5 ? 700 : 200000);
            const uint64_t left = cdp__min(most, all - sent),
                           first = test_random(&state) % (left + 1);
            bool whole;
            int64_t r = 0;
            between.room = test_random(&state) % (round % 2 ? 1000 : 100000);
            if (left)
                r = first ? put(&e, text + sent, first, text + sent + first, left - first)
                          : put(&e, text + sent, left, NULL, 0);
            if (!T(r >= 0 && (uint64_t)r <= left)) break;
            whole = left && (uint64_t)r == left;
            sent += (uint64_t)r;
            do {
                r = get(&e, copy + got, 1 + test_random(&state) % 30000);
                got += r > 0 ? (uint64_t)r : 0;
            } while (r > 0);
            if (!T(r == 0 && got <= sent + 1 && (!whole || got == sent))) break;
            if (between.read == between.used) between.read = between.used = 0;
        }
        T(sent == all && got == all && memcmp(copy, text, all) == 0);
        ends_close(&e);
    }
}

/* Three records, as they lie on the line. */
static const uint32_t body[3] = {20, 1, 33};
static uint32_t record_at[4];

static void three_records(ends *e) {
    uint32_t i, at = 0;
    fill_text();
    ends_open(e);
    for (i = 0; i < 3; ++i) {
        record_at[i] = (uint32_t)between.used;
        T_EQ(body[i], put(e, text + at, body[i], NULL, 0));
        at += body[i];
    }
    record_at[3] = (uint32_t)between.used;
    T_EQ(54 + 3 * 24, between.used);
}

/* What is on the line is not what was sent: everything before record `bad` arrives, nothing of it,
   and the error says so and stays. */
static void is_noticed(ends *e, uint32_t bad, uint32_t piece) {
    uint64_t got = 0, before = 0;
    int64_t r;
    uint32_t i;
    for (i = 0; i < bad; ++i)
        before += body[i];
    memset(copy, 0, 100);
    between.read = 0;
    between.piece = piece;
    while ((r = get(e, copy + got, 7)) > 0)
        got += (uint64_t)r;
    T_EQ(-EBADMSG, r);
    T_EQ(before, got);
    T(memcmp(copy, text, got) == 0 && e->mac[1]->number[0] == bad);
    T_EQ(-EBADMSG, get(e, copy, 7));
    e->mac[1]->number[0] = e->mac[1]->in_at = e->mac[1]->in_used = 0;
    e->mac[1]->changed = false;
}

TEST(every_flipped_bit_is_noticed) {
    ends e;
    three_records(&e);
    for (uint32_t bit = 0; bit < 8 * record_at[3]; ++bit) {
        uint32_t bad = 0;
        while (bit / 8 >= record_at[bad + 1])
            ++bad;
        between.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        is_noticed(&e, bad, bit % 3 ? 0 : 1 + bit % 11);
        between.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    ends_close(&e);
}

TEST(records_left_out_repeated_swapped_or_foreign_are_noticed) {
    static uint8_t line_before[400];
    ends e;
    uint32_t a, b;
    three_records(&e);
    memcpy(line_before, between.bytes, record_at[3]);
    for (a = 0; a < 2; ++a) { /* left out */
        memmove(between.bytes + record_at[a], line_before + record_at[a + 1],
            record_at[3] - record_at[a + 1]);
        between.used = record_at[3] - (record_at[a + 1] - record_at[a]);
        is_noticed(&e, a, 0);
        memcpy(between.bytes, line_before, record_at[3]);
    }
    for (a = 0; a < 3; ++a) /* repeated, after itself or later */
        for (b = a; b < 3; ++b) {
            const uint32_t bytes = record_at[a + 1] - record_at[a];
            memcpy(between.bytes + record_at[b + 1], line_before + record_at[a], bytes);
            memcpy(between.bytes + record_at[b + 1] + bytes, line_before + record_at[b + 1],
                record_at[3] - record_at[b + 1]);
            between.used = record_at[3] + bytes;
            if (b < 2) is_noticed(&e, b + 1, 0);
            memcpy(between.bytes, line_before, record_at[3]);
        }
    /* swapped */
    memcpy(between.bytes, line_before + record_at[1], record_at[2] - record_at[1]);
    memcpy(between.bytes + record_at[2] - record_at[1], line_before, record_at[1]);
    between.used = record_at[3];
    is_noticed(&e, 0, 0);
    /* sent back to the one that made them: the other direction has another key */
    memcpy(between.bytes, line_before, record_at[3]);
    memcpy(e.mac[1]->key[0], e.mac[0]->key[0], 16);
    is_noticed(&e, 0, 0);
    ends_close(&e);
}

/* A line that is cut is no end of the stream that could pass for a whole one. */
TEST(a_cut_line_ends_with_what_was_whole) {
    ends e;
    three_records(&e);
    between.ended = true;
    for (uint32_t cut = 0; cut <= record_at[3]; ++cut) {
        uint64_t got = 0, whole = 0;
        int64_t r;
        for (uint32_t i = 0; i < 3 && cut >= record_at[i + 1]; ++i)
            whole += body[i];
        between.read = 0;
        between.used = cut;
        while ((r = get(&e, copy + got, 100)) > 0)
            got += (uint64_t)r;
        T_EQ(CDP_IO_EOF, r);
        T_EQ(whole, got);
        e.mac[1]->number[0] = e.mac[1]->in_at = e.mac[1]->in_used = 0;
    }
    ends_close(&e);
}

/* ---- jobs over sockets, one of whose connections flips a bit ---- */

/* One rank of a job, its os and what it has seen. */
typedef struct member {
    pthread_t id;
    cdp_tcp_desc desc;
    cdp_os os;
    uint64_t flip_at; /* bit of what it receives behind the greetings of a link; UINT64_MAX: none */
    uint32_t flip_fd; /* the flipping connection is number so many of its own */
    uint32_t links;   /* that it has made */
    int32_t number[1024]; /* of each descriptor: which link it is, from 1 on */
    uint64_t received[1024];
    uint64_t calls, seed;
    cdp_status status;
    cdp_error error;
    float sum;
    char described[16384];
} member;

/* A rank that connects says first what for: "cdp-key1" and the purpose. */
static int64_t flipping_send(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    member *m = (member *)user;
    const uint8_t *p = (const uint8_t *)v->data;
    if (v->bytes == CDP__AUTH_BYTES && memcmp(p, "cdp-key1", 8) == 0 && p[8] == CDP__AUTH_LINK) {
        m->number[fd] = (int32_t)++m->links;
        m->received[fd] = 0;
    }
    return cdp_os_default()->net.send_iov(NULL, fd, v, n);
}

static int64_t flipping_recv(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    member *m = (member *)user;
    const uint64_t greetings = 2 * CDP__AUTH_BYTES + CDP__HELLO_BYTES;
    const int64_t r = cdp_os_default()->net.recv_iov(NULL, fd, v, n);
    uint64_t from;
    if (r <= 0 || m->number[fd] != (int32_t)m->flip_fd || m->flip_at == UINT64_MAX) return r;
    from = m->received[fd];
    m->received[fd] += (uint64_t)r;
    if (greetings + m->flip_at / 8 >= from && greetings + m->flip_at / 8 < from + (uint64_t)r)
        ((uint8_t *)v->data)[greetings + m->flip_at / 8 - from] ^= (uint8_t)(1u << m->flip_at % 8);
    return r;
}

static void flipping_close(void *user, int32_t fd) {
    ((member *)user)->number[fd] = 0;
    cdp_os_default()->net.close_fd(NULL, fd);
}

static void *member_main(void *p) {
    member *m = (member *)p;
    uint64_t same = m->seed;
    float sum[50];
    cdp_group *g = NULL;
    m->status = cdp_init(&m->desc, &g);
    for (uint32_t i = 0; i < 50; ++i)
        sum[i] = 1;
    if (m->status == CDP_OK)
        m->status = cdp_allreduce(g, NULL, sum, 50, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    for (uint32_t i = 0; i < 50 && m->sum == (float)m->desc.group.world_size * (i > 0); ++i)
        m->sum = sum[i];
    if (m->status == CDP_OK) cdp_describe(g, m->described, sizeof m->described);
    for (uint32_t k = 0; k < m->calls && m->status == CDP_OK; ++k) {
        const call c = call_random(&same, m->desc.group.world_size, k % 8 ? 400 : 60000);
        call_memory mem;
        cdp_work w;
        call_fill(&c, m->desc.group.world_size, m->desc.group.rank, &mem);
        const cdp_request rq = call_request(&c, &mem);
        m->status = cdp_start(g, &rq, &w);
        if (m->status == CDP_OK) m->status = cdp_work_wait(w);
        if (m->status == CDP_OK)
            call_check(&c, m->desc.group.world_size, m->desc.group.rank, &mem);
        else
            free(mem.block);
    }
    m->error = *cdp_last_error();
    cdp_group_destroy(g);
    return NULL;
}

static member members[8];

static cdp_tcp_desc with_mac(void) {
    cdp_tcp_desc d;
    memset(&d, 0, sizeof d);
    d.job_key = "of these ranks alone";
    d.mac = true;
    d.no_shared_memory = true;
    d.group.logger.level = CDP_LOG_SILENT;
    d.group.timeout_ms = 20000;
    d.init_timeout_ms = 30000;
    return d;
}

/* Bit `flip` of what the last rank receives over its connection number `number`, from 1 on. */
static void job(
    uint32_t n, const cdp_tcp_desc *like, uint32_t number, uint64_t flip, uint64_t calls) {
    const uint16_t port = free_port();
    memset(members, 0, sizeof members);
    for (uint32_t r = 0; r < n; ++r) {
        member *m = &members[r];
        m->desc = *like;
        m->os = *cdp_os_default();
        m->os.user = m;
        m->os.net.send_iov = flipping_send;
        m->os.net.recv_iov = flipping_recv;
        m->os.net.close_fd = flipping_close;
        m->desc.group.os = &m->os;
        m->desc.group.rank = r;
        m->desc.group.world_size = n;
        m->desc.master_port = port;
        m->flip_at = r == n - 1 ? flip : UINT64_MAX;
        m->flip_fd = number;
        m->calls = calls;
        m->seed = 100 * n + calls;
        if (pthread_create(&m->id, NULL, member_main, m) != 0) abort();
    }
    for (uint32_t r = 0; r < n; ++r)
        pthread_join(members[r].id, NULL);
}

#define BIT_OF_A_SUM \
    (8 * (CDP__HEAD_BYTES + 4 * 3 + 2) + 7) /* of the exponent of the fourth float */

/* What the option is for: without it the sum is wrong, and nobody notices. */
TEST(without_codes_a_flipped_bit_is_a_wrong_sum) {
    cdp_tcp_desc like = with_mac();
    like.mac = false;
    job(2, &like, 1, BIT_OF_A_SUM, 0);
    T_EQ(CDP_OK, members[0].status);
    T_EQ(CDP_OK, members[1].status);
    T(members[1].sum != 2);
    job(2, &like, 1, UINT64_MAX, 0);
    T(members[1].sum == 2);
}

TEST(with_codes_a_flipped_bit_is_an_error_on_all_ranks) {
    static const struct {
        const char *what;
        uint64_t bit;
    } where[] = {{"length", 0}, {"length that asks for more", 8 + 5}, {"check", 8 * 5},
        {"body", 8 * CDP__MAC_HEAD + BIT_OF_A_SUM},
        {"code", 8 * (CDP__MAC_HEAD + CDP__HEAD_BYTES + 200) + 77}};
    for (uint32_t n = 2; n <= 4; n += 2)
        for (uint32_t k = 1; k <= 3; k += 2)
            for (uint32_t i = 0; i < sizeof where / sizeof where[0]; ++i) {
                cdp_tcp_desc like = with_mac();
                char peer[40];
                like.connections = k;
                job(n, &like, 1, where[i].bit, 400);
                for (uint32_t r = 0; r < n; ++r) {
                    const bool good = test_check(members[r].status == CDP_ERR_IO
                            && members[r].error.origin == (int32_t)n - 1,
                        __FILE__, __LINE__, "%s, %u ranks, %u connections: rank %u: %s: %s",
                        where[i].what, n, k, r, cdp_status_name(members[r].status),
                        members[r].error.text);
                    cdp__format(
                        peer, sizeof peer, "record 1 from rank %d at ", members[r].error.peer);
                    if (!good) continue;
                    T_TEXT(peer, members[r].error.text);
                    T_TEXT("does not match its authentication code", members[r].error.text);
                    if (k > 1) T_TEXT("(connection ", members[r].error.text);
                }
            }
}

/* All kinds of calls, with results compared; one connection and several, threads and none. */
TEST(jobs_with_codes) {
    for (uint32_t n = 2; n <= 5; ++n)
        for (uint32_t k = 1; k <= 4; ++k) {
            cdp_tcp_desc like = with_mac();
            like.connections = k == 4 ? 16 : k;
            like.group.no_thread = (n + k) % 2;
            like.group.piece_bytes = n % 2 ? 1000 : 0;
            like.group.small_bytes = n % 3 ? 0 : 1;
            like.no_shared_memory = n != 3;
            job(n, &like, 0, UINT64_MAX, 60);
            for (uint32_t r = 0; r < n; ++r) {
                test_check(members[r].status == CDP_OK, __FILE__, __LINE__, "rank %u of %u: %s", r,
                    n, members[r].error.text);
                if (n != 3) T_TEXT(", mac", members[r].described);
                if (n == 3) T(!strstr(members[r].described, ", mac"));
            }
        }
}

TEST(both_ends_must_have_it) {
    cdp_tcp_desc like = with_mac();
    cdp__hello mine, theirs;
    cdp_group *g = NULL;
    like.job_key = NULL;
    like.group.world_size = 2;
    like.master_port = 1;
    T_EQ(CDP_ERR_INVALID, cdp_init(&like, &g));
    T_TEXT("mac needs a job key", cdp_last_error()->text);
    memset(&mine, 0, sizeof mine);
    mine.world_size = mine.index = 2;
    theirs = mine;
    mine.type = theirs.type = CDP__HELLO;
    theirs.from = 1;
    theirs.index = 0;
    T_EQ(CDP__REFUSE_NOTHING, cdp__hello_judge(&mine, &theirs));
    theirs.mac = 1;
    T_EQ(CDP__REFUSE_MAC, cdp__hello_judge(&mine, &theirs));
    theirs.mac = 0;
    mine.mac = 1;
    T_EQ(CDP__REFUSE_MAC, cdp__hello_judge(&mine, &theirs));
    T_TEXT("mac is on at one end and off at the other", cdp__refusal_text(CDP__REFUSE_MAC));
}

static void *differing_main(void *p) {
    member *m = (member *)p;
    cdp_group *g = NULL;
    m->status = cdp_init(&m->desc, &g);
    m->error = *cdp_last_error();
    cdp_group_destroy(g);
    return NULL;
}

TEST(a_difference_is_named_at_the_start) {
    for (uint32_t on = 0; on < 2; ++on) {
        const uint16_t port = free_port();
        memset(members, 0, sizeof members);
        for (uint32_t r = 0; r < 2; ++r) {
            members[r].desc = with_mac();
            members[r].desc.mac = r == on;
            members[r].desc.group.rank = r;
            members[r].desc.group.world_size = 2;
            members[r].desc.master_port = port;
            if (pthread_create(&members[r].id, NULL, differing_main, &members[r]) != 0) abort();
        }
        for (uint32_t r = 0; r < 2; ++r) {
            pthread_join(members[r].id, NULL);
            T_EQ(CDP_ERR_MISMATCH, members[r].status);
            T_TEXT(on ? "mac is on here but off on rank 0" : "mac is off here but on on rank 0",
                members[r].error.text);
        }
    }
}

TEST(environment_sets_it) {
    cdp_tcp_desc d;
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    for (uint32_t i = 0; i < 4; ++i) {
        static const char *const value[] = {"1", "0", "", "yes"};
        memset(&d, 0, sizeof d);
        setenv("CDP_MAC", value[i], 1);
        T_EQ(i == 3 ? CDP_ERR_INVALID : CDP_OK, cdp_tcp_desc_from_env(&d));
        T_EQ(i == 0, d.mac);
    }
    T_TEXT("CDP_MAC is 'yes'", cdp_last_error()->text);
    unsetenv("CDP_MAC");
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"hash_has_known_results", hash_has_known_results, 10},
        {"keys_differ", keys_differ, 10},
        {"bytes_arrive_in_any_pieces", bytes_arrive_in_any_pieces, 30},
        {"every_flipped_bit_is_noticed", every_flipped_bit_is_noticed, 30},
        {"records_left_out_repeated_swapped_or_foreign_are_noticed",
            records_left_out_repeated_swapped_or_foreign_are_noticed, 10},
        {"a_cut_line_ends_with_what_was_whole", a_cut_line_ends_with_what_was_whole, 10},
        {"without_codes_a_flipped_bit_is_a_wrong_sum", without_codes_a_flipped_bit_is_a_wrong_sum,
            60},
        {"with_codes_a_flipped_bit_is_an_error_on_all_ranks",
            with_codes_a_flipped_bit_is_an_error_on_all_ranks, 120},
        {"jobs_with_codes", jobs_with_codes, 120},
        {"both_ends_must_have_it", both_ends_must_have_it, 10},
        {"a_difference_is_named_at_the_start", a_difference_is_named_at_the_start, 60},
        {"environment_sets_it", environment_sets_it, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
