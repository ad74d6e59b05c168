/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * trespass: connections that use RDMA where it works, and TCP where it does not.
 *
 * The functions are used as those of <sys/socket.h> are. Both sides of a connection use trespass,
 * in C, C++ or Rust. README.md has an echo server and the differences from sockets.
 *
 * Failures. A function that returns an int or an ssize_t returns -1, and one that returns a pointer
 * NULL. `errno` then has the number, and trespass_error() the text. README.md lists the numbers.
 * Every function can fail with:
 *   EFAULT           an argument is NULL that must not be
 *   EBADF            the handle is closed (often found, never promised) or of another type
 *   EBUSY            another thread is in a call with this handle that shares it with none
 *   EINVAL           an argument has a value that no call can have
 *   ENOTRECOVERABLE  a fault of trespass itself; close the handle, and report the text
 *
 * Waiting. A function waits for the peer only where its comment says so. In non-blocking mode such
 * a function fails with EAGAIN instead. With a timeout it fails with EAGAIN after that time. No
 * function fails because a signal was handled.
 *
 * Threads. Functions with different handles can run at the same time. Those with one handle, too,
 * if the comment does not say "exclusive". An exclusive one shares its handle with no other call:
 * the later call fails with EBUSY and does nothing. Two threads that use a connection at the same
 * time split it (trespass_split). Close a handle when no other thread uses it.
 *
 * Ownership. A function that returns a pointer to a handle gives it to the program, which closes or
 * releases it. A closed handle must not be used again. Memory that a program passes is used until
 * the function returns, unless the comment says otherwise.
 *
 * Forks. Handles belong to the process that made them. In a child, calls that connect, accept or
 * transfer data with them fail with ENOTCONN, and a close disturbs nothing.
 *
 * Signals. No function raises SIGPIPE.
 */

#ifndef TRESPASS_H
#define TRESPASS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. trespass_version() is that of the library. */
#define TRESPASS_VERSION "0.1.0"

/* A connection, or a half of one. */
typedef struct trespass_connection trespass_connection;
/* A connect in progress. */
typedef struct trespass_connecting trespass_connecting;
/* A listener. */
typedef struct trespass_listener trespass_listener;
/* Registered memory of the program, to fill and to send without a copy. */
typedef struct trespass_buffer trespass_buffer;
/* Received data where it arrived. */
typedef struct trespass_received trespass_received;
/* Many connections on one thread. */
typedef struct trespass_worker trespass_worker;
/* What ends the poll of a worker, from any thread. */
typedef struct trespass_waker trespass_waker;

/* Returns why the latest failed call of this thread failed: what happened, with which value, and
 * what to do. It is never NULL, and "" before the first failure. It is valid until the thread's
 * next failed call or its end. */
const char *trespass_error(void);

/* Returns the version of the library. */
const char *trespass_version(void);

/* ---- Options -------------------------------------------------------------------------------- */

/* For a number: zero, where 0 is the default. For an interval: none. */
#define TRESPASS_ZERO (-1)
/* For an answer. */
#define TRESPASS_YES 1
#define TRESPASS_NO (-1)
/* For `policy`: RDMA if it works, or TCP; RDMA or no connection; TCP in any case. */
#define TRESPASS_AUTO 0
#define TRESPASS_REQUIRE_RDMA 1
#define TRESPASS_TCP_ONLY 2
/* For `bootstrap`: a connection begins over TCP, or by rdma_cm. Both sides use the same. */
#define TRESPASS_BY_TCP 0
#define TRESPASS_BY_RDMA_CM 1

/*
 * The parameters of connections, listeners and workers:
 *
 *     trespass_options options = TRESPASS_OPTIONS_INIT;
 *     options.policy = TRESPASS_REQUIRE_RDMA;
 *
 * Each member but `size` is 0 for its default. Ranges and defaults are those of the builder in Rust
 * (trespass::Builder), and environment variables override the same ones. An invalid value fails
 * with EINVAL, and the text names the parameter, the value and the bound.
 *
 * Later versions add members at the end. A library reads the members that both it and the program
 * know. Members that the library does not know must be 0, otherwise the call fails with E2BIG.
 */
