//! Measurements: figures of several runs, with the confidence interval of their mean.

/// One configuration of an experiment.
pub struct Row {
    /// Its name, in the thesis if it is there.
    pub name: String,
    /// One for each column.
    pub figures: Vec<Figure>,
}

/// A figure of one configuration, one value for each run.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// The value of each run.
    pub runs: Vec<f64>,
}

/// The 97.5 % quantiles of Student's t for 1, 2, .. degrees of freedom; for more, that of the
/// normal distribution is a sufficient approximation.
const STUDENT: [f64; 15] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131,
];

impl Figure {
    /// The arithmetic mean.
    pub fn mean(&self) -> f64 {
        self.runs.iter().sum::<f64>() / self.runs.len() as f64
    }

    /// Half the width of the 95 % confidence interval of the mean, as in the thesis.
    pub fn half_width(&self) -> f64 {
        let (n, mean) = (self.runs.len(), self.mean());
        if n < 2 {
            return f64::INFINITY;
        }
        let squares: f64 = self.runs.iter().map(|x| (x - mean).powi(2)).sum();
        let t = STUDENT.get(n - 2).copied().unwrap_or(1.96);
        t * (squares / (n - 1) as f64 / n as f64).sqrt()
    }
}

/// Measures the configurations in rounds; `turn` returns a figure for each column.
///
/// # Errors
/// That of the first measurement that failed twice.
pub fn by_turns<C>(
    configurations: &[(String, C)],
    runs: usize,
    mut turn: impl FnMut(&C) -> anyhow::Result<Vec<f64>>,
) -> anyhow::Result<Vec<Row>> {
    let row = |(name, _): &(String, C)| Row {
        name: name.clone(),
        figures: Vec::new(),
    };
    let mut rows: Vec<Row> = configurations.iter().map(row).collect();
    for run in 0..runs {
        for ((name, configuration), row) in configurations.iter().zip(&mut rows) {
            let figures = turn(configuration).or_else(|error| {
                eprintln!("run {}/{runs}: {name}: {error:#}; once more", run + 1);
                turn(configuration)
            })?;
            let printed: Vec<String> = figures.iter().map(|x| format!("{x:.2}")).collect();
            eprintln!("run {}/{runs}: {name}: {}", run + 1, printed.join(" "));
            row.figures.resize(figures.len(), Figure::default());
            for (known, new) in row.figures.iter_mut().zip(figures) {
                known.runs.push(new);
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        // Five figures with mean 3 and variance 2.5: 2.776 * sqrt(2.5 / 5).
        let figure = Figure {
            runs: vec![1.0, 2.0, 3.0, 4.0, 5.0],
        };
        assert_eq!(figure.mean(), 3.0);
        assert!((figure.half_width() - 1.963).abs() < 1e-3);
    }
}
