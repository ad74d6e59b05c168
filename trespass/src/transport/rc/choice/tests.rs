use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use sideway::topology::Topology;

use super::*;

/// A usable port 1 on NUMA node 0, with 100 Gb/s, whose card no other port is on.
fn port(device: &str) -> Candidate {
    let number: u8 = device.rsplit('_').next().and_then(|number| number.parse().ok()).expect("a number");
    Candidate {
        device: device.to_owned(),
        port: 1,
        status: PortStatus::Usable,
        link_layer: LinkLayer::Ethernet,
        rate: Some(1000),
        function: Some(function(number, 0)),
        physical_function: None,
        numa_node: Some(0),
        listed: None,
    }
}

fn function(bus: u8, function: u8) -> PciAddress {
    format!("0000:{bus:02x}:00.{function}").parse().expect("an address")
}

fn names(choice: &Choice<'_>) -> Vec<String> {
    choice.chosen.iter().map(|chosen| chosen.port.to_string()).collect()
}

fn line(candidates: &[Candidate], process: Option<u32>, most: usize) -> String {
    choose(candidates, process, most).to_string()
}

#[test]
fn the_near_numa_node_goes_first_then_unknown_ones() {
    let ports = [
        Candidate { numa_node: Some(1), rate: Some(2000), ..port("mlx5_0") },
        Candidate { numa_node: None, ..port("mlx5_1") },
        port("mlx5_2"),
    ];
    assert_eq!(
        line(&ports, Some(0), 4),
        "ports: mlx5_2:1 (100 Gb/s, NUMA node 0 of the process), mlx5_1:1 (100 Gb/s, unknown NUMA node), \
         mlx5_0:1 (200 Gb/s, other NUMA node 1); not used: none"
    );
    assert_eq!(
        line(&ports, None, 2),
        "ports: mlx5_0:1 (200 Gb/s, NUMA node 1), mlx5_1:1 (100 Gb/s, unknown NUMA node); not used: mlx5_2:1 (2 \
         ports are wanted)"
    );
}

/// Two ports of one adapter are hardly faster than one, also where the other adapter is far.
#[test]
fn another_card_goes_before_a_second_port_of_one() {
    let dual_port = Candidate { port: 2, ..port("mlx5_0") };
    let second_function = Candidate { function: Some(function(0, 1)), ..port("mlx5_1") };
    let far = Candidate { numa_node: Some(1), rate: Some(500), ..port("mlx5_2") };
    let ports = [port("mlx5_0"), dual_port, second_function, far];
    assert_eq!(names(&choose(&ports, Some(0), 2)), ["mlx5_0:1", "mlx5_2:1"]);
    assert_eq!(
        line(&ports, Some(0), 4),
        "ports: mlx5_0:1 (100 Gb/s, NUMA node 0 of the process), mlx5_2:1 (50 Gb/s, other NUMA node 1), mlx5_1:1 \
         (100 Gb/s, NUMA node 0 of the process, same card as mlx5_0:1), mlx5_0:2 (100 Gb/s, NUMA node 0 of the \
         process, same PCI function as mlx5_0:1); not used: none"
    );
}

#[test]
fn a_virtual_function_is_of_its_physical_functions_card() {
    let virtual_function = |device: &str, address: &str| Candidate {
        function: Some(address.parse().expect("an address")),
        physical_function: Some(function(0, 0)),
        ..port(device)
    };
    let ports = [
        port("mlx5_0"),
        virtual_function("mlx5_1", "0000:00:01.2"),
        virtual_function("mlx5_2", "0000:00:01.3"),
    ];
    let choice = choose(&ports, None, 4);
    let shared: Vec<_> = choice.chosen.iter().map(|chosen| chosen.shared_with).collect();
    let by_card = Some((Sharing::Card, &ports[0]));
    assert_eq!(shared, [None, by_card, by_card]);
}

