/* SPDX-License-Identifier: MIT-0 OR Unlicense
   The C side of cdp.f90: the library itself, and functions whose arguments Fortran can pass, so that
   no struct of the library is declared twice. Ranks, roots and parameters count from 0 here.
   CDP_LINKED: the library itself comes from elsewhere, as libcdp.a. */
#ifndef CDP_LINKED
#define CDP_IMPLEMENTATION
#endif
#include "cdp_tcp.h"

#include <stdlib.h>
#include <string.h>

/* cdp.f90 has these numbers, too. */
_Static_assert(CDP_DTYPE_F32 == 1 && CDP_DTYPE_F64 == 2 && CDP_DTYPE_I32 == 3 && CDP_DTYPE_I64 == 4
        && CDP_DTYPE_I8 == 8 && CDP_DTYPE_I16 == 9 && CDP_DTYPE_CF32 == 16 && CDP_DTYPE_CF64 == 17,
    "dtypes of cdp.f90");
_Static_assert(CDP_REDUCE_SUM == 1 && CDP_REDUCE_AVG == 2 && CDP_REDUCE_MIN == 3
        && CDP_REDUCE_MAX == 4 && CDP_REDUCE_PRODUCT == 5 && CDP_REDUCE_BAND == 6
        && CDP_REDUCE_BOR == 7 && CDP_REDUCE_BXOR == 8,
    "reductions of cdp.f90");
_Static_assert(CDP_COLL_ALLREDUCE == 1 && CDP_COLL_BROADCAST == 2 && CDP_COLL_ALLGATHER == 3
        && CDP_COLL_REDUCE == 5 && CDP_COLL_GATHER == 6 && CDP_COLL_SCATTER == 7
        && CDP_COLL_REDUCE_SCATTER == 8 && CDP_COLL_ALLTOALL == 9 && CDP_COLL_SCAN == 11
        && CDP_COLL_EXSCAN == 12,
    "kinds of collectives of cdp.f90");

/* One array of a Fortran program: cdp_array of cdp.f90. */
typedef struct cdp_f_array {
    void *data;
    int64_t count;
    int32_t dtype;
} cdp_f_array;

#define CDP_F __attribute__((visibility("default")))

static cdp_status invalid(const char *call, const char *text, int64_t a, int64_t b) {
    return cdp_error_set(CDP_ERR_INVALID, -1, 0, text, call, (long long)a, (long long)b);
}

/* Elements of `in` and of `out` must fit each other: `in_parts` and `out_parts` of `count` each. */
static cdp_status fits(
    cdp_group *group, const cdp_request *r, const cdp_f_array *in, const cdp_f_array *out) {
    const int64_t ranks = cdp_size(group), count = (int64_t)r->count;
    const bool root = cdp_rank(group) == r->root, two = in->data != NULL;
    const bool many_in = r->kind == CDP_COLL_REDUCE_SCATTER || r->kind == CDP_COLL_ALLTOALL
        || (r->kind == CDP_COLL_SCATTER && root);
    const bool many_out = r->kind == CDP_COLL_ALLGATHER || r->kind == CDP_COLL_ALLTOALL
        || (r->kind == CDP_COLL_GATHER && root);
    const int64_t need_in = many_in ? count * ranks : count;
    const int64_t need_out = many_out ? count * ranks : count;
    const char *const call = cdp_coll_name(r->kind);
    if (!ranks) return CDP_OK; /* there is no group, as cdp_start() says */
    if (two && in->dtype != out->dtype)
        return invalid(call, "%s: in has dtype %lld, out %lld", in->dtype, out->dtype);
    if (two && in->count != need_in && !(r->kind == CDP_COLL_SCATTER && !root))
        return invalid(call, "%s: in has %lld elements, and needs %lld", in->count, need_in);
    if (out->count != need_out && !(r->kind == CDP_COLL_GATHER && !root))
        return invalid(call, "%s: out has %lld elements, and needs %lld", out->count, need_out);
    return CDP_OK;
}

