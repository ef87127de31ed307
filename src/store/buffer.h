/* store/buffer.h - bytes to be sent or parsed

   Knows: bytes to be sent or parsed. Promises: memory grows to a limit and is reused. */
#ifndef CDP_SRC_STORE_BUFFER_H
#define CDP_SRC_STORE_BUFFER_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"

typedef struct cdp__fifo {
    uint8_t *data;
    uint64_t at, used, room; /* data[at .. used) is still to be handled */
} cdp__fifo;

CDP__PRIVATE uint64_t cdp__fifo_left(const cdp__fifo *b) {
    return b->used - b->at;
}

CDP__PRIVATE void cdp__fifo_free(const cdp_os *os, cdp__fifo *b) {
    cdp__free(os, b->data);
    memset(b, 0, sizeof *b);
}

/* Makes room for `more` bytes at the end. Existing bytes may move. */
CDP__PRIVATE bool cdp__fifo_reserve(const cdp_os *os, cdp__fifo *b, uint64_t more) {
    const uint64_t left = cdp__fifo_left(b), room = cdp__max(64, cdp__max(left + more, 2 * left));
    uint8_t *p;
    if (b->room - b->used >= more) return true;
    /* moving costs no more than the bytes already handled */
    if (b->at && b->room - left >= more && b->at >= left) {
        memcpy(b->data, b->data + b->at, (size_t)left);
    } else {
        p = (uint8_t *)cdp__alloc(os, room);
        if (!p) return false;
        if (left) memcpy(p, b->data + b->at, (size_t)left);
        cdp__free(os, b->data);
        b->data = p;
        b->room = room;
    }
    b->at = 0;
    b->used = left;
    return true;
}

#endif /* CDP_SRC_STORE_BUFFER_H */