#[test]
fn devices_without_a_function_are_told_apart_by_name() {
    let without = |device: &str, port_num| Candidate { function: None, port: port_num, ..port(device) };
    let ports = [without("rxe_0", 1), without("rxe_0", 2), without("rxe_1", 1)];
    assert_eq!(names(&choose(&ports, None, 3)), ["rxe_0:1", "rxe_1:1", "rxe_0:2"]);
    // Subfunctions are devices of one function.
    let sub = |device: &str| Candidate { function: Some(function(7, 0)), ..port(device) };
    let ports = [sub("mlx5_2"), sub("mlx5_3"), port("mlx5_4")];
    assert_eq!(names(&choose(&ports, None, 3)), ["mlx5_2:1", "mlx5_4:1", "mlx5_3:1"]);
}

#[test]
fn ports_that_cannot_be_used_are_named_with_the_reason() {
    let ports = [
        Candidate { status: PortStatus::NotActive, ..port("mlx5_0") },
        Candidate { status: PortStatus::Unreachable, ..port("mlx5_1") },
        Candidate { rate: Some(249), ..port("mlx5_2") },
        Candidate { rate: Some(250), ..port("mlx5_3") },
        Candidate { rate: None, ..port("mlx5_4") },
        Candidate { link_layer: LinkLayer::InfiniBand, rate: Some(900), ..port("mlx5_5") },
        port("mlx5_6"),
    ];
    assert_eq!(
        line(&ports, Some(0), 2),
        "ports: mlx5_6:1 (100 Gb/s, NUMA node 0 of the process), mlx5_3:1 (25 Gb/s, NUMA node 0 of the process); not \
         used: mlx5_0:1 (it is not active), mlx5_1:1 (it does not reach the peer), mlx5_2:1 (less than a quarter of \
         the rate of mlx5_6:1), mlx5_4:1 (2 ports are wanted), mlx5_5:1 (mlx5_6:1 is on Ethernet)"
    );
    assert_eq!(line(&ports[..1], None, 1), "ports: none; not used: mlx5_0:1 (it is not active)");
    assert_eq!(line(&[], None, 1), "ports: none; not used: none");
    assert_eq!(line(&[port("mlx5_0")], None, 0), "ports: none; not used: mlx5_0:1 (0 ports are wanted)");
}

/// A slow port near the process, such as one for management, does not decide the link layer.
#[test]
fn a_slow_near_port_is_not_the_first() {
    let slow = Candidate { rate: Some(100), ..port("mlx5_0") };
    let far = Candidate {
        link_layer: LinkLayer::InfiniBand,
        numa_node: Some(1),
        rate: Some(4000),
        ..port("mlx5_1")
    };
    assert_eq!(names(&choose(&[slow, far], Some(0), 2)), ["mlx5_1:1"]);
}

#[test]
fn an_unspecified_link_layer_is_infiniband() {
    let ports = [LinkLayer::InfiniBand, LinkLayer::Unspecified, LinkLayer::Ethernet]
        .iter()
        .zip(["mlx5_0", "mlx5_1", "mlx5_2"])
        .map(|(link_layer, device)| Candidate { link_layer: *link_layer, ..port(device) })
        .collect::<Vec<_>>();
    assert_eq!(names(&choose(&ports, None, 3)), ["mlx5_0:1", "mlx5_1:1"]);
}

#[test]
fn a_list_keeps_its_order_and_all_that_works() {
    let listed = |device: &str, listed| Candidate { listed: Some(listed), ..port(device) };
    let ports = [
        Candidate { rate: Some(10), numa_node: Some(1), ..listed("mlx5_3", 0) },
        Candidate {
            status: PortStatus::Absent,
            rate: None,
            function: None,
            numa_node: None,
            ..listed("mlx5_9", 1)
        },
        listed("mlx5_0", 2),
        Candidate { port: 2, ..listed("mlx5_0", 3) },
        Candidate { status: PortStatus::NotActive, ..listed("mlx5_1", 4) },
        port("mlx5_2"),
    ];
    assert_eq!(
        line(&ports, Some(0), 8),
        "ports: mlx5_3:1 (listed, 1 Gb/s, other NUMA node 1), mlx5_0:1 (listed, 100 Gb/s, NUMA node 0 of the \
         process), mlx5_0:2 (listed, 100 Gb/s, NUMA node 0 of the process, same PCI function as mlx5_0:1); not used: \
         mlx5_1:1 (it is not active), mlx5_2:1 (it is not listed), mlx5_9:1 (it does not exist)"
    );
}

