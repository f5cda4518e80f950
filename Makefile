# The commands of the README, and the documentation. Each sets up all it needs; a second call installs nothing.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: demo test docs install clean

demo: $(INSTALLED)
	$(VENV)/bin/pvn demo

test: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/pytest

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo open site/index.html

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo site dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
