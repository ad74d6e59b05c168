//! Fake direct verbs of a device that belongs to both mlx5 and EFA. Their arguments are recorded.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::{Arc, Mutex};

use sideway::Provider;
use sideway::sys::types::*;
use sideway::sys::{Efadv, Mlx5dv, Verbs};

use super::completion::{self, Cq};
use super::device::{reg_mr, world_of};
use super::posting::{self, set_dc_addr};
use super::queue_pair::{Driver, Qp, View, new_qp};
use super::{FakeWorld, keys, refuses, set_errno};

/// The last arguments of each function.
#[derive(Debug, Default)]
pub struct Direct {
    pub qp: Mutex<Option<QpArguments>>,
    pub mlx5_cq: Mutex<Option<mlx5dv_cq_init_attr>>,
    pub efa_qp: Mutex<Option<efadv_qp_init_attr>>,
    /// The queue's mask, fields and flags.
    pub efa_cq: Mutex<Option<[u64; 3]>>,
    /// The struct sizes that were passed to EFA's functions.
    pub sizes: Mutex<Vec<(&'static str, u32)>>,
    pub dmabuf: Mutex<Option<DmabufArguments>>,
    /// The targets of DC initiators' requests, including lists that were not posted.
    pub addresses: Mutex<Vec<DcAddress>>,
    /// The stream that was reset.
    pub stream: Mutex<Option<u16>>,
}

/// The arguments of `mlx5dv_create_qp` or `efadv_create_qp_ex`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpArguments {
    pub qp_type: u32,
    pub comp_mask: u32,
    pub send_ops: u64,
    pub srq: bool,
    pub own_mask: u64,
    pub create_flags: u32,
    pub dc_type: u32,
    /// A target's key, or an initiator's streams in the first two bytes.
    pub dc_union: u64,
    /// The mlx5 operations.
    pub own_ops: u64,
}

/// The target of a DC initiator's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcAddress {
    pub number: u32,
    pub access_key: u64,
    pub stream: Option<u16>,
}

/// The arguments of `mlx5dv_reg_dmabuf_mr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmabufArguments {
    pub offset: u64,
    pub length: usize,
    pub iova: u64,
    pub fd: c_int,
    pub access: c_int,
    pub mlx5_access: c_int,
}

/// # Safety
///
/// The contract of `Provider::from_tables` applies.
pub(super) unsafe fn provider(name: &'static str, verbs: Verbs) -> Provider {
    let mlx5dv = Mlx5dv {
        mlx5dv_is_supported: Some(is_supported),
        mlx5dv_query_device: query_mlx5,
        mlx5dv_create_qp: create_mlx5_qp,
        mlx5dv_create_cq: create_mlx5_cq,
        mlx5dv_qp_ex_from_ibv_qp_ex: Some(qp_ex_from_ibv_qp_ex),
        mlx5dv_reg_dmabuf_mr: Some(reg_dmabuf_mr),
        mlx5dv_get_data_direct_sysfs_path: Some(data_direct_path),
        mlx5dv_dci_stream_id_reset: Some(stream_id_reset),
        ..keys::add_to(Mlx5dv::unsupported())
    };
    let efadv = Efadv {
        efadv_query_device: Some(query_efa),
        efadv_query_ah: Some(query_ah),
        efadv_query_mr: Some(query_mr),
        efadv_create_qp_ex: Some(create_efa_qp),
        efadv_create_cq: Some(create_efa_cq),
        efadv_cq_from_ibv_cq_ex: Some(cq_from_ibv_cq_ex),
        ..Efadv::unsupported()
    };
    // SAFETY: the caller keeps the contract of `Provider::from_tables`. These functions behave like
    // the real ones, as far as callers can rely on it.
    unsafe {
        Provider::from_tables_with_direct(name, verbs, Some(super::cm::table()), Some(mlx5dv), Some(efadv))
    }
}

/// Old libraries, which can detect their devices, but have no newer functions.
///
/// # Safety
///
/// The contract of `Provider::from_tables` applies.
pub(super) unsafe fn old_provider(name: &'static str, verbs: Verbs) -> Provider {
    let mlx5dv = Mlx5dv {
        mlx5dv_is_supported: Some(is_supported),
        mlx5dv_create_qp: create_mlx5_qp,
        ..Mlx5dv::unsupported()
    };
    let efadv = Efadv { efadv_query_device: Some(query_efa), ..Efadv::unsupported() };
    // SAFETY: the caller keeps the contract of `Provider::from_tables`. These functions behave like
    // the real ones, as far as callers can rely on it.
    unsafe {
        Provider::from_tables_with_direct(
            name,
            verbs,
            Some(super::cm::old_table()),
            Some(mlx5dv),
            Some(efadv),
        )
    }
}

