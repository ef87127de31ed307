/* test_environment.c - what cdp_init() reads before it connects: the environment, launchers,
   lists of hosts, URLs, interfaces; and descs that are refused */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "ranks.h"
#include "ports.h"

/* ---- environment and arguments ---- */

static void environment(const char *rank, const char *size, const char *addr, const char *port) {
    static const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    const char *const values[] = {rank, size, addr, port};
    for (int i = 0; i < 4; ++i) {
        if (values[i])
            setenv(names[i], values[i], 1);
        else
            unsetenv(names[i]);
    }
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    unsetenv("CDP_JOB_KEY");
    unsetenv("CDP_TRUST_NETWORK");
}

TEST(interfaces_are_chosen_by_name) {
    static const struct {
        const char *list, *name;
        bool chosen;
    } t[] = {{NULL, "eth0", true}, {"eth0", "eth0", true}, {"eth0", "eth1", false},
        {"eth", "eth1", true}, {"ib,eth", "eth1", true}, {"ib,eth", "ib0", true},
        {"ib,eth", "lo", false}, {"", "eth0", false}, {"^docker,veth", "docker0", false},
        {"^docker,veth", "veth12", false}, {"^docker,veth", "eth0", true}, {"^", "eth0", true},
        {",eth0,", "eth0", true}, {",", "eth0", false}, {"eth0", "eth", false}};
    for (uint32_t i = 0; i < sizeof t / sizeof t[0]; ++i)
        if (!T(cdp__interface_chosen(t[i].list, t[i].name) == t[i].chosen))
            printf("  '%s' and %s\n", t[i].list ? t[i].list : "(none)", t[i].name);
}

static uint32_t two_addresses(void *user, const char *interfaces, cdp_addr *out, uint32_t max) {
    (void)user;
    (void)max;
    if (!interfaces || strcmp(interfaces, "none") == 0) return 0;
    return cdp__addr_parse("10.1.2.3:0", &out[0]) && cdp__addr_parse("[fd00::1]:0", &out[1]) ? 2
                                                                                             : 0;
}

TEST(others_hear_of_chosen_interfaces_alone) {
    cdp_os os = *cdp_os_default();
    cdp_addr own[CDP__ADDRS];
    cdp__mesh m;
    memset(&m, 0, sizeof m);
    os.net.addresses = two_addresses;
    m.os = &os;
    m.desc.interfaces = "eth0";
    T(cdp__addr_parse("[::]:4711", &m.at));
    T_EQ(2, cdp__mesh_own_addrs(&m, own));
    T(own[0].family == 4 && own[0].port == 4711 && own[1].family == 6 && own[1].port == 4711);
    T(cdp__addr_parse("0.0.0.0:4711", &m.at));
    T_EQ(1, cdp__mesh_own_addrs(&m, own)); /* IPv6 does not lead there */
    m.desc.interfaces = "none";
    T_EQ(0, cdp__mesh_own_addrs(&m, own));
}

TEST(without_a_launcher_a_process_may_be_alone) {
    const cdp_tcp_desc fine = {.alone_ok = true};
    cdp_group *g = NULL;
    float x = 3;
    environment(NULL, NULL, NULL, NULL);
    REFUSED(CDP_ERR_INVALID, "alone_ok", cdp_init_from_env(NULL, &g));
    T_EQ(CDP_OK, cdp_init_from_env(&fine, &g));
    T(cdp_size(g) == 1 && cdp_rank(g) == 0);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(x == 3);
    cdp_group_destroy(g);
    environment(NULL, "2", NULL, NULL); /* a launcher that forgot something */
    REFUSED(CDP_ERR_INVALID, "RANK", cdp_init_from_env(&fine, &g));
    environment("0", "1", NULL, NULL);
    T_EQ(CDP_OK, cdp_init_from_env(&fine, &g));
    cdp_group_destroy(g);
    environment(NULL, NULL, NULL, NULL);
}

/* Where rank 0 is comes from the environment, who this rank is from the caller; and what the caller
   gives counts before what the environment says. */
