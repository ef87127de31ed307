/* os/os_api.h - what is asked of the machine, replaceable as a whole */
#ifndef CDP_SRC_OS_OS_API_H
#define CDP_SRC_OS_OS_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"

/* A network address: IPv4 or IPv6, port in host order. */
typedef struct cdp_addr {
    uint8_t family; /* 4, 6, or 0 for "no address"                           */
    uint8_t ip[16]; /* network order; IPv4 uses the first four               */
    uint16_t port;
    uint32_t scope; /* IPv6 link-local: interface index, else 0              */
} cdp_addr;

#define CDP_IO_READ 1u
#define CDP_IO_WRITE 2u
#define CDP_IO_ERROR 4u       /* the connection is broken                      */
#define CDP_IO_END 8u         /* the other side ended the stream, behind what is still to be read */
#define CDP_IO_EOF (-1000000) /* recv: the other side ended the stream orderly */

/* What a watch reports of one descriptor. */
typedef struct cdp_ready {
    void *owner;  /* as given to watch_add */
    uint32_t got; /* CDP_IO_READ | CDP_IO_WRITE | CDP_IO_ERROR | CDP_IO_END */
} cdp_ready;

/* A descriptor for which a poll function waits. */
typedef struct cdp_poll_fd {
    int32_t fd;
    uint32_t wanted; /* CDP_IO_READ | CDP_IO_WRITE; 0: only whether the connection is broken */
    uint32_t ready;  /* 0 at the call. The function sets CDP_IO_READ, CDP_IO_WRITE, CDP_IO_ERROR */
} cdp_poll_fd;

/* Waits until one of `count` descriptors is ready for what is wanted of it or is broken, or
   now_ns() >= deadline_ns (a time in the past, such as 0: returns at once; UINT64_MAX: no limit).
   Sets `ready` of each descriptor; bits other than those wanted and CDP_IO_ERROR are ignored. As
   with poll(2), what stays ready is ready in the next call, too. `count` may be 0: then it sleeps.
   Returns how many are ready; 0 at the deadline, or earlier (a signal has arrived); or a negative
   errno, such as -EINVAL for more descriptors than select(2) takes: then the wait fails, and the
   group with it (CDP_ERR_IO). `user` is that of the cdp_os. `room` has CDP_POLL_ROOM bytes for each
   descriptor, aligned as memory of alloc, for an array of the system's own, such as struct pollfd;
   its contents are lost between calls. `fds` and `room` belong to the library and must not be kept.
   Where the os has threads, several threads may wait at once, each with a list of its own, and
   another thread may close a descriptor meanwhile: that is no error (select(2) with EBADF: 0). */
typedef int32_t cdp_poll_func(
    void *user, cdp_poll_fd *fds, uint32_t count, uint64_t deadline_ns, void *room);
#define CDP_POLL_ROOM 16u

typedef struct cdp_os cdp_os;

/* What the library asks of the machine. alloc, release and now_ns are required, random where there
   is net; net, threads, shared and files are optional groups. Where all functions of a group are
   NULL it is absent: then everything that needs it is refused at creation with a sentence, and the
   rest works. A missing function of a group that is there, or a required one, is named there, too
   (INVALID; builds with CDP_NO_LOG_STRINGS do not ask). A group is there where its first function
   is set: net.watch_open, threads.start, shared.create, files.open_file. Without `threads` the
   library runs in the caller's thread alone. Without `net` only hubs and a program's own transport
   connect ranks. Without `shared` processes of one machine talk over `net`. Without `files` there
   is no file store, and nothing writes dumps.

   To replace a part, copy *cdp_os_default(), change that part, and pass the copy in a desc; it
   must outlive everything that was made with it. A simulation replaces clock, random and net; a
   board without a system sets the required members of a zeroed struct; an engine replaces alloc
   and release. Functions that return a descriptor return it (>= 0) or a negative errno. */

/* Sockets. They never block: send_iov and recv_iov return the bytes moved (> 0), 0 when nothing
   can be moved now, or a negative errno; recv_iov returns CDP_IO_EOF at the end of the stream. */
