//! Fake mlx5 memory keys and mlx5 requests. Their arguments are recorded.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::{Arc, Mutex};

use sideway::sys::Mlx5dv;
use sideway::sys::types::*;

use super::device::{self, world_of};
use super::posting::{own_operation, own_setter};
use super::queue_pair::Qp;
use super::{FakeWorld, refuses};

/// The arguments of keys and requests, in order. Requests are included when they are built, even if
/// they are not posted.
#[derive(Debug, Default)]
pub struct Keys {
    pub requests: Mutex<Vec<OwnRequest>>,
    /// The flags and entries of the last key.
    pub mkey: Mutex<Option<(u32, u16)>>,
    /// The arguments of the last data encryption key.
    pub dek: Mutex<Option<DekArguments>>,
    /// The arguments of `mlx5dv_open_device`: flags and mask.
    pub opened: Mutex<Option<(u32, u64)>>,
    /// The error that the next check returns: type, actual and expected value, offset.
    pub error: Mutex<Option<(u32, u64, u64, u64)>>,
}

/// The arguments of `mlx5dv_dek_create`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DekArguments {
    pub key_size: u32,
    pub has_keytag: bool,
    pub opaque: [u8; 8],
    pub key: Vec<u8>,
    pub comp_mask: u64,
    pub has_login: bool,
}

/// Address, length, and the region's key.
pub type Piece = (u64, u32, u32);
/// Address, length, skipped bytes, and the region's key.
pub type Step = (u64, u32, u32, u32);

/// An mlx5 request, or a setter of its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnRequest {
    Memcpy { dest: (u32, u64), src: (u32, u64), length: usize },
    Raw(Vec<u8>),
    MrList { lkey: u32, access: u32, pieces: Vec<Piece> },
    MrInterleaved { lkey: u32, access: u32, repeat_count: u32, steps: Vec<Step> },
    Configure { lkey: u32, setters: u8, conf_flags: u32 },
    Access(u32),
    LayoutList(Vec<Piece>),
    LayoutInterleaved { repeat_count: u32, steps: Vec<Step> },
    Signature { mem: Option<Domain>, wire: Option<Domain>, flags: u32, check_mask: u8, copy_mask: u8 },
    Crypto { dek: usize, encrypt_on_tx: bool, order: u32, unit: u32, tweak: [u8; 16], keytag: [u8; 8] },
}

/// A signature domain: the block size, and the signature after each block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    pub block_size: u32,
    pub signature: Described,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Described {
    T10Dif { bg_type: u32, bg: u16, app_tag: u16, ref_tag: u32, flags: u16 },
    Crc { crc_type: u32, seed: u64 },
}

/// A key, which starts with the public struct.
#[repr(C)]
struct Key {
    mkey: mlx5dv_mkey,
    world: Arc<FakeWorld>,
    /// The library's private data, which requests write.
    configured: u64,
}

struct Dek {
    world: Arc<FakeWorld>,
}

pub(super) fn add_to(table: Mlx5dv) -> Mlx5dv {
    Mlx5dv {
        mlx5dv_open_device: Some(open_device),
        mlx5dv_create_mkey: Some(create_mkey),
        mlx5dv_destroy_mkey: Some(destroy_mkey),
        _mlx5dv_mkey_check: Some(mkey_check),
        mlx5dv_dek_create: Some(dek_create),
        mlx5dv_dek_query: Some(dek_query),
        mlx5dv_dek_destroy: Some(dek_destroy),
        ..table
    }
}

/// Sets the requested operations of a pair.
pub(super) fn install(dv: &mut mlx5dv_qp_ex, asked: u64, world: &FakeWorld) {
    macro_rules! set {
        ($($flag:ident => $($member:ident),+;)+) => {$(
            if asked & u64::from(mlx5dv_qp_create_send_ops_flags::$flag.0) != 0 {
                $(dv.$member = world.has(stringify!($member)).then_some($member as _);)+
            }
        )+};
    }
    set! {
        MLX5DV_QP_EX_WITH_MR_INTERLEAVED => wr_mr_interleaved;
        MLX5DV_QP_EX_WITH_MR_LIST => wr_mr_list;
        MLX5DV_QP_EX_WITH_MKEY_CONFIGURE => wr_mkey_configure, wr_set_mkey_access_flags, wr_set_mkey_layout_list,
            wr_set_mkey_layout_interleaved, wr_set_mkey_sig_block, wr_set_mkey_crypto;
        MLX5DV_QP_EX_WITH_RAW_WQE => wr_raw_wqe;
        MLX5DV_QP_EX_WITH_MEMCPY => wr_memcpy;
    }
}

