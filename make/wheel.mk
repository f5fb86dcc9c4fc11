# The Python package as a wheel with the command in it, for machines that have neither Swift nor a compiler.

WHEEL_FOLDER := build/wheel

.PHONY: wheel
wheel: setup ## one wheel with the exporter and a static statepack, into build/wheel
	@$(TIMED) "wheel" make/wheel $(BIN) $(WHEEL_FOLDER)