fn note<T>(place: &Mutex<Option<T>>, value: T) {
    *place.lock().unwrap() = Some(value);
}

/// The world of a context, for a vendor's function.
unsafe fn own(context: *mut ibv_context) -> Arc<FakeWorld> {
    // SAFETY: the caller passes an open context, as C requires.
    let world = unsafe { world_of(context) };
    world.check(!world.lies.no_direct_verbs, "a direct verb on another's device");
    world
}

unsafe extern "C" fn is_supported(device: *mut ibv_device) -> bool {
    assert!(!device.is_null());
    !super::world().lies.no_direct_verbs
}

unsafe extern "C" fn query_mlx5(context: *mut ibv_context, attr: *mut mlx5dv_context) -> c_int {
    // SAFETY: the caller passes an open context and a valid pointer, as C requires.
    unsafe {
        let world = own(context);
        use mlx5dv_context_comp_mask as M;
        // The requested fields that this library knows.
        let known = M::MLX5DV_CONTEXT_MASK_CQE_COMPRESION.0
            | M::MLX5DV_CONTEXT_MASK_DCI_STREAMS.0
            | M::MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD.0
            | M::MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD.0
            | if world.has("max_wr_memcpy_length") { M::MLX5DV_CONTEXT_MASK_WR_MEMCPY_LENGTH.0 } else { 0 };
        (*attr).comp_mask &= u64::from(known);
        (*attr).max_wr_memcpy_length = world.lies.max_memcpy;
        (*attr).sig_caps = mlx5dv_sig_caps { block_size: 1 << 3, block_prot: 3, t10dif_bg: 1, crc_type: 6 };
        (*attr).crypto_caps = mlx5dv_crypto_caps {
            failed_selftests: 0,
            crypto_engines: 6,
            wrapped_import_method: 1,
            log_max_num_deks: 5,
            flags: 3,
        };
        (*attr).flags = u64::from(mlx5dv_context_flags::MLX5DV_CONTEXT_FLAGS_CQE_128B_PAD.0);
        (*attr).cqe_comp_caps = mlx5dv_cqe_comp_caps { max_num: 64, supported_format: 3 };
        (*attr).dci_streams_caps =
            mlx5dv_dci_streams_caps { max_log_num_concurent: 4, max_log_num_errored: 2 };
        world.lies.direct
    }
}

unsafe extern "C" fn create_mlx5_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    own_attr: *mut mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller passes an open context and valid attributes, which start with the classic
    // ones.
    unsafe {
        let world = own(context);
        let dc = (*own_attr).dc_init_attr;
        let arguments = QpArguments {
            qp_type: (*attr).qp_type.0,
            comp_mask: (*attr).comp_mask,
            send_ops: (*attr).send_ops_flags,
            srq: !(*attr).srq.is_null(),
            own_mask: (*own_attr).comp_mask,
            create_flags: (*own_attr).create_flags,
            dc_type: dc.dc_type.0,
            dc_union: dc.__bindgen_anon_1.dct_access_key,
            own_ops: (*own_attr).send_ops_flags,
        };
        note(&world.direct.qp, arguments);
        if let Some(null) = refuses(world.lies.direct) {
            return null;
        }
        let qp = new_qp(Arc::clone(&world), (*attr).pd, &mut *attr.cast());
        use mlx5dv_qp_init_attr_mask as M;
        let has = |mask: M| arguments.own_mask & u64::from(mask.0) != 0;
        if has(M::MLX5DV_QP_INIT_ATTR_MASK_DC) && dc.dc_type == mlx5dv_dc_type::MLX5DV_DCTYPE_DCT {
            (*qp).driver = Driver::DcTarget;
            (*qp).ex.qp_base.qp_num = 0;
            return qp.cast();
        }
        if has(M::MLX5DV_QP_INIT_ATTR_MASK_DC) {
            (*qp).driver = Driver::DcInitiator;
            (*qp).dv.wr_set_dc_addr = world.has("wr_set_dc_addr").then_some(wr_set_dc_addr as _);
            let streams = has(M::MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS) && world.has("wr_set_dc_addr_stream");
            (*qp).dv.wr_set_dc_addr_stream = streams.then_some(wr_set_dc_addr_stream as _);
        }
        if has(M::MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS) {
            keys::install(&mut (*qp).dv, arguments.own_ops, &world);
        }
        posting::install(&raw mut (*qp).ex, arguments.send_ops, &world);
        qp.cast()
    }
}

