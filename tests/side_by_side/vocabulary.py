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
    "gather-loses-graph": r"autograd|does not require grad|graph",
    "loss-all-reduced-in-place": r"autograd|in-?place",
}
NAMES = {slug: re.compile(words, re.IGNORECASE) for slug, words in WORDS.items()}
