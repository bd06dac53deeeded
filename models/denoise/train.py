"""Trains the denoiser on generated pictures and writes it as ONNX.

Writes `denoise.onnx`, `metrics.json` and a before/after strip. Needs PyTorch,
numpy and onnx; onnxruntime, where present, checks the written file.
"""

import argparse
import copy
import json
import multiprocessing
import os
import pathlib
import struct
import sys
import time
import zlib

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import generate

LEVELS = (10, 15, 25, 35, 50)
TRAIN_SEED, HELD_SEED = 1_000_000, 9_000_000


# ------------------------------------------------------------------- the graph


def graph(c2=24, c4=32, c8=48, deep=1):
    """The net as one list of steps; training, export and counting all read it.

    Works at half, quarter and eighth resolution with `c2`, `c4` and `c8`
    channels; `deep` counts the residual blocks at eighth resolution. The
    half-resolution stem stays linear: its channels carry the input unharmed to
    the last convolution. The result is subtracted from the input.
    A step is (kind, result, inputs, settings).
    """
    steps = []

    def conv(out, src, cin, cout, k, stride=1, relu=True):
        steps.append(("conv", out, [src], (cin, cout, k, stride)))
        if relu:
            steps.append(("relu", out + "_r", [out], ()))
            return out + "_r"
        return out

    def add(out, a, b):
        steps.append(("add", out, [a, b], ()))
        return out

    def shuffle(out, src, block):
        steps.append(("shuffle", out, [src], (block,)))
        return out

    half = conv("in2", "noisy", 3, c2, 2, 2, relu=False)
    quarter = conv("enc4", conv("in4", half, c2, c4, 2, 2), c4, c4, 3)
    x = conv("in8", quarter, c4, c8, 2, 2)
    for i in range(deep):
        y = conv(f"deep{i}a", x, c8, c8, 3)
        x = add(f"deep{i}", x, conv(f"deep{i}b", y, c8, c8, 3, relu=False))
    x = shuffle("up4", conv("out8", x, c8, 4 * c4, 1, relu=False), 2)
    x = conv("dec4", add("sum4", x, quarter), c4, c4, 3)
    x = shuffle("up2", conv("out4", x, c4, 4 * c2, 1, relu=False), 2)
    x = add("sum2", x, half)
    x = conv("dec2", x, c2, c2, 3)
    x = add("last", conv("dec3", x, c2, c2, 3), half)
    x = shuffle("noise", conv("out2", x, c2, 12, 3, relu=False), 2)
    steps.append(("sub", "estimate", ["noisy", x], ()))
    return steps


def convs(steps):
    return [(out, cfg) for kind, out, _, cfg in steps if kind == "conv"]


def pad_of(k, stride):
    return (k - 1) // 2 if stride == 1 else 0