unsafe extern "C" fn qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex {
    // SAFETY: every pair of this provider is a `Qp`, and the caller passes a live one.
    unsafe {
        let has = Qp::of(qp.cast()).world.has("mlx5dv_qp_ex");
        if has { &raw mut (*qp.cast::<Qp>()).dv } else { ptr::null_mut() }
    }
}

unsafe extern "C" fn stream_id_reset(qp: *mut ibv_qp, stream: u16) -> c_int {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, list, driver, .. } = unsafe { Qp::of(qp) };
    world.check(
        driver == Driver::DcInitiator && !list.is_open(),
        "a stream of no initiator, or while a list is open",
    );
    *world.direct.stream.lock().unwrap() = Some(stream);
    world.lies.stream_reset
}

/// The pair that contains this struct.
fn pair_of(qp: *mut mlx5dv_qp_ex) -> *mut ibv_qp {
    qp.wrapping_byte_sub(offset_of!(Qp, dv)).cast()
}

unsafe extern "C" fn wr_set_dc_addr(qp: *mut mlx5dv_qp_ex, ah: *mut ibv_ah, number: u32, access_key: u64) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe { set_dc_addr(pair_of(qp), ah, DcAddress { number, access_key, stream: None }) };
}

unsafe extern "C" fn wr_set_dc_addr_stream(
    qp: *mut mlx5dv_qp_ex,
    ah: *mut ibv_ah,
    number: u32,
    access_key: u64,
    stream: u16,
) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe { set_dc_addr(pair_of(qp), ah, DcAddress { number, access_key, stream: Some(stream) }) };
}

unsafe extern "C" fn create_mlx5_cq(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
    own_attr: *mut mlx5dv_cq_init_attr,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    unsafe {
        let world = own(context);
        note(&world.direct.mlx5_cq, *own_attr);
        refuses(world.lies.direct).unwrap_or_else(|| completion::create_cq_ex(context, attr))
    }
}

unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mlx5_access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a live domain, as C requires.
    unsafe {
        let world = own((*pd).context);
        note(&world.direct.dmabuf, DmabufArguments { offset, length, iova, fd, access, mlx5_access });
        let address: *mut c_void = ptr::without_provenance_mut(iova as usize);
        refuses(world.lies.direct).unwrap_or_else(|| reg_mr(pd, address, length, access))
    }
}

unsafe extern "C" fn data_direct_path(context: *mut ibv_context, to: *mut c_char, room: usize) -> c_int {
    const PATH: &[u8] = b"/devices/pci0000:00/0000:00:01.0\0";
    // SAFETY: the caller passes an open context, and a buffer of this length.
    unsafe {
        let world = own(context);
        world.check(room >= PATH.len(), "there is room for a path");
        PATH.as_ptr().cast::<c_char>().copy_to(to, PATH.len());
        world.lies.direct
    }
}

unsafe extern "C" fn query_efa(context: *mut ibv_context, attr: *mut efadv_device_attr, size: u32) -> c_int {
    // SAFETY: the caller passes an open context and a valid pointer, as C requires.
    unsafe {
        let world = world_of(context);
        if world.lies.no_direct_verbs {
            return libc::EOPNOTSUPP;
        }
        world.direct.sizes.lock().unwrap().push(("efadv_query_device", size));
        (*attr).max_sq_wr = 256;
        (*attr).max_rdma_size = 1 << 30;
        (*attr).inline_buf_size = 32;
        (*attr).device_caps = world.lies.efa_capabilities;
        world.lies.efadv_query_device
    }
}

unsafe extern "C" fn query_ah(ah: *mut ibv_ah, attr: *mut efadv_ah_attr, size: u32) -> c_int {
    // SAFETY: the caller passes a live handle and a valid pointer, as C requires.
    unsafe {
        let world = own((*ah).context);
        world.direct.sizes.lock().unwrap().push(("efadv_query_ah", size));
        (*attr).ahn = 77;
        world.lies.direct
    }
}

