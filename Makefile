# make demo     train a date normalizer on built-in data and draw its attention weights
# make test     run the fast tests, in a few minutes
# make test-all run all tests, including the slow ones
# make check    check formatting, lint and types
# make format   format the code and fix lint
# make docs     build the documentation site in build/site/html
# make dist     build the wheel and the source distribution in dist/, and check them
# make web      build the pages of the explorer and the server (needs Node; the build is checked in)

PYTHON ?= python3
BIN    := .venv/bin
RUN    ?= runs/demo
# The tests start many processes, which start faster if Python stores the bytecode of the modules.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.PHONY: demo test test-all check format docs dist web clean

demo: .venv/ready
	@$(BIN)/regard train dates --out $(RUN)
	@$(BIN)/regard evaluate $(RUN)
	@$(BIN)/regard look $(RUN) "Sunday, May 3, 2009" "3 de mayo de 2009" "2009年5月3日日曜日"
	@sh examples/next_steps.sh $(RUN)

test: .venv/test-ready
	$(PYTEST) -m 'not slow'

test-all: .venv/test-ready
	$(PYTEST)

check: .venv/test-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 src
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin src

format: .venv/test-ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python website/build_site.py

dist: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	rm -rf build dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

web: .venv/ready
	$(BIN)/python web/generate_requests.py > web/src/requests.ts
	cd web && npm ci && npm run check && npm test && npm run build

# The constraints choose the tested version of torch: another one may be a build of several gigabytes. Python stores the
# bytecode of the modules that are used; that of all modules takes pip longer than their installation.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "regard needs Python 3.11 or newer. Set its path with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[explorer]'
	@touch $@

# The client of Argos Translate needs none of its dependencies, which are large. Its package contains a module `tests`.
.venv/test-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --upgrade --target .venv/clients argostranslate
	@touch $@

clean:
	rm -rf .venv build dist
