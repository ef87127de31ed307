#!/usr/bin/env bash
# cdp_mpi.h with Open MPI and with MPICH: every check of test_mpi.c with 1, 2 and 4 ranks, with a progress thread, without
# one, and with cdp_tcp.h that only meets over MPI; again with small segments, and with segments that differ between ranks.
# What is not installed is skipped. Ends with "N passed, N failed".
#
#   bash tests/mpi/run.sh            BUILD=DIR (default: build)
set -u
cd "$(dirname "$0")/../.." || exit 2
export LC_ALL=C
build=${BUILD:-build}/mpi slack=${TEST_SLACK:-1}
mkdir -p "$build" || exit 2
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
passed=0 failed=0
good() { passed=$((passed + 1)); echo "ok $1"; }
bad() {
    failed=$((failed + 1))
    echo "not ok $1: $2"
    tail -n 20 "$build/out" | sed 's/^/    /'
}

# The header compiles without a warning, as C and as C++; cdp_tcp.h comes before and after it.
compiles() { # MPI
    local flags='-O1 -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wundef -Werror -Wno-misleading-indentation'
    printf '#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"\n#include "cdp_mpi.h"\n' > "$build/whole.c"
    # The compilers' own C++ bindings of MPI are full of warnings, and nobody uses them.
    printf '#define OMPI_SKIP_MPICXX 1\n#define MPICH_SKIP_MPICXX 1\n' | cat - "$build/whole.c" > "$build/whole.cc"
    # shellcheck disable=SC2086
    if "mpicc.$1" -std=gnu11 $flags -I. -c "$build/whole.c" -o "$build/whole.o" > "$build/out" 2>&1; then
        good "cdp_mpi.h is C, $1"
    else
        bad "cdp_mpi.h is C, $1" 'does not compile'
    fi
    command -v "mpicxx.$1" > /dev/null || { echo "SKIP C++ with $1: there is no mpicxx.$1"; return; }
    # shellcheck disable=SC2086
    if "mpicxx.$1" -std=gnu++11 $flags -I. -c "$build/whole.cc" -o "$build/whole.o" > "$build/out" 2>&1; then
        good "cdp_mpi.h is C++, $1"
    else
        bad "cdp_mpi.h is C++, $1" 'does not compile'
    fi
}

# No name that a platform defines as a macro is used; the headers of the system, and the MPI's own, may use them.
no_macros() { # MPI
    { echo '#include <mpi.h>' && sed -n 's/^#include <.*/&/p' cdp.h cdp_store.h cdp_tcp.h cdp_mpi.h | sort -u |
        grep -vE 'sys.event|winsock|ws2tcp|windows|bcrypt|[^m]intrin|stdatomic'
      printf '#include "tests/compile/platform_macros.h"\n#define CDP_IMPLEMENTATION\n#include "cdp_mpi.h"\n'; } > "$build/macros.c"
    if "mpicc.$1" -std=gnu11 -fsyntax-only -w -I. "$build/macros.c" > "$build/out" 2>&1; then
        good "cdp_mpi.h beside the macros of platforms, $1"
    else
        bad "cdp_mpi.h beside the macros of platforms, $1" 'does not compile'
    fi
}

# The last line of rank 0 counts; ranks other than 0 fail with their exit code.
job() { # NAME COMMAND...
    local name=$1 rc line p f
    shift
    timeout $((120 * slack)) "$@" > "$build/out" 2>&1 < /dev/null
    rc=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$build/out" | tail -n 1)
    read -r p _ f _ <<< "${line:-0 passed, 1 failed}"
    if [ $rc = 0 ] && [ "$f" = 0 ] && [ "$p" -gt 0 ]; then
        passed=$((passed + p))
        echo "ok $name: $p checks"
    else
        bad "$name" "exit code $rc, ${line:-no result}"
    fi
}

builds() { # MPI PROGRAM FLAGS...
    local mpi=$1 program=$2
    shift 2
    "mpicc.$mpi" -O1 -g -std=gnu11 -Wall -Wextra -Wno-misleading-indentation "$@" -I. tests/mpi/test_mpi.c -o "$program" -pthread -lm > "$build/out" 2>&1
}

both() { # MPI LAUNCHER...
    local mpi=$1 n how test="$build/test_mpi.$1"
    local small="$test.small"
    shift
    if ! command -v "mpicc.$mpi" > /dev/null || ! command -v "$1" > /dev/null; then
        echo "SKIP $mpi: mpicc.$mpi and $1 are not both installed"
        return
    fi
    compiles "$mpi"
    no_macros "$mpi"
    if ! builds "$mpi" "$test" || ! builds "$mpi" "$small" -DCDP_MPI_SEGMENT=4096 -DCDP_MPI_WINDOW=2; then
        bad "test_mpi.c with $mpi" 'does not compile'
        return
    fi
    for n in 1 2 4; do
        for how in thread poll exchange; do job "$mpi, $n ranks, $how" "$@" -n $n "$test" $how; done
    done
    job "$mpi, 2 ranks, small segments" "$@" -n 2 "$small" poll
    job "$mpi, segments that differ" "$@" -n 1 "$small" sizes : -n 1 "$test" sizes
}
both openmpi mpirun.openmpi --allow-run-as-root --oversubscribe
both mpich mpiexec.mpich

printf '%d passed, %d failed\n' $passed $failed
[ $failed = 0 ]
