//! Unix sockets of type SEQPACKET, for packets and the file descriptors that travel with them.
//!
//! They are Unix sockets with abstract names: they leave no file behind, and the kernel frees a
//! name with its last user. No call waits, and none raises SIGPIPE.
//!
//! Any user may connect to such a name, or bind it, and send descriptors. This process neither
//! receives nor closes those of a stranger, because closing one may take as long as the stranger
//! wants ([`file_table`]). Where the kernel has `SO_PASSRIGHTS` (6.16), strangers cannot send any.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::file_table;
use super::fork::ForkSafeFd;

/// One end of a connection, or a listening socket.
#[derive(Debug)]
pub(crate) struct Socket {
    file: ManuallyDrop<ForkSafeFd>,
    holds: Strange,
}

/// What strangers may have left in a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strange {
    Nothing,
    /// Descriptors, in packets that were not read.
    Descriptors,
    /// Connections that were not accepted, with descriptors.
    Connections,
}

/// The option of a socket that lets descriptors come. Missing in `libc`.
const SO_PASSRIGHTS: libc::c_int = 83;

/// For tests: behave as on a kernel without `SO_PASSRIGHTS`.
#[cfg(test)]
pub(crate) static WITHOUT_PASSRIGHTS: core::sync::atomic::AtomicBool =
    core::sync::atomic::AtomicBool::new(false);

fn has_passrights() -> bool {
    #[cfg(test)]
    if WITHOUT_PASSRIGHTS.load(core::sync::atomic::Ordering::Relaxed) {
        return false;
    }
    true
}

/// Lets descriptors come, or not. False if the kernel lacks the option, and descriptors come.
fn pass_descriptors(socket: BorrowedFd<'_>, pass: bool) -> bool {
    let value = libc::c_int::from(pass);
    let (place, len) = ((&raw const value).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the value has the stated length.
    has_passrights()
        && unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, place, len) } == 0
}

/// Whether descriptors have come or may come. An accepted connection has the option of its listener
/// since the peer connected, so none has come if it is off.
fn passes_descriptors(socket: BorrowedFd<'_>) -> bool {
    let (mut value, mut len): (libc::c_int, _) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the place for the answer has the stated length.
    let failed = unsafe {
        let place = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, place, &raw mut len)
    };
    !has_passrights() || failed != 0 || value != 0
}

/// The identity of the process at the other end, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: u32,
    /// 0 if the process has no number in this process's pid namespace.
    pub(crate) pid: u32,
}

/// The most descriptors that come with a packet.
const MOST_FILES: usize = 3;

/// The descriptors that came with a packet.
pub(crate) type ReceivedFiles = ArrayVec<OwnedFd, MOST_FILES>;

/// The result of receiving one packet.
#[derive(Debug)]
pub(crate) enum Received {
    /// A packet of this many bytes. Bytes beyond the buffer are cut off.
    Packet(usize, ReceivedFiles),
    Nothing,
    /// The other end is closed. (An empty packet looks the same; peers send none.)
    End,
}

/// The result of receiving several packets.
#[derive(Debug)]
pub(crate) enum ReceivedMany {
    /// The number of packets, at least one. An empty packet marks the end.
    Packets(usize),
    Nothing,
    /// See [`Received::End`].
    End,
}

/// The most packets that one call receives.
pub(crate) const MANY: usize = 8;

/// Buffers for [`MANY`] packets of up to `LONGEST` bytes. Longer packets are cut off.
#[derive(Debug)]
pub(crate) struct ReceiveBuffers<const LONGEST: usize> {
    packets: [[u8; LONGEST]; MANY],
    lengths: [usize; MANY],
}

impl<const LONGEST: usize> ReceiveBuffers<LONGEST> {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self { packets: [[0; LONGEST]; MANY], lengths: [0; MANY] })
    }

    /// One of the packets that the last call received.
    pub(crate) fn packet(&self, index: usize) -> &[u8] {
        &self.packets[index][..self.lengths[index]]
    }

    /// Receives packets and returns their number.
    fn fill(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let mut parts = self
            .packets
            .each_mut()
            .map(|packet| libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: LONGEST });
        // SAFETY: a struct of integers and pointers, for which zero is valid; some systems add
        // fields.
        let mut messages: [libc::mmsghdr; MANY] = unsafe { core::mem::zeroed() };
        for (message, part) in messages.iter_mut().zip(&mut parts) {
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        }
        let (messages_at, none) = (messages.as_mut_ptr(), core::ptr::null_mut());
        // SAFETY: the call gets `MANY` messages of one part each. Each part has its buffer's
        // length, belongs to this struct alone, and outlives the call.
        let count = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), messages_at, MANY as _, libc::MSG_DONTWAIT as _, none)
        };
        let count = usize::try_from(count)
            .map_err(|_| rustix::io::Errno::from_io_error(&io::Error::last_os_error()))
            .map_err(|error| error.unwrap_or(rustix::io::Errno::AGAIN))?;
        for (length, message) in self.lengths.iter_mut().zip(&messages[..count.min(MANY)]) {
            *length = (message.msg_len as usize).min(LONGEST);
        }
        Ok(count.min(MANY))
    }
}

