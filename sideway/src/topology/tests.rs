//! Trees with the layout of sysfs, made in a temporary directory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::*;

/// A copy of sysfs, removed when dropped.
struct Tree(PathBuf);

impl Tree {
    fn new(test: &str) -> Self {
        let root = std::env::temp_dir().join(format!("sideway-topology-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    fn topology(&self) -> Topology {
        Topology::read_from(&self.0)
    }

    fn file(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A link at `path` whose target is relative, as the kernel's are.
    fn link(&self, path: &str, target: &str) {
        let at = self.0.join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::create_dir_all(self.0.join(target)).unwrap();
        let up = "../".repeat(path.matches('/').count());
        symlink(Path::new(&up).join(target), at).unwrap();
    }

    /// A PCI function at `path` below `devices`.
    fn function(&self, path: &str, numa_node: &str) {
        let address = path.rsplit('/').next().unwrap();
        self.file(&format!("devices/{path}/numa_node"), format!("{numa_node}\n"));
        self.link(&format!("bus/pci/devices/{address}"), &format!("devices/{path}"));
    }

    /// An RDMA device of the folder `path` below `devices`.
    fn device(&self, path: &str, name: &str) {
        let own = format!("devices/{path}/infiniband/{name}");
        self.file(&format!("{own}/node_guid"), "506b:4b03:00d3:1234\n");
        self.file(&format!("{own}/node_type"), "1: CA\n");
        self.link(&format!("{own}/device"), &format!("devices/{path}"));
        self.link(&format!("class/infiniband/{name}"), &own);
    }

    fn port(&self, device: &str, port: u8, state: &str, link_layer: &str, rate: &str) {
        let folder = format!("class/infiniband/{device}/ports/{port}");
        self.file(&format!("{folder}/state"), format!("{state}\n"));
        let phys_state = if state == "4: ACTIVE" { "5: LinkUp\n" } else { "3: Disabled\n" };
        self.file(&format!("{folder}/phys_state"), phys_state);
        self.file(&format!("{folder}/link_layer"), format!("{link_layer}\n"));
        self.file(&format!("{folder}/rate"), format!("{rate}\n"));
    }

    fn gid_netdev(&self, device: &str, port: u8, index: u32, netdev: &str) {
        let file = format!("class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/{index}");
        self.file(&file, format!("{netdev}\n"));
    }

    /// A network interface of the folder `path` below `devices`.
    fn netdev(&self, path: &str, name: &str, index: u32, dev_port: u32) {
        let own = format!("devices/{path}/net/{name}");
        self.file(&format!("{own}/ifindex"), format!("{index}\n"));
        self.file(&format!("{own}/dev_port"), format!("{dev_port}\n"));
        if !path.starts_with("virtual") {
            self.link(&format!("{own}/device"), &format!("devices/{path}"));
        }
        self.link(&format!("class/net/{name}"), &own);
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const ACTIVE: &str = "4: ACTIVE";
const EDR: &str = "100 Gb/sec (4X EDR)";

fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn between(topology: &Topology, first: &str, second: &str) -> Option<Distance> {
    let [first, second] = [first, second].map(|name| topology.device(name).unwrap());
    assert_eq!(first.distance(second), second.distance(first));
    first.distance(second)
}

fn netdevs(port: &RdmaPort) -> Vec<&str> {
    port.netdevs.iter().map(|netdev| netdev.name.as_str()).collect()
}

#[test]
fn two_nics_on_two_numa_nodes() {
    let tree = Tree::new("numa");
    for (path, node, name, netdev, index) in [
        ("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "0", "mlx5_0", "ens1", 2),
        ("pci0000:ae/0000:ae:00.0/0000:af:00.0", "1", "mlx5_1", "ens2", 3),
    ] {
        tree.function(path, node);
        tree.device(path, name);
        tree.port(name, 1, ACTIVE, "Ethernet", EDR);
        tree.netdev(path, netdev, index, 0);
        tree.gid_netdev(name, 1, 0, netdev);
        tree.gid_netdev(name, 1, 3, netdev);
    }
    let topology = tree.topology();
    let [first, second] = topology.devices() else { panic!("two devices") };
    assert_eq!([&*first.name, &*second.name], ["mlx5_0", "mlx5_1"]);
    assert_eq!(first.node_guid.unwrap().to_string(), "506b:4b03:00d3:1234");
    assert_eq!(first.node_type, Some(NodeType::ChannelAdapter));
    let function = first.pci.as_ref().unwrap();
    assert_eq!(function.address.to_string(), "0000:3b:00.0");
    assert_eq!(function.bridges, [address("0000:3a:00.0")]);
    assert_eq!(function.host_bridge, "pci0000:3a");
    assert_eq!((function.physical_function, &first.parent), (None, &None));
    assert_eq!([first.numa_node, second.numa_node], [Some(0), Some(1)]);
    let [port] = &first.ports[..] else { panic!("one port") };
    assert_eq!((port.port_num, port.state, port.is_active()), (1, Some(PortState::Active), true));
    assert_eq!(port.phys_state, Some(PhysicalState::LinkUp));
    assert_eq!(port.link_layer, Some(LinkLayer::Ethernet));
    assert_eq!(port.rate.map(EffectiveSpeed::hundreds_of_mbps), Some(1000));
    assert_eq!(port.netdevs, [Netdev { name: "ens1".into(), index: Some(2), master: None }]);
    assert_eq!(between(&topology, "mlx5_0", "mlx5_1"), Some(Distance::Far));
    assert_eq!(between(&topology, "mlx5_0", "mlx5_0"), Some(Distance::SameFunction));
    assert_eq!(topology.netdev("ens2").unwrap().index, Some(3));
    for unknown in ["eth9", "", "..", "../net/ens2"] {
        assert_eq!(topology.netdev(unknown), None, "{unknown:?}");
    }
}

#[test]
fn two_ports_of_one_function_have_their_own_interfaces() {
    let tree = Tree::new("dual-port");
    let path = "pci0000:00/0000:00:03.0/0000:04:00.0";
    tree.function(path, "-1");
    tree.device(path, "mlx4_0");
    tree.port("mlx4_0", 1, ACTIVE, "InfiniBand", "56 Gb/sec (4X FDR)");
    tree.port("mlx4_0", 2, "1: DOWN", "InfiniBand", "2.5 Gb/sec (1X SDR)");
    tree.netdev(path, "ib0", 5, 0);
    tree.netdev(path, "ib1", 6, 1);
    tree.netdev(path, "ib0.8001", 7, 0);
    let topology = tree.topology();
    let device = topology.device("mlx4_0").unwrap();
    assert_eq!(device.numa_node, None);
    assert_eq!(device.pci.as_ref().unwrap().numa_node, None);
    let [first, second] = &device.ports[..] else { panic!("two ports") };
    assert_eq!((netdevs(first), netdevs(second)), (vec!["ib0", "ib0.8001"], vec!["ib1"]));
    assert_eq!((second.state, second.is_active()), (Some(PortState::Down), false));
    assert_eq!(second.phys_state, Some(PhysicalState::Disabled));
    assert_eq!(second.rate.map(EffectiveSpeed::gbps), Some(2.5));
}

#[test]
fn two_functions_of_one_card_share_its_slot() {
    let tree = Tree::new("card");
    for (path, name) in [
        ("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "mlx5_0"),
        ("pci0000:3a/0000:3a:00.0/0000:3b:00.1", "mlx5_1"),
        ("pci0000:3a/0000:3a:02.0/0000:3c:00.0", "mlx5_2"),
        ("pci0000:5d/0000:5d:00.0/0000:5e:00.0", "mlx5_3"),
    ] {
        tree.function(path, "0");
        tree.device(path, name);
    }
    let topology = tree.topology();
    let from_first = |other| between(&topology, "mlx5_0", other);
    assert_eq!(from_first("mlx5_1"), Some(Distance::SameDevice));
    assert_eq!(from_first("mlx5_2"), Some(Distance::SameHostBridge));
    assert_eq!(from_first("mlx5_3"), Some(Distance::SameNumaNode));
}

#[test]
fn functions_below_a_switch_are_near_each_other() {
    let tree = Tree::new("switch");
    let switch = "pci0000:80/0000:80:01.0/0000:81:00.0";
    for (path, name) in [
        (format!("{switch}/0000:82:04.0/0000:83:00.0"), "mlx5_0"),
        (format!("{switch}/0000:82:08.0/0000:84:00.0"), "mlx5_1"),
        ("pci0000:80/0000:80:03.0/0000:8a:00.0".to_owned(), "mlx5_2"),
    ] {
        tree.function(&path, "1");
        tree.device(&path, name);
    }
    // A GPU at the same switch.
    tree.function(&format!("{switch}/0000:82:0c.0/0000:85:00.0"), "1");
    let topology = tree.topology();
    assert_eq!(between(&topology, "mlx5_0", "mlx5_1"), Some(Distance::SameSwitch));
    assert_eq!(between(&topology, "mlx5_0", "mlx5_2"), Some(Distance::SameHostBridge));
    let gpu = topology.pci_function(address("0000:85:00.0")).unwrap();
    let near = |name: &str| topology.device(name).unwrap().pci.as_ref().unwrap().distance(&gpu);
    assert_eq!([near("mlx5_1"), near("mlx5_2")], [Distance::SameSwitch, Distance::SameHostBridge]);
    assert!(near("mlx5_1") < near("mlx5_2"));
    assert_eq!(topology.pci_function(address("0000:99:00.0")), None);
}

#[test]
fn virtual_functions_belong_to_their_card() {
    let tree = Tree::new("sriov");
    let slot = "pci0000:3a/0000:3a:00.0";
    let [physical, first, second] =
        ["0000:3b:00.0", "0000:3b:00.2", "0000:3b:01.3"].map(|function| format!("{slot}/{function}"));
    for (path, name) in [(&physical, "mlx5_0"), (&first, "mlx5_1"), (&second, "mlx5_2")] {
        tree.function(path, "0");
        tree.device(path, name);
        tree.port(name, 1, ACTIVE, "Ethernet", EDR);
    }
    for path in [&first, &second] {
        tree.link(&format!("devices/{path}/physfn"), &format!("devices/{physical}"));
    }
    // In switchdev mode the physical function also has the representors.
    for (name, phys_port_name) in
        [("ens1", "p0"), ("ens1r0", "pf0vf0"), ("ens1r1", "c1pf0vf1"), ("ens1c", "c2")]
    {
        tree.netdev(&physical, name, 9, 0);
        tree.file(&format!("class/net/{name}/phys_port_name"), format!("{phys_port_name}\n"));
    }
    // A subfunction is an auxiliary device below its function.
    let subfunction = format!("{physical}/mlx5_core.sf.4");
    tree.device(&subfunction, "mlx5_3");
    let topology = tree.topology();
    let function = |name: &str| topology.device(name).unwrap().pci.clone().unwrap();
    assert_eq!(function("mlx5_0").physical_function, None);
    assert_eq!(function("mlx5_2").physical_function, Some(address("0000:3b:00.0")));
    assert_eq!(between(&topology, "mlx5_0", "mlx5_2"), Some(Distance::SameDevice));
    assert_eq!(between(&topology, "mlx5_1", "mlx5_2"), Some(Distance::SameDevice));
    assert_eq!(netdevs(&topology.device("mlx5_0").unwrap().ports[0]), ["ens1", "ens1c"]);
    assert_eq!(between(&topology, "mlx5_0", "mlx5_3"), Some(Distance::SameFunction));
    assert_eq!(topology.device("mlx5_3").unwrap().numa_node, Some(0));
}

#[test]
fn a_software_device_has_the_place_of_its_parent() {
    let tree = Tree::new("rxe");
    tree.netdev("virtual", "veth0", 12, 0);
    let path = "pci0000:00/0000:00:1f.6";
    tree.function(path, "0");
    tree.netdev(path, "eno1", 2, 0);
    for (name, parent) in [("rxe0", "veth0"), ("rxe1", "eno1")] {
        let own = format!("devices/virtual/infiniband/{name}");
        tree.file(&format!("{own}/parent"), format!("{parent}\n"));
        tree.link(&format!("class/infiniband/{name}"), &own);
        tree.port(name, 1, ACTIVE, "Ethernet", "2.5 Gb/sec (1X SDR)");
        tree.gid_netdev(name, 1, 0, parent);
    }
    let topology = tree.topology();
    let [over_veth, over_nic] = ["rxe0", "rxe1"].map(|name| topology.device(name).unwrap());
    assert_eq!((&over_veth.pci, over_veth.numa_node, over_veth.node_guid), (&None, None, None));
    let veth = Netdev { name: "veth0".into(), index: Some(12), master: None };
    assert_eq!(over_veth.parent.as_ref(), Some(&veth));
    assert_eq!(over_veth.ports[0].netdevs, [veth]);
    let function = over_nic.pci.as_ref().unwrap();
    assert_eq!((function.address, &function.bridges[..]), (address("0000:00:1f.6"), &[][..]));
    assert_eq!(over_nic.numa_node, Some(0));
    assert_eq!(between(&topology, "rxe0", "rxe1"), None);
}

#[test]
fn a_bonded_device_has_the_bond_and_the_interfaces_below() {
    let tree = Tree::new("bond");
    let path = "pci0000:3a/0000:3a:00.0/0000:3b:00.0";
    tree.function(path, "0");
    tree.device(path, "mlx5_bond_0");
    tree.port("mlx5_bond_0", 1, ACTIVE, "Ethernet", "200 Gb/sec (4X HDR)");
    tree.netdev(path, "ens1f0", 2, 0);
    tree.netdev("virtual", "bond0", 8, 0);
    tree.link(&format!("devices/{path}/net/ens1f0/master"), "devices/virtual/net/bond0");
    tree.gid_netdev("mlx5_bond_0", 1, 0, "bond0");
    let topology = tree.topology();
    let port = &topology.device("mlx5_bond_0").unwrap().ports[0];
    assert_eq!(netdevs(port), ["bond0", "ens1f0"]);
    assert_eq!(port.netdevs[1].master.as_deref(), Some("bond0"));
}

#[test]
fn platform_devices_have_a_numa_node_without_pci() {
    let tree = Tree::new("platform");
    for (path, name, node) in [
        ("platform/HISI00D1:00", "hns_0", "1"),
        ("platform/HISI00D1:01", "hns_1", "1"),
        ("platform/x", "y", "0"),
    ] {
        tree.device(path, name);
        tree.file(&format!("devices/{path}/numa_node"), node);
    }
    let topology = tree.topology();
    assert_eq!(topology.device("hns_0").unwrap().pci, None);
    assert_eq!(between(&topology, "hns_0", "hns_1"), Some(Distance::SameNumaNode));
    assert_eq!(between(&topology, "hns_0", "y"), Some(Distance::Far));
}

#[test]
fn a_function_behind_a_volume_management_device_is_in_its_domain() {
    let tree = Tree::new("vmd");
    tree.function("pci0000:64/0000:64:05.5/pci10000:00/10000:00:02.0/10000:01:00.0", "0");
    let function = tree.topology().pci_function(address("10000:01:00.0")).unwrap();
    assert_eq!(function.host_bridge, "pci10000:00");
    assert_eq!(function.bridges, [address("10000:00:02.0")]);
    assert_eq!(function.address.domain(), 0x10000);
}

#[test]
fn a_processor_has_a_numa_node() {
    let tree = Tree::new("cpu");
    tree.file("devices/system/cpu/cpu3/topology/core_id", "0\n");
    tree.link("devices/system/cpu/cpu3/node1", "devices/system/node/node1");
    tree.file("devices/system/cpu/cpu4/nodes", "1\n");
    let topology = tree.topology();
    assert_eq!([3, 4, 5].map(|cpu| topology.numa_node_of_cpu(cpu)), [Some(1), None, None]);
}

#[test]
fn an_empty_tree_has_no_devices() {
    let tree = Tree::new("empty");
    assert_eq!(tree.topology().devices(), []);
    assert_eq!(Topology::read_from(tree.0.join("absent")).devices(), []);
    fs::create_dir_all(tree.0.join("class/infiniband")).unwrap();
    assert_eq!(tree.topology().devices(), []);
    assert_eq!(tree.topology().device("mlx5_0"), None);
}

/// Malformed texts for every file.
const GARBAGE: &[&[u8]] = &[
    b"",
    b"\n",
    b"\0\0\0",
    b"\xff\xfe\xfd",
    b":",
    b": ACTIVE",
    b"-4: ACTIVE",
    b"99999999999999999999: ACTIVE",
    b"4294967295",
    b"18446744073709551616 Gb/sec",
    b"18446744073709551615.9 Gb/sec",
    b"1.99 Gb/sec",
    b". Gb/sec",
    b"-1 Gb/sec",
    b"../../etc",
    b"0000:0000:0000:0000",
    b"506b:4b03:00d3",
    b"506b:4b03:00d3:1234:5678",
    "é:é:é:é".as_bytes(),
];

#[test]
fn malformed_files_are_unknown() {
    let tree = Tree::new("garbage");
    let path = "pci0000:3a/0000:3a:00.0/0000:3b:00.0";
    let long = vec![b'7'; 1 << 16];
    for garbage in GARBAGE.iter().copied().chain([&long[..]]) {
        let own = format!("devices/{path}/infiniband/mlx5_0");
        for file in ["node_guid", "node_type", "parent"] {
            tree.file(&format!("{own}/{file}"), garbage);
        }
        for file in ["state", "phys_state", "link_layer", "rate", "gid_attrs/ndevs/0", "gid_attrs/ndevs/x"] {
            tree.file(&format!("{own}/ports/1/{file}"), garbage);
            tree.file(&format!("{own}/ports/2/{file}"), garbage);
        }
        for folder in ["0", "256", "-1", "one", "01"] {
            fs::create_dir_all(tree.0.join(format!("{own}/ports/{folder}"))).unwrap();
        }
        tree.file(&format!("devices/{path}/numa_node"), garbage);
        for file in ["ifindex", "dev_port", "phys_port_name"] {
            tree.file(&format!("devices/{path}/net/eth0/{file}"), garbage);
        }
        if tree.topology().devices().is_empty() {
            tree.link(&format!("{own}/device"), &format!("devices/{path}"));
            tree.link("class/infiniband/mlx5_0", &own);
            tree.file("class/infiniband/a_file", "");
            tree.link("class/infiniband/loop", "devices/virtual/infiniband/loop");
            tree.link("devices/virtual/infiniband/loop/device", "class/infiniband/loop");
        }
        let topology = tree.topology();
        let names: Vec<_> = topology.devices().iter().map(|device| &*device.name).collect();
        assert_eq!(names, ["a_file", "loop", "mlx5_0"]);
        let device = topology.device("mlx5_0").unwrap();
        let shown = String::from_utf8_lossy(&garbage[..garbage.len().min(40)]);
        assert_eq!((device.node_guid, device.node_type), (None, None), "{shown:?}");
        assert_eq!(device.ports.iter().map(|port| port.port_num).collect::<Vec<_>>(), [1, 2]);
        for port in &device.ports {
            assert_eq!((port.state, port.phys_state, port.link_layer), (None, None, None), "{shown:?}");
            assert_eq!((port.rate, port.is_active()), (None, false), "{shown:?}");
        }
        assert_eq!(device.pci.as_ref().unwrap().address, address("0000:3b:00.0"));
    }
}

#[test]
fn only_addresses_of_the_kernels_form_are_parsed() {
    for text in ["0000:3b:00.0", "10000:01:00.7", "ffff:ff:1f.7"] {
        assert_eq!(address(text).to_string(), text);
    }
    for text in [
        "",
        ".",
        "3b:00.0",
        "0000:3b:00",
        "0000:3b:20.0",
        "0000:3b:00.8",
        "0000:3b:00.00",
        "0000:+b:00.0",
        "0000:3b:00.0.0",
        "0000:3b:00:0.0",
        "000000000:3b:00.0",
        "0000:é:00.0",
        "pci0000:3a",
    ] {
        let error = text.parse::<PciAddress>().unwrap_err();
        assert!(error.to_string().contains(text) && error.to_string().contains("lspci"), "{error}");
    }
}

/// The machine that runs this test may have devices, or no sysfs.
#[test]
fn the_systems_own_tree_is_read() {
    for device in Topology::read().devices() {
        assert!(device.ports.iter().all(|port| port.port_num != 0), "{device:?}");
    }
}
