/* tcp/mac.h - records with an authentication code

   Knows: the keys, counters and buffers of one connection. Promises: a byte is delivered only after
   the code of its record was verified; send reports a record as sent only when the system has
   accepted all of it. */
#ifndef CDP_SRC_TCP_MAC_H
#define CDP_SRC_TCP_MAC_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/loop.h"
#include "../base/bytes.h"
#include "../store/auth.h"
#include "handshake.h"
#include "paths.h"

#ifndef CDP_NO_MAC

/* With `mac`, a connection carries records after its handshake, one after the other:

       length of the body (2)   check (6)   body (1 to 16384)   code (16)

   The code covers the record's number, its first eight bytes and the body. The check is the
   beginning of a code of number and length: so a changed length is detected at once, and not by
   waiting for bytes that never arrive. The number is not sent, because both ends count: a record
   that is repeated, left out or moved does not match. Each direction of each connection has its
   own key: a hash, keyed with the job's key, of both nonces of the authentication and of CHOSEN.
   So both ends also agree on ranks, job and index of the connection.

   SipHash-2-4 with a result of 128 bits, because it is faster than keyed BLAKE2s and Poly1305 here
   (docs/NOTES.md), takes the least code, and needs no key of its own for each record. */
#define CDP__MAC_BODY 16384u
#define CDP__MAC_HEAD 8u
#define CDP__MAC_CODE 16u
#ifndef CDP__MAC_RECORDS
#define CDP__MAC_RECORDS 4u /* moved with one system call, at most */
#endif
#define CDP__MAC_BYTES (CDP__MAC_RECORDS * (CDP__MAC_HEAD + CDP__MAC_BODY + CDP__MAC_CODE))

typedef struct cdp__mac {
    /* [0]: receiving, [1]: sending; number: records verified or made so far */
    uint64_t key[2][2], number[2];
    uint32_t in_at, in_used;     /* received, not verified yet */
    uint32_t body_at, body_left; /* verified, not delivered yet */
    uint32_t out_at, out_used;   /* made, not sent yet */
    bool changed;                /* a record did not match: nothing more is received */
    uint8_t in[CDP__MAC_BYTES], out[CDP__MAC_BYTES];
} cdp__mac;

CDP__PRIVATE void cdp__sip_words(uint64_t v[4], const uint8_t *p, uint64_t words) {
    uint64_t a = v[0], b = v[1], c = v[2], d = v[3];
    uint32_t i;
    for (; words; --words) {
        const uint64_t word = cdp__get_u64(p);
        p += 8;
        d ^= word;
        for (i = 0; i < 2; ++i) {
            a += b;
            c += d;
            b = (b << 13 | b >> 51) ^ a;
            d = (d << 16 | d >> 48) ^ c;
            a = a << 32 | a >> 32;
            c += b;
            a += d;
            b = (b << 17 | b >> 47) ^ c;
            d = (d << 21 | d >> 43) ^ a;
            c = c << 32 | c >> 32;
        }
        a ^= word;
    }
    v[0] = a;
    v[1] = b;
    v[2] = c;
    v[3] = d;
}

/* SipHash-2-4 of the eight bytes of `first` followed by `data`. Each half of the result ends
   with four rounds: mixing in two zero words runs just these. */
CDP__PRIVATE void cdp__sip(const uint64_t key[2], uint64_t first, const uint8_t *data,
    uint64_t bytes, uint8_t out[CDP__MAC_CODE]) {
    static const uint8_t zeros[16] = {0};
    uint64_t v[4];
    uint8_t word[8];
    uint32_t half;
    v[0] = key[0] ^ 0x736f6d6570736575u;
    v[1] = key[1] ^ 0x646f72616e646f6du ^ 0xee;
    v[2] = key[0] ^ 0x6c7967656e657261u;
    v[3] = key[1] ^ 0x7465646279746573u;
    cdp__put_u64(word, first);
    cdp__sip_words(v, word, 1);
    cdp__sip_words(v, data, bytes / 8);
    memset(word, 0, sizeof word);
    memcpy(word, data + bytes / 8 * 8, (size_t)(bytes % 8));
    word[7] = (uint8_t)(8 + bytes);
    cdp__sip_words(v, word, 1);
    v[2] ^= 0xee;
    for (half = 0; half < 2; ++half) {
        cdp__sip_words(v, zeros, 2);
        cdp__put_u64(out + 8 * half, v[0] ^ v[1] ^ v[2] ^ v[3]);
        v[1] ^= 0xdd; /* before the second half */
    }
}

