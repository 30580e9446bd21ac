// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/blocking_io.h"

#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <optional>
#include <utility>

#include "common/log.h"

namespace ddprun::ha {

namespace asio = boost::asio;

BlockingIo::BlockingIo() : work_(io_.get_executor()), door_(std::make_shared<Door>()) {
  door_->io = &io_;
}

BlockingIo::~BlockingIo() {
  const std::lock_guard lock(door_->mutex);
  door_->io = nullptr;
}

bool BlockingIo::run_until(const std::function<bool()>& is_done, Deadline limit) {
  while (!is_done()) {
    if (cancelled_ || limit.expired()) return false;
    io_.run_one_until(limit.at());
  }
  return true;
}

void BlockingIo::drain(const std::function<bool()>& is_done) {
  while (!is_done()) io_.run_one();
}

NameLookup BlockingIo::look_up(const Endpoint& endpoint, Deadline limit) {
  boost::system::error_code not_numeric;
  asio::ip::make_address(endpoint.host, not_numeric);
  if (!not_numeric) return ddprun::look_up(endpoint, limit);
  const auto answer = std::make_shared<std::optional<NameLookup>>();  // the io thread's
  look_up_in_background(endpoint, [answer, door = door_](NameLookup found) {
    const std::lock_guard lock(door->mutex);
    if (door->io == nullptr) return;
    asio::post(*door->io, [answer, found = std::move(found)] { *answer = found; });
  });
  if (run_until([&] { return answer->has_value(); }, limit)) return **answer;
  return {{}, concat("can't resolve host name \"", endpoint.host, "\": no answer in time")};
}

void BlockingIo::cancel() {
  cancelled_ = true;
  asio::post(io_, [] {});  // wakes who waits
}

}  // namespace ddprun::ha
