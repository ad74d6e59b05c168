//! Tests of domains, multicast groups, options, imports, flows and counters: errors, C structs, and
//! lifetimes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use sideway::ErrorKind;
use sideway::ibverbs::address::Gid;
use sideway::ibverbs::completion::BasicCompletionQueue;
use sideway::ibverbs::completion_counter::{CompletionCounterOperations, CompletionCounterType};
use sideway::ibverbs::counters::{CounterDescription, ReadCountersFlags};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::ece::Ece;
use sideway::ibverbs::flow::{
    EspFilter, EthernetFilter, FlowAttribute, FlowFlags, FlowSpec, FlowType, GreFilter, Ipv4ExtFilter,
    Ipv4Filter, Ipv6Filter, Match, MplsFilter, PortFilter, TunnelFilter,
};
use sideway::ibverbs::fork::{ForkStatus, fork_init, is_fork_initialized};
use sideway::ibverbs::partition::PartitionKey;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, CreateQueuePairError, QueuePair, QueuePairControl, QueuePairType,
};
use sideway::sys::verbs;

use super::FakeSetup;
use super::control::{ERRNOS, assert_fails, assert_says, is_unsupported, lying};
use super::support::fake::{Fake, old_provider, provider};
use crate::support::errors::assert_error;

type Pair = FakeSetup<BasicQueuePair, BasicCompletionQueue>;

const GROUP: Gid = Gid { raw: [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] };

#[test]
fn domains_can_fail() {
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| l.extras = errno);
        let error = context.alloc_td().unwrap_err();
        assert_fails!(errno, "ibv_alloc_td", error);
        let error = context.alloc_pd().unwrap().create_parent_domain_builder().build().unwrap_err();
        assert_fails!(errno, "ibv_alloc_parent_domain", error);
    }
}

#[test]
fn domains_without_extended_verbs_are_unsupported() {
    let (_fake, context) = lying(|l| l.no_extended_verbs = true);
    let error = context.alloc_td().unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no thread domains (ibv_alloc_td)");
    let error = context.alloc_pd().unwrap().create_parent_domain_builder().build().unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no parent domains (ibv_alloc_parent_domain)");
}

#[test]
fn a_parent_domain_keeps_its_parts() {
    let fake = Fake::new();
    let context = fake.context();
    let (pd, td) = (context.alloc_pd().unwrap(), context.alloc_td().unwrap());
    let mut builder = pd.create_parent_domain_builder();
    // SAFETY: nothing is made in the domain.
    unsafe { builder.setup_thread_domain(&td) };
    let parent = builder.build().unwrap();
    drop(builder);
    assert_eq!(parent.thread_domain(), Some(&td));
    assert_eq!(parent.extended_domain().map(|pd| pd.as_raw()), Some(pd.as_raw()));
    assert!(pd.thread_domain().is_none() && pd.extended_domain().is_none() && !parent.is_imported());
    let second = parent.create_parent_domain_builder().build().unwrap();
    drop((context, pd, td, parent));
    assert!(fake.world.destroyed.lock().unwrap().is_empty());
    drop(second);
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["pd", "pd", "pd", "td", "context"]);
}

#[test]
fn a_thread_domain_of_another_context_is_refused() {
    let fake = Fake::new();
    let (here, there) = (fake.context(), fake.context());
    let mut builder = here.alloc_pd().unwrap().create_parent_domain_builder();
    // SAFETY: nothing is made in the domain.
    unsafe { builder.setup_thread_domain(&there.alloc_td().unwrap()) };
    assert_eq!(builder.build().unwrap_err().kind(), ErrorKind::OtherContext);
}