/* Writes head and code around a body, which is already in place after the head. Returns the
   length of the record. */
CDP__PRIVATE uint32_t cdp__mac_seal(
    const uint64_t key[2], uint64_t number, uint8_t *record, uint32_t body) {
    uint8_t check[CDP__MAC_CODE];
    record[0] = (uint8_t)body;
    record[1] = (uint8_t)(body >> 8);
    cdp__sip(key, number, record, 2, check);
    memcpy(record + 2, check, CDP__MAC_HEAD - 2);
    cdp__sip(key, number, record, CDP__MAC_HEAD + body, record + CDP__MAC_HEAD + body);
    return CDP__MAC_HEAD + body + CDP__MAC_CODE;
}

/* Verifies the record with this number that begins here. Returns its length, 0 if more than
   `bytes` are needed to tell, or -EBADMSG if it was changed. *whole: it is complete and valid. */
CDP__PRIVATE int32_t cdp__mac_judge(
    const uint64_t key[2], uint64_t number, const uint8_t *record, uint64_t bytes, bool *whole) {
    uint8_t code[CDP__MAC_CODE];
    uint32_t body;
    *whole = false;
    if (bytes < CDP__MAC_HEAD) return 0;
    body = record[0] | (uint32_t)record[1] << 8;
    cdp__sip(key, number, record, 2, code);
    if (!cdp__auth_equal(code, record + 2, CDP__MAC_HEAD - 2) || !body || body > CDP__MAC_BODY)
        return -EBADMSG;
    if (bytes < CDP__MAC_HEAD + body + CDP__MAC_CODE) return 0;
    cdp__sip(key, number, record, CDP__MAC_HEAD + body, code);
    if (!cdp__auth_equal(code, record + CDP__MAC_HEAD + body, CDP__MAC_CODE)) return -EBADMSG;
    *whole = true;
    return (int32_t)(CDP__MAC_HEAD + body + CDP__MAC_CODE);
}

/* Derives the keys of both directions; [0] is for what the listener receives. */
CDP__PRIVATE void cdp__mac_keys(const uint8_t key[CDP__AUTH_BYTES], uint8_t nonce[2][16],
    const uint8_t chosen[CDP__HELLO_BYTES], uint64_t keys[2][2]) {
    uint8_t data[8 + 32 + CDP__HELLO_BYTES], hash[32];
    uint32_t i;
    memset(data, 0, 8);
    data[0] = CDP__AUTH_LINK;
    data[1] = 2; /* differs from authentication proofs, which have 0 or 1 here */
    memcpy(data + 8, nonce, 32);
    memcpy(data + 40, chosen, CDP__HELLO_BYTES);
    cdp__blake2s(key, CDP__AUTH_BYTES, data, sizeof data, hash, sizeof hash);
    for (i = 0; i < 4; ++i)
        keys[i / 2][i % 2] = cdp__get_u64(hash + 8 * i);
    cdp__wipe(hash, sizeof hash);
}

/* Returns NULL when out of memory. */
CDP__PRIVATE cdp__mac *cdp__mac_open(const cdp_os *os, const uint8_t key[CDP__AUTH_BYTES],
    uint8_t nonce[2][16], const uint8_t chosen[CDP__HELLO_BYTES], bool listener) {
    cdp__mac *c = (cdp__mac *)cdp__alloc_zero(os, sizeof *c);
    uint64_t keys[2][2];
    if (!c) return NULL;
    cdp__mac_keys(key, nonce, chosen, keys);
    memcpy(c->key[!listener], keys[0], sizeof keys[0]);
    memcpy(c->key[listener], keys[1], sizeof keys[1]);
    cdp__wipe(keys, sizeof keys);
    return c;
}

CDP__PRIVATE void cdp__mac_close(const cdp_os *os, cdp__mac *c) {
    if (c) cdp__wipe(c->key, sizeof c->key);
    cdp__free(os, c);
}

/* Sends finished records. 1: all are sent; 0: the socket accepts no more now; else a negative
   errno. */
CDP__PRIVATE int64_t cdp__mac_flush(cdp__mac *c, cdp__loop *l, cdp__io *io) {
    while (c->out_at < c->out_used) {
        cdp_iov v;
        int64_t r;
        v.data = c->out + c->out_at;
        v.bytes = c->out_used - c->out_at;
        r = cdp__io_send(l, io, &v, 1);
        if (r <= 0) return r;
        c->out_at += (uint32_t)r;
    }
    c->out_at = c->out_used = 0;
    return 1;
}

