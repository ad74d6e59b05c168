//! Options of an identifier.

use rdma_mummy_sys::RdmaCm;
use rdma_mummy_sys::types::{
    RDMA_OPTION_IB, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
};

use super::identifier::{CallError, Identifier};
use crate::error::{Error, ErrorKind};
use crate::ibverbs::Unsupported;

impl Identifier {
    /// The type of service of the connection's packets (`RDMA_OPTION_ID_TOS`): traffic class, or service level of InfiniBand. Before the
    /// route is resolved.
    ///
    /// # Errors
    ///
    /// It is too late, or the system does not know the option.
    ///
    /// # References
    ///
    /// `man rdma_set_option`
    pub fn set_type_of_service(&self, type_of_service: u8) -> Result<(), Error> {
        self.set_id_option(RDMA_OPTION_ID_TOS, &[type_of_service])
    }

    /// Whether others may be bound to the same address (`RDMA_OPTION_ID_REUSEADDR`). Before it is bound.
    ///
    /// # Errors
    ///
    /// As [`set_type_of_service`](Self::set_type_of_service).
    ///
    /// # References
    ///
    /// `man rdma_set_option`
    pub fn set_reuse_address(&self, reuse: bool) -> Result<(), Error> {
        self.set_id_option(RDMA_OPTION_ID_REUSEADDR, &i32::from(reuse).to_ne_bytes())
    }

    /// Whether an identifier that is bound to any IPv6 address takes only IPv6 (`RDMA_OPTION_ID_AFONLY`). Before it is bound.
    ///
    /// # Errors
    ///
    /// As [`set_type_of_service`](Self::set_type_of_service).
    ///
    /// # References
    ///
    /// `man rdma_set_option`
    pub fn set_address_family_only(&self, only: bool) -> Result<(), Error> {
        self.set_id_option(RDMA_OPTION_ID_AFONLY, &i32::from(only).to_ne_bytes())
    }

    /// How long the queue pair waits for an acknowledgement (`RDMA_OPTION_ID_ACK_TIMEOUT`): 4.096 us times two to the power of this, 0 to
    /// 31; 0 is for ever. Before it connects or accepts.
    ///
    /// # Errors
    ///
    /// As [`set_type_of_service`](Self::set_type_of_service); and the exponent is too large.
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

    /// Any option (`rdma_set_option`), by its level, name and value as C has them.
    ///
    /// # Errors
    ///
    /// The system does not know the option (`ENOSYS`), or not this value, or it is too late for it. Those of InfiniBand
    /// (`RDMA_OPTION_IB`) need a device: a path that is set is a resolved route, and librdmacm looks at the device when the event of that is
    /// taken, without asking whether there is one.
    ///
    /// # References
    ///
    /// `man rdma_set_option`
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Error> {
        let state = self.state();
        // C takes a pointer that it may write through, and the kernel one that is aligned for an `int`.
        let mut copy = vec![0u64; value.len().div_ceil(8).max(1)];
        for (to, from) in copy.iter_mut().zip(value.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..from.len()].copy_from_slice(from);
            *to = u64::from_ne_bytes(bytes);
        }
        // SAFETY: the identifier lives, and is called for alone; the value is that long, and outlives the call.
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
