"""Evidence of what the ranks told each other: collectives by number, groups, the order of a step."""

import collections
import itertools

import text

LAST = 5       # rows of calls at the end that are shown
DIFFERENT = 5  # and of earlier ones in which the ranks differ
APART_S = 0.3  # entered so far apart, ranks get a line each


def called(fields):
    more = f" {fields['reduce_op']}" if fields["reduce_op"] else ""
    more += f" root {fields['root']}" if fields["root"] >= 0 else ""
    sizes = "+".join(map(str, fields["sizes"][:3])) + ("+..." if len(fields["sizes"]) > 3 else "")
    return f"{fields['op']}{more} {fields['dtype']} {sizes}".strip()


def how_left(job, fields):
    if not fields["left_ns"]:
        return "never left"
    return f"{'failed' if fields['failed'] else 'left'} at {job.at(fields['left_ns'])}"


def calls(job):
    """{(group, sent or received, number): {rank: event}}"""
    places = collections.defaultdict(dict)
    for rank, event in job.of("collective"):
        fields = event["fields"]
        places[fields["group"], fields["op"] in ("send", "recv"), fields["sequence"]][rank] = event
    return places


def row(job, number, by_rank):
    """One line where all ranks did the same, else one for each."""
    said = {rank: called(event["fields"]) for rank, event in by_rank.items()}
    times = [event["time_ns"] for event in by_rank.values()]
    whole = all(event["fields"]["left_ns"] and not event["fields"]["failed"] for event in by_rank.values())
    alike = len(set(said.values())) == 1 and len(said) == job.world_size
    together = alike and (max(times) - min(times)) / 1e9 < APART_S
    if whole and together:
        return [f"  {number:>4}  all {job.word}s: {next(iter(said.values()))}, at {job.at(min(times))}"], False
    lines = [f"  {number:>4}  {job.name(rank)}: {said[rank]}, at {job.at(event['time_ns'])}, "
             + how_left(job, event["fields"]) for rank, event in sorted(by_rank.items())]
    absent = sorted(set(range(job.world_size)) - set(by_rank))
    return lines + ([f"        {text.ranks(absent, job.word)}: not there"] if absent else []), not together


def collectives(job):
    places, lines = calls(job), []
    for (group, direct), numbers in itertools.groupby(sorted(places), key=lambda key: key[:2]):
        rows = [row(job, key[2], places[key]) for key in numbers]
        lines.append(f"group {group}{', sent and received' if direct else ''}: numbers 1 to {len(rows)}")
        early = [said for said, differs in rows[:-LAST] if differs][:DIFFERENT]
        lines += [line for said in early for line in said] + (["   ..."] if len(rows) > LAST + len(early) else [])
        lines += [line for said, _ in rows[-LAST:] for line in said]
    said = {}
    for rank in sorted(job.events):
        own = job.own(rank, "collective")
        steps = collections.Counter(event["step"] for event in own if event["step"] >= 0)
        shown = ", ".join(f"{count} in step {step}" for step, count in sorted(steps.items())[:4])
        said[rank] = f"{len(own)} calls, {len(job.own(rank, 'update'))} updates" + (f"; {shown}" if shown else "")
    return text.fitting(lines) + text.by_rank(said, job.word)


def groups(job):
    lines = []
    verbs = {"join": "begins to make", "joined": "is in", "leave": "leaves", "replicas": "trains one model in"}
    for rank, event in sorted(job.of("group", "store_call"), key=lambda one: one[1]["time_ns"]):
        fields = event["fields"]
        if event["event"] == "group":
            said = f"{verbs[fields['action']]} group {fields['name']} of {text.ranks(fields['members'], job.word)}"
        else:
            where = f" {fields['address']} port {fields['port']}" if fields["address"] else ""
            failed = f", errno {fields['error']}" if fields["error"] else ""
            verb = {"serve": "serves the store at", "connect": "connects to the store at", "used": "has used the store"}
            said = f"{verb.get(fields['action'], fields['action'])}{where}{failed}"
        lines.append(f"  {job.at(event['time_ns'])}  {job.name(rank)} {said}")
    lines += [f"  {job.at(event['ended_ns'])}  {job.word} {event['rank']} {event['how']}" for event in job.ends]
    return ["Who met whom, and where.", *sorted(lines, key=lambda line: float(line.split()[0]))]


def said_of(event):
    """A step's event in a few words; None for what is no part of its order."""
    fields = event["fields"]
    words = {"samples": lambda: f"draws {len(fields['ids'])} samples ({fields['phase']})",
             "split": lambda: f"cuts the batch into {fields['sizes']} for {fields['devices']} devices",
             "transfer": lambda: f"sends {fields['what']} from {fields['from']} to {fields['to']}",
             "zero_grad": lambda: f"clears {fields['gradients']} gradients"
             + (f", {fields['views']} of them views" if fields["views"] else "") + f", by the {fields['by']}",
             "sync_gradients": lambda: f"tells its engine: {'reduce' if fields['wanted'] else 'do not reduce'}",
             "forward": lambda: f"forward in {'training' if fields['training'] else 'evaluation'} mode",
             "loss": lambda: "backward", "gradient_arrived": lambda: f"gradient {fields['parameter']}",
             "collective": lambda: called(fields), "clip": lambda: "clips",
             "scaled_step": lambda: "updates" if fields["updates"] else "leaves the update out",
             "update": lambda: "update", "metric": lambda: f"has the {fields['name']}"}
    return words[event["event"]]() if event["event"] in words else None


def steps(job):
    lines, order = [], {}
    for rank in sorted(job.events):
        own = [event for event in job.events[rank] if event["step"] >= 0 and said_of(event)]
        there = sorted({event["step"] for event in own})
        for step in dict.fromkeys([*there[:2], *there[-1:]]):
            said = [said_of(event) for event in own if event["step"] == step]
            runs = [(each, len(list(same))) for each, same in itertools.groupby(said)]
            shown = [each if count == 1 else f"{each} (x{count})" for each, count in runs]
            shown = ["..." if each is None else each for each in text.some(shown, 24, 8)]
            order.setdefault(step, {})[rank] = "; ".join(shown)
    for step in sorted(order):
        lines += [f"step {step}", *text.by_rank(order[step], job.word)]
    return ["What each rank did, in order. An update ends a step.", *lines]


def decisions(job):
    said_of_rank = {}
    for rank in sorted(job.events):
        own = job.own(rank, "decision")
        said = ["..." if each is None else f"{each['fields']['name']}={each['fields']['value']} at step {each['step']}"
                for each in text.some(own, 2, 4)]
        said_of_rank[rank] = ", ".join(said) or "none"
    return ["Numbers by which each rank decides what it does next.", *text.by_rank(said_of_rank, job.word)]


def results(job):
    letters, lines = text.Letters(), []
    for rank, event in job.of("async_result"):
        fields = event["fields"]
        verb = {"used": "uses", "waited": "has waited for"}.get(fields["moment"], fields["moment"])
        lines.append(f"  {job.at(event['time_ns'])}  {job.name(rank)} {verb} {fields['name']}, which holds "
                     + letters.of(fields["content"]))
    return ["Results of operations that run beside the program. Equal letters: equal bytes.", *lines]