impl Socket {
    /// A socket to which `strange` applies, unless the kernel keeps strangers' descriptors away.
    fn new(strange: Strange) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let file = ForkSafeFd::open(open)?;
        let holds = if pass_descriptors(file.as_fd(), false) { Strange::Nothing } else { strange };
        Ok(Self { file: ManuallyDrop::new(file), holds })
    }

    /// One that no stranger reaches.
    fn private(file: OwnedFd) -> io::Result<Self> {
        let file = ForkSafeFd::open(|| Ok(file))?;
        Ok(Self { file: ManuallyDrop::new(file), holds: Strange::Nothing })
    }

    /// Refuses a further socket while too many of strangers' wait to be closed.
    fn check_closer() -> io::Result<()> {
        let message = "too many connections of other users are being closed";
        let error = || io::Error::new(io::ErrorKind::ResourceBusy, message);
        if file_table::is_full() { Err(error()) } else { Ok(()) }
    }

    /// Binds a name and listens on it.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another socket has the name.
    pub(crate) fn listen(name: &[u8]) -> io::Result<Self> {
        let socket = Self::new(Strange::Connections)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        rustix::net::listen(&socket, 128)?;
        Ok(socket)
    }

    /// Connects to the socket with this name.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if no socket has the name, `WouldBlock` if its backlog is full.
    pub(crate) fn connect(name: &[u8]) -> io::Result<Self> {
        Self::check_closer()?;
        let socket = Self::new(Strange::Descriptors)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        Ok(socket)
    }

    /// Creates both ends of a connection within this process.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub(crate) fn both_ends() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::private(one)?, Self::private(other)?))
    }

    /// Whether the descriptor is still open: a program may close numbers that it does not own.
    pub(crate) fn is_there(&self) -> bool {
        self.file.is_there()
    }

    /// A connection whose other end the caller holds. It also works under Miri, which knows no
    /// other kind.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn pair() -> io::Result<(Self, std::os::unix::net::UnixStream)> {
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        one.set_nonblocking(true)?;
        Ok((Self::private(one.into())?, other))
    }

    /// Accepts the next connection on a listening socket.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if none is pending.
    pub(crate) fn accept(&self) -> io::Result<Self> {
        Self::check_closer()?;
        self.accept_any()
    }

    fn accept_any(&self) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let file = ForkSafeFd::open(|| rustix::net::accept_with(self.file.get()?, flags))?;
        let holds = if passes_descriptors(file.as_fd()) { Strange::Descriptors } else { Strange::Nothing };
        Ok(Self { file: ManuallyDrop::new(file), holds })
    }

    /// The identity of the peer, if it is a process of this user, which is no stranger then.
    ///
    /// # Errors
    ///
    /// The identity of a stranger; `None` if the kernel does not report it.
    pub(crate) fn peer_of(&mut self, user: Option<u32>) -> Result<Credentials, Option<Credentials>> {
        let who = self.credentials().map_err(|_| None)?;
        if user != Some(who.user) {
            return Err(Some(who));
        }
        self.holds = Strange::Nothing;
        Ok(who)
    }

    /// Lets the peer, which is a process of this user, send descriptors.
    pub(crate) fn take_descriptors(&self) {
        debug_assert_eq!(self.holds, Strange::Nothing, "strangers send none");
        pass_descriptors(self.as_fd(), true);
    }

    /// The identity of the peer: the process that connected, or that listens on the name.
    fn credentials(&self) -> io::Result<Credentials> {
        // Not rustix's call, because its process number cannot be 0 and the kernel's can.
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the place for the answer has the stated length.
        let failed = unsafe {
            libc::getsockopt(
                self.file.get()?.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Credentials { user: found.uid, pid: u32::try_from(found.pid).unwrap_or(0) })
    }

    /// A pidfd of the process that connected, which becomes readable when that process has ended,
    /// whatever its number here; `None` if the kernel lacks the option (before 6.5), or if the
    /// process has ended and was waited for.
    pub(crate) fn peer_process(&self) -> Option<ForkSafeFd> {
        /// Missing in `libc` for some targets.
        const SO_PEERPIDFD: libc::c_int = 77;
        let open = || {
            let (mut file, mut len): (libc::c_int, _) = (-1, size_of::<libc::c_int>() as libc::socklen_t);
            let socket = self.file.get()?.as_raw_fd();
            // SAFETY: the place for the answer has the stated length.
            let failed = unsafe {
                libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut file).cast(), &raw mut len)
            };
            if failed != 0 || file < 0 {
                return Err(rustix::io::Errno::NOTSUP);
            }
            // SAFETY: the kernel just created the descriptor for this process, so this is its only
            // owner. The kernel sets close-on-exec for it.
            Ok(unsafe { OwnedFd::from_raw_fd(file) })
        };
        ForkSafeFd::open(open).ok()
    }

    /// Sends a packet if the socket's buffer has room.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it has none, others if the connection is closed.
    pub(crate) fn send(&self, packet: &[u8]) -> io::Result<()> {
        if cfg!(miri) {
            rustix::io::write(self.file.get()?, packet)?;
        } else {
            rustix::net::send(self.file.get()?, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Sends a packet and at most two descriptors.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub(crate) fn send_with(&self, packet: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits = control.push(SendAncillaryMessage::ScmRights(files));
        debug_assert!(fits, "no caller has more files");
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(self.file.get()?, &[IoSlice::new(packet)], &mut control, flags)?;
        Ok(())
    }

    /// Receives the next packet from a peer that has no reason to send descriptors; the kernel
    /// closes any that come.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Received {
        let mut receive = || {
            self.file.get().and_then(|socket| rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT))
        };
        match receive().or_else(|error| again(error, &mut receive)) {
            Ok((0, _)) => Received::End,
            Ok((len, _)) => Received::Packet(len, ReceivedFiles::new()),
            Err(error) => Self::nothing_or_end(error),
        }
    }

    /// Receives the packets that have arrived, as many as the buffers hold. As with
    /// [`receive`](Self::receive), the kernel closes any descriptors that come.
    pub(crate) fn receive_many<const LONGEST: usize>(
        &self,
        room: &mut ReceiveBuffers<LONGEST>,
    ) -> ReceivedMany {
        if cfg!(miri) {
            // Miri lacks this call.
            return match self.receive(&mut room.packets[0]) {
                Received::Packet(len, _) => {
                    room.lengths[0] = len;
                    ReceivedMany::Packets(1)
                }
                Received::Nothing => ReceivedMany::Nothing,
                Received::End => ReceivedMany::End,
            };
        }
        let mut receive = || room.fill(self.file.get()?);
        match receive().or_else(|error| again(error, &mut receive)) {
            Ok(0) => ReceivedMany::Nothing,
            // At the end of the connection all packets are empty.
            Ok(_) if room.lengths[0] == 0 => ReceivedMany::End,
            Ok(count) => ReceivedMany::Packets(count),
            Err(error) => match Self::nothing_or_end(error) {
                Received::End => ReceivedMany::End,
                _ => ReceivedMany::Nothing,
            },
        }
    }

    /// Receives the next packet with its descriptors. Those that do not fit are closed.
    pub(crate) fn receive_with(&self, buffer: &mut [u8]) -> Received {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut receive = || {
            let socket = self.file.get()?;
            rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
        };
        let received = receive().or_else(|error| again(error, &mut receive));
        let mut files = ReceivedFiles::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(given) = message {
                // Takes all descriptors, so that dropping closes the others.
                for file in given {
                    let _ = files.try_push(file);
                }
            }
        }
        match received {
            Ok(received) if received.bytes == 0 => Received::End,
            Ok(received) => Received::Packet(received.bytes, files),
            Err(error) => Self::nothing_or_end(error),
        }
    }

    /// Shows the other end the end of the connection, even if other processes still hold this one.
    pub(crate) fn shut_down(&self) {
        let end = |socket| rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        if let Err(error) = self.file.get().and_then(end) {
            log::debug!("shutdown: {error}");
        }
    }

    fn nothing_or_end(error: rustix::io::Errno) -> Received {
        use rustix::io::Errno;
        match error {
            Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS => Received::Nothing,
            _ => Received::End,
        }
    }
}

