//! The calls that [`Stream`](crate::Stream) and [`SeqPacket`](crate::SeqPacket) share, as a macro.

macro_rules! common {
    ($type:ident) => {
        impl $type {
            /// The peer's address.
            ///
            /// # Errors
            ///
            /// None: it is a result as [`std::net`] has it.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.0.connection.info.peer)
            }

            /// This side's address.
            ///
            /// # Errors
            ///
            /// None: it is a result as [`std::net`] has it.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.0.connection.info.local)
            }

            /// What carries the connection.
            #[must_use]
            pub fn transport(&self) -> Transport {
                self.0.connection.info.transport()
            }

            /// Why it is not RDMA that carries it, if it is not.
            #[must_use]
            pub fn fallback_reason(&self) -> Option<&FallbackReason> {
                self.0.connection.info.fallback.as_ref()
            }

            /// The name of the RDMA device that carries it, if it is one.
            #[must_use]
            pub fn device(&self) -> Option<&str> {
                self.0.connection.device()
            }

            /// What the peer's program wanted to be known with the connection ([`Builder::user_data`](crate::Builder::user_data)): bytes of
            /// a stranger, 1024 at most.
            #[must_use]
            pub fn peer_user_data(&self) -> &[u8] {
                &self.0.connection.peer_user_data
            }

            /// What the connection has done so far.
            #[must_use]
            pub fn stats(&self) -> Stats {
                self.0.connection.stats()
            }

            /// The pool that its memory comes from.
            #[must_use]
            pub fn pool(&self) -> &Pool {
                &self.0.connection.pool
            }

            /// Ends one direction, or both. What was written still goes out, and the peer sees the end behind it; what the peer goes
            /// on sending after the end of this side's reading is thrown away.
            ///
            /// # Errors
            ///
            /// None: it is a result as [`std::net`] has it.
            pub fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
                let protocol = &mut self.0.connection.protocol;
                if matches!(how, Shutdown::Write | Shutdown::Both) {
                    protocol.shutdown_write();
                }
                if matches!(how, Shutdown::Read | Shutdown::Both) {
                    protocol.shutdown_read();
                }
                self.0.after_shutdown();
                Ok(())
            }

            /// Whether calls return [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
            ///
            /// # Errors
            ///
            /// None: it is a result as [`std::net`] has it.
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                self.0.timeouts.set_nonblocking(nonblocking);
                Ok(())
            }

            /// How long a call waits for something to arrive; `None` is for ever. When the time is up it fails as one of [`std::net`] does.
            ///
            /// # Errors
            ///
            /// A time of zero is refused.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.timeouts.set(Direction::Read, timeout)
            }

            /// What [`set_read_timeout`](Self::set_read_timeout) has set.
            ///
            /// # Errors
            ///
            /// None: it is a result as [`std::net`] has it.
            pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.0.timeouts.get(Direction::Read))
            }

            /// How long a call waits for room; `None` is for ever.
            ///
            /// # Errors
            ///
            /// A time of zero is refused.
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.timeouts.set(Direction::Write, timeout)
            }

            /// What [`set_write_timeout`](Self::set_write_timeout) has set.
            ///
            /// # Errors
            ///
            /// None: it is a result as [`std::net`] has it.
            pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.0.timeouts.get(Direction::Write))
            }

            /// How long dropping may wait until what was written is on its way. Zero resets the connection at once; `None` is what the
            /// configuration says.
            ///
            /// # Errors
            ///
            /// None: it is a result as [`std::net`] has it.
            pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
                self.0.linger.set(linger.unwrap_or_else(|| self.0.connection.linger()));
                Ok(())
            }

            /// Whether what does not fill a frame is held back, so that small pieces go together, as with `TCP_CORK`: until this is switched
            /// off again, until a flush, until a call waits for what the peer sends, or for 200 ms. Time counts while calls run. What is full goes at once;
            /// so does a message where the two sides do not put several into a frame ([`Builder::coalescing`](crate::Builder::coalescing)).
            ///
            /// A server whose clients have several requests under way corks once, and then takes and answers one after the other: what
            /// has come together is answered together, when there is no more to take.
            ///
            /// # Errors
            ///
            /// None: it is a result as [`std::net`] has it.
            pub fn set_cork(&mut self, corked: bool) -> io::Result<()> {
                self.0.cork(corked)
            }

            /// Takes in what has arrived, sends what is left to send, and says what calls would find.
            ///
            /// # Errors
            ///
            /// The system does not say what has arrived. A connection that has failed is no error here: it is readable and writable, and
            /// the calls say why.
            pub fn readiness(&mut self) -> io::Result<Readiness> {
                self.0.readiness()
            }

            /// What the program waits for: for nothing else does the [descriptor](#impl-AsFd-for-Stream) become readable for long. At
            /// first it is both.
            pub fn set_interest(&mut self, interest: Readiness) {
                self.0.set_interest(interest);
            }

            /// A block of the connection's pool, of at least so many bytes, to be filled and given to
            /// [`send_buf`](Self::send_buf). What is in it at first is left from others.
            ///
            /// # Errors
            ///
            /// [`WouldBlock`](io::ErrorKind::WouldBlock): the pool has none now; drop some, or wait.
            /// [`InvalidInput`](io::ErrorKind::InvalidInput): no block is that large.
            pub fn buffer(&self, len: usize) -> io::Result<Block> {
                crate::session::buffers::take(&self.0.connection.pool, len)
            }

            /// Sends the first `len` bytes of a block without a copy. It comes back by [`completion`](Self::completion). A block of any
            /// pool may be sent; what is registered with another device than the one that carries the connection is copied as it
            /// goes.
            ///
            /// # Errors
            ///
            /// As a write; the block comes back with the error.
            pub fn send_buf(&mut self, block: Block, len: usize) -> Result<Ticket, SendRefused> {
                let mut block = Some(block);
                let taken =
                    self.0.call(Direction::Write, |connection| connection.send_block(&mut block, len));
                match (taken, block) {
                    (Ok(ticket), _) => Ok(ticket),
                    (Err(error), Some(block)) => Err(SendRefused { error, block }),
                    (Err(error), None) => unreachable!("a block that was taken was refused: {error}"),
                }
            }

            /// Sends several blocks without a copy, of each the first so many bytes, in their order: as one message, or as bytes of the
            /// stream. What is short goes in one frame, as far as the device takes so many pieces at a time; what is long is read by
            /// the peer where it lies. There is no bound for a message but the agreed one, as there is for a block; at most 1024
            /// blocks may be lent at a time.
            ///
            /// The blocks are taken out of the vector, which can be filled again. Each comes back by
            /// [`completion`](Self::completion), under the one ticket.
            ///
            /// # Errors
            ///
            /// As a write; the blocks are still in the vector then.
            pub fn send_blocks(&mut self, blocks: &mut Vec<(Block, usize)>) -> io::Result<Ticket> {
                self.0.call(Direction::Write, |connection| connection.send_blocks(blocks))
            }

            /// A block that was lent and has come back. They come with other calls; this one does not wait, nor look for more.
            pub fn completion(&mut self) -> Option<Completion> {
                self.0.connection.completion()
            }

            /// Waits for a lent block to come back, as long as a write may take. `None`: nothing is lent.
            ///
            /// # Errors
            ///
            /// As a write. When the connection has failed its blocks come back all the same.
            pub fn next_completion(&mut self) -> io::Result<Option<Completion>> {
                self.0.call(Direction::Write, Connection::next_completion)
            }
        }

        /// The descriptor to wait for, with `poll`, `epoll`, kqueue or what is built on them. It is not the socket's: nothing is to be
        /// done with it but to wait until it is *readable*.
        ///
        /// It is readable when there is something to read, or, after a call to write was refused, when there is room; never
        /// writable. It may also be readable for nothing, so the connection should be in non-blocking mode. Level-triggered or
        /// edge-triggered: when it is, make the calls that the program is interested in until they would block.
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
                write!(f, concat!(stringify!($type), "({})"), self.0.connection.info)
            }
        }
    };
}

pub(crate) use common;