unsafe extern "C" fn open_device(
    device: *mut ibv_device,
    attr: *mut mlx5dv_context_attr,
) -> *mut ibv_context {
    let world = super::world();
    // SAFETY: the caller passes valid attributes, as C requires.
    let asked = unsafe { ((*attr).flags, (*attr).comp_mask) };
    *world.own.opened.lock().unwrap() = Some(asked);
    // SAFETY: the caller passes a device of the list.
    refuses(world.lies.direct).unwrap_or_else(|| unsafe { device::open_device(device) })
}

unsafe extern "C" fn create_mkey(attr: *mut mlx5dv_mkey_init_attr) -> *mut mlx5dv_mkey {
    // SAFETY: the caller passes valid attributes and a live domain, as C requires.
    unsafe {
        let mlx5dv_mkey_init_attr { pd, create_flags, max_entries } = *attr;
        let world = world_of((*pd).context);
        *world.own.mkey.lock().unwrap() = Some((create_flags, max_entries));
        if let Some(null) = refuses(world.lies.direct) {
            return null;
        }
        (*attr).max_entries = max_entries.next_multiple_of(4);
        let number = world.number() << 8;
        world.born();
        let mkey = mlx5dv_mkey { lkey: number, rkey: number };
        let key = Box::into_raw(Box::new(Key { mkey, world: Arc::clone(&world), configured: 0 }));
        world.uses(pd, key);
        key.cast()
    }
}

unsafe extern "C" fn destroy_mkey(mkey: *mut mlx5dv_mkey) -> c_int {
    let key: *mut Key = mkey.cast();
    // SAFETY: the caller passes a live key that nothing else uses, as C requires.
    unsafe {
        let world = Arc::clone(&(*key).world);
        if !world.dies("mkey") {
            return world.lies.destroy;
        }
        world.goes(key, "memory key");
        drop(Box::from_raw(key));
    }
    0
}

unsafe extern "C" fn mkey_check(mkey: *mut mlx5dv_mkey, error: *mut mlx5dv_mkey_err, size: usize) -> c_int {
    // SAFETY: the caller passes a live key and a valid pointer, as C requires.
    unsafe {
        let world = Arc::clone(&(*mkey.cast::<Key>()).world);
        world.check(size == size_of::<mlx5dv_mkey_err>(), "a size that is not the struct's");
        if let Some((of, actual_value, expected_value, offset)) = world.own.error.lock().unwrap().take() {
            (*error).err_type = mlx5dv_mkey_err_type(of);
            (*error).err.sig = mlx5dv_sig_err { actual_value, expected_value, offset };
        }
        world.lies.mkey_check
    }
}

unsafe extern "C" fn dek_create(
    context: *mut ibv_context,
    attr: *mut mlx5dv_dek_init_attr,
) -> *mut mlx5dv_dek {
    // SAFETY: the caller passes an open context, valid attributes and a live domain.
    unsafe {
        let (world, attr) = (world_of(context), *attr);
        let arguments = DekArguments {
            key_size: attr.key_size.0,
            has_keytag: attr.has_keytag,
            opaque: attr.opaque.map(|byte| byte as u8),
            key: attr.key.iter().map(|byte| *byte as u8).collect(),
            comp_mask: attr.comp_mask,
            has_login: !attr.crypto_login.is_null(),
        };
        *world.own.dek.lock().unwrap() = Some(arguments);
        if let Some(null) = refuses(world.lies.direct) {
            return null;
        }
        world.born();
        let dek = Box::into_raw(Box::new(Dek { world: Arc::clone(&world) }));
        world.uses(attr.pd, dek);
        dek.cast()
    }
}

