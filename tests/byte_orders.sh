#!/usr/bin/env bash
# Ranks on processors of different byte orders: the start refuses them on both sides with a sentence that names the byte
# orders; a store serves clients of either. An s390x program (zig cc, static) runs under qemu beside one of this machine.
# ZIG: the command. What is not installed is skipped. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
ZIG=${ZIG:-$(command -v zig || { python3 -c 'import ziglang' 2> /dev/null && echo python3 -m ziglang; })}
if [ -z "$ZIG" ] || ! command -v qemu-s390x > /dev/null; then
    echo 'SKIP byte orders: there is no zig (pip install ziglang), or no qemu-s390x (package qemu-user)'
    echo '0 passed, 0 failed'
    exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
for target in x86_64 s390x; do
    # shellcheck disable=SC2086
    $ZIG cc -target $target-linux-musl -static -std=gnu11 -O1 -w -I. tests/byte_orders.c tests/lo_alone.c -o "$work/$target" 2> "$work/said" ||
        { echo "not ok byte orders: $target: $(grep -m 1 error "$work/said")"; echo '0 passed, 1 failed'; exit 1; }
done
mv "$work/s390x" "$work/s390x.program"
printf '#!/bin/sh\nexec qemu-s390x %s/s390x.program "$@"\n' "$work" > "$work/s390x"
chmod +x "$work/s390x"

together() { # "PROGRAM ARGUMENTS" ...: each with the port at its end; what they say is in 0, 1, ...
    local port=$((10000 + RANDOM % 20000)) i=0 each
    for each; do
        # shellcheck disable=SC2086
        timeout 120 "$work"/$each $port > "$work/$i" 2>&1 &
        i=$((i + 1))
    done
    wait
}
judge() { # NAME TEXT FILE...: the text is in each file
    local name=$1 text=$2 file
    shift 2
    for file; do
        if ! grep -q "$text" "$work/$file"; then
            failed=$((failed + 1))
            echo "not ok $name: \"$text\" is not in what $file says:"
            cat "$work/$file"
            return
        fi
    done
    passed=$((passed + 1))
    echo "ok $name"
}
together 'x86_64 rank 0 2' 's390x rank 1 2'
judge 'little-endian rank 0, big-endian rank 1' 'MISMATCH.*rank 0 is little-endian and this rank big-endian' 0 1
together 's390x rank 0 2' 'x86_64 rank 1 2'
judge 'big-endian rank 0, little-endian rank 1' 'MISMATCH.*rank 0 is big-endian and this rank little-endian' 0 1
together 'x86_64 rank 0 3' 'x86_64 rank 1 3' 's390x rank 2 3'
judge 'one of three' 'MISMATCH.*rank 0 is little-endian and this rank big-endian' 0 1 2
together 's390x rank 0 2' 's390x rank 1 2'
judge 'two big-endian ranks' 'sum 3000' 0 1
for pair in 'x86_64 s390x' 's390x x86_64'; do
    together "${pair% *} serve" "${pair#* } ask"
    judge "a store: $pair" 'same bytes, sum [1-9]' 0 1
    sums=$(sed -n 's/.*sum //p' "$work/0" "$work/1" | sort -n | tail -n 1)
    if [ "$sums" = 9773436690 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "not ok a store: $pair: the sum is $sums"; fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
