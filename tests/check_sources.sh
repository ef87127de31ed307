#!/usr/bin/env bash
# Rules about the sources that no compiler checks. Each rule prints what breaks it. Ends with "N passed, N failed".
# Where a rule is not obeyed yet, tests/known_breaks.txt says how often ("RULE FILE COUNT", the first word of what is
# printed, and the file): one more is a failure, and fewer may be written there. The folder to look at can be given, so that the rules themselves can be tried: check_sources.sh [DIR [known]], where "known" writes
# tests/known_breaks.txt anew.
set -u
cd "${1:-$(dirname "$0")/..}" || exit 1
export LC_ALL=C
tally=$(mktemp -d) || exit 1
trap 'rm -rf "$tally"' EXIT

HEADERS=$(ls cdp*.h)
C_FILES=$(ls examples/*.[ch] examples/*/*.[ch] tools/*.[ch] tests/*.h tests/*/*.h tests/*/*.c 2> /dev/null)
SOURCES="$HEADERS $C_FILES $(ls tests/*.sh tests/*/*.sh Makefile 2> /dev/null)"

rule() { # NAME: reads what breaks it; nothing is good
    cat > "$tally/text"
    if [ -s "$tally/text" ]; then
        echo "not ok $1"
        head -n 20 "$tally/text" | cut -c 1-200 | sed 's/^/    /'
        echo >> "$tally/failed"
    else
        echo "ok $1"
        echo >> "$tally/passed"
    fi
}

known_rule() { # WORD NAME: reads lines "WORD FILE:LINE: what"; compared, file by file, with tests/known_breaks.txt
    local file count allowed
    cat > "$tally/breaks"
    cut -d ' ' -f 2 "$tally/breaks" | cut -d : -f 1 | sort | uniq -c > "$tally/counts"
    awk -v rule="$1" '{ print rule, $2, $1 }' "$tally/counts" >> "$tally/all_known"
    while read -r count file; do
        allowed=$(awk -v rule="$1" -v file="$file" '$1 == rule && $2 == file { print $3 }' tests/known_breaks.txt 2> /dev/null)
        [ "$count" -le "${allowed:-0}" ] || { echo "$count in $file, ${allowed:-0} are known:"; grep -F "$1 $file:" "$tally/breaks"; }
    done < "$tally/counts" > "$tally/new"
    awk -v name="$2" '{ n += $1; ++files } END { if (n) print "known: not obeyed " n " times in " files " files: " name }' "$tally/counts" >> "$tally/known"
    rule "$2$([ ! -s "$tally/counts" ] || echo ' (but where it is known)')" < "$tally/new"
}

# Comments and the insides of strings become blanks; line numbers stay.
code_of() {
    awk '{
        out = ""; n = length($0)
        for (i = 1; i <= n; ++i) {
            c = substr($0, i, 1); d = substr($0, i, 2)
            if (comment) { if (d == "*/") { comment = 0; ++i } }
            else if (string != "") { if (c == "\\") ++i; else if (c == string) { string = ""; out = out c } }
            else if (d == "/*") { comment = 1; ++i }
            else if (d == "//") break
            else { if (c == "\"" || c == "\047") string = c; out = out c }
        }
        string = ""
        print out
    }' "$1"
}

# "file:line: text" for every line of code that lies in a section marked (pure)
pure_code() {
    for h in $HEADERS; do
        paste "$h" <(code_of "$h") | awk -F '\t' -v file="$h" '
            $1 ~ /^\/\* ---- >>/ { pure = $1 ~ /\(pure\)/ }
            pure { print file ":" FNR ": " $2 }'
    done
}
PURE=$(pure_code)
gcc -O1 -D_GNU_SOURCE tests/tools/sources.c -o "$tally/sources" || exit 1
sources() { "$tally/sources" "$@"; }

