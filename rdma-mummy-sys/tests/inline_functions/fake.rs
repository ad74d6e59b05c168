//! Structs as the library of a given release allocates them, and functions that record their calls.

use core::ffi::c_void;
use core::marker::PhantomData;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::mem::offset_of;

use rdma_mummy_sys::types::*;

use super::word::AbiWord;

/// The number of bytes by which a release's structs are shorter than the bindings.
///
/// The sizes were measured with a C program that prints `sizeof`, compiled on x86-64 against the
/// headers of rdma-core 44.0 and 65.0. The missing fields are pointers, so that the difference is
/// the same on aarch64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    /// 65: 696 bytes, 44: 648. The missing ones are at the front.
    pub(crate) verbs_context: usize,
    /// 65: 360 bytes, 44: 352, which has no `wr_flush`.
    pub(crate) qp_ex: usize,
    /// 288 bytes in both.
    pub(crate) cq_ex: usize,
    /// 104 bytes in both.
    pub(crate) mlx5dv_qp_ex: usize,
    /// 65: 24 bytes, 44: 16, which has no `wc_is_unsolicited`.
    pub(crate) efadv_cq: usize,
    /// 65: 16 bytes; 44 has no such struct.
    pub(crate) efadv_qp: usize,
}

/// The release that the bindings are made from, and the oldest one that is tested.
pub(crate) const RELEASES: [Release; 2] = [
    Release { verbs_context: 0, qp_ex: 0, cq_ex: 0, mlx5dv_qp_ex: 0, efadv_cq: 0, efadv_qp: 0 },
    Release { verbs_context: 48, qp_ex: 8, cq_ex: 0, mlx5dv_qp_ex: 0, efadv_cq: 8, efadv_qp: 16 },
];

#[cfg(target_arch = "x86_64")]
const _: () = {
    assert!(size_of::<verbs_context>() == 696 && size_of::<ibv_qp_ex>() == 360);
    assert!(size_of::<ibv_cq_ex>() == 288 && size_of::<mlx5dv_qp_ex>() == 104);
    assert!(size_of::<efadv_cq>() == 24 && size_of::<efadv_qp>() == 16);
};

/// A zeroed struct without some bytes at the front or at the back, which were never allocated.
///
/// Under Miri, an access to a missing byte is an error.
pub(crate) struct Fake<T> {
    block: *mut u8,
    layout: Layout,
    front: usize,
    of: PhantomData<T>,
}

impl<T> Fake<T> {
    pub(crate) fn new() -> Self {
        Self::cut(0, 0)
    }

    pub(crate) fn without_end(back: usize) -> Self {
        Self::cut(0, back)
    }

    /// A struct that ends right behind the pointer at `offset`.
    pub(crate) fn ending_with(offset: usize) -> Self {
        Self::cut(0, size_of::<T>() - offset - size_of::<*const ()>())
    }

    pub(crate) fn cut(front: usize, back: usize) -> Self {
        let layout =
            Layout::from_size_align(size_of::<T>() - front - back, align_of::<T>()).expect("a layout");
        // SAFETY: the layout has a size above zero, because no struct is cut to nothing.
        let block = unsafe { alloc_zeroed(layout) };
        if block.is_null() {
            handle_alloc_error(layout);
        }
        Self { block, layout, front, of: PhantomData }
    }

    /// The address at which the whole struct would begin.
    pub(crate) fn ptr(&self) -> *mut T {
        self.block.wrapping_sub(self.front).cast()
    }

    /// The address of a field, which must be allocated.
    pub(crate) fn field<F>(&self, offset: usize, _: fn(&T) -> &F) -> Field<'_, F> {
        assert!(offset >= self.front && offset + size_of::<F>() <= self.front + self.layout.size());
        Field { at: self.ptr().wrapping_byte_add(offset).cast(), of: PhantomData }
    }
}

/// A field of an allocated struct.
pub(crate) struct Field<'a, F> {
    at: *mut F,
    of: PhantomData<&'a mut F>,
}

impl<F> Field<'_, F> {
    pub(crate) fn write(self, value: F) {
        // SAFETY: the field lies within a live block, as [`Fake::field`] checked.
        unsafe { self.at.write(value) }
    }
}

impl<T> Drop for Fake<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, and freed once.
        unsafe { dealloc(self.block, self.layout) }
    }
}

