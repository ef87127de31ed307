/* test.h - the test harness: cases with a time limit, checks that may fail in any thread, skips
   with a reason

       TEST(adds) {
           T(1 + 1 == 2);
           T_EQ(2, 1 + 1);
       }
       int main(int argc, char **argv) {
           static const test_case cases[] = {{"adds", adds, 10}};
           return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
       }

   A program takes words as arguments: only cases whose name contains one of them run. It ends
   with the line "N passed, N failed" and with exit code 0 when none failed. A case fails when a
   check failed, when it ran into its time limit (which ends the program), or when it leaves more
   descriptors or threads open than it found. */
#ifndef TEST_INCLUDED
#define TEST_INCLUDED

#ifdef _WIN32
#define _WIN32_WINNT 0x0a00
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <winsock2.h>
#include <windows.h>
#endif
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What takes longer than what it finds is worth each time runs with MORE=1, as .ci/run has it. */
static inline bool test_more(void) {
    const char *const more = getenv("MORE");
    return more && *more;
}

/* How much slower than usual everything may be: limits on time are multiplied by it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SLACK 10u
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SLACK 10u
#endif
#endif
#ifdef TEST_SLACK
#define TEST_SLOW 1
#else
#define TEST_SLOW 0
/* Limits of time are asserted at this multiple, since a shared machine may stop a process for a
   while; build the tests with -DTEST_STRICT to hold them to the letter on a quiet one. */
#ifdef TEST_STRICT
#define TEST_SLACK 1u
#else
#define TEST_SLACK 4u
#endif
#endif
/* How long a shared machine may stop all processes now and then, in ms: for what is asserted. */
#ifdef TEST_STRICT
#define TEST_STILL_MS 0u
#else
#define TEST_STILL_MS 400u
#endif
#if defined(__SANITIZE_THREAD__)
#define TEST_OWN_THREADS 1 /* ThreadSanitizer starts one of its own beside the first */
#define TEST_THREADS_WATCHED 1
#else
#define TEST_OWN_THREADS 0
#define TEST_THREADS_WATCHED 0
#endif

#define TEST_API __attribute__((unused)) static
#define TEST(name) static void name(void)

typedef struct test_case {
    const char *name;
    void (*func)(void);
    uint32_t limit_s;
} test_case;

TEST_API struct {
    const char *name;
    uint32_t failed_checks, passed, failed, skipped;
    bool skip;
} test__now;

