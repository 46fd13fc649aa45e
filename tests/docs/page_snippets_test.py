"""The Python code of the pages runs, in a job of two ranks that goes right: no line raises, no assertion fails, and what is
printed is what the page says of a right job.

usage: page_snippets_test.py [BUILD]      as a rank: page_snippets_test.py --rank RANK FOLDER
"""

import ast
import contextlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

sys.dont_write_bytecode = True
import page_python  # noqa: E402

RANKS = 2
DEADLINE_S, TIMEOUT_S = 600, 60
# What the page says has happened before.
BEFORE = {
    "costs": "step = lambda: None",
    "gradients-not-zeroed": "optimizer.zero_grad()",
    "evaluation-in-train-mode": "model.eval(); features = 8",
    "stream-not-sharded": "loader = [torch.arange(rank, N, world_size)]",
    "scheduler-stepped-per-rank": "scheduler.step(); n = 1",
    "ema-on-one-rank": "update_parameters = torch.optim.swa_utils.AveragedModel(module).update_parameters",
    "module-prefix": "state = state['model']; load_state_dict = module.load_state_dict",
    "optimizer-state-on-wrong-device": "state = state['optimizer']",
    "resume-mid-epoch-replays": "count = 16",
    "mean-of-local-means": "targets = targets[:n]; n = torch.tensor(n)",
    "optimizer-built-on-other-parameters": "layer = torch.nn.Linear(2, 2)",
    "parameter-ready-twice": "first, second = module(inputs).sum(), module(inputs).mean()",
    "no-sync-around-backward-only": "optimizer.zero_grad()\nwith ddp.no_sync(): ddp(inputs[rank:rank + 4]).square().sum().backward()\n"
                                    "loss = module.loss(inputs)",
    "no-warmup": "warmup = LinearLR(optimizer, start_factor=0.1, total_iters=n)",
    "scheduler-or-rng-state-missing": "dist.all_gather_object(states, torch.get_rng_state())",
    "worker-streams-copied": "torch.utils.data._utils.worker._worker_info = torch.utils.data._utils.worker.WorkerInfo("
                             "id=0, num_workers=1, seed=1, dataset=data)\nself = types.SimpleNamespace(epoch=0, rng=np.random.default_rng(0))",
}
# What a right job prints, on each rank.
ZEROS = r"\[0\.0, 0\.0\]"
PRINTS = {
    "double-average": r"tensor\(1\.(?:0000)?\)", "sum-not-mean": r"tensor\(1\.(?:0000)?\)",
    "accumulation-not-divided": r"tensor\(1\.(?:0000)?\)", "forward-bypasses-wrapper": ZEROS, "no-gradient-sync": ZEROS,
    "no-initial-broadcast": ZEROS, "no-sharding": r"1 64 64", "sharded-twice": "64", "shards-overlap": "64 64",
    "stream-not-sharded": "1 32", "uneven-batches": r"\[4, 4\]", "no-sync-around-backward-only": "False",
    "gather-loses-graph": r"\[True\]", "optimizer-built-on-other-parameters": r"\[\]", "odd-batch-split": r"\[3, 2\]",
    "missing-set-epoch": r"0 \[\d+(?:, \d+){9}\]", "replica-buffers-lost": r"\[\]", "norm-reduced-twice": r"[\d.]+",
    "local-hits-global-count": r"\{\(32\.0, 32\.0\)\}", "schedule-length-ignores-world-size": "0 of 0", "resume-mid-epoch-replays": r"Counter\(\{1: 32\}\)",
}
# A job has one group; `side` is a stream; what is told to watch is tested by python.tells.
ELSEWHERE = {"init_process_group", "destroy_process_group", "spawn", "side", "lockstep_torch"}
FULLY_SHARDED = "model.clip_grad_norm_"  # FSDP wants a GPU


def is_of_another_place(snippet, tree):
    """What wants a GPU, makes the group, or is abbreviated by dots. docs.page_names looks at all of these, too."""
    if FULLY_SHARDED in snippet.text:
        return True
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "cuda":
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match("cuda:|nccl", node.value):
            return True
        given = [*node.args, *(one.value for one in node.keywords)] if isinstance(node, ast.Call) else []
        if any(isinstance(one, ast.Constant) and one.value is ... for one in given):
            return True
        if isinstance(node, ast.keyword) and node.arg == "device_ids":
            return True
        if isinstance(node, (ast.Attribute, ast.Name)) and getattr(node, "attr", getattr(node, "id", "")) in ELSEWHERE:
            return True
    return "cuda" in snippet.text and "set_device" in snippet.text


def run_one(snippet, names):
    """What it prints; the exit of a program is one."""
    printed = io.StringIO()
    code = compile(page_python.tree_of(snippet), f"<{snippet.page.name}>", "exec")
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        exec(code, names)
    return printed.getvalue().strip()


def fresh(page, folder, made):
    """The names of a job, and what the page has made before."""
    names = {**made, **page_python.job(folder), "types": page_python.types}
    pathlib.Path(names["temporary"]).touch()
    exec(BEFORE.get(page.stem, ""), names)
    return names


def as_rank(rank, folder):
    """Runs all pages' code as one rank of the job; one line for each thing that went wrong, and the count."""
    torch.set_num_threads(1)
    os.environ.update(LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", store=dist.FileStore(os.path.join(folder, "store"), RANKS), rank=rank, world_size=RANKS,
                            timeout=timedelta(seconds=TIMEOUT_S))
    ran, page, made = 0, None, {}
    for snippet in page_python.snippets():
        if is_of_another_place(snippet, page_python.tree_of(snippet)):
            continue
        if snippet.page != page:
            page, made = snippet.page, {}
            torch.utils.data._utils.worker._worker_info = None
        names = fresh(page, folder, made)
        print(f"{rank}: {page.stem}: {' '.join(snippet.text.split())}", file=sys.stderr, flush=True)
        try:
            said = run_one(snippet, names)
        except Exception:
            print(f"WRONG {page.stem}: {snippet.text}\n{traceback.format_exc()[-600:]}", flush=True)
        else:
            ran += 1
            if snippet.kind == "block" and page.stem in PRINTS and not re.fullmatch(PRINTS[page.stem], said):
                print(f"WRONG {page.stem}: {snippet.text}\nprints {said!r}, not {PRINTS[page.stem]}", flush=True)
        names["file"].close()
        made = names if snippet.kind == "call" else made
        dist.barrier()
    print(f"RAN {ran}", flush=True)
    dist.destroy_process_group()


class Snippets(unittest.TestCase):
    def test_they_run_on_two_ranks(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-page-snippets-test-") as folder:
            ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), folder], stdout=subprocess.PIPE, cwd=folder,
                                      stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) for rank in range(RANKS)]
            try:
                told = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
        for out, err in told:
            wrong = "\n".join(line for line in out.splitlines() if not line.startswith("RAN"))
            self.assertEqual(wrong, "", err[-1500:])
            [count] = re.findall(r"^RAN (\d+)$", out, re.MULTILINE)
            self.assertGreater(int(count), 250, err[-1500:])

    def test_what_is_said_of_a_page_is_used(self):
        pages = {snippet.page.stem for snippet in page_python.snippets()}
        self.assertEqual(sorted((BEFORE.keys() | PRINTS.keys()) - pages), [])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        as_rank(int(sys.argv[2]), sys.argv[3])
    else:
        del sys.argv[1:2]
        unittest.main(verbosity=2)
