"""Procedural training pictures for the denoiser; needs numpy only.

`picture(style, seed, size)` always gives the same RGB picture for the same
arguments: float32 `[size, size, 3]` in 0..1. Everything is drawn at twice the
size and averaged down, so edges are antialiased as a lens and sensor do it.

Run as a program it writes contact sheets (binary PPM), one per style.
"""

import argparse
import pathlib

import numpy as np

F = np.float32


# ---------------------------------------------------------------- noise fields


def spectrum(rng, h, w, power, aspect=1.0):
    """Gaussian field with amplitude ~ 1/f^power: zero mean, unit deviation."""
    fy = np.fft.fftfreq(h).astype(F)[:, None] * h * F(aspect)
    fx = np.fft.rfftfreq(w).astype(F)[None, :] * w
    f = np.sqrt(fy * fy + fx * fx)
    f[0, 0] = 1
    amp = f ** F(-power)
    amp[0, 0] = 0
    shape = amp.shape
    spec = rng.standard_normal(shape, dtype=F) + 1j * rng.standard_normal(shape, dtype=F)
    out = np.fft.irfft2(spec * amp, s=(h, w)).astype(F)
    return out / (out.std() + F(1e-9))


def value_noise(rng, h, w, cell):
    """Lattice noise: random values on a grid, smoothly interpolated."""
    gh, gw = int(h / cell) + 3, int(w / cell) + 3
    grid = rng.standard_normal((gh, gw), dtype=F)
    y = np.arange(h, dtype=F) / F(cell)
    x = np.arange(w, dtype=F) / F(cell)
    iy, ix = y.astype(int), x.astype(int)
    ty, tx = y - iy, x - ix
    ty, tx = ty * ty * (3 - 2 * ty), tx * tx * (3 - 2 * tx)
    rows = grid[iy] * (1 - ty)[:, None] + grid[iy + 1] * ty[:, None]
    return rows[:, ix] * (1 - tx) + rows[:, ix + 1] * tx


def texture(rng, h, w):
    """One grey texture, zero mean, about unit deviation."""
    kind = rng.integers(9)
    if kind <= 2:
        t = spectrum(rng, h, w, rng.uniform(0.5, 1.8), 2.0 ** rng.uniform(-1.5, 1.5))
    elif kind == 3:
        t = -np.abs(spectrum(rng, h, w, rng.uniform(1.0, 1.8)))
    elif kind == 4:
        t = value_noise(rng, h, w, rng.uniform(3, 40)) + F(0.5) * value_noise(rng, h, w, rng.uniform(2, 12))
    elif kind == 5:
        yy, xx = mesh(h, w)
        a, step = rng.uniform(0, np.pi), rng.uniform(5, 40)
        bend = spectrum(rng, h, w, 2.2) * F(rng.uniform(0, 1.5) * step)
        p = (xx * np.cos(a) + yy * np.sin(a) + bend) * F(2 * np.pi / step)
        t = np.clip(np.sin(p) * F(rng.uniform(0.7, 6)), -1, 1)
    elif kind == 6:
        s = spectrum(rng, h, w, rng.uniform(0.9, 1.6))
        t = np.tanh((s - F(rng.uniform(-0.8, 0.8))) * F(rng.uniform(2, 12)))
    elif kind == 7:
        t = strands(rng, np.zeros((h, w, 1), F), rng.uniform(0, 2 * np.pi), np.ones((1, 1), F))[..., 0]
    else:
        yy, xx = mesh(h, w)
        a, bw, bh = rng.uniform(-0.3, 0.3), rng.uniform(14, 70), rng.uniform(8, 40)
        u, v = xx * F(np.cos(a)) + yy * F(np.sin(a)), yy * F(np.cos(a)) - xx * F(np.sin(a))
        row = np.floor(v / F(bh))
        u = u / F(bw) + F(0.5) * (row % 2)
        gap = F(rng.uniform(0.03, 0.15))
        joint = (u % 1 < gap * F(bh / bw)) | (v / F(bh) % 1 < gap)
        tone = np.sin(row * F(12.9898) + np.floor(u) * F(78.233)) * F(43758.547) % 1
        t = np.where(joint, F(rng.choice([-1.5, 1.5])), tone) + F(0.2) * spectrum(rng, h, w, 1)
    t = (t - t.mean()).astype(F)
    return t / (t.std() + F(1e-6))


def strands(rng, img, heading, colours, count=None, length=None):
    """Draws many thin curved lines (grass, hair, fibres) over `img`."""
    h, w, _ = img.shape
    n = int(count or rng.integers(400, 3000))
    steps = int(length or rng.integers(15, 90))
    y, x = rng.uniform(0, h, n), rng.uniform(0, w, n)
    a = heading + rng.normal(0, rng.uniform(0.05, 0.5), n)
    bend = rng.normal(0, 0.02, n)
    col = colours[rng.integers(len(colours), size=n)] * (1 + F(0.25) * rng.standard_normal((n, 1), dtype=F))
    wide = rng.integers(1, 4)
    for s in range(steps):
        fade = F(0.75 + 0.5 * s / steps)
        iy, ix = y.astype(int), x.astype(int)
        for d in range(wide):
            ok = (iy >= 0) & (iy < h) & (ix + d >= 0) & (ix + d < w)
            img[iy[ok], ix[ok] + d] = col[ok] * fade
        y += np.sin(a)
        x += np.cos(a)
        a += bend
    return img


# --------------------------------------------------------------------- colours


def mesh(h, w):
    return np.meshgrid(np.arange(h, dtype=F), np.arange(w, dtype=F), indexing="ij")


def colour(rng, n, lo=0.03, hi=0.97, sat=0.35):
    """Random colours: broad brightness, mostly muted chroma, some vivid."""
    light = rng.uniform(lo, hi, (n, 1))
    hue = rng.uniform(0, 2 * np.pi, (n, 1))
    strong = rng.beta(1.2, 3.0, (n, 1)) * sat * 2
    axes = hue + np.array([[0, -2 * np.pi / 3, 2 * np.pi / 3]])
    return np.clip(light * (1 + strong * np.cos(axes) * 1.2), 0, 1).astype(F)


def palette(rng, n):
    """Related colours: a few base colours and variations of their brightness."""
    base = colour(rng, rng.integers(2, 7), sat=rng.uniform(0.1, 0.6))
    pick = base[rng.integers(len(base), size=n)]
    gain = np.exp(rng.normal(0, 0.35, (n, 1)))
    return np.clip(pick * gain + rng.normal(0, 0.03, (n, 3)), 0, 1).astype(F)


def tint(grey, dark, light):
    """Maps a grey field in 0..1 onto the line between two colours."""
    return dark + (light - dark) * np.clip(grey, 0, 1)[..., None]


def gradient(rng, h, w, colours=None):
    c = colour(rng, 2, sat=0.4) if colours is None else colours
    yy, xx = mesh(h, w)
    a = rng.uniform(0, 2 * np.pi)
    t = (xx / w - F(0.5)) * F(np.cos(a)) + (yy / h - F(0.5)) * F(np.sin(a)) + F(0.5)
    if rng.random() < 0.3:
        cy, cx = rng.uniform(0, h), rng.uniform(0, w)
        t = np.sqrt((yy - F(cy)) ** 2 + (xx - F(cx)) ** 2) / F(rng.uniform(0.5, 1.2) * w)
    return tint(t, c[0], c[1])


def develop(rng, img):
    """Exposure, contrast and white balance as of a finished photograph."""
    lo, hi = np.quantile(img[::4, ::4], [0.01, 0.99])
    if rng.random() < 0.7 and hi - lo > 1e-3:
        a, b = rng.uniform(0, 0.15), rng.uniform(0.7, 1.05)
        img = (img - F(lo)) * F((b - a) / max(hi - lo, 0.15)) + F(a)
    img = np.maximum(img, 0) ** F(np.exp(rng.normal(0, 0.25)))
    return img * np.exp(rng.normal(0, 0.06, 3)).astype(F)


def soften(img, sigma):
    """Separable Gaussian blur with clamped edges."""
    r = max(1, int(3 * sigma + 0.5))
    k = np.exp(-0.5 * (np.arange(-r, r + 1) / sigma) ** 2).astype(F)
    k /= k.sum()
    n0, n1 = img.shape[:2]
    p = np.pad(img, ((r, r), (0, 0), (0, 0)), mode="edge")
    img = sum(k[i] * p[i : i + n0] for i in range(2 * r + 1))
    p = np.pad(img, ((0, 0), (r, r), (0, 0)), mode="edge")
    return sum(k[i] * p[:, i : i + n1] for i in range(2 * r + 1))


# ---------------------------------------------------------------------- styles


def gradients(rng, n):
    """Smooth ramps and soft blobs, now and then faintly textured."""
    img = gradient(rng, n, n)
    yy, xx = mesh(n, n)
    for c in palette(rng, rng.integers(2, 14)):
        cy, cx, s = rng.uniform(0, n), rng.uniform(0, n), rng.uniform(0.02, 0.35) * n
        d2 = ((yy - F(cy)) ** 2 + (xx - F(cx)) ** 2 * F(2.0 ** rng.uniform(-1, 1))) / F(s * s)
        m = np.exp(-d2) if rng.random() < 0.6 else F(0.5) - F(0.5) * np.tanh((d2 - 1) * F(rng.uniform(1, 15)))
        img += (m * F(rng.uniform(0.3, 1)))[..., None] * (c - img)
    if rng.random() < 0.4:
        img += texture(rng, n, n)[..., None] * F(rng.uniform(0.005, 0.03))
    return img


def fractal(rng, n):
    """Natural-spectrum colour fields: strong luminance, weaker chroma."""
    p = rng.uniform(0.9, 1.7)
    l = spectrum(rng, n, n, p) + F(rng.uniform(0, 0.6)) * texture(rng, n, n)
    chroma = [spectrum(rng, n, n, p + 0.2) * F(rng.uniform(0.1, 0.5)) for _ in range(2)]
    axes = np.array([[1, 1, 1], [1, 0, -1], [0.5, -1, 0.5]], F)
    img = sum(f[..., None] * axis for f, axis in zip([l] + chroma, axes))
    img = F(0.5) + img * F(rng.uniform(0.06, 0.25))
    return img * (F(0.6) + F(0.8) * colour(rng, 1, 0.4, 1)[0])


def leaves(rng, n):
    """Dead leaves: occluding shapes, power-law sizes, each with a texture."""
    img = gradient(rng, n, n) + texture(rng, n, n)[..., None] * F(rng.uniform(0, 0.08))
    tiles = [texture(rng, n, n) for _ in range(4)]
    count = int(rng.integers(300, 1600))
    rmin, rmax = 3 * 2.0 ** rng.uniform(0, 3), rng.uniform(0.15, 0.5) * n
    u = rng.random(count)
    radii = 1 / np.sqrt(u / rmin**2 + (1 - u) / rmax**2)  # density ~ r^-3
    if rng.random() < 0.5:
        radii = np.sort(radii)[::-1] * np.exp(rng.normal(0, 0.3, count))
    cols = palette(rng, count)
    shapes = rng.integers(4) if rng.random() < 0.4 else 4
    amp = rng.uniform(0.0, 0.2)
    for r, c in zip(radii, cols):
        cy, cx = rng.uniform(0, n, 2)
        y0, y1 = int(max(cy - r, 0)), int(min(cy + r + 1, n))
        x0, x1 = int(max(cx - r, 0)), int(min(cx + r + 1, n))
        if y1 <= y0 or x1 <= x0:
            continue
        dy = (np.arange(y0, y1, dtype=F) - F(cy))[:, None] / F(r)
        dx = (np.arange(x0, x1, dtype=F) - F(cx))[None, :] / F(r)
        a = rng.uniform(0, np.pi)
        p, q = dx * F(np.cos(a)) + dy * F(np.sin(a)), dy * F(np.cos(a)) - dx * F(np.sin(a))
        kind = shapes if shapes < 4 else rng.integers(4)
        ratio = F(rng.uniform(0.25, 1))
        if kind == 0:
            m = dx * dx + dy * dy < 1
        elif kind == 1:
            m = p * p + (q / ratio) ** 2 < 1
        elif kind == 2:
            m = (np.abs(p) < F(0.7)) & (np.abs(q) < F(0.7) * ratio)
        else:
            m = (q > F(-0.5)) & (np.abs(p) * F(1.7) + q < F(0.9))
        tile = tiles[rng.integers(4)]
        f = F(amp * rng.uniform(0, 1.5)) * tile[y0:y1, x0:x1] + F(rng.uniform(0, 0.35)) * q
        patch = c * (1 + f[..., None])
        if rng.random() < 0.1:
            patch = c + F(0.5) * f[..., None]
        view = img[y0:y1, x0:x1]
        np.copyto(view, patch, where=m[..., None])
    return img


def shapes(rng, n):
    """Flat, sharp-edged polygons, discs and bars, as in graphics."""
    img = gradient(rng, n, n) if rng.random() < 0.5 else np.tile(colour(rng, 1)[0], (n, n, 1))
    yy, xx = mesh(n, n)
    for c in palette(rng, rng.integers(8, 50)) if rng.random() < 0.6 else colour(rng, rng.integers(8, 40)):
        cy, cx = rng.uniform(0, n, 2)
        r = n * 2.0 ** rng.uniform(-6, -1.2)
        if rng.random() < 0.3:
            d = np.hypot(yy - F(cy), xx - F(cx))
            m = d < F(r)
            if rng.random() < 0.5:
                m &= d > F(r * rng.uniform(0.4, 0.97))
        else:
            m = np.ones((n, n), bool)
            sides = rng.integers(3, 8)
            for a in rng.uniform(0, 2 * np.pi) + np.arange(sides) * 2 * np.pi / sides:
                a += rng.normal(0, 0.2)
                lim = F(r * rng.uniform(0.15, 1))
                m &= (xx - F(cx)) * F(np.cos(a)) + (yy - F(cy)) * F(np.sin(a)) < lim
        img[m] = c if rng.random() < 0.8 else img[m] * F(0.5) + c * F(0.5)
    return img


def segment(img, y0, x0, y1, x1, thick, c):
    """One thick line segment with round ends."""
    h, w, _ = img.shape
    t = thick / 2 + 1
    a, b = int(max(min(y0, y1) - t, 0)), int(min(max(y0, y1) + t + 1, h))
    l, r = int(max(min(x0, x1) - t, 0)), int(min(max(x0, x1) + t + 1, w))
    if b <= a or r <= l:
        return
    py = np.arange(a, b, dtype=F)[:, None] - F(y0)
    px = np.arange(l, r, dtype=F)[None, :] - F(x0)
    dy, dx = y1 - y0, x1 - x0
    k = np.clip((py * F(dy) + px * F(dx)) / F(dy * dy + dx * dx + 1e-6), 0, 1)
    m = (py - k * F(dy)) ** 2 + (px - k * F(dx)) ** 2 < F(thick * thick / 4)
    np.copyto(img[a:b, l:r], c, where=m[..., None])


def strokes(rng, n):
    """Lines of invented glyphs, and loose pen strokes, on paper or pictures."""
    r = rng.random()
    if r < 0.5:
        img = np.tile(colour(rng, 1, 0.0, 1.0)[0], (n, n, 1))
        img = img + texture(rng, n, n)[..., None] * F(rng.uniform(0, 0.03))
    else:
        img = gradients(rng, n) if r < 0.8 else fractal(rng, n)
    mean = img.mean()
    y = rng.uniform(4, 30)
    while y < n:
        size = rng.uniform(12, 60) if rng.random() < 0.8 else rng.uniform(60, 160)
        ink = colour(rng, 1, 0, 0.3)[0] if mean > 0.5 else colour(rng, 1, 0.6, 1)[0]
        if rng.random() < 0.2:
            ink = colour(rng, 1, sat=0.6)[0]
        thick = size * rng.uniform(0.07, 0.2)
        slant = rng.uniform(-0.2, 0.3)
        x = rng.uniform(4, 40)
        while x < n:
            wide = size * rng.uniform(0.35, 0.65)
            if rng.random() < 0.14:
                x += wide
                continue
            gy, gx = rng.integers(0, 3, 5) / 2, rng.integers(0, 3, 5) / 2
            for i in range(rng.integers(1, 5)):
                xa, xb = x + gx[i] * wide - gy[i] * slant * size, x + gx[i + 1] * wide - gy[i + 1] * slant * size
                segment(img, y + gy[i] * size, xa, y + gy[i + 1] * size, xb, thick, ink)
            x += wide * rng.uniform(1.25, 1.5)
        y += size * rng.uniform(1.3, 2.2)
    for c in colour(rng, rng.integers(0, 12)):
        py, px = rng.uniform(0, n, 2)
        a, thick = rng.uniform(0, 2 * np.pi), rng.uniform(1.5, 10)
        for _ in range(rng.integers(3, 40)):
            qy, qx = py + 12 * np.sin(a), px + 12 * np.cos(a)
            segment(img, py, px, qy, qx, thick, c)
            py, px, a = qy, qx, a + rng.normal(0, 0.3)
    return img


def stripes(rng, n):
    """Stripes, checks, weaves and chirps, straight or bent."""
    yy, xx = mesh(n, n)
    img = gradient(rng, n, n)
    for _ in range(rng.integers(1, 4)):
        c = palette(rng, 2)
        a, step = rng.uniform(0, np.pi), 2.0 ** rng.uniform(2.3, 6.5)
        bend = spectrum(rng, n, n, 2.3) * F(rng.choice([0, rng.uniform(0, 30)]))
        u = xx * F(np.cos(a)) + yy * F(np.sin(a)) + bend
        v = yy * F(np.cos(a)) - xx * F(np.sin(a)) + bend
        if rng.random() < 0.2:
            u = u * (1 + u * F(rng.uniform(0, 1.5) / n))
        if rng.random() < 0.15:
            u = np.hypot(yy - F(rng.uniform(0, n)), xx - F(rng.uniform(0, n)))
        wave = np.sin(u * F(2 * np.pi / step))
        if rng.random() < 0.4:
            wave = wave * np.sin(v * F(2 * np.pi / step * rng.choice([1, 0.5, 2])))
        wave = np.clip(wave * F(2.0 ** rng.uniform(0, 5)), -1, 1) * F(0.5) + F(0.5)
        part = value_noise(rng, n, n, rng.uniform(0.15, 0.5) * n) > rng.uniform(-0.6, 0.3)
        img = np.where(part[..., None], tint(wave, c[0], c[1]), img)
    return img + texture(rng, n, n)[..., None] * F(rng.uniform(0, 0.04))


def landscape(rng, n):
    """Sky, clouds, ridges in haze, ground with grass, sometimes water."""
    yy, xx = mesh(n, n)
    horizon = rng.uniform(0.25, 0.7) * n
    zenith = np.array([0.15, 0.35, 0.7], F) * F(rng.uniform(0.4, 1.2)) + rng.normal(0, 0.08, 3).astype(F)
    low = np.array([0.8, 0.8, 0.8], F) + rng.normal(0, 0.15, 3).astype(F)
    img = tint(yy / F(horizon), zenith, low)
    cloud = spectrum(rng, n, n, rng.uniform(1.4, 1.9), rng.uniform(0.25, 0.7))
    cover = np.clip((cloud - F(rng.uniform(-0.5, 1.2))) * F(rng.uniform(0.4, 2.5)), 0, 1)
    shade = F(0.85) + F(0.12) * spectrum(rng, n, n, 1.6)
    img = img + cover[..., None] * (shade[..., None] * (low * F(0.3) + F(0.7)) - img)
    if rng.random() < 0.4:
        cy, cx, r = rng.uniform(0, horizon), rng.uniform(0, n), rng.uniform(6, 40)
        d = np.hypot(yy - F(cy), xx - F(cx))
        img += (np.exp(-d / F(r * 4)) * F(0.4) + (d < r))[..., None] * np.array([1, 0.9, 0.7], F)
    layers = int(rng.integers(2, 6))
    sun = rng.choice([-1, 1])
    for i in range(layers):
        t = (i + 1) / layers
        base = horizon + (n - horizon) * 0.7 * t**2 - rng.uniform(0, 0.15) * n * (1 - t)
        line = spectrum(rng, 1, n, rng.uniform(1.0, 1.9))[0]
        edge = F(base) - line * F(n * rng.uniform(0.02, 0.12) * (1.2 - t))
        body = colour(rng, 1, 0.08, 0.45, 0.4)[0] * np.array([1, 1.1, 0.8], F)
        rough = spectrum(rng, n, n, rng.uniform(0.6, 1.4), rng.uniform(0.5, 2))
        relief = np.roll(rough, 2, 1) - np.roll(rough, -2, 1)
        lit = F(1) + F(0.15) * rough + F(sun * rng.uniform(0.1, 0.6)) * relief
        ground = body * lit[..., None]
        if t > 0.5 and rng.random() < 0.7:
            tones = np.concatenate([palette(rng, 3) * F(0.5), body[None] * F(1.4), body[None] * F(0.7)])
            ground = strands(rng, ground, -np.pi / 2, tones, count=rng.integers(500, 9000), length=rng.integers(6, 60))
        elif rng.random() < 0.4:
            ground = ground * (F(0.55) + F(0.9) * (spectrum(rng, n, n, 0.8) > 0.3))[..., None]
        haze = F((1 - t) * rng.uniform(0.4, 0.9))
        ground = ground * (1 - haze) + (low * F(0.6) + zenith * F(0.4)) * haze
        img = np.where((yy > edge)[..., None], ground, img)
    if rng.random() < 0.3:
        shore = int(rng.uniform(0.55, 0.85) * n)
        rows = np.clip(2 * shore - np.arange(shore, n), 0, n - 1)
        flow = spectrum(rng, n - shore, n, 1.0, 0.15)
        shift = (np.arange(n)[None, :] + (flow * F(4)).astype(int)) % n
        mirror = img[rows[:, None], shift]
        img[shore:] = mirror * F(rng.uniform(0.5, 0.9)) + zenith * F(0.15) + flow[..., None] * F(0.03)
    for _ in range(rng.integers(0, 4)):
        tree(rng, img)
    return img


def tree(rng, img):
    """Bare branching tree, or one with small round leaves."""
    n = img.shape[0]
    bark = colour(rng, 1, 0.02, 0.3, 0.2)[0]
    leaf = palette(rng, 5) * np.array([0.7, 0.9, 0.4], F)
    full = rng.random() < 0.6
    todo = [(rng.uniform(0.6, 1.0) * n, rng.uniform(0, n), -np.pi / 2, rng.uniform(0.06, 0.2) * n, rng.uniform(6, 18))]
    while todo:
        y, x, a, size, thick = todo.pop()
        y1, x1 = y + size * np.sin(a), x + size * np.cos(a)
        segment(img, y, x, y1, x1, thick, bark)
        if thick > 1.6:
            for s in (-1, 1):
                todo.append((y1, x1, a + s * rng.uniform(0.15, 0.7), size * rng.uniform(0.6, 0.85), thick * 0.68))
        elif full:
            for _ in range(3):
                v, u = y1 + rng.normal(0, 8), x1 + rng.normal(0, 8)
                segment(img, v, u, v, u + 1, rng.uniform(3, 9), leaf[rng.integers(5)])


def weave(rng, n):
    """Fur, grass and fibre fields flowing along changing headings."""
    img = gradient(rng, n, n, palette(rng, 2) * F(0.6))
    tones = palette(rng, 12)
    heading = rng.uniform(0, 2 * np.pi)
    for _ in range(rng.integers(2, 6)):
        img = strands(rng, img, heading + rng.normal(0, 0.5), tones, count=rng.integers(800, 6000))
    return img * (1 + F(rng.uniform(0, 0.2)) * spectrum(rng, n, n, 1.8))[..., None]


# Held out: never shown in training.


def city(rng, n):
    """Blocks of buildings with window grids under an evening or day sky."""
    yy, xx = mesh(n, n)
    img = tint(yy / F(0.7 * n), colour(rng, 1, 0.2, 0.7)[0], colour(rng, 1, 0.6, 1)[0])
    img += spectrum(rng, n, n, 1.7)[..., None] * F(0.03)
    for i in range(int(rng.integers(6, 16))):
        wide, x0 = int(rng.uniform(0.08, 0.3) * n), int(rng.uniform(-0.1, 0.95) * n)
        top = int(rng.uniform(0.1, 0.6) * n + i * 0.02 * n)
        x0, x1 = max(x0, 0), min(x0 + wide, n)
        if x1 - x0 < 8 or top >= n:
            continue
        wall = colour(rng, 1, 0.1, 0.8, 0.25)[0]
        y, x = yy[top:, x0:x1] - F(top), xx[top:, x0:x1] - F(x0)
        face = wall * (1 + F(0.06) * spectrum(rng, n - top, x1 - x0, 0.7)[..., None])
        sy, sx = rng.uniform(10, 40), rng.uniform(8, 30)
        my, mx = rng.uniform(0.2, 0.5), rng.uniform(0.15, 0.5)
        pane = (y / F(sy) % 1 > my) & (x / F(sx) % 1 > mx)
        key = np.sin(np.floor(y / F(sy)) * F(12.9898) + np.floor(x / F(sx)) * F(78.233) + i) * F(43758.547) % 1
        glass = tint(key, wall * F(0.2), colour(rng, 1, 0.5, 1, 0.5)[0])
        img[top:, x0:x1] = np.where(pane[..., None], glass, face)
    return img


def cells(rng, n):
    """Voronoi cells with rounded shading: pebbles, skin, cracked earth."""
    yy, xx = mesh(n, n)
    step = rng.uniform(14, 90)
    warp = spectrum(rng, n, n, 2.0) * F(rng.uniform(0, 0.25) * step)
    y, x = (yy + warp) / F(step), (xx - warp) / F(step)
    iy, ix = np.floor(y).astype(int), np.floor(x).astype(int)
    off, m = 40, int(n / step) + 100
    pts, ident = rng.random((m, m, 2), dtype=F), np.arange(m * m).reshape(m, m)
    near, second, who = np.full((n, n), 9, F), np.full((n, n), 9, F), np.zeros((n, n), int)
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            gy, gx = np.clip(iy + dy + off, 0, m - 1), np.clip(ix + dx + off, 0, m - 1)
            p = pts[gy, gx]
            d = np.hypot(iy + dy + p[..., 0] - y, ix + dx + p[..., 1] - x).astype(F)
            closer = d < near
            second = np.where(closer, near, np.minimum(second, d))
            who = np.where(closer, ident[gy, gx], who)
            near = np.where(closer, d, near)
    cols = palette(rng, m * m)
    wall = np.clip((second - near) * F(rng.uniform(3, 15)), 0, 1)
    lit = (1 - F(rng.uniform(0, 0.7)) * near) * (F(0.25) + F(0.75) * wall)
    grain = texture(rng, n, n) * F(rng.uniform(0, 0.12))
    return cols[who] * (lit * (1 + grain))[..., None]


def wood(rng, n):
    """Growth rings and knots in planks."""
    yy, xx = mesh(n, n)
    img = np.zeros((n, n, 3), F)
    y = 0
    a = rng.random() < 0.5
    while y < n:
        k = int(rng.uniform(0.1, 0.6) * n)
        h = min(k, n - y)
        dark, light = np.sort(colour(rng, 2, 0.1, 0.8, 0.2), axis=0) * np.array([1.1, 0.85, 0.6], F)
        ring = np.hypot((yy[:h] - F(rng.uniform(-2, 3) * k)) * F(rng.uniform(2, 8)), xx[:h] - F(rng.uniform(0, n)))
        ring = ring + spectrum(rng, n, n, 2.0, 3.0)[:h] * F(rng.uniform(5, 40))
        g = (ring / F(rng.uniform(8, 50))) % 1
        fibre = spectrum(rng, n, n, 0.9, 0.06)[:h]
        img[y : y + h] = tint(g * g * F(0.7) + F(0.2) + F(0.12) * fibre, light, dark)
        img[y : y + 2] *= F(0.3)
        y += h
    return img if a else img.transpose(1, 0, 2)


TRAIN = {f.__name__: f for f in (leaves, landscape, fractal, gradients, shapes, strokes, stripes, weave)}
HELD_OUT = {f.__name__: f for f in (city, cells, wood)}
STYLES = {**TRAIN, **HELD_OUT}
# How often training draws each style.
MIX = {
    "leaves": 9, "landscape": 4, "fractal": 3, "gradients": 2,
    "shapes": 2, "strokes": 2, "stripes": 2, "weave": 2,
}  # fmt: skip


def picture(style, seed, size=256):
    """The picture of this style and seed, float32 `[size, size, 3]` in 0..1."""
    rng = np.random.default_rng([list(STYLES).index(style), seed])
    img = STYLES[style](rng, 2 * size).astype(F)
    img = np.clip(develop(rng, img), 0, 1)
    if rng.random() < 0.5:
        img = soften(img, rng.uniform(0.4, 2.0) if rng.random() < 0.8 else rng.uniform(2.0, 6.0))
    img = img.reshape(size, 2, size, 2, 3).mean((1, 3))
    return np.clip(img, 0, 1).astype(F)


def schedule(count, seed):
    """`count` (style, seed) pairs in the proportions of MIX."""
    order = [s for s, k in MIX.items() for _ in range(k)]
    return [(order[i % len(order)], seed + i) for i in range(count)]


def add_noise(rng, clean, sigma, shot=0.0):
    """Sensor noise of deviation `sigma` at mid grey, clipped to 0..1.

    `shot` is the part of the variance that grows with the signal.
    """
    var = sigma * sigma * (1 - shot + shot * 2 * clean)
    return np.clip(clean + np.sqrt(var) * rng.standard_normal(clean.shape), 0, 1).astype(F)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", default="sheets", help="folder for the contact sheets")
    ap.add_argument("--size", type=int, default=192)
    ap.add_argument("--count", type=int, default=6, help="pictures a style")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for style in STYLES:
        row = np.concatenate([picture(style, args.seed + i, args.size) for i in range(args.count)], axis=1)
        data = (row * 255 + 0.5).astype(np.uint8)
        head = f"P6 {data.shape[1]} {data.shape[0]} 255\n".encode()
        (out / f"{style}.ppm").write_bytes(head + data.tobytes())
        print(style)


if __name__ == "__main__":
    main()
