"""What silence costs: the test accuracy that each silent pitfall takes, against the correct variant.

usage: ./lockstep bench silence_cost [--seeds N] [--ranks N] [--settings a,b] [--variants correct,slug,...]
                                     [--samples N] [--epochs N] [--out FILE] [--table FILE] [--again FILE]

Small models on Fashion-MNIST, real ranks, on each seed the correct variant and every fault of its setting: the same
weights to begin with, the same samples, as many of them. The figure is the paired difference, fault less correct
variant, in percentage points, of rank 0's model (the one that is saved) on the whole test set; where the fault is in
an evaluation, of the accuracy that it reports. Mean over the seeds, with the 95 % interval of Student's t.

"no measurable effect" is said where the interval holds 0, which proves no absence. One interval in twenty that
should hold 0 does not; `holm` is the p-value of each mean after Holm's correction for all of them.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile

import scipy.stats
from statsmodels.stats.multitest import multipletests

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "reports"))
import results  # noqa: E402

OUT = os.path.join(HERE, "..", "..", "reports", "out", "silence_cost.json")

# Faults of the evaluation: what is off is the figure, not the model.
REPORTED = {"evaluation-padding", "rank-zero-metric", "local-hits-global-count", "shuffled-evaluation"}
# Silent pitfalls that no training on CPU ranks can show a cost of accuracy of, and why.
NOT_MEASURED = {
    "device-zero-bottleneck": "costs time and memory, not accuracy",
    "device-not-set": "costs memory of GPU 0, not accuracy; needs GPUs",
    "load-without-map-location": "costs memory of GPU 0, not accuracy; needs GPUs",
    "thread-oversubscription": "costs time, not accuracy: reports/results/thread_oversubscription.json",
    "group-never-destroyed": "strikes when training is over",
    "visible-devices-remapped": "two ranks on one GPU: costs time and memory, not accuracy; needs GPUs",
    "wrong-stream": "needs a GPU",
}
# What a figure means that does not speak for itself.
NOTES = {
    "optimizer-state-missing": "the rate is lost with the moments: the cosine goes on from its top",
    "evaluation-padding": "one sample of 1,009 counted twice, the same one on every seed",
    "shuffled-evaluation": "second look at the same weights less the first, 512 samples each",
    "rank-zero-metric": "test set in the order of its classes, a piece a rank",
    "sync-every-microbatch": "costs time: as many reductions as microbatches",
    "no-sync-around-backward-only": "costs time: as many reductions as microbatches",
    "buffers-not-synced": "rank 0's model is the same, other ranks' statistics are not",
    "ema-on-one-rank": "rank 0's average is right, the others' is stale",
    "dataset-unseeded": "trains on samples that the others hold out; their accuracy is not measured",
    "world-size-from-device-count": "two nodes in name, half of the ranks each",
    "frozen-after-wrapping": "its silent half: thawed after wrapping",
    "replica-buffers-lost": "the buffers as LibTorch's data_parallel leaves them",
    "unequal-chunk-mean": "DataParallel's arithmetic, on ranks",
    "restart-without-resume": "one restart, half-way; the first half is lost",
    "gather-loses-graph": "nearest class mean over contrastive features",
}


def summary(differences):
    """Mean, 95 % interval and two-sided p-value of its being 0. Fewer than two values: no interval."""
    mean, count = statistics.mean(differences), len(differences)
    if count < 2:
        return {"mean": mean, "low_95": None, "high_95": None, "p": None, "values": differences}
    error = statistics.stdev(differences) / math.sqrt(count)
    if not error:
        return {"mean": mean, "low_95": mean, "high_95": mean, "p": 0.0 if mean else 1.0, "values": differences}
    test = scipy.stats.ttest_1samp(differences, 0)
    low, high = test.confidence_interval(0.95)
    return {"mean": mean, "low_95": float(low), "high_95": float(high), "p": float(test.pvalue), "values": differences}


def holm(p_values):
    """Holm's correction, in the order given."""
    return [float(p) for p in multipletests(p_values, method="holm")[1]] if p_values else []


def verdict(row):
    if row["low_95"] is None:
        return "one seed"
    if row["low_95"] <= 0 <= row["high_95"]:
        return "no measurable effect"
    if row["reported"]:
        return "reports too little" if row["mean"] < 0 else "reports too much"
    return "costs" if row["mean"] < 0 else "helps"


def rows_of(runs):
    """One row for each fault: its runs paired with the correct ones of its setting, seed by seed."""
    measured = {(run["setting"], run["variant"], run["seed"]): [100 * value for value in run["measured"]] for run in runs}
    rows = []
    for setting, variant in dict.fromkeys((setting, variant) for setting, variant, _ in measured):
        if variant == "correct":
            continue
        seeds = [seed for one, other, seed in measured if (one, other) == (setting, variant)]
        pairs = [(measured[setting, variant, seed], measured[setting, "correct", seed]) for seed in seeds]
        row = {"pitfall": variant, "setting": setting, "reported": variant in REPORTED, "seeds": seeds,
               "correct": statistics.mean(right[0] for _, right in pairs),
               **summary([broken[0] - right[0] for broken, right in pairs]),
               "worst_rank": statistics.mean(min(broken) - min(right) for broken, right in pairs),
               "mean_absolute": statistics.mean(abs(broken[0] - right[0]) for broken, right in pairs)}
        rows.append({**row, "verdict": verdict(row)})
    if all(row["p"] is not None for row in rows):
        for row, p in zip(rows, holm([row["p"] for row in rows])):
            row["holm"] = p
    return sorted(rows, key=lambda row: row["mean"])


