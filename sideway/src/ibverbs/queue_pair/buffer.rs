//! The traits of requests that take a buffer, for functions that are generic over such requests.

use std::io::IoSlice;

use super::{LocalBufferHandle, PostSendGuard, ReadBufferHandle, RecvWorkRequestHandle, ScatterGatherEntry};

mod sealed {
    pub trait Sealed {}
}

/// A request that takes registered memory as its buffer: one that sends it, one that reads into it,
/// or a receive.
///
/// The three types have these methods without an import. The trait is for functions that
/// take any of them.
pub trait SetScatterGatherEntry: sealed::Sealed {
    /// Sets one piece of registered memory as the buffer.
    ///
    /// # Safety
    ///
    /// The contract of the type's own method applies: [`LocalBufferHandle::setup_sge`],
    /// [`ReadBufferHandle::setup_sge`] or [`RecvWorkRequestHandle::setup_sge`]. A function that is
    /// generic keeps all three.
    unsafe fn setup_sge(self, lkey: u32, addr: u64, length: u32);

    /// Sets several pieces of registered memory, used one after the other.
    ///
    /// # Safety
    ///
    /// The contract of [`setup_sge`](Self::setup_sge) applies to every piece. The list itself is
    /// copied.
    unsafe fn setup_sge_list(self, list: &[ScatterGatherEntry]);
}

/// Implements [`SetScatterGatherEntry`] by the methods of the same names.
macro_rules! impl_set_sge {
    ($([$($generics:tt)*] $Request:ty;)*) => {$(
        impl<$($generics)*> sealed::Sealed for $Request {}

        impl<$($generics)*> SetScatterGatherEntry for $Request {
            #[inline]
            unsafe fn setup_sge(self, lkey: u32, addr: u64, length: u32) {
                // SAFETY: the caller keeps this function's contract, which includes the called
                // function's.
                unsafe { self.setup_sge(lkey, addr, length) };
            }

            #[inline]
            unsafe fn setup_sge_list(self, list: &[ScatterGatherEntry]) {
                // SAFETY: the caller keeps this function's contract, which includes the called
                // function's.
                unsafe { self.setup_sge_list(list) };
            }
        }
    )*};
}

impl_set_sge! {
    [G: PostSendGuard] LocalBufferHandle<'_, G>;
    [G: PostSendGuard] ReadBufferHandle<'_, G>;
    [] RecvWorkRequestHandle<'_, '_>;
}

/// A request that takes bytes which are copied into it.
///
/// [`LocalBufferHandle`] has these methods without an import.
pub trait SetInlineData: sealed::Sealed {
    /// Copies bytes into the work request now
    /// ([`LocalBufferHandle::setup_inline_data`]).
    fn setup_inline_data(self, data: &[u8]);

    /// Copies several pieces into the work request now, one after the other
    /// ([`LocalBufferHandle::setup_inline_data_list`]).
    fn setup_inline_data_list(self, list: &[IoSlice<'_>]);
}

impl<G: PostSendGuard> SetInlineData for LocalBufferHandle<'_, G> {
    #[inline]
    fn setup_inline_data(self, data: &[u8]) {
        self.setup_inline_data(data);
    }

    #[inline]
    fn setup_inline_data_list(self, list: &[IoSlice<'_>]) {
        self.setup_inline_data_list(list);
    }
}
