"""Fixtures that the tests of BLIP share."""

import pytest

from support.protected_nets import GUARDS


@pytest.fixture(params=list(GUARDS))
def guard(request: pytest.FixtureRequest) -> str:
    """A name in GUARDS: the test is run for each."""
    return request.param
