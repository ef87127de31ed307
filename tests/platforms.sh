#!/usr/bin/env bash
# Compiles all headers for other systems with zig cc, and prints a line for each: "compiles", or its first error. Nothing is
# run. ZIG: the command; without one all is skipped. Ends with "N passed, N failed", where a system that does not compile
# yet counts as failed only if it is among those that do (the first list).
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
ZIG=${ZIG:-$(command -v zig || { python3 -c 'import ziglang' 2> /dev/null && echo python3 -m ziglang; })}
if [ -z "$ZIG" ]; then
    echo 'SKIP platforms: there is no zig; pip install ziglang'
    echo '0 passed, 0 failed'
    exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
printf '#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"\nint main(void) { return 0; }\n' > "$work/all.c"
passed=0 failed=0
COMPILING='x86_64-linux-gnu x86_64-linux-musl aarch64-linux-musl arm-linux-musleabihf riscv64-linux-musl powerpc64le-linux-musl s390x-linux-musl x86_64-macos aarch64-macos x86_64-freebsd x86_64-netbsd x86_64-openbsd'
OTHERS='x86_64-windows-gnu aarch64-windows-gnu wasm32-wasi'
printf '%-26s %s\n' target 'all headers, zig cc -O2 -Wall -Wextra'
for target in $COMPILING $OTHERS; do
    # shellcheck disable=SC2086
    if timeout 300 $ZIG cc -target "$target" -std=gnu11 -O2 -Wall -Wextra -I. -c "$work/all.c" -o "$work/all.o" > "$work/said" 2>&1; then
        warnings=$(grep -c 'warning:' "$work/said")
        printf '%-26s %s\n' "$target" "compiles$([ "$warnings" = 0 ] || echo ", $warnings warnings"), not run"
        passed=$((passed + 1))
    else
        rc=$?
        printf '%-26s %s\n' "$target" "$(grep -m 1 'error:' "$work/said" | sed 's/^.*error: //' | grep . || echo "exit code $rc: $(tail -n 1 "$work/said")")"
        case " $COMPILING " in *" $target "*) failed=$((failed + 1)) ;; esac
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
