//! The flags of rdma-core's `ibv_*_pingpong` programs.

use std::time::Duration;

use sideway::ibverbs::connect::LocalPath;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::port::Mtu;
use sideway::ibverbs::queue_pair::QueuePairType;

use crate::devices::{self, DeviceArg};
use crate::program::{Failure, note};

/// The arguments of every ping-pong program.
#[derive(Clone, Debug, clap::Args)]
struct CommonArgs {
    /// The server's name or address; without it this side is the server.
    host: Option<String>,

    /// The TCP port for the exchange of addresses.
    #[arg(short, long, default_value_t = 18515, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    #[command(flatten)]
    device: DeviceArg,

    /// The device's port.
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,

    /// The service level.
    #[arg(short = 'l', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..16))]
    sl: u8,

    /// The index in the port's GID table [default: the GID with the widest reach]
    #[arg(short, long, value_name = "INDEX")]
    gid_idx: Option<u8>,

    /// Sleep until a completion arrives instead of polling.
    #[arg(short, long)]
    events: bool,

    /// Give up when nothing completes for this time, because the peer may be dead (0: never)
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u32,
}

/// The number of exchanges and receives, for all programs but `xsrq_pingpong`.
#[derive(Clone, Debug, clap::Args)]
struct ExchangeArgs {
    /// The number of receives to post at a time.
    #[arg(short, long, value_name = "DEPTH", default_value_t = 500)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MAX_DEPTH))]
    rx_depth: u32,

    /// The number of exchanges.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,

    /// Check the received data.
    #[arg(short, long)]
    chk: bool,
}

/// The message and the packets that the device cuts it into.
#[derive(Clone, Debug, clap::Args)]
struct MessageArgs {
    /// The size of the message, in bytes.
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,

    /// The path MTU: 256, 512, 1024, 2048 or 4096 bytes.
    #[arg(short, long, default_value = "1024", value_parser = mtu)]
    mtu: Mtu,
}

/// Exchanges a message over a reliable connection. Either side can be rdma-core's ibv_rc_pingpong.
#[derive(Clone, Debug, clap::Parser)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,

    #[command(flatten)]
    exchange: ExchangeArgs,

    #[command(flatten)]
    message: MessageArgs,

    /// Insist on posting with ibv_wr_*; the default where the device supports it.
    #[arg(short = 'N', long = "new_send")]
    new_send: bool,

    #[command(flatten)]
    unsupported: UnsupportedFlags,
}

/// Exchanges a message over an unreliable connection. Either side can be rdma-core's
/// ibv_uc_pingpong.
#[derive(Clone, Debug, clap::Parser)]
pub struct UcArgs {
    #[command(flatten)]
    common: CommonArgs,

    #[command(flatten)]
    exchange: ExchangeArgs,

    #[command(flatten)]
    message: MessageArgs,
}

/// Exchanges a datagram. Either side can be rdma-core's ibv_ud_pingpong.
#[derive(Clone, Debug, clap::Parser)]
pub struct UdArgs {
    #[command(flatten)]
    common: CommonArgs,

    #[command(flatten)]
    exchange: ExchangeArgs,

    /// The size of the datagram, in bytes. The C program has the same default, although its help
    /// text names another.
    #[arg(short, long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
}

/// Exchanges messages over many reliable connections that share a receive queue. Either side can be
/// rdma-core's ibv_srq_pingpong.
#[derive(Clone, Debug, clap::Parser)]
pub struct SrqArgs {
    #[command(flatten)]
    common: CommonArgs,

    #[command(flatten)]
    exchange: ExchangeArgs,

    #[command(flatten)]
    message: MessageArgs,

    /// The number of queue pairs.
    #[arg(short = 'q', long = "num-qp", value_name = "NUM", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MAX_PAIRS))]
    num_qp: u32,

    /// On-demand paging, which this program does not support
    #[arg(short, long, hide = true)]
    odp: bool,
}

/// Exchanges messages over extended reliable connections, between a server and its clients. Either
/// side can be rdma-core's ibv_xsrq_pingpong.
#[derive(Clone, Debug, clap::Parser)]
pub struct XsrqArgs {
    #[command(flatten)]
    common: CommonArgs,

    #[command(flatten)]
    message: MessageArgs,

    /// The number of clients that the server waits for.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_CLIENTS))]
    clients: u32,

    /// The number of exchanges with each client.
    #[arg(short = 'n', long = "num-tests", value_name = "ITERS", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    num_tests: u32,
}

/// Each client keeps a TCP connection to the server open.
const MAX_CLIENTS: i64 = 1000;

/// The limit of the C program.
pub(super) const MAX_PAIRS: i64 = 256;

/// The completion queue has one entry more, and its length must still fit in a C `int`.
const MAX_DEPTH: i64 = i32::MAX as i64 - 1;

