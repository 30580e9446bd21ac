// SPDX-License-Identifier: Apache-2.0
// A client's flood and another client: `store_hostile PORT FLOOD SECONDS` floods the server on
// 127.0.0.1:PORT, and sends it a GET every millisecond on another connection. It prints one JSON
// line: how long the GETs took, from when they were due.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "bench/store/bench_client.h"
#include "bench/store/colliding_keys.h"
#include "rendezvous/store/request.h"

using namespace ddprun;
using namespace ddprun::bench;
using ddprun::store::encoded;
using ddprun::store::Opcode;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kMostKeys = 131'072;  // in one request

struct Flood {
  std::vector<std::string> once;  // each by a connection of its own, which stays
  std::string again;              // again and again by one more
  bool reconnects = false;        // for each time
};

std::vector<std::string> numbered_keys(std::size_t count, std::size_t first = 0) {
  std::vector<std::string> keys;
  for (std::size_t i = first; i < first + count; ++i) keys.push_back("/key" + std::to_string(i));
  return keys;
}

std::string set(std::string_view key, std::string_view value) {
  return encoded({.opcode = Opcode::kSet, .key = key, .value = value});
}

std::string about(Opcode opcode, const std::vector<std::string>& keys,
                  std::string_view value = {}) {
  store::Request request{.opcode = opcode};
  request.keys.assign(keys.begin(), keys.end());
  if (opcode == Opcode::kMultiSet) request.values.assign(keys.size(), value);
  return encoded(request);
}

Flood flood_of(const std::string& name) {
  const std::string many_waits = [] {
    std::vector<std::string> keys = numbered_keys(kMostKeys);
    keys.front() = "/a";
    keys.back() = "/b";
    return about(Opcode::kWait, keys);
  }();
  const std::string large(std::size_t{32} << 20, ' ');
  const auto pair_of = [](std::string_view key) {
    return set(key, "") + encoded({.opcode = Opcode::kDeleteKey, .key = key});
  };
  if (name == "none") return {};
  if (name == "collide") return {{}, about(Opcode::kMultiSet, colliding_keys(32'768), "v"), false};
  if (name == "wait") {
    std::vector<std::string> once(20, many_waits);
    once.insert(once.begin(), about(Opcode::kMultiSet, numbered_keys(kMostKeys), "v"));
    return {once, pair_of("/a") + pair_of("/b"), false};
  }
  if (name == "wait-reconnect") return {{}, many_waits, true};
  if (name == "list") {
    std::vector<std::string> a_million;
    for (std::size_t first = 0; first < 1'000'000; first += kMostKeys) {
      a_million.push_back(about(Opcode::kMultiSet, numbered_keys(kMostKeys, first), "v"));
    }
    return {a_million, encoded({.opcode = Opcode::kListKeys}), false};
  }
  if (name == "check") return {{}, about(Opcode::kCheck, numbered_keys(kMostKeys)), false};
  if (name == "get-large") {
    return {{set("/large", std::string(64 << 10, 'v'))},
            about(Opcode::kMultiGet, std::vector<std::string>(kMostKeys, "/large")),
            false};
  }
  if (name == "append") {
    return {{set("/large", large)},
            encoded({.opcode = Opcode::kGet, .key = "/large"}) +
                encoded({.opcode = Opcode::kAppend, .key = "/large", .value = "v"}),
            false};
  }
  if (name == "add-blanks") {
    return {{set("/blanks", large + "1")},
            encoded({.opcode = Opcode::kAdd, .key = "/blanks", .number = 1}),
            true};
  }
  if (name == "set-large") return {{}, set("/large", large), false};
  die("unknown flood " + name);
}

// Sends and drops what comes until `stop`. A connection that the server closes is made anew.
void run(const std::string& bytes, bool again, bool reconnects, int port,
         const std::atomic<bool>& stop) {
  const std::string handshake =
      encoded({.opcode = Opcode::kValidate, .word = store::kValidateMagic});
  std::vector<char> buffer(1 << 20);
  while (!stop) {
    const UniqueFd fd = connect_blocking(port);
    std::string message = handshake + bytes;
    if (again && !reconnects) {
      while (message.size() < (1 << 16)) message += bytes;
    }
    std::size_t sent = 0;
    bool open = true;
    while (!stop && open) {
      const bool has_more = sent < message.size();
      pollfd event{fd.get(), static_cast<short>(POLLIN | (has_more ? POLLOUT : 0)), 0};
      if (::poll(&event, 1, 100) <= 0) continue;
      if (event.revents & POLLIN) {
        open = ::recv(fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT) > 0;
      } else if (event.revents & POLLOUT) {
        const ssize_t size = ::send(fd.get(), message.data() + sent, message.size() - sent,
                                    MSG_DONTWAIT | MSG_NOSIGNAL);
        open = size > 0;
        sent += open ? static_cast<std::size_t>(size) : 0;
        if (sent < message.size() || !again) continue;
        if (reconnects) break;
        sent = handshake.size();
      } else {
        open = false;
      }
    }
    if (!again) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) die("usage: store_hostile PORT FLOOD SECONDS");
  const int port = std::atoi(argv[1]);
  const Flood flood = flood_of(argv[2]);
  const double seconds = std::atof(argv[3]);
  const UniqueFd victim = connect_blocking(port);
  shake_hands(victim.get());
  send_bytes(victim.get(), set("/victim", "v"));
  const std::string get = encoded({.opcode = Opcode::kGet, .key = "/victim"});
  send_bytes(victim.get(), get);
  receive_bytes(victim.get(), 9);

  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (const std::string& bytes : flood.once) {
    threads.emplace_back([&, again = false] { run(bytes, again, false, port, stop); });
  }
  if (!flood.again.empty()) {
    threads.emplace_back([&] { run(flood.again, true, flood.reconnects, port, stop); });
  }
  std::vector<double> milliseconds;
  const Clock::time_point start = Clock::now();
  Clock::time_point due = start;
  while (Clock::now() - start < std::chrono::duration<double>(seconds)) {
    due += std::chrono::milliseconds(1);
    std::this_thread::sleep_until(due);
    send_bytes(victim.get(), get);
    receive_bytes(victim.get(), 9);
    milliseconds.push_back(std::chrono::duration<double, std::milli>(Clock::now() - due).count());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::ranges::sort(milliseconds);
  const auto at = [&](double part) {
    return milliseconds[static_cast<std::size_t>(part *
                                                 static_cast<double>(milliseconds.size() - 1))];
  };
  std::printf(
      "{\"flood\": \"%s\", \"gets\": %zu, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.1f}\n",
      argv[2], milliseconds.size(), at(0.5), at(0.99), at(1));
  return 0;
}
