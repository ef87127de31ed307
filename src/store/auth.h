/* store/auth.h - proofs that a peer has the job's key (pure)

   Knows: the job's key, nonces, the messages of the exchange. Promises: the key never leaves the
   process; proofs are compared in constant time. */
#ifndef CDP_SRC_STORE_AUTH_H
#define CDP_SRC_STORE_AUTH_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "wire.h"

/* BLAKE2s (RFC 7693) instead of HMAC with SHA-256, because it has a keyed mode and takes half
   the code. */
CDP__PRIVATE void cdp__blake2s_mix(
    uint32_t *v, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t x, uint32_t y) {
    uint32_t i, w;
    for (i = 0; i < 2; ++i) {
        v[a] += v[b] + (i ? y : x);
        w = v[d] ^ v[a];
        v[d] = i ? w >> 8 | w << 24 : w >> 16 | w << 16;
        v[c] += v[d];
        w = v[b] ^ v[c];
        v[b] = i ? w >> 7 | w << 25 : w >> 12 | w << 20;
    }
}

static const uint32_t cdp__blake2s_iv[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
    0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};

/* `total`: number of bytes up to the end of this 64-byte block. */
CDP__PRIVATE void cdp__blake2s_block(uint32_t *h, const uint8_t *block, uint64_t total, bool last) {
    static const uint64_t order[10] = {/* the order of the words, one digit per word */
        0x0123456789abcdefu, 0xea489fd61c02b753u, 0xb8c052fdae367194u, 0x7931dcbe265a40f8u,
        0x905724afe1bc683du, 0x2c6a0b834d75fe19u, 0xc51fed4a0763928bu, 0xdb7ec13950f4862au,
        0x6fe9b308c2d714a5u, 0xa2847615fb9e3cd0u};
    uint32_t v[16], m[16], i, r;
    for (i = 0; i < 16; ++i)
        m[i] = cdp__get_u32(block + 4 * i);
    for (i = 0; i < 8; ++i) {
        v[i] = h[i];
        v[i + 8] = cdp__blake2s_iv[i];
    }
    v[12] ^= (uint32_t)total;
    v[13] ^= (uint32_t)(total >> 32);
    if (last) v[14] = ~v[14];
    for (r = 0; r < 10; ++r)
        for (i = 0; i < 8; ++i) { /* four columns, then four diagonals */
            const uint32_t d = i / 4, k = i % 4;
            cdp__blake2s_mix(v, k, 4 + (k + d) % 4, 8 + (k + 2 * d) % 4, 12 + (k + 3 * d) % 4,
                m[order[r] >> (60 - 8 * i) & 15], m[order[r] >> (56 - 8 * i) & 15]);
        }
    for (i = 0; i < 8; ++i)
        h[i] ^= v[i] ^ v[i + 8];
}

/* Overwrites secrets in memory; `volatile` keeps the compiler from removing it. */
CDP__PRIVATE void cdp__wipe(void *p, uint64_t bytes) {
    volatile uint8_t *at = (volatile uint8_t *)p;
    while (bytes--)
        *at++ = 0;
}

/* Computes `out_bytes` (1 to 32) bytes of a hash, keyed if there is a key of 1 to 32 bytes. */
CDP__PRIVATE void cdp__blake2s(const void *key, uint32_t key_bytes, const void *data,
    uint64_t bytes, uint8_t *out, uint32_t out_bytes) {
    const uint8_t *p = (const uint8_t *)data;
    uint8_t block[64];
    uint32_t h[8], i;
    uint64_t total = 0;
    memcpy(h, cdp__blake2s_iv, sizeof h);
    h[0] ^= 0x01010000u ^ key_bytes << 8 ^ out_bytes;
    if (key_bytes) {
        memset(block, 0, sizeof block);
        memcpy(block, key, key_bytes);
        total = sizeof block;
        cdp__blake2s_block(h, block, total, bytes == 0);
    }
    while (bytes || !total) {
        const uint64_t n = cdp__min(bytes, sizeof block);
        memset(block, 0, sizeof block);
        if (n) memcpy(block, p, (size_t)n);
        total += n;
        bytes -= n;
        cdp__blake2s_block(h, block, total, bytes == 0);
        if (!bytes) break;
        p += n;
    }
    for (i = 0; i < out_bytes; ++i)
        out[i] = (uint8_t)(h[i / 4] >> 8 * (i % 4));
    cdp__wipe(block, sizeof block); /* it may have contained a key */
}

