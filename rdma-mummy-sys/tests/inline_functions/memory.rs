//! Memory regions, memory windows, device memory.

use core::ffi::{c_int, c_uint, c_void};

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Verbs, verbs};

use super::fake::*;
use super::word::*;

context_cases! {
    ibv_advise_mr(pd: ibv_pd, advice: ib_uverbs_advise_mr_advice, flags: u32, list: *mut ibv_sge, n: u32)
        -> c_int = advise_mr;
    ibv_alloc_null_mr(pd: ibv_pd) -> *mut ibv_mr = alloc_null_mr;
    ibv_alloc_dm(context: ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = alloc_dm;
    ibv_free_dm(dm: ibv_dm) -> c_int = free_dm;
    ibv_reg_dm_mr(pd: ibv_pd, dm: *mut ibv_dm, offset: u64, length: usize, access: c_uint) -> *mut ibv_mr
        = reg_dm_mr;
}

struct_cases! {
    DM_CASES, ibv_dm of verbs, shorter by |_| 0;
    ibv_memcpy_to_dm(offset: u64, from: *const c_void, length: usize) -> c_int = memcpy_to_dm;
}

/// A table that records every way to register memory; `None` if a release lacks it.
fn table(iova: bool, iova2: bool) -> Verbs {
    let reg_mr_iova = recorder!(ibv_reg_mr_iova(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int,
    ) -> *mut ibv_mr);
    let reg_mr_iova2 = recorder!(ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint,
    ) -> *mut ibv_mr);
    Verbs {
        ibv_reg_mr: recorder!(ibv_reg_mr(
            pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int,
        ) -> *mut ibv_mr),
        ibv_reg_mr_iova: iova.then_some(reg_mr_iova),
        ibv_reg_mr_iova2: iova2.then_some(reg_mr_iova2),
        ..Verbs::unsupported()
    }
}

const PLAIN: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
const RELAXED: u32 = PLAIN | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;

