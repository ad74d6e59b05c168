//! `Debug` of errors.

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
