/* The stand-in itself: what tests of cdp_nccl.h rely on when they pass. A model that forgives
   mistakes proves nothing. */
#define _GNU_SOURCE
#include "../test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/wait.h>

#include "gpu.h"
#include "libraries.h"

static void clean(void) {
    char text[400];
    const int n = standin_faults(text, sizeof text);
    test_check(n == 0, __FILE__, __LINE__, "%d faults: %s", n, text);
    static const char *const kinds[] = {
        "streams", "events", "bytes", "pinned", "graphs", "comms", "modules", "windows"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i)
        test_check(standin_left(kinds[i]) == 0, __FILE__, __LINE__, "%ld %s are left",
            standin_left(kinds[i]), kinds[i]);
}

/* Writes 1 on one stream and reads it on another: how often the read came too early. */
static int too_early(bool with_event) {
    void *a, *b, *event, *d = gpu_new(NULL, 64), *h;
    int wrong = 0;
    GPU(cudaStreamCreateWithFlags(&a, GPU_NON_BLOCKING));
    GPU(cudaStreamCreateWithFlags(&b, GPU_NON_BLOCKING));
    GPU(cudaEventCreateWithFlags(&event, GPU_NO_TIMING));
    GPU(cudaMallocHost(&h, 64));
    for (int i = 0; i < 60; ++i) {
        GPU(cudaMemset(d, 0, 64));
        GPU(cudaMemsetAsync(d, 1, 64, a));
        GPU(cudaEventRecord(event, a));
        if (with_event) GPU(cudaStreamWaitEvent(b, event, 0));
        GPU(cudaMemcpyAsync(h, d, 64, GPU_TO_HOST, b));
        GPU(cudaStreamSynchronize(b));
        wrong += *(uint8_t *)h != 1;
        GPU(cudaStreamSynchronize(a));
    }
    GPU(cudaStreamDestroy(a));
    GPU(cudaStreamDestroy(b));
    GPU(cudaEventDestroy(event));
    GPU(cudaFree(d));
    GPU(cudaFreeHost(h));
    return wrong;
}

TEST(order) {
    T_EQ(0, too_early(true));
    if (!TEST_OWN_THREADS) { /* ThreadSanitizer sees them, too, and would end the test */
        T(too_early(false) > 5);
        standin_set("drop_wait", -1);
        T(too_early(true) > 5);
        standin_set("drop_wait", 0);
    }
    clean();
}

TEST(memory) {
    uint8_t bytes[64];
    void *p, *q;
    GPU(cudaMalloc(&p, 64));
    gpu_get(bytes, p, 64);
    T_EQ(0xcb, bytes[63]);
    const pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile uint8_t *)p == 0xcb ? 1 : 2); /* no processor reads it */
    }
    int status = 0;
    waitpid(pid, &status, 0);
    T(WIFSIGNALED(status) || WEXITSTATUS(status) > 2); /* a sanitizer makes an exit of it */
    GPU(cudaMalloc(&q, (size_t)60 << 20));
    T_EQ(2, gpu_cudaMalloc(&(void *){NULL}, (size_t)100 << 20));
    T_EQ(2, gpu_cudaGetLastError());
    GPU(cudaFree(q));
    GPU(cudaMalloc(&q, 100));
    GPU(cudaFree(q));
    /* freed: a fault, and the device is broken */
    T(gpu_cudaMemcpy(bytes, q, 64, GPU_TO_HOST) != 0);
    T(standin_faults(NULL, 0) > 0);
    T(gpu_cudaMalloc(&q, 64) != 0);
    standin_forget_faults();
    T(gpu_cudaMemcpy(bytes, p, 64, GPU_TO_DEVICE) == 1); /* the wrong direction */
    GPU(cudaFree(p));
    clean();
}

static void *query(void *event) {
    return (void *)(intptr_t)gpu_cudaEventQuery(event);
}

