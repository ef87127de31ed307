/* dtensor/kit.h - small helpers

   Knows: numbers, memory, and which objects were destroyed; nothing of tensors. Promises: memory is
   zeroed. */
#ifndef CDP_SRC_DTENSOR_KIT_H
#define CDP_SRC_DTENSOR_KIT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "mesh_api.h"

#include <string.h>

#define CDP__DT CDP__PRIVATE

#define cdp__dt_missing(call, argument) \
    cdp_error_set(CDP_ERR_INVALID, -1, 0, CDP__MISSING, (call), (argument))

typedef struct cdp__dt_argument {
    const char *name;
    const void *pointer;
} cdp__dt_argument;

/* Refuses an object of this header that is NULL, or was destroyed; `what` is its kind. */
CDP__DT cdp_status cdp__dt_alive(const void *object, const char *call, const char *what) {
    if (!object) return cdp__dt_missing(call, what);
    if (!cdp__ended(object)) return CDP_OK;
    return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: this %s was destroyed", call, what);
}

/* Where a mesh that was destroyed is remembered: inside of it. Plans, edges and layers may outlive
   their mesh, whose address may be that of another object then. NULL for NULL. */
CDP__DT const void *cdp__dt_mesh_mark(const void *mesh) {
    return mesh ? (const char *)mesh + 16 : NULL;
}

CDP__DT bool cdp__dt_mesh_ended(const void *mesh) {
    return cdp__ended(cdp__dt_mesh_mark(mesh));
}

/* Refuses the first argument of `list` that is NULL, by its name. */
CDP__DT cdp_status cdp__dt_all_given(
    const char *call, const cdp__dt_argument *list, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
        if (!list[i].pointer) return cdp__dt_missing(call, list[i].name);
    return CDP_OK;
}

#define CDP__DT_NONE 0xffffffffu
#define CDP__DT_DIMS (CDP_TENSOR_DIMS + 1u) /* of a region: one more for kept PARTIAL */

CDP__DT double cdp__dt_or(double value, double fallback) {
    return value > 0 ? value : fallback;
}

/* a * b; or 0 with *ok = false if the product has more than 63 bits. */
CDP__DT uint64_t cdp__dt_times(uint64_t a, uint64_t b, bool *ok) {
    if (a && b > (UINT64_MAX >> 1) / a) {
        *ok = false;
        return 0;
    }
    return a * b;
}

/* FNV-1a over the bytes of 64-bit numbers, the same on machines of either byte order. */
CDP__DT uint64_t cdp__dt_hash(const uint64_t *words, uint64_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n; ++i)
        for (uint32_t byte = 0; byte < 8; ++byte)
            h = (h ^ (words[i] >> 8 * byte & 0xff)) * 0x100000001b3u;
    return h;
}

CDP__DT void *cdp__dt_alloc(const cdp_os *os, uint64_t bytes) {
    void *p = os->alloc(os->user, bytes ? bytes : 1);
    if (p) memset(p, 0, (size_t)bytes);
    return p;
}

CDP__DT void cdp__dt_free(const cdp_os *os, void *p) {
    if (p) os->release(os->user, p);
}

CDP__DT cdp_status cdp__dt_nomem(const char *what, uint64_t bytes) {
    return cdp_error_set(CDP_ERR_NOMEM, -1, 0, "out of memory: %s needs %llu bytes", what,
        (unsigned long long)bytes);
}

/* Memory that peers read in place; NULL: none, and the last error says why. */
CDP__DT void *cdp__dt_group_memory(cdp_group *g, uint64_t bytes) {
    void *p;
    return cdp_group_alloc(g, bytes, &p) == CDP_OK ? p : NULL;
}

#endif /* CDP_SRC_DTENSOR_KIT_H */
