//! Colour: from components to red, green and blue, and back, as integer coefficients.

use super::PixelFormat;

/// The matrix between luma and chroma, and red, green and blue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ColorMatrix {
    /// ITU-R BT.601: standard definition, JPEG, most webcams.
    Bt601,
    /// ITU-R BT.709: high definition.
    #[default]
    Bt709,
    /// ITU-R BT.2020 with non-constant luminance.
    Bt2020,
}

/// The numbers that stand for black and white.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColorRange {
    /// Luma from 16 to 235 and chroma from 16 to 240 (of 8 bits): "MPEG", "studio".
    Limited,
    /// All numbers: "JPEG", "PC".
    Full,
}

impl ColorMatrix {
    /// Every matrix.
    pub const ALL: [ColorMatrix; 3] = [ColorMatrix::Bt601, ColorMatrix::Bt709, ColorMatrix::Bt2020];

    /// The weights of red, green and blue in luma.
    fn luma(self) -> [f64; 3] {
        let [r, b] = match self {
            ColorMatrix::Bt601 => [0.299, 0.114],
            ColorMatrix::Bt709 => [0.2126, 0.0722],
            ColorMatrix::Bt2020 => [0.2627, 0.0593],
        };
        [r, 1.0 - r - b, b]
    }
}

/// The places after the binary point of results: of decoding in units of 8 bits, of encoding in those of a sample of 8
/// bits.
pub(crate) const POINT: u32 = 21;

/// Places after the binary point of values that [`Affine`] takes when it decodes a sample of `bits`.
pub(crate) fn fraction(bits: u32) -> u32 {
    14 - bits
}

/// Places after the binary point of red, green and blue that are encoded.
pub(crate) const ENCODED_FRACTION: u32 = 6;

/// `rows * x + bias`, in 32 bits without overflow for all samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Affine {
    pub(crate) rows: [[i32; 3]; 3],
    pub(crate) bias: [i32; 3],
}

/// The zero and the distance from black to white of a component.
fn levels(format: PixelFormat, range: ColorRange, component: usize) -> [f64; 2] {
    let bits = format.bits();
    let (unit, white) = (f64::from(1u32 << (bits - 8)), f64::from((1u32 << bits) - 1));
    let is_chroma = format.is_yuv() && component > 0;
    match (range, is_chroma) {
        (ColorRange::Limited, false) => [16.0 * unit, 219.0 * unit],
        (ColorRange::Limited, true) => [128.0 * unit, 224.0 * unit],
        (ColorRange::Full, false) => [0.0, white],
        (ColorRange::Full, true) => [128.0 * unit, white],
    }
}

/// Red, green and blue of luma from 0 to 1 and chroma from -0.5 to 0.5.
fn rgb_of_yuv(matrix: ColorMatrix) -> [[f64; 3]; 3] {
    let [r, g, b] = matrix.luma();
    let (blue, red) = (2.0 * (1.0 - b), 2.0 * (1.0 - r));
    [[1.0, 0.0, red], [1.0, -blue * b / g, -red * r / g], [1.0, blue, 0.0]]
}

fn yuv_of_rgb(matrix: ColorMatrix) -> [[f64; 3]; 3] {
    let [r, g, b] = matrix.luma();
    let (blue, red) = (2.0 * (1.0 - b), 2.0 * (1.0 - r));
    [[r, g, b], [-r / blue, -g / blue, (1.0 - b) / blue], [(1.0 - r) / red, -g / red, -b / red]]
}

const IDENTITY: [[f64; 3]; 3] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];

