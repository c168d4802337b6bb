"""Who is who is read from the environment that a launcher makes."""

from __future__ import annotations

import pytest

from clew.jobs.rank_info import Place, find

TOLD = {
    "torchrun": (
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
        Place(3, 4, 1, 2, "torchrun"),
    ),
    "mpich": (
        {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"},
        Place(1, 3, 1, 3, "mpiexec (hydra)"),
    ),
    "open mpi": (
        {
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        },
        Place(0, 2, 0, 1, "mpiexec (Open MPI)"),
    ),
    "srun": (
        {
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": "5",
            "SLURM_STEP_NUM_TASKS": "6",
            "SLURM_LOCALID": "1",
            "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
        },
        Place(5, 6, 1, 2, "srun"),
    ),
    "nobody": ({"PATH": "/bin"}, Place()),
    "an sbatch script, not a step of it": ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, Place()),
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
        Place(1, 8, 1, 4, "torchrun"),
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_the_place_is_what_the_launcher_says(case: str) -> None:
    environment, place = TOLD[case]
    assert find(environment) == place
