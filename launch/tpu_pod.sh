#!/usr/bin/env bash
# Runs elmo-jax on a Cloud TPU slice of any size: requests the slice, installs the last commit of this checkout on all its
# workers, starts the command on all of them, and restarts it, on a new slice if needed, until the run is complete.
#
#   launch/tpu_pod.sh --name NAME --zone ZONE --type TYPE --runtime VERSION [options] -- pretrain --config FILE --workdir gs://...
#   launch/tpu_pod.sh --name elmo --zone us-west4-a --type v5litepod-64 --runtime v2-alpha-tpuv5-lite --spot \
#     --copy gs://my-bucket/1b_word=data/1b_word \
#     -- pretrain --config experiments/pretrain_1b_word.py --workdir gs://my-bucket/runs/1b_word
#   launch/tpu_pod.sh --name elmo --zone us-west4-a --stop      # all processes save and end; the slice is kept
#   launch/tpu_pod.sh --name elmo --zone us-west4-a --delete    # deletes the slice
#
#   --spot              ask for spot capacity
#   --project P         Google Cloud project (default: gcloud's)
#   --copy GS=FOLDER    before each start, copy a bucket's folder (a prepared corpus) to every worker; may be repeated
#   --create-flag FLAG  another flag for `gcloud compute tpus queued-resources create`; may be repeated
#   --dry-run           print the commands of a first launch without running them
#
# The arguments after -- are passed to elmo-jax, which finds the other workers by itself. The same command may be run again
# at any time and uses the slice NAME in the state in which it is. gcloud must be logged in, and the run's folder in gs://.
# The command is restarted as often as needed after preemption, a stop (129, 130, 138, 143, 152), a lost process (75, 134,
# 137) or a lost connection (255). After other failures, after one of these within QUICK_SECONDS, and after a refused request for a slice,
# it continues at most MAX_FAILURES times in a row, and never after a user's mistake (2) on any worker.
# Ctrl-C in this script, or SIGTERM to it, also stops the processes on the workers: they save and end. Use --stop only if this
# script no longer runs, since it would restart them.
#
# Environment variables: QUICK_SECONDS, MAX_FAILURES, POLL_SECONDS.
set -euo pipefail

usage() {
  if (($#)); then echo "launch/tpu_pod.sh: $*" >&2; else sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; fi
  exit 2
}

name='' zone='' type='' runtime='' project=() again=() spot=() create_flags=() copies=() dry_run=false action=run
while (($#)); do
  case $1 in
    --spot) spot=(--spot) ;;
    --dry-run) dry_run=true ;;
    --stop | --delete) action=${1#--} ;;
    --) shift && break ;;
    --name | --zone | --type | --runtime | --project | --copy | --create-flag)
      (($# > 1)) || usage "$1 needs a value"
      case $1 in
        --name) name=$2 ;;
        --zone) zone=$2 ;;
        --type) type=$2 ;;
        --runtime) runtime=$2 ;;
        --project) project=("--project=$2") again=(--project "$2") ;;
        --copy) [[ $2 == gs://*=?* ]] || usage "--copy: expected gs://BUCKET/FOLDER=FOLDER, got $2" && copies+=("$2") ;;
        --create-flag) create_flags+=("$2") ;;
      esac
      shift
      ;;
    *) usage ;;
  esac
  shift
done
[[ -n $name && -n $zone ]] || usage
if [[ $action == run ]]; then [[ -n $type && -n $runtime && $# -gt 0 ]] || usage; fi
where=("--zone=$zone" "${project[@]}")
root=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")

say() { echo "launch/tpu_pod.sh: $*" >&2; }
do_it() { # runs a command, or prints it in a dry run
  if $dry_run; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}
quoted() { printf '%q ' "$@"; }
on_all_workers() { do_it gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=all --command="$1"; }

state() { # prints the state of the queued resource: ABSENT if there is none, UNKNOWN if gcloud does not tell
  local answer
  if answer=$(gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format='value(state.state)' 2>"$scratch/error"); then
    echo "${answer:-UNKNOWN}"
  elif grep -q NOT_FOUND "$scratch/error"; then
    echo ABSENT
  else
    cat "$scratch/error" >&2
    echo UNKNOWN
  fi
}
create() {
  do_it gcloud compute tpus queued-resources create "$name" "${where[@]}" --node-id="$name" --accelerator-type="$type" \
    --runtime-version="$runtime" "${spot[@]}" "${create_flags[@]}" --async
}
delete() { do_it gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force --quiet; }

failures=0 # in a row
fail() { # counts a failure, and ends this script after too many: fail STATUS WHAT
  failures=$((failures + 1))
  if ((failures > ${MAX_FAILURES:-5})); then
    say "$2; this was failure $failures in a row"
    exit "$1"
  fi
}
get_slice() { # returns when the slice is ready
  local now before=''
  if $dry_run; then
    create
    return
  fi
  while now=$(state) && [[ $now != ACTIVE ]]; do
    if [[ $now != "$before" ]]; then say "$name: $now"; fi
    if [[ $now == UNKNOWN && -z $before && -z ${began:-} ]]; then exit 1; fi # the first answer: gcloud is not set up
    before=$now
    case $now in
      ABSENT) if create; then continue; else fail 1 "the slice could not be requested"; fi ;;
      SUSPENDED) if delete; then continue; fi ;; # a preempted slice does not return under the same request
      FAILED)
        gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format='yaml(state)' >&2 || true
        delete || true
        fail 1 "the request for the slice failed"
        ;;
    esac
    sleep "${POLL_SECONDS:-30}"
  done
}

