//! The workload of the example `worker`: deposits to accounts, and a check of the results.

use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use crate::program::Failure;
use crate::waking_channel::WakingSender;

/// The number of accounts.
pub const ACCOUNTS: u64 = 64;

/// The time limit of an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A message to a worker.
#[derive(Debug)]
pub enum Task {
    /// A deposit to make.
    Deposit(Deposit),
    /// The worker must end.
    Stop,
}

/// A deposit, and the channel for its answer.
#[derive(Debug)]
pub struct Deposit {
    /// The account's number, below [`ACCOUNTS`].
    pub account: u64,
    /// The amount to add.
    pub amount: u64,
    /// The channel for the answer.
    pub answer: Sender<Answer>,
}

/// The result of a deposit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Answer {
    /// The account's number.
    pub account: u64,
    /// The balance after the deposit.
    pub balance: u64,
}

/// Sends deposits to all workers in turn, and waits for the answers.
///
/// # Errors
///
/// An answer is missing.
pub fn make(producer: u64, deposits: u64, senders: &[WakingSender<Task>]) -> Result<Vec<Answer>, Failure> {
    let (answer, answers) = mpsc::channel();
    for n in 0..deposits {
        let deposit = Deposit { account: (producer + 7 * n) % ACCOUNTS, amount: 1, answer: answer.clone() };
        if !senders[(producer + n) as usize % senders.len()].send(Task::Deposit(deposit)) {
            return Err(Failure::work("a worker has ended"));
        }
    }
    // The channel must disconnect when all workers have ended.
    drop(answer);
    (0..deposits)
        .map(|n| {
            let answer = answers.recv_timeout(ANSWER_LIMIT);
            answer.map_err(|why| Failure::work(format_args!("no answer after {n} of {deposits}: {why}")))
        })
        .collect()
}

/// Checks the answers. Each deposit is 1, so that the balances of an account must be 1, 2, 3, and
/// so on, each once.
///
/// # Errors
///
/// A deposit was lost or made twice.
pub fn check(mut answers: Vec<Answer>) -> Result<(), Failure> {
    answers.sort_unstable();
    for of_one in answers.chunk_by(|a, b| a.account == b.account) {
        if !of_one.iter().map(|answer| answer.balance).eq(1..=of_one.len() as u64) {
            return Err(Failure::work(format_args!("a deposit was lost or made twice: {of_one:?}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answers_are_found() {
        let answers = |balances: &[(u64, u64)]| -> Vec<_> {
            balances.iter().map(|&(account, balance)| Answer { account, balance }).collect()
        };
        assert!(check(answers(&[(1, 2), (0, 1), (1, 1)])).is_ok());
        for wrong in [&[(1, 2)][..], &[(1, 1), (1, 1)], &[(0, 1), (1, 1), (1, 3)]] {
            assert!(check(answers(wrong)).is_err(), "{wrong:?}");
        }
    }
}