#[test]
fn a_listed_device_without_a_port_stands_for_its_first_that_works() {
    let of_device =
        |port_num, status| Candidate { port: port_num, status, listed: Some(0), ..port("mlx4_0") };
    let ports = [
        of_device(3, PortStatus::Usable),
        of_device(1, PortStatus::NotActive),
        of_device(2, PortStatus::Usable),
        Candidate { listed: Some(1), ..port("mlx5_0") },
    ];
    let choice = choose(&ports, None, 4);
    assert_eq!(names(&choice), ["mlx4_0:2", "mlx5_0:1"]);
    let rejected: Vec<_> = choice.rejected.iter().map(ToString::to_string).collect();
    assert_eq!(rejected, ["mlx4_0:1 (it is not active)", "mlx4_0:3 (mlx4_0:2 works)"]);
}

#[test]
fn a_candidate_is_made_of_the_kernels_files() {
    let root = std::env::temp_dir().join(format!("trespass-choice-{}", std::process::id()));
    let function_folder = root.join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1");
    let own = function_folder.join("infiniband/mlx5_1");
    fs::create_dir_all(own.join("ports/1")).unwrap();
    fs::create_dir_all(root.join("class/infiniband")).unwrap();
    fs::write(function_folder.join("numa_node"), "1\n").unwrap();
    for (file, text) in
        [("state", "4: ACTIVE\n"), ("link_layer", "Ethernet\n"), ("rate", "200 Gb/sec (4X HDR)\n")]
    {
        fs::write(own.join("ports/1").join(file), text).unwrap();
    }
    symlink("../../../0000:3b:00.1", own.join("device")).unwrap();
    symlink(
        "../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/infiniband/mlx5_1",
        root.join("class/infiniband/mlx5_1"),
    )
    .unwrap();
    let topology = Topology::read_from(&root);
    fs::remove_dir_all(&root).unwrap();
    let device = topology.device("mlx5_1").expect("it is there");
    let made = Candidate::of(device, &device.ports[0], true, None);
    let expected = Candidate {
        rate: Some(2000),
        function: Some(function(0x3b, 1)),
        numa_node: Some(1),
        ..port("mlx5_1")
    };
    assert_eq!(made, expected);
    assert_eq!(Candidate::of(device, &device.ports[0], false, None).status, PortStatus::Unreachable);
}

fn any_candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let status = prop_oneof![
        8 => Just(PortStatus::Usable),
        1 => Just(PortStatus::Absent),
        1 => Just(PortStatus::NotActive),
        1 => Just(PortStatus::Unreachable),
    ];
    let link_layer = prop_oneof![5 => Just(LinkLayer::Ethernet), 1 => Just(LinkLayer::InfiniBand), 1 => Just(LinkLayer::Unspecified)];
    let rate = proptest::option::weighted(0.9, prop_oneof![Just(100), Just(400), Just(1000), Just(2000)]);
    let slot = proptest::option::weighted(0.9, (0u8..4, 0u8..2));
    let one = (status, link_layer, rate, slot, proptest::option::of(0u32..2), 1u8..3, any::<bool>());
    (proptest::collection::vec(one, 0..12), any::<bool>()).prop_map(|(drawn, has_list)| {
        drawn.into_iter().enumerate().flat_map(|(at, drawn)| ports_of(at, drawn, has_list)).collect()
    })
}

