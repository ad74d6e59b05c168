//! The queries of a device context.

use core::ffi::c_int;
use core::mem::offset_of;
use std::cell::Cell;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Verbs, verbs, verbs_get_ctx_op};

use super::fake::*;
use super::word::*;

context_cases! {
    ibv_query_rt_values_ex(context: ibv_context, values: *mut ibv_values_ex) -> c_int = query_rt_values;
}

thread_local! {
    /// The return value of the extended query of a device.
    static QUERY_RESULT: Cell<c_int> = const { Cell::new(0) };
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    record("query_device_ex", vec![context.word(), input.word(), attr.word(), size.word()]);
    QUERY_RESULT.get()
}

/// The classic query: fills in its part, and fails the test unless all bytes were zero.
unsafe extern "C" fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    record("ibv_query_device", vec![context.word(), attr.word()]);
    // SAFETY: the attributes are the beginning of the extended ones, all of them bytes.
    unsafe {
        assert!(all_zero(attr.cast::<ibv_device_attr_ex>()));
        (*attr).max_qp = 42;
    }
    QUERY_RESULT.get()
}

/// As [`query_device`], for a port.
unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    record("ibv_query_port", vec![context.word(), port_num.word(), attr.word()]);
    // SAFETY: the attributes are the beginning of the current struct, all of them bytes.
    unsafe {
        assert!(all_zero(attr.cast::<ibv_port_attr>()));
        (*attr.cast::<ibv_port_attr>()).lid = 42;
    }
    RESULT as c_int
}

/// # Safety
///
/// The struct at `at` is readable and its padding initialised.
unsafe fn all_zero<T>(at: *const T) -> bool {
    // SAFETY: the struct is readable with initialised padding (`# Safety`).
    (0..size_of::<T>()).all(|n| unsafe { at.cast::<u8>().add(n).read() } == 0)
}

/// Memory filled with ones, as a careless caller may pass it.
fn ones<T>() -> Fake<T> {
    let fake = Fake::<T>::new();
    // SAFETY: the block is as long as the struct.
    unsafe { fake.ptr().cast::<u8>().write_bytes(0xff, size_of::<T>()) };
    fake
}

