#!/usr/bin/env bash
# Every figure of cache_aware from one run, in about fifteen minutes: tree and choice (criterion), two threads on one tree, what a
# resident block costs and whether the bound holds over 50 million prompts, and the policies against each other in virtual
# time and over sockets (with the peers that benches/install_peers.sh has installed). Run it on an idle machine.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --locked
cargo bench --locked -p forebay-benches --bench tree --bench choice --bench scaling --bench memory
cargo run --release --locked -p forebay-benches --bin quality -- "$@"
cargo run --release --locked -p forebay-benches --bin quality -- --wire "$@"
