# Makes the input of chart.awk: from the table of report.awk, or (recorded=1) from the tables of FIGURES.md.
function trim(s) { gsub(/^ +| +$/, "", s); return s }
function size_name(s) { sub(/ to 16 B/, " B", s); sub(/ B$/, "", s); sub(/ KiB/, "K", s); sub(/ MiB/, "M", s); return s }
function row(panel, from,   i) {
    for (i = from; i <= NF - 1; ++i)
        if (trim($i) != "" && names[i] != "") print panel "|" ranks "|" op "|" names[i] "|" trim($i)
}
BEGIN { FS = "|"; TCP = "1|TCP on loopback"; GROUP = "2|Shared memory, from cdp_group_alloc"; ANY = "3|Shared memory, any other memory" }
recorded && /^## / { place = $0 ~ /Ranks of one machine/ ? "memory" : $0 ~ /Over TCP/ ? "tcp" : ""; ranks = 0 }
recorded && place != "" && /^\| +\| 4 to 16 B/ { for (i = 3; i < NF; ++i) names[i] = size_name(trim($i)); ranks = 2 }
recorded && place != "" && ranks && /^\| (allreduce|reduce_scatter|allgather|broadcast|alltoall|any memory)/ {
    if ($2 ~ /4 ranks/) ranks = 4
    if ($2 !~ /any memory/) { op = trim($2); sub(/,.*/, "", op) }
    row(place == "tcp" ? TCP : $2 ~ /any memory/ ? ANY : GROUP, 3)
}
!recorded && /^(allreduce|reduce_scatter|allgather|broadcast|alltoall) / {
    split($1, f, " ")
    size = size_name(f[3] " " f[4])
    if (f[1] == "reduce_scatter" && f[3] < 16) size = "4"
    n = split($3, tcp, " ")
    print TCP "|" f[2] "|" f[1] "|" size "|" tcp[n]
    n = split($7, group, " ")
    print GROUP "|" f[2] "|" f[1] "|" size "|" group[2]
    split($6, any, " ")
    print ANY "|" f[2] "|" f[1] "|" size "|" any[2]
}
