#!/usr/bin/env bash
# Starts N processes of one run on this machine, on the CPU or with one GPU each.
#
#   launch/local.sh [--dry-run] N -- pretrain --config FILE --workdir DIR [--config.KEY=VALUE ...]
#   launch/local.sh 2 -- pretrain --config experiments/pretrain_sotu_tiny.py --workdir runs/two
#
# The arguments after -- are passed to elmo-jax with the three options by which the processes find each other.
# If nvidia-smi finds GPUs and JAX_PLATFORMS is not cpu, process I gets the I-th GPU (of CUDA_VISIBLE_DEVICES if that is
# set). Ctrl-C and SIGTERM are passed on once, and the end of the terminal as SIGTERM, so that all processes save and end.
# The exit code is that of the first process that failed; 134 and 75 mean that another one was lost. The others then have
# GRACE_SECONDS to end by themselves, since a run that is asked to stop saves first, and are killed afterwards.
#
# Environment variables: ELMO_JAX (the command; default elmo-jax or .venv/bin/elmo-jax), GRACE_SECONDS.
set -euo pipefail
set -m # one process group per process: Ctrl-C reaches only this script, and a process is ended with all its children

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }

dry_run=false
if [[ ${1:-} == --dry-run ]]; then
  dry_run=true
  shift
fi
[[ ${1:-} =~ ^[1-9][0-9]*$ && ${2:-} == -- && $# -gt 2 ]] || usage
processes=$1
shift 2

root=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")
if [[ -z ${ELMO_JAX:-} ]]; then
  command=(elmo-jax)
  if [[ -x $root/.venv/bin/elmo-jax ]]; then command=("$root/.venv/bin/elmo-jax"); fi
else
  read -ra command <<<"$ELMO_JAX" # may be several words, such as python -m elmo_jax
fi

gpus=()
# An empty CUDA_VISIBLE_DEVICES, or -1, hides all GPUs.
if [[ ${JAX_PLATFORMS:-} != cpu && ${CUDA_VISIBLE_DEVICES-all} != "" && ${CUDA_VISIBLE_DEVICES:-} != -1 ]] &&
  found=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null); then
  if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
    IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
  elif [[ -n $found ]]; then
    mapfile -t gpus <<<"$found"
  fi
  if ((${#gpus[@]} && ${#gpus[@]} < processes)); then
    echo "launch/local.sh: $processes processes for ${#gpus[@]} GPUs; start fewer, or set JAX_PLATFORMS=cpu" >&2
    exit 2
  fi
fi

free_port() { # prints a port on which no process listens
  local port
  while port=$((20000 + RANDOM % 12000)) && (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}
port=$(free_port)

arguments=("$@")
line() { # puts the command of process $1 into the array words
  words=("${command[@]}" "${arguments[@]}" --coordinator "127.0.0.1:$port" --processes "$processes" --process "$1")
  if ((${#gpus[@]})); then words=(env "CUDA_VISIBLE_DEVICES=${gpus[$1]}" "${words[@]}"); fi
}

pids=()
to_all() { # sends a signal to all processes that still run
  for pid in "${pids[@]}"; do kill "-$1" -- "-$pid" 2>/dev/null || true; done
}
trap 'to_all INT' INT
trap 'to_all TERM' TERM HUP # HUP: the terminal was closed

for ((i = 0; i < processes; i++)); do
  line "$i"
  if $dry_run; then
    printf '%q ' "${words[@]}"
    echo
  else
    "${words[@]}" &
    pids+=($!)
  fi
done

status=0
while ((${#pids[@]})); do
  for i in "${!pids[@]}"; do
    # Each process is checked, since `wait -n` misses some that end at once, and returns at once while one is suspended.
    if kill -0 "${pids[$i]}" 2>/dev/null; then continue; fi
    code=0
    wait "${pids[$i]}" || code=$?
    unset "pids[$i]"
    if ((code && !status)); then
      status=$code
      # After a stop all of them are saving, which a second signal would interrupt.
      case $code in 129 | 130 | 138 | 143 | 152) ;; *) to_all TERM ;; esac
      (sleep "${GRACE_SECONDS:-60}" && to_all KILL) &
      watch=$!
    fi
  done
  # In the background: Ctrl-C signals the foreground's process group, which under set -m is that of a command.
  sleep 0.2 &
  wait $! || true # a signal interrupts it
done
if [[ -n ${watch:-} ]]; then kill -- "-$watch" 2>/dev/null || true; fi
exit "$status"
