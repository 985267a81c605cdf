# The commands of this repository; `make` alone lists them.

# Where rustup puts cargo, and Debian puts runc, when a login did not say so.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

.DEFAULT_GOAL := help
.PHONY: help run dashboard test test-full chaos bench lint openapi clean-state

help: ## list these commands
	@sed -n -e 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '%-18s %s\n' "$$name" "$$text"; done

run: ## install what is missing, build, and serve (SOJOURN_* settings: sojourn serve --help)
	@scripts/setup
	@scripts/dashboard --optional
	cargo build --release --locked
	@exec target/release/sojourn serve

dashboard: ## build the dashboard, which the next cargo build embeds
	@scripts/dashboard

test: ## everything that has to pass: formatting, lints, tests, published clients, browser, images
	@scripts/test

test-full: ## the same with the long forms of the tests
	@scripts/test --full

chaos: ## kill, freeze and cut a deployment, the long form; CHAOS='--kills 50' for another
	cargo test --locked --test chaos -- $(or $(CHAOS),--kills 1000 --freezes 500 --postgres-restarts 100 --drains 100 --stream-cuts 10000 --minutes 300 --write)

lint: ## formatting and lints only
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --test bench --test chaos --locked -- -D warnings

openapi: ## write openapi.yaml anew from the code
	cargo run --quiet --locked -- openapi > openapi.yaml.new
	mv openapi.yaml.new openapi.yaml

bench: ## measure the speed and write docs/performance.md; BENCH='p1 p4' measures some goals and writes nothing (BENCH='p1 p4 --write': their rows)
	cargo test --release --locked --test bench -- $(or $(BENCH),--write)

clean-state: ## remove the data of a local service (asks first)
	@scripts/clean-state