/* If there is a key, two processes first authenticate each other, on connections to the store and
   between ranks, with messages of 32 bytes:

       connector -> listener   "cdp-key1"  purpose (8 bytes)  nonce (16)
       listener -> connector   "cdp-key2"  zeros (8)          nonce (16)
       connector -> listener   "cdp-key3"  proof (24)
       listener -> connector   "cdp-key4"  proof (24)
                               or, instead of its answers, "cdp-no: "  reason (1)  zeros

   The purpose keeps a store from posing as a rank. A proof is the keyed hash of purpose, role and
   both nonces, so it cannot be replayed, or reflected to its sender. The connector proves its key
   first, so that a stranger learns nothing from a listener. Later bytes are not encrypted. */
#define CDP__AUTH_BYTES 32u
#define CDP__AUTH_STORE 1u /* values of `purpose` */
#define CDP__AUTH_LINK 2u

typedef enum cdp__auth_refusal {
    CDP__AUTH_NO_ANSWER,
    CDP__AUTH_NEEDED,
    CDP__AUTH_NOT_NEEDED,
    CDP__AUTH_WRONG,
    CDP__AUTH_REMOTE,
    CDP__AUTH_REFUSALS
} cdp__auth_refusal;

/* The reason as one sentence that is correct on both sides. */
CDP__PRIVATE const char *cdp__auth_text(uint32_t refusal) {
    static const char *const texts[CDP__AUTH_REFUSALS] = {
        "the other side does not support job keys (PyTorch's stores do not); use no key, or a "
        "store of "
        "cdp",
        "a job key is needed (set CDP_JOB_KEY, or job_key, to the same secret on both sides; "
        "clients of PyTorch have none and are refused)",
        "the connecting side has a job key, the other has none (set CDP_JOB_KEY, or job_key, to "
        "the same secret on both sides)",
        "the job keys differ (set CDP_JOB_KEY, or job_key, to the same secret on both sides)",
        "without a job key only processes of the same machine are let in (set the same "
        "CDP_JOB_KEY, or job_key, on both sides; or trust_network, on a network that you trust)",
    };
    return texts[refusal < (uint32_t)CDP__AUTH_REFUSALS ? refusal : 0];
}

typedef struct cdp__auth {
    /* the key, in memory of the caller; NULL: none, and every peer is refused for the reason
       `refusal` */
    const uint8_t *key;
    bool listener, done;
    uint8_t step, refusal;
    uint32_t also;               /* listener: a second accepted purpose */
    uint32_t purpose, got, left; /* left: bytes of `out` still to be sent */
    uint8_t nonce[2][16];        /* of the connector, of the listener */
    uint8_t in[CDP__AUTH_BYTES], out[CDP__AUTH_BYTES];
} cdp__auth;

/* Keys shorter than this cause a warning. */
#define CDP__AUTH_SHORT_KEY 16u

/* The stored form of a key: the hash of its text. */
CDP__PRIVATE void cdp__auth_key(const char *text, uint8_t out[CDP__AUTH_BYTES]) {
    cdp__blake2s(NULL, 0, text, strlen(text), out, CDP__AUTH_BYTES);
}

/* Reads the job key of a desc. *keyed: there is one, and `out` is set. */
CDP__PRIVATE cdp_status cdp__auth_key_read(
    const char *job_key, uint8_t out[CDP__AUTH_BYTES], bool *keyed) {
    *keyed = job_key && job_key[0];
#ifdef CDP_NO_JOB_KEY
    (void)out;
    return *keyed ? cdp__fail(CDP_ERR_UNSUPPORTED,
               "job_key is set, but this program was built with CDP_NO_JOB_KEY")
                  : CDP_OK;
#else
    if (*keyed) cdp__auth_key(job_key, out);
    return CDP_OK;
#endif
}