#[test]
fn a_membership_ends_before_its_pair() {
    let fake = Fake::new();
    let setup = Pair::new(&fake);
    let control = setup.qp.control().clone();
    let first = control.attach_mcast(GROUP, 0).unwrap();
    let second = control.attach_mcast(GROUP, 1).unwrap();
    let error = control.attach_mcast(GROUP, 1).unwrap_err();
    assert_error(&error, ErrorKind::AlreadyExists, &[("lid", &"0x1")]);
    first.detach().unwrap();
    // Joins again, through another handle.
    let third = control.clone().attach_mcast(GROUP, 0).unwrap();
    assert_eq!((third.gid(), third.lid(), second.queue_pair().qp_number()), (GROUP, 0, control.qp_number()));
    drop((setup, control));
    assert!(!fake.world.destroyed.lock().unwrap().contains(&"qp"), "it is in groups");
    drop(third);
    drop(second);
    assert!(fake.world.destroyed.lock().unwrap().contains(&"qp"));
}

#[test]
fn joining_can_fail() {
    for errno in ERRNOS {
        let fake = Fake::lying(|l| l.extras = errno);
        let error = Pair::new(&fake).qp.control().attach_mcast(GROUP, 0).unwrap_err();
        assert_fails!(errno, "ibv_attach_mcast", error);
    }
}

#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be destroyed")]
fn a_membership_that_does_not_end_comes_back() {
    let fake = Fake::lying(|l| l.destroy = libc::EBUSY).may_leak();
    let setup = Pair::new(&fake);
    let error = setup.qp.control().attach_mcast(GROUP, 0).unwrap().detach().unwrap_err();
    assert_says(&error, libc::EBUSY);
    assert_eq!(error.object.gid(), GROUP);
    assert!(setup.qp.control().attach_mcast(GROUP, 0).is_err(), "it is in the group still");
    std::mem::forget((error, setup));
}

#[test]
fn options_are_told_and_taken_away() {
    let fake = Fake::new();
    let pair = control(&fake);
    let ece = pair.query_ece().unwrap();
    assert_eq!(ece, Ece { vendor_id: 0x1234, options: 0b111 });
    assert_eq!(pair.set_ece(ece).unwrap(), Ece { options: 0b101, ..ece });
    for errno in ERRNOS {
        let fake = Fake::lying(|l| l.extras = errno);
        let pair = control(&fake);
        assert_fails!(errno, "ibv_query_ece", pair.query_ece().unwrap_err());
        assert_fails!(errno, "ibv_set_ece", pair.set_ece(ece).unwrap_err());
    }
}

#[test]
fn partition_keys_are_found() {
    let (_fake, context) = lying(|_| {});
    let limited = PartitionKey::new(0x0123);
    let member = PartitionKey::new(0x8123);
    assert_eq!(context.query_pkey(1, 2).unwrap(), member);
    assert_eq!(context.pkey_index(1, PartitionKey::DEFAULT).unwrap(), Some(0));
    assert_eq!(context.pkey_index(1, member).unwrap(), Some(2));
    assert_eq!(context.pkey_index(1, limited).unwrap(), None);
    assert!(context.pkey_index(2, member).is_err() && context.query_pkey(1, 3).is_err());
    assert_eq!(
        (member.base(), member.is_full_member(), limited.is_full_member()),
        (limited.base(), true, false)
    );
    assert!(PartitionKey::new(0x8000).is_invalid());
    assert_eq!((member.to_string(), format!("{member:?}")), ("0x8123".into(), "PartitionKey(0x8123)".into()));
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| l.extras = errno);
        let error = context.query_pkey(1, 0).unwrap_err();
        assert_error(&error, ErrorKind::Os, &[("port_num", &1), ("index", &0)]);
        assert_says(&error, errno);
    }
}

#[test]
fn the_speed_of_a_port_is_told() {
    let (_fake, context) = lying(|_| {});
    let speed = context.query_port_speed(1).unwrap();
    assert_eq!((speed.hundreds_of_mbps(), speed.gbps()), (4000, 400.0));
    assert_error(&context.query_port_speed(2).unwrap_err(), ErrorKind::Os, &[("port_num", &2)]);
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| l.extras = errno);
        let error = context.query_port_speed(1).unwrap_err();
        assert_fails!(errno, "ibv_query_port_speed", error);
    }
}

