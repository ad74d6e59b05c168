//! Completion queue operations other than polling: arming, resizing, moderation.

use std::io;
use std::time::Duration;

use rdma_mummy_sys::types::{ibv_cq_attr_mask, ibv_moderate_cq, ibv_modify_cq_attr};
use rdma_mummy_sys::verbs;

use super::{
    BasicCompletionQueue, BasicPoller, CqInner, ExtendedCompletionQueue, ExtendedPoller,
    GenericCompletionQueue, GenericPoller,
};
use crate::error::{Error, ErrorKind};
use crate::ibverbs::{Unsupported, check, readiness};

/// Which completions cause an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notify {
    /// Any completion.
    Any,
    /// A receive whose sender set
    /// [`Solicited`](crate::ibverbs::queue_pair::WorkRequestFlags::Solicited), and any failed
    /// completion.
    Solicited,
}

impl CqInner {
    fn request_notification(&self, notify: Notify) -> Result<(), Error> {
        const VERB: &str = "ibv_req_notify_cq";
        if !self.has_channel() {
            return Err(Error::not_called(
                VERB,
                ErrorKind::NoChannel,
                "the completion queue has no channel for its events; make it with `setup_comp_channel`",
            ));
        }
        // SAFETY: `self` keeps the queue and so its context alive, and every release's context
        // struct has this operation.
        if unsafe { (*self.context().as_raw().as_ptr()).ops.req_notify_cq.is_none() } {
            return Err(Unsupported::new(self.context(), VERB, "completion events").into());
        }
        // SAFETY: `self` keeps the queue alive, and the operation was checked above.
        let result =
            unsafe { verbs::ibv_req_notify_cq(self.as_raw().as_ptr(), (notify == Notify::Solicited).into()) };
        match check(result) {
            Ok(()) => Ok(()),
            Err(source) if readiness::is_device_gone(&source) => {
                Err(Error::device_gone(VERB, self.context(), source))
            }
            Err(source) => Err(Error::of_device(self.context(), VERB, "completion events", source)),
        }
    }

    fn resize(&self, cqe: u32) -> Result<(), Error> {
        let asked = i32::try_from(cqe).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
        let result = asked.and_then(|asked| {
            // SAFETY: `self` keeps the queue alive, and its handle is borrowed mutably, so nobody
            // polls it.
            check(unsafe { (self.context().provider().verbs().ibv_resize_cq)(self.as_raw().as_ptr(), asked) })
        });
        result.map_err(|source| {
            let capability = "completion queues that can be resized";
            let limit = self.context().query_device().map_or(0, |attr| attr.max_cqe());
            Error::of_device(self.context(), "ibv_resize_cq", capability, source)
                .with("cqe", cqe)
                .with("max_cqe", limit)
                .remedy("the queue must hold the completions that wait to be polled, and at most max_cqe")
        })
    }

    fn moderate(&self, count: u16, period: Duration) -> Result<(), Error> {
        let refused = |source| {
            Error::of_device(self.context(), "ibv_modify_cq", "moderation of completion queues", source)
                .with("count", count)
                .debug("period", period)
                .remedy("the period is at most 65535 microseconds")
        };
        let micros = period.as_nanos().div_ceil(1000);
        let cq_period =
            u16::try_from(micros).map_err(|_| refused(io::Error::from_raw_os_error(libc::EINVAL)))?;
        let mut attr = ibv_modify_cq_attr {
            attr_mask: ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: ibv_moderate_cq { cq_count: count, cq_period },
        };
        // SAFETY: `self` keeps the queue alive, and `attr` is initialised.
        check(unsafe { verbs::ibv_modify_cq(self.as_raw().as_ptr(), &raw mut attr) }).map_err(|source| {
            if Unsupported::is_meant_by(&source) {
                return Unsupported::new(self.context(), "ibv_modify_cq", "moderation of completion events")
                    .into();
            }
            refused(source)
        })
    }
}

macro_rules! control {
    ($Queue:ident, $Poller:ident, |$queue:ident| $inner:expr) => {
        impl $Queue {
            /// Requests an event for the next completion (`ibv_req_notify_cq`), and starts to poll.
            ///
            /// Completions that came earlier cause no event, but the poller returns them. So drain
            /// the poller, and then wait for the event
            /// ([`CompletionChannel`](super::CompletionChannel)); no completion is missed. A
            /// completion that comes while the poller drains is polled and also causes an event,
            /// after which there may be nothing to poll. Each arming causes one event.
            ///
            /// # Errors
            ///
            /// Fails if the queue was made without a channel, or if the device is gone, and as
            /// `start_poll` does.
            ///
            /// # References
            ///
            /// `man ibv_req_notify_cq`
            pub fn arm(&mut self, notify: Notify) -> Result<$Poller<'_>, Error> {
                let $queue = &mut *self;
                $inner.request_notification(notify)?;
                Ok(self.start_poll()?)
            }

            /// Resizes the queue so that it holds at least `cqe` completions (`ibv_resize_cq`).
            ///
            /// # Errors
            ///
            /// Fails if the queue already holds more completions than that, if `cqe` exceeds the
            /// device's limit, or if the device cannot resize queues.
            ///
            /// # References
            ///
            /// `man ibv_resize_cq`
            pub fn resize(&mut self, cqe: u32) -> Result<(), Error> {
                let $queue = &mut *self;
                $inner.resize(cqe)
            }

            /// Asks the device to delay an event until `count` completions have come, or until the
            /// first of them is `period` old (`ibv_modify_cq`). The period is rounded up to
            /// microseconds.
            ///
            /// The device may send events earlier than that, but it always sends them.
            ///
            /// # Errors
            ///
            /// Fails if the device has no moderation, or not to this extent
            /// ([`DeviceAttr`](crate::ibverbs::device_attr::DeviceAttr)'s `cq_mod_caps`).
            ///
            /// # References
            ///
            /// `man ibv_modify_cq`
            pub fn moderate(&mut self, count: u16, period: Duration) -> Result<(), Error> {
                let $queue = &mut *self;
                $inner.moderate(count, period)
            }
        }
    };
}

control!(BasicCompletionQueue, BasicPoller, |queue| queue.inner);
control!(ExtendedCompletionQueue, ExtendedPoller, |queue| queue.without_poll());
control!(GenericCompletionQueue, GenericPoller, |queue| match queue {
    GenericCompletionQueue::Basic(queue) => &*queue.inner,
    GenericCompletionQueue::Extended(queue) => queue.without_poll(),
});
