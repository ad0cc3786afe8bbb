//! The bytes on the wire, compared with what the specification's structures say; a thread plays the
//! back end.

use std::io::Write;
use std::thread::JoinHandle;

use super::*;

/// A request as it arrived: number, flags, body, descriptors.
type Arrived = (u32, u32, Vec<u8>, usize);

fn read_request(socket: &UnixStream) -> Option<Arrived> {
    let mut header = [0; 12];
    let (got, fds) = sys::recv_with_fds(socket.as_fd(), &mut header).ok()?;
    if got == 0 {
        return None;
    }
    let half = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
    let mut body = vec![0; half(8) as usize];
    let mut count = fds.len();
    let mut done = 0;
    while done < body.len() {
        let (more, fds) = sys::recv_with_fds(socket.as_fd(), &mut body[done..]).unwrap();
        count += fds.len();
        done += more;
    }
    Some((half(0), half(4), body, count))
}

/// A back end that answers with what `answers` says (None: no answer), until the front end hangs
/// up.
fn back_end(
    answers: impl Fn(&Arrived) -> Option<Vec<u8>> + Send + 'static,
) -> (FrontEnd, JoinHandle<Vec<Arrived>>) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut all = Vec::new();
        while let Some(request) = read_request(&theirs) {
            if let Some(body) = answers(&request) {
                let size = u32::try_from(body.len()).unwrap();
                let header = u32s(&[request.0, 5, size]);
                // The front end may have hung up over what the header says.
                let _ = theirs.write_all(&header).and_then(|()| theirs.write_all(&body));
            }
            all.push(request);
        }
        all
    });
    (FrontEnd::new(ours).unwrap(), thread)
}

const REGION: Region = Region { guest_phys: 1, size: 2, user_addr: 3, offset: 4 };

fn acked(request: &Arrived) -> Option<Vec<u8>> {
    match request.0 {
        15 => Some(u64s(&[u64::MAX])),
        16 => None,
        _ => Some(u64s(&[0])),
    }
}

#[test]
fn requests_have_the_layout_of_the_specification() {
    let (mut front, thread) = back_end(acked);
    assert_eq!(front.negotiate_protocol(protocol::ALL).unwrap(), protocol::ALL);
    let file = sys::sealed_memfd(4096).unwrap();
    let fd = file.as_raw_fd();
    front.set_memory(&[REGION], fd).unwrap();
    front.remove_region(&REGION).unwrap();
    let addr = VringAddr { desc: 5, used: 6, avail: 7, log: Some(8) };
    front.set_vring_addr(3, addr).unwrap();
    front.set_vring_num(3, 256).unwrap();
    front.set_vring_kick(3, file.as_fd()).unwrap();
    let inflight = Inflight { size: 64, offset: 0, file: file.try_clone().unwrap() };
    front.set_inflight(&inflight, 2, 256).unwrap();
    front.set_log_base(4096, &file).unwrap();
    front.send_rarp([2, 0, 0, 0, 0, 1]).unwrap();
    front.reset_device().unwrap();
    drop(front);
    let mut addr = u32s(&[3, 1]);
    addr.extend(u64s(&[5, 6, 7, 8]));
    let mut table = u64s(&[64, 0]);
    table.extend([2_u16.to_ne_bytes(), 256_u16.to_ne_bytes(), [0; 2], [0; 2]].concat());
    let expected = [
        (15, 1, vec![], 0),
        (16, 1, u64s(&[protocol::ALL]), 0),
        (37, 9, u64s(&[0, 1, 2, 3, 4]), 1),
        (38, 9, u64s(&[0, 1, 2, 3, 4]), 0),
        (9, 9, addr, 0),
        (8, 9, u32s(&[3, 256]), 0),
        (12, 9, u64s(&[3]), 1),
        (32, 9, table, 1),
        (6, 1, u64s(&[4096, 0]), 1),
        (19, 9, vec![2, 0, 0, 0, 0, 1, 0, 0], 0),
        (34, 9, vec![], 0),
    ];
    assert_eq!(thread.join().unwrap(), expected);
}

#[test]
fn without_reply_ack_nothing_is_waited_for() {
    let (front, thread) = back_end(|_| None);
    let file = sys::sealed_memfd(4096).unwrap();
    front.set_memory(&[REGION, REGION], file.as_raw_fd()).unwrap();
    front.set_owner().unwrap();
    drop(front);
    let mut table = u32s(&[2, 0]);
    table.extend(u64s(&[1, 2, 3, 4, 1, 2, 3, 4]));
    assert_eq!(thread.join().unwrap(), [(5, 1, table, 2), (3, 1, vec![], 0)]);
}

#[test]
fn a_refusal_and_nonsense_are_errors_not_panics() {
    let answer = |bytes: Vec<u8>| {
        let (front, thread) = back_end(move |_| Some(bytes.clone()));
        let result = front.get_vring_base(1);
        drop(front);
        thread.join().unwrap();
        result
    };
    assert_eq!(answer(u32s(&[1, 77])).unwrap(), 77);
    assert!(matches!(answer(u32s(&[0, 77])), Err(ProtocolError::BadReply { .. })));
    assert!(matches!(answer(vec![]), Err(ProtocolError::BadReply { .. })));
    assert!(matches!(answer(vec![0; 5000]), Err(ProtocolError::BadReply { .. })));
    let (mut front, thread) = back_end(|request| match request.0 {
        5 | 37 => Some(u64s(&[22])),
        _ => acked(request),
    });
    front.negotiate_protocol(protocol::ALL).unwrap();
    let file = sys::sealed_memfd(4096).unwrap();
    let refused = front.set_memory(&[REGION], file.as_raw_fd());
    assert!(matches!(
        refused,
        Err(ProtocolError::Refused { request: Request::AddMemReg, code: 22 })
    ));
    drop(front);
    thread.join().unwrap();
}

#[test]
fn a_back_end_that_hangs_up_is_an_error() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let front = FrontEnd::new(ours).unwrap();
    drop(theirs);
    assert!(matches!(front.features(), Err(ProtocolError::Socket { .. })));
}