/// Flags of the C program, which are parsed so that the error can name them.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Flags of ibv_rc_pingpong that this program does not support")]
struct UnsupportedFlags {
    /// On-demand paging.
    #[arg(short, long)]
    odp: bool,

    /// Implicit on-demand paging.
    #[arg(short = 'O', long)]
    iodp: bool,

    /// Prefetch for on-demand paging.
    #[arg(short = 'P', long)]
    prefetch: bool,

    /// Timestamps of completions.
    #[arg(short, long)]
    ts: bool,

    /// Device memory.
    #[arg(short = 'j', long)]
    dm: bool,

    /// Unprotected memory of confidential guests.
    #[arg(short = 'U', long)]
    allow_cc_unprotected: bool,
}

impl UnsupportedFlags {
    fn refuse(&self) -> Result<(), Failure> {
        let flags = [
            (self.odp, "-o (--odp)", "memory is always pinned"),
            (self.iodp, "-O (--iodp)", "memory is always pinned"),
            (self.prefetch, "-P (--prefetch)", "memory is always pinned"),
            (self.ts, "-t (--ts)", "only the whole run is timed"),
            (self.dm, "-j (--dm)", "the message is always in the host's memory"),
            (self.allow_cc_unprotected, "-U (--allow-cc-unprotected)", "all memory is protected"),
        ];
        match flags.iter().find(|(given, ..)| *given) {
            Some((_, flag, why)) => Err(Failure::setup(format_args!("{flag} is not supported: {why}"))),
            None => Ok(()),
        }
    }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let bytes = text.parse().ok().and_then(Mtu::from_bytes);
    bytes.ok_or_else(|| "it must be 256, 512, 1024, 2048 or 4096".to_owned())
}

/// The validated arguments, as far as they can be checked without a device.
#[derive(Clone, Debug)]
pub struct PingPongPlan {
    /// The server to connect to; `None` makes this side the server.
    pub host: Option<String>,
    /// The TCP port of the server.
    pub port: u16,
    /// The device's name.
    pub ib_dev: Option<String>,
    /// The device's port.
    pub ib_port: u8,
    /// The size of the message, in bytes.
    pub size: u32,
    /// The path MTU of a connection; `None` for datagrams.
    pub mtu: Option<Mtu>,
    /// The queue pairs' type.
    pub qp_type: QueuePairType,
    /// The number of queue pairs, or clients, that share a receive queue; 0 without a shared one.
    pub sharing: u32,
    /// The number of receives to post at a time.
    pub rx_depth: u32,
    /// The number of exchanges.
    pub iters: u32,
    /// The service level of packets (`-l`), 0 by default.
    pub service_level: u8,
    /// The index of the local GID.
    pub gid_index: Option<u8>,
    /// Whether to check the received data.
    pub check: bool,
    /// Whether to sleep until completions arrive.
    pub events: bool,
    /// Whether the queue pair must support `ibv_wr_*`.
    pub extended_only: bool,
    /// How long to wait for a completion.
    pub timeout: Option<Duration>,
}

impl TryFrom<Args> for PingPongPlan {
    type Error = Failure;

    fn try_from(args: Args) -> Result<Self, Failure> {
        args.unsupported.refuse()?;
        let qp_type = QueuePairType::ReliableConnection;
        let plan = Self::connected(args.common, &args.exchange, &args.message, qp_type);
        Ok(Self { extended_only: args.new_send, ..plan })
    }
}

impl From<UcArgs> for PingPongPlan {
    fn from(args: UcArgs) -> Self {
        Self::connected(args.common, &args.exchange, &args.message, QueuePairType::UnreliableConnection)
    }
}

impl From<UdArgs> for PingPongPlan {
    fn from(args: UdArgs) -> Self {
        Self::new(args.common, &args.exchange, args.size, None, QueuePairType::UnreliableDatagram)
    }
}

impl TryFrom<SrqArgs> for PingPongPlan {
    type Error = Failure;

    fn try_from(args: SrqArgs) -> Result<Self, Failure> {
        if args.odp {
            return Err(Failure::setup("-o (--odp) is not supported: memory is always pinned"));
        }
        let (depth, sharing) = (args.exchange.rx_depth, args.num_qp);
        if depth < sharing {
            return Err(Failure::setup(format_args!(
                "-r {depth}: {sharing} queue pairs (-q) need at least one receive each"
            )));
        }
        let qp_type = QueuePairType::ReliableConnection;
        Ok(Self { sharing, ..Self::connected(args.common, &args.exchange, &args.message, qp_type) })
    }
}

