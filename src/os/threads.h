/* os/threads.h - POSIX threads, and resolving names in a thread

   Knows: pthreads, the resolver. Promises: what cdp_os says of threads and of names; looking up a
   name ends by its deadline, although the resolver may not. */
#ifndef CDP_SRC_OS_THREADS_H
#define CDP_SRC_OS_THREADS_H

#include "../base/config.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "addresses.h"
#include "posix.h"
#include "windows.h"

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#if !defined(CDP_NO_THREADS) && !defined(_WIN32)
typedef struct cdp__os_thread {
    pthread_t id;
    void (*func)(void *arg);
    void *arg;
} cdp__os_thread;

static void *cdp__os_thread_main(void *p) {
    cdp__os_thread *t = (cdp__os_thread *)p;
    t->func(t->arg);
    return NULL;
}

CDP__PRIVATE void *cdp__os_thread_start(const cdp_os *os, void (*func)(void *arg), void *arg) {
    cdp__os_thread *t = (cdp__os_thread *)cdp__alloc(os, sizeof *t);
    if (!t) return NULL;
    t->func = func;
    t->arg = arg;
    if (pthread_create(&t->id, NULL, cdp__os_thread_main, t) == 0) return t;
    cdp__free(os, t);
    return NULL;
}

CDP__PRIVATE void cdp__os_thread_join(const cdp_os *os, void *thread) {
    pthread_join(((cdp__os_thread *)thread)->id, NULL);
    cdp__free(os, thread);
}

CDP__PRIVATE void *cdp__os_mutex_create(const cdp_os *os) {
    pthread_mutex_t *m = (pthread_mutex_t *)cdp__alloc(os, sizeof *m);
    if (m) pthread_mutex_init(m, NULL);
    return m;
}

CDP__PRIVATE void cdp__os_mutex_destroy(const cdp_os *os, void *m) {
    pthread_mutex_destroy((pthread_mutex_t *)m);
    cdp__free(os, m);
}

CDP__PRIVATE void cdp__os_mutex_lock(void *user, void *m) {
    (void)user;
    pthread_mutex_lock((pthread_mutex_t *)m);
}

CDP__PRIVATE void cdp__os_mutex_unlock(void *user, void *m) {
    (void)user;
    pthread_mutex_unlock((pthread_mutex_t *)m);
}

CDP__PRIVATE void cdp__os_cond_init(pthread_cond_t *c) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
#ifndef __APPLE__
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

CDP__PRIVATE void *cdp__os_cond_create(const cdp_os *os) {
    pthread_cond_t *c = (pthread_cond_t *)cdp__alloc(os, sizeof *c);
    if (c) cdp__os_cond_init(c);
    return c;
}

CDP__PRIVATE void cdp__os_cond_destroy(const cdp_os *os, void *c) {
    pthread_cond_destroy((pthread_cond_t *)c);
    cdp__free(os, c);
}

CDP__PRIVATE void cdp__os_cond_wait(void *user, void *c, void *m, uint64_t deadline_ns) {
    struct timespec t;
    if (deadline_ns == CDP__NEVER) {
        pthread_cond_wait((pthread_cond_t *)c, (pthread_mutex_t *)m);
        return;
    }
#ifdef __APPLE__ /* no monotonic condition variables there: wait relative to the wall clock */
    {
        const uint64_t now = cdp__os_now(user), left = deadline_ns > now ? deadline_ns - now : 0;
        clock_gettime(CLOCK_REALTIME, &t);
        deadline_ns = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec + left;
    }
#endif
    (void)user;
    t.tv_sec = (time_t)(deadline_ns / 1000000000ull);
    t.tv_nsec = (long)(deadline_ns % 1000000000ull);
    pthread_cond_timedwait((pthread_cond_t *)c, (pthread_mutex_t *)m, &t);
}

CDP__PRIVATE void cdp__os_cond_broadcast(void *user, void *c) {
    (void)user;
    pthread_cond_broadcast((pthread_cond_t *)c);
}
#endif

#if !defined(CDP_NO_THREADS) && !defined(_WIN32)
CDP__PRIVATE void cdp__os_thread_yield(void *user) {
    (void)user;
    sched_yield();
}

/* getaddrinfo() has no timeout, so it runs in a thread of its own, which is abandoned at the
   deadline. Whichever of the two threads finishes last frees this record. That thread may
   outlive all memory of the caller, so the record is allocated with malloc(). */
typedef struct cdp__os_lookup {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool left; /* one of the two threads has finished */
    int32_t n;
    cdp_addr at[16];
    char host[256];
} cdp__os_lookup;

/* The caller holds the lock. */
CDP__PRIVATE void cdp__os_lookup_leave(cdp__os_lookup *k) {
    const bool last = k->left;
    k->left = true;
    pthread_cond_broadcast(&k->cond);
    pthread_mutex_unlock(&k->mutex);
    if (!last) return;
    pthread_cond_destroy(&k->cond);
    pthread_mutex_destroy(&k->mutex);
    free(k);
}

static void *cdp__os_lookup_main(void *p) {
    cdp__os_lookup *k = (cdp__os_lookup *)p;
    cdp_addr at[16];
    const int32_t n = cdp__os_getaddrinfo(k->host, at, 16);
    pthread_mutex_lock(&k->mutex);
    memcpy(k->at, at, sizeof at);
    k->n = n;
    cdp__os_lookup_leave(k);
    return NULL;
}

CDP__PRIVATE int32_t cdp__os_lookup_run(
    const char *host, cdp_addr *out, uint32_t max_count, uint64_t deadline_ns) {
    cdp__os_lookup *k = (cdp__os_lookup *)calloc(1, sizeof *k);
    pthread_t id;
    int32_t n;
    if (!k) return -ENOMEM;
    memcpy(k->host, host, strlen(host));
    pthread_mutex_init(&k->mutex, NULL);
    cdp__os_cond_init(&k->cond);
    if (pthread_create(&id, NULL, cdp__os_lookup_main, k) != 0) {
        k->left = true;
        pthread_mutex_lock(&k->mutex);
        cdp__os_lookup_leave(k);
        /* without a thread, the deadline may pass meanwhile */
        return cdp__os_getaddrinfo(host, out, max_count);
    }
    pthread_detach(id);
    pthread_mutex_lock(&k->mutex);
    while (!k->left && cdp__os_now(NULL) < deadline_ns)
        cdp__os_cond_wait(NULL, &k->cond, &k->mutex, deadline_ns);
    n = k->left ? k->n : -ETIMEDOUT;
    if (n > (int32_t)max_count) n = (int32_t)max_count;
    if (n > 0) memcpy(out, k->at, (size_t)n * sizeof *out);
    cdp__os_lookup_leave(k);
    return n;
}
#endif

#endif /* CDP_NO_OS */

#endif /* CDP_SRC_OS_THREADS_H */