install_command() { # prints the installation; TPU VMs have an older Python than needed, so uv installs one
  cat <<'END'
set -e
python3 -m pip install --quiet --user uv
mkdir -p elmo_jax && tar -xzf elmo_jax.tar.gz -C elmo_jax && cd elmo_jax
test -x .venv/bin/python || ~/.local/bin/uv venv --quiet --python 3.13 .venv
~/.local/bin/uv pip install --quiet --python .venv/bin/python -e ".[tpu,gcs]"
END
}
install_project() { # a function whose status is tested does not end at a failed command by itself, hence each `|| return`
  do_it git -C "$root" archive --format=tar.gz --output="$scratch/elmo_jax.tar.gz" "$commit" || return
  do_it gcloud compute tpus tpu-vm scp "$scratch/elmo_jax.tar.gz" "$name:elmo_jax.tar.gz" "${where[@]}" --worker=all || return
  on_all_workers "$(install_command)" || return
  local copy
  for copy in "${copies[@]}"; do
    on_all_workers "cd elmo_jax && mkdir -p $(quoted "${copy#*=}")&& gcloud storage rsync --recursive $(quoted "${copy%%=*}" "${copy#*=}")" || return
  done
}

# Prints the run on one worker, which keeps the status: gcloud returns that of one of the workers. The shell outlives the
# SIGTERM of stop_command, whose pattern fits it too, since a process that saves must not lose its output.
run_command() {
  echo "trap : TERM; cd elmo_jax && rm -f ../elmo_jax_status && { .venv/bin/elmo-jax $(quoted "$@"); status=\$?; echo \$status >../elmo_jax_status; exit \$status; }"
}
worst_status() { # prints the status that tells most among those of all workers: 2, another error, or else $1
  local answers worst=$1 word each
  # shellcheck disable=SC2016 # expanded by the worker
  answers=$(gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=all --command='echo "status $(cat elmo_jax_status)"') || true
  while read -r word each; do
    case $word-$each in
      status-2) worst=2 && break ;;
      status- | status-0 | status-75 | status-129 | status-13[0478] | status-143 | status-152) ;; # the end, a stop, or a loss
      status-*) worst=$each ;;
    esac
  done <<<"$answers"
  echo "$worst"
}

stop_command() { # prints the end of processes that an earlier launch left on the workers, which a lost ssh connection does not end
  cat <<'END'
pkill -TERM -f "[e]lmo-jax " || exit 0
for _ in $(seq 120); do pgrep -f "[e]lmo-jax " >/dev/null || exit 0; sleep 1; done
pkill -KILL -f "[e]lmo-jax " || true
END
}

case $action in
  stop) on_all_workers "$(stop_command)" && exit ;;
  delete) delete && exit ;;
esac

commit=$(git -C "$root" rev-parse HEAD) || usage "$root: not a git repository; clone the project"
if ! $dry_run && [[ -n $(git -C "$root" status --porcelain) ]]; then
  git -C "$root" status --short >&2
  usage "$root: commit these files, or delete them; the workers get the last commit"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
stop() { # stops the workers and ends this script: stop STATUS
  trap '' INT TERM
  say "stopping the workers"
  on_all_workers "$(stop_command)" || true
  wait
  exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

while true; do
  get_slice
  status=0
  began=$SECONDS
  if install_project && on_all_workers "$(stop_command)"; then
    on_all_workers "$(run_command "$@")" & # in the background, since a signal waits for a command in the foreground
    wait $! || status=$?
  else
    say "could not install the project on all workers"
    status=255
  fi
  if $dry_run; then exit; fi
  if ((status == 75 || status == 134)); then status=$(worst_status "$status"); fi
  case $status in
    0) say "complete; delete the slice with: $0 $(quoted --name "$name" --zone "$zone" "${again[@]}")--delete" && exit ;;
    2) exit 2 ;;
    75 | 129 | 130 | 134 | 137 | 138 | 143 | 152 | 255) if ((SECONDS - began >= ${QUICK_SECONDS:-600})); then failures=0; else fail "$status" "ended with $status"; fi ;;
    *) fail "$status" "ended with $status" ;;
  esac
  say "ended with $status; restarting"
  sleep "${POLL_SECONDS:-30}"
done
