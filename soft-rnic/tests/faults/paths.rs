//! Fault rules for payload to another process, on each data path.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdout, Stdio};

use rdma_mummy_sys::types::*;

use crate::bench::*;
use crate::children::{child, is_child};

/// The length of the message in bytes.
const LENGTH: usize = 4096;
const PLACE: &str = "SOFT_RNIC_FAULTS_TEST_PLACE";
const OPTIONS: EndpointOptions =
    EndpointOptions { qp_type: ibv_qp_type::IBV_QPT_RC, device: 0, shared: false, timeout: 14, rnr_retry: 3 };

#[test]
#[ignore = "a child process, which other tests start"]
fn writes_to_its_parent() {
    assert!(is_child());
    let place = std::env::var(PLACE).unwrap();
    let numbers: Vec<u64> = place.split(',').map(|number| number.parse().unwrap()).collect();
    let side = FaultEndpoint::new(OPTIONS);
    println!("qpn {}", side.qpn());
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    side.connect_to(numbers[0] as u32, OPTIONS);
    side.write_bytes(&[0xff; LENGTH]);
    let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    side.post_to((numbers[1], numbers[2] as u32), 1, opcode, LENGTH).unwrap();
    println!("status {}", side.next().1.0);
}

/// The number after `word` in the next line that begins with it; `None` at the end.
fn told(lines: &mut BufReader<ChildStdout>, word: &str) -> Option<u32> {
    for line in lines.lines() {
        if let Some(number) = line.unwrap().strip_prefix(word) {
            return Some(number.trim().parse().unwrap());
        }
    }
    None
}

/// Has another process send a message by this path under this rule. Returns the bytes that arrive
/// here, and the status there.
fn written(path: &str, rule: &str) -> (Vec<u8>, Option<u32>) {
    let side = FaultEndpoint::new(OPTIONS);
    let (address, key) = side.place();
    let fabric = format!("faults-{}", std::process::id());
    let place = format!("{},{address},{key}", side.qpn());
    let variables = [
        ("SOFT_RNIC_FABRIC", &*fabric),
        ("SOFT_RNIC_PATH", path),
        ("SOFT_RNIC_FAULTS", rule),
        (PLACE, &*place),
    ];
    let mut child = child("paths::writes_to_its_parent", &variables).stdin(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let qpn = told(&mut lines, "qpn ").unwrap();
    side.connect_to(qpn, OPTIONS);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let status = told(&mut lines, "status ");
    child.wait().unwrap();
    assert!(side.poll().unwrap().is_none());
    (side.bytes(LENGTH), status)
}

#[test]
fn bits_are_flipped_on_every_way() {
    let _turn = turn();
    for path in ["vm", "call"] {
        let (bytes, status) = written(path, "flip=1");
        let zeros: u32 = bytes.iter().map(|byte| byte.count_zeros()).sum();
        assert_eq!((status, zeros), (Some(0), 1), "{path}");
    }
}

#[test]
fn a_split_message_arrives_whole_on_every_way() {
    let _turn = turn();
    for path in ["vm", "call"] {
        assert_eq!(written(path, "split=20ms"), (vec![0xff; LENGTH], Some(0)), "{path}");
    }
}

#[test]
fn half_a_message_is_what_a_process_leaves_that_dies_there() {
    let _turn = turn();
    for path in ["vm", "call"] {
        let (bytes, status) = written(path, "crash=mid_copy");
        let (first, last) = bytes.split_at(LENGTH / 2);
        assert!(first.iter().all(|byte| *byte == 0xff) && last.iter().all(|byte| *byte == 0), "{path}");
        assert_eq!(status, None, "{path}");
        assert_eq!(written(path, "crash=before_copy"), (vec![0; LENGTH], None), "{path}");
    }
}
