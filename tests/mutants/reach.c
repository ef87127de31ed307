/* reach.c - which code a run reached: beside a library that was compiled with
   -fsanitize-coverage=trace-pc, so that every block of it calls __sanitizer_cov_trace_pc()

   As part of the library: each byte of the file that the environment names in REACH_FILE stands
   for an address of the library; it becomes 1 when that address is reached. The file is shared
   memory, so processes that are killed leave what they reached.

   As a program (-DREACH_MAIN): reach FILE prints the addresses, as 16 hexadecimal digits. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define REACH_BYTES ((size_t)1 << 23) /* more than the code of the library */

#ifdef REACH_MAIN
int main(int argc, char **argv) {
    FILE *f = argc == 2 ? fopen(argv[1], "rb") : NULL;
    static uint64_t words[1 << 15];
    uint64_t at = 0;
    size_t n;
    if (!f) return 1;
    while ((n = fread(words, 8, sizeof words / 8, f)) > 0)
        for (size_t i = 0; i < n; ++i, at += 8)
            for (unsigned k = 0; words[i] && k < 8; ++k)
                if (words[i] >> 8 * k & 1) printf("%016llx\n", (unsigned long long)at + k);
    fclose(f);
    return 0;
}
#else
extern const char reach__base[] __asm__("__ehdr_start") __attribute__((visibility("hidden")));
static uint8_t reach__nowhere[1], *reach__map = reach__nowhere;

__attribute__((constructor)) static void reach__begin(void) {
    const char *name = getenv("REACH_FILE");
    const int fd = name ? open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    void *map = MAP_FAILED;
    if (fd < 0) return;
    if (ftruncate(fd, (off_t)REACH_BYTES) == 0)
        map = mmap(NULL, REACH_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) reach__map = (uint8_t *)map;
}

__attribute__((visibility("hidden"))) void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    const size_t at = (size_t)((const char *)__builtin_return_address(0) - reach__base);
    if (reach__map != reach__nowhere && at < REACH_BYTES && !reach__map[at]) reach__map[at] = 1;
}
#endif
