/* nccl/kernels.h - kernels that NVRTC compiles

   Knows: sources for NVRTC. Promises: each is compiled once per device, and a failure is reported
   with its reason. */
#ifndef CDP_SRC_NCCL_KERNELS_H
#define CDP_SRC_NCCL_KERNELS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "load.h"
#include "map.h"
#include "bootstrap.h"
#include "stream.h"

/* cdp_cast_A_B: out[i] = in[i] * factor, also for equal dtypes. cdp_sumsq_A: one sum of squares
   per thread, so that the order of additions, and with it the result, is the same on every rank.
   16-bit floats round to nearest even. */
CDP__PRIVATE const char *cdp__nccl_source(void) {
    return "typedef unsigned long long u64;\n"
           "static __device__ float get_f16(unsigned short h) {\n"
           "    const unsigned m = h & 0x7fffu;\n"
           "    const float f = m >= 0x7c00u ? __uint_as_float(0x7f800000u | (m & 0x3ffu) << 13) : "
           "m >= 0x400u ? __uint_as_float((m << 13) + (112u << 23)) : (float)m * "
           "5.9604644775390625e-8f;\n"
           "    return h & 0x8000u ? -f : f;\n"
           "}\n"
           "static __device__ unsigned short put_f16(float x) {\n"
           "    const unsigned u = __float_as_uint(x), s = u >> 16 & 0x8000u;\n"
           "    unsigned m = u & 0x7fffffffu;\n"
           "    if (m > 0x7f800000u) return (unsigned short)(s | 0x7e00u);\n"
           "    if (m >= 0x477ff000u) return (unsigned short)(s | 0x7c00u);\n"
           "    if (m < 0x38800000u) return (unsigned short)(s | "
           "(__float_as_uint(__uint_as_float(m) + 0.5f) - 0x3f000000u));\n"
           "    m += 0xfffu + (m >> 13 & 1u);\n"
           "    return (unsigned short)(s | (m - (112u << 23)) >> 13);\n"
           "}\n"
           "static __device__ float get_bf16(unsigned short h) { return "
           "__uint_as_float((unsigned)h << 16); }\n"
           "static __device__ unsigned short put_bf16(float x) {\n"
           "    const unsigned u = __float_as_uint(x);\n"
           "    return (unsigned short)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : (u + 0x7fffu + "
           "(u >> 16 & 1u)) >> 16);\n"
           "}\n"
           "#define T_f32 float\n#define T_f64 double\n#define T_f16 unsigned short\n#define "
           "T_bf16 unsigned short\n"
           "#define W_f32 float\n#define W_f64 double\n#define W_f16 float\n#define W_bf16 float\n"
           "#define get_f32(x) (x)\n#define get_f64(x) (x)\n#define put_f32(x) "
           "((float)(x))\n#define put_f64(x) ((double)(x))\n"
           "#define CAST(a, b) extern \"C\" __global__ void cdp_cast_##a##_##b(const T_##a *in, "
           "T_##b *out, u64 n, double factor) {\\\n"
           "    u64 i;\\\n"
           "    for (i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * "
           "blockDim.x) out[i] = put_##b(get_##a(in[i]) * (W_##a)factor);\\\n"
           "}\n"
           "#define SUMSQ(a) extern \"C\" __global__ void cdp_sumsq_##a(const T_##a *in, double "
           "*partial, u64 n) {\\\n"
           "    double sum = 0;\\\n"
           "    u64 i;\\\n"
           "    for (i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * "
           "blockDim.x) { const double x = (double)get_##a(in[i]); sum += x * x; }\\\n"
           "    partial[blockIdx.x * blockDim.x + threadIdx.x] = sum;\\\n"
           "}\n";
}

/* Kernels of hooks, for f32. Each thread writes to its own locations, and only integers are
   added atomically, so the result does not depend on the order of threads. state: the bits of
   the k-th largest magnitude found so far, and its rank among the values that begin with these
   bits. For 16384 chunks of the bucket, and for groups of 128 chunks: how many values are above
   it, and equal to it. */
