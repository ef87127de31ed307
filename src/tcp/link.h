/* tcp/link.h - one connection and its states

   Knows: one connection and its buffers. Promises: the loop watches no socket of a closed link. */
#ifndef CDP_SRC_TCP_LINK_H
#define CDP_SRC_TCP_LINK_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../base/basics.h"
#include "../os/loop.h"
#include "../store/auth.h"
#include "handshake.h"
#include "paths.h"
#include "mac.h"
#include "memory.h"

typedef enum cdp__link_state {
    CDP__LINK_NONE,       /* never needed                                                       */
    CDP__LINK_AWAITED,    /* needed; the peer has the higher rank, so it is to connect          */
    CDP__LINK_CONNECTING, /* this rank connects: it tries the addresses of the peer             */
    CDP__LINK_CHOOSING,   /* chosen: CHOSEN is sent and TAKEN awaited, or the reverse */
    CDP__LINK_UP,
    CDP__LINK_LOST /* for good; `status` and `lost_errno` say why                        */
} cdp__link_state;

#define CDP__RX_BYTES 16384u /* read ahead: one system call for several small messages */
/* Each way, between two ranks of one machine. Of a rank that polls in frames: all its rings
   together, so that a message waits in them, not for a frame of the peer. */
#define CDP__RING_BYTES (256u * 1024u)
#define CDP__FRAME_RING_BYTES (4096u * 1024u)
/* see cdp__mesh_readable */
#define CDP__FRESH_BYTES (256u * 1024u)
/* A caller that polls memory in a busy loop polls the sockets once in this time. */
#define CDP__LOOK_NS 4000u
#define CDP__TX_BYTES 512u /* a message in pieces up to this total is sent as one piece */
/* How long to wait for a connection before checking whether the peer is alive. */
#define CDP__PROBE_FIRST_MS 50u
#define CDP__PROBE_EVERY_MS 250u
#define CDP__HELLO_MS 10000u /* time for a client to send HELLO */
#define CDP__STAGGER_MS 50u  /* delay before the next address of a peer is tried, too */

struct cdp__mesh;
struct cdp__link;

/* An attempt to connect to one of a peer's addresses. */
typedef struct cdp__path {
    struct cdp__link *link;
    cdp_addr at;
    cdp__io io;
    bool proving;  /* TCP is connected: both ends prove that they know the key */
    bool greeting; /* HELLO is being sent, then WELCOME is awaited */
    cdp__auth auth;
    uint8_t hello[CDP__HELLO_BYTES];
    uint32_t sent, got;
} cdp__path;

/* All attempts to connect to a peer, until one succeeds. */
typedef struct cdp__race {
    uint32_t count, begun, over;
    uint32_t worth; /* how informative the link's error is; see cdp__path_over() */
    cdp__timer timer;
    cdp__path paths[CDP__PATHS];
} cdp__race;

typedef struct cdp__link {
    struct cdp__mesh *mesh;
    uint32_t peer;
    uint32_t index;  /* number of this connection to the peer */
    uint32_t broken; /* number of the connection lost first */
    cdp__link_state state;
    cdp__shared *shared; /* memory for the bytes; while CHOOSING: offered */
#ifndef CDP_NO_MAC
    cdp__mac *mac; /* NULL: no authentication codes */
#endif
    uint8_t *rx;
    uint32_t rx_at, rx_used;
    cdp_status status;
    int32_t lost_errno; /* 0: the peer closed the connection */
    cdp__io io;
    cdp__race *race; /* while CONNECTING, or inviting */
    bool inviting;
    bool nonsense; /* the peer has stored or sent invalid values */
    bool was_up;
    bool cause_unsent; /* the rest of the cause waits for room in the socket */
    bool wanted;       /* a receive found no bytes: its caller will read the socket itself */
    uint32_t
        cause_sent; /* bytes of the cause that were sent to the peer; see cdp__link_send_cause */
    uint32_t refusal;
    uint32_t silent; /* consecutive checks in which the peer's host or process was silent */
    /* errno for which no memory is shared with a rank of this host, until that is logged */
    int32_t apart;
    cdp_addr addr; /* the peer's address, or the one being tried */
    cdp__io probe; /* a connection that only tests whether the peer's port refuses it */
    cdp__timer probe_timer;
    uint32_t probes;
    uint32_t hello_sent, hello_got;
    /* for a rank of this host: ready when its process has ended, even if a child process keeps
       the connection open */
    cdp__io process;
    cdp__timer process_timer;
    uint8_t hello[CDP__HELLO_BYTES];
    uint8_t answer[CDP__HELLO_BYTES];

    /* members of the first of several connections only */
    bool whole;        /* all connections have been up */
    uint64_t moved[2]; /* bytes received and sent over all connections */
    cdp__timer end_timer;
    uint64_t received_before; /* bytes received at the last check after one connection ended */
} cdp__link;

/* A connection from a rank that has not identified itself, or that has not chosen this
   connection yet. */
typedef struct cdp__incoming {
    struct cdp__mesh *mesh;
    cdp__io io;
    cdp__timer timer;
    cdp_addr from;
    bool guarded; /* must authenticate itself first, or is being refused */
    cdp__auth auth;
    uint8_t hello[CDP__HELLO_BYTES];
    uint32_t sent, got;
    bool welcome; /* accepted: WELCOME is being sent, then CHOSEN is expected */
    bool offers;  /* the peer will pass descriptors of shared memory at `pass` */
    int32_t pass;
    struct cdp__incoming *next;
} cdp__incoming;

#endif /* CDP_SRC_TCP_LINK_H */
