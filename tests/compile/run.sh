#!/usr/bin/env bash
# Compiles the headers in every way in which somebody may use them, with every warning an error, and looks into the
# objects: a test that compiled nothing fails. JOBS: how many compilers at once. Ends with "N passed, N failed".
#
# COMPILERS: which of gcc, g++, clang, clang++ (default: gcc, all that the other tests need; .ci/run takes the others).
# Objects are made where something is looked up in them or linked, and the rest is parsed, some of it for all headers in one
# file, with all warnings but those that gcc finds on the way to code (a missing return or break, variables without a
# value): an object of another test here has that code, too.
# EVERYTHING=1: also each header alone, to an object; and more defines. Not each combination, but each pair: of header,
# form and compiler (`square`), and of defines that are there or not (`pairs`). A mistake that takes three is not looked for.
# LIST=1: only prints which tests there are.
#
# Each test is a function below; `job` runs one in a process of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
export LC_ALL=C

# gcc looks up each line of these long files again to see how it is indented, which takes it longer than all else: src-check
# tries that on the short files of src/, of the same text.
STRICT='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Werror -Wno-misleading-indentation'
C_ONLY='-Wstrict-prototypes'

macro_of() { # cdp.h -> CDP_IMPL_INCLUDED, cdp_tcp.h -> CDP_TCP_IMPL_INCLUDED
    case $1 in
    cdp.h) echo CDP_IMPL_INCLUDED ;;
    *) basename "$1" .h | tr '[:lower:]' '[:upper:]' | sed 's/$/_IMPL_INCLUDED/' ;;
    esac
}
guard_of() { macro_of "$1" | sed 's/_IMPL_INCLUDED/_INCLUDED/'; }
own_macro_of() { # what implements this header alone
    case $1 in
    cdp.h) echo CDP_CORE_IMPLEMENTATION ;;
    *) basename "$1" .h | tr '[:lower:]' '[:upper:]' | sed 's/$/_IMPLEMENTATION/' ;;
    esac
}

die() { echo "$*"; exit 1; }

# Every header that $1 implements really was implemented.
proof() {
    for h in $1; do printf '#ifndef %s\n#error "%s was not implemented"\n#endif\n' "$(macro_of "$h")" "$h"; done
}
below() { # a header and what it brings along
    case $1 in
    cdp.h) echo cdp.h ;;
    cdp_tcp.h) echo cdp_tcp.h cdp_store.h cdp.h ;;
    cdp_elastic.h) echo cdp_elastic.h cdp_tcp.h cdp_store.h cdp.h ;;
    cdp_launch.h) echo cdp_launch.h cdp_tcp.h cdp_store.h cdp.h ;;
    cdp_checkpoint.h) echo cdp_checkpoint.h cdp_dtensor.h cdp.h ;;
    *) echo "$1" cdp.h ;;
    esac
}

# What an object exports: only cdp_ names, at least 10 of them, none with a double underscore.
exports_only_api() {
    local names bad
    names=$(nm -g --defined-only "$1" | awk '{print $3}')
    bad=$(grep -vE '^cdp_[a-z0-9]' <<< "$names" | grep -v '^main$')
    [ -z "$bad" ] || die "exported without the prefix: $bad"
    bad=$(grep '__' <<< "$names")
    [ -z "$bad" ] || die "private names exported: $bad"
    [ "$(grep -c '^cdp_' <<< "$names")" -ge 10 ] || die "only $(grep -c '^cdp_' <<< "$names") functions exported: was it implemented?"
}
exports_nothing() {
    local names
    names=$(nm -g --defined-only "$1" | awk '{print $3}' | grep -v '^main$')
    [ -z "$names" ] || die "declarations alone export: $names"
}

# A user of the API in the common subset of C and C++.
user_of() {
    printf '#include "%s"\n' "$1"
    cat <<'EOS'
#include <string.h>
int main(void) {
    cdp_group_desc d;
    cdp_group *g;
    float x = 1;
    memset(&d, 0, sizeof d);
    d.world_size = 1;
    if (cdp_group_create(&d, &g) != CDP_OK) return 1;
    if (cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_AVG) != CDP_OK || x != 1) return 2;
    cdp_group_destroy(g);
    return cdp_size(NULL) != 0;
}
EOS
}

PARSE=fsyntax-only # instead of a level of optimisation
parsed() { [ "$1" = $PARSE ]; } # there is no object to look into
compile() { # compiler and flags, source, object
    case $1 in
    *-$PARSE*)
        # shellcheck disable=SC2086
        $1 $warnings -I"$root" "$2" || exit 1
        return
        ;;
    esac
    # shellcheck disable=SC2086
    $1 $warnings -I"$root" -c "$2" -o "$3" || exit 1
    [ -s "$3" ] || die 'no object'
}
set_language() { # compiler, standard
    case $2 in
    *++*) ext=cc warnings=$STRICT ;;
    *) ext=c warnings="$STRICT $C_ONLY" ;;
    esac
}

# ---- the tests; arguments: compiler, standard, optimisation, header, ... ----

