//! The builder of a configuration: one method for each parameter, and `build`, which checks them.

use std::time::Duration;

use super::environment::{DeviceName, Environment};
use super::parameters::{self, Bootstrap, Config};
use super::{ConfigError, check, log};
use crate::pool::Pool;
use crate::wire::Policy;

/// All parameters of connections and listeners. Every one has a start value that suits most programs.
///
/// A wrong configuration is refused here, not when it is used: [`build`](Self::build) names the parameter, its value, the bound, and
/// what to do.
///
/// ```
/// use std::time::Duration;
/// use trespass::{Builder, Policy};
///
/// let config = Builder::new()
///     .policy(Policy::TcpOnly)
///     .linger(Duration::from_secs(3))
///     .build()?;
/// let error = Builder::new().rx_slots(4).build().unwrap_err();
/// assert_eq!(error.parameter(), "rx_slots");
/// # let _ = config;
/// # Ok::<(), trespass::ConfigError>(())
/// ```
///
/// # The environment
///
/// A person can override a program's choice: `TRESPASS_DEV` (`NAME` or `NAME:PORT`), `TRESPASS_GID_INDEX`, and `TRESPASS_TRANSPORT`
/// (`auto`, `rdma` or `tcp`). `TRESPASS_LOG` (`off`, `error`, `warn`, `info`, `debug` or `trace`) writes what happens to the standard
/// error output, if the program has no `tracing` subscriber of its own by then. A value that cannot be is an error, too.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    config: Config,
    device: Option<String>,
    eager_max: Option<u32>,
    slot_size: Option<u32>,
}

/// Methods that set the field of their name.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        impl Builder {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, $name: $type) -> Self {
                    self.config.$name = $name;
                    self
                }
            )*
        }
    };
}

