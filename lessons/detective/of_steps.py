"""Evidence of special parts of a step: running statistics, modes, clipping, loss scaling, averages, metrics."""

import itertools

import of_numbers
import text
import values


def buffers(job):
    steps, rows = job.by_step("buffers"), []
    for step in of_numbers.selected(steps, 5, 3):
        if step is None:
            rows.append(["..."] + [""] * (job.world_size + 1))
            continue
        last = {rank: each[-1] for rank, each in steps[step].items()}
        norms = [text.number(values.norm(last[rank]["values"])) if rank in last else "-" for rank in sorted(job.events)]
        spread = values.spread([each["values"] for each in last.values()])
        alike = of_numbers.difference(spread) if len(last) > 1 else ""
        rows.append([f"{'before' if step < 0 else 'after'} step {max(step, 0)}", *norms, alike])
    lines = text.table(["norms", *(job.name(rank) for rank in sorted(job.events)), f"all {job.word}s"], rows)
    names = sorted({name for _, event in job.of("buffers") for name in event["fields"]["names"]})
    return [*text.filled(f"Buffers: {', '.join(names)}", "  ", ""), *lines, *around_evaluations(job)]


def around_evaluations(job):
    """Whether buffers changed while a rank evaluated."""
    lines = []
    for rank, events in job.events.items():
        last, inside = None, False
        for event in events:
            if event["event"] in ("pass_begin", "pass_end"):
                inside = event["event"] == "pass_begin" and event["fields"]["phase"] == "evaluation"
            elif event["event"] == "buffers":
                now = [value["hash"] for value in event["fields"]["values"]]
                if inside and last is not None and f"step {event['step']}" not in " ".join(lines):
                    changed = "other than" if now != last else "the same as"
                    when = f"{job.name(rank)}, step {event['step']}"
                    lines.append(f"  {when}: in the evaluation they are {changed} before it")
                last = now
    return lines[:6]


def forwards(job):
    said_of = {}
    for rank in sorted(job.events):
        own = job.own(rank, "forward")
        runs = [(mode, list(each)) for mode, each in
                itertools.groupby(own, key=lambda event: event["fields"]["training"])]
        said = [f"{len(each)} in {'training' if mode else 'evaluation'} mode (step {each[0]['step']}"
                + (f" to {each[-1]['step']})" if each[-1]["step"] != each[0]["step"] else ")") for mode, each in runs]
        said = ["..." if each is None else each for each in text.some(said, 5, 2)]
        count = len(job.own(rank, "update"))
        said_of[rank] = f"{', then '.join(said) or 'none'}; {count} updates"
    return ["Forward passes of the model, in order.", *text.by_rank(said_of, job.word)]


def averages(job):
    rows = []
    for rank, event in job.of("average"):
        fields = event["fields"]
        if event["step"] in (0, 1, 2):
            own, used = (fields[key]["sketch"][:1] for key in ("own", "used"))
            rows.append([f"step {event['step']}", job.name(rank), fields["name"][:20], fields["count"],
                         text.number(own[0]) if own else "-", text.number(used[0]) if used else "-"])
    rows.sort(key=lambda row: int(row[0].split()[1]))
    return ["Means over what the ranks hold. Of a vector one number: a sum with fixed signs.",
            *text.table(["", "", "of", "its own count", "own mean", "went on with"], rows[:16])]


def clips(job):
    rows = []
    used = job.by_step("reduced_gradients")
    for rank, event in job.of("clip"):
        fields, step = event["fields"], event["step"]
        after = used.get(step, {}).get(rank)
        norms = [fields["max_norm"], fields["norm"], values.norm(fields["values"])]
        norms += [values.norm(after[-1]["values"])] if after else []
        rows.append([f"step {step}", job.name(rank), *map(text.number, norms)] + ([] if after else ["-"]))
    head = ["", "", "allowed", "taken as norm", "norm before", "norm used"]
    order = sorted(rows, key=lambda row: int(row[0].split()[1]))
    scales = scaled(job) if "scaled_step" in job.kinds else []
    return ["Clipping.", *text.table(head, order[:4 * job.world_size]), *scales]


def scaled(job):
    steps, rows = job.by_step("scaled_step"), []
    for step, by_rank in list(steps.items())[:12]:
        for at in range(max(map(len, by_rank.values()))):
            own = {rank: each[at] for rank, each in by_rank.items() if at < len(each)}
            said = {rank: ("inf: " if each["found_nonfinite"] else "") + ("updates" if each["updates"] else "skips")
                    for rank, each in own.items()}
            scale = "/".join(dict.fromkeys(text.number(each["scale"], 6) for each in own.values()))
            rows.append([f"step {step}", scale, *(said.get(rank, "-") for rank in sorted(job.events))])
    lines = text.table(["", "scale", *(job.name(rank) for rank in sorted(job.events))], rows)
    return ["Steps with a scaled loss. inf: this rank found infinities or NaNs.", *lines]


def metrics(job):
    rows = []
    for rank, events in job.events.items():
        drawn = 0
        for event in events:
            fields = event["fields"]
            if event["event"] == "pass_begin":
                drawn = 0
            elif event["event"] == "samples" and fields["phase"] == "evaluation":
                drawn += len(fields["ids"])
            elif event["event"] == "metric":
                value = fields["sum"] / fields["count"] if fields["count"] and fields["sum"] is not None else None
                name = fields["name"] + ("" if fields["phase"] == "evaluation" else f" ({fields['phase']})")
                rows.append([f"step {event['step']}", job.name(rank), name, drawn or "?",
                             text.number(fields["sum"], 6), text.number(fields["count"], 6), text.number(value)])
    rows.sort(key=lambda row: int(row[0].split()[1]))
    head = ["", "", "metric", "samples drawn", "sum", "count", "sum / count"]
    return ["Figures as each rank holds them in the end.", *text.table(head, rows[:16])]
