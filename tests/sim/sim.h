/*  sim.h - many processes, their sockets and their clock inside one ordinary process, repeatable
    from one number

    Each simulated process (a "node") runs the real library, blocking calls included, as a
    coroutine on a stack of its own. Its cdp_os is made of this file: memory that is counted per
    node, a virtual clock, seeded random bytes, virtual sockets with the conventions of cdp_os.
    Nothing here waits for real time and nothing here is random but by the seed: the same seed gives
    the same run, call by call; `hash` of the world tells whether it did.

    A program whose header has more for each thread than its last error defines SIM_OWN_BYTES and
    sim_own(bytes, keep) before: keep it in `bytes`, or take it from there.

    Use: include cdp.h with its implementation first, fill a sim_desc, sim_open(), add faults,
    sim_run(), look at the nodes, sim_close(). One world at a time per OS thread.

    HOW TIME PASSES
        Every os call costs a few (seeded) nanoseconds; sleeping in poll costs what it takes. When
        no node can run, the clock jumps to the next event or deadline.
    WHO RUNS
        A node runs until it sleeps in poll, until a seeded preemption inside any os call, or until
        it is killed. Among the nodes that can run the seed picks one; events that are due come
        first.
    THREADS (sim_desc.threads)
        Each thread of a node is a task: a coroutine of its own that shares the node's descriptors
        and memory. Mutexes, conditions and wake-ups are virtual, too. Tasks switch in os calls
        alone: what atomics do between two of them is the subject of ring.c and linear.c.
    SHARED MEMORY (sim_desc.memory)
        Nodes of one host map the same memory, pass descriptors, read each other's memory and watch
        each other's end.
    THE NETWORK
        Each direction of a connection has a send buffer, a receive buffer, a delay and a way to cut
        the stream into segments, all seeded. Order holds within a direction and nowhere else.
    A KILLED PROCESS
        never runs again; its memory is taken back; its kernel closes its sockets: with unread data
        by a reset, else by an orderly end after what was already sent.
    A LOST MACHINE
        says nothing any more. Nor does a partition. After 30 s of silence a connection fails with
        ETIMEDOUT, as the keepalive settings of cdp.h ask for; a connection attempt after 127 s. */
#ifndef SIM_INCLUDED
#define SIM_INCLUDED

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define SIM__ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM__ASAN 1
#endif
#endif
#ifndef SIM__ASAN
#define SIM__ASAN 0
#endif
#if SIM__ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define SIM_API __attribute__((unused)) static
#define SIM_FORMAT(f, a) __attribute__((format(printf, f, a)))
#define SIM_US 1000ull
#define SIM_MS 1000000ull
#define SIM_S 1000000000ull
#define SIM_FOREVER UINT64_MAX
#define SIM_STACK_BYTES ((size_t)(SIM__ASAN ? 1024 : 256) * 1024)
#define SIM_MAX_NODES 64
#define SIM_MAX_TASKS 256
#ifndef SIM_MAX_FDS
#define SIM_MAX_FDS 512
#endif
#define SIM_MAX_FAULTS 8
#define SIM_MAX_LINK_RULES 1024
#define SIM_SILENCE_NS (30 * SIM_S)  /* the keepalive of cdp.h, and its watch for silent machines */
#define SIM_CONNECT_NS (127 * SIM_S) /* what Linux takes to give up on an unanswered connect */

/* ---- >>switch -------------------------------------------------------------------------------- */

/* From one stack to another. swapcontext() does it everywhere, with two system calls to save a
   signal mask that nobody changes; where we know the registers that a function has to keep, we
   do it in a few instructions. */
#if defined(__x86_64__)
typedef struct sim__context {
    void *sp;
} sim__context;

/* not static: the assembler does not know C's names */
void sim__switch(sim__context *from, sim__context *to);
__asm__(".text\n"
        ".globl sim__switch\n"
        ".type sim__switch, @function\n"
        "sim__switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq "
        "%r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq (%rsi), %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size sim__switch, . - sim__switch\n");

SIM_API void sim__context_make(sim__context *c, void *stack, size_t bytes, void (*func)(void)) {
    void **sp = (void **)((char *)stack + bytes);
    memset(sp - 8, 0, 8 * sizeof *sp);
    /* what `ret` pops; above it the return address that func will never use */
    memcpy(sp - 2, &func, sizeof func);
    c->sp = sp - 8;
}
#else
typedef struct sim__context {
    ucontext_t u;
} sim__context;

SIM_API void sim__switch(sim__context *from, sim__context *to) {
    swapcontext(&from->u, &to->u);
}

SIM_API __attribute__((noinline)) void sim__context_make(
    sim__context *c, void *stack, size_t bytes, void (*func)(void)) {
    if (getcontext(&c->u) != 0) abort();
    c->u.uc_stack.ss_sp = stack;
    c->u.uc_stack.ss_size = bytes;
    c->u.uc_link = NULL;
    makecontext(&c->u, func, 0);
}
#endif

/* ---- >>types --------------------------------------------------------------------------------- */

typedef struct sim_world sim_world;
typedef struct sim_node sim_node;

/* How rough the world is. Filled by sim_noise_calm() or sim_noise_wild(), or by hand. */
typedef struct sim_noise {
    uint32_t cost_ns;      /* an os call takes 20 ns .. this                             */
    uint32_t preempt_1024; /* chance of losing the processor in an os call, of 1024      */
    uint32_t late_1024;    /* chance that a node that can run starts late, of 1024       */
    uint64_t late_ns;      /* ... by up to this                                          */
    uint64_t delay_min_ns, delay_max_ns; /* of a segment, chosen per direction               */
    uint32_t stall_1024; /* chance that a segment takes stall_ns more (a lost packet)  */
    uint64_t stall_ns;
    uint32_t split_1024; /* chance that a segment, a send or a recv is cut at any byte */
    uint32_t buffer_min, buffer_max; /* bytes of a send or receive buffer                    */
    uint32_t spurious_1024;    /* chance that poll returns 0 early (a signal)                */
    uint32_t drop_unread_1024; /* chance that a reset also loses what had already arrived    */
    uint64_t start_ns;         /* nodes start up to this late                                */
} sim_noise;

typedef enum sim_fault_kind {
    SIM_FAULT_NONE = 0,
    SIM_FAULT_KILL,      /* node a: SIGKILL                                                   */
    SIM_FAULT_STOP,      /* node a: SIGSTOP, for for_ns                                       */
    SIM_FAULT_VANISH,    /* node a, and those of set_a: their machine is gone                 */
    SIM_FAULT_CUT,       /* some connection between two nodes (filled into a, b) is reset     */
    SIM_FAULT_CUT_LINK,  /* all connections between nodes a and b are reset                   */
    SIM_FAULT_PARTITION, /* nodes of set_a and nodes of set_b do not reach each other for for_ns */
    SIM_FAULT_NOMEM      /* node a: allocation number at_count returns NULL (by another trigger:
                            the at_count-th allocation after it)                              */
} sim_fault_kind;

/* What makes a fault happen. */
typedef enum sim_trigger {
    SIM_ON_TIME_OR_COUNT, /* at_count if it is not 0, else at_ns                             */
    SIM_ON_OPS,           /* node `watch` completes its trigger_count-th sim_op_done()        */
    SIM_ON_BYTES,         /* trigger_count bytes from node `watch` have reached `watch_to`    */
    SIM_ON_TIME           /* at_ns, also for kinds that count                                 */
} sim_trigger;

typedef struct sim_fault {
    sim_fault_kind kind;
    int32_t a, b;
    uint64_t set_a, set_b; /* PARTITION, VANISH: bit i is node i */
    bool one_way;          /* PARTITION: from set_a to set_b alone */
    uint64_t at_ns;        /* virtual time since the start, or                                  */
    uint64_t at_count;     /* KILL, STOP: at this os call of node a, from 1; NOMEM: allocation  */
    uint64_t for_ns;       /* SIM_FOREVER: it stays so                                          */
    sim_trigger trigger;
    uint32_t watch, watch_to;
    uint64_t trigger_count;
    bool happened;
    uint64_t happened_ns;
    uint32_t tries;
} sim_fault;

/* A chosen link instead of a seeded one: bytes from node `from` to node `to`. Zero fields keep what
   the noise says; of several rules for a link the last one that sets a field counts. */
typedef struct sim_link_rule {
    uint32_t from, to;
    uint64_t since_ns, until_ns; /* virtual time since the start (until_ns 0: for ever)       */
    uint64_t delay_ns;           /* of every segment sent in that time                        */
    uint64_t resend_ns;          /* so long after a partition what it held back comes         */
    uint32_t split_bytes;        /* longest segment                                           */
    uint32_t buffer_bytes;       /* send and receive buffer of connections made in that time  */
} sim_link_rule;

typedef struct sim_desc {
    uint64_t seed;
    uint32_t node_count;
    void (*main)(sim_node *node, void *arg);
    void *arg;
    void (*looks)(sim_world *world); /* after every step of the world; may be NULL */
    sim_noise noise;
    bool one_host; /* all nodes share 127.0.0.1; else node i is 10.0.0.(i+1), */
    /* or, if this is set, 10.0.0.(hosts[i]+1): several nodes may share a host */
    const uint8_t *hosts;
    bool in_order; /* of the nodes that can run the one runs that waited longest: no seed needed */
    bool threads, memory;       /* what the os of each node offers */
    bool clocks;                /* the clocks of the nodes differ by hours: sim_time_of() */
    void (*look)(sim_world *w); /* after each piece of a run; NULL: none */
    FILE *trace;                /* NULL: none */
    uint64_t limit_ns;          /* virtual time after which the run counts as hanging */
    uint64_t limit_steps;
} sim_desc;

typedef enum sim_node_state {
    SIM_READY,
    SIM_WAITING,
    SIM_DONE,
    SIM_DEAD
} sim_node_state;

typedef struct sim__sock sim__sock;
typedef struct sim__block sim__block;

/* A thread. */
typedef struct sim_task {
    sim_node *node;
    struct sim_task *next; /* of the node */
    sim_node_state state;
    bool queued;          /* stands in the world's ready list */
    uint64_t ready_order; /* since when */
    /* coroutine */
    void (*func)(void *arg);
    void *arg;
    sim__context ctx;
    void *stack;
    void *fake_stack;
    cdp_error error; /* what is cdp_last_error() while this task runs */
#ifdef SIM_OWN_BYTES
    uint8_t own[SIM_OWN_BYTES]; /* what else a thread has for itself: see sim_own() */
#endif
    /* while WAITING */
    const void *waits_for; /* a mutex, a condition, a task; NULL: poll */
    uint64_t wake_at;      /* deadline */
    bool woken;
} sim_task;

typedef struct sim__memory {
    uint8_t *at;
    uint64_t bytes;
    uint32_t users; /* descriptors and mappings */
} sim__memory;

typedef struct sim__mapping {
    sim__memory *memory;
    uint64_t unmapped;         /* of its first bytes */
    struct sim__mapping *next; /* of the node */
} sim__mapping;

struct sim_node {
    cdp_os os; /* hand this to the library */
    sim_world *world;
    uint32_t id, host;
    sim_node_state state; /* READY until it is DONE or DEAD */
    bool stopped;
    uint64_t os_random; /* state of the generator behind os.random */
    uint64_t clock_ns;  /* its clock is ahead of the world's by this */
    sim_task task;      /* its first thread, which leads to the others */
    sim__mapping *mappings;
    sim__sock *fds[SIM_MAX_FDS];
    uint32_t fd_count; /* open ones */
    uint32_t fd_top;   /* none is open at or above */
    /* memory */
    sim__block *blocks;
    uint64_t block_count, block_bytes, alloc_calls;
    /* counters, and what a report shows */
    uint64_t calls, started_ns, ended_ns;
    uint64_t ops_done; /* sim_op_done() */
    const char *last_call;
    char doing[160]; /* sim_doing() */
};

typedef struct sim__pipe {
    uint8_t *buf;
    uint64_t room; /* ring size = send + receive buffer */
    uint64_t send_room, recv_room;
    uint64_t written, arrived, read; /* stream positions: read <= arrived <= written */
    uint64_t delay_ns, gap_ns, free_at;
    uint32_t from, to; /* nodes */
    bool on_the_way;   /* a delivery event is queued */
    bool fin;          /* the writer closed: an end follows the last byte */
} sim__pipe;

typedef enum sim__sock_state {
    SIM__LISTEN,
    SIM__CONNECTING,
    SIM__HANDSHAKE,
    SIM__OPEN,
    /* what is no TCP socket */
    SIM__WAKE,   /* a flag that wake_set sets */
    SIM__PASS,   /* a connection that carries descriptors */
    SIM__MEMORY, /* memory to be mapped */
    SIM__PROCESS /* of another node: its end */
} sim__sock_state;

#define SIM__PASS_MAX 4u