TEST(arguments_win_over_the_environment) {
    cdp_tcp_desc d;
    environment(NULL, NULL, "here", "4711");
    memset(&d, 0, sizeof d);
    T_EQ(CDP_OK, cdp_tcp_desc_from_url("env://?rank=1&world_size=2", &d));
    T(d.group.rank == 1 && d.group.world_size == 2 && d.master_port == 4711
        && strcmp(d.master_addr, "here") == 0);
    memset(&d, 0, sizeof d);
    d.group.rank = 2;
    d.group.world_size = 3;
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(d.group.rank == 2 && d.group.world_size == 3 && d.master_port == 4711);
    memset(&d, 0, sizeof d);
    REFUSED(CDP_ERR_INVALID, "RANK is not set", cdp_tcp_desc_from_url("env://?rank=1", &d));
    for (int half = 0; half < 2; ++half) {
        environment(half ? "7" : NULL, half ? NULL : "8", "here", "4711");
        memset(&d, 0, sizeof d);
        T_EQ(CDP_OK, cdp_tcp_desc_from_url("env://?rank=1&world_size=2", &d));
        T(d.group.rank == 1 && d.group.world_size == 2 && d.master_port == 4711);
    }
    environment(NULL, "8", "here", "4711"); /* one comes from the URL, the other one from there */
    memset(&d, 0, sizeof d);
    T_EQ(CDP_OK, cdp_tcp_desc_from_url("env://?rank=1", &d));
    T(d.group.rank == 1 && d.group.world_size == 8 && d.master_port == 4711);
    memset(&d, 0, sizeof d);
    REFUSED(CDP_ERR_INVALID, "RANK is 8 but WORLD_SIZE is 8",
        cdp_tcp_desc_from_url("env://?rank=8", &d));
    memset(&d, 0, sizeof d);
    REFUSED(CDP_ERR_INVALID, "RANK is not set", cdp_tcp_desc_from_url("env://?world_size=8", &d));
    environment("7", NULL, "here", "4711");
    memset(&d, 0, sizeof d);
    T_EQ(CDP_OK, cdp_tcp_desc_from_url("env://?world_size=9", &d));
    T(d.group.rank == 7 && d.group.world_size == 9 && d.master_port == 4711);
    environment("7", "8", "here", "4711");
    memset(&d, 0, sizeof d);
    d.group.rank = 1;
    d.group.world_size = 2;
    d.master_addr = "there";
    d.master_port = 99;
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(d.group.rank == 1 && d.group.world_size == 2 && d.master_port == 99
        && strcmp(d.master_addr, "there") == 0);
    environment(NULL, NULL, NULL, NULL);
    memset(&d, 0, sizeof d);
    REFUSED(CDP_ERR_INVALID, "MASTER_PORT is not set",
        cdp_tcp_desc_from_url("env://?rank=1&world_size=2", &d));
}

