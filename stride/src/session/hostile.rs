//! A malicious peer of the control connection, for fuzzing.
//!
//! Either side must read on or give up without a panic. A message that it accepts must survive
//! encoding and decoding, and every text for its user must be one line.
//!
//! The first byte of an input selects the side, whether it has a secret, and whether the bytes come
//! through a socket and the thread that reads it; the rest is the peer's data, frame by frame. Both
//! ways must end with the same words. `stride/fuzz` calls this with inputs of libFuzzer; the tests
//! here use the corpus and seeded mutations of it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use super::memory::{DEFAULT_LIMIT, MemoryEstimate};
use super::steps;
use crate::control::{
    ControlError, ControlLink, ControlMessage, Frame, FrameError, FrameKind, FrameTransport, Secret, Tcp,
    read_frame, write_frame,
};
use crate::error::Error;
use crate::plan::{DeviceLimits, LatencyDefinition, Measure, Sizes, TestOperation, TestPlan};
use crate::report::{Output, line};

/// Runs one input, and panics if a requirement is violated.
#[cfg(fuzzing)]
pub fn hostile_control(data: &[u8]) {
    run(data);
}

/// Input bit: this side is the server.
const SERVER: u8 = 1;

/// Input bit: this side has a secret.
const SECRET: u8 = 2;

/// Input bit: the bytes come through a socket, too.
const SOCKET: u8 = 4;

/// The secret of a side that has one.
static OURS: LazyLock<Secret> =
    LazyLock::new(|| Secret::new(b"correct horse battery staple").expect("it is long enough"));

/// A transport that reads recorded data, and drops everything that is written.
struct RecordedPeer<'a>(&'a [u8]);