typedef struct cdp_os_net {
    /* Addresses of a host name; not called for literal addresses. May block, until deadline_ns
       (then -ETIMEDOUT). Returns how many it found, at most `max_count`, or -ENOENT when the name
       does not exist, or -EAGAIN when no name server answered. */
    int32_t (*resolve)(void *user, const char *host, uint16_t port, cdp_addr *out,
        uint32_t max_count, uint64_t deadline_ns);
    /* Returns a listening descriptor. Port 0: any; *bound gets the real one. */
    int32_t (*listen_at)(void *user, const cdp_addr *at, cdp_addr *bound);
    /* May be NULL. Prepares a listening descriptor that the program gives the library (listen_fd
       of a desc): non-blocking, closed by exec. Returns 0 or a negative errno. */
    int32_t (*adopt)(void *user, int32_t fd);
    /* Returns the descriptor of the next connection; -EAGAIN when none waits. */
    int32_t (*accept_next)(void *user, int32_t fd, cdp_addr *from);
    /* Begins to connect; the descriptor polls writable when that is done. */
    int32_t (*connect_to)(void *user, const cdp_addr *to);
    /* Afterwards: 0 when it is connected, or the reason as -errno. */
    int32_t (*connect_result)(void *user, int32_t fd);
    int64_t (*send_iov)(void *user, int32_t fd, const cdp_iov *iov, uint32_t n);
    int64_t (*recv_iov)(void *user, int32_t fd, const cdp_iov *iov, uint32_t n);
    void (*close_fd)(void *user, int32_t fd);
    /* May be NULL. This end of a connection sends no more: after what was sent before, the other
       end reads CDP_IO_EOF. Receiving goes on. Without this function, the last bytes that a rank
       sends may be lost if a message to it arrives just after it has left. */
    void (*end_sending)(void *user, int32_t fd);
    /* The address of this end of a connection. */
    int32_t (*local_addr)(void *user, int32_t fd, cdp_addr *out);

    /* A watch: a list of descriptors and what can be done with each of them. Everything is reported
       once: READ when there is something to read (or to accept), WRITE when there is room to send
       (or a connection stands), END and ERROR when that is so. READ and WRITE are reported again
       when there is something new after recv_iov, accept_next or send_iov said "not now".
       Descriptors may be added, changed and removed while another thread is in watch_wait, which
       need not see that before its next call. */

    /* Returns 0 or a negative errno. Takes memory from os->alloc. */
    int32_t (*watch_open)(const cdp_os *os, void **watch);
    void (*watch_close)(const cdp_os *os, void *watch);
    /* Adds `fd` to the watch: from now on these bits (CDP_IO_READ, CDP_IO_WRITE), END and ERROR are
       reported for it, with `owner`. Returns 0 or a negative errno. */
    int32_t (*watch_add)(const cdp_os *os, void *watch, int32_t fd, uint32_t bits, void *owner);
    /* Replaces the bits that are reported for `fd`. Directions that are ready already are reported
       once more. */
    void (*watch_change)(void *user, void *watch, int32_t fd, uint32_t bits, void *owner);
    /* May be NULL where the system itself reports everything new. Tells the watch that a call on
       `fd` has returned -EAGAIN in these directions, so that it reports them again when they are
       ready. */
    void (*watch_used_up)(void *user, void *watch, int32_t fd, uint32_t bits);
    /* Ends reports for `fd`. Always called before close_fd: a child of fork() may keep the
       descriptor open, and closing alone would not end them. */
    void (*watch_remove)(void *user, void *watch, int32_t fd);
    /* Sleeps until there is something to report, or now_ns() >= deadline_ns (0: returns at once,
       UINT64_MAX: no limit). Returns how many of `out` it filled, at most max_count, or a negative
       errno. One thread at a time. */
    int32_t (*watch_wait)(
        void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns);
    /* NULL, unless the functions above are those of cdp_os_use_poll(), which call it. */
    cdp_poll_func *poll_fds;

    /* Another thread ends a watch_wait() with these; all three may be NULL in an os without
       threads. wake_open makes two descriptors (both may be the same one): fd[0] is ready to read
       from wake_set(fd[1]) until wake_clear(fd[0]). Closed with close_fd. Returns 0 or a negative
       errno. The two ends of a connection on the loopback interface will do: wake_set sends a byte,
       and wake_clear receives until there is none; neither may block. */
    int32_t (*wake_open)(void *user, int32_t fd[2]);
    void (*wake_set)(void *user, int32_t fd);
    void (*wake_clear)(void *user, int32_t fd);

    /* May be NULL. For how many nanoseconds the machine at the other end of a connection has
       acknowledged nothing although something was sent to it; 0: nothing is outstanding, or not
       known. A program there that does not read does not count: its machine still acknowledges. */
    uint64_t (*unanswered_ns)(void *user, int32_t fd);

    /* May be NULL. Addresses of this machine's interfaces whose names begin with an entry of
       `interfaces` ("eth0,ib"; "^docker,veth": all but those; NULL: all). Returns how many, at
       most max_count. */
    uint32_t (*addresses)(void *user, const char *interfaces, cdp_addr *out, uint32_t max_count);
    /* May be NULL. Writes which process listens on this port of this machine, as text
       ("process 123 (nginx)"); false when that is not known, and then an empty text if it is
       known that nobody does. */
    bool (*port_owner)(void *user, uint16_t port, char *text, uint64_t size);
    /* May be NULL. How many descriptors this process may have open at once; 0: not known. */
    uint64_t (*descriptor_limit)(void *user);
    /* How much later than its deadline watch_wait may return. A wait with a budget polls for so
       long in the end, so as not to exceed it (default: 1000 us) */
    uint32_t late_us;
} cdp_os_net;

