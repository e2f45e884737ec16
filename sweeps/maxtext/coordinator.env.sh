# Sourced on every node before the trainer: MaxText with hardware=gpu, one process per node, joins
# the others through these. (hardware=gpu_multiprocess lets JAX ask Slurm itself, but then every
# process takes one GPU: it needs a task per GPU.) A container has no scontrol, so the first node's
# name is cut out of the list:  node[001-004,007]   gpu-a,gpu-b[1-2]   rack[1-2]-ib
# Outside a step of Slurm there is one process and no other to join: nothing is set.
if [ -n "${SLURM_STEP_NODELIST-}" ]; then
  xlatune_nodes=$SLURM_STEP_NODELIST
  JAX_COORDINATOR_IP=${xlatune_nodes%%[[,]*}
  case $xlatune_nodes in
  "$JAX_COORDINATOR_IP["*)
    xlatune_nodes=${xlatune_nodes#*[}
    JAX_COORDINATOR_IP=$JAX_COORDINATOR_IP${xlatune_nodes%%[],-]*}
    xlatune_nodes=${xlatune_nodes#*]}
    JAX_COORDINATOR_IP=$JAX_COORDINATOR_IP${xlatune_nodes%%,*}
    ;;
  esac
  unset xlatune_nodes
  JAX_COORDINATOR_PORT=$((61440 + SLURM_JOB_ID % 4096))
  NNODES=$SLURM_NTASKS
  NODE_RANK=$SLURM_PROCID
  export JAX_COORDINATOR_IP JAX_COORDINATOR_PORT NNODES NODE_RANK
fi
