"""Evidence of time: who waits in a collective, or in making a group, for whom; drawn as a line for each rank."""

import collections

import text

CELLS = 66       # of a rank's line
WAITS = 3        # the longest ones are told
SHORT_S = 0.05   # no wait that is told
WORKS, WAITS_IN, LEFT = "-", "#", " "


def members(job):
    """{group: its ranks}"""
    found = {event["fields"]["name"]: set(event["fields"]["members"]) for _, event in job.of("group")}
    return collections.defaultdict(lambda: set(job.events), {name: own for name, own in found.items() if own})


def ends(job):
    """{rank: when its last event was, or its end}"""
    times = {rank: [max(event["time_ns"], event["fields"].get("left_ns") or 0) for event in events]
             for rank, events in job.events.items()}
    last = {rank: max(own, default=job.start_ns) for rank, own in times.items()}
    for end in job.ends:
        last[end["rank"]] = max(last.get(end["rank"], 0), end["ended_ns"])
    return last


def waits(job):
    """[(rank, from, to, what it waits in, ranks that never came)]"""
    of_group, last = members(job), ends(job)
    return [*in_collectives(job, of_group, last), *in_groups(job, of_group, last)]


def in_collectives(job, of_group, last):
    """From a rank's own call until the last rank of the group has called, too, or until it left."""
    calls = collections.defaultdict(dict)
    for rank, event in job.of("collective"):
        if event["fields"]["op"] not in ("send", "recv"):
            calls[event["fields"]["group"], event["fields"]["sequence"]][rank] = event
    for (group, number), by_rank in calls.items():
        for rank, event in by_rank.items():
            own = event["fields"]
            same = {each: other for each, other in by_rank.items() if other["fields"]["op"] == own["op"]}
            absent, left = of_group[group] - set(same), own["left_ns"] or last[rank]
            together = max(other["time_ns"] for other in same.values())
            until = left if absent or own["failed"] or not own["left_ns"] else min(left, together)
            if until > event["time_ns"]:
                yield rank, event["time_ns"], until, f"{own['op']} {number}", absent


def in_groups(job, of_group, last):
    """From where a rank begins to make a group until it is in it."""
    moments = collections.defaultdict(lambda: collections.defaultdict(dict))
    for rank, event in job.of("group"):
        moments[event["fields"]["name"]][event["fields"]["action"]].setdefault(rank, event["time_ns"])
    for group, by_action in moments.items():
        for rank, begun in by_action["join"].items():
            until = by_action["joined"].get(rank, last[rank])
            if until > begun:
                yield rank, begun, until, f"making group {group}", of_group[group] - set(by_action["join"])


def covered(spans, begin, end):
    """How much of begin to end the spans cover; they may overlap."""
    total, at = 0, begin
    for first, last in sorted(spans):
        first, last = max(first, at), min(last, end)
        if last > first:
            total, at = total + last - first, last
    return total


def line(job, rank, spans, begin, width, last):
    cells = ""
    for cell in range(CELLS):
        first = begin + cell * width
        if first > last[rank] or not job.events[rank]:
            cells += LEFT
        else:
            cells += WAITS_IN if 2 * covered(spans[rank], first, first + width) >= width else WORKS
    return f"  {job.name(rank):<9} {cells}".rstrip()


def timeline(job):
    """From the first collective on; of a job without any from the making of its group."""
    last, kinds = ends(job), ("collective",) if "collective" in job.kinds else ("group",)
    begin = min((event["time_ns"] for _, event in job.of(*kinds)), default=None)
    if begin is None:
        return ["  No collective is recorded, so that no rank is seen to wait."]
    found = [wait for wait in waits(job) if wait[2] > begin]
    end = max([*last.values(), begin + CELLS])
    width, spans = (end - begin) / CELLS, collections.defaultdict(list)
    for rank, first, until, _, _ in found:
        spans[rank].append((first, until))
    left, middle, right = (job.at(time) for time in (begin, (begin + end) / 2, end))
    scale = f"{left:<{CELLS // 2}}{middle}"
    lines = [f"  {'':<9} {scale:<{CELLS - len(right)}}{right}"]
    lines += [line(job, rank, spans, begin, width, last) for rank in sorted(job.events)]
    lines.append(f"  {WAITS_IN} waits for another {job.word}, {WORKS} does not, blank: has ended")
    total = ", ".join(f"{job.name(rank)} {covered(spans[rank], begin, end) / 1e9:.2f} s" for rank in sorted(job.events))
    lines += text.filled(f"waited in all: {total}", "    ", "  ")
    for rank, first, until, what, absent in sorted(found, key=lambda wait: wait[1] - wait[2])[:WAITS]:
        if until - first >= SHORT_S * 1e9:
            never = f"; {text.ranks(absent, job.word)} did not come" if absent else ""
            said = f"{job.name(rank)} waits in {what}, {job.at(first)} to {job.at(until)}{never}"
            lines += text.filled(said, "    ", "  ")
    return lines
