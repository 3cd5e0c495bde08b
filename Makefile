# Two commands: `make demo` and `make test`. Everything they need is installed here first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE_STAMP := $(VENV)/.native
NATIVE_SOURCES := $(wildcard djinn_lab/native/*.py $(foreach end,cpp h hpp,djinn_lab/*/native/*.$(end) djinn_lab/*/*/native/*.$(end)))
STANDIN_STAMP := $(VENV)/.standin
STANDIN_SOURCES := $(wildcard tests/standin/standin/*.py tests/standin/native/*)
CORES := engine jobs memory scheduler srg
LIBRARIES := $(VENV)/libraries
LABEXTENSION := kernels/jupyterlab
MEMORY_TOPICS := memory-live memory-turns memory-simulated copy-engine
# The many processes of demo and tests load modules as compiled once, also where the surroundings forbid to keep that.
export PYTHONDONTWRITEBYTECODE :=
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: demo test cluster check lint coverage unit house wheels bench bench-gpu bench-compare bench-memory sweep sweep-ops sweep-models sweep-tutorials sweep-libraries sweep-fuzz sweep-kills sweep-losses sweep-outages sweep-turns sweep-exceptions sweep-chaos sweep-ray sweep-recorders sweep-cuda sweep-live sweep-standin sweep-torch sweep-hostile sweep-mutants sweep-patterns sweep-api sweep-frames sweep-examples sweep-cases sweep-benchmarks labextension docs pictures tutorials install browser postgresql compiler clean help

help: ## these lines
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

install: $(STAMP) $(NATIVE_STAMP) ## a virtual environment with everything

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Djinn Lab needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "Installing packages into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@mkdir -p $(VENV)/share/jupyter/labextensions $(VENV)/etc/jupyter/jupyter_server_config.d
	@ln -sfn "$(CURDIR)/$(LABEXTENSION)/built" $(VENV)/share/jupyter/labextensions/djinn-lab
	@ln -sfn "$(CURDIR)/$(LABEXTENSION)/config/djinn-lab.json" $(VENV)/etc/jupyter/jupyter_server_config.d/djinn-lab.json
	@touch $@

$(NATIVE_STAMP): $(STAMP) $(NATIVE_SOURCES) | compiler
	@echo "Compiling the C++ extensions (a minute or more for each)"
	@$(BIN)/python -m djinn_lab.native build --optional
	@touch $@

$(STANDIN_STAMP): $(NATIVE_STAMP) $(STANDIN_SOURCES)
	@echo "Compiling the stand-in accelerator of the tests (a minute or two)"
	@PYTHONPATH=tests/standin $(BIN)/python -m standin --optional
	@touch $@

compiler: ## Debian's g++, for the C++ extensions, when there is no compiler; without one Python does their work
	@command -v "$${CXX:-g++}" >/dev/null || command -v c++ >/dev/null || { echo "Installing g++"; $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq g++ >/dev/null; } || echo "g++ could not be installed: the C++ extensions are left out"

browser: ## Debian's Chromium, for the browser tests, when there is none
	@command -v chromium >/dev/null || { echo "Installing Chromium"; $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq chromium >/dev/null; }

postgresql: ## Debian's PostgreSQL, for the tests of pools on it, when there is none
	@command -v pg_ctl >/dev/null || ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1 || { echo "Installing PostgreSQL"; $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq postgresql >/dev/null; }

demo: install ## start a pool and run the quickstart as two users
	@$(BIN)/python -m djinn_lab.cli demo

lint: install ## style, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

check: lint ## before each commit: lint, types, layers, half a minute of tests of the packages touched since origin/main
	@folders="$$($(BIN)/python tests/touched.py)"; [ -z "$$folders" ] || $(BIN)/pytest -q -n 2 --dist loadfile -m "not browser and not processes and not hypothesis" --budget-s 30 $$folders

coverage: install ## how much of the cores their own tests run (goal: over 90 %)
	@$(BIN)/coverage run -m pytest -q -n 2 --dist loadfile $(CORES:%=tests/%)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

unit: install ## the tests that need neither browser nor pool processes
	@$(BIN)/pytest -q -n 2 --dist loadfile -m "not browser and not processes"

cluster: install
	@SWEEP_RAY=1 $(BIN)/pytest -q -m cluster tests/pool/test_ray_engine.py

test: install browser postgresql ## everything, three files of tests at a time, as many of them wait
	@$(MAKE) --no-print-directory --jobs 3 --output-sync lint cluster $(STANDIN_STAMP)
	@$(BIN)/pytest -q -rfE --durations=50 -n 3 --dist loadfile --no-loadscope-reorder

bench-gpu: install ## on a machine with a GPU: what a pool costs and gains beside eager torch there (three parts of minutes)
	@$(BIN)/python -m benchmarks.gpu

bench: install ## figures, each beside its baseline, into benchmarks/results
	@$(BIN)/python -m benchmarks

bench-compare: install ## OLD=file NEW=file: figures that are worse in the new result file, beyond noise
	@$(BIN)/python -m benchmarks.compare $(OLD) $(NEW)

sweep-benchmarks: install ## every benchmark in a few rounds, to see that it runs (five minutes)
	@$(BIN)/python -m benchmarks --quick

bench-memory: install ## of those, session memory: many agents on little memory, live and simulated
	@$(BIN)/python -m benchmarks $(MEMORY_TOPICS)

docs: install ## the pages as a site, in build/site; a link that leads nowhere is an error
	@$(BIN)/mkdocs build --strict --quiet

pictures: install browser ## take the pictures of the pages from a busy pool (ten minutes); every page in every state goes to build/pictures
	@$(BIN)/python -m benchmarks.pictures $(PAGES)

tutorials: install ## run the notebooks of notebooks/tutorials, and save their outputs
	@$(BIN)/python notebooks/save_outputs.py

labextension: install ## build the JupyterLab extension from its TypeScript, by npm; what it makes is committed
	@rm -rf $(VENV)/labextension && cp -r $(LABEXTENSION) $(VENV)/labextension && rm -rf $(VENV)/labextension/built
	@cd $(VENV)/labextension && npm ci --no-audit --no-fund --loglevel=error && npx tsc
	@cd $(VENV)/labextension && PATH="$(CURDIR)/$(BIN):$$PATH" jupyter-builder build . >/dev/null
	@rm -rf $(LABEXTENSION)/built && cp -r $(VENV)/labextension/built $(LABEXTENSION)/built
	@cd $(LABEXTENSION) && LC_ALL=C sha256sum package.json tsconfig.json src/* style/* > built/sources.sha256

wheels: $(STAMP) | compiler ## source archive and wheels into dist, each installed and run in an environment without a compiler; TORCHES="2.13.0 2.14.1" (the installed one), PYTHONS=paths
	@$(BIN)/python -m release $(PYTHONS:%=--python %) $(TORCHES:%=--torch %)

house: install ## how large and how readable the source is; REVISION=commit measures another tree
	@$(BIN)/python -m benchmarks.house $(if $(REVISION),--revision $(REVISION))

sweep-ops: install ## torch's operator database, captured beside eager (a quarter of an hour)
	@PYTHONPATH=tests:tests/capture OMP_NUM_THREADS=1 $(BIN)/python -m sweeps.operators --out benchmarks/results

sweep-models: install ## every architecture of transformers, tiny, captured beside eager (three quarters of an hour)
	@PYTHONPATH=.:tests/capture OMP_NUM_THREADS=1 $(BIN)/python tests/sweeps/models

sweep-tutorials: install ## public scripts and notebooks below DJINN_TUTORIALS, plain beside %%djinn
	@PYTHONPATH=.:tests/capture OMP_NUM_THREADS=1 $(BIN)/python tests/sweeps/tutorials

$(LIBRARIES)/.installed: $(STAMP) tests/sweeps/libraries/requirements.txt
	@echo "Installing libraries into $(LIBRARIES), an environment on top of $(VENV)"
	@$(BIN)/python -m venv --without-pip $(LIBRARIES)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_paths()["purelib"])' > $$($(LIBRARIES)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/base.pth
	@$(LIBRARIES)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r tests/sweeps/libraries/requirements.txt
	@touch $@

sweep-libraries: install $(LIBRARIES)/.installed ## programs of libraries from PyPI, plain beside one %%djinn cell on a pool (half an hour)
	@PYTHONPATH=.:tests:tests/capture:tests/sweeps/tutorials OMP_NUM_THREADS=1 $(LIBRARIES)/bin/python tests/sweeps/libraries $(if $(ONLY),--only $(ONLY))

sweep-fuzz: install ## COUNT (100000) random sequences of ops with odd dtypes, sizes and aliases, captured beside eager
	@PYTHONPATH=.:tests:tests/capture OMP_NUM_THREADS=1 $(BIN)/python -m sweeps.fuzz --count $${COUNT:-100000} --out benchmarks/results

sweep-kills: install postgresql ## pools killed at 300 random moments under load: notebooks continue, and nothing is lost or run twice (half an hour)
	@PYTHONPATH=.:tests:tests/pool OMP_NUM_THREADS=1 $(BIN)/python -m sweeps.kills --out benchmarks/results

sweep-losses: install ## workers (VICTIM=host: hosts of a Ray cluster) killed at 500 (KILLS=) random moments of random notebooks: variables come back bit for bit (an hour or two)
	@PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(BIN)/python -m sweeps.losses --out benchmarks/results $(if $(KILLS),--kills $(KILLS)) $(if $(VICTIM),--victim $(VICTIM))

sweep-outages: install ## no network for 60 s, server and workers stopped for 30 s: notebooks continue bit for bit (six minutes)
	@PYTHONPATH=.:tests:tests/client OMP_NUM_THREADS=1 $(BIN)/python -m sweeps.outages --out benchmarks/results

sweep-turns: install ## 12 sessions take 10,000 turns on a device that holds eight: the worker's memory stays as it was (a quarter of an hour)
	@PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(BIN)/python -m sweeps.turns --out benchmarks/results

sweep-exceptions: install ## COUNT (1000) exceptions thrown into cells at random moments by signal handlers, threads and Ctrl-C (four minutes)
	@PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(BIN)/python -m sweeps.exceptions --count $${COUNT:-1000} --out benchmarks/results

sweep-chaos: install ## clients, workers and the server of one pool killed KILLS (200) times under 16 clients, half of them with a full disk or shared memory (an hour; as root, in a mount namespace)
	@PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(BIN)/python -m sweeps.chaos --out benchmarks/results $(if $(KILLS),--kills $(KILLS))

sweep-ray: install ## what every launcher must do, on a Ray cluster of three nodes, beside this machine's (twelve minutes)
	@SWEEP_RAY=1 $(BIN)/pytest -q tests/pool/test_launcher_contract.py tests/pool/test_ray_engine.py tests/pool/test_elastic_hosts_on_ray.py tests/pool/test_full_object_store.py tests/pool/test_lost_at_the_start.py

sweep-cuda: install ## on a machine with a GPU: programs captured for it beside eager ones, and a real pool with it (a minute)
	@PYTHONPATH=.:tests $(BIN)/python -W ignore -m sweeps.cuda --out benchmarks/results

CLIENTS := $(addprefix -p djinn_lab.,client capture cli config protocol native scheduler srg system)
sweep-systems: install ## the tests of clients and magics as on macOS and on Windows, as far as Linux can tell; types as there (half an hour)
	@$(BIN)/mypy --platform darwin --cache-dir build/mypy-darwin -p djinn_lab
	@$(BIN)/mypy --platform win32 --cache-dir build/mypy-win32 --follow-imports silent $(CLIENTS)
	@for system in darwin win32; do PYTHONPATH=tests/systems/simulation PYTHON_SIMULATED_SYSTEM=$$system \
	  $(BIN)/pytest -q -rfE -n 2 --dist loadfile tests/client tests/magics || exit 1; done

sweep-live: install $(STANDIN_STAMP) ## the tests that have real workers, on pools of the tests' stand-in accelerator (an hour)
	@TEST_DEVICES=standin $(BIN)/pytest -q -rfE --durations=50 -n 3 --dist loadfile --no-loadscope-reorder -m "processes or browser" tests/client tests/magics tests/notebooks tests/dashboard tests/pool

sweep-standin: install $(STANDIN_STAMP) ## torch's operator database on the tests' stand-in accelerator, beside the CPU (a few minutes)
	@PYTHONPATH=.:tests:tests/standin OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m sweeps.standin --out benchmarks/results $(if $(ONLY),--only $(ONLY))

sweep-torch: install ## clients and pools of the pinned torch and of the newest that pip finds (VERSIONS=2.13.0,newest), each with its own environment (half an hour, and minutes to compile)
	@PYTHONPATH=.:tests:tests/capture OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m sweeps.torch_versions --out benchmarks/results $(if $(VERSIONS),--versions $(VERSIONS)) $(if $(OPERATORS),--operators $(OPERATORS))

sweep-hostile: install ## every allowed overload with arguments that no capture sends: what dies, leaks or writes (ten minutes)
	@PYTHONPATH=.:tests:tests/capture OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m sweeps.hostile --out benchmarks/results $(if $(ONLY),--only $(ONLY)) $(if $(TRIES),--tries $(TRIES))

sweep-mutants: install ## COUNT (100000) sessions of random programs with random changes: what ends a worker, or is no refusal
	@PYTHONPATH=.:tests:tests/capture:tests/worker OMP_NUM_THREADS=1 $(BIN)/python -m sweeps.mutants --count $${COUNT:-100000} --out benchmarks/results

sweep-recorders: install ## every test of capture over the recorder in Python, too, which make test samples, and some over the backend key (ten minutes)
	@SWEEP_RECORDERS=1 $(BIN)/pytest -q -n 2 --dist loadfile tests/capture tests/native/test_backend_key.py

sweep-patterns: install ## patterns in the graphs of transformers' architectures, beside their modules' classes (three minutes)
	@PYTHONPATH=.:tests/capture:tests/sweeps/models OMP_NUM_THREADS=1 $(BIN)/python tests/sweeps/patterns --all $(if $(DIFFERENCES),--differences)

sweep-api: install ## MINUTES (10) of requests drawn from the API's schema, with every role: no 5xx, no traceback
	@PYTHONPATH=.:tests:tests/pool $(BIN)/python -m sweeps.api --minutes $${MINUTES:-10} --out benchmarks/results

sweep-frames: install ## COUNT (100000) random and changed WebSocket frames against a pool that computes (half an hour)
	@PYTHONPATH=.:tests:tests/pool OMP_NUM_THREADS=1 $(BIN)/python -m sweeps.frames --count $${COUNT:-100000} --out benchmarks/results

sweep-examples: install ## the property tests with other examples than those of make test, ROUNDS times (10)
	@for round in $$(seq $${ROUNDS:-10}); do $(BIN)/pytest -q -n 2 --dist loadfile -m "hypothesis and not processes" --hypothesis-profile=search || exit 1; done

sweep-cases: install ## every case of the tests of which make test has a sample (five minutes)
	@SWEEP_CASES=1 $(BIN)/pytest -q -n 2 --dist loadfile $$(grep -rl "import sampled$$" tests --include="test_*.py")

sweep: sweep-ops sweep-models ## both of them; sweep-tutorials needs the tutorials

clean:
	rm -rf $(VENV) build dist djinn_lab/native/built *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
