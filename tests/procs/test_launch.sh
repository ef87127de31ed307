#!/usr/bin/env bash
# test_launch.sh - the launcher and the training example together: whole jobs that finish, and jobs that lose a rank
#
#   bash tests/procs/test_launch.sh            BUILD=DIR (default: build), KILLS=N (default: 10)
#
# A rank is killed at a random moment of its training, KILLS times: every survivor has to name it on its stderr within a
# second, and cdprun has to report it. Each line of stderr is stamped when it comes. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
if [ ! -f examples/03_train_text.c ] || [ ! -f tools/cdprun.c ]; then
    echo "SKIP test_launch: examples/03_train_text.c or tools/cdprun.c does not exist"
    echo "0 passed, 0 failed"
    exit 0
fi
D=${BUILD:-build}/launch
mkdir -p "$D" || exit 2
D=$(cd "$D" && pwd)
B=${BUILD:-build}/test
unset MAKEFLAGS MAKELEVEL
make -s BUILD="${BUILD:-build}" "$B/cdprun" "$B/03_train_text" "$B/01_hello" || { echo "0 passed, 1 failed"; exit 1; }
for program in cdprun 03_train_text 01_hello; do
    cp "$B/$program" "$D/${program#0?_}" || { echo "0 passed, 1 failed"; exit 1; }
done
unset CDP_JOB_KEY CDP_TRUST_NETWORK RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_RESTART_COUNT
cd "$D" || exit 2
yes 'The quick brown fox jumps over the lazy dog, and every rank has to see the same.' | head -n 1500 > text.txt

passed=0 failed=0
slack=${TEST_SCALE:-1} # how many times longer things may take; run_all.sh measures it
ok()   { passed=$((passed + 1)); echo "ok $1"; }
fail() { failed=$((failed + 1)); echo "FAIL $1: $2"; sed 's/^/    /' "${3:-/dev/null}" | tail -n 40; }
now_us() { echo "${EPOCHREALTIME/[.,]/}"; }
small=(--width 32 --context 16 --eval-every 0 --eval-bytes 1024 --sample 0)
forever=("${small[@]}" --steps 1000000 --log-every 1)

stamp() { while IFS= read -r line; do printf '%s %s\n' "${EPOCHREALTIME/[.,]/}" "$line"; done; }

# Start four ranks that leave their process ids. Sets job and stamper. (The stamper must be no child of cdprun, which ends
# all that it has.)
launch() { # GRACE
    rm -f pid.* out err errors
    mkfifo errors || exit 2
    stamp < errors > err &
    stamper=$!
    "$D/cdprun" -n 4 --grace "$1" --timeout $((60 * slack)) sh -c 'echo $$ > pid.$RANK.new; mv pid.$RANK.new pid.$RANK; exec "$@"' sh "$D/train_text" "${forever[@]}" text.txt > out 2> errors &
    job=$!
}

# The same, and return when the training has begun.
start_job() {
    launch 4
    for ((n = 0; n < 2000 * slack; ++n)); do
        grep -q 'step  *[0-9]' out 2> /dev/null && return 0
        kill -0 $job 2> /dev/null || return 1
        sleep 0.01
    done
    return 1
}

# Sets code.
end_job() {
    wait $job
    code=$?
    wait $stamper
}

ended() { # NAME: every process of the last job is gone
    local left='' r
    for r in 0 1 2 3; do [ -f pid.$r ] && kill -0 "$(cat pid.$r)" 2> /dev/null && left="$left $r"; done
    [ -z "$left" ] || fail "$1" "ranks$left are still there"
    [ -z "$left" ]
}

# ---- a whole job ----
"$D/cdprun" -n 4 --timeout $((60 * slack)) "$D/train_text" "${small[@]}" --steps 30 --check text.txt > out 2> err
code=$?
if [ $code = 0 ] && grep -q 'PASS' out; then ok "four ranks train"; else fail "four ranks train" "exit code $code" out; fi

