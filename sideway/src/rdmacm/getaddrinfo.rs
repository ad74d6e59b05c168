//! Addresses by name.

use std::ffi::{CStr, CString, c_int};
use std::io;
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::{
    RAI_DNS, RAI_FAMILY, RAI_NOROUTE, RAI_NUMERICHOST, RAI_PASSIVE, RAI_SA, rdma_addrinfo,
};
use rdma_mummy_sys::{Provider, RdmaCm};

use super::address::{Address, RawAddress, copy_bytes};
use super::identifier::{Identifier, PortSpace};
use crate::error::{Error, ErrorKind};
use crate::ibverbs::Unsupported;
use crate::ibverbs::queue_pair::QueuePairType;
use crate::provider::default_provider;

c_flags! {
    /// How names are looked up (`RAI_*`).
    pub struct AddressInfoFlags(u32) {
        /// The addresses are to listen at.
        Passive = RAI_PASSIVE,
        /// The name is a number: nobody is asked.
        NumericHost = RAI_NUMERICHOST,
        /// Routes are not looked for.
        NoRoute = RAI_NOROUTE,
        /// Addresses of the hints' family only.
        Family = RAI_FAMILY,
        /// By the subnet's administrator; only of [`resolve_addrinfo`](Identifier::resolve_addrinfo).
        SubnetAdministrator = RAI_SA,
        /// By name servers; only of [`resolve_addrinfo`](Identifier::resolve_addrinfo).
        Dns = RAI_DNS,
    }
}

/// What is looked for (the hints of `rdma_getaddrinfo`).
#[derive(Clone, Debug)]
pub struct AddressInfoHints {
    flags: AddressInfoFlags,
    family: i32,
    qp_type: Option<QueuePairType>,
    port_space: Option<PortSpace>,
    source: Option<Address>,
    destination: Option<Address>,
}

impl Default for AddressInfoHints {
    fn default() -> Self {
        Self::new()
    }
}

impl AddressInfoHints {
    /// No hint.
    pub fn new() -> Self {
        let flags = AddressInfoFlags::empty();
        Self { flags, family: 0, qp_type: None, port_space: None, source: None, destination: None }
    }

    /// How to look.
    pub fn setup_flags(&mut self, flags: AddressInfoFlags) -> &mut Self {
        self.flags |= flags;
        self
    }

    /// The family of the addresses, as C has it (`AF_INET`, `AF_INET6`, `AF_IB`).
    pub fn setup_family(&mut self, family: i32) -> &mut Self {
        self.family = family;
        self.setup_flags(AddressInfoFlags::Family)
    }

    /// The type of the queue pair.
    pub fn setup_qp_type(&mut self, qp_type: QueuePairType) -> &mut Self {
        self.qp_type = Some(qp_type);
        self
    }

    /// What ports are numbered in.
    pub fn setup_port_space(&mut self, port_space: PortSpace) -> &mut Self {
        self.port_space = Some(port_space);
        self
    }

    /// The local address to connect from.
    pub fn setup_source(&mut self, source: impl Into<Address>) -> &mut Self {
        self.source = Some(source.into());
        self
    }

    /// The peer's address, in place of a name.
    pub fn setup_destination(&mut self, destination: impl Into<Address>) -> &mut Self {
        self.destination = Some(destination.into());
        self
    }
}

/// An address that was found (`rdma_addrinfo`): a copy; the library's own is freed (`rdma_freeaddrinfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressInfo {
    flags: AddressInfoFlags,
    family: i32,
    qp_type: QueuePairType,
    port_space: PortSpace,
    source: Option<Address>,
    destination: Option<Address>,
    source_name: Option<CString>,
    destination_name: Option<CString>,
    connect_data: Vec<u8>,
    route: Vec<u8>,
}

impl AddressInfo {
    /// How it was looked for.
    pub fn flags(&self) -> AddressInfoFlags {
        self.flags
    }

    /// The family of the addresses, as C has it.
    pub fn family(&self) -> i32 {
        self.family
    }

    /// The type of the queue pair that serves it.
    pub fn qp_type(&self) -> QueuePairType {
        self.qp_type
    }

