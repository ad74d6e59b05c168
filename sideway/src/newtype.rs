//! Wrapper types for C enumerations and flags, and the traits that are alike for many types.
//!
//! A device or a newer library may return a value that this crate does not know, which a Rust
//! `enum` could not hold without undefined behaviour. So every C enumeration is an integer with
//! named constants. The names are spelled like an enum's variants, and can be matched on.

macro_rules! c_enum {
    (
        $(#[$meta:meta])*
        pub struct $Name:ident($repr:ty) {
            $($(#[$vmeta:meta])* $Variant:ident = $value:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $Name($repr);

        #[allow(non_upper_case_globals)]
        impl $Name {
            $($(#[$vmeta])* pub const $Variant: Self = Self($value as $repr);)*

            /// The value in C.
            #[inline]
            pub const fn raw(self) -> $repr {
                self.0
            }

            /// The value from C, known or unknown.
            #[inline]
            pub const fn from_raw(raw: $repr) -> Self {
                Self(raw)
            }

            /// The constant's name, if this crate knows the value.
            #[allow(unreachable_patterns)]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$Variant => Some(stringify!($Variant)),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "Unknown({})", self.0),
                }
            }
        }
    };
}

/// Implements `Display` like `Debug`: the constant's name.
macro_rules! display_as_debug {
    ($($Name:ty),* $(,)?) => {$(
        impl core::fmt::Display for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                // `pad` respects the width of a table's column.
                f.pad(&format!("{self:?}"))
            }
        }
    )*};
}

/// Converts a C enumeration into its value, as `as` does for a Rust `enum`.
macro_rules! into_integer {
    ($($Name:ty => $repr:ty),* $(,)?) => {$(
        impl From<$Name> for $repr {
            #[inline]
            fn from(value: $Name) -> Self {
                value.raw()
            }
        }
    )*};
}

/// Implements `Debug` of an error as its text, because a `main` that returns an error prints its
/// `Debug`, and so do `unwrap` and `expect`.
macro_rules! debug_as_text {
    ($($Name:ty),* $(,)?) => {$(
        impl std::fmt::Debug for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

/// A set of flags that prints as `Name[FlagA, FlagB]`.
macro_rules! c_flags {
    (
        $(#[$($meta:tt)*])*
        pub struct $Name:ident($repr:ty) {
            $($(#[$($vmeta:tt)*])* $Flag:ident = $value:expr,)*
        }
    ) => {
        bitflags::bitflags! {
            $(#[$($meta)*])*
            #[derive(Clone, Copy, PartialEq, Eq, Hash)]
            #[repr(transparent)]
            pub struct $Name: $repr {
                $($(#[$($vmeta)*])* #[allow(non_upper_case_globals)] const $Flag = $value as $repr;)*
                /// Bits without a name in this crate are kept.
                const _ = !0;
            }
        }

        impl core::fmt::Debug for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}[", stringify!($Name))?;
                let mut separator = "";
                for (name, _) in self.iter_names() {
                    write!(f, "{separator}{name}")?;
                    separator = ", ";
                }
                let unnamed = self.bits() & !(0 $(| Self::$Flag.bits())*);
                if unnamed != 0 {
                    write!(f, "{separator}{unnamed:#x}")?;
                }
                f.write_str("]")
            }
        }
    };
}