def flops(steps, height, width):
    """Multiplications and additions of the convolutions for one picture."""
    scale, total = {"noisy": 1}, 0
    for kind, out, src, cfg in steps:
        scale[out] = scale[src[0]]
        if kind == "conv":
            cin, cout, k, stride = cfg
            scale[out] *= stride
            total += 2 * cin * cout * k * k * (height // scale[out]) * (width // scale[out])
        elif kind == "shuffle":
            scale[out] //= cfg[0]
    return total


def parameters(steps):
    return sum(cin * cout * k * k + cout for _, (cin, cout, k, _) in convs(steps))


# ----------------------------------------------------------------- the pictures


def draw(job):
    style, seed, size = job
    return (generate.picture(style, seed, size) * 255 + 0.5).astype(np.uint8)


def draw_many(pairs, size):
    """Pictures as uint8 `[n, size, size, 3]`, drawn by all processors."""
    out = np.empty((len(pairs), size, size, 3), np.uint8)
    jobs = [(style, seed, size) for style, seed in pairs]
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for i, img in enumerate(pool.imap(draw, jobs, chunksize=4)):
            out[i] = img
    return out


def crops(torch, bank, gen, batch, size):
    """Random crops, flips, rotations and colour changes, as `[b, 3, size, size]`."""
    dev = bank.device

    def rand(*shape):
        return torch.rand(*shape, generator=gen, device=dev)

    def cut(n, span):
        room = bank.shape[1] - span
        pick = (rand(n) * bank.shape[0]).long()
        ar = torch.arange(span, device=dev)
        axes = []
        for _ in range(2):
            start = (rand(n, 1) * (room + 1)).long()
            axes.append(start + torch.where(rand(n, 1) < 0.5, ar, span - 1 - ar))
        chan = torch.argsort(rand(n, 3), dim=1)
        # channels in another order half of the time
        chan = torch.where(rand(n, 1) < 0.5, chan, torch.arange(3, device=dev))
        x = bank[
            pick[:, None, None, None], axes[0][:, None, :, None], axes[1][:, None, None, :], chan[:, :, None, None]
        ]
        return x.float() / 255

    quarter = batch // 4
    x = torch.cat([cut(batch - quarter, size), torch.nn.functional.avg_pool2d(cut(quarter, 2 * size), 2)])
    x[::2] = x[::2].transpose(2, 3).clone()
    grey = x.mean(1, keepdim=True)
    x = grey + (x - grey) * (0.1 + 1.0 * rand(batch, 1, 1, 1))
    x = x * (0.4 + 0.75 * rand(batch, 1, 1, 1)) + 0.15 * rand(batch, 1, 1, 1) * (rand(batch, 1, 1, 1) < 0.3)
    return x.clamp(0, 1)


def add_noise(torch, x, gen):
    """Blind sensor noise: deviation 4..54 of 255, part of it growing with the signal."""
    b = x.shape[0]

    def rand(*shape):
        return torch.rand(*shape, generator=gen, device=x.device)

    sigma = (4 + 50 * rand(b, 1, 1, 1)) / 255
    shot = torch.where(rand(b, 1, 1, 1) < 0.4, torch.zeros(1, device=x.device), rand(b, 1, 1, 1))
    gain = torch.where(rand(b, 1, 1, 1) < 0.5, torch.ones(1, device=x.device), 0.8 + 0.4 * rand(b, 3, 1, 1))
    std = gain * sigma * torch.sqrt(1 - shot + shot * 2 * x)
    noise = torch.randn(x.shape, generator=gen, device=x.device)
    return (x + std * noise).clamp(0, 1)


# ------------------------------------------------------------------- the module


def make_net(torch, steps):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = torch.nn.ModuleDict()
            for out, (cin, cout, k, stride) in convs(steps):
                conv = torch.nn.Conv2d(cin, cout, k, stride, pad_of(k, stride))
                torch.nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
                torch.nn.init.zeros_(conv.bias)
                self.convs[out] = conv
                # residual branches and the result start small
                if out == "out2" or out.endswith("b"):
                    conv.weight.data *= 0.1

        def forward(self, noisy):
            v = {"noisy": noisy}
            for kind, out, src, cfg in steps:
                a = v[src[0]]
                if kind == "conv":
                    v[out] = self.convs[out](a)
                elif kind == "relu":
                    v[out] = torch.relu(a)
                elif kind == "add":
                    v[out] = a + v[src[1]]
                elif kind == "shuffle":
                    v[out] = torch.nn.functional.pixel_shuffle(a, cfg[0])
                elif kind == "sub":
                    v[out] = a - v[src[1]].to(a.dtype)
            return v["estimate"]

    return Net()


def train(torch, steps, bank, args, device):
    torch.manual_seed(args.seed)
    gen = torch.Generator(device=device).manual_seed(args.seed)
    net = make_net(torch, steps).to(device)
    fast = device == "cuda"
    if fast:
        net = net.to(memory_format=torch.channels_last)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    ema = copy.deepcopy(net)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-4, fused=fast)
    start, step, logged, loss_sum = time.time(), 0, 0.0, None
    while True:
        # the schedule follows the clock, or the step count where one is given
        done = step / args.steps if args.steps else (time.time() - start) / (60 * args.minutes)
        if done >= 1:
            break
        warm = min(1.0, (step + 1) / 200)
        lr = args.lr * warm * (0.002 + 0.998 * 0.5 * (1 + np.cos(np.pi * done)))
        for group in opt.param_groups:
            group["lr"] = lr
        clean = crops(torch, bank, gen, args.batch, args.crop)
        noisy = add_noise(torch, clean, gen)
        if fast:
            noisy = noisy.contiguous(memory_format=torch.channels_last)
        # the last part runs without bf16
        with torch.autocast("cuda", torch.bfloat16, enabled=fast and done < 0.8):
            out = net(noisy)
        diff = out.float() - clean
        loss = torch.sqrt(diff * diff + 1e-6).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        step += 1
        decay = min(0.999, step / (step + 20))
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 1 - decay)
        loss_sum = loss.detach() if loss_sum is None else loss_sum * 0.99 + loss.detach() * 0.01
        if step % 100 == 0 and time.time() - logged > 30:
            logged = time.time()
            print(f"step {step:6d}  {logged - start:5.0f} s  loss {loss_sum.item():.5f}  lr {lr:.2e}", flush=True)
    print(f"trained {step} steps of {args.batch} crops in {time.time() - start:.0f} s", flush=True)
    return ema, step


# ------------------------------------------------------------------------ onnx


