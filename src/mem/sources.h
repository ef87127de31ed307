/* mem/sources.h - host memory, another allocator

   Knows: host memory, and segments of another allocator. Promises: addresses are aligned to 512; a
   free is complete at once, because there are no streams. */
#ifndef CDP_SRC_MEM_SOURCES_H
#define CDP_SRC_MEM_SOURCES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "source_api.h"

typedef struct cdp__mem_host {
    const cdp_os *os;
    cdp_allocator from; /* of cdp_mem_source_of */
    uint64_t limit, used;
} cdp__mem_host;

/* os->alloc aligns to 64, so this aligns the segment, and stores the address to free before it. */
CDP__PRIVATE cdp_status cdp__mem_host_reserve(void *user, uint64_t bytes, void **out) {
    cdp__mem_host *const h = (cdp__mem_host *)user;
    char *raw, *at;
    if (h->limit && (bytes > h->limit || h->used > h->limit - bytes))
        return cdp__fail(CDP_ERR_NOMEM, "host memory: the limit of this source is reached");
    raw = (char *)cdp__alloc(h->os, bytes + 1024);
    if (!raw) return cdp__fail_nomem("a segment of host memory", bytes);
    at = raw + 512;
    at += (512 - (uintptr_t)at % 512) % 512;
    memcpy(at - sizeof raw, &raw, sizeof raw);
    h->used += bytes;
    *out = at;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_host_release(void *user, void *at, uint64_t bytes) {
    cdp__mem_host *const h = (cdp__mem_host *)user;
    char *raw;
    memcpy(&raw, (char *)at - sizeof raw, sizeof raw);
    cdp__free(h->os, raw);
    h->used -= bytes;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_host_info(void *user, uint64_t *free_bytes, uint64_t *total) {
    const cdp__mem_host *const h = (const cdp__mem_host *)user;
    *total = h->limit;
    *free_bytes = h->limit - h->used;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_of_reserve(void *user, uint64_t bytes, void **out) {
    const cdp__mem_host *const h = (const cdp__mem_host *)user;
    cdp__error_clear(cdp__error_slot(), CDP_OK);
    *out = h->from.alloc(h->from.user, bytes, NULL, "segment");
    if (*out) return CDP_OK;
    if (cdp_last_error()->status < 0) return cdp_last_error()->status;
    return cdp__fail(
        CDP_ERR_NOMEM, "the allocator below has no %llu bytes", (unsigned long long)bytes);
}

CDP__PRIVATE cdp_status cdp__mem_of_release(void *user, void *at, uint64_t bytes) {
    const cdp__mem_host *const h = (const cdp__mem_host *)user;
    (void)bytes;
    h->from.release(h->from.user, at);
    return CDP_OK;
}

CDP__PRIVATE void cdp__mem_host_destroy(void *user) {
    cdp__free(((cdp__mem_host *)user)->os, user);
}

CDP__PRIVATE cdp__mem_host *cdp__mem_host_new(const cdp_os *os, cdp_mem_source *out) {
    const cdp_os *const o = os ? os : cdp_os_default();
    cdp__mem_host *const h = (cdp__mem_host *)cdp__alloc_zero(o, sizeof *h);
    if (!h) return NULL;
    h->os = o;
    out->user = h;
    out->destroy = cdp__mem_host_destroy;
    return h;
}

CDP_API cdp_status cdp_mem_source_host(
    const cdp_os *os, uint64_t limit_bytes, cdp_mem_source *out) {
    cdp__mem_host *h;
    if (!out) return cdp__missing("cdp_mem_source_host", "out");
    memset(out, 0, sizeof *out);
    if (cdp__os_whole(os, "cdp_mem_source_host") != CDP_OK) return CDP_ERR_INVALID;
    h = cdp__mem_host_new(os, out);
    if (!h) return cdp__fail_nomem("cdp_mem_source_host", sizeof *h);
    h->limit = limit_bytes;
    out->name = "host";
    out->reserve = cdp__mem_host_reserve;
    out->release = cdp__mem_host_release;
    if (limit_bytes) out->info = cdp__mem_host_info;
    return CDP_OK;
}

CDP_API cdp_status cdp_mem_source_of(
    const cdp_allocator *from, const cdp_os *os, cdp_mem_source *out) {
    cdp__mem_host *h;
    if (!out) return cdp__missing("cdp_mem_source_of", "out");
    memset(out, 0, sizeof *out);
    if (!from) return cdp__missing("cdp_mem_source_of", "from");
    if (!from->alloc) return cdp__missing("cdp_mem_source_of", "from.alloc");
    if (!from->release) return cdp__missing("cdp_mem_source_of", "from.release");
    if (cdp__os_whole(os, "cdp_mem_source_of") != CDP_OK) return CDP_ERR_INVALID;
    h = cdp__mem_host_new(os, out);
    if (!h) return cdp__fail_nomem("cdp_mem_source_of", sizeof *h);
    h->from = *from;
    out->name = "another allocator";
    out->reserve = cdp__mem_of_reserve;
    out->release = cdp__mem_of_release;
    return CDP_OK;
}

#endif /* CDP_SRC_MEM_SOURCES_H */
