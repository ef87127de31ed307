/* os/child.h - objects in a child of fork()

   Knows: how often this process is a child of a fork. Promises: a child uses no object of its
   parent: threads that it does not have may hold the locks, and both share the descriptors. */
#ifndef CDP_SRC_OS_CHILD_H
#define CDP_SRC_OS_CHILD_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/text.h"
#include "posix.h"

/* A count that is incremented in a child of fork(), if cdp__forks_watch() was called before the
   fork. It stays 0 in builds without threads and on Windows. */
#if !defined(CDP_NO_OS) && !defined(CDP_NO_THREADS) && !defined(_WIN32)
CDP__PRIVATE uint32_t *cdp__forks_at(void) {
    static uint32_t forks;
    return &forks;
}

static void cdp__forks_add(void) {
    ++*cdp__forks_at();
}

static void cdp__forks_begin(void) {
    (void)pthread_atfork(NULL, NULL, cdp__forks_add);
}

/* At the creation of an object: the count to compare with later. */
CDP__PRIVATE uint32_t cdp__forks_watch(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, cdp__forks_begin);
    return *cdp__forks_at();
}

/* True if this process is a child of the one that created an object at this count. */
CDP__PRIVATE bool cdp__is_child(uint32_t forks) {
    return *cdp__forks_at() != forks;
}
#else
CDP__PRIVATE uint32_t cdp__forks_watch(void) {
    return 0;
}

CDP__PRIVATE bool cdp__is_child(uint32_t forks) {
    (void)forks;
    return false;
}
#endif

/* Refuses a call in a child. `what` is the kind of the object. */
CDP__PRIVATE CDP__COLD cdp_status cdp__child_refuses(
    cdp_status st, const char *call, const char *what) {
    return cdp__fail(st,
        "%s: this process is a child, by fork(), of the one that created the %s, which alone uses "
        "it; create another one here",
        call, what);
}

#endif /* CDP_SRC_OS_CHILD_H */
