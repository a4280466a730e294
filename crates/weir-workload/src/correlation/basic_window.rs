//! [`BasicWindow`]: what is kept of a few successive values of a series, so that a window of many
//! of them is summed without reading its values.

/// The cosines and sines of the angles 2πi/w, for the coefficients of windows of w steps.
#[derive(Clone, Debug)]
pub struct Phases {
    angles: Vec<[f64; 2]>,
}

impl Phases {
    /// For windows of this many steps.
    pub fn new(window: usize) -> Phases {
        let turn = std::f64::consts::TAU / window as f64;
        let angle = |i: usize| {
            let (sin, cos) = (turn * i as f64).sin_cos();
            [cos, sin]
        };
        Phases {
            angles: (0..window).map(angle).collect(),
        }
    }

    /// Cosine and sine of 2π·frequency·step/w.
    pub fn at(&self, frequency: usize, step: u64) -> [f64; 2] {
        let window = self.angles.len() as u64;
        let angle = (frequency as u64 * (step % window)) % window;
        self.angles[angle as usize]
    }
}

/// Number, mean, sum of squared distances from the mean, and the first Fourier coefficients of
/// successive values. The phase is that of the step since the beginning of all series, so the
/// coefficients of adjacent basic windows add up.
#[derive(Clone, Debug)]
pub struct BasicWindow {
    /// The step of its first value.
    pub begin: u64,
    /// The number of values.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// The sum of their squared distances from the mean.
    pub squares: f64,
    /// Σ x·e^(-2πi·f·step/w) for f = 1, 2, .., each with real and imaginary part.
    pub coefficients: Vec<[f64; 2]>,
}

impl BasicWindow {
    /// Without values.
    pub fn new(begin: u64, coefficients: usize) -> BasicWindow {
        BasicWindow {
            begin,
            count: 0,
            mean: 0.0,
            squares: 0.0,
            coefficients: vec![[0.0; 2]; coefficients],
        }
    }

    /// Removes all values.
    pub fn clear(&mut self, begin: u64) {
        self.begin = begin;
        self.count = 0;
        self.mean = 0.0;
        self.squares = 0.0;
        self.coefficients.fill([0.0; 2]);
    }

    /// Adds the value of a step (mean and squares: Welford 1962).
    pub fn add(&mut self, value: f64, step: u64, phases: &Phases) {
        self.count += 1;
        let distance = value - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (value - self.mean);
        for (frequency, coefficient) in (1..).zip(&mut self.coefficients) {
            let [cos, sin] = phases.at(frequency, step);
            coefficient[0] += value * cos;
            coefficient[1] -= value * sin;
        }
    }

    /// Adds the values of another one (Chan, Golub and LeVeque 1979).
    pub fn merge(&mut self, other: &BasicWindow) {
        if other.count == 0 {
            return;
        }
        let (own, more) = (self.count as f64, other.count as f64);
        let all = own + more;
        let distance = other.mean - self.mean;
        self.mean += distance * more / all;
        self.squares += other.squares + distance * distance * own * more / all;
        self.count += other.count;
        for (sum, more) in self.coefficients.iter_mut().zip(&other.coefficients) {
            sum[0] += more[0];
            sum[1] += more[1];
        }
    }
}
