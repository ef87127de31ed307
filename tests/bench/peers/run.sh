#!/usr/bin/env bash
# What `make bench-peers` runs: the collectives of cdp, Open MPI, MPICH and Gloo, and the raw limits, side by side: all
# worlds live at once and take turns, measurement by measurement, several rounds. Then ratios against the best TCP peer.
#
#   run.sh [--full] [--quick] [--ranks LIST] [--op LIST] [--size LIST] [--rounds N] [--seconds S] [--only LIBS] [--lines FILE] [--svg FILE]
#     default: 2 and 4 ranks, 4 B to 64 MiB, 3 rounds of half a second or 2,000 calls for each figure; --full: 7 rounds
#     --quick: TCP peers, 2 ranks, one round of 0.2 s. --only cdp,cdp-memory,cdp-segments,openmpi-tcp,mpich-tcp,openmpi,mpich,gloo,raw, and cdp-openmpi, cdp-mpich:
#     groups of cdp_mpi.h, which are in no table. --lines keeps all lines;
#     --svg draws the ratios, as in the README.
# Settings: Open MPI over TCP: ob1 with btl tcp,self on lo; MPICH over TCP: UCX with tcp,self on lo and no node-local path.
set -u -o pipefail
cd "$(dirname "$0")/../../.." || exit 1
build=${BUILD:-build}/bench
ranks=2,4 ops=allreduce,reduce_scatter,allgather,broadcast,alltoall,barrier,pingpong sizes=4,256,4K,64K,1M,16M,64M rounds=3 seconds=0.5 iterations=2000
libs=raw,cdp,openmpi-tcp,mpich-tcp,gloo,cdp-memory,cdp-segments,openmpi,mpich keep='' svg=''
while [ $# -gt 0 ]; do
    case $1 in
    --full) rounds=7; shift; continue ;;
    --quick) ranks=2 rounds=1 seconds=0.2 libs=raw,cdp,openmpi-tcp,mpich-tcp,gloo; shift; continue ;;
    --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    esac
    [ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
    case $1 in
    --ranks) ranks=$2 ;; --op) ops=$2 ;; --size) sizes=$2 ;; --rounds) rounds=$2 ;; --seconds) seconds=$2 ;;
    --only) libs=$2 ;; --lines) keep=$2 ;; --svg) svg=$2 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    shift 2
done

missing=''
case ,$libs, in *,openmpi*|*,cdp-openmpi*) command -v mpicc.openmpi > /dev/null && command -v mpirun.openmpi > /dev/null || missing="$missing openmpi" ;; esac
case ,$libs, in *,mpich*|*,cdp-mpich*) command -v mpicc.mpich > /dev/null && command -v mpirun.mpich > /dev/null || missing="$missing mpich" ;; esac
case ,$libs, in *,gloo*) [ -f /usr/include/gloo/config.h ] || missing="$missing gloo" ;; esac
if [ -n "$missing" ]; then
    echo "SKIP: not installed:$missing. To measure all peers (Debian):" >&2
    echo "    apt-get install libgloo-dev openmpi-bin libopenmpi-dev mpich libmpich-dev" >&2
    for m in $missing; do libs=$(tr , '\n' <<< "$libs" | grep -vE "^(cdp-)?$m" | paste -sd ,); done
    case ,$libs, in *,openmpi*|*,mpich*|*,cdp-openmpi*|*,cdp-mpich*|*,gloo*) ;; *) exit 3 ;; esac
fi

mkdir -p "$build" || exit 1
made() { [ -x "$1" ] && [ -z "$(find tests/bench/measure.h "${@:2}" -newer "$1")" ]; }
flags='-O3 -march=native -g'
made "$build/collectives" tests/bench/collectives.c cdp*.h || gcc -O2 -g -I. tests/bench/collectives.c -o "$build/collectives" -pthread -lm || exit 1
made "$build/peer_raw" tests/bench/peers/raw.c || gcc $flags tests/bench/peers/raw.c -o "$build/peer_raw" || exit 1
for m in openmpi mpich; do
    case ,$libs, in *,$m*) made "$build/peer_$m" tests/bench/peers/mpi.c || mpicc.$m $flags tests/bench/peers/mpi.c -o "$build/peer_$m" || exit 1 ;; esac
    case ,$libs, in *,cdp-$m*) made "$build/over_$m" tests/bench/collectives.c cdp*.h || mpicc.$m -O2 -g -DOVER_MPI -I. tests/bench/collectives.c -o "$build/over_$m" -pthread -lm || exit 1 ;; esac
done
case ,$libs, in *,gloo*) made "$build/peer_gloo" tests/bench/peers/gloo.cc || g++ $flags -w tests/bench/peers/gloo.cc -o "$build/peer_gloo" -lgloo -pthread || exit 1 ;; esac

tmp=$(mktemp -d) || exit 1
pids=()
finish() { for p in "${pids[@]}" ${watcher:-}; do kill "$p" 2> /dev/null; done; wait; rm -rf "$tmp"; [ -z "${meet:-}" ] || rm -f "$meet"; }
trap finish EXIT
trap 'exit 130' INT TERM

