#!/bin/sh
# test_cdprun.sh CDPRUN SCRATCH - tests the launcher (tools/cdprun.c) from outside, with real processes.
#
# Prints one line per check and ends with "N passed, N failed". Needs a shell, coreutils, a C compiler (CC, default gcc)
# and /proc. CDPRUN_KILLS (default 50) says how often launcher and ranks are killed at random moments. Every process of a test carries CDPTEST=<test> in its environment, and "gone" looks for that in all of /proc:
# so it also finds processes that have left their session, their group and their parents.

if [ $# -ne 2 ]; then echo "usage: $0 path/to/cdprun scratch-directory" >&2; exit 2; fi
mkdir -p "$2" || exit 2
case $1 in /*) C=$1 ;; *) C=$(pwd)/$1 ;; esac
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
cd "$2" || exit 2
D=$(pwd)
H=$D/helper
passed=0 failed=0
ID=$$                                            # tests of other checkouts may run at the same time
mkdir -p tmp && export TMPDIR="$D/tmp"            # launchers that are killed with their keepers leave folders there
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT NO_COLOR CDPTEST CDP_JOB_KEY

ok()    { passed=$((passed + 1)); echo "ok $1"; }
fail()  { failed=$((failed + 1)); echo "FAIL $1: $2"; }
check() { if [ "$2" = "$3" ]; then ok "$1"; else fail "$1" "got '$2', expected '$3'"; fi; }
has()   { case $(cat "$2") in *"$3"*) ok "$1" ;; *) fail "$1" "no '$3' in: $(head -c 600 "$2")" ;; esac; }
hasnot() { case $(cat "$2") in *"$3"*) fail "$1" "'$3' found" ;; *) ok "$1" ;; esac; }
gone()  { if left=$("$H" gone "$2" $((3000 * slack))); then ok "$1"; else fail "$1" "still alive: $left"; fi; }
ms()    { echo $(($(date +%s%N) / 1000000)); }
slack=${TEST_SCALE:-1}                            # how many times longer things may take; run_all.sh measures it
within() { between "$1" "$2" "$3" $(($4 * slack)); } # NAME MS LEAST MOST
tenths() { printf '%d.%d\n' $(($1 * slack / 10)) $(($1 * slack % 10)); } # of a second
between() { if [ "$2" -ge "$3" ] && [ "$2" -le "$4" ]; then ok "$1"; else fail "$1" "$2 is not in $3..$4"; fi; }
random_below() { echo $(($(od -An -N2 -tu2 /dev/urandom) % $1)); }
pause_ms() { sleep "$(printf '0.%03d' "$1")"; }
await_file() { n=0; while [ ! -s "$1" ] && [ $n -lt $((2000 * slack)) ]; do sleep 0.01; n=$((n + 1)); done; }

cat > helper.c <<'EOF'
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void nap(long ms) { struct timespec t = { ms / 1000, ms % 1000 * 1000000 }; nanosleep(&t, NULL); }

/* Writes pid.RANK for the test, so that it knows whom to kill. */
static void tell_pid(void) {
    char path[64], text[32];
    snprintf(path, sizeof path, "%s.%s", getenv("PIDFILE") ? getenv("PIDFILE") : "pid", getenv("RANK"));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    if (write(fd, text, (size_t)n) != n) _exit(9);
    close(fd);
}

static void stubborn(void) { signal(SIGTERM, SIG_IGN); signal(SIGINT, SIG_IGN); signal(SIGHUP, SIG_IGN); alarm(60); for (;;) pause(); }

/* A child in the same group, one in its own session, and a grandchild of that: none of them listens to SIGTERM. */
static void grow_tree(void) {
    if (fork() == 0) stubborn();
    if (fork() == 0) { setsid(); if (fork() == 0) { setsid(); stubborn(); } stubborn(); }
}

/* The payload of line i: 1 to 200 bytes, all known. */
static int payload(char *p, unsigned rank, unsigned i) {
    int n = 1 + (int)((i * 2654435761u + rank * 40503u) >> 8) % 200;
    for (int k = 0; k < n; ++k) p[k] = (char)('!' + (i + (unsigned)k + rank) % 90);
    p[n] = '\n';
    return n + 1;
}

static int flood(unsigned rank, long bytes) {
    char line[256];
    unsigned i = 0;
    for (long done = 0; done < bytes; ++i) {
        int n = payload(line, rank, i);
        fwrite(line, 1, (size_t)n, stdout);
        done += n;
    }
    return 0;
}

/* Checks "[r] payload" lines of all ranks on stdin: each rank's lines complete and in order. */
static int flood_check(int ranks, long bytes) {
    static char line[4096];
    char want[256];
    unsigned next[64] = { 0 };
    long got[64] = { 0 };
    while (fgets(line, sizeof line, stdin)) {
        unsigned r;
        int skip = 0;
        if (sscanf(line, "[%u] %n", &r, &skip) != 1 || skip == 0 || r >= (unsigned)ranks) { printf("bad line %.80s", line); return 1; }
        int n = payload(want, r, next[r]++);
        if (strlen(strchr(line, ' ') + 1) != (size_t)n || memcmp(strchr(line, ' ') + 1, want, (size_t)n) != 0) {
            printf("rank %u line %u differs\n", r, next[r] - 1);
            return 1;
        }
        got[r] += n;
    }
    for (int r = 0; r < ranks; ++r) if (got[r] < bytes || got[r] > bytes + 256) { printf("rank %d: %ld bytes\n", r, got[r]); return 1; }
    puts("whole");
    return 0;
}

static long parent_of(long pid, char *state) {
    char path[64], text[512];
    long parent = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char *p = strrchr(text, ')');
    if (!p || sscanf(p + 1, " %c %ld", state, &parent) != 2) return 0;
    return parent;
}

static int carries(long pid, const char *cookie) {
    static char env[1 << 17];
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/environ", pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t n, all = 0;
    while ((n = read(fd, env + all, sizeof env - 1 - (size_t)all)) > 0) all += n;
    close(fd);
    env[all] = 0;
    for (char *p = env; p < env + all; p += strlen(p) + 1)
        if (strncmp(p, "CDPTEST=", 8) == 0 && strcmp(p + 8, cookie) == 0) return 1;
    return 0;
}

static int each(const char *cookie, int print) {
    DIR *d = opendir("/proc");
    int count = 0;
    for (struct dirent *e; (e = readdir(d));) {
        long pid = atol(e->d_name);
        if (pid <= 0 || pid == getpid() || !carries(pid, cookie)) continue;
        ++count;
        if (print) printf("%ld ", pid);
    }
    closedir(d);
    return count;
}

static int gone(const char *cookie, long ms) {
    for (; ms > 0; ms -= 5) { if (each(cookie, 0) == 0) return 0; nap(5); }
    return each(cookie, 1) != 0;
}

static int child_of(long pid, int wait_ms) {
    for (; wait_ms >= 0; wait_ms -= 2) {
        DIR *d = opendir("/proc");
        char state;
        for (struct dirent *e; (e = readdir(d));)
            if (atol(e->d_name) > 0 && parent_of(atol(e->d_name), &state) == pid) { puts(e->d_name); return 0; }
        closedir(d);
        nap(2);
    }
    return 1;
}

static int listen_on(const char *port) {            /* without SO_REUSEADDR, as the most demanding server would */
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port)) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 5) != 0;
}

static volatile sig_atomic_t count_int;
static void on_int(int s) { (void)s; ++count_int; }
static int count_sigint(void) {
    signal(SIGINT, on_int);
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < 15000 && count_int == 0; ++i) nap(2);
    nap(200);
    printf("interrupts %d\n", (int)count_int);
    return 0;
}

