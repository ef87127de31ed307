/* mem/cuda_pages.h - device memory page by page

   Knows: the virtual memory functions of the CUDA driver, loaded with the first source. Promises: a
   driver or a device without them gives a source without pages; pages that cannot all be mapped
   leave none behind; pages are unmapped after the work of their stream. */
#ifndef CDP_SRC_MEM_CUDA_PAGES_H
#define CDP_SRC_MEM_CUDA_PAGES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../os/libraries.h"
#include "source_api.h"
#include "cuda.h"

/* CUmemAllocationProp: memory of one device, without a handle for other processes. */
typedef struct cdp__mem_cuda_prop {
    int type, handle_types, location_type, device;
    void *windows;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} cdp__mem_cuda_prop;

/* CUmemAccessDesc */
typedef struct cdp__mem_cuda_access {
    int location_type, device, flags;
} cdp__mem_cuda_access;

enum {
    CDP__MEM_CUDA_PINNED = 1,
    CDP__MEM_CUDA_ON_DEVICE = 1,
    CDP__MEM_CUDA_READ_WRITE = 3,
    CDP__MEM_CUDA_HAS_PAGES = 102, /* attributes of devices */
    CDP__MEM_CUDA_HAS_RDMA = 110
};

/* clang-format off */
#define CDP__MEM_DRIVER(X) \
    X(cuDeviceGetAttribute, (int *, int, int)) \
    X(cuMemGetAllocationGranularity, (size_t *, const cdp__mem_cuda_prop *, int)) \
    X(cuMemAddressReserve, (unsigned long long *, size_t, size_t, unsigned long long, \
        unsigned long long)) \
    X(cuMemAddressFree, (unsigned long long, size_t)) \
    X(cuMemCreate, (unsigned long long *, size_t, const cdp__mem_cuda_prop *, \
        unsigned long long)) \
    X(cuMemRelease, (unsigned long long)) \
    X(cuMemMap, (unsigned long long, size_t, size_t, unsigned long long, unsigned long long)) \
    X(cuMemSetAccess, (unsigned long long, size_t, const cdp__mem_cuda_access *, size_t)) \
    X(cuMemUnmap, (unsigned long long, size_t))
/* clang-format on */
#define CDP__MEM_DRIVER_MEMBER(name, parameters) int(*name) parameters;
#define CDP__MEM_DRIVER_NAME(name, parameters) #name,

typedef struct cdp__mem_driver {
    CDP__MEM_DRIVER(CDP__MEM_DRIVER_MEMBER)
} cdp__mem_driver;

typedef struct cdp__mem_cuda_paged { /* a source with pages */
    cdp__mem_cuda cuda;              /* first, because the other functions get it */
    cdp__mem_driver f;
    cdp__mem_cuda_prop prop;
    uint64_t page;
} cdp__mem_cuda_paged;

/* As many addresses as the device has bytes, and an eighth more for holes. */
CDP__PRIVATE cdp_status cdp__mem_cuda_range_reserve(
    void *user, uint64_t least, void **at, uint64_t *bytes) {
    const cdp__mem_cuda_paged *const u = (const cdp__mem_cuda_paged *)user;
    unsigned long long address = 0;
    size_t left = 0, all = 0;
    cdp__mem_cuda_turn t;
    int code;
    cdp__mem_cuda_enter(&u->cuda, &t);
    code = u->cuda.f.cudaMemGetInfo(&left, &all); /* makes the context, too */
    if (code) return cdp__mem_cuda_done(&u->cuda, &t, "cudaMemGetInfo", code);
    *bytes = cdp__max(least, ((uint64_t)all + all / 8 + u->page - 1) / u->page * u->page);
    code = u->f.cuMemAddressReserve(&address, (size_t)*bytes, 0, 0, 0);
    *at = (void *)(uintptr_t)address;
    return cdp__mem_cuda_done(&u->cuda, &t, "cuMemAddressReserve", code);
}

CDP__PRIVATE void cdp__mem_cuda_range_release(void *user, void *at, uint64_t bytes) {
    const cdp__mem_cuda_paged *const u = (const cdp__mem_cuda_paged *)user;
    cdp__mem_cuda_turn t;
    cdp__mem_cuda_enter(&u->cuda, &t);
    cdp__mem_cuda_leave(&u->cuda, &t, u->f.cuMemAddressFree((uintptr_t)at, (size_t)bytes));
}

/* Gives one page memory, which lives as long as it is mapped: nobody needs the handle. */
CDP__PRIVATE int cdp__mem_cuda_page(
    const cdp__mem_cuda_paged *u, unsigned long long at, const char **call) {
    unsigned long long handle;
    int code = u->f.cuMemCreate(&handle, (size_t)u->page, &u->prop, 0);
    *call = "cuMemCreate";
    if (code) return code;
    *call = "cuMemMap";
    code = u->f.cuMemMap(at, (size_t)u->page, 0, handle, 0);
    (void)u->f.cuMemRelease(handle);
    return code;
}

