/* cdp_store.h: the store in a file. Its bytes, users that are killed at any byte, full disks,
   files that are no store, locks that nobody gives back, and many processes at once. */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include "test.h"

#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define OK(call) ended((call), CDP_OK, #call, __LINE__)
#define ST(call, status) ended((call), (status), #call, __LINE__)
#define TEXT(part) T_TEXT(part, cdp_last_error()->text)

static bool ended(cdp_status got, cdp_status want, const char *what, int line) {
    return test_check(got == want, __FILE__, line, "%s: %s: %s", what, cdp_status_name(got),
        got < 0 ? cdp_last_error()->text : "");
}

static char folder[64], path[80];

static const char *fresh(void) { /* a name of its own for each test */
    static uint32_t number;
    if (!*folder) {
        strcpy(folder, "/tmp/cdp_file_XXXXXX");
        if (!mkdtemp(folder)) abort();
    }
    cdp__format(path, sizeof path, "%s/store%u", folder, ++number);
    return path;
}

static cdp_store *user_open(uint32_t world_size) {
    const cdp_file_store_desc d = {.path = path, .world_size = world_size};
    cdp_store *s = NULL;
    OK(cdp_file_store_create(&d, &s));
    return s;
}

static bool value_is(cdp_store *s, const char *key, const char *want) {
    void *value = NULL;
    uint64_t bytes = 0;
    const cdp_status st = cdp_store_get(s, key, &value, &bytes, 1000);
    const bool ok =
        st == CDP_OK && bytes == strlen(want) && memcmp(value, want, (size_t)bytes) == 0;
    if (!ok)
        printf("  \"%s\" is %s, not \"%s\"\n", key,
            st == CDP_OK ? (const char *)value : cdp_status_name(st), want);
    cdp_store_free(s, value);
    return ok;
}

static uint64_t file_read(uint8_t *out, uint64_t room) {
    FILE *f = fopen(path, "rb");
    const uint64_t n = f ? fread(out, 1, (size_t)room, f) : 0;
    if (f) fclose(f);
    return f ? n : UINT64_MAX;
}

static void file_write(const void *data, uint64_t n) {
    FILE *f = fopen(path, "wb");
    if (!T(f && fwrite(data, 1, (size_t)n, f) == n)) abort();
    fclose(f);
}

static bool there(void) {
    return access(path, F_OK) == 0;
}

/* What PyTorch 1.13 writes for set k=v, add n 5, add n -7, delete k, compare_set x "" -> f;
   recorded. */
static const char recorded[] = "\2\0\0\0/k\1\0\0\0v"
                               "\2\0\0\0/n\1\0\0\0005"
                               "\2\0\0\0/n\2\0\0\0-2"
                               "\3\0\0\0-/k\0\0\0\0"
                               "\2\0\0\0/x\1\0\0\0f";
#define RECORDED (sizeof recorded - 1)
static const char joined[] = "\11\0\0\0refcount/\1\0\0\0001";
#define JOINED (sizeof joined - 1)

/* ---- the bytes ---- */

TEST(bytes) {
    uint8_t got[200];
    uint64_t n;
    int64_t sum;
    void *value;
    bool was;
    fresh();
    cdp_store *s = user_open(1);
    OK(cdp_store_set(s, "k", "v", 1));
    OK(cdp_store_add(s, "n", 5, &sum));
    OK(cdp_store_add(s, "n", -7, &sum));
    OK(cdp_store_delete(s, "k", &was));
    OK(cdp_store_delete(s, "k", &was)); /* not there: nothing to write */
    OK(cdp_store_compare_set(s, "x", "", 0, "f", 1, &value, &n));
    cdp_store_free(s, value);
    n = file_read(got, sizeof got);
    if (T(n == JOINED + RECORDED))
        T(memcmp(got, joined, JOINED) == 0 && memcmp(got + JOINED, recorded, RECORDED) == 0);
    cdp_store_destroy(s);
    T(!there());
}

TEST(leaving) {
    fresh();
    cdp_store *a = user_open(2), *b = user_open(2), *c;
    uint8_t got[300];
    uint64_t n;
    int64_t keys;
    OK(cdp_store_set(a, "k", "v", 1));
    OK(cdp_store_num_keys(b, &keys));
    T_EQ(2, keys); /* k, and the counter of users */
    cdp_store_destroy(a);
    T(there());
    T(value_is(b, "k", "v"));
    c = user_open(2); /* one that comes again, as after a restart */
    cdp_store_destroy(c);
    T(there()); /* two have left, but not all: */
    T(value_is(b, "k", "v"));
    cdp_store_destroy(b);
    T(!there());
    a = user_open(0);
    cdp_store_destroy(a);
    n = file_read(got, sizeof got);
    T(n > 20 && n < 100 && memcmp(got, joined, JOINED) == 0); /* without a world size it stays */
    unlink(path);
}

