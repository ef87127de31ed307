/*  said.h - what a call said: OK, or an error with these words in it. Include after cdp.h. */
#ifndef SAID_INCLUDED
#define SAID_INCLUDED

#include "test.h"

TEST_API bool said_ok(cdp_status st, const char *file, int line) {
    return test_check(
        st == CDP_OK, file, line, "%s: %s", cdp_status_name(st), cdp_last_error()->text);
}
#define OK(call) said_ok((call), __FILE__, __LINE__)

#define REFUSED(want_status, words, expr)            \
    do {                                             \
        T_EQ(want_status, expr);                     \
        T_TEXT(words, cdp_last_error()->text);       \
        T_EQ(want_status, cdp_last_error()->status); \
    } while (0)

#endif