# The rules themselves: each of these lines but the last ones breaks one of them.
mkdir -p "$tally/planted"
{
    echo '/* ---- >>lower (pure) ---- */'
    echo '#define CDP_X_IMPL_INCLUDED'
    echo "int wide; /*$(printf '%080d' 0 | tr 0 x)xxxxxxxxx */"
    echo 'int cdp__nest(int a) { return a ? 1 : a > 2 ? 3 : (a ? 4 : 5); }'
    echo 'void cdp__join(int a) { if (a) a = 1, a = 2; }'
    echo 'int cdp__pair(int a) { return (a = 1, a); }'
    echo '#pragma GCC optimize("O1")'
    echo 'int cdp__cold(void) __attribute__((cold));'
    echo 'int cdp__long(void) {'
    for i in {1..59}; do echo '    ;'; done
    echo '}'
    echo '/* ---- >>upper: ---- */'
    echo 'int cdp__impure(void) { return cdp__long(); }'
    echo '/* ---- >>lower ---- */'
    echo '/* Knows: a. Promises: b. May use: c. */'
    echo 'static int cdp__fine(int a, int b) { int c[] = {a, b}, d = a ? b : c[0]; for (c[0] = 1, d = 2; d; --d) ; return cdp__max(a ? 1 : 2, b ? 3 : 4) + d; }'
} > "$tally/planted/x.h"
(cd "$tally/planted" && sources layout x.h && sources table x.h) > "$tally/found"
cat > "$tally/expected" <<'EOS'
wide x.h:3: 104 columns
wide x.h:74: 149 columns
pragma x.h:7: how much to optimise is the user's choice
attribute x.h:8: cold or noinline
ternary x.h:4: a ternary inside another
ternary x.h:4: a ternary inside another
comma x.h:5: two statements joined by a comma
comma x.h:6: two expressions joined by a comma
function x.h:9: cdp__long has 61 lines
head x.h:70: upper: no head comment with Knows, Promises and May use
anchor x.h:72: lower is there twice
x.h/lower (pure)
x.h/upper
    lower
x.h/lower
EOS
diff "$tally/expected" "$tally/found" | rule 'the rules find what was planted'
(cd "$tally/planted" && sed 's/^    lower/    lowest/' "$tally/expected" | tail -n 4 > table && sources compare table x.h) > "$tally/found"
printf 'x.h/upper uses %s, not in the code\nx.h/upper uses lower: not in the table\n' 'lowest: in the table' | diff - "$tally/found" | rule 'differences from the table are found in both directions'

{ [ "$(wc -l <<< "$PURE")" -gt 300 ] || echo "only $(wc -l <<< "$PURE") lines in pure sections: are they still marked?"; } | rule 'pure sections are found'

grep -E 'os->|cdp__os_|now_ns|clock|mutex|cdp_lock|cdp__lock|pthread|socket|sockaddr|alloc\(|\bfree\(|cdp__free|cdp__io|cdp__loop|(^|[^_])errno\b' <<< "$PURE" |
    rule 'pure sections know no clock, lock, socket, allocator or operating system'
grep -E ': *(static|CDP__[A-Z]+) ' <<< "$PURE" | grep -vE 'static const|\(|CDP__[A-Z_]+ = ' | rule 'pure sections have no variables of their own'

sources pure $HEADERS | rule 'pure sections call nothing impure'

for pair in 'cdp_tcp.h cdp_nccl.h' 'cdp_nccl.h cdp_tcp.h' 'cdp_nccl.h cdp_store.h' 'cdp_store.h cdp_tcp.h' 'cdp_store.h cdp_nccl.h' 'cdp.h cdp_store.h' 'cdp.h cdp_tcp.h' 'cdp.h cdp_nccl.h' \
    'cdp.h cdp_dtensor.h' 'cdp_store.h cdp_dtensor.h' 'cdp_tcp.h cdp_dtensor.h' 'cdp_nccl.h cdp_dtensor.h' 'cdp_dtensor.h cdp_store.h' 'cdp_dtensor.h cdp_tcp.h' 'cdp_dtensor.h cdp_nccl.h' \
    'cdp.h cdp_rpc.h' 'cdp_store.h cdp_rpc.h' 'cdp_tcp.h cdp_rpc.h' 'cdp_nccl.h cdp_rpc.h' 'cdp_rpc.h cdp_store.h' 'cdp_rpc.h cdp_tcp.h' 'cdp_rpc.h cdp_dtensor.h' \
    'cdp.h cdp_elastic.h' 'cdp_store.h cdp_elastic.h' 'cdp_tcp.h cdp_elastic.h' 'cdp_rpc.h cdp_elastic.h' 'cdp_elastic.h cdp_rpc.h' 'cdp_elastic.h cdp_nccl.h' 'cdp_elastic.h cdp_dtensor.h'; do
    read -r from to <<< "$pair"
    [ -f "$from" ] && code_of "$from" | grep -nE '#[[:space:]]*include' | paste - <(grep -nE '^#[[:space:]]*include' "$from") | grep "\"$to\"" | sed "s/^/$from: /"