#[test]
fn a_device_has_an_index_or_none() {
    let fake = Fake::new();
    assert_eq!(fake.list().unwrap().first().unwrap().index(), Some(7));
    let fake = Fake::lying(|l| l.extras = libc::EIO);
    assert_eq!(fake.list().unwrap().first().unwrap().index(), None);
}

#[test]
fn forks_are_safe_or_not() {
    let _fake = Fake::new();
    fork_init(provider()).unwrap();
    assert_eq!(is_fork_initialized(provider()).unwrap(), ForkStatus::Unneeded);
    let _fake = Fake::lying(|l| (l.extras, l.garbage_attributes) = (libc::EINVAL, true));
    assert_says(&fork_init(provider()).unwrap_err(), libc::EINVAL);
    assert_eq!(is_fork_initialized(provider()).unwrap().to_string(), "Unknown(4711)");
    let missing = is_fork_initialized(old_provider()).unwrap_err();
    assert_eq!(missing.name, "ibv_is_fork_initialized");
}

/// A descriptor that the fake accepts as a device's.
fn descriptor() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

#[test]
#[cfg_attr(miri, ignore = "opens files")]
fn a_descriptor_that_was_taken_is_not_closed_here() {
    let fake = Fake::new();
    let descriptor = descriptor();
    let number = descriptor.as_raw_fd();
    let context = DeviceContext::import(provider(), descriptor).unwrap();
    assert_eq!(*fake.world.imported_descriptor.lock().unwrap(), Some(number));
    assert!(context.command_fd().is_some());
    drop(context);
    // SAFETY: the fake does not close the descriptor, and nobody else owns it.
    assert_eq!(unsafe { libc::close(number) }, 0, "it is open");
}

#[test]
#[cfg_attr(miri, ignore = "opens files")]
fn a_descriptor_that_was_not_taken_comes_back() {
    for errno in ERRNOS {
        let _fake = Fake::lying(|l| l.extras = errno);
        let descriptor = descriptor();
        let number = descriptor.as_raw_fd();
        let error = DeviceContext::import(provider(), descriptor).unwrap_err();
        assert_says(&error.error, errno);
        assert_eq!(error.error.unsupported().is_some(), is_unsupported(errno), "{error}");
        assert_eq!(error.object.as_raw_fd(), number);
    }
    let error = DeviceContext::import(old_provider(), descriptor()).unwrap_err();
    assert!(error.to_string().contains("ibv_import_device"), "{error}");
}

#[test]
fn imported_objects_are_unimported_on_drop() {
    let fake = Fake::new();
    let context = fake.context();
    // SAFETY: the fake can import any handle.
    let pd = unsafe { context.import_pd(77) }.unwrap();
    assert!(pd.is_imported());
    assert_eq!(pd.handle(), 77);
    // SAFETY: the fake can import any handle.
    let mr = unsafe { pd.import_mr(78) }.unwrap();
    assert_eq!((mr.handle(), mr.region_len()), (78, 99));
    assert_ne!(mr.lkey(), mr.rkey());
    drop((context, pd));
    drop(mr);
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["context"]);
}

#[test]
fn importing_objects_can_fail() {
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| l.extras = errno);
        // SAFETY: the import fails, so nothing is imported.
        let error = unsafe { context.import_pd(77) }.unwrap_err();
        assert_fails!(errno, "ibv_import_pd", error);
        // SAFETY: the import fails, so no region refers to memory of another object.
        let error = unsafe { context.alloc_pd().unwrap().import_mr(78) }.unwrap_err();
        assert_fails!(errno, "ibv_import_mr", error);
    }
}