typedef struct trespass_options {
	/* sizeof(trespass_options) of the program; TRESPASS_OPTIONS_INIT sets it. */
	size_t size;
	/* The RDMA device, "NAME" or "NAME:PORT", or several separated by commas; NULL for the one of
	 * the address, and others beside it (trespass::Builder::devices). */
	const char *device;
	/* Up to 1024 bytes for the peer's program (trespass_peer_user_data). */
	const void *user_data;
	size_t user_data_length;

	int64_t policy;    /* TRESPASS_AUTO, TRESPASS_REQUIRE_RDMA or TRESPASS_TCP_ONLY */
	int64_t bootstrap; /* TRESPASS_BY_TCP or TRESPASS_BY_RDMA_CM */
	int64_t max_msg;   /* bytes of the longest message */
	int64_t rcvbuf;    /* bytes that are received before the program reads them */
	int64_t sndbuf;    /* bytes that a program can write by copying before they are sent */

	int64_t backlog;          /* connections that wait to be accepted */
	int64_t bind_patience_ms; /* how long a listener retries while its port is in use */
	int64_t reuse_port;       /* YES: several listeners share one port */

	int64_t handshake_deadline_ms; /* the time limit of a connect */
	int64_t probe_timeout_ms;      /* how long the RDMA path is probed before TCP is used */
	int64_t linger_ms;             /* how long a closed connection still sends */
	int64_t exit_timeout_ms;       /* how long exit() waits until all is sent */
	int64_t keepalive_ms;          /* silence before a probe; ZERO: no probes */
	int64_t control_keepalive_ms;  /* interval of bytes on the TCP connection; ZERO: none */
	int64_t spin_us;               /* how long a waiting call polls before it sleeps */
	int64_t worker_spin_us;        /* the same for trespass_worker_poll */
	int64_t trace_interval_ms;     /* interval of logged statistics; ZERO: none */

	int64_t coalescing; /* NO: short messages share no frame */
	int64_t rendezvous; /* NO: the peer does not read long messages from this memory */
	int64_t immediate;  /* NO: headers are always in the payload */
	int64_t eager_max;  /* bytes above which the peer may read a message */
	int64_t inline_max; /* bytes up to which a frame is sent as inline data */

	int64_t rx_slots;  /* receive slots of a connection */
	int64_t slot_size; /* bytes of a receive slot */
	int64_t reserve;   /* slots for control frames */
	int64_t srq;       /* YES: the connections of a worker share their receives */
	int64_t srq_size;  /* slots of a shared receive queue */

	int64_t max_rts;       /* long messages that wait to be read at a time */
	int64_t rd_atomic;     /* RDMA READs in flight in each direction */
	int64_t read_piece;    /* bytes of one RDMA READ */
	int64_t staged_block;  /* bytes of the pieces of a long copied message */
	int64_t registrations; /* bytes of adopted memory that stay registered */

	int64_t pool_initial;    /* bytes that the pool allocates at first */
	int64_t pool_prewarm;    /* bytes of these that are touched and registered before use */
	int64_t pool_max;        /* the pool's maximum size in bytes */
	int64_t pool_high_water; /* percentage at which the pool logs a warning */
	int64_t huge_pages;      /* YES: the pool asks for huge pages */

	int64_t gid_index;     /* entry of the GID table (ZERO: entry 0); 0: that of the address */
	int64_t path_mtu;      /* bytes: 256, 512, 1024, 2048 or 4096; 0: that of the ports */
	int64_t traffic_class; /* of the packets; its upper six bits are the DSCP */
	int64_t service_level; /* of InfiniBand, or the priority of RoCE */
	int64_t hop_limit;     /* of the packets */
	int64_t ack_timeout;   /* in the verbs encoding */
	int64_t retry_count;   /* retransmits of the device */
	int64_t rnr_retry;     /* retries after an RNR NAK; 7: without limit */
	int64_t min_rnr_timer; /* in the verbs encoding */

	int64_t rails_after;     /* bytes before further devices of the list are used */
	int64_t rail_timeout_ms; /* how long a request over one of several devices may take */
} trespass_options;

