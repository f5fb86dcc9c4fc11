# What has to be on the machine: Debian packages, and Python packages in .venv.

# headers and libraries of the tools; the compilers that `schemas/generate.py` calls; gcc for ThreadSanitizer; virtual
# environments
PACKAGES := gcc libprotobuf-c-dev libssl-dev pkg-config protobuf-compiler protobuf-c-compiler python3-venv

# What only `make test` wants, and users of the library do not: oneDNN, which the kernels open when it is there (40 MB on
# disk), and on x86-64 an emulator of processors with a C library for ARM (130 MB; 25 MB to download).
TEST_PACKAGES := libdnnl2
ifeq ($(shell uname -sm),Linux x86_64)
TEST_PACKAGES += qemu-user libc6-dev-arm64-cross libgcc-12-dev-arm64-cross
endif

.PHONY: setup
setup: setup-packages setup-python ## install what is missing: Debian packages as root, Python packages in .venv

.PHONY: setup-packages
setup-packages:
	@make/packages $(PACKAGES)

.PHONY: setup-test-packages
setup-test-packages:
	@make/packages $(TEST_PACKAGES)

# The stamp has the requirements' content in its name, so that a change installs again.
REQUIREMENTS_STAMP = $(VENV)/.installed-$(shell cksum python/requirements-test.txt | cut -d' ' -f1)

.PHONY: setup-python
setup-python: setup-packages
	@test -e "$(REQUIREMENTS_STAMP)" || $(MAKE) --no-print-directory $(REQUIREMENTS_STAMP)

$(VENV)/.installed-%:
	@echo "installs in $(VENV): $$(grep -v '^#' python/requirements-test.txt | tr '\n' ' ')"
	@$(TIMED) "virtual environment $(VENV)" make/environment $(PYTHON) $(VENV) python/requirements-test.txt
	@touch "$@"
