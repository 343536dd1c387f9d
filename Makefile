# Everything a person or CI needs. `make test` on a fresh machine needs Python 3.11, make and git, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= $(shell scripts/test-workers)
# The tests start hundreds of processes: without stored bytecode each of them compiles Coterie again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup kubectl servers runtimes demo psi secretflow secretflow-image mpyc psi-or-skip secretflow-or-skip mpyc-or-skip hashes sbom protos fuzz
.PHONY: console pictures test test-user prepare lint types collect unit kubernetes slurm kafka stores ha functions-kills functions-rows bfia bfia-conversations joined gpu bench clean help
.PHONY: flower nvflare xgboost

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

setup: $(STAMP) kubectl servers runtimes  ## create the virtual environment, install what is pinned, get kubectl, servers and container runtimes for the tests

kubectl:
	@scripts/get-kubectl

servers: runtimes  # both read the lists of packages, which get-runtimes updates
	@scripts/get-servers

runtimes:
	@scripts/get-runtimes

demo: $(STAMP)  ## two organisations find their common customers; installs the engine for it the first time
	@$(BIN)/coterie demo psi $(if $(CONSOLE),--console)

psi: $(STAMP)  ## install the environment of the PSI engine (110 MB)
	@$(BIN)/python -m coterie.cli.psi_environment

secretflow: $(STAMP)  ## install the environment of SecretFlow (400 MB)
	@$(BIN)/python -m coterie.cli.engine_environment secretflow

mpyc: $(STAMP)  ## install the environment of MPyC (1 MB)
	@$(BIN)/python -m coterie.cli.engine_environment mpyc

flower: setup  ## install Flower (50 MB), and run its app of the guide between three organisations and on plain Flower (five minutes)
	@$(BIN)/python -m coterie.cli.engine_environment flower
	COTERIE_FLOWER=1 $(BIN)/pytest -q -s tests/e2e/test_e2e_flower.py

nvflare: setup  ## install NVFlare (40 MB), and run its job of the guide between three organisations and in NVFlare's simulator
	@$(BIN)/python -m coterie.cli.engine_environment nvflare
	COTERIE_NVFLARE=1 $(BIN)/pytest -q -s tests/engines/test_engines_nvflare.py tests/e2e/test_e2e_nvflare.py

xgboost: setup  ## install XGBoost (190 MB), and run its job of the guide between three organisations and with its own launcher
	@$(BIN)/python -m coterie.cli.engine_environment xgboost
	COTERIE_XGBOOST=1 $(BIN)/pytest -q -s tests/e2e/test_e2e_xgboost.py

secretflow-image: setup secretflow  ## build an OCI image of the environment of SecretFlow, and run the job of the guide from it
	$(BIN)/python scripts/build_secretflow_image.py .tools/secretflow-image.tar
	COTERIE_SECRETFLOW_IMAGE=$(CURDIR)/.tools/secretflow-image.tar $(BIN)/pytest -q tests/e2e/test_e2e_secretflow.py

hashes: $(STAMP)  ## write the hashes of all pinned packages, after constraints.txt changed
	$(BIN)/python scripts/pin_hashes.py

sbom: $(STAMP)  ## write sbom.json: what Coterie is built from (CycloneDX)
	$(BIN)/python scripts/write_sbom.py sbom.json

protos: $(STAMP)  ## compile the .proto files into the descriptor set that is checked in
	$(BIN)/python scripts/compile_protos.py

.PHONY: azurite gcs lakes warehouses
azurite:  ## run the tests of data sources on Azurite, the emulator of Azure Blob Storage (needs Node 20)
	npm install --silent --no-fund --no-audit --prefix .tools/azurite azurite@3.35.0
	$(BIN)/pytest -q tests/kuscia/datamesh/test_datamesh_source_azure.py

gcs: $(STAMP)  ## run the tests of data sources on an emulator of Google Cloud Storage
	$(PYTHON) -m venv .tools/gcs
	.tools/gcs/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r scripts/gcs-emulator.txt
	$(BIN)/pytest -q tests/kuscia/datamesh/test_datamesh_source_gcs.py

