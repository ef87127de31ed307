#!/usr/bin/env bash
# Builds and runs the benchmark of cdp_mem.h: memory.sh [BUILD]. Beside it, where they are there: g++ (for the model of
# PyTorch's structures), libmimalloc.so.2, libjemalloc.so.2.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${1:-${BUILD:-build}}/bench
mkdir -p "$build" || exit 1
model=''
if command -v g++ > /dev/null && g++ -O2 -std=c++17 -c tests/bench/memory_model.cc -o "$build/memory_model.o"; then
    model="-DMODEL $build/memory_model.o -lstdc++"
fi
# shellcheck disable=SC2086
gcc -O2 -g -fno-omit-frame-pointer -fno-optimize-sibling-calls -I. -Itests tests/bench/memory.c -o "$build/memory" $model -pthread -lm -ldl || exit 1
# jemalloc keeps more in thread-local storage than a library that is loaded late usually gets
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.rtld.optional_static_tls=8192}
exec "$build/memory"
