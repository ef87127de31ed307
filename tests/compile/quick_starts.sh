#!/usr/bin/env bash
# The QUICK START of each header, as its first lines print it, compiles as C11 and as C++17: who vendors a header into
# a program in C++ begins by pasting it. Those that are a part of a program get the rest of one here.
# Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
export LC_ALL=C
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
. tests/tally.sh
cuda=${CUDA_HOME:-/usr/local/cuda}

lines_of() { # HEADER: up to the end of the program; what follows says how to compile it
    awk '/^    QUICK START/ { on = 1; next }
        on && (/^    [A-Z]/ || /^ *$/ || /^ *(gcc|mpicc|cuda=|With) ?/) { exit }
        on' "src/$1.h" | sed 's/^        //'
}
before() { # HEADER: what a part of a program stands in
    printf '#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"\n#include "%s.h"\n#include <stdio.h>\n' "$1"
    if [ "$1" = cdp_elastic ]; then
        echo 'void forward_backward(float *grad, uint64_t step, uint32_t rank, uint32_t size);'
        echo 'void optimizer(float *w, float *m, const float *grad);'
        echo 'int quick(cdp_store *store, float *w, float *m, float *grad, uint64_t w_count, uint64_t steps);'
        echo 'int quick(cdp_store *store, float *w, float *m, float *grad, uint64_t w_count, uint64_t steps) {'
    else
        printf 'int quick(uint32_t rank);\nint quick(uint32_t rank) {\n'
    fi
}
needs() { # HEADER: a header of others that is not there
    case $1 in
    cdp_nccl) [ -f "$cuda/include/cuda_runtime_api.h" ] || echo "cuda_runtime_api.h" ;;
    cdp_mpi) command -v mpicxx > /dev/null || echo "mpicxx" ;;
    esac
}
compiles() { # HEADER HOW COMPILER...
    local name=$1 how=$2
    shift 2
    if "$1" -Wall -Wextra -Werror -Wno-misleading-indentation "${@:2}" -fsyntax-only -I. -isystem "$cuda/include" "$work/$name.c" > "$work/said" 2>&1; then
        good "$name as $how"
    else
        bad "$name as $how"
        head -n 10 "$work/said"
    fi
}
for header in src/cdp*.h; do
    name=$(basename "$header" .h)
    lines_of "$name" > "$work/part"
    missing=$(needs "$name")
    if [ ! -s "$work/part" ]; then
        bad "$name has a QUICK START"
        continue
    elif [ -n "$missing" ]; then
        echo "SKIP $name: there is no $missing"
        continue
    fi
    if grep -q 'int main' "$work/part"; then
        cp "$work/part" "$work/$name.c"
    else
        { before "$name"; cat "$work/part"; printf '    return 0;\n}\n'; } > "$work/$name.c"
    fi
    c=gcc cxx=g++
    [ "$name" != cdp_mpi ] || c=mpicc cxx='mpicxx -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX'
    compiles "$name" C11 $c -std=c11
    # what C++ warns of here is that members are left out, which are 0 then
    # shellcheck disable=SC2086
    compiles "$name" C++17 $cxx -std=c++17 -Wno-missing-field-initializers -x c++
done
finish
