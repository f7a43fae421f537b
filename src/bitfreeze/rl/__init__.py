"""Reinforcement learning: environments, PPO, and games as tasks of a stream."""

from .environments import Environments, Step, World, derived_seed
from .evaluation import at_random, by_policy, game_scores
from .games import Games, make_games
from .ppo import PPO, Settings, Update

__all__ = [
    "PPO",
    "Environments",
    "Games",
    "Settings",
    "Step",
    "Update",
    "World",
    "at_random",
    "by_policy",
    "derived_seed",
    "game_scores",
    "make_games",
]
