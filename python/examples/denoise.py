"""Takes the noise out of a picture in its own pages: denoise.py MODEL DEVICE."""

import sys

import numpy as np

import onepool

session = onepool.Session(sys.argv[1], device=sys.argv[2])
noisy = onepool.empty((1, 3, 64, 64))  # a NumPy array in pages that devices can import
clean = onepool.empty((1, 3, 64, 64))
noisy[:] = np.random.default_rng(1).normal(0.5, 0.1, noisy.shape)

print(session.run({"noisy": noisy})["clean"].std())  # once, into a new array

with session.bind({"noisy": noisy}, {"clean": clean}, strict=True) as binding:
    for _ in range(3):
        noisy[0, 0, 0, 0] += 0.1  # the next run reads it here
        binding.run()
        print(clean[0, 0, 0, 0])
    print(binding.verdicts)
    print(binding.verdicts.copied, "bytes copied by the CPU in each run")
