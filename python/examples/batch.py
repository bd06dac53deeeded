"""Texts that come and go: `python batch.py MODEL DEVICE PROMPT...`."""

import sys

from onepool.generate import Generator

generator = Generator(sys.argv[1], device=sys.argv[2])

with generator.batch(texts=2) as batch:
    for prompt in sys.argv[3:]:
        batch.add(prompt, max_tokens=20, regex="[a-z]{3} [0-9]+")
    for number, made in batch:  # more may be added here
        print(number, made.text, made.finish)
