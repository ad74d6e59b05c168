//! Polling tests, for all answers of a device.

use sideway::ibverbs::completion::{
    BasicCompletionQueue, ExtendedCompletionQueue, GenericCompletionQueue, WorkCompletionFields,
    WorkCompletionFlags, WorkCompletionStatus,
};
use sideway::ibverbs::queue_pair::{BasicQueuePair, ExtendedQueuePair};

use super::FakeSetup;
use super::support::fake::Fake;
use super::support::flavour::{CqFlavour, QpFlavour};

#[test]
fn completions_come_once_and_in_order_however_they_are_taken() {
    fn check<Q: QpFlavour, C: CqFlavour>(fake: &Fake, limit: usize) {
        let mut setup = FakeSetup::<Q, C>::with(fake, |cq| cq.setup_poll_batch(3), |qp| qp);
        let mut next = 0;
        let mut expected = 0;
        for round in 0..if cfg!(miri) { 6 } else { 30 } {
            setup.write(next..next + round % 5);
            next += round % 5;
            let taken = setup.cq.poll_up_to(limit, &mut |wc| {
                assert_eq!(wc.wr_id, expected);
                expected += 1;
            });
            taken.unwrap();
        }
        setup.cq.poll(&mut |wc| assert_eq!((wc.wr_id, expected += 1).0, expected - 1)).unwrap();
        assert_eq!(expected, next);
    }
    fn check_cq<C: CqFlavour>(fake: &Fake, limit: usize) {
        check::<BasicQueuePair, C>(fake, limit);
        check::<ExtendedQueuePair, C>(fake, limit);
    }
    for limit in [usize::MAX, 3] {
        for_each_cq!(check_cq(&Fake::new(), limit));
        // A device on which polls must end after each completion, with and without the defect.
        for_each_cq!(check_cq(&Fake::lying(|l| l.vendor_id = 0xff_ffff), limit));
        let softroce = Fake::lying(|l| (l.vendor_id, l.softroce_bug) = (0xff_ffff, true));
        for_each_cq!(check_cq(&softroce, limit));
    }
}

/// Shows that the fake's version of SoftRoCE's defect loses a completion without the workaround.
#[test]
fn the_defect_that_is_worked_around_shows_without_the_workaround() {
    let fake = Fake::lying(|l| l.softroce_bug = true);
    let mut setup = FakeSetup::<BasicQueuePair, ExtendedCompletionQueue>::new(&fake);
    setup.write([7]);
    assert_eq!(setup.poll(), [7]);
    assert_eq!(setup.poll(), [0], "the place behind the end reads as zero");
}

/// A poller that is dropped early leaves the rest on an extended queue. On a classic queue the rest
/// of the fetched batch must not be lost either.
#[test]
fn a_dropped_poller_leaves_the_rest() {
    fn check<C: CqFlavour>() {
        for vendor_id in [0, 0xff_ffff] {
            let fake = Fake::lying(|l| l.vendor_id = vendor_id);
            let mut setup = FakeSetup::<BasicQueuePair, C>::new(&fake);
            setup.write(0..10);
            let mut found = Vec::new();
            while setup.cq.poll_up_to(3, &mut |wc| found.push(wc.wr_id)).unwrap() > 0 {}
            assert_eq!(found, (0..10).collect::<Vec<_>>(), "{}", C::NAME);
        }
    }
    for_each_cq!(check());
}

#[test]
fn a_batch_that_is_longer_than_its_room_is_not_believed() {
    for count in [17, 1000, i32::MAX] {
        let fake = Fake::lying(|l| l.poll_cq = Some(count));
        let mut setup = FakeSetup::<BasicQueuePair, BasicCompletionQueue>::new(&fake);
        let mut taken = 0;
        setup.cq.poll_up_to(100, &mut |wc| taken += 1 + wc.wr_id).unwrap();
        assert_eq!(taken, 100, "a device that never runs dry, of completions that it never wrote");
    }
}

/// A failure is reported exactly once, by `finish` or by the next poller, and polling continues.
#[test]
fn a_failing_poll_is_told_once() {
    fn check<C: CqFlavour>(fake: &Fake) {
        let mut setup = FakeSetup::<BasicQueuePair, C>::new(fake);
        for _ in 0..3 {
            assert!(setup.cq.poll(&mut |_| {}).is_err(), "asked for");
            assert!(setup.cq.is_drained_by_a_dropped_poller(), "not asked for");
            assert!(setup.cq.poll(&mut |_| {}).is_err(), "told by the next poller");
        }
    }
    for result in [libc::EIO, libc::EINVAL, -1, i32::MIN, i32::MAX] {
        check::<ExtendedCompletionQueue>(&Fake::lying(|l| l.start_poll = Some(result)));
        check::<GenericCompletionQueue>(&Fake::lying(|l| l.start_poll = Some(result)));
    }
}

/// `start_poll` already polls a classic queue, so it returns the failure.
#[test]
fn a_failing_classic_poll_cannot_be_started() {
    for result in [-1, -libc::EIO, i32::MIN] {
        let fake = Fake::lying(|l| l.poll_cq = Some(result));
        let mut setup = FakeSetup::<BasicQueuePair, BasicCompletionQueue>::new(&fake);
        for _ in 0..3 {
            assert_eq!(setup.cq.start_poll().map(|_| ()).unwrap_err().result, result);
        }
    }
}