TEST(environment_is_read) {
    cdp_tcp_desc d;
    cdp_group *g;
    memset(&d, 0, sizeof d);
    environment("3", "8", "node-0.example", "29500");
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(d.group.rank == 3 && d.group.world_size == 8 && d.master_port == 29500
        && strcmp(d.master_addr, "node-0.example") == 0);
    T(!d.external_store && !d.job);
    setenv("CDP_TRUST_NETWORK", "true", 1); /* not what it should be, and so not ignored */
    REFUSED(CDP_ERR_INVALID, "CDP_TRUST_NETWORK is 'true'", cdp_tcp_desc_from_env(&d));
    T(!d.trust_network);
    setenv("CDP_TRUST_NETWORK", "0", 1);
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(!d.trust_network);
    setenv("CDP_TRUST_NETWORK", "1", 1);
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(d.trust_network);
    d.trust_network = false;
    unsetenv("CDP_TRUST_NETWORK");
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(d.external_store && !d.job); /* the count differs between the agents of one start */
    d.job = "mine";
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(strcmp(d.job, "mine") == 0);
    T(!d.job_key && !d.trust_network);
    setenv("CDP_JOB_KEY", "0123456789abcdef", 1);
    setenv("CDP_TRUST_NETWORK", "1", 1);
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(strcmp(d.job_key, "0123456789abcdef") == 0 && d.trust_network);
    d.job_key = "of the program";
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(strcmp(d.job_key, "of the program") == 0);
    T(!d.interfaces && d.group.logger.level == CDP_LOG_DEFAULT);
    setenv("CDP_INTERFACES", "eth0,ib", 1);
    setenv("CDP_LOG_LEVEL", "debug", 1);
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(strcmp(d.interfaces, "eth0,ib") == 0 && d.group.logger.level == CDP_LOG_DEBUG);
    setenv("CDP_LOG_LEVEL", "silent", 1);
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(d.group.logger.level == CDP_LOG_DEBUG); /* what the program says wins */
    d.group.logger.level = CDP_LOG_DEFAULT;
    setenv("CDP_LOG_LEVEL", "loud", 1);
    REFUSED(CDP_ERR_INVALID,
        "CDP_LOG_LEVEL is 'loud'; set it to error, warn, info, debug or silent",
        cdp_tcp_desc_from_env(&d));
    d.group.logger.level = CDP_LOG_SILENT;
    setenv("CDP_LOG_LINES", "0", 1);
    REFUSED(CDP_ERR_INVALID, "CDP_LOG_LINES is '0'; it must be a whole number from 1 to 1000000",
        cdp_tcp_desc_from_env(&d));
    setenv("CDP_LOG_LINES", "200", 1);
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T_EQ(200, d.group.logger.lines_per_second);
    setenv("CDP_CONNECTIONS", "17", 1);
    d.connections = 2;
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    d.connections = 0;
    REFUSED(CDP_ERR_INVALID, "CDP_CONNECTIONS is '17'; it must be a whole number from 1 to 16",
        cdp_tcp_desc_from_env(&d));
    setenv("CDP_CONNECTIONS", "3", 1);
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T_EQ(3, d.connections);
    unsetenv("CDP_CONNECTIONS");
    unsetenv("CDP_INTERFACES");
    unsetenv("CDP_LOG_LEVEL");
    memset(&d, 0, sizeof d);
    environment("0", "1", NULL, NULL); /* alone: no network, no port */
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T_EQ(CDP_OK, cdp_init_from_env(NULL, &g));
    T_EQ(1, cdp_size(g));
    T_EQ(CDP_OK, cdp_barrier(g));
    cdp_group_destroy(g);
}

TEST(environment_mistakes_name_the_variable) {
    cdp_tcp_desc d;
    cdp_group *g;
    memset(&d, 0, sizeof d);
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_tcp_desc_from_env(NULL));
    environment("0", NULL, "127.0.0.1", "29500");
    REFUSED(CDP_ERR_INVALID, "WORLD_SIZE is not set", cdp_tcp_desc_from_env(&d));
    REFUSED(CDP_ERR_INVALID, "cdprun", cdp_init_from_env(NULL, &g));
    environment(NULL, "2", "127.0.0.1", "29500");
    REFUSED(CDP_ERR_INVALID, "RANK is not set", cdp_tcp_desc_from_env(&d));
    environment("2", "2", "127.0.0.1", "29500");
    REFUSED(CDP_ERR_INVALID, "RANK is 2 but WORLD_SIZE is 2; ranks are 0 to 1",
        cdp_tcp_desc_from_env(&d));
    environment("0", "2", "127.0.0.1", NULL);
    REFUSED(CDP_ERR_INVALID, "MASTER_PORT is not set", cdp_tcp_desc_from_env(&d));
    static const char *const bad[] = {"", " 1", "1 ", "-1", "+1", "1x", "0x10", "1.5",
        "99999999999999999999", "18446744073709551617"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        environment("0", bad[i], NULL, "29500");
        memset(&d, 0, sizeof d); /* what an earlier call has set counts as given */
        REFUSED(CDP_ERR_INVALID, "WORLD_SIZE", cdp_tcp_desc_from_env(&d));
        environment("0", "2", NULL, bad[i]);
        REFUSED(CDP_ERR_INVALID, "MASTER_PORT", cdp_tcp_desc_from_env(&d));
    }
    environment("0", "0", NULL, "29500");
    REFUSED(CDP_ERR_INVALID, "from 1 to 65535", cdp_tcp_desc_from_env(&d));
    environment("0", "2", NULL, "65536");
    REFUSED(CDP_ERR_INVALID, "MASTER_PORT is '65536'", cdp_tcp_desc_from_env(&d));
}

/* ---- launchers ---- */

