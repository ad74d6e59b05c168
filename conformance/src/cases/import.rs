//! Importing a device, domains and regions (`man ibv_import_device`, `man ibv_import_pd`, `man
//! ibv_import_mr`). The provider of SoftRoCE supports none of it.

use libc::{EBADF, EBUSY, EINVAL, EOPNOTSUPP};
use rdma_mummy_sys::types::*;

use crate::kit::{
    Buf, Device, EVERYTHING, Flavour, ImportedMr, Node, NodeOptions, Outcome, Skip, Suite, TestDevice, Wr,
    close, duplicate, other_descriptor, pair, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_device_is_imported_by_its_descriptor,
        a_device_is_imported_many_times,
        a_failed_import_leaves_the_descriptor,
        a_descriptor_of_no_device_is_refused,
        closing_an_imported_context_closes_its_descriptor,
        the_original_may_be_closed_first,
        an_imported_context_makes_objects_of_its_own,
        a_domain_is_imported,
        an_imported_domain_works_with_the_original,
        an_unimported_domain_lives_on,
        a_domain_that_another_uses_is_busy,
        a_domain_can_be_freed_by_whoever_imported_it,
        a_number_of_no_domain_is_refused,
        a_domain_of_another_context_is_not_found,
        a_region_is_imported_without_its_address,
        an_imported_region_is_good_for_requests,
        a_region_can_be_deregistered_by_whoever_imported_it,
        an_unimported_region_lives_on,
        a_number_of_no_region_is_refused,
    );
}

/// A context and an import of its descriptor, where the device supports that.
fn imported(dut: &TestDevice) -> Result<(Device, Device), Skip> {
    let device = dut.open();
    match device.import_own() {
        Ok(imported) => Ok((device, imported)),
        Err(EOPNOTSUPP) => skip!("{} cannot be imported", dut.name),
        Err(error) => panic!("error {error}"),
    }
}

fn a_device_is_imported_by_its_descriptor(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    assert_eq!(device.of_context(), imported.of_context());
    assert_ne!(device.command_fd(), imported.command_fd());
    assert_eq!(device.query().unwrap().node_guid, imported.query().unwrap().node_guid);
    assert_eq!(device.port().unwrap().state, imported.port().unwrap().state);
    assert_eq!(device.gid(1, 0), imported.gid(1, 0));
    Ok(())
}

fn a_device_is_imported_many_times(dut: &TestDevice) -> Outcome {
    let (device, first) = imported(dut)?;
    let others: Vec<_> = (0..5).map(|_| device.import_own().unwrap()).collect();
    // The descriptor of an imported context works, too.
    let again = first.import_own().unwrap();
    assert!(others.iter().all(|context| context.close() == 0));
    assert_eq!(again.close(), 0);
    assert_eq!(device.pd().dealloc(), 0);
    Ok(())
}

/// A failed import does not take ownership of the descriptor.
fn a_failed_import_leaves_the_descriptor(dut: &TestDevice) -> Outcome {
    let (device, _imported) = imported(dut)?;
    let descriptor = other_descriptor();
    assert!(device.import(descriptor).is_err());
    let copy = duplicate(descriptor);
    assert!(copy >= 0, "it is still open");
    close(copy);
    close(descriptor);
    Ok(())
}

fn a_descriptor_of_no_device_is_refused(dut: &TestDevice) -> Outcome {
    let (device, _imported) = imported(dut)?;
    let descriptor = other_descriptor();
    assert_eq!(device.import(descriptor).err(), Some(EINVAL));
    close(descriptor);
    assert_eq!(device.import(-1).err(), Some(EBADF));
    Ok(())
}

/// `man ibv_import_device`: `ibv_close_device` cleans up, "including closing the command FD".
fn closing_an_imported_context_closes_its_descriptor(dut: &TestDevice) -> Outcome {
    let (_device, imported) = imported(dut)?;
    let descriptor = imported.command_fd();
    assert_eq!(imported.close(), 0);
    assert!(duplicate(descriptor) < 0, "it is closed");
    Ok(())
}