done | rule 'headers include downwards only'

# "file:line: text" for every condition outside these sections that asks for a system or its C library
SYSTEMS='_WIN(32|64)|WIN32|__(linux|gnu_linux|unix|APPLE|MACH|FreeBSD|NetBSD|OpenBSD|DragonFly|sun|CYGWIN|MINGW(32|64)|ANDROID|GLIBC|UCLIBC|BIONIC|EMSCRIPTEN|wasi|HAIKU)_*'
systems() { # HEADER ...
    for h in "$@"; do
        paste "$h" <(code_of "$h") | awk -F '\t' -v file="$h" -v words="(^|[^A-Za-z0-9_])($SYSTEMS)([^A-Za-z0-9_]|\$)" '
            $1 ~ /^\/\* ---- >>/ { section = $1; sub(/^\/\* ---- >>/, "", section) }
            $2 ~ words && section !~ /^(os|(compiler|basics|config)[ :])/ { print file ":" FNR ": " $2 }'
    done
}
{
    echo '/* ---- >>os-x ---- */'
    printf '%s\n' '#ifdef __linux__' '/* ---- >>x: not of the system ---- */' '#ifdef __NetBSD__' '#if A && defined(_WIN32)' '#elif __GLIBC__ > 1' \
        '#if !defined(__unix__)' '#ifdef __APPLE__' 'int fine; /* __linux__ */' 'int my__linux__ = WIN32_OWN;'
} > "$tally/planted/w.h"
(cd "$tally/planted" && systems w.h) | cut -d : -f 2 | tr '\n' ' ' | diff - <(printf '4 5 6 7 8 ') | rule 'questions for a system that were planted are found'
systems $HEADERS | rule 'only config, compiler, basics and the os sections ask which system this is'

# "file:line: text" for every line of code outside the os sections that calls the system for a file
FILE_CALLS='open|openat|creat|fopen|freopen|fdopen|tmpfile|mkstemp|opendir|close|fclose|read|write|pread|pwrite|readv|writev|lseek|rename|unlink|remove|flock|lockf|ftruncate|truncate|stat|fstat|lstat|access|mkdir|chmod|fsync|fcntl|dup|dup2'
file_calls() { # HEADER ...
    for h in "$@"; do
        paste "$h" <(code_of "$h") | awk -F '\t' -v file="$h" -v calls="(^|[^A-Za-z0-9_.>])($FILE_CALLS) *[(]" '
            $1 ~ /^\/\* ---- >>/ { os = $1 ~ /^\/\* ---- >>os/ }
            !os && $2 ~ calls && $2 !~ /^ *#/ { print file ":" FNR ": " $2 }'
    done
}
{
    echo '/* ---- >>os-x ---- */'
    echo 'int a(void) { return open("x", 0); }'
    echo '/* ---- >>x ---- */'
    echo 'int b(const char *p) { return rename(p, "y"); } /* open() */'
    echo 'int c(void) { return os->files.open_file(0) + cdp__mem_open(1) + t->remove(2) + t.close(3); }'
} > "$tally/planted/y.h"
(cd "$tally/planted" && file_calls y.h) | diff - <(echo 'y.h:4: int b(const char *p) { return rename(p, ""); } ') | rule 'calls for files that were planted are found'
file_calls $HEADERS | rule 'only the os sections call the system for a file'