#ifdef __cplusplus
#define TRESPASS_OPTIONS_INIT (trespass_options_init())
static inline trespass_options trespass_options_init(void)
{
	trespass_options options = trespass_options();
	options.size = sizeof(options);
	return options;
}
#else
#define TRESPASS_OPTIONS_INIT { .size = sizeof(trespass_options) }
#endif

/* ---- Connecting ----------------------------------------------------------------------------- */

/* For `kind`: bytes without boundaries, or messages. Both sides use the same. */
#define TRESPASS_STREAM 1
#define TRESPASS_SEQPACKET 2

/* Connects to "HOST:PORT". `options` may be NULL. Waits, up to handshake_deadline_ms for each
 * address of the host. Fails as connect(2) does, and with: EPROTO (the listener is another program,
 * or has the other kind), EOPNOTSUPP (RDMA is required, and there is none), ETIMEDOUT. */
trespass_connection *trespass_connect(const char *address, int kind,
				      const trespass_options *options);

/* Begins to connect to "IP:PORT", which is no name, and does not wait. */
trespass_connecting *trespass_connect_start(const char *address, int kind,
					    const trespass_options *options);

/* The descriptor to wait for until it is readable. Then call trespass_connect_finish. It stays open
 * until trespass_connect_close: remove it from an epoll set before. */
int trespass_connect_fd(const trespass_connecting *connecting);

/* Continues, and returns the connection once it is made. Does not wait: fails with EAGAIN while the
 * connect is in progress, otherwise as trespass_connect does. After a connection or another error
 * only trespass_connect_close is left to call. Exclusive. */
trespass_connection *trespass_connect_finish(trespass_connecting *connecting);

/* Ends the handle. A connect in progress is given up. */
int trespass_connect_close(trespass_connecting *connecting);

/* ---- Listening ------------------------------------------------------------------------------ */

/* Listens at "HOST:PORT"; port 0 is a free one. `options` may be NULL. A thread of the library
 * completes the connections of clients, up to options->backlog, while the program does other
 * things. Fails as bind(2) does. */
trespass_listener *trespass_listen(const char *address, const trespass_options *options);

/* Listens with a TCP socket that already listens. The socket belongs to the library from now on,
 * also if the call fails, unless it fails with EBADF. */
trespass_listener *trespass_listen_with(int socket, const trespass_options *options);

/* Accepts a connection of a kind. Waits for a client, up to trespass_listener_set_timeout. The
 * listener rejects clients of a kind that the program has never asked for. The connection is in
 * blocking mode and has no timeouts. Several threads may accept. */
trespass_connection *trespass_accept(const trespass_listener *listener, int kind);

/* Sets whether trespass_accept fails with EAGAIN instead of waiting. */
int trespass_listener_set_nonblocking(const trespass_listener *listener, int nonblocking);

/* Sets how long trespass_accept waits; 0 is without limit. */
int trespass_listener_set_timeout(const trespass_listener *listener, uint64_t milliseconds);

/* The descriptor to wait for until it is readable: then a connection can be accepted. It may be
 * readable without cause. It stays the listener's. */
int trespass_listener_fd(const trespass_listener *listener);

/* The port. */
int trespass_listener_port(const trespass_listener *listener);

/* Writes the address as getsockname(2) does. */
int trespass_listener_addr(const trespass_listener *listener, struct sockaddr *address,
			   socklen_t *length);

/* Closes the listener. Connections that wait to be accepted are reset. */
int trespass_listener_close(trespass_listener *listener);

/* ---- Streams -------------------------------------------------------------------------------- */

/* Reads up to `length` bytes. Returns their count, or 0 at the end of the stream. Waits for the
 * first byte. Fails as recv(2) does. */
ssize_t trespass_read(const trespass_connection *connection, void *buffer, size_t length);

/* Reads into up to 1024 buffers. Those after the first take what has arrived already. */
ssize_t trespass_readv(const trespass_connection *connection, const struct iovec *buffers,
		       int count);

