/* os/libraries.h - libraries that are loaded while the program runs

   Knows: dlopen() and LoadLibrary(). Promises: a library stays loaded until it is closed; the
   result is NULL if there is no such library or function. For cdp_nccl.h and cdp_mem.h. */
#ifndef CDP_SRC_OS_LIBRARIES_H
#define CDP_SRC_OS_LIBRARIES_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"

#ifdef CDP_NO_OS
CDP__PRIVATE void *cdp__library_open(const char *file) {
    (void)file;
    return NULL;
}
CDP__PRIVATE void *cdp__library_find(void *library, const char *name) {
    (void)library;
    (void)name;
    return NULL;
}
CDP__PRIVATE void cdp__library_close(void *library) {
    (void)library;
}
#elif defined(_WIN32)
/* file NULL: the program itself. */
CDP__PRIVATE void *cdp__library_open(const char *file) {
    HMODULE own = NULL;
    if (file) return (void *)LoadLibraryA(file);
    GetModuleHandleExA(0, NULL, &own);
    return (void *)own;
}
CDP__PRIVATE void *cdp__library_find(void *library, const char *name) {
    const FARPROC function = GetProcAddress((HMODULE)library, name);
    void *found;
    memcpy(&found, &function, sizeof found);
    return found;
}
CDP__PRIVATE void cdp__library_close(void *library) {
    FreeLibrary((HMODULE)library);
}
#else
#include <dlfcn.h>
CDP__PRIVATE void *cdp__library_open(const char *file) {
    return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}
CDP__PRIVATE void *cdp__library_find(void *library, const char *name) {
    return dlsym(library, name);
}
CDP__PRIVATE void cdp__library_close(void *library) {
    dlclose(library);
}
#endif

#endif /* CDP_SRC_OS_LIBRARIES_H */
