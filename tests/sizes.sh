#!/usr/bin/env bash
# Text and data of the headers as a release is built (-DNDEBUG), and the parts that have most of it; the build for a board
# has a limit, the others are reported. And how long they take to compile for each line, beside other large single files where there are any (SQLITE_C, MINIAUDIO_H: their paths).
# sizes.sh BUILD [table|limits]; `table`: also what each define leaves out, which takes some minutes; `limits`: not what
# each header adds to cdp.h, which is for readers. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
mkdir -p "$1" && work=$(mktemp -d "$1/sizes.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
gcc -O1 -D_GNU_SOURCE tests/sources/sources.c -o "$work/sources" || exit 1

bytes_of() { # OBJECT: text and data, without the tables for unwinding
    size -A "$1" | awk '$1 ~ /^[.](text|rodata|data|tdata)/ { sum += $2 } END { print sum + 0 }'
}
tables_of() { # OBJECT: of the tables for unwinding
    size -A "$1" | awk '$1 ~ /^[.]eh_frame/ { sum += $2 } END { print sum + 0 }'
}
parts_of() { # OBJECT: which files of src/ have most of it
    "$work/sources" functions src/*.h src/*/*.h | awk '{ print $3, $2 }' | sort -u -k 1,1 > "$work/owners"
    nm -S "$1" | awk 'NF == 4 && $3 ~ /[tTdDrR]/ { name = $4; sub(/[.].*/, "", name); print name, $2 }' | sort |
        join -a 1 - "$work/owners" | while read -r _ hex part; do echo "$((16#$hex)) ${part:-(data)}"; done |
        awk '{ sum[$2] += $1 } END { for (s in sum) printf "%8d %s\n", sum[s], s }' | sort -rn | head -n "$2"
    size -A "$1" | awk '$1 ~ /^[.](eh_frame|rodata[.]str)/ { sum[$1 ~ /eh/ ? "tables for unwinding" : "texts"] += $2 } END { for (s in sum) printf "%8d %s\n", sum[s], s }'
}
sized() { # NAME LIMIT FLAGS...: of $work/x.c; limit 0: it is only reported
    local name=$1 most=$2 bytes
    shift 2
    gcc -std=gnu11 "$@" -I. -c "$work/x.c" -o "$work/x.o" || { echo "not ok $name: does not compile"; failed=$((failed + 1)); return; }
    [[ $* != *-ffunction-sections* ]] || linked "$work/x.o" || failed=$((failed + 1))
    bytes=$(bytes_of "$work/x.o")
    if [ "$most" = 0 ] && [ "$bytes" -gt 10000 ]; then
        echo "INFO $name: $bytes bytes of text and data (tables for unwinding: $(tables_of "$work/x.o")); the largest parts:"
        parts_of "$work/x.o" 8
    elif [ "$bytes" -gt 10000 ] && [ "$bytes" -le "$most" ]; then
        echo "ok $name: $bytes bytes of text and data (limit $most)"
        passed=$((passed + 1))
    else
        echo "not ok $name: $bytes bytes of text and data (limit $most); the largest parts:"
        failed=$((failed + 1))
        parts_of "$work/x.o" 24
    fi
}
# What a program that trains over TCP can do without.
LESS='-DCDP_NO_HOOKS -DCDP_NO_AVERAGER -DCDP_NO_TRACE -DCDP_NO_SAMPLER -DCDP_NO_FILE_STORE -DCDP_NO_FILES
    -DCDP_NO_SPARSE -DCDP_NO_JOIN -DCDP_NO_CLIP -DCDP_NO_VERIFY
    -DCDP_NO_HASH_STORE -DCDP_NO_PREFIX_STORE -DCDP_NO_CUSTOM_STORE -DCDP_NO_MESSAGES -DCDP_NO_OBJECTS
    -DCDP_NO_HUB -DCDP_NO_RECORDER -DCDP_NO_CHAINS -DCDP_NO_GROUPS -DCDP_NO_FRAMES -DCDP_NO_SHARED_MEMORY -DCDP_NO_MAC -DCDP_NO_ENV
    -DCDP_FEW_ALGORITHMS -DCDP_FEW_DTYPES -DCDP_NO_SCAN -DCDP_NO_TRAINING -DCDP_NO_STORE_CALLS -DCDP_NO_JOB_KEY'
# A board does not serve the store, and has no threads.
SMALLEST="-Os -DNDEBUG $LESS -DCDP_NO_STDIO -DCDP_NO_LOG_STRINGS -DCDP_NO_STORE_SERVER -DCDP_NO_MEETING
    -DCDP_NO_REPRODUCIBLE -DCDP_NO_BACKEND -DCDP_NO_THREADS"
# What a program does between the first and the last call of the library is compiled for speed: gcc takes what leads to a
# cold function for cold, the program's own functions, too. Of public functions those that tell of errors may be cold.
cat > "$work/x.c" << 'END'
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_nccl.h"
static __attribute__((__noinline__)) void program_trains(float *x, int n) {
    for (int i = 0; i < n; ++i) x[i] = x[i] * 0.5f + 1;
}
int program_main(float *x, int n);
int program_main(float *x, int n) {
    cdp_launch launch;
    cdp_group *world;
    cdp_ddp *ddp;
    if (cdp_launch_read(NULL, NULL, &launch) != CDP_OK || cdp_init_from_env(NULL, &world) != CDP_OK) return 1;
    if (cdp_ddp_create(&(cdp_ddp_desc){.group = world}, &ddp) != CDP_OK) return 1;
    program_trains(x, n);
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(world);
    return 0;
}
END
warm() { # OBJECT: what is cold in it and should not be
    local cold
    cold=$(objdump -t "$1" | awk '$4 == ".text.unlikely" { print $NF }' | grep -E '^(cdp_[a-z0-9]|program_)' |
        grep -vE '[.]cold|^cdp_(status_name|status_text|print_error)$' | tr '\n' ' ')
    [ -z "$cold" ] || { echo "not ok gcc takes these for cold: $cold"; failed=$((failed + 1)); return; }
    echo "ok no public function, nor the program between them, is cold"
    passed=$((passed + 1))
}
sized 'cdp.h, cdp_store.h, cdp_tcp.h and cdp_nccl.h at -O2' 0 -O2 -DNDEBUG
warm "$work/x.o"
printf '#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"\n' > "$work/x.c"
# shellcheck disable=SC2086
sized 'TCP, collectives and DDP at -O2' 0 -O2 -DNDEBUG $LESS
# It had 118,817 bytes in 0.2, and a board has no more room for what came since: what it does not need can be left out.
# As firmware is built: without tables for unwinding, and the linker leaves out what nobody refers to. It keeps every
# public function of cdp.h and cdp_tcp.h, whether a program would call it or not.
linked() { # OBJECT: in its place
    local kept
    kept=$(cat cdp.h cdp_tcp.h | sed -nE 's/^CDP_API [^(]*\b(cdp_[a-z_0-9]+)[(].*/-u \1/p' | sort -u)
    # shellcheck disable=SC2086
    ld -r --gc-sections $kept "$1" -o "$1.linked" && mv "$1.linked" "$1"
}
BOARD='-fno-asynchronous-unwind-tables -ffunction-sections -fdata-sections'
# shellcheck disable=SC2086
sized 'the same at -Os for a board, without stdio and texts of errors' 120000 $SMALLEST $BOARD

measure() { # FLAGS...: text and data of $work/x.c
    gcc -std=gnu11 "$@" -I. -c "$work/x.c" -o "$work/x.o" && bytes_of "$work/x.o"
}
without() { # WHOLE TITLE FLAGS...: by how much a build with these flags, too, is smaller than WHOLE
    local whole=$1 title=$2 bytes
    shift 2
    bytes=$(measure -O2 -DNDEBUG "$@") || { echo "not ok $title: does not compile"; failed=$((failed + 1)); return; }
    printf 'INFO %8d %s\n' $((whole - bytes)) "$title"
}
# Where the size of the four headers comes from, as a release is built. With CDP_NO_BACKEND there is no cdp_nccl.h.
table() {
    local whole option
    printf '#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"\n#ifndef CDP_NO_BACKEND\n#include "cdp_nccl.h"\n#endif\n' > "$work/x.c"
    whole=$(measure -O2 -DNDEBUG)
    echo "INFO cdp.h, cdp_store.h, cdp_tcp.h and cdp_nccl.h at -O2: $whole bytes of text and data, of which"
    size -A "$work/x.o" | awk '
        $1 ~ /^[.]text[.]unlikely/ { sum["code that is rarely reached"] += $2; next }
        $1 ~ /^[.]text/ { sum["other code"] += $2 }
        $1 ~ /^[.]rodata[.]str/ { sum["texts"] += $2; next }
        $1 ~ /^[.](rodata|data|tdata)/ { sum["tables and constants"] += $2 }
        END { for (s in sum) printf "INFO %8d %s\n", sum[s], s }' | sort -k 2 -rn
    echo 'INFO by header and section:'
    parts_of "$work/x.o" 400 | sed 's/^/INFO /'
    # Builds use none of these flags: they only show what the compiler makes larger for speed.
    echo 'INFO what gcc adds for speed:'
    without "$whole" 'copies of functions in their callers' -fno-inline-functions
    without "$whole" 'gaps before functions, loops and targets of jumps' -fno-align-functions -fno-align-loops -fno-align-jumps
    without "$whole" 'copies of paths whose conditions are known' -fno-thread-jumps
    without "$whole" 'loops over vectors' -fno-tree-vectorize
    without "$whole" 'these four together' -fno-inline-functions -fno-align-functions -fno-align-loops -fno-align-jumps \
        -fno-thread-jumps -fno-tree-vectorize
    without "$whole" 'all that -O2 adds to -Os' -Os
    echo 'INFO what came with 0.2 (works and calls in frames with cdp_group_leave, channels, authentication codes):'
    for option in -DCDP_NO_FRAMES -DCDP_NO_CHANNELS -DCDP_NO_MAC; do
        without "$whole" "${option#-D}" "$option"
    done
    without "$whole" 'these three together' -DCDP_NO_FRAMES -DCDP_NO_CHANNELS -DCDP_NO_MAC
    echo 'INFO what each other define leaves out (CDP_NO_BACKEND: with all of cdp_nccl.h):'
    for option in $LESS -DCDP_NO_DDP -DCDP_NO_STORE_SERVER -DCDP_NO_MEETING -DCDP_NO_REPRODUCIBLE -DCDP_NO_BACKEND \
        -DCDP_NO_STDIO -DCDP_NO_LOG_STRINGS -DCDP_NO_THREADS; do
        [[ " -DCDP_NO_FRAMES -DCDP_NO_CHANNELS -DCDP_NO_MAC " = *" $option "* ]] || without "$whole" "${option#-D}" "$option"
    done
    printf '#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"\n' > "$work/x.c"
}
[ "${2-}" != table ] || table
# shellcheck disable=SC2086
echo "INFO the smallest build with tables for unwinding and all of cdp_store.h: $(measure $SMALLEST) bytes"
# With CDP_STATIC the compiler leaves out each function that the program does not call.
sed -n '/^ *static float w\[2\]/,/^        }$/p' cdp.h | sed 's/^        //; s/cdp_print_error(stderr)/1/; s/printf(.*;/;/' > "$work/program.c"
sed -i '1i #define CDP_STATIC\n#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"' "$work/program.c"
for flags in -O2 "-O2 ${LESS/ -DCDP_NO_ENV/}" "${SMALLEST/ -DCDP_NO_ENV/}" "${SMALLEST/ -DCDP_NO_ENV/} -fno-asynchronous-unwind-tables"; do
    # shellcheck disable=SC2086
    gcc -std=gnu11 -w $flags -I. -c "$work/program.c" -o "$work/x.o" &&
        echo "INFO the program in the head of cdp.h with CDP_STATIC, $(tr ' ' '\n' <<< "$flags" | grep -v CDP_ | xargs)$([[ $flags = *CDP_* ]] && echo ' and all that can be left out'): $(bytes_of "$work/x.o") bytes"
done
# What a header adds to cdp.h, whose implementation it brings along.
each_header() {
    local of_core h
    of_core=$(printf '#define CDP_IMPLEMENTATION\n#include "cdp.h"\n' > "$work/x.c" && measure -O2)
    for h in cdp_rpc cdp_elastic cdp_dtensor cdp_checkpoint cdp_pipeline cdp_mem cdp_fsdp cdp_nccl cdp_launch; do
        printf '#define CDP_IMPLEMENTATION\n#include "%s.h"\n' $h > "$work/x.c"
        echo "INFO $h.h at -O2: $(($(measure -O2) - of_core)) bytes of text and data beside the $of_core of cdp.h (of cdp_elastic.h and cdp_launch.h, cdp_tcp.h and cdp_store.h are part, of cdp_checkpoint.h, cdp_dtensor.h)"
    done
}
[ "${2-}" = limits ] || each_header

compile_time() { # NAME LINES FILE FLAGS...
    local name=$1 lines=$2 file=$3 TIMEFORMAT='%U %S' cpu
    shift 3
    cpu=$( { time gcc -O2 "$@" -c "$file" -o "$work/y.o" 2> /dev/null; } 2>&1 )
    awk -v name="$name" -v lines="$lines" '{ s = $1 + $2; printf "INFO compile time at -O2: %s, %d lines, %.1f s of processor time, %.2f ms for each 10 lines\n", name, lines, s, s * 10000 / lines }' <<< "$cpu"
}
printf '#define CDP_IMPLEMENTATION\n#include "cdp_tcp.h"\n' > "$work/cdp.c"
compile_time 'cdp.h, cdp_store.h and cdp_tcp.h' "$(cat cdp.h cdp_store.h cdp_tcp.h | wc -l)" "$work/cdp.c" -I.
if [ -f "${SQLITE_C-}" ]; then
    compile_time sqlite3.c "$(wc -l < "$SQLITE_C")" "$SQLITE_C" -w
else
    echo 'SKIP compile time of sqlite3.c: SQLITE_C does not name it'
fi
if [ -f "${MINIAUDIO_H-}" ]; then
    printf '#define MINIAUDIO_IMPLEMENTATION\n#include "%s"\n' "$(basename "$MINIAUDIO_H")" > "$work/ma.c"
    compile_time miniaudio.h "$(wc -l < "$MINIAUDIO_H")" "$work/ma.c" -I"$(dirname "$MINIAUDIO_H")"
else
    echo 'SKIP compile time of miniaudio.h: MINIAUDIO_H does not name it'
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
