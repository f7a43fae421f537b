"""Command lines of all kinds: none ends in a traceback."""

import os
import sys

from bitfreeze.lab.cli.main import main
from torture.attacks import WRONG, Outcomes, Setting, attack
from torture.small_runs import FAILED, in_child

NUMBERS = [
    "0", "1", "-1", "1e300", "-1e300", "1e-300", "nan", "inf", "0x10", "1_0", "1" + "0" * 20, "9" * 5000, "٣", "", " ",
    "none", "true", "[]", "[8]", "[1000000000]", "[" * 5000 + "]" * 5000, "{}", "'", '"', "\x00", "é", "1.5", "2,3",
    "a" * 300,
]  # fmt: skip
SETTINGS = [
    "training.epochs", "training.lr", "training.batch", "training.patience", "training.valid_batch", "network.hidden",
    "network.kind", "method.tolerance", "method.prior", "method.budget", "method.rules", "method.bits",
    "method.strongest",
    "method.strength", "method.samples", "stream.seed", "stream.tuning", "stream.envs", "training", "x.y",
    "method.", ".",
]  # fmt: skip
WORDS = [
    "digits5",
    "mnist5",
    "control",
    "nothing",
    "../..",
    "digits5/blip/seed0",
    "",
    "-",
    "/",
    "*",
    "\u202e",
    "%s",
    "~",
]
METHODS = ["blip", "ft", "ewc", "hat", "acl", "blip:released", "x", "", ","]
SEEDS = ["0", "0-1", "0-99999999999", "1-0", "a", "0,0", "-1", "²", "0-", "1_0"]


def command_line(setting: Setting) -> list[str]:
    rng = setting.rng
    changes = [f"{rng.choice(SETTINGS)}={rng.choice(NUMBERS)}" for _ in range(rng.choice((0, 1, 1, 2)))]
    small = ["training.epochs=1", "network.hidden=[4]"]
    changes += [each for each in small if each.split("=")[0] not in " ".join(changes)]
    place = rng.choice(["digits5", "digits5", *WORDS])
    kind = rng.randrange(10)
    if kind < 5:
        words = ["run", place, "--method", rng.choice(["blip", "ft", *METHODS]), "--set", *changes]
        words += rng.choice([[], ["--seed", rng.choice(NUMBERS)], ["--threads", rng.choice(NUMBERS)]])
        words += rng.choice([[], ["--checkpoint-seconds", rng.choice(NUMBERS)], ["--variant", rng.choice(METHODS)]])
    elif kind == 5:
        # always refused before a run starts, because a sweep's processes take seconds each
        words = ["sweep", place, "--methods", rng.choice(METHODS), "--seeds", rng.choice(SEEDS), "--workers", "0"]
    elif kind == 6:
        words = ["table", place, *rng.choice([[], ["--against", rng.choice(METHODS)], ["--only", rng.choice(WORDS)]])]
    elif kind == 7:
        words = [
            rng.choice(["show", "play"]),
            place,
            *rng.choice([[], ["--task", "1", "--after", rng.choice(NUMBERS)]]),
        ]
    elif kind == 8:
        words = [
            "figure",
            rng.choice(["matrix", "sequence", "x", ""]),
            *rng.choice([[], [place]]),
            "--out",
            str(setting.folder / "figures"),
        ]
    else:
        words = rng.choice(
            [
                ["list"],
                ["data", "list"],
                ["data", "get", place],
                ["report", place, "--out", str(setting.folder)],
                [place],
            ]
        )
    return [word for word in words if "\x00" not in word]


@attack("commands", short=15, long=2_000)
def type_in(setting: Setting, found: Outcomes) -> None:
    """a command line with odd words, numbers and settings"""
    said = setting.folder / "said"
    for _ in setting.turns():
        words = command_line(setting)

        def act(typed: list[str] = words) -> None:
            os.environ["BITFREEZE_RUNS"] = str(setting.folder / "runs")
            os.environ["BITFREEZE_DATA"] = str(setting.folder / "data")
            os.environ["http_proxy"] = os.environ["https_proxy"] = "http://127.0.0.1:9"  # nothing is downloaded
            sys.argv = ["bitfreeze", *typed]
            try:
                main()
            except SystemExit as end:
                print(end.code if isinstance(end.code, str) else "")
                os._exit(2 if end.code else 0)

        code = in_child(act, said)
        text = said.read_text(errors="replace")
        cause = f"{' '.join(words)[:300]}: {text[-300:]}"
        if code == FAILED or "Traceback" in text:
            found.note(f"{WRONG}, a traceback", cause)
        elif code not in (0, 2):
            found.note(f"{WRONG} end {code}", cause)
        else:
            found.note("done" if code == 0 else "one sentence")
