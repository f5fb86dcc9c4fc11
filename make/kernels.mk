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
	    python/tests/test_kernels.py python/tests/test_kernels_check.py \
	    python/tests/test_kernels_state.py python/tests/test_onednn.py

build/kernels/agree: Tests/KernelAgreement/agree.c $(KERNEL_LIBRARY)
	$(CLANG) -std=gnu17 -O2 -g -Wall -Wextra -Werror -ISources/CStatepackKernels/include -o $@ $< $(KERNEL_LIBRARY) \
	    -Wl,-rpath,'$$ORIGIN' -lm

# The toolchain's clang compiles for every processor; Debian's cross packages bring the C library. Static, so that the
# emulator needs no files of that system.
build/kernels/agree_arm: Tests/KernelAgreement/agree.c $(KERNEL_SOURCES) $(KERNEL_HEADERS)
	@mkdir -p $(@D)
	$(CLANG) --target=aarch64-linux-gnu -fuse-ld=lld -static -std=gnu17 -O2 -g -Wall -Wextra -Werror \
	    -ISources/CStatepackKernels/include -o $@ $< $(KERNEL_SOURCES) -lpthread -lm

# Fast kernels beside plain C, on ARM and on x86-64 without AVX-512 and without AVX2. Haswell has features that the
# emulator lacks and names each time; none matters here.
HASWELL := Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-rtm,-invpcid

.PHONY: test-kernels-processors test-kernels-arm
test-kernels-arm: setup-test-packages build/kernels/agree_arm ## the kernels for ARM under qemu-user, beside plain C
	qemu-aarch64 build/kernels/agree_arm neon

ifeq ($(shell uname -sm),Linux x86_64)
test-kernels-processors: test-kernels-arm build/kernels/agree ## the kernels on emulated processors, beside plain C
	qemu-x86_64 -cpu $(HASWELL) build/kernels/agree avx2
	qemu-x86_64 -cpu Nehalem,-x2apic,-pcid build/kernels/agree generic
else
# On ARM the kernels run as they are.
test-kernels-processors: build/kernels/agree
	build/kernels/agree $(if $(filter arm64 aarch64,$(shell uname -m)),neon,generic)
endif

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

# 4.4 GB twice on the disk, and 10 GB of memory for the export; both go away with `make clean`.
.PHONY: bench-convert
bench-convert: setup build ## time convert of a model of 1.1 billion weights beside copying its file
	@test -f build/llama/exported.pb || $(TIMED) "export a model of 4.4 GB" $(BIN)/python benchmarks/llama.py -o build/llama/exported.pb
	$(BIN)/python benchmarks/convert.py build/llama/exported.pb

build/kernels/step: benchmarks/step.c $(KERNEL_LIBRARY)
	$(CLANG) -std=gnu17 -O2 -ISources/CStatepackKernels/include -o $@ $< $(KERNEL_LIBRARY) -Wl,-rpath,'$$ORIGIN'

.PHONY: bench-step
bench-step: build/kernels/step ## matrix products of one token beside reading the same bytes (wants an idle machine)
	$<