#[test]
fn an_old_library_names_what_it_lacks() {
    let _fake = Fake::new();
    let context = DeviceList::from_provider(old_provider()).unwrap().first().unwrap().open().unwrap();
    let says = |error: &dyn std::error::Error, symbol: &str, since: &str| {
        let text = error.to_string();
        assert!(text.contains(symbol) && text.contains(since) && text.contains("fake0"), "{text}");
    };
    // SAFETY: the import fails, so nothing is imported.
    says(&unsafe { context.import_pd(1) }.unwrap_err(), "ibv_import_pd", "rdma-core 31");
    says(&context.query_port_speed(1).unwrap_err(), "ibv_query_port_speed", "rdma-core 62");
    let error = context.create_completion_counter(CompletionCounterType::Bytes).unwrap_err();
    says(&error, "ibv_create_comp_cntr", "rdma-core 65");
    // Functions that the library lacks, but that this crate can replace, still work.
    assert_eq!(context.pkey_index(1, PartitionKey::new(0x8123)).map_err(|error| error.to_string()), Ok(None));
}

#[test]
fn unwrapped_verbs_are_reached_by_raw_handles_and_unwrapped_options_are_refused() {
    let fake = Fake::new();
    let context = fake.context();
    let raw = context.as_raw().as_ptr();
    let (mut wq, mut table, mut esp) = Default::default();
    // SAFETY: the context is open. The attributes are local variables, and name no queue and no
    // key.
    let made = unsafe {
        [
            verbs::ibv_create_wq(raw, &raw mut wq).is_null(),
            verbs::ibv_create_rwq_ind_table(raw, &raw mut table).is_null(),
            verbs::ibv_create_flow_action_esp(raw, &raw mut esp).is_null(),
        ]
    };
    assert_eq!(made, [true; 3], "the fake device has no such verbs");
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
    let cq = context.create_cq_builder().setup_cqe(4).build().unwrap();
    let mut builder = context.alloc_pd().unwrap().create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_tso_header(64);
    for _ in 0..2 {
        for result in
            [builder.build().map(drop), builder.build_ex().map(drop), builder.build_generic().map(drop)]
        {
            let error = result.unwrap_err();
            assert!(matches!(error, CreateQueuePairError::Unsupported(_)), "{error}");
        }
        builder.setup_max_tso_header(0).setup_qp_type(QueuePairType::RawPacket);
    }
    assert_eq!(
        builder.build().map(drop).unwrap_err().to_string(),
        "device fake0 has no raw packet queue pairs in this crate (ibv_create_qp_ex)"
    );
}

fn control(fake: &Fake) -> QueuePairControl {
    Pair::new(fake).qp.control().clone()
}

/// The expected C struct: of this size and type, with these bytes at these offsets and zero
/// elsewhere.
fn spec(spec_type: u32, size: u16, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; size.into()];
    bytes[..4].copy_from_slice(&spec_type.to_ne_bytes());
    bytes[4..6].copy_from_slice(&size.to_ne_bytes());
    for (at, field) in fields {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes
}

/// The bytes of a rule's only part, without the header of the rule.
fn encoded(part: FlowSpec) -> Vec<u8> {
    let fake = Fake::new();
    let flow = control(&fake).create_flow(FlowAttribute::new(1).add(part)).unwrap();
    drop(flow);
    let rule = fake.world.extras.rule.lock().unwrap().clone();
    rule[20..].to_vec()
}

