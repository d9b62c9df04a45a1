#!/usr/bin/env bash
# Installs what the yardstick compares with: haproxy and nginx from the distribution, the routers written for LLM
# engines from PyPI, each into an environment of its own under benches/peers (not tracked). What cannot be installed
# is named and left out; the yardstick measures what is there.
set -uo pipefail
cd "$(dirname "$0")"
mkdir -p peers

distribution() {
    local missing=()
    for name in haproxy nginx strace; do
        command -v "$name" >/dev/null || missing+=("$name")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    local root=()
    [ "$(id -u)" -eq 0 ] || root=(sudo)
    "${root[@]}" apt-get update -qq && "${root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

python_peer() {
    local name=$1 version=$2 place=peers/$1
    shift 2
    if [ -x "$place/bin/python" ] && "$place/bin/python" -m pip show -q "$name" 2>/dev/null; then
        return 0
    fi
    python3 -m venv "$place" && nice -n 10 "$place/bin/python" -m pip install -q "$name==$version" "$@"
}

failed=()
distribution || failed+=("haproxy, nginx or strace")
python_peer vllm-router 0.1.17 || failed+=(vllm-router)
python_peer smg 1.13.0 || failed+=(smg)
python_peer sglang-router 0.3.2 || failed+=(sglang-router)
if [ ${#failed[@]} -gt 0 ]; then
    printf 'not installed: %s\n' "${failed[@]}" >&2
    exit 1
fi
echo "all peers are installed"
