// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/tcp_store.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/socket.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun::store {
namespace {

// A longer reply can't come from a c10d store, and is refused before memory is allocated.
constexpr std::uint64_t kMaxReplyBytes = std::uint64_t{1} << 40;
constexpr std::size_t kReplyPieceBytes = std::size_t{1} << 20;

std::string raw(std::string_view key) {
  std::string text(1, kKeyPrefix);
  text.append(key);
  return text;
}

std::vector<std::string> raw(const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  texts.reserve(keys.size());
  for (const std::string& key : keys) texts.push_back(raw(key));
  return texts;
}

std::vector<std::string_view> views(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

// Returns `"a", "b" and 14 more`, without the protocol's prefix.
std::string quoted(const std::vector<std::string_view>& raw_keys) {
  constexpr std::size_t kMaxShown = 4;
  return first_listed(raw_keys, kMaxShown,
                      [](std::string_view key) { return concat('"', key.substr(1), '"'); });
}

// Thrown when an expired wait was cancelled at the server: the connection stays usable.
class WaitExpired : public Error {
 public:
  explicit WaitExpired(const std::string& message) : Error(ErrorCode::kTimeout, message) {}
};

}  // namespace

template <typename Call>
auto TcpStore::guarded(Call call) {
  if (!connection_) {
    throw_error(ErrorCode::kConnectionLost, "the connection to the store at ", to_string(server_),
                " has ended: ", death_, "; make a new one");
  }
  try {
    return call();
  } catch (const WaitExpired&) {
    throw;
  } catch (const Error& error) {
    connection_.reset();
    death_ = error.what();
    throw Error(error.code(), concat("store at ", to_string(server_), ": ", error.what()));
  } catch (...) {
    connection_.reset();
    death_ = "a call was interrupted by an exception";
    throw;
  }
}

template <typename Exchange>
auto TcpStore::call(Exchange exchange) {
  deadline_ = Deadline::after(options_.timeout);
  return guarded(exchange);
}

TcpStore::TcpStore(const Endpoint& server, const TcpStoreOptions& options)
    : server_(server), options_(options) {
  connection_ = connect_to(server_, deadline_);
  guarded([&] {
    encode_request({.opcode = Opcode::kValidate, .word = kValidateMagic}, &out_);
    const auto own = static_cast<std::uint32_t>(::getpid());
    if (exchange_ping(own) == own) return;
    throw_error(ErrorCode::kProtocol, to_string(server_), " is not a c10d store server");
  });
}

void TcpStore::ping() {
  call([&] { exchange_ping(0); });
}

void TcpStore::set(std::string_view key, std::string_view value) {
  tell({.opcode = Opcode::kSet, .key = raw(key), .value = value});
}

std::string TcpStore::get(std::string_view key) {
  const std::string raw_key = raw(key);
  return call([&] {
    wait_for({raw_key});
    send({.opcode = Opcode::kGet, .key = raw_key});
    return receive_vector();
  });
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t delta) {
  return ask_integer({.opcode = Opcode::kAdd, .key = raw(key), .number = delta});
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) {
  const std::string raw_key = raw(key);
  return call([&] {
    send({.opcode = Opcode::kCompareSet, .key = raw_key, .value = desired, .expected = expected});
    return receive_vector();
  });
}

bool TcpStore::check(const std::vector<std::string>& keys) {
  const std::vector<std::string> raw_keys = raw(keys);
  return call([&] {
    send({.opcode = Opcode::kCheck, .keys = views(raw_keys)});
    char answer;
    receive(&answer, sizeof answer);
    if (answer != kReady && answer != kNotReady) {
      throw Error(ErrorCode::kProtocol, "unexpected answer to CHECK");
    }
    return answer == kReady;
  });
}

void TcpStore::wait(const std::vector<std::string>& keys) {
  const std::vector<std::string> raw_keys = raw(keys);
  call([&] { wait_for(views(raw_keys)); });
}

bool TcpStore::delete_key(std::string_view key) {
  return ask_integer({.opcode = Opcode::kDeleteKey, .key = raw(key)}) > 0;
}

std::int64_t TcpStore::num_keys() { return ask_integer({.opcode = Opcode::kGetNumKeys}); }

std::vector<std::string> TcpStore::list_keys() {
  return call([&] {
    send({.opcode = Opcode::kListKeys});
    std::vector<std::string> keys;
    for (std::int64_t left = receive_integer(); left > 0; --left) {
      std::string key = receive_vector();
      if (key.starts_with(kKeyPrefix)) keys.push_back(key.substr(1));
    }
    return keys;
  });
}

void TcpStore::append(std::string_view key, std::string_view value) {
  tell({.opcode = Opcode::kAppend, .key = raw(key), .value = value});
}

std::vector<std::string> TcpStore::multi_get(const std::vector<std::string>& keys) {
  const std::vector<std::string> raw_keys = raw(keys);
  return call([&] {
    wait_for(views(raw_keys));
    send({.opcode = Opcode::kMultiGet, .keys = views(raw_keys)});
    std::vector<std::string> values;
    values.reserve(keys.size());
    while (values.size() < keys.size()) values.push_back(receive_vector());
    return values;
  });
}

void TcpStore::multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::vector<std::string> raw_keys;
  std::vector<std::string_view> values;
  for (const auto& [key, value] : entries) {
    raw_keys.push_back(raw(key));
    values.push_back(value);
  }
  tell({.opcode = Opcode::kMultiSet, .keys = views(raw_keys), .values = std::move(values)});
}

