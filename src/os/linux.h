/* os/linux.h - owners of ports, shared memory, processes

   Knows: /proc, shared memory, descriptors sent to another process. Promises: what cdp_os says of
   them; on other systems these members are NULL or fail. */
#ifndef CDP_SRC_OS_LINUX_H
#define CDP_SRC_OS_LINUX_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "os_api.h"
#include "../message/transport_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "posix.h"
#include "windows.h"
#include "windows_shared.h"
#include "poll.h"
#include "watch.h"
#include "threads.h"
#include "windows_threads.h"
#include "files.h"

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#ifdef __linux__
/* Reads up to size - 1 bytes of a file as a text. */
CDP__PRIVATE bool cdp__os_read_text(const char *path, char *text, uint64_t size) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, (size_t)size - 1) : -1;
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* The inode of the socket that listens on `port`, from /proc/net/tcp or tcp6; 0: none. A line
   reads "sl: ADDRESS:PORT REMOTE STATE queues timers retransmits uid timeout INODE ...", with
   port and state in hexadecimal; state 0A is listening. */
CDP__PRIVATE CDP__COLD uint64_t cdp__os_listener_inode(const char *path, uint16_t port) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    char text[4096];
    uint64_t value = 0, field_port = 0, state = 0, found = 0;
    uint32_t field = 0;
    bool blank = true;
    ssize_t n, i;
    while (fd >= 0 && !found && (n = read(fd, text, sizeof text)) > 0) {
        for (i = 0; i < n && !found; ++i) {
            const char c = text[i];
            uint32_t digit = 99;
            if (c >= '0' && c <= '9') digit = (uint32_t)(c - '0');
            if (c >= 'A' && c <= 'F') digit = (uint32_t)(c - 'A') + 10;
            if (c == ' ' || c == '\n') {
                if (!blank && field == 2) field_port = value;
                if (!blank && field == 4) state = value;
                if (!blank && field == 10 && state == 10 && field_port == port) found = value;
                blank = true;
                if (c == '\n') field = 0;
                continue;
            }
            if (blank) ++field;
            if (blank || c == ':') value = 0;
            blank = false;
            if (digit < 16) value = value * (field == 10 ? 10 : 16) + digit;
        }
    }
    if (fd >= 0) close(fd);
    return found;
}

/* True if a descriptor of process `pid` refers to `target`. */
CDP__PRIVATE bool cdp__os_process_has(const char *pid, const char *target) {
    char path[64], link[64];
    const struct dirent *e;
    bool found = false;
    DIR *d;
    cdp__format(path, sizeof path, "/proc/%s/fd", pid);
    d = opendir(path);
    while (d && !found && (e = readdir(d)) != NULL) {
        ssize_t n;
        cdp__format(path, sizeof path, "/proc/%s/fd/%s", pid, e->d_name);
        n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        found = strcmp(link, target) == 0;
    }
    if (d) closedir(d);
    return found;
}

CDP__PRIVATE bool cdp__os_port_owner(void *user, uint16_t port, char *text, uint64_t size) {
    char target[64], path[64], name[64];
    const struct dirent *e;
    uint64_t inode = cdp__os_listener_inode("/proc/net/tcp", port);
    bool found = false;
    DIR *d;
    (void)user;
    if (!inode) inode = cdp__os_listener_inode("/proc/net/tcp6", port);
    d = inode ? opendir("/proc") : NULL;
    if (!inode && size && access("/proc/net/tcp", R_OK) == 0) text[0] = 0;
    cdp__format(target, sizeof target, "socket:[%llu]", (unsigned long long)inode);
    while (d && !found && (e = readdir(d)) != NULL) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9' || strlen(e->d_name) > 10
            || !cdp__os_process_has(e->d_name, target))
            continue;
        found = true;
        cdp__format(path, sizeof path, "/proc/%s/comm", e->d_name);
        (void)cdp__os_read_text(path, name, sizeof name);
        name[strcspn(name, "\n")] = 0;
        cdp__format(text, size, "process %s (%s)", e->d_name, name);
    }
    if (d) closedir(d);
    return found;
}

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

