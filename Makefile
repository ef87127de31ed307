# Everything is made below BUILD (default: build) and nothing outside it; two makes with different BUILD do not meet.
# Needs GNU make, gcc, bash and coreutils. A program that uses cdp needs none of this: it copies the headers.

comma := ,
SHELL := /bin/bash

BUILD   ?= build
CC      := gcc
SEEDS   ?= 1..1500
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)

CFLAGS  := -O2 -g -std=gnu11 -Wall -Wextra -Wshadow -Wpointer-arith -Wundef
INCLUDE := -I. -Itests
LIBS    := -pthread -lm

HEADERS   := $(wildcard cdp*.h)
UNIT_SRC  := $(wildcard tests/unit/test_*.c)
PROC_SRC  := $(wildcard tests/procs/test_*.c)
SIM_SRC   := $(wildcard tests/sim/sim_main.c)
ROUND_SRC := $(wildcard tests/sim/rounds.c)
BENCH_SRC := $(wildcard tests/bench/*.c)
DEMO_SRC  := $(wildcard examples/03_train_text.c)
EXAMPLE_SRC := $(wildcard examples/*.c)

UNIT     := $(UNIT_SRC:tests/unit/%.c=%)
PROCS    := $(PROC_SRC:tests/procs/%.c=%)
SIM      := $(SIM_SRC:tests/sim/sim_main.c=sim)
ROUNDS   := $(ROUND_SRC:tests/sim/rounds.c=rounds)
BENCH    := $(BENCH_SRC:tests/bench/%.c=$(BUILD)/bench/%)
EXAMPLES := $(EXAMPLE_SRC:examples/%.c=$(BUILD)/%)
NO_THREADS := $(if $(filter test_group,$(UNIT)),test_group_no_threads)
PROGRAMS := $(UNIT) $(NO_THREADS) $(PROCS) $(SIM) $(ROUNDS)

.PHONY: help demo examples test sim bench sanitize clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@echo 'make demo       start four ranks on this machine that train a small text model together'
	@echo 'make examples   compile the examples, each with the one gcc line of its first comment'
	@echo 'make test       all tests; a few minutes on two cores'
	@echo 'make sim        more simulated worlds: make sim SEEDS=1..100000'
	@echo 'make bench      measure'
	@echo 'make sanitize   the tests again under AddressSanitizer, UBSan and ThreadSanitizer'
	@echo 'make clean      remove $(BUILD)'
	@echo
	@echo 'BUILD=DIR puts everything elsewhere, JOBS=N limits how many processes a suite uses.'

# ---- what is built ----

$(BUILD)/% : examples/%.c $(HEADERS)
	@mkdir -p $(@D)
	gcc -O2 $< -o $@ -pthread -lm

$(BUILD)/train_text: $(DEMO_SRC) $(HEADERS)
	@test -n '$(DEMO_SRC)' || { echo 'make: examples/03_train_text.c is missing'; exit 1; }
	@mkdir -p $(@D)
	gcc -O2 $< -o $@ -pthread -lm

examples: $(EXAMPLES)

# $(1): folder below BUILD, $(2): compiler and flags. Dependencies on headers are tracked by the compiler.
define PROGRAM_RULES
$(BUILD)/$(1)/%: tests/unit/%.c
	@mkdir -p $$(@D)
	$(2) $(INCLUDE) -MMD -MP -MF $$@.d $$< -o $$@ $(LIBS)
$(BUILD)/$(1)/%_no_threads: tests/unit/%.c
	@mkdir -p $$(@D)
	$(2) -DCDP_NO_THREADS $(INCLUDE) -MMD -MP -MF $$@.d $$< -o $$@ $(LIBS)
$(BUILD)/$(1)/%: tests/procs/%.c
	@mkdir -p $$(@D)
	$(2) $(INCLUDE) -MMD -MP -MF $$@.d $$< -o $$@ $(LIBS)
$(BUILD)/$(1)/sim: tests/sim/sim_main.c
	@mkdir -p $$(@D)
	$(2) $(INCLUDE) -MMD -MP -MF $$@.d $$< -o $$@ $(LIBS)
$(BUILD)/$(1)/rounds: tests/sim/rounds.c
	@mkdir -p $$(@D)
	$(2) $(INCLUDE) -MMD -MP -MF $$@.d $$< -o $$@ $(LIBS)
endef
$(eval $(call PROGRAM_RULES,test,$(CC) $(CFLAGS)))
$(eval $(call PROGRAM_RULES,asan,$(CC) $(CFLAGS) -O1 -fno-omit-frame-pointer -fsanitize=address$(comma)undefined -fno-sanitize-recover=all))
$(eval $(call PROGRAM_RULES,tsan,$(CC) $(CFLAGS) -O1 -fsanitize=thread))

$(BUILD)/bench/%: tests/bench/%.c $(HEADERS)
	@mkdir -p $(@D)
	$(CC) -O2 -g $(INCLUDE) $< -o $@ $(LIBS)

-include $(wildcard $(BUILD)/test/*.d $(BUILD)/asan/*.d $(BUILD)/tsan/*.d)

# ---- what is run ----

# $(1): folder below BUILD, $(2): factor of the time limits, $(3): seeds of the simulation, $(4): what to put before
suites = \
    $(foreach t,$(UNIT) $(NO_THREADS),'$(t)|$(2)00|$(4) $(BUILD)/$(1)/$(t)') \
    $(foreach t,$(ROUNDS),'$(t)|$(2)00|$(4) $(BUILD)/$(1)/$(t)') \
    $(if $(3),$(foreach t,$(SIM),'$(t)|$(2)00|$(4) $(BUILD)/$(1)/$(t) --seeds $(3) --jobs $(JOBS)')) \
    $(foreach t,$(PROCS),'$(t)|$(2)00|$(4) $(BUILD)/$(1)/$(t)')

test: $(PROGRAMS:%=$(BUILD)/test/%) $(EXAMPLES)
	@BUILD='$(BUILD)' JOBS='$(JOBS)' bash tests/run_all.sh $(BUILD)/logs \
	    'sources|60|bash tests/check_sources.sh' \
	    'compile|300|bash tests/compile/run.sh' \
	    $(call suites,test,3,$(SEEDS),) \
	    $(if $(wildcard tests/procs/test_cdprun.sh),'cdprun|300|bash tests/procs/test_cdprun.sh') \
	    'examples|300|bash tests/run_examples.sh'

sim: $(SIM:%=$(BUILD)/test/%)
	@bash tests/run_all.sh $(BUILD)/logs 'sim|36000|$(BUILD)/test/sim --seeds $(SEEDS) --jobs $(JOBS)'

# Some kernels place a program where ThreadSanitizer cannot live; without randomised addresses it always works.
STILL := $(shell setarch -R true 2>/dev/null && echo setarch -R)
sanitize: export ASAN_OPTIONS := allocator_may_return_null=1:detect_stack_use_after_return=0
sanitize: export TSAN_OPTIONS := halt_on_error=0:second_deadlock_stack=1
sanitize: $(PROGRAMS:%=$(BUILD)/asan/%) $(patsubst %,$(BUILD)/tsan/%,$(UNIT) $(PROCS))
	@echo 'AddressSanitizer, UndefinedBehaviorSanitizer:'
	@BUILD='$(BUILD)' JOBS='$(JOBS)' bash tests/run_all.sh $(BUILD)/logs/asan $(call suites,asan,9,1..200,) | tee $(BUILD)/asan.txt; exit $${PIPESTATUS[0]}
	@echo 'ThreadSanitizer (not of the simulation, which has one thread):'
	@BUILD='$(BUILD)' JOBS='$(JOBS)' bash tests/run_all.sh $(BUILD)/logs/tsan $(patsubst %,'%|900|$(STILL) $(BUILD)/tsan/%',$(UNIT) $(PROCS)) | tee $(BUILD)/tsan.txt; exit $${PIPESTATUS[0]}

bench: $(BENCH) $(EXAMPLES)
	@if test -f tests/bench/run.sh; then BUILD='$(BUILD)' bash tests/bench/run.sh; \
	else for b in $(BENCH); do $$b || exit 1; done; fi

demo: $(BUILD)/cdprun $(BUILD)/train_text
	@mkdir -p $(BUILD)/demo
	$(BUILD)/cdprun -n 4 $(BUILD)/train_text --svg $(BUILD)/demo/loss.svg --save $(BUILD)/demo/model.ckpt

clean:
	rm -rf $(BUILD)
