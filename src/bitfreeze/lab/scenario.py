"""Scenarios: what a network is told of the task at test time, and which classes it chooses from."""

from typing import Literal

# a head for each task; one head for all tasks; one head that grows by the classes of each task
Scenario = Literal["task", "domain", "class"]
