//! Windows: operations do what a model of the memory does, and none reaches a window after its end.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use test_harness::{bytes, fill};
use trespass::mux::MuxError;
use trespass::window::{Access, Window, WindowConfig, WindowError, WindowKey, Windows};
use trespass::{Block, Stream};

use super::{LONG, Plan, RandomChoices, add, broken, counts, finding};

// Messages of the windows' program.
const OFFER: u8 = 0;
const REVOKED: u8 = 1;
const SHARED: u8 = 2;
const DONE: u8 = 3;
const HELD: u8 = 4;

/// Counts what adds and notifications of this side did.
#[derive(Default)]
struct Sums {
    added: AtomicU64,
    unknown: AtomicU64,
    notified: AtomicU64,
    unknown_notified: AtomicU64,
}

/// A window of the peer, as far as the operations of this side determine its bytes.
struct Model {
    key: WindowKey,
    bytes: Vec<u8>,
    /// Operations without a known outcome may change these at any time.
    uncertain: Vec<bool>,
    /// An operation has found it revoked; the peer has said so.
    refused: bool,
    revoked: bool,
}

/// What the peer has told.
#[derive(Default)]
struct Peer {
    models: Vec<Model>,
    /// Its [`Sums`], after its last operation.
    done: Option<[u64; 4]>,
}

/// The bytes of the shared window: two counters, and a slot for each notification.
const SLOT: usize = 64;
const SLOTS: usize = 1000;

type OperationResult<T = ()> = Result<T, WindowError>;

/// Counts an error, or reports one that cannot be. Only that of a connection ends the caller.
fn judge(what: &str, error: WindowError) -> OperationResult {
    let count = match &error {
        WindowError::OutcomeUnknown => &counts().unknown,
        WindowError::NoPath => &counts().no_path,
        WindowError::TimedOut { .. } => &counts().timed_out,
        WindowError::StillRegistered => &counts().still_registered,
        WindowError::Connection(_) => return Err(error),
        _ => {
            finding(format_args!("{what}: {error}"));
            return Err(error);
        }
    };
    add(count, 1);
    Ok(())
}

pub(crate) fn operate(stream: Stream, plan: Plan) {
    let config = WindowConfig::new().operation_timeout(Some(LONG / 2));
    let outcome = Windows::over(stream, &config)
        .map_err(|error| ("begin", error))
        .and_then(|windows| both_sides(&windows, plan).map_err(|error| ("windows", error.into())));
    if let Err((what, error)) = outcome {
        broken(what, &error);
    }
}

fn both_sides(windows: &Windows, plan: Plan) -> OperationResult {
    let len = 16 + SLOT * SLOTS;
    let block = windows.buffer(len).map_err(|error| panic!("{error}")).unwrap();
    // The process performs the operations on a window with a lifetime.
    let lifetime = (plan.seed % 3 == 1).then_some(20 * LONG);
    let shared = windows.offer(block, len, Access::ALL, lifetime).map_err(|(error, _)| error)?;
    windows.send_message(&[&[SHARED][..], &shared.key().to_bytes()].concat())?;
    let message = windows.next_message()?;
    assert_eq!(message[0], SHARED);
    let key = WindowKey::from_bytes(&message[1..])?;
    let (sums, seen) = (Sums::default(), AtomicU64::new(0));
    let (done, olds) = (AtomicU64::new(0), Mutex::new(HashSet::new()));
    thread::scope(|scope| {
        let offers = scope.spawn(|| offer_and_revoke(windows, plan));
        let adds = [1, 2, 3].map(|thread| {
            let (key, sums, olds) = (&key, &sums, &olds);
            scope.spawn(move || add_to(windows, key, thread, plan, sums, olds))
        });
        let notifies = scope.spawn(|| notify(windows, &key, plan, &sums));
        let listens = scope.spawn(|| take_notifications(windows, &shared, plan, &seen, &done));
        let mut peer = Peer::default();
        let result = operate_on(windows, plan, &mut peer);
        let adds = adds.map(|thread| thread.join().unwrap());
        let (offers, notifies) = (offers.join().unwrap(), notifies.join().unwrap());
        let finish = || -> OperationResult {
            result?;
            adds.into_iter().chain([notifies]).collect::<OperationResult>()?;
            let _live = offers?;
            let numbers = [&sums.added, &sums.unknown, &sums.notified, &sums.unknown_notified];
            let numbers = numbers.map(|number| number.load(Ordering::Relaxed).to_le_bytes());
            windows.send_message(&[&[DONE][..], &numbers.concat()].concat())?;
            let numbers = loop {
                match peer.done {
                    Some(numbers) => break numbers,
                    None => take_message(&windows.next_message()?, &mut peer)?,
                }
            };
            check_sums(&shared, numbers, &seen);
            for model in peer.models.iter().filter(|model| model.refused && !model.revoked) {
                finding(format_args!("{:?} was refused and not revoked", model.key));
            }
            Ok(())
        };
        let outcome = finish();
        done.store(1, Ordering::Release);
        match (outcome, listens.join().unwrap()) {
            (Err(error), _) | (Ok(()), Err(error)) => Err(error),
            _ => Ok(()),
        }
    })
}

