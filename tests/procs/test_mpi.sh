#!/usr/bin/env bash
# test_mpi.sh - programs that others start: mpirun of Open MPI, mpiexec of MPICH; and many jobs at once on one machine
#
#   bash tests/procs/test_mpi.sh            BUILD=DIR (default: build), JOBS_AT_ONCE (default: 50)
#
# The launchers set no address and no port: the ranks meet by themselves. A launcher that is not installed is skipped.
# Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
export LC_ALL=C
build=${BUILD:-build} slack=${TEST_SCALE:-1}
mkdir -p "$build/mpi" || exit 2
(unset MAKEFLAGS MAKELEVEL; make -s BUILD="$build" "$build/test/01_hello") || { echo '0 passed, 1 failed'; exit 1; }
cp "$build/test/01_hello" "$build/mpi/hello" || exit 2
hello=$(cd "$build/mpi" && pwd)/hello
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_RESTART_COUNT
export TMPDIR=$tmp
passed=0 failed=0
good() { passed=$((passed + 1)); echo "ok $1"; }
bad() { failed=$((failed + 1)); echo "not ok $1: $2"; tail -n 20 "$tmp/out" | sed 's/^/    /'; }

# COUNT ranks say that they are here, the command ends well, and nothing stays behind in TMPDIR
job() { # NAME COUNT COMMAND...
    local name=$1 count=$2 rc said left
    shift 2
    timeout $((60 * slack)) "$@" > "$tmp/out" 2>&1 < /dev/null
    rc=$?
    said=$(grep -c "of $count is here" "$tmp/out")
    left=$(find "$tmp" -name 'cdp-*' | head -n 3)
    if [ $rc != 0 ]; then bad "$name" "exit code $rc"
    elif [ "$said" != "$count" ]; then bad "$name" "$said of $count ranks are here"
    elif [ -n "$left" ]; then bad "$name" "left behind: $left"
    else good "$name"; fi
}

if command -v mpirun.openmpi > /dev/null; then
    job 'mpirun of Open MPI' 3 mpirun.openmpi --allow-run-as-root --oversubscribe -n 3 "$hello"
    job 'mpirun of Open MPI, one rank' 1 mpirun.openmpi --allow-run-as-root -n 1 "$hello"
else
    echo 'SKIP Open MPI: mpirun.openmpi is not installed'
fi
if command -v mpiexec.mpich > /dev/null; then
    job 'mpiexec of MPICH' 3 mpiexec.mpich -n 3 "$hello"
    job 'mpiexec of MPICH, one rank' 1 mpiexec.mpich -n 1 "$hello"
else
    echo 'SKIP MPICH: mpiexec.mpich is not installed'
fi

# What mpiexec says, said by a shell: the parent of the ranks of a job. All jobs start at once, and none knows of the others.
n=${JOBS_AT_ONCE:-50} pids=() bad=0
for ((j = 0; j < n; ++j)); do
    timeout $((60 * slack)) sh -c 'for r in 0 1; do PMI_RANK=$r PMI_SIZE=2 MPI_LOCALRANKID=$r MPI_LOCALNRANKS=2 "$0" & p="$p $!"; done; for i in $p; do wait $i || exit 1; done' \
        "$hello" > "$tmp/job.$j" 2>&1 < /dev/null &
    pids+=($!)
done
for ((j = 0; j < n; ++j)); do
    if ! wait "${pids[$j]}" || [ "$(grep -c 'of 2 is here' "$tmp/job.$j")" != 2 ]; then
        bad=$((bad + 1))
        cp "$tmp/job.$j" "$tmp/out"
    fi
done
if [ $bad = 0 ]; then good "$n jobs at once"; else bad "$n jobs at once" "$bad failed"; fi

printf '%d passed, %d failed\n' $passed $failed
[ $failed = 0 ]
