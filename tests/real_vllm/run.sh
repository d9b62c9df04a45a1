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
#   PORTS       ports of the workers                           ("8101 8102")
#   POLICY      policy under test                              (cache_aware)
#   BASE_URL    test what already listens there, and start no forebay; `worker` means the first worker itself
#   REAL_VLLM, FOREBAY, KV_BYTES, BLOCK, MAXLEN, SEQS, WAIT    see bed.sh
#   PREFIXES, PREFIX_WORDS, PREFIX_REPEATS, BENCH_PROMPTS      sizes, see check.py
set -euo pipefail
. "$(dirname "$0")/bed.sh"
read -ra ports <<< "${PORTS:-8101 8102}"
policy=${POLICY:-cache_aware}

need_ports "${ports[@]}"
install_once
if [ -z "${BASE_URL:-}" ]; then build_forebay; fi

workers=()
for port in "${ports[@]}"; do
  workers+=("http://127.0.0.1:$port")
  launch_worker "$port"
done
await_workers

options=(--workers "${workers[@]}")
case ${BASE_URL:-} in
  '')
    start_forebay "$policy" --worker-urls "${workers[@]}" --policy "$policy"
    options+=(--url "$(field "$scratch/$policy.out" listening url)")
    options+=(--admin-url "$(field "$scratch/$policy.out" listening admin_url)")
    if [ "$policy" != round_robin ]; then
      start_forebay round_robin --worker-urls "${workers[@]}" --policy round_robin
      options+=(--baseline-url "$(field "$scratch/round_robin.out" listening url)")
    fi ;;
  worker) options+=(--url "${workers[0]}") ;;
  *) options+=(--url "$BASE_URL") ;;
esac

run_check check.py "${options[@]}" "$@"
