"""A window of a screen through a model of pictures, in place: `python frames.py MODEL DEVICE`."""

import sys

import numpy as np

import onepool

screen = onepool.empty((1080, 1920, 4), "uint8")  # BGRA, as a capture of the desktop has it
window, corner = screen[200:264, 300:364], screen[0:64, 0:64]

session = onepool.Session(
    sys.argv[1],
    device=sys.argv[2],
    input_frames={"noisy": onepool.Frame.of(window, "bgra8", channels="rgb")},
    output_frames={"clean": onepool.Frame.of(corner, "bgra8", channels="rgb")},
)
window[:] = np.arange(64, dtype=np.uint8).reshape(64, 1, 1)
with session.bind({"noisy": window}, {"clean": corner}) as binding:
    binding.run()  # reads the window and writes the corner
    print(corner[8, 8], binding.verdicts.copied)
