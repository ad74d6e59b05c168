//! Arguments and peers that the programs refuse, and the error messages.

use std::io::Write;
use std::net::TcpStream;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::port::Mtu;
use sideway::ibverbs::queue_pair::{
    ModifyQueuePairError, QueuePair, QueuePairAttribute, QueuePairAttributeMask, QueuePairState,
};

use crate::common::{Output, RunningProgram, example, run};
use crate::test_device::{TestDevice, tcp_port};
use crate::{InteropTest, Needs};

const PROGRAMS: [&str; 2] = ["rc_pingpong", "rc_pingpong_split"];

pub(crate) fn add(tests: &mut Vec<InteropTest>) {
    for program in PROGRAMS {
        let mut add = |name: &str, flags: &'static [&'static str], expected: &'static str| {
            tests.push(InteropTest::new(format!("{program}::refuses_{name}"), Needs::Nothing, move |dut| {
                refuse(program, dut, flags, expected)
            }));
        };
        add("a_gid_index_out_of_range_or_empty", &["-g", "250"], "GID index 250");
        add("a_port_that_is_not_there", &["-i", "9"], "has no port 9: its ports are 1 to ");
        add(
            "a_message_that_is_too_long",
            &["-s", "4294967295"],
            "-s 4294967295: the longest message of port 1",
        );
        add("a_queue_that_is_too_long", &["-r", "2147483646"], "-r 2147483646: the receive queues of ");
        add(
            "a_server_that_is_not_there",
            &["127.0.0.1", "-p", "1"],
            "cannot connect to 127.0.0.1, TCP port 1: ",
        );
        tests.push(InteropTest::new(
            format!("{program}::refuses_packets_that_are_too_large"),
            Needs::Guest,
            |dut| refuse(program, dut, &["-m", "4096"], "-m 4096: the MTU of port 1 of rxe0 is 1024"),
        ));
        tests.push(InteropTest::new(format!("{program}::refuses_strange_clients"), Needs::Nothing, |dut| {
            let garbage = serve(program, dut, &[b'x'; 52])?;
            expect(&garbage, "instead of an address (LID:QPN:PSN:GID)")?;
            expect(
                &serve(program, dut, b"0000:")?,
                "the peer broke off the exchange of addresses: it closed the connection",
            )
        }));
        tests.push(InteropTest::new(
            format!("{program}::refuses_clients_without_a_gid"),
            Needs::Guest,
            |dut| {
                let output = serve(program, dut, address("00000000000000000000000000000000").as_bytes())?;
                expect(&output, "the peer has no GID, which RoCE needs")
            },
        ));
        let name = format!("{program}::names_both_ends_of_a_route_that_times_out");
        tests.push(InteropTest::new(name, Needs::Guest, |dut| time_out(program, dut)));
    }
    for program in ["show_gids", "ibv_devinfo", "rc_pingpong", "rc_pingpong_split"] {
        tests.push(InteropTest::new(
            format!("{program}::refuses_an_unknown_device"),
            Needs::Nothing,
            |dut| {
                let line = run(&example(program)?, &["-d", "nonsense"])?.error(2)?;
                let known = line.contains("no RDMA device named `nonsense`") && line.contains(&dut.device);
                if known { Ok(()) } else { Err(line) }
            },
        ));
    }
    tests.push(InteropTest::new("ibv_devinfo::refuses_a_port_that_is_not_there", Needs::Nothing, |dut| {
        let line = run(&example("ibv_devinfo")?, &["-d", &dut.device, "-i", "9"])?.error(2)?;
        if line.contains("has no port 9: its ports are 1 to ") { Ok(()) } else { Err(line) }
    }));
    tests.push(InteropTest::new(
        "a_wrong_modify_says_what_is_invalid_and_what_is_needed",
        Needs::Nothing,
        wrong_modify,
    ));
}

