#!/usr/bin/env bash
# The library for Windows: compiled with mingw-w64 without warnings, and run under wine: the unit tests that need nothing of
# POSIX, processes that meet and add up over Winsock, example 03 in two processes, and a rank that is killed.
# windows.sh BUILD. What is not installed is skipped. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
build=${1-build}
CC=${WINDOWS_CC:-x86_64-w64-mingw32-gcc}
WINE=${WINE:-wine}
LIBS='-static -lws2_32 -lbcrypt -lm -lpthread' # the library itself needs the first two; tests need clocks of POSIX
passed=0 failed=0
good() { passed=$((passed + 1)); echo "ok $1"; }
bad() { failed=$((failed + 1)); echo "not ok $1"; }
finish() {
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
    exit
}
if ! command -v "$CC" > /dev/null; then
    echo "SKIP Windows: there is no $CC (package mingw-w64)"
    finish
fi
mkdir -p "$build" && work=$(mktemp -d "$PWD/$build/windows.XXXXXX") || exit 1
export WINEPREFIX=$work/prefix WINEDEBUG=-all
trap 'wineserver -k 2> /dev/null; rm -rf "$work"' EXIT

# ---- compiled ----
STRICT='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Werror'
printf '#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"\nint main(void) { return 0; }\n' > "$work/all.c"
cp "$work/all.c" "$work/all.cpp"
for how in 'c11 -O2' 'c11 -Os -DCDP_NO_STDIO -DCDP_NO_LOG_STRINGS' 'c11 -O1 -DCDP_NO_THREADS' 'c11 -O1 -DCDP_NO_FILES -DCDP_NO_FILE_STORE'; do
    # shellcheck disable=SC2086
    if "$CC" -std=$how $STRICT -I. -c "$work/all.c" -o "$work/all.o" 2> "$work/said"; then
        good "mingw-w64 -std=$how"
    else
        bad "mingw-w64 -std=$how"
        head -n 20 "$work/said"
    fi
done
if command -v "${CC%gcc}g++" > /dev/null; then
    # shellcheck disable=SC2086
    if "${CC%gcc}g++" -std=c++17 -O1 -Wall -Wextra -Werror -I. -c "$work/all.cpp" -o "$work/all.o" 2> "$work/said"; then
        good 'mingw-w64 as C++17'
    else
        bad 'mingw-w64 as C++17'
        head -n 20 "$work/said"
    fi
fi
if ! command -v "$WINE" > /dev/null || ! timeout 120 "$WINE" cmd /c exit > /dev/null 2>&1; then
    echo "SKIP Windows, run: $WINE is not there, or does not start"
    finish
fi

# ---- unit tests ----
# shellcheck disable=SC2086
make -s BUILD="$build" $build/include/{whole,declared}/{cdp,cdp_store,cdp_tcp}.h > "$work/said" 2>&1 || bad 'headers for tests'
"$CC" -std=gnu11 -O1 -I"$build/include/whole" -c tests/cdp.c -o "$work/cdp.o" || bad 'the library for tests'
# Those that make ranks in threads of a hub, and no sockets of their own.
for t in test_backend test_ddp test_ddp_more test_ddp_steps test_exec test_hostile test_in_place test_mistakes; do
    include="-I$build/include/declared" object=$work/cdp.o
    if grep -qE '^#define (CDP__|__atomic)' tests/unit/$t.c; then include='' object=''; fi
    # shellcheck disable=SC2086
    if ! "$CC" -std=gnu11 -O1 -w -D__USE_MINGW_ANSI_STDIO=1 $include -I. -Itests tests/unit/$t.c $object -o "$work/$t.exe" $LIBS 2> "$work/said"; then
        bad "$t does not compile"
        grep -m 5 'error\|undefined' "$work/said"
        continue
    fi
    (cd "$work" && timeout $((120 * ${TEST_SCALE:-1})) "$WINE" ./$t.exe > $t.txt 2>&1)
    line=$(tr -d '\r' < "$work/$t.txt" | grep -E '^[0-9]+ passed, [0-9]+ failed$' | tail -n 1)
    read -r p _ f _ <<< "${line:-0 passed, 1 failed}"
    passed=$((passed + p)) failed=$((failed + f))
    echo "$t under wine: ${line:-it ended without a result}"
    [ "$f" = 0 ] || grep -v '^ok' "$work/$t.txt" | head -n 20
done

# ---- processes ----
ranks() { # N PROGRAM ARGUMENTS...: in the folder $work, by the variables of a launcher
    local n=$1 port r
    shift
    port=$((10000 + RANDOM % 20000))
    for ((r = 0; r < n; ++r)); do
        (cd "$work" && RANK=$r WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port exec timeout 180 "$WINE" "$@" > out.$r 2>&1) &
    done
    wait
}
program() { # SOURCE: its .exe
    # shellcheck disable=SC2086
    "$CC" -O2 -w -I. "$1" -o "$work/$(basename "$1" .c).exe" $LIBS || bad "$1 does not compile"
}
program examples/02_allreduce.c
ranks 4 ./02_allreduce.exe
if [ "$(cat "$work"/out.[0-3] | grep -c 'expected 2.5: right')" = 4 ]; then good 'four processes add up'; else bad 'four processes add up'; cat "$work"/out.?; fi
program examples/03_train_text.c
cp README.md "$work/text.md"
ranks 2 ./03_train_text.exe --steps 40 --save here.model text.md
if grep -q 'PASS' "$work/out.0" && [ -s "$work/here.model" ]; then good 'example 03 in two processes'; else bad 'example 03 in two processes'; tail -n 5 "$work"/out.[01]; fi

program tests/windows_loop.c
port=$((10000 + RANDOM % 20000))
for r in 0 1 2; do
    (cd "$work" && exec timeout 120 "$WINE" ./windows_loop.exe $r 3 $port > out.$r 2>&1) &
done
for ((i = 0; i < 600; ++i)); do
    [ "$(cat "$work"/out.[0-2] | grep -c 'on its way')" = 3 ] && break
    sleep 0.1
done
pkill -9 -f "windows_loop.exe 1 3 $port"
wait
for r in 0 2; do
    if grep -q "rank $r: PEER_LOST, peer 1" "$work/out.$r"; then good "rank $r names the one that was killed"; else bad "rank $r names the one that was killed"; cat "$work/out.$r"; fi
done
finish
