#!/usr/bin/env bash
# Runs test suites one after the other, prints one line for each, and adds up their results.
#
#   run_all.sh LOGDIR 'NAME|SECONDS|COMMAND' ...
#
# A suite ends with the line "N passed, N failed" and exit code 0 when nothing failed. Lines of it that begin with SKIP
# are shown. Its whole output is in LOGDIR/NAME.log, and is shown here only when it failed. A suite that ends without its
# last line, with a bad exit code, after its time, or with nothing passed and nothing skipped counts as one more failure.
# The last line here is the sum, alone on its line.
set -u
logs=$1
shift
mkdir -p "$logs" || exit 1
passed=0 failed=0 broken= running=
# timeout makes each suite a process group of its own, which an interrupt of this script does not reach by itself
trap '[ -z "$running" ] || kill -TERM "$running" 2> /dev/null; exit 130' INT TERM HUP

for suite in "$@"; do
    IFS='|' read -r name seconds command <<< "$suite"
    log=$logs/$name.log
    start=${EPOCHREALTIME/./}
    timeout -k 10 "$seconds" bash -c "$command" > "$log" 2>&1 < /dev/null &
    running=$!
    wait "$running"
    rc=$?
    running=
    ms=$(( (${EPOCHREALTIME/./} - start) / 1000 ))
    last=$(grep -aE '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    p=0 f=0 note=
    [ -n "$last" ] && read -r p _ f _ <<< "$last"
    skips=$(grep -ac '^SKIP' "$log")
    if [ "$rc" = 124 ] || [ "$rc" = 137 ]; then note="stopped after $seconds s"
    elif [ -z "$last" ]; then note="ended without a result, exit code $rc"
    elif [ "$rc" != 0 ] && [ "$f" = 0 ]; then note="exit code $rc"
    elif [ "$p" = 0 ] && [ "$f" = 0 ] && [ "$skips" = 0 ]; then note="tested nothing"
    fi
    [ -n "$note" ] && f=$((f + 1))
    printf '%-28s %5d passed, %d failed %8d.%03d s  %s\n' "$name" "$p" "$f" $((ms / 1000)) $((ms % 1000)) "$note"
    grep -a '^SKIP' "$log" | sed 's/^/    /'
    passed=$((passed + p))
    failed=$((failed + f))
    [ "$f" = 0 ] || broken="$broken $name"
done

for name in $broken; do
    printf '\n==== %s (%s) ====\n' "$name" "$logs/$name.log"
    tail -n 200 "$logs/$name.log"
done
[ -z "$broken" ] || printf '\nfailed:%s\n' "$broken"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