# "file:line: text" for every line of code that needs a certain compiler. What a compiler itself refuses under -std=c11
# -Wpedantic (empty initialisers, arrays of no elements, arithmetic on void *) is left to tests/compile.
EXTENSIONS='(^|[^A-Za-z0-9_])(__attribute__|__declspec|__builtin_|__atomic_|__ATOMIC_|__sync_|_Interlocked|__typeof|(typeof|asm) *[(]|__asm|__thread([^A-Za-z0-9_]|$)|__extension__|__restrict|__alignof|__int128|_MSC_VER|__GNUC__|__clang__|__TINYC__)|[(] *[{]|[[][^]]*[.][.][.]'
extensions() { # HEADER ...
    for h in "$@"; do
        paste "$h" <(code_of "$h") | awk -F '\t' -v file="$h" -v words="$EXTENSIONS" '
            $1 ~ /^\/\* ---- >>/ { section = $1; sub(/^\/\* ---- >>/, "", section); allowed = file == "cdp.h" && section ~ /^(config|compiler)[ :]/ }
            !allowed && $2 ~ words { print file ":" FNR ": " $2 }'
    done
}
{
    echo '/* ---- >>compiler: of another header ---- */'
    printf '%s\n' 'int a __attribute__((unused));' 'n = __builtin_clz(n);' '__atomic_store_n(&a, 1, 0);' 'typeof (a) b;' 'static __thread int c;' \
        '#ifdef _MSC_VER' 'a = ({ b; });' 'int d[] = {[0 ... 3] = 1};' 'asm("nop");' 'void f(int *__restrict p);'
    echo 'int fine(const char *text, ...) { return my_thread(a[0], (int){0}) + typeof_a + a ? b : c; } /* __attribute__ */'
} > "$tally/planted/z.h"
(cd "$tally/planted" && extensions z.h) | cut -d : -f 2 | tr '\n' ' ' | diff - <(printf '2 3 4 5 6 7 8 9 10 11 ') | rule 'extensions of compilers that were planted are found'
extensions $HEADERS | rule 'only config and compiler of cdp.h know one compiler from another'

# The names of sections stand in the CONTENTS of the first comment, in the order of the file.
for h in $HEADERS; do
    # the first name of a line may be a word of its own; names that hold a comma are written with one
    contents=$(awk '/CONTENTS/ && !seen { on = seen = 1; next } on && /^[ ]*$/ { exit } on { $1 = $1; printf "%s, ", $0 }' "$h" | tr -s ';:()' ',,,,')
    [ -n "$contents" ] || echo "$h: no CONTENTS"
    contents=" $contents"
    while read -r file name; do
        [ "$name" != c++ ] || continue
        rest=$(awk -v all="$contents" -v name="$name" 'BEGIN {
            at = 1
            while ((n = index(substr(all, at), name)) > 0) {
                at += n - 1
                if (substr(all, at - 1, 1) ~ /[ ,]/ && substr(all, at + length(name), 1) ~ /[ ,]/) { print substr(all, at + length(name)); exit }
                at += length(name)
            }
        }')
        if [ -n "$rest" ]; then contents=$rest; else echo "$file: section $name is not in CONTENTS, or not in this order"; fi
    done < <(sources contents "$h")
done | rule 'sections stand in the order of CONTENTS'

[ ! -f tests/bench/peers/chart.sh ] || bash tests/bench/peers/chart.sh --check 2>&1 | rule 'the chart of the README shows the recorded figures'
# scenarios FILE REASONS: lines "SCENARIO ... = TEST ..." or "SCENARIO ... - REASON", of tests that are in standard input
scenarios() {
    awk -v reasons="$2" 'NR == FNR { test[$1] = 1; next }
        /^#/ || /^$/ { next }
        / - / { if ($0 !~ "^[a-z_0-9 ]+ - (" reasons ")") print FILENAME ":" FNR ": not a reason: " $0; right = "-" }
        !/ - / { right = "="; if ($0 !~ /^[a-z_0-9 ]+ = [-a-z_0-9: ]+$/) print FILENAME ":" FNR ": neither tests nor a reason: " $0 }
        { tests = 0
            for (i = 1; i <= NF && $i != "-"; ++i) {
                if ($i == "=") tests = 1
                else if (tests && !($i in test)) print FILENAME ":" FNR ": there is no test " $i
                else if (!tests && seen[$i]++) print FILENAME ":" FNR ": a second time: " $i
            }
            ++lines }
        END { if (lines < 100) print "only " lines + 0 " scenarios" }' - "$1"
}
if [ -f tests/unit/rpc_scenarios.txt ]; then
    # names of tests, and of programs that begin with "sim:", in all of which something is looked for
    { grep -ho '^TEST([a-z_0-9]*' tests/unit/test_rpc*.c | cut -c 6-; ls tests/sim/rpc_*.c | sed 's/.*\/\(.*\)[.]c/sim:\1/'; } |
        scenarios tests/unit/rpc_scenarios.txt 'python|torchscript|devices|not here'