/* Descriptors on their way: what each stands for. */
typedef struct sim__parcel {
    sim__sock *what[SIM__PASS_MAX];
    uint32_t n;
    struct sim__parcel *next;
} sim__parcel;

struct sim__sock {
    sim_node *node;
    int32_t fd; /* -1: closed by its process, or not yet accepted */
    uint32_t id;
    sim__sock_state state;
    bool gone;   /* the process let go of it */
    bool reset;  /* dead: nothing comes or goes */
    bool eof;    /* the end of the stream arrived */
    int32_t err; /* to be reported once */
    uint16_t want;
    sim_task *watcher; /* it is in poll, and watches this */
    cdp_addr local, remote;
    uint32_t target_host;                     /* CONNECTING */
    sim__sock *peer;                          /* the other end */
    sim__sock *listener;                      /* HANDSHAKE: where it will be accepted */
    sim__sock *backlog, *backlog_last, *next; /* LISTEN: accepted next; next in a backlog */
    sim__pipe out;                            /* what this end wrote */
    bool set;                                 /* WAKE */
    sim__sock *origin;                        /* WAKE: whose flag this descriptor means */
    bool named;                               /* LISTEN, for PASS: has this name */
    uint8_t name[12];
    sim__parcel *parcels;   /* PASS: not received yet */
    sim__memory *memory;    /* MEMORY */
    const sim_node *target; /* PROCESS */
};

typedef enum sim__event_kind {
    SIM__EV_DELIVER,
    SIM__EV_SYN,
    SIM__EV_SYNACK,
    SIM__EV_ACK,
    SIM__EV_REFUSE,
    SIM__EV_RESET,
    SIM__EV_SILENCE,
    SIM__EV_UNREACH,
    SIM__EV_WAKE,
    SIM__EV_FAULT,
    SIM__EV_CONTINUE
} sim__event_kind;

typedef struct sim__event {
    uint64_t at, order;
    sim__event_kind kind;
    uint32_t index; /* of a fault, of a node */
    sim__sock *sock;
    sim_task *task; /* WAKE */
} sim__event;

struct sim_world {
    sim_desc desc;
    uint64_t now, start_ns, steps, hash;
    uint64_t schedule, network; /* generators: who runs and when; what the network does */
    uint32_t n;
    sim_node *nodes;
    sim_task *ready[SIM_MAX_TASKS];
    uint32_t ready_count, task_count;
    uint64_t *blocked_until; /* [a * n + b] */
    bool *lost;              /* machine of node i is gone */
    sim__event *heap;
    uint64_t heap_n, heap_room, order;
    sim__sock **socks;
    uint32_t sock_n, sock_room;
    uint16_t next_port;
    sim_fault faults[SIM_MAX_FAULTS];
    uint32_t fault_count;
    sim_link_rule rules[SIM_MAX_LINK_RULES];
    uint32_t rule_count;
    uint64_t *bytes_on; /* [a * n + b]: reached b from a */
    sim_node *running;
    sim_task *task; /* of that node */
    sim__context scheduler;
    void *fake_stack;
    const void *real_stack;
    size_t real_stack_bytes;
    uint64_t soonest; /* no sleeping node has an earlier deadline */
    /* `unfinished` is to be worked out again; somebody still has something to do */
    bool recount, unfinished;
    uint64_t switches, bytes_moved;
    bool failed; /* hang, misuse of the os interface, damaged memory */
    bool hang;
    char failure[4000];
};

/* ---- >>random -------------------------------------------------------------------------------- */

/* splitmix64 (Steele, Lea, Flood): any 64-bit state is fine, neighbouring seeds give unrelated
   streams. */
SIM_API uint64_t sim_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* lo .. hi, both included */
SIM_API uint64_t sim_between(uint64_t *state, uint64_t lo, uint64_t hi) {
    return hi <= lo ? lo : lo + sim_random(state) % (hi - lo + 1);
}

SIM_API bool sim_chance(uint64_t *state, uint32_t of_1024) {
    return of_1024 && (sim_random(state) & 1023) < of_1024;
}

/* lo .. hi with every order of magnitude equally likely */
SIM_API uint64_t sim_log_between(uint64_t *state, uint64_t lo, uint64_t hi) {
    uint32_t a = 0, b = 0;
    uint64_t v;
    while (a < 63 && (lo >> (a + 1)))
        ++a;
    while (b < 63 && (hi >> (b + 1)))
        ++b;
    v = 1ull << sim_between(state, a, b);
    v += sim_random(state) % v;
    if (v < lo) return lo;
    return v > hi ? hi : v;
}

SIM_API uint64_t sim_stream(uint64_t seed, uint64_t purpose) {
    uint64_t s = seed ^ (purpose * 0xd6e8feb86659fd93ull);
    sim_random(&s);
    return sim_random(&s);
}

SIM_API sim_noise sim_noise_calm(void) {
    sim_noise n;
    memset(&n, 0, sizeof n);
    n.cost_ns = 40;
    n.delay_min_ns = n.delay_max_ns = 20 * SIM_US;
    n.buffer_min = n.buffer_max = 65536;
    return n;
}

/* Every kind of trouble that is no fault: everything must still succeed in it. `tiny`: buffers
   of a few bytes. */
SIM_API sim_noise sim_noise_wild(uint64_t seed, bool tiny) {
    uint64_t s = sim_stream(seed, 77);
    sim_noise n;
    memset(&n, 0, sizeof n);
    n.cost_ns = (uint32_t)sim_log_between(&s, 20, tiny ? 200 : 2000);
    n.preempt_1024 = (uint32_t)(sim_chance(&s, 512) ? 0 : sim_log_between(&s, 1, 300));
    n.late_1024 = (uint32_t)(sim_chance(&s, 512) ? 0 : sim_log_between(&s, 1, 700));
    n.late_ns = sim_log_between(&s, SIM_US, tiny ? 2 * SIM_US : 3 * SIM_MS);
    /* tiny: every byte pays it */
    n.delay_min_ns = sim_log_between(&s, SIM_US, tiny ? 3 * SIM_US : 50 * SIM_US);
    n.delay_max_ns = tiny ? 2 * n.delay_min_ns : sim_log_between(&s, n.delay_min_ns, 5 * SIM_MS);
    n.stall_1024 = (uint32_t)(sim_chance(&s, 700) || tiny ? 0 : sim_log_between(&s, 1, 12));
    n.stall_ns = sim_log_between(&s, SIM_MS, 60 * SIM_MS);
    n.split_1024 = (uint32_t)(sim_chance(&s, 300) ? 0 : sim_log_between(&s, 4, 900));
    n.buffer_min = (uint32_t)(tiny ? 1 : sim_log_between(&s, 256, 16384));
    n.buffer_max =
        (uint32_t)(tiny ? sim_log_between(&s, 1, 64) : sim_log_between(&s, n.buffer_min, 65536));
    n.spurious_1024 = (uint32_t)(sim_chance(&s, 512) ? 0 : sim_log_between(&s, 1, 100));
    n.drop_unread_1024 = (uint32_t)(sim_chance(&s, 512) ? 0 : 300);
    n.start_ns = sim_chance(&s, 512) ? 0 : sim_log_between(&s, SIM_US, 100 * SIM_MS);
    return n;
}

/* ---- >>trace --------------------------------------------------------------------------------- */

SIM_API void sim__fold(sim_world *w, uint64_t v) {
    w->hash = (w->hash ^ v) * 0x100000001b3ull;
    w->hash ^= w->hash >> 29;
}

SIM_API SIM_FORMAT(3, 4) void sim__trace_text(
    sim_world *w, const sim_node *node, const char *f, ...) {
    const uint64_t t = w->now - w->start_ns;
    va_list ap;
    fprintf(w->desc.trace, "[%10llu.%03llu us] ", (unsigned long long)(t / 1000),
        (unsigned long long)(t % 1000));
    if (node)
        fprintf(w->desc.trace, "n%-2u ", node->id);
    else
        fprintf(w->desc.trace, "    ");
    va_start(ap, f);
    vfprintf(w->desc.trace, f, ap);
    va_end(ap);
    fputc('\n', w->desc.trace);
}
#define sim__trace(w, node, ...) \
    ((w)->desc.trace ? sim__trace_text((w), (node), __VA_ARGS__) : (void)0)

/* A line of the scenario's own in the trace. */
#define sim_say(node, ...) sim__trace((node)->world, (node), __VA_ARGS__)

SIM_API SIM_FORMAT(2, 3) void sim__fail(sim_world *w, const char *f, ...) {
    va_list ap;
    if (w->failed) return; /* the first one is the one to look at */
    w->failed = true;
    va_start(ap, f);
    vsnprintf(w->failure, sizeof w->failure, f, ap);
    va_end(ap);
    sim__trace(w, w->running, "FAILURE: %s", w->failure);
}

/* What the node is at, for reports. */
SIM_API SIM_FORMAT(2, 3) void sim_doing(sim_node *node, const char *f, ...) {
    va_list ap;
    va_start(ap, f);
    vsnprintf(node->doing, sizeof node->doing, f, ap);
    va_end(ap);
    sim__trace(node->world, node, "-- %s", node->doing);
}

/* ---- >>events -------------------------------------------------------------------------------- */

