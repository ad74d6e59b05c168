//! What the header `acmedv.h` would declare: structs, constants and functions.
//!
//! Each struct is passed with its size, so that a library knows which fields the caller has. (A real
//! vendor's structs and prototypes come from bindgen.)

#![allow(non_camel_case_types)]

use std::ffi::c_int;

use sideway::sys::library_table;
use sideway::sys::types::{ibv_context, ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex};

/// Attributes of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct acme_device_attr {
    /// The highest pace of a queue pair in Mbit/s.
    pub max_pace_mbps: u32,
    /// [`ACME_CAP_SIGNAL`] or 0.
    pub caps: u32,
}

/// The device has pairs that send signals.
pub const ACME_CAP_SIGNAL: u32 = 1;

/// Attributes of a queue pair, beside those of `ibv_create_qp_ex`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct acme_qp_init_attr {
    /// The pace in Mbit/s; 0 for none.
    pub pace_mbps: u32,
    /// [`ACME_QP_SIGNAL`] or 0.
    pub flags: u32,
}

/// The pair sends signals.
pub const ACME_QP_SIGNAL: u32 = 1;

/// The requests of Acme's: the library's view of a pair that was made with [`ACME_QP_SIGNAL`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct acme_qp_ex {
    /// Appends a signal: `value` is written to the peer's memory at `remote_addr`, a multiple of 8,
    /// in the region with the key `rkey`.
    pub wr_signal: Option<unsafe extern "C" fn(qp: *mut acme_qp_ex, rkey: u32, remote_addr: u64, value: u64)>,
}

library_table! {
    #[doc = "The functions of `libacme.so.1`."]
    Acme, "libacme.so.1", -1;
    required {
        "ACME_1.0" "1" fn acme_query_device(context: *mut ibv_context, attr: *mut acme_device_attr, size: u32) -> c_int;
        "ACME_1.0" "1" fn acme_create_qp(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex, own: *mut acme_qp_init_attr, size: u32) -> *mut ibv_qp;
        "ACME_1.0" "1" fn acme_qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut acme_qp_ex;
    }
    optional {
        "ACME_1.1" "2" fn acme_query_qp_pace(qp: *mut ibv_qp, pace_mbps: *mut u32) -> c_int;
    }
}
