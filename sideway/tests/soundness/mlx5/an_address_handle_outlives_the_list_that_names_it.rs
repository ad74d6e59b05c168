//! Hole 6: the library may read a request's address handle until the list is posted.

use sideway::ibverbs::address::AddressHandleAttribute;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{PostSendError, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::mlx5::DcInitiator;

fn posted_after_its_handle(initiator: &mut DcInitiator, pd: &ProtectionDomain) -> Result<(), PostSendError> {
    let mut guard = initiator.start_post_send();
    {
        let ah = pd.create_ah(&AddressHandleAttribute::new()).unwrap();
        let request = guard.construct_wr(1, WorkRequestFlags::empty());
        drop(request.setup_dc_address(&ah, 1, 2).setup_send());
    }
    guard.post()
}

fn a_stream_is_no_way_around(initiator: &mut DcInitiator, pd: &ProtectionDomain) -> Result<(), PostSendError> {
    let mut guard = initiator.start_post_send();
    let ah = pd.create_ah(&AddressHandleAttribute::new()).unwrap();
    drop(guard.construct_wr(1, WorkRequestFlags::empty()).setup_dc_address_stream(&ah, 1, 2, 3).setup_send());
    drop(ah);
    guard.post()
}

fn a_target_posts_nothing(target: &mut sideway::mlx5::DcTarget) {
    let _ = target.start_post_send();
}

fn main() {}
