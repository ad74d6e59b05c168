/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * trespass for C++17: classes that own the handles of trespass.h, and exceptions.
 *
 * Each class can be moved and not copied. Its destructor closes the handle. A function does what the
 * one of trespass.h does that it calls, where the comments are. It throws trespass::error where that
 * one fails. A `try_` function returns nothing (std::nullopt or false) where the other would throw
 * because it would block.
 *
 * An object that was moved from has no handle. Its functions throw EFAULT, and it can be assigned to.
 */

#ifndef TRESPASS_HPP
#define TRESPASS_HPP

#include <trespass.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace trespass {

/* A failed call: code() has the number of errno in std::generic_category(), what() the text of
 * trespass_error(). */
class error : public std::system_error {
public:
	error(int number, const char *text) : std::system_error(number, std::generic_category(), text) {}

	/* Whether the call would have had to wait. */
	bool would_block() const noexcept { return code().value() == EAGAIN; }
	/* Whether it is the end of the messages. */
	bool is_end() const noexcept { return code().value() == ENODATA; }
};

namespace detail {

[[noreturn]] inline void fail()
{
	/* The text's memory may change errno. */
	const int number = errno;
	throw error(number, trespass_error());
}

template <class Result> Result check(Result result)
{
	if (result < 0)
		fail();
	return result;
}

template <class Pointed> Pointed *check(Pointed *pointer)
{
	if (!pointer)
		fail();
	return pointer;
}

/* The count of a call, or nothing if it would block. */
inline std::optional<std::size_t> unless_blocked(ssize_t result)
{
	if (result < 0 && errno == EAGAIN)
		return std::nullopt;
	return static_cast<std::size_t>(check(result));
}

/* Owns a handle. */
template <class Handle, int (*Close)(Handle *)> class owner {
public:
	owner() noexcept = default;
	explicit owner(Handle *handle) noexcept : handle_(handle) {}
	owner(owner &&other) noexcept : handle_(other.release()) {}
	owner &operator=(owner &&other) noexcept
	{
		if (this != &other) {
			reset();
			handle_ = other.release();
		}
		return *this;
	}
	owner(const owner &) = delete;
	owner &operator=(const owner &) = delete;
	~owner() { reset(); }

	/* The handle, for the functions of trespass.h. It stays the object's. */
	Handle *native() const noexcept { return handle_; }
	/* Gives the handle away. */
	Handle *release() noexcept { return std::exchange(handle_, nullptr); }
	explicit operator bool() const noexcept { return handle_ != nullptr; }

	/* Closes the handle, and throws if another thread is in a call with it. */
	void close()
	{
		check(Close(handle_));
		handle_ = nullptr;
	}

private:
	void reset() noexcept
	{
		/* Nobody can be told that another thread is in a call. The handle stays open then. */
		if (handle_)
			(void)Close(release());
	}

	Handle *handle_ = nullptr;
};

template <class Container>
using element = std::remove_pointer_t<decltype(std::declval<Container &>().data())>;

template <class Container>
using if_bytes = std::enable_if_t<std::is_trivially_copyable_v<element<Container>> &&
				  std::is_integral_v<decltype(std::declval<Container &>().size())>>;

using milliseconds = std::chrono::milliseconds;

/* A time in C's form, where nothing is without limit. A time below a millisecond is one. */
inline std::uint64_t limit(std::optional<milliseconds> time)
{
	if (!time)
		return 0;
	return time->count() > 0 ? static_cast<std::uint64_t>(time->count()) : 1;
}

} // namespace detail

/* Bytes to read: of a text, or of the elements of an array, a vector or another container in one
 * piece. A string literal is its text, without the zero at its end. */
class view {
public:
	view(const void *data, std::size_t size) noexcept : data_(data), size_(size) {}
	view(const char *text) noexcept : data_(text), size_(std::strlen(text)) {}
	template <class T, std::size_t N,
		  class = std::enable_if_t<std::is_trivially_copyable_v<T> && !std::is_same_v<T, const char>>>
	view(T (&array)[N]) noexcept : data_(array), size_(sizeof(array))
	{
	}
	template <class Container, class = detail::if_bytes<const Container>>
	view(const Container &bytes) noexcept
		: data_(bytes.data()), size_(bytes.size() * sizeof(detail::element<const Container>))
	{
	}

