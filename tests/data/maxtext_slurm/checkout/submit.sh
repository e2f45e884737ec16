#!/usr/bin/env bash
# A stand-in for maxtext-slurm's: makes the job's name by its rules, and starts the job right here.
set -e
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ -d $here/.git ]] || { echo "not the root of a repository"; exit 9; }
[[ -n $FAIL_SUBMIT ]] && { echo "sbatch: error: Batch job submission failed"; exit 1; }

spec=$1
shift
model=${spec%%:*} tag=${spec#*:}
sbatch=()
while [[ $1 != -- ]]; do sbatch+=("$1"); shift; done
shift
for word in "$@"; do
    word=${word#--}
    word=${word#-}
    tag=$tag-${word//=/_}
done
name=JAX-$model-$tag
((${#name} + 12 <= 255)) || { echo "[ERROR] JOB_NAME is ${#name}B"; exit 1; }

id=$(cat "$SLURM_STANDIN/next_id" 2> /dev/null || echo 4711)
echo $((id + 1)) > "$SLURM_STANDIN/next_id"
folder=$JOB_WORKSPACE/$id-$name
mkdir -p "$folder"
ln -s "../$id-$name.log" "$folder/log"
printf '%s\n' "$name" "${sbatch[*]}" "RAY=$RAY" > "$SLURM_STANDIN/submitted"
echo RUNNING > "$SLURM_STANDIN/state"
artifact=$JOB_WORKSPACE/.artifacts/$id
mkdir -p "$artifact"
cp -r "$here/." "$artifact"
setsid bash "$artifact/_job.sh" "$id" "$name" "$model" "$@" \
    > "$folder.log" 2>&1 < /dev/null &
echo $! > "$SLURM_STANDIN/group" # setsid made it the leader of one; scancel ends it
echo "JOB_NAME=$name"
if [[ -n $MUTE ]]; then
    echo "$id" > "$SLURM_STANDIN/strays"
    exit "$MUTE"
fi
echo "Submitted batch job $id"
