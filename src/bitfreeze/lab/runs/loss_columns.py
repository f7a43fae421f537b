"""Columns of tables of runs of language models, whose figures are losses in nats a token."""

from statistics import mean

from .columns import IDENTITY, ORIGIN, SECONDS, SIZES, Column, EndedRun, capacity, mean_of, network_words, spread_of
from .events import LossResult

PREFACE = """\
Loss in nats a token on text that is kept for testing, mean ± standard deviation over seeds; less is better. Mean: over
the base and all texts after the last task. Base: the text that the pretrained model was made of, after the last task.
Rise: how much more that is than before the first. New: each new text when it was learned. The columns of texts are
losses after the last task. Seconds: wall time on one core, other work beside it.
"""


def _rise(run: EndedRun[LossResult]) -> float:
    return run.result.final[0] - run.result.after_learning[0]


def _new(run: EndedRun[LossResult]) -> float | None:
    return mean(run.result.after_learning[1:]) if len(run.result.final) > 1 else None


def protocol(run: EndedRun[LossResult]) -> str:
    training, stream = run.config["training"], run.config["stream_options"]
    optimizer = {"adamw": "AdamW", "sgd": "SGD"}[training["optimizer"]]
    return (
        f"{optimizer} lr {training['lr']:g}, batch {training['batch']}, {training['epochs']} epochs of "
        f"{stream.get('train')} windows of {stream.get('length')} tokens a task; {network_words(run.config['network'])}"
    )


COLUMNS: tuple[Column[LossResult], ...] = (
    *IDENTITY,
    Column("loss", lambda run: mean(run.result.final), summary=("mean", spread_of(".3f"))),
    Column("base", lambda run: run.result.final[0], summary=("base", spread_of(".3f"))),
    Column("base_rise", _rise, summary=("rise", spread_of(".3f"))),
    Column("new", _new, summary=("new", spread_of(".3f"))),
    Column("final", lambda run: run.result.final, summary=("", mean_of(".2f")), by_task=True),
    Column("learned", lambda run: run.result.after_learning, by_task=True),
    Column("before", lambda run: run.result.before, by_task=True),
    capacity(mean_of(".0%")),
    *SIZES,
    SECONDS,
    Column("protocol", protocol, text=True),
    *ORIGIN,
)
