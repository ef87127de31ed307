#!/usr/bin/env bash
# The library without a system on two boards: examples/18_firmware is compiled for a Cortex-M3, and linked into 80 KB of code
# and 20 KB of memory, which the linker and the program itself measure. Two emulated boards train together over a serial
# line; then each of them does with a PC. All losses must have the same bits as the same training in one program.
# firmware.sh BUILD. What is not installed is skipped. BUILD_ONLY=1: without the emulator. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
here=examples/18_firmware
CC=${BOARD_CC:-arm-none-eabi-gcc}
QEMU=${BOARD_QEMU:-qemu-system-arm}
MOST_CODE=81920 MOST_RAM=20480
. tests/tally.sh
if ! echo '#include <string.h>' | "$CC" --specs=nano.specs -x c -c - -o /dev/null 2> /dev/null; then
    echo "SKIP firmware: there is no $CC with newlib (packages gcc-arm-none-eabi and libnewlib-arm-none-eabi)"
    finish
fi
mkdir -p "${1-build}" && work=$(mktemp -d "$(cd "${1-build}" && pwd)/firmware.XXXXXX") || exit 1
pids=
# shellcheck disable=SC2086
trap '[ -z "$pids" ] || kill $pids 2> /dev/null; wait; rm -rf "$work"' EXIT

# ---- compiled ----
CPU='-mcpu=cortex-m3 -mthumb'
# Not -Wmisleading-indentation: see STRICT in tests/compile/run.sh.
STRICT='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Werror -Wno-misleading-indentation'
compiles() { # NAME LEVEL HEADER...: without a system
    local name=$1 level=$2
    { printf '#define CDP_NO_OS\n#define CDP_IMPLEMENTATION\n'; printf '#include "%s"\n' "${@:3}"; } > "$work/all.c"
    # shellcheck disable=SC2086
    if "$CC" $CPU -std=c11 $level $STRICT -I. -c "$work/all.c" -o "$work/all.o" 2> "$work/said"; then
        good "$name for a board, without a system"
    else
        bad "$name for a board, without a system"
        head -n 10 "$work/said"
    fi
}
# Each alone is only read: all of them in one file are compiled.
headers=$(ls cdp*.h | grep -v '^cdp_mpi[.]h$')
for h in $headers; do compiles $h -fsyntax-only $h; done
# shellcheck disable=SC2086
compiles 'all headers' -O1 $headers

# What two ranks that train do not need. CDP_FEW_ALGORITHMS and CDP_ERROR_TEXT: of all files.
LESS='-DCDP_NO_OS -DCDP_FEW_ALGORITHMS -DCDP_FEW_DTYPES -DCDP_NO_SCAN -DCDP_ERROR_TEXT=96 -DCDP_ONLY_F32 -DNDEBUG'
for part in HOOKS AVERAGER ZERO TRACE SPARSE JOIN CLIP VERIFY SAMPLER MESSAGES OBJECTS HUB RECORDER CHAINS GROUPS LOG_STRINGS BACKEND REPRODUCIBLE; do
    LESS="$LESS -DCDP_NO_$part"
done
FLAGS="$CPU -std=gnu11 -Os -ffp-contract=off -ffunction-sections -fdata-sections $STRICT $LESS -I."
# The arena has room for one body of a control message (640 bytes), though without room a question is dropped.
ARENA=12288 STACK=3584
printf '#define CDP_IMPLEMENTATION\n#include "cdp.h"\n' > "$work/cdp.c"
# shellcheck disable=SC2086
"$CC" $FLAGS -c "$work/cdp.c" -o "$work/cdp.o" || bad 'the library for the board does not compile'
for rank in 0 1; do
    # shellcheck disable=SC2086
    if "$CC" $FLAGS -DRANK=$rank -DARENA_BYTES=$ARENA -c $here/board.c -o "$work/board$rank.o" &&
        "$CC" $CPU --specs=nano.specs -nostartfiles -T $here/board.ld -Wl,--gc-sections,--defsym=board_stack_bytes=$STACK \
            -Wl,-Map="$work/board$rank.map" "$work/board$rank.o" "$work/cdp.o" -o "$work/board$rank.elf"; then
        good "the firmware of rank $rank fits in $MOST_CODE bytes of code and $MOST_RAM of memory"
    else
        bad "the firmware of rank $rank"
    fi
done
[ $failed = 0 ] || finish

