/* elastic/quorum_api.h - a store that lives on several servers */
#ifndef CDP_SRC_ELASTIC_QUORUM_API_H
#define CDP_SRC_ELASTIC_QUORUM_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../store/interface_api.h"

#ifndef CDP_NO_CUSTOM_STORE
typedef struct cdp_quorum_store_desc {
    /* required: "HOST:PORT,HOST:PORT,HOST:PORT", 1 to 5 servers, the same text on all processes.
       Of 3 servers one may die, of 5 two. Each HOST is an address or a name, an IPv6 address in
       brackets */
    const char *servers;
    /* this process serves that one of them, counted from 1: it listens at its HOST and PORT until
       cdp_store_destroy() (default: 0, none of them) */
    uint32_t serve;
    /* of the servers: see cdp_store_server_desc and cdp_tcp_store_desc (default: none, and only
       processes of one machine) */
    const char *job_key;
    bool trust_network;
    /* of calls whose timeout_ms is 0 (default: 300000; or CDP_NO_TIMEOUT) */
    uint32_t timeout_ms;
    /* how long to try to connect (default: timeout_ms) */
    uint32_t connect_timeout_ms;
    /* how long an operation waits for a majority of the servers (default: 10000) */
    uint32_t answer_ms;
    /* last will: if the connections of this process to a majority of the servers end without
       cdp_store_destroy(), the key gets this value, if it is absent. Other processes see that if
       they have a last will under a key of the same folder (the text up to the last '/'). Copied
       (default: none) */
    const char *will_key;
    cdp_bytes will_value;
    /* (default: cdp_os_default()); must outlive the store */
    const cdp_os *os;
    /* (default: warnings and errors to stderr) */
    cdp_logger logger;
} cdp_quorum_store_desc;

/* Opens a store that several servers keep together: see A STORE THAT SURVIVES above. The first time
   all servers must be there, later a majority of them. Blocks until then, at most
   connect_timeout_ms. Any number of threads may use the store; calls on it are those on a custom
   store, but a key has at most 8189 bytes, none of them 0, and a value at most 8388304 (INVALID).
   The caller owns *out (cdp_store_destroy(); where it serves, that waits up to 5 s for other
   clients to disconnect). Errors: INVALID (the desc); NOMEM; IO (this process cannot listen);
   TIMEOUT (the text names servers that did not answer); MISMATCH (job keys differ; or the servers
   belong to several stores: start all of them again); STORE. */
CDP_MUST_CHECK CDP_API cdp_status cdp_quorum_store_create(
    const cdp_quorum_store_desc *desc, cdp_store **out);
#endif

#endif /* CDP_SRC_ELASTIC_QUORUM_API_H */
