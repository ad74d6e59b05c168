//! The builder of a configuration: one method for each parameter, and `build`, which checks them.

use std::time::Duration;

use super::environment::{DeviceName, Environment};
use super::parameters::{self, Bootstrap, Config};
use super::{ConfigError, check, log};
use crate::pool::Pool;
use crate::wire::Policy;

/// All parameters of connections and listeners. The defaults suit most programs.
///
/// [`build`](Self::build) refuses an invalid configuration: the error names the parameter, its
/// value, the bound, and what to do.
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
/// Environment variables override the program: `TRESPASS_DEV` (`NAME` or `NAME:PORT`, or several of
/// them separated by commas), `TRESPASS_GID_INDEX`, `TRESPASS_TRANSPORT` (`auto`, `rdma` or `tcp`),
/// `TRESPASS_PROBE_TIMEOUT` (milliseconds; it raises
/// [`handshake_deadline`](Self::handshake_deadline) to twice that), `TRESPASS_CONTROL_KEEPALIVE`
/// (milliseconds; 0 is `None`) and `TRESPASS_EXIT_TIMEOUT` (milliseconds).
/// `TRESPASS_LOG` (`off`, `error`, `warn`, `info`, `debug` or `trace`) writes log events to standard
/// error, unless the program has set a `tracing` subscriber. An invalid value is an error too.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    config: Config,
    device: Option<String>,
    devices: Option<String>,
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
    /// Whether all connections of a [`Worker`](crate::Worker) receive from one shared receive
    /// queue. Default: no.
    ///
    /// A connection then starts with 5 receive slots, reserved while it exists: 20 KiB at the 4 KiB
    /// slots that [`slot_size`](Self::slot_size) then defaults to. While its peer has more to send,
    /// it gets more, up to [`rx_slots`](Self::rx_slots) and the queue's free slots. It does not get
    /// unused ones again. No peer is told of a slot that is not posted. With a full queue, peers
    /// that send much wait, and peers that send little do not.
    ///
    /// Use it for many connections of which few are active. A connection with all of its slots is
    /// faster at first. The peer's setting is independent. A peer that breaks the protocol may
    /// consume slots that were announced to others. Its connection then ends, and the devices of
    /// the others retransmit ([`rnr_retry`](Self::rnr_retry)).
    ///
    /// A [`Stream`](crate::Stream) and a [`SeqPacket`](crate::SeqPacket) own all their slots from
    /// the start: otherwise a thread that has both ends could not write before it reads. TCP
    /// ignores this parameter. [`Bootstrap::RdmaCm`] refuses it.
    srq: bool;
    /// Slots of a shared receive queue: 64 to 1048576, or the device's limit. A worker accepts at
    /// most a fifth as many connections, or half of that while other connections use much more. Any
    /// further connection uses TCP if its policy allows it. The pool reserves memory for all slots.
    /// Default: 16384.
    srq_size: u32;
    /// Slots of the peer that only control frames use: 2 to a quarter of
    /// [`rx_slots`](Self::rx_slots). Default: 2.
    reserve: u32;
    /// The maximum length of a message in bytes, in both directions: up to 1 GiB, the default.
    max_msg: u64;
    /// Bytes that are received before the program reads them. The peer waits beyond that. Default:
    /// 1 MiB.
    rcvbuf: usize;
    /// Bytes that a program can write or send by copying, and that wait to be sent or, over RDMA, to
    /// be READ by the peer. A write takes what fits. A message is refused, or waits, until all of it
    /// fits or nothing is before it. Lent blocks do not count. The pool's memory for these bytes is
    /// at most twice as much, 32 slots and a block of 256 KiB. That is the limit for messages below
    /// 8 bytes, and for short ones without [`coalescing`](Self::coalescing). Default: 1 MiB.
    sndbuf: usize;
    /// Whether short messages share a frame while other frames are in flight. Default: yes.
    coalescing: bool;
    /// Whether immediate data replaces the header of a data frame, so that the header uses no
    /// payload bytes. Not used over iWARP, which has no immediate data. Default: yes.
    immediate: bool;
    /// Bytes up to which a frame is sent as inline data (`IBV_SEND_INLINE`), which the device need
    /// not fetch. A device with a smaller limit lowers it. A frame has a header of 16 bytes, unless
    /// that is in [immediate data](Self::immediate). Default: 272.
    inline: u32;
    /// Whether the receiver may READ long messages from the sender's memory. Default: yes.
    rendezvous: bool;
    /// Long messages that wait to be read at a time: 1 to 1024. Default: 16.
    max_rts: u16;
    /// RDMA READs in flight in each direction, or the device's limit. SoftRoCE loses READ data when
    /// packets are lost, except in Linux 6.1. With any other kernel its long messages go in frames,
    /// as without [`rendezvous`](Self::rendezvous). Default: 16.
    rd_atomic: u8;
    /// Bytes of one RDMA READ: a multiple of 4 KiB up to 1 MiB, the default. Over several devices an
    /// eighth of that, or 64 KiB if that is longer.
    read_piece: u32;
    /// Bytes of the pieces into which a long unregistered message is copied: a power of two, at
    /// least [`slot_size`](Self::slot_size) and 4 KiB, at most 1 MiB. Default: 256 KiB.
    staged_block: u32;
    /// Bytes of adopted memory ([`Pool::adopt`]) that stay registered while they are not in use.
    /// Beyond it the least recently sent memory is deregistered, and registered again for its next
    /// send. Default: 64 MiB.
    registrations: usize;
    /// Bytes that the pool allocates at first. Default: 64 MiB.
    pool_initial: usize;
    /// Bytes of [`pool_initial`](Self::pool_initial) that are touched and registered before use.
    /// Default: 4 MiB.
    pool_prewarm: usize;
    /// The maximum size of the pool in bytes. Each device with connections has a pool. (A device
    /// that refuses to register memory adds at most as much unregistered memory.) With an empty
    /// pool, senders wait. A part is reserved for receiving: enough for both ends of a connection,
    /// and at least an eighth.
    ///
    /// The minimum is 22 MiB at the defaults, and never less than 8 MiB. It grows with
    /// [`rcvbuf`](Self::rcvbuf), [`sndbuf`](Self::sndbuf) and [`rx_slots`](Self::rx_slots).
    /// Default: 1 GiB.
    pool_max: usize;
    /// The percentage of [`pool_max`](Self::pool_max) at which the pool logs a warning: 1 to 100.
    /// Default: 80.
    pool_high_water: u8;
    /// Whether the pool asks for huge pages. Default: no.
    huge_pages: bool;
    /// Whether RDMA may, must or must not be used. `TRESPASS_TRANSPORT` overrides it. Default:
    /// [`Policy::Auto`].
    policy: Policy;
    /// How connections begin. With [`Bootstrap::RdmaCm`] the route determines the device, port and
    /// GID, so setting them is refused. Each connection, also of a [`Worker`](crate::Worker), then
    /// has its own completion queue and receives. Default: [`Bootstrap::Tcp`].
    bootstrap: Bootstrap;
    /// The index in the port's GID table. `None` uses the entry of the socket's address.
    /// `TRESPASS_GID_INDEX` overrides it.
    gid_index: Option<u8>;
    /// The path MTU in bytes: 256, 512, 1024, 2048 or 4096. `None` uses the smaller of both ports'
    /// MTUs.
    path_mtu: Option<u16>;
    /// The traffic class. Its upper six bits are the DSCP. Default: 0.
    traffic_class: u8;
    /// The InfiniBand service level, or the RoCE priority: 0 to 15. Default: 0.
    service_level: u8;
    /// The hop limit of packets: at least 1. Default: 64.
    hop_limit: u8;
    /// How long the device waits for an acknowledgement, in the verbs encoding: 4.096 us times 2 to
    /// this power, 1 to
    /// 22. Default: 14 (67 ms).
    ack_timeout: u8;
    /// Bytes that pass before a connection adds the queue pairs of its further devices
    /// ([`devices`](Self::devices)), so that a short connection has one. The client's value counts, for
    /// the bytes of both directions. Default: 256 KiB.
    rails_after: u64;
    /// How long a request of a connection over several devices may take until its path counts as
    /// failed, although the device has reported nothing: 10 ms to 1 hour. It must be longer than the
    /// device's own retries ([`ack_timeout`](Self::ack_timeout), [`retry_count`](Self::retry_count)).
    /// Twice the time of [`keepalive`](Self::keepalive) counts instead, if that is shorter. Default:
    /// 3 s.
    rail_timeout: Duration;
    /// How often the device retransmits: 0 to 7. Default: 7.
    retry_count: u8;
    /// How often the device retries after an RNR NAK: 0 to 7, where 7 is without limit. In normal
    /// operation no RNR NAK occurs. Default: 7.
    rnr_retry: u8;
    /// The delay that an RNR NAK asks for, in the verbs encoding: 0 to 31. Default: 12 (0.64 ms).
    min_rnr_timer: u8;
    /// How long the RDMA path is probed before TCP is used: at least 1 ms, and less than
    /// [`handshake_deadline`](Self::handshake_deadline). Default: 300 ms. The time counts while both
    /// sides attend. A side whose program or machine is busy is waited for, up to three quarters of
    /// the handshake's time.
    probe_timeout: Duration;
    /// The time limit of a handshake: 10 ms to 10 minutes. Default: 5 s.
    handshake_deadline: Duration;
    /// How long the written bytes of a dropped connection are still sent: up to an hour. Default:
    /// 10 s.
    linger: Duration;
    /// How long a return from `main` and `exit` wait until the written bytes of all connections together
    /// are sent: 0 to an hour. If connections differ, the longest time counts, also one of a connection
    /// that is gone. Later bytes are lost, and a line on standard error has the number of connections
    /// that had some, or a reset. `TRESPASS_EXIT_TIMEOUT` overrides it. Default: 10 s.
    exit_timeout: Duration;
    /// How long a connection is silent before a keepalive probe: 100 ms to a day. The probe has the same
    /// time to be answered, so that a path that has become silent is noticed after two to three times
    /// this time. A program that must know earlier sets a read timeout. `None` sends none. Default: 5 s.
    keepalive: Option<Duration>;
    /// The interval at which a connection over RDMA sends a byte on the TCP connection that it began
    /// with: 100 ms to an hour. A proxy, a firewall or an address translator ends a TCP connection
    /// that is silent, and the connection over RDMA ends with it. The service thread sends the byte
    /// up to a second early, whatever the program does. As over TCP, the connection ends if nobody
    /// acknowledges the byte for many minutes. With `None` on either side, neither side sends any.
    /// Over TCP this parameter has no effect. `TRESPASS_CONTROL_KEEPALIVE` overrides it. Default:
    /// 25 s.
    control_keepalive: Option<Duration>;
    /// How long a waiting call polls for completions before it sleeps: 0 to 1 s. Each completion
    /// restarts the time. While it polls, it lets other threads run every 10 us. A connection adapts
    /// within this limit: after long waits it soon sleeps at once. Default: 200 us, or zero if the
    /// process may use one processor only. Over TCP, threads sleep at once. A
    /// [`Worker`](crate::Worker) uses [`worker_spin`](Self::worker_spin).
    spin: Duration;
    /// How long a [`Worker`](crate::Worker) polls before it sleeps: up to an hour, for a thread
    /// with a processor of its own. Each event restarts the time. It does not adapt, and applies
    /// over TCP too. While it polls, completions make no event, and it asks the system now and
    /// then; so does a poll that does not wait. A worker whose descriptor the program holds does
    /// not spin. Default: zero.
    worker_spin: Duration;
    /// The interval at which a connection logs its statistics, as DEBUG events: at least 1 s. `None`
    /// logs none. If the subscriber takes them when the program gets the connection, calls are timed:
    /// those that send or receive, and operations on [windows](crate::window). The log then also has
    /// the number, the bytes and the percentiles of each kind ([`Stats::sends`](crate::Stats::sends),
    /// [`Windows::stats`](crate::window::Windows::stats)). A timed call reads the clock twice.
    /// Default: 20 s.
    trace_interval: Option<Duration>;
    /// The port at which [`bind_configured`](Self::bind_configured) listens; 0 lets the system choose
    /// one. Default: 59999.
    port: u16;
    /// The backlog of a listener: 1 to 65535. The system may lower it, and connections that wait to
    /// be accepted are at most an eighth of the process's limit of descriptors. Other clients wait.
    /// When the backlog has been full for a second, they are told
    /// ([`RejectReason::Busy`](crate::RejectReason::Busy)), and connect again until their
    /// [`handshake_deadline`](Self::handshake_deadline). A [`Worker`](crate::Worker) takes all
    /// clients, and has only the system's backlog. With [`Bootstrap::RdmaCm`] that one is as long as
    /// the system allows: 1024 in Linux, unless `net.rdma_ucm.max_backlog` says otherwise.
    /// Default: 1024.
    backlog: u32;
    /// How long a listener retries while its port is in use: up to an hour. Default: zero.
    bind_patience: Duration;
    /// Whether several listeners or workers, of one process or several, may listen on one port
    /// (`SO_REUSEPORT`). The system spreads the clients over them. A client in the backlog
    /// of one listener waits for that one. It has no effect on Windows and with
    /// [`Bootstrap::RdmaCm`]. Default: no.
    reuse_port: bool;
    /// Whether a listener also takes clients of plain TCP, whose first bytes are of another protocol:
    /// [`Listener::accept_any`](crate::Listener::accept_any) returns them with these bytes unread. So a
    /// service moves to this crate before its clients do. A client that waits for the server's first
    /// bytes sends none, and is refused. One beyond a [backlog](Self::backlog) that has been full for a
    /// second is reset. It has no effect with [`Policy::RequireRdma`](crate::Policy),
    /// [`Bootstrap::RdmaCm`] and a [`Worker`](crate::Worker). Default: no.
    plain_tcp: bool;
}

