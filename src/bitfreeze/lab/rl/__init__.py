"""Reinforcement learning: environments, PPO, and games as tasks of a stream."""

from .environments import Environments, Step, derived_seed
from .evaluation import at_random, by_policy, game_scores
from .game_spec import GameSpec
from .games import Games, make_games
from .ppo import PPO, Settings, Update

__all__ = [
    "PPO",
    "Environments",
    "GameSpec",
    "Games",
    "Settings",
    "Step",
    "Update",
    "at_random",
    "by_policy",
    "derived_seed",
    "game_scores",
    "make_games",
]