t_implementation() { # implementation, and a user, in one file; the program runs
    set_language "$1" "$2"
    { echo '#define CDP_IMPLEMENTATION'; user_of "$4"; proof "$(below "$4")"; } > "one.$ext"
    compile "$1 -std=$2 -$3" "one.$ext" one.o
    ! parsed "$3" || return 0
    exports_only_api one.o
    $1 one.o -o one -pthread -lm && ./one || die "the program returned $?"
}
t_declarations() { # included twice, without any define, in C++ also inside extern "C": nothing comes of it
    set_language "$1" "$2"
    printf '#include "%s"\n#include "%s"\n#ifndef %s\n#error "nothing was included"\n#endif\n#ifdef %s\n#error "this implements"\n#endif\nextern int something;\nint something_to_compile(void);\nint main(void) { return (int)sizeof(cdp_group_desc) == 0; }\n' \
        "$4" "$4" "$(guard_of "$4")" "$(macro_of "$4")" > "decl.$ext"
    compile "$1 -std=$2 -$3" "decl.$ext" decl.o
    exports_nothing decl.o
    case $2 in
    *++*)
        printf 'extern "C" {\n#include "%s"\n}\nint main() { return (int)sizeof(cdp_group_desc) == 0; }\n' "$4" > inside.cc
        compile "$1 -std=$2 -$3" inside.cc inside.o
        ;;
    esac
}
t_later() { # first the declarations, then in the same file the implementation
    set_language "$1" "$2"
    { printf '#include "%s"\n#define CDP_IMPLEMENTATION\n' "$4"; user_of "$4"; proof "$(below "$4")"; } > "later.$ext"
    compile "$1 -std=$2 -$3" "later.$ext" later.o
    ! parsed "$3" || return 0
    exports_only_api later.o
}
t_own_macro() { # each header answers to its own macro
    set_language "$1" "$2"
    { printf '#define %s\n' "$(own_macro_of "$4")"; user_of "$4"; printf '#ifndef %s\n#error "not implemented"\n#endif\n' "$(macro_of "$4")"; } > "own.$ext"
    compile "$1 -std=$2 -$3" "own.$ext" own.o
    ! parsed "$3" || return 0
    exports_only_api own.o
}
t_other_macros() { # files compiled with other macros do not link, and the linker names the difference: cdp_built_with
    local macro said
    printf '#define CDP_IMPLEMENTATION\n#include "cdp.h"\n' > impl.c
    printf '#include "cdp.h"\nint main(void) { return 0; }\n' > user.c
    set_language "$1" "$2"
    compile "$1 -std=$2 -$3" impl.c impl.o
    compile "$1 -std=$2 -$3" user.c user.o
    $1 impl.o user.o -o both -pthread -lm || die 'files with equal macros do not link'
    for macro in CDP_ONLY_F32 CDP_NO_RECORDER CDP_ERROR_TEXT=100 CDP_SLOTS=4; do
        compile "$1 -std=$2 -$3 -D$macro" user.c user.o
        ! said=$($1 impl.o user.o -o both -pthread -lm 2>&1) || die "$macro in one file alone, and it links"
        grep -q "cdp_built_with_.*$(tr = _ <<< "${macro#CDP_}")" <<< "$said" || die "the linker does not name $macro: $said"
    done
}
t_two_files() { # implementation in the language of $1, user in that of $5
    set_language "$1" "$2"
    { printf '#define CDP_IMPLEMENTATION\n#include "%s"\n' "$4"; proof "$(below "$4")"; } > "impl.$ext"
    compile "$1 -std=$2 -$3" "impl.$ext" impl.o
    exports_only_api impl.o
    set_language "$5" "$6"
    user_of "$4" > "user.$ext"
    compile "$5 -std=$6 -$3" "user.$ext" user.o
    exports_nothing user.o
    nm -u user.o | grep -q cdp_group_create || die 'the user does not use it'
    $5 impl.o user.o -o two -pthread -lm && ./two || die "the program returned $?"
}
t_static() { # two files of one program with a private copy each
    set_language "$1" "$2"
    { printf '#define CDP_STATIC\n#define CDP_IMPLEMENTATION\n'; user_of "$4"; proof "$(below "$4")"; } > "a.$ext"
    compile "$1 -std=$2 -$3" "a.$ext" a.o
    ! parsed "$3" || return 0
    objcopy --redefine-sym main=other a.o b.o || die 'no second object' # a second file would say the same
    exports_nothing a.o
    $1 a.o b.o -o both -pthread -lm && ./both || die "the program returned $?"
}
t_all_static_later() { # $4...: the declarations of all headers, then in the same file their implementation, private
    set_language "$1" "$2"
    local h
    {
        for h in "${@:4}"; do echo "#include \"$h\""; done
        echo '#define CDP_IMPLEMENTATION'
        for h in "${@:4}"; do echo "#include \"$h\""; done
        proof "${*:4}"
    } > "all.$ext"
    sed '1i #define CDP_STATIC' "all.$ext" > "all_static.$ext"
    compile "$1 -std=$2 -$3 -Wno-unused-function" "all_static.$ext" all_static.o
    parsed "$3" || exports_nothing all_static.o
}
t_read_once() { # $4...: all headers in one file: each is read as often as that file names it, the first time included
    set_language "$1" "$2"
    local h n
    { for h in "${@:4}" "${@:4}"; do echo "#include \"$h\""; done; echo 'int something_to_compile(void);'; } > "once.$ext"
    $1 -std=$2 -H -fsyntax-only -I"$root" "once.$ext" > opened 2>&1 || die "$(cat opened)"
    for h in "${@:4}"; do
        n=$(grep -c "/$h\$" opened)
        [ "$n" -ge 2 ] && [ "$n" -le 3 ] || die "$h is read $n times, 2 or 3 are right"
    done
}
t_apart() { # $4...: headers that need cdp.h alone, each implemented in a file of its own, beside one for cdp.h
    set_language "$1" "$2"
    local h objects=apart.o
    { printf '#define CDP_CORE_IMPLEMENTATION\n#include "cdp.h"\nint main(void) { return 0; }\n'; } > "apart.$ext"
    compile "$1 -std=$2 -$3" "apart.$ext" apart.o
    for h in "${@:4}"; do
        printf '#define %s\n#include "%s"\n' "$(own_macro_of "$h")" "$h" > "apart_$h.$ext"
        compile "$1 -std=$2 -$3" "apart_$h.$ext" "apart_$h.o"
        objects="$objects apart_$h.o"
    done
    # shellcheck disable=SC2086
    $1 $objects -o apart -pthread -lm
}
t_own_later() { # $4...: all declarations, and then one header is implemented by its own macro, with what it needs
    set_language "$1" "$2"
    local h wanted
    for wanted in "${@:4}"; do
        { for h in "${@:4}"; do echo "#include \"$h\""; done
            printf '#define %s\n#include "%s"\n#ifndef %s\n#error "not implemented"\n#endif\n' "$(own_macro_of "$wanted")" "$wanted" "$(macro_of "$wanted")"; } > "later.$ext"
        compile "$1 -std=$2 -$3" "later.$ext" later.o
    done
}
t_windows_h() { # $4: windows.h before and after the declarations and the implementation
    local order
    set_language "$1" "$2"
    for order in '<windows.h> "H"' '"H" <windows.h>' '<windows.h> IMPLEMENT "H"' 'IMPLEMENT "H" <windows.h>'; do
        { echo '#define WIN32_LEAN_AND_MEAN'
            for order in $order; do
                case $order in IMPLEMENT) echo '#define CDP_IMPLEMENTATION' ;; *) echo "#include ${order//H/$4}" ;; esac
            done
            echo 'HANDLE something_to_compile(void);'; } > "windows.$ext"
        compile "$1 -std=$2 -$3" "windows.$ext" windows.o
    done
}
t_option() { # $5...: CDP_NO_ macros that are independent of each other
    set_language "$1" "$2"
    { printf '#define %s\n' "${@:5}" CDP_IMPLEMENTATION; user_of "$4"; proof "$(below "$4")"; } > "option.$ext"
    compile "$1 -std=$2 -$3" "option.$ext" option.o
    ! parsed "$3" || return 0
    exports_only_api option.o
    local option libs=-pthread used answer=0
    for option in "${@:5}"; do
        case $option in
        # without an os of its own the program makes no group
        CDP_NO_OS) libs= answer=1 ;;
        CDP_NO_THREADS) libs= ;;
        esac
        used=$(used_despite "$option")
        [ -z "$used" ] || die "$option still uses: $used"
    done
    # shellcheck disable=SC2086
    $1 option.o -o option $libs -lm || die 'does not link'
    ./option
    used=$?
    [ $used = $answer ] || die "the program returned $used"
}
used_despite() { # what option.o uses or has although this macro leaves it out
    case $1 in
    CDP_NO_OS) nm -u option.o | grep -E ' (socket|poll|epoll_[a-z0-9]*|pthread_[a-z_]*|clock_gettime|open|close|read|write|getuid|getpid|posix_memalign|malloc|strerror|stderr)(@|$)' ;;
    CDP_ONLY_F32) nm -C option.o | grep -E ' cdp_(hook_create|ddp_clip|_add_f64|_clip_squares)' ;;
    CDP_NO_STDIO) nm -u option.o | grep -E ' (v?f?printf|v?sn?printf|puts|fputs|fopen|fwrite|stderr|stdout|fflush)(@|$)' ;;
    CDP_NO_THREADS) nm -u option.o | grep -E ' (pthread_|sched_yield|__tls_get_addr)' ;;
    CDP_NO_LOG_STRINGS) ;;
    CDP_NO_TENSOR_OPS) nm option.o | grep -E ' cdp_(op|tp|cp|local_map|count|counts)_' ;;
    CDP_NO_FILE_STORE) nm option.o | grep -E ' cdp_(file_store_create|_file_(enter|register))' ;;
    CDP_NO_FILES) nm -u option.o | grep -E ' (flock|ftruncate|pwrite|pread|unlink|rename|fopen)(@|$)' ;;
    *) echo 'an option that nobody knows' ;;
    esac
}
# Parts: each define leaves out its functions, declarations and implementation, and no others.
PARTS='CDP_NO_HOOKS CDP_NO_AVERAGER CDP_NO_TRACE CDP_NO_SAMPLER CDP_NO_DDP
    CDP_NO_SPARSE CDP_NO_JOIN CDP_NO_CLIP CDP_NO_VERIFY
    CDP_NO_CHANNELS CDP_NO_MESSAGES CDP_NO_OBJECTS CDP_NO_HUB CDP_NO_RECORDER CDP_NO_CHAINS CDP_NO_GROUPS CDP_NO_FRAMES
    CDP_NO_HASH_STORE CDP_NO_PREFIX_STORE CDP_NO_CUSTOM_STORE CDP_NO_ENV CDP_NO_SHARED_MEMORY CDP_NO_MAC CDP_FEW_ALGORITHMS
    CDP_FEW_DTYPES CDP_NO_SCAN CDP_NO_TRAINING
    CDP_NO_STORE_CALLS CDP_NO_JOB_KEY CDP_NO_STORE_SERVER CDP_NO_MEETING CDP_NO_REPRODUCIBLE CDP_NO_BACKEND'
