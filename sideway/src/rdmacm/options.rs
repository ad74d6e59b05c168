//! Options of an identifier (`rdma_set_option`).

use rdma_mummy_sys::RdmaCm;
use rdma_mummy_sys::types::{
    RDMA_OPTION_IB, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
};

use super::identifier::{CallError, Identifier};
use crate::error::{Error, ErrorKind};
use crate::ibverbs::Unsupported;

impl Identifier {
    /// Sets the type of service of the connection's packets (`RDMA_OPTION_ID_TOS`): the traffic
    /// class, or the service level on InfiniBand. It must be set before the route is resolved.
    ///
    /// # Errors
    ///
    /// Fails if it is too late, or if the system does not know the option.
    ///
    /// # References
    ///
    /// `man rdma_set_option`
    pub fn set_type_of_service(&self, type_of_service: u8) -> Result<(), Error> {
        self.set_id_option(RDMA_OPTION_ID_TOS, &[type_of_service])
    }

    /// Sets whether others may be bound to the same address (`RDMA_OPTION_ID_REUSEADDR`). It must
    /// be set before binding.
    ///
    /// # Errors
    ///
    /// Fails as [`set_type_of_service`](Self::set_type_of_service) does.
    ///
    /// # References
    ///
    /// `man rdma_set_option`
    pub fn set_reuse_address(&self, reuse: bool) -> Result<(), Error> {
        self.set_id_option(RDMA_OPTION_ID_REUSEADDR, &i32::from(reuse).to_ne_bytes())
    }

    /// Sets whether an identifier that is bound to any IPv6 address accepts only IPv6
    /// (`RDMA_OPTION_ID_AFONLY`). It must be set before binding.
    ///
    /// # Errors
    ///
    /// Fails as [`set_type_of_service`](Self::set_type_of_service) does.
    ///
    /// # References
    ///
    /// `man rdma_set_option`
    pub fn set_address_family_only(&self, only: bool) -> Result<(), Error> {
        self.set_id_option(RDMA_OPTION_ID_AFONLY, &i32::from(only).to_ne_bytes())
    }

    /// Sets the queue pair's acknowledgement timeout (`RDMA_OPTION_ID_ACK_TIMEOUT`): 4.096 us x
    /// 2^`exponent`, up to 31; 0 means no timeout. It must be set before connecting or accepting.
    ///
    /// # Errors
    ///
    /// Fails as [`set_type_of_service`](Self::set_type_of_service) does, and if the exponent is too
    /// large.
    ///
    /// # References
    ///
    /// `man rdma_set_option`
    pub fn set_ack_timeout(&self, exponent: u8) -> Result<(), Error> {
        self.set_id_option(RDMA_OPTION_ID_ACK_TIMEOUT, &[exponent])
    }

    fn set_id_option(&self, name: u32, value: &[u8]) -> Result<(), Error> {
        self.set_option(RDMA_OPTION_ID as i32, name as i32, value)
    }

    /// Sets any option (`rdma_set_option`), by its level, name and value in C.
    ///
    /// # Errors
    ///
    /// Fails with `ENOSYS` if the system does not know the option. Also fails if the value is not
    /// allowed, or if it is too late. Options of InfiniBand (`RDMA_OPTION_IB`) need a device. The
    /// reason is that setting a path resolves the route, and librdmacm dereferences the device when
    /// it takes that event.
    ///
    /// # References
    ///
    /// `man rdma_set_option`
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Error> {
        let state = self.state();
        // C takes a mutable pointer, and the kernel requires the alignment of an `int`.
        let mut copy = vec![0u64; value.len().div_ceil(8).max(1)];
        for (to, from) in copy.iter_mut().zip(value.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..from.len()].copy_from_slice(from);
            *to = u64::from_ne_bytes(bytes);
        }
        // SAFETY: `call` passes a live identifier, under its channel's lock. The value has this
        // length, and outlives the call.
        let mut set = |lib: &RdmaCm, id| unsafe {
            (lib.rdma_set_option)(id, level, name, copy.as_mut_ptr().cast(), value.len())
        };
        let result = match level == RDMA_OPTION_IB as i32 {
            true => self.call_with_device(None, set),
            false => self.call(None, &mut set).map_err(CallError::Rdmacm),
        };
        result.map_err(|error| match error {
            CallError::NoDevice(lacking) => lacking.error("rdma_set_option"),
            CallError::Rdmacm(source) => {
                let kind = match Unsupported::is_meant_by(&source) {
                    true => ErrorKind::Unsupported,
                    false => ErrorKind::Os,
                };
                Error::os("rdma_set_option", source)
                    .of_kind(kind)
                    .with("level", level)
                    .with("name", name)
                    .with("value", format_args!("{value:02x?}"))
                    .with("state", state)
            }
        })
    }
}