    /// What its port is numbered in.
    pub fn port_space(&self) -> PortSpace {
        self.port_space
    }

    /// The local address: what to bind to, or to connect from.
    pub fn source(&self) -> Option<&Address> {
        self.source.as_ref()
    }

    /// The peer's address: what to resolve.
    pub fn destination(&self) -> Option<&Address> {
        self.destination.as_ref()
    }

    /// The canonical name of the local end.
    pub fn source_name(&self) -> Option<&CStr> {
        self.source_name.as_deref()
    }

    /// The canonical name of the peer.
    pub fn destination_name(&self) -> Option<&CStr> {
        self.destination_name.as_deref()
    }

    /// What is to come first in the private data of a connection to this address; mostly nothing.
    pub fn connect_data(&self) -> &[u8] {
        &self.connect_data
    }

    /// The route, as `RDMA_OPTION_IB_PATH` takes it ([`set_option`](Identifier::set_option)); mostly none.
    pub fn route(&self) -> &[u8] {
        &self.route
    }

    /// # Safety
    ///
    /// The library returned `raw`, and has not freed it.
    unsafe fn copy(raw: NonNull<rdma_addrinfo>) -> Self {
        // SAFETY: the caller guarantees (`# Safety`) that the library returned `raw`, and has not
        // freed it; the struct is plain data.
        let info = unsafe { raw.read() };
        // SAFETY: the library says how long the addresses and the data are, and ends the names with a zero.
        unsafe {
            Self {
                flags: AddressInfoFlags::from_bits_retain(info.ai_flags as u32),
                family: info.ai_family,
                qp_type: QueuePairType::from_raw(info.ai_qp_type as u32),
                port_space: PortSpace::from_raw(info.ai_port_space as u32),
                source: copy_bytes(info.ai_src_addr, info.ai_src_len as usize),
                destination: copy_bytes(info.ai_dst_addr, info.ai_dst_len as usize),
                source_name: name(info.ai_src_canonname),
                destination_name: name(info.ai_dst_canonname),
                connect_data: data(info.ai_connect.cast(), info.ai_connect_len),
                route: data(info.ai_route.cast(), info.ai_route_len),
            }
        }
    }

    /// # Safety
    ///
    /// The library returned `list`, or it is null; it is freed by this, with what it returned it.
    unsafe fn take_list(lib: &RdmaCm, list: *mut rdma_addrinfo) -> Vec<Self> {
        let mut found = Vec::new();
        let mut next = NonNull::new(list);
        while let Some(raw) = next {
            // SAFETY: the list is not freed yet.
            found.push(unsafe { Self::copy(raw) });
            // SAFETY: the list is not freed yet.
            next = NonNull::new(unsafe { (&raw const (*raw.as_ptr()).ai_next).read() });
        }
        if !list.is_null() {
            // SAFETY: it is freed once, and not used afterwards.
            unsafe { (lib.rdma_freeaddrinfo)(list) };
        }
        found
    }
}

/// # Safety
///
/// `from` is null, or a string.
unsafe fn name(from: *const core::ffi::c_char) -> Option<CString> {
    // SAFETY: the caller guarantees (`# Safety`) that `from` is null, or a string.
    (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_owned())
}

/// # Safety
///
/// `from` is null, or readable for `length` bytes.
unsafe fn data(from: *const u8, length: usize) -> Vec<u8> {
    if from.is_null() || length == 0 {
        return Vec::new();
    }
    // SAFETY: the caller guarantees (`# Safety`) that `from` is null, or readable for `length`
    // bytes.
    unsafe { core::slice::from_raw_parts(from, length) }.to_vec()
}

/// What C is asked, and what it points to.
struct RawQuery {
    node: Option<CString>,
    service: Option<CString>,
    source: Option<RawAddress>,
    destination: Option<RawAddress>,
    raw: rdma_addrinfo,
}

