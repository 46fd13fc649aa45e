"""A program with two faults at once as a job: evaluation/mutants, which is no lesson."""

import functools
import json
import re

import job as jobs

RIGHT = "as-it-is"


@functools.cache
def operators(mutant):
    """{name: what the program says of it}"""
    with jobs.could_not_run():
        return {one["name"]: one for one in json.loads(jobs.ended_with_its_own([mutant, "list"])[1])["operators"]}


def faults_of(operator, options):
    """What the two faults of an operator are called."""
    return [operators(options.mutant)[part]["label"] for part in operator.split("+")]


def pairs(options):
    """Every (program, operator) of two faults."""
    return [(program, one["name"]) for one in operators(options.mutant).values() if "+" in one["name"]
            for program in one["programs"]]


def run(program, operator, world_size, options):
    """The job, and what its oracle says: the label of the fault that shows."""
    with jobs.folder_for_a_while() as folder, jobs.could_not_run():
        own = folder / "job"
        jobs.ended_with_its_own([options.mutant, "run", program, operator, "--folder", own, "--world-size", world_size])
        verdict = json.loads((own / "verdict.json").read_text(encoding="utf-8"))
        found = {"world_size": world_size, "findings": jobs.found_in(own, options.course)}
        return jobs.Job(found, jobs.exported(own, options.course), jobs.said_by_ranks(own, "err")), verdict


def played(case, options):
    job, verdict = run(case.program, case.operator, case.world_size, options)
    shown = {verdict["label"], *(found["pitfall"] for found in job.outcome["findings"])}
    jobs.require_shown(shown >= {page.slug for page in case.pages})
    return job


def without_fault(case, options):
    return run(case.program, RIGHT, case.world_size, options)[0]


def explained(slug, options):
    """A generic finding in one sentence."""
    with jobs.could_not_run():
        said = " ".join(jobs.ended_with_its_own([options.course, "explain", slug])[1].split())
        return re.search(r"No pitfall has a name for what is wrong: (.*?)\. ", said).group(1)