/* All have left, but the last one was killed before it removed the file: the next run finds
   nothing of this one. */
TEST(left_behind) {
    static const char all[] = "\2\0\0\0/k\1\0\0\0v"
                              "\11\0\0\0refcount/\1\0\0\0001"
                              "\10\0\0\0cleanup/\1\0\0\0002"
                              "\11\0\0\0refcount/\1\0\0\0000";
    void *value;
    int64_t n;
    fresh();
    file_write(all, sizeof all - 1);
    cdp_store *s = user_open(3); /* of another size: not theirs to judge */
    T(value_is(s, "k", "v"));
    cdp_store_destroy(s);
    T(!there()); /* the third one has left */
    file_write(all, sizeof all - 1);
    s = user_open(2);
    cdp_store *t = user_open(2);
    ST(cdp_store_get(s, "k", &value, NULL, 10), CDP_ERR_TIMEOUT);
    OK(cdp_store_num_keys(t, &n));
    T_EQ(1, n);
    OK(cdp_store_set(s, "k", "new", 3));
    T(value_is(t, "k", "new"));
    cdp_store_destroy(s);
    T(there());
    cdp_store_destroy(t);
    T(!there());
}

/* The file is removed under a user's feet, by hand or by the last user of another run, and made
   anew. */
TEST(replaced_file) {
    fresh();
    cdp_store *a = user_open(5), *b, *c;
    void *value;
    int64_t n;
    OK(cdp_store_set(a, "old", "1", 1));
    unlink(path);
    ST(cdp_store_get(a, "old", &value, NULL, 20), CDP_ERR_TIMEOUT);
    OK(cdp_store_num_keys(a, &n));
    T_EQ(0, n);
    T(!there()); /* who reads makes no file */
    b = user_open(1);
    OK(cdp_store_set(b, "new", "2", 1));
    OK(cdp_store_set(
        b, "longer", "than the old file was, so that the old place lies in the middle", 64));
    T(value_is(a, "new", "2"));
    ST(cdp_store_get(a, "old", &value, NULL, 20), CDP_ERR_TIMEOUT);
    OK(cdp_store_set(a, "both", "3", 1));
    T(value_is(b, "both", "3"));
    cdp_store_destroy(b);
    T(!there());
    c = user_open(9);
    cdp_store_destroy(a); /* it never read this file, so it does not count itself off in it */
    OK(cdp_store_num_keys(c, &n));
    T_EQ(1, n);
    cdp_store_destroy(c);
    T(there());
    unlink(path);
}

/* ---- half records ---- */

/* A user was killed at any byte of a record, or of several: what is whole counts, what is not is
   cut off by the next one. */
TEST(torn_at_every_byte) {
    uint8_t all[300], got[400];
    memcpy(all, joined, JOINED);
    memcpy(all + JOINED, recorded, RECORDED);
    const uint64_t total = JOINED + RECORDED;
    fresh();
    for (uint64_t n = 4; n <= total; ++n)
        for (uint32_t reader = 0; reader < 2; ++reader) {
            uint64_t whole = 0, bytes;
            cdp_store *s;
            cdp__record r;
            bool is = false;
            static const char *const x[1] = {"x"};
            while (cdp__record_next(all + whole, n - whole, n - whole, &r) == CDP__RECORD_WHOLE
                && whole < n)
                whole += r.bytes;
            if (reader) { /* torn while it watches */
                file_write(all, whole);
                s = user_open(7);
                bytes = file_read(got, sizeof got);
                memcpy(got + bytes, all + whole, n - whole);
                file_write(got, bytes + n - whole); /* the same file: truncated and written */
                OK(cdp_store_check(s, x, 1, &is));
                T_EQ(bytes, file_read(got, sizeof got)); /* a reader cuts, too */
            } else {
                file_write(all, n);
                s = user_open(7);
                OK(cdp_store_check(s, x, 1, &is));
                bytes = file_read(got, sizeof got);
                T(bytes > whole && memcmp(got, all, whole) == 0
                    && cdp__record_next(got + whole, bytes - whole, bytes - whole, &r)
                        == CDP__RECORD_WHOLE
                    && whole + r.bytes == bytes);
            }
            T(is == (whole == total));
            OK(cdp_store_set(s, "after", "it", 2));
            T(value_is(s, "after", "it"));
            cdp_store_destroy(s);
            s = user_open(7);
            T(value_is(s, "after", "it"));
            cdp_store_destroy(s);
            unlink(path);
        }
}

