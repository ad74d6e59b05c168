//! Tests of requests on borrowed memory, which complete before a scope returns. No test here has any
//! unsafe code.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, QueuePair, QueuePairState, WorkNumber, WorkScopeError, scope,
};
use sideway::memory::{Buffer, BufferKind, OutOfSlice, RegisteredBuffer};

use crate::harness::{Outcome, Suite, TestDevice};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        borrowed_bytes_go_there_and_back,
        messages_are_received_in_a_scope,
        a_failed_request_is_the_scopes_error,
        an_error_of_the_program_flushes_what_is_open,
        a_panic_of_the_program_flushes_what_is_open,
        a_scope_waits_for_what_the_program_has_not_waited_for,
        a_queue_of_another_pair_is_refused,
    );
}

/// A queue pair with its queue, and memory that its peer may access.
struct ScopeSide {
    qp: GenericQueuePair,
    cq: GenericCompletionQueue,
    memory: RegisteredBuffer,
    path: LocalPath,
}

impl ScopeSide {
    fn new(context: &DeviceContext, port: u8) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_builder().build_generic().unwrap();
        let qp = pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic().unwrap();
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite | AccessFlags::RemoteRead;
        let memory =
            pd.reg_buffer(Buffer::new(BufferKind::for_device(context), 4096).unwrap(), access).unwrap();
        Self { qp, cq, memory, path: LocalPath::choose(context, port, None).unwrap() }
    }
}

fn pair(test_device: &TestDevice) -> (ScopeSide, ScopeSide) {
    let context = test_device.open();
    let (mut a, mut b) =
        (ScopeSide::new(&context, test_device.port), ScopeSide::new(&context, test_device.port));
    let (ours, theirs) = (Endpoint::new(&a.qp, &a.path, 1), Endpoint::new(&b.qp, &b.path, 2));
    connect(&mut a.qp, &a.path, &ours, &theirs, &ConnectOptions::default()).unwrap();
    connect(&mut b.qp, &b.path, &theirs, &ours, &ConnectOptions::default()).unwrap();
    (a, b)
}

fn borrowed_bytes_go_there_and_back(test_device: &TestDevice) -> Outcome {
    let (mut a, b) = pair(test_device);
    let remote = b.memory.remote();
    for round in 0..20_u8 {
        let (mut request, mut answer) = ([round; 64], [0xff; 64]);
        scope(&mut a.qp, &mut a.cq, |scope| {
            let request = scope.register(&mut request, AccessFlags::empty())?;
            let answer = scope.register(&mut answer, AccessFlags::LocalWrite)?;
            scope.write(request.all(), remote.at(0, 64).unwrap())?;
            scope.read(answer.part(8..40).unwrap(), remote.at(0, 32).unwrap())?;
            let outside = OutOfSlice { offset: 40, len: 25, limit: 64 };
            assert_eq!(answer.part(40..65).unwrap_err(), outside);
            let reversed = std::ops::Range { start: usize::MAX, end: 0 };
            assert!(answer.part(reversed).is_err());
            let refused = scope.write(request.all(), remote.at(0, 63).unwrap()).unwrap_err();
            assert!(matches!(refused, WorkScopeError::OtherLength { part: 64, place: 63 }), "{refused}");
            scope.wait()
        })
        .unwrap();
        assert_eq!((answer[..8] == [0xff; 8], answer[8..40] == request[..32]), (true, true));
        assert_eq!(answer[40..], [0xff; 24]);
    }
    Ok(())
}

fn messages_are_received_in_a_scope(test_device: &TestDevice) -> Outcome {
    let (mut a, mut b) = pair(test_device);
    let (mut message, mut received) = (*b"message", [0; 16]);
    scope(&mut b.qp, &mut b.cq, |receiver| {
        let into = receiver.register(&mut received, AccessFlags::LocalWrite)?;
        let receive = receiver.recv(into.all())?;
        scope(&mut a.qp, &mut a.cq, |sender| {
            let message = sender.register(&mut message, AccessFlags::empty())?;
            sender.send(message.all()).map(drop)
        })?;
        let done = receiver.next()?.unwrap();
        assert_eq!((done.request, done.byte_len, done.imm_data), (receive, Some(7), None));
        assert_eq!(receiver.next()?, None);
        Ok::<_, WorkScopeError>(())
    })
    .unwrap();
    assert_eq!(&received[..7], b"message");
    Ok(())
}

