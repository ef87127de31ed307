/* Remote calls in a build with the arithmetic of few dtypes. */
#define CDP_FEW_DTYPES
#define CDP_API static __attribute__((unused))
#define CDP_IMPLEMENTATION
#define CDP__TEST_OF_ITS_OWN /* this program compiles the library itself */
#include "cdp.h"
#include "cdp_rpc.h"
#include "ranks.h"

/* Ranks add up what they have sent. */
static void rank_shuts_down(cdp_group *g, void *arg) {
    cdp_rpc_desc d;
    cdp_rpc *rpc;
    (void)arg;
    memset(&d, 0, sizeof d);
    d.group = g;
    T_EQ(CDP_OK, cdp_rpc_create(&d, &rpc));
    T_EQ(CDP_OK, cdp_rpc_shutdown(rpc, 10000));
    cdp_rpc_destroy(rpc);
}

TEST(remote_calls_end_with_few_dtypes) {
    run_ranks(3, NULL, 0, rank_shuts_down, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"remote_calls_end_with_few_dtypes", remote_calls_end_with_few_dtypes, 20}};
    return test_main(argc, argv, cases, 1);
}