/// A client sends an address that no host has. The error names both ends of the route, and
/// `rc_pingpong_split` prints the typed error as well.
fn time_out(program: &str, dut: &TestDevice) -> Result<(), String> {
    let output = serve(program, dut, address("00000000000000000000ffff0a4d00de").as_bytes())?;
    let gid = "0000:0000:0000:0000:0000:ffff:0a4d:00de";
    expect(&output, &format!("local GID index {} to {gid}", dut.gid_index))?;
    if program == "rc_pingpong" {
        return Ok(());
    }
    let typed = "Failed to modify QP to RTR: ResolveRouteTimedout { sgid_index: ";
    expect(&output, &format!("{typed}{}, gid: Gid {{ raw: [", dut.gid_index))
}

fn refuse(program: &str, dut: &TestDevice, flags: &[&str], expected: &str) -> Result<(), String> {
    let output = run(&example(program)?, &[&["-d", dut.device.as_str()], flags].concat())?;
    expect(&output, expected)
}

/// Checks for exit code 2 and this text on stderr.
fn expect(output: &Output, words: &str) -> Result<(), String> {
    if output.code == Some(2) && output.stderr.contains(words) {
        return Ok(());
    }
    Err(format!("exit code 2 and \"{words}\" were expected: {output}"))
}

/// The text that a client sends.
fn address(gid: &str) -> String {
    format!("0000:000011:000001:{gid}\0")
}

/// The output of a server whose client sends these bytes and nothing else.
fn serve(program: &str, dut: &TestDevice, sent: &[u8]) -> Result<Output, String> {
    let port = tcp_port()?;
    let port_text = port.to_string();
    let flags = ["-d", &dut.device, "-g", &dut.gid_index, "-p", &port_text];
    let mut server = RunningProgram::start(&example(program)?, &flags, &[])?;
    server.wait_for("listened", |_| test_harness::is_listening(port))?;
    let mut client = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    client.write_all(sent).map_err(|error| error.to_string())?;
    client.shutdown(std::net::Shutdown::Write).map_err(|error| error.to_string())?;
    server.finish()
}

/// Makes a modify fail on a real device: an attribute is not allowed for the state.
fn wrong_modify(dut: &TestDevice) -> Result<(), String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let list = DeviceList::new().map_err(|e| text(&e))?;
    let context = list.find(&dut.device).map_err(|e| text(&e))?.open().map_err(|e| text(&e))?;
    let pd = context.alloc_pd().map_err(|e| text(&e))?;
    let cq = context.create_cq_builder().setup_cqe(4).build_generic().map_err(|e| text(&e))?;
    let mut builder = pd.create_qp_builder();
    let mut qp = builder.setup_send_cq(&cq).setup_recv_cq(&cq).build_generic().map_err(|e| text(&e))?;

    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::Init)
        .setup_pkey_index(0)
        .setup_port(1)
        .setup_access_flags(AccessFlags::empty());
    qp.modify(&attr).map_err(|e| text(&e))?;

    let gid_index = dut.gid_index.parse().map_err(|_| "the GID index is no number")?;
    let gid: Gid = dut.gid;
    let mut ah_attr = AddressHandleAttribute::new();
    ah_attr.setup_port(1).setup_grh_dest_gid(&gid).setup_grh_src_gid_index(gid_index).setup_grh_hop_limit(1);
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::ReadyToReceive)
        .setup_path_mtu(Mtu::Mtu1024)
        .setup_dest_qp_num(qp.qp_number())
        .setup_rq_psn(0)
        .setup_port(1)
        .setup_address_vector(&ah_attr);
    match qp.modify(&attr) {
        Err(ModifyQueuePairError::InvalidAttributeMask {
            cur_state, next_state, invalid, needed, ..
        }) if cur_state == QueuePairState::Init
            && next_state == QueuePairState::ReadyToReceive
            && invalid == QueuePairAttributeMask::Port
            && needed
                == QueuePairAttributeMask::MinResponderNotReadyTimer
                    | QueuePairAttributeMask::MaxDestinationReadAtomic =>
        {
            Ok(())
        }
        other => Err(format!("it gave {other:?}")),
    }
}