impl Affine {
    /// From components with [`fraction`] to red, green and blue of 8 bits with [`POINT`]; to luma in the first row where
    /// `gray`.
    pub(crate) fn decode(format: PixelFormat, matrix: ColorMatrix, range: ColorRange, gray: bool) -> Self {
        let luma = matrix.luma();
        let rows = match (format, gray) {
            (PixelFormat::Gray8, _) => [[1.0, 0.0, 0.0]; 3],
            (format, true) if format.is_yuv() => [[1.0, 0.0, 0.0]; 3],
            (_, true) => [luma; 3],
            (format, false) if format.is_yuv() => rgb_of_yuv(matrix),
            _ => IDENTITY,
        };
        let point = f64::from(1u32 << (POINT - fraction(format.bits())));
        let mut affine = Affine::default();
        for (row, (to, bias)) in rows.iter().zip(affine.rows.iter_mut().zip(&mut affine.bias)) {
            for (c, (weight, to)) in row.iter().zip(to).enumerate() {
                let [zero, span] = levels(format, range, c);
                *to = (weight * 255.0 / span * point).round() as i32;
                // Of the rounded weight, so that no chroma means no colour.
                *bias -= *to * ((zero as i32) << fraction(format.bits()));
            }
        }
        affine
    }

    /// From red, green and blue of 8 bits with [`ENCODED_FRACTION`] to components, with the places that
    /// [`Affine::encoded_point`] says and half a unit added, so that a shift rounds.
    pub(crate) fn encode(format: PixelFormat, matrix: ColorMatrix, range: ColorRange) -> Self {
        let rows = match format {
            PixelFormat::Gray8 => [matrix.luma(), [0.0; 3], [0.0; 3]],
            format if format.is_yuv() => yuv_of_rgb(matrix),
            _ => IDENTITY,
        };
        let shift = Affine::encoded_point(format);
        let point = f64::from(1u32 << (shift - ENCODED_FRACTION));
        let mut affine = Affine::default();
        for (c, (row, (to, bias))) in
            rows.iter().zip(affine.rows.iter_mut().zip(&mut affine.bias)).enumerate()
        {
            let [zero, span] = levels(format, range, c);
            row.iter().zip(to).for_each(|(weight, to)| *to = (weight * span / 255.0 * point).round() as i32);
            *bias = ((zero as i32) << shift) + (1 << (shift - 1));
        }
        affine
    }

    /// Places after the binary point of encoded components.
    pub(crate) fn encoded_point(format: PixelFormat) -> u32 {
        POINT - (format.bits() - 8)
    }

    /// One row applied.
    pub(crate) fn apply(&self, row: usize, x: [i32; 3]) -> i32 {
        let rows = &self.rows[row];
        rows[0] * x[0] + rows[1] * x[1] + rows[2] * x[2] + self.bias[row]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of extreme samples in 64 bits are within 32, in every order of the terms.
    #[test]
    fn no_sum_of_samples_overflows() {
        for format in PixelFormat::ALL {
            for (matrix, range) in ColorMatrix::ALL
                .into_iter()
                .flat_map(|m| [ColorRange::Limited, ColorRange::Full].map(|r| (m, r)))
            {
                let most = i64::from((1u32 << format.bits()) - 1) << fraction(format.bits());
                let white = 255i64 << ENCODED_FRACTION;
                let all = [false, true].map(|gray| (Affine::decode(format, matrix, range, gray), most));
                for (affine, most) in all.into_iter().chain([(Affine::encode(format, matrix, range), white)])
                {
                    for (row, bias) in affine.rows.iter().zip(affine.bias) {
                        let (up, down): (Vec<i64>, Vec<i64>) =
                            row.iter().map(|w| i64::from(*w) * most).partition(|v| *v > 0);
                        let bias = i64::from(bias);
                        let up = up.iter().sum::<i64>() + bias.max(0);
                        let down = down.iter().sum::<i64>() + bias.min(0);
                        assert!(up < 1 << 31 && down > -(1 << 31), "{format} {matrix:?} {range:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn white_black_and_gray_have_no_colour() {
        for format in PixelFormat::ALL.into_iter().filter(|f| f.is_yuv()) {
            let decode = Affine::decode(format, ColorMatrix::Bt709, ColorRange::Limited, false);
            let unit = 1 << (format.bits() - 8);
            for (luma, want) in [(16, 0), (126, 128), (235, 255)] {
                let x = [luma, 128, 128].map(|v| (v * unit) << fraction(format.bits()));
                let got = [0, 1, 2].map(|row| (decode.apply(row, x) + (1 << (POINT - 1))) >> POINT);
                assert_eq!(got, [want; 3], "{format}");
            }
        }
    }
}
