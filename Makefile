# The commands of this repository; `make` alone lists them.

# Directories of cargo (rustup) and runc (Debian), which a login shell may lack.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

.DEFAULT_GOAL := help
.PHONY: help run dashboard test test-full chaos planted soak failover bench lint deny audit release openapi clean-state

help: ## list these commands
	@sed -n -e 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '%-18s %s\n' "$$name" "$$text"; done

run: ## install what is missing, build, and serve (SOJOURN_* settings: sojourn serve --help)
	@scripts/setup
	@scripts/dashboard --optional
	cargo build --release --locked
	@SOJOURN_USER="$${SOJOURN_USER:-sojourn}" exec target/release/sojourn serve

dashboard: ## build the dashboard, which the next cargo build embeds
	@scripts/dashboard

test: ## run every check: formatting, lints, tests, published clients, browser, images
	@scripts/test

test-full: ## run every check with the long forms of the tests
	@scripts/test --full

chaos: ## inject faults into a deployment, the long form; CHAOS='--kills 50' for other options
	cargo test --locked --test chaos -- $(or $(CHAOS),--kills 1000 --freezes 500 --postgres-restarts 100 --drains 100 --stream-cuts 10000 --minutes 300 --write)

planted: ## plant known bugs one by one and check that chaos and tests find them; PLANTED='NAME...' for some
	tests/planted/run $(PLANTED)

soak: ## serve a simulated week of production in an hour; SOAK='--minutes 10' for other options
	cargo build --release --locked
	tests/soak/run $(SOAK)

failover: ## upgrade a deployment, cut its link to the database, fail its database over, under load; FAILOVER='upgrade' for one of them
	$(if $(FAILOVER),,scripts/setup --full)
	cargo build --locked --bin sojourn
	for scenario in $(if $(FAILOVER),'$(FAILOVER)','upgrade --write' 'partition --cuts 50 --seconds 30 --write' 'failover --write'); do \
		cargo test --locked --test failover -- $$scenario || exit; \
	done

lint: ## run formatting and lints only
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --test bench --test chaos --test failover --locked -- -D warnings

deny: ## check licenses, bans and sources of the dependencies (deny.toml); installs cargo-deny once
	@command -v cargo-deny >/dev/null || env -u RUSTC_WORKSPACE_WRAPPER cargo install cargo-deny --locked
	cargo deny check licenses bans sources

audit: ## look for known vulnerabilities of the dependencies; needs the advisory databases of RustSec and npm
	@command -v cargo-deny >/dev/null || env -u RUSTC_WORKSPACE_WRAPPER cargo install cargo-deny --locked
	cargo deny check advisories
	cd web && npm audit --omit=dev

release: ## build the files of a release with a bill of materials and checksums, in target/release-files
	@scripts/release

openapi: ## regenerate openapi.yaml from the code
	cargo run --quiet --locked -- openapi > openapi.yaml.new
	mv openapi.yaml.new openapi.yaml

bench: ## run the benchmark and write docs/performance.md; BENCH='p1 p4' measures some goals, with --write also writes their rows
	cargo test --release --locked --test bench -- $(or $(BENCH),--write)

clean-state: ## delete the data of a local service (asks first)
	@scripts/clean-state
