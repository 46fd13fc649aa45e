"""What counts as naming a fault: for each slug, words of which one must be in a message.

PyTorch's means know no slugs. The list was written before any of their output was read, with every wording that
would tell a reader the kind of the fault, and is generous: "failed to pass monitoredBarrier" is taken for the name of
everything that keeps a rank away, a mismatch of any two collectives for the name of a conditional one. What is added
after reading output may only widen it; so far "reached monitoredBarrier, but", "missed FR dumps" of a rank that died,
and "did not receive grad" of a frozen parameter.
"""

import re

# A rank is away, and the message says which or how many.
AWAY = (r"failed to pass monitoredBarrier|reached monitoredBarrier, but|not all ranks join|missing ranks|"
        r"did not (join|call|enter|reach)")
WRITERS = r"(several|concurrent|many) (writers|processes)|corrupt|"
OTHER_CALL = r"mismatch between collectives|COLLECTIVE_TYPE_MISMATCH|different (collective|operation)s?"
AVERAGE = r"averag|divided|divide by|gradients? .*scale"
SAMPLER = r"sampler|shard|duplicat|same (data|samples)"

WORDS = {
    "gradients-not-zeroed": r"zero_grad|accumulated|not zeroed",
    "no-initial-broadcast": r"same (model|parameters|weights)|parameters? .*(differ|not match)|not in sync",
    "no-gradient-sync": r"gradients? .*not .*(sync|reduc)|parameters? .*(differ|diverge)",
    "forward-bypasses-wrapper": r"gradients? .*not .*(sync|reduc)|wrapper|forward of the module|parameters? .*diverge",
    "sum-not-mean": AVERAGE,
    "double-average": AVERAGE,
    "parameters-differ-across-ranks": r"same model|appears not to match|parameters? .*(shape|size|number)|inconsistent",
    "dataset-unseeded": r"data ?sets? .*differ|seed",
    "no-sharding": SAMPLER,
    "sharded-twice": SAMPLER,
    "evaluation-padding": r"padd|" + SAMPLER,
    "shuffled-evaluation": r"shuffl",
    "missing-set-epoch": r"set_epoch|same order",
    "epoch-differs-by-rank": r"epochs? .*differ|set_epoch",
    "local-batch-norm": r"batch ?norm",
    "buffers-not-synced": r"buffer",
    "train-mode-differs-across-ranks": r"train(ing)? mode|eval\b|evaluation mode",
    "module-prefix": r"(missing|unexpected) key",
    "optimizer-state-missing": r"optimizer('s)? state",
    "resume-repeats-epoch": r"epoch",
    "lr-not-scaled": r"learning rate",
    "scheduler-stepped-per-rank": r"scheduler",
    "rank-conditional-collective": AWAY + "|" + OTHER_CALL + r"|SIZE_OR_SYNTAX_MISMATCH",
    "local-early-stop": AWAY,
    "evaluation-through-wrapper-on-one-rank": AWAY + "|" + OTHER_CALL + r"|SIZE_OR_SYNTAX_MISMATCH",
    "shape-mismatch": r"shapes?\b|sizes? (mismatch|differ)|SIZE_OR_SYNTAX_MISMATCH|length|mismatch between collectives",
    "dtype-mismatch": r"d-?type|data ?type|mismatch between collectives",
    "order-mismatch": OTHER_CALL + r"|out of order|order of",
    "reduce-op-mismatch": r"reduce_?op|mismatch between collectives",
    "root-mismatch": r"\broots?\b|\bsrc\b|source rank|mismatch between collectives",
    "rank-skips-init": r"clients? joined|wait(ing)? for clients|not .*initialized|" + AWAY,
    "subgroup-created-by-members-only": r"new_group|sub-?group|store_based_barrier|" + AWAY,
    "peer-dies": r"SIGKILL|signal 9|killed|died|missed FR dumps",
    "one-rank-raises": r"a damaged sample",
    "slow-rank": r"\bslow|\blate\b|straggl|in time|" + AWAY,
    "rank-zero-long-work": r"\bslow|\blate\b|straggl|in time|" + AWAY,
    "uneven-batches": r"uneven|" + AWAY,
    "mean-of-local-means": r"uneven|unequal|weight(ed)? by|" + AVERAGE,
    "sync-every-microbatch": r"no_sync",
    "accumulation-not-divided": r"accumulat|" + AVERAGE,
    "accumulation-off-by-one": r"accumulat",
    "clip-before-unscale": r"unscale",
    "clip-before-reduction": r"clip",
    "unused-parameter": r"not used in producing|unused parameter|did not receive grad",
    "parameter-ready-twice": r"ready (only once|twice)",
    "frozen-after-wrapping": r"requires_grad|frozen|freez|did not receive grad",
    "optimizer-built-on-other-parameters": r"optimizer .*parameter",
    "zero-grad-on-bucket-view": r"detach views? in-?place|view of .*bucket",
    "same-augmentation-everywhere": r"seed|random",
    "rank-zero-metric": r"metric|accuracy",
    "local-hits-global-count": r"metric|accuracy",
    "set-epoch-on-copy": r"set_epoch|same order",
    "epoch-set-after-prefetch": r"set_epoch|prefetch",
    "tail-never-seen": r"never (seen|drawn)|left out|" + SAMPLER,
    "file-order-differs": r"order of|files? .*(order|differ)|" + SAMPLER,
    "empty-shard": r"drop_last|empty|no batch",
    "evaluation-in-train-mode": r"train(ing)? mode|eval\b|evaluation mode",
    "sync-bn-after-wrapping": r"batch ?norm|parameters? .*(diverge|differ|after)|not .*(sync|reduc)",
    "unequal-counts-in-sync": r"batch ?norm|unequal|weight(ed)? by|" + AVERAGE,
    "buffer-sync-inside-backward": r"buffer",
    "ema-on-one-rank": r"averaged (model|weights)|\bema\b|moving average",
    "resume-mid-epoch-replays": r"epoch|resum",
    "scheduler-or-rng-state-missing": r"scheduler('s)? state|scheduler",
    "torn-checkpoint": r"central directory|zip archive|truncated|corrupt|unexpected EOF|not whole",
    "read-before-written": r"checkpoint|parameters? .*(differ|not match)|not in sync",
    "linear-rule-with-adam": r"learning rate",
    "no-warmup": r"warm-?up|learning rate",
    "schedule-length-ignores-world-size": r"scheduler?\b|learning rate",
    "schedule-unit-mismatch": r"scheduler?\b|learning rate",
    "async-work-not-waited": r"\bwait(ed)?\(?\)? .*(work|result)|not waited|async",
    "every-rank-prepares-data": r"download|prepar|written by|truncated|corrupt",
    "group-never-destroyed": r"destroy_process_group|TCPStore|store .*(closed|gone|shut)",
    "silent-single-process": r"single process|world size (of )?1|not initialized",
    "spawn-under-launcher": r"EADDRINUSE|address already in use|spawn|twice",
    "thread-oversubscription": r"threads?\b|OMP_NUM_THREADS",
    "last-accumulation-window-lost": r"accumulat",
    "mean-of-microbatch-means": r"unequal|accumulat|weight(ed)? by|" + AVERAGE,
    "no-sync-around-backward-only": r"no_sync",
    "local-overflow-skip": r"overflow|not finite|skip|\binf\b|\bnan\b",
    "low-precision-reduction": r"overflow|precision|float16|\bhalf\b|\binf\b",
    "norm-reduced-twice": r"clip|norm\b",
    "worker-streams-copied": r"worker|seed|random",
    "restart-without-resume": r"checkpoint|resum|restart",
    "gather-loses-graph": r"autograd|does not require grad|graph",
    "loss-all-reduced-in-place": r"autograd|in-?place",
    "shards-overlap": r"seed|overlap|" + SAMPLER,
    "stream-not-sharded": r"IterableDataset|worker|" + SAMPLER,
    "padding-overruns": r"out of (range|bounds)|padd|" + SAMPLER,
    "concurrent-writers": WRITERS + r"every rank (saves|writes)|No such file .*\.pt",
    "local-rank-zero-writes": WRITERS + r"LOCAL_RANK|No such file .*checkpoint",
    "rank-as-device-index": r"invalid device ordinal|LOCAL_RANK",
    "world-size-from-device-count": r"device_count|" + SAMPLER,
    "visible-devices-remapped": r"invalid device ordinal|CUDA_VISIBLE_DEVICES",
    "duplicate-gpu": r"duplicate gpu|same (gpu|device)",
    "device-not-set": r"set_device|current (device|context)|Guessing device",
    "fixed-port": r"EADDRINUSE|address already in use",
    "wrong-network-interface": r"interface|connection refused|timed? ?out .*connect|failed to connect|clients? joined|"
                               r"wait(ing)? for clients",
    "restart-expected-by-default": r"max[_ -]restarts?|restarts? (left|remaining)|not restarted",
    "communicator-order": OTHER_CALL + r"|out of order|order of|SIZE_OR_SYNTAX_MISMATCH|" + AWAY,
    "small-shared-memory": r"shared memory|shm\b|No space left|bus error",
}
NAMES = {slug: re.compile(words, re.IGNORECASE) for slug, words in WORDS.items()}

# What our detectors say where no pitfall fits, for programs whose faults are no pitfall (tests/arena). Also written before
# anything was read.
GENERIC = {
    "collective-mismatch": OTHER_CALL + r"|SIZE_OR_SYNTAX_MISMATCH|sizes? (mismatch|differ)|" + AWAY,
    "configuration-differs": r"(configuration|settings?|options?|hyper-?parameters?) .*differ",
    "gradient-not-the-mean": r"gradients? .*(differ|not .*(sync|reduc))|" + AVERAGE,
    "inputs-differ": r"(inputs?|batch(es)?|data|samples) .*differ",
    "loss-weight-differs": r"weights? .*loss|loss .*weight",
    "no-progress": r"timed? ?out|\bhang|" + AWAY,
    "optimizer-differs": r"optimizers? .*differ|(learning rates?|momentum|weight decay) .*differ",
    "replicas-diverged": r"parameters? .*(differ|diverge|not match)|not in sync",
    "update-differs": r"updates? .*differ|parameters? .*(differ|diverge|not match)|not in sync",
}
