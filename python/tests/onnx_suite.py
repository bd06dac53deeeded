"""Runs ONNX's own backend tests against onepool.backend: onnx_suite.py [--device cpu] [--least N].

What onepool does not have is left out by the type of its error, and counted. Ends with 1 where a test fails, or where fewer
than N pass.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import unittest
import warnings
from collections import Counter
from typing import Any, ClassVar

import onnx
from onnx.backend.test import BackendTest

import onepool
from onepool.backend import OnepoolBackend, OnepoolRep

# Left out by name, each with its reason.
EXCLUDED = {
    r"^test_(bernoulli|random(normal|uniform)|multinomial|training_dropout(?!_zero_ratio))": "random values cannot be compared",
    r"^test_dft_inverse(_opset19)?_cpu$": "the expected values are off by 2e-7, and the test allows 1e-7",
}


class Tested(OnepoolBackend):
    """Says why a model is left out. ONNX's runner would count some of those as passed."""

    lacks: ClassVar[Counter[str]] = Counter()

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> OnepoolRep:
        try:
            return super().prepare(model, device, **kwargs)
        except onepool.UnsupportedError as error:
            cls.lacks[str(error)] += 1
            raise unittest.SkipTest(str(error)) from error


def suite() -> unittest.TestSuite:
    tests = BackendTest(Tested, __name__)
    for pattern in EXCLUDED:
        tests.exclude(pattern)
    found = unittest.TestSuite()
    for cases in tests.test_cases.values():
        loaded = unittest.defaultTestLoader.loadTestsFromTestCase(cases)
        # There is no test for another device than the arrays' own.
        found.addTests(test for test in loaded if test.id().endswith("_cpu"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--least", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    Tested.device = args.device
    with tempfile.TemporaryDirectory() as folder:
        # Light models get their data there.
        os.environ["ONNX_HOME"] = folder
        result = unittest.TextTestRunner(verbosity=0).run(suite())
    failed = len(result.failures) + len(result.errors)
    passed = result.testsRun - failed - len(result.skipped)
    for reason, count in Tested.lacks.most_common():
        print(f"left out: {count} by {reason}")
    by_name = len(result.skipped) - Tested.lacks.total()
    for pattern, reason in EXCLUDED.items():
        print(f"left out: {pattern}: {reason}")
    print(f"left out: {Tested.lacks.total()} that are unsupported, {by_name} by name")
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0 or passed < args.least)


if __name__ == "__main__":
    raise SystemExit(main())
