# Everything is made below BUILD (default: build) and nothing outside it; two makes with different BUILD do not meet.
# Needs GNU make, gcc, bash and coreutils. A program that uses cdp needs none of this: it copies the headers.

comma := ,
SHELL := /bin/bash

BUILD   ?= build
CC      := gcc
# MORE=1, as .ci/run has it: also what takes longer than what it finds is worth each time.
MORE    ?=
export MORE
SEEDS   ?= $(if $(MORE),1..200,1..40)
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)

CFLAGS  := -g -std=gnu11 -Wall -Wextra -Wshadow -Wpointer-arith -Wundef
INCLUDE := -I. -Itests
LIBS    := -pthread -lm

HEADERS   := $(wildcard cdp*.h)
UNIT_SRC  := $(wildcard tests/unit/test_*.c)
PROC_SRC  := $(wildcard tests/procs/test_*.c)
NCCL_SRC  := $(wildcard tests/nccl/test_*.c)
MEM_SRC   := $(wildcard tests/mem/test_*.c)
DTENSOR_SRC := $(wildcard tests/dtensor/test_*.c)
SIM_SRC   := $(wildcard tests/sim/sim_main.c)
SCRIPT_SRC := $(wildcard tests/sim/scripts.c)
ROUND_SRC := $(wildcard tests/sim/rounds.c tests/sim/desync.c tests/sim/ring.c tests/sim/failure.c \
             tests/sim/rpc_tables.c tests/sim/rpc_waves.c tests/sim/rpc_rolls.c tests/sim/rpc_worlds.c \
             tests/sim/elastic.c \
             tests/sim/elastic_worlds.c tests/sim/elastic_shrink.c tests/sim/again.c tests/sim/quorum.c \
             tests/sim/fsdp_worlds.c tests/sim/pipeline_worlds.c)