/// `set!(fake, Struct, field = value)`.
macro_rules! set {
    ($fake:expr, $S:ident, $($f:ident).+ = $value:expr) => {
        $fake.field(core::mem::offset_of!($S, $($f).+), |s: &$S| &s.$($f).+).write($value)
    };
}

/// An extended context.
pub(crate) struct FakeContext(pub(crate) Fake<verbs_context>);

impl FakeContext {
    /// A context that begins `front` bytes late, as in an older library, with the right size in it.
    pub(crate) fn shorter_by(front: usize) -> Self {
        let fake = Fake::cut(front, 0);
        set!(fake, verbs_context, sz = size_of::<verbs_context>() - front);
        set!(
            fake,
            verbs_context,
            context.abi_compat = core::ptr::without_provenance_mut::<c_void>(usize::MAX)
        );
        Self(fake)
    }

    /// Makes it a context of a library without extended contexts.
    pub(crate) fn make_plain(&self) {
        set!(self.0, verbs_context, context.abi_compat = core::ptr::null_mut::<c_void>());
    }

    /// The pointer that programs hold.
    pub(crate) fn ptr(&self) -> *mut ibv_context {
        self.0.ptr().wrapping_byte_add(offset_of!(verbs_context, context)).cast()
    }
}

/// The object of a call: a context, or an object that points to its context.
pub(crate) trait Object: Sized {
    fn on(context: &FakeContext) -> HeldObject<Self>;
}

/// An object, with its memory if it is not the context itself.
pub(crate) struct HeldObject<T> {
    pub(crate) ptr: *mut T,
    pub(crate) fake: Option<Fake<T>>,
}

impl Object for ibv_context {
    fn on(context: &FakeContext) -> HeldObject<Self> {
        HeldObject { ptr: context.ptr(), fake: None }
    }
}

macro_rules! objects {
    ($($Object:ident)*) => {$(
        impl Object for $Object {
            fn on(context: &FakeContext) -> HeldObject<Self> {
                let fake = Fake::new();
                set!(fake, $Object, context = context.ptr());
                HeldObject { ptr: fake.ptr(), fake: Some(fake) }
            }
        }
    )*};
}

objects! {
    ibv_counters ibv_cq ibv_dm ibv_flow ibv_flow_action ibv_mw ibv_pd ibv_qp ibv_rwq_ind_table ibv_srq ibv_td
    ibv_wq ibv_xrcd
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordedCall {
    pub(crate) operation: &'static str,
    pub(crate) arguments: Vec<u64>,
}

thread_local! {
    static CALLS: RefCell<Vec<RecordedCall>> = const { RefCell::new(Vec::new()) };
}

/// The value that recorders return.
pub(crate) const RESULT: u64 = 99;

/// [`RESULT`], in the type of a result.
pub(crate) fn expected_like<T: AbiWord>(_: T) -> T {
    T::sample(RESULT)
}

pub(crate) fn record(operation: &'static str, arguments: Vec<u64>) {
    CALLS.with_borrow_mut(|calls| calls.push(RecordedCall { operation, arguments }));
}

/// Takes the calls recorded since the last time.
pub(crate) fn calls() -> Vec<RecordedCall> {
    CALLS.take()
}

/// Fails unless exactly this call was recorded since the last time.
#[track_caller]
pub(crate) fn assert_called(operation: &'static str, arguments: &[u64]) {
    assert_eq!(calls(), [RecordedCall { operation, arguments: arguments.to_vec() }]);
}

/// `recorder!(name(arg: type, ..) -> type)`: a C function that records its arguments and returns
/// [`RESULT`].
macro_rules! recorder {
    ($name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {{
        unsafe extern "C" fn recorder($($arg: $ty),*) $(-> $ret)? {
            $crate::inline_functions::fake::record(stringify!($name), vec![$($crate::inline_functions::word::AbiWord::word($arg)),*]);
            $crate::inline_functions::word::AbiWord::sample($crate::inline_functions::fake::RESULT)
        }
        recorder as unsafe extern "C" fn($($ty),*) $(-> $ret)?
    }};
}

/// Yields examples, each different from the others.
#[derive(Default)]
pub(crate) struct Samples(u64);

impl Samples {
    pub(crate) fn next<T: AbiWord>(&mut self) -> T {
        self.0 += 1;
        T::sample(self.0)
    }
}
