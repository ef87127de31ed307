#!/usr/bin/env bash
# test_elastic_churn.sh - a training job of 16 ranks whose processes and launchers are killed all the time
#
#   bash tests/procs/test_elastic_churn.sh [--seconds N] [--seed S]      BUILD=DIR (default: build)
#
# Four launchers with four ranks each, and a store of its own. First rank 0 is killed, then a middle one, two, four, and a
# launcher; then whatever the seed says, until N seconds (default: 12) are over. Each kill waits until all
# 16 run again. In the end all ranks must have the loss of a serial program that replays the decisions, bit for bit. Ends
# with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/procs/launchers.sh
seconds=12 seed=1
numbers 'seconds seed' "$@"
RANDOM=$seed
programs cdprun elastic_rank
empty_folder elastic_churn
CDP_JOB_KEY=$(random_key 16)
export CDP_JOB_KEY
kills=0 launchers=0 next=0
evidence() {
    tail -qn 5 out.*
    tail -n 20 log
}
# shellcheck disable=SC2329
clean() {
    for p in "${pids[@]}" "$store"; do kill -KILL "$p" $(pgrep -P "$p") 2> /dev/null; done
}
pids=() store=
trap clean EXIT

# Another program may take a port between its choice and its use: then there is another one.
serve() {
    port=$(free_port)
    serve_at "127.0.0.1:$port"
}
served=
for _ in 1 2 3 4 5; do
    if serve; then served=yes; break; fi
    kill -KILL "$store" 2> /dev/null
    wait "$store"
done
[ -n "$served" ] || { cat out.store; echo "0 passed, 1 failed"; exit 1; }
launch() {
    "$B/cdprun" -n 4 --nnodes 1:4 --stay --max-restarts 1000000 --cooldown 0.02 --grace 0.2 --join-timeout 60 \
        --external-store "127.0.0.1:$port" --rdzv-id churn "$B/elastic_rank" train log 1 20000 > "out.$next" 2>&1 < /dev/null &
    pids+=($!)
    next=$((next + 1))
}

# Waits until all 16 run in one epoch that is newer than the last one; `members`: their process ids, rank 0 first.
epoch=0 members=()
complete() {
    local n k
    for ((n = 0; n < 1200 * slack; ++n)); do
        k=$(awk '/ size 16 / { k[$2]++ } END { for (e in k) if (k[e] == 16 && e + 0 > m + 0) m = e; print m + 0 }' log 2> /dev/null)
        if [ "${k:-0}" -gt $epoch ]; then
            epoch=$k
            mapfile -t members < <(awk -v k="$k" '$1 == "epoch" && $2 == k { print $10, $12 }' log | sort -n | cut -d' ' -f2)
            return 0
        fi
        sleep 0.025
    done
    fail "the job did not come back within 30 s (seed $seed, after $kills kills)"
    return 1
}
# All stand still before the first one dies: so none of them is the source of the state of others.
kill_ranks() { # RANK...
    local r victims=()
    for r in "$@"; do victims+=("${members[r]}"); done
    kill -STOP "${victims[@]}"
    kill -KILL "${victims[@]}"
    kills=$((kills + $#))
    complete
}
kill_launcher() { # K
    kill -KILL "${pids[$1]}"
    wait "${pids[$1]}"
    unset "pids[$1]"
    pids=("${pids[@]}")
    launchers=$((launchers + 1))
    launch
    complete
} 2> /dev/null

for _ in 1 2 3 4; do launch; done
began=$SECONDS
if complete; then
    kill_ranks 0 && good 'rank 0 is killed' &&
        kill_ranks 8 && good 'one in the middle is killed' &&
        kill_ranks 0 9 && good 'two are killed' &&
        kill_ranks 1 5 9 13 && good 'four are killed' &&
        kill_launcher $((RANDOM % 4)) && good 'a launcher is killed and replaced'
fi
while [ $failed = 0 ] && [ $((SECONDS - began)) -lt "$seconds" ]; do
    case $((RANDOM % 6)) in
    0) kill_launcher $((RANDOM % 4)) ;;
    1) kill_ranks $((RANDOM % 8)) $((8 + RANDOM % 8)) ;;
    2) kill_ranks 0 $((1 + RANDOM % 15)) ;;
    3) kill_ranks $((RANDOM % 4)) $((4 + RANDOM % 4)) $((8 + RANDOM % 4)) $((12 + RANDOM % 4)) ;;
    *) kill_ranks $((RANDOM % 16)) ;;
    esac
done
touch log.stop
codes=
for p in "${pids[@]}"; do wait "$p"; codes="$codes $?"; done
if [ "$codes" = ' 0 0 0 0' ]; then good 'all launchers end well'; else fail "exit codes$codes"; fi
said=$("$B/elastic_rank" replay log)
pause=$(echo "$said" | sed -n 's/.*longest pause \([0-9]*\) ms.*/\1/p') # of all ranks, also of those that were killed later
if [[ $said == *'the loss of the serial program' ]]; then good 'the end is that of a serial program'; else fail "$said"; fi
if [ "${pause:-999999}" -le $((30000 * slack)) ]; then good 'the job made progress all the time'; else fail "a pause of ${pause:-?} ms"; fi
echo "    seed $seed: $kills ranks and $launchers launchers were killed in $((SECONDS - began)) s; $said"
kill -TERM "$store"
finish
