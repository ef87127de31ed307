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
#if defined(CDP_STORE_IMPLEMENTATION) && !defined(CDP_CORE_IMPLEMENTATION)
#define CDP_CORE_IMPLEMENTATION
#endif
#include "cdp.h"

#ifndef CDP_STORE_INCLUDED
#define CDP_STORE_INCLUDED

#define CDP_STORE_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_STORE_VERSION != CDP_VERSION
#error "cdp_store.h and cdp.h are of different versions: copy both from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "store/desc_api.h"
#include "store/store_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "store/cxx_api.h"

#endif /* CDP_STORE_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_STORE_IMPLEMENTATION)) \
    && !defined(CDP_STORE_IMPL_INCLUDED)
#define CDP_STORE_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_STORE

#include "store/addr.h"
#include "store/wire.h"
#include "store/record.h"
#include "store/number.h"
#include "store/auth.h"
#include "store/kv.h"
#include "store/request.h"
#include "store/hash_store.h"
#include "store/custom.h"
#include "store/file.h"
#include "store/buffer.h"
#include "store/auth_exchange.h"
#include "store/server.h"
#include "store/server_waits.h"
#include "store/server_commands.h"
#include "store/server_bytes.h"
#include "store/server_connections.h"
#include "store/server_create.h"
#include "store/client.h"
#include "store/client_requests.h"
#include "store/client_answers.h"
#include "store/client_connect.h"
#include "store/client_calls.h"
#include "store/prefix.h"
#include "store/calls.h"

#endif /* CDP_STORE_IMPL_INCLUDED */
