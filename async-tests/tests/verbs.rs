//! Tasks that await the events of `sideway::tokio`, over the software device.

use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{CompletionQueue, GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::event::AsyncEventType;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};
use sideway::rdmacm::{self, EventType, PortSpace};
use sideway::tokio::{AsyncEvents, CompletionChannel, EventChannel};
use tokio::runtime;

const LONG: Duration = Duration::from_secs(60);

/// Runs a future to its end in a runtime of one thread, and in one of several.
fn run<F: Future<Output = ()>>(future: impl Fn() -> F) {
    for threads in [1, 3] {
        let mut builder = match threads {
            1 => runtime::Builder::new_current_thread(),
            _ => runtime::Builder::new_multi_thread(),
        };
        let runtime = builder.worker_threads(threads).enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(LONG, future()).await.expect("it ends in time") });
    }
}

fn open() -> DeviceContext {
    let provider = sideway::ProviderChoice::Soft.select().unwrap().provider();
    DeviceList::from_provider(provider).unwrap().first().unwrap().open().unwrap()
}

/// A queue pair that is connected to itself.
struct OwnPeer {
    qp: GenericQueuePair,
    cq: GenericCompletionQueue,
    channel: CompletionChannel,
    memory: RegisteredBuffer,
}

impl OwnPeer {
    fn new(context: &DeviceContext) -> Self {
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq_builder().setup_comp_channel(&channel).build_generic().unwrap();
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        let buffer = Buffer::new(BufferKind::for_device(context), 128).unwrap();
        let memory = pd.reg_buffer(buffer, access).unwrap();
        let mut qp = pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic().unwrap();
        let path = LocalPath::choose(context, 1, None).unwrap();
        let own = Endpoint::new(&qp, &path, 7);
        let options = ConnectOptions { access_flags: access, ..ConnectOptions::default() };
        connect(&mut qp, &path, &own, &own, &options).unwrap();
        Self { qp, cq, channel: CompletionChannel::new(channel).unwrap(), memory }
    }

    /// Posts a write. To an offset behind the memory it fails.
    fn write(&mut self, wr_id: u64, offset: u64) {
        let here = self.memory.as_ptr().addr() as u64;
        let mut guard = self.qp.start_post_send();
        let write = guard
            .construct_wr(wr_id, WorkRequestFlags::Signaled)
            .setup_write(self.memory.rkey(), here + offset);
        // SAFETY: the memory outlives the queue pair, and nothing reads it.
        unsafe { write.setup_sge(self.memory.lkey(), here, 64) };
        guard.post().unwrap();
    }
}

#[test]
fn completions_are_awaited() {
    run(|| async {
        let context = open();
        let mut peer = OwnPeer::new(&context);
        for round in 0..500 {
            peer.write(round, 64);
            let mut ids = Vec::new();
            let each = |wc: sideway::ibverbs::completion::GenericWorkCompletion<'_>| {
                assert_eq!(wc.status(), WorkCompletionStatus::Success);
                ids.push(wc.wr_id());
            };
            assert_eq!(peer.channel.completions(&mut peer.cq, each).await.unwrap(), 1);
            assert_eq!(ids, [round]);
        }
        let wait = peer.channel.completions(&mut peer.cq, |_| panic!("nothing was posted"));
        assert!(tokio::time::timeout(Duration::from_millis(50), wait).await.is_err());
        // The queue is armed now.
        peer.write(1, 64);
        let id = peer.cq.id();
        assert_eq!(peer.channel.event().await.unwrap().cq(), id);
    });
}

#[test]
fn a_completion_that_comes_later_wakes_the_task() {
    run(|| async {
        let context = open();
        let peer = OwnPeer::new(&context);
        let OwnPeer { qp, mut cq, mut channel, memory } = peer;
        let waiting = async {
            let mut statuses = Vec::new();
            channel.completions(&mut cq, |wc| statuses.push(wc.status())).await.unwrap();
            statuses
        };
        let posting = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut qp = qp;
            let here = memory.as_ptr().addr() as u64;
            let mut guard = qp.start_post_send();
            let write =
                guard.construct_wr(3, WorkRequestFlags::Signaled).setup_write(memory.rkey(), here + 64);
            // SAFETY: the memory outlives the queue pair, and nothing reads it.
            unsafe { write.setup_sge(memory.lkey(), here, 64) };
            guard.post().unwrap();
            qp
        };
        let (statuses, _qp) = tokio::join!(waiting, posting);
        assert_eq!(statuses, [WorkCompletionStatus::Success]);
    });
}

#[test]
fn a_dropped_wait_loses_no_completion() {
    run(|| async {
        let context = open();
        let mut peer = OwnPeer::new(&context);
        let mut ids = Vec::new();
        for round in 0..200 {
            {
                let mut wait = pin!(peer.channel.completions(&mut peer.cq, |wc| ids.push(wc.wr_id())));
                poll_fn(|context| {
                    let _ = wait.as_mut().poll(context);
                    Poll::Ready(())
                })
                .await;
            }
            peer.write(round, 64);
        }
        while ids.len() < 200 {
            peer.channel.completions(&mut peer.cq, |wc| ids.push(wc.wr_id())).await.unwrap();
        }
        assert!(ids.iter().copied().eq(0..200), "{ids:?}");
    });
}

#[test]
fn a_failed_pair_is_an_event_of_the_device() {
    run(|| async {
        let context = open();
        let events = AsyncEvents::new(context.async_events().unwrap()).unwrap();
        let wait = tokio::time::timeout(Duration::from_millis(20), events.event());
        assert!(wait.await.is_err(), "nothing has happened");
        let mut peer = OwnPeer::new(&context);
        peer.write(1, 1 << 30);
        let mut status = None;
        peer.channel.completions(&mut peer.cq, |wc| status = Some(wc.status())).await.unwrap();
        assert_eq!(status, Some(WorkCompletionStatus::RemoteAccessError));
        assert_eq!(events.event().await.unwrap().event_type(), AsyncEventType::QueuePairAccessError);
        assert!(peer.qp.qp_number() > 0);
    });
}

#[test]
fn events_of_the_connection_manager_are_awaited() {
    run(|| async {
        let provider = sideway::ProviderChoice::Soft.select().unwrap().provider();
        let channel = EventChannel::new(rdmacm::EventChannel::from_provider(provider).unwrap()).unwrap();
        let id = channel.get_ref().create_id(PortSpace::Tcp).unwrap();
        id.resolve_addr(None, SocketAddr::from((Ipv4Addr::LOCALHOST, 7471)), LONG).unwrap();
        let event = channel.event().await.unwrap();
        assert_eq!(event.event_type(), EventType::AddressResolved);
    });
}
