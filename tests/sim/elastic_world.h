/* elastic_world.h - the simulated system of elastic_shrink.c and elastic_worlds.c: a node takes
   along whether it is inside a call of the library, as a thread does */
#ifndef ELASTIC_WORLD_INCLUDED
#define ELASTIC_WORLD_INCLUDED

#include "cdp_elastic.h"

#define SIM_OWN_BYTES 8
static void sim_own(unsigned char *bytes, _Bool keep) {
    if (keep)
        bytes[0] = *cdp__inside();
    else
        *cdp__inside() = bytes[0];
}
#include "sim.h"

#endif /* ELASTIC_WORLD_INCLUDED */
