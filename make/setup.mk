# What has to be on the machine: Debian packages, and Python packages in .venv.

# headers and libraries of the tools; the compilers that `schemas/generate.py` calls; gcc for ThreadSanitizer; virtual
# environments; oneDNN (40 MB with what it needs), which the kernels open when it is there
PACKAGES := gcc libprotobuf-c-dev libssl-dev pkg-config protobuf-compiler protobuf-c-compiler python3-venv libdnnl2

.PHONY: setup
setup: setup-packages setup-python ## install what is missing: Debian packages as root, Python packages in .venv

.PHONY: setup-packages
setup-packages:
	@make/packages $(PACKAGES)

# The stamp has the requirements' content in its name, so that a change installs again.
REQUIREMENTS_STAMP = $(VENV)/.installed-$(shell cksum python/requirements-test.txt | cut -d' ' -f1)

.PHONY: setup-python
setup-python: setup-packages
	@test -e "$(REQUIREMENTS_STAMP)" || $(MAKE) --no-print-directory $(REQUIREMENTS_STAMP)

$(VENV)/.installed-%:
	@echo "installs in $(VENV): $$(grep -v '^#' python/requirements-test.txt | tr '\n' ' ')"
	@$(TIMED) "virtual environment $(VENV)" make/environment $(PYTHON) $(VENV) python/requirements-test.txt
	@touch "$@"