impl From<XsrqArgs> for PingPongPlan {
    fn from(XsrqArgs { common, message, clients, num_tests }: XsrqArgs) -> Self {
        let clients = if common.host.is_some() { 1 } else { clients };
        // Each client has at most one message on its way and one that is being answered.
        let exchange = ExchangeArgs { rx_depth: 2 * clients, iters: num_tests, chk: false };
        Self { sharing: clients, ..Self::connected(common, &exchange, &message, QueuePairType::XrcSend) }
    }
}

impl PingPongPlan {
    fn connected(
        common: CommonArgs,
        exchange: &ExchangeArgs,
        message: &MessageArgs,
        qp_type: QueuePairType,
    ) -> Self {
        Self::new(common, exchange, message.size, Some(message.mtu), qp_type)
    }

    fn new(
        common: CommonArgs,
        exchange: &ExchangeArgs,
        size: u32,
        mtu: Option<Mtu>,
        qp_type: QueuePairType,
    ) -> Self {
        // A long message needs more time even on a working connection: a second for each MiB.
        let seconds = u64::from(common.timeout) + u64::from(size >> 20);
        Self {
            host: common.host,
            port: common.port,
            ib_dev: common.device.ib_dev,
            ib_port: common.ib_port,
            size,
            mtu,
            qp_type,
            sharing: 0,
            rx_depth: exchange.rx_depth,
            iters: exchange.iters,
            service_level: common.sl,
            gid_index: common.gid_idx,
            check: exchange.chk,
            events: common.events,
            extended_only: false,
            timeout: (common.timeout > 0).then(|| Duration::from_secs(seconds)),
        }
    }
}

impl PingPongPlan {
    /// Opens the device, chooses port and address, and prints the choice with its reason.
    ///
    /// # Errors
    ///
    /// The device, port or address does not exist, or does not support the plan.
    pub fn open(&self) -> Result<(DeviceContext, LocalPath), Failure> {
        let list = devices::list()?;
        let context = devices::one(&list, self.ib_dev.as_deref())?.open()?;
        let path = LocalPath::choose(&context, self.ib_port, self.gid_index)?;
        self.check(&context, &path)?;
        note(format_args!("{}, port {}: {}", context.name(), path.port_num(), path.reason()));
        Ok((context, path))
    }

