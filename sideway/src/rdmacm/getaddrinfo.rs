//! Name resolution to RDMA addresses (`rdma_getaddrinfo`).

use std::ffi::{CStr, CString, c_int};
use std::io;
use std::net::Ipv6Addr;
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
use crate::provider::default_provider_for;

c_flags! {
    /// Options of a name lookup (`RAI_*`).
    pub struct AddressInfoFlags(u32) {
        /// The addresses are for listening.
        Passive = RAI_PASSIVE,
        /// The name is a numeric address, so that no name server is queried.
        NumericHost = RAI_NUMERICHOST,
        /// Do not look up routes.
        NoRoute = RAI_NOROUTE,
        /// Return addresses of the hints' family only.
        Family = RAI_FAMILY,
        /// Query the subnet administrator; only for
        /// [`resolve_addrinfo`](Identifier::resolve_addrinfo).
        SubnetAdministrator = RAI_SA,
        /// Query name servers; only for [`resolve_addrinfo`](Identifier::resolve_addrinfo).
        Dns = RAI_DNS,
    }
}

/// Restrictions of a lookup (the hints of `rdma_getaddrinfo`).
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
    /// Hints without any restriction.
    pub fn new() -> Self {
        let flags = AddressInfoFlags::empty();
        Self { flags, family: 0, qp_type: None, port_space: None, source: None, destination: None }
    }

    /// Sets the options of the lookup.
    pub fn setup_flags(&mut self, flags: AddressInfoFlags) -> &mut Self {
        self.flags |= flags;
        self
    }

    /// Sets the family of the addresses, by its C value (`AF_INET`, `AF_INET6`, `AF_IB`).
    pub fn setup_family(&mut self, family: i32) -> &mut Self {
        self.family = family;
        self.setup_flags(AddressInfoFlags::Family)
    }

    /// Sets the type of the queue pair.
    pub fn setup_qp_type(&mut self, qp_type: QueuePairType) -> &mut Self {
        self.qp_type = Some(qp_type);
        self
    }

    /// Limits the results to one port space (`ai_port_space`).
    pub fn setup_port_space(&mut self, port_space: PortSpace) -> &mut Self {
        self.port_space = Some(port_space);
        self
    }

    /// Sets the local address to connect from.
    pub fn setup_source(&mut self, source: impl Into<Address>) -> &mut Self {
        self.source = Some(source.into());
        self
    }

    /// Sets the peer's address, in place of a name.
    pub fn setup_destination(&mut self, destination: impl Into<Address>) -> &mut Self {
        self.destination = Some(destination.into());
        self
    }
}

/// An address from a lookup (`rdma_addrinfo`). It is a copy; the library's list is freed
/// (`rdma_freeaddrinfo`).
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
    /// The options of the lookup.
    pub fn flags(&self) -> AddressInfoFlags {
        self.flags
    }

    /// The family of the addresses, by its C value.
    pub fn family(&self) -> i32 {
        self.family
    }

    /// The type of queue pair for this address.
    pub fn qp_type(&self) -> QueuePairType {
        self.qp_type
    }

    /// The port space of the address.
    pub fn port_space(&self) -> PortSpace {
        self.port_space
    }

    /// The local address, to bind to or to connect from.
    pub fn source(&self) -> Option<&Address> {
        self.source.as_ref()
    }

    /// The peer's address, to resolve.
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

    /// Data that must come first in the private data of a connection to this address; usually
    /// empty.
    pub fn connect_data(&self) -> &[u8] {
        &self.connect_data
    }

    /// The route, in the form that `RDMA_OPTION_IB_PATH` takes
    /// ([`set_option`](Identifier::set_option)); usually empty.
    pub fn route(&self) -> &[u8] {
        &self.route
    }

    /// # Safety
    ///
    /// The library must have returned `raw`, and it must not be freed yet.
    unsafe fn copy(raw: NonNull<rdma_addrinfo>) -> Self {
        // SAFETY: the caller guarantees (`# Safety`) that the library returned `raw`, and has not
        // freed it; the struct is plain data.
        let info = unsafe { raw.read() };
        // SAFETY: the library sets the lengths of the addresses and the data, and terminates the
        // names with a zero byte.
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
    /// `list` must be null or returned by the library. This function frees it with all its
    /// elements.
    unsafe fn take_list(lib: &RdmaCm, list: *mut rdma_addrinfo) -> Vec<Self> {
        let mut found = Vec::new();
        let mut next = NonNull::new(list);
        while let Some(raw) = next {
            // SAFETY: the list is freed only after this loop.
            found.push(unsafe { Self::copy(raw) });
            // SAFETY: the list is freed only after this loop.
            next = NonNull::new(unsafe { (&raw const (*raw.as_ptr()).ai_next).read() });
        }
        if !list.is_null() {
            // SAFETY: the list is freed once, and not used afterwards.
            unsafe { (lib.rdma_freeaddrinfo)(list) };
        }
        found
    }
}

