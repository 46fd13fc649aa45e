"""Evidence of what surrounds the training: the outcome, the log, checkpoints, the model, the environment."""

import re

import of_numbers
import text

LOG_LINES = 10  # of a rank
PRINTED = 8     # lines of a rank


def losses(job):
    lines = []
    losses = job.outcome["losses"] or of_numbers.losses_of_passes(job)
    for title, by_rank in (("loss", losses), ("accuracy", job.outcome["accuracy"])):
        columns = max(map(len, by_rank), default=0)
        if columns:
            shown = text.some(range(columns), 4, 2)
            rows = [[job.name(rank), *("..." if at is None else text.number(own[at]) if at < len(own) else "-"
                                       for at in shown)] for rank, own in enumerate(by_rank)]
            lines += text.table([title, *("..." if at is None else f"epoch {at}" for at in shown)], rows)
    return lines + printed(job) or ["  The job reports no loss by epoch."]


def printed(job):
    """The last lines of each rank: a program in Python prints its losses."""
    lines = []
    for rank, said in job.printed:
        own = text.some(said.splitlines(), 2, PRINTED - 3)
        shown = ["..." if line is None else line for line in own]
        lines += [f"  {job.name(rank)} prints:", *(f"    {line}"[:text.COLUMNS] for line in shown)]
    return lines


def ends(job):
    lines = []
    for end in sorted(job.ends, key=lambda one: one["ended_ns"]):
        how = {"completed": "completed", "raised": "raised an error",
               "exited": f"left with exit code {end['exit_code']}",
               "signalled": f"was ended by signal {end['signal'] or '(not known which)'}",
               "stopped": "was stopped by the launcher", "deadline": "was ended at the deadline"}[end["how"]]
        lines.append(f"  {'process' if job.devices else job.word} {end['rank']} {how} at {job.at(end['ended_ns'])}")
    silent = [rank for rank, events in job.events.items() if not events]
    quiet = set(job.events) - {end["rank"] for end in job.ends} - set(silent)
    for said, own in (("completed", quiet & job.closed), ("left no word of its end", quiet - job.closed)):
        lines += text.filled(f"{text.ranks(own, job.word)}: {said}", "    ", "  ") if own and not job.devices else []
    return lines + ([f"  {text.ranks(silent, job.word)}: no event is recorded"] if silent else [])


def plain(said):
    """What a rank wrote to stderr: messages, without stack traces, the lines of code in them, and files' names. Of an
    exception in Python its first sentence: advice follows, which PyTorch has for some of the pitfalls."""
    lines, where = [], "outside"
    for line in said.splitlines():
        line = re.sub(r"^\[rank\d+\]:? ?", "", line)
        if line.startswith("Traceback (most recent call last)"):
            where = "in a trace"
        elif where == "in a trace" and line and not line.startswith(" "):
            lines.append(re.split(r"(?<=[.!]) (?=[A-Z])", line)[0])
            where = "behind its exception"
        elif where == "outside" and not re.match(r"frame #|\s+\w+\(|Exception raised from", line):
            lines.append(line)
    words = re.sub(r"\[[IWEF]\d{4} [^]]*\.\w+:\d+\]|\S*\w\.(?:py|cpp|h|cc)\b\S*", "", " ".join(lines))
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*", "...", words).split()


def log(job):
    lines = []
    for rank, said in job.logs:
        own = text.filled(" ".join(plain(said)), "    ", "    ")
        lines += [f"  {'process' if job.devices else job.word} {rank}:", *own[:LOG_LINES]] if own else []
        lines += ["    ..."] if len(own) > LOG_LINES else []
    return lines or ["  The job printed no error."]


def checked(job):
    wrong = [what for what, holds in job.seen().items() if not holds and what != "ended"]
    lines = [f"  {what}: not as one process would have it" for what in wrong]
    ended = "  Each rank came to the end of its program." if job.seen()["ended"] else "  Not each rank came to the end."
    return ["A check of what the ranks ended with, made without the trace.", ended,
            *(lines or ["  What they ended with is right."] if job.seen()["ended"] else [])]


def proved(job):
    """Each relation, and where it fails; neither why nor in which line."""
    found = job.proved()
    if found is None:
        return ["The job fails in these runs, so nothing is compared."]
    lines = []
    for each in found["relations"]:
        fails = each["standing"] == "fails"
        lines += text.filled(f"{'FAILS' if fails else 'holds' if each['standing'] == 'held' else '?':<7}{each['must_hold']}",
                             " " * 9, "  ")
        since = [f"since update {each['step']}"] * (each["step"] is not None)
        times = [f"times {text.number(each['factor'])}"] * (each["factor"] is not None)
        if fails:
            lines.append(" " * 9 + ", ".join([*since, text.ranks(each["ranks"], job.word), *times]))
    return lines


def compared(job, other):
    lines = ["This job:", *losses(job), "The same job without the fault:", *losses(other)]
    if single := job.outcome.get("reference_losses"):
        shown = ", ".join("..." if each is None else text.number(each) for each in text.some(single, 4, 2))
        lines += ["One process on the same batches, epoch by epoch:", f"  {shown}"]
    return lines


