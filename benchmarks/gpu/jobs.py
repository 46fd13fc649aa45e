"""What is trained in each row of the step benchmark, by name: sizes, batch and optimizer. step.cpp reads them from its
command line, so that they stand here alone."""

# tiny: the same code in sizes that a CPU does in a second; for the test that both sides compute the same.
JOBS = {
    "mlp": {"model": "mlp", "sizes": [256], "batch": [64, 784], "classes": 10, "optimizer": "sgd", "steps": 300},
    "resnet50": {"model": "resnet", "sizes": [64, 3, 4, 6, 3], "batch": [64, 3, 224, 224], "classes": 1000,
                 "optimizer": "sgd", "steps": 10},
    "gpt2-124m": {"model": "gpt", "sizes": [12, 12, 768, 50257, 1024], "batch": [8, 1024], "classes": 50257,
                  "optimizer": "adamw", "steps": 10},
    "tiny-mlp": {"model": "mlp", "sizes": [32], "batch": [8, 784], "classes": 10, "optimizer": "sgd", "steps": 3},
    "tiny-resnet": {"model": "resnet", "sizes": [8, 1, 1, 1, 1], "batch": [4, 3, 32, 32], "classes": 1000,
                    "optimizer": "sgd", "steps": 3},
    "tiny-gpt": {"model": "gpt", "sizes": [2, 2, 32, 101, 16], "batch": [2, 16], "classes": 101, "optimizer": "adamw",
                 "steps": 3},
}


def words(job):
    """As step.cpp takes them: MODEL OPTIMIZER SIZES BATCH CLASSES."""
    return [job["model"], job["optimizer"], ",".join(map(str, job["sizes"])), ",".join(map(str, job["batch"])),
            str(job["classes"])]