unsafe extern "C" fn dek_query(dek: *mut mlx5dv_dek, attr: *mut mlx5dv_dek_attr) -> c_int {
    // SAFETY: the caller passes a live key and a valid pointer, as C requires.
    unsafe {
        (*attr).state = mlx5dv_dek_state::MLX5DV_DEK_STATE_ERROR;
        (*attr).opaque = [7; 8];
        Arc::clone(&(*dek.cast::<Dek>()).world).lies.dek_query
    }
}

unsafe extern "C" fn dek_destroy(dek: *mut mlx5dv_dek) -> c_int {
    let dek: *mut Dek = dek.cast();
    // SAFETY: the caller passes a live key that nothing else uses, as C requires.
    unsafe {
        let world = Arc::clone(&(*dek).world);
        if !world.dies("dek") {
            return world.lies.destroy;
        }
        world.goes(dek, "data encryption key");
        drop(Box::from_raw(dek));
    }
    0
}

/// The pair that contains this struct.
fn pair_of(qp: *mut mlx5dv_qp_ex) -> *mut ibv_qp {
    qp.wrapping_byte_sub(offset_of!(Qp, dv)).cast()
}

unsafe fn note(qp: *mut mlx5dv_qp_ex, request: OwnRequest) {
    // SAFETY: the caller passes a live pair, as C requires.
    unsafe { Qp::of(pair_of(qp)) }.world.own.requests.lock().unwrap().push(request);
}

/// Records a request about a key that announces `setters` setters. Returns the request's number.
unsafe fn configures(qp: *mut mlx5dv_qp_ex, mkey: *mut mlx5dv_mkey, setters: u8) -> u32 {
    // SAFETY: the caller passes a live pair and a live key, which nobody else uses.
    unsafe {
        let inline = own_operation(pair_of(qp), ibv_wc_opcode::IBV_WC_DRIVER1, setters);
        let world = Arc::clone(&(*mkey.cast::<Key>()).world);
        world.check(inline, "a layout without IBV_SEND_INLINE");
        (*mkey.cast::<Key>()).configured += 1;
        (*mkey).lkey
    }
}

unsafe fn pieces(count: u16, list: *const ibv_sge) -> Vec<Piece> {
    // SAFETY: the caller's list has this number of entries, as C requires.
    let read = |n: u16| unsafe { list.add(n.into()).read() };
    (0..count).map(read).map(|sge| (sge.addr, sge.length, sge.lkey)).collect()
}

unsafe fn steps(count: u16, data: *const mlx5dv_mr_interleaved) -> Vec<Step> {
    // SAFETY: the caller's list has this number of entries, as C requires.
    let read = |n: u16| unsafe { data.add(n.into()).read() };
    (0..count).map(read).map(|step| (step.addr, step.bytes_count, step.bytes_skip, step.lkey)).collect()
}

unsafe extern "C" fn wr_mr_interleaved(
    qp: *mut mlx5dv_qp_ex,
    mkey: *mut mlx5dv_mkey,
    access: u32,
    repeat_count: u32,
    count: u16,
    data: *mut mlx5dv_mr_interleaved,
) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe {
        let lkey = configures(qp, mkey, 0);
        note(qp, OwnRequest::MrInterleaved { lkey, access, repeat_count, steps: steps(count, data) });
    }
}

unsafe extern "C" fn wr_mr_list(
    qp: *mut mlx5dv_qp_ex,
    mkey: *mut mlx5dv_mkey,
    access: u32,
    count: u16,
    list: *mut ibv_sge,
) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe {
        let lkey = configures(qp, mkey, 0);
        note(qp, OwnRequest::MrList { lkey, access, pieces: pieces(count, list) });
    }
}

unsafe extern "C" fn wr_mkey_configure(
    qp: *mut mlx5dv_qp_ex,
    mkey: *mut mlx5dv_mkey,
    setters: u8,
    attr: *mut mlx5dv_mkey_conf_attr,
) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe {
        let lkey = configures(qp, mkey, setters);
        let world = Arc::clone(&(*mkey.cast::<Key>()).world);
        world.check((*attr).comp_mask == 0, "a mask that is not 0");
        note(qp, OwnRequest::Configure { lkey, setters, conf_flags: (*attr).conf_flags });
    }
}

unsafe fn sets(qp: *mut mlx5dv_qp_ex, request: OwnRequest) {
    // SAFETY: the caller passes a live pair, as C requires.
    unsafe {
        own_setter(pair_of(qp));
        note(qp, request);
    }
}

