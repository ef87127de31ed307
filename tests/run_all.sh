#!/usr/bin/env bash
# Runs test suites, prints one line for each as it ends, with its time and its processor time (user and system), and adds
# up their results.
#
#   [LANES=N] run_all.sh LOGDIR 'NAME|SECONDS|COMMAND' ...          N suites at a time, begun in this order; default 1
#
# The word after:NAME among them: what follows begins when the suite NAME has ended, and not at all if it failed.
#
# A suite ends with the line "N passed, N failed" and exit code 0 when nothing failed. Lines of it that begin with SKIP
# or "known:" (a failure that is known and counts neither way), and warnings of compilers, are shown. Its whole output
# is in LOGDIR/NAME.log, and is shown here only when it failed.
#
# SECONDS are those of an idle machine of today. A loop of known length says how much slower this one is, and the load, or
# N where that is more, how many share it: the limits are multiplied by it (TEST_SCALE, at most 20), also those of single
# test cases. With TEST_STRICT=1 there is no such factor, and on a busy machine nothing is run: that is said as SKIP.
# After RUN_UNTIL (seconds since 1970) no suite is begun any more: each is said as SKIP. What runs then has 200 s left, and
# is named when these are over.
# A suite that ends without its last line, with a bad exit code, after its time, or with nothing passed and nothing
# skipped counts as one more failure.
# AGAIN=N: a suite that failed runs N times more, alone, when all others have ended. If it passes each time, its failure
# came from what ran beside it: it is printed with all it said as "unsteady: ...", is a defect of the test or worse, and
# does not count here. None runs again where more than three failed, none that took more than three minutes (of an idle
# machine), none whose output has a report of a sanitizer: a race is a race however seldom it shows.
# At the end comes a table of where the time went; TEST_STARTED (seconds since 1970): when make began to compile for this.
# Before the last line stands what failed, in few lines for each; they and "unsteady: ..." are added to the file CI_REPORT.
# The last line here is the sum, alone on its line.
set -u
. "$(dirname "$0")/report.sh"
reports=${CI_REPORT:-/dev/null}
logs=$1
shift
mkdir -p "$logs" || exit 1
passed=0 failed=0 broken= running=0
declare -A name_of=() since=() limit=() # by process
declare -A suite_of=() failures=() took=() cpu_of=() # by name
began=$EPOCHSECONDS
# timeout makes each suite a process group of its own, which an interrupt of this script does not reach by itself
trap '[ $running = 0 ] || { echo "stopped while these ran: ${name_of[*]}"; kill -TERM "${!name_of[@]}" 2> /dev/null; }; exit 130' INT TERM HUP

# In percent, of the loop: processor time and time, of 0.24 s each
yardstick() {
    local times TIMEFORMAT='%U %R'
    times=$( { time for ((i = 0; i < 200000; ++i)); do :; done; } 2>&1 )
    awk '{ printf "%d %d", $1 / 0.0024, $2 / 0.0024 }' <<< "$times"
}
lanes=${LANES:-1}
scale() { # in percent: what the loop took, or what the load says now, or soon will since so many suites run at a time
    local load
    read -r load _ < /proc/loadavg 2> /dev/null || load=0
    awk -v speed="$speed" -v crowd="$crowd" -v busy="$load" -v lanes="$lanes" -v cores="$(nproc)" 'BEGIN {
        if (busy < lanes) busy = lanes
        s = speed * busy / cores
        if (s < crowd) s = crowd
        if (s < 100) s = 100
        if (s > 2000) s = 2000
        printf "%d", s }'
}
read -r speed crowd <<< "$(yardstick)"
if [ -z "${TEST_STRICT-}" ]; then
    echo "limits of time: x $(scale | sed 's/..$/.&/') (a loop of 0.24 s took $speed % of that in processor time, $crowd % in all)"
elif [ "$crowd" -gt $((speed * 5 / 4)) ]; then
    echo "SKIP strict limits of time: this machine is busy (a loop took $crowd % instead of $speed %)"
    echo '0 passed, 0 failed'
    exit 0
fi

begin() { # SUITE
    local name seconds command left percent=100
    IFS='|' read -r name seconds command <<< "$1"
    [ -n "${TEST_STRICT-}" ] || percent=$(scale)
    export TEST_SCALE=$(((percent + 99) / 100))
    seconds=$((seconds * percent / 100)) left=$((${RUN_UNTIL:-$EPOCHSECONDS + 86400} + 200 - EPOCHSECONDS))
    [ $seconds -le $left ] || seconds=$left
    # shellcheck disable=SC2016
    timeout -k 10 "$seconds" bash -c 'TIMEFORMAT="%U %S"; { time bash -c "$0" > "$1.log" 2>&1; } 2> "$1.cpu"' "$command" "$logs/$name" < /dev/null &
    name_of[$!]=$name since[$!]=${EPOCHREALTIME/./} limit[$!]=$seconds
    suite_of[$name]=$1
    running=$((running + 1))
}

