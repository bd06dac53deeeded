"""Runs that are awaited."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from conftest import conv

import onepool


def test_runs_are_awaited(session: onepool.Session) -> None:
    async def main() -> None:
        inputs = [np.full((2, 3), i, np.float32) for i in range(8)]
        results = await asyncio.gather(*(session.run_async({"x": x}) for x in inputs))
        for x, result in zip(inputs, results, strict=True):
            np.testing.assert_array_equal(result["y"], x * 2)
            assert result.verdicts.copied == 0
        binding = session.bind({"x": inputs[1]})
        assert ((await binding.run_async())["y"] == 2).all()
        with pytest.raises(TypeError, match='input "x"'):
            await session.run_async({"x": [1]})

    asyncio.run(main())


def test_cancelling_the_task_cancels_the_run() -> None:
    x = np.ones((1, 8, 512, 512), np.float32)
    session = onepool.Session(conv(), device="cpu", threads=1)

    async def main() -> None:
        binding = session.bind({"x": x})
        task = asyncio.create_task(binding.run_async())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The run is over: the binding is free.
        assert binding.verdicts.copied == 0
        binding.close()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.run_async({"x": x}), 0.02)
        with pytest.raises(onepool.TimeLimitError):
            await session.run_async({"x": x}, time_limit=0.001)
        token = onepool.Cancel()
        task = asyncio.create_task(session.run_async({"x": x}, cancel=token))
        await asyncio.sleep(0.01)
        token.cancel()
        with pytest.raises(onepool.CancelledError):
            await task

    asyncio.run(main())


def test_the_loop_goes_on_during_a_run() -> None:
    session = onepool.Session(conv(), device="cpu", threads=1)
    x = np.ones((1, 8, 256, 256), np.float32)

    async def main() -> int:
        task = asyncio.create_task(session.run_async({"x": x}))
        ticks = 0
        while not task.done():
            ticks += 1
            await asyncio.sleep(0.001)
        await task
        return ticks

    assert asyncio.run(main()) > 5
