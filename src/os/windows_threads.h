/* os/windows_threads.h - waiting, threads, and resolving names in a thread

   Knows: Win32 threads, WSAPoll, the resolver. Promises: what cdp_os says of watches, threads and
   names. */
#ifndef CDP_SRC_OS_WINDOWS_THREADS_H
#define CDP_SRC_OS_WINDOWS_THREADS_H

#include "../base/config.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "addresses.h"
#include "windows.h"
#include "watch.h"
#include "threads.h"

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#ifdef _WIN32
CDP__PRIVATE int32_t cdp__os_poll(
    void *user, cdp_poll_fd *fds, uint32_t n, uint64_t deadline_ns, void *room) {
    WSAPOLLFD *p = (WSAPOLLFD *)room;
    int r;
    uint32_t i;
    (void)user;
    for (i = 0; i < n; ++i) {
        p[i].fd = (SOCKET)fds[i].fd;
        p[i].events = (short)((fds[i].wanted & CDP_IO_READ ? POLLRDNORM : 0)
            | (fds[i].wanted & CDP_IO_WRITE ? POLLWRNORM : 0));
        p[i].revents = 0;
    }
    r = WSAPoll(p, n, cdp__os_poll_ms(deadline_ns));
    if (r < 0) return -cdp__os_socket_error();
    for (i = 0; i < n; ++i) {
        const short e = p[i].revents;
        fds[i].ready = (e & POLLRDNORM ? CDP_IO_READ : 0) | (e & POLLWRNORM ? CDP_IO_WRITE : 0)
            | (e & (POLLERR | POLLHUP | POLLNVAL) ? CDP_IO_ERROR : 0);
    }
    return r;
}

#ifndef CDP_NO_THREADS
typedef struct cdp__os_thread {
    HANDLE id;
    void (*func)(void *arg);
    void *arg;
} cdp__os_thread;

static DWORD WINAPI cdp__os_thread_main(LPVOID p) {
    cdp__os_thread *t = (cdp__os_thread *)p;
    t->func(t->arg);
    return 0;
}

CDP__PRIVATE void *cdp__os_thread_start(const cdp_os *os, void (*func)(void *arg), void *arg) {
    cdp__os_thread *t = (cdp__os_thread *)cdp__alloc(os, sizeof *t);
    if (!t) return NULL;
    t->func = func;
    t->arg = arg;
    t->id = CreateThread(NULL, 0, cdp__os_thread_main, t, 0, NULL);
    if (t->id) return t;
    cdp__free(os, t);
    return NULL;
}

CDP__PRIVATE void cdp__os_thread_join(const cdp_os *os, void *thread) {
    cdp__os_thread *t = (cdp__os_thread *)thread;
    WaitForSingleObject(t->id, INFINITE);
    CloseHandle(t->id);
    cdp__free(os, t);
}

CDP__PRIVATE void cdp__os_thread_yield(void *user) {
    (void)user;
    SwitchToThread();
}

CDP__PRIVATE void *cdp__os_mutex_create(const cdp_os *os) {
    SRWLOCK *m = (SRWLOCK *)cdp__alloc(os, sizeof *m);
    if (m) InitializeSRWLock(m);
    return m;
}

CDP__PRIVATE void cdp__os_mutex_destroy(const cdp_os *os, void *m) {
    cdp__free(os, m);
}

CDP__PRIVATE void cdp__os_mutex_lock(void *user, void *m) {
    (void)user;
    AcquireSRWLockExclusive((SRWLOCK *)m);
}

CDP__PRIVATE void cdp__os_mutex_unlock(void *user, void *m) {
    (void)user;
    ReleaseSRWLockExclusive((SRWLOCK *)m);
}

CDP__PRIVATE void *cdp__os_cond_create(const cdp_os *os) {
    CONDITION_VARIABLE *c = (CONDITION_VARIABLE *)cdp__alloc(os, sizeof *c);
    if (c) InitializeConditionVariable(c);
    return c;
}