LINEAR_SRC := $(wildcard tests/sim/linear.c)
FUZZ_SRC  := $(wildcard tests/fuzz/*.c)
BENCH_SRC := $(wildcard tests/bench/bench.c)
DEMO_SRC  := $(wildcard examples/03_train_text.c)
EXAMPLE_SRC := $(wildcard examples/*.c)
TOOL_SRC  := $(filter-out tools/join.c,$(wildcard tools/*.c))

UNIT     := $(UNIT_SRC:tests/unit/%.c=%)
PROCS    := $(PROC_SRC:tests/procs/%.c=%)
NCCL     := $(NCCL_SRC:tests/nccl/%.c=%)
MEM      := $(MEM_SRC:tests/mem/%.c=%)
DTENSOR  := $(DTENSOR_SRC:tests/dtensor/%.c=%)
SIM      := $(SIM_SRC:tests/sim/sim_main.c=sim)
SCRIPTS  := $(SCRIPT_SRC:tests/sim/%.c=%)
ROUNDS   := $(ROUND_SRC:tests/sim/%.c=%)
LINEAR   := $(LINEAR_SRC:tests/sim/linear.c=linear)
FUZZ     := $(FUZZ_SRC:tests/fuzz/%.c=%)
BENCH    := $(BENCH_SRC:tests/bench/%.c=$(BUILD)/bench/%)
# examples in C++, where there is a compiler for it
CXX_SRC  := $(if $(shell command -v g++),$(wildcard examples/*.cpp))
EXAMPLES := $(EXAMPLE_SRC:examples/%.c=$(BUILD)/%) $(TOOL_SRC:tools/%.c=$(BUILD)/%) $(CXX_SRC:examples/%.cpp=$(BUILD)/%)
NO_THREADS := $(patsubst %,%_no_threads,$(filter test_group test_elastic_polled,$(UNIT)))
PROGRAMS := $(UNIT) $(NO_THREADS) $(PROCS) $(NCCL) $(MEM) $(DTENSOR) $(FUZZ) $(SIM) $(SCRIPTS) $(ROUNDS) $(LINEAR)

.PHONY: help demo demo-elastic examples programs waiting test test-strict sim sim-hour bench bench-peers bench-memory bench-store bench-mac bench-dtensor bench-rpc bench-elastic bench-fsdp bench-leaves bench-report bench-updates bench-pipeline bench-checkpoint bench-slow-wire scale mutants sanitize format format-check headers headers-check src-check sizes platforms firmware install dist pages clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#: \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

#: Use
#:   demo             four ranks on this machine train a small text model together
#:   demo-elastic     the same model while one of four ranks is killed and another one joins; the loss curve as an SVG
#:   examples         compile the examples, each with the one gcc line of its first comment
#:   install          headers, and what pkg-config and CMake read, to PREFIX=/usr/local (DESTDIR before it)
#:   pages            the manuals and declarations of all headers as pages for a browser: BUILD/pages/index.html; python3
#:   dist             an archive of headers, tools, examples and documents, with the sums of all files
#:
#: Change
#:   headers          join cdp*.h from src/; headers-check compares them
#:   src-check        every file of src/ compiles alone
#:   format           lay out all C sources as .clang-format says (clang-format 14); format-check compares
#:   test             all tests, some minutes on two cores; MORE=1: more and larger worlds, more points of death, more defines
#:   test T=NAME      one of them; CASE='NAME ...': only these cases of it
#:   test-strict      tests with limits of time, to the letter: on a quiet machine
#:   sanitize         the tests again under AddressSanitizer, UBSan and ThreadSanitizer
#:
#: Prove more
#:   sim              more simulated worlds, also of cdp_rpc.h: make sim SEEDS=1..100000
#:   sim-hour         worlds from seeds that nobody used before, for SIM_SECONDS=3600; SIM_FROM=SEED repeats
#:   mutants          plant small defects and see which of them the tests notice; three hours for COUNT=300 on two cores
#:   platforms        a table of systems: compiled with zig (pip install ziglang), run under qemu-user and wine
#:   firmware         two emulated boards without a system train together: gcc-arm-none-eabi, qemu-system-arm
#:   sizes            text and data of the headers; compile time for each line
#:
#: Measure
#:   bench            this library alone
#:   bench-peers      beside Open MPI, MPICH, Gloo and raw sockets; PEERS="--full" for longer
#:   bench-dtensor    redistributions, losses and attention beside PyTorch and ScaLAPACK; PYTHON=python3 says which Python has torch
#:   bench-memory     the memory allocator beside others and a model of PyTorch's
#:   bench-rpc        calls beside bare messages, gRPC and PyTorch; RPC="--help" says how
#:   bench-elastic    how long ranks take to go on after a death, and what each step of cdp_elastic.h costs
#:   bench-pipeline   the driver of cdp_pipeline.h beside a schedule on paper; PIPELINE="STEPS SLEEP_US"
#:   bench-fsdp       a step of sharded training beside one of DDP, 2 and 4 ranks; FSDP="--steps 100 --width 64"; and beside
#:                    PyTorch's fully_shard, PYTHON=python3 says which Python has torch; SHARDS="--blocks 8 --width 512"
#:   bench-checkpoint  saves and loads beside plain files of the same bytes, and beside PyTorch; CHECKPOINT="FOLDER MIB PASSES"
#:   bench-leaves     a step with the same bits on any number of ranks beside one of DDP, 1, 2 and 4 ranks; LEAVES="--work 1"
#:   bench-report     what watching a job (cdp_report) adds to a step, 2 and 4 ranks; REPORT="--step-ms 20"
#:   bench-updates    clipping and optimizers beside memcpy; UPDATES="VALUES TURNS"
#:   bench-slow-wire  DDP beside DiLoCo over a wire of 50 Mbit/s and 80 ms (root); SLOW="STEPS PERIOD MBIT_PER_S DELAY_MS"
#:   bench-store      the store server beside PyTorch and Redis
#:   bench-mac        what authentication codes between ranks cost
#:   scale            what each algorithm costs with 16 to 4,096 ranks, and what that predicts
#:
#:   clean            remove $(BUILD)
#:
#: BUILD=DIR puts everything elsewhere, JOBS=N limits how many processes a suite uses.

# ---- what is built ----

$(BUILD)/% : examples/%.c $(HEADERS)
	@mkdir -p $(@D)
	gcc -O2 $< -o $@ -pthread -lm
$(TOOL_SRC:tools/%.c=$(BUILD)/%): $(BUILD)/%: tools/%.c $(HEADERS)
	@mkdir -p $(@D)
	gcc -O2 $< -o $@ -pthread -lm

$(CXX_SRC:examples/%.cpp=$(BUILD)/%): $(CXX_SRC) $(HEADERS)
	@mkdir -p $(@D)
	g++ -O2 examples/$(@F).cpp -o $@ -pthread
$(CXX_SRC:examples/%.cpp=$(BUILD)/test/%): $(CXX_SRC) $(HEADERS)
	@mkdir -p $(@D)
	g++ -O0 examples/$(@F).cpp -o $@ -pthread

$(BUILD)/train_text: $(DEMO_SRC) $(HEADERS)
	@test -n '$(DEMO_SRC)' || { echo 'make: examples/03_train_text.c is missing'; exit 1; }
	@mkdir -p $(@D)
	gcc -O2 $< -o $@ -pthread -lm

# examples that train one model
$(BUILD)/train_text $(BUILD)/03_train_text $(BUILD)/11_pipeline $(BUILD)/21_elastic $(BUILD)/23_slow_network $(BUILD)/24_fsdp $(BUILD)/26_gpt2 $(BUILD)/27_gpt $(BUILD)/bench/fsdp: examples/text_model.h examples/loss_curve.h examples/options.h
$(BUILD)/bench/fsdp: examples/24_fsdp.c
$(BUILD)/27_gpt: examples/gpt_model.h
$(BUILD)/cdprun: $(wildcard tools/cdprun_*.h)
$(BUILD)/checkpoint: tools/checkpoint_torch.h

examples: $(EXAMPLES)

$(BUILD)/sources: tests/sources/sources.c
	@mkdir -p $(@D)
	$(CC) -O1 -g -D_GNU_SOURCE -Wall -Wextra -Wshadow $< -o $@

# Tests see the headers joined from src/ as it is now: the same text that users copy, see headers-check. Where no text has
# changed all stay as they are: the library is not compiled again because of their time. Where one has, cdp.h is new: only
# that one is known below.
JOINED := $(BUILD)/joined
$(JOINED)/cdp.h: $(BUILD)/join $(wildcard src/*.h src/*/*.h)
	@mkdir -p $(@D).new $(@D)
	@$(BUILD)/join src $(@D).new && for h in $(@D).new/*.h; do cmp -s $$h $(@D)/$${h##*/} || { mv $$h $(@D) && touch $@; }; done