/* Runs a command on a terminal of its own; types `keys` as soon as "ready" has come twice (once if keys is empty). */
static int on_terminal(const char *keys, char **argv) {
    static char all[1 << 16];
    size_t len = 0;
    int m = posix_openpt(O_RDWR | O_NOCTTY), typed = 0, status;
    if (m < 0 || grantpt(m) != 0 || unlockpt(m) != 0) return 99;
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        int s = open(ptsname(m), O_RDWR);
        ioctl(s, TIOCSCTTY, 0);
        dup2(s, 0); dup2(s, 1); dup2(s, 2);
        close(s); close(m);
        signal(SIGINT, SIG_DFL);                     /* shells ignore it in background jobs */
        execv(argv[0], argv);
        _exit(98);
    }
    for (;;) {
        struct pollfd p = { .fd = m, .events = POLLIN };
        if (poll(&p, 1, 30000) <= 0) { kill(pid, SIGKILL); break; }
        ssize_t n = read(m, all + len, sizeof all - 1 - len);
        if (n <= 0) break;
        if (write(1, all + len, (size_t)n) < 0) break;
        len += (size_t)n;
        all[len] = 0;
        char *first = strstr(all, "ready");
        if (!typed && first && strstr(first + 1, "ready")) { typed = 1; if (write(m, keys, strlen(keys)) < 0) break; }
    }
    waitpid(pid, &status, 0);
    printf("\nterminal: %s %d\n", WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return 0;
}