/* Threads. start, mutex_create and cond_create return NULL when out of memory, which they take from
   os->alloc. */
typedef struct cdp_os_threads {
    void *(*start)(const cdp_os *os, void (*func)(void *arg), void *arg);
    void (*join)(const cdp_os *os, void *thread);
    void (*yield)(void *user);
    void *(*mutex_create)(const cdp_os *os);
    void (*mutex_destroy)(const cdp_os *os, void *mutex);
    void (*mutex_lock)(void *user, void *mutex);
    void (*mutex_unlock)(void *user, void *mutex);
    void *(*cond_create)(const cdp_os *os);
    void (*cond_destroy)(const cdp_os *os, void *cond);
    /* May return before the condition was signalled. */
    void (*cond_wait)(void *user, void *cond, void *mutex, uint64_t deadline_ns);
    void (*cond_broadcast)(void *user, void *cond);
} cdp_os_threads;

/* Memory that processes of one machine share. These functions make descriptors for the functions of
   cdp_os_net: an os that replaces accept_next, close_fd or the wake-ups must replace this group,
   too, or set `create` to NULL. */
typedef struct cdp_os_shared {
    /* Returns a descriptor of this many bytes, all allocated now (-ENOMEM where they are not, and
       never a signal later), which cannot be made smaller. */
    int32_t (*create)(void *user, uint64_t bytes);
    /* Maps such memory and writes its size. NULL when it cannot be mapped or could be made
       smaller. */
    void *(*map)(void *user, int32_t fd, bool writable, uint64_t *bytes);
    void (*unmap)(void *user, void *at, uint64_t bytes);
    /* `waits`: a socket that listens under this name for other processes of this machine, for
       accept_next(); otherwise one that is connected to the socket of this name. */
    int32_t (*pass_open)(void *user, const uint8_t name[12], bool waits);
    /* Sends (`sending`) or receives n descriptors over such a connection; the process at the
       other end must belong to the same user. Returns its process id (0: not known) or -errno
       (-EMFILE: this process has no room for descriptors, which stay queued). */
    int32_t (*pass)(void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending);
    /* May be NULL. Copies n pieces of the memory of process `pid`, from these addresses. Returns
       0 or -errno. */
    int32_t (*read_process)(
        void *user, int32_t pid, const uint64_t *from, const cdp_iov *to, uint32_t n);
    /* May be NULL. A number that two processes have in common exactly where they can share memory
       and read each other's. 0: not known. */
    uint64_t (*host_id)(void *user);
    /* May be NULL, both or neither. process_place: writes the number of this process and returns
       that of the place in which it means this process (a running kernel and its process
       namespace); 0: not known. process_open: a descriptor that is ready to read when the process
       of that number, of the same place, has ended; or -errno (-ESRCH: it has). */
    uint64_t (*process_place)(void *user, uint32_t *number);
    int32_t (*process_open)(void *user, uint32_t number);
    /* `unmap` may be called for the first 64 KiB of a mapping, for the next, and so on; false: only
       for all of it (this may take some milliseconds in a poll with a budget) */
    bool unmap_parts;
    /* May be NULL. Gives the memory of such a mapping back to the system, for all processes that
       have mapped it, too: none of them needs what is in it. The mappings stay. Without this
       function the last process that unmaps the memory gives it back, and that takes 0.1 to 0.3 ms
       per MiB in one call. */
    void (*empty)(void *user, void *at, uint64_t bytes);
} cdp_os_shared;

