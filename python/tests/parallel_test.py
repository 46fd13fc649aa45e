"""What is told of models of which each rank holds a part, in one process; a stand-in takes the recorder's place.

usage: python3 parallel_test.py PACKAGE      the folder that holds lockstep_torch, for PYTHONPATH
"""

import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

import package

sys.path.insert(0, str(package.FOLDER))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from lockstep_torch import hooks, parallel, recording


class Parallel(unittest.TestCase):
    def setUp(self):
        hooks.watch("unused")
        self.here = recording.recording = recording.Recording("unused")
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(folder.cleanup)
        told = {"step.return_value": 0, "folder.return_value": pathlib.Path(folder.name)}
        self.rank = unittest.mock.Mock(**told)
        extension = unittest.mock.Mock(**{"Rank.return_value": self.rank})
        for module in (recording, hooks.training):
            patch = unittest.mock.patch.object(module, "extension", return_value=extension)
            patch.start()
            self.addCleanup(patch.stop)
        self.here.begin(0, 2)

    def part(self):
        with unittest.mock.patch.object(recording, "recording", None):
            dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
            self.addCleanup(dist.destroy_process_group)
            mesh = init_device_mesh("cpu", (1,))
        return torch.nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))

    def test_a_part_s_values_are_never_handed_over(self):
        part = self.part()
        self.assertTrue(parallel.is_part(part))
        optimizer = torch.optim.SGD([part, torch.nn.Parameter(torch.ones(2))], lr=0.1)
        (part.sum() * 2).backward()
        torch.nn.utils.clip_grad_norm_([part], 1.0)
        optimizer.step()
        self.rank.sharded.assert_called_once_with("tensor_parallel")
        for call in self.rank.mock_calls:
            self.assertFalse(any(isinstance(argument, DTensor) for argument in call.args), call)
        self.rank.update_ended.assert_called_once()

    def test_what_is_added_to_a_module_in_parts_is_whole_and_what_fsdp_left_alone_is_not_told(self):
        net = torch.nn.Linear(2, 4)
        net.weight = self.part()
        parallel.took_over(self.here, [net], [net.weight])
        net.low, beside = torch.nn.Linear(2, 1), torch.nn.Parameter(torch.ones(1))
        told = parallel.whole(self.here, [*net.parameters(), beside])
        self.assertEqual([id(each) for each in told], [id(net.low.weight), id(net.low.bias)])

    def test_whole_tensors_of_whatever_class_are_no_parts(self):
        class Named(torch.Tensor):
            pass
        for whole in (torch.ones(1), torch.nn.Parameter(torch.ones(1)), torch.nn.Buffer(torch.ones(1)),
                      torch.ones(1).as_subclass(Named), None, 1):
            self.assertFalse(parallel.is_part(whole))

    def test_the_first_group_of_replicas_counts(self):
        parallel.replicas(self.here, None, [0, 2])
        parallel.replicas(self.here, None, [0, 1])
        self.rank.group.assert_called_once_with("replicas", "", [0, 2])

    def test_deepspeed_is_known_where_it_is_imported(self):
        class DeepSpeedEngine:
            def __init__(self, model):
                self.model = model
        module = types.SimpleNamespace(DeepSpeedEngine=DeepSpeedEngine)
        with unittest.mock.patch.dict(sys.modules, {"deepspeed.runtime.engine": module}):
            parallel.find_engines()
        self.assertEqual(DeepSpeedEngine(model=3).model, 3)
        self.rank.sharded.assert_called_once_with("deepspeed")


if __name__ == "__main__":
    unittest.main()
