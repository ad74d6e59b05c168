//! A vendor's list cannot be posted after an address handle in it was dropped.

use sideway::direct::VendorList;
use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::queue_pair::{ExtendedPostSendGuard, PostSendError, PostSendGuard, WorkRequestFlags};

struct Guard<'queue>(ExtendedPostSendGuard<'queue>);

unsafe impl<'queue> VendorList<'queue> for Guard<'queue> {
    fn extended(&self) -> &ExtendedPostSendGuard<'queue> {
        &self.0
    }

    unsafe fn extended_mut(&mut self) -> &mut ExtendedPostSendGuard<'queue> {
        &mut self.0
    }
}

impl PostSendGuard for Guard<'_> {
    fn post(self) -> Result<(), PostSendError> {
        self.0.post()
    }
}

fn dropped(mut guard: Guard<'_>, ah: AddressHandle) {
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_ud_address(&ah, 2, 3).setup_send();
    drop(ah);
    guard.post().unwrap();
}

fn main() {}
