#!/usr/bin/env bash
# Stop workers that start_worker.sh started: each one's whole process tree, by process id.
#
#   stop_worker.sh PORT...
#
# Environment: REAL_VLLM (~/.cache/real-vllm)
set -u
logs=${REAL_VLLM:-$HOME/.cache/real-vllm}/logs

tree() {
  local child
  echo "$1"
  # shellcheck disable=SC2013 # the file holds words
  for child in $(cat "/proc/$1/task"/*/children 2> /dev/null); do tree "$child"; done
}

# Ask all of them first, so that they end side by side.
declare -A trees=()
for port in "$@"; do
  root=$(cat "$logs/$port.pid" 2> /dev/null) || continue
  rm -f "$logs/$port.pid"
  grep -aq vllm "/proc/$root/cmdline" 2> /dev/null || continue # the id belongs to somebody else by now
  trees[$root]=$(tree "$root")
  kill "$root" 2> /dev/null
done
for root in "${!trees[@]}"; do
  for _ in $(seq 40); do
    kill -0 "$root" 2> /dev/null || break
    sleep 0.25
  done
  # An engine that is stuck in start-up ignores SIGTERM.
  for pid in ${trees[$root]}; do kill -9 "$pid" 2> /dev/null; done
done
exit 0
