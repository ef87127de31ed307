#!/usr/bin/env bash
# Each fuzz target with libFuzzer: run.sh SECONDS            BUILD=DIR, LANES=N as for tests/run_all.sh
#
# The library is compiled once, with its instructions for the fuzzer that takes half a minute. Inputs that were found
# stay below BUILD. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
dir=${BUILD:-build}/fuzz
mkdir -p "$dir" || exit 1
checked='-fsanitize=address,undefined -fno-sanitize-recover=all'
# shellcheck disable=SC2086
clang -g -O1 -fsanitize=fuzzer-no-link $checked -I. -c tests/library.c -o "$dir/cdp.o" ||
    { echo 'the library does not compile for the fuzzer'; echo '0 passed, 1 failed'; exit 1; }
suites=()
for f in tests/fuzz/fuzz_*.c; do
    name=$(basename "$f" .c)
    mkdir -p "$dir/$name.corpus"
    cp tests/fuzz/corpus/"$name"/* "$dir/$name.corpus" 2> /dev/null # not every target has one
    build="clang -g -O1 -fsanitize=fuzzer $checked -DFUZZ_LIB $(bash tests/linked.sh words "$dir/cdp.o" "$f") -o $dir/$name -pthread -lm"
    run="$dir/$name -max_total_time=$1 -timeout=10 -artifact_prefix=$dir/ $dir/$name.corpus"
    suites+=("libFuzzer_$name|300|$build && $run && echo '1 passed, 0 failed'")
done
exec bash tests/run_all.sh "$dir/logs" "${suites[@]}"
