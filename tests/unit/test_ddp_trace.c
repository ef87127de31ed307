/* A training step as a picture: the JSON and the SVG of cdp_ddp_trace(). */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"
#include "ddp_rig.h"

static uint32_t times(const char *text, const char *part) {
    uint32_t n = 0;
    for (; (text = strstr(text, part)) != NULL; ++text)
        ++n;
    return n;
}

TEST(a_step_as_a_picture) {
    cdp_group *g = group_of_one(NULL);
    char small[10], *text;
    rig r;
    rig_desc(&r, g);
    r.params[1].name = "a<\"b\"&c>\n";
    rig_open(&r);
    T_EQ(0, cdp_ddp_trace(r.ddp, CDP_TRACE_JSON, small, sizeof small)); /* nothing yet */
    T_EQ(CDP_OK, rig_pass(&r, whole));
    for (int f = 0; f < 2; ++f) {
        const uint64_t need =
            cdp_ddp_trace(r.ddp, f ? CDP_TRACE_SVG : CDP_TRACE_JSON, small, sizeof small);
        T_EQ(9, strlen(small));
        text = (char *)malloc(need + 1);
        T_EQ(need, cdp_ddp_trace(r.ddp, f ? CDP_TRACE_SVG : CDP_TRACE_JSON, text, need + 1));
        T_EQ(need, strlen(text));
        T_EQ(0, memcmp(text, small, 9));
        T_EQ(N, times(text, f ? ">bucket " : "\"bucket "));
        T_EQ(1, times(text, "a__b__c__"));
        T_EQ(times(text, "{"), times(text, "}"));
        T_EQ(1, times(text, f ? "</svg>" : "]}\n"));
        T_EQ(times(text, "<rect "), times(text, "</rect>"));
        free(text);
    }
    cdp_ddp_destroy(r.ddp);
    cdp_group_destroy(g);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"a_step_as_a_picture", a_step_as_a_picture, 20}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
