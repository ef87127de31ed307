/* tcp/desc_api.h - what a job is started from */
#ifndef CDP_SRC_TCP_DESC_API_H
#define CDP_SRC_TCP_DESC_API_H

#include "../base/config.h"
#include "../store/interface_api.h"
#include "../group/group_api.h"

typedef struct cdp_tcp_desc {
    /* rank and world_size (required), timeout_ms, os, logger and all that holds for any group.
       hub and transport stay NULL: cdp_init() makes the transport. small_bytes, piece_bytes,
       reproducible and choices must be equal on all ranks, and are compared. */
    cdp_group_desc group;
    /* address or name of rank 0's machine (default: "127.0.0.1") */
    const char *master_addr;
    /* required (unless world_size is 1): where rank 0 serves the store */
    uint16_t master_port;
    /* Another program (torchrun's agent) serves the store there, not rank 0. PyTorch's stores do
       not tell that a client has died: ranks that wait in cdp_init() for one that dies meanwhile
       wait until init_timeout_ms. */
    bool external_store;
    /* secret of this job, the same on all ranks (default: none; one machine only) */
    const char *job_key;
    /* without a job_key, work with other machines, too: any program that reaches them can join
       in */
    bool trust_network;
    /* every byte between two ranks over TCP is covered by an authentication code; needs a job_key,
       the same on all ranks; see CHANGED BYTES above (default: no) */
    bool mac;
    /* Other ways for the ranks to find rank 0, which then takes any free port when master_port is
      0 and publishes where it listens. The first of them that is set counts; they are used
      during cdp_init() only. */

    /* a file that all ranks reach; removed in the end, see cdp_file_store_create() */
    const char *file;
    /* any store that all ranks reach; the key "<job>/meet" is used */
    cdp_store *store;
    /* give rank 0's bytes to all, as MPI_Bcast does; 0: done */
    int (*exchange)(void *user, void *bytes, uint64_t count);
    void *exchange_user;
    /* this rank listens at this numeric address only (default: see SECURITY) */
    const char *listen_addr;
    /* in a job over several machines, the interfaces over which the others reach this rank: names
       or how they begin, such as "eth0,ib"; "^docker,veth": all but these (default: all) */
    const char *interfaces;
    /* TCP connections between each pair of ranks, for networks that one does not fill: 1 to 16, the
       same on all ranks (default: 1). With `interfaces`, in turn over these, each of which must be
       in a network of its own */
    uint32_t connections;
    /* ranks other than 0 listen at a port in first_port .. last_port (default: any free one) */
    uint16_t first_port;
    /* up to here (default: first_port) */
    uint16_t last_port;
    /* ranks of one machine use TCP, too, in place of shared memory; holds for all links of a rank
       that sets it */
    bool no_shared_memory;
    /* bytes of shared memory between two ranks of one machine, each way, 64 to 2^30 (default: 256
       KiB; with no_thread 4 MiB divided by the number of peers, if that is more: a message that
       fits into it needs no further frame of the peer). The rank that connects decides */
    uint64_t ring_bytes;
    /* rank 0: the process that started this one opened listen_fd, which listens at master_port */
    bool has_listen_fd;
    /* closed with the group; it stays open if cdp_init() fails before rank 0 serves the store */
    int32_t listen_fd;
    /* prefix of this job's keys in the store: one name per job (default: "cdp") */
    const char *job;
    /* connect to all ranks in cdp_init(), as soon as their addresses are known, and not when there
       is something to send: the first operations take some round trips less. Ignored with
       external_store, and in a process that may have too few descriptors for all links */
    bool connect_all;
    /* how long to wait for all ranks (default: 300000; CDP_NO_TIMEOUT: for ever) */
    uint32_t init_timeout_ms;
    /* of cdp_init_from_env(): a process that no launcher has started is a job of one rank */
    bool alone_ok;
#ifndef CDP_NO_ENV
    /* a name of cdp_backend_register(), whose function starts in place of cdp_init(); only the
       functions that block know it (default: "tcp") */
    const char *backend;
#endif
} cdp_tcp_desc;

#endif /* CDP_SRC_TCP_DESC_API_H */
