//! The printed results and errors.

use std::borrow::Cow;
use std::time::Duration;

use sideway::ibverbs::completion::{GenericWorkCompletion, WorkCompletionOperationType};
use sideway::ibverbs::queue_pair::QueuePairControl;

use crate::program::{Failure, say};

/// Prints the C program's two lines about the speed.
///
/// # Errors
///
/// The output cannot be written.
pub fn speed(size: u32, iters: u32, elapsed: Duration) -> Result<(), Failure> {
    say(speed_lines(size, iters, elapsed))
}

fn speed_lines(size: u32, iters: u32, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let usec = seconds * 1e6;
    let bytes = u128::from(size) * u128::from(iters) * 2;
    let (mbps, each) = (bytes as f64 * 8.0 / usec, usec / f64::from(iters));
    format!(
        "{bytes} bytes in {seconds:.2} seconds = {mbps:.2} Mbit/sec\n\
         {iters} iters in {seconds:.2} seconds = {each:.2} usec/iter"
    )
}

/// Prints the C program's line for each page of the message that has wrong data.
///
/// # Errors
///
/// A page has wrong data.
pub fn validity(wrong_pages: &[usize]) -> Result<(), Failure> {
    for page in wrong_pages {
        say(format_args!("invalid data in page {page}"))?;
    }
    match wrong_pages.len() {
        0 => Ok(()),
        1 => {
            Err(Failure::work("the message came back with invalid data in 1 page; do both sides check (-c)?"))
        }
        pages => Err(Failure::work(format_args!(
            "the message came back with invalid data in {pages} pages; do both sides check (-c)?"
        ))),
    }
}

/// All fields of a failed completion of this queue pair, with the cause. Without the queue pair,
/// the text names the most frequent cause.
#[cold]
pub fn failed(wc: &GenericWorkCompletion<'_>, qp: Option<&QueuePairControl>) -> Failure {
    let status = wc.status();
    let hint = match qp {
        Some(qp) => qp.hint(status),
        None => status.hint().map(Cow::Borrowed),
    };
    let hint = hint.as_deref().unwrap_or("the status has no common cause");
    // The opcode of a failed completion is not valid, but its number identifies the request.
    let opcode = match wc.wr_id() {
        super::SEND => WorkCompletionOperationType::Send,
        super::RECEIVE => WorkCompletionOperationType::Receive,
        _ => wc.opcode(),
    };
    Failure::work(format_args!(
        "Failed status {status} ({}) for wr_id {}, opcode {opcode}, vendor error {:#x}: {hint}",
        status.raw(),
        wc.wr_id(),
        wc.vendor_err(),
    ))
}

/// A completion of a request that was never posted.
#[cold]
pub fn unknown(wr_id: u64) -> Failure {
    Failure::work(format_args!("completion for unknown wr_id {wr_id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_told_as_c_does() {
        assert_eq!(
            speed_lines(4096, 1000, Duration::from_millis(20)),
            "8192000 bytes in 0.02 seconds = 3276.80 Mbit/sec\n1000 iters in 0.02 seconds = 20.00 usec/iter"
        );
        let much = speed_lines(u32::MAX, u32::MAX, Duration::from_secs(1));
        assert!(much.starts_with("36893488130239234050 bytes in 1.00 seconds"), "{much}");
    }

    #[test]
    fn a_wrong_page_is_a_failure() {
        assert!(validity(&[]).is_ok());
        assert!(matches!(validity(&[3]), Err(Failure::Work(_))));
    }
}
