"""Some of these libraries import torchvision, which beside a CPU build of torch needs its operators declared."""

from support.scripts import script

script("benchmarks/torchvision_operators").declare()