setters! {
    /// Whether all connections of a [`Worker`](crate::Worker) receive from one shared receive queue. Start value: no.
    ///
    /// A connection then begins with 5 receive slots, which it is certain of as long as it is there: 20 KiB at the slots of 4 KiB that are
    /// the start value of [`slot_size`](Self::slot_size) then. It is given more, up to [`rx_slots`](Self::rx_slots), while its peer has
    /// more to send than that, as far as the queue has room; what it does not use any more it is not given again. No peer is ever told of
    /// a slot that is not posted. Where the queue is full, who sends much waits, and who sends little does not notice.
    ///
    /// It is for many connections of which few do something at a time. A connection that has all that it may ever need from the start is
    /// faster at first. The peer need not do the same. A peer that breaks the protocol may use slots that others were told of: its
    /// connection ends, and what they send meanwhile is sent again by their devices ([`rnr_retry`](Self::rnr_retry)).
    ///
    /// A [`Stream`](crate::Stream) and a [`SeqPacket`](crate::SeqPacket) have all their slots for themselves, from the start: with fewer
    /// a thread that has both ends could not write before it reads. Over TCP this changes nothing. With [`Bootstrap::RdmaCm`] it is
    /// refused.
    srq: bool;
    /// Slots that a shared receive queue may hold: 64 to 1048576; less, if the device has less. A worker takes a fifth as many connections
    /// at most, or half of that while others have much more than that under way; one more has no room, and uses TCP, if it may. The pool keeps as much memory for receiving. Start value: 16384.
    srq_size: u32;
    /// Slots of the peer's that only control frames may use: 2 up to a quarter of [`rx_slots`](Self::rx_slots). Start value: 2.
    reserve: u32;
    /// The longest message that is taken or sent: up to 1 GiB, which is the start value.
    max_msg: u64;
    /// Bytes that are taken in before the program reads them. Above it the peer has to wait. Start value: 1 MiB.
    rcvbuf: usize;
    /// Bytes that a program may write before they are sent. Above it the program has to wait. Start value: 1 MiB.
    sndbuf: usize;
    /// Whether several short messages may share a frame while others are in flight. Start value: yes.
    coalescing: bool;
    /// Whether the header of a frame of data may go in the request's immediate data, so that it takes no bytes of a packet;
    /// never over iWARP, which has none. Start value: yes.
    immediate: bool;
    /// Frames up to this are given to the device with the request, if it can do that, or as much of it as it can; it need not read them itself.
    /// A message has a header of 16 bytes in its frame, unless that goes in [immediate data](Self::immediate). Start value: 272.
    inline: u32;
    /// Whether the receiver may read long messages out of the sender's memory. Start value: yes.
    rendezvous: bool;
    /// Long messages that may wait to be read at a time: 1 to 1024. Start value: 16.
    max_rts: u16;
    /// RDMA READs in flight at a time, each way; less, if the device can do less. SoftRoCE, which loses their bytes where packets are lost, is
    /// given none but by Linux 6.1, which does not: else long messages go in frames there, as with [`rendezvous`](Self::rendezvous) switched off. Start value: 16.
    rd_atomic: u8;
    /// Bytes of one RDMA READ: a multiple of 4 KiB up to 1 MiB, which is the start value.
    read_piece: u32;
    /// Bytes of the pieces into which a long message is copied if it is not registered: a power of two from
    /// [`slot_size`](Self::slot_size), and from 4 KiB, to 1 MiB. Start value: 256 KiB.
    staged_block: u32;
    /// Bytes of programs' memory ([`Pool::adopt`]) that stay registered while they are not being sent; beyond that what was sent the
    /// longest ago is registered anew when it is sent again. Start value: 64 MiB.
    registrations: usize;
    /// Bytes that the pool allocates at once. Start value: 64 MiB.
    pool_initial: usize;
    /// Bytes of them that are touched and registered before the first use: at most [`pool_initial`](Self::pool_initial). Start value:
    /// 4 MiB.
    pool_prewarm: usize;
    /// Bytes that the pool never exceeds (but for what is not registered where the device refuses to: as much again). Each device that carries connections has a pool. When it is empty, senders wait; what is received has a part of it for itself, enough for both
    /// ends of a connection, and an eighth at least. So it is at least 22 MiB at the start values of all else, and more for larger
    /// [`rcvbuf`](Self::rcvbuf), [`sndbuf`](Self::sndbuf) and [`rx_slots`](Self::rx_slots); never less than 8 MiB. Start value: 1 GiB.
    pool_max: usize;
    /// Percent of [`pool_max`](Self::pool_max) at which the pool tells of it: 1 to 100. Start value: 80.
    pool_high_water: u8;
    /// Whether the pool asks for huge pages. Start value: no.
    huge_pages: bool;
    /// Whether RDMA may, must or must not be used. `TRESPASS_TRANSPORT` goes before it. Start value: [`Policy::Auto`].
    policy: Policy;
    /// How connections begin. With [`Bootstrap::RdmaCm`] the route says which device, port and GID are used, so nothing else may; and every
    /// connection has its completion queue and its receives for itself, a [`Worker`](crate::Worker)'s too. Start value:
    /// [`Bootstrap::Tcp`].
    bootstrap: Bootstrap;
    /// Which entry of the port's GID table is used; `None` is the one that is the socket's address. `TRESPASS_GID_INDEX` goes before it.
    gid_index: Option<u8>;
    /// The path's MTU: 256, 512, 1024, 2048 or 4096; `None` is the lesser one of both ports'.
    path_mtu: Option<u16>;
    /// The traffic class, of which the upper six bits are the DSCP. Start value: 0.
    traffic_class: u8;
    /// The service level (InfiniBand), or the priority: 0 to 15. Start value: 0.
    service_level: u8;
    /// Routers that a packet may pass: at least 1. Start value: 64.
    hop_limit: u8;
    /// How long the device waits for an acknowledgement, as the verbs have it: 4.096 us times 2 to this power; 1 to 22. Start value: 14
    /// (67 ms).
    ack_timeout: u8;
    /// How often the device tries again: 0 to 7. Start value: 7.
    retry_count: u8;
    /// How often it tries again where no receive is posted: 0 to 7, and 7 is without end. In normal operation that never happens. Start
    /// value: 7.
    rnr_retry: u8;
    /// How long it then waits, as the verbs have it: 0 to 31. Start value: 12 (0.64 ms).
    min_rnr_timer: u8;
    /// How long the data path may take to prove itself before TCP is used: at least 1 ms, less than
    /// [`handshake_deadline`](Self::handshake_deadline). Start value: 300 ms.
    probe_timeout: Duration;
    /// How long a connection may take to come about: 10 ms to 10 minutes. Start value: 5 s.
    handshake_deadline: Duration;
    /// How long closing may wait for what is not yet sent: up to an hour. Start value: 1 s.
    linger: Duration;
    /// How long a connection may be silent before it is tried: 100 ms to a day; `None` is never. Start value: 5 s.
    keepalive: Option<Duration>;
    /// How long a call that waits looks for completions before it sleeps, at most: up to 1 s; zero is not at all. It begins anew with each
    /// completion. How long it is within that is learnt: who waits for long, as a rule, soon sleeps at once. Start value: 200 us, or zero
    /// where the process may use one processor only. Over TCP threads sleep at once; a [`Worker`](crate::Worker) has a
    /// [time of its own](Self::worker_spin).
    spin: Duration;
    /// How long a [`Worker`](crate::Worker) looks for what there is to do before it sleeps: up to an hour, which is as good as always, for
    /// a thread that has a processor for itself. It begins anew whenever something has happened, is not learnt, and counts over TCP too.
    /// While it looks, completions make no event, and the system is asked once in a while; also in a poll that does not wait. A worker
    /// whose descriptor the program has does not look. Start value: not at all.
    worker_spin: Duration;
    /// How often the state of connections is summed up in the trace: at least 1 s; `None` is never. Start value: 20 s.
    trace_interval: Option<Duration>;
    /// Clients that may wait to be accepted: 1 to 65535; the system may lower it. Start value: 1024.
    backlog: u32;
    /// How long to try again to listen at a port that is taken: up to an hour. Start value: not at all.
    bind_patience: Duration;
}

