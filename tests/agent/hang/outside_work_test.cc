// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/outside_work.h"

#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "common/socket.h"
#include "tests/support/accept_from.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// A TCP connection to itself.
struct Connection {
  Connection() {
    const UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
    const SocketAddress address = local_address(listener.get());
    REQUIRE(connect_once(address, Deadline::after(10s), &from) == 0);
    to = accept_from(listener.get(), Deadline::after(10s));
  }
  // Both ends count.
  void carry(std::size_t bytes) {
    const std::string block(bytes, 'x');
    std::string got(bytes, '\0');
    std::thread sender([&] { send_all(from.get(), block.data(), bytes, Deadline::after(10s)); });
    receive_all(to.get(), got.data(), bytes, Deadline::after(10s));
    sender.join();
  }
  UniqueFd from, to;
};

// The bytes that this process and its descendants have moved. Acknowledgements come a little later
// than the bytes.
std::uint64_t moved(SocketWatch& watch, std::uint64_t wanted) {
  const auto deadline = Deadline::after(10s);
  do {
    watch.look({::getpid()}, tcp_socket_bytes().value());
  } while (watch.moved() < wanted && !deadline.expired());
  return watch.moved();
}

}  // namespace

TEST_CASE("SocketWatch: bytes of send() and recv() are seen, those of before are not counted",
          "[net]") {
  Connection connection;
  connection.carry(500'000);
  SocketWatch watch;
  CHECK(moved(watch, 0) == 0);
  connection.carry(1'000'000);
  CHECK(moved(watch, 2'000'000) >= 2'000'000);
  const std::uint64_t before = watch.moved();
  CHECK(before <= 2'500'000);

  Connection later;  // begun while it is watched
  later.carry(300'000);
  CHECK(moved(watch, before + 600'000) >= before + 600'000);

  const std::uint64_t by_now = watch.moved();
  watch.forget();
  connection.carry(700'000);
  CHECK(moved(watch, by_now) == by_now);
}

TEST_CASE("tcp_socket_bytes: more sockets than the limit are not looked at", "[net]") {
  const Connection connection;
  CHECK(tcp_socket_bytes().has_value());
  CHECK_FALSE(tcp_socket_bytes(1).has_value());
}

TEST_CASE("describe_work: work is listed with units that fit, heartbeats are left out") {
  CHECK(describe_work({}).empty());
  CHECK(describe_work({98, 3'100'000, 0}) == "GPU 98 %, 3.1 MB/s over sockets");
  CHECK(describe_work({0, 9'999, 999'999}).empty());
  CHECK(describe_work({0, 999'900, 0}) == "999.9 kB/s over sockets");
  CHECK(describe_work({0, 999'960, 0}) == "1.0 MB/s over sockets");
  CHECK(describe_work({0, 0, 2'000'000'000}) == "2.0 GB/s on this node's RDMA ports");
}

TEST_CASE("parse_gpu_shares: the largest share counts, lines of another form are skipped") {
  CHECK(parse_gpu_shares("7 50\n7 98\n7 3\n8 0\n") == GpuShares{{7, 98}, {8, 0}});
  CHECK(parse_gpu_shares("7\n-1 5\n7 101\n7 5x\nx 5\n\n").empty());
  CHECK(parse_gpu_shares("7 5") == GpuShares{{7, 5}});
}

TEST_CASE("rdma_port_bytes: all ports of all devices, in units of four bytes") {
  const test::TempDirectory folder;
  const auto write = [&](const std::string& port, const std::string& counter, const char* value) {
    const std::string counters = folder.path(port) + "/counters";
    std::filesystem::create_directories(counters);
    std::ofstream(counters + "/" + counter) << value << "\n";
  };
  CHECK(rdma_port_bytes(folder.path()) == 0);
  CHECK(rdma_port_bytes(folder.path("none")) == 0);
  write("mlx5_0/ports/1", "port_xmit_data", "1000");
  write("mlx5_0/ports/1", "port_rcv_data", "10");
  write("mlx5_1/ports/2", "port_xmit_data", "1");
  write("mlx5_1/ports/2", "port_rcv_data", "N/A (no PMA)");
  CHECK(rdma_port_bytes(folder.path()) == 4 * 1011);
}

}  // namespace ddprun::agent