/* Reads and leaves the bytes to be read again. */
ssize_t trespass_peek(const trespass_connection *connection, void *buffer, size_t length);

/* Writes up to `length` bytes. Returns the count of those that were taken. Waits for room in the
 * send buffer (options->sndbuf). Taken bytes are sent although the program makes no more calls, but
 * not after _exit(2) or a signal that ends it (trespass_drain). Fails as send(2) does, with EPIPE
 * after the end of the direction. */
ssize_t trespass_write(const trespass_connection *connection, const void *buffer, size_t length);

/* Writes from up to 1024 buffers. */
ssize_t trespass_writev(const trespass_connection *connection, const struct iovec *buffers,
			int count);

/* Sends what trespass_set_cork has held back, and what the peer has room for. */
int trespass_flush(const trespass_connection *connection);

/* ---- Messages ------------------------------------------------------------------------------- */

/* Sends a message of 0 bytes to options->max_msg of either side. Waits for room. In non-blocking
 * mode a message larger than the send buffer fails with EINVAL: use trespass_send_part.
 * Exclusive. */
int trespass_send(trespass_connection *connection, const void *message, size_t length);

/* Sends one message from up to 1024 buffers. Exclusive. */
int trespass_sendv(trespass_connection *connection, const struct iovec *buffers, int count);

/* Receives a message and returns its length, which may be 0. Waits for all of it. Fails with
 * ENODATA at the end of the messages, and with EINVAL if the buffer is too small: the message
 * stays, and the text has its length. In non-blocking mode a message larger than the receive buffer
 * fails with EINVAL, too: use trespass_recv_part. Exclusive. */
ssize_t trespass_recv(trespass_connection *connection, void *buffer, size_t length);

/* A received part of a message. The layout is final. */
typedef struct trespass_part {
	size_t length;  /* bytes in this part */
	uint64_t last;  /* 1 if the message ends with this part, otherwise 0 */
	uint64_t total; /* bytes in the whole message */
} trespass_part;

/* How much of a message was transferred. The layout is final. */
typedef struct trespass_progress {
	uint64_t done;  /* bytes that were transferred */
	uint64_t total; /* bytes in the whole message */
} trespass_progress;

/* Sends the next bytes of a message of `total` bytes, and returns how many were taken. The message
 * is sent when all were. Until then each other call that sends fails with EINVAL. Waits for room.
 * Exclusive. */
ssize_t trespass_send_part(trespass_connection *connection, uint64_t total, const void *part,
			   size_t length);

/* Receives the arrived bytes of a message, or its next ones. Waits for the first byte.
 * Exclusive. */
int trespass_recv_part(trespass_connection *connection, void *buffer, size_t length,
		       trespass_part *part);

/* Returns 1 and the progress of a message that trespass_send_part, or a trespass_send with a
 * timeout, has begun to send. Returns 0 if the next byte begins a message. */
int trespass_sending(const trespass_connection *connection, trespass_progress *progress);

/* The same for receiving. */
int trespass_receiving(const trespass_connection *connection, trespass_progress *progress);

/* ---- Both kinds of connections -------------------------------------------------------------- */

/* Sets whether calls fail with EAGAIN instead of waiting. */
int trespass_set_nonblocking(const trespass_connection *connection, int nonblocking);

/* Sets how long a call waits for data, in milliseconds; 0 is without limit. */
int trespass_set_read_timeout(const trespass_connection *connection, uint64_t milliseconds);

/* Sets how long a call waits for room, in milliseconds; 0 is without limit. */
int trespass_set_write_timeout(const trespass_connection *connection, uint64_t milliseconds);

/* Sets how long written bytes are still sent after trespass_close, in milliseconds. 0 resets the
 * connection at once, and a negative number stands for options->linger_ms. */
int trespass_set_linger(const trespass_connection *connection, int64_t milliseconds);

/* Sets whether partial frames are held back, as TCP_CORK does, for 200 ms at most. */
int trespass_set_cork(const trespass_connection *connection, int corked);

