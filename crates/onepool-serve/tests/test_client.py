"""The server, reached by Triton's client."""

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc
import tritonclient.utils.shared_memory as shm
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
WIDTH = 64


def save(folder, name, nodes, inputs, outputs):
    def info(values):
        return [helper.make_tensor_value_info(*value) for value in values]

    graph = helper.make_graph(nodes, name, info(inputs), info(outputs))
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / f"{name}.onnx")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    double = [helper.make_node("Add", ["x", "x"], ["y"])]
    save(folder, "rows", double, [("x", TensorProto.FLOAT, ["n", WIDTH])], [("y", TensorProto.FLOAT, ["n", WIDTH])])
    same = [helper.make_node("Identity", ["x"], ["y"])]
    for dtype in DTYPES:
        number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        save(folder, np.dtype(dtype).name, same, [("x", number, ["n", 3])], [("y", number, ["n", 3])])
    products = [helper.make_node("MatMul", ["x", "x"], ["p0"])]
    products += [helper.make_node("MatMul", [f"p{n}", "x"], [f"p{n + 1}"]) for n in range(60)]
    products += [helper.make_node("Neg", ["p60"], ["y"])]
    save(folder, "slow", products, [("x", TensorProto.FLOAT, ["n", "n"])], [("y", TensorProto.FLOAT, ["n", "n"])])
    return folder


DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "float32", "float64", ml_dtypes.bfloat16]


class Server:
    """The program in a process of its own."""

    def __init__(self, path, *options, listen="127.0.0.1:0"):
        command = [os.environ["ONEPOOL_SERVE"], str(path), "--device", "cpu", "--listen", listen, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert " on " in line, line
        self.url = line.split()[-1]
        self.metrics = self.process.stdout.readline().split()[-1] if "--metrics" in options else None

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(60)


@contextlib.contextmanager
def serving(path, *options):
    server = Server(path, *options)
    try:
        yield server
        assert server.stop() == 0
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="module")
def server(models):
    with serving(models, "--max-batch", "16", "--metrics", "127.0.0.1:0") as server:
        yield server


@pytest.fixture
def client(server):
    with grpc.InferenceServerClient(server.url) as client:
        yield client


def given(name, array):
    datatype = {"bool": "BOOL", "bfloat16": "BF16"}.get(array.dtype.name)
    datatype = datatype or array.dtype.name.upper().replace("FLOAT", "FP")
    tensor = grpc.InferInput(name, array.shape, datatype)
    if datatype == "BF16":
        tensor._raw_content = array.tobytes()
    else:
        tensor.set_data_from_numpy(array)
    return tensor


@contextlib.contextmanager
def region(client, name, size):
    key = f"/onepool_serve_{name}_{os.getpid()}"
    handle = shm.create_shared_memory_region(name, key, size)
    try:
        client.register_system_shared_memory(name, key, size)
        yield handle
        client.unregister_system_shared_memory(name)
    finally:
        shm.destroy_shared_memory_region(handle)


def refused(status, words, call, *args, **kwargs):
    with pytest.raises(InferenceServerException) as raised:
        call(*args, **kwargs)
    assert f"StatusCode.{status}" == raised.value.status(), raised.value
    assert words in raised.value.message(), raised.value


def test_the_client_finds_server_and_models(client, models):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("rows")
    assert client.get_server_metadata().name == "onepool"
    about = client.get_model_metadata("rows", as_json=True)
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", str(WIDTH)]}]
    assert client.get_model_config("rows").config.max_batch_size == 16
    index = client.get_model_repository_index()
    assert sorted(model.name for model in index.models) == sorted(path.stem for path in models.iterdir())
    refused("NOT_FOUND", "there is no model", client.get_model_metadata, "none")
    refused("UNIMPLEMENTED", "", client.get_inference_statistics)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_every_type_come_back_as_they_were(client, dtype):
    array = (np.arange(12).reshape(4, 3) % (2 if dtype == "bool" else 12)).astype(dtype)
    result = client.infer(array.dtype.name, [given("x", array)])
    if dtype is ml_dtypes.bfloat16:
        back = np.frombuffer(result.get_response().raw_output_contents[0], dtype).reshape(4, 3)
    else:
        back = result.as_numpy("y")
    assert back.dtype == array.dtype and (back == array).all()


