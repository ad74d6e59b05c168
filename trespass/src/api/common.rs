//! The calls that [`Stream`](crate::Stream) and [`SeqPacket`](crate::SeqPacket) share, as a macro.

macro_rules! common {
    ($type:ident) => {
        impl $type {
            /// Returns the peer's address.
            ///
            /// # Errors
            ///
            /// None. The method returns a result because the one of [`std::net::TcpStream`] does.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.0.info.peer)
            }

            /// Returns the local address.
            ///
            /// # Errors
            ///
            /// None. The method returns a result because the one of [`std::net::TcpStream`] does.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.0.info.local)
            }

            /// The transport of the connection: RDMA or TCP.
            #[must_use]
            pub fn transport(&self) -> Transport {
                self.0.info.transport()
            }

            /// Why the connection uses TCP instead of RDMA. `None` over RDMA.
            #[must_use]
            pub fn fallback_reason(&self) -> Option<&FallbackReason> {
                self.0.info.fallback.as_ref()
            }

            /// The name of the RDMA device; of several, the first. `None` over TCP.
            #[must_use]
            pub fn device(&self) -> Option<&str> {
                self.0.device.as_deref()
            }

            /// The bytes that the peer's program set with
            /// [`Builder::user_data`](crate::Builder::user_data), 1024 at most. The peer chooses
            /// them, so check them before use.
            #[must_use]
            pub fn peer_user_data(&self) -> &[u8] {
                &self.0.peer_user_data
            }

            /// Counters of the connection since it was made. In a forked child they are 0.
            #[must_use]
            pub fn stats(&self) -> Stats {
                self.0.shared().map(|caller| caller.connection.stats()).unwrap_or_default()
            }

            /// The pool that the connection takes its memory from.
            #[must_use]
            pub fn pool(&self) -> &Pool {
                &self.0.pool
            }

            /// Closes one direction or both. Written bytes are still sent, and the peer reads the
            /// end after them. After a shutdown of reading, later bytes of the peer are discarded.
            ///
            /// # Errors
            ///
            /// The process is a forked child of the one that made the connection.
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.0.shared()?.shutdown(how)
            }

            /// Sets whether calls return [`WouldBlock`](io::ErrorKind::WouldBlock) instead of
            /// waiting. If so, it also makes the [descriptor](#impl-AsFd-for-Stream) to wait for.
            ///
            /// # Errors
            ///
            /// The system has no free descriptors.
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                if nonblocking {
                    self.0.make_set()?;
                }
                self.0.timeouts.set_nonblocking(nonblocking);
                Ok(())
            }

            /// Sets how long a call waits for data. `None` waits without limit. After the timeout a
            /// call fails with the error kind that [`std::net::TcpStream`] uses.
            ///
            /// # Errors
            ///
            /// A timeout of zero is refused.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.timeouts.set(Direction::Read, timeout)
            }

            /// The timeout that [`set_read_timeout`](Self::set_read_timeout) set.
            ///
            /// # Errors
            ///
            /// None. The method returns a result because the one of [`std::net::TcpStream`] does.
            pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.0.timeouts.get(Direction::Read))
            }

            /// Sets how long a call waits for buffer space. `None` waits without limit.
            ///
            /// # Errors
            ///
            /// A timeout of zero is refused.
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.timeouts.set(Direction::Write, timeout)
            }

            /// The timeout that [`set_write_timeout`](Self::set_write_timeout) set.
            ///
            /// # Errors
            ///
            /// None. The method returns a result because the one of [`std::net::TcpStream`] does.
            pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.0.timeouts.get(Direction::Write))
            }

            /// Does nothing, because written bytes are sent at the end of each call anyway. To gather
            /// small writes, use [`set_cork`](Self::set_cork).
            ///
            /// # Errors
            ///
            /// None. The method returns a result because the one of [`std::net::TcpStream`] does.
            pub fn set_nodelay(&self, _nodelay: bool) -> io::Result<()> {
                Ok(())
            }

            /// Always true: nothing waits for more bytes, unless
            /// [corked](Self::set_cork).
            ///
            /// # Errors
            ///
            /// None. The method returns a result because the one of [`std::net::TcpStream`] does.
            pub fn nodelay(&self) -> io::Result<bool> {
                Ok(true)
            }

            /// Looks for a failure of the connection, and takes its error if no call has returned it
            /// yet.
            ///
            /// # Errors
            ///
            /// The process is a forked child of the one that made the connection, or the system cannot
            /// report events.
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                self.0.shared()?.take_error()
            }

            /// Sets how long written bytes are still sent after a drop, which itself does not wait.
            /// Zero resets the connection at once. `None` uses
            /// [`Builder::linger`](crate::Builder::linger). Over TCP the socket stays within that
            /// time until the peer has closed, too, 10 s at most after the last byte.
            ///
            /// # Errors
            ///
            /// None. The method returns a result because the one of [`std::net::TcpStream`] does.
            pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
                self.0.set_linger(linger);
                Ok(())
            }

            /// Waits until no written byte depends on this process any more, in non-blocking mode,
            /// too: over RDMA the peer's side holds it, over TCP this system's kernel. Bytes beyond
            /// the peer's receive buffer wait for its program to read. Use it before
            /// an end of the process that runs no exit handlers: `_exit`, `quick_exit` or exec. The
            /// peer then reads all bytes and a reset, or the end if the write half was shut down
            /// before.
            ///
            /// # Errors
            ///
            /// [`TimedOut`](io::ErrorKind::TimedOut): the deadline has passed. Otherwise those of a
            /// write.
            pub fn drain(&self, deadline: Instant) -> io::Result<()> {
                self.0.shared()?.drain(deadline)
            }

            /// Sets whether partial frames are held back, as with `TCP_CORK`, so that small writes
            /// share a frame. They are held until uncorking, a flush, a call that waits for data of
            /// the peer, or 200 ms. The 200 ms are checked while calls run. Full frames are sent at
            /// once. So are messages, unless both sides allow several in a frame
            /// ([`Builder::coalescing`](crate::Builder::coalescing)).
            ///
            /// A server whose clients pipeline requests corks once. It then answers request after
            /// request, and the answers leave together when it waits for more.
            ///
            /// # Errors
            ///
            /// The process is a forked child of the one that made the connection.
            pub fn set_cork(&self, corked: bool) -> io::Result<()> {
                self.0.shared()?.cork(corked)
            }

            /// Receives what has arrived, sends what is pending, and returns which calls can make
            /// progress.
            ///
            /// # Errors
            ///
            /// The system cannot report events. A failed connection is no error here: it counts as
            /// readable and writable, and the next call returns its error.
            pub fn readiness(&self) -> io::Result<Readiness> {
                self.0.shared()?.readiness()
            }

            /// The descriptor to wait for until it is *writable*, with `EPOLLOUT` or `POLLOUT`. Wait
            /// for nothing else of it.
            ///
            /// It is not writable after a refused write, until there may be room. It may be writable
            /// without cause, so put the connection in non-blocking mode. It works level-triggered,
            /// and edge-triggered if writes are repeated until one would block. From the first call
            /// on, the
            /// [descriptor for reading](#impl-AsFd-for-Stream) shows no room any more. A thread of
            /// this crate notices the room, so waiting for the descriptor for reading is faster.
            ///
            /// # Errors
            ///
            /// The system has no descriptor for it.
            #[cfg(any(target_os = "linux", target_os = "android"))]
            pub fn writable_fd(&self) -> io::Result<std::os::fd::BorrowedFd<'_>> {
                self.0.room_descriptor()
            }

            /// Sets which readiness wakes the [descriptor](#impl-AsFd-for-Stream). The default is
            /// both.
            pub fn set_interest(&self, interest: Readiness) {
                // Elsewhere nobody waits for the descriptor.
                if let Ok(mut caller) = self.0.shared() {
                    caller.set_interest(interest);
                }
            }

            /// Takes a block of at least `len` bytes from the connection's pool, to fill and to
            /// send with [`send_buf`](Self::send_buf). Its contents are old bytes of this process.
            ///
            /// # Errors
            ///
            /// [`WouldBlock`](io::ErrorKind::WouldBlock): the pool is empty. Drop blocks, or wait.
            /// [`InvalidInput`](io::ErrorKind::InvalidInput): no block is that large.
            pub fn buffer(&self, len: usize) -> io::Result<Block> {
                crate::session::buffers::take(&self.0.pool, len)
            }

            /// Sends the first `len` bytes of a block without a copy.
            /// [`completion`](Self::completion) returns the block. A block of any pool is accepted.
            /// It is copied if it is registered with a device other than the connection's. A
            /// connection over several devices copies bytes that fit a frame, too.
            ///
            /// # Errors
            ///
            /// Those of a write. The error contains the block.
            pub fn send_buf(&mut self, block: Block, len: usize) -> Result<Ticket, SendRefused> {
                let mut block = Some(block);
                let lend = |caller: &mut Caller<'_>| {
                    caller.lend(|connection| connection.send_block(&mut block, len))
                };
                let taken = self.0.transfer(Direction::Write, lend, |_| Some(len));
                match (taken, block) {
                    (Ok(ticket), _) => Ok(ticket),
                    (Err(error), Some(block)) => Err(SendRefused { error, block }),
                    (Err(error), None) => unreachable!("a block that was taken was refused: {error}"),
                }
            }

            /// Sends the first bytes of each block without a copy, in order: as one message, or as
            /// bytes of the stream. Each pair is a block and its count of bytes. Short ones share a
            /// frame, up to the device's limit of scatter/gather entries. The peer reads long ones
            /// from this side's memory. The message limit is the one that both sides agreed on. At
            /// most 1024 blocks may be lent at a time.
            ///
            /// The call empties the vector, which can be filled again.
            /// [`completion`](Self::completion) returns each block with the one ticket.
            ///
            /// # Errors
            ///
            /// Those of a write. The blocks then stay in the vector.
            pub fn send_blocks(&mut self, blocks: &mut Vec<(Block, usize)>) -> io::Result<Ticket> {
                // The call empties the vector.
                let bytes = if self.0.is_timed() { blocks.iter().map(|(_, len)| *len).sum() } else { 0 };
                let lend = |caller: &mut Caller<'_>| caller.lend(|connection| connection.send_blocks(blocks));
                self.0.transfer(Direction::Write, lend, |_| Some(bytes))
            }

            /// Returns a lent block whose send is complete. It does not wait: other calls find the
            /// completions.
            pub fn completion(&mut self) -> Option<Completion> {
                self.0.exclusive().ok()?.connection.completion()
            }

            /// Waits until a lent block returns, up to the write timeout. `None` means that no
            /// block is lent.
            ///
            /// # Errors
            ///
            /// Those of a write. A failed connection still returns its blocks.
            pub fn next_completion(&mut self) -> io::Result<Option<Completion>> {
                self.0.exclusive()?.call_for_completion(Connection::next_completion)
            }
        }

        /// The descriptor to wait for with `poll`, `epoll`, kqueue or a library over them. It is
        /// not the socket's. Use it for nothing but waiting until it is *readable*.
        ///
        /// It is readable when data has arrived, or when there is space after a refused write. It
        /// is never writable: for that there is [`writable_fd`](Self::writable_fd). It may be
        /// readable without cause, so put the connection in non-blocking mode. It works
        /// level-triggered and edge-triggered: when it is readable, repeat the calls of interest
        /// until they would block. While a thread waits for it, no other may make a call that waits.
        ///
        /// The first call makes it, or [`set_nonblocking`](Self::set_nonblocking) does. If the system
        /// has no free descriptors, that method fails, and this one logs an error and returns a
        /// descriptor that may show too little.
        #[cfg(unix)]
        impl std::os::fd::AsFd for $type {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.0.descriptor()
            }
        }

        #[cfg(unix)]
        impl std::os::fd::AsRawFd for $type {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                self.0.descriptor().as_raw_fd()
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($type), "({})"), self.0.info)
            }
        }
    };
}

pub(crate) use common;
