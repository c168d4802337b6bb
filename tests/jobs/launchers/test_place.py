"""The rank of a process is read from the environment that a launcher sets."""

from __future__ import annotations

import pytest

from clew.jobs.rank_info import RankInfo, current_rank

TOLD = {
    "torchrun": (
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
        RankInfo(3, 4, 1, 2, "torchrun"),
    ),
    "mpich": (
        {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"},
        RankInfo(1, 3, 1, 3, "mpiexec (hydra)"),
    ),
    "open mpi": (
        {
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        },
        RankInfo(0, 2, 0, 1, "mpiexec (Open MPI)"),
    ),
    "srun": (
        {
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": "5",
            "SLURM_STEP_NUM_TASKS": "6",
            "SLURM_LOCALID": "1",
            "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
        },
        RankInfo(5, 6, 1, 2, "srun"),
    ),
    "no launcher": ({"PATH": "/bin"}, RankInfo()),
    "an sbatch script, not a step of it": ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, RankInfo()),
    "torchrun inside srun": (
        {
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": "0",
            "SLURM_STEP_NUM_TASKS": "2",
            "RANK": "1",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
        },
        RankInfo(1, 8, 1, 4, "torchrun"),
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_the_place_is_what_the_launcher_says(case: str) -> None:
    environment, place = TOLD[case]
    assert current_rank(environment) == place