impl Builder {
    /// All defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The only device, `NAME` or `NAME:PORT`, instead of the one with the socket's address and
    /// others beside it. It replaces [`devices`](Self::devices). `TRESPASS_DEV` overrides it.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        (self.device, self.devices) = (Some(device.into()), None);
        self
    }

    /// The devices, each `NAME` or `NAME:PORT`, that a connection uses, at most eight. It begins with
    /// the one with the socket's address if it is among them, else with the first that can be used. It
    /// adds the others after [`rails_after`](Self::rails_after) bytes if the peer also has several
    /// devices, and goes on without those that fail. With [`Bootstrap::RdmaCm`], in a
    /// [`Worker`](crate::Worker), with [`srq`](Self::srq) and with more than 4096
    /// [`rx_slots`](Self::rx_slots), it uses the first alone.
    ///
    /// An item may also have several, separated by commas. None may be named twice. An empty list
    /// leaves the choice to the socket's address. A connection then uses one device, as with a list of
    /// one. It replaces [`device`](Self::device). `TRESPASS_DEV`
    /// overrides it.
    ///
    /// ```
    /// use trespass::Builder;
    ///
    /// let config = Builder::new().devices(["mlx5_0:1", "mlx5_1:1"]).build()?;
    /// let of_a_file = Builder::new().devices(["mlx5_0:1,mlx5_1:1"]).build()?;
    /// assert_eq!(config, of_a_file);
    ///
    /// let error = Builder::new().devices(["mlx5_0:1", "mlx5_0"]).build().unwrap_err();
    /// assert!(error.to_string().contains("leave out mlx5_0, since mlx5_0:1 is named before it"));
    /// # Ok::<(), trespass::ConfigError>(())
    /// ```
    #[must_use]
    pub fn devices(mut self, devices: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let items: Vec<_> = devices.into_iter().collect();
        let list = items.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(",");
        (self.device, self.devices) = (None, (!items.is_empty()).then_some(list));
        self
    }

    /// The host, a name or an IP address, at which [`bind_configured`](Self::bind_configured) listens,
    /// and from which a client connects. A wildcard address (`0.0.0.0`, `::`) leaves a client's address
    /// to the system's routes. A name is looked up for each connect. Not together with
    /// [`bind_interface`](Self::bind_interface). Default: none.
    #[must_use]
    pub fn bind_host(mut self, host: impl Into<String>) -> Self {
        self.config.bind_host = Some(host.into());
        self
    }

    /// The network interface, such as `ib0`, at whose address
    /// [`bind_configured`](Self::bind_configured) listens, and from which a client connects. With IP
    /// over InfiniBand this also names the device ([`device`](Self::device)). A listener prefers an
    /// IPv4 address, then one that is not link-local; a client needs one of the peer's family. Not
    /// together with [`bind_host`](Self::bind_host). Default: none.
    #[must_use]
    pub fn bind_interface(mut self, interface: impl Into<String>) -> Self {
        self.config.bind_interface = Some(interface.into());
        self
    }

    /// The host, a name or an IP address, that a listener tells its clients
    /// ([`Listener::advertised_addr`](crate::Listener::advertised_addr)). Set it where the clients'
    /// name for this host is another one than the system's. Default: the address of the listener, or
    /// the system's host name if it listens at all addresses.
    #[must_use]
    pub fn hostname(mut self, hostname: impl Into<String>) -> Self {
        self.config.hostname = Some(hostname.into());
        self
    }

    /// Bytes above which the receiver may READ a message, or bytes of a stream, from the sender's
    /// memory, over RDMA. It does if they do not fit its free receives either, or if they are lent. The
    /// lower value of both sides counts. Default: 16 KiB, or a slot's payload if that is more.
    #[must_use]
    pub fn eager_max(mut self, eager_max: u32) -> Self {
        self.eager_max = Some(eager_max);
        self
    }

    /// Uses a pool of the program, which several listeners, workers and connections can share
    /// although their configurations differ. Make it with the values of [`Config::pool_config`] or
    /// larger ones. The pool parameters of this builder then have no effect. Without this call,
    /// connections of the process with equal pool parameters share a pool.
    ///
    /// ```
    /// use trespass::{Builder, Pool};
    ///
    /// let builder = Builder::new().rcvbuf(256 << 10);
    /// let pool = Pool::new(&builder.clone().build()?.pool_config())?;
    /// let listener = builder.clone().pool(pool.clone()).bind("127.0.0.1:0")?;
    /// let worker = trespass::Worker::new(&builder.pool(pool.clone()).build()?)?;
    /// assert!(worker.pool() == pool);
    /// # drop(listener);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        self.config.given_pool = Some(pool);
        self
    }

    /// For tests: how long a rail stays out after its first failure.
    #[doc(hidden)]
    #[must_use]
    pub fn __rail_backoff(mut self, rail_backoff: Duration) -> Self {
        self.config.rail_backoff = rail_backoff;
        self
    }

    /// For tests: each stream has a shared receive queue for itself.
    #[doc(hidden)]
    #[must_use]
    pub fn __srq_alone(mut self, srq_alone: bool) -> Self {
        self.config.srq_alone = srq_alone;
        self
    }

    /// Bytes of a receive slot, which is the maximum frame: a power of two from 512 to 64 KiB.
    /// Default: 8 KiB, or 4 KiB with a [shared receive queue](Self::srq). A connection that begins
    /// over TCP and runs over SoftRoCE, where each frame is expensive, uses 16 KiB. It keeps the
    /// default if this, [`rx_slots`](Self::rx_slots), [`pool`](Self::pool) or [`srq`](Self::srq)
    /// was set, or if another parameter rules out larger slots.
    #[must_use]
    pub fn slot_size(mut self, slot_size: u32) -> Self {
        self.slot_size = Some(slot_size);
        self
    }

    /// Receive slots of a connection: 16 to 32768. Times [`slot_size`](Self::slot_size), it is the
    /// memory of an idle connection without a [shared receive queue](Self::srq). Default: 56, for
    /// less than 512 KiB with the pool's reserve; 28 over SoftRoCE, where [slots are
    /// larger](Self::slot_size). By default connections above the 64th of a process begin with 12,
    /// and get more when their peers send much. Over several [`devices`](Self::devices), each in use
    /// has them.
    #[must_use]
    pub fn rx_slots(mut self, rx_slots: u32) -> Self {
        self.config.rx_slots = rx_slots;
        self.config.slots_are_chosen = true;
        self
    }

    /// Bytes for the peer's program ([`Stream::peer_user_data`](crate::Stream::peer_user_data)): up
    /// to 1024.
    #[must_use]
    pub fn user_data(mut self, user_data: impl Into<Vec<u8>>) -> Self {
        self.config.user_data = user_data.into();
        self
    }

    /// Checks all parameters and the environment.
    ///
    /// # Errors
    ///
    /// A parameter is out of its range or conflicts with another, or an environment variable has an
    /// invalid value.
    pub fn build(self) -> Result<Config, ConfigError> {
        let environment = Environment::of_process()?;
        if let Some(level) = environment.log {
            log::install(level);
        }
        self.build_in(&environment)
    }

    /// [`Self::build`] with the given environment.
    pub(crate) fn build_in(self, environment: &Environment) -> Result<Config, ConfigError> {
        let Self { mut config, device, devices, eager_max, slot_size } = self;
        config.slots_are_chosen |= slot_size.is_some();
        config.slot_size =
            slot_size.unwrap_or(if config.srq { parameters::SHARED_SLOT } else { parameters::SLOT });
        config.eager_max = eager_max.unwrap_or_else(|| config.suitable_eager_max());
        if let Some(text) = device {
            config.devices = vec![DeviceName::parse("device", &text)?];
        } else if let Some(text) = devices {
            config.devices = DeviceName::parse_list("devices", &text)?;
        }
        if !environment.devices.is_empty() {
            config.devices.clone_from(&environment.devices);
        }
        config.gid_index = environment.gid_index.or(config.gid_index);
        if let Some(policy) = environment.transport {
            config.policy = policy;
            config.policy_of_environment = true;
        }
        if let Some(timeout) = environment.probe_timeout {
            config.probe_timeout = timeout;
            config.handshake_deadline =
                config.handshake_deadline.max(2 * timeout).min(parameters::LONGEST_HANDSHAKE);
        }
        if let Some(interval) = environment.control_keepalive {
            config.control_keepalive = Some(interval).filter(|interval| !interval.is_zero());
        }
        config.exit_timeout = environment.exit_timeout.unwrap_or(config.exit_timeout);
        check::check(&config)?;
        Ok(config)
    }
}
