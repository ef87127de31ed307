#!/usr/bin/env bash
# Everything of cdp_nccl.h that needs a real GPU, in one call of less than ten minutes:  bash tests/gpu/run.sh
# Needs gcc, an NVIDIA driver, and libcudart, libnvrtc and libnccl somewhere in the library path (/usr/local/cuda/lib64 is added).
# With fewer GPUs than ranks, ranks share one: from NCCL 2.30 on by NCCL_MULTI_RANK_GPU_ENABLE=1; older versions are told that each
# rank is on a host of its own (NCCL_HOSTID), and then talk through sockets. Figures of shared GPUs say nothing about speed.
# Without a GPU it builds everything, says so, and stops. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}/gpu
mkdir -p "$build" || exit 1
started=$SECONDS
passed=0 failed=0 alone=''
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT

gcc -O2 -g -Wall -Wextra -I. -Itests tests/gpu/gpu_check.c -o "$build/gpu_check" -pthread -lm -ldl || exit 1
gcc -O2 -g -Wall -Wextra -I. -Itests tests/gpu/mem_check.c -o "$build/mem_check" -pthread -lm -ldl || exit 1
gcc -O2 tools/cdprun.c -o "$build/cdprun" -pthread -lm || exit 1
for e in 08_nccl_allreduce 09_nccl_ddp; do gcc -O2 examples/$e.c -o "$build/$e" -pthread -lm -ldl || exit 1; done

found=$("$build/gpu_check" --probe)
if [ $? != 0 ]; then
    echo "SKIP tests/gpu: no GPU here: $found"
    echo '0 passed, 0 failed'
    exit 0
fi
read -r gpus nccl label <<< "$found"
echo "GPUs: $gpus, NCCL: $nccl ${label:+($label: no GPU is involved, figures mean nothing)}"
command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

# ranks N COMMAND...: one log for each rank
ranks() {
    local n=$1 r port=$((20000 + RANDOM % 12000)) pids='' rc=0 left
    shift
    left=$((570 - SECONDS + started)) # this whole script ends within ten minutes
    [ $left -gt 200 ] && left=200
    [ $left -lt 60 ] && return 99
    for ((r = 0; r < n; ++r)); do
        (
            export RANK=$r WORLD_SIZE=$n LOCAL_RANK=$r LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
            if [ "$n" -gt "$gpus" ]; then
                export NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=2 GPU_SHARED=1
                if [ "$sharing" = multi ]; then export NCCL_MULTI_RANK_GPU_ENABLE=1
                else export NCCL_HOSTID=rank$r NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo; fi
            fi
            exec timeout -k 5 $left "$@"
        ) > "$build/rank$r.log" 2>&1 < /dev/null &
        pids="$pids $!"
    done
    for r in $pids; do wait "$r" || rc=$?; done
    return $rc
}

# NCCL refuses two ranks on one GPU unless it is told otherwise; by which of the ways this one allows it, if any
sharing=hosts
[ "$nccl" -ge 23000 ] && sharing=multi
refused() { grep -lqiE 'duplicate gpu|invalid usage|same cuda device' "$build"/rank[0-9].log; }

printf '\n%-8s %-22s %s\n' ranks part result
for n in 1 2 3 4; do
    rm -f "$build"/rank[0-9].log
    ranks $n "$build/gpu_check"
    rc=$?
    if [ $rc != 0 ] && [ $n -gt "$gpus" ] && [ $sharing = multi ] && refused; then
        sharing=hosts
        ranks $n "$build/gpu_check"
        rc=$?
    fi
    [ $rc = 99 ] && { echo "SKIP $n ranks: ten minutes are over"; continue; }
    if [ $rc != 0 ] && [ $n -gt "$gpus" ] && refused; then
        echo "SKIP $n ranks on $gpus GPU: this NCCL refuses that: $(grep -hiE 'duplicate gpu|invalid usage|same cuda device' "$build"/rank[0-9].log | head -n 1)"
        alone=1
        continue
    fi
    while read -r word rest; do
        case $word in
        ok) printf '%-8s %-22s %s\n' "$n" "${rest%% *}" "right ${rest#* }"; passed=$((passed + 1)) ;;
        not) printf '%-8s %-22s %s\n' "$n" "$(cut -d ' ' -f 2 <<< "$rest")" WRONG; failed=$((failed + 1)) ;;
        SKIP) echo "SKIP $n ranks, $rest" ;;
        esac
    done < "$build/rank0.log"
    grep -hE '^  .*(bytes|allreduce of f32|the stream went on)[ ,]' "$build/rank0.log"
    if [ $rc != 0 ]; then
        failed=$((failed + 1))
        echo "$n ranks: exit code $rc"
        for ((r = 0; r < n; ++r)); do sed -n "s/^/    rank $r: /; /not ok\|gpu_check\|tests\/\|cdp:\|NCCL/p" "$build/rank$r.log" | head -n 15; done
    fi
done
for e in 08_nccl_allreduce 09_nccl_ddp; do
    n=$((gpus < 4 ? 2 : 4))
    [ -n "$alone" ] && n=1
    if ranks $n "$build/$e" && [ "$(cat "$build"/rank[0-9].log | grep -cE 'right$|learned$')" -ge $n ]; then passed=$((passed + 1)); echo "ok $e, $n ranks"
    else failed=$((failed + 1)); echo "not ok $e"; cat "$build"/rank0.log | head -n 20; fi
done
timeout 100 "$build/mem_check" > "$build/mem.log" 2>&1 # cdp_mem.h: one process, one GPU
rc=$?
cat "$build/mem.log"
read -r p _ f _ <<< "$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$build/mem.log")"
passed=$((passed + ${p:-0}))
[ $rc = 0 ] || failed=$((failed + (${f:-0} > 0 ? ${f:-0} : 1)))
echo "$((SECONDS - started)) s"
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
