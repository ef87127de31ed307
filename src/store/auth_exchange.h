/* store/auth_exchange.h - runs an authentication exchange on a socket

   Knows: one socket and the state of its exchange. Promises: it never blocks, and reads nothing
   beyond the exchange. */
#ifndef CDP_SRC_STORE_AUTH_EXCHANGE_H
#define CDP_SRC_STORE_AUTH_EXCHANGE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/loop.h"
#include "auth.h"

#ifndef CDP_NO_JOB_KEY

/* `key` NULL: refuses every peer with `refusal`, and needs no nonce. The caller owns the memory of
   `a`. */
CDP__PRIVATE void cdp__auth_open_with(cdp__auth *a, const uint8_t *nonce, const uint8_t *key,
    bool listener, uint32_t purpose, cdp__auth_refusal refusal) {
    CDP_ASSERT(nonce || !key);
    memset(a, 0, sizeof *a);
    if (nonce) memcpy(a->nonce[listener], nonce, sizeof a->nonce[listener]);
    a->key = key;
    a->listener = listener;
    a->refusal = (uint8_t)refusal;
    a->purpose = purpose;
    if (key) cdp__auth_begin(a);
}

/* Errors: those of os->random, because authentication needs random bytes. */
CDP__PRIVATE CDP__COLD cdp_status cdp__auth_open(cdp__auth *a, const cdp_os *os, const uint8_t *key,
    bool listener, uint32_t purpose, cdp__auth_refusal refusal) {
    uint8_t nonce[16];
    const cdp_status st = key ? os->random(os->user, nonce, sizeof nonce) : CDP_OK;
    if (st == CDP_OK) cdp__auth_open_with(a, key ? nonce : NULL, key, listener, purpose, refusal);
    return st;
}

/* Advances the exchange without waiting. Returns PENDING, OK, MISMATCH (refused; a->refusal) or
   PEER_LOST (*result: as of recv). Reads no byte beyond the exchange. */
CDP__PRIVATE CDP__COLD cdp_status cdp__auth_pump(
    cdp__auth *a, cdp__loop *l, cdp__io *io, int64_t *result) {
    cdp_status st = a->done ? CDP_OK : CDP_PENDING;
    *result = 1;
    for (;;) {
        cdp_iov v;
        while (a->left) {
            v.data = a->out + CDP__AUTH_BYTES - a->left;
            v.bytes = a->left;
            *result = cdp__io_send(l, io, &v, 1);
            if (*result <= 0) break;
            a->left -= (uint32_t)*result;
        }
        /* the refusal is dropped if the socket has no room for it */
        if (st == CDP_ERR_MISMATCH) return st;
        if (*result <= 0 || st == CDP_OK) break;
        v.data = a->in + a->got;
        v.bytes = CDP__AUTH_BYTES - a->got;
        *result = cdp__io_recv(l, io, &v, 1);
        if (*result <= 0) break;
        a->got += (uint32_t)*result;
        st = cdp__auth_read(a);
    }
    if (*result < 0 || (*result == 0 && io->broken)) return CDP_ERR_PEER_LOST;
    return a->left ? CDP_PENDING : st;
}

/* The connector has sent all that it says, so it may send what follows the exchange: the listener
   reads that when it has found the proof right. */
CDP__PRIVATE bool cdp__auth_said(const cdp__auth *a) {
    return a->step && !a->left;
}

#endif /* CDP_NO_JOB_KEY */

/* Reads what a refused peer has sent: closing a socket with unread input would make the system drop
   the refusal. */
CDP__PRIVATE void cdp__auth_drain(cdp__loop *l, cdp__io *io) {
    uint8_t sink[256];
    cdp_iov v;
    uint32_t i;
    v.data = sink;
    v.bytes = sizeof sink;
    for (i = 0; i < 16 && io->fd >= 0 && l->os->net.recv_iov(l->os->user, io->fd, &v, 1) > 0; ++i) {
    }
}

#endif /* CDP_SRC_STORE_AUTH_EXCHANGE_H */
