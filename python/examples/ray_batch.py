"""Takes the noise out of many pictures with Ray Data, an actor for each device: ray_batch.py MODEL DEVICE...

Ray keeps the rows of a dataset in shared pages that no one writes (Plasma). The CPU reads them there. A GPU whose driver
takes no such pages gets a copy, and the last column of the report says so.
"""

import sys

import numpy as np
import ray

import onepool


@ray.remote
class Devices:
    """Gives each actor a device of its own."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def take(self) -> str:
        return self.names.pop(0)


def pages(array: np.ndarray) -> str:
    """The file whose pages hold an array; Ray's are named plasma."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, *_, file = line.split(maxsplit=5)
            start, end = (int(text, 16) for text in span.split("-"))
            if start <= address < end:
                return "plasma" if "plasma" in file else "other"
    return "none"


class Denoise:
    """An actor: a session on one device, and a binding that sees the memory of each batch in turn."""

    def __init__(self, model: str, devices: "ray.actor.ActorHandle[Devices]") -> None:
        self.device = ray.get(devices.take.remote())
        self.session = onepool.Session(model, device=self.device)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        noisy = batch["data"]
        clean = onepool.empty(noisy.shape)  # pages of its own, which Ray takes over
        with self.session.bind({"noisy": noisy}, {"clean": clean}) as binding:
            binding.run()
            verdicts = binding.verdicts
        read = next(verdict for verdict in verdicts if verdict.tensor == "noisy")
        rows = len(noisy)
        return {
            "clean": clean,
            "device": np.full(rows, self.device),
            "where": np.full(rows, pages(noisy)),
            "copied": np.full(rows, verdicts.copied // rows),
            "reason": np.full(rows, read.reason),
        }


def main(model: str, *names: str) -> None:
    ray.init(num_cpus=len(names) + 1, include_dashboard=False, log_to_driver=False, object_store_memory=256 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    pictures = np.random.default_rng(1).normal(0.5, 0.1, (32, 3, 128, 128)).astype(np.float32)
    devices = Devices.options(num_cpus=0).remote(list(names))
    cleaned = ray.data.from_numpy(np.split(pictures, 8)).map_batches(
        Denoise,
        fn_constructor_args=(model, devices),
        batch_size=None,  # whole blocks, so that a batch is a view
        zero_copy_batch=True,
        compute=ray.data.ActorPoolStrategy(size=len(names)),
    )
    found: dict[tuple[str, ...], int] = {}
    noise = []
    for row in cleaned.iter_rows():
        noise.append(row["clean"].std())
        key = (row["device"], row["where"], str(row["copied"]), row["reason"])
        found[key] = found.get(key, 0) + 1
    print("noise before and after:", round(float(pictures.std()), 3), round(float(np.mean(noise)), 3))
    print("rows  device  input in  bytes copied per row  reason")
    for (device, where, copied, reason), rows in sorted(found.items()):
        print(f"{rows:4}  {device}  {where}  {copied}  {reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])