#ifndef CDP_NO_HOOKS
static const char cdp__nccl_hook_source[] =
    "typedef unsigned long long u64;\ntypedef unsigned u32;\ntypedef unsigned char u8;\n"
    "#define EACH(i, n) for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i "
    "+= (u64)gridDim.x * blockDim.x)\n"
    "#define KERNEL extern \"C\" __global__ void\n"
    "#define SIZE(x) (__float_as_uint(x) & 0x7fffffffu)\n"
    "#define INFINITE 0x7f800000u\n"
    "#define NOT_A_NUMBER 0x7fc00000u\n"
    "KERNEL cdp_feed(float *x, float *error, u64 n, int add) { EACH(i, n) error[i] = x[i] "
    "+= add ? error[i] : 0; }\n"
    "KERNEL cdp_begin(u32 *state, u32 k) { EACH(i, 1) state[0] = 0, state[1] = k; }\n"
    "KERNEL cdp_counts(const float *x, u64 n, const u32 *state, u32 *counts, int top, int "
    "shift) {\n"
    "    EACH(i, n) if (SIZE(x[i]) >> top == state[0] >> top) atomicAdd(&counts[blockIdx.x "
    "* 256 + (SIZE(x[i]) >> shift & 255u)], 1u);\n"
    "}\n"
    "KERNEL cdp_sum(u32 *counts, u32 copies) { EACH(d, 256) for (u32 c = 1; c < copies; "
    "++c) counts[d] += counts[c * 256 + d]; }\n"
    "KERNEL cdp_pick(const u32 *counts, u32 *state, int shift) {\n"
    "    EACH(i, 1) {\n"
    "        u32 d = 255, k = state[1];\n"
    "        while (d && counts[d] <= k) k -= counts[d--];\n"
    "        state[0] |= d << shift, state[1] = k;\n"
    "    }\n"
    "}\n"
    "KERNEL cdp_parts(const float *x, u64 n, const u32 *state, u32 *parts) {\n"
    "    const u64 per = (n + 16383) / 16384;\n"
    "    EACH(t, 16384) {\n"
    "        u32 above = 0, same = 0;\n"
    "        for (u64 i = t * per; i < n && i < (t + 1) * per; ++i) above += SIZE(x[i]) > "
    "state[0], same += SIZE(x[i]) == state[0];\n"
    "        parts[2 * t] = above, parts[2 * t + 1] = same;\n"
    "    }\n"
    "}\n"
    "KERNEL cdp_groups(const u32 *parts, u32 *groups) {\n"
    "    EACH(g, 128) {\n"
    "        u32 above = 0, same = 0;\n"
    "        for (u64 t = g * 128; t < (g + 1) * 128; ++t) above += parts[2 * t], same += "
    "parts[2 * t + 1];\n"
    "        groups[2 * g] = above, groups[2 * g + 1] = same;\n"
    "    }\n"
    "}\n"
    "KERNEL cdp_write(const float *x, float *error, u64 n, const u32 *state, const u32 "
    "*parts, const u32 *groups, u32 *own) {\n"
    "    const u64 per = (n + 16383) / 16384;\n"
    "    const u32 limit = state[0], quota = state[1] + 1;\n"
    "    EACH(t, 16384) {\n"
    "        u32 above = 0, same = 0;\n"
    "        for (u64 g = 0; g < t / 128; ++g) above += groups[2 * g], same += groups[2 * g "
    "+ 1];\n"
    "        for (u64 c = t / 128 * 128; c < t; ++c) above += parts[2 * c], same += parts[2 "
    "* c + 1];\n"
    "        for (u64 i = t * per; i < n && i < (t + 1) * per; ++i) {\n"
    "            const u32 m = SIZE(x[i]), at = above + (same < quota ? same : quota);\n"
    "            if (m > limit || (m == limit && same < quota)) own[2 * at] = (u32)i, own[2 "
    "* at + 1] = __float_as_uint(x[i]), error[i] = 0;\n"
    "            if (m >= INFINITE) error[i] = 0;\n"
    "            above += m > limit, same += m == limit;\n"
    "        }\n"
    "    }\n"
    "}\n"
    "KERNEL cdp_add(float *x, u64 n, const u32 *pairs, u64 k) { EACH(i, k) if (pairs[2 * i] "
    "< n) x[pairs[2 * i]] += __uint_as_float(pairs[2 * i + 1]); }\n"
    "KERNEL cdp_divide(float *x, u64 n, float by) { EACH(i, n) x[i] /= by; }\n";
