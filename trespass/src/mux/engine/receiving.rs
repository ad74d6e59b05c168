//! Bytes of the peer.

use std::time::{Duration, Instant};

use super::super::error::ProtocolViolation;
use super::super::frame::{Capacity, Ending, HEADER, HELLO, LAST, MuxHeader, ONE_WAY, Purpose};
use super::received::Inbox;
use super::sending::Outbox;
use super::{Engine, OwnRequest, PeerRequest, Turn, WaitList};

/// Cuts bytes into frames. Data pass through without a copy.
#[derive(Debug)]
pub(super) struct Parser {
    /// The begin of a hello or a header.
    head: [u8; HELLO],
    have: usize,
    /// The frame whose data arrive.
    frame: Option<MuxHeader>,
    /// Bytes of it that have not arrived.
    left: usize,
    /// The frame is of a request that has ended.
    ignored: bool,
}

impl Parser {
    pub(super) fn new() -> Self {
        Self { head: [0; HELLO], have: 0, frame: None, left: 0, ignored: false }
    }

    /// Collects `want` bytes. Returns whether it has them.
    fn collect(&mut self, want: usize, bytes: &mut &[u8]) -> bool {
        let (now, later) = bytes.split_at(bytes.len().min(want - self.have));
        self.head[self.have..self.have + now.len()].copy_from_slice(now);
        self.have += now.len();
        *bytes = later;
        let is_whole = self.have == want;
        if is_whole {
            self.have = 0;
        }
        is_whole
    }
}

impl Engine {
    /// Takes bytes of the peer, of any number. After an error the connection is of no use.
    pub(in super::super) fn receive(
        &mut self,
        mut bytes: &[u8],
        now: Instant,
    ) -> Result<(), ProtocolViolation> {
        self.stats.bytes_received += bytes.len() as u64;
        if self.peer.is_none() {
            if !self.parser.collect(HELLO, &mut bytes) {
                return Ok(());
            }
            self.peer = Some(Capacity::decode(&self.parser.head)?);
            self.wake_list(WaitList::Slot);
        }
        loop {
            let header = match self.parser.frame {
                Some(header) => header,
                None => {
                    if !self.parser.collect(HEADER, &mut bytes) {
                        return Ok(());
                    }
                    let head = self.parser.head.first_chunk().expect("a hello is longer");
                    let header = MuxHeader::decode(head)?;
                    self.stats.frames_received += 1;
                    self.begin_frame(&header, now)?;
                    self.parser.left = header.len as usize;
                    self.parser.frame = Some(header);
                    header
                }
            };
            let (data, later) = bytes.split_at(bytes.len().min(self.parser.left));
            bytes = later;
            self.parser.left -= data.len();
            let ends = self.parser.left == 0;
            if !self.parser.ignored && header.purpose.carries_data() {
                self.data(&header, data, ends);
            }
            if !ends {
                return Ok(());
            }
            self.parser.frame = None;
            if header.purpose == Purpose::Answer && header.has(LAST) {
                self.end_own(header.id, Ending::Done);
            }
        }
    }

    /// Checks a frame, and does what needs no data.
    fn begin_frame(&mut self, header: &MuxHeader, now: Instant) -> Result<(), ProtocolViolation> {
        let id = header.id;
        self.parser.ignored = false;
        match header.purpose {
            Purpose::Request => return self.begin_request(header, now),
            Purpose::Answer | Purpose::Close | Purpose::RequestCredit => self.own_must_exist(header)?,
            Purpose::RequestData | Purpose::Cancel | Purpose::AnswerCredit => {
                if id >= self.next_peer_id {
                    return Err(state(header));
                }
            }
        }
        match header.purpose {
            Purpose::RequestData => match self.peer_requests.get_mut(&id) {
                Some(request) if !request.is_cancelled => request.body.begin(header)?,
                _ => self.parser.ignored = true,
            },
            Purpose::Answer => match self.own_requests.get_mut(&id) {
                Some(request) if request.one_way => return Err(state(header)),
                Some(request) if !request.is_cancelled => request.answers.begin(header)?,
                _ => self.parser.ignored = true,
            },
            Purpose::Close => {
                let ending = Ending::of(header.value);
                let is_cut = self.own_requests.get(&id).is_some_and(|request| request.answers.in_message());
                if ending == Ending::Done && is_cut {
                    return Err(state(header));
                }
                self.end_own(id, ending);
            }
            Purpose::Cancel => self.cancelled(id),
            _ => self.credit(header)?,
        }
        Ok(())
    }

