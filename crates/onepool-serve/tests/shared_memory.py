"""Denoises a picture in shared memory: `shared_memory.py HOST:PORT`, with a server of models/denoise.onnx there."""

import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.utils.shared_memory as shm

noisy = np.random.default_rng(0).random((1, 3, 64, 64), np.float32)

client = grpc.InferenceServerClient(sys.argv[1])
region = shm.create_shared_memory_region("frames", "/onepool_frames", 2 * noisy.nbytes)
client.register_system_shared_memory("frames", "/onepool_frames", 2 * noisy.nbytes)

x = grpc.InferInput("noisy", noisy.shape, "FP32")
x.set_shared_memory("frames", noisy.nbytes, offset=0)
y = grpc.InferRequestedOutput("clean")
y.set_shared_memory("frames", noisy.nbytes, offset=noisy.nbytes)

shm.set_shared_memory_region(region, [noisy])
answer = client.infer("denoise", [x], outputs=[y]).get_response()
print(answer.parameters["copied_bytes"].int64_param)  # 0 on the CPU
clean = shm.get_contents_as_numpy(region, np.float32, noisy.shape, offset=noisy.nbytes)

print(clean.std() < noisy.std())
client.unregister_system_shared_memory("frames")
shm.destroy_shared_memory_region(region)
