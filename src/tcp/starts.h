/* tcp/starts.h - which start of a job a process belongs to (pure)

   Knows: what the store says of the start that is found there. Promises: a process that comes to a
   start that was over before waits for the next one; two that claim one rank of one start are
   told. */
#ifndef CDP_SRC_TCP_STARTS_H
#define CDP_SRC_TCP_STARTS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"

/* Programs destroy their groups and start again at the same address, in any order. So a store may
   still be that of the start before: rank 0 has not left yet, or others serve it. Each of these
   becomes true once and stays so while that start's keys are there. */
typedef struct cdp__start_found {
    bool begun;   /* rank 0, or the process that had this rank, has found all others */
    bool failed;  /* a rank has reported that the start failed */
    bool claimed; /* another process, or this one before, has claimed this rank */
    bool lives;   /* that process may be alive */
    bool differs; /* its settings are not those of this rank */
} cdp__start_found;

typedef enum cdp__start_verdict {
    CDP__START_JOIN,
    CDP__START_TAKE_OVER, /* the rank of a process that ended while the job was starting */
    CDP__START_NEXT,      /* wait for the next start; rank 0: begin it */
    CDP__START_DIFFERS,
    CDP__START_TWICE /* two processes have one rank */
} cdp__start_verdict;

#ifndef CDP__START_PLANT /* tests plant mistakes here */
#define CDP__START_PLANT(mistake) false
#endif

/* Who claimed a rank of a start that then failed has been told why. It now asks for another one. */
CDP__PRIVATE cdp__start_verdict cdp__start_judge(const cdp__start_found *s) {
    if (s->begun && !CDP__START_PLANT(JOINS_WHAT_HAS_BEGUN)) return CDP__START_NEXT;
    if (s->claimed && s->failed && !CDP__START_PLANT(JOINS_WHAT_HAS_FAILED)) return CDP__START_NEXT;
    if (s->differs) return CDP__START_DIFFERS;
    if (!s->claimed) return CDP__START_JOIN;
    return s->lives || CDP__START_PLANT(NEVER_TAKES_OVER) ? CDP__START_TWICE : CDP__START_TAKE_OVER;
}

/* What cdp__start_found is made of, in the order in which it is read: the key, and whether that of
   rank 0 (0), of this rank (1), or of the job (2). */
typedef struct cdp__start_key {
    const char *name;
    uint8_t whose;
} cdp__start_key;

static const cdp__start_key cdp__start_keys[] = {
    {"claim", 1}, {"done", 1}, {"fail", 2}, {"done", 0}};

#define CDP__START_KEYS ((uint32_t)(sizeof cdp__start_keys / sizeof *cdp__start_keys))

/* The store has answered whether key number `i` is there. */
CDP__PRIVATE void cdp__start_record_key(cdp__start_found *s, uint32_t i, bool there) {
    if (i == 0) s->claimed = s->claimed || there;
    if (i == 1 || i == 3) s->begun = s->begun || there;
    if (i == 2) s->failed = s->failed || there;
}

#endif /* CDP_SRC_TCP_STARTS_H */
