//! Tests that many functions share: one macro for each kind of function.

/// Generates tests, each with the name of the function under test.
macro_rules! tests {
    ($($(#[$attribute:meta])* fn $name:ident() $body:block)*) => {
        pub(crate) const WRITTEN: &[&str] = &[$(stringify!($name)),*];
        $($(#[$attribute])* #[test] fn $name() $body)*
    };
}

/// Functions that call an operation of the extended context:
/// `function(object: Type, argument: type, ..) -> type = operation;`
macro_rules! context_cases {
    ($($name:ident($object:ident: $Object:ident $(, $arg:ident: $ty:ty)* $(,)?) -> $ret:ty = $op:ident;)*) => {
        pub(crate) const CONTEXT_CASES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            #[allow(unused_mut, unused_variables)] // A function without arguments draws no samples.
            fn $name() {
                let mut samples = Samples::default();
                $(let $arg: $ty = samples.next();)*
                let call = |object: &HeldObject<$Object>| -> $ret {
                    clear_errno();
                    // SAFETY: the object is live, and the operations use none of the other
                    // arguments.
                    unsafe { rdma_mummy_sys::verbs::$name(object.ptr, $($arg),*) }
                };
                for release in RELEASES {
                    let context = FakeContext::shorter_by(release.verbs_context);
                    let object = <$Object>::on(&context);
                    assert!(call(&object).is_unsupported(), "empty, {release:?}");
                    set!(
                        context.0,
                        verbs_context,
                        $op = Some(recorder!($op(object: *mut $Object, $($arg: $ty),*) -> $ret))
                    );
                    assert_eq!(call(&object), <$ret>::sample(RESULT), "{release:?}");
                    assert_called(stringify!($op), &[object.ptr.word(), $($arg.word()),*]);
                    context.make_plain();
                    assert!(call(&object).is_unsupported(), "not extended, {release:?}");
                }
                // A library whose context begins right behind the operation.
                let after = core::mem::offset_of!(verbs_context, $op) + size_of::<*const ()>();
                let context = FakeContext::shorter_by(after);
                assert!(call(&<$Object>::on(&context)).is_unsupported(), "too short");
                assert_eq!(calls(), []);
            }
        )*
    };
}

/// Functions that call an operation at the end of a struct of the library:
/// `function(argument: type, ..) -> type = operation;`
macro_rules! struct_cases {
    (
        $CASES:ident, $Struct:ident of $module:ident, shorter by $shorter:expr;
        $($name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $op:ident;)*
    ) => {
        pub(crate) const $CASES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            #[allow(unused_mut, unused_variables)] // A function without arguments draws no samples.
            fn $name() {
                let mut samples = Samples::default();
                $(let $arg: $ty = samples.next();)*
                let offset = core::mem::offset_of!($Struct, $op);
                let shorter: fn(&Release) -> usize = $shorter;
                let mut structs: Vec<Fake<$Struct>> = RELEASES
                    .iter()
                    .filter(|release| offset < size_of::<$Struct>() - shorter(release))
                    .map(|release| Fake::without_end(shorter(release)))
                    .collect();
                assert!(!structs.is_empty());
                structs.push(Fake::ending_with(offset));
                for fake in structs {
                    let operation = recorder!($op(object: *mut $Struct, $($arg: $ty),*) $(-> $ret)?);
                    set!(fake, $Struct, $op = Some(operation));
                    // SAFETY: the struct has the operation, which uses none of the arguments.
                    let result = unsafe { rdma_mummy_sys::$module::$name(fake.ptr(), $($arg),*) };
                    assert_called(stringify!($op), &[fake.ptr().word(), $($arg.word()),*]);
                    assert_eq!(result, expected_like(result));
                }
            }
        )*
    };
}

/// Functions that call a classic operation of an object's context.
macro_rules! classic_cases {
    ($($name:ident($object:ident: $Object:ident $(, $arg:ident: $ty:ty)* $(,)?) = $op:ident;)*) => {
        pub(crate) const CLASSIC_CASES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            #[allow(unused_mut, unused_variables)] // A function without arguments draws no samples.
            fn $name() {
                let mut samples = Samples::default();
                $(let $arg: $ty = samples.next();)*
                // A context alone, as before extended contexts, and the releases' own.
                let whole = core::mem::offset_of!(verbs_context, context);
                for front in RELEASES.map(|release| release.verbs_context).into_iter().chain([whole]) {
                    let fake = Fake::<verbs_context>::cut(front, 0);
                    let context = FakeContext(fake);
                    let object = <$Object>::on(&context);
                    let operation = recorder!($op(object: *mut $Object, $($arg: $ty),*) -> c_int);
                    set!(context.0, verbs_context, context.ops.$op = Some(operation));
                    // SAFETY: the context has the operation, which uses none of the arguments.
                    let result = unsafe { rdma_mummy_sys::verbs::$name(object.ptr, $($arg),*) };
                    assert_called(stringify!($op), &[object.ptr.word(), $($arg.word()),*]);
                    assert_eq!(result, c_int::sample(RESULT));
                }
            }
        )*
    };
}