/// Repeats a call once after ECONNRESET: the kernel reports once that the peer closed with unread
/// data, and then delivers what the peer had sent.
fn again<T>(
    error: rustix::io::Errno,
    receive: &mut impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    if error == rustix::io::Errno::CONNRESET { receive() } else { Err(error) }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.holds == Strange::Connections && self.file.is_current() {
            // Nobody connects any more. Each connection that waits is closed as a stranger's.
            self.shut_down();
            let error = loop {
                if let Err(error) = self.accept_any() {
                    break error;
                }
            };
            if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::InvalidInput) {
                log::debug!("connections of other users cannot be accepted: {error}");
                self.holds = Strange::Descriptors;
            }
        }
        // SAFETY: this drop is the only place that takes the file.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        match self.holds {
            Strange::Descriptors => file.close_by_copy(),
            Strange::Nothing | Strange::Connections => file.close_unlocked(),
        }
    }
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;

    /// Receives until something comes. A closed socket stays open for a moment if a thread has a
    /// copy of the table of descriptors ([`file_table`]), as another test's may.
    fn next<T>(mut receive: impl FnMut() -> T, is_nothing: impl Fn(&T) -> bool) -> T {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let received = receive();
            if !is_nothing(&received) {
                return received;
            }
            assert!(std::time::Instant::now() < deadline, "nothing comes");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn last_words_are_heard_even_of_one_who_does_not_listen() {
        for with_files in [false, true] {
            let (one, other) = Socket::both_ends().expect("two descriptors");
            one.send(b"unread").expect("room");
            other.send(b"bye").expect("room");
            drop(other);
            let mut buffer = [0; 8];
            let mut receive =
                || if with_files { one.receive_with(&mut buffer) } else { one.receive(&mut buffer) };
            assert!(matches!(receive(), Received::Packet(3, files) if files.is_empty()));
            let end = next(receive, |received| matches!(received, Received::Nothing));
            assert!(matches!(end, Received::End));
        }
    }

    /// The descriptor of a stranger lingers for hours, which is longer than the limit of the test.
    /// It ends with its other end, so that a failure does not linger.
    #[test]
    fn closing_does_not_wait_for_a_descriptor_of_a_stranger() {
        use rustix::net::sockopt;
        for is_accepted in [false, true] {
            let name = format!("soft-rnic-test/{}/{is_accepted}", std::process::id());
            let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let stream = std::net::TcpStream::connect(tcp.local_addr().expect("bound")).expect("it listens");
            sockopt::set_socket_linger(&stream, Some(std::time::Duration::from_secs(10_000)))
                .expect("an option");
            stream.set_nonblocking(true).expect("an option");
            while rustix::io::write(&stream, &[0; 4096]).is_ok() {}
            let _resets_when_dropped = tcp.accept().expect("it has connected");
            let mut listener = Socket::listen(name.as_bytes()).expect("free");
            // As on a kernel without the option.
            pass_descriptors(listener.as_fd(), true);
            listener.holds = Strange::Connections;
            let stranger = Socket::connect(name.as_bytes()).expect("it listens");
            stranger.send_with(b"x", &[stream.as_fd()]).expect("room");
            drop((stream, stranger));
            let accepted = is_accepted.then(|| listener.accept().expect("it has connected"));
            let (done, end) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                drop((accepted, listener));
                let _ = done.send(());
            });
            end.recv_timeout(std::time::Duration::from_secs(20)).expect("it does not linger");
        }
    }

    #[test]
    fn many_packets_come_at_once_and_in_order() {
        let (one, other) = Socket::both_ends().expect("two descriptors");
        let mut room = ReceiveBuffers::<4>::new();
        assert!(matches!(one.receive_many(&mut room), ReceivedMany::Nothing));
        for number in 0..MANY as u8 + 2 {
            other.send(&[number; 3][..usize::from(number % 3) + 1]).expect("room");
        }
        assert!(matches!(one.receive_many(&mut room), ReceivedMany::Packets(MANY)));
        for number in 0..MANY {
            assert_eq!(room.packet(number), &[number as u8; 3][..number % 3 + 1]);
        }
        assert!(matches!(one.receive_many(&mut room), ReceivedMany::Packets(2)));
        assert_eq!(room.packet(0)[0], MANY as u8);
        other.send(b"too long").expect("room");
        assert!(matches!(one.receive_many(&mut room), ReceivedMany::Packets(1)));
        assert_eq!(room.packet(0), b"too ");
        // The last packet of a peer that did not read, followed by the end.
        one.send(b"unread").expect("room");
        other.send(b"bye").expect("room");
        drop(other);
        let ReceivedMany::Packets(count) = one.receive_many(&mut room) else { panic!("there is a packet") };
        assert_eq!(room.packet(0), b"bye");
        assert!((1..count).all(|index| room.packet(index).is_empty()));
        let end = next(|| one.receive_many(&mut room), |many| matches!(many, ReceivedMany::Nothing));
        assert!(matches!(end, ReceivedMany::End));
    }
}
