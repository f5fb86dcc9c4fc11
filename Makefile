# Everything a machine needs to build, check and try Statepack. `make help` lists the targets.
#
# Each part says what it installs and how long it took. Nothing asks a question. Debian packages are
# installed when this runs as root, and named otherwise; Python packages go to .venv only.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SWIFT ?= swift
CONFIGURATION ?= release
PREFIX ?= /usr/local
TIMED := make/timed

export PYTHONPATH := $(CURDIR)/python/src
# A crashing test must say so at once, not after minutes of symbol lookup.
export SWIFT_BACKTRACE ?= enable=no

.DEFAULT_GOAL := help
.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' Makefile make/*.mk

include make/setup.mk
include make/check.mk
include make/kernels.mk
include make/wheel.mk
include make/fuzz.mk
include make/examples.mk
include make/bench.mk

.PHONY: build
build: setup-packages ## build every product and test (CONFIGURATION=release)
	@$(TIMED) "build ($(CONFIGURATION))" $(SWIFT) build -c $(CONFIGURATION) --build-tests

.PHONY: install
install: setup-packages ## install the command statepack under PREFIX (/usr/local)
	@$(TIMED) "build statepack" $(SWIFT) build -c release --product statepack
	@install -d "$(DESTDIR)$(PREFIX)/bin"
	@install -m 755 "$$($(SWIFT) build -c release --show-bin-path)/statepack" "$(DESTDIR)$(PREFIX)/bin/statepack"
	@echo "installed $(DESTDIR)$(PREFIX)/bin/statepack"

.PHONY: clean
clean: ## remove what these targets made: builds, virtual environments, caches
	rm -rf .build build $(VENV) .venv-torch-latest .mypy_cache .pytest_cache .ruff_cache .hypothesis python/src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