/* Variables as "A=1 B=2", without blanks in values. */
static const char *var_of(void *user, const char *name) {
    static char found[64][1200];
    static unsigned next;
    const size_t n = strlen(name);
    for (const char *p = (const char *)user; p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (strncmp(p, name, n) == 0 && p[n] == '=') {
            char *out = found[next++ % 64];
            snprintf(out, sizeof found[0], "%.*s", (int)strcspn(p + n + 1, " "), p + n + 1);
            return out;
        }
    return NULL;
}

static cdp_status launch_of(const char *vars, cdp_launch *l) {
    char text[2000];
    snprintf(text, sizeof text, "%s", vars);
    return cdp_launch_read(var_of, text, l);
}

static const char *launch_text(const char *vars) {
    static char text[700];
    cdp_launch l;
    if (launch_of(vars, &l) != CDP_OK)
        snprintf(text, sizeof text, "error: %s", cdp_last_error()->text);
    else
        snprintf(text, sizeof text, "%s %u/%u local %u/%u at %s:%u job %s dir %s%s", l.launcher,
            l.rank, l.world_size, l.local_rank, l.local_size, l.master_addr, l.master_port, l.job,
            l.dir, l.external_store ? " external" : "");
    return text;
}

TEST(launchers_are_understood) {
    static const struct {
        const char *vars, *expected;
    } cases[] = {
        {"", " 0/0 local 0/0 at :0 job  dir "},
        {"RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=29500",
            "torchrun 3/8 local 1/2 at n0:29500 job  dir "},
        {"RANK=3 WORLD_SIZE=8 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2 "
         "MASTER_PORT=1",
            "torchrun 3/8 local 0/0 at :1 job  dir  external"},
        {"RANK=0 WORLD_SIZE=1 MASTER_PORT=nonsense", "torchrun 0/1 local 0/0 at :0 job  dir "},
        /* torchrun below mpirun or srun: the innermost counts */
        {"RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 SLURM_PROCID=0 "
         "SLURM_NTASKS=1 SLURM_STEP_ID=0",
            "torchrun 1/2 local 0/0 at :0 job  dir "},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=prterun-host/12@1 PMIX_SERVER_TMPDIR=/tmp/s",
            "openmpi 1/4 local 1/4 at :0 job ompi-prterun-host-12-1 dir /tmp/s"},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_MCA_ess_base_jobid=77 MASTER_ADDR=a "
         "MASTER_PORT=5",
            "openmpi 1/4 local 0/0 at a:5 job ompi-77 dir "},
        {"PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 SLURM_PROCID=0 SLURM_NTASKS=3 "
         "SLURM_STEP_ID=0",
            "mpich 2/3 local 0/1 at :0 job  dir "},
        {"MV2_COMM_WORLD_RANK=2 MV2_COMM_WORLD_SIZE=3 MV2_COMM_WORLD_LOCAL_RANK=0 "
         "MV2_COMM_WORLD_LOCAL_SIZE=1 PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=0",
            "mvapich 2/3 local 0/1 at :0 job  dir "},
        {"PALS_RANKID=7 PMI_RANK=7 PMI_SIZE=8 PALS_LOCAL_RANKID=3 PALS_LOCAL_SIZE=4 "
         "PALS_APID=3b7c-11 MASTER_ADDR=x1000",
            "pals 7/8 local 3/4 at x1000:0 job pals-3b7c-11 dir "},
        {"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_ID=12345 "
         "FLUX_JOB_NNODES=1 PMI_RANK=1 PMI_SIZE=2",
            "flux 1/2 local 1/2 at :0 job flux-12345 dir "},
        {"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_TASK_LOCAL_ID=0 FLUX_JOB_ID=1 FLUX_JOB_NNODES=2",
            "flux 1/2 local 0/0 at :0 job flux-1 dir "},
        /* Hydra inside of a task of Flux */
        {"FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1 FLUX_JOB_ID=1 PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=3 "
         "MPI_LOCALNRANKS=4",
            "mpich 3/4 local 3/4 at :0 job  dir "},
        {"SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_STEP_ID=0 SLURM_JOB_ID=4711 "
         "SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_STEP_NODELIST=gpu[007-008,12] "
         "SLURM_STEP_RESV_PORTS=60001-60008 PMI_RANK=5 PMI_SIZE=8",
            "slurm 5/8 local 1/4 at gpu007:60001 job slurm-4711.0 dir "},
        {"SLURM_PROCID=0 SLURM_NTASKS=9 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=3 SLURM_JOB_ID=1 "
         "SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0 SLURM_JOB_NODELIST=a,b SLURM_RESTART_COUNT=1 "
         "MASTER_PORT=7",
            "slurm 0/2 local 0/2 at 127.0.0.1:7 job slurm-1.3.1 dir "},
        /* a script under sbatch: no task of a step */
        {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=a,b",
            " 0/0 local 0/0 at :0 job  dir "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        T_TEXT(cases[i].expected, launch_text(cases[i].vars));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        T_EQ(strlen(cases[i].expected), strlen(launch_text(cases[i].vars)));
    /* the port of a step is that of all its tasks, and not the same for all jobs */
    cdp_launch a, b;
    T_EQ(CDP_OK,
        launch_of("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=4711 "
                  "SLURM_STEP_NODELIST=n[1-2]",
            &a));
    T_EQ(CDP_OK,
        launch_of("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=4711 "
                  "SLURM_STEP_NODELIST=n[1-2]",
            &b));
    T(a.master_port == b.master_port && a.master_port >= 10000 && a.master_port < 30000);
    T_EQ(CDP_OK,
        launch_of("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=4712 "
                  "SLURM_STEP_NODELIST=n[1-2]",
            &b));
    T(a.master_port != b.master_port);
    REFUSED(CDP_ERR_INVALID, "out is NULL", cdp_launch_read(NULL, NULL, NULL));
    T_TEXT("OMPI_COMM_WORLD_SIZE is not set", launch_text("OMPI_COMM_WORLD_RANK=0"));
    T_TEXT("FLUX_JOB_NNODES is 'two'",
        launch_text("FLUX_TASK_RANK=0 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=two"));
    T_TEXT("PMI_RANK is 2 but PMI_SIZE is 2", launch_text("PMI_RANK=2 PMI_SIZE=2"));
    T_TEXT("SLURM_STEP_NODELIST is 'n[1-2'",
        launch_text("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2"));
    T_TEXT("SLURM_LOCALID is 'x'",
        launch_text(
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n SLURM_LOCALID=x"));
    T_TEXT("MASTER_PORT is '0'", launch_text("RANK=0 WORLD_SIZE=2 MASTER_PORT=0"));
}

TEST(host_lists_are_expanded) {
    static const struct {
        const char *list, *first;
    } cases[] = {
        {"node1", "node1"},
        {"node1,node2", "node1"},
        {"node[003-010,012],login", "node003"},
        {"node[7]", "node7"},
        {"a[1,3-4]-ib[0-1]", "a1-ib0"},
        {"n[09,1]x,y", "n09x"},
        {"", NULL},
        {",a", NULL},
        {"n[1", NULL},
        {"n]1", NULL},
        {"n[[1]]", NULL},
        {"n 1", NULL},
        {"[]", NULL},
        {"n[1-2]]", NULL},
    };
    char out[16];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const bool good = cdp__first_host(cases[i].list, out, sizeof out);
        T(good == (cases[i].first != NULL) && (!good || strcmp(out, cases[i].first) == 0));
    }
    T(!cdp__first_host("a-name-that-is-longer-than-its-place", out, sizeof out));
    T_EQ(2, cdp__tasks_of("2(x3),1", 2));
    T_EQ(1, cdp__tasks_of("2(x3),1", 3));
    T_EQ(0, cdp__tasks_of("2(x3),1", 4));
    T_EQ(0, cdp__tasks_of("2(x3", 0));
    T_EQ(0, cdp__tasks_of("", 0));
}

TEST(urls_are_read) {
    cdp_tcp_desc d;
    memset(&d, 0, sizeof d);
    T_EQ(CDP_OK, cdp_tcp_desc_from_url("tcp://node-0:29500?rank=2&world_size=4", &d));
    T(d.group.rank == 2 && d.group.world_size == 4 && d.master_port == 29500
        && strcmp(d.master_addr, "node-0") == 0);
    T_EQ(CDP_OK, cdp_tcp_desc_from_url("tcp://[fe80::1%eth0]:1", &d));
    T(d.group.rank == 2 && d.group.world_size == 4 && d.master_port == 1
        && strcmp(d.master_addr, "fe80::1%eth0") == 0);
    T_EQ(CDP_OK, cdp_tcp_desc_from_url("file:///tmp/a:b?world_size=9", &d));
    T(d.group.world_size == 9 && strcmp(d.file, "/tmp/a:b") == 0);
    memset(&d, 0, sizeof d);
    environment("1", "3", "here", "4");
    T_EQ(CDP_OK, cdp_tcp_desc_from_url("env://", &d));
    T(d.group.rank == 1 && d.group.world_size == 3 && d.master_port == 4
        && strcmp(d.master_addr, "here") == 0);
    memset(&d, 0, sizeof d);
    T_EQ(CDP_OK, cdp_tcp_desc_from_url("env://?rank=2", &d));
    T(d.group.rank == 2 && d.group.world_size == 3);
    static const char *const bad[] = {"", "tcp:/a:1", "http://a:1", "tcp://", "tcp://a",
        "tcp://a:", "tcp://a:0", "tcp://a:65536", "tcp://a:1x", "tcp://:1", "tcp://[::1:1",
        "tcp://[::1]1", "tcp://[]:1", "tcp://::1:1", "tcp://a b:1", "tcp://a/b:1", "env://x",
        "file://", "file://relative", "tcp://a:1?", "tcp://a:1?rank",
        "tcp://a:1?rank=", "tcp://a:1?rank=1&", "tcp://a:1?rank=1&rank=1", "tcp://a:1?rank=-1",
        "tcp://a:1?size=1", "tcp://a:1?rank=65536"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        const bool empty_query = strcmp(bad[i], "tcp://a:1?") == 0; /* as browsers have it */
        test_check((cdp_tcp_desc_from_url(bad[i], &d) == CDP_OK) == empty_query, __FILE__, __LINE__,
            "%s", bad[i]);
    }
    cdp_group *g;
    T_EQ(CDP_OK, cdp_init_url("tcp://127.0.0.1:1?rank=0&world_size=1", NULL, &g));
    cdp_group_destroy(g);
    REFUSED(CDP_ERR_INVALID, "begins neither", cdp_init_url("udp://a:1", NULL, &g));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_tcp_desc_from_url(NULL, &d));
}

/* What a backend of this test was given. */
typedef struct made_by {
    cdp_tcp_desc desc;
    uint32_t times;
} made_by;

static cdp_status starts_alone(const cdp_tcp_desc *desc, void *user, cdp_group **out) {
    made_by *m = (made_by *)user;
    cdp_group_desc alone = desc->group;
    m->desc = *desc;
    ++m->times;
    alone.rank = 0;
    alone.world_size = 1;
    return cdp_group_create(&alone, out);
}
static cdp_status starts_over_tcp(const cdp_tcp_desc *desc, void *user, cdp_group **out) {
    ++((made_by *)user)->times;
    return cdp_init(desc, out);
}
static cdp_status starts_nothing(const cdp_tcp_desc *desc, void *user, cdp_group **out) {
    (void)desc;
    *out = (cdp_group *)user; /* a mistake of the program, which nobody sees */
    return cdp_error_set(CDP_ERR_IO, -1, 0, "no such device");
}

TEST(backends_are_chosen_by_name) {
    made_by m = {.times = 0}, tcp = {.times = 0};
    cdp_tcp_desc d;
    cdp_group *g;
    T_EQ(CDP_OK, cdp_backend_register("toy", starts_alone, &m));
    T_EQ(CDP_OK, cdp_backend_register("broken", starts_nothing, &m));
    T_EQ(CDP_OK, cdp_backend_register("wrapped-1", starts_over_tcp, &tcp));
    environment("1", "3", "here", "4");
    T_EQ(CDP_OK, cdp_init_url("env://?backend=toy", NULL, &g)); /* no other rank is there */
    T(m.times == 1 && m.desc.group.rank == 1 && m.desc.group.world_size == 3
        && m.desc.master_port == 4 && strcmp(m.desc.backend, "tcp") == 0);
    cdp_group_destroy(g);
    T_EQ(CDP_OK, cdp_init_url("tcp://a:1?world_size=5&backend=toy&rank=2", NULL, &g));
    T(m.times == 2 && m.desc.group.rank == 2 && m.desc.group.world_size == 5);
    cdp_group_destroy(g);
    setenv("CDP_BACKEND", "toy", 1);
    environment("1", "3", "here", NULL); /* such a backend may need no port */
    T_EQ(CDP_OK, cdp_init_from_env(NULL, &g));
    T_EQ(3, m.times);
    cdp_group_destroy(g);
    memset(&d, 0, sizeof d); /* the desc counts before the environment, the url before both */
    d.backend = "none";
    REFUSED(CDP_ERR_INVALID,
        "no backend is named 'none'; there is: tcp, gloo, toy, broken, wrapped",
        cdp_init_from_env(&d, &g));
    T(!g);
    T_EQ(CDP_OK, cdp_init_url("env://?backend=toy", &d, &g));
    cdp_group_destroy(g);
    REFUSED(CDP_ERR_INVALID, "MASTER_PORT is not set", cdp_init_url("env://?backend=gloo", &d, &g));
    unsetenv("CDP_BACKEND");
    memset(&d, 0, sizeof d);
    d.group.world_size = 1;
    d.backend = "wrapped-1";
    T_EQ(CDP_OK, cdp_init(&d, &g));
    T_EQ(1, tcp.times);
    cdp_group_destroy(g);
    d.backend = "broken";
    REFUSED(CDP_ERR_IO, "no such device", cdp_init(&d, &g));
    T(!g);
    cdp_starting *s;
    REFUSED(CDP_ERR_UNSUPPORTED, "backend 'broken': only cdp_init(), cdp_init_url() and",
        cdp_init_start(&d, &s));
    T(!s);
    T_EQ(CDP_OK, cdp_backend_register("toy", NULL, NULL));
    REFUSED(CDP_ERR_INVALID, "no backend is named 'toy'",
        cdp_init_url("tcp://a:1?backend=toy", NULL, &g));
    T_EQ(CDP_OK, cdp_backend_register("broken", starts_alone, &m)); /* replaced */
    T_EQ(CDP_OK, cdp_init(&d, &g));
    cdp_group_destroy(g);
    T_EQ(CDP_OK, cdp_backend_register("broken", NULL, NULL));
    T_EQ(CDP_OK, cdp_backend_register("wrapped-1", NULL, NULL));
}

TEST(wrong_names_of_backends_are_refused) {
    static const char *const bad[] = {
        "", "a b", "a/b", "a&b", "\xc3\xa9", "a-name-of-thirty-two-characters-" /* one too many */};
    made_by m = {.times = 0};
    char name[8];
    cdp_group *g;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i)
        REFUSED(CDP_ERR_INVALID, "is not 1 to 31 letters",
            cdp_backend_register(bad[i], starts_alone, &m));
    REFUSED(CDP_ERR_INVALID, "name is NULL", cdp_backend_register(NULL, starts_alone, &m));
    REFUSED(CDP_ERR_INVALID, "'tcp' is that of cdp_init()",
        cdp_backend_register("tcp", starts_alone, &m));
    REFUSED(CDP_ERR_INVALID, "create is NULL, but no backend is named 'x'",
        cdp_backend_register("x", NULL, NULL));
    REFUSED(CDP_ERR_INVALID, "only rank=R, world_size=N and backend=NAME",
        cdp_init_url("tcp://a:1?backend=", NULL, &g));
    REFUSED(
        CDP_ERR_INVALID, "are allowed", cdp_init_url("tcp://a:1?backend=a&backend=b", NULL, &g));
    REFUSED(CDP_ERR_INVALID, "are allowed",
        cdp_init_url("tcp://a:1?backend=a-name-of-thirty-two-characters-", NULL, &g));
    for (int i = 0; i < 8; ++i) {
        snprintf(name, sizeof name, "b%d", i);
        T_EQ(CDP_OK, cdp_backend_register(name, starts_alone, &m));
    }
    REFUSED(CDP_ERR_NOMEM, "there are 8 backends, and no place for 'b8'",
        cdp_backend_register("b8", starts_alone, &m));
    for (int i = 0; i < 8; ++i) {
        snprintf(name, sizeof name, "b%d", i);
        T_EQ(CDP_OK, cdp_backend_register(name, NULL, NULL));
    }
}