/* Creates an anonymous file, which lives as long as its last descriptor or mapping. It is not in
   /dev/shm, which containers keep small. The flags are numbers because the C library declares
   their names only with _GNU_SOURCE. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_memory_create(void *user, uint64_t bytes) {
    struct rlimit most;
    int fd, err;
    (void)user;
    if (bytes > PTRDIFF_MAX / 2) return -ENOMEM;
    /* beyond this limit the kernel would send SIGXFSZ */
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < bytes) return -EFBIG;
    /* MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL */
    fd = (int)syscall(SYS_memfd_create, "cdp", 11u);
    if (fd < 0 && errno == EINVAL) fd = (int)syscall(SYS_memfd_create, "cdp", 3u);
    if (fd < 0) return -errno;
    do
        err = posix_fallocate(fd, 0, (off_t)bytes);
    while (err == EINTR);
    /* F_ADD_SEALS: F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW */
    if (!err && fcntl(fd, 1033, 7) != 0) err = errno;
    if (err) close(fd);
    return err ? -err : fd;
}

CDP__PRIVATE void *cdp__os_memory_map(void *user, int32_t fd, bool writable, uint64_t *bytes) {
    const int seals = fcntl(fd, 1034); /* F_GET_SEALS */
    struct stat s;
    void *at;
    (void)user;
    if (seals < 0 || !(seals & 2) || fstat(fd, &s) != 0 || s.st_size <= 0
        || s.st_size > PTRDIFF_MAX)
        return NULL;
    *bytes = (uint64_t)s.st_size;
    at = mmap(NULL, (size_t)s.st_size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

CDP__PRIVATE void cdp__os_memory_unmap(void *user, void *at, uint64_t bytes) {
    (void)user;
    munmap(at, (size_t)bytes);
}

CDP__PRIVATE void cdp__os_memory_empty(void *user, void *at, uint64_t bytes) {
    (void)user;
    (void)madvise(at, (size_t)bytes, MADV_REMOVE);
}

/* Identifies the running kernel, the network namespace and the user. */
CDP__PRIVATE uint64_t cdp__os_memory_host(void *user) {
    char boot[64];
    struct stat net;
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t i, n = fd < 0 ? 0 : read(fd, boot, sizeof boot);
    uint64_t id = geteuid();
    (void)user;
    if (fd >= 0) close(fd);
    if (n <= 0 || stat("/proc/self/ns/net", &net) != 0) return 0;
    id = id * 1000003 + net.st_ino;
    for (i = 0; i < n; ++i)
        id = id * 1000003 + (uint8_t)boot[i];
    return id | 1;
}

CDP__PRIVATE CDP__COLD uint64_t cdp__os_process_place(void *user, uint32_t *number) {
    char boot[64];
    struct stat ns;
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, boot, sizeof boot);
    uint64_t id = 1;
    ssize_t i;
    (void)user;
    if (fd >= 0) close(fd);
    *number = (uint32_t)getpid();
    if (n <= 0 || stat("/proc/self/ns/pid", &ns) != 0) return 0;
    id = id * 1000003 + ns.st_ino;
    for (i = 0; i < n; ++i)
        id = id * 1000003 + (uint8_t)boot[i];
    return id | 1;
}

CDP__PRIVATE int32_t cdp__os_process_open(void *user, uint32_t number) {
    (void)user;
#ifdef SYS_pidfd_open
    {
        const int fd = (int)syscall(SYS_pidfd_open, (long)number, 0l);
        return fd < 0 ? -errno : fd;
    }
#else
    (void)number;
    return -ENOSYS;
#endif
}

/* Names in the abstract namespace are no files. They are visible only inside one network
   namespace. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_pass_open(void *user, const uint8_t name[12], bool waits) {
    const int fd = cdp__os_socket(AF_UNIX);
    const socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 13);
    union {
        struct sockaddr any;
        struct sockaddr_un un;
    } a;
    int err;
    (void)user;
    if (fd < 0) return fd;
    memset(&a, 0, sizeof a);
    a.un.sun_family = AF_UNIX;
    memcpy(a.un.sun_path + 1, name, 12);
    if (waits ? bind(fd, &a.any, len) == 0 && listen(fd, 4) == 0 : connect(fd, &a.any, len) == 0)
        return fd;
    err = errno;
    close(fd);
    return -err;
}

#define CDP__PASS_MAX 4u

CDP__PRIVATE CDP__COLD int32_t cdp__os_pass(
    void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending) {
    struct {
        int32_t pid;
        uint32_t uid, gid;
    } who = {0, 0, 0};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(CDP__PASS_MAX * sizeof(int32_t))];
    } c;
    socklen_t len = sizeof who;
    struct iovec v;
    struct msghdr m;
    char byte = 0;
    ssize_t r;
    size_t i, got;
    (void)user;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.uid != (uint32_t)geteuid())
        return -EACCES;
    memset(&m, 0, sizeof m);
    memset(&c, 0, sizeof c);
    v.iov_base = &byte;
    v.iov_len = 1;
    m.msg_iov = &v;
    m.msg_iovlen = 1;
    m.msg_control = &c;
    m.msg_controllen = sending ? CMSG_SPACE(n * sizeof *fds) : sizeof c;
    c.head.cmsg_level = SOL_SOCKET;
    c.head.cmsg_type = SCM_RIGHTS;
    c.head.cmsg_len = CMSG_LEN(n * sizeof *fds);
    if (sending) memcpy(CMSG_DATA(&c.head), fds, n * sizeof *fds);
    do
        r = sending ? sendmsg(fd, &m, MSG_NOSIGNAL) : recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_PEEK);
    while (r < 0 && errno == EINTR);
    if (sending || r < 0) return r < 0 ? -errno : who.pid;
    got = m.msg_controllen >= sizeof c.head && c.head.cmsg_type == SCM_RIGHTS
        ? (c.head.cmsg_len - CMSG_LEN(0)) / sizeof *fds
        : 0;
    if (got == n && !(m.msg_flags & MSG_CTRUNC)) {
        memcpy(fds, CMSG_DATA(&c.head), n * sizeof *fds);
        (void)recv(fd, &byte, 1, 0);
        return who.pid;
    }
    for (i = 0; i < got; ++i) {
        memcpy(&fd, CMSG_DATA(&c.head) + i * sizeof fd, sizeof fd);
        close(fd);
    }
    /* most likely no descriptors are left; MSG_PEEK left the message queued, so the caller may
       retry */
    return r ? -EMFILE : -ECONNRESET;
}

