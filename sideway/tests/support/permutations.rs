//! The orders in which a test drops its handles.

/// Every `step`-th permutation of `n` elements.
pub fn permutations(n: usize, step: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..(1..=n).product()).step_by(step).map(move |mut number: usize| {
        let mut left: Vec<usize> = (0..n).collect();
        let next = |choices| {
            let chosen = left.remove(number % choices);
            number /= choices;
            chosen
        };
        (1..=n).rev().map(next).collect()
    })
}
