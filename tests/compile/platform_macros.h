/* Names that systems, compilers, C libraries and engines define as macros. A header of this library
   that uses one of them as a member, a parameter or a local variable does not compile after this
   file. Each expands to what cannot stand where a name stands; those with arguments are harmless
   unless the name is called, as on their platforms. */
#pragma GCC system_header /* so that what this system already defines may be defined again */

/* <windows.h> and what it includes */
#define far +clash +
#define near +clash +
#define FAR +clash +
#define NEAR +clash +
#define pascal +clash +
#define cdecl +clash +
#define small +clash +
#define hyper +clash +
#define interface +clash +
#define IN +clash +
#define OUT +clash +
#define OPTIONAL +clash +
#define CONST +clash +
#define VOID +clash +
#define TRUE +clash +
#define FALSE +clash +
#define ERROR +clash +
#define NO_ERROR +clash +
#define DELETE +clash +
#define STRICT +clash +
#define THIS +clash +
#define PURE +clash +
#define INTERFACE +clash +
#define ABSOLUTE +clash +
#define RELATIVE +clash +
#define OPAQUE +clash +
#define TRANSPARENT +clash +
#define ALTERNATE +clash +
#define IGNORE +clash +
#define INFINITE +clash +
#define CALLBACK +clash +
#define s_addr +clash +
#define s_host +clash +
#define s_net +clash +
#define h_addr +clash +
#define min(a, b) clash(
#define max(a, b) clash(
#define Yield() clash(
#define GetObject GetObjectA
#define SendMessage SendMessageA
/* a C library that counts allocations (MSVC's _CRTDBG_MAP_ALLOC, engines) */
#define malloc(size) (malloc)(size)
#define calloc(count, size) (calloc)(count, size)
#define realloc(block, size) (realloc)(block, size)
#define free(block) (free)(block)
#define strdup(text) (strdup)(text)
/* predefined by compilers in GNU mode */
#undef unix
#undef linux
#undef i386
#define unix +clash +
#define linux +clash +
#define i386 +clash +
#define sun +clash +
#define mips +clash +
#define sparc +clash +
#define vax +clash +
#define hpux +clash +
#define arm +clash +
/* <X11/X.h>, <X11/Xlib.h> */
#define None +clash +
#define Bool +clash +
#define Status +clash +
#define True +clash +
#define False +clash +
#define Success +clash +
#define Always +clash +
#define Above +clash +
#define Below +clash +
#define Complex +clash +
#define Convex +clash +
#define Unsorted +clash +
#define Expose +clash +
#define KeyPress +clash +
#define FocusIn +clash +
#define CurrentTime +clash +
/* <sys/sysmacros.h>, <termios.h>, <signal.h>, <complex.h>, BSD and newlib's <ctype.h> */
#undef major
#undef minor
#define major(dev) clash(
#define minor(dev) clash(
#define ECHO +clash +
#define B0 +clash +
#define complex +clash +
#define imaginary +clash +
#define I +clash +
#define _B +clash +
#define _C +clash +
#define _L +clash +
#define _N +clash +
#define _P +clash +
#define _S +clash +
#define _U +clash +
#define _X +clash +
/* Apple's <AssertMacros.h> and Objective-C */
#define check(condition) clash(
#define verify(condition) clash(
#define require(condition, label) clash(
#define nil +clash +
#define Nil +clash +
#define YES +clash +
#define NO +clash +
/* Arduino and other boards */
#define abs(x) clash(
#define round(x) clash(
#define constrain(x, low, high) clash(
#define radians(x) clash(
#define degrees(x) clash(
#define sq(x) clash(
#define bit(x) clash(
#define HIGH +clash +
#define LOW +clash +
#define INPUT +clash +
#define OUTPUT +clash +
#define DEFAULT +clash +
#define EXTERNAL +clash +
#define INTERNAL +clash +
#define PI +clash +
#define F(text) clash(
/* kernels, engines and common C headers */
#define unused +clash +
#define packed +clash +
#define likely(x) clash(
#define unlikely(x) clash(
#define container_of(p, type, member) clash(
#define countof(x) clash(
#define swap(a, b) clash(
#define forever +clash +
#define local +clash +
#define global +clash +
#define internal +clash +
#define DEBUG +clash +
#define NDEBUG_LEVEL +clash +
#define OK +clash +
#define FAIL +clash +
