"""Scaling and timing, beside Python's, from the committed results. Each chart says which command measured it."""

import specs


def ratio_row(what, ratio):
    """Results name the ends of a 95 % interval low_95 and high_95, or low and high; a mean stands for the median."""
    middle = ratio.get("median", ratio.get("mean"))
    return [what, middle, ratio.get("low_95", ratio.get("low", middle)), ratio.get("high_95", ratio.get("high", middle))]


def beside_python(measured):
    rows = []
    if ddp := measured.get("ddp_step"):
        for step in ddp["steps"]:
            rows.append(ratio_row(f"step {step['model'].removeprefix('mlp-')}, {step['world_size']} ranks",
                                  step["ratio_to"]["python"]))
        if whole := ddp.get("start_to_finish"):
            rows.append(ratio_row(f"{whole['steps']} steps from launch, {whole['world_size']} ranks",
                                  whole["ratio_to"]["python"]))
    if checkpoint := measured.get("checkpoint"):
        for name, what in (("save", "checkpoint, save"), ("save_unsynced", "checkpoint, save unsynced"),
                           ("load", "checkpoint, load")):
            rows.append(ratio_row(what, checkpoint["measured"][name]["ratio_to_python"]))
    if launch := measured.get("launch_time"):
        rows.append(ratio_row(f"launch to all-reduce, {launch['ranks']} ranks", launch["to_first_all_reduce"]["ratio"]))
    if flight := measured.get("flight_recorder"):
        for row in flight["rows"]:
            if row.get("ratio_to_fr_trace"):
                rows.append([f"reading dumps of {row['ranks']} ranks"] + 3 * [row["ratio_to_fr_trace"]])
    return rows


def overhead(measured):
    rows = []
    if observe := measured.get("observe_overhead"):
        for mode, what in (("observed", "collectives recorded"), ("sampled_probes", "and sampled values"),
                           ("every_step_probes", "and every step's values")):
            rows.append(ratio_row(what, observe["modes"][mode]["ratio_to_plain"]))
    if checked := measured.get("checked_mode"):
        for ranks, jobs in checked["ranks"].items():
            for job, what in (("ddp_step", "checked step"), ("small_all_reduce", "checked all-reduce")):
                rows.append(ratio_row(f"{what}, {ranks} ranks", jobs[job]["checked"]["ratio_to_plain"]))
    if threads := measured.get("thread_oversubscription"):
        for ranks, row in threads["ranks"].items():
            rows.append(ratio_row(f"too many threads, {ranks} ranks", row["all_to_shared"]))
    return rows


def diagnosis(measured):
    return [[row["ranks"], row["seconds"], row["case"].replace("_", " ")]
            for row in (measured.get("diagnose_scale") or {"rows": []})["rows"]]


def scaling(measured):
    """Seconds of ten epochs by ranks, at the rate that is scaled; the machine has two processors."""
    rows = []
    for row in (measured.get("lr_scaling") or {"rows": []})["rows"]:
        if row["scaling"] == "constant" and row["warmup_epochs"] == 0:
            rows.append([row["world_size"], row["seconds"]["mean"], row["optimizer"]])
    return rows


def pytorchs_means(measured):
    totals = (measured.get("side_by_side") or {}).get("totals") or {}
    names = {"plain": "plain", "info": "DEBUG=INFO", "detail": "DEBUG=DETAIL",
             "flight": "flight recorder", "barrier": "monitored barrier", "loss-curve": "loss curve",
             "together": "any of them", "lockstep": "lockstep diagnose"}
    return [[what, totals[key]["slug"]["successes"], totals[key]["slug"]["trials"]]
            for key, what in names.items() if key in totals]


def ratios(axis):
    return lambda rows: specs.ratios(axis, len(rows))


RATIO = [("what", "what"), ("ratio", "ratio"), ("low", "95 % from"), ("high", "to")]
# id, title, what is drawn, the commands, rows, columns, specification by rows
CHARTS = [
    ("python", "Time beside Python's", "Time of ours over Python's, with 95 % intervals where there are any: left of 1 is faster.",
     "./lockstep bench ddp_step, checkpoint, launch_time, flight_recorder", beside_python, RATIO, ratios("ours / Python's")),
    ("overhead", "What recording, checking and too many threads cost", "Time over that of the same step without; "
     "with a thread for each processor in every rank, over one. Right of 1 is slower.",
     "./lockstep bench observe_overhead, check_overhead, thread_oversubscription", overhead, RATIO,
     ratios("with / without")),
    ("scaling", "Ten epochs on more ranks", "Seconds by number of ranks. The ranks share the processors of one machine, so "
     "more ranks than processors do not train faster.", "./lockstep bench lr_scaling", scaling,
     [("x", "ranks"), ("y", "seconds"), ("series", "optimizer")], lambda rows: specs.growth("ranks", "seconds", False)),
    ("diagnosis", "Diagnosis of large jobs", "Seconds of a diagnosis by number of ranks, 100 steps each, both scales logarithmic.",
     "./lockstep bench diagnose_scale", diagnosis, [("x", "ranks"), ("y", "seconds"), ("series", "job")],
     lambda rows: specs.growth("ranks", "seconds", True)),
    ("means", "Pitfalls named, beside PyTorch's own means", "Pitfalls named by each means, of those that have a Python twin.",
     "evaluation/pytorch_means/side_by_side.py", pytorchs_means, [("what", "means"), ("value", "named"), ("of", "of")],
     lambda rows: specs.bars("pitfalls named", len(rows))),
]


def add(charts, measured):
    """((chart, its command), titles without a result)."""
    drawn, missing = [], []
    for id, title, text, command, rows_of, columns, spec in CHARTS:
        try:
            rows = rows_of(measured)
        except (KeyError, TypeError, AttributeError) as error:
            missing.append(f"{title} ({command}): the result is not as it used to be: {error!r}")
            continue
        if rows:
            drawn.append((charts.add(f"measured-{id}", title, text, columns, rows, spec(rows)), command))
        else:
            missing.append(f"{title} ({command})")
    return drawn, missing
