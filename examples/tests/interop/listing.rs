//! `show_gids` compared with the kernel's files, and `ibv_devinfo` compared with the C program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use sideway::ibverbs::device::DeviceList;

use crate::common::{example, on_path, run};
use crate::test_device::TestDevice;
use crate::{InteropTest, Needs};

pub(crate) fn add(tests: &mut Vec<InteropTest>) {
    tests
        .push(InteropTest::new("show_gids::is_what_the_kernel_shows", Needs::Kernel, |_| compare_gids(None)));
    tests.push(InteropTest::new("show_gids::of_one_device", Needs::Kernel, |dut| compare_gids(Some(dut))));
    tests.push(InteropTest::new("show_gids::is_what_the_library_says", Needs::Nothing, |_| library_gids()));
    tests.push(InteropTest::new("ibv_devinfo::has_every_device_once", Needs::Nothing, |_| every_device()));
    for (name, flags) in [
        ("ibv_devinfo::all_devices", &[][..]),
        ("ibv_devinfo::all_attributes", &["-v"]),
        ("ibv_devinfo::one_port", &["-i", "1"]),
        ("ibv_devinfo::one_port_with_all_attributes", &["-i", "1", "-v"]),
        ("ibv_devinfo::names", &["-l"]),
    ] {
        tests.push(InteropTest::new(name, Needs::C("ibv_devinfo"), |_| compare_devinfo(flags)));
        if !flags.contains(&"-l") {
            let name = format!("{name}_of_one_device");
            tests.push(InteropTest::new(name, Needs::C("ibv_devinfo"), move |dut| {
                compare_devinfo(&[flags, &["-d", &dut.device]].concat())
            }));
        }
    }
}

/// Device, port, index, GID, version, network interface, from the table and from the kernel.
type ListingRow = [String; 6];

fn compare_gids(only: Option<&TestDevice>) -> Result<(), String> {
    let device = only.map(|dut| dut.device.as_str());
    let expected = kernel_gids(device).map_err(|error| error.to_string())?;
    compare_table(&shown_gids(device)?, &expected)
}

fn compare_table(rows: &BTreeSet<ListingRow>, expected: &BTreeSet<ListingRow>) -> Result<(), String> {
    if rows == expected && !rows.is_empty() {
        return Ok(());
    }
    Err(format!("expected\n{expected:#?}\nbut the table has\n{rows:#?}"))
}

/// Compares the table with the library's answers in this process.
fn library_gids() -> Result<(), String> {
    let mut rows = BTreeSet::new();
    for device in DeviceList::new().map_err(|error| error.to_string())?.iter() {
        let context = device.open().map_err(|error| error.to_string())?;
        for entry in context.query_gid_table().map_err(|error| error.to_string())? {
            rows.insert([
                device.name(),
                entry.port_num().to_string(),
                entry.gid_index().to_string(),
                entry.gid().to_string(),
                entry.gid_type().to_string(),
                entry.netdev_name().unwrap_or_default(),
            ]);
        }
    }
    compare_table(&shown_gids(None)?, &rows)
}

fn every_device() -> Result<(), String> {
    let list = DeviceList::new().map_err(|error| error.to_string())?;
    let names: Vec<String> = list.iter().map(|device| device.name()).collect();
    let text = run(&example("ibv_devinfo")?, &["-l"])?.ok()?;
    let listed: Vec<&str> = text.lines().skip(1).map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = run(&example("ibv_devinfo")?, &["-v"])?.ok()?;
    let shown: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("hca_id:")).map(str::trim).collect();
    if names == listed && names == shown { Ok(()) } else { Err(format!("{names:?}, {listed:?}, {shown:?}")) }
}

/// The rows that `show_gids` prints, after a check of their format.
fn shown_gids(device: Option<&str>) -> Result<BTreeSet<ListingRow>, String> {
    let arguments = device.map_or(vec![], |device| vec!["-d", device]);
    let text = run(&example("show_gids")?, &arguments)?.ok()?;
    let mut rows = BTreeSet::new();
    let mut lines = text.lines();
    let heading = lines.next().unwrap_or_default();
    let names: Vec<&str> = heading.split('|').map(str::trim).collect();
    if names != ["Dev", "Port", "Index", "GID", "IPv4", "Ver", "Netdev"] {
        return Err(format!("the heading is\n{heading}"));
    }
    let rule = lines.next().unwrap_or_default();
    for line in lines {
        let bars = |line: &str, bar| line.match_indices(bar).map(|(at, _)| at).collect::<Vec<_>>();
        if bars(line, '|') != bars(rule, '+') {
            return Err(format!("columns are not aligned:\n{text}"));
        }
        let cells: Vec<String> = line.split('|').map(|cell| cell.trim().to_owned()).collect();
        let [device, port, index, gid, ipv4, version, netdev] =
            <[String; 7]>::try_from(cells).map_err(|_| format!("a line has other columns:\n{line}"))?;
        check_ipv4(&gid, &ipv4)?;
        rows.insert([device, port, index, gid, version, netdev]);
    }
    Ok(rows)
}

fn check_ipv4(gid: &str, ipv4: &str) -> Result<(), String> {
    let address: std::net::Ipv6Addr = gid.parse().map_err(|_| format!("`{gid}` is no GID"))?;
    let expected = address.to_ipv4_mapped().map_or_else(String::new, |address| address.to_string());
    if ipv4 == expected { Ok(()) } else { Err(format!("the IPv4 address of {gid} is not `{ipv4}`")) }
}

fn kernel_gids(only: Option<&str>) -> std::io::Result<BTreeSet<ListingRow>> {
    let names = |folder: &Path| -> std::io::Result<Vec<String>> {
        fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    let read = |path: &Path| fs::read_to_string(path).map(|text| text.trim().to_owned());
    let root = Path::new("/sys/class/infiniband");
    let mut rows = BTreeSet::new();
    for device in names(root)? {
        if only.is_some_and(|only| only != device) {
            continue;
        }
        for port in names(&root.join(&device).join("ports"))? {
            let folder = root.join(&device).join("ports").join(&port);
            for index in names(&folder.join("gids"))? {
                let gid = read(&folder.join("gids").join(&index))?;
                if gid.chars().all(|digit| matches!(digit, '0' | ':')) {
                    continue;
                }
                let attributes = folder.join("gid_attrs");
                let netdev = read(&attributes.join("ndevs").join(&index)).unwrap_or_default();
                let version = match read(&attributes.join("types").join(&index)).as_deref() {
                    Ok("RoCE v2") => "RoCEv2",
                    Ok(_) if !netdev.is_empty() => "RoCEv1",
                    _ => "IB",
                };
                rows.insert([device.clone(), port.clone(), index, gid, version.to_owned(), netdev]);
            }
        }
    }
    Ok(rows)
}

/// Lines of newer C programs that the example does not print.
const ONLY_IN_C: [&str; 4] = ["max_comp_cntr:", "comp_cntr_caps:", "QP_ATTACH_", "effective_speed:"];

fn compare_devinfo(flags: &[&str]) -> Result<(), String> {
    let c = on_path("ibv_devinfo").ok_or("ibv_devinfo is gone")?;
    let theirs = run(&c, flags)?.ok()?;
    let ours = run(&example("ibv_devinfo")?, flags)?.ok()?;
    let known = |line: &&str| !ONLY_IN_C.iter().any(|label| line.trim_start().starts_with(label));
    let expected: Vec<&str> = theirs.lines().filter(known).collect();
    if ours.lines().eq(expected.iter().copied()) && !expected.is_empty() {
        return Ok(());
    }
    Err(format!("C says\n{theirs}\nand we say\n{ours}"))
}