/// Sizes and offsets are copied from `infiniband/verbs.h` by hand.
#[test]
fn every_layer_is_as_c_has_it() {
    let mac = EthernetFilter { dst_mac: [1; 6], src_mac: [2; 6], ether_type: 0x0800, vlan_tag: 0x0123 };
    let all = EthernetFilter { dst_mac: [255; 6], src_mac: [254; 6], ether_type: 0xffff, vlan_tag: 0xfff0 };
    assert_eq!(
        encoded(FlowSpec::Ethernet(Match::new(mac, all))),
        spec(
            0x20,
            40,
            &[
                (6, &[1; 6]),
                (12, &[2; 6]),
                (18, &[8, 0, 1, 0x23]),
                (22, &[255; 6]),
                (28, &[254; 6]),
                (34, &[255, 255, 255, 0xf0])
            ]
        )
    );
    let ip = Ipv4Filter { src_ip: [10, 0, 0, 1], dst_ip: [10, 0, 0, 2] };
    let mask = Ipv4Filter { src_ip: [255; 4], dst_ip: [0; 4] };
    assert_eq!(
        encoded(FlowSpec::Ipv4(Match::inner(ip, mask))),
        spec(0x130, 24, &[(8, &[10, 0, 0, 1, 10, 0, 0, 2]), (16, &[255; 4])])
    );
    let ext = Ipv4ExtFilter { src_ip: [1; 4], dst_ip: [2; 4], proto: 3, tos: 4, ttl: 5, flags: 6 };
    assert_eq!(
        encoded(FlowSpec::Ipv4Ext(Match::new(ext, ext))),
        spec(
            0x32,
            32,
            &[(8, &[1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 5, 6]), (20, &[1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 5, 6])]
        )
    );
    let ipv6 = Ipv6Filter {
        src_ip: [7; 16],
        dst_ip: [8; 16],
        flow_label: 0x0001_0203,
        next_hdr: 9,
        traffic_class: 10,
        hop_limit: 11,
    };
    let mask = Ipv6Filter { flow_label: 0x000f_ffff, ..Ipv6Filter::default() };
    assert_eq!(
        encoded(FlowSpec::Ipv6(Match::new(ipv6, mask))),
        spec(
            0x31,
            88,
            &[(8, &[7; 16]), (24, &[8; 16]), (40, &[0, 1, 2, 3, 9, 10, 11]), (80, &[0, 0xf, 0xff, 0xff])]
        )
    );
    let ports = PortFilter { dst_port: 0x1234, src_port: 0x5678 };
    let bytes: &[(usize, &[u8])] = &[(6, &[0x12, 0x34, 0x56, 0x78]), (10, &[0x12, 0x34, 0x56, 0x78])];
    assert_eq!(encoded(FlowSpec::Tcp(Match::new(ports, ports))), spec(0x40, 16, bytes));
    assert_eq!(encoded(FlowSpec::Udp(Match::new(ports, ports))), spec(0x41, 16, bytes));
    let word: &[(usize, &[u8])] = &[(8, &[0, 0, 1, 2]), (12, &[0, 0, 1, 2])];
    let tunnel = TunnelFilter { tunnel_id: 0x0102 };
    assert_eq!(encoded(FlowSpec::VxlanTunnel(Match::new(tunnel, tunnel))), spec(0x50, 16, word));
    let mpls = MplsFilter { label: 0x0102 };
    assert_eq!(encoded(FlowSpec::Mpls(Match::inner(mpls, mpls))), spec(0x160, 16, word));
    let gre = GreFilter { c_ks_res0_ver: 1, protocol: 2, key: 3 };
    assert_eq!(
        encoded(FlowSpec::Gre(Match::new(gre, gre))),
        spec(0x51, 24, &[(8, &[0, 1, 0, 2, 0, 0, 0, 3]), (16, &[0, 1, 0, 2, 0, 0, 0, 3])])
    );
    let esp = EspFilter { spi: 4, seq: 5 };
    assert_eq!(
        encoded(FlowSpec::Esp(Match::new(esp, esp))),
        spec(0x34, 24, &[(8, &[0, 0, 0, 4, 0, 0, 0, 5]), (16, &[0, 0, 0, 4, 0, 0, 0, 5])])
    );
    assert_eq!(encoded(FlowSpec::Tag(0xabcd)), spec(0x1000, 12, &[(8, &0xabcd_u32.to_ne_bytes())]));
    assert_eq!(encoded(FlowSpec::Drop), spec(0x1001, 8, &[]));
}

