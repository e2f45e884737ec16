#!/bin/bash

# Parameters
#SBATCH --chdir=/shared/t1/1
#SBATCH --comment=xlatune:cell:t1:1
#SBATCH --contiguous
#SBATCH --error=/shared/t1/1/submitit/%j_0_log.err
#SBATCH --exclusive
#SBATCH --export=ALL
#SBATCH --job-name=xl-overlap-2
#SBATCH --no-requeue
#SBATCH --nodelist='node[001-002]'
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/t1/1/submitit/%j_0_log.out
#SBATCH --partition=lab
#SBATCH --signal=CONT@1
#SBATCH --time=2
#SBATCH --wckey=submitit

# setup
. /package/executors/slurm/login.sh
unset SLURM_JWT
# the session that submits may die before it can write the job's number down
: > /shared/t1/1/submitit/"$SLURM_JOB_ID"_begun

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/t1/1/submitit/%j_%t_log.out --error /shared/t1/1/submitit/%j_%t_log.err --export=ALL --kill-on-bad-exit=1 /opt/venv/bin/python -I -S -B /package/executors/payload.py /shared/t1/1 DIGEST-OF-ITS-SPEC
