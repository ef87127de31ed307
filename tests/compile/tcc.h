/*  tcc.h - what tests need of the atomics of gcc, for tcc 0.9.27, which has none: one thread. */
#define __ATOMIC_RELAXED 0
#define __ATOMIC_ACQUIRE 2
#define __ATOMIC_RELEASE 3
#define __ATOMIC_ACQ_REL 4
#define __ATOMIC_SEQ_CST 5
#define __atomic_load_n(from, order) (*(from))
#define __atomic_store_n(to, value, order) ((void)(*(to) = (value)))
#define __atomic_add_fetch(at, value, order) (*(at) += (value))
#define __atomic_sub_fetch(at, value, order) (*(at) -= (value))
