"""Ctrl-C during runs. A program of its own gets the signals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from conftest import conv

PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import onepool

session = onepool.Session(sys.argv[1], device=sys.argv[2], threads=1)
short, side, whole = np.ones((1, 8, 8, 8), np.float32), 32, 0.0
while whole < 1:
    long = np.ones((1, 8, side, side), np.float32)
    binding = session.bind({"x": long})
    began = time.monotonic()
    binding.run()
    whole = time.monotonic() - began
    side = side * 5 // 4
# These tell how much one submission takes.
binding.run(), binding.run()


def interrupts(run, number=signal.SIGINT):
    timer = threading.Timer(0.1, os.kill, (os.getpid(), number))
    timer.start()
    began = time.monotonic()
    try:
        run()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    else:
        print("over", flush=True)
    timer.join()
    return time.monotonic() - began


def again():
    results = session.run({"x": short})["y"]
    assert results.shape == short.shape and np.isfinite(results).all()


"""


def run(tmp_path: Path, rest: str, device: str = "cpu") -> list[str]:
    path = tmp_path / "conv.onnx"
    onnx.save(conv(), path)
    command = [sys.executable, "-c", PROGRAM + rest, str(path), device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_ctrl_c_ends_a_run(tmp_path: Path, device: str) -> None:
    rest = """
took = interrupts(lambda: [binding.run() for _ in range(1000)])
assert took < 3 * whole + 5, (took, whole)
again()
took = interrupts(lambda: [session.run({"x": long}) for _ in range(1000)])
assert took < 3 * whole + 5, (took, whole)
again()
binding.close()
"""
    assert run(tmp_path, rest, device) == ["interrupted", "interrupted"]


def test_the_run_itself_ends_early(tmp_path: Path) -> None:
    """One run that would take long: it ends well before."""
    rest = """
took = interrupts(binding.run)
again()
print(took < 0.9 * whole or (took, whole))
"""
    assert run(tmp_path, rest) == ["interrupted", "True"]


def test_other_handlers_run_and_the_run_goes_on(tmp_path: Path) -> None:
    rest = """
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(binding))
interrupts(binding.run, signal.SIGUSR1)
assert len(seen) == 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
interrupts(binding.run)
again()
"""
    assert run(tmp_path, rest) == ["over", "over"]


def test_runs_of_other_threads_go_on(tmp_path: Path) -> None:
    rest = """
done = []
thread = threading.Thread(target=lambda: done.append(binding.run()))
thread.start()
interrupts(lambda: time.sleep(60))
thread.join()
assert len(done) == 1
again()
"""
    assert run(tmp_path, rest) == ["interrupted"]




def test_ctrl_c_ends_a_run_that_is_awaited(tmp_path: Path) -> None:
    rest = """
import asyncio
interrupts(lambda: asyncio.run(session.run_async({"x": long})))
again()
"""
    assert run(tmp_path, rest) == ["interrupted"]
