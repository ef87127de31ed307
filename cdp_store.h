/* SPDX-License-Identifier: MIT-0 OR Unlicense
   Both texts are at the end of cdp.h. */
/*  cdp_store.h - key-value stores through which ranks find each other - v0.3.0

    WHAT IT IS
    A store is a small shared map of keys to bytes. Rank 0 stores its address there, and the other
    ranks wait for that key. This header has five kinds: a map in one process (hash), a file that
    all processes share (file), a server and its clients over TCP (tcp), a store whose keys get a
    prefix (prefix), and a store made of two functions of the program (custom). The file store has
    the file format of PyTorch's FileStore. The TCP store has the protocol of PyTorch's TCPStore,
    versions 2.x and 1.13: this client works with a Python server, and Python clients work with this
    server.

    DO THIS
        #define CDP_IMPLEMENTATION       in ONE file, before
        #include "cdp_store.h"           (other files: the #include alone; link with -pthread)
    CDP_STORE_IMPLEMENTATION implements this header and cdp.h, whose private parts it uses, in the
    same file; no other file must implement cdp.h then.

    QUICK START
        cdp_store_server_desc sd = {0};
        cdp_store_server *server;
        if (rank == 0) {
            sd.host = "127.0.0.1";
            sd.port = 29500;
            if (cdp_store_server_create(&sd, &server) != CDP_OK) return cdp_print_error(stderr);
        }
        cdp_tcp_store_desc cd = {0};
        cdp_store *store;
        cd.host = "127.0.0.1";
        cd.port = 29500;
        // waits until the server listens
        if (cdp_tcp_store_create(&cd, &store) != CDP_OK) return cdp_print_error(stderr);
        if (rank == 0 && cdp_store_set(store, "hello", "world", 5) != CDP_OK)
            return cdp_print_error(stderr);
        void *value;
        uint64_t bytes;
        if (cdp_store_get(store, "hello", &value, &bytes, 0) != CDP_OK)
            return cdp_print_error(stderr);
        puts((const char *)value);
        cdp_store_free(store, value);
        cdp_store_destroy(store);
        if (rank == 0) cdp_store_server_destroy(server);

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_store.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                      call
        publish a value                                   cdp_store_set, cdp_store_multi_set
        wait for a value and read it                      cdp_store_get, cdp_store_multi_get
        count arrivals, draw unique numbers               cdp_store_add
        let exactly one rank win                          cdp_store_compare_set(key, "" -> mine),
                                                          compare the answer
        wait for keys / test whether they exist           cdp_store_wait / cdp_store_check
        hand values to the next rank that is free         cdp_store_queue_push, cdp_store_queue_pop
        list the keys                                     cdp_store_list_keys
        wait until all ranks have called                  cdp_store_barrier
        wait until so many clients are there              cdp_store_wait_workers, .count_me
        wait in one thread and set in another             cdp_store_clone
        keep two users of one store apart                 cdp_prefix_store_create
        use a shared file system instead of a server      cdp_file_store_create
        make a store of two functions                     cdp_custom_store_create
        change how long calls wait                        cdp_store_set_timeout
        report that this process died                     will_key, will_value of cdp_tcp_store_desc
        start a request and do something else meanwhile   store->start(), then store->wait() with a
                                                          deadline in the past

    CONFIGURATION
        CDP_API, CDP_STATIC, CDP_NO_STDIO, CDP_NO_THREADS, CDP_NO_LOG_STRINGS: see cdp.h.
        CDP_NO_HASH_STORE, CDP_NO_PREFIX_STORE, CDP_NO_CUSTOM_STORE
                             no such store; the same in every file
        CDP_NO_STORE_CALLS   cdp_store_set, cdp_store_get, cdp_store_add, cdp_store_compare_set and
                             cdp_store_run are all calls on keys, as cdp_init() needs them: no
                             append, wait, check, delete, num_keys, list_keys, queues, barrier,
                             clone, multi_get, multi_set; a server closes the connection of a client
                             that sends such a request, and PyTorch 1.13 is not understood. Requests
                             for what is left out return UNSUPPORTED. The same in every file
        CDP_NO_STORE_SERVER  no cdp_store_server_create and what belongs to it: the program uses
                             stores that others serve; see also cdp_tcp.h. The same in every file
        CDP_NO_JOB_KEY       no authentication: a job_key in a desc is UNSUPPORTED, and a server or
                             rank without trust_network serves its own machine only; it closes
                             other connections without telling the reason. The same in every file
        CDP_NO_FILE_STORE    no file store; the same
                             in every file

    THREADS
        hash, file and custom store: any number of threads may call at once. tcp store with its own
        loop: likewise, but the client sends one request at a time, so a waiting get() delays the
        calls of other threads; cdp_store_clone() makes a second client for those. tcp store or
        server on a loop of the desc: the caller's lock must guard all calls. prefix store: as its
        inner store. Server: create, poll and destroy from one thread at a time; port from any.
        Create and destroy a store while no other thread uses it. In a child of fork() the calls of
        a store or server of its parent are STATE, and destroying it does nothing;
        cdp_store_clone() of a tcp store makes one for the child. A file store goes on there, but
        the child is not counted among the users of its file.

    MEMORY
        All memory comes from desc.os->alloc. A connected client without a request takes about half
        a KiB of the server's memory. The caller owns the values that a call returns and frees them
        with cdp_store_free().

    ERRORS
        INVALID      an argument is wrong; the text names it and its limit. Correct the call.
        NOMEM        os->alloc failed. Free memory and call again. If a TCP client had no memory for
                     an answer, the server has carried out the request all the same.
        TIMEOUT      the deadline passed. The text says whether the key was never set, an earlier
                     call on this client has not ended, or the store does not answer. The client can
                     be used again; a request that was sent may still take effect.
        STORE        the connection to the server broke, or a file is no store. The text says
                     whether the process of the server ended or its machine does not answer. A
                     server also closes the connection when a request exceeds its limits (its log
                     says which). Destroy the store, and create another one.
        STATE        the server was closed by cdp_store_server_destroy(), or the store was
                     destroyed, or the one under a prefix store, or this process is a child of
                     fork(). Destroy the store.
        UNSUPPORTED  this kind of store has no such operation; the text names one that has.
        IO           a socket or file operation failed; the text names address or path and errno.

    LIMITS
        Every store: 8191 bytes for a key, 8 MiB for a value (max_value_bytes of server and client),
        131072 keys in one call. A server: 1 GiB of memory in total and 65536 clients, both members
        of its desc, and 1024 connections that have not greeted yet. Keys and values may be empty
        and may hold any bytes. cdp_store_run() takes keys that contain zero bytes.

    License: that of cdp.h. */

/* Joined from src/cdp_store.h and what it includes: change that, then `make headers`. */
#if defined(CDP_STORE_IMPLEMENTATION) && !defined(CDP_CORE_IMPLEMENTATION)
#define CDP_CORE_IMPLEMENTATION
#endif
#if !defined(CDP_INCLUDED) \
    || defined(CDP_IMPLEMENTATION) || defined(CDP_CORE_IMPLEMENTATION) \
    || defined(CDP_STORE_IMPLEMENTATION)
#include "cdp.h"
#endif

#ifndef CDP_STORE_INCLUDED
#define CDP_STORE_INCLUDED

#define CDP_STORE_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_STORE_VERSION != CDP_VERSION
#error "cdp_store.h and cdp.h are of different versions: copy both from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- >>store/desc_api: what a store or a server is made from --------------------------------- */

struct cdp__loop; /* a loop shared by several parts of the library; programs leave it NULL */

/* Defaults of the server, and limits of its clients. */
#define CDP_STORE_MAX_KEY_BYTES 8192u
#define CDP_STORE_MAX_VALUE_BYTES 8388608u
#define CDP_STORE_MAX_LIST 131072u

typedef struct cdp_hash_store_desc {
    const cdp_os *os;    /* (default: cdp_os_default()); must outlive the store */
    uint32_t timeout_ms; /* of calls whose timeout_ms is 0 (default: 300000; or CDP_NO_TIMEOUT) */
} cdp_hash_store_desc;

#ifndef CDP_NO_HASH_STORE
/* Creates a map inside this process, which any number of threads may use at once. If `os` has no
   threads, a wait for an absent key times out at once. `desc` may be NULL. On success the caller
   owns *out and ends it with cdp_store_destroy(); on failure *out is NULL. Errors: INVALID (`out`
   is NULL); NOMEM (free memory and call again). */
CDP_MUST_CHECK CDP_API cdp_status cdp_hash_store_create(
    const cdp_hash_store_desc *desc, cdp_store **out);
#endif /* CDP_NO_HASH_STORE */

#ifndef CDP_NO_PREFIX_STORE
/* Creates a view of `inner` in which every key k stands for the key `prefix`/k. Prefix stores nest.
   The caller keeps `inner`, which must outlive the view, and owns *out (cdp_store_destroy(), which
   leaves `inner` alone). `prefix` is copied. Calls after `inner` was destroyed are STATE.
   cdp_store_num_keys() counts all keys of `inner`. Calls may be made by the threads that may use
   `inner`. Errors: INVALID (a NULL argument); NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_prefix_store_create(
    cdp_store *inner, const char *prefix, cdp_store **out);
#endif /* CDP_NO_PREFIX_STORE */

/* Two functions of the program from which the library makes all operations of a store. Each
   operation is atomic if `swap` is. The library calls them from one thread at a time, with a lock
   held: they must return soon and must not call the store. To report an error, they call
   cdp_error_set() and return its negative status.
       get    Sets *value to the key's value and returns CDP_OK, or returns CDP_PENDING if the key
              is absent. The bytes stay valid until the next call of get, or until swap returns.
       swap   If the key's value equals `expected` (NULL: if the key is absent), stores `desired`
              (NULL: removes the key) and returns CDP_OK; else returns CDP_PENDING. The comparison
              and the change are one atomic step for all users of the store. */
typedef struct cdp_custom_store_desc {
    /* required */
    cdp_status (*get)(void *user, cdp_bytes key, cdp_bytes *value);
    /* required */
    cdp_status (*swap)(
        void *user, cdp_bytes key, const cdp_bytes *expected, const cdp_bytes *desired);
    /* (default: cdp_store_num_keys is UNSUPPORTED) */
    cdp_status (*num_keys)(void *user, int64_t *count);
    /* called once, by cdp_store_destroy() (default: nothing is called) */
    void (*destroy)(void *user);
    /* the first argument of these functions */
    void *user;
    /* of calls whose timeout_ms is 0 (default: 300000; or CDP_NO_TIMEOUT) */
    uint32_t timeout_ms;
    /* (default: cdp_os_default()); must outlive the store */
    const cdp_os *os;
} cdp_custom_store_desc;

#ifndef CDP_NO_CUSTOM_STORE
/* Creates a store from two functions. The desc is copied; what it points to must outlive the store.
   A wait for a key calls `get` every 10 ms or more often. Any number of threads may use the store.
   The caller owns *out (cdp_store_destroy()). Errors: INVALID (`get` or `swap` is missing, or `out`
   is NULL); NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_custom_store_create(
    const cdp_custom_store_desc *desc, cdp_store **out);
#endif /* CDP_NO_CUSTOM_STORE */

#ifndef CDP_NO_FILE_STORE
typedef struct cdp_file_store_desc {
    /* required: a file on a file system with flock() that all processes can open; created if it
       does not exist; copied */
    const char *path;
    /* number of users. The last one removes the file when that many have destroyed their stores
       (default: 0, the file is kept) */
    uint32_t world_size;
    /* of calls whose timeout_ms is 0, and of the creation (default: 300000; or CDP_NO_TIMEOUT) */
    uint32_t timeout_ms;
    /* for directories in which other users may create files, such as /tmp: creates the file with
       mode 0600, and refuses (INVALID) a file that is a symbolic link, belongs to another user, or
       is writable by others (default: mode 0644, no check) */
    bool private_file;
    /* (default: cdp_os_default()); must outlive the store */
    const cdp_os *os;
} cdp_file_store_desc;

/* Opens a store in a file to which all users append records; torch.distributed.FileStore reads and
   writes the same file. Users may open and destroy their stores at any time, and may be killed at
   any point: the next user truncates an incomplete record. A killed user does not count as one that
   destroyed its store, so the file then remains. Remove it, or choose another path, before the next
   run, which would read the old keys. The file only grows; cdp_store_append() writes the whole
   value again. A wait for a key reads the file every 10 ms or more often. cdp_store_num_keys()
   includes the keys in which the users are counted. Any number of threads may use the store. The
   caller owns *out (cdp_store_destroy()). Errors: INVALID (the desc, or `private_file` refused the
   file); NOMEM; IO (the text names path and errno); STORE (the file is not a store, or is damaged:
   remove it); TIMEOUT (another process kept the file locked: resume or end that process);
   UNSUPPORTED (the os has no files). */
CDP_MUST_CHECK CDP_API cdp_status cdp_file_store_create(
    const cdp_file_store_desc *desc, cdp_store **out);
#endif

typedef struct cdp_tcp_store_desc {
    /* required unless `addrs` is set: an address ("10.0.0.1", "::1", "[fe80::1%2]") or a name;
       copied */
    const char *host;
    /* required unless `addrs` is set */
    uint16_t port;
    /* instead of host and port: up to 16 addresses with ports, tried in this order; copied */
    const cdp_addr *addrs;
    uint32_t addr_count;
    /* of calls whose timeout_ms is 0 (default: 300000; or CDP_NO_TIMEOUT) */
    uint32_t timeout_ms;
    /* how long to try to connect (default: timeout_ms) */
    uint32_t connect_timeout_ms;
    /* Last will: if the connection of this client ends without cdp_store_destroy(), the server runs
       compare_set(will_key, "" -> will_value); also if a server that has stopped lets nothing more
       be sent to it for the 100 ms that cdp_store_destroy() waits. Both are copied. Only servers of
       this library support it; with others the client logs that at level INFO (default: none) */
    const char *will_key;
    cdp_bytes will_value;
    /* cdp_store_set() and others refuse larger values, and a larger answer breaks the connection.
       To exceed the default, raise the server's max_value_bytes too (default:
       CDP_STORE_MAX_VALUE_BYTES) */
    uint64_t max_value_bytes;
    /* the secret of the server; stored as a hash (default: none) */
    const char *job_key;
    /* count as one of the workers that a TCPStore of PyTorch with a world size waits for */
    bool count_me;
    /* (default: cdp_os_default()); must outlive the store */
    const cdp_os *os;
    /* (default: warnings and errors to stderr) */
    cdp_logger logger;
    /* for parts of this library: the loop to run on; must outlive the store (default: its own) */
    struct cdp__loop *loop;
} cdp_tcp_store_desc;

/* Connects to a store server. Blocks until the server answers, at most connect_timeout_ms: the
   client retries a refused connection with growing pauses and tries all addresses of a name in
   turn. The server may be one of this library, or PyTorch's of version 2.x or 1.13; the client
   detects which. The caller owns *out (cdp_store_destroy()). Errors: INVALID (the desc); NOMEM;
   TIMEOUT (no server answered; the text names the address, the last errno and what to check); STORE
   (something else than a store answered: check host and port); MISMATCH (the job keys differ or one
   side has none, or the server serves only its own machine; the text says what to set). */
CDP_MUST_CHECK CDP_API cdp_status cdp_tcp_store_create(
    const cdp_tcp_store_desc *desc, cdp_store **out);

typedef struct cdp_store_server cdp_store_server;

typedef struct cdp_store_server_desc {
    /* the address or name to listen at: "0.0.0.0" for all interfaces, "::" for all including IPv6,
       "*" for whichever of these two works (default: 127.0.0.1) */
    const char *host;
    /* the same as an address (family 0: host is used); its port is used if `port` is 0 */
    cdp_addr addr;
    /* (default: 0, any free port; cdp_store_server_port() returns it) */
    uint16_t port;
    /* use listen_fd, a socket that is bound and listening, instead of host and port. The server
       closes it in cdp_store_server_destroy(), and when creation fails after the desc was accepted
       */
    bool has_listen_fd;
    int32_t listen_fd;
    /* of a key with the slash that clients put in front (default: 8 KiB) */
    uint64_t max_key_bytes;
    /* of a value (default: 8 MiB) */
    uint64_t max_value_bytes;
    /* number of keys in one request (default: 131072) */
    uint64_t max_list;
    /* of the map and all buffers together (default: 1 GiB) */
    uint64_t max_total_bytes;
    /* of answers that one client has not read yet; beyond it the server closes the connection
       (default: 64 MiB) */
    uint64_t max_reply_bytes;
    /* number of connections (default: 65536) */
    uint32_t max_clients;
    /* the server closes a connection without a complete greeting after this time (default: 30000)
       */
    uint32_t handshake_timeout_ms;
    /* a secret text of 16 random characters or more that every client must have. PyTorch's clients
       have none and are refused (default: none, and only processes of this machine are served) */
    const char *job_key;
    /* without a job_key, serve other machines too: every program that reaches the port can read
       and change everything. For jobs on several machines with PyTorch's clients */
    bool trust_network;
    /* start no thread: the server works only in cdp_store_server_poll() */
    bool no_thread;
    /* (default: cdp_os_default()); must outlive the server */
    const cdp_os *os;
    /* (default: warnings and errors to stderr) */
    cdp_logger logger;
    /* for parts of this library: the loop to run on (default: its own, with a thread if `os` has
       threads) */
    struct cdp__loop *loop;
} cdp_store_server_desc;

#ifndef CDP_NO_STORE_SERVER
/* Starts a server for both dialects of PyTorch's TCPStore, that of 2.x and that of 1.13. Without a
   job_key it serves only processes of this machine. With one, client and server prove to each other
   that they have it before the server parses any other byte (SECURITY in cdp_tcp.h). The server
   logs why it refuses a connection, and sends the reason to clients of this library. It logs a
   warning if the job_key has fewer than 16 characters. Blocks only to resolve a name. The desc and
   its texts are copied; the caller owns *out (cdp_store_server_destroy()). Errors: INVALID (the
   desc); NOMEM; IO (it cannot listen, or start its thread; the text names address, port and errno.
   If the port is in use, choose another one, or 0). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_server_create(
    const cdp_store_server_desc *desc, cdp_store_server **out);

/* Returns the port at which the server listens; 0 for NULL. Any thread may call it. */
CDP_API uint16_t cdp_store_server_port(const cdp_store_server *server);

/* Lets a server without a thread work: sleeps until a client sends something or os->now_ns()
   reaches deadline_ns (0: does not sleep), then answers the requests that have arrived. One thread
   at a time. Errors: STATE (the server has a thread: do not call this); NOMEM and IO (call again
   later). */
CDP_API cdp_status cdp_store_server_poll(cdp_store_server *server, uint64_t deadline_ns);

/* Closes all connections and frees the server. Waits up to 300 ms for clients that are still
   reading an answer. Other calls of connected clients of this library fail with STATE. No other
   thread may use the server meanwhile. NULL is allowed. */
CDP_API void cdp_store_server_destroy(cdp_store_server *server);
#endif /* CDP_NO_STORE_SERVER */

/* ---- >>store/store_api: what programs call --------------------------------------------------- */

/* All calls. The deadline counts from the call. timeout_ms 0, and calls without one, use the
   store's timeout (cdp_store_set_timeout); CDP_NO_TIMEOUT waits for ever. The caller keeps keys and
   values that it passes in; the library reads them until the call returns. `key` is text that ends
   with a zero byte. Results are set to NULL, 0 or false if the call fails. Errors of every call,
   explained in ERRORS above: INVALID (a NULL argument, or a key or value above the limits), NOMEM,
   TIMEOUT, STORE, STATE; with a file store also IO. Calls name only their other errors.

   Consistency. A store is one map, and each call takes effect at one moment between its begin and
   its end. A call that failed may take effect later, or never. A TCP store promises less: set,
   append, multi_set and queue_push have no answer, and take effect by the end of this client's next
   call that has one, which all other calls do; calls with several keys test one key after the
   other; and get may read an empty value if the key is deleted during the call. */

/* Stores `bytes` bytes under `key`. A TCP store returns when the bytes are on their way; a later
   call on the same store reads the new value. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_set(
    cdp_store *store, const char *key, const void *value, uint64_t bytes);

/* Waits until the key exists and reads its value. *value has *bytes bytes (`bytes` may be NULL) and
   one zero byte after them; the caller frees it with cdp_store_free(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_get(
    cdp_store *store, const char *key, void **value, uint64_t *bytes, uint32_t timeout_ms);

/* Adds `delta` to the key's value, a decimal number (0 if the key is absent), wrapping around at 64
   bits; *sum (may be NULL) is the result. Errors: INVALID if the value is not a number; a TCP
   server closes this client's connection then (STORE). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_add(
    cdp_store *store, const char *key, int64_t delta, int64_t *sum);

/* Stores `desired` if the key's value equals `expected`, or if the key is absent and `expected` is
   empty. *value (`bytes` may be NULL) is the value after the call, or `expected` if the key is
   absent and `expected` is not empty. The caller frees it with cdp_store_free(). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_compare_set(cdp_store *store, const char *key,
    const void *expected, uint64_t expected_bytes, const void *desired, uint64_t desired_bytes,
    void **value, uint64_t *bytes);

#ifndef CDP_NO_STORE_CALLS

/* Waits until each of `count` keys has existed. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_wait(
    cdp_store *store, const char *const *keys, uint32_t count, uint32_t timeout_ms);

/* Tests, without waiting for them, whether all `count` keys exist. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_check(
    cdp_store *store, const char *const *keys, uint32_t count, bool *all_there);

/* Deletes the key if it exists. *was_there (may be NULL): whether it did. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_delete(
    cdp_store *store, const char *key, bool *was_there);

/* Counts the keys of the whole store, including those under other prefixes. Errors: UNSUPPORTED (a
   custom store without `num_keys`). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_num_keys(cdp_store *store, int64_t *count);

/* Appends `bytes` bytes to the key's value, or sets it if the key is absent. Errors: UNSUPPORTED
   (servers of PyTorch 1.13). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_append(
    cdp_store *store, const char *key, const void *value, uint64_t bytes);

/* Lists the keys that begin with the store's prefix, without that prefix: keys[0 .. *count - 1], in
   any order, each followed by a zero byte. A key that is set or deleted during the call may be
   missing. *keys is one block, which the caller frees with cdp_store_free(). Errors: UNSUPPORTED
   (custom stores, servers of PyTorch 1.13); STORE (servers of PyTorch 2.x that are too old for this
   close the connection). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_list_keys(
    cdp_store *store, cdp_bytes **keys, uint64_t *count);

/* Queues of values: first in, first out. A queue has a name of its own that is not a key: it is not
   counted, listed or deleted with the keys. But cdp_store_wait() and cdp_store_check() of that name
   succeed while the queue holds a value. Do not set an ordinary value under the same name. Errors
   of these four calls: UNSUPPORTED (file and custom stores, servers of PyTorch 1.13). */

/* Puts a value at the end of a queue, which exists without being created, and wakes one waiting
   client. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_queue_push(
    cdp_store *store, const char *key, const void *value, uint64_t bytes);

/* Waits until the queue holds a value, and removes its first value. *value and *bytes as in
   cdp_store_get(). With a TCP store, a removed value is lost if the connection breaks or the
   deadline passes before its answer arrives. Errors: STATE also if an ordinary value was set under
   this name. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_queue_pop(
    cdp_store *store, const char *key, void **value, uint64_t *bytes, uint32_t timeout_ms);

/* Like cdp_store_queue_pop(), but does not wait: *value is NULL if the queue is empty. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_queue_try_pop(
    cdp_store *store, const char *key, void **value, uint64_t *bytes);

/* Counts the values in the queue. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_queue_len(
    cdp_store *store, const char *key, int64_t *count);

/* Waits until `count` callers, including this one, have called it with this key. The key counts
   them and is not reset, so use a new key for each barrier. A caller that timed out stays counted.
   Errors: UNSUPPORTED (servers of PyTorch 1.13). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_barrier(
    cdp_store *store, const char *key, uint32_t count, uint32_t timeout_ms);

/* Waits until `workers` clients have counted themselves: those of this library with count_me, and
   PyTorch's TCPStore with a world_size, of which the process that serves the store waits so. Asks
   every 10 ms. Call it on a store of cdp_tcp_store_create(), such as a client of one's own server;
   one with count_me counts, too, and no other thread may use it meanwhile. Clones of such a store
   count once more. Errors: INVALID (no store, no workers); TIMEOUT (the text says how many have
   come); UNSUPPORTED (another kind of store: use cdp_store_barrier()). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_wait_workers(
    cdp_store *store, uint32_t workers, uint32_t timeout_ms);

/* Connects a second client, without a last will, to the server of a TCP store or of a prefix store
   on one: a wait on one of them does not delay calls on the other. Blocks until it is connected, at
   most the store's timeout. The caller owns *out (cdp_store_destroy()). Errors: those of
   cdp_tcp_store_create(); UNSUPPORTED (hash, file and custom stores, which any number of threads
   can use at once: use the store itself). */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_clone(cdp_store *store, cdp_store **out);

/* Waits until all `count` keys exist and reads them: values[0 .. count - 1] (memory of the caller)
   point into *memory, each followed by a zero byte. The caller frees *memory with cdp_store_free().
   */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_multi_get(cdp_store *store, const char *const *keys,
    uint32_t count, cdp_bytes *values, void **memory, uint32_t timeout_ms);

/* Stores values[i] under keys[i] for each i below `count`. Other users may read some of the new
   values before the rest are stored. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_multi_set(
    cdp_store *store, const char *const *keys, const cdp_bytes *values, uint32_t count);

#endif /* CDP_NO_STORE_CALLS */

/* Sets the timeout, in milliseconds, of calls whose timeout_ms is 0 and of calls that take none (0:
   300000; or CDP_NO_TIMEOUT). A prefix store has the timeout of its inner store, as have all other
   prefixes of that. No other thread may use the store meanwhile. NULL is allowed. */
CDP_API void cdp_store_set_timeout(cdp_store *store, uint32_t timeout_ms);
/* Returns that timeout in milliseconds; 0 if `store` is NULL. */
CDP_API uint32_t cdp_store_timeout(const cdp_store *store);

/* Frees memory that a call on this store returned, once, before the store is destroyed; afterwards
   nothing is freed. NULL is allowed. Any thread may call it. */
CDP_API void cdp_store_free(cdp_store *store, void *memory);

/* Ends a store: closes its connection or file and frees it. Does not wait for other processes;
   returns within about 100 ms. No other thread may use the store meanwhile. NULL is allowed; a
   second time it only sets the last error (STATE). */
CDP_API void cdp_store_destroy(cdp_store *store);

/* The general form of the calls above: starts `request`, waits for it, and at the deadline cancels
   it and returns TIMEOUT. The caller owns the request and its keys and values, and frees its
   results with cdp_store_request_free(). Errors: those of the call that has this operation. */
CDP_MUST_CHECK CDP_API cdp_status cdp_store_run(
    cdp_store *store, cdp_store_request *request, uint32_t timeout_ms);

/* Frees the results of a request that is done, before the store is destroyed; afterwards nothing is
   freed. A second call does nothing. NULL is allowed.
   If you implement a store: `results` must be one block from os->alloc, and so must each
   results[i].data. If you start requests yourself: where several threads share a client, a request
   can complete just before it is cancelled; its status is then CDP_OK, and it may have results to
   free. The status of a prefix store's request changes only in start(), wait() and cancel(). */
CDP_API void cdp_store_request_free(cdp_store *store, cdp_store_request *request);

#ifdef __cplusplus
} /* extern "C" */
#endif
/* ---- >>store/cxx_api: descs by reference in C++ ---------------------------------------------- */

#ifdef __cplusplus
extern "C++" { /* also where a program includes the header in extern "C" */
#ifndef CDP_NO_HASH_STORE
inline cdp_status cdp_hash_store_create(const cdp_hash_store_desc &desc, cdp_store **out) {
    return cdp_hash_store_create(&desc, out);
}
#endif
#ifndef CDP_NO_CUSTOM_STORE
inline cdp_status cdp_custom_store_create(const cdp_custom_store_desc &desc, cdp_store **out) {
    return cdp_custom_store_create(&desc, out);
}
#endif
#ifndef CDP_NO_FILE_STORE
inline cdp_status cdp_file_store_create(const cdp_file_store_desc &desc, cdp_store **out) {
    return cdp_file_store_create(&desc, out);
}
#endif
inline cdp_status cdp_tcp_store_create(const cdp_tcp_store_desc &desc, cdp_store **out) {
    return cdp_tcp_store_create(&desc, out);
}
#ifndef CDP_NO_STORE_SERVER
inline cdp_status cdp_store_server_create(
    const cdp_store_server_desc &desc, cdp_store_server **out) {
    return cdp_store_server_create(&desc, out);
}
#endif
} /* extern "C++" */
#endif

#endif /* CDP_STORE_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_STORE_IMPLEMENTATION)) \
    && !defined(CDP_STORE_IMPL_INCLUDED)
#define CDP_STORE_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_STORE

/* ---- >>store/addr: literal addresses (pure) -------------------------------------------------- */

/* Knows: the text forms of IP addresses. Promises: only canonical forms are accepted. */

/* Parsers return a pointer to the first character that they did not consume, or NULL. */

/* Refuses leading zeros: some programs read "010" as 8, others as 10. */
CDP__PRIVATE const char *cdp__addr_decimal(const char *p, uint32_t max, uint32_t *out) {
    const char *start = p;
    uint64_t v = 0;
    for (; *p >= '0' && *p <= '9'; ++p) {
        v = v * 10 + (uint64_t)(*p - '0');
        if (v > max) return NULL;
    }
    if (p == start || (*start == '0' && p > start + 1)) return NULL;
    *out = (uint32_t)v;
    return p;
}

CDP__PRIVATE const char *cdp__addr_ip4(const char *p, uint8_t *ip) {
    uint32_t i, v;
    for (i = 0; i < 4; ++i) {
        if (i && *p++ != '.') return NULL;
        p = cdp__addr_decimal(p, 255, &v);
        if (!p) return NULL;
        ip[i] = (uint8_t)v;
    }
    return p;
}

CDP__PRIVATE int32_t cdp__addr_hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Parses one group of an IPv6 address, or a dotted IPv4 tail, which stands for two groups.
   *bytes: length of the result. */
CDP__PRIVATE const char *cdp__addr_ip6_group(
    const char *p, uint8_t *ip, uint32_t room, uint32_t *bytes) {
    uint32_t v = 0, digits = 0;
    if (room >= 4) {
        const char *q = cdp__addr_ip4(p, ip);
        if (q) {
            *bytes = 4;
            return q;
        }
    }
    for (; cdp__addr_hex(*p) >= 0; ++p) {
        v = v << 4 | (uint32_t)cdp__addr_hex(*p);
        if (++digits > 4) return NULL;
    }
    if (!digits || room < 2) return NULL;
    ip[0] = (uint8_t)(v >> 8);
    ip[1] = (uint8_t)v;
    *bytes = 2;
    return p;
}

CDP__PRIVATE const char *cdp__addr_ip6(const char *p, uint8_t *ip) {
    uint8_t got[16];
    uint32_t n = 0, gap = 99, bytes; /* gap: byte position of "::"; 99: there is none */
    if (p[0] == ':') {
        if (p[1] != ':') return NULL;
        p += 2;
        gap = 0;
    }
    while (n < 16 && cdp__addr_hex(*p) >= 0) {
        p = cdp__addr_ip6_group(p, got + n, 16 - n, &bytes);
        if (!p) return NULL;
        n += bytes;
        if (bytes == 4 || *p != ':' || n == 16) break;
        if (p[1] == ':') {
            if (gap != 99) return NULL;
            gap = n;
            p += 2;
        } else if (cdp__addr_hex(*++p) < 0) {
            return NULL;
        }
    }
    if (gap == 99 ? n != 16 : n > 14) return NULL;
    gap = gap == 99 ? 16 : gap;
    memset(ip, 0, 16);
    memcpy(ip, got, gap);
    memcpy(ip + 16 - (n - gap), got + gap, n - gap);
    return p;
}

/* True if `text` may name a host: not "http://node7", nor " node7", for which a resolver would be
   asked again and again. */
CDP__PRIVATE CDP__COLD bool cdp__host_plausible(const char *text) {
    const char *p;
    for (p = text; *p; ++p)
        if ((unsigned char)*p <= ' ' || strchr("/\\\"'@?#,;", *p)) return false;
    return p != text;
}

/* Parses "1.2.3.4", "1.2.3.4:80", "::1", "[::1]", "[::1]:80", "fe80::1%3". False for all other
   texts, including host names and interface names after %. Without a port in the text, out->port
   is 0. */
CDP__PRIVATE CDP__COLD bool cdp__addr_parse(const char *text, cdp_addr *out) {
    const bool bracket = *text == '[';
    uint32_t v = 0;
    const char *p;
    memset(out, 0, sizeof *out);
    p = bracket ? NULL : cdp__addr_ip4(text, out->ip);
    if (p) {
        out->family = 4;
    } else {
        p = cdp__addr_ip6(text + bracket, out->ip);
        if (p && *p == '%') {
            p = cdp__addr_decimal(p + 1, UINT32_MAX, &v);
            out->scope = v;
        }
        if (!p || (bracket && *p++ != ']')) return false;
        out->family = 6;
    }
    if (*p == ':' && (bracket || out->family == 4)) {
        p = cdp__addr_decimal(p + 1, 65535, &v);
        out->port = (uint16_t)v;
    }
    return p && !*p;
}

CDP__PRIVATE uint32_t cdp__addr_word(const cdp_addr *a, uint32_t i) {
    return (uint32_t)a->ip[2 * i] << 8 | a->ip[2 * i + 1];
}

/* Finds the longest run of two or more zero groups; the first of equal ones (RFC 5952). */
CDP__PRIVATE uint32_t cdp__addr_zeros(const cdp_addr *a, uint32_t *length) {
    uint32_t i, run = 0, best = 8;
    *length = 1;
    for (i = 0; i < 8; ++i) {
        run = cdp__addr_word(a, i) ? 0 : run + 1;
        if (run > *length) {
            *length = run;
            best = i + 1 - run;
        }
    }
    return best;
}

/* Formats as "1.2.3.4:80" or "[fe80::1%3]:80"; 64 bytes are enough for every address. Returns
   dst. */
CDP__PRIVATE const char *cdp__addr_text(const cdp_addr *a, char *dst, uint64_t size) {
    cdp__text t = cdp__text_of(dst, size);
    uint32_t i, run, zeros;
    if (a->family == 4) {
        cdp__text_add(&t, "%u.%u.%u.%u:%u", a->ip[0], a->ip[1], a->ip[2], a->ip[3], a->port);
        return dst;
    }
    if (a->family != 6) {
        cdp__text_add(&t, "(no address)");
        return dst;
    }
    zeros = cdp__addr_zeros(a, &run);
    cdp__text_add(&t, "[");
    for (i = 0; i < 8; ++i) {
        if (i == zeros) {
            cdp__text_add(&t, "::");
            i += run - 1;
        } else {
            cdp__text_add(&t, i && i != zeros + run ? ":%x" : "%x", cdp__addr_word(a, i));
        }
    }
    if (a->scope) cdp__text_add(&t, "%%%u", a->scope);
    cdp__text_add(&t, "]:%u", a->port);
    return dst;
}

/* True if a connection from `from` to this host's address `here` comes from this host: over
   loopback, or from the same address, which no other host can have. */
CDP__PRIVATE bool cdp__addr_is_here(const cdp_addr *from, const cdp_addr *here) {
    static const uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255},
                         loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    const bool v4_in_v6 = from->family == 6 && memcmp(from->ip, mapped, 12) == 0;
    if ((from->family == 4 || v4_in_v6) && from->ip[v4_in_v6 ? 12 : 0] == 127) return true;
    if (from->family == 6 && memcmp(from->ip, loopback, 16) == 0) return true;
    return from->family == here->family
        && memcmp(from->ip, here->ip, from->family == 4 ? 4 : 16) == 0;
}

/* ---- >>store/wire: requests as bytes (pure) -------------------------------------------------- */

/* Knows: both dialects of PyTorch's protocol. Promises: no message makes its reader access memory
   beyond the received bytes. */

/* PyTorch's TCPStore protocol: an opcode, then fields. Integers are little-endian; a string or a
   value is a 64-bit length and that many bytes. Answers have no opcode, because they arrive in
   the order of the requests. There are two dialects: that of 2.x, and the older one of 1.13,
   which has no greeting, other opcodes, and fewer of them. */
typedef enum cdp__cmd {
    CDP__CMD_NONE,
    CDP__CMD_VALIDATE,
    CDP__CMD_SET,
    CDP__CMD_COMPARE_SET,
    CDP__CMD_GET,
    CDP__CMD_ADD,
    CDP__CMD_CHECK,
    CDP__CMD_WAIT,
    CDP__CMD_NUM_KEYS,
    CDP__CMD_DELETE,
    CDP__CMD_APPEND,
    CDP__CMD_MULTI_GET,
    CDP__CMD_MULTI_SET,
    CDP__CMD_CANCEL_WAIT,
    CDP__CMD_PING,
    CDP__CMD_QUEUE_PUSH,
    CDP__CMD_QUEUE_POP,
    CDP__CMD_QUEUE_LEN,
    CDP__CMD_LIST_KEYS,
    CDP__CMD_BARRIER,
    CDP__CMD_LAST_WILL,
    CDP__CMD_TRY_GET,
    CDP__CMD_WATCH,
    CDP__CMD_KEY,
    CDP__CMD_COUNT
} cdp__cmd;

#define CDP__OP_VALIDATE 0
#define CDP__OP_SET 1
#define CDP__OP_COMPARE_SET 2
#define CDP__OP_GET 3
#define CDP__OP_ADD 4
#define CDP__OP_CHECK 5
#define CDP__OP_WAIT 6
#define CDP__OP_NUM_KEYS 7
#define CDP__OP_DELETE 8
#define CDP__OP_APPEND 9
#define CDP__OP_MULTI_GET 10
#define CDP__OP_MULTI_SET 11
#define CDP__OP_CANCEL_WAIT 12
#define CDP__OP_PING 13
#define CDP__OP_QUEUE_PUSH 14
#define CDP__OP_QUEUE_POP 15
#define CDP__OP_QUEUE_LEN 16
#define CDP__OP_LIST_KEYS 17
#define CDP__OP_BARRIER 18
#define CDP__OP_LAST_WILL 0xC0 /* an extension of this library */
/* An extension of this library: a CHECK of one key and, if it exists, a GET, so that reading an
   existing key takes one round trip. */
#define CDP__OP_TRY_GET 0xC1
#define CDP__OP_OLD_GET 2 /* 1.13: its first eight opcodes are smaller by one */
#define CDP__OP_OLD_CHECK 4
#define CDP__OP_OLD_NUM_KEYS 6

#define CDP__WIRE_MAGIC 0x3C85F7CEu
#define CDP__WIRE_READY 0
#define CDP__WIRE_NOT_READY 1
#define CDP__WIRE_STOP_WAITING 0
#define CDP__WIRE_CANCELED 1
/* An extension of this library: answers a wait when the server is being closed with
   cdp_store_server_destroy(). */
#define CDP__WIRE_CLOSING 2
#define CDP__WIRE_WATCH_UPDATED 0
#define CDP__WIRE_WATCH_CREATED 1
#define CDP__WIRE_WATCH_DELETED 2
#define CDP__WIRE_WATCH_BEGINS 3

/* If this key exists, the server is one of this library. Keys of programs begin with a slash. */
#define CDP__WIRE_CDP_SERVER "cdp/server"

/* A row of a dialect's table. Fields: k key, v value, i 64-bit integer, u 32-bit integer; a
   leading * means a 64-bit count and that many repetitions of the rest. */
typedef struct cdp__wire_row {
    uint8_t op, cmd;
    const char *fields;
} cdp__wire_row;

/* The first command of a connection, when its dialect is not known yet. */
static const cdp__wire_row cdp__wire_greeting[] = {
    {CDP__OP_VALIDATE, CDP__CMD_VALIDATE, "u"},
    {'c', CDP__CMD_KEY, ""}, /* start of an authentication exchange */
    {0, CDP__CMD_NONE, NULL},
};

/* True if a connection speaks the dialect of PyTorch 1.13. A constant in builds without that
   dialect. */
#ifdef CDP_NO_STORE_CALLS
#define CDP__OLD(x) false
#else
#define CDP__OLD(x) ((x)->old)
static const cdp__wire_row cdp__wire_old[] = {
    {0, CDP__CMD_SET, "kv"},
    {1, CDP__CMD_COMPARE_SET, "kvv"},
    {CDP__OP_OLD_GET, CDP__CMD_GET, "k"},
    {3, CDP__CMD_ADD, "ki"},
    {CDP__OP_OLD_CHECK, CDP__CMD_CHECK, "*k"},
    {5, CDP__CMD_WAIT, "*k"},
    {CDP__OP_OLD_NUM_KEYS, CDP__CMD_NUM_KEYS, ""},
    {7, CDP__CMD_WATCH, "k"},
    {8, CDP__CMD_DELETE, "k"},
    {0, CDP__CMD_NONE, NULL},
};
#endif

/* True if the first bytes of a connection are in the old dialect, which has no greeting. A VALIDATE
   read as old would be a SET with a key of about a gigabyte, so the two cannot be confused. */
CDP__PRIVATE bool cdp__wire_is_old(const uint8_t *p, uint64_t n) {
    static const uint8_t validate[5] = {CDP__OP_VALIDATE, CDP__WIRE_MAGIC & 255,
        CDP__WIRE_MAGIC >> 8 & 255, CDP__WIRE_MAGIC >> 16 & 255, CDP__WIRE_MAGIC >> 24};
    return n && p[0] != 'c' && memcmp(p, validate, (size_t)cdp__min(n, sizeof validate)) != 0;
}

static const cdp__wire_row cdp__wire_v2[] = {
    {CDP__OP_SET, CDP__CMD_SET, "kv"},
    {CDP__OP_COMPARE_SET, CDP__CMD_COMPARE_SET, "kvv"},
    {CDP__OP_GET, CDP__CMD_GET, "k"},
    {CDP__OP_ADD, CDP__CMD_ADD, "ki"},
    {CDP__OP_CHECK, CDP__CMD_CHECK, "*k"},
    {CDP__OP_WAIT, CDP__CMD_WAIT, "*k"},
    {CDP__OP_DELETE, CDP__CMD_DELETE, "k"},
    {CDP__OP_MULTI_GET, CDP__CMD_MULTI_GET, "*k"},
    {CDP__OP_CANCEL_WAIT, CDP__CMD_CANCEL_WAIT, ""},
    {CDP__OP_PING, CDP__CMD_PING, "u"},
    {CDP__OP_LAST_WILL, CDP__CMD_LAST_WILL, "kv"},
    {CDP__OP_TRY_GET, CDP__CMD_TRY_GET, "k"},
#ifndef CDP_NO_STORE_CALLS
    {CDP__OP_NUM_KEYS, CDP__CMD_NUM_KEYS, ""},
    {CDP__OP_APPEND, CDP__CMD_APPEND, "kv"},
    {CDP__OP_MULTI_SET, CDP__CMD_MULTI_SET, "*kv"},
    {CDP__OP_QUEUE_PUSH, CDP__CMD_QUEUE_PUSH, "kv"},
    {CDP__OP_QUEUE_POP, CDP__CMD_QUEUE_POP, "k"},
    {CDP__OP_QUEUE_LEN, CDP__CMD_QUEUE_LEN, "k"},
    {CDP__OP_LIST_KEYS, CDP__CMD_LIST_KEYS, ""},
    {CDP__OP_BARRIER, CDP__CMD_BARRIER, "ki"},
#endif
    {0, CDP__CMD_NONE, NULL},
};

typedef struct cdp__wire_limits {
    uint64_t key_bytes, value_bytes, list;
} cdp__wire_limits;

/* The state of a parser between two calls: its position in a list. The caller keeps the bytes of an
   incomplete field. */
typedef struct cdp__wire {
    const cdp__wire_row *table;
    const cdp__wire_row *row; /* the list command being parsed, or NULL */
    uint64_t left;            /* its items that have not been parsed */
} cdp__wire;

/* A command without a list is one item, first and last at once. A list command is a first item
   without a key, which contains the count, then one item per entry. So no command needs memory
   for more than one entry. */
typedef struct cdp__wire_item {
    cdp__cmd cmd;
    bool first, last;
    uint64_t count;          /* in the first item of a list */
    cdp_bytes key, value[2]; /* point into the parsed bytes; key.data NULL: no key */
    uint64_t number;
} cdp__wire_item;

typedef enum cdp__wire_result {
    CDP__WIRE_ITEM,
    CDP__WIRE_MORE,
    CDP__WIRE_BAD
} cdp__wire_result;

/* A read position in the input. `need`: length of the item, as far as known. */
typedef struct cdp__wire_in {
    const uint8_t *p;
    uint64_t n, at, need;
} cdp__wire_in;

CDP__PRIVATE const uint8_t *cdp__wire_take(cdp__wire_in *in, uint64_t bytes) {
    in->need = in->at + bytes; /* cannot overflow: bytes was checked against a limit */
    if (in->n < in->need) return NULL;
    in->at += bytes;
    return in->p + in->at - bytes;
}

CDP__PRIVATE cdp__wire_result cdp__wire_string(cdp__wire_in *in, uint64_t max, cdp_bytes *out) {
    const uint8_t *p = cdp__wire_take(in, 8);
    if (!p) return CDP__WIRE_MORE;
    out->bytes = cdp__get_u64(p);
    if (out->bytes > max) return CDP__WIRE_BAD; /* refused before memory is allocated for it */
    out->data = cdp__wire_take(in, out->bytes);
    return out->data ? CDP__WIRE_ITEM : CDP__WIRE_MORE;
}

CDP__PRIVATE cdp__wire_result cdp__wire_fields(
    cdp__wire_in *in, const char *fields, const cdp__wire_limits *max, cdp__wire_item *out) {
    uint32_t values = 0;
    for (; *fields; ++fields) {
        cdp__wire_result r = CDP__WIRE_ITEM;
        if (*fields == 'k') {
            r = cdp__wire_string(in, max->key_bytes, &out->key);
        } else if (*fields == 'v') {
            r = cdp__wire_string(in, max->value_bytes, &out->value[values++]);
        } else {
            const uint8_t *p = cdp__wire_take(in, *fields == 'u' ? 4 : 8);
            if (!p) return CDP__WIRE_MORE;
            out->number = *fields == 'u' ? cdp__get_u32(p) : cdp__get_u64(p);
        }
        if (r != CDP__WIRE_ITEM) return r;
    }
    return CDP__WIRE_ITEM;
}

CDP__PRIVATE const cdp__wire_row *cdp__wire_find(const cdp__wire_row *table, uint8_t op) {
    for (; table->fields; ++table)
        if (table->op == op) return table;
    return NULL;
}

/* Parses the beginning of a command: the whole command or, for a list, its count. */
CDP__PRIVATE cdp__wire_result cdp__wire_command(
    cdp__wire *w, cdp__wire_in *in, const cdp__wire_limits *max, cdp__wire_item *out) {
    const uint8_t *p = cdp__wire_take(in, 1);
    const cdp__wire_row *row = p ? cdp__wire_find(w->table, *p) : NULL;
    if (!p) return CDP__WIRE_MORE;
    if (!row) return CDP__WIRE_BAD;
    out->cmd = (cdp__cmd)row->cmd;
    out->first = out->last = true;
    if (row->fields[0] != '*') return cdp__wire_fields(in, row->fields, max, out);
    p = cdp__wire_take(in, 8);
    if (!p) return CDP__WIRE_MORE;
    out->count = cdp__get_u64(p);
    if (out->count > max->list) return CDP__WIRE_BAD;
    out->last = out->count == 0;
    w->row = out->last ? NULL : row;
    w->left = out->count;
    return CDP__WIRE_ITEM;
}

/* Parses the n unused bytes that have arrived. ITEM: *out is the next item, and *bytes bytes are
   consumed. MORE: the item is incomplete; *bytes bytes are needed to parse on. BAD: the input is
   invalid; the connection cannot continue. */
CDP__PRIVATE cdp__wire_result cdp__wire_next(cdp__wire *w, const cdp__wire_limits *max,
    const uint8_t *p, uint64_t n, cdp__wire_item *out, uint64_t *bytes) {
    cdp__wire_in in;
    cdp__wire_result r;
    in.p = p;
    in.n = n;
    in.at = in.need = 0;
    memset(out, 0, sizeof *out);
    if (w->row) {
        out->cmd = (cdp__cmd)w->row->cmd;
        out->last = w->left == 1;
        r = cdp__wire_fields(&in, w->row->fields + 1, max, out);
        if (r == CDP__WIRE_ITEM && --w->left == 0) w->row = NULL;
    } else {
        r = cdp__wire_command(w, &in, max, out);
    }
    *bytes = r == CDP__WIRE_ITEM ? in.at : in.need;
    return r;
}

/* Write to p, which must have room; return the position after the written bytes. */
CDP__PRIVATE uint8_t *cdp__wire_put_number(uint8_t *p, uint64_t v) {
    cdp__put_u64(p, v);
    return p + 8;
}

CDP__PRIVATE uint8_t *cdp__wire_put_string(uint8_t *p, const char *prefix, cdp_bytes s) {
    const size_t prefix_bytes = strlen(prefix);
    p = cdp__wire_put_number(p, prefix_bytes + s.bytes);
    memcpy(p, prefix, prefix_bytes);
    if (s.bytes) memcpy(p + prefix_bytes, s.data, (size_t)s.bytes);
    return p + prefix_bytes + s.bytes;
}

/* ---- >>store/record: the records of a file store (pure) -------------------------------------- */

/* Knows: the format of a file store's file. Promises: an incomplete record is recognised. */

/* The format of PyTorch's FileStore: a sequence of records, each a 32-bit length and a key, then
   a 32-bit length and a value, integers little-endian. A later record overrides an earlier one.
   A program's key k is "/k" in the file; a record of "-/k" removes it. Lower-case words that end
   in a slash are keys that count the users. */
/* PyTorch has no limit. Other data misread as a length is far above this one. */
#define CDP__RECORD_MAX_KEY 1048576u

typedef enum cdp__record_result {
    CDP__RECORD_WHOLE,
    CDP__RECORD_MORE,
    CDP__RECORD_TORN,
    CDP__RECORD_BAD
} cdp__record_result;

typedef struct cdp__record {
    /* point into the parsed bytes; the key of a removal is without its minus */
    cdp_bytes key, value;
    bool removal;
    uint64_t bytes; /* length of the record, as far as known */
} cdp__record;

/* True if these n bytes can be the beginning of a key in a file (`whole`: can be a whole key). */
CDP__PRIVATE bool cdp__record_key_fits(const uint8_t *p, uint64_t n, bool whole) {
    uint64_t i;
    if (!n) return !whole;
    if (*p == '/') return true;
    if (*p == '-') return n == 1 ? !whole : p[1] == '/';
    for (i = 0; i < n; ++i)
        if (!((p[i] >= 'a' && p[i] <= 'z') || p[i] == '_'
                || (p[i] == '/' && i && (!whole || i == n - 1))))
            return false;
    return !whole || p[n - 1] == '/';
}

/* Parses the n bytes at p; from p on, the file has `left` bytes. WHOLE: *out is the record.
   MORE: call again with out->bytes bytes. TORN: the file ends before the record does. BAD: this
   is no record. */
CDP__PRIVATE cdp__record_result cdp__record_next(
    const uint8_t *p, uint64_t n, uint64_t left, cdp__record *out) {
    uint64_t key_bytes;
    memset(out, 0, sizeof *out);
    out->bytes = 4;
    if (n >= 4) {
        key_bytes = cdp__get_u32(p);
        if (key_bytes > CDP__RECORD_MAX_KEY
            || !cdp__record_key_fits(p + 4, cdp__min(n - 4, key_bytes), n - 4 >= key_bytes))
            return CDP__RECORD_BAD;
        out->bytes = 8 + key_bytes;
        if (n >= out->bytes) {
            out->removal = p[4] == '-';
            out->key.data = p + 4 + out->removal;
            out->key.bytes = key_bytes - out->removal;
            out->value.data = p + out->bytes;
            out->value.bytes = cdp__get_u32(p + out->bytes - 4);
            out->bytes += out->value.bytes;
        }
    }
    if (out->bytes <= n) return CDP__RECORD_WHOLE;
    if (out->bytes <= left) return CDP__RECORD_MORE;
    if (out->key.data || n == left) return CDP__RECORD_TORN;
    /* the file ends inside the record; its key shows whether it is a record at all */
    out->bytes = left;
    return CDP__RECORD_MORE;
}

CDP__PRIVATE uint64_t cdp__record_bytes(const char *prefix, cdp_bytes key, uint64_t value_bytes) {
    return 8 + strlen(prefix) + key.bytes + value_bytes;
}

CDP__PRIVATE uint8_t *cdp__record_copy(uint8_t *p, cdp_bytes s) {
    if (s.bytes) memcpy(p, s.data, (size_t)s.bytes);
    return p + s.bytes;
}

/* Writes a record to p, which has room; returns the position after it. The value may be in two
   parts. */
CDP__PRIVATE uint8_t *cdp__record_put(
    uint8_t *p, const char *prefix, cdp_bytes key, cdp_bytes value, cdp_bytes more) {
    const uint32_t prefix_bytes = (uint32_t)strlen(prefix);
    cdp__put_u32(p, prefix_bytes + (uint32_t)key.bytes);
    memcpy(p + 4, prefix, prefix_bytes);
    p = cdp__record_copy(p + 4 + prefix_bytes, key);
    cdp__put_u32(p, (uint32_t)(value.bytes + more.bytes));
    return cdp__record_copy(cdp__record_copy(p + 4, value), more);
}

/* ---- >>store/number: decimal text (pure) ----------------------------------------------------- */

/* Knows: decimal text. Promises: no overflow. */

/* Accepts what C++'s stoll accepts: leading blanks, a sign, digits; ignores anything after that. */
CDP__PRIVATE bool cdp__number_parse(const uint8_t *p, uint64_t n, int64_t *out) {
    const uint64_t limit = (uint64_t)INT64_MAX;
    uint64_t v = 0, i = 0, start;
    bool negative = false;
    while (i < n && (p[i] == ' ' || (p[i] >= 9 && p[i] <= 13)))
        ++i;
    if (i < n && (p[i] == '-' || p[i] == '+')) negative = p[i++] == '-';
    for (start = i; i < n && p[i] >= '0' && p[i] <= '9'; ++i) {
        const uint64_t digit = (uint64_t)(p[i] - '0');
        if (v > (limit + negative - digit) / 10) return false;
        v = v * 10 + digit;
    }
    if (i == start) return false;
    *out = (int64_t)(negative ? 0 - v : v); /* two's complement, on all supported platforms */
    return true;
}

/* Formats a number; `dst` has room for 24 bytes. Returns the length. */
CDP__PRIVATE uint64_t cdp__number_text(int64_t v, char *dst) {
    cdp__text t = cdp__text_of(dst, 24);
    cdp__text_number(&t, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, v < 0, 10);
    return cdp__text_end(&t);
}

/* A key as printed in errors: printable and truncated. */
typedef struct cdp__key_text {
    char at[84];
} cdp__key_text;

CDP__PRIVATE const char *cdp__key_print(cdp__key_text *t, cdp_bytes key) {
    cdp__text_foreign(t->at, 81, key.data, key.bytes);
    if (key.bytes > 80) memcpy(t->at + strlen(t->at), "...", 4);
    return t->at;
}

/* The error for a value that is no number; the same in every store. */
CDP__PRIVATE cdp_status cdp__store_no_number(cdp_bytes key) {
    cdp__key_text t;
    return cdp__fail(
        CDP_ERR_INVALID, "the key \"%s\" holds no number to add to", cdp__key_print(&t, key));
}

/* ---- >>store/auth: proofs that a peer has the job's key (pure) ------------------------------- */

/* Knows: the job's key, nonces, the messages of the exchange. Promises: the key never leaves the
   process; proofs are compared in constant time. */

/* BLAKE2s (RFC 7693) instead of HMAC with SHA-256, because it has a keyed mode and takes half
   the code. */
CDP__PRIVATE void cdp__blake2s_mix(
    uint32_t *v, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t x, uint32_t y) {
    uint32_t i, w;
    for (i = 0; i < 2; ++i) {
        v[a] += v[b] + (i ? y : x);
        w = v[d] ^ v[a];
        v[d] = i ? w >> 8 | w << 24 : w >> 16 | w << 16;
        v[c] += v[d];
        w = v[b] ^ v[c];
        v[b] = i ? w >> 7 | w << 25 : w >> 12 | w << 20;
    }
}

static const uint32_t cdp__blake2s_iv[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
    0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};

/* `total`: number of bytes up to the end of this 64-byte block. */
CDP__PRIVATE void cdp__blake2s_block(uint32_t *h, const uint8_t *block, uint64_t total, bool last) {
    static const uint64_t order[10] = {/* the order of the words, one digit per word */
        0x0123456789abcdefu, 0xea489fd61c02b753u, 0xb8c052fdae367194u, 0x7931dcbe265a40f8u,
        0x905724afe1bc683du, 0x2c6a0b834d75fe19u, 0xc51fed4a0763928bu, 0xdb7ec13950f4862au,
        0x6fe9b308c2d714a5u, 0xa2847615fb9e3cd0u};
    uint32_t v[16], m[16], i, r;
    for (i = 0; i < 16; ++i)
        m[i] = cdp__get_u32(block + 4 * i);
    for (i = 0; i < 8; ++i) {
        v[i] = h[i];
        v[i + 8] = cdp__blake2s_iv[i];
    }
    v[12] ^= (uint32_t)total;
    v[13] ^= (uint32_t)(total >> 32);
    if (last) v[14] = ~v[14];
    for (r = 0; r < 10; ++r)
        for (i = 0; i < 8; ++i) { /* four columns, then four diagonals */
            const uint32_t d = i / 4, k = i % 4;
            cdp__blake2s_mix(v, k, 4 + (k + d) % 4, 8 + (k + 2 * d) % 4, 12 + (k + 3 * d) % 4,
                m[order[r] >> (60 - 8 * i) & 15], m[order[r] >> (56 - 8 * i) & 15]);
        }
    for (i = 0; i < 8; ++i)
        h[i] ^= v[i] ^ v[i + 8];
}

/* Overwrites secrets in memory; `volatile` keeps the compiler from removing it. */
CDP__PRIVATE void cdp__wipe(void *p, uint64_t bytes) {
    volatile uint8_t *at = (volatile uint8_t *)p;
    while (bytes--)
        *at++ = 0;
}

/* Computes `out_bytes` (1 to 32) bytes of a hash, keyed if there is a key of 1 to 32 bytes. */
CDP__PRIVATE void cdp__blake2s(const void *key, uint32_t key_bytes, const void *data,
    uint64_t bytes, uint8_t *out, uint32_t out_bytes) {
    const uint8_t *p = (const uint8_t *)data;
    uint8_t block[64];
    uint32_t h[8], i;
    uint64_t total = 0;
    memcpy(h, cdp__blake2s_iv, sizeof h);
    h[0] ^= 0x01010000u ^ key_bytes << 8 ^ out_bytes;
    if (key_bytes) {
        memset(block, 0, sizeof block);
        memcpy(block, key, key_bytes);
        total = sizeof block;
        cdp__blake2s_block(h, block, total, bytes == 0);
    }
    while (bytes || !total) {
        const uint64_t n = cdp__min(bytes, sizeof block);
        memset(block, 0, sizeof block);
        if (n) memcpy(block, p, (size_t)n);
        total += n;
        bytes -= n;
        cdp__blake2s_block(h, block, total, bytes == 0);
        if (!bytes) break;
        p += n;
    }
    for (i = 0; i < out_bytes; ++i)
        out[i] = (uint8_t)(h[i / 4] >> 8 * (i % 4));
    cdp__wipe(block, sizeof block); /* it may have contained a key */
}

/* If there is a key, two processes first authenticate each other, on connections to the store and
   between ranks, with messages of 32 bytes:

       connector -> listener   "cdp-key1"  purpose (8 bytes)  nonce (16)
       listener -> connector   "cdp-key2"  zeros (8)          nonce (16)
       connector -> listener   "cdp-key3"  proof (24)
       listener -> connector   "cdp-key4"  proof (24)
                               or, instead of its answers, "cdp-no: "  reason (1)  zeros

   The purpose keeps a store from posing as a rank. A proof is the keyed hash of purpose, role and
   both nonces, so it cannot be replayed, or reflected to its sender. The connector proves its key
   first, so that a stranger learns nothing from a listener. Later bytes are not encrypted. */
#define CDP__AUTH_BYTES 32u
#define CDP__AUTH_STORE 1u /* values of `purpose` */
#define CDP__AUTH_LINK 2u

typedef enum cdp__auth_refusal {
    CDP__AUTH_NO_ANSWER,
    CDP__AUTH_NEEDED,
    CDP__AUTH_NOT_NEEDED,
    CDP__AUTH_WRONG,
    CDP__AUTH_REMOTE,
    CDP__AUTH_REFUSALS
} cdp__auth_refusal;

/* The reason as one sentence that is correct on both sides. */
CDP__PRIVATE const char *cdp__auth_text(uint32_t refusal) {
    static const char *const texts[CDP__AUTH_REFUSALS] = {
        "the other side does not support job keys (PyTorch's stores do not); use no key, or a "
        "store of "
        "cdp",
        "a job key is needed (set CDP_JOB_KEY, or job_key, to the same secret on both sides; "
        "clients of PyTorch have none and are refused)",
        "the connecting side has a job key, the other has none (set CDP_JOB_KEY, or job_key, to "
        "the same secret on both sides)",
        "the job keys differ (set CDP_JOB_KEY, or job_key, to the same secret on both sides)",
        "without a job key only processes of the same machine are let in (set the same "
        "CDP_JOB_KEY, or job_key, on both sides; or trust_network, on a network that you trust)",
    };
    return texts[refusal < (uint32_t)CDP__AUTH_REFUSALS ? refusal : 0];
}

typedef struct cdp__auth {
    /* the key, in memory of the caller; NULL: none, and every peer is refused for the reason
       `refusal` */
    const uint8_t *key;
    bool listener, done;
    uint8_t step, refusal;
    uint32_t also;               /* listener: a second accepted purpose */
    uint32_t purpose, got, left; /* left: bytes of `out` still to be sent */
    uint8_t nonce[2][16];        /* of the connector, of the listener */
    uint8_t in[CDP__AUTH_BYTES], out[CDP__AUTH_BYTES];
} cdp__auth;

/* Keys shorter than this cause a warning. */
#define CDP__AUTH_SHORT_KEY 16u

/* The stored form of a key: the hash of its text. */
CDP__PRIVATE void cdp__auth_key(const char *text, uint8_t out[CDP__AUTH_BYTES]) {
    cdp__blake2s(NULL, 0, text, strlen(text), out, CDP__AUTH_BYTES);
}

/* Reads the job key of a desc. *keyed: there is one, and `out` is set. */
CDP__PRIVATE cdp_status cdp__auth_key_read(
    const char *job_key, uint8_t out[CDP__AUTH_BYTES], bool *keyed) {
    *keyed = job_key && job_key[0];
#ifdef CDP_NO_JOB_KEY
    (void)out;
    return *keyed ? cdp__fail(CDP_ERR_UNSUPPORTED,
               "job_key is set, but this program was built with CDP_NO_JOB_KEY")
                  : CDP_OK;
#else
    if (*keyed) cdp__auth_key(job_key, out);
    return CDP_OK;
#endif
}

CDP__PRIVATE void cdp__auth_proof(const cdp__auth *a, bool of_listener, uint8_t out[24]) {
    uint8_t data[8 + 32];
    memset(data, 0, 8);
    data[0] = (uint8_t)a->purpose;
    data[1] = of_listener;
    memcpy(data + 8, a->nonce, 32);
    cdp__blake2s(a->key, CDP__AUTH_BYTES, data, sizeof data, out, 24);
}

/* Compares in constant time. */
CDP__PRIVATE bool cdp__auth_equal(const uint8_t *a, const uint8_t *b, uint32_t n) {
    volatile uint8_t differ = 0;
    uint32_t i;
    for (i = 0; i < n; ++i)
        differ = (uint8_t)(differ | (a[i] ^ b[i]));
    return !differ;
}

CDP__PRIVATE void cdp__auth_put(cdp__auth *a, const char *tag) {
    memset(a->out, 0, sizeof a->out);
    memcpy(a->out, tag, 8);
    a->left = CDP__AUTH_BYTES;
    a->got = 0;
}

/* Requires this end's nonce. The connector sends the first message. */
CDP__PRIVATE void cdp__auth_begin(cdp__auth *a) {
    if (a->listener) return;
    cdp__auth_put(a, "cdp-key1");
    a->out[8] = (uint8_t)a->purpose;
    memcpy(a->out + 16, a->nonce[0], 16);
}

/* Sends the reason only to a peer that may understand it: one whose first byte begins this exchange
   or a greeting of the store. */
CDP__PRIVATE cdp_status cdp__auth_refuse(cdp__auth *a, cdp__auth_refusal refusal) {
    const bool answer = a->listener && (a->in[0] == 'c' || a->in[0] == CDP__OP_VALIDATE);
    cdp__auth_put(a, "cdp-no: ");
    a->out[8] = a->refusal = (uint8_t)refusal;
    a->left = answer ? CDP__AUTH_BYTES : 0;
    return CDP_ERR_MISMATCH;
}

/* Reads the a->got bytes in `in`. PENDING: more messages follow; OK: both sides are authenticated
   once `out` is sent; MISMATCH: a->refusal is the reason. */
CDP__PRIVATE cdp_status cdp__auth_read(cdp__auth *a) {
    static const char *const tags[2][2] = {{"cdp-key2", "cdp-key4"}, {"cdp-key1", "cdp-key3"}};
    const uint64_t n = cdp__min(a->got, 8);
    uint8_t proof[24];
    if (!a->got) return CDP_PENDING;
    if (!a->key) return cdp__auth_refuse(a, (cdp__auth_refusal)a->refusal);
    if (memcmp(a->in, tags[a->listener][a->step], (size_t)n) != 0) {
        const bool no = !a->listener && memcmp(a->in, "cdp-no: ", (size_t)n) == 0;
        if (no && n == 8 && a->got > 8)
            return cdp__auth_refuse(
                a, (cdp__auth_refusal)(a->in[8] < (uint8_t)CDP__AUTH_REFUSALS ? a->in[8] : 0));
        if (no) return CDP_PENDING;
        return cdp__auth_refuse(a, a->listener ? CDP__AUTH_NEEDED : CDP__AUTH_NO_ANSWER);
    }
    if (a->got < CDP__AUTH_BYTES) return CDP_PENDING;
    if (a->step == 0) {
        if (a->listener && a->also && a->in[8] == a->also) a->purpose = a->also;
        if (a->listener && a->in[8] != a->purpose) return cdp__auth_refuse(a, CDP__AUTH_WRONG);
        memcpy(a->nonce[!a->listener], a->in + 16, 16);
        ++a->step;
        cdp__auth_put(a, a->listener ? "cdp-key2" : "cdp-key3");
        if (a->listener)
            memcpy(a->out + 16, a->nonce[1], 16);
        else
            cdp__auth_proof(a, false, a->out + 8);
        return CDP_PENDING;
    }
    cdp__auth_proof(a, !a->listener, proof);
    if (!cdp__auth_equal(proof, a->in + 8, sizeof proof))
        return cdp__auth_refuse(a, CDP__AUTH_WRONG);
    a->done = true;
    if (a->listener) cdp__auth_put(a, "cdp-key4");
    if (a->listener) cdp__auth_proof(a, true, a->out + 8);
    return CDP_OK;
}

/* ---- >>store/kv: the map --------------------------------------------------------------------- */

/* Knows: keys, values, queues. Promises: an entry keeps its address while a chain links to it. */

/* A link of a doubly linked ring. The head of a chain is itself a link, so removing a link does not
   need the head, and all links move to another chain in constant time. */
typedef struct cdp__chain {
    struct cdp__chain *next, *prev;
} cdp__chain;

CDP__PRIVATE void cdp__chain_open(cdp__chain *head) {
    head->next = head->prev = head;
}

CDP__PRIVATE bool cdp__chain_empty(const cdp__chain *head) {
    return head->next == head;
}

CDP__PRIVATE void cdp__chain_add(cdp__chain *head, cdp__chain *link) {
    link->next = head;
    link->prev = head->prev;
    link->prev->next = link->next->prev = link;
}

/* Removes a link from its chain. Returns the head if that leaves the chain empty, else NULL. */
CDP__PRIVATE cdp__chain *cdp__chain_remove(cdp__chain *link) {
    cdp__chain *next = link->next, *prev = link->prev;
    next->prev = prev;
    prev->next = next;
    link->next = link->prev = NULL;
    return next == prev && next->next == next ? next : NULL;
}

/* Appends all links of `from` to the chain `to`, in their order; `from` is empty afterwards. */
CDP__PRIVATE void cdp__chain_move(cdp__chain *from, cdp__chain *to) {
    if (cdp__chain_empty(from)) return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    cdp__chain_open(from);
}

/* One value of a queue; its bytes follow the struct. */
typedef struct cdp__kv_item {
    struct cdp__kv_item *next;
    uint64_t bytes;
} cdp__kv_item;

/* An entry exists while its key has a value, queued values, or connections that wait for it or
   watch it. The bytes of the key follow the struct in memory. */
typedef struct cdp__kv_entry {
    struct cdp__kv_entry *next;
    uint64_t hash, key_bytes;
    uint8_t *value;
    uint64_t value_bytes, value_room;
    uint64_t since;                       /* kv->arrivals when the key got its value */
    cdp__kv_item *first_item, *last_item; /* the queue, which is independent of the value */
    uint64_t item_count;
    cdp__chain waits, watches; /* connections of a store server */
    bool present;              /* the key has a value */
} cdp__kv_entry;

typedef struct cdp__kv {
    const cdp_os *os;
    cdp__kv_entry **buckets;
    uint64_t bucket_count; /* a power of two, or 0 before the first entry */
    uint64_t entry_count, present_count;
    uint64_t arrivals; /* how many times a key without a value was given one */
    uint64_t seed;
    uint64_t bytes, max_bytes; /* memory in use and its limit, see cdp__kv_cost() */
} cdp__kv;

/* An upper bound of the memory that an allocation of `bytes` takes: it is aligned to 64 bytes, and
   the allocator adds a header and a gap. */
CDP__PRIVATE uint64_t cdp__kv_cost(uint64_t bytes) {
    return bytes ? (bytes + 63) / 64 * 64 + 48 : 0;
}

CDP__PRIVATE void cdp__kv_open(cdp__kv *kv, const cdp_os *os, uint64_t seed, uint64_t max_bytes) {
    memset(kv, 0, sizeof *kv);
    kv->os = os;
    kv->seed = cdp__hash(CDP__HASH_START, &seed, sizeof seed);
    kv->max_bytes = max_bytes;
}

CDP__PRIVATE const uint8_t *cdp__kv_key(const cdp__kv_entry *e) {
    return (const uint8_t *)(e + 1);
}

CDP__PRIVATE cdp__kv_item *cdp__kv_pop(cdp__kv *kv, cdp__kv_entry *e) {
    cdp__kv_item *item = e->first_item;
    CDP_ASSERT(e->item_count && item);
    e->first_item = item->next;
    if (!item->next) e->last_item = NULL;
    --e->item_count;
    kv->bytes -= cdp__kv_cost(sizeof *item + item->bytes);
    return item; /* The caller frees it, and then may release the entry. */
}

CDP__PRIVATE void cdp__kv_drop_items(cdp__kv *kv, cdp__kv_entry *e) {
#ifdef CDP_NO_STORE_CALLS
    (void)kv;
    CDP_ASSERT(!e->item_count); /* This build has no calls that fill a queue. */
    (void)e;
#else
    while (e->item_count)
        cdp__free(kv->os, cdp__kv_pop(kv, e));
#endif
}

CDP__PRIVATE void cdp__kv_close(cdp__kv *kv) {
    uint64_t i;
    for (i = 0; i < kv->bucket_count; ++i) {
        cdp__kv_entry *e = kv->buckets[i], *next;
        for (; e; e = next) {
            next = e->next;
            cdp__kv_drop_items(kv, e);
            cdp__free(kv->os, e->value);
            cdp__free(kv->os, e);
        }
    }
    cdp__free(kv->os, kv->buckets);
    kv->buckets = NULL;
    kv->bucket_count = 0;
}

CDP__PRIVATE cdp__kv_entry *cdp__kv_find(const cdp__kv *kv, cdp_bytes key) {
    const uint64_t h = cdp__hash(kv->seed, key.data, key.bytes);
    cdp__kv_entry *e = kv->bucket_count ? kv->buckets[h & (kv->bucket_count - 1)] : NULL;
    for (; e; e = e->next)
        if (e->hash == h && e->key_bytes == key.bytes
            && (!key.bytes || memcmp(cdp__kv_key(e), key.data, (size_t)key.bytes) == 0))
            return e;
    return NULL;
}

/* The entry of a key that has a value; NULL if the key has none. */
CDP__PRIVATE CDP__ONE_COPY cdp__kv_entry *cdp__kv_get(const cdp__kv *kv, cdp_bytes key) {
    cdp__kv_entry *e = cdp__kv_find(kv, key);
    return e && e->present ? e : NULL;
}

CDP__PRIVATE bool cdp__kv_grow(cdp__kv *kv) {
    const uint64_t n = kv->bucket_count ? 2 * kv->bucket_count : 16;
    cdp__kv_entry **buckets;
    uint64_t i;
    if (kv->entry_count < kv->bucket_count) return true;
    buckets = (cdp__kv_entry **)cdp__alloc_zero(kv->os, n * sizeof *buckets);
    if (!buckets) return kv->bucket_count != 0; /* Use the old table: only slower. */
    for (i = 0; i < kv->bucket_count; ++i) {
        cdp__kv_entry *e = kv->buckets[i], *next;
        for (; e; e = next) {
            next = e->next;
            e->next = buckets[e->hash & (n - 1)];
            buckets[e->hash & (n - 1)] = e;
        }
    }
    cdp__free(kv->os, kv->buckets);
    kv->buckets = buckets;
    kv->bucket_count = n;
    return true;
}

CDP__PRIVATE bool cdp__kv_has_room(const cdp__kv *kv, uint64_t bytes) {
    return cdp__kv_cost(bytes) <= kv->max_bytes - cdp__min(kv->bytes, kv->max_bytes);
}

CDP__PRIVATE cdp_status cdp__kv_full(const cdp__kv *kv) {
    return cdp__fail(CDP_ERR_NOMEM, "the store is full: it may hold %llu bytes (max_total_bytes)",
        (unsigned long long)kv->max_bytes);
}

/* Returns the entry of a key and creates it, without a value, if there is none. NULL: no room; the
   last error is set. */
CDP__PRIVATE cdp__kv_entry *cdp__kv_obtain(cdp__kv *kv, cdp_bytes key) {
    const uint64_t bytes = sizeof(cdp__kv_entry) + key.bytes;
    cdp__kv_entry *e = cdp__kv_find(kv, key), **bucket;
    if (e) return e;
    if (!cdp__kv_has_room(kv, bytes)) {
        cdp__kv_full(kv);
        return NULL;
    }
    e = cdp__kv_grow(kv) ? (cdp__kv_entry *)cdp__alloc_zero(kv->os, bytes) : NULL;
    if (!e) {
        cdp__fail_nomem("a key of the store", bytes);
        return NULL;
    }
    if (key.bytes) memcpy(e + 1, key.data, (size_t)key.bytes);
    cdp__chain_open(&e->waits);
    cdp__chain_open(&e->watches);
    e->key_bytes = key.bytes;
    e->hash = cdp__hash(kv->seed, key.data, key.bytes);
    bucket = &kv->buckets[e->hash & (kv->bucket_count - 1)];
    e->next = *bucket;
    *bucket = e;
    ++kv->entry_count;
    kv->bytes += cdp__kv_cost(bytes);
    return e;
}

/* Frees an entry whose key has no value and no queue, and which no connection waits for or watches;
   leaves any other entry alone. NULL is allowed. */
CDP__PRIVATE void cdp__kv_release(cdp__kv *kv, cdp__kv_entry *e) {
    cdp__kv_entry **at;
    if (!e || e->present || e->item_count) return;
    if (!cdp__chain_empty(&e->waits) || !cdp__chain_empty(&e->watches)) return;
    for (at = &kv->buckets[e->hash & (kv->bucket_count - 1)]; *at != e;)
        at = &(*at)->next;
    *at = e->next;
    --kv->entry_count;
    kv->bytes -= cdp__kv_cost(sizeof(cdp__kv_entry) + e->key_bytes);
    CDP_ASSERT(!e->value);
    cdp__free(kv->os, e);
}

/* Makes room for a value of `bytes` and keeps the first `keep` bytes of the old value. A failure
   changes nothing. */
CDP__PRIVATE cdp_status cdp__kv_reserve(
    cdp__kv *kv, cdp__kv_entry *e, uint64_t bytes, uint64_t keep) {
    /* Half as much again, so that many small appends take linear time. */
    const uint64_t room = keep ? cdp__max(bytes, keep + keep / 2) : bytes;
    uint8_t *value;
    if (e->value && bytes <= e->value_room && e->value_room / 4 <= bytes + 64) return CDP_OK;
    if (cdp__kv_cost(room)
        > kv->max_bytes - cdp__min(kv->bytes - cdp__kv_cost(e->value_room), kv->max_bytes))
        return cdp__kv_full(kv);
    value = (uint8_t *)cdp__alloc(kv->os, room);
    if (!value) return cdp__fail_nomem("a value of the store", room);
    if (keep) memcpy(value, e->value, (size_t)keep);
    cdp__free(kv->os, e->value);
    kv->bytes += cdp__kv_cost(room) - cdp__kv_cost(e->value_room);
    e->value = value;
    e->value_room = room;
    return CDP_OK;
}

/* Replaces everything from byte `at` of the value on by `value`, which must not be memory of this
   entry. */
CDP__PRIVATE cdp_status cdp__kv_write(cdp__kv *kv, cdp__kv_entry *e, uint64_t at, cdp_bytes value) {
    const cdp_status status = cdp__kv_reserve(kv, e, at + value.bytes, at);
    if (status != CDP_OK) {
        cdp__kv_release(kv, e); /* It may have been created for this value. */
        return status;
    }
    if (value.bytes) memcpy(e->value + at, value.data, (size_t)value.bytes);
    e->value_bytes = at + value.bytes;
    if (!e->present) {
        ++kv->present_count;
        e->since = ++kv->arrivals;
    }
    e->present = true;
    return CDP_OK;
}

/* The operations on a value: set, append, add, compare_set. They set *out to the entry, so that the
   caller can wake its waiters, or to NULL if they stored nothing. */
CDP__PRIVATE cdp_status cdp__kv_set(
    cdp__kv *kv, cdp_bytes key, cdp_bytes value, cdp__kv_entry **out) {
    *out = cdp__kv_obtain(kv, key);
    return *out ? cdp__kv_write(kv, *out, 0, value) : CDP_ERR_NOMEM;
}

CDP__PRIVATE cdp_status cdp__kv_append(
    cdp__kv *kv, cdp_bytes key, cdp_bytes value, cdp__kv_entry **out) {
    *out = cdp__kv_obtain(kv, key);
    return *out ? cdp__kv_write(kv, *out, (*out)->value_bytes, value) : CDP_ERR_NOMEM;
}

CDP__PRIVATE cdp_status cdp__kv_add(
    cdp__kv *kv, cdp_bytes key, int64_t delta, int64_t *sum, cdp__kv_entry **out) {
    char text[24];
    cdp_bytes value;
    cdp__kv_entry *e = cdp__kv_get(kv, key);
    *sum = 0;
    *out = NULL;
    if (e && !cdp__number_parse(e->value, e->value_bytes, sum)) return cdp__store_no_number(key);
    *sum = (int64_t)((uint64_t)*sum + (uint64_t)delta);
    value.data = text;
    value.bytes = cdp__number_text(*sum, text);
    return cdp__kv_set(kv, key, value, out);
}

/* *answer: the value afterwards, in memory of the map, which is valid until the next change; or
   `expected` if the key is absent. */
CDP__PRIVATE cdp_status cdp__kv_compare_set(cdp__kv *kv, cdp_bytes key, cdp_bytes expected,
    cdp_bytes desired, cdp_bytes *answer, cdp__kv_entry **out) {
    cdp__kv_entry *e = cdp__kv_get(kv, key);
    cdp_status status = CDP_OK;
    bool equal;
    *out = NULL;
    *answer = expected;
    if (!e && expected.bytes) return CDP_OK;
    equal = !e
        || (e->value_bytes == expected.bytes
            && (!expected.bytes || memcmp(e->value, expected.data, (size_t)expected.bytes) == 0));
    if (equal) status = cdp__kv_set(kv, key, desired, &e);
    if (status != CDP_OK) return status;
    *out = equal ? e : NULL;
    answer->data = e->value;
    answer->bytes = e->value_bytes;
    return CDP_OK;
}

CDP__PRIVATE bool cdp__kv_delete(cdp__kv *kv, cdp_bytes key) {
    cdp__kv_entry *e = cdp__kv_get(kv, key);
    if (!e) return false;
    cdp__free(kv->os, e->value);
    kv->bytes -= cdp__kv_cost(e->value_room);
    e->value = NULL;
    e->value_bytes = e->value_room = 0;
    e->present = false;
    --kv->present_count;
    cdp__kv_release(kv, e);
    return true;
}

/* Appends a value to the queue of a key. *out: its entry, or NULL if nothing was stored. */
CDP__PRIVATE cdp_status cdp__kv_push(
    cdp__kv *kv, cdp_bytes key, cdp_bytes value, cdp__kv_entry **out) {
    cdp__kv_entry *e = cdp__kv_obtain(kv, key);
    cdp__kv_item *item = NULL;
    *out = NULL;
    if (!e) return CDP_ERR_NOMEM;
    if (cdp__kv_has_room(kv, sizeof *item + value.bytes))
        item = (cdp__kv_item *)cdp__alloc(kv->os, sizeof *item + value.bytes);
    if (!item) {
        cdp__kv_release(kv, e);
        return cdp__kv_full(kv);
    }
    item->next = NULL;
    item->bytes = value.bytes;
    if (value.bytes) memcpy(item + 1, value.data, (size_t)value.bytes);
    if (e->last_item)
        e->last_item->next = item;
    else
        e->first_item = item;
    e->last_item = item;
    ++e->item_count;
    kv->bytes += cdp__kv_cost(sizeof *item + value.bytes);
    *out = e;
    return CDP_OK;
}

/* True if the key has a value or a queued value, which ends a wait for the key. */
CDP__PRIVATE bool cdp__kv_available(const cdp__kv *kv, cdp_bytes key) {
    const cdp__kv_entry *e = cdp__kv_find(kv, key);
    return e && (e->present || e->item_count);
}

CDP__PRIVATE uint64_t cdp__kv_reverse(uint64_t v) {
    uint64_t out = 0, i;
    for (i = 0; i < 64; ++i)
        out |= (v >> i & 1) << (63 - i);
    return out;
}

/* The bucket that follows `cursor` in a listing, which begins with bucket 0; returns 0 after the
   last one. It increments the bucket number from its highest bit down. So if the table doubles
   during a listing, the buckets that were listed in the old table correspond exactly to those that
   the new order has passed. */
CDP__PRIVATE uint64_t cdp__kv_next_bucket(const cdp__kv *kv, uint64_t cursor) {
    CDP_ASSERT(kv->bucket_count);
    return cdp__kv_reverse(cdp__kv_reverse(cursor | ~(kv->bucket_count - 1)) + 1);
}

/* ---- >>store/request: functions for requests that all stores share --------------------------- */

/* Knows: requests and their results. Promises: results are one block from the os's allocator, and
   so is each value. */

/* A store that is destroyed stands in the table of base/ended.h: a custom one that a program has
   filled in by its address, for the memory is the program's; another one, which frees its memory,
   by the address after it. So a custom store at the address of a former store is not refused. */
CDP__PRIVATE const void *cdp__store_mark(const cdp_store *s) {
    return (const uint8_t *)s + 1;
}

CDP__PRIVATE bool cdp__store_ended(const cdp_store *s) {
    return cdp__ended(s) || cdp__ended(cdp__store_mark(s));
}

/* The store at this address lives. */
CDP__PRIVATE void cdp__store_lives(const cdp_store *s) {
    cdp__ended_remove(s);
    cdp__ended_remove(cdp__store_mark(s));
}

/* This store is new, and frees itself. */
CDP__PRIVATE void cdp__store_made(cdp_store *s, void (*destroy)(void *self)) {
    cdp__store_lives(s);
    s->destroy = destroy;
}

CDP__PRIVATE void cdp__store_request_drop_results(
    const cdp_os *os, cdp_store_request *rq, uint64_t count) {
    uint64_t i;
    for (i = 0; rq->results && i < count; ++i) {
        void *p;
        /* copied, because the member is a const pointer */
        memcpy(&p, &rq->results[i].data, sizeof p);
        cdp__free(os, p);
    }
    cdp__free(os, rq->results);
    rq->results = NULL;
}

/* True for LIST_KEYS. A constant in builds without it, so that compilers omit the code for it. */
CDP__PRIVATE bool cdp__store_lists(const cdp_store_request *rq) {
#ifdef CDP_NO_STORE_CALLS
    (void)rq;
    return false;
#else
    return rq->op == CDP_STORE_LIST_KEYS;
#endif
}

/* The number of results; for LIST_KEYS, of the keys found so far. */
CDP__PRIVATE CDP__ONE_COPY uint64_t cdp__store_request_result_count(const cdp_store_request *rq) {
    switch (rq->op) {
    case CDP_STORE_GET:
    case CDP_STORE_COMPARE_SET:
    case CDP_STORE_QUEUE_POP: return 1;
    case CDP_STORE_MULTI_GET: return rq->key_count;
    case CDP_STORE_LIST_KEYS: return rq->number > 0 ? (uint64_t)rq->number : 0;
    default: return 0;
    }
}

CDP__PRIVATE bool cdp__store_request_make_results(const cdp_os *os, cdp_store_request *rq) {
    const uint64_t n = cdp__store_request_result_count(rq);
    rq->results = NULL;
    if (n) rq->results = (cdp_bytes *)cdp__alloc_zero(os, n * sizeof *rq->results);
    return !n || rq->results;
}

/* Allocates a result of `bytes` and a terminating zero. */
CDP__PRIVATE uint8_t *cdp__store_request_result(
    const cdp_os *os, cdp_store_request *rq, uint64_t i, uint64_t bytes) {
    uint8_t *p = (uint8_t *)cdp__alloc(os, bytes + 1);
    if (!p) return NULL;
    p[bytes] = 0;
    rq->results[i].data = p;
    rq->results[i].bytes = bytes;
    return p;
}

CDP__PRIVATE bool cdp__store_request_put_result(
    const cdp_os *os, cdp_store_request *rq, uint64_t i, cdp_bytes value) {
    uint8_t *p = cdp__store_request_result(os, rq, i, value.bytes);
    if (p && value.bytes) memcpy(p, value.data, (size_t)value.bytes);
    return p != NULL;
}

CDP__PRIVATE uint32_t cdp__store_request_keys_needed(cdp_store_op op) {
    if (op == CDP_STORE_NUM_KEYS || op == CDP_STORE_LIST_KEYS) return 0;
    return op == CDP_STORE_WAIT || op == CDP_STORE_CHECK || op == CDP_STORE_MULTI_GET
            || op == CDP_STORE_MULTI_SET
        ? UINT32_MAX
        : 1;
}

/* The number of values in the request. */
CDP__PRIVATE uint32_t cdp__store_request_values(const cdp_store_request *rq) {
    switch (rq->op) {
    case CDP_STORE_SET:
    case CDP_STORE_APPEND:
    case CDP_STORE_QUEUE_PUSH: return 1;
    case CDP_STORE_COMPARE_SET: return 2;
    case CDP_STORE_MULTI_SET: return rq->key_count;
    default: return 0;
    }
}

CDP__PRIVATE cdp_status cdp__store_too_long(cdp_bytes key, uint64_t bytes, uint64_t max) {
    cdp__key_text t;
    return cdp__fail(CDP_ERR_INVALID,
        "the value for the store key \"%s\" has %llu bytes; at most %llu are allowed "
        "(max_value_bytes)",
        cdp__key_print(&t, key), (unsigned long long)bytes, (unsigned long long)max);
}

CDP__PRIVATE cdp_status cdp__store_has_no_queues(const cdp_store_request *rq) {
    (void)rq;
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "file and custom stores have no queues; use a TCP store or a hash store");
}

/* True if a compare_set matches. *now is the key's value; NULL: the key is absent. */
CDP__PRIVATE bool cdp__store_expected(const cdp_store_request *rq, const cdp_bytes *now) {
    const cdp_bytes *want = &rq->values[0];
    if (!now || !want->bytes) return !want->bytes && (!now || !now->bytes);
    return now->bytes == want->bytes && memcmp(now->data, want->data, (size_t)want->bytes) == 0;
}

/* Stores the result of a compare_set. */
CDP__PRIVATE bool cdp__store_answer(const cdp_os *os, cdp_store_request *rq, cdp_bytes value) {
    if (cdp__store_request_make_results(os, rq) && cdp__store_request_put_result(os, rq, 0, value))
        return true;
    cdp__store_request_drop_results(os, rq, 0);
    return false;
}

#define CDP__STORE_TIMEOUT_MS 300000u
/* Values of `number` in a request that timed out. 0: the store has answered that the key is
   absent. */
#define CDP__STORE_NO_ANSWER (-1)
#define CDP__STORE_NOT_SENT (-2)

CDP__PRIVATE cdp_status cdp__store_request_validate_sizes(
    const cdp_store_request *rq, uint64_t max_value_bytes) {
    const uint32_t values = cdp__store_request_values(rq);
    uint32_t i;
    if (rq->key_count > CDP_STORE_MAX_LIST)
        return cdp__fail(CDP_ERR_INVALID, "%u keys in one store request; at most %u fit",
            rq->key_count, CDP_STORE_MAX_LIST);
    for (i = 0; i < rq->key_count; ++i) {
        if (!rq->keys[i].data && rq->keys[i].bytes)
            return cdp__fail(CDP_ERR_INVALID, "cdp_store_run: request.keys[%u].data is NULL", i);
        /* TCP and file stores put a slash in front */
        if (rq->keys[i].bytes + 1 > CDP_STORE_MAX_KEY_BYTES)
            return cdp__fail(CDP_ERR_INVALID, "a store key has %llu bytes; at most %u are allowed",
                (unsigned long long)rq->keys[i].bytes, CDP_STORE_MAX_KEY_BYTES - 1);
    }
    for (i = 0; i < values; ++i) {
        const cdp_bytes key = rq->keys[rq->key_count > 1 ? i : 0];
        cdp__key_text t;
        if (!rq->values[i].data && rq->values[i].bytes)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_store_run: request.values[%u].data is NULL (key \"%s\")", i,
                cdp__key_print(&t, key));
        if (rq->values[i].bytes > max_value_bytes)
            return cdp__store_too_long(key, rq->values[i].bytes, max_value_bytes);
    }
    return CDP_OK;
}

#ifdef CDP_NO_STORE_CALLS
/* True for operations that cdp_init() does not need, in builds without them. */
CDP__PRIVATE bool cdp__store_left_out(cdp_store_op op) {
    return op == CDP_STORE_NUM_KEYS || op == CDP_STORE_APPEND || op >= CDP_STORE_MULTI_SET;
}
#endif

/* Checks a request before it starts. */
CDP__PRIVATE CDP__ONE_COPY cdp_status cdp__store_request_validate(
    const cdp_store_request *rq, uint64_t max_value_bytes) {
    const uint32_t needed = rq->op > CDP_STORE_NONE && rq->op < CDP_STORE_OP_COUNT
        ? cdp__store_request_keys_needed(rq->op)
        : 0;
    if (rq->op <= CDP_STORE_NONE || rq->op >= CDP_STORE_OP_COUNT)
        return cdp__fail(CDP_ERR_INVALID, "no such store operation: %d", (int)rq->op);
#ifdef CDP_NO_STORE_CALLS
    if (cdp__store_left_out(rq->op))
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "store operation %d is left out: CDP_NO_STORE_CALLS is defined", (int)rq->op);
#endif
    if (needed != UINT32_MAX && rq->key_count != needed)
        return cdp__fail(CDP_ERR_INVALID, "store operation %d takes %u keys, not %u", (int)rq->op,
            needed, rq->key_count);
    if (rq->key_count && !rq->keys) return cdp__missing("cdp_store_run", "request.keys");
    if (cdp__store_request_values(rq) && !rq->values)
        return cdp__missing("cdp_store_run", "request.values");
    return cdp__store_request_validate_sizes(rq, max_value_bytes);
}

/* ---- >>store/hash_store: a map inside one process as a store --------------------------------- */

/* Knows: a map and the threads that wait for its keys. Promises: a waiting thread wakes when its
   key is set. */

typedef struct cdp__hash_store {
    cdp_store store;
    cdp__kv kv;
    cdp_lock lock;
    void *cond;     /* NULL without threads */
    uint32_t forks; /* see cdp__is_child() */
} cdp__hash_store;

CDP__PRIVATE cdp_status cdp__hash_read(cdp__hash_store *h, cdp_store_request *rq) {
    const uint64_t n = cdp__store_request_result_count(rq);
    uint64_t i;
    for (i = 0; i < rq->key_count; ++i)
        if (n ? !cdp__kv_get(&h->kv, rq->keys[i]) : !cdp__kv_available(&h->kv, rq->keys[i]))
            return CDP_PENDING;
    if (!cdp__store_request_make_results(h->kv.os, rq))
        return cdp__fail_nomem("the results of a request", n * sizeof(cdp_bytes));
    for (i = 0; i < n; ++i) {
        const cdp__kv_entry *e = cdp__kv_get(&h->kv, rq->keys[i]);
        cdp_bytes value;
        value.data = e->value;
        value.bytes = e->value_bytes;
        if (cdp__store_request_put_result(h->kv.os, rq, i, value)) continue;
        cdp__store_request_drop_results(h->kv.os, rq, n);
        return cdp__fail_nomem("a value", value.bytes);
    }
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__hash_compare_set(cdp__hash_store *h, cdp_store_request *rq) {
    cdp__kv_entry *e;
    cdp_bytes answer;
    cdp_status status;
    uint8_t *p = NULL;
    const uint64_t room = cdp__max(rq->values[1].bytes, rq->values[0].bytes);
    const cdp__kv_entry *old = cdp__kv_get(&h->kv, rq->keys[0]);
    memset(&answer, 0, sizeof answer);
    /* allocate first: after a change the store must not report a failure */
    if (cdp__store_request_make_results(h->kv.os, rq))
        p = cdp__store_request_result(h->kv.os, rq, 0, cdp__max(room, old ? old->value_bytes : 0));
    status = p ? cdp__kv_compare_set(&h->kv, rq->keys[0], rq->values[0], rq->values[1], &answer, &e)
               : cdp__fail_nomem("a value", room);
    if (status != CDP_OK) {
        cdp__store_request_drop_results(h->kv.os, rq, 1);
        return status;
    }
    if (answer.bytes) memcpy(p, answer.data, (size_t)answer.bytes);
    p[answer.bytes] = 0;
    rq->results[0].bytes = answer.bytes;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__hash_write(cdp__hash_store *h, cdp_store_request *rq) {
    cdp__kv_entry *e;
    cdp_status status = CDP_OK;
    uint32_t i;
    if (rq->op == CDP_STORE_ADD)
        return cdp__kv_add(&h->kv, rq->keys[0], rq->delta, &rq->number, &e);
    if (rq->op == CDP_STORE_COMPARE_SET) return cdp__hash_compare_set(h, rq);
    if (rq->op == CDP_STORE_APPEND) {
        const cdp__kv_entry *old = cdp__kv_get(&h->kv, rq->keys[0]);
        const uint64_t bytes = rq->values[0].bytes + (old ? old->value_bytes : 0);
        return bytes > CDP_STORE_MAX_VALUE_BYTES
            ? cdp__store_too_long(rq->keys[0], bytes, CDP_STORE_MAX_VALUE_BYTES)
            : cdp__kv_append(&h->kv, rq->keys[0], rq->values[0], &e);
    }
    for (i = 0; i < rq->key_count && status == CDP_OK; ++i)
        status = cdp__kv_set(&h->kv, rq->keys[i], rq->values[i], &e);
    return status;
}

CDP__PRIVATE cdp_status cdp__hash_pop(cdp__hash_store *h, cdp_store_request *rq) {
    cdp__kv_entry *e = cdp__kv_find(&h->kv, rq->keys[0]);
    cdp__kv_item *item;
    cdp_bytes value;
    const int64_t count = e ? (int64_t)e->item_count : 0;
    if (!count && !rq->delta) return CDP_PENDING;
    rq->number = count;
    if (!cdp__store_request_make_results(h->kv.os, rq))
        return cdp__fail_nomem("the result of a request", sizeof(cdp_bytes));
    if (!count) return CDP_OK;
    value.data = e->first_item + 1;
    value.bytes = e->first_item->bytes;
    if (!cdp__store_request_put_result(h->kv.os, rq, 0, value)) {
        cdp__store_request_drop_results(h->kv.os, rq, 1);
        return cdp__fail_nomem("a value", value.bytes);
    }
    item = cdp__kv_pop(&h->kv, e);
    cdp__free(h->kv.os, item);
    cdp__kv_release(&h->kv, e);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__hash_push(cdp__hash_store *h, cdp_store_request *rq) {
    cdp__kv_entry *e;
    return cdp__kv_push(&h->kv, rq->keys[0], rq->values[0], &e);
}

CDP__PRIVATE cdp_status cdp__hash_queue_len(cdp__hash_store *h, cdp_store_request *rq) {
    const cdp__kv_entry *e = cdp__kv_find(&h->kv, rq->keys[0]);
    rq->number = e ? (int64_t)e->item_count : 0;
    return CDP_OK;
}

/* The first attempt increments the count, and sets `priv` so that later ones do not. */
CDP__PRIVATE cdp_status cdp__hash_barrier(cdp__hash_store *h, cdp_store_request *rq) {
    cdp__kv_entry *e = cdp__kv_get(&h->kv, rq->keys[0]);
    int64_t sum = 0;
    if (!rq->priv) {
        const cdp_status status = cdp__kv_add(&h->kv, rq->keys[0], 1, &sum, &e);
        if (status != CDP_OK) return status;
        rq->priv = h;
    } else if (e && !cdp__number_parse(e->value, e->value_bytes, &sum)) {
        return cdp__store_no_number(rq->keys[0]);
    }
    return sum >= rq->delta ? CDP_OK : CDP_PENDING;
}

/* Lists the keys of the map that begin with `prefix`, without that prefix. */
CDP__PRIVATE cdp_status cdp__kv_list(const cdp__kv *kv, const char *prefix, cdp_store_request *rq) {
    const uint64_t skip = strlen(prefix);
    uint64_t i;
    rq->number = 0;
    rq->results = (cdp_bytes *)cdp__alloc_zero(kv->os, (kv->present_count + 1) * sizeof(cdp_bytes));
    if (!rq->results) return cdp__fail_nomem("a list of keys", kv->present_count);
    for (i = 0; i < kv->bucket_count; ++i) {
        const cdp__kv_entry *e;
        for (e = kv->buckets[i]; e; e = e->next) {
            cdp_bytes key;
            if (!e->present || e->key_bytes < skip
                || memcmp(cdp__kv_key(e), prefix, (size_t)skip) != 0)
                continue;
            key.data = cdp__kv_key(e) + skip;
            key.bytes = e->key_bytes - skip;
            if (!cdp__store_request_put_result(kv->os, rq, (uint64_t)rq->number, key)) {
                cdp__store_request_drop_results(kv->os, rq, (uint64_t)rq->number);
                return cdp__fail_nomem("a key of a list", key.bytes);
            }
            ++rq->number;
        }
    }
    return CDP_OK;
}

/* Requires the lock. Carries out the request, or returns CDP_PENDING if it must wait. */
CDP__PRIVATE cdp_status cdp__hash_try(cdp__hash_store *h, cdp_store_request *rq) {
    cdp_status status;
    switch (rq->op) {
    case CDP_STORE_GET:
    case CDP_STORE_WAIT:
    case CDP_STORE_MULTI_GET: return cdp__hash_read(h, rq);
    case CDP_STORE_CHECK:
        status = cdp__hash_read(h, rq);
        rq->number = status == CDP_OK;
        return status == CDP_PENDING ? CDP_OK : status;
    case CDP_STORE_DELETE: rq->number = cdp__kv_delete(&h->kv, rq->keys[0]); return CDP_OK;
#ifndef CDP_NO_STORE_CALLS
    case CDP_STORE_NUM_KEYS: rq->number = (int64_t)h->kv.present_count; return CDP_OK;
    case CDP_STORE_LIST_KEYS: return cdp__kv_list(&h->kv, "", rq);
    case CDP_STORE_QUEUE_POP: return cdp__hash_pop(h, rq);
    case CDP_STORE_QUEUE_LEN: return cdp__hash_queue_len(h, rq);
    case CDP_STORE_QUEUE_PUSH: status = cdp__hash_push(h, rq); break;
    case CDP_STORE_BARRIER: status = cdp__hash_barrier(h, rq); break;
#endif
    default: status = cdp__hash_write(h, rq); break;
    }
    if (h->cond && rq->op != CDP_STORE_BARRIER)
        h->kv.os->threads.cond_broadcast(h->kv.os->user, h->cond);
    else if (h->cond && status == CDP_OK)
        h->kv.os->threads.cond_broadcast(h->kv.os->user, h->cond);
    return status;
}

CDP__PRIVATE cdp_status cdp__hash_start(void *self, cdp_store_request *rq) {
    cdp__hash_store *h = (cdp__hash_store *)self;
    rq->results = NULL;
    rq->priv = NULL;
    rq->status = cdp__store_request_validate(rq, CDP_STORE_MAX_VALUE_BYTES);
    if (rq->status == CDP_OK && cdp__is_child(h->forks))
        rq->status = cdp__child_refuses(CDP_ERR_STATE, "a call of a store", "store");
    if (rq->status != CDP_OK) return rq->status;
    cdp_lock_acquire(&h->lock);
    rq->status = cdp__hash_try(h, rq);
    cdp_lock_release(&h->lock);
    return rq->status;
}

CDP__PRIVATE cdp_status cdp__hash_wait(void *self, cdp_store_request *rq, uint64_t deadline_ns) {
    cdp__hash_store *h = (cdp__hash_store *)self;
    const cdp_os *os = h->kv.os;
    cdp_lock_acquire(&h->lock);
    while (rq->status == CDP_PENDING) {
        rq->status = cdp__hash_try(h, rq);
        if (rq->status != CDP_PENDING || !h->cond || os->now_ns(os->user) >= deadline_ns) break;
        os->threads.cond_wait(os->user, h->cond, h->lock.mutex, deadline_ns);
    }
    cdp_lock_release(&h->lock);
    return rq->status;
}

CDP__PRIVATE void cdp__hash_cancel(void *self, cdp_store_request *rq) {
    (void)self;
    (void)rq; /* The store keeps no reference to a pending request. */
}

CDP__PRIVATE void cdp__hash_destroy(void *self) {
    cdp__hash_store *h = (cdp__hash_store *)self;
    const cdp_os *os = h->kv.os;
    if (cdp__is_child(h->forks)) return;
    cdp__kv_close(&h->kv);
    if (h->cond) os->threads.cond_destroy(os, h->cond);
    cdp__lock_close(&h->lock);
    cdp__free(os, h);
}

#ifndef CDP_NO_HASH_STORE

CDP_API cdp_status cdp_hash_store_create(const cdp_hash_store_desc *desc, cdp_store **out) {
    const cdp_os *os = desc && desc->os ? desc->os : cdp_os_default();
    cdp__hash_store *h;
    if (!out) return cdp__missing("cdp_hash_store_create", "out");
    *out = NULL;
    if (cdp__os_whole(os, "cdp_hash_store_create") != CDP_OK) return CDP_ERR_INVALID;
    h = (cdp__hash_store *)cdp__alloc_zero(os, sizeof *h);
    if (!h) return cdp__fail_nomem("a hash store", sizeof *h);
    cdp__kv_open(&h->kv, os, 0, UINT64_MAX);
    h->forks = cdp__forks_watch();
    h->store.self = h;
    h->store.os = os;
    h->store.timeout_ms = cdp__def(desc ? desc->timeout_ms : 0, CDP__STORE_TIMEOUT_MS);
    h->store.start = cdp__hash_start;
    h->store.wait = cdp__hash_wait;
    h->store.cancel = cdp__hash_cancel;
    cdp__store_made(&h->store, cdp__hash_destroy);
    if (!cdp__lock_open(&h->lock, os, true)) {
        cdp__hash_destroy(h);
        return cdp__fail_nomem("a lock", sizeof(cdp_lock));
    }
    if (h->lock.mutex) {
        h->cond = os->threads.cond_create(os);
        if (!h->cond) {
            cdp__hash_destroy(h);
            return cdp__fail_nomem("a condition variable", sizeof(cdp_lock));
        }
    }
    *out = &h->store;
    return CDP_OK;
}

#endif /* CDP_NO_HASH_STORE */

/* ---- >>store/custom: two functions of a program as a store; polling stores ------------------- */

/* Knows: stores without notification, which have to be polled. Promises: each operation is atomic
   if the program's `swap` is; a waiting call polls at least every 10 ms. */

/* The common part of polling stores: the custom store and the file store. `attempt` either
   completes a request, or returns CDP_PENDING and may be called again for it without doing anything
   twice. A wait calls it again at growing intervals. The lock is held during an attempt. */
typedef struct cdp__polling {
    cdp_store store;
    cdp_lock lock;
    uint32_t forks; /* see cdp__is_child() */
    bool inherited; /* a child of fork() may use it */
    cdp_status (*attempt)(struct cdp__polling *t, cdp_store_request *rq);
} cdp__polling;

#define CDP__POLLING_PAUSE_MAX_NS (10 * CDP__MS)

/* Implements a barrier with ADD and GET: the first attempt adds 1 to the counter and sets rq->priv,
   later attempts only read the counter. */
CDP__PRIVATE cdp_status cdp__polling_barrier(cdp__polling *t, cdp_store_request *rq) {
    cdp_store_request part = *rq;
    cdp_status status;
    int64_t sum = 0;
    part.results = NULL;
    part.number = 0;
    part.op = rq->priv ? CDP_STORE_GET : CDP_STORE_ADD;
    part.delta = 1;
    status = t->attempt(t, &part);
    if (status != CDP_OK) return status;
    if (!rq->priv) {
        rq->priv = t;
        sum = part.number;
    } else {
        const bool good =
            cdp__number_parse((const uint8_t *)part.results[0].data, part.results[0].bytes, &sum);
        cdp__store_request_drop_results(t->store.os, &part, 1);
        if (!good) return cdp__store_no_number(rq->keys[0]);
    }
    return sum >= rq->delta ? CDP_OK : CDP_PENDING;
}

CDP__PRIVATE cdp_status cdp__polling_attempt(cdp__polling *t, cdp_store_request *rq) {
    switch (rq->op) {
    case CDP_STORE_BARRIER: return cdp__polling_barrier(t, rq);
    case CDP_STORE_QUEUE_PUSH:
    case CDP_STORE_QUEUE_POP:
    case CDP_STORE_QUEUE_LEN: return cdp__store_has_no_queues(rq);
    default: return t->attempt(t, rq);
    }
}

CDP__PRIVATE cdp_status cdp__polling_start(void *self, cdp_store_request *rq) {
    cdp__polling *t = (cdp__polling *)self;
    rq->results = NULL;
    rq->priv = NULL;
    rq->number = 0;
    rq->status = cdp__store_request_validate(rq, CDP_STORE_MAX_VALUE_BYTES);
    if (rq->status == CDP_OK && !t->inherited && cdp__is_child(t->forks))
        rq->status = cdp__child_refuses(CDP_ERR_STATE, "a call of a store", "store");
    if (rq->status != CDP_OK) return rq->status;
    cdp_lock_acquire(&t->lock);
    rq->status = cdp__polling_attempt(t, rq);
    cdp_lock_release(&t->lock);
    return rq->status;
}

/* Sleeps until the next attempt. The first four pauses only yield the processor, because another
   user holds a lock for microseconds; then they double from 4 ms to 10 ms. */
CDP__PRIVATE void cdp__polling_pause(
    const cdp_os *os, uint32_t attempts, uint64_t now, uint64_t deadline_ns) {
    if (attempts < 4 && os->threads.yield)
        os->threads.yield(os->user);
    else
        cdp__sleep_until(os,
            cdp__min(deadline_ns,
                now
                    + cdp__min(
                        CDP__POLLING_PAUSE_MAX_NS, (CDP__MS / 4) << cdp__min(attempts, 20))));
}

CDP__PRIVATE cdp_status cdp__polling_wait(void *self, cdp_store_request *rq, uint64_t deadline_ns) {
    cdp__polling *t = (cdp__polling *)self;
    uint32_t attempts;
    for (attempts = 0; rq->status == CDP_PENDING; ++attempts) {
        /* Read the clock first, so that the last attempt begins after the deadline. */
        const uint64_t now = t->store.os->now_ns(t->store.os->user);
        cdp_lock_acquire(&t->lock);
        rq->status = cdp__polling_attempt(t, rq);
        cdp_lock_release(&t->lock);
        if (rq->status != CDP_PENDING || now >= deadline_ns) break;
        cdp__polling_pause(t->store.os, attempts, now, deadline_ns);
    }
    return rq->status;
}

CDP__PRIVATE void cdp__polling_cancel(void *self, cdp_store_request *rq) {
    (void)self;
    (void)rq; /* The store keeps no reference to a pending request. */
}

/* Returns false when out of memory. The caller has set t->store.destroy; other members of the
   object around *t are left alone. */
CDP__PRIVATE bool cdp__polling_open(cdp__polling *t, const cdp_os *os, uint32_t timeout_ms,
    cdp_status (*attempt)(cdp__polling *t, cdp_store_request *rq)) {
    t->store.self = t;
    t->store.os = os;
    t->store.timeout_ms = cdp__def(timeout_ms, CDP__STORE_TIMEOUT_MS);
    t->store.start = cdp__polling_start;
    t->store.wait = cdp__polling_wait;
    t->store.cancel = cdp__polling_cancel;
    t->attempt = attempt;
    t->forks = cdp__forks_watch();
    return cdp__lock_open(&t->lock, os, true);
}

typedef struct cdp__custom_store {
    cdp__polling polling;
    cdp_custom_store_desc desc;
} cdp__custom_store;

/* A WAIT reads no key again that was there before: they may be many, and the store far away. The
   first `number` of them were. */
CDP__PRIVATE cdp_status cdp__custom_read(cdp__custom_store *c, cdp_store_request *rq) {
    const bool waits = rq->op == CDP_STORE_WAIT;
    const uint64_t n = cdp__store_request_result_count(rq);
    cdp_status status = CDP_OK;
    uint64_t i;
    if (!cdp__store_request_make_results(c->desc.os, rq))
        return cdp__fail_nomem("the results of a request", n * sizeof(cdp_bytes));
    for (i = waits ? (uint64_t)rq->number : 0; i < rq->key_count && status == CDP_OK; ++i) {
        cdp_bytes value;
        status = c->desc.get(c->desc.user, rq->keys[i], &value);
        if (waits && status == CDP_OK) ++rq->number;
        if (status == CDP_OK && i < n && !cdp__store_request_put_result(c->desc.os, rq, i, value))
            status = cdp__fail_nomem("a value", value.bytes);
    }
    if (status != CDP_OK) cdp__store_request_drop_results(c->desc.os, rq, n);
    return status;
}

/* Computes the value that a request gives its i-th key, from the value that the key has now (`now`;
   NULL: absent). OK: *out is the new value (of no use to DELETE); PENDING: the value does not
   change. `text` has room for 24 bytes. The caller frees *memory when it no longer needs *out. */
CDP__PRIVATE cdp_status cdp__custom_new_value(cdp__custom_store *c, cdp_store_request *rq,
    uint64_t i, const cdp_bytes *now, cdp_bytes *out, char *text, uint8_t **memory) {
    int64_t sum = 0;
    if (rq->op == CDP_STORE_COMPARE_SET)
        *out = rq->values[1];
    else if (rq->op != CDP_STORE_ADD && rq->op != CDP_STORE_DELETE)
        *out = rq->values[i];
    if (rq->op == CDP_STORE_DELETE) return now ? CDP_OK : CDP_PENDING;
    if (rq->op == CDP_STORE_ADD) {
        if (now && !cdp__number_parse((const uint8_t *)now->data, now->bytes, &sum))
            return cdp__store_no_number(rq->keys[0]);
        rq->number = (int64_t)((uint64_t)sum + (uint64_t)rq->delta);
        out->data = text;
        out->bytes = cdp__number_text(rq->number, text);
    } else if (rq->op == CDP_STORE_APPEND && now) {
        if (now->bytes + out->bytes > CDP_STORE_MAX_VALUE_BYTES)
            return cdp__store_too_long(
                rq->keys[0], now->bytes + out->bytes, CDP_STORE_MAX_VALUE_BYTES);
        *memory = (uint8_t *)cdp__alloc(c->desc.os, now->bytes + out->bytes);
        if (!*memory) return cdp__fail_nomem("a value", now->bytes + out->bytes);
        cdp__record_copy(cdp__record_copy(*memory, *now), *out);
        out->data = *memory;
        out->bytes += now->bytes;
    } else if (rq->op == CDP_STORE_COMPARE_SET) {
        return cdp__store_expected(rq, now) ? CDP_OK : CDP_PENDING;
    }
    return CDP_OK;
}

/* Changes one key: reads it with `get` and replaces it with `swap`. PENDING: another user changed
   the key in between. */
CDP__PRIVATE cdp_status cdp__custom_change(
    cdp__custom_store *c, cdp_store_request *rq, uint64_t i) {
    char text[24];
    uint8_t *memory = NULL;
    cdp_bytes now, wish;
    const cdp_status found = c->desc.get(c->desc.user, rq->keys[i], &now);
    cdp_status status = found < 0 ? found : CDP_OK;
    memset(&wish, 0, sizeof wish);
    if (status == CDP_OK)
        status =
            cdp__custom_new_value(c, rq, i, found == CDP_OK ? &now : NULL, &wish, text, &memory);
    if (rq->op == CDP_STORE_COMPARE_SET && status >= 0) {
        cdp_bytes answer = rq->values[status == CDP_OK];
        if (status != CDP_OK && found == CDP_OK) answer = now;
        if (!cdp__store_answer(c->desc.os, rq, answer))
            status = cdp__fail_nomem("a value", answer.bytes);
    }
    if (status == CDP_PENDING) return CDP_OK; /* The value does not change. */
    if (status == CDP_OK)
        status = (c->desc.swap)(c->desc.user, rq->keys[i], found == CDP_OK ? &now : NULL,
            rq->op == CDP_STORE_DELETE ? NULL : &wish);
    if (status == CDP_OK && rq->op == CDP_STORE_DELETE) rq->number = 1;
    if (status != CDP_OK)
        cdp__store_request_drop_results(c->desc.os, rq, cdp__store_request_result_count(rq));
    cdp__free(c->desc.os, memory);
    return status;
}

CDP__PRIVATE cdp_status cdp__custom_attempt(cdp__polling *t, cdp_store_request *rq) {
    cdp__custom_store *c = (cdp__custom_store *)t;
    cdp_status status = CDP_OK;
    switch (rq->op) {
    case CDP_STORE_GET:
    case CDP_STORE_WAIT:
    case CDP_STORE_MULTI_GET: return cdp__custom_read(c, rq);
    case CDP_STORE_CHECK:
        status = cdp__custom_read(c, rq);
        rq->number = status == CDP_OK;
        return status == CDP_PENDING ? CDP_OK : status;
    case CDP_STORE_NUM_KEYS:
        if (!c->desc.num_keys)
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "this custom store cannot count its keys (cdp_custom_store_desc.num_keys is NULL)");
        return c->desc.num_keys(c->desc.user, &rq->number);
    case CDP_STORE_LIST_KEYS:
        return cdp__fail(CDP_ERR_UNSUPPORTED, "a custom store cannot list its keys");
    case CDP_STORE_MULTI_SET: /* `number` keys are set; a later attempt sets the others */
        while ((uint64_t)rq->number < rq->key_count && status == CDP_OK) {
            status = cdp__custom_change(c, rq, (uint64_t)rq->number);
            rq->number += status == CDP_OK;
        }
        return status;
    default: return cdp__custom_change(c, rq, 0);
    }
}

CDP__PRIVATE void cdp__custom_destroy(void *self) {
    cdp__custom_store *c = (cdp__custom_store *)self;
    if (cdp__is_child(c->polling.forks)) return;
    if (c->desc.destroy) c->desc.destroy(c->desc.user);
    cdp__lock_close(&c->polling.lock);
    cdp__free(c->desc.os, c);
}

#ifndef CDP_NO_CUSTOM_STORE

CDP_API cdp_status cdp_custom_store_create(const cdp_custom_store_desc *desc, cdp_store **out) {
    cdp__custom_store *c;
    const cdp_os *os = desc && desc->os ? desc->os : cdp_os_default();
    if (!out) return cdp__missing("cdp_custom_store_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_custom_store_create", "desc");
    if (!desc->get) return cdp__missing("cdp_custom_store_create", "desc.get");
    if (!desc->swap) return cdp__missing("cdp_custom_store_create", "desc.swap");
    if (cdp__os_whole(desc->os, "cdp_custom_store_create") != CDP_OK) return CDP_ERR_INVALID;
    c = (cdp__custom_store *)cdp__alloc_zero(os, sizeof *c);
    if (!c) return cdp__fail_nomem("a custom store", sizeof *c);
    c->desc = *desc;
    c->desc.os = os;
    cdp__store_made(&c->polling.store, cdp__custom_destroy);
    if (!cdp__polling_open(&c->polling, os, desc->timeout_ms, cdp__custom_attempt)) {
        cdp__free(os, c); /* Without calling desc->destroy: the caller still owns `user`. */
        return cdp__fail_nomem("a lock", sizeof(cdp_lock));
    }
    *out = &c->polling.store;
    return CDP_OK;
}

#endif /* CDP_NO_CUSTOM_STORE */

/* ---- >>store/file: a file of records that its users append to under a lock ------------------- */

/* Knows: the file, its lock, this process's copy of the keys and values. Promises: a process that
   is killed at any point leaves a file that the others can use. */

#ifndef CDP_NO_FILE_STORE
/* A user of the file is one store object in one process. Every request opens the file, locks it and
   closes it again, as PyTorch does: the lock of a process that dies is released, and the children
   of a fork do not share one. Each user keeps a copy of the keys and values up to the last record
   that it read, and the next request reads only what follows. */
typedef struct cdp__file_store {
    cdp__polling polling;
    const cdp_os *os;
    char *path; /* allocated with this struct, right after it */
    uint32_t world_size;
    bool private_file;
    bool torn;   /* a reader found an incomplete record at `at` */
    bool busy;   /* another user holds the lock */
    uint64_t at; /* bytes of the file that the copy contains */
    /* descriptor of the file that was read, or -1. It stays open so that the system does not give
       the numbers below to another file */
    int32_t pin;
    uint64_t device, number; /* of that file, see cdp_file_info */
    cdp__kv kv;              /* the copy; its keys have the prefixes that they have in the file */
    uint8_t key[1 + CDP_STORE_MAX_KEY_BYTES];
} cdp__file_store;

typedef enum cdp__file_mode {
    CDP__FILE_READ,
    CDP__FILE_WRITE,
    CDP__FILE_LEAVE
} cdp__file_mode;

#define CDP__FILE_PIECE 65536u
#define CDP__FILE_LEAVE_NS (100 * CDP__MS)

CDP__PRIVATE cdp_status cdp__file_fail(const cdp__file_store *f, int err, const char *what) {
    return cdp__fail_peer(CDP_ERR_IO, -1, err, "the file store %s: %s", f->path, what);
}

CDP__PRIVATE void cdp__file_close_fd(const cdp__file_store *f, int32_t fd) {
    if (fd >= 0) (void)f->os->files.close_file(f->os->user, fd);
}

/* Forgets the copy. From now on `fd` is the file that the copy is made from; -1: there is none.
   `info` may be NULL if `fd` is the same file as before. */
CDP__PRIVATE void cdp__file_reset(cdp__file_store *f, int32_t fd, const cdp_file_info *info) {
    const uint64_t seed = f->kv.seed;
    cdp__kv_close(&f->kv);
    cdp__kv_open(&f->kv, f->os, seed, UINT64_MAX);
    if (f->pin != fd) cdp__file_close_fd(f, f->pin);
    f->pin = fd;
    if (info) {
        f->device = info->device;
        f->number = info->number;
    }
    f->at = 0;
}

/* Ends a request. */
CDP__PRIVATE void cdp__file_close(cdp__file_store *f, int32_t fd) {
    if (fd < 0) return;
    /* Closing may not release the lock: the pin stays open, and so do copies in forked children. */
    (void)f->os->files.lock_file(f->os->user, fd, CDP_FILE_UNLOCK);
    if (fd != f->pin) cdp__file_close_fd(f, fd);
}

CDP__PRIVATE cdp_status cdp__file_apply(cdp__file_store *f, const cdp__record *r) {
    cdp__kv_entry *e;
    if (!r->removal) return cdp__kv_set(&f->kv, r->key, r->value, &e);
    (void)cdp__kv_delete(&f->kv, r->key);
    return CDP_OK;
}

/* Applies the records in the n bytes at p, which the file of `size` bytes has at f->at. *need:
   bytes of the next record, which may be more than are left of n. */
CDP__PRIVATE cdp_status cdp__file_apply_all(
    cdp__file_store *f, const uint8_t *p, uint64_t n, uint64_t size, uint64_t *need) {
    const uint64_t start = f->at;
    while (f->at < size) {
        cdp__record r;
        const uint64_t used = f->at - start;
        const cdp__record_result result = cdp__record_next(p + used, n - used, size - f->at, &r);
        f->torn = result == CDP__RECORD_TORN;
        *need = r.bytes;
        /* Fewer than 4 bytes may belong to another program's file: refuse it, do not cut it. */
        if (result == CDP__RECORD_BAD || (f->torn && size < 4))
            return cdp__fail(CDP_ERR_STORE,
                "%s is not the file of a store, or is damaged: there is no record at byte %llu; "
                "choose another path, or remove the file when no process uses it",
                f->path, (unsigned long long)f->at);
        if (result != CDP__RECORD_WHOLE) return CDP_OK;
        if (cdp__file_apply(f, &r) != CDP_OK) return CDP_ERR_NOMEM;
        f->at += r.bytes;
    }
    return CDP_OK;
}

/* Copies exactly n bytes of the file, from the byte f->at on. */
CDP__PRIVATE cdp_status cdp__file_copy(cdp__file_store *f, int32_t fd, uint8_t *p, uint64_t n) {
    uint64_t done = 0;
    while (done < n) {
        const int64_t r = f->os->files.read_at(f->os->user, fd, f->at + done, p + done, n - done);
        if (r <= 0) return cdp__file_fail(f, r ? (int)-r : EIO, "cannot read");
        done += (uint64_t)r;
    }
    return CDP_OK;
}

/* Reads what other users appended since the last request. The caller holds the lock. */
CDP__PRIVATE cdp_status cdp__file_read(cdp__file_store *f, int32_t fd, uint64_t size) {
    uint64_t room = cdp__min(CDP__FILE_PIECE, size - f->at), need = 0;
    uint8_t *p = NULL;
    cdp_status status = CDP_OK;
    f->torn = false;
    while (f->at < size && !f->torn && status == CDP_OK) {
        const uint64_t n = cdp__min(room, size - f->at);
        if (!p && !(p = (uint8_t *)cdp__alloc(f->os, room)))
            return cdp__fail_nomem("a record of a file store", room);
        status = cdp__file_copy(f, fd, p, n);
        if (status == CDP_OK) status = cdp__file_apply_all(f, p, n, size, &need);
        if (need > room) {
            cdp__free(f->os, p);
            p = NULL;
            room = cdp__min(need, size - f->at);
        }
    }
    cdp__free(f->os, p);
    return status;
}

CDP__PRIVATE cdp_status cdp__file_lock(cdp__file_store *f, int32_t fd, cdp__file_mode mode) {
    const int32_t r = f->os->files.lock_file(
        f->os->user, fd, mode == CDP__FILE_READ ? CDP_FILE_LOCK_SHARED : CDP_FILE_LOCK_ALONE);
    f->busy = r == -EAGAIN;
    if (r == 0) return CDP_OK;
    return f->busy ? CDP_PENDING
                   : cdp__file_fail(f, -r, "cannot lock it; does its file system have flock()?");
}

/* Refuses a file that is a link, or that other users could change; see private_file. */
CDP__PRIVATE cdp_status cdp__file_allowed(const cdp__file_store *f, const cdp_file_info *info) {
    if (!info->regular)
        return cdp__fail(CDP_ERR_INVALID, "the file store %s is no regular file", f->path);
    if (!f->private_file || !info->foreign) return CDP_OK;
    return cdp__fail(CDP_ERR_INVALID,
        "the file store %s belongs to user %u and has mode %u%u%u: it must belong to this user, "
        "and others must not be allowed to write to it; remove it, or choose another path",
        f->path, info->owner, info->mode >> 6 & 7, info->mode >> 3 & 7, info->mode & 7);
}

CDP__PRIVATE bool cdp__file_same(const cdp__file_store *f, const cdp_file_info *info) {
    return f->pin >= 0 && info->device == f->device && info->number == f->number;
}

/* Locks the open file `fd`, starts a new copy if it is not the file that the copy is of, reads what
   is new, and cuts off an incomplete record. *gone: another user removed the file just before it
   was locked; open it again. */
CDP__PRIVATE cdp_status cdp__file_refresh(
    cdp__file_store *f, int32_t fd, cdp__file_mode mode, bool *gone) {
    const cdp_os_files *files = &f->os->files;
    void *user = f->os->user;
    cdp_file_info info;
    cdp_status status;
    int32_t r = files->file_info(user, fd, &info);
    *gone = false;
    f->busy = false;
    if (r != 0) return cdp__file_fail(f, -r, "cannot read its size");
    status = cdp__file_allowed(f, &info);
    if (status != CDP_OK) return status;
    if (mode == CDP__FILE_READ && !info.removed && cdp__file_same(f, &info) && info.bytes == f->at)
        return CDP_OK; /* The copy is complete: no lock is needed. */
    status = cdp__file_lock(f, fd, mode);
    if (status != CDP_OK) return status;
    r = files->file_info(user, fd, &info);
    if (r != 0) return cdp__file_fail(f, -r, "cannot read its size");
    *gone = info.removed;
    if (*gone) return CDP_OK;
    if (!cdp__file_same(f, &info) || info.bytes < f->at) {
        /* Not the file in which this user was counted; its caller drops the error. */
        if (mode == CDP__FILE_LEAVE) return CDP_ERR_STATE;
        cdp__file_reset(f, fd, &info);
    }
    status = cdp__file_read(f, fd, info.bytes);
    if (status != CDP_OK || !f->torn || mode == CDP__FILE_READ) return status;
    r = files->cut_file(user, fd, f->at);
    if (r != 0) return cdp__file_fail(f, -r, "cannot cut off the incomplete record at its end");
    f->torn = false;
    return CDP_OK;
}

/* *out: the file, locked and read; -1 if there is no file (READ and LEAVE only). PENDING: another
   user has the lock, or removed the file; try again later. */
CDP__PRIVATE cdp_status cdp__file_enter(cdp__file_store *f, cdp__file_mode mode, int32_t *out) {
    static const uint32_t how[] = {0, CDP_FILE_WRITE | CDP_FILE_CREATE, CDP_FILE_WRITE};
    cdp_status status;
    bool gone;
    int32_t fd = f->os->files.open_file(
        f->os->user, f->path, how[mode] | (f->private_file ? CDP_FILE_PRIVATE : 0));
    *out = -1;
    if (fd == -ELOOP && f->private_file)
        return cdp__fail_peer(CDP_ERR_INVALID, -1, ELOOP,
            "the file store %s is a symbolic link, which another user may have put there; remove "
            "it, or choose another path",
            f->path);
    if (fd == -ENOENT && mode != CDP__FILE_WRITE) {
        cdp__file_reset(f, -1, NULL);
        return CDP_OK;
    }
    if (fd < 0)
        return cdp__file_fail(f, -fd,
            mode == CDP__FILE_READ ? "cannot open it"
                                   : "cannot open it for writing; all users must be allowed to");
    status = cdp__file_refresh(f, fd, mode, &gone);
    if (status == CDP_OK && !gone) {
        *out = fd;
        return CDP_OK;
    }
    cdp__file_close(f, fd);
    return status == CDP_OK ? CDP_PENDING : status;
}

/* Appends n bytes after the last record: all of them or, after a failure, none. The caller holds
   the lock. */
CDP__PRIVATE cdp_status cdp__file_append(
    cdp__file_store *f, int32_t fd, const uint8_t *p, uint64_t n) {
    const cdp_os_files *files = &f->os->files;
    uint64_t done = 0;
    int32_t err = 0;
    while (done < n && !err) {
        const int64_t r = files->write_at(f->os->user, fd, f->at + done, p + done, n - done);
        if (r > 0) done += (uint64_t)r;
        if (r <= 0) err = r ? (int32_t)-r : EIO;
    }
    if (!err) return CDP_OK;
    if (files->cut_file(f->os->user, fd, f->at) != 0)
        return cdp__file_fail(
            f, err, "cannot write; the next user that writes will cut off what was written");
    return cdp__file_fail(f, err, "cannot write, nothing of it was kept; is the disk full?");
}

CDP__PRIVATE const cdp__kv_entry *cdp__file_find(cdp__file_store *f, cdp_bytes key) {
    cdp_bytes full;
    f->key[0] = '/';
    cdp__record_copy(f->key + 1, key);
    full.data = f->key;
    full.bytes = key.bytes + 1;
    return cdp__kv_get(&f->kv, full);
}

/* Appends one record for each key of a request. The prefix of a removal is "-/"; each value begins
   with `old` (cdp_store_append() writes the whole value again). */
CDP__PRIVATE cdp_status cdp__file_write(cdp__file_store *f, int32_t fd, const cdp_store_request *rq,
    const char *prefix, cdp_bytes old, const cdp_bytes *values) {
    uint64_t bytes = 0, i;
    uint8_t *p, *end;
    cdp_status status;
    for (i = 0; i < rq->key_count; ++i)
        bytes += cdp__record_bytes(prefix, rq->keys[i], old.bytes + values[i].bytes);
    end = p = (uint8_t *)cdp__alloc(f->os, bytes);
    if (!p) return cdp__fail_nomem("a record of a file store", bytes);
    for (i = 0; i < rq->key_count; ++i)
        end = cdp__record_put(end, prefix, rq->keys[i], old, values[i]);
    CDP_ASSERT((uint64_t)(end - p) == bytes);
    status = cdp__file_append(f, fd, p, bytes);
    cdp__free(f->os, p);
    return status;
}

CDP__PRIVATE cdp_status cdp__file_change(cdp__file_store *f, int32_t fd, cdp_store_request *rq) {
    const cdp__kv_entry *e = rq->op == CDP_STORE_MULTI_SET ? NULL : cdp__file_find(f, rq->keys[0]);
    const char *prefix = "/";
    const cdp_bytes *values = rq->values;
    cdp_bytes old, none, text;
    char digits[24];
    int64_t sum = 0;
    cdp_status status;
    memset(&none, 0, sizeof none);
    old = text = none;
    if (e) {
        old.data = e->value;
        old.bytes = e->value_bytes;
    }
    if (rq->op == CDP_STORE_DELETE) {
        if (!e) return CDP_OK;
        prefix = "-/";
        values = &none;
    } else if (rq->op == CDP_STORE_ADD) {
        if (e && !cdp__number_parse(e->value, e->value_bytes, &sum))
            return cdp__store_no_number(rq->keys[0]);
        sum = (int64_t)((uint64_t)sum + (uint64_t)rq->delta);
        text.data = digits;
        text.bytes = cdp__number_text(sum, digits);
        values = &text;
    } else if (rq->op == CDP_STORE_COMPARE_SET) {
        const bool equal = cdp__store_expected(rq, e ? &old : NULL);
        const cdp_bytes found = e ? old : rq->values[0];
        if (!cdp__store_answer(f->os, rq, equal ? rq->values[1] : found))
            return cdp__fail_nomem("a value", old.bytes);
        if (!equal) return CDP_OK;
        values = &rq->values[1];
    }
    if (rq->op == CDP_STORE_APPEND && old.bytes + values->bytes > CDP_STORE_MAX_VALUE_BYTES)
        return cdp__store_too_long(
            rq->keys[0], old.bytes + values->bytes, CDP_STORE_MAX_VALUE_BYTES);
    status = cdp__file_write(f, fd, rq, prefix, rq->op == CDP_STORE_APPEND ? old : none, values);
    rq->number = rq->op == CDP_STORE_ADD ? sum : 1;
    if (status != CDP_OK) rq->number = 0;
    if (status != CDP_OK)
        cdp__store_request_drop_results(f->os, rq, cdp__store_request_result_count(rq));
    return status;
}

CDP__PRIVATE cdp_status cdp__file_answer(cdp__file_store *f, cdp_store_request *rq) {
    const uint64_t n = cdp__store_request_result_count(rq);
    uint64_t i;
    for (i = 0; i < rq->key_count; ++i)
        if (!cdp__file_find(f, rq->keys[i])) return CDP_PENDING;
    if (!cdp__store_request_make_results(f->os, rq))
        return cdp__fail_nomem("the results of a request", n * sizeof(cdp_bytes));
    for (i = 0; i < n; ++i) {
        const cdp__kv_entry *e = cdp__file_find(f, rq->keys[i]);
        cdp_bytes value;
        value.data = e->value;
        value.bytes = e->value_bytes;
        if (cdp__store_request_put_result(f->os, rq, i, value)) continue;
        cdp__store_request_drop_results(f->os, rq, n);
        return cdp__fail_nomem("a value", value.bytes);
    }
    return CDP_OK;
}

/* A reader that found an incomplete record cuts it off, because PyTorch does not. Without
   permission to write it leaves the record. */
CDP__PRIVATE void cdp__file_repair(cdp__file_store *f) {
    const cdp_error before = *cdp_last_error();
    int32_t fd;
    if (f->torn && cdp__file_enter(f, CDP__FILE_LEAVE, &fd) == CDP_OK) cdp__file_close(f, fd);
    f->torn = false;
    *cdp__error_slot() = before;
}

CDP__PRIVATE cdp_status cdp__file_attempt(cdp__polling *t, cdp_store_request *rq) {
    cdp__file_store *f = (cdp__file_store *)t;
    const bool reads = rq->op == CDP_STORE_GET || rq->op == CDP_STORE_WAIT
        || rq->op == CDP_STORE_MULTI_GET || rq->op == CDP_STORE_CHECK
        || rq->op == CDP_STORE_NUM_KEYS || rq->op == CDP_STORE_LIST_KEYS;
    int32_t fd;
    cdp_status status = cdp__file_enter(f, reads ? CDP__FILE_READ : CDP__FILE_WRITE, &fd);
    if (status != CDP_OK) return status;
    if (rq->op == CDP_STORE_NUM_KEYS)
        rq->number = (int64_t)f->kv.present_count;
    else if (rq->op == CDP_STORE_LIST_KEYS)
        status = cdp__kv_list(&f->kv, "/", rq);
    else
        status = reads ? cdp__file_answer(f, rq) : cdp__file_change(f, fd, rq);
    cdp__file_close(f, fd);
    cdp__file_repair(f);
    if (rq->op != CDP_STORE_CHECK || status < 0) return status;
    rq->number = status == CDP_OK;
    return CDP_OK;
}

CDP__PRIVATE bool cdp__file_busy(cdp__file_store *f) {
    bool busy;
    cdp_lock_acquire(&f->polling.lock);
    busy = f->busy;
    cdp_lock_release(&f->polling.lock);
    return busy;
}

/* The value of a counter of users in the file, 0 if there is none. */
CDP__PRIVATE int64_t cdp__file_number(const cdp__file_store *f, const char *name) {
    const cdp__kv_entry *e;
    cdp_bytes key;
    int64_t n = 0;
    key.data = name;
    key.bytes = strlen(name);
    e = cdp__kv_get(&f->kv, key);
    return e && cdp__number_parse(e->value, e->value_bytes, &n) ? n : 0;
}

CDP__PRIVATE uint8_t *cdp__file_put_number(uint8_t *p, const char *name, int64_t n) {
    cdp_bytes key, text, none;
    char digits[24];
    memset(&none, 0, sizeof none);
    key.data = name;
    key.bytes = strlen(name);
    text.data = digits;
    text.bytes = cdp__number_text(n, digits);
    return cdp__record_put(p, "", key, text, none);
}

/* Adds this user to the counters in the file or, if `leave`, removes it from them. The last user
   removes the file while it holds the lock; a user that opened the file before then finds it
   removed and opens the path again. (Older versions of PyTorch count only users that leave.) If the
   last user was killed before it removed the file, the next user that comes empties it. */
CDP__PRIVATE cdp_status cdp__file_register(cdp__file_store *f, bool leave) {
    uint8_t records[128], *p = records;
    int64_t here, left;
    bool over;
    int32_t fd, r;
    cdp_status status = cdp__file_enter(f, leave ? CDP__FILE_LEAVE : CDP__FILE_WRITE, &fd);
    if (status != CDP_OK || fd < 0) return status;
    here = cdp__file_number(f, "refcount/") + (leave ? -1 : 0);
    left = cdp__file_number(f, "cleanup/") + leave;
    over = f->world_size && here <= 0 && left >= (int64_t)f->world_size;
    if (leave) p = cdp__file_put_number(p, "cleanup/", left);
    if (!leave) here = over ? 1 : here + 1;
    p = cdp__file_put_number(p, "refcount/", here);
    if (over && !leave) {
        r = f->os->files.cut_file(f->os->user, fd, 0);
        if (r != 0)
            status = cdp__file_fail(f, -r, "cannot empty it");
        else
            cdp__file_reset(f, f->pin, NULL);
    }
    if (status == CDP_OK) status = cdp__file_append(f, fd, records, (uint64_t)(p - records));
    if (over && leave) {
        r = f->os->files.remove_file(f->os->user, f->path);
        if (r != 0) status = cdp__file_fail(f, -r, "cannot remove it");
    }
    cdp__file_close(f, fd);
    return status;
}

CDP__PRIVATE cdp_status cdp__file_register_until(
    cdp__file_store *f, bool leave, uint64_t deadline_ns) {
    uint32_t attempts;
    for (attempts = 0;; ++attempts) {
        const uint64_t now = f->os->now_ns(f->os->user);
        const cdp_status status = cdp__file_register(f, leave);
        if (status != CDP_PENDING || now >= deadline_ns) return status;
        cdp__polling_pause(f->os, attempts, now, deadline_ns);
    }
}

CDP__PRIVATE void cdp__file_free(cdp__file_store *f) {
    cdp__file_close_fd(f, f->pin);
    cdp__kv_close(&f->kv);
    cdp__lock_close(&f->polling.lock);
    cdp__free(f->os, f);
}

CDP__PRIVATE void cdp__file_destroy(void *self) {
    cdp__file_store *f = (cdp__file_store *)self;
    const cdp_error before = *cdp_last_error();
    /* a child of fork() is not counted among the users */
    if (!cdp__is_child(f->polling.forks))
        (void)cdp__file_register_until(f, true, f->os->now_ns(f->os->user) + CDP__FILE_LEAVE_NS);
    *cdp__error_slot() = before; /* Destroying a store reports no error. */
    cdp__file_free(f);
}

/* Creates the object; cdp__file_register() then adds it to the users of the file. */
CDP__PRIVATE CDP__COLD cdp_status cdp__file_make(
    const cdp_file_store_desc *desc, cdp__file_store **out) {
    const cdp_os *os = desc && desc->os ? desc->os : cdp_os_default();
    const uint64_t path_bytes = desc && desc->path ? strlen(desc->path) + 1 : 0;
    cdp__file_store *f;
    uint64_t seed = 0;
    if (path_bytes < 2) return cdp__missing("cdp_file_store_create", "desc.path");
    if (cdp__os_whole(os, "cdp_file_store_create") != CDP_OK) return CDP_ERR_INVALID;
    if (!os->files.open_file)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "the file store %s: this cdp_os has no files; set its member `files`, or use another "
            "store",
            desc->path);
    f = (cdp__file_store *)cdp__alloc_zero(os, sizeof *f + path_bytes);
    if (!f) return cdp__fail_nomem("a file store", sizeof *f + path_bytes);
    f->os = os;
    f->path = (char *)(f + 1);
    memcpy(f->path, desc->path, (size_t)path_bytes);
    f->world_size = desc->world_size;
    f->private_file = desc->private_file;
    f->pin = -1;
    if (os->random(os->user, &seed, sizeof seed) != CDP_OK) seed = os->now_ns(os->user);
    cdp__kv_open(&f->kv, os, seed, UINT64_MAX);
    cdp__store_made(&f->polling.store, cdp__file_destroy);
    f->polling.inherited = true;
    if (cdp__polling_open(&f->polling, os, desc->timeout_ms, cdp__file_attempt)) {
        *out = f;
        return CDP_OK;
    }
    cdp__file_free(f);
    return cdp__fail_nomem("a lock", sizeof(cdp_lock));
}

CDP__PRIVATE cdp_status cdp__file_locked(const cdp__file_store *f) {
    return cdp__fail(CDP_ERR_TIMEOUT,
        "the file store %s was locked all the time; resume or end the process that holds the lock",
        f->path);
}

CDP_API cdp_status cdp_file_store_create(const cdp_file_store_desc *desc, cdp_store **out) {
    cdp__file_store *f = NULL;
    cdp_status status;
    if (!out) return cdp__missing("cdp_file_store_create", "out");
    *out = NULL;
    CDP__NOT_COLD();
    status = cdp__file_make(desc, &f);
    if (status != CDP_OK) return status;
    status = cdp__file_register_until(f, false, cdp__deadline(f->os, f->polling.store.timeout_ms));
    if (status == CDP_OK) {
        *out = &f->polling.store;
        return CDP_OK;
    }
    if (status == CDP_PENDING) status = cdp__file_locked(f);
    cdp__file_free(f);
    return status;
}
#endif

/* ---- >>store/buffer: bytes to be sent or parsed ---------------------------------------------- */

/* Knows: bytes to be sent or parsed. Promises: memory grows to a limit and is reused. */

typedef struct cdp__fifo {
    uint8_t *data;
    uint64_t at, used, room; /* data[at .. used) is still to be handled */
} cdp__fifo;

CDP__PRIVATE uint64_t cdp__fifo_left(const cdp__fifo *b) {
    return b->used - b->at;
}

CDP__PRIVATE void cdp__fifo_free(const cdp_os *os, cdp__fifo *b) {
    cdp__free(os, b->data);
    memset(b, 0, sizeof *b);
}

/* Makes room for `more` bytes at the end. Existing bytes may move. */
CDP__PRIVATE bool cdp__fifo_reserve(const cdp_os *os, cdp__fifo *b, uint64_t more) {
    const uint64_t left = cdp__fifo_left(b), room = cdp__max(64, cdp__max(left + more, 2 * left));
    uint8_t *p;
    if (b->room - b->used >= more) return true;
    /* moving costs no more than the bytes already handled */
    if (b->at && b->room - left >= more && b->at >= left) {
        memcpy(b->data, b->data + b->at, (size_t)left);
    } else {
        p = (uint8_t *)cdp__alloc(os, room);
        if (!p) return false;
        if (left) memcpy(p, b->data + b->at, (size_t)left);
        cdp__free(os, b->data);
        b->data = p;
        b->room = room;
    }
    b->at = 0;
    b->used = left;
    return true;
}

/* ---- >>store/auth_exchange: runs an authentication exchange on a socket ---------------------- */

/* Knows: one socket and the state of its exchange. Promises: it never blocks, and reads nothing
   beyond the exchange. */

#ifndef CDP_NO_JOB_KEY

/* `key` NULL: refuses every peer with `refusal`, and needs no nonce. The caller owns the memory of
   `a`. */
CDP__PRIVATE void cdp__auth_open_with(cdp__auth *a, const uint8_t *nonce, const uint8_t *key,
    bool listener, uint32_t purpose, cdp__auth_refusal refusal) {
    CDP_ASSERT(nonce || !key);
    memset(a, 0, sizeof *a);
    if (nonce) memcpy(a->nonce[listener], nonce, sizeof a->nonce[listener]);
    a->key = key;
    a->listener = listener;
    a->refusal = (uint8_t)refusal;
    a->purpose = purpose;
    if (key) cdp__auth_begin(a);
}

/* Errors: those of os->random, because authentication needs random bytes. */
CDP__PRIVATE CDP__COLD cdp_status cdp__auth_open(cdp__auth *a, const cdp_os *os, const uint8_t *key,
    bool listener, uint32_t purpose, cdp__auth_refusal refusal) {
    uint8_t nonce[16];
    const cdp_status st = key ? os->random(os->user, nonce, sizeof nonce) : CDP_OK;
    if (st == CDP_OK) cdp__auth_open_with(a, key ? nonce : NULL, key, listener, purpose, refusal);
    return st;
}

/* Advances the exchange without waiting. Returns PENDING, OK, MISMATCH (refused; a->refusal) or
   PEER_LOST (*result: as of recv). Reads no byte beyond the exchange. */
CDP__PRIVATE CDP__COLD cdp_status cdp__auth_pump(
    cdp__auth *a, cdp__loop *l, cdp__io *io, int64_t *result) {
    cdp_status st = a->done ? CDP_OK : CDP_PENDING;
    *result = 1;
    for (;;) {
        cdp_iov v;
        while (a->left) {
            v.data = a->out + CDP__AUTH_BYTES - a->left;
            v.bytes = a->left;
            *result = cdp__io_send(l, io, &v, 1);
            if (*result <= 0) break;
            a->left -= (uint32_t)*result;
        }
        /* the refusal is dropped if the socket has no room for it */
        if (st == CDP_ERR_MISMATCH) return st;
        if (*result <= 0 || st == CDP_OK) break;
        v.data = a->in + a->got;
        v.bytes = CDP__AUTH_BYTES - a->got;
        *result = cdp__io_recv(l, io, &v, 1);
        if (*result <= 0) break;
        a->got += (uint32_t)*result;
        st = cdp__auth_read(a);
    }
    if (*result < 0 || (*result == 0 && io->broken)) return CDP_ERR_PEER_LOST;
    return a->left ? CDP_PENDING : st;
}

/* The connector has sent all that it says, so it may send what follows the exchange: the listener
   reads that when it has found the proof right. */
CDP__PRIVATE bool cdp__auth_said(const cdp__auth *a) {
    return a->step && !a->left;
}

#endif /* CDP_NO_JOB_KEY */

/* Reads what a refused peer has sent: closing a socket with unread input would make the system drop
   the refusal. */
CDP__PRIVATE void cdp__auth_drain(cdp__loop *l, cdp__io *io) {
    uint8_t sink[256];
    cdp_iov v;
    uint32_t i;
    v.data = sink;
    v.bytes = sizeof sink;
    for (i = 0; i < 16 && io->fd >= 0 && l->os->net.recv_iov(l->os->user, io->fd, &v, 1) > 0; ++i) {
    }
}

/* ---- >>store/server: connections, their memory and their answers ----------------------------- */

/* Knows: the data structures of a server and its connections. Promises: memory stays within
   desc.max_total_bytes, and one run of the loop does a bounded amount of work. The other
   sections of the server use this one. */

/* Receives connections whose first bytes are those of a link; see cdp__store_server_share. */
typedef void (*cdp__server_link_func)(void *user, int32_t fd, const cdp_addr *from,
    const uint8_t *received, uint64_t bytes, uint8_t nonce[2][16]);

#ifndef CDP_NO_STORE_SERVER

struct cdp__conn;

/* A connection that waits for a key. */
typedef struct cdp__waiter {
    /* in the key's waits or watches, or in server->satisfied; must be first */
    cdp__chain of_key;
    cdp__chain of_conn;
    struct cdp__conn *conn;
    bool watch; /* for every change, not only for a value */
} cdp__waiter;

typedef struct cdp__last_will {
    cdp_bytes key, value; /* stored after this struct */
} cdp__last_will;

/* A LIST_KEYS in progress, which is answered in several runs of the loop. */
typedef struct cdp__listing {
    uint64_t left;   /* keys still to be sent of the announced number; 0: no listing */
    uint64_t cursor; /* of cdp__kv_next_bucket() */
    uint64_t since;  /* keys set after this are left out */
    bool all_listed; /* all buckets are done; empty strings replace keys removed meanwhile */
} cdp__listing;

typedef struct cdp__conn {
    cdp_store_server *server;
    /* in server->fresh until its greeting, then in server->conns */
    struct cdp__conn *next, *prev;
    struct cdp__conn *next_dirty;
    /* in server->dirty: to be flushed or closed before the current callback ends */
    bool dirty;
    bool closing; /* no more bytes are read or answered */
    bool greeted;
    bool parked; /* not in the loop, but polled at intervals; see cdp__conn_park() */
    bool old;    /* speaks the dialect of PyTorch 1.13 */
    /* a client of this library: the server tells it when it is closed */
    bool is_cdp;
    bool all_there;     /* CHECK: all keys so far exist */
    bool wait_answered; /* its wait was answered, and it has sent no request since */
    /* keys that a WAIT still needs, plus 1 until all keys of the request have arrived */
    uint32_t awaited;
    uint32_t wait_count, watch_count; /* numbers of `waiters` */
    /* without memory while empty, so an idle connection needs only this struct */
    cdp__fifo in, out;
    cdp__io io;
    uint64_t need; /* `in` must have this many bytes before it is parsed again */
    cdp__last_will *last_will;
    /* until the client is authenticated, or has received the refusal */
    cdp__auth *auth;
    cdp__chain deferred; /* in server->deferred if it has work for a later run; else next is NULL */
    cdp__chain waiters;
    uint64_t born_ns, active_ns;
    cdp_addr from;
    uint32_t purpose;     /* the purpose of its authentication; 0: none was needed */
    uint8_t nonce[2][16]; /* the nonces of that */
    cdp__wire wire;
    cdp__listing listing;
} cdp__conn;

/* True while a listing is being sent. A constant in builds without LIST_KEYS. */
#ifdef CDP_NO_STORE_CALLS
#define CDP__LISTING(c) false
#else
#define CDP__LISTING(c) ((c)->listing.left != 0)
#endif

#define CDP__SERVER_SCRATCH 65536u
/* An incomplete item up to this size is copied to the shared scratch memory and back. */
#define CDP__SERVER_SMALL 4096u
#define CDP__SERVER_BACKLOG 65536u /* unread answers above which a client's commands wait */
/* Bytes read from one connection before the others are served. */
#define CDP__SERVER_READ_BUDGET 1048576u
#define CDP__SERVER_ACCEPT_RETRY_NS (100 * CDP__MS)
/* Units of work in one run of the loop, which may be that of a training rank. One unit is a
   command, a key of a listing, a woken connection, or 4 KiB of a value: about a quarter of a
   microsecond. */
#define CDP__SERVER_TURN_WORK 4096u
#define CDP__SERVER_ACCEPT_WORK 64u
/* Watches per connection, at most: one request may change all these keys, and each change sends
   both values. */
#define CDP__SERVER_MAX_WATCHES 1024u
/* Connections that are not authenticated or have not sent a greeting, at most. When there are so
   many, a new one replaces the oldest once that has had CDP__SERVER_GRACE_NS. */
#define CDP__SERVER_MAX_FRESH 1024u
#define CDP__SERVER_GRACE_NS (1000 * CDP__MS)
/* Such a connection is parked after this time without bytes; parked ones are polled at this
   interval. */
#define CDP__SERVER_PARK_NS (20 * CDP__MS)

struct cdp_store_server {
    const cdp_os *os;
    cdp__loop *loop;
    cdp__conn *dirty;
    uint8_t *scratch;
    void *parked; /* watch of parked connections; NULL until there is one */
    void *thread;
    uint32_t forks; /* see cdp__is_child() */
    uint32_t work_left;
    uint32_t client_count, fresh_count;
    uint32_t stop; /* atomic */
    bool full_logged, accept_logged, refusal_logged;
    bool keyed;
    bool fresh_full; /* accepts none until a fresh connection ends, or accept_timer */
    bool out_of_fds; /* accepts none until accept_timer, even if descriptors are free */
    uint64_t turn;   /* value of loop->turns that work_left belongs to */
    uint64_t buffer_bytes;
    uint64_t watch_count; /* of all connections */
    cdp__chain deferred;  /* connections with work left for a later turn */
    cdp__chain satisfied; /* waiters whose key was set, not answered yet */
    cdp__kv kv;
    cdp_store_server_desc desc; /* with defaults */
    cdp__io listener;
    cdp_addr at;
    cdp__timer accept_timer, greet_timer, park_timer, turn_timer;
    cdp__wire_limits limits;
    uint8_t key[CDP__AUTH_BYTES];
    uint8_t nonce_seed[CDP__AUTH_BYTES];
    uint64_t nonce_count;
    uint64_t last_ns; /* the server ends: until then clients may take their last answers */
    cdp__server_link_func link_func; /* see cdp__store_server_share */
    void *link_user;
    cdp__conn fresh, conns; /* list heads; fresh is ordered by age */
    cdp__loop own_loop;
};

CDP__PRIVATE void cdp__conn_link(cdp__conn *head, cdp__conn *c) {
    c->next = head;
    c->prev = head->prev;
    c->prev->next = c->next->prev = c;
}

CDP__PRIVATE void cdp__conn_unlink(cdp__conn *c) {
    c->next->prev = c->prev;
    c->prev->next = c->next;
    c->next = c->prev = NULL;
    if (!c->greeted) --c->server->fresh_count;
}

CDP__PRIVATE void cdp__conn_mark(cdp__conn *c) {
    if (c->dirty) return;
    c->dirty = true;
    c->next_dirty = c->server->dirty;
    c->server->dirty = c;
}

/* Requests that a connection be closed. cdp__server_settle() frees it later, when no caller uses
   it any more. */
CDP__PRIVATE CDP__ONE_COPY void cdp__conn_close(cdp__conn *c, const char *why) {
    if (c->closing) return;
    c->closing = true;
    cdp__conn_mark(c);
    if (why)
        cdp__log(&c->server->desc.logger, CDP_LOG_INFO, -1,
            "store server: closing a connection: %s", why);
}

/* Work per turn */

/* Requests another run of the loop without sleeping. (One nanosecond later, because a timer that
   is due fires in the current run.) */
CDP__PRIVATE void cdp__server_want_turn(cdp_store_server *s) {
    if (!s->turn_timer.next)
        cdp__loop_timer_set(
            s->loop, &s->turn_timer, s->os->now_ns(s->os->user) + 1, s->turn_timer.func, s);
}

/* Uses up units of work. False: this run of the loop has done its share; continue in the next
   one. */
CDP__PRIVATE bool cdp__server_spend(cdp_store_server *s, uint64_t units) {
    if (s->turn != s->loop->turns) {
        s->turn = s->loop->turns;
        s->work_left = CDP__SERVER_TURN_WORK;
    }
    if (!s->work_left) {
        cdp__server_want_turn(s);
        return false;
    }
    s->work_left -= (uint32_t)cdp__min(units, s->work_left);
    return true;
}

CDP__PRIVATE void cdp__conn_defer(cdp__conn *c) {
    if (!c->deferred.next) cdp__chain_add(&c->server->deferred, &c->deferred);
    cdp__server_want_turn(c->server);
}

/* Memory and answers */

CDP__PRIVATE void cdp__server_account(cdp_store_server *s, uint64_t before, uint64_t after) {
    s->buffer_bytes += cdp__kv_cost(after) - cdp__kv_cost(before);
    s->kv.max_bytes = s->desc.max_total_bytes - cdp__min(s->buffer_bytes, s->desc.max_total_bytes);
}

/* Like cdp__fifo_reserve, within the server's memory limit. */
CDP__PRIVATE bool cdp__conn_reserve(cdp__conn *c, cdp__fifo *b, uint64_t more) {
    cdp_store_server *s = c->server;
    const uint64_t before = b->room, total = s->kv.bytes + s->buffer_bytes;
    if (b->room - b->used < more && total + cdp__fifo_left(b) + more > s->desc.max_total_bytes)
        return false;
    if (!cdp__fifo_reserve(s->os, b, more)) return false;
    cdp__server_account(s, before, b->room);
    return true;
}

CDP__PRIVATE void cdp__conn_release(cdp__conn *c, cdp__fifo *b) {
    cdp__server_account(c->server, b->room, 0);
    cdp__fifo_free(c->server->os, b);
}

CDP__PRIVATE void cdp__conn_reply(cdp__conn *c, const void *data, uint64_t bytes) {
    if (c->closing) return;
    if (cdp__fifo_left(&c->out) + bytes > c->server->desc.max_reply_bytes) {
        cdp__conn_close(c, "it does not read its answers (max_reply_bytes)");
    } else if (!cdp__conn_reserve(c, &c->out, bytes)) {
        cdp__conn_close(c, "no memory for an answer (max_total_bytes)");
    } else {
        if (bytes) memcpy(c->out.data + c->out.used, data, (size_t)bytes);
        c->out.used += bytes;
        cdp__conn_mark(c);
    }
}

CDP__PRIVATE void cdp__conn_reply_byte(cdp__conn *c, uint8_t v) {
    cdp__conn_reply(c, &v, 1);
}

CDP__PRIVATE CDP__ONE_COPY void cdp__conn_reply_number(cdp__conn *c, uint64_t v) {
    uint8_t b[8];
    cdp__put_u64(b, v);
    cdp__conn_reply(c, b, 8);
}

CDP__PRIVATE CDP__ONE_COPY void cdp__conn_reply_string(
    cdp__conn *c, const void *data, uint64_t bytes) {
    cdp__conn_reply_number(c, bytes);
    cdp__conn_reply(c, data, bytes);
}

/* True if the client has too many unread answers: its next command waits until it reads some. */
CDP__PRIVATE bool cdp__conn_is_behind(const cdp__conn *c) {
    return cdp__fifo_left(&c->out) > CDP__SERVER_BACKLOG;
}

#endif /* CDP_NO_STORE_SERVER */

/* ---- >>store/server_waits: which connections wait for which key ------------------------------ */

/* Knows: waiters. Promises: any number of connections may wait for one key: when it is set, they
   are moved aside in constant time, and then answered a bounded number per run. */

#ifndef CDP_NO_STORE_SERVER

CDP__PRIVATE cdp__waiter *cdp__waiter_of_conn(cdp__chain *link) {
    return (cdp__waiter *)(void *)((uint8_t *)link - offsetof(cdp__waiter, of_conn));
}

/* The entry that contains this chain's head. */
CDP__PRIVATE cdp__kv_entry *cdp__waiter_entry(cdp__chain *head, bool watch) {
    const uint64_t at = watch ? offsetof(cdp__kv_entry, watches) : offsetof(cdp__kv_entry, waits);
    return (cdp__kv_entry *)(void *)((uint8_t *)head - at);
}

CDP__PRIVATE void cdp__waiter_drop(cdp__waiter *w) {
    cdp__conn *c = w->conn;
    cdp_store_server *s = c->server;
    cdp__chain *empty = cdp__chain_remove(&w->of_key);
    (void)cdp__chain_remove(&w->of_conn);
    if (empty && empty != &s->satisfied)
        cdp__kv_release(&s->kv, cdp__waiter_entry(empty, w->watch));
    CDP_ASSERT(w->watch ? c->watch_count : c->wait_count);
    if (w->watch) {
        --c->watch_count;
        --s->watch_count;
    } else {
        --c->wait_count;
    }
    s->kv.bytes -= cdp__kv_cost(sizeof *w);
    cdp__free(s->os, w);
}

/* Makes a connection wait for a key. False: not possible; the connection is being closed. */
CDP__PRIVATE bool cdp__conn_await(cdp__conn *c, cdp_bytes key, bool watch) {
    cdp_store_server *s = c->server;
    const bool many =
        watch ? c->watch_count >= CDP__SERVER_MAX_WATCHES : c->wait_count >= s->limits.list;
    cdp__kv_entry *e = many ? NULL : cdp__kv_obtain(&s->kv, key);
    cdp__waiter *w = NULL;
    if (e && cdp__kv_has_room(&s->kv, sizeof *w))
        w = (cdp__waiter *)cdp__alloc_zero(s->os, sizeof *w);
    if (!w) {
        cdp__kv_release(&s->kv, e);
        cdp__conn_close(c,
            many ? "it waits for too many keys (max_list)"
                 : "no memory to wait for a key (max_total_bytes)");
        return false;
    }
    w->conn = c;
    w->watch = watch;
    cdp__chain_add(watch ? &e->watches : &e->waits, &w->of_key);
    cdp__chain_add(&c->waiters, &w->of_conn);
    s->kv.bytes += cdp__kv_cost(sizeof *w);
    if (watch) {
        ++c->watch_count;
        ++s->watch_count;
    } else {
        ++c->wait_count;
        ++c->awaited;
    }
    return true;
}

CDP__PRIVATE void cdp__conn_forget_waits(cdp__conn *c, bool watches) {
    cdp__chain *link = c->waiters.next, *next;
    for (; link != &c->waiters; link = next) {
        cdp__waiter *w = cdp__waiter_of_conn(link);
        next = link->next;
        if (!w->watch || watches) cdp__waiter_drop(w);
    }
    c->awaited = 0;
}

/* Removes waits of a connection. False: this run has done its share, and some are left. */
CDP__PRIVATE bool cdp__conn_forget_some_waits(cdp__conn *c) {
    while (!cdp__chain_empty(&c->waiters)) {
        if (!cdp__server_spend(c->server, 1)) return false;
        cdp__waiter_drop(cdp__waiter_of_conn(c->waiters.next));
    }
    c->awaited = 0;
    return true;
}

CDP__PRIVATE void cdp__conn_key_arrived(cdp__conn *c) {
    CDP_ASSERT(c->awaited);
    if (--c->awaited) return;
    c->wait_answered = true;
    cdp__conn_reply_byte(c, CDP__WIRE_STOP_WAITING);
}

CDP__PRIVATE void cdp__waiter_satisfied(cdp__waiter *w) {
    cdp__conn *c = w->conn;
    CDP_ASSERT(!w->watch);
    cdp__waiter_drop(w);
    cdp__conn_key_arrived(c);
}

/* Answers waiters whose key was set, within half of this turn's work; commands get the other half.
   */
CDP__PRIVATE void cdp__server_wake(cdp_store_server *s) {
    const uint32_t keep = CDP__SERVER_TURN_WORK / 2;
    while (!cdp__chain_empty(&s->satisfied)) {
        if (!cdp__server_spend(s, 1) || s->work_left < keep) {
            cdp__server_want_turn(s);
            return;
        }
        cdp__waiter_satisfied((cdp__waiter *)s->satisfied.next);
    }
}

/* The entry has a value now: ends all waits for it. NULL is allowed. */
CDP__PRIVATE void cdp__server_key_set(cdp_store_server *s, cdp__kv_entry *e) {
    if (!e) return;
    cdp__chain_move(&e->waits, &s->satisfied);
    cdp__server_wake(s);
}

/* The entry's queue has one more value: ends the wait of one connection. */
CDP__PRIVATE void cdp__server_item_pushed(cdp_store_server *s, cdp__kv_entry *e) {
    cdp__chain *first = e->waits.next;
    if (cdp__chain_empty(&e->waits)) return;
    (void)cdp__chain_remove(first);
    cdp__chain_add(&s->satisfied, first);
    cdp__server_wake(s);
}

/* Sends the old and the new value to all connections that watch this key. */
CDP__PRIVATE void cdp__server_notify_watchers(
    cdp_store_server *s, const cdp__kv_entry *e, bool was_there, cdp_bytes old) {
    const cdp__chain *link;
    uint8_t what = was_there ? CDP__WIRE_WATCH_UPDATED : CDP__WIRE_WATCH_CREATED;
    if (!e->present) what = CDP__WIRE_WATCH_DELETED;
    for (link = e->watches.next; link != &e->watches; link = link->next) {
        cdp__conn *c = ((const cdp__waiter *)link)->conn;
        (void)cdp__server_spend(s, 1 + (e->value_bytes + old.bytes) / 4096);
        cdp__conn_reply_byte(c, what);
        cdp__conn_reply_string(c, cdp__kv_key(e), e->key_bytes);
        cdp__conn_reply_string(c, old.data, old.bytes);
        cdp__conn_reply_string(c, e->value, e->value_bytes);
    }
}

#endif /* CDP_NO_STORE_SERVER */

/* ---- >>store/server_commands: runs each command of the protocol ------------------------------ */

/* Knows: the commands of the protocol. There is one function per command, called with an item of
   the wire (cdp__wire_item). Promises: a command that has an answer gets exactly one, at once or
   when its wait ends. */

#ifndef CDP_NO_STORE_SERVER

CDP__PRIVATE void cdp__conn_stored(cdp__conn *c, cdp_status status, cdp__kv_entry *e) {
    if (status == CDP_OK) {
        cdp__server_key_set(c->server, e);
        return;
    }
    if (status == CDP_ERR_NOMEM)
        cdp__log(
            &c->server->desc.logger, CDP_LOG_WARN, -1, "store server: %s", cdp_last_error()->text);
    cdp__conn_close(c, cdp_last_error()->text);
}

CDP__PRIVATE void cdp__conn_greeted(cdp__conn *c, const cdp__wire_row *table) {
    cdp__conn_unlink(c);
    c->wire.table = table;
    c->greeted = true;
    cdp__conn_link(&c->server->conns, c);
}

/* Logs a refused client. Only the first refusal is a warning, so that strangers cannot fill the
   log. */
CDP__PRIVATE void cdp__conn_refused(cdp__conn *c, uint32_t refusal) {
    cdp_store_server *s = c->server;
    (void)refusal; /* unused without log texts */
    cdp__log(&s->desc.logger, s->refusal_logged ? CDP_LOG_INFO : CDP_LOG_WARN, -1,
        "store server at port %u: refused a connection: %s", s->at.port, cdp__auth_text(refusal));
    s->refusal_logged = true;
    cdp__conn_close(c, NULL);
}

CDP__PRIVATE void cdp__server_on_validate(cdp__conn *c, const cdp__wire_item *it) {
    if (it->number != CDP__WIRE_MAGIC) {
        cdp__conn_close(c, "it did not greet like a store client");
        return;
    }
    cdp__conn_greeted(c, cdp__wire_v2);
}

/* Begins an authentication exchange. A build without job keys closes the connection. */
CDP__PRIVATE void cdp__server_on_key(cdp__conn *c, const cdp__wire_item *it) {
#ifndef CDP_NO_JOB_KEY
    cdp__auth a;
    memset(&a, 0, sizeof a);
    a.listener = true;
    a.in[0] = 'c';
    (void)cdp__auth_refuse(&a, CDP__AUTH_NOT_NEEDED);
    cdp__conn_reply(c, a.out, a.left);
#endif
    (void)it;
    cdp__conn_refused(c, CDP__AUTH_NOT_NEEDED);
}

CDP__PRIVATE void cdp__server_on_set(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv_entry *e = NULL;
    if (it->key.data) {
        const cdp_status status = cdp__kv_set(&c->server->kv, it->key, it->value[0], &e);
        cdp__conn_stored(c, status, e);
    }
}

CDP__PRIVATE void cdp__server_on_append(cdp__conn *c, const cdp__wire_item *it) {
    const cdp__kv_entry *old = cdp__kv_get(&c->server->kv, it->key);
    cdp__kv_entry *e = NULL;
    if (old && old->value_bytes + it->value[0].bytes > c->server->limits.value_bytes) {
        cdp__conn_close(c, "a value that was appended to became too long (max_value_bytes)");
    } else {
        const cdp_status status = cdp__kv_append(&c->server->kv, it->key, it->value[0], &e);
        cdp__conn_stored(c, status, e);
    }
}

CDP__PRIVATE void cdp__server_on_compare_set(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv_entry *e = NULL;
    cdp_bytes answer;
    const cdp_status status =
        cdp__kv_compare_set(&c->server->kv, it->key, it->value[0], it->value[1], &answer, &e);
    if (status == CDP_OK) cdp__conn_reply_string(c, answer.data, answer.bytes);
    cdp__conn_stored(c, status, e);
}

/* Also for the items of a MULTI_GET. An absent key reads as empty, as in PyTorch's server of
   2.x; that of 1.13 closes the connection. */
CDP__PRIVATE void cdp__server_on_get(cdp__conn *c, const cdp__wire_item *it) {
    const cdp__kv_entry *e = it->key.data ? cdp__kv_get(&c->server->kv, it->key) : NULL;
    if (it->cmd == CDP__CMD_TRY_GET)
        cdp__conn_reply_byte(c, e ? CDP__WIRE_READY : CDP__WIRE_NOT_READY);
    if (it->cmd == CDP__CMD_TRY_GET && !e) return;
    if (CDP__OLD(c) && !e)
        cdp__conn_close(c, "it read a key that is not there");
    else if (it->key.data)
        cdp__conn_reply_string(c, e ? e->value : NULL, e ? e->value_bytes : 0);
}

CDP__PRIVATE void cdp__server_on_add(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv_entry *e = NULL;
    int64_t sum;
    const cdp_status status = cdp__kv_add(&c->server->kv, it->key, (int64_t)it->number, &sum, &e);
    if (status == CDP_OK) cdp__conn_reply_number(c, (uint64_t)sum);
    cdp__conn_stored(c, status, e);
}

CDP__PRIVATE void cdp__server_on_check(cdp__conn *c, const cdp__wire_item *it) {
    const uint64_t n = sizeof CDP__WIRE_CDP_SERVER - 1;
    const bool asks_for_cdp = it->key.data && it->key.bytes == n
        && memcmp(it->key.data, CDP__WIRE_CDP_SERVER, (size_t)n) == 0;
    if (it->first) c->all_there = true;
    c->is_cdp = c->is_cdp || asks_for_cdp;
    if (it->key.data && !asks_for_cdp)
        c->all_there = c->all_there && cdp__kv_available(&c->server->kv, it->key);
    if (it->last) cdp__conn_reply_byte(c, c->all_there ? CDP__WIRE_READY : CDP__WIRE_NOT_READY);
}

CDP__PRIVATE void cdp__server_on_wait(cdp__conn *c, const cdp__wire_item *it) {
    if (it->first) ++c->awaited; /* the wait must not end before its last key has arrived */
    if (it->key.data && !cdp__kv_available(&c->server->kv, it->key))
        (void)cdp__conn_await(c, it->key, false);
    if (it->last && !c->closing) cdp__conn_key_arrived(c);
}

CDP__PRIVATE void cdp__server_on_cancel_wait(cdp__conn *c, const cdp__wire_item *it) {
    (void)it;
    cdp__conn_forget_waits(c, true);
    cdp__conn_reply_byte(c, CDP__WIRE_CANCELED);
}

CDP__PRIVATE void cdp__server_on_num_keys(cdp__conn *c, const cdp__wire_item *it) {
    (void)it;
    cdp__conn_reply_number(c, c->server->kv.present_count);
}

CDP__PRIVATE void cdp__server_on_delete(cdp__conn *c, const cdp__wire_item *it) {
    cdp__conn_reply_number(c, cdp__kv_delete(&c->server->kv, it->key));
}

CDP__PRIVATE void cdp__server_on_ping(cdp__conn *c, const cdp__wire_item *it) {
    uint8_t b[4];
    cdp__put_u32(b, (uint32_t)it->number);
    cdp__conn_reply(c, b, 4);
}

/* Sends the keys of one bucket of the map. */
CDP__PRIVATE void cdp__conn_list_bucket(cdp__conn *c) {
    const cdp__kv *kv = &c->server->kv;
    cdp__listing *l = &c->listing;
    const cdp__kv_entry *e = kv->buckets[l->cursor & (kv->bucket_count - 1)];
    for (; e && l->left; e = e->next) {
        if (!e->present || e->since > l->since) continue;
        cdp__conn_reply_string(c, cdp__kv_key(e), e->key_bytes);
        --l->left;
    }
    l->cursor = cdp__kv_next_bucket(kv, l->cursor);
    l->all_listed = l->cursor == 0;
}

/* Continues a listing until this run has done its share or the client has too many unread
   answers. Clients ignore keys without a leading slash, so empty keys can replace those removed
   meanwhile. */
CDP__PRIVATE void cdp__conn_list(cdp__conn *c) {
    cdp__listing *l = &c->listing;
    while (l->left && !c->closing && !cdp__conn_is_behind(c)) {
        if (!cdp__server_spend(c->server, 1)) {
            cdp__conn_defer(c);
            return;
        }
        if (!l->all_listed) {
            cdp__conn_list_bucket(c);
        } else {
            cdp__conn_reply_string(c, NULL, 0);
            --l->left;
        }
    }
}

CDP__PRIVATE void cdp__server_on_list_keys(cdp__conn *c, const cdp__wire_item *it) {
    const cdp__kv *kv = &c->server->kv;
    (void)it;
    cdp__conn_reply_number(c, kv->present_count);
    c->listing.left = kv->present_count;
    c->listing.since = kv->arrivals;
    c->listing.cursor = 0;
    c->listing.all_listed = false;
    cdp__conn_list(c);
}

/* Increments the count in the map. The client with which it reaches the size ends the waits of
   all. */
CDP__PRIVATE void cdp__server_on_barrier(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv_entry *e = NULL;
    int64_t sum;
    const cdp_status status = cdp__kv_add(&c->server->kv, it->key, 1, &sum, &e);
    if (status != CDP_OK || sum >= (int64_t)it->number) {
        if (status == CDP_OK) cdp__conn_reply_byte(c, CDP__WIRE_STOP_WAITING);
        cdp__conn_stored(c, status, e);
    } else {
        (void)cdp__conn_await(c, it->key, false);
    }
}

CDP__PRIVATE void cdp__server_on_queue_push(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv_entry *e = NULL;
    const cdp_status status = cdp__kv_push(&c->server->kv, it->key, it->value[0], &e);
    if (status == CDP_OK)
        cdp__server_item_pushed(c->server, e);
    else
        cdp__conn_stored(c, status, NULL);
}

/* Answers with the length of the queue and, if it is not empty, the first value. */
CDP__PRIVATE void cdp__server_on_queue_pop(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv *kv = &c->server->kv;
    cdp__kv_entry *e = cdp__kv_find(kv, it->key);
    cdp__kv_item *item;
    cdp__conn_reply_number(c, e ? e->item_count : 0);
    if (!e || !e->item_count) return;
    item = cdp__kv_pop(kv, e);
    cdp__conn_reply_string(c, item + 1, item->bytes);
    cdp__free(kv->os, item);
    cdp__kv_release(kv, e);
}

CDP__PRIVATE void cdp__server_on_queue_len(cdp__conn *c, const cdp__wire_item *it) {
    const cdp__kv_entry *e = cdp__kv_find(&c->server->kv, it->key);
    cdp__conn_reply_number(c, e ? e->item_count : 0);
}

CDP__PRIVATE uint64_t cdp__last_will_cost(const cdp__last_will *w) {
    return w ? cdp__kv_cost(sizeof *w + w->key.bytes + w->value.bytes) : 0;
}

/* Stores the client's last will; an empty key withdraws it. */
CDP__PRIVATE void cdp__server_on_last_will(cdp__conn *c, const cdp__wire_item *it) {
    cdp_store_server *s = c->server;
    const uint64_t bytes = sizeof *c->last_will + it->key.bytes + it->value[0].bytes;
    uint8_t *p;
    s->kv.bytes -= cdp__last_will_cost(c->last_will);
    cdp__free(s->os, c->last_will);
    c->last_will = NULL;
    if (!it->key.bytes) return;
    if (cdp__kv_has_room(&s->kv, bytes)) c->last_will = (cdp__last_will *)cdp__alloc(s->os, bytes);
    if (!c->last_will) {
        cdp__conn_close(c, "no memory for a last will (max_total_bytes)");
        return;
    }
    p = (uint8_t *)(c->last_will + 1);
    memcpy(p, it->key.data, (size_t)it->key.bytes);
    if (it->value[0].bytes)
        memcpy(p + it->key.bytes, it->value[0].data, (size_t)it->value[0].bytes);
    c->last_will->key.data = p;
    c->last_will->key.bytes = it->key.bytes;
    c->last_will->value.data = p + it->key.bytes;
    c->last_will->value.bytes = it->value[0].bytes;
    s->kv.bytes += cdp__last_will_cost(c->last_will);
}

CDP__PRIVATE void cdp__server_on_watch(cdp__conn *c, const cdp__wire_item *it) {
    if (cdp__conn_await(c, it->key, true)) cdp__conn_reply_byte(c, CDP__WIRE_WATCH_BEGINS);
}

/* The functions in the order of cdp__cmd. NULL: no dialect has this command. */
#ifdef CDP_NO_STORE_CALLS
#define CDP__SERVER_CALL(f) NULL
#else
#define CDP__SERVER_CALL(f) f
#endif
typedef void cdp__server_function(cdp__conn *c, const cdp__wire_item *it);
static cdp__server_function *const cdp__server_commands[] = {
    NULL,
    cdp__server_on_validate,
    cdp__server_on_set,
    cdp__server_on_compare_set,
    cdp__server_on_get,
    cdp__server_on_add,
    cdp__server_on_check,
    cdp__server_on_wait,
    CDP__SERVER_CALL(cdp__server_on_num_keys),
    cdp__server_on_delete,
    CDP__SERVER_CALL(cdp__server_on_append),
    cdp__server_on_get,
    cdp__server_on_set,
    cdp__server_on_cancel_wait,
    cdp__server_on_ping,
    CDP__SERVER_CALL(cdp__server_on_queue_push),
    CDP__SERVER_CALL(cdp__server_on_queue_pop),
    CDP__SERVER_CALL(cdp__server_on_queue_len),
    CDP__SERVER_CALL(cdp__server_on_list_keys),
    CDP__SERVER_CALL(cdp__server_on_barrier),
    cdp__server_on_last_will,
    cdp__server_on_get,
    CDP__SERVER_CALL(cdp__server_on_watch),
    cdp__server_on_key,
};

#ifndef CDP_NO_STORE_CALLS
/* True if the command has changed the value of its key; `old` is the previous value. */
CDP__PRIVATE bool cdp__server_changed(
    const cdp__wire_item *it, const cdp__kv_entry *e, bool was_there, cdp_bytes old) {
    switch (it->cmd) {
    case CDP__CMD_SET:
    case CDP__CMD_MULTI_SET:
    case CDP__CMD_ADD:
    case CDP__CMD_APPEND:
    case CDP__CMD_BARRIER: return true;
    case CDP__CMD_DELETE: return was_there;
    case CDP__CMD_COMPARE_SET:
        if (!e->present || !was_there) return e->present;
        return old.bytes == it->value[0].bytes
            && (!old.bytes || memcmp(old.data, it->value[0].data, (size_t)old.bytes) == 0);
    default: return false;
    }
}

/* Runs one item. If its key is watched, copies the old value first. Only the dialect of PyTorch
   1.13 has watches. */
CDP__PRIVATE void cdp__server_command(cdp__conn *c, const cdp__wire_item *it) {
    cdp_store_server *s = c->server;
    const cdp__kv_entry *e = it->key.data && s->watch_count ? cdp__kv_find(&s->kv, it->key) : NULL;
    const bool was_there = e && e->present;
    cdp_bytes old;
    uint8_t *copy = NULL;
    CDP_ASSERT(cdp__server_commands[it->cmd]);
    if (!e || cdp__chain_empty(&e->watches)) {
        cdp__server_commands[it->cmd](c, it);
        return;
    }
    old.bytes = was_there ? e->value_bytes : 0;
    if (old.bytes) copy = (uint8_t *)cdp__alloc(s->os, old.bytes);
    if (copy)
        memcpy(copy, e->value, (size_t)old.bytes);
    else
        old.bytes = 0;
    old.data = copy;
    cdp__server_commands[it->cmd](c, it);
    if (!c->closing && cdp__server_changed(it, e, was_there, old))
        cdp__server_notify_watchers(s, e, was_there, old);
    cdp__free(s->os, copy);
}
#else
CDP__PRIVATE void cdp__server_command(cdp__conn *c, const cdp__wire_item *it) {
    CDP_ASSERT(cdp__server_commands[it->cmd]);
    cdp__server_commands[it->cmd](c, it);
}
#endif

#endif /* CDP_NO_STORE_SERVER */

/* ---- >>store/server_bytes: parses requests, sends answers ------------------------------------ */

/* Knows: how received bytes become items, and when to read. Promises: an incomplete request uses
   memory in proportion to the bytes that arrived, not to its announced length. */

#ifndef CDP_NO_STORE_SERVER

/* Runs the commands in n bytes; returns how many bytes were consumed. */
CDP__PRIVATE uint64_t cdp__conn_consume(cdp__conn *c, const uint8_t *p, uint64_t n) {
    uint64_t used = 0, bytes;
    cdp__wire_item item;
    c->need = 1;
#ifndef CDP_NO_STORE_CALLS
    if (!c->greeted && cdp__wire_is_old(p, n)) {
        c->old = true;
        cdp__conn_greeted(c, cdp__wire_old);
    }
#endif
    while (!c->closing && used < n) {
        cdp__wire_result r;
        /* only between commands: a client that sends a long list may not read answers before its
           end */
        if (CDP__LISTING(c) || (!c->wire.row && cdp__conn_is_behind(c))) break;
        if (!cdp__server_spend(c->server, 1)) {
            cdp__conn_defer(c);
            break;
        }
        r = cdp__wire_next(&c->wire, &c->server->limits, p + used, n - used, &item, &bytes);
        if (r == CDP__WIRE_BAD)
            cdp__conn_close(c, "it is no store client, or sent a request above the limits");
        if (r == CDP__WIRE_MORE) c->need = bytes;
        if (r != CDP__WIRE_ITEM) break;
        used += bytes;
        (void)cdp__server_spend(c->server, bytes / 4096);
        /* its wait has timed out; clients of 1.13 do not tell the server */
        if (CDP__OLD(c) && item.first && c->awaited) cdp__conn_forget_waits(c, false);
        c->wait_answered = false;
        cdp__server_command(c, &item);
    }
    return used;
}

CDP__PRIVATE bool cdp__conn_keep(cdp__conn *c, const uint8_t *p, uint64_t n) {
    if (!n) return true;
    if (!cdp__conn_reserve(c, &c->in, n)) {
        cdp__conn_close(c, "no memory for a request (max_total_bytes)");
        return false;
    }
    memcpy(c->in.data + c->in.used, p, (size_t)n);
    c->in.used += n;
    return true;
}

/* Parses the bytes in c->in. */
CDP__PRIVATE void cdp__conn_parse(cdp__conn *c) {
    if (cdp__fifo_left(&c->in) < c->need) return;
    c->in.at += cdp__conn_consume(c, c->in.data + c->in.at, cdp__fifo_left(&c->in));
    if (!cdp__fifo_left(&c->in)) cdp__conn_release(c, &c->in);
}

/* If the first bytes are those of a link, passes the connection and these bytes to link_func. A
   rank that is leaving has no link_func: then the connection is closed, as by a port without a
   listener. */
CDP__PRIVATE bool cdp__conn_hand_over(cdp__conn *c, const uint8_t *p, uint64_t n) {
    cdp_store_server *s = c->server;
    int32_t fd;
    if (c->greeted || c->purpose == CDP__AUTH_STORE) return false;
    if (memcmp(p, "cdp-link", (size_t)cdp__min(n, 8)) != 0) {
        if (p[0] == 'c') c->need = 1; /* its first bytes may have looked like those of a link */
        return false;
    }
    if (n < 8) {
        c->need = 8;
        return cdp__conn_keep(c, p, n);
    }
    if (!s->link_func) {
        cdp__conn_close(c, NULL);
        return true;
    }
    fd = cdp__loop_detach(s->loop, &c->io);
    cdp__conn_close(c, NULL);
    s->link_func(s->link_user, fd, &c->from, p, n, c->nonce);
    return true;
}

/* Reads into scratch memory that all connections share, after the bytes of an incomplete item,
   which is small. Returns as cdp_os.net.recv_iov. */
CDP__PRIVATE int64_t cdp__conn_read_scratch(cdp__conn *c) {
    cdp_store_server *s = c->server;
    const uint64_t old = cdp__fifo_left(&c->in);
    uint64_t used, n;
    cdp_iov iov;
    int64_t r;
    iov.data = s->scratch + old;
    iov.bytes = CDP__SERVER_SCRATCH - old;
    r = cdp__io_drain(c->server->loop, &c->io, &iov);
    if (r <= 0) return r;
    if (old) memcpy(s->scratch, c->in.data + c->in.at, (size_t)old);
    if (old) cdp__conn_release(c, &c->in);
    n = old + (uint64_t)r;
    if (cdp__conn_hand_over(c, s->scratch, n)) return c->closing ? 0 : r;
    if (c->purpose == CDP__AUTH_LINK)
        cdp__conn_close(c, "it proved its key for a link, but sent a store request");
    if (c->closing) return 0;
    used = n < c->need ? 0 : cdp__conn_consume(c, s->scratch, n);
    if (!c->closing) cdp__conn_keep(c, s->scratch + used, n - used);
    return r;
}

/* Reads a large item straight into c->in. That buffer grows with the bytes that arrive, not with
   the announced length. */
CDP__PRIVATE int64_t cdp__conn_read_large(cdp__conn *c) {
    const uint64_t left = cdp__fifo_left(&c->in);
    const uint64_t missing = c->need > left ? c->need - left : 0;
    cdp_iov iov;
    int64_t r;
    if (c->in.used == c->in.room
        && !cdp__conn_reserve(
            c, &c->in, cdp__max(1, cdp__min(missing, cdp__max(left, CDP__SERVER_SCRATCH))))) {
        cdp__conn_close(c, "no memory for a request (max_total_bytes)");
        return 0;
    }
    iov.data = c->in.data + c->in.used;
    iov.bytes = c->in.room - c->in.used;
    r = cdp__io_drain(c->server->loop, &c->io, &iov);
    if (r <= 0) return r;
    c->in.used += (uint64_t)r;
    cdp__conn_parse(c);
    return r;
}

CDP__PRIVATE void cdp__conn_read(cdp__conn *c) {
    uint64_t budget = CDP__SERVER_READ_BUDGET;
    /* bytes left from an earlier run, or from a client with unread answers */
    if (c->in.data) cdp__conn_parse(c);
    while (!c->closing && (c->io.ready & CDP_IO_READ)) {
        const uint64_t old = cdp__fifo_left(&c->in);
        int64_t r;
        /* the socket stays ready, so the system is not polled for it */
        if (CDP__LISTING(c) || c->deferred.next || (!c->wire.row && cdp__conn_is_behind(c))) break;
        r = old <= CDP__SERVER_SMALL && c->need <= CDP__SERVER_SCRATCH ? cdp__conn_read_scratch(c)
                                                                       : cdp__conn_read_large(c);
        if (r < 0 || (r == 0 && c->io.broken)) cdp__conn_close(c, NULL);
        if (r <= 0) break;
        budget -= cdp__min(budget, (uint64_t)r);
        if (!budget && !c->io.broken) {
            cdp__loop_again(c->server->loop, &c->io);
            break;
        }
    }
}

/* The connection is being closed: sends as much of its answers as the socket accepts at once. */
CDP__PRIVATE void cdp__conn_send_rest(cdp__conn *c) {
    cdp_iov iov;
    iov.bytes = cdp__fifo_left(&c->out);
    if (!iov.bytes || c->io.fd < 0) return;
    iov.data = c->out.data + c->out.at;
    c->server->os->net.send_iov(c->server->os->user, c->io.fd, &iov, 1);
}

CDP__PRIVATE void cdp__conn_flush(cdp__conn *c) {
    while (cdp__fifo_left(&c->out) && !c->closing) {
        cdp_iov iov;
        int64_t r;
        iov.data = c->out.data + c->out.at;
        iov.bytes = cdp__fifo_left(&c->out);
        r = cdp__io_send(c->server->loop, &c->io, &iov, 1);
        if (r < 0 || (r == 0 && c->io.broken)) cdp__conn_close(c, NULL);
        if (r <= 0) return;
        c->out.at += (uint64_t)r;
    }
    if (c->out.data && !cdp__fifo_left(&c->out)) cdp__conn_release(c, &c->out);
}

/* Continues a listing, then reads more commands. */
CDP__PRIVATE void cdp__conn_resume(cdp__conn *c) {
    if (CDP__LISTING(c)) cdp__conn_list(c);
    if (!c->closing && !CDP__LISTING(c) && !cdp__conn_is_behind(c)) cdp__conn_read(c);
}

#endif /* CDP_NO_STORE_SERVER */

/* ---- >>store/server_connections: accepting, authenticating, parking, closing ----------------- */

/* Knows: the life of a connection. Promises: clients that stay silent, or flood the port, use a
   bounded share of memory, descriptors and time. */

#ifndef CDP_NO_STORE_SERVER

/* A last will is a compare_set of an absent key. */
CDP__PRIVATE void cdp__conn_execute_last_will(cdp__conn *c) {
    cdp_store_server *s = c->server;
    cdp__kv_entry *e = NULL;
    cdp_bytes nothing, answer;
    if (!c->last_will) return;
    nothing.data = NULL;
    nothing.bytes = 0;
    if (cdp__kv_compare_set(&s->kv, c->last_will->key, nothing, c->last_will->value, &answer, &e)
        == CDP_OK)
        cdp__server_key_set(s, e);
    else
        cdp__log(&s->desc.logger, CDP_LOG_WARN, -1, "store server: a last will was lost: %s",
            cdp_last_error()->text);
    s->kv.bytes -= cdp__last_will_cost(c->last_will);
    cdp__free(s->os, c->last_will);
    c->last_will = NULL;
}

CDP__PRIVATE CDP__COLD void cdp__conn_free(cdp__conn *c) {
    cdp_store_server *s = c->server;
    cdp__conn_forget_waits(c, true);
    cdp__free(s->os, c->auth);
    cdp__conn_release(c, &c->in);
    cdp__conn_release(c, &c->out);
    s->kv.bytes -= cdp__last_will_cost(c->last_will);
    cdp__free(s->os, c->last_will);
    cdp__conn_unlink(c);
    if (c->deferred.next) (void)cdp__chain_remove(&c->deferred);
    if (c->parked && c->io.fd >= 0) {
        s->os->net.watch_remove(s->os->user, s->parked, c->io.fd);
        s->os->net.close_fd(s->os->user, c->io.fd);
    }
    cdp__loop_remove(s->loop, &c->io);
    cdp__atomic_store_u32(&s->client_count, s->client_count - 1, CDP__RELAXED);
    cdp__free(s->os, c);
}

/* There is room for connections, or there are descriptors, again. */
CDP__PRIVATE void cdp__server_accept_again(cdp_store_server *s) {
    cdp__loop_timer_clear(&s->accept_timer);
    s->fresh_full = s->out_of_fds = false;
    cdp__loop_again(s->loop, &s->listener);
}

/* Carries out what handlers have deferred. Every callback of the loop ends with it. */
CDP__PRIVATE void cdp__server_settle(cdp_store_server *s) {
    while (s->dirty) {
        cdp__conn *c = s->dirty;
        s->dirty = c->next_dirty;
        c->dirty = false;
        if (!c->closing) {
            const bool stopped = cdp__conn_is_behind(c) || CDP__LISTING(c);
            cdp__conn_flush(c);
            if (stopped && !c->closing && !c->deferred.next) cdp__conn_resume(c);
        }
        if (!c->closing || c->dirty) continue; /* marked again just now: it is back in the list */
        cdp__conn_execute_last_will(c);
        if (!cdp__conn_forget_some_waits(c)) {
            cdp__conn_defer(c);
            continue;
        }
        cdp__conn_send_rest(c);
        if (!c->greeted) cdp__auth_drain(s->loop, &c->io);
        cdp__conn_free(c);
    }
    if (s->fresh_full && s->fresh_count < CDP__SERVER_MAX_FRESH) cdp__server_accept_again(s);
}

/* Advances the authentication exchange; until it is over, nothing else is read. A build without
   job keys refuses every connection that needs one, without an answer. */
CDP__PRIVATE void cdp__conn_authenticate(cdp__conn *c) {
#ifdef CDP_NO_JOB_KEY
    cdp__conn_refused(c, c->auth->refusal);
#else
    cdp_store_server *s = c->server;
    int64_t result;
    const cdp_status st = cdp__auth_pump(c->auth, s->loop, &c->io, &result);
    if (st == CDP_ERR_MISMATCH)
        cdp__conn_refused(c, c->auth->refusal);
    else if (st < 0)
        cdp__conn_close(c, NULL);
    if (st != CDP_OK) return;
    c->purpose = c->auth->purpose;
    memcpy(c->nonce, c->auth->nonce, sizeof c->nonce);
    cdp__free(s->os, c->auth);
    c->auth = NULL;
#endif
}

CDP__PRIVATE void cdp__conn_advance(cdp__conn *c) {
    if (c->auth && !c->closing) cdp__conn_authenticate(c);
    if (c->closing || c->auth) return;
    if (c->io.ready & CDP_IO_WRITE) cdp__conn_flush(c);
    if (!c->closing) cdp__conn_resume(c);
}

/* Handles a ready connection. If others are deferred, it is deferred, too, so that none of them
   waits for ever. */
CDP__PRIVATE void cdp__conn_ready(cdp__io *io) {
    cdp__conn *c = (cdp__conn *)io->user;
    cdp_store_server *s = c->server;
    if (!c->greeted) c->active_ns = s->os->now_ns(s->os->user);
    if (cdp__chain_empty(&s->deferred) && cdp__server_spend(s, 2))
        cdp__conn_advance(c);
    else
        cdp__conn_defer(c);
    cdp__server_settle(s);
}

/* Runs deferred work in the next run of the loop. */
CDP__PRIVATE void cdp__server_turn(cdp__timer *t) {
    cdp_store_server *s = (cdp_store_server *)t->user;
    cdp__chain now;
    cdp__chain_open(&now);
    /* connections that defer again wait for the run after this one */
    cdp__chain_move(&s->deferred, &now);
    cdp__server_wake(s);
    while (!cdp__chain_empty(&now)) {
        cdp__chain *link = now.next;
        cdp__conn *c = (cdp__conn *)(void *)((uint8_t *)link - offsetof(cdp__conn, deferred));
        (void)cdp__chain_remove(link);
        if (c->closing)
            cdp__conn_mark(c);
        else if (cdp__server_spend(s, 2))
            cdp__conn_advance(c);
        else
            cdp__conn_defer(c);
    }
    cdp__server_settle(s);
}

CDP__PRIVATE void cdp__server_greet_due(cdp__timer *t) {
    cdp_store_server *s = (cdp_store_server *)t->user;
    const uint64_t limit = s->desc.handshake_timeout_ms * CDP__MS, now = s->os->now_ns(s->os->user);
    cdp__conn *c;
    for (c = s->fresh.next; c != &s->fresh && c->born_ns + limit <= now; c = c->next)
        cdp__conn_close(c, "it has not greeted in time");
    cdp__server_settle(s);
    if (s->fresh.next != &s->fresh)
        cdp__loop_timer_set(s->loop, t, s->fresh.next->born_ns + limit, cdp__server_greet_due, s);
}

/* Parking: silent connections are moved from the loop to a watch of their own, which is polled
   at intervals, so that many of them do not slow down the others. */

CDP__PRIVATE void cdp__conn_park(cdp__conn *c) {
    cdp_store_server *s = c->server;
    const cdp_os *os = s->os;
    int32_t fd;
    CDP_ASSERT(!c->parked && c->io.fd >= 0);
    if (!s->parked && os->net.watch_open(os, &s->parked) < 0) return;
    fd = cdp__loop_detach(s->loop, &c->io);
    c->io.fd = fd;
    c->parked = true;
    if (os->net.watch_add(os, s->parked, fd, CDP_IO_READ, c) < 0)
        cdp__conn_close(c, "it cannot be watched");
}

/* Removes the descriptor from the watch of parked connections. It stays open. */
CDP__PRIVATE void cdp__conn_unwatch(cdp__conn *c) {
    c->server->os->net.watch_remove(c->server->os->user, c->server->parked, c->io.fd);
    c->parked = false;
}

CDP__PRIVATE void cdp__conn_unpark(cdp__conn *c, uint32_t got) {
    cdp_store_server *s = c->server;
    CDP_ASSERT(c->parked && c->io.fd >= 0);
    cdp__conn_unwatch(c);
    c->active_ns = s->os->now_ns(s->os->user);
    cdp__loop_add(s->loop, &c->io, c->io.fd, cdp__conn_ready, c);
    c->io.broken = (got & CDP_IO_ERROR) != 0;
    c->io.ready = (uint16_t)(c->io.broken ? CDP_IO_READ | CDP_IO_WRITE : got);
    cdp__conn_defer(c);
}

/* Moves parked connections that have sent something back to the loop. */
CDP__PRIVATE void cdp__server_look_at_parked(cdp_store_server *s) {
    cdp_ready ready[64];
    int32_t n = 64, i;
    while (s->parked && n == 64) {
        n = s->os->net.watch_wait(s->os->user, s->parked, ready, 64, 0);
        for (i = 0; i < n; ++i)
            cdp__conn_unpark((cdp__conn *)ready[i].owner, ready[i].got);
    }
}

CDP__PRIVATE void cdp__server_park_due(cdp__timer *t) {
    cdp_store_server *s = (cdp_store_server *)t->user;
    const uint64_t now = s->os->now_ns(s->os->user);
    cdp__conn *c;
    cdp__server_look_at_parked(s);
    for (c = s->fresh.next; c != &s->fresh; c = c->next) {
        const bool busy = c->closing || c->deferred.next || c->io.want_write || c->io.ready;
        if (c->parked || busy || c->io.fd < 0) continue;
        if (now - c->active_ns >= CDP__SERVER_PARK_NS) cdp__conn_park(c);
    }
    cdp__server_settle(s);
    if (s->fresh.next != &s->fresh)
        cdp__loop_timer_set(s->loop, t, now + CDP__SERVER_PARK_NS, cdp__server_park_due, s);
}

/* Accepting */

CDP__PRIVATE void cdp__conn_auth_open(cdp__conn *c) {
#ifdef CDP_NO_JOB_KEY
    c->auth->refusal = CDP__AUTH_REMOTE;
#else
    cdp_store_server *s = c->server;
    uint8_t nonce[16], count[8];
    if (s->keyed && s->os->random(s->os->user, nonce, sizeof nonce) != CDP_OK) {
        /* the os may need a descriptor for random bytes, and have none left: a keyed hash of a
           counter is as unpredictable, and never repeats */
        cdp__put_u64(count, ++s->nonce_count);
        cdp__blake2s(s->nonce_seed, sizeof s->nonce_seed, count, sizeof count, nonce, sizeof nonce);
    }
    cdp__auth_open_with(c->auth, s->keyed ? nonce : NULL, s->keyed ? s->key : NULL, true,
        CDP__AUTH_STORE, CDP__AUTH_REMOTE);
    c->auth->also = CDP__AUTH_LINK;
#endif
}

/* If there is a key, the client must authenticate itself. Without one, only this host is served,
   unless the desc trusts the network. False: out of memory. */
CDP__PRIVATE bool cdp__conn_restrict(cdp__conn *c, int32_t fd, const cdp_addr *from) {
    cdp_store_server *s = c->server;
    cdp_addr here;
    memset(&here, 0, sizeof here);
    if (!s->keyed && (s->desc.trust_network || cdp__addr_is_here(from, &here))) return true;
    if (!s->keyed) s->os->net.local_addr(s->os->user, fd, &here);
    if (!s->keyed && cdp__addr_is_here(from, &here)) return true;
    c->auth = (cdp__auth *)cdp__alloc_zero(s->os, sizeof *c->auth);
    if (!c->auth) return false;
    cdp__conn_auth_open(c);
    return true;
}

/* The oldest connection without a greeting, which may be closed for a new one. NULL: there is
   none. */
CDP__PRIVATE cdp__conn *cdp__server_oldest_fresh(cdp_store_server *s) {
    cdp__conn *c = s->fresh.next;
    while (c != &s->fresh && c->closing)
        c = c->next;
    return c == &s->fresh ? NULL : c;
}

CDP__PRIVATE void cdp__server_add(
    cdp_store_server *s, cdp__conn *c, int32_t fd, const cdp_addr *from) {
    c->from = *from;
    c->need = 1;
    c->wire.table = cdp__wire_greeting;
    c->born_ns = c->active_ns = s->os->now_ns(s->os->user);
    cdp__conn_link(&s->fresh, c);
    ++s->fresh_count;
    cdp__loop_add(s->loop, &c->io, fd, cdp__conn_ready, c);
    cdp__atomic_store_u32(&s->client_count, s->client_count + 1, CDP__RELAXED);
    if (s->desc.handshake_timeout_ms != CDP_NO_TIMEOUT && !s->greet_timer.next)
        cdp__loop_timer_set(s->loop, &s->greet_timer,
            c->born_ns + s->desc.handshake_timeout_ms * CDP__MS, cdp__server_greet_due, s);
    if (!s->park_timer.next)
        cdp__loop_timer_set(
            s->loop, &s->park_timer, c->born_ns + CDP__SERVER_PARK_NS, cdp__server_park_due, s);
}

CDP__PRIVATE void cdp__server_admit(cdp_store_server *s, int32_t fd, const cdp_addr *from) {
    const bool full = s->client_count >= s->desc.max_clients;
    cdp__conn *oldest = full ? cdp__server_oldest_fresh(s) : NULL;
    cdp__conn *c = NULL;
    if (oldest) cdp__conn_close(oldest, "another client takes its place (max_clients)");
    if (!full || oldest) c = (cdp__conn *)cdp__alloc_zero(s->os, sizeof *c);
    if (c) {
        c->server = s;
        cdp__chain_open(&c->waiters);
    }
    if (c && !cdp__conn_restrict(c, fd, from)) {
        cdp__free(s->os, c->auth);
        cdp__free(s->os, c);
        c = NULL;
    }
    if (c) {
        cdp__server_add(s, c, fd, from);
        return;
    }
    s->os->net.close_fd(s->os->user, fd);
    if (!s->full_logged)
        cdp__log(&s->desc.logger, CDP_LOG_WARN, -1, "store server: refusing connections: %s",
            full ? "max_clients are connected" : "out of memory");
    s->full_logged = true;
}

/* True if there is room for one more connection without a greeting. If not, the next one is
   accepted when one of them ends, or when the oldest has had its time. */
CDP__PRIVATE bool cdp__server_has_place(cdp_store_server *s) {
    cdp__conn *oldest;
    if (s->fresh_count < CDP__SERVER_MAX_FRESH) return true;
    oldest = cdp__server_oldest_fresh(s);
    if (!oldest || s->os->now_ns(s->os->user) - oldest->born_ns < CDP__SERVER_GRACE_NS)
        return false;
    cdp__conn_close(oldest, "too many connections have not greeted");
    return true;
}

CDP__PRIVATE void cdp__server_accept_due(cdp__timer *t) {
    cdp__server_accept_again((cdp_store_server *)t->user);
}

/* Stops accepting for a while. The listener stays marked as ready, so that the loop does not
   spin. */
CDP__PRIVATE void cdp__server_pause(cdp_store_server *s, uint64_t until_ns) {
    cdp__loop_timer_set(s->loop, &s->accept_timer, until_ns, cdp__server_accept_due, s);
}

/* Out of descriptors: closes the older half of the connections without a greeting, so that they
   do not block real clients, and stops accepting for a while. */
CDP__PRIVATE void cdp__server_drop_silent(cdp_store_server *s, int32_t err) {
    const uint32_t half = (s->fresh_count + 1) / 2;
    uint32_t i;
    cdp__conn *c;
    (void)err; /* unused without log texts */
    if (!s->accept_logged)
        cdp__log(&s->desc.logger, CDP_LOG_WARN, -1,
            "store server: cannot accept a connection: %s (errno %d)", cdp__os_error_text(err),
            err);
    s->accept_logged = true;
    for (c = s->fresh.next, i = 0; i < half && c != &s->fresh; c = c->next, ++i)
        cdp__conn_close(c, "too many connections have not greeted");
    s->out_of_fds = true;
    cdp__server_pause(s, s->os->now_ns(s->os->user) + CDP__SERVER_ACCEPT_RETRY_NS);
}

CDP__PRIVATE CDP__COLD void cdp__server_accept_some(cdp__io *io) {
    cdp_store_server *s = (cdp_store_server *)io->user;
    cdp_addr from;
    int32_t fd = 0;
    while (fd >= 0 && cdp__server_spend(s, CDP__SERVER_ACCEPT_WORK)) {
        s->fresh_full = !cdp__server_has_place(s);
        if (s->fresh_full) break;
        fd = s->os->net.accept_next(s->os->user, io->fd, &from);
        if (fd >= 0) cdp__server_admit(s, fd, &from);
    }
    if (s->fresh_full)
        cdp__server_pause(s, s->fresh.next->born_ns + CDP__SERVER_GRACE_NS);
    else if (fd == -EAGAIN)
        cdp__loop_used_up(s->loop, io, CDP_IO_READ);
    else if (fd >= 0)
        cdp__loop_again(s->loop, io); /* this run has done its share */
    else
        cdp__server_drop_silent(s, -fd); /* most likely out of descriptors */
    io->broken = false;                  /* an error of a listening socket is not final */
    cdp__server_settle(s);
}

/* Tells clients of this library, and all waiting clients, that the server is being closed, if
   their sockets have room. Reads unread input first: closing a socket with unread input would
   make the system drop the bytes just sent. */
CDP__PRIVATE void cdp__conn_dismiss(cdp__conn *c) {
    cdp_store_server *s = c->server;
    uint32_t i;
    cdp_iov iov;
    if (c->awaited || c->is_cdp) cdp__conn_reply_byte(c, CDP__WIRE_CLOSING);
    cdp__conn_flush(c);
    iov.data = s->scratch;
    iov.bytes = CDP__SERVER_SCRATCH;
    for (i = 0; i < 16 && s->os->net.recv_iov(s->os->user, c->io.fd, &iov, 1) > 0; ++i) {
    }
    cdp__conn_free(c);
}

#endif /* CDP_NO_STORE_SERVER */

/* ---- >>store/server_create: creating, running and destroying a server ------------------------ */

/* Knows: the desc of a server, its thread, and what cdp_tcp.h needs of it. Promises: a failed
   creation leaves nothing behind. */

/* The error of a listener that cannot be opened. cdp_tcp.h uses it, too. */
CDP__PRIVATE cdp_status cdp__cannot_listen(const cdp_os *os, const cdp_addr *at, int32_t err) {
    char text[64], owner[128] = "?";
    const char *hint = "";
    cdp__addr_text(at, text, sizeof text);
    if (err == EADDRINUSE && os->net.port_owner
        && os->net.port_owner(os->user, at->port, owner, sizeof owner))
        return cdp__fail_peer(CDP_ERR_IO, -1, err,
            "cannot listen on %s; %s has this port: end it, or choose another port", text, owner);
    if (err == EADDRINUSE)
        hint = owner[0]
            ? "; another program has this port: end it, or choose another port"
            : "; no program listens there, but a socket has this port, or had it a "
              "moment ago: try again in a minute, or choose a port below those that the "
              "system gives to connections";
    if (err == EADDRNOTAVAIL) hint = "; that is no address of this machine";
    if (err == EACCES) hint = "; ports below 1024 are reserved";
    return cdp__fail_peer(CDP_ERR_IO, -1, err, "cannot listen on %s%s", text, hint);
}

#ifndef CDP_NO_STORE_SERVER

#define CDP__SERVER_POLL_NS 30000u

/* The server's thread. After an answer, the same client often sends its next request at once, so
   the thread polls for it before it sleeps, while that pays off: waking up takes longer than
   answering. */
CDP__PRIVATE void cdp__server_thread(void *arg) {
    cdp_store_server *s = (cdp_store_server *)arg;
    uint64_t poll_until = 0, again = 0;
    int gain = 0;
    while (!cdp__atomic_load_u32(&s->stop, CDP__ACQUIRE)) {
        const cdp_status st = cdp__loop_run(s->loop, NULL, poll_until ? 0 : CDP__NEVER);
        const uint64_t now = s->os->now_ns(s->os->user);
        if (s->loop->moved) {
            if (poll_until && gain < 8) gain += 2;
            /* only with a single active client: among many, the next request is there already */
            poll_until =
                s->loop->moved == 1 && (gain > -8 || now >= again) ? now + CDP__SERVER_POLL_NS : 0;
        } else if (poll_until && now >= poll_until) {
            poll_until = 0;
            if (gain > -8)
                --gain;
            else
                again = now + 10 * CDP__MS;
        } else if (poll_until && s->os->threads.yield) {
            s->os->threads.yield(s->os->user); /* the client may need this core */
        }
        if (st == CDP_OK) continue;
        cdp__log(&s->desc.logger, CDP_LOG_WARN, -1, "store server: %s", cdp_last_error()->text);
        /* out of memory: do not loop without a pause */
        cdp__sleep_until(s->os, s->os->now_ns(s->os->user) + 10 * CDP__MS);
    }
}

#define CDP__SERVER_LAST_MS \
    300u /* how long answers that clients have not read keep a server open */

/* Sends what sockets have not taken yet, and more of the lists of keys. False: all was sent. */
CDP__PRIVATE bool cdp__server_flush(cdp_store_server *s) {
    cdp__conn *c, *next;
    bool more = false;
    s->work_left = CDP__SERVER_TURN_WORK; /* as in each turn of the loop, which has ended */
    for (c = s->conns.next; c != &s->conns; c = next) {
        next = c->next;
        if (c->closing) continue;
        cdp__conn_flush(c);
        if (!c->closing && CDP__LISTING(c)) cdp__conn_list(c);
        more = more || (!c->closing && (CDP__LISTING(c) || cdp__fifo_left(&c->out)));
    }
    return more;
}

/* For a server without a thread, before it is destroyed: sends as many answers as the sockets
   accept now. True: some are left; call again, until *until_ns at most. */
CDP__PRIVATE bool cdp__store_server_parts(cdp_store_server *s, uint64_t *until_ns) {
    const uint64_t now = s->os->now_ns(s->os->user);
    if (!s->last_ns) s->last_ns = now + CDP__SERVER_LAST_MS * CDP__MS;
    *until_ns = s->last_ns;
    return cdp__server_flush(s) && now < s->last_ns;
}

CDP_API void cdp_store_server_destroy(cdp_store_server *s) {
    const cdp_os *os;
    uint64_t until;
    if (!s || cdp__ended(s) || cdp__is_child(s->forks)) return;
    cdp__ended_add(s);
    os = s->os;
    cdp__atomic_store_u32(&s->stop, 1, CDP__RELEASE);
    if (s->thread) {
        cdp__loop_wake(s->loop);
        os->threads.join(os, s->thread);
    }
    while (!cdp__chain_empty(&s->satisfied))
        cdp__waiter_satisfied((cdp__waiter *)s->satisfied.next);
    while (cdp__store_server_parts(s, &until))
        cdp__sleep_until(os, os->now_ns(os->user) + CDP__MS);
    while (s->fresh.next != &s->fresh)
        cdp__conn_dismiss(s->fresh.next);
    while (s->conns.next != &s->conns)
        cdp__conn_dismiss(s->conns.next);
    cdp__loop_timer_clear(&s->accept_timer);
    cdp__loop_timer_clear(&s->greet_timer);
    cdp__loop_timer_clear(&s->park_timer);
    cdp__loop_timer_clear(&s->turn_timer);
    if (s->parked) os->net.watch_close(os, s->parked);
    cdp__loop_remove(s->loop, &s->listener);
    cdp__kv_close(&s->kv);
    cdp__loop_close(&s->own_loop);
    cdp__free(os, s->scratch);
    cdp__wipe(s->key, sizeof s->key);
    cdp__wipe(s->nonce_seed, sizeof s->nonce_seed);
    cdp__free(os, s);
}

/* For cdp_tcp.h: true if a client's key has a value. */
CDP__PRIVATE bool cdp__store_server_has(const cdp_store_server *s, const char *key) {
    char text[128];
    cdp_bytes k;
    cdp__format(text, sizeof text, "/%s", key);
    k.data = text;
    k.bytes = strlen(text);
    return cdp__kv_get(&s->kv, k) != NULL;
}

/* For cdp_tcp.h, whose links share the port of the server: connections whose first bytes are those
   of a link are passed to `func` (NULL: they are closed). */
CDP__PRIVATE void cdp__store_server_share(
    cdp_store_server *s, cdp__server_link_func func, void *user) {
    s->link_func = func;
    s->link_user = user;
}

/* For cdp_tcp.h: the address at which it listens. */
CDP__PRIVATE cdp_addr cdp__store_server_addr(const cdp_store_server *s) {
    return s->at;
}

/* For cdp_tcp.h and cdp_elastic.h: the number of connections. Any thread may call it. */
CDP__PRIVATE uint32_t cdp__store_server_clients(const cdp_store_server *s) {
    return cdp__atomic_load_u32(&s->client_count, CDP__RELAXED);
}

/* For cdp_tcp.h: true if all answers have been handed to the system. */
CDP__PRIVATE bool cdp__store_server_sent(const cdp_store_server *s) {
    const cdp__conn *c;
    for (c = s->conns.next; c != &s->conns; c = c->next)
        if (cdp__fifo_left(&c->out)) return false;
    return true;
}

/* For cdp_tcp.h: true if all answers are sent, no client waits, and every client whose wait has
   ended has asked for the value. */
CDP__PRIVATE bool cdp__store_server_quiet(const cdp_store_server *s) {
    const cdp__conn *c;
    for (c = s->conns.next; c != &s->conns; c = c->next)
        if (cdp__fifo_left(&c->out) || c->wait_count || c->wait_answered) return false;
    return cdp__chain_empty(&s->satisfied);
}

CDP_API uint16_t cdp_store_server_port(const cdp_store_server *s) {
    return s && !cdp__ended(s) ? s->at.port : 0;
}

CDP_API cdp_status cdp_store_server_poll(cdp_store_server *s, uint64_t deadline_ns) {
    if (!s) return cdp__missing("cdp_store_server_poll", "server");
    if (cdp__ended(s))
        return cdp__fail(CDP_ERR_STATE, "cdp_store_server_poll: this server was destroyed");
    if (cdp__is_child(s->forks))
        return cdp__child_refuses(CDP_ERR_STATE, "cdp_store_server_poll", "store server");
    if (s->thread)
        return cdp__fail(CDP_ERR_STATE,
            "this store server has its own thread; cdp_store_server_poll() is for one made with "
            "no_thread");
    return cdp__loop_run(s->loop, NULL, deadline_ns);
}

CDP__PRIVATE void cdp__server_desc_defaults(cdp_store_server_desc *d) {
    d->os = d->os ? d->os : cdp_os_default();
    d->host = d->host ? d->host : "127.0.0.1";
    d->max_key_bytes = cdp__def(d->max_key_bytes, CDP_STORE_MAX_KEY_BYTES);
    d->max_value_bytes = cdp__def(d->max_value_bytes, CDP_STORE_MAX_VALUE_BYTES);
    d->max_list = cdp__def(d->max_list, CDP_STORE_MAX_LIST);
    d->max_total_bytes = cdp__def(d->max_total_bytes, 1ull << 30);
    d->max_reply_bytes = cdp__def(d->max_reply_bytes, 64ull << 20);
    d->max_clients = cdp__def(d->max_clients, 65536);
    d->handshake_timeout_ms = cdp__def(d->handshake_timeout_ms, 30000);
}

/* The addresses that a desc asks for, literal or by name, with the port filled in. Returns their
   number; 0 with the last error set. Blocks only to resolve names. */
CDP__PRIVATE uint32_t cdp__server_addresses(
    const cdp_store_server_desc *d, cdp_addr *out, uint32_t max) {
    int32_t n = 1;
    uint32_t i;
    if (d->addr.family)
        out[0] = d->addr;
    else if (strcmp(d->host, "*") == 0)
        n = (int32_t)(cdp__addr_parse("::", &out[0]) + cdp__addr_parse("0.0.0.0", &out[1]));
    else if (!cdp__addr_parse(d->host, &out[0]))
        n = d->os->net.resolve(
            d->os->user, d->host, d->port, out, max, cdp__deadline(d->os, 30000));
    if (n <= 0) {
        cdp__fail_peer(
            CDP_ERR_IO, -1, -n, "cannot listen: no address of the name \"%s\" was found", d->host);
        return 0;
    }
    for (i = 0; i < (uint32_t)n; ++i)
        if (d->port) out[i].port = d->port;
    return (uint32_t)n;
}

CDP__PRIVATE cdp_status cdp__server_listen(cdp_store_server *s) {
    cdp_addr at[8];
    const uint32_t n = s->desc.has_listen_fd ? 0 : cdp__server_addresses(&s->desc, at, 8);
    int32_t fd = -1, err = 0;
    uint32_t i;
    if (s->desc.has_listen_fd) {
        fd = s->desc.listen_fd;
        /* from here on the server closes it */
        cdp__loop_add(s->loop, &s->listener, fd, cdp__server_accept_some, s);
        if (s->os->net.adopt) err = s->os->net.adopt(s->os->user, fd);
        if (err >= 0) err = s->os->net.local_addr(s->os->user, fd, &s->at);
        if (err >= 0) return CDP_OK;
        return cdp__fail_peer(
            CDP_ERR_IO, -1, -err, "listen_fd %d is no listening socket", s->desc.listen_fd);
    }
    if (!n) return CDP_ERR_IO;
    for (i = 0; i < n && fd < 0 && fd != -EADDRINUSE; ++i) {
        s->at = at[i];
        fd = s->os->net.listen_at(s->os->user, &at[i], &s->at);
    }
    if (fd < 0) return cdp__cannot_listen(s->os, &at[i - 1], -fd);
    cdp__loop_add(s->loop, &s->listener, fd, cdp__server_accept_some, s);
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__server_open(cdp_store_server *s) {
    const cdp_os *os = s->os;
    uint64_t seed = 0;
    cdp_status status = s->loop == &s->own_loop ? cdp__loop_open(&s->own_loop, os) : CDP_OK;
    if (status != CDP_OK) return status;
    s->scratch = (uint8_t *)cdp__alloc(os, CDP__SERVER_SCRATCH);
    if (!s->scratch) return cdp__fail_nomem("a store server", CDP__SERVER_SCRATCH);
    if (os->random(os->user, &seed, sizeof seed) != CDP_OK) seed = os->now_ns(os->user);
    cdp__kv_open(&s->kv, os, seed, s->desc.max_total_bytes);
    if (s->keyed) status = os->random(os->user, s->nonce_seed, sizeof s->nonce_seed);
    if (status != CDP_OK) return status;
    status = cdp__server_listen(s);
    if (status != CDP_OK || s->loop != &s->own_loop || s->desc.no_thread || !os->threads.start
        || !os->net.wake_open)
        return status;
    s->thread = os->threads.start(os, cdp__server_thread, s);
    return s->thread ? CDP_OK
                     : cdp__fail(CDP_ERR_IO, "cannot start the thread of the store server");
}

CDP_API cdp_status cdp_store_server_create(
    const cdp_store_server_desc *desc, cdp_store_server **out) {
    cdp_store_server_desc d;
    cdp_store_server *s;
    cdp_status status;
    if (!out) return cdp__missing("cdp_store_server_create", "out");
    *out = NULL;
    if (!desc) return cdp__missing("cdp_store_server_create", "desc");
    d = *desc;
    cdp__server_desc_defaults(&d);
    if (cdp__os_whole(d.os, "cdp_store_server_create") != CDP_OK) return CDP_ERR_INVALID;
    if (d.has_listen_fd && d.listen_fd < 0)
        return cdp__fail(CDP_ERR_INVALID, "cdp_store_server_desc.listen_fd is %d", d.listen_fd);
    s = (cdp_store_server *)cdp__alloc_zero(d.os, sizeof *s);
    if (!s) return cdp__fail_nomem("a store server", sizeof *s);
    cdp__ended_remove(s);
    s->desc = d;
    s->forks = cdp__forks_watch();
    s->os = s->kv.os = d.os; /* cdp__kv_close() needs the os also if the map was never opened */
    s->loop = d.loop ? d.loop : &s->own_loop;
    s->limits.key_bytes = d.max_key_bytes;
    s->limits.value_bytes = d.max_value_bytes;
    s->limits.list = d.max_list;
    status = cdp__auth_key_read(d.job_key, s->key, &s->keyed);
    if (s->keyed && strlen(d.job_key) < CDP__AUTH_SHORT_KEY)
        cdp__log(&s->desc.logger, CDP_LOG_WARN, -1,
            "the job key has %u characters; whoever reaches the port can guess a short one: use %u "
            "random characters or more",
            (uint32_t)strlen(d.job_key), CDP__AUTH_SHORT_KEY);
    cdp__chain_open(&s->deferred);
    cdp__chain_open(&s->satisfied);
    /* earlier sections set this timer without knowing the function */
    s->turn_timer.func = cdp__server_turn;
    s->fresh.next = s->fresh.prev = &s->fresh;
    s->conns.next = s->conns.prev = &s->conns;
    if (status == CDP_OK) status = cdp__server_open(s);
    s->desc.host = s->desc.job_key = NULL; /* memory of the caller */
    if (status != CDP_OK)
        cdp_store_server_destroy(s);
    else
        *out = s;
    return status;
}

#else

/* For cdp_tcp.h in builds without a server: it creates none, so it calls none of these. */
CDP__PRIVATE bool cdp__store_server_has(const cdp_store_server *s, const char *key) {
    (void)s;
    (void)key;
    return false;
}

CDP__PRIVATE void cdp__store_server_share(
    cdp_store_server *s, cdp__server_link_func func, void *user) {
    (void)s;
    (void)func;
    (void)user;
}

CDP__PRIVATE bool cdp__store_server_parts(cdp_store_server *s, uint64_t *until_ns) {
    (void)s;
    (void)until_ns;
    return false;
}

CDP__PRIVATE cdp_addr cdp__store_server_addr(const cdp_store_server *s) {
    cdp_addr none;
    (void)s;
    memset(&none, 0, sizeof none);
    return none;
}

CDP__PRIVATE uint32_t cdp__store_server_clients(const cdp_store_server *s) {
    (void)s;
    return 0;
}

CDP__PRIVATE bool cdp__store_server_sent(const cdp_store_server *s) {
    (void)s;
    return true;
}

CDP__PRIVATE bool cdp__store_server_quiet(const cdp_store_server *s) {
    (void)s;
    return true;
}

#endif /* CDP_NO_STORE_SERVER */

/* ---- >>store/client: the data of a client, and how its requests end -------------------------- */

/* Knows: the state of a client, and of its request in progress. Promises: a request ends exactly
   once, and a broken client ends all its requests with one error. */

/* States of a client. PAUSE ends by the timer; CONNECTING, AUTHENTICATING and GREETING by the
   socket, or by the timer if they take too long; READY when the connection ends; BROKEN never. */
typedef enum cdp__client_state {
    CDP__CLIENT_PAUSE,
    CDP__CLIENT_CONNECTING,
    CDP__CLIENT_AUTHENTICATING,
    CDP__CLIENT_GREETING,
    CDP__CLIENT_READY,
    CDP__CLIENT_BROKEN
} cdp__client_state;

/* The expected next bytes from the server. */
typedef enum cdp__expect {
    CDP__EXPECT_NOTHING, /* the request has no answer: it is done when sent */
    CDP__EXPECT_STOP,    /* the end of a WAIT or BARRIER */
    CDP__EXPECT_CANCEL,  /* answer to CANCEL_WAIT; that to the WAIT may come first */
    CDP__EXPECT_FLAG,    /* answer to CHECK */
    /* answer to the CHECK that precedes a WAIT: shows that the store answers */
    CDP__EXPECT_CHECK,
    CDP__EXPECT_TRY, /* answer to TRY_GET; after READY, a value follows */
    CDP__EXPECT_NUMBER,
    CDP__EXPECT_POP,   /* a number; if not 0, a value follows */
    CDP__EXPECT_COUNT, /* a number, then as many keys */
    CDP__EXPECT_VALUES
} cdp__expect;

/* The addresses that a client connects to. Host and port are kept; the rest is only used until
   it is connected. */
typedef struct cdp__client_target {
    cdp_addr at[16];
    uint32_t count, index; /* index: the address being tried */
    bool fixed;            /* the caller supplied at[]: there is no host name to resolve */
    uint32_t attempts;
    /* attempt_ns: start of the current attempt */
    uint64_t started_ns, deadline_ns, backoff_ns, attempt_ns;
    /* first time that a peer accepted the connection and closed it without a byte; 0: never */
    uint64_t refused_ns;
    int32_t sys_errno; /* of the last attempt */
    bool warned;       /* the warning that connecting takes long was logged */
    uint32_t nonce;
} cdp__client_target;

/* Bytes kept free in `out` after a request, so that cancelling it and withdrawing a will need no
   memory. */
#define CDP__CLIENT_SPARE 64u
#define CDP__CLIENT_AHEAD 16u /* requests sent before the request in progress is answered */
#define CDP__CLIENT_GREETING_BYTES 5u
#define CDP__CLIENT_OLD_GREETING_BYTES 10u
#define CDP__CLIENT_BACKOFF_NS (10 * CDP__MS)
#define CDP__CLIENT_BACKOFF_MAX_NS (2000 * CDP__MS)
#define CDP__CLIENT_WARN_NS (10000 * CDP__MS)
#define CDP__CLIENT_REFUSED_NS (5000 * CDP__MS)
/* Limit of one connection attempt if the server has other addresses; grows with each round. */
#define CDP__CLIENT_ATTEMPT_NS (300 * CDP__MS)
/* Limit of the wait for the greeting; a busy server may take long. */
#define CDP__CLIENT_GREET_NS (15000 * CDP__MS)
#define CDP__CLIENT_GOODBYE_NS (100 * CDP__MS)

/* A request whose bytes follow those of the request in progress: answers come in this order. */
typedef struct cdp__client_sent {
    cdp_store_request *rq; /* NULL: it was cancelled, and its answer is dropped */
    uint8_t expect;        /* cdp__expect */
    bool paired;
} cdp__client_sent;

typedef struct cdp__client {
    cdp_store store;
    const cdp_os *os;
    uint32_t forks; /* see cdp__is_child() */
    cdp__loop *loop;
    cdp_store_request *rq; /* the request in progress; NULL: it was cancelled, and its answer is
                              dropped */
    cdp__client_state state;
    bool is_cdp; /* the server knows the extensions of this library */
    /* speaks the dialect of PyTorch 1.13 */
    bool old;
    bool reconnecting; /* this client was connected before */
    bool bare;         /* the next key is sent without a slash */
    bool keyed;
    bool driven;
    bool busy;     /* a request is in progress */
    bool paired;   /* its WAIT was sent together with the CHECK before it */
    bool in_value; /* its answer has come as far as a value */
    uint32_t in_at, in_used;
    cdp__fifo out;
    cdp__io io;
    cdp_store_request *first, *last; /* queued requests */
    cdp__client_sent sent[CDP__CLIENT_AHEAD];
    uint32_t sent_at, sent_count; /* a ring */

    /* the request in progress */
    cdp__expect expect;
    uint32_t head_used;
    uint8_t head[8];
    uint64_t values, value_at; /* VALUES: number of values, index of the next one */
    uint32_t empty_pops;       /* QUEUE_POP: how often another client was faster */
    uint8_t *value;            /* where the rest of the value goes; NULL: dropped */
    uint64_t value_left, max_value_bytes;

    cdp_logger logger;
    cdp_lock lock; /* none on a shared loop: its owner serialises calls */
    void *cond;    /* for threads that wait while another one runs the loop */
    uint32_t sleepers;
    cdp__timer timer;
    cdp__client_target target;
    char *host;
    uint16_t port;
    bool last_will_sent;
    bool withdrawn;                 /* the last will is, by a message that may still be in `out` */
    cdp_bytes will_key, will_value; /* copies */
    /* the goodbye: the answer is awaited until bye_ns (0: not begun); the last bytes received */
    bool bye_over;
    uint64_t bye_ns;
    uint8_t bye_tail[4];
    uint8_t key[CDP__AUTH_BYTES];
    cdp__auth auth;
    char name[300];  /* "host:port (address)", for errors */
    uint8_t in[256]; /* read ahead */
    cdp_error error; /* why it is BROKEN */
    cdp__loop own_loop;
} cdp__client;

/* Completion */

/* Frees the results of a request, including a listed key that has arrived in part. */
CDP__PRIVATE void cdp__client_drop_results(cdp__client *c, cdp_store_request *rq) {
    if (cdp__store_lists(rq) && rq->results && c->in_value) {
        uint8_t *p;
        memcpy(&p, &rq->results[rq->number].data, sizeof p);
        cdp__free(c->os, p);
    }
    cdp__store_request_drop_results(c->os, rq, cdp__store_request_result_count(rq));
}

CDP__PRIVATE void cdp__client_done(cdp__client *c, cdp_status status) {
    cdp_store_request *rq = c->rq;
    if (rq && status != CDP_OK) cdp__client_drop_results(c, rq);
    c->busy = c->paired = false;
    c->rq = NULL;
    c->expect = CDP__EXPECT_NOTHING;
    c->in_value = false;
    c->head_used = 0;
    /* do not keep the memory of a large value */
    if (c->out.room > 4096 && !cdp__fifo_left(&c->out) && !c->sent_count)
        cdp__fifo_free(c->os, &c->out);
    if (rq) rq->status = status;
}

/* Ends this client and all of its requests with the last error. */
CDP__PRIVATE void cdp__client_break(cdp__client *c) {
    const cdp_status status = cdp_last_error()->status;
    if (c->state == CDP__CLIENT_BROKEN) return;
    c->error = *cdp_last_error();
    c->state = CDP__CLIENT_BROKEN;
    cdp__loop_timer_clear(&c->timer);
    cdp__loop_remove(c->loop, &c->io);
    cdp__client_done(c, status);
    for (; c->sent_count; --c->sent_count) {
        c->rq = c->sent[c->sent_at].rq;
        cdp__client_done(c, status);
        c->sent_at = (c->sent_at + 1) % CDP__CLIENT_AHEAD;
    }
    while (c->first) {
        cdp_store_request *rq = c->first;
        c->first = rq->next;
        rq->status = status;
    }
    c->last = NULL;
}

/* The server was closed by cdp_store_server_destroy(). */
CDP__PRIVATE void cdp__client_closed(cdp__client *c) {
    cdp__fail(CDP_ERR_STATE, "the store at %s was closed by its host, which has left", c->name);
    cdp__client_break(c);
}

/* The connection has ended without an announcement. The errno tells a process that ended from a
   host that does not answer. */
CDP__PRIVATE void cdp__client_lost(cdp__client *c, int64_t result) {
    int32_t err = result ? (int32_t)-result : ECONNRESET;
    if (result == CDP_IO_EOF) err = 0;
    /* the announcement of a closing server arrived instead of the answer */
    if (!err && c->is_cdp && c->head_used == 1 && c->head[0] == CDP__WIRE_CLOSING) {
        cdp__client_closed(c);
        return;
    }
    if ((!err || err == ECONNRESET) && c->rq && c->rq->op == CDP_STORE_ADD) {
        cdp__key_text t;
        cdp__fail_peer(CDP_ERR_STORE, -1, err,
            "the store at %s ended the connection when it was to add to the key \"%s\": stores do "
            "so "
            "if that holds no number to add to; else its process has ended",
            c->name, cdp__key_print(&t, c->rq->keys[0]));
    } else if (!err || err == ECONNRESET || err == EPIPE)
        cdp__fail_peer(CDP_ERR_STORE, -1, err,
            "the store at %s is gone: its process crashed, was killed, or ended without closing it "
            "(or it refused a request)",
            c->name);
    else if (err == ETIMEDOUT || err == EHOSTUNREACH || err == ENETUNREACH || err == ENETDOWN)
        cdp__fail_peer(CDP_ERR_STORE, -1, err,
            "the store at %s is unreachable: its machine, or the network between, does not answer "
            "any more",
            c->name);
    else
        cdp__fail_peer(CDP_ERR_STORE, -1, err, "the store at %s is gone", c->name);
    cdp__client_break(c);
}

CDP__PRIVATE void cdp__client_violated(cdp__client *c, const char *what) {
    cdp__fail(CDP_ERR_STORE, "the store at %s violates the protocol: %s", c->name, what);
    cdp__client_break(c);
}

/* ---- >>store/client_requests: sends requests ------------------------------------------------- */

/* Knows: the bytes of each operation, in both dialects. Promises: a request that runs out of memory
   is not sent in part. */

/* Keys are sent with a leading slash, so that a program's keys cannot collide with the
   protocol's own. */

CDP__PRIVATE uint64_t cdp__client_strings(const cdp_bytes *s, uint64_t n, uint64_t extra) {
    uint64_t i, total = 0;
    for (i = 0; i < n; ++i)
        total += 8 + extra + s[i].bytes;
    return total;
}

CDP__PRIVATE uint8_t *cdp__client_begin(cdp__client *c, uint64_t bytes) {
    if (!cdp__fifo_reserve(c->os, &c->out, bytes + CDP__CLIENT_SPARE)) {
        cdp__fail_nomem("a request to the store", bytes);
        return NULL;
    }
    return c->out.data + c->out.used;
}

CDP__PRIVATE void cdp__client_end(cdp__client *c, const uint8_t *p) {
    c->out.used = (uint64_t)(p - c->out.data);
    CDP_ASSERT(c->out.used <= c->out.room);
}

CDP__PRIVATE uint8_t cdp__client_op(const cdp__client *c, uint8_t op) {
    (void)c; /* unused without the old dialect */
    return (uint8_t)(op - (CDP__OLD(c) && op < CDP__OP_DELETE));
}

/* Queues an operation on all keys of a request: WAIT, CHECK, MULTI_GET, or MULTI_SET with its
   values. The old dialect has no MULTI_ operations: sends as many GET or SET. */
CDP__PRIVATE bool cdp__client_put_list(
    cdp__client *c, uint8_t op, const cdp_store_request *rq, bool with_values) {
    const bool apart = CDP__OLD(c) && op >= CDP__OP_MULTI_GET;
    const uint64_t bytes = 9 + rq->key_count + cdp__client_strings(rq->keys, rq->key_count, 1)
        + (with_values ? cdp__client_strings(rq->values, rq->key_count, 0) : 0);
    uint8_t *p = cdp__client_begin(c, bytes);
    uint32_t i;
    if (!p) return false;
    if (!apart) *p++ = cdp__client_op(c, op);
    if (!apart) p = cdp__wire_put_number(p, rq->key_count);
    for (i = 0; i < rq->key_count; ++i) {
        if (apart) *p++ = cdp__client_op(c, with_values ? CDP__OP_SET : CDP__OP_GET);
        p = cdp__wire_put_string(p, "/", rq->keys[i]);
        if (with_values) p = cdp__wire_put_string(p, "", rq->values[i]);
    }
    cdp__client_end(c, p);
    return true;
}

/* Queues an operation on one key, with `values` values. */
CDP__PRIVATE bool cdp__client_put_key(
    cdp__client *c, uint8_t op, const cdp_store_request *rq, uint32_t values) {
    uint8_t *p = cdp__client_begin(c,
        1 + 8 + cdp__client_strings(rq->keys, rq->key_count, 1)
            + cdp__client_strings(rq->values, values, 0));
    uint32_t i;
    if (!p) return false;
    *p++ = cdp__client_op(c, op);
    if (rq->key_count) p = cdp__wire_put_string(p, c->bare ? "" : "/", rq->keys[0]);
    for (i = 0; i < values; ++i)
        p = cdp__wire_put_string(p, "", rq->values[i]);
    if (op == CDP__OP_ADD || op == CDP__OP_BARRIER)
        p = cdp__wire_put_number(p, (uint64_t)rq->delta);
    cdp__client_end(c, p);
    return true;
}

/* A server of this library gets the WAIT together with the CHECK before it, which saves a round
   trip. */
CDP__PRIVATE bool cdp__client_pairs(const cdp__client *c, const cdp_store_request *rq) {
    return c->is_cdp && !CDP__OLD(c) && (rq->op == CDP_STORE_WAIT || rq->op == CDP_STORE_MULTI_GET);
}

CDP__PRIVATE bool cdp__client_put_pair(cdp__client *c, const cdp_store_request *rq) {
    const uint64_t left = cdp__fifo_left(&c->out);
    if (!cdp__client_put_list(c, CDP__OP_CHECK, rq, false)) return false;
    if (cdp__client_put_list(c, CDP__OP_WAIT, rq, false)) return true;
    c->out.used = c->out.at + left;
    return false;
}

/* Queues the next part of a request that waits. The first part is a CHECK: its answer shows that
   the store answers, and that everything sent before has arrived. (For GET, servers of this
   library support TRY_GET, which returns the value of an existing key at once.) */
CDP__PRIVATE bool cdp__client_put_wait(cdp__client *c, const cdp_store_request *rq) {
    if (c->expect == CDP__EXPECT_TRY) return cdp__client_put_key(c, CDP__OP_TRY_GET, rq, 0);
    if (c->expect == CDP__EXPECT_STOP && rq->op == CDP_STORE_BARRIER)
        return cdp__client_put_key(c, CDP__OP_BARRIER, rq, 0);
    if (c->expect == CDP__EXPECT_CHECK && cdp__client_pairs(c, rq))
        return cdp__client_put_pair(c, rq);
    return cdp__client_put_list(
        c, c->expect == CDP__EXPECT_CHECK ? CDP__OP_CHECK : CDP__OP_WAIT, rq, false);
}

/* Queues a request or, if it waits, the next part of its wait. */
CDP__PRIVATE bool cdp__client_put(cdp__client *c, const cdp_store_request *rq) {
    switch (rq->op) {
    case CDP_STORE_SET: return cdp__client_put_key(c, CDP__OP_SET, rq, 1);
    case CDP_STORE_ADD: return cdp__client_put_key(c, CDP__OP_ADD, rq, 0);
    case CDP_STORE_COMPARE_SET: return cdp__client_put_key(c, CDP__OP_COMPARE_SET, rq, 2);
    case CDP_STORE_DELETE: return cdp__client_put_key(c, CDP__OP_DELETE, rq, 0);
    case CDP_STORE_CHECK: return cdp__client_put_list(c, CDP__OP_CHECK, rq, false);
#ifndef CDP_NO_STORE_CALLS
    case CDP_STORE_NUM_KEYS: return cdp__client_put_key(c, CDP__OP_NUM_KEYS, rq, 0);
    case CDP_STORE_APPEND: return cdp__client_put_key(c, CDP__OP_APPEND, rq, 1);
    case CDP_STORE_MULTI_SET: return cdp__client_put_list(c, CDP__OP_MULTI_SET, rq, true);
    case CDP_STORE_QUEUE_PUSH: return cdp__client_put_key(c, CDP__OP_QUEUE_PUSH, rq, 1);
    case CDP_STORE_QUEUE_LEN: return cdp__client_put_key(c, CDP__OP_QUEUE_LEN, rq, 0);
    case CDP_STORE_LIST_KEYS: return cdp__client_put_key(c, CDP__OP_LIST_KEYS, rq, 0);
    case CDP_STORE_QUEUE_POP:
        return c->expect == CDP__EXPECT_POP ? cdp__client_put_key(c, CDP__OP_QUEUE_POP, rq, 0)
                                            : cdp__client_put_wait(c, rq);
#endif
    default: return cdp__client_put_wait(c, rq);
    }
}

/* The expected answer to the first part of a request. */
CDP__PRIVATE cdp__expect cdp__client_expects(const cdp__client *c, const cdp_store_request *rq) {
    switch (rq->op) {
    case CDP_STORE_SET: return CDP__EXPECT_NOTHING;
    case CDP_STORE_COMPARE_SET: return CDP__EXPECT_VALUES;
    case CDP_STORE_CHECK: return CDP__EXPECT_FLAG;
    case CDP_STORE_ADD:
    case CDP_STORE_DELETE: return CDP__EXPECT_NUMBER;
#ifndef CDP_NO_STORE_CALLS
    case CDP_STORE_APPEND:
    case CDP_STORE_QUEUE_PUSH:
    case CDP_STORE_MULTI_SET: return CDP__EXPECT_NOTHING;
    case CDP_STORE_QUEUE_LEN:
    case CDP_STORE_NUM_KEYS: return CDP__EXPECT_NUMBER;
    case CDP_STORE_LIST_KEYS: return CDP__EXPECT_COUNT;
    case CDP_STORE_QUEUE_POP: return rq->delta ? CDP__EXPECT_POP : CDP__EXPECT_CHECK;
#endif
    case CDP_STORE_GET: return c->is_cdp && !CDP__OLD(c) ? CDP__EXPECT_TRY : CDP__EXPECT_CHECK;
    default: return CDP__EXPECT_CHECK;
    }
}

/* Bytes out */

/* Sends queued bytes. True if all are sent. */
CDP__PRIVATE bool cdp__client_flush(cdp__client *c) {
    while (cdp__fifo_left(&c->out)) {
        cdp_iov iov;
        int64_t r;
        iov.data = c->out.data + c->out.at;
        iov.bytes = cdp__fifo_left(&c->out);
        r = cdp__io_send(c->loop, &c->io, &iov, 1);
        if (r == 0 && !c->io.broken) return false;
        if (r <= 0) {
            cdp__client_lost(c, r);
            return false;
        }
        c->out.at += (uint64_t)r;
    }
    c->out.at = c->out.used = 0;
    return true;
}

/* Bytes in */

CDP__PRIVATE int64_t cdp__client_recv(cdp__client *c, void *dst, uint64_t bytes) {
    cdp_iov iov;
    int64_t r;
    iov.data = dst;
    iov.bytes = bytes;
    r = cdp__io_drain(c->loop, &c->io, &iov);
    if (r < 0 || (r == 0 && c->io.broken)) {
        cdp__client_lost(c, r);
        return -1;
    }
    return r;
}

/* Reads up to `bytes` bytes of the answer to dst (NULL: drops them). 0: later; < 0: the client
   is broken. */
CDP__PRIVATE int64_t cdp__client_take(cdp__client *c, uint8_t *dst, uint64_t bytes) {
    uint64_t n;
    if (c->in_at == c->in_used) {
        int64_t r;
        if (dst && bytes >= sizeof c->in) return cdp__client_recv(c, dst, bytes);
        r = cdp__client_recv(c, c->in, sizeof c->in);
        if (r <= 0) return r;
        c->in_at = 0;
        c->in_used = (uint32_t)r;
    }
    n = cdp__min(bytes, c->in_used - c->in_at);
    if (dst) memcpy(dst, c->in + c->in_at, (size_t)n);
    c->in_at += (uint32_t)n;
    return (int64_t)n;
}

/* ---- >>store/client_answers: handles answers ------------------------------------------------- */

/* Knows: the meaning of each answer, and what is sent after it. Promises: nothing blocks; an
   invalid answer breaks the client. */

/* Sends the next part of the current request; `expect` says what the server then answers. */
CDP__PRIVATE void cdp__client_proceed(cdp__client *c, cdp__expect expect) {
    c->expect = expect;
    if (!cdp__client_put(c, c->rq)) cdp__client_done(c, CDP_ERR_NOMEM);
}

/* The server sends `count` values next. */
CDP__PRIVATE void cdp__client_expect_values(cdp__client *c, uint64_t count) {
    if (c->rq && !cdp__store_lists(c->rq))
        c->rq->number =
            (int64_t)cdp__max((uint64_t)c->rq->number, 1); /* the key exists, whatever follows */
    c->expect = CDP__EXPECT_VALUES;
    c->values = count;
    c->value_at = 0;
    if (!count) cdp__client_done(c, CDP_OK); /* an empty list has no answer */
}

/* The key exists: ends the request, or reads the value. */
CDP__PRIVATE void cdp__client_stopped(cdp__client *c) {
    cdp_store_request *rq = c->rq;
    bool sent;
    if (!rq || rq->op == CDP_STORE_WAIT || rq->op == CDP_STORE_BARRIER) {
        cdp__client_done(c, CDP_OK);
        return;
    }
#ifndef CDP_NO_STORE_CALLS
    if (rq->op == CDP_STORE_QUEUE_POP) {
        cdp__client_proceed(c, CDP__EXPECT_POP);
        return;
    }
#endif
    sent = rq->op == CDP_STORE_GET ? cdp__client_put_key(c, CDP__OP_GET, rq, 0)
                                   : cdp__client_put_list(c, CDP__OP_MULTI_GET, rq, false);
    if (sent)
        cdp__client_expect_values(c, rq->key_count);
    else
        cdp__client_done(c, CDP_ERR_NOMEM);
}

/* Handles the answer to a CHECK. If the key is absent, waits for it, unless the request was
   cancelled. */
CDP__PRIVATE void cdp__client_checked(cdp__client *c, uint8_t v) {
    const bool there = v == CDP__WIRE_READY;
    if (v > CDP__WIRE_NOT_READY) {
        cdp__client_violated(c, "neither yes nor no to a check");
    } else if (there && c->expect == CDP__EXPECT_TRY) {
        cdp__client_expect_values(c, 1);
    } else if (c->paired) { /* the answer to the WAIT follows; one to CANCEL_WAIT, if cancelled */
        c->expect = c->rq ? CDP__EXPECT_STOP : CDP__EXPECT_CANCEL;
    } else if (!c->rq) {
        cdp__client_done(c, CDP_OK);
    } else if (there && c->rq->op != CDP_STORE_BARRIER) {
        cdp__client_stopped(c);
    } else {
        c->expect = CDP__EXPECT_STOP;
        if (!cdp__client_put_wait(c, c->rq)) cdp__client_done(c, CDP_ERR_NOMEM);
    }
}

#define CDP__CLIENT_MAX_EMPTY_POPS 1000u

/* Handles the length of a queue. If it is 0, another client was faster, or the wait ended
   because of an ordinary key of the same name. */
CDP__PRIVATE void cdp__client_popped(cdp__client *c, uint64_t count) {
    if (c->rq) c->rq->number = (int64_t)count;
    if (count) {
        cdp__client_expect_values(c, 1);
    } else if (!c->rq || c->rq->delta) {
        cdp__client_done(c, CDP_OK);
    } else if (++c->empty_pops > CDP__CLIENT_MAX_EMPTY_POPS) {
        cdp__fail(CDP_ERR_STATE,
            "the queue is empty though its key is there: was an ordinary value set under the same "
            "key? (the store at %s)",
            c->name);
        cdp__client_done(c, CDP_ERR_STATE);
    } else {
        cdp__client_proceed(c, CDP__EXPECT_CHECK);
    }
}

CDP__PRIVATE void cdp__client_byte(cdp__client *c, uint8_t v) {
    if (v == CDP__WIRE_CLOSING && (c->is_cdp || c->expect != CDP__EXPECT_FLAG)) {
        cdp__client_closed(c);
    } else if (c->expect == CDP__EXPECT_FLAG) {
        if (v > CDP__WIRE_NOT_READY) {
            cdp__client_violated(c, "neither yes nor no to a check");
            return;
        }
        if (c->rq) c->rq->number = v == CDP__WIRE_READY;
        cdp__client_done(c, CDP_OK);
    } else if (c->expect == CDP__EXPECT_CHECK || c->expect == CDP__EXPECT_TRY) {
        cdp__client_checked(c, v);
    } else if (c->expect == CDP__EXPECT_STOP && v == CDP__WIRE_STOP_WAITING) {
        cdp__client_stopped(c);
    } else if (c->expect == CDP__EXPECT_CANCEL && v == CDP__WIRE_CANCELED) {
        cdp__client_done(c, CDP_OK);
        /* the answer to the wait crossed with the cancellation */
    } else if (c->expect != CDP__EXPECT_CANCEL || v != CDP__WIRE_STOP_WAITING) {
        cdp__client_violated(c, "an unknown answer to a wait");
    }
}

/* Handles a listed key. Keys of programs begin with a slash, which is removed. Other keys are
   dropped: they are the protocol's own, or empty ones that the server sends in place of keys
   deleted during the listing. */
CDP__PRIVATE void cdp__client_key_listed(cdp__client *c) {
    cdp_bytes *key = &c->rq->results[c->rq->number];
    uint8_t *p = c->value - key->bytes; /* the whole key has arrived */
    if (key->bytes && p[0] == '/') {
        memmove(p, p + 1, (size_t)key->bytes); /* including the terminating zero */
        --key->bytes;
        ++c->rq->number;
        return;
    }
    cdp__free(c->os, p);
    key->data = NULL;
}

CDP__PRIVATE void cdp__client_next_value(cdp__client *c) {
    c->in_value = false;
    if (c->rq && cdp__store_lists(c->rq)) cdp__client_key_listed(c);
    if (++c->value_at == c->values) cdp__client_done(c, CDP_OK);
}

/* Makes room for one more key in the results of a LIST_KEYS. The room grows with the keys that
   arrive. */
CDP__PRIVATE bool cdp__client_grow_list(cdp__client *c) {
    cdp_store_request *rq = c->rq;
    const uint64_t n = (uint64_t)rq->number;
    cdp_bytes *results;
    if (rq->results && (n < 16 || (n & (n - 1)))) return true; /* room doubles at powers of two */
    results = (cdp_bytes *)cdp__alloc_zero(c->os, cdp__max(16, 2 * n) * sizeof *results);
    if (!results) return false;
    if (rq->results) memcpy(results, rq->results, (size_t)n * sizeof *results);
    cdp__free(c->os, rq->results);
    rq->results = results;
    return true;
}

/* Out of memory for an answer: fails the request, and skips the answer's bytes. */
CDP__PRIVATE void cdp__client_drop_answer(cdp__client *c) {
    cdp_store_request *rq = c->rq;
    c->rq = NULL;
    cdp__client_drop_results(c, rq);
    rq->status = CDP_ERR_NOMEM;
}

/* The length of a value has arrived. */
CDP__PRIVATE void cdp__client_value(cdp__client *c, uint64_t bytes) {
    uint64_t at = c->value_at;
    if (bytes > c->max_value_bytes) {
        cdp__client_violated(c, "a value is larger than max_value_bytes");
        return;
    }
    c->value = NULL;
    if (c->rq && cdp__store_lists(c->rq)) {
        at = (uint64_t)c->rq->number;
        if (!cdp__client_grow_list(c)) cdp__client_drop_answer(c);
    }
    if (c->rq) c->value = cdp__store_request_result(c->os, c->rq, at, bytes);
    if (c->rq && !c->value) cdp__client_drop_answer(c);
    c->value_left = bytes;
    c->in_value = true;
    if (!bytes) cdp__client_next_value(c);
}

CDP__PRIVATE bool cdp__client_expects_number(const cdp__client *c) {
    return c->expect == CDP__EXPECT_NUMBER || c->expect == CDP__EXPECT_VALUES
        || c->expect == CDP__EXPECT_POP || c->expect == CDP__EXPECT_COUNT;
}

CDP__PRIVATE void cdp__client_number(cdp__client *c, uint64_t v) {
    switch (c->expect) {
    case CDP__EXPECT_VALUES: cdp__client_value(c, v); break;
#ifndef CDP_NO_STORE_CALLS
    case CDP__EXPECT_POP: cdp__client_popped(c, v); break;
#endif
    case CDP__EXPECT_COUNT: cdp__client_expect_values(c, v); break;
    default:
        if (c->rq) c->rq->number = (int64_t)v;
        cdp__client_done(c, CDP_OK);
        break;
    }
}

/* Handles the next bytes of the answer. False: there are none now. */
CDP__PRIVATE bool cdp__client_step(cdp__client *c) {
    const uint32_t want = cdp__client_expects_number(c) ? 8 : 1;
    int64_t r;
    if (c->in_value) {
        r = cdp__client_take(c, c->rq ? c->value : NULL, c->value_left);
        if (r <= 0) return false;
        c->value_left -= (uint64_t)r;
        if (c->value) c->value += r;
        if (!c->value_left) cdp__client_next_value(c);
        return true;
    }
    r = cdp__client_take(c, c->head + c->head_used, want - c->head_used);
    if (r <= 0) return false;
    c->head_used += (uint32_t)r;
    if (c->head_used < want) return true;
    c->head_used = 0;
    if (want == 1)
        cdp__client_byte(c, c->head[0]);
    else
        cdp__client_number(c, cdp__get_u64(c->head));
    return true;
}

/* No request is in progress: tests whether the server closed the connection. */
CDP__PRIVATE void cdp__client_check_idle(cdp__client *c) {
    const int64_t r = c->in_at != c->in_used ? (int64_t)(c->in_used - c->in_at)
                                             : cdp__client_recv(c, c->in, sizeof c->in);
    if (r <= 0) return;
    if (r == 1 && c->is_cdp && c->in[c->in_at == c->in_used ? 0 : c->in_at] == CDP__WIRE_CLOSING)
        cdp__client_closed(c);
    else
        cdp__client_violated(c, "bytes without a request");
}

CDP__PRIVATE cdp_status cdp__client_no_memory(const cdp__client *c) {
    return cdp__fail(CDP_ERR_NOMEM,
        "out of memory for a request to the store at %s, or for its answer", c->name);
}

CDP__PRIVATE bool cdp__client_old_can(cdp_store_op op) {
    return op < CDP_STORE_QUEUE_PUSH && op != CDP_STORE_APPEND;
}

/* Queues the bytes of the next request. False: that has ended with an error. */
CDP__PRIVATE bool cdp__client_issue(cdp__client *c, cdp__client_sent *sent) {
    const cdp__expect now = c->expect;
    cdp_store_request *rq = c->first;
    bool put;
    c->first = rq->next;
    if (!c->first) c->last = NULL;
    rq->next = NULL;
    if (CDP__OLD(c) && !cdp__client_old_can(rq->op)) {
        rq->status = cdp__fail(CDP_ERR_UNSUPPORTED,
            "the store at %s is one of PyTorch 1.13, which cannot append to values, list its keys, "
            "hold queues or serve barriers",
            c->name);
        return false;
    }
    rq->number = 0;
    sent->rq = rq;
    c->expect = cdp__client_expects(c, rq);
    sent->expect = (uint8_t)c->expect;
    sent->paired = c->expect == CDP__EXPECT_CHECK && cdp__client_pairs(c, rq);
    put = cdp__store_request_make_results(c->os, rq) && cdp__client_put(c, rq);
    c->expect = now;
    if (put) return true;
    cdp__store_request_drop_results(c->os, rq, 0);
    rq->status = cdp__client_no_memory(c);
    return false;
}

/* The answer to this request is the next one. */
CDP__PRIVATE void cdp__client_begun(cdp__client *c, const cdp__client_sent *sent) {
    c->rq = sent->rq;
    c->expect = (cdp__expect)sent->expect;
    c->paired = sent->paired;
    c->busy = true;
    c->empty_pops = 0;
    c->values = 1;
    c->value_at = 0;
}

/* True if this is a WAIT that was sent with its CHECK, and cancelled. */
CDP__PRIVATE bool cdp__client_called_off(const cdp_store_request *rq, bool paired) {
#ifdef CDP_NO_FRAMES
    (void)rq; /* for the sake of size */
    (void)paired;
    return false;
#else
    return paired && !rq;
#endif
}

/* True if a request of which such an answer is expected sends nothing more. */
CDP__PRIVATE bool cdp__client_all_sent(uint32_t expect, bool called_off) {
    return called_off || expect == CDP__EXPECT_NOTHING || expect == CDP__EXPECT_FLAG
        || expect == CDP__EXPECT_NUMBER || expect == CDP__EXPECT_VALUES
        || expect == CDP__EXPECT_COUNT || expect == CDP__EXPECT_CANCEL;
}

/* Sends queued requests behind the one in progress: so several of them take one round trip. To a
   server of this library alone. */
CDP__PRIVATE void cdp__client_send_ahead(cdp__client *c) {
    while (c->first && c->busy && c->is_cdp && !CDP__OLD(c) && c->sent_count < CDP__CLIENT_AHEAD) {
        const uint32_t next = (c->sent_at + c->sent_count) % CDP__CLIENT_AHEAD;
        const uint32_t last = (next + CDP__CLIENT_AHEAD - 1) % CDP__CLIENT_AHEAD;
        const cdp__client_sent *const s = &c->sent[last];
        const bool off = c->sent_count ? cdp__client_called_off(s->rq, s->paired)
                                       : cdp__client_called_off(c->rq, c->paired);
        if (!cdp__client_all_sent(c->sent_count ? s->expect : (uint32_t)c->expect, off)) return;
        if (cdp__client_issue(c, &c->sent[next])) ++c->sent_count;
    }
}

/* Nothing is in progress: begins with the next request. */
CDP__PRIVATE void cdp__client_begin_next(cdp__client *c) {
    cdp__client_sent one;
    if (c->sent_count) {
        one = c->sent[c->sent_at];
        c->sent_at = (c->sent_at + 1) % CDP__CLIENT_AHEAD;
        --c->sent_count;
        cdp__client_begun(c, &one);
    } else if (cdp__client_issue(c, &one)) {
        cdp__client_begun(c, &one);
    }
}

/* Makes progress without waiting. */
CDP__PRIVATE void cdp__client_pump(cdp__client *c) {
    while (c->state == CDP__CLIENT_READY) {
        bool sent;
        cdp__client_send_ahead(c);
        sent = cdp__client_flush(c);
        if (c->state != CDP__CLIENT_READY) return;
        if (c->busy && c->expect != CDP__EXPECT_NOTHING) {
            if (!cdp__client_step(c)) return;
        } else if (c->busy) {
            if (!sent) return;
            cdp__client_done(c, CDP_OK);
        } else {
            if (!c->sent_count && (c->io.ready & CDP_IO_READ || c->first))
                cdp__client_check_idle(c);
            if (c->state != CDP__CLIENT_READY || (!c->first && !c->sent_count)) return;
            cdp__client_begin_next(c);
        }
    }
}

/* ---- >>store/client_connect: connects to a server, and greets it ----------------------------- */

/* Knows: addresses, dialects, the job key. Promises: tries until the deadline, then reports what
   prevented the connection. */

/* Tries the next address. After the last one, first pauses: the pause grows by half each time
   and is randomised, so that a thousand clients that started together do not connect in step. */
CDP__PRIVATE CDP__COLD void cdp__client_retry(cdp__client *c, int32_t sys_errno) {
    cdp__client_target *w = &c->target;
    const uint64_t now = c->os->now_ns(c->os->user);
    uint64_t pause = 0, noise = now;
    if (c->reconnecting && w->index + 1 >= w->count) {
        cdp__client_lost(c, -sys_errno);
        return;
    }
    cdp__loop_remove(c->loop, &c->io);
    c->state = CDP__CLIENT_PAUSE;
    w->sys_errno = sys_errno;
    if (++w->index >= w->count) {
        w->index = 0;
        if (c->os->random(c->os->user, &noise, sizeof noise) != CDP_OK) noise = now;
        pause = w->backoff_ns / 2 + noise % w->backoff_ns;
        w->backoff_ns = cdp__min(w->backoff_ns + w->backoff_ns / 2, CDP__CLIENT_BACKOFF_MAX_NS);
    }
    if (!w->warned && now - w->started_ns > CDP__CLIENT_WARN_NS) {
        w->warned = true;
        cdp__log(&c->logger, CDP_LOG_WARN, -1,
            "still no store at %s after %u s: %s (errno %d); the client keeps trying", c->name,
            (uint32_t)((now - w->started_ns) / 1000000000u),
            w->count || sys_errno != ENOENT ? cdp__os_error_text(sys_errno)
                                            : "the name has no address",
            sys_errno);
    }
    cdp__loop_timer_set(c->loop, &c->timer, now + pause, c->timer.func, c);
}

/* The first bytes that arrived, as hexadecimal numbers. Returns `hex`. */
CDP__PRIVATE const char *cdp__client_first_bytes(const cdp__client *c, char hex[32]) {
    cdp__text t = cdp__text_of(hex, 32);
    uint32_t i;
    hex[0] = 0;
    for (i = 0; i < c->in_used && i < 8; ++i)
        cdp__text_add(&t, i ? " %x%x" : "%x%x", c->in[i] >> 4, c->in[i] & 15);
    return hex;
}

/* The peer is not a store; trying again would not help. */
CDP__PRIVATE void cdp__client_no_store(cdp__client *c) {
    char hex[32];
    if (c->in_used)
        cdp__fail(CDP_ERR_STORE,
            "what answers at %s is no cdp or PyTorch store: its first bytes are %s (hex); check "
            "host and port",
            c->name, cdp__client_first_bytes(c, hex));
    else
        cdp__fail(CDP_ERR_STORE,
            c->keyed
                ? "what listens at %s closes every connection without an answer: it is no cdp or "
                  "PyTorch store, or refuses clients; check host and port, and whether it is a "
                  "store of PyTorch: these know no job keys"
                : "what listens at %s closes every connection without an answer: it is no cdp or "
                  "PyTorch store, or refuses clients; check host and port",
            c->name);
    cdp__client_break(c);
}

/* The connection ended before it was ready. A server that is starting or closing does that for a
   moment; after CDP__CLIENT_REFUSED_NS the peer is not a store. */
CDP__PRIVATE void cdp__client_refused(cdp__client *c, int64_t result) {
    const uint64_t now = c->os->now_ns(c->os->user);
    if (!c->target.refused_ns) c->target.refused_ns = now;
#ifndef CDP_NO_STORE_CALLS
    if (!c->keyed && !c->in_used) c->old = !c->old; /* it may have been the wrong dialect */
#endif
    if (c->in_used && !CDP__OLD(c))
        cdp__client_retry(c, ECONNRESET); /* with a part of the answer that is expected: a store */
    else if (c->in_used || now - c->target.refused_ns > CDP__CLIENT_REFUSED_NS)
        cdp__client_no_store(c);
    else
        cdp__client_retry(c, result == CDP_IO_EOF || !result ? ECONNRESET : (int32_t)-result);
}

/* Sends the greeting. Some servers must receive VALIDATE in one piece, hence one write. The
   answer to PING shows whether the peer is a store at all, that to CHECK whether it is one of
   this library. */
CDP__PRIVATE CDP__COLD void cdp__client_greet(cdp__client *c) {
    static const char ours[] = CDP__WIRE_CDP_SERVER;
    cdp_bytes key;
    uint8_t *p;
    c->out.at = c->out.used = 0;
    p = cdp__client_begin(c, 64);
    if (!p) {
        cdp__client_break(c);
        return;
    }
    if (c->os->random(c->os->user, &c->target.nonce, sizeof c->target.nonce) != CDP_OK)
        c->target.nonce = 0x5eed;
    key.data = ours;
    key.bytes = sizeof ours - 1;
    p[0] = CDP__OP_VALIDATE;
    cdp__put_u32(p + 1, CDP__WIRE_MAGIC);
    p[5] = CDP__OP_PING;
    cdp__put_u32(p + 6, c->target.nonce);
    p += 10;
    /* the old dialect has no greeting: sends an empty CHECK, the CHECK below, and a count of the
       keys */
    if (CDP__OLD(c)) {
        p -= 10;
        *p++ = CDP__OP_OLD_CHECK;
        p = cdp__wire_put_number(p, 0);
    }
    *p++ = cdp__client_op(c, CDP__OP_CHECK);
    p = cdp__wire_put_string(cdp__wire_put_number(p, 1), "", key);
    if (CDP__OLD(c)) *p++ = CDP__OP_OLD_NUM_KEYS;
    cdp__client_end(c, p);
    c->state = CDP__CLIENT_GREETING;
    c->in_at = c->in_used = 0;
    if (c->target.count > 1)
        cdp__loop_timer_set(c->loop, &c->timer, c->os->now_ns(c->os->user) + CDP__CLIENT_GREET_NS,
            c->timer.func, c);
}

CDP__PRIVATE CDP__COLD void cdp__client_put_last_will(cdp__client *c, bool withdraw) {
    cdp_bytes nothing;
    uint8_t *p =
        cdp__client_begin(c, withdraw ? 0 : 17 + 1 + c->will_key.bytes + c->will_value.bytes);
    nothing.data = NULL;
    nothing.bytes = 0;
    if (!p) return;
    *p++ = CDP__OP_LAST_WILL;
    p = cdp__wire_put_string(p, withdraw ? "" : "/", withdraw ? nothing : c->will_key);
    cdp__client_end(c, cdp__wire_put_string(p, "", withdraw ? nothing : c->will_value));
    c->last_will_sent = !withdraw;
}

CDP__PRIVATE CDP__COLD void cdp__client_send_last_will(cdp__client *c) {
    if (c->is_cdp) cdp__client_put_last_will(c, false);
    if (c->is_cdp && !c->last_will_sent) cdp__client_break(c);
    if (!c->is_cdp)
        cdp__log(
            &c->logger, CDP_LOG_INFO, -1, "the store at %s does not support last wills", c->name);
}

CDP__PRIVATE void cdp__client_greeted(cdp__client *c) {
    c->is_cdp = c->in[CDP__OLD(c) ? 1 : 4] == CDP__WIRE_READY;
    c->in_at = c->in_used = 0;
    /* a server of this library that was just starting: connect again in the new dialect */
    if (CDP__OLD(c) && c->is_cdp) {
        cdp__client_refused(c, 0);
        return;
    }
    c->state = CDP__CLIENT_READY;
    cdp__loop_timer_clear(&c->timer);
    if (c->will_key.data) cdp__client_send_last_will(c);
    cdp__client_pump(c);
}

CDP__PRIVATE void cdp__client_refused_by_auth(cdp__client *c, uint8_t refusal) {
    cdp__fail(CDP_ERR_MISMATCH, "the store at %s and this client cannot authenticate: %s", c->name,
        cdp__auth_text(refusal));
    cdp__client_break(c);
}

#ifndef CDP_NO_JOB_KEY
/* Advances the authentication exchange with the server. The greeting follows the proof of this
   client, and its answer that of the server: it takes a round trip less. */
CDP__PRIVATE void cdp__client_authenticate(cdp__client *c) {
    int64_t result;
    const cdp_status st = cdp__auth_pump(&c->auth, c->loop, &c->io, &result);
    if (st == CDP_ERR_MISMATCH)
        cdp__client_refused_by_auth(c, c->auth.refusal);
    else if (st < 0)
        cdp__client_refused(c, result);
    else if (c->state == CDP__CLIENT_AUTHENTICATING && cdp__auth_said(&c->auth))
        cdp__client_greet(c);
}
#endif

/* The server has not proved yet that it has the key. */
CDP__PRIVATE bool cdp__client_doubts(const cdp__client *c) {
#ifdef CDP_NO_JOB_KEY
    (void)c;
    return false;
#else
    return c->keyed && !c->auth.done;
#endif
}

/* Sends the greeting, and reads its answer. */
CDP__PRIVATE void cdp__client_greeting(cdp__client *c) {
    const uint32_t want = CDP__OLD(c) ? CDP__CLIENT_OLD_GREETING_BYTES : CDP__CLIENT_GREETING_BYTES;
    uint8_t nonce[4] = {0};
    bool wrong;
    int64_t r = 1, sent = 1;
    while (sent > 0 && cdp__fifo_left(&c->out)) {
        cdp_iov iov;
        iov.data = c->out.data + c->out.at;
        iov.bytes = cdp__fifo_left(&c->out);
        sent = cdp__io_send(c->loop, &c->io, &iov, 1);
        if (sent > 0) c->out.at += (uint64_t)sent;
    }
    if (cdp__client_doubts(c)) return;
    /* even if sending failed: an answer may contain the reason */
    while (r > 0 && c->in_used < sizeof c->in) {
        cdp_iov iov;
        iov.data = c->in + c->in_used;
        iov.bytes = sizeof c->in - c->in_used;
        r = cdp__io_drain(c->loop, &c->io, &iov);
        if (r > 0) c->in_used += (uint32_t)r;
    }
    if (!CDP__OLD(c)) cdp__put_u32(nonce, c->target.nonce);
    /* the store is being closed: retry, as if it were not running yet */
    if (!CDP__OLD(c) && c->in_used == want + 1 && memcmp(c->in, nonce, 4) == 0
        && c->in[4] == CDP__WIRE_READY && c->in[5] == CDP__WIRE_CLOSING) {
        cdp__client_retry(c, ECONNREFUSED);
        return;
    }
    wrong = memcmp(c->in, nonce, (size_t)cdp__min(c->in_used, CDP__OLD(c) ? 1 : 4)) != 0
        || c->in_used > want
        || (c->in_used == want && c->in[CDP__OLD(c) ? 1 : 4] > CDP__WIRE_NOT_READY);
    if (c->in_used > 8 && memcmp(c->in, "cdp-no: ", 8) == 0)
        cdp__client_refused_by_auth(c, c->in[8]);
    else if (wrong
        && (c->in_used > 8 || memcmp(c->in, "cdp-no: ", c->in_used) != 0 || r < 0 || c->io.broken))
        cdp__client_no_store(c);
    else if (wrong)
        return; /* the rest of a refusal is still to come */
    else if (c->in_used == want && !cdp__fifo_left(&c->out))
        cdp__client_greeted(c);
    else if (r < 0 || c->io.broken)
        cdp__client_refused(c, r < 0 ? r : 0);
    else if (sent < 0)
        cdp__client_refused(c, sent);
}

CDP__PRIVATE CDP__ONE_COPY void cdp__client_ready(cdp__io *io) {
    cdp__client *c = (cdp__client *)io->user;
    if (c->state == CDP__CLIENT_CONNECTING && (io->ready & CDP_IO_WRITE)) {
        const int32_t r = c->os->net.connect_result(c->os->user, io->fd);
        if (r < 0) {
            cdp__client_retry(c, -r);
        } else if (!c->keyed) {
            cdp__client_greet(c);
#ifndef CDP_NO_JOB_KEY
        } else if (cdp__auth_open(
                       &c->auth, c->os, c->key, false, CDP__AUTH_STORE, CDP__AUTH_NO_ANSWER)
            == CDP_OK) {
            c->state = CDP__CLIENT_AUTHENTICATING;
        } else {
            cdp__client_break(c);
#endif
        }
    }
#ifndef CDP_NO_JOB_KEY
    if (c->state == CDP__CLIENT_AUTHENTICATING
        || (c->state == CDP__CLIENT_GREETING && cdp__client_doubts(c)))
        cdp__client_authenticate(c);
#endif
    if (c->state == CDP__CLIENT_GREETING)
        cdp__client_greeting(c);
    else if (c->state == CDP__CLIENT_READY)
        cdp__client_pump(c);
}

CDP__PRIVATE void cdp__client_set_name(cdp__client *c, const cdp_addr *at) {
    char text[64];
    cdp_addr literal;
    const bool colon = strchr(c->host, ':') && c->host[0] != '[';
    if (!CDP__TEXTS) return;
    cdp__addr_text(at, text, sizeof text);
    if (!at->family)
        cdp__format(c->name, sizeof c->name, colon ? "[%s]:%u" : "%s:%u", c->host, c->port);
    else if (cdp__addr_parse(c->host, &literal))
        cdp__format(c->name, sizeof c->name, "%s", text);
    else
        cdp__format(c->name, sizeof c->name, "%s:%u (%s)", c->host, c->port, text);
}

/* Resolves the host name. Repeated in every round, because a name may not exist yet when a job
   starts. */
CDP__PRIVATE bool cdp__client_resolve(cdp__client *c) {
    cdp__client_target *w = &c->target;
    int32_t n = 1;
    /* reconnects to the same address: there may be no time to resolve a name */
    if (w->fixed || c->reconnecting) return true;
    if (!cdp__addr_parse(c->host, &w->at[0]))
        n = c->os->net.resolve(c->os->user, c->host, c->port, w->at, 16, w->deadline_ns);
    else
        w->at[0].port = c->port;
    /* no time was left: keep the earlier addresses and error */
    if (n == -ETIMEDOUT && w->sys_errno)
        n = -w->sys_errno;
    else
        w->count = n > 0 ? (uint32_t)n : 0;
    if (n <= 0) cdp__client_retry(c, n < 0 ? -n : ENOENT);
    return n > 0;
}

/* Tries to connect to the current address. */
CDP__PRIVATE CDP__COLD void cdp__client_attempt(cdp__client *c) {
    cdp__client_target *w = &c->target;
    int32_t fd;
    if (w->index == 0 && !cdp__client_resolve(c)) return;
    if (c->state == CDP__CLIENT_BROKEN) return;
    cdp__client_set_name(c, &w->at[w->index]);
    ++w->attempts;
    w->attempt_ns = c->os->now_ns(c->os->user);
    fd = c->os->net.connect_to(c->os->user, &w->at[w->index]);
    if (fd < 0) {
        cdp__client_retry(c, -fd);
        return;
    }
    c->state = CDP__CLIENT_CONNECTING;
    cdp__loop_add(c->loop, &c->io, fd, cdp__client_ready, c);
    cdp__loop_want_write(c->loop, &c->io);
    if (w->count > 1)
        cdp__loop_timer_set(c->loop, &c->timer,
            w->attempt_ns + (CDP__CLIENT_ATTEMPT_NS << cdp__min(4, (w->attempts - 1) / w->count)),
            c->timer.func, c);
}

CDP__PRIVATE void cdp__client_timer(cdp__timer *t) {
    cdp__client *c = (cdp__client *)t->user;
    if (c->state == CDP__CLIENT_PAUSE)
        cdp__client_attempt(c);
    else
        cdp__client_retry(c, ETIMEDOUT);
}

CDP__PRIVATE cdp_status cdp__client_unreachable(cdp__client *c) {
    const cdp__client_target *w = &c->target;
    const uint64_t now = c->os->now_ns(c->os->user), tried_ns = now - w->started_ns,
                   hundredths = tried_ns / (10 * CDP__MS);
    char seconds[24];
    /* a young attempt says less than the error of the previous one */
    const bool hangs = 4 * (now - w->attempt_ns) > tried_ns;
    const char *hint = "does rank 0 run, and is this its address and port?";
    int32_t err = w->sys_errno;
    if (c->state == CDP__CLIENT_CONNECTING && hangs) {
        hint = "nothing comes back from there: is the address right, and does a firewall let the "
               "port through?";
        err = ETIMEDOUT;
    } else if ((c->state == CDP__CLIENT_GREETING || c->state == CDP__CLIENT_AUTHENTICATING)
        && hangs) {
        hint =
            "the connection stands, but nothing answers: is it a store, and does its process run?";
        err = ETIMEDOUT;
    } else if (!w->count) {
        hint = w->sys_errno == ENOENT ? "the name has no address"
                                      : "the name was not resolved in that time: use an address";
    }
    /* the system's text for a name without an address is about files */
    return cdp__fail_peer(CDP_ERR_TIMEOUT, -1, err == ENOENT ? 0 : err,
        "no store answered at %s within %s s and %u attempts (%s)", c->name,
        cdp__seconds(seconds, hundredths * 10), w->attempts, hint);
}

/* Begins to connect; the loop continues. */
CDP__PRIVATE void cdp__client_connect_start(cdp__client *c, uint32_t timeout_ms) {
    cdp__client_target *w = &c->target;
    w->started_ns = c->os->now_ns(c->os->user);
    w->deadline_ns = cdp__deadline(c->os, timeout_ms);
    w->backoff_ns = CDP__CLIENT_BACKOFF_NS;
    cdp__client_attempt(c);
}

/* Returns PENDING while connecting, then the outcome. */
CDP__PRIVATE cdp_status cdp__client_connected(cdp__client *c) {
    /* not before the last will is sent: otherwise the server might not have it */
    if (c->state == CDP__CLIENT_READY && (!c->last_will_sent || !cdp__fifo_left(&c->out)))
        return CDP_OK;
    if (c->state == CDP__CLIENT_BROKEN) return cdp__error_again(c->error.status, &c->error);
    return c->os->now_ns(c->os->user) < c->target.deadline_ns ? CDP_PENDING
                                                              : cdp__client_unreachable(c);
}

CDP__PRIVATE cdp_status cdp__client_connect(cdp__client *c, uint32_t timeout_ms) {
    cdp_status status;
    cdp__client_connect_start(c, timeout_ms);
    while ((status = cdp__client_connected(c)) == CDP_PENDING) {
        status = cdp__loop_run(c->loop, NULL, c->target.deadline_ns);
        if (status != CDP_OK) break;
    }
    return status;
}

/* ---- >>store/client_calls: the store interface of a client ----------------------------------- */

/* Knows: the threads that use a client. Promises: one of them runs the loop while the others sleep,
   and each keeps its deadline. */

CDP__PRIVATE void cdp__client_wake_sleepers(cdp__client *c) {
    if (c->sleepers) c->os->threads.cond_broadcast(c->os->user, c->cond);
}

/* The request has failed: sets this thread's last error. This is needed if the error occurred in
   another thread, or in code that made no text for it. */
CDP__PRIVATE void cdp__client_set_error(const cdp__client *c, const cdp_store_request *rq) {
    if (rq->status < 0 && c->state == CDP__CLIENT_BROKEN)
        *cdp__error_slot() = c->error;
    else if (rq->status == CDP_ERR_NOMEM)
        cdp__client_no_memory(c);
}

CDP__PRIVATE cdp_status cdp__client_start(void *self, cdp_store_request *rq) {
    cdp__client *c = (cdp__client *)self;
    cdp_status status;
    /* refuse here what the server would answer by closing the connection */
    rq->status = cdp__store_request_validate(rq, c->max_value_bytes);
    rq->results = NULL;
    rq->next = NULL;
    if (rq->status == CDP_OK && cdp__is_child(c->forks))
        rq->status = cdp__child_refuses(CDP_ERR_STATE, "a call of a store", "store");
    if (rq->status != CDP_OK) return rq->status;
    cdp_lock_acquire(&c->lock);
    if (c->state == CDP__CLIENT_BROKEN) {
        rq->status = c->error.status;
    } else {
        rq->status = CDP_PENDING;
        if (c->last)
            c->last->next = rq;
        else
            c->first = rq;
        c->last = rq;
        cdp__client_pump(c);
        /* the thread that runs the loop must poll for this request */
        if (c->driven) cdp__loop_wake(c->loop);
    }
    cdp__client_wake_sleepers(c);
    status = rq->status;
    cdp__client_set_error(c, rq);
    cdp_lock_release(&c->lock);
    return status;
}

/* Opens a new connection to the same address. No sent request is lost, because a wait in the old
   dialect begins only after all earlier requests were answered. */
CDP__PRIVATE void cdp__client_reconnect(cdp__client *c) {
    cdp__loop_remove(c->loop, &c->io);
    cdp__client_done(c, CDP_OK);
    c->out.at = c->out.used = 0;
    c->in_at = c->in_used = 0;
    c->reconnecting = true;
    c->target.index = 0;
    c->target.refused_ns = 0;
    c->target.started_ns = c->os->now_ns(c->os->user);
    c->state = CDP__CLIENT_PAUSE;
    cdp__client_attempt(c);
}

/* The WAIT that was sent last has to end. */
CDP__PRIVATE void cdp__client_cancel_wait(cdp__client *c) {
    c->out.data[c->out.used++] = CDP__OP_CANCEL_WAIT; /* room: CDP__CLIENT_SPARE */
    cdp__client_pump(c);
}

/* Cancels a request. The caller holds the lock. */
CDP__PRIVATE CDP__ONE_COPY void cdp__client_forget(cdp__client *c, cdp_store_request *rq) {
    cdp_store_request **at = &c->first, *before = NULL;
    uint32_t i;
    if (rq->status != CDP_PENDING) return;
    rq->status = CDP_ERR_TIMEOUT;
    if (c->rq == rq) { /* in progress: its answer must still be read */
        c->rq = NULL;
        c->value = NULL;
        cdp__client_drop_results(c, rq);
        /* for cdp__store_timed_out(): before the wait, the store has answered that the key is
           absent */
        rq->number = c->expect == CDP__EXPECT_STOP ? 0 : CDP__STORE_NO_ANSWER;
        if (c->expect == CDP__EXPECT_CHECK && c->paired) {
            cdp__client_cancel_wait(c);
            return;
        }
        if (c->expect != CDP__EXPECT_STOP) return;
        if (CDP__OLD(c)) { /* the old dialect cannot cancel: a late answer would be misread */
            cdp__client_reconnect(c);
            return;
        }
        c->expect = CDP__EXPECT_CANCEL;
        cdp__client_cancel_wait(c);
        return;
    }
    for (i = 0; i < c->sent_count; ++i) { /* likewise */
        cdp__client_sent *sent = &c->sent[(c->sent_at + i) % CDP__CLIENT_AHEAD];
        if (sent->rq != rq) continue;
        sent->rq = NULL;
        cdp__store_request_drop_results(c->os, rq, 0);
        rq->number = CDP__STORE_NO_ANSWER;
        if (sent->paired) cdp__client_cancel_wait(c);
        return;
    }
    for (; *at && *at != rq; at = &(*at)->next)
        before = *at;
    if (!*at) return;
    rq->number = c->state == CDP__CLIENT_READY ? CDP__STORE_NOT_SENT : CDP__STORE_NO_ANSWER;
    *at = rq->next;
    if (c->last == rq) c->last = before;
}

CDP__PRIVATE void cdp__client_cancel(void *self, cdp_store_request *rq) {
    cdp__client *c = (cdp__client *)self;
    cdp_lock_acquire(&c->lock);
    cdp__client_forget(c, rq);
    if (c->driven) cdp__loop_wake(c->loop);
    cdp__client_wake_sleepers(c);
    cdp_lock_release(&c->lock);
}

/* Runs the loop once, or sleeps while another thread runs it. The caller holds the lock. */
CDP__PRIVATE cdp_status cdp__client_turn(cdp__client *c, uint64_t deadline_ns) {
    cdp_status status;
    if (c->driven) {
        if (!c->cond) return CDP_OK; /* called inside a callback: the loop is running */
        ++c->sleepers;
        c->os->threads.cond_wait(c->os->user, c->cond, c->lock.mutex, deadline_ns);
        --c->sleepers;
        return CDP_OK;
    }
    c->driven = true;
    status = cdp__loop_run(c->loop, &c->lock, deadline_ns);
    c->driven = false;
    cdp__client_wake_sleepers(c);
    return status;
}

CDP__PRIVATE cdp_status cdp__client_wait(void *self, cdp_store_request *rq, uint64_t deadline_ns) {
    cdp__client *c = (cdp__client *)self;
    cdp_status status = CDP_OK;
    cdp_lock_acquire(&c->lock);
    while (rq->status == CDP_PENDING) {
        status = cdp__client_turn(c, deadline_ns);
        if (status != CDP_OK
            || (rq->status == CDP_PENDING && c->os->now_ns(c->os->user) >= deadline_ns))
            break;
    }
    /* the loop has failed: it had no memory for its descriptors */
    if (status != CDP_OK && rq->status == CDP_PENDING) {
        cdp__client_forget(c, rq);
        rq->status = status;
    }
    if (status == CDP_OK || c->state == CDP__CLIENT_BROKEN) cdp__client_set_error(c, rq);
    status = rq->status;
    cdp_lock_release(&c->lock);
    return status;
}

/* For cdp_tcp.h: this end of the connection, an address at which the server's host can reach
   this one. */
CDP__PRIVATE bool cdp__tcp_store_local_addr(cdp_store *s, cdp_addr *out) {
    cdp__client *c = (cdp__client *)s->self;
    return c->state == CDP__CLIENT_READY && c->os->net.local_addr(c->os->user, c->io.fd, out) >= 0;
}

/* For cdp_tcp.h: the address of the server. */
CDP__PRIVATE cdp_addr cdp__tcp_store_peer_addr(const cdp_store *s) {
    const cdp__client *c = (const cdp__client *)s->self;
    return c->target.at[c->target.index];
}

/* Copies key and value to one block. */
CDP__PRIVATE bool cdp__client_copy_last_will(cdp__client *c, const char *key, cdp_bytes value) {
    const uint64_t key_bytes = strlen(key);
    uint8_t *p = (uint8_t *)cdp__alloc(c->os, key_bytes + value.bytes);
    if (!p) return false;
    memcpy(p, key, (size_t)key_bytes);
    if (value.bytes) memcpy(p + key_bytes, value.data, (size_t)value.bytes);
    c->will_key.data = p;
    c->will_key.bytes = key_bytes;
    c->will_value.data = p + key_bytes;
    c->will_value.bytes = value.bytes;
    return true;
}

/* For cdp_tcp.h: a client that connects, or has connected, without a last will gets one. */
CDP__PRIVATE cdp_status cdp__tcp_store_set_last_will(
    cdp_store *s, const char *key, cdp_bytes value) {
    cdp__client *c = (cdp__client *)s->self;
    if (!cdp__client_copy_last_will(c, key, value))
        return cdp__fail_nomem("a last will", strlen(key) + value.bytes);
    if (c->state != CDP__CLIENT_READY) return CDP_OK; /* cdp__client_greeted() sends it */
    cdp__client_send_last_will(c);
    if (c->state == CDP__CLIENT_READY) (void)cdp__client_flush(c);
    return CDP_OK;
}

/* For cdp_tcp.h: withdraws the last will. The links report the death of this process from now
   on. */
CDP__PRIVATE void cdp__tcp_store_withdraw_last_will(cdp_store *s) {
    cdp__client *c = (cdp__client *)s->self;
    if (c->state != CDP__CLIENT_READY || !c->last_will_sent) return;
    cdp__client_put_last_will(c, true);
    c->withdrawn = true;
    (void)cdp__client_flush(c);
}

/* For cdp_tcp.h: destroying this client will trigger its last will. */
CDP__PRIVATE void cdp__tcp_store_abandon(cdp_store *s) {
    cdp__client *c = (cdp__client *)s->self;
    c->last_will_sent = c->withdrawn = false;
}

CDP__PRIVATE void cdp__client_ignore(cdp__io *io) {
    (void)io;
}

/* Reads pending input: closing a socket with unread input would make the system drop the bytes
   sent last. */
CDP__PRIVATE void cdp__client_drain(cdp__client *c) {
    uint8_t sink[256];
    cdp_iov iov;
    uint32_t i;
    iov.data = sink;
    iov.bytes = sizeof sink;
    for (i = 0; i < 16 && c->os->net.recv_iov(c->os->user, c->io.fd, &iov, 1) > 0; ++i) {
    }
}

/* Begins the goodbye: withdraws the last will, and sends a PING. False: there is nothing to wait
   for. */
CDP__PRIVATE bool cdp__client_close_begin(cdp__client *c) {
    static const uint8_t bye[4] = {'b', 'y', 'e', '!'};
    uint8_t *p;
    c->io.func = cdp__client_ignore;
    cdp__client_put_last_will(c, true);
    p = c->last_will_sent ? NULL : cdp__client_begin(c, 5);
    if (!p) return false;
    *p++ = CDP__OP_PING;
    memcpy(p, bye, sizeof bye);
    cdp__client_end(c, p + sizeof bye);
    c->bye_ns = c->os->now_ns(c->os->user) + CDP__CLIENT_GOODBYE_NS;
    return true;
}

/* Reads up to the answer to the PING. True: that has not come yet. */
CDP__PRIVATE bool cdp__client_close_read(cdp__client *c) {
    uint8_t next = 0;
    cdp_iov iov;
    int64_t r;
    iov.data = &next;
    iov.bytes = 1;
    while ((r = cdp__io_recv(c->loop, &c->io, &iov, 1)) > 0) {
        memmove(c->bye_tail, c->bye_tail + 1, 3);
        c->bye_tail[3] = next;
        if (memcmp(c->bye_tail, "bye!", 4) == 0) return false;
    }
    return r == 0;
}

/* Closing a socket before all input has arrived would make the system drop the bytes sent last,
   among them the withdrawal of the last will. So a PING follows the withdrawal, and everything up
   to its answer is read, for at most CDP__CLIENT_GOODBYE_NS because the server may have died. One
   step, which does not wait. True: the answer is still awaited, until bye_ns. */
CDP__PRIVATE bool cdp__client_closing(cdp__client *c) {
    uint64_t left;
    if (c->state != CDP__CLIENT_READY || c->bye_over) return false;
    if (!c->bye_ns && !c->last_will_sent && !(c->withdrawn && cdp__fifo_left(&c->out))) {
        cdp__client_drain(c);
        return false;
    }
    c->bye_over = !c->bye_ns && !cdp__client_close_begin(c);
    if (c->bye_over) return false;
    left = cdp__fifo_left(&c->out);
    if (left) (void)cdp__client_flush(c);
    if (c->state != CDP__CLIENT_READY) return false;
    /* the time counts from the last bytes sent, and received bytes are handled first: so a
       process that was stopped meanwhile still says goodbye */
    if (cdp__fifo_left(&c->out) < left)
        c->bye_ns = c->os->now_ns(c->os->user) + CDP__CLIENT_GOODBYE_NS;
    c->bye_over = !cdp__client_close_read(c) || c->os->now_ns(c->os->user) >= c->bye_ns;
    return !c->bye_over;
}

/* For cdp_tcp.h: says goodbye without waiting, before the client is destroyed. True: call again
   when the loop has something to report, or at *until_ns. No request may be in progress. */
CDP__PRIVATE bool cdp__tcp_store_parts(cdp_store *s, uint64_t *until_ns) {
    cdp__client *c = (cdp__client *)s->self;
    const bool more = cdp__client_closing(c);
    *until_ns = c->bye_ns;
    return more;
}

CDP__PRIVATE void cdp__client_destroy(void *self) {
    cdp__client *c = (cdp__client *)self;
    const cdp_os *os = c->os;
    const cdp_error before = *cdp_last_error();
    void *will;
    if (cdp__is_child(c->forks)) return; /* the connection is the parent's */
    while (cdp__client_closing(c) && cdp__loop_run(c->loop, NULL, c->bye_ns) == CDP_OK) {
    }
    if (c->loop->os) {
        cdp__fail(CDP_ERR_STATE, "the store client of %s was destroyed", c->name);
        cdp__client_break(c); /* ends requests that other code still refers to */
    }
    /* destroying reports no error */
    *cdp__error_slot() = before;
    cdp__loop_close(&c->own_loop);
    cdp__fifo_free(os, &c->out);
    if (c->cond) os->threads.cond_destroy(os, c->cond);
    cdp__lock_close(&c->lock);
    memcpy(&will, &c->will_key.data, sizeof will);
    cdp__free(os, will);
    cdp__free(os, c->host);
    cdp__wipe(c->key, sizeof c->key);
    cdp__free(os, c);
}

/* Allocates memory and opens descriptors. */
CDP__PRIVATE cdp_status cdp__client_open(cdp__client *c, const cdp_tcp_store_desc *d) {
    const cdp_os *os = c->os;
    char first[64];
    const char *host = d->addr_count ? first : d->host;
    size_t host_bytes;
    cdp_addr none;
    if (d->addr_count) cdp__addr_text(&d->addrs[0], first, sizeof first);
    host_bytes = strlen(host) + 1;
    c->host = (char *)cdp__alloc(os, host_bytes);
    if (!c->host || (d->will_key && !cdp__client_copy_last_will(c, d->will_key, d->will_value)))
        return cdp__fail_nomem("a store client", host_bytes);
    memcpy(c->host, host, host_bytes);
    memset(&none, 0, sizeof none);
    cdp__client_set_name(c, d->addr_count ? &d->addrs[0] : &none);
    if (c->loop != &c->own_loop) return CDP_OK;
    if (!cdp__lock_open(&c->lock, os, true)) return cdp__fail_nomem("a lock", sizeof(cdp_lock));
    if (c->lock.mutex && !(c->cond = os->threads.cond_create(os)))
        return cdp__fail_nomem("a condition variable", sizeof(cdp_lock));
    return cdp__loop_open(&c->own_loop, os);
}

/* The desc for a second client of the same server. The key is passed as its hash. */
CDP__PRIVATE void cdp__client_describe(const cdp__client *c, cdp_tcp_store_desc *d) {
    memset(d, 0, sizeof *d);
    d->host = c->host;
    d->port = c->port;
    d->os = c->os;
    d->logger = c->logger;
    d->timeout_ms = c->store.timeout_ms;
    d->max_value_bytes = c->max_value_bytes;
    if (!c->target.fixed) return;
    d->addrs = c->target.at;
    d->addr_count = c->target.count;
}

CDP__PRIVATE void cdp__client_fill(cdp__client *c, const cdp_tcp_store_desc *d) {
    c->os = d->os ? d->os : cdp_os_default();
    c->logger = d->logger;
    c->loop = d->loop ? d->loop : &c->own_loop;
    c->port = d->port;
    c->target.fixed = d->addr_count > 0;
    c->target.count = d->addr_count;
    if (d->addr_count) memcpy(c->target.at, d->addrs, d->addr_count * sizeof *d->addrs);
    c->max_value_bytes = cdp__def(d->max_value_bytes, CDP_STORE_MAX_VALUE_BYTES);
    c->timer.at_ns = CDP__NEVER;
    c->timer.func = cdp__client_timer; /* for earlier sections */
    c->io.fd = -1;
    c->store.self = c;
    c->store.os = c->os;
    c->store.timeout_ms = cdp__def(d->timeout_ms, 300000);
    c->store.start = cdp__client_start;
    c->store.wait = cdp__client_wait;
    c->store.cancel = cdp__client_cancel;
    cdp__store_made(&c->store, cdp__client_destroy);
}

/* Creates a client that is not connected yet. `key`: used instead of the desc's key, as its
   hash. */
CDP__PRIVATE CDP__COLD cdp_status cdp__client_make(
    const cdp_tcp_store_desc *desc, const uint8_t *key, cdp__client **out) {
    const cdp_os *os = desc->os ? desc->os : cdp_os_default();
    cdp__client *c;
    cdp_status status;
    if (cdp__os_whole(os, "cdp_tcp_store_create") != CDP_OK) return CDP_ERR_INVALID;
    c = (cdp__client *)cdp__alloc_zero(os, sizeof *c);
    if (!c) return cdp__fail_nomem("a store client", sizeof *c);
    cdp__client_fill(c, desc);
    c->forks = cdp__forks_watch();
    status = cdp__auth_key_read(desc->job_key, c->key, &c->keyed);
    if (key) {
        c->keyed = true;
        memcpy(c->key, key, sizeof c->key);
    }
    if (status == CDP_OK) status = cdp__client_open(c, desc);
    if (status == CDP_OK)
        *out = c;
    else
        cdp__client_destroy(c);
    return status;
}

/* For cdp_tcp.h: PENDING while connecting, then the outcome. */
CDP__PRIVATE cdp_status cdp__tcp_store_connected(cdp_store *s) {
    return cdp__client_connected((cdp__client *)s->self);
}

CDP__PRIVATE cdp_status cdp__client_create(
    const cdp_tcp_store_desc *desc, const uint8_t *key, cdp_store **out) {
    cdp__client *c = NULL;
    cdp_status status = cdp__client_make(desc, key, &c);
    if (status != CDP_OK) return status;
    status = cdp__client_connect(c, cdp__def(desc->connect_timeout_ms, c->store.timeout_ms));
    if (status == CDP_OK && desc->count_me) {
        c->bare = true;
        status = cdp_store_add(&c->store, "init/", 1, NULL);
        c->bare = false;
    }
    if (status == CDP_OK)
        *out = &c->store;
    else
        cdp__client_destroy(c);
    return status;
}

/* connect_ms 0: the timeout of the store. */
CDP__PRIVATE cdp_status cdp__client_clone(
    const cdp__client *c, uint32_t connect_ms, cdp_store **out) {
    cdp_tcp_store_desc d;
    cdp__client_describe(c, &d);
    d.connect_timeout_ms = connect_ms;
    return cdp__client_create(&d, c->keyed ? c->key : NULL, out);
}

CDP__PRIVATE cdp_status cdp__tcp_store_check(const cdp_tcp_store_desc *desc) {
    uint64_t max;
    if (!desc || ((!desc->host || !desc->host[0]) && !desc->addr_count) || desc->addr_count > 16)
        return cdp__missing("cdp_tcp_store_create", "desc.host");
    if (!desc->addr_count && !cdp__host_plausible(desc->host))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_tcp_store_create: desc.host '%s' is neither an address nor the name of a host: "
            "give "
            "that alone, such as 10.0.0.1 or node7",
            desc->host);
    if (!desc->port && !desc->addr_count)
        return cdp__fail(CDP_ERR_INVALID, "cdp_tcp_store_create: desc.port is 0");
    max = cdp__def(desc->max_value_bytes, CDP_STORE_MAX_VALUE_BYTES);
    if (desc->will_key
        && (!desc->will_key[0] || strlen(desc->will_key) >= CDP_STORE_MAX_KEY_BYTES
            || desc->will_value.bytes > max))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_tcp_store_desc.will_key is empty, or will_key or will_value is too long");
    return CDP_OK;
}

CDP_API cdp_status cdp_tcp_store_create(const cdp_tcp_store_desc *desc, cdp_store **out) {
    cdp_status status;
    if (!out) return cdp__missing("cdp_tcp_store_create", "out");
    *out = NULL;
    status = cdp__tcp_store_check(desc);
    return status == CDP_OK ? cdp__client_create(desc, NULL, out) : status;
}

/* For cdp_tcp.h: creates a client that begins to connect. */
CDP__PRIVATE cdp_status cdp__tcp_store_start(const cdp_tcp_store_desc *desc, cdp_store **out) {
    cdp__client *c = NULL;
    cdp_status status = cdp__tcp_store_check(desc);
    if (status == CDP_OK) status = cdp__client_make(desc, NULL, &c);
    if (status != CDP_OK) return status;
    cdp__client_connect_start(c, cdp__def(desc->connect_timeout_ms, c->store.timeout_ms));
    *out = &c->store;
    return CDP_OK;
}

/* ---- >>store/prefix: another store, with a prefix before each key ---------------------------- */

/* Knows: the inner store and the prefix. Promises: the inner store sees each key with the prefix,
   the caller without it. */

typedef struct cdp__prefix_store {
    cdp_store store;
    cdp_store *inner;
    bool owns_inner;       /* true for clones: destroying the store destroys `inner`, too */
    uint64_t prefix_bytes; /* including the slash; the prefix follows the struct in memory */
} cdp__prefix_store;

/* The request to the inner store. Its key table and the bytes of its keys follow the struct in
   memory. */
typedef struct cdp__prefix_request {
    cdp_store_request inner;
} cdp__prefix_request;

CDP__PRIVATE cdp__prefix_request *cdp__prefix_make(
    const cdp__prefix_store *s, const cdp_store_request *rq) {
    uint64_t bytes = sizeof(cdp__prefix_request) + rq->key_count * sizeof(cdp_bytes);
    cdp__prefix_request *p;
    cdp_bytes *keys;
    uint8_t *at;
    uint32_t i;
    for (i = 0; i < rq->key_count; ++i)
        bytes += s->prefix_bytes + rq->keys[i].bytes;
    p = (cdp__prefix_request *)cdp__alloc(s->store.os, bytes);
    if (!p) {
        cdp__fail_nomem("a request of a prefix store", bytes);
        return NULL;
    }
    keys = (cdp_bytes *)(p + 1);
    at = (uint8_t *)(keys + rq->key_count);
    p->inner = *rq;
    p->inner.keys = keys;
    p->inner.priv = NULL;
    p->inner.status = CDP_PENDING;
    for (i = 0; i < rq->key_count; ++i) {
        keys[i].data = at;
        keys[i].bytes = s->prefix_bytes + rq->keys[i].bytes;
        memcpy(at, s + 1, (size_t)s->prefix_bytes);
        if (rq->keys[i].bytes)
            memcpy(at + s->prefix_bytes, rq->keys[i].data, (size_t)rq->keys[i].bytes);
        at += keys[i].bytes;
    }
    return p;
}

/* Keeps the listed keys that begin with the prefix, removes the prefix from them, and frees the
   others. */
CDP__PRIVATE void cdp__prefix_filter(const cdp__prefix_store *s, cdp_store_request *rq) {
    int64_t i, kept = 0;
    for (i = 0; i < rq->number; ++i) {
        cdp_bytes *key = &rq->results[i];
        uint8_t *p;
        memcpy(&p, &key->data, sizeof p);
        if (key->bytes >= s->prefix_bytes && memcmp(p, s + 1, (size_t)s->prefix_bytes) == 0) {
            key->bytes -= s->prefix_bytes;
            memmove(p, p + s->prefix_bytes, (size_t)key->bytes + 1);
            rq->results[kept++] = *key;
        } else {
            cdp__free(s->store.os, p);
        }
    }
    rq->number = kept;
}

/* Copies the result of the inner request to the caller's request. `status` is what the inner store
   returned. If that is PENDING, the inner request is not read: another thread may be writing it. */
CDP__PRIVATE cdp_status cdp__prefix_update(
    cdp__prefix_store *s, cdp_store_request *rq, cdp_status status) {
    cdp__prefix_request *p = (cdp__prefix_request *)rq->priv;
    rq->status = status == CDP_OK ? p->inner.status : status;
    if (rq->status == CDP_PENDING) return rq->status;
    rq->number = p->inner.number;
    rq->results = p->inner.results;
    if (rq->op == CDP_STORE_LIST_KEYS && rq->status == CDP_OK) cdp__prefix_filter(s, rq);
    cdp__free(s->store.os, p);
    rq->priv = NULL;
    return rq->status;
}

CDP__PRIVATE cdp_status cdp__prefix_start(void *self, cdp_store_request *rq) {
    cdp__prefix_store *s = (cdp__prefix_store *)self;
    cdp__prefix_request *p;
    cdp_status status;
    rq->results = NULL;
    rq->status = cdp__store_request_validate(rq, UINT64_MAX);
    if (rq->status == CDP_OK && cdp__store_ended(s->inner))
        rq->status = cdp__fail(CDP_ERR_STATE,
            "the store under this prefix store was destroyed; destroy the prefix store first");
    if (rq->status != CDP_OK) return rq->status;
    p = cdp__prefix_make(s, rq);
    if (!p) return rq->status = CDP_ERR_NOMEM;
    rq->priv = p;
    status = s->inner->start(s->inner->self, &p->inner);
    return cdp__prefix_update(s, rq, status);
}

CDP__PRIVATE cdp_status cdp__prefix_wait(void *self, cdp_store_request *rq, uint64_t deadline_ns) {
    cdp__prefix_store *s = (cdp__prefix_store *)self;
    cdp__prefix_request *p = (cdp__prefix_request *)rq->priv;
    if (!p) return rq->status;
    return cdp__prefix_update(s, rq, s->inner->wait(s->inner->self, &p->inner, deadline_ns));
}

CDP__PRIVATE void cdp__prefix_cancel(void *self, cdp_store_request *rq) {
    cdp__prefix_store *s = (cdp__prefix_store *)self;
    cdp__prefix_request *p = (cdp__prefix_request *)rq->priv;
    if (!p) return;
    s->inner->cancel(s->inner->self, &p->inner);
    /* It may have completed before it was cancelled. */
    cdp__prefix_update(s, rq, p->inner.status == CDP_PENDING ? CDP_ERR_TIMEOUT : p->inner.status);
}

CDP__PRIVATE void cdp__prefix_destroy(void *self) {
    cdp__prefix_store *s = (cdp__prefix_store *)self;
    if (s->owns_inner) cdp_store_destroy(s->inner);
    cdp__free(s->store.os, s);
}

/* `prefix` has n bytes; the last one is the slash. */
CDP__PRIVATE CDP__COLD cdp_status cdp__prefix_create(
    cdp_store *inner, const void *prefix, uint64_t n, cdp_store **out) {
    cdp__prefix_store *s = (cdp__prefix_store *)cdp__alloc_zero(inner->os, sizeof *s + n);
    if (!s) return cdp__fail_nomem("a prefix store", sizeof *s + n);
    memcpy(s + 1, prefix, (size_t)n);
    s->inner = inner;
    cdp__store_lives(inner); /* it lives, and may be the program's own */
    s->prefix_bytes = n;
    s->store = *inner; /* for os and timeout_ms */
    s->store.self = s;
    s->store.start = cdp__prefix_start;
    s->store.wait = cdp__prefix_wait;
    s->store.cancel = cdp__prefix_cancel;
    cdp__store_made(&s->store, cdp__prefix_destroy);
    *out = &s->store;
    return CDP_OK;
}

#ifndef CDP_NO_PREFIX_STORE

CDP_API cdp_status cdp_prefix_store_create(cdp_store *inner, const char *prefix, cdp_store **out) {
    const uint64_t n = prefix ? strlen(prefix) : 0;
    cdp__prefix_store *s;
    cdp_status status;
    if (!out) return cdp__missing("cdp_prefix_store_create", "out");
    *out = NULL;
    if (!inner || !prefix)
        return cdp__missing("cdp_prefix_store_create", inner ? "prefix" : "inner");
    CDP__NOT_COLD();
    /* Copies the terminating zero, too, which becomes the slash. */
    status = cdp__prefix_create(inner, prefix, n + 1, out);
    if (status != CDP_OK) return status;
    s = (cdp__prefix_store *)(*out)->self;
    ((uint8_t *)(s + 1))[n] = '/';
    return CDP_OK;
}

#endif /* CDP_NO_PREFIX_STORE */

/* ---- >>store/calls: the blocking calls ------------------------------------------------------- */

/* Knows: all kinds of stores. Promises: each call ends by its deadline. */

/* The store without its prefixes, as far as the stores under them exist. */
CDP__PRIVATE cdp_store *cdp__store_base(cdp_store *s) {
#ifndef CDP_NO_PREFIX_STORE
    while (s->destroy == cdp__prefix_destroy) {
        cdp_store *const inner = ((cdp__prefix_store *)s->self)->inner;
        if (cdp__store_ended(inner)) break;
        s = inner;
    }
#endif
    return s;
}

CDP_API void cdp_store_set_timeout(cdp_store *s, uint32_t timeout_ms) {
    if (s) cdp__store_base(s)->timeout_ms = cdp__def(timeout_ms, CDP__STORE_TIMEOUT_MS);
}

CDP_API uint32_t cdp_store_timeout(const cdp_store *s) {
    return s ? cdp__store_base((cdp_store *)(uintptr_t)s)->timeout_ms : 0;
}

/* A description of the store, for errors; `s` is no prefix store. */
CDP__PRIVATE const char *cdp__store_name(const cdp_store *s) {
#ifndef CDP_NO_FILE_STORE
    if (s->destroy == cdp__file_destroy) return ((const cdp__file_store *)s->self)->path;
#endif
    if (s->destroy == cdp__client_destroy) return ((const cdp__client *)s->self)->name;
#ifndef CDP_NO_HASH_STORE
    if (s->destroy == cdp__hash_destroy) return "this process";
#endif
    return "its host";
}

CDP__PRIVATE const char *cdp__store_timeout_reason(cdp_store *s, const cdp_store_request *rq) {
#ifndef CDP_NO_FILE_STORE
    if (s->destroy == cdp__file_destroy && cdp__file_busy((cdp__file_store *)s->self))
        return "its file is locked; is one of its users stopped?";
#endif
    (void)s;
    if (rq->number == CDP__STORE_NOT_SENT)
        return "an earlier call on this client has not ended (cdp_store_clone makes another one)";
    if (rq->number != 0) return "the store does not answer";
    switch (rq->op) {
    case CDP_STORE_GET:
    case CDP_STORE_WAIT:
    case CDP_STORE_MULTI_GET: return "nobody has set it";
    case CDP_STORE_QUEUE_POP: return "the queue is empty";
    case CDP_STORE_BARRIER: return "not everybody has come";
    default: return "the store does not answer";
    }
}

/* The public function of an operation. */
CDP__PRIVATE const char *cdp__store_op_name(cdp_store_op op) {
    static const char *const names[CDP_STORE_OP_COUNT] = {"cdp_store_run", "cdp_store_set",
        "cdp_store_get", "cdp_store_add", "cdp_store_compare_set", "cdp_store_wait",
        "cdp_store_check", "cdp_store_delete", "cdp_store_num_keys", "cdp_store_append",
        "cdp_store_multi_get", "cdp_store_multi_set", "cdp_store_queue_push", "cdp_store_queue_pop",
        "cdp_store_queue_len", "cdp_store_list_keys", "cdp_store_barrier"};
    return names[(uint32_t)op < CDP_STORE_OP_COUNT ? op : 0];
}

CDP__PRIVATE cdp_status cdp__store_timed_out(
    cdp_store *s, const cdp_store_request *rq, uint32_t timeout_ms) {
    cdp__key_text t;
    cdp_bytes none;
    char seconds[24];
    none.data = NULL;
    none.bytes = 0;
    cdp__key_print(&t, rq->key_count ? rq->keys[0] : none);
    return cdp__fail(CDP_ERR_TIMEOUT, "%s of \"%s\"%s timed out after %s s: %s (the store at %s)",
        cdp__store_op_name(rq->op), t.at, rq->key_count > 1 ? " and others" : "",
        cdp__seconds(seconds, timeout_ms), cdp__store_timeout_reason(s, rq), cdp__store_name(s));
}

/* Starts a request. The caller has filled in all members except the results. */
CDP__PRIVATE cdp_status cdp__store_begin(cdp_store *s, cdp_store_request *rq) {
    if (!rq) return cdp__missing("cdp_store_run", s ? "request" : "store");
    if (!s) return cdp__missing(cdp__store_op_name(rq->op), "store");
    if (!s->start || !s->wait || !s->cancel || !s->os)
        return cdp__fail(CDP_ERR_STATE,
            "this store was never made, or was destroyed (a function of it is NULL)");
    cdp__ended_remove(cdp__store_mark(s)); /* a custom store at the address of a former one */
    rq->status = CDP_PENDING;
    rq->results = NULL;
    rq->priv = NULL;
    rq->next = NULL;
    rq->number = 0;
    return s->start(s->self, rq);
}

/* Ends a request after its last wait, which returned `status`. Cancels a pending one; until then
   another thread may write to it. */
CDP__PRIVATE cdp_status cdp__store_end(
    cdp_store *s, cdp_store_request *rq, cdp_status status, uint32_t timeout_ms) {
    if (status == CDP_PENDING) s->cancel(s->self, rq);
    /* it may have completed just before the cancellation */
    if (rq->status != CDP_PENDING && rq->status != CDP_ERR_TIMEOUT) return rq->status;
    rq->status = CDP_ERR_TIMEOUT;
    return cdp__store_timed_out(cdp__store_base(s), rq, timeout_ms);
}

CDP_API cdp_status cdp_store_run(cdp_store *s, cdp_store_request *rq, uint32_t timeout_ms) {
    const uint32_t ms = cdp__def(timeout_ms, cdp_store_timeout(s));
    const uint64_t deadline = s && s->os ? cdp__deadline(s->os, ms) : 0;
    cdp_status status = cdp__store_begin(s, rq);
    if (status < 0) return status;
    if (status == CDP_PENDING || rq->status == CDP_PENDING) status = s->wait(s->self, rq, deadline);
    return cdp__store_end(s, rq, status, ms);
}

/* Whose memory a store hands out; NULL: no store, or one that was destroyed. */
CDP__PRIVATE CDP__ONE_COPY const cdp_os *cdp__store_os(const cdp_store *s) {
    return s && !cdp__ended(cdp__store_mark(s)) ? s->os : NULL;
}

CDP_API void cdp_store_free(cdp_store *s, void *memory) {
    const cdp_os *const os = cdp__store_os(s);
    if (os) cdp__free(os, memory);
}

/* True if it frees the store with it. */
CDP__PRIVATE bool cdp__store_is_own(void (*destroy)(void *self)) {
#ifndef CDP_NO_HASH_STORE
    if (destroy == cdp__hash_destroy) return true;
#endif
#ifndef CDP_NO_FILE_STORE
    if (destroy == cdp__file_destroy) return true;
#endif
#ifndef CDP_NO_CUSTOM_STORE
    if (destroy == cdp__custom_destroy) return true;
#endif
    return destroy == cdp__client_destroy || destroy == cdp__prefix_destroy;
}

CDP_API CDP__ONE_COPY void cdp_store_destroy(cdp_store *s) {
    void (*destroy)(void *self);
    if (!s) return;
    if (cdp__ended(cdp__store_mark(s))) {
        (void)cdp__fail(CDP_ERR_STATE, "cdp_store_destroy: this store was destroyed");
        return;
    }
    destroy = s->destroy;
    if (!destroy) return;
    s->start = NULL; /* a later call then returns an error, if the memory still exists */
    s->destroy = NULL;
    cdp__ended_add(cdp__store_is_own(destroy) ? cdp__store_mark(s) : s);
    destroy(s->self);
}

CDP_API void cdp_store_request_free(cdp_store *s, cdp_store_request *rq) {
    const cdp_os *const os = cdp__store_os(s);
    if (os && rq) cdp__store_request_drop_results(os, rq, cdp__store_request_result_count(rq));
}

/* A call with one key, in a form that needs no allocation. */
typedef struct cdp__store_call {
    cdp_store_request rq;
    cdp_bytes key, value[2];
} cdp__store_call;

CDP__PRIVATE CDP__ONE_COPY cdp_status cdp__store_call_make(
    cdp__store_call *c, cdp_store_op op, const char *key, const void *value, uint64_t bytes) {
    memset(c, 0, sizeof *c);
    if (!key) return cdp__missing(cdp__store_op_name(op), "key");
    if (!value && bytes)
        return cdp__fail(CDP_ERR_INVALID, "%s: %s is NULL (key \"%s\")", cdp__store_op_name(op),
            op == CDP_STORE_COMPARE_SET ? "expected" : "value", key);
    c->key.data = key;
    c->key.bytes = strlen(key);
    c->value[0].data = value;
    c->value[0].bytes = bytes;
    c->rq.op = op;
    c->rq.keys = &c->key;
    c->rq.key_count = 1;
    c->rq.values = c->value;
    return CDP_OK;
}

/* Runs a call that cdp__store_call_make() has made; `status` is what that returned. If `value`
   is not NULL, the caller owns the first result. */
CDP__PRIVATE cdp_status cdp__store_call_run(cdp_store *s, cdp__store_call *c, cdp_status status,
    uint32_t timeout_ms, void **value, uint64_t *bytes) {
    if (value) *value = NULL;
    if (bytes) *bytes = 0;
    if (status == CDP_OK) status = cdp_store_run(s, &c->rq, timeout_ms);
    if (status != CDP_OK || !value) return status;
    memcpy(value, &c->rq.results[0].data, sizeof *value);
    if (bytes) *bytes = c->rq.results[0].bytes;
    cdp__free(s->os, c->rq.results);
    return CDP_OK;
}

/* Runs a call that stores a value. */
CDP__PRIVATE cdp_status cdp__store_put(
    cdp_store *s, cdp_store_op op, const char *key, const void *value, uint64_t bytes) {
    cdp__store_call c;
    const cdp_status status = cdp__store_call_make(&c, op, key, value, bytes);
    return cdp__store_call_run(s, &c, status, 0, NULL, NULL);
}

/* Runs a call that waits for a value, which the caller then owns. */
CDP__PRIVATE cdp_status cdp__store_take(cdp_store *s, cdp_store_op op, const char *key,
    void **value, uint64_t *bytes, uint32_t timeout_ms) {
    cdp__store_call c;
    const cdp_status status = cdp__store_call_make(&c, op, key, NULL, 0);
    return cdp__store_call_run(s, &c, status, timeout_ms, value, bytes);
}

/* Runs a call on a key that returns a number; 0 if it fails. */
CDP__PRIVATE CDP__ONE_COPY cdp_status cdp__store_count(
    cdp_store *s, cdp_store_op op, const char *key, int64_t delta, int64_t *number) {
    cdp__store_call c;
    cdp_status status = cdp__store_call_make(&c, op, key, NULL, 0);
    c.rq.delta = delta;
    status = cdp__store_call_run(s, &c, status, 0, NULL, NULL);
    *number = status == CDP_OK ? c.rq.number : 0;
    return status;
}

CDP_API cdp_status cdp_store_set(cdp_store *s, const char *key, const void *value, uint64_t bytes) {
    return cdp__store_put(s, CDP_STORE_SET, key, value, bytes);
}

CDP_API cdp_status cdp_store_get(
    cdp_store *s, const char *key, void **value, uint64_t *bytes, uint32_t timeout_ms) {
    if (!value) return cdp__missing("cdp_store_get", "value");
    return cdp__store_take(s, CDP_STORE_GET, key, value, bytes, timeout_ms);
}

CDP_API cdp_status cdp_store_add(cdp_store *s, const char *key, int64_t delta, int64_t *sum) {
    int64_t number;
    return cdp__store_count(s, CDP_STORE_ADD, key, delta, sum ? sum : &number);
}

CDP_API cdp_status cdp_store_compare_set(cdp_store *s, const char *key, const void *expected,
    uint64_t expected_bytes, const void *desired, uint64_t desired_bytes, void **value,
    uint64_t *bytes) {
    cdp__store_call c;
    cdp_status status =
        cdp__store_call_make(&c, CDP_STORE_COMPARE_SET, key, expected, expected_bytes);
    if (value) *value = NULL;
    if (!value) return cdp__missing("cdp_store_compare_set", "value");
    if (status == CDP_OK && !desired && desired_bytes)
        status =
            cdp__fail(CDP_ERR_INVALID, "cdp_store_compare_set: desired is NULL (key \"%s\")", key);
    c.value[1].data = desired;
    c.value[1].bytes = desired_bytes;
    return cdp__store_call_run(s, &c, status, 0, value, bytes);
}

#ifndef CDP_NO_STORE_CALLS

CDP_API cdp_status cdp_store_append(
    cdp_store *s, const char *key, const void *value, uint64_t bytes) {
    return cdp__store_put(s, CDP_STORE_APPEND, key, value, bytes);
}

CDP_API cdp_status cdp_store_delete(cdp_store *s, const char *key, bool *was_there) {
    int64_t number;
    const cdp_status status = cdp__store_count(s, CDP_STORE_DELETE, key, 0, &number);
    if (was_there) *was_there = number == 1;
    return status;
}

CDP_API cdp_status cdp_store_queue_push(
    cdp_store *s, const char *key, const void *value, uint64_t bytes) {
    return cdp__store_put(s, CDP_STORE_QUEUE_PUSH, key, value, bytes);
}

CDP_API cdp_status cdp_store_queue_pop(
    cdp_store *s, const char *key, void **value, uint64_t *bytes, uint32_t timeout_ms) {
    if (!value) return cdp__missing("cdp_store_queue_pop", "value");
    return cdp__store_take(s, CDP_STORE_QUEUE_POP, key, value, bytes, timeout_ms);
}

CDP_API cdp_status cdp_store_queue_try_pop(
    cdp_store *s, const char *key, void **value, uint64_t *bytes) {
    cdp__store_call c;
    const cdp_status status = cdp__store_call_make(&c, CDP_STORE_QUEUE_POP, key, NULL, 0);
    if (value) *value = NULL;
    if (!value) return cdp__missing("cdp_store_queue_try_pop", "value");
    c.rq.delta = 1;
    return cdp__store_call_run(s, &c, status, 0, value, bytes);
}

CDP_API cdp_status cdp_store_queue_len(cdp_store *s, const char *key, int64_t *count) {
    if (!count) return cdp__missing("cdp_store_queue_len", "count");
    return cdp__store_count(s, CDP_STORE_QUEUE_LEN, key, 0, count);
}

CDP_API cdp_status cdp_store_barrier(
    cdp_store *s, const char *key, uint32_t count, uint32_t timeout_ms) {
    cdp__store_call c;
    const cdp_status status = cdp__store_call_make(&c, CDP_STORE_BARRIER, key, NULL, 0);
    c.rq.delta = count;
    return cdp__store_call_run(s, &c, status, timeout_ms, NULL, NULL);
}

#define CDP__WORKERS_ASK_MS 10u

CDP_API cdp_status cdp_store_wait_workers(cdp_store *s, uint32_t workers, uint32_t timeout_ms) {
    const uint32_t ms = cdp__def(timeout_ms, cdp_store_timeout(s));
    cdp__client *c;
    char seconds[24];
    int64_t come = 0;
    uint64_t deadline;
    if (!s || !workers) return cdp__missing("cdp_store_wait_workers", s ? "workers" : "store");
    if (s->destroy != cdp__client_destroy)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_store_wait_workers: only a store of cdp_tcp_store_create() counts its clients; "
            "use cdp_store_barrier()");
    c = (cdp__client *)s->self;
    for (deadline = cdp__deadline(s->os, ms);;) {
        const uint64_t now = s->os->now_ns(s->os->user);
        cdp_status st;
        c->bare = true;
        st = cdp_store_add(s, "init/", 0, &come);
        c->bare = false;
        if (st != CDP_OK || come >= (int64_t)workers) return st;
        if (now >= deadline) break;
        cdp__sleep_until(s->os, cdp__min(deadline, now + CDP__WORKERS_ASK_MS * CDP__MS));
    }
    return cdp__fail(CDP_ERR_TIMEOUT,
        "cdp_store_wait_workers: %lld of %u workers have come within %s s; start the others, or "
        "set count_me in their cdp_tcp_store_desc",
        (long long)come, workers, cdp__seconds(seconds, ms));
}

/* Copies the array and the keys to one block. */
CDP__PRIVATE cdp_status cdp__store_pack_keys(
    cdp_store *s, const cdp_store_request *rq, cdp_bytes **keys) {
    const uint64_t n = (uint64_t)rq->number;
    uint64_t total = n * sizeof **keys + 1, i;
    uint8_t *p;
    for (i = 0; i < n; ++i)
        total += rq->results[i].bytes + 1;
    *keys = (cdp_bytes *)cdp__alloc(s->os, total);
    if (!*keys) return cdp__fail_nomem("a list of keys", total);
    p = (uint8_t *)(*keys + n);
    for (i = 0; i < n; ++i) {
        const uint64_t bytes = rq->results[i].bytes;
        memcpy(p, rq->results[i].data, (size_t)bytes + 1);
        (*keys)[i].data = p;
        (*keys)[i].bytes = bytes;
        p += bytes + 1;
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_store_list_keys(cdp_store *s, cdp_bytes **keys, uint64_t *count) {
    cdp__store_call c;
    cdp_status status;
    if (!keys || !count) return cdp__missing("cdp_store_list_keys", keys ? "count" : "keys");
    *keys = NULL;
    *count = 0;
    memset(&c, 0, sizeof c);
    c.rq.op = CDP_STORE_LIST_KEYS;
    status = cdp_store_run(s, &c.rq, 0);
    if (status != CDP_OK) return status;
    status = cdp__store_pack_keys(s, &c.rq, keys);
    if (status == CDP_OK) *count = (uint64_t)c.rq.number;
    cdp_store_request_free(s, &c.rq);
    return status;
}

/* As cdp_store_clone(); waits for the connection at most connect_ms, 0: the store's timeout. */
CDP__PRIVATE CDP__COLD cdp_status cdp__store_clone_within(
    cdp_store *s, uint32_t connect_ms, cdp_store **out) {
    if (!out) return cdp__missing("cdp_store_clone", "out");
    *out = NULL;
    if (!s) return cdp__missing("cdp_store_clone", "store");
    if (s->destroy == cdp__client_destroy)
        return cdp__client_clone((const cdp__client *)s->self, connect_ms, out);
#ifndef CDP_NO_PREFIX_STORE
    if (s->destroy == cdp__prefix_destroy) {
        const cdp__prefix_store *p = (const cdp__prefix_store *)s->self;
        cdp_store *inner;
        cdp_status status = cdp__store_clone_within(p->inner, connect_ms, &inner);
        if (status != CDP_OK) return status;
        status = cdp__prefix_create(inner, p + 1, p->prefix_bytes, out);
        if (status == CDP_OK)
            ((cdp__prefix_store *)(*out)->self)->owns_inner = true;
        else
            cdp_store_destroy(inner);
        return status;
    }
#endif
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "cdp_store_clone: only TCP stores, and prefixes of them, need clones; any number of "
        "threads may use this one");
}

CDP_API cdp_status cdp_store_clone(cdp_store *s, cdp_store **out) {
    CDP__NOT_COLD();
    return cdp__store_clone_within(s, 0, out);
}

CDP_API cdp_status cdp_store_num_keys(cdp_store *s, int64_t *count) {
    cdp_store_request rq;
    cdp_status status;
    if (!count) return cdp__missing("cdp_store_num_keys", "count");
    memset(&rq, 0, sizeof rq);
    rq.op = CDP_STORE_NUM_KEYS;
    status = cdp_store_run(s, &rq, 0);
    *count = status == CDP_OK ? rq.number : 0;
    return status;
}

/* Makes a request with a list of keys. The array belongs to the store; free it with
   cdp_store_free. */
CDP__PRIVATE cdp_status cdp__store_list(cdp_store *s, cdp_store_op op, const char *const *keys,
    uint32_t count, cdp_store_request *rq, cdp_bytes **array) {
    uint32_t i;
    *array = NULL;
    memset(rq, 0, sizeof *rq);
    if (!s) return cdp__missing(cdp__store_op_name(op), "store");
    if (!keys && count) return cdp__missing(cdp__store_op_name(op), "keys");
    *array = (cdp_bytes *)cdp__alloc(s->os, (count + 1ull) * sizeof **array);
    if (!*array) return cdp__fail_nomem("the keys of a request", (count + 1ull) * sizeof **array);
    for (i = 0; i < count; ++i) {
        if (!keys[i])
            return cdp__fail(CDP_ERR_INVALID, "%s: keys[%u] is NULL", cdp__store_op_name(op), i);
        (*array)[i].data = keys[i];
        (*array)[i].bytes = strlen(keys[i]);
    }
    rq->op = op;
    rq->keys = *array;
    rq->key_count = count;
    return CDP_OK;
}

CDP_API cdp_status cdp_store_wait(
    cdp_store *s, const char *const *keys, uint32_t count, uint32_t timeout_ms) {
    cdp_store_request rq;
    cdp_bytes *array;
    cdp_status status = cdp__store_list(s, CDP_STORE_WAIT, keys, count, &rq, &array);
    if (status == CDP_OK) status = cdp_store_run(s, &rq, timeout_ms);
    cdp_store_free(s, array);
    return status;
}

CDP_API cdp_status cdp_store_check(
    cdp_store *s, const char *const *keys, uint32_t count, bool *all_there) {
    cdp_store_request rq;
    cdp_bytes *array;
    cdp_status status = all_there ? cdp__store_list(s, CDP_STORE_CHECK, keys, count, &rq, &array)
                                  : cdp__missing("cdp_store_check", "all_there");
    if (!all_there) return status;
    if (status == CDP_OK) status = cdp_store_run(s, &rq, 0);
    *all_there = status == CDP_OK && rq.number == 1;
    cdp_store_free(s, array);
    return status;
}

CDP_API cdp_status cdp_store_multi_set(
    cdp_store *s, const char *const *keys, const cdp_bytes *values, uint32_t count) {
    cdp_store_request rq;
    cdp_bytes *array;
    cdp_status status = cdp__store_list(s, CDP_STORE_MULTI_SET, keys, count, &rq, &array);
    rq.values = values;
    if (status == CDP_OK && count) status = cdp_store_run(s, &rq, 0);
    cdp_store_free(s, array);
    return status;
}

/* Copies all results to one block, so that the caller frees a single pointer. */
CDP__PRIVATE cdp_status cdp__store_pack(
    cdp_store *s, const cdp_store_request *rq, cdp_bytes *values, void **memory) {
    uint64_t total = 0;
    uint32_t i;
    uint8_t *p;
    for (i = 0; i < rq->key_count; ++i)
        total += rq->results[i].bytes + 1;
    p = (uint8_t *)cdp__alloc(s->os, total);
    if (!p) return cdp__fail_nomem("the values of many keys", total);
    *memory = p;
    for (i = 0; i < rq->key_count; ++i) {
        values[i].data = p;
        values[i].bytes = rq->results[i].bytes;
        memcpy(p, rq->results[i].data, (size_t)values[i].bytes + 1);
        p += values[i].bytes + 1;
    }
    return CDP_OK;
}

CDP_API cdp_status cdp_store_multi_get(cdp_store *s, const char *const *keys, uint32_t count,
    cdp_bytes *values, void **memory, uint32_t timeout_ms) {
    cdp_store_request rq;
    cdp_bytes *array;
    cdp_status status;
    if (memory) *memory = NULL;
    if (!memory || (!values && count))
        return cdp__missing("cdp_store_multi_get", memory ? "values" : "memory");
    status = cdp__store_list(s, CDP_STORE_MULTI_GET, keys, count, &rq, &array);
    if (status == CDP_OK && count) {
        status = cdp_store_run(s, &rq, timeout_ms);
        if (status == CDP_OK) {
            status = cdp__store_pack(s, &rq, values, memory);
            cdp_store_request_free(s, &rq);
        }
    }
    cdp_store_free(s, array);
    return status;
}

#endif /* CDP_NO_STORE_CALLS */

#endif /* CDP_STORE_IMPL_INCLUDED */
