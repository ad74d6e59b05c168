//! The pool builder: sizes, counts and kind of memory.

use super::handle::Handle;
use super::table::{MAX_PIECES, MAX_SIZES, PieceTable};
use super::{Inner, Pool};
use crate::error::{Error, ErrorKind};
use crate::ibverbs::AccessFlags;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::memory::{Buffer, BufferKind, RegisteredBuffer};

/// The alignment of every slot: a cache line.
const ALIGNMENT: usize = 64;

/// The longest possible message, in bytes.
const MAX_SIZE: usize = 1 << 31;

/// Describes a pool. One builder can make any number of them. It can be sent to another thread to
/// make a pool there.
#[derive(Clone, Debug)]
pub struct PoolBuilder {
    pd: ProtectionDomain,
    sizes: Vec<(usize, usize)>,
    parts: Option<usize>,
    kind: BufferKind,
    node: Option<u32>,
    access: AccessFlags,
}

impl ProtectionDomain {
    /// Returns a builder for pools of registered memory in this domain.
    pub fn create_pool_builder(&self) -> PoolBuilder {
        PoolBuilder {
            pd: self.clone(),
            sizes: Vec::new(),
            parts: None,
            kind: BufferKind::for_device(self.context()),
            node: None,
            access: AccessFlags::LocalWrite,
        }
    }
}

impl PoolBuilder {
    /// Adds `count` slices of `size` bytes each. A pool can have eight different sizes.
    pub fn setup_slices(&mut self, size: usize, count: usize) -> &mut Self {
        self.sizes.push((size, count));
        self
    }

    /// Sets how many additional parts can exist at a time after [splits](super::Slice::split_at),
    /// over all slices together. The default is the number of slices.
    pub fn setup_parts(&mut self, parts: usize) -> &mut Self {
        self.parts = Some(parts);
        self
    }

    /// Sets the kind of memory. The default is the [best kind](BufferKind::for_device) for the
    /// device.
    pub fn setup_kind(&mut self, kind: BufferKind) -> &mut Self {
        self.kind = kind;
        self
    }

    /// Sets the NUMA node of the memory. By default the system chooses.
    pub fn setup_node(&mut self, node: u32) -> &mut Self {
        self.node = Some(node);
        self
    }

    /// Sets the permissions of the memory. The default is `LocalWrite`.
    pub fn setup_access(&mut self, access: AccessFlags) -> &mut Self {
        self.access = access;
        self
    }

    /// Allocates the memory, and registers all of it as one region (`ibv_reg_mr`).
    ///
    /// # Errors
    ///
    /// There are no slices, or more than a pool can have; there is no such memory; it cannot be registered.
    pub fn build(&self) -> Result<Pool, Error> {
        let mut sizes = self.sizes.clone();
        sizes.sort_unstable();
        if sizes.is_empty() || sizes.len() > MAX_SIZES {
            return Err(unfit("a pool has slices of 1 size at least; name each size once (`setup_slices`)")
                .with("sizes", sizes.len())
                .with("limit", MAX_SIZES));
        }
        let (mut firsts, mut bytes, mut slices) = (Vec::new(), 0_usize, 0_usize);
        for &(size, count) in &sizes {
            if size == 0 || size > MAX_SIZE || count == 0 {
                return Err(unfit("a size has one slice at least, of 1 byte at least")
                    .with("size", size)
                    .with("count", count)
                    .with("limit", MAX_SIZE));
            }
            firsts.push(bytes);
            slices = slices.saturating_add(count);
            bytes = size.next_multiple_of(ALIGNMENT).saturating_mul(count).saturating_add(bytes);
        }
        let parts = self.parts.unwrap_or(slices);
        if slices.saturating_add(parts) > MAX_PIECES {
            return Err(unfit("slices and parts together are more than a pool can have; make several pools")
                .with("slices", slices)
                .with("parts", parts)
                .with("limit", MAX_PIECES));
        }
        let buffer = match self.node {
            Some(node) => Buffer::on_node(self.kind, bytes, node)?,
            None => Buffer::new(self.kind, bytes)?,
        };
        let memory = RegisteredBuffer::register(&self.pd, buffer, self.access)
            .map_err(|error| Error::caused("ibv_reg_mr", ErrorKind::Nested, error))?;
        let narrow: Vec<_> = sizes.iter().map(|&(size, count)| (size as u32, count as u32)).collect();
        let table = PieceTable::new(&narrow, parts as u32, |at, n| {
            let offset = firsts[at] + n as usize * sizes[at].0.next_multiple_of(ALIGNMENT);
            memory.as_ptr().wrapping_add(offset)
        });
        Ok(Pool(Handle::new(Inner {
            table,
            lkey: memory.lkey(),
            context: self.pd.context().as_raw(),
            slices,
            memory,
        })))
    }
}

/// A description that no pool can have.
#[cold]
fn unfit(reason: &'static str) -> Error {
    Error::not_called("ibv_reg_mr", ErrorKind::InvalidArgument, reason)
}
