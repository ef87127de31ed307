/* standin_nvrtc.c - NVRTC's part of the stand-in (standin.h says what that is): libnvrtc.so

   Takes kernels that are C but for `extern "C" __global__`, has gcc compile them into a shared
   library, and calls that the "cubin". */
#define _GNU_SOURCE
#include "standin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct _nvrtcProgram {
    char *source, *log, *cubin;
    size_t cubin_bytes;
};

#define ENTER(name)                                          \
    do {                                                     \
        int e_;                                              \
        if (standin_call(name, &e_)) return (nvrtcResult)e_; \
    } while (0)

static const char prelude[] =
    "typedef struct { unsigned x, y, z; } standin_dim;\n"
    "static __thread standin_dim threadIdx, blockIdx, blockDim, gridDim;\n"
    "#define __device__ __attribute__((unused))\n"
    "#define __forceinline__\n"
    "#define __restrict__ restrict\n"
    "#define atomicAdd(p, v) (*(p) += (v))\n" /* its threads run one after the other */
    "static __device__ unsigned __float_as_uint(float f) { unsigned u; __builtin_memcpy(&u, &f, "
    "4); return u; }\n"
    "static __device__ float __uint_as_float(unsigned u) { float f; __builtin_memcpy(&f, &u, 4); "
    "return f; }\n";

static char *read_all(const char *name, size_t *bytes) {
    FILE *const f = fopen(name, "rb");
    char *all = (char *)calloc(1, 1);
    size_t n = 0, got;
    char part[4096];
    while (f && (got = fread(part, 1, sizeof part, f)) > 0) {
        all = (char *)realloc(all, n + got + 1);
        memcpy(all + n, part, got);
        n += got;
    }
    if (f) fclose(f);
    all[n] = 0;
    *bytes = n;
    return all;
}

static bool shell(const char *format, const char *dir) {
    char line[600];
    snprintf(line, sizeof line, format, dir, dir, dir);
    return system(line) == 0;
}

/* For every kernel a function that runs it for all threads, and the size of each argument,
   negative where it is a pointer. */
static void write_runners(FILE *f, const char *text) {
    static const char mark[] = "__global__ void ";
    for (const char *at = strstr(text, mark); at; at = strstr(at + 1, mark)) {
        char name[100], types[24][100];
        int n = 0;
        const char *p = at + sizeof mark - 1, *end;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p, "( "), p);
        for (p = strchr(p, '(') + 1; n < 24; p = end + 1) {
            const char *last;
            end = p + strcspn(p, ",)");
            for (last = end; last > p && last[-1] == ' '; --last) {
            }
            /* its name */
            while (last > p
                && (last[-1] == '_' || (last[-1] >= '0' && last[-1] <= '9')
                    || (last[-1] | 32) >= 'a')
                && last[-1] != ' ' && last[-1] != '*')
                --last;
            snprintf(types[n++], sizeof types[0], "%.*s", (int)(last - p), p);
            if (*end == ')') break;
        }
        fprintf(f, "const int standin_args_%s[] = {%d", name, n);
        for (int i = 0; i < n; ++i)
            fprintf(f, ", %s(int)sizeof(%s)", strchr(types[i], '*') ? "-" : "", types[i]);
        fprintf(f,
            "};\nvoid standin_run_%s(void **a, unsigned grid, unsigned block) {\n    gridDim.x = "
            "grid, blockDim.x = block;\n",
            name);
        fprintf(f,
            "    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)\n        for (threadIdx.x = "
            "0; threadIdx.x < block; ++threadIdx.x) %s(",
            name);
        for (int i = 0; i < n; ++i)
            fprintf(f, "%s*(%s *)a[%d]", i ? ", " : "", types[i], i);
        fprintf(f, ");\n}\n");
    }
}

