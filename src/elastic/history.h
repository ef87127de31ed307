/* elastic/history.h - what happened, as JSON

   Knows: the last epochs of this process. Promises: text that JSON parsers take. */
#ifndef CDP_SRC_ELASTIC_HISTORY_H
#define CDP_SRC_ELASTIC_HISTORY_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../text/json_write.h"
#include "elastic_api.h"
#include "store.h"

CDP_API uint64_t cdp_elastic_history(cdp_elastic *e, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    uint64_t i;
    if (cdp__elastic_here(e, "cdp_elastic_history") != CDP_OK) return cdp__text_end(&t);
    cdp__elastic_lock(e);
    i = e->pasts > CDP__ELASTIC_PASTS ? e->pasts - CDP__ELASTIC_PASTS : 0;
    cdp__text_char(&t, '[');
    for (; i < e->pasts; ++i) {
        const cdp__elastic_past *p = &e->past[i % CDP__ELASTIC_PASTS];
        if (t.used > 1) cdp__text_add(&t, ",\n ");
        cdp__text_add(&t,
            "{\"epoch\": %llu, \"step\": %llu, \"size\": %u, \"rank\": %u, \"lost\": %u, "
            "\"joined\": %u, \"turn_us\": %llu, \"connect_us\": %llu, \"transfer_us\": %llu, "
            "\"cause\": ",
            (unsigned long long)p->epoch, (unsigned long long)p->step, p->size, p->rank, p->lost,
            p->joined, (unsigned long long)p->turn_ns / 1000,
            (unsigned long long)p->connect_ns / 1000, (unsigned long long)p->transfer_ns / 1000);
        cdp__json_string(&t, p->cause);
        cdp__text_add(&t, "}");
    }
    cdp__text_add(&t, "]\n");
    cdp__elastic_unlock(e);
    return cdp__text_end(&t);
}

#endif /* CDP_SRC_ELASTIC_HISTORY_H */
