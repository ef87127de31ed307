# How .ci/run runs its rows; that file says what they are. It sources this one.
#
#   rows TITLE AT-A-TIME <<'END'
#   KIND | NAME | SECONDS | NEEDS | COMMAND
#   END
#
# AT-A-TIME 1: nothing runs beside it. Otherwise rows begin as soon as there is room, also while some of the block before
# still run: no core waits for the last row of a block.
#
# KIND     check: the exit code decides. suite: ends with "N passed, N failed", and something passed or a line begins
#          with SKIP. suites: the same, and it runs by itself again what failed. info: it is shown, and decides nothing.
# SECONDS  on two idle cores. A row for which there is no time is a SKIP; with "-" it runs in any case.
# NEEDS    commands, or functions need_NAME of .ci/run, which print what is missing: a row without them is a SKIP.
#
# What a row reports besides (tests/run_all.sh does) is in CI_REPORT; the last thing printed is all that failed or was
# unsteady, with its last lines.
. tests/report.sh
say() { printf '\n==== %s (%d s) ====\n' "$*" $((SECONDS - started)); }
left() { # seconds; what has begun may take some more than that
    local n=$((limit - (SECONDS - started)))
    echo $((n < 0 ? 0 : n))
}
# What `attempt` says of the command: p passed, f failed, and why.
attempt() { # KIND COMMAND OUTPUT
    local rc line
    if [ "$1" = check ]; then
        timeout -k 10 "$(($(left) + 300))" bash -c "$2" > "$3" 2>&1
        rc=$?
    else
        timeout -k 10 "$(($(left) + 300))" bash -c "$2" 2>&1 | tee "$3" | grep --line-buffered -avE '^(ok|gcc|g\+\+) '
        rc=${PIPESTATUS[0]}
    fi
    why="exit code $rc"
    [ "$rc" != 124 ] && [ "$rc" != 137 ] || why='it did not come to its end'
    if [ "$1" = check ]; then
        p=$((rc == 0)) f=$((rc != 0))
        return "$rc"
    fi
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed$' "$3" | tail -n 1)
    if [ -n "$line" ]; then
        read -r p _ f _ <<< "$line"
        if [ "$f" != 0 ]; then why="$f failed"
        elif [ "$rc" != 0 ]; then f=1
        elif [ "$p" = 0 ] && ! grep -aq ^SKIP "$3"; then f=1 why="tested nothing"
        fi
    else
        p=0 f=1 why="ended without a result, exit code $rc"
    fi
    [ "$f" = 0 ]
}
# A shared machine stops a process now and then for longer than a test allows.
passes_twice() { # KIND NAME COMMAND OUTPUT
    ! sanitizer_spoke "$4" || return
    echo "not ok at first: $2; it runs twice again"
    attempt "$1" "$3" "$4.again" && attempt "$1" "$3" "$4.again" || return
    echo "unsteady: $2 failed, and passed twice when it ran again" | tee -a "$CI_REPORT"
}
row() { # NUMBER KIND NAME COMMAND: leaves "passed failed seconds" in NUMBER.sum
    local out=$BUILD/rows/$1.txt from=$SECONDS p f why first
    echo "--- $3"
    if [ "$2" = info ]; then
        timeout -k 10 "$(($(left) + 300))" bash -c "$4" 2>&1 | sed 's/^/INFO /'
        p=0 f=0
    elif ! attempt "$2" "$4" "$out"; then
        first="$p $f $why"
        [ "$2" != check ] || tail -n 30 "$out" | sed 's/^/    /'
        if [ "$2" = suites ] || ! passes_twice "$2" "$3" "$4" "$out"; then
            read -r p f why <<< "$first"
            report "$3" "$why" "$out" >> "$CI_REPORT"
        fi
    fi
    [ "$f" = 0 ] && echo "ok $3: $((SECONDS - from)) s" || echo "not ok $3: $((SECONDS - from)) s"
    echo "$p $f $((SECONDS - from))" > "$BUILD/rows/$1.sum"
}
lacks() { # NEEDS: prints what is missing of them
    local need
    for need in $1; do
        if declare -F "need_$need" > /dev/null; then "need_$need"
        else command -v "$need" > /dev/null || echo "$need is not installed"; fi
    done
}
trim() { sed 's/^ *//; s/ *$//' <<< "$1"; }
# Rows that run beside others say all they have to say when they end.
number=0 names=()
declare -A row_of=() # by process
count() { # NUMBER
    local p f seconds
    if ! read -r p f seconds 2> /dev/null < "$BUILD/rows/$1.sum"; then
        p=0 f=1 seconds=0
        report "${names[$1]}" 'it did not come to its end' "$BUILD/rows/$1.txt" >> "$CI_REPORT"
    fi
    passed=$((passed + p)) failed=$((failed + f))
    took[$1]="$seconds ${names[$1]}"
}
one_ends() {
    local pid i
    wait -n -p pid "${!row_of[@]}"
    i=${row_of[$pid]}
    unset "row_of[$pid]"
    cat "$BUILD/rows/$i.said"
    count "$i"
}
# Limits of time of what runs here without run_all.sh, as that has them: the slower and busier the machine, the longer.
scale_of() { # AT-A-TIME
    local load
    read -r load _ < /proc/loadavg 2> /dev/null || load=0
    awk -v pace="$pace" -v many="$1" -v load="$load" -v cores="$JOBS" 'BEGIN {
        if (load < many) load = many
        s = int(pace * load / cores / 100 + 0.99)
        if (s > 20) s = 20
        print s < 1 ? 1 : s }'
}
until_left() { while [ ${#row_of[@]} -gt "$1" ]; do one_ends; done; }
rows() {
    local kind name seconds needs command missing
    [ "$2" -gt 1 ] || until_left 0
    say "$1"
    while IFS='|' read -r kind name seconds needs command; do
        kind=$(trim "$kind") name=$(trim "$name") seconds=$(trim "$seconds")
        [ -n "$kind" ] || continue
        until_left $(($2 - 1))
        number=$((number + 1))
        missing=$(lacks "$needs")
        if [ -n "$missing" ]; then
            echo "SKIP $name: $missing"
        elif [ "$seconds" != - ] && [ $((seconds * pace / 100)) -gt "$(left)" ]; then
            echo "SKIP $name: it takes about $((seconds * pace / 100)) s on this machine, and $(left) s of $limit s are left"
        else
            names[number]=$name
            export TEST_SCALE
            TEST_SCALE=$(scale_of "$2")
            if [ "$2" = 1 ]; then
                (row $number "$kind" "$name" "$command") < /dev/null
                count $number
            else
                row $number "$kind" "$name" "$command" > "$BUILD/rows/$number.said" 2>&1 &
                row_of[$!]=$number
            fi
        fi
    done
}
# As long as this row of SECONDS took longer here, everything else will.
pace_from() { # NAME SECONDS
    local s name
    while read -r s name; do
        [ "$name" != "$1" ] || pace=$((s * 100 / $2))
    done < <(printf '%s\n' "${took[@]}")
    [ "$pace" -ge 100 ] || pace=100
}
finish() {
    local unsteady
    until_left 0
    unsteady=$(grep -ac '^unsteady: ' "$CI_REPORT")
    if [ "$unsteady" -gt 3 ]; then
        failed=$((failed + 1))
        echo "not ok at most three are unsteady: $unsteady" >> "$CI_REPORT"
    fi
    say 'where the time went'
    printf '%s\n' "${took[@]}" | sort -rn | awk 'NF { printf "%6d s  %s\n", $1, substr($0, index($0, " ") + 1) }'
    say 'what failed, and what passed only when it ran again'
    if [ -s "$CI_REPORT" ]; then cat "$CI_REPORT"; else echo nothing; fi
    printf '\n%d s\n%d passed, %d failed\n' $((SECONDS - started)) $passed $failed
    [ $failed = 0 ] && [ $passed -gt 0 ]
}

export LC_ALL=C DEBIAN_FRONTEND=noninteractive
exec < /dev/null
export BUILD=build/ci JOBS
JOBS=$(nproc)
rm -rf "$BUILD"
mkdir -p "$BUILD/rows"
export CI_REPORT=$PWD/$BUILD/report.txt
: > "$CI_REPORT"
passed=0 failed=0 started=$SECONDS took=()
limit=${CI_SECONDS:-4200}
pace=100 # how long this machine takes, in percent of the seconds of the rows
export RUN_UNTIL=$((EPOCHSECONDS + limit))
