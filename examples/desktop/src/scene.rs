//! The frames to filter: a moving test card, or a picture from a file. Pixels are planes of red, green and blue, 0 to 1.

use std::path::Path;

/// What every frame of a source begins with.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    width: usize,
    height: usize,
    planes: Vec<f32>,
    noise: Vec<f32>,
    moves: bool,
}

/// Colour bars at three quarters of full brightness, from left to right.
pub(crate) const BARS: [[f32; 3]; 8] = [
    [0.75, 0.75, 0.75],
    [0.75, 0.75, 0.0],
    [0.0, 0.75, 0.75],
    [0.0, 0.75, 0.0],
    [0.75, 0.0, 0.75],
    [0.75, 0.0, 0.0],
    [0.0, 0.0, 0.75],
    [0.0, 0.0, 0.0],
];

/// Part of the test card's height that the bars take.
pub(crate) const BARS_DOWN_TO: f32 = 0.5;

const DISC: [f32; 3] = [1.0, 0.55, 0.1];

impl Picture {
    /// The test card: bars, rings that get finer to the outside, a ramp, and a disc that moves over all of them.
    pub(crate) fn test_card(width: usize, height: usize) -> Picture {
        let size = |n: usize| n.max(1) as f32;
        let planes = draw(width, height, |column, row| {
            let (x, y) = ((column as f32 + 0.5) / size(width), (row as f32 + 0.5) / size(height));
            if y < BARS_DOWN_TO {
                return BARS[(column * BARS.len() / width.max(1)).min(BARS.len() - 1)];
            }
            if x < 0.5 {
                let (dx, dy) = (column as f32 - size(width) * 0.25, row as f32 - size(height) * 0.75);
                let rings = 0.5 + 0.5 * ((dx * dx + dy * dy) * 2.0 / size(height)).cos();
                return [0.1 + 0.5 * rings, 0.2 + 0.6 * rings, 0.3 + 0.6 * rings];
            }
            let grey = (x - 0.5) * 2.0;
            if y < 0.75 { [grey; 3] } else { [grey, 0.6 * (1.0 - grey), 0.8 - 0.5 * grey] }
        });
        Picture::new(width, height, planes, true)
    }

    /// The picture of a file, png or jpeg, made to fill `width` x `height`.
    ///
    /// # Errors
    /// Why it cannot be read, as a sentence.
    pub(crate) fn open(path: &Path, width: usize, height: usize) -> Result<Picture, String> {
        let failed = |why: &dyn std::fmt::Display| format!("{} is not opened: {why}", path.display());
        let mut reader = image::ImageReader::open(path)
            .and_then(image::ImageReader::with_guessed_format)
            .map_err(|e| failed(&e))?;
        let mut limits = image::Limits::default();
        limits.max_image_width = Some(32_768);
        limits.max_image_height = Some(32_768);
        limits.max_alloc = Some(1 << 30);
        reader.limits(limits);
        let picture = reader.decode().map_err(|e| failed(&e))?;
        let filter = image::imageops::FilterType::Triangle;
        let pixels = picture.resize_to_fill(width as u32, height as u32, filter).to_rgb32f().into_raw();
        let planes = (0..3).flat_map(|c| pixels.iter().skip(c).step_by(3).copied()).collect();
        Ok(Picture::new(width, height, planes, false))
    }

    fn new(width: usize, height: usize, planes: Vec<f32>, moves: bool) -> Picture {
        Picture { width, height, noise: normal(planes.len() + width), planes, moves }
    }

    /// Draws frame `frame` into memory of the application's: the picture, what moves, and noise of deviation `noise`
    /// (of 255), clipped.
    pub(crate) fn draw(&self, frame: u64, noise: f32, to: &mut [f32]) {
        let pixels = self.planes.len().min(to.len());
        let (to, _) = to.split_at_mut(pixels);
        to.copy_from_slice(&self.planes[..pixels]);
        if self.moves {
            self.draw_disc(frame, to);
        }
        if noise > 0.0 {
            // Another start in each frame, so that the noise moves.
            let start = (frame.wrapping_mul(2_654_435_761) % self.width.max(1) as u64) as usize;
            for (value, noisy) in to.iter_mut().zip(&self.noise[start..]) {
                *value = (*value + noisy * noise / 255.0).clamp(0.0, 1.0);
            }
        }
    }

