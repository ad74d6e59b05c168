//! Buffers that a call by completion takes by value, as those of io_uring do: the traits of compio-buf.

use std::fs::File;
use std::io::{self, IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;

use compio_buf::{BufResult, IntoInner, IoBuf, IoBufMut, IoVectoredBuf};
use test_harness::{Outcome, bytes, cases};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixture::Fixture;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: received_bytes_are_written_where_they_arrived, a_block_is_written_and_sent,
        bytes_that_were_read_are_sent_where_they_are);
}

/// A file without a name.
fn file() -> File {
    let path = std::env::temp_dir().join(format!(
        "trespass-compio-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

fn contents(mut file: File) -> Vec<u8> {
    let mut found = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut found).unwrap();
    found
}

/// A thread in the place of the kernel: it has the buffer while the call is under way.
async fn by_completion<B: Send + 'static>(
    mut buffer: B,
    call: impl FnOnce(&mut B) -> io::Result<usize> + Send + 'static,
) -> BufResult<usize, B> {
    tokio::task::spawn_blocking(move || BufResult(call(&mut buffer), buffer)).await.unwrap()
}

async fn write<B: IoBuf + Send>(file: &File, buffer: B) -> BufResult<usize, B> {
    let mut file = file.try_clone().unwrap();
    by_completion(buffer, move |buffer| {
        let bytes = (*buffer).as_init();
        file.write_all(bytes).map(|()| bytes.len())
    })
    .await
}

async fn write_vectored<B: IoVectoredBuf + Send>(file: &File, buffer: B) -> BufResult<usize, B> {
    let mut file = file.try_clone().unwrap();
    by_completion(buffer, move |buffer| {
        let slices: Vec<_> = (*buffer).iter_slice().map(IoSlice::new).collect();
        file.write_vectored(&slices)
    })
    .await
}

async fn read<B: IoBufMut + Send>(bytes: Vec<u8>, buffer: B) -> BufResult<usize, B> {
    by_completion(buffer, move |buffer| {
        let free = (*buffer).as_uninit();
        let count = free.len().min(bytes.len());
        free.iter_mut().zip(&bytes).for_each(|(place, byte)| *place = MaybeUninit::new(*byte));
        // SAFETY: the loop has initialised the first `count` bytes of the buffer.
        unsafe { (*buffer).advance_to(count) };
        Ok(count)
    })
    .await
}

/// The buffer comes back, and its drop lets the peer go on.
fn received_bytes_are_written_where_they_arrived(fixture: &Fixture) -> Outcome {
    const LEN: usize = 300_000;
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let sending = tokio::spawn(async move {
            server.write_all(&bytes(1, LEN)).await.unwrap();
            server.shutdown().await.unwrap();
            server
        });
        let file = file();
        let (mut written, mut calls) = (0, 0);
        loop {
            let received = client.recv_buf().await.unwrap();
            if received.is_empty() {
                break;
            }
            assert_eq!(received.total_len(), received.len());
            let at: Vec<_> = received.chunks().map(<[u8]>::as_ptr).collect();
            let BufResult(count, received) = write_vectored(&file, received).await;
            assert!(received.chunks().map(<[u8]>::as_ptr).eq(at), "its bytes have moved");
            assert_eq!(count.unwrap(), received.len());
            (written, calls) = (written + received.len(), calls + 1);
        }
        assert_eq!(written, LEN);
        assert!(calls > 1, "the peer has not gone on");
        assert!(contents(file) == bytes(1, LEN));
        sending.await.unwrap();
    });
    Ok(())
}

fn a_block_is_written_and_sent(fixture: &Fixture) -> Outcome {
    const LEN: usize = 5000;
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let mut block = client.buffer(LEN).unwrap();
        block.bytes_mut()[..LEN].copy_from_slice(&bytes(2, LEN));
        let file = file();
        let BufResult(count, part) = write(&file, block.slice(..LEN)).await;
        assert_eq!(count.unwrap(), LEN);
        assert!(contents(file) == bytes(2, LEN));
        client.send_buf(part.into_inner(), LEN).await.unwrap();
        let mut received = vec![0; LEN];
        server.read_exact(&mut received).await.unwrap();
        assert!(received == bytes(2, LEN));
    });
    Ok(())
}

fn bytes_that_were_read_are_sent_where_they_are(fixture: &Fixture) -> Outcome {
    const LEN: usize = 100_000;
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        let receiving = tokio::spawn(async move {
            let mut received = vec![0; LEN];
            server.read_exact(&mut received).await.unwrap();
            (server, received)
        });
        let BufResult(count, vector) = read(bytes(3, LEN), Vec::with_capacity(LEN)).await;
        assert_eq!((count.unwrap(), vector.len()), (LEN, LEN));
        let at = vector.as_ptr();
        let block = client.pool().adopt(vector);
        assert_eq!(block.as_ptr().cast_const(), at, "its bytes have moved");
        client.send_buf(block, LEN).await.unwrap();
        let completion = client.completion().await.unwrap().expect("one block is lent");
        assert!(completion.sent && completion.left == 0);
        let vector = completion.block.into_vec().unwrap();
        assert_eq!(vector.as_ptr(), at);
        let (_server, received) = receiving.await.unwrap();
        assert!(received == bytes(3, LEN) && vector == received);
    });
    Ok(())
}
