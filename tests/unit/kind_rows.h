/* kind_rows.h - whether this build has an algorithm for each kind of collective */
#ifndef KIND_ROWS_INCLUDED
#define KIND_ROWS_INCLUDED

static bool kind_row_is_for_all(const cdp__row *row, cdp_coll_kind kind, bool fixed) {
    const cdp__algo *a = cdp__algo_at(row->algo);
    return a->kind == kind && !row->max_bytes && !row->max_ranks && !row->only
        && (!fixed || a->fixed);
}

/* A kind has a name, and a row for every size, also with reproducible bits. */
static void check_kind_rows(void) {
    for (int kind = 1; kind < CDP_COLL_COUNT; ++kind) {
        const cdp_coll_kind k = (cdp_coll_kind)kind;
        T(strcmp(cdp_coll_name(k), "?") != 0);
        for (int fixed = 0; fixed < 2; ++fixed) {
            uint32_t i = 0;
            while (cdp__row_at(i) && !kind_row_is_for_all(cdp__row_at(i), k, fixed))
                ++i;
            test_check(cdp__row_at(i) != NULL, __FILE__, __LINE__,
                "%s%s has no row for all sizes in src/collective/select.h", cdp_coll_name(k),
                fixed ? ", reproducible," : "");
        }
    }
    T(strcmp(cdp_coll_name(CDP_COLL_COUNT), "?") == 0);
}

#endif /* KIND_ROWS_INCLUDED */
