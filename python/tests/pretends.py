"""Starts a job's ranks with the variables that a launcher sets, and no other: pretends.py LAUNCHER RANKS PROGRAM ...

accelerate: those of accelerate launch (it starts torchrun's agent). mpirun: Open MPI's. srun: Slurm's.
"""

import os
import socket
import subprocess
import sys


def variables(launcher, rank, ranks, port):
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # of mpirun and srun: the job script gives it
    if launcher == "mpirun":
        return {**address, "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": ranks,
                "OMPI_COMM_WORLD_LOCAL_RANK": rank, "OMPI_COMM_WORLD_LOCAL_SIZE": ranks,
                "OMPI_COMM_WORLD_NODE_RANK": rank, "OMPI_UNIVERSE_SIZE": ranks, "PMIX_RANK": rank}
    if launcher == "srun":
        return {**address, "SLURM_PROCID": rank, "SLURM_NTASKS": ranks, "SLURM_NPROCS": ranks, "SLURM_LOCALID": rank,
                "SLURM_NODEID": 0, "SLURM_NNODES": 1, "SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0,
                "SLURM_STEP_NUM_TASKS": ranks, "SLURM_STEP_TASKS_PER_NODE": ranks, "SLURM_TASKS_PER_NODE": ranks}
    return {**address, "RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks,
            "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_RANK": rank, "ROLE_NAME": "default",
            "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_RUN_ID": "none",
            "ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}


def main():
    launcher, ranks, *command = sys.argv[1:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    others = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    own = {key: value for key, value in os.environ.items()
           if key not in others and not key.startswith(("SLURM", "OMPI_", "PMIX_", "TORCHELASTIC_"))}
    jobs = []
    for rank in range(int(ranks)):
        told = {key: str(value) for key, value in variables(launcher, rank, int(ranks), port).items()}
        jobs.append(subprocess.Popen([sys.executable, *command], env={**own, **told}))
    sys.exit(max(job.wait() for job in jobs))


if __name__ == "__main__":
    main()