/* Real processes that write all the time, killed at random moments; the others must go on, and
   lose nothing that was said to be done. */
typedef struct shared {
    uint64_t done[8];
} shared;

static void writer_process(uint32_t id, shared *sh) {
    static char value[200000];
    cdp_store *s = user_open(0);
    char key[16];
    cdp__format(key, sizeof key, "w%u", id);
    memset(value, 'a' + (int)id, sizeof value);
    for (;;) {
        int64_t n;
        if (cdp_store_add(s, key, 1, &n) != CDP_OK) _exit(3);
        __atomic_store_n(&sh->done[id], (uint64_t)n, __ATOMIC_SEQ_CST);
        if (cdp_store_set(s, "big", value, sizeof value - (uint64_t)n % 1000) != CDP_OK) _exit(4);
        /* or the file becomes huge where the killer comes late */
        if (n % 16 == 0) test_sleep_ms(1);
    }
}

static bool ends_torn(void) {
    struct stat st;
    uint8_t *all;
    uint64_t n, at = 0;
    cdp__record r;
    if (!T(stat(path, &st) == 0)) return false;
    all = (uint8_t *)malloc((size_t)st.st_size + 1);
    n = file_read(all, (uint64_t)st.st_size);
    while (at < n && cdp__record_next(all + at, n - at, n - at, &r) == CDP__RECORD_WHOLE)
        at += r.bytes;
    free(all);
    return at != n;
}

TEST(killed_writers) {
    shared *sh =
        (shared *)mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t random = 5;
    uint32_t torn = 0;
    for (uint32_t round = 0; round < 30; ++round) {
        pid_t pids[2];
        void *value = NULL;
        uint64_t bytes = 0, wrong = 0;
        int64_t n;
        fresh();
        cdp_store *s = user_open(0);
        memset(sh, 0, sizeof *sh);
        for (uint32_t i = 0; i < 2; ++i)
            if (!(pids[i] = fork())) writer_process(i, sh);
        for (uint32_t i = 0; i < 2; ++i) {
            test_sleep_ms(1 + (uint32_t)(test_random(&random) % 4));
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
            if (i) torn += ends_torn();
            OK(cdp_store_add(s, i ? "w1" : "w0", 0, &n));
            T((uint64_t)n >= __atomic_load_n(&sh->done[i], __ATOMIC_SEQ_CST));
            T((uint64_t)n <= __atomic_load_n(&sh->done[i], __ATOMIC_SEQ_CST) + 1);
        }
        T(!ends_torn());
        if (cdp_store_get(s, "big", &value, &bytes, 1) == CDP_OK)
            for (uint64_t i = 0; i < bytes; ++i)
                wrong += ((const char *)value)[i] != *(const char *)value;
        T_EQ(0, wrong);
        cdp_store_free(s, value);
        cdp_store_destroy(s);
        unlink(path);
    }
    printf("  %u of 30 files ended in the middle of a record\n", torn);
    munmap(sh, sizeof *sh);
}

/* ---- files that are no store, and damage ---- */

static void refused(const void *data, uint64_t n, cdp_status status, const char *text) {
    uint8_t got[4096];
    const cdp_file_store_desc d = {.path = path, .world_size = 1, .timeout_ms = 2000};
    cdp_store *s;
    if (data) file_write(data, n);
    ST(cdp_file_store_create(&d, &s), status);
    T(!s);
    TEXT(text);
    TEXT(folder);
    /* and not touched */
    if (data) T(file_read(got, sizeof got) == n && memcmp(got, data, (size_t)n) == 0);
}

