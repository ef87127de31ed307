/* linked.h - a test calls functions of the library, private ones too, that it does not compile

   For gcc and clang: `make` includes this file before every test that links libcdp.a. The bodies of
   functions are read, which takes little time, and no code is made from them: the linker takes that
   from the library, in which private functions are not static (tests/library.c). With -O0, or with
   -O1 -fno-inline: otherwise the compiler looks into all of them. */
#ifndef TESTS_LINKED_H
#define TESTS_LINKED_H

#pragma GCC diagnostic ignored "-Wattributes" /* noinline: no code is made here */
#define CDP__PRIVATE extern __inline __attribute__((__gnu_inline__))
#define CDP_API extern __inline __attribute__((__gnu_inline__))

#endif