/// The peer has ended all its operations on the shared window.
fn check_sums(shared: &Window, [added, unknown, notified, unknown_notified]: [u64; 4], seen: &AtomicU64) {
    let mut number = [0; 8];
    shared.read(shared_offset(shared.key()), &mut number).unwrap();
    let (count, seen) = (u64::from_ne_bytes(number), seen.load(Ordering::Acquire));
    if !(added..=added + unknown).contains(&count) {
        finding(format_args!("a count of {count} after {added} additions and {unknown} unknown ones"));
    }
    if !(notified..=notified + unknown_notified).contains(&seen) {
        finding(format_args!("{seen} notifications of {notified} and {unknown_notified} unknown ones"));
    }
}

/// Of the number that is aligned.
fn shared_offset(key: &WindowKey) -> u64 {
    (8 - key.base() % 8) % 8
}

fn add_to(
    windows: &Windows,
    key: &WindowKey,
    thread: u64,
    plan: Plan,
    sums: &Sums,
    olds: &Mutex<HashSet<u64>>,
) -> OperationResult {
    let mut random = RandomChoices::new(plan.out() * 4 + thread);
    while !plan.is_over() {
        match windows.fetch_add(key, shared_offset(key), 1) {
            Ok(old) => {
                add(&sums.added, 1);
                add(&counts().adds, 1);
                if !olds.lock().unwrap().insert(old) {
                    finding(format_args!("two additions found {old}"));
                }
            }
            Err(error) => {
                if !matches!(error, WindowError::NoPath) {
                    add(&sums.unknown, 1);
                }
                judge("an addition", error)?;
            }
        }
        if random.below(8) == 0 {
            thread::sleep(random.millis(3));
        }
    }
    Ok(())
}

/// Puts bytes that a notification follows. Each has its own slot.
fn notify(windows: &Windows, key: &WindowKey, plan: Plan, sums: &Sums) -> OperationResult {
    let mut random = RandomChoices::new(plan.out() * 4);
    for number in 0..SLOTS as u64 {
        if plan.is_over() {
            break;
        }
        let slot = bytes(plan.out() ^ number, SLOT);
        match windows.put_notify(key, 16 + number * SLOT as u64, &slot, number) {
            Ok(()) => add(&sums.notified, 1),
            Err(error) => {
                add(&sums.unknown_notified, 1);
                judge("a notification", error)?;
            }
        }
        thread::sleep(random.millis(20));
    }
    Ok(())
}

