/* Texts that come from outside: urls, lists of hosts, variables of launchers, lists of
   addresses, greetings.

   Inputs made from a seed: pieces of good texts, joined, cut and damaged. How to run it: fuzz.h.

   Whatever comes, nothing may be read or written beyond its place, and what is accepted must
   keep its promises: ranks below the size, texts that end, hosts without what cannot be in one,
   addresses that survive being written and read again. */
#include "fuzz.h"

/* A copy in a block of its own size, so that reading on is noticed. */
static char *copy_of(const uint8_t *data, size_t bytes) {
    char *p = (char *)malloc(bytes + 1);
    if (!p) abort();
    if (bytes) memcpy(p, data, bytes);
    p[bytes] = 0;
    return p;
}

static void try_url(const char *text) {
    cdp_tcp_desc d;
    memset(&d, 0, sizeof d);
    /* those read this process's variables */
    if (strncmp(text, "env:", 4) == 0 || cdp_tcp_desc_from_url(text, &d) != CDP_OK) return;
    T((d.master_addr != NULL) != (d.file != NULL));
    if (d.master_addr)
        T(d.master_port && d.master_addr[0] && strlen(d.master_addr) < 256
            && !strpbrk(d.master_addr, "/ []"));
    if (d.file) T(d.file[0] == '/' && strlen(d.file) < 1024);
    T(d.group.rank < 65536 && d.group.world_size < 65536);
}

static void try_hosts(const char *text) {
    char small[9], large[256];
    const bool fits = cdp__first_host(text, small, sizeof small);
    if (cdp__first_host(text, large, sizeof large))
        T(large[0] && !strpbrk(large, "[], \t\n") && (!fits || strcmp(small, large) == 0));
    else
        T(!fits);
    T(cdp__tasks_of(text, 0) < 65536 && cdp__tasks_of(text, 7) < 65536);
}

static void try_addresses(const char *text, size_t bytes) {
    cdp_addr a[CDP__ADDRS], b[CDP__ADDRS], path[CDP__PATHS];
    char again[CDP__ADDRS * 64];
    uint32_t i, n = cdp__addrs_parse(text, bytes, a, CDP__ADDRS), paths;
    if (!n) return;
    cdp__addrs_text(a, n, again, sizeof again);
    T(cdp__addrs_parse(again, strlen(again), b, CDP__ADDRS) == n);
    for (i = 0; i < n; ++i)
        T(memcmp(a[i].ip, b[i].ip, 16) == 0 && a[i].port == b[i].port && a[i].scope == b[i].scope
            && a[i].family == b[i].family);
    for (i = 0; i < 3; ++i) { /* this machine has none of them, or the first half, or all */
        const uint32_t mine = i == 1 ? n / 2 : i / 2 * n;
        paths = cdp__paths(a, mine, b, n, path);
        T(paths > 0 && paths <= CDP__PATHS);
    }
}

/* Variables as lines NAME=VALUE. */
static const char *variable(void *user, const char *name) {
    const char *const *lines = (const char *const *)user;
    const size_t n = strlen(name);
    for (; *lines; ++lines)
        if (strncmp(*lines, name, n) == 0 && (*lines)[n] == '=') return *lines + n + 1;
    return NULL;
}

static void try_variables(char *text) {
    const char *lines[32] = {NULL};
    cdp_launch l;
    uint32_t n = 0;
    for (char *p = text; *p && n < 31;) {
        lines[n++] = p;
        p += strcspn(p, "\n");
        if (*p) *p++ = 0;
    }
    lines[n] = NULL;
    if (cdp_launch_read(variable, (void *)lines, &l) != CDP_OK) {
        T(cdp_last_error()->status == CDP_ERR_INVALID);
        return;
    }
    T(memchr(l.launcher, 0, sizeof l.launcher) && memchr(l.master_addr, 0, sizeof l.master_addr)
        && memchr(l.job, 0, sizeof l.job) && memchr(l.dir, 0, sizeof l.dir));
    T(l.launcher[0] ? l.rank < l.world_size && l.world_size <= 65535 : l.world_size == 0);
    T(strlen(l.job) <= 48 && !strpbrk(l.job, "/ \t@"));
}

