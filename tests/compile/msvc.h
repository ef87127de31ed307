/*  msvc.h - included before all else, makes clang and gcc compile the parts of the headers that are
    for MSVC: after the headers of the system, those of mingw-w64, the compiler's own name is gone.
    This proves that these parts compile, and, with gcc under wine, that they run. No MSVC was
    there. */
#include <_mingw.h>
#undef __MINGW_IMPORT
#define __MINGW_IMPORT extern __declspec(dllimport)
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <bcrypt.h>
#include <intrin.h>

#include <assert.h>
#include <emmintrin.h>
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifndef _MSC_VER /* gcc, for wine */
#include <pthread.h>
#include <unistd.h>
#define _MSC_VER 1930
#undef __declspec
#define __declspec(what) __##what /* only "thread" is left */
#endif
#undef __GNUC__
#undef __clang__