def test_regions_are_used_in_place(client, server):
    size = 8 * WIDTH * 4
    with region(client, "frames", 2 * size) as handle:
        status = client.get_system_shared_memory_status("frames")
        assert status.regions["frames"].byte_size == 2 * size
        x = grpc.InferInput("x", [8, WIDTH], "FP32")
        x.set_shared_memory("frames", size)
        y = grpc.InferRequestedOutput("y")
        y.set_shared_memory("frames", size, offset=size)
        for n in range(20):
            values = np.full((8, WIDTH), n, np.float32)
            shm.set_shared_memory_region(handle, [values])
            answer = client.infer("rows", [x], outputs=[y]).get_response()
            assert answer.parameters["copied_bytes"].int64_param == 0
            assert answer.parameters["in_place_bytes"].int64_param == 2 * size
            assert "in place" in answer.parameters["verdict.x"].string_param
            back = shm.get_contents_as_numpy(handle, np.float32, [8, WIDTH], offset=size)
            assert (back == 2 * values).all()
        text = urllib.request.urlopen(server.metrics).read().decode()
        assert 'onepool_in_place_bytes_total{model="rows"}' in text and "onepool_regions 1" in text


def test_the_program_on_the_page_runs():
    with serving(ROOT / "models" / "denoise.onnx") as server:
        program = [sys.executable, str(HERE / "shared_memory.py"), server.url]
        done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["0", "True"]), done


def test_wrong_requests_have_a_status_that_names_the_argument(client):
    good = np.zeros((2, WIDTH), np.float32)
    refused("INVALID_ARGUMENT", 'there is no input "z"', client.infer, "rows", [given("z", good)])
    refused("INVALID_ARGUMENT", 'input "x": datatype', client.infer, "rows", [given("x", good.astype("float64"))])
    refused("INVALID_ARGUMENT", 'input "x": shape', client.infer, "rows", [given("x", good.reshape(-1))])
    refused("INVALID_ARGUMENT", 'input "x" is missing', client.infer, "rows", [])
    words = np.array([[b"a", b"b"]], np.object_)
    text = grpc.InferInput("x", words.shape, "BYTES")
    text.set_data_from_numpy(words)
    refused("INVALID_ARGUMENT", "strings", client.infer, "rows", [text])
    missing = grpc.InferInput("x", good.shape, "FP32")
    missing.set_shared_memory("none", good.nbytes)
    refused("NOT_FOUND", 'no shared memory region "none"', client.infer, "rows", [missing])
    register = client.register_system_shared_memory
    refused("NOT_FOUND", "key", register, "r", "/onepool_none", 64)
    refused("NOT_FOUND", "no shared memory region", client.unregister_system_shared_memory, "r")
    with region(client, "small", 256):
        refused("ALREADY_EXISTS", '"small"', register, "small", "/onepool_none", 64)
        beyond = grpc.InferInput("x", good.shape, "FP32")
        beyond.set_shared_memory("small", good.nbytes)
        refused("INVALID_ARGUMENT", 'leave region "small"', client.infer, "rows", [beyond])
    large = np.zeros((1 << 19, WIDTH), np.float32)
    refused("RESOURCE_EXHAUSTED", "max_message", client.infer, "rows", [given("x", large)])
    assert client.infer("rows", [given("x", good)]).as_numpy("y").shape == good.shape


def test_a_deadline_ends_a_request(client):
    matrix = given("x", np.eye(640, dtype=np.float32))
    refused("DEADLINE_EXCEEDED", "", client.infer, "slow", [matrix], client_timeout=0.05)
    small = given("x", np.eye(4, dtype=np.float32))
    assert (client.infer("slow", [small]).as_numpy("y") == -np.eye(4)).all()


