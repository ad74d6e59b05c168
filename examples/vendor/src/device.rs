//! Detection of Acme's devices, and their attributes.

use std::fmt;

use sideway::direct::{check, no_library};
use sideway::ibverbs::Unsupported;
use sideway::ibverbs::queue_pair::QueuePair;
use sideway::{DeviceContext, Error};

use crate::library::{ACME_CAP_SIGNAL, Acme, acme_device_attr};

/// The direct verbs of an open device of Acme's. Clones refer to the same context, and keep it open.
#[derive(Clone)]
pub struct DirectVerbs {
    context: DeviceContext,
    lib: &'static Acme,
    attributes: DeviceAttributes,
}

/// Attributes of a device of Acme's, beside those of libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// The highest [pace](crate::PairBuilder::setup_pace) of a queue pair in Mbit/s.
    pub max_pace: u32,
    /// Whether reliably connected pairs can send [signals](crate::SignalRequest::setup_signal).
    pub has_signals: bool,
}

impl DirectVerbs {
    /// The direct verbs of a device, if it is Acme's: `acme_query_device` answers only for these. The
    /// first call loads `libacme.so.1`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Library`](sideway::ErrorKind::Library) if the library is missing or too old, or
    /// belongs to another libibverbs. [`Unsupported`] if the device is not Acme's. Also fails if the
    /// device does not answer.
    pub fn of(context: &DeviceContext) -> Result<Self, Error> {
        const VERB: &str = "acme_query_device";
        let lib = context.provider().library::<Acme>();
        let lib = lib.map_err(|error| no_library(context.name(), VERB, "Acme", error))?;
        let mut raw = acme_device_attr::default();
        // SAFETY: the context is open. The provider checked that the library uses the libibverbs of
        // the context. `raw` has the size that is passed.
        let result = check(unsafe {
            (lib.acme_query_device)(context.as_raw().as_ptr(), &raw mut raw, size_of_val(&raw) as u32)
        });
        result.map_err(|source| {
            Error::of_device(context, VERB, "direct verbs of Acme", source)
                .of(format!("device {}", context.name()))
        })?;
        let has_signals = raw.caps & ACME_CAP_SIGNAL != 0;
        let attributes = DeviceAttributes { max_pace: raw.max_pace_mbps, has_signals };
        Ok(Self { context: context.clone(), lib, attributes })
    }

    /// The device's context.
    pub fn context(&self) -> &DeviceContext {
        &self.context
    }

    /// The library's functions, for calls that this crate does not wrap.
    pub fn as_raw(&self) -> &'static Acme {
        self.lib
    }

    /// The device's attributes (`acme_query_device`), as read when this was made.
    pub fn query_device(&self) -> DeviceAttributes {
        self.attributes
    }

    /// The pace of a queue pair in Mbit/s (`acme_query_qp_pace`); `None` if it has none.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if the library is older than 2. Also fails if the pair belongs to another
    /// context, or was not made by Acme's function.
    pub fn query_pace(&self, qp: &impl QueuePair) -> Result<Option<u32>, Error> {
        const VERB: &str = "acme_query_qp_pace";
        let control = qp.control();
        if *control.context() != self.context {
            let reason = "the queue pair belongs to another context than the direct verbs";
            return Err(Error::other_context(VERB, reason));
        }
        let what = "a query of the pace";
        let query = self.lib.acme_query_qp_pace();
        let query = query.map_err(|symbol| Unsupported::missing(&self.context, what, symbol))?;
        let mut pace = 0;
        // SAFETY: the borrow keeps the pair alive, which belongs to Acme's device. `pace` is valid for
        // the result.
        let result = check(unsafe { query(control.as_raw().as_ptr(), &raw mut pace) });
        result.map_err(|source| {
            Error::of_device(&self.context, VERB, what, source).of_queue_pair(control.qp_number())
        })?;
        Ok((pace != 0).then_some(pace))
    }
}

impl fmt::Debug for DirectVerbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("acme_direct::DirectVerbs").field(&self.context).finish()
    }
}
