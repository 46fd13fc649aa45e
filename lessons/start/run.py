"""./lockstep start: shows the steps of start.md and runs them. Step 1 is one process; torchrun starts the others.

usage: run.py [STEP] [--python] [--world-size W] [--programs DIR]      DIR: where the C++ programs were built
"""

import argparse
import difflib
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "loopback"))
import loopback  # noqa: E402

STEPS = sorted(path.stem for path in HERE.glob("[1-5]_*.py"))
COLUMNS = 80
DEADLINE_S = 300
COULD_NOT_RUN, DEADLINE, INTERRUPTED = 3, 124, 130


def sections():
    """The page's text of each step: what comes before its run, and what comes after."""
    text = re.sub(r"<!-- made by.*?<!-- up to here -->\n", "", (HERE / "start.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"^## Step \d: (.*?)\n\n(.*?)\n\*\*What you see\.\*\* (.*?)(?=\n## )", text, re.MULTILINE | re.DOTALL)
    return [(title.strip(), before, after) for title, before, after in found]


def told(markdown):
    """For a terminal: without links and marks, in lines that fit it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*/([\w-]+)\.md\)", r"\1", markdown).replace("**", "")
    for paragraph in text.strip().split("\n\n"):
        print(paragraph if paragraph.startswith("    ") else textwrap.fill(paragraph, COLUMNS), end="\n\n")


def difference(step, ending):
    """The lines of a step's program, or those in which it differs from the one of the step before; without its title."""
    before, after = ((HERE / f"{name}{ending}").read_text(encoding="utf-8").splitlines()[1:] if name else []
                     for name in (([None] + STEPS)[STEPS.index(step)], step))
    lines = list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]
    return "\n".join(["..." if line.startswith("@@") else line for line in lines] if before else after).strip().splitlines()


def command_of(step, options):
    program = HERE / f"{step}.py" if options.python else pathlib.Path(options.programs, step)
    if step == STEPS[0]:
        return [sys.executable, program] if options.python else [program]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.world_size)]
    return [*torchrun, program] if options.python else [*torchrun, "--no-python", program]


def run(step, options):
    shown = "" if step == STEPS[0] else f"torchrun --standalone --nproc-per-node {options.world_size} "
    print(f"$ {shown}{'--no-python ' if shown and not options.python else ''}{step}{'.py' if options.python else ''}", flush=True)
    with subprocess.Popen(command_of(step, options), stdout=subprocess.PIPE, text=True,
                          env={"OMP_NUM_THREADS": "1", **os.environ, **loopback.environment()}) as job:
        try:
            printed, _ = job.communicate(timeout=DEADLINE_S)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            job.terminate()  # torchrun ends its ranks
            job.communicate()
            raise
    # Two ranks write at once: the end of one's line may come after the other's line.
    print("\n".join(line for line in re.sub(r"(?<=\d)rank", "\nrank", printed).splitlines() if line), end="\n\n", flush=True)
    if job.returncode != 0:
        refuse(f"step {step} ended with {job.returncode}")


def refuse(why, code=COULD_NOT_RUN):
    print(f"error: {why}", file=sys.stderr)
    sys.exit(code)


def main():
    parser = argparse.ArgumentParser(prog="./lockstep start", description="From one device to DDP, in five steps.")
    parser.add_argument("step", nargs="?", type=int, choices=range(1, len(STEPS) + 1), help="default: all, one after another")
    parser.add_argument("--python", action="store_true", help="the Python programs, instead of the C++ ones")
    parser.add_argument("--world-size", type=int, default=2, choices=(1, 2, 4, 8), help="how many ranks (default: 2)")
    parser.add_argument("--programs", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for number, (title, before, after) in enumerate(sections(), 1):
        if options.step not in (None, number):
            continue
        step = STEPS[number - 1]
        print(f"Step {number}: {title}\n")
        told(before)
        print("\n".join(difference(step, ".py" if options.python else ".cpp")), end="\n\n")
        run(step, options)
        if options.world_size != 2 and step != STEPS[0]:
            print("What follows is said of 2 ranks.\n")
        told(after)
    following = (options.step or len(STEPS)) + 1
    print(f"Next: ./lockstep {f'start {following}' if following <= len(STEPS) else 'run 01'}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `start | head` ends, as any command does
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except subprocess.TimeoutExpired:
        refuse(f"a step took longer than {DEADLINE_S} s, and was ended", DEADLINE)
    except OSError as error:
        refuse(str(error))