type Drawn = (PortStatus, LinkLayer, Option<u64>, Option<(u8, u8)>, Option<u32>, u8, bool);

fn ports_of(at: usize, drawn: Drawn, has_list: bool) -> impl Iterator<Item = Candidate> {
    let (status, link_layer, rate, slot, numa_node, ports, is_listed) = drawn;
    let one = Candidate {
        status,
        link_layer,
        rate,
        function: slot.map(|(bus, number)| function(bus, number)),
        numa_node,
        listed: (has_list && is_listed).then_some(100 - at),
        ..port(&format!("mlx5_{at}"))
    };
    (1..=ports).map(move |number| Candidate { port: number, ..one.clone() })
}

/// The function of a port, or its device if that is unknown.
fn key(port: &Candidate) -> (Option<PciAddress>, &str) {
    (port.function, if port.function.is_none() { &port.device } else { "" })
}

proptest! {
    #[test]
    fn the_order_of_the_candidates_does_not_matter(
        (ports, shuffled) in any_candidates().prop_flat_map(|ports| (Just(ports.clone()), Just(ports).prop_shuffle())),
        process in proptest::option::of(0u32..2),
        most in 0usize..6,
    ) {
        prop_assert_eq!(choose(&ports, process, most), choose(&shuffled, process, most));
    }

    #[test]
    fn every_candidate_is_chosen_or_rejected_once(
        ports in any_candidates(), process in proptest::option::of(0u32..2), most in 0usize..6,
    ) {
        let choice = choose(&ports, process, most);
        let ends: BTreeSet<_> = choice.chosen.iter().map(|chosen| chosen.port.to_string())
            .chain(choice.rejected.iter().map(|rejected| rejected.port.to_string())).collect();
        prop_assert_eq!(ends.len(), ports.len());
        prop_assert_eq!(choice.chosen.len() + choice.rejected.len(), ports.len());
        prop_assert!(choice.chosen.len() <= most);
        let usable = |port: &&Candidate| port.status == PortStatus::Usable;
        prop_assert!(choice.chosen.iter().all(|chosen| usable(&chosen.port)));
        let first = choice.chosen.first().map(|chosen| chosen.port.link_layer());
        prop_assert!(choice.chosen.iter().all(|chosen| Some(chosen.port.link_layer()) == first));
        let works = ports.iter().filter(usable).any(|port| {
            port.listed.is_some() || ports.iter().all(|port| port.listed.is_none())
        });
        prop_assert_eq!(choice.chosen.is_empty(), most == 0 || !works);
        prop_assert!(!choice.to_string().contains('\n'));
    }

    #[test]
    fn no_function_is_used_twice_while_another_is_unused(
        mut ports in any_candidates(), process in proptest::option::of(0u32..2), most in 0usize..6,
    ) {
        for port in &mut ports {
            port.listed = None;
        }
        let choice = choose(&ports, process, most);
        let waiting = choice.rejected.iter()
            .filter(|rejected| matches!(rejected.why, Rejection::Enough(_)))
            .map(|rejected| rejected.port);
        let order: Vec<_> = choice.chosen.iter().map(|chosen| chosen.port).chain(waiting).collect();
        for at in 0..choice.chosen.len() {
            let used: BTreeSet<_> = order[..at].iter().map(|port| key(port)).collect();
            if used.contains(&key(order[at])) {
                prop_assert!(order[at..].iter().all(|port| used.contains(&key(port))), "{}", choice);
            }
        }
    }

    #[test]
    fn a_list_is_kept_in_order(
        ports in any_candidates(), process in proptest::option::of(0u32..2), most in 0usize..6,
    ) {
        let choice = choose(&ports, process, most);
        let places: Vec<_> = choice.chosen.iter().map(|chosen| chosen.port.listed).collect();
        prop_assert!(places.iter().all(Option::is_none) || places.is_sorted_by(|a, b| a < b), "{choice}");
    }
}