impl RawQuery {
    fn new(node: Option<&str>, service: Option<&str>, hints: &AddressInfoHints) -> Result<Box<Self>, Error> {
        let string = |text: Option<&str>| {
            text.map(CString::new).transpose().map_err(|_| {
                Error::not_called(VERB, ErrorKind::InvalidArgument, "the name has a zero byte in it")
                    .with("name", text.unwrap_or_default().escape_default())
            })
        };
        let mut question = Box::new(Self {
            node: string(node)?,
            service: string(service)?,
            source: hints.source.as_ref().map(RawAddress::from),
            destination: hints.destination.as_ref().map(RawAddress::from),
            raw: rdma_addrinfo {
                ai_flags: hints.flags.bits() as c_int,
                ai_family: hints.family,
                ai_qp_type: hints.qp_type.map_or(0, |qp_type| qp_type.raw() as c_int),
                ai_port_space: hints.port_space.map_or(0, |space| space.raw() as c_int),
                ..rdma_addrinfo::default()
            },
        });
        let Self { source, destination, raw, .. } = &mut *question;
        // Not as long as their families say: the library copies so much, and reads an address of IPv6 from the copy of any that it does not
        // take for one of IPv4, which it decides by the family of the hints or of what it found.
        let length = size_of::<RawAddress>() as libc::socklen_t;
        if let Some(from) = source {
            (raw.ai_src_addr, raw.ai_src_len) = (from.as_mut_ptr(), length);
        }
        if let Some(to) = destination {
            (raw.ai_dst_addr, raw.ai_dst_len) = (to.as_mut_ptr(), length);
        }
        Ok(question)
    }

    fn node(&self) -> *const core::ffi::c_char {
        self.node.as_ref().map_or(ptr::null(), |node| node.as_ptr())
    }

    fn service(&self) -> *const core::ffi::c_char {
        self.service.as_ref().map_or(ptr::null(), |service| service.as_ptr())
    }
}

/// Looks for the addresses of a name and a service (`rdma_getaddrinfo`), with the [default provider](default_provider). It may ask name
/// servers, and sleep meanwhile.
///
/// # Errors
///
/// There is no provider, it has no librdmacm, or nothing was found; or the [subnet administrator](AddressInfoFlags::SubnetAdministrator) is
/// to be asked, which takes an [identifier](Identifier::resolve_addrinfo) ([`Unsupported`]).
///
/// # References
///
/// `man rdma_getaddrinfo`
pub fn getaddrinfo(
    node: Option<&str>,
    service: Option<&str>,
    hints: &AddressInfoHints,
) -> Result<Vec<AddressInfo>, Error> {
    let provider = default_provider();
    let provider = provider.map_err(|error| Error::caused(VERB, ErrorKind::Library, error))?;
    getaddrinfo_of(provider, node, service, hints)
}

/// The same, of this provider.
///
/// # Errors
///
/// As [`getaddrinfo`].
pub fn getaddrinfo_of(
    provider: Provider,
    node: Option<&str>,
    service: Option<&str>,
    hints: &AddressInfoHints,
) -> Result<Vec<AddressInfo>, Error> {
    let lib = provider.rdmacm().map_err(|error| Error::caused(VERB, ErrorKind::Library, error.clone()))?;
    if hints.flags.contains(AddressInfoFlags::SubnetAdministrator) {
        // Those releases that do it read the list of devices while others change it, and acknowledge an event that did not come.
        return Err(Unsupported::of_call("rdma_getaddrinfo", "the subnet administrator's addresses").into());
    }
    let question = RawQuery::new(node, service, hints)?;
    let mut list = ptr::null_mut();
    // What it returned says too little: -1 is an error number's, and one of `getaddrinfo`'s.
    // SAFETY: the location is this thread's own errno.
    unsafe { *libc::__errno_location() = 0 };
    // SAFETY: names, hints and what they point to outlive the call, and the place is this function's own.
    let result = unsafe {
        (lib.rdma_getaddrinfo)(question.node(), question.service(), &raw const question.raw, &raw mut list)
    };
    if result == 0 {
        // SAFETY: the library returned it just now.
        return Ok(unsafe { AddressInfo::take_list(lib, list) });
    }
    let error = io::Error::last_os_error();
    let errno = error.raw_os_error().unwrap_or(0);
    Err(match result {
        -1 | libc::EAI_SYSTEM if errno != 0 => Error::os(VERB, error),
        code => Error::os(VERB, io::Error::other(reason(code)))
            .of_kind(ErrorKind::NotFound)
            .reason("no address was found")
            .with("code", code),
    }
    .of(looked_for(node, service)))
}