lakes: $(STAMP)  ## run the tests of Delta and Iceberg tables, with the libraries of these extras
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --upgrade --target .tools/lakes -r scripts/lakes.txt
	PYTHONPATH=.tools/lakes $(BIN)/pytest -q tests/kuscia/datamesh/test_datamesh_source_delta.py tests/kuscia/datamesh/test_datamesh_source_iceberg.py

warehouses: $(STAMP)  ## run the tests of ODPS and Hive tables, with the libraries of these extras and a HiveServer2 (Maven, Java 17)
	@scripts/get-hive
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --no-build-isolation --upgrade --target .tools/warehouses -r scripts/warehouses.txt
	COTERIE_HIVE=1 PYTHONPATH=.tools/warehouses $(BIN)/pytest -q -n 0 -rs tests/kuscia/datamesh/test_datamesh_source_odps.py tests/kuscia/datamesh/test_datamesh_source_hive.py

console:  ## build the console's page from web/ (needs Node 20)
	cd web && npm ci --silent && npx tsc --noEmit && node build.mjs

pictures: $(STAMP)  ## write docs/pictures: every screen of the console in both themes, in a real browser
	@scripts/get-servers pictures
	$(BIN)/python tests/console/console_pictures.py

lint: $(STAMP)  ## format check and lint
	$(BIN)/ruff format --check src tests benchmarks scripts examples
	$(BIN)/ruff check src tests benchmarks scripts examples

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

unit: $(STAMP)  ## fast tests only
	$(BIN)/pytest -q -n $(JOBS) -m 'not conformance and not slow'

fuzz: $(STAMP)  ## property tests with examples that were not tried before
	COTERIE_FUZZ=random $(BIN)/pytest -q -n $(JOBS) $$(grep -rl 'from hypothesis import' tests --include='test_*.py')

collect: $(STAMP)  # finds what cannot be imported before minutes pass, and stores the tests' bytecode for all workers
	@$(BIN)/pytest -qq --collect-only >$(VENV)/collected.txt || { sed -n '/ ERRORS /,$$p' $(VENV)/collected.txt; exit 1; }

psi-or-skip: $(STAMP)
	@timeout 300 $(BIN)/python -m coterie.cli.psi_environment || echo 'The tests that need the environment of the PSI engine are skipped.'

secretflow-or-skip: $(STAMP)
	@timeout 300 $(BIN)/python -m coterie.cli.engine_environment secretflow || echo 'The tests that need SecretFlow are skipped.'

mpyc-or-skip: $(STAMP)
	@timeout 120 $(BIN)/python -m coterie.cli.engine_environment mpyc || echo 'The tests that need MPyC are skipped.'

# Side by side: most of it waits for downloads while mypy computes. A step that fails stops `make test` with its output.
prepare: lint types collect setup psi-or-skip secretflow-or-skip mpyc-or-skip

test:  ## lint, types, layers and all tests
	@echo 'Installing what the tests need, checking format, types and imports: one to three minutes ...'
	@$(MAKE) --no-print-directory -j 8 --output-sync=target prepare
	$(BIN)/pytest -q -n $(JOBS) --dist loadgroup

# What depends on who runs it: pods, networks, and jobs from end to end. SecretFlow's job once: bob reads over Flight also where alice reads files.
USER_TESTS := $(addprefix tests/kube/agent/runp/test_runp_,network.py users.py isolation.py suite.py zygote.py) tests/kube/network \
  $(addprefix tests/e2e/test_e2e_,network_readme.py not_fenced.py serving.py secretflow.py) \
  $(addprefix tests/faults/test_attack_pod_,files.py network.py identity.py) \
  $(addprefix tests/kube/agent/oci/test_oci_,network.py faults.py)

test-user: $(STAMP) psi-or-skip secretflow-or-skip  ## the tests of pods and networks; as an ordinary user they take another way than as root
	$(BIN)/pytest -q -n $(JOBS) --dist loadgroup -k 'not (secretflow and flight)' $(USER_TESTS)

kubernetes: setup  ## Kubernetes' own controllers on our API server, ours on a real kube-apiserver, the Helm chart (builds them with Go)
	@scripts/get-kubernetes
	COTERIE_REAL_KUBERNETES=1 $(BIN)/pytest -q tests/real_kubernetes