	const void *data() const noexcept { return data_; }
	std::size_t size() const noexcept { return size_; }
	std::string_view text() const noexcept { return { static_cast<const char *>(data_), size_ }; }

private:
	const void *data_;
	std::size_t size_;
};

/* Bytes to write to: of the elements of an array, a vector or another container in one piece. */
class span {
public:
	span(void *data, std::size_t size) noexcept : data_(data), size_(size) {}
	template <class T, std::size_t N,
		  class = std::enable_if_t<std::is_trivially_copyable_v<T> && !std::is_const_v<T>>>
	span(T (&array)[N]) noexcept : data_(array), size_(sizeof(array))
	{
	}
	template <class Container, class = detail::if_bytes<Container>,
		  class = std::enable_if_t<!std::is_const_v<detail::element<Container>>>>
	span(Container &bytes) noexcept
		: data_(bytes.data()), size_(bytes.size() * sizeof(detail::element<Container>))
	{
	}

	void *data() const noexcept { return data_; }
	std::size_t size() const noexcept { return size_; }

private:
	void *data_;
	std::size_t size_;
};

/* trespass_options with defaults. The texts that it points to must live until it was used. */
struct options : trespass_options {
	options() noexcept : trespass_options() { size = sizeof(trespass_options); }
};

/* Registered memory to fill and to send. */
class buffer : public detail::owner<trespass_buffer, trespass_buffer_release> {
public:
	using owner::owner;

	void *data() const { return detail::check(trespass_buffer_data(native())); }
	std::size_t size() const
	{
		return static_cast<std::size_t>(detail::check(trespass_buffer_length(native())));
	}
};

/* A buffer that returns. */
struct completion {
	std::uint64_t ticket;
	trespass::buffer buffer;
	std::uint64_t left;
	bool sent;

	explicit completion(const trespass_completion &c)
		: ticket(c.ticket), buffer(c.buffer), left(c.left), sent(c.sent != 0)
	{
	}
};

/* Received data where it arrived. */
class received : public detail::owner<trespass_received, trespass_received_release> {
public:
	using owner::owner;

	std::size_t size() const
	{
		return static_cast<std::size_t>(detail::check(trespass_received_length(native())));
	}
	/* The pieces, in order. They live as long as this object. */
	std::vector<view> pieces() const
	{
		std::vector<view> all;
		std::size_t length = 0;
		/* It throws for an object without a handle. */
		size();
		while (const void *piece = trespass_received_piece(native(), all.size(), &length))
			all.emplace_back(piece, length);
		return all;
	}
};

/* What both kinds of connections have. */
class connection : public detail::owner<trespass_connection, trespass_close> {
public:
	using owner::owner;

	void set_nonblocking(bool nonblocking) { detail::check(trespass_set_nonblocking(native(), nonblocking)); }
	/* Nothing is without limit. */
	void set_read_timeout(std::optional<std::chrono::milliseconds> time)
	{
		detail::check(trespass_set_read_timeout(native(), detail::limit(time)));
	}
	void set_write_timeout(std::optional<std::chrono::milliseconds> time)
	{
		detail::check(trespass_set_write_timeout(native(), detail::limit(time)));
	}
	/* Nothing stands for the one of the options. */
	void set_linger(std::optional<std::chrono::milliseconds> time)
	{
		detail::check(trespass_set_linger(native(), time ? time->count() : -1));
	}
	void set_cork(bool corked) { detail::check(trespass_set_cork(native(), corked)); }
	void shutdown(int how) { detail::check(trespass_shutdown(native(), how)); }
	void drain(std::chrono::milliseconds time)
	{
		const auto count = time.count();
		detail::check(trespass_drain(native(), count > 0 ? static_cast<std::uint64_t>(count) : 0));
	}
	int fd() const { return detail::check(trespass_fd(native())); }
	int writable_fd() const { return detail::check(trespass_writable_fd(native())); }
	int readiness() { return detail::check(trespass_readiness(native())); }
	void set_interest(unsigned flags) { detail::check(trespass_set_interest(native(), flags)); }
	/* The error that no call has returned yet. */
	std::optional<error> take_error()
	{
		const int number = detail::check(trespass_take_error(native()));
		return number ? std::optional<error>(error(number, trespass_error())) : std::nullopt;
	}
	sockaddr_storage local_addr() const { return address(trespass_local_addr); }
	sockaddr_storage peer_addr() const { return address(trespass_peer_addr); }
	std::string_view transport() const { return detail::check(trespass_transport(native())); }
	/* Empty over RDMA. It lives as long as the connection, as the next two do. */
	std::string_view fallback_reason() const { return text(trespass_fallback_reason(native())); }
	/* Empty over TCP. */
	std::string_view device() const { return text(trespass_device(native())); }
	view peer_user_data() const
	{
		std::size_t length = 0;
		const void *data = detail::check(trespass_peer_user_data(native(), &length));
		return { data, length };
	}