CDP_F cdp_status cdp_f_init(bool alone_ok, cdp_group **out) {
    cdp_tcp_desc desc = {0};
    desc.alone_ok = alone_ok;
    return cdp_init_from_env(&desc, out);
}

CDP_F cdp_status cdp_f_split(cdp_group *group, int32_t color, int32_t key, cdp_group **out) {
    const uint32_t order = (uint32_t)key ^ 0x80000000u; /* of signed keys */
    return cdp_group_split(group, color < 0 ? CDP_NO_COLOR : (uint32_t)color, order, out);
}

/* One collective operation of `in`, or of `out` in place where `in` has no data. `count`: what
   cdp_request says of this kind. */
CDP_F cdp_status cdp_f_collective(cdp_group *group, int32_t kind, const cdp_f_array *in,
    const cdp_f_array *out, int64_t count, int32_t op, int32_t root, cdp_work *work) {
    cdp_request r = {0};
    cdp_status status;
    r.kind = (cdp_coll_kind)kind;
    r.in = in->data;
    r.out = out->data;
    r.count = (uint64_t)count;
    r.dtype = (cdp_dtype)out->dtype;
    r.op = (cdp_reduce_op)op;
    r.root = (uint32_t)root;
    status = fits(group, &r, in, out);
    if (status != CDP_OK) return status;
    return cdp_start(group, &r, work);
}

CDP_F cdp_status cdp_f_send(cdp_group *group, const cdp_f_array *x, int32_t to, int32_t tag) {
    return cdp_send(
        group, x->data, (uint64_t)x->count, (cdp_dtype)x->dtype, (uint32_t)to, (uint32_t)tag);
}

CDP_F cdp_status cdp_f_recv(cdp_group *group, const cdp_f_array *x, int32_t from, int32_t tag) {
    return cdp_recv(
        group, x->data, (uint64_t)x->count, (cdp_dtype)x->dtype, (uint32_t)from, (uint32_t)tag);
}

/* One parameter: cdp_parameter of cdp.f90. */
typedef struct cdp_f_parameter {
    const char *name; /* NULL: none */
    cdp_f_array value, grad;
} cdp_f_parameter;

CDP_F cdp_status cdp_f_ddp_create(cdp_group *group, const cdp_f_parameter *params, int32_t count,
    int64_t bucket_bytes, bool find_unused, cdp_ddp **out) {
    cdp_param *const p = (cdp_param *)calloc((size_t)count + 1, sizeof *p);
    cdp_ddp_desc desc = {0};
    cdp_status status = CDP_ERR_NOMEM;
    *out = NULL;
    if (!p) return cdp_error_set(status, -1, 0, "cdp_ddp_create: no memory");
    for (int32_t i = 0; i < count; ++i) {
        p[i].name = params[i].name;
        p[i].data = params[i].value.data;
        p[i].grad = params[i].grad.data;
        p[i].count = (uint64_t)params[i].value.count;
        p[i].dtype = (cdp_dtype)params[i].value.dtype;
        if (p[i].grad
            && (params[i].grad.count != params[i].value.count
                || params[i].grad.dtype != params[i].value.dtype)) {
            free(p);
            return cdp_error_set(CDP_ERR_INVALID, -1, 0,
                "cdp_ddp_create: grad of parameter %d is no array like its value", (int)i + 1);
        }
    }
    desc.group = group;
    desc.params = p;
    desc.param_count = (uint32_t)count;
    desc.bucket_bytes = bucket_bytes > 0 ? (uint64_t)bucket_bytes : 0;
    desc.find_unused = find_unused;
    status = cdp_ddp_create(&desc, out);
    free(p);
    return status;
}

/* Copies the text of the last error of this thread; returns the length of the whole text. */
CDP_F int64_t cdp_f_error_text(char *text, int64_t room) {
    const char *const says = cdp_last_error()->text;
    const size_t length = strlen(says);
    if ((int64_t)length < room) memcpy(text, says, length);
    return (int64_t)length;
}