/* Closes one direction or both: SHUT_RD, SHUT_WR or SHUT_RDWR. Written bytes are still sent, and
 * the peer reads the end after them. */
int trespass_shutdown(const trespass_connection *connection, int how);

/* Waits until no written byte needs this process any more, in non-blocking mode, too, up to a
 * number of milliseconds. Fails with ETIMEDOUT after them. Use it before _exit(2), exec or a
 * signal. */
int trespass_drain(const trespass_connection *connection, uint64_t milliseconds);

/* Closes the connection, or this half of it, and does not wait. A thread of the library sends what
 * is written, and exit(3) waits for that (options->exit_timeout_ms). As over TCP, a connection with
 * received data that was not read is reset. */
int trespass_close(trespass_connection *connection);

/* Splits a connection into two for two threads, and ends its handle. The one at `receiving` reads
 * or receives, the one at `sending` writes or sends. All other functions have both, except
 * zero-copy sending, trespass_recv_part_buffer and trespass_worker_add, which fail with EOPNOTSUPP.
 * Closing the sending half shuts its direction down. The connection ends when both halves are
 * closed. */
int trespass_split(trespass_connection *connection, trespass_connection **receiving,
		   trespass_connection **sending);

/* For readiness. */
#define TRESPASS_READABLE 1
#define TRESPASS_WRITABLE 2

/* The descriptor to wait for with poll(2) or epoll(7) until it is readable, level-triggered or
 * edge-triggered, in non-blocking mode. It is readable when data has arrived, and when there is
 * room after a write that failed with EAGAIN. It may be readable without cause. It is not a socket:
 * use it for nothing else. It stays the connection's, and is closed with it. */
int trespass_fd(const trespass_connection *connection);

/* Another descriptor, to wait for until it is writable. It is not after a write that failed with
 * EAGAIN, until there may be room. From the first call on, trespass_fd shows no room any more. */
int trespass_writable_fd(const trespass_connection *connection);

/* Receives what has arrived, sends what is pending, and returns TRESPASS_READABLE and
 * TRESPASS_WRITABLE, or 0. A failed connection is both. */
int trespass_readiness(const trespass_connection *connection);

/* Sets which of them wake trespass_fd. At first both do. */
int trespass_set_interest(const trespass_connection *connection, unsigned flags);

/* Returns the error of the connection that no call has returned yet, as SO_ERROR does: its number,
 * or 0. trespass_error() then has its text. */
int trespass_take_error(const trespass_connection *connection);

/* Write the addresses as getsockname(2) and getpeername(2) do. */
int trespass_local_addr(const trespass_connection *connection, struct sockaddr *address,
			socklen_t *length);
int trespass_peer_addr(const trespass_connection *connection, struct sockaddr *address,
		       socklen_t *length);

/* Returns "RDMA" or "TCP". */
const char *trespass_transport(const trespass_connection *connection);

/* Returns why the connection uses TCP instead of RDMA: what happened, on which side, and what to
 * do. NULL over RDMA. Valid until the connection is closed. */
const char *trespass_fallback_reason(const trespass_connection *connection);

/* Returns the name of the RDMA device. NULL over TCP. Valid until the connection is closed. */
const char *trespass_device(const trespass_connection *connection);

/* Returns the bytes of the peer's options->user_data, and their number. The peer chooses them.
 * Valid until the connection is closed. */
const void *trespass_peer_user_data(const trespass_connection *connection, size_t *length);

/* ---- Zero copy ------------------------------------------------------------------------------ */

/* Takes a buffer of at least `length` bytes from the connection's pool. Fails with EAGAIN if the
 * pool is empty, and with EINVAL if no buffer is that large. Any connection can send it. */
trespass_buffer *trespass_buffer_new(const trespass_connection *connection, size_t length);

/* The bytes, which the program may write until it sends the buffer. At first they are old bytes of
 * this process. */
void *trespass_buffer_data(const trespass_buffer *buffer);

/* The count of bytes. */
ssize_t trespass_buffer_length(const trespass_buffer *buffer);

/* Gives the buffer back to its pool. */
int trespass_buffer_release(trespass_buffer *buffer);

