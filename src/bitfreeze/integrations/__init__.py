"""BLIP as plug-ins of other libraries, one module for each, imported by name because it needs that library's extra.

Public: ``avalanche.BLIPPlugin`` and ``avalanche.backbone``, ``lightning.BLIPCallback``,
``transformers.BLIPCallback``, ``transformers.likelihood`` and ``transformers.own_text``, ``peft.hold_adapters``,
``stable_baselines3.BLIPCallback``, ``state_file.save_state`` and ``state_file.load_state``.
"""
