"""How a case begins and how it ends."""

import re

import text


def opening(job, faults):
    size, word = job.world_size, job.word
    where = f"{size} {word}{'s' if size > 1 else ''}{' in one process' if job.devices else ''}"
    asked = "one fault. Which is it" if faults == 1 else "two faults. Which are they"
    lines = text.filled(f"A job of {where} has {asked}, and on which {word}s?")
    for _, event in job.of("intent")[:1]:
        fields = event["fields"]
        meant = [f"{fields['global_batch']} samples an update, over all {word}s"] if fields["global_batch"] else []
        meant += [f"the {fields['loss_reduction']} of their losses"] if fields["loss_reduction"] else []
        rate = f"the learning rate {fields['reference_lr']:g} was found on {fields['reference_world_size']} of them"
        meant += [rate] if fields["reference_lr"] else []
        lines += text.filled(f"The program means: {', '.join(meant)}.") if meant else []
    return lines


def about(page, ranks, job):
    """What it was, why, and how it is mended. A finding that is no pitfall has no page."""
    lines = text.filled(f"{page.slug}, {text.ranks(ranks, job.word)}: {page.title}")
    for found in job.outcome["findings"]:
        lines += text.filled(f"The detectors say: {found['evidence']}") if found["pitfall"] == page.slug else []
    for name in ("Why", "Fix") if page.text else ():
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page.section(name))
        lines += ["", f"{name}:", *(line for part in plain.split("\n\n") for line in text.filled(part, "  ", "  "))]
    return lines


def closing(begin, faults, job, path, asked, points):
    """What it was, and what would have shown it soonest."""
    lines = text.filled(begin)
    for fault in faults:
        lines += ["", *about(fault.page, fault.ranks, job)]
    shown = ", ".join(f"{question.name} ({question.cost})" for question in path) or "what was free"
    left = points - sum(question.cost for question in path)
    lines += ["", *text.filled(f"The shortest path: {shown}. It leaves {left} points.")]
    for question in path:
        if question.name not in asked:
            lines += [f"You did not ask {question.name}. It shows:", *question.says(job)]
    python = " --python" if job.printed else ""
    said = [f"The code, broken and right: ./lockstep explain {fault.page.slug}{python}" for fault in faults]
    return [*lines, "", *(line for each in said for line in text.filled(each))]
