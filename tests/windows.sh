#!/usr/bin/env bash
# The library for Windows: compiled with mingw-w64 without warnings, and run under wine: the unit tests that need nothing of
# POSIX, processes that meet and add up over Winsock, example 03 in two processes, and a rank that is killed.
# windows.sh BUILD. WINDOWS_UNITS: which unit tests. What is not installed is skipped. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
build=${1-build}
CC=${WINDOWS_CC:-x86_64-w64-mingw32-gcc}
WINE=${WINE:-wine}
LIBS='-static -lws2_32 -lbcrypt -lm -lpthread' # the library itself needs the first two; tests need clocks of POSIX
. tests/tally.sh
if ! command -v "$CC" > /dev/null; then
    echo "SKIP Windows: there is no $CC (package mingw-w64)"
    finish
fi
mkdir -p "$build" && work=$(mktemp -d "$(cd "$build" && pwd)/windows.XXXXXX") || exit 1
export WINEPREFIX=$work/prefix WINEDEBUG=-all
trap 'wineserver -k 2> /dev/null; rm -rf "$work"' EXIT

# ---- compiled ----
# Optimised once; the others show what these macros leave out. Not -Wmisleading-indentation: see STRICT in
# tests/compile/run.sh.
STRICT='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Werror -Wno-misleading-indentation'
printf '#define CDP_IMPLEMENTATION\n' > "$work/all.c"
for header in $(ls cdp*.h | grep -v '^cdp_mpi[.]h$'); do printf '#include "%s"\n' "$header" >> "$work/all.c"; done
echo 'int main(void) { return 0; }' >> "$work/all.c"
cp "$work/all.c" "$work/all.cpp"
for how in 'c11 -O2' 'c11 -O0 -DCDP_NO_STDIO -DCDP_NO_LOG_STRINGS' 'c11 -O0 -DCDP_NO_THREADS' 'c11 -O0 -DCDP_NO_FILES -DCDP_NO_FILE_STORE'; do
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
    if "${CC%gcc}g++" -std=c++17 -O0 -Wall -Wextra -Werror -Wno-misleading-indentation -I. -c "$work/all.cpp" -o "$work/all.o" 2> "$work/said"; then
        good 'mingw-w64 as C++17'
    else
        bad 'mingw-w64 as C++17'
        head -n 20 "$work/said"
    fi
fi
# shellcheck disable=SC2086
if "$CC" -O2 -Wall -Wextra -Werror tools/cdprun.c -o "$work/cdprun.exe" $LIBS 2> "$work/said"; then
    good 'mingw-w64, cdprun'
else
    bad 'mingw-w64, cdprun'
    head -n 20 "$work/said"
fi
if ! command -v "$WINE" > /dev/null || ! timeout 120 "$WINE" cmd /c exit > /dev/null 2>&1; then
    echo "SKIP Windows, run: $WINE is not there, or does not start"
    finish
fi