#[test]
fn a_rule_begins_as_c_has_it() {
    let fake = Fake::new();
    let mut attr = FlowAttribute::new(2);
    attr.setup_type(FlowType::Sniffer).setup_priority(0x0506).setup_flags(FlowFlags::DontTrap);
    attr.add(FlowSpec::Drop).add(FlowSpec::Tag(1));
    control(&fake).create_flow(&attr).unwrap().close().unwrap();
    let rule = fake.world.extras.rule.lock().unwrap().clone();
    assert_eq!(rule.len(), 20 + 8 + 12);
    assert_eq!(rule[..4], [0; 4], "no comp_mask");
    assert_eq!(rule[4..8], 3_u32.to_ne_bytes());
    assert_eq!(rule[8..10], 40_u16.to_ne_bytes());
    assert_eq!(rule[10..12], 0x0506_u16.to_ne_bytes());
    assert_eq!(rule[12..14], [2, 2], "parts and port");
    assert_eq!(rule[16..20], 2_u32.to_ne_bytes());
}

#[test]
fn a_rule_that_is_too_long_is_refused() {
    let fake = Fake::new();
    let mut attr = FlowAttribute::new(1);
    for _ in 0..256 {
        attr.add(FlowSpec::Drop);
    }
    let error = control(&fake).create_flow(&attr).unwrap_err();
    assert_error(&error, ErrorKind::LimitExceeded, &[("specs", &256)]);
}

#[test]
fn flows_and_counters_can_fail() {
    for errno in ERRNOS.into_iter().chain([libc::ENXIO]) {
        let fake = Fake::lying(|l| l.extras = errno);
        let error = control(&fake).create_flow(&FlowAttribute::new(1)).unwrap_err();
        if errno == libc::ENXIO {
            assert!(error.unsupported().is_some(), "{error}");
        } else {
            assert_fails!(errno, "ibv_create_flow", error);
        }
        let error = fake.context().create_counters().unwrap_err();
        assert_fails!(errno, "ibv_create_counters", error);
        let fake = Fake::lying(|l| l.counters = errno);
        let counters = fake.context().create_counters().unwrap();
        let error = counters.attach_point(CounterDescription::Bytes, 1).unwrap_err();
        assert_fails!(errno, "ibv_attach_counters_point_flow", error);
        let error = counters.read(&mut [0; 2], ReadCountersFlags::empty()).unwrap_err();
        assert_fails!(errno, "ibv_read_counters", error);
    }
}

#[test]
fn a_flow_keeps_what_it_needs() {
    let fake = Fake::new();
    let setup = Pair::new(&fake);
    let counters = setup.context.create_counters().unwrap();
    counters.attach_point(CounterDescription::Packets, 0).unwrap();
    counters.attach_point(CounterDescription::Bytes, 1).unwrap();
    assert_eq!(*fake.world.extras.points.lock().unwrap(), [(0, 0), (1, 1)]);
    let mut attr = FlowAttribute::new(1);
    attr.add(FlowSpec::Drop).add(FlowSpec::Count(counters.clone()));
    let flow = setup.qp.control().create_flow(&attr).unwrap();
    counters.attach_point_flow(CounterDescription::Bytes, 2, &flow).unwrap();
    let mut values = [0; 3];
    counters.read(&mut values, ReadCountersFlags::PreferCached).unwrap();
    assert_eq!(values, [1000, 1001, 1002]);
    assert_eq!(flow.counters(), std::slice::from_ref(&counters));
    drop((attr, counters, setup));
    let gone = fake.world.destroyed.lock().unwrap().clone();
    assert!(!gone.contains(&"qp") && !gone.contains(&"counters"), "{gone:?}");
    drop(flow);
    let gone = fake.world.destroyed.lock().unwrap().clone();
    let place = |what| gone.iter().position(|name| *name == what).unwrap();
    assert!(place("flow") < place("qp") && place("flow") < place("counters"), "{gone:?}");
}

