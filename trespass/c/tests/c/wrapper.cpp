/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The classes of trespass.hpp: ownership, views, exceptions. */
#include <trespass.hpp>

#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

using namespace std::chrono_literals;

#define CHECK(condition)                                                                       \
	do {                                                                                   \
		if (!(condition)) {                                                            \
			std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			std::abort();                                                          \
		}                                                                              \
	} while (0)

/* The number of the error that a call throws, or 0. */
template <class Call> static int thrown(Call call)
{
	try {
		call();
	} catch (const trespass::error &error) {
		CHECK(std::string_view(error.what()).size() > 3);
		CHECK(error.would_block() == (error.code() == std::errc::resource_unavailable_try_again));
		return error.code().value();
	}
	return 0;
}

/* A port of the host's address for listeners. */
static std::string at_port(int port)
{
	const char *address = std::getenv("SUITE_ADDRESS");
	return std::string(address ? address : "127.0.0.1") + ":" + std::to_string(port);
}

static std::string here(const trespass::listener &listener)
{
	return at_port(listener.port());
}

static void wait_for(int descriptor)
{
	pollfd waited{ descriptor, POLLIN, 0 };
	CHECK(poll(&waited, 1, 20000) == 1);
}

/* Both ends of a connection, with timeouts. */
template <class Connection> static std::pair<Connection, Connection> make_pair(const trespass_options *options = nullptr)
{
	trespass::listener listener(at_port(0), options);
	listener.set_timeout(20s);
	auto client = Connection::connect(here(listener), options);
	listener.set_nonblocking(true);
	std::optional<Connection> server;
	while (!(server = listener.template try_accept<Connection>()))
		wait_for(listener.fd());
	client.set_read_timeout(20s);
	server->set_read_timeout(20s);
	server->set_write_timeout(20s);
	return { std::move(client), std::move(*server) };
}

static void views()
{
	const std::string text = "text";
	std::vector<int> numbers = { 1, 2, 3 };
	const std::array<std::uint16_t, 4> fixed = {};
	char array[5];
	CHECK(trespass::view("literal").size() == 7);
	CHECK(trespass::view(text).text() == "text");
	CHECK(trespass::view(std::string_view("view", 2)).size() == 2);
	CHECK(trespass::view(numbers).size() == 3 * sizeof(int));
	CHECK(trespass::view(fixed).size() == 8);
	CHECK(trespass::view(array).size() == 5 && trespass::span(array).size() == 5);
	CHECK(trespass::span(numbers).data() == numbers.data());
	static_assert(!std::is_convertible_v<const std::vector<int> &, trespass::span>);
	static_assert(!std::is_convertible_v<std::vector<std::string> &, trespass::span>);
	static_assert(!std::is_copy_constructible_v<trespass::stream>);
	static_assert(std::is_nothrow_move_constructible_v<trespass::stream>);
	static_assert(std::is_base_of_v<std::system_error, trespass::error>);
}

static void streams()
{
	trespass::options options;
	options.user_data = "mine";
	options.user_data_length = 4;
	auto [client, server] = make_pair<trespass::stream>(&options);
	const char *expected = std::getenv("SUITE_TRANSPORT");
	CHECK(expected && client.transport() == expected);
	CHECK(client.fallback_reason().empty() == (client.transport() == "RDMA"));
	CHECK(client.device().empty() == (client.transport() == "TCP"));
	CHECK(server.peer_user_data().text() == "mine");
	CHECK(reinterpret_cast<const sockaddr_in &>(static_cast<const sockaddr_storage &>(client.local_addr())).sin_port ==
	      reinterpret_cast<const sockaddr_in &>(static_cast<const sockaddr_storage &>(server.peer_addr())).sin_port);

	client.write_all("ping");
	std::array<char, 4> in;
	CHECK(server.peek(in) > 0);
	server.read_exact(in);
	CHECK(std::string_view(in.data(), 4) == "ping");
	CHECK(!client.take_error());
	client.set_cork(true);
	client.set_linger(1s);
	client.set_linger(std::nullopt);
	client.write_all(std::vector<char>(300, 'v'));
	client.set_cork(false);
	client.flush();
	std::vector<char> many(300);
	server.read_exact(many);
	CHECK(many == std::vector<char>(300, 'v'));

	client.set_nonblocking(true);
	CHECK(!client.try_read(in));
	CHECK(thrown([&] { client.read(in); }) == EAGAIN);
	CHECK(client.try_write("x") == 1u);
	client.set_interest(TRESPASS_READABLE);
	server.write_all("ready");
	do
		wait_for(client.fd());
	while (!(client.readiness() & TRESPASS_READABLE));
	CHECK(client.writable_fd() >= 0);
	client.set_nonblocking(false);
	client.drain(20s);
	client.shutdown(SHUT_WR);
	CHECK(thrown([&] { client.write("late"); }) == EPIPE);
	CHECK(thrown([&] { server.read_exact(many); }) == ENODATA);

	trespass::stream moved = std::move(client);
	CHECK(!client && moved);
	CHECK(thrown([&] { client.read(in); }) == EFAULT);
	CHECK(thrown([&] { client.device(); }) == EFAULT);
	client = std::move(moved);
	client.read_exact(trespass::span(in.data(), 4));
	client.close();
	CHECK(!client && thrown([&] { client.close(); }) == EFAULT);
	CHECK(thrown([] { trespass::stream::connect("127.0.0.1:nothing"); }) == EINVAL);
}