impl FrameTransport for RecordedPeer<'_> {
    fn write(&mut self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, kind, payload)?;
        assert!(read_frame(&mut &bytes[..]).is_ok(), "what is said can be read");
        Ok(())
    }

    /// Skips beats, as the thread that reads a socket does.
    fn read(&mut self, _: Option<Duration>) -> Result<Frame, FrameError> {
        loop {
            let frame = read_frame(&mut self.0)?;
            if frame.kind != FrameKind::Beat {
                return Ok(frame);
            }
        }
    }

    fn linger(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn run(data: &[u8]) {
    let Some((side, said)) = data.split_first() else { return };
    let end = end_of(*side, RecordedPeer(said));
    if side & SOCKET != 0 {
        assert_eq!(through_socket(*side, said), end, "the socket and the recording end differently");
    }
}

/// The words with which a side ends that hears these bytes through a socket.
fn through_socket(side: u8, said: &[u8]) -> String {
    let (here, mut there) = UnixStream::pair().expect("a pair of sockets");
    thread::scope(|scope| {
        scope.spawn(move || {
            // Either fails if the side gives up early.
            let _ = there.write_all(said).and_then(|()| there.shutdown(Shutdown::Write));
            let _ = there.read_to_end(&mut Vec::new());
        });
        let stream = TcpStream::from(OwnedFd::from(here));
        end_of(side, Tcp::new(stream).expect("a thread that reads"))
    })
}

/// The words with which a side ends.
fn end_of<W: FrameTransport>(side: u8, wire: W) -> String {
    let secret = (side & SECRET != 0).then_some(&*OURS);
    let link = ControlLink::new(wire, "peer:1".to_owned());
    let done = steps::over(link, &mut Output::silent(), |link, output| match side & SERVER != 0 {
        true => serve(link, secret, output),
        false => ask(link, secret, output),
    });
    let text = done.expect_err("a recording ends").one_line();
    assert!(!text.is_empty() && !text.contains(['\n', '\r', '\x1b']), "{text:?}");
    text
}

fn serve<W: FrameTransport>(
    link: &mut ControlLink<W>,
    secret: Option<&Secret>,
    output: &mut Output,
) -> Result<(), Error> {
    let greeting = steps::asked(link, secret)?;
    let test = steps::requested(link, greeting, output);
    assert!(secret.is_none(), "no tape knows the secret's answer to a new nonce");
    assert_eq!(test.validate(), Ok(()));
    MemoryEstimate::of(&test).check(DEFAULT_LIMIT)?;
    test.check(&limits())?;
    check_plan(&test);
    link.send(&ControlMessage::Accept(steps::greeting(&test)))?;
    listen(link)
}

fn ask<W: FrameTransport>(
    link: &mut ControlLink<W>,
    secret: Option<&Secret>,
    output: &mut Output,
) -> Result<(), Error> {
    let measure = Measure::Latency(LatencyDefinition::PingPong);
    let test = TestPlan::new(TestOperation::Send, measure, Sizes::One { size: 64 });
    steps::request(link, &test, secret, output)?;
    assert!(secret.is_none(), "no tape knows the secret's answer to a new nonce");
    steps::begin(link, 64)?;
    let row = steps::receive_row(link)?;
    assert!(!line(&row.row).contains('\n'));
    listen(link)
}

/// Receives messages until the peer's data ends.
fn listen<W: FrameTransport>(link: &mut ControlLink<W>) -> Result<(), Error> {
    loop {
        let message = link.receive()?;
        let again = message.to_json().expect("what was read can be written");
        let again = ControlMessage::from_json(&again).expect("what was written can be read");
        match (&message, &again) {
            // Encoding may lose the last digit of a figure.
            (ControlMessage::Row(measured), ControlMessage::Row(again)) => {
                assert_eq!(measured.row.point(), again.row.point());
                assert!(!line(&measured.row).contains('\n'));
            }
            _ => assert_eq!(message, again),
        }
        if message == ControlMessage::Done {
            return Err(ControlError::PeerIsDone { peer: link.peer().to_owned() }.into());
        }
    }
}

/// Checks that everything derived from an acceptable plan is finite.
fn check_plan(test: &TestPlan) {
    assert!(!test.to_string().contains('\n'));
    let shares: Vec<_> = (0..test.thread_count()).map(|thread| test.share(thread).queue_pairs).collect();
    assert!(shares.iter().sum::<u32>() == test.queue_pairs && !shares.contains(&0), "{test:?}");
    let most = 64 * 5;
    let cells: Vec<_> = test.cells().take(most + 1).collect();
    let is_endless = matches!(test.sizes, Sizes::Again { .. });
    assert!(!cells.is_empty() && (is_endless || cells.len() <= most), "{test:?}");
    for point in cells {
        assert!(
            point.size > 0 && point.size <= test.sizes.largest() && test.messages_of(point) > 0,
            "{point:?}"
        );
    }
    assert!((1..=test.tx_depth).contains(&test.depth()) && test.completion_interval() > 0, "{test:?}");
    let again: TestPlan =
        serde_json::from_slice(&serde_json::to_vec(test).expect("it can be written")).expect("and read");
    assert_eq!(*test, again);
}

/// Limits like soft0's.
fn limits() -> DeviceLimits {
    DeviceLimits {
        device: "soft0".to_owned(),
        port: 1,
        max_qp: 65536,
        max_qp_wr: 32768,
        max_cqe: 1 << 22,
        max_msg_sz: 1 << 31,
        mtu: 4096,
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 16,
        has_atomics: true,
        max_sge: 30,
        max_sge_rd: 30,
        num_comp_vectors: 1,
        pkeys: 1,
        has_xrc: true,
        max_srq: 65536,
        max_srq_wr: 32767,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::cli;
    use crate::control::{Greeting, SecretRefusal};
    use crate::plan::RunPlan;
    use crate::report::{BandwidthRow, LatencyRow, Measured, ResultRow};

    fn folder() -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "fuzz", "corpus", "control"].iter().collect()
    }

    fn corpus() -> Vec<Vec<u8>> {
        let entries = fs::read_dir(folder()).expect("the corpus is committed");
        let inputs: Vec<_> = entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
        assert!(inputs.len() >= 8, "{} inputs", inputs.len());
        inputs
    }

    /// Inputs that fuzzing found stay in the corpus.
    #[test]
    fn the_corpus_passes() {
        corpus().iter().for_each(|input| run(input));
    }

    #[test]
    fn the_corpus_passes_through_sockets() {
        for mut input in corpus() {
            input[0] |= SOCKET;
            run(&input);
        }
    }

    #[test]
    fn changed_words_do_no_harm() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let inputs = corpus();
        for round in 0..20_000 {
            let mut data = inputs[rng.next_u32() as usize % inputs.len()].clone();
            for _ in 0..rng.next_u32() % 4 {
                let at = rng.next_u32() as usize % data.len();
                // A digit replaced by a digit stays valid more often than any other change.
                data[at] = match data[at] {
                    b'0'..=b'9' => b'0' + rng.next_u32() as u8 % 10,
                    _ => rng.next_u32() as u8,
                };
            }
            data.truncate(data.len() - (rng.next_u32() as usize % data.len()).saturating_sub(data.len() / 2));
            // A socket and its threads take some hundred times as long.
            data[0] = if round % 40 == 0 { data[0] | SOCKET } else { data[0] & !SOCKET };
            run(&data);
        }
    }

    /// Checks that the inputs reach the intended depth.
    #[test]
    fn the_corpus_goes_to_the_end() {
        for (name, input) in inputs() {
            let end = end_of(input[0], RecordedPeer(&input[1..]));
            let expected = match name {
                "no-secret" => "gave no secret",
                "secret" => "has another secret",
                "refused" => "serves only who knows its secret",
                "unexpected" => "there is none here",
                "failure" => "gave up: no memory",
                _ => "is done",
            };
            assert!(end.contains(expected), "{name}: {end}");
        }
    }

    fn test(flags: &str) -> Greeting {
        let words = format!("stride-perf {flags}");
        let test = RunPlan::new(cli::parse(words.split_whitespace()).unwrap()).unwrap().test;
        Greeting { release: "0.1.0".to_owned(), test }
    }

    fn tape(side: u8, words: &[ControlMessage]) -> Vec<u8> {
        let mut bytes = vec![side];
        for word in words {
            write_frame(&mut bytes, FrameKind::Message, &word.to_json().unwrap()).unwrap();
        }
        bytes
    }

    /// Initial inputs: the messages of a well-behaved peer, for either side.
    fn inputs() -> Vec<(&'static str, Vec<u8>)> {
        let bandwidth = ResultRow::Bandwidth(BandwidthRow {
            size: 64,
            iterations: 1000,
            seconds: 0.5,
            gigabits_per_second: 1.5,
            million_messages_per_second: 3.25,
        });
        let latency = ResultRow::Latency(LatencyRow {
            size: 64,
            iterations: 1000,
            min: 1.0,
            avg: 1.5,
            stdev: 0.25,
            p50: 1.5,
            p90: 1.75,
            p99: 2.0,
            p99_9: 3.0,
            p99_99: 4.0,
            max: 5.5,
        });
        let ends = [ControlMessage::Arrived { sent: 9, taken: 8 }, ControlMessage::Done];
        let request = |flags: &str, row: ResultRow| {
            let begins = [
                ControlMessage::Request(test(flags)),
                ControlMessage::Ready,
                ControlMessage::Begin { size: 64 },
                ControlMessage::Row(Measured { row, cpu_ns_per_msg: Some(12.5) }),
            ];
            tape(SERVER, &[&begins[..], &ends].concat())
        };
        let alone = |row| ControlMessage::Row(Measured { row, cpu_ns_per_msg: None });
        let accept = [
            ControlMessage::Accept(test("send lat -s 64")),
            ControlMessage::Begin { size: 64 },
            alone(latency),
        ];
        let other = [
            ControlMessage::Accept(test("read bw -a -q 7")),
            ControlMessage::Begin { size: 64 },
            alone(bandwidth),
        ];
        let hello = ControlMessage::Hello { nonce: [1; 32] };
        let mut failure = tape(0, &[]);
        write_frame(&mut failure, FrameKind::Failure, b"no memory").unwrap();
        vec![
            ("write-bw", request("write bw -a -l 4 -n 1000 -Q 2 -I 16", bandwidth)),
            ("send-lat", request("send lat -c UD -s 64 -r 100", latency)),
            ("read-bw", request("read bw -b -q 3 -o 4 -D 2", bandwidth)),
            ("atomic-lat", request("atomic lat -A compare-swap", latency)),
            (
                "threads",
                request("send bw -q 5 --threads 2 --use-srq --rate 5000 --warmup 9 --cqe-poll 3", bandwidth),
            ),
            ("mix", request("mix lat --ratio read=30 -c XRC -e -m 512 --sge 2 --clock device", latency)),
            ("msg-grid", request("msg grid --api pool", latency)),
            ("accept", tape(0, &[&accept[..], &ends].concat())),
            ("accept-other", tape(0, &[&other[..], &ends].concat())),
            ("no-secret", tape(SERVER | SECRET, &[ControlMessage::Request(test("write bw"))])),
            ("secret", tape(SERVER | SECRET, &[hello.clone(), ControlMessage::Proof { proof: [2; 32] }])),
            ("unexpected", tape(SERVER, &[hello])),
            ("refused", tape(0, &[ControlMessage::Refused(SecretRefusal::Missing)])),
            ("failure", failure),
        ]
    }

    /// Rewrites the initial inputs of the corpus: `cargo test -p stride write_the_corpus --
    /// --ignored`.
    #[test]
    #[ignore = "no test: it writes the initial corpus of the fuzz target"]
    fn write_the_corpus() {
        fs::create_dir_all(folder()).expect("a directory");
        for (name, bytes) in inputs() {
            fs::write(folder().join(name), bytes).expect("written");
        }
    }
}
