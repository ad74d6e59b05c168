//! Counts the system calls of waiting for a completion: one for each wake-up, and one more if the
//! wait has a deadline.
//!
//! This program runs itself on a software device under strace, and counts one thread's system calls
//! between two marker calls. Without strace the test is reported as ignored.
#![allow(missing_docs, reason = "a test program")]

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// If this is set, the program is the one that is counted, and the value names the kind of wait.
const WAY: &str = "SIDEWAY_COUNTED_WAY";

const ROUNDS: usize = 100;

fn main() -> ExitCode {
    #[cfg(feature = "soft")]
    if let Ok(way) = std::env::var(WAY) {
        counted::run(&way);
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        // The software device arms without a system call. It makes the write, to wake a sleeping
        // thread, after an `fstat` to check that the descriptor still exists.
        trial("a_wait_is_one_read", "wait", &[("read", ROUNDS), ("write", ROUNDS), ("fstat", ROUNDS)]),
        trial(
            "a_wait_with_an_end_asks_before",
            "timeout",
            &[("ppoll", ROUNDS), ("read", ROUNDS), ("write", ROUNDS), ("fstat", ROUNDS)],
        ),
        trial(
            "taking_what_is_there_is_one_read",
            "try",
            &[("read", ROUNDS), ("write", ROUNDS), ("fstat", ROUNDS)],
        ),
        trial("arming_alone_is_none", "arm", &[]),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: &str, way: &'static str, expected: &'static [(&'static str, usize)]) -> Trial {
    Trial::ignorable_test(name, move || {
        if !cfg!(feature = "soft") {
            return Ok(Completion::ignored_with("this build has no software device (feature `soft`)"));
        }
        let Some(calls) = trace(way)? else { return Ok(Completion::ignored_with("there is no strace")) };
        let mut counts = std::collections::BTreeMap::new();
        // Futex calls are ignored: the device's threads may contend, but no wait for an event uses
        // a futex.
        for call in calls.iter().filter(|call| *call != "futex") {
            // The name of the call depends on the architecture and the C library.
            let name = match call.as_str() {
                "poll" => "ppoll",
                "newfstatat" => "fstat",
                name => name,
            };
            *counts.entry(name).or_insert(0) += 1;
        }
        let expected = expected.iter().copied().collect();
        if counts == expected {
            Ok(Completion::Completed)
        } else {
            Err(Failed::from(format!("{counts:?} instead of {expected:?}")))
        }
    })
}

/// The names of the counted thread's system calls between the marks; `None` without strace.
fn trace(way: &str) -> Result<Option<Vec<String>>, Failed> {
    let file = std::env::temp_dir().join(format!("sideway-{}-{way}.strace", std::process::id()));
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(&file).arg(std::env::current_exe()?);
    command.env(WAY, way).env("SOFT_RNIC_MODE", "inline");
    command.env("SOFT_RNIC_FABRIC", format!("test-{}", std::process::id()));
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let text = std::fs::read_to_string(&file);
    // Best effort, because the file is in the temporary folder.
    let _ = std::fs::remove_file(&file);
    if !output.status.success() {
        return Err(Failed::from(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let mut between = test_harness::calls_between(&text?, "getpriority");
    match (between.pop(), between.len()) {
        (Some(calls), 0) => Ok(Some(calls.into_iter().map(|call| call.name).collect())),
        (_, more) => Err(Failed::from(format!("{more} pairs of marks more"))),
    }
}

#[cfg(feature = "soft")]
mod counted {
    use std::time::Duration;

    use sideway::ProviderChoice;
    use sideway::ibverbs::AccessFlags;
    use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue, Notify};
    use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
    use sideway::ibverbs::device::DeviceList;
    use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};
    use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};

    use super::ROUNDS;

    struct ConnectionEnd {
        qp: GenericQueuePair,
        cq: GenericCompletionQueue,
        memory: RegisteredBuffer,
        channel: CompletionChannel,
    }

    impl ConnectionEnd {
        fn new() -> Self {
            let list = DeviceList::from_provider(ProviderChoice::Soft.select().unwrap().provider()).unwrap();
            let context = list.first().unwrap().open().unwrap();
            let (pd, path) = (context.alloc_pd().unwrap(), LocalPath::choose(&context, 1, None).unwrap());
            let channel = context.create_comp_channel().unwrap();
            let cq = context.create_cq_builder().setup_comp_channel(&channel).build_generic().unwrap();
            let access_flags = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
            let buffer = Buffer::new(BufferKind::for_device(&context), 4096).unwrap();
            let memory = pd.reg_buffer(buffer, access_flags).unwrap();
            let mut qp =
                pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic().unwrap();
            let own = Endpoint::new(&qp, &path, 1);
            let options = ConnectOptions { access_flags, ..ConnectOptions::default() };
            connect(&mut qp, &path, &own, &own, &options).unwrap();
            Self { qp, cq, memory, channel }
        }

        /// Arms and drains the queue.
        fn arm(&mut self) {
            let mut poller = self.cq.arm(Notify::Any).unwrap();
            while poller.next().is_some() {}
            poller.finish().unwrap();
        }

        /// Posts an RDMA WRITE to itself, which completes at once.
        fn write(&mut self) {
            let here = self.memory.as_ptr().addr() as u64;
            let mut guard = self.qp.start_post_send();
            let write = guard.construct_wr(1, WorkRequestFlags::Signaled);
            // SAFETY: the memory outlives the pair, and nobody else accesses it.
            unsafe {
                write.setup_write(self.memory.rkey(), here + 64).setup_sge(self.memory.lkey(), here, 8)
            };
            guard.post().unwrap();
        }
    }

    /// Makes a system call that nothing else makes, as a marker.
    fn mark() {
        // SAFETY: the call has no preconditions.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    }

    pub(super) fn run(way: &str) {
        let mut side = ConnectionEnd::new();
        let step = |side: &mut ConnectionEnd| match way {
            "arm" => side.arm(),
            _ => {
                side.arm();
                side.write();
                let event = match way {
                    "wait" => Some(side.channel.wait().unwrap()),
                    "timeout" => side.channel.wait_timeout(Duration::from_secs(60)).unwrap(),
                    _ => side.channel.try_next().unwrap(),
                };
                assert!(event.is_some(), "the write has completed");
            }
        };
        // Warm-up for one-time work: the connection to the peer, the descriptor's mode.
        (0..3).for_each(|_| step(&mut side));
        mark();
        (0..ROUNDS).for_each(|_| step(&mut side));
        mark();
    }
}
