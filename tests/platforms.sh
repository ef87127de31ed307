#!/usr/bin/env bash
# Prints a table: one line for each system and processor, what was compiled for it, and what was run there. All headers are
# compiled as C11 with every warning an error; unit tests run on this machine, under qemu for other processors (zig cc,
# linked statically with musl) and under wine for Windows. macOS and the BSDs are compiled and not run.
# platforms.sh BUILD. ZIG: the command. WINDOWS=no: without Windows. MORE=1: more of the unit tests. What is not installed is a line with the reason.
# Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
build=${1-build}
ZIG=${ZIG:-$(command -v zig || { python3 -c 'import ziglang' 2> /dev/null && echo python3 -m ziglang; })}
export ZIG
mkdir -p "$build" && work=$(mktemp -d "$(cd "$build" && pwd)/platforms.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
# Not -Wmisleading-indentation: see STRICT in tests/compile/run.sh.
STRICT='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Werror -Wno-misleading-indentation'
# Optimised for this machine; clang, which zig is, has no other warnings for that.
ZIG_LEVEL='-O0 -fno-sanitize=undefined'
# Ranks in threads of one program, and stores: what an emulator runs in reasonable time.
UNITS=${UNITS:-test_core test_exec test_backend test_in_place test_mistakes ${MORE:+test_ddp test_works test_store_kinds}}
printf '#define CDP_IMPLEMENTATION\n' > "$work/all.c"
for header in $(ls cdp*.h | grep -v "^cdp_mpi[.]h$"); do # cdp_mpi.h needs an MPI: tests/mpi/run.sh
    printf '#include "%s"\n' "$header" >> "$work/all.c"
done
echo 'int main(void) { return 0; }' >> "$work/all.c"
line() { printf '%-26s %-22s %s\n' "$@"; }

compile() { # TARGET COMMAND...: prints nothing, says in $compiled how it went
    local target=$1
    shift
    if timeout 600 "$@" -std=c11 $STRICT -I. -c "$work/all.c" -o "$work/all.o" > "$work/said" 2>&1; then
        passed=$((passed + 1))
        compiled='without warnings'
    else
        failed=$((failed + 1))
        compiled='DOES NOT COMPILE'
        grep -m 5 'error' "$work/said" > "$work/why.$target"
        return 1
    fi
}
declare -A failures=()
units() { # TARGET RUNNER COMMAND...: runs the unit tests, says in $ran how that went
    local target=$1 runner=$2 t result p f sum=0 bad=0 count=0
    shift 2
    if ! "$@" -std=gnu11 -O1 -w -I. -c tests/library.c -o "$work/cdp.o" > "$work/said" 2>&1; then
        failed=$((failed + 1))
        ran='the library for the tests does not compile'
        return
    fi
    for t in $UNITS; do
        # shellcheck disable=SC2086
        if ! "$@" -std=gnu11 -w $(bash tests/linked.sh words "$work/cdp.o" tests/unit/$t.c) ${runner:+tests/lo_alone.c} -o "$work/test" -pthread -lm > "$work/said" 2>&1; then
            failed=$((failed + 1)) bad=$((bad + 1))
            failures[$target]+="$t does not compile: $(grep -m 1 error "$work/said"); "
            continue
        fi
        # shellcheck disable=SC2086
        timeout $((180 * ${TEST_SCALE:-1})) $runner "$work/test" > "$work/result" 2>&1
        result=$(grep -aE '^[0-9]+ passed, [0-9]+ failed$' "$work/result" | tail -n 1)
        read -r p _ f _ <<< "${result:-0 passed, 1 failed}"
        passed=$((passed + p)) failed=$((failed + f))
        sum=$((sum + p)) bad=$((bad + f)) count=$((count + 1))
        [ "$f" = 0 ] || failures[$target]+="$t: $(grep -aB 3 -m 1 '^not ok' "$work/result" | tr '\n' ' '); "
    done
    ran="$sum tests of $count programs pass"
    [ $bad = 0 ] || ran="$ran, $bad FAIL"
    [ -z "$runner" ] || ran="$ran, under $runner"
}

line system 'all headers' run
for cc in gcc clang; do
    if ! command -v $cc > /dev/null; then line "Linux $(uname -m), $cc" "SKIP: no $cc" ''; continue; fi
    ran='not run'
    if compile $cc $cc -O1 && [ -z "${RUN_ON:-}" ]; then units $cc '' $cc; fi
    line "Linux $(uname -m), $cc" "$compiled" "$ran"
done
if [ -z "$ZIG" ]; then
    line 'other processors, BSDs' 'SKIP: no zig' 'pip install ziglang, or set ZIG'
else
    for pair in aarch64:aarch64-linux-musl armv7:arm-linux-musleabihf riscv64:riscv64-linux-musl s390x:s390x-linux-musl \
        ppc64le:powerpc64le-linux-musl ppc64:powerpc64-linux-musl; do
        name=${pair%%:*} target=${pair#*:} ran='not run'
        qemu=qemu-$name
        [ $name != armv7 ] || qemu=qemu-arm
        # shellcheck disable=SC2086
        if compile "$name" $ZIG cc -target "$target" $ZIG_LEVEL; then
            if [[ " ${RUN_ON:-$name} " != *" $name "* ]]; then
                ran='not run: make platforms does that'
            elif command -v $qemu > /dev/null; then
                # their vectors take subnormal numbers for zero: docs/PLATFORMS.md
                units "$name" $qemu $ZIG cc -target "$target" -static $(case $name in armv7 | ppc64) echo -fno-vectorize -fno-slp-vectorize ;; esac)
            else
                ran="SKIP: no $qemu (package qemu-user)"
            fi
        fi
        line "Linux $name, zig" "$compiled" "$ran"
    done
    for target in x86_64-macos aarch64-macos x86_64-freebsd x86_64-netbsd x86_64-openbsd aarch64-windows-gnu; do
        # shellcheck disable=SC2086
        compile $target $ZIG cc -target $target $ZIG_LEVEL
        line "$target, zig" "$compiled" 'not run: there is no such machine here'
    done
    bash tests/byte_orders.sh > "$work/orders" 2>&1
    read -r p _ f _ <<< "$(tail -n 1 "$work/orders")"
    passed=$((passed + p)) failed=$((failed + f))
    line 'x86_64 with s390x' '' "$(grep -m 1 SKIP "$work/orders" || tail -n 1 "$work/orders"), over TCP: jobs refused, stores shared"
    grep '^not ok' "$work/orders"
fi
if [ "${WINDOWS:-}" = no ]; then
    echo '0 passed, 0 failed' > "$work/windows"
else
    bash tests/windows.sh "$build" > "$work/windows" 2>&1
fi
read -r p _ f _ <<< "$(tail -n 1 "$work/windows")"
passed=$((passed + p)) failed=$((failed + f))
[ "${WINDOWS:-}" = no ] || line 'Windows x86_64, mingw-w64' "$(grep -m 1 'SKIP Windows:' "$work/windows" || echo 'without warnings')" \
    "$(grep -m 1 'SKIP Windows, run' "$work/windows" || echo "$(tail -n 1 "$work/windows"), under wine")"
grep -A 5 '^not ok' "$work/windows"

for file in "$work"/why.*; do
    [ -e "$file" ] && echo "not ok ${file##*/why.} does not compile:" && cat "$file"
done
for target in "${!failures[@]}"; do
    echo "not ok $target: ${failures[$target]}"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
