/* store/desc_api.h - what a store or a server is made from */
#ifndef CDP_SRC_STORE_DESC_API_H
#define CDP_SRC_STORE_DESC_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "interface_api.h"

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

#endif /* CDP_SRC_STORE_DESC_API_H */