/* Copies up to `room` bytes of the pieces, from byte `from` of their concatenation on. Returns
   how many. */
CDP__PRIVATE uint32_t cdp__mac_gather(
    const cdp_iov *iov, uint32_t n, uint64_t from, uint8_t *to, uint32_t room) {
    uint32_t i, moved = 0;
    for (i = 0; i < n && moved < room; ++i) {
        uint32_t bytes;
        if (from >= iov[i].bytes) {
            from -= iov[i].bytes;
            continue;
        }
        bytes = (uint32_t)cdp__min(iov[i].bytes - from, room - moved);
        memcpy(to + moved, (const uint8_t *)iov[i].data + from, bytes);
        moved += bytes;
        from = 0;
    }
    return moved;
}

/* Sends like cdp__io_send(). While a record is partly sent, its last byte is reported as not
   sent, so that the caller calls again and no reported byte is still in this buffer. The next
   call must begin with that byte, which is skipped. */
CDP__PRIVATE int64_t cdp__mac_send(
    cdp__mac *c, cdp__loop *l, cdp__io *io, const cdp_iov *iov, uint32_t n) {
    const uint32_t kept = c->out_used ? 1 : 0;
    uint64_t moved = kept;
    uint32_t body, i;
    int64_t r = cdp__mac_flush(c, l, io);
    if (r <= 0) return r;
    for (i = 0; i < CDP__MAC_RECORDS; ++i) {
        uint8_t *record = c->out + c->out_used;
        body = cdp__mac_gather(iov, n, moved, record + CDP__MAC_HEAD, CDP__MAC_BODY);
        if (!body) break;
        c->out_used += cdp__mac_seal(c->key[1], c->number[1]++, record, body);
        moved += body;
    }
    r = cdp__mac_flush(c, l, io);
    if (r < 0) return r;
    return (int64_t)(r ? moved : moved - 1);
}

/* Verifies the next record. 1: verified; 0: incomplete; else as cdp__io_recv(). */
CDP__PRIVATE int64_t cdp__mac_next(cdp__mac *c, cdp__loop *l, cdp__io *io, bool look) {
    for (;;) {
        cdp_iov v;
        int64_t r;
        bool whole;
        const int32_t bytes = cdp__mac_judge(
            c->key[0], c->number[0], c->in + c->in_at, c->in_used - c->in_at, &whole);
        if (bytes < 0) c->changed = true;
        if (c->changed) return -EBADMSG;
        if (whole) {
            ++c->number[0];
            c->body_at = c->in_at + CDP__MAC_HEAD;
            c->body_left = (uint32_t)bytes - CDP__MAC_HEAD - CDP__MAC_CODE;
            c->in_at += (uint32_t)bytes;
            return 1;
        }
        if (!look) return 0;
        c->in_used -= c->in_at;
        memmove(c->in, c->in + c->in_at, c->in_used);
        c->in_at = 0;
        v.data = c->in + c->in_used;
        v.bytes = sizeof c->in - c->in_used;
        r = cdp__io_drain(l, io, &v);
        if (r <= 0) return r;
        c->in_used += (uint32_t)r;
        look = (io->ready & CDP_IO_READ) != 0;
    }
}

/* Receives like cdp__io_drain(). The socket stays ready while received bytes are not delivered. */
CDP__PRIVATE int64_t cdp__mac_recv(cdp__mac *c, cdp__loop *l, cdp__io *io, const cdp_iov *iov) {
    uint64_t moved = 0;
    int64_t r = 1;
    while (moved < iov->bytes) {
        uint32_t bytes;
        if (!c->body_left) r = cdp__mac_next(c, l, io, !moved || (io->ready & CDP_IO_READ));
        if (r <= 0) break;
        bytes = (uint32_t)cdp__min(iov->bytes - moved, c->body_left);
        memcpy((uint8_t *)iov->data + moved, c->in + c->body_at, bytes);
        c->body_at += bytes;
        c->body_left -= bytes;
        moved += bytes;
    }
    if (!moved) return r;
    if (c->body_left || c->in_at < c->in_used || r < 0) io->ready |= CDP_IO_READ;
    return (int64_t)moved;
}

#endif /* CDP_NO_MAC */

#endif /* CDP_SRC_TCP_MAC_H */