TEST(no_store) {
    static const char script[] = "#!/bin/sh\necho hello\n", zeros[100] = "",
                      wrong_key[] = "\2\0\0\0kk\1\0\0\0v";
    const cdp_file_store_desc none = {.path = NULL}, empty = {.path = ""};
    cdp_store *s;
    cdp_file_store_desc d = {.path = path};
    fresh();
    refused(script, sizeof script - 1, CDP_ERR_STORE, "not the file of a store");
    refused(zeros, sizeof zeros, CDP_ERR_STORE, "no record at byte 0");
    refused(wrong_key, sizeof wrong_key - 1, CDP_ERR_STORE, "no record at byte 0");
    refused("hi\n", 3, CDP_ERR_STORE, "no record at byte 0");
    /* so short that it might be the start of one */
    refused("1", 1, CDP_ERR_STORE, "no record at byte 0");
    unlink(path);
    T(mkdir(path, 0700) == 0);
    refused(NULL, 0, CDP_ERR_IO, "errno");
    rmdir(path);
    T(mkfifo(path, 0600) == 0);
    refused(NULL, 0, CDP_ERR_INVALID, "no regular file");
    unlink(path);
    cdp__format(path, sizeof path, "%s/not/there", folder);
    refused(NULL, 0, CDP_ERR_IO, "errno");
    T_EQ(ENOENT, cdp_last_error()->sys_errno);
    ST(cdp_file_store_create(NULL, &s), CDP_ERR_INVALID);
    ST(cdp_file_store_create(&none, &s), CDP_ERR_INVALID);
    ST(cdp_file_store_create(&empty, &s), CDP_ERR_INVALID);
    TEXT("path");
    ST(cdp_file_store_create(&d, NULL), CDP_ERR_INVALID);
}

/* Somebody else's bytes in the middle: every call says so, none crashes, none hangs, and what
   was there stays there. */
TEST(damage) {
    uint8_t all[400];
    uint64_t n;
    void *value;
    fresh();
    cdp_store *s = user_open(1), *b = user_open(1);
    OK(cdp_store_set(s, "k", "v", 1));
    n = file_read(all, sizeof all);
    memcpy(all + n, "what is this", 12);
    file_write(all, n + 12);
    ST(cdp_store_get(s, "k", &value, NULL, 1000), CDP_ERR_STORE);
    TEXT("damaged");
    ST(cdp_store_set(b, "k", "w", 1), CDP_ERR_STORE);
    ST(cdp_store_set(b, "k", "w", 1), CDP_ERR_STORE);
    T_EQ(n + 12, file_read(all, sizeof all));
    file_write(all, n); /* somebody repairs it */
    T(value_is(s, "k", "v"));
    cdp_store_destroy(s);
    cdp_store_destroy(b);
    T(!there());
}

