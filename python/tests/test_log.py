"""What the library says reaches the package `logging`."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import onnx
import pytest

import onepool
from conftest import double
from onepool.generate import Generator

MODELS = Path(__file__).parents[2] / "models"
SAYS = "the opset is newer than this library opset=999"


def newer() -> onnx.ModelProto:
    """A model whose opset no library knows yet, which is a warning."""
    made = double()
    made.opset_import[0].version = 999
    return made


def test_messages_have_their_level_and_their_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "onepool"):
        onepool.Session(newer(), device="cpu")
    said = [record for record in caplog.records if record.getMessage().startswith(SAYS)]
    assert [(record.name, record.levelname) for record in said] == [("onepool.loader.onnx", "WARNING")]
    assert all(record.name.startswith("onepool.") and record.levelno >= logging.WARNING for record in caplog.records)


def test_loggers_decide_what_they_want(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "onepool.loader"):
        onepool.Session(newer(), device="cpu")
    assert SAYS not in caplog.text
    with caplog.at_level(logging.DEBUG, "onepool"):
        onepool.Session(newer(), device="cpu")
    assert SAYS in caplog.text


def test_a_call_that_fails_tells_first(caplog: pytest.LogCaptureFixture) -> None:
    made = newer()
    made.graph.node[0].op_type = "Frobnicate"
    with caplog.at_level(logging.WARNING, "onepool"), pytest.raises(onepool.UnsupportedError):
        onepool.Session(made, device="cpu")
    assert SAYS in caplog.text


class Calling(logging.Handler):
    """Uses the library while it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.told += 1
        if threading.current_thread() is threading.main_thread():
            onepool.devices()
            onepool.Session(double(), device="cpu")


def test_handlers_may_call_the_library_and_threads_do_not_wait_for_one_another() -> None:
    logger, handler = logging.getLogger("onepool"), Calling()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        made = newer().SerializeToString()

        def load() -> None:
            for _ in range(5):
                onepool.Session(made, device="sim")

        threads = [threading.Thread(target=load, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        load()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert handler.told >= 25
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def test_what_a_handler_raises_is_no_error_of_the_call() -> None:
    class Raising(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("a handler")

    logger, handler, seen = logging.getLogger("onepool"), Raising(), []
    logger.addHandler(handler)
    before, sys.unraisablehook = sys.unraisablehook, lambda raised: seen.append(str(raised.exc_value))
    try:
        assert onepool.Session(newer(), device="cpu").devices
    finally:
        sys.unraisablehook = before
        logger.removeHandler(handler)
    assert "a handler" in seen


def program(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=300)


def test_nothing_is_printed_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "newer.onnx"
    path.write_bytes(newer().SerializeToString())
    text = "import sys, onepool; onepool.Session(sys.argv[1], device='cpu')"
    ended = program(text, str(path))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    ended = program("import logging; logging.basicConfig(); " + text, str(path))
    assert ended.returncode == 0 and f"WARNING:onepool.loader.onnx:{SAYS}" in ended.stderr


def test_the_interpreter_may_end_while_a_text_is_made() -> None:
    text = """
import logging, sys, threading
logging.basicConfig(level=logging.DEBUG)
from onepool.generate import Generator
generator = Generator(sys.argv[1], device="cpu")
def take():
    for _ in generator.stream("Hello", ignore_end=True, max_tokens=400):
        pass
threading.Thread(target=take, daemon=True).start()
stream = Generator(sys.argv[1], device="cpu").stream("Hello", ignore_end=True, max_tokens=400)
print(next(stream) != "")
"""
    ended = program(text, str(MODELS / "tiny_llm" / "fixed"))
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


def test_ctrl_c_while_a_handler_runs_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "newer.onnx"
    path.write_bytes(newer().SerializeToString())
    text = """
import logging, os, signal, sys, onepool
class Pressing(logging.Handler):
    def handle(self, record):
        os.kill(os.getpid(), signal.SIGINT)
        return True
logging.getLogger("onepool").addHandler(Pressing())
try:
    onepool.Session(sys.argv[1], device="cpu")
    print("not raised")
except KeyboardInterrupt:
    print("raised")
"""
    ended = program(text, str(path))
    assert (ended.returncode, ended.stdout) == (0, "raised\n"), ended.stderr


def test_what_a_thread_of_the_library_says_is_told_by_the_next_call() -> None:
    # Whatever is said, no call fails for it.
    logging.getLogger("onepool").setLevel(logging.DEBUG)
    try:
        generator = Generator(MODELS / "tiny_llm" / "fixed", device="cpu")
        assert generator.generate("Hello", max_tokens=4).tokens
    finally:
        logging.getLogger("onepool").setLevel(logging.NOTSET)
