/*  test_alloc.c - where memory comes from: the library asks os->alloc for all of its own. Every
    malloc of this process passes through here, and one whose caller is the library's code, and that
    does not come from os->alloc, is counted. What the C library takes for itself (threads, names,
    lists of interfaces) has another caller. */
#include "test.h"

#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include <pthread.h>

#if TEST_SLOW
TEST(nothing_but_alloc) {
    test_skip("sanitizers have a malloc of their own");
}
#else

extern char __executable_start, etext;
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);

static bool watching;
static uint32_t strange;           /* calls that did not come from os->alloc */
static __thread bool inside_alloc; /* this thread is in os->alloc */
static uint64_t held, most;

static void look(const void *caller) {
    const bool ours = (const char *)caller >= &__executable_start && (const char *)caller < &etext;
    if (__atomic_load_n(&watching, __ATOMIC_RELAXED) && ours && !inside_alloc)
        __atomic_add_fetch(&strange, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t bytes) {
    look(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes) {
    look(__builtin_return_address(0));
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes) {
    look(__builtin_return_address(0));
    return __libc_realloc(p, bytes);
}

static void *own_alloc(void *user, uint64_t bytes) {
    void *p;
    (void)user;
    inside_alloc = true;
    p = malloc((size_t)bytes);
    inside_alloc = false;
    if (p) __atomic_add_fetch(&held, 1, __ATOMIC_RELAXED);
    if (p) __atomic_add_fetch(&most, 1, __ATOMIC_RELAXED);
    return p;
}

static void own_release(void *user, void *p) {
    (void)user;
    if (p) __atomic_sub_fetch(&held, 1, __ATOMIC_RELAXED);
    free(p);
}

static cdp_os os;
static uint16_t port;
static const char *master;

/* A rank that uses a good part of the library. */
static void *rank_main(void *arg) {
    static float weights[2][300];
    const uint32_t rank = *(const uint32_t *)arg;
    cdp_tcp_desc d = {.group = {.rank = rank, .world_size = 2, .timeout_ms = 20000, .os = &os},
        .master_addr = master,
        .master_port = port,
        .job_key = "0123456789abcdef",
        .init_timeout_ms = 20000};
    cdp_param param = {.name = "w", .data = weights[rank], .count = 300};
    cdp_ddp_desc dd = {.params = &param, .param_count = 1};
    cdp_group *g, *part;
    cdp_ddp *ddp;
    cdp_work work;
    int32_t x = 1;
    char text[64] = "", got[64];
    if (!T_EQ(CDP_OK, cdp_init(&d, &g))) return NULL;
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T_EQ(2, x);
    T_EQ(CDP_OK, cdp_group_split(g, 0, rank, &part));
    T_EQ(CDP_OK, cdp_barrier_async(part, &work));
    T_EQ(CDP_OK, cdp_work_wait(work));
    T_EQ(CDP_OK,
        rank ? cdp_recv(g, got, sizeof got, CDP_DTYPE_U8, 0, 5)
             : cdp_send(g, text, sizeof text, CDP_DTYPE_U8, 1, 5));
    dd.group = g;
    T_EQ(CDP_OK, cdp_ddp_create(&dd, &ddp));
    T_EQ(CDP_OK, cdp_ddp_backward_begin(ddp));
    memset(cdp_ddp_grad(ddp, 0), 0, 1200);
    T_EQ(CDP_OK, cdp_ddp_ready(ddp, 0));
    T_EQ(CDP_OK, cdp_ddp_backward_end(ddp));
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(part);
    cdp_group_destroy(g);
    return NULL;
}

static void two_ranks(const char *at) {
    const uint32_t ranks[2] = {0, 1};
    cdp_store_server_desc sd = {.port = 0};
    cdp_store_server *s;
    pthread_t id[2];
    if (!T_EQ(CDP_OK, cdp_store_server_create(&sd, &s))) return;
    port = cdp_store_server_port(s); /* free when it is closed */
    cdp_store_server_destroy(s);
    master = at;
    os = *cdp_os_default();
    os.alloc = own_alloc;
    os.release = own_release;
    held = most = strange = 0;
    __atomic_store_n(&watching, true, __ATOMIC_RELAXED);
    for (uint32_t r = 0; r < 2; ++r)
        if (pthread_create(&id[r], NULL, rank_main, (void *)(uintptr_t)&ranks[r]) != 0) abort();
    for (uint32_t r = 0; r < 2; ++r)
        pthread_join(id[r], NULL);
    __atomic_store_n(&watching, false, __ATOMIC_RELAXED);
}

TEST(nothing_but_alloc) {
    void *volatile p;
    two_ranks("127.0.0.1");
    T_EQ(0, strange);
    T_EQ(0, held);
    T(most > 20);
    __atomic_store_n(&watching, true, __ATOMIC_RELAXED); /* and the count does count */
    p = malloc(1);
    __atomic_store_n(&watching, false, __ATOMIC_RELAXED);
    T_EQ(1, strange);
    free(p);
}

/* The one exception: a name is looked up by a thread that may outlive the caller, and shares a
   block of the C library's memory with it. */
TEST(only_names_take_other_memory) {
    two_ranks("localhost");
    test_check(strange >= 1 && strange <= 8, test__now.name, 0, "%u blocks", strange);
    T_EQ(0, held);
}
#endif

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"nothing_but_alloc", nothing_but_alloc, 30},
#if !TEST_SLOW
        {"only_names_take_other_memory", only_names_take_other_memory, 30},
#endif
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