TEST(folder_without_rights) {
    const cdp_file_store_desc d = {.path = path};
    cdp_store *s;
    int status = 0;
    pid_t pid;
    fresh();
    if (getuid() == 0) {
        T(chmod(folder, 0555) == 0);
        pid = fork(); /* root may do everything; nobody may not */
        if (!pid) {
            if (setgid(65534) != 0 || setuid(65534) != 0) _exit(9);
            const bool refused = cdp_file_store_create(&d, &s) == CDP_ERR_IO;
            _exit(refused && cdp_last_error()->sys_errno == EACCES
                        && strstr(cdp_last_error()->text, path)
                    ? 0
                    : 1);
        }
        waitpid(pid, &status, 0);
        T(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        T(chmod(folder, 0700) == 0);
    } else {
        T(chmod(folder, 0555) == 0);
        ST(cdp_file_store_create(&d, &s), CDP_ERR_IO);
        T_EQ(EACCES, cdp_last_error()->sys_errno);
        TEXT(path);
        T(chmod(folder, 0700) == 0);
    }
}

/* ---- a full disk ---- */

static void fill_up(int err) {
    static char value[100000];
    uint8_t *before = (uint8_t *)malloc(4000000), *after = (uint8_t *)malloc(4000000);
    static const char *const keys[2] = {"one", "two"};
    const cdp_bytes values[2] = {{"1", 1}, {value, sizeof value}};
    cdp_store *s = user_open(1);
    uint32_t i;
    uint64_t n;
    bool is = true;
    cdp_status st = CDP_OK;
    OK(cdp_store_set(s, "k", "kept", 4));
    for (i = 0; i < 100 && st == CDP_OK; ++i) {
        n = file_read(before, 4000000);
        memset(value, 'a' + (int)(i % 26), sizeof value);
        st = cdp_store_set(s, "fill", value, sizeof value);
    }
    T(st == CDP_ERR_IO && i > 1);
    T_EQ(err, cdp_last_error()->sys_errno);
    TEXT(path);
    TEXT("nothing of it was kept");
    /* nothing half written */
    T(file_read(after, 4000000) == n && memcmp(before, after, (size_t)n) == 0);
    ST(cdp_store_multi_set(s, keys, values, 2), CDP_ERR_IO);
    OK(cdp_store_check(s, keys, 1, &is));
    T(!is);                      /* all or nothing */
    T(value_is(s, "k", "kept")); /* still readable, by this one and a new one */
    {
        void *v = NULL;
        uint64_t bytes = 0;
        OK(cdp_store_get(s, "fill", &v, &bytes, 0));
        /* the last one that succeeded */
        T(bytes == sizeof value && *(const char *)v == (char)('a' + (i - 2) % 26));
        cdp_store_free(s, v);
    }
    unlink(path);
    OK(cdp_store_set(s, "k", "room again", 10));
    T(value_is(s, "k", "room again"));
    cdp_store_destroy(s);
    free(before);
    free(after);
}

TEST(file_size_limit) {
    struct rlimit old, small;
    fresh();
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 350123;
    setrlimit(RLIMIT_FSIZE, &small);
    fill_up(EFBIG);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    unlink(path);
}

TEST(full_disk) {
    char mounted[80];
    fresh();
    cdp__format(mounted, sizeof mounted, "%s/disk", folder);
    T(mkdir(mounted, 0700) == 0);
    if (mount("tmpfs", mounted, "tmpfs", 0, "size=512k") != 0) {
        test_skip("this user may not mount a small tmpfs (file_size_limit tries the same with "
                  "another limit)");
    } else {
        cdp__format(path, sizeof path, "%s/disk/store", folder);
        fill_up(ENOSPC);
        T(umount(mounted) == 0);
    }
    rmdir(mounted);
}

/* ---- locks and clocks ---- */

TEST(locked_by_a_process_that_stands_still) {
    const cdp_file_store_desc d = {.path = path, .timeout_ms = 100};
    cdp_store *s, *leaver, *none;
    uint64_t start;
    int to[2];
    char c;
    pid_t pid;
    fresh();
    s = user_open(2);
    leaver = user_open(2);
    if (pipe(to) != 0) abort();
    pid = fork();
    if (!pid) {
        const int fd = open(path, O_RDWR);
        if (flock(fd, LOCK_EX) != 0 || write(to[1], "x", 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    T(read(to[0], &c, 1) == 1);
    cdp_store_set_timeout(s, 100);
    start = test_now_ns();
    ST(cdp_store_set(s, "k", "v", 1), CDP_ERR_TIMEOUT);
    T(test_now_ns() - start > 99 * CDP__MS);
    T_WITHIN(130, test_now_ns() - start);
    TEXT("locked");
    TEXT(path);
    start = test_now_ns();
    ST(cdp_file_store_create(&d, &none), CDP_ERR_TIMEOUT);
    T(!none);
    T_WITHIN(130, test_now_ns() - start);
    TEXT("locked");
    start = test_now_ns();
    cdp_store_destroy(leaver); /* bounded; and it is not counted off */
    T_WITHIN(130, test_now_ns() - start);
    TEXT("locked");     /* leaving hides no error */
    kill(pid, SIGKILL); /* its lock dies with it */
    waitpid(pid, NULL, 0);
    OK(cdp_store_set(s, "k", "v", 1));
    T(value_is(s, "k", "v"));
    cdp_store_destroy(s);
    T(there());
    close(to[0]);
    close(to[1]);
    unlink(path);
}

static void private_refused(const char *text) {
    const cdp_file_store_desc d = {.path = path, .private_file = true, .timeout_ms = 1000};
    cdp_store *s;
    ST(cdp_file_store_create(&d, &s), CDP_ERR_INVALID);
    TEXT(path);
    TEXT(text);
}

/* In a folder where everybody may put files: neither what a link leads to nor what others can
   write is taken for the store. */
TEST(private_files) {
    const cdp_file_store_desc d = {.path = path, .private_file = true, .timeout_ms = 1000};
    char target[300];
    struct stat st;
    cdp_store *s;
    fresh();
    OK(cdp_file_store_create(&d, &s));
    OK(cdp_store_set(s, "k", "v", 1));
    T(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    cdp_store_destroy(s);
    if (chmod(path, 0620) != 0) abort();
    private_refused("mode 620");
    unlink(path);
    snprintf(target, sizeof target, "%s.target", path);
    if (symlink(target, path) != 0) abort();
    private_refused("is a symbolic link");
    T(stat(target, &st) != 0); /* and nothing was made */
    unlink(path);
    if (geteuid() != 0) return;
    close(open(path, O_CREAT | O_WRONLY, 0600));
    if (chown(path, 1, 1) != 0) abort();
    private_refused("belongs to user 1");
    unlink(path);
}

static int64_t clock_jump; /* nanoseconds that the clock is ahead */
static uint32_t clock_reads, clock_jump_at;

static uint64_t jumping_now(void *user) {
    (void)user;
    if (++clock_reads == clock_jump_at) clock_jump += 3600000 * (int64_t)CDP__MS;
    return (uint64_t)((int64_t)cdp_os_default()->now_ns(NULL) + clock_jump);
}

/* The wall clock and the times of files play no part. Where the clock of the os jumps, a wait
   ends, late keys or not. */
TEST(clock_jumps) {
    static const char *const keys[1] = {"never"};
    /* of access in the year 2096, of change in 1970 */
    const struct timespec times[2] = {{4000000000, 0}, {1, 0}};
    cdp_os os = *cdp_os_default();
    os.now_ns = jumping_now;
    const cdp_file_store_desc d = {.path = fresh(), .world_size = 1, .os = &os};
    cdp_store *s = NULL;
    uint64_t start = test_now_ns();
    OK(cdp_file_store_create(&d, &s));
    OK(cdp_store_set(s, "k", "v", 1));
    T(utimensat(AT_FDCWD, path, times, 0) == 0);
    T(value_is(s, "k", "v"));
    clock_jump_at = clock_reads + 20;
    ST(cdp_store_wait(s, keys, 1, 600000), CDP_ERR_TIMEOUT);
    T(clock_reads >= clock_jump_at);
    T_WITHIN(3000, test_now_ns() - start);
    cdp_store_destroy(s);
    T(!there());
}

TEST(waiting_costs_little) {
    static const char *const keys[1] = {"never"};
    struct rusage before, after;
    double ms;
    fresh();
    cdp_store *s = user_open(1);
    getrusage(RUSAGE_SELF, &before);
    ST(cdp_store_wait(s, keys, 1, 500), CDP_ERR_TIMEOUT);
    getrusage(RUSAGE_SELF, &after);
    ms = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec
             - before.ru_stime.tv_sec)
            * 1e3
        + (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec
              - before.ru_stime.tv_usec)
            / 1e3;
    test_check(ms < 25 * TEST_SLACK, __FILE__, __LINE__,
        "half a second of waiting took %.1f ms of a processor", ms);
    cdp_store_destroy(s);
}

/* ---- many processes ---- */

enum {
    PROCESSES = 6,
    ADDS = 60
};

static int worker_process(uint32_t id) {
    cdp_store *s = user_open(PROCESSES);
    const char *const go[1] = {"go"};
    int64_t n;
    char key[16];
    if (!s || cdp_store_add(s, "ready", 1, &n) != CDP_OK) return 1;
    if (n == PROCESSES && cdp_store_set(s, "go", "1", 1) != CDP_OK) return 2;
    if (cdp_store_wait(s, go, 1, 60000) != CDP_OK) return 3;
    for (uint32_t i = 0; i < ADDS; ++i) {
        if (cdp_store_add(s, "sum", id + 1, NULL) != CDP_OK) return 4;
        if (cdp_store_append(s, "log", "x", 1) != CDP_OK) return 5;
    }
    cdp__format(key, sizeof key, "end%u", id);
    if (cdp_store_set(s, key, "1", 1) != CDP_OK) return 6;
    for (uint32_t i = 0; i < PROCESSES; ++i) {
        const char *const end[1] = {key};
        cdp__format(key, sizeof key, "end%u", i);
        if (cdp_store_wait(s, end, 1, 60000) != CDP_OK) return 7;
    }
    if (cdp_store_add(s, "sum", 0, &n) != CDP_OK || n != ADDS * PROCESSES * (PROCESSES + 1) / 2)
        return 8;
    void *value;
    uint64_t bytes;
    if (cdp_store_get(s, "log", &value, &bytes, 1000) != CDP_OK || bytes != ADDS * PROCESSES)
        return 9;
    cdp_store_free(s, value);
    cdp_store_destroy(s);
    return 0;
}

TEST(many_processes) {
    pid_t pids[PROCESSES];
    fresh();
    for (uint32_t i = 0; i < PROCESSES; ++i)
        if (!(pids[i] = fork())) _exit(worker_process(i));
    for (uint32_t i = 0; i < PROCESSES; ++i) {
        int status = 0;
        waitpid(pids[i], &status, 0);
        test_check(WIFEXITED(status) && WEXITSTATUS(status) == 0, __FILE__, __LINE__,
            "process %u ended with %x", i, (unsigned)status);
    }
    T(!there()); /* the last one removed it */
}

/* A store made before a fork: parent and child do not fall into each other's words. */
TEST(fork_in_between) {
    int64_t n;
    pid_t pid;
    fresh();
    cdp_store *s = user_open(0);
    pid = fork();
    for (uint32_t i = 0; i < 300; ++i)
        OK(cdp_store_add(s, "n", 1, &n));
    if (!pid) _exit(test__now.failed_checks ? 1 : 0);
    int status = 0;
    waitpid(pid, &status, 0);
    T(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(cdp_store_add(s, "n", 0, &n));
    T_EQ(600, n);
    cdp_store_destroy(s);
    unlink(path);
}

/* Values larger than a piece of reading, and records that lie across its end. */
TEST(large_records) {
    char *big = (char *)malloc(3000000);
    uint64_t random = 9;
    fresh();
    cdp_store *s = user_open(1), *late;
    for (uint32_t i = 0; i < 3000000; ++i)
        big[i] = (char)test_random(&random);
    for (uint32_t i = 0; i < 40; ++i) {
        char key[16];
        cdp__format(key, sizeof key, "%u", i);
        OK(cdp_store_set(s, key, big + i, i == 17 ? 2900000 : i * 1777 % 70000));
    }
    late = user_open(1);
    for (uint32_t i = 0; i < 40; ++i) {
        char key[16];
        void *value = NULL;
        uint64_t bytes = 0;
        cdp__format(key, sizeof key, "%u", i);
        OK(cdp_store_get(late, key, &value, &bytes, 100));
        T(bytes == (i == 17 ? 2900000 : i * 1777 % 70000)
            && (!bytes || memcmp(value, big + i, (size_t)bytes) == 0));
        cdp_store_free(late, value);
    }
    cdp_store_destroy(late);
    cdp_store_destroy(s);
    free(big);
}

/* ---- files that fail, and no files ---- */

static uint32_t file_calls, file_fails_at; /* from 1; 0: never */
static bool file_in_pieces;                /* reads and writes move one byte */

static bool file_fails(void) {
    return ++file_calls == file_fails_at;
}

static int32_t failing_open(void *user, const char *at, uint32_t how) {
    return file_fails() ? -EIO : cdp_os_default()->files.open_file(user, at, how);
}

static int64_t failing_read(void *user, int32_t fd, uint64_t at, void *to, uint64_t n) {
    if (file_fails()) return -EIO;
    return cdp_os_default()->files.read_at(user, fd, at, to, file_in_pieces ? 1 : n);
}

/* A failure comes after half of the bytes. */
static int64_t failing_write(void *user, int32_t fd, uint64_t at, const void *from, uint64_t n) {
    const bool fails = file_fails();
    if (file_in_pieces) n = 1;
    if (!fails) return cdp_os_default()->files.write_at(user, fd, at, from, n);
    (void)cdp_os_default()->files.write_at(user, fd, at, from, n / 2);
    return -EIO;
}

static int32_t failing_cut(void *user, int32_t fd, uint64_t n) {
    return file_fails() ? -EIO : cdp_os_default()->files.cut_file(user, fd, n);
}

static int32_t failing_lock(void *user, int32_t fd, cdp_file_lock lock) {
    if (lock != CDP_FILE_UNLOCK && file_fails()) return -EIO;
    return cdp_os_default()->files.lock_file(user, fd, lock);
}

static int32_t failing_info(void *user, int32_t fd, cdp_file_info *out) {
    return file_fails() ? -EIO : cdp_os_default()->files.file_info(user, fd, out);
}

static int32_t failing_remove(void *user, const char *at) {
    return file_fails() ? -EIO : cdp_os_default()->files.remove_file(user, at);
}

static int32_t failing_close(void *user, int32_t fd) {
    const bool fails = file_fails();
    const int32_t r = cdp_os_default()->files.close_file(user, fd);
    return fails ? -EIO : r;
}

static cdp_os failing_files(void) {
    cdp_os os = *cdp_os_default();
    os.files.open_file = failing_open;
    os.files.close_file = failing_close;
    os.files.read_at = failing_read;
    os.files.write_at = failing_write;
    os.files.cut_file = failing_cut;
    os.files.lock_file = failing_lock;
    os.files.file_info = failing_info;
    os.files.remove_file = failing_remove;
    return os;
}

static uint32_t descriptors_open(void) {
    uint32_t n = 0;
    for (int fd = 0; fd < 256; ++fd)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static bool ok_or_failed(cdp_status st, const char *what) {
    if (st == CDP_OK) return true;
    test_check(st == CDP_ERR_IO && cdp_last_error()->sys_errno == EIO, __FILE__, __LINE__,
        "call %u fails, %s: %s: %s", file_fails_at, what, cdp_status_name(st),
        cdp_last_error()->text);
    return false;
}

/* One user of a file, whose calls of the system begin to be counted here: what it was told is what
   another user finds. */
static void user_whose_files_fail(const cdp_os *os) {
    const cdp_file_store_desc d = {.path = path, .os = os};
    cdp_store *s = NULL;
    int64_t told = 0, sum = 0;
    void *value = NULL;
    uint64_t bytes;
    bool was;
    file_calls = 0;
    if (!ok_or_failed(cdp_file_store_create(&d, &s), "create")) return;
    for (uint32_t i = 0; i < 3; ++i)
        if (ok_or_failed(cdp_store_add(s, "n", 5, &sum), "add")) T_EQ(told += 5, sum);
    if (ok_or_failed(cdp_store_set(s, "k", "value", 5), "set")
        && ok_or_failed(cdp_store_get(s, "k", &value, &bytes, 100), "get")) {
        T(bytes == 5 && memcmp(value, "value", 5) == 0);
        cdp_store_free(s, value);
    }
    (void)ok_or_failed(cdp_store_delete(s, "k", &was), "delete");
    cdp_store *other = user_open(0);
    OK(cdp_store_add(other, "n", 0, &sum));
    T_EQ(told, sum);
    cdp_store_destroy(other);
    cdp_store_destroy(s);
}

TEST(every_call_for_a_file_fails_once) {
    const cdp_os os = failing_files();
    const uint32_t before = descriptors_open();
    uint32_t calls;
    file_fails_at = 0;
    fresh();
    user_whose_files_fail(&os);
    unlink(path);
    calls = file_calls;
    T(calls > 30);
    for (file_fails_at = 1; file_fails_at <= calls; ++file_fails_at) {
        user_whose_files_fail(&os);
        unlink(path);
    }
    T_EQ(before, descriptors_open());
    file_fails_at = 0;
}

TEST(files_read_and_written_in_pieces) {
    const cdp_os os = failing_files();
    file_in_pieces = true;
    fresh();
    user_whose_files_fail(&os);
    file_in_pieces = false;
    unlink(path);
}

TEST(an_os_without_files) {
    cdp_os os = *cdp_os_default();
    const cdp_file_store_desc d = {.path = fresh(), .os = &os};
    cdp_store *s = NULL;
    memset(&os.files, 0, sizeof os.files);
    ST(cdp_file_store_create(&d, &s), CDP_ERR_UNSUPPORTED);
    TEXT(path);
    TEXT("has no files");
    T(!s && !there());
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"bytes", bytes, 10},
        {"leaving", leaving, 10},
        {"left_behind", left_behind, 10},
        {"replaced_file", replaced_file, 10},
        {"torn_at_every_byte", torn_at_every_byte, 20},
        {"killed_writers", killed_writers, 60},
        {"no_store", no_store, 10},
        {"damage", damage, 10},
        {"folder_without_rights", folder_without_rights, 10},
        {"file_size_limit", file_size_limit, 20},
        {"full_disk", full_disk, 20},
        {"locked_by_a_process_that_stands_still", locked_by_a_process_that_stands_still, 20},
        {"private_files", private_files, 20},
        {"clock_jumps", clock_jumps, 20},
        {"waiting_costs_little", waiting_costs_little, 20},
        {"many_processes", many_processes, 60},
        {"fork_in_between", fork_in_between, 20},
        {"large_records", large_records, 20},
        {"every_call_for_a_file_fails_once", every_call_for_a_file_fails_once, 20},
        {"files_read_and_written_in_pieces", files_read_and_written_in_pieces, 20},
        {"an_os_without_files", an_os_without_files, 20},
    };
    const int failed = test_main(argc, argv, cases, sizeof cases / sizeof *cases);
    if (*folder) rmdir(folder);
    return failed;
}