def export(steps, weights, path):
    """Writes the graph with its weights; only plain ONNX operators."""
    from onnx import TensorProto, checker, helper, numpy_helper, save

    nodes, inits = [], []
    for kind, out, src, cfg in steps:
        if kind == "conv":
            _, _, k, stride = cfg
            p = pad_of(k, stride)
            w, b = weights[out]
            inits.append(numpy_helper.from_array(np.ascontiguousarray(w, np.float32), out + ".weight"))
            inits.append(numpy_helper.from_array(np.ascontiguousarray(b, np.float32), out + ".bias"))
            nodes.append(
                helper.make_node(
                    "Conv",
                    [src[0], out + ".weight", out + ".bias"],
                    [out],
                    name=out,
                    kernel_shape=[k, k],
                    strides=[stride, stride],
                    pads=[p, p, p, p],
                )
            )
        elif kind == "shuffle":
            nodes.append(helper.make_node("DepthToSpace", src, [out], name=out, blocksize=cfg[0], mode="CRD"))
        else:
            op = {"relu": "Relu", "add": "Add", "sub": "Sub"}[kind]
            nodes.append(helper.make_node(op, src, [out], name=out))
    inits.append(numpy_helper.from_array(np.float32(0), "low"))
    inits.append(numpy_helper.from_array(np.float32(1), "high"))
    nodes.append(helper.make_node("Clip", ["estimate", "low", "high"], ["clean"], name="clean"))
    dims = ["batch", 3, "height", "width"]
    g = helper.make_graph(
        nodes, "denoise",
        [helper.make_tensor_value_info("noisy", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("clean", TensorProto.FLOAT, dims)],
        inits, doc_string="Blind picture denoiser; height and width are multiples of 8.",
    )  # fmt: skip
    model = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], producer_name="onepool")
    model.ir_version = 8
    checker.check_model(model, full_check=True)
    save(model, str(path))


# ------------------------------------------------------------------ measurement


def psnr(a, b):
    return float(10 * np.log10(1 / max(np.mean((a.astype(np.float64) - b) ** 2), 1e-12)))


def ssim(a, b):
    """Structural similarity of the grey pictures, 8x8 windows."""
    a, b = (v.mean(2).astype(np.float64) for v in (a, b))

    def box(v):
        c = np.pad(v, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
        return (c[8:, 8:] - c[:-8, 8:] - c[8:, :-8] + c[:-8, :-8]) / 64

    ma, mb = box(a), box(b)
    va, vb, cov = box(a * a) - ma * ma, box(b * b) - mb * mb, box(a * b) - ma * mb
    c1, c2 = 0.01**2, 0.03**2
    return float(np.mean((2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))))


def measure(run, groups):
    """Mean PSNR and SSIM per group and noise level; `run` maps NHWC to NHWC."""
    table = {}
    for name, pictures in groups.items():
        table[name] = {}
        for label, level, shot in [(str(s), s, 0.0) for s in LEVELS] + [("25 shot", 25, 0.8)]:
            rows = []
            for i, img in enumerate(pictures):
                rng = np.random.default_rng([level, i])
                noisy = generate.add_noise(rng, img, level / 255, shot)
                noisy = np.round(noisy * 255).astype(np.float32) / 255
                out = run(noisy[None])[0]
                rows.append((psnr(noisy, img), psnr(out, img), ssim(noisy, img), ssim(out, img)))
            m = [round(float(v), 4) for v in np.mean(rows, axis=0)]
            table[name][label] = {
                "psnr_before": m[0], "psnr_after": m[1], "gain": round(m[1] - m[0], 4),
                "ssim_before": m[2], "ssim_after": m[3],
            }  # fmt: skip
    return table


def show(table):
    print(f"{'pictures':<24}{'sigma':>8}{'before':>9}{'after':>9}{'gain':>8}{'SSIM':>9}{'after':>8}")
    for name, rows in table.items():
        for label, r in rows.items():
            print(
                f"{name:<24}{label:>8}{r['psnr_before']:>9.2f}{r['psnr_after']:>9.2f}{r['gain']:>+8.2f}"
                f"{r['ssim_before']:>9.3f}{r['ssim_after']:>8.3f}"
            )


def write_png(path, img):
    """8-bit RGB PNG of a float picture in 0..1."""
    data = np.clip(np.round(img * 255), 0, 255).astype(np.uint8)
    h, w, _ = data.shape
    raw = b"".join(b"\0" + data[y].tobytes() for y in range(h))

    def chunk(tag, body):
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    head = struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def strip(run, pictures, level):
    """Rows of clean, noisy and denoised, one picture a row."""
    rows = []
    for i, img in enumerate(pictures):
        noisy = generate.add_noise(np.random.default_rng([77, i]), img, level / 255)
        rows.append(np.concatenate([img, noisy, run(noisy[None])[0]], axis=1))
    return np.concatenate(rows)


