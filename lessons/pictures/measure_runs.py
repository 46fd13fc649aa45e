"""What the pictures show of the lessons' recorded runs: a function for each, given `Runs`."""

import json
import os
import pathlib
import subprocess

WEIGHTS = 1000  # an all-reduce of more elements than this is DDP's, of the gradients; others agree on small things


class Runs:
    """Runs of the lessons' programs in a build folder; each is recorded once, in a folder of its own."""

    def __init__(self, build, folder):
        self.build, self.folder = pathlib.Path(build), pathlib.Path(folder)

    def run(self, lesson, variant, ranks, *options):
        """The folder of its traces."""
        traces = self.folder / f"{ranks}{''.join(options)}"
        recorded = traces / lesson / variant
        if not recorded.exists():
            subprocess.run([self.build / "bin" / lesson, "--variant", variant, "--world-size", str(ranks), "--trace", traces,
                            *options], check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return recorded

    def diagnosed(self, recorded, *options):
        """What `lockstep diagnose` prints as JSON; its exit code says whether it found a fault."""
        said = subprocess.run([self.build / "lockstep-course", "diagnose", recorded, *options], stdout=subprocess.PIPE, text=True)
        return json.loads(said.stdout)

    def __call__(self, lesson, variant, ranks, *options):
        """[rank]: its events."""
        traces = self.diagnosed(self.run(lesson, variant, ranks, *options), "--export")["ranks"]
        return [trace["events"] for trace in sorted(traces, key=lambda trace: trace["rank"])]

    def outcome(self, lesson, variant, ranks, rank):
        """The figures that a rank's program wrote down itself."""
        file = self.run(lesson, variant, ranks) / f"rank_{rank}.outcome.json"
        return json.loads(file.read_text(encoding="utf-8"))["figures"]


def of(events, *names, step=None):
    return [event for event in events if event["event"] in names and step in (None, event["step"])]


def ms(time_ns, begin_ns):
    return round((time_ns - begin_ns) / 1e6, 2)


def norm(event):
    return sum(value["norm"] ** 2 for value in event["fields"]["values"]) ** 0.5


def reductions(events, step=None):
    return [event for event in of(events, "collective", step=step)
            if event["fields"]["op"] == "allreduce" and event["fields"]["sizes"][0] > WEIGHTS]


def loop(runs):
    """Of the first updates: the batch's loss, and the norm of .grad."""
    [events] = runs("01_single_device", "correct", 1)
    return [{"loss": of(events, "loss", step=step)[0]["fields"]["backward_value"],
             "gradient": norm(of(events, "reduced_gradients", step=step)[0])} for step in range(3)]


def scatter_and_reduce(runs, step=5):
    """A step of two devices, in the order in which it was recorded."""
    found = []
    for device, events in enumerate(runs("02_data_parallel", "device-zero-bottleneck", 2)):
        # An update of device 0 counts as a step of all devices, so it is recorded of each. What follows has the next step.
        for event in (of(events, "samples", "forward", "transfer", *(["update"] if device == 0 else []), step=step) +
                      of(events, "transfer", step=step + 1)):
            fields = event["fields"]
            if event["event"] == "transfer" and event["step"] != step + (fields["what"] == "parameters"):
                continue
            told = {key: fields[key] for key in ("from", "to", "bytes", "what") if key in fields}
            if "ids" in fields:
                told |= {"first": fields["ids"][0], "last": fields["ids"][-1]}
            found.append((event["time_ns"], {"device": device, "event": event["event"], **told}))
    found.sort(key=lambda entry: entry[0])
    return [{**event, "at_ms": ms(time, found[0][0])} for time, event in found]


def writes_and_reads(runs):
    """Of the second checkpoint: when rank 0 writes it, how long the others wait, and when each has read what."""
    def of_variant(variant):
        ranks = runs("07_checkpoint", variant, 3)
        saves = [event for event in of(ranks[0], "checkpoint_file") if event["fields"]["action"] != "load"]
        contents = [event["fields"]["content"] for event in saves if event["fields"]["action"] == "save_end"]
        *_, begun, ended = saves
        found = []
        for events in ranks:
            [load] = [event for event in of(events, "checkpoint_file") if event["fields"]["action"] == "load"]
            waits = [] if events is ranks[0] else [event for event in of(events, "collective", step=load["step"])
                                                   if event["fields"]["op"] == "broadcast"]
            found.append({"read_save": contents.index(load["fields"]["content"]), "read_ms": ms(load["time_ns"], begun["time_ns"]),
                          "waits_ms": [[ms(wait["time_ns"], begun["time_ns"]), ms(wait["fields"]["left_ns"], begun["time_ns"])]
                                       for wait in waits]})
        return {"written_ms": ms(ended["time_ns"], begun["time_ns"]), "ranks": found}

    return {"without": of_variant("read-before-written"), "with": of_variant("correct-writing")}


def schedules(runs, every=10):
    """The rate of every tenth update of rank 0, on 10,000 samples."""
    def of_run(variant, ranks):
        events = runs("08_lr_scaling", variant, ranks, "--full")[0]
        rates = [event["fields"]["lr"][0] for event in of(events, "update")]
        return {"ranks": ranks, "updates": len(rates), "length": of(events, "schedule")[0]["fields"]["length"],
                "rates": rates[::every]}

    return {"every": every, "one_rank": of_run("correct-schedule", 1), "four_ranks": of_run("correct-schedule", 4),
            "too_long": of_run("schedule-length-ignores-world-size", 4)}


def hanging(runs):
    """Where the ranks part, and each rank's calls from three before that on."""
    recorded = runs.run("09_hanging_collective", "rank-conditional-collective", 3)
    timeline = runs.diagnosed(recorded, "--json", "--pictures")["pictures"]["timeline"]
    parted = timeline["first_difference"]
    calls = [call for call in timeline["calls"] if call["sequence"] >= parted["sequence"] - 3]
    return {"sequence": parted["sequence"], "ranks": parted["ranks"],
            "calls": sorted(calls, key=lambda call: (call["rank"], call["sequence"]))}


def places(runs, ranks=6):
    """Where each rank runs. The nodes are simulated, and numbered in the order in which ranks name them."""
    nodes, found = [], []
    for events in runs("10_launch", "correct-devices", ranks):
        [placement], device = of(events, "placement"), of(events, "device")[0]["fields"]
        own = placement["fields"]
        if own["node"] not in nodes:
            nodes.append(own["node"])
        found.append({"node": nodes.index(own["node"]), "local_rank": own["local_rank"],
                      "local_world_size": own["local_world_size"], "device": device["index"], "visible": device["visible"]})
    return found


def endings(runs):
    """Of the first epoch, on each rank: the samples of its batches, and whether it takes part in a reduction without one."""
    def of_variant(variant):
        found = []
        for events in runs("11_uneven_inputs", variant, 2):
            first, end = of(events, "pass_begin")[0], of(events, "pass_end")[0]
            epoch = events[events.index(first):events.index(end)]
            drawn = [len(event["fields"]["ids"]) for event in of(epoch, "samples")]
            found.append({"batches": drawn, "reductions": len(reductions(epoch))})
        return found

    return {"join": of_variant("correct-ending"), "fewest": of_variant("near-miss-agreed-count"),
            "empty": of_variant("near-miss-empty-batches")}


def accumulated(runs, step=1):
    """An update of rank 0: what happens in it, in order; of an all-reduce its elements."""
    def of_variant(variant):
        found = []
        for event in runs("12_gradient_accumulation", variant, 2)[0]:
            if event["step"] == step and event["event"] in ("forward", "update"):
                found.append(event["event"])
            elif event in reductions([event], step):
                found.append(event["fields"]["sizes"][0])
        return found

    return {"no_sync": of_variant("correct-syncing"), "every": of_variant("sync-every-microbatch")}


def clipped(runs):
    """Of the first step: the norm of each rank's own gradient, of what was clipped, and of what the optimizer gets."""
    def of_variant(variant):
        ranks = runs("13_clipping_and_mixed_precision", variant, 2)

        def norms(name):
            return [norm(of(events, name, step=0)[0]) for events in ranks]

        return {"limit": of(ranks[0], "clip", step=0)[0]["fields"]["max_norm"], "own": norms("local_gradients"),
                "before_clip": norms("clip"), "used": norms("reduced_gradients")}

    return {"reduced_first": of_variant("correct-clipping"), "clipped_first": of_variant("clip-before-reduction")}


def draws(runs, batches=6):
    """The first random number that each rank draws for each of its first batches."""
    return {name: [runs.outcome("15_randomness", variant, 2, rank)["first_number"][:batches] for rank in range(2)]
            for name, variant in [("seeds_by_rank", "correct-augmentation"), ("one_seed", "same-augmentation-everywhere")]}


def own_metric(runs):
    """After each epoch: the hits and samples of each rank's own part of the test set, and those that correct ranks hold."""
    def metrics(events, name):
        return [event["fields"] for event in of(events, "metric") if event["fields"]["name"] == name]

    hits = [metrics(events, "accuracy") for events in runs("16_metrics", "local-hits-global-count", 2)]
    counts = [metrics(events, "loss") for events in runs("16_metrics", "near-miss-every-rank-prints-its-own", 2)]
    reduced = metrics(runs("16_metrics", "correct-evaluation", 2)[0], "accuracy")
    return [{"own": [{"hits": hits[rank][epoch]["sum"], "samples": counts[rank][epoch]["count"]} for rank in range(2)],
             "all": {"hits": whole["sum"], "samples": whole["count"]}} for epoch, whole in enumerate(reduced)]


def attempts(runs):
    """[attempt][rank]: the epochs that it began and ended, and whether it saved or loaded a checkpoint."""
    found = []
    for rank, events in enumerate(runs("18_elastic_restart", "correct", 2)):
        for event in of(events, "attempt", "pass_begin", "pass_end", "checkpoint_file"):
            fields = event["fields"]
            if event["event"] == "attempt":
                number = fields["restart_count"]
                found += [[] for _ in range(number + 1 - len(found))]
                found[number].append({"began": [], "ended": [], "saved": 0, "loaded": 0})
            own = found[number][rank]
            if event["event"] == "pass_begin":
                own["began"].append(fields["epoch"])
            elif event["event"] == "pass_end":
                own["ended"].append(fields["epoch"])
            elif event["event"] == "checkpoint_file":
                own["saved"] += fields["action"] == "save_end"
                own["loaded"] += fields["action"] == "load"
    return found


PICTURES = [loop, scatter_and_reduce, writes_and_reads, schedules, hanging, places, endings, accumulated, clipped, draws, own_metric,
            attempts]
