"""Likelihoods p(y|x) of a network's output: classes, yes/no labels, real targets, or several outputs at once.

The Fisher information is the mean over samples of the squared gradient of log p(y|x). To compute it, a likelihood has

* ``sample(noise)``: labels drawn from the model. Uniform noise of shape ``noise_shape`` determines them, so a draw does
  not depend on the batch size;
* ``log_prob(labels)``: log p(y|x) of each sample, summed over the sample's positions and outputs;
* ``unlikely()``: labels that the model does not expect, to check rules with;
* ``support(k)`` for k < ``support_size``: scores whose squared gradients add up to the expectation over all labels.

The first axis of every tensor is the sample (n). Class scores lie on the last axis (c).
"""

from .bernoulli import Bernoulli
from .categorical import Categorical
from .gaussian import Gaussian
from .likelihood import Likelihood
from .product import Product

__all__ = ["Bernoulli", "Categorical", "Gaussian", "Likelihood", "Product"]