# ---- unit tests ----
# shellcheck disable=SC2086
"$CC" -std=gnu11 -O1 -I. -c tests/library.c -o "$work/cdp.o" || bad 'the library for tests'
# Those that make ranks in threads of a hub, and no sockets of their own.
for t in ${WINDOWS_UNITS-test_backend test_ddp test_ddp_mistakes test_ddp_buckets test_ddp_hook_values test_ddp_optimizers test_ddp_trace test_sampler test_ddp_steps test_exec test_hostile test_in_place test_mistakes}; do
    # shellcheck disable=SC2086
    if ! "$CC" -std=gnu11 -O1 -w -D__USE_MINGW_ANSI_STDIO=1 $(bash tests/linked.sh words "$work/cdp.o" tests/unit/$t.c) -o "$work/$t.exe" $LIBS 2> "$work/said"; then
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
launch() { # SECONDS ARGUMENTS...: cdprun, in the folder $work; what it says is in $work/out
    local seconds=$1
    shift
    (cd "$work" && exec timeout "$seconds" "$WINE" ./cdprun.exe "$@" > out 2>&1)
}
expect() { # NAME CONDITION...: what was said is shown where it does not hold
    local name=$1
    shift
    if "$@"; then good "$name"; else bad "$name"; head -n 20 "$work"/out*; fi
}
says() { [ "$(cat "$work"/out* | grep -c "$2")" = "$1" ]; }
program examples/02_allreduce.c
ranks 4 ./02_allreduce.exe
expect 'four processes add up' says 4 'expected 2.5: right'
rm -f "$work"/out.*
# The parts of the headers that are for MSVC, compiled by gcc: atomics, variables of a thread.
msvc="$CC -O1 -w -D__USE_MINGW_ANSI_STDIO=1 -include tests/compile/msvc.h -I. -Itests"
# shellcheck disable=SC2086
if $msvc tests/unit/test_in_place.c -o "$work/msvc.exe" $LIBS 2> "$work/said" && $msvc examples/02_allreduce.c -o "$work/msvc_02.exe" $LIBS 2>> "$work/said"; then
    (cd "$work" && exec timeout $((120 * ${TEST_SCALE:-1})) "$WINE" ./msvc.exe > out 2>&1)
    expect 'threads, with the parts for MSVC' says 1 '[1-9] passed, 0 failed'
    rm -f "$work"/out*
    ranks 2 ./msvc_02.exe
    expect 'two processes that share memory, with the parts for MSVC' says 2 'expected 1.5: right'
    rm -f "$work"/out*
else
    bad 'the parts for MSVC do not compile'
    grep -m 5 'error\|undefined' "$work/said"
fi
program examples/03_train_text.c
cp README.md "$work/text.md"
launch 300 -n 4 ./03_train_text.exe --steps 40 --save here.model text.md
rc=$?
expect 'cdprun -n 4 trains example 03' test "$rc $(grep -c PASS "$work/out")" = '0 1'
expect 'cdprun -n 4 leaves a model behind' test -s "$work/here.model"
launch 60 -n 3 --grace 1 cmd /c exit 7
expect 'cdprun: the exit code of a rank' test $? = 7
expect 'cdprun names the first that failed' says 1 'cdprun: rank [012] .* ended with exit code 7'
launch 60 -n 2 there_is_no_such_program.exe
expect 'cdprun: no such program' test $? = 127
program tests/windows_loop.c
launch 60 -n 2 --timeout 5 ./windows_loop.exe forever
expect 'cdprun --timeout' test $? = 124
expect 'two processes share memory' says 2 'is on its way over memory'
launch 60 -n 2 --timeout 5 ./windows_loop.exe forever no_memory
expect 'two processes without shared memory' says 2 'is on its way over TCP'

# A rank is killed: the others name it (wine's taskkill gives it the exit code 0). Then cdprun itself is killed.
begun() { # WORD RANKS: waits until all are on their way
    local i
    for ((i = 0; i < 600; ++i)); do
        [ "$(grep -c 'on its way' "$work/out")" = "$2" ] && return 0
        sleep 0.1
    done
    echo "not all ranks of $1 have begun"
}
kill_rank() { # RANK: by its number as Windows counts
    local pid
    pid=$(sed -n "s/.*rank $1, process \([0-9]*\),.*/\1/p" "$work/out")
    timeout 60 "$WINE" taskkill /f /pid "$pid" > "$work/said" 2>&1
}
for how in memory TCP; do
    : > "$work/out" # begun() must not find the lines of an earlier job
    # shellcheck disable=SC2046
    launch 120 -n 3 ./windows_loop.exe kill_me_$how $([ $how = memory ] || echo no_memory) &
    begun $how 3
    kill_rank 1
    wait $!
    expect "the others name a killed rank, $how" says 2 'rank [02]: PEER_LOST, peer 1'
done
: > "$work/out"
launch 120 -n 3 ./windows_loop.exe orphans_$$ &
begun orphans 3
pkill -9 -f 'cdprun.exe -n 3 ./windows_loop.exe orphans_'$$
for ((i = 0; i < 100; ++i)); do
    pgrep -f "windows_loop.exe orphans_$$" > "$work/said" || break
    sleep 0.1
done
expect 'ranks end with a killed cdprun' test ! -s "$work/said"
wait
finish