/// The second batch cannot be fetched: nothing is polled until that has been reported, once.
#[test]
fn a_classic_poll_that_fails_between_batches_is_told_once() {
    for (batch, asked) in [(1, true), (1, false), (3, true), (3, false)] {
        let fake = Fake::lying(|l| l.poll_cq_from = Some((1, -libc::EIO)));
        let mut setup = FakeSetup::<BasicQueuePair, BasicCompletionQueue>::with(
            &fake,
            |cq| cq.setup_poll_batch(batch),
            |qp| qp,
        );
        setup.write(0..5);
        let mut poller = setup.cq.start_poll().unwrap();
        for n in 0..batch {
            assert_eq!(poller.next().unwrap().wr_id(), u64::from(n));
        }
        for _ in 0..3 {
            assert!(poller.next().is_none());
        }
        let error = if asked {
            poller.finish().unwrap_err()
        } else {
            drop(poller);
            setup.cq.start_poll().map(|_| ()).unwrap_err()
        };
        assert_eq!(error.result, -libc::EIO);
    }
}

/// A leaked poller keeps its batch, and no completion comes twice.
#[test]
fn a_leaked_classic_poller_keeps_its_batch() {
    let fake = Fake::new();
    let mut setup =
        FakeSetup::<BasicQueuePair, BasicCompletionQueue>::with(&fake, |cq| cq.setup_poll_batch(3), |qp| qp);
    setup.write(0..5);
    setup.cq.leak_poller(1);
    assert_eq!(setup.poll(), [3, 4]);
}

#[test]
fn a_failure_between_completions_ends_the_poll_and_is_told() {
    for result in [libc::EIO, libc::EAGAIN, -1, i32::MIN] {
        let fake = Fake::lying(|l| l.next_poll = Some((1, result)));
        let mut setup = FakeSetup::<BasicQueuePair, ExtendedCompletionQueue>::new(&fake);
        setup.write(0..5);
        let mut poller = setup.cq.start_poll().unwrap();
        assert_eq!(poller.next().unwrap().wr_id(), 0);
        assert_eq!(poller.next().unwrap().wr_id(), 1);
        for _ in 0..3 {
            assert!(poller.next().is_none(), "no further call of next_poll");
        }
        assert!(poller.finish().is_err());
        assert_eq!(setup.cq.start_poll().unwrap().next().unwrap().wr_id(), 2);
    }
}

#[test]
fn unknown_values_in_a_completion_are_values() {
    fn check<C: CqFlavour>() {
        // After an error, fields that only a success has are not read.
        for (status, status_text, opcode_text) in
            [(4711, "unknown status 4711", "not told"), (0, "success", "unknown opcode 4294967294")]
        {
            let fake = Fake::lying(|l| l.completion = Some([status, 0xffff_fffe, 0xffff_ffff]));
            let mut setup = FakeSetup::<BasicQueuePair, C>::new(&fake);
            setup.write([1]);
            let mut seen = None;
            setup.cq.poll(&mut |wc| seen = Some(wc)).unwrap();
            let wc = seen.unwrap();
            assert_eq!(wc.status.to_string(), status_text);
            assert_eq!(wc.opcode.to_string(), opcode_text);
            assert!(wc.status.hint().is_none());
        }
    }
    for_each_cq!(check());
}

#[test]
fn readers_are_there_only_for_the_fields_that_were_asked_for() {
    let fake = Fake::lying(|l| l.completion = Some([0, 0, WorkCompletionFlags::WithImmediate.bits()]));
    for bit in 0..10 {
        let fields = WorkCompletionFields::from_bits_retain(1 << bit);
        let mut setup = FakeSetup::<BasicQueuePair, ExtendedCompletionQueue>::with(
            &fake,
            |cq| cq.setup_wc_flags(fields),
            |qp| qp,
        );
        setup.write([1]);
        let mut poller = setup.cq.start_poll().unwrap();
        let wc = poller.next().unwrap();
        let there = |field| fields.contains(field);
        use WorkCompletionFields as W;
        assert_eq!(wc.byte_len().is_some(), there(W::ByteLen));
        assert_eq!(wc.imm_data().is_some(), there(W::Imm));
        assert_eq!(wc.qp_num().is_some(), there(W::QpNum));
        assert_eq!(wc.src_qp().is_some(), there(W::SrcQp));
        assert_eq!(wc.slid().is_some(), there(W::Slid));
        assert_eq!(wc.sl().is_some(), there(W::Sl));
        assert_eq!(wc.dlid_path_bits().is_some(), there(W::DlidPathBits));
        assert_eq!(wc.completion_timestamp().is_some(), there(W::CompletionTimestamp));
        assert_eq!(wc.completion_timestamp_wallclock().is_some(), there(W::CompletionTimestampWallclock));
        let _ = format!("{wc:?}");
    }
}

#[test]
fn a_reader_that_is_null_all_the_same_is_not_called() {
    let fake = Fake::lying(|l| l.missing = &["read_byte_len", "read_imm_data", "read_completion_ts"]);
    let fields = WorkCompletionFields::from_bits_retain(!0);
    let mut setup = FakeSetup::<BasicQueuePair, GenericCompletionQueue>::with(
        &fake,
        |cq| cq.setup_wc_flags(fields),
        |qp| qp,
    );
    setup.write([1]);
    let mut poller = setup.cq.start_poll().unwrap();
    let wc = poller.next().unwrap();
    assert_eq!((wc.byte_len(), wc.imm_data(), wc.completion_timestamp()), (None, None, None));
    assert_eq!(wc.completion_timestamp_wallclock(), Some(2001));
    assert_eq!(wc.status(), WorkCompletionStatus::Success);
}

#[test]
fn an_empty_queue_yields_nothing_and_is_no_error() {
    fn check<C: CqFlavour>() {
        let fake = Fake::new();
        let mut setup = FakeSetup::<BasicQueuePair, C>::new(&fake);
        for _ in 0..3 {
            assert_eq!(setup.poll(), [0; 0]);
        }
        assert_eq!(setup.cq.cqe(), 1024);
        assert!(*setup.cq.context() == setup.context);
    }
    for_each_cq!(check());
}
