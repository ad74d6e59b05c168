//! Thread domains and parent domains (`man ibv_alloc_td`, `man ibv_alloc_parent_domain`). SoftRoCE
//! has neither.

use libc::{EBUSY, EINVAL, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_parent_domain_init_attr_mask as Mask;

use crate::kit::{
    Buf, Device, EVERYTHING, Flavour, Node, NodeOptions, Outcome, ParentDomain, Pd, Srq, Suite, Td,
    TestDevice, Wr, ah_attr, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_thread_domain_is_allocated_and_freed,
        an_unknown_mask_of_a_thread_domain_is_refused,
        a_parent_domain_without_a_domain_is_refused,
        an_unknown_mask_of_a_parent_domain_is_refused,
        a_parent_domain_of_another_context_is_refused,
        a_parent_domain_needs_no_thread_domain,
        a_parent_domain_takes_a_context_for_allocators,
        allocators_are_used_or_refused,
        a_domain_is_busy_while_a_parent_domain_has_it,
        a_thread_domain_is_busy_while_a_parent_domain_has_it,
        a_parent_domain_is_busy_while_it_has_objects,
        a_parent_domain_can_be_extended,
        everything_that_takes_a_domain_takes_a_parent_domain,
        a_parent_domain_and_its_domain_are_one,
    );
    both!(suite:
        pairs_of_parent_domains_exchange_messages,
    );
}

/// Allocates a thread domain, where the device supports them.
fn thread_domain(dut: &TestDevice, device: &Device) -> Result<Td, crate::kit::Skip> {
    match Td::new(device, 0) {
        Ok(td) => Ok(td),
        Err(EOPNOTSUPP) => skip!("{} has no thread domains", dut.name),
        Err(error) => panic!("error {error}"),
    }
}

/// A domain, and a parent domain made of it and a thread domain.
fn parent(dut: &TestDevice, device: &Device) -> Result<(Pd, Pd), crate::kit::Skip> {
    let td = thread_domain(dut, device)?;
    let pd = device.pd();
    let parent = ParentDomain { pd: Some(&pd), td: Some(&td), comp_mask: 0 }.alloc(device).unwrap();
    Ok((pd, parent))
}

fn a_thread_domain_is_allocated_and_freed(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let domains: Vec<_> = (0..20).map(|_| thread_domain(dut, &device)).collect::<Result<_, _>>()?;
    assert!(domains.iter().all(|td| td.dealloc() == 0));
    Ok(())
}

/// `comp_mask` says which fields are valid, and none is defined.
fn an_unknown_mask_of_a_thread_domain_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    thread_domain(dut, &device)?;
    assert_eq!(Td::new(&device, 1).err(), Some(EINVAL));
    Ok(())
}

/// `man ibv_alloc_parent_domain`: "can't be NULL".
fn a_parent_domain_without_a_domain_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let td = thread_domain(dut, &device)?;
    let refused = ParentDomain { pd: None, td: Some(&td), comp_mask: 0 }.alloc(&device);
    assert_eq!(refused.err(), Some(EINVAL));
    Ok(())
}

fn an_unknown_mask_of_a_parent_domain_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    thread_domain(dut, &device)?;
    let refused = ParentDomain { pd: Some(&device.pd()), td: None, comp_mask: 1 << 7 }.alloc(&device);
    assert_eq!(refused.err(), Some(EINVAL));
    Ok(())
}

/// All objects of a domain belong to one context (IBTA chapter 10, protection domains).
fn a_parent_domain_of_another_context_is_refused(dut: &TestDevice) -> Outcome {
    let (device, other) = (dut.open(), dut.open());
    let td = thread_domain(dut, &device)?;
    let pd = device.pd();
    assert_eq!(ParentDomain { pd: Some(&pd), td: None, comp_mask: 0 }.alloc(&other).err(), Some(EINVAL));
    let mixed = ParentDomain { pd: Some(&other.pd()), td: Some(&td), comp_mask: 0 }.alloc(&other);
    assert_eq!(mixed.err(), Some(EINVAL));
    Ok(())
}

/// `man ibv_alloc_parent_domain`: "or NULL".
fn a_parent_domain_needs_no_thread_domain(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    thread_domain(dut, &device)?;
    let pd = device.pd();
    let parent = ParentDomain { pd: Some(&pd), td: None, comp_mask: 0 }.alloc(&device).unwrap();
    assert!(parent.is_of(&device));
    assert_eq!(parent.dealloc(), 0);
    Ok(())
}

fn a_parent_domain_takes_a_context_for_allocators(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    thread_domain(dut, &device)?;
    let comp_mask = Mask::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT.0;
    let pd = device.pd();
    let parent = ParentDomain { pd: Some(&pd), td: None, comp_mask }.alloc(&device).unwrap();
    assert_eq!(parent.dealloc(), 0);
    Ok(())
}

/// A device that does not use allocators refuses them: accepting them would promise that the
/// program's memory is used.
fn allocators_are_used_or_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    thread_domain(dut, &device)?;
    let comp_mask = Mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0;
    let pd = device.pd();
    match (ParentDomain { pd: Some(&pd), td: None, comp_mask }).alloc(&device) {
        Ok(parent) => drop(Node::within(&device, &parent, &NodeOptions::rc(Flavour::Classic))),
        Err(error) => assert_eq!(error, EOPNOTSUPP),
    }
    Ok(())
}