fi | rule 'scenarios of remote calls have the tests that rpc_scenarios.txt names'
# "FILE: words = evidence ...": the words stand in FILE, and what shows that they are true exists.
claims() { # FILE of claims
    local file words rest evidence text what
    declare -A texts=()
    { grep -ho '^TEST([a-z_0-9]*' tests/*/*.c | cut -c 6-; ls tests/sim/scripts/*.txt | sed 's/.*\/\(.*\)[.]txt/script:\1/'; grep -oE '^[a-z-]+:' Makefile | sed 's/\(.*\):/make:\1/'; } 2> /dev/null | sort -u > "$tally/evidence"
    while IFS= read -r rest; do
        case $rest in '' | '#'*) continue ;; esac
        file=${rest%%: *} words=${rest#*: } evidence=${words##* = } words=${words% = *}
        text=${texts[$file]-}
        [ -n "$text" ] || text=$(tr -s ' \n' '  ' < "$file")
        texts[$file]=$text
        case $text in *"$words"*) ;; *) echo "$file does not say: $words" ;; esac
        for what in $evidence; do
            case $what in file:*) [ -f "${what#file:}" ] ;; *) grep -qxF "$what" "$tally/evidence" ;; esac || echo "$file: \"$words\" is shown by $what, which does not exist"
        done
    done < "$1"
}
if [ -f tests/claims.txt ]; then
    printf '%s\n' 'README.md: a sentence that it lacks = claims_are_free file:none' > "$tally/false_claims"
    claims "$tally/false_claims" > "$tally/found"
    { [ "$(wc -l < "$tally/found")" = 3 ] || cat "$tally/found"; } | rule 'claims that were made up are found'
    { [ "$(grep -c ' = ' tests/claims.txt)" -ge 70 ] || echo 'fewer than 70 claims'; claims tests/claims.txt; } | rule 'what README and heads of headers claim is shown by what tests/claims.txt names'
fi

# Systems that `make platforms` compiles for have a row in the table of docs/PLATFORMS.md, and no others have one.
platforms() { # SCRIPT PAGE: one line "SYSTEM PROCESSOR" for each, compared
    grep -oE '[a-z0-9_]+-(linux-musl[a-z]*|macos|freebsd|netbsd|openbsd|windows-gnu)\b' "$1" |
        sed 's/^arm-/armv7-/; s/^powerpc/ppc/; s/^x86_64/x86-64/; s/-linux.*/ Linux/; s/-macos/ macOS/; s/-freebsd/ FreeBSD/; s/-netbsd/ NetBSD/; s/-openbsd/ OpenBSD/
            s/-windows-gnu/ Windows/; s/\(.*\) \(.*\)/\2 \1/' | sort -u > "$tally/compiled"
    awk -F '|' '/^\| system, processor/ { on = 1 } on && /^$/ { exit }
        on && $3 ~ /zig cc/ && $4 ~ /make platforms/ && $2 !~ /beside/ {
            count = split($2, word, /[ ,]+/); systems = 0
            for (i = 1; i <= count; ++i)
                if (word[i] ~ /^(Linux|Windows|.*OS|.*BSD)$/) of[++systems] = word[i]
                else if (word[i] != "") for (k = 1; k <= systems; ++k) print of[k], word[i]
        }' "$2" | sort -u > "$tally/said"
    [ "$(wc -l < "$tally/compiled")" -ge 12 ] || echo "$1: only $(wc -l < "$tally/compiled") targets"
    comm -23 "$tally/compiled" "$tally/said" | sed "s|.*|$2: no row for &, which $1 compiles for|"
    comm -13 "$tally/compiled" "$tally/said" | sed "s|.*|$2: a row for &, which $1 does not compile for|"
}
if [ -f tests/platforms.sh ]; then
    sed 's/^| macOS x86-64, /| macOS sparc, /; s/riscv64/riscv32/' docs/PLATFORMS.md > "$tally/false_platforms.md"
    { [ "$(platforms tests/platforms.sh "$tally/false_platforms.md" | wc -l)" = 4 ] || platforms tests/platforms.sh "$tally/false_platforms.md"; } |
        rule 'systems that were made up are found in the table of platforms'
    platforms tests/platforms.sh docs/PLATFORMS.md | rule 'the table of platforms has the systems that make platforms compiles for'
fi

# A dtype is a row of src/dtype/dtype.h. A list, a range or a switch elsewhere is what a new dtype would be missing from.
if [ -d src/dtype ]; then
    grep -nE '\[CDP_DTYPE_COUNT\] *=|case CDP_DTYPE_|[<>]=? *CDP_DTYPE_(F|I|U|B)' src/*/*.h | grep -v '^src/dtype/'
fi | rule 'only src/dtype lists dtypes, or compares their order'

# Numbers of the README that follow from the headers.
constants() { awk -v from="typedef enum $1 {" 'index($0, from) { on = 1; next } on && /^}/ { exit } on' cdp.h | grep -oE '^    CDP_[A-Z0-9_]+' | grep -cvE '_(DEFAULT|COUNT)$'; }
if [ -f README.md ] && [ -f cdp.h ]; then
    grep -qF "$(constants cdp_dtype) element types, $(constants cdp_reduce_op) reductions" README.md || echo "README.md: there are $(constants cdp_dtype) element types and $(constants cdp_reduce_op) reductions"
fi | rule 'the README counts element types and reductions as cdp.h has them'

if [ -f tests/unit/elastic_scenarios.txt ]; then
    faults() { sed -n '/fault_names\[F_KINDS\] = {/,/};/p' "tests/sim/elastic_$1.c" | grep -o '"[a-z_]*"' | tr -d '"'; }
    {
        grep -ho '^TEST([a-z_0-9]*' tests/unit/test_*.c tests/procs/test_*.c tests/nccl/test_*.c | cut -c 6-
        ls tests/sim/elastic*.c | sed 's/.*\/\(.*\)[.]c/sim:\1/'
        ls tests/procs/test_*.sh | sed 's/.*test_\(.*\)[.]sh/script:\1/'
        ls tests/bench/*.c | sed 's/.*\/\(.*\)[.]c/bench:\1/'
        faults worlds | sed 's/^/world:/'
        faults shrink | sed 's/^/shrink:/'
        sed -n 's/^ *PLANT_\([A-Z_]*\).*/plant:\L\1/p' tests/sim/elastic_plants.h
        sed -n 's/^\([a-z_]*\)() {.*/nodes:\1/p' tests/procs/test_elastic_nodes.sh
        grep -oE '(^|; *)(check|has) "?[a-z][-a-z0-9]*' tests/procs/test_cdprun.sh | sed 's/.*[ "]/cdprun:/'
        sed -n 's/^usage \([-a-z0-9]*\).*/cdprun:usage-\1/p' tests/procs/test_cdprun.sh
    } | scenarios tests/unit/elastic_scenarios.txt 'not here: '
