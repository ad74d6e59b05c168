//! Direct verbs of NVIDIA (Mellanox) NICs with the mlx5 driver (feature `mlx5`).
//!
//! It adds to libibverbs:
//!
//! - **Dynamically connected transport** (DC): an [initiator](DcInitiator) reaches any number of
//!   [targets](DcTarget), reliably and with RDMA and atomics, without a queue pair for each of
//!   them. See [`DcInitiatorBuilder`] and [`DcTargetBuilder`].
//! - [**Options of queue pairs**](DirectVerbs::create_qp_builder) of every type:
//!   [`QueuePairCreateFlags`].
//! - [**Options of completion queues**](DirectVerbs::create_cq_builder): compressed completions,
//!   and their size.
//! - [**Memory keys**](MKey) over pieces of several regions, in a list or interleaved, with block
//!   signatures and encryption of the transferred data. Requests of a [`DirectQueuePair`] configure
//!   them.
//! - [**Copies by the device**](crate::ibverbs::queue_pair::WorkRequestHandle::setup_memcpy), and
//!   [requests in its own format](crate::ibverbs::queue_pair::WorkRequestHandle::setup_raw_wqe).
//! - [**dma-buf through the data-direct engine**](DirectVerbs::reg_dmabuf_mr): access to GPU memory
//!   that bypasses the root complex.
//! - [Device capabilities](DirectVerbs::query_device).
//!
//! [`DirectVerbs::of`] is the entry point. It fails for a device that is not mlx5's, and names the
//! library if that is missing:
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use sideway::ErrorKind;
//! use sideway::ibverbs::device::DeviceList;
//! use sideway::mlx5::DirectVerbs;
//!
//! let devices = DeviceList::from_provider(sideway::soft::provider())?;
//! let context = devices.first()?.open()?;
//! // soft0 is a software device.
//! assert_eq!(DirectVerbs::of(&context).unwrap_err().kind(), ErrorKind::Library);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Not run on hardware**: see [`direct`](crate::direct).
//!
//! # References
//!
//! `man mlx5dv`, and the pages of each function.

mod completion;
mod crypto;
mod device;
mod initiator;
mod layout;
mod memory;
mod mkey;
mod operations;
mod pair;
mod queue_pair;
mod signature;
mod target;

pub use completion::{CompletionQueueBuilder, CqeFormats, CqeSize};
pub use crypto::{
    AesXtsKey, Crypto, CryptoCapabilities, CryptoEngines, CryptoFlags, DataEncryptionKey,
    DataEncryptionKeyState, SignatureCryptoOrder,
};
pub use device::{
    ContextFlags, CqeCompression, DciStreams, DeviceCapabilities, DirectVerbs, OutOfOrderReceives,
};
pub use initiator::{DcInitiator, DcInitiatorBuilder, DcPostSendGuard, DcSendQueue};
pub use layout::{InterleavedEntry, MKeyConfiguration};
pub use memory::{DmabufAccess, DmabufRange};
pub use mkey::{MKey, MKeyFlags, SignatureError, SignatureErrorType};
pub use operations::{DirectGuard, DirectOperationFlags, DirectRequestError};
pub use pair::{DirectPostSendGuard, DirectQueuePair, DirectSendQueue};
pub use queue_pair::{QueuePairBuilder, QueuePairCreateFlags};

const OTHER_DOMAIN: &str = "the protection domain belongs to another context than the direct verbs";
pub use signature::{
    BlockSignature, BlockSize, BlockSizes, Crc, CrcType, CrcTypes, GuardType, GuardTypes, Signature,
    SignatureCapabilities, SignatureDomain, SignatureMask, SignatureSeed, SignatureTypes, T10Dif,
    T10DifFlags,
};
pub use target::{DcTarget, DcTargetBuilder};
