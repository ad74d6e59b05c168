// SPDX-License-Identifier: MIT OR Apache-2.0

// hello.c in C++, without loading the libraries first: the first call that needs one loads it, and
// rdma_mummy_error() distinguishes a missing library from an unsupported operation of a device.
#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>

#include <rdma-mummy/rdma_cma.h>

namespace {

using Devices = std::unique_ptr<ibv_device *[], decltype(&ibv_free_device_list)>;
using Channel = std::unique_ptr<rdma_event_channel, decltype(&rdma_destroy_event_channel)>;

// False if rdma-core is missing, true if the machine has no device.
bool report(const char *what)
{
	const int error = errno;

	if (const char *reason = rdma_mummy_error()) {
		std::cerr << "hello: " << reason << '\n';
		return false;
	}
	std::cout << what << ": none (" << std::strerror(error) << ")\n";
	return true;
}

} // namespace

int main()
{
	int count = 0;
	const Devices devices(ibv_get_device_list(&count), ibv_free_device_list);

	if (!devices && !report("devices"))
		return 1;
	for (int n = 0; n < count; ++n)
		std::cout << "device: " << ibv_get_device_name(devices[n]) << '\n';

	const Channel channel(rdma_create_event_channel(), rdma_destroy_event_channel);
	if (channel)
		std::cout << "event channel: file descriptor " << channel->fd << '\n';
	else if (!report("event channel"))
		return 1;
	return 0;
}
