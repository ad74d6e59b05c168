//! Medians, and the interval of a geometric mean.

/// NaN without values. Of an even number, the mean of the middle two.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// A statistic, usually the geometric mean of ratios, with its 95 % bootstrap interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) mean: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// The statistic of ratios. A round has the ratios of all sizes that were measured together,
/// because noise affects them together.
pub(super) fn bootstrap(rounds: &[Vec<f64>]) -> Interval {
    let logs: Vec<f64> =
        rounds.iter().map(|round| round.iter().map(|r| r.ln()).sum::<f64>() / round.len() as f64).collect();
    interval(&logs, |drawn| (drawn.iter().copied().sum::<f64>() / drawn.len() as f64).exp())
}

/// `figure` of `rounds`, and of 10,000 samples of the same size drawn with replacement.
pub(super) fn interval<T: Copy>(rounds: &[T], figure: impl Fn(&[T]) -> f64) -> Interval {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |_: &T| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        rounds[(random % rounds.len() as u64) as usize]
    };
    let mut figures: Vec<f64> =
        (0..10_000).map(|_| figure(&rounds.iter().map(&mut draw).collect::<Vec<T>>())).collect();
    figures.sort_by(f64::total_cmp);
    Interval { mean: figure(rounds), low: figures[250], high: figures[9749] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_holds_the_mean_and_grows_with_noise() {
        let calm = bootstrap(&[vec![1.0, 1.0], vec![1.0, 1.0], vec![1.0, 1.0]]);
        assert!((calm.mean - 1.0).abs() < 1e-12 && (calm.high - calm.low).abs() < 1e-12, "{calm:?}");
        let noisy = bootstrap(&[vec![0.5], vec![1.0], vec![2.0], vec![1.0], vec![1.0]]);
        assert!((noisy.mean - 1.0).abs() < 1e-12 && noisy.low < 0.9 && noisy.high > 1.1, "{noisy:?}");
        assert_eq!(median(vec![3.0, 1.0, 2.0, 4.0]), 2.5);
    }
}
