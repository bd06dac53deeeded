"""Goes on from a text: `python generate.py MODEL DEVICE PROMPT`."""

import sys

from onepool.generate import Generator

generator = Generator(sys.argv[1], device=sys.argv[2])

with generator.stream(sys.argv[3], max_tokens=20, temperature=0, stop=["\n\n"]) as text:
    for piece in text:  # Ctrl-C ends it
        print(piece, end="", flush=True)
print(f"\n{text.result().tokens_per_second:.0f} tokens/s", file=sys.stderr)
