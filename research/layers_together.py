"""What a policy loses by the changes of each layer alone, and of all: `python research/layers_together.py RUN`.

RUN is a run of vectors and choices, such as `control`. The first game is played with the network that learned it. On
the states that come up, the KL divergence to the network after each later game is printed, with the layers of the
backbone changed one at a time and all at once, beside its quadratic part (exact, from the Jacobian). Where the layers
alone cost little and all together much, their changes act on each other, which no Fisher of single layers sees.
"""

import sys
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.func import functional_call, jvp

from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.results.play import as_it_was
from bitfreeze.lab.results.stored import StoredRun, find_runs
from bitfreeze.lab.rl import Games, derived_seed, make_games
from bitfreeze.lab.runs.folder import runs_root

COPIES, STEPS = 8, 250
Weights = dict[str, Tensor]


@torch.no_grad()
def states_of_first_game(net: MultiHead, games: Games, seed: int) -> Tensor:
    """States [n, features] that drawn actions of the first game's policy lead to."""
    environments, random = games.specs[0].make(COPIES), torch.Generator().manual_seed(seed)
    seen, states = environments.reset(seed), []
    for _ in range(STEPS):
        states.append(torch.from_numpy(seen).clone())
        action = games.actions[0].draw(net(states[-1], 0), random)
        seen = environments.step(action.numpy()).seen
    environments.close()
    return torch.cat(states)


def changed(before: Weights, after: Weights, layers: Iterable[str]) -> Weights:
    """The weights before, with those of some layers as they are after."""
    chosen = tuple(f"{layer}." for layer in layers)
    return {name: after[name] if name.startswith(chosen) else value for name, value in before.items()}


def divergence(net: MultiHead, before: Weights, after: Weights, states: Tensor) -> tuple[float, float]:
    """KL divergence a state of the first game's policy from ``before`` to ``after``, and its quadratic part."""
    change = {name: after[name] - value for name, value in before.items()}
    logits, tangent = jvp(lambda weights: functional_call(net, weights, (states, 0)), (before,), (change,))
    log_p = logits.log_softmax(-1)
    log_q = functional_call(net, after, (states, 0)).log_softmax(-1)
    centred = tangent - (log_p.exp() * tangent).sum(-1, keepdim=True)
    kl, quadratic = log_p.exp() * (log_p - log_q), 0.5 * log_p.exp() * centred.square()
    return kl.sum(-1).mean().item(), quadratic.sum(-1).mean().item()


def report(run: StoredRun) -> list[str]:
    """Lines of a table: a row for each later game, KL and its quadratic part for each set of layers."""
    config = as_it_was(run.config)
    games = make_games(config.stream, **config.stream_options)
    net = build_network(config.network, games.shape, [task.classes for task in games.tasks])
    weights = [run.folder.read_tensors("weights", task) for task in range(len(games.tasks))]
    net.load_state_dict(weights[0])
    states = states_of_first_game(net, games, derived_seed(run.config["seed"], 5))
    layers = sorted({name.rpartition(".")[0] for name in weights[0] if name.startswith("backbone.")})
    sets = {"all layers": layers, **{layer: [layer] for layer in layers}}
    lines = ["| after game | " + " | ".join(f"{name}: KL | quadratic" for name in sets) + " |"]
    lines.append("| --- |" + " --- |" * (2 * len(sets)))
    for game in range(1, len(games.tasks)):
        pairs = [
            divergence(net, weights[0], changed(weights[0], weights[game], some), states) for some in sets.values()
        ]
        lines.append(f"| {game + 1} | " + " | ".join(f"{kl:.2g} | {quadratic:.2g}" for kl, quadratic in pairs) + " |")
    return lines


def main() -> None:
    for run in find_runs(runs_root(), sys.argv[1:]):
        print(run.title, *report(run), sep="\n")


if __name__ == "__main__":
    main()