end() { # waits for one of them
    local pid rc name log ms cpu last p=0 f=0 skips note=
    wait -n -p pid "${!name_of[@]}"
    rc=$?
    ms=$(( (${EPOCHREALTIME/./} - since[$pid]) / 1000 )) name=${name_of[$pid]} log=$logs/${name_of[$pid]}.log
    last=$(grep -aE '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    [ -n "$last" ] && read -r p _ f _ <<< "$last"
    skips=$(grep -ac '^SKIP' "$log")
    if [ "$rc" = 124 ] || [ "$rc" = 137 ]; then note="stopped after ${limit[$pid]} s"
    elif [ -z "$last" ]; then note="ended without a result, exit code $rc"
    elif [ "$rc" != 0 ] && [ "$f" = 0 ]; then note="exit code $rc"
    elif [ "$p" = 0 ] && [ "$f" = 0 ] && [ "$skips" = 0 ]; then note="tested nothing"
    fi
    [ -n "$note" ] && f=$((f + 1))
    cpu=$(tail -n 1 "$logs/$name.cpu" 2> /dev/null | awk 'NF == 2 { printf "%.1f", $1 + $2 }')
    printf '%-28s %5d passed, %d failed %8d.%03d s, processor %6s s  %s\n' "$name" "$p" "$f" $((ms / 1000)) $((ms % 1000)) "${cpu:--}" "$note"
    grep -aE '^(SKIP|known:)|^[^ ]*: warning: ' "$log" | sed 's/^/    /'
    passed=$((passed + p))
    failed=$((failed + f))
    [ "$f" = 0 ] || broken="$broken $name"
    failures[$name]=$f took[$name]=$ms cpu_of[$name]=${cpu:-0}
    unset "name_of[$pid]"
    running=$((running - 1))
}

for suite in "$@"; do
    if [[ $suite = after:* ]]; then
        while [[ " ${name_of[*]} " == *" ${suite#after:} "* ]]; do end; done
        [ "${failures[${suite#after:}]-0}" = 0 ] || { echo "${suite#after:} failed: what follows does not begin"; break; }
        continue
    fi
    [ $running -lt "${LANES:-1}" ] || end
    if [ "${RUN_UNTIL:-$EPOCHSECONDS}" -lt "$EPOCHSECONDS" ]; then
        echo "SKIP ${suite%%|*}: the time for all suites is over"
        continue
    fi
    begin "$suite"
done
while [ $running -gt 0 ]; do end; done

settle() { # NAME: runs it again; 0: it passed each time
    [ "${took[$1]}" -lt $((1800 * $(scale))) ] || return 1
    ! sanitizer_spoke "$logs/$1.log" || return 1
    local before="$passed $failed $broken" i bad=0 lanes=1
    mv "$logs/$1.log" "$logs/$1.first.log"
    for ((i = 0; i < AGAIN && !bad; ++i)); do
        begin "${suite_of[$1]}"
        failures[$1]=0
        end
        bad=${failures[$1]}
    done
    read -r passed failed broken <<< "$before"
    [ "$bad" = 0 ] || { mv "$logs/$1.first.log" "$logs/$1.log"; return 1; }
}
# shellcheck disable=SC2086
set -- $broken
if [ "${AGAIN:-0}" -gt 0 ] && [ $# -le 3 ]; then
    broken=
    for name in "$@"; do
        was=${failures[$name]}
        if settle "$name"; then
            printf 'unsteady: %s failed, and passed %d times when it ran alone\n' "$name" "$AGAIN" | tee -a "$reports"
            sed 's/^/    /' "$logs/$name.first.log" | tail -n 100
            failed=$((failed - was))
        else
            broken="$broken $name"
        fi
    done
fi

where_time_goes() {
    local name
    for name in "${!took[@]}"; do echo "${took[$name]} ${cpu_of[$name]} $name"; done | sort -rn | awk -v compiling="$1" -v all="$2" '
        BEGIN { printf "\nwhere the time went: %d s in all, %d s of them before the first suite\n%-28s %9s %11s\n", all, compiling, "suite", "time", "processor" }
        { cpu += $2 }
        NR <= 12 { printf "%-28s %7.1f s %9.1f s\n", $3, $1 / 1000, $2; next }
        { others += $1; others_cpu += $2; ++n }
        END {
            if (n) printf "%-28s %7.1f s %9.1f s\n", n " others", others / 1000, others_cpu
            printf "%-28s %9s %9.1f s\n\n", "all suites", "", cpu }'
}
[ ${#took[@]} -lt 3 ] || where_time_goes $((began - ${TEST_STARTED:-$began})) $((EPOCHSECONDS - ${TEST_STARTED:-$began}))

for name in $broken; do
    printf '\n==== %s (%s) ====\n' "$name" "$logs/$name.log"
    tail -n 200 "$logs/$name.log"
done
[ -z "$broken" ] || printf '\n'
for name in $broken; do report "$name" "${failures[$name]} failed" "$logs/$name.log"; done | tee -a "$reports"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
