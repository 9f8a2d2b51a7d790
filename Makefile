# Front door to the build. `make help` lists the targets.
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
PYTHON ?= python3

CONFIGURE = cmake -G Ninja -S . --log-level=WARNING
NINJA = ninja -j $(JOBS)
CROSS_CC = aarch64-linux-gnu-gcc
MODEL = models/smollm2-135m-instruct.Q4_1.gguf
QUESTION = Why is the sky blue? Answer in two sentences.

.DEFAULT_GOAL := all
.PHONY: all help demo test test-build install asan ubsan tsan fuzz bench check-style format clean

all: $(BUILD)/build.ninja ## build the program: build/turbolm
	@$(NINJA) -C $(BUILD) turbolm

$(BUILD)/build.ninja:
	@$(CONFIGURE) -B $(BUILD) > /dev/null

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

demo: ## set up everything, build, fetch SmolLM2 and let it answer a question
	@scripts/setup demo
	@$(MAKE) --no-print-directory all
	@scripts/get-models smollm2
	@$(BUILD)/turbolm generate --model $(MODEL) --max-tokens 120 --prompt "$(QUESTION)"

test: ## set up everything, build with warnings as errors and run every test
	@scripts/setup test
	@scripts/get-models smollm2
	@$(MAKE) --no-print-directory test-build
	@$(PYTHON) tests/run --build $(BUILD)

# The compile of the kernel checks for AArch64 is a build of its own, beside the other.
test-build:
	@$(CONFIGURE) -B $(BUILD) -DTURBOLM_TESTS=ON -DTURBOLM_WERROR=ON > /dev/null
	@$(NINJA) -C $(BUILD)
	@if command -v $(CROSS_CC) > /dev/null; then \
	    $(CONFIGURE) -B $(BUILD)/aarch64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake \
	        -DTURBOLM_KERNELS_ONLY=ON -DTURBOLM_WERROR=ON > /dev/null && \
	    $(NINJA) -C $(BUILD)/aarch64; \
	fi

install: $(BUILD)/build.ninja ## install into $DESTDIR$PREFIX (default /usr/local)
	@$(CONFIGURE) -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) > /dev/null
	@$(NINJA) -C $(BUILD) turbolm turbolm_shared turbolm_archive
	@cmake --install $(BUILD)

asan: SANITIZER = address
ubsan: SANITIZER = undefined
tsan: SANITIZER = thread
asan: ## C and command tests with the address sanitizer
ubsan: ## the same with the undefined behaviour sanitizer
tsan: ## the same with the thread sanitizer
asan ubsan tsan:
	@scripts/setup test
	@scripts/get-models smollm2
	@$(CONFIGURE) -B $(BUILD)/$@ -DTURBOLM_TESTS=ON -DTURBOLM_SANITIZE=$(SANITIZER) > /dev/null
	@$(NINJA) -C $(BUILD)/$@
	@$(PYTHON) tests/run --build $(BUILD)/$@ --sanitizer $(SANITIZER)

fuzz: ## each fuzz target for FUZZ_SECONDS (60) with libFuzzer
	@scripts/setup fuzz
	@CC=clang $(CONFIGURE) -B $(BUILD)/fuzz -DTURBOLM_FUZZ=ON -DTURBOLM_SANITIZE=address,undefined > /dev/null
	@$(NINJA) -C $(BUILD)/fuzz fuzzers
	@scripts/fuzz $(BUILD)/fuzz $(FUZZ_SECONDS)

bench: all ## run the benchmarks
	@bench/run

check-style: ## house rules and formatting
	@$(PYTHON) scripts/checksrc
	@scripts/format --check

format: ## format every C file in place
	@scripts/format

clean: ## remove what was built; models stay
	rm -rf $(BUILD)
