"""What sessions tell, as text and as HTML."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest
from conftest import DEVICES, double, model
from onnx import helper

import onepool


class Cells(HTMLParser):
    """The texts of a table's cells, by row; tags that are not closed in order fail."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_verdicts(session: onepool.Session) -> None:
    verdicts = session.run({"x": np.ones((2, 3), np.float32)}).verdicts
    assert [row.tensor for row in verdicts] == ["x", "y"]
    assert [row.access for row in verdicts] == ["read", "write"]
    assert verdicts[0].path == "host" and verdicts[0].bytes == 24 and verdicts[0].reason
    lines = str(verdicts).splitlines()
    assert lines[0].split() == list(onepool.Verdict._fields) and len(lines) == 3
    assert repr(verdicts) == str(verdicts) and len(verdicts[:1]) == 1
    rows = Cells(verdicts._repr_html_()).rows
    assert rows[0] == list(onepool.Verdict._fields) and rows[1][:3] == ["x", "host", "read"]


def test_html_is_escaped() -> None:
    name = "<b>&x"
    made = model([helper.make_node("Relu", [name], ["y"])], {name: (1, [2])}, {"y": (1, [2])})
    with onepool.Session(made, device="cpu").bind({name: np.ones(2, np.float32)}) as binding:
        html = binding.verdicts._repr_html_()
        assert "<b>" not in html and Cells(html).rows[1][0] == name


def test_plans_and_profiles(device: str) -> None:
    binding = onepool.Session(double(), device=device).bind({"x": np.ones((64, 64), np.float32)})
    plan = binding.plan
    assert [node.op for node in plan] == ["Add"] and plan.report["graph_nodes"] == 1
    assert "1 nodes of the model" in str(plan) and Cells(plan._repr_html_()).rows[1][1] == "Add"
    profile = binding.profile()
    assert "us in all" in str(profile) and profile.report["host_nanos"] > 0
    assert Cells(profile._repr_html_()).rows[0] == list(profile.columns)


def test_devices() -> None:
    devices = onepool.devices()
    selectors = [device.selector.partition(":")[0] for device in devices]
    assert set(DEVICES) <= set(selectors)
    assert "cpu:0" in str(devices) and Cells(devices._repr_html_()).rows
    usable = [device for device in devices if not device.unusable and device.selector.startswith("sim")]
    assert usable
    onepool.Session(double(), device=usable[0].selector).close()


def test_reports_have_all_of_it(session: onepool.Session) -> None:
    binding = session.bind({"x": np.ones((2, 3), np.float32)})
    assert {"nodes", "arenas", "crossings", "cost"} <= set(binding.plan.report)
    assert {"nodes", "segments", "bytes_moved"} <= set(binding.profile().report)
    assert isinstance(onepool.devices().report, list)
    with pytest.raises(AttributeError):
        binding.verdicts.report  # type: ignore[attr-defined]
