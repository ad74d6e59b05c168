//! Zero-copy: blocks that are lent to a connection, and received data where it arrived.

use std::ffi::{c_int, c_void};
use std::ptr;

use trespass::{Block, Completion, RecvBuf, SendRefused, Ticket};

use super::messages::CPart;
use super::{ConnectionHandle, Form, Whole};
use crate::boundary::{call, result};
use crate::error::CallFailure;
use crate::handle::{Handle, Tagged};

/// `trespass_buffer`: a block to fill and to send.
pub type BufferHandle = Handle<OwnedBlock>;

/// A block of a C program, which is none only while a send looks at it.
#[derive(Debug)]
pub struct OwnedBlock(Option<Block>);

impl From<Block> for OwnedBlock {
    fn from(block: Block) -> Self {
        Self(Some(block))
    }
}

impl Tagged for OwnedBlock {
    const TAG: u32 = u32::from_be_bytes(*b"TSbu");
    const NAME: &'static str = "buffer";
}

/// `trespass_received`: received data in the blocks where it arrived.
pub type ReceivedHandle = Handle<OwnedData>;

/// Received data of a C program.
#[derive(Debug)]
pub struct OwnedData(pub(crate) RecvBuf);

impl Tagged for OwnedData {
    const TAG: u32 = u32::from_be_bytes(*b"TSre");
    const NAME: &'static str = "received";
}

/// `trespass_completion`: a lent block that returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CCompletion {
    /// The number that the send returned.
    pub ticket: u64,
    /// The block, which belongs to the program again.
    pub buffer: *mut BufferHandle,
    /// Blocks of this ticket that have not returned yet.
    pub left: u64,
    /// 1 if the bytes were sent, 0 if the connection failed first.
    pub sent: u64,
}

impl CCompletion {
    pub(crate) fn of(completion: Completion) -> Self {
        Self {
            ticket: completion.ticket.to_bits(),
            buffer: Handle::give(completion.block.into()),
            left: completion.left as u64,
            sent: completion.sent.into(),
        }
    }
}

impl Form {
    fn send_buf(&mut self, block: Block, length: usize) -> Result<Ticket, Refusal> {
        match self {
            Self::Stream(stream) => Ok(stream.send_buf(block, length)?),
            Self::Packets(packets) => Ok(packets.send_buf(block, length)?),
            half => Err(Refusal { failure: half.lacks("trespass_send_buffer"), block }),
        }
    }

    fn completion(&mut self) -> Result<Option<Completion>, CallFailure> {
        match self {
            Self::Stream(stream) => Ok(stream.completion()),
            Self::Packets(packets) => Ok(packets.completion()),
            half => Err(half.lacks("trespass_completion")),
        }
    }

    fn next_completion(&mut self) -> Result<Option<Completion>, CallFailure> {
        match self {
            Self::Stream(stream) => Ok(stream.next_completion()?),
            Self::Packets(packets) => Ok(packets.next_completion()?),
            half => Err(half.lacks("trespass_next_completion")),
        }
    }

    fn recv_buf(&mut self) -> Result<RecvBuf, CallFailure> {
        match self {
            Self::Stream(stream) => Ok(stream.recv_buf()?),
            Self::Reader(half) => Ok(half.recv_buf()?),
            Self::Packets(packets) => Ok(packets.recv_buf()?),
            Self::Receiver(half) => Ok(half.recv_buf()?),
            other => Err(other.lacks("trespass_recv_buffer")),
        }
    }
}

/// A block that was not sent.
pub(crate) struct Refusal {
    pub(crate) failure: CallFailure,
    pub(crate) block: Block,
}

impl From<SendRefused> for Refusal {
    fn from(refused: SendRefused) -> Self {
        Self { failure: refused.error.into(), block: refused.block }
    }
}

/// Sends the block of a handle, which ends if the send takes it.
///
/// # Safety
///
/// That of the [crate](crate#safety).
pub(crate) unsafe fn lend(
    buffer: *mut BufferHandle,
    ticket: *mut u64,
    send: impl FnOnce(Block) -> Result<Ticket, Refusal>,
) -> Result<(), CallFailure> {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    let mut owned = unsafe { Handle::exclusive(buffer) }?;
    let block = owned.0.take().ok_or_else(lent)?;
    match send(block) {
        Ok(number) => {
            drop(owned);
            if !ticket.is_null() {
                // SAFETY: the place is not null, and writable by the caller.
                unsafe { ticket.write(number.to_bits()) };
            }
            // SAFETY: by the caller, whose buffer it is no more.
            unsafe { Handle::take(buffer) }.map(drop)
        }
        Err(Refusal { failure, block }) => {
            owned.0 = Some(block);
            Err(failure)
        }
    }
}

