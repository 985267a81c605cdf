# Two images of one binary:
#
#   docker build --target api    -t sojourn-api    .
#   docker build --target worker -t sojourn-worker .
#
# `api` serves HTTP and needs no privilege. `worker` runs turns and their
# sandboxes; what it needs of the host is written at its stage below. `tests/image/run`
# builds both and has sessions worked on in them.

# Any Debian 12 or newer, or a derivative; Rust from 1.95 on.
ARG BASE_IMAGE=debian:bookworm-slim
ARG RUST_IMAGE=rust:1.95-slim-bookworm
# Node from 20.19 on.
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
# The compiler and the static C library, for an image that lacks them.
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build
# The dependencies are a layer of their own: they change less often than the code.
COPY Cargo.toml Cargo.lock ./
COPY init/Cargo.toml init/
RUN mkdir -p src init/src \
 && echo 'fn main() {}' | tee build.rs src/main.rs init/src/main.rs \
 && touch src/lib.rs init/src/lib.rs \
 && cargo build --release --locked
COPY . .
COPY --from=dashboard /build/web/dist web/dist
# Newer than the stand-ins above, or cargo would keep what it built from them.
RUN touch build.rs src/main.rs src/lib.rs init/src/main.rs init/src/lib.rs \
 && cargo build --release --locked \
 && cp target/release/sojourn /usr/local/bin/sojourn

# ---- what both images have ----

FROM ${BASE_IMAGE} AS base
# The authorities that model providers and webhook receivers are checked against;
# tini as PID 1, which reaps what a runtime leaves behind.
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends ca-certificates tini \
 && rm -rf /var/lib/apt/lists/*
# Blobs are shared by both, whatever user wrote them: the group's directories
# hand their group on.
RUN groupadd --gid 10001 sojourn \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin sojourn \
 && install -d -m 0755 -o sojourn -g sojourn /data \
 && install -d -m 2775 -o sojourn -g sojourn /data/blobs
COPY --from=build /usr/local/bin/sojourn /usr/local/bin/sojourn
ENV SOJOURN_DATA_DIR=/data
VOLUME /data
STOPSIGNAL SIGTERM
# The group may write what either of them makes.
ENTRYPOINT ["tini", "--", "sh", "-c", "umask 002 && exec sojourn \"$@\"", "sojourn"]

# ---- HTTP ----
# Privileges: none. Runs as 10001 with every capability dropped, with a read-only
# root file system (/data and /tmp are written to).

FROM base AS api
ENV SOJOURN_LISTEN=0.0.0.0:8080
EXPOSE 8080
USER 10001:10001
CMD ["serve", "--role", "api"]

# ---- turns and sandboxes ----
# A sandbox is a container of its own inside this one, so the worker needs what a
# container runtime needs, and not --privileged. It runs as root of its container
# (every sandbox in a user namespace of its own) with exactly:
#
#   capabilities  CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETPCAP SETUID SYS_ADMIN
#                 SYS_CHROOT SYS_PTRACE, all others dropped (SYS_ADMIN: mounts,
#                 namespaces, pivot_root; SYS_PTRACE: runc opens the namespaces
#                 of a sandbox through /proc; the rest: files and processes that
#                 belong to the users of a sandbox)
#   seccomp       unconfined: the default profile refuses pivot_root and keyctl;
#                 each sandbox gets the stricter profile of the service
#   apparmor      unconfined: the default profile refuses mounts
#   /proc         unmasked (systempaths=unconfined): the kernel refuses a new
#                 /proc in a namespace where the old one is partly hidden
#   cgroups       the host's hierarchy, writable, for the limits of the sandboxes
#
# deploy/compose.yaml says the same in Compose's words. The sandboxes see this
# image's /usr, read-only: add an agent's further tools here.
#
# With --user 10001:10001 it makes the same sandboxes without root (what is weaker
# then: docs/sandboxes.md, "Without root"; mostly that processors and memory of a
# sandbox are not limited). It needs
#
#   capabilities  SETGID SETUID, all others dropped: the process has neither, only
#                 newuidmap and newgidmap get them
#   seccomp, apparmor, /proc   as above, and not no-new-privileges, which would keep
#                 those two from it

FROM base AS worker
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends bash e2fsprogs git libcap2-bin mmdebstrap python3 runc uidmap \
 && rm -rf /var/lib/apt/lists/*
# As set-user-id programs the two would need more rights than these.
RUN usermod --add-subuids 100000-165535 --add-subgids 100000-165535 sojourn \
 && chmod u-s /usr/bin/newuidmap /usr/bin/newgidmap \
 && setcap cap_setuid=ep /usr/bin/newuidmap \
 && setcap cap_setgid=ep /usr/bin/newgidmap
USER 0:10001
CMD ["serve", "--role", "worker"]
