//! Enhanced connection establishment (`man ibv_query_ece`, `man ibv_set_ece`). SoftRoCE has none.

use libc::{EINVAL, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_ece;

use crate::kit::{Flavour, Node, NodeOptions, Outcome, Skip, Suite, TestDevice, Wr, pair, pattern};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_pair_tells_its_options,
        two_pairs_have_the_same_vendor,
        options_that_are_set_are_told,
        unknown_options_are_cleared,
        an_unknown_mask_of_options_is_refused,
        options_of_another_vendor_are_refused,
        a_negotiated_connection_works,
    );
}

/// A pair and its options, where the device supports them.
fn node(dut: &TestDevice) -> Result<(Node, ibv_ece), Skip> {
    let node = Node::new(&dut.open(), &NodeOptions::rc(Flavour::Classic));
    let ece = options(dut, &node)?;
    Ok((node, ece))
}

fn options(dut: &TestDevice, node: &Node) -> Result<ibv_ece, Skip> {
    match node.qp.query_ece() {
        Ok(ece) => Ok(ece),
        Err(EOPNOTSUPP) => skip!("{} has no enhanced connection establishment", dut.name),
        Err(error) => panic!("error {error}"),
    }
}

/// `vendor_id` identifies the vendor, so that devices of several vendors can be told apart.
fn a_pair_tells_its_options(dut: &TestDevice) -> Outcome {
    let (_node, ece) = node(dut)?;
    assert_ne!(ece.vendor_id, 0);
    assert_eq!(ece.comp_mask, 0);
    Ok(())
}

fn two_pairs_have_the_same_vendor(dut: &TestDevice) -> Outcome {
    let ((_a, first), (_b, second)) = (node(dut)?, node(dut)?);
    assert_eq!((first.vendor_id, first.options), (second.vendor_id, second.options));
    Ok(())
}

/// "Return to the user current ECE state for the QP."
fn options_that_are_set_are_told(dut: &TestDevice) -> Outcome {
    let (node, ece) = node(dut)?;
    for options in [ece.options, 0, ece.options] {
        let accepted = node.qp.set_ece(ibv_ece { options, ..ece }).unwrap();
        assert_eq!(accepted.options, options);
        assert_eq!(node.qp.query_ece().unwrap().options, options);
    }
    Ok(())
}

/// "This is IN/OUT field, the accepted options will be returned in this field."
fn unknown_options_are_cleared(dut: &TestDevice) -> Outcome {
    let (node, ece) = node(dut)?;
    let accepted = node.qp.set_ece(ibv_ece { options: u32::MAX, ..ece }).unwrap();
    assert_eq!(accepted.options, ece.options);
    assert_eq!(accepted.vendor_id, ece.vendor_id);
    Ok(())
}

/// `EINVAL`: the options are invalid.
fn an_unknown_mask_of_options_is_refused(dut: &TestDevice) -> Outcome {
    let (node, ece) = node(dut)?;
    assert_eq!(node.qp.set_ece(ibv_ece { comp_mask: 1, ..ece }).err(), Some(EINVAL));
    assert_eq!(node.qp.query_ece().unwrap().options, ece.options);
    Ok(())
}

/// `EINVAL`: the options of another vendor have another meaning.
fn options_of_another_vendor_are_refused(dut: &TestDevice) -> Outcome {
    let (node, ece) = node(dut)?;
    let foreign = ibv_ece { vendor_id: ece.vendor_id ^ 0x55, ..ece };
    assert_eq!(node.qp.set_ece(foreign).err(), Some(EINVAL));
    assert_eq!(node.qp.query_ece().unwrap().options, ece.options);
    Ok(())
}

/// One side sends its options, the other replies with those that it accepts, and the first sets
/// these (`man rdma_get_remote_ece`).
fn a_negotiated_connection_works(dut: &TestDevice) -> Outcome {
    let (a, b) = (
        Node::new(&dut.open(), &NodeOptions::rc(Flavour::Classic)),
        Node::new(&dut.open(), &NodeOptions::rc(Flavour::Classic)),
    );
    let offer = options(dut, &a)?;
    let accepted = b.qp.set_ece(offer).unwrap();
    assert_eq!(a.qp.set_ece(accepted).unwrap().options, accepted.options);
    a.connect(&b.peer());
    b.connect(&a.peer());
    assert_eq!(a.qp.query_ece().unwrap().options, b.qp.query_ece().unwrap().options);
    a.mr.buf.set(0, &pattern(4, 100));
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 100)));
    assert_eq!(b.mr.buf.get(0, 100), pattern(4, 100));
    // A pair without negotiation has the device's default options.
    let (c, _d) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    assert_eq!(c.qp.query_ece().unwrap().options, offer.options);
    Ok(())
}
