//! Detection of mlx5 devices, and their capabilities.

use std::fmt;
use std::io;
use std::ptr::NonNull;

use rdma_mummy_sys::Mlx5dv;
use rdma_mummy_sys::types::{
    mlx5dv_context, mlx5dv_context_attr, mlx5dv_context_attr_flags, mlx5dv_context_comp_mask as M,
    mlx5dv_context_flags as F, mlx5dv_cqe_comp_res_format,
};

use super::crypto::WRAPPED;
use super::{
    BlockSizes, CqeFormats, CrcTypes, CryptoCapabilities, CryptoEngines, CryptoFlags, GuardTypes,
    SignatureCapabilities, SignatureTypes,
};
use crate::direct::{check, no_library};
use crate::error::Error;
use crate::ibverbs::Unsupported;
use crate::ibverbs::device::Device;
use crate::ibverbs::device_context::DeviceContext;

/// The direct verbs of an open mlx5 device.
///
/// Clones refer to the same context, and keep it open.
#[derive(Clone)]
pub struct DirectVerbs {
    context: DeviceContext,
    lib: &'static Mlx5dv,
}

impl DirectVerbs {
    /// The direct verbs of a device, if it is mlx5's (`mlx5dv_is_supported`). The first call loads
    /// `libmlx5.so.1`.
    ///
    /// # Errors
    ///
    /// Fails if the library is missing or too old, or belongs to another libibverbs. Also fails if
    /// the device is not mlx5's.
    ///
    /// # References
    ///
    /// `man mlx5dv_is_supported`
    pub fn of(context: &DeviceContext) -> Result<Self, Error> {
        let lib = context.provider().mlx5dv();
        let lib = lib.map_err(|error| no_library(context.name(), "mlx5dv_is_supported", "mlx5", error))?;
        let is_supported = lib.mlx5dv_is_supported();
        let is_supported = is_supported.map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        // SAFETY: the context is open, so its device is alive; every release's struct has this
        // field. The provider checked that the library uses the same libibverbs as the context.
        if !unsafe { is_supported((*context.as_raw().as_ptr()).device) } {
            return Err(Unsupported::new(context, "mlx5dv_is_supported", WHAT).into());
        }
        Ok(Self { context: context.clone(), lib })
    }

    /// Opens an mlx5 device (`mlx5dv_open_device`) with the access (DEVX) that [memory
    /// keys](super::MKey) and encryption need according to the manual pages; [`Device::open`] may
    /// give the same access. The result has an ordinary [context](Self::context).
    ///
    /// # Errors
    ///
    /// Fails as [`of`](Self::of) does, or if the device cannot be opened, for example without
    /// permission for its device file.
    ///
    /// # References
    ///
    /// `man mlx5dv_open_device`
    pub fn open(device: &Device<'_>) -> Result<Self, Error> {
        const VERB: &str = "mlx5dv_open_device";
        let (raw, provider, name) = (device.as_raw(), device.provider(), device.name());
        let lib = provider.mlx5dv();
        let lib = lib.map_err(|error| no_library(name.clone(), VERB, "mlx5", error))?;
        let missing = |symbol| Unsupported::missing_of(name.clone(), WHAT, symbol);
        let is_supported = lib.mlx5dv_is_supported().map_err(missing)?;
        let open = lib.mlx5dv_open_device().map_err(missing)?;
        // SAFETY: `self` belongs to a device list, which keeps the device alive. The provider
        // checked that the library uses the same libibverbs.
        if !unsafe { is_supported(raw.as_ptr()) } {
            return Err(Unsupported::of(name, "mlx5dv_is_supported", WHAT).into());
        }
        let flags = mlx5dv_context_attr_flags::MLX5DV_CONTEXT_FLAGS_DEVX.0;
        let mut attr = mlx5dv_context_attr { flags, ..Default::default() };
        // SAFETY: a device list keeps the device alive. The device belongs to mlx5, as checked
        // above. The provider checked that the library uses the same libibverbs. The attributes
        // are initialised.
        let context = unsafe { open(raw.as_ptr(), &raw mut attr) };
        let Some(context) = NonNull::new(context) else {
            let source = io::Error::last_os_error();
            if Unsupported::is_meant_by(&source) {
                return Err(Unsupported::of(name, VERB, "contexts for memory keys (DEVX)").into());
            }
            return Err(Error::os(VERB, source).of(format!("device {name}")));
        };
        // SAFETY: this provider opened the context just now, and nothing else owns it.
        let context = unsafe { DeviceContext::from_raw(context, provider) };
        Ok(Self { context, lib })
    }

    /// The device's context.
    pub fn context(&self) -> &DeviceContext {
        &self.context
    }