unsafe extern "C" fn query_mr(mr: *mut ibv_mr, attr: *mut efadv_mr_attr, size: u32) -> c_int {
    // SAFETY: the caller passes a live region and a valid pointer, as C requires.
    unsafe {
        let world = own((*mr).context);
        world.direct.sizes.lock().unwrap().push(("efadv_query_mr", size));
        (*attr).ic_id_validity = EFADV_MR_ATTR_VALIDITY_RDMA_READ_IC_ID as u16;
        ((*attr).recv_ic_id, (*attr).rdma_read_ic_id) = (3, 4);
        world.lies.direct
    }
}

unsafe extern "C" fn create_efa_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    own_attr: *mut efadv_qp_init_attr,
    size: u32,
) -> *mut ibv_qp {
    // SAFETY: the caller passes an open context and valid attributes, which start with the classic
    // ones.
    unsafe {
        let world = own(context);
        world.direct.sizes.lock().unwrap().push(("efadv_create_qp_ex", size));
        note(&world.direct.efa_qp, *own_attr);
        let arguments = QpArguments {
            qp_type: (*attr).qp_type.0,
            comp_mask: (*attr).comp_mask,
            send_ops: (*attr).send_ops_flags,
            srq: !(*attr).srq.is_null(),
            own_mask: (*own_attr).comp_mask,
            create_flags: 0,
            dc_type: 0,
            dc_union: 0,
            own_ops: 0,
        };
        note(&world.direct.qp, arguments);
        if let Some(null) = refuses(world.lies.direct) {
            return null;
        }
        let qp = new_qp(Arc::clone(&world), (*attr).pd, &mut *attr.cast());
        (*qp).driver = Driver::Srd;
        posting::install(&raw mut (*qp).ex, arguments.send_ops, &world);
        qp.cast()
    }
}

unsafe extern "C" fn create_efa_cq(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
    own_attr: *mut efadv_cq_init_attr,
    size: u32,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    unsafe {
        let world = own(context);
        world.direct.sizes.lock().unwrap().push(("efadv_create_cq", size));
        let own_attr = *own_attr;
        note(&world.direct.efa_cq, [own_attr.comp_mask, own_attr.wc_flags, own_attr.flags]);
        if world.lies.direct != 0 {
            set_errno(world.lies.direct);
            return ptr::null_mut();
        }
        let cq = completion::create_cq_ex(context, attr);
        let efa = &raw mut (*cq.cast::<Cq>()).efa;
        let asked = |flag: u32| own_attr.wc_flags & u64::from(flag) != 0;
        if asked(EFADV_WC_EX_WITH_SGID) && world.has("wc_read_sgid") {
            (*efa).wc_read_sgid = Some(wc_read_sgid);
        }
        if asked(EFADV_WC_EX_WITH_IS_UNSOLICITED) && world.has("wc_is_unsolicited") {
            (*efa).wc_is_unsolicited = Some(wc_is_unsolicited);
        }
        cq
    }
}

unsafe extern "C" fn cq_from_ibv_cq_ex(cq: *mut ibv_cq_ex) -> *mut efadv_cq {
    // SAFETY: every queue of this provider is a `Cq`, and the caller passes a live one.
    unsafe {
        let has = Cq::of(cq.cast()).0.has("efadv_cq");
        if has { &raw mut (*cq.cast::<Cq>()).efa } else { ptr::null_mut() }
    }
}

/// Checks that the cursor of the queue is on a completion. Returns its status.
unsafe fn reads(cq: *mut efadv_cq) -> c_int {
    // SAFETY: the caller passes a live queue, as C requires.
    let (world, state) = unsafe { Cq::of(cq.wrapping_byte_sub(offset_of!(Cq, efa)).cast()) };
    world.check(state.is_on_one(), "a field of EFA's is read without a completion");
    world.lies.direct
}

/// The sender is unknown if the completion's number is odd.
unsafe extern "C" fn wc_read_sgid(cq: *mut efadv_cq, gid: *mut ibv_gid) -> c_int {
    // SAFETY: the caller passes a live queue and a valid pointer, as C requires.
    unsafe {
        let result = reads(cq);
        let ex: *mut ibv_cq_ex = cq.wrapping_byte_sub(offset_of!(Cq, efa)).cast();
        let number = (*ex).wr_id as u8;
        gid.write(ibv_gid { raw: [number; 16] });
        if number % 2 == 1 { result } else { -libc::ENOENT }
    }
}

unsafe extern "C" fn wc_is_unsolicited(cq: *mut efadv_cq) -> bool {
    // SAFETY: the caller passes a live queue, as C requires.
    unsafe { reads(cq) == 0 }
}
