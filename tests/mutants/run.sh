#!/usr/bin/env bash
# Plants COUNT small defects, drawn by SEED, in the headers, one at a time, and looks whether the tests notice.
#
# What makes it cheap: the library is compiled once, as a shared object; of a defect only its function is compiled and is
# loaded before it. Every case of every test runs once without a defect beside a library that records which code is
# reached (reach.c); a defect then meets only those cases that reach its line, from the quickest on (those of its section,
# tests.txt, count a fifth of their time), and the first that fails twice in a row ends it. A case has three times its time
# and three seconds. Two passes: cases of QUICK ms together for all defects, then SLOW ms more for what survived. What
# survives those counts as survived, even if there are more cases that reach it. Case by case is kept what a defect has met.
#
# Prints every defect, the share that was noticed, and the survivors. Results are kept in BUILD/mutants: run it again to
# go on where it stopped.
#   COUNT (300), SEED (1), JOBS (2), LIMIT (10800: seconds, then no further defect is begun), HEADERS, BUILD (build),
#   QUICK (4000), SLOW (40000), CONTROL (20: so many runs without a defect; how often they fail is what chance adds),
#   RECORD (1; 0: no further case is recorded now, defects meet those that are),
#   RECORD_CPU (20: seconds of processor time; a case that takes longer where it is watched has no part),
#   PASSES (quick slow, or "none": only what is needed before), AGAIN (1: survivors are forgotten first, so that they meet
#   the tests of today; cases that are new are recorded first in any case. Where a case was changed so that it reaches
#   more, delete BUILD/mutants/reach)
# Not counted: what does not compile, what gives the same object (equivalent), and what tests/mutants/equivalent.txt names.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
B=$root/${BUILD:-build}/mutants
case ${BUILD:-build} in /*) B=$BUILD/mutants ;; esac
SEED=${SEED:-1} COUNT=${COUNT:-300} JOBS=${JOBS:-2} LIMIT=${LIMIT:-10800} CONTROL=${CONTROL:-20} PASSES=${PASSES:-quick slow}
QUICK=${QUICK:-4000} SLOW=${SLOW:-40000} RECORD_CPU=${RECORD_CPU:-20}
HEADERS=${HEADERS:-cdp.h cdp_store.h cdp_tcp.h cdp_checkpoint.h cdp_dtensor.h cdp_elastic.h cdp_fsdp.h cdp_launch.h cdp_mem.h cdp_nccl.h cdp_pipeline.h cdp_rpc.h}
CC=${CC:-gcc}
# Of code that a program can replace, gcc takes nothing for granted: so it does not look into functions that it calls.
flags='-fPIC -std=gnu11 -w'
one="-O1 -fno-inline -include $root/tests/linked.h" # of a header without its defect, this makes no code at all
libs='-pthread -lm -ldl'
# shellcheck disable=SC2086
results=$B/results-$SEED-$(cat $HEADERS | cksum | cut -d ' ' -f 1) # others after a change of the headers
export root B CC flags one libs results QUICK SLOW RECORD_CPU
mkdir -p "$B"/{variant,bin,plain,watched,reach,met,m}

source_of() { # TEST: its file
    local d
    if [ "$1" = sim ]; then echo tests/sim/sim_main.c; return; fi
    for d in unit procs dtensor mem nccl sim; do
        if [ -f "$root/tests/$d/$1.c" ]; then echo "tests/$d/$1.c"; return; fi
    done
}

# Some tests set private constants of the headers: those run with a library that was compiled with the same. A macro with
# parameters plants mistakes that the test itself knows, which no library can: the library is without it.
variant_of() { # TEST
    if [ -s "$B/variant/$1.h" ]; then echo "$1"; else echo common; fi
}

# OBJECT TEST+WORD+WORD SECONDS: runs it, with what that object has in place of the library's; its exit code. What it prints
# comes to $TMPDIR/out.
run() {
    local test=${2%%+*}
    # shellcheck disable=SC2046
    { (cd "$root" && ulimit -c 0 && timeout -k 2 "$3" env LD_PRELOAD="$1" "$B/bin/$test" $(tr + ' ' <<< "${2#"$test"}")) \
        > "$TMPDIR/out" 2>&1 < /dev/null; } 2> /dev/null
}

# FOLDER HEADER LINE AT KIND: what is compiled of a defect.
plant() {
    rm -rf "$1"
    mkdir -p "$1/inc"
    ln -s "$root"/cdp*.h "$1/inc/"
    rm "$1/inc/$2"
    "$B/mutate" one "$root/$2" "$3" "$4" "$5" > "$1/inc/$2"
    cp "$B/lib.c" "$1/one.c"
}

# FOLDER VARIANT: its function alone, for a library of those macros.
planted() {
    [ -f "$1/$2.so" ] && return
    # shellcheck disable=SC2086
    $CC $one $flags -include "$B/variant/$2.h" -I"$1/inc" -shared "$1/one.c" -o "$1/$2.so" \
        -L"$B/plain" -Wl,--no-as-needed,-rpath,"$B/plain" "-l:lib-$2.so" 2> "$1/errors" # so that other programs, which a test starts, can load it, too
}

# FOLDER HEADER LINE: is the function's object the same without the defect?
same_object() {
    plant "$1-none" "$2" "$3" 0 none
    # shellcheck disable=SC2086
    $CC $one $flags -g0 -I"$1-none/inc" -c "$1-none/one.c" -o "$1-none/o" \
        && $CC $one $flags -g0 -I"$1/inc" -c "$1/one.c" -o "$1/o" && cmp -s "$1/o" "$1-none/o"
}

# ID HEADER SECTION LINE: "MS CASE BUILT" of what reaches it and what it has not met yet, in the order in which they run.
cases_of() {
    local header pattern rest own=' '
    while read -r header pattern rest; do
        # shellcheck disable=SC2053
        if [ "$header" = "$2" ] && [ "$pattern" != '*' ] && [[ $3 == $pattern ]]; then own="$own$rest "; fi
    done < "$root/tests/mutants/tests.txt"
    touch "$B/met/$1"
    awk -v own="$own" -v key="$2:$4" '
        FILENAME ~ /built$/ { built[$1] = $2; next }
        FILENAME ~ /recorded$/ { ms[$1] = $2; next }
        FILENAME ~ /met/ { met[$1] = $2; next }
        $1 == key && ($2 in ms) {
            test = $2
            sub(/[+].*/, "", test)
            if (met[$2] == built[test]) next
            print ms[$2] / (index(own, " " test " ") ? 5 : 1), ms[$2], $2, built[test]
        }' "$B/built" "$B/recorded" "$B/met/$1" "$B/reaching" | sort -n -k 1,1 -k 3,3 | cut -d ' ' -f 2-
}