/// What `getaddrinfo`'s code means.
fn reason(code: c_int) -> String {
    // SAFETY: there is no condition; the string is static.
    let text = unsafe { libc::gai_strerror(code) };
    // SAFETY: there is no condition; the string is static.
    unsafe { name(text) }.map_or_else(String::new, |text| text.to_string_lossy().into_owned())
}

impl Identifier {
    /// Looks for the addresses of a name and a service without sleeping (`rdma_resolve_addrinfo`). The event
    /// [`AddressInfoResolved`](super::EventType::AddressInfoResolved) or [`AddressInfoError`](super::EventType::AddressInfoError) follows;
    /// then [ask](Self::query_addrinfo).
    ///
    /// # Errors
    ///
    /// The library is too old ([`Unsupported`]), or refuses.
    ///
    /// # References
    ///
    /// `man rdma_resolve_addrinfo`
    pub fn resolve_addrinfo(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: &AddressInfoHints,
    ) -> Result<(), Error> {
        let resolve = self.lib().rdma_resolve_addrinfo();
        let resolve =
            resolve.map_err(|symbol| Unsupported::of_library("resolution of names by events", symbol))?;
        let question = RawQuery::new(node, service, hints)?;
        // SAFETY: the identifier lives, and is called for alone; names, hints and what they point to outlive the call.
        let result = self.call(None, |_, id| unsafe {
            resolve(id, question.node(), question.service(), &raw const question.raw)
        });
        result.map_err(|source| Error::os("rdma_resolve_addrinfo", source).of(looked_for(node, service)))
    }

    /// The addresses that were [asked for](Self::resolve_addrinfo) (`rdma_query_addrinfo`).
    ///
    /// # Errors
    ///
    /// They are not there, or the library is too old ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man rdma_resolve_addrinfo`
    pub fn query_addrinfo(&self) -> Result<Vec<AddressInfo>, Error> {
        let lib = self.lib();
        let query = lib.rdma_query_addrinfo();
        let query =
            query.map_err(|symbol| Unsupported::of_library("resolution of names by events", symbol))?;
        let mut list = ptr::null_mut();
        // SAFETY: the identifier lives, and is called for alone; the place is this function's own.
        let result = self.call(None, |_, id| unsafe { query(id, &raw mut list) });
        result.map_err(|source| Error::os("rdma_query_addrinfo", source))?;
        // SAFETY: the library returned it just now.
        Ok(unsafe { AddressInfo::take_list(lib, list) })
    }

    /// Writes an event of the program's own (`rdma_write_cm_event`, of the type [`User`](super::EventType::User)) to the identifier's
    /// channel, to wake whoever waits there.
    ///
    /// # Errors
    ///
    /// The library is too old ([`Unsupported`]), or refuses.
    ///
    /// # References
    ///
    /// `man rdma_write_cm_event`
    pub fn write_user_event(&self, status: i32, argument: u64) -> Result<(), Error> {
        use rdma_mummy_sys::types::rdma_cm_event_type;
        let write = self.lib().rdma_write_cm_event();
        let write = write.map_err(|symbol| Unsupported::of_library("events of the program's own", symbol))?;
        let event = rdma_cm_event_type::RDMA_CM_EVENT_USER;
        // No other type: whoever takes the event trusts it.
        // SAFETY: the identifier lives, and is called for alone.
        let result = self.call(None, |_, id| unsafe { write(id, event, status, argument) });
        result.map_err(|source| {
            Error::os("rdma_write_cm_event", source)
                .with("status", status)
                .with("argument", format_args!("{argument:#x}"))
                .with("state", self.state())
        })
    }
}

const VERB: &str = "rdma_getaddrinfo";

/// The object of an error: the names that were looked for.
#[cold]
fn looked_for(node: Option<&str>, service: Option<&str>) -> String {
    match (node, service) {
        (Some(node), Some(service)) => format!("`{node}`, service `{service}`"),
        (Some(node), None) => format!("`{node}`"),
        (None, Some(service)) => format!("service `{service}`"),
        (None, None) => "the address of the hints".to_owned(),
    }
}
