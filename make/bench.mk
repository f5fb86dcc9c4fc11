# Statepack beside other systems, in one run. Not part of `make test`; benchmarks/README.md explains it.

BENCH := build/bench
BENCH_WORKER = $$($(SWIFT) build -c release --show-bin-path)/BenchmarkWorker
# More words for benchmarks/run.py, such as BENCH_OPTIONS="--with torch-compile --passes 5"
BENCH_OPTIONS ?=

.PHONY: bench
bench: bench-model bench-prepare ## measure Statepack beside other systems (wants an idle machine, 15 minutes)
	@CLANG="$(CLANG)" $(TIMED) "benchmark" $(PYTHON) benchmarks/run.py --model $(BENCH)/model.statepack \
	    --weights build/example-02/exported.safetensors --worker "$(BENCH_WORKER)" \
	    --output benchmarks/results/smollm2.json $(BENCH_OPTIONS)
	@$(MAKE) --no-print-directory bench-report

.PHONY: bench-report
bench-report: ## text, plot and README's table from benchmarks/results/smollm2.json
	@$$(test -x $(BENCH)/env/plot/bin/python && echo $(BENCH)/env/plot/bin/python || echo $(PYTHON)) \
	    benchmarks/report.py benchmarks/results/smollm2.json --plot benchmarks/results/smollm2.svg --readme README.md

.PHONY: bench-prepare
bench-prepare: ## the environments and models of the other systems, into build/bench (an hour on two cores, 8 GB)
	@CLANG="$(CLANG)" $(TIMED) "environments and models" $(PYTHON) benchmarks/run.py --only-prepare $(BENCH_OPTIONS)

# Converted anew each time, as the compiler may have changed; exported once.
.PHONY: bench-model
bench-model: setup-packages build/example-02/exported.pb
	@$(TIMED) "build convert and the worker" sh -c '$(SWIFT) build -c release --product convert && \
	    $(SWIFT) build -c release --product BenchmarkWorker'
	@mkdir -p $(BENCH)
	@"$$($(SWIFT) build -c release --show-bin-path)/convert" build/example-02/exported.pb --state-names keyCache,valueCache \
	    --require-in-place -o $(BENCH)/model.statepack

build/example-02/exported.pb:
	@$(MAKE) --no-print-directory example-02
