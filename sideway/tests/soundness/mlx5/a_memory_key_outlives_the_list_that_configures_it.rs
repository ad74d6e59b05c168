//! Hole 6, for a memory key: the library writes and reads its data until the list is posted.

use sideway::ibverbs::queue_pair::{ExtendedQueuePair, PostSendError, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::mlx5::{DirectQueuePair, MKey, MKeyConfiguration};

const NONE: WorkRequestFlags = WorkRequestFlags::empty();

fn posted_after_its_key(pair: &mut DirectQueuePair, make: fn() -> MKey) -> Result<(), PostSendError> {
    let mut guard = pair.start_post_send();
    let mut key = make();
    unsafe { guard.construct_wr(1, NONE).setup_mkey_configure(&mut key, &MKeyConfiguration::new()) };
    drop(key);
    guard.post()
}

fn invalidated_after_it_is_gone(pair: &mut DirectQueuePair, make: fn() -> MKey) -> Result<(), PostSendError> {
    let mut guard = pair.start_post_send();
    {
        let mut key = make();
        unsafe { guard.construct_wr(1, NONE).setup_invalidate_mkey(&mut key) };
    }
    guard.post()
}

fn two_requests_write_one_key(pair: &mut DirectQueuePair, key: &mut MKey) -> Result<(), PostSendError> {
    let mut guard = pair.start_post_send();
    unsafe {
        guard.construct_wr(1, NONE).setup_mkey_configure(&mut *key, &MKeyConfiguration::new());
        guard.construct_wr(2, NONE).setup_invalidate_mkey(&mut *key);
    }
    guard.post()
}

fn an_error_is_asked_for_while_a_list_is_built(pair: &mut DirectQueuePair, key: &mut MKey) {
    let mut guard = pair.start_post_send();
    unsafe { guard.construct_wr(1, NONE).setup_mkey_configure(&mut *key, &MKeyConfiguration::new()) };
    let _ = unsafe { key.check() };
    let _ = guard.post();
}

fn giving_memory_to_the_device_is_unsafe(pair: &mut DirectQueuePair, key: &mut MKey) {
    let mut guard = pair.start_post_send();
    guard.construct_wr(1, NONE).setup_memcpy(1, 2, 3, 4, 5);
    guard.construct_wr(2, NONE).setup_raw_wqe(&[]);
    guard.construct_wr(3, NONE).setup_mkey_configure(key, &MKeyConfiguration::new());
}

fn a_pair_of_libibverbs_has_none_of_these(pair: &mut ExtendedQueuePair) {
    let mut guard = pair.start_post_send();
    unsafe { guard.construct_wr(1, NONE).setup_memcpy(1, 2, 3, 4, 5) };
}

fn main() {}
