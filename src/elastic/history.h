/* elastic/history.h - what happened, as JSON

   Knows: the last epochs of this process. Promises: text that JSON parsers take. */
#ifndef CDP_SRC_ELASTIC_HISTORY_H
#define CDP_SRC_ELASTIC_HISTORY_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "elastic_api.h"
#include "store.h"

CDP__PRIVATE void cdp__elastic_json(cdp__text *t, const char *p) {
    for (; *p; ++p)
        if ((unsigned char)*p >= ' ' && *p != '"' && *p != '\\')
            cdp__text_char(t, *p);
        else
            cdp__text_char(t, '\'');
}

CDP_API uint64_t cdp_elastic_history(cdp_elastic *e, char *out, uint64_t size) {
    cdp__text t = {out, size, 0};
    uint64_t i;
    if (!e || !out || !size) return 0;
    cdp__elastic_lock(e);
    i = e->pasts > CDP__ELASTIC_PASTS ? e->pasts - CDP__ELASTIC_PASTS : 0;
    cdp__text_char(&t, '[');
    for (; i < e->pasts; ++i) {
        const cdp__elastic_past *p = &e->past[i % CDP__ELASTIC_PASTS];
        if (t.used > 1) cdp__text_add(&t, ",\n ");
        cdp__text_add(&t,
            "{\"epoch\": %llu, \"step\": %llu, \"size\": %u, \"rank\": %u, \"lost\": %u, "
            "\"joined\": %u, \"turn_us\": %llu, \"connect_us\": %llu, \"transfer_us\": %llu, "
            "\"cause\": \"",
            (unsigned long long)p->epoch, (unsigned long long)p->step, p->size, p->rank, p->lost,
            p->joined, (unsigned long long)p->turn_ns / 1000,
            (unsigned long long)p->connect_ns / 1000, (unsigned long long)p->transfer_ns / 1000);
        cdp__elastic_json(&t, p->cause);
        cdp__text_add(&t, "\"}");
    }
    cdp__text_add(&t, "]\n");
    cdp__elastic_unlock(e);
    return t.used;
}

#endif /* CDP_SRC_ELASTIC_HISTORY_H */
