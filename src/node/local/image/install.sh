# Installs packages as the root of a container. Names come in variables and were checked:
# they hold no space and begin with no dash. Steps are told in lines of their own.
set -euo pipefail
export HOME=/root USER=root LOGNAME=root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive TMPDIR=/tmp
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd /tmp
umask 022
certificates=/.sojourn/egress/certificates.pem

step() { echo "== $*"; }
fail() { echo "$*"; exit 1; }

apt() {
    apt-get -q -o APT::Sandbox::User=root -o Acquire::https::CAInfo="$certificates" -o Acquire::Retries=3 \
        -o Acquire::Languages=none -o Dpkg::Use-Pty=0 -o DPkg::Options::=--force-unsafe-io \
        -o DPkg::Options::=--force-confold "$@"
}
lists_are_read=false
read_lists() {
    command -v apt-get >/dev/null || fail "the image has no apt-get"
    "$lists_are_read" && return
    # Nothing is started here.
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    mkdir -p /var/lib/apt/lists/partial /var/cache/apt/archives/partial
    apt update
    lists_are_read=true
}
install_debs() {
    read_lists
    local name
    for name in "$@"; do
        # What apt does not know by its name it would take for a pattern.
        apt-cache show --no-all-versions "${name%%=*}" >/dev/null 2>&1 || fail "there is no Debian package ${name%%=*}"
    done
    apt install -y --no-install-recommends -- "$@"
}

# Debian's npm comes with hundreds of packages of its own, the registry's with none.
get_npm() {
    command -v node >/dev/null || install_debs nodejs
    command -v python3 >/dev/null || install_debs python3
    python3 - "$NPM_REGISTRY" <<'END'
import base64, hashlib, io, json, os, sys, tarfile, urllib.request
short = {"Accept": "application/vnd.npm.install-v1+json, application/json"}
get = lambda url, head={}: urllib.request.urlopen(urllib.request.Request(url, headers=head), timeout=120).read()
versions = json.loads(get(sys.argv[1].rstrip("/") + "/npm", short))["versions"]
number = lambda version: [int(part) for part in version.split(".")]
# The newest that Debian's Node runs.
fit = [version for version in versions if "-" not in version and number(version)[0] <= 10]
release = versions[max(fit, key=number)]["dist"]
archive = get(release["tarball"])
if "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode() != release["integrity"]:
    sys.exit("npm came with another content than the registry says")
home = "/usr/local/lib/node_modules"
os.makedirs(home, exist_ok=True)
tarfile.open(fileobj=io.BytesIO(archive)).extractall(home)
os.rename(home + "/package", home + "/npm")
for program in ("npm", "npx"):
    os.symlink(f"../lib/node_modules/npm/bin/{program}-cli.js", f"/usr/local/bin/{program}")
END
    chmod 755 /usr/local/lib/node_modules/npm/bin/*-cli.js
}

if [ -n "$APT_PACKAGES" ]; then
    step "apt: $APT_PACKAGES"
    # shellcheck disable=SC2086
    install_debs $APT_PACKAGES
fi
if [ -n "$PIP_PACKAGES" ]; then
    step "pip: $PIP_PACKAGES"
    python3 -m pip --version >/dev/null 2>&1 || install_debs python3-pip
    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_CERT=$certificates
    # shellcheck disable=SC2086
    python3 -m pip install --no-input --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
        --progress-bar=off --index-url "$PIP_INDEX" -- $PIP_PACKAGES
fi
if [ -n "$NPM_PACKAGES" ]; then
    step "npm: $NPM_PACKAGES"
    command -v npm >/dev/null || get_npm
    # shellcheck disable=SC2086
    npm install --global --prefix /usr/local --registry "$NPM_REGISTRY" --cafile "$certificates" --cache /tmp/npm \
        --no-audit --no-fund --no-update-notifier --loglevel warn -- $NPM_PACKAGES
fi
step "cleaning up"
rm -rf /usr/sbin/policy-rc.d /var/lib/apt/lists/* /var/cache/apt/* /root/.npm /root/.cache
find /tmp -mindepth 1 -delete
