/* The library as one object, which tests link instead of compiling it themselves. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
