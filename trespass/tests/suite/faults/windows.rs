//! One-sided operations on windows while the device fails them, or refuses what they need.

use std::thread;
use std::time::Duration;

use sideway::soft::faults;
use test_harness::{Outcome, Suite, cases};
use trespass::Builder;
use trespass::window::{Access, Protection, Window, WindowConfig, WindowError, Windows};

use super::{all_have_acted, builder, nothing_is_left, rules, streams};
use crate::fixture::{Fixture, LONG};

pub(super) fn add(suite: &mut Suite<Fixture>) {
    cases!(suite: a_key_that_was_revoked_before_the_first_path_is_not_used);
}

fn config() -> WindowConfig {
    WindowConfig::new().operation_timeout(Some(LONG))
}

/// A builder without probes, because they are WRITEs, too. A request that hangs is given up soon.
fn quiet(fixture: &Fixture) -> Builder {
    builder(fixture).keepalive(None).ack_timeout(14).rail_timeout(Duration::from_millis(300))
}

/// A client, and the owner of the windows.
fn pair(fixture: &Fixture, builder: &Builder, config: &WindowConfig) -> (Windows, Windows) {
    let [client, owner] = streams(fixture, builder);
    thread::scope(|scope| {
        let owner = scope.spawn(|| Windows::over(owner, config).unwrap());
        (Windows::over(client, config).unwrap(), owner.join().unwrap())
    })
}

/// Offers a block of zeros.
fn offer(owner: &Windows, len: usize) -> Window {
    let block = owner.buffer(len).unwrap();
    owner.offer(block, len, Access::ALL, None).map_err(|(error, _)| error).unwrap()
}

fn read(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.key().len() as usize];
    window.read(0, &mut bytes).unwrap();
    bytes
}

/// Runs `operate` while the owner performs the operations, until the client is dropped.
fn served<R>(client: Windows, owner: &Windows, operate: impl FnOnce(&Windows) -> R) -> R {
    thread::scope(|scope| {
        let serving = scope.spawn(|| owner.serve().unwrap());
        let done = operate(&client);
        drop(client);
        serving.join().unwrap();
        done
    })
}

/// The requests that the first rule has met.
fn matched() -> u64 {
    faults::report()[0].matched
}

/// The device may have given the key to another window.
fn a_key_that_was_revoked_before_the_first_path_is_not_used(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (client, owner) = pair(fixture, &quiet(fixture), &config());
    let pool = owner.pool().clone();
    let window = offer(&owner, 100);
    assert_eq!(window.protection(), Protection::Domain);
    let old = window.key().clone();
    let block = window.revoke().unwrap();
    // The offer tells the client, which has no path to the device.
    let window = owner.offer(block, 100, Access::ALL, None).map_err(|(error, _)| error).unwrap();
    client.serve_for(Duration::from_millis(100)).unwrap();
    rules("delay=1us opcode=rdma_write", 1);
    served(client, &owner, |client| {
        let error = client.put(&old, 0, b"stale").unwrap_err();
        assert!(matches!(error, WindowError::Revoked { .. }), "{error}");
        assert_eq!(matched(), 0, "the device has got the revoked key");
        client.put(window.key(), 0, b"fresh").unwrap();
    });
    all_have_acted();
    assert_eq!(matched(), 1);
    faults::clear();
    assert_eq!(read(&window)[..5], *b"fresh");
    drop(window);
    drop(owner);
    nothing_is_left(&pool);
    Ok(())
}