unsafe extern "C" fn wr_set_mkey_access_flags(qp: *mut mlx5dv_qp_ex, access: u32) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe { sets(qp, OwnRequest::Access(access)) };
}

unsafe extern "C" fn wr_set_mkey_layout_list(qp: *mut mlx5dv_qp_ex, count: u16, list: *const ibv_sge) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe { sets(qp, OwnRequest::LayoutList(pieces(count, list))) };
}

unsafe extern "C" fn wr_set_mkey_layout_interleaved(
    qp: *mut mlx5dv_qp_ex,
    repeat_count: u32,
    count: u16,
    data: *const mlx5dv_mr_interleaved,
) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe { sets(qp, OwnRequest::LayoutInterleaved { repeat_count, steps: steps(count, data) }) };
}

unsafe fn domain(world: &FakeWorld, domain: *const mlx5dv_sig_block_domain) -> Option<Domain> {
    // SAFETY: the caller's domain is null or valid, and points to the struct of its type.
    unsafe {
        let mlx5dv_sig_block_domain { sig_type, sig, block_size, comp_mask } = *domain.as_ref()?;
        world.check(comp_mask == 0, "a mask that is not 0");
        let signature = if sig_type == mlx5dv_sig_type::MLX5DV_SIG_TYPE_T10DIF {
            let mlx5dv_sig_t10dif { bg_type, bg, app_tag, ref_tag, flags } = *sig.dif;
            Described::T10Dif { bg_type: bg_type.0, bg, app_tag, ref_tag, flags }
        } else {
            let mlx5dv_sig_crc { type_, seed } = *sig.crc;
            Described::Crc { crc_type: type_.0, seed }
        };
        Some(Domain { block_size: block_size.0, signature })
    }
}

unsafe extern "C" fn wr_set_mkey_sig_block(qp: *mut mlx5dv_qp_ex, attr: *const mlx5dv_sig_block_attr) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe {
        let mlx5dv_sig_block_attr { mem, wire, flags, check_mask, copy_mask, comp_mask } = *attr;
        let world = Qp::of(pair_of(qp)).world;
        world.check(comp_mask == 0, "a mask that is not 0");
        let (mem, wire) = (domain(world, mem), domain(world, wire));
        sets(qp, OwnRequest::Signature { mem, wire, flags, check_mask, copy_mask });
    }
}

unsafe extern "C" fn wr_set_mkey_crypto(qp: *mut mlx5dv_qp_ex, attr: *const mlx5dv_crypto_attr) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe {
        let attr = *attr;
        // Accesses the key, which must be alive.
        let _ = Arc::strong_count(&(*attr.dek.cast::<Dek>()).world);
        sets(
            qp,
            OwnRequest::Crypto {
                dek: attr.dek.addr(),
                encrypt_on_tx: attr.encrypt_on_tx,
                order: attr.signature_crypto_order.0,
                unit: attr.data_unit_size.0,
                tweak: attr.initial_tweak.map(|byte| byte as u8),
                keytag: attr.keytag.map(|byte| byte as u8),
            },
        );
    }
}

unsafe extern "C" fn wr_memcpy(
    qp: *mut mlx5dv_qp_ex,
    dest_lkey: u32,
    dest_addr: u64,
    src_lkey: u32,
    src_addr: u64,
    length: usize,
) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe {
        own_operation(pair_of(qp), ibv_wc_opcode::IBV_WC_DRIVER3, 0);
        note(qp, OwnRequest::Memcpy { dest: (dest_lkey, dest_addr), src: (src_lkey, src_addr), length });
    }
}

unsafe extern "C" fn wr_raw_wqe(qp: *mut mlx5dv_qp_ex, wqe: *const c_void) {
    // SAFETY: the caller keeps the contract of the C function: the request has the stated length,
    // and is aligned for words.
    unsafe {
        own_operation(pair_of(qp), ibv_wc_opcode::IBV_WC_DRIVER2, 0);
        let word = u32::from_be(wqe.cast::<u32>().add(1).read());
        let bytes = ptr::slice_from_raw_parts(wqe.cast::<u8>(), (word & 0x3f) as usize * 16);
        note(qp, OwnRequest::Raw((*bytes).to_vec()));
    }
}