static int cpu_ticks(long pid) {
    char path[64], text[512];
    unsigned long u = 0, s = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    sscanf(strrchr(text, ')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &u, &s);
    return (int)(u + s);
}

static int joined(void) {                            /* "[0] aaa", "[0]+aaa", ...: the length of the line they make */
    static char line[1 << 18];
    long total = 0;
    int n = 0, bad = 0;
    while (fgets(line, sizeof line, stdin)) {
        size_t len = strcspn(line, "\n");
        if (strncmp(line, n++ == 0 ? "[0] " : "[0]+", 4) != 0) bad = 1;
        for (size_t i = 4; i < len; ++i) bad |= line[i] != 'a' + (char)((total + (long)i - 4) % 26);
        total += (long)len - 4;
    }
    printf("%s %ld\n", bad ? "bad" : "good", total);
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argv[1];
    const char *rank = getenv("RANK") ? getenv("RANK") : "0";
    if (argc < 2) return 90;
    if (!strcmp(mode, "tree")) { tell_pid(); grow_tree(); alarm(60); for (;;) pause(); }
    if (!strcmp(mode, "plain")) { tell_pid(); alarm(60); for (;;) pause(); }
    if (!strcmp(mode, "stubborn")) { tell_pid(); stubborn(); }
    if (!strcmp(mode, "leave")) { grow_tree(); return 0; }
    if (!strcmp(mode, "flood")) return flood((unsigned)atoi(rank), atol(argv[2]));
    if (!strcmp(mode, "flood-check")) return flood_check(atoi(argv[2]), atol(argv[3]));
    if (!strcmp(mode, "gone")) return gone(argv[2], atol(argv[3]));
    if (!strcmp(mode, "alive")) { printf("%d\n", each(argv[2], 0)); return 0; }
    if (!strcmp(mode, "child-of")) return child_of(atol(argv[2]), 2000);
    if (!strcmp(mode, "listen")) return listen_on(getenv("MASTER_PORT"));
    if (!strcmp(mode, "count-sigint")) return count_sigint();
    if (!strcmp(mode, "terminal")) return on_terminal(argv[2], argv + 3);
    if (!strcmp(mode, "cpu")) { printf("%d\n", cpu_ticks(atol(argv[2]))); return 0; }
    if (!strcmp(mode, "long")) { for (long i = 0; i < atol(argv[2]); ++i) putchar('a' + (int)(i % 26)); return 0; }
    if (!strcmp(mode, "joined")) return joined();
    if (!strcmp(mode, "default-signals")) {          /* shells ignore SIGINT and SIGQUIT in background jobs */
        signal(SIGINT, SIG_DFL); signal(SIGQUIT, SIG_DFL);
        execvp(argv[2], argv + 2);
        return 92;
    }
    if (!strcmp(mode, "own-group")) { setpgid(0, 0); execvp(argv[2], argv + 2); return 92; }
    if (!strcmp(mode, "many-fds")) { printf("%d\n", open("/dev/null", O_RDONLY)); return 0; }
    return 91;
}
EOF
${CC:-gcc} -O1 -Wall -o helper helper.c || { echo "FAIL build: the helper does not compile"; echo "0 passed, 1 failed"; exit 1; }

# ---- environment

"$C" -n 3 --env EXTRA='a b=c' --env OTHER= sh -c 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR ${MASTER_PORT:+port} ($EXTRA) (${OTHER-unset})"' > out 2> err
check env-exit "$?" 0
check env-values "$(sort out)" "[0] 0 0 3 3 127.0.0.1 port (a b=c) ()
[1] 1 1 3 3 127.0.0.1 port (a b=c) ()
[2] 2 2 3 3 127.0.0.1 port (a b=c) ()"
check env-silent "$(cat err)" ""
outer() {                                            # as inside a worker of another launcher
    env TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_ERROR_FILE=/outer/error.json TORCHELASTIC_RESTART_COUNT=7 TORCHELASTIC_MAX_RESTARTS=9 \
        TORCHELASTIC_RUN_ID=outer GROUP_RANK=5 GROUP_WORLD_SIZE=6 ROLE_RANK=11 ROLE_WORLD_SIZE=12 ROLE_NAME=outer MASTER_PORT=1 MASTER_ADDR=x RANK=3 "$@"
}
outer "$C" -n 2 sh -c 'echo $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK $ROLE_WORLD_SIZE $ROLE_NAME $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID $TORCHELASTIC_USE_AGENT_STORE' > out
check env-torchrun "$(sort out)" "[0] 0 1 0 2 default 0 0 none False
[1] 0 1 1 2 default 0 0 none False"
check env-outer-error-file "$(outer "$C" -n 1 sh -c 'case $TORCHELASTIC_ERROR_FILE in /outer/*) echo outer ;; *) echo own ;; esac')" "[0] own"
check env-omp "$(unset OMP_NUM_THREADS; "$C" -n 2 --cores-per-rank 1 sh -c 'echo $OMP_NUM_THREADS' | sort; "$C" -n 1 sh -c 'echo ${OMP_NUM_THREADS-unset}'; OMP_NUM_THREADS=4 "$C" -n 2 sh -c 'echo $OMP_NUM_THREADS' | sort)" "[0] 1
[1] 1
[0] unset
[0] 4
[1] 4"
check env-omp-cores "$(unset OMP_NUM_THREADS; "$C" -n 1 --cores-per-rank 3 sh -c 'echo $OMP_NUM_THREADS' 2>&1 | sort)" "[0] 3
cdprun: OMP_NUM_THREADS is not set: 3 for each rank"
check bind-numa "$("$C" -n 1 --numa-binding node sh -c 'echo bound')" "[0] bound"
if [ "$(nproc)" -gt 1 ]; then
    check bind-core "$("$C" -n 2 --bind core --cores-per-rank 1 sh -c 'taskset -cp $$ | sed "s/.*: //"' | sed 's/.* //' | sort -u | wc -l)" 2
    "$C" -n 2 --bind core --cores-per-rank 4096 true 2> err
    check bind-too-many "$? $(sed 's/the [0-9]* that/the N that/' err)" "2 cdprun: --bind core: 2 ranks with 4096 cores each need more than the N that cdprun may use (see cdprun --help)"
else
    echo "SKIP bind-core, bind-too-many: one processor"
fi
usage bind-mode "--bind must be none, core or numa, not 'socket'" -n 2 --bind socket true
usage numa-mode "--numa-binding socket is not taken" -n 2 --numa-binding socket true
check descriptors-not-leaked "$("$C" -n 3 "$H" many-fds | sort)" "[0] 3
[1] 3
[2] 3"
check separator "$("$C" -n 1 -- echo -n x)" "[0] x"
check nested "$("$C" -n 2 "$C" -n 2 sh -c 'echo $RANK' | sort)" "[0] [0] 0
[0] [1] 1
[1] [0] 0
[1] [1] 1"

# ---- output

"$C" -n 11 sh -c 'echo out; echo err >&2' > out 2> err
check prefix-aligned "$(sort out | head -n 2; sort out | tail -n 1)" "[ 0] out
[ 1] out
[10] out"
check stderr-apart "$(wc -l < err) $(sort err | head -n 1)" "11 [ 0] err"
check partial-line "$("$C" -n 2 printf 'no end' | sort)" "[0] no end
[1] no end"
check empty-lines "$("$C" -n 1 printf '\n\nx\n')" "[0] 
[0] 
[0] x"
check crlf "$("$C" -n 1 printf 'a\r\nb\r\n')" "[0] a
[0] b"
check progress "$("$C" -n 1 printf '\r1%%\r2%%\r3%%\r100%%\ndone\n')" "[0] 1%
[0] 100%
[0] done"
check progress-held "$("$C" -n 1 sh -c 'printf "1%%\r2%%\r3%%\r"; sleep 1.2; printf "\nend\n"')" "[0] 1%
[0] 3%
[0] end"
printf 'a\r\nb\rc\0d\n\nno end' > bytes
"$C" -n 1 --no-prefix cat bytes | cmp -s - bytes; check no-prefix-exact "$?" 0
check no-prefix-whole-lines "$("$C" -n 3 --no-prefix sh -c 'printf a; sleep 0.1; printf "b\nc"' | sort)" "ab
ab
ab
c
c
c"
check long-line "$("$C" -n 1 "$H" long 3000001 | "$H" joined)" "good 3000001"
check long-line-no-prefix "$("$C" -n 1 --no-prefix "$H" long 3000001 | cksum)" "$("$H" long 3000001 | cksum)"
rm -f out
"$C" -n 1 sh -c 'echo now; exec sleep 50' > out 2> err & pid=$!   # a line is shown while its rank still runs
await_file out; check prompt "$(cat out)" "[0] now"
kill -TERM $pid; wait $pid
"$C" -n 1 --color always echo x > out; has color-always out "$(printf '\033[36m[0]\033[0m x')"
"$C" -n 4 "$H" flood 10000000 > out; check flood-exit "$?" 0
check flood-nothing-lost "$("$H" flood-check 4 10000000 < out)" whole
check flood-slow-reader "$("$C" -n 4 "$H" flood 1000000 | (sleep 0.3; "$H" flood-check 4 1000000))" whole
"$C" -n 2 sh -c 'if [ $RANK = 0 ]; then "$0" flood 2000000; else RANK=1 "$0" flood 2000000 >&2; fi' "$H" > out 2>&1
check flood-both-in-one-file "$("$H" flood-check 2 2000000 < out)" whole
rm -f out
begin=$(ms); CDPTEST=$ID.head "$C" -n 2 --grace 1 yes 2> err | head -n 1 > out
check reader-gone "$(head -c 1 out)$(cat err)" "["
within reader-gone-time $(($(ms) - begin)) 0 2000
gone reader-gone-gone $ID.head
(CDPTEST=$ID.block "$C" -n 2 --timeout 0.5 yes 2> err; echo $? > code) | (n=0
    while "$H" alive $ID.block > alive; [ "$(cat alive)" != 2 ] && [ $n -lt $((30 * slack)) ]; do sleep 0.1; n=$((n + 1)); done
    sleep 0.8; "$H" alive $ID.block > alive; cat > drained)
check blocked-reader-timeout "$(cat code) $(cat alive)" "124 2"
"$C" -n 2 echo x > /dev/full 2> err; check full-disk "$? $(cat err)" "1 cdprun: cannot write output, dropping it: No space left on device"
closed=$("$C" -n 2 sh -c 'echo out; echo err >&2' 2>&1 >&-; echo $?)
check closed-stdout "$(echo "$closed" | sort)" "0
[0] err
[1] err"

# ---- input

check stdin-rank-0 "$(echo hello | "$C" -n 3 sh -c 'read -r x; echo "($x)"' | sort)" "[0] (hello)
[1] ()
[2] ()"
check stdin-none "$(echo hello | "$C" -n 2 --no-stdin sh -c 'read -r x; echo "($x)"' | sort)" "[0] ()
[1] ()"

# ---- failures

CDPTEST=$ID.f1 "$C" -n 4 --grace 0.2 sh -c 'if [ $RANK = 2 ]; then echo the reason >&2; echo noise; exit 7; fi; sleep 50' > out 2> err
check failure-code "$?" 7
has failure-notice err "cdprun: rank 2 failed: exit code 7 after 0."
has failure-first err "cdprun: first failure: rank 2, exit code 7 after 0."
has failure-tail err "its last lines on stderr:
    the reason
cdprun: how"
has failure-others err "ranks 0-1      SIGTERM from cdprun after 0."
has failure-own-line err "rank 2         exit code 7 after 0."
gone failure-gone $ID.f1
"$C" -n 2 --grace 0.2 sh -c 'echo "to stdout $RANK"; [ $RANK = 0 ] || kill -SEGV $$; sleep 50' > out 2> err
check signal-code "$?" 139
has signal-name err "first failure: rank 1, killed by SIGSEGV"
has signal-stdout-tail err "its last lines on stdout:
    to stdout 1
"
rm -f first
"$C" -n 3 --grace $((5 * slack)) sh -c '[ $RANK = 1 ] && { echo 1 > first; exit 3; }; while [ ! -s first ]; do sleep 0.01; done; sleep "$0"; exit 4' "$(tenths 2)" > out 2> err
check first-failure-code "$?" 3
has first-failure-report err "first failure: rank 1, exit code 3"
has first-failure-others err "exit code 4"
hasnot first-failure-only err "first failure: rank 0"
"$C" -n 3 sh -c 'if [ $RANK = 1 ]; then kill -KILL $$; fi; exec sleep 50' > out 2> err & pid=$!
sleep "$(tenths 3)"; check failure-waits "$(kill -0 $pid && echo running)" running
kill -TERM $pid; wait $pid; check failure-then-signal "$?" 137
"$C" -n 1 sh -c 'i=0; while [ $i -lt 2000 ]; do echo "line $i" >&2; i=$((i + 1)); done; exit 1' > out 2> err
tail -n 400 err > report
has tail-last report "    line 1999
cdprun: how"
has tail-whole-lines err "its last lines on stderr:
    line 1"
case $(tail -c 6200 err) in *"    line 1600
"*"    line 1999
"*) ok tail-4-KiB ;; *) fail tail-4-KiB "the report does not hold the last 4 KiB" ;; esac
hasnot tail-bounded report "    line 1500
"
"$C" -n 2 sh -c '[ $RANK = 0 ] && exit 5; sleep 0.3; echo finished' > out 2> err
check grace-code "$?" 5
has grace-survivor-finishes out "[1] finished"
begin=$(ms); CDPTEST=$ID.st PIDFILE=$D/st "$C" -n 3 --grace 0.3 sh -c '[ $RANK = 0 ] && { sleep "$1"; exit 6; }; exec "$0" stubborn' "$H" "$(tenths 1)" > out 2> err
check stubborn-code "$?" 6
within stubborn-time $(($(ms) - begin)) 600 2500
has stubborn-killed err "SIGKILL from cdprun"
gone stubborn-gone $ID.st
check sigchld-ignored "$(sh -c 'trap "" CHLD; exec "$0" -n 2 sh -c "exit 3"' "$C" 2> err; echo $?)" 3
"$C" -n 2 --grace 0.2 sh -c '[ $RANK = 0 ] && exit 9; kill -STOP $$' > out 2> err; check stopped-rank "$?" 9
CDPTEST=$ID.lv "$C" -n 2 --grace 0.2 "$H" leave > out 2> err
check leftovers-code "$? $(cat err)" "0 "
gone leftovers-gone $ID.lv
CDPTEST=$ID.tr PIDFILE=$D/tr "$C" -n 2 --grace 0.1 sh -c '"$0" tree & [ $RANK = 0 ] && { sleep 0.2; exit 8; }; wait' "$H" > out 2> err
check grandchildren-code "$?" 8
gone grandchildren-gone $ID.tr

# ---- starting

"$C" -n 4 ./no-such-program > out 2> err
check not-found-code "$?" 127
check not-found-once "$(cat err)" "cdprun: cannot run './no-such-program': No such file or directory"
PATH=/usr/bin:/bin "$C" -n 4 no-such-program-anywhere 2> err; check not-found-in-path "$? $(wc -l < err)" "127 1"
PATH=/usr/bin:/bin "$C" -n 2 helper.c 2> err
check not-found-here "$? $(cat err)" "127 cdprun: cannot run 'helper.c': No such file or directory; for the file of this folder write ./ before its name"
"$C" -n 4 ./helper.c 2> err
check not-executable "$? $(cat err)" "126 cdprun: cannot run './helper.c': Permission denied"
printf '#!/no/such/interpreter\n' > script; chmod +x script
"$C" -n 2 ./script 2> err; check bad-interpreter "$? $(wc -l < err)" "127 1"
has bad-interpreter-hint err "interpreter"

# ---- the spellings of torchrun

check spelled-nproc "$("$C" --nproc-per-node 2 sh -c 'echo $WORLD_SIZE' | sort)$("$C" --nproc_per_node=1 sh -c 'echo $WORLD_SIZE')$("$C" --nproc-per-node=auto sh -c 'echo $WORLD_SIZE' | wc -l)" "[0] 2
[1] 2[0] 1$(getconf _NPROCESSORS_ONLN)"
outer="CDP_ELASTIC_ID=00112233445566778899aabbccddeeff CDP_ELASTIC_SERVERS=h:1,h:2,h:3 CDP_ELASTIC_JOB=outer"
check nested-stay "$(env $outer "$C" -n 1 --standalone --stay sh -c 'echo ${CDP_ELASTIC_SERVERS-none}; [ $CDP_ELASTIC_ID = 00112233445566778899aabbccddeeff ] && echo taken; [ "$CDP_ELASTIC_JOB" = outer ] && echo taken; true')" "[0] none"
check nested-plain "$(env $outer "$C" -n 1 sh -c 'echo ${CDP_ELASTIC_ID-none}')" "[0] none"
check spelled-stay "$("$C" -n 1 --standalone --stay --rdzv-endpoint h:1 sh -c 'echo $CDP_ELASTIC $MASTER_ADDR')" "[0] 1:1 127.0.0.1"
check spelled-rest "$("$C" --standalone --nnodes=1:1 --nproc_per_node 1 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 --rdzv_id job.7 --max_restarts=3 --no_python --monitor-interval 1 --role=trainer --master_addr 127.0.0.2 sh -c 'echo $MASTER_ADDR $ROLE_NAME $TORCHELASTIC_RUN_ID $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS')" "[0] 127.0.0.2 trainer job.7 0/3"
check key-made "$("$C" -n 2 --no-prefix sh -c 'echo $CDP_JOB_KEY' | sort -u | grep -cE '^[0-9a-f]{64}$')" 1
check key-per-job "$( ("$C" -n 1 sh -c 'echo $CDP_JOB_KEY'; "$C" -n 1 sh -c 'echo $CDP_JOB_KEY') | sort -u | wc -l)" 2
check key-kept "$(CDP_JOB_KEY=mine "$C" -n 1 sh -c 'echo $CDP_JOB_KEY')" "[0] mine"
echo from-file > key
check key-file "$(CDP_JOB_KEY=mine "$C" -n 1 --job-key-file key sh -c 'echo $CDP_JOB_KEY')" "[0] from-file"
check key-open "$(CDP_JOB_KEY=mine "$C" -n 1 --open sh -c 'echo ${CDP_JOB_KEY-unset} $CDP_TRUST_NETWORK')" "[0] unset 1"
check key-closed "$(CDP_TRUST_NETWORK=1 "$C" -n 1 sh -c 'echo ${CDP_TRUST_NETWORK-unset}')" "[0] unset"

# Warnings about a key that others can read, or guess: never an error.
warned() { # name, expected part of the warning or "" for none
    if [ -n "$2" ]; then has "key-warning-$1" err "cdprun: warning: $2"; else check "key-warning-$1" "$(cat err)" ""; fi
}
printf '%s\n' 0123456789abcdef0123 > key; chmod 600 key
"$C" -n 1 --job-key-file key true 2> err; warned none ""
chmod 640 key; "$C" -n 1 --job-key-file key true 2> err; warned open "other users may read or write the job key in key (mode 640)"
ln -sf key keylink; chmod 600 key; "$C" -n 1 --job-key-file keylink true 2> err; warned link ""
echo short > key; "$C" -n 1 --job-key-file key true 2> err; warned short "the job key has 5 characters"
CDP_JOB_KEY=mine "$C" -n 1 true 2> err; warned short-variable "the job key has 4 characters"
if [ "$(id -u)" = 0 ]; then
    printf '%s\n' 0123456789abcdef0123 > key; chown 1 key; "$C" -n 1 --job-key-file key true 2> err; warned owner "the file of the job key, key, belongs to another user (1)"
    rm -f key
else echo "SKIP key-warning-owner: not root"; fi

check macro "$("$C" -n 2 echo 'a${local_rank}b${local_rank}' '${local_rank' '$local_rank' | sort)" '[0] a0b0 ${local_rank $local_rank
[1] a1b1 ${local_rank $local_rank'
check macro-in-command "$("$C" -n 1 sh -c 'echo x' '${local_rank}')" "[0] x"
check module "$(PYTHON_EXEC=echo "$C" -n 1 -m pack.mod --x 1)$(PYTHON_EXEC=echo "$C" -n 1 --module pack)" "[0] -u -m pack.mod --x 1[0] -u -m pack"
check script-python "$(PYTHON_EXEC=echo "$C" -n 1 train.py 7)" "[0] -u train.py 7"
printf '#!/bin/sh\necho own $1\n' > own.py; chmod +x own.py
check script-no-python "$(PYTHON_EXEC=echo "$C" -n 1 --no-python ./own.py 7)" "[0] own 7"
check pet "$(PET_NPROC_PER_NODE=2 PET_MAX_RESTARTS=3 PET_ROLE=r PET_STANDALONE=1 "$C" sh -c 'echo $WORLD_SIZE $ROLE_NAME $TORCHELASTIC_MAX_RESTARTS' | sort -u)$(PET_NPROC_PER_NODE=2 "$C" -n 1 sh -c 'echo $WORLD_SIZE')" "[0] 2 r 3
[1] 2 r 3[0] 1"
check filter "$("$C" -n 3 --local-ranks-filter 0,2 sh -c 'echo $RANK' | sort)" "[0] 0
[2] 2"
check gpus "$(CUDA_VISIBLE_DEVICES=3,GPU-12ab,-1,0 "$C" -n gpu sh -c 'echo $LOCAL_RANK' | sort)" "[0] 0
[1] 1"
check gpus-env "$(CUDA_VISIBLE_DEVICES=0,1,2,3 "$C" -n gpu --env CUDA_VISIBLE_DEVICES=2,5 sh -c 'echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES' | sort)" "[0] 0 2,5
[1] 1 2,5"
gpus=$(ls -d /dev/nvidia[0-9]* 2> /dev/null | wc -l)
check gpu-files "$(unset CUDA_VISIBLE_DEVICES; "$C" --nproc-per-node gpu echo x 2>&1 | grep -c -e ' x$' -e 'there is no GPU')" "$((gpus > 0 ? gpus : 1))"
own='echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES ${0}'
check virtual-local-rank "$(unset CUDA_VISIBLE_DEVICES; "$C" -n 2 --no-prefix --virtual-local-rank sh -c "$own" '${local_rank}' | sort)" "0 0 0 0
1 0 1 1"
check virtual-local-rank-of-list "$(CUDA_VISIBLE_DEVICES=5,GPU-7,1 "$C" -n 2 --no-prefix --max-restarts 1 --virtual-local-rank sh -c "$own; exit "'$((1 - TORCHELASTIC_RESTART_COUNT))' x 2> /dev/null | sort -u)" "0 0 5 x
1 0 GPU-7 x"
check virtual-local-rank-of-env "$(CUDA_VISIBLE_DEVICES=9 "$C" -n 2 --no-prefix --env CUDA_VISIBLE_DEVICES=4,6 --virtual-local-rank sh -c "$own" x | sort)" "0 0 4 x
1 0 6 x"
"$C" -n 2 --health-file health sh -c 'sleep 0.6' & pid=$!
n=0; until grep -q HEALTHY health 2> /dev/null || [ $n -ge 500 ]; do sleep 0.01; n=$((n + 1)); done
has health-runs health '{"state": "HEALTHY", "time": '
has health-counts health '"ranks": 2, "running": 2}'
wait $pid; has health-over health '{"state": "SUCCEEDED", "time": '
"$C" -n 1 --grace 0 --health-file health sh -c 'exit 3' 2> err; has health-failed health '"FAILED"'
"$C" -n 1 --health-file /no/such/health true 2> err; check health-nowhere "$?" 1
has health-nowhere-text err '/no/such/health: No such file'
check without-effect "$("$C" -n 1 --rdzv-conf=timeout=900,is_host=1 --local-addr 127.0.0.1 --start-method spawn --use_env --event-log-handler null --signals-to-handle SIGTERM,SIGINT --shutdown-timeout 30 sh -c 'echo good')" "[0] good"

# Every option that cdprun knows is in its help: those that it takes, and those that it does not.
missing=$("$C" --help > help; sed -n '/^static const option_row option_table\[\]/,/^};/s/^ *{"\(-[^"]*\)".*/\1/p' "$ROOT/tools/cdprun_options.h" | tr ' ' '\n' | while read -r o; do grep -q -e "$o\b" help || echo "$o"; done)
check help-names-every-option "$missing" ""

# ---- children that the caller had before it became cdprun are not the job's

lives() { # NAME PID: it sleeps, or is just about to; then it is ended
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$2/status" 2> /dev/null)
    case $state in
    [SRD]) ok "$1"; kill "$2" ;;
    *) fail "$1" "process $2 was killed: state '$state'" ;;
    esac
}
CDPTEST=$ID.own sh -c 'sleep 60 & echo $! > own.pid; exec "$0" -n 1 true' "$C"; code=$?
check own-child-code "$code" 0
lives own-child-lives "$(cat own.pid)"
began=$(ms)
rm -f ok.0 # that of a run before in the same folder
(sh -c 'sleep 60 & echo $! > own.pid; exec env CDPTEST='"$ID"'.ownk PIDFILE='"$D"'/ok "$0" -n 1 "$1" plain' "$C" "$H" > out 2> err) & pid=$!
await_file ok.0
front=$("$H" child-of "$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$(cat ok.0)/status")/status")" > /dev/null; sed -n 's/^PPid:[[:space:]]*//p' "/proc/$(cat ok.0)/status")
kill -KILL "$front"; wait $pid 2> /dev/null
gone own-child-keeper-killed $ID.ownk
within own-child-keeper-ms $(($(ms) - began)) 0 8000
lives own-child-lives-on "$(cat own.pid)"

