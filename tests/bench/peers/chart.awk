# The table of report.awk becomes a picture: for each size the time of cdp over that of the best peer, a dot for each
# operation and a line through their medians, over TCP and in shared memory (memory of cdp_group_alloc). Below 1 cdp is
# faster. Sizes stand at equal distances, ratios on a logarithmic scale. Variables: ranks, title.
function trim(s) { gsub(/^ +| +$/, "", s); return s }
function middle(list,   n, a, i, j, t) {
    n = split(list, a, " ")
    for (i = 2; i <= n; ++i)
        for (j = i; j > 1 && a[j - 1] + 0 > a[j] + 0; --j) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
}
function y_of(ratio) {
    if (ratio < 0.125) ratio = 0.125
    if (ratio > 4) ratio = 4
    return 40 + (log(4) - log(ratio)) / log(2) * 44
}
function x_of(i, shift) { return 90 + (i - 0.5) * 640 / sizes + shift }
function add(kind, size, op, ratio) {
    if (ratio + 0 <= 0) return
    list[kind, size] = list[kind, size] " " ratio
    dots[++dot_count] = kind SUBSEP size SUBSEP op SUBSEP ratio
}
BEGIN { FS = "|" }
/^(allreduce|reduce_scatter|allgather|broadcast|alltoall) / {
    split($1, f, " ")
    if (f[2] != ranks) next
    size = f[3] " " f[4]
    if (!(size in place)) { place[size] = ++sizes; name[sizes] = size }
    split($3, tcp, " ")
    add("TCP", size, f[1], tcp[length(tcp)] == "-" ? 0 : tcp[length(tcp)])
    split($7, group, " ")
    add("shared memory", size, f[1], group[2])
}
function series(kind, shift, color, label_y,   i, s, k, d, at) {
    printf "<g fill=\"%s\" stroke=\"none\">\n", color
    for (k = 1; k <= dot_count; ++k) {
        split(dots[k], d, SUBSEP)
        if (d[1] != kind) continue
        printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill-opacity=\"0.55\"><title>%s, %s, %s: %.2f of the time</title></circle>\n", x_of(place[d[2]], shift), y_of(d[4]), d[3], d[2], kind, d[4]
    }
    printf "</g>\n<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", color
    for (i = 1; i <= sizes; ++i)
        if ((kind, name[i]) in list) printf "%.1f,%.1f ", x_of(i, shift), y_of(middle(list[kind, name[i]]))
    printf "\"></polyline>\n<circle cx=\"752\" cy=\"%d\" r=\"4\" fill=\"%s\"></circle><text x=\"762\" y=\"%d\">%s</text>\n", label_y - 4, color, label_y, kind
}
END {
    if (!sizes) { print "chart.awk: no row with " ranks " ranks" > "/dev/stderr"; exit 1 }
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"880\" height=\"320\" viewBox=\"0 0 880 320\" font-family=\"sans-serif\" font-size=\"12\">"
    print "<rect width=\"880\" height=\"320\" fill=\"#ffffff\"></rect><g fill=\"#222222\">"
    printf "<text x=\"90\" y=\"22\" font-size=\"14\">%s</text>\n", title
    for (r = 4; r >= 0.125; r /= 2) {
        printf "<line x1=\"90\" x2=\"730\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%s\"></line>", y_of(r), y_of(r), r == 1 ? "#222222" : "#dddddd", r == 1 ? 1.5 : 1
        printf "<text x=\"82\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", y_of(r) + 4, r
    }
    printf "<text x=\"752\" y=\"%.1f\" fill=\"#666666\">the best peer</text>\n", y_of(1) + 4
    for (i = 1; i <= sizes; ++i) printf "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x_of(i, 0), 282, name[i]
    print "<text x=\"410\" y=\"306\" text-anchor=\"middle\" fill=\"#666666\">bytes of one rank; each dot is an operation, lines are medians</text>"
    series("TCP", -7, "#2f6f9f", 60)
    series("shared memory", 7, "#c0702a", 80)
    print "</g></svg>"
}