	trespass::buffer make_buffer(std::size_t length) const
	{
		return trespass::buffer(detail::check(trespass_buffer_new(native(), length)));
	}
	/* Sends and returns the ticket. If it throws, the buffer stays the caller's. */
	std::uint64_t send_buffer(trespass::buffer &&buffer, std::size_t length)
	{
		std::uint64_t ticket = 0;
		detail::check(trespass_send_buffer(native(), buffer.native(), length, &ticket));
		buffer.release();
		return ticket;
	}
	/* A buffer whose send is complete, if there is one. */
	std::optional<completion> poll_completion() { return completed(trespass_completion_poll); }
	/* The same, and waits. Nothing means that no buffer is lent. */
	std::optional<completion> wait_completion() { return completed(trespass_completion_wait); }
	received recv_buffer() { return received(detail::check(trespass_recv_buffer(native()))); }

protected:
	/* The two halves. */
	std::pair<trespass_connection *, trespass_connection *> split_handle()
	{
		trespass_connection *receiving = nullptr, *sending = nullptr;
		detail::check(trespass_split(native(), &receiving, &sending));
		release();
		return { receiving, sending };
	}

private:
	sockaddr_storage address(int (*get)(const trespass_connection *, sockaddr *, socklen_t *)) const
	{
		sockaddr_storage place{};
		socklen_t length = sizeof(place);
		detail::check(get(native(), reinterpret_cast<sockaddr *>(&place), &length));
		return place;
	}
	std::string_view text(const char *found) const
	{
		/* It throws for an object without a handle, which a missing text does not show. */
		transport();
		return found ? std::string_view(found) : std::string_view();
	}
	std::optional<completion> completed(int (*take)(trespass_connection *, trespass_completion *))
	{
		trespass_completion found;
		if (!detail::check(take(native(), &found)))
			return std::nullopt;
		return completion(found);
	}
};

/* A stream of bytes, or a half of one. */
class stream : public connection {
public:
	using connection::connection;
	static constexpr int kind = TRESPASS_STREAM;

	static stream connect(const std::string &address, const trespass_options *options = nullptr)
	{
		return stream(detail::check(trespass_connect(address.c_str(), kind, options)));
	}

	/* 0 is the end. */
	std::size_t read(span to)
	{
		return static_cast<std::size_t>(detail::check(trespass_read(native(), to.data(), to.size())));
	}
	std::optional<std::size_t> try_read(span to)
	{
		return detail::unless_blocked(trespass_read(native(), to.data(), to.size()));
	}
	std::size_t peek(span to)
	{
		return static_cast<std::size_t>(detail::check(trespass_peek(native(), to.data(), to.size())));
	}
	/* Reads until all is full. Throws ENODATA if the stream ends before. */
	void read_exact(span to)
	{
		auto *at = static_cast<char *>(to.data());
		for (std::size_t left = to.size(); left > 0;) {
			const std::size_t got = read({ at, left });
			if (!got)
				throw error(ENODATA, "the stream ends within the bytes that were expected");
			at += got;
			left -= got;
		}
	}
	std::size_t write(view from)
	{
		return static_cast<std::size_t>(detail::check(trespass_write(native(), from.data(), from.size())));
	}
	std::optional<std::size_t> try_write(view from)
	{
		return detail::unless_blocked(trespass_write(native(), from.data(), from.size()));
	}
	/* Writes until all is taken. */
	void write_all(view from)
	{
		const auto *at = static_cast<const char *>(from.data());
		for (std::size_t left = from.size(); left > 0;) {
			const std::size_t taken = write({ at, left });
			at += taken;
			left -= taken;
		}
	}
	void flush() { detail::check(trespass_flush(native())); }
	/* The half that reads, and the half that writes. This object has no handle afterwards. */
	std::pair<stream, stream> split()
	{
		const auto halves = split_handle();
		return { stream(halves.first), stream(halves.second) };
	}
};