fi | rule 'scenarios of elastic jobs have the tests that elastic_scenarios.txt names'
awk 'END { if (NR > 150) print "README.md has " NR " lines" }' README.md 2> /dev/null | rule 'the README has at most 150 lines'

version=$(awk '/^#define CDP_VERSION_(MAJOR|MINOR|PATCH) / { v = v (v == "" ? "" : ".") $3 } END { print v }' cdp.h)
number=$(awk -F . '{ print $1 * 10000 + $2 * 100 + $3 }' <<< "$version")
{
    for h in $HEADERS; do
        head -n 1 "$h" | grep -q "v$version" || echo "$h: its first line does not say v$version"
        [ "$h" = cdp.h ] || grep -qE "^#define $(basename "$h" .h | tr '[:lower:]' '[:upper:]')_VERSION $number\b" "$h" || echo "$h: its version macro is not $number"
        [ "$h" = cdp.h ] || grep -qE '^#if CDP_[A-Z]+_VERSION != CDP_VERSION' "$h" || echo "$h: does not compare its version with that of cdp.h"
    done
    grep -qF "## $version" CHANGELOG.md || echo "CHANGELOG.md: nothing about $version"
    [ ! -f tools/cdprun.c ] || grep -qE "^#define VERSION +\"$version\"" tools/cdprun.c || echo "tools/cdprun.c: VERSION is not $version"
} | rule 'one version everywhere'

