# Draws ratios as a picture: for each kind of link a panel, for each size a dot for each operation and number of ranks, and
# a line through the medians. Below 1 cdp is faster. Sizes stand at equal distances, ratios on a logarithmic scale.
# Input: lines "panel|its name|ranks|operation|size|ratio". Variables: facts (what was measured, when, on what), source.
function middle(list,   n, a, i, j, t) {
    n = split(list, a, " ")
    for (i = 2; i <= n; ++i)
        for (j = i; j > 1 && a[j - 1] + 0 > a[j] + 0; --j) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
}
function y_of(ratio) {
    if (ratio < 0.125) ratio = 0.125
    if (ratio > 2) ratio = 2
    return 104 + (log(2) - log(ratio)) / log(2) * 46
}
function left_of(p) { return 50 + (p - 1) * 284 }
function x_of(p, s) { return left_of(p) + (s - 0.5) * WIDE / sizes }
function text(x, y, anchor, size, color, what) {
    printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%s\" fill=\"%s\">%s</text>\n", x, y, anchor, size, color, what
}
function line(x1, y1, x2, y2, color, wide) {
    printf "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%s\"/>\n", x1, y1, x2, y2, color, wide
}
function panel(p,   r, s, k, d, points, m) {
    if (panels[p] == "") return
    printf "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" fill=\"#eef6f1\"/>\n", left_of(p), y_of(1), WIDE, y_of(0.125) - y_of(1)
    text(left_of(p), 88, "start", 13, INK, "<tspan font-weight=\"bold\">" panels[p] "</tspan>")
    for (r = 2; r >= 0.125; r /= 2) {
        if (r != 1) line(left_of(p), y_of(r), left_of(p) + WIDE, y_of(r), "#d5dbd8", 1)
        if (p == 1) text(left_of(p) - 8, y_of(r) + 4, "end", 11, GREY, r >= 1 ? r : "1/" 1 / r)
    }
    line(left_of(p), y_of(1), left_of(p) + WIDE, y_of(1), INK, 1.5)
    if (p == 1) {
        text(left_of(p) + 4, y_of(2) + 15, "start", 11, GREY, "cdp is slower")
        text(left_of(p) + 4, y_of(0.125) - 7, "start", 11, "#2c7a51", "cdp is faster")
    }
    for (k = 1; k <= dot_count; ++k) {
        split(dots[k], d, SUBSEP)
        if (d[1] != p) continue
        printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\" fill=\"%s\" fill-opacity=\"0.75\"><title>%s of %s, %s ranks: %s</title></circle>\n",
            x_of(p, d[4]) + (d[2] == first_ranks ? -4 : 4), y_of(d[5]), d[2] == first_ranks ? "#2f6f9f" : "#c0702a", d[3], names[d[4]], d[2], d[5]
    }
    for (s = 1; s <= sizes; ++s) {
        if (!((p, s) in list)) continue
        m = middle(list[p, s])
        points = points sprintf("%.1f,%.1f ", x_of(p, s), y_of(m))
        text(x_of(p, s), y_of(0.125) + 34, "middle", 11, INK, sprintf("%.2f", m))
    }
    printf "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-linejoin=\"round\" points=\"%s\"/>\n", INK, points
    for (s = 1; s <= sizes; ++s) text(x_of(p, s), y_of(0.125) + 17, "middle", 10.5, GREY, names[s])
}
BEGIN { FS = "|"; WIDE = 268; INK = "#1f2a26"; GREY = "#5f6b66" }
$6 + 0 > 0 {
    panels[$1] = $2
    if ($1 > panel_count) panel_count = $1
    if (!($5 in size_of)) { size_of[$5] = ++sizes; names[sizes] = $5 }
    if (first_ranks == "") first_ranks = $3
    if ($3 != first_ranks) other_ranks = $3
    list[$1, size_of[$5]] = list[$1, size_of[$5]] " " $6
    dots[++dot_count] = $1 SUBSEP $3 SUBSEP $4 SUBSEP size_of[$5] SUBSEP $6
    if (!($4 in op_seen)) { op_seen[$4] = 1; ops = ops (ops == "" ? "" : ", ") $4 }
}
END {
    if (!dot_count) { print "chart.awk: nothing to draw" > "/dev/stderr"; exit 1 }
    high = y_of(0.125) + 86
    all = left_of(panel_count) + WIDE + 24
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, sans-serif\">\n", all, high, all, high
    print "<title>Time of cdp over that of the fastest peer</title>"
    printf "<rect x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"6\" fill=\"#ffffff\" stroke=\"#d5dbd8\"/>\n", all - 1, high - 1
    text(24, 32, "start", 17, INK, "<tspan font-weight=\"bold\">Time of cdp over that of the fastest peer</tspan>")
    text(24, 54, "start", 12, GREY, facts)
    printf "<circle cx=\"%d\" cy=\"27\" r=\"4\" fill=\"#2f6f9f\"/>\n", all - (other_ranks == "" ? 84 : 164)
    text(all - (other_ranks == "" ? 74 : 154), 31, "start", 12, INK, first_ranks " ranks")
    if (other_ranks != "") {
        printf "<circle cx=\"%d\" cy=\"27\" r=\"4\" fill=\"#c0702a\"/>\n", all - 84
        text(all - 74, 31, "start", 12, INK, other_ranks " ranks")
    }
    for (p = 1; p <= panel_count; ++p) panel(p)
    text(left_of(1) - 8, y_of(0.125) + 34, "end", 11, INK, "median")
    text(24, y_of(0.125) + 60, "start", 11, GREY, "A dot is an operation (" ops "), the line their median; sizes in bytes of one rank.")
    text(24, y_of(0.125) + 75, "start", 11, GREY, source)
    print "</svg>"
}
