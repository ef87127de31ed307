/* Records with authentication codes between two ends. The input says what is sent, how the line is
   damaged - bits flipped, bytes left out, repeated or made up - and in which pieces it is read.

   Inputs made from a seed: most damage a little. How to run it: fuzz.h.

   Some lines end with the head of a record that nobody may send, which one who knows the key has
   sealed: with no body, or a longer one than any.

   Whatever comes, only what was sent is handed out, in order and from its beginning; all of it when
   nothing was damaged; and damage before the end of the line is an error. */
#include "fuzz.h"

#define LINE_ROOM (400u * 1024u)

static uint8_t line[LINE_ROOM + 1], whole[LINE_ROOM + 1], text[LINE_ROOM];
static uint64_t line_used, line_read, line_piece;

static int64_t line_send(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    (void)user;
    (void)fd;
    T(n == 1 && v->bytes && v->bytes <= LINE_ROOM - line_used);
    memcpy(line + line_used, v->data, (size_t)v->bytes);
    line_used += v->bytes;
    return (int64_t)v->bytes;
}

static int64_t line_recv(void *user, int32_t fd, const cdp_iov *v, uint32_t n) {
    uint64_t bytes = cdp__min(v->bytes, line_used - line_read);
    (void)user;
    (void)fd;
    T(n == 1 && v->bytes);
    if (line_piece) bytes = cdp__min(bytes, line_piece);
    memcpy(v->data, line + line_read, (size_t)bytes);
    line_read += bytes;
    return bytes ? (int64_t)bytes : CDP_IO_EOF;
}

static uint32_t next_u16(fuzz_input *in) {
    const uint32_t low = next_byte(in);
    return low | (uint32_t)next_byte(in) << 8;
}

static void damage(fuzz_input *in) {
    const uint32_t kind = next_byte(in) % 4, at = next_u16(in), value = next_byte(in);
    const uint64_t from = line_used ? at % line_used : 0, bytes = 1 + value % 64;
    if (!line_used) return;
    if (kind == 0) line[from] ^= (uint8_t)(1u << value % 8);
    if (kind == 1) line[from] = (uint8_t)value;
    if (kind == 2 && bytes <= line_used - from) {
        memmove(line + from, line + from + bytes, (size_t)(line_used - from - bytes));
        line_used -= bytes;
    }
    if (kind == 3 && bytes <= line_used - from && line_used + bytes <= LINE_ROOM) {
        memmove(line + from + bytes, line + from, (size_t)(line_used - from));
        line_used += bytes;
    }
}

static void put_odd_head(const cdp__mac *mac, uint32_t body) {
    uint8_t *head = line + line_used, code[CDP__MAC_CODE];
    T(LINE_ROOM - line_used >= CDP__MAC_HEAD);
    head[0] = (uint8_t)body;
    head[1] = (uint8_t)(body >> 8);
    cdp__sip(mac->key[1], mac->number[1], head, 2, code);
    memcpy(head + 2, code, CDP__MAC_HEAD - 2);
    line_used += CDP__MAC_HEAD;
}

/* Most bodies are short, because making and verifying codes takes a nanosecond for each byte. All
   are where few bytes move at a time, because each move copies what has arrived of a record. */
static uint64_t next_length(fuzz_input *in, bool few) {
    const uint32_t n = next_u16(in);
    return n % 32 == 31 && !few ? 1 + n % 40000 : 1 + n / 32 % 600;
}

/* Both ends as they begin. Their buffers, of 128 KiB, keep what earlier inputs left there: zeroing
   them would take most of the time, and nothing may depend on it. */
static cdp__mac *mac_fresh(const cdp_os *os, uint32_t listener) {
    static cdp__mac *mac[2];
    static uint8_t start[2][offsetof(cdp__mac, in)];
    uint8_t key[CDP__AUTH_BYTES] = {1}, nonce[2][16] = {{2}}, chosen[CDP__HELLO_BYTES] = {3};
    if (!mac[listener]) {
        mac[listener] = cdp__mac_open(os, key, nonce, chosen, listener);
        memcpy(start[listener], mac[listener], sizeof start[listener]);
    }
    memcpy(mac[listener], start[listener], sizeof start[listener]);
    return mac[listener];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t got[LINE_ROOM + 1];
    fuzz_input in = {data, size};
    cdp_os os = *cdp_os_default();
    cdp__loop loop;
    cdp__io io;
    cdp__mac *mac[2];
    cdp_iov v;
    uint32_t i, damages = next_byte(&in) % 4, asked = 1 + next_u16(&in);
    uint64_t sent = 0, taken = 0, undamaged;
    int64_t r;
    bool same, few, odd;
    line_used = line_read = 0;
    line_piece = next_u16(&in);
    few = asked < 64 || (line_piece && line_piece < 64);
    os.net.send_iov = line_send;
    os.net.recv_iov = line_recv;
    os.net.watch_used_up = NULL;
    memset(&loop, 0, sizeof loop);
    memset(&io, 0, sizeof io);
    loop.os = &os;
    io.slot = CDP__NO_SLOT;
    for (i = 0; i < 2; ++i)
        mac[i] = mac_fresh(&os, i);
    for (i = 0; i < 8 && in.n > 20; ++i) {
        v.data = text + sent;
        v.bytes = next_length(&in, few);
        if (sent + v.bytes > sizeof text - 100000) break;
        memset(v.data, (int)next_byte(&in), (size_t)v.bytes);
        T(cdp__mac_send(mac[0], &loop, &io, &v, 1) == (int64_t)v.bytes);
        sent += v.bytes;
    }
    odd = next_byte(&in) % 8 == 0;
    i = next_u16(&in);
    if (odd) put_odd_head(mac[0], i > CDP__MAC_BODY ? i : 0);
    memcpy(whole, line, (size_t)line_used);
    undamaged = line_used;
    for (i = 0; i < damages; ++i)
        damage(&in);
    same = undamaged == line_used && memcmp(whole, line, (size_t)undamaged) == 0;
    do {
        v.data = got;
        v.bytes = asked;
        io.ready = CDP_IO_READ;
        r = cdp__mac_recv(mac[1], &loop, &io, &v);
        T(r <= (int64_t)asked && r <= (int64_t)(sent - taken));
        if (r > 0) T(memcmp(got, text + taken, (size_t)r) == 0);
        if (r > 0) taken += (uint64_t)r;
    } while (r > 0 || (r == 0 && line_read < line_used));
    if (same) T(taken == sent);
    if (same && odd) T(r == -EBADMSG);
    if (same && !odd) T(r == 0 || r == CDP_IO_EOF);
    if (!same && !odd) T(taken < sent || r == -EBADMSG || line_used > undamaged);
    return 0;
}

#ifndef FUZZ_LIB
static size_t make_input(uint64_t seed, uint8_t *out) {
    size_t i, n = 5 + 3 * pick(9) + 24;
    (void)seed;
    for (i = 0; i < n; ++i)
        out[i] = (uint8_t)pick(256);
    out[2] = pick(2) ? 0 : out[2];
    out[4] = pick(3) ? 0 : out[4];
    return n;
}
#endif