def by_seed(runs):
    """As they are kept: for each setting and variant what was measured, seed by seed."""
    kept = {}
    for run in runs:
        kept.setdefault((run["setting"], run["variant"]), {})[str(run["seed"])] = run["measured"]
    return [{"setting": setting, "variant": variant, "measured": measured} for (setting, variant), measured in kept.items()]


def one_by_one(kept):
    return [{"setting": each["setting"], "variant": each["variant"], "seed": int(seed), "measured": measured}
            for each in kept for seed, measured in each["measured"].items()]


def table(rows):
    """Markdown, the dearest first."""
    def figure(row):
        if row["low_95"] is None:
            return f"{row['mean']:+.2f}"
        return f"{row['mean']:+.2f} [{row['low_95']:+.2f}, {row['high_95']:+.2f}]"

    def note(row):
        # Where replicas have drifted apart, the rank that is saved says little of the others.
        parts = [NOTES[row["pitfall"]]] if row["pitfall"] in NOTES else []
        if not row["reported"] and row["worst_rank"] < row["mean"] - 0.5:
            parts.append(f"worst rank {row['worst_rank']:+.2f}")
        if row["reported"]:
            parts.append(f"mean absolute error {row['mean_absolute']:.2f}")
        if row["verdict"] not in ("no measurable effect", "one seed") and row.get("holm", 0) > 0.05:
            parts.append("not after Holm's correction")
        return "; ".join(parts)

    lines = []
    for reported, heading in ((False, "test accuracy, points"), (True, "error of the reported accuracy, points")):
        shown = [row for row in rows if row["reported"] == reported]
        if not shown:
            continue
        lines += [f"| silent pitfall | {heading} [95 %] | correct, % | verdict | |", "|---|---|---|---|---|"]
        lines += [f"| {row['pitfall']} | {figure(row)} | {row['correct']:.1f} | {row['verdict']} | {note(row)} |"
                  for row in shown]
        lines.append("")
    lines += ["| silent pitfall | not measured |", "|---|---|"]
    lines += [f"| {pitfall} | {why} |" for pitfall, why in NOT_MEASURED.items()]
    return "\n".join(lines) + "\n"


def measure(program, arguments):
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        lines = os.path.join(folder, "runs.jsonl")
        command = [program, lines, "--ranks", str(arguments.ranks), "--samples", str(arguments.samples),
                   "--epochs", str(arguments.epochs), "--seeds", ",".join(map(str, range(arguments.seeds)))]
        for name in ("settings", "variants"):
            if getattr(arguments, name):
                command += [f"--{name}", getattr(arguments, name)]
        code = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
        if code:  # its error is above; 77: no data
            raise SystemExit(code)
        with open(lines) as file:
            return [json.loads(line) for line in file]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2051)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--settings", help="some of them only (the program's --list says which there are)")
    parser.add_argument("--variants", "--forms", help="some of them only; \"correct\" must be among them")
    parser.add_argument("--again", metavar="FILE", help="trains nothing: figures and table from the runs in this --out")
    parser.add_argument("--out", default=OUT)
    parser.add_argument("--table", help="where to write the table; by default beside --out, as .md")
    arguments = parser.parse_args()
    if arguments.variants and "correct" not in arguments.variants.split(","):
        parser.error("--variants must have \"correct\", which the others are compared with")
    if arguments.again:
        try:
            with open(arguments.again) as file:
                earlier = json.load(file)
            settings, runs = earlier["settings"], one_by_one(earlier["runs"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            parser.error(f"--again: {arguments.again} is no --out of this program ({error})")
    else:
        settings = {"torch": importlib.metadata.version("torch"), "machine": platform.machine(), "backend": "gloo",
                    "threads_per_rank": 1, "ranks": arguments.ranks, "seeds": arguments.seeds,
                    "samples": arguments.samples, "epochs": arguments.epochs, "global_batch": 32 * arguments.ranks,
                    "model": "mlp-784-64-10", "load_average_before": os.getloadavg()}
        runs = measure(arguments.program, arguments)
    result = {"benchmark": "silence_cost", "settings": settings, "runs": by_seed(runs)}
    figures = table(rows_of(runs))
    path = arguments.table or os.path.splitext(arguments.out)[0] + ".md"
    os.makedirs(os.path.dirname(os.path.abspath(arguments.out)), exist_ok=True)
    with open(arguments.out, "w") as file:
        file.write(results.text(result))
    with open(path, "w") as file:
        file.write(figures)
    print(figures, end="")
    print(f"written: {os.path.normpath(arguments.out)} and {os.path.normpath(path)}")


if __name__ == "__main__":
    main()
