//! The direct verbs of mlx5.

use core::ffi::{c_int, c_void};

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Mlx5dv, mlx5dv};

use super::fake::*;
use super::word::*;

struct_cases! {
    QP_CASES, mlx5dv_qp_ex of mlx5dv, shorter by |release| release.mlx5dv_qp_ex;
    mlx5dv_wr_set_dc_addr(ah: *mut ibv_ah, dctn: u32, key: u64) = wr_set_dc_addr;
    mlx5dv_wr_set_dc_addr_stream(ah: *mut ibv_ah, dctn: u32, key: u64, stream: u16) = wr_set_dc_addr_stream;
    mlx5dv_wr_mr_interleaved(
        mkey: *mut mlx5dv_mkey, access: u32, repeat: u32, n: u16, data: *mut mlx5dv_mr_interleaved,
    ) = wr_mr_interleaved;
    mlx5dv_wr_mr_list(mkey: *mut mlx5dv_mkey, access: u32, n: u16, list: *mut ibv_sge) = wr_mr_list;
    mlx5dv_wr_mkey_configure(mkey: *mut mlx5dv_mkey, setters: u8, attr: *mut mlx5dv_mkey_conf_attr)
        = wr_mkey_configure;
    mlx5dv_wr_set_mkey_access_flags(access: u32) = wr_set_mkey_access_flags;
    mlx5dv_wr_set_mkey_layout_list(n: u16, list: *const ibv_sge) = wr_set_mkey_layout_list;
    mlx5dv_wr_set_mkey_layout_interleaved(repeat: u32, n: u16, data: *const mlx5dv_mr_interleaved)
        = wr_set_mkey_layout_interleaved;
    mlx5dv_wr_set_mkey_sig_block(attr: *const mlx5dv_sig_block_attr) = wr_set_mkey_sig_block;
    mlx5dv_wr_set_mkey_crypto(attr: *const mlx5dv_crypto_attr) = wr_set_mkey_crypto;
    mlx5dv_wr_memcpy(to_key: u32, to: u64, from_key: u32, from: u64, length: usize) = wr_memcpy;
    mlx5dv_wr_raw_wqe(wqe: *const c_void) = wr_raw_wqe;
}

/// A command of four words without alignment.
#[repr(C, packed)]
struct DevxCommand {
    _before: u8,
    bytes: [u8; 16],
}

impl DevxCommand {
    fn full() -> Self {
        Self { _before: 0, bytes: [0xff; 16] }
    }

    fn ptr(&mut self) -> *mut c_void {
        (&raw mut self.bytes).cast()
    }
}

/// A command of ones after the C header's functions have set the fields of [`fill`].
const FILLED: [u8; 16] =
    [0xeb, 0xff, 0xff, 0xff, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x0f, 0xff, 0xff, 0xbc, 0xff, 0xff];

fn fill(command: &mut DevxCommand) {
    for (value, offset, size) in
        [(0x5, 3, 4), (0x12345678, 32, 32), (0xfff, 64 + 20, 12), (0, 64, 20), (0xabc, 96 + 8, 8)]
    {
        // SAFETY: the fields lie within the command.
        unsafe { mlx5dv::devx_set(command.ptr(), value, offset, size) };
    }
}

