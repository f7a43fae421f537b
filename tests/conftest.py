"""Settings that all tests share."""

import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, database=None, derandomize=True)
settings.load_profile("repeatable")
torch.set_num_threads(1)  # tests run side by side, and their tensors are small