# ---- files

logs() { (cd "$1" && find . -name '*.log' | sort | while read -r f; do echo "${f#./*/}: $(tr '\n' ' ' < "$f")"; done); }
both='echo out $RANK; echo err $RANK >&2'
rm -rf logs
check redirects "$("$C" -n 3 --log-dir logs/deep -r 0:3,1:1 sh -c "$both" 2>&1 | sort)" "[1] err 1
[2] err 2
[2] out 2"
check redirects-files "$(logs logs/deep)" "attempt_0/0/stderr.log: err 0 
attempt_0/0/stdout.log: out 0 
attempt_0/1/stdout.log: out 1 "
case $(ls logs/deep) in none_??????) ok log-dir-name ;; *) fail log-dir-name "$(ls logs/deep)" ;; esac
rm -rf logs
check tee "$("$C" -n 2 --log-dir logs --rdzv-id a/b --tee 3 --redirects 3 sh -c "$both" 2>&1 | sort)" "[0] err 0
[0] out 0
[1] err 1
[1] out 1"
check tee-files "$(logs logs/a_b_*)" "0/stderr.log: err 0 
0/stdout.log: out 0 
1/stderr.log: err 1 
1/stdout.log: out 1 "
rm -rf logs; "$C" -n 1 --log-dir logs -r3 sh -c 'echo the reason >&2; exit 3' 2> err
check redirects-code "$?" 3
has redirects-tail err "its last lines on stderr:
    the reason"