static void messages()
{
	auto [client, server] = make_pair<trespass::seq_packet>();
	char in[100];
	client.send("one");
	client.send(trespass::view(nullptr, 0));
	CHECK(server.recv(in) == 3 && server.recv(in) == 0);
	client.set_nonblocking(true);
	CHECK(!client.try_recv(in));
	CHECK(client.try_send("two") && server.recv(in) == 3);
	client.set_nonblocking(false);
	std::size_t sent = 0;
	const std::string parts = "in parts";
	while (sent < parts.size())
		sent += client.send_part(parts.size(), trespass::view(parts.data() + sent, parts.size() - sent));
	const trespass_part part = server.recv_part(in);
	CHECK(part.total == parts.size() && part.last && part.length == parts.size());

	auto [receiving, sending] = client.split();
	CHECK(!client);
	std::thread sender([half = std::move(sending)]() mutable {
		for (int n = 0; n < 50; n++)
			half.send(trespass::view(&n, sizeof(n)));
	});
	for (int n = 0; n < 50; n++) {
		int got = -1;
		CHECK(server.recv(trespass::span(&got, sizeof(got))) == sizeof(got) && got == n);
	}
	sender.join();
	/* The half that sent is closed with its thread. */
	CHECK(thrown([&] { server.recv(in); }) == ENODATA);
	server.send("back");
	CHECK(receiving.recv(in) == 4);
}

static void zero_copy()
{
	auto [client, server] = make_pair<trespass::seq_packet>();
	trespass::buffer buffer = client.make_buffer(1000);
	CHECK(buffer.size() >= 1000);
	std::memset(buffer.data(), 'z', 1000);
	CHECK(thrown([&] { client.send_buffer(std::move(buffer), buffer.size() + 1); }) == EINVAL);
	CHECK(buffer);
	const std::uint64_t ticket = client.send_buffer(std::move(buffer), 1000);
	CHECK(!buffer);
	{
		const trespass::received data = server.recv_buffer();
		std::string all;
		for (const trespass::view piece : data.pieces())
			all += piece.text();
		CHECK(data.size() == 1000 && all == std::string(1000, 'z'));
	}
	auto returned = client.wait_completion();
	CHECK(returned && returned->ticket == ticket && returned->sent && !returned->left);
	CHECK(!client.poll_completion());
	client.send_buffer(std::move(returned->buffer), 10);
	const auto [data, part] = server.recv_part_buffer();
	CHECK(data.size() == 10 && part.total == 10 && part.last);
}

static void workers()
{
	auto worker = trespass::worker::make();
	const trespass_key listener = worker.listen(at_port(0), TRESPASS_SEQPACKET);
	const sockaddr_storage place = worker.local_addr(listener);
	const int port = ntohs(reinterpret_cast<const sockaddr_in &>(place).sin_port);
	const trespass_key client = worker.connect(at_port(port), TRESPASS_SEQPACKET);
	worker.set_tag(client, 9);
	std::vector<trespass_event> events(4);
	trespass_key server = 0;
	bool connected = false;
	while (!server || !connected) {
		const std::size_t count = worker.poll(events, 20s);
		for (std::size_t n = 0; n < count; n++) {
			server = events[n].event == TRESPASS_EVENT_ACCEPTED ? events[n].key : server;
			connected |= events[n].event == TRESPASS_EVENT_CONNECTED && events[n].tag == 9;
		}
	}
	CHECK(worker.try_send(client, "message"));
	char in[10];
	std::optional<std::size_t> got;
	while (!(got = worker.try_recv(server, in)))
		worker.poll(events, 20s);
	CHECK(*got == 7 && worker.fd() >= 0);
	worker.shutdown(client, SHUT_WR);
	worker.close_key(server);
	CHECK(thrown([&] { worker.try_send(server, "x"); }) == ENOTCONN);
	const trespass::waker waker = worker.make_waker();
	std::thread([&] { waker.wake(); }).join();
	worker.poll(events, std::nullopt);

	auto [one, two] = make_pair<trespass::stream>();
	auto halves = one.split();
	CHECK(thrown([&] { worker.add(std::move(halves.first)); }) == EOPNOTSUPP && halves.first);
	const trespass_key added = worker.add(std::move(two));
	CHECK(!two && worker.try_write(added, "added") == 5u);
	worker.poll(events, 0ms);
	char text[5];
	halves.first.set_read_timeout(20s);
	halves.first.read_exact(text);
	CHECK(!worker.try_read(added, text));
}

static void connecting()
{
	trespass::listener listener(at_port(0));
	trespass::connecting<trespass::stream> connecting(here(listener));
	std::optional<trespass::stream> client;
	while (!(client = connecting.try_finish()))
		wait_for(connecting.fd());
	trespass::stream server = listener.accept();
	server.write_all("hello");
	char in[5];
	client->read_exact(in);
	CHECK(thrown([&] { trespass::listener(here(listener)); }) == EADDRINUSE);
}

int main()
{
	alarm(100);
	views();
	streams();
	messages();
	zero_copy();
	workers();
	connecting();
	std::puts("all classes");
	return 0;
}
