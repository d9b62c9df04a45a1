#!/usr/bin/env bash
# Start one real vLLM CPU worker on loopback and wait until it answers /health.
#
#   start_worker.sh PORT [KIND] [extra `vllm serve` arguments...]
#
# KIND: regular (default)
#       prefill | decode  producer or consumer of KV blocks over NIXL; side channel on PORT+11000
#       events            KV events on tcp://*:(PORT+12000), replay on PORT+13000
# Environment: REAL_VLLM (~/.cache/real-vllm, holds venv/, tiny-llama/ and logs/), NAME (served model name: tiny),
#              KV_BYTES (64M: 65,536 tokens), BLOCK (32 tokens), MAXLEN (8192), SEQS (64), WAIT (seconds: 240),
#              KV_CONNECTOR (NixlConnector, which pulls; NixlPushConnector), KV_EXTRA (its extra config: {})
# Prints "PID MILLISECONDS". The log is $REAL_VLLM/logs/PORT.log. Stop it with stop_worker.sh PORT.
set -euo pipefail
port=${1:?usage: start_worker.sh PORT [regular|prefill|decode|events] [vllm args...]}
kind=${2:-regular}
shift $(($# < 2 ? $# : 2))
base=${REAL_VLLM:-$HOME/.cache/real-vllm}
logs=$base/logs
mkdir -p "$logs"

args=(--host 127.0.0.1 --port "$port" --served-model-name "${NAME:-tiny}" --dtype float32
  --max-model-len "${MAXLEN:-8192}" --max-num-seqs "${SEQS:-64}" --block-size "${BLOCK:-32}"
  --kv-cache-memory-bytes "${KV_BYTES:-64M}" --enforce-eager --enable-prefix-caching
  --enable-scale-out --enable-server-load-tracking --enable-prompt-tokens-details --disable-uvicorn-access-log)
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export OMP_NUM_THREADS=1
export VLLM_SERVER_DEV_MODE=1            # /reset_prefix_cache
export VLLM_ENABLE_V1_MULTIPROCESSING=0  # model inside the engine process: starts in half the time and memory
export TORCHDYNAMO_DISABLE=1             # else the first request with logprobs compiles C++ for 15 s

ports=("$port")
case $kind in
  regular) ;;
  prefill | decode)
    export VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 VLLM_NIXL_SIDE_CHANNEL_PORT=$((port + 11000))
    export UCX_TLS=${UCX_TLS:-tcp,sm,self}
    ports+=("$VLLM_NIXL_SIDE_CHANNEL_PORT")
    if [ "$kind" = prefill ]; then role=kv_producer; else role=kv_consumer; fi
    extra=${KV_EXTRA:-'{}'}
    args+=(--kv-transfer-config
      "{\"kv_connector\":\"${KV_CONNECTOR:-NixlConnector}\",\"kv_role\":\"$role\",\"kv_buffer_device\":\"cpu\",\
\"kv_connector_extra_config\":$extra}") ;;
  events)
    ports+=($((port + 12000)) $((port + 13000)))
    args+=(--kv-events-config "{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"topic\":\"\",\
\"endpoint\":\"tcp://*:$((port + 12000))\",\"replay_endpoint\":\"tcp://*:$((port + 13000))\"}") ;;
  *) echo "start_worker.sh: unknown kind '$kind'" >&2; exit 2 ;;
esac

# A taken side-channel port does not fail the worker: its engine waits for ever, deaf to SIGTERM. So look first.
for p in "${ports[@]}"; do
  if ss -ltnH "sport = :$p" | grep -q .; then
    echo "start_worker.sh: port $p is taken" >&2
    exit 1
  fi
done

began=$(date +%s%N)
nohup "$base/venv/bin/vllm" serve "$base/tiny-llama" "${args[@]}" "$@" > "$logs/$port.log" 2>&1 < /dev/null &
pid=$!
echo "$pid" > "$logs/$port.pid"
for _ in $(seq $((${WAIT:-240} * 2))); do
  if curl -sf -m 2 -o /dev/null "http://127.0.0.1:$port/health"; then
    echo "$pid $((($(date +%s%N) - began) / 1000000))"
    exit 0
  fi
  if ! kill -0 "$pid" 2> /dev/null; then
    echo "start_worker.sh: the worker on $port died, end of $logs/$port.log:" >&2
    tail -5 "$logs/$port.log" >&2
    exit 1
  fi
  sleep 0.5
done
echo "start_worker.sh: the worker on $port was not healthy in time, see $logs/$port.log" >&2
exit 1
