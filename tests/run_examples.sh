#!/usr/bin/env bash
# Runs the examples, which `make programs` has linked below BUILD/test with the library, and the program that opens the
# README, compiled by the line below it; without MORE=1 not optimised. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}/test
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
passed=0 failed=0
optimised=-O0
no_layout=-Wno-misleading-indentation # as STRICT in compile/run.sh
[ -z "${MORE-}" ] || optimised=-O1
slack=${TEST_SCALE:-1} # how many times longer things may take; run_all.sh measures it
good() { passed=$((passed + 1)); echo "ok $1"; }
bad() { failed=$((failed + 1)); echo "not ok $1: $2"; tail -n 40 "$tmp/out" | sed 's/^/    /'; }

# example NAME TEXT COUNT COMMAND...: ends well, and says TEXT (an extended regular expression) on COUNT lines
example() {
    local name=$1 text=$2 count=$3 said rc
    shift 3
    if [ ! -x "$build/cdprun" ] || [ ! -f "$1" ]; then echo "SKIP $name: $1 or cdprun does not exist"; return; fi
    timeout $((120 * slack)) "$build/cdprun" -n 4 "$@" > "$tmp/out" 2>&1 < /dev/null
    rc=$?
    said=$(grep -acE "$text" "$tmp/out")
    if [ $rc != 0 ]; then bad "$name" "exit code $rc"
    elif [ "$said" -lt "$count" ]; then bad "$name" "'$text' on $said lines, expected $count"
    else good "$name"; fi
}

example 01_hello 'rank [0-3] of 4 is here' 4 "$build/01_hello"
example 02_allreduce 'expected 2\.5: right' 4 "$build/02_allreduce"
# With --check the example trains again alone and compares; it ends with 0 only when all of its checks are good.
example 03_train_text . 1 "$build/03_train_text" --steps 12 --layers 1 --width 16 --heads 2 --batch 8 --eval-bytes 512 --sample 20 --check cdp.h
example '03_train_text --hook' 'PASS' 1 "$build/03_train_text" --steps 6 --layers 1 --width 16 --heads 2 --batch 8 --eval-bytes 512 --sample 0 --hook 4 --trace "$tmp/step" cdp.h
example 04_uneven_inputs 'rank ([0-3]) used all of its (40|70|100|130) samples.*: y = 1\.0.* [+] (2\.0|1\.9)' 4 "$build/04_uneven_inputs"
example 05_accumulate '640000 bytes sent one by one, 80000 accumulated; gradients differ by nothing' 4 "$build/05_accumulate"
example 06_compress '  learned' 8 "$build/06_compress"
example 07_trace 'rank [0-3] wrote .*(json|svg)|^\[0\] (wrote .*/step.svg|job: +\{"step":|rank 2 was the last one|no rank was)' 12 "$build/07_trace" "$tmp" 4 2
example 23_slow_network 'DiLoCo: [0-9.]+ bits per byte .* 31 times fewer' 1 "$build/23_slow_network" '' 16 4 cdp_store.h 8
example 24_fsdp 'all checks passed' 1 "$build/24_fsdp" --steps 6 --layers 2 --width 16 cdp.h
example 26_gpt2 'of all differ by [0-9.]+e-|all checks passed' 2 "$build/26_gpt2" --steps 2 --layers 2 --width 16 --heads 2 --context 8
# A GPT divided in several ways, beside one process; then it is stopped and goes on with fewer ranks, and every loss is that of a run
# that was never stopped.
gpt="$build/27_gpt --layers 2 --width 16 --heads 2 --context 16 --batch 8 --steps 9 --print 1"
for how in '--zero 1' '--tensor 2 --shard 1' '--pipeline 2 --bits 16' '--pipeline 2 --tensor 2'; do
    # shellcheck disable=SC2086
    example "27_gpt $how" 'all checks passed' 1 $gpt --check 6 --until 6 $how cdp_store.h