/* How open_file() opens a file. */
#define CDP_FILE_WRITE 1u  /* for reading and writing, else for reading alone */
#define CDP_FILE_CREATE 2u /* creates the file if it does not exist */
#define CDP_FILE_EMPTY 4u  /* removes what the file contains */
/* refuses a symbolic link (-ELOOP); other users get no access to a new file */
#define CDP_FILE_PRIVATE 8u

/* What lock_file() does. */
typedef enum cdp_file_lock {
    CDP_FILE_UNLOCK,
    CDP_FILE_LOCK_SHARED,
    CDP_FILE_LOCK_ALONE
} cdp_file_lock;

/* What file_info() reports. */
typedef struct cdp_file_info {
    uint64_t bytes;
    uint64_t device, number; /* no other file has both while this one is open */
    uint32_t owner, mode;    /* user id and permission bits as in POSIX; 0 where there are none */
    bool regular;            /* not a folder, pipe or device */
    bool removed;            /* no path leads to it any more */
    bool foreign;            /* another user owns it, or may write to it */
} cdp_file_info;

/* Files: of file stores, of dumps (cdp_group_dump, dump_path), of snapshots (cdp_mem.h) and of
   checkpoints.
   Functions return 0, or what they say, or a negative errno, and never -EINTR. */
typedef struct cdp_os_files {
    /* Returns a descriptor. Does not wait for the other end of a pipe. */
    int32_t (*open_file)(void *user, const char *path, uint32_t how);
    int32_t (*close_file)(void *user, int32_t fd);
    /* Copies up to `bytes` bytes, from the byte `at` of the file on; returns how many (0: the end
       of the file). write_at may ignore `at` where a file cannot be written elsewhere (a pipe). */
    int64_t (*read_at)(void *user, int32_t fd, uint64_t at, void *to, uint64_t bytes);
    int64_t (*write_at)(void *user, int32_t fd, uint64_t at, const void *from, uint64_t bytes);
    /* Cuts the file to this length. */
    int32_t (*cut_file)(void *user, int32_t fd, uint64_t bytes);
    /* Never waits: -EAGAIN when another process, or another descriptor of this one, has a lock
       that excludes this one. A process that ends loses its locks. */
    int32_t (*lock_file)(void *user, int32_t fd, cdp_file_lock lock);
    int32_t (*file_info)(void *user, int32_t fd, cdp_file_info *out);
    int32_t (*remove_file)(void *user, const char *path);
    /* Replaces the file `to` if there is one; a process that opens `to` gets the old file or the
       new one, never a mixture. */
    int32_t (*rename_file)(void *user, const char *from, const char *to);

    /* For checkpoints (cdp_checkpoint.h); may be NULL, all five. rename_file() must take folders,
       too, then. */

    /* Returns when what was written to the file will survive a power cut. */
    int32_t (*sync_file)(void *user, int32_t fd);
    /* The same for names in a folder: of files and folders that were created, renamed or removed
       there. Nothing to do where a file system does that by itself. */
    int32_t (*sync_folder)(void *user, const char *path);
    /* -EEXIST: something of that name is there. */
    int32_t (*make_folder)(void *user, const char *path);
    /* Removes an empty folder. */
    int32_t (*remove_folder)(void *user, const char *path);
    /* Calls each(to, name) for every name in a folder, in any order; with "." and ".." or without.
       each() does not change the folder. */
    int32_t (*list_folder)(
        void *user, const char *path, void (*each)(void *to, const char *name), void *to);

    /* Gives the file `from` one more name, `to`, which nothing has yet; its bytes go with the last
       of its names. May be NULL, and may fail where a file system has no such links: checkpoints
       copy the file then. */
    int32_t (*link_file)(void *user, const char *from, const char *to);
} cdp_os_files;

