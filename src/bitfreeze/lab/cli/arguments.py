"""Kinds of arguments that several commands take, and how their help names them. An empty default is not named."""

from typing import Annotated

import tyro

StreamName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STREAM")]
RunName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
RunNames = Annotated[tyro.conf.Positional[list[str]], tyro.conf.arg(metavar="[RUN ...]", help_behavior_hint="")]
Text = Annotated[str, tyro.conf.arg(help_behavior_hint="")]
Changes = Annotated[list[str], tyro.conf.arg(metavar="NAME=VALUE ...", help_behavior_hint="")]