done
# gpt_losses RANKS OPTION...: adds its losses to those in $tmp/losses. launch: options of cdprun
gpt_losses() {
    # shellcheck disable=SC2086
    timeout $((60 * slack)) "$build/cdprun" -n "$1" ${launch-} $gpt "${@:2}" cdp_store.h > "$tmp/said" 2>&1 < /dev/null
    local rc=$?
    cat "$tmp/said" >> "$tmp/out"
    sed -n 's/.*all: step \([0-9]*\) of .*, \([0-9.]*\) bits .*/\1 \2/p' "$tmp/said" >> "$tmp/losses"
    return $rc
}
if [ -x "$build/27_gpt" ] && [ -x "$build/cdprun" ]; then
    rm -f "$tmp/out" "$tmp/losses"
    if gpt_losses 1 && mv "$tmp/losses" "$tmp/whole" && gpt_losses 4 --tensor 2 --pipeline 2 --until 3 --save "$tmp/gpt" && gpt_losses 2 --until 6 --save "$tmp/gpt" &&
        gpt_losses 1 --save "$tmp/gpt" --picture "$tmp/gpt" && grep -q '1 ranks go on at step 6' "$tmp/said" &&
        paste "$tmp/whole" "$tmp/losses" | awk '{ d = $2 - $4; if ($1 != $3 || d * d > 1e-10) exit 1 } END { exit NR != 9 }' &&
        grep -q '</svg>' "$tmp/gpt-step.svg" && grep -q '</svg>' "$tmp/gpt-memory.svg" &&
        ! gpt_losses 1 --seed 2 --save "$tmp/gpt" && grep -q 'has other settings' "$tmp/said"; then
        good '27_gpt on 4, 2 and 1 ranks'
    else bad '27_gpt on 4, 2 and 1 ranks' 'see its output'; fi
    # A rank dies after step 5, and another takes its place: they go on from the checkpoint of step 4.
    rm -f "$tmp/out" "$tmp/losses"
    if launch='--stay --max-restarts 1' gpt_losses 4 --tensor 2 --every 2 --lose 5 --save "$tmp/lost" && awk 'NR == FNR { want[$1] = $2; next } { got[$1] = $2 }
            END { for (i = 1; i <= 9; ++i) { d = want[i] - got[i]; if (!got[i] || d * d > 1e-10) exit 1 } }' "$tmp/whole" "$tmp/losses" &&
        grep -qE '[24] ranks go on at step 4' "$tmp/said" && grep -q 'all checks passed' "$tmp/said"; then
        good '27_gpt loses a rank'
    else bad '27_gpt loses a rank' 'see its output'; fi
else
    echo 'SKIP 27_gpt: it or cdprun does not exist'
fi
example 13_tensor_parallel 'all checks passed' 1 "$build/13_tensor_parallel" --steps 12 --layers 2
# Starts its four workers itself; one kills itself, and all start again.
if [ -x "$build/25_launch" ]; then
    if timeout $((60 * slack)) "$build/25_launch" > "$tmp/out" 2>&1 < /dev/null && [ "$(grep -c 'the ranks add up to 6' "$tmp/out")" = 4 ] &&
        grep -q '^after 1 restarts:' "$tmp/out"; then
        good 25_launch
    else bad 25_launch 'see its output'; fi
else
    echo "SKIP 25_launch: it does not exist"
fi
if [ -x "$build/30_threads" ]; then
    if timeout $((60 * slack)) "$build/30_threads" > "$tmp/out" 2>&1 < /dev/null && grep -q '^right: the same model' "$tmp/out"; then
        good 30_threads
    else bad 30_threads 'see its output'; fi
else
    echo "SKIP 30_threads: it does not exist"
fi
# Four stages, and the same in one process: --steps 3 says nothing about the loss, but all about equal bits.
example 11_pipeline 'all checks passed' 1 "$build/11_pipeline" --steps 3 --width 16 cdp.h
example 12_actors '150 questions, answered in 50 batches of 3: right' 1 "$build/12_actors"
# Starts its four ranks itself and kills one of them.
if [ -x "$build/10_parameter_server" ]; then
    if timeout $((60 * slack)) "$build/10_parameter_server" > "$tmp/out" 2>&1 < /dev/null && grep -q '^rank 3 is lost (PEER_LOST); the others go on' "$tmp/out" &&
        grep -q 'and the model was learned: right' "$tmp/out"; then
        good 10_parameter_server
    else bad 10_parameter_server 'see its output'; fi
else
    echo "SKIP 10_parameter_server: it does not exist"
fi
# Starts its four ranks itself, kills one of them and adds another. 0 lost: where the first attempt to connect took too long,
# the epoch that runs is the one after it.
if [ -x "$build/21_elastic" ]; then
    if timeout $((60 * slack)) "$build/21_elastic" "$tmp/loss.svg" > "$tmp/out" 2>&1 < /dev/null && grep -q ': 3 ranks, [01] lost, 0 joined' "$tmp/out" &&
        grep -q ': 4 ranks, 0 lost, [01] joined' "$tmp/out" && grep -q '^4 of 5 processes ended well: right' "$tmp/out" &&
        [ "$(grep -o '>[34] ranks<' "$tmp/loss.svg" | tr -d '\n')" = '>4 ranks<>3 ranks<>4 ranks<' ] && tail -n 1 "$tmp/loss.svg" | grep -q '</svg>'; then
        good 21_elastic
    else bad 21_elastic 'see its output'; fi
else
    echo "SKIP 21_elastic: it does not exist"
