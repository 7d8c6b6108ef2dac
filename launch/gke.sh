#!/usr/bin/env bash
# Starts a run on a TPU slice or on GPU nodes of Google Kubernetes Engine: fills in launch/gke_jobset.yaml and applies it.
#
#   launch/gke.sh --name NAME --image IMAGE --accelerator KIND --topology TOPOLOGY --hosts N --chips PER_HOST [options]
#     -- pretrain --config FILE --workdir gs://...
#   launch/gke.sh --name elmo --image us-docker.pkg.dev/me/elmo/elmo_jax --accelerator tpu-v5-lite-podslice \
#     --topology 8x8 --hosts 16 --chips 4 --spot \
#     -- pretrain --config experiments/pretrain_1b_word.py --workdir gs://my-bucket/runs/1b_word
#
#   launch/gke.sh --name elmo --image us-docker.pkg.dev/me/elmo/elmo_jax_gpu --accelerator nvidia-h100-80gb \
#     --hosts 2 --gpus 8 -- pretrain --config experiments/pretrain_1b_word.py --workdir gs://my-bucket/runs/1b_word
#
#   --gpus PER_HOST       in place of --topology and --chips: nodes with GPUs, with one process per node
#   --spot                use nodes of a spot pool
#   --service-account S   Kubernetes service account that may read and write the run's folder (default: default)
#   --dry-run             print the filled-in YAML without applying it
#
# The arguments after -- are passed to elmo-jax. Build the image with launch/Dockerfile. To watch the run: kubectl get jobset
# NAME; kubectl logs -f -l jobset.sigs.k8s.io/jobset-name=NAME. To stop and delete it: kubectl delete jobset NAME (the pods
# save first). Run the same command again to resume.
set -euo pipefail

usage() {
  if (($#)); then echo "launch/gke.sh: $*" >&2; else sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; fi
  exit 2
}

declare -A value=([SERVICE_ACCOUNT]=default)
dry_run=false spot=false
while (($#)); do
  case $1 in
    --dry-run) dry_run=true ;;
    --spot) spot=true ;;
    --) shift && break ;;
    --name | --image | --accelerator | --topology | --hosts | --chips | --gpus | --service-account)
      (($# > 1)) || usage "$1 needs a value"
      [[ $2 =~ ^[A-Za-z0-9._:/@-]+$ ]] || usage "$1: expected a word of letters, digits and ._:/@-, got $2"
      key=${1#--}
      key=${key//-/_}
      value[${key^^}]=$2
      shift
      ;;
    *) usage ;;
  esac
  shift
done
if [[ -n ${value[GPUS]:-} ]]; then needed=(GPUS) other='# tpu$'; else needed=(TOPOLOGY CHIPS) other='# gpu$'; fi
for key in NAME IMAGE ACCELERATOR HOSTS "${needed[@]}"; do [[ -n ${value[$key]:-} ]] || usage; done
[[ -z ${value[GPUS]:-} || -z ${value[TOPOLOGY]:-}${value[CHIPS]:-} ]] || usage "--gpus excludes --topology and --chips"
(($#)) || usage
for key in HOSTS "${needed[@]: -1}"; do [[ ${value[$key]} =~ ^[1-9][0-9]*$ ]] || usage "--${key,,}: expected a number, got ${value[$key]}"; done

list='' # the arguments as a JSON list, which is also YAML
for argument; do
  # Kubernetes replaces $(NAME) and turns $$ into $.
  argument=${argument//\\/\\\\} argument=${argument//\"/\\\"} argument=${argument//\$/\$\$} argument=${argument//$'\n'/\\n}
  list+="${list:+, }\"$argument\""
done
if [[ -n ${value[GPUS]:-} ]]; then # a JobSet gives its pods names, and Kubernetes fills in the index
  list+=", --coordinator, \"${value[NAME]}-slice-0-0.${value[NAME]}:8476\""
  list+=", --processes, \"${value[HOSTS]}\", --process, \"\$(JOB_COMPLETION_INDEX)\""
fi
value[ARGS]="[$list]"

yaml=$(<"$(dirname "$(realpath "${BASH_SOURCE[0]}")")/gke_jobset.yaml")
yaml=$(sed "/$other/d" <<<"$yaml")
if ! $spot; then yaml=$(sed '/# spot$/d' <<<"$yaml"); fi
for key in "${!value[@]}"; do yaml=${yaml//"\${$key}"/"${value[$key]}"}; done
if $dry_run; then echo "$yaml"; else kubectl apply -f - <<<"$yaml"; fi