# ---- what it consists of ----
symbols=$(arm-none-eabi-nm -S "$work/board0.elf")
unwanted=$(awk '{ print $NF }' <<< "$symbols" | grep -E 'printf|scanf|malloc|_sbrk|__atomic|__sync_|strtod|_dtoa|errno|^_exit$|aeabi_d(add|sub|mul|div|cmp)|(add|sub|mul|div)df3' | grep -v '^cdp_' | xargs)
if [ -z "$unwanted" ]; then good 'no heap, no stdio, no atomics, no arithmetic of double'; else bad "linked, too: $unwanted"; fi
code=$(size -A "$work/board0.elf" 2> /dev/null | awk '$1 ~ /^[.](text|data|ARM)/ { sum += $2 } END { print sum + 0 }')
if [ "$code" -gt 10000 ] && [ "$code" -le $MOST_CODE ]; then good "$code bytes of code and constants (limit $MOST_CODE)"; else bad "$code bytes of code and constants (limit $MOST_CODE)"; fi
part() { # NAME PATTERN-OF-OBJECTS: code and constants that the linker took from there
    awk -v of="$2" '/^Linker script and memory map/ { on = 1 } on && /^[.]stack/ { on = 0 }
        on && NF >= 3 && $(NF - 1) ~ /^0x/ && $NF ~ of { sum += hex($(NF - 1)) }
        function hex(s, i, v) { for (i = 3; i <= length(s); ++i) v = v * 16 + index("0123456789abcdef", substr(s, i, 1)) - 1; return v }
        END { printf "  %-42s %6d\n", name, sum }' name="$1" "$work/board0.map"
}
# its code is longer: with 96 KB in place of 80
sed 's/LENGTH = 80K/LENGTH = 96K/' $here/board.ld > "$work/other.ld"
# shellcheck disable=SC2086
for cpu in cortex-m0 cortex-m4; do # the first has no atomic instructions and no division, and nobody brings them
    if "$CC" ${FLAGS/cortex-m3/$cpu} -DRANK=0 -DARENA_BYTES=$ARENA -c $here/board.c -o "$work/other.o" &&
        "$CC" ${FLAGS/cortex-m3/$cpu} -c "$work/cdp.c" -o "$work/other_cdp.o" &&
        "$CC" -mcpu=$cpu -mthumb --specs=nano.specs -nostartfiles -T "$work/other.ld" -Wl,--gc-sections,--defsym=board_stack_bytes=$STACK \
            "$work/other.o" "$work/other_cdp.o" -o "$work/other.elf"; then
        good "it links for a $cpu, too: $(arm-none-eabi-size "$work/other.elf" | awk 'NR == 2 { print $1 + $2 }') bytes of code and constants, not run"
    else
        bad "it does not link for a $cpu in 96 KB"
    fi
done
echo "bytes of code and constants on a Cortex-M3:"
part 'cdp.h' '/cdp[.]o$'
part 'line.h, model.h, train.h, board.c' '/board0[.]o$'
part 'C library (memcpy, strcmp, ...)' 'libc_nano|libg_nano|libm|libnosys'
part 'arithmetic of float and of 64 bits' 'libgcc'

[ -z "${BUILD_ONLY-}" ] || finish

# ---- run ----
if ! command -v "$QEMU" > /dev/null; then
    echo "SKIP firmware, run: there is no $QEMU (package qemu-system-arm)"
    finish
fi
gcc -O2 -w -ffp-contract=off -DCDP_FEW_ALGORITHMS -I. $here/pc.c -o "$work/pc" -pthread -lm || bad 'the program for the PC does not compile'
alone=$("$work/pc" alone)
bits=$(sed -n 's/.*\(loss .*\)/\1/p' <<< "$alone")
board() { # RANK HOW-THE-LINE-IS-MADE: its text goes to $work/board$rank.txt
    rm -f "$work/board$1.txt"
    timeout $((120 * ${TEST_SCALE:-1})) "$QEMU" -M mps2-an385 -display none -monitor none -serial "file:$work/board$1.txt" -serial "$2" \
        -kernel "$work/board$1.elf" > "$work/said" 2>&1 &
    pids="$pids $!"
}
ended() { # RANK...: until all of these boards have said so
    local i r n
    for ((i = 0; i < 1200 * ${TEST_SCALE:-1}; ++i)); do
        n=0
        for r in "$@"; do grep -qs '^end' "$work/board$r.txt" && n=$((n + 1)); done
        [ $n -lt $# ] || break
        sleep 0.1
    done
    # shellcheck disable=SC2086
    kill $pids 2> /dev/null
    wait 2> /dev/null
    pids=
}
check() { # WHAT FILE: does it have the loss of one program?
    if [ -n "$bits" ] && grep -qsF "$bits" "$2"; then good "$1: $(grep -m 1 -F "$bits" "$2")"; else bad "$1: $(cat "$2" 2>&1), not $bits"; fi
}
listening() {
    local i
    for ((i = 0; i < 100; ++i)); do
        [ ! -S "$work/wire" ] || break
        sleep 0.1
    done
}
echo "$alone"
board 0 "unix:$work/wire,server=on,wait=off"
listening
board 1 "unix:$work/wire"
ended 0 1
check 'two boards' "$work/board0.txt"
check 'two boards' "$work/board1.txt"
for rank in 0 1; do
    ram=$(sed -n 's/^ram: \([0-9]*\) bytes.*/\1/p' "$work/board$rank.txt" 2> /dev/null)
    if [ "${ram:-0}" -gt 1000 ] && [ "$ram" -le $MOST_RAM ]; then good "rank $rank, $(grep '^ram' "$work/board$rank.txt") (limit $MOST_RAM)"; else bad "rank $rank: ${ram:-no} bytes of memory"; fi
done
for rank in 0 1; do
    rm -f "$work/wire"
    board $rank "unix:$work/wire,server=on,wait=off"
    listening
    timeout $((120 * ${TEST_SCALE:-1})) "$work/pc" $((1 - rank)) "$work/wire" > "$work/pc.txt" 2>&1
    ended $rank
    check "a board as rank $rank and a PC" "$work/board$rank.txt"
    check "a PC as rank $((1 - rank)) and a board" "$work/pc.txt"
done
[ $failed = 0 ] && echo 'VERDICT: two boards, and a board and a PC, learn what one program learns, to the last bit'
finish