CDP__PRIVATE int32_t cdp__os_memory_read(
    void *user, int32_t pid, const uint64_t *from, const cdp_iov *to, uint32_t n) {
    struct iovec here[CDP__IOV_MAX], there[CDP__IOV_MAX];
    const uint32_t k = cdp__os_iov(to, n, here);
    uint64_t bytes = 0;
    uint32_t i;
    long r;
    (void)user;
    for (i = 0; i < k; bytes += to[i++].bytes) {
        /* from a 64-bit process, read by a 32-bit one */
        if ((uintptr_t)from[i] != from[i]) return -EFAULT;
        there[i].iov_base = (void *)(uintptr_t)from[i];
        there[i].iov_len = here[i].iov_len;
    }
    r = syscall(SYS_process_vm_readv, (long)pid, here, (long)k, there, (long)k, 0l);
    if (r < 0) return -errno;
    return (uint64_t)r == bytes ? 0 : -EFAULT;
}
#endif

/* The groups of functions of the default os, in the order of cdp_os's members. */
#ifdef CDP__EPOLL
#define CDP__OS_WATCH                                                                       \
    cdp__os_watch_open, cdp__os_watch_close, cdp__os_watch_add, cdp__os_watch_change, NULL, \
        cdp__os_watch_remove, cdp__os_watch_wait, NULL
#else
#define CDP__OS_WATCH                                                                     \
    cdp__pollwatch_open, cdp__pollwatch_close, cdp__pollwatch_add, cdp__pollwatch_change, \
        cdp__pollwatch_used_up, cdp__pollwatch_remove, cdp__pollwatch_wait, cdp__os_poll
#endif
#ifdef __linux__
#define CDP__OS_PROCESSES cdp__os_process_place, cdp__os_process_open
#else
#define CDP__OS_PROCESSES NULL, NULL
#endif
#ifdef _WIN32
#define CDP__OS_DIAGNOSTICS NULL, NULL, NULL, NULL
#else
#define CDP__OS_DIAGNOSTICS \
    cdp__os_unanswered, cdp__os_addresses, CDP__OS_PORT_OWNER, cdp__os_descriptor_limit
#endif
/* Only the texts of errors need the owner of a port. */
#if defined(__linux__) && !defined(CDP_NO_LOG_STRINGS)
#define CDP__OS_PORT_OWNER cdp__os_port_owner
#else
#define CDP__OS_PORT_OWNER NULL
#endif
#ifdef __linux__
#define CDP__OS_PARTS true, cdp__os_memory_empty
#else
#define CDP__OS_PARTS false, NULL
#endif
#if (defined(__linux__) || defined(_WIN32)) && !defined(CDP_NO_SHARED_MEMORY)
#define CDP__OS_SHARED                                                                      \
    {                                                                                       \
        cdp__os_memory_create, cdp__os_memory_map, cdp__os_memory_unmap, cdp__os_pass_open, \
            cdp__os_pass, cdp__os_memory_read, cdp__os_memory_host, CDP__OS_PROCESSES,      \
            CDP__OS_PARTS                                                                   \
    }
