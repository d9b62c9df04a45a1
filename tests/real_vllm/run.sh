#!/usr/bin/env bash
# End-to-end check with real vLLM: two CPU workers, `forebay` in front of them, and check.py as the client.
#
#   run.sh [check.py options, e.g. --only greedy_chat,disconnect_mid_stream]
#
# The first run installs vLLM (about 3 minutes, 7 GB) and writes a tiny model; later runs take about 90 seconds. Needs
# python3.11, curl, iproute2 (ss), cargo, 2 cores and 5 GB of memory; no GPU, no model hub. Prints a line per check,
# then `N passed, M failed`; exit status 0 if none failed. All it starts is stopped again, however it ends.
#
# Environment:
#   REAL_VLLM   base folder: venv/, tiny-llama/, logs/         (~/.cache/real-vllm)
#   PORTS       ports of the workers                           ("8101 8102")
#   POLICY      policy under test                              (cache_aware)
#   FOREBAY     binary to test                                 (built with `cargo build --release`)
#   BASE_URL    test what already listens there, and start no forebay; `worker` means the first worker itself
#   KV_BYTES, BLOCK, MAXLEN, SEQS, WAIT                        see start_worker.sh
#   PREFIXES, PREFIX_WORDS, PREFIX_REPEATS, BENCH_PROMPTS      sizes, see check.py
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export REAL_VLLM=${REAL_VLLM:-$HOME/.cache/real-vllm}
export TOKENIZER=$REAL_VLLM/tiny-llama
read -ra ports <<< "${PORTS:-8101 8102}"
policy=${POLICY:-cache_aware}
scratch=$(mktemp -d)
pids=()    # processes to end with SIGTERM
started=() # ports whose workers are ours

stop_all() {
  local status=$? pid
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  "$here/stop_worker.sh" "${started[@]}"
  for pid in "${pids[@]}"; do
    for _ in $(seq 40); do
      kill -0 "$pid" 2> /dev/null || break
      sleep 0.25
    done
    kill -9 "$pid" 2> /dev/null || true
  done
  if [ "$status" -ne 0 ]; then
    find "$scratch" -name '*.log' -size +0 -exec tail -v -n 20 {} + >&2
  fi
  rm -rf "$scratch"
  exit "$status"
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The value of a field in the JSON line of that event, e.g. `field FILE listening url`.
field() {
  sed -n "s/.*\"event\": *\"$2\".*\"$3\": *\"\([^\"]*\)\".*/\1/p" "$1" | head -n 1
}

# Starts forebay with policy $1 and waits until it says it is ready; its lines are in $scratch/$1.out then.
start_forebay() {
  "$forebay" --worker-urls "${workers[@]}" --policy "$1" --host 127.0.0.1 --port 0 --admin-port 0 \
    > "$scratch/$1.out" 2> "$scratch/$1.log" &
  local pid=$!
  pids+=("$pid")
  for _ in $(seq 240); do
    if grep -qs '"event": *"ready"' "$scratch/$1.out"; then return; fi
    if ! kill -0 "$pid" 2> /dev/null; then
      echo "run.sh: forebay --policy $1 ended before it was ready" >&2
      return 1
    fi
    sleep 0.25
  done
  echo "run.sh: forebay --policy $1 was not ready within 60 s; it printed:" >&2
  cat "$scratch/$1.out" >&2
  return 1
}

# Before anything slow. A worker of somebody else on these ports would also pass for ours.
for port in "${ports[@]}"; do
  if ss -ltnH "sport = :$port" | grep -q .; then
    echo "run.sh: port $port is taken; choose others with PORTS" >&2
    exit 1
  fi
done

if [ ! -x "$REAL_VLLM/venv/bin/vllm" ]; then "$here/install.sh" "$REAL_VLLM/venv"; fi
if [ ! -f "$TOKENIZER/model.safetensors" ]; then
  HF_HUB_OFFLINE=1 "$REAL_VLLM/venv/bin/python" "$here/make_tiny_model.py" "$TOKENIZER"
fi

if [ -z "${BASE_URL:-}" ]; then
  forebay=${FOREBAY:-}
  if [ -z "$forebay" ]; then
    root=$(cd "$here/../.." && pwd)
    (cd "$root" && cargo build --release --quiet)
    forebay=${CARGO_TARGET_DIR:-$root/target}/release/forebay
  fi
fi

workers=()
starting=()
for port in "${ports[@]}"; do
  workers+=("http://127.0.0.1:$port")
  started+=("$port")
  "$here/start_worker.sh" "$port" > "$scratch/worker-$port.out" 2> "$scratch/worker-$port.log" &
  starting+=("$!")
  pids+=("$!")
done
for pid in "${starting[@]}"; do wait "$pid"; done
pids=()
for port in "${ports[@]}"; do
  read -r pid milliseconds < "$scratch/worker-$port.out"
  echo "# worker on $port, process $pid, healthy after $milliseconds ms"
done

options=(--workers "${workers[@]}")
case ${BASE_URL:-} in
  '')
    start_forebay "$policy"
    options+=(--url "$(field "$scratch/$policy.out" listening url)")
    options+=(--admin-url "$(field "$scratch/$policy.out" listening admin_url)")
    if [ "$policy" != round_robin ]; then
      start_forebay round_robin
      options+=(--baseline-url "$(field "$scratch/round_robin.out" listening url)")
    fi ;;
  worker) options+=(--url "${workers[0]}") ;;
  *) options+=(--url "$BASE_URL") ;;
esac

# In the background, so that a signal ends the wait and the trap runs at once.
"$REAL_VLLM/venv/bin/python" "$here/check.py" "${options[@]}" "$@" &
pids+=("$!")
wait "$!"
