/* standin_driver.c - the CUDA driver's part of the stand-in (standin.h says what that is):
   libcuda.so.1, only what runs the kernels that the stand-in's NVRTC made, and virtual memory */
#define _GNU_SOURCE
#include "standin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct module {
    void *library;
    int refs; /* its owner, and what is in streams */
} module;
typedef struct function {
    struct function *next;
    module *of;
    const int *args;
    void (*run)(void **, unsigned, unsigned);
    char name[100];
} function;
typedef struct launch {
    function *f;
    int device;
    unsigned grid, block;
    uint64_t values[24];
} launch;

static function *functions; /* they stay as long as the process, as modules of this stand-in may */

extern cudaError_t cudaGetDevice(int *);
#define ENTER(name)                             \
    do {                                        \
        int e_;                                 \
        if (standin_call(name, &e_)) return e_; \
    } while (0)

STANDIN_API int cuModuleLoadData(module **out, const void *image);
STANDIN_API int cuModuleGetFunction(function **out, module *m, const char *name);
STANDIN_API int cuModuleUnload(module *m);
STANDIN_API int cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
    unsigned by, unsigned bz, unsigned shared, void *stream, void **params, void **extra);

static void release(module *m) {
    if (__atomic_sub_fetch(&m->refs, 1, __ATOMIC_SEQ_CST)) return;
    dlclose(m->library);
    free(m);
}