TEST(capture) {
    void *s, *other, *event, *outside, *graph = NULL, *exec, *p = gpu_new(NULL, 64), *more = NULL;
    pthread_t t;
    uint8_t bytes[64];
    GPU(cudaStreamCreateWithFlags(&s, GPU_NON_BLOCKING));
    GPU(cudaStreamCreateWithFlags(&other, GPU_NON_BLOCKING));
    GPU(cudaEventCreateWithFlags(&event, GPU_NO_TIMING));
    GPU(cudaEventCreateWithFlags(&outside, GPU_NO_TIMING));
    GPU(cudaEventRecord(outside, other));
    /* two branches that are joined */
    GPU(cudaStreamBeginCapture(s, 0));
    GPU(cudaMemsetAsync(p, 1, 32, s));
    GPU(cudaEventRecord(event, s));
    GPU(cudaStreamWaitEvent(other, event, 0));
    GPU(cudaMemsetAsync((char *)p + 8, 2, 8, other));
    GPU(cudaEventRecord(event, other));
    GPU(cudaStreamWaitEvent(s, event, 0));
    GPU(cudaMemsetAsync((char *)p + 12, 3, 8, s));
    GPU(cudaStreamEndCapture(s, &graph));
    GPU(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 30; ++i) {
        GPU(cudaMemset(p, 0, 64));
        GPU(cudaGraphLaunch(exec, s));
        GPU(cudaStreamSynchronize(s));
        gpu_get(bytes, p, 64);
        T(bytes[0] == 1 && bytes[8] == 2 && bytes[12] == 3 && bytes[19] == 3 && bytes[20] == 1
            && bytes[32] == 0);
    }
    GPU(cudaGraphExecDestroy(exec));
    GPU(cudaGraphDestroy(graph));
    /* another thread asks for an event meanwhile: the capture is spoiled, as with the real one */
    GPU(cudaStreamBeginCapture(s, 0));
    void *said;
    T_EQ(0, pthread_create(&t, NULL, query, outside));
    pthread_join(t, &said);
    T_EQ(900, (intptr_t)said);
    T_EQ(901, gpu_cudaMemsetAsync(p, 1, 32, s));
    T_EQ(901, gpu_cudaStreamEndCapture(s, &graph));
    /* a branch that is not joined; an event from outside; memory */
    GPU(cudaStreamBeginCapture(s, 0));
    GPU(cudaEventRecord(event, s));
    GPU(cudaStreamWaitEvent(other, event, 0));
    GPU(cudaMemsetAsync(p, 2, 8, other));
    T_EQ(904, gpu_cudaStreamEndCapture(s, &graph));
    GPU(cudaStreamBeginCapture(s, 0));
    T_EQ(905, gpu_cudaStreamWaitEvent(s, outside, 0));
    T_EQ(901, gpu_cudaStreamEndCapture(s, &graph));
    GPU(cudaStreamBeginCapture(s, 0));
    T_EQ(900, gpu_cudaMalloc(&more, 8));
    T_EQ(901, gpu_cudaStreamEndCapture(s, &graph));
    GPU(cudaStreamDestroy(s));
    GPU(cudaStreamDestroy(other));
    GPU(cudaEventDestroy(event));
    GPU(cudaEventDestroy(outside));
    GPU(cudaFree(p));
    clean();
}

TEST(stream_zero) {
    void *s, *p = gpu_new(NULL, 64), *h;
    GPU(cudaStreamCreateWithFlags(&s, 0));
    GPU(cudaMallocHost(&h, 64));
    for (int i = 0; i < 30; ++i) { /* a stream that blocks, and stream 0, are in order */
        GPU(cudaMemsetAsync(p, i, 64, s));
        GPU(cudaMemcpyAsync(h, p, 64, GPU_TO_HOST, NULL));
        GPU(cudaMemsetAsync(p, 99, 64, s));
        GPU(cudaStreamSynchronize(NULL));
        T_EQ(i, *(uint8_t *)h);
    }
    GPU(cudaStreamDestroy(s));
    GPU(cudaFree(p));
    GPU(cudaFreeHost(h));
    clean();
}

/* Ranks meet in a file whose name is the id. A folder's name that was cut made one that nobody
   could open. */
TEST(ids_name_a_folder_that_is_there) {
    char id[128], name[120], folder[128];
    int (*make)(char *) = NULL;
    void *const nccl = dlopen("libnccl.so.2", RTLD_NOW);
    const char *const before = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s", before ? before : "");
    memset(name, 'x', sizeof name);
    name[0] = '/';
    if (!T(nccl != NULL)) return;
    *(void **)&make = dlsym(nccl, "ncclGetUniqueId");
    for (size_t length = sizeof name - 1; length > 1; --length) {
        name[length] = 0;
        setenv("TMPDIR", length > 20 ? name : "/dev/shm", 1);
        if (!T(make && make(id) == 0)) break;
        *strrchr(id, '/') = 0;
        T(strcmp(id, name) == 0 || strcmp(id, "/tmp") == 0 || strcmp(id, "/dev/shm") == 0);
    }
    if (before)
        setenv("TMPDIR", folder, 1);
    else
        unsetenv("TMPDIR");
    dlclose(nccl);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"order", order, 30}, {"memory", memory, 30},
        {"capture", capture, 30}, {"stream_zero", stream_zero, 30},
        {"ids_name_a_folder_that_is_there", ids_name_a_folder_that_is_there, 30}};
    libraries_at_hand(argv, "");
    if (!standin_loads()) return 1;
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
