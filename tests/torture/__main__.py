"""Carry out attacks and print what came of them: ``python -m torture --help``."""

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

from torture.all import ATTACKS


def main() -> None:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"attacks, of {', '.join(ATTACKS)}; default: all")
    parser.add_argument("--rounds", type=int, help="of each attack; default: those of the attack's long form")
    parser.add_argument("--times", type=float, default=1.0, help="factor on the rounds of the long form")
    parser.add_argument("--short", action="store_true", help="the short form, as in make test")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which an attack ends early")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in ATTACKS]
    if unknown:
        parser.error(f"there is no attack {unknown[0]!r}; there are {', '.join(ATTACKS)}")
    wrong = 0
    print("| attack | rounds | outcomes | s |\n| --- | --- | --- | --- |", flush=True)
    for name in given.names or ATTACKS:
        chosen = ATTACKS[name]
        rounds = given.rounds or (chosen.short if given.short else max(1, round(given.times * chosen.long)))
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            found = chosen.run(rounds, Path(folder) / "here", given.seed, 60 * given.minutes)
        done, rounds = sum(found.counts.values()), min(rounds, found.most or rounds)
        print(
            f"| {name}: {chosen.what} | {done:,} of {rounds:,} | {found} | {time.monotonic() - started:.0f} |",
            flush=True,
        )
        for line in found.wrong[:20]:
            print(f"  {name}: {line}", file=sys.stderr)
        wrong += len(found.wrong)
    sys.exit(f"{wrong} wrong outcomes" if wrong else 0)


if __name__ == "__main__":
    main()
