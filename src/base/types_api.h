/* base/types_api.h - dtypes, reductions, memory */
#ifndef CDP_SRC_BASE_TYPES_API_H
#define CDP_SRC_BASE_TYPES_API_H

#include "config.h"

typedef enum cdp_dtype {
    CDP_DTYPE_DEFAULT = 0, /* means f32 */
    CDP_DTYPE_F32,
    CDP_DTYPE_F64,
    CDP_DTYPE_I32,
    CDP_DTYPE_I64,
    CDP_DTYPE_U8,
    CDP_DTYPE_F16,  /* IEEE half: 1 sign, 5 exponent, 10 fraction bits */
    CDP_DTYPE_BF16, /* the upper half of an f32 */
    CDP_DTYPE_I8,
    CDP_DTYPE_I16,
    CDP_DTYPE_U16,
    CDP_DTYPE_U32,
    CDP_DTYPE_U64,
    CDP_DTYPE_BOOL, /* one byte; 0 is false */
    /* One byte, with 4 and 3, or 5 and 2, exponent and fraction bits. F8E4M3 has no infinities:
       what exceeds 448 is NaN, as in PyTorch's float8_e4m3fn */
    CDP_DTYPE_F8E4M3,
    CDP_DTYPE_F8E5M2,
    CDP_DTYPE_CF32, /* complex: two f32, the real part first */
    CDP_DTYPE_CF64, /* complex: two f64 */
    CDP_DTYPE_COUNT
} cdp_dtype;

/* Factors, divisors and shares. */
#ifdef CDP_ONLY_F32
typedef float cdp_real;
#else
typedef double cdp_real;
#endif

/* Reductions. AVG is the sum divided by the number of ranks, once, after summing. It is computed in
   a wider dtype (floats of 16 and 8 bits in f32; integers in as many bits as their sum needs), and
   rounded once, at the end; integers to the nearest, a half away from zero. Only small operations
   are sent in that dtype. Integer sums and products wrap modulo 2^bits. Floats:
   a NaN among the operands makes every result NaN, MIN and MAX included, and always the same one;
   MIN and MAX take 0 and -0 for equal and keep the left one of equals. Floats of 16 and 8 bits are
   combined and scaled as f32, and rounded to nearest even after every such step, or once, at the
   end, with cdp_request.accumulate. BAND,
   BOR, BXOR: integers and BOOL. PREMUL_SUM: floats and complex numbers; every rank's input is
   multiplied by its cdp_request.factor first. BOOL: every byte but 0 is true, and results are 0 or
   1; SUM, MAX and BOR are "or", PRODUCT, MIN and BAND are "and", BXOR is "one of both"; it has no
   AVG. Complex numbers have SUM, AVG, PRODUCT and PREMUL_SUM. The call returns CDP_ERR_UNSUPPORTED
   for other combinations. Which operand is left, and in what order the ranks are combined, depends
   on the operation, the number of ranks and the length alone: every rank gets the same bits, and so
   does every run. */
typedef enum cdp_reduce_op {
    CDP_REDUCE_DEFAULT = 0, /* means SUM */
    CDP_REDUCE_SUM,
    CDP_REDUCE_AVG,
    CDP_REDUCE_MIN,
    CDP_REDUCE_MAX,
    CDP_REDUCE_PRODUCT,
    CDP_REDUCE_BAND,
    CDP_REDUCE_BOR,
    CDP_REDUCE_BXOR,
    CDP_REDUCE_PREMUL_SUM,
    CDP_REDUCE_COUNT
} cdp_reduce_op;

typedef enum cdp_coll_kind {
    CDP_COLL_NONE = 0,
    CDP_COLL_ALLREDUCE,
    CDP_COLL_BROADCAST,
    CDP_COLL_ALLGATHER,
    CDP_COLL_BARRIER,
    CDP_COLL_REDUCE,
    CDP_COLL_GATHER,
    CDP_COLL_SCATTER,
    CDP_COLL_REDUCE_SCATTER,
    CDP_COLL_ALLTOALL,
    CDP_COLL_SEND, /* a message from one rank to another, on both sides */
    CDP_COLL_SCAN,
    CDP_COLL_EXSCAN,
    CDP_COLL_COUNT
} cdp_coll_kind;

/* Bytes of one element, 0 for a value that is no dtype. */
CDP_API uint64_t cdp_dtype_size(cdp_dtype dtype);
CDP_API const char *cdp_dtype_name(cdp_dtype dtype);
CDP_API const char *cdp_reduce_name(cdp_reduce_op op);
CDP_API const char *cdp_coll_name(cdp_coll_kind kind);

/* A piece of memory, for scatter and gather. The functions that take one never write through
   `data` when sending. */
typedef struct cdp_iov {
    void *data;
    uint64_t bytes;
} cdp_iov;

/* Bytes that the receiver of this struct may read, but does not own. */
typedef struct cdp_bytes {
    const void *data;
    uint64_t bytes;
} cdp_bytes;

#endif /* CDP_SRC_BASE_TYPES_API_H */
