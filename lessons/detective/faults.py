"""What is wrong in a case's job: each fault's page, the ranks that are to be named, and whether they have been."""

import dataclasses

import python_job


@dataclasses.dataclass
class Fault:
    page: object
    ranks: set
    either: bool = False  # any ranks may be named
    hints: int = 0        # given so far
    named: bool = False

    def accepts(self, ranks):
        return ranks is None or self.either or ranks == self.ranks


def of(case, job):
    return [fault_of(case, page, job) for page in case.pages]


def fault_of(case, page, job):
    """Its ranks by the page or the program's truth, else by what the detectors found."""
    found = [one["ranks"] for one in job.outcome["findings"] if one["pitfall"] == page.slug]
    everyone = range(job.world_size)
    if case.kind == "cpp":
        return Fault(page, set(page.ranks(job.world_size) or (found[0] if found else everyone)))
    truth = python_job.ranks_of(page.slug) if case.kind == "python" else None
    return Fault(page, set(truth or (found[0] if found else everyone)), case.kind == "python" and truth is None)
