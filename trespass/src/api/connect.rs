//! The calls of a configuration that make connections and listeners.

use std::io;
use std::net::ToSocketAddrs;

use super::listener::Listener;
use super::seq_packet::SeqPacket;
use super::stream::Stream;
use crate::config::{Builder, Config};
#[expect(unused_imports, reason = "the documentation names it")]
use crate::error::ConnectError;
use crate::wire::Kind;

impl Builder {
    /// Connects a stream: [`build`](Self::build), then [`Config::connect`].
    ///
    /// # Errors
    ///
    /// As both.
    pub fn connect(self, addr: impl ToSocketAddrs) -> io::Result<Stream> {
        self.build()?.connect(addr)
    }

    /// Connects for messages: [`build`](Self::build), then [`Config::connect_seq_packet`].
    ///
    /// # Errors
    ///
    /// As both.
    pub fn connect_seq_packet(self, addr: impl ToSocketAddrs) -> io::Result<SeqPacket> {
        self.build()?.connect_seq_packet(addr)
    }

    /// Listens: [`build`](Self::build), then [`Config::bind`].
    ///
    /// # Errors
    ///
    /// As both.
    pub fn bind(self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        self.build()?.bind(addr)
    }
}

impl Config {
    /// Connects a stream with the first of the addresses that takes it.
    ///
    /// # Errors
    ///
    /// A [`ConnectError`], as an [`io::Error`] of the kind that [`std::net`] gives: the address names no host, nobody listens there, or
    /// not a program of this protocol, or there is no RDMA and it is required.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<Stream> {
        Stream::new(self.connect_any(addr, Kind::Stream)?)
    }

    /// Connects for messages with the first of the addresses that takes it.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_seq_packet(&self, addr: impl ToSocketAddrs) -> io::Result<SeqPacket> {
        SeqPacket::new(self.connect_any(addr, Kind::SeqPacket)?)
    }

    /// Listens at the first of the addresses that can be listened at.
    ///
    /// # Errors
    ///
    /// A [`ConnectError`], as an [`io::Error`] of the kind that [`std::net`] gives.
    pub fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        Listener::new(self.listen(addr)?, self)
    }
}