#endif
CDP__PRIVATE const char *cdp__nccl_quantize_source(void) {
    return "static __device__ float whole(float v) {\n"
           "    const float x = v > 1024 ? 1024 : v >= -1024 ? v : -1024;\n"
           "    const int w = (int)x, odd = w & 1;\n"
           "    const float rest = x - (float)w;\n"
           "    return (float)(w + ((rest > 0.5f) | ((rest == 0.5f) & odd)) - ((rest < -0.5f) | "
           "((rest == -0.5f) & odd)));\n"
           "}\n"
           "KERNEL cdp_range_parts(const float *x, u64 n, u64 row, u64 rows, u64 parts, float "
           "*out) {\n"
           "    EACH(t, rows * parts) {\n"
           "        const u64 r = t / parts, end = (r + 1) * row < n ? (r + 1) * row : n;\n"
           "        float low = 0, high = 0;\n"
           "        u32 most = 0;\n"
           "        for (u64 i = r * row + t % parts; i < end; i += parts) low = x[i] < low ? x[i] "
           ": low, high = x[i] > high ? x[i] : high, most = SIZE(x[i]) > most ? SIZE(x[i]) : "
           "most;\n"
           "        out[2 * t] = low, out[2 * t + 1] = most < INFINITE ? high : "
           "__uint_as_float(NOT_A_NUMBER);\n"
           "    }\n"
           "}\n"
           "KERNEL cdp_range(const float *in, u64 rows, u64 parts, float *ranges) {\n"
           "    EACH(r, rows) {\n"
           "        float low = 0, high = 0, scale, zero;\n"
           "        u32 most = 0;\n"
           "        for (u64 t = r * parts; t < (r + 1) * parts; ++t) low = in[2 * t] < low ? in[2 "
           "* t] : low, high = in[2 * t + 1] > high ? in[2 * t + 1] : high, most = SIZE(in[2 * t "
           "+ 1]) > most ? SIZE(in[2 * t + 1]) : most;\n"
           "        scale = (high - low) / 255.0f;\n"
           "        if (!(scale >= 1.1920929e-07f)) scale = 1.1920929e-07f;\n"
           "        if (most >= INFINITE) scale = __uint_as_float(NOT_A_NUMBER);\n"
           "        zero = 0 - whole(low / scale);\n"
           "        ranges[2 * r] = scale, ranges[2 * r + 1] = zero < 0 ? 0 : zero > 255 ? 255 : "
           "zero;\n"
           "    }\n"
           "}\n"
           "KERNEL cdp_quantize(const float *x, u64 n, u64 row, const float *ranges, u8 *q, u64 "
           "padded) {\n"
           "    EACH(i, padded) {\n"
           "        const float *range = ranges + 2 * (i / row), v = i < n ? whole(x[i] / "
           "range[0]) + range[1] : 0;\n"
           "        q[i] = (u8)(int)(v < 0 ? 0 : v > 255 ? 255 : v);\n"
           "    }\n"
           "}\n"
           "KERNEL cdp_dequantize(float *x, u64 n, u64 row, u64 rows, const float *ranges, const "
           "u8 *q, u64 padded, u32 world, float by) {\n"
           "    EACH(i, n) {\n"
           "        float sum = 0;\n"
           "        for (u64 w = 0; w < world; ++w) {\n"
           "            const float *range = ranges + 2 * (w * rows + i / row);\n"
           "            sum += range[0] * ((float)q[w * padded + i] - range[1]);\n"
           "        }\n"
           "        x[i] = sum / by;\n"
           "    }\n"
           "}\n";
}

#define CDP__NCCL_THREADS 256u
#define CDP__NCCL_BLOCKS 512u
#define CDP__NCCL_SUM_BLOCKS 16u

