"""The questions: what each costs, which events it answers by, what it says; and which of them decide a case."""

import dataclasses
import itertools
from collections.abc import Callable

import of_calls
import of_data
import of_numbers
import of_state
import of_steps


@dataclasses.dataclass(frozen=True)
class Question:
    name: str
    cost: int
    about: str
    kinds: tuple    # of events: one of them must be recorded
    says: Callable  # job -> lines
    by: tuple = ()  # the kinds that it is offered by, where not by all


FREE = (Question("losses", 0, "losses by epoch and rank", (), of_state.losses),
        Question("ends", 0, "how each rank ended", ("rank_end",), of_state.ends),
        Question("log", 0, "errors that the ranks printed", (), of_state.log))
PASSES = ("pass_begin", "samples", "pass_end")
PAID = (
    Question("dataset", 5, "the data set as each rank sees it", ("dataset", "shard", "data_file"), of_data.dataset),
    Question("samples", 10, "who drew which samples in each pass", (*PASSES, "dataset"), of_data.samples),
    Question("epochs", 10, "orders compared between passes, epochs told", (*PASSES, "set_epoch"), of_data.epochs),
    Question("random", 10, "random numbers drawn for samples", ("random_numbers",), of_data.random_numbers),
    Question("model", 5, "parameters, engine, optimizer of each rank", ("model", "engine", "configuration"),
             of_state.model, ("model",)),
    Question("parameters", 10, "whether the replicas agree, step by step", ("parameters",), of_numbers.parameters),
    Question("gradients", 10, "own and used gradients by rank and step", ("local_gradients", "reduced_gradients"),
             of_numbers.gradients),
    Question("backward", 5, "where backward() started, and the mean loss", ("loss",), of_numbers.losses_of_steps),
    Question("updates", 10, "updates, learning rates, schedule by rank", ("update", "schedule"), of_numbers.updates),
    Question("steps", 15, "what a step consists of, in order",
             ("forward", "update", "split", "transfer", "zero_grad", "sync_gradients", "gradient_arrived"),
             of_calls.steps),
    Question("modes", 5, "training or evaluation mode, by rank", ("forward", "update"), of_steps.forwards,
             ("forward",)),
    Question("buffers", 10, "running statistics by rank and step", ("buffers", "configuration"), of_steps.buffers,
             ("buffers",)),
    Question("averages", 10, "means over what the ranks hold", ("average",), of_steps.averages),
    Question("clipping", 10, "norms before and after clipping", ("clip",), of_steps.clips),
    Question("scaling", 10, "steps with a scaled loss", ("scaled_step",), of_steps.scaled),
    Question("metrics", 10, "sums and counts of the figures", ("metric",), of_steps.metrics),
    Question("collectives", 15, "the last calls of each rank, by number", ("collective",), of_calls.collectives),
    Question("groups", 10, "who joined which group, and when", ("group", "store_call"), of_calls.groups),
    Question("decisions", 5, "by which numbers the ranks decide", ("decision",), of_calls.decisions),
    Question("results", 10, "results that arrive beside the program", ("async_result",), of_calls.results),
    Question("checkpoints", 15, "what was saved and loaded, state by rank", ("checkpoint_file", "training_state"),
             of_state.checkpoints),
    Question("environment", 5, "node, device and threads of each rank",
             ("placement", "device", "spawn", "shared_memory", "attempt"), of_state.environment))
COMPARE = Question("compare", 30, "the losses of the same job without the fault", (), of_state.losses)


def offered(job):
    """Those that the run has evidence for."""
    there = [question for question in PAID if set(question.by or question.kinds) & job.kinds]
    return [*FREE, *there, *([COMPARE] if any(job.variant["losses"]) else [])]


def path(page, questions):
    """The cheapest questions that answer by all that the page needs; of two as cheap those that answer by more of what
    helps, too. None where there are none."""
    must, helps = (set(kinds) for kinds in page.needs())
    must |= {"schedule"} if "reference rate" in page.facts["needs"] else set()  # the rate itself is asked for
    every = {kind for question in (*FREE, *PAID) for kind in question.kinds}
    free = {kind for question in FREE if question in questions for kind in question.kinds}
    must, helps = (must & every) - free, helps & every
    paid = [question for question in questions if question.cost and set(question.kinds) & (must | helps)]
    best = None
    for count in range(5):
        for chosen in itertools.combinations(paid, count):
            covers = {kind for question in chosen for kind in question.kinds}
            key = (sum(question.cost for question in chosen), -len(covers & helps))
            if must <= covers and (best is None or key < best[0]):
                best = (key, chosen)
    return best and list(best[1])
