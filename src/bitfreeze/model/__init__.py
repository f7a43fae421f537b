"""Internal: the parameters of a model, the shards that hold them, and the ranks that train them together.

Nothing here is public: use ``bitfreeze.BLIP`` and ``bitfreeze.diagonal_fisher``.
"""
