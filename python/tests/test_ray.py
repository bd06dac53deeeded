"""python/examples/ray_batch.py on a Ray of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = 3 * 128 * 128 * 4
"""Bytes of the input in one row."""


@pytest.mark.parametrize(
    ("device", "copied", "reason"),
    [
        ("cpu", 0, "the device is the CPU"),
        ("sim:radv-phoenix-780m", ROW, "this driver imports only anonymous memory"),
    ],
)
def test_two_workers_read_pages_of_ray_in_place_or_copy_them_once(device: str, copied: int, reason: str) -> None:
    if os.environ.get("ONEPOOL_TEST_RAY") != "1":
        pytest.skip("Ray is large: scripts/test doors runs this")
    program, model = ROOT / "python/examples/ray_batch.py", ROOT / "models/denoise.onnx"
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "ONEPOOL_IMPORT_COSTS": "preset"}
    done = subprocess.run(
        [sys.executable, program, model, device, device],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **quiet},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    noise, _, row = done.stdout.splitlines()[-3:]
    before, after = (float(word) for word in noise.split()[-2:])
    assert after < before / 2
    assert row.split(maxsplit=4)[:4] == ["32", device, "plasma", str(copied)], row
    assert reason in row