fn take_notifications(
    windows: &Windows,
    shared: &Window,
    plan: Plan,
    seen: &AtomicU64,
    done: &AtomicU64,
) -> OperationResult {
    let mut next = 0;
    while done.load(Ordering::Acquire) == 0 {
        let told = match windows.next_notification_within(Duration::from_millis(20)) {
            Ok(told) => told,
            Err(WindowError::TimedOut { .. }) => continue,
            // The peer has ended first.
            Err(WindowError::Connection(MuxError::Closed)) => return Ok(()),
            Err(error) => return Err(error),
        };
        if told.number < next {
            finding(format_args!("notification {} after {next}", told.number));
        }
        next = told.number + 1;
        let mut slot = [0; SLOT];
        shared.read(16 + told.number * SLOT as u64, &mut slot)?;
        if slot[..] != bytes(plan.into() ^ told.number, SLOT) {
            finding(format_args!("notification {} came before its bytes", told.number));
        }
        seen.fetch_add(1, Ordering::Release);
        add(&counts().notified, 1);
    }
    Ok(())
}

/// Offers windows, and revokes them while the peer operates on them.
fn offer_and_revoke(windows: &Windows, plan: Plan) -> OperationResult<Vec<Window>> {
    let mut random = RandomChoices::new(plan.out() ^ 1 << 62);
    let (mut live, mut taken): (Vec<Window>, Vec<(Block, u64)>) = (Vec::new(), Vec::new());
    while !plan.is_over() {
        if live.len() < 1 + random.below(6) {
            let len = random.len(1_000_000);
            // Memory of a window that was revoked, or other memory.
            let reuse = taken.iter().position(|(block, _)| block.len() >= len && random.below(3) > 0);
            let mut block = match reuse {
                Some(index) => unchanged(taken.swap_remove(index)),
                None => windows.buffer(len).expect("a block"),
            };
            let seed = random.next();
            fill(seed, 0, &mut block.bytes_mut()[..len]);
            let lifetime = (random.below(5) == 0).then_some(20 * LONG);
            let offered = windows.offer(block, len, Access::READ | Access::WRITE, lifetime);
            let window = offered.map_err(|(error, _)| error)?;
            let message = [&[OFFER][..], &seed.to_le_bytes(), &window.key().to_bytes()].concat();
            windows.send_message(&message)?;
            live.push(window);
            add(&counts().offers, 1);
        } else {
            let window = live.swap_remove(random.below(live.len()));
            let key = window.key().to_bytes();
            match window.revoke() {
                Ok(mut block) => {
                    let seed = random.next();
                    fill(seed, 0, block.bytes_mut());
                    taken.push((block, seed));
                }
                // The device may still perform operations there.
                Err(error @ WindowError::StillRegistered) => {
                    judge("a revocation", error)?;
                    windows.send_message(&[&[HELD][..], &key].concat())?;
                    continue;
                }
                Err(error) => return judge("a revocation", error).map(|()| live),
            }
            windows.send_message(&[&[REVOKED][..], &key].concat())?;
            add(&counts().revoked, 1);
        }
        thread::sleep(random.millis(60));
        if taken.len() > 8 {
            unchanged(taken.remove(0));
        }
    }
    taken.into_iter().for_each(|block| drop(unchanged(block)));
    Ok(live)
}

/// The memory of a revoked window has the bytes that the owner wrote since.
fn unchanged((block, seed): (Block, u64)) -> Block {
    if *block.bytes() != bytes(seed, block.len()) {
        finding("the memory of a revoked window has changed");
    }
    block
}

fn take_message(message: &[u8], peer: &mut Peer) -> OperationResult {
    match message[0] {
        OFFER => {
            let key = WindowKey::from_bytes(&message[9..])?;
            let seed = u64::from_le_bytes(message[1..9].try_into().unwrap());
            let len = key.len() as usize;
            let (bytes, uncertain) = (bytes(seed, len), vec![false; len]);
            peer.models.push(Model { key, bytes, uncertain, refused: false, revoked: false });
        }
        HELD => {
            let key = WindowKey::from_bytes(&message[1..])?;
            peer.models.retain(|model| model.key != key);
        }
        REVOKED => {
            let key = WindowKey::from_bytes(&message[1..])?;
            let model = peer.models.iter_mut().find(|model| model.key == key).expect("it was offered");
            model.revoked = true;
            (model.bytes, model.uncertain) = (Vec::new(), Vec::new());
        }
        DONE => {
            let number = |at: usize| u64::from_le_bytes(message[1 + 8 * at..][..8].try_into().unwrap());
            peer.done = Some([0, 1, 2, 3].map(number));
        }
        other => finding(format_args!("a message of kind {other}")),
    }
    Ok(())
}