SIM_API bool sim__before(const sim__event *a, const sim__event *b) {
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

SIM_API void sim__push(sim_world *w, sim__event e) {
    uint64_t i;
    if (w->heap_n == w->heap_room) {
        w->heap_room = w->heap_room ? 2 * w->heap_room : 256;
        w->heap = (sim__event *)realloc(w->heap, (size_t)(w->heap_room * sizeof *w->heap));
        if (!w->heap) abort();
    }
    for (i = w->heap_n++; i && sim__before(&e, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = e;
}

SIM_API void sim__at(
    sim_world *w, uint64_t at, sim__event_kind kind, sim__sock *sock, uint32_t index) {
    const sim__event e = {at, ++w->order, kind, index, sock, NULL};
    sim__push(w, e);
}

SIM_API sim__event sim__pop(sim_world *w) {
    const sim__event top = w->heap[0], e = w->heap[--w->heap_n];
    uint64_t i = 0, child;
    while ((child = 2 * i + 1) < w->heap_n) {
        if (child + 1 < w->heap_n && sim__before(&w->heap[child + 1], &w->heap[child])) ++child;
        if (!sim__before(&w->heap[child], &e)) break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = e;
    return top;
}

/* ---- >>coroutines ---------------------------------------------------------------------------- */

/* Stacks are kept from world to world: mapping one costs more than a short run. The page below
   each faults. */
SIM_API void *sim__stack_get(bool give_back, void *stack) {
    static void *spare[SIM_MAX_TASKS];
    static uint32_t n;
    char *p;
    if (give_back) {
#if SIM__ASAN
        __asan_unpoison_memory_region(stack, SIM_STACK_BYTES);
#endif
        if (n < SIM_MAX_TASKS)
            spare[n++] = stack;
        else
            munmap((char *)stack - 4096, SIM_STACK_BYTES + 4096);
        return NULL;
    }
    if (n) return spare[--n];
    p = (char *)mmap(
        NULL, SIM_STACK_BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == (char *)MAP_FAILED || mprotect(p, 4096, PROT_NONE) != 0) abort();
    return p + 4096;
}

SIM_API sim_world *sim__starting; /* makecontext passes no pointers */

SIM_API void sim__queue(sim_world *w, sim_task *t) {
    if (t->queued || t->node->stopped || t->state != SIM_READY) return;
    if (w->ready_count == SIM_MAX_TASKS) abort();
    t->queued = true;
    t->ready_order = ++w->order;
    w->ready[w->ready_count++] = t;
}

SIM_API void sim__unqueue(sim_world *w, sim_task *t) {
    uint32_t i;
    if (!t->queued) return;
    for (i = 0; w->ready[i] != t; ++i) {
    }
    w->ready[i] = w->ready[--w->ready_count];
    t->queued = false;
}

/* Back to the scheduler; returns when the task is picked again, and never for one that is
   finished or dead. */
SIM_API void sim__leave(sim_node *node) {
    sim_world *w = node->world;
    sim_task *t = w->task;
    t->error = *cdp__error_slot();
#ifdef SIM_OWN_BYTES
    sim_own(t->own, true);
#endif
#if SIM__ASAN
    __sanitizer_start_switch_fiber(
        t->state == SIM_DONE || t->state == SIM_DEAD ? NULL : &t->fake_stack, w->real_stack,
        w->real_stack_bytes);
#endif
    sim__switch(&t->ctx, &w->scheduler);
#if SIM__ASAN
    __sanitizer_finish_switch_fiber(t->fake_stack, &w->real_stack, &w->real_stack_bytes);
#endif
}

/* Until somebody wakes this task, or the deadline. */
SIM_API void sim__sleep(sim_node *node, const void *waits_for, uint64_t deadline_ns) {
    sim_world *w = node->world;
    sim_task *t = w->task;
    t->waits_for = waits_for;
    t->wake_at = deadline_ns;
    if (deadline_ns < w->soonest) w->soonest = deadline_ns;
    t->woken = false;
    t->state = SIM_WAITING;
    sim__leave(node);
    t->waits_for = NULL;
}

SIM_API void sim__wake(sim_world *w, sim_task *t);

SIM_API void sim__wake_waiters(sim_node *node, const void *of) {
    sim_task *t;
    for (t = &node->task; t; t = t->next)
        if (t->state == SIM_WAITING && t->waits_for == of) sim__wake(node->world, t);
}

SIM_API void sim__node_over(sim_node *node);

SIM_API void sim__task_main(void) {
    sim_world *w = sim__starting;
    sim_task *t = w->task;
    sim_node *node = t->node;
#if SIM__ASAN
    __sanitizer_finish_switch_fiber(NULL, &w->real_stack, &w->real_stack_bytes);
#endif
    if (t->func)
        t->func(t->arg);
    else
        w->desc.main(node, w->desc.arg);
    t->state = SIM_DONE;
    if (!t->func) sim__node_over(node);
    sim__trace(w, node, t->func ? "a thread ends" : "ends");
    sim__wake_waiters(node, t);
    sim__leave(node);
    abort();
}

SIM_API void sim__task_make(sim_node *node, sim_task *t) {
    t->node = node;
    cdp__error_clear(&t->error, CDP_OK);
    t->stack = sim__stack_get(false, NULL);
    sim__context_make(&t->ctx, t->stack, SIM_STACK_BYTES, sim__task_main);
    if (++node->world->task_count > SIM_MAX_TASKS) abort();
}

SIM_API void sim__resume(sim_world *w, sim_task *t) {
    w->running = t->node;
    w->task = t;
    ++w->switches;
    sim__fold(w, w->now);
    sim__fold(w, t->node->id);
    *cdp__error_slot() = t->error;
#ifdef SIM_OWN_BYTES
    sim_own(t->own, false);
#endif
    sim__starting = w;
#if SIM__ASAN
    __sanitizer_start_switch_fiber(&w->fake_stack, t->stack, SIM_STACK_BYTES);
#endif
    sim__switch(&w->scheduler, &t->ctx);
#if SIM__ASAN
    __sanitizer_finish_switch_fiber(w->fake_stack, NULL, NULL);
#endif
    w->running = NULL;
    w->task = NULL;
    if (t->state == SIM_READY) sim__queue(w, t);
    if (w->desc.look) w->desc.look(w);
}

/* ---- >>memory -------------------------------------------------------------------------------- */

struct sim__block { /* in front of each allocation; 64 bytes, so that alignment is kept */
    sim__block *next, *prev;
    uint64_t bytes, magic, number, pad[3];
};

#define SIM__MAGIC 0x5ca1ab1e0ddba11ull
#define SIM__TAIL (SIM__ASAN ? 0u : 16u) /* bytes behind each allocation that nobody may touch */

SIM_API void sim__block_check(sim_world *w, const sim_node *node, const sim__block *b) {
    const uint8_t *tail = (const uint8_t *)(b + 1) + b->bytes;
    const uint32_t tail_bytes = SIM__TAIL;
    uint32_t i;
    if (b->magic != SIM__MAGIC)
        sim__fail(w,
            "node %u: memory in front of an allocation was overwritten, or it was freed twice",
            node->id);
    for (i = 0; i < tail_bytes; ++i)
        if (tail[i] != 0xb7)
            sim__fail(w, "node %u: memory behind allocation %llu (%llu bytes) was overwritten",
                node->id, (unsigned long long)b->number, (unsigned long long)b->bytes);
}

SIM_API void sim__os_free(void *user, void *p) {
    sim_node *node = (sim_node *)user;
    sim__block *b;
    if (!p) return;
    b = (sim__block *)p - 1;
    sim__block_check(node->world, node, b);
    if (b->magic != SIM__MAGIC) return;
    if (b->next) b->next->prev = b->prev;
    *(b->prev ? &b->prev->next : &node->blocks) = b->next;
    node->block_count--;
    node->block_bytes -= b->bytes;
    b->magic = 0;
    memset(p, 0xdd, (size_t)(b->bytes < 4096 ? b->bytes : 4096));
    free(b);
}

SIM_API void *sim__os_alloc(void *user, uint64_t bytes) {
    sim_node *node = (sim_node *)user;
    sim_world *w = node->world;
    void *raw = NULL;
    sim__block *b;
    uint32_t i;
    ++node->alloc_calls;
    for (i = 0; i < w->fault_count; ++i) {
        sim_fault *f = &w->faults[i];
        if (f->kind != SIM_FAULT_NOMEM || f->a != (int32_t)node->id
            || f->at_count != node->alloc_calls)
            continue;
        if (f->trigger != SIM_ON_TIME_OR_COUNT && !f->happened) continue;
        f->happened = true;
        f->happened_ns = w->now;
        sim__trace(w, node, "FAULT: allocation %llu of %llu bytes fails",
            (unsigned long long)node->alloc_calls, (unsigned long long)bytes);
        return NULL;
    }
    if (bytes > 1ull << 40
        || posix_memalign(&raw, 64, (size_t)(sizeof *b + bytes + SIM__TAIL)) != 0)
        return NULL;
    b = (sim__block *)raw;
    b->bytes = bytes;
    b->magic = SIM__MAGIC;
    b->number = node->alloc_calls;
    b->prev = NULL;
    b->next = node->blocks;
    if (b->next) b->next->prev = b;
    node->blocks = b;
    node->block_count++;
    node->block_bytes += bytes;
    memset(b + 1, 0xa5, (size_t)(bytes < 4096 ? bytes : 4096)); /* nobody may expect zeros */
    memset((uint8_t *)(b + 1) + bytes, 0xb7, SIM__TAIL);
    return b + 1;
}

SIM_API void sim__free_all(sim_node *node) {
    while (node->blocks)
        sim__os_free(node, node->blocks + 1);
}

/* Memory of the scenario itself: a kill takes it back too. */
SIM_API void *sim_alloc(sim_node *node, uint64_t bytes) {
    const uint64_t calls = node->alloc_calls;
    void *p;
    node->alloc_calls = UINT64_MAX - 1; /* not what an injected failure counts */
    p = sim__os_alloc(node, bytes ? bytes : 1);
    node->alloc_calls = calls;
    if (!p) abort();
    memset(p, 0, (size_t)bytes);
    return p;
}

SIM_API void sim_free(sim_node *node, void *p) {
    sim__os_free(node, p);
}

/* ---- >>sockets ------------------------------------------------------------------------------- */

SIM_API cdp_addr sim_host_addr(const sim_world *w, uint32_t host, uint16_t port) {
    cdp_addr a;
    memset(&a, 0, sizeof a);
    a.family = 4;
    a.port = port;
    a.ip[0] = w->desc.one_host ? 127 : 10;
    a.ip[2] = (uint8_t)(w->desc.one_host ? 0 : (host + 1) >> 8);
    a.ip[3] = (uint8_t)(w->desc.one_host ? 1 : host + 1);
    return a;
}

/* Which host an address means when `from` uses it, or -1. */
SIM_API int64_t sim__host_of(const sim_world *w, const sim_node *from, const cdp_addr *a) {
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255};
    static const uint8_t loop6[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    const uint8_t *ip = a->family == 6 ? a->ip + 12 : a->ip;
    uint32_t host;
    if (a->family == 6 && memcmp(a->ip, loop6, 16) == 0) return from->host;
    if (a->family == 6 && memcmp(a->ip, mapped, 12) != 0) return -1;
    if (ip[0] == 127) return from->host;
    host = (uint32_t)ip[2] * 256 + ip[3];
    return ip[0] == 10 && ip[1] == 0 && host >= 1 && host <= w->n && !w->desc.one_host
        ? (int64_t)host - 1
        : -1;
}

/* Until when no byte passes between two nodes: 0 when it does, SIM_FOREVER when it never will. */
SIM_API uint64_t sim__blocked(const sim_world *w, const sim_node *a, const sim_node *b) {
    uint64_t until;
    if (w->lost[a->id] || w->lost[b->id]) return SIM_FOREVER;
    until = w->blocked_until[a->id * w->n + b->id];
    return until > w->now ? until : 0;
}

SIM_API sim__sock *sim__sock_new(sim_world *w, sim_node *node, sim__sock_state state) {
    sim__sock *s = (sim__sock *)calloc(1, sizeof *s);
    if (!s) abort();
    if (w->sock_n == w->sock_room) {
        w->sock_room = w->sock_room ? 2 * w->sock_room : 64;
        w->socks = (sim__sock **)realloc(w->socks, w->sock_room * sizeof *w->socks);
        if (!w->socks) abort();
    }
    s->id = w->sock_n;
    w->socks[w->sock_n++] = s;
    s->node = node;
    s->fd = -1;
    s->state = state;
    return s;
}

/* What the rules say of a link now; zero where they say nothing. */
SIM_API sim_link_rule sim__rule_of(const sim_world *w, uint32_t from, uint32_t to) {
    const uint64_t t = w->now - w->start_ns;
    sim_link_rule all;
    uint32_t i;
    memset(&all, 0, sizeof all);
    for (i = 0; i < w->rule_count; ++i) {
        const sim_link_rule *r = &w->rules[i];
        if (r->from != from || r->to != to || t < r->since_ns) continue;
        if (r->until_ns && t >= r->until_ns) continue;
        if (r->delay_ns) all.delay_ns = r->delay_ns;
        if (r->resend_ns) all.resend_ns = r->resend_ns;
        if (r->split_bytes) all.split_bytes = r->split_bytes;
        if (r->buffer_bytes) all.buffer_bytes = r->buffer_bytes;
    }
    return all;
}

/* Small buffers come with small delays, or a few kilobytes would outlast every deadline. */
SIM_API void sim__pipe_open(sim_world *w, sim__pipe *p, uint32_t from, uint32_t to) {
    const sim_link_rule rule = sim__rule_of(w, from, to);
    const sim_noise *o = &w->desc.noise;
    uint64_t limit;
    p->send_room = sim_log_between(&w->network, o->buffer_min, o->buffer_max);
    p->recv_room = sim_log_between(&w->network, o->buffer_min, o->buffer_max);
    p->from = from;
    p->to = to;
    if (rule.buffer_bytes) p->send_room = p->recv_room = rule.buffer_bytes;
    p->room = p->send_room + p->recv_room;
    limit = 20 * SIM_US + SIM_US * (p->send_room < p->recv_room ? p->send_room : p->recv_room);
    p->delay_ns = sim_log_between(&w->network, o->delay_min_ns, o->delay_max_ns);
    if (p->delay_ns > limit) p->delay_ns = limit;
    p->gap_ns = p->delay_ns / 16;
}

SIM_API uint64_t sim__delay(sim_world *w, const sim__pipe *p) {
    const sim_noise *o = &w->desc.noise;
    uint64_t t =
        p->delay_ns + (o->split_1024 ? sim_random(&w->network) % (p->delay_ns / 4 + 1) : 0);
    const uint64_t chosen = w->rule_count ? sim__rule_of(w, p->from, p->to).delay_ns : 0;
    if (chosen) return chosen;
    if (sim_chance(&w->network, o->stall_1024)) t += sim_random(&w->network) % (o->stall_ns + 1);
    return t;
}

SIM_API int32_t sim__fd_open(sim_node *node, sim__sock *s) {
    int32_t fd;
    /* the lowest free one, as POSIX does: a stale use is seen */
    for (fd = 3; fd < SIM_MAX_FDS && node->fds[fd]; ++fd) {
    }
    if (fd == SIM_MAX_FDS) return -EMFILE;
    node->fds[fd] = s;
    node->fd_count++;
    if (node->fd_top <= (uint32_t)fd) node->fd_top = (uint32_t)fd + 1;
    s->fd = fd;
    return fd;
}

SIM_API sim__sock *sim__fd(sim_node *node, int32_t fd, const char *call) {
    if (fd >= 0 && fd < SIM_MAX_FDS && node->fds[fd]) return node->fds[fd];
    sim__fail(node->world, "node %u: %s on descriptor %d, which is not open (doing: %s)", node->id,
        call, (int)fd, node->doing);
    return NULL;
}

SIM_API uint32_t sim__got_other(const sim__sock *s) {
    switch (s->state) {
    case SIM__WAKE: return s->set ? CDP_IO_READ : 0;
    case SIM__PASS: return CDP_IO_WRITE | (s->parcels || s->peer->gone ? CDP_IO_READ : 0);
    case SIM__PROCESS: return s->target->state != SIM_READY ? CDP_IO_READ : 0;
    default: return 0;
    }
}

/* What poll would say. A connection that is still being made says nothing. */
SIM_API uint16_t sim__got(const sim__sock *s, uint16_t want) {
    uint32_t got = 0;
    if (s->state == SIM__LISTEN)
        return (uint16_t)(s->backlog && (want & CDP_IO_READ) ? CDP_IO_READ : 0);
    if (s->reset) return (uint16_t)(CDP_IO_ERROR | (want & (CDP_IO_READ | CDP_IO_WRITE)));
    if (s->state > SIM__OPEN) return (uint16_t)(sim__got_other(s) & want);
    if (s->state != SIM__OPEN) return 0;
    if (s->peer->out.arrived > s->peer->out.read || s->eof) got |= CDP_IO_READ;
    if (s->out.written - s->out.arrived < s->out.send_room) got |= CDP_IO_WRITE;
    return (uint16_t)(got & want);
}

/* A task that can run may still be kept waiting by its machine. */
SIM_API void sim__wake(sim_world *w, sim_task *t) {
    if (t->state != SIM_WAITING || t->woken) return;
    t->woken = true;
    if (sim_chance(&w->schedule, w->desc.noise.late_1024)) {
        const uint64_t at = w->now + sim_random(&w->schedule) % (w->desc.noise.late_ns + 1);
        const sim__event e = {at, ++w->order, SIM__EV_WAKE, t->node->id, NULL, t};
        sim__push(w, e);
    } else {
        t->state = SIM_READY;
        sim__queue(w, t);
    }
}

SIM_API void sim__touch(sim_world *w, sim__sock *s) {
    if (s->watcher && s->watcher->state == SIM_WAITING && sim__got(s, s->want))
        sim__wake(w, s->watcher);
}

SIM_API void sim__kick(sim_world *w, sim__sock *s, bool first) {
    sim__pipe *p = &s->out;
    uint64_t at;
    if (p->on_the_way || s->reset || s->state != SIM__OPEN) return;
    if (p->written == p->arrived ? !p->fin : p->arrived - p->read >= p->recv_room) return;
    at = w->now + (first ? sim__delay(w, p) : p->gap_ns);
    if (at < p->free_at) at = p->free_at;
    p->free_at = at;
    p->on_the_way = true;
    sim__at(w, at, SIM__EV_DELIVER, s, 0);
}

/* The connection is over for this end; `err` is what the process will be told. */
SIM_API void sim__sock_reset(sim_world *w, sim__sock *s, int32_t err, bool lose_unread) {
    if (s->reset) return;
    s->reset = true;
    s->err = err;
    s->out.written = s->out.arrived;
    if (s->peer && lose_unread) s->peer->out.read = s->peer->out.arrived;
    sim__trace(w, s->node, "socket %u (fd %d) fails: errno %d", s->id, (int)s->fd, (int)err);
    sim__touch(w, s);
}

/* Tell the other end that this one is no more. */
SIM_API void sim__send_reset(sim_world *w, sim__sock *from, sim__sock *to) {
    sim__at(w, w->now + sim__delay(w, &from->out), SIM__EV_RESET, to, 0);
}

SIM_API void sim__memory_drop(sim__memory *m) {
    if (--m->users) return;
    munmap(m->at, (size_t)m->bytes);
    free(m);
}

/* Closes what is no TCP socket. */
SIM_API void sim__other_close(sim_world *w, sim__sock *s) {
    s->gone = true;
    if (s->state == SIM__MEMORY) sim__memory_drop(s->memory);
    while (s->parcels) {
        sim__parcel *p = s->parcels;
        s->parcels = p->next;
        for (uint32_t i = 0; i < p->n; ++i)
            sim__other_close(w, p->what[i]);
        free(p);
    }
    if (s->state == SIM__PASS && !s->peer->gone) sim__touch(w, s->peer);
}

/* What the kernel does when a process closes a descriptor, or dies. */
SIM_API void sim__sock_close(sim_world *w, sim__sock *s) {
    sim__sock *b, *next;
    s->gone = true;
    s->watcher = NULL;
    s->fd = -1;
    if (s->state > SIM__OPEN) {
        sim__other_close(w, s);
        return;
    }
    if (s->state == SIM__LISTEN) {
        for (b = s->backlog; b; b = next) {
            next = b->next;
            if (b->state == SIM__PASS) {
                sim__other_close(w, b);
                continue;
            }
            b->gone = true;
            if (!b->reset) sim__send_reset(w, b, b->peer);
            b->reset = true;
        }
        s->backlog = s->backlog_last = NULL;
        return;
    }
    /* a connection in the making is noticed when its next packet comes */
    if (s->state != SIM__OPEN || s->reset) {
        s->reset = true;
        return;
    }
    /* unread data: TCP must not pretend that it was taken */
    if (s->peer->out.arrived > s->peer->out.read) {
        if (sim_chance(&w->network, 512)) s->out.written = s->out.arrived;
        sim__send_reset(w, s, s->peer);
        s->reset = true;
    } else {
        if (s->out.fin) return; /* it has ended sending before */
        s->out.fin = true;
        sim__kick(w, s, true);
    }
}

SIM_API sim__sock *sim__find_listener(const sim_world *w, uint32_t host, uint16_t port) {
    uint32_t i;
    for (i = 0; i < w->sock_n; ++i) {
        sim__sock *s = w->socks[i];
        if (s->state == SIM__LISTEN && !s->gone && !s->named && s->node->host == host
            && s->local.port == port)
            return s;
    }
    return NULL;
}

/* The first node of a host; `from` if it has none. */
SIM_API const sim_node *sim__first_of(const sim_world *w, uint32_t host, const sim_node *from) {
    uint32_t i;
    for (i = 0; i < w->n; ++i)
        if (w->nodes[i].host == host) return &w->nodes[i];
    return from;
}

/* The node that listens there; on a host without that port its first node. */
SIM_API uint32_t sim__listener_node(
    const sim_world *w, uint32_t host, uint16_t port, const sim_node *from) {
    const sim__sock *l = sim__find_listener(w, host, port);
    return l ? l->node->id : sim__first_of(w, host, from)->id;
}

/* ---- >>packets: what happens when they arrive ------------------------------------------------ */

/* True when the packet cannot pass now: it is sent again when the way is open, if ever. */
SIM_API bool sim__held(
    sim_world *w, sim__event_kind kind, sim__sock *s, const sim_node *a, const sim_node *b) {
    const uint64_t until = sim__blocked(w, a, b);
    if (!until) return false;
    if (until != SIM_FOREVER) {
        const uint64_t random = 1 + sim_random(&w->network) % (200 * SIM_MS);
        const uint64_t chosen = w->rule_count ? sim__rule_of(w, a->id, b->id).resend_ns : 0;
        sim__at(w, until + (chosen ? chosen : random), kind, s, 0);
    }
    return true;
}

SIM_API void sim__on_fault(sim_world *w, uint32_t index);

/* How many of `n` bytes arrive in one segment: as a rule says, and not beyond the byte that sets
   off a fault. */
SIM_API uint64_t sim__chosen_bytes(const sim_world *w, const sim__pipe *p, uint64_t n) {
    const uint64_t split = w->rule_count ? sim__rule_of(w, p->from, p->to).split_bytes : 0;
    const uint64_t there = w->bytes_on[p->from * w->n + p->to];
    uint32_t i;
    if (split && n > split) n = split;
    for (i = 0; i < w->fault_count; ++i) {
        const sim_fault *f = &w->faults[i];
        if (f->trigger == SIM_ON_BYTES && f->watch == p->from && f->watch_to == p->to
            && there < f->trigger_count && n > f->trigger_count - there)
            n = f->trigger_count - there;
    }
    return n;
}

SIM_API void sim__count_bytes(sim_world *w, const sim__pipe *p, uint64_t n) {
    uint64_t *there = &w->bytes_on[p->from * w->n + p->to];
    uint32_t i;
    *there += n;
    for (i = 0; n && i < w->fault_count; ++i) {
        const sim_fault *f = &w->faults[i];
        if (f->trigger == SIM_ON_BYTES && f->watch == p->from && f->watch_to == p->to
            && *there == f->trigger_count)
            sim__on_fault(w, i);
    }
}

SIM_API void sim__on_deliver(sim_world *w, sim__sock *s) {
    sim__pipe *p = &s->out;
    sim__sock *to = s->peer;
    uint64_t n, room;
    p->on_the_way = false;
    if (s->reset && !s->gone) return;
    if (to->state == SIM__HANDSHAKE) return; /* its last handshake packet will start this again */
    if (sim__blocked(w, s->node, to->node)) {
        p->on_the_way = true;
        if (!sim__held(w, SIM__EV_DELIVER, s, s->node, to->node)) p->on_the_way = false;
        return;
    }
    n = p->written - p->arrived;
    if (to->gone) {
        if ((n || p->fin) && !to->reset) to->reset = true;
        if (n && !s->gone) sim__send_reset(w, to, s);
        p->arrived = p->read = p->written;
        return;
    }
    if (to->reset) return;
    room = p->recv_room - (p->arrived - p->read);
    if (n > room) n = room;
    if (n > 1 && sim_chance(&w->network, w->desc.noise.split_1024))
        n = 1 + sim_random(&w->network) % (sim_chance(&w->network, 512) && n > 16 ? 16 : n);
    n = sim__chosen_bytes(w, p, n);
    p->arrived += n;
    sim__count_bytes(w, p, n);
    if (s->reset || to->reset) return; /* the fault that these bytes set off */
    if (p->arrived == p->written && p->fin)
        to->eof = true;
    else
        sim__kick(w, s, false);
    sim__trace(w, NULL, "n%u -> n%u: %llu bytes arrive%s", s->node->id, to->node->id,
        (unsigned long long)n, to->eof ? ", and the end" : "");
    sim__touch(w, to);
    sim__touch(w, s);
}

/* The first packet of a connection reaches the host. */
SIM_API void sim__on_syn(sim_world *w, sim__sock *c) {
    sim__sock *l, *s;
    const sim_node *to;
    if (c->gone || c->reset) return;
    l = sim__find_listener(w, c->target_host, c->remote.port);
    to = w->desc.one_host ? c->node : sim__first_of(w, c->target_host, c->node);
    if (l) to = l->node;
    if (sim__held(w, SIM__EV_SYN, c, c->node, to)) return;
    if (!l) {
        sim__at(w, w->now + sim__delay(w, &c->out), SIM__EV_REFUSE, c, 0);
        return;
    }
    s = sim__sock_new(w, l->node, SIM__HANDSHAKE);
    s->listener = l;
    s->peer = c;
    c->peer = s;
    c->out.to = l->node->id;
    s->local = c->remote;
    s->remote = c->local;
    sim__pipe_open(w, &s->out, l->node->id, c->node->id);
    sim__at(w, w->now + sim__delay(w, &s->out), SIM__EV_SYNACK, c, 0);
}

/* The answer reaches the one who connects: for him the connection stands. */
SIM_API void sim__on_synack(sim_world *w, sim__sock *c) {
    if (sim__held(w, SIM__EV_SYNACK, c, c->node, c->peer->node)) return;
    if (c->gone || c->reset) { /* he changed his mind: the other side never hears of it */
        c->peer->reset = c->peer->gone = true;
        return;
    }
    c->state = SIM__OPEN;
    sim__at(w, w->now + sim__delay(w, &c->out), SIM__EV_ACK, c->peer, 0);
    sim__trace(
        w, c->node, "socket %u (fd %d) is connected to n%u", c->id, (int)c->fd, c->peer->node->id);
    sim__touch(w, c);
}

/* The last handshake packet reaches the listener's host. */
SIM_API void sim__on_ack(sim_world *w, sim__sock *s) {
    sim__sock *l = s->listener;
    if (sim__held(w, SIM__EV_ACK, s, s->node, s->peer->node)) return;
    s->state = SIM__OPEN;
    if (l->gone) {
        s->gone = s->reset = true;
        sim__send_reset(w, s, s->peer);
        return;
    }
    *(l->backlog ? &l->backlog_last->next : &l->backlog) = s;
    l->backlog_last = s;
    sim__kick(w, s->peer, false);
    sim__touch(w, l);
}

SIM_API void sim__on_reset(sim_world *w, sim__sock *s) {
    sim__pipe *in = &s->peer->out;
    if (sim__held(w, SIM__EV_RESET, s, s->node, s->peer->node)) return;
    if (s->gone || s->reset) return;
    if (in->written > in->arrived) { /* part of what was on the way may still have come first */
        uint64_t n = in->written - in->arrived, room = in->recv_room - (in->arrived - in->read);
        n = n < room ? n : room;
        in->arrived += sim_random(&w->network) % (n + 1);
        in->written = in->arrived;
    }
    sim__sock_reset(
        w, s, s->eof ? EPIPE : ECONNRESET, sim_chance(&w->network, w->desc.noise.drop_unread_1024));
}

/* ---- >>os interface -------------------------------------------------------------------------- */

SIM_API void sim__kill(sim_world *w, sim_node *node);
SIM_API void sim__stop(sim_world *w, sim_node *node, uint64_t for_ns);

/* The start of every os call: it costs time, and it is where a node may be stopped, killed or
   preempted. */
SIM_API void sim__enter(sim_node *node, const char *call) {
    sim_world *w = node->world;
    uint32_t i;
    ++node->calls;
    node->last_call = call;
    w->now += 20
        + (w->desc.noise.cost_ns > 20 ? sim_random(&w->schedule) % (w->desc.noise.cost_ns - 19)
                                      : 0);
    for (i = 0; i < w->fault_count; ++i) {
        sim_fault *f = &w->faults[i];
        if ((f->kind != SIM_FAULT_KILL && f->kind != SIM_FAULT_STOP) || f->a != (int32_t)node->id
            || f->at_count != node->calls || f->trigger != SIM_ON_TIME_OR_COUNT)
            continue;
        f->happened = true;
        f->happened_ns = w->now;
        if (f->kind == SIM_FAULT_KILL)
            sim__kill(w, node);
        else
            sim__stop(w, node, f->for_ns);
        sim__leave(node);
    }
    if (sim_chance(&w->schedule, w->desc.noise.preempt_1024)) sim__leave(node);
}

SIM_API void sim__exit(sim_node *node, int64_t result) {
    sim__fold(node->world,
        (uint64_t)result ^ (uint64_t)(uint8_t)node->last_call[0] << 56 ^ node->world->now);
}

/* What the clock of a node shows, and back. */
SIM_API uint64_t sim_time_of(const sim_node *node) {
    return node->world->now + node->clock_ns;
}
SIM_API uint64_t sim__world_time(const sim_node *node, uint64_t node_ns) {
    if (node_ns == SIM_FOREVER) return node_ns;
    return node_ns > node->clock_ns ? node_ns - node->clock_ns : 0;
}

SIM_API uint64_t sim__os_now(void *user) {
    sim__enter((sim_node *)user, "now_ns");
    return sim_time_of((sim_node *)user);
}

SIM_API cdp_status sim__os_random(void *user, void *dst, uint64_t bytes) {
    sim_node *node = (sim_node *)user;
    uint8_t *p = (uint8_t *)dst;
    uint64_t i;
    sim__enter(node, "random");
    for (i = 0; i < bytes; ++i)
        p[i] = (uint8_t)sim_random(&node->os_random);
    sim__exit(node, (int64_t)bytes);
    return CDP_OK;
}

/* "localhost", and "node<i>" for each node. */
SIM_API int32_t sim__os_resolve(void *user, const char *host, uint16_t port, cdp_addr *out,
    uint32_t max, uint64_t deadline_ns) {
    sim_node *node = (sim_node *)user;
    sim_world *w = node->world;
    unsigned id = 0;
    (void)deadline_ns;
    sim__enter(node, "resolve");
    sim__trace(w, node, "resolve %s", host);
    if (!max) return 0;
    if (strcmp(host, "localhost") == 0) {
        *out = sim_host_addr(w, node->host, port);
        memset(out->ip, 0, sizeof out->ip);
        out->ip[0] = 127;
        out->ip[3] = 1;
        return 1;
    }
    if (sscanf(host, "node%u", &id) != 1 || id >= w->n) return -ENOENT;
    *out = sim_host_addr(w, w->nodes[id].host, port);
    return 1;
}

SIM_API int32_t sim__os_listen(void *user, const cdp_addr *at, cdp_addr *bound) {
    sim_node *node = (sim_node *)user;
    sim_world *w = node->world;
    uint16_t port = at->port;
    sim__sock *s;
    int32_t fd;
    sim__enter(node, "listen");
    if (at->family != 4 && at->family != 6) return -EAFNOSUPPORT;
    if (at->family == 4 && at->ip[0] && sim__host_of(w, node, at) != (int64_t)node->host)
        return -EADDRNOTAVAIL;
    if (port && sim__find_listener(w, node->host, port)) return -EADDRINUSE;
    while (!port || (!at->port && sim__find_listener(w, node->host, port)))
        port = ++w->next_port;
    s = sim__sock_new(w, node, SIM__LISTEN);
    s->local = *at;
    s->local.port = port;
    fd = sim__fd_open(node, s);
    if (fd < 0)
        s->gone = true;
    else
        *bound = s->local;
    sim__trace(w, node, "listen on port %u -> fd %d", port, (int)fd);
    sim__exit(node, fd);
    return fd;
}

SIM_API int32_t sim__os_accept(void *user, int32_t lfd, cdp_addr *from) {
    sim_node *node = (sim_node *)user;
    sim__sock *l, *s;
    int32_t fd;
    sim__enter(node, "accept");
    l = sim__fd(node, lfd, "accept");
    if (!l) return -EBADF;
    if (l->state != SIM__LISTEN) return -EINVAL;
    if (!l->backlog) return -EAGAIN;
    s = l->backlog;
    fd = sim__fd_open(node, s);
    if (fd < 0) return fd;
    l->backlog = s->next;
    if (!l->backlog) l->backlog_last = NULL;
    *from = s->remote;
    if (l->local.family == 6) { /* an IPv6 listener sees IPv4 addresses mapped */
        memset(from, 0, sizeof *from);
        from->family = 6;
        from->port = s->remote.port;
        memset(from->ip + 10, 255, 2);
        memcpy(from->ip + 12, s->remote.ip, 4);
    }
    sim__trace(node->world, node, "accept -> fd %d from n%u", (int)fd, s->peer->node->id);
    sim__exit(node, fd);
    return fd;
}

SIM_API int32_t sim__os_connect(void *user, const cdp_addr *to) {
    sim_node *node = (sim_node *)user;
    sim_world *w = node->world;
    int64_t host;
    sim__sock *s;
    int32_t fd;
    sim__enter(node, "connect");
    host = sim__host_of(w, node, to);
    if (host < 0) return -ENETUNREACH;
    s = sim__sock_new(w, node, SIM__CONNECTING);
    fd = sim__fd_open(node, s);
    if (fd < 0) {
        s->gone = true;
        return fd;
    }
    s->target_host = (uint32_t)host;
    s->remote = *to;
    s->local = sim_host_addr(w, node->host, ++w->next_port);
    if (s->remote.family == 6) { /* inside, everything is IPv4 */
        s->remote = sim_host_addr(w, (uint32_t)host, to->port);
    }
    if (s->remote.ip[0] == 127) memcpy(s->local.ip, s->remote.ip, 4);
    sim__pipe_open(w, &s->out, node->id, sim__listener_node(w, (uint32_t)host, to->port, node));
    sim__at(w, w->now + sim__delay(w, &s->out), SIM__EV_SYN, s, 0);
    sim__at(w, w->now + SIM_CONNECT_NS, SIM__EV_UNREACH, s, ETIMEDOUT);
    if (w->lost[sim__first_of(w, (uint32_t)host, node)->id] && sim_chance(&w->network, 512))
        sim__at(w, w->now + 3 * SIM_S, SIM__EV_UNREACH, s, EHOSTUNREACH);
    sim__trace(w, node, "connect to n%d port %u -> fd %d", w->desc.one_host ? -1 : (int)host,
        to->port, (int)fd);
    sim__exit(node, fd);
    return fd;
}

SIM_API int32_t sim__os_connect_result(void *user, int32_t fd) {
    sim_node *node = (sim_node *)user;
    sim__sock *s;
    int32_t r;
    sim__enter(node, "connect_result");
    s = sim__fd(node, fd, "connect_result");
    if (!s) return -EBADF;
    r = s->state != SIM__OPEN || s->reset ? -ENOTCONN : 0;
    if (s->err) r = -s->err;
    s->err = 0;
    sim__trace(node->world, node, "connect_result fd %d -> %d", (int)fd, (int)r);
    sim__exit(node, r);
    return r;
}

SIM_API int64_t sim__moved(sim_node *node, int32_t fd, const char *what, int64_t r) {
    if (r > 0) node->world->bytes_moved += (uint64_t)r;
    sim__trace(node->world, node, "%s fd %d -> %lld", what, (int)fd, (long long)r);
    sim__exit(node, r);
    return r;
}

SIM_API uint64_t sim__iov_bytes(const cdp_iov *iov, uint32_t n) {
    uint64_t sum = 0;
    uint32_t i;
    for (i = 0; i < n && i < 8; ++i)
        sum += iov[i].bytes; /* the POSIX side takes eight too */
    return sum;
}

SIM_API void sim__ring_copy(sim__pipe *p, uint64_t at, uint8_t *user, uint64_t n, bool in) {
    uint64_t off = at % p->room;
    while (n) {
        const uint64_t part = n < p->room - off ? n : p->room - off;
        memcpy(in ? p->buf + off : user, in ? user : p->buf + off, (size_t)part);
        user += part;
        n -= part;
        off = 0;
    }
}

SIM_API uint64_t sim__iov_copy(sim__pipe *p, uint64_t at, const cdp_iov *iov, uint64_t n, bool in) {
    uint64_t done = 0;
    for (; done < n; ++iov) {
        const uint64_t part = iov->bytes < n - done ? iov->bytes : n - done;
        if (part) sim__ring_copy(p, at + done, (uint8_t *)iov->data, part, in);
        done += part;
    }
    return done;
}

SIM_API int64_t sim__os_send(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    sim_node *node = (sim_node *)user;
    sim_world *w = node->world;
    sim__sock *s;
    uint64_t bytes, room;
    int32_t err;
    sim__enter(node, "send");
    s = sim__fd(node, fd, "send");
    if (!s) return -EBADF;
    if (s->state == SIM__LISTEN) return -ENOTCONN;
    err = s->err;
    s->err = 0;
    if (err) return sim__moved(node, fd, "send", -err);
    if (s->reset) return sim__moved(node, fd, "send", -EPIPE);
    if (s->state != SIM__OPEN) return sim__moved(node, fd, "send", 0);
    bytes = sim__iov_bytes(iov, n);
    room = s->out.send_room - (s->out.written - s->out.arrived);
    if (bytes > room) bytes = room;
    if (bytes > 1 && sim_chance(&w->network, w->desc.noise.split_1024 / 4))
        bytes = 1 + sim_random(&w->network) % bytes;
    if (!s->out.buf && !(s->out.buf = (uint8_t *)malloc((size_t)s->out.room))) abort();
    sim__iov_copy(&s->out, s->out.written, iov, bytes, true);
    s->out.written += bytes;
    if (bytes) sim__kick(w, s, true);
    return sim__moved(node, fd, "send", (int64_t)bytes);
}

SIM_API int64_t sim__os_recv(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    sim_node *node = (sim_node *)user;
    sim_world *w = node->world;
    sim__sock *s;
    sim__pipe *in;
    uint64_t bytes, there;
    int32_t err;
    sim__enter(node, "recv");
    s = sim__fd(node, fd, "recv");
    if (!s) return -EBADF;
    if (s->state == SIM__LISTEN) return -ENOTCONN;
    bytes = sim__iov_bytes(iov, n);
    in = s->peer ? &s->peer->out : NULL;
    there = in ? in->arrived - in->read : 0;
    /* as recvmsg: 0 bytes look like the end */
    if (bytes == 0) return sim__moved(node, fd, "recv of nothing", CDP_IO_EOF);
    if (there == 0) {
        if (s->eof) return sim__moved(node, fd, "recv", CDP_IO_EOF);
        err = s->err;
        s->err = 0;
        if (err) return sim__moved(node, fd, "recv", -err);
        return sim__moved(node, fd, "recv", s->reset ? CDP_IO_EOF : 0);
    }
    if (bytes > there) bytes = there;
    if (bytes > 1 && sim_chance(&w->network, w->desc.noise.split_1024 / 4))
        bytes = 1 + sim_random(&w->network) % bytes;
    sim__iov_copy(in, in->read, iov, bytes, false);
    in->read += bytes;
    if (!s->reset) sim__kick(w, s->peer, true);
    return sim__moved(node, fd, "recv", (int64_t)bytes);
}

SIM_API void sim__os_close(void *user, int32_t fd) {
    sim_node *node = (sim_node *)user;
    sim__sock *s;
    sim__enter(node, "close");
    s = sim__fd(node, fd, "close");
    if (!s) return;
    node->fds[fd] = NULL;
    node->fd_count--;
    sim__trace(node->world, node, "close fd %d", (int)fd);
    sim__sock_close(node->world, s);
    sim__exit(node, fd);
}

SIM_API void sim__os_end_sending(void *user, int32_t fd) {
    sim_node *node = (sim_node *)user;
    sim__sock *s;
    sim__enter(node, "end_sending");
    s = sim__fd(node, fd, "end_sending");
    if (s && s->state == SIM__OPEN && !s->reset && !s->out.fin) {
        sim__trace(node->world, node, "end_sending fd %d", (int)fd);
        s->out.fin = true;
        sim__kick(node->world, s, true);
    }
    sim__exit(node, fd);
}

SIM_API int32_t sim__os_local_addr(void *user, int32_t fd, cdp_addr *out) {
    sim_node *node = (sim_node *)user;
    const sim__sock *s;
    sim__enter(node, "local_addr");
    s = sim__fd(node, fd, "local_addr");
    if (!s) return -EBADF;
    *out = s->local;
    return 0;
}

/* Where a node has several threads another one may have closed a descriptor meanwhile. */
SIM_API int32_t sim__poll_look(sim_node *node, cdp_poll_fd *fds, uint32_t n) {
    int32_t count = 0;
    uint32_t i;
    for (i = 0; i < n; ++i) {
        const sim__sock *s;
        fds[i].ready = 0;
        if (fds[i].fd < 0) continue;
        if (node->task.next && !node->fds[fds[i].fd]) continue;
        s = sim__fd(node, fds[i].fd, "poll");
        fds[i].ready = s ? sim__got(s, (uint16_t)fds[i].wanted) : (uint16_t)CDP_IO_ERROR;
        count += fds[i].ready != 0;
    }
    return count;
}

SIM_API void sim__unwatch(sim_node *node, const sim_task *t) {
    uint32_t i;
    for (i = 0; i < node->fd_top; ++i)
        if (node->fds[i] && node->fds[i]->watcher == t) node->fds[i]->watcher = NULL;
}

/* Where tasks sleep, and where all others get their turn. */
SIM_API int32_t sim__os_poll(
    void *user, cdp_poll_fd *fds, uint32_t n, uint64_t deadline_ns, void *room) {
    (void)room;
    sim_node *node = (sim_node *)user;
    sim_world *w = node->world;
    int32_t r;
    uint32_t i;
    deadline_ns = sim__world_time(node, deadline_ns);
    sim__enter(node, "poll");
    r = sim__poll_look(node, fds, n);
    if (r == 0 && !sim_chance(&w->schedule, w->desc.noise.spurious_1024)) {
        for (i = 0; i < n; ++i) {
            sim__sock *s = fds[i].fd >= 0 ? node->fds[fds[i].fd] : NULL;
            if (!s) continue;
            s->watcher = w->task;
            s->want = (uint16_t)fds[i].wanted;
        }
        if (deadline_ns > w->now)
            sim__sleep(node, NULL, deadline_ns);
        else
            sim__leave(node);
        sim__unwatch(node, w->task);
        r = sim__poll_look(node, fds, n);
    } else if (sim_chance(&w->schedule, 128)) {
        sim__leave(node); /* a node that never has to sleep must not keep the others from running */
        r = sim__poll_look(node, fds, n);
    }
    sim__trace(w, node, "poll of %u -> %d", n, (int)r);
    sim__exit(node, r);
    return r;
}

SIM_API void sim__os_sleep_until(void *user, uint64_t deadline_ns) {
    (void)sim__os_poll(user, NULL, 0, deadline_ns, NULL);
}

/* Sleep without watching anything. */
SIM_API void sim_sleep(sim_node *node, uint64_t ns) {
    const uint64_t until = node->world->now + ns;
    while (node->world->now < until)
        node->os.sleep_until(node, until + node->clock_ns);
}

/* ---- >>faults -------------------------------------------------------------------------------- */

/* The process is no more: its kernel closes what it had open. */
SIM_API void sim__close_all(sim_node *node) {
    sim_world *w = node->world;
    uint32_t i;
    for (i = 0; i < node->fd_top; ++i) {
        if (!node->fds[i]) continue;
        sim__sock_close(w, node->fds[i]);
        node->fds[i] = NULL;
    }
    node->fd_count = 0;
    while (node->mappings) {
        sim__mapping *m = node->mappings;
        node->mappings = m->next;
        sim__memory_drop(m->memory);
        free(m);
    }
    for (i = 0; i < w->sock_n; ++i)
        if (w->socks[i]->state == SIM__PROCESS && w->socks[i]->target == node)
            sim__touch(w, w->socks[i]);
}

/* Its first thread has returned. */
SIM_API void sim__node_over(sim_node *node) {
    const sim_task *t;
    uint32_t i;
    for (t = node->task.next; t; t = t->next)
        if (t->state != SIM_DONE)
            sim__fail(node->world, "node %u ends, and one of its threads goes on", node->id);
    node->state = SIM_DONE;
    node->ended_ns = node->world->now;
    node->world->recount = true;
    for (i = 0; i < node->world->sock_n; ++i)
        if (node->world->socks[i]->state == SIM__PROCESS && node->world->socks[i]->target == node)
            sim__touch(node->world, node->world->socks[i]);
}

SIM_API void sim__kill(sim_world *w, sim_node *node) {
    sim_task *t;
    if (node->state != SIM_READY) return;
    sim__trace(w, node, "FAULT: killed in %s (doing: %s)", node->last_call, node->doing);
    for (t = &node->task; t; t = t->next) {
        sim__unqueue(w, t);
        t->state = SIM_DEAD;
    }
    node->state = SIM_DEAD;
    node->ended_ns = w->now;
    w->recount = true;
    sim__close_all(node);
    sim__free_all(node);
}

SIM_API void sim__stop(sim_world *w, sim_node *node, uint64_t for_ns) {
    sim_task *t;
    if (node->state != SIM_READY || node->stopped) return;
    sim__trace(w, node, "FAULT: stopped in %s (doing: %s)", node->last_call, node->doing);
    for (t = &node->task; t; t = t->next)
        sim__unqueue(w, t);
    node->stopped = true;
    w->recount = true;
    if (for_ns != SIM_FOREVER) sim__at(w, w->now + for_ns, SIM__EV_CONTINUE, NULL, node->id);
}

SIM_API bool sim__connected(const sim__sock *s) {
    return s->state == SIM__OPEN && !s->gone && !s->reset;
}

/* No packet between these two any more: what stands between them will fail by itself when nobody
   answers for long. */
SIM_API void sim__cut_off(sim_world *w, uint32_t a, uint32_t b, uint64_t until, bool one_way) {
    uint32_t i;
    w->blocked_until[a * w->n + b] = until;
    if (!one_way) w->blocked_until[b * w->n + a] = until;
    if (until != SIM_FOREVER && until - w->now < SIM_SILENCE_NS) return;
    for (i = 0; i < w->sock_n; ++i) {
        sim__sock *s = w->socks[i];
        if (sim__connected(s)
            && ((s->node->id == a && s->peer->node->id == b)
                || (s->node->id == b && s->peer->node->id == a)))
            sim__at(w, w->now + SIM_SILENCE_NS + sim_random(&w->network) % SIM_S, SIM__EV_SILENCE,
                s, 0);
    }
}

SIM_API bool sim__can_cut(const sim__sock *s) {
    return sim__connected(s) && !s->peer->gone && s->node != s->peer->node;
}

SIM_API bool sim__cut(sim_world *w, sim_fault *f) {
    uint32_t i, n = 0, pick;
    for (i = 0; i < w->sock_n; ++i)
        n += sim__can_cut(w->socks[i]);
    if (!n) return false;
    pick = (uint32_t)(sim_random(&w->network) % n);
    for (i = 0; i < w->sock_n; ++i) {
        sim__sock *s = w->socks[i];
        if (!sim__can_cut(s) || pick--) continue;
        f->a = (int32_t)s->node->id;
        f->b = (int32_t)s->peer->node->id;
        sim__trace(w, NULL, "FAULT: connection between n%d and n%d is cut", f->a, f->b);
        sim__sock_reset(w, s, ECONNRESET, sim_chance(&w->network, w->desc.noise.drop_unread_1024));
        sim__sock_reset(
            w, s->peer, ECONNRESET, sim_chance(&w->network, w->desc.noise.drop_unread_1024));
        return true;
    }
    return false;
}

SIM_API bool sim__cut_link(sim_world *w, uint32_t a, uint32_t b) {
    bool any = false;
    uint32_t i;
    for (i = 0; i < w->sock_n; ++i) {
        sim__sock *s = w->socks[i];
        if (!sim__can_cut(s) || s->node->id != a || s->peer->node->id != b) continue;
        any = true;
        sim__trace(w, NULL, "FAULT: connection between n%u and n%u is cut", a, b);
        sim__sock_reset(w, s, ECONNRESET, false);
        sim__sock_reset(w, s->peer, ECONNRESET, false);
    }
    return any;
}

SIM_API void sim__vanish(sim_world *w, sim_node *node) {
    uint32_t i;
    for (i = 0; i < w->n; ++i)
        if (i != node->id) sim__cut_off(w, node->id, i, SIM_FOREVER, false);
    w->lost[node->id] = true;
    if (node->state != SIM_DONE) sim__stop(w, node, SIM_FOREVER);
}

SIM_API void sim__on_fault(sim_world *w, uint32_t index) {
    sim_fault *f = &w->faults[index];
    sim_node *a = f->a >= 0 ? &w->nodes[f->a] : NULL;
    uint32_t i, k;
    if (a && (f->kind == SIM_FAULT_KILL || f->kind == SIM_FAULT_STOP || f->kind == SIM_FAULT_VANISH)
        && a->state == SIM_DONE)
        return;
    f->happened = true;
    f->happened_ns = w->now;
    if (f->kind == SIM_FAULT_KILL)
        sim__kill(w, a);
    else if (f->kind == SIM_FAULT_STOP)
        sim__stop(w, a, f->for_ns);
    else if (f->kind == SIM_FAULT_VANISH) {
        sim__trace(w, a, "FAULT: the machine is gone (doing: %s)", a->doing);
        for (k = 0; k < w->n; ++k)
            if (k == a->id || (f->set_a >> k & 1)) sim__vanish(w, &w->nodes[k]);
    } else if (f->kind == SIM_FAULT_PARTITION) {
        sim__trace(w, NULL, "FAULT: partition of nodes %llx and %llx (bits), for %lld ms",
            (unsigned long long)f->set_a, (unsigned long long)f->set_b,
            f->for_ns == SIM_FOREVER ? -1ll : (long long)(f->for_ns / SIM_MS));
        for (i = 0; i < w->n; ++i)
            for (k = 0; k < w->n; ++k)
                if ((f->set_a >> i & 1) && (f->set_b >> k & 1))
                    sim__cut_off(w, i, k,
                        f->for_ns == SIM_FOREVER ? SIM_FOREVER : w->now + f->for_ns, f->one_way);
    } else if (f->kind == SIM_FAULT_NOMEM) {
        f->at_count += a->alloc_calls;
    } else if (f->kind == SIM_FAULT_CUT_LINK) {
        f->happened = sim__cut_link(w, (uint32_t)f->a, (uint32_t)f->b);
        if (sim__cut_link(w, (uint32_t)f->b, (uint32_t)f->a)) f->happened = true;
    } else if (f->kind == SIM_FAULT_CUT) {
        f->happened = sim__cut(w, f);
        if (!f->happened && ++f->tries < 200)
            sim__at(w, w->now + SIM_MS, SIM__EV_FAULT, NULL, index);
    }
}

SIM_API bool sim__event_run(sim_world *w, const sim__event *e) {
    sim_node *node = e->index < w->n ? &w->nodes[e->index] : NULL;
    sim__fold(w, e->at ^ (uint64_t)e->kind << 60 ^ (e->sock ? e->sock->id : e->index));
    switch (e->kind) {
    case SIM__EV_DELIVER: sim__on_deliver(w, e->sock); break;
    case SIM__EV_SYN: sim__on_syn(w, e->sock); break;
    case SIM__EV_SYNACK: sim__on_synack(w, e->sock); break;
    case SIM__EV_ACK: sim__on_ack(w, e->sock); break;
    case SIM__EV_RESET: sim__on_reset(w, e->sock); break;
    case SIM__EV_REFUSE:
        if (!e->sock->gone && !e->sock->reset) sim__sock_reset(w, e->sock, ECONNREFUSED, false);
        break;
    case SIM__EV_UNREACH:
        if (!e->sock->gone && !e->sock->reset && e->sock->state == SIM__CONNECTING)
            sim__sock_reset(w, e->sock, (int32_t)e->index, false);
        break;
    case SIM__EV_SILENCE:
        if (sim__connected(e->sock)
            && (sim__blocked(w, e->sock->node, e->sock->peer->node)
                || sim__blocked(w, e->sock->peer->node, e->sock->node)))
            sim__sock_reset(w, e->sock, ETIMEDOUT, false);
        break;
    case SIM__EV_WAKE:
        if (e->task->state != SIM_WAITING) break;
        e->task->state = SIM_READY;
        sim__queue(w, e->task);
        break;
    case SIM__EV_FAULT: sim__on_fault(w, e->index); break;
    case SIM__EV_CONTINUE:
        if (!node || node->state == SIM_DEAD) break;
        sim__trace(w, node, "continues");
        node->stopped = false;
        w->recount = true;
        w->soonest = 0; /* its deadline counts again */
        for (sim_task *t = &node->task; t; t = t->next)
            sim__queue(w, t);
        break;
    }
    return true;
}

/* ---- >>threads of a node --------------------------------------------------------------------- */

typedef struct sim__mutex {
    const sim_task *owner;
} sim__mutex;

/* What cdp_os_threads.start returns: memory of the node, so that it is counted. */
typedef struct sim__thread {
    sim_task *task;
} sim__thread;

SIM_API void *sim__os_start(const cdp_os *os, void (*func)(void *arg), void *arg) {
    sim_node *node = (sim_node *)os->user;
    sim__thread *h;
    sim_task *t, *last = &node->task;
    sim__enter(node, "start");
    /* not what an injected failure counts: no thread to be had is an error of its own */
    h = (sim__thread *)sim_alloc(node, sizeof *h);
    t = h->task = (sim_task *)calloc(1, sizeof *t);
    if (!t) abort();
    sim__task_make(node, t);
    t->func = func;
    t->arg = arg;
    while (last->next)
        last = last->next;
    last->next = t;
    sim__trace(node->world, node, "starts a thread");
    sim__queue(node->world, t);
    return h;
}

/* A node that starts and joins threads again and again needs no more of them than live at once. */
SIM_API void sim__task_free(sim_node *node, sim_task *t) {
    sim_task *before = &node->task;
    while (before->next != t)
        before = before->next;
    before->next = t->next;
    sim__stack_get(true, t->stack);
    --node->world->task_count;
    free(t);
}

SIM_API void sim__os_join(const cdp_os *os, void *thread) {
    sim_node *node = (sim_node *)os->user;
    sim__thread *h = (sim__thread *)thread;
    sim__enter(node, "join");
    while (h->task->state != SIM_DONE)
        sim__sleep(node, h->task, SIM_FOREVER);
    sim__task_free(node, h->task);
    sim__os_free(node, h);
}

SIM_API void sim__os_yield(void *user) {
    sim__enter((sim_node *)user, "yield");
    sim__leave((sim_node *)user);
}

SIM_API void *sim__os_mutex_create(const cdp_os *os) {
    sim__mutex *m = (sim__mutex *)sim__os_alloc(os->user, sizeof *m);
    if (m) m->owner = NULL;
    return m;
}

SIM_API void sim__os_mutex_destroy(const cdp_os *os, void *mutex) {
    sim_node *node = (sim_node *)os->user;
    if (((sim__mutex *)mutex)->owner)
        sim__fail(node->world, "node %u: a mutex is destroyed while it is held", node->id);
    sim__os_free(node, mutex);
}

SIM_API void sim__os_mutex_lock(void *user, void *mutex) {
    sim_node *node = (sim_node *)user;
    sim__mutex *m = (sim__mutex *)mutex;
    sim__enter(node, "mutex_lock");
    if (m->owner == node->world->task)
        sim__fail(node->world, "node %u: a thread locks a mutex twice", node->id);
    while (m->owner)
        sim__sleep(node, m, SIM_FOREVER);
    m->owner = node->world->task;
}

SIM_API void sim__os_mutex_unlock(void *user, void *mutex) {
    sim_node *node = (sim_node *)user;
    sim__mutex *m = (sim__mutex *)mutex;
    if (m->owner != node->world->task)
        sim__fail(node->world, "node %u: a thread unlocks a mutex that it does not hold", node->id);
    m->owner = NULL;
    sim__wake_waiters(node, m);
    sim__enter(node, "mutex_unlock");
}

SIM_API void *sim__os_cond_create(const cdp_os *os) {
    return sim__os_alloc(os->user, 64);
}

SIM_API void sim__os_cond_destroy(const cdp_os *os, void *cond) {
    sim__os_free(os->user, cond);
}

SIM_API void sim__os_cond_wait(void *user, void *cond, void *mutex, uint64_t deadline_ns) {
    sim_node *node = (sim_node *)user;
    sim__mutex *m = (sim__mutex *)mutex;
    deadline_ns = sim__world_time(node, deadline_ns);
    if (m->owner != node->world->task)
        sim__fail(node->world, "node %u: a thread waits without holding the mutex", node->id);
    m->owner = NULL;
    sim__wake_waiters(node, m);
    node->last_call = "cond_wait";
    ++node->calls;
    if (deadline_ns > node->world->now
        && !sim_chance(&node->world->schedule, node->world->desc.noise.spurious_1024))
        sim__sleep(node, cond, deadline_ns);
    while (m->owner)
        sim__sleep(node, m, SIM_FOREVER);
    m->owner = node->world->task;
}

SIM_API void sim__os_cond_broadcast(void *user, void *cond) {
    sim__enter((sim_node *)user, "cond_broadcast");
    sim__wake_waiters((sim_node *)user, cond);
}

/* A flag with a descriptor. */
SIM_API int32_t sim__os_wake_open(void *user, int32_t fd[2]) {
    sim_node *node = (sim_node *)user;
    sim__sock *s;
    sim__enter(node, "wake_open");
    s = sim__sock_new(node->world, node, SIM__WAKE);
    s->origin = s;
    fd[0] = fd[1] = sim__fd_open(node, s);
    if (fd[0] < 0) s->gone = true;
    return fd[0] < 0 ? fd[0] : 0;
}

SIM_API void sim__os_wake_set(void *user, int32_t fd) {
    sim_node *node = (sim_node *)user;
    sim__sock *s;
    sim__enter(node, "wake_set");
    s = sim__fd(node, fd, "wake_set");
    if (!s) return;
    s->origin->set = true;
    sim__touch(node->world, s->origin);
}

SIM_API void sim__os_wake_clear(void *user, int32_t fd) {
    sim_node *node = (sim_node *)user;
    sim__sock *s;
    sim__enter(node, "wake_clear");
    s = sim__fd(node, fd, "wake_clear");
    if (s) s->origin->set = false;
}

/* ---- >>shared memory of nodes ---------------------------------------------------------------- */

SIM_API int32_t sim__os_memory_create(void *user, uint64_t bytes) {
    sim_node *node = (sim_node *)user;
    sim__memory *m;
    sim__sock *s;
    int32_t fd;
    sim__enter(node, "memory_create");
    m = (sim__memory *)calloc(1, sizeof *m);
    if (!m) abort();
    m->bytes = bytes;
    m->users = 1;
    m->at = (uint8_t *)mmap(
        NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->at == (uint8_t *)MAP_FAILED) abort();
    s = sim__sock_new(node->world, node, SIM__MEMORY);
    s->memory = m;
    fd = sim__fd_open(node, s);
    if (fd < 0) sim__other_close(node->world, s);
    return fd;
}

SIM_API void *sim__os_memory_map(void *user, int32_t fd, bool writable, uint64_t *bytes) {
    sim_node *node = (sim_node *)user;
    sim__mapping *v;
    sim__sock *s;
    (void)writable;
    sim__enter(node, "memory_map");
    s = sim__fd(node, fd, "memory_map");
    if (!s || s->state != SIM__MEMORY) return NULL;
    v = (sim__mapping *)calloc(1, sizeof *v);
    if (!v) abort();
    v->memory = s->memory;
    v->memory->users++;
    v->next = node->mappings;
    node->mappings = v;
    *bytes = s->memory->bytes;
    sim__trace(node->world, node, "maps %llu bytes", (unsigned long long)*bytes);
    return s->memory->at;
}

SIM_API void sim__os_memory_unmap(void *user, void *at, uint64_t bytes) {
    sim_node *node = (sim_node *)user;
    sim__mapping **v = &node->mappings;
    sim__enter(node, "memory_unmap");
    while (*v && (const uint8_t *)(*v)->memory->at + (*v)->unmapped != at)
        v = &(*v)->next;
    if (*v && bytes % 65536 == 0 && (*v)->unmapped + bytes < (*v)->memory->bytes) {
        (*v)->unmapped += bytes;
        return;
    }
    if (!*v || (*v)->memory->bytes != (*v)->unmapped + bytes) {
        sim__fail(node->world, "node %u unmaps what it has not mapped", node->id);
        return;
    }
    sim__mapping *gone = *v;
    *v = gone->next;
    sim__memory_drop(gone->memory);
    free(gone);
}

SIM_API void sim__os_memory_empty(void *user, void *at, uint64_t bytes) {
    sim__enter((sim_node *)user, "memory_empty");
    memset(at, 0, bytes);
}

SIM_API sim__sock *sim__find_named(const sim_world *w, uint32_t host, const uint8_t name[12]) {
    uint32_t i;
    for (i = 0; i < w->sock_n; ++i) {
        sim__sock *s = w->socks[i];
        if (s->state == SIM__LISTEN && !s->gone && s->named && s->node->host == host
            && memcmp(s->name, name, sizeof s->name) == 0)
            return s;
    }
    return NULL;
}

SIM_API int32_t sim__os_pass_open(void *user, const uint8_t name[12], bool waits) {
    sim_node *node = (sim_node *)user;
    sim_world *w = node->world;
    sim__sock *s, *l, *end;
    int32_t fd;
    sim__enter(node, "pass_open");
    l = sim__find_named(w, node->host, name);
    if (waits && l) return -EADDRINUSE;
    if (!waits && !l) return -ECONNREFUSED;
    s = sim__sock_new(w, node, waits ? SIM__LISTEN : SIM__PASS);
    fd = sim__fd_open(node, s);
    if (fd < 0 || waits) {
        s->gone = fd < 0;
        s->named = true;
        memcpy(s->name, name, sizeof s->name);
        return fd;
    }
    end = sim__sock_new(w, l->node, SIM__PASS);
    end->peer = s;
    s->peer = end;
    *(l->backlog ? &l->backlog_last->next : &l->backlog) = end;
    l->backlog_last = end;
    sim__touch(w, l);
    return fd;
}

/* Another descriptor for what `of` stands for, in `node`. */
SIM_API sim__sock *sim__sock_again(sim_node *node, const sim__sock *of) {
    sim__sock *s = sim__sock_new(node->world, node, of->state);
    s->origin = of->origin;
    s->memory = of->memory;
    s->target = of->target;
    if (s->memory) s->memory->users++;
    return s;
}

SIM_API int32_t sim__pass_send(sim_node *node, sim__sock *s, const int32_t *fds, uint32_t n) {
    sim__parcel *p, **last = &s->peer->parcels;
    uint32_t i;
    if (s->peer->gone) return -EPIPE;
    p = (sim__parcel *)calloc(1, sizeof *p);
    if (!p) abort();
    p->n = n;
    for (i = 0; i < n; ++i) {
        const sim__sock *of = sim__fd(node, fds[i], "pass");
        if (of) p->what[i] = sim__sock_again(s->peer->node, of);
    }
    while (*last)
        last = &(*last)->next;
    *last = p;
    sim__touch(node->world, s->peer);
    return (int32_t)s->peer->node->id + 1;
}

SIM_API int32_t sim__pass_receive(sim_node *node, sim__sock *s, int32_t *fds, uint32_t n) {
    sim__parcel *p = s->parcels;
    uint32_t i;
    if (!p) return s->peer->gone ? -ECONNRESET : -EAGAIN;
    if (node->fd_count + n > SIM_MAX_FDS - 3 || p->n != n) return -EMFILE;
    s->parcels = p->next;
    for (i = 0; i < n; ++i)
        fds[i] = sim__fd_open(node, p->what[i]);
    free(p);
    return (int32_t)s->peer->node->id + 1;
}

SIM_API int32_t sim__os_pass(void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending) {
    sim_node *node = (sim_node *)user;
    sim__sock *s;
    sim__enter(node, "pass");
    s = sim__fd(node, fd, "pass");
    if (!s || s->state != SIM__PASS || n > SIM__PASS_MAX) return -EBADF;
    return sending ? sim__pass_send(node, s, fds, n) : sim__pass_receive(node, s, fds, n);
}

/* By the system, which refuses addresses that are no memory any more. */
SIM_API int32_t sim__os_read_process(
    void *user, int32_t pid, const uint64_t *from, const cdp_iov *to, uint32_t n) {
    sim_node *node = (sim_node *)user;
    sim_world *w = node->world;
    uint32_t i;
    sim__enter(node, "read_process");
    if (pid < 1 || (uint32_t)pid > w->n || w->nodes[pid - 1].state == SIM_DEAD) return -ESRCH;
    if (w->nodes[pid - 1].host != node->host) return -EPERM;
    for (i = 0; i < n; ++i) {
        const struct iovec local = {to[i].data, (size_t)to[i].bytes};
        const struct iovec remote = {(void *)(uintptr_t)from[i], (size_t)to[i].bytes};
        if (syscall(SYS_process_vm_readv, getpid(), &local, 1, &remote, 1, 0) != (long)to[i].bytes)
            return -EFAULT;
    }
    sim__trace(node->world, node, "reads %llu bytes of process %d",
        (unsigned long long)to[n - 1].bytes, (int)pid);
    return 0;
}

SIM_API uint64_t sim__os_host_id(void *user) {
    return 1 + ((sim_node *)user)->host;
}

SIM_API uint64_t sim__os_process_place(void *user, uint32_t *number) {
    *number = 1 + ((sim_node *)user)->id;
    return 1 + ((sim_node *)user)->host;
}

SIM_API int32_t sim__os_process_open(void *user, uint32_t number) {
    sim_node *node = (sim_node *)user;
    sim__sock *s;
    int32_t fd;
    sim__enter(node, "process_open");
    if (number < 1 || number > node->world->n || node->world->nodes[number - 1].state == SIM_DEAD)
        return -ESRCH;
    s = sim__sock_new(node->world, node, SIM__PROCESS);
    s->target = &node->world->nodes[number - 1];
    fd = sim__fd_open(node, s);
    if (fd < 0) s->gone = true;
    return fd;
}

/* ---- >>world --------------------------------------------------------------------------------- */

SIM_API void sim__os_threads_of(cdp_os *os) {
    os->net.wake_open = sim__os_wake_open;
    os->net.wake_set = sim__os_wake_set;
    os->net.wake_clear = sim__os_wake_clear;
    os->threads.start = sim__os_start;
    os->threads.join = sim__os_join;
    os->threads.yield = sim__os_yield;
    os->threads.mutex_create = sim__os_mutex_create;
    os->threads.mutex_destroy = sim__os_mutex_destroy;
    os->threads.mutex_lock = sim__os_mutex_lock;
    os->threads.mutex_unlock = sim__os_mutex_unlock;
    os->threads.cond_create = sim__os_cond_create;
    os->threads.cond_destroy = sim__os_cond_destroy;
    os->threads.cond_wait = sim__os_cond_wait;
    os->threads.cond_broadcast = sim__os_cond_broadcast;
}

/* The doorbell of a line is a wake-up. */
SIM_API void sim__os_shared_of(cdp_os *os) {
    os->net.wake_open = sim__os_wake_open;
    os->net.wake_set = sim__os_wake_set;
    os->net.wake_clear = sim__os_wake_clear;
    os->shared.create = sim__os_memory_create;
    os->shared.map = sim__os_memory_map;
    os->shared.unmap = sim__os_memory_unmap;
    os->shared.unmap_parts = true;
    os->shared.empty = sim__os_memory_empty;
    os->shared.pass_open = sim__os_pass_open;
    os->shared.pass = sim__os_pass;
    os->shared.read_process = sim__os_read_process;
    os->shared.host_id = sim__os_host_id;
    os->shared.process_place = sim__os_process_place;
    os->shared.process_open = sim__os_process_open;
}

SIM_API void sim__os_of(cdp_os *os, sim_node *node) {
    memset(os, 0, sizeof *os);
    os->user = node;
    os->alloc = sim__os_alloc;
    os->release = sim__os_free;
    os->now_ns = sim__os_now;
    os->random = sim__os_random;
    os->net.resolve = sim__os_resolve;
    os->net.listen_at = sim__os_listen;
    os->net.accept_next = sim__os_accept;
    os->net.connect_to = sim__os_connect;
    os->net.connect_result = sim__os_connect_result;
    os->net.send_iov = sim__os_send;
    os->net.recv_iov = sim__os_recv;
    os->net.close_fd = sim__os_close;
    os->net.end_sending = sim__os_end_sending;
    os->net.local_addr = sim__os_local_addr;
    os->sleep_until = sim__os_sleep_until;
    cdp__pollwatch_use(&os->net, sim__os_poll); /* no threads, and nobody to wake */
    if (node->world->desc.threads) sim__os_threads_of(os);
    if (node->world->desc.memory) sim__os_shared_of(os);
}

SIM_API sim_world *sim_open(const sim_desc *desc) {
    sim_world *w = (sim_world *)calloc(1, sizeof *w);
    uint32_t i;
    if (!w || desc->node_count == 0 || desc->node_count > SIM_MAX_NODES) abort();
    w->desc = *desc;
    w->n = desc->node_count;
    w->now = w->start_ns = SIM_S;
    w->hash = 0xcbf29ce484222325ull;
    w->schedule = sim_stream(desc->seed, 1);
    w->network = sim_stream(desc->seed, 2);
    w->next_port = 32768;
    w->nodes = (sim_node *)calloc(w->n, sizeof *w->nodes);
    w->blocked_until = (uint64_t *)calloc((size_t)w->n * w->n, sizeof *w->blocked_until);
    w->lost = (bool *)calloc(w->n, sizeof *w->lost);
    w->bytes_on = (uint64_t *)calloc((size_t)w->n * w->n, sizeof *w->bytes_on);
    if (!w->nodes || !w->blocked_until || !w->lost || !w->bytes_on) abort();
    if (!w->desc.limit_ns) w->desc.limit_ns = 3600 * SIM_S;
    if (!w->desc.limit_steps) w->desc.limit_steps = 20000000;
    for (i = 0; i < w->n; ++i) {
        sim_node *node = &w->nodes[i];
        node->world = w;
        node->id = i;
        node->host = i;
        if (desc->hosts) node->host = desc->hosts[i];
        if (desc->one_host) node->host = 0;
        node->os_random = sim_stream(desc->seed, 1000 + i);
        if (desc->clocks) node->clock_ns = sim_stream(desc->seed, 2000 + i) % (36000 * SIM_S);
        node->last_call = "start";
        sim__os_of(&node->os, node);
        sim__task_make(node, &node->task);
        node->task.state = SIM_WAITING; /* for its start */
        node->task.wake_at = w->now
            + (desc->noise.start_ns ? sim_random(&w->schedule) % (desc->noise.start_ns + 1) : 0);
        node->started_ns = node->task.wake_at;
    }
    return w;
}

SIM_API sim_fault *sim_add_fault(sim_world *w, const sim_fault *fault) {
    sim_fault *f;
    if (w->fault_count == SIM_MAX_FAULTS) abort();
    f = &w->faults[w->fault_count];
    *f = *fault;
    if (f->trigger == SIM_ON_TIME
        || (f->kind != SIM_FAULT_NONE && f->trigger == SIM_ON_TIME_OR_COUNT && !f->at_count))
        sim__at(w, w->start_ns + f->at_ns, SIM__EV_FAULT, NULL, w->fault_count);
    w->fault_count++;
    return f;
}

SIM_API void sim_add_link_rule(sim_world *w, const sim_link_rule *rule) {
    if (w->rule_count == SIM_MAX_LINK_RULES) abort();
    w->rules[w->rule_count++] = *rule;
}

/* The scenario says that `node` has completed an operation: faults may wait for that. */
SIM_API void sim_op_done(sim_node *node) {
    sim_world *w = node->world;
    uint32_t i;
    ++node->ops_done;
    for (i = 0; i < w->fault_count; ++i)
        if (w->faults[i].trigger == SIM_ON_OPS && w->faults[i].watch == node->id
            && w->faults[i].trigger_count == node->ops_done)
            sim__on_fault(w, i);
    /* it may have been this node itself */
    if (node->stopped || node->state == SIM_DEAD) sim__leave(node);
}

/* One line per node: who waits where. */
SIM_API void sim__describe(const sim_world *w, char *out, size_t size) {
    static const char *const names[] = {"can run", "waits", "finished", "dead"};
    size_t used = 0;
    uint32_t i, k;
    for (i = 0; i < w->n && used + 1 < size; ++i) {
        const sim_node *d = &w->nodes[i];
        const sim_task *t;
        used += (size_t)snprintf(out + used, size - used,
            "\n      node %u %s%s in %s, %u descriptors, %llu os calls; doing: %s", i,
            names[d->task.state], d->stopped ? " (stopped)" : "", d->last_call, d->fd_count,
            (unsigned long long)d->calls, d->doing);
        for (t = d->task.next; t && used + 1 < size; t = t->next)
            used += (size_t)snprintf(out + used, size - used, "; a thread %s%s", names[t->state],
                t->waits_for ? " for a lock or condition" : "");
        for (k = 0; d->task.state == SIM_WAITING && k < d->fd_top && used + 1 < size; ++k) {
            const sim__sock *s = d->fds[k];
            const char *end = "";
            if (!s || s->state == SIM__LISTEN || !s->peer) continue;
            if (s->reset) end = ", reset";
            if (s->eof) end = ", ended";
            used += (size_t)snprintf(out + used, size - used, "; fd %u to n%u: %llu unread%s", k,
                s->peer->node->id, (unsigned long long)(s->peer->out.arrived - s->peer->out.read),
                end);
        }
        if (used + 1 < size && d->task.error.status != CDP_OK)
            used += (size_t)snprintf(out + used, size - used, "; last error %s: %s",
                cdp_status_name(d->task.error.status), d->task.error.text);
    }
}

SIM_API void sim__hang(sim_world *w, const char *why) {
    char text[3600];
    sim__describe(w, text, sizeof text);
    w->hang = true;
    sim__fail(w, "%s at %llu ms of virtual time%s", why,
        (unsigned long long)((w->now - w->start_ns) / SIM_MS), text);
}

/* Nodes that still have something to do and are not stopped for good. */
SIM_API bool sim__unfinished(const sim_world *w) {
    uint32_t i;
    for (i = 0; i < w->n; ++i)
        if (w->nodes[i].state == SIM_READY && !w->nodes[i].stopped) return true;
    for (i = 0; i < w->heap_n; ++i)
        if (w->heap[i].kind == SIM__EV_CONTINUE) return true;
    return false;
}

SIM_API bool sim__sleeps(const sim_task *t) {
    return t->state == SIM_WAITING && !t->woken && !t->node->stopped;
}

SIM_API uint64_t sim__next_deadline(const sim_world *w) {
    uint64_t at = SIM_FOREVER;
    const sim_task *t;
    uint32_t i;
    for (i = 0; i < w->n; ++i)
        for (t = &w->nodes[i].task; t; t = t->next)
            if (sim__sleeps(t) && t->wake_at < at) at = t->wake_at;
    return at;
}

SIM_API void sim__wake_due(sim_world *w) {
    sim_task *t;
    uint32_t i;
    if (w->now < w->soonest) return;
    for (i = 0; i < w->n; ++i)
        for (t = &w->nodes[i].task; t; t = t->next)
            if (sim__sleeps(t) && t->wake_at <= w->now) sim__wake(w, t);
    w->soonest = sim__next_deadline(w);
}

/* Which of the ready nodes runs now. */
SIM_API uint32_t sim__pick(sim_world *w) {
    uint32_t best = 0, i;
    if (!w->desc.in_order) return (uint32_t)(sim_random(&w->schedule) % w->ready_count);
    for (i = 1; i < w->ready_count; ++i)
        if (w->ready[i]->ready_order < w->ready[best]->ready_order) best = i;
    return best;
}

/* Run until every node is finished, dead or stopped for good. False: see `failure`. */
SIM_API bool sim_run(sim_world *w) {
    w->recount = true;
    for (;;) {
        uint64_t next;
        if (w->recount) w->unfinished = sim__unfinished(w);
        w->recount = false;
        if (w->failed || !w->unfinished) break;
        if (w->desc.looks) w->desc.looks(w);
        if (++w->steps > w->desc.limit_steps) sim__hang(w, "no end: too many steps");
        if (w->now - w->start_ns > w->desc.limit_ns)
            sim__hang(w, "no end: far beyond every deadline");
        if (w->failed) break;
        if (w->heap_n && w->heap[0].at <= w->now) {
            const sim__event e = sim__pop(w);
            sim__event_run(w, &e);
            continue;
        }
        sim__wake_due(w);
        if (w->ready_count) {
            sim_task *t = w->ready[sim__pick(w)];
            sim__unqueue(w, t);
            sim__resume(w, t);
            continue;
        }
        next = sim__next_deadline(w);
        if (w->heap_n && w->heap[0].at < next) next = w->heap[0].at;
        if (next == SIM_FOREVER)
            sim__hang(w, "nobody can run and nothing is on its way");
        else if (next > w->now)
            w->now = next;
    }
    w->running = NULL;
    return !w->failed;
}

SIM_API void sim_close(sim_world *w) {
    uint32_t i;
    for (i = 0; i < w->n; ++i) {
        sim_node *node = &w->nodes[i];
        sim_task *t = node->task.next, *next;
        sim__close_all(node);
        sim__free_all(node);
        sim__stack_get(true, node->task.stack);
        for (; t; t = next) {
            next = t->next;
            sim__stack_get(true, t->stack);
            free(t);
        }
    }
    for (i = 0; i < w->sock_n; ++i) {
        free(w->socks[i]->out.buf);
        free(w->socks[i]);
    }
    free(w->socks);
    free(w->heap);
    free(w->lost);
    free(w->bytes_on);
    free(w->blocked_until);
    free(w->nodes);
    free(w);
}

#endif /* SIM_INCLUDED */
