/* mem/sources.h - host memory, another allocator

   Knows: host memory, as a whole or by pages, and segments of another allocator. Promises:
   addresses are aligned to 512; a free is complete at once, because there are no streams. */
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
#include "../os/pages.h"
#include "sizes.h"
#include "source_api.h"

typedef struct cdp__mem_host {
    const cdp_os *os;
    cdp_allocator from; /* of cdp_mem_source_of */
    uint64_t limit, used;
} cdp__mem_host;

/* NOMEM if so many bytes more are above the limit. */
CDP__PRIVATE cdp_status cdp__mem_host_room(const cdp__mem_host *h, uint64_t bytes) {
    if (h->limit && (bytes > h->limit || h->used > h->limit - bytes))
        return cdp__fail(CDP_ERR_NOMEM, "host memory: the limit of this source is reached");
    return CDP_OK;
}

/* os->alloc aligns to 64, so this aligns the segment, and stores the address to free before it. */
CDP__PRIVATE cdp_status cdp__mem_host_reserve(void *user, uint64_t bytes, void **out) {
    cdp__mem_host *const h = (cdp__mem_host *)user;
    char *raw, *at;
    if (cdp__mem_host_room(h, bytes) != CDP_OK) return CDP_ERR_NOMEM;
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

#if CDP__PAGES
/* Addresses cost nothing where pointers have 64 bits; where the system refuses so many, fewer. */
#define CDP__MEM_HOST_RANGE (sizeof(void *) < 8 ? 256 * CDP__MEM_MIB : CDP__MEM_MIB << 20)

CDP__PRIVATE cdp_status cdp__mem_host_range_reserve(
    void *user, uint64_t least, void **at, uint64_t *bytes) {
    const cdp__mem_host *const h = (const cdp__mem_host *)user;
    const uint64_t limit = cdp__min(h->limit, CDP__MEM_HOST_RANGE / 2);
    uint64_t n =
        limit ? cdp__mem_up_to(limit + limit / 8, CDP__MEM_SMALL_SEGMENT) : CDP__MEM_HOST_RANGE;
    for (n = cdp__max(n, least);;
         n = cdp__max(least, n / 2 / CDP__MEM_SMALL_SEGMENT * CDP__MEM_SMALL_SEGMENT)) {
        *at = n <= PTRDIFF_MAX ? cdp__pages_reserve(n) : NULL;
        *bytes = n;
        if (*at) return CDP_OK;
        if (n == least) return cdp__fail_nomem("a range of addresses", least);
    }
}

CDP__PRIVATE void cdp__mem_host_range_release(void *user, void *at, uint64_t bytes) {
    (void)user;
    cdp__pages_release(at, bytes);
}

CDP__PRIVATE cdp_status cdp__mem_host_map(void *user, void *at, uint64_t bytes) {
    cdp__mem_host *const h = (cdp__mem_host *)user;
    if (cdp__mem_host_room(h, bytes) != CDP_OK) return CDP_ERR_NOMEM;
    if (!cdp__pages_commit(at, bytes)) return cdp__fail_nomem("pages of host memory", bytes);
    h->used += bytes;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__mem_host_unmap(void *user, void *at, uint64_t bytes, void *stream) {
    cdp__mem_host *const h = (cdp__mem_host *)user;
    (void)stream;
    if (!cdp__pages_take_back(at, bytes))
        return cdp__fail(CDP_ERR_IO, "host memory: the system does not take %llu bytes back",
            (unsigned long long)bytes);
    h->used -= bytes;
    return CDP_OK;
}

CDP__PRIVATE void cdp__mem_host_pages(cdp_mem_source *out) {
    out->page_bytes = CDP__MEM_SMALL_SEGMENT;
    out->range_reserve = cdp__mem_host_range_reserve;
    out->range_release = cdp__mem_host_range_release;
    out->map = cdp__mem_host_map;
    out->unmap = cdp__mem_host_unmap;
}
#else
CDP__PRIVATE void cdp__mem_host_pages(cdp_mem_source *out) {
    (void)out;
}
#endif

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
    cdp__mem_host_pages(out);
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
