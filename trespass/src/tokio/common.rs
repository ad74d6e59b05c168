//! The calls that [`Stream`](super::Stream) and [`SeqPacket`](super::SeqPacket) share, as a macro.

macro_rules! common {
    ($type:ident, $socket:ident, $blocking:ty) => {
        impl $type {
            /// Takes a connection that was made without a runtime.
            ///
            /// # Errors
            ///
            /// The system has no free descriptors.
            ///
            /// # Panics
            ///
            /// The caller is in no runtime that has I/O.
            pub fn from_blocking(connection: $blocking) -> io::Result<Self> {
                connection.set_nonblocking(true)?;
                let looks = Looks::new(connection.transport() == Transport::Rdma);
                let io = Connected::new($socket(connection), looks)?;
                io.get().0.0.set_tasks(Some(WaitingTasks::new(io.tasks())))?;
                Ok(Self { io })
            }

            /// Gives the connection back, in blocking mode.
            ///
            /// # Errors
            ///
            /// None on the process that made it.
            pub fn into_blocking(self) -> io::Result<$blocking> {
                let $socket(connection) = self.io.into_inner();
                connection.0.set_tasks(None)?;
                connection.set_nonblocking(false)?;
                Ok(connection)
            }

            /// Returns the peer's address.
            ///
            /// # Errors
            ///
            /// None. The method returns a result because the one of [`std::net::TcpStream`] does.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.io.get().0.peer_addr()
            }

            /// Returns the local address.
            ///
            /// # Errors
            ///
            /// None. The method returns a result because the one of [`std::net::TcpStream`] does.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.io.get().0.local_addr()
            }

            /// The transport of the connection: RDMA or TCP.
            #[must_use]
            pub fn transport(&self) -> Transport {
                self.io.get().0.transport()
            }

            /// Why the connection uses TCP instead of RDMA. `None` over RDMA.
            #[must_use]
            pub fn fallback_reason(&self) -> Option<&FallbackReason> {
                self.io.get().0.fallback_reason()
            }

            /// The name of the RDMA device. `None` over TCP.
            #[must_use]
            pub fn device(&self) -> Option<&str> {
                self.io.get().0.device()
            }

            /// The bytes that the peer's program set with
            /// [`Builder::user_data`](crate::Builder::user_data), 1024 at most. The peer chooses
            /// them, so check them before use.
            #[must_use]
            pub fn peer_user_data(&self) -> &[u8] {
                self.io.get().0.peer_user_data()
            }

            /// Counters of the connection since it was made.
            #[must_use]
            pub fn stats(&self) -> Stats {
                self.io.get().0.stats()
            }

            /// The pool that the connection takes its memory from.
            #[must_use]
            pub fn pool(&self) -> &Pool {
                self.io.get().0.pool()
            }

            pub(crate) fn owner(&self) -> &ConnectionOwner {
                &self.io.get().0.0
            }

            /// Looks for a failure of the connection, and takes its error if no call has returned it
            /// yet.
            ///
            /// # Errors
            ///
            /// Those of the blocking type's method.
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                self.io.get().0.take_error()
            }

            /// Sets how long written bytes are still sent after a drop, which itself does not wait.
            /// Zero resets the connection at once. `None` uses
            /// [`Builder::linger`](crate::Builder::linger).
            ///
            /// # Errors
            ///
            /// None. The method returns a result because the one of [`std::net::TcpStream`] does.
            pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
                self.io.get().0.set_linger(linger)
            }

            /// Sets whether partial frames are held back, as the blocking type's method does.
            ///
            /// # Errors
            ///
            /// Those of the blocking type's method.
            pub fn set_cork(&self, corked: bool) -> io::Result<()> {
                self.io.get().0.set_cork(corked)
            }

            /// Waits until one of the directions of `interest` can make progress, and returns which of
            /// both can.
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe.
            ///
            /// # Errors
            ///
            /// The system cannot report events. A failed connection is no error here: the next call
            /// returns it.
            pub async fn ready(&self, interest: Readiness) -> io::Result<Readiness> {
                if interest.is_none() {
                    return Ok(Readiness::NONE);
                }
                let look = |socket: &$socket| {
                    let ready = socket.0.readiness()?;
                    if ready.and(interest).is_none() {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    Ok(ready)
                };
                let mut read = pin!(self.io.call(Direction::Read, look));
                let mut write = pin!(self.io.call(Direction::Write, look));
                poll_fn(|context| match interest {
                    Readiness { readable: false, .. } => write.as_mut().poll(context),
                    Readiness { writable: false, .. } => read.as_mut().poll(context),
                    _ => match read.as_mut().poll(context) {
                        Poll::Pending => write.as_mut().poll(context),
                        ready => ready,
                    },
                })
                .await
            }

            /// Waits until a read can make progress.
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe.
            ///
            /// # Errors
            ///
            /// Those of [`ready`](Self::ready).
            pub async fn readable(&self) -> io::Result<()> {
                self.ready(Readiness::READ).await.map(drop)
            }

            /// Waits until a write can make progress.
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe.
            ///
            /// # Errors
            ///
            /// Those of [`ready`](Self::ready).
            pub async fn writable(&self) -> io::Result<()> {
                self.ready(Readiness::WRITE).await.map(drop)
            }

            /// Waits until no written byte depends on this process any more, as the blocking type's
            /// `drain` does.
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe.
            ///
            /// # Errors
            ///
            /// Those of a write.
            pub async fn drain(&self) -> io::Result<()> {
                self.io.call(Direction::Write, |socket| socket.0.0.shared()?.try_drain()).await
            }

            /// Takes a block of at least `len` bytes from the connection's pool, to fill and to
            /// send with [`send_buf`](Self::send_buf). Its contents are old bytes of this process.
            ///
            /// # Errors
            ///
            /// [`WouldBlock`](io::ErrorKind::WouldBlock): the pool is empty. Drop blocks, or wait for
            /// completions. [`InvalidInput`](io::ErrorKind::InvalidInput): no block is that large.
            pub fn buffer(&self, len: usize) -> io::Result<Block> {
                self.io.get().0.buffer(len)
            }

            /// Sends the first `len` bytes of a block without a copy.
            /// [`completion`](Self::completion) returns the block.
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped before it is ready, nothing was sent, and the block went back
            /// to its pool. Afterwards the connection owns the block until the device is done with it,
            /// whatever becomes of the task.
            ///
            /// # Errors
            ///
            /// Those of a write. The error contains the block.
            pub async fn send_buf(&mut self, block: Block, len: usize) -> Result<Ticket, SendRefused> {
                let mut block = Some(block);
                let sent = self.io.call_mut(Direction::Write, |socket| {
                    let Some(taken) = block.take() else { return Err(io::ErrorKind::WouldBlock.into()) };
                    socket.0.send_buf(taken, len).map_err(|refused| {
                        block = Some(refused.block);
                        refused.error
                    })
                });
                match (sent.await, block) {
                    (Ok(ticket), _) => Ok(ticket),
                    (Err(error), Some(block)) => Err(SendRefused { error, block }),
                    (Err(error), None) => unreachable!("a block that was taken was refused: {error}"),
                }
            }

            /// Sends the first bytes of each block without a copy, in order, as the blocking type's
            /// method does. It empties the vector.
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe: if the future is dropped before it is ready, nothing was
            /// sent, and the vector has its blocks.
            ///
            /// # Errors
            ///
            /// Those of a write. The blocks then stay in the vector.
            pub async fn send_blocks(&mut self, blocks: &mut Vec<(Block, usize)>) -> io::Result<Ticket> {
                self.io.call_mut(Direction::Write, |socket| socket.0.send_blocks(blocks)).await
            }

            /// Waits until a lent block returns. `None` means that no block is lent.
            ///
            /// # Cancel safety
            ///
            /// This method is cancel safe.
            ///
            /// # Errors
            ///
            /// Those of a write. A failed connection still returns its blocks.
            pub async fn completion(&mut self) -> io::Result<Option<Completion>> {
                self.io.call_mut(Direction::Write, |socket| socket.0.next_completion()).await
            }
        }

        impl AsFd for $type {
            /// The descriptor that the runtime waits for. Use it for nothing but looking. After a read
            /// that found data it shows later arrivals only once a read waits.
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.io.get().0.as_fd()
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.io.get().0.fmt(f)
            }
        }
    };
}

pub(super) use common;
