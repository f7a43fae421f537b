"""Which layers' intervals keep a game from being learned: `python research/held_layers.py RUN GAME STEPS [HELD ...]`.

From the network that a run of BLIP had before a game (counted from 1), that game is learned in so many steps with the
intervals of all layers held, of the convolutions or the linear layer only, or of none: HELD is all, convolutions,
linear or none. Printed are mean scores with standard errors, of twenty games afterwards and of those that training
ended with.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from statistics import mean, stdev

import torch
from torch import Tensor, nn

from bitfreeze.lab.methods.finetuning import FineTuning
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.results.play import as_it_was
from bitfreeze.lab.results.stored import StoredRun, find_runs
from bitfreeze.lab.rl import PPO, Games, Settings, by_policy, derived_seed, game_scores, make_games
from bitfreeze.lab.runs.folder import runs_root
from bitfreeze.lab.tasks import Task

HELD: dict[str, tuple[type[nn.Module], ...]] = {
    "all": (nn.Module,), "convolutions": (nn.Conv2d,), "linear": (nn.Linear,), "none": (),
}  # fmt: skip


class Holding(FineTuning):
    """Clamps into given intervals after each step, and freezes nothing."""

    intervals: list[tuple[Tensor, Tensor, Tensor]]

    @torch.no_grad()
    def after_step(self, task: Task) -> None:
        for parameter, low, high in self.intervals:
            parameter.clamp_(low, high)


def intervals_of(run: StoredRun, net: nn.Module, after: int, held: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each parameter that is held, and the ends of its interval after so many tasks."""
    assert run.bits is not None
    for name in run.bits.names:
        if isinstance(net.get_submodule(name.rpartition(".")[0]), HELD[held]):
            centre, radius = (torch.from_numpy(read(name, after - 1)) for read in (run.bits.centre, run.bits.radius))
            yield net.get_parameter(name), (centre - radius).float(), (centre + radius).float()


def prepared(run: StoredRun, game: int, held: str) -> tuple[Holding, Games, Settings]:
    """The network as it was before the game, and what is held of it."""
    config = as_it_was(run.config)
    games = make_games(config.stream, **config.stream_options)
    net = build_network(config.network, games.shape, [task.classes for task in games.tasks])
    net.load_state_dict(run.folder.read_tensors("weights", game - 2))
    method = Holding()
    method.build(net, games.tasks)
    method.intervals = list(intervals_of(run, net, game - 1, held))
    return method, games, config.settings


def learn(run: StoredRun, game: int, steps: int, held: str) -> tuple[list[float], list[float]]:
    """Scores of games played afterwards, and of those in the last quarter of training."""
    method, games, settings = prepared(run, game, held)
    task, spec, actions = games.tasks[game - 1], games.specs[game - 1], games.actions[game - 1]
    settings, seed = replace(settings, steps=steps), derived_seed(run.config["seed"], 4, game)
    environments = spec.make(settings.copies)
    training = []
    for update in PPO(method, task, environments, settings, seed).updates():
        training += update.scores if update.number > 3 * settings.updates / 4 else []
    environments.close()
    method.net.eval()
    choose = by_policy(method, task, actions, settings.greedy, seed)
    return game_scores(spec, choose, settings.final_games, settings.game_steps, seed), training


def with_error(scores: list[float]) -> str:
    return f"{mean(scores):.0f} ± {stdev(scores) / len(scores) ** 0.5:.0f} ({len(scores)} games)"


def main() -> None:
    place, game, steps, *held = sys.argv[1:]
    torch.set_num_threads(1)
    for run in find_runs(runs_root(), [place]):
        print(f"{run.title}, game {game}: {run.tasks[int(game) - 1]}, {steps} steps")
        for which in held or HELD:
            played, training = learn(run, int(game), int(steps), which)
            print(f"  {which} held: {with_error(played)}; in training {with_error(training)}", flush=True)


if __name__ == "__main__":
    main()