CDP__PRIVATE cdp_status cdp__mem_cuda_map(void *user, void *at, uint64_t bytes) {
    const cdp__mem_cuda_paged *const u = (const cdp__mem_cuda_paged *)user;
    const unsigned long long start = (uintptr_t)at;
    cdp__mem_cuda_access access;
    const char *call = "";
    cdp__mem_cuda_turn t;
    uint64_t done = 0;
    int code = 0;
    access.location_type = CDP__MEM_CUDA_ON_DEVICE;
    access.device = u->cuda.device;
    access.flags = CDP__MEM_CUDA_READ_WRITE;
    cdp__mem_cuda_enter(&u->cuda, &t);
    while (!code && done < bytes) {
        code = cdp__mem_cuda_page(u, start + done, &call);
        if (!code) done += u->page;
    }
    if (!code) {
        call = "cuMemSetAccess";
        code = u->f.cuMemSetAccess(start, (size_t)bytes, &access, 1);
    }
    if (code && done) (void)u->f.cuMemUnmap(start, (size_t)done);
    return cdp__mem_cuda_done(&u->cuda, &t, call, code);
}

/* cudaFree() waits for the whole device; here only the stream that the pages belong to may still
   use them. */
CDP__PRIVATE cdp_status cdp__mem_cuda_unmap(void *user, void *at, uint64_t bytes, void *stream) {
    const cdp__mem_cuda_paged *const u = (const cdp__mem_cuda_paged *)user;
    cdp__mem_cuda_turn t;
    int code;
    cdp__mem_cuda_enter(&u->cuda, &t);
    code = u->cuda.f.cudaStreamSynchronize(stream);
    if (code) return cdp__mem_cuda_done(&u->cuda, &t, "cudaStreamSynchronize", code);
    code = u->f.cuMemUnmap((uintptr_t)at, (size_t)bytes);
    return cdp__mem_cuda_done(&u->cuda, &t, "cuMemUnmap", code);
}

/* Loads the driver, which then stays loaded. False: it has not all functions. */
CDP__PRIVATE bool cdp__mem_driver_load(cdp__mem_driver *d) {
    static const char *const names[] = {CDP__MEM_DRIVER(CDP__MEM_DRIVER_NAME)};
    void *lib = cdp__library_open("libcuda.so.1");
    uint32_t i;
    if (!lib) lib = cdp__library_open("nvcuda.dll");
    for (i = 0; lib && i < sizeof names / sizeof *names; ++i) {
        void *const function = cdp__library_find(lib, names[i]);
        if (!function) return false;
        memcpy((char *)d + i * sizeof function, &function, sizeof function);
    }
    return lib != NULL;
}
#undef CDP__MEM_DRIVER_MEMBER
#undef CDP__MEM_DRIVER_NAME

/* Adds the functions of pages to a source, if driver and device have them. */
CDP__PRIVATE void cdp__mem_cuda_pages(cdp__mem_cuda_paged *u, cdp_mem_source *out) {
    cdp__mem_cuda_prop *const p = &u->prop;
    cdp__mem_cuda_turn t;
    size_t page = 0;
    int code, has = 0, rdma = 0;
    if (!cdp__mem_driver_load(&u->f)) return;
    cdp__mem_cuda_enter(&u->cuda, &t);
    p->type = CDP__MEM_CUDA_PINNED;
    p->location_type = CDP__MEM_CUDA_ON_DEVICE;
    p->device = u->cuda.device;
    code = u->f.cuDeviceGetAttribute(&has, CDP__MEM_CUDA_HAS_PAGES, u->cuda.device);
    if (!code && !u->f.cuDeviceGetAttribute(&rdma, CDP__MEM_CUDA_HAS_RDMA, u->cuda.device))
        p->rdma = rdma != 0;
    if (!code && has) code = u->f.cuMemGetAllocationGranularity(&page, p, 0);
    cdp__mem_cuda_leave(&u->cuda, &t, code);
    if (code || !has || page < 4096 || page % 512) return;
    u->page = out->page_bytes = page;
    out->range_reserve = cdp__mem_cuda_range_reserve;
    out->range_release = cdp__mem_cuda_range_release;
    out->map = cdp__mem_cuda_map;
    out->unmap = cdp__mem_cuda_unmap;
}

CDP_API cdp_status cdp_mem_source_cuda(const char *cudart, cdp_mem_source *out) {
    cdp__mem_cuda_paged *u;
    cdp_status st;
    if (!out) return cdp__missing("cdp_mem_source_cuda", "out");
    memset(out, 0, sizeof *out);
    u = (cdp__mem_cuda_paged *)cdp__alloc_zero(cdp_os_default(), sizeof *u);
    if (!u) return cdp__fail_nomem("cdp_mem_source_cuda", sizeof *u);
    st = cdp__mem_cuda_load(&u->cuda, cudart);
    if (st == CDP_OK) st = cdp__mem_cuda_device(&u->cuda);
    if (st != CDP_OK) {
        cdp__mem_cuda_destroy(u);
        return st;
    }
    cdp__mem_cuda_source(&u->cuda, out);
    cdp__mem_cuda_pages(u, out);
    return CDP_OK;
}

#endif /* CDP_SRC_MEM_CUDA_PAGES_H */
