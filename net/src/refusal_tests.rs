//! Tests of connections that the listener refuses, as the dialler sees them.

use tieline_testing::Copies;

use super::*;
use crate::auth::Dialler;

/// A child that was forked during the handshake holds a copy of the connection.
#[test]
fn a_refused_dialler_reads_the_end_although_a_child_holds_the_connection() {
    let hub = open(Settings::default());
    let wrong = Key::derive(b"of another job", &hub.cookie);
    // The second dialler is proven, and its target is unknown.
    for key in [wrong, key(&hub)] {
        let mut stream = TcpStream::connect(at(&hub, false).expect("lo")).expect("listening");
        stream.set_nonblocking(true).expect("a socket");
        let mut dialler = Dialler::new(key, &hello(0), [5; 32]);
        let (mut copies, mut room) = (None, [0; 64]);
        loop {
            let sent = stream.write(dialler.output()).expect("room for some bytes");
            dialler.sent(sent);
            hub.poll();
            let expects = dialler.expects().min(room.len());
            let Ok(count) = stream.read(&mut room[..expects]) else { continue };
            match dialler.receive(&room[..count]) {
                Ok(proven) => assert!(!proven && count > 0),
                Err(_) => break,
            }
            // The listener has the connection, and has not refused it yet.
            copies = copies.or_else(|| Some(Copies::hold()));
        }
        assert!(copies.is_some());
        stream.set_nonblocking(false).expect("a socket");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        assert_eq!(stream.read(&mut room).ok(), Some(0));
    }
}