void TcpStore::queue_push(std::string_view key, std::string_view value) {
  tell({.opcode = Opcode::kQueuePush, .key = raw(key), .value = value});
}

std::string TcpStore::queue_pop(std::string_view key) {
  const std::string raw_key = raw(key);
  return call([&] {
    // Another consumer may take the element between the two requests; then this one waits again.
    for (;;) {
      wait_for({raw_key});
      if (std::optional<std::string> value = pop(raw_key)) return *std::move(value);
    }
  });
}

std::optional<std::string> TcpStore::try_queue_pop(std::string_view key) {
  const std::string raw_key = raw(key);
  return call([&] { return pop(raw_key); });
}

std::int64_t TcpStore::queue_len(std::string_view key) {
  return ask_integer({.opcode = Opcode::kQueueLen, .key = raw(key)});
}

void TcpStore::barrier(std::string_view key, std::int64_t world_size) {
  const std::string raw_key = raw(key);
  call([&] {
    send({.opcode = Opcode::kBarrier, .key = raw_key, .number = world_size});
    receive_stop_waiting("barrier", {raw_key});
  });
}

// ---- the connection ----

void TcpStore::send(const Request& request) {
  encode_request(request, &out_);
  send_all(connection_.get(), out_.data(), out_.size(), deadline_);
  out_.clear();
  constexpr std::size_t kKeptBytes = 1 << 20;
  if (out_.capacity() > kKeptBytes) out_.shrink_to_fit();
}

void TcpStore::tell(const Request& request) {
  call([&] { send(request); });
}

std::int64_t TcpStore::ask_integer(const Request& request) {
  return call([&] {
    send(request);
    return receive_integer();
  });
}

std::uint32_t TcpStore::exchange_ping(std::uint32_t word) {
  send({.opcode = Opcode::kPing, .word = word});
  std::uint32_t nonce;
  receive(&nonce, sizeof nonce);
  return nonce;
}

void TcpStore::receive(void* data, std::size_t size) {
  receive_all(connection_.get(), data, size, deadline_);
}

std::int64_t TcpStore::receive_integer() {
  std::int64_t value;
  receive(&value, sizeof value);
  return value;
}

std::string TcpStore::receive_vector() {
  std::uint64_t size;
  receive(&size, sizeof size);
  if (size > kMaxReplyBytes) throw Error(ErrorCode::kProtocol, "a reply of absurd length");
  // The buffer grows in pieces, so that an announced length alone takes no memory.
  std::string bytes;
  while (bytes.size() < size) {
    const std::size_t before = bytes.size();
    bytes.resize(before +
                 std::min<std::uint64_t>(size - before, std::max(kReplyPieceBytes, before)));
    receive(bytes.data() + before, bytes.size() - before);
  }
  return bytes;
}

std::optional<std::string> TcpStore::pop(std::string_view raw_key) {
  send({.opcode = Opcode::kQueuePop, .key = raw_key});
  if (receive_integer() <= 0) return std::nullopt;
  return receive_vector();
}

void TcpStore::wait_for(const std::vector<std::string_view>& raw_keys) {
  send({.opcode = Opcode::kWait, .keys = raw_keys});
  receive_stop_waiting("waiting for", raw_keys);
}

void TcpStore::receive_stop_waiting(std::string_view what,
                                    const std::vector<std::string_view>& keys) {
  char answer = kStopWaiting;
  if (wait_ready(connection_.get(), POLLIN, deadline_)) {
    receive(&answer, sizeof answer);
    if (answer != kStopWaiting) throw Error(ErrorCode::kProtocol, "unexpected answer to WAIT");
    return;
  }
  const Deadline of_call = std::exchange(deadline_, Deadline::after(kCancelTimeout));
  send({.opcode = Opcode::kCancelWait});
  // The release and the cancellation may have crossed: then the release's byte comes first.
  receive(&answer, sizeof answer);
  const bool released = answer == kStopWaiting;
  if (released) receive(&answer, sizeof answer);
  if (answer != kWaitCanceled)
    throw Error(ErrorCode::kProtocol, "unexpected answer to CANCEL_WAIT");
  deadline_ = of_call;
  if (released) return;
  throw WaitExpired(concat("store at ", to_string(server_), ": ", what, " ", quoted(keys),
                           " timed out after ", options_.timeout.count(), " ms"));
}

}  // namespace ddprun::store
