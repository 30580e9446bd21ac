// SPDX-License-Identifier: Apache-2.0
// One thread with poll(2) is enough: a few ranks meet here a few times. It needs no library.
#include "worker_sdk/core/local_store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/interfaces.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "common/socket.h"
#include "rendezvous/store/request_parser.h"
#include "rendezvous/store/store_state.h"

namespace ddprun {
namespace {

using store::ConnectionId;

constexpr std::size_t kMaxContentBytes = std::size_t{1} << 30;
constexpr std::size_t kMaxUnsentBytes = std::size_t{64} << 20;
constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::chrono::seconds kBackOff{1};  // pause when out of descriptors

struct Client {
  Client(UniqueFd socket, const store::RequestLimits& limits)
      : fd(std::move(socket)), parser(limits) {}

  UniqueFd fd;
  store::RequestParser parser;
  std::string input, output;
  std::string end;  // why the connection is over; empty: it isn't
};

// Used by the serving thread alone.
class LoopbackServer {
 public:
  LoopbackServer(int listener, int stop) : listener_(listener), stop_(stop) {}

  void run() {
    std::vector<ConnectionId> ids;
    for (;;) {
      std::vector<pollfd> events = {{stop_, POLLIN, 0}, {listener_, POLLIN, 0}};
      // Without a free descriptor the listener would stay readable, so it is polled again later.
      if (!may_accept_.expired()) events[1].fd = -1;
      ids.clear();
      for (const auto& [id, client] : clients_) {
        const int wanted = POLLIN | (client.output.empty() ? 0 : POLLOUT);
        events.push_back({client.fd.get(), static_cast<short>(wanted), 0});
        ids.push_back(id);
      }
      const int limit = events[1].fd < 0 ? may_accept_.poll_timeout_ms() : -1;
      if (::poll(events.data(), events.size(), limit) < 0 && errno != EINTR) {
        return log_error("the ranks' store ends: poll: ", errno_text(errno));
      }
      if (events[0].revents) return;
      if (events[1].revents) accept_all();
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (events[i + 2].revents) serve(ids[i]);
      }
      drop_ended();
    }
  }

 private:
  void accept_all() {
    for (;;) {
      UniqueFd fd(::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) {
        if (errno == EAGAIN || is_of_one_connection(errno)) return;
        log_warning("the ranks' store: accept: ", accept_trouble(errno));
        may_accept_ = Deadline::after(kBackOff);
        return;
      }
      clients_.try_emplace(next_id_++, std::move(fd), limits_);
    }
  }

  void serve(ConnectionId id) {
    Client& client = clients_.at(id);
    send(client);
    char bytes[kReadBytes];
    const SocketStep step = receive_step(client.fd.get(), bytes, sizeof bytes);
    client.input.append(bytes, step.num_bytes);
    step_requests(id, client);
    if (client.end.empty()) client.end = step.ended;
  }

  void step_requests(ConnectionId id, Client& client) {
    std::string_view rest = client.input;
    store::Request request;
    while (client.end.empty()) {
      const store::ParseStatus status = client.parser.parse(rest, &request);
      if (status == store::ParseStatus::kNeedMore) break;
      if (status == store::ParseStatus::kMalformed) {
        client.end = client.parser.error();
        break;
      }
      deliver(state_.step(id, request), &client);
      rest.remove_prefix(client.parser.request_bytes());
    }
    client.input.erase(0, client.input.size() - rest.size());
  }

  void deliver(const store::Outcome& outcome, Client* sender) {
    for (const store::Reply& reply : outcome.replies) {
      const auto at = clients_.find(reply.to);
      if (at == clients_.end()) continue;
      Client& client = at->second;
      client.output += reply.bytes;
      if (reply.body) client.output += *reply.body;
      send(client);
      if (client.output.size() > kMaxUnsentBytes) client.end = "it does not read its replies";
    }
    if (sender && !outcome.close_reason.empty()) sender->end = outcome.close_reason;
  }

  static void send(Client& client) {
    while (!client.output.empty()) {
      const SocketStep step =
          send_step(client.fd.get(), client.output.data(), client.output.size());
      if (!step.ended.empty()) client.end = step.ended;
      if (step.num_bytes == 0) return;
      client.output.erase(0, step.num_bytes);
    }
  }

  // Dropping one client can end others, so the search starts anew after each.
  void drop_ended() {
    for (auto at = clients_.begin(); at != clients_.end();) {
      if (at->second.end.empty()) {
        ++at;
        continue;
      }
      log_debug("the ranks' store: a connection ends: ", at->second.end);
      const ConnectionId id = at->first;
      clients_.erase(at);
      deliver(state_.disconnect(id), nullptr);
      at = clients_.begin();
    }
  }

  const int listener_, stop_;
  const store::RequestLimits limits_{};
  store::StoreState state_{kMaxContentBytes};
  std::map<ConnectionId, Client> clients_;
  ConnectionId next_id_ = 1;
  Deadline may_accept_{Clock::time_point{}};
};

UniqueFd listen_on_loopback() {
  need_loopback();
  return listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
}

}  // namespace

LocalStore::LocalStore()
    : listener_(listen_on_loopback()),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      endpoint_{.host = "127.0.0.1", .port = local_address(listener_.get()).port()} {
  if (!stop_) throw_system_error("eventfd", errno);
  thread_ = start_quiet_thread("ranks-store", [listener = listener_.get(), stop = stop_.get()] {
    LoopbackServer(listener, stop).run();
  });
}

LocalStore::~LocalStore() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

}  // namespace ddprun