    /// The library's functions, for calls that this crate does not wrap.
    pub fn as_raw(&self) -> &'static Mlx5dv {
        self.lib
    }

    /// Queries capabilities that [`DeviceContext::query_device`] does not include
    /// (`mlx5dv_query_device`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    ///
    /// # References
    ///
    /// `man mlx5dv_query_device`
    pub fn query_device(&self) -> Result<DeviceCapabilities, Error> {
        let mut raw = mlx5dv_context { comp_mask: ASKED, ..Default::default() };
        // SAFETY: the context is open and belongs to mlx5, and `raw` is a local variable. Beyond
        // the oldest fields of the struct, a library writes only fields that `comp_mask` requests.
        let result = unsafe { (self.lib.mlx5dv_query_device)(self.context.as_raw().as_ptr(), &raw mut raw) };
        check(result).map_err(|source| {
            Error::os("mlx5dv_query_device", source).of(format!("device {}", self.context.name()))
        })?;
        Ok(DeviceCapabilities(raw))
    }
}

impl fmt::Debug for DirectVerbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("mlx5::DirectVerbs").field(&self.context).finish()
    }
}

const WHAT: &str = "direct verbs of mlx5";

/// The requested fields. A library answers those that it knows.
const ASKED: u64 = {
    let masks = [
        M::MLX5DV_CONTEXT_MASK_CQE_COMPRESION,
        M::MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE,
        M::MLX5DV_CONTEXT_MASK_DC_ODP_CAPS,
        M::MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS,
        M::MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD,
        M::MLX5DV_CONTEXT_MASK_DCI_STREAMS,
        M::MLX5DV_CONTEXT_MASK_WR_MEMCPY_LENGTH,
        M::MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD,
        M::MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM,
        M::MLX5DV_CONTEXT_MASK_OOO_RECV_WRS,
    ];
    let (mut bits, mut n) = (0, 0);
    while n < masks.len() {
        bits |= masks[n].0 as u64;
        n += 1;
    }
    bits
};

c_flags! {
    /// Features of a device's queues (`mlx5dv_context_flags`).
    pub struct ContextFlags(u64) {
        /// Completions have the format of version 1.
        CqeV1 = F::MLX5DV_CONTEXT_FLAGS_CQE_V1.0,
        /// The device supports requests of several packets.
        MultiPacketAllowed = F::MLX5DV_CONTEXT_FLAGS_MPW_ALLOWED.0,
        /// The device supports enhanced requests of several packets.
        EnhancedMultiPacket = F::MLX5DV_CONTEXT_FLAGS_ENHANCED_MPW.0,
        /// The device can compress completions of 128 bytes.
        Cqe128Compression = F::MLX5DV_CONTEXT_FLAGS_CQE_128B_COMP.0,
        /// The device can pad completions to 128 bytes.
        Cqe128Padding = F::MLX5DV_CONTEXT_FLAGS_CQE_128B_PAD.0,
        /// Credits can count packets ([`QueuePairCreateFlags`](super::QueuePairCreateFlags)).
        PacketBasedCreditMode = F::MLX5DV_CONTEXT_FLAGS_PACKET_BASED_CREDIT_MODE.0,
        /// Wall-clock timestamps of completions use real time.
        RealTimeTimestamps = F::MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS.0,
        /// Requests can be written directly to the device's pages (BlueFlame).
        BlueFlame = F::MLX5DV_CONTEXT_FLAGS_BLUEFLAME.0,
    }
}

/// Capabilities of an mlx5 device (`mlx5dv_context`). Fields that an older library does not know
/// are `None`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCapabilities(mlx5dv_context);

/// Support for compressed completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqeCompression {
    /// The maximum number of completions that are compressed into one; 0 without support.
    pub max_num: u32,
    /// The formats that can be [requested](super::CompletionQueueBuilder::setup_cqe_compression).
    pub formats: CqeFormats,
}

/// The streams of a [DC initiator](super::DcInitiatorBuilder::setup_streams), as powers of two:
/// requested numbers, or limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DciStreams {
    /// The number of streams that the device processes concurrently. It processes the requests of
    /// one stream in order.
    pub log_num_concurrent: u8,
    /// The number of streams that may fail before the initiator fails.
    pub log_num_errored: u8,
}

/// For each queue pair type, the maximum number of receives of a pair with [out-of-order
/// placement](super::QueuePairCreateFlags::OutOfOrderDataPlacement); 0 without support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The types say it.
pub struct OutOfOrderReceives {
    pub max_rc: u32,
    pub max_xrc: u32,
    pub max_dct: u32,
    pub max_ud: u32,
    pub max_uc: u32,
}