CDP__PRIVATE void cdp__os_cond_destroy(const cdp_os *os, void *c) {
    cdp__free(os, c);
}

CDP__PRIVATE void cdp__os_cond_wait(void *user, void *c, void *m, uint64_t deadline_ns) {
    const int ms = cdp__os_poll_ms(deadline_ns);
    (void)user;
    SleepConditionVariableSRW(
        (CONDITION_VARIABLE *)c, (SRWLOCK *)m, ms < 0 ? INFINITE : (DWORD)ms, 0);
}

CDP__PRIVATE void cdp__os_cond_broadcast(void *user, void *c) {
    (void)user;
    WakeAllConditionVariable((CONDITION_VARIABLE *)c);
}

/* As on POSIX: getaddrinfo() runs in a thread of its own, which is abandoned at the deadline.
   Whichever of the two threads finishes last frees this record. */
typedef struct cdp__os_lookup {
    HANDLE done;
    volatile LONG left; /* one of the two threads has finished */
    int32_t n;
    cdp_addr at[16];
    char host[256];
} cdp__os_lookup;

CDP__PRIVATE void cdp__os_lookup_leave(cdp__os_lookup *k) {
    if (!InterlockedExchange(&k->left, 1)) return;
    CloseHandle(k->done);
    free(k);
}

static DWORD WINAPI cdp__os_lookup_main(LPVOID p) {
    cdp__os_lookup *k = (cdp__os_lookup *)p;
    k->n = cdp__os_getaddrinfo(k->host, k->at, 16);
    SetEvent(k->done);
    cdp__os_lookup_leave(k);
    return 0;
}

CDP__PRIVATE int32_t cdp__os_lookup_run(
    const char *host, cdp_addr *out, uint32_t max_count, uint64_t deadline_ns) {
    cdp__os_lookup *k = (cdp__os_lookup *)calloc(1, sizeof *k);
    const int ms = cdp__os_poll_ms(deadline_ns);
    HANDLE thread;
    int32_t n = -ETIMEDOUT;
    if (!k) return -ENOMEM;
    memcpy(k->host, host, strlen(host));
    k->done = CreateEventA(NULL, TRUE, FALSE, NULL);
    thread = k->done ? CreateThread(NULL, 0, cdp__os_lookup_main, k, 0, NULL) : NULL;
    if (!thread) {
        if (k->done) CloseHandle(k->done);
        free(k);
        return -ENOMEM;
    }
    CloseHandle(thread);
    if (WaitForSingleObject(k->done, ms < 0 ? INFINITE : (DWORD)ms) == WAIT_OBJECT_0)
        n = (int32_t)cdp__min((uint64_t)k->n, k->n < 0 ? CDP__NEVER : max_count);
    if (n > 0) memcpy(out, k->at, (size_t)n * sizeof *out);
    cdp__os_lookup_leave(k);
    return n;
}
#endif
#endif /* Windows */

CDP__PRIVATE CDP__COLD int32_t cdp__os_resolve(void *user, const char *host, uint16_t port,
    cdp_addr *out, uint32_t max, uint64_t deadline_ns) {
    int32_t n, i;
    (void)user;
    if (strlen(host) > 255) return -ENAMETOOLONG;
#ifdef _WIN32
    if (!cdp__os_winsock()) return -ENETDOWN; /* getaddrinfo() needs Winsock */
#endif
#ifdef CDP_NO_THREADS
    (void)deadline_ns;
    n = cdp__os_getaddrinfo(host, out, max);
#else
    n = cdp__os_lookup_run(host, out, max, deadline_ns);
#endif
    for (i = 0; i < n; ++i)
        out[i].port = port;
    return n;
}

#endif /* CDP_NO_OS */

#endif /* CDP_SRC_OS_WINDOWS_THREADS_H */
