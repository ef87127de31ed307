/* elastic_plants.h - mistakes that tests plant into cdp_elastic.h. Include before it. */
#ifndef ELASTIC_PLANTS_INCLUDED
#define ELASTIC_PLANTS_INCLUDED
#include "cdp_tcp.h"
#include "own.h"

typedef enum plant {
    PLANT_NOTHING,
    PLANT_NEWCOMER_SOURCE,      /* a newcomer that claims a higher step is a source */
    PLANT_COMMIT_AFTER_ARRIVAL, /* a process that has arrived still commits */
    PLANT_NO_REVOKE,            /* a process arrives, and its group goes on */
    PLANT_LEAVES_EARLY,         /* a process ends before all have committed the last step */
    PLANT_SET,                  /* a decision is set in place of compared and set */
    PLANT_NO_EPOCH,             /* what members send says nothing of the epoch */
    PLANT_COUNTED_EARLY,        /* samples are counted when a step begins */
    PLANT_WAITS_FOR_DEAD,       /* the leader waits for members that are known to be dead */
    PLANT_RECEIVER_KEEPS_STATE, /* a receiver passes for one that has state */
    PLANTS,                     /* those of pure functions end here */
    PLANT_AGREE_ALONE = PLANTS, /* who has the result of the operation does not ask the store */
    PLANT_NO_PROBE,             /* nobody looks how fast the link of a newcomer is */
    PLANT_NO_REHEARSAL,         /* connected() of a newcomer is called with the members alone */
    PLANT_COUNTS_PAUSES,        /* a process counts the time in which it stood still itself */
} plant;
static plant planted;

#define CDP__ELASTIC_PLANT(defect) (planted == PLANT_##defect)
#endif
