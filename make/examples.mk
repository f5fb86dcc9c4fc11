# The examples, as a user runs them.

.PHONY: example-01
example-01: setup build
	@$(TIMED) "example 01, stateful transformer" examples/01-stateful-transformer/run.sh

# A short run; `make demo` generates more text.
.PHONY: example-02
example-02: setup build
	@$(TIMED) "example 02, SmolLM2, short" examples/02-smollm2/run.sh --short

.PHONY: demo
demo: setup build ## export, convert, validate and run both examples; prints text and a latency table
	@$(TIMED) "example 01, stateful transformer" examples/01-stateful-transformer/run.sh
	@$(TIMED) "example 02, SmolLM2" examples/02-smollm2/run.sh