/* A connection for messages, or a half of one. */
class seq_packet : public connection {
public:
	using connection::connection;
	static constexpr int kind = TRESPASS_SEQPACKET;

	static seq_packet connect(const std::string &address, const trespass_options *options = nullptr)
	{
		return seq_packet(detail::check(trespass_connect(address.c_str(), kind, options)));
	}

	void send(view message) { detail::check(trespass_send(native(), message.data(), message.size())); }
	/* False if it would block; nothing was sent then. */
	bool try_send(view message)
	{
		const int sent = trespass_send(native(), message.data(), message.size());
		return detail::unless_blocked(sent).has_value();
	}
	/* The end of the messages is an error (error::is_end). */
	std::size_t recv(span to)
	{
		return static_cast<std::size_t>(detail::check(trespass_recv(native(), to.data(), to.size())));
	}
	std::optional<std::size_t> try_recv(span to)
	{
		return detail::unless_blocked(trespass_recv(native(), to.data(), to.size()));
	}
	std::size_t send_part(std::uint64_t total, view part)
	{
		return static_cast<std::size_t>(
			detail::check(trespass_send_part(native(), total, part.data(), part.size())));
	}
	trespass_part recv_part(span to)
	{
		trespass_part part;
		detail::check(trespass_recv_part(native(), to.data(), to.size(), &part));
		return part;
	}
	std::pair<received, trespass_part> recv_part_buffer()
	{
		trespass_part part;
		received data(detail::check(trespass_recv_part_buffer(native(), &part)));
		return { std::move(data), part };
	}
	/* The half that receives, and the half that sends. This object has no handle afterwards. */
	std::pair<seq_packet, seq_packet> split()
	{
		const auto halves = split_handle();
		return { seq_packet(halves.first), seq_packet(halves.second) };
	}
};

/* A connect in progress of a stream or of a seq_packet. */
template <class Connection>
class connecting : public detail::owner<trespass_connecting, trespass_connect_close> {
public:
	using detail::owner<trespass_connecting, trespass_connect_close>::owner;

	explicit connecting(const std::string &address, const trespass_options *options = nullptr)
		: connecting(detail::check(trespass_connect_start(address.c_str(), Connection::kind, options)))
	{
	}
	int fd() const { return detail::check(trespass_connect_fd(this->native())); }
	/* Nothing while it is in progress. */
	std::optional<Connection> try_finish()
	{
		trespass_connection *made = trespass_connect_finish(this->native());
		if (!made && errno == EAGAIN)
			return std::nullopt;
		return Connection(detail::check(made));
	}
};

class listener : public detail::owner<trespass_listener, trespass_listener_close> {
public:
	using owner::owner;

	explicit listener(const std::string &address, const trespass_options *options = nullptr)
		: listener(detail::check(trespass_listen(address.c_str(), options)))
	{
	}
	stream accept() { return accept_as<stream>(); }
	seq_packet accept_seq_packet() { return accept_as<seq_packet>(); }
	/* Nothing if no client waits to be accepted. */
	template <class Connection> std::optional<Connection> try_accept()
	{
		trespass_connection *accepted = trespass_accept(native(), Connection::kind);
		if (!accepted && errno == EAGAIN)
			return std::nullopt;
		return Connection(detail::check(accepted));
	}
	void set_nonblocking(bool nonblocking)
	{
		detail::check(trespass_listener_set_nonblocking(native(), nonblocking));
	}
	void set_timeout(std::optional<std::chrono::milliseconds> time)
	{
		detail::check(trespass_listener_set_timeout(native(), detail::limit(time)));
	}
	int fd() const { return detail::check(trespass_listener_fd(native())); }
	int port() const { return detail::check(trespass_listener_port(native())); }

private:
	template <class Connection> Connection accept_as()
	{
		return Connection(detail::check(trespass_accept(native(), Connection::kind)));
	}
};