slurm: setup  ## GPU jobs on a real Slurm: faults, node loss, fifty jobs at once (minutes)
	COTERIE_SLURM=1 $(BIN)/pytest -q --timeout 300 tests/gpujobs

STORE_API_TESTS = $(addprefix tests/kube/apiserver/test_, $(addsuffix .py, server_create server_update server_delete server_list server_watch \
	server_apply admission_quotas admission_services))
CLIENT_TESTS = $(addprefix tests/conformance/test_, kubectl.py guests.py)
stores: setup  ## stores on PostgreSQL, etcd and MySQL: pauses, many kills, the API server's own suite on each; kubectl and other clients on two API servers in turn
	COTERIE_STORES=1 $(BIN)/pytest -q -n $(JOBS) tests/kube/store tests/kube/apiserver/test_server_two.py
	COTERIE_API_STORE=postgresql $(BIN)/pytest -q -n $(JOBS) $(STORE_API_TESTS)
	COTERIE_API_STORE=etcd $(BIN)/pytest -q -n $(JOBS) $(STORE_API_TESTS)
	COTERIE_API_STORE=mysql $(BIN)/pytest -q -n $(JOBS) $(STORE_API_TESTS)
	COTERIE_CONFORMANCE_STORE=postgresql $(BIN)/pytest -q -n $(JOBS) --dist loadgroup $(CLIENT_TESTS)
	COTERIE_CONFORMANCE_STORE=etcd $(BIN)/pytest -q -n $(JOBS) --dist loadgroup $(CLIENT_TESTS)

ha: $(STAMP)  ## two control planes on PostgreSQL and on etcd under jobs, while members and store are killed, stopped and paused (COTERIE_HA_SECONDS=240 each)
	COTERIE_HA=1 $(BIN)/pytest -q -s --timeout 3600 tests/e2e/test_e2e_members.py tests/e2e/test_e2e_members_lites.py tests/e2e/test_e2e_members_soak.py

kafka: $(STAMP)  ## functions on a real Apache Kafka: gets a broker (Maven, Java 17); bus, dispatcher, acceptance rows on a node, kills; one of three brokers dies
	@scripts/get-kafka
	COTERIE_KAFKA=1 $(BIN)/pytest -q -rs --timeout 300 -k kafka tests/functions tests/e2e/test_e2e_functions_kafka.py tests/e2e/test_e2e_functions_kills.py

CALLS ?= 10000
functions-kills: $(STAMP)  ## CALLS=10000 calls through a chain of three functions on a node while its processes are killed (minutes; COTERIE_KAFKA=1: on Kafka too)
	COTERIE_KILL_CALLS=$(CALLS) COTERIE_KILL_EVERY=100 $(BIN)/pytest -q -s --timeout 3600 tests/e2e/test_e2e_functions_kills.py

bfia: $(STAMP)  ## jobs with a BFIA partner of another vendor, also with one that is lost for good (eight minutes)
	COTERIE_BFIA_LONG=1 $(BIN)/pytest -q -rs --timeout 900 tests/e2e/test_e2e_bfia.py

bfia-conversations: $(STAMP)  ## record anew what a node and a BFIA partner say to each other; read the difference before you commit it
	COTERIE_BFIA_RECORD=tests/kuscia/bfia $(BIN)/pytest -q --timeout 300 tests/e2e/test_e2e_bfia.py

functions-rows: $(STAMP)  ## the acceptance rows of functions on a node, those with figures too (C-27; C-62 with ten starts): on a machine without other work
	COTERIE_ROW_STARTS=10 $(BIN)/pytest -q -s --timeout 600 tests/e2e/test_e2e_functions.py

joined: $(STAMP)  ## two networks with a master each and an autonomy domain; one master is away for a minute
	COTERIE_AWAY_SECONDS=60 $(BIN)/pytest -q --timeout 600 tests/e2e/test_e2e_joined_networks.py

gpu:  ## tests of GPUs, as root on a machine that has one; packages come from .gpu-wheels (scripts/get-gpu-wheels)
	@tests/gpu/run

bench: $(STAMP)  ## measure; prints the table that docs/benchmarks.md keeps
	$(BIN)/python -m benchmarks.run

clean:  ## remove what make made
	rm -rf $(VENV) .tools .gpu-wheels .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
