#!/usr/bin/env bash
# Plants COUNT small defects, drawn by SEED, in the headers, one at a time, and looks whether the tests notice. The library is
# compiled once; of a defect only its function is compiled, and takes the place of the other when a test is linked. The tests
# of its section run first, then the others from the quickest on, and the first that fails ends it. All defects meet the
# tests of at most QUICK milliseconds first; only those that survive them meet the others. Prints every defect, the share that
# was noticed, and the survivors. Results are kept in BUILD/mutants: run it again to go on where it stopped.
#   COUNT (300), SEED (1), JOBS (2), LIMIT (10800: seconds, then no further defect is begun), HEADERS, BUILD (build),
#   QUICK (4000), CONTROL (20: so many runs of the quick tests without a defect; how often they fail is what chance adds),
#   PASSES (quick slow: one of them alone can be run beside the other), AGAIN (1: survivors are forgotten first, so that they meet the tests of today)
# Not counted: what does not compile, what gives the same object (equivalent), and what tests/mutants/equivalent.txt names.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
B=$root/${BUILD:-build}/mutants
case ${BUILD:-build} in /*) B=$BUILD/mutants ;; esac
SEED=${SEED:-1} COUNT=${COUNT:-300} JOBS=${JOBS:-2} LIMIT=${LIMIT:-10800} QUICK=${QUICK:-4000} CONTROL=${CONTROL:-20}
HEADERS=${HEADERS:-cdp.h cdp_store.h cdp_tcp.h cdp_dtensor.h cdp_mem.h cdp_nccl.h cdp_rpc.h}
CC=${CC:-gcc}
# Of code that a program can replace, gcc takes nothing for granted: so it does not look into functions that it calls.
flags='-O1 -fPIC -std=gnu11 -w'
libs='-Wl,--no-as-needed -pthread -lm -ldl' # names that may be replaced would not bring these in
# shellcheck disable=SC2086
results=$B/results-$SEED-$(cat $HEADERS | cksum | cut -d ' ' -f 1) # others after a change of the headers
export root B CC flags libs results QUICK
mkdir -p "$B/declared" "$B/whole" "$B/lines" "$B/variant" "$B/obj" "$B/m"

source_of() { # TEST: its file
    local d
    if [ "$1" = sim ]; then echo tests/sim/sim_main.c; return; fi
    for d in unit procs dtensor mem nccl sim; do
        if [ -f "$root/tests/$d/$1.c" ]; then echo "tests/$d/$1.c"; return; fi
    done
}

# Some tests set private macros of the headers: those are linked with a library that was compiled with the same.
variant_of() { # TEST
    if [ -s "$B/variant/$1.h" ]; then echo "$1"; else echo common; fi
}

# FOLDER TEST: the program of a test, with the function that FOLDER has, if it has one.
program() {
    local v
    v=$(variant_of "$2")
    if [ -f "$1/one.c" ] && [ ! -f "$1/$v.o" ]; then
        $CC $flags -include "$B/variant/$v.h" -I"$1/inc" -c "$1/one.c" -o "$1/$v.o" || return
    fi
    $CC "$B/obj/$2.o" $(ls "$1/$v.o" 2> /dev/null) "$B/obj/lib-$v.o" -o "$1/$2" $libs
}

# FOLDER TEST+WORD+WORD SECONDS: runs it in the folder; its exit code.
run() {
    local name=${1##*/}
    { (cd "$root" && ulimit -c 0 && TMPDIR=$1 timeout -k 2 "$3" "$1/${2%%+*}" $(tr + ' ' <<< "${2#"${2%%+*}"}")) > "$1/out-$name" 2>&1 < /dev/null; } 2> /dev/null
}

# HEADER SECTION: its tests, each once: those of the section in their order, then the others from the quickest on.
tests_of() {
    local header pattern rest t
    while read -r header pattern rest; do
        [ "$header" = "$1" ] || continue
        # shellcheck disable=SC2053
        [[ $2 == $pattern ]] || continue
        for t in $rest; do awk -v t="$t" -v own="$pattern" '$1 == t { print (own == "*" ? $2 : 0), ++n, t, $2 }' "$B/baseline"; done
    done < "$root/tests/mutants/tests.txt" | sort -s -n -k 1,1 | awk '!seen[$3]++ { print $3, $4 }'
}

# FOLDER HEADER LINE AT KIND: what is compiled of a defect.
plant() {
    rm -rf "$1"
    mkdir -p "$1/inc"
    cp "$B"/declared/*.h "$1/inc/"
    "$B/mutate" one "$B/declared/$2" "$B/lines/$2" "$3" "$4" "$5" > "$1/inc/$2"
    cp "$B/lib.c" "$1/one.c"
    ln -sfn "$B/nccl" "$1/nccl"
}

# FOLDER HEADER LINE: is the function's object the same without the defect?
same_object() {
    plant "$1-none" "$2" "$3" 0 none
    $CC $flags -g0 -I"$1-none/inc" -c "$1-none/one.c" -o "$1-none/o" && $CC $flags -g0 -I"$1/inc" -c "$1/one.c" -o "$1/o" && cmp -s "$1/o" "$1-none/o"
}

# PASS HEADER LINE AT KIND: one line of results.
mutant() {
    local id="$2:$3:$4:$5" d section text state=SURVIVED by='' t ms began pass=$1
    d=$B/m/${id//[:.]/_}
    shift
    [ "$(date +%s)" -lt "$UNTIL" ] || return 0
    began=$(date +%s)
    text=$("$B/mutate" show "$B/lines/$1" "$2" "$3" "$4")
    text=$1${text#*"$1"}
    section=${text#* }
    section=${section%" $4 |"*}
    plant "$d" "$1" "$2" "$3" "$4"
    if ! $CC $flags -include "$B/variant/common.h" -I"$d/inc" -c "$d/one.c" -o "$d/common.o" 2> "$d/errors"; then
        state=uncompiled
    else
        while read -r t ms; do
            if [ "$pass" = quick ] && [ "$ms" -gt "$QUICK" ]; then continue; fi
            if [ "$pass" = slow ] && [ "$ms" -le "$QUICK" ]; then continue; fi
            if ! program "$d" "${t%%+*}" > "$d/errors" 2>&1; then
                state=uncompiled by=$t
                break
            fi
            if ! run "$d" "$t" $((ms / 1000 * 4 + 10)); then
                state=noticed
                by=$t
                break
            fi
        done < <(tests_of "$1" "$section")
    fi
    if [ $state = SURVIVED ] && [ "$4" != none ]; then
        [ "$pass" != quick ] || state=later
        [ "$pass" = slow ] || ! same_object "$d" "$1" "$2" || state=same-object
        if grep -qxF "$1 | ${text#* | }" "$root/tests/mutants/equivalent.txt"; then state=equivalent; fi
    fi
    [ "$4" != none ] || state=control-$state
    echo "$id $state | $text | $by | $(($(date +%s) - began)) s" | tee -a "$results" | cut -c 1-240
    rm -rf "$d" "$d-none"
}
export -f source_of variant_of program run tests_of plant same_object mutant

make --no-print-directory "BUILD=${BUILD:-build}" "${BUILD:-build}/sources" "${BUILD:-build}/test/nccl/libnccl.so" > "$B/make.log" 2>&1
cp "${BUILD:-build}/sources" "$B/sources" && $CC -O1 tests/mutants/mutate.c -o "$B/mutate" || exit 1
[ -L "$B/nccl" ] || rm -rf "$B/nccl"
ln -sfn "$root/${BUILD:-build}/test/nccl" "$B/nccl"
echo '#define CDP_IMPLEMENTATION' > "$B/lib.c"
: > "$B/variant/common.h"
for h in cdp*.h; do
    "$B/sources" declared "$h" > "$B/declared/$h"
    "$B/sources" whole "$h" > "$B/whole/$h"
    tail -n +2 "$B/whole/$h" > "$B/lines/$h" # with the numbers of the lines as they are in the header
    echo "#include \"$h\"" >> "$B/lib.c"
done
sed -i -E 's/^(#define CDP__(DT|MEM_HOT)) .*static( inline)?$/\1 extern/' "$B"/declared/*.h "$B"/whole/*.h "$B"/lines/*.h # words of their own for "private"
touch "$results" "$B/baseline"
wanted=$(for h in $HEADERS; do awk -v h="$h" '$1 == h { for (i = 3; i <= NF; ++i) print $i }' tests/mutants/tests.txt; done | sort -u)
for t in $(sed 's/+.*//' <<< "$wanted" | sort -u); do
    [ -z "$(source_of "$t")" ] || grep -E '^#define CDP__' "$(source_of "$t")" > "$B/variant/$t.h"
done

is_new() { # OBJECT FILE...: newer than the headers and those files
    local f object=$1
    for f in "$root"/cdp*.h "${@:2}"; do [ "$object" -nt "$f" ] || return 1; done
}
library() { # VARIANT: compiled once; every function of it gives way to one of the same name
    is_new "$B/obj/lib-$1.o" && return
    $CC $flags -include "$B/variant/$1.h" -I"$B/whole" -c "$B/lib.c" -o "$B/obj/lib-$1.new" && objcopy --weaken "$B/obj/lib-$1.new" "$B/obj/lib-$1.o"
}
object() { # TEST: compiled once for all defects
    is_new "$B/obj/$1.o" "$root/$(source_of "$1")" \
        || { $CC $flags -fno-omit-frame-pointer -I"$B/declared" -I"$root" -I"$root/tests" -c "$root/$(source_of "$1")" -o "$B/obj/$1.new" \
            && objcopy --weaken "$B/obj/$1.new" "$B/obj/$1.o"; }
}
baseline() { # TEST: how long it takes without a defect; a test that fails then is left out
    local name=${1%%+*} began src d=$B/base-$1
    src=$(source_of "$name")
    grep -q "^$1 " "$B/baseline" && return
    [ -n "$src" ] || { echo "no test $1"; return; }
    mkdir -p "$d"
    ln -sfn "$B/nccl" "$d/nccl"
    if ! program "$d" "$name"; then echo "$1 does not compile"; return; fi
    began=$(date +%s%N)
    if run "$d" "$1" 300; then
        echo "$1 $((($(date +%s%N) - began) / 1000000))" >> "$B/baseline"
    else
        echo "left out, since it fails without a defect: $1"
        tail -n 3 "$d"/out-* | cut -c 1-200
    fi
    rm -rf "$d"
}
export -f is_new library object baseline
sed -i 's/ *$//' "$B"/variant/*.h
(cd "$B/variant" && find . -name '*.h' -size +0 | sed 's/^..//; s/[.]h$//'; echo common) | xargs -P "$JOBS" -I{} bash -c 'library {}' || exit 1
sed 's/+.*//' <<< "$wanted" | sort -u | xargs -P "$JOBS" -I{} bash -c 'object {}'
xargs -P "$JOBS" -I{} bash -c 'baseline {}' <<< "$wanted"

# shellcheck disable=SC2086
"$B/mutate" pick "$SEED" "$COUNT" $HEADERS > "$B/drawn"
awk -v control="$CONTROL" -v count="$COUNT" '
    { print }
    control && NR % int(count / control + 1) == 0 { print $1, $2, 0, "none" }' "$B/drawn" > "$B/picked"
[ -z "${AGAIN:-}" ] || sed -i -E '/^[^ ]* (SURVIVED|later) /d' "$results"
UNTIL=$(($(date +%s) + LIMIT))
export UNTIL
PASSES=${PASSES:-quick slow}
[[ $PASSES != *quick* ]] || while read -r h line at kind; do
    grep -q "^$h:$line:$at:$kind " "$results" || echo "$h $line $at $kind"
done < "$B/picked" | xargs -P "$JOBS" -L 1 bash -c 'mutant quick "$@"' -
[[ $PASSES != *slow* ]] || sed -n 's/^\([^: ]*\):\([0-9]*\):\([0-9]*\):\([a-z]*\) later .*/\1 \2 \3 \4/p' "$results" | while read -r h line at kind; do
    grep -qE "^$h:$line:$at:$kind (noticed|SURVIVED|equivalent|uncompiled) " "$results" || echo "$h $line $at $kind"
done | xargs -P "$JOBS" -L 1 bash -c 'mutant slow "$@"' -

awk -F ' [|] ' '
    { split($1, w, " ") }
    w[2] ~ /^control/ { ++control; if (w[2] == "control-noticed") { ++chance; print "without a defect: " $5 " failed" } next }
    { last[w[1]] = w[2]; text[w[1]] = $2 " | " $3 " | " $4 }
    END {
        for (id in last) {
            ++state[last[id]]; ++n
            if (last[id] == "SURVIVED") print "survivor: " text[id] | "sort"
        }
        close("sort")
        counted = state["noticed"] + state["SURVIVED"]
        printf "%d defects: %d noticed, %d survived, %d wait for the slow tests, %d give the same object, %d are equivalent, %d do not compile\n", n,
            state["noticed"], state["SURVIVED"], state["later"], state["same-object"], state["equivalent"], state["uncompiled"]
        printf "%d runs of the quick tests without a defect: %d failed\n", control, chance
        if (counted) printf "noticed: %.1f %%\n", 100 * state["noticed"] / counted
    }' "$results"