    /// The peer ends requests of this side once, and sends nothing of them afterwards. It has read
    /// their begin: otherwise begins of requests that it ends would collect in `out`.
    fn own_must_exist(&self, header: &MuxHeader) -> Result<(), ProtocolViolation> {
        let is_sent = |request: &OwnRequest| request.batches_before < self.stats.batches;
        match self.own_requests.get(&header.id) {
            Some(request) if request.ending.is_none() && is_sent(request) => Ok(()),
            _ => Err(state(header)),
        }
    }

    fn credit(&mut self, header: &MuxHeader) -> Result<(), ProtocolViolation> {
        let id = header.id;
        let (outbox, turn) = if header.purpose == Purpose::AnswerCredit {
            let Some(request) = self.peer_requests.get_mut(&id) else { return Ok(()) };
            (&mut request.answers, Turn::Answer(id))
        } else {
            let Some(request) = self.own_requests.get_mut(&id) else { return Ok(()) };
            (&mut request.body, Turn::Request(id))
        };
        if !outbox.add_credit(header.value) {
            return Err(ProtocolViolation::Credit { id });
        }
        self.turns.add(turn, outbox);
        Ok(())
    }

    fn begin_request(&mut self, header: &MuxHeader, now: Instant) -> Result<(), ProtocolViolation> {
        let id = header.id;
        if id != self.next_peer_id {
            return Err(state(header));
        }
        self.next_peer_id += 1;
        let has = self.peer_requests.len() as u32 + self.unsent_ends;
        if has >= self.own.requests {
            self.unsent_refusals += 1;
            if self.unsent_refusals > self.own.requests {
                return Err(ProtocolViolation::Flood { refused: self.unsent_refusals });
            }
            self.stats.refused += 1;
            self.control(MuxHeader::close(id, Ending::Refused));
            return Ok(());
        }
        let mut body = Inbox::new(self.own.window);
        body.begin(header)?;
        let deadline = match header.value {
            0 => None,
            value => now.checked_add(Duration::from_millis(value.into())),
        };
        let request = PeerRequest {
            body,
            answers: Outbox::new(self.peer.map_or(0, |peer| peer.window)),
            one_way: header.has(ONE_WAY),
            deadline,
            is_held: false,
            is_cancelled: false,
            waker: None,
        };
        self.peer_requests.insert(id, request);
        self.arrivals.push_back(id);
        self.wake_list(WaitList::Arrival);
        Ok(())
    }

    /// Data of a frame, and perhaps its end.
    fn data(&mut self, header: &MuxHeader, data: &[u8], ends: bool) {
        let id = header.id;
        // The program may have cancelled or answered it within the frame.
        let (inbox, waker) = if header.purpose == Purpose::Answer {
            match self.own_requests.get_mut(&id) {
                Some(request) if !request.is_cancelled => (&mut request.answers, &mut request.waker),
                _ => return,
            }
        } else {
            match self.peer_requests.get_mut(&id) {
                Some(request) => (&mut request.body, &mut request.waker),
                None => return,
            }
        };
        inbox.arrived(data);
        if ends {
            inbox.end_frame(header);
        }
        self.woken.extend(waker.take());
    }
}

fn state(header: &MuxHeader) -> ProtocolViolation {
    ProtocolViolation::State { kind: header.purpose as u8, id: header.id }
}
