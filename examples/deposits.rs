//! What the workers of the example `worker` are given to do, and whether they did it: deposits.

use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use crate::program::Failure;
use crate::waking_channel::WakingSender;

/// How many accounts there are.
pub const ACCOUNTS: u64 = 64;

/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What comes in a worker's mailbox.
#[derive(Debug)]
pub enum Task {
    /// Something to do.
    Deposit(Deposit),
    /// There is nothing left to do.
    Stop,
}

/// A deposit, and who waits for the answer.
#[derive(Debug)]
pub struct Deposit {
    /// The account's number, below [`ACCOUNTS`].
    pub account: u64,
    /// How much.
    pub amount: u64,
    /// Where the answer goes.
    pub answer: Sender<Answer>,
}

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Answer {
    /// The account's number.
    pub account: u64,
    /// What is in it now.
    pub balance: u64,
}

/// Makes deposits with all workers in turn, and waits for the answers.
///
/// # Errors
///
/// One is missing.
pub fn make(producer: u64, deposits: u64, senders: &[WakingSender<Task>]) -> Result<Vec<Answer>, Failure> {
    let (answer, answers) = mpsc::channel();
    for n in 0..deposits {
        let deposit = Deposit { account: (producer + 7 * n) % ACCOUNTS, amount: 1, answer: answer.clone() };
        if !senders[(producer + n) as usize % senders.len()].send(Task::Deposit(deposit)) {
            return Err(Failure::work("a worker has ended"));
        }
    }
    // So that there is nobody left who could answer when all workers have ended.
    drop(answer);
    (0..deposits)
        .map(|n| {
            let answer = answers.recv_timeout(ANSWER_LIMIT);
            answer.map_err(|why| Failure::work(format_args!("no answer after {n} of {deposits}: {why}")))
        })
        .collect()
}

/// As each deposit is of 1, the balances of an account are 1, 2, 3, to the number of its deposits, each once.
///
/// # Errors
///
/// They are not.
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