tests! {
    fn mlx5dv_mkey_check() {
        let (mkey, info) = (AbiWord::sample(1), AbiWord::sample(2));
        // SAFETY: no argument is used.
        let call = |lib: &Mlx5dv| unsafe { mlx5dv::mlx5dv_mkey_check(lib, mkey, info) };
        assert!(call(&Mlx5dv::unsupported()).is_unsupported());
        let check =
            recorder!(_mlx5dv_mkey_check(key: *mut mlx5dv_mkey, info: *mut mlx5dv_mkey_err, size: usize) -> c_int);
        let lib = Mlx5dv { _mlx5dv_mkey_check: Some(check), ..Mlx5dv::unsupported() };
        assert_eq!(call(&lib), RESULT as c_int);
        assert_called("_mlx5dv_mkey_check", &[mkey.word(), info.word(), size_of::<mlx5dv_mkey_err>().word()]);
    }

    fn mlx5dv_create_flow() {
        let (matcher, value, actions) = (AbiWord::sample(1), AbiWord::sample(2), AbiWord::sample(4));
        // SAFETY: no argument is used.
        let call = |lib: &Mlx5dv| unsafe {
            clear_errno();
            mlx5dv::mlx5dv_create_flow(lib, matcher, value, 3, actions)
        };
        assert!(call(&Mlx5dv::unsupported()).is_unsupported());
        let create = recorder!(__mlx5dv_create_flow(
            matcher: *mut mlx5dv_flow_matcher, value: *mut mlx5dv_flow_match_parameters, n: usize,
            actions: *mut mlx5dv_flow_action_attr, size: usize,
        ) -> *mut ibv_flow);
        let lib = Mlx5dv { __mlx5dv_create_flow: Some(create), ..Mlx5dv::unsupported() };
        assert_eq!(call(&lib), AbiWord::sample(RESULT));
        assert_called("__mlx5dv_create_flow", &[matcher.word(), value.word(), 3, actions.word(), 24]);
    }

    fn mlx5dv_query_port() {
        let (context, info) = (AbiWord::sample(1), AbiWord::sample(3));
        // SAFETY: no argument is used.
        let call = |lib: &Mlx5dv| unsafe { mlx5dv::mlx5dv_query_port(lib, context, 2, info) };
        assert!(call(&Mlx5dv::unsupported()).is_unsupported());
        let query = recorder!(_mlx5dv_query_port(
            context: *mut ibv_context, port: u32, info: *mut mlx5_ib_uapi_query_port, size: usize,
        ) -> c_int);
        let lib = Mlx5dv { _mlx5dv_query_port: Some(query), ..Mlx5dv::unsupported() };
        assert_eq!(call(&lib), RESULT as c_int);
        let size = size_of::<mlx5_ib_uapi_query_port>().word();
        assert_called("_mlx5dv_query_port", &[context.word(), 2, info.word(), size]);
    }

    fn mlx5dv_get_export_sizes() {
        let mut sizes =
            mlx5dv_export_sizes { var_attrs_size: 1, devx_umem_attrs_size: 2, devx_obj_attrs_size: 3 };
        let sizes = &raw mut sizes;
        // SAFETY: the struct is live.
        let call = |lib: &Mlx5dv| unsafe {
            clear_errno();
            mlx5dv::mlx5dv_get_export_sizes(lib, sizes)
        };
        let get = recorder!(_mlx5dv_get_export_sizes(sizes: *mut mlx5dv_export_sizes, size: usize));
        call(&Mlx5dv { _mlx5dv_get_export_sizes: Some(get), ..Mlx5dv::unsupported() });
        assert_called("_mlx5dv_get_export_sizes", &[sizes.word(), 12]);
        call(&Mlx5dv::unsupported());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        // SAFETY: the struct is live.
        let left = unsafe { sizes.read() };
        assert_eq!((left.var_attrs_size, left.devx_umem_attrs_size, left.devx_obj_attrs_size), (0, 0, 0));
    }

    fn mlx5dv_ts_to_ns() {
        let clock = |nsec, last_cycles, frac, mult, shift, mask| {
            mlx5dv_clock_info { nsec, last_cycles, frac, mult, shift, mask }
        };
        let stamps = [500, 600, 400, 0x10, 0x8000, 0xffff, 0];
        // The results of the C header's function for these timestamps.
        let expected = [
            (
                clock(1_000_000, 500, 7, 1 << 21, 21, 0xffff),
                [0xf4240, 0xf42a4, 0xf41dd, 0xf405d, 0xfc04c, 0xf404c, 0xf404d],
            ),
            (
                clock(123_456_789_012, 0xfff0, 12345, 3_000_000, 20, 0xffff),
                [
                    0x1c_be99_1fd8, 0x1c_be99_20f6, 0x1c_be99_1eba, 0x1c_be99_1a6f, 0x1c_be97_ac0c, 0x1c_be99_1a3e,
                    0x1c_be99_1a41,
                ],
            ),
            (clock(5, u64::MAX - 9, 1, 1, 0, u64::MAX), [0x204, 0x268, 0x1a0, 0x20, 0x8010, 0x1000f, 0x10]),
            (
                clock(0, 10, 0, 1, 0, 0xff),
                [
                    0xffff_ffff_ffff_ffea, 0x4e, 0xffff_ffff_ffff_ff86, 0x6, 0xffff_ffff_ffff_fff6,
                    0xffff_ffff_ffff_fff5, 0xffff_ffff_ffff_fff6,
                ],
            ),
        ];
        for (mut clock, nanoseconds) in expected {
            // SAFETY: the clock information is live.
            let found = stamps.map(|stamp| unsafe { mlx5dv::mlx5dv_ts_to_ns(&raw mut clock, stamp) });
            assert_eq!(found, nanoseconds);
        }
    }

    fn devx_set() {
        let mut command = DevxCommand::full();
        fill(&mut command);
        assert_eq!({ command.bytes }, FILLED);
    }

    fn devx_get() {
        let mut command = DevxCommand { _before: 0, bytes: FILLED };
        for (value, offset, size) in [(0x5, 3, 4), (0x12345678, 32, 32), (0xbc, 96 + 8, 8), (0xe, 0, 4)] {
            // SAFETY: the fields lie within the command.
            assert_eq!(unsafe { mlx5dv::devx_get(command.ptr(), offset, size) }, value);
        }
    }

    fn devx_set64() {
        let mut command = DevxCommand { _before: 0, bytes: FILLED };
        // SAFETY: the field lies within the command.
        unsafe { mlx5dv::devx_set64(command.ptr(), 0x0102_0304_0506_0708, 64) };
        let mut expected = FILLED;
        expected[8..].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!({ command.bytes }, expected);
    }

    fn devx_get64() {
        let mut command = DevxCommand { _before: 0, bytes: FILLED };
        // SAFETY: the field lies within the command.
        assert_eq!(unsafe { mlx5dv::devx_get64(command.ptr(), 0) }, 0xebff_ffff_1234_5678);
    }
}
