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
#   CONNECTORS  what is tried                                  ("nixl nixl_push")
#   PREFILL, DECODE, PLAIN   ports of the workers              ("8601 8602", "8611 8612", 8621)
#   PD_PROMPTS  prompts on each route, whole and streamed      (200)
#   REAL_VLLM, FOREBAY, KV_BYTES, BLOCK, MAXLEN, SEQS, WAIT    see bed.sh
set -euo pipefail
source "$(dirname "$0")/bed.sh"
read -ra connectors <<< "${CONNECTORS:-nixl nixl_push}"
read -ra prefill <<< "${PREFILL:-8601 8602}"
read -ra decode <<< "${DECODE:-8611 8612}"
plain=${PLAIN:-8621}

need_ports "${prefill[@]}" "${decode[@]}" "$plain"
install_once
build_forebay

launch_worker "$plain"
failed=0
for connector in "${connectors[@]}"; do
  if [ "$connector" = nixl_push ]; then
    # A decode worker whose peer died would keep blocks for eight minutes otherwise.
    export KV_CONNECTOR=NixlPushConnector KV_EXTRA='{"push_registration_timeout":15}'
  else
    export KV_CONNECTOR=NixlPullConnector KV_EXTRA='{}'
  fi
  echo "# $KV_CONNECTOR"
  for port in "${prefill[@]}"; do launch_worker "$port" prefill; done
  for port in "${decode[@]}"; do launch_worker "$port" decode; done
  await_workers
  run_check pd_check.py --forebay "$forebay" --connector "$connector" \
    --plain "$plain" --prefill "${prefill[@]}" --decode "${decode[@]}" "$@" || failed=1
  "$here/stop_worker.sh" "${prefill[@]}" "${decode[@]}"
  started=("$plain")
done
exit "$failed"