rm -rf logs; "$C" -n 2 --log-dir logs --tee 1 "$H" flood 3000000 > out
check tee-flood "$("$H" flood-check 2 3000000 < out) $(cat logs/*/attempt_0/0/stdout.log | cksum)" "whole $(RANK=0 "$H" flood 3000000 | cksum)"
rm -rf logs out

# ---- error files

record='printf "%s" "$0" > $TORCHELASTIC_ERROR_FILE; echo "$TORCHELASTIC_ERROR_FILE" > errorfile; exit 5'
json='{"message": {"message": "RuntimeError: a \"b\" \\ \u00e4\ud83d\ude00\n c", "extraInfo": {"py_callstack": "x", "timestamp": "1"}}}'
TMPDIR=$D "$C" -n 1 sh -c "$record" "$json" 2> err
has error-file err "first failure: rank 0, exit code 5 after 0."
has error-file-text err 's: RuntimeError: a "b" \ ä😀  c; it wrote nothing'
check error-file-gone "$(ls -d "$(dirname "$(cat errorfile)")" cdprun_* 2> /dev/null)" ""
# Rank 1 fails first, and says so with the time in its error file, but rank 0 is the first to end.
stamp() { printf '{"message": {"message": "%s", "extraInfo": {"timestamp": "1", "timestamp_us": "%s"}}}' "$1" "$2"; }
"$C" -n 2 --grace 3 sh -c 'if [ $RANK = 1 ]; then printf "%s" "$0" > $TORCHELASTIC_ERROR_FILE; sleep 0.5; exit 7; fi; sleep 0.2; printf "%s" "$1" > $TORCHELASTIC_ERROR_FILE; exit 6' "$(stamp cause 1000001)" "$(stamp victim 1000002)" 2> err
check error-file-time-code "$?" 7
has error-file-time err "first failure: rank 1, exit code 7"
"$C" -n 1 sh -c "$record" '{"message": "short form"}' 2> err; has error-file-short err "s: short form; it wrote"
"$C" -n 1 "$C" -n 1 sh -c "$record" '{"message": "deep"}' 2> err; has error-file-nested err "
cdprun: first failure: rank 0, exit code 5 after 0."
check error-file-nested-message "$(grep -c '^cdprun: .*s: rank 0, exit code 5 after .* s: deep; its last lines on stderr:' err)" 1
rm -rf logs; "$C" -n 1 --log-dir logs sh -c 'case $TORCHELASTIC_ERROR_FILE in /*) exit 0 ;; esac; exit 1' 2> err; check error-file-absolute "$?" 0
for broken in '{"message": {"message": "cut' '{"message"' '{"message": 7}' '{"message": "\u12' '{"message": "\' '' '"message""message":"x'; do
    "$C" -n 1 sh -c "$record" "$broken" 2> err; check "error-file-broken" "$? $(grep -c 'first failure: rank 0, exit code 5' err)" "5 1"
