/*  The kernels of cdp_nccl.h: their text is compiled as C by the stand-in's NVRTC, and every 16-bit number is compared with the
    conversions of cdp.h; and where NVIDIA's NVRTC is installed (which needs no GPU), that compiles it for every architecture. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_nccl.h"

#include "cards.h"

static void casts_of_rank(card *c) {
    enum { N = 65536 };
    cdp__nccl *const b = (cdp__nccl *)cdp_group_backend(c->g)->self;
    static const cdp_dtype halves[] = {CDP_DTYPE_F16, CDP_DTYPE_BF16};
    uint16_t *const all = (uint16_t *)malloc(2 * N), *const back = (uint16_t *)malloc(2 * N);
    float *const wide = (float *)malloc(4 * N);
    float want[CDP__BLOCK], in[CDP__BLOCK];
    uint16_t half[CDP__BLOCK];
    void *d_half = gpu_new(NULL, 2 * N), *d_wide = gpu_new(NULL, 4 * N), *d_back = gpu_new(NULL, 2 * N);
    uint64_t state = 9;
    for (int i = 0; i < N; ++i) all[i] = (uint16_t)i;
    for (int h = 0; h < 2; ++h) {
        int wrong = 0;
        GPU(cudaMemcpyAsync(d_half, all, 2 * N, GPU_TO_DEVICE, c->stream));
        OK(cdp__nccl_cast(b, halves[h], d_half, CDP_DTYPE_F32, d_wide, N, 1, (cdp__cu_stream)c->stream));
        OK(cdp__nccl_cast(b, CDP_DTYPE_F32, d_wide, halves[h], d_back, N, 1, (cdp__cu_stream)c->stream));
        GPU(cudaMemcpyAsync(wide, d_wide, 4 * N, GPU_TO_HOST, c->stream));
        GPU(cudaMemcpyAsync(back, d_back, 2 * N, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        for (uint32_t i = 0; i < N; i += CDP__BLOCK) { /* there, and back again */
            cdp__widen_block(halves[h], all + i, want);
            for (uint32_t k = 0; k < CDP__BLOCK; ++k) {
                if (want[k] != want[k]) wrong += wide[i + k] == wide[i + k] || (back[i + k] & 0x7fff) <= (halves[h] == CDP_DTYPE_F16 ? 0x7c00 : 0x7f80);
                else wrong += memcmp(&want[k], &wide[i + k], 4) != 0 || (back[i + k] != all[i + k] && !(all[i + k] == 0x8000 && back[i + k] == 0)); /* x + 0 may lose the sign of zero */
            }
        }
        test_check(wrong == 0, __FILE__, __LINE__, "%s: %d of 65536 values do not come back", cdp_dtype_name(halves[h]), wrong);
        for (int i = 0; i < N; ++i) { /* any f32, and those near the middle of two */
            uint32_t u = (uint32_t)test_random(&state);
            if (i % 3 == 0) u = (u & 0xffff0000u) | 0x7fffu | (u & 1u);
            if (i % 3 == 1) u = (u & 0x8fffe000u) | 0x38000000u | (u & 0x1fffu ? 0x1000u : 0xfffu);
            memcpy(&wide[i], &u, 4);
        }
        GPU(cudaMemcpyAsync(d_wide, wide, 4 * N, GPU_TO_DEVICE, c->stream));
        OK(cdp__nccl_cast(b, CDP_DTYPE_F32, d_wide, halves[h], d_back, N, 1, (cdp__cu_stream)c->stream));
        GPU(cudaMemcpyAsync(back, d_back, 2 * N, GPU_TO_HOST, c->stream));
        GPU(cudaStreamSynchronize(c->stream));
        wrong = 0;
        for (uint32_t i = 0; i < N; i += CDP__BLOCK) {
            memcpy(in, wide + i, sizeof in);
            cdp__narrow_block(halves[h], in, half);
            for (uint32_t k = 0; k < CDP__BLOCK; ++k)
                if (in[k] == in[k]) wrong += half[k] != back[i + k] && !((half[k] & 0x7fff) == 0 && (back[i + k] & 0x7fff) == 0);
        }
        test_check(wrong == 0, __FILE__, __LINE__, "%s: %d of 65536 values are rounded otherwise", cdp_dtype_name(halves[h]), wrong);
    }
    GPU(cudaFree(d_half)), GPU(cudaFree(d_wide)), GPU(cudaFree(d_back));
    free(all), free(back), free(wide);
}
TEST(casts) {
    on_cards(1, casts_of_rank, NULL);
    clean();
}

