/* own.h - of the library, a test that sets macros compiles only the headers that have them

   Headers included before this file are linked (linked.h); those after it belong to the test. Where
   nothing is linked, all of them do. */
#if defined(TESTS_LINKED_H) && !defined(TESTS_OWN_H)
#define TESTS_OWN_H

#undef CDP__PRIVATE
#undef CDP_API
#define CDP__PRIVATE __attribute__((__unused__)) static
#define CDP_API __attribute__((__unused__)) static

#endif