    fn draw_disc(&self, frame: u64, to: &mut [f32]) {
        let (width, height) = (self.width as f32, self.height as f32);
        let radius = height / 9.0;
        let there_and_back = |period: u64| {
            let phase = (frame % period) as f32 / period as f32;
            1.0 - (2.0 * phase - 1.0).abs()
        };
        let x = radius + (width - 2.0 * radius) * there_and_back(240);
        let y = radius + (height - 2.0 * radius) * there_and_back(170);
        let rows = (y - radius).max(0.0) as usize..((y + radius) as usize + 1).min(self.height);
        for row in rows {
            let dy = row as f32 + 0.5 - y;
            let half = (radius * radius - dy * dy).max(0.0).sqrt();
            let from = ((x - half).max(0.0) as usize).min(self.width);
            let up_to = ((x + half) as usize).clamp(from, self.width);
            for (plane, value) in to.chunks_exact_mut(self.width * self.height).zip(DISC) {
                plane[row * self.width + from..row * self.width + up_to].fill(value);
            }
        }
    }
}

fn draw(width: usize, height: usize, pixel: impl Fn(usize, usize) -> [f32; 3]) -> Vec<f32> {
    let plane = width * height;
    let mut planes = vec![0.0; 3 * plane];
    for row in 0..height {
        for column in 0..width {
            for (c, value) in pixel(column, row).into_iter().enumerate() {
                planes[c * plane + row * width + column] = value;
            }
        }
    }
    planes
}

/// Numbers of mean 0 and deviation 1, the same at every call.
fn normal(count: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut uniform = || {
        // xorshift64*, Vigna 2016.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1u32 << 24) as f32
    };
    // Box and Muller, 1958.
    let mut one = || {
        let (a, b) = (uniform().max(1e-7), uniform());
        (-2.0 * a.ln()).sqrt() * (std::f32::consts::TAU * b).cos()
    };
    (0..count).map(|_| one()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: (usize, usize) = (320, 184);

    fn drawn(picture: &Picture, frame: u64, noise: f32) -> Vec<f32> {
        let mut planes = vec![f32::NAN; 3 * SIZE.0 * SIZE.1];
        picture.draw(frame, noise, &mut planes);
        planes
    }

    #[test]
    fn the_card_has_its_bars_and_something_that_moves() {
        let card = Picture::test_card(SIZE.0, SIZE.1);
        let (first, later) = (drawn(&card, 0, 0.0), drawn(&card, 60, 0.0));
        let plane = SIZE.0 * SIZE.1;
        for (bar, colour) in BARS.iter().enumerate() {
            // Away from the disc, which begins in the corner.
            let at = 80 * SIZE.0 + bar * 40 + 20;
            assert_eq!([first[at], first[plane + at], first[2 * plane + at]], *colour);
        }
        let differ = first.iter().zip(&later).filter(|(a, b)| a != b).count();
        assert!(differ > 500, "{differ} values moved");
    }

    #[test]
    fn noise_has_the_deviation_that_was_asked_for() {
        let card = Picture::test_card(SIZE.0, SIZE.1);
        let (clean, noisy) = (drawn(&card, 3, 0.0), drawn(&card, 3, 10.0));
        // Where nothing is clipped.
        let inner = clean.iter().zip(&noisy).filter(|(v, _)| (0.3..0.7).contains(*v));
        let squares: Vec<f32> = inner.map(|(a, b)| ((a - b) * 255.0).powi(2)).collect();
        let deviation = (squares.iter().sum::<f32>() / squares.len() as f32).sqrt();
        assert!((9.5..10.5).contains(&deviation), "{deviation}");
        assert!(noisy.iter().all(|v| (0.0..=1.0).contains(v)));
        assert_ne!(drawn(&card, 4, 10.0), noisy);
    }

    #[test]
    fn files_that_are_no_pictures_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.png");
        std::fs::write(&path, "not a picture").unwrap();
        let error = Picture::open(&path, 64, 64).unwrap_err();
        assert!(error.contains("text.png is not opened: "), "{error}");
        let error = Picture::open(Path::new("/none.png"), 64, 64).unwrap_err();
        assert!(error.starts_with("/none.png is not opened: No such file"), "{error}");
    }
}