part_of() { # define: the functions that it leaves out
    case $1 in
    CDP_NO_DDP) echo ' cdp_(ddp|hook|averager|optimizer|leaves|outer|report)_' ;;
    CDP_NO_HOOKS) echo ' cdp_hook_' ;;
    CDP_NO_AVERAGER) echo ' cdp_(averager|outer)_' ;;
    CDP_NO_TRACE) echo ' cdp_(ddp_trace$|report_)' ;;
    CDP_NO_SAMPLER) echo ' cdp_sampler_' ;;
    CDP_NO_SPARSE) echo ' cdp_(ddp_ready_rows|ddp_rows|_sparse_append|_sparse_exchange)$' ;;
    CDP_NO_JOIN) echo ' cdp_ddp_join$' ;;
    CDP_NO_CLIP) echo ' cdp_ddp_clip$' ;;
    CDP_NO_VERIFY) echo ' cdp_ddp_verify$' ;;
    CDP_NO_CHANNELS) echo ' cdp_channel_' ;;
    CDP_NO_MESSAGES) echo ' cdp_(send|recv|sendrecv|recv_any|probe|monitored_barrier|channel|group_reserve)(_|$)| cdp_batch(_async)?$' ;;
    CDP_NO_OBJECTS) echo ' cdp_((broadcast|scatter|gather|allgather)_bytes|blob_free|collective_lists)$' ;;
    CDP_NO_HUB) echo ' cdp_hub_' ;;
    CDP_NO_CHAINS) echo ' cdp_(work_then|start_after|work_cancel)$' ;;
    CDP_NO_GROUPS) echo ' cdp_group_(new|split)$' ;;
    CDP_NO_FRAMES) echo ' cdp_(work_poll|init_(start|poll|cancel))$' ;;
    CDP_NO_HASH_STORE) echo ' cdp_hash_store_' ;;
    CDP_NO_PREFIX_STORE) echo ' cdp_prefix_store_' ;;
    CDP_NO_CUSTOM_STORE) echo ' cdp_custom_store_' ;;
    CDP_NO_STORE_CALLS) echo ' (cdp_store_(append|wait|check|delete|num_keys|list_keys|queue_push|queue_pop|queue_try_pop|queue_len|barrier|wait_workers|clone|multi_get|multi_set)|cdp__wire_old)$' ;;
    CDP_NO_MEETING) echo ' cdp__(mesh_(parse_endpoint|publish_endpoint)|join_follow_to)$' ;;
    CDP_NO_REPRODUCIBLE) echo ' cdp__fixed_(round|tmp)$' ;;
    CDP_NO_BACKEND) echo ' cdp_group_(set_backend|clear_backend|compare|watch)$' ;;
    CDP_NO_STORE_SERVER) echo ' cdp_(store_server_(create|port|poll|destroy)|_(conn|server|waiter)_[a-z_]+)$' ;;
    CDP_NO_JOB_KEY) echo ' cdp__(auth_open|auth_open_with|auth_pump|client_authenticate)$' ;;
    CDP_NO_ENV) echo ' cdp_(init_from_env|init_url|launch_read|tcp_desc_from_env|tcp_desc_from_url|backend_register)$' ;;
    CDP_NO_SHARED_MEMORY) echo ' cdp__mesh_(expose|map|get|slots)$' ;;
    CDP_NO_MAC) echo ' cdp__(mac_(open|recv|send)|sip)$' ;;
    CDP_FEW_ALGORITHMS) echo ' cdp__(bruck|halving|rabenseifner|direct|once|spread|lanes|leaders|phases|subtree)_round$' ;;
    CDP_FEW_DTYPES) echo ' cdp__(mul_c(32|64)|(widen|narrow)_f8e(4m3|5m2)|set_(i8|i16|u16|u32|u64|c32|c64))$' ;;
    CDP_NO_TRAINING) echo ' cdp_(convert|scaler_(scale|update)|optim_(states|update)|batch_norm_[a-z]+|leaves_[a-z]+|outer_[a-z_]+|report_[a-z]+|optimizer_[a-z_]+|ddp_ready_from|loader_(create|next)|tokens_read)$' ;;
    CDP_NO_SCAN) echo ' cdp_(exscan|scan)(_async)?$' ;;
    CDP_NO_RECORDER) echo ' cdp_(group_records|group_dump|describe)$' ;;
    *) die "no such part: $1" ;;
    esac
}
# Names without what C++ compilers add to those of private functions.
defined_in() { nm -C "$1" | sed 's/(.*//' | grep -E ' [TtDdBbRr] '; }
t_parts() { # $5...: defines, or none
    set_language "$1" "$2"
    local compiler=$1 std=$2 optimisation=$3 header=$4 gone='' part defined
    shift 4
    for part in $PARTS; do
        case " $* " in *" $part "*) gone="$gone|$(part_of $part)" ;; esac
    done
    { for part; do echo "#define $part"; done; echo '#define CDP_IMPLEMENTATION'; user_of "$header"; proof "$(below "$header")"; } > "parts.$ext"
    compile "$compiler -std=$std -$optimisation" "parts.$ext" parts.o
    ! parsed "$optimisation" || return 0
    exports_only_api parts.o
    defined=$(defined_in parts.o)
    for part in $PARTS; do
        if grep -vE " none${gone}" <<< "$defined" | grep -qE "$(part_of $part)"; then continue; fi
        case " $* $part" in
        *' CDP_'*' CDP_'*' CDP_'*) ;; # they may need each other
        *" $part "* | *' CDP_NO_MESSAGES '*CDP_NO_CHANNELS | *' CDP_NO_JOB_KEY '*CDP_NO_MAC) ;;
        *' CDP_NO_DDP '*CDP_NO_HOOKS | *' CDP_NO_DDP '*CDP_NO_AVERAGER | *' CDP_NO_DDP '*CDP_NO_TRACE) ;;
        *' CDP_NO_DDP '*CDP_NO_SPARSE | *' CDP_NO_DDP '*CDP_NO_JOIN | *' CDP_NO_DDP '*CDP_NO_CLIP | *' CDP_NO_DDP '*CDP_NO_VERIFY) ;;
        *) die "what $part leaves out is missing" ;;
        esac
    done
    [ -z "$gone" ] || ! grep -E "${gone#|}" <<< "$defined" || die "this is still there"
    $compiler parts.o -o parts -pthread -lm && ./parts || die "the program returned $?"
}
t_together() { # $4...: all public headers in one file, each of them first once; then implemented in this order
    set_language "$1" "$2"
    local compiler=$1 std=$2 optimisation=$3 h first
    shift 3
    for first; do
        { echo "#include \"$first\""; for h; do echo "#include \"$h\""; done; echo 'int something_to_compile(void);'; } > "all.$ext"
        compile "$compiler -std=$std -$optimisation" "all.$ext" all.o
    done
    { echo '#define CDP_IMPLEMENTATION'; for h; do echo "#include \"$h\""; done; proof "$*"; } > "all_impl.$ext"
    compile "$compiler -std=$std -$optimisation" "all_impl.$ext" all_impl.o
    exports_only_api all_impl.o
}
# The line `arithmetic:` of cdp_describe() names how a build computes; docs/PLATFORMS.md says what follows from it.
t_arithmetic() {
    local flags word n=0
    { other_system; printf '#define CDP_IMPLEMENTATION\n#include "%s"\nconst char *said = CDP__ARITHMETIC;\n' "$4"; } > arithmetic.c
    while read -r word flags; do
        [[ $1 != clang* || $flags != *387* ]] || continue # it has no such flag
        # shellcheck disable=SC2086
        $1 -std=$2 -O2 $flags -I"$root" -E -P arithmetic.c -o said.txt || die "not with $flags"
        n=$((n + 1))
        grep -q "said = .*$word" said.txt || die "$flags: $(grep 'said =' said.txt)"
    done <<'EOS'
rounded
rounded -ffp-contract=fast
fast-math -Ofast
fast-math -ffast-math
fast-math -ffinite-math-only
fused -mfma
x87 -mfpmath=387
EOS
    [ $n -ge 6 ] || die "$n builds"
}
t_no_os() { # $4...: all headers in one file without a system: none of its functions is called
    local used h
    set_language "$1" "$2"
    { printf '#define CDP_NO_OS\n#define CDP_IMPLEMENTATION\n'; for h in "${@:4}"; do echo "#include \"$h\""; done; proof "${*:4}"; } > "no_os.$ext"
    compile "$1 -std=$2 -$3" "no_os.$ext" no_os.o
    exports_only_api no_os.o
    # what remains is of the C library alone: it needs no system
    used=$(nm -u no_os.o | awk '{ print $2 }' | grep -vE '^(mem(chr|cmp|cpy|move|set)|str(chr|cmp|cspn|len|ncmp|nlen|pbrk|rchr|spn|str|tod)|qsort|getenv|abort|__assert_fail|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_|pow|sqrt|fmod|log|exp|floor|ceil)f?$')
    [ -z "$used" ] || die "without a system it still uses: $used"
}
t_no_asserts() {
    set_language "$1" "$2"
    { printf '#define CDP_IMPLEMENTATION\n'; user_of "$4"; proof "$(below "$4")"; } > "ndebug.$ext"
    compile "$1 -std=$2 -$3 -DNDEBUG" "ndebug.$ext" ndebug.o
    $1 -std="$2" -I"$root" -DNDEBUG -E "ndebug.$ext" | grep -q '__assert' && die 'assertions are still there'
    { printf '#define CDP_ASSERT(x) ((void)0)\n#define CDP_IMPLEMENTATION\n'; user_of "$4"; proof "$(below "$4")"; } > "own_assert.$ext"
    compile "$1 -std=$2 -O0" "own_assert.$ext" own_assert.o # an object: where an assertion stood in for a return
    $1 -std="$2" -I"$root" -E "own_assert.$ext" | grep -qE '__assert|[^_]assert *[(]' && die 'CDP_ASSERT is not used everywhere'
    # with assertions these words are there
    $1 -std="$2" -I"$root" -E -UNDEBUG "ndebug.$ext" | grep -q '__assert' || die 'nothing was looked for'
}
t_system_header_first() { # -std=c11 and a system header before ours: the documented #error, and its documented cure
    { printf '#include <stdlib.h>\n#define CDP_IMPLEMENTATION\n'; user_of "$4"; } > first.c
    for more in '' -pthread; do # the second shows some of what is hidden, not all
        if $1 -std=c11 $more -Wfatal-errors -I"$root" -c first.c -o first.o > first.txt 2>&1; then die 'it compiled'; fi
        grep -m 1 'error:' first.txt | grep -q 'a system header came first' || { head -n 5 first.txt; die 'another error'; }
    done
    { printf '#define _DEFAULT_SOURCE 1\n'; cat first.c; } > cured.c
    set_language "$1" c11
    compile "$1 -std=c11 -$3" cured.c cured.o
    ! parsed "$3" || return 0
    exports_only_api cured.o
}
# All headers of a POSIX system that ours include.
other_system() {
    printf '#define _DEFAULT_SOURCE 1\n'
    sed -n 's/^#include <.*/&/p' "$root"/cdp*.h | sort -u | grep -vE 'cuda|nccl|nvrtc|mpi.h|sys.event|winsock|ws2tcp|windows|bcrypt|[^m]intrin|stdatomic'
}
t_platform_macros() { # $4...: names that platforms define as macros: neither declarations nor implementation use one
    set_language "$1" "$2"
    { echo '#include "tests/compile/platform_macros.h"'; printf '#include "%s"\n' "${@:4}"; echo 'int something_to_compile(void);'; } > "macros.$ext"
    warnings="$warnings -Wno-unused-macros"
    # the standard headers first: they may use such names themselves
    other_system > system.h
    sed '1i #include "system.h"' "macros.$ext" > "decl.$ext"
    compile "$1 -std=$2 -$3 -I." "decl.$ext" decl.o
    sed '2a #define CDP_IMPLEMENTATION' "decl.$ext" > "impl.$ext"
    local h
    for h in "${@:4}"; do proof "$(below "$h")"; done >> "impl.$ext"
    compile "$1 -std=$2 -$3 -I." "impl.$ext" impl.o
    ! parsed "$3" || return 0
    exports_only_api impl.o
}
t_extensions() { # what tests/check_sources.sh leaves to the compiler: these flags refuse it
    local code n=0
    while IFS= read -r code; do
        n=$((n + 1))
        echo "$code" > extension.c
        # shellcheck disable=SC2086
        if $1 -std=$2 -$3 $STRICT $C_ONLY -c extension.c -o extension.o > extension.txt 2>&1; then die "it compiled: $code"; fi
        grep -q 'error:' extension.txt || die "no error: $code"
    done <<'EOS'
struct a { int n; char room[0]; };
int a(void); int a(void) { int b[2] = {}; return b[0]; }
void *a(void *p); void *a(void *p) { return p + 1; }
int a(int b); int a(int b) { return b ?: 2; }
int a(void); int a(void) { return ({ 1; }); }
int b[] = {[0 ... 3] = 1};
struct a {};
int a(int n); int a(int n) { switch (n) { case 0 ... 3: return 1; default: return 0; } }
EOS
    [ $n = 8 ] || die "$n snippets"
}
# A compiler of C11 that is neither gcc nor clang: it has atomics of C11, and no other extension.
t_other_c11() {
    set_language "$1" "$2"
    { other_system; echo '#include <stdatomic.h>'; printf '#undef __GNUC__\n#undef __clang__\n#define CDP_IMPLEMENTATION\n'; user_of "$4"; proof "$(below "$4")"; } > "other.$ext"
    warnings="$warnings -Wno-unused-function"
    compile "$1 -std=$2 -$3" "other.$ext" other.o
    exports_only_api other.o
    $1 other.o -o other -pthread -lm && ./other || die "the program returned $?"
    # one sentence where there are neither atomics nor a define that says they are not needed
    sed '/__clang__/a #define CDP_NO_SHARED_MEMORY\n#define __STDC_NO_ATOMICS__ 1' "other.$ext" > "sentence.$ext"
    if $1 -std="$2" -Wfatal-errors -I"$root" -c "sentence.$ext" -o sentence.o > sentence.txt 2>&1; then die 'it compiled without atomics'; fi
    grep -m 1 'error:' sentence.txt | grep -q 'a compiler without atomics of C11' || { head -n 5 sentence.txt; die 'another error'; }
    # nothing but plain accesses where there are neither threads nor shared memory
    sed '1i #define CDP_NO_THREADS' "sentence.$ext" > "plain.$ext"
    compile "$1 -std=$2 -$3" "plain.$ext" plain.o
    $1 plain.o -o plain -lm && ./plain || die "the program returned $?"
}
# clang for MSVC's ABI, with the headers of mingw-w64, which know gcc: see msvc.h. There is no C library to link with.
t_msvc() {
    local h
    set_language "$1" "$2"
    warnings="$warnings -Wno-unused-function"
    [ "$ext" = c ] || warnings="$warnings -Wno-missing-prototypes"
    { echo '#define CDP_IMPLEMENTATION'; for h in "${@:4}"; do echo "#include \"$h\""; done; } > "msvc.$ext"
    compile "$1 -target x86_64-pc-windows-msvc -fgnuc-version=12.2.0 -fms-compatibility -fms-extensions -fms-compatibility-version=19.30 -isystem /usr/share/mingw-w64/include -include $root/tests/compile/msvc.h -std=$2 -$3" "msvc.$ext" msvc.o
    if nm -u msvc.o | grep -E ' (__atomic|__sync|pthread|clock_gettime|gettimeofday|_?_?emutls|usleep|strcasecmp|strdup)'; then die 'MSVC has no such function'; fi
}
# tcc has no atomics: one thread, no shared memory.
TCC='tcc -w -DCDP_NO_THREADS -DCDP_NO_SHARED_MEMORY'
t_tcc_program() { # FILE EXIT-CODE
    $TCC -I"$root" -I"$root/tests" -include "$root/tests/compile/tcc.h" "$root/$4" -o program -lm || die 'it does not compile'
    timeout $((120 * ${TEST_SCALE:-1})) ./program > said.txt 2>&1 || { tail -n 5 said.txt; die "the program returned $?"; }
    echo "INFO $(tail -n 1 said.txt)"
}
t_tcc_example() { # FILE LINES TEXT: two ranks over TCP, by the variables of a launcher
    local r port=$((20000 + $$ % 10000))
    $TCC "$root/$4" -o program -lm || die 'it does not compile'
    for r in 0 1; do
        RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout $((120 * ${TEST_SCALE:-1})) ./program > "said.$r" 2>&1 &
    done
    wait
    shift 4
    [ "$(cat said.0 said.1 | grep -c "$*")" = 2 ] || { cat said.0 said.1; die "not twice: $*"; }
}
t_mixed_versions() { # a header of another version is refused
    mkdir -p mixed && cp "$root"/cdp*.h mixed
    sed -i 's/^#define CDP_VERSION_PATCH .*/#define CDP_VERSION_PATCH 99/' mixed/cdp.h
    printf '#include "%s"\n' "$4" > mixed/m.c
    if $1 -Imixed -c mixed/m.c -o mixed/m.o > mixed.txt 2>&1; then die 'it compiled'; fi
    grep -q 'error:.*version' mixed.txt || { head -n 5 mixed.txt; die 'another error'; }
}
t_example() { # examples are free of warnings; `make examples` compiles them as their first comment says
    (cd "$root" && gcc -$3 "$4" -Wall -Wextra -Werror) || exit 1
    grep -q 'int main' "$root/$4" || die 'no program'
}
# Loops over values of a bucket, one or more in each function: gcc reports the lines of loops that it vectorises.
VECTORS='cdp__widen_bf16 cdp__narrow_bf16 cdp__widen_f16 cdp__narrow_f16 cdp__carry_in cdp__carry_f32 cdp__quantize_range_block
    cdp__quantize_block cdp__dequantize_block cdp__feed_back cdp__feed_left cdp__magnitudes cdp__block_dot cdp__block_add'