def test_asynchronous_requests_are_gathered_and_not_mixed_up(client, server):
    def runs():
        text = urllib.request.urlopen(server.metrics).read().decode()
        return int(re.search(r'onepool_runs_total{model="rows"} (\d+)', text)[1])

    before, answers, over = runs(), {}, threading.Event()
    total = 400

    def arrived(n, result, error):
        answers[n] = error or result.as_numpy("y")
        if len(answers) == total:
            over.set()

    for n in range(total):
        values = np.full((1 + n % 3, WIDTH), n, np.float32)
        client.async_infer("rows", [given("x", values)], lambda result, error, n=n: arrived(n, result, error))
        if n % 50 == 49:
            time.sleep(0.02)
    assert over.wait(60)
    for n, answer in answers.items():
        assert answer.shape == (1 + n % 3, WIDTH) and (answer == 2 * n).all(), (n, answer)
    assert runs() - before < total


def test_encrypted(models, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    new += ["-days", "2", "-keyout", key, "-out", certificate, *subject]
    subprocess.run(new, check=True, capture_output=True)
    with serving(models / "rows.onnx", "--tls-cert", str(certificate), "--tls-key", str(key)) as server:
        url = "localhost:" + server.url.split(":")[1]
        values = np.ones((1, WIDTH), np.float32)
        with grpc.InferenceServerClient(url, ssl=True, root_certificates=str(certificate)) as client:
            assert (client.infer("rows", [given("x", values)]).as_numpy("y") == 2).all()
        with grpc.InferenceServerClient(url) as client:
            refused("UNAVAILABLE", "", client.is_server_live)


def test_ten_thousand_connections(models):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(10_000, hard - 500)
    assert count >= 1000, f"the system allows {hard} open files"
    values = np.ones((1, WIDTH), np.float32)
    opened = []
    try:
        with serving(models / "rows.onnx") as server, grpc.InferenceServerClient(server.url) as client:
            address = tuple(server.url.split(":"))
            for n in range(count):
                opened.append(socket.create_connection(address, timeout=30))
                if n % 1000 == 0:
                    client.infer("rows", [given("x", values)], client_timeout=30)
            assert (client.infer("rows", [given("x", values)], client_timeout=30).as_numpy("y") == 2).all()
            for connection in opened:
                connection.close()
            assert (client.infer("rows", [given("x", values)], client_timeout=30).as_numpy("y") == 2).all()
    finally:
        for connection in opened:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_clients_that_try_again_lose_nothing_when_the_server_is_killed(models):
    server = Server(models / "rows.onnx", "--max-batch", "8")
    size = WIDTH * 4
    done, over, wrong = [0] * 6, threading.Event(), []

    def ask(who):
        key = f"/onepool_serve_again_{os.getpid()}_{who}"
        handle = shm.create_shared_memory_region(f"r{who}", key, 2 * size)
        x = grpc.InferInput("x", [1, WIDTH], "FP32")
        x.set_shared_memory(f"r{who}", size)
        y = grpc.InferRequestedOutput("y")
        y.set_shared_memory(f"r{who}", size, offset=size)
        try:
            with grpc.InferenceServerClient(server.url) as client:
                while not over.is_set():
                    values = np.full((1, WIDTH), who * 1000 + done[who] % 1000, np.float32)
                    shm.set_shared_memory_region(handle, [values])
                    while not over.is_set():
                        try:
                            client.infer("rows", [x], outputs=[y], client_timeout=20)
                            break
                        except InferenceServerException as error:
                            if error.status() == "StatusCode.NOT_FOUND":
                                with contextlib.suppress(InferenceServerException):
                                    client.register_system_shared_memory(f"r{who}", key, 2 * size)
                            time.sleep(0.02)
                    else:
                        break
                    both = shm.get_contents_as_numpy(handle, np.float32, [2, WIDTH])
                    if not ((both[0] == values).all() and (both[1] == 2 * values).all()):
                        wrong.append((who, done[who], both))
                        return
                    done[who] += 1
        finally:
            shm.destroy_shared_memory_region(handle)

    threads = [threading.Thread(target=ask, args=(who,)) for who in range(len(done))]
    for thread in threads:
        thread.start()

    def further():
        seen, until = list(done), time.monotonic() + 60
        while any(now < before + 20 for now, before in zip(done, seen)):
            assert not wrong and time.monotonic() < until, (wrong, done)
            time.sleep(0.01)

    try:
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            further()
            server.stop(number)
            server = Server(models / "rows.onnx", "--max-batch", "8", listen=server.url)
        further()
    finally:
        over.set()
        for thread in threads:
            thread.join()
        server.process.kill()
        server.process.wait()
    assert not wrong