CDP__PRIVATE void cdp__auth_proof(const cdp__auth *a, bool of_listener, uint8_t out[24]) {
    uint8_t data[8 + 32];
    memset(data, 0, 8);
    data[0] = (uint8_t)a->purpose;
    data[1] = of_listener;
    memcpy(data + 8, a->nonce, 32);
    cdp__blake2s(a->key, CDP__AUTH_BYTES, data, sizeof data, out, 24);
}

/* Compares in constant time. */
CDP__PRIVATE bool cdp__auth_equal(const uint8_t *a, const uint8_t *b, uint32_t n) {
    volatile uint8_t differ = 0;
    uint32_t i;
    for (i = 0; i < n; ++i)
        differ = (uint8_t)(differ | (a[i] ^ b[i]));
    return !differ;
}

CDP__PRIVATE void cdp__auth_put(cdp__auth *a, const char *tag) {
    memset(a->out, 0, sizeof a->out);
    memcpy(a->out, tag, 8);
    a->left = CDP__AUTH_BYTES;
    a->got = 0;
}

/* Requires this end's nonce. The connector sends the first message. */
CDP__PRIVATE void cdp__auth_begin(cdp__auth *a) {
    if (a->listener) return;
    cdp__auth_put(a, "cdp-key1");
    a->out[8] = (uint8_t)a->purpose;
    memcpy(a->out + 16, a->nonce[0], 16);
}

/* Sends the reason only to a peer that may understand it: one whose first byte begins this exchange
   or a greeting of the store. */
CDP__PRIVATE cdp_status cdp__auth_refuse(cdp__auth *a, cdp__auth_refusal refusal) {
    const bool answer = a->listener && (a->in[0] == 'c' || a->in[0] == CDP__OP_VALIDATE);
    cdp__auth_put(a, "cdp-no: ");
    a->out[8] = a->refusal = (uint8_t)refusal;
    a->left = answer ? CDP__AUTH_BYTES : 0;
    return CDP_ERR_MISMATCH;
}

/* Reads the a->got bytes in `in`. PENDING: more messages follow; OK: both sides are authenticated
   once `out` is sent; MISMATCH: a->refusal is the reason. */
CDP__PRIVATE cdp_status cdp__auth_read(cdp__auth *a) {
    static const char *const tags[2][2] = {{"cdp-key2", "cdp-key4"}, {"cdp-key1", "cdp-key3"}};
    const uint64_t n = cdp__min(a->got, 8);
    uint8_t proof[24];
    if (!a->got) return CDP_PENDING;
    if (!a->key) return cdp__auth_refuse(a, (cdp__auth_refusal)a->refusal);
    if (memcmp(a->in, tags[a->listener][a->step], (size_t)n) != 0) {
        const bool no = !a->listener && memcmp(a->in, "cdp-no: ", (size_t)n) == 0;
        if (no && n == 8 && a->got > 8)
            return cdp__auth_refuse(
                a, (cdp__auth_refusal)(a->in[8] < (uint8_t)CDP__AUTH_REFUSALS ? a->in[8] : 0));
        if (no) return CDP_PENDING;
        return cdp__auth_refuse(a, a->listener ? CDP__AUTH_NEEDED : CDP__AUTH_NO_ANSWER);
    }
    if (a->got < CDP__AUTH_BYTES) return CDP_PENDING;
    if (a->step == 0) {
        if (a->listener && a->also && a->in[8] == a->also) a->purpose = a->also;
        if (a->listener && a->in[8] != a->purpose) return cdp__auth_refuse(a, CDP__AUTH_WRONG);
        memcpy(a->nonce[!a->listener], a->in + 16, 16);
        ++a->step;
        cdp__auth_put(a, a->listener ? "cdp-key2" : "cdp-key3");
        if (a->listener)
            memcpy(a->out + 16, a->nonce[1], 16);
        else
            cdp__auth_proof(a, false, a->out + 8);
        return CDP_PENDING;
    }
    cdp__auth_proof(a, !a->listener, proof);
    if (!cdp__auth_equal(proof, a->in + 8, sizeof proof))
        return cdp__auth_refuse(a, CDP__AUTH_WRONG);
    a->done = true;
    if (a->listener) cdp__auth_put(a, "cdp-key4");
    if (a->listener) cdp__auth_proof(a, true, a->out + 8);
    return CDP_OK;
}

#endif /* CDP_SRC_STORE_AUTH_H */
