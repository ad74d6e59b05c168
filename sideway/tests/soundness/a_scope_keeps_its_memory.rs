use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::queue_pair::{GenericQueuePair, WorkScopeError, scope};

/// What a request may write to is not read meanwhile.
fn read_within(qp: &mut GenericQueuePair, cq: &mut GenericCompletionQueue, bytes: &mut [u8]) {
    let _ = scope(qp, cq, |scope| {
        let part = scope.register(bytes, AccessFlags::LocalWrite)?.all();
        scope.recv(part)?;
        println!("{}", bytes[0]);
        Ok::<_, WorkScopeError>(())
    });
}

/// Memory that ends before the scope is not registered.
fn ends_within(qp: &mut GenericQueuePair, cq: &mut GenericCompletionQueue) {
    let _ = scope(qp, cq, |scope| {
        let mut bytes = [0; 64];
        let part = scope.register(&mut bytes, AccessFlags::LocalWrite)?.all();
        scope.recv(part).map(drop)
    });
}

/// A registration does not leave its scope.
fn leaves(qp: &mut GenericQueuePair, cq: &mut GenericCompletionQueue, bytes: &mut [u8]) {
    let mut left = None;
    let _ = scope(qp, cq, |scope| {
        left = Some(scope.register(bytes, AccessFlags::LocalWrite)?.all());
        Ok::<_, WorkScopeError>(())
    });
    drop(left);
}

fn main() {}
