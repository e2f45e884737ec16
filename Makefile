# The two commands of the README. Everything they need is made in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: sweep test fuzz example maxtext maxtext-sweep maxtext-example slurm-lab slurm-lab-stop slurm-faults slurm-packages translations clean help

help:
	@echo "make sweep   a sweep of real XLA flags over a real JAX training job, on this machine"
	@echo "make test    the project's own tests"
	@echo "make fuzz    10^6 damaged inputs for every reader, an hour; FUZZ='--seconds 120' is a sample"
	@echo "make maxtext-sweep   the same with MaxText itself (1.4 GB, 6 to 10 minutes); make maxtext installs it"
	@echo "make slurm-lab   start four slurmd on this machine (root, Debian's packages); -stop ends it"
	@echo "make example   make the committed documents of reports/example again, and the README's table"
	@echo "make slurm-faults   every fault of a table on that lab: expected, seen, trials lost, doubled"
	@echo "make clean   remove .venv, .maxtext, .tox and caches; measured trials in .xlatune stay"

sweep: $(VENV)/.sweep
	$(BIN)/pytest sweeps/test_quickstart.py -n 2

# The documents that are committed: of a run of their own, whatever was measured here before.
EXAMPLE := --xlatune-fresh --xlatune-workdir .xlatune/example --xlatune-reports reports/example

example: $(VENV)/.sweep
	$(BIN)/pytest sweeps/test_quickstart.py -n 2 $(EXAMPLE)
	$(BIN)/python sweeps/quickstart/example.py

test: $(VENV)/.test slurm-packages
	$(BIN)/tox run -e lint,types,py311,cuda-compile-check

# Prints its random number, which repeats it; what it finds is kept in .fuzz.
FUZZ ?= --inputs 1000000
fuzz: $(VENV)/.test
	$(BIN)/tox run -e fuzz -- $(FUZZ)

# A pipeline tests on a real Slurm and never skips it. Elsewhere make installs no package of the system.
slurm-packages:
	@if [ -n "$$CI" ]; then $(PYTHON) tests/slurm/lab.py install --accounting; fi

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

# Every fault of the table, with what came of it; a pipeline runs them among the tests.
slurm-faults: $(VENV)/.faults
	$(BIN)/python tests/slurm/faults.py

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
	rm -rf $(VENV) .maxtext .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis
