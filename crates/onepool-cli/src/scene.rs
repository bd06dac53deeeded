//! The picture that the demo draws where the caller names none, and the noise laid on it.

/// Pixels in planes: red, green, blue, each of `width * height` values from 0 to 1.
#[derive(Clone, Debug)]
pub(super) struct Planes {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) values: Vec<f32>,
}

impl Planes {
    /// Calls `f(x, y)` for every pixel; coordinates run from 0 to 1 along the height.
    fn draw(width: usize, height: usize, f: impl Fn(f32, f32) -> [f32; 3]) -> Self {
        let plane = width * height;
        let mut values = vec![0.0; 3 * plane];
        for row in 0..height {
            for column in 0..width {
                let (x, y) = ((column as f32 + 0.5) / height as f32, (row as f32 + 0.5) / height as f32);
                for (c, v) in f(x, y).into_iter().enumerate() {
                    values[c * plane + row * width + column] = v.clamp(0.0, 1.0);
                }
            }
        }
        Planes { width, height, values }
    }

    /// A landscape: sky and sun, ridges, water, a pier with planks, a striped sail.
    pub(super) fn scene(width: usize, height: usize) -> Self {
        let ratio = width as f32 / height.max(1) as f32;
        Planes::draw(width, height, |x, y| pixel(x / ratio * 1.78, y))
    }

    /// The same pixels with Gaussian noise of deviation `sigma` (of 255), clipped; the same at every call.
    pub(super) fn noisy(&self, sigma: f32) -> Self {
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut uniform = || {
            // xorshift64*, Vigna 2016.
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1u32 << 24) as f32
        };
        let values = self
            .values
            .iter()
            .map(|v| {
                // Box and Muller, 1958.
                let (a, b) = (uniform().max(1e-7), uniform());
                let normal = (-2.0 * a.ln()).sqrt() * (std::f32::consts::TAU * b).cos();
                (v + normal * sigma / 255.0).clamp(0.0, 1.0)
            })
            .collect();
        Planes { values, ..*self }
    }

    /// The same pixels behind grey haze, as 8-bit values: `part` of the light is the scene's, the rest is `grey`.
    pub(super) fn hazy(&self, part: f32, grey: f32) -> Self {
        let haze = |v: &f32| ((v * part + grey * (1.0 - part)) * 255.0).round() / 255.0;
        Planes { values: self.values.iter().map(haze).collect(), ..*self }
    }

    /// Peak signal-to-noise ratio against `other` in dB.
    pub(super) fn psnr(&self, other: &[f32]) -> f64 {
        let sum: f64 = self.values.iter().zip(other).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        -10.0 * (sum / self.values.len().max(1) as f64).max(1e-12).log10()
    }

    /// The pixels as bytes, red, green and blue side by side.
    pub(super) fn to_rgb8(&self) -> Vec<u8> {
        let plane = self.width * self.height;
        (0..plane)
            .flat_map(|i| (0..3).map(move |c| c * plane + i))
            .map(|i| (self.values[i] * 255.0 + 0.5) as u8)
            .collect()
    }
}

fn hash(x: i32, y: i32) -> f32 {
    let mut h = (x as u32).wrapping_mul(0x85EB_CA6B) ^ (y as u32).wrapping_mul(0xC2B2_AE35);
    h ^= h >> 15;
    h = h.wrapping_mul(0x2C1B_3C6D);
    h ^= h >> 12;
    (h & 0xFFFF) as f32 / 65535.0
}

/// Value noise: smooth between random lattice points.
fn noise(x: f32, y: f32) -> f32 {
    let (xi, yi) = (x.floor(), y.floor());
    let smooth = |t: f32| t * t * (3.0 - 2.0 * t);
    let (u, v) = (smooth(x - xi), smooth(y - yi));
    let at = |dx: i32, dy: i32| hash(xi as i32 + dx, yi as i32 + dy);
    let top = at(0, 0) + (at(1, 0) - at(0, 0)) * u;
    let bottom = at(0, 1) + (at(1, 1) - at(0, 1)) * u;
    top + (bottom - top) * v
}

fn fractal(x: f32, y: f32) -> f32 {
    (0..5).map(|o| noise(x * (1 << o) as f32, y * (1 << o) as f32) / (2 << o) as f32).sum()
}

fn mix(a: [f32; 3], b: [f32; 3], t: f32) -> [f32; 3] {
    let t = t.clamp(0.0, 1.0);
    [0, 1, 2].map(|c| a[c] + (b[c] - a[c]) * t)
}

fn pixel(x: f32, y: f32) -> [f32; 3] {
    let mut c = mix([0.22, 0.42, 0.72], [0.98, 0.78, 0.55], y / 0.55);
    c = mix(c, [0.97, 0.95, 0.93], (fractal(x * 3.0, y * 7.0) - 0.48) * 2.2 * (1.0 - y));
    let sun = ((x - 1.25).powi(2) + (y - 0.3).powi(2)).sqrt();
    c = mix(c, [1.0, 0.96, 0.82], (0.075 - sun) * 200.0);
    for (k, base) in [(1.0f32, 0.42f32), (2.0, 0.5)] {
        let ridge = base - 0.16 * fractal(x * 2.0 * k + 7.0 * k, k) + 0.04;
        let rock = 0.25 + 0.35 * fractal(x * 18.0 * k, y * 26.0 * k);
        let colour = [rock * 0.72 + 0.1 / k, rock * 0.8 + 0.09 / k, rock * 0.75 + 0.2 / k];
        c = mix(c, colour, (y - ridge) * 300.0);
    }
    if y > 0.6 {
        let depth = y - 0.6;
        let wave = fractal(x * 9.0 / (0.3 + depth * 3.0), depth.sqrt() * 60.0);
        c = mix([0.16, 0.36, 0.44], [0.62, 0.74, 0.76], (wave - 0.3) * 1.6);
        c = mix(c, [1.0, 0.9, 0.7], (0.12 - (x - 1.25).abs() / (0.4 + depth)) * 3.0 * (wave - 0.3));
    }
    // The sail: stripes with sharp edges, and a thin mast.
    let (sx, sy) = (x - 0.62, y - 0.62);
    if sx > 0.0 && sx < 0.2 + sy * 0.45 && sy < 0.0 && sy > -0.34 {
        let stripe = ((sx * 34.0).floor() as i32) % 2 == 0;
        c = if stripe { [0.86, 0.2, 0.16] } else { [0.95, 0.93, 0.88] };
    }
    if (-0.008..0.0).contains(&sx) && (-0.38..0.02).contains(&sy) {
        c = [0.25, 0.16, 0.1];
    }
    if (0.0..0.045).contains(&sy) && sx > -0.14 + sy && sx < 0.24 - sy {
        c = mix([0.35, 0.2, 0.12], [0.5, 0.32, 0.2], noise(sx * 60.0, sy * 200.0));
    }
    // The pier: planks with gaps, running away.
    let px = (x - 0.2) / (y - 0.52).max(0.01);
    if y > 0.8 && px.abs() < 0.9 {
        let plank = (1.0 / (y - 0.52) * 9.0).fract();
        let grain = 0.35 + 0.3 * fractal(px * 30.0, (1.0 / (y - 0.52) * 9.0).floor() * 3.0);
        c = if plank < 0.08 { [0.08, 0.06, 0.05] } else { [grain * 1.1, grain * 0.85, grain * 0.6] };
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_the_deviation_asked_for_and_is_the_same_each_time() {
        let flat = Planes { width: 64, height: 64, values: vec![0.5; 3 * 64 * 64] };
        let noisy = flat.noisy(25.0);
        let psnr = flat.psnr(&noisy.values);
        assert!((psnr - 20.17).abs() < 0.3, "{psnr}");
        assert_eq!(noisy.values, flat.noisy(25.0).values);
        assert_eq!(noisy.to_rgb8().len(), 3 * 64 * 64);
    }

    #[test]
    fn the_scene_has_detail_everywhere() {
        let s = Planes::scene(160, 96);
        let rows: Vec<&[f32]> = s.values.chunks(160).collect();
        assert!(rows.iter().filter(|r| r.iter().any(|v| *v != r[0])).count() > 280);
        assert!(s.values.iter().all(|v| (0.0..=1.0).contains(v)));
    }
}
