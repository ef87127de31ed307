#!/usr/bin/env bash
# The code of docs/PORTING.md compiles without warnings, and no block of it is longer than 20 lines: blocks marked `after` with
# the headers, those marked `mpi` with an MPI, where there is one. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
good() { passed=$((passed + 1)); echo "ok $1"; }
bad() { failed=$((failed + 1)); echo "not ok $1"; head -n 20 "$work/out" | sed 's/^/    /'; }
blocks() { awk -v mark='```c '"$1" '$0 == mark { on = 1; next } /^```/ { on = 0 } on' docs/PORTING.md; }

awk '/^```./ { from = NR; next } /^```$/ && NR - from - 1 > 20 { print "line " from ": " NR - from - 1 " lines" }' docs/PORTING.md > "$work/out"
if [ -s "$work/out" ]; then bad 'blocks have at most 20 lines'; else good 'blocks have at most 20 lines'; fi

# What the program itself has.
{
    printf '#include "cdp_tcp.h"\n#include "cdp_nccl.h"\n#include <stdio.h>\n'
    echo 'void compute_gradients(int step, float *grad[]); void update(float *grad[]);'
    echo 'void backward_of(int step, uint32_t parameter, void *grad); void update_from(cdp_ddp *ddp);'
    for name in train_allreduce train_ddp train_like_torch average_on_gpu train_like_horovod; do
        blocks after | sed -nE "s/^(int $name\(.*\)) \{\$/\1;/p"
    done
    blocks after
} > "$work/after.c"
if [ "$(blocks after | grep -c '^int ')" = 5 ] &&
    gcc -std=gnu11 -Wall -Wextra -Werror -Wno-misleading-indentation -O1 -I. -c "$work/after.c" -o "$work/after.o" > "$work/out" 2>&1; then good 'what it says to write'
else bad 'what it says to write'; fi
if ! command -v mpicc > /dev/null; then echo 'SKIP the MPI that it replaces: mpicc is not installed'
else
    {
        printf '#include <mpi.h>\nvoid compute_gradients(int step, float *grad[]); void update(float *grad[]);\n'
        echo 'int train_mpi(float *grad[], const int count[], int params, int steps);'
        blocks mpi
    } > "$work/mpi.c"
    if blocks mpi | grep -q '^int ' && mpicc -std=gnu11 -Wall -Wextra -c "$work/mpi.c" -o "$work/mpi.o" > "$work/out" 2>&1; then good 'the MPI that it replaces'
    else bad 'the MPI that it replaces'; fi
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
