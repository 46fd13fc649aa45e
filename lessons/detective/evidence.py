"""The questions: what each costs, which events it answers by, what it says; and which of them decide a case."""

import dataclasses
import itertools
from collections.abc import Callable

import of_calls
import of_data
import of_numbers
import of_state
import of_steps
import of_time


@dataclasses.dataclass(frozen=True)
class Question:
    name: str
    cost: int
    about: str
    kinds: tuple    # of events: one of them must be recorded
    says: Callable  # job -> lines
    by: tuple = ()  # the kinds that it is offered by, where not by all


FREE = (Question("losses", 0, "losses by epoch and rank", (), of_state.losses),
        Question("timeline", 0, "who waits where, and when", (), of_time.timeline),
        Question("ends", 0, "how each rank ended", ("rank_end",), of_state.ends),
        Question("log", 0, "errors that the ranks printed", (), of_state.log))
PASSES = ("pass_begin", "samples", "pass_end")
PAID = (
    Question("dataset", 5, "the data set as each rank sees it", ("dataset", "shard", "data_file"), of_data.dataset),
    Question("samples", 10, "who drew which samples in each pass", (*PASSES, "dataset"), of_data.samples),
    Question("epochs", 10, "orders compared between passes, epochs told", (*PASSES, "set_epoch"), of_data.epochs),
    Question("random", 10, "random numbers drawn for samples", ("random_numbers",), of_data.random_numbers),
    Question("model", 5, "parameters, engine, optimizer of each rank", ("model", "engine", "settings"),
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
    Question("buffers", 10, "running statistics by rank and step", ("buffers", "layer_modes"), of_steps.buffers,
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
# What the program's oracle makes of the outcome: of Python programs, which do not tell of all that they do.
CHECK = Question("check", 25, "what is not as one process would have it", (), of_state.checked)
PROVE = Question("prove", 25, "a few short runs: does it do what one process would?", (), of_state.proved)
COMPARE = Question("compare", 30, "the losses of the same job without the fault", (), of_state.losses)


def offered(job):
    """Those that the run has evidence for."""
    there = [question for question in PAID if set(question.by or question.kinds) & job.kinds]
    compared = any(job.outcome["losses"]) or job.printed or "loss" in job.kinds
    return [*FREE, *there, *([CHECK] if job.seen else []), *([PROVE] if job.proved else []),
            *([COMPARE] if compared else [])]


def needs_of(pages):
    """(the kinds of event that must be there, those that help) of all faults of a case."""
    must, helps = set(), set()
    for page in pages:
        must |= set(page.needs()[0]) | ({"schedule"} if "reference rate" in page.facts["needs"] else set())
        helps |= set(page.needs()[1])
    return must, helps


def path(pages, questions, known=None):
    """The cheapest questions that answer by all that the pages need, or by that of it that is `known`; of two as cheap
    those that answer by more of what helps, too. None where there are none."""
    must, helps = needs_of(pages)
    must = must if known is None else must & known
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


def decisive(pages, questions):
    """The path; where the run has not recorded all that the pages need, what it has, and the check."""
    best = path(pages, questions)
    if best is not None:
        return best
    known = {kind for question in questions for kind in question.kinds}
    return [*(path(pages, questions, known) or []), *(question for question in questions if question is CHECK)]