# ---- one rank is killed ----
worst=0
for ((i = 0; i < ${KILLS:-10}; ++i)); do
    k=$((RANDOM % 4)) bad=
    if ! start_job; then fail "kill $i" "the job did not begin" err; break; fi
    sleep "$(printf '0.%03d' $((RANDOM % 400)))"
    since=$(now_us)
    kill -KILL "$(cat pid.$k)"
    end_job
    [ $code = 137 ] || bad="$bad exit code $code, not 137;"
    for r in 0 1 2 3; do
        [ $r = $k ] && continue
        line=$(grep -m 1 "^[0-9]* \[$r\] .*rank $k\>" err)
        if [ -z "$line" ]; then bad="$bad rank $r does not name it;"; continue; fi
        ms=$(((${line%% *} - since) / 1000))
        [ $ms -le $((1000 * slack)) ] || bad="$bad rank $r names it after $ms ms;"
        [ $ms -le $worst ] || worst=$ms
        wrong=$(grep "^[0-9]* \[$r\] .*cdp:" err | grep -v "rank $k\>")
        [ -z "$wrong" ] || bad="$bad rank $r also says: $wrong;"
    done
    grep -q "first failure: rank $k, killed by SIGKILL" err || bad="$bad cdprun does not report it;"
    if [ -n "$bad" ]; then fail "kill $i of rank $k" "$bad" err; elif ended "kill $i of rank $k"; then ok "kill $i of rank $k"; fi
done
echo "  the slowest survivor needed $worst ms"

# ---- one rank is killed while the job starts: whoever says something names it, and the job ends ----
for ((i = 0; i < 4; ++i)); do
    k=$i bad=
    start=$(now_us)
    launch 1
    for ((n = 0; n < 500 * slack; ++n)); do [ -f pid.$k ] && break; sleep 0.005; done
    sleep "$(printf '0.%03d' $((RANDOM % 60)))"
    kill -KILL "$(cat pid.$k)"
    end_job
    ms=$((($(now_us) - start) / 1000))
    [ $code = 137 ] || bad="$bad exit code $code, not 137;"
    [ $ms -le $((5000 * slack)) ] || bad="$bad it took $ms ms;"
    grep -q "first failure: rank $k, killed by SIGKILL" err || bad="$bad cdprun does not report it;"
    if [ -n "$bad" ]; then fail "kill of rank $k while starting" "$bad" err; elif ended "kill of rank $k while starting"; then ok "kill of rank $k while starting"; fi
done

# ---- fifty jobs at once: each has its own port, and the ranks of each meet ----
jobs=() bad=
for ((i = 0; i < 50; ++i)); do
    "$D/cdprun" -n 2 --timeout $((60 * slack)) "$D/hello" > hello.$i 2>&1 &
    jobs+=($!)
done
for ((i = 0; i < 50; ++i)); do
    wait "${jobs[i]}" || bad="$bad job $i has exit code $?: $(tail -n 3 hello.$i);"
    [ "$(sed 's/^\[.\] //' hello.$i | sort)" = "$(printf '%s\n' 'all 2 ranks have met' 'rank 0 of 2 is here' 'rank 1 of 2 is here')" ] || bad="$bad job $i says $(cat hello.$i);"
done
if [ -z "$bad" ]; then ok "fifty jobs at once"; else fail "fifty jobs at once" "$bad"; fi
rm -f hello.*

# ---- the job is asked to end ----
if start_job; then
    start=$(now_us)
    kill -TERM $job
    end_job
    ms=$((($(now_us) - start) / 1000))
    if [ $code != 143 ] || [ $ms -gt $((3000 * slack)) ]; then fail "terminated" "exit code $code after $ms ms" err; elif ended terminated; then ok terminated; fi
else
    fail terminated "the job did not begin" err
fi

# ---- two jobs on one port: the second one says why it cannot start, the first one goes on ----
port=$("$D/cdprun" -n 1 --no-prefix sh -c 'echo $MASTER_PORT')
steps() { grep -c 'step  *[0-9]' first.out 2> /dev/null; }
more_steps() { for ((n = 0; n < 1000 * slack; ++n)); do [ "$(steps)" -gt "$1" ] && return 0; sleep 0.01; done; return 1; } # THAN
rm -f first.out
"$D/cdprun" -n 2 --master-port "$port" --timeout $((60 * slack)) "$D/train_text" "${forever[@]}" text.txt > first.out 2> first.err &
first=$!
more_steps 0
"$D/cdprun" -n 2 --master-port "$port" --grace 2 --timeout $((20 * slack)) "$D/train_text" "${small[@]}" --steps 30 text.txt > out 2> err
code=$?
if [ $code != 0 ] && grep -q "$port" err; then ok "a second job on the same port is told so"; else fail "a second job on the same port is told so" "exit code $code" err; fi
if more_steps "$(steps)"; then ok "and the first one goes on"; else fail "and the first one goes on" "it stands still" first.err; fi
kill -TERM $first
wait $first

echo "$passed passed, $failed failed"
[ $failed = 0 ]