/* Returns an error if the kernels know nothing of the dtype. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_kernel_check(cdp_dtype t) {
    char list[80];
    cdp__text text = cdp__text_of(list, sizeof list);
    uint32_t i;
    if (cdp__nccl_has_kernels(t)) return CDP_OK;
    for (i = 0; i < CDP__NCCL_FLOATS; ++i)
        cdp__text_add(&text, "%s%s", i ? ", " : "", cdp_dtype_name(cdp__nccl_float(i)));
    return cdp__fail(CDP_ERR_UNSUPPORTED,
        "gradients in device memory have a dtype of %s, and not %s", list, cdp_dtype_name(t));
}

CDP__PRIVATE cdp_status cdp__nccl_rtc_failed(int result, cdp__rtc_program program) {
    char log[300] = "";
    size_t bytes = 0;
    if (program && cdp__nc.nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes
        && bytes <= sizeof log)
        (void)cdp__nc.nvrtcGetProgramLog(program, log);
    return cdp__fail(CDP_ERR_IO, "compiling kernels: NVRTC says: %s (%d) %s",
        cdp__nc.nvrtcGetErrorString((cdp__rtc_result)result), result, log);
}

/* Compiles source to machine code for this GPU; free it with cdp__free. Products and sums are
   rounded separately (no fused multiply-add), as on the host. */
CDP__PRIVATE cdp_status cdp__nccl_compile(cdp__nccl *b, const char *source, char **code) {
    int major = 0, minor = 0, r;
    char arch[40];
    const char *options[2] = {arch, "--fmad=false"};
    cdp__rtc_program program = NULL;
    size_t bytes = 0;
    cdp_status st = CDP_OK;
    *code = NULL;
    (void)cdp__nc.cudaDeviceGetAttribute(&major, (cdp__cu_attr)CDP__CU_MAJOR, b->device);
    (void)cdp__nc.cudaDeviceGetAttribute(&minor, (cdp__cu_attr)CDP__CU_MINOR, b->device);
    cdp__format(arch, sizeof arch, "--gpu-architecture=sm_%d%d", major, minor);
    r = (int)cdp__nc.nvrtcCreateProgram(&program, source, "cdp_nccl.cu", 0, NULL, NULL);
    if (r == 0) r = (int)cdp__nc.nvrtcCompileProgram(program, 2, options);
    if (r == 0) r = (int)cdp__nc.nvrtcGetCUBINSize(program, &bytes);
    if (r == 0 && !(*code = (char *)cdp__alloc(b->os, bytes)))
        st = cdp__fail_nomem("kernels", bytes);
    if (r == 0 && st == CDP_OK) r = (int)cdp__nc.nvrtcGetCUBIN(program, *code);
    if (r != 0) st = cdp__nccl_rtc_failed(r, program);
    if (program) (void)cdp__nc.nvrtcDestroyProgram(&program);
    return st;
}

/* Compiles and loads a module, and looks up kernels by their names, each followed by a blank.
   Once per group, on first use; not inside a capture. */
CDP__PRIVATE CDP__COLD cdp_status cdp__nccl_load_kernels(
    cdp__nccl *b, void **module, const char *source, const char *names, void **kernels) {
    char name[40], *code;
    uint32_t n;
    int r;
    cdp_status st;
    if (*module) return CDP_OK;
    if (cdp__nccl_capturing(b->caller))
        return cdp__fail(CDP_ERR_STATE,
            "kernels are compiled when they are first needed, which is not possible inside a "
            "capture; do one step before it");
    st = cdp__nccl_load(b->os, &b->desc, true);
    if (st != CDP_OK) return st;
    st = cdp__nccl_compile(b, source, &code);
    if (st != CDP_OK) {
        cdp__free(b->os, code);
        return st;
    }
    r = cdp__nc.cuModuleLoadData(module, code);
    cdp__free(b->os, code);
    for (; *names && r == 0; ++names, ++kernels) {
        for (n = 0; *names != ' '; ++names)
            name[n++] = *names;
        name[n] = 0;
        r = cdp__nc.cuModuleGetFunction(kernels, *module, name);
    }
    if (r == 0) return CDP_OK;
    if (*module) (void)cdp__nc.cuModuleUnload(*module);
    *module = NULL;
    return cdp__fail(CDP_ERR_IO, "loading kernels: the CUDA driver says error %d", r);
}

