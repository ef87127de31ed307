#!/usr/bin/env bash
# Unit tests with another compiler, or on another machine:
#
#   units.sh NAME COMPILER-AND-FLAGS 'TEST ...' [COMMAND-THAT-RUNS-THEM]      BUILD=DIR, LANES=N as for run_all.sh
#
# The library is compiled once, as for make test; tests that set macros of it compile it themselves (linked.sh). Each
# test is a suite of run_all.sh. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
# lines for the reports of sanitizers; no more, for which gcc takes a sixth of its time at -O2
name=$1 cc="$2 -g1 -Wno-misleading-indentation" dir=${BUILD:-build}/$1
mkdir -p "$dir" || exit 1
# shellcheck disable=SC2086
$cc -I. -c tests/library.c -o "$dir/cdp.o" || { echo "the library does not compile with $2"; echo '0 passed, 1 failed'; exit 1; }
suites=()
for t in $3; do
    compile="$cc $(bash tests/linked.sh words "$dir/cdp.o" "tests/unit/$t.c") -o $dir/$t -pthread -lm"
    suites+=("${name}_$t|300|$compile && ${4:-} $dir/$t")
done
AGAIN=2 exec bash tests/run_all.sh "$dir/logs" "${suites[@]}"