impl DeviceCapabilities {
    fn told<T>(&self, mask: M, value: T) -> Option<T> {
        (self.0.comp_mask & u64::from(mask.0) != 0).then_some(value)
    }

    /// Features of the device's queues.
    pub fn flags(&self) -> ContextFlags {
        ContextFlags::from_bits_retain(self.0.flags)
    }

    /// Support for compressed completions.
    pub fn cqe_compression(&self) -> Option<CqeCompression> {
        let caps = self.0.cqe_comp_caps;
        let formats = CqeFormats::from_bits_retain(caps.supported_format);
        self.told(M::MLX5DV_CONTEXT_MASK_CQE_COMPRESION, CqeCompression { max_num: caps.max_num, formats })
    }

    /// The maximum streams of a DC initiator; both are 0 without support.
    pub fn dci_streams(&self) -> Option<DciStreams> {
        let caps = self.0.dci_streams_caps;
        let (concurrent, errored) = (caps.max_log_num_concurent, caps.max_log_num_errored);
        let streams = DciStreams { log_num_concurrent: concurrent, log_num_errored: errored };
        self.told(M::MLX5DV_CONTEXT_MASK_DCI_STREAMS, streams)
    }

    /// The maximum number of outstanding READs and atomics of a DC initiator.
    pub fn max_dc_rd_atom(&self) -> Option<u64> {
        self.told(M::MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM, self.0.max_dc_rd_atom)
    }

    /// The maximum number of READs and atomics that a DC target serves at a time.
    pub fn max_dc_init_rd_atom(&self) -> Option<u64> {
        self.told(M::MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM, self.0.max_dc_init_rd_atom)
    }

    /// Operations of DC pairs that work with on-demand paging (`ibv_odp_transport_cap_bits`).
    pub fn dc_odp_caps(&self) -> Option<u32> {
        self.told(M::MLX5DV_CONTEXT_MASK_DC_ODP_CAPS, self.0.dc_odp_caps)
    }

    /// The number of ports that are bonded into one device.
    pub fn num_lag_ports(&self) -> Option<u8> {
        self.told(M::MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS, self.0.num_lag_ports)
    }

    /// The block signatures that a [memory key](super::BlockSignature) can have.
    pub fn signatures(&self) -> Option<SignatureCapabilities> {
        let caps = self.0.sig_caps;
        let signatures = SignatureCapabilities {
            block_sizes: BlockSizes::from_bits_retain(caps.block_size),
            types: SignatureTypes::from_bits_retain(caps.block_prot),
            guards: GuardTypes::from_bits_retain(caps.t10dif_bg),
            crcs: CrcTypes::from_bits_retain(caps.crc_type),
        };
        self.told(M::MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD, signatures)
    }

    /// The encryption that a [memory key](super::Crypto) can have.
    pub fn crypto(&self) -> Option<CryptoCapabilities> {
        let caps = self.0.crypto_caps;
        let crypto = CryptoCapabilities {
            failed_selftests: caps.failed_selftests,
            engines: CryptoEngines::from_bits_retain(caps.crypto_engines),
            wrapped_import: caps.wrapped_import_method & WRAPPED != 0,
            log_max_num_deks: caps.log_max_num_deks,
            flags: CryptoFlags::from_bits_retain(caps.flags),
        };
        self.told(M::MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD, crypto)
    }

    /// The maximum number of bytes that the device
    /// [copies](crate::ibverbs::queue_pair::WorkRequestHandle::setup_memcpy) in one request; 0
    /// without support.
    pub fn max_wr_memcpy_length(&self) -> Option<usize> {
        self.told(M::MLX5DV_CONTEXT_MASK_WR_MEMCPY_LENGTH, self.0.max_wr_memcpy_length)
    }

    /// The time in nanoseconds after which clock information of the device is out of date.
    pub fn max_clock_info_update_nsec(&self) -> Option<u64> {
        self.told(M::MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE, self.0.max_clock_info_update_nsec)
    }

    /// The maximum numbers of receives with out-of-order placement.
    pub fn out_of_order_receives(&self) -> Option<OutOfOrderReceives> {
        let caps = self.0.ooo_recv_wrs_caps;
        let receives = OutOfOrderReceives {
            max_rc: caps.max_rc,
            max_xrc: caps.max_xrc,
            max_dct: caps.max_dct,
            max_ud: caps.max_ud,
            max_uc: caps.max_uc,
        };
        self.told(M::MLX5DV_CONTEXT_MASK_OOO_RECV_WRS, receives)
    }
}

const _: () = assert!(size_of::<mlx5dv_cqe_comp_res_format>() == size_of::<u32>());