fi
example 14_redistribute 'direct: phases: 1; bytes: 80, the least possible 80, PyTorch.s steps 352' 4 "$build/14_redistribute"
example 15_ring_attention 'all checks passed' 1 "$build/15_ring_attention" 128
example 17_game_loop 'rank [0-3]: [0-9]+ sums, 0 wrong; joined .*: right' 4 "$build/17_game_loop"
example doctor '^.*3 +[0-9]+ +[0-9]+ +[0-9]+ +-$|within a host: [0-9]+ (us|MB a second) in|PASS: all ranks can talk' 5 "$build/doctor"
# One process, not four: a leak and fragmentation are found, and memory_viz draws what 16_memory drew.
if [ -x "$build/16_memory" ] && [ -x "$build/memory_viz" ]; then
    if timeout $((60 * slack)) "$build/16_memory" "$tmp" > "$tmp/out" 2>&1 < /dev/null && grep -q '^the leak is found' "$tmp/out" &&
        grep -q '^and the fragmentation: .*fragmented between blocks in use' "$tmp/out" && "$build/memory_viz" svg "$tmp/memory.pickle" | cmp - "$tmp/memory.svg" > /dev/null &&
        "$build/memory_viz" symbols "$tmp/memory.pickle" "$tmp/named.pickle" && "$build/memory_viz" stats "$tmp/named.pickle" | grep -q 'in 1 blocks: weights'; then
        good '16_memory and memory_viz'
    else bad '16_memory and memory_viz' 'see its output'; fi
else
    echo "SKIP 16_memory: it or memory_viz does not exist"
fi
# Saved by four processes, loaded by three; then the tool looks at it, and at a damaged copy.
if [ -x "$build/22_checkpoint" ] && [ -x "$build/checkpoint" ] && [ -x "$build/cdprun" ]; then
    if timeout $((60 * slack)) "$build/cdprun" -n 4 "$build/22_checkpoint" save "$tmp/run" > "$tmp/out" 2>&1 < /dev/null &&
        timeout $((60 * slack)) "$build/cdprun" -n 3 "$build/22_checkpoint" load "$tmp/run" >> "$tmp/out" 2>&1 < /dev/null &&
        [ "$(grep -cE 'rank [0-2] of 3 loaded step 100, .*: right' "$tmp/out")" = 3 ] && "$build/checkpoint" verify "$tmp/run" >> "$tmp/out" &&
        "$build/checkpoint" list "$tmp/run" | grep -qE '^w +f32\[50,24\] +4800 model-00001-of-00001.safetensors$' && cp -r "$tmp/run" "$tmp/other" &&
        "$build/checkpoint" compare "$tmp/run" "$tmp/other" | grep -q '^0 differences' &&
        printf x | dd of="$tmp/other/step-00000100/model-00001-of-00001.safetensors" bs=1 seek=5000 conv=notrunc 2>> "$tmp/out" &&
        ! "$build/checkpoint" verify "$tmp/other" > "$tmp/said" && grep -q "'w' in .* is damaged" "$tmp/said" &&
        ! "$build/checkpoint" compare "$tmp/run" "$tmp/other" > "$tmp/said" && grep -q '^w: other elements' "$tmp/said" &&
        "$build/checkpoint" --help | grep -q '^usage: ' &&
        timeout $((60 * slack)) "$build/cdprun" -n 4 "$build/22_checkpoint" train "$tmp/shards" 20 > "$tmp/out" 2>&1 < /dev/null &&
        timeout $((60 * slack)) "$build/cdprun" -n 3 "$build/22_checkpoint" train "$tmp/shards" 90 > "$tmp/out" 2>&1 < /dev/null &&
        grep -q '3 ranks go on at step 20$' "$tmp/out" && grep -q 'step 90: loss 0.00184' "$tmp/out" &&
        "$build/checkpoint" list "$tmp/shards" | grep -q '^net.weight.exp_avg_sq '; then
        good '22_checkpoint and the tool'
    else bad '22_checkpoint and the tool' 'see its output'; fi
else
    echo "SKIP 22_checkpoint: it, the tool or cdprun does not exist"
fi
if command -v gfortran > /dev/null && [ -f "$build/libcdp.a" ]; then
    if gcc -O1 -DCDP_LINKED -I. -c fortran/cdp_fortran.c -o "$tmp/cdp_fortran.o" > "$tmp/out" 2>&1 &&
        gfortran -std=f2018 -Wall -Wextra -Werror -O1 -J"$tmp" -c fortran/cdp.f90 -o "$tmp/cdp_f90.o" >> "$tmp/out" 2>&1 &&
        gfortran -O1 -J"$tmp" examples/19_fortran.f90 "$tmp"/cdp_*.o "$build/libcdp.a" -o "$tmp/fortran" -pthread -lm >> "$tmp/out" 2>&1 &&
        gfortran -O1 -g -fcheck=all -J"$tmp" tests/fortran/test_fortran.f90 "$tmp"/cdp_*.o "$build/libcdp.a" -o "$tmp/test_fortran" -pthread -lm >> "$tmp/out" 2>&1; then
        example 19_fortran 'rank [0-3]: means .*: right' 4 "$tmp/fortran"
        example 'each operation from Fortran' '[1-9][0-9]+ passed, 0 failed' 4 "$tmp/test_fortran"
    else
        bad '19_fortran' 'it does not compile'
    fi
