"""A lesson's variant as a job."""

import json
import pathlib

import job as jobs


def run(lesson, variant, world_size, options):
    """One variant, recorded in a folder that is gone when this returns."""
    with jobs.folder_for_a_while() as folder, jobs.could_not_run():
        report, traces = folder / "report.json", folder / "trace"
        jobs.ended_with_its_own([pathlib.Path(options.programs, lesson), "--variant", variant,
                                 "--world-size", world_size, "--trace", traces, "--json", report])
        outcome = json.loads(report.read_text(encoding="utf-8"))["variants"][0]
        own = traces / lesson / variant
        job = jobs.Job(outcome, jobs.exported(own, options.course), jobs.said_by_ranks(own, "err"),
                       devices=outcome["participants"] == "devices")
    jobs.require_shown(outcome["verdict"] == "as-expected")
    return job


def played(case, options):
    return run(case.page.lesson, case.page.slug, case.world_size, options)


def without_fault(case, options):
    """A correct variant of the same part of the lesson; None where there is none."""
    with jobs.could_not_run():
        _, said = jobs.ended_with_its_own([pathlib.Path(options.programs, case.page.lesson), "--describe"])
        variants = json.loads(said)["variants"]
        [part] = {variant["part"] for variant in variants if variant["name"] == case.page.slug}
    names = [variant["name"] for variant in variants if variant["part"] == part and variant["kind"] == "correct"]
    return run(case.page.lesson, names[0], case.world_size, options) if names else None