static bool compile(nvrtcProgram p, const char *dir) {
    char name[200];
    size_t n;
    snprintf(name, sizeof name, "%s/k.c", dir);
    FILE *f = fopen(name, "w");
    if (!f) return false;
    fputs(prelude, f);
    for (const char *s = p->source; *s;) { /* C knows no extern "C" */
        const bool here = strncmp(s, "extern \"C\"", 10) == 0;
        if (!here) fputc(*s, f);
        s += here ? 10 : 1;
    }
    fclose(f);
    if (!shell("gcc -E -P %s/k.c > %s/k.i 2> %s/log", dir)) return false;
    snprintf(name, sizeof name, "%s/k.i", dir);
    char *const text = read_all(name, &n);
    snprintf(name, sizeof name, "%s/k2.c", dir);
    f = fopen(name, "w");
    fputs("#define __global__\n", f);
    fputs(text, f);
    write_runners(f, text);
    fclose(f);
    free(text);
    return shell("gcc -w -O1 -ffp-contract=off -fno-strict-aliasing -fPIC -shared "
                 "-Wl,-Bsymbolic %s/k2.c -o "
                 "%s/k.so 2> %s/log",
        dir);
}

nvrtcResult nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 0;
    return NVRTC_SUCCESS;
}
const char *nvrtcGetErrorString(nvrtcResult e) {
    if (e == NVRTC_SUCCESS) return "NVRTC_SUCCESS";
    if (e == NVRTC_ERROR_COMPILATION) return "NVRTC_ERROR_COMPILATION";
    return "an error of the stand-in's NVRTC";
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *source, const char *name, int headers,
    const char *const *texts, const char *const *names) {
    ENTER("nvrtcCreateProgram");
    (void)name;
    (void)texts;
    (void)names;
    if (headers) return NVRTC_ERROR_INVALID_INPUT;
    *out = (nvrtcProgram)calloc(1, sizeof **out);
    (*out)->source = strdup(source);
    (*out)->log = strdup("");
    return NVRTC_SUCCESS;
}
/* What was compiled is kept, since every group of every rank asks for the same. */
static struct _nvrtcProgram made[8];
static int n_made;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool known(nvrtcProgram p) {
    for (int i = 0; i < n_made; ++i) {
        if (strcmp(made[i].source, p->source) != 0) continue;
        p->cubin_bytes = made[i].cubin_bytes;
        p->cubin = (char *)malloc(p->cubin_bytes);
        memcpy(p->cubin, made[i].cubin, p->cubin_bytes);
        return true;
    }
    return false;
}
static void keep(nvrtcProgram p) {
    if (n_made == 8) return;
    made[n_made].source = strdup(p->source);
    made[n_made].cubin = (char *)malloc(p->cubin_bytes);
    made[n_made].cubin_bytes = p->cubin_bytes;
    memcpy(made[n_made++].cubin, p->cubin, p->cubin_bytes);
}

static nvrtcResult compile_now(nvrtcProgram p, int n, const char *const *options) {
    char dir[] = "/tmp/standin.XXXXXX", name[100];
    bool real = false, good;
    size_t bytes;
    for (int i = 0; i < n; ++i)
        real = real || strstr(options[i], "sm_");
    if (real && known(p)) return NVRTC_SUCCESS;
    if (!mkdtemp(dir)) return NVRTC_ERROR_OUT_OF_MEMORY;
    good = compile(p, dir);
    snprintf(name, sizeof name, "%s/log", dir);
    free(p->log);
    p->log = read_all(name, &bytes);
    if (good && real) { /* "cubin": its length, then the library */
        snprintf(name, sizeof name, "%s/k.so", dir);
        char *const so = read_all(name, &bytes);
        p->cubin_bytes = bytes + 16;
        p->cubin = (char *)calloc(1, p->cubin_bytes);
        memcpy(p->cubin, "standin", 8);
        memcpy(p->cubin + 8, &bytes, 8);
        memcpy(p->cubin + 16, so, bytes);
        free(so);
        keep(p);
    }
    (void)shell("rm -r '%s'", dir);
    return good ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int n, const char *const *options) {
    ENTER("nvrtcCompileProgram");
    pthread_mutex_lock(&lock);
    const nvrtcResult r = compile_now(p, n, options);
    pthread_mutex_unlock(&lock);
    return r;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *bytes) {
    ENTER("nvrtcGetCUBINSize");
    *bytes = p->cubin_bytes; /* 0 where the architecture was a virtual one */
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *out) {
    ENTER("nvrtcGetCUBIN");
    memcpy(out, p->cubin, p->cubin_bytes);
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *bytes) {
    *bytes = strlen(p->log) + 1;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *out) {
    strcpy(out, p->log);
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram *p) {
    free((*p)->source);
    free((*p)->log);
    free((*p)->cubin);
    free(*p);
    *p = NULL;
    return NVRTC_SUCCESS;
}
