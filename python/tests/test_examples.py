"""The programs of docs/PYTHON.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_denoise(device: str) -> None:
    program, model = ROOT / "python/examples/denoise.py", ROOT / "models/denoise.onnx"
    done = subprocess.run([sys.executable, program, model, device], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert 0 < float(lines[0]) < 0.1, "less noise than there was"
    values = [float(line) for line in lines[1:4]]
    assert values == sorted(values) and len(set(values)) == 3
    assert lines[-1] == "0 bytes copied by the CPU in each run"


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_frames(device: str) -> None:
    program, model = ROOT / "python/examples/frames.py", ROOT / "models/denoise.onnx"
    done = subprocess.run([sys.executable, program, model, device], capture_output=True, text=True, check=True)
    *pixel, copied = done.stdout.replace("[", " ").replace("]", " ").split()
    blue, green, red, alpha = map(int, pixel)
    assert max(abs(channel - 8) for channel in (blue, green, red)) <= 6 and alpha == 255 and copied == "0"


def test_generate() -> None:
    program, model = ROOT / "python/examples/generate.py", ROOT / "models/tiny_llm/fixed"
    done = subprocess.run([sys.executable, program, model, "cpu", "Hello"], capture_output=True, text=True, check=True)
    assert len(done.stdout) > 5 and "tokens/s" in done.stderr


def test_batch() -> None:
    program, model = ROOT / "python/examples/batch.py", ROOT / "models/tiny_llm/fixed"
    command = [sys.executable, program, model, "cpu", "Hello", "Again", "a"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = sorted(done.stdout.splitlines())
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert all(re.fullmatch("[0-9] [a-z]{3} [0-9]+ (length|end)", line) for line in lines)
