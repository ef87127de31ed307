/*  msan.h - included before all else: MemorySanitizer does not know what these two calls write, and
    the library has another way for each. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#undef SYS_getrandom
#undef SYS_accept4
