//! A TCP socket that lingers when it is closed: whoever closes the last descriptor of it waits.

use std::io::{Result, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;

/// The socket that lingers for `time`, and its far end, which takes no bytes. As soon as the far
/// end is dropped, the lingering ends.
///
/// # Errors
/// Those of the loopback's sockets.
pub fn lingering_socket(time: Duration) -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // Fixed sizes: the near end holds far more than the far end ever takes, however late the
    // kernel moves what has been written.
    sockopt::set_socket_recv_buffer_size(&listener, 1 << 12)?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    sockopt::set_socket_send_buffer_size(&near, 1 << 17)?;
    let (far, _) = listener.accept()?;
    near.set_nonblocking(true)?;
    while near.write(&[0; 1 << 16]).is_ok() {}
    near.set_nonblocking(false)?;
    sockopt::set_socket_linger(&near, Some(time))?;
    Ok((near, far))
}
