# Sourced on every node before the trainer: MaxText with hardware=gpu, one process per node, joins
# the others through these. (hardware=gpu_multiprocess lets JAX ask Slurm itself, but then every
# process takes one GPU: it needs a task per GPU.)
JAX_COORDINATOR_IP=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1)
JAX_COORDINATOR_PORT=$((61440 + SLURM_JOB_ID % 4096))
NNODES=$SLURM_NTASKS
NODE_RANK=$SLURM_PROCID
export JAX_COORDINATOR_IP JAX_COORDINATOR_PORT NNODES NODE_RANK
