//! The clients of a listener whose connections are not established, each under the number of its
//! events.

use std::collections::VecDeque;
use std::time::Instant;

/// How far a client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its first message is incomplete.
    Arriving,
    /// Its first message is complete, and it waits for a place.
    Queued,
    /// It has a place.
    Running,
    /// It has given its place to another, and may still become a connection. `true`: it has a queue
    /// pair.
    Parked(bool),
}

struct AcceptedClient<H> {
    handshake: H,
    stage: Stage,
    /// When to continue at the latest.
    due: Instant,
}

/// The clients, and the order of those that wait for a place.
pub(super) struct ClientTable<H> {
    clients: Vec<Option<AcceptedClient<H>>>,
    /// The oldest first.
    queue: VecDeque<usize>,
    running: usize,
    parked_with_path: usize,
    accepted: usize,
    /// The next place is for the newest in the queue.
    prefers_newest: bool,
}

impl<H> ClientTable<H> {
    pub(super) fn new() -> Self {
        Self {
            clients: Vec::new(),
            queue: VecDeque::new(),
            running: 0,
            parked_with_path: 0,
            accepted: 0,
            prefers_newest: true,
        }
    }

    /// All numbers are below this one.
    pub(super) fn end(&self) -> usize {
        self.clients.len()
    }

    /// The clients that have a place.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// The clients that have given theirs to others, and have a queue pair.
    pub(super) fn parked_with_path(&self) -> usize {
        self.parked_with_path
    }

    /// The clients that have no place.
    pub(super) fn waiting(&self) -> usize {
        self.accepted - self.running
    }

    /// The number of the next client.
    pub(super) fn next_number(&self) -> usize {
        self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len())
    }

    /// Adds a client, which sends its first message.
    pub(super) fn add(&mut self, at: usize, handshake: H, due: Instant) {
        if at == self.clients.len() {
            self.clients.push(None);
        }
        self.clients[at] = Some(AcceptedClient { handshake, stage: Stage::Arriving, due });
        self.accepted += 1;
    }

    fn client(&mut self, at: usize) -> Option<&mut AcceptedClient<H>> {
        self.clients.get_mut(at)?.as_mut()
    }

    pub(super) fn get(&mut self, at: usize) -> Option<&mut H> {
        self.client(at).map(|client| &mut client.handshake)
    }

    pub(super) fn stage(&self, at: usize) -> Option<Stage> {
        Some(self.clients.get(at)?.as_ref()?.stage)
    }

    pub(super) fn due(&self, at: usize) -> Option<Instant> {
        Some(self.clients.get(at)?.as_ref()?.due)
    }

    pub(super) fn set_due(&mut self, at: usize, due: Instant) {
        if let Some(client) = self.client(at) {
            client.due = due;
        }
    }

    /// When the next client has to continue at the latest.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.clients.iter().flatten().map(|client| client.due).min()
    }

    /// The clients of a stage.
    pub(super) fn all(&self, stage: Stage) -> impl Iterator<Item = (usize, &H)> {
        let clients = self.clients.iter().enumerate();
        let clients = clients.filter_map(|(at, client)| Some((at, client.as_ref()?)));
        clients.filter(move |(_, client)| client.stage == stage).map(|(at, client)| (at, &client.handshake))
    }

    /// The client's first message is complete.
    pub(super) fn enqueue(&mut self, at: usize) {
        if let Some(client) = self.client(at) {
            client.stage = Stage::Queued;
            self.queue.push_back(at);
        }
    }

    /// Whether a client waits for a place.
    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn oldest_queued(&self) -> Option<usize> {
        self.queue.front().copied()
    }

    /// The next client that gets a place: the newest and the oldest by turns. Clients that came before
    /// and fall silent in their places do not delay the newest, and the oldest does not wait for ever.
    pub(super) fn next_queued(&self) -> Option<usize> {
        if self.prefers_newest { self.queue.back().copied() } else { self.oldest_queued() }
    }

    /// Gives a place to a client of the queue.
    pub(super) fn begin(&mut self, at: usize) -> Option<&mut H> {
        self.leave_queue(at);
        self.prefers_newest = !self.prefers_newest;
        self.running += 1;
        let client = self.clients.get_mut(at)?.as_mut()?;
        client.stage = Stage::Running;
        Some(&mut client.handshake)
    }

    /// Gives the place of a client back. The client stays.
    pub(super) fn park(&mut self, at: usize, has_path: bool) {
        if let Some(client) = self.client(at) {
            client.stage = Stage::Parked(has_path);
            self.running -= 1;
            self.parked_with_path += usize::from(has_path);
        }
    }

    pub(super) fn take(&mut self, at: usize) -> Option<H> {
        let client = self.clients.get_mut(at)?.take()?;
        self.accepted -= 1;
        match client.stage {
            Stage::Arriving | Stage::Parked(false) => {}
            Stage::Parked(true) => self.parked_with_path -= 1,
            Stage::Queued => self.leave_queue(at),
            Stage::Running => self.running -= 1,
        }
        // After a storm, turns do not look at places that nobody has.
        while let Some(None) = self.clients.last() {
            self.clients.pop();
        }
        Some(client.handshake)
    }

    fn leave_queue(&mut self, at: usize) {
        self.queue.retain(|queued| *queued != at);
    }

    /// Takes all clients.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = H> {
        let all = std::mem::replace(self, Self::new());
        all.clients.into_iter().flatten().map(|client| client.handshake)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(clients: usize) -> ClientTable<char> {
        let mut table = ClientTable::new();
        for (client, name) in ('a'..).take(clients).enumerate() {
            assert_eq!(table.next_number(), client);
            table.add(client, name, Instant::now());
            table.enqueue(client);
        }
        table
    }

    #[test]
    fn the_newest_and_the_oldest_begin_by_turns() {
        let mut table = table(5);
        let begun: String = (0..5)
            .map(|_| {
                let at = table.next_queued().unwrap();
                *table.begin(at).unwrap()
            })
            .collect();
        assert_eq!(begun, "eadbc");
        assert_eq!((table.running(), table.waiting(), table.has_queued()), (5, 0, false));
    }

    #[test]
    fn those_that_leave_are_counted_at_every_stage() {
        let mut table = table(2);
        table.add(2, 'c', Instant::now());
        table.begin(0);
        assert_eq!((table.running(), table.waiting()), (1, 2));
        assert_eq!(table.take(0), Some('a'));
        assert_eq!(table.take(0), None);
        assert_eq!((table.running(), table.waiting(), table.next_number()), (0, 2, 0));
        assert_eq!(table.take(2), Some('c'));
        assert_eq!((table.end(), table.next_queued()), (2, Some(1)));
        assert_eq!(table.take(1), Some('b'));
        assert_eq!((table.waiting(), table.has_queued(), table.end()), (0, false, 0));
    }
}