def checkpoints(job):
    files, contents, lines = text.Letters(), text.Letters(), []
    verbs = {"save_begin": "begins to save", "save_end": "has saved", "load": "has loaded"}
    nothing = {"0" * 16}
    for rank, event in sorted(job.of("checkpoint_file"), key=lambda one: one[1]["time_ns"]):
        fields = event["fields"]
        said = f"{verbs[fields['action']]} file {files.of(fields['file'])}"
        said += "" if fields["content"] in nothing else f", whose content is then {contents.of(fields['content'])}"
        said += "" if fields["accepted"] else ", and it is not whole"
        if fields["action"] == "load":
            said += f"; saved from {'+'.join(fields['from']) or '?'}, put on {'+'.join(fields['to']) or '?'}; this "
            said += f"{job.word} trains on {fields['device']}"
            said += f"; names: {', '.join(fields['keys'][:2])}" if fields["keys"] else ""
        else:
            said += f" (LOCAL_RANK {fields['local_rank']})"
        when = f"{job.at(event['time_ns'])}, step {event['step']}"
        lines += text.filled(f"{when}: {job.name(rank)} {said}", "      ", "  ")
    return (["Files. Equal letters: the same file, the same content.", *lines] if lines else []) + states(job)


def states(job):
    rows, events = [], job.of("training_state")
    names = list(dict.fromkeys(name for _, event in events for name in event["fields"]["names"]))
    letters = {name: text.Letters() for name in names}
    for rank, event in sorted(events, key=lambda one: one[1]["time_ns"]):
        fields = event["fields"]
        parts = zip(fields["names"], fields["hashes"], fields["devices"], strict=True)
        held = {name: (content, device) for name, content, device in parts}
        devices = sorted({device for _, device in held.values() if device})
        rows.append([f"{job.name(rank)}, {fields['moment']}", event["step"],
                     *(letters[name].of(held[name][0]) if name in held else "-" for name in names),
                     "+".join(devices)])
    if not rows:
        return []
    passes = [f"epoch {event['fields']['epoch']} at step {event['step']}" for rank, event in job.of("pass_begin")
              if rank == 0 and event["fields"]["phase"] == "train"]
    table = text.table(["", "step", *names, "on"], rows)
    return ["State that each rank holds. In a column, equal letters: equal.", *table,
            *text.filled(f"{job.word} 0 begins {', '.join(passes)}", "    ", "  ")]


def model(job):
    lines, letters = [], text.Letters()
    for rank, event in job.of("model"):
        fields = event["fields"]
        parts = zip(fields["names"], fields["shapes"], fields["dtypes"], strict=True)
        said = [f"{name} {shape} {dtype}" for name, shape, dtype in parts]
        known = tuple(said) in letters.known
        lines += text.filled(f"{job.name(rank)}, step {event['step']}: model {letters.of(tuple(said))}"
                             + ("" if known else f": {', '.join(said)}"), "    ", "  ")
    for rank, event in job.of("engine"):
        lines.append(f"  {job.name(rank)}: {event['fields']['kind']} over {event['fields']['parameters']} parameters")
    return ["The parameters that each rank trains. Equal letters: the same.", *lines, *optimizers(job)]


def optimizers(job):
    for rank, event in job.of("settings"):
        if event["fields"]["of"] == "optimizer":
            options = zip(event["fields"]["keys"], event["fields"]["values"], strict=True)
            said = dict.fromkeys(f"{key.split(': ')[-1]} {value}" for key, value in options)
            plain = re.sub(r"\w+::|Watched<|>", "", ", ".join(said))
            return text.filled(f"{job.name(rank)}: {plain}", "    ", "  ")
    return []


def environment(job):
    lines, nodes, chips, sets = [], text.Letters(), text.Letters(), text.Letters()
    for rank, event in job.of("placement", "device", "spawn", "shared_memory", "attempt"):
        fields, kind = event["fields"], event["event"]
        if kind == "placement":
            said = (f"on node {nodes.of(fields['node'])}, LOCAL_RANK {fields['local_rank']} of "
                    f"{fields['local_world_size']}, {fields['processors']} processors (set "
                    f"{sets.of(fields['processor_set'])}), {fields['threads']} threads")
        elif kind == "device":
            moment = {"chosen": "puts its tensors on", "group": "made its group on"}[fields["moment"]]
            which = "there is no such device" if fields["id"] == "0" * 16 else f"it is chip {chips.of(fields['id'])}"
            seen = f"sees {fields['visible']} of the node's {fields['present']}"
            said = f"{moment} device {fields['index']}, {seen}, {which}"
        elif kind == "spawn":
            said = f"starts {fields['processes']} processes, for a job of {fields['world_size']}"
        elif kind == "shared_memory":
            verb = {"reserve": "reserves shared memory", "failed": "cannot reserve shared memory"}[fields["action"]]
            said = (f"{verb}: needs {fields['needed']} bytes, {fields['free']} of {fields['total']} are free"
                    + (f", errno {fields['error']}" if fields["error"] else ""))
        else:
            said = f"attempt {fields['restart_count']}; the launcher restarts at most {fields['max_restarts']} times"
        lines += text.filled(f"{job.name(rank)} {said}", "      ", "  ")
    return ["Where each rank runs. Equal letters: the same.", *dict.fromkeys(lines)]
