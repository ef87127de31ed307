# Lines of several rounds become a table: for each op, number of ranks and size the median of the rounds' medians of cdp, of
# the best peer over TCP and in shared memory, and of what the raw sockets allow in the same run. No table is sorted here:
# the lines come sorted.
function middle(list, n,   a, i, j, t) {
    split(list, a, " ")
    for (i = 2; i <= n; ++i)
        for (j = i; j > 1 && a[j - 1] + 0 > a[j] + 0; --j) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    return n ? n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2 : 0
}
function us_of(who, op, ranks, bytes,   k) {
    k = who SUBSEP op SUBSEP ranks SUBSEP bytes
    return middle(list[k], count[k])
}
function raw(op, ranks, bytes,   a, b, k, how) { # the best of spinning and sleeping, with either congestion control
    split("spin sleep spin/reno sleep/reno", how, " ")
    a = 0
    for (k = 1; k <= 4; ++k) {
        b = us_of("raw\t" how[k], op, ranks, bytes)
        if (b && (!a || b < a)) a = b
    }
    return a
}
function factor(op, p) { return op == "allreduce" ? 2 * (p - 1) / p : op == "broadcast" || op == "pingpong" || op == "barrier" ? 1 : (p - 1) / p }
# What the raw sockets of this run allow, in us; 0: not measured.
function limit(op, p, bytes,   r) {
    if (op == "pingpong") return raw("pingpong", p, bytes)
    if (op == "barrier") return raw("exchange", p, 4)
    if (bytes < 1048576) return op == "allreduce" ? raw("exchange", p, bytes) : 0
    if (op == "broadcast") return p == 2 ? raw("oneway", p, bytes) : raw("duplex", p, bytes) * (p - 1) / p # all copies share the cores
    return raw("duplex", p, bytes) * factor(op, p)
}
function part(a, b) { return a && b ? sprintf("%.2f", a / b) : "-" }
function size_text(b) { return b >= 1048576 ? b / 1048576 " MiB" : b >= 1024 ? b / 1024 " KiB" : b " B" }
{
    who = $1 "\t" $2
    k = who SUBSEP $3 SUBSEP $4 SUBSEP $5
    list[k] = list[k] " " $6
    ++count[k]
    if (!(k in least) || $7 < least[k]) least[k] = $7
    row = $3 SUBSEP $4 SUBSEP $5
    if (!(row in seen) && $1 != "raw" || $1 == "cdp" && !(row in seen)) { seen[row] = 1; rows[++row_count] = row }
    if (!(who in known)) { known[who] = 1; whos[++who_count] = who }
}
END {
    printf "%-15s %5s %9s | %11s %8s | %-18s %10s %8s %5s | %9s %6s | %-13s %9s | %9s %5s | %9s %5s | %9s %6s\n", "op", "ranks", "bytes", "cdp us", "GB/s", "best TCP peer", "us", "GB/s", "time", "raw us", "raw/us", "best shm peer", "us", "any us", "time", "group us", "time", "memory us", "/group"
    for (i = 1; i <= row_count; ++i) {
        split(rows[i], f, SUBSEP)
        op = f[1]; p = f[2]; bytes = f[3]
        mine = us_of("cdp\ttcp", op, p, bytes)
        own = us_of("cdp\tmemory", op, p, bytes)
        group = us_of("cdp\tsegments", op, p, bytes)
        best = 0; name = "-"; shm = 0; shm_name = "-"
        for (w = 1; w <= who_count; ++w) {
            split(whos[w], n, "\t")
            if (n[1] == "cdp" || n[1] == "raw") continue
            t = us_of(whos[w], op, p, bytes)
            if (!t) continue
            if (n[2] == "shm") { if (!shm || t < shm) { shm = t; shm_name = n[1] } }
            else if (!best || t < best) { best = t; name = n[1] (n[2] == "tcp" ? "" : substr(n[2], 4)) }
        }
        l = limit(op, p, bytes)
        m = bytes >= 1048576 ? us_of("raw\tmemory", op, p, bytes) : 0
        gb = factor(op, p) * bytes / 1000
        printf "%-15s %5d %9s | %11.2f %8.3f | %-18s %10.2f %8.3f %5s | %9s %6s | %-13s %9.2f | %9.2f %5s | %9.2f %5s | %9s %6s\n", op, p, size_text(bytes), mine, mine ? gb / mine : 0,
               name, best, best ? gb / best : 0, part(mine, best), l ? sprintf("%.2f", l) : "-", part(l, mine), shm_name, shm, own, part(own, shm), group, part(group, shm), m ? sprintf("%.2f", m) : "-", part(m, group)
        if (best && mine) {
            class = bytes < 65536 ? "up to 4 KiB" : bytes < 1048576 ? "64 KiB" : "1 MiB and more"
            ratios[class] = ratios[class] " " mine / best
            ++ratio_count[class]
        }
    }
    print "\ntime: that of cdp over that of the best peer (below 1: cdp is faster), over TCP and in shared memory: any memory, and memory of cdp_group_alloc."
    print "memory us: bare loops that add and copy in memory that all ranks see; /group: that over the time with memory of cdp_group_alloc."
    print "raw/us: what raw sockets of this run need over what cdp needs over TCP; 1 is the limit."
    split("up to 4 KiB,64 KiB,1 MiB and more", classes, ",")
    for (i = 1; i <= 3; ++i)
        if (ratio_count[classes[i]]) printf "%-15s median of %d ratios to the best TCP peer: %.2f\n", classes[i], ratio_count[classes[i]], middle(ratios[classes[i]], ratio_count[classes[i]])
}
