//! Streams and messages: each byte arrives once and in order.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;

use test_harness::{bytes, fill};
use trespass::{SeqPacket, Stats, Stream};

use super::{LONG, Plan, RandomChoices, add, broken, counts, finding};

fn count_rails(stats: &Stats) {
    add(&counts().rails_joined, stats.rails_joined);
    add(&counts().rails_failed, stats.rails_failed);
    add(&counts().repeated, stats.repeated);
}

/// Writes parts of a seeded sequence, each after its length; the last length is 0.
pub(crate) fn exchange_bytes(stream: Stream, plan: Plan) {
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    let (mut reader, mut writer) = stream.split();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut random, mut at) = (RandomChoices::new(plan.out()), 0);
            let mut write = || -> io::Result<()> {
                while !plan.is_over() {
                    let len = random.len(600_000);
                    let mut part = vec![0; 4 + len];
                    part[..4].copy_from_slice(&(len as u32).to_le_bytes());
                    fill(plan.out(), at, &mut part[4..]);
                    writer.write_all(&part)?;
                    at += len;
                }
                writer.write_all(&[0; 4])?;
                writer.as_ref().shutdown(Shutdown::Write)
            };
            if let Err(error) = write() {
                broken("a writer", &error);
            }
        });
        if let Err(error) = read_parts(&mut reader, plan) {
            broken("a reader", &error);
        }
    });
    count_rails(&reader.as_ref().stats());
}

fn read_parts(reader: &mut impl Read, plan: Plan) -> io::Result<()> {
    let (mut head, mut at) = ([0; 4], 0);
    loop {
        reader.read_exact(&mut head)?;
        let len = u32::from_le_bytes(head) as usize;
        if len == 0 {
            let more = reader.read(&mut head)?;
            return match more {
                0 => Ok(()),
                _ => Err(io::Error::other("bytes after the end")),
            };
        }
        if len > 600_000 {
            return Err(io::Error::other(format!("a length of {len} after {at} bytes")));
        }
        let mut part = vec![0; len];
        reader.read_exact(&mut part)?;
        let mut expected = vec![0; len];
        fill(plan.into(), at, &mut expected);
        if part != expected {
            return Err(io::Error::other(format!("other bytes within {at}..{}", at + len)));
        }
        at += len;
        add(&counts().bytes, len as u64);
    }
}

/// One side lends blocks, and the other receives in place.
pub(crate) fn lend(mut stream: Stream, plan: Plan) {
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    let lends = plan.seed / 3 % 2 == plan.side;
    let outcome = if lends { lend_parts(&mut stream, plan) } else { read_parts(&mut stream, plan) };
    if let Err(error) = outcome {
        broken(if lends { "a lender" } else { "a borrower" }, &error);
    }
    count_rails(&stream.stats());
}

fn lend_parts(stream: &mut Stream, plan: Plan) -> io::Result<()> {
    let (mut random, mut at, mut lent) = (RandomChoices::new(plan.out()), 0, Vec::new());
    loop {
        let is_over = plan.is_over();
        while lent.len() > if is_over { 0 } else { 8 } {
            let back = stream.next_completion()?.expect("a block is lent");
            let index = lent.iter().position(|(ticket, _)| *ticket == back.ticket).expect("a lent block");
            let (_, sent): (_, Vec<u8>) = lent.swap_remove(index);
            if back.sent && back.block.bytes()[..sent.len()] != sent {
                finding("a lent block comes back with other bytes");
            }
        }
        if is_over {
            stream.write_all(&[0; 4])?;
            return stream.shutdown(Shutdown::Write);
        }
        let len = random.len(600_000);
        let mut part = vec![0; 4 + len];
        part[..4].copy_from_slice(&(len as u32).to_le_bytes());
        fill(plan.out(), at, &mut part[4..]);
        let mut block = stream.buffer(part.len())?;
        block.bytes_mut()[..part.len()].copy_from_slice(&part);
        let ticket = stream.send_buf(block, part.len()).map_err(|refused| refused.error)?;
        lent.push((ticket, part));
        at += len;
        add(&counts().lent, 1);
    }
}

/// Sends messages that consist of a number and bytes of that number's seed; an empty one is the last.
pub(crate) fn exchange_messages(packets: SeqPacket, plan: Plan) {
    packets.set_read_timeout(Some(LONG)).unwrap();
    packets.set_write_timeout(Some(LONG)).unwrap();
    let (mut receiver, mut sender) = packets.split();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = RandomChoices::new(plan.out());
            let mut send = || -> io::Result<()> {
                for number in 0_u64.. {
                    if plan.is_over() {
                        break;
                    }
                    let len = random.len(300_000);
                    let message =
                        [&number.to_le_bytes()[..], &bytes(plan.out() ^ number << 40, len)].concat();
                    sender.send(&message)?;
                }
                sender.send(b"end")?;
                sender.as_ref().shutdown(Shutdown::Write)
            };
            if let Err(error) = send() {
                broken("a sender", &error);
            }
        });
        let (mut buffer, mut random) = (vec![0; 300_008], RandomChoices::new(plan.into()));
        let mut receive = || -> io::Result<()> {
            for number in 0_u64.. {
                let got = receiver.recv(&mut buffer)?;
                if &buffer[..got] == b"end" {
                    break;
                }
                let len = random.len(300_000);
                let expected = [&number.to_le_bytes()[..], &bytes(plan.into() ^ number << 40, len)].concat();
                if buffer[..got] != expected {
                    let words = format!("message {number} of {len} bytes is another one: {:?}", &buffer[..8]);
                    return Err(io::Error::other(words));
                }
                add(&counts().messages, 1);
            }
            match receiver.recv(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
                other => Err(io::Error::other(format!("{other:?} after the last message"))),
            }
        };
        if let Err(error) = receive() {
            broken("a receiver", &error);
        }
    });
    count_rails(&receiver.as_ref().stats());
}
