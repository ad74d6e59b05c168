//! The traffic of llama.cpp's RPC backend, replayed in its wire format: no package has the program.
//!
//! A command is a byte, a length of 8 bytes and a payload; an answer is a length and a payload. A
//! client says hello, allocates a buffer, uploads weights without answers, and then, for each
//! token, uploads an input, has a graph computed and reads the result.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;

use test_harness::bytes;

use crate::fixture::{Pair, TestTransport, over_each_transport};

over_each_transport!(weights_are_uploaded_and_tokens_computed, a_client_that_leaves_leaves_its_server_whole);

const ALLOC_BUFFER: u8 = 0;
const SET_TENSOR: u8 = 6;
const GET_TENSOR: u8 = 8;
const GRAPH_COMPUTE: u8 = 10;
const HELLO: u8 = 14;

/// The length of a serialized tensor, which stands before an offset.
const TENSOR: usize = 296;
const WEIGHTS: usize = 4 << 20;
const INPUT: usize = 16 << 10;
const TOKENS: usize = 40;

fn weights_are_uploaded_and_tokens_computed(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (client, target) = pair.connection();
    let server = thread::spawn(move || serve(target));
    let mut client = RpcClient(client);
    let (tokens, weights_len) = (transport.less(TOKENS) as u64, transport.less(WEIGHTS));
    assert_eq!(client.call(HELLO, &[]), [7, 0, 1]);
    client.call(ALLOC_BUFFER, &(4 * WEIGHTS as u64).to_le_bytes());
    for part in 0..3 {
        client.set_tensor(WEIGHTS * (part + 1), &bytes(part as u64, weights_len));
    }
    for token in 0..tokens {
        let input = bytes(100 + token, INPUT);
        client.set_tensor(0, &input);
        client.send(GRAPH_COMPUTE, &[]);
        let weights = bytes(0, INPUT);
        let wanted: Vec<_> = input.iter().zip(&weights).map(|(a, b)| a ^ b).collect();
        assert!(client.get_tensor(0, INPUT) == wanted, "token {token}");
    }
    assert!(client.get_tensor(3 * WEIGHTS, weights_len) == bytes(2, weights_len), "the weights have changed");
    drop(client);
    assert_eq!(server.join().expect("no panic").expect("a whole end"), 3 + tokens);
}

/// Its client aborts when it fails: in the middle of a command.
fn a_client_that_leaves_leaves_its_server_whole(transport: TestTransport) {
    let pair = Pair::start(transport);
    let (mut client, target) = pair.connection();
    let server = thread::spawn(move || serve(target));
    client.write_all(&[SET_TENSOR]).expect("a connection");
    client.write_all(&(WEIGHTS as u64).to_le_bytes()).expect("a connection");
    client.write_all(&bytes(1, 1000)).expect("a connection");
    drop(client);
    let error = server.join().expect("no panic").expect_err("half of a command");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    let (client, target) = pair.connection();
    let server = thread::spawn(move || serve(target));
    let mut client = RpcClient(client);
    assert_eq!(client.call(HELLO, &[]), [7, 0, 1]);
    drop(client);
    assert_eq!(server.join().expect("no panic").expect("a whole end"), 0);
}

struct RpcClient(TcpStream);

impl RpcClient {
    fn send(&mut self, command: u8, payload: &[u8]) {
        let header = [&[command], &(payload.len() as u64).to_le_bytes()[..]].concat();
        self.0.write_all(&header).expect("a connection");
        self.0.write_all(payload).expect("a connection");
    }

    fn call(&mut self, command: u8, payload: &[u8]) -> Vec<u8> {
        self.send(command, payload);
        let len = read_len(&mut self.0).expect("an answer");
        read(&mut self.0, len).expect("an answer")
    }

    fn set_tensor(&mut self, offset: usize, data: &[u8]) {
        self.send(SET_TENSOR, &[&[0; TENSOR], &(offset as u64).to_le_bytes()[..], data].concat());
    }

    fn get_tensor(&mut self, offset: usize, len: usize) -> Vec<u8> {
        let ends = [offset as u64, len as u64].map(u64::to_le_bytes).concat();
        self.call(GET_TENSOR, &[&[0; TENSOR], &ends[..]].concat())
    }
}

/// Serves a client until its end. Returns how many tensors it has set.
fn serve(mut client: TcpStream) -> io::Result<u64> {
    let (mut memory, mut tensors) = (Vec::new(), 0);
    loop {
        let mut command = [0];
        if client.read(&mut command)? == 0 {
            return Ok(tensors);
        }
        let len = read_len(&mut client)?;
        let payload = read(&mut client, len)?;
        let number =
            |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().expect("8 bytes")) as usize;
        match command[0] {
            HELLO => answer(&mut client, &[7, 0, 1])?,
            ALLOC_BUFFER => {
                memory = vec![0; number(0)];
                answer(&mut client, &[1_u64, number(0) as u64].map(u64::to_le_bytes).concat())?;
            }
            SET_TENSOR => {
                let data = &payload[TENSOR + 8..];
                memory[number(TENSOR)..][..data.len()].copy_from_slice(data);
                tensors += 1;
            }
            GRAPH_COMPUTE => {
                let (input, weights) = memory.split_at_mut(WEIGHTS);
                input[..INPUT].iter_mut().zip(weights).for_each(|(input, weight)| *input ^= *weight);
            }
            GET_TENSOR => answer(&mut client, &memory[number(TENSOR)..][..number(TENSOR + 8)])?,
            other => panic!("command {other}"),
        }
    }
}

fn answer(client: &mut TcpStream, payload: &[u8]) -> io::Result<()> {
    client.write_all(&(payload.len() as u64).to_le_bytes())?;
    client.write_all(payload)
}

fn read_len(from: &mut TcpStream) -> io::Result<usize> {
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    Ok(u64::from_le_bytes(len) as usize)
}

fn read(from: &mut TcpStream, len: usize) -> io::Result<Vec<u8>> {
    let mut payload = vec![0; len];
    from.read_exact(&mut payload)?;
    Ok(payload)
}
