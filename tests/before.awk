# before.awk - which part of what a file of src/ includes the compiler may read once for many files: make src-check
#
#   awk -v before='NAME ...' -f tests/before.awk src/*/*.h
#
# NAME is a file of src/ without .h. Of each file that includes one of them, itself or through others, a line: its own name
# and the first NAME of which that is so. What a file finds when NAME stands before it is what it includes, in another
# order. That is the same for its own lines as long as they come after its last #include of a file of src/: where they do
# not, this fails.
FNR == 1 {
    file = FILENAME
    sub(/.*src\//, "", file)
    sub(/\.h$/, "", file)
    folder = file
    sub(/\/.*/, "", folder)
    files[++count] = file
    comment = code = 0
}
/^#include "/ {
    split($0, parts, "\"")
    other = parts[2]
    if (!sub(/^\.\.\//, "", other)) other = folder "/" other
    sub(/\.h$/, "", other)
    includes[file] = includes[file] " " other
    if (code) {
        print FILENAME ":" FNR ": #include behind other lines" > "/dev/stderr"
        bad = 1
    }
    next
}
!code { # the first line that is neither comment nor preprocessor
    line = $0
    if (comment && !sub(/.*\*\//, "", line)) next
    comment = 0
    gsub(/\/\*[^*]*(\*[^\/*][^*]*)*\*\//, "", line)
    comment = sub(/\/\*.*/, "", line)
    code = line ~ /[^ ]/ && line !~ /^#/ || line ~ /^#define/ && line !~ /^#define CDP_SRC_/
}
function reaches(from, to,    k, n, next_) {
    if (from == to) return 1
    if ((from, to) in known) return known[from, to]
    known[from, to] = 0
    n = split(includes[from], next_, " ")
    for (k = 1; k <= n; ++k)
        if (reaches(next_[k], to)) return known[from, to] = 1
    return 0
}
END {
    names = split(before, name, " ")
    for (k = 1; k <= names; ++k) known_name[name[k]]
    for (i = 1; i <= count; ++i) {
        delete known_name[files[i]]
        for (k = 1; k <= names; ++k)
            if (files[i] != name[k] && reaches(files[i], name[k])) {
                print files[i], name[k]
                break
            }
    }
    for (k in known_name) {
        print "there is no src/" k ".h" > "/dev/stderr"
        bad = 1
    }
    exit bad
}
