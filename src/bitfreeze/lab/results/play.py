"""A game as a moving picture: the agent as it was after some task plays any task."""

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..methods import make_method
from ..nets import build_network
from ..rl import Settings, by_policy, derived_seed, make_games
from ..runs.config import Config, make_config
from ..runs.errors import RunDamaged
from ..runs.folder import RunFolder

Picture = NDArray[np.uint8]


def play_game(
    folder: RunFolder, task: int, after: int, out: Path, seed: int = 0, allowed: Collection[str] = ()
) -> float:
    """Write a game of ``task`` by the agent as it was after ``after`` tasks (both count from 1); returns its score.

    ``allowed`` are ids of environments that may import a module of their own.
    """
    if seed < 0:
        raise ValueError(f"--seed must be 0 or more, got {seed}")
    saved = folder.read_config()
    require_known_environments(saved, allowed)
    config = as_it_was(saved)
    settings = config.settings
    if not isinstance(settings, Settings):
        raise ValueError(f"{folder.path} is no run of games: there is nothing to play")
    require_writable(out)
    games = make_games(config.stream, **config.stream_options)
    for what, number in (("task", task), ("after", after)):
        if not 1 <= number <= len(games.tasks):
            raise ValueError(f"--{what} must be from 1 to {len(games.tasks)}, the tasks of the run, got {number}")
    method = make_method(config.method, config.method_options)
    net = build_network(config.network, games.shape, [t.classes for t in games.tasks])
    weights = folder.read_tensors("weights", after - 1)
    try:
        method.build(net, games.tasks).load_state_dict(weights)
    except RuntimeError:
        raise RunDamaged(f"the weights in {folder.path} are those of another network: do the run again") from None
    chosen = games.tasks[task - 1]
    choose = by_policy(method, chosen, games.actions[task - 1], settings.greedy, seed)
    environments = games.specs[task - 1].make(1, pictures=True)
    seen, score = environments.reset(derived_seed(config.seed, 3, seed)), 0.0
    picture, over = environments.picture(), False
    pictures = [_with_score(picture, score)]
    while len(pictures) <= settings.game_steps and not over:
        step = environments.step(choose(seen))
        seen, score, over = step.seen, score + float(step.reward[0]), bool(step.over[0])
        picture = picture if over else environments.picture()  # after the last step the next game has begun
        pictures.append(_with_score(picture, score))
    environments.close()
    write_pictures(pictures, out)
    return score


def require_known_environments(saved: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Refuse environments whose id names a module, which Gymnasium would import: a run may be anybody's."""
    named = saved.get("stream_options", {}).get("envs", [])
    changed = [change for change in saved["changes"] if change.partition("=")[0].strip() == "stream.envs"]
    texts = [str(env) for env in named] if isinstance(named, list) else [str(named)]
    given = {env.partition("?")[0] for env in allowed}
    for env in texts:
        if ":" in env.partition("?")[0] and env.partition("?")[0] not in given:
            raise ValueError(
                f"the run names the environment {env!r}, which would run code of that module: add --envs "
                f"{env.partition('?')[0]} if you trust it"
            )
    for change in changed:
        for module in re.findall(r"[\w.]+:[\w./-]+", change.partition("=")[2]):
            if module not in given:
                raise ValueError(f"the run names the environment {module!r}: add --envs {module} if you trust it")


def as_it_was(saved: dict[str, Any]) -> Config:
    """The settings of a stored run: the preset may have changed since."""
    now = make_config(saved["stream"], saved["method"], saved["variant"], saved["seed"], saved["changes"])
    noted: dict[str, Any] = {
        part: {**getattr(now, part), **saved[part]} for part in ("stream_options", "network", "training")
    }
    return replace(now, **noted)


def _with_score(picture: Picture, score: float) -> Picture:
    """The score in a corner."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(picture)
    ImageDraw.Draw(image).text((4, 2), f"{score:g}", fill=(255, 255, 255), stroke_width=1, stroke_fill=(0, 0, 0))
    return np.asarray(image)


def require_writable(out: Path) -> None:
    if out.suffix not in WRITERS:
        raise ValueError(f"{out.name} is neither .gif nor .mp4")
    if out.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise ValueError("ffmpeg, which writes MP4, is not installed: give a name that ends in .gif")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise OSError(f"{out} cannot be written: give another place")


def write_pictures(pictures: Iterable[Picture], out: Path, rate: int = 15) -> None:
    """As GIF, or as MP4 where the name ends so and ffmpeg is there; ``rate`` pictures a second."""
    require_writable(out)
    WRITERS[out.suffix](list(pictures), out, rate)


def _write_gif(frames: list[Picture], out: Path, rate: int) -> None:
    from PIL import Image

    first, *others = (Image.fromarray(frame) for frame in frames)
    first.save(out, save_all=True, append_images=others, duration=1000 // rate, loop=0)


def _write_mp4(frames: list[Picture], out: Path, rate: int) -> None:
    height, width = frames[0].shape[:2]
    command: list[Any] = [
        "ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
        "-r", str(rate), "-i", "-", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", str(out),
    ]  # fmt: skip
    try:
        subprocess.run(command, input=b"".join(frame.tobytes() for frame in frames), check=True)
    except subprocess.CalledProcessError as error:
        raise OSError(f"ffmpeg could not write {out} (it ended with {error.returncode})") from None


WRITERS = {".gif": _write_gif, ".mp4": _write_mp4}