# PASS HEADER LINE AT KIND: one line of results.
mutant() {
    local id="$2:$3:$4:$5" d section text state=SURVIVED by='' c ms began pass=$1 v met=0 sum=0 seconds sometimes='' most=$QUICK built
    d=$B/m/$$
    [ "$pass" = quick ] || most=$SLOW
    shift
    [ "$(date +%s)" -lt "$UNTIL" ] || return 0
    began=$(date +%s)
    text=$("$B/mutate" show "$root/$1" "$2" "$3" "$4")
    text=$1${text#*"$1"}
    section=${text#* }
    section=${section%" $4 |"*}
    plant "$d" "$1" "$2" "$3" "$4"
    export TMPDIR=$d
    if ! planted "$d" common || ! nm -D --defined-only "$d/common.so" | grep -q ' T '; then
        state=uncompiled
    elif [ "$4" != none ] && [ "$pass" = quick ] && same_object "$d" "$1" "$2"; then
        state=same-object
    elif [ "$4" != none ] && grep -qxF "$1 | ${text#* | }" "$root/tests/mutants/equivalent.txt"; then
        state=equivalent
    else
        while read -r ms c built; do
            sum=$((sum + ms + 5))
            if [ "$sum" -gt "$most" ] && [ $met -gt 0 ]; then
                by="(not all cases that reach it)"
                [ "$pass" = slow ] || [ "$4" = none ] || state=later
                break
            fi
            v=$(variant_of "${c%%+*}")
            planted "$d" "$v" || continue
            met=$((met + 1)) seconds=$((ms * 3 / 1000 + 3))
            if run "$d/$v.so" "$c" "$seconds"; then
                echo "$c $built" >> "$B/met/$id"
                continue
            fi
            if run "$d/$v.so" "$c" "$seconds"; then
                sometimes="$sometimes once by $c"
                continue
            fi
            state=noticed by=$c
            break
        done < <(cases_of "$id" "$1" "$section" "$2")
        [ $met -gt 0 ] || [ -s "$B/met/$id" ] || by="(no case reaches it)"
    fi
    [ "$4" != none ] || state=control-$state
    echo "$id $state | $text | $by$sometimes | $met cases, $(($(date +%s) - began)) s" | tee -a "$results" | cut -c 1-280
    rm -rf "$d" "$d-none"
}
export -f source_of variant_of run planted cases_of plant same_object mutant

# ---- what is made before: libraries, programs, and which case reaches what ----

make --no-print-directory "BUILD=${BUILD:-build}" "${BUILD:-build}/test/nccl/libnccl.so" > "$B/make.log" 2>&1
$CC -O1 tests/mutants/mutate.c -o "$B/mutate.new" && mv "$B/mutate.new" "$B/mutate" || exit 1
$CC -O2 -DREACH_MAIN tests/mutants/reach.c -o "$B/reached" && $CC -O2 -fPIC -c tests/mutants/reach.c -o "$B/reach.o" || exit 1
ln -sfn "$root/${BUILD:-build}/test/nccl" "$B/bin/nccl"
echo '#define CDP_IMPLEMENTATION' > "$B/lib.c"
: > "$B/variant/common.h"
for h in $HEADERS; do
    echo "#include \"$h\"" >> "$B/lib.c"
done
touch "$results" "$B/recorded"
wanted=$(awk '$1 ~ /^cdp/ { for (i = 3; i <= NF; ++i) print $i }' tests/mutants/tests.txt | sort -u)
programs=$(sed 's/+.*//' <<< "$wanted" | sort -u)
for t in $programs; do
    [ -z "$(source_of "$t")" ] || grep -hE '^#define CDP__[A-Z0-9_]+ ' "$(source_of "$t")" | sed 's/ *$//' > "$B/variant/$t.h"
done

is_new() { # OBJECT FILE...: newer than the headers and those files
    local f object=$1
    for f in "$root"/cdp*.h "${@:2}"; do [ "$object" -nt "$f" ] || return 1; done
}
library() { # VARIANT: one to run with, one that records what is reached, and where lines lie in that
    local plain=$B/plain/lib-$1.so watched=$B/watched/lib-$1.so
    # shellcheck disable=SC2086
    is_new "$plain" || $CC -O1 $flags -DCDP__PRIVATE=extern -include "$B/variant/$1.h" -I"$root" -shared "$B/lib.c" -o "$plain" $libs || return
    # shellcheck disable=SC2086
    is_new "$watched" || { $CC -O0 -g $flags -fsanitize-coverage=trace-pc -DCDP__PRIVATE=extern -include "$B/variant/$1.h" -I"$root" -c "$B/lib.c" -o "$B/watched/$1.o" \
        && $CC -shared "$B/watched/$1.o" "$B/reach.o" -o "$watched" $libs; } || return
    [ "$B/blocks-$1" -nt "$watched" ] && return
    # "WHERE b ADDRESS" of every block (its call, and what that returns to), "WHERE l HEADER:LINE" of every line; each line
    # belongs to the block that begins last before it.
    {
        objdump -d --no-show-raw-insn -j .text "$watched" \
            | awk '/call.*__sanitizer_cov_trace_pc/ { at = $1; getline; print at, "b", $1 }' | tr -d :
        objdump --dwarf=decodedline "$watched" | sed -nE 's/^(cdp[a-z_]*[.]h) +([0-9]+) +0x([0-9a-f]+).*/\3 l \1:\2/p'
    } | sed -E 's/^/0000000000000000/; s/^0*([0-9a-f]{16}) /\1 /; s/ b / b 0000000000000000/; s/ b 0*([0-9a-f]{16})$/ b \1/' | sort -s -k 1,2 \
        | awk '$2 == "b" { block = $3; next } !(($3, block) in seen) { seen[$3, block]; print $3, block }' > "$B/blocks-$1.new"
    [ -s "$B/blocks-$1.new" ] && mv "$B/blocks-$1.new" "$B/blocks-$1"
}
object() { # TEST: compiled once for all defects
    local src v
    src=$(source_of "$1")
    v=$(variant_of "$1")
    [ -n "$src" ] || { echo "no test $1"; return; }
    is_new "$B/bin/$1" "$root/$src" "$B/plain/lib-$v.so" && return
    # shellcheck disable=SC2086
    $CC $one -std=gnu11 -w -fno-omit-frame-pointer -I"$root" -I"$root/tests" "$root/$src" -o "$B/bin/$1" -L"$B/plain" "-l:lib-$v.so" -Wl,-rpath,"$B/plain" $libs \
        || echo "$1 does not compile"
}
list_cases() { # stdin: tests, or tests with words; those without words as one line for each of their cases
    local t names
    while read -r t; do
        names=
        [[ $t == *+* ]] || names=$(grep -ohE '(\{"|CASE\()[A-Za-z0-9_]{3,}"?,' "$root/$(source_of "$t")" | sed -E 's/..//; s/^SE.//; s/"?,//' | sort -u)
        [[ $t != sim && $t != scripts && $t != elastic && $t != rpc* && $t != desync && $t != failure && $t != rounds ]] || names=
        [ -f "$B/bin/${t%%+*}" ] || continue
        if [ -z "$names" ]; then echo "$t"; else sed "s/^/$t+/" <<< "$names"; fi
    done
}
record() { # CASE: how long it takes without a defect, and what it reaches; a case that fails then is left out
    local began ms v id=${1//\//_} d=$B/m/$$
    v=$(variant_of "${1%%+*}")
    if [ -s "$B/reach/$id" ] && [ "$B/reach/$id" -nt "$B/watched/lib-$v.so" ]; then return; fi
    [ "$B/reach/$id" -nt "$B/bin/${1%%+*}" ] && return # it failed
    rm -rf "$d"
    mkdir -p "$d"
    export TMPDIR=$d REACH_FILE=$d/map
    ulimit -t "$RECORD_CPU"
    began=$(date +%s%N)
    if run "$B/watched/lib-$v.so" "$1" $((RECORD_CPU * 5)) && ! grep -q '^0 passed, 0 failed' "$d/out"; then
        ms=$((($(date +%s%N) - began) / 1000000))
        "$B/reached" "$d/map" > "$B/reach/$id.new"
        mv "$B/reach/$id.new" "$B/reach/$id"
        echo "$1 $ms $v" >> "$B/recorded"
    else
        : > "$B/reach/$id"
        grep -q '^0 passed, 0 failed' "$d/out" || { echo "left out, since it fails without a defect: $1"; tail -n 3 "$d/out" | cut -c 1-200; }
    fi
    rm -rf "$d"
}
export -f is_new library object record
(echo common; cd "$B/variant" && find . -name '*.h' -size +0 | sed 's/^..//; s/[.]h$//') | xargs -P "$JOBS" -I{} bash -c 'library {}' || exit 1
xargs -P "$JOBS" -I{} bash -c 'object {}' <<< "$programs"
list_cases <<< "$wanted" | shuf --random-source=<(yes) > "$B/cases"
[ "${RECORD:-1}" = 0 ] || xargs -P "$JOBS" -I{} bash -c 'record {}' < "$B/cases"
(cd "$B/bin" && stat -c '%n %Y' -- *) > "$B/built"

# shellcheck disable=SC2086
"$B/mutate" pick "$SEED" "$COUNT" $HEADERS > "$B/drawn"
# Which cases reach the lines of the defects. A line without code of its own belongs to the next above it that has some.
cut -d ' ' -f 3 "$B/recorded" | sort -u | while read -r v; do
    awk -v v="$v" '
        FILENAME ~ /drawn$/ { want[$1 ":" $2]; next }
        { at[$1] = at[$1] " " $2 }
        END {
            for (w in want) {
                split(w, p, ":")
                for (line = p[2]; line > p[2] - 8 && !((p[1] ":" line) in at); --line) continue
                n = split(at[p[1] ":" line], blocks, " ")
                for (i = 1; i <= n; ++i) print v, blocks[i], w
            }
        }' "$B/drawn" "$B/blocks-$v"
done > "$B/places"
awk '
    FILENAME ~ /places$/ { place[$1, $2] = place[$1, $2] " " $3; next }
    FILENAME ~ /recorded$/ { if (!($1 in known)) { known[$1]; n[++count] = $1; v[count] = $3 } next }
    END {
        for (i = 1; i <= count; ++i) {
            name = n[i]; gsub("/", "_", name); file = root "/reach/" name
            while ((getline line < file) > 0)
                if ((v[i], line) in place) {
                    k = split(place[v[i], line], w, " ")
                    for (j = 1; j <= k; ++j) if (!((w[j], i) in seen)) { seen[w[j], i]; print w[j], n[i] }
                }
            close(file)
        }
    }' root="$B" "$B/places" "$B/recorded" > "$B/reaching"

# ---- the defects ----

awk -v control="$CONTROL" -v count="$COUNT" '
    { print }
    control && NR % int(count / control + 1) == 0 { print $1, $2, 0, "none" }' "$B/drawn" > "$B/picked"
[ -z "${AGAIN:-}" ] || sed -i -E '/^[^ ]* (SURVIVED|later) /d' "$results"
UNTIL=$(($(date +%s) + LIMIT))
export UNTIL
[[ $PASSES != *quick* ]] || while read -r h line at kind; do
    grep -q "^$h:$line:$at:$kind " "$results" || echo "$h $line $at $kind"
done < "$B/picked" | xargs -P "$JOBS" -L 1 bash -c 'mutant quick "$@"' -
[[ $PASSES != *slow* ]] || sed -n 's/^\([^: ]*\):\([0-9]*\):\([0-9]*\):\([a-z]*\) later .*/\1 \2 \3 \4/p' "$results" | while read -r h line at kind; do
    grep -qE "^$h:$line:$at:$kind (noticed|SURVIVED|equivalent|uncompiled) " "$results" || echo "$h $line $at $kind"
done | xargs -P "$JOBS" -L 1 bash -c 'mutant slow "$@"' -

awk -F ' [|] ' '
    { split($1, w, " ") }
    w[2] ~ /^control/ { ++control; if (w[2] == "control-noticed") { ++chance; print "without a defect: " $5 " failed" } next }
    { last[w[1]] = w[2]; text[w[1]] = $2 " | " $3 " | " $4 " | " $5 }
    END {
        for (id in last) {
            ++state[last[id]]; ++n
            if (last[id] == "SURVIVED") print "survivor: " text[id] | "sort"
        }
        close("sort")
        counted = state["noticed"] + state["SURVIVED"]
        printf "%d defects: %d noticed, %d survived, %d wait for the slow tests, %d give the same object, %d are equivalent, %d do not compile\n", n,
            state["noticed"], state["SURVIVED"], state["later"], state["same-object"], state["equivalent"], state["uncompiled"]
        printf "%d runs without a defect: %d failed\n", control, chance
        counted += state["later"]
        if (counted) printf "noticed: %s%.1f %%\n", state["later"] ? "so far " : "", 100 * state["noticed"] / counted
    }' "$results"
