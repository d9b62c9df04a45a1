#!/usr/bin/env bash
# End-to-end check of data-parallel ranks with real vLLM: a worker with two ranks that can also prefill for others over
# NIXL, a decode worker, `forebay` in front of them alone and as a pair, and check_ranks.py as the client.
#
#   ranks.sh [check_ranks.py options, e.g. --only pinned_chat,pairs]
#
# Takes about 3 minutes after the first run, 2 cores and 8 GB of memory; needs what run.sh needs. Prints a line per check,
# then `N passed, M failed`; exit status 0 if none failed. All it starts is stopped again, however it ends.
#
# Environment:
#   PORTS       ports of the worker with ranks and of the decode worker    ("8501 8511")
#   PROMPTS     prompts of the comparison of pairs                         (see check_ranks.py)
#   REAL_VLLM, FOREBAY, KV_BYTES, BLOCK, MAXLEN, SEQS, WAIT                see bed.sh
set -euo pipefail
. "$(dirname "$0")/bed.sh"
read -r ranked_port decode_port <<< "${PORTS:-8501 8511}"
ranked=http://127.0.0.1:$ranked_port
decode=http://127.0.0.1:$decode_port

# The second rank's side channel is one port above the first one's.
need_ports "$ranked_port" "$decode_port" $((ranked_port + 11001))
install_once
build_forebay

launch_worker "$ranked_port" prefill --data-parallel-size 2 --api-server-count 1
launch_worker "$decode_port" decode
await_workers

# Each rank in turn; where the prompt is cached; and in pairs.
start_forebay turns --worker-urls "$ranked" --intra-node-data-parallel-size auto --policy round_robin --expose-routing-headers
start_forebay cached --worker-urls "$ranked" --intra-node-data-parallel-size 2 --expose-routing-headers
start_forebay pairs --vllm-pd-disaggregation --prefill "$ranked" --prefill-data-parallel-size 2 --decode "$decode" \
  --prefill-policy round_robin --expose-routing-headers

run_check check_ranks.py --forebay "$forebay" --ranked "$ranked" --decode "$decode" \
  --url "$(field "$scratch/turns.out" listening url)" \
  --cached-url "$(field "$scratch/cached.out" listening url)" \
  --pairs-url "$(field "$scratch/pairs.out" listening url)" \
  --pairs-admin-url "$(field "$scratch/pairs.out" listening admin_url)" "$@"
