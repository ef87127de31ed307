# Rules about code, for tests/check_sources.sh. $SRC: the files of src/; $PARTS: those that are no root; $work/code: their
# lines as "FILE:LINE: code"; $work/functions: "LINES FILE NAME"; $work/layout: "RULE FILE:LINE: what".
# shellcheck shell=bash disable=SC2086

# ---- layout ----

rule_heads() {
    # has: files with functions, which say, but for *_api.h, what they know and promise
    awk -v functions="$work/functions" '
        BEGIN { while ((getline line < functions) > 0) { split(line, part, " "); has[part[2]] } }
        FNR == 1 {
            name = FILENAME
            sub(/^src\//, "", name)
            begin = "/* " name " - "
            if (index($0, begin) != 1 || length($0) == length(begin)) print FILENAME ": does not begin with /* " name " - title"
            head = ""
            in_head = FILENAME !~ /_api\.h$/ && FILENAME in has
        }
        in_head { head = head $0 }
        in_head && /\*\// {
            in_head = 0
            if (head !~ /Knows.*Promises/) print FILENAME ": its head comment lacks Knows or Promises"
        }' $PARTS
}
rule_lengths() { wc -l $PARTS | awk '$2 != "total" && $1 > 650 { print $2 ": " $1 " lines" }'; }
layout() { grep -E "^$1 ($2)" "$work/layout"; }
rule_functions() {
    [ "$(wc -l < "$work/functions")" -gt 1000 ] || echo 'too few functions are found'
    layout function 'src/|examples/|tools/'
}
rule_wide() { layout wide ''; }
rule_ternary() { layout ternary ''; }
rule_comma() { layout comma ''; }
rule_optimisation() { layout '(pragma|attribute)' 'src/'; }
rule_blanks() {
    grep -nE '[[:space:]]+$' $HEADERS $SRC $OTHERS Makefile
    grep -nP '\t' $HEADERS $SRC $OTHERS
    grep -nP '[^\x00-\x7f]' $HEADERS $SRC
}
rule_includes() { grep -nE '[^ ] *#include "cdp' $HEADERS; }
# A test that stands in no list is only a warning of the compiler, and never runs.
rule_cases() {
    awk '/^TEST\(/ { n = $0; sub(/^TEST\(/, "", n); sub(/\).*/, "", n); is[FILENAME ": " n] = 1; next }
        match($0, /\{"[a-z_0-9]+"/) { ++listed[FILENAME ": " substr($0, RSTART + 2, RLENGTH - 3)] }
        { for (line = $0; match(line, /[A-Za-z_][A-Za-z_0-9]*/); line = substr(line, RSTART + RLENGTH))
            used[FILENAME ": " substr(line, RSTART, RLENGTH)] = 1 }
        END { for (k in is) {
                if (!used[k]) print k " is in no list of tests"
                if (listed[k] > 1) print k " is in the list of tests twice"
            } }' tests/*/*.[ch]
}
rule_unfinished() { grep -nE 'TODO|FIXME|XXX' $SRC $OTHERS $SCRIPTS README.md CHANGELOG.md | grep -vE 'XXXXXX|^tests/sources/code.sh'; }

# Each of these lines but the last one breaks a rule.
rule_planted_layout() {
    {
        echo "int wide; /*$(printf '%080d' 0 | tr 0 x)xxxxxxxxx */"
        echo 'int cdp__nest(int a) { return a ? 1 : a > 2 ? 3 : (a ? 4 : 5); }'
        echo 'void cdp__join(int a) { if (a) a = 1, a = 2; }'
        echo 'int cdp__pair(int a) { return (a = 1, a); }'
        echo '#pragma GCC optimize("O1")'
        echo 'int cdp__cold(void) __attribute__((cold));'
        echo 'int cdp__long(void) {'
        for _ in {1..59}; do echo '    ;'; done
        echo '}'
        echo 'static int cdp__fine(int a, int b) { int c[] = {a, b}, d = a ? b : c[0]; for (c[0] = 1, d = 2; d; --d) ; return d; }'
    } > "$work/planted/x.h"
    (cd "$work/planted" && sources layout x.h) | diff - <(cat << 'EOS'
wide x.h:1: 104 columns
wide x.h:68: 116 columns
pragma x.h:5: how much to optimise is the user's choice
attribute x.h:6: cold or noinline
ternary x.h:2: a ternary inside another
ternary x.h:2: a ternary inside another
comma x.h:3: two statements joined by a comma
comma x.h:4: two expressions joined by a comma
function x.h:7: cdp__long has 61 lines
EOS
    )
}

# ---- pure files: what they compute depends on their arguments alone ----

pure_files() { awk 'FNR == 1 && /\(pure\)/ { print FILENAME }' $PARTS; }
pure_code() { pure_files | awk -F : 'NR == FNR { pure[$1]; next } $1 in pure' - "$work/code"; }
rule_pure_calls() {
    [ "$(pure_files | wc -l)" -ge 40 ] || echo "only $(pure_files | wc -l) files are marked (pure)"
    pure_files > "$work/pure"
    # defined in files that are neither pure nor in base/ (two of which have a helper or two that is pure), and nowhere
    # else: a name may have a body for each system
    awk 'NR == FNR { pure[$1]; next }
        { if ($2 in pure || $2 ~ "^src/base/" || $3 ~ /^cdp__(dt_min|dt_max|mem_text_number)$/) good[$3]; else bad[$3] = $2 }
        END { for (n in bad) if (!(n in good)) print n, bad[n] }' "$work/pure" "$work/functions" > "$work/impure"
    pure_code | awk 'NR == FNR { of[$1] = $2; next } {
        n = split($0, word, /[^A-Za-z0-9_(]+/)
        for (i = 2; i <= n; ++i) { w = word[i]; while ((p = index(w, "(")) > 0) { f = substr(w, 1, p - 1); if (f in of) print $1 " calls " f " of " of[f]; w = substr(w, p + 1) } }
    }' "$work/impure" -
}
rule_pure_words() {
    pure_code | grep -E 'os->|cdp__os_|now_ns|clock|mutex|cdp_lock|cdp__lock|pthread|socket|sockaddr|alloc\(|\bfree\(|cdp__free|cdp__io|cdp__loop|(^|[^_])errno\b'
}
rule_pure_variables() { pure_code | grep -E ': *(static|CDP__[A-Z]+) ' | grep -vE 'static const|\(|CDP__[A-Z_]+ = '; }

# ---- words that belong into some files only: each filter reads lines "FILE:LINE: code" ----

SYSTEMS='_WIN(32|64)|WIN32|__(linux|gnu_linux|unix|APPLE|MACH|FreeBSD|NetBSD|OpenBSD|DragonFly|sun|CYGWIN|MINGW(32|64)|ANDROID|GLIBC|UCLIBC|BIONIC|EMSCRIPTEN|wasi|HAIKU)_*'
systems() { grep -vE '^src/(os/|mem/os_stacks\.h|base/(config|compiler|basics)\.h)' | grep -E "(^|[^A-Za-z0-9_])($SYSTEMS)([^A-Za-z0-9_]|\$)"; }

FILE_CALLS='open|openat|creat|fopen|freopen|fdopen|tmpfile|mkstemp|opendir|close|fclose|read|write|pread|pwrite|readv|writev|lseek|rename|unlink|remove|flock|lockf|ftruncate|truncate|stat|fstat|lstat|access|mkdir|chmod|fsync|fcntl|dup|dup2'
file_calls() { grep -v '^src/os/' | grep -E "(^|[^A-Za-z0-9_.>])($FILE_CALLS) *[(]" | grep -vE ':[0-9]+: *#'; }

# What a compiler itself refuses under -std=c11 -Wpedantic (empty initialisers, arrays of no elements, arithmetic on
# void *) is left to tests/compile.
EXTENSIONS='(^|[^A-Za-z0-9_])(__attribute__|__declspec|__builtin_|__atomic_|__ATOMIC_|__sync_|_Interlocked|__typeof|(typeof|asm) *[(]|__asm|__thread([^A-Za-z0-9_]|$)|__extension__|__restrict|__alignof|__int128|_MSC_VER|__GNUC__|__clang__|__TINYC__)|[(] *[{]|[[][^]]*[.][.][.]'
extensions() { grep -vE '^src/base/(config|compiler)\.h' | grep -E "$EXTENSIONS"; }

rule_systems() { systems < "$work/code"; }
rule_file_calls() { file_calls < "$work/code"; }
rule_extensions() { extensions < "$work/code"; }
# A dtype is a row of src/dtype/dtype.h. A list, a range or a switch elsewhere is what a new dtype would be missing from.
rule_dtypes() { grep -nE '\[CDP_DTYPE_COUNT\] *=|case CDP_DTYPE_|[<>]=? *CDP_DTYPE_(F|I|U|B)' $PARTS | grep -v '^src/dtype/'; }
rule_planted_words() {
    mkdir -p "$work/planted/src/os" "$work/planted/src/x"
    printf '%s\n' '#ifdef __linux__' 'int a(void) { return open("x", 0); }' > "$work/planted/src/os/x.h"
    printf '%s\n' '#ifdef __NetBSD__' '#if A && defined(_WIN32)' '#elif __GLIBC__ > 1' '#if !defined(__unix__)' '#ifdef __APPLE__' \
        'int fine; /* __linux__ */' 'int my__linux__ = WIN32_OWN;' > "$work/planted/src/x/w.h"
    printf '%s\n' 'int b(const char *p) { return rename(p, "y"); } /* open() */' \
        'int c(void) { return os->files.open_file(0) + cdp__mem_open(1) + t->remove(2) + t.close(3); }' > "$work/planted/src/x/y.h"
    printf '%s\n' 'int a __attribute__((unused));' 'n = __builtin_clz(n);' '__atomic_store_n(&a, 1, 0);' 'typeof (a) b;' 'static __thread int c;' \
        '#ifdef _MSC_VER' 'a = ({ b; });' 'int d[] = {[0 ... 3] = 1};' 'asm("nop");' 'void f(int *__restrict p);' \
        'int fine(const char *text, ...) { return my_thread(a[0], (int){0}) + typeof_a + a ? b : c; } /* __attribute__ */' > "$work/planted/src/x/z.h"
    (
        cd "$work/planted" && sources code src/*/*.h > code
        for filter in systems file_calls extensions; do echo "$filter $($filter < code | cut -d : -f 1,2 | tr '\n' ' ')"; done
    ) | diff - <(
        echo "systems $(printf 'src/x/w.h:%d ' 1 2 3 4 5)"
        echo 'file_calls src/x/y.h:1 '
        echo "extensions $(printf 'src/x/z.h:%d ' 1 2 3 4 5 6 7 8 9 10)"
    )
}

# ---- what is public ----

# "FILE:LINE NAME" of every public function, from the declarations
public_functions() {
    for f in src/*/*_api.h; do
        awk -v file="$f" '/^(CDP_MUST_CHECK )?CDP_API .*\(/ { s = $0; sub(/^.*CDP_API /, "", s); if (match(s, /cdp_[a-z0-9_]+\(/)) print file ":" FNR, substr(s, RSTART, RLENGTH - 1) }' "$f"
    done
}
rule_public_tested() {
    local place name
    [ "$(public_functions | wc -l)" -ge 300 ] || echo "only $(public_functions | wc -l) public functions are found"
    cat tests/*/*.[ch] tests/compile/run.sh | grep -oE '\bcdp_[a-z0-9_]+' | sort -u > "$work/mentioned"
    public_functions | while read -r place name; do
        grep -qxF "$name" "$work/mentioned" || echo "$place: no test mentions $name"
    done
}
rule_public_comments() {
    for f in src/*/*_api.h; do
        awk -v file="$f" '
            function flush() { if (group && !commented) print file ":" group ": " first; group = 0 }
            /^(CDP_MUST_CHECK )?CDP_API / {
                if (!group) { group = FNR; first = $0; commented = before ~ /\*\/[ ]*$/ }
                if ($0 ~ /\/\*/) commented = 1
                next
            }
            { if (group && $0 !~ /^[ ]+/) flush(); before = $0 }
            END { flush() }' "$f"
    done
}
# "FILE:LINE: DECLARATION" of every public function, on one line
public_declarations() {
    for f in src/*/*_api.h; do
        awk -v file="$f" '
            /^(CDP_MUST_CHECK )?CDP_API .*\(/ { declaration = file ":" FNR ":"; open = 1 }
            open { line = $0; open = line !~ /;/; sub(/;.*/, "", line); gsub(/^ +/, "", line); declaration = declaration " " line }
            open == 0 && declaration { print declaration; declaration = "" }' "$f"
    done
}
declared() { [[ $1 =~ cdp_[a-z0-9_]+\( ]] && echo "${BASH_REMATCH[0]%?}"; }
# Their failures stay with the ddp, the fsdp, the group, the work or the call, or say that there is nothing to do.
UNCHECKED='cdp_call_cancel cdp_channel_drop cdp_ctx_end cdp_ddp_ready cdp_ddp_ready_from cdp_ddp_ready_rows cdp_ddp_unused
    cdp_error_record cdp_error_record_from_env cdp_fsdp_done cdp_fsdp_drop cdp_fsdp_no_sync cdp_group_leave cdp_group_status
    cdp_poll cdp_rpc_fail cdp_rpc_reply cdp_rpc_reply_value cdp_store_server_poll cdp_work_cancel cdp_work_error cdp_work_poll
    cdp_work_test'
must_check() { # DECLARATIONS
    grep 'CDP_API cdp_status ' "$1" | while read -r line; do
        case " $(echo $UNCHECKED) ,$line" in
        *" $(declared "$line") "*,*CDP_MUST_CHECK*) echo "${line%% *} is checked, and in UNCHECKED of tests/sources/code.sh" ;;
        *" $(declared "$line") "* | *,*CDP_MUST_CHECK*) ;;
        *) echo "${line%% *} $(declared "$line") lacks CDP_MUST_CHECK" ;;
        esac
    done
}
out_params() { # DECLARATIONS: with "type **out"; each is called by LEAVES_NULL, or by a test of MPI
    grep -E 'cdp_status .*[a-z] \*\*[a-z]+' "$1" | grep -v '^src/mpi/' | while read -r line; do
        grep -qw "$(declared "$line")" "$work/leaves_null" || echo "${line%% *} $(declared "$line"): tests/unit/test_arguments.c has no LEAVES_NULL of it"
    done
}
overloads() { # DECLARATIONS, FILES: in C++ what takes a desc takes it by reference, too
    grep -E 'cdp_status .*const cdp_[a-z_]*desc \*' "$1" | while read -r line; do
        tr '\n' ' ' < "$2" | grep -qE "inline cdp_status $(declared "$line")\([^)]*_desc &" ||
            echo "${line%% *} $(declared "$line") has no overload with a reference in a cxx_api.h"
    done
}
rule_must_check() { public_declarations > "$work/declared"; must_check "$work/declared"; }
rule_out_params() {
    public_declarations > "$work/declared"
    tr '\n' ' ' < tests/unit/test_arguments.c | sed 's/LEAVES_NULL/\n&/g; s/TEST(/\n&/g' | grep '^LEAVES_NULL' > "$work/leaves_null"
    out_params "$work/declared"
}
rule_overloads() {
    public_declarations > "$work/declared"
    cat src/*/cxx_api.h > "$work/overloads"
    overloads "$work/declared" "$work/overloads"
}
rule_planted_public() {
    printf '%s\n' 'a.h:1: CDP_API cdp_status cdp_new_thing(const cdp_new_desc *desc, cdp_new **out)' \
        'a.h:2: CDP_MUST_CHECK CDP_API cdp_status cdp_poll(cdp_group *group)' > "$work/planted/declared"
    echo 'inline cdp_status cdp_old_thing(const cdp_new_desc &desc) {' > "$work/planted/overloads"
    echo 'LEAVES_NULL(cdp_new, cdp_old_thing(&out));' > "$work/leaves_null"
    {
        must_check "$work/planted/declared"
        out_params "$work/planted/declared"
        overloads "$work/planted/declared" "$work/planted/overloads"
    } | cut -d ' ' -f 1,2 | diff - <(printf '%s\n' 'a.h:1: cdp_new_thing' 'a.h:2: is' 'a.h:1: cdp_new_thing:' 'a.h:1: cdp_new_thing')
}
# What comes after a macro would mean the macro, and what comes before it the constant.
rule_macros() {
    sed 's/^[^ ]* //' "$work/code" > "$work/lines"
    grep -oE '^# *define +CDP_[A-Z0-9_]+' "$work/lines" | sed 's/.* //' | sort -u > "$work/macros"
    awk '/(^|typedef )enum / { on = 1 } on { print } /}/ { on = 0 }' "$work/lines" | grep -oE '\bCDP_[A-Z0-9_]+' | sort -u > "$work/constants"
    [ "$(wc -l < "$work/constants")" -ge 100 ] || echo "only $(wc -l < "$work/constants") constants found"
    comm -12 "$work/macros" "$work/constants"
}