grep -nE 'TODO|FIXME|XXX' $SOURCES README.md CHANGELOG.md 2> /dev/null | grep -vE 'XXXXXX|^tests/check_sources.sh' | rule 'nothing is left to be done'
grep -nE '[[:space:]]+$' $HEADERS $C_FILES Makefile | rule 'no blanks at ends of lines'
grep -nP '\t' $HEADERS $C_FILES 2> /dev/null | cut -c 1-100 | rule 'no tabs'
grep -nP '[^\x00-\x7f]' $HEADERS 2> /dev/null | cut -c 1-100 | rule 'headers are plain ASCII'
sources layout $HEADERS $C_FILES > "$tally/layout"
{ [ "$(sources functions $HEADERS | wc -l)" -gt 1000 ] || echo 'too few functions are found'; } | rule 'functions are found'
of_headers() { grep -E "^$1 cdp[a-z0-9_]*[.]h:" "$tally/layout"; }
grep '^wide ' "$tally/layout" | known_rule wide 'lines have at most 100 columns'
grep '^ternary ' "$tally/layout" | known_rule ternary 'no ternary inside another'
grep '^comma ' "$tally/layout" | known_rule comma 'no statements joined by commas'
{ of_headers pragma; of_headers attribute; } | rule 'no pragmas or attributes of optimisation but two macros'
copies=$(cat $HEADERS | grep -cE '^CDP_[A-Z_]* CDP__(ONE_COPY|COLD) ')
{ [ "$copies" -gt 0 ] && [ "$copies" -le 180 ] || echo "CDP__ONE_COPY and CDP__COLD are there $copies times"; } | rule 'at most 180 functions are cold or kept out of line'
of_headers function | known_rule function 'functions of headers have at most 60 lines'
grep -E '^function (examples|tools)/' "$tally/layout" | known_rule function 'functions of examples and tools have at most 60 lines'
sources functions $HEADERS | sort -n | awk '{ lines[NR] = $1 } END { print "INFO " NR " functions in headers, lines: median " lines[int((NR + 1) / 2)] ", 90 in 100 at most " lines[int(NR * 0.9)] ", longest " lines[NR] }'
of_headers anchor | rule 'names of sections are unique in their header'
of_headers head | known_rule head 'sections have a head comment: Knows, Promises, May use'
of_headers section | known_rule section 'sections have at most 550 lines'
sources compare tests/sections.txt $HEADERS | rule 'sections use what tests/sections.txt says (make sections writes it anew)'

# "file:line name" of every public function, from the declarations
public_functions() {
    for h in $HEADERS; do
        awk -v file="$h" '/_IMPL_INCLUDED\)/ { exit } /^(CDP_MUST_CHECK )?CDP_API .*\(/ { s = $0; sub(/^.*CDP_API /, "", s); if (match(s, /cdp_[a-z0-9_]+\(/)) print file ":" FNR, substr(s, RSTART, RLENGTH - 1) }' "$h"
    done
}
PUBLIC=$(public_functions)
{ [ "$(wc -l <<< "$PUBLIC")" -ge 40 ] || echo "only $(wc -l <<< "$PUBLIC") found"; } | rule 'public functions are found'
while read -r place name; do
    grep -qwF "$name" tests/*/*.c tests/*/*.h || echo "$place: no test mentions $name"