/* Sends the first `length` bytes of a buffer without a copy: as bytes of a stream, or as one
 * message. Waits for room. On success the buffer belongs to the connection, its handle has ended,
 * and its bytes must not be touched, until a completion returns it in a new handle. On failure it
 * stays the program's. `ticket` may be NULL. Exclusive, for both handles. */
int trespass_send_buffer(trespass_connection *connection, trespass_buffer *buffer, size_t length,
			 uint64_t *ticket);

/* A buffer that returns. The layout is final. */
typedef struct trespass_completion {
	uint64_t ticket;         /* the number that the send returned */
	trespass_buffer *buffer; /* belongs to the program: send it again, or release it */
	uint64_t left;           /* buffers of this ticket that have not returned yet */
	uint64_t sent;           /* 1: the bytes were sent; 0: the connection failed first */
} trespass_completion;

/* Returns 1 and a buffer whose send is complete, or 0 if no send is. Does not wait: other calls
 * find the completions. Each buffer returns once, also if the connection fails. Exclusive. */
int trespass_completion_poll(trespass_connection *connection, trespass_completion *completion);

/* The same, and waits until a buffer returns. 0 means that no buffer is lent. Exclusive. */
int trespass_completion_wait(trespass_connection *connection, trespass_completion *completion);

/* Receives bytes, or a message, in the memory where they arrived. A length of 0 is the end of a
 * stream, or an empty message; the end of the messages fails with ENODATA. Waits as trespass_read
 * and trespass_recv do. Data that is not released fills the receive buffer. Exclusive. */
trespass_received *trespass_recv_buffer(trespass_connection *connection);

/* Receives the next part of a message of any length in the memory where it arrived. Exclusive. */
trespass_received *trespass_recv_part_buffer(trespass_connection *connection, trespass_part *part);

/* The count of bytes in all pieces. */
ssize_t trespass_received_length(const trespass_received *received);

/* Returns the piece at an index and its length: the bytes are in one or more pieces, in order.
 * After the last piece it returns NULL and a length of 0, which is no failure. Valid until the
 * release. */
const void *trespass_received_piece(const trespass_received *received, size_t index,
				    size_t *length);

/* Gives the memory back. */
int trespass_received_release(trespass_received *received);

/* ---- Workers -------------------------------------------------------------------------------- */

/* Names a connection or a listener of a worker. 0 is none. A key is never used again. */
typedef uint64_t trespass_key;

/* Makes a worker: many connections on one thread, which share the descriptor to wait for and, over
 * RDMA, the completion queue. `options` may be NULL, and are those of all its connections. */
trespass_worker *trespass_worker_new(const trespass_options *options);

/* Closes the connections, and does not wait for their peers. */
int trespass_worker_close(trespass_worker *worker);

/* Listens at "HOST:PORT". TRESPASS_EVENT_ACCEPTED reports each client. Exclusive. */
int trespass_worker_listen(trespass_worker *worker, const char *address, int kind,
			   trespass_key *key);

/* Begins to connect to "HOST:PORT", whose name it resolves first. TRESPASS_EVENT_CONNECTED or
 * TRESPASS_EVENT_FAILED reports the result. Exclusive. */
int trespass_worker_connect(trespass_worker *worker, const char *address, int kind,
			    trespass_key *key);

/* Moves a connection into the worker, which ends its handle, also if the system cannot register it.
 * It keeps its handle only if the call fails with EFAULT, EBADF, EBUSY, or EOPNOTSUPP because it is
 * a half. Exclusive, for both handles. */
int trespass_worker_add(trespass_worker *worker, trespass_connection *connection,
			trespass_key *key);

/* For `event`. Ignore other numbers, which later versions may have. */
#define TRESPASS_EVENT_ACCEPTED 1  /* a client of `listener` has connected, as `key` */
#define TRESPASS_EVENT_CONNECTED 2 /* the connection that the worker made is established */
#define TRESPASS_EVENT_FAILED 3    /* a connect has failed, or a listener cannot accept now */
#define TRESPASS_EVENT_READY 4     /* the calls of `ready` can make progress */
#define TRESPASS_EVENT_COMPLETED 5 /* a lent buffer returns in `completion` */