    /// Compares the plan with the limits of device and port.
    ///
    /// # Errors
    ///
    /// A queue, the message or its packets are too large.
    fn check(&self, context: &DeviceContext, path: &LocalPath) -> Result<(), Failure> {
        let (name, port) = (context.name(), path.port_num());
        let device = context.query_device()?;
        // One queue takes the completions of all receives, and of one send for each queue pair.
        let sends = i32::try_from(self.sharing.max(1))?;
        let receives = if self.sharing > 0 { device.max_srq_wr() } else { device.max_qp_wr() };
        let queues = [("receive", receives), ("completion", device.max_cqe().saturating_sub(sends))];
        for (queue, limit) in queues {
            if i64::from(self.rx_depth) > i64::from(limit) {
                return Err(Failure::setup(format_args!(
                    "-r {}: the {queue} queues of {name} have room for {limit}",
                    self.rx_depth
                )));
            }
        }
        let longest = context.query_port(port)?.max_msg_sz();
        if self.size > longest {
            return Err(Failure::setup(format_args!(
                "-s {}: the longest message of port {port} of {name} is {longest} bytes",
                self.size
            )));
        }
        let Some(mtu) = self.mtu else {
            return match path.mtu().bytes() {
                Some(most) if self.size > most => Err(Failure::setup(format_args!(
                    "-s {}: a datagram is one packet, of at most {most} bytes on port {port} of {name}",
                    self.size
                ))),
                _ => Ok(()),
            };
        };
        if mtu > path.mtu() {
            return Err(Failure::setup(format_args!(
                "-m {mtu}: the MTU of port {port} of {name} is {}; raise that of its network interface, or choose a smaller one",
                path.mtu()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program;

    fn plan(arguments: &str) -> Result<PingPongPlan, Failure> {
        program::parse::<Args>(["rc_pingpong"].into_iter().chain(arguments.split_whitespace()))?.try_into()
    }

    fn refusal(arguments: &str) -> String {
        match plan(arguments) {
            Err(Failure::Setup(reason)) => reason,
            other => panic!("{arguments}: {other:?}"),
        }
    }

    #[test]
    fn defaults_are_those_of_c() {
        let plan = plan("").unwrap();
        assert_eq!((plan.host, plan.port, plan.ib_dev, plan.ib_port), (None, 18515, None, 1));
        assert_eq!((plan.size, plan.mtu, plan.rx_depth, plan.iters), (4096, Some(Mtu::Mtu1024), 500, 1000));
        assert_eq!((plan.service_level, plan.gid_index, plan.check), (0, None, false));
        assert!(!plan.extended_only && !plan.events);
    }

    #[test]
    fn every_flag_is_heard_and_the_host_may_stand_anywhere() {
        let plan =
            plan("-p 1 -d rxe0 -i 2 -s 8 server -m 256 -r 7 -n 9 -l 3 -g 4 -c -e -N --timeout 5").unwrap();
        assert_eq!((plan.host.as_deref(), plan.port), (Some("server"), 1));
        assert_eq!((plan.ib_dev.as_deref(), plan.ib_port), (Some("rxe0"), 2));
        assert_eq!((plan.size, plan.mtu, plan.rx_depth, plan.iters), (8, Some(Mtu::Mtu256), 7, 9));
        assert_eq!((plan.service_level, plan.gid_index), (3, Some(4)));
        assert!(plan.check && plan.extended_only && plan.events);
        assert_eq!(plan.timeout, Some(Duration::from_secs(5)));
    }

    #[test]
    fn bad_values_are_refused_with_their_limits() {
        assert_eq!(refusal("-s 0"), "invalid value '0' for '--size <SIZE>': 0 is not in 1..=4294967295");
        assert_eq!(refusal("-n 0"), "invalid value '0' for '--iters <ITERS>': 0 is not in 1..=4294967295");
        assert_eq!(
            refusal("-m 1500"),
            "invalid value '1500' for '--mtu <MTU>': it must be 256, 512, 1024, 2048 or 4096"
        );
        assert!(refusal("-r 0").contains("0 is not in 1..="));
        assert!(refusal("-l 16").contains("16 is not in 0..16"));
        assert!(refusal("-i 0").contains("0 is not in 1..=255"));
        assert!(refusal("-p 65536").contains("65536 is not in 1..=65535"));
        assert!(refusal("-g 256").contains("256 is not in 0..=255"));
        assert!(refusal("one two").contains("unexpected argument 'two' found"));
    }

    #[test]
    fn unsupported_flags_are_refused_by_name() {
        for flag in ["-o", "-O", "-P", "-t", "-j", "-U", "--allow-cc-unprotected"] {
            let reason = refusal(flag);
            assert!(reason.contains(flag) && reason.contains(" is not supported: "), "{flag}: {reason}");
        }
    }

    #[test]
    fn no_timeout_means_for_ever_and_long_messages_get_more() {
        assert_eq!(plan("--timeout 0").unwrap().timeout, None);
        assert_eq!(plan("--timeout 1 -s 3145728").unwrap().timeout, Some(Duration::from_secs(4)));
    }

    #[test]
    fn the_others_have_flags_of_their_own() {
        fn parse<A: clap::Parser>(arguments: &str) -> Result<A, Failure> {
            program::parse(["pingpong"].into_iter().chain(arguments.split_whitespace()))
        }
        let plan = PingPongPlan::from(parse::<UdArgs>("").unwrap());
        assert_eq!((plan.size, plan.mtu, plan.qp_type), (1024, None, QueuePairType::UnreliableDatagram));
        assert!(matches!(parse::<UdArgs>("-m 256"), Err(Failure::Setup(reason)) if reason.contains("'-m'")));
        let plan = PingPongPlan::from(parse::<UcArgs>("-m 256").unwrap());
        assert_eq!((plan.mtu, plan.qp_type), (Some(Mtu::Mtu256), QueuePairType::UnreliableConnection));
        let plan = PingPongPlan::try_from(parse::<SrqArgs>("-q 3 -r 3").unwrap()).unwrap();
        assert_eq!((plan.sharing, plan.rx_depth), (3, 3));
        assert_eq!(PingPongPlan::try_from(parse::<SrqArgs>("").unwrap()).unwrap().sharing, 16);
        for (arguments, words) in [("-r 15", "-r 15: 16 queue pairs"), ("-o", "-o (--odp) is not supported")]
        {
            let refused = PingPongPlan::try_from(parse::<SrqArgs>(arguments).unwrap());
            assert!(matches!(refused, Err(Failure::Setup(reason)) if reason.starts_with(words)));
        }
        assert!(parse::<SrqArgs>("-q 257").is_err());
        let plan = PingPongPlan::from(parse::<XsrqArgs>("").unwrap());
        assert_eq!((plan.size, plan.mtu, plan.iters), (4096, Some(Mtu::Mtu1024), 5));
        assert_eq!((plan.sharing, plan.rx_depth), (1, 2));
        let plan = PingPongPlan::from(parse::<XsrqArgs>("-c 3 -n 7").unwrap());
        assert_eq!((plan.sharing, plan.rx_depth, plan.iters), (3, 6, 7));
        assert_eq!(PingPongPlan::from(parse::<XsrqArgs>("-c 3 server").unwrap()).sharing, 1);
        assert!(parse::<XsrqArgs>("-c 0").is_err());
    }
}