tests! {
    fn verbs_get_ctx() {
        for release in RELEASES {
            let context = FakeContext::shorter_by(release.verbs_context);
            // SAFETY: the context is live.
            let found = unsafe { verbs::verbs_get_ctx(context.ptr()) };
            assert_eq!(found.addr(), context.0.ptr().addr());
            context.make_plain();
            // SAFETY: the context is live.
            assert!(unsafe { verbs::verbs_get_ctx(context.ptr()) }.is_null());
        }
        // A context without an extended part in front.
        let plain = Fake::<ibv_context>::new();
        // SAFETY: the context is live.
        assert!(unsafe { verbs::verbs_get_ctx(plain.ptr()) }.is_null());
    }

    fn ibv_get_device_list() {
        let lib = Verbs {
            ibv_get_device_list: recorder!(ibv_get_device_list(n: *mut c_int) -> *mut *mut ibv_device),
            ..Verbs::unsupported()
        };
        let n = AbiWord::sample(1);
        // SAFETY: the recorder uses no argument.
        assert_eq!(unsafe { verbs::ibv_get_device_list(&lib, n) }, AbiWord::sample(RESULT));
        assert_called("ibv_get_device_list", &[n.word()]);
    }

    fn ibv_query_device_ex() {
        let lib = Verbs { ibv_query_device: query_device, ..Verbs::unsupported() };
        let input = ibv_query_device_ex_input { comp_mask: 0 };
        for (release, input) in RELEASES.into_iter().zip([&raw const input, core::ptr::null()]) {
            let context = FakeContext::shorter_by(release.verbs_context);
            let attr = ones::<ibv_device_attr_ex>();
            // SAFETY: `context` and `attr` live until the end of the loop body, and `input`
            // outlives the loop or is null.
            let call = |input| unsafe { verbs::ibv_query_device_ex(&lib, context.ptr(), input, attr.ptr()) };
            let size = size_of::<ibv_device_attr_ex>().word();
            let asked = [context.ptr().word(), input.word(), attr.ptr().word(), size];
            let classic = [context.ptr().word(), attr.ptr().word()];

            let unknown = ibv_query_device_ex_input { comp_mask: 1 };
            assert_eq!(call(&raw const unknown), libc::EINVAL);
            assert_eq!(calls(), []);

            QUERY_RESULT.set(0);
            assert_eq!(call(input), 0);
            assert_called("ibv_query_device", &classic);
            // SAFETY: the struct is live and initialised.
            assert_eq!(unsafe { (*attr.ptr()).orig_attr.max_qp }, 42);

            set!(context.0, verbs_context, query_device_ex = Some(query_device_ex));
            for result in [0, libc::EPERM] {
                QUERY_RESULT.set(result);
                assert_eq!(call(input), result);
                assert_called("query_device_ex", &asked);
            }
            for result in [libc::EOPNOTSUPP, libc::ENOSYS] {
                QUERY_RESULT.set(result);
                assert_eq!(call(input), result, "the classic query's own result");
                let operations: Vec<_> = calls().iter().map(|call| call.operation).collect();
                assert_eq!(operations, ["query_device_ex", "ibv_query_device"]);
            }
        }
    }

    fn ibv_query_port() {
        let lib = Verbs { ibv_query_port: query_port, ..Verbs::unsupported() };
        for release in RELEASES {
            let context = FakeContext::shorter_by(release.verbs_context);
            let attr = ones::<ibv_port_attr>();
            // SAFETY: `context` and `attr` live until the end of the loop body.
            let call = || unsafe { verbs::ibv_query_port(&lib, context.ptr(), 3, attr.ptr()) };
            let (asked, port) = (context.ptr().word(), attr.ptr().word());

            assert_eq!(call(), RESULT as c_int);
            assert_called("ibv_query_port", &[asked, 3, port]);
            // SAFETY: the struct is live and initialised.
            unsafe {
                assert_eq!((*attr.ptr()).lid, 42);
                (*attr.ptr()).lid = 0;
                assert!(all_zero(attr.ptr()), "what the library does not know");
            }

            let operation = recorder!(query_port(
                context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, size: usize,
            ) -> c_int);
            set!(context.0, verbs_context, query_port = Some(operation));
            assert_eq!(call(), RESULT as c_int);
            assert_called("query_port", &[asked, 3, port, 56]);
        }
        // A library older than the operation.
        let context = FakeContext::shorter_by(offset_of!(verbs_context, query_port) + 8);
        let attr = ones::<ibv_port_attr>();
        // SAFETY: `context` and `attr` live until the end of the function.
        assert_eq!(unsafe { verbs::ibv_query_port(&lib, context.ptr(), 3, attr.ptr()) }, RESULT as c_int);
        assert_called("ibv_query_port", &[context.ptr().word(), 3, attr.ptr().word()]);
    }

    fn ibv_query_gid_ex() {
        let (context, entry) = (AbiWord::sample(1), AbiWord::sample(4));
        // SAFETY: no argument is used.
        let call = |lib: &Verbs| unsafe { verbs::ibv_query_gid_ex(lib, context, 2, 3, entry, 5) };
        assert!(call(&Verbs::unsupported()).is_unsupported());
        let query = recorder!(_ibv_query_gid_ex(
            context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32,
            size: usize,
        ) -> c_int);
        let lib = Verbs { _ibv_query_gid_ex: Some(query), ..Verbs::unsupported() };
        assert_eq!(call(&lib), RESULT as c_int);
        assert_called("_ibv_query_gid_ex", &[context.word(), 2, 3, entry.word(), 5, 32]);
    }

    fn ibv_query_gid_table() {
        let (context, entries) = (AbiWord::sample(1), AbiWord::sample(2));
        // SAFETY: no argument is used.
        let call = |lib: &Verbs| unsafe { verbs::ibv_query_gid_table(lib, context, entries, 3, 4) };
        clear_errno();
        assert_eq!(call(&Verbs::unsupported()), -(libc::EOPNOTSUPP as isize));
        assert_eq!(errno(), libc::EOPNOTSUPP);
        let query = recorder!(_ibv_query_gid_table(
            context: *mut ibv_context, entries: *mut ibv_gid_entry, max: usize, flags: u32, size: usize,
        ) -> isize);
        let lib = Verbs { _ibv_query_gid_table: Some(query), ..Verbs::unsupported() };
        assert_eq!(call(&lib), RESULT as isize);
        assert_called("_ibv_query_gid_table", &[context.word(), entries.word(), 3, 4, 32]);
    }

    fn ibv_query_comp_cntr_caps() {
        let (context, caps) = (AbiWord::sample(1), AbiWord::sample(2));
        // SAFETY: no argument is used.
        let call = |lib: &Verbs| unsafe { verbs::ibv_query_comp_cntr_caps(lib, context, caps) };
        assert!(call(&Verbs::unsupported()).is_unsupported());
        let query = recorder!(_ibv_query_comp_cntr_caps(
            context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, size: usize,
        ) -> c_int);
        let lib = Verbs { _ibv_query_comp_cntr_caps: Some(query), ..Verbs::unsupported() };
        assert_eq!(call(&lib), RESULT as c_int);
        assert_called("_ibv_query_comp_cntr_caps", &[context.word(), caps.word(), 16]);
    }

    fn ibv_is_qpt_supported() {
        let caps = 1 << ibv_qp_type::IBV_QPT_RC.0 | 1 << 31;
        assert_eq!(verbs::ibv_is_qpt_supported(caps, ibv_qp_type::IBV_QPT_RC), 1);
        assert_eq!(verbs::ibv_is_qpt_supported(caps, ibv_qp_type::IBV_QPT_UD), 0);
        assert_eq!(verbs::ibv_is_qpt_supported(u32::MAX, ibv_qp_type::IBV_QPT_DRIVER), 0);
    }

    fn ibv_flow_label_to_udp_sport() {
        // The results of the C header's function.
        let expected = [
            (0, 0xc000), (0x1, 0xc001), (0x3fff, 0xffff), (0x4000, 0xc001), (0x12345, 0xe341), (0xfffff, 0xffc0),
            (0xabcde, 0xfcf4), (0xfc000, 0xc03f), (0xffffffff, 0xffc0),
        ];
        for (label, port) in expected {
            assert_eq!(verbs::ibv_flow_label_to_udp_sport(label), port, "{label:#x}");
        }
    }
}

