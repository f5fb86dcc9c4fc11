# libFuzzer targets for everything that reads a file from somewhere else. Fuzzing/README.md explains them.

FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?= exported convert safetensors bundle program contract inputs
FUZZ_SCRATCH := .build/fuzz
# Of several -sanitize flags swiftc obeys the last alone: both names must be in it, or Swift code is either not seen by
# AddressSanitizer or counts no edges. --sanitize is for C and for linking.
FUZZ_FLAGS := -c release --product FuzzReaders --scratch-path $(FUZZ_SCRATCH) --sanitize=fuzzer --sanitize=address \
	-Xswiftc -sanitize=fuzzer,address -Xswiftc -parse-as-library -Xcc -fsanitize=fuzzer-no-link

.PHONY: fuzz
fuzz: fuzz-build ## fuzz each reader for FUZZ_SECONDS (600) under AddressSanitizer; crashes are kept in build/fuzz
	@for target in $(FUZZ_TARGETS); do \
		$(TIMED) "fuzz $$target" Fuzzing/run "$(FUZZ_SCRATCH)/release/FuzzReaders" $$target $(FUZZ_SECONDS) || exit 1; \
	done

.PHONY: fuzz-build
fuzz-build: setup-packages
	@STATEPACK_FUZZING=1 $(TIMED) "build the fuzz targets" $(SWIFT) build $(FUZZ_FLAGS)

# Both examples' contracts and one bundle for each kind of seed.
.PHONY: fuzz-corpus
fuzz-corpus: setup build ## write the seeds in Fuzzing/Corpus anew
	@$(BIN)/python Fuzzing/corpus.py "$$($(SWIFT) build -c $(CONFIGURATION) --show-bin-path)/statepack"
