"""The run that one process and ranks with each other's batches are compared with: random numbers do not depend on the
ranks, and the batches are kept."""

from __future__ import annotations

from typing import NamedTuple

import torch

from lockstep_torch.proving.job import Job, Run
from lockstep_torch.proving.relations import EXACT, Ranks


class Neutral(NamedTuple):
    run: Run
    sites: list[str]  # lines whose draws are the same in each row
    own: str  # why the ranks have their own random numbers all the same; empty: they have not
    why: str  # the run is of no use; empty: it is

    def notes(self) -> list[str]:
        return sorted({note for rank in self.run.ranks for note in rank["neutral"]}
                      | {f"what is drawn at {site} is the same in each row" for site in map(short, self.sites)})


def made(job: Job, plain: Run) -> Neutral:
    sites = sorted({site for rank in plain.ranks for site in rank["sites"]})
    run = job.run(f"{job.world_size} ranks, with random numbers that do not depend on them", still=sites, keeps=True)
    if run.error:
        return Neutral(run, sites, "", f"with random numbers that do not depend on ranks the job fails: {run.error}")
    own = draws_its_samples(plain.ranks, run.ranks, sites)
    if not own:
        return Neutral(run, sites, "", "")
    run = job.run(f"{job.world_size} ranks, with their own random numbers", still=[], keeps=True)
    return Neutral(run, [], own, own if run.error else "")


def draws_its_samples(plain: Ranks, two: Ranks, sites: list[str]) -> str:
    """Where a line's draws are the same in each row, and it draws which samples to take, all rows are one sample."""
    def rows(ranks: Ranks) -> list[torch.Tensor]:
        return [rows for rank in ranks for update in rank["updates"] for rows in update["rows"] if len(rows) > 1]

    def are_one(rows: torch.Tensor) -> bool:
        return float(rows.max() - rows.min()) <= EXACT * (1 + float(rows.abs().max()))
    if not sites:
        return ""
    if not rows(two):
        return (f"no module with parameters is called, so it is not known whether {short(sites[0])} draws samples, "
                "which one process would draw otherwise")
    if all(map(are_one, rows(two))) and not all(map(are_one, rows(plain))):
        return "each rank draws its own samples: " + ", ".join(map(short, sites))
    return ""


def short(site: str) -> str:
    return site.rsplit("/", 1)[-1]
