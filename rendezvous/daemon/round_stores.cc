// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/round_stores.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <limits>
#include <utility>

#include "common/cgroup_limits.h"
#include "common/error.h"
#include "common/log.h"
#include "common/parsed_number.h"
#include "common/peer_user.h"
#include "common/socket.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::rendezvous {
namespace {
constexpr std::chrono::seconds kDropInterval{2};

std::optional<std::uint64_t> number_of(std::string_view text) {
  const auto number = take_number<std::uint64_t>(text);
  if (!number) return std::nullopt;
  constexpr std::pair<std::string_view, std::uint64_t> kUnits[] = {
      {"", 1},          {"k", 1'000},     {"M", 1'000'000}, {"G", 1'000'000'000},
      {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
  for (const auto& [unit, factor] : kUnits) {
    if (text != unit) continue;
    if (*number > std::numeric_limits<std::int64_t>::max() / factor) return std::nullopt;
    return *number * factor;
  }
  return std::nullopt;
}

}  // namespace

StoreLimits default_job_limits() {
  return {.keys = 1'000'000,
          .bytes = store::default_store_bytes(),
          .connections = 65'536,
          .requests = 0};
}

StoreLimits default_total_limits() {
  static const std::uint64_t bytes = std::min(std::uint64_t{16} << 30, usable_memory_bytes() / 2);
  return {.keys = 10'000'000, .bytes = bytes, .connections = 262'144, .requests = 0};
}

std::string set_limits(std::string_view text, StoreLimits& limits) {
  const std::pair<std::string_view, std::uint64_t*> known[] = {{"keys", &limits.keys},
                                                               {"bytes", &limits.bytes},
                                                               {"connections", &limits.connections},
                                                               {"requests", &limits.requests}};
  for (const std::string_view part : parts_between(text, ',')) {
    const std::size_t equals = part.find('=');
    const auto* found = std::ranges::find(known, part.substr(0, equals),
                                          [](const auto& each) { return each.first; });
    if (equals == part.npos || found == std::end(known)) {
      return concat("\"", part, "\" is not keys=N, bytes=N, connections=N or requests=N");
    }
    const auto number = number_of(part.substr(equals + 1));
    if (!number) {
      return concat("\"", part, "\": wants a number, which may end in k, M, G, KiB, MiB or GiB");
    }
    *found->second = *number;
  }
  return {};
}

RoundStores::RoundStores(boost::asio::io_context& io, store::StoreServerOptions options,
                         StoreLimits of_job, StoreLimits in_all, std::optional<uid_t> only_user)
    : io_(io),
      options_(std::move(options)),
      of_job_(of_job),
      in_all_(in_all),
      only_user_(only_user),
      timer_(io),
      patience_(io) {}

void RoundStores::begin_round(const std::string& run_id, std::uint64_t round,
                              std::optional<uid_t> owner) {
  retire_current();
  owner_ = owner;
  current_name_ = concat("store of job ", run_id, ", round ", round);
}

void RoundStores::end_rounds() {
  retire_current();
  owner_.reset();
  current_name_.reset();
}

void RoundStores::adopt(UniqueFd connection) {
  if (const auto user = owner_ ? owner_ : only_user_) {
    const std::string why = loopback_client_problem(connection.get(), *user);
    if (!why.empty()) {
      return log_about_peer(LogLevel::kWarning, "closed the connection of ",
                            peer_text(connection.get()), ", a client of ",
                            current_name_.value_or("the port's store"), ": ", why);
    }
  }
  std::unique_ptr<store::StoreServer>& server = current_name_ ? current_ : plain_;
  const StoreLimits& limits = current_name_ ? of_job_ : in_all_;
  const std::size_t num_clients = server ? server->stats().num_connections : 0;
  if (num_clients >= limits.connections) {
    log_about_peer(LogLevel::kWarning, "closed the connection of ", peer_text(connection.get()),
                   ": ", current_name_.value_or("the store on this port"), " has ", num_clients,
                   " connections, the limit is ", limits.connections, " (ddprund --",
                   current_name_ ? "job-limits" : "limits", "=connections=N)");
    return;
  }
  if (!server) {
    auto options = options_;
    options.max_total_bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(options.max_total_bytes, limits.bytes));
    if (current_name_) options.name = *current_name_;
    try {
      server = std::make_unique<store::StoreServer>(io_, std::move(options));
    } catch (const Error& error) {
      log_about_peer(LogLevel::kWarning, "closed the connection of ", peer_text(connection.get()),
                     ": there is no room for its store: ", error.what());
      return;
    }
  }
  server->adopt(std::move(connection));
}

void RoundStores::when_unused(std::chrono::milliseconds limit, std::function<void()> unused) {
  unused_ = std::move(unused);
  run_after(patience_, limit, [this, weak = std::weak_ptr<int>(alive_)] {
    if (!weak.expired() && unused_) std::exchange(unused_, nullptr)();
  });
  retire_current();
  for (const auto& server : retired_) {
    server->when_unused([this] { say_if_unused(); });
  }
}

RoundStores::Usage RoundStores::usage() const {
  Usage usage;
  usage.past_requests = past_requests_;
  if (plain_) usage.plain = plain_->stats();
  const auto count = [&usage](const store::StoreServer& server) {
    const store::StoreServerStats stats = server.stats();
    ++usage.num_rounds;
    usage.rounds.num_connections += stats.num_connections;
    usage.rounds.num_keys += stats.num_keys;
    usage.rounds.content_bytes += stats.content_bytes;
    usage.rounds.num_requests += stats.num_requests;
    usage.rounds.num_slow_readers += stats.num_slow_readers;
  };
  if (current_) count(*current_);
  for (const auto& server : retired_) count(*server);
  return usage;
}

void RoundStores::say_if_unused() {
  for (const auto& server : retired_) {
    if (server->stats().num_connections > 0) return;
  }
  patience_.cancel();
  if (unused_) std::exchange(unused_, nullptr)();
}

void RoundStores::retire_current() {
  if (current_) retired_.push_back(std::move(current_));
  drop_unused();
}

void RoundStores::drop_unused() {
  std::erase_if(retired_, [this](const auto& server) {
    const store::StoreServerStats stats = server->stats();
    if (stats.num_connections > 0) return false;
    past_requests_ += stats.num_requests;
    return true;
  });
  if (unused_) {
    boost::asio::post(io_, [this, weak = std::weak_ptr<int>(alive_)] {
      if (!weak.expired()) say_if_unused();
    });
  }
  if (retired_.empty() || timing_) return;
  timing_ = true;
  run_after(timer_, kDropInterval, [this, weak = std::weak_ptr<int>(alive_)] {
    if (weak.expired()) return;
    timing_ = false;
    drop_unused();
  });
}

}  // namespace ddprun::rendezvous
