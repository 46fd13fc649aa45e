"""Evidence of the data: which samples the ranks drew, in which order, with which random numbers."""

import collections

import text

PASSES = 3  # shown of each phase
FEW = 8     # ids in a line


def ids_shown(ids, few=FEW):
    """Those below 0 are hashes of what a sample holds."""
    shown = [str(one) if one >= 0 else f"#{-one % 65536:04x}" for one in ids[:few]]
    return " ".join(shown) + (" ..." if len(ids) > few else "")


def passes(job):
    """{phase: [{rank: pass}]}; a pass: its epoch, its batches of ids, how often the sampler had been told an epoch."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for rank, events in job.events.items():
        told, current = None, {}
        for event in events:
            kind, fields = event["event"], event["fields"]
            phase = fields.get("phase")
            if kind == "set_epoch":
                told = fields["epoch"]
                for one in current.values():
                    one["told_after"].append((told, len(one["batches"])))
            elif kind == "pass_begin" or (kind == "samples" and phase not in current):
                current[phase] = {"epoch": fields.get("epoch"), "told": told, "told_after": [], "batches": []}
                found[phase][rank].append(current[phase])
            if kind == "samples":
                current[phase]["batches"].append(fields["ids"])
            elif kind == "pass_end":
                current.pop(phase, None)
    return {phase: [{rank: own[at] for rank, own in by_rank.items() if at < len(own)}
                    for at in range(max(map(len, by_rank.values())))] for phase, by_rank in found.items()}


def flat(one):
    return [each for batch in one["batches"] for each in batch]


def dataset(job):
    lines, orders, contents, files = [], text.Letters(), text.Letters(), text.Letters()
    for phase in ("train", "evaluation"):
        lines += text.by_rank({rank: f"{phase}: reaches {fields['size']} of {fields['global_size']} samples; order "
                               f"{orders.of(fields['ids_in_order'])}, contents {contents.of(fields['content_as_set'])}"
                               for rank, fields in ((rank, event["fields"]) for rank, event in job.of("dataset"))
                               if fields["phase"] == phase}, job.word)
    for rank, event in job.of("shard"):
        fields = event["fields"]
        lines.append(f"  {job.name(rank)}, {fields['phase']}: takes share {fields['rank']} of {fields['num_replicas']}")
    actions = {"write_begin": "begins to write", "write_end": "has written", "read": "has read"}
    for rank, event in sorted(job.of("data_file"), key=lambda one: one[1]["time_ns"]):
        fields = event["fields"]
        said = f"{actions.get(fields['action'], fields['action'])} file {files.of(fields['file'])}"
        whole = "" if fields["accepted"] else ", which is not whole"
        lines.append(f"  {job.at(event['time_ns'])}  {job.name(rank)} {said}{whole}")
    return ["The data set, as each rank sees it. Equal letters: equal.", *lines] if lines else []


def together(by_rank, size):
    """What all ranks drew in one pass."""
    owners = collections.defaultdict(set)
    for rank, one in by_rank.items():
        for each in flat(one):
            owners[each].add(rank)
    drawn = sum(len(flat(one)) for one in by_rank.values())
    if not drawn:
        return "together: no draw is recorded"
    line = f"together: {drawn} draws of {len(owners)} different samples"
    if len(by_rank) > 1:
        line += f", {sum(len(each) > 1 for each in owners.values())} of them by several ranks"
    missing = sorted(set(range(size)) - set(owners)) if size and min(owners, default=0) >= 0 else []
    if missing and max(owners, default=0) < size:
        line += f"; {len(missing)} of {size} never drawn ({ids_shown(missing, 4)})"
    return line


def samples(job):
    lines = dataset(job)
    sizes = {event["fields"]["phase"]: event["fields"]["global_size"] for _, event in job.of("dataset")}
    for phase, every in passes(job).items():
        for number, by_rank in enumerate(every[:PASSES]):
            lines.append(f"{phase}, pass {number + 1} of {len(every)}")
            for rank, one in by_rank.items():
                ids = flat(one)
                drawn = f"{len(ids)} draws, {len(set(ids))} different: {ids_shown(ids, 5)}"
                said = f"{len(one['batches'])} batches, {drawn if ids else 'no draw is recorded'}"
                lines += text.filled(f"{job.name(rank)}: {said}", "    ", "  ")
            lines += text.filled(together(by_rank, sizes.get(phase, 0)), "    ", "  ")
    return lines


def compared(one, before):
    """How a pass goes through its samples, beside the pass before."""
    ids, others = flat(one), flat(before)
    equal = sum(batch == other for batch, other in zip(one["batches"], before["batches"], strict=False))
    common = len(set(ids) & set(others))
    order = "the same order" if ids == others else "another order"
    return (f"{order} as in the pass before; {equal} of {len(one['batches'])} batches are the same, "
            f"and {common} of {len(set(ids))} samples")


def told(one):
    begun = f"told to the data order: {'no epoch' if one['told'] is None else 'epoch ' + str(one['told'])}"
    return begun + "".join(f", and after {count} batches epoch {epoch}" for epoch, count in one["told_after"])


def epochs(job):
    lines = []
    for phase, every in passes(job).items():
        for number, by_rank in enumerate(every[:PASSES + 1]):
            lines.append(f"{phase}, pass {number + 1} of {len(every)}")
            counted = {rank: ("" if one["epoch"] is None else f"the program counts epoch {one['epoch']}; ") + told(one)
                       for rank, one in by_rank.items()}
            begun = {rank: "draws " + ids_shown(flat(one), FEW) for rank, one in by_rank.items()}
            beside = {rank: compared(one, every[number - 1][rank]) for rank, one in by_rank.items()
                      if number and rank in every[number - 1]}
            lines += [line for said in (counted, begun, beside) for line in text.by_rank(said, job.word)]
    return lines


def random_numbers(job):
    lines = ["Equal letters: the same random numbers, of a whole batch or of one sample."]
    batches, letters, rows = text.Letters(), text.Letters(), []
    for rank in sorted(job.events):
        drawn = [(event["step"], event["fields"]) for event in job.own(rank, "random_numbers")]
        for step, fields in drawn[:8]:
            own = [letters.of(each) for each in fields["hashes"][:4]]
            batch = batches.of(tuple(fields["hashes"]))
            rows.append([job.name(rank), step, ids_shown(fields["ids"], 4), batch, " ".join(own)])
    return lines + text.table(["", "step", "samples", "batch", "sample by sample"], rows)
