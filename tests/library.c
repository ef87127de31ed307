/* The library as one object that tests link instead of compiling it themselves. Its private
   functions are not static, so that tests can call them, see linked.h. */
#ifndef CDP__PRIVATE /* linked.h: only read, for tests that link it */
#define CDP__PRIVATE extern
#endif
#define CDP_IMPLEMENTATION
#define CDP_OS_POLL /* test_poll_func.c */
#include "cdp_tcp.h"
#include "cdp_elastic.h"
#include "cdp_rpc.h"
#include "cdp_nccl.h"
#include "cdp_dtensor.h"
#include "cdp_checkpoint.h"
#include "cdp_mem.h"
#include "cdp_fsdp.h"
#include "cdp_pipeline.h"
#include "cdp_launch.h"