int cuModuleLoadData(module **out, const void *image) {
    char name[64];
    size_t bytes;
    ENTER("cuModuleLoadData");
    if (memcmp(image, "standin", 8) != 0) return 200;
    memcpy(&bytes, (const char *)image + 8, 8);
    /* a name of its own: dlopen knows libraries by their names */
    snprintf(name, sizeof name, "/tmp/standin.XXXXXX");
    const int fd = mkstemp(name);
    void *const library = fd >= 0 && write(fd, (const char *)image + 16, bytes) == (ssize_t)bytes
        ? dlopen(name, RTLD_NOW | RTLD_LOCAL)
        : NULL;
    if (fd >= 0) {
        close(fd);
        unlink(name);
    }
    if (!library) return 200;
    module *const m = (module *)calloc(1, sizeof *m);
    m->library = library;
    m->refs = 1;
    standin_count("modules", 1);
    *out = m;
    return 0;
}
int cuModuleGetFunction(function **out, module *m, const char *name) {
    char symbol[140];
    ENTER("cuModuleGetFunction");
    function *const f = (function *)calloc(1, sizeof *f);
    f->of = m;
    snprintf(symbol, sizeof symbol, "standin_args_%s", name);
    f->args = (const int *)dlsym(m->library, symbol);
    snprintf(symbol, sizeof symbol, "standin_run_%s", name);
    *(void **)&f->run = dlsym(m->library, symbol);
    snprintf(f->name, sizeof f->name, "%s", name);
    if (!f->args || !f->run) {
        free(f);
        return 500;
    }
    do
        f->next = __atomic_load_n(&functions, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(
        &functions, &f->next, f, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    *out = f;
    return 0;
}
int cuModuleUnload(module *m) {
    ENTER("cuModuleUnload");
    standin_count("modules", -1);
    release(m);
    return 0;
}

static void launch_run(void *arg) {
    const launch *const l = (const launch *)arg;
    uint64_t values[24];
    void *at[24];
    for (int i = 0; i < l->f->args[0]; ++i) {
        values[i] = l->values[i];
        at[i] = &values[i];
        if (l->f->args[1 + i] < 0) {
            void *const p = standin_bytes((void *)(uintptr_t)values[i], 1, l->device, l->f->name);
            if (!p) return;
            values[i] = (uint64_t)(uintptr_t)p;
        }
    }
    l->f->run(at, l->grid, l->block);
}
static void launch_drop(void *arg) {
    release(((launch *)arg)->f->of);
    free(arg);
}

int cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    int device = 0;
    ENTER("cuLaunchKernel");
    cudaGetDevice(&device);
    standin_stream *const s = standin_find(stream, device);
    if (!s || standin_device_of(s) != device) return 400;
    if (extra || shared || gy != 1 || gz != 1 || by != 1 || bz != 1 || !gx || !bx || bx > 1024)
        return 1;
    launch *const l = (launch *)calloc(1, sizeof *l);
    l->f = f;
    l->device = device;
    l->grid = gx;
    l->block = bx;
    for (int i = 0; i < f->args[0]; ++i)
        memcpy(&l->values[i], params[i], (size_t)abs(f->args[1 + i]));
    __atomic_add_fetch(&f->of->refs, 1, __ATOMIC_SEQ_CST);
    const standin_work w = {launch_run, launch_drop, l, f->name};
    standin_submit(s, &w);
    return 0;
}

/* ---- virtual memory; CUdeviceptr is a number ---- */

#define PAGE ((size_t)2 << 20)
typedef struct prop { /* CUmemAllocationProp */
    int type, handle_types, location_type, device;
    void *windows;
    unsigned char flags[8];
} prop;
typedef struct access { /* CUmemAccessDesc */
    int location_type, device, flags;
} access_of;
typedef unsigned long long number;

STANDIN_API int cuDeviceGetAttribute(int *value, int attribute, int device);
STANDIN_API int cuMemGetAllocationGranularity(size_t *out, const prop *p, int option);
STANDIN_API int cuMemAddressReserve(
    number *out, size_t bytes, size_t alignment, number at, number flags);
STANDIN_API int cuMemAddressFree(number at, size_t bytes);
STANDIN_API int cuMemCreate(number *out, size_t bytes, const prop *p, number flags);
STANDIN_API int cuMemRelease(number handle);
STANDIN_API int cuMemMap(number at, size_t bytes, size_t offset, number handle, number flags);
STANDIN_API int cuMemSetAccess(number at, size_t bytes, const access_of *a, size_t count);
STANDIN_API int cuMemUnmap(number at, size_t bytes);

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER("cuDeviceGetAttribute");
    *value = attribute == 102 ? (int)standin_get("pages") : 0;
    return device < 0 || device >= standin_get("devices") ? 101 : 0;
}
static bool prop_good(const prop *p) {
    return p->type == 1 && p->location_type == 1 && p->device >= 0
        && p->device < standin_get("devices");
}
int cuMemGetAllocationGranularity(size_t *out, const prop *p, int option) {
    ENTER("cuMemGetAllocationGranularity");
    *out = PAGE;
    return !prop_good(p) || option ? 1 : 0;
}
int cuMemAddressReserve(number *out, size_t bytes, size_t alignment, number at, number flags) {
    void *p = NULL;
    int device = 0;
    ENTER("cuMemAddressReserve");
    cudaGetDevice(&device);
    if (!bytes || bytes % PAGE || alignment || at || flags) return 1;
    if (!standin_range(&p, bytes, device)) return 2;
    *out = (number)(uintptr_t)p;
    return 0;
}
int cuMemAddressFree(number at, size_t bytes) {
    ENTER("cuMemAddressFree");
    if (standin_range_free((void *)(uintptr_t)at, bytes)) return 0;
    standin_fault("cuMemAddressFree(0x%llx): no such range, or pages are mapped in it", at);
    return 1;
}
int cuMemCreate(number *out, size_t bytes, const prop *p, number flags) {
    ENTER("cuMemCreate");
    if (!bytes || bytes % PAGE || !prop_good(p) || flags) return 1;
    standin_handle *const h = standin_page(bytes, p->device);
    *out = (number)(uintptr_t)h;
    return h ? 0 : 2;
}
int cuMemRelease(number handle) {
    ENTER("cuMemRelease");
    standin_page_drop((standin_handle *)(uintptr_t)handle);
    return 0;
}
int cuMemMap(number at, size_t bytes, size_t offset, number handle, number flags) {
    standin_handle *const h = (standin_handle *)(uintptr_t)handle;
    ENTER("cuMemMap");
    if (offset || flags || bytes != h->bytes || at % PAGE) return 1;
    if (standin_map((void *)(uintptr_t)at, h)) return 0;
    standin_fault("cuMemMap(0x%llx): not in a range, or mapped already", at);
    return 1;
}
int cuMemSetAccess(number at, size_t bytes, const access_of *a, size_t count) {
    ENTER("cuMemSetAccess");
    if (count != 1 || a->location_type != 1 || a->flags != 3) return 1;
    return standin_pages((void *)(uintptr_t)at, bytes, false) ? 0 : 1;
}
int cuMemUnmap(number at, size_t bytes) {
    ENTER("cuMemUnmap");
    if (standin_pages((void *)(uintptr_t)at, bytes, true)) return 0;
    standin_fault("cuMemUnmap(0x%llx): not whole pages that are mapped", at);
    return 1;
}
