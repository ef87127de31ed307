/* mem/pickle.h - values as opcodes (pure)

   Knows: the bytes of each value in a pickle of protocol 2. Promises: uses only opcodes that
   PyTorch's viewer supports. Strings and lists of frames are memoized; dicts never are, because
   the viewer writes into them. Lists grow by at most 1,000 items at a time, because the viewer
   passes these as arguments of one call. */
#ifndef CDP_SRC_MEM_PICKLE_H
#define CDP_SRC_MEM_PICKLE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "texts.h"
#include "writer.h"

#define CDP__MEM_NUMBER_MAX (1ull << 53) /* the viewer rounds larger numbers */

CDP__PRIVATE void cdp__mem_pickle_number(cdp__mem_output *w, int64_t v) {
    uint32_t n = 5;
    if (v >= 0 && v < 256) {
        cdp__mem_put(w, 'K');
        cdp__mem_put(w, (uint32_t)v);
    } else if (v >= 0 && v < 65536) {
        cdp__mem_put(w, 'M');
        cdp__mem_put_number(w, (uint64_t)v, 2);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
        cdp__mem_put(w, 'J');
        cdp__mem_put_number(w, (uint64_t)v, 4);
    } else {
        while (n < 8 && (v >= 1ll << (8 * n - 1) || v < -(1ll << (8 * n - 1))))
            ++n;
        cdp__mem_put(w, 0x8a);
        cdp__mem_put(w, n);
        cdp__mem_put_number(w, (uint64_t)v, n);
    }
}

CDP__PRIVATE void cdp__mem_pickle_real(cdp__mem_output *w, double v) {
    uint64_t bits;
    uint32_t i;
    memcpy(&bits, &v, sizeof bits);
    cdp__mem_put(w, 'G');
    for (i = 0; i < 8; ++i)
        cdp__mem_put(w, (uint32_t)(bits >> (56 - 8 * i) & 0xff));
}

/* Memoizes the value on the stack. Returns its number + 1. */
CDP__PRIVATE uint32_t cdp__mem_pickle_keep(cdp__mem_output *w) {
    const uint32_t n = w->memos++;
    cdp__mem_put(w, n < 256 ? 'q' : 'r');
    cdp__mem_put_number(w, n, n < 256 ? 1 : 4);
    return n + 1;
}

CDP__PRIVATE void cdp__mem_pickle_again(cdp__mem_output *w, uint32_t memo) {
    const uint32_t n = memo - 1;
    cdp__mem_put(w, n < 256 ? 'h' : 'j');
    cdp__mem_put_number(w, n, n < 256 ? 1 : 4);
}

/* Writes a text of the shot, memoized. */
CDP__PRIVATE void cdp__mem_pickle_text(cdp__mem_output *w, const char *text) {
    uint32_t *const memo = &w->text_memo[cdp__mem_text_number(text)];
    if (*memo) {
        cdp__mem_pickle_again(w, *memo);
        return;
    }
    const uint64_t bytes = strlen(text);
    cdp__mem_put(w, 'X');
    cdp__mem_put_number(w, bytes, 4);
    cdp__mem_put_utf8(w, text, bytes);
    *memo = cdp__mem_pickle_keep(w);
}

#endif /* CDP_SRC_MEM_PICKLE_H */
