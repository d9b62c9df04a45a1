#!/usr/bin/env bash
# The soak: the release program between simulated workers in other processes, mixed requests, a random fault each second,
# crowds of 10,000 clients. It ends with a line that says PASSED or FAILED, and an exit code.
#
#   tests/soak.sh [SECONDS] [FLAGS]       # 1800 without an argument; 86400 is a day
#   tests/soak.sh 600 --seed 7 --rate 300 --crowd 2000 --flags "--policy round_robin"
#
# The router holds a descriptor for each client and each connection to a worker: a crowd of 10,000 needs `ulimit -n` 20000.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-1800}
shift || true
target=${CARGO_TARGET_DIR:-target}
ulimit -n "$(ulimit -Hn)"

cargo build --release --locked
# The workers and the clients are not what is tested: they are as in all tests.
cargo build --locked -p forebay-tests --bin soak
exec "$target/debug/soak" run --forebay "$target/release/forebay" --seconds "$seconds" "$@"