impl Builder {
    /// Everything at its start value.
    pub fn new() -> Self {
        Self::default()
    }

    /// The device, `NAME` or `NAME:PORT`, instead of the one with the socket's address. `TRESPASS_DEV` goes before it.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Messages above this are read by the receiver out of the sender's memory, where RDMA carries them. Start value: 16 KiB, or what fits into
    /// a slot if that is more.
    #[must_use]
    pub fn eager_max(mut self, eager_max: u32) -> Self {
        self.eager_max = Some(eager_max);
        self
    }

    /// A pool of the program's own, for several listeners, workers and connections whose configurations differ, or for these alone. It was
    /// made with what [`Config::pool_config`] says, or has more for each part; what else is said of the pool here does not count. Without
    /// it, all connections of the process that want the same pool share it.
    ///
    /// ```
    /// use trespass::{Builder, Pool};
    ///
    /// let builder = Builder::new().rcvbuf(256 << 10);
    /// let pool = Pool::new(&builder.clone().build()?.pool_config())?;
    /// let listener = builder.clone().pool(pool.clone()).bind("127.0.0.1:0")?;
    /// let worker = trespass::Worker::new(&builder.pool(pool.clone()).build()?)?;
    /// assert!(*worker.pool() == pool);
    /// # drop(listener);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        self.config.given_pool = Some(pool);
        self
    }

    /// For tests: streams have a shared receive queue too, each its own.
    #[doc(hidden)]
    #[must_use]
    pub fn __srq_alone(mut self, srq_alone: bool) -> Self {
        self.config.srq_alone = srq_alone;
        self
    }

    /// Bytes of a receive slot, and so of the longest frame: a power of two from 512 to 64 KiB. Start value: 8 KiB, or 4 KiB where
    /// connections [share](Self::srq) them. Over SoftRoCE, where a frame costs much, it is 16 KiB for a connection that begins by
    /// TCP, unless this, [`rx_slots`](Self::rx_slots), [`pool`](Self::pool) or [`srq`](Self::srq) was chosen, or what else was chosen
    /// leaves no room for it.
    #[must_use]
    pub fn slot_size(mut self, slot_size: u32) -> Self {
        self.slot_size = Some(slot_size);
        self
    }

    /// Receive slots of a connection: 16 to 32768. Times [`slot_size`](Self::slot_size) it is the memory of an idle connection, unless
    /// connections [share](Self::srq) them. Start value: 56, which with what the pool makes ahead is less than 512 KiB; over SoftRoCE, where
    /// [slots are larger](Self::slot_size), 28.
    #[must_use]
    pub fn rx_slots(mut self, rx_slots: u32) -> Self {
        self.config.rx_slots = rx_slots;
        self.config.slots_are_chosen = true;
        self
    }

    /// Bytes that the peer's program gets to know with the connection ([`Stream::peer_user_data`](crate::Stream::peer_user_data)): up to 1024.
    #[must_use]
    pub fn user_data(mut self, user_data: impl Into<Vec<u8>>) -> Self {
        self.config.user_data = user_data.into();
        self
    }

    /// Checks everything, with what the environment says.
    ///
    /// # Errors
    ///
    /// A parameter is out of its range, or does not go together with another, or a variable of the environment has a value that it cannot
    /// have.
    pub fn build(self) -> Result<Config, ConfigError> {
        let environment = Environment::of_process()?;
        if let Some(level) = environment.log {
            log::install(level);
        }
        self.build_in(&environment)
    }

    /// As [`Self::build`], in this environment.
    pub(crate) fn build_in(self, environment: &Environment) -> Result<Config, ConfigError> {
        let Self { mut config, device, eager_max, slot_size } = self;
        config.slots_are_chosen |= slot_size.is_some();
        config.slot_size =
            slot_size.unwrap_or(if config.srq { parameters::SHARED_SLOT } else { parameters::SLOT });
        config.eager_max = eager_max.unwrap_or_else(|| config.suitable_eager_max());
        config.device = device.map(|text| DeviceName::parse("device", &text)).transpose()?;
        if let Some(device) = &environment.device {
            config.device = Some(device.clone());
        }
        config.gid_index = environment.gid_index.or(config.gid_index);
        if let Some(policy) = environment.transport {
            config.policy = policy;
            config.policy_of_environment = true;
        }
        check::check(&config)?;
        Ok(config)
    }
}