/// Both descriptors are equal: the device file stays open until the last of them is closed.
fn the_original_may_be_closed_first(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let node = Node::new(&imported, &NodeOptions::rc(Flavour::Classic));
    assert_eq!(device.close(), 0);
    node.connect(&node.peer());
    node.mr.buf.set(0, &pattern(2, 64));
    node.done(Wr::write(1, node.mr.remote(100)).sge(node.mr.at(0, 64)));
    assert_eq!(node.mr.buf.get(100, 64), pattern(2, 64));
    Ok(())
}

fn an_imported_context_makes_objects_of_its_own(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let (a, b) = (
        Node::new(&device, &NodeOptions::rc(Flavour::Classic)),
        Node::new(&imported, &NodeOptions::rc(Flavour::Classic)),
    );
    assert!(b.pd.is_of(&imported) && !b.pd.is_of(&device));
    a.connect(&b.peer());
    b.connect(&a.peer());
    a.mr.buf.set(0, &pattern(2, 64));
    b.recv(1, 0, 64);
    a.done(Wr::send(1).sge(a.mr.at(0, 64)));
    assert_eq!(b.recv_cq.ok().len, 64);
    assert_eq!(b.mr.buf.get(0, 64), pattern(2, 64));
    Ok(())
}

fn a_domain_is_imported(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let pd = device.pd();
    let again = imported.import_pd(pd.handle()).unwrap();
    assert_eq!(again.handle(), pd.handle());
    assert!(again.is_of(&imported));
    // The domain can be imported into its own context, too.
    assert!(device.import_pd(pd.handle()).unwrap().is_of(&device));
    Ok(())
}

/// "The returned ibv_pd can be used in all verbs that get a protection domain."
fn an_imported_domain_works_with_the_original(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let pd = device.pd();
    let again = imported.import_pd(pd.handle()).unwrap();
    let a = Node::within(&device, &pd, &NodeOptions::rc(Flavour::Classic));
    let b = Node::within(&imported, &again, &NodeOptions::rc(Flavour::Extended));
    a.connect(&b.peer());
    b.connect(&a.peer());
    let mr = again.reg(&Buf::new(4096), EVERYTHING).unwrap();
    mr.buf.set(0, &pattern(6, 200));
    // The key of a region from one handle is used by the pair of the other.
    a.done(Wr::write(1, b.mr.remote(0)).sge(mr.at(0, 200)));
    assert_eq!(b.mr.buf.get(0, 200), pattern(6, 200));
    b.done(Wr::read(2, mr.remote(0)).sge(b.mr.at(1000, 200)));
    assert_eq!(b.mr.buf.get(1000, 200), pattern(6, 200));
    Ok(())
}

/// `ibv_unimport_pd` cleans up "without calling the kernel".
fn an_unimported_domain_lives_on(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let pd = device.pd();
    drop(imported.import_pd(pd.handle()).unwrap());
    let mr = pd.reg(&Buf::new(4096), EVERYTHING).unwrap();
    assert_eq!(pd.dealloc(), EBUSY);
    drop(mr);
    assert_eq!(pd.dealloc(), 0);
    Ok(())
}

fn a_domain_that_another_uses_is_busy(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let pd = device.pd();
    let again = imported.import_pd(pd.handle()).unwrap();
    let mr = again.reg(&Buf::new(4096), EVERYTHING).unwrap();
    assert_eq!(pd.dealloc(), EBUSY);
    drop(mr);
    drop(again);
    assert_eq!(pd.dealloc(), 0);
    Ok(())
}

/// "Once the PD usage has been ended ibv_dealloc_pd() or ibv_unimport_pd() should be called."
fn a_domain_can_be_freed_by_whoever_imported_it(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let pd = device.pd();
    let (first, second) =
        (imported.import_pd(pd.handle()).unwrap(), imported.import_pd(pd.handle()).unwrap());
    assert_eq!(first.dealloc(), 0);
    assert!(imported.import_pd(pd.handle()).is_err(), "it is gone");
    // The other handles may only be unimported, as the drop of `second` does.
    drop(second);
    assert_ne!(pd.dealloc(), 0, "it is freed once");
    pd.forget();
    Ok(())
}