static uint64_t few_descriptors(void *user) {
    (void)user;
    return 100;
}

/* Said before anything is tried, with what to do. */
TEST(too_few_descriptors) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc d;
    cdp_group *g;
    memset(&d, 0, sizeof d);
    os.net.descriptor_limit = few_descriptors;
    d.group.world_size = 64;
    d.group.os = &os;
    d.master_port = 1;
    d.init_timeout_ms = 20000;
    REFUSED(CDP_ERR_IO, "ulimit -n", cdp_init(&d, &g));
    T_EQ(EMFILE, cdp_last_error()->sys_errno);
}

TEST(init_mistakes) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc d;
    cdp_group *g = (cdp_group *)&d;
    memset(&d, 0, sizeof d);
    REFUSED(CDP_ERR_INVALID, "desc", cdp_init(NULL, &g));
    REFUSED(CDP_ERR_INVALID, "out is NULL", cdp_init(&d, NULL));
    REFUSED(CDP_ERR_INVALID, "world_size 0", cdp_init(&d, &g));
    d.group.hub = (cdp_hub *)&d; /* never looked into */
    REFUSED(CDP_ERR_INVALID, "group.hub is set", cdp_init(&d, &g));
    d.group.hub = NULL;
    d.group.transport = (cdp_transport *)&d;
    REFUSED(CDP_ERR_INVALID, "group.transport is set", cdp_init(&d, &g));
    d.group.transport = NULL;
    T(g == NULL);
    d.group.world_size = 65536;
    REFUSED(CDP_ERR_INVALID, "world_size 65536", cdp_init(&d, &g));
    d.group.world_size = 2;
    d.group.rank = 2;
    REFUSED(CDP_ERR_INVALID, "rank 2 is not below world_size 2", cdp_init(&d, &g));
    d.group.rank = 0;
    REFUSED(CDP_ERR_INVALID, "master_port is 0", cdp_init(&d, &g));
    d.master_addr = "http://node7";
    REFUSED(CDP_ERR_INVALID, "master_addr 'http://node7' is neither", cdp_init(&d, &g));
    d.master_addr = " node7";
    REFUSED(CDP_ERR_INVALID, "master_addr ' node7' is neither", cdp_init(&d, &g));
    d.master_addr = NULL;
    d.connections = 17;
    REFUSED(CDP_ERR_INVALID, "connections 17 is not in 1 .. 16", cdp_init(&d, &g));
    d.connections = 0;
    os.net.addresses = NULL;
    d.group.os = &os;
    d.interfaces = "eth0"; /* no interfaces are known to this os: that must not pass in silence */
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_init(&d, &g));
    T_TEXT("interfaces 'eth0': the os of the desc has no function `addresses`",
        cdp_last_error()->text);
    d.interfaces = NULL;
    d.group.os = NULL;
    d.job = "a name of a job that is longer than anybody would give to one";
    REFUSED(CDP_ERR_INVALID, "job name", cdp_init(&d, &g));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"interfaces_are_chosen_by_name", interfaces_are_chosen_by_name, 10},
        {"others_hear_of_chosen_interfaces_alone", others_hear_of_chosen_interfaces_alone, 10},
        {"without_a_launcher_a_process_may_be_alone", without_a_launcher_a_process_may_be_alone,
            10},
        {"arguments_win_over_the_environment", arguments_win_over_the_environment, 10},
        {"environment_is_read", environment_is_read, 10},
        {"environment_mistakes_name_the_variable", environment_mistakes_name_the_variable, 10},
        {"launchers_are_understood", launchers_are_understood, 10},
        {"host_lists_are_expanded", host_lists_are_expanded, 10},
        {"urls_are_read", urls_are_read, 10},
        {"backends_are_chosen_by_name", backends_are_chosen_by_name, 10},
        {"wrong_names_of_backends_are_refused", wrong_names_of_backends_are_refused, 10},
        {"init_mistakes", init_mistakes, 10},
        {"too_few_descriptors", too_few_descriptors, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