static void try_greeting(const uint8_t *data, size_t bytes) {
    uint8_t wire[CDP__HELLO_BYTES] = {0}, again[CDP__HELLO_BYTES];
    cdp__hello h, mine;
    memcpy(wire, data, bytes < sizeof wire ? bytes : sizeof wire);
    if (!cdp__hello_decode(wire, &h)) return;
    mine = h;
    mine.from = h.to;
    T(cdp__hello_judge(&mine, &h) < CDP__REFUSE_COUNT && strlen(cdp__refusal_text(h.refusal)) > 0);
    cdp__hello_encode(&h, again);
    T(memcmp(wire, again, 32) == 0 || h.version != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char *text;
    if (!bytes) return 0;
    text = copy_of(data + 1, bytes - 1);
    switch (data[0] % 5) {
    case 0: try_url(text); break;
    case 1: try_hosts(text); break;
    case 2: try_addresses(text, bytes - 1); break;
    case 3: try_variables(text); break;
    default: try_greeting(data + 1, bytes - 1); break;
    }
    free(text);
    return 0;
}

#ifndef FUZZ_LIB
static const char *const pieces[5][24] = {
    {"tcp://", "file://", "env://", "[", "]", "::1", "fe80::1%eth0", "node-0", "10.0.0.1", ":",
        ":29500", "/tmp/x", "?", "rank=", "world_size=", "&", "1", "65535", "65536", "0",
        "?rank=1&world_size=2", " ", "%", "//"},
    {"node", "[", "]", "-", ",", "001", "9", "a", "(x", ")", "2", "1000000", "65536", "[001-004,7]",
        "2(x3),1", " ", "x", ".", "_", "[1]", "", "0", "-ib", "q"},
    {"10.0.0.1", ":1", ",", "[fd00::1]", "fe80::2%3", "127.0.0.1:65535", "[::]", "0.0.0.0", ":",
        "172.17.0.1:5", "[fe80::1%9]:5", "::ffff:1.2.3.4", "256", ".", "[", "]", "%", "1", "0",
        "10.0.0.2:7,10.0.0.3:8", "f", "::", ":0", ",,"},
    {"RANK=", "WORLD_SIZE=", "OMPI_COMM_WORLD_RANK=", "OMPI_COMM_WORLD_SIZE=", "PMI_RANK=",
        "PMI_SIZE=", "SLURM_PROCID=", "SLURM_NTASKS=", "SLURM_STEP_ID=", "SLURM_STEP_NODELIST=",
        "SLURM_JOB_ID=", "SLURM_STEP_TASKS_PER_NODE=", "MASTER_ADDR=", "MASTER_PORT=", "\n", "1",
        "2", "0", "n[1-3]", "2(x2)", "PMIX_NAMESPACE=", "SLURM_STEP_RESV_PORTS=6000-6001",
        "SLURM_NODEID=", "SLURM_RESTART_COUNT="},
    {"cdp-link", "\1", "\2", "\3", "\4", "aaaa", "bbbbbbbb", "", "\377", "cdp", "-link", "x", "y",
        "z", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
};

static size_t make_input(uint64_t seed, uint8_t *out) {
    const size_t room = 2048;
    size_t bytes = 1;
    const uint32_t kind = (uint32_t)(seed % 5);
    uint32_t n;
    memset(out, 0, room);
    out[0] = (uint8_t)kind;
    for (n = 1 + pick(kind == 3 ? 40 : 12); n; --n) {
        const char *p = pieces[kind][pick(24)];
        const size_t k = strlen(p);
        if (bytes + k + 4 > room) break;
        memcpy(out + bytes, p, k);
        bytes += k;
        if (kind == 3 && p[0] && p[k - 1] == '=')
            bytes += (size_t)snprintf((char *)out + bytes, 12, "%u\n", pick(pick(30) ? 9 : 100000));
        if (kind == 4 && !pick(3)) out[bytes++] = 0;
    }
    /* may lie behind the end: no harm */
    if (!pick(3)) out[1 + pick((uint32_t)bytes)] = (uint8_t)pick(256);
    if (!pick(9)) bytes = 1 + pick((uint32_t)bytes);
    return bytes;
}
#endif