start() { # LIB I/N OPTIONS...: one world in the background
    local lib=$1
    shift
    case $lib in
    raw) exec "$build/peer_raw" "$@" ;;
    cdp) exec "$build/collectives" --transport tcp "$@" ;;
    cdp-segments) exec "$build/collectives" --transport segments "$@" ;;
    cdp-memory) exec "$build/collectives" --transport memory "$@" ;;
    gloo) exec "$build/peer_gloo" "$@" ;;
    cdp-openmpi) MEASURE_TRANSPORT=openmpi exec mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n "$n" -x MEASURE_TRANSPORT "$build/over_openmpi" "$@" ;;
    cdp-mpich) MEASURE_TRANSPORT=mpich exec mpirun.mpich -n "$n" "$build/over_mpich" "$@" ;;
    openmpi) MEASURE_LIB=openmpi MEASURE_TRANSPORT=shm exec mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n "$n" -x MEASURE_LIB -x MEASURE_TRANSPORT "$build/peer_openmpi" "$@" ;;
    openmpi-tcp) MEASURE_LIB=openmpi MEASURE_TRANSPORT=tcp exec mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo -n "$n" -x MEASURE_LIB -x MEASURE_TRANSPORT "$build/peer_openmpi" "$@" ;;
    mpich) MEASURE_LIB=mpich MEASURE_TRANSPORT=shm exec mpirun.mpich -n "$n" "$build/peer_mpich" "$@" ;;
    mpich-tcp) MEASURE_LIB=mpich MEASURE_TRANSPORT=tcp UCX_TLS=tcp,self UCX_NET_DEVICES=lo MPIR_CVAR_NOLOCAL=1 exec mpirun.mpich -n "$n" "$build/peer_mpich" "$@" ;;
    esac
}

# A world that hangs keeps all others waiting for their turn: seen with a peer. Says how far each has come, and ends all.
watch() { # RANKS PROCESS...
    local n=$1 was=-1 now same=0
    shift
    while sleep 5; do
        now=$(cat "$tmp/$n".* | wc -c)
        if [ "$now" = $was ]; then same=$((same + 5)); else same=0; fi
        was=$now
        [ $same -lt 180 ] || break
    done
    echo "bench-peers: nothing was measured for 3 minutes; the worlds with $n ranks are ended. Lines of each so far:" >&2
    wc -l "$tmp/$n".*[!r] >&2
    kill "$@" 2> /dev/null
    kill -CONT "$@" 2> /dev/null
}

rc=0
echo "# $(uname -srm), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg 2> /dev/null); tcp_congestion_control $(cat /proc/sys/net/ipv4/tcp_congestion_control 2> /dev/null || echo '?')"
read -r -a cpu0 < /proc/stat
for n in ${ranks//,/ }; do
    # MPI that spins with more ranks than cores takes 8 ms a call: it is left out there, as it says nothing
    worlds=$(tr , '\n' <<< "$libs")
    if [ "$n" -gt "$(nproc)" ]; then worlds=$(grep -v '^mpich' <<< "$worlds"); fi
    count=$(wc -l <<< "$worlds")
    [ -d /dev/shm ] && meet=$(mktemp -p /dev/shm) || meet=$(mktemp)
    i=0 pids=() names=()
    for lib in $worlds; do
        all=$ops,duplex,oneway,exchange,memcpy,add
        (start "$lib" --ranks "$n" --op "$all" --size "$sizes" --rounds "$rounds" --seconds "$seconds" --iterations "$iterations" --no-header --meet "$meet" --turn "$i/$count") \
            < /dev/null > "$tmp/$n.$lib" 2> "$tmp/$n.$lib.err" &
        pids+=($!) names+=("$lib")
        i=$((i + 1))
    done
    watch "$n" "${pids[@]}" &
    watcher=$!
    bad=''
    for k in "${!pids[@]}"; do
        wait -n -p which "${pids[@]}"
        status=$?
        for j in "${!pids[@]}"; do [ "${pids[$j]}" = "$which" ] && lib=${names[$j]} && unset "pids[$j]"; done
        cat "$tmp/$n.$lib.err" >&2
        if [ $status -ne 0 ] && [ "$lib" != gloo ]; then
            bad=$lib
            echo "bench-peers: $lib with $n ranks ended with status $status" >&2
            kill "${pids[@]}" 2> /dev/null
            wait "${pids[@]}" 2> /dev/null
            break
        fi
    done
    kill $watcher 2> /dev/null
    rm -f "$meet"
    cat "$tmp/$n".* | grep -P '^[a-z]+\t' >> "$tmp/lines" # also when some are missing: what was measured is shown
    [ -z "$bad" ] || rc=1
done
read -r -a cpu1 < /proc/stat
[ -z "$keep" ] || cp "$tmp/lines" "$keep"
total=0 steal=$((cpu1[8] - cpu0[8]))
for k in 1 2 3 4 5 6 7 8; do total=$((total + cpu1[k] - cpu0[k])); done
echo "# the hypervisor took $((100 * steal / (total ? total : 1))) % of the processor time meanwhile"
sort -t $'\t' -k4,4n -k3,3 -k5,5n -k1,2 "$tmp/lines" | awk -F '\t' -f tests/bench/peers/report.awk | tee "$tmp/table"
facts="1 is the time of the fastest peer of: $(grep -oE 'openmpi|mpich|gloo' <<< "$libs" | sort -u | paste -sd ' '). $(date +%Y-%m-%d)"
facts="$facts, $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2> /dev/null | head -n 1) with $(nproc) cores, $(uname -sr)."
[ -z "$svg" ] || awk -f tests/bench/peers/chart_input.awk "$tmp/table" |
    awk -v facts="$facts" -v source='Figures: make bench-peers PEERS="--svg FILE".' -f tests/bench/peers/chart.awk > "$svg" || rc=1
exit $rc
