#!/usr/bin/env bash
# Prefill/decode pairs over real vLLM with NIXL on the CPU: two prefill workers, two decode workers and a plain one whose
# outputs are the right ones, for each connector; pd_check.py puts forebay in front and is the client.
#
#   pd.sh [pd_check.py options, e.g. --only outputs_1p1d]
#
# The first run installs vLLM (about 3 minutes, 7 GB) and writes a tiny model. Needs python3.11, curl, iproute2 (ss),
# cargo, 2 cores and 10 GB of memory; no GPU, no model hub. Prints a line per check; exit status 0 if none failed. All it
# starts is stopped again, however it ends; workers that were killed on purpose are not started again.
#
# Environment:
#   REAL_VLLM   base folder: venv/, tiny-llama/, logs/         (~/.cache/real-vllm)
#   CONNECTORS  what is tried                                  ("nixl nixl_push")
#   PREFILL, DECODE, PLAIN   ports of the workers              ("8601 8602", "8611 8612", 8621)
#   FOREBAY     binary to test                                 (built with `cargo build --release`)
#   PD_PROMPTS  prompts on each route, whole and streamed      (200)
#   KV_BYTES, BLOCK, MAXLEN, SEQS, WAIT                        see start_worker.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export REAL_VLLM=${REAL_VLLM:-$HOME/.cache/real-vllm}
tokenizer=$REAL_VLLM/tiny-llama
read -ra connectors <<< "${CONNECTORS:-nixl nixl_push}"
read -ra prefill <<< "${PREFILL:-8601 8602}"
read -ra decode <<< "${DECODE:-8611 8612}"
plain=${PLAIN:-8621}
scratch=$(mktemp -d)
pids=()    # processes to end with SIGTERM
started=() # ports whose workers are ours

stop_all() {
  local status=$? pid
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  "$here/stop_worker.sh" "${started[@]}"
  if [ "$status" -ne 0 ]; then
    find "$scratch" -name '*.log' -size +0 -exec tail -v -n 20 {} + >&2
  fi
  rm -rf "$scratch"
  exit "$status"
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Starts workers side by side: `start KIND PORT...`, and again; `started_all` waits for them.
start() {
  local kind=$1 port
  shift
  for port in "$@"; do
    started+=("$port")
    "$here/start_worker.sh" "$port" "$kind" > "$scratch/$port.out" 2> "$scratch/$port.log" &
    pids+=("$!")
  done
}

started_all() {
  local pid
  for pid in "${pids[@]}"; do wait "$pid"; done
  pids=()
}

for port in "${prefill[@]}" "${decode[@]}" "$plain"; do
  if ss -ltnH "sport = :$port" | grep -q .; then
    echo "pd.sh: port $port is taken; choose others with PREFILL, DECODE and PLAIN" >&2
    exit 1
  fi
done

if [ ! -x "$REAL_VLLM/venv/bin/vllm" ]; then "$here/install.sh" "$REAL_VLLM/venv"; fi
if [ ! -f "$tokenizer/model.safetensors" ]; then
  HF_HUB_OFFLINE=1 "$REAL_VLLM/venv/bin/python" "$here/make_tiny_model.py" "$tokenizer"
fi

forebay=${FOREBAY:-}
if [ -z "$forebay" ]; then
  root=$(cd "$here/../.." && pwd)
  (cd "$root" && cargo build --release --quiet)
  forebay=${CARGO_TARGET_DIR:-$root/target}/release/forebay
fi

start regular "$plain"
failed=0
for connector in "${connectors[@]}"; do
  if [ "$connector" = nixl_push ]; then
    # A decode worker whose peer died would wait eight minutes for the push otherwise.
    export KV_CONNECTOR=NixlPushConnector KV_EXTRA='{"push_registration_timeout":15}'
  else
    export KV_CONNECTOR=NixlPullConnector KV_EXTRA='{}'
  fi
  start prefill "${prefill[@]}"
  start decode "${decode[@]}"
  started_all
  for port in "${prefill[@]}" "${decode[@]}"; do
    read -r pid milliseconds < "$scratch/$port.out"
    echo "# $KV_CONNECTOR on $port, process $pid, healthy after $milliseconds ms"
  done
  # In the background, so that a signal ends the wait and the trap runs at once.
  "$REAL_VLLM/venv/bin/python" "$here/pd_check.py" --forebay "$forebay" --connector "$connector" \
    --plain "$plain" --prefill "${prefill[@]}" --decode "${decode[@]}" "$@" &
  pids+=("$!")
  wait "$!" || failed=1
  pids=()
  "$here/stop_worker.sh" "${prefill[@]}" "${decode[@]}"
done
exit "$failed"
