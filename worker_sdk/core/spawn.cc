// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "common/random_id.h"
#include "common/signal_names.h"
#include "worker_sdk/core/local_store.h"
#include "worker_sdk/core/parent_signals.h"
#include "worker_sdk/core/rank_process.h"

namespace ddprun {
namespace {

constexpr int kFailed = 1;
constexpr int kMaxSpawned = 4096;  // of one machine
// A rank has lost a peer → that one has ended, or said why.
constexpr std::chrono::milliseconds kCauseWait{1'000};

// A rank finds its own call by counting.
std::atomic<int> num_calls{0};
std::atomic<bool> is_under_way{false};

[[noreturn]] void run_rank(const std::function<void(int)>& function, const SpawnMarker& marker) {
  ::unsetenv(env::kSpawn);
  ::fcntl(marker.report_fd, F_SETFD, FD_CLOEXEC);
  report_reached(marker.report_fd);
  const auto fail = [&](std::optional<ErrorCode> code, const std::string& what) {
    std::fprintf(stderr, "ddprun: rank %d: %s\n", marker.rank, what.c_str());
    report_failure(marker.report_fd, code, what);
    std::exit(kFailed);
  };
  try {
    function(marker.rank);
  } catch (const Error& error) {
    fail(error.code(), error.what());
  } catch (const std::exception& error) {
    fail(std::nullopt, error.what());
  } catch (...) {
    fail(std::nullopt, "something that is no std::exception was thrown");
  }
  std::exit(0);
}

Environment environment_of(int rank, int num_ranks, const Endpoint& master,
                           const std::string& run_id, const SpawnOptions& options) {
  Environment environment = current_environment();
  for (const std::string_view name : env::kOfWorkers) environment.erase(std::string(name));
  for (const auto& [name, value] : options.environment) environment[name] = value;
  const std::string number = std::to_string(rank), size = std::to_string(num_ranks);
  for (const char* name : {env::kRank, env::kLocalRank, env::kRoleRank}) environment[name] = number;
  for (const char* name : {env::kWorldSize, env::kLocalWorldSize, env::kRoleWorldSize}) {
    environment[name] = size;
  }
  environment[env::kGroupRank] = environment[env::kRestartCount] = environment[env::kMaxRestarts] =
      "0";
  environment[env::kGroupWorldSize] = environment[env::kRound] = "1";
  environment[env::kRoleName] = "default";
  environment[env::kMasterAddr] = environment[env::kNodeAddr] = environment[env::kMasterNodeAddr] =
      master.host;
  environment[env::kMasterPort] = std::to_string(master.port);
  environment[env::kRunId] = run_id;
  environment[env::kUseAgentStore] = "True";  // PyTorch's: rank 0 is a client of the store, too
  if (num_ranks > 1) environment.try_emplace(env::kOmpNumThreads, "1");
  return environment;
}

void check_call(const std::function<void(int)>& function, int num_ranks,
                const SpawnOptions& options) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "spawn: " + why);
  };
  if (const char* rank = std::getenv(env::kRank)) {
    refuse(concat("this process is rank ", rank,
                  " of a job already (RANK is set): start the program without ddprun or torchrun, "
                  "and call spawn() outside of its ranks"));
  }
  if (!function) refuse("there is no function to run");
  if (num_ranks < 1 || num_ranks > kMaxSpawned) {
    refuse(concat(num_ranks, " ranks: give 1 to ", kMaxSpawned));
  }
  for (const std::string_view name : env::kOfWorkers) {
    if (options.environment.contains(std::string(name))) {
      refuse(concat("options.environment has ", name, ", which each rank gets by itself"));
    }
  }
}

// The ranks under way, and what ends them.
class Gang {
 public:
  Gang(std::vector<RankProcess> ranks, std::chrono::milliseconds grace)
      : ranks_(std::move(ranks)), grace_(grace) {}

  // Until none is left. What failed first, and is why; nullopt: nothing did.
  std::optional<std::pair<int, RankEnd>> wait(ParentSignals& signals) {
    while (num_running() > 0) {
      wait_for_event(signals);
      while (const int number = signals.take()) take_signal(number);
      for (RankProcess& rank : ranks_) {
        if (!rank.is_running() || !is_ended(rank)) continue;
        RankEnd end = rank.reap();
        if (!end.is_well) failed(rank.rank(), std::move(end));
      }
      if (cause_by_ && Deadline(*cause_by_).expired()) end_all(SIGTERM);
      if (kill_at_ && Deadline(*kill_at_).expired()) {
        kill_at_.reset();
        for (RankProcess& rank : ranks_) rank.signal(SIGKILL);
      }
    }
    return first_;
  }