fn a_failed_request_is_the_scopes_error(test_device: &TestDevice) -> Outcome {
    let (mut a, b) = pair(test_device);
    let mut bytes = [1; 8];
    let wrong = sideway::memory::RemoteMemory::new(0x1000, 8, b.memory.rkey() ^ 0xff).unwrap();
    let mut posted = None;
    let error = scope(&mut a.qp, &mut a.cq, |scope| {
        let bytes = scope.register(&mut bytes, AccessFlags::empty())?;
        posted = Some(scope.write(bytes.all(), wrong.at(0, 8).unwrap())?);
        scope.wait()
    })
    .unwrap_err();
    let WorkScopeError::Failed { request, status } = error else { panic!("{error}") };
    assert_eq!((Some(request), status), (posted, WorkCompletionStatus::RemoteAccessError));
    assert_eq!(a.qp.state().unwrap(), QueuePairState::Error);
    assert_eq!(bytes, [1; 8]);
    Ok(())
}

/// Posts a receive that nothing arrives for, and ends.
fn leaves_a_receive<E: From<WorkScopeError>>(
    side: &mut ScopeSide,
    end: impl FnOnce(WorkNumber) -> Result<(), E>,
) -> Result<(), E> {
    let mut bytes = [0; 64];
    let result = scope(&mut side.qp, &mut side.cq, |scope| {
        let bytes = scope.register(&mut bytes, AccessFlags::LocalWrite)?;
        end(scope.recv(bytes.all())?)
    });
    assert_eq!(bytes, [0; 64]);
    result
}

fn an_error_of_the_program_flushes_what_is_open(test_device: &TestDevice) -> Outcome {
    let (mut a, _b) = pair(test_device);
    let error = leaves_a_receive(&mut a, |_| Err::<(), Box<dyn std::error::Error>>("no more".into()));
    assert_eq!(error.unwrap_err().to_string(), "no more");
    assert_eq!(a.qp.state().unwrap(), QueuePairState::Error);
    assert!(a.cq.start_poll().unwrap().next().is_none(), "the flushed receive has completed");
    Ok(())
}

fn a_panic_of_the_program_flushes_what_is_open(test_device: &TestDevice) -> Outcome {
    let (mut a, _b) = pair(test_device);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        leaves_a_receive::<WorkScopeError>(&mut a, |_| panic!("the program's"))
    }));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"the program's"));
    assert_eq!(a.qp.state().unwrap(), QueuePairState::Error);
    assert!(a.cq.start_poll().unwrap().next().is_none(), "the flushed receive has completed");
    Ok(())
}

fn a_scope_waits_for_what_the_program_has_not_waited_for(test_device: &TestDevice) -> Outcome {
    let (mut a, b) = pair(test_device);
    let (mut bytes, remote) = ([7; 4000], b.memory.remote());
    scope(&mut a.qp, &mut a.cq, |scope| {
        let bytes = scope.register(&mut bytes, AccessFlags::empty())?;
        for _ in 0..10 {
            scope.write(bytes.all(), remote.at(0, 4000).unwrap())?;
        }
        Ok::<_, WorkScopeError>(())
    })
    .unwrap();
    let mut found = [0; 4000];
    b.memory.copy_to_slice(0, &mut found).unwrap();
    assert_eq!(found, bytes);
    assert!(a.cq.start_poll().unwrap().next().is_none(), "all have completed");
    Ok(())
}

fn a_queue_of_another_pair_is_refused(test_device: &TestDevice) -> Outcome {
    let (mut a, mut b) = pair(test_device);
    let error = scope(&mut a.qp, &mut b.cq, |_| Ok::<_, WorkScopeError>(())).unwrap_err();
    assert!(matches!(error, WorkScopeError::OtherQueue), "{error}");
    Ok(())
}