/* Any thread. Returns `ok`, so that a test can stop where going on makes no sense. */
TEST_API bool test_check(bool ok, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
TEST_API bool test_check(bool ok, const char *file, int line, const char *format, ...) {
    char text[1200];
    va_list ap;
    if (ok) return true;
    if (__atomic_add_fetch(&test__now.failed_checks, 1, __ATOMIC_SEQ_CST) > 10) return false;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    printf("  %s:%d: %s\n", file, line, text);
    fflush(stdout);
    return false;
}

#define T(cond) test_check((cond), __FILE__, __LINE__, "%s", #cond)
#define T_EQ(want, got) test__equal((int64_t)(want), (int64_t)(got), #got, __FILE__, __LINE__)
#define T_TEXT(part, text) test__contains((part), (text), __FILE__, __LINE__)

TEST_API bool test__equal(int64_t want, int64_t got, const char *what, const char *file, int line) {
    return test_check(
        want == got, file, line, "%s is %lld, not %lld", what, (long long)got, (long long)want);
}

TEST_API bool test__contains(const char *part, const char *text, const char *file, int line) {
    return test_check(
        strstr(text, part) != NULL, file, line, "\"%s\" is not in \"%s\"", part, text);
}

/* The rest of this case is not run. Return after calling it. */
TEST_API void test_skip(const char *reason) {
    printf("SKIP %s: %s\n", test__now.name, reason);
    test__now.skip = true;
}

TEST_API uint64_t test_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

TEST_API void test_sleep_ms(uint32_t ms) {
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (nanosleep(&t, &t) != 0) {
    }
}

/* Processor time of this thread: what others do to the machine does not count. */
TEST_API uint64_t test_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* How many times longer than on an idle machine a case may take: tests/run_all.sh measures it. */
TEST_API uint32_t test__scale(void) {
    const char *text = getenv("TEST_SCALE");
    const int scale = text ? atoi(text) : 1;
    return scale >= 1 && scale <= 20 ? (uint32_t)scale : 1;
}

/* How many programs want to run for each processor; -1: not known. */
TEST_API double test__load(void) {
#ifdef _WIN32
    return -1;
#else
    double load = 0;
    if (getloadavg(&load, 1) != 1) return -1;
    return load / (double)sysconf(_SC_NPROCESSORS_ONLN);
#endif
}

/* The same, where more than that share the processors by now. */
TEST_API uint32_t test__scale_now(void) {
    uint32_t scale = test__scale();
#ifndef TEST_STRICT
    double load = test__load();
    if (load > 20) load = 20;
    if (load > (double)scale) scale = (uint32_t)load;
#endif
    return scale;
}

/* How many times later than on an idle machine something may be seen to happen: for what is
   asserted. TEST_SLACK is for deadlines that a test gives, and for how long it sleeps. */
#define TEST_LATE (TEST_SLACK * test__scale_now())

/* Until when to wait for what must happen: so late, on a busy machine too, that only what never
   happens comes to it. For a loop that waits: ask where the wait begins, after all that may take
   long. */
TEST_API uint64_t test_until_ns(uint32_t ms) {
    return test_now_ns() + (uint64_t)ms * TEST_LATE * 1000000u;
}

/* Something took at most `ms`: with -DTEST_STRICT to the letter, else with room for a machine
   that others use, too. */
#define T_WITHIN(ms, took_ns) test__within((uint64_t)(ms), (took_ns), __FILE__, __LINE__)
TEST_API bool test__within(uint64_t ms, uint64_t took_ns, const char *file, int line) {
    const uint64_t limit = ms * TEST_LATE + TEST_STILL_MS;
    return test_check(took_ns < limit * 1000000u, file, line, "it took %.1f ms, the limit is %llu",
        (double)took_ns / 1e6, (unsigned long long)limit);
}

/* A repeatable stream of numbers (splitmix64). */
TEST_API uint64_t test_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Entries of a directory, -1 where there is none (not Linux). Emulated Windows shows a /proc that
   counts the emulator's own. */
TEST_API int test__entries(const char *dir) {
#ifdef _WIN32
    DIR *d = NULL;
    (void)dir;
#else
    DIR *d = opendir(dir);
#endif
    int n = 0;
    if (!d) return -1;
    while (readdir(d))
        ++n;
    closedir(d);
    return n;
}

TEST_API void test__out_of_time(int signal_number) {
    char text[400];
    const int n =
        snprintf(text, sizeof text, "  %s: did not end in time\nnot ok %s\n%u passed, %u failed\n",
            test__now.name, test__now.name, test__now.passed, test__now.failed + 1);
    (void)signal_number;
    if (n > 0 && write(1, text, (size_t)n) < 0) _exit(3);
    _exit(1);
}

/* The case that runs must end within these seconds; 0: none runs. */
#ifdef _WIN32
static volatile LONG test__seconds_left;

static DWORD WINAPI test__watch(LPVOID unused) {
    for (;; Sleep(1000))
        if (test__seconds_left > 0 && InterlockedDecrement(&test__seconds_left) == 0)
            test__out_of_time(0);
    return unused ? 1 : 0;
}

TEST_API void test__alarm(uint32_t seconds) {
    InterlockedExchange(&test__seconds_left, (LONG)seconds);
}

TEST_API void test__alarm_begin(void) {
    CloseHandle(CreateThread(NULL, 0, test__watch, NULL, 0, NULL));
}
#else
TEST_API void test__alarm(uint32_t seconds) {
    alarm(seconds);
}

TEST_API void test__alarm_begin(void) {
    signal(SIGALRM, test__out_of_time);
}
#endif

/* The arguments are parts of names. */
TEST_API bool test__chosen(const test_case *c, int argc, char **argv) {
    bool any = argc < 2;
    for (int k = 1; k < argc; ++k)
        any = any || strstr(c->name, argv[k]);
    return any;
}

/* Seconds. What hangs must not take the time of all other tests where much slack meets a busy
   machine. */
TEST_API uint32_t test__limit(const test_case *c) {
    const uint32_t most = c->limit_s > 300 ? c->limit_s : 300,
                   limit = c->limit_s * TEST_SLACK * test__scale();
    return limit < most ? limit : most;
}

TEST_API void test__run(const test_case *c) {
    const int fds = test__entries("/proc/self/fd"),
              threads = test__entries("/proc/self/task") + TEST_OWN_THREADS;
    const uint64_t start = test_now_ns();
    const char *result = "ok";
    test__now.name = c->name;
    test__now.failed_checks = 0;
    test__now.skip = false;
    test__alarm(test__limit(c));
    c->func();
    test__alarm(0);
    /* a joined thread may still be listed */
    for (int i = 0; i < 100 && test__entries("/proc/self/task") > threads; ++i)
        test_sleep_ms(10);
    test_check(test__entries("/proc/self/fd") <= fds, c->name, 0,
        "descriptors are left open: %d before, %d after", fds, test__entries("/proc/self/fd"));
    test_check(test__entries("/proc/self/task") <= threads, c->name, 0,
        "threads are left running: %d before, %d after", threads, test__entries("/proc/self/task"));
    if (test__now.failed_checks) {
        result = "not ok";
        ++test__now.failed;
    } else if (test__now.skip) {
        result = "skipped";
        ++test__now.skipped;
    } else {
        ++test__now.passed;
    }
    printf("%s %s (%.0f ms)\n", result, c->name, (double)(test_now_ns() - start) / 1e6);
    fflush(stdout);
}

TEST_API int test_main(int argc, char **argv, const test_case *cases, size_t count) {
#ifdef _WIN32
    setvbuf(stdout, NULL, _IONBF, 0); /* it knows no lines there */
#else
    setvbuf(stdout, NULL, _IOLBF, 0);
#endif
    test__alarm_begin();
    for (size_t i = 0; i < count; ++i)
        if (test__chosen(&cases[i], argc, argv)) test__run(&cases[i]);
    printf("%u passed, %u failed\n", test__now.passed, test__now.failed);
    return test__now.failed ? 1 : 0;
}

#endif