# The library is compiled once for each folder below (tests/library.c); tests link it and compile only what is theirs
# (tests/linked.h). Those that tests/linked.sh names compile more themselves, everything or a header (tests/own.h): the
# linker takes from an archive only what it misses. What includes an example finds the headers as users do, where gcc
# would warn of every function that it only reads.
OWN    := $(if $(wildcard tests/linked.sh),$(shell bash tests/linked.sh own))
PARTLY := $(if $(wildcard tests/linked.sh),$(shell bash tests/linked.sh partly))
FROM_SRC := -isystem src -idirafter . -Itests
# $(1): level of optimisation. gcc reads the headers once for each folder and level, and keeps what it knows of them
# (linked.h.gch). Where that does not fit the flags of a test, it reads the text beside it. Of joined headers it does not
# ask how lines are indented: see STRICT in tests/compile/run.sh.
SEES    = $(if $(filter $(OWN) %_no_threads,$(basename $(@F))),-Wno-misleading-indentation -I$(JOINED) -idirafter . -Itests,$(FROM_SRC) -include $(if $(filter -O2,$(1))$(filter $(PARTLY),$(basename $(@F))),tests,$(@D)/read$(firstword $(1)))/linked.h$(if $(filter test_train_text,$(basename $(@F))), -w))

# Tests run the examples linked with that object; `make examples` compiles them as their first comments say. Of the copies
# here, "../cdp.h" is src/cdp.h. Only those that compute for longer than gcc needs to optimise them are optimised.
EXAMPLE_O = $(if $(MORE)$(filter 03_train_text 11_pipeline 21_elastic 23_slow_network 24_fsdp 26_gpt2 27_gpt,$(basename $(@F))),-O1 -fno-inline,-O0)
EXAMPLE_COPIES := $(patsubst %,$(BUILD)/linked/%,$(EXAMPLE_SRC) $(TOOL_SRC) $(wildcard examples/*.h tools/*.h))
$(EXAMPLE_COPIES): $(BUILD)/linked/%: %
	@mkdir -p $(@D) && cp $< $@
	@for h in $(HEADERS); do echo "#include <$$h>" > $(BUILD)/linked/$$h; done
$(EXAMPLE_SRC:examples/%.c=$(BUILD)/test/%.o): $(BUILD)/test/%.o: $(BUILD)/linked/examples/%.c | $(EXAMPLE_COPIES)
	@mkdir -p $(@D)
	gcc $(EXAMPLE_O) -Wall -Wextra -isystem src -include tests/linked.h -MD -MP -c $< -o $@ $(KEEP_WARNINGS)
$(TOOL_SRC:tools/%.c=$(BUILD)/test/%.o): $(BUILD)/test/%.o: $(BUILD)/linked/tools/%.c | $(EXAMPLE_COPIES)
	@mkdir -p $(@D)
	gcc -O0 -Wall -Wextra -isystem src -include tests/linked.h -MD -MP -c $< -o $@ $(KEEP_WARNINGS)

# What the compiler says is shown, and kept for tests/compile/run.sh.
KEEP_WARNINGS = 2> $(@:.o=.warnings); made=$$?; cat $(@:.o=.warnings) >&2; exit $$made

# $(1): folder below BUILD, $(2): compiler and flags, $(3): level of optimisation, $(4): programs at -O1 that are linked,
# a pattern for all. Dependencies on headers are tracked by the compiler. Programs of nccl and mem load other libraries.
define PROGRAM_RULES
$(BUILD)/$(1)/libcdp.o: tests/library.c $(JOINED)/cdp.h
	@mkdir -p $$(@D)
	$(2) $(3) -Wno-misleading-indentation -I$(JOINED) -c $$< -o $$@ $$(KEEP_WARNINGS)
$(BUILD)/$(1)/libcdp.a: $(BUILD)/$(1)/libcdp.o
	@rm -f $$@ && ar rcs $$@ $$<
$(BUILD)/$(1)/read-%/linked.h.gch: tests/linked.h tests/library.c
	@mkdir -p $$(@D) && printf '#define _GNU_SOURCE\n#include "tests/linked.h"\n#include "tests/library.c"\n' > $$(@:.gch=)
	$(2) -$$* $$(if $$(filter O1,$$*),-fno-inline) $(FROM_SRC) -MD -MP -MF $$(@D).d -MT $$@ -x c-header $$(@:.gch=) -o $$@
$(foreach at_O1,$(filter $(4),$(LINKED)),$(BUILD)/$(1)/$(at_O1).o: $(BUILD)/$(1)/read-O1/linked.h.gch
)
$(foreach at_O0,$(filter-out $(4) $(BUSY),$(LINKED)),$(BUILD)/$(1)/$(at_O0).o: $(BUILD)/$(1)/read-O0/linked.h.gch
)
$(BUILD)/$(1)/%_no_threads.o: tests/unit/%.c | $(JOINED)/cdp.h
	@mkdir -p $$(@D)
	$(2) $(3) -DCDP_NO_THREADS $$(call SEES,$(3)) -MD -MP -c $$< -o $$@
$(foreach folder,unit procs dtensor fuzz sim nccl mem,
$(BUILD)/$(1)/%.o: tests/$(folder)/%.c | $(JOINED)/cdp.h
	@mkdir -p $$(@D)
	$(2) $(3) $(if $(filter mem,$(folder)),-fno-omit-frame-pointer) $$(call SEES,$(3)) -MD -MP -c $$< -o $$@
)
$(BUILD)/$(1)/sim.o: $(BUILD)/$(1)/sim_main.o
	@cp $$< $$@
$(NCCL:%=$(BUILD)/$(1)/%) $(MEM:%=$(BUILD)/$(1)/%): $(BUILD)/$(1)/nccl/libnccl.so
$(BUILD)/$(1)/nccl/libnccl.so: $(wildcard tests/nccl/standin* tests/nccl/build.sh)
	CC='$(CC)' bash tests/nccl/build.sh $(BUILD)/$(1)/nccl $(filter -fsanitize%,$(2))
$(BUILD)/$(1)/%: $(BUILD)/$(1)/%.o $(BUILD)/$(1)/libcdp.a
	$(2) $$< -o $$@ $(BUILD)/$(1)/libcdp.a $(LIBS) -ldl
endef
# The library is tested at -O2, and gcc does not follow where each variable is after that: everything waits for this object.
# What only calls it takes gcc longer to optimise than to run, and at more than -O1 it would
# look into functions that are not compiled here.
BUSY    := libcdp rounds failure
SLOW    := test_table test_train_text fuzz_memory test_mem_random test_dtensor_plans test_ddp_model test_memory test_lend test_group test_group_threads test_rpc \
           $(filter-out $(BUSY) rpc_waves,$(SIM) $(SCRIPTS) $(ROUNDS) $(LINEAR))
level    = $(if $(filter $(1),$(basename $(@F))),$(2),$(3))
LINKED  := $(filter-out $(OWN) $(PARTLY) %_no_threads,$(PROGRAMS:sim=sim_main)) elastic_rank
$(eval $(call PROGRAM_RULES,test,$(CC) $(CFLAGS),$$(call level,$(BUSY),-O2$$(call level,libcdp, -fno-var-tracking-assignments),$$(call level,$(SLOW),-O1 -fno-inline,-O0)),$(SLOW)))
# gcc needs longer to optimise a program with AddressSanitizer and UBSan in it than most of them run: only these are worth it.
ASAN_SLOW := libcdp sim_main scripts linear test_table test_ddp_model test_ddp_hooks test_train_text test_dtensor_plans
$(eval $(call PROGRAM_RULES,asan,$(CC) $(CFLAGS) -fno-omit-frame-pointer -fsanitize=address$(comma)undefined -fno-sanitize-recover=all,$$(call level,$(ASAN_SLOW),-O1 -fno-inline$$(call level,libcdp, -fno-var-tracking-assignments),-O0),$(ASAN_SLOW)))
$(eval $(call PROGRAM_RULES,strict,$(CC) $(CFLAGS) -DTEST_STRICT,$$(call level,libcdp,-O2,-O0),))
# A test calls the library, which is optimised, and gcc needs four times as long to optimise it. These compute themselves,
# or compile the library.
TSAN_SLOW := libcdp test_train_text test_ddp_hooks test_memory test_lend $(filter-out test_small_build test_tcp,$(OWN) $(PARTLY))
$(eval $(call PROGRAM_RULES,tsan,$(CC) $(CFLAGS) -fsanitize=thread,$$(call level,$(TSAN_SLOW),-O1 -fno-inline$$(call level,libcdp, -fno-var-tracking-assignments),-O0),$(TSAN_SLOW)))
.SECONDARY:

$(BUILD)/bench/%: tests/bench/%.c $(HEADERS)
	@mkdir -p $(@D)
	$(CC) -O2 -g $(INCLUDE) $< -o $@ $(LIBS)

-include $(wildcard $(BUILD)/test/*.d $(BUILD)/asan/*.d $(BUILD)/tsan/*.d $(BUILD)/strict/*.d)

# ---- what is run ----

# Suites as tests/run_all.sh takes them: 'name|seconds|command'. $(1): folder below BUILD, $(2): seconds for each,
# $(3): seeds of the simulation, $(4): names of programs, $(5): what to put before each.
suites = $(foreach t,$(4),'$(t)|$(2)|$(5) $(BUILD)/$(1)/$(t)$(call words_for,$(t),$(3))')
words_for = $(if $(filter sim,$(1)), --seeds $(2) --jobs $(JOBS))$(if $(MORE),$(if \
            $(filter rounds elastic ring,$(1)), --all),$(if $(filter elastic_worlds,$(1)), --seeds 10)$(if $(filter rpc_worlds,$(1)), --seeds 60))

# One simulated world that once went wrong: name, scenario, fault, seed.
world_again = 'sim_$(1)|60|$(BUILD)/test/sim --scenario $(2) --faults $(3) --seeds $(4)..$(4)'

RUN := BUILD='$(BUILD)' JOBS='$(JOBS)' CC='$(CC)' bash tests/run_all.sh

# More suites at a time than there are cores: many of them mostly wait. Nothing can be linked before the library is
# compiled (`waiting`), by one process: meanwhile src_check and others that need nothing else have the other cores. Programs
# that wait longest begin while the other ones are compiled, which is the suite `programs`; what follows after:programs begins
# when that has ended. Then the longest begin first.
LANES := $(if $(filter 1,$(JOBS)),1,5)
WAITING := $(filter test_procs test_procs_death test_procs_start test_elastic test_elastic_calls test_elastic_shrink test_elastic_kill test_store linear test_lanes,$(PROGRAMS))
LONG := test_procs_death test_procs_start test_procs test_elastic_kill test_nccl test_ddp_hooks sim scripts test_group_threads test_group rounds ring failure elastic_worlds test_start quorum test_memory \
        test_table test_lanes elastic fuzz_memory test_rpc test_rpc_scenarios test_works test_lend test_tcp
longest_first = $(foreach t,$(LONG),$(filter $(t),$(1))) $(filter-out $(LONG),$(1))
SUITES = \
    'waiting|1800|$(MAKE) --no-print-directory -j$(JOBS) waiting && echo "$(words $(WAITING)) passed, 0 failed"' \
    'src_check|300|nice $(MAKE) -s --no-print-directory -j1 src-check' \
    'sources|120|nice bash tests/check_sources.sh' \
    'porting|60|nice bash tests/porting.sh' \
    'freestanding|60|nice bash tests/freestanding.sh' \
    after:waiting \
    'programs|1800|$(MAKE) --no-print-directory -j$(JOBS) programs && echo "$(words $(PROGRAMS)) passed, 0 failed"' \
    $(call suites,test,600,$(SEEDS),$(filter test_procs_death,$(WAITING))) \
    $(if $(wildcard tests/procs/test_nodes.sh),'nodes|600|bash tests/procs/test_nodes.sh') \
    $(if $(wildcard tests/procs/test_elastic_nodes.sh),'elastic_nodes|300|bash tests/procs/test_elastic_nodes.sh') \
    $(call suites,test,600,$(SEEDS),$(filter-out test_procs_death,$(WAITING))) \
    after:programs \
    'compile|900|EVERYTHING=$(MORE) bash tests/compile/run.sh' \
    'examples|600|MORE=$(MORE) bash tests/run_examples.sh' \
    $(call suites,test,600,$(SEEDS),$(filter-out $(WAITING),$(PROCS))) \
    $(if $(wildcard tests/procs/test_elastic_churn.sh),'elastic_churn|300|bash tests/procs/test_elastic_churn.sh --seconds 8') \
    'checkpoint_kill|300|bash tests/procs/test_checkpoint_kill.sh --kills $(if $(MORE),20,3)' \
    'checkpoint_tool|120|bash tests/procs/test_checkpoint_tool.sh' \
    'checkpoint_elastic|300|bash tests/procs/test_checkpoint_elastic.sh' \
    $(if $(wildcard tests/procs/test_launch.sh),'launch|600|bash tests/procs/test_launch.sh') \
    $(if $(wildcard tests/procs/test_netns.sh),'netns|120|bash tests/procs/test_netns.sh') \
    $(if $(wildcard tests/procs/test_cdprun.sh),'cdprun|600|CDPRUN_KILLS=15 sh tests/procs/test_cdprun.sh $(BUILD)/test/cdprun $(BUILD)/cdprun_test') \
    $(call suites,test,600,$(SEEDS),$(call longest_first,$(filter-out $(PROCS) $(WAITING),$(PROGRAMS)))) \
    'sim_default|600|$(BUILD)/test/sim --threads --memory --seeds 1..$(if $(MORE),100,15) --jobs $(JOBS)' \
    'sim_frames|600|$(BUILD)/test/sim --scenario job --frames 16 --seeds 1..$(if $(MORE),40,15) --jobs $(JOBS)' \
    'headers|60|$(MAKE) -s headers-check' \
    'walk|120|CC='\''$(CC)'\'' bash tests/walk.sh $(BUILD)/walk' \
    $(if $(SIM),$(call world_again,left_early,job,kill,2431) $(call world_again,corrected_blame,job,stop,1164) $(call world_again,number_of_a_call,hub,mismatch,1874) $(call world_again,end_of_a_chain,job,isolate,1728) $(call world_again,rebuild_out_of_memory,wide,nomem,67) $(call world_again,looks_at_a_rank_that_has_left,wide_tcp,kill,384) $(call world_again,who_saw_it_first,tensors,nomem,1795937400640)) \
    $(if $(wildcard tests/procs/test_mpi.sh),'mpi|300|bash tests/procs/test_mpi.sh') \
    'mem_interop|120|bash tests/mem/interop.sh' \
    'scale|120|bash tests/bench/test_scale.sh $(BUILD)/bench/scale' \
    'help|120|bash tests/help.sh'

STARTED := $(shell date +%s)
ifdef T
# One test, by the name of its program or suite: make test T=test_core CASE='deadlines'.
NAMES := $(patsubst '%,%,$(filter '%,$(subst |, ,$(SUITES))))
ONE   := $(firstword $(filter $(T) test_$(T),$(NAMES)))
$(if $(ONE),,$(error there is no test $(T); there are: $(sort $(NAMES))))
test: $(if $(filter $(ONE),sources headers src_check waiting programs),,$(if $(filter $(ONE),$(PROGRAMS)),$(BUILD)/test/$(ONE),programs))
	@for suite in $(SUITES); do \
	    case "$$suite" in '$(ONE)|'*) BUILD='$(BUILD)' CC='$(CC)' JOBS='$(JOBS)' exec bash -c "$${suite##*|} $$CASE" ;; esac; \
	done
else
test:
	@TEST_STARTED=$(STARTED) LANES='$(LANES)' $(RUN) $(BUILD)/logs $(SUITES)
endif
export CASE

# Tests that hold something to a limit of time, to the letter, one after the other: for a quiet machine.
STRICT := $(basename $(notdir $(shell grep -slE 'T_WITHIN|TEST_SLACK' tests/unit/test_*.c)))
test-strict: $(STRICT:%=$(BUILD)/strict/%)
	@TEST_STRICT=1 LANES=1 $(RUN) $(BUILD)/logs/strict $(patsubst '%,'strict_%,$(call suites,strict,600,,$(STRICT)))

# SEEDS=1..10000: the worlds of the simulator, and those of cdp_rpc.h with each of their seven faults.
sim: $(SIM:%=$(BUILD)/test/%) $(BUILD)/test/rpc_worlds
	@$(RUN) $(BUILD)/logs $(call suites,test,86400,$(SEEDS),$(SIM)) \
	    'rpc_worlds|86400|$(BUILD)/test/rpc_worlds --seeds $(SEEDS)'

# All scenarios and faults, with and without threads and shared memory. Each failure says how it is seen again.
SIM_SECONDS ?= 3600
sim-hour: $(SIM:%=$(BUILD)/test/%)
	@$(BUILD)/test/sim --seconds $(SIM_SECONDS) $(if $(SIM_FROM),--from $(SIM_FROM)) --jobs $(JOBS)

# Some kernels place a program where ThreadSanitizer cannot live; without randomised addresses it always works. The
# simulation, the round functions and the tests of ALONE have one thread, so they are left out there; round functions touch
# no memory to speak of, and their proof takes long: left out of both.
STILL = $(shell setarch -R true 2>/dev/null && echo setarch -R)
ALONE := test_ddp_model test_exec test_hostile test_mistakes test_mem test_mem_files test_mem_random test_mem_record \
         test_dtensor_rules test_dtensor_plans test_failure test_telling test_reduce test_sampler test_arguments \
         test_precision test_optimizers test_frame test_pipeline
THREADED := $(filter-out $(ALONE),$(UNIT) $(PROCS) $(NCCL) $(MEM) $(DTENSOR))
sanitize: export ASAN_OPTIONS := allocator_may_return_null=1
sanitize: export TSAN_OPTIONS := allocator_may_return_null=1
SAN_SUITES = $(patsubst '%,'$(1)_%,$(call suites,$(1),600,1..25,$(call longest_first,$(2)),$(3)))
ASANED := $(filter-out $(ROUNDS),$(PROGRAMS))
sanitize-asan: $(ASANED:%=$(BUILD)/asan/%)
	@LANES='$(LANES)' $(RUN) $(BUILD)/logs/sanitize $(call SAN_SUITES,asan,$(ASANED))
sanitize-tsan: $(THREADED:%=$(BUILD)/tsan/%)
	@LANES='$(LANES)' $(RUN) $(BUILD)/logs/sanitize $(call SAN_SUITES,tsan,$(THREADED),$(STILL))
# The one compiles while the other's tests run. What each says is seen as it says it.
sanitize: $(THREADED:%=$(BUILD)/tsan/%)
	@mkdir -p $(BUILD)/logs/sanitize
	@for kind in tsan asan; do \
	    { $(MAKE) --no-print-directory sanitize-$$kind 2>&1; echo $$? > $(BUILD)/logs/$$kind.rc; } | tee $(BUILD)/logs/$$kind.txt & \
	done; wait; \
	bad=$$(cat $(BUILD)/logs/tsan.rc $(BUILD)/logs/asan.rc | grep -vc '^0$$'); \
	grep -hE '^[0-9]+ passed, [0-9]+ failed$$' $(BUILD)/logs/asan.txt $(BUILD)/logs/tsan.txt | awk -v bad=$$bad '{ p += $$1; f += $$3 } END { if (bad && !f) f = 1; print p + 0 " passed, " f + 0 " failed"; exit f > 0 }'

bench: $(BENCH) $(EXAMPLES)
	@if test -f tests/bench/run.sh; then BUILD='$(BUILD)' bash tests/bench/run.sh; \
	else for b in $(BENCH); do $$b || exit 1; done; fi

waiting: $(WAITING:%=$(BUILD)/test/%) $(patsubst %,$(BUILD)/test/%,elastic_rank cdprun 01_hello 03_train_text)
programs: $(PROGRAMS:%=$(BUILD)/test/%) $(BUILD)/test/elastic_rank $(EXAMPLE_SRC:examples/%.c=$(BUILD)/test/%) $(TOOL_SRC:tools/%.c=$(BUILD)/test/%) $(CXX_SRC:examples/%.cpp=$(BUILD)/test/%) $(BUILD)/bench/scale

bench-peers:
	@BUILD='$(BUILD)' bash tests/bench/peers/run.sh $(PEERS)

# PASSES=20
bench-mac: $(BUILD)/bench/mac
	@$(BUILD)/bench/mac $(PASSES)

scale: $(BUILD)/bench/scale
	@$(BUILD)/bench/scale $(SCALE)

bench-dtensor:
	@BUILD='$(BUILD)' PYTHON='$(PYTHON)' bash tests/bench/dtensor.sh

bench-memory:
	@BUILD='$(BUILD)' bash tests/bench/memory.sh

bench-rpc:
	@BUILD='$(BUILD)' PYTHON='$(PYTHON)' bash tests/bench/rpc.sh $(RPC)

bench-elastic: $(BUILD)/bench/elastic
	@$(BUILD)/bench/elastic $(ELASTIC)

bench-pipeline: $(BUILD)/bench/pipeline
	@$(BUILD)/bench/pipeline $(PIPELINE)

bench-checkpoint: $(BUILD)/bench/checkpoint
	@$(BUILD)/bench/checkpoint $(CHECKPOINT)
	@BUILD='$(BUILD)' PYTHON='$(PYTHON)' bash tests/bench/checkpoint.sh

bench-fsdp: $(BUILD)/bench/fsdp $(BUILD)/cdprun
	@echo "# $$(uname -srm), $$(nproc) cores, load $$(cut -d' ' -f1-3 /proc/loadavg)"
	@for n in 2 4; do for how in '' --tcp; do $(BUILD)/cdprun -n $$n $(BUILD)/bench/fsdp $$how $(FSDP) || exit 1; done; done
	@BUILD='$(BUILD)' PYTHON='$(PYTHON)' bash tests/bench/shards.sh $(SHARDS)

bench-leaves: $(BUILD)/bench/leaves $(BUILD)/cdprun
	@echo "# $$(uname -srm), $$(nproc) cores, load $$(cut -d' ' -f1-3 /proc/loadavg)"
	@for n in 1 2 4; do $(BUILD)/cdprun -n $$n $(BUILD)/bench/leaves $(LEAVES) || exit 1; done

bench-report: $(BUILD)/bench/report $(BUILD)/cdprun
	@echo "# $$(uname -srm), $$(nproc) cores, load $$(cut -d' ' -f1-3 /proc/loadavg)"
	@for n in 2 4; do $(BUILD)/cdprun -n $$n $(BUILD)/bench/report $(REPORT) || exit 1; done

bench-updates: $(BUILD)/bench/updates
	@$(BUILD)/bench/updates $(UPDATES)

bench-slow-wire:
	@BUILD='$(BUILD)' bash tests/bench/slow_wire.sh $(SLOW)

bench-store:
	@bash tests/bench/store/run.sh

# COUNT=300 SEED=1 LIMIT=10800 (seconds) and HEADERS say how much; run it again to go on where it stopped.
mutants:
	BUILD=$(BUILD) JOBS=$(JOBS) bash tests/mutants/run.sh

demo: $(BUILD)/cdprun $(BUILD)/train_text
	@mkdir -p $(BUILD)/demo
	$(BUILD)/cdprun -n 4 $(BUILD)/train_text --svg $(BUILD)/demo/loss.svg --save $(BUILD)/demo/model.ckpt

demo-elastic: $(BUILD)/21_elastic
	@mkdir -p $(BUILD)/demo
	$(BUILD)/21_elastic $(BUILD)/demo/elastic.svg

# Other versions of clang-format lay out some lines differently: only the pinned one may rewrite or judge.
FORMAT := $(firstword $(foreach f,clang-format-14 clang-format,$(if $(shell $(f) --version 2>/dev/null | grep -o 'version 14\.'),$(f))))
# what is written by hand: headers-check compares the joined ones with that
C_SOURCES = $(shell git ls-files '*.h' '*.c' ':!:cdp*.h')
format format-check: NEEDS = $(if $(FORMAT),,$(error clang-format 14 is missing; on Debian 12: apt-get install clang-format-14))
format:
	@$(NEEDS)$(FORMAT) -i $(C_SOURCES)
format-check:
	@$(NEEDS)xargs -P '$(JOBS)' -n 50 $(FORMAT) --dry-run -Werror <<< '$(C_SOURCES)'

# The headers at the top are joined from src/; `make test` compares them.
$(BUILD)/join: tools/join.c
	@mkdir -p $(@D)
	$(CC) -O1 -g -Wall -Wextra $< -o $@
headers: $(BUILD)/join
	@$(BUILD)/join src .
headers-check: $(JOINED)/cdp.h
	@for h in cdp*.h; do cmp $$h $(BUILD)/joined/$$h || { echo "$$h is not what src/ gives: make headers"; exit 1; }; done
	@echo '$(words $(HEADERS)) passed, 0 failed'

# Every file of src/ compiles alone. That of cdp_mpi.h needs an MPI: INCLUDE_MPI says where its mpi.h is.
INCLUDE_MPI ?= $(firstword $(wildcard /usr/lib/*/openmpi/include /usr/lib/*/mpich/include))
SRC_ALONE := $(filter-out $(if $(INCLUDE_MPI),,src/mpi/%),$(wildcard src/*/*.h))
src-check: $(SRC_ALONE:src/%.h=$(BUILD)/alone/%.ok)
	@echo '$(words $(SRC_ALONE)) passed, 0 failed'
