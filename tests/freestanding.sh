#!/usr/bin/env bash
# cdp.h without a system: compiles for riscv32 and wasm32 with clang's own headers and the four below, which stand for what
# a board's C library must have; nothing else is included. What they declare is the whole list.
# Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
if ! command -v clang > /dev/null; then
    echo 'SKIP freestanding: clang is not installed'
    echo '0 passed, 0 failed'
    exit 0
fi
mkdir "$work/libc"
cat > "$work/libc/string.h" <<'C'
#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
void *memchr(const void *, int, size_t);
int memcmp(const void *, const void *, size_t);
int strcmp(const char *, const char *);
int strncmp(const char *, const char *, size_t);
char *strchr(const char *, int);
char *strrchr(const char *, int);
char *strstr(const char *, const char *);
size_t strlen(const char *);
size_t strspn(const char *, const char *);
size_t strcspn(const char *, const char *);
C
printf "#include <stddef.h>\nvoid abort(void);\ndouble strtod(const char *, char **);\nvoid qsort(void *, size_t, size_t, int (*)(const void *, const void *));\n" > "$work/libc/stdlib.h"
printf '#define NAN (__builtin_nanf(""))\n#define INFINITY (__builtin_inff())\n' > "$work/libc/math.h"
number=1
for name in EAGAIN EWOULDBLOCK EINTR EINVAL ENOMEM EPIPE EIO EMFILE ENFILE EPROTO ENOSYS EBADF EINPROGRESS ECONNRESET \
    ECONNREFUSED ECONNABORTED ENOTCONN ETIMEDOUT; do
    echo "#define $name $((number++))"
done > "$work/libc/errno.h"
printf '#define CDP_NO_OS\n#define CDP_NO_LOG_STRINGS\n#define CDP_IMPLEMENTATION\n#include "cdp.h"\n' > "$work/board.c"
for target in riscv32-unknown-elf wasm32-unknown-unknown; do
    if clang --target=$target -std=gnu11 -ffreestanding -nostdlibinc -Wall -Werror -Wno-unused-function -isystem "$work/libc" -I. -O0 \
        -c "$work/board.c" -o "$work/board.o" > "$work/out" 2>&1 && [ "$(wc -c < "$work/board.o")" -gt 50000 ]; then
        passed=$((passed + 1))
        echo "ok freestanding $target"
    else
        failed=$((failed + 1))
        echo "not ok freestanding $target"
        head -n 12 "$work/out" | sed 's/^/    /'
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
