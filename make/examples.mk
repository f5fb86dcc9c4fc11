# The examples, as a user runs them. Both are exported anew, so that the exporter is part of the test.

# What run.sh needs: the virtual environment's Python and the commands that `make build` made.
EXAMPLE_ENVIRONMENT = PYTHON="$(BIN)/python" STATEPACK_BIN="$$($(SWIFT) build -c $(CONFIGURATION) --show-bin-path)"

.PHONY: example-01
example-01: setup build ## export, convert, validate and run the small transformer
	@$(EXAMPLE_ENVIRONMENT) $(TIMED) "example 01, stateful transformer" examples/01-stateful-transformer/run.sh --export

.PHONY: example-02
example-02: setup build ## the same with SmolLM2, 16 tokens
	@$(EXAMPLE_ENVIRONMENT) $(TIMED) "example 02, SmolLM2, short" examples/02-smollm2/run.sh --short --export

.PHONY: demo
demo: example-01 ## export, convert, validate and run both examples; prints text and a latency table
	@$(EXAMPLE_ENVIRONMENT) $(TIMED) "example 02, SmolLM2" examples/02-smollm2/run.sh --export