/* What happened. The layout is final. */
typedef struct trespass_event {
	uint32_t event;                 /* TRESPASS_EVENT_... */
	uint32_t ready;                 /* TRESPASS_READABLE and TRESPASS_WRITABLE, or 0 */
	trespass_key key;               /* the connection, or the listener that failed */
	trespass_key listener;          /* of TRESPASS_EVENT_ACCEPTED */
	uint64_t tag;                   /* of trespass_worker_set_tag */
	trespass_completion completion; /* of TRESPASS_EVENT_COMPLETED */
	uint64_t error;                 /* of TRESPASS_EVENT_FAILED: as in errno */
	const char *text;               /* its text until the next poll, or NULL */
	uint64_t reserved[4];           /* zeros */
} trespass_event;

/* Does all pending work, and returns up to `count` events. Waits for the first event up to a number
 * of milliseconds; -1 is without limit, and 0 does not wait. Events that do not fit are returned by
 * the next call. Each poll reports TRESPASS_EVENT_READY until calls have made the progress.
 * Exclusive. */
ssize_t trespass_worker_poll(trespass_worker *worker, trespass_event *events, size_t count,
			     int milliseconds);

/* The descriptor to wait for until it is readable: then a poll has work. It does not show bytes
 * that calls have queued: poll once without waiting before each wait. */
int trespass_worker_fd(const trespass_worker *worker);

/* Returns a handle that ends the polls of the worker. It may outlive the worker. */
trespass_waker *trespass_worker_waker(const trespass_worker *worker);

/* Has the poll in progress, or the next one, return at once, from any thread. */
int trespass_waker_wake(const trespass_waker *waker);

/* Ends the handle. */
int trespass_waker_release(trespass_waker *waker);

/* The functions of connections, for one of a worker. None waits: they fail with EAGAIN instead, and
 * with ENOTCONN if no connection has the key. All are exclusive. */
ssize_t trespass_worker_read(trespass_worker *worker, trespass_key key, void *buffer,
			     size_t length);
ssize_t trespass_worker_write(trespass_worker *worker, trespass_key key, const void *buffer,
			      size_t length);
ssize_t trespass_worker_writev(trespass_worker *worker, trespass_key key,
			       const struct iovec *buffers, int count);
int trespass_worker_send(trespass_worker *worker, trespass_key key, const void *message,
			 size_t length);
ssize_t trespass_worker_recv(trespass_worker *worker, trespass_key key, void *buffer,
			     size_t length);
trespass_received *trespass_worker_recv_buffer(trespass_worker *worker, trespass_key key);
int trespass_worker_send_buffer(trespass_worker *worker, trespass_key key, trespass_buffer *buffer,
				size_t length, uint64_t *ticket);
int trespass_worker_shutdown(trespass_worker *worker, trespass_key key, int how);
int trespass_worker_set_cork(trespass_worker *worker, trespass_key key, int corked);
int trespass_worker_set_interest(trespass_worker *worker, trespass_key key, unsigned flags);
const char *trespass_worker_transport(trespass_worker *worker, trespass_key key);
int trespass_worker_local_addr(trespass_worker *worker, trespass_key key, struct sockaddr *address,
			       socklen_t *length);
int trespass_worker_peer_addr(trespass_worker *worker, trespass_key key, struct sockaddr *address,
			      socklen_t *length);

/* Closes a connection or a listener, and ends its key. An unknown key is no failure. */
int trespass_worker_close_key(trespass_worker *worker, trespass_key key);

/* Sets the program's number of a connection or a listener, which all of its events carry: an index
 * or an address, for example. At first it is 0, or that of the listener. */
int trespass_worker_set_tag(trespass_worker *worker, trespass_key key, uint64_t tag);

/* Takes a buffer from the worker's pool, as trespass_buffer_new does. */
trespass_buffer *trespass_worker_buffer_new(const trespass_worker *worker, size_t length);

#ifdef __cplusplus
}
#endif

#endif