/// # Safety
///
/// `from` must be null, or a zero-terminated string.
unsafe fn name(from: *const core::ffi::c_char) -> Option<CString> {
    // SAFETY: the caller guarantees (`# Safety`) that `from` is null, or a string.
    (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_owned())
}

/// # Safety
///
/// `from` must be null, or readable for `length` bytes.
unsafe fn data(from: *const u8, length: usize) -> Vec<u8> {
    if from.is_null() || length == 0 {
        return Vec::new();
    }
    // SAFETY: the caller guarantees (`# Safety`) that `from` is null, or readable for `length`
    // bytes.
    unsafe { core::slice::from_raw_parts(from, length) }.to_vec()
}

/// The arguments of a lookup for C, with the memory that they point to.
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
        // The full size instead of the family's. The library copies this many bytes. It may read an
        // IPv6 address from the copy of another family, because it decides by the family of the
        // hints or of the result.
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

/// Looks up the addresses of a name and a service (`rdma_getaddrinfo`), with the [default
/// provider](crate::default_provider). It may query name servers, so it may sleep.
///
/// # Errors
///
/// Fails if there is no provider, if it has no librdmacm, or if nothing was found. The [subnet
/// administrator](AddressInfoFlags::SubnetAdministrator) is [`Unsupported`] here, because its
/// lookup needs an [identifier](Identifier::resolve_addrinfo).
///
/// # References
///
/// `man rdma_getaddrinfo`
pub fn getaddrinfo(
    node: Option<&str>,
    service: Option<&str>,
    hints: &AddressInfoHints,
) -> Result<Vec<AddressInfo>, Error> {
    getaddrinfo_of(default_provider_for(VERB)?, node, service, hints)
}

/// The same with `provider`.
///
/// # Errors
///
/// Fails as [`getaddrinfo`] does.
pub fn getaddrinfo_of(
    provider: Provider,
    node: Option<&str>,
    service: Option<&str>,
    hints: &AddressInfoHints,
) -> Result<Vec<AddressInfo>, Error> {
    let lib = provider.rdmacm().map_err(|error| Error::caused(VERB, ErrorKind::Library, error.clone()))?;
    if hints.flags.contains(AddressInfoFlags::SubnetAdministrator) {
        // The releases that support it have two defects: they read the device list while other
        // threads change it, and they acknowledge an event that did not come.
        return Err(Unsupported::of_call("rdma_getaddrinfo", "the subnet administrator's addresses").into());
    }
    let question = RawQuery::new(node, service, hints)?;
    let mut list = ptr::null_mut();
    // The result -1 is ambiguous: it stands for an error number, and it is a code of `getaddrinfo`.
    // So errno must be 0 before.
    //
    // SAFETY: the location is this thread's errno.
    unsafe { *libc::__errno_location() = 0 };
    // SAFETY: the names, the hints and the memory that they point to outlive the call, and `list`
    // is a local variable.
    let result = unsafe {
        (lib.rdma_getaddrinfo)(question.node(), question.service(), &raw const question.raw, &raw mut list)
    };
    if result == 0 {
        // SAFETY: the library returned the list just now.
        return Ok(unsafe { AddressInfo::take_list(lib, list) });
    }
    let error = io::Error::last_os_error();
    let errno = error.raw_os_error().unwrap_or(0);
    Err(match result {
        -1 | libc::EAI_SYSTEM if errno != 0 => Error::os(VERB, error),
        code => not_found(VERB, code, node),
    }
    .of(looked_for(node, service)))
}