/// The error of a buffer without its block, which only a panic within a send leaves behind.
fn lent() -> CallFailure {
    CallFailure::new(libc::EBADF, "the block of this `buffer` is lost")
}

/// Takes a buffer of at least `length` bytes from the connection's pool.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_buffer_new(
    connection: *const ConnectionHandle,
    length: usize,
) -> *mut BufferHandle {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let connected = unsafe { Handle::shared(connection) }?;
        let block = of_both!(connected.form, whole => whole.buffer(length))?;
        Ok(Handle::give(block.into()))
    })
}

/// The bytes, which the program may write until it sends the buffer.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_buffer_data(buffer: *const BufferHandle) -> *mut c_void {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let owned = unsafe { Handle::shared(buffer) }?;
        Ok(owned.0.as_ref().ok_or_else(lent)?.as_ptr().cast::<c_void>())
    })
}

/// The count of bytes.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_buffer_length(buffer: *const BufferHandle) -> isize {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let owned = unsafe { Handle::shared(buffer) }?;
        Ok(owned.0.as_ref().ok_or_else(lent)?.len())
    })
}

/// Gives the buffer back to its pool.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the buffer from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_buffer_release(buffer: *mut BufferHandle) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| unsafe { Handle::take(buffer) }.map(drop))
}

/// Sends the first `length` bytes of a buffer without a copy.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_send_buffer(
    connection: *mut ConnectionHandle,
    buffer: *mut BufferHandle,
    length: usize,
    ticket: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let mut connected = unsafe { Handle::exclusive(connection) }?;
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        unsafe { lend(buffer, ticket, |block| connected.form.send_buf(block, length)) }
    })
}

/// Returns 1 and a buffer whose send is complete, or 0 if no send is.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_completion_poll(
    connection: *mut ConnectionHandle,
    completion: *mut CCompletion,
) -> c_int {
    // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
    call(|| unsafe { complete(connection, completion, Form::completion) })
}

/// Waits until a lent buffer returns.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_completion_wait(
    connection: *mut ConnectionHandle,
    completion: *mut CCompletion,
) -> c_int {
    // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
    call(|| unsafe { complete(connection, completion, Form::next_completion) })
}

/// Writes a completion and returns 1, or 0 if there is none.
///
/// # Safety
///
/// That of the [crate](crate#safety).
unsafe fn complete(
    connection: *mut ConnectionHandle,
    completion: *mut CCompletion,
    take: impl FnOnce(&mut Form) -> Result<Option<Completion>, CallFailure>,
) -> Result<c_int, CallFailure> {
    let place = result("completion", completion)?;
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    let completion = take(&mut unsafe { Handle::exclusive(connection) }?.form)?;
    let Some(completion) = completion else { return Ok(0) };
    // SAFETY: the place is not null, and writable by the caller.
    unsafe { place.write(CCompletion::of(completion)) };
    Ok(1)
}

/// Receives bytes, or a message, in the memory where they arrived.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_recv_buffer(connection: *mut ConnectionHandle) -> *mut ReceivedHandle {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let received = unsafe { Handle::exclusive(connection) }?.form.recv_buf()?;
        Ok(Handle::give(OwnedData(received)))
    })
}

/// Receives the next part of a message of any length in the memory where it arrived.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_recv_part_buffer(
    connection: *mut ConnectionHandle,
    part: *mut CPart,
) -> *mut ReceivedHandle {
    call(|| {
        let place = result("part", part)?;
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (received, part) = match &mut unsafe { Handle::exclusive(connection) }?.form {
            Form::Packets(packets) => packets.recv_part_buf()?,
            other => return Err(other.lacks("trespass_recv_part_buffer")),
        };
        // SAFETY: the place is not null, and writable by the caller.
        unsafe { place.write(part.into()) };
        Ok(Handle::give(OwnedData(received)))
    })
}

/// The count of bytes in all pieces.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_received_length(received: *const ReceivedHandle) -> isize {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| Ok(unsafe { Handle::shared(received) }?.0.len()))
}

/// Returns the piece at an index and its length.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_received_piece(
    received: *const ReceivedHandle,
    index: usize,
    length: *mut usize,
) -> *const c_void {
    call(|| {
        let place = result("length", length)?;
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let received = unsafe { Handle::shared(received) }?;
        let piece = received.0.chunks().nth(index);
        // SAFETY: the place is not null, and writable by the caller.
        unsafe { place.write(piece.map_or(0, <[u8]>::len)) };
        // The bytes stay where they are until the handle is released.
        Ok(piece.map_or(ptr::null(), |piece| piece.as_ptr().cast::<c_void>()))
    })
}

/// Gives the memory back.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the data from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_received_release(received: *mut ReceivedHandle) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| unsafe { Handle::take(received) }.map(drop))
}