/* What ends the poll of a worker. */
class waker : public detail::owner<trespass_waker, trespass_waker_release> {
public:
	using owner::owner;

	void wake() const { detail::check(trespass_waker_wake(native())); }
};

/* Many connections on one thread. */
class worker : public detail::owner<trespass_worker, trespass_worker_close> {
public:
	using owner::owner;

	explicit worker(const trespass_options *options) : worker(detail::check(trespass_worker_new(options))) {}

	/* A worker with the default options. */
	static worker make() { return worker(static_cast<const trespass_options *>(nullptr)); }

	trespass_key listen(const std::string &address, int kind)
	{
		trespass_key key = 0;
		detail::check(trespass_worker_listen(native(), address.c_str(), kind, &key));
		return key;
	}
	trespass_key connect(const std::string &address, int kind)
	{
		trespass_key key = 0;
		detail::check(trespass_worker_connect(native(), address.c_str(), kind, &key));
		return key;
	}
	/* The connection has no handle afterwards. It keeps it if it is a half, which is refused. */
	trespass_key add(connection &&moved)
	{
		trespass_key key = 0;
		if (trespass_worker_add(native(), moved.native(), &key) < 0) {
			const int number = errno;
			/* Otherwise the call has ended the handle. */
			const bool stays = number == EOPNOTSUPP || number == EFAULT || number == EBUSY || number == EBADF;
			if (!stays)
				moved.release();
			throw error(number, trespass_error());
		}
		moved.release();
		return key;
	}
	/* Fills the front of `events` and returns how many. Nothing is without limit. The buffers of
	 * TRESPASS_EVENT_COMPLETED are the caller's: trespass::completion(event.completion) owns one. */
	std::size_t poll(std::vector<trespass_event> &events, std::optional<std::chrono::milliseconds> time)
	{
		const int limit = time ? static_cast<int>(time->count()) : -1;
		return static_cast<std::size_t>(
			detail::check(trespass_worker_poll(native(), events.data(), events.size(), limit)));
	}
	int fd() const { return detail::check(trespass_worker_fd(native())); }
	trespass::waker make_waker() const
	{
		return trespass::waker(detail::check(trespass_worker_waker(native())));
	}
	/* 0 is the end. */
	std::optional<std::size_t> try_read(trespass_key key, span to)
	{
		return detail::unless_blocked(trespass_worker_read(native(), key, to.data(), to.size()));
	}
	std::optional<std::size_t> try_write(trespass_key key, view from)
	{
		return detail::unless_blocked(trespass_worker_write(native(), key, from.data(), from.size()));
	}
	bool try_send(trespass_key key, view message)
	{
		const int sent = trespass_worker_send(native(), key, message.data(), message.size());
		return detail::unless_blocked(sent).has_value();
	}
	std::optional<std::size_t> try_recv(trespass_key key, span to)
	{
		return detail::unless_blocked(trespass_worker_recv(native(), key, to.data(), to.size()));
	}
	void shutdown(trespass_key key, int how) { detail::check(trespass_worker_shutdown(native(), key, how)); }
	void close_key(trespass_key key) { detail::check(trespass_worker_close_key(native(), key)); }
	void set_tag(trespass_key key, std::uint64_t tag)
	{
		detail::check(trespass_worker_set_tag(native(), key, tag));
	}
	sockaddr_storage local_addr(trespass_key key)
	{
		sockaddr_storage place{};
		socklen_t length = sizeof(place);
		auto *address = reinterpret_cast<sockaddr *>(&place);
		detail::check(trespass_worker_local_addr(native(), key, address, &length));
		return place;
	}
};

} // namespace trespass

#endif