t_vectors() {
    printf '#define CDP_IMPLEMENTATION\n#include "%s"\n' "$4" > v.c
    $1 -std=$2 -$3 -I"$root" -c v.c -o v.o -fopt-info-vec-optimized 2> vectors.txt || die 'it does not compile'
    local f span
    for f in $VECTORS; do
        span=$(awk -v f="$f" '/^CDP__[A-Z_]*\(/ && index($0, "(" f ",") {print NR, NR} index($0, "    " f ",") == 1 {print NR - 1, NR} /^CDP__PRIVATE/ {begin = NR; found = 0} begin && index($0, f "(") && NR - begin < 2 {found = 1} /^}/ {if (found) print begin, NR; begin = found = 0}' "$root/$4")
        [ -n "$span" ] || die "there is no $f"
        awk -v span="$span" 'BEGIN {split(span, s, " ")} /cdp\.h:[0-9]+:.*loop vectorized/ {match($0, /cdp\.h:[0-9]+/); n = substr($0, RSTART + 6, RLENGTH - 6) + 0; if (n >= s[1] && n <= s[2]) ok = 1} END {exit !ok}' vectors.txt || die "no loop of $f is vectorised"
    done
}
t_warnings() { # what the compiler said when make compiled it for other tests
    [ -s "$4.o" ] || die 'it is not there'
    [ ! -s "$4.warnings" ] || { cat "$4.warnings"; exit 1; }
}
t_nccl() { # beside cdp_tcp.h, which shares cdp.h with it; without NVIDIA's headers
    set_language "$1" "$2"
    { echo '#define CDP_IMPLEMENTATION'; [ ! -f "$root/cdp_tcp.h" ] || echo '#include "cdp_tcp.h"'; user_of cdp_nccl.h; proof 'cdp.h cdp_nccl.h'; } > "nccl.$ext"
    compile "$1 -std=$2 -$3" "nccl.$ext" nccl.o
    exports_only_api nccl.o
    $1 nccl.o -o nccl -pthread -ldl && ./nccl || die "the program returned $?"
}
t_nccl_link() { # compared with NVIDIA's declarations by the compiler, and linked with the libraries
    set_language "$1" "$2"
    { echo '#define CDP_IMPLEMENTATION'; user_of cdp_nccl.h; proof 'cdp.h cdp_nccl.h'; } > "nccl.$ext"
    compile "$1 -std=$2 -$3 -DCDP_NCCL_LINK -isystem $CUDA/include" "nccl.$ext" nccl.o
    nm -u nccl.o | grep -q ncclCommInitRankConfig || die 'NCCL is not called directly'
    [ -n "$(ls "$CUDA"/lib*/libnccl.so 2> /dev/null)" ] || return 0
    $1 nccl.o -o nccl -L"$(dirname "$(ls "$CUDA"/lib*/libnccl.so | head -n 1)")" -lnccl -lcudart -lnvrtc -pthread -ldl -Wl,--allow-shlib-undefined || die 'it does not link'
}

