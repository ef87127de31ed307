#!/usr/bin/env bash
# What `make bench` runs: the measurements of bench.c, then how long the gcc line of a program takes and how much code it
# becomes. Needs gcc (with its binutils) and coreutils.
#
#   run.sh [BUILD_DIR] [options of bench]        BUILD_DIR: default $BUILD, else build
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
case "${1:-}" in
--*|'') build=${BUILD:-build} ;;
*) build=$1; shift ;;
esac
case " $* " in *' --help '*) sed -n '2,5s/^# \{0,1\}//p' "$0" ;; esac
mkdir -p "$build/bench" || exit 1
if [ ! -x "$build/bench/bench" ] || [ -n "$(find tests/bench/bench.c cdp*.h -newer "$build/bench/bench")" ]; then
    gcc -O2 -g -std=gnu11 -I. tests/bench/bench.c -o "$build/bench/bench" -pthread -lm || exit 1
fi

echo "# $(uname -srm), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null)"
echo "# $(gcc --version | head -n 1); tcp_congestion_control $(cat /proc/sys/net/ipv4/tcp_congestion_control 2>/dev/null || echo '?')"
"$build/bench/bench" "$@" || exit 1
case " $* " in *' --help '*|*' --list '*|*' --only '*) exit 0 ;; esac

us() { echo $((${EPOCHREALTIME/[.,]/})); }
tmp=$build/bench/size
mkdir -p "$tmp" || exit 1

times=()
for _ in 1 2 3; do
    t=$(us)
    gcc -O2 examples/01_hello.c -o "$tmp/hello" -pthread -lm || exit 1
    times+=($(($(us) - t)))
done
mapfile -t times < <(printf '%s\n' "${times[@]}" | sort -n)
printf '\ncdp\t-\tcompile_01_hello\t1\t0\t%s\t%s\t%s\t0\t3\n' "${times[1]}" "${times[0]}" "${times[2]}"
printf 'gcc -O2 examples/01_hello.c: %d.%02d s (least %d.%02d)\n' $((times[1] / 1000000)) $((times[1] / 10000 % 100)) $((times[0] / 1000000)) $((times[0] / 10000 % 100))

printf '#define CDP_IMPLEMENTATION\n#include "%s/cdp_tcp.h"\n' "$PWD" > "$tmp/all.c"
gcc -O2 -c "$tmp/all.c" -o "$tmp/all.o" && gcc -Os -c "$tmp/all.c" -o "$tmp/small.o" || exit 1
for o in all small; do
    read -r text data bss _ < <(size "$tmp/$o.o" | tail -n 1)
    printf 'all three headers in one object, %s: text+data %d bytes (text %d, data %d, bss %d)\n' "$([ $o = all ] && echo -O2 || echo -Os)" $((text + data)) "$text" "$data" "$bss"
done

if gcc -Os -ffunction-sections -fdata-sections -Wl,--gc-sections -static examples/01_hello.c -o "$tmp/static" -pthread -lm 2> "$tmp/static.log"; then
    part=0
    while read -r bytes; do part=$((part + 16#$bytes)); done < <(nm -S "$tmp/static" | while read -r _ bytes kind name; do case "$kind $name" in [tTrRdD]' 'cdp_*) echo "$bytes" ;; esac; done)
    cp "$tmp/static" "$tmp/stripped" && strip "$tmp/stripped"
    read -r text data bss _ < <(size "$tmp/stripped" | tail -n 1)
    printf 'static 01_hello, -Os, unused sections removed, stripped: file %d bytes, text %d, data %d; of that cdp %d, the rest is the C library\n' "$(stat -c %s "$tmp/stripped")" "$text" "$data" "$part"
else
    echo 'static 01_hello: not linked, there is no static C library here'
fi
