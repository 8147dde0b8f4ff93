"""Tests that share a federation must run in one process, so that it is started once."""

import pytest


@pytest.mark.xdist_group("alone")
def test_xdist_keeps_groups_together(request):
    if request.config.getoption("loadgroup", default=False):  # a worker of xdist
        assert request.node.nodeid.endswith("@alone"), "xdist ignores groups with this version of pytest"