# Two thirds of them include one of these, through others, and gcc reads that once: tests/before.awk says why it proves the
# same. Larger ones come first.
BEFORE    := group/state base/basics
READ_ONCE := $(BEFORE:%=$(BUILD)/alone/before/%.gch)
ALONE     := $(CC) -std=gnu11 -Wall -Wextra -Werror -Winvalid-pch $(INCLUDE_MPI:%=-isystem %)
$(READ_ONCE): $(BUILD)/alone/before/%.gch: src/%.h
	@mkdir -p $(@D) && echo '#include "$(CURDIR)/$<"' > $(@:.gch=)
	@$(ALONE) -x c-header $(@:.gch=) -o $@ -MMD -MP -MF $@.d -MT $@
$(BUILD)/alone/before/list: tests/before.awk $(wildcard src/*/*.h)
	@mkdir -p $(@D) $(sort $(dir $(SRC_ALONE:src/%=$(BUILD)/alone/%))) && awk -v before='$(BEFORE)' -f $< $(filter src/%,$^) > $@
$(BUILD)/alone/%.ok: src/%.h | $(READ_ONCE) $(BUILD)/alone/before/list
	@$(ALONE) -fsyntax-only -fpch-deps $$(sed -n 's,^$* ,-include $(BUILD)/alone/before/,p' $(BUILD)/alone/before/list) -x c $< -MMD -MP -MF $@.d -MT $@ && touch $@
-include $(if $(filter src-check $(BUILD)/alone/%,$(MAKECMDGOALS)),$(wildcard $(BUILD)/alone/*/*.d $(BUILD)/alone/before/*/*.d))

platforms:
	@bash tests/platforms.sh $(BUILD)

# Two Cortex-M boards, each with 80 KB of code and 20 KB of memory, train over a serial line, and then with this machine.
firmware:
	@bash tests/firmware.sh $(BUILD)

sizes:
	@bash tests/sizes.sh $(BUILD)

# What a program finds with pkg-config or find_package; packaging/README.md. DESTDIR stands before it, where packages are made.
PREFIX  ?= /usr/local
VERSION := $(shell awk '/^\#define CDP_VERSION_(MAJOR|MINOR|PATCH) / { v = v (v == "" ? "" : ".") $$3 } END { print v }' cdp.h)
install:
	@install -d $(addprefix '$(DESTDIR)$(PREFIX)'/,include share/pkgconfig share/cmake/cdp share/licenses/cdp)
	@install -m 644 $(HEADERS) '$(DESTDIR)$(PREFIX)/include'
	@sed 's/@VERSION@/$(VERSION)/' packaging/cdp.pc.in > '$(DESTDIR)$(PREFIX)/share/pkgconfig/cdp.pc'
	@install -m 644 packaging/*.cmake '$(DESTDIR)$(PREFIX)/share/cmake/cdp'
	@install -m 644 LICENSE '$(DESTDIR)$(PREFIX)/share/licenses/cdp'

pages:
	@python3 tools/pages.py '$(BUILD)/pages'

# Of the same commit the same bytes. SHA256SUMS lists every file of the archive but itself.
DIST := cdp-$(VERSION)
dist:
	@rm -rf '$(BUILD)/dist' && mkdir -p '$(BUILD)/dist/$(DIST)'
	@git ls-files -z ':(glob)*.md' ':(glob)cdp*.h' docs examples fortran packaging python tools tests/bench/peers/speed.svg \
	    LICENSE REUSE.toml Makefile CMakeLists.txt 'meson*' | xargs -0 cp --parents -t '$(BUILD)/dist/$(DIST)'
	@cd '$(BUILD)/dist/$(DIST)' && find . -type f ! -name SHA256SUMS | sed 's,^\./,,' | LC_ALL=C sort | xargs sha256sum > SHA256SUMS
	@time=$$(git log -1 --format=%ct) && cd '$(BUILD)/dist' && tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r,go-w \
	    --mtime="@$$time" -cf - $(DIST) | gzip -n9 > $(DIST).tar.gz && \
	    sha256sum $(DIST).tar.gz > $(DIST).tar.gz.sha256
	@rm -r '$(BUILD)/dist/$(DIST)' && echo '$(BUILD)/dist/$(DIST).tar.gz'

clean:
	rm -rf $(BUILD)