fn a_number_of_no_domain_is_refused(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    assert!(imported.import_pd(0x7fff_ffff).is_err());
    let number = device.pd().handle();
    assert!(imported.import_pd(number).is_err(), "it was freed");
    Ok(())
}

/// "The input pd_handle value must be a valid kernel handle for a PD object in the given context."
fn a_domain_of_another_context_is_not_found(dut: &TestDevice) -> Outcome {
    let (device, _imported) = imported(dut)?;
    let other = dut.open();
    let pd = device.pd();
    // The handle may name another domain there: one of `other`, if it has any.
    assert!(other.import_pd(pd.handle()).is_err());
    Ok(())
}

/// "The addr field in the imported MR is not applicable, NULL value is expected."
fn a_region_is_imported_without_its_address(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let pd = device.pd();
    let mr = pd.reg(&Buf::new(8192), EVERYTHING).unwrap();
    let again = imported.import_pd(pd.handle()).unwrap();
    let region = ImportedMr::new(&again, mr.fields().handle).unwrap();
    let (fields, original) = (region.fields(), mr.fields());
    assert!(fields.addr.is_null());
    assert_eq!(
        (fields.lkey, fields.rkey, fields.length, fields.handle),
        (original.lkey, original.rkey, original.length, original.handle)
    );
    Ok(())
}

fn an_imported_region_is_good_for_requests(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let pd = device.pd();
    let mr = pd.reg(&Buf::new(8192), EVERYTHING).unwrap();
    let again = imported.import_pd(pd.handle()).unwrap();
    let region = ImportedMr::new(&again, mr.fields().handle).unwrap();
    let node = Node::within(&imported, &again, &NodeOptions::rc(Flavour::Classic));
    node.connect(&node.peer());
    mr.buf.set(0, &pattern(5, 500));
    node.done(Wr::write(1, node.mr.remote(0)).sge(region.at(&mr, 0, 500)));
    assert_eq!(node.mr.buf.get(0, 500), pattern(5, 500));
    Ok(())
}

/// "Once the MR usage has been ended ibv_dereg_mr() or ibv_unimport_mr() should be called."
fn a_region_can_be_deregistered_by_whoever_imported_it(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic).impatient());
    let node = Node::new(&device, &NodeOptions::rc(Flavour::Classic));
    let again = imported.import_pd(node.pd.handle()).unwrap();
    let mr = node.pd.reg(&Buf::new(4096), EVERYTHING).unwrap();
    let remote = mr.remote(0);
    let region = ImportedMr::new(&again, mr.fields().handle).unwrap();
    assert_eq!(region.dereg(), 0);
    assert!(ImportedMr::new(&again, mr.fields().handle).is_err(), "it is gone");
    // Its key is invalid now.
    let status = a.fails(Wr::write(1, remote).sge(a.mr.at(0, 8)));
    assert!(
        [ibv_wc_status::IBV_WC_REM_ACCESS_ERR, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR].contains(&status),
        "{status:?}"
    );
    drop(b);
    // The original handle may only be unimported.
    mr.unimport();
    Ok(())
}

fn an_unimported_region_lives_on(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let node = Node::new(&device, &NodeOptions::rc(Flavour::Classic));
    node.connect(&node.peer());
    let again = imported.import_pd(node.pd.handle()).unwrap();
    let mr = node.pd.reg(&Buf::new(4096), EVERYTHING).unwrap();
    drop(ImportedMr::new(&again, mr.fields().handle).unwrap());
    mr.buf.set(0, &pattern(9, 100));
    node.done(Wr::write(1, node.mr.remote(0)).sge(mr.at(0, 100)));
    assert_eq!(node.mr.buf.get(0, 100), pattern(9, 100));
    Ok(())
}

fn a_number_of_no_region_is_refused(dut: &TestDevice) -> Outcome {
    let (device, imported) = imported(dut)?;
    let pd = device.pd();
    let again = imported.import_pd(pd.handle()).unwrap();
    assert!(ImportedMr::new(&again, 0x7fff_ffff).is_err());
    let number = pd.reg(&Buf::new(4096), EVERYTHING).unwrap().fields().handle;
    assert!(ImportedMr::new(&again, number).is_err(), "it was deregistered");
    Ok(())
}
