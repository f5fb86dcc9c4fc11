# Checks. `make test` is what CI runs.

.PHONY: test
test: setup setup-test-packages ## everything CI runs: lint, build, wheel, pytest, swift test, the steps of both examples
	@$(TIMED) "lint" $(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory build CONFIGURATION=release
	@$(MAKE) --no-print-directory wheel
	@$(TIMED) "pytest" $(BIN)/python -m pytest
	@$(TIMED) "kernel tests under AddressSanitizer" $(MAKE) --no-print-directory test-kernels-asan
	@$(TIMED) "kernels on emulated processors" $(MAKE) --no-print-directory test-kernels-processors
	@$(TIMED) "thread pool under ThreadSanitizer" $(MAKE) --no-print-directory test-kernels-tsan
	@$(TIMED) "swift test" $(SWIFT) test -c release --skip-build
	@$(MAKE) --no-print-directory test-address
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=30
	@$(MAKE) --no-print-directory example-01 example-02
	@echo "make test: everything passed"

.PHONY: lint
lint: setup-python ## formats, types, generated files, file sizes, paths of machines
	@SWIFT="$(SWIFT)" make/lint $(BIN)

.PHONY: format
format: setup-python ## rewrite sources in the style that lint wants
	$(SWIFT) format format -i -r $(wildcard Sources Tests Package.swift examples benchmarks)
	find Sources examples benchmarks -name '*.[ch]' -not -path 'Sources/CStatepackSchema/*' -exec $(BIN)/clang-format -i {} +
	$(BIN)/ruff check --fix setup.py python schemas examples benchmarks
	$(BIN)/ruff format setup.py python schemas examples benchmarks

.PHONY: test-python
test-python: setup-python ## pytest alone
	@$(TIMED) "pytest" $(BIN)/python -m pytest

.PHONY: test-swift
test-swift: build ## swift test alone
	@$(TIMED) "swift test" $(SWIFT) test -c $(CONFIGURATION) --skip-build

# A build tree of its own: what the sanitizers instrument serves nothing else. AddressSanitizer watches Swift and C,
# UndefinedBehaviorSanitizer the C targets (Swift traps by itself); the first report ends the run. SteadyStateTests
# count allocations and resident memory, where the sanitizer has an allocator and memory of its own: `swift test`
# without it runs them.
.PHONY: test-address
test-address: setup-packages ## tests of files, compiler, runtime and commands under AddressSanitizer and UBSan
	@ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
		$(TIMED) "tests under AddressSanitizer and UBSan" $(SWIFT) test -c release --sanitize=address \
		-Xcc -fsanitize=undefined -Xcc -fno-sanitize-recover=undefined \
		--scratch-path .build/address --filter '^(BundleTests|CompilerTests|RuntimeTests|ToolTests)' --skip '^RuntimeTests[.]SteadyStateTests'

# torch 2.15.0 brings gigabytes of libraries: not part of `make test`.
.PHONY: test-torch-latest
test-torch-latest: build ## the exporter's tests with torch 2.15.0 in .venv-torch-latest
	@echo "installs in .venv-torch-latest: $$(sed 's/^torch==.*/torch==2.15.0/' python/requirements-test.txt | grep -v '^#' | tr '\n' ' ')"
	@mkdir -p build
	@sed 's/^torch==.*/torch==2.15.0/' python/requirements-test.txt > build/requirements-torch-latest.txt
	@$(TIMED) "virtual environment .venv-torch-latest" make/environment $(PYTHON) .venv-torch-latest build/requirements-torch-latest.txt
	@$(TIMED) "pytest with torch 2.15.0" .venv-torch-latest/bin/python -m pytest -m 'not slow' \
		$(filter-out python/tests/test_kernels% python/tests/test_wheel.py python/tests/test_hooks.py,$(wildcard python/tests/test_*.py))