#else
#define CDP__OS_SHARED \
    { NULL, NULL, NULL, NULL, NULL, NULL, NULL, CDP__OS_PROCESSES, false, NULL }
#endif
#ifdef CDP_NO_FILES
#define CDP__OS_FILES \
    { NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }
#else
#define CDP__OS_FILES                                                                         \
    {                                                                                         \
        cdp__os_open_file, cdp__os_close_file, cdp__os_read_at, cdp__os_write_at,             \
            cdp__os_cut_file, cdp__os_lock_file, cdp__os_file_info, cdp__os_remove_file,      \
            cdp__os_rename_file, cdp__os_sync_file, cdp__os_sync_folder, cdp__os_make_folder, \
            cdp__os_remove_folder, cdp__os_list_folder, cdp__os_link_file                     \
    }
#endif
#ifdef CDP_NO_THREADS
#define CDP__OS_THREADS \
    { NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }
#else
#define CDP__OS_THREADS                                                                           \
    {                                                                                             \
        cdp__os_thread_start, cdp__os_thread_join, cdp__os_thread_yield, cdp__os_mutex_create,    \
            cdp__os_mutex_destroy, cdp__os_mutex_lock, cdp__os_mutex_unlock, cdp__os_cond_create, \
            cdp__os_cond_destroy, cdp__os_cond_wait, cdp__os_cond_broadcast                       \
    }
#endif
#if defined(_WIN32) && !defined(CDP_NO_SHARED_MEMORY)
#define CDP__OS_ACCEPT cdp__os_accept_any
#else
#define CDP__OS_ACCEPT cdp__os_accept
#endif
#define CDP__OS_NET                                                                      \
    {                                                                                    \
        cdp__os_resolve, cdp__os_listen, cdp__os_adopt, CDP__OS_ACCEPT, cdp__os_connect, \
            cdp__os_connect_result, cdp__os_send, cdp__os_recv, cdp__os_close,           \
            cdp__os_end_sending, cdp__os_local_addr, CDP__OS_WATCH, cdp__os_wake_open,   \
            cdp__os_wake_set, cdp__os_wake_clear, CDP__OS_DIAGNOSTICS, CDP__OS_LATE_US   \
    }

CDP_API const cdp_os *cdp_os_default(void) {
    static const cdp_os os = {
        NULL,
        cdp__os_alloc,
        cdp__os_release,
        cdp__os_now,
        cdp__os_random,
        cdp__os_sleep_until,
        CDP__OS_NET,
        CDP__OS_THREADS,
        CDP__OS_SHARED,
        CDP__OS_FILES,
    };
    return &os;
}

#else
CDP__PRIVATE void *cdp__os_no_memory(void *user, uint64_t bytes) {
    (void)user;
    (void)bytes;
    return NULL;
}

/* Not NULL, since every creation asks it for memory: that fails in an orderly way. */
CDP_API const cdp_os *cdp_os_default(void) {
    static cdp_os os;
    os.alloc = cdp__os_no_memory;
    return &os;
}
#endif /* CDP_NO_OS */

/* A lock; does nothing in builds without threads. */
struct cdp_lock {
    const cdp_os *os;
    void *mutex;
};

CDP__PRIVATE bool cdp__lock_open(cdp_lock *l, const cdp_os *os, bool threads) {
    l->os = os;
    l->mutex = threads && os->threads.mutex_create ? os->threads.mutex_create(os) : NULL;
    return l->mutex || !threads || !os->threads.mutex_create;
}

CDP__PRIVATE CDP__ONE_COPY void cdp__lock_close(cdp_lock *l) {
    if (l->mutex) l->os->threads.mutex_destroy(l->os, l->mutex);
    l->mutex = NULL;
}

CDP__PRIVATE void cdp__lock_take(cdp_lock *l) {
    if (l->mutex) l->os->threads.mutex_lock(l->os->user, l->mutex);
}

CDP__PRIVATE void cdp__lock_give(cdp_lock *l) {
    if (l->mutex) l->os->threads.mutex_unlock(l->os->user, l->mutex);
}

CDP_API CDP__ONE_COPY void cdp_lock_acquire(cdp_lock *l) {
    if (l) cdp__lock_take(l);
}

CDP_API CDP__ONE_COPY void cdp_lock_release(cdp_lock *l) {
    if (l) cdp__lock_give(l);
}

#endif /* CDP_SRC_OS_LINUX_H */