def read_photos(folder):
    """Pictures of one's own, for measuring only; cut to multiples of 8."""
    from PIL import Image

    out = []
    for path in sorted(pathlib.Path(folder).iterdir()):
        img = np.asarray(Image.open(path).convert("RGB"), np.float32) / 255
        h, w = img.shape[0] // 8 * 8, img.shape[1] // 8 * 8
        out.append(img[:h, :w])
    return out


def main():
    here = pathlib.Path(__file__).resolve().parent
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", type=pathlib.Path, default=here.parent / "denoise.onnx")
    ap.add_argument("--metrics", type=pathlib.Path, default=here / "metrics.json")
    ap.add_argument("--strip", type=pathlib.Path, help="before/after PNG to write")
    ap.add_argument("--photos", type=pathlib.Path, help="folder of pictures to measure on as well")
    ap.add_argument("--bank", type=pathlib.Path, help=".npy file that keeps the drawn training pictures")
    ap.add_argument("--pictures", type=int, default=5000)
    ap.add_argument("--size", type=int, default=320, help="side of a training picture")
    ap.add_argument("--minutes", type=float, default=5.2, help="training time")
    ap.add_argument("--steps", type=int, default=0, help="train so many steps instead")
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--crop", type=int, default=96)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--held", type=int, default=8, help="held-out pictures a style")
    args = ap.parse_args()

    steps = graph()
    count, work = parameters(steps), flops(steps, 1080, 1920)
    print(f"{count} parameters, {work / 1e9:.2f} GFLOP a 1920x1080 picture, {work / 1080 / 1920:.0f} FLOP a pixel")

    begin = time.time()
    if args.bank and args.bank.exists():
        bank = np.load(args.bank)
    else:
        bank = draw_many(generate.schedule(args.pictures, TRAIN_SEED), args.size)
        if args.bank:
            np.save(args.bank, bank)
    held = {
        name: draw_many([(s, HELD_SEED + i) for s in styles for i in range(args.held)], 256).astype(np.float32) / 255
        for name, styles in (("unseen pictures", generate.TRAIN), ("unseen styles", generate.HELD_OUT))
    }
    groups = dict(held)
    if args.photos:
        groups["photographs"] = read_photos(args.photos)
    print(f"{len(bank)} training pictures in {time.time() - begin:.0f} s", flush=True)

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ema, done = train(torch, steps, torch.from_numpy(bank).to(device), args, device)

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    ema = ema.float().eval()

    def run(batch):
        x = torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2))).to(device)
        with torch.no_grad():
            return ema(x).clamp(0, 1).cpu().numpy().transpose(0, 2, 3, 1)

    weights = {
        name: (conv.weight.detach().cpu().numpy(), conv.bias.detach().cpu().numpy()) for name, conv in ema.convs.items()
    }
    args.model.parent.mkdir(parents=True, exist_ok=True)
    export(steps, weights, args.model)
    print(f"{args.model.name}: {args.model.stat().st_size} bytes", flush=True)

    table = measure(run, groups)
    show(table)
    if args.strip:
        pictures = [p for name in held for p in held[name][3 :: args.held]]
        write_png(args.strip, strip(run, pictures, 25))

    metrics = {
        "parameters": count,
        "file_bytes": args.model.stat().st_size,
        "gflop_1920x1080": round(work / 1e9, 3),
        "flop_per_pixel": round(work / 1080 / 1920),
        "training": {
            "pictures": args.pictures, "picture_size": args.size, "steps": done, "batch": args.batch,
            "crop": args.crop, "lr": args.lr, "minutes": args.minutes, "seed": args.seed,
        },
        "held_out": table,
    }  # fmt: skip
    try:
        import onnxruntime
    except ImportError:
        print("onnxruntime is missing: the written file was not run")
    else:
        session = onnxruntime.InferenceSession(str(args.model), providers=["CPUExecutionProvider"])
        rng = np.random.default_rng(args.seed)
        x = generate.picture("leaves", HELD_SEED, 96)[:64]
        x = generate.add_noise(rng, x, 25 / 255)[None]
        got = session.run(["clean"], {"noisy": np.ascontiguousarray(x.transpose(0, 3, 1, 2))})[0]
        err = float(np.abs(got.transpose(0, 2, 3, 1) - run(x)).max())
        print(f"onnxruntime on 64x96: largest difference {err:.2e}")
        if err > 1e-4:
            sys.exit("the written file gives another result")
        metrics["onnxruntime_largest_difference"] = err
    args.metrics.write_text(json.dumps(metrics, indent=2) + "\n")


if __name__ == "__main__":
    main()