/// The error of a lookup that ended with this code of `getaddrinfo`.
fn not_found(verb: &'static str, code: c_int, node: Option<&str>) -> Error {
    Error::os(verb, io::Error::other(reason(code)))
        .of_kind(ErrorKind::NotFound)
        .reason("no address was found")
        .with("code", code)
        .remedy(node.and_then(with_port).unwrap_or_default())
}

/// The remedy for a name that has a port in it: `HOST:PORT` or `[ADDRESS]:PORT`.
fn with_port(node: &str) -> Option<String> {
    let (host, port) = node.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // An IPv6 address without brackets has a colon, and no port.
    let has_port = port.parse::<u16>().is_ok() && node.parse::<Ipv6Addr>().is_err();
    has_port.then(|| format!("a port is given apart from its host: node `{host}`, service `{port}`"))
}

/// The text for a code of `getaddrinfo`.
fn reason(code: c_int) -> String {
    // SAFETY: the function accepts any code and returns a static string.
    let text = unsafe { libc::gai_strerror(code) };
    // SAFETY: the string is static, and zero-terminated.
    unsafe { name(text) }.map_or_else(String::new, |text| text.to_string_lossy().into_owned())
}

impl Identifier {
    /// Starts a lookup of the addresses of a name and a service (`rdma_resolve_addrinfo`). The event
    /// [`AddressInfoResolved`](super::EventType::AddressInfoResolved) or
    /// [`AddressInfoError`](super::EventType::AddressInfoError) follows. Then call
    /// [`query_addrinfo`](Self::query_addrinfo).
    ///
    /// rdma-core, up to at least 65, asks the name servers before the call returns, and other calls
    /// with the event channel wait for it.
    ///
    /// # Errors
    ///
    /// Fails if the library is too old ([`Unsupported`]) or rejects the request. A name that is not
    /// found is the event, or, with rdma-core, an error of the kind [`ErrorKind::NotFound`].
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
        const VERB: &str = "rdma_resolve_addrinfo";
        let resolve = self.lib().rdma_resolve_addrinfo();
        let resolve =
            resolve.map_err(|symbol| Unsupported::of_library("resolution of names by events", symbol))?;
        let question = RawQuery::new(node, service, hints)?;
        // SAFETY: `call` passes a live identifier, under its channel's lock. The names, the hints
        // and the memory that they point to outlive the call.
        let result = self.call(None, |_, id| unsafe {
            resolve(id, question.node(), question.service(), &raw const question.raw)
        });
        result.map_err(|source| {
            let error = match source.raw_os_error() {
                // rdma-core leaves the code of `getaddrinfo` in errno, or -1 for another error.
                Some(-1) => Error::os(VERB, io::Error::other("the library gives no reason")),
                Some(code) if code < 0 => not_found(VERB, code, node),
                _ => Error::os(VERB, source),
            };
            error.of(looked_for(node, service))
        })
    }

    /// Returns the result of [`resolve_addrinfo`](Self::resolve_addrinfo) (`rdma_query_addrinfo`).
    ///
    /// # Errors
    ///
    /// Fails if there is no result yet, or if the library is too old ([`Unsupported`]).
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
        // SAFETY: `call` passes a live identifier, under its channel's lock; `list` is a local
        // variable.
        let result = self.call(None, |_, id| unsafe { query(id, &raw mut list) });
        result.map_err(|source| Error::os("rdma_query_addrinfo", source))?;
        // SAFETY: the library returned the list just now.
        Ok(unsafe { AddressInfo::take_list(lib, list) })
    }

    /// Writes an event of type [`User`](super::EventType::User) to the identifier's channel, to
    /// wake a thread that waits there (`rdma_write_cm_event`).
    ///
    /// # Errors
    ///
    /// Fails if the library is too old ([`Unsupported`]) or rejects the request.
    ///
    /// # References
    ///
    /// `man rdma_write_cm_event`
    pub fn write_user_event(&self, status: i32, argument: u64) -> Result<(), Error> {
        use rdma_mummy_sys::types::rdma_cm_event_type;
        let write = self.lib().rdma_write_cm_event();
        let write = write.map_err(|symbol| Unsupported::of_library("events of the program's own", symbol))?;
        let event = rdma_cm_event_type::RDMA_CM_EVENT_USER;
        // Other types are not allowed, because the thread that takes the event trusts its contents.
        //
        // SAFETY: `call` passes a live identifier, under its channel's lock.
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
