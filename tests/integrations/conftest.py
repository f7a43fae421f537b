"""Some of these libraries import torchvision, which beside a CPU build of torch needs its operators declared."""

import torchvision_operators

torchvision_operators.declare()