done
rm -rf logs; "$C" -n 2 --log-dir logs sh -c '[ $RANK = 1 ] && echo "{\"message\": \"m\"}" > $TORCHELASTIC_ERROR_FILE; exit $RANK' 2> err
check error-file-kept "$(cat logs/none_*/attempt_0/1/error.json)" '{"message": "m"}'
check error-file-no-place "$(TMPDIR=/no/such "$C" -n 1 sh -c 'echo ${TORCHELASTIC_ERROR_FILE-unset}')" "[0] unset"
TMPDIR=$D CDPTEST=$ID.ef PIDFILE=$D/ef "$C" -n 1 "$H" plain > out 2> err & pid=$!
await_file ef.0; keeper=$("$H" child-of $pid); kill -KILL $pid 2> /dev/null; wait $pid 2> /dev/null
gone error-file-killed $ID.ef
n=0; while [ -d "/proc/$keeper" ] && [ $n -lt $((300 * slack)) ]; do sleep 0.01; n=$((n + 1)); done
check error-file-killed-dir "$(ls -d cdprun_* 2> /dev/null)" ""
# Both are killed: a later launcher removes their folder, but none of one that lives, and no other.
mkdir -p swept && TMPDIR=$D/swept CDPTEST=$ID.sw PIDFILE=$D/sw "$C" -n 1 "$H" plain > out 2> err & pid=$!
await_file sw.0; keeper=$("$H" child-of $pid); kill -KILL "$keeper" $pid; wait $pid 2> /dev/null
gone sweep-killed $ID.sw
dead=$(ls swept)
mkdir swept/cdprun_other_abcdef; touch -d '1 hour ago' swept/* ; echo x > "swept/$dead/error.json"; touch -d '1 hour ago' "swept/$dead"
live=$(TMPDIR=$D/swept "$C" -n 1 sh -c 'touch -d "1 hour ago" "$(dirname "$TORCHELASTIC_ERROR_FILE")"; "$0" -n 1 true; echo "$(ls "$1")"; [ -d "$(dirname "$TORCHELASTIC_ERROR_FILE")" ] && echo lives' "$C" "$D/swept" 2>&1 | grep -c -e "$dead" -e lives)
check sweep "$live $(ls swept)" "1 cdprun_other_abcdef"

# ---- restarts

"$C" -n 3 --max-restarts 2 --grace 5 sh -c 'echo $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS $MASTER_PORT; [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exit 4; sleep 0.3' > out 2> err
check restart-code "$?" 0
check restart-counts "$(cut -d' ' -f2 out | sort | uniq -c | tr -s ' ')" " 3 0/2
 3 1/2
 3 2/2"
check restart-ports "$(cut -d' ' -f3 out | sort -u | wc -l)" 3
has restart-text err "cdprun: rank 1, exit code 4 after 0."
has restart-number err "starting all ranks again (restart 1 of 2)"
has restart-number err "starting all ranks again (restart 2 of 2)"
hasnot restart-no-report err "first failure"
rm -rf logs; "$C" -n 2 --max-restarts 1 --log-dir logs -r 1 sh -c 'echo $TORCHELASTIC_RESTART_COUNT $RANK; if [ $RANK = 1 ]; then echo "{\"message\": \"m$TORCHELASTIC_RESTART_COUNT\"}" > $TORCHELASTIC_ERROR_FILE; exit 6; fi' > out 2> err
check restart-exhausted "$? $(grep -c 'starting all ranks again' err)" "6 1"
has restart-exhausted-first err "first failure: rank 1, exit code 6"
has restart-exhausted-message err "s: m1;"
check restart-files "$(logs logs)" "attempt_0/0/stdout.log: 0 0 
attempt_0/1/stdout.log: 0 1 
attempt_1/0/stdout.log: 1 0 
attempt_1/1/stdout.log: 1 1 "
CDPTEST=$ID.rs PIDFILE=$D/rs "$C" -n 2 --max-restarts 1 --grace 0.1 --kill-grace 0.3 sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && { "$0" alive $CDPTEST; exit 0; }; [ $RANK = 0 ] && { sleep 0.2; kill -KILL $$; }; "$0" tree' "$H" > out 2> err
check restart-after-kill "$?" 0
check restart-all-ended-first "$(sort -n -k2 out | head -n 1 | awk '{ print ($2 <= 8) }')" 1   # cdprun's two, the ranks and their helpers: nobody of the first attempt
gone restart-gone $ID.rs
"$C" -n 2 --max-restarts 5 ./no-such-program 2> err; check restart-not-found "$? $(wc -l < err)" "127 1"
begin=$(ms); "$C" -n 1 --max-restarts 1000000 --timeout 0.5 --grace 0.1 sh -c 'sleep 0.1; exit 1' > out 2> err
within restart-timeout $(($(ms) - begin)) 500 3000
"$C" -n 2 --max-restarts 1000000 sh -c 'sleep 0.05; exit 1' > out 2> err & pid=$!
sleep 0.4; kill -TERM $pid; wait $pid 2> /dev/null; code=$?
case $code in 1|143) ok restart-stops-at-signal ;; *) fail restart-stops-at-signal "code $code" ;; esac
descriptors=$("$C" -n 1 --max-restarts 20 sh -c 'sleep 0.02; ls /proc/$PPID/fd | wc -l; exit 1' 2> err | sort -u | wc -l)
between restart-leaks-no-descriptor "$descriptors" 1 3

# ---- timers of ranks (cdp_timer_begin() writes this file): the time of rank 1 is over

"$C" -n 2 --grace 0.1 sh -c '[ $RANK = 1 ] && printf "1 a step" > $CDP_TIMER_FILE; sleep 20' > out 2> err
check timer-code "$?" 137
has timer-text err "cdprun: rank 1 is killed: the time of the timer 'a step' is over"
has timer-report err "s: the time of the timer 'a step' is over; it wrote nothing"
"$C" -n 2 --grace 20 sh -c '[ $RANK = 0 ] && exit 3; sleep 2; printf "1 a step" > $CDP_TIMER_FILE; sleep 30' > out 2> err
check timer-after-failure-code "$?" 3
has timer-after-failure err "cdprun: rank 1 is killed: the time of the timer 'a step' is over"
"$C" -n 1 --grace 0.1 sh -c 'printf "{\"message\": \"it is warm\"}" > $TORCHELASTIC_ERROR_FILE; printf "1 a step" > $CDP_TIMER_FILE; sleep 20' > out 2> err
has timer-and-error-file err "the time of the timer 'a step' is over; its error file says: it is warm"
check timer-later "$("$C" -n 1 sh -c 'printf "99999999999999999 a step" > $CDP_TIMER_FILE; sleep 1; echo well' 2>&1)" "[0] well"

usage() {                                            # name, expected part of the message, arguments
    name=$1 part=$2; shift 2
    "$C" "$@" > out 2> err < /dev/null; code=$?
    if [ $code -eq 2 ] && [ "$(wc -l < err)" -eq 1 ] && [ ! -s out ]; then has "usage-$name" err "$part"
    else fail "usage-$name" "code $code: $(cat out err)"; fi
}
usage nothing      "-n is missing"
usage no-n         "-n is missing" true
usage no-value     "-n needs a value" -n
usage zero         "between 1 and 4096, not 0" -n 0 true
usage negative     "not -3" -n -3 true
usage huge         "between 1 and 4096" -n 99999999999999999999 true
usage word         "whole number, not 'four'" -n four true
usage no-command   "the command is missing" -n 2
usage empty        "the command is empty" -n 2 ""
usage unknown      "unknown option '--fast'" -n 2 --fast true
usage port-word    "whole number, not 'http'" -n 2 --master-port http true
usage port-range   "between 1 and 65535" -n 2 --master-port 70000 true
usage seconds      "--timeout needs a number of seconds, not 'soon'" -n 2 --timeout soon true
usage zero-timeout "more than 0" -n 2 --timeout 0 true
usage nan          "number of seconds" -n 2 --grace nan true
usage env          "NAME=VALUE" -n 2 --env NAME true
usage own-env      "cannot set RANK" -n 2 --env RANK=3 true
usage flag-value   "takes no value" -n 2 --no-prefix=1 true
usage color        "auto, always or never" -n 2 --color red true
usage no-node-rank "--node-rank" -n 2 --nnodes 2 --master-addr a --master-port 1 true
usage node-rank    "must be below" -n 2 --nnodes 2 --node-rank 2 --master-addr a --master-port 1 true
usage lone-node    "needs --nnodes" -n 2 --node-rank 1 true
usage no-master    "needs --rdzv-endpoint (or --master-addr and --master-port)" -n 2 --nnodes 2 --node-rank 0 true
usage even-list    "names 2 places: with 3, one may be lost, with 5, two" -n 2 --nnodes 1:2 --rdzv-endpoint a,b true
usage list-twice   "--rdzv-endpoint names a:29400 twice" -n 2 --nnodes 1:2 --rdzv-endpoint a,b,a:29400 true
usage list-blank   "must be HOST or HOST:PORT, not ''" -n 2 --nnodes 1:2 --rdzv-endpoint a,,b true
usage list-long    "names more than 5 places" -n 2 --nnodes 1:2 --rdzv-endpoint a,b,c,d,e,f true
usage list-fixed   "is for machines that come and go" -n 2 --nnodes 2 --node-rank 0 --rdzv-endpoint a,b,c true
usage list-serve   "is for machines that come and go" --serve --rdzv-endpoint a,b,c
usage no-key       "several machines need one secret: --job-key-file or the variable CDP_JOB_KEY, the same on all (or --open)" -n 2 --nnodes 2 --node-rank 0 --rdzv-endpoint h:1 true
usage key-file     "cannot read the file of --job-key-file, /no/such: No such file" -n 2 --job-key-file /no/such true
printf 'two words\n' > key.bad; chmod 600 key.bad
usage key-words    "must hold one word" -n 2 --job-key-file key.bad true
usage key-and-open "exclude each other" -n 2 --job-key-file key.bad --open true
usage endpoint     "--rdzv-endpoint must be HOST or HOST:PORT" -n 2 --nnodes 2 --node-rank 0 --rdzv-endpoint :1 --open true
usage endpoint-0   "the port of --rdzv-endpoint must be between 1 and 65535" -n 2 --nnodes 2 --node-rank 0 --rdzv-endpoint h:0 --open true
usage elastic      "--nnodes needs --rdzv-endpoint or --external-store, the same on all machines" -n 2 --nnodes 1:4 true
usage turned       "--nnodes 4:1: MIN must not be more than MAX" -n 2 --nnodes 4:1 true
usage no-min       "MIN of --nnodes MIN:MAX needs a whole number, not ''" -n 2 --nnodes :3 true
usage min-0        "MIN of --nnodes MIN:MAX must be between 1 and 1000000" -n 2 --nnodes 0:2 true
usage elastic-rank "--node-rank is for a fixed number of machines, not for --nnodes MIN:MAX" -n 2 --nnodes 1:2 --node-rank 0 true
usage elastic-key  "several machines need one secret" -n 2 --nnodes 1:2 --rdzv-endpoint h:1 true
usage stay         "--stay and --node-rank exclude each other" -n 2 --stay --node-rank 0 --nnodes 2 --rdzv-endpoint h:1 --open true
usage external     "--external-store must be HOST or HOST:PORT, not ':1'" -n 2 --external-store :1 --rdzv-id x --open true
usage external-id  "--external-store needs --rdzv-id" -n 2 --external-store h:1 --open true
usage serve        "--serve needs --rdzv-endpoint" --serve --open
usage serve-nothing "--serve starts no ranks and takes no command ('true')" --serve --rdzv-endpoint h:1 --open -n 4 true
usage conf-word    "--rdzv-conf is_host must be 1 or 0, not 'maybe'" -n 1 --rdzv-conf is_host=maybe true
usage conf-name    "--rdzv-conf has no setting 'fast'" -n 1 --rdzv-conf fast=1 true
for o in --run-path; do usage "refused$o" "torchrun's $o is not taken by cdprun" -n 1 $o true; done
for o in --logs-specs --duplicate-stdout-filters --duplicate-stderr-filters; do usage "refused$o" "torchrun's $o is not taken by cdprun" -n 1 $o x true; done
usage conf         "--rdzv-conf must be KEY=VALUE,KEY=VALUE, not 'timeout'" -n 1 --rdzv-conf timeout true
usage conf-number  "--rdzv-conf join_timeout needs a number of seconds, not 'soon'" -n 1 --rdzv-conf 'close_timeout = 3, join_timeout=soon' true
usage cooldown     "--cooldown must be at most 3600 seconds, not 1e9" -n 1 --stay --cooldown 1e9 true
usage stay-nodes   "--nnodes needs --rdzv-endpoint or --external-store, the same on all machines (see" -n 1 --stay --nnodes 1:2 true
usage signals      "and no other signal ('SIGTERM,SIGUSR1')" -n 1 --signals-to-handle SIGTERM,SIGUSR1 true
usage filter       "--local-ranks-filter must list local ranks below 2" -n 2 --local-ranks-filter 2 true
usage module       "--module and --no-python exclude each other" -n 1 --no-python -m x
usage backend      "--rdzv-backend must be static or c10d, not 'etcd'" -n 2 --rdzv-backend etcd true
export CUDA_VISIBLE_DEVICES=
usage gpus         "--nproc-per-node gpu: CUDA_VISIBLE_DEVICES names none" --nproc-per-node gpu true
CUDA_VISIBLE_DEVICES=NoDevFiles # of Slurm
usage gpus-slurm   "--nproc-per-node gpu: CUDA_VISIBLE_DEVICES names none" --nproc-per-node gpu true
unset CUDA_VISIBLE_DEVICES
usage devices      "--virtual-local-rank: CUDA_VISIBLE_DEVICES names 2 devices, but there are 3 ranks here" -n 3 --env CUDA_VISIBLE_DEVICES=4,5 --virtual-local-rank true
usage processes    "whole number, not 'many'" --nproc_per_node=many true
usage restarts     "--max-restarts must be between 0 and" -n 2 --max-restarts -1 true
usage restarts-abc "whole number, not 'abc'" -n 2 --max_restarts abc true
usage alone-store  "--standalone and --external-store exclude each other" -n 2 --standalone --external-store h:1 --open true
usage standalone   "--standalone is for one machine" -n 2 --standalone --nnodes 2 true
usage tee-where    "--tee needs --log-dir" -n 2 --tee 3 true
usage tee-what     "--tee must be 0, 1, 2 or 3, or a list as 0:3,1:1, not '4'" -n 2 --log-dir logs --tee 4 true
usage redirects    "--redirects must be 0, 1, 2 or 3, or a list as 0:3,1:1, not '0:1,'" -n 2 --log-dir logs -r 0:1, true
usage tee-rank     "--tee names local rank 2, but there are only 2" -n 2 --log-dir logs -t 0:3,2:1 true
usage log-dir      "cannot make the folder /dev/null/x of --log-dir" -n 2 --log-dir /dev/null/x true
usage role         "--role must not be empty" -n 2 --role "" true
usage own-env-key  "cannot set CDP_JOB_KEY" -n 2 --env CDP_JOB_KEY=x true
usage long-name    "unknown option '--$(printf 'x%.0s' $(seq 100))'" -n 2 --"$(printf 'x%.0s' $(seq 100))" true
usage address      "must not be empty" -n 2 --master-addr "" true
(ulimit -n 64; "$C" -n 100 true) 2> err; check usage-files "$?" 2; has usage-files-text err "the limit is 64"
check files-limit-kept "$(ulimit -S -n 40; "$C" -n 30 sh -c 'ulimit -S -n' | sort | tail -n 1)" "[29] 40"
"$C" --help > out; check help "$?" 0; has help-text out "--grace SECONDS"
check version "$("$C" --version)" "cdprun 0.3.0"

# ---- time and signals

exec 3>&2 2> /dev/null                               # some shells report what we kill

begin=$(ms); CDPTEST=$ID.to PIDFILE=$D/to "$C" -n 2 --timeout 0.3 --grace 0.2 "$H" tree > out 2> err
check timeout-code "$?" 124
within timeout-time $(($(ms) - begin)) 300 2000
has timeout-text err "has not ended within 0.3 s"
gone timeout-gone $ID.to

started() {                                          # runs cdprun in the background until each of 2 ranks is there
    rm -f "$D/up.0" "$D/up.1"
    "$H" default-signals "$@" > out 2> err & pid=$!
    await_file "$D/up.0"; await_file "$D/up.1"
}
loop='n=0; echo up > "$0.$RANK"; while [ $n -lt 500 ]; do sleep 0.02; n=$((n + 1)); done'
for s in TERM HUP QUIT INT; do
    started "$C" -n 2 --grace 2 sh -c "trap 'echo got; exit 33' $s; $loop" "$D/up"
    kill -$s $pid; wait $pid; code=$?
    case $s in TERM) want=143 ;; HUP) want=129 ;; QUIT) want=131 ;; INT) want=130 ;; esac
    check "signal-$s" "$code $(sort out)" "$want [0] got
[1] got"
done
started "$C" -n 2 --grace 2 sh -c "trap 'exit 0' TERM; $loop" "$D/up"
kill -TERM $pid; wait $pid; check signal-handled "$?" 0
hasnot signal-handled-silent err "cdprun:"
started "$C" -n 2 sh -c "trap 'echo got' USR1; trap 'exit 0' USR2; $loop" "$D/up"
kill -USR1 $pid; sleep "$(tenths 3)"; kill -USR2 $pid; wait $pid; check signal-passed "$? $(sort out)" "0 [0] got
[1] got"
started env CDPTEST=$ID.tw PIDFILE="$D/up" "$C" -n 2 --grace 30 "$H" stubborn
begin=$(ms); kill -TERM $pid; sleep 0.4; kill -TERM $pid; wait $pid; check signal-twice "$?" 143
within signal-twice-time $(($(ms) - begin)) 400 2000
gone signal-twice-gone $ID.tw
started env PIDFILE="$D/up" "$C" -n 2 --grace 0.3 "$H" stubborn
begin=$(ms); kill -HUP $pid; wait $pid; check signal-escalates "$?" 129
within signal-escalates-time $(($(ms) - begin)) 600 2500
started sh -c 'trap "" HUP; exec "$@"' sh "$C" -n 2 sh -c "trap 'exit 0' USR2; $loop" "$D/up"
kill -HUP $pid; sleep 0.2; kill -USR2 $pid; wait $pid; check nohup-kept "$?" 0

"$H" terminal "$(printf '\003')" "$C" -n 2 --color never "$H" count-sigint > out
has terminal-once-0 out "[0] interrupts 1"
has terminal-once-1 out "[1] interrupts 1"
has terminal-end out "terminal: exit 0"
TERM=xterm "$H" terminal "$(printf '\003')" "$C" -n 2 --grace 0.5 sh -c 'echo ready; sleep 20' > out   # (a shell that is just forking may lose a SIGINT)
has terminal-dies-of-it out "terminal: signal 2"
has terminal-color out "$(printf '\033[36m[0]\033[0m ready')"
NO_COLOR=1 TERM=xterm "$H" terminal '' "$C" -n 2 sh -c 'echo ready; read -r x; echo "read $?"' > out
has terminal-no-color out "[0] ready"
has terminal-no-stdin out "[0] read 1"

started env PIDFILE="$D/up" "$C" -n 2 "$H" plain
keeper=$("$H" child-of $pid); sleep 1
between idle-costs-nothing $(($("$H" cpu $pid) + $("$H" cpu "$keeper"))) 0 3
case $(tr '\0' ' ' < /proc/"$keeper"/cmdline; cat /proc/"$keeper"/comm) in
*cdprun*) fail keeper-not-hit-by-name "$(tr '\0' ' ' < /proc/"$keeper"/cmdline)" ;;
"rank keeper of $pid "*) ok keeper-not-hit-by-name ;;
*) fail keeper-not-hit-by-name "no title" ;;
esac
kill -TERM $pid; wait $pid

exec 2>&3

# ---- ports

i=0; pids=
while [ $i -lt 20 ]; do "$C" -n 1 --no-prefix sh -c 'echo $MASTER_PORT; sleep "$0"' "$slack" > port.$i & pids="$pids $!"; i=$((i + 1)); done
for p in $pids; do wait "$p"; done
check ports-differ "$(cat port.* | sort -u | wc -l)" 20
rm -f port.*
check port-can-be-used "$("$C" -n 1 "$H" listen; echo $?)" 0
port=$((10000 + $(random_below 20000)))
check port-given "$("$C" -n 1 --master-port $port sh -c 'echo $MASTER_PORT')" "[0] $port"

# ---- kill -9 at random moments: nothing may be left, ever

# $1 name, $2 who (front, its whole group, keeper, both, rank), $3 program, $4 how often
killing() {
    bad= done=0
    while [ $done -lt "$4" ]; do
        cookie=$ID.$1.$done
        rm -f "$D"/kp.*
        CDPTEST=$cookie PIDFILE=$D/kp "$H" own-group "$C" -n 3 --grace 0.03 "$H" "$3" > kout 2> kerr & pid=$!
        moment=$(random_below 30)
        who=$(random_below 3)
        case $2 in
        front)  pause_ms "$moment"; kill -KILL $pid ;;
        group)  "$H" child-of $pid > /dev/null; pause_ms "$moment"; kill -KILL -$pid ;;
        keeper) keeper=$("$H" child-of $pid); pause_ms "$moment"; kill -KILL "$keeper" ;;
        both)   keeper=$("$H" child-of $pid); pause_ms "$moment"; kill -KILL "$keeper" $pid ;;
        rank)   await_file "$D/kp.$who"; pause_ms "$moment"; kill -KILL "$(cat "$D/kp.$who")" ;;
        esac
        wait $pid; code=$?
        [ $code -eq 137 ] || bad="$bad round $done after $moment ms: exit code $code;"
        if [ "$2" = rank ]; then
            case $(cat kerr) in *"first failure: rank $who, killed by SIGKILL"*) ;; *) bad="$bad round $done: rank $who not named;" ;; esac
        fi
        left=$("$H" gone "$cookie" $((3000 * slack))) || bad="$bad round $done after $moment ms: alive: $left;"
        done=$((done + 1))
    done
    check "$1" "$bad" ""
}
kills=${CDPRUN_KILLS:-50}
exec 2> /dev/null
killing kill-launcher front  tree  "$kills"
killing kill-group    group  tree  10
killing kill-rank     rank   tree  "$kills"
killing kill-keeper   keeper tree  "$kills"
killing kill-both     both   plain "$kills"
exec 2>&3
CDPTEST=$ID.nest "$C" -n 2 "$C" -n 2 sh -c 'sleep 50; true' > out 2> err & pid=$!
sleep 0.2; kill -KILL $pid; wait $pid 2> /dev/null
gone kill-nested $ID.nest

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
