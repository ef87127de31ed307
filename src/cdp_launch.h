/*  cdp_launch.h - workers of a machine, started and watched from C - v0.3.0 - MIT-0 or Unlicense

    WHAT IT IS
        A launcher that is a library: an agent starts n workers (a program, or a function in copies
        of this process), gives them the variables of torchrun, carries their output, starts all of
        them again after a failure, and leaves a result that names the first failure. And
        cdp_spawn(): one function on n ranks, as processes or as threads, in one call.

    DO THIS
        #define CDP_IMPLEMENTATION      in exactly one C or C++ file, before
        #include "cdp_launch.h"         which includes cdp_tcp.h, cdp_store.h and cdp.h

    QUICK START
        #define CDP_IMPLEMENTATION
        #include "cdp_launch.h"
        #include <stdio.h>
        static cdp_status work(void *user, cdp_group *world) {
            float x = (float)cdp_rank(world);
            (void)user;
            cdp_status st = cdp_allreduce(world, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM);
            if (st != CDP_OK) return st;
            printf("rank %u of %u: the sum is %g\n", cdp_rank(world), cdp_size(world), x);
            return CDP_OK;
        }
        int main(void) {
            if (cdp_spawn(work, NULL, 4, NULL) != CDP_OK) return cdp_print_error(stderr);
            return 0;
        }
        gcc -O2 fit.c -o fit -pthread        ./fit

    CONTENTS
        Each part is marked >>folder/name and comes from src/folder/name.h. `grep '>>'` lists the
        parts in their order, which is that of the #include lines of src/cdp_launch.h. A part uses
        what comes before it, never what comes after it. Names in _api hold what programs call.

    API BY TASK
        I want to...                                       call
        run one function on n ranks, and wait              cdp_spawn
        start programs or functions as workers             cdp_agent_start
        watch them, carry their output                     cdp_agent_step, cdp_agent_wait
        know how they stand                                cdp_agent_state_of, _state_name
        end them                                           cdp_agent_stop, cdp_agent_destroy
        know how each one ended, first failure first       cdp_agent_result; as a file: _save
        hear of starts and ends as they happen             desc.event; cdp_agent_event_text: JSON
        let others see that the agent works                desc.health_file
        in a worker: be ended where it is stuck            cdp_timer_begin, cdp_timer_end
        put numbers under names, for a file or a function  cdp_metric_put

    COMING FROM PyTorch
        torch.multiprocessing.spawn, start_processes       cdp_spawn
        elastic.multiprocessing.start_processes, PContext  cdp_agent_start, _wait
        WorkerSpec, SimpleElasticAgent                     cdp_launch_desc, cdp_agent
        several WorkerSpecs, each with a role              desc.roles, desc.commands
        WorkerState                                        cdp_agent_state
        monitor_interval; max_restarts                     desc.poll_ms; desc.max_restarts
        Std, redirects, tee                                desc.redirects, desc.tee
        RunResult, ChildFailedError                        cdp_launch_result, ends[0]
        elastic.events: record, handlers                   desc.event
        elastic.metrics: put_metric, MetricHandler         cdp_metric_put, cdp_metrics
        HealthCheckServer                                  desc.health_file
        elastic.timer: expires, FileTimerServer            cdp_timer_begin, cdp_timer_end
        rendezvous of agents, machines that come and go    tools/cdprun

    CONFIGURATION
        CDP_LAUNCH_IMPLEMENTATION    this header and those below it, whose private parts it uses
        The macros of cdp.h hold here, too: CDP_API, CDP_STATIC, CDP_ASSERT, CDP_NO_STDIO.

    PROCESSES
        Each worker leads a process group. When it has ended, what is left of its group is killed;
        a process that has left the group (setsid, setpgid) lives on: tools/cdprun ends those, too.
        On Linux workers die with the thread that started them. fork() copies only the thread that
        calls it: start functions before this process has other threads, and before it has groups.
        Programs may be started at any time. SIGCHLD must not be ignored, and nothing else may wait
        for the workers: then their end is UNKNOWN.

    LIMITS
        4096 workers a machine | agents of several machines do not talk to each other: a failure
        elsewhere is seen by the ranks here | no processes on Windows: cdp_spawn with threads

    License: MIT-0 or Unlicense, as you like; see the end of cdp.h.                            */
#if defined(CDP_LAUNCH_IMPLEMENTATION) && !defined(CDP_TCP_IMPLEMENTATION)
#define CDP_TCP_IMPLEMENTATION
#endif
#include "cdp_tcp.h"

#ifndef CDP_LAUNCH_INCLUDED
#define CDP_LAUNCH_INCLUDED

#define CDP_LAUNCH_VERSION 300 /* major * 10000 + minor * 100 + patch */
#if CDP_LAUNCH_VERSION != CDP_VERSION
#error "cdp_launch.h and cdp.h are of different versions: copy both from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "launch/launch_api.h"
#include "launch/spawn_api.h"
#include "launch/timer_api.h"
#include "launch/metric_api.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#include "launch/cxx_api.h"

#endif /* CDP_LAUNCH_INCLUDED */

#if (defined(CDP_IMPLEMENTATION) || defined(CDP_LAUNCH_IMPLEMENTATION)) \
    && !defined(CDP_LAUNCH_IMPL_INCLUDED)
#define CDP_LAUNCH_IMPL_INCLUDED
#undef CDP__HERE
#define CDP__HERE CDP__FILE_LAUNCH

#include "text/json_read.h"
#include "os/cores.h"
#include "os/cores_here.h"
#include "os/processes.h"
#include "os/free_port.h"

#include "launch/facts.h"
#include "launch/variables.h"
#include "launch/console.h"
#include "launch/stream.h"
#include "launch/timer.h"
#include "launch/metric.h"
#include "launch/state.h"
#include "launch/environment.h"
#include "launch/output.h"
#include "launch/ends.h"
#include "launch/health.h"
#include "launch/attempt.h"
#include "launch/agent.h"
#include "launch/create.h"
#include "launch/spawn.h"

#endif /* CDP_LAUNCH_IMPL_INCLUDED */