/// Operations on random ranges of the peer's windows. No other thread writes to them.
fn operate_on(windows: &Windows, plan: Plan, peer: &mut Peer) -> OperationResult {
    let mut random = RandomChoices::new(plan.out() ^ 1 << 61);
    while !plan.is_over() {
        match windows.next_message_within(Duration::ZERO) {
            Ok(message) => take_message(&message, peer)?,
            Err(WindowError::TimedOut { .. }) => {}
            Err(error) => return Err(error),
        }
        let revoked = random.below(10) == 0;
        let some = peer.models.iter().enumerate().filter(|(_, model)| model.revoked == revoked);
        let some: Vec<_> = some.map(|(index, _)| index).collect();
        let Some(index) = some.get(random.below(some.len().max(1))) else { continue };
        let model = &mut peer.models[*index];
        match operate_once(windows, model, &mut random) {
            Ok(()) if revoked => {
                finding(format_args!("an operation on {:?} after its revocation", model.key))
            }
            Ok(()) => {}
            Err(WindowError::Revoked { .. }) => {
                model.refused = true;
                add(&counts().stale, 1);
            }
            Err(error) => judge("an operation", error)?,
        }
    }
    Ok(())
}

fn operate_once(windows: &Windows, model: &mut Model, random: &mut RandomChoices) -> OperationResult {
    let key = &model.key;
    let len = random.len(key.len() as usize);
    let at = random.below(key.len() as usize - len + 1);
    let range = at..at + len;
    let sent = bytes(random.next(), len);
    let kind = random.below(8);
    // Pieces in the order of their bytes, more than a device takes at once.
    let step = len.div_ceil([3, 50][random.below(2)]);
    let pieces = (0..len).step_by(step).map(|begin| (at + begin, step.min(len - begin)));
    let pieces: Vec<_> = pieces.map(|(at, len)| (at as u64, len as u64)).collect();
    let block = || windows.buffer(len).expect("a block");
    if kind < 4 {
        let put = match kind {
            0 => windows.put(key, at as u64, &sent),
            1 => {
                let mut block = block();
                block.bytes_mut()[..len].copy_from_slice(&sent);
                windows.put_block(key, at as u64, block, len).map(drop).map_err(|(error, _)| error)
            }
            2 => windows.put_vectored(key, &pieces, &sent),
            _ => {
                let (first, second) = sent.split_at(len / 2);
                let puts = [(at, first), (at + len / 2, second)];
                let puts = puts.map(|(at, bytes)| windows.start_put(key, at as u64, bytes));
                let ends = puts.map(|put| put.and_then(|put| put.wait()));
                ends.into_iter().collect()
            }
        };
        if !model.revoked {
            model.bytes[range.clone()].copy_from_slice(&sent);
            if put.is_err() {
                model.uncertain[range].fill(true);
            }
        }
        add(&counts().puts, 1);
        return put;
    }
    let mut got = vec![0; len];
    match kind {
        4 => windows.get(key, at as u64, &mut got)?,
        5 => {
            let block = windows.get_block(key, at as u64, block(), len).map_err(|(error, _)| error)?;
            got.copy_from_slice(&block.bytes()[..len]);
        }
        6 => windows.get_vectored(key, &pieces, &mut got)?,
        _ => {
            let (first, second) = got.split_at_mut(len / 2);
            let second_at = at + first.len();
            let early = windows.start_get(key, at as u64, first.len())?;
            let late = windows.start_get(key, second_at as u64, second.len())?;
            let late = late.wait_into(second);
            early.wait_into(first)?;
            late?;
        }
    }
    add(&counts().gets, 1);
    if !model.revoked {
        let other =
            range.clone().find(|&at| !model.uncertain[at] && model.bytes[at] != got[at - range.start]);
        if let Some(first) = other {
            finding(format_args!(
                "a get of kind {kind} of {range:?} found other bytes from {first} on in {key:?}"
            ));
        }
    }
    Ok(())
}