#define CDP__NCCL_NAMES (CDP__NCCL_FLOATS * (CDP__NCCL_FLOATS + 1) * 24) /* bytes of their names */
#define CDP__NCCL_SOURCE (CDP__NCCL_NAMES + 6000)

/* Writes the source of the kernels of b->cast, for the float rows of src/dtype/dtype.h, and their
   names: from each dtype to each, then sums of squares of each. A dtype for which the source has
   no get_ and put_ does not compile. */
CDP__PRIVATE CDP__COLD void cdp__nccl_cast_source(
    char source[CDP__NCCL_SOURCE], char names[CDP__NCCL_NAMES]) {
    cdp__text code = cdp__text_of(source, CDP__NCCL_SOURCE);
    cdp__text list = cdp__text_of(names, CDP__NCCL_NAMES);
    uint32_t from, to;
    cdp__text_add(&code, "%s", cdp__nccl_source());
    for (from = 0; from < CDP__NCCL_FLOATS; ++from)
        for (to = 0; to < CDP__NCCL_FLOATS; ++to) {
            const char *in = cdp_dtype_name(cdp__nccl_float(from));
            const char *out = cdp_dtype_name(cdp__nccl_float(to));
            cdp__text_add(&code, "CAST(%s, %s)\n", in, out);
            cdp__text_add(&list, "cdp_cast_%s_%s ", in, out);
        }
    for (from = 0; from < CDP__NCCL_FLOATS; ++from) {
        const char *in = cdp_dtype_name(cdp__nccl_float(from));
        cdp__text_add(&code, "SUMSQ(%s)\n", in);
        cdp__text_add(&list, "cdp_sumsq_%s ", in);
    }
}

CDP__PRIVATE cdp_status cdp__nccl_kernels(cdp__nccl *b) {
    char source[CDP__NCCL_SOURCE], names[CDP__NCCL_NAMES];
    if (b->module[0]) return CDP_OK;
    cdp__nccl_cast_source(source, names);
    return cdp__nccl_load_kernels(b, &b->module[0], source, names, b->cast);
}

CDP__PRIVATE uint32_t cdp__nccl_blocks(uint64_t n) {
    return (uint32_t)cdp__max(
        cdp__min((n + CDP__NCCL_THREADS - 1) / CDP__NCCL_THREADS, CDP__NCCL_BLOCKS), 1);
}

/* Launches a kernel over n values, with a thread for each up to a limit (the kernel loops over the
   rest). Does nothing if *st says that an earlier launch has failed. */
CDP__PRIVATE void cdp__nccl_run(
    cdp_status *st, void *kernel, uint64_t n, cdp__cu_stream stream, void **arguments) {
    int r;
    if (*st != CDP_OK) return;
    r = cdp__nc.cuLaunchKernel(
        kernel, cdp__nccl_blocks(n), 1, 1, CDP__NCCL_THREADS, 1, 1, 0, stream, arguments, NULL);
    if (r != 0) *st = cdp__fail(CDP_ERR_IO, "starting a kernel: the CUDA driver says error %d", r);
}

/* out = in * factor, converted to another dtype or the same. */
CDP__PRIVATE cdp_status cdp__nccl_cast(cdp__nccl *b, cdp_dtype from, const void *in, cdp_dtype to,
    void *out, uint64_t count, double factor, cdp__cu_stream stream) {
    unsigned long long n = count;
    void *arguments[4];
    cdp_status st = cdp__nccl_kernel_check(from);
    if (st == CDP_OK) st = cdp__nccl_kernel_check(to);
    if (st == CDP_OK) st = cdp__nccl_kernels(b);
    if (!count) return st;
    arguments[0] = (void *)&in;
    arguments[1] = (void *)&out;
    arguments[2] = (void *)&n;
    arguments[3] = (void *)&factor;
    cdp__nccl_run(&st,
        b->cast[cdp__nccl_float_index(from) * CDP__NCCL_FLOATS + cdp__nccl_float_index(to)], count,
        stream, arguments);
    return st;
}

#endif /* CDP_SRC_NCCL_KERNELS_H */
