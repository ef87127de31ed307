#!/usr/bin/env bash
# Every example and tool that `make programs` has made below BUILD/test answers --help: with a line "usage: ", the exit code
# 0, no job and no file. One that needs a launcher says how it is started when there is none.
# Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(realpath "${BUILD:-build}")/test
sources=$(ls examples/*.c examples/*.cpp tools/*.c | grep -vx tools/join.c)
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
passed=0 failed=0
good() { passed=$((passed + 1)); echo "ok $1"; }
bad() { failed=$((failed + 1)); echo "not ok $1: $2"; head -n 10 "$tmp/out" | sed 's/^/    /'; }
mkdir "$tmp/empty" && cd "$tmp/empty" || exit 1

for source in $sources; do
    name=$(basename "${source%.*}")
    if [ ! -x "$build/$name" ]; then echo "SKIP $name: $build/$name was not built"; continue; fi
    timeout 20 "$build/$name" --help > "$tmp/out" 2>&1 < /dev/null
    rc=$?
    if [ $rc != 0 ]; then bad "$name --help" "exit code $rc"
    elif ! grep -qE '^usage: ' "$tmp/out"; then bad "$name --help" 'no line "usage: "'
    elif grep -qE '^(rank [0-9]|cdp: )' "$tmp/out"; then bad "$name --help" 'a job has begun'
    elif [ -n "$(ls -A)" ]; then bad "$name --help" "made $(ls -A)"; rm -rf ./*
    else
        good "$name --help"
        grep -qE '^usage: cdprun -n' "$tmp/out" && [ "$name" != cdprun ] || continue
        timeout 20 "$build/$name" > "$tmp/out" 2>&1 < /dev/null
        rc=$?
        if [ $rc != 0 ] && [ $rc -lt 124 ] && grep -q cdprun "$tmp/out" && [ -z "$(ls -A)" ]; then good "$name without a launcher"
        else bad "$name without a launcher" "exit code $rc, or it does not name cdprun"; fi
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
