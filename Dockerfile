# Two images of one binary:
#
#   docker build --target service -t sojourn      .
#   docker build --target node    -t sojourn-node .
#
# `service` serves HTTP (`serve --role api`) and runs turns (`serve --role worker`), without
# privileges. `node` makes the sandboxes of its machine for the workers; it has no secret,
# and its stage below lists the privileges that it needs. `tests/image/run` builds both and
# runs sessions in them.

# Debian 12 or newer, or a derivative; Rust 1.95 or newer.
ARG BASE_IMAGE=debian:bookworm-slim
ARG RUST_IMAGE=rust:1.95-slim-bookworm
# Node 20.19 or newer.
ARG NODE_IMAGE=node:22-bookworm-slim

# ---- the dashboard ----

FROM ${NODE_IMAGE} AS dashboard
WORKDIR /build/web
COPY web/package.json web/package-lock.json web/.npmrc ./
RUN npm ci --no-audit --no-fund --loglevel=error
COPY openapi.yaml /build/
COPY web ./
RUN npm run --silent build

# ---- the binary ----

FROM ${RUST_IMAGE} AS build
# The C compiler and the static C library, if the image lacks them.
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build
# Dependencies are a separate layer, because they change less often than the code.
COPY Cargo.toml Cargo.lock ./
COPY init/Cargo.toml init/
RUN mkdir -p src init/src \
 && echo 'fn main() {}' | tee build.rs src/main.rs init/src/main.rs \
 && touch src/lib.rs init/src/lib.rs \
 && cargo build --release --locked
COPY . .
COPY --from=dashboard /build/web/dist web/dist
# Newer than the placeholders above, else cargo would keep their build.
RUN touch build.rs src/main.rs src/lib.rs init/src/main.rs init/src/lib.rs \
 && cargo build --release --locked \
 && cp target/release/sojourn /usr/local/bin/sojourn

# ---- common base of both images ----

FROM ${BASE_IMAGE} AS base
# CA certificates for TLS to model providers and webhook receivers; git for repositories of
# SOJOURN_LOCAL_SOURCES; tini as PID 1, which reaps the processes that a container runtime
# leaves.
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends ca-certificates git tini \
 && rm -rf /var/lib/apt/lists/*
# Processes share the blobs, whichever user wrote them: setgid directories pass their group
# on.
RUN groupadd --gid 10001 sojourn \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin sojourn \
 && install -d -m 0755 -o sojourn -g sojourn /data \
 && install -d -m 2775 -o sojourn -g sojourn /data/blobs
COPY --from=build /usr/local/bin/sojourn /usr/local/bin/sojourn
ENV SOJOURN_DATA_DIR=/data
VOLUME /data
STOPSIGNAL SIGTERM
# Files are writable by the group, for the same reason.
ENTRYPOINT ["tini", "--", "sh", "-c", "umask 002 && exec sojourn \"$@\"", "sojourn"]

# ---- HTTP and turns ----
# Privileges: none. Runs as user 10001 with all capabilities dropped and a read-only root
# file system (it writes to /data and /tmp). A worker reaches its node agent with
# SOJOURN_NODE.

FROM base AS service
ENV SOJOURN_LISTEN=0.0.0.0:8080
EXPOSE 8080
USER 10001:10001
CMD ["serve", "--role", "api"]

# ---- sandboxes ----
# A sandbox is a container inside this one, so the node agent needs the privileges of a
# container runtime, but not --privileged. It needs no network and no secret. It runs as
# root of its container (each sandbox in its own user namespace) with exactly:
#
#   capabilities  CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETPCAP SETUID SYS_ADMIN
#                 SYS_CHROOT SYS_PTRACE, all others dropped (SYS_ADMIN: mounts,
#                 namespaces, pivot_root; SYS_PTRACE: runc opens the namespaces
#                 of a sandbox through /proc; the others: files and processes of the
#                 users of a sandbox)
#   seccomp       unconfined: the default profile refuses pivot_root and keyctl;
#                 each sandbox gets the stricter profile of the service
#   apparmor      unconfined: the default profile refuses mounts
#   /proc         unmasked (systempaths=unconfined): the kernel refuses to mount a
#                 new /proc in a namespace where the existing one is partly masked
#   cgroups       the hierarchy of the host, writable, for the limits of sandboxes
#
# deploy/compose.yaml has the same configuration. With the image `host`, sandboxes see
# /usr of this image, read-only: install further tools of agents here.
#
# With `--user 10001:10001 serve --role worker` and without SOJOURN_NODE, a worker in this
# image creates the same sandboxes itself, without root (differences: docs/sandboxes.md,
# "Without root"; mainly, CPU and memory of a sandbox are not limited). It needs
#
#   capabilities  SETGID SETUID, all others dropped: the process itself has neither,
#                 only newuidmap and newgidmap receive them
#   seccomp, apparmor, /proc   as above, and not no-new-privileges, which would
#                 prevent that

FROM base AS node
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends bash e2fsprogs libcap2-bin mmdebstrap python3 runc uidmap \
 && rm -rf /var/lib/apt/lists/*
# File capabilities instead of set-user-id, which would need more privileges.
RUN usermod --add-subuids 100000-165535 --add-subgids 100000-165535 sojourn \
 && chmod u-s /usr/bin/newuidmap /usr/bin/newgidmap \
 && setcap cap_setuid=ep /usr/bin/newuidmap \
 && setcap cap_setgid=ep /usr/bin/newgidmap
USER 0:10001
CMD ["serve", "--role", "node"]