done <<< "$PUBLIC" | rule 'every public function is called by a test'

for h in $HEADERS; do
    awk -v file="$h" '
        function flush() { if (group && !commented) print file ":" group ": " first; group = 0 }
        /_IMPL_INCLUDED\)/ { exit }
        /^(CDP_MUST_CHECK )?CDP_API / {
            if (!group) { group = FNR; first = $0; commented = before ~ /\*\/[ ]*$/ }
            if ($0 ~ /\/\*/) commented = 1
            next
        }
        { if (group && $0 !~ /^[ ]+/) flush(); before = $0 }
        END { flush() }' "$h"
done | rule 'every public function, or its group, has a comment'

# What the manuals draw of the way of an operation, or of a failure: each function exists, in the section that is named,
# and the walks are short. tests/walk.sh compares the drawings with a program that runs.
drawn() { # HEADING: "INDENT NAME" for each function that is drawn below it in cdp.h
    awk -v heading="$1" '
        /^#if/ { exit }
        index($0, heading) { on = 1; next }
        on && /^    [A-Z][A-Z ]+[A-Z(]/ { exit }
        on && /^ +(cdp_[a-z_]+|transport[.]send)(  |$)/ { match($0, /^ +/); print RLENGTH, $1 }' cdp.h
}
if [ -f cdp.h ]; then
    sources functions $HEADERS | awk '{ print $3 }' | sort -u > "$tally/functions"
    for h in $HEADERS; do
        sed -n '1,/^#if/p' "$h" | grep -oE '\bcdp__[a-z0-9_]+' | sort -u | comm -23 - "$tally/functions" | sed "s/^/$h: there is no /"
    done
    n=$(drawn 'HOW AN ALLREDUCE BECOMES BYTES' | awk '$1 != before { ++n } { before = $1 } END { print n + 0 }')
    [ "$n" -ge 3 ] && [ "$n" -le 7 ] || echo "cdp.h: an allreduce becomes bytes in $n calls; 3 to 7 are wanted"
    drawn 'HOW A FAILURE REACHES ALL RANKS' | awk '{ print $2 }' | sort -u > "$tally/drawn"
    n=$(wc -l < "$tally/drawn")
    [ "$n" -ge 3 ] && [ "$n" -le 10 ] || echo "cdp.h: a failure reaches all ranks by $n functions; 3 to 10 are wanted"
    n=$(sources owners cdp.h | sort | join - "$tally/drawn" | awk '{ $1 = ""; print }' | sort -u | wc -l)
    [ "$n" -ge 1 ] && [ "$n" -le 3 ] || echo "cdp.h: a failure reaches all ranks through $n sections; 1 to 3 are wanted"
fi | rule 'walks of the manuals are short, and lead through functions that exist'

{ # what comes after a macro would mean the macro, and what comes before it the constant
    for h in $HEADERS; do code_of "$h"; done | grep -oE '^# *define +CDP_[A-Z0-9_]+' | sed 's/.* //' | sort -u > "$tally/macros"
    for h in $HEADERS; do code_of "$h"; done | awk '/(^|typedef )enum / { on = 1 } on { print } /}/ { on = 0 }' | grep -oE '\bCDP_[A-Z0-9_]+' | sort -u > "$tally/constants"
    [ "$(wc -l < "$tally/constants")" -ge 100 ] || echo "only $(wc -l < "$tally/constants") constants found"
    comm -12 "$tally/macros" "$tally/constants"
} | rule 'no macro has the name of a constant'

# A definition above its uses keeps the sections in layers; tests/sections.txt says which do otherwise.
awk '/^[^ #]/ { section = $0; file = $0; sub(/\/.*/, "", file) } /\(below\)$/ { $1 = $1; print "below " file ": " section " uses " $0 }' tests/sections.txt |
    known_rule below 'sections call upwards'

touch "$tally/passed" "$tally/failed" "$tally/known"
cat "$tally/known"
[ "${2-}" != known ] || cp "$tally/all_known" tests/known_breaks.txt
echo "$(wc -l < "$tally/passed") passed, $(wc -l < "$tally/failed") failed"
[ ! -s "$tally/failed" ]
