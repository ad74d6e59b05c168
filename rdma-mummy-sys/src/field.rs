//! Reads fields of structs that a C library allocated.
//!
//! If the library is older, such a struct may end (or, for `verbs_context`, begin) earlier than its
//! type in this crate. Therefore no reference to one is ever made. A field is reached by a wrapping
//! offset from the pointer, which does not claim that the rest of the struct exists.

/// Reads the field at `offset` of the struct at `base`.
///
/// The last argument only tells the compiler the field's type; it is never called.
///
/// # Safety
///
/// - `offset` is the offset of that field in `S`.
/// - `base + offset` is aligned and readable for `F`, and no other thread writes to it.
#[inline(always)]
pub unsafe fn read<S, F: Copy>(base: *mut S, offset: usize, _type: fn(&S) -> &F) -> F {
    // SAFETY: the field exists and is readable (`# Safety`).
    unsafe { base.wrapping_byte_add(offset).cast::<F>().read() }
}

/// The address of the field at `offset` of the struct at `base`; nothing is read.
#[inline(always)]
pub(crate) fn address<S, F>(base: *mut S, offset: usize, _type: fn(&S) -> &F) -> *mut F {
    base.wrapping_byte_add(offset).cast()
}

/// `field!(base, Struct, field.of.field)`: the value of a field, as in [`read`].
macro_rules! field {
    ($base:expr, $S:ident, $($f:ident).+) => {
        $crate::field::read(
            $base,
            core::mem::offset_of!($crate::types::$S, $($f).+),
            |s: &$crate::types::$S| &s.$($f).+,
        )
    };
}

/// `operation!(base, Struct, op)`: a function pointer that must not be null, as the `# Safety`
/// section of the enclosing function demands. The call costs what it costs in C.
macro_rules! operation {
    ($base:expr, $S:ident, $($op:ident).+) => {{
        let operation = field!($base, $S, $($op).+);
        debug_assert!(
            operation.is_some(),
            concat!("this ", stringify!($S), " has no ", stringify!($($op).+))
        );
        operation.unwrap_unchecked()
    }};
}
