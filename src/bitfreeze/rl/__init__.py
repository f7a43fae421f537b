"""Reinforcement learning: environments, PPO, and games as tasks of a stream."""