# ---- runs one test, says how it went in one piece ----

if [ "${1-}" = job ]; then
    shift
    dir=$(mktemp -d "$WORK/XXXXXX") || exit 1
    cd "$dir" || exit 1
    if text=$("$@" 2>&1); then
        info=$(grep '^INFO' <<< "$text")
        printf '%s\n' "ok $*${info:+ (${info#INFO })}"
    else
        printf '%s\n' "not ok $*"$'\n'"$(head -n 12 <<< "$text" | cut -c 1-300 | sed 's/^/    /')"
    fi
    cd / && rm -rf "$dir"
    exit 0
fi

# ---- the matrix ----

# cdp_mpi.h needs an MPI: tests/mpi/run.sh compiles it.
WITHOUT_MPI=$(ls cdp*.h | grep -v '^cdp_mpi.h$')
HEADERS=$(grep -v '^cdp_nccl.h$' <<< "$WITHOUT_MPI")
TOP=cdp.h
for h in cdp_store.h cdp_tcp.h; do [ -f $h ] && TOP=$h; done
jobs_list=$(mktemp) && WORK=$(mktemp -d) && export WORK || exit 1
trap 'rm -rf "$WORK" "$jobs_list"' EXIT
add() { echo "$*" >> "$jobs_list"; }

c_compilers= cxx_compilers= wanted=" ${COMPILERS:-gcc} "
for c in gcc clang g++ clang++; do
    if [[ $wanted != *" $c "* ]]; then
        echo "SKIP everything with $c: only those of COMPILERS:$wanted"
    elif ! command -v $c > /dev/null; then
        echo "SKIP everything with $c: it is not installed"
    elif [[ $c == *++ ]]; then
        cxx_compilers="$cxx_compilers $c"
    else
        c_compilers="$c_compilers $c"
    fi