/// `man ibv_alloc_pd`: freeing may fail if any other resource is still associated with it.
fn a_domain_is_busy_while_a_parent_domain_has_it(dut: &TestDevice) -> Outcome {
    let (pd, parent) = parent(dut, &dut.open())?;
    assert_eq!(pd.dealloc(), EBUSY);
    assert_eq!(parent.dealloc(), 0);
    assert_eq!(pd.dealloc(), 0);
    Ok(())
}

/// `man ibv_alloc_td`: objects that were created with a thread domain must be destroyed before it.
fn a_thread_domain_is_busy_while_a_parent_domain_has_it(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let td = thread_domain(dut, &device)?;
    let parents: Vec<_> = (0..2)
        .map(|_| ParentDomain { pd: Some(&device.pd()), td: Some(&td), comp_mask: 0 }.alloc(&device).unwrap())
        .collect();
    for parent in &parents {
        assert_eq!(td.dealloc(), EBUSY);
        assert_eq!(parent.dealloc(), 0);
    }
    assert_eq!(td.dealloc(), 0);
    Ok(())
}

/// `man ibv_alloc_parent_domain`: objects that were created with it must be destroyed before it.
fn a_parent_domain_is_busy_while_it_has_objects(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (pd, parent) = parent(dut, &device)?;
    let mr = parent.reg(&Buf::new(4096), EVERYTHING).unwrap();
    assert_eq!(parent.dealloc(), EBUSY);
    drop(mr);
    let node = Node::within(&device, &parent, &NodeOptions::rc(Flavour::Classic));
    assert_eq!(parent.dealloc(), EBUSY);
    drop(node);
    assert_eq!((parent.dealloc(), pd.dealloc()), (0, 0));
    Ok(())
}

/// Every function that takes a domain takes a parent domain, this one too.
fn a_parent_domain_can_be_extended(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (_pd, first) = parent(dut, &device)?;
    let second = ParentDomain { pd: Some(&first), td: None, comp_mask: 0 }.alloc(&device).unwrap();
    assert_eq!(first.dealloc(), EBUSY);
    assert_eq!((second.dealloc(), first.dealloc()), (0, 0));
    Ok(())
}

fn everything_that_takes_a_domain_takes_a_parent_domain(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (_pd, parent) = parent(dut, &device)?;
    let mr = parent.reg(&Buf::new(4096), EVERYTHING).unwrap();
    let srq = Srq::new(&parent, 16, 1).unwrap();
    let ah = crate::kit::Ah::new(&parent, ah_attr(&device, device.find_gid().unwrap().0)).unwrap();
    for options in [
        NodeOptions::rc(Flavour::Classic),
        NodeOptions::uc(Flavour::Classic),
        NodeOptions::ud(Flavour::Classic),
        NodeOptions::rc(Flavour::Extended),
    ] {
        drop(Node::within(&device, &parent, &options));
    }
    assert_eq!(ah.destroy(), 0);
    drop((mr, srq));
    assert_eq!(parent.dealloc(), 0);
    Ok(())
}

/// `man ibv_alloc_parent_domain`: a parent domain is completely interchangeable with its domain.
/// Keys of one are valid for pairs of the other.
fn a_parent_domain_and_its_domain_are_one(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (pd, parent) = parent(dut, &device)?;
    let a = Node::within(&device, &pd, &NodeOptions::rc(Flavour::Classic));
    let b = Node::within(&device, &parent, &NodeOptions::rc(Flavour::Classic));
    a.connect(&b.peer());
    b.connect(&a.peer());
    let (of_pd, of_parent) =
        (pd.reg(&Buf::new(4096), EVERYTHING).unwrap(), parent.reg(&Buf::new(4096), EVERYTHING).unwrap());
    for (local, remote) in [(&of_pd, &of_parent), (&of_parent, &of_pd)] {
        for from in [&a, &b] {
            local.buf.set(0, &pattern(3, 300));
            remote.buf.set(0, &[0; 300]);
            from.done(Wr::write(1, remote.remote(0)).sge(local.at(0, 300)));
            assert_eq!(remote.buf.get(0, 300), pattern(3, 300));
        }
    }
    Ok(())
}

fn pairs_of_parent_domains_exchange_messages(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let device = dut.open();
    let (_pd, parent) = parent(dut, &device)?;
    let (a, b) = (
        Node::within(&device, &parent, &NodeOptions::rc(flavour)),
        Node::within(&device, &parent, &NodeOptions::rc(flavour)),
    );
    a.connect(&b.peer());
    b.connect(&a.peer());
    a.mr.buf.set(0, &pattern(1, 5000));
    b.recv(1, 0, 5000);
    a.done(Wr::send(2).sge(a.mr.at(0, 5000)));
    assert_eq!(b.recv_cq.ok().len, 5000);
    assert_eq!(b.mr.buf.get(0, 5000), pattern(1, 5000));
    Ok(())
}
