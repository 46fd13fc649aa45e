"""A node's GPUs, simulated by CUDA's rules, one for each of its ranks. Training runs on the CPU."""

import os


class Cuda:
    """What a process calls in torch.cuda."""

    def __init__(self):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it is about this machine's GPUs, not about those
        self.current = 0  # until it is set
        self.held = set()  # the GPUs on which this process has memory

    def _shown(self):
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        return range(int(os.environ["LOCAL_WORLD_SIZE"])) if shown is None else [int(each) for each in shown.split(",")]

    def device_count(self):
        return len(self._shown())

    def set_device(self, index):
        if not 0 <= index < self.device_count():
            raise RuntimeError("CUDA error: invalid device ordinal")
        self.current = index

    def synchronize(self):
        """Makes a context on the current device, which takes memory until the end, as any call does that names none."""
        self.held.add(f"node {os.environ.get('GROUP_RANK', 0)}, GPU {self._shown()[self.current]}")
