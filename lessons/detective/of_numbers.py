"""Evidence of what a step computes: parameters, gradients, losses, updates."""

import text
import values


def selected(steps, first=3, last=2):
    return text.some(sorted(steps), first, last)


def difference(value):
    if value is None:
        return "not comparable: other shapes, or not finite"
    if value < 1e-5:
        return "equal" if value == 0 else "equal but for rounding"
    return f"differ by about {value * 100:.0f} %" if value > 0.1 else f"differ by about {value * 100:.2g} %"


def names_of(job):
    models = job.of("model")
    return models[0][1]["fields"]["names"] if models else []


def parameters(job):
    steps, lines = job.by_step("parameters"), []
    for step in selected(steps, 5, 3):
        if step is None:
            lines.append("  ...")
            continue
        last = {rank: each[-1]["values"] for rank, each in steps[step].items()}
        when = "before step 0" if step < 0 else f"after step {step}"
        who = f"all {job.word}s" if len(last) == job.world_size else text.ranks(last, job.word)
        lines.append(f"  {when}: {who}: " + (difference(values.spread(list(last.values()))) if len(last) > 1 else
                                             f"norm {text.number(values.norm(*last.values()))}"))
    order = sorted(steps)
    for rank in sorted(job.events):
        own = [steps[step][rank][-1]["values"] for step in order if rank in steps[step]]
        names = names_of(job) or [f"parameter {at}" for at in range(len(own[0]) if own else 0)]
        if still := [name for at, name in enumerate(names)
                     if len(own) > 1 and len({each[at]["hash"] for each in own if at < len(each)}) == 1]:
            lines += text.filled(f"{job.name(rank)}: never changed: {', '.join(still)}", "    ", "  ")
    return ["The replicas' parameters.", *lines]


def factor_line(own, used, word):
    """The mean of the ranks' own gradients, and how the used one lies to it."""
    vectors = [values.projections(each) for each in own.values()]
    target = values.projections(next(iter(used.values())))
    if target is None or None in vectors or len({len(each) for each in [*vectors, target]}) > 1:
        return "some of it is not finite"
    average = values.mean(vectors)
    factor, rest = values.times(target, average)
    if rest > 0.02:
        return f"the used one of {word} {min(used)} is no multiple of the mean of all own ones: {rest:.0%} is left over"
    length = values.norm(next(iter(used.values()))) / abs(factor) if factor else values.length(average)
    return f"mean of all own ones: norm {text.number(length)}; their sum: norm {text.number(length * len(own))}"


def gradients(job):
    local, reduced, lines = job.by_step("local_gradients"), job.by_step("reduced_gradients"), []
    for step in selected(set(local) & set(reduced), 3, 0):
        if step is None:
            continue
        own = {rank: each[-1]["values"] for rank, each in local[step].items()}
        used = {rank: each[-1]["values"] for rank, each in reduced[step].items()}
        counts = {rank: each[-1]["samples"] for rank, each in local[step].items()}
        rows = [[job.name(rank), counts[rank] or "?", text.number(values.norm(own[rank])),
                 text.number(values.norm(used[rank])) if rank in used else "-"] for rank in own]
        lines += [f"step {step}", *text.table(["", "samples", "own gradient, norm", "used by the update, norm"], rows)]
        if used:
            alike = difference(values.spread(list(used.values())))
            lines += [f"  the used ones of all {job.word}s: {alike}"] if len(used) > 1 else []
            lines += text.filled(factor_line(own, used, job.word), "    ", "  ")
    return lines + by_parameter(job, local, reduced)


def by_parameter(job, local, reduced):
    """One step, the second recorded one where there is one: the first may have an exception of its own."""
    steps = [step for step in sorted(set(local) & set(reduced)) if len(reduced[step]) == len(local[step])]
    if not steps:
        return []
    step, names = steps[min(1, len(steps) - 1)], names_of(job)
    own, used = ({rank: each[-1]["values"] for rank, each in kind[step].items()} for kind in (local, reduced))
    shown, rows = sorted(used)[:3], []
    for at, name in enumerate(names[:10]):
        if all(at < len(each) for each in [*own.values(), *used.values()]):
            rows.append([name, *(text.number(kind[rank][at]["norm"], 3) for kind in (own, used) for rank in shown)])
    head = [f"step {step}"] + [f"{kind} {rank}" for kind in ("own", "used") for rank in shown]
    title = f"By parameter: norms of the {job.word}s' own gradients, and of the used ones."
    return [title, *text.table(head, rows)] if rows else []


def losses_of_passes(job):
    """[[mean loss of each pass over the train data]] by rank; of a job that tells of its losses in no other way."""
    by_rank = []
    for rank in sorted(job.events):
        passes = []
        for event in job.events[rank]:
            fields = event["fields"]
            if event["event"] == "pass_begin" and fields["phase"] == "train":
                passes.append([0.0, 0])
            elif event["event"] == "loss" and passes and fields["count"] and fields["sum"] is not None:
                passes[-1] = [passes[-1][0] + fields["sum"], passes[-1][1] + fields["count"]]
        by_rank.append([total / count for total, count in passes if count])
    return by_rank if any(by_rank) else []


def losses_of_steps(job):
    rows = []
    for rank in sorted(job.events):
        own = [(event["step"], event["fields"]) for event in job.own(rank, "loss")]
        for step, fields in own[:9]:
            average = fields["sum"] / fields["count"] if fields["count"] and fields["sum"] is not None else None
            rows.append([job.name(rank), step, text.number(fields["backward_value"]), fields["count"],
                         text.number(average) if fields["count"] else "?"])
    return ["Where each backward() started, beside the loss of its samples.",
            *text.table(["", "step", "backward() from", "samples", "their mean loss"], rows)]


def updates(job):
    steps, said = job.by_step("update"), {}
    for rank in sorted(job.events):
        own = [(step, "/".join(text.number(rate) for rate in each[rank][-1]["lr"]))
               for step, each in steps.items() if rank in each]
        said[rank] = f"{len(own)} updates; learning rate {text.runs(own)}" if own else "no update"
    return text.by_rank(said, job.word) + schedules(job)


def schedules(job):
    said = {}
    for rank in sorted(job.events):
        own = job.own(rank, "schedule")
        if own:
            last = own[-1]["fields"]
            made = f"made for {last['length']} steps" if last["length"] else "made for no fixed number of steps"
            places = ["..." if each is None else f"{each['fields']['position']} at step {each['step']}"
                      for each in text.some(own, 7, 2)]
            said[rank] = f"the schedule, {made}, has taken: {', '.join(places)}"
    lines = text.by_rank(said, job.word)
    passes = [f"{event['fields']['batches']} batches" for rank, event in job.of("pass_end")
              if rank == 0 and event["fields"]["phase"] == "train"]
    said = f"{job.name(0)}: passes over the train data: {', '.join(passes[:6])}"
    return lines + (text.filled(said, "    ", "  ") if lines and passes else [])
