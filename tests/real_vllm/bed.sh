# What run.sh and ranks.sh share: workers, forebay in front of them, and that all of it is stopped again. Sourced.
#
# Environment:
#   REAL_VLLM   base folder: venv/, tiny-llama/, logs/         (~/.cache/real-vllm)
#   FOREBAY     binary to test                                 (built with `cargo build --release`)
#   KV_BYTES, BLOCK, MAXLEN, SEQS, WAIT                        see start_worker.sh
# shellcheck shell=bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
me=$(basename "$0")
export REAL_VLLM=${REAL_VLLM:-$HOME/.cache/real-vllm}
export TOKENIZER=$REAL_VLLM/tiny-llama
python=$REAL_VLLM/venv/bin/python
scratch=$(mktemp -d)
pids=()     # processes to end with SIGTERM
started=()  # ports whose workers are ours
starting=() # start_worker.sh processes that are under way

stop_all() {
  local status=$? pid
  trap - EXIT INT TERM
  pids+=("${starting[@]}")
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

# Ends the script if a port is taken. To be called before anything slow: a worker of somebody else would pass for ours.
need_ports() {
  local port
  for port in "$@"; do
    if ss -ltnH "sport = :$port" | grep -q .; then
      echo "$me: port $port is taken; choose others" >&2
      exit 1
    fi
  done
}

# Installs vLLM and writes the model, once.
install_once() {
  if [ ! -x "$REAL_VLLM/venv/bin/vllm" ]; then "$here/install.sh" "$REAL_VLLM/venv"; fi
  if [ ! -f "$TOKENIZER/model.safetensors" ]; then
    HF_HUB_OFFLINE=1 "$python" "$here/make_tiny_model.py" "$TOKENIZER"
  fi
}

# Sets `forebay` to the binary.
build_forebay() {
  forebay=${FOREBAY:-}
  if [ -z "$forebay" ]; then
    local root
    root=$(cd "$here/../.." && pwd)
    (cd "$root" && cargo build --release --quiet)
    forebay=${CARGO_TARGET_DIR:-$root/target}/release/forebay
  fi
}

# Starts a worker and does not wait for it: arguments as of start_worker.sh.
launch_worker() {
  started+=("$1")
  "$here/start_worker.sh" "$@" > "$scratch/worker-$1.out" 2> "$scratch/worker-$1.log" &
  starting+=("$!")
}

# Waits until all that were launched are healthy.
await_workers() {
  local pid port milliseconds
  for pid in "${starting[@]}"; do wait "$pid"; done
  starting=()
  for port in "${started[@]}"; do
    read -r pid milliseconds < "$scratch/worker-$port.out"
    echo "# worker on $port, process $pid, healthy after $milliseconds ms"
  done
}

# Starts forebay with these flags and waits until it says it is ready; its lines are in $scratch/NAME.out then.
start_forebay() { # NAME FLAGS...
  local name=$1 pid
  shift
  "$forebay" "$@" --host 127.0.0.1 --port 0 --admin-port 0 > "$scratch/$name.out" 2> "$scratch/$name.log" &
  pid=$!
  pids+=("$pid")
  for _ in $(seq 240); do
    if grep -qs '"event": *"ready"' "$scratch/$name.out"; then return; fi
    if ! kill -0 "$pid" 2> /dev/null; then
      echo "$me: forebay ($name) ended before it was ready" >&2
      return 1
    fi
    sleep 0.25
  done
  echo "$me: forebay ($name) was not ready within 60 s; it printed:" >&2
  cat "$scratch/$name.out" >&2
  return 1
}

# Runs a check in the background, so that a signal ends the wait and the trap runs at once.
run_check() { # SCRIPT OPTIONS...
  "$python" "$here/$1" "${@:2}" &
  pids+=("$!")
  wait "$!"
}