struct cdp_os {
    /* first argument of all functions here and in the groups but those that take memory: these
       get the cdp_os itself, and use its alloc and release */
    void *user;

    /* aligned to 64 bytes, or NULL; without threads and shared memory, as any C type needs it */
    void *(*alloc)(void *user, uint64_t bytes);
    void (*release)(void *user, void *ptr);                      /* NULL is allowed */
    uint64_t (*now_ns)(void *user);                              /* monotonic */
    cdp_status (*random)(void *user, void *dst, uint64_t bytes); /* unpredictable bytes */

    /* May be NULL: then a wait without descriptors polls the clock in a busy loop. May return
       before the deadline. */
    void (*sleep_until)(void *user, uint64_t deadline_ns);

    cdp_os_net net;
    cdp_os_threads threads;
    cdp_os_shared shared;
    cdp_os_files files;
};

/* POSIX: posix_memalign, CLOCK_MONOTONIC, getrandom or /dev/urandom, BSD sockets, epoll or
   poll(2), pthreads, files with flock(). Windows: QueryPerformanceCounter, BCryptGenRandom,
   Winsock, WSAPoll, SRW locks, LockFileEx, file mappings that named pipes pass; a machine that
   vanished is noticed by the keepalive alone. Paths are in the code page of the process, and
   files have no owner and mode: checks of these refuse links only. All memory that it
   keeps comes from the alloc of the cdp_os that it is called with; only the C library's own
   functions for names, interfaces and /proc allocate for themselves, and a name that is still being
   looked up at its deadline keeps 0.5 KB of the C library's heap until the answer comes. All
   descriptors are closed by exec. Static memory. Any thread. */
CDP_API const cdp_os *cdp_os_default(void);

#ifdef CDP_OS_POLL
/* For systems without epoll: sets the functions watch_... and poll_fds of os->net, so that they
   wait with `poll_fds`. They take memory from os->alloc (about 50 bytes for each descriptor, at
   most twice that) and a mutex where os->threads has them; a wait costs time that grows with the
   number of descriptors. Call it before anything is made with `os`, in one thread. Cannot fail:
   watch_open and watch_wait report -ENOMEM later; with `poll_fds` NULL, watch_wait becomes NULL,
   and whatever is made with `os` is refused (INVALID, "lacks net.watch_wait"). Needs the macro
   CDP_OS_POLL in this file and in that of the implementation. */
CDP_API void cdp_os_use_poll(cdp_os *os, cdp_poll_func *poll_fds);
#endif

/* An allocator that a part of the library uses in place of its own for one kind of memory, such as
   device memory; cdp_mem.h makes one. `stream` is the stream that uses the memory first, NULL for
   the default one; `label` names its purpose. alloc returns NULL when there is none, and sets the
   last error. Both may be called by any thread that uses the part. */
typedef struct cdp_allocator {
    void *user;
    void *(*alloc)(void *user, uint64_t bytes, void *stream, const char *label);
    void (*release)(void *user, void *data);
} cdp_allocator;

#endif /* CDP_SRC_OS_OS_API_H */
