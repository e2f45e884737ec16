# The job of the stand-in: the order of the environment, the log, the folders of maxtext-slurm.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
id=$1 name=$2 model=$3
shift 3
export OUTPUT_PATH=$JOB_WORKSPACE/$id-$name
end() {
    echo "$1" > "$SLURM_STANDIN/state.part"
    echo "$2" > "$SLURM_STANDIN/exit_code"
    mv "$SLURM_STANDIN/state.part" "$SLURM_STANDIN/state"
}
echo "JOB_ID=$id"
echo "JOB_NAME=$name"
echo "MODEL_NAME=$model"
echo "== Training BEGIN (no timeout) =="

export XLA_FLAGS="--xla_of_the_image=1"
declare -A EXTRACTED_ENV_MAP
extracted=() keys=()
for word in "$@"; do
    if [[ $word =~ ^_env_([^=]+)=(.*)$ ]]; then
        extracted+=("${BASH_REMATCH[1]}=${BASH_REMATCH[2]}")
        EXTRACTED_ENV_MAP[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
    else
        keys+=("$word")
    fi
done
. "$here/train_env.sh"
[[ -f $here/configs/$model.env.sh ]] && . "$here/configs/$model.env.sh"
for pair in "${extracted[@]}"; do export "${pair?}"; done
echo "0: Show all environment variables:"
printenv | sort | sed 's/^/0: /'
printf '0: argument %s\n' "${keys[@]}"

if [[ $XLA_FLAGS == *xla_bogus* ]]; then
    echo "0: F1120 09:03:25.888154 14479 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_bogus=1"
    echo "== Training FAILED (exit=1, 3s) =="
    end FAILED 1:0
    exit 1
fi
# as XLA does: the options that it has read, the last value of each
dump_to='--xla_dump_to="([^"]+)"'
if [[ $XLA_FLAGS =~ $dump_to ]]; then
    options=${BASH_REMATCH[1]}
    declare -A values
    for flag in ${XLA_FLAGS##*\)\$}; do
        [[ $flag =~ ^--([A-Za-z0-9_]+)=(.*)$ ]] && values[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
    done
    mkdir -p "$options"
    for name in "${!values[@]}"; do
        echo "  $name: ${values[$name]}"
    done > "$options/module_0001.jit_train_step.config.pbtxt"
fi
echo "0: Memstats: After params initialized:"
for ((step = 0; step < 12; step++)); do
    for rank in 0 1; do
        echo "$rank: completed step: $step, seconds: 28.820, TFLOP/s/device: 401.000, MFU: 16.04%, Tokens/s/device: $((994 + rank)).900, total_weights: 28672, loss: 7.100"
    done
    ((step == 3)) && [[ -n $HANG ]] && sleep 600
done
if [[ -n ${EXTRACTED_ENV_MAP[ENABLE_XLA_DUMP]} ]]; then
    profile=$OUTPUT_PATH/${model}_train_test/tensorboard/plugins/profile/2026_06_15_10_00_00
    mkdir -p "$profile"
    touch "$profile/node001.xplane.pb" "$profile/node002.xplane.pb"
    mkdir -p "$OUTPUT_PATH/xla_dump"
    echo "HloModule jit_train_step" \
        > "$OUTPUT_PATH/xla_dump/module_0025.jit_train_step.gfx950_gpu_after_optimizations.txt"
fi
echo "== Training END (346s) =="
# what its tagger does to the names of an ended job
mv "$OUTPUT_PATH" "$JOB_WORKSPACE/$id-JAX-$model-2N-pdbs7-TGS_994.900"
end COMPLETED 0:0
