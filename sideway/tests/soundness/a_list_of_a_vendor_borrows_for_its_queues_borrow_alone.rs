//! A vendor's list cannot claim to borrow its queue for another time than it does: a handle that it
//! names could then be dropped before the list is posted.

use sideway::direct::VendorList;
use sideway::ibverbs::queue_pair::{Borrows, ExtendedPostSendGuard, PostSendError, PostSendGuard};

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

impl<'any> Borrows<'any> for Guard<'_> {}

fn main() {}
