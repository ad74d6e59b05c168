//! Enhanced connection establishment (`man ibv_query_ece`, `man ibv_set_ece`). SoftRoCE has none.

use libc::{EINVAL, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_ece;

use crate::harness::{Outcome, Rig, Skip, Suite};
use crate::kit::{Flavour, Node, Options, Wr, pair, pattern};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_pair_tells_its_options,
        two_pairs_have_the_same_vendor,
        options_that_are_set_are_told,
        what_the_device_does_not_know_is_taken_away,
        an_unknown_mask_of_options_is_refused,
        options_of_another_vendor_are_refused,
        a_negotiated_connection_works,
    );
}

/// A pair, and its options where the device has them.
fn node(rig: &Rig) -> Result<(Node, ibv_ece), Skip> {
    let node = Node::new(&rig.open(), &Options::rc(Flavour::Classic));
    let ece = options(rig, &node)?;
    Ok((node, ece))
}

fn options(rig: &Rig, node: &Node) -> Result<ibv_ece, Skip> {
    match node.qp.query_ece() {
        Ok(ece) => Ok(ece),
        Err(EOPNOTSUPP) => skip!("{} has no enhanced connection establishment", rig.name),
        Err(error) => panic!("error {error}"),
    }
}

/// `vendor_id`: a unique identifier of the vendor, so that a network of several tells them apart.
fn a_pair_tells_its_options(rig: &Rig) -> Outcome {
    let (_node, ece) = node(rig)?;
    assert_ne!(ece.vendor_id, 0);
    assert_eq!(ece.comp_mask, 0);
    Ok(())
}

fn two_pairs_have_the_same_vendor(rig: &Rig) -> Outcome {
    let ((_a, first), (_b, second)) = (node(rig)?, node(rig)?);
    assert_eq!((first.vendor_id, first.options), (second.vendor_id, second.options));
    Ok(())
}

/// "Return to the user current ECE state for the QP."
fn options_that_are_set_are_told(rig: &Rig) -> Outcome {
    let (node, ece) = node(rig)?;
    for options in [ece.options, 0, ece.options] {
        let accepted = node.qp.set_ece(ibv_ece { options, ..ece }).unwrap();
        assert_eq!(accepted.options, options);
        assert_eq!(node.qp.query_ece().unwrap().options, options);
    }
    Ok(())
}

/// "This is IN/OUT field, the accepted options will be returned in this field."
fn what_the_device_does_not_know_is_taken_away(rig: &Rig) -> Outcome {
    let (node, ece) = node(rig)?;
    let accepted = node.qp.set_ece(ibv_ece { options: u32::MAX, ..ece }).unwrap();
    assert_eq!(accepted.options, ece.options);
    assert_eq!(accepted.vendor_id, ece.vendor_id);
    Ok(())
}

/// `EINVAL`: the options are invalid.
fn an_unknown_mask_of_options_is_refused(rig: &Rig) -> Outcome {
    let (node, ece) = node(rig)?;
    assert_eq!(node.qp.set_ece(ibv_ece { comp_mask: 1, ..ece }).err(), Some(EINVAL));
    assert_eq!(node.qp.query_ece().unwrap().options, ece.options);
    Ok(())
}

/// As above: another vendor's options mean something else.
fn options_of_another_vendor_are_refused(rig: &Rig) -> Outcome {
    let (node, ece) = node(rig)?;
    let foreign = ibv_ece { vendor_id: ece.vendor_id ^ 0x55, ..ece };
    assert_eq!(node.qp.set_ece(foreign).err(), Some(EINVAL));
    assert_eq!(node.qp.query_ece().unwrap().options, ece.options);
    Ok(())
}

/// One side tells its options, the other accepts what it can, the first takes what was accepted (`man rdma_get_remote_ece`).
fn a_negotiated_connection_works(rig: &Rig) -> Outcome {
    let (a, b) = (
        Node::new(&rig.open(), &Options::rc(Flavour::Classic)),
        Node::new(&rig.open(), &Options::rc(Flavour::Classic)),
    );
    let offer = options(rig, &a)?;
    let accepted = b.qp.set_ece(offer).unwrap();
    assert_eq!(a.qp.set_ece(accepted).unwrap().options, accepted.options);
    a.connect(&b.peer());
    b.connect(&a.peer());
    assert_eq!(a.qp.query_ece().unwrap().options, b.qp.query_ece().unwrap().options);
    a.mr.buf.set(0, &pattern(4, 100));
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 100)));
    assert_eq!(b.mr.buf.get(0, 100), pattern(4, 100));
    // A pair that nobody negotiated for has the device's own options.
    let (c, _d) = pair(rig, &Options::rc(Flavour::Classic));
    assert_eq!(c.qp.query_ece().unwrap().options, offer.options);
    Ok(())
}