#[test]
fn counters_of_another_context_are_refused() {
    let fake = Fake::new();
    let (setup, other) = (Pair::new(&fake), fake.context());
    let counters = other.create_counters().unwrap();
    let flow = setup.qp.control().create_flow(&FlowAttribute::new(1)).unwrap();
    let error = counters.attach_point_flow(CounterDescription::Bytes, 0, &flow).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OtherContext, "{error}");
    let mut attr = FlowAttribute::new(1);
    attr.add(FlowSpec::Count(counters));
    let error = setup.qp.control().create_flow(&attr).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OtherContext, "{error}");
}

#[test]
fn a_completion_counter_lives_as_long_as_what_it_counts() {
    let fake = Fake::new();
    let setup = Pair::new(&fake);
    let context = setup.context.clone();
    let caps = context.query_completion_counter_caps().unwrap();
    assert_eq!((caps.max_value, caps.max_counters), (99, 4));
    assert_eq!(
        caps.supported_operations,
        CompletionCounterOperations::Send | CompletionCounterOperations::Recv
    );
    let counter = context.create_completion_counter(CompletionCounterType::WorkRequests).unwrap();
    counter.set(5).unwrap();
    counter.increment(2).unwrap();
    counter.set_errors(1).unwrap();
    counter.increment_errors(3).unwrap();
    assert_eq!((counter.read().unwrap(), counter.read_errors().unwrap()), (7, 4));
    counter.attach(setup.qp.control(), CompletionCounterOperations::Send).unwrap();
    drop((counter, context));
    assert!(fake.world.destroyed.lock().unwrap().is_empty());
    drop(setup);
    let gone = fake.world.destroyed.lock().unwrap().clone();
    let place = |what| gone.iter().position(|name| *name == what).unwrap();
    assert!(place("qp") < place("comp_cntr"), "{gone:?}");
}

#[test]
fn completion_counters_can_fail() {
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| l.extras = errno);
        let error = context.create_completion_counter(CompletionCounterType::Bytes).unwrap_err();
        assert_fails!(errno, "ibv_create_comp_cntr", error);
        let error = context.query_completion_counter_caps().unwrap_err();
        assert_fails!(errno, "ibv_query_comp_cntr_caps", error);
        let fake = Fake::lying(|l| l.counters = errno);
        let setup = Pair::new(&fake);
        let counter = setup.context.create_completion_counter(CompletionCounterType::Bytes).unwrap();
        let operations = CompletionCounterOperations::Recv;
        for (error, verb) in [
            (counter.read().unwrap_err(), "ibv_read_comp_cntr"),
            (counter.set(1).unwrap_err(), "ibv_set_comp_cntr"),
            (counter.attach(setup.qp.control(), operations).unwrap_err(), "ibv_qp_attach_comp_cntr"),
        ] {
            match error {
                error if error.unsupported().is_some() => {
                    assert!(is_unsupported(errno));
                    assert_eq!(error.verb(), verb);
                }
                error => assert_says(&error, errno),
            }
        }
    }
}

#[test]
fn garbage_of_a_device_is_typed() {
    let (_fake, context) = lying(|l| l.garbage_attributes = true);
    let attr = context.query_device().unwrap();
    let text = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        attr.capability_flags(),
        attr.odp_caps(),
        attr.tso_caps(),
        attr.rss_caps(),
        attr.packet_pacing_caps(),
        attr.raw_packet_caps(),
        attr.tm_caps(),
        attr.pci_atomic_caps()
    );
    assert!(text.contains("DeviceCapabilityFlags["), "{text}");
    assert_eq!(attr.phys_port_cnt_ex(), u32::from(attr.phys_port_cnt()));
    assert!(!attr.tso_caps().supported_qpts.contains(QueuePairType::from_raw(4711)));
}
