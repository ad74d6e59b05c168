//! Tests a program's error paths without hardware. `docs/soft-rnic-faults.md` quotes the parts
//! between the marks as its worked example.

use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};
use soft_rnic::faults::{self, Action, Call, Opcode, Rule};

/// The time limit of a completion.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

// [code under test]
/// A store of one value, and a client that writes to it.
struct Client {
    pd: ProtectionDomain,
    path: LocalPath,
    value: RegisteredBuffer,
    store: RegisteredBuffer,
    connection: Option<Connection>,
    reconnected: u32,
}

struct Connection {
    client: GenericQueuePair,
    _store: GenericQueuePair,
    completions: GenericCompletionQueue,
}

impl Client {
    fn new(context: &DeviceContext) -> Result<Self, Box<dyn Error>> {
        let pd = context.alloc_pd()?;
        let path = LocalPath::choose(context, 1, None)?;
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        let buffer =
            || pd.reg_buffer(Buffer::new(BufferKind::Private, 4096)?, access).map_err(Box::<dyn Error>::from);
        let (value, store) = (buffer()?, buffer()?);
        Ok(Self { pd, path, value, store, connection: None, reconnected: 0 })
    }

    /// Writes the value to the store. Reconnects after a broken connection, at most three times.
    fn write(&mut self) -> Result<(), Box<dyn Error>> {
        for _ in 0..=3 {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => self.connect()?,
            };
            match self.write_over(&mut connection)? {
                WorkCompletionStatus::Success => {
                    self.connection = Some(connection);
                    return Ok(());
                }
                WorkCompletionStatus::TransportRetryCounterExceeded
                | WorkCompletionStatus::WorkRequestFlushedError => {
                    self.reconnected += 1;
                }
                other => return Err(format!("the store refuses: {other}").into()),
            }
        }
        Err("the store cannot be reached".into())
    }
    // [end]

    fn connect(&self) -> Result<Connection, Box<dyn Error>> {
        let completions = self.pd.context().create_cq_builder().setup_cqe(16).build_generic()?;
        let pair = || {
            self.pd
                .create_qp_builder()
                .setup_send_cq(&completions)
                .setup_recv_cq(&completions)
                .build_generic()
        };
        let (mut client, mut store) = (pair()?, pair()?);
        let ends = (Endpoint::new(&client, &self.path, 1), Endpoint::new(&store, &self.path, 2));
        // A short timeout and few retries, so that the failure comes soon.
        let options = ConnectOptions { timeout: 8, retry_cnt: 2, ..ConnectOptions::default() };
        connect(&mut client, &self.path, &ends.0, &ends.1, &options)?;
        connect(&mut store, &self.path, &ends.1, &ends.0, &options)?;
        Ok(Connection { client, _store: store, completions })
    }

    fn write_over(&self, connection: &mut Connection) -> Result<WorkCompletionStatus, Box<dyn Error>> {
        let mut guard = connection.client.start_post_send();
        let write = guard
            .construct_wr(1, WorkRequestFlags::Signaled)
            .setup_write(self.store.rkey(), self.store.as_ptr() as u64);
        // SAFETY: the buffer outlives the completion, which the caller waits for. Nothing refers to
        // its bytes.
        unsafe { write.setup_sge(self.value.lkey(), self.value.as_ptr() as u64, 64) };
        guard.post()?;
        let end = Instant::now() + WAIT_LIMIT;
        while Instant::now() < end {
            let mut poller = connection.completions.start_poll()?;
            if let Some(completion) = poller.next() {
                return Ok(completion.status());
            }
            poller.finish()?;
            std::thread::yield_now();
        }
        Err("no completion".into())
    }

    fn set_value(&self, byte: u8) {
        // SAFETY: within the buffer, to whose bytes nothing refers. No request is outstanding.
        unsafe { self.value.as_ptr().write_bytes(byte, 64) };
    }

    fn stored(&self) -> Vec<u8> {
        // SAFETY: within the buffer, to whose bytes nothing refers. No request is outstanding.
        (0..64).map(|at| unsafe { self.store.as_ptr().add(at).read_volatile() }).collect()
    }
}

/// Fault rules apply to the whole process. Tests run one at a time, and each starts and ends
/// without rules.
struct FaultRulesLock(#[allow(dead_code)] MutexGuard<'static, ()>);

fn lock_fault_rules() -> FaultRulesLock {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    faults::clear();
    FaultRulesLock(guard)
}

impl Drop for FaultRulesLock {
    fn drop(&mut self) {
        faults::clear();
    }
}

fn soft0() -> DeviceContext {
    let mut config = soft_rnic::Config::default();
    config.fabric = format!("faults-example-{}", std::process::id());
    let provider =
        soft_rnic::provider_with(config).expect("all tests of this process have this configuration");
    DeviceList::from_provider(provider).unwrap().first().unwrap().open().unwrap()
}

// [tests]
#[test]
fn a_lost_connection_is_made_anew() {
    let _lock = lock_fault_rules();
    let mut client = Client::new(&soft0()).unwrap();
    client.set_value(7);
    // The device never answers the first two writes, whatever the number of retries.
    faults::set(faults::parse("drop opcode=rdma_write first=2").unwrap(), 1).unwrap();
    client.write().unwrap();
    assert_eq!((client.reconnected, client.stored()), (2, vec![7; 64]));
    assert_eq!(faults::report()[0].fired, 2);
}

#[test]
fn a_store_that_is_gone_is_given_up() {
    let _lock = lock_fault_rules();
    let mut client = Client::new(&soft0()).unwrap();
    faults::set([Rule::new(Action::Drop(None)).opcode(Opcode::RdmaWrite)], 1).unwrap();
    assert_eq!(client.write().unwrap_err().to_string(), "the store cannot be reached");
}

#[test]
fn without_memory_for_a_queue_pair_nothing_is_left_behind() {
    let _lock = lock_fault_rules();
    let mut client = Client::new(&soft0()).unwrap();
    faults::set([Rule::new(Action::Errno(libc::ENOMEM)).call(Call::CreateQp).nth(2)], 1).unwrap();
    client.write().unwrap_err();
    // The next attempt succeeds, because nothing has changed.
    client.write().unwrap();
}

#[test]
fn chance_finds_what_nobody_thought_of() {
    let _lock = lock_fault_rules();
    for seed in 0..20 {
        let mut client = Client::new(&soft0()).unwrap();
        let rules = "drop chance=0.2; delay=10us..1ms chance=0.3; qp_fatal chance=0.1";
        faults::set(faults::parse(rules).unwrap(), seed).unwrap();
        for value in 1..10 {
            client.set_value(value);
            // A write may fail, but must not report a success that did not happen.
            if client.write().is_ok() {
                assert_eq!(client.stored(), vec![value; 64], "seed {seed}");
            }
        }
        faults::clear();
    }
}
// [end]

/// The page quotes exactly this code.
#[test]
fn the_guide_quotes_this_file() {
    let (this, guide) = (include_str!("faults.rs"), include_str!("../../docs/soft-rnic-faults.md"));
    for mark in ["code under test", "tests"] {
        let (_, after) = this.split_once(&format!("// [{mark}]\n")).unwrap();
        let (part, _) = after.split_once("// [end]").unwrap();
        assert!(
            guide.contains(part.trim()),
            "docs/soft-rnic-faults.md does not quote the part [{mark}] exactly"
        );
    }
}
