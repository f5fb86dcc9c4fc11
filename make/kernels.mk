# The kernels as shared libraries for the tests that call them through ctypes, and their sanitizer builds.

KERNEL_SOURCES := $(shell find Sources/CStatepackKernels -name '*.c' | sort)
KERNEL_HEADERS := $(shell find Sources/CStatepackKernels -name '*.h' | sort)
KERNEL_FLAGS := -std=gnu17 -O2 -g -fPIC -shared -Wall -Wextra -Werror
CLANG ?= $(shell command -v clang || echo "$$(dirname "$$(command -v $(SWIFT))")/clang")
KERNEL_LIBRARY := build/kernels/libstatepack_kernels.so

.PHONY: kernels
kernels: $(KERNEL_LIBRARY) ## the kernels as a shared library, for pytest

$(KERNEL_LIBRARY): $(KERNEL_SOURCES) $(KERNEL_HEADERS)
	@mkdir -p $(@D)
	$(CLANG) $(KERNEL_FLAGS) -Wl,-z,defs -o $@ $(KERNEL_SOURCES) -lpthread -lm

build/kernels/libstatepack_kernels_asan.so: $(KERNEL_SOURCES) $(KERNEL_HEADERS)
	@mkdir -p $(@D)
	$(CLANG) $(KERNEL_FLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -shared-libsan \
	    -o $@ $(KERNEL_SOURCES) -lpthread -lm

# numpy's buffers come from malloc, so a kernel that leaves its operands is caught by the preloaded runtime.
.PHONY: test-kernels-asan
test-kernels-asan: build/kernels/libstatepack_kernels_asan.so ## the kernel tests under AddressSanitizer and UBSan
	LD_PRELOAD="$$($(CLANG) -print-file-name=libclang_rt.asan-$$(uname -m).so)" ASAN_OPTIONS=detect_leaks=0 \
	    UBSAN_OPTIONS=print_stacktrace=1 STATEPACK_KERNELS=$(CURDIR)/$< $(BIN)/python -m pytest -p no:cacheprovider \
	    python/tests/test_kernels.py python/tests/test_kernels_check.py python/tests/test_kernels_state.py python/tests/test_onednn.py

# gcc: the ThreadSanitizer of the toolchain's clang does not see vector stores.
build/kernels/pool_stress: Tests/KernelStress/pool_stress.c $(KERNEL_SOURCES) $(KERNEL_HEADERS)
	@mkdir -p $(@D)
	gcc -std=gnu17 -O1 -g -fsanitize=thread -Wno-psabi -ISources/CStatepackKernels/include -o $@ $< $(KERNEL_SOURCES) -lpthread -lm

# The same without futexes, as on macOS.
build/kernels/pool_stress_portable: Tests/KernelStress/pool_stress.c $(KERNEL_SOURCES) $(KERNEL_HEADERS)
	@mkdir -p $(@D)
	gcc -std=gnu17 -O1 -g -fsanitize=thread -Wno-psabi -DSP_PORTABLE_SLEEP -ISources/CStatepackKernels/include -o $@ $< $(KERNEL_SOURCES) -lpthread -lm

.PHONY: test-kernels-tsan
test-kernels-tsan: build/kernels/pool_stress build/kernels/pool_stress_portable ## pool and executor under ThreadSanitizer
	TSAN_OPTIONS=halt_on_error=1 build/kernels/pool_stress
	TSAN_OPTIONS=halt_on_error=1 build/kernels/pool_stress_portable

build/kernels/bench: benchmarks/kernels.c $(KERNEL_LIBRARY)
	$(CLANG) -std=gnu17 -O3 -march=native -ISources/CStatepackKernels/include -o $@ $< $(KERNEL_LIBRARY) -Wl,-rpath,'$$ORIGIN'

.PHONY: bench-kernels
bench-kernels: build/kernels/bench ## time linear and attention beside a plain read (wants an idle machine)
	$<

build/kernels/step: benchmarks/step.c $(KERNEL_LIBRARY)
	$(CLANG) -std=gnu17 -O2 -ISources/CStatepackKernels/include -o $@ $< $(KERNEL_LIBRARY) -Wl,-rpath,'$$ORIGIN'

.PHONY: bench-step
bench-step: build/kernels/step ## matrix products of one token beside reading the same bytes (wants an idle machine)
	$<
