# The two commands of the README. Everything they need is made in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: sweep test test-all test-slurm test-sweeps test-programs docs reference fuzz example maxtext maxtext-sweep maxtext-example study-examples slurm-lab slurm-lab-stop slurm-faults slurm-flagships slurm-packages translations clean help

help:
	@echo "make sweep   a sweep of real XLA flags over a real JAX training job, on this machine"
	@echo "make test    lint, types and the project's own tests, the whole promise in small; 6 to 13 minutes"
	@echo "make test-all   and all others, 45 minutes more; make test-slurm, test-sweeps, test-programs is one part"
	@echo "make fuzz    10^6 damaged inputs for every reader, an hour; FUZZ=10000 is a sample"
	@echo "make maxtext-sweep   the same with MaxText itself (1.4 GB, 6 to 10 minutes); make maxtext installs it"
	@echo "make slurm-lab   start four slurmd on this machine (root, Debian's packages); -stop ends it"
	@echo "make example   make the committed documents of reports/example again, the README's table and picture"
	@echo "make study-examples   a study of commits and one of batch sizes of reports/example again, on this machine"
	@echo "make slurm-faults   every fault of a table on that lab: expected, seen, trials lost, doubled"
	@echo "make slurm-flagships   the flagship sweeps on that lab, each to its tuning document; FLAGSHIPS=hybrid is one"
	@echo "make docs    the documents as a site, in .site"
	@echo "make reference   the tables of docs/ that the code says itself"
	@echo "make clean   remove .venv, .maxtext, .tox and caches; measured trials in .xlatune stay"

sweep: $(VENV)/.sweep
	$(BIN)/pytest sweeps/test_quickstart.py

# The documents that are committed: of a run of their own, whatever was measured here before.
EXAMPLE := --xlatune-fresh --xlatune-workdir .xlatune/example --xlatune-reports reports/example

example: $(VENV)/.sweep
	$(BIN)/pytest sweeps/test_quickstart.py $(EXAMPLE)
	$(BIN)/python sweeps/quickstart/example.py

# A slow commit is found, which is a failed test: its status says nothing of the example.
study-examples: $(VENV)/.sweep
	rm -rf .xlatune/trainer
	$(BIN)/python sweeps/quickstart/studies.py .xlatune/trainer
	-XLATUNE_STUDY=commits $(BIN)/pytest sweeps/quickstart/studies.py --xlatune-commits v1..HEAD $(EXAMPLE)
	XLATUNE_STUDY=batch $(BIN)/pytest sweeps/quickstart/studies.py $(EXAMPLE)

test: $(VENV)/.test slurm-packages
	$(BIN)/tox run -e tests

# What make test leaves out, in three parts; a pipeline runs one of them beside it.
test-all: test test-slurm test-sweeps test-programs

test-slurm test-sweeps: test-%: $(VENV)/.test slurm-packages
	$(BIN)/tox run -q -e tests --notest
	$(BIN)/tox exec -e tests -- pytest -n 2 --timeout 420 --part=$*

test-programs: $(VENV)/.test slurm-packages
	$(BIN)/tox run -q -e tests --notest
	$(BIN)/tox exec -e tests -- pytest -n 2 --timeout 420 --part=programs
	$(BIN)/tox run -e bare,docs,mlflow,wandb

# Prints its random number, which repeats it.
FUZZ ?= 1000000
fuzz: $(VENV)/.test
	$(BIN)/tox run -q -e tests --notest
	FUZZ_INPUTS=$(FUZZ) $(BIN)/tox exec -e tests -- pytest -n 2 --dist load --timeout 0 tests/fuzz

# A pipeline tests on a real Slurm and never skips it. Elsewhere make installs no package of the system.
slurm-packages:
	@if [ -n "$$CI" ]; then $(PYTHON) tests/slurm/lab.py install --accounting; fi

docs: $(VENV)/.test
	$(BIN)/tox run -e docs

reference: $(VENV)/.sweep
	$(BIN)/python docs/generate.py

# After a change of zh.po; msgfmt is in the package gettext.
translations:
	cd pytest_xlatune/report/po && msgfmt --check --output-file zh.mo zh.po

# MaxText lives in an environment of its own: it pins a JAX and wants Python 3.12.
maxtext:
	$(PYTHON) sweeps/maxtext/make_venv.py .maxtext

maxtext-sweep: maxtext $(VENV)/.sweep
	$(BIN)/pytest sweeps/test_maxtext_cpu.py -n 1

maxtext-example: maxtext $(VENV)/.sweep
	$(BIN)/pytest sweeps/test_maxtext_cpu.py -n 1 $(EXAMPLE)

slurm-lab:
	$(PYTHON) tests/slurm/lab.py start

# Every fault of the table, with what came of it; all are among the tests of make test-all.
slurm-faults: $(VENV)/.faults
	$(BIN)/python tests/slurm/faults.py

# Each made small: a profile or two of every wave, with the quickstart's trainer on two nodes (FLAGSHIP_NODES=4:
# on four).
FLAGSHIPS ?= all
slurm-flagships: $(VENV)/.faults
	FLAGSHIPS=$(FLAGSHIPS) $(BIN)/python -m pytest tests/slurm/test_slurm_sweeps.py -k flagship -n 0 -v

$(VENV)/.faults: $(VENV)/.made pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/pip install --quiet --group tests --editable '.[quickstart]'
	touch $@

slurm-lab-stop:
	$(PYTHON) tests/slurm/lab.py stop

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; say: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.sweep: $(VENV)/.made pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[quickstart]'
	touch $@

$(VENV)/.test: $(VENV)/.made
	$(BIN)/pip install --quiet --disable-pip-version-check 'tox>=4.22'
	touch $@

clean:
	rm -rf $(VENV) .maxtext .tox .site .mypy_cache .ruff_cache .pytest_cache .hypothesis