else
    echo 'SKIP 19_fortran: there is no gfortran'
fi
# Ranks of one process over a radio of the example's own; each of cdprun's four processes is a world by itself.
example custom_transport 'rank [0-3]: every operation and a DDP step: right' 16 "$build/custom_transport" 5

# Examples on GPUs: on the stand-in of tests/nccl, where no GPU is involved; and with what this machine has, where they say in one
# sentence that there is no GPU, and end with 77.
for e in 08_nccl_allreduce 09_nccl_ddp; do
    [ -f "$build/$e" ] || continue
    if [ -f "$build/nccl/libnccl.so" ]; then
        export LD_LIBRARY_PATH=$build/nccl
        case $LD_LIBRARY_PATH in /*) ;; *) LD_LIBRARY_PATH=$PWD/$LD_LIBRARY_PATH ;; esac
        example "$e on the stand-in for CUDA and NCCL" 'rank [0-3].*: (right|learned)' 4 "$build/$e"
        unset LD_LIBRARY_PATH
    else
        echo "SKIP $e on the stand-in for CUDA and NCCL: $build/nccl was not built"
    fi
    RANK=0 WORLD_SIZE=1 timeout $((60 * slack)) "$build/$e" > "$tmp/out" 2>&1 < /dev/null
    rc=$?
    if [ $rc = 77 ] && grep -q '^rank 0: no GPU to work on: ' "$tmp/out" && [ "$(wc -l < "$tmp/out")" = 1 ]; then good "$e without a GPU"
    elif [ $rc = 0 ] && grep -qE 'right|learned' "$tmp/out"; then good "$e on this machine's GPU"
    else bad "$e without a GPU" "exit code $rc"; fi
done

# The program that opens the README, as the README compiles and runs it.
awk '/^```c$/ {on = 1; next} /^```/ {if (on) exit} on' README.md > "$tmp/fit.c" 2> "$tmp/out"
as_said=-O0 # the last of several levels counts
[ -z "${MORE-}" ] || as_said=
line=$(grep -m 1 -oE '^gcc [^#]*fit\.c[^#]*' README.md)
if [ ! -s "$tmp/fit.c" ] || [ -z "$line" ]; then
    echo "SKIP readme: README.md has no such program"
else
    cp cdp*.h "$tmp" && if (cd "$tmp" && $line $as_said -Wall -Wextra -Werror $no_layout) > "$tmp/out" 2>&1; then
        example readme 'y = 1\.00[0-9] [+] (1\.99|2\.00)[0-9] x' 4 "$tmp/fit"
    else
        bad readme "'$line' does not compile it without warnings"
    fi
fi

# The same program as C++, and the one of docs/PLATFORMS.md.
awk '/^```cpp$/ {on = 1; next} /^```/ {if (on) exit} on' docs/PLATFORMS.md > "$tmp/snippet" 2> "$tmp/out"
if ! command -v g++ > /dev/null; then
    echo 'SKIP readme and PLATFORMS.md as C++: there is no g++'
elif [ ! -s "$tmp/fit.c" ] || [ ! -s "$tmp/snippet" ]; then
    echo 'SKIP readme and PLATFORMS.md as C++: there are no such programs'
else
    { grep '^#' "$tmp/snippet"; printf '#include <cstdio>\nint main() {\n'; grep -v '^#' "$tmp/snippet"; } > "$tmp/snippet.cc"
    echo 'std::printf("rank %u of %u\n", cdp_rank(world), cdp_size(world)); cdp_group_destroy(world); }' >> "$tmp/snippet.cc"
    if g++ -x c++ -std=c++20 $optimised -Wall -Werror $no_layout -I. "$tmp/fit.c" -o "$tmp/fit_cpp" -pthread > "$tmp/out" 2>&1; then
        example 'readme as C++' 'y = 1\.00[0-9] [+] (1\.99|2\.00)[0-9] x' 4 "$tmp/fit_cpp"
    else
        bad 'readme as C++' 'it does not compile without warnings'
    fi
    if g++ -std=c++11 $optimised -Wall -Wextra -Wpedantic -Werror $no_layout -I. "$tmp/snippet.cc" -o "$tmp/snippet" -pthread > "$tmp/out" 2>&1; then
        example 'the C++ of PLATFORMS.md' 'rank [0-3] of 4' 4 "$tmp/snippet"
    else
        bad 'the C++ of PLATFORMS.md' 'it does not compile without warnings'
    fi
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