done

# Optimising takes long and finds other warnings: once for each compiler is enough.
OPTIONS='CDP_NO_STDIO CDP_NO_THREADS CDP_NO_OS'
CHECK=$PARSE SINGLE='CDP_NO_DDP CDP_NO_MESSAGES CDP_NO_RECORDER CDP_NO_JOB_KEY'
everything() { [ -n "${EVERYTHING-}" ]; }
if everything; then OPTIONS="$OPTIONS CDP_NO_LOG_STRINGS CDP_NO_FILE_STORE CDP_NO_FILES CDP_ONLY_F32"
else echo 'SKIP some defines and headers: with EVERYTHING=1, as .ci/run has it'; fi

# Each header with each compiler in one of four forms. Where one compiler has the first, the next one has the second: all
# four compilers together take each header in each form.
square() { # COMPILER
    local i=0 h
    case $1 in g++) i=1 ;; clang) i=2 ;; clang++) i=3 ;; esac
    for h in $HEADERS; do
        case $1-$((i++ % 4)) in
        *++-0) add t_own_macro $1 c++11 O0 "$h" ;;
        *++-1) add t_later $1 c++17 O0 "$h" ;;
        *++-2) add t_static $1 c++20 O0 "$h" ;;
        *++-3) add t_two_files $1 c++17 O0 "$h" gcc c11 ;;
        *-0) add t_own_macro $1 c17 O0 "$h" ;;
        *-1) add t_later $1 gnu11 O0 "$h" ;; # with -std=c11 that is the documented #error, below
        *-2) add t_static $1 c11 O0 "$h" ;;
        *-3) add t_two_files $1 c11 O0 "$h" $1 c11 ;;
        esac
    done
}
# Seven programs: of each two PARTS there is one with both, with the one and with the other; t_implementation has none.
# Every part is in four of them, and no two in the same four: two fours of seven have one in common.
pairs() { # COMPILER LEVEL
    local code=0 n row part with=()
    for part in $PARTS; do
        until
            code=$((code + 1)) n=0
            for row in 0 1 2 3 4 5 6; do n=$((n + (code >> row & 1))); done
            [ $n = 4 ]
        do :; done
        [ $code -lt 128 ] || die 'more than 35 parts: take eight programs'
        for row in 0 1 2 3 4 5 6; do
            # with these three, other parts are not there to be left out: they are alone, in SINGLE
            case $part in CDP_NO_DDP | CDP_NO_MESSAGES | CDP_NO_JOB_KEY) continue ;; esac
            [ $((code >> row & 1)) = 0 ] || with[row]="${with[row]-} $part"
        done
    done
    for row in 0 1 2 3 4 5 6; do add t_parts $1 c11 $2 $TOP ${with[row]}; done
}
c_matrix() { # COMPILER
    local c=$1 std h option part object=$CHECK
    for std in c11 gnu11 c17; do
        for h in $HEADERS; do add t_declarations $c $std O0 "$h"; done
        [ $std = gnu11 ] || add t_implementation $c $std $CHECK $TOP # make compiles it as gnu11
    done
    if [ $c != gcc ] || ! compiled libcdp cdp*.h; then add t_implementation $c c11 O2 $TOP
    else add t_warnings gcc gnu11 O2 "$MADE/libcdp"; fi
    # shellcheck disable=SC2086
    add t_all_static_later $c gnu11 $CHECK $WITHOUT_MPI
    add t_own_macro $c c11 $CHECK $TOP
    for h in cdp.h $TOP; do add t_two_files $c c11 O0 "$h" $c c11; done
    add t_other_macros $c c11 O0 $TOP
    add t_later $c gnu11 O0 $TOP
    add t_static $c c11 O0 $TOP
    if everything; then
        square $c
        [ $c != gcc ] || object=O0
        if [ $c = gcc ]; then option=CDP_NO_STDIO; else option=CDP_NO_THREADS; fi
        for h in $HEADERS; do # every second header without the one, the others without the other
            [ "$h" = $TOP ] || add t_option $c c11 O0 "$h" $option
            if [ $option = CDP_NO_STDIO ]; then option=CDP_NO_THREADS; else option=CDP_NO_STDIO; fi
        done
        pairs $c $object
    fi
    add t_option $c c11 $object cdp_dtensor.h CDP_NO_TENSOR_OPS
    for option in $OPTIONS; do add t_option $c c11 $object $TOP $option; done
    add t_option $c c11 O0 $TOP CDP_NO_STDIO CDP_NO_THREADS CDP_NO_LOG_STRINGS CDP_NO_FILE_STORE CDP_NO_FILES
    add t_option $c c11 O0 $TOP CDP_NO_OS CDP_ONLY_F32
    for part in $SINGLE; do add t_parts $c c11 $object $TOP $part; done
    add t_parts $c c11 O0 $TOP $PARTS
    add t_no_asserts $c gnu11 $CHECK $TOP
    add t_system_header_first $c c11 $CHECK $TOP
    [ "$(uname -m)" != x86_64 ] || add t_arithmetic $c c11 O2 cdp.h
    add t_platform_macros $c c11 $CHECK $WITHOUT_MPI
    add t_extensions $c c11 O0
    add t_other_c11 $c c11 O0 $TOP
    add t_mixed_versions $c c11 O0 $TOP
}
cxx_matrix() { # COMPILER
    local c=$1 std h option part partner
    for std in c++11 c++17 c++20; do
        for h in $HEADERS; do add t_declarations $c $std O0 "$h"; done
        add t_implementation $c $std $CHECK $TOP
    done
    add t_implementation $c c++17 O2 $TOP
    for part in CDP_NO_DDP CDP_NO_HOOKS CDP_NO_MESSAGES CDP_NO_RECORDER; do add t_parts $c c++11 $CHECK $TOP $part; done
    add t_parts $c c++11 O0 $TOP $PARTS
    add t_later $c c++17 $CHECK $TOP
    add t_platform_macros $c c++17 $CHECK $WITHOUT_MPI
    ! everything || square $c
    add t_static $c c++17 O0 $TOP
    for option in CDP_NO_STDIO CDP_NO_THREADS CDP_NO_LOG_STRINGS CDP_NO_OS CDP_ONLY_F32; do add t_option $c c++11 $CHECK $TOP $option; done
    for partner in ${c_compilers:-gcc}; do
        add t_two_files "$partner" c11 O0 $TOP $c c++17
        add t_two_files $c c++17 O0 $TOP "$partner" c11
    done
}
MADE=${BUILD:-build}/test
case $MADE in /*) ;; *) MADE=$root/$MADE ;; esac
compiled() { # NAME FILE...: has make compiled it since these files changed?
    local name=$1
    shift
    [ -f "$MADE/$name.warnings" ] && [ -z "$(find "$@" -newer "$MADE/$name.warnings")" ]
}
for c in $c_compilers; do c_matrix $c; done
for c in $cxx_compilers; do cxx_matrix $c; done
# Public names do not collide, and no header needs another one before it.
# shellcheck disable=SC2086
for c in $c_compilers; do
    if [ $c = gcc ]; then add t_together gcc c11 O0 $WITHOUT_MPI; else add t_together $c c11 O0 "$(tac <<< "$WITHOUT_MPI" | tr '\n' ' ')"; fi
    add t_read_once $c c11 O0 $WITHOUT_MPI
    add t_own_later $c gnu11 $CHECK $WITHOUT_MPI
    add t_apart $c c11 O0 cdp_dtensor.h cdp_pipeline.h cdp_fsdp.h
done
# shellcheck disable=SC2086
for c in $c_compilers; do add t_no_os $c c11 O0 $WITHOUT_MPI; done
for c in $cxx_compilers; do add t_together $c c++11 O0 "$(tac <<< "$WITHOUT_MPI" | tr '\n' ' ')"; done
for c in $cxx_compilers; do add t_read_once $c c++11 O0 $WITHOUT_MPI; done
WINDOWS_CC=x86_64-w64-mingw32-gcc
if command -v $WINDOWS_CC > /dev/null; then add t_windows_h $WINDOWS_CC gnu11 $CHECK $TOP; else echo "SKIP windows.h before and after: $WINDOWS_CC is not installed"; fi
if [[ $c_compilers != *clang* ]]; then
    : # said above
elif [ -f /usr/share/mingw-w64/include/windows.h ]; then
    add t_msvc clang c11 O0 cdp_tcp.h cdp_rpc.h cdp_dtensor.h cdp_pipeline.h cdp_mem.h cdp_fsdp.h cdp_nccl.h cdp_elastic.h cdp_checkpoint.h cdp_launch.h
    ! command -v clang++ > /dev/null || add t_msvc clang++ c++14 O0 cdp_tcp.h
else
    echo "SKIP the parts for MSVC: mingw-w64's headers are not installed"
fi
if [[ $c_compilers != *gcc* ]]; then
    : # it comes with gcc
elif command -v tcc > /dev/null; then
    for t in test_exec test_backend test_group test_hostile; do add t_tcc_program tcc c99 O0 tests/unit/$t.c; done
    add t_tcc_example tcc c99 O0 examples/01_hello.c 'rank [01] of 2 is here'
    add t_tcc_example tcc c99 O0 examples/02_allreduce.c 'expected 1.5: right'
else
    echo 'SKIP everything with tcc: it is not installed'
fi
CUDA=${CUDA_HOME:-/usr/local/cuda}
export CUDA
if [ -f cdp_nccl.h ]; then
    for c in $c_compilers; do
        add t_declarations $c c11 O0 cdp_nccl.h
        add t_own_macro $c c11 $CHECK cdp_nccl.h
        add t_nccl $c c11 O0
    done
    for c in $cxx_compilers; do add t_nccl $c c++11 O0; done
    if [ -f "$CUDA/include/nccl.h" ]; then
        for c in $c_compilers; do add t_nccl_link $c c11 O0; done
        for c in $cxx_compilers; do add t_nccl_link $c c++17 O0; done
    else
        echo "SKIP cdp_nccl.h against NVIDIA's headers and libraries: there is no $CUDA/include/nccl.h"
    fi
fi
gcc_alone() {
    for e in examples/*.c tools/*.c; do
        if compiled "$(basename "$e" .c)" examples/*.[ch] tools/*.[ch]; then add t_warnings gcc gnu17 O0 "$MADE/$(basename "$e" .c)"
        else add t_example gcc gnu17 $PARSE "$e"; fi
    done
    everything || return 0
    add t_implementation gcc c11 Os $TOP
    if [ "$(uname -m)" = x86_64 ] && [ "$(gcc -dumpversion | cut -d. -f1)" -ge 12 ]; then
        add t_vectors gcc gnu11 O2 cdp.h
    else
        echo 'SKIP vectorised loops: before gcc 12, -O2 does not vectorise; elsewhere than on x86_64 it was not looked at'
    fi
    add t_nccl gcc c11 O2
}
case "$c_compilers " in *' gcc '*) gcc_alone ;; esac

[ -z "${LIST-}" ] || { cat "$jobs_list"; exit; }
results=$(xargs -a "$jobs_list" -P "${JOBS:-$(nproc)}" -I{} bash -c "exec bash '$root/tests/compile/run.sh' job {}")
echo "$results"
passed=$(grep -c '^ok ' <<< "$results") failed=$(grep -c '^not ok ' <<< "$results")
missing=$(( $(wc -l < "$jobs_list") - passed - failed ))
[ $missing = 0 ] || echo "$missing tests did not report"
failed=$((failed + missing))
echo "$passed passed, $failed failed"
[ $failed = 0 ]
