#!/usr/bin/env bash
# What others' clients get through `forebay` from real vLLM, unchanged: `vllm bench serve` on completions, chat and responses,
# ../clients/check.py with OpenAI's and Anthropic's, and aiperf where it is installed. The same two CPU workers as run.sh.
#
#   clients.sh
#
# Prints what each of them says at its end, and the router's own counts; exit status 0 if none failed. All it starts is stopped
# again, however it ends.
#
# Environment:
#   PORTS       ports of the workers                           ("8101 8102")
#   PROMPTS     requests of each load                          (40)
#   AIPERF      aiperf, if there is one                        (aiperf)
#   REAL_VLLM, FOREBAY, KV_BYTES, BLOCK, MAXLEN, SEQS, WAIT    see bed.sh
set -euo pipefail
. "$(dirname "$0")/bed.sh"
read -ra ports <<< "${PORTS:-8101 8102}"
prompts=${PROMPTS:-40}
aiperf=${AIPERF:-aiperf}

need_ports "${ports[@]}"
install_once
build_forebay
export VLLM_ENABLE_RESPONSES_API_STORE=1 # else a worker forgets its responses at once

workers=()
for port in "${ports[@]}"; do
  workers+=("http://127.0.0.1:$port")
  launch_worker "$port"
done
await_workers
start_forebay clients --worker-urls "${workers[@]}"
url=$(field "$scratch/clients.out" listening url)
admin=$(field "$scratch/clients.out" listening admin_url)
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1

# Runs a client in the background, so that a signal ends the wait; its lines are in $scratch/NAME.out then.
client() { # NAME COMMAND...
  local name=$1
  "${@:2}" > "$scratch/$name.out" 2> "$scratch/$name.log" &
  pids+=("$!")
  wait "$!"
}

failed=0
bench() { # BACKEND PATH
  client "bench-$1" "$REAL_VLLM/venv/bin/vllm" bench serve --backend "$1" --base-url "$url" --endpoint "$2" \
    --model tiny --tokenizer "$TOKENIZER" --dataset-name random --random-input-len 100 --random-output-len 16 \
    --num-prompts "$prompts" --max-concurrency 4 --disable-tqdm
  local line
  line=$(grep -E '^(Successful|Failed) requests' "$scratch/bench-$1.out" | tr -s ' ' | paste -sd ';')
  grep -q "^Successful requests: *$prompts *\$" "$scratch/bench-$1.out" || failed=1
  echo "vllm bench serve --backend $1 --endpoint $2: $line"
}

bench openai /v1/completions
bench openai-chat /v1/chat/completions
bench openai-responses /v1/responses

"$python" "$here/../clients/check.py" "$url" tiny || failed=1

if command -v "$aiperf" > /dev/null; then
  # Offline it takes no folder for a tokenizer.
  client aiperf env -u HF_HUB_OFFLINE -u TRANSFORMERS_OFFLINE "$aiperf" profile --model tiny --url "$url" \
    --endpoint-type chat --streaming --tokenizer "$TOKENIZER" --request-count "$prompts" --concurrency 4 \
    --isl 100 --osl 16 --ui none --artifact-dir "$scratch/aiperf" || failed=1
  "$python" - "$scratch/aiperf/profile_export_aiperf.json" "$prompts" <<'PYTHON' || failed=1
import json
import sys

told = json.load(open(sys.argv[1]))
count = told["request_count"]["avg"]
errors = told.get("error_request_count", {}).get("avg", 0)
print(f"aiperf profile --endpoint-type chat --streaming: {count:.0f} requests, {errors:.0f} failed")
sys.exit(count != int(sys.argv[2]) or errors > 0)
PYTHON
else
  echo "aiperf: not installed"
fi

curl -sf "$admin/metrics" | grep '^forebay_requests_total' | sed 's/{[^}]*route="\([^"]*\)"[^}]*outcome="\([^"]*\)"[^}]*}/ \1 \2/;
s/{[^}]*outcome="\([^"]*\)"[^}]*route="\([^"]*\)"[^}]*}/ \2 \1/'
exit "$failed"
