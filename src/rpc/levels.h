/* rpc/levels.h - which calls may leave, which functions a waiting thread may run (pure)

   Knows: how deep in other calls a call is. Promises: a call waits for a call of a higher level,
   or for a limit that only calls of its own and of higher levels hold, so calls of functions do not
   wait for each other in a circle. Not covered: a maker that waits for a value whose maker already
   runs, and a pass that begins inside a backward function.

   A call that starts outside functions has level 0; one that a function starts is one level above
   the call that runs the function. A thread that waits inside a function runs functions of higher
   levels alone. Calls that make a value have levels of their own, above those, since functions of
   any level may wait for the value; backward functions, which a pass waits for, are above both. A
   function that is max_depth levels deep starts calls, but does not wait: its calls begin at 0. */
#ifndef CDP_SRC_RPC_LEVELS_H
#define CDP_SRC_RPC_LEVELS_H

#include "../base/config.h"
#include "../base/compiler.h"

#define CDP__RPC_DEPTHS 256u /* levels of each kind */
#define CDP__RPC_MAKER_LEVEL 256
#define CDP__RPC_BACKWARD_LEVEL 512
#define CDP__RPC_LEVELS 768u
#define CDP__RPC_OUTSIDE (-1) /* the level of a thread that runs no function */

/* True if a function of this level may wait. */
CDP__PRIVATE bool cdp__level_waits(int32_t inside, uint32_t max_depth) {
    return inside < 0 || (uint32_t)inside % CDP__RPC_DEPTHS < max_depth;
}

/* The level of a call that is started inside a function of level `inside`. */
CDP__PRIVATE int32_t cdp__level_of(int32_t inside, bool makes, uint32_t max_depth) {
    const int32_t least = makes ? CDP__RPC_MAKER_LEVEL : 0;
    if (!cdp__level_waits(inside, max_depth) || inside + 1 < least) return least;
    return inside + 1;
}

/* True if a thread that waits inside a function of level `inside` may run one of level `level`. */
CDP__PRIVATE bool cdp__level_runs(int32_t inside, int32_t level) {
    return level > inside;
}

/* True if a request of level `level` waits until an earlier one of the same function, of level
   `earlier`, has run, where these run in order. Not if that one is less deep: threads that run this
   one may not run that one. */
CDP__PRIVATE bool cdp__level_follows(int32_t level, int32_t earlier) {
    return earlier >= level;
}

/* What calls to one rank that are under way hold of one limit: those that functions have started,
   or the others. */
typedef struct cdp__rpc_flight {
    uint32_t calls;
    uint64_t bytes; /* of their arguments */
} cdp__rpc_flight;

/* True if a call may leave. alone: no other call to that rank from inside functions has its level,
   and it is from inside one: it is let through, since what it would wait for may wait for it. */
CDP__PRIVATE bool cdp__flight_fits(
    const cdp__rpc_flight *f, uint64_t bytes, bool alone, uint32_t max_calls, uint64_t max_bytes) {
    if (!f->calls || alone) return true;
    return f->calls < max_calls && bytes <= max_bytes && f->bytes <= max_bytes - bytes;
}

/* True if a long argument may be fetched now. held: memory of those that are here; deep: of those
   from inside functions, of its level and above. */
CDP__PRIVATE bool cdp__bytes_fit(
    uint64_t held, uint64_t deep, bool nested, uint64_t bytes, uint64_t max_bytes) {
    if (!held || (bytes <= max_bytes && held <= max_bytes - bytes)) return true;
    return nested && !deep;
}

#endif /* CDP_SRC_RPC_LEVELS_H */