tests! {
    fn ibv_reg_mr() {
        let (pd, addr) = (<*mut ibv_pd>::sample(1), <*mut c_void>::sample(2));
        // SAFETY: no argument is used.
        let call = |lib: &Verbs, access: u32| unsafe {
            clear_errno();
            verbs::ibv_reg_mr(lib, pd, addr, 3, access as c_int)
        };
        let (new, old) = (table(true, true), table(false, false));
        for lib in [&new, &old] {
            assert_eq!(call(lib, PLAIN), AbiWord::sample(RESULT));
            assert_called("ibv_reg_mr", &[pd.word(), addr.word(), 3, PLAIN.word()]);
        }
        for access in [RELAXED, 1 << 20, 1 << 29] {
            assert_eq!(call(&new, access), AbiWord::sample(RESULT));
            assert_called("ibv_reg_mr_iova2", &[pd.word(), addr.word(), 3, addr.word(), access.word()]);
            assert!(call(&old, access).is_unsupported());
            assert_eq!(calls(), []);
        }
        for access in [1 << 19, 1 << 30] {
            call(&new, access);
            assert_called("ibv_reg_mr", &[pd.word(), addr.word(), 3, access.word()]);
        }
    }

    fn ibv_reg_mr_iova() {
        let (pd, addr) = (<*mut ibv_pd>::sample(1), <*mut c_void>::sample(2));
        // SAFETY: no argument is used.
        let call = |lib: &Verbs, iova: u64, access: u32| unsafe {
            clear_errno();
            verbs::ibv_reg_mr_iova(lib, pd, addr, 3, iova, access as c_int)
        };
        let (new, middle, old) = (table(true, true), table(true, false), table(false, false));
        for lib in [&new, &middle] {
            assert_eq!(call(lib, 4, PLAIN), AbiWord::sample(RESULT));
            assert_called("ibv_reg_mr_iova", &[pd.word(), addr.word(), 3, 4, PLAIN.word()]);
        }
        assert!(call(&old, 4, PLAIN).is_unsupported());
        assert_eq!(call(&old, addr.word(), PLAIN), AbiWord::sample(RESULT));
        assert_called("ibv_reg_mr", &[pd.word(), addr.word(), 3, PLAIN.word()]);

        assert_eq!(call(&new, 4, RELAXED), AbiWord::sample(RESULT));
        assert_called("ibv_reg_mr_iova2", &[pd.word(), addr.word(), 3, 4, RELAXED.word()]);
        for lib in [&middle, &old] {
            assert!(call(lib, addr.word(), RELAXED).is_unsupported());
        }
        assert_eq!(calls(), []);
    }

    fn ibv_alloc_mw() {
        for release in RELEASES {
            let context = FakeContext::shorter_by(release.verbs_context);
            let pd = ibv_pd::on(&context);
            // SAFETY: the protection domain is live.
            let call = || unsafe {
                clear_errno();
                verbs::ibv_alloc_mw(pd.ptr, ibv_mw_type::IBV_MW_TYPE_2)
            };
            assert!(call().is_unsupported());
            let operation = recorder!(alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw);
            set!(context.0, verbs_context, context.ops.alloc_mw = Some(operation));
            assert_eq!(call(), AbiWord::sample(RESULT));
            assert_called("alloc_mw", &[pd.ptr.word(), 2]);
        }
    }

    fn ibv_dealloc_mw() {
        for release in RELEASES {
            let context = FakeContext::shorter_by(release.verbs_context);
            let mw = ibv_mw::on(&context);
            // SAFETY: the window is live.
            let call = || unsafe { verbs::ibv_dealloc_mw(mw.ptr) };
            assert!(call().is_unsupported());
            let operation = recorder!(dealloc_mw(mw: *mut ibv_mw) -> c_int);
            set!(context.0, verbs_context, context.ops.dealloc_mw = Some(operation));
            assert_eq!(call(), RESULT as c_int);
            assert_called("dealloc_mw", &[mw.ptr.word()]);
        }
    }

    fn ibv_bind_mw() {
        let (mine, other) = (<*mut ibv_pd>::sample(1), <*mut ibv_pd>::sample(2));
        let qp = <*mut ibv_qp>::sample(3);
        let mr = Fake::<ibv_mr>::new();
        set!(mr, ibv_mr, pd = mine);
        for release in RELEASES {
            let context = FakeContext::shorter_by(release.verbs_context);
            let mw = ibv_mw::on(&context);
            let window = mw.fake.as_ref().expect("its own memory");
            set!(window, ibv_mw, type_ = ibv_mw_type::IBV_MW_TYPE_1);
            set!(window, ibv_mw, pd = mine);
            let call = |mr, addr, length| {
                let bind_info = ibv_mw_bind_info { mr, addr, length, mw_access_flags: 0 };
                let mut bind = ibv_mw_bind { wr_id: 0, send_flags: 0, bind_info };
                let bind = &raw mut bind;
                // SAFETY: window, request and region are live; the queue pair is only handed on.
                (unsafe { verbs::ibv_bind_mw(qp, mw.ptr, bind) }, bind.word())
            };
            let none = core::ptr::null_mut();
            assert!(call(mr.ptr(), 1, 2).0.is_unsupported());
            let operation =
                recorder!(bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int);
            set!(context.0, verbs_context, context.ops.bind_mw = Some(operation));
            for (mr, addr, length) in [(mr.ptr(), 1, 2), (mr.ptr(), 0, 0), (none, 0, 0)] {
                let (result, bind) = call(mr, addr, length);
                assert_eq!(result, RESULT as c_int);
                assert_called("bind_mw", &[qp.word(), mw.ptr.word(), bind]);
            }
            assert_eq!(call(none, 1, 0).0, libc::EINVAL);
            assert_eq!(call(none, 0, 1).0, libc::EINVAL);
            set!(window, ibv_mw, pd = other);
            assert_eq!(call(mr.ptr(), 1, 2).0, libc::EPERM);
            set!(window, ibv_mw, type_ = ibv_mw_type::IBV_MW_TYPE_2);
            assert_eq!(call(mr.ptr(), 1, 2).0, libc::EINVAL);
            assert_eq!(calls(), []);
        }
    }

    fn ibv_inc_rkey() {
        let expected = [
            (0, 0x1), (0xff, 0), (0x12345678, 0x12345679), (0x123456ff, 0x12345600), (0xffffffff, 0xffffff00),
        ];
        for (key, next) in expected {
            assert_eq!(verbs::ibv_inc_rkey(key), next);
        }
    }

    fn ibv_memcpy_from_dm() {
        let dm = Fake::<ibv_dm>::new();
        let operation = recorder!(memcpy_from_dm(
            to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize,
        ) -> c_int);
        set!(dm, ibv_dm, memcpy_from_dm = Some(operation));
        let to = AbiWord::sample(1);
        // SAFETY: the memory is live and has the operation, which uses no argument.
        assert_eq!(unsafe { verbs::ibv_memcpy_from_dm(to, dm.ptr(), 2, 3) }, RESULT as c_int);
        assert_called("memcpy_from_dm", &[to.word(), dm.ptr().word(), 2, 3]);
    }
}