  int signal_that_came() const { return signal_; }

 private:
  std::size_t num_running() const {
    return static_cast<std::size_t>(std::count_if(
        ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.is_running(); }));
  }

  static bool is_ended(const RankProcess& rank) {
    pollfd event{rank.pidfd(), POLLIN, 0};
    return ::poll(&event, 1, 0) == 1;
  }

  void wait_for_event(const ParentSignals& signals) const {
    std::vector<pollfd> events = {{signals.fd(), POLLIN, 0}};
    for (const RankProcess& rank : ranks_) {
      if (rank.is_running()) events.push_back({rank.pidfd(), POLLIN, 0});
    }
    // As long as the ranks work there is no limit; from the first failure on there is.
    const auto& end = kill_at_ ? kill_at_ : cause_by_;
    const int limit = end ? Deadline(*end).poll_timeout_ms() : -1;
    if (::poll(events.data(), events.size(), limit) < 0 && errno != EINTR) {
      throw_system_error("spawn: poll", errno);
    }
  }

  // Who lost a peer is not why: the peer, which unwinds, is left the time to say it.
  void failed(int rank, RankEnd end) {
    const bool is_cause = end.code != ErrorCode::kPeerLost;
    if (!first_ || (is_cause && cause_by_)) first_.emplace(rank, std::move(end));
    if (kill_at_) return;
    if (is_cause) return end_all(SIGTERM);
    if (!cause_by_) cause_by_ = Deadline::after(kCauseWait).at();
  }

  void take_signal(int number) {
    const bool is_second = signal_ != 0;
    if (!is_second) signal_ = number;
    end_all(is_second ? SIGKILL : SIGTERM);
  }

  void end_all(int signal_number) {
    for (RankProcess& rank : ranks_) rank.signal(signal_number);
    if (!kill_at_) kill_at_ = Deadline::after(grace_).at();
    cause_by_.reset();
  }

  std::vector<RankProcess> ranks_;
  const std::chrono::milliseconds grace_;
  std::optional<std::pair<int, RankEnd>> first_;
  std::optional<Clock::time_point> cause_by_;  // first_ is one who lost a peer
  std::optional<Clock::time_point> kill_at_;
  int signal_ = 0;
};

void run_parent(int call, int num_ranks, const SpawnOptions& options) {
  const LocalStore store;
  const std::string run_id = random_id();
  int signal_number = 0;
  std::optional<std::pair<int, RankEnd>> failure;
  {
    ParentSignals signals;
    std::vector<RankProcess> ranks;
    ranks.reserve(static_cast<std::size_t>(num_ranks));
    for (int rank = 0; rank < num_ranks; ++rank) {
      ranks.emplace_back(call, rank,
                         environment_of(rank, num_ranks, store.endpoint(), run_id, options));
    }
    Gang gang(std::move(ranks), options.grace);
    failure = gang.wait(signals);
    signal_number = gang.signal_that_came();
    if (signal_number == 0) signal_number = signals.take();  // after the last rank had ended
  }
  if (signal_number != 0) {
    ::raise(signal_number);
    throw Error(ErrorCode::kAborted,
                concat("spawn: ", signal_name(signal_number), " came: the ranks were ended"));
  }
  if (!failure) return;
  const auto& [rank, end] = *failure;
  throw Error(end.code.value_or(ErrorCode::kPeerLost),
              concat("spawn: rank ", rank, " of ", num_ranks, " ", end.text));
}

}  // namespace

void spawn(const std::function<void(int rank)>& function, int num_ranks,
           const SpawnOptions& options) {
  const int call = ++num_calls;
  if (const auto marker = find_spawn_marker()) {
    if (marker->call != call) return;  // the parent has done that one
    run_rank(function, *marker);
  }
  check_call(function, num_ranks, options);
  if (is_under_way.exchange(true)) {
    throw Error(ErrorCode::kInvalidArgument,
                "spawn: another call is under way in this process: one at a time");
  }
  struct Guard {
    ~Guard() { is_under_way = false; }
  } guard;
  run_parent(call, num_ranks, options);
}

}  // namespace ddprun