/* No compiler, one that fails, no driver: an error of the call that needed it, and a group that goes on. */
static void without_of_rank(card *c) {
    cdp_hook hook;
    float *d = (float *)gpu_new(NULL, 64);
    const struct {
        const char *name;
        int code;
    } calls[] = {{"nvrtcCreateProgram", 1}, {"nvrtcCompileProgram", 6}, {"nvrtcGetCUBINSize", 4}, {"nvrtcGetCUBIN", 4}, {"cuModuleLoadData", 200}, {"cuModuleGetFunction", 500}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
        standin_fail(calls[i].name, 1, calls[i].code);
        const cdp_status st = cdp_nccl_hook_create(c->g, CDP_HOOK_FP16, &hook);
        test_check(st < 0, __FILE__, __LINE__, "a hook although %s failed", calls[i].name);
        if (st == CDP_OK) hook.destroy(hook.self);
        standin_fail(calls[i].name, 0, 0);
    }
    OK(cdp_allreduce(c->g, NULL, d, 16, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    if (OK(cdp_nccl_hook_create(c->g, CDP_HOOK_FP16, &hook))) hook.destroy(hook.self);
    T(cdp_group_status(c->g) == CDP_OK);
    GPU(cudaDeviceSynchronize()), GPU(cudaFree(d));
}
TEST(without_compiler) {
    on_cards(1, without_of_rank, NULL);
    clean();
}

TEST(nvidia_compiles_them) {
    static const char *const places[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
    int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *), (*compile)(void *, int, const char *const *), (*size_of_log)(void *, size_t *), (*get_log)(void *, char *);
    int (*count)(int *), (*list)(int *), (*destroy)(void **), (*size_of_code)(void *, size_t *), archs[64], n = 0;
    char name[200], log[4000];
    void *lib = NULL;
    for (int i = 0; i < 3 && !lib; ++i) {
        snprintf(name, sizeof name, "/usr/local/cuda/lib64/%s", places[i]);
        lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (!lib || TEST_SLOW) {
        test_skip(lib ? "NVIDIA's compiler is not for sanitizers" : "/usr/local/cuda/lib64 has no libnvrtc.so");
        return;
    }
    *(void **)&create = dlsym(lib, "nvrtcCreateProgram"), *(void **)&compile = dlsym(lib, "nvrtcCompileProgram"), *(void **)&size_of_log = dlsym(lib, "nvrtcGetProgramLogSize");
    *(void **)&get_log = dlsym(lib, "nvrtcGetProgramLog"), *(void **)&count = dlsym(lib, "nvrtcGetNumSupportedArchs"), *(void **)&list = dlsym(lib, "nvrtcGetSupportedArchs");
    *(void **)&destroy = dlsym(lib, "nvrtcDestroyProgram"), *(void **)&size_of_code = dlsym(lib, "nvrtcGetCUBINSize");
    T_EQ(0, count(&n));
    T_EQ(0, list(archs));
    for (int i = 0; i < n; ++i) {
        char arch[40];
        const char *options[] = {arch, "--std=c++11"};
        void *program = NULL;
        size_t bytes = 0;
        snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d", archs[i]);
        T_EQ(0, create(&program, cdp__nccl_source(), "cdp_nccl.cu", 0, NULL, NULL));
        const int r = compile(program, 2, options);
        log[0] = 0;
        if (size_of_log(program, &bytes) == 0 && bytes <= sizeof log) get_log(program, log);
        test_check(r == 0, __FILE__, __LINE__, "%s: %d %s", arch, r, log);
        test_check(strstr(log, "warning") == NULL, __FILE__, __LINE__, "%s: %s", arch, log);
        bytes = 0;
        T(size_of_code(program, &bytes) == 0 && bytes > 1000);
        destroy(&program);
    }
    printf("  compiled for %d architectures from sm_%d on\n", n, n ? archs[0] : 0);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"casts", casts, 60}, {"without_compiler", without_compiler, 60}, {"nvidia_compiles_them", nvidia_compiles_them, 120}};
    libraries_at_hand(argv, "");
    const char *const missing = gpu_load();
    if (missing || !standin_set) {
        printf("  the stand-in does not load: %s\nnot ok load\n0 passed, 1 failed\n", missing ? missing : "this is no stand-in");
        return 1;
    }
    printf("on the stand-in for CUDA and NCCL, no GPU is involved\n");
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
