#!/bin/bash
# A training on Slurm that continues by itself after the wall time: sbatch --job-name=first examples/slurm.sh
# `clew train --on SITE` writes such a script for you; use this one where you need your own.
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

run=runs/$SLURM_JOB_NAME
# every task of srun becomes a worker of one training; they find each other
if [ -e "$run/config.yaml" ]; then
    srun clew train --resume "$run"
else
    srun clew train tracking --dataset dataset --output "$run"
fi
code=$?

# two minutes before the end Slurm sends USR1: the training writes a state and ends with 75, "start me again"
if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
