"""Makes what torch saves, for test_pickles.py:

.venv-bench/bin/python tests/models/torch_files/make.py tests/models/torch_files
"""

import collections
import sys
from pathlib import Path

import numpy as np
import torch

folder = Path(sys.argv[1])
torch.manual_seed(0)
table = torch.randn(4, 3)
module = torch.nn.Linear(3, 2)
state = collections.OrderedDict(module.state_dict(prefix="linear."))  # has _metadata
state._metadata = module.state_dict()._metadata
state["parameter"] = torch.nn.Parameter(torch.randn(2, 2))
state["table"], state["tied"] = table, table
state["turned"], state["part"] = table.T, table[1:, 1:]
state["half"], state["bfloat16"] = torch.randn(5).half(), torch.randn(5).bfloat16()
state["double"], state["empty"] = torch.randn(2).double(), torch.zeros(0, 3)
state["embeddings.position_ids"] = torch.arange(4)
torch.save(state, folder / "zip.bin")
torch.save(state, folder / "older.bin", _use_new_zipfile_serialization=False)
arrays = {name: tensor.detach().float().numpy() for name, tensor in state.items()}
np.savez(folder / "expected.npz", **arrays)