/// Which of the operations that are newer than rdma-core 44 are found in a context.
fn newest(context: &FakeContext) -> [bool; 6] {
    let context = context.ptr();
    // SAFETY: the context is live.
    unsafe {
        [
            verbs_get_ctx_op!(context, free_buf).is_some(),
            verbs_get_ctx_op!(context, alloc_buf).is_some(),
            verbs_get_ctx_op!(context, dm_export_dmabuf_fd).is_some(),
            verbs_get_ctx_op!(context, reg_mr_ex).is_some(),
            verbs_get_ctx_op!(context, dealloc_dmah).is_some(),
            verbs_get_ctx_op!(context, alloc_dmah).is_some(),
        ]
    }
}

#[test]
fn operations_that_a_library_is_too_old_for_are_not_looked_for() {
    // Each operation in turn is the last one that the library has.
    for known in 0..=6 {
        let context = FakeContext::shorter_by((6 - known) * 8);
        let free_buf = recorder!(free_buf(buf: *mut ibv_buf));
        for n in 0..known {
            // Any function serves, because none is called.
            context.0.field((5 - n) * 8, |context| &context.free_buf).write(Some(free_buf));
        }
        let expected: [bool; 6] = core::array::from_fn(|n| n >= 6 - known);
        assert_eq!(newest(&context), expected, "{known} of them known");
    }
    assert_eq!(newest(&FakeContext::shorter_by(RELEASES[1].verbs_context)), [false; 6]);
}
